//! What is known of one lock, and of those who use it with the same token: at the store, at gateways, and at clients.

use std::collections::BTreeSet;

pub(super) const HOLDS: usize = 2;
/// Acquires that one connection may send.
const ACQUIRES: u8 = 2;
const PUT_ATTEMPT: Attempt = 4;
/// A claim is the attempt that found the lock held by its token, with another bit: by it a connection holds the lock,
/// but taking back the attempt does not touch it.
pub(super) const CLAIM: Attempt = 8;

pub(super) type Attempt = u8;

/// `copy` tells apart what is sent twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Command {
    Acquire {
        attempt: Attempt,
        supersedes: Option<Attempt>,
        copy: u8,
    },
    /// `is_last` is the one that hands over.
    Renew {
        hold: usize,
        by: Attempt,
        is_last: bool,
        copy: u8,
    },
    TakeBack {
        attempt: Attempt,
    },
    /// The same of a claim while a lease may run that was told before it: the lock lasts as long as that, and no longer.
    Cut {
        hold: usize,
        claim: Attempt,
    },
    Patch {
        copy: u8,
    },
    Release,
}

/// Who took the lock with the token: for the properties alone, no rule looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Party {
    Hold(usize),
    Put,
    Patch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Lock {
    Free,
    /// By the one token of all requests here: by an attempt, by a claim, or pinned. `last` is the last request that
    /// took it.
    Held {
        by: Option<Attempt>,
        last: Party,
        /// Where the lease lasts as long as those that were told before this connection claimed the lock, and no longer: it
        /// has not been renewed since, or was cut to that.
        cut: Option<usize>,
    },
    Rivals,
}

/// Where a connection stands at its gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    NotSent,
    /// The gateway waits for the answer to an acquire.
    Acquiring(Attempt),
    /// It waits for its attempt to be voided.
    Voiding(Attempt),
    /// It renews by this attempt or claim.
    Holding(Attempt),
    /// It stops, and renews for the last time.
    HandingOver(Attempt),
    /// The lock was left to the token.
    HandedOver,
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Hold {
    pub(super) phase: Phase,
    /// Whether its client is still there, which the gateway may be late to see. The client of a late copy left when
    /// it had sent it.
    pub(super) is_heard: bool,
    /// Whether the client believes in a lease.
    pub(super) is_told: bool,
    /// What is taken back when the connection closes.
    pub(super) guarded: Option<Attempt>,
    /// Whether every lease is over that was told before the lock was claimed: so is the one that was told then.
    pub(super) outlived_the_found: bool,
    /// Who was told of a lease before the lock was claimed, and not since: a bit for each party.
    pub(super) told_before: u8,
    /// Whether another request took the lock since this one did: for the properties alone.
    pub(super) is_taken_over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Put {
    NotSent,
    Acquiring,
    /// The gateway is about to say that the token holds; a fresh grant is guarded.
    Granting {
        is_guarded: bool,
    },
    /// The client believes in a lease.
    Holds,
    Over,
}

/// What became of a `PATCH` or a `DELETE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Request {
    NotSent,
    Waits,
    /// The client believes in a lease, or that the token is freed.
    Done,
    Over,
}

/// Marks outlive every late command here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) lock: Lock,
    pub(super) is_freed: bool,
    /// A bit for each attempt.
    pub(super) voided: u16,
    /// On their way to the store: they arrive in any order, however late.
    pub(super) commands: BTreeSet<Command>,
    pub(super) repeats_left: u8,
    pub(super) holds: [Hold; HOLDS],
    pub(super) put: Put,
    pub(super) patch: Request,
    pub(super) delete: Request,
    /// A connection was renewed after another request had taken the lock over, or was told so where none had.
    pub(super) is_out_of_turn: bool,
}

impl Lock {
    pub(super) fn is_pinned(self) -> bool {
        matches!(self, Self::Held { by: None, .. })
    }
}

impl State {
    pub(super) fn new(repeats: u8) -> Self {
        let hold = Hold {
            phase: Phase::NotSent,
            is_heard: true,
            is_told: false,
            guarded: None,
            outlived_the_found: false,
            told_before: 0,
            is_taken_over: false,
        };
        Self {
            lock: Lock::Free,
            is_freed: false,
            voided: 0,
            commands: BTreeSet::new(),
            repeats_left: repeats,
            holds: [hold; HOLDS],
            put: Put::NotSent,
            patch: Request::NotSent,
            delete: Request::NotSent,
            is_out_of_turn: false,
        }
    }

    /// The store is about to tell a party of a lease.
    pub(super) fn is_told_by_the_store(&mut self, party: Party) {
        for hold in &mut self.holds {
            hold.told_before &= !bit_of(party);
        }
    }

    /// A party takes the lock, and is about to be told of its lease.
    pub(super) fn is_taken_by(&mut self, party: Party) {
        for (number, hold) in self.holds.iter_mut().enumerate() {
            if party != Party::Hold(number) {
                hold.is_taken_over = true;
            } else if matches!(hold.phase, Phase::Acquiring(_)) {
                hold.is_taken_over = false;
            }
        }
        self.is_told_by_the_store(party);
    }

    /// A lease ends for those who were told of it: clients and gateways count it from before they asked.
    pub(super) fn end_leases(&mut self, parties: u8) {
        let is_one = |party| parties & bit_of(party) != 0;
        for (number, hold) in self.holds.iter_mut().enumerate() {
            hold.is_told &= !is_one(Party::Hold(number));
        }
        if is_one(Party::Put) && matches!(self.put, Put::Granting { .. } | Put::Holds) {
            self.leave_put();
        }
        if is_one(Party::Patch) && self.patch == Request::Done {
            self.patch = Request::Over;
        }
    }

    /// The client of the `PUT` is answered no more, or forgets its answer.
    pub(super) fn leave_put(&mut self) {
        if let Put::Acquiring | Put::Granting { is_guarded: true } = self.put {
            self.commands.insert(Command::TakeBack { attempt: PUT_ATTEMPT });
        }
        self.put = Put::Over;
    }

    pub(super) fn send_put(&mut self) {
        self.put = Put::Acquiring;
        self.commands.insert(Command::Acquire { attempt: PUT_ATTEMPT, supersedes: None, copy: 0 });
    }

    pub(super) fn send_hold(&mut self, hold: usize) {
        self.send_acquire(hold, u8::try_from(hold).unwrap() * ACQUIRES, None);
    }

    pub(super) fn send_acquire(&mut self, hold: usize, attempt: Attempt, supersedes: Option<Attempt>) {
        self.holds[hold].phase = Phase::Acquiring(attempt);
        self.commands.insert(Command::Acquire { attempt, supersedes, copy: 0 });
    }
}

/// Claims are numbered as the attempts they were made of.
pub(super) fn is_claim(by: Attempt) -> bool {
    by >= CLAIM
}

pub(super) fn party_of(by: Attempt) -> Party {
    match by % CLAIM {
        PUT_ATTEMPT => Party::Put,
        attempt => Party::Hold(usize::from(attempt / ACQUIRES)),
    }
}

fn bit_of(party: Party) -> u8 {
    match party {
        Party::Hold(hold) => 1 << hold,
        Party::Put => 1 << HOLDS,
        Party::Patch => 2 << HOLDS,
    }
}

pub(super) fn next_attempt(attempt: Attempt) -> Option<Attempt> {
    Some(attempt + 1).filter(|next| !next.is_multiple_of(ACQUIRES))
}
