//! The heartbeat of a gateway at which somebody waits: by it the store believes its waiters present, and by its answer
//! nothing is missed. It beats in each bucket where somebody waits, and each of these beats stands for itself: a server
//! that is silent holds up nobody who waits at another.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, Semaphore, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use super::line::{Decline, Lines, lock};
use crate::store::{Bucket, MeteredStore, StoreError};

/// The time between two beats: an offer stands for longer, with room for a look.
const BEAT_EVERY: Duration = Duration::from_millis(600);
/// A gateway that was heard of within this is believed present for long enough to join a line.
const HEARD_LATELY: Duration = Duration::from_millis(900);
/// How many of a bucket tell the store their places again at once.
const PUT_BACK_AT_ONCE: usize = 16;
/// Offers that may be declined at once; further ones lapse.
const MOST_DECLINES: usize = 64;

/// What keeps the lines of a gateway going.
pub(super) struct Heart {
    store: MeteredStore,
    lines: Arc<Lines>,
    /// How long the store may take to answer.
    patience: Duration,
    pulses: Mutex<HashMap<Bucket, Arc<AsyncMutex<Pulse>>>>,
    /// Once somebody has waited: has who listens to the store's hints end when this is dropped.
    keeper: Mutex<Option<oneshot::Sender<()>>>,
}

/// The heartbeat in one bucket.
struct Pulse {
    /// Whether a task beats, which it does for as long as somebody waits.
    beats: bool,
    /// When the last beat that was answered was sent.
    heard: Option<Instant>,
    put_back: Option<AbortHandle>,
    /// Of the bucket's own: a server that does not answer must not keep those back who wait at another.
    put_back_permits: Arc<Semaphore>,
}

impl Default for Pulse {
    fn default() -> Self {
        let put_back_permits = Arc::new(Semaphore::new(PUT_BACK_AT_ONCE));
        Self { beats: false, heard: None, put_back: None, put_back_permits }
    }
}

impl Heart {
    pub(super) fn new(store: MeteredStore, lines: Arc<Lines>, patience: Duration) -> Arc<Self> {
        let (pulses, keeper) = (Mutex::default(), Mutex::default());
        Arc::new(Self { store, lines, patience, pulses, keeper })
    }

    /// Sees to it that the store believes this gateway present in a bucket. A waiter joins a line only after that, and
    /// after it has entered.
    pub(super) async fn be_heard(self: &Arc<Self>, bucket: Bucket) -> Result<(), StoreError> {
        self.listen();
        let pulse = lock(&self.pulses).entry(bucket).or_default().clone();
        let mut state = pulse.lock().await;
        if !state.beats {
            state.beats = true;
            tokio::spawn(keep_beating(Arc::downgrade(self), bucket, pulse.clone()));
        }
        if state.heard.is_some_and(|at| at.elapsed() < HEARD_LATELY) {
            return Ok(());
        }
        self.beat(bucket, &mut state).await
    }

    /// From here on no hint is missed.
    fn listen(&self) {
        let mut keeper = lock(&self.keeper);
        if keeper.is_some() {
            return;
        }
        let (stays, ends) = oneshot::channel();
        tokio::spawn(self.lines.clone().keep(self.store.hints(), self.decline(), ends));
        *keeper = Some(stays);
    }

    fn decline(&self) -> Decline {
        let (store, permits) = (self.store.clone(), Arc::new(Semaphore::new(MOST_DECLINES)));
        let patience = self.patience;
        Box::new(move |key, token, attempt| {
            let Ok(permit) = permits.clone().try_acquire_owned() else { return };
            let store = store.clone();
            tokio::spawn(async move {
                // An offer that cannot be declined lapses.
                let _ = store.decline(&key, &token, attempt, Instant::now() + patience).await;
                drop(permit);
            });
        })
    }

    async fn beat(&self, bucket: Bucket, pulse: &mut Pulse) -> Result<(), StoreError> {
        let sent_at = Instant::now();
        let beat = self.store.beat(bucket, sent_at + self.patience).await?;
        pulse.heard = Some(sent_at);
        if beat.is_new {
            // An unfinished round starts anew: what it did may have been lost as well.
            let round = tokio::spawn(self.lines.clone().put_back(bucket, pulse.put_back_permits.clone()));
            if let Some(before) = pulse.put_back.replace(round.abort_handle()) {
                before.abort();
            }
        }
        for (key, in_ms) in &beat.due {
            self.lines.is_due(key, *in_ms);
        }
        Ok(())
    }
}

/// Beats in a bucket until nobody waits there, or the heart is gone.
async fn keep_beating(heart: Weak<Heart>, bucket: Bucket, pulse: Arc<AsyncMutex<Pulse>>) {
    loop {
        sleep(BEAT_EVERY).await;
        let Some(heart) = heart.upgrade() else { return };
        let mut state = pulse.lock().await;
        // Whoever has entered since then finds that nobody beats, and starts it again.
        if !heart.lines.is_in_use(bucket) {
            state.beats = false;
            return;
        }
        // Whoever entered first may have seen to it a moment ago.
        if state.heard.is_none_or(|at| at.elapsed() >= BEAT_EVERY / 2) {
            // The next beat that is answered says whether something was lost.
            let _ = heart.beat(bucket, &mut state).await;
        }
    }
}
