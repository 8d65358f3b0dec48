//! Decides from what workers asked, and were told, whether the promises of records were kept. The promises are those of the
//! book, which calls them O1 to O14. It knows only what workers saw, so it never calls a run wrong that was right.

use std::collections::BTreeMap;

use kit::history::Span;

use super::{ALONE, Action, Answer, Operation, State};

mod fingerprints;
mod looks;
mod places;
mod results;
pub mod tests;
mod tokens;
mod waits;

/// So long after it was sent, no copy of a request does anything any more.
const LATEST_US: u64 = 30_000_000;
/// Leases and results end by clocks that count in milliseconds.
const ROUNDING_US: u64 = 5_000;

/// What was done to the store and to the gateways.
#[derive(Clone, Debug, Default)]
pub struct Disturbances {
    /// When the store lost something, or older data came back.
    pub losses: Vec<Span>,
    /// When an older state may have come back.
    pub returns: Vec<Span>,
    /// When two servers may have taken commands: the numbers of the older one are the smaller ones.
    pub splits: Vec<Span>,
    /// When gateways ended, and with them what they were about to take back.
    pub kills: Vec<Span>,
    /// When what is left of a lease may have been read by another clock.
    pub moves: Vec<Span>,
    /// When for how long results are kept may have been read by a wrong clock: one that was seen after that may end early.
    pub misread: Vec<Span>,
}

/// All that is wrong.
pub fn judge(operations: &[Operation], disturbances: &Disturbances) -> Vec<String> {
    let mut by_key = BTreeMap::<&str, Vec<&Operation>>::new();
    for operation in operations {
        by_key.entry(&operation.key).or_default().push(operation);
    }
    let mut found = Found::default();
    for (key, operations) in by_key {
        let record = Record { operations, disturbances };
        if key.starts_with(ALONE) {
            record.nothing_is_left_of_what_nobody_learned(&mut found);
        }
        for one in &record.operations {
            record.a_result_is_its_workers(one, &mut found);
            record.a_worker_is_told_its_own_number(one, &mut found);
            record.earlier_counts_those_before(one, &mut found);
            record.a_place_is_busy_while_a_lease_runs(one, &mut found);
            record.a_request_gets_no_more_than_it_asks_for(one, &mut found);
            record.a_token_is_released_once_it_gave_up(one, &mut found);
            record.a_fingerprint_differs_from_another(one, &mut found);
            record.a_look_says_whose_it_is(one, &mut found);
        }
        for (before, after) in record.in_turn() {
            record.one_number_is_one_grant(before, after, &mut found);
            // Who asks on when it is answered asks after that: what gateways say takes a while to arrive.
            if before.end_us > after.start_us {
                continue;
            }
            record.numbers_grow(before, after, &mut found);
            if record.is_lost(before, after) {
                continue;
            }
            record.what_is_done_stays_done(before, after, &mut found);
            record.who_was_superseded_stores_nothing(before, after, &mut found);
            record.a_worker_can_store(before, after, &mut found);
            record.a_place_is_its_workers_while_the_lease_runs(before, after, &mut found);
            record.nobodys_place_is_not_begun(before, after, &mut found);
            record.a_token_that_gave_up_works_no_more(before, after, &mut found);
            record.a_record_is_bound_to_its_fingerprint(before, after, &mut found);
            record.a_worker_is_not_forgotten(before, after, &mut found);
        }
        record.who_waits_is_told(&mut found);
    }
    found.0
}

/// What is wrong.
#[derive(Default)]
struct Found(Vec<String>);

impl Found {
    fn add(&mut self, why: &str, of: &[&Operation]) {
        self.0.push(format!("{why}: {of:?}"));
    }
}

/// All operations on one record, in the order in which they began.
struct Record<'a> {
    operations: Vec<&'a Operation>,
    disturbances: &'a Disturbances,
}

impl Operation {
    /// Whether a copy of it may be done late, or may have been done before another one was answered. A copy of a result counts for
    /// the place that its token has then.
    fn is_in_doubt(&self) -> bool {
        let has_copies = match self.action {
            Action::Store { .. } => self.answer != Answer::Refused,
            Action::Break { .. } => matches!(self.answer, Answer::Superseded { .. }),
            _ => false,
        };
        self.answer.is_in_doubt() || has_copies && !self.is_calm()
    }

    /// Whether it may have been done after that. What nobody has heard of is done late, or never.
    fn may_be_done_after(&self, time_us: u64) -> bool {
        self.end_us > time_us || self.is_in_doubt()
    }

    /// When it was done at the latest.
    fn latest_us(&self) -> u64 {
        if self.is_in_doubt() { self.start_us + LATEST_US } else { self.end_us }
    }

    /// Whether nothing failed while it was under way, so that no copy of it can come later.
    fn is_calm(&self) -> bool {
        self.calm_since_us.is_some_and(|since_us| since_us <= self.start_us)
    }

    fn is_begin(&self) -> bool {
        matches!(self.action, Action::Begin { .. })
    }

    /// Whether its answer was that another has begun after the grant of this number.
    pub(super) fn heard_of_later(&self, number: u64) -> bool {
        matches!(self.answer, Answer::Busy { number: later } | Answer::Done { number: later, .. } if later > number)
    }

    /// The number of the grant that its token was told of.
    pub(super) fn work(&self) -> Option<u64> {
        match &self.answer {
            Answer::Work { number, .. } => Some(*number),
            Answer::Seen(seen) if seen.yours == Some(true) && seen.state == State::Working => {
                Some(seen.number)
            }
            _ => None,
        }
    }

    /// When the lease ends that it was told of.
    fn lease_ends_us(&self) -> Option<u64> {
        self.work()?;
        match &self.answer {
            Answer::Work { left_ms, .. } => Some(self.said_us + left_ms * 1_000),
            // A look says what was left when it looked.
            Answer::Seen(seen) => Some(self.start_us + seen.left_ms * 1_000),
            _ => None,
        }
    }

    /// The number of the record's last grant, as it was told.
    fn number(&self) -> Option<u64> {
        match &self.answer {
            Answer::Work { number, .. }
            | Answer::Done { number, .. }
            | Answer::Stored { number }
            | Answer::Busy { number }
            | Answer::Superseded { number, .. } => Some(*number),
            Answer::Seen(seen) => Some(seen.number),
            _ => None,
        }
    }

    /// Whether it may have changed the record. One that was refused has certainly not.
    fn may_be_done(&self) -> bool {
        if self.is_in_doubt() {
            return true;
        }
        match self.action {
            Action::GiveUp { .. } => self.answer == Answer::GivenUp,
            Action::Break { .. } => self.answer == Answer::Broken,
            Action::Store { .. } => matches!(self.answer, Answer::Stored { .. } | Answer::ResultDiffers),
            // A grant of an attempt in doubt may have ended, and another may have come, before it was refused. So may one whose
            // lease was over before it could be told.
            Action::Begin { ttl_ms, .. } => {
                let outlasts_its_lease = self.end_us > self.start_us + ttl_ms * 1_000;
                self.work().is_some()
                    || !self.is_calm()
                    || self.answer == Answer::Refused && outlasts_its_lease
            }
            Action::Renew { .. } | Action::Look => true,
        }
    }
}

impl<'a> Record<'a> {
    /// Each two of them, in either order.
    fn in_turn(&self) -> impl Iterator<Item = (&'a Operation, &'a Operation)> {
        self.operations.iter().flat_map(|before| self.operations.iter().map(|after| (*before, *after)))
    }

    /// Whether the store may have lost something from the beginning of the one to the end of the other.
    fn is_lost(&self, before: &Operation, after: &Operation) -> bool {
        let Disturbances { losses, splits, .. } = self.disturbances;
        overlaps(losses, before, after) || overlaps(splits, before, after)
    }

    /// Whether a request may have changed the record, whatever it was told. Where the store has lost something meanwhile, a first
    /// try may be lost with it, and the second one has found another record.
    fn may_be_done(&self, other: &Operation) -> bool {
        other.may_be_done() || self.is_lost(other, other)
    }

    /// Whether such a request may have been done between these two moments.
    fn may_have(&self, start_us: u64, end_us: u64, is_it: impl Fn(&Operation) -> bool) -> bool {
        self.between(start_us, end_us).any(is_it)
    }

    /// The requests that may have been done between these two moments.
    fn between(&self, start_us: u64, end_us: u64) -> impl Iterator<Item = &Operation> {
        self.operations.iter().copied().filter(move |other| {
            other.start_us <= end_us && other.may_be_done_after(start_us) && self.may_be_done(other)
        })
    }

    /// Whether somebody may have broken it between these two: the grant of this number, that is.
    fn may_be_broken(&self, before: &Operation, after: &Operation) -> bool {
        self.may_have(before.start_us, after.end_us, |other| match other.action {
            Action::Break { number, .. } => number.is_none() || number == before.number(),
            _ => false,
        })
    }

    /// Whether all that was known of it may have been forgotten rightly between these two, but for those who gave up.
    fn may_be_over(&self, before: &Operation, after: &Operation) -> bool {
        let is_clean_break = |other: &Operation| match other.action {
            Action::Break { number, is_clean: true } => number.is_none() || number >= before.number(),
            _ => false,
        };
        self.may_have(before.start_us, after.end_us, is_clean_break)
            || self.operations.iter().any(|store| {
                matches!(store.action, Action::Store { .. })
                    && self.may_be_done(store)
                    && (store.start_us + self.keeps_us(store).0 <= after.end_us
                        || overlaps(&self.disturbances.misread, store, after))
            })
    }

    /// Whether a worker may have said that it had certainly done nothing, between these two.
    fn may_be_left_cleanly(&self, before: &Operation, after: &Operation, token: Option<&str>) -> bool {
        self.may_have(before.start_us, after.end_us, |other| {
            matches!(other.action, Action::GiveUp { is_clean: true })
                && (token.is_none() || other.token.as_deref() == token)
        })
    }

    /// Whether the grant of this number may be as if it had never been: no client was told of it, or its worker said that it had
    /// certainly done nothing.
    fn may_be_undone(&self, number: u64, after: &Operation) -> bool {
        let mut told = self.operations.iter().filter(|grant| grant.work() == Some(number)).peekable();
        told.peek().is_none()
            || told.any(|grant| self.may_be_left_cleanly(grant, after, grant.token.as_deref()))
    }

    /// Whether this token may have stored something or given up, between these two.
    fn may_have_left(&self, before: &Operation, after: &Operation, token: Option<&str>) -> bool {
        self.may_have(before.start_us, after.end_us, |other| {
            other.token.as_deref() == token
                && matches!(other.action, Action::Store { .. } | Action::GiveUp { .. })
        })
    }

    /// For how long a result is kept that this request stores: at least, and at most.
    fn keeps_us(&self, store: &Operation) -> (u64, u64) {
        let Action::Store { keep_s, .. } = store.action else { return (u64::MAX, 0) };
        let said = |begin: &&&Operation| begin.token == store.token;
        let of_begin = |begin: &&Operation| match begin.action {
            Action::Begin { keep_s, .. } => Some(keep_s),
            _ => None,
        };
        let begins = || self.operations.iter().filter(said).filter_map(of_begin);
        let least_s = keep_s.or_else(|| begins().min()).unwrap_or(0);
        let most_s = keep_s.or_else(|| begins().max()).unwrap_or(u64::from(u32::MAX));
        (least_s * 1_000_000, most_s * 1_000_000)
    }
}

/// Whether any of these fell into the time from the beginning of the one to the end of the other.
fn overlaps(spans: &[Span], before: &Operation, after: &Operation) -> bool {
    let (start_us, end_us) = (before.start_us.min(after.start_us), before.end_us.max(after.end_us));
    spans.iter().any(|span| span.start_us <= end_us && start_us <= span.end_us)
}
