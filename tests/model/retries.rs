//! The retry rules, as `service` follows them on one lock: two `PUT`s and a `DELETE` of one client, a rival, answers
//! lost, gateways that stop waiting, clients that leave, leases that end, and commands that arrive in any order.

use std::collections::BTreeSet;

use stateright::{Checker, Model, Property};

/// Acquires that one request may send.
const ACQUIRES: u8 = 2;

/// Which rule is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    None,
    /// Taking back looks at the token only.
    TakeBackIgnoresAttempt,
    /// A repeated `PUT` leaves the grant as it is.
    RepetitionDoesNotPin,
    /// A repeated `PUT` puts its own attempt in place of the one before.
    RepetitionReplacesAttempt,
    /// A `DELETE` frees its token only if it found the lock held by it.
    ReleaseMarksOnlySuccess,
    /// Taking back voids nothing.
    TakeBackVoidsNothing,
    /// In doubt the same attempt, and so a token of ours too, is sent again.
    DoubtSendsAgain,
}

/// Who chooses the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tokens {
    /// The client: one token for all its requests.
    Own,
    /// The server: one for each acquire, and its release leaves no mark.
    Made,
}

#[derive(Clone, Copy, Debug)]
struct Rules {
    tokens: Tokens,
    mutant: Mutant,
}

/// Each acquire of each request is an attempt of its own.
type Attempt = u8;
type Token = u8;

/// What must be reachable, or the search would prove nothing.
const GRANTED: &str = "a lock is granted and used";
const RIVAL_AFTER_RELEASE: &str = "a rival gets its turn after a release";

const OWN_TOKEN: Token = 100;
const RIVAL: Token = 200;

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Command {
    /// `copy` tells apart what is sent twice.
    Acquire {
        request: usize,
        attempt: Attempt,
        copy: u8,
    },
    TakeBack {
        request: usize,
        attempt: Attempt,
    },
    Release {
        token: Token,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Request {
    NotSent,
    /// The gateway waits for the answer to an acquire.
    Acquiring(Attempt),
    /// It waits for its attempt to be voided.
    Voiding(Attempt),
    /// It knows what to answer; a fresh grant is still guarded.
    Answering {
        holds: Option<Grant>,
        guarded: Option<Attempt>,
    },
    Answered {
        holds: Option<Grant>,
    },
    /// The client left before it was answered.
    Left,
}

/// What a client is told: who holds, and by which of all grants, as the fencing number says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Grant {
    token: Token,
    number: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lock {
    grant: Grant,
    /// The attempt that was granted; none once the grant is pinned.
    attempt: Option<Attempt>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    lock: Option<Lock>,
    last_number: u8,
    freed: BTreeSet<Token>,
    voided: BTreeSet<Attempt>,
    /// On their way to the store: they arrive in any order, however late.
    commands: BTreeSet<Command>,
    /// Takes-back that go on in the background until they succeed.
    background: BTreeSet<Attempt>,
    requests: [Request; 2],
    /// Tokens of which the client has sent a `DELETE`, and those whose `DELETE` was answered.
    release_sent: BTreeSet<Token>,
    release_answered: BTreeSet<Token>,
    /// Grants whose lease has ended: their client knows, as it counts its lease from before it asked.
    expired: BTreeSet<Grant>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Put(usize),
    /// A command runs, and its answer arrives, or is lost.
    Run {
        command: Command,
        is_answered: bool,
    },
    StopWaiting(usize),
    TakeBackInBackground(Attempt),
    WriteAnswer(usize),
    Leave(usize),
    Delete(Token),
    Expire,
    RivalTakes,
    RivalReleases,
}

impl Rules {
    fn token_of(&self, attempt: Attempt) -> Token {
        match self.tokens {
            Tokens::Own => OWN_TOKEN,
            Tokens::Made => attempt,
        }
    }

    fn send_acquire(&self, state: &mut State, request: usize, attempt: Attempt, copy: u8) {
        state.requests[request] = Request::Acquiring(attempt);
        state.commands.insert(Command::Acquire { request, attempt, copy });
    }

    fn take_back(&self, state: &mut State, attempt: Attempt) {
        let token = self.token_of(attempt);
        let is_it = |lock: Lock| {
            let matches = lock.attempt == Some(attempt) || self.mutant == Mutant::TakeBackIgnoresAttempt;
            lock.grant.token == token && matches
        };
        if state.lock.is_some_and(is_it) {
            state.lock = None;
        }
        if self.mutant != Mutant::TakeBackVoidsNothing {
            state.voided.insert(attempt);
        }
    }

    /// The step of the store, and what the gateway would answer to it.
    fn acquire(&self, state: &mut State, attempt: Attempt) -> Request {
        let token = self.token_of(attempt);
        let refused = Request::Answering { holds: None, guarded: None };
        if state.freed.contains(&token) || state.voided.contains(&attempt) {
            return refused;
        }
        match state.lock {
            None => {
                let grant = state.next_grant(token);
                state.lock = Some(Lock { grant, attempt: Some(attempt) });
                Request::Answering { holds: Some(grant), guarded: Some(attempt) }
            }
            Some(lock) if lock.grant.token != token => refused,
            Some(lock) if lock.attempt == Some(attempt) => {
                Request::Answering { holds: Some(lock.grant), guarded: Some(attempt) }
            }
            Some(lock) => {
                let pinned = match self.mutant {
                    Mutant::RepetitionDoesNotPin => lock.attempt,
                    Mutant::RepetitionReplacesAttempt => Some(attempt),
                    _ => None,
                };
                state.lock = Some(Lock { attempt: pinned, ..lock });
                Request::Answering { holds: Some(lock.grant), guarded: None }
            }
        }
    }

    fn release(&self, state: &mut State, token: Token) {
        let holds = state.lock.is_some_and(|lock| lock.grant.token == token);
        if holds {
            state.lock = None;
        }
        let leaves_mark = holds || self.mutant != Mutant::ReleaseMarksOnlySuccess;
        if self.tokens == Tokens::Own && leaves_mark {
            state.freed.insert(token);
        }
    }

    fn run(&self, state: &mut State, command: Command, is_answered: bool) {
        state.commands.remove(&command);
        match command {
            Command::Acquire { request, attempt, .. } => {
                let answer = self.acquire(state, attempt);
                if is_answered && state.requests[request] == Request::Acquiring(attempt) {
                    state.requests[request] = answer;
                }
            }
            Command::TakeBack { request, attempt } => {
                self.take_back(state, attempt);
                if is_answered && state.requests[request] == Request::Voiding(attempt) {
                    let next = attempt + 1;
                    match next % ACQUIRES {
                        0 => state.requests[request] = Request::Answering { holds: None, guarded: None },
                        _ => self.send_acquire(state, request, next, 0),
                    }
                }
            }
            Command::Release { token } => {
                self.release(state, token);
                if is_answered {
                    state.release_answered.insert(token);
                }
            }
        }
    }

    /// A gateway that waits no longer: it voids its attempt, or leaves that to the background.
    fn stop_waiting(&self, state: &mut State, request: usize) {
        match state.requests[request] {
            Request::Acquiring(attempt) if self.mutant == Mutant::DoubtSendsAgain => {
                self.send_acquire(state, request, attempt, 1);
            }
            Request::Acquiring(attempt) => {
                state.requests[request] = Request::Voiding(attempt);
                state.commands.insert(Command::TakeBack { request, attempt });
            }
            Request::Voiding(attempt) => {
                state.background.insert(attempt);
                state.requests[request] = Request::Answering { holds: None, guarded: None };
            }
            _ => {}
        }
    }

    fn leave(&self, state: &mut State, request: usize) {
        match state.requests[request] {
            Request::Acquiring(attempt) | Request::Voiding(attempt) => drop(state.background.insert(attempt)),
            Request::Answering { guarded: Some(attempt), .. } => drop(state.background.insert(attempt)),
            _ => {}
        }
        state.requests[request] = Request::Left;
    }
}

impl State {
    fn next_grant(&mut self, token: Token) -> Grant {
        self.last_number += 1;
        Grant { token, number: self.last_number }
    }

    /// The grants by which the client believes that it holds the lock: it was told, and has heard nothing else since.
    fn beliefs(&self) -> impl Iterator<Item = Grant> {
        let told = self.requests.iter().filter_map(|request| match request {
            Request::Answered { holds } => *holds,
            _ => None,
        });
        told.filter(|grant| !self.release_sent.contains(&grant.token) && !self.expired.contains(grant))
    }

    fn is_at_rest(&self) -> bool {
        let is_over = |request: &Request| {
            matches!(request, Request::NotSent | Request::Left | Request::Answered { .. })
        };
        self.commands.is_empty() && self.background.is_empty() && self.requests.iter().all(is_over)
    }
}

impl Model for Rules {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            lock: None,
            last_number: 0,
            freed: BTreeSet::new(),
            voided: BTreeSet::new(),
            commands: BTreeSet::new(),
            background: BTreeSet::new(),
            requests: [Request::NotSent; 2],
            release_sent: BTreeSet::new(),
            release_answered: BTreeSet::new(),
            expired: BTreeSet::new(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (number, request) in state.requests.iter().enumerate() {
            match request {
                Request::NotSent => actions.push(Action::Put(number)),
                Request::Acquiring(attempt) => {
                    let copy = |copy| Command::Acquire { request: number, attempt: *attempt, copy };
                    let is_late = state.commands.contains(&copy(0)) && !state.commands.contains(&copy(1));
                    // The mutant sends one more copy beside a late one, not endlessly many.
                    if self.mutant != Mutant::DoubtSendsAgain || is_late {
                        actions.push(Action::StopWaiting(number));
                    }
                    actions.push(Action::Leave(number));
                }
                Request::Voiding(_) => actions.extend([Action::StopWaiting(number), Action::Leave(number)]),
                Request::Answering { .. } => {
                    actions.extend([Action::WriteAnswer(number), Action::Leave(number)]);
                }
                Request::Answered { holds: Some(grant) } if !state.release_sent.contains(&grant.token) => {
                    actions.push(Action::Delete(grant.token));
                }
                Request::Answered { .. } | Request::Left => {}
            }
        }
        // A client with its own token may give up without any answer.
        let has_begun = state.requests.iter().any(|request| *request != Request::NotSent);
        if self.tokens == Tokens::Own && has_begun && !state.release_sent.contains(&OWN_TOKEN) {
            actions.push(Action::Delete(OWN_TOKEN));
        }
        for command in &state.commands {
            for is_answered in [true, false] {
                actions.push(Action::Run { command: command.clone(), is_answered });
            }
        }
        actions.extend(state.background.iter().map(|attempt| Action::TakeBackInBackground(*attempt)));
        match state.lock {
            None => actions.push(Action::RivalTakes),
            Some(lock) if lock.grant.token == RIVAL => actions.push(Action::RivalReleases),
            Some(_) => actions.push(Action::Expire),
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Put(request) => {
                let first = u8::try_from(request).ok()? * ACQUIRES;
                self.send_acquire(&mut state, request, first, 0);
            }
            Action::Run { command, is_answered } => self.run(&mut state, command, is_answered),
            Action::StopWaiting(request) => self.stop_waiting(&mut state, request),
            Action::TakeBackInBackground(attempt) => {
                state.background.remove(&attempt);
                self.take_back(&mut state, attempt);
            }
            Action::WriteAnswer(request) => {
                let Request::Answering { holds, .. } = state.requests[request] else { return None };
                state.requests[request] = Request::Answered { holds };
            }
            Action::Leave(request) => self.leave(&mut state, request),
            Action::Delete(token) => {
                state.release_sent.insert(token);
                state.commands.insert(Command::Release { token });
            }
            Action::Expire => {
                let ended = state.lock.take()?;
                state.expired.insert(ended.grant);
            }
            // The rival's numbers do not matter here, and counting them would make the search endless.
            Action::RivalTakes => {
                state.lock = Some(Lock { grant: Grant { token: RIVAL, number: 0 }, attempt: None });
            }
            Action::RivalReleases => state.lock = None,
        }
        (state != *last).then_some(state)
    }

    /// Only a mutant that sends again and again could go beyond: each acquire makes one grant at the most.
    fn within_boundary(&self, state: &State) -> bool {
        state.last_number <= 2 * ACQUIRES
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("who believes that it holds, holds", |_, state: &State| {
                state.beliefs().all(|grant| state.lock.is_some_and(|lock| lock.grant == grant))
            }),
            Property::always("after an answered DELETE the token never holds again", |_, state: &State| {
                state.lock.is_none_or(|lock| !state.release_answered.contains(&lock.grant.token))
            }),
            // A repeated PUT pins: what it leaves when both clients vanish ends at its ttl, and is no fault.
            Property::always("a lock at rest is one that somebody was told of", |_, state: &State| {
                let is_orphan = |lock: Lock| {
                    let is_known = state.beliefs().any(|grant| grant == lock.grant);
                    lock.grant.token != RIVAL && lock.attempt.is_some() && !is_known
                };
                !state.is_at_rest() || !state.lock.is_some_and(is_orphan)
            }),
            Property::sometimes(GRANTED, |_, state: &State| state.beliefs().next().is_some()),
            Property::sometimes(RIVAL_AFTER_RELEASE, |_, state: &State| {
                let has_rival = state.lock.is_some_and(|lock| lock.grant.token == RIVAL);
                has_rival && !state.release_answered.is_empty()
            }),
        ]
    }
}

fn search(tokens: Tokens, mutant: Mutant) -> impl Checker<Rules> {
    Rules { tokens, mutant }.checker().threads(2).spawn_bfs().join()
}

#[test]
fn the_rules_hold_for_every_order_of_events() {
    for tokens in [Tokens::Own, Tokens::Made] {
        let checker = search(tokens, Mutant::None);
        println!("{tokens:?} tokens: {} states", checker.unique_state_count());
        assert!(checker.unique_state_count() > 1_000);
        checker.assert_properties();
    }
}

#[test]
fn each_rule_is_missed_when_it_is_left_out() {
    let mutants = [
        (Tokens::Own, Mutant::TakeBackIgnoresAttempt),
        (Tokens::Own, Mutant::RepetitionDoesNotPin),
        (Tokens::Own, Mutant::RepetitionReplacesAttempt),
        (Tokens::Own, Mutant::ReleaseMarksOnlySuccess),
        (Tokens::Own, Mutant::TakeBackVoidsNothing),
        (Tokens::Own, Mutant::DoubtSendsAgain),
        (Tokens::Made, Mutant::DoubtSendsAgain),
        (Tokens::Made, Mutant::TakeBackVoidsNothing),
    ];
    for (tokens, mutant) in mutants {
        let checker = search(tokens, mutant);
        let found = checker.discoveries().into_keys();
        let violated: Vec<_> = found.filter(|name| ![GRANTED, RIVAL_AFTER_RELEASE].contains(name)).collect();
        println!("{tokens:?} {mutant:?}: {violated:?}");
        assert!(!violated.is_empty(), "{tokens:?} {mutant:?} is not caught");
    }
}
