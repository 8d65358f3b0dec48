//! What becomes of connections, in numbers: of all connections of the process, or of one server's alone.

use std::sync::Arc;

use prometheus::{IntCounter, IntGauge, Registry};

use super::labels::{Counters, counter, gauge, labels};

labels! {
    /// Why a connection was closed before it had a request.
    pub enum ConnectionRefused {
        /// Its address has as many as it may have.
        AddressFull = "address-full",
        /// The TLS handshake failed, for example because the authority of a certificate is not known.
        HandshakeFailed = "handshake-failed",
        /// The TLS handshake took too long.
        HandshakeLate = "handshake-late",
        /// No request came in time.
        NoRequest = "no-request",
        /// What came cannot be read as a request, or its head is too long. Requests before it were answered.
        Unreadable = "unreadable",
    }
}

/// Counts since the start, and what is open now.
#[derive(Debug)]
pub struct Connections {
    /// Open connections, including those in their handshake.
    pub open: IntGauge,
    accepted: IntCounter,
    /// Connections that were closed before they had a request.
    pub refused: Counters<ConnectionRefused>,
    /// Bytes of answers that wait in memory for their clients to read them, and of long heads that have no end yet.
    pub unread_bytes: IntGauge,
    /// Connections that were closed because they had most of those bytes when there were too many.
    pub cut_unread: IntCounter,
}

/// One open connection. It counts until this is dropped.
pub struct OpenConnection(Arc<Connections>);

impl Connections {
    pub(super) fn register(registry: &Registry) -> Self {
        Self {
            open: gauge(registry, "fencepost_connections", "Connections that are open."),
            accepted: counter(
                registry,
                "fencepost_connections_accepted_total",
                "Connections that were accepted.",
            ),
            refused: Counters::register(
                registry,
                "fencepost_connections_refused_total",
                "Connections that were closed before they had a request.",
                "reason",
            ),
            unread_bytes: gauge(
                registry,
                "fencepost_unread_bytes",
                "Bytes of answers that wait for their clients to read them, and of long heads that have no end yet.",
            ),
            cut_unread: counter(
                registry,
                "fencepost_connections_cut_total",
                "Connections that were closed since they had left most unread when all had left too much.",
            ),
        }
    }

    /// A connection was accepted.
    pub fn open(self: &Arc<Self>) -> OpenConnection {
        self.accepted.inc();
        self.open.inc();
        OpenConnection(Arc::clone(self))
    }
}

impl Default for Connections {
    /// The counts of a server whose counts are not shown.
    fn default() -> Self {
        Self::register(&Registry::new())
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.open.dec();
    }
}
