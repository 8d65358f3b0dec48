//! How connections are served, and their limits.

use std::sync::Arc;
use std::time::Duration;

use super::tls::Tls;
use crate::telemetry::Connections;

/// How connections are served by [`serve`](super::serve), and their limits.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// The certificate for TLS. Without it, connections are not secure.
    pub tls: Option<Tls>,
    /// How long the TLS handshake may take, from the moment when the connection is accepted.
    pub tls_handshake_timeout: Duration,
    /// How long a connection may then take to deliver its first complete request head. Without TLS, this counts from
    /// the moment when it is accepted.
    pub first_request_timeout: Duration,
    /// How long a connection may be without a request in flight before it is closed. With HTTP/1, the next request's
    /// head must also be complete by then.
    pub idle_timeout: Duration,
    /// The most connections at a time, at least 1. Further ones wait in the kernel's backlog.
    pub max_connections: usize,
    /// The most connections of one address, or of one IPv6 network. Further ones are closed.
    pub max_connections_per_address: usize,
    /// The most concurrent requests on one HTTP/2 connection.
    pub max_h2_streams: u32,
    /// The most bytes of answers that wait in memory for their clients to read them, and of heads that clients have not
    /// finished. If there are more, the connection with most of them is closed.
    pub max_unread_bytes: usize,
    /// How long a drain may take from its beginning. Then the remaining connections are cut.
    pub drain_timeout: Duration,
    /// The counts of connections.
    pub counts: Arc<Connections>,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            tls: None,
            tls_handshake_timeout: Duration::from_secs(10),
            first_request_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            max_connections: 10_000,
            max_connections_per_address: 5_000,
            max_h2_streams: 250,
            max_unread_bytes: 64 * 1024 * 1024,
            drain_timeout: Duration::from_secs(10),
            counts: Arc::default(),
        }
    }
}
