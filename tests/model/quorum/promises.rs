//! What must hold at every moment, and what a search must come across, or it would prove nothing.

use stateright::Property;

use super::state::{Fault, Lock, Node, Number, Phase, Request, State, Token};
use super::{Asked, Kind, MOST, Rules};

pub const UNIQUE: &str = "I1: no number is granted twice";
pub const ORDER: &str = "I2: what is granted after another was answered has the larger number";
pub const EXCLUSION: &str = "I3: no two tokens are believed to hold at once";
pub const ONE_NUMBER: &str = "I8: a token is believed to hold by one number";
pub const FREED: &str = "what was released never holds again";
pub const ZOMBIE: &str = "no lock stands over a newer grant";
pub const CERTAIN: &str = "what was certainly not granted never holds";
pub const REPAIRED_BELOW: &str = "a lock is repaired where newer ones of its bucket were granted";
pub const OUTLIVED: &str = "a lock that is renewed outlives what nodes forget, and all hold it again";
pub const DENIED: &str = "nobody who holds is told otherwise";
pub const LEFT: &str = "nothing stays behind of what nobody was told of";

impl Rules {
    /// Nodes that a gateway of one list would count.
    fn most_hold(&self, state: &State, is_it: impl Fn(&Lock) -> bool) -> bool {
        [1, 2].into_iter().any(|epoch| {
            let counts = state.nodes.iter().filter(|node| node.is_good() && node.epoch == epoch);
            counts.filter(|node| node.lock.as_ref().is_some_and(&is_it)).count() >= MOST
        })
    }

    pub fn beliefs(&self, state: &State) -> impl Iterator<Item = (Token, Number)> {
        let all = self.requests.iter().zip(&state.requests);
        all.filter_map(|(asked, request)| match request.phase {
            Phase::Holds { number, .. } if !self.is_given_up(state, asked.token) => {
                Some((asked.token, number))
            }
            _ => None,
        })
    }

    fn all_pairs(&self, state: &State, is_right: impl Fn((Token, Number), (Token, Number)) -> bool) -> bool {
        self.beliefs(state).all(|one| self.beliefs(state).all(|other| is_right(one, other)))
    }

    fn is_freed(&self, state: &State, token: Token) -> bool {
        let mut all = self.requests.iter().zip(&state.requests);
        all.any(|(asked, request)| asked.token == token && matches!(request.phase, Phase::Answered(_)))
    }

    fn is_at_rest(state: &State) -> bool {
        state.nodes.iter().all(|node| node.inbox.is_empty())
            && state.requests.iter().all(|request| request.is_at_rest())
    }

    /// Whether somebody was told that this token holds, or may think so.
    fn is_known(&self, state: &State, lock: &Lock) -> bool {
        let is_told = |phase| matches!(phase, Phase::Holds { .. } | Phase::Held { .. });
        if lock.attempt.is_some() {
            return is_told(state.requests[lock.by].phase);
        }
        let all = self.requests.iter().zip(&state.requests);
        let may_pin = |asked: &Asked| asked.token == lock.token && asked.kind != Kind::Delete;
        let pinning: Vec<_> =
            all.filter(|(asked, _)| may_pin(asked)).map(|(_, request)| request.phase).collect();
        let is_unsure = pinning.len() > 1 && pinning.contains(&Phase::Unknown);
        // What a pin leaves on few nodes, or on most by mere chance, ends with its lease, and harms nobody for longer.
        let is_one = |it: &Lock| it.token == lock.token && it.number == lock.number && it.by == lock.by;
        let is_little = pinning.len() > 1 && state.locks().filter(is_one).count() < MOST;
        pinning.iter().any(|phase| is_told(*phase)) || is_unsure || is_little
    }

    fn leaves_nothing(&self, state: &State) -> bool {
        state.locks().all(|lock| self.is_known(state, &lock))
    }

    pub fn promises(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(UNIQUE, |_, state: &State| state.fault != Some(Fault::SameNumber)),
            Property::always(ORDER, |_, state: &State| state.fault != Some(Fault::OutOfOrder)),
            Property::always(EXCLUSION, |rules: &Self, state: &State| {
                rules.all_pairs(state, |(one, _), (other, _)| one == other)
            }),
            Property::always(ONE_NUMBER, |rules: &Self, state: &State| {
                rules.all_pairs(state, |(one, by), (other, by_other)| one != other || by == by_other)
            }),
            Property::always(FREED, |rules: &Self, state: &State| {
                let is_freed = |lock: &Lock| rules.is_freed(state, lock.token);
                let mut freed = state.locks().filter(is_freed);
                let is_granted = state.fault == Some(Fault::ReleasedIsGranted);
                !is_granted
                    && !freed.any(|lock| {
                        rules.most_hold(state, |it| it.token == lock.token && it.number == lock.number)
                    })
            }),
            Property::always(ZOMBIE, |rules: &Self, state: &State| {
                // What is being released may come back to one node by a repair, for as long as that takes.
                let is_old =
                    |lock: &Lock| lock.number < state.largest && !rules.is_given_up(state, lock.token);
                let mut old = state.locks().filter(is_old);
                state.fault != Some(Fault::OldIsConfirmed)
                    && !old.any(|lock| {
                        rules.most_hold(state, |it| it.token == lock.token && it.number == lock.number)
                    })
            }),
            Property::always(DENIED, |_, state: &State| state.fault != Some(Fault::HolderIsDenied)),
            Property::always(CERTAIN, |rules: &Self, state: &State| {
                let was_refused = |lock: &Lock| state.requests[lock.by].phase == Phase::Refused;
                let mut denied = state.locks().filter(was_refused);
                !denied.any(|lock| rules.most_hold(state, |it| it.by == lock.by && it.number == lock.number))
            }),
        ];
        // A node that forgot, or that left, was told in vain.
        if self.restarts == 0 && !self.changes_members {
            properties.push(Property::always(LEFT, |rules: &Self, state: &State| {
                !Self::is_at_rest(state) || rules.leaves_nothing(state)
            }));
        }
        properties.extend(self.reachable());
        properties
    }

    fn reachable(&self) -> Vec<Property<Self>> {
        let tokens = |kind| {
            let of_kind = self.requests.iter().filter(move |asked| asked.kind == kind);
            let mut tokens: Vec<_> = of_kind.map(|asked| asked.token).collect();
            tokens.sort_unstable();
            tokens.dedup();
            tokens.len()
        };
        let mut properties = Vec::new();
        if tokens(Kind::Put) > 1 && (self.leases_end || tokens(Kind::Delete) > 0) {
            properties.push(Property::sometimes("two tokens are granted in turn", |_, state: &State| {
                state.granted.iter().filter(|numbers| **numbers != 0).count() > 1
            }));
        }
        if self.requests.iter().any(|asked| asked.yields || asked.voids) {
            properties.push(Property::sometimes("a request is certainly refused", |_, state: &State| {
                state.requests.iter().any(|request| request.phase == Phase::Refused)
            }));
        }
        if self.outlives {
            properties.push(Property::sometimes(OUTLIVED, |_, state: &State| {
                let holds = |node: &Node| node.lock.is_some_and(|lock| lock.number == 1);
                let is_renewed = |request: &Request| matches!(request.phase, Phase::Holds { .. });
                let all_hold = state.nodes.iter().all(holds);
                all_hold && state.mishaps_left == 0 && state.requests.iter().any(is_renewed)
            }));
        }
        if self.bumps > 0 {
            properties.push(Property::sometimes(REPAIRED_BELOW, |_, state: &State| state.was_repaired_below));
        }
        properties
    }
}
