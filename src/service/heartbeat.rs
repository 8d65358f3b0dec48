//! The heartbeat of a gateway at which somebody waits: by it the store believes its waiters present, and by its answer
//! nothing is missed. It beats in each bucket where somebody waits, and each of these beats stands for itself: a server
//! that is silent holds up nobody who waits at another.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, Semaphore, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use super::wakeups::{PassOnOffer, Wakeups};
use crate::store::{Bucket, Heartbeat, MeteredStore, PassOn, StoreError};

/// The time between two beats: an offer stands for longer, with room for a look.
const BEAT_EVERY: Duration = Duration::from_millis(600);
/// A gateway that was heard of within this is believed present for long enough to join a line.
const HEARD_LATELY: Duration = Duration::from_millis(900);
/// How many of a bucket tell the store their tickets again at once.
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
    /// Once somebody has waited: has who listens to the store's hints end when this is dropped.
    keeper: Mutex<Option<oneshot::Sender<()>>>,
}

/// The heartbeat in one bucket.
struct Presence {
    /// Whether a task beats, which it does for as long as somebody waits.
    beats: bool,
    /// When the last beat that was answered was sent.
    heard: Option<Instant>,
    put_back: Option<AbortHandle>,
    /// Of the bucket's own: a server that does not answer must not keep those back who wait at another.
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

/// Beats in a bucket until nobody waits there, or the service is gone.
async fn keep_beating(heartbeats: Weak<Heartbeats>, bucket: Bucket, presence: Arc<AsyncMutex<Presence>>) {
    loop {
        sleep(BEAT_EVERY).await;
        let Some(heartbeats) = heartbeats.upgrade() else { return };
        let mut state = presence.lock().await;
        // Whoever has entered since then finds that nobody beats, and starts it again.
        if !heartbeats.wakeups.is_in_use(bucket) {
            state.beats = false;
            return;
        }
        // Whoever entered first may have seen to it a moment ago.
        if state.heard.is_none_or(|at| at.elapsed() >= BEAT_EVERY / 2) {
            // The next beat that is answered says whether something was lost.
            let _ = heartbeats.beat(bucket, &mut state).await;
        }
    }
}
