//! Handshakes take turns, so that strangers cannot take all of the time that requests need.
//!
//! To begin a handshake costs a client nothing: it may send the same greeting again and again. The gateway answers each
//! with a key exchange and a signature, on the threads that serve requests and renew the leases of holds.

use std::future::Future;
use std::io;
use std::task::Poll;
use std::time::Duration;

use futures_util::{pending, poll};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};

use crate::server::addresses::AddressTurns;

/// Shorter rests are not slept, since timers are no finer. They add up.
const SHORTEST_REST: Duration = Duration::from_millis(2);
/// What takes longer is not all work: the process stood still in it. Such a time needs no rest.
const LONGEST_TURN: Duration = Duration::from_millis(50);

/// Whose turn it is. All handshakes of a server together take at most half of its threads' time.
pub(in crate::server) struct HandshakeTurns {
    threads: u32,
    /// One place for each thread. Places are given in the order in which they were asked for.
    places: Semaphore,
    /// As many handshakes at their first turn may ask for a place. So those that have begun wait for few of them.
    beginners: Semaphore,
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
            beginners: Semaphore::new(threads),
            rested_at: Mutex::new(Instant::now()),
        }
    }

    /// Brings a handshake to its end. It computes only in its turn, and has no turn while it waits for its client. Those
    /// of one address share `own`, so that no address waits for more than two handshakes of each other address.
    ///
    /// The first turn is the dear one. If all first turns went before the second ones, a burst of clients could be worked for
    /// until their time is over, and none of them would get in. If the client has left by its first turn, it has none.
    pub(super) async fn take<T, F>(
        &self,
        own: &AddressTurns,
        mut handshake: F,
        has_left: impl Fn(&F) -> bool,
    ) -> io::Result<T>
    where
        F: Future<Output = io::Result<T>> + Unpin,
    {
        // No semaphore is ever closed. All take them in this order, so they do not wait in a circle. A beginner waits for beginners
        // of other addresses, so it does not stand in the line of those that have begun.
        let mut beginner = Some(own.beginner.acquire().await);
        loop {
            let line = if beginner.is_some() { &self.beginners } else { &own.line };
            let turn = line.acquire().await;
            let place = self.places.acquire().await;
            self.rest().await;
            if beginner.is_some() && has_left(&handshake) {
                return Err(io::Error::other("the client left before its turn"));
            }
            let begun = Instant::now();
            let polled = poll!(&mut handshake);
            self.note(begun);
            if let Poll::Ready(output) = polled {
                return output;
            }
            beginner = None;
            drop((turn, place));
            // Until the task is woken, by whatever it was that the poll waits for.
            pending!();
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
        let rest = 2 * begun.elapsed().min(LONGEST_TURN) / self.threads;
        let mut rested_at = self.rested_at.lock();
        *rested_at = (*rested_at).max(begun) + rest;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use futures_util::FutureExt;
    use tokio::task::JoinSet;
    use tokio::time::{advance, sleep, timeout};

    use super::*;

    const DEAR: Duration = Duration::from_millis(3);
    const CHEAP: Duration = Duration::from_micros(50);
    const ROUND_TRIP: Duration = Duration::from_millis(2);
    /// In this time some 150 clients get in, since each dear turn has a rest that is as long.
    const PATIENCE: Duration = Duration::from_secs(1);
    const CLIENTS: usize = 200;

    fn compute_for(cost: Duration) {
        let _ = advance(cost).now_or_never();
    }

    async fn made_up(dear: Duration) -> io::Result<()> {
        compute_for(dear);
        sleep(ROUND_TRIP).await;
        compute_for(CHEAP);
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn each_client_of_a_burst_gets_in_at_its_second_try_at_the_latest() {
        let all = [(1, PATIENCE, CLIENTS), (25, PATIENCE, CLIENTS)];
        // A round of all addresses takes longer than their clients wait. Those whose turn came get in.
        for (addresses, patience, least) in all.into_iter().chain([(100, PATIENCE / 2, 50)]) {
            let turns = Arc::new(HandshakeTurns::new());
            let own: Vec<Arc<AddressTurns>> = (0..addresses).map(|_| Arc::default()).collect();
            let mut clients = JoinSet::new();
            for client in 0..CLIENTS {
                let (turns, own) = (Arc::clone(&turns), Arc::clone(&own[client % addresses]));
                clients.spawn(async move {
                    for _ in 0..2 {
                        let handshake = turns.take(&own, Box::pin(made_up(DEAR)), |_| false);
                        if timeout(patience, handshake).await.is_ok() {
                            return true;
                        }
                    }
                    false
                });
            }
            let got_in = clients.join_all().await.into_iter().filter(|got_in| *got_in).count();
            assert!(got_in >= least, "{got_in} from {addresses} addresses");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_has_left_by_its_first_turn_costs_nothing_and_later_it_is_not_asked() {
        let (turns, own) = (HandshakeTurns::new(), AddressTurns::default());
        let begun = Instant::now();
        assert!(turns.take(&own, Box::pin(made_up(DEAR)), |_| true).await.is_err());
        assert_eq!(begun.elapsed(), Duration::ZERO);
        // By its second turn, a client may have sent all that it has to say.
        let is_asked = Cell::new(false);
        assert!(turns.take(&own, Box::pin(made_up(DEAR)), |_| is_asked.replace(true)).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_in_which_the_process_stood_still_needs_no_rest() {
        let (turns, own) = (HandshakeTurns::new(), AddressTurns::default());
        let paused = Box::pin(made_up(Duration::from_secs(60)));
        assert!(turns.take(&own, paused, |_| false).await.is_ok());
        let begun = Instant::now();
        assert!(turns.take(&own, Box::pin(made_up(DEAR)), |_| false).await.is_ok());
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    }
}
