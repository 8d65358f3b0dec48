//! The judge: promises I1 to I9, decided from the history of a run.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use super::holds::{Hold, ROUNDING_US, holds};
use super::{Action, Answer, History, Operation, Update};

/// How soon after the last fault nothing may be left of a grant that reached nobody.
const ORPHANS_END_WITHIN_US: u64 = 1_000_000;

/// How long a gateway may be busy with taking back after its client has left.
const CLEANING_US: u64 = 3_000_000;

/// A promise that was not kept.
#[derive(Clone, Debug)]
pub struct Violation {
    pub promise: &'static str,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise, self.what)
    }
}

/// All operations on one key, and what follows from them.
struct Case<'a> {
    history: &'a History,
    operations: Vec<&'a Operation>,
    holds: Vec<Hold<'a>>,
}

#[derive(Default)]
struct Found(Vec<Violation>);

impl Found {
    fn add(&mut self, promise: &'static str, why: &str, of: &impl fmt::Debug) {
        self.0.push(Violation { promise, what: format!("{why}: {of:?}") });
    }
}

/// Every violation that the history shows. It knows only what clients saw, so it never calls a run wrong that was
/// right; a wrong run may look right to its clients.
pub fn check(history: &History) -> Vec<Violation> {
    let mut by_key: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for operation in &history.operations {
        by_key.entry(&operation.key).or_default().push(operation);
    }
    let mut found = Found::default();
    lost_updates(&history.updates, &mut found);
    for mut operations in by_key.into_values() {
        operations.sort_by_key(|operation| operation.span.start_us);
        let holds = holds(history, &operations);
        let case = Case { history, operations, holds };
        case.numbers_are_unique(&mut found);
        case.numbers_grow(&mut found);
        case.one_holds_at_a_time(&mut found);
        case.leases_are_neither_revived_nor_cut(&mut found);
        case.leases_end(&mut found);
        case.nothing_is_left_of_what_nobody_learnt(&mut found);
        case.released_tokens_stay_released(&mut found);
        case.what_was_refused_did_not_happen(&mut found);
    }
    found.0
}

/// I5: an update replaces what its client read, so two of the same version mean that one is lost.
fn lost_updates(updates: &[Update], found: &mut Found) {
    let mut seen = HashMap::new();
    for update in updates {
        if let Some(first) = seen.insert((&update.resource, update.before), update) {
            found.add("I5", "two replaced the same version", &[first, update]);
        }
    }
}

impl Case<'_> {
    /// Whether the store may have lost something between these two moments.
    fn is_lost_between(&self, start_us: u64, end_us: u64) -> bool {
        self.history.losses.iter().any(|loss| loss.start_us <= end_us && start_us <= loss.end_us)
    }

    /// I1: a number is one grant of one token.
    fn numbers_are_unique(&self, found: &mut Found) {
        let mut tokens = HashMap::new();
        let mut granted = BTreeSet::new();
        for operation in &self.operations {
            let Some(number) = operation.told() else { continue };
            let first = *tokens.entry(number).or_insert(&operation.token);
            if *first != operation.token {
                found.add("I1", "two tokens were given one number", operation);
            }
            if matches!(operation.answer, Answer::Granted { .. }) && !granted.insert(number) {
                found.add("I1", "one number was granted twice", operation);
            }
        }
    }

    /// I2: a grant has a larger number than any that was shown before it was asked for.
    fn numbers_grow(&self, found: &mut Found) {
        for grant in &self.operations {
            let Answer::Granted { number, .. } = grant.answer else { continue };
            let before = self.operations.iter().filter(|other| other.span.end_us < grant.span.start_us);
            let largest = before.filter_map(|other| other.shown()).max();
            if largest.is_some_and(|largest| largest >= number) {
                found.add("I2", &format!("{largest:?} was shown before"), grant);
            }
        }
    }

    /// I3, I4 and I8: while a client holds a lock, everybody is told so.
    fn one_holds_at_a_time(&self, found: &mut Found) {
        for (at, hold) in self.holds.iter().enumerate() {
            if let Some(other) = self.holds[at + 1..].iter().find(|other| hold.overlaps(other)) {
                found.add("I3", "two hold it at once", &[hold, other]);
            }
            for operation in &self.operations {
                if hold.covers(operation) && !self.agrees(hold, operation) {
                    let promise = if operation.token.as_deref() == Some(hold.token) { "I8" } else { "I3" };
                    found.add(promise, &format!("{hold:?} is denied"), operation);
                }
            }
        }
    }

    /// Whether an answer that was asked for and given during a hold speaks of it.
    fn agrees(&self, hold: &Hold, operation: &Operation) -> bool {
        let is_its = operation.token.as_deref() == Some(hold.token);
        let was_released = |operation: &Operation| {
            self.operations.iter().any(|other| {
                let is_earlier = other.span.start_us < operation.span.start_us && other.id != operation.id;
                other.action == Action::Release && other.token == operation.token && is_earlier
            })
        };
        match &operation.answer {
            Answer::NotDone | Answer::Unknown | Answer::Lost { .. } => true,
            Answer::Granted { .. } | Answer::NotHeld | Answer::Released if !is_its => {
                // A repetition of a DELETE gets the answer of the first one, whoever holds the lock by now.
                operation.action == Action::Release && was_released(operation)
            }
            Answer::AlreadyHeld { number, .. } | Answer::Renewed { number, .. } => {
                is_its && *number == hold.number
            }
            Answer::HeldByAnother(holder) => {
                !is_its && holder.as_ref().is_none_or(|holder| holder.number == hold.number)
            }
            Answer::Held { holder, yours } => {
                let is_told_so = operation.token.is_none() || *yours == Some(is_its);
                holder.number == hold.number && is_told_so
            }
            // Tokens that the server made and that hold nothing are answered likewise.
            Answer::TokenReleased => !is_its,
            Answer::Granted { .. } | Answer::NotHeld | Answer::Released => false,
        }
    }

    /// I4: renewing revives nothing and shortens nothing.
    fn leases_are_neither_revived_nor_cut(&self, found: &mut Found) {
        for operation in &self.operations {
            let Some(ttl_ms) = operation.left_ms() else { continue };
            let span = operation.span;
            let asked_us = operation.asked_ttl_ms().unwrap_or_default() * 1_000;
            if ttl_ms * 1_000 + (span.end_us - span.start_us) + ROUNDING_US < asked_us {
                found.add("I4", "the lease is shorter than it was asked for", operation);
            }
            if matches!(operation.answer, Answer::Granted { .. }) {
                continue;
            }
            let others: Vec<_> = self
                .operations
                .iter()
                .filter(|other| other.token == operation.token && other.id != operation.id)
                .filter(|other| other.asked_ttl_ms().is_some() && !other.is_refused())
                .filter(|other| other.span.start_us < span.end_us)
                .collect();
            let latest_end_us =
                |other: &Operation| other.span.end_us + other.asked_ttl_ms().unwrap_or_default() * 1_000;
            let latest_us = others.iter().map(|other| latest_end_us(other)).max().unwrap_or_default();
            // What is in doubt may have arrived at any time since.
            let is_certain = !others.iter().any(|other| other.is_in_doubt());
            if is_certain && span.start_us > latest_us + ROUNDING_US {
                found.add("I4", "an ended lease was revived", operation);
            }
            let told_before = others
                .iter()
                .filter(|other| other.told() == operation.told() && other.span.end_us < span.start_us);
            let certain_us =
                told_before.filter_map(|other| Some(other.span.start_us + other.left_ms()? * 1_000));
            let left_us = ttl_ms * 1_000 + ROUNDING_US;
            if certain_us.max().is_some_and(|certain_us| span.end_us + left_us < certain_us) {
                found.add("I4", "the lease was shortened", operation);
            }
        }
    }

    /// I6: no lease is longer than anybody asked for, and in the end all are over.
    fn leases_end(&self, found: &mut Found) {
        let mut longest_ms = 0;
        for operation in &self.operations {
            // What changed nothing gave nobody a lease.
            if !operation.is_refused() {
                longest_ms = longest_ms.max(operation.asked_ttl_ms().unwrap_or_default());
            }
        }
        for operation in &self.operations {
            let Some(holder) = operation.holder() else { continue };
            if holder.left_ms > longest_ms {
                found.add("I6", "nobody asked for so long a lease", operation);
            }
            let all_over_us =
                self.history.quiet_us.map(|quiet_us| quiet_us + longest_ms * 1_000 + ROUNDING_US);
            if all_over_us.is_some_and(|over_us| operation.span.start_us > over_us) {
                found.add("I6", "a lease outlives its ttl", operation);
            }
        }
    }

    /// I7: soon after the last fault, whoever holds a lock was told of it.
    fn nothing_is_left_of_what_nobody_learnt(&self, found: &mut Found) {
        let Some(quiet_us) = self.history.quiet_us else { return };
        let told: BTreeSet<_> = self.operations.iter().filter_map(|operation| operation.told()).collect();
        for look in &self.operations {
            let Some(holder) = look.holder() else { continue };
            if look.span.start_us < quiet_us + ORPHANS_END_WITHIN_US || told.contains(&holder.number) {
                continue;
            }
            let grant = self.operations.iter().find(|operation| operation.id == holder.id);
            let is_excused = grant.is_some_and(|grant| {
                // Handed to a socket whose client had gone, or pinned by another request that vanished.
                let pinned = self.operations.iter().any(|other| {
                    let may_pin = other.action != Action::Release && other.id != grant.id;
                    may_pin && other.token.is_some() && other.token == grant.token && other.is_in_doubt()
                });
                // A request that was under way, or whose client had just left, when its gateway was killed.
                let was_killed = self.history.kills.iter().any(|kill| {
                    grant.span.start_us <= kill.end_us && kill.start_us <= grant.span.end_us + CLEANING_US
                });
                grant.answer == Answer::Lost { was_written: true } || pinned || was_killed
            });
            if !is_excused {
                found.add("I7", "a lock that nobody was told of", look);
            }
        }
    }

    /// I8: a token that was released holds nothing any more, and repetitions are answered alike.
    fn released_tokens_stay_released(&self, found: &mut Found) {
        let mut first_answers: HashMap<&str, &Operation> = HashMap::new();
        for release in &self.operations {
            let Some(token) = release.token.as_deref() else { continue };
            if release.action != Action::Release || release.is_in_doubt() || release.answer == Answer::NotDone
            {
                continue;
            }
            let is_own = !token.starts_with('~');
            let first = *first_answers.entry(token).or_insert(release);
            let is_lost = self.is_lost_between(first.span.start_us, release.span.end_us);
            if is_own && !is_lost && first.answer != release.answer {
                found.add("I8", &format!("first it was {:?}", first.answer), release);
            }
            for later in &self.operations {
                let is_later = later.token == release.token && later.span.start_us > release.span.end_us;
                let is_lost = self.is_lost_between(release.span.start_us, later.span.end_us);
                if is_later
                    && (is_own || release.answer == Answer::Released)
                    && !is_lost
                    && later.told().is_some()
                {
                    found.add("I8", "a released token holds the lock", later);
                }
            }
        }
    }

    /// I9: who was refused, or told that nothing was done, holds nothing.
    fn what_was_refused_did_not_happen(&self, found: &mut Found) {
        let refused: HashMap<&str, u64> = self
            .operations
            .iter()
            .filter(|operation| operation.is_acquire() && operation.is_refused())
            .map(|operation| (operation.id.as_str(), operation.span.end_us))
            .collect();
        for look in &self.operations {
            let Some(holder) = look.holder() else { continue };
            if refused.get(holder.id.as_str()).is_some_and(|refused_us| look.span.start_us > *refused_us) {
                found.add("I9", "it holds what it was refused", look);
            }
        }
    }
}
