//! What the line of a lock must do, step by step, asked through the trait: one suite, run for each store. On Redis it
//! runs with two gateways.

use std::sync::Arc;
use std::time::Duration;

use fencepost::lock::{
    Attempt, Inspected, Lease, LeaseToken, LockKey, QueuePosition, Refusal, Released, RolledBack, Terms,
    Ticket, TokenHash, Ttl,
};
use fencepost::store::{
    Heartbeat, HeartbeatAnswer, Hint, Inspect, KnownTo, LockRequest, LockStore, OFFER, PassOn, Release,
    RollBack, TicketAfter, Tombstone,
};
use tokio::sync::broadcast::Receiver;
use tokio::time::{Instant, timeout};

use super::store_suite::granted;
use kit::PATIENCE;
use kit::asking::LockStoreExt;
use kit::asking::{Answer, Ask, Join, ask};
use kit::stores::AnyStore;

mod attempts;
mod breaking;
mod leaving;
mod turns;

pub const MARK_TTL: Duration = Duration::from_secs(120);

/// One who waits, at one of two gateways.
#[derive(Clone)]
struct Waiter {
    store: Arc<dyn LockStore>,
    key: LockKey,
    token: TokenHash,
    attempt: Attempt,
    terms: Terms,
}

struct Scene {
    here: Arc<dyn LockStore>,
    there: Arc<dyn LockStore>,
}

pub fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// The lock that all want.
pub fn the_key() -> LockKey {
    LockKey::parse(b"k").unwrap()
}

/// The heartbeat of a gateway whose waiters want the lock.
pub async fn beat(store: &Arc<dyn LockStore>) -> HeartbeatAnswer {
    store.call(Heartbeat { bucket: store.bucket_of(&the_key()) }, soon()).await.unwrap()
}

impl Scene {
    async fn new(stores: &AnyStore) -> Self {
        let (here, there) = (stores.store.clone(), stores.another_gateway(MARK_TTL));
        beat(&here).await;
        beat(&there).await;
        Self { here, there }
    }

    fn waiter(&self) -> Waiter {
        Waiter::at(&self.here)
    }

    fn waiter_there(&self) -> Waiter {
        Waiter::at(&self.there)
    }

    /// Somebody holds the lock, and two wait for it, the second at the other gateway; and the place of the first.
    async fn two_wait(&self) -> (Waiter, [Waiter; 2], Ticket) {
        let (holder, first, second) = (self.waiter(), self.waiter(), self.waiter_there());
        holder.grant(60_000).await;
        let place = in_line(first.join().await).ticket;
        in_line(second.join().await);
        (holder, [first, second], place)
    }
}

impl Waiter {
    fn at(store: &Arc<dyn LockStore>) -> Self {
        let (key, token) = (the_key(), LeaseToken::generate().hash());
        Self { store: store.clone(), key, token, attempt: Attempt::generate(), terms: Terms::default() }
    }

    /// Another request of the same token.
    fn again(&self, store: &Arc<dyn LockStore>) -> Self {
        Self { store: store.clone(), attempt: Attempt::generate(), ..self.clone() }
    }

    async fn ask(&self, ttl_ms: u64, how: Ask) -> Answer {
        // A gateway with a waiter beats all the time; these gateways have no heart of their own.
        beat(&self.store).await;
        let (key, token, attempt, terms) = (self.key.clone(), self.token, self.attempt, self.terms);
        let ttl = Ttl::from_ms(ttl_ms).unwrap();
        let lock = LockRequest { key, token, attempt, ttl, note: Default::default(), terms };
        ask(&*self.store, lock, how, soon()).await.unwrap()
    }

    async fn grant(&self, ttl_ms: u64) -> Lease {
        granted(self.ask(ttl_ms, Ask::Try).await)
    }

    async fn join(&self) -> Answer {
        self.ask(30_000, Ask::Enqueue(Join { takes_over: true, ..Join::default() })).await
    }

    async fn join_again(&self, join: Join) -> Answer {
        self.ask(30_000, Ask::Enqueue(join)).await
    }

    async fn look(&self) -> Answer {
        self.ask(30_000, Ask::Poll).await
    }

    async fn last_look(&self, place: TicketAfter) -> Answer {
        self.ask(30_000, Ask::LastPoll(place)).await
    }

    async fn release(&self) -> Released {
        let (key, token) = (self.key.clone(), self.token);
        let release = Release { key, token, tombstone: Tombstone::Final };
        self.store.call(release, soon()).await.unwrap().answer
    }

    async fn leave(&self, ticket: TicketAfter) -> bool {
        let (key, token, attempt) = (self.key.clone(), self.token, self.attempt);
        let roll_back = RollBack { key, token, attempt, ticket, known: KnownTo::Nobody };
        matches!(self.store.call(roll_back, soon()).await.unwrap(), RolledBack::Ended { .. })
    }

    async fn pass_on(&self) -> Option<Duration> {
        let (key, token, attempt) = (self.key.clone(), self.token, self.attempt);
        self.store.call(PassOn { key, token, attempt }, soon()).await.unwrap()
    }

    async fn waiters(&self) -> u64 {
        match self.store.call(Inspect { key: self.key.clone(), token: None }, soon()).await.unwrap() {
            Inspected::Free { waiters } | Inspected::Held { waiters, .. } => waiters,
        }
    }

    fn offer(&self) -> Hint {
        Hint::Offered(self.key.clone(), self.token, self.attempt)
    }
}

#[track_caller]
pub fn in_line(answer: Answer) -> QueuePosition {
    match answer {
        Answer::Queued(standing) => standing,
        other => panic!("not in line: {other:?}"),
    }
}

#[track_caller]
fn refused(answer: Answer) -> Refusal {
    match answer {
        Answer::Refused(refusal) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

/// Waits for a hint among others.
async fn is_told(hints: &mut Receiver<Hint>, expected: &Hint) {
    let told = timeout(PATIENCE, async { while hints.recv().await.unwrap() != *expected {} }).await;
    assert!(told.is_ok(), "not told: {expected:?}");
}

/// Waits until an offer that was made before has lapsed.
pub async fn offer_lapses(since: Instant) {
    tokio::time::sleep_until(since + OFFER + Duration::from_millis(20)).await;
}
