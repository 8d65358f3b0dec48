//! The phases of a server's life.

use std::time::Duration;

/// How long a drain still accepts and serves. Each answer in this time tells its client to close. So a client that
/// sends one request after the other is never cut between two of them.
pub(super) const DRAIN_GRACE: Duration = Duration::from_millis(500);

/// Where a server is in its life. It only moves forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The server has not been asked to end.
    Serving,
    /// New connections are still welcome; clients are told to close theirs.
    Draining,
    /// The listener is closed, and so is each connection as soon as no request is in flight on it.
    Closing,
    /// The drain has taken too long: connections end now, whatever they are doing.
    Cut,
}
