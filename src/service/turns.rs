//! Turns for work that costs the store much, so that little of it goes on at once. Tenants take turns, however much each
//! asks for. And places for work that goes on after its client has left.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::Account;

/// Where turns are given.
pub(super) struct Turns {
    /// How many may go on at once.
    most: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: usize,
    /// By the names of tenants; `None` where they are not told apart.
    tenants: HashMap<Option<String>, Queue>,
    /// Tenants of whom somebody waits, the next first.
    order: VecDeque<Option<String>>,
}

#[derive(Default)]
struct Queue {
    running: usize,
    waiting: VecDeque<oneshot::Sender<Turn>>,
}

/// That it is somebody's turn, for as long as this lives.
pub struct Turn(Option<(Arc<Turns>, Option<String>)>);

impl Turns {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, state: Mutex::default() })
    }

    /// Waits for a turn of this tenant. Those who stop waiting are passed over.
    pub(super) async fn turn(self: &Arc<Self>, tenant: Option<&str>) -> Option<Turn> {
        let (sender, turn) = oneshot::channel();
        {
            let tenant = tenant.map(str::to_owned);
            let mut state = self.state.lock();
            let waiting = &mut state.tenants.entry(tenant.clone()).or_default().waiting;
            // All wait equally long, so the one that came first is the one that gives up first.
            while waiting.front().is_some_and(oneshot::Sender::is_closed) {
                waiting.pop_front();
            }
            waiting.push_back(sender);
            if !state.order.contains(&tenant) {
                state.order.push_back(tenant);
            }
            self.go_on(&mut state);
        }
        turn.await.ok()
    }

    /// One tenant never has all turns at once. The last turn is left for others, so they need not wait for it.
    fn share_of(&self, tenant: Option<&str>) -> usize {
        if tenant.is_some() { self.most - 1 } else { self.most }
    }

    /// Gives out all turns that are free.
    fn go_on(self: &Arc<Self>, state: &mut State) {
        let mut passed_over = 0;
        while state.running < self.most && passed_over < state.order.len() {
            let Some(tenant) = state.order.pop_front() else { return };
            let Some(queue) = state.tenants.get_mut(&tenant) else { continue };
            if queue.running >= self.share_of(tenant.as_deref()) {
                state.order.push_back(tenant);
                passed_over += 1;
                continue;
            }
            while let Some(next) = queue.waiting.pop_front() {
                match next.send(Turn(Some((self.clone(), tenant.clone())))) {
                    Ok(()) => {
                        queue.running += 1;
                        state.running += 1;
                        passed_over = 0;
                        break;
                    }
                    // This turn was never begun, so none ends.
                    Err(mut turn) => turn.0 = None,
                }
            }
            if !queue.waiting.is_empty() {
                state.order.push_back(tenant);
            } else if queue.running == 0 {
                state.tenants.remove(&tenant);
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some((turns, tenant)) = self.0.take() else { return };
        let mut state = turns.state.lock();
        state.running -= 1;
        if let Some(queue) = state.tenants.get_mut(&tenant) {
            queue.running -= 1;
            if queue.running == 0 && queue.waiting.is_empty() {
                state.tenants.remove(&tenant);
            }
        }
        turns.go_on(&mut state);
    }
}

/// Work that goes on after its client has left: so much at once. Where half of that is under way, one tenant has at most a quarter.
/// So no tenant keeps that of another from being done.
pub(super) struct Backlog {
    most: usize,
    work: Mutex<Unfinished>,
}

#[derive(Default)]
struct Unfinished {
    all: usize,
    /// By the address of the count of its account, which lives as long as its work goes on.
    of_tenants: HashMap<usize, usize>,
}

/// The place of one piece of that work. It ends with this.
pub(super) struct InBacklog(Arc<Backlog>, Option<Account>);

impl Backlog {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, work: Mutex::default() })
    }

    /// A place for work on this account; `None` if there is none left for it. Tenants are not told apart without accounts.
    pub(super) fn enter(self: &Arc<Self>, account: Option<Account>) -> Option<InBacklog> {
        let mut work = self.work.lock();
        if work.all >= self.most {
            return None;
        }
        let others_need_them = work.all >= self.most / 2;
        if let Some(account) = &account {
            let of_tenant = work.of_tenants.entry(address_of(account)).or_default();
            if others_need_them && *of_tenant >= self.most / 4 {
                return None;
            }
            *of_tenant += 1;
        }
        work.all += 1;
        drop(work);
        Some(InBacklog(self.clone(), account))
    }
}

impl Drop for InBacklog {
    fn drop(&mut self) {
        let mut work = self.0.work.lock();
        work.all -= 1;
        if let Some(account) = &self.1
            && let Entry::Occupied(mut of_tenant) = work.of_tenants.entry(address_of(account))
        {
            *of_tenant.get_mut() -= 1;
            if *of_tenant.get() == 0 {
                of_tenant.remove();
            }
        }
    }
}

fn address_of(account: &Account) -> usize {
    Arc::as_ptr(&account.count) as usize
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::future::{FutureExt, join_all};

    use super::*;

    #[tokio::test]
    async fn tenants_take_turns_and_none_has_all_of_them() {
        let turns = Turns::new(3);
        let mut running: Vec<_> = join_all((0..2).map(|_| turns.turn(Some("greedy")))).await;
        let mut waiting: Vec<_> = (0..10).map(|_| Box::pin(turns.turn(Some("greedy")))).collect();
        for turn in &mut waiting {
            assert!(turn.now_or_never_pinned().is_none(), "the last turn is for others");
        }
        let other = turns.turn(Some("other")).now_or_never();
        assert!(other.is_some());
        let mut second = Box::pin(turns.turn(Some("other")));
        assert!(second.now_or_never_pinned().is_none());
        // What is free goes to one after the other, and not to those who came first.
        running.pop();
        assert!(waiting[0].now_or_never_pinned().is_some());
        running.pop();
        assert!(second.now_or_never_pinned().is_some());
        // One who has given up keeps none of its tenant from a turn, though others of greedy ones stand behind.
        let mut given_up = Box::pin(turns.turn(Some("third")));
        let mut live = Box::pin(turns.turn(Some("third")));
        assert!(given_up.now_or_never_pinned().is_none() && live.now_or_never_pinned().is_none());
        drop(given_up);
        drop(other);
        assert!(live.now_or_never_pinned().is_some());
        let other = live;
        // Those who have given up are passed over, and nothing is lost with them.
        drop((other, waiting, second));
        let all = turns.turn(None).now_or_never();
        assert!(all.is_some());
        drop(all);
        let state = turns.state.lock();
        assert!(state.running == 0 && state.tenants.is_empty(), "{}", state.running);
    }

    #[tokio::test]
    async fn where_nobody_is_told_apart_all_turns_are_given() {
        let turns = Turns::new(2);
        let running = join_all((0..2).map(|_| turns.turn(None))).await;
        let third = tokio::spawn({
            let turns = turns.clone();
            async move { turns.turn(None).await.is_some() }
        });
        drop(running);
        assert!(tokio::time::timeout(Duration::from_secs(10), third).await.is_ok());
    }

    #[test]
    fn what_one_tenant_leaves_behind_takes_no_place_that_others_need_and_is_forgotten_at_its_end() {
        let backlog = Backlog::new(8);
        let account = || Some(Account { count: Arc::default(), most: 1 });
        let (greedy, other) = (account(), account());
        let enter = |account: &Option<Account>| backlog.enter(account.clone());
        let mut of_greedy: Vec<_> = (0..9).map_while(|_| enter(&greedy)).collect();
        assert_eq!(of_greedy.len(), 4, "more than its share while half of them are free");
        let of_other = enter(&other);
        assert!(of_other.is_some() && enter(&greedy).is_none(), "others have their share");
        of_greedy.truncate(1);
        assert!(enter(&greedy).is_some(), "places were given back");
        let of_all: Vec<_> = (0..9).map_while(|_| enter(&None)).collect();
        assert!(of_all.len() == 6 && enter(&greedy).is_none() && enter(&other).is_none(), "all is taken");
        drop((of_greedy, of_other, of_all));
        let work = backlog.work.lock();
        assert!(work.all == 0 && work.of_tenants.is_empty());
    }

    trait Poll: Future + Unpin {
        fn now_or_never_pinned(&mut self) -> Option<Self::Output> {
            FutureExt::now_or_never(&mut *self)
        }
    }

    impl<F: Future + Unpin> Poll for F {}
}
