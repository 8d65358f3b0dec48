//! Who waits at this gateway, and what wakes them.
//!
//! The store keeps the wait queues and decides whose turn it is (`store.rs`, and `line.lua` of Redis in most detail). Here stand
//! the requests that wait: each sleeps until it is rung, and then looks for itself. They are rung by the store's hints,
//! which may be lost; by a timer per lock, for the end of its lease; and by what a heartbeat finds due, which misses
//! nothing. However many wait, only the first of a lock looks.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, broadcast, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::lock::{Attempt, LockKey, QueuePosition, Ticket, TokenHash};
use crate::store::{Bucket, Hint};

/// A timer of the first waiter rings a moment after the lease's end.
const AFTER_END: Duration = Duration::from_millis(3);
/// Timers of other gateways ring later, at different times. They are needed only if the first gateway is gone.
const AFTER_END_OF_OTHERS_MS: std::ops::Range<u64> = 60..160;

/// The first waiter of each lock looks at least so often: a lease that was made shorter, or removed, by another program is told by
/// nothing.
const LOOK_EACH: Duration = Duration::from_secs(5);
/// Waiters of many locks look less often: this far apart from each other.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// Everybody who waits at this gateway.
#[derive(Default)]
pub(super) struct Wakeups {
    registry: Mutex<Registry>,
    /// Tells the keeper of an earlier timer.
    timer_set: Notify,
    /// When all waiting ended, as the gateway stops.
    pub(super) closing: CancellationToken,
}

#[derive(Default)]
struct Registry {
    keys: HashMap<LockKey, Waiters>,
    /// Those whose ticket is known, of each lock first come first. One map for all of them: of a map for each lock, which has one
    /// waiter as a rule, most of the room would be empty.
    queued: BTreeMap<(LockKey, Ticket, u64), Arc<Waiter>>,
    /// All of a bucket, by their ids.
    buckets: HashMap<Bucket, BTreeMap<u64, Arc<Waiter>>>,
    /// Each attempt of each waiter.
    by_attempt: HashMap<Attempt, Arc<Waiter>>,
    /// The next look at each lock.
    timers: BTreeSet<(Instant, LockKey)>,
    last_id: u64,
}

/// Those who wait for one lock.
#[derive(Default)]
struct Waiters {
    count: usize,
    timer: Option<Instant>,
}

impl Registry {
    /// How often the first waiter of a lock looks at least.
    fn look_each(&self) -> Duration {
        let locks = u32::try_from(self.keys.len()).unwrap_or(u32::MAX);
        LOOK_EACH.max(BETWEEN_LOOKS.saturating_mul(locks))
    }

    /// Rings those at the first ticket: two requests of one token share it, and only one of them may be heard.
    fn ring_first(&self, key: &LockKey) {
        let from = |ticket| (key.clone(), ticket, 0)..;
        let queued = self.queued.range(from(Ticket::new(0))).next();
        let Some(((_, first, _), _)) = queued.filter(|((of, ..), _)| of == key) else { return };
        for ((of, ticket, _), waiter) in self.queued.range(from(*first)) {
            if (of, ticket) != (key, first) {
                return;
            }
            waiter.bell.notify_one();
        }
    }
}

/// One who waits.
struct Waiter {
    id: u64,
    bucket: Bucket,
    /// The ticket that the store knew last.
    ticket: Mutex<Option<Ticket>>,
    bell: Notify,
    put_back: Mutex<Option<OwnedSemaphorePermit>>,
}

/// A request's own side of a [`Waiter`]. Once it is dropped, it is not woken any more.
pub(super) struct Waiting {
    wakeups: Arc<Wakeups>,
    key: LockKey,
    waiter: Arc<Waiter>,
    attempts: Vec<Attempt>,
}

impl Wakeups {
    /// Lets a request in. Call this before the store hears of the attempt: an offer to
    /// an attempt that is not known here is passed on.
    pub(super) fn enter(self: &Arc<Self>, key: &LockKey, bucket: Bucket, attempt: Attempt) -> Waiting {
        let mut registry = self.registry.lock();
        registry.last_id += 1;
        registry.keys.entry(key.clone()).or_default().count += 1;
        let id = registry.last_id;
        let (ticket, bell, put_back) = (Mutex::new(None), Notify::new(), Mutex::new(None));
        let waiter = Arc::new(Waiter { id, bucket, ticket, bell, put_back });
        registry.buckets.entry(bucket).or_default().insert(id, waiter.clone());
        registry.by_attempt.insert(attempt, waiter.clone());
        drop(registry);
        Waiting { wakeups: self.clone(), key: key.clone(), waiter, attempts: vec![attempt] }
    }

    /// Ends all waiting. Each is rung, so that it need not listen for that too.
    pub(super) fn close(&self) {
        self.closing.cancel();
        let registry = self.registry.lock();
        registry.buckets.values().flat_map(BTreeMap::values).for_each(|waiter| waiter.bell.notify_one());
    }

    /// Whether anybody waits for a lock of the bucket.
    pub(super) fn is_in_use(&self, bucket: Bucket) -> bool {
        self.registry.lock().buckets.contains_key(&bucket)
    }

    /// Rings for hints and timers, until the store has no more hints, or nothing holds the other end of `stop`.
    pub(super) async fn keep(
        self: Arc<Self>,
        mut hints: broadcast::Receiver<Hint>,
        pass_on: PassOnOffer,
        mut stop: oneshot::Receiver<()>,
    ) {
        loop {
            let next = self.registry.lock().timers.first().map(|(at, _)| *at);
            let timer = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                hint = hints.recv() => match hint {
                    Ok(hint) => self.heed(hint, &pass_on),
                    // The heartbeat finds what was lost.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                },
                () = timer => self.ring_due(),
                () = self.timer_set.notified() => {}
                _ = &mut stop => return,
            }
        }
    }

    /// Somebody must look at the lock in so many milliseconds.
    pub(super) fn is_due(&self, key: &LockKey, in_ms: u64) {
        let mut registry = self.registry.lock();
        if in_ms == 0 {
            return registry.ring_first(key);
        }
        self.set_timer(&mut registry, key, in_ms, AFTER_END);
    }

    /// Has all of a bucket tell the store their tickets again, first come first, as fast as there are permits.
    pub(super) async fn put_back(self: Arc<Self>, bucket: Bucket, permits: Arc<Semaphore>) {
        let mut queued: Vec<_> = {
            let registry = self.registry.lock();
            let waiters = registry.buckets.get(&bucket).into_iter().flat_map(BTreeMap::values);
            waiters.map(|waiter| (*waiter.ticket.lock(), waiter.clone())).collect()
        };
        // Those who join at this moment come last: their answer may be older than what was lost.
        queued.sort_by_key(|(ticket, _)| (ticket.is_none(), *ticket));
        for (_, waiter) in queued {
            let Ok(permit) = permits.clone().acquire_owned().await else { return };
            // If the waiter has gone, this drops its message and the permit.
            *waiter.put_back.lock() = Some(permit);
            waiter.bell.notify_one();
        }
    }

    fn heed(&self, hint: Hint, pass_on: &PassOnOffer) {
        match hint {
            Hint::Offered(key, token, attempt) if !self.ring(&attempt) => pass_on(key, token, attempt),
            Hint::Offered(..) => {}
            Hint::Look(_, attempt) => drop(self.ring(&attempt)),
            Hint::Due(key, in_ms) => self.is_due(&key, in_ms.max(1)),
        }
    }

    /// Rings the waiter of an attempt; `false` where there is none.
    fn ring(&self, attempt: &Attempt) -> bool {
        let registry = self.registry.lock();
        let waiter = registry.by_attempt.get(attempt);
        waiter.inspect(|waiter| waiter.bell.notify_one()).is_some()
    }

    fn ring_due(&self) {
        let mut registry = self.registry.lock();
        let now = Instant::now();
        while let Some((at, _)) = registry.timers.first()
            && *at <= now
        {
            let Some((_, key)) = registry.timers.pop_first() else { return };
            let Some(waiters) = registry.keys.get_mut(&key) else { continue };
            waiters.timer = None;
            registry.ring_first(&key);
            self.set_timer(&mut registry, &key, u64::MAX, Duration::ZERO);
        }
    }

    /// Sets the timer of a lock, unless an earlier one is set: a look too many costs little.
    fn set_timer(&self, registry: &mut Registry, key: &LockKey, in_ms: u64, pause: Duration) {
        let latest = registry.look_each();
        let Some(waiters) = registry.keys.get_mut(key) else { return };
        let at = Instant::now() + Duration::from_millis(in_ms).min(latest) + pause;
        if let Some(set) = waiters.timer {
            if set <= at {
                return;
            }
            registry.timers.remove(&(set, key.clone()));
        }
        waiters.timer = Some(at);
        registry.timers.insert((at, key.clone()));
        self.timer_set.notify_one();
    }
}

/// Passes on an offer that none of our waiters claims.
pub(super) type PassOnOffer = Box<dyn Fn(LockKey, TokenHash, Attempt) + Send + Sync>;

impl Waiting {
    /// Listens for one more attempt of the same request.
    pub(super) fn also_answers_to(&mut self, attempt: Attempt) {
        self.wakeups.registry.lock().by_attempt.insert(attempt, self.waiter.clone());
        self.attempts.push(attempt);
    }

    /// The ticket that the store knew last.
    pub(super) fn ticket(&self) -> Option<Ticket> {
        *self.waiter.ticket.lock()
    }

    /// Notes where the request stands, and when somebody should look again.
    pub(super) fn note(&self, position: &QueuePosition) {
        let mut registry = self.wakeups.registry.lock();
        let before = self.waiter.ticket.lock().replace(position.ticket);
        if before != Some(position.ticket) {
            if let Some(before) = before {
                registry.queued.remove(&(self.key.clone(), before, self.waiter.id));
            }
            let own = (self.key.clone(), position.ticket, self.waiter.id);
            registry.queued.insert(own, self.waiter.clone());
        }
        let pause = match position.is_first {
            true => AFTER_END,
            false => Duration::from_millis(rand::random_range(AFTER_END_OF_OTHERS_MS)),
        };
        self.wakeups.set_timer(&mut registry, &self.key, position.due_in_ms, pause);
        // The offer's own hint may have been lost. One that has just looked is not rung by what it was told: its token's offer may
        // name it still when another request of the token has its ticket, and then it would look again and again.
        let offered = position.offered_to.and_then(|attempt| registry.by_attempt.get(&attempt));
        if let Some(offered) = offered.filter(|offered| offered.id != self.waiter.id) {
            offered.bell.notify_one();
        }
    }

    /// Waits until there is something to do: to look at the lock, to [put the ticket back](Self::put_back), or to end.
    pub(super) fn rung(&self) -> Notified<'_> {
        self.waiter.bell.notified()
    }

    /// The permit to tell the store its ticket again, if it was rung for that. It is held until that is done.
    pub(super) fn put_back(&self) -> Option<OwnedSemaphorePermit> {
        self.waiter.put_back.lock().take()
    }

    /// The last so many attempts before the one that is in use, the first of them first.
    pub(super) fn attempts_before(&self, count: u32) -> Vec<Attempt> {
        let before = &self.attempts[..self.attempts.len() - 1];
        before[before.len() - count as usize..].to_vec()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut registry = self.wakeups.registry.lock();
        for attempt in &self.attempts {
            registry.by_attempt.remove(attempt);
        }
        if let Entry::Occupied(mut bucket) = registry.buckets.entry(self.waiter.bucket) {
            bucket.get_mut().remove(&self.waiter.id);
            if bucket.get().is_empty() {
                bucket.remove();
            }
        }
        if let Some(ticket) = self.ticket() {
            registry.queued.remove(&(self.key.clone(), ticket, self.waiter.id));
        }
        let Some(waiters) = registry.keys.get_mut(&self.key) else { return };
        waiters.count -= 1;
        if waiters.count == 0 {
            let timer = waiters.timer;
            registry.keys.remove(&self.key);
            if let Some(at) = timer {
                registry.timers.remove(&(at, self.key.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    /// Another request of its token has the ticket, and the offer was made before that.
    #[test]
    fn one_who_is_told_of_an_offer_to_itself_is_not_rung_by_that() {
        let (Ok(key), wakeups) = (LockKey::parse(b"k"), Arc::new(Wakeups::default())) else {
            panic!("no key")
        };
        let [own, others] = [Attempt::generate(), Attempt::generate()];
        let [waiting, other] = [own, others].map(|attempt| wakeups.enter(&key, Bucket(0), attempt));
        let is_rung_by = |waiting: &Waiting, attempt| {
            let (ticket, offered_to) = (Ticket::new(1), Some(attempt));
            waiting.note(&QueuePosition { ticket, is_first: true, due_in_ms: 600, offered_to });
            let mut context = Context::from_waker(Waker::noop());
            [waiting, &other].map(|waiter| pin!(waiter.rung()).poll(&mut context).is_ready())
        };
        assert_eq!(is_rung_by(&waiting, own), [false, false]);
        assert_eq!(is_rung_by(&waiting, others), [false, true]);
    }
}
