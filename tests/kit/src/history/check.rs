//! The judge: promises I1 to I9, decided from the history of a run.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use super::holds::{Hold, holds};
use super::{Action, Answer, History, Holder, Operation, Span, Update};

/// How soon after the last fault nothing may be left of a grant that reached nobody.
pub(super) const ORPHANS_END_WITHIN_US: u64 = 1_000_000;

/// How long a gateway may be busy with taking back after its client has left: three seconds, and before them as long as it may be
/// cut off from its servers. If it ends meanwhile, nobody takes back.
pub(super) const CLEANING_US: u64 = 9_000_000;

/// How late a request may reach its gateway whose client has left.
const LATEST_US: u64 = 5_000_000;

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
pub(super) struct Case<'a> {
    pub(super) history: &'a History,
    pub(super) operations: Vec<&'a Operation>,
    pub(super) holds: Vec<Hold<'a>>,
}

#[derive(Default)]
pub(super) struct Found(Vec<Violation>);

impl Found {
    pub(super) fn add(&mut self, promise: &'static str, why: &str, of: &impl fmt::Debug) {
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
        let holds = if history.is_without_holds { Vec::new() } else { holds(history, &operations) };
        let case = Case { history, operations, holds };
        if case.is_shared() {
            case.of_those_who_share(&mut found);
            continue;
        }
        case.numbers_are_unique(&mut found);
        case.numbers_grow(&mut found);
        case.one_holds_at_a_time(&mut found);
        case.holders_are_believed_by_their_first_release(&mut found);
        case.leases_are_not_revived(&mut found);
        case.leases_are_not_cut(&mut found);
        case.leases_end(&mut found);
        case.nothing_is_left_of_what_nobody_learnt(&mut found);
        case.nothing_is_left_of_connections(&mut found);
        case.locks_of_connections_stay_taken_for_their_min_hold(&mut found);
        case.released_tokens_stay_released(&mut found);
        case.tokens_are_used_up_by_releases(&mut found);
        case.what_was_refused_did_not_happen(&mut found);
        case.no_lease_goes_past_its_max_hold(&mut found);
        case.released_locks_stay_taken_for_their_min_hold(&mut found);
        case.what_is_broken_is_one_grant_for_good(&mut found);
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
    pub(super) fn is_lost_between(&self, start_us: u64, end_us: u64) -> bool {
        let failovers = self.history.failovers.iter().map(|failover| &failover.lost);
        let mut losses = self.history.losses.iter().chain(failovers);
        losses.any(|loss| loss.start_us <= end_us && start_us <= loss.end_us)
    }

    /// Whether by this moment the store may have lost what an operation did.
    pub(super) fn is_forgotten(&self, operation: &Operation, until_us: u64) -> bool {
        let start_us = operation.span.start_us;
        let is_before = |loss: &Span| loss.start_us <= until_us && start_us <= loss.end_us;
        let mut failovers = self.history.failovers.iter();
        self.history.losses.iter().any(is_before)
            || failovers.any(|failover| failover.lost.start_us <= until_us && failover.forgets(operation))
    }

    /// Whether one of these may have been answered by a deposed primary and the other by its successor.
    pub(super) fn is_split_between(&self, one: &Operation, other: &Operation) -> bool {
        let failovers = self.history.failovers.iter().map(|failover| &failover.split);
        let mut splits = self.history.splits.iter().chain(failovers);
        splits.any(|split| split.overlaps(&one.span) && split.overlaps(&other.span))
    }

    /// Whether a deposed primary may have answered, which knows nothing of what its successor has granted.
    pub(super) fn may_be_of_a_deposed(&self, operation: &Operation) -> bool {
        self.is_split_between(operation, operation)
    }

    /// The request that was granted what this holder holds.
    pub(super) fn grant_of(&self, holder: &Holder) -> Option<&Operation> {
        self.request(&holder.id)
    }

    fn request(&self, id: &str) -> Option<&Operation> {
        self.operations.iter().find(|operation| operation.id == id).copied()
    }

    /// Whether an operation did nothing, and will not. With its data a store loses what it knew of voided attempts,
    /// and a copy that comes after that is granted.
    pub(super) fn did_nothing_by(&self, operation: &Operation, seen: Span) -> bool {
        let is_over = operation.span.end_us < seen.start_us;
        operation.is_refused() && is_over && !self.is_forgotten(operation, seen.end_us)
    }

    /// I1: a number is one grant of one token.
    pub(super) fn numbers_are_unique(&self, found: &mut Found) {
        let mut tokens = HashMap::new();
        let mut grants = HashMap::new();
        let mut granted = BTreeSet::new();
        for operation in &self.operations {
            if let Some(number) = operation.told()
                && *tokens.entry(number).or_insert(&operation.token) != &operation.token
            {
                found.add("I1", "two tokens were given one number", operation);
            }
            let is_granted = matches!(operation.answer, Answer::Granted { .. });
            let by_whom = operation.holder().map(|holder| &holder.id);
            if let (Some(number), Some(id)) =
                (operation.shown(), by_whom.or(is_granted.then_some(&operation.id)))
            {
                let first = *grants.entry(number).or_insert(id);
                if first != id && !(self.history.is_of_quorum && self.is_of_one_token(first, id)) {
                    found.add("I1", "two grants have one number", operation);
                }
                if is_granted && !granted.insert(number) {
                    found.add("I1", "one number was granted twice", operation);
                }
            }
        }
    }

    /// Whether these two requests have one token. By chance two gateways of a quorum propose one number, and what servers accept of
    /// both is one grant.
    fn is_of_one_token(&self, one: &str, other: &str) -> bool {
        let token = |id| self.request(id)?.token.as_ref();
        token(one).is_some() && token(one) == token(other)
    }

    /// I2: no number is smaller than one that was shown before it was asked for, and that of a new grant is larger;
    /// but of two servers that both grant, the successor's are the larger ones.
    fn numbers_grow(&self, found: &mut Found) {
        for operation in &self.operations {
            let Some(number) = operation.shown() else { continue };
            let is_granted = matches!(operation.answer, Answer::Granted { .. });
            let falls = |other: &&&Operation| {
                let Some(before) = other.shown() else { return false };
                // What comes up again with older data is no new grant.
                let is_lost = || self.is_forgotten(other, operation.span.end_us);
                let is_split = || self.is_split_between(other, operation);
                (is_granted && before >= number && !is_split())
                    || (before > number && !is_lost() && !is_split())
            };
            let mut before =
                self.operations.iter().filter(|other| other.span.end_us < operation.span.start_us);
            if let Some(other) = before.find(falls) {
                found.add("I2", &format!("{:?} was shown before", other.shown()), operation);
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
                let is_of_it = hold.covers(operation) && !self.may_be_of_a_deposed(operation);
                if is_of_it && !self.agrees(hold, operation) {
                    let promise = if operation.token.as_deref() == Some(hold.token) { "I8" } else { "I3" };
                    found.add(promise, &format!("{hold:?} is denied"), operation);
                }
            }
        }
    }

    /// Whether it gave back a place in line.
    fn may_release_a_ticket(&self, release: &Operation) -> bool {
        let had_one = |other: &Operation| {
            other.waits && other.token == release.token && other.span.start_us < release.span.end_us
        };
        release.answer == Answer::Released && self.operations.iter().any(|other| had_one(other))
    }

    /// Whether its token was released before, of which a repetition is told.
    pub(super) fn was_released_before(&self, operation: &Operation) -> bool {
        self.operations.iter().any(|other| {
            let is_earlier = other.span.start_us < operation.span.start_us && other.id != operation.id;
            other.action == Action::Release && other.token == operation.token && is_earlier
        })
    }

    /// Whether an answer that was asked for and given during a hold speaks of it.
    fn agrees(&self, hold: &Hold, operation: &Operation) -> bool {
        let is_its = operation.token.as_deref() == Some(hold.token);
        match &operation.answer {
            Answer::NotDone | Answer::Unknown | Answer::Lost { .. } => true,
            Answer::Granted { .. } | Answer::NotHeld | Answer::Released if !is_its => {
                // A repetition of a DELETE gets the answer of the first one, whoever holds the lock by now. At a quorum that may be
                // the answer of a server which lacked the lock, to a copy that too few others answered.
                let may_be_said_before = self.history.is_of_quorum && operation.answer == Answer::NotHeld;
                operation.action == Action::Release
                    && (self.was_released_before(operation)
                        || may_be_said_before
                        || self.may_release_a_ticket(operation))
            }
            Answer::AlreadyHeld { number, .. } | Answer::Renewed { number, .. } => {
                is_its && *number == hold.number
            }
            Answer::Broken { .. } => false,
            Answer::HeldByAnother(holder) => match operation.action {
                Action::Break { number } => number != Some(hold.number),
                _ => !is_its && holder.as_ref().is_none_or(|holder| holder.number == hold.number),
            },
            Answer::Held { holder, yours } => {
                let is_told_so = operation.token.is_none() || *yours == Some(is_its);
                holder.number == hold.number && is_told_so
            }
            // Tokens that the server made and that hold nothing are answered likewise.
            Answer::TokenReleased => !is_its,
            // Nobody shares it.
            Answer::HeldOtherwise { .. } => false,
            Answer::Granted { .. } | Answer::NotHeld | Answer::Released => false,
        }
    }

    /// I9: the first release of who certainly holds the lock is not told that there was nothing to release.
    pub(super) fn holders_are_believed_by_their_first_release(&self, found: &mut Found) {
        for hold in &self.holds {
            let releases = || {
                let is_of_it = |operation: &&&Operation| operation.token.as_deref() == Some(hold.token);
                self.operations.iter().filter(is_of_it).filter(|other| other.action == Action::Release)
            };
            for release in releases() {
                let span = release.span;
                let is_within = hold.from_us <= span.start_us && span.end_us <= hold.lease_until_us;
                let is_first =
                    !releases().any(|other| other.id != release.id && other.span.start_us < span.end_us);
                let is_denied = matches!(release.answer, Answer::NotHeld | Answer::HeldByAnother(_));
                let is_excused = self.may_be_of_a_deposed(release) || self.is_broken_beside(release);
                if is_within && is_first && is_denied && !is_excused {
                    found.add("I9", &format!("{hold:?} is denied"), release);
                }
            }
        }
    }

    /// Whether somebody breaks the lock meanwhile, on a quorum: then each of them may have ended the grant on too few servers to be
    /// told so, and both together on most.
    fn is_broken_beside(&self, release: &Operation) -> bool {
        let (start_us, end_us) = (release.span.start_us, release.span.end_us);
        let is_beside = |other: &&Operation| {
            matches!(other.action, Action::Break { .. })
                && other.span.start_us < end_us
                && start_us < other.span.end_us
        };
        self.history.is_of_quorum && self.operations.iter().any(is_beside)
    }

    /// I7: soon after the last fault, whoever holds a lock was told of it.
    pub(super) fn nothing_is_left_of_what_nobody_learnt(&self, found: &mut Found) {
        let Some(quiet_us) = self.history.quiet_us else { return };
        let told: BTreeSet<_> = self.operations.iter().filter_map(|operation| operation.told()).collect();
        for look in &self.operations {
            let Some(holder) = look.holder() else { continue };
            if look.span.start_us < quiet_us + ORPHANS_END_WITHIN_US || told.contains(&holder.number) {
                continue;
            }
            let is_excused = self.grant_of(holder).is_some_and(|grant| {
                // Handed to a socket whose client had gone, or pinned by another request that vanished or came late.
                let pinned = self.operations.iter().any(|other| {
                    let may_pin = other.action != Action::Release && other.id != grant.id;
                    may_pin && other.token.is_some() && other.token == grant.token && other.may_come_late()
                });
                // A request that was under way, or whose client had left before, when its gateway was killed.
                let is_lost = matches!(grant.answer, Answer::Lost { .. });
                let late_us = if is_lost { LATEST_US } else { 0 };
                let busy_until_us = grant.span.end_us + late_us + CLEANING_US;
                let was_killed = self
                    .history
                    .kills
                    .iter()
                    .any(|kill| grant.span.start_us <= kill.end_us && kill.start_us <= busy_until_us);
                // Whatever was known of it before is lost with the data, and a late copy of it was granted anew.
                let is_forgotten = self.is_lost_between(grant.span.start_us, look.span.start_us);
                grant.answer == Answer::Lost { was_written: true } || pinned || was_killed || is_forgotten
            });
            if !is_excused {
                found.add("I7", "a lock that nobody was told of", look);
            }
        }
    }

    /// I8: a token that was released holds nothing any more, and repetitions are answered alike.
    pub(super) fn released_tokens_stay_released(&self, found: &mut Found) {
        let mut first_answers: HashMap<&str, &Operation> = HashMap::new();
        for release in &self.operations {
            let Some(token) = release.token.as_deref() else { continue };
            if release.action != Action::Release || release.is_in_doubt() || release.answer == Answer::NotDone
            {
                continue;
            }
            let first = *first_answers.entry(token).or_insert(release);
            let is_lost = self.is_forgotten(first, release.span.end_us);
            // At a quorum, what servers are to agree on may reach them after another answer was given. Both say that it held nothing.
            let holds_nothing =
                |release: &Operation| matches!(release.answer, Answer::NotHeld | Answer::HeldByAnother(None));
            let is_alike = first.answer == release.answer
                || self.history.is_of_quorum && holds_nothing(first) && holds_nothing(release);
            if !token.starts_with('~') && !is_lost && !is_alike {
                found.add("I8", &format!("first it was {:?}", first.answer), release);
            }
            for later in &self.operations {
                let holds = match later.holder() {
                    // Whoever has no token is granted the lock by one that the gateway made. Where what voided an earlier one is lost,
                    // that one may have the lock later.
                    Some(holder) => self.grant_of(holder).is_some_and(|grant| {
                        let is_its = !token.starts_with('~') || grant.told() == Some(holder.number);
                        grant.token == release.token && is_its
                    }),
                    None => later.told().is_some() && later.token == release.token,
                };
                let is_later = later.span.start_us > release.span.end_us;
                if holds && is_later && !self.is_forgotten(release, later.span.end_us) {
                    found.add("I8", "a released token holds the lock", later);
                }
            }
        }
    }

    /// I8: only a release uses a token up, and one that the server made is granted once.
    pub(super) fn tokens_are_used_up_by_releases(&self, found: &mut Found) {
        for operation in &self.operations {
            let earlier = |is_such: fn(&Operation) -> bool| {
                let mut others = self.operations.iter().filter(|other| other.id != operation.id);
                others.any(|other| {
                    other.token == operation.token
                        && other.span.start_us < operation.span.end_us
                        && is_such(other)
                })
            };
            let is_made = operation.token.as_deref().is_some_and(|token| token.starts_with('~'));
            // A connection that ends may leave the lock kept for its `min_hold`, and its token released.
            let was_released =
                || earlier(|other| other.action == Action::Release || other.ended_us.is_some());
            if operation.answer == Answer::TokenReleased && !is_made && !was_released() {
                found.add("I8", "nobody released the token", operation);
            }
            let is_new = matches!(operation.answer, Answer::Granted { .. });
            if is_new && is_made && earlier(Operation::is_acquire) {
                found.add("I8", "a token of the server's was granted again", operation);
            }
        }
    }

    /// I9: who was refused, or told that nothing was done, holds nothing.
    pub(super) fn what_was_refused_did_not_happen(&self, found: &mut Found) {
        for look in &self.operations {
            let grant = look.holder().and_then(|holder| self.grant_of(holder));
            if grant.is_some_and(|grant| self.did_nothing_by(grant, look.span)) {
                found.add("I9", "it holds what it was refused", look);
            }
        }
    }
}
