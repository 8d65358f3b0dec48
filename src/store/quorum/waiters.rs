//! The waiters of this gateway, and whose turn it is to try. Gateways know nothing of each other's wait queues, so
//! waiting is fair only at each of them.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, broadcast};
use tokio::time::{Instant, timeout_at};

use crate::clock::{boottime, whole_ms};
use crate::lock::{Acquired, Attempt, LockKey, Refusal};
use crate::store::wait_queue::{SlotRoom, WaitQueues};
use crate::store::{Hint, LockRequest, StoreError, TicketAfter};

/// How long a gateway relies on what it knows of a holder: a tenth of the rest of the lease, within these bounds. The
/// messages of servers may be lost.
const KNOWN_FOR: RangeInclusive<Duration> = Duration::from_secs(2)..=Duration::from_secs(15);
/// How long to wait for most servers to say that a lock is free, after the first has said so.
const SOON: Duration = Duration::from_millis(15);
/// When a waiter is to poll a lock that has just become free, or may have.
pub(super) const AT_ONCE: Duration = Duration::from_millis(1);
/// Longer than any request goes on after its last poll.
const SPENT_FOR: Duration = Duration::from_secs(120);
/// The number of locks that are being tried for at which the others are forgotten.
const MANY: usize = 1_024;

/// The queues of this gateway, and what it knows of the locks that have waiters.
pub(super) struct Waiters {
    state: Mutex<WaitState>,
    /// One try for each lock at a time: this gateway's requests would only be in each other's way.
    tries: Mutex<HashMap<LockKey, Weak<AsyncMutex<()>>>>,
    hints: broadcast::Sender<Hint>,
}

/// What is kept together.
pub(super) struct WaitState {
    pub(super) queues: WaitQueues,
    /// The locks that are believed to be held, or are being tried for.
    held: HashMap<LockKey, KnownHolder>,
    /// The servers that have said that a lock is free.
    free_at: HashMap<LockKey, Vec<usize>>,
    /// When a server last said so.
    told_at: HashMap<LockKey, Duration>,
    /// Attempts whose last poll was not answered, and since when. What they may have done is being undone.
    spent: HashMap<Attempt, Duration>,
    /// How many locks are known before those without waiters are looked for.
    tidy_at: usize,
}

/// What is known of a lock, by the time since boot.
struct KnownHolder {
    until: Duration,
    good_until: Duration,
}

impl WaitState {
    /// How long the lock is believed to be held yet, as far as that was found out lately.
    pub(super) fn held(&self, key: &LockKey, now: Duration) -> Option<Duration> {
        let known = self.held.get(key).filter(|known| now < known.good_until)?;
        known.until.checked_sub(now).filter(|left| !left.is_zero())
    }

    /// The lock is held for so long, or it is being tried for.
    pub(super) fn note_held(&mut self, key: &LockKey, left: Duration, now: Duration) {
        self.free_at.remove(key);
        let good_for = (left / 10).clamp(*KNOWN_FOR.start(), *KNOWN_FOR.end());
        self.held.insert(key.clone(), KnownHolder { until: now + left, good_until: now + good_for });
    }

    /// Notes what the answer to a request of `asked_at` says of the lock, and of its token's ticket.
    pub(super) fn learn(
        &mut self,
        request: &LockRequest,
        answer: &Acquired<Refusal>,
        asked_at: Duration,
        now: Duration,
    ) {
        let LockRequest { key, token, attempt, ttl, .. } = request;
        match answer {
            Acquired::Granted(_)
            | Acquired::AlreadyHeld(_)
            | Acquired::TakenOver
            | Acquired::NotReplicated { .. } => {
                self.queues.granted(key, token, *attempt, Some(ttl.as_duration()).into(), now);
                self.note_held(key, ttl.as_duration(), now);
            }
            // It was released meanwhile, perhaps by the holder that is named. No server will tell this again.
            Acquired::NotTaken(Refusal { holder: Some(_), .. })
                if self.told_at.get(key).is_some_and(|told_at| *told_at >= asked_at) =>
            {
                self.held.insert(key.clone(), KnownHolder { until: now + SOON, good_until: now + SOON });
            }
            Acquired::NotTaken(Refusal { holder: Some(lease), .. }) => {
                // Else the offer of a lock that is held would lapse, and its ticket lose its turn.
                self.queues.withdrawn(key, now);
                self.note_held(key, Duration::from_millis(lease.left_ms), now);
            }
            Acquired::NotTaken(_) => self.note_free(key),
            Acquired::TokenReleased => drop(self.queues.released(key, token, false, SlotRoom::FREE, now)),
            // Nothing is shared here.
            Acquired::HeldOtherwise(_) => {}
            Acquired::AttemptVoided => {
                self.queues.vacate(key, token, *attempt, TicketAfter::Kept, SlotRoom::FREE, now);
            }
        }
    }

    /// Whether an attempt must not be granted anything any more.
    pub(super) fn is_spent(&self, attempt: &Attempt) -> bool {
        self.spent.contains_key(attempt)
    }

    pub(super) fn spend(&mut self, attempt: Attempt, now: Duration) {
        self.spent.retain(|_, since| now < *since + SPENT_FOR);
        self.spent.insert(attempt, now);
    }

    /// The lock may be free.
    pub(super) fn note_free(&mut self, key: &LockKey) {
        self.held.remove(key);
    }

    /// Forgets locks without waiters.
    fn tidy(&mut self, now: Duration) {
        self.queues.purge(now);
        let Self { queues, held, free_at, told_at, .. } = self;
        held.retain(|key, _| queues.has_queue(key, now));
        free_at.retain(|key, _| queues.has_queue(key, now));
        told_at.retain(|key, _| queues.has_queue(key, now));
        // Else each step would tidy up when many locks have waiters.
        self.tidy_at = MANY.max(2 * self.known());
    }

    /// Of how many locks something is known.
    fn known(&self) -> usize {
        self.held.len().max(self.told_at.len())
    }
}

impl Waiters {
    pub(super) fn new(queues: WaitQueues, hints: broadcast::Sender<Hint>) -> Self {
        let state = WaitState {
            queues,
            held: HashMap::new(),
            free_at: HashMap::new(),
            told_at: HashMap::new(),
            spent: HashMap::new(),
            tidy_at: MANY,
        };
        Self { state: Mutex::new(state), tries: Mutex::default(), hints }
    }

    /// Does one step, and tells the waiters what follows for them.
    pub(super) fn step<T>(&self, step: impl FnOnce(&mut WaitState, Duration) -> T) -> T {
        let now = boottime();
        let (answer, hints) = {
            let mut state = self.state.lock();
            let answer = step(&mut state, now);
            if state.known() > state.tidy_at {
                state.tidy(now);
            }
            (answer, state.queues.take_hints())
        };
        for hint in hints {
            // Without a waiter there is no listener.
            let _ = self.hints.send(hint);
        }
        answer
    }

    /// Waits for the turn to try for a lock.
    pub(super) async fn turn(
        &self,
        key: &LockKey,
        deadline: Instant,
    ) -> Result<OwnedMutexGuard<()>, StoreError> {
        let turn = {
            let mut tries = self.tries.lock();
            if tries.len() > MANY {
                tries.retain(|_, turn| turn.strong_count() > 0);
            }
            let known = tries.get(key).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let turn = Arc::default();
                tries.insert(key.clone(), Arc::downgrade(&turn));
                turn
            })
        };
        let too_busy = || {
            StoreError::Unavailable(
                "too many requests ask for this lock at once; nothing was done".to_owned(),
            )
        };
        timeout_at(deadline, turn.lock_owned()).await.map_err(|_| too_busy())
    }

    /// A server has told that a lock is free. Once `quorum` of them have told so, or after a moment, the first in the
    /// wait queue tries.
    pub(super) fn hear(&self, server: usize, key: LockKey, quorum: usize) {
        let due_in = self.step(|state, now| {
            if !state.queues.has_queue(&key, now) {
                return None;
            }
            state.told_at.insert(key.clone(), now);
            // A release at this gateway would have been noted; otherwise what was known is too old.
            if state.held(&key, now).is_none() {
                return Some(AT_ONCE);
            }
            let servers = state.free_at.entry(key.clone()).or_default();
            if !servers.contains(&server) {
                servers.push(server);
            }
            let (is_first, is_free) = (servers.len() == 1, servers.len() >= quorum);
            if is_free {
                state.free_at.remove(&key);
                state.note_free(&key);
                state.queues.freed(&key, SlotRoom::FREE, now);
            } else if is_first {
                state.held.insert(key.clone(), KnownHolder { until: now + SOON, good_until: now + SOON });
            }
            (is_first && !is_free).then_some(SOON)
        });
        if let Some(due_in) = due_in {
            let _ = self.hints.send(Hint::Due(key, whole_ms(due_in)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{FencingToken, Lease, LeaseToken, Note, Slots, Terms, Ttl};
    use crate::store::wait_queue::QueueTurn;
    use crate::store::{Enqueue, LineSettings, OFFER};

    fn waiters() -> Waiters {
        Waiters::new(WaitQueues::new(LineSettings::default()), broadcast::Sender::new(16))
    }

    /// What waits for the lock, by a new token.
    fn waiter() -> Enqueue {
        let (Ok(key), Some(ttl)) = (LockKey::parse(b"k"), Ttl::from_ms(30_000)) else { panic!("no request") };
        let (token, attempt) = (LeaseToken::generate().hash(), Attempt::generate());
        let lock = LockRequest { key, token, attempt, ttl, note: Note::default(), terms: Terms::default() };
        Enqueue { lock, takes_over: true, ticket: None, supersedes: Vec::new() }
    }

    /// The answer that somebody else holds the lock.
    fn refused() -> Acquired<Refusal> {
        let holder = FencingToken::new(7).map(|fencing_token| Lease {
            fencing_token,
            left_ms: 30_000,
            note: Note::default(),
            is_released: false,
            slot: None,
        });
        Acquired::NotTaken(Refusal { holder, waiters: 1, position: Some(1), ..Refusal::default() })
    }

    /// The holder that it names may have released the lock, and no server would tell this again.
    #[test]
    fn an_answer_that_is_older_than_the_news_of_a_release_is_not_believed() {
        let (waiters, request) = (waiters(), waiter());
        let key = request.lock.key.clone();
        assert_eq!(waiters.step(|state, now| state.queues.join(&request, now)), Ok(()));
        let is_believed = |asked_at: Duration| {
            waiters.step(|state, now| {
                state.learn(&request.lock, &refused(), asked_at, now);
                state.held(&key, now).is_some_and(|left| left > SOON)
            })
        };
        let asked_at = waiters.step(|_, now| now);
        assert!(is_believed(asked_at));
        waiters.hear(0, key.clone(), 3);
        assert!(!is_believed(asked_at));
        let asked_later = waiters.step(|_, now| now) + Duration::from_nanos(1);
        assert!(is_believed(asked_later));
    }

    /// Another gateway took the lock just then. The offer would lapse meanwhile, as if its waiter had not come.
    #[test]
    fn one_who_was_offered_a_lock_that_another_gateway_took_keeps_its_turn() {
        let (waiters, first, second) = (waiters(), waiter(), waiter());
        let key = &first.lock.key;
        let (offered_at, freed_at) = (boottime(), boottime() + 2 * OFFER);
        let mut state = waiters.state.lock();
        for waiter in [&first, &second] {
            assert_eq!(state.queues.join(waiter, offered_at), Ok(()));
        }
        state.queues.freed(key, SlotRoom::FREE, offered_at);
        state.learn(&second.lock, &refused(), offered_at, offered_at);
        state.queues.freed(key, SlotRoom::FREE, freed_at);
        let turns = [&second, &first].map(|Enqueue { lock, .. }| {
            state.queues.look(key, &lock.token, lock.attempt, Slots::ONE, SlotRoom::FREE, freed_at)
                == QueueTurn::Take
        });
        assert_eq!(turns, [false, true]);
    }
}
