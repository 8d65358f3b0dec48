//! What may happen next.

use stateright::Model;

use super::gateway::Fate;
use super::rules::{Mutant, Rules};
use super::state::{
    Attempt, Command, Due, GATEWAYS, Gate, Gateway, HOLDER, Lock, Phase, Process, Request, State, TOKENS,
    Token, Wrong,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Ask(Request, Fate),
    Look(Request, Fate),
    SendAgain(Request, Fate),
    PutBack(Request, Fate),
    EndWait(Request, Fate),
    Leave(Request),
    TakeBack(Attempt),
    TakeBackLate(Attempt),
    HearAnswer(Request),
    HearOffer(Attempt),
    HearMove(Attempt),
    LoseOffer(Attempt),
    LoseMove(Attempt),
    Beat(Gateway),
    BeatUnanswered(Gateway),
    BeatLate(Gateway),
    Run(Command),
    Lapse,
    /// The key of a lapsed offer is gone too.
    ForgetOffer,
    Silence(Gateway),
    LosePlace(Token),
    Release(Token),
    Expire,
    /// A lease that was renewed reaches the end that it had before.
    OutliveItsEnd,
    /// The lock is struck off the list, as nobody has looked for long.
    StrikeOff,
    Kill(Gateway),
    OnlyBeat(Gateway),
    Flush,
    Failover(Token),
}

impl Rules {
    /// What is done at once where nothing fails.
    pub fn prompt(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(state.move_hints.iter().map(Action::HearMove));
        for request in self.requests(None) {
            let wait = &state.waits[request];
            if !wait.is_waiting() || !self.runs(state, request) {
                continue;
            }
            if wait.answer.is_some() {
                actions.push(Action::HearAnswer(request));
            } else if wait.is_in_doubt {
                actions.push(Action::SendAgain(request, Fate::Answered));
            } else if wait.puts_back {
                actions.push(Action::PutBack(request, Fate::Answered));
            }
        }
        actions.extend(state.errands.iter().map(Action::TakeBack));
        actions.extend(state.offer_hints.iter().map(Action::HearOffer));
        actions.extend((0..GATEWAYS).filter(|at| self.beats(state, *at)).map(Action::Beat));
    }

    fn beats(&self, state: &State, gateway: Gateway) -> bool {
        state.processes[gateway] != Process::Killed
            && self.requests(Some(gateway)).any(|request| state.waits[request].is_waiting())
    }

    pub fn next_prompt(&self, state: &State) -> Option<State> {
        let mut actions = Vec::new();
        self.prompt(state, &mut actions);
        actions.into_iter().find_map(|action| self.next_state(state, action))
    }

    pub fn requests_and_faults(&self, state: &State, actions: &mut Vec<Action>) {
        let left = state.left;
        let mut doubtful = |is_prompt: bool, action: fn(Request, Fate) -> Action, request| {
            if !is_prompt {
                actions.push(action(request, Fate::Answered));
            }
            if left.doubts > 0 {
                actions.extend([Fate::Unanswered, Fate::Late].map(|fate| action(request, fate)));
            }
            if left.slow_answers > 0 {
                actions.push(action(request, Fate::Slow));
            }
        };
        for request in self.requests(None).filter(|request| self.runs(state, *request)) {
            let wait = &state.waits[request];
            if wait.phase == Phase::NotSent && self.may_ask(state, request) {
                doubtful(false, Action::Ask, request);
            }
            if wait.answer.is_some() {
                continue;
            }
            if wait.is_waiting() && wait.is_in_doubt {
                doubtful(true, Action::SendAgain, request);
            } else if wait.is_waiting() && wait.puts_back {
                doubtful(true, Action::PutBack, request);
            }
            if wait.is_idle() {
                doubtful(false, Action::Look, request);
            }
            if wait.phase == Phase::Waiting && left.ends > 0 {
                doubtful(false, Action::EndWait, request);
            }
        }
        for request in self.requests(None).filter(|request| self.runs(state, *request)) {
            if state.waits[request].is_waiting() && left.leaves > 0 {
                actions.push(Action::Leave(request));
            }
        }
        if left.lost_hints > 0 {
            actions.extend(state.offer_hints.iter().map(Action::LoseOffer));
            actions.extend(state.move_hints.iter().map(Action::LoseMove));
        }
        if left.doubts > 0 {
            actions.extend(state.errands.iter().map(Action::TakeBackLate));
        }
        actions.extend(state.commands.iter().copied().map(Action::Run));
        if left.flushes > 0 {
            actions.push(Action::Flush);
        }
        for token in 0..TOKENS {
            if state.seats[token].is_some() && left.failovers > 0 {
                actions.push(Action::Failover(token));
            }
        }
        for gateway in 0..GATEWAYS {
            if state.processes[gateway] != Process::Runs {
                continue;
            }
            if left.kills > 0 {
                actions.push(Action::Kill(gateway));
            }
            if left.only_beats > 0 {
                actions.push(Action::OnlyBeat(gateway));
            }
            if left.lost_beats > 0 {
                actions.push(Action::BeatUnanswered(gateway));
                actions.push(Action::BeatLate(gateway));
            }
        }
    }

    fn may_ask(&self, state: &State, request: Request) -> bool {
        let token = self.askers[request].token;
        let earlier = &self.askers[..request];
        let is_retry = earlier.iter().any(|other| other.token == token);
        let has_begun = |other: Request| state.waits[other].phase != Phase::NotSent;
        let is_first =
            |other: Request| !self.askers[..other].iter().any(|a| a.token == self.askers[other].token);
        if is_retry {
            (0..request).any(|other| self.askers[other].token == token && has_begun(other))
        } else {
            (0..request).all(|other| !is_first(other) || has_begun(other))
        }
    }

    pub fn releases(&self, state: &State, actions: &mut Vec<Action>) {
        if let Lock::Held(held) = state.lock {
            if self.is_believed(state, held.token) {
                actions.push(Action::Release(held.token));
            }
            if state.left.expiries > 0 {
                actions.push(Action::Expire);
            }
            if state.left.renewals > 0 && state.due == Due::AtItsEnd {
                actions.push(Action::OutliveItsEnd);
            }
        }
        for token in 0..TOKENS {
            let is_waiting = self.requests(None).any(|request| {
                self.askers[request].token == token && state.waits[request].phase != Phase::NotSent
            });
            if state.left.deletes > 0 && is_waiting && !state.freed[token] && !self.made {
                actions.push(Action::Release(token));
            }
        }
    }

    /// Time passes where nothing prompt is left to do, or where there is a delay.
    pub fn time(&self, state: &State, actions: &mut Vec<Action>) {
        let may_delay = state.left.delays > 0;
        let is_calm = may_delay || self.next_prompt(state).is_none();
        if let Lock::Offered(offer) = state.lock
            && is_calm
        {
            actions.push(if offer.is_lapsed { Action::ForgetOffer } else { Action::Lapse });
        }
        for gateway in 0..GATEWAYS {
            let is_heard = state.gates[gateway] >= Gate::Heard;
            if is_heard && (may_delay || !self.beats(state, gateway)) {
                actions.push(Action::Silence(gateway));
            }
        }
        let mut beating = (0..GATEWAYS).filter(|at| self.beats(state, *at));
        if state.due == Due::Now && beating.all(|at| state.gates[at] == Gate::Silent) {
            actions.push(Action::StrikeOff);
        }
        for (token, seat) in state.seats.iter().enumerate() {
            if is_calm && seat.is_some_and(|seat| !seat.is_present()) {
                actions.push(Action::LosePlace(token));
            }
        }
    }

    pub fn step(&self, state: &mut State, action: Action) -> Option<()> {
        match action {
            Action::Ask(request, fate) => self.ask(state, request, fate),
            Action::Look(request, fate) => self.look_now(state, request, fate),
            Action::SendAgain(request, fate) => self.send_again(state, request, fate)?,
            Action::PutBack(request, fate) => self.put_back(state, request, fate),
            Action::EndWait(request, fate) => {
                state.left.ends -= 1;
                self.end_wait(state, request, fate)?;
            }
            Action::Leave(request) => {
                state.left.leaves -= 1;
                self.leave(state, request);
            }
            Action::TakeBack(attempt) => {
                self.take_back(state, attempt);
                state.errands.remove(attempt);
            }
            Action::TakeBackLate(attempt) => {
                state.left.doubts -= 1;
                let command = Command::TakeBack(attempt);
                let at = state.commands.binary_search(&command).err()?;
                state.commands.insert(at, command);
            }
            Action::HearAnswer(request) => self.hear_answer(state, request)?,
            Action::HearOffer(attempt) => self.hear_offer(state, attempt),
            Action::HearMove(attempt) => self.hear_move(state, attempt),
            Action::LoseOffer(attempt) => {
                state.left.lost_hints -= 1;
                state.offer_hints.remove(attempt);
            }
            Action::LoseMove(attempt) => {
                state.left.lost_hints -= 1;
                state.move_hints.remove(attempt);
                if !self.has(Mutant::LostMoveIsNotNoticed) {
                    self.put_all_back(state, self.gateway_of(attempt));
                }
            }
            Action::Beat(gateway) => self.beat_and_look(state, gateway),
            Action::BeatUnanswered(gateway) => {
                state.left.lost_beats -= 1;
                self.beat(state, gateway, false);
            }
            Action::BeatLate(gateway) => {
                state.left.lost_beats -= 1;
                let command = Command::Beat(gateway);
                let at = state.commands.binary_search(&command).err()?;
                state.commands.insert(at, command);
            }
            Action::Run(command) => {
                state.commands.retain(|other| *other != command);
                self.run(state, command);
            }
            Action::Lapse => self.lapse(state)?,
            Action::ForgetOffer => {
                state.lock = Lock::Free;
                for gate in &mut state.gates {
                    *gate = match *gate {
                        Gate::Heard => Gate::Silent,
                        other => other,
                    };
                }
            }
            Action::Silence(gateway) => {
                if self.beats(state, gateway) {
                    state.left.delays -= 1;
                }
                state.gates[gateway] = Gate::Silent;
            }
            Action::LosePlace(token) => {
                if self.next_prompt(state).is_some() {
                    state.left.delays -= 1;
                }
                state.seats[token] = None;
                state.first_places[token] = None;
            }
            Action::Release(token) => {
                let holds = matches!(state.lock, Lock::Held(held) if held.token == token)
                    && self.is_believed(state, token);
                if !holds {
                    state.left.deletes -= 1;
                }
                if token == HOLDER {
                    self.release_holder(state);
                } else {
                    self.release(state, token);
                }
                self.end_holding(state, token);
            }
            Action::Expire => {
                state.left.expiries -= 1;
                let Lock::Held(held) = state.lock else { return None };
                state.lock = Lock::Free;
                if state.due == Due::AtItsEnd {
                    state.due = Due::Now;
                }
                self.end_holding(state, held.token);
            }
            Action::OutliveItsEnd => {
                state.left.renewals -= 1;
                state.due = Due::Now;
            }
            Action::StrikeOff => state.due = Due::Never,
            Action::Kill(gateway) => {
                state.left.kills -= 1;
                self.kill(state, gateway);
            }
            Action::OnlyBeat(gateway) => {
                state.left.only_beats -= 1;
                state.processes[gateway] = Process::OnlyBeats;
                state.errands =
                    state.errands.iter().filter(|attempt| self.gateway_of(*attempt) != gateway).collect();
                state.offer_hints =
                    state.offer_hints.iter().filter(|attempt| self.gateway_of(*attempt) != gateway).collect();
                state.move_hints =
                    state.move_hints.iter().filter(|attempt| self.gateway_of(*attempt) != gateway).collect();
            }
            Action::Flush => {
                state.left.flushes -= 1;
                self.flush(state);
            }
            Action::Failover(token) => {
                state.left.failovers -= 1;
                state.seats[token] = None;
                state.first_places[token] = None;
                for gateway in 0..GATEWAYS {
                    if !self.has(Mutant::FailoverIsNotNoticed) {
                        self.put_all_back(state, gateway);
                    }
                }
            }
        }
        Some(())
    }

    fn lapse(&self, state: &mut State) -> Option<()> {
        let Lock::Offered(mut offer) = state.lock else { return None };
        if self.next_prompt(state).is_some() {
            state.left.delays = state.left.delays.checked_sub(1)?;
        } else if let Some(attempt) = offer.attempt {
            match state.processes[self.gateway_of(attempt)] {
                Process::Runs => state.wrong = Some(Wrong::NeedlessLapse),
                Process::Killed if self.is_strict => match state.lapses_left.checked_sub(1) {
                    Some(left) => state.lapses_left = left,
                    None => state.wrong = Some(Wrong::ManyLapses),
                },
                _ => {}
            }
        }
        offer.is_lapsed = true;
        state.lock = Lock::Offered(offer);
        Some(())
    }

    fn end_holding(&self, state: &mut State, token: Token) {
        for request in self.requests(None) {
            let wait = &mut state.waits[request];
            if self.askers[request].token == token {
                wait.lose_grant();
            }
        }
    }
}

/// What the fate of a command costs.
pub fn spend(state: &mut State, action: Action) -> Option<()> {
    let (Action::Ask(_, fate)
    | Action::Look(_, fate)
    | Action::SendAgain(_, fate)
    | Action::PutBack(_, fate)
    | Action::EndWait(_, fate)) = action
    else {
        return Some(());
    };
    let left = match fate {
        Fate::Answered => return Some(()),
        Fate::Unanswered | Fate::Late => &mut state.left.doubts,
        Fate::Slow => &mut state.left.slow_answers,
    };
    *left = left.checked_sub(1)?;
    Some(())
}
