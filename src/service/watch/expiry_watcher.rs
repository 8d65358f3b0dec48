//! Looking for the end of leases, since no request tells of it; and at locks that were held before the first watcher
//! came.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep};

use super::{News, Selection, State, Watch};
use crate::clock::boottime;
use crate::lock::{Inspected, Lease, Listed, LockKey, Reach};
use crate::store::{Inspect, List, StoreError};

/// Looks at locks that may be under way at once.
const MOST_LOOKS: usize = 32;
/// Locks that are looked for at once.
const LEARNED_AT_ONCE: usize = 500;
/// How often it is seen whether anybody still watches.
const TIDY_EVERY: Duration = Duration::from_secs(1);
/// The pause before what failed is looked for again.
const LEARN_AGAIN: Duration = Duration::from_secs(1);
/// If locks are looked for later than this after those who watch them were told to look, they are told so once more: a lease may
/// have ended in between without being followed.
const LEARNED_LATE: Duration = Duration::from_millis(100);
/// How often watchers are told that there is no room for all locks.
const OVERFULL_EVERY: Duration = Duration::from_secs(60);

impl Watch {
    /// Looks at each lock when its lease should be over, for as long as somebody watches.
    pub(super) async fn keep_looking(self: Arc<Self>) {
        let permits = Arc::new(Semaphore::new(MOST_LOOKS));
        let (mut tidied_at, mut overfull_at) = (Instant::now(), None::<Instant>);
        loop {
            let next_step = self.state.lock().next_step();
            let until_step = next_step.map_or(TIDY_EVERY, |at| at.saturating_sub(boottime()));
            tokio::select! {
                () = sleep(until_step.min(TIDY_EVERY)) => {}
                () = self.sooner.notified() => {}
            }
            self.end_rests();
            while let Some(key) = self.take_due() {
                let Ok(permit) = permits.clone().acquire_owned().await else { return };
                let watch = self.clone();
                tokio::spawn(async move {
                    watch.look_at(&key).await;
                    drop(permit);
                });
            }
            if tidied_at.elapsed() < TIDY_EVERY && !self.is_closed.load(Ordering::Acquire) {
                continue;
            }
            tidied_at = Instant::now();
            if self.turn_off_unless_watched().await {
                return;
            }
            let is_overfull = self.state.lock().view.was_overfull();
            if is_overfull && overfull_at.is_none_or(|at| at.elapsed() >= OVERFULL_EVERY) {
                overfull_at = Some(Instant::now());
                tracing::warn!(
                    "more locks are watched than this gateway can follow: some ends of leases are not told"
                );
                self.resync();
            }
        }
    }

    fn end_rests(&self) {
        let State { subscribers, memory, .. } = &mut *self.state.lock();
        subscribers.end_rests(boottime(), memory.last());
    }

    /// A lock that is due to be looked at.
    fn take_due(&self) -> Option<LockKey> {
        let State { subscribers, view, .. } = &mut *self.state.lock();
        view.take_due(boottime(), |key| subscribers.wants(key))
    }

    /// Looks for locks that were held before anybody watched, so that the ends of their leases are told. Does so for what is its
    /// own, each time that it is woken.
    pub(super) async fn keep_learning(
        self: Arc<Self>,
        mut wakes: mpsc::Receiver<()>,
        is_own: fn(&Selection) -> bool,
    ) {
        while wakes.recv().await.is_some() {
            let own: Vec<_> =
                self.state.lock().unlearned.extract_if(|selection, _| is_own(selection)).collect();
            for (selection, since) in own {
                self.learn_in_time(selection, since).await;
            }
        }
    }

    /// Those who watch have looked for themselves since then; all that they may have missed is the end of a lease.
    async fn learn_in_time(&self, selection: Selection, since: Duration) {
        if !self.follows(&selection) {
            return;
        }
        match self.learn(&selection).await {
            Ok(()) if boottime() > since + LEARNED_LATE => self.have_look(&selection),
            Ok(()) => {}
            Err(error) => {
                let reason = error.into_reason();
                tracing::debug!(
                    reason,
                    "the held locks could not be listed, to tell the ends of their leases"
                );
                sleep(LEARN_AGAIN).await;
                self.state.lock().learn(selection, since);
            }
        }
    }

    fn follows(&self, selection: &Selection) -> bool {
        let state = self.state.lock();
        state.is_local && state.subscribers.follows(selection, boottime())
    }

    /// Has those who watch this look for themselves, and no others. Nothing is looked for again here, so this comes to an end.
    fn have_look(&self, selection: &Selection) {
        let mut state = self.state.lock();
        let key = match selection {
            Selection::Key(key) => Some(key.clone()),
            Selection::Prefix(_) => None,
        };
        // Those who come back have missed it, too.
        let told = state.memory.note(key, News::Resync);
        state.subscribers.have_look(selection, &told);
    }

    async fn learn(&self, selection: &Selection) -> Result<(), StoreError> {
        match selection {
            Selection::Key(key) => {
                let asked_at = boottime();
                match self.inspect(key).await? {
                    Inspected::Held { lease, waiters, .. } => self.learn_of(key, &lease, waiters, asked_at),
                    // It says who waits, which those who look at a free lock are not told.
                    free => self.see(key, &free, asked_at),
                }
            }
            Selection::Prefix(prefix) => {
                let mut list = List { reach: Reach::all(prefix), cursor: None, limit: LEARNED_AT_ONCE };
                loop {
                    let asked_at = boottime();
                    let page = self.store.call(list.clone(), self.deadline()).await?;
                    for Listed { key, lease, waiters } in &page.locks {
                        self.learn_of(key, lease, *waiters, asked_at);
                    }
                    list.cursor = page.next;
                    if list.cursor.is_none() || !self.follows(selection) {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    fn learn_of(&self, key: &LockKey, lease: &Lease, waiters: u64, asked_at: Duration) {
        let mut state = self.state.lock();
        let before = state.next_step();
        let news = state.view.learn(key, lease, waiters, asked_at);
        state.publish(key, news);
        self.look_sooner(&state, before);
    }

    async fn look_at(&self, key: &LockKey) {
        let asked_at = boottime();
        // One that fails is repeated.
        let Ok(seen) = self.inspect(key).await else { return };
        self.see(key, &seen, asked_at);
    }

    fn see(&self, key: &LockKey, seen: &Inspected, asked_at: Duration) {
        let mut state = self.state.lock();
        if state.is_local {
            let before = state.next_step();
            let news = state.view.see(key, seen, asked_at);
            state.publish(key, news);
            self.look_sooner(&state, before);
        }
    }

    async fn inspect(&self, key: &LockKey) -> Result<Inspected, StoreError> {
        self.store.call(Inspect { key: key.clone(), token: None }, self.deadline()).await
    }

    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.store_timeout / 2
    }
}

impl State {
    /// Has what is held among these be followed, too. Those who watch them rely on it since then.
    pub(super) fn learn(&mut self, selection: Selection, since: Duration) {
        if let Some((keys, prefixes)) = &self.to_learn {
            let looker = if matches!(selection, Selection::Key(_)) { keys } else { prefixes };
            self.unlearned.entry(selection).or_insert(since);
            // One that was woken, and has not begun, finds this one, too.
            let _ = looker.try_send(());
        }
    }
}
