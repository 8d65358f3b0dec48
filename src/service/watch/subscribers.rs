//! The watchers, and what was told last.
//!
//! No watcher holds up the others: each has a queue of its own (`queue.rs`). If it does not read its queue, it finds that
//! something was missed in place of what was in it. One that would be told more than its share finds the same (`budget.rs`).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use super::budget::{Budget, REST, Share};
use super::queue::{Line, MOST_QUEUED, Queue};
use super::{News, Selection, Told, Wanted};
use crate::lock::LockKey;

/// What was told last, for those who come back.
const MOST_REMEMBERED: usize = MOST_QUEUED;
/// How long what somebody watched is still followed, so that they may come back as if they had never been gone.
const LINGERING: Duration = Duration::from_secs(30);
/// So much of it at a time, since watchers that come and go choose how much there is.
const MOST_LINGERING: usize = 1_024;

/// Those who watch at this gateway.
#[derive(Default)]
pub(super) struct Subscribers {
    by_key: HashMap<LockKey, Interest>,
    by_prefix: BTreeMap<String, Interest>,
    /// What has no watcher any more, oldest first, and what a watcher has come back to.
    lingering: VecDeque<(Duration, Selection)>,
    last_id: u64,
    budget: Budget,
    /// Whose watchers rest, and until when, first those whose rest ends first.
    resting: VecDeque<(Duration, Selection)>,
    /// Where readers wait to be woken. Without it they are woken at once.
    line: Option<Line>,
}

/// One who watches, in one of the places at which it is found.
struct Reader {
    id: u64,
    queue: Arc<Queue>,
    wanted: Arc<Wanted>,
    /// Whether it is told here of what concerns everybody, which is told once.
    is_first: bool,
}

/// Those who watch the same.
#[derive(Default)]
struct Interest {
    readers: Vec<Reader>,
    /// When the last of them went, by the time since boot.
    left_at: Duration,
    /// By the number of what was told then: nothing of it is left out since. Those who were told less have missed something.
    followed_since: u64,
    share: Share,
}

impl Interest {
    fn lingers(&self, now: Duration) -> bool {
        !self.readers.is_empty() || now < self.left_at + LINGERING
    }
}

impl Subscribers {
    /// Lets one in; returns by what it is known here.
    pub(super) fn enter(&mut self, wanted: &Wanted, queue: &Arc<Queue>) -> u64 {
        self.last_id += 1;
        let (id, shared) = (self.last_id, Arc::new(wanted.clone()));
        for (number, selection) in wanted.selections.iter().enumerate() {
            let interest = match selection {
                Selection::Key(key) => self.by_key.entry(key.clone()).or_default(),
                Selection::Prefix(prefix) => self.by_prefix.entry(prefix.clone()).or_default(),
            };
            let (queue, wanted, is_first) = (queue.clone(), shared.clone(), number == 0);
            interest.readers.push(Reader { id, queue, wanted, is_first });
        }
        id
    }

    /// This was not followed, and is from now on.
    pub(super) fn begin(&mut self, selection: &Selection, number: u64) {
        if let Some(interest) = self.interest_mut(selection) {
            interest.followed_since = number;
        }
    }

    pub(super) fn leave(&mut self, wanted: &Wanted, id: u64, now: Duration) {
        for selection in &wanted.selections {
            let Some(interest) = self.interest_mut(selection) else { continue };
            interest.readers.retain(|reader| reader.id != id);
            interest.left_at = now;
            if interest.readers.is_empty() {
                self.lingering.push_back((now, selection.clone()));
                self.forget_oldest();
            }
        }
    }

    fn forget_oldest(&mut self) {
        if self.lingering.len() <= MOST_LINGERING {
            return;
        }
        let Some((left_at, selection)) = self.lingering.pop_front() else { return };
        let is_over = |interest: &Interest| interest.readers.is_empty() && interest.left_at == left_at;
        if self.interest(&selection).is_some_and(is_over) {
            match &selection {
                Selection::Key(key) => drop(self.by_key.remove(key)),
                Selection::Prefix(prefix) => drop(self.by_prefix.remove(prefix)),
            }
        }
    }

    /// Whether one who was told everything up to this number can go on. All that it wants is followed now.
    pub(super) fn has_followed(&self, wanted: &Wanted, number: u64) -> bool {
        let mut interests = wanted.selections.iter().filter_map(|selection| self.interest(selection));
        interests.all(|interest| interest.followed_since <= number)
    }

    pub(super) fn follows(&self, selection: &Selection, now: Duration) -> bool {
        self.interest(selection).is_some_and(|interest| interest.lingers(now))
    }

    /// Whether anybody wants to know of this lock.
    pub(super) fn wants(&self, key: &LockKey) -> bool {
        self.by_key.contains_key(key) || self.with_prefixes_of(key.as_str()).next().is_some()
    }

    /// Everything that is followed.
    pub(super) fn selections(&self) -> Vec<Selection> {
        let keys = self.by_key.keys().cloned().map(Selection::Key);
        keys.chain(self.by_prefix.keys().cloned().map(Selection::Prefix)).collect()
    }

    /// Forgets what has no watcher any more. Returns whether nothing is left.
    pub(super) fn tidy(&mut self, now: Duration) -> bool {
        self.by_key.retain(|_, interest| interest.lingers(now));
        self.by_prefix.retain(|_, interest| interest.lingers(now));
        while self.lingering.front().is_some_and(|(left_at, _)| *left_at + LINGERING <= now) {
            self.lingering.pop_front();
        }
        self.by_key.is_empty() && self.by_prefix.is_empty()
    }

    /// From now on readers are woken by those who read the other end of this.
    pub(super) fn wake_by(&mut self, line: Option<Line>) {
        self.line = line;
    }

    /// Tells those whom it concerns, and who may know of it; nothing is done for others, and for those who rest.
    pub(super) fn tell(&mut self, told: &Arc<Told>) {
        let Some(key) = &told.key else {
            // What has no key concerns everybody.
            return self.everybody().for_each(|reader| self.hand(&reader.queue, told));
        };
        let mut resting = Vec::new();
        let by_key = self.by_key.get(key).into_iter().map(|interest| (None, interest));
        let by_prefix =
            self.with_prefixes_of(key.as_str()).map(|(prefix, interest)| (Some(prefix), interest));
        for (prefix, interest) in by_key.chain(by_prefix) {
            if interest.share.rests_until.get().is_some() {
                continue;
            }
            if !self.budget.allows(&interest.share, interest.readers.len(), told.at) {
                let by_key = || Selection::Key(key.clone());
                resting.push(prefix.map_or_else(by_key, |prefix| Selection::Prefix(prefix.to_owned())));
                continue;
            }
            let may_know = interest.readers.iter().filter(|reader| reader.wanted.may_see(key));
            may_know.for_each(|reader| self.hand(&reader.queue, told));
        }
        self.resting.extend(resting.into_iter().map(|selection| (told.at + REST, selection)));
    }

    /// When the next rest ends.
    pub(super) fn next_end_of_rest(&self) -> Option<Duration> {
        self.resting.front().map(|(until, _)| *until)
    }

    /// Tells those whose rest is over that they have missed something.
    pub(super) fn end_rests(&mut self, now: Duration, last: u64) {
        let told = Arc::new(Told::missed(last));
        while let Some((until, selection)) = self.resting.pop_front_if(|(until, _)| *until <= now) {
            let Some(interest) = self.interest(&selection) else { continue };
            // Another one may be there by now, of those who came later.
            if interest.share.rests_until.get() == Some(until) {
                interest.share.rests_until.set(None);
                self.have_look(&selection, &told);
            }
        }
    }

    /// Tells those who watch this, and no others, that something may have been missed.
    pub(super) fn have_look(&self, selection: &Selection, told: &Arc<Told>) {
        let readers = self.interest(selection).into_iter().flat_map(|interest| &interest.readers);
        readers.for_each(|reader| self.hand(&reader.queue, told));
    }

    /// Has one read what is told.
    pub(super) fn hand(&self, queue: &Arc<Queue>, told: &Arc<Told>) {
        if queue.push(told) {
            match &self.line {
                // Without its other end the server stops.
                Some(line) => drop(line.send(queue.clone())),
                None => queue.wake(),
            }
        }
    }

    /// Each once.
    fn everybody(&self) -> impl Iterator<Item = &Reader> {
        let interests = self.by_key.values().chain(self.by_prefix.values());
        interests.flat_map(|interest| &interest.readers).filter(|reader| reader.is_first)
    }

    /// Those who watch a prefix of this name, without a look at all the others.
    fn with_prefixes_of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, &'a Interest)> {
        let mut rest = Some((name, true));
        std::iter::from_fn(move || {
            loop {
                let (most, is_included) = rest?;
                let end = if is_included { Bound::Included(most) } else { Bound::Excluded(most) };
                let (prefix, interest) =
                    self.by_prefix.range::<str, _>((Bound::Unbounded, end)).next_back()?;
                // Whatever sorts before both and begins one of them begins the other, too.
                let common = common_prefix(prefix, name);
                rest = Some((common, common.len() < prefix.len()));
                if common.len() == prefix.len() {
                    return Some((prefix.as_str(), interest));
                }
            }
        })
    }

    /// Tells everybody that nothing follows.
    pub(super) fn close(&self) {
        self.everybody().for_each(|reader| reader.queue.close());
    }

    /// Does so, and forgets all of them. They leave later, so no number is given twice.
    pub(super) fn end_all(&mut self) {
        self.close();
        *self = Self { last_id: self.last_id, ..Self::default() };
    }

    fn interest(&self, selection: &Selection) -> Option<&Interest> {
        match selection {
            Selection::Key(key) => self.by_key.get(key),
            Selection::Prefix(prefix) => self.by_prefix.get(prefix),
        }
    }

    fn interest_mut(&mut self, selection: &Selection) -> Option<&mut Interest> {
        match selection {
            Selection::Key(key) => self.by_key.get_mut(key),
            Selection::Prefix(prefix) => self.by_prefix.get_mut(prefix),
        }
    }
}

fn common_prefix<'a>(one: &str, other: &'a str) -> &'a str {
    let length = one.chars().zip(other.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
    &other[..length]
}

/// What was told last.
#[derive(Default)]
pub(super) struct Memory {
    told: VecDeque<Arc<Told>>,
    /// The number of what was told last.
    last: u64,
    /// All that has a larger number is remembered.
    forgotten: u64,
}

impl Memory {
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Gives news their number.
    pub(super) fn note(&mut self, key: Option<LockKey>, news: News) -> Arc<Told> {
        self.last += 1;
        let told = Arc::new(Told::new(self.last, key, news));
        if self.told.len() == MOST_REMEMBERED
            && let Some(oldest) = self.told.pop_front()
        {
            self.forgotten = oldest.number;
        }
        self.told.push_back(told.clone());
        told
    }

    /// What was told after this number; `None` where that is not known any more.
    pub(super) fn since(&self, number: u64) -> Option<Vec<Arc<Told>>> {
        let is_known = (self.forgotten..=self.last).contains(&number);
        is_known.then(|| self.told.iter().filter(|told| told.number > number).cloned().collect())
    }

    /// Tells those who come now from those who were told the last of it before.
    pub(super) fn skip(&mut self) {
        self.last += 1;
    }

    /// From here on something is missed.
    pub(super) fn forget(&mut self) {
        self.told.clear();
        // A reader of the last of it has missed what comes now, too.
        self.skip();
        self.forgotten = self.last;
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    use super::*;
    use crate::lock::Reach;

    fn prefix(text: impl Into<String>) -> Wanted {
        Wanted::reach(Reach::all(text))
    }

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn whoever_may_not_see_a_lock_is_neither_told_nor_woken_and_what_is_for_all_is_told_once() {
        let key = |name: &str| LockKey::parse(name.as_bytes()).unwrap();
        let (mut subscribers, mut memory) = (Subscribers::default(), Memory::default());
        let prefixes = ["team", "db/"].map(str::to_owned).to_vec();
        let wanted = Wanted::reach(Reach::limited(prefixes, &[], |key| !key.as_str().starts_with("team2")));
        let (queue, wakes) = (Arc::new(Queue::default()), Arc::new(Wakes::default()));
        let waker = Waker::from(wakes.clone());
        let mut context = Context::from_waker(&waker);
        let id = subscribers.enter(&wanted, &queue);
        assert!(queue.poll(&mut context).is_pending());
        for name in ["team2", "team2/x", "other", "d"] {
            subscribers.tell(&memory.note(Some(key(name)), News::Resync));
            assert!(!wanted.has(&key(name)));
        }
        assert!(queue.poll(&mut context).is_pending());
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
        for name in ["team", "team/x", "db/1"] {
            assert!(subscribers.wants(&key(name)) && wanted.has(&key(name)));
            subscribers.tell(&memory.note(Some(key(name)), News::Resync));
        }
        subscribers.tell(&memory.note(None, News::Resync));
        let mut told = Vec::new();
        while let Poll::Ready(Some(next)) = queue.poll(&mut context) {
            let keys = next.iter().map(|told| told.key.as_ref().map_or("", |key| key.as_str()).to_owned());
            told.extend(keys);
        }
        assert_eq!(told, ["team", "team/x", "db/1", ""]);
        subscribers.leave(&wanted, id, Duration::ZERO);
        subscribers.tell(&memory.note(None, News::Resync));
        assert!(queue.poll(&mut context).is_pending());
    }

    #[test]
    fn whoever_watches_a_prefix_is_found_among_all_others() {
        let prefixes = ["", "a", "a/", "a/b", "a/b/c", "a/bc", "a0", "b", "é", "éa", "ab", "a/é"];
        let mut subscribers = Subscribers::default();
        for text in prefixes {
            subscribers.enter(&prefix(text), &Arc::default());
        }
        for name in ["a", "a/b", "a/b/c", "a/b/d", "a/é", "éb", "zz", "aaaa", "a/", "A"] {
            let expected = prefixes.iter().filter(|text| name.starts_with(**text)).count();
            assert_eq!(subscribers.with_prefixes_of(name).count(), expected, "{name}");
        }
    }

    #[test]
    fn only_so_much_lingers_and_what_is_watched_does_not_go() {
        let (mut subscribers, now) = (Subscribers::default(), Duration::from_secs(100));
        subscribers.enter(&prefix("stays"), &Arc::default());
        let id = subscribers.enter(&prefix("comes back"), &Arc::default());
        subscribers.leave(&prefix("comes back"), id, now);
        subscribers.enter(&prefix("comes back"), &Arc::default());
        for n in 0..3 * MOST_LINGERING {
            let id = subscribers.enter(&prefix(n.to_string()), &Arc::default());
            subscribers.leave(&prefix(n.to_string()), id, now);
        }
        assert_eq!(subscribers.by_prefix.len(), MOST_LINGERING + 2);
        let follows = |text: &str| subscribers.follows(&Selection::Prefix(text.to_owned()), now);
        assert!(follows("stays") && follows("comes back"));
        assert!(!follows("0"), "the oldest went first");
        subscribers.tidy(now + LINGERING);
        assert_eq!((subscribers.by_prefix.len(), subscribers.lingering.len()), (2, 0));
    }
}
