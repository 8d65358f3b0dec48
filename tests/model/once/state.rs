//! One record, what is on its way to it, and who works.

use std::collections::BTreeSet;

pub type Token = u8;
pub type Print = u8;
pub type Number = u8;
pub type Body = u8;
/// An index among the workers.
pub type Run = usize;

/// Begins that one run may send.
pub const BEGINS: u8 = 2;
pub const RUNS: usize = 3;

/// Each begin of each run is an attempt of its own.
pub type Attempt = u8;

pub fn attempt_of(run: Run, number: u8) -> Attempt {
    u8::try_from(run).unwrap() * BEGINS + number
}

/// Numbers or tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Few(u16);

impl Few {
    pub fn has(self, one: u8) -> bool {
        self.0 >> one & 1 == 1
    }

    pub fn add(&mut self, one: u8) {
        self.0 |= 1 << one;
    }

    pub fn remove(&mut self, one: u8) {
        self.0 &= !(1 << one);
    }

    pub fn count(self) -> u8 {
        u8::try_from(self.0.count_ones()).unwrap()
    }
}

/// A record without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Nobody's, once its worker gave up.
    pub token: Option<Token>,
    /// What was granted; none once the place is pinned.
    pub attempt: Option<Attempt>,
    pub number: Number,
    pub is_lapsed: bool,
    pub earlier: u8,
    pub print: Option<Print>,
    /// Whom it was taken over from.
    pub former: Option<Former>,
    /// It lives for `keep`, by a mutant, and not for 7 days.
    pub is_short: bool,
}

/// A worker whose lease was over when another took over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Former {
    pub token: Token,
    pub attempt: Option<Attempt>,
    pub number: Number,
    pub earlier: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stored {
    pub token: Token,
    pub number: Number,
    pub body: (Run, Body),
    pub print: Option<Print>,
    /// Its lease was over.
    pub is_late: bool,
    /// It may end while a post is repeated, by a mutant.
    pub is_short: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Record {
    Place(Place),
    Done(Stored),
}

impl Record {
    pub fn print(self) -> Option<Print> {
        match self {
            Self::Place(place) => place.print,
            Self::Done(stored) => stored.print,
        }
    }

    pub fn number(self) -> Number {
        match self {
            Self::Place(place) => place.number,
            Self::Done(stored) => stored.number,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Command {
    Begin { run: Run, attempt: Attempt },
    TakeBack { run: Run, attempt: Attempt },
    Post { run: Run, body: Body, number: Option<Number> },
    Renew { run: Run, number: Option<Number> },
    GiveUp { run: Run, is_clean: bool },
    Break { number: Number, is_clean: bool },
}

impl Command {
    pub fn run(self) -> Option<Run> {
        match self {
            Self::Begin { run, .. }
            | Self::TakeBack { run, .. }
            | Self::Post { run, .. }
            | Self::Renew { run, .. }
            | Self::GiveUp { run, .. } => Some(run),
            Self::Break { .. } => None,
        }
    }
}

/// On its way to the store. It arrives in any order, however late, or is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sent {
    pub command: Command,
    /// It ran once already.
    pub is_copy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    Left,
    /// It was told to begin, and may have done the work.
    Crashed,
    /// It was told the result of another.
    Replayed,
    Stored,
    Superseded,
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Idle,
    Asks(Attempt),
    Works,
    Posts,
    Over(End),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RunState {
    pub phase: Phase,
    /// The number by which it believes to work, or did when it ended; or none.
    pub number: Number,
    pub begins_left: u8,
    pub posts_left: u8,
    pub gives_up_left: u8,
    pub renews_left: u8,
    /// A post of it was stored, and is kept: for the promises alone.
    pub is_stored: bool,
}

/// What happened to the record, for the promises alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Truth {
    /// The last grant of this life, until it is given up, taken back or broken.
    pub grant: Option<(Token, Number)>,
    /// The one before it, if that ended by its lease alone.
    pub former: Option<(Token, Number)>,
    pub result: Option<(Run, Body)>,
    /// What the first of this life said.
    pub print: Option<Print>,
    /// The numbers of those that were told to begin, and did not say since that they did nothing.
    pub told: Few,
    /// Tokens that may not begin again.
    pub gave_up: Few,
    pub largest: Number,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub record: Option<Record>,
    pub fence: Number,
    pub freed: Few,
    pub voided: Few,
    pub commands: BTreeSet<Sent>,
    pub runs: [RunState; RUNS],
    /// A gateway ended without taking back what it had asked for.
    pub was_killed: bool,
    pub repeats_left: u8,
    pub ends_left: u8,
    pub losses_left: u8,
    pub breaks_left: u8,
    pub truth: Truth,
    /// The promise that the last step broke.
    pub broken: Option<&'static str>,
}

impl State {
    pub fn place(&self) -> Option<Place> {
        match self.record {
            Some(Record::Place(place)) => Some(place),
            _ => None,
        }
    }

    pub fn result(&self) -> Option<Stored> {
        match self.record {
            Some(Record::Done(stored)) => Some(stored),
            _ => None,
        }
    }

    pub fn send(&mut self, command: Command) {
        self.commands.insert(Sent { command, is_copy: false });
    }

    pub fn break_promise(&mut self, promise: &'static str, is_broken: bool) {
        if is_broken {
            self.broken.get_or_insert(promise);
        }
    }

    /// The next begin meets a new key.
    pub fn forget(&mut self) {
        self.record = None;
        self.truth = Truth { gave_up: self.truth.gave_up, largest: self.truth.largest, ..Truth::default() };
        for run in &mut self.runs {
            run.is_stored = false;
        }
    }
}
