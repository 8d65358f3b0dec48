//! The quorum store: a lock on most of three independent nodes. Gateways propose numbers, and commands and answers are
//! delayed, lost, repeated and put in any order; leases end, nodes forget, and the list of members changes.
//!
//! Time has no numbers: see `Lock`. Answers arrive at once: a gateway acts on them however late, and one that was lost
//! is like one that no step was made of. What does not run is lost, or late.

use stateright::{Model, Property};

use self::council::{Care, Mishap, tidy};
use self::gateway::Step;
use self::state::{
    By, Command, Heard, Lock, Node, Number, Phase, Request, Role, Standing, State, TOKENS, Token,
};

mod answers;
mod council;
mod gateway;
mod node;
mod promises;
mod scenarios;
mod state;

/// Of three nodes.
const NODES: usize = 3;
const MOST: usize = 2;
/// So many that hold nothing leave too few that might.
const FEWER: usize = NODES - MOST + 1;

/// What is left out of the rules, or done otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    None,
    /// Rule 1: a node accepts the number of its fence once more.
    AcceptsTheSame,
    /// Rule 2: acceptances of different numbers are added up.
    DifferentNumbersAddUp,
    /// Rule 4: what gives way leaves the fence as it is, and what it asked for may yet be accepted.
    YieldDoesNotBurn,
    /// A late copy of what gives way to one number takes away a higher one.
    YieldIgnoresNumber,
    /// Rule 4: a token is freed only where it was found.
    ReleaseMarksOnlySuccess,
    /// Rule 4: what is taken back may yet be accepted.
    TakeBackDoesNotVoid,
    TakeBackIgnoresAttempt,
    /// What is being taken back is proposed once more.
    TakenBackIsProposedAgain,
    /// An attempt counts as undone as soon as one node took it back.
    AnyTakenBackIsUndone,
    /// What gave way counts as undone although another request has pinned it.
    YieldIgnoresThePin,
    YieldIgnoresAnOlderPin,
    /// A node that has nothing to say counts as one that holds nothing.
    OutHoldsNothing,
    /// A node that refused one number counts as certain although an older number is on its way to it.
    RefusalIsCertain,
    /// A late copy of an attempt that was voided elsewhere pins its successor.
    SupersededMayStillPin,
    /// Rule 5: one node that holds is enough to bring back the others.
    RecreatesBlindly,
    RepairHasNoDeadline,
    RepairIgnoresTheMark,
    /// A repair replaces a larger number of its token, although that may still be granted when the leases end on which
    /// the repair rests.
    RepairReplacesAtAnyTime,
    /// A repair needs a node that has accepted nothing newer in the bucket.
    RepairNeedsTheFence,
    /// Rule 6: what forgot goes on,
    NoQuarantine,
    /// or goes on with what it loaded, as the record is not bound to the process,
    RecordOfAnotherProcess,
    /// or since its record says that all it accepted was on its disk,
    DurableIsBelieved,
    /// or since its process is the same: what it followed in between is not asked for.
    ProcessIsBelieved,
    /// The fence is read when the quarantine begins.
    RestoredAtRestart,
    /// The fence is that of a clock which is behind.
    FromItsClockAlone,
    /// Rule 10: scripts look at no epoch.
    EpochIsNotChecked,
    AddedWithoutQuarantine,
    /// The added node's quarantine begins before anybody stored the change,
    QuarantineBegunBefore,
    /// or once the first node did.
    CountsTheFirstThatStored,
    /// A node that has forgotten the second epoch is taken in by the first one again.
    FormerListTakesIn,
    /// Nodes that store the second epoch do not tell each other their fences.
    SettlesWithoutFloor,
    /// Rule 11: a repeated `PUT` puts itself in place of what it finds.
    RepetitionOverwrites,
    RepetitionDoesNotPin,
    DifferentOwnAddUp,
    /// Rule 10: a gateway's names may lead to one node.
    OneNodeByTwoNames,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Put,
    Patch,
    Delete,
}

/// A request, each through a gateway of its own.
#[derive(Clone, Copy, Debug)]
struct Asked {
    kind: Kind,
    token: Token,
    /// Of the list of members that its gateway has.
    epoch: u8,
    /// Two of its gateway's names lead to one node, by the mutant.
    is_misled: bool,
    /// What its gateway proposes first.
    numbers: &'static [Number],
    /// How often it proposes, or renews.
    proposals: usize,
    /// How many attempts it makes, each after the one before was voided.
    attempts: usize,
    /// It gives way when it is split.
    yields: bool,
    /// Its gateway takes an attempt back, in doubt or because the client has left.
    voids: bool,
}

/// How a node comes to load what it, or another one, held some time ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stale {
    Never,
    /// Its file is switched off while it runs, and read when it restarts.
    SwitchedOff,
    /// It runs without its file for once, and reads it at the next start.
    RunsWithout,
    /// It follows another one, and is made to lead again.
    FollowsAnother,
    /// The same, and what it follows is a former replica of its own.
    FollowsItsCopy,
}

/// What may happen in one search, and by which rules.
#[derive(Clone, Copy, Debug)]
struct Rules {
    requests: &'static [Asked],
    /// The first request was granted this number by two nodes, and its proposal to the third is lost.
    holds_at_first: Option<Number>,
    /// What gives way is known to be given back before it is asked for again.
    waits: bool,
    leases_end: bool,
    /// Commands that run twice. A proposal is sent to a node once only.
    repeats: u8,
    restarts: u8,
    /// What restarts has what it kept on its disk, else nothing.
    keeps: bool,
    /// How else a node may come back with what it held some time ago.
    stale: Stale,
    flushes: bool,
    bumps: u8,
    changes_members: bool,
    /// The lock that is held at first is to outlive all mishaps.
    outlives: bool,
    mutant: Mutant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Step(By, Step),
    /// A command runs, and may run once more. Its answer is heard by who waits for it.
    Run {
        at: usize,
        command: Command,
        stays: bool,
    },
    /// A lease is over.
    End(usize),
    Mishap(Mishap),
    Care(Care),
}

impl Rules {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == mutant
    }

    fn roles(&self) -> &'static [Role] {
        if self.changes_members {
            &[Role::Member, Role::Member, Role::Former, Role::Added]
        } else if self.requests.iter().any(|request| request.is_misled) {
            &[Role::Doubled, Role::Member, Role::Hidden]
        } else {
            &[Role::Member; NODES]
        }
    }

    fn first_node(&self, place: usize, role: Role) -> Node {
        let held = self.holds_at_first.filter(|_| place > 0 && role != Role::Added);
        let token = self.requests[0].token;
        let lock = |number| Lock { token, number, attempt: Some(0), by: 0, times: 1 };
        Node {
            role,
            standing: if role == Role::Added { Standing::Forgot } else { Standing::Good },
            epoch: 1,
            fence: held.unwrap_or(0),
            lock: held.map(lock),
            marks: [None; TOKENS],
            voided: 0,
            copy: None,
            inbox: Default::default(),
            heard: vec![Heard::default(); self.requests.len()],
        }
    }
}

impl Model for Rules {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let roles = self.roles().iter().enumerate();
        let request =
            Request { phase: Phase::NotBegun, above: 0, is_late: false, proposals: 0, attempts: 0, seen: 0 };
        let mut state = State {
            nodes: roles.map(|(place, role)| self.first_node(place, *role)).collect(),
            requests: vec![request; self.requests.len()],
            over: 0,
            granted: [0; TOKENS],
            largest: 0,
            fault: None,
            is_settled: false,
            was_repaired_below: false,
            repeats_left: self.repeats,
            mishaps_left: self.restarts,
            bumps_left: self.bumps,
        };
        if let Some(number) = self.holds_at_first {
            state.requests[0].phase = Phase::Holds { number, source: 0 };
            state.granted[usize::from(self.requests[0].token)] = 1 << number;
            state.largest = number;
        }
        tidy(&mut state);
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.fault.is_some() {
            return;
        }
        let mut steps = Vec::new();
        for by in 0..self.requests.len() {
            self.steps(state, by, &mut steps);
            actions.extend(steps.drain(..).map(|step| Action::Step(by, step)));
        }
        for (at, node) in state.nodes.iter().enumerate() {
            for &command in &node.inbox {
                actions.push(Action::Run { at, command, stays: false });
                if state.repeats_left > 0 && !matches!(command, Command::Acquire { .. }) {
                    actions.push(Action::Run { at, command, stays: true });
                }
            }
            if self.leases_end && node.lock.is_some() {
                actions.push(Action::End(at));
            }
            if state.mishaps_left > 0 && node.is_good() {
                actions.extend(self.mishaps(state, at).map(Action::Mishap));
            }
            if state.bumps_left > 0 && node.is_good() {
                actions.push(Action::Mishap(Mishap::Bump(at)));
            }
        }
        let mut cares = Vec::new();
        self.cares(state, &mut cares);
        actions.extend(cares.into_iter().map(Action::Care));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Step(by, step) => self.step(&mut state, by, step),
            Action::Run { at, command, stays } => {
                if stays {
                    state.repeats_left -= 1;
                } else {
                    state.nodes[at].inbox.remove(&command);
                }
                let reply = self.run(&mut state, at, command);
                if self.is_awaited(&state, command) {
                    self.hear(&mut state, at, command, reply);
                }
            }
            Action::End(at) => {
                let lock = state.nodes[at].lock.take()?;
                state.end(lock.times);
            }
            Action::Mishap(mishap) => {
                match mishap {
                    Mishap::Bump(_) => state.bumps_left -= 1,
                    _ => state.mishaps_left -= 1,
                }
                self.mishap(&mut state, mishap);
            }
            Action::Care(care) => self.care(&mut state, care),
        }
        tidy(&mut state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        self.promises()
    }
}
