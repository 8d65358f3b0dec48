//! What there is at any moment: the store's keys, what is on its way, what the gateways know, and who was
//! told what.

use super::store::Reply;

/// The tokens of those who wait; behind them comes the one that holds the lock at first.
pub const TOKENS: usize = 3;
pub const HOLDER: Token = TOKENS;
pub const REQUESTS: usize = 4;
pub const GATEWAYS: usize = 2;
/// The fresh attempts that one request may need.
pub const ATTEMPTS: u8 = 4;

pub type Token = usize;
pub type Request = usize;
pub type Gateway = usize;

/// Numbered through all requests.
pub type Attempt = u8;

pub fn request_of(attempt: Attempt) -> Request {
    usize::from(attempt / ATTEMPTS)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attempts(pub u16);

impl Attempts {
    pub fn has(self, attempt: Attempt) -> bool {
        self.0 & 1 << attempt != 0
    }

    pub fn add(&mut self, attempt: Attempt) {
        self.0 |= 1 << attempt;
    }

    pub fn remove(&mut self, attempt: Attempt) {
        self.0 &= !(1 << attempt);
    }

    pub fn iter(self) -> impl Iterator<Item = Attempt> {
        (0..16).filter(move |attempt| self.has(*attempt))
    }
}

impl FromIterator<Attempt> for Attempts {
    fn from_iter<I: IntoIterator<Item = Attempt>>(attempts: I) -> Self {
        let mut all = Self::default();
        attempts.into_iter().for_each(|attempt| all.add(attempt));
        all
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lock {
    Free,
    Offered(Offer),
    Held(Held),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Offer {
    pub token: Token,
    /// None for a ticket.
    pub attempt: Option<Attempt>,
    pub is_lapsed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    pub token: Token,
    /// The attempt that was granted; none once the grant is pinned.
    pub attempt: Option<Attempt>,
    /// Whose work it is, for the properties alone. None: nobody is to blame if nobody learns of it.
    pub granted_to: Option<Request>,
    pub pinned_by: Option<Request>,
}

/// A place, in the line or aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seat {
    pub place: u8,
    /// None for a ticket, and for one aside whose client is away.
    pub client: Option<Attempt>,
    /// The present attempt that it was taken from.
    pub from: Option<Attempt>,
    pub is_in_line: bool,
}

impl Seat {
    pub fn is_present(&self) -> bool {
        self.is_in_line && self.client.is_some()
    }
}

/// What the store knows of a gateway's heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Gate {
    Unknown,
    /// The last one is older than two beats.
    Silent,
    Heard,
    /// Heard, and since the offer that stands.
    HeardSinceOffer,
}

/// Whether the lock is on the list of those that somebody must look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Due {
    Never,
    /// When the lease ends as it stood when it was last looked at.
    AtItsEnd,
    Now,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Process {
    Runs,
    /// It beats, and does nothing else.
    OnlyBeats,
    Killed,
}

/// On their way to the store although nobody waits for them any more: they arrive in any order, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Command {
    Join(Join),
    Look(Attempt),
    LastLook(Attempt, Attempts),
    TakeBack(Attempt),
    Beat(Gateway),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Join {
    pub attempt: Attempt,
    pub supersedes: Attempts,
    pub displaces: bool,
    /// The remembered place of one that puts itself back.
    pub place: Option<u8>,
    /// It was sent before the store lost its data: for the properties alone.
    pub is_old: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    NotSent,
    Waiting,
    /// The last look was sent.
    Ending,
    /// Its client was told that the token holds.
    Holds,
    /// Its client was told that the token holds nothing; or what it held has ended.
    HoldsNothing,
    /// Its client left, or its gateway was killed.
    Unanswered,
}

/// A request at its gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wait {
    pub phase: Phase,
    pub current: Attempt,
    /// The attempts before the current one that may not be voided yet begin here.
    pub former: Attempt,
    pub is_in_doubt: bool,
    pub is_moved: bool,
    pub puts_back: bool,
    pub place: Option<u8>,
    /// An answer on its way, and whether it is to a join.
    pub answer: Option<(Reply, bool)>,
    /// Something was heard of it since the command was sent that is being answered.
    pub is_overtaken: bool,
}

impl Wait {
    pub fn formers(&self) -> Attempts {
        (self.former..self.current).collect()
    }

    pub fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting | Phase::Ending)
    }

    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Waiting && !self.is_in_doubt && self.answer.is_none()
    }

    /// A grant that is over before its answer is heard is told to nobody.
    pub fn lose_grant(&mut self) {
        if self.phase == Phase::Holds || matches!(self.answer, Some((Reply::Granted, _))) {
            self.end(Phase::HoldsNothing);
        }
    }

    /// Nothing of an ended request matters but how it ended.
    pub fn end(&mut self, phase: Phase) {
        let current = self.current - self.current % ATTEMPTS;
        *self = Self { phase, ..Self::new(current) };
    }

    pub fn new(current: Attempt) -> Self {
        Self {
            phase: Phase::NotSent,
            current,
            former: current,
            is_in_doubt: false,
            is_moved: false,
            puts_back: false,
            place: None,
            answer: None,
            is_overtaken: false,
        }
    }
}

/// How often what may go wrong, or may end a wait, may do so in one search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Faults {
    /// Commands that are not answered, whether they run at once or later.
    pub doubts: u8,
    /// Answers in whose time other things happen.
    pub slow_answers: u8,
    pub lost_hints: u8,
    /// Beats that run and are not answered, and those that come late.
    pub lost_beats: u8,
    /// An offer lapses, or a gateway counts as silent, or a place runs out, although all are there and at
    /// work.
    pub delays: u8,
    pub kills: u8,
    pub only_beats: u8,
    pub flushes: u8,
    /// The store loses a place and keeps the rest.
    pub failovers: u8,
    pub leaves: u8,
    pub ends: u8,
    pub deletes: u8,
    pub expiries: u8,
    pub renewals: u8,
}

pub const NO_FAULTS: Faults = Faults {
    doubts: 0,
    slow_answers: 0,
    lost_hints: 0,
    lost_beats: 0,
    delays: 0,
    kills: 0,
    only_beats: 0,
    flushes: 0,
    failovers: 0,
    leaves: 0,
    ends: 0,
    deletes: 0,
    expiries: 0,
    renewals: 0,
};

/// What must never happen in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wrong {
    /// The lock went to someone while one present stood before it.
    Overtaking,
    /// A place was given out anew behind the one that the client had.
    PlaceLost,
    /// An offer lapsed although the gateway of whom it was made to was at work.
    NeedlessLapse,
    /// The waiters of one killed gateway cost more than one offer.
    ManyLapses,
    /// An attempt that somebody waits for was refused as voided.
    LiveAttemptVoided,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub lock: Lock,
    pub due: Due,
    pub seats: [Option<Seat>; TOKENS],
    pub freed: [bool; TOKENS],
    pub voided: Attempts,
    pub gates: [Gate; GATEWAYS],
    /// The gateway was told of the last beat that the store has of it.
    pub is_beat_known: [bool; GATEWAYS],
    pub next_place: u8,

    pub commands: Vec<Command>,
    /// Hints on their way: to whom the lock is offered, and whose place was taken.
    pub offer_hints: Attempts,
    pub move_hints: Attempts,

    pub processes: [Process; GATEWAYS],
    pub waits: [Wait; REQUESTS],
    /// What is being taken back in the background.
    pub errands: Attempts,

    pub left: Faults,
    /// The first place that each token was given in this wait, for the properties alone.
    pub first_places: [Option<u8>; TOKENS],
    /// The offers that may still lapse on account of killed gateways.
    pub lapses_left: u8,
    pub wrong: Option<Wrong>,
}
