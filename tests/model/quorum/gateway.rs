//! The gateways: what a request does next, by what it has heard. How long it waits before it does so is open.

use super::answers::{live, own};
use super::state::{
    Answer, Attempt, By, Command, Fault, Heard, Node, Number, PER_REQUEST, Phase, Reply, Source, State,
    TOKENS, has, set_of,
};
use super::{Asked, Kind, MOST, Mutant, Rules};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Begin(Number),
    /// Enough nodes accepted: 201.
    Grant,
    /// Enough nodes hold the token with this number: 200.
    Confirm(Number),
    /// Some refused because of their fence: all are asked for a higher number.
    Propose(Number),
    /// A split vote: what may have been accepted is given back,
    Yield,
    /// and asked for once more.
    Again(Number),
    /// "Certainly nothing" if that is so, else "unknown".
    GiveUp,
    /// An answer is missing for too long: the attempt is voided,
    Void,
    /// and another one made.
    Fresh(Number),
    Renew(Number),
    Answer(Answer),
}

impl Rules {
    pub fn send(&self, state: &mut State, by: By, command: Command, is_for: impl Fn(&Node) -> bool) {
        for node in &mut state.nodes {
            if self.weight(by, node) > 0 && is_for(node) {
                node.inbox.insert(command);
            }
        }
    }

    fn propose(&self, state: &mut State, by: By, attempt: Attempt, number: Number) {
        let source = self.source(state, by);
        let keeps = self.is(Mutant::DifferentNumbersAddUp);
        for node in &mut state.nodes {
            let heard = &mut node.heard[by];
            heard.may_hold |= set_of(usize::from(number));
            if !keeps || !matches!(heard.reply, Reply::Accepted(_)) {
                heard.reply = Reply::None;
            }
        }
        let request = &mut state.requests[by];
        request.seen = request.seen.max(number);
        request.phase = Phase::Asking { attempt, number, source };
        self.send(state, by, Command::Acquire { attempt, number, source }, |_| true);
    }

    fn source(&self, state: &mut State, by: By) -> Source {
        let request = &mut state.requests[by];
        let source = by * PER_REQUEST + request.proposals;
        request.proposals += 1;
        source
    }

    /// What a request may do now.
    pub fn steps(&self, state: &State, by: By, steps: &mut Vec<Step>) {
        let request = &state.requests[by];
        let asked = &self.requests[by];
        let may_propose = request.proposals < asked.proposals;
        match (asked.kind, request.phase) {
            (kind, Phase::NotBegun) => self.beginnings(state, by, kind, steps),
            (Kind::Put, Phase::Asking { number, source, .. }) => {
                let is_in_time = !has(state.over, source);
                if is_in_time && self.count(state, by, |heard| self.is_accepted(heard.reply, number)) >= MOST
                {
                    steps.push(Step::Grant);
                }
                for node in &state.nodes {
                    if let Some(number) = own(node.heard[by].reply)
                        && (self.is_agreed(state, by, number, own) || self.adds_up_own(state, by))
                        && is_in_time
                        && !steps.contains(&Step::Confirm(number))
                    {
                        steps.push(Step::Confirm(number));
                    }
                }
                let is_decided = self.count(state, by, |heard| heard.reply != Reply::None) >= MOST;
                if may_propose && is_decided {
                    steps.extend(self.next_numbers(state, by).map(Step::Propose));
                }
                let is_granted =
                    steps.contains(&Step::Grant) || steps.iter().any(|it| matches!(it, Step::Confirm(_)));
                if asked.yields && is_decided && !is_granted {
                    steps.push(Step::Yield);
                }
                if asked.voids {
                    steps.push(Step::Void);
                }
            }
            (Kind::Put, Phase::Yielding { number, .. }) => {
                if may_propose && (!self.waits || !self.is_awaiting(state, by)) {
                    steps.push(Step::Again(request.seen.max(number) + 1));
                }
                if self.is_certain(state, by) || !self.is_awaiting(state, by) {
                    steps.push(Step::GiveUp);
                }
            }
            (Kind::Put, Phase::Voiding) => {
                let is_voided = self.count(state, by, |heard| heard.reply != Reply::None) >= MOST;
                let may_try = is_voided || self.is(Mutant::TakenBackIsProposedAgain);
                if may_try && may_propose && request.attempts < asked.attempts {
                    steps.push(Step::Fresh(request.seen + 1));
                }
                if is_voided {
                    steps.push(Step::GiveUp);
                }
            }
            (Kind::Patch, Phase::Asking { source, .. }) => {
                if let Some(number) = self.agreed(state, by, live) {
                    let enough = if self.is(Mutant::RecreatesBlindly) { 1 } else { MOST };
                    let count = self.count(state, by, |heard| live(heard.reply) == Some(number));
                    if count >= enough && !has(state.over, source) {
                        steps.push(Step::Renew(number));
                    }
                }
                if !self.is_awaiting(state, by) {
                    steps.push(Step::GiveUp);
                }
            }
            (Kind::Delete, Phase::Asking { .. }) => {
                let counts = |answer| self.count(state, by, |heard| heard.reply == Reply::Freed(answer));
                let [released, other, none] =
                    [Answer::Released, Answer::HeldByAnother, Answer::NotHeld].map(counts);
                if released + other + none >= MOST {
                    let of_those = [(released, Answer::Released), (other, Answer::HeldByAnother)];
                    let first = of_those.into_iter().find(|(count, _)| *count > 0);
                    steps.push(Step::Answer(first.map_or(Answer::NotHeld, |(_, answer)| answer)));
                }
            }
            _ => {}
        }
    }

    fn beginnings(&self, state: &State, by: By, kind: Kind, steps: &mut Vec<Step>) {
        let token = self.requests[by].token;
        match kind {
            Kind::Put => steps.extend(self.requests[by].numbers.iter().map(|number| Step::Begin(*number))),
            // A token is the client's own: it needs no answer to use it.
            Kind::Patch if !self.is_given_up(state, token) && self.has_begun(state, token) => {
                steps.push(Step::Begin(0));
            }
            Kind::Delete if self.has_begun(state, token) => steps.push(Step::Begin(0)),
            _ => {}
        }
    }

    fn has_begun(&self, state: &State, token: u8) -> bool {
        let mut all = self.requests.iter().zip(&state.requests);
        all.any(|(it, request)| it.token == token && it.kind == Kind::Put && request.phase != Phase::NotBegun)
    }

    pub fn is_given_up(&self, state: &State, token: u8) -> bool {
        let mut all = self.requests.iter().zip(&state.requests);
        all.any(|(it, request)| {
            it.token == token && it.kind == Kind::Delete && request.phase != Phase::NotBegun
        })
    }

    pub fn step(&self, state: &mut State, by: By, step: Step) {
        match (step, state.requests[by].phase) {
            (Step::Begin(number), _) => self.begin(state, by, number),
            (Step::Grant, Phase::Asking { number, source, .. }) => {
                self.grant(state, by, number, source, true)
            }
            (Step::Confirm(number), Phase::Asking { source, .. }) => {
                self.grant(state, by, number, source, false);
            }
            (Step::Propose(number), Phase::Asking { attempt, .. })
            | (Step::Again(number), Phase::Yielding { attempt, .. }) => {
                self.propose(state, by, attempt, number)
            }
            (Step::Yield, Phase::Asking { attempt, number, .. }) => {
                self.give_way(state, by, attempt, number);
            }
            (Step::Void, Phase::Asking { attempt, .. }) => {
                state.forget_replies(by);
                state.requests[by].phase = Phase::Voiding;
                self.send(state, by, Command::TakeBack { attempt }, |_| true);
            }
            (Step::Fresh(number), _) => {
                let request = &mut state.requests[by];
                let attempt = by * PER_REQUEST + request.attempts;
                request.attempts += 1;
                let is_same = self.is(Mutant::TakenBackIsProposedAgain);
                let attempt = if is_same { by * PER_REQUEST } else { attempt };
                self.propose(state, by, attempt, number);
            }
            (Step::GiveUp, _) => {
                let is_certain = self.is_certain(state, by);
                // A repair comes so long before the end of a quarantine that no request is under way at both: not so here.
                let is_short = self.restarts == 0 || self.keeps;
                let is_renewal = self.requests[by].kind == Kind::Patch && is_short;
                if is_renewal && is_certain && self.is_believed(state, by) {
                    state.fault = Some(Fault::HolderIsDenied);
                }
                state.requests[by].phase = if is_certain { Phase::Refused } else { Phase::Unknown };
            }
            (Step::Renew(number), Phase::Asking { source, .. }) => self.renewed(state, by, number, source),
            (Step::Answer(answer), _) => state.requests[by].phase = Phase::Answered(answer),
            _ => {}
        }
        if state.requests[by].is_at_rest() {
            for node in &mut state.nodes {
                node.heard[by] = Heard::default();
            }
        }
    }

    fn begin(&self, state: &mut State, by: By, number: Number) {
        let all = self.requests.iter().zip(&state.requests);
        let is_released = all.clone().any(|(it, request)| {
            it.token == self.requests[by].token && matches!(request.phase, Phase::Answered(_))
        });
        let largest = state.largest;
        let request = &mut state.requests[by];
        request.above = largest;
        request.is_late = is_released;
        request.attempts = 1;
        let attempt = by * PER_REQUEST;
        match self.requests[by].kind {
            Kind::Put => self.propose(state, by, attempt, number),
            Kind::Patch => {
                let source = self.source(state, by);
                state.requests[by].phase = Phase::Asking { attempt, number, source };
                self.send(state, by, Command::Renew { source }, |_| true);
            }
            Kind::Delete => {
                request.phase = Phase::Asking { attempt, number, source: attempt };
                self.send(state, by, Command::Release { by }, |_| true);
            }
        }
    }

    fn grant(&self, state: &mut State, by: By, number: Number, source: Source, is_new: bool) {
        let token = usize::from(self.requests[by].token);
        let bit = usize::from(number);
        let is_taken = (0..TOKENS).any(|other| other != token && has(state.granted[other], bit));
        let request = &mut state.requests[by];
        state.fault = match is_new {
            _ if request.is_late => Some(Fault::ReleasedIsGranted),
            _ if is_taken => Some(Fault::SameNumber),
            true if number <= request.above => Some(Fault::OutOfOrder),
            false if number < request.above => Some(Fault::OldIsConfirmed),
            _ => None,
        };
        state.granted[token] |= set_of(bit);
        state.largest = state.largest.max(number);
        request.phase = Phase::Holds { number, source };
    }

    fn renewed(&self, state: &mut State, by: By, number: Number, source: Source) {
        let proposer = state.nodes.iter().find_map(|node| match node.heard[by].reply {
            Reply::Live { number: it, proposer } if it == number => Some(proposer),
            _ => None,
        });
        let Some(proposer) = proposer else { return };
        let lacks = |node: &Node| match node.heard[by].reply {
            Reply::Absent => true,
            Reply::Live { number: it, .. } => it != number,
            _ => false,
        };
        let has_most = self.is_agreed(state, by, number, live);
        self.send(state, by, Command::Repair { source, number, proposer }, lacks);
        // The mutant counts what it has repaired.
        if has_most {
            self.grant(state, by, number, source, false);
        }
    }

    /// Whether its token is believed to hold by a number that was answered before it began, and could still be renewed.
    fn is_believed(&self, state: &State, by: By) -> bool {
        let Asked { token, .. } = self.requests[by];
        let above = state.requests[by].above;
        let holders =
            |number| state.locks().filter(move |lock| lock.token == token && lock.number == number).count();
        self.beliefs(state).any(|(it, number)| it == token && number <= above && holders(number) >= MOST)
    }

    /// Gives back what a node may have accepted, or may still accept.
    fn give_way(&self, state: &mut State, by: By, attempt: Attempt, number: Number) {
        let command = Command::Yield { attempt, number };
        for node in &mut state.nodes {
            let is_asked = self.weight(by, node) > 0;
            let heard = &mut node.heard[by];
            if is_asked && heard.may_hold != 0 && !self.takes_for_certain(heard.reply) {
                heard.reply = Reply::None;
                node.inbox.insert(command);
            }
        }
        state.requests[by].phase = Phase::Yielding { attempt, number };
    }
}
