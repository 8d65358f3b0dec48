//! Who waits, and what its gateway knows.

use super::rules::Mutant;
use crate::once::state::Few;

pub const WAITERS: usize = 3;
pub const GATEWAYS: usize = 2;
pub type Token = u8;
pub type Waiter = usize;
pub type Gateway = usize;

/// Not one of the waiters: who works at first.
pub const FIRST: Token = 9;

/// A request that may wait.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    pub token: Token,
    pub gateway: Gateway,
    pub print: u8,
    pub takes_over: bool,
}

/// How much may happen in one search, and by which rules.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub askers: &'static [Asker; WAITERS],
    /// In tenths of a second, as all times.
    pub lease: u8,
    /// Between two looks.
    pub longest: u8,
    pub leaves: u8,
    pub lost_answers: u8,
    pub renewals: u8,
    pub breaks: u8,
    pub mutant: Mutant,
}

impl Rules {
    pub fn is(&self, mutant: Mutant) -> bool {
        self.mutant == mutant
    }

    pub fn at(&self, gateway: Gateway) -> impl Iterator<Item = Waiter> {
        (0..WAITERS).filter(move |waiter| self.askers[*waiter].gateway == gateway)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Nobody's, once its worker gave up.
    pub holder: Option<Token>,
    /// Of its lease.
    pub left: u8,
    pub is_first: bool,
    pub print: u8,
}

impl Place {
    pub fn is_lapsed(self) -> bool {
        self.left == 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Record {
    Free,
    Place(Place),
    Done { print: u8 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    Result {
        print: u8,
    },
    /// Also a place that its token had already.
    Granted {
        is_new: bool,
    },
    Busy {
        holder: Token,
        left: u8,
        /// Neither granted anew nor renewed since.
        is_current: bool,
    },
    Abandoned,
    /// Another fingerprint, or a token that gave up.
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Look {
    /// For all of its gateway.
    pub is_shared: bool,
    pub answer: Option<Answer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    NotCome,
    Waits,
    Works,
    /// Told the result.
    Told,
    Refused,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wait {
    pub phase: Phase,
    pub look: Option<Look>,
    /// It has looked in this round of its gateway.
    pub has_looked: bool,
    /// For how long it has slept although there is something to be told.
    pub sleeps: u8,
    /// It was told to begin.
    pub has_begun: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Knows {
    /// Until the next shared look, and how long until the one after it.
    pub next_look: Option<u8>,
    pub delay: u8,
    /// Until the end of the lease as last told, and whether it is that of the place still.
    pub lease_end: Option<u8>,
    pub is_current: bool,
    /// A shared look is to be made at once.
    pub is_due: bool,
    /// A message of another gateway is on its way.
    pub is_told: bool,
}

pub const NOTHING: Knows =
    Knows { next_look: None, delay: 1, lease_end: None, is_current: false, is_due: false, is_told: false };

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub record: Record,
    pub does_first_work: bool,
    /// Tokens that gave up.
    pub freed: Few,
    pub gateways: [Knows; GATEWAYS],
    pub waits: [Wait; WAITERS],
    pub leaves_left: u8,
    pub lost_answers_left: u8,
    pub renewals_left: u8,
    pub breaks_left: u8,
    /// The promise that the last step broke.
    pub broken: Option<&'static str>,
}

impl State {
    pub fn place(&self) -> Option<Place> {
        match self.record {
            Record::Place(place) => Some(place),
            _ => None,
        }
    }

    /// The lease is another one than all were told of.
    pub fn renew(&mut self) {
        for gateway in &mut self.gateways {
            gateway.is_current = false;
        }
        for wait in &mut self.waits {
            if let Some(Look { answer: Some(Answer::Busy { is_current, .. }), .. }) = &mut wait.look {
                *is_current = false;
            }
        }
    }

    pub fn break_promise(&mut self, promise: &'static str, is_broken: bool) {
        if is_broken {
            self.broken.get_or_insert(promise);
        }
    }
}
