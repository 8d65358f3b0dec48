//! Who waits for records at this gateway, and what wakes them. What gateways tell each other of that is in `crowd/peers.rs`.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::clock::{boottime, whole_ms};
use crate::lock::{LeaseToken, LockKey, TokenHash};
use crate::once::{Stored, Worker};
use crate::store::{MeteredStore, PeerBus, StoreError};

use self::peers::Letter;

mod peers;

/// The pause before the first precaution. It doubles with each, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// So long after the end of a lease it is looked, at different times at different gateways.
const AFTER_END_MS: std::ops::Range<u64> = 5..60;

/// Everybody who waits for a record at this gateway.
pub(super) struct RecordWaits {
    store: MeteredStore,
    /// Names this process to others.
    name: u64,
    registry: Mutex<Registry>,
    /// When all waiting ended, as the gateway stops.
    pub(super) closing: CancellationToken,
}

#[derive(Default)]
struct Registry {
    crowds: HashMap<LockKey, Crowd>,
    count: usize,
    last_id: u64,
    /// When others were told last that somebody waits here.
    said_at: Option<Instant>,
    /// Until when another gateway counts as one where somebody waits.
    others_until: Option<Instant>,
}

/// Those who wait for one record.
struct Crowd {
    waiters: BTreeMap<u64, Arc<Waiter>>,
    /// Whether one of them looks at this moment.
    is_looking: bool,
    /// Whether something was told meanwhile.
    is_stale: bool,
    /// When one of them looks again.
    look_at: Instant,
    pause: Duration,
    /// Who was at work by the last answer, and whether its lease ran; or why the store did not answer since.
    told: Result<(Worker, bool), String>,
    /// When the look began that this is the answer to.
    asked_at: Instant,
    /// When the store answered last, also by the clock that counts while the machine sleeps.
    told_at: Instant,
    told_at_boot: Duration,
}

/// One who waits.
struct Waiter {
    token: Option<TokenHash>,
    may_take_over: bool,
    entered_at: Instant,
    bell: Notify,
    told: Mutex<Option<Told>>,
}

/// What a waiter is told by others.
enum Told {
    /// The result is there.
    Done(Stored),
    /// A newer request of the same token waits.
    Displaced,
    /// Its own token has the place.
    Look,
}

/// What a waiter is to do.
pub(super) enum Next {
    Look,
    Answer(Stored),
    Displaced,
    Over,
    ShuttingDown,
}

impl RecordWaits {
    /// For a gateway that hears the others from now on.
    pub(super) fn start(store: MeteredStore) -> Arc<Self> {
        let heard = store.peers().map(PeerBus::heard);
        let (registry, closing) = (Mutex::default(), CancellationToken::new());
        let waits = Arc::new(Self { store, name: rand::random(), registry, closing });
        if let Some(heard) = heard {
            tokio::spawn(Self::keep_hearing(Arc::downgrade(&waits), heard));
        }
        waits
    }

    pub(super) fn count(&self) -> usize {
        self.registry.lock().count
    }

    /// Wakes those who wait for a record, here and at other gateways: a place of it has ended, or it has a result.
    pub(super) fn ended(&self, key: &LockKey) {
        self.tell(key, Crowd::look_now);
    }

    /// Tells those who wait here a result that was stored here, by a step that began at `asked_at`, if they know of its worker; and wakes
    /// those at other gateways.
    pub(super) fn has_result(&self, key: &LockKey, asked_at: Instant, stored: Stored) {
        self.tell(key, |crowd| match &crowd.told {
            Ok((worker, _)) if worker.place.lease.fencing_token == stored.fencing_token => {
                crowd.is_done(asked_at, &Stored { fingerprint: worker.fingerprint, ..stored });
            }
            _ => crowd.look_now(),
        });
    }

    fn tell(&self, key: &LockKey, told: impl FnOnce(&mut Crowd)) {
        let others_wait = {
            let mut registry = self.registry.lock();
            if let Some(crowd) = registry.crowds.get_mut(key) {
                told(crowd);
            }
            registry.others_until.is_some_and(|until| Instant::now() < until)
        };
        if others_wait {
            self.say(&Letter::RecordEnded { from: self.name, key: key.as_str().to_owned() });
        }
    }

    /// Lets a request wait, unless `most` wait for the record already. An older request of the same token stops waiting.
    pub(super) fn enter(
        self: &Arc<Self>,
        key: &LockKey,
        token: Option<&LeaseToken>,
        may_take_over: bool,
        most: usize,
    ) -> Option<InCrowd> {
        let registry = &mut *self.registry.lock();
        let crowd = registry.crowds.entry(key.clone()).or_insert_with(Crowd::new);
        let token = token.map(LeaseToken::record_hash);
        let others = crowd.waiters.values().filter(|waiter| token.is_none() || waiter.token != token);
        if others.count() >= most {
            return None;
        }
        let (entered_at, bell, told) = (Instant::now(), Notify::new(), Mutex::default());
        let waiter = Arc::new(Waiter { token, may_take_over, entered_at, bell, told });
        crowd.tell_token(token, || Told::Displaced);
        registry.count += 1;
        registry.last_id += 1;
        let id = registry.last_id;
        crowd.waiters.insert(id, waiter.clone());
        Some(InCrowd { waits: self.clone(), key: key.clone(), id, waiter, is_looking: false })
    }
}

impl Crowd {
    fn new() -> Self {
        let (told, told_at, pause) =
            (Err("the store was not asked yet".to_owned()), Instant::now(), FIRST_PAUSE);
        let look_at = told_at + pause;
        let (waiters, is_looking, is_stale) = (BTreeMap::new(), false, false);
        let (asked_at, told_at_boot) = (told_at, boottime());
        Self { waiters, is_looking, is_stale, look_at, pause, told, asked_at, told_at, told_at_boot }
    }

    /// For how long the store has not answered anybody.
    fn silence(&self) -> Duration {
        self.told_at.elapsed().max(boottime().saturating_sub(self.told_at_boot))
    }

    /// Who looks next: the first that may take over, or else the first.
    fn next(&self) -> Option<(&u64, &Arc<Waiter>)> {
        self.waiters.iter().find(|(_, waiter)| waiter.may_take_over).or_else(|| self.waiters.iter().next())
    }

    fn ring_next(&self) {
        if let Some((_, waiter)) = self.next() {
            waiter.bell.notify_one();
        }
    }

    fn look_now(&mut self) {
        (self.is_stale, self.pause) = (self.is_looking, FIRST_PAUSE);
        self.look_at = Instant::now();
        self.ring_next();
    }

    /// One of them has looked for all. The next look comes after a pause, unless something was told meanwhile.
    fn pause_from(&mut self, now: Instant) {
        self.look_at = if std::mem::take(&mut self.is_stale) { now } else { now + self.pause };
        self.pause = LONGEST_PAUSE.min(self.pause * 2);
    }

    /// There is a result, by a step that began at `asked_at`. A request that came later is not told: the result may have been
    /// broken before that, and only this answer be late.
    fn is_done(&mut self, asked_at: Instant, stored: &Stored) {
        self.tell(|waiter| waiter.entered_at <= asked_at, || Told::Done(stored.clone()));
        if self.waiters.values().any(|waiter| waiter.entered_at > asked_at) {
            self.look_now();
        }
    }

    /// Tells the waiter of this token, if there is one.
    fn tell_token(&self, token: Option<TokenHash>, told: impl Fn() -> Told) {
        self.tell(|waiter| token.is_some() && waiter.token == token, told);
    }

    fn tell(&self, whom: impl Fn(&Waiter) -> bool, told: impl Fn() -> Told) {
        for waiter in self.waiters.values().filter(|waiter| whom(waiter)) {
            let known = &mut *waiter.told.lock();
            // A result that is there already is the answer.
            if !matches!(known, Some(Told::Done(_))) {
                *known = Some(told());
            }
            waiter.bell.notify_one();
        }
    }
}

/// A request's own side of a [`Waiter`]. Dropped, it waits no more, and another looks if it was about to.
pub(super) struct InCrowd {
    waits: Arc<RecordWaits>,
    key: LockKey,
    id: u64,
    waiter: Arc<Waiter>,
    /// Whether this one looks for all.
    is_looking: bool,
}

impl InCrowd {
    /// Hands on what this one was told, unless others know what is newer: an answer can be late.
    fn with_crowd(&mut self, asked_at: Instant, then: impl FnOnce(&mut Crowd, Instant)) {
        let (registry, now) = (&mut *self.waits.registry.lock(), Instant::now());
        let Some(crowd) = registry.crowds.get_mut(&self.key) else { return };
        // A newcomer that looks for itself puts nothing off for those who wait.
        if std::mem::take(&mut self.is_looking) {
            crowd.is_looking = false;
            crowd.pause_from(now);
        }
        if asked_at >= crowd.asked_at {
            crowd.asked_at = asked_at;
            then(crowd, now);
        }
        crowd.ring_next();
    }

    /// There is no result: who is or was at work, and whether its lease runs; or why the store did not answer.
    pub(super) fn is_told(&mut self, asked_at: Instant, told: Result<(Worker, bool), String>) {
        self.with_crowd(asked_at, |crowd, now| {
            if let Ok((worker, is_working)) = &told {
                (crowd.told_at, crowd.told_at_boot) = (now, boottime());
                if *is_working {
                    let end_ms = worker.place.lease.left_ms + rand::random_range(AFTER_END_MS);
                    crowd.look_at = crowd.look_at.min(now + Duration::from_millis(end_ms));
                    crowd.tell_token(Some(worker.token), || Told::Look);
                }
            }
            crowd.told = told;
        });
    }

    /// For how long the store has not answered anybody.
    pub(super) fn silence(&self) -> Duration {
        let registry = self.waits.registry.lock();
        registry.crowds.get(&self.key).map_or(Duration::ZERO, Crowd::silence)
    }

    /// What the crowd was told last, as it is now: who is or was at work, and whether its lease ran.
    pub(super) fn last_told(&self) -> Result<(Worker, bool), StoreError> {
        let registry = self.waits.registry.lock();
        let crowd = registry.crowds.get(&self.key).ok_or_else(|| StoreError::Unavailable(String::new()))?;
        let (mut worker, is_working) = crowd.told.clone().map_err(StoreError::Unavailable)?;
        let lease = &mut worker.place.lease;
        lease.left_ms = lease.left_ms.saturating_sub(whole_ms(crowd.silence()));
        Ok((worker, is_working))
    }

    /// There is a result, for all.
    pub(super) fn is_done(&mut self, asked_at: Instant, stored: &Stored) {
        self.with_crowd(asked_at, |crowd, _| crowd.is_done(asked_at, stored));
    }

    /// Sleeps until there is something to do, and no longer than `end`.
    pub(super) async fn next(&mut self, end: Instant) -> Next {
        loop {
            let told = self.waiter.told.lock().take();
            match told {
                Some(Told::Done(stored)) => return Next::Answer(stored),
                Some(Told::Displaced) => return Next::Displaced,
                Some(Told::Look) => return Next::Look,
                None => {}
            }
            let now = Instant::now();
            if now >= end {
                return Next::Over;
            }
            let look_at = {
                let mut registry = self.waits.registry.lock();
                let crowd = registry.crowds.get_mut(&self.key);
                crowd
                    .filter(|crowd| !crowd.is_looking && crowd.next().is_some_and(|(id, _)| *id == self.id))
                    .map(|crowd| {
                        crowd.is_looking = now >= crowd.look_at;
                        self.is_looking = crowd.is_looking;
                        crowd.look_at
                    })
            };
            if self.is_looking {
                return Next::Look;
            }
            // The one that looks next wakes each second, and says so again.
            self.waits.say_that_somebody_waits();
            tokio::select! {
                () = self.waiter.bell.notified() => {}
                () = sleep_until(look_at.map_or(end, |look_at| end.min(look_at))) => {}
                () = self.waits.closing.cancelled() => return Next::ShuttingDown,
            }
        }
    }
}

impl Drop for InCrowd {
    fn drop(&mut self) {
        let mut registry = self.waits.registry.lock();
        registry.count -= 1;
        let Entry::Occupied(mut entry) = registry.crowds.entry(self.key.clone()) else { return };
        let crowd = entry.get_mut();
        crowd.waiters.remove(&self.id);
        if crowd.waiters.is_empty() {
            entry.remove();
        } else if self.is_looking {
            // What it was told is its own, so another looks at once.
            crowd.is_looking = false;
            crowd.look_now();
        } else {
            crowd.ring_next();
        }
    }
}
