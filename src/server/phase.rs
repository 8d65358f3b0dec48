//! The phases of a server's life, and the signals that end it.

use std::io;
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// How long a drain still accepts and serves. Each answer in this time tells its client to close. So a client that
/// sends one request after the other is never cut between two of them.
pub(super) const DRAIN_GRACE: Duration = Duration::from_millis(500);
/// What comes within this time is the same signal: a terminal sends it to a group of processes, and some parents pass it on, too.
const ONE_SIGNAL: Duration = Duration::from_secs(1);

/// Where a server is in its life. It only moves forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The server has not been asked to end.
    Serving,
    /// New connections are still welcome; clients are told to close theirs.
    Draining,
    /// The listener closes once the backlog is empty, and so does each connection as soon as no request is in flight on it.
    Closing,
    /// The drain has taken too long: connections end now, whatever they are doing.
    Cut,
}

/// The first SIGTERM or SIGINT begins the drain, and a later one ends the gateway at once.
pub fn end_on_signals(draining: CancellationToken, at_once: CancellationToken) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            }
        };
        let name = next().await;
        tracing::info!("{name}: draining");
        draining.cancel();
        let drains_since = Instant::now();
        loop {
            let name = next().await;
            if drains_since.elapsed() >= ONE_SIGNAL {
                tracing::warn!("{name} again: ending at once");
                return at_once.cancel();
            }
        }
    });
    Ok(())
}
