//! The heartbeat of a gateway at which somebody waits: by it the store believes its waiters present, and by its answer
//! nothing is missed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Semaphore, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use super::line::Lines;
use crate::store::{LockStore, StoreError};

/// The time between two beats: an offer stands for longer, with room for a look.
const BEAT_EVERY: Duration = Duration::from_millis(600);
/// A gateway that was heard of within this is believed present for long enough to join a line.
const HEARD_LATELY: Duration = Duration::from_millis(900);
/// How many tell the store their places again at once.
const PUT_BACK_AT_ONCE: usize = 16;
/// Offers that may be declined at once; further ones lapse.
const MOST_DECLINES: usize = 64;

/// What keeps the lines of a gateway going.
pub(super) struct Heart {
    store: Arc<dyn LockStore>,
    lines: Arc<Lines>,
    /// How long the store may take to answer.
    patience: Duration,
    state: Mutex<State>,
    put_back_permits: Arc<Semaphore>,
}

#[derive(Default)]
struct State {
    /// The tasks, once somebody has waited. They end when this is dropped.
    tasks: Vec<oneshot::Sender<()>>,
    /// When the last beat that was answered was sent.
    heard: Option<Instant>,
    put_back: Option<AbortHandle>,
}

impl Heart {
    pub(super) fn new(store: Arc<dyn LockStore>, lines: Arc<Lines>, patience: Duration) -> Arc<Self> {
        let put_back_permits = Arc::new(Semaphore::new(PUT_BACK_AT_ONCE));
        Arc::new(Self { store, lines, patience, state: Mutex::default(), put_back_permits })
    }

    /// Sees to it that the store believes this gateway present. A waiter joins a line only after that.
    pub(super) async fn be_heard(self: &Arc<Self>) -> Result<(), StoreError> {
        let mut state = self.state.lock().await;
        if state.tasks.is_empty() {
            self.start(&mut state);
        }
        if state.heard.is_some_and(|at| at.elapsed() < HEARD_LATELY) {
            return Ok(());
        }
        self.beat(&mut state).await
    }

    fn start(self: &Arc<Self>, state: &mut State) {
        let (store, permits) = (self.store.clone(), Arc::new(Semaphore::new(MOST_DECLINES)));
        let patience = self.patience;
        let decline = Box::new(move |key, token, attempt| {
            let Ok(permit) = permits.clone().try_acquire_owned() else { return };
            let store = store.clone();
            tokio::spawn(async move {
                // An offer that cannot be declined lapses.
                let _ = store.decline(&key, &token, attempt, Instant::now() + patience).await;
                drop(permit);
            });
        });
        let (keeper, keeper_stops) = oneshot::channel();
        // From here on no hint is missed, whenever the task begins.
        let hints = self.store.hints();
        tokio::spawn(self.lines.clone().keep(hints, decline, keeper_stops));
        let (beater, mut beater_stops) = oneshot::channel();
        let heart = Arc::downgrade(self);
        let lines = self.lines.clone();
        tokio::spawn(async move {
            let mut next = Instant::now() + BEAT_EVERY;
            loop {
                if lines.count() == 0 {
                    tokio::select! {
                        () = lines.entered.notified() => {}
                        _ = &mut beater_stops => return,
                    }
                }
                tokio::select! {
                    () = sleep_until(next) => {}
                    _ = &mut beater_stops => return,
                }
                let Some(heart) = heart.upgrade() else { return };
                let mut state = heart.state.lock().await;
                // Whoever entered first may have seen to it a moment ago.
                if state.heard.is_none_or(|at| at.elapsed() >= BEAT_EVERY / 2) {
                    // The next beat that is answered says whether something was lost.
                    let _ = heart.beat(&mut state).await;
                }
                next = Instant::now() + BEAT_EVERY;
            }
        });
        state.tasks = vec![keeper, beater];
    }

    async fn beat(&self, state: &mut State) -> Result<(), StoreError> {
        let sent_at = Instant::now();
        let beat = self.store.beat(sent_at + self.patience).await?;
        state.heard = Some(sent_at);
        if beat.is_new {
            // An unfinished round starts anew: what it did may have been lost as well.
            let round = tokio::spawn(self.lines.clone().put_back(self.put_back_permits.clone()));
            if let Some(before) = state.put_back.replace(round.abort_handle()) {
                before.abort();
            }
        }
        for (key, in_ms) in &beat.due {
            self.lines.is_due(key, *in_ms);
        }
        Ok(())
    }
}
