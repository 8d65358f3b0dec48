//! What is known of each lock while there are watchers. News of several gateways, and of several tasks of one, overtake
//! each other. Fencing tokens show what comes late or twice, and that is not told. No request tells of the end of a
//! lease, so that is looked for.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::mem;
use std::time::Duration;

use self::known::{AFTER_END, Known, LINE_SETTLES, LockPhase, REMEMBERED};
use super::{Doing, News, Selection};
use crate::lock::{Ended, Inspected, Lease, LockKey};

mod known;

/// The most locks that are followed. If that many are held, the ends of others are not told.
const MOST_FOLLOWED: usize = 100_000;
/// The pause before a look that failed, or that came too early, is repeated.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// A lease that is longer than was known by more than this was renewed.
const RENEWED_BY: Duration = Duration::from_millis(250);

/// The locks that are followed. All times are those since boot.
#[derive(Default)]
pub(super) struct View {
    locks: HashMap<LockKey, Known>,
    timers: BTreeSet<(Duration, LockKey)>,
    /// The locks whose grants are over, each once, and when it can be forgotten at the earliest. The oldest are first: of many
    /// fresh keys this costs less than a timer for each.
    over: VecDeque<(Duration, LockKey)>,
    /// When something may have been missed of all locks: also of those that an earlier look is still to tell of.
    doubted_at: Option<Duration>,
    /// Whether there was no room for some lock.
    is_overfull: bool,
}

impl View {
    /// What is to be told of what somebody did: nothing, where it comes late or twice.
    pub(super) fn note(&mut self, key: &LockKey, doing: &Doing, now: Duration) -> Vec<News> {
        let fence = doing.fence();
        self.change(key, now, |known| match doing {
            // Others may hold it still.
            Doing::Released(Ended { fencing_token: number, .. }) | Doing::Broken(number)
                if known.shared.is_some() || known.is_unclear && !known.is_held_by(*number) =>
            {
                known.line_settles_at.get_or_insert(now + LINE_SETTLES);
                vec![News::Resync]
            }
            _ if fence.is_some() && fence < known.fence => known.tell_late(now),
            Doing::Granted(lease) | Doing::Renewed(lease) => {
                let is_grant = matches!(doing, Doing::Granted(_));
                let is_over = known.phase != LockPhase::Held || is_grant && known.is_told;
                if fence == known.fence && is_over {
                    return known.tell_late(now);
                }
                let expired = known.expired(now).filter(|_| fence != known.fence);
                known.hold(lease, now);
                (known.is_told, known.doubtful_since) = (true, None);
                let news = if is_grant { News::Granted } else { News::Renewed };
                expired.into_iter().chain([news(lease.clone())]).collect()
            }
            Doing::Released(ended) => {
                if fence == known.fence && known.phase != LockPhase::Held {
                    return known.tell_late(now);
                }
                known.end(ended.fencing_token, ended.kept_ms, now);
                vec![News::Released(*ended)]
            }
            Doing::Broken(number) => {
                if fence == known.fence && !known.is_taken() {
                    return known.tell_late(now);
                }
                known.end(*number, 0, now);
                vec![News::Broken(*number)]
            }
            Doing::Line => {
                known.has_line_changed = true;
                known.line_settles_at.get_or_insert(now + LINE_SETTLES);
                Vec::new()
            }
            Doing::Unclear => {
                // No client is granted a lock beside the one that is known to hold it alone.
                known.is_unclear |= known.phase != LockPhase::Held || known.fence.is_none();
                known.line_settles_at.get_or_insert(now + LINE_SETTLES);
                vec![News::Resync]
            }
        })
    }

    /// What is to be told of what a look has found that was asked at this time.
    pub(super) fn see(&mut self, key: &LockKey, seen: &Inspected, now: Duration) -> Vec<News> {
        self.change(key, now, |known| {
            let (lease, sharing, waiters) = match seen {
                Inspected::Free { waiters } => (None, None, *waiters),
                Inspected::Held { lease, sharing, waiters, .. } => (Some(lease), sharing.as_ref(), *waiters),
            };
            let held = sharing.map(|sharing| sharing.held);
            // A look that was sent before something happened does not tell of it.
            known.is_unclear &= known.line_settles_at.is_some();
            let mut news = Vec::new();
            let was_shared = known.shared.take();
            let shared = lease.filter(|_| held.is_some());
            match lease.filter(|_| held.is_none()) {
                // Who has released it is about to say so, unless its time is over.
                None => match (known.fence, known.expired(now)) {
                    // Several held it, and nothing is told of their grants.
                    (None, _) => (known.phase, known.ends_at) = (LockPhase::Over, now + REMEMBERED),
                    (Some(fence), Some(expired)) => {
                        known.end(fence, 0, now);
                        news.push(expired);
                    }
                    // Readers have looked since.
                    (Some(fence), None) if known.is_past_end(now) => {
                        // Nothing has told them to, if a look found it free before its end.
                        news.extend(known.is_free_since.map(|_| News::Resync));
                        known.end(fence, 0, now);
                    }
                    (Some(fence), None) if known.is_taken() => {
                        let since = *known.is_free_since.get_or_insert(now);
                        if now >= since + LOOK_AGAIN {
                            known.end(fence, 0, now);
                            news.push(News::Resync);
                        }
                    }
                    (Some(_), None) => {}
                },
                Some(lease) if known.is_late(lease.fencing_token, now) => {}
                Some(lease) if Some(lease.fencing_token) == known.fence => {
                    known.confirm(lease, now);
                    let left = Duration::from_millis(lease.left_ms);
                    match known.phase {
                        // The look is older than the news of its end.
                        LockPhase::Over => {}
                        LockPhase::Held if lease.is_released => {
                            let ended = Ended { fencing_token: lease.fencing_token, kept_ms: lease.left_ms };
                            known.end(ended.fencing_token, ended.kept_ms, now);
                            news.push(News::Released(ended));
                        }
                        LockPhase::Held if now + left > known.ends_at + RENEWED_BY => {
                            known.hold(lease, now);
                            news.push(News::Renewed(lease.clone()));
                        }
                        LockPhase::Held | LockPhase::Kept => known.ends_at = known.ends_at.max(now + left),
                    }
                }
                Some(lease) => {
                    news.extend(known.expired(now));
                    known.hold(lease, now);
                    // Who was granted it is about to say so.
                    known.is_told = false;
                }
            }
            if let (Some(held), Some(first)) = (held, shared) {
                known.share(held, first, now);
            }
            if known.shared != was_shared {
                news.push(News::Resync);
            }
            if known.waiters != waiters {
                news.push(News::Waiting(waiters));
            }
            known.see_line(waiters, now);
            news
        })
    }

    /// Learns of a lock that is held, as the caller is told in another way. Returns what has changed since then, if the
    /// lock was followed already.
    pub(super) fn learn(&mut self, key: &LockKey, lease: &Lease, waiters: u64, now: Duration) -> Vec<News> {
        self.change(key, now, |known| {
            // If the line has changed since readers looked, they may know another number, also of a lock that was not known here.
            let is_news = known.has_line_changed || known.fence.is_some() && known.waiters != waiters;
            let mut news: Vec<_> = is_news.then_some(News::Waiting(waiters)).into_iter().collect();
            if lease.slot.is_some() {
                // The end of one of its grants may have been told as that of the lock.
                news.extend(known.fence.is_some().then_some(News::Resync));
                known.share(0, lease, now);
            } else if Some(lease.fencing_token) == known.fence {
                known.confirm(lease, now);
            } else if !known.is_late(lease.fencing_token, now) {
                known.hold(lease, now);
                known.is_told = false;
            }
            known.see_line(waiters, now);
            news
        })
    }

    /// Has a lock looked at now. Readers rely since then on what a look finds.
    pub(super) fn follow(&mut self, key: &LockKey, since: Duration) {
        self.change(key, since, |known| {
            known.relied_on_since = Some(since);
            Vec::new()
        });
        self.set_timer(key, since);
    }

    /// Whether readers rely on a look at a lock of which nothing is known.
    pub(super) fn is_to_be_found(&self, key: &LockKey) -> bool {
        self.locks.get(key).is_some_and(Known::is_to_be_found)
    }

    /// Such a look is over, and at this time it was answered: what came while it was under way may not be in it.
    pub(super) fn has_looked(&mut self, key: &LockKey, answered_at: Option<Duration>) {
        let Some(known) = self.locks.get_mut(key) else { return };
        known.is_looked_at = false;
        let looks_again = mem::take(&mut known.looks_again);
        if let Some(now) = answered_at.filter(|_| looks_again) {
            self.set_timer(key, now);
        }
    }

    /// Since when readers rely on a look that was asked at this time, and is here: so they do no more.
    pub(super) fn take_relied(&mut self, key: &LockKey, asked_at: Duration) -> Option<Duration> {
        self.locks.get_mut(key)?.relied_on_since.take_if(|since| *since <= asked_at)
    }

    /// Forgets these locks, of which nothing was heard since they were followed last.
    pub(super) fn forget(&mut self, selection: &Selection, is_wanted: impl Fn(&LockKey) -> bool) {
        let keys: Vec<_> = match selection {
            Selection::Key(key) => vec![key.clone()],
            Selection::Prefix(prefix) => {
                self.locks.keys().filter(|key| key.as_str().starts_with(prefix)).cloned().collect()
            }
        };
        for key in keys.into_iter().filter(|key| !is_wanted(key)) {
            if let Some(Known { looks_at: Some(at), .. }) = self.locks.remove(&key) {
                self.timers.remove(&(at, key));
            }
        }
    }

    /// Something may have been missed of all locks, and readers look for themselves.
    pub(super) fn doubt(&mut self, now: Duration) {
        self.doubted_at = Some(now);
        self.locks.values_mut().for_each(|known| known.doubtful_since = Some(now));
    }

    /// When the next look is due.
    pub(super) fn next_look(&self) -> Option<Duration> {
        let first = self.timers.first().map(|(at, _)| *at);
        first.into_iter().chain(self.over.front().map(|(at, _)| *at)).min()
    }

    /// A lock that is due to be looked at, if somebody wants to know; others are forgotten.
    pub(super) fn take_due(
        &mut self,
        now: Duration,
        is_wanted: impl Fn(&LockKey) -> bool,
    ) -> Option<LockKey> {
        while self.over.front().is_some_and(|(at, _)| *at <= now) {
            self.forget_oldest(now);
        }
        while self.timers.first().is_some_and(|(at, _)| *at <= now) {
            let (_, key) = self.timers.pop_first()?;
            let Some(known) = self.locks.get_mut(&key) else { continue };
            known.looks_at = None;
            // What changed since readers looked is told once this look is here.
            known.line_settles_at = known.line_settles_at.filter(|_| known.relied_on_since.is_some());
            // Until a look has found something, news must not put the next one off.
            known.line_lasts_until = known.line_lasts_until.map(|_| now + LOOK_AGAIN);
            if !is_wanted(&key) {
                self.locks.remove(&key);
                continue;
            }
            let is_looked_at = known.is_to_be_found() && mem::replace(&mut known.is_looked_at, true);
            known.looks_again |= is_looked_at;
            // Unless the look finds something else.
            self.set_timer(&key, now + LOOK_AGAIN);
            if !is_looked_at {
                return Some(key);
            }
        }
        None
    }

    /// Forgets the lock whose last grant has been over for longest, if it may be forgotten at this time. Returns whether it has.
    fn forget_oldest(&mut self, now: Duration) -> bool {
        let Some((_, key)) = self.over.pop_front() else { return false };
        let Some(known) = self.locks.get_mut(&key) else { return false };
        known.is_listed = false;
        if known.is_taken() || known.looks_at.is_some() {
            return false;
        }
        if known.ends_at > now {
            // It was granted again in the meantime.
            known.is_listed = true;
            self.over.push_back((known.ends_at, key));
            return false;
        }
        self.locks.remove(&key).is_some()
    }

    fn set_timer(&mut self, key: &LockKey, at: Duration) {
        let Some(known) = self.locks.get_mut(key) else { return };
        if let Some(before) = known.looks_at.replace(at) {
            self.timers.remove(&(before, key.clone()));
        }
        self.timers.insert((at, key.clone()));
    }

    /// Whether there was no room for some lock since this was asked last.
    pub(super) fn was_overfull(&mut self) -> bool {
        std::mem::take(&mut self.is_overfull)
    }

    /// Changes what is known of a lock, and sets its timer.
    fn change(
        &mut self,
        key: &LockKey,
        now: Duration,
        change: impl FnOnce(&mut Known) -> Vec<News>,
    ) -> Vec<News> {
        if self.locks.len() >= MOST_FOLLOWED && !self.locks.contains_key(key) && !self.make_room() {
            self.is_overfull = true;
            return change(&mut Known::new(now, self.doubted_at));
        }
        let known = self.locks.entry(key.clone()).or_insert_with(|| Known::new(now, self.doubted_at));
        let news = change(known);
        let end = known.is_taken().then_some(known.ends_at + AFTER_END);
        let free = known.is_free_since.map(|since| since + LOOK_AGAIN);
        let steps = [end, free, known.line_settles_at, known.line_lasts_until, known.relied_on_since];
        if let Some(at) = steps.into_iter().flatten().min() {
            // A look that is due, or under way, has set its own.
            let again = known.looks_at.unwrap_or(now + LOOK_AGAIN).min(now + LOOK_AGAIN);
            self.set_timer(key, if at <= now { again } else { at });
            return news;
        }
        if let Some(before) = known.looks_at.take() {
            self.timers.remove(&(before, key.clone()));
        }
        if !std::mem::replace(&mut known.is_listed, true) {
            self.over.push_back((known.ends_at, key.clone()));
        }
        news
    }

    /// Forgets a lock whose last grant is over, although news of it may still be on their way. Returns whether there was one.
    fn make_room(&mut self) -> bool {
        while !self.over.is_empty() {
            if self.forget_oldest(Duration::MAX) {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests;
