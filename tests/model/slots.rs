//! Slots: one lock that several may hold, each of whom says how many it bears, itself included. Who says 1 excludes all others.
//!
//! A command is one step, and on its way for as long as it likes. Its gateway may stop waiting for it: then its answer was lost,
//! or it comes late. Leases may end at any step, and nothing happens then until a script looks. Clients leave before they are told,
//! ask again with the same token and another width, and send a `DELETE` at any time.
//!
//! Not modelled: numbers after a loss of data, the clock, `min_hold` and breaks. What gateways tell each other is left out too: who
//! waits may look at any time that it is bound to.

use stateright::{Model, Property};

use self::rules::Rules;
use self::state::{Deletion, Due, Holder, Phase, Request, Script, Sent, State, Token};

mod clients;
mod promises;
mod rules;
mod scenarios;
mod state;
mod store;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Ask(Request),
    Look(Request),
    Leave(Request),
    Kill(Request),
    Arrive { sent: Sent, is_client_gone: bool },
    GiveUp(Sent),
    End(Token),
    Delete(Token),
}

impl Model for Rules {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let holder = Holder { entry: None, is_final: false, told: None, deletion: Deletion::None };
        vec![State {
            holders: vec![holder; self.tokens()],
            queue: Vec::new(),
            voided: vec![false; self.askers.len()],
            phases: vec![Phase::NotSent; self.askers.len()],
            due: Due::Never,
            sent: Vec::new(),
            left: self.may,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        self.commands(state, actions);
        self.requests(state, actions);
        self.ends(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Ask(request) => {
                let script = if self.askers[request].waits { Script::Join } else { Script::Try };
                self.ask(&mut state, request, script);
            }
            Action::Look(request) => self.ask(&mut state, request, Script::Look),
            Action::Leave(request) => {
                state.left.leaves -= 1;
                self.undo(&mut state, request);
            }
            Action::Kill(request) => {
                state.left.leaves -= 1;
                state.phases[request] = Phase::Killed;
            }
            Action::Arrive { sent, is_client_gone } => self.arrive(&mut state, sent, is_client_gone)?,
            Action::GiveUp(sent) => self.give_up(&mut state, sent),
            Action::End(token) => self.end(&mut state, token)?,
            Action::Delete(token) => self.delete(&mut state, token)?,
        }
        state.rank_numbers();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        self.promises()
    }
}
