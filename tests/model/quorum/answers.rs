//! What a gateway makes of the answers to a request.

use super::node::by as sender;
use super::state::{
    By, Command, Heard, Node, Number, PER_REQUEST, Phase, Reply, Role, Set, State, has, set_of,
};
use super::{FEWER, Kind, MOST, Mutant, Rules};

impl Rules {
    /// How often the gateway of this request counts a node.
    pub fn weight(&self, by: By, node: &Node) -> usize {
        let request = &self.requests[by];
        let is_misled = request.is_misled && self.is(Mutant::OneNodeByTwoNames);
        match node.role {
            Role::Member => 1,
            Role::Former => usize::from(request.epoch == 1),
            Role::Added => usize::from(request.epoch == 2),
            Role::Doubled => 1 + usize::from(is_misled),
            Role::Hidden => 1 - usize::from(is_misled),
        }
    }

    pub fn count(&self, state: &State, by: By, counts: impl Fn(&Heard) -> bool) -> usize {
        let nodes = state.nodes.iter().filter(|node| counts(&node.heard[by]));
        nodes.map(|node| self.weight(by, node)).sum()
    }

    /// The number that most nodes named, by these answers.
    pub fn agreed(
        &self,
        state: &State,
        by: By,
        number_of: impl Fn(Reply) -> Option<Number>,
    ) -> Option<Number> {
        let numbers = state.nodes.iter().filter_map(|node| number_of(node.heard[by].reply));
        numbers.max_by_key(|number| {
            (self.count(state, by, |heard| number_of(heard.reply) == Some(*number)), *number)
        })
    }

    pub fn is_agreed(
        &self,
        state: &State,
        by: By,
        number: Number,
        of: impl Fn(Reply) -> Option<Number>,
    ) -> bool {
        self.count(state, by, |heard| of(heard.reply) == Some(number)) >= MOST
    }

    pub fn is_accepted(&self, reply: Reply, number: Number) -> bool {
        match reply {
            Reply::Accepted(it) => it == number || self.is(Mutant::DifferentNumbersAddUp),
            _ => false,
        }
    }

    pub fn adds_up_own(&self, state: &State, by: By) -> bool {
        let is_own = |heard: &Heard| own(heard.reply).is_some();
        self.is(Mutant::DifferentOwnAddUp) && self.count(state, by, is_own) >= MOST
    }

    /// Above as many fences as are needed, or above all of them.
    pub fn next_numbers(&self, state: &State, by: By) -> impl Iterator<Item = Number> {
        let low = |node: &Node| match node.heard[by].reply {
            Reply::Low(fence) => Some(fence),
            _ => None,
        };
        let mut lows: Vec<_> = state.nodes.iter().filter_map(low).collect();
        lows.sort_unstable();
        lows.dedup();
        lows.into_iter().map(|fence| fence + 1)
    }

    /// The mutant believes a refusal, although an older proposal may be on its way.
    pub fn takes_for_certain(&self, reply: Reply) -> bool {
        self.is(Mutant::RefusalIsCertain) && matches!(reply, Reply::Held(..) | Reply::Low(_))
    }

    pub fn is_certain(&self, state: &State, by: By) -> bool {
        let voided = |heard: &Heard| heard.reply == Reply::TookBack { has_deleted: true };
        let ignores_pin = self.is(Mutant::YieldIgnoresThePin);
        match (self.requests[by].kind, state.requests[by].phase) {
            (Kind::Put, Phase::Voiding) => {
                let enough = if self.is(Mutant::AnyTakenBackIsUndone) { 1 } else { FEWER };
                self.count(state, by, voided) >= enough
            }
            (Kind::Put, _) => {
                let holds_nothing = |heard: &Heard| {
                    let is_answered = heard.may_hold == 0 || self.takes_for_certain(heard.reply);
                    is_answered
                        && match heard.reply {
                            Reply::Yielded { is_pinned } => !is_pinned || ignores_pin,
                            Reply::Low(_) | Reply::Held(..) | Reply::Voided | Reply::Out => true,
                            _ => false,
                        }
                };
                self.count(state, by, holds_nothing) >= FEWER
            }
            // No request lasts as long as a quarantine.
            (Kind::Patch, Phase::Asking { source, .. }) if has(state.over, source) => false,
            (Kind::Patch, _) => {
                let lacks = |heard: &Heard| match heard.reply {
                    Reply::Absent | Reply::Other => true,
                    Reply::Out => self.is(Mutant::OutHoldsNothing),
                    _ => false,
                };
                self.count(state, by, lacks) >= FEWER
            }
            (Kind::Delete, _) => false,
        }
    }

    pub fn is_awaiting(&self, state: &State, by: By) -> bool {
        let mut commands = state.nodes.iter().flat_map(|node| &node.inbox);
        commands.any(|command| sender(*command) == by && self.is_awaited(state, *command))
    }

    /// Whether somebody would make something of the answer.
    pub fn is_awaited(&self, state: &State, command: Command) -> bool {
        match (command, state.requests[sender(command)].phase) {
            (Command::Acquire { .. }, Phase::Asking { .. } | Phase::Yielding { .. }) => true,
            (Command::Yield { number, .. }, Phase::Yielding { number: it, .. }) => number == it,
            (Command::TakeBack { attempt }, Phase::Voiding) => {
                attempt % PER_REQUEST + 1 == state.requests[sender(command)].attempts
            }
            (Command::Release { .. } | Command::Renew { .. }, Phase::Asking { .. }) => true,
            _ => false,
        }
    }

    pub fn hear(&self, state: &mut State, at: usize, command: Command, reply: Reply) {
        let by = sender(command);
        let phase = state.requests[by].phase;
        let heard = &mut state.nodes[at].heard[by];
        match (command, phase) {
            (Command::Acquire { number, .. }, _) => {
                if !matches!(reply, Reply::Accepted(_)) {
                    heard.may_hold &= !set_of(usize::from(number));
                }
                let is_current = matches!(phase, Phase::Asking { number: it, .. } if it == number);
                if is_current {
                    heard.reply = reply;
                }
            }
            (Command::Yield { number, .. }, _) => {
                heard.may_hold &= !up_to(number);
                heard.reply = reply;
            }
            (Command::TakeBack { .. }, _) => *heard = Heard { reply, may_hold: 0 },
            _ => heard.reply = reply,
        }
        if let Reply::Low(fence) = reply {
            let request = &mut state.requests[by];
            request.seen = request.seen.max(fence);
        }
        // Somebody has released this token: that is completed, and the client told.
        if reply == Reply::WasReleased {
            state.requests[by].phase = Phase::Unknown;
            self.send(state, by, Command::Release { by }, |_| true);
            for node in &mut state.nodes {
                node.heard[by] = Heard::default();
            }
        }
    }
}

pub fn own(reply: Reply) -> Option<Number> {
    match reply {
        Reply::Own(number) => Some(number),
        _ => None,
    }
}

pub fn live(reply: Reply) -> Option<Number> {
    match reply {
        Reply::Live { number, .. } => Some(number),
        _ => None,
    }
}

/// All numbers up to this one.
fn up_to(number: Number) -> Set {
    (set_of(usize::from(number)) << 1) - 1
}
