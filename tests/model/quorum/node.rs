//! The scripts: what a node does when a command reaches it.

use super::state::{
    Answer, Attempt, By, Command, Lock, Node, Number, PER_REQUEST, Reply, Set, Source, State, Token, has,
    set_of,
};
use super::{Mutant, Rules};

impl Rules {
    /// Returns the answer, whether or not it arrives.
    pub fn run(&self, state: &mut State, at: usize, command: Command) -> Reply {
        let by = by(command);
        let epoch = self.requests[by].epoch;
        let over = state.over;
        let node = &mut state.nodes[at];
        let is_in_epoch = node.epoch == epoch || self.is(Mutant::EpochIsNotChecked);
        if !node.is_good() || !is_in_epoch {
            return Reply::Out;
        }
        let token = self.requests[by].token;
        match command {
            Command::Acquire { attempt, number, source } => {
                self.acquire(node, token, attempt, number, source)
            }
            Command::Yield { attempt, number } => self.yield_up(node, token, attempt, number),
            Command::TakeBack { attempt } => self.take_back(node, token, attempt),
            Command::Release { .. } => self.release(node, token),
            Command::Renew { source } => self.renew(node, token, source),
            Command::Repair { source, number, proposer } => {
                let is_late = has(over, source) && !self.is(Mutant::RepairHasNoDeadline);
                let is_below = node.fence > number;
                if !is_late && self.repair(node, token, number, proposer) {
                    state.was_repaired_below |= is_below;
                }
                Reply::None
            }
        }
    }

    fn acquire(
        &self,
        node: &mut Node,
        token: Token,
        attempt: Attempt,
        number: Number,
        source: Source,
    ) -> Reply {
        if node.marks[usize::from(token)].is_some() {
            return Reply::WasReleased;
        }
        if has(node.voided, attempt) {
            return Reply::Voided;
        }
        if !self.is(Mutant::SupersededMayStillPin) {
            node.voided |= superseded_by(attempt);
        }
        if let Some(lock) = &mut node.lock {
            if lock.token != token {
                return Reply::Held(lock.token, lock.number);
            }
            let is_ours = lock.attempt.is_some_and(|it| it == attempt || has(superseded_by(attempt), it));
            if !is_ours && !self.is(Mutant::RepetitionOverwrites) {
                if !self.is(Mutant::RepetitionDoesNotPin) {
                    lock.attempt = None;
                }
                lock.times |= set_of(source);
                return Reply::Own(lock.number);
            }
        }
        let is_low = number < node.fence || number == node.fence && !self.is(Mutant::AcceptsTheSame);
        if is_low {
            return Reply::Low(node.fence);
        }
        let by = attempt / PER_REQUEST;
        node.fence = number;
        node.lock = Some(Lock { token, number, attempt: Some(attempt), by, times: set_of(source) });
        Reply::Accepted(number)
    }

    fn yield_up(&self, node: &mut Node, token: Token, attempt: Attempt, number: Number) -> Reply {
        let lock = node.lock.filter(|lock| lock.token == token);
        let matches = |lock: Lock| {
            let is_older = lock.number <= number || self.is(Mutant::YieldIgnoresNumber);
            lock.attempt == Some(attempt) && is_older
        };
        if lock.is_some_and(matches) {
            node.lock = None;
        }
        if !self.is(Mutant::YieldDoesNotBurn) {
            node.fence = node.fence.max(number);
        }
        let is_pinned = |lock: Lock| {
            let is_its =
                lock.number == number || lock.number < number && !self.is(Mutant::YieldIgnoresAnOlderPin);
            lock.attempt.is_none() && is_its
        };
        Reply::Yielded { is_pinned: lock.is_some_and(is_pinned) }
    }

    fn take_back(&self, node: &mut Node, token: Token, attempt: Attempt) -> Reply {
        let matches = |lock: Lock| {
            let is_its = lock.attempt == Some(attempt) || self.is(Mutant::TakeBackIgnoresAttempt);
            lock.token == token && is_its
        };
        let has_deleted = node.lock.is_some_and(matches);
        if has_deleted {
            node.lock = None;
        }
        if !self.is(Mutant::TakeBackDoesNotVoid) {
            node.voided |= set_of(attempt);
        }
        Reply::TookBack { has_deleted }
    }

    fn release(&self, node: &mut Node, token: Token) -> Reply {
        let mark = &mut node.marks[usize::from(token)];
        if let Some(answer) = *mark {
            return Reply::Freed(answer);
        }
        let answer = match node.lock {
            None => Answer::NotHeld,
            Some(lock) if lock.token != token => Answer::HeldByAnother,
            Some(_) => Answer::Released,
        };
        if answer == Answer::Released {
            node.lock = None;
        }
        if answer == Answer::Released || !self.is(Mutant::ReleaseMarksOnlySuccess) {
            *mark = Some(answer);
        }
        Reply::Freed(answer)
    }

    fn renew(&self, node: &mut Node, token: Token, source: Source) -> Reply {
        match &mut node.lock {
            None => Reply::Absent,
            Some(lock) if lock.token != token => Reply::Other,
            Some(lock) => {
                lock.attempt = None;
                lock.times |= set_of(source);
                Reply::Live { number: lock.number, proposer: lock.by }
            }
        }
    }

    fn repair(&self, node: &mut Node, token: Token, number: Number, proposer: By) -> bool {
        let is_marked = node.marks[usize::from(token)].is_some();
        let is_open = node.lock.is_none_or(|lock| lock.token == token);
        let is_held_back = node.fence > number && self.is(Mutant::RepairNeedsTheFence);
        if is_marked && !self.is(Mutant::RepairIgnoresTheMark) || !is_open || is_held_back {
            return false;
        }
        // A gateway has it replaced once the others have burnt it: then it is as if it were not there.
        let has_larger = node.lock.is_some_and(|lock| lock.number > number);
        if has_larger && !self.is(Mutant::RepairReplacesAtAnyTime) {
            return false;
        }
        // How long its lease is relative to the others' makes no difference: who counts on it asks first.
        node.lock = Some(Lock { token, number, attempt: None, by: proposer, times: 0 });
        node.fence = node.fence.max(number);
        true
    }
}

/// Who sent it.
pub fn by(command: Command) -> By {
    match command {
        Command::Acquire { attempt, .. } | Command::Yield { attempt, .. } | Command::TakeBack { attempt } => {
            attempt / PER_REQUEST
        }
        Command::Release { by } => by,
        Command::Renew { source } | Command::Repair { source, .. } => source / PER_REQUEST,
    }
}

/// The attempts of the same request that came before.
fn superseded_by(attempt: Attempt) -> Set {
    let first = attempt - attempt % PER_REQUEST;
    set_of(attempt) - set_of(first)
}
