//! The rules themselves: what the store's scripts do to one lock, and what the gateways of connections and of plain
//! requests do next.

use super::state::{
    Attempt, CLAIM, Command, Lock, Party, Phase, Put, Request, State, is_claim, next_attempt, party_of,
};

/// How much may happen in one search, and by which rules.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Connections that hold, or wish to.
    pub(super) holds: usize,
    pub(super) retries: Retries,
    /// Whether gateways may be told to stop.
    pub(super) hands_over: bool,
    pub(super) has_put: bool,
    pub(super) has_patch: bool,
    pub(super) has_delete: bool,
    /// Commands that are sent again while their first copy is on its way.
    pub(super) repeats: u8,
    pub(super) mutant: Mutant,
}

/// How an acquire without an answer is followed by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retries {
    None,
    /// After it was taken back, as by those who do not wait.
    Voided,
    /// At once, by one that stands for it, as by those who wait.
    Superseded,
}

/// What is left out of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mutant {
    None,
    /// A connection whose token holds the lock leaves it as it is.
    NothingIsClaimed,
    /// It puts its attempt there instead of a claim, and guards that.
    ClaimIsTheAttempt,
    /// A second copy of its acquire claims the lock once more.
    ClaimVoidsNothing,
    /// It frees what it claimed although a lease that was told before may not be over.
    ClaimIsFreedEarly,
    /// It never frees what it claimed.
    ClaimIsNeverFreed,
    /// It lengthens the lease that it finds, so that what was told before it is not known any more.
    ClaimLengthensTheLease,
    /// It counts its own lease as one that was told before it: where it closes early, the lock stays for as long.
    ClaimCountsItsOwnLease,
    /// A late copy of what cuts a lease does so whoever was told of the lock since.
    CutIgnoresAttempt,
    /// A `PUT` that finds its token holding leaves the lock to the connection.
    PutDoesNotPin,
    PatchDoesNotPin,
    /// A connection renews whatever its token holds.
    RenewalIgnoresAttempt,
    /// It takes over what is pinned.
    RenewalAdopts,
    /// It pins, as a client's renewal does.
    RenewalPins,
    /// It brings back a lease that has ended.
    RenewalRevives,
    /// The guard is disarmed as soon as the client is told, as it is for a `PUT`.
    GuardEndsWithTheAnswer,
    TakeBackIgnoresAttempt,
    TakeBackVoidsNothing,
    /// A fresh acquire is sent without voiding the one in doubt.
    DoubtIsNotVoided,
    /// An acquire that stands for another does not void it.
    SupersedingVoidsNothing,
    /// What is handed over is renewed by the token, which pins it.
    HandOverPins,
    /// The guard stays armed when the client is told that its lock was handed over.
    HandOverStaysGuarded,
}

enum Acquired {
    Granted,
    /// The token held it before; now it does by this claim.
    AlreadyHeld(Attempt),
    Refused,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Renewed {
    Done,
    TakenOver { is_its_turn: bool },
    NotHeld,
}

/// The scripts of the store.
impl Rules {
    fn acquire(&self, state: &mut State, attempt: Attempt, supersedes: Option<Attempt>) -> Acquired {
        let (party, claim) = (party_of(attempt), CLAIM + attempt);
        // A copy whose answer was lost has claimed it: nothing more is done.
        if matches!(state.lock, Lock::Held { by, .. } if by == Some(claim)) {
            return Acquired::AlreadyHeld(claim);
        }
        if state.is_freed || state.voided & 1 << attempt != 0 {
            return Acquired::Refused;
        }
        if self.mutant != Mutant::SupersedingVoidsNothing {
            state.voided |= supersedes.map_or(0, |former| 1 << former);
        }
        let acquired = match &mut state.lock {
            Lock::Rivals => return Acquired::Refused,
            Lock::Free => {
                state.lock = Lock::Held { by: Some(attempt), last: party, cut: None };
                Acquired::Granted
            }
            Lock::Held { by, .. } if *by == Some(attempt) => return Acquired::Granted,
            // What was granted to an attempt that this one stands for is now this one's.
            Lock::Held { by: Some(by), last, .. } if Some(*by) == supersedes => {
                (*by, *last) = (attempt, party);
                Acquired::Granted
            }
            Lock::Held { by, last, cut } => {
                *cut = None;
                match (party, self.mutant) {
                    (Party::Hold(_), Mutant::NothingIsClaimed) | (Party::Put, Mutant::PutDoesNotPin) => {}
                    (Party::Hold(_), Mutant::ClaimIsTheAttempt) => *by = Some(attempt),
                    (Party::Hold(_), _) => *by = Some(claim),
                    _ => *by = None,
                }
                *last = party;
                if let Party::Hold(hold) = party {
                    // The lease is what it was, until the connection renews it.
                    *cut = (self.mutant != Mutant::ClaimLengthensTheLease).then_some(hold);
                    state.voided |= if self.mutant == Mutant::ClaimVoidsNothing { 0 } else { 1 << attempt };
                }
                Acquired::AlreadyHeld(claim)
            }
        };
        state.is_taken_by(party);
        if let (Party::Hold(hold), Acquired::AlreadyHeld(_)) = (party, &acquired) {
            let hold = &mut state.holds[hold];
            // Also to this one: it is told of the lease that was found.
            (hold.told_before, hold.outlived_the_found) = (u8::MAX, false);
        }
        acquired
    }

    fn renew(&self, state: &mut State, hold: usize, claim: Attempt, pins: bool) -> Renewed {
        let party = Party::Hold(hold);
        if state.lock == Lock::Free && self.mutant == Mutant::RenewalRevives {
            state.lock = Lock::Held { by: Some(claim), last: party, cut: None };
        }
        let Lock::Held { by, cut, .. } = &mut state.lock else { return Renewed::NotHeld };
        let is_allowed = *by == Some(claim)
            || pins
            || self.mutant == Mutant::RenewalIgnoresAttempt
            || self.mutant == Mutant::RenewalAdopts && by.is_none();
        let is_its_turn = !state.holds[hold].is_taken_over;
        if !is_allowed {
            return Renewed::TakenOver { is_its_turn };
        }
        *cut = None;
        state.is_out_of_turn |= !is_its_turn && !pins;
        if self.mutant == Mutant::RenewalAdopts {
            *by = Some(claim);
        }
        if pins || self.mutant == Mutant::RenewalPins {
            *by = None;
        }
        state.is_told_by_the_store(party);
        Renewed::Done
    }

    fn take_back(&self, state: &mut State, attempt: Attempt) {
        if let Lock::Held { by, .. } = state.lock
            && (by == Some(attempt) || self.mutant == Mutant::TakeBackIgnoresAttempt)
        {
            state.lock = Lock::Free;
        }
        if self.mutant != Mutant::TakeBackVoidsNothing {
            state.voided |= 1 << attempt;
        }
    }

    /// The lock is the token's from now on, until the leases are over that were told before the claim.
    fn cut(&self, state: &mut State, hold: usize, claim: Attempt) {
        if let Lock::Held { by, cut, .. } = &mut state.lock
            && (*by == Some(claim) || self.mutant == Mutant::CutIgnoresAttempt)
        {
            (*by, *cut) = (None, Some(hold));
        }
        state.voided |= 1 << claim;
    }

    /// Returns whether the token holds.
    fn patch(&self, state: &mut State) -> bool {
        let Lock::Held { by, last, cut } = &mut state.lock else { return false };
        *cut = None;
        if self.mutant != Mutant::PatchDoesNotPin {
            *by = None;
        }
        *last = Party::Patch;
        state.is_taken_by(Party::Patch);
        true
    }
}

/// The gateways.
impl Rules {
    /// A command runs; its answer reaches whoever waits for it, or is lost.
    pub(super) fn run(&self, state: &mut State, command: Command, is_answered: bool) {
        state.commands.remove(&command);
        match command {
            Command::Acquire { attempt, supersedes, copy } => {
                // Only a look, which takes no free lock, is sent a second time.
                let acquired = match state.lock {
                    Lock::Free if copy > 0 => Acquired::Refused,
                    _ => self.acquire(state, attempt, supersedes),
                };
                match party_of(attempt) {
                    Party::Hold(hold) if is_answered => self.is_acquired(state, hold, attempt, &acquired),
                    Party::Put if is_answered => {
                        state.put = match acquired {
                            Acquired::Granted => Put::Granting { is_guarded: true },
                            Acquired::AlreadyHeld(_) => Put::Granting { is_guarded: false },
                            Acquired::Refused => Put::Over,
                        }
                    }
                    _ => {}
                }
            }
            Command::Renew { hold, by, is_last, .. } => {
                let renewed = self.renew(state, hold, by, is_last && self.mutant == Mutant::HandOverPins);
                if !is_answered {
                    return;
                }
                if renewed == Renewed::Done {
                    state.holds[hold].is_told = state.holds[hold].is_heard;
                    if is_last {
                        self.hand_over(state, hold);
                    }
                } else {
                    state.is_out_of_turn |= renewed == Renewed::TakenOver { is_its_turn: true };
                    self.close(state, hold);
                }
            }
            Command::TakeBack { attempt } => {
                self.take_back(state, attempt);
                if !is_answered {
                    // It is sent until it is answered.
                    state.commands.insert(command);
                } else if let Party::Hold(hold) = party_of(attempt)
                    && state.holds[hold].phase == Phase::Voiding(attempt)
                {
                    self.is_voided(state, hold, attempt);
                }
            }
            Command::Cut { hold, claim } => {
                self.cut(state, hold, claim);
                if !is_answered {
                    // Sent again, it takes the lock back where by then that is over which was told before.
                    state.commands.insert(match state.holds[hold].outlived_the_found {
                        true => Command::TakeBack { attempt: claim },
                        false => command,
                    });
                }
            }
            Command::Patch { .. } => {
                let holds = self.patch(state);
                if is_answered {
                    state.patch = if holds { Request::Done } else { Request::Over };
                }
            }
            Command::Release => {
                if let Lock::Held { .. } = state.lock {
                    state.lock = Lock::Free;
                }
                state.is_freed = true;
                if is_answered {
                    state.delete = Request::Done;
                }
            }
        }
    }

    fn is_acquired(&self, state: &mut State, number: usize, attempt: Attempt, acquired: &Acquired) {
        let hold = &mut state.holds[number];
        let (by, guarded) = match acquired {
            Acquired::Granted if self.mutant == Mutant::GuardEndsWithTheAnswer => (attempt, None),
            Acquired::Granted => (attempt, Some(attempt)),
            Acquired::AlreadyHeld(_) if self.mutant == Mutant::ClaimIsTheAttempt => (attempt, Some(attempt)),
            Acquired::AlreadyHeld(claim) => (*claim, None),
            Acquired::Refused => {
                hold.phase = Phase::Over;
                return;
            }
        };
        (hold.phase, hold.guarded, hold.is_told) = (Phase::Holding(by), guarded, hold.is_heard);
    }

    /// An acquire was not answered.
    pub(super) fn retry(&self, state: &mut State, hold: usize) {
        let Phase::Acquiring(attempt) = state.holds[hold].phase else { return };
        match (self.retries, next_attempt(attempt)) {
            (Retries::Superseded, Some(next)) => state.send_acquire(hold, next, Some(attempt)),
            (Retries::Voided, Some(_)) if self.mutant == Mutant::DoubtIsNotVoided => {
                self.is_voided(state, hold, attempt);
            }
            (Retries::Voided, _) => {
                state.holds[hold].phase = Phase::Voiding(attempt);
                state.commands.insert(Command::TakeBack { attempt });
            }
            _ => self.close(state, hold),
        }
    }

    fn is_voided(&self, state: &mut State, hold: usize, attempt: Attempt) {
        match next_attempt(attempt) {
            Some(next) => state.send_acquire(hold, next, None),
            None => self.close(state, hold),
        }
    }

    /// The lease that a connection was told of when it claimed the lock is over. None that was told before is longer,
    /// and who was told since has pinned the lock or claimed it: from now on closing may free it.
    pub(super) fn outlive_the_found(&self, state: &mut State, hold: usize) {
        let Phase::Holding(claim) = state.holds[hold].phase else { return };
        self.end_what_was_found(state, hold);
        if self.mutant != Mutant::ClaimIsNeverFreed {
            state.holds[hold].guarded = Some(claim);
        }
    }

    /// Time goes on until no lease runs any more that was told before the connection claimed the lock; with them ends that
    /// which was cut to them.
    pub(super) fn end_what_was_found(&self, state: &mut State, hold: usize) {
        if self.mutant != Mutant::ClaimIsFreedEarly {
            state.end_leases(state.holds[hold].told_before);
        }
        state.holds[hold].outlived_the_found = true;
        if matches!(state.lock, Lock::Held { cut: Some(by), .. } if by == hold) {
            state.lock = Lock::Free;
        }
    }

    /// Renewed for the last time, or not: the lease goes on without the connection, by what it held the lock.
    pub(super) fn hand_over(&self, state: &mut State, number: usize) {
        let hold = &mut state.holds[number];
        if self.mutant != Mutant::HandOverStaysGuarded {
            hold.guarded = None;
        }
        let is_told = hold.is_told;
        self.close(state, number);
        (state.holds[number].phase, state.holds[number].is_told) = (Phase::HandedOver, is_told);
    }

    /// A connection ends: whatever it may hold is taken back in the background until that succeeds.
    pub(super) fn close(&self, state: &mut State, number: usize) {
        let hold = &mut state.holds[number];
        if let Phase::Acquiring(attempt) = hold.phase {
            state.commands.insert(Command::TakeBack { attempt });
            if self.retries == Retries::Superseded && next_attempt(attempt).is_none() {
                state.commands.insert(Command::TakeBack { attempt: attempt - 1 });
            }
        }
        match (hold.guarded.take(), hold.phase) {
            (Some(attempt), _) => {
                state.commands.insert(Command::TakeBack { attempt });
            }
            (None, Phase::Holding(claim))
                if is_claim(claim)
                    && !hold.outlived_the_found
                    && !matches!(self.mutant, Mutant::ClaimCountsItsOwnLease | Mutant::ClaimIsNeverFreed) =>
            {
                state.commands.insert(Command::Cut { hold: number, claim });
            }
            _ => {}
        }
        let hold = &mut state.holds[number];
        (hold.phase, hold.is_told) = (Phase::Over, false);
    }
}
