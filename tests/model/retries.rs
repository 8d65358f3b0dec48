//! The retry rules, as `service` and the store's scripts follow them on one lock: what a client, a proxy, a rival and
//! the network may do, and what must hold whatever they do, in every order.

use std::collections::BTreeSet;

use stateright::{Checker, HasDiscoveries, Model, Property};

mod rules;

use rules::{
    ALL_PUTS, ATTEMPTS, Command, DUPLICATE, Delete, Lock, Mutant, OWN_PUTS, OWN_TOKEN, Outcome, Party, Patch,
    Put, RIVAL, Rules, State, Token, Tokens, put_of,
};

const BELIEF: &str = "who believes that it holds, holds";
const FREED: &str = "after an answered DELETE the token never holds again";
const ORPHAN: &str = "a client that left before it was answered leaves no lock";
const AGREEMENT: &str = "all answered DELETEs of a client's own token agree";
const DENIAL: &str = "a release that was answered \"not held\" did not itself release";

#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Put(usize),
    Patch(Token),
    Delete(Token),
    /// A command runs, and its answer arrives, or is lost.
    Run {
        command: Command,
        is_answered: bool,
    },
    SendAgain(Command),
    StopWaiting(usize),
    WriteAnswer(usize),
    Leave(usize),
    Expire,
    RivalTakes,
    RivalReleases,
}

impl Rules {
    fn client_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let has_begun = state.puts[0] != Put::NotSent;
        for put in 0..ALL_PUTS {
            let is_in_play = put < self.puts || put == DUPLICATE && self.has_duplicate;
            // The client's PUTs are alike, so they need only one order; a proxy has nothing to repeat before.
            if is_in_play && (put == 0 || has_begun) && state.puts[put] == Put::NotSent {
                actions.push(Action::Put(put));
            }
        }
        let mut tokens: BTreeSet<Token> = state.told().collect();
        tokens.extend(state.deletes.iter().flatten().map(|delete| delete.token));
        // A token of its own needs no answer to be used.
        if self.tokens == Tokens::Own && has_begun {
            tokens.insert(OWN_TOKEN);
        }
        for token in tokens {
            if state.deletes[..self.deletes].contains(&None) {
                actions.push(Action::Delete(token));
            }
            if self.has_patch && state.patch.is_none() && !state.is_given_up(token) {
                actions.push(Action::Patch(token));
            }
        }
    }

    fn gateway_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (number, put) in state.puts.iter().enumerate() {
            match *put {
                Put::Acquiring(attempt) => {
                    let is_late = |copy| state.commands.contains(&Command::Acquire { attempt, copy });
                    // The mutant sends one more copy beside a late one, not endlessly many.
                    if self.mutant != Mutant::DoubtSendsAgain || is_late(0) && !is_late(1) {
                        actions.push(Action::StopWaiting(number));
                    }
                    actions.push(Action::Leave(number));
                }
                Put::Voiding(_) => actions.push(Action::StopWaiting(number)),
                Put::Granting { .. } => {
                    actions.extend([Action::WriteAnswer(number), Action::Leave(number)]);
                }
                Put::NotSent | Put::Holds(_) | Put::HoldsNothing | Put::Unanswered => {}
            }
        }
        if state.repeats_left > 0 {
            actions.extend(self.repeatable(state).map(Action::SendAgain));
        }
    }

    /// What somebody waits for is sent again, whether or not its first copy has run, and so is what is taken back in
    /// the background. An acquire never is.
    fn repeatable(&self, state: &State) -> impl Iterator<Item = Command> {
        let takes_back = (0..).take(ATTEMPTS).map(|attempt| Command::TakeBack { attempt, copy: 1 });
        let releases = (0..self.deletes).map(|delete| Command::Release { delete, copy: 1 });
        takes_back.chain(releases).chain([Command::Renew { copy: 1 }]).filter(|&command| match command {
            Command::TakeBack { attempt, .. } => {
                state.is_awaited(command) || state.commands.contains(&Command::TakeBack { attempt, copy: 0 })
            }
            _ => state.is_awaited(command),
        })
    }
}

impl State {
    /// Whether somebody waits for the answer to this command.
    fn is_awaited(&self, command: Command) -> bool {
        match command {
            Command::Acquire { attempt, .. } => self.puts[put_of(attempt)] == Put::Acquiring(attempt),
            Command::TakeBack { attempt, .. } => self.puts[put_of(attempt)] == Put::Voiding(attempt),
            Command::Renew { .. } => self.patch.is_some_and(|patch| patch.holds.is_none()),
            Command::Release { delete, .. } => {
                self.deletes[delete].is_some_and(|delete| delete.answer.is_none())
            }
        }
    }

    /// The tokens of which the client was told that they hold.
    fn told(&self) -> impl Iterator<Item = Token> {
        let by_put = self.puts[..OWN_PUTS].iter().filter_map(|put| match put {
            Put::Holds(token) => Some(*token),
            _ => None,
        });
        by_put.chain(self.patch.filter(|patch| patch.holds == Some(true)).map(|patch| patch.token))
    }

    fn is_held_by_rival(&self) -> bool {
        self.lock.is_some_and(|lock| lock.token == RIVAL)
    }

    fn is_used_and_pinned_by(&self, party: Party) -> bool {
        self.lock.is_some_and(|lock| lock.pinned_by == Some(party)) && self.told().next().is_some()
    }

    fn is_given_up(&self, token: Token) -> bool {
        self.deletes.iter().flatten().any(|delete| delete.token == token)
    }

    /// The tokens by which the client believes that it holds, or is about to: it has not given them up.
    fn beliefs(&self) -> impl Iterator<Item = Token> {
        let soon = self.puts[..OWN_PUTS].iter().filter_map(|put| match put {
            Put::Granting { token, .. } => Some(*token),
            _ => None,
        });
        self.told().chain(soon).filter(|token| !self.is_given_up(*token))
    }

    /// The lock, where nothing is under way any more and the client does not know that it holds.
    fn left_behind(&self) -> Option<Lock> {
        let is_over =
            |put: &Put| matches!(put, Put::NotSent | Put::Holds(_) | Put::HoldsNothing | Put::Unanswered);
        let is_at_rest = self.commands.is_empty() && self.puts.iter().all(is_over);
        let is_used = |lock: &Lock| lock.token == RIVAL || self.beliefs().any(|token| token == lock.token);
        self.lock.filter(|lock| is_at_rest && !is_used(lock))
    }

    /// What no gateway can see ends at its ttl or by a `DELETE`, and is no fault: a grant whose answer a proxy took,
    /// and a grant that a second request pinned. The client of neither may have been told that it holds nothing.
    fn is_excused(&self, lock: Lock) -> bool {
        let was_denied = |party| matches!(party, Party::Put(put) if self.puts[put] == Put::HoldsNothing);
        match (lock.granted_to, lock.pinned_by) {
            (Party::Put(DUPLICATE), None) => self.puts[DUPLICATE] == Put::Holds(lock.token),
            // A late copy of a PATCH may pin a grant that is younger than the answer to the other copy.
            (granted, Some(pinned)) => granted != pinned && !was_denied(granted) && !was_denied(pinned),
            _ => false,
        }
    }

    /// A lease ends for whoever was told of it too: clients and gateways count it from before they asked.
    fn expire(&mut self) {
        self.lock = None;
        for put in &mut self.puts {
            if matches!(put, Put::Holds(_) | Put::Granting { .. }) {
                *put = Put::HoldsNothing;
            }
        }
        if let Some(patch) = &mut self.patch {
            patch.holds = patch.holds.map(|_| false);
        }
    }
}

impl Model for Rules {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            lock: None,
            freed: None,
            voided: [false; ATTEMPTS],
            commands: BTreeSet::new(),
            repeats_left: self.repeats,
            puts: [Put::NotSent; ALL_PUTS],
            patch: None,
            deletes: [None; 2],
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.client_actions(state, actions);
        self.gateway_actions(state, actions);
        for &command in &state.commands {
            actions.push(Action::Run { command, is_answered: false });
            if state.is_awaited(command) {
                actions.push(Action::Run { command, is_answered: true });
            }
        }
        actions.push(match state.lock {
            None => Action::RivalTakes,
            Some(lock) if lock.token == RIVAL => Action::RivalReleases,
            Some(_) => Action::Expire,
        });
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Put(put) => self.send_first_acquire(&mut state, put),
            Action::Patch(token) => {
                state.patch = Some(Patch { token, holds: None });
                state.commands.insert(Command::Renew { copy: 0 });
            }
            Action::Delete(token) => {
                let delete = state.deletes.iter().position(Option::is_none)?;
                state.deletes[delete] =
                    Some(Delete { token, answer: None, was_sent_again: false, did_release: false });
                state.commands.insert(Command::Release { delete, copy: 0 });
            }
            Action::Run { command, is_answered } => self.run(&mut state, command, is_answered),
            Action::SendAgain(command) => {
                state.repeats_left -= 1;
                state.commands.insert(command);
                if let Command::Release { delete, .. } = command {
                    state.deletes[delete].as_mut()?.was_sent_again = true;
                }
            }
            Action::StopWaiting(put) => self.stop_waiting(&mut state, put),
            Action::WriteAnswer(put) => {
                let Put::Granting { token, .. } = state.puts[put] else { return None };
                state.puts[put] = Put::Holds(token);
            }
            Action::Leave(put) => self.leave(&mut state, put),
            Action::Expire => state.expire(),
            Action::RivalTakes => {
                let granted_to = Party::Rival;
                state.lock = Some(Lock { token: RIVAL, attempt: None, granted_to, pinned_by: None });
            }
            Action::RivalReleases => state.lock = None,
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(BELIEF, |_, state: &State| {
                state.beliefs().all(|token| state.lock.is_some_and(|lock| lock.token == token))
            }),
            Property::always(FREED, |_, state: &State| {
                let mut answered = state.deletes.iter().flatten().filter(|delete| delete.answer.is_some());
                answered.all(|delete| state.lock.is_none_or(|lock| lock.token != delete.token))
            }),
            Property::always(ORPHAN, |_, state: &State| {
                state.left_behind().is_none_or(|lock| state.is_excused(lock))
            }),
            Property::always(AGREEMENT, |rules: &Rules, state: &State| {
                let mut answers = state.deletes.iter().flatten().filter_map(|delete| delete.answer);
                let first = answers.next();
                rules.tokens == Tokens::Made || answers.all(|answer| Some(answer) == first)
            }),
            Property::always(DENIAL, |_, state: &State| {
                let is_false = |delete: &Delete| {
                    delete.did_release && delete.answer.is_some_and(|answer| answer != Outcome::Released)
                };
                !state.deletes.iter().flatten().any(is_false)
            }),
        ];
        properties.extend(self.reachable());
        properties
    }
}

type Condition = fn(&Rules, &State) -> bool;

/// What a search must come across where it can, or it would prove nothing.
impl Rules {
    fn reachable(&self) -> impl Iterator<Item = Property<Self>> {
        let can_be_pinned = self.puts > 1 || self.has_duplicate || self.has_patch;
        let conditions: [(_, _, Condition); 8] = [
            ("a client is told that it holds, after its first attempt was voided", true, |_, state| {
                matches!(state.puts[0], Put::Holds(_)) && state.voided[0]
            }),
            ("a rival gets its turn after a release", self.deletes > 0, |_, state| {
                state.is_held_by_rival() && state.deletes.iter().flatten().any(|delete| delete.did_release)
            }),
            ("both DELETEs are answered while a rival holds", self.deletes > 1, |_, state| {
                let answered = state.deletes.iter().flatten().filter(|delete| delete.answer.is_some());
                state.is_held_by_rival() && answered.count() == 2
            }),
            ("a DELETE that was sent again is answered", self.repeats > 0 && self.deletes > 0, |_, state| {
                let mut deletes = state.deletes.iter().flatten();
                deletes.any(|delete| delete.was_sent_again && delete.answer.is_some())
            }),
            ("a renewal pins a grant in use", self.has_patch, |_, state| {
                state.is_used_and_pinned_by(Party::Patch)
            }),
            ("a duplicate pins a grant in use", self.has_duplicate, |_, state| {
                state.is_used_and_pinned_by(Party::Put(DUPLICATE))
            }),
            ("a lock stays because a proxy took the answer", self.has_duplicate, |_, state| {
                state.left_behind().is_some_and(|lock| lock.pinned_by.is_none())
            }),
            ("a lock stays because it is pinned", can_be_pinned && self.tokens == Tokens::Own, |_, state| {
                state.left_behind().is_some_and(|lock| lock.pinned_by.is_some())
            }),
        ];
        let expected = conditions.into_iter().filter(|(_, is_possible, _)| *is_possible);
        expected.map(|(name, _, condition)| Property::sometimes(name, condition))
    }
}

const SMALL: Rules = Rules {
    tokens: Tokens::Own,
    puts: 1,
    has_duplicate: false,
    has_patch: false,
    deletes: 1,
    repeats: 1,
    mutant: Mutant::None,
};
const TWO_PUTS: Rules = Rules { puts: 2, ..SMALL };
const TWO_DELETES: Rules = Rules { deletes: 2, ..SMALL };
const DUPLICATED: Rules = Rules { has_duplicate: true, ..SMALL };
const RENEWED: Rules = Rules { has_patch: true, ..SMALL };
const MADE: Rules = Rules { tokens: Tokens::Made, ..SMALL };

#[test]
fn the_rules_hold_for_every_order_of_events() {
    let searches = [
        ("2 PUTs + 2 DELETEs", Rules { repeats: 0, deletes: 2, ..TWO_PUTS }),
        ("2 PUTs + DELETE, one command twice", TWO_PUTS),
        ("PUT + 2 DELETEs, two commands twice", Rules { repeats: 2, ..TWO_DELETES }),
        ("PUT + duplicate + DELETE, one command twice", DUPLICATED),
        ("2 PUTs + duplicate", Rules { puts: 2, deletes: 0, repeats: 0, ..DUPLICATED }),
        ("PUT + PATCH + DELETE, two commands twice", Rules { repeats: 2, ..RENEWED }),
        ("2 PUTs + PATCH + DELETE", Rules { puts: 2, repeats: 0, ..RENEWED }),
        ("PUT + duplicate + PATCH, one command twice", Rules { has_duplicate: true, deletes: 0, ..RENEWED }),
        ("2 PUTs + 2 DELETEs of made tokens, one command twice", Rules { puts: 2, deletes: 2, ..MADE }),
        ("PUT + PATCH + 2 DELETEs of made tokens", Rules { has_patch: true, deletes: 2, ..MADE }),
    ];
    for (name, rules) in searches {
        let checker = crate::search(rules, HasDiscoveries::AnyFailures);
        println!("{name}: {} states", checker.unique_state_count());
        checker.assert_properties();
    }
}

#[test]
fn each_rule_is_missed_when_it_is_left_out() {
    let renewed_made = Rules { has_patch: true, ..MADE };
    let mutants = [
        (Mutant::TakeBackIgnoresAttempt, TWO_PUTS, BELIEF),
        (Mutant::RepetitionDoesNotPin, TWO_PUTS, BELIEF),
        (Mutant::RepetitionDoesNotPin, DUPLICATED, BELIEF),
        (Mutant::RepetitionReplacesAttempt, TWO_PUTS, BELIEF),
        (Mutant::RepetitionReplacesAttempt, DUPLICATED, BELIEF),
        (Mutant::RenewalDoesNotPin, RENEWED, BELIEF),
        (Mutant::RenewalRevives, RENEWED, FREED),
        (Mutant::RenewalRevives, renewed_made, FREED),
        (Mutant::ReleaseMarksOnlySuccess, SMALL, FREED),
        (Mutant::ReleaseMarksOnlySuccess, SMALL, ORPHAN),
        (Mutant::ReleaseIgnoresMark, TWO_DELETES, AGREEMENT),
        (Mutant::ReleaseIgnoresMark, SMALL, DENIAL),
        (Mutant::ReleaseForgetsDoubt, MADE, DENIAL),
        (Mutant::TakeBackVoidsNothing, SMALL, ORPHAN),
        (Mutant::TakeBackVoidsNothing, MADE, ORPHAN),
        (Mutant::TakeBackVoidsOnlySuccess, SMALL, ORPHAN),
        (Mutant::TakeBackVoidsOnlySuccess, MADE, ORPHAN),
        (Mutant::DoubtIsNotAwaited, SMALL, ORPHAN),
        (Mutant::DoubtSendsAgain, SMALL, ORPHAN),
        (Mutant::DoubtSendsAgain, MADE, FREED),
        (Mutant::VoidedIsUndone, TWO_PUTS, ORPHAN),
        (Mutant::VoidedIsUndone, DUPLICATED, ORPHAN),
        (Mutant::VoidedIsUndone, RENEWED, ORPHAN),
    ];
    for (mutant, rules, property) in mutants {
        crate::is_missed(
            &format!("{:?} tokens, {mutant:?}", rules.tokens),
            Rules { mutant, ..rules },
            property,
        );
    }
}
