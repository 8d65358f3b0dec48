//! The heartbeat of a gateway with waiters. It tells the store that they are present, and its answer says what they may
//! have missed. Each bucket with waiters has a heartbeat of its own, so a silent server delays only its own waiters.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, Semaphore, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use super::wakeups::{PassOnOffer, Wakeups};
use crate::store::{Bucket, Heartbeat, MeteredStore, PassOn, StoreError};

/// The time between two beats. It is shorter than an offer lasts, and leaves time for a poll.
const BEAT_EVERY: Duration = Duration::from_millis(600);
/// If the store answered a heartbeat within this time, it takes the gateway for present long enough to join a queue.
const HEARD_LATELY: Duration = Duration::from_millis(900);
/// How many waiters of a bucket put their tickets back at once.
const PUT_BACK_AT_ONCE: usize = 16;
/// Offers that may be passed on at once; further ones lapse.
const MOST_PASSED_ON: usize = 64;

/// What keeps the wait queues of a gateway going.
pub(super) struct Heartbeats {
    store: MeteredStore,
    wakeups: Arc<Wakeups>,
    /// How long the store may take to answer.
    patience: Duration,
    presences: Mutex<HashMap<Bucket, Arc<AsyncMutex<Presence>>>>,
    /// Set once somebody has waited. Dropping it ends the task that listens to the store's hints.
    keeper: Mutex<Option<oneshot::Sender<()>>>,
}

/// The heartbeat in one bucket.
struct Presence {
    /// Whether a task sends heartbeats. It does as long as somebody waits.
    beats: bool,
    /// When the last beat that was answered was sent.
    heard: Option<Instant>,
    put_back: Option<AbortHandle>,
    /// Each bucket has its own, so that a server without an answer delays no waiters of other servers.
    put_back_permits: Arc<Semaphore>,
}

impl Default for Presence {
    fn default() -> Self {
        let put_back_permits = Arc::new(Semaphore::new(PUT_BACK_AT_ONCE));
        Self { beats: false, heard: None, put_back: None, put_back_permits }
    }
}

impl Heartbeats {
    pub(super) fn new(store: MeteredStore, wakeups: Arc<Wakeups>, patience: Duration) -> Arc<Self> {
        let (presences, keeper) = (Mutex::default(), Mutex::default());
        Arc::new(Self { store, wakeups, patience, presences, keeper })
    }

    /// Sees to it that the store believes this gateway present in a bucket. A waiter joins a line only after that, and
    /// after it has entered.
    pub(super) async fn be_heard(self: &Arc<Self>, bucket: Bucket) -> Result<(), StoreError> {
        self.listen();
        let presence = self.presences.lock().entry(bucket).or_default().clone();
        let mut state = presence.lock().await;
        if !state.beats {
            state.beats = true;
            tokio::spawn(keep_beating(Arc::downgrade(self), bucket, presence.clone()));
        }
        if state.heard.is_some_and(|at| at.elapsed() < HEARD_LATELY) {
            return Ok(());
        }
        self.beat(bucket, &mut state).await
    }

    /// From here on no hint is missed.
    fn listen(&self) {
        let mut keeper = self.keeper.lock();
        if keeper.is_some() {
            return;
        }
        let (stays, ends) = oneshot::channel();
        tokio::spawn(self.wakeups.clone().keep(self.store.hints(), self.pass_on(), ends));
        *keeper = Some(stays);
    }

    fn pass_on(&self) -> PassOnOffer {
        let (store, permits) = (self.store.clone(), Arc::new(Semaphore::new(MOST_PASSED_ON)));
        let patience = self.patience;
        Box::new(move |key, token, attempt| {
            let Ok(permit) = permits.clone().try_acquire_owned() else { return };
            let store = store.clone();
            tokio::spawn(async move {
                // An offer that cannot be passed on lapses.
                let _ = store.call(PassOn { key, token, attempt }, Instant::now() + patience).await;
                drop(permit);
            });
        })
    }

    async fn beat(&self, bucket: Bucket, presence: &mut Presence) -> Result<(), StoreError> {
        let sent_at = Instant::now();
        let beat = self.store.call(Heartbeat { bucket }, sent_at + self.patience).await?;
        presence.heard = Some(sent_at);
        if beat.is_new {
            // An unfinished round starts anew: what it did may have been lost as well.
            let round =
                tokio::spawn(self.wakeups.clone().put_back(bucket, presence.put_back_permits.clone()));
            if let Some(before) = presence.put_back.replace(round.abort_handle()) {
                before.abort();
            }
        }
        for (key, in_ms) in &beat.due {
            self.wakeups.is_due(key, *in_ms);
        }
        Ok(())
    }
}

/// Sends heartbeats in a bucket until it has no waiters, or the service is gone.
async fn keep_beating(heartbeats: Weak<Heartbeats>, bucket: Bucket, presence: Arc<AsyncMutex<Presence>>) {
    loop {
        sleep(BEAT_EVERY).await;
        let Some(heartbeats) = heartbeats.upgrade() else { return };
        let mut state = presence.lock().await;
        // A waiter that has entered since then finds no heartbeat, and starts one.
        if !heartbeats.wakeups.is_in_use(bucket) {
            state.beats = false;
            return;
        }
        // The waiter that entered first may have sent one a moment ago.
        if state.heard.is_none_or(|at| at.elapsed() >= BEAT_EVERY / 2) {
            // The next beat that is answered says whether something was lost.
            let _ = heartbeats.beat(bucket, &mut state).await;
        }
    }
}
