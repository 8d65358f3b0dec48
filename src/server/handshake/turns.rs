//! Handshakes take turns, so that strangers cannot take all of the time that requests need.
//!
//! To begin a handshake costs a client nothing: it may send the same greeting again and again. The gateway answers each
//! with a key exchange and a signature, on the threads that serve requests and renew the leases of holds.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};

/// Shorter rests are not slept, since timers are no finer. They add up.
const SHORTEST_REST: Duration = Duration::from_millis(2);

/// Whose turn it is. All handshakes of a server together take at most half of its threads' time.
pub(in crate::server) struct HandshakeTurns {
    threads: u32,
    /// One place for each thread. Places are given in the order in which they were asked for.
    places: Semaphore,
    /// When the handshakes so far have had their rest.
    rested_at: Mutex<Instant>,
}

impl HandshakeTurns {
    /// Those of a server that runs on the current runtime.
    pub(in crate::server) fn new() -> Self {
        let threads = Handle::current().metrics().num_workers().max(1);
        Self {
            threads: u32::try_from(threads).unwrap_or(u32::MAX),
            places: Semaphore::new(threads),
            rested_at: Mutex::new(Instant::now()),
        }
    }

    /// Brings a handshake to its end. It computes only in its turn, and has no turn while it waits for its client. Those
    /// of one address have `line`, so that no address waits for more than one handshake of each other address.
    pub(super) async fn take<F: Future + Unpin>(&self, line: &Semaphore, mut handshake: F) -> F::Output {
        loop {
            // Neither is ever closed.
            let turns = (line.acquire().await, self.places.acquire().await);
            self.rest().await;
            let begun = Instant::now();
            let polled = poll_fn(|context| Poll::Ready(Pin::new(&mut handshake).poll(context))).await;
            self.note(begun);
            if let Poll::Ready(output) = polled {
                return output;
            }
            drop(turns);
            woken().await;
        }
    }

    /// Lets all others that are ready go first, until they have had as much time as handshakes.
    async fn rest(&self) {
        let rested_at = *self.rested_at.lock();
        let now = Instant::now();
        if rested_at >= now + SHORTEST_REST {
            sleep_until(rested_at).await;
        } else if rested_at > now {
            yield_now().await;
        }
    }

    fn note(&self, begun: Instant) {
        let rest = 2 * begun.elapsed() / self.threads;
        let mut rested_at = self.rested_at.lock();
        *rested_at = (*rested_at).max(begun) + rest;
    }
}

/// Waits until the task is woken, by whatever it was that a poll before waits for.
async fn woken() {
    let mut is_woken = false;
    poll_fn(|_| if std::mem::replace(&mut is_woken, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}
