//! How fencing numbers are minted under Redis Sentinel: a primary and its replica that fail over to each other, restart
//! and lose data, sentinels that hear of it sooner or later, and two gateways that may stand still for any time between
//! any two steps.
//!
//! A gateway may connect to any primary that it has ever heard of: what counts is what most sentinels say once it is
//! connected. It may leave at any moment, or never: that it leaves a deposed primary within seconds is needed for
//! exclusion, and not for the numbers. Sentinel ends all connections to a server when it makes it a primary or a
//! replica; so a connection that is older than the answer has seen no failover since, however late the answer is used.
//!
//! A deposed primary whose connections are not ended does nothing that one does not that was made a replica and
//! promoted again before it copied anything.

use stateright::{Checker, HasDiscoveries, Model, Property};

use self::state::{Data, Fence, Gateway, Heard, Phase, Place, Server, State, Word};
use crate::fence::state::{has_neighbours, promised};

mod state;
mod steps;

/// The bounds of a search: numbers given, and mishaps (all that is no step of a gateway and no hearsay).
type Bounds = (usize, u8);
const MORE_NUMBERS: Bounds = (3, 2);
const MORE_MISHAPS: Bounds = (2, 3);

/// Time is what it is in the model without Sentinel: see there.
const FIRST_TIME: u8 = 20;
const PROMOTION_TAKES: u8 = 8;
/// Only a mutant that starts run after run comes this far.
const LAST_TIME: u8 = 60;

const FIRST_WORD: Word = Word { epoch: 0, at: 0 };

/// Which rule is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    None,
    /// The hash holds no epoch.
    WithoutEpoch,
    /// A higher epoch is noted, and the run goes on.
    EpochRestartsNothing,
    /// A gateway believes a majority, but not all, that report a lower epoch than it has followed.
    FollowsALowerEpoch,
    /// A server accepts a lower epoch than it knows, whoever says so.
    LearnsALowerEpoch,
    /// What one sentinel says is believed.
    BelievesAMinority,
    /// Sentinels are asked for the address first, and then for the epoch.
    AsksForTheAddressFirst,
    /// The run starts at the first number, not when a gateway meets the server.
    LearnsAtFirstMint,
    /// Sentinels are asked, and only then the server is connected to.
    AsksBeforeConnecting,
    /// A look restarts the run as connecting does, though its word is as old as the connection.
    LooksRestart,
    /// A gateway that could not make a server learn when it connected leaves that to its next look.
    LooksInsteadOfLearning,
    /// A server that is made a primary or a replica keeps its connections.
    ConnectionsOutliveFailover,
}

/// The small print: what the promises assume, and what they except.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clause {
    /// A deposed primary may outgrow its successor if, after that one's promotion, it lost its data,
    LostData,
    /// or restarted,
    Restarted,
    /// or if no gateway had met it as what it was then.
    NotMet,
    /// A promotion comes later than any number that its predecessor's run would ever reach.
    PromotionTakesTime,
    /// A majority of the sentinels forgets nothing that a gateway has not heard.
    SentinelsRemember,
    /// Sentinel is set up anew around a primary in use whose replica is in sync, while no gateway acts on what the
    /// former sentinels said; and before the next failover a gateway has acted on what the new ones say.
    SetUpInPeace,
}

#[derive(Clone, Copy, Debug)]
struct Rules {
    bounds: Bounds,
    mutant: Mutant,
    /// A clause that is struck out.
    struck: Option<Clause>,
}

/// What must be reachable, or the search would prove nothing.
const ON_BOTH_SIDES: &str = "a deposed primary gives a number after its successor";
const OUTGROWN_IF_EXCUSED: &str = "a deposed primary that is excused outgrows its successor";
const BY_NEW_SENTINELS: &str = "numbers are given before and after Sentinel is set up anew";
const HALF_OLD: &str = "a gateway uses the newest primary by an older epoch";
/// With three numbers only.
const BACK_AGAIN: &str = "numbers are given before, between and after two failovers";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// A gateway connects to a primary, asks the sentinels, and is told this.
    Ask(usize, Word, bool),
    Learn(usize),
    Look(usize),
    /// A gateway ends its connection, for whatever reason.
    Leave(usize),
    Mint(usize),
    /// Most sentinels hear who the newest primary is.
    Tell,
    /// The replica becomes the primary, cut off from the one that it copied, which goes on.
    Promote(Data),
    /// A deposed primary becomes a replica of its successor.
    Rejoin(Place),
    Restart(Place, Data),
    Flush(Place),
    /// Most sentinels begin again with what they were once told.
    Forget(Place),
    /// All of them begin again, with the newest primary.
    SetUpAnew,
}

impl Rules {
    fn is_struck(&self, clause: Clause) -> bool {
        self.struck == Some(clause)
    }

    fn mishaps(&self, state: &State, actions: &mut Vec<Action>) {
        let newest = state.newest();
        let [primary, other] = [newest.at, 1 - newest.at].map(|at| &state.servers[at]);
        let is_first_word = newest.epoch == 0;
        let was_set_up_anew = is_first_word && primary.term > 0;
        let is_known = !was_set_up_anew || primary.is_met || self.is_struck(Clause::SetUpInPeace);
        // A failover takes the votes of a majority that knows whom to fail over from.
        if state.heard == Heard::ByMost && !other.is_primary && is_known {
            let run = primary.fence.run.map(|(_, run)| run);
            actions.extend(Data::after(run).chain([Data::Own]).map(Action::Promote));
        }
        actions.extend([0, 1].into_iter().filter(|at| state.is_deposed(*at)).map(Action::Rejoin));
        for (at, server) in state.servers.iter().enumerate() {
            let is_used = state.gateways.iter().any(|gateway| self.is_connected(gateway, at));
            // Whatever happens to a server that nobody knows as what it is, happened before.
            if server.is_primary && (server.is_met || is_used) {
                // How much is left of the run of a process that is gone makes no difference.
                actions.extend([Data::Without(0), Data::Nothing].map(|with| Action::Restart(at, with)));
                actions.push(Action::Flush(at));
            }
        }
        if is_first_word {
            return;
        }
        let has_heard = |gateway: &Gateway| gateway.followed == newest.epoch;
        if state.gateways.iter().all(has_heard) || self.is_struck(Clause::SentinelsRemember) {
            actions.extend([0, 1].map(Action::Forget));
        }
        let acts = |gateway: &Gateway| matches!(gateway.phase, Phase::Asked(..));
        let is_peace = primary.is_met && !other.is_primary && !state.gateways.iter().any(acts);
        if is_peace || self.is_struck(Clause::SetUpInPeace) {
            actions.push(Action::SetUpAnew);
        }
    }
}

impl Model for Rules {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let server = |is_primary, run_id| Server {
            is_primary,
            term: 0,
            epoch: 0,
            run_id,
            fence: Fence::default(),
            is_met: false,
            is_excused: false,
        };
        vec![State {
            time: FIRST_TIME,
            servers: [server(true, 0), server(false, 100)],
            former: FIRST_WORD,
            heard: Heard::ByMost,
            gateways: [Gateway { followed: 0, phase: Phase::Idle }; 2],
            grants: Vec::new(),
            mishaps_left: self.bounds.1,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // All promises are about numbers given: nothing that follows the last one could break them.
        if state.grants.len() == self.bounds.0 {
            return;
        }
        for (n, gateway) in state.gateways.iter().enumerate() {
            let is_served = gateway.phase.server().is_some_and(|at| state.servers[at].is_primary);
            match gateway.phase {
                Phase::Idle => {
                    let words = self.words(state).into_iter();
                    let words = words.filter(|(word, _)| state.servers[word.at].is_primary);
                    actions.extend(words.map(|(word, is_unanimous)| Action::Ask(n, word, is_unanimous)));
                    continue;
                }
                Phase::Asked(..) if is_served => actions.push(Action::Learn(n)),
                Phase::Linked(_) if is_served => actions.extend([Action::Look(n), Action::Mint(n)]),
                _ => {}
            }
            actions.push(Action::Leave(n));
        }
        if state.heard != Heard::ByMost {
            actions.push(Action::Tell);
        }
        if state.mishaps_left > 0 {
            self.mishaps(state, actions);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Ask(n, word, is_unanimous) => self.ask(&mut state.gateways[n], word, is_unanimous),
            Action::Learn(n) => {
                let Phase::Asked(word, is_unanimous) = last.gateways[n].phase else { return None };
                let is_look = self.mutant == Mutant::LooksInsteadOfLearning;
                let stays = self.learn(&mut state, word, is_unanimous, is_look);
                state.gateways[n].phase = if stays { Phase::Linked(word) } else { Phase::Idle };
            }
            Action::Look(n) => {
                let Phase::Linked(word) = last.gateways[n].phase else { return None };
                if !self.learn(&mut state, word, false, true) {
                    state.gateways[n].phase = Phase::Idle;
                }
            }
            Action::Leave(n) => state.gateways[n].phase = Phase::Idle,
            Action::Mint(n) => Self::mint(&mut state, last.gateways[n].phase.server()?)?,
            Action::Tell => state.heard = Heard::ByMost,
            Action::Promote(with) => self.promote(&mut state, with),
            Action::Rejoin(at) => self.rejoin(&mut state, at),
            Action::Restart(at, with) => self.restart(&mut state, at, with),
            Action::Flush(at) => self.flush(&mut state, at),
            Action::Forget(at) => state.heard = Heard::Forgotten(at),
            Action::SetUpAnew => self.set_up_anew(&mut state),
        }
        state.mishaps_left -= match action {
            Action::Promote(_) | Action::Restart(..) | Action::Flush(_) => 1,
            Action::Forget(_) | Action::SetUpAnew => 1,
            _ => 0,
        };
        if state.mishaps_left == 0 {
            state.drop_what_is_past();
        }
        state.gateways.sort_unstable();
        (state != *last).then_some(state)
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.time < LAST_TIME
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("I1: no number is given twice", |_, state: &State| {
                promised(&state.grants, |low, high| low != high)
            }),
            Property::always("I2: numbers grow, and a successor's are larger", |_, state: &State| {
                promised(&state.grants, |low, high| low <= high)
            }),
            Property::sometimes(ON_BOTH_SIDES, |_, state: &State| {
                has_neighbours(&state.grants, |first, second| first.term > second.term && !second.is_excused)
            }),
            Property::sometimes(OUTGROWN_IF_EXCUSED, |_, state: &State| {
                has_neighbours(&state.grants, |first, second| {
                    first.term > second.term && first.number < second.number
                })
            }),
            Property::sometimes(BY_NEW_SENTINELS, |_, state: &State| {
                let Word { epoch, at } = state.newest();
                let server = &state.servers[at];
                let began = server.fence.run.map(|(_, run)| run.began);
                let gave = |from, to| {
                    let mut grants = state.grants.iter().filter(|grant| grant.term == server.term);
                    grants.any(|grant| (Some(from)..Some(to)).contains(&Some(grant.number)))
                };
                let is_anew = epoch == 0 && server.term > 0 && server.fence.epoch == Some(0);
                is_anew && began.is_some_and(|began| gave(0, began) && gave(began, LAST_TIME))
            }),
            Property::sometimes(HALF_OLD, |_, state: &State| {
                let newest = state.newest();
                let is_older = |word: Word| word.at == newest.at && word.epoch < newest.epoch;
                state
                    .gateways
                    .iter()
                    .any(|gateway| matches!(gateway.phase, Phase::Linked(word) if is_older(word)))
            }),
        ];
        if self.bounds == MORE_NUMBERS {
            properties.push(Property::sometimes(BACK_AGAIN, |_, state: &State| {
                let terms: Vec<_> = state.grants.iter().map(|grant| grant.term).collect();
                terms == [0, 1, 2]
            }));
        }
        properties
    }
}

/// The promises that are broken, each with the way there.
fn broken_promises(rules: Rules) -> Vec<(&'static str, String)> {
    let checker = crate::search(rules, HasDiscoveries::AnyFailures);
    let found = checker.discoveries().into_iter();
    let found = found.filter(|(name, _)| name.starts_with("I1") || name.starts_with("I2"));
    found.map(|(name, path)| (name, format!("{:?}", path.into_actions()))).collect()
}

#[test]
fn numbers_are_unique_and_grow_under_sentinel() {
    for bounds in [MORE_NUMBERS, MORE_MISHAPS] {
        let rules = Rules { bounds, mutant: Mutant::None, struck: None };
        let checker = crate::search(rules, HasDiscoveries::AnyFailures);
        println!("{bounds:?}: {} states", checker.unique_state_count());
        assert!(checker.unique_state_count() > 100_000);
        checker.assert_properties();
    }
}

#[test]
fn each_rule_of_following_sentinel_is_missed_when_it_is_left_out() {
    let mutants = [
        Mutant::WithoutEpoch,
        Mutant::EpochRestartsNothing,
        Mutant::FollowsALowerEpoch,
        Mutant::LearnsALowerEpoch,
        Mutant::BelievesAMinority,
        Mutant::AsksForTheAddressFirst,
        Mutant::LearnsAtFirstMint,
        Mutant::AsksBeforeConnecting,
        Mutant::LooksRestart,
        Mutant::LooksInsteadOfLearning,
        Mutant::ConnectionsOutliveFailover,
    ];
    for mutant in mutants {
        let broken = broken_promises(Rules { bounds: MORE_MISHAPS, mutant, struck: None });
        println!("{mutant:?}: {broken:#?}");
        assert!(!broken.is_empty(), "{mutant:?} is not caught");
    }
}

#[test]
fn each_clause_of_the_small_print_is_needed_under_sentinel() {
    let clauses = [
        (MORE_MISHAPS, Clause::LostData),
        (MORE_MISHAPS, Clause::Restarted),
        (MORE_MISHAPS, Clause::NotMet),
        (MORE_NUMBERS, Clause::PromotionTakesTime),
        (MORE_MISHAPS, Clause::SentinelsRemember),
        (MORE_MISHAPS, Clause::SetUpInPeace),
    ];
    for (bounds, clause) in clauses {
        let broken = broken_promises(Rules { bounds, mutant: Mutant::None, struck: Some(clause) });
        println!("{clause:?}: {broken:#?}");
        assert!(!broken.is_empty(), "nothing happens without {clause:?}");
    }
}
