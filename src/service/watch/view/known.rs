//! What is known of one lock while there are watchers.

use std::time::Duration;

use super::super::News;
use crate::lock::{FencingToken, Lease};

/// How long it is remembered that a grant is over, since news of it may still be on their way.
pub(super) const REMEMBERED: Duration = Duration::from_secs(60);
/// A lease is told a little shorter than it is.
pub(super) const AFTER_END: Duration = Duration::from_millis(5);
/// A line is looked at so long after it has changed, since many come and go at once.
pub(super) const LINE_SETTLES: Duration = Duration::from_millis(100);
/// A line with waiters is looked at again after this time: nothing tells that a ticket has ended, or who waits at a gateway that
/// was killed.
pub(super) const LINE_LASTS: Duration = Duration::from_secs(10);

/// What is known of one lock.
pub(super) struct Known {
    /// The number of the last grant, where one is known.
    pub(super) fence: Option<FencingToken>,
    pub(super) phase: LockPhase,
    /// When the lease is over; of one that is over, when that may be forgotten.
    pub(super) ends_at: Duration,
    /// Of a lock that is shared: how many hold it, and the number of the grant that ends first. Nothing is told of single grants.
    pub(super) shared: Option<(u64, FencingToken)>,
    /// Whether something happened that may have been a grant beside others. The next look tells.
    pub(super) is_unclear: bool,
    /// Since when something may have been missed: the grant may be over, and the store may have lost it, or its end.
    pub(super) doubtful_since: Option<Duration>,
    /// Since when looks find no holder, although nothing was heard of the end of the lease.
    pub(super) is_free_since: Option<Duration>,
    /// Whether this grant was told of, and not only seen.
    pub(super) is_told: bool,
    /// How many wait, as was told last.
    pub(super) waiters: u64,
    pub(super) line_settles_at: Option<Duration>,
    /// Whether it was told of since it was seen last.
    pub(super) has_line_changed: bool,
    /// When the line is looked at again although nothing was heard of it, while clients wait.
    pub(super) line_lasts_until: Option<Duration>,
    /// Since when readers rely on a look that is not here yet.
    pub(super) relied_on_since: Option<Duration>,
    /// Whether such a look is under way, or waits for its turn.
    pub(super) is_looked_at: bool,
    /// Whether another one was due meanwhile.
    pub(super) looks_again: bool,
    /// When somebody looks at it next, unless its last grant is over.
    pub(super) looks_at: Option<Duration>,
    /// Whether it stands among those that are over.
    pub(super) is_listed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LockPhase {
    Held,
    /// Released, and kept without a holder until the end of its `min_hold`.
    Kept,
    Over,
}

impl Known {
    pub(super) fn is_to_be_found(&self) -> bool {
        self.relied_on_since.is_some() && self.fence.is_none()
    }

    pub(super) fn new(now: Duration, doubted_at: Option<Duration>) -> Self {
        Self {
            fence: None,
            phase: LockPhase::Over,
            ends_at: now + REMEMBERED,
            shared: None,
            is_unclear: false,
            doubtful_since: doubted_at,
            is_free_since: None,
            is_told: false,
            waiters: 0,
            line_settles_at: None,
            has_line_changed: false,
            line_lasts_until: None,
            relied_on_since: None,
            is_looked_at: false,
            looks_again: false,
            looks_at: None,
            is_listed: false,
        }
    }

    pub(super) fn is_taken(&self) -> bool {
        self.phase != LockPhase::Over
    }

    /// Whether this grant is known to hold it, and alone.
    pub(super) fn is_held_by(&self, number: FencingToken) -> bool {
        self.phase == LockPhase::Held && self.fence == Some(number)
    }

    pub(super) fn is_past_end(&self, now: Duration) -> bool {
        self.is_taken() && self.ends_at <= now + AFTER_END
    }

    /// The grant that ended by itself, if that is so. One in doubt may have been released long before, and one that a look did
    /// not find before its end was.
    pub(super) fn expired(&self, now: Duration) -> Option<News> {
        let is_sure = self.doubtful_since.is_none() && self.is_free_since.is_none();
        let fence = self.fence.filter(|_| self.is_past_end(now) && is_sure)?;
        Some(News::Expired(fence))
    }

    /// Whether a look that was asked at this time counts for more than what was told.
    fn is_settled_by(&self, asked_at: Duration) -> bool {
        self.doubtful_since.is_some_and(|since| asked_at > since)
    }

    /// Whether a lease of this number, found by a look, is older than what is known, and the store has lost nothing since.
    pub(super) fn is_late(&self, fence: FencingToken, asked_at: Duration) -> bool {
        Some(fence) < self.fence && !self.is_settled_by(asked_at)
    }

    /// A look has found the grant that is known. If its end was told, the store has lost the end.
    pub(super) fn confirm(&mut self, lease: &Lease, asked_at: Duration) {
        self.is_free_since = None;
        if self.is_settled_by(asked_at) {
            self.doubtful_since = None;
            if self.phase != LockPhase::Held {
                self.hold(lease, asked_at);
                self.is_told = false;
            }
        }
    }

    /// What is told of news that come late or twice: nothing. If the store may have lost what was told since, they may be
    /// new: readers look, and so does the gateway.
    pub(super) fn tell_late(&mut self, now: Duration) -> Vec<News> {
        if self.doubtful_since.is_none() {
            return Vec::new();
        }
        self.line_settles_at.get_or_insert(now + LINE_SETTLES);
        vec![News::Resync]
    }

    pub(super) fn hold(&mut self, lease: &Lease, now: Duration) {
        self.fence = Some(lease.fencing_token);
        self.phase = if lease.is_released { LockPhase::Kept } else { LockPhase::Held };
        self.ends_at = now + Duration::from_millis(lease.left_ms);
        self.is_free_since = None;
        // What was found before something was missed does not say that it is so still.
        self.doubtful_since = self.doubtful_since.filter(|since| now <= *since);
    }

    /// Several hold it, the first of them until the end of this lease.
    pub(super) fn share(&mut self, held: u64, first: &Lease, now: Duration) {
        self.hold(first, now);
        (self.fence, self.shared) = (None, Some((held, first.fencing_token)));
    }

    pub(super) fn see_line(&mut self, waiters: u64, now: Duration) {
        self.has_line_changed = false;
        self.waiters = waiters;
        self.line_lasts_until = (waiters > 0).then_some(now + LINE_LASTS);
    }

    pub(super) fn end(&mut self, fence: FencingToken, kept_ms: u64, now: Duration) {
        (self.fence, self.is_free_since) = (Some(fence), None);
        // What was found before does not say that it goes on. And the store may have lost it, and give its number anew.
        self.doubtful_since = self.doubtful_since.map(|_| now);
        (self.phase, self.ends_at) = match kept_ms {
            0 => (LockPhase::Over, now + REMEMBERED),
            _ => (LockPhase::Kept, now + Duration::from_millis(kept_ms)),
        };
    }
}
