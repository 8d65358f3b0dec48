//! Watching: what happens to locks, as a stream.
//!
//! Code that changes a lock reports it here once the store has answered (`tell`). This asks nothing more of the store,
//! and without a watcher it costs the reading of a flag. The events of a lock are told in the order of its fencing
//! tokens (`view.rs`). Nothing reports the end of a lease, so that is looked for (`expiry_watcher.rs`). Each watcher
//! has a queue of its own (`queue.rs`), which is found by what it watches (`subscribers.rs`). How much is told has a bound
//! (`budget.rs`). What other gateways do is heard from them (`peer_sync.rs`).
//!
//! Every event did happen. If an event may have been missed, watchers get `Resync`, and must look for themselves.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use super::LockService;
use crate::clock::boottime;
use crate::lock::LockKey;
use crate::store::{MeteredStore, StoreError};

mod budget;
mod expiry_watcher;
mod ids;
mod news;
mod peer_sync;
mod queue;
mod subscribers;
mod view;
mod wanted;

use ids::Ids;
pub(super) use news::Doing;
pub use news::{News, Told};
use peer_sync::{Senders, Telling};
use queue::Queue;
use subscribers::{Memory, Subscribers};
use view::View;
pub use wanted::{Selection, Wanted};

/// The most that may watch at one gateway, where no setting says otherwise.
pub const MOST_WATCHERS: usize = 1_000;
/// How long other gateways may take to hear that somebody watches. If one takes longer, the watchers are told.
const OTHERS_HEAR: Duration = Duration::from_millis(150);
/// How long servers have to say that they are listened to, where streams are open meanwhile.
const LISTENS_WITHIN: Duration = Duration::from_millis(500);

/// The answer to a request to watch.
pub enum Watched {
    /// It is told from now on.
    Watching(Watching),
    /// The gateway has as many watchers as it may have.
    TooManyWatchers,
    /// The server stops.
    ShuttingDown,
}

/// One who watches. Dropped, it is told nothing more.
pub struct Watching {
    watch: Arc<Watch>,
    wanted: Wanted,
    id: u64,
    queue: Arc<Queue>,
    _permit: OwnedSemaphorePermit,
}

impl Watching {
    /// The next things to tell; `None` when the server stops.
    pub fn poll_told(&mut self, context: &mut Context<'_>) -> Poll<Option<Vec<Arc<Told>>>> {
        self.queue.poll(context)
    }

    /// The text of what is told, in one of two forms, with the id with which a client that was told this can resume.
    pub fn text_of(&self, told: &Told, form: usize, write: impl Fn(String) -> Bytes) -> Bytes {
        let wanted = &self.wanted.name;
        told.text(form, wanted, || write(self.watch.ids.of(told.number, wanted)))
    }

    /// Changes what it is told of, as its rights have changed. It must look for itself then.
    pub fn change(&mut self, wanted: Wanted) {
        if wanted.name == self.wanted.name {
            return;
        }
        let (mut state, now) = (self.watch.state.lock(), boottime());
        // Those who watch later must not have it go on.
        if self.queue.is_closed() {
            return self.queue.clear();
        }
        let id = state.enter(&wanted, &self.queue, now);
        state.subscribers.leave(&self.wanted, self.id, now);
        // By an id of these it could come back as if it had looked already.
        self.queue.clear();
        state.subscribers.hand(&self.queue, &Arc::new(Told::missed(state.memory.last())));
        drop(state);
        self.watch.sooner.notify_one();
        (self.wanted, self.id) = (wanted, id);
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.watch.state.lock().subscribers.leave(&self.wanted, self.id, boottime());
    }
}

impl LockService {
    /// Lets only so many watch at once.
    #[must_use]
    pub fn with_max_watchers(self, max_watchers: usize) -> Self {
        let max_watchers = max_watchers.min(Semaphore::MAX_PERMITS);
        Self { max_watchers, watch_permits: Arc::new(Semaphore::new(max_watchers)), ..self }
    }

    /// How many watch at this moment.
    pub fn watchers(&self) -> usize {
        self.max_watchers - self.watch_permits.available_permits()
    }

    /// Tells from now on what happens to some locks. First comes [`News::Resync`]; or, if the watcher was told
    /// everything up to the id in `after`, what came after that.
    pub async fn watch(&self, wanted: Wanted, after: Option<&str>) -> Result<Watched, StoreError> {
        let Ok(permit) = self.watch_permits.clone().try_acquire_owned() else {
            return Ok(Watched::TooManyWatchers);
        };
        self.watch.clone().enter(wanted, after, permit, self.deadline()).await
    }
}

/// What is told, and to whom.
pub(super) struct Watch {
    /// Names this process to others.
    name: String,
    ids: Ids,
    store: MeteredStore,
    store_timeout: Duration,
    /// Whether anybody wants to know, here or at another gateway.
    is_watched: AtomicBool,
    state: Mutex<State>,
    /// Whether everything is told here. Held while that changes.
    is_on: AsyncMutex<bool>,
    /// Tells that a look is due sooner.
    sooner: Notify,
    is_closed: AtomicBool,
}

#[derive(Default)]
struct State {
    subscribers: Subscribers,
    memory: Memory,
    view: View,
    /// Whether anybody watches here, or may come back.
    is_local: bool,
    /// Prefixes whose held locks are not followed yet, and since when those who watch them rely on that.
    unlearned: HashMap<String, Duration>,
    /// Wakes the one who lists these while there are watchers.
    to_learn: Option<mpsc::Sender<()>>,
    /// Who looks at locks, while there are watchers.
    looking: Option<AbortHandle>,
    /// What others are told, while they watch.
    telling: Option<Telling>,
    senders: Senders,
}

impl Watch {
    pub(super) fn new(store: MeteredStore, store_timeout: Duration) -> Arc<Self> {
        let watch = Arc::new(Self {
            name: format!("{:016x}", rand::random::<u64>()),
            ids: Ids::default(),
            store,
            store_timeout,
            is_watched: AtomicBool::new(false),
            state: Mutex::default(),
            is_on: AsyncMutex::new(false),
            sooner: Notify::new(),
            is_closed: AtomicBool::new(false),
        });
        peer_sync::start(&watch);
        watch
    }

    /// Something was done to a lock. To be called once the store has said so.
    pub(super) fn tell(&self, key: &LockKey, doing: impl FnOnce() -> Doing) {
        if self.is_watched.load(Ordering::Acquire) {
            // Grants of a lock that is shared are told in no order: who watches looks for itself.
            let doing = doing();
            self.say(key, if doing.is_of_several() { &Doing::Unclear } else { &doing });
        }
    }

    /// Passes on the outcome of a step. If it is unknown, watchers are told so.
    pub(super) fn or_unclear<T>(
        &self,
        key: &LockKey,
        outcome: Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if let Err(StoreError::Unknown(_)) = &outcome {
            self.tell(key, || Doing::Unclear);
        }
        outcome
    }

    /// From now on there are no watchers: those that there were are told that it is over.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.state.lock().subscribers.close();
        self.sooner.notify_one();
    }

    fn say(&self, key: &LockKey, doing: &Doing) {
        let mut state = self.state.lock();
        if let Some(telling) = &mut state.telling {
            self.send(telling, key, doing);
        }
        self.tell_here(&mut state, key, doing);
    }

    fn tell_here(&self, state: &mut State, key: &LockKey, doing: &Doing) {
        // A lock without watchers is not followed: it would take the room of one that has some.
        if state.is_local && state.subscribers.wants(key) {
            let before = state.next_step();
            let news = state.view.note(key, doing, boottime());
            state.publish(key, news);
            self.look_sooner(state, before);
        }
    }

    fn look_sooner(&self, state: &State, before: Option<Duration>) {
        if before.is_none() || state.next_step() < before {
            self.sooner.notify_one();
        }
    }

    /// Something may have been missed, of any lock.
    fn resync(&self) {
        let mut state = self.state.lock();
        if state.is_local {
            let told = state.memory.note(None, News::Resync);
            state.subscribers.tell(&told);
            state.view.doubt(told.at);
            for selection in state.subscribers.selections() {
                state.learn(selection, told.at);
            }
            self.sooner.notify_one();
        }
    }

    async fn enter(
        self: Arc<Self>,
        wanted: Wanted,
        after: Option<&str>,
        permit: OwnedSemaphorePermit,
        deadline: Instant,
    ) -> Result<Watched, StoreError> {
        let mut is_on = self.is_on.lock().await;
        if !*is_on {
            self.turn_on(&mut is_on, deadline).await?;
        }
        let after = after.and_then(|id| self.ids.number(id, &wanted.name));
        let queue = Arc::new(Queue::default());
        let mut state = self.state.lock();
        // Under the lock, so that closing finds it.
        if self.is_closed.load(Ordering::Acquire) {
            return Ok(Watched::ShuttingDown);
        }
        let id = state.enter(&wanted, &queue, boottime());
        let after = after.filter(|number| state.subscribers.has_followed(&wanted, *number));
        let missed = after.and_then(|number| state.memory.since(number));
        match missed {
            Some(missed) => missed
                .iter()
                .filter(|told| told.key.as_ref().is_none_or(|key| wanted.has(key)))
                .for_each(|told| state.subscribers.hand(&queue, told)),
            None => state.subscribers.hand(&queue, &Arc::new(Told::missed(state.memory.last()))),
        }
        drop(state);
        self.sooner.notify_one();
        Ok(Watched::Watching(Watching { watch: self.clone(), wanted, id, queue, _permit: permit }))
    }

    /// From when this returns on everything is told here.
    async fn turn_on(self: &Arc<Self>, is_on: &mut bool, deadline: Instant) -> Result<(), StoreError> {
        let (to_learn, prefixes) = mpsc::channel(1);
        let (line, waiting) = mpsc::unbounded_channel();
        if let Some(peers) = self.peers() {
            peers.listen(deadline).await?;
        }
        {
            let mut state = self.state.lock();
            state.memory.forget();
            state.view = View::default();
            state.senders = Senders::default();
            state.is_local = true;
            state.to_learn = Some(to_learn);
            state.subscribers.wake_by(Some(line));
            self.is_watched.store(true, Ordering::Release);
        }
        // This comes before the first wait: the caller may leave, and then these tasks find that there is no watcher.
        *is_on = true;
        self.state.lock().looking = Some(tokio::spawn(self.clone().keep_looking()).abort_handle());
        tokio::spawn(self.clone().keep_learning(prefixes));
        tokio::spawn(queue::keep_waking(waiting));
        if self.peers().is_some() {
            self.summon(true);
            sleep(OTHERS_HEAR).await;
            // No watcher has been told anything yet, so the gateways that were heard of by now are enough.
            self.state.lock().senders.forget_gap();
        }
        Ok(())
    }

    /// Ends all that, if there is no watcher any more. Returns whether it has.
    async fn turn_off_unless_watched(&self) -> bool {
        let mut is_on = self.is_on.lock().await;
        let mut state = self.state.lock();
        let (now, State { subscribers, unlearned, .. }) = (boottime(), &mut *state);
        unlearned.retain(|prefix, _| subscribers.follows(&Selection::Prefix(prefix.clone()), now));
        if !subscribers.tidy(now) && !self.is_closed.load(Ordering::Acquire) {
            return false;
        }
        self.turn_off(&mut is_on, &mut state);
        true
    }

    /// A server does not let the gateway hear any more what other gateways do. If those that do are not enough, all streams
    /// end, since none is to be silent without a word. The next one asks again whether it may listen.
    async fn hear_by_others(&self) {
        let mut is_on = self.is_on.lock().await;
        let Some(peers) = self.peers().filter(|_| *is_on) else { return };
        // No stream waits for long, and none is told anything, while servers are asked.
        if peers.listen(self.deadline().min(Instant::now() + LISTENS_WITHIN)).await.is_ok() {
            return self.resync();
        }
        let mut state = self.state.lock();
        state.subscribers.end_all();
        self.turn_off(&mut is_on, &mut state);
    }

    fn turn_off(&self, is_on: &mut bool, state: &mut State) {
        if let Some(looking) = state.looking.take() {
            looking.abort();
        }
        state.is_local = false;
        state.to_learn = None;
        state.subscribers.wake_by(None);
        state.unlearned.clear();
        state.view = View::default();
        state.senders = Senders::default();
        self.is_watched.store(state.telling.is_some(), Ordering::Release);
        if let Some(peers) = self.peers() {
            peers.stop_listening();
        }
        *is_on = false;
    }
}

impl State {
    /// Lets a watcher in, and follows its locks that were not followed yet.
    fn enter(&mut self, wanted: &Wanted, queue: &Arc<Queue>, now: Duration) -> u64 {
        let Self { view, subscribers, memory, .. } = self;
        let is_new = |selection: &&Selection| !subscribers.follows(selection, now);
        let new: Vec<_> = wanted.selections.iter().filter(is_new).cloned().collect();
        new.iter().for_each(|selection| view.forget(selection, |key| subscribers.wants(key)));
        let id = subscribers.enter(wanted, queue);
        if !new.is_empty() {
            memory.skip();
        }
        for selection in new {
            self.subscribers.begin(&selection, self.memory.last());
            self.learn(selection, now);
        }
        id
    }

    /// When something is to be done next for those who watch.
    fn next_step(&self) -> Option<Duration> {
        let steps = [self.view.next_look(), self.subscribers.next_end_of_rest()];
        steps.into_iter().flatten().min()
    }

    fn publish(&mut self, key: &LockKey, news: Vec<News>) {
        for news in news {
            let told = self.memory.note(Some(key.clone()), news);
            self.subscribers.tell(&told);
        }
    }
}

#[cfg(test)]
mod tests;
