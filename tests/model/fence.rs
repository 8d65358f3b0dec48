//! How fencing numbers are minted on Redis: a primary and its replica that fail over to each other, restart and lose
//! data, and two gateways that may know a server by different names.

use stateright::{Checker, HasDiscoveries, Model, Property};

use self::state::{
    Data, Fence, Grant, Incarnation, Link, Place, Run, Server, State, has_neighbours, promised,
};

pub mod state;

/// The bounds of the search: numbers given, and mishaps (promotions, restarts, flushes, new replication ids).
const GRANTS: usize = 3;
const MISHAPS: u8 = 3;

/// Giving a number and starting a run take a unit of time each: a server gives no more numbers than units pass. All
/// else takes none, which is the worst case.
const FIRST_TIME: u8 = 20;
/// Between the start of a run and the promotion of another server there is time for all the numbers of the run.
const PROMOTION_TAKES: u8 = 8;
/// A promotion later, Y's clock shows a time at which X was still giving numbers.
const Y_IS_BEHIND: u8 = 10;
/// Only a mutant that starts run after run comes this far.
const LAST_TIME: u8 = 100;

/// Which rule is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    None,
    /// A run starts at its first number, not when a gateway meets the server.
    StartsAtFirstUse,
    /// A gateway that looks again who the server is does not see to it that its run is still there.
    LearnsOnlyWhenConnecting,
    /// Whoever meets a server starts its run anew.
    LearningAlwaysStarts,
    /// The connection mends itself after a restart, and goes on under the old name.
    LinkOutlivesItsServer,
    /// A run starts at the clock, however large the numbers before it were.
    StartsAtTheClock,
    /// A run starts above the numbers before it, however late it is.
    StartsAboveTheOldOnes,
    /// A new run leaves the old ones in the hash.
    KeepsOldRuns,
    /// One plain counter.
    WithoutIncarnation,
    WithoutReplicationId,
    WithoutRunId,
}

/// The small print: what the promises assume, and what they except.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clause {
    /// A deposed primary may outgrow its successor if, after that one's promotion, it lost its data,
    LostData,
    /// or restarted,
    Restarted,
    /// or took another replication id,
    NewReplicationId,
    /// or if no gateway had met it as what it was then.
    NotMet,
    /// No server is promoted before every gateway has noticed what happened before.
    NoticedInTime,
    /// A promotion comes later than any number that its predecessor's run would ever reach.
    PromotionTakesTime,
    /// When a run starts, the clock is above all numbers that its server has lost or never copied, and not only
    /// above the first of them.
    ClockIsAboveLostNumbers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    /// The clocks agree, and a deposed primary goes on giving numbers.
    Split,
    /// Y's clock is behind X's, and a deposed primary takes no writes, as with `min-replicas-to-write 1`.
    SlowClock,
}

#[derive(Clone, Copy, Debug)]
struct Rules {
    setting: Setting,
    mutant: Mutant,
    /// A clause that is struck out.
    struck: Option<Clause>,
}

/// What must be reachable, or the search would prove nothing.
const AFTER_FAILOVER: &str = "numbers are given before and after a failover";
const AFTER_LOSS: &str = "numbers are given before and after a restart without data";
const TWO_NAMES: &str = "two gateways know a server by two names";
/// In a split only.
const ON_BOTH_SIDES: &str = "a deposed primary gives a number after its successor";
const REPEATED_IF_EXCUSED: &str = "a deposed primary that is excused repeats a number of its successor";

type Gateway = usize;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    /// A gateway connects, or looks again, as each does every second: who is the server, and is its run there?
    Learn(Gateway, Place),
    /// It notices that its server is a replica now.
    Leave(Gateway),
    Mint(Gateway),
    /// A replica becomes a primary, cut off from the one that it copied, which goes on.
    Promote(Place, Data),
    /// A deposed primary becomes a replica of its successor. Its connections stay.
    Rejoin(Place),
    Restart(Place, Data),
    Flush(Place),
    /// The first replica arrives, or the last one has been away for `repl-backlog-ttl`.
    ChangeReplicationId(Place),
}

impl Rules {
    /// By what name a gateway knows the server.
    fn name(&self, server: &Server) -> Incarnation {
        match self.mutant {
            Mutant::WithoutIncarnation => (0, 0),
            Mutant::WithoutReplicationId => (server.run_id, 0),
            Mutant::WithoutRunId => (0, server.replication_id),
            _ => (server.run_id, server.replication_id),
        }
    }

    /// `start_run` of the scripts; nothing if what is assumed of the clock does not hold.
    fn start_run(&self, state: &mut State, (at, name): Link) -> Option<()> {
        let is_behind = self.setting == Setting::SlowClock && at == 1;
        let clock = state.time - if is_behind { Y_IS_BEHIND } else { 0 };
        let fence = &state.servers[at].fence;
        let largest = fence.iter().map(|(_, run)| run.last).max().unwrap_or(0);
        let is_assumed = match self.struck {
            Some(Clause::ClockIsAboveLostNumbers) => {
                state.servers[1 - at].fence.iter().all(|(_, run)| clock >= run.began)
            }
            _ => state.grants.iter().all(|grant| grant.number <= largest || grant.number < clock),
        };
        if !is_assumed {
            return None;
        }
        let start = match self.mutant {
            Mutant::StartsAtTheClock => clock,
            Mutant::StartsAboveTheOldOnes => largest + 1,
            _ => clock.max(largest + 1),
        };
        let server = &mut state.servers[at];
        if self.mutant != Mutant::KeepsOldRuns {
            server.fence.clear();
        }
        server.fence.push((name, Run { began: start, last: start }));
        // Under an older name it took the place of the run that the others know.
        server.is_met = name == self.name(server);
        state.time += 1;
        Some(())
    }

    fn learn(&self, state: &mut State, gateway: Gateway, at: Place) -> Option<()> {
        let link = (at, self.name(&state.servers[at]));
        let is_new = state.gateways[gateway] != Some(link);
        state.gateways[gateway] = Some(link);
        let starts = match self.mutant {
            Mutant::StartsAtFirstUse => false,
            Mutant::LearningAlwaysStarts => true,
            Mutant::LearnsOnlyWhenConnecting if !is_new => false,
            _ => state.servers[at].run(link.1).is_none(),
        };
        if starts {
            self.start_run(state, link)?;
        }
        state.servers[at].is_met = true;
        Some(())
    }

    /// The part of the acquire script that gives a number.
    fn mint(&self, state: &mut State, (at, name): Link) -> Option<()> {
        match state.servers[at].run(name) {
            Some(run) => {
                run.last += 1;
                state.time += 1;
            }
            None => self.start_run(state, (at, name))?,
        }
        let server = &mut state.servers[at];
        server.is_met |= name == self.name(server);
        let number = server.run(name)?.last;
        let (term, is_excused) = (server.term, server.is_excused);
        state.grants.push(Grant { number, term, is_excused });
        Some(())
    }

    fn promote(&self, state: &mut State, at: Place, with: Data) {
        let predecessor = state.servers[1 - at].clone();
        let server = &mut state.servers[at];
        if with != Data::Own {
            server.fence = predecessor.left_with(with);
        }
        server.is_primary = true;
        server.term = predecessor.term + 1;
        server.replication_id += 1;
        server.is_met = false;
        server.is_excused = false;
        if self.struck != Some(Clause::PromotionTakesTime) {
            state.time += PROMOTION_TAKES;
        }
        if !predecessor.is_met {
            self.excuse(state, 1 - at, Clause::NotMet);
        }
    }

    /// A restarted Redis has a new replication id as well: that it keeps the old one is the worst case.
    fn restart(&self, state: &mut State, at: Place, with: Data) {
        let server = &mut state.servers[at];
        server.run_id += 1;
        server.fence = server.left_with(with);
        server.is_met = false;
        server.has_lost_all = with == Data::Nothing;
        for link in &mut state.gateways {
            if link.is_some_and(|link| link.0 == at) && self.mutant != Mutant::LinkOutlivesItsServer {
                *link = None;
            }
        }
        self.excuse(state, at, Clause::Restarted);
    }

    fn excuse(&self, state: &mut State, at: Place, clause: Clause) {
        if state.is_deposed(at) && self.struck != Some(clause) {
            state.servers[at].is_excused = true;
        }
    }

    fn has_noticed_all(&self, state: &State, link: Link) -> bool {
        let server = &state.servers[link.0];
        server.is_primary && server.is_met && self.name(server) == link.1
    }
}

impl Model for Rules {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let server = |is_primary, id| Server {
            is_primary,
            term: 0,
            run_id: id,
            replication_id: id,
            fence: Fence::new(),
            is_met: false,
            is_excused: false,
            has_lost_all: false,
        };
        vec![State {
            time: FIRST_TIME,
            servers: [server(true, 0), server(false, 100)],
            gateways: [None; 2],
            grants: Vec::new(),
            mishaps_left: MISHAPS,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // All promises are about numbers given: nothing that follows the last one could break them.
        if state.grants.len() == GRANTS {
            return;
        }
        for (gateway, link) in state.gateways.iter().enumerate() {
            let primaries = (0..2).filter(|at| state.servers[*at].is_primary);
            actions.extend(primaries.map(|server| Action::Learn(gateway, server)));
            match *link {
                Some((at, _)) if !state.servers[at].is_primary => actions.push(Action::Leave(gateway)),
                Some((at, _)) if self.setting == Setting::Split || !state.is_deposed(at) => {
                    actions.push(Action::Mint(gateway));
                }
                _ => {}
            }
        }
        let links = || state.gateways.iter().flatten();
        let is_noticed = links().all(|link| self.has_noticed_all(state, *link));
        for (server, is) in state.servers.iter().enumerate() {
            if state.is_deposed(server) {
                actions.push(Action::Rejoin(server));
            }
            if state.mishaps_left == 0 {
                continue;
            }
            if !is.is_primary && (is_noticed || self.struck == Some(Clause::NoticedInTime)) {
                let data = state.servers[1 - server].losses().chain([Data::Own]);
                actions.extend(data.map(|with| Action::Promote(server, with)));
            }
            // Whatever happens to a server that nobody knows as what it is, happened before.
            if is.is_primary && (is.is_met || links().any(|link| link.0 == server)) {
                actions.extend(is.losses().map(|with| Action::Restart(server, with)));
                actions.extend([Action::Flush(server), Action::ChangeReplicationId(server)]);
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let mishaps = match action {
            Action::Learn(..) | Action::Leave(..) | Action::Mint(..) | Action::Rejoin(..) => 0,
            _ => 1,
        };
        state.mishaps_left -= mishaps;
        match action {
            Action::Learn(gateway, server) => self.learn(&mut state, gateway, server)?,
            Action::Leave(gateway) => state.gateways[gateway] = None,
            Action::Mint(gateway) => self.mint(&mut state, last.gateways[gateway]?)?,
            Action::Promote(server, with) => self.promote(&mut state, server, with),
            Action::Rejoin(server) => state.servers[server].is_primary = false,
            Action::Restart(server, with) => self.restart(&mut state, server, with),
            Action::Flush(server) => {
                state.servers[server].fence.clear();
                state.servers[server].is_met = false;
                self.excuse(&mut state, server, Clause::LostData);
            }
            Action::ChangeReplicationId(server) => {
                state.servers[server].replication_id += 1;
                state.servers[server].is_met = false;
                self.excuse(&mut state, server, Clause::NewReplicationId);
            }
        }
        state.gateways.sort();
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
            Property::sometimes(AFTER_FAILOVER, |_, state: &State| {
                has_neighbours(&state.grants, |first, second| first.term < second.term)
            }),
            Property::sometimes(AFTER_LOSS, |_, state: &State| {
                state.servers.iter().filter(|server| server.has_lost_all).any(|server| {
                    let gave = |from, to| {
                        let mut grants = state.grants.iter().filter(|grant| grant.term == server.term);
                        grants.any(|grant| (from..to).contains(&grant.number))
                    };
                    server.fence.iter().any(|(_, run)| gave(0, run.began) && gave(run.began, LAST_TIME))
                })
            }),
            Property::sometimes(TWO_NAMES, |_, state: &State| match state.gateways {
                [Some(first), Some(second)] => first.0 == second.0 && first.1 != second.1,
                _ => false,
            }),
        ];
        if self.setting == Setting::Split {
            properties.extend([
                Property::sometimes(ON_BOTH_SIDES, |_, state: &State| {
                    has_neighbours(&state.grants, |first, second| {
                        first.term > second.term && !second.is_excused
                    })
                }),
                Property::sometimes(REPEATED_IF_EXCUSED, |_, state: &State| {
                    has_neighbours(&state.grants, |first, second| first.number == second.number)
                }),
            ]);
        }
        properties
    }
}

/// The promises that are broken, each with the way there.
fn broken_promises(rules: Rules) -> Vec<(&'static str, String)> {
    let checker = crate::search(rules, HasDiscoveries::AnyFailures);
    let found = checker
        .discoveries()
        .into_iter()
        .filter(|(name, _)| name.starts_with("I1") || name.starts_with("I2"));
    found.map(|(name, path)| (name, format!("{:?}", path.into_actions()))).collect()
}

#[test]
fn numbers_are_unique_and_grow_whatever_happens_to_the_servers() {
    for setting in [Setting::Split, Setting::SlowClock] {
        let rules = Rules { setting, mutant: Mutant::None, struck: None };
        let checker = crate::search(rules, HasDiscoveries::AnyFailures);
        println!("{setting:?}: {} states", checker.unique_state_count());
        assert!(checker.unique_state_count() > 100_000);
        checker.assert_properties();
    }
}

#[test]
fn each_rule_of_minting_is_missed_when_it_is_left_out() {
    let mutants = [
        (Setting::Split, Mutant::StartsAtFirstUse),
        (Setting::Split, Mutant::LearnsOnlyWhenConnecting),
        (Setting::Split, Mutant::LearningAlwaysStarts),
        (Setting::Split, Mutant::LinkOutlivesItsServer),
        (Setting::SlowClock, Mutant::StartsAtTheClock),
        (Setting::Split, Mutant::StartsAboveTheOldOnes),
        (Setting::Split, Mutant::KeepsOldRuns),
        (Setting::Split, Mutant::WithoutIncarnation),
        (Setting::Split, Mutant::WithoutReplicationId),
        (Setting::Split, Mutant::WithoutRunId),
    ];
    for (setting, mutant) in mutants {
        let broken = broken_promises(Rules { setting, mutant, struck: None });
        println!("{mutant:?}: {broken:#?}");
        assert!(!broken.is_empty(), "{mutant:?} is not caught");
    }
}

#[test]
fn each_clause_of_the_small_print_is_needed() {
    let clauses = [
        (Setting::Split, Clause::LostData),
        (Setting::Split, Clause::Restarted),
        (Setting::Split, Clause::NewReplicationId),
        (Setting::Split, Clause::NotMet),
        (Setting::Split, Clause::NoticedInTime),
        (Setting::Split, Clause::PromotionTakesTime),
        (Setting::SlowClock, Clause::ClockIsAboveLostNumbers),
    ];
    for (setting, clause) in clauses {
        let broken = broken_promises(Rules { setting, mutant: Mutant::None, struck: Some(clause) });
        println!("{clause:?}: {broken:#?}");
        assert!(!broken.is_empty(), "nothing happens without {clause:?}");
    }
}
