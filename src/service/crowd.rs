//! Who waits for records at this gateway, what wakes them, and what gateways tell each other of that.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::lock::{LeaseToken, LockKey, TokenHash};
use crate::once::{Stored, Worker};
use crate::store::{Heard, MeteredStore, PeerBus, StoreError, Topic};

/// The pause before the first precaution. It doubles with each, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// So long after the end of a lease it is looked, at different times at different gateways.
const AFTER_END_MS: std::ops::Range<u64> = 5..60;
/// How often a gateway with waiters says so to others, and for how long they heed it.
const SAY_EVERY: Duration = Duration::from_secs(2);
const HEEDED_FOR: Duration = Duration::from_secs(6);

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
    /// When the store answered last.
    told_at: Instant,
}

/// One who waits.
struct Waiter {
    token: Option<TokenHash>,
    may_take_over: bool,
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

/// What gateways tell each other.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Letter {
    /// Somebody waits for a record there.
    AwaitsRecords { from: u64 },
    /// A place of this record, or its result, has ended.
    RecordEnded { from: u64, key: String },
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
            tokio::spawn(Self::keep_hearing(Arc::downgrade(&waits), waits.closing.clone(), heard));
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

    /// Tells those who wait here a result that was stored here, if they know of its worker, and wakes those at other gateways.
    pub(super) fn has_result(&self, key: &LockKey, stored: Stored) {
        self.tell(key, |crowd| match &crowd.told {
            Ok((worker, _)) if worker.place.lease.fencing_token == stored.fencing_token => {
                crowd.is_done(&Stored { fingerprint: worker.fingerprint, ..stored });
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

    fn say(&self, letter: &Letter) {
        if let (Some(peers), Ok(text)) = (self.store.peers(), serde_json::to_string(letter)) {
            peers.tell(Topic::Watchers, text);
        }
    }

    /// Tells others that somebody waits here, unless they were told a moment ago.
    fn say_that_somebody_waits(&self) {
        let now = Instant::now();
        {
            let mut registry = self.registry.lock();
            let is_due = registry.said_at.is_none_or(|at| now >= at + SAY_EVERY);
            if registry.count == 0 || !is_due {
                return;
            }
            registry.said_at = Some(now);
        }
        self.say(&Letter::AwaitsRecords { from: self.name });
    }

    async fn keep_hearing(
        waits: Weak<Self>,
        closing: CancellationToken,
        mut heard: broadcast::Receiver<Heard>,
    ) {
        loop {
            let heard = tokio::select! {
                heard = heard.recv() => heard,
                () = closing.cancelled() => return,
            };
            let Some(waits) = waits.upgrade() else { return };
            match heard {
                Ok(Heard::Told(Topic::Watchers, text)) => waits.heed(&text),
                Err(RecvError::Closed) => return,
                // What was missed is found by looking.
                _ => {}
            }
        }
    }

    fn heed(&self, text: &str) {
        let mut registry = self.registry.lock();
        match serde_json::from_str(text) {
            Ok(Letter::AwaitsRecords { from }) if from != self.name => {
                registry.others_until = Some(Instant::now() + HEEDED_FOR);
            }
            Ok(Letter::RecordEnded { from, key }) if from != self.name => {
                let key = LockKey::parse(key.as_bytes()).ok();
                if let Some(crowd) = key.and_then(|key| registry.crowds.get_mut(&key)) {
                    crowd.look_now();
                }
            }
            // A letter of ours, or about something else.
            _ => {}
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
        let (bell, told) = (Notify::new(), Mutex::default());
        let waiter = Arc::new(Waiter { token, may_take_over, bell, told });
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
        Self { waiters, is_looking, is_stale, look_at, pause, told, told_at }
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

    /// There is a result, for all.
    fn is_done(&self, stored: &Stored) {
        self.tell(|_| true, || Told::Done(stored.clone()));
    }

    /// Tells the waiter of this token, if there is one.
    fn tell_token(&self, token: Option<TokenHash>, told: impl Fn() -> Told) {
        self.tell(|waiter| token.is_some() && waiter.token == token, told);
    }

    fn tell(&self, whom: impl Fn(&Waiter) -> bool, told: impl Fn() -> Told) {
        for waiter in self.waiters.values().filter(|waiter| whom(waiter)) {
            *waiter.told.lock() = Some(told());
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
    /// Hands on what this one was told.
    fn with_crowd(&mut self, then: impl FnOnce(&mut Crowd, Instant)) {
        let (registry, now) = (&mut *self.waits.registry.lock(), Instant::now());
        let Some(crowd) = registry.crowds.get_mut(&self.key) else { return };
        // A newcomer that looks for itself puts nothing off for those who wait.
        if std::mem::take(&mut self.is_looking) {
            crowd.is_looking = false;
            crowd.pause_from(now);
        }
        then(crowd, now);
        crowd.ring_next();
    }

    /// Another is at work.
    pub(super) fn is_busy(&mut self, worker: Worker) {
        let end_ms = worker.place.lease.left_ms + rand::random_range(AFTER_END_MS);
        self.with_crowd(|crowd, now| {
            crowd.look_at = crowd.look_at.min(now + Duration::from_millis(end_ms));
            crowd.tell_token(Some(worker.token), || Told::Look);
            (crowd.told, crowd.told_at) = (Ok((worker, true)), now);
        });
    }

    /// No lease runs, and the one that looked may not take over.
    pub(super) fn is_abandoned(&mut self, worker: Worker) {
        self.with_crowd(|crowd, now| (crowd.told, crowd.told_at) = (Ok((worker, false)), now));
    }

    /// The store did not answer.
    pub(super) fn is_told_nothing(&mut self, reason: String) {
        self.with_crowd(|crowd, _| crowd.told = Err(reason));
    }

    /// For how long the store has not answered anybody.
    pub(super) fn silence(&self) -> Duration {
        let registry = self.waits.registry.lock();
        registry.crowds.get(&self.key).map_or(Duration::ZERO, |crowd| crowd.told_at.elapsed())
    }

    /// What the crowd was told last, as it is now: who is or was at work, and whether its lease ran.
    pub(super) fn last_told(&self) -> Result<(Worker, bool), StoreError> {
        let registry = self.waits.registry.lock();
        let crowd = registry.crowds.get(&self.key).ok_or_else(|| StoreError::Unavailable(String::new()))?;
        let (mut worker, is_working) = crowd.told.clone().map_err(StoreError::Unavailable)?;
        let elapsed_ms = u64::try_from(crowd.told_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        worker.place.lease.left_ms = worker.place.lease.left_ms.saturating_sub(elapsed_ms);
        Ok((worker, is_working))
    }

    /// There is a result, for all.
    pub(super) fn is_done(&mut self, stored: &Stored) {
        self.with_crowd(|crowd, _| crowd.is_done(stored));
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
