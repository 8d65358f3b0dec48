//! The rules themselves: what the store's scripts do to one lock, and what a gateway does next.

use std::collections::BTreeSet;

/// Acquires that one `PUT` may send.
const ACQUIRES: u8 = 2;

/// The client's own `PUT`s come first; behind them stands the copy that a proxy makes of the first.
pub(super) const OWN_PUTS: usize = 2;
pub(super) const DUPLICATE: usize = OWN_PUTS;
pub(super) const ALL_PUTS: usize = OWN_PUTS + 1;
pub(super) const ATTEMPTS: usize = ALL_PUTS * ACQUIRES as usize;

pub(super) const OWN_TOKEN: Token = 100;
pub(super) const RIVAL: Token = 200;

/// Who chooses the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tokens {
    /// The client: one token for all its requests.
    Own,
    /// The server: one for each acquire, and its release leaves no mark.
    Made,
}

/// How much may happen in one search, and by which rules.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) tokens: Tokens,
    pub(super) puts: usize,
    /// A proxy sends the first `PUT` through another gateway too, and keeps the answer to itself.
    pub(super) has_duplicate: bool,
    pub(super) has_patch: bool,
    pub(super) deletes: usize,
    /// Releases, renewals and takes-back that are sent a second time.
    pub(super) repeats: u8,
    pub(super) mutant: Mutant,
}

/// What is left out of the rules, which are numbered as in the design.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mutant {
    None,
    /// Rule 1: taking back looks at the token only.
    TakeBackIgnoresAttempt,
    /// Rule 2: a repeated `PUT` leaves the grant as it is.
    RepetitionDoesNotPin,
    /// Rule 2: a repeated `PUT` puts its own attempt in place of the one before.
    RepetitionReplacesAttempt,
    /// Rule 2, for everything that tells a token that it holds: a renewal leaves the grant as it is.
    RenewalDoesNotPin,
    /// Rule 3: a `DELETE` frees its token only if it found the lock held by it.
    ReleaseMarksOnlySuccess,
    /// Rule 3: a repeated `DELETE` is answered by the state of the lock, and not by its mark.
    ReleaseIgnoresMark,
    /// Rule 4: taking back voids nothing.
    TakeBackVoidsNothing,
    /// Rule 4: taking back voids its attempt only if it found something to delete.
    TakeBackVoidsOnlySuccess,
    /// Rule 4: a fresh attempt is sent while the one in doubt is still being voided.
    DoubtIsNotAwaited,
    /// Rule 5, and as bad with a client's token: in doubt the same attempt is sent again.
    DoubtSendsAgain,
    /// A renewal brings back a lease that has ended.
    RenewalRevives,
    /// A release that leaves no mark believes its second copy, whatever the first one did.
    ReleaseForgetsDoubt,
    /// An attempt that was voided counts as undone, although another request may have pinned what it took.
    VoidedIsUndone,
}

/// Each acquire of each `PUT` is an attempt of its own.
pub(super) type Attempt = u8;
pub(super) type Token = u8;

/// `copy` tells apart what is sent twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Command {
    Acquire { attempt: Attempt, copy: u8 },
    TakeBack { attempt: Attempt, copy: u8 },
    Renew { copy: u8 },
    Release { delete: usize, copy: u8 },
}

/// Whose work a grant or a pin is: for the properties alone, no rule looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Party {
    Put(usize),
    Patch,
    Rival,
}

/// A lock has no number here: the properties look at every state, so none can be lost and granted anew between two
/// looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Lock {
    pub(super) token: Token,
    /// The attempt that was granted; none once the grant is pinned.
    pub(super) attempt: Option<Attempt>,
    pub(super) granted_to: Party,
    pub(super) pinned_by: Option<Party>,
}

/// Where a `PUT` stands, at its gateway and then at its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Put {
    NotSent,
    /// The gateway waits for the answer to an acquire.
    Acquiring(Attempt),
    /// It waits for its attempt to be voided.
    Voiding(Attempt),
    /// It is about to say that the token holds; a fresh grant is still guarded.
    Granting {
        token: Token,
        guarded: Option<Attempt>,
    },
    /// The answer was written: the token holds.
    Holds(Token),
    /// The answer was written: the token holds nothing. Or what it was told to hold has ended.
    HoldsNothing,
    /// The client left before it was answered, or was told that the outcome is unknown.
    Unanswered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Patch {
    pub(super) token: Token,
    /// Whether the client was told that the token holds.
    pub(super) holds: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Outcome {
    Released,
    NotHeld,
    HeldByAnother,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Delete {
    pub(super) token: Token,
    /// What the client was told; "unknown" tells it nothing.
    pub(super) answer: Option<Outcome>,
    pub(super) was_sent_again: bool,
    /// One of its copies freed the lock: for the properties alone.
    pub(super) did_release: bool,
}

/// Nothing here ages but the lease: marks outlive every late command.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) lock: Option<Lock>,
    /// The final mark of the client's own token, with the answer that it keeps.
    pub(super) freed: Option<Outcome>,
    pub(super) voided: [bool; ATTEMPTS],
    /// On their way to the store: they arrive in any order, however late.
    pub(super) commands: BTreeSet<Command>,
    pub(super) repeats_left: u8,
    pub(super) puts: [Put; ALL_PUTS],
    pub(super) patch: Option<Patch>,
    pub(super) deletes: [Option<Delete>; 2],
}

pub(super) fn put_of(attempt: Attempt) -> usize {
    usize::from(attempt / ACQUIRES)
}

/// The scripts of the store.
impl Rules {
    fn token_of(&self, attempt: Attempt) -> Token {
        match self.tokens {
            Tokens::Own => OWN_TOKEN,
            Tokens::Made => attempt,
        }
    }

    /// Returns what the gateway makes of the answer.
    fn acquire(&self, state: &mut State, attempt: Attempt) -> Put {
        let token = self.token_of(attempt);
        let asker = Party::Put(put_of(attempt));
        // Only a client's own token is ever marked as freed, and then it is the only one that acquires.
        if state.freed.is_some() || state.voided[usize::from(attempt)] {
            return Put::HoldsNothing;
        }
        match &mut state.lock {
            None => {
                let attempt = Some(attempt);
                state.lock = Some(Lock { token, attempt, granted_to: asker, pinned_by: None });
                Put::Granting { token, guarded: attempt }
            }
            Some(lock) if lock.token != token => Put::HoldsNothing,
            Some(lock) if lock.attempt == Some(attempt) => Put::Granting { token, guarded: Some(attempt) },
            Some(lock) => {
                match self.mutant {
                    Mutant::RepetitionDoesNotPin => {}
                    Mutant::RepetitionReplacesAttempt => lock.attempt = Some(attempt),
                    _ => lock.pin(asker),
                }
                Put::Granting { token, guarded: None }
            }
        }
    }

    /// Returns whether the lock was deleted.
    fn take_back(&self, state: &mut State, attempt: Attempt) -> bool {
        let deletes = state.lock.is_some_and(|lock| {
            let matches = lock.attempt == Some(attempt) || self.mutant == Mutant::TakeBackIgnoresAttempt;
            lock.token == self.token_of(attempt) && matches
        });
        if deletes {
            state.lock = None;
        }
        state.voided[usize::from(attempt)] |= match self.mutant {
            Mutant::TakeBackVoidsNothing => false,
            Mutant::TakeBackVoidsOnlySuccess => deletes,
            _ => true,
        };
        deletes
    }

    /// Renews, or looks with the token: both pin, and return whether the token holds.
    fn renew(&self, state: &mut State, token: Token) -> bool {
        match &mut state.lock {
            None if self.mutant == Mutant::RenewalRevives => {
                state.lock = Some(Lock { token, attempt: None, granted_to: Party::Patch, pinned_by: None });
                true
            }
            Some(lock) if lock.token == token => {
                if self.mutant != Mutant::RenewalDoesNotPin {
                    lock.pin(Party::Patch);
                }
                true
            }
            _ => false,
        }
    }

    fn release(&self, state: &mut State, token: Token) -> Outcome {
        if let Some(answer) = state.freed
            && self.mutant != Mutant::ReleaseIgnoresMark
        {
            return answer;
        }
        let answer = match state.lock {
            None => Outcome::NotHeld,
            Some(lock) if lock.token != token => Outcome::HeldByAnother,
            Some(_) => Outcome::Released,
        };
        if answer == Outcome::Released {
            state.lock = None;
        }
        let marks = answer == Outcome::Released || self.mutant != Mutant::ReleaseMarksOnlySuccess;
        if self.tokens == Tokens::Own && marks {
            state.freed = Some(answer);
        }
        answer
    }
}

/// The gateways.
impl Rules {
    pub(super) fn send_first_acquire(&self, state: &mut State, put: usize) {
        self.send_acquire(state, u8::try_from(put).unwrap() * ACQUIRES, 0);
    }

    fn send_acquire(&self, state: &mut State, attempt: Attempt, copy: u8) {
        state.puts[put_of(attempt)] = Put::Acquiring(attempt);
        state.commands.insert(Command::Acquire { attempt, copy });
    }

    /// A command runs; its answer reaches whoever waits for it, or is lost.
    pub(super) fn run(&self, state: &mut State, command: Command, is_answered: bool) {
        state.commands.remove(&command);
        match command {
            Command::Acquire { attempt, .. } => {
                let put = self.acquire(state, attempt);
                if is_answered {
                    state.puts[put_of(attempt)] = put;
                }
            }
            Command::TakeBack { attempt, .. } => {
                let was_deleted = self.take_back(state, attempt);
                if is_answered {
                    self.go_on(state, attempt, was_deleted);
                }
            }
            Command::Renew { .. } => {
                let Some(patch) = state.patch else { return };
                let holds = self.renew(state, patch.token);
                if is_answered {
                    state.patch = Some(Patch { holds: Some(holds), ..patch });
                }
            }
            Command::Release { delete: number, .. } => {
                let Some(mut delete) = state.deletes[number] else { return };
                let lock = state.lock;
                let answer = self.release(state, delete.token);
                delete.did_release |= state.lock != lock;
                // Where no mark speaks for both copies, "not held" may be the work of the other one.
                let is_certain = self.tokens == Tokens::Own
                    || !delete.was_sent_again
                    || answer == Outcome::Released
                    || self.mutant == Mutant::ReleaseForgetsDoubt;
                if is_answered && is_certain {
                    delete.answer = Some(answer);
                }
                state.deletes[number] = Some(delete);
            }
        }
    }

    /// An attempt is voided: its gateway sends a fresh one, or gives up.
    fn go_on(&self, state: &mut State, attempt: Attempt, was_deleted: bool) {
        if let Some(next) = next_attempt(attempt) {
            self.send_acquire(state, next, 0);
            return;
        }
        // With a token that the client knows, what was not found may stand all the same, pinned by another request.
        let is_undone = was_deleted || self.tokens == Tokens::Made || self.mutant == Mutant::VoidedIsUndone;
        state.puts[put_of(attempt)] = if is_undone { Put::HoldsNothing } else { Put::Unanswered };
    }

    /// A gateway waits no longer: it voids its attempt, or leaves that to the background.
    pub(super) fn stop_waiting(&self, state: &mut State, put: usize) {
        match (state.puts[put], self.mutant) {
            (Put::Acquiring(attempt), Mutant::DoubtSendsAgain) => self.send_acquire(state, attempt, 1),
            (Put::Acquiring(attempt), _) => {
                state.puts[put] = Put::Voiding(attempt);
                state.commands.insert(Command::TakeBack { attempt, copy: 0 });
                if self.mutant == Mutant::DoubtIsNotAwaited {
                    self.go_on(state, attempt, false);
                }
            }
            _ => self.leave(state, put),
        }
    }

    /// Nobody is answered: what was or may yet be granted is taken back in the background until that succeeds, so
    /// that at least one copy of the command arrives.
    pub(super) fn leave(&self, state: &mut State, put: usize) {
        if let Put::Acquiring(attempt) | Put::Granting { guarded: Some(attempt), .. } = state.puts[put] {
            state.commands.insert(Command::TakeBack { attempt, copy: 0 });
        }
        state.puts[put] = Put::Unanswered;
    }
}

fn next_attempt(attempt: Attempt) -> Option<Attempt> {
    Some(attempt + 1).filter(|next| !next.is_multiple_of(ACQUIRES))
}

impl Lock {
    fn pin(&mut self, by: Party) {
        self.attempt = None;
        self.pinned_by.get_or_insert(by);
    }
}
