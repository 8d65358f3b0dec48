//! Looking for the end of leases, since no request tells of it; and at locks that were held before the first watcher
//! came.

use std::collections::HashMap;
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
/// Locks on one page of a list.
const LEARNED_AT_ONCE: usize = 500;
/// How often it is seen whether anybody still watches.
const TIDY_EVERY: Duration = Duration::from_secs(1);
/// The pause after a list that failed.
const LEARN_AGAIN: Duration = Duration::from_secs(1);
/// If locks are looked for later than this after those who watch them were told to look, they are told so once more: a lease may
/// have ended in between without being followed.
const LEARNED_LATE: Duration = Duration::from_millis(100);
/// How often watchers are told that there is no room for all locks.
const OVERFULL_EVERY: Duration = Duration::from_secs(60);

impl Watch {
    /// Looks at each lock when its lease should be over, for as long as somebody watches.
    pub(super) async fn keep_looking(self: Arc<Self>) {
        let [permits, first_permits] = [(); 2].map(|()| Arc::new(Semaphore::new(MOST_LOOKS)));
        let (mut tidied_at, mut overfull_at) = (Instant::now(), None::<Instant>);
        loop {
            let next_step = self.state.lock().next_step();
            let until_step = next_step.map_or(TIDY_EVERY, |at| at.saturating_sub(boottime()));
            tokio::select! {
                () = sleep(until_step.min(TIDY_EVERY)) => {}
                () = self.sooner.notified() => {}
            }
            self.end_rests();
            // What is still due then has its turn after that which is done now and then.
            while tidied_at.elapsed() < TIDY_EVERY
                && let Some((key, is_first)) = self.take_due()
            {
                let watch = self.clone();
                if is_first {
                    // Locks that cannot be looked at must not keep others waiting whose leases end.
                    let permits = first_permits.clone();
                    tokio::spawn(async move {
                        let _permit = permits.acquire_owned().await;
                        let is_answered = watch.look_at(&key).await;
                        let mut state = watch.state.lock();
                        let before = state.next_step();
                        state.view.has_looked(&key, is_answered.then(boottime));
                        watch.look_sooner(&state, before);
                    });
                    continue;
                }
                let Ok(permit) = permits.clone().acquire_owned().await else { return };
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

    /// A lock that is due to be looked at, and whether nothing is known of it yet.
    fn take_due(&self) -> Option<(LockKey, bool)> {
        let State { subscribers, view, .. } = &mut *self.state.lock();
        let key = view.take_due(boottime(), |key| subscribers.wants(key))?;
        let is_first = view.is_to_be_found(&key);
        Some((key, is_first))
    }

    /// Lists what was held before anybody watched, so that the ends of its leases are told. One list is for all prefixes that are
    /// due, since it goes through all that a store holds for one as for many: so none waits for the others.
    pub(super) async fn keep_learning(self: Arc<Self>, mut wakes: mpsc::Receiver<()>) {
        while wakes.recv().await.is_some() {
            let mut due = std::mem::take(&mut self.state.lock().unlearned);
            due.retain(|prefix, _| self.follows(prefix));
            if let Err(error) = self.learn(&due).await {
                let reason = error.into_reason();
                tracing::debug!(
                    reason,
                    "the held locks could not be listed, to tell the ends of their leases"
                );
                sleep(LEARN_AGAIN).await;
                let mut state = self.state.lock();
                due.into_iter().for_each(|(prefix, since)| state.learn(Selection::Prefix(prefix), since));
                continue;
            }
            for (prefix, since) in due {
                self.has_learned(&Selection::Prefix(prefix), since);
            }
        }
    }

    fn follows(&self, prefix: &str) -> bool {
        let state = self.state.lock();
        state.is_local && state.subscribers.follows(&Selection::Prefix(prefix.to_owned()), boottime())
    }

    /// Those who watch this have looked for themselves since then; all that they may have missed is the end of a lease. If it is
    /// late, they look again, and no others. Nothing is looked for again here, so this comes to an end.
    fn has_learned(&self, selection: &Selection, since: Duration) {
        if boottime() <= since + LEARNED_LATE {
            return;
        }
        let mut state = self.state.lock();
        let key = match selection {
            Selection::Key(key) => Some(key.clone()),
            Selection::Prefix(_) => None,
        };
        // Those who come back have missed it, too.
        let told = state.memory.note(key, News::Resync);
        state.subscribers.have_look(selection, &told);
    }

    async fn learn(&self, due: &HashMap<String, Duration>) -> Result<(), StoreError> {
        let reach = Reach::limited(due.keys().cloned().collect(), &[], |_| true);
        let mut list = List { reach, cursor: None, limit: LEARNED_AT_ONCE };
        while due.keys().any(|prefix| self.follows(prefix)) {
            let asked_at = boottime();
            let page = self.store.call(list.clone(), self.deadline()).await?;
            for Listed { key, lease, waiters } in &page.locks {
                self.learn_of(key, lease, *waiters, asked_at);
            }
            list.cursor = page.next;
            if list.cursor.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn learn_of(&self, key: &LockKey, lease: &Lease, waiters: u64, asked_at: Duration) {
        let mut state = self.state.lock();
        if !state.is_local || !state.subscribers.wants(key) {
            return;
        }
        let before = state.next_step();
        let news = state.view.learn(key, lease, waiters, asked_at);
        state.publish(key, news);
        self.look_sooner(&state, before);
    }

    /// Looks at a lock; whether the store has answered.
    async fn look_at(&self, key: &LockKey) -> bool {
        let asked_at = boottime();
        // One that fails is repeated.
        let Ok(seen) = self.inspect(key).await else { return false };
        let mut state = self.state.lock();
        if !state.is_local {
            return true;
        }
        let before = state.next_step();
        let relied_since = state.view.take_relied(key, asked_at);
        let news = match &seen {
            Inspected::Held { lease, waiters, .. } if relied_since.is_some() => {
                state.view.learn(key, lease, *waiters, asked_at)
            }
            // Of a lock that is free it says who waits, which those who look at it are not told.
            seen => state.view.see(key, seen, asked_at),
        };
        state.publish(key, news);
        self.look_sooner(&state, before);
        drop(state);
        if let Some(since) = relied_since {
            self.has_learned(&Selection::Key(key.clone()), since);
        }
        true
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
        match selection {
            Selection::Key(key) => self.view.follow(&key, since),
            Selection::Prefix(prefix) => {
                self.unlearned.entry(prefix).or_insert(since);
                // One that was woken, and has not begun, finds this one, too.
                let _ = self.to_learn.as_ref().map(|wake| wake.try_send(()));
            }
        }
    }
}
