//! Workers: clients that begin pieces of work, store results, give up, crash and come back, and an operator who breaks records.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost::once::Keep;
use kit::history::now_us;
use serde::Serialize;

use crate::world::World;

mod asking;
mod ending;
mod judge;
mod workers;

pub use ending::{forget, nobody_blocks};
pub use judge::tests::ALL as TESTS_OF_THE_JUDGE;
pub use judge::{Disturbances, judge};
pub use workers::Worker;

/// Longer than a request without a wait may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// A key has another name after so long, so that not all of them are done.
const ERA_S: u64 = 5;
const KEYS: u64 = 3;
const LONGEST_TTL_MS: u64 = 2_000;
/// Of a place that nobody is told of: it must be taken back, and not end by itself.
const ALONE_TTL_MS: u64 = 300_000;
/// What the names of records begin with that one worker alone asks for, and only once.
const ALONE: &str = "alone-";
const SHORT_KEEP_S: u64 = Keep::SHORTEST.as_secs();
const LONG_KEEP_S: u64 = 24 * 60 * 60;
pub const WORKERS: u64 = 8;

/// What a worker asks for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Action {
    Begin {
        ttl_ms: u64,
        keep_s: u64,
        may_take_over: bool,
        wait: Duration,
        fingerprint: Option<String>,
    },
    Store {
        result: String,
        status: Option<u16>,
        /// As the begin said, if it does not say so itself.
        keep_s: Option<u64>,
        /// What it takes for its number, where it shows one.
        number: Option<u64>,
    },
    Renew {
        ttl_ms: u64,
        number: Option<u64>,
    },
    GiveUp {
        is_clean: bool,
    },
    Look,
    Break {
        number: Option<u64>,
        is_clean: bool,
    },
}

/// What it is told.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Answer {
    /// A new grant, or the one that the token has.
    Work {
        number: u64,
        earlier: u64,
        left_ms: u64,
        is_new: bool,
    },
    Done {
        number: u64,
        result: String,
        status: Option<u16>,
    },
    Stored {
        number: u64,
    },
    Seen(Seen),
    /// Another is at work.
    Busy {
        number: u64,
    },
    Superseded {
        number: u64,
        is_done: bool,
    },
    NotBegun,
    GivenUp,
    Broken,
    /// The lease is over, and the request does not take over.
    Abandoned,
    FingerprintDiffers,
    TokenReleased,
    LeaseOver,
    AlreadyStored,
    ResultDiffers,
    /// Certainly nothing was done, for another reason.
    Refused,
    Unknown,
    /// Nobody heard it.
    Lost,
}

/// What a look is told.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Seen {
    pub state: State,
    pub number: u64,
    pub earlier: u64,
    pub left_ms: u64,
    pub yours: Option<bool>,
    /// Of the result.
    pub bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum State {
    Working,
    Lapsed,
    Done,
}

impl Answer {
    /// What it is counted as.
    fn name(&self) -> &'static str {
        match self {
            Self::Work { earlier: 0, is_new: true, .. } => "work begun",
            Self::Work { is_new: true, .. } => "work taken over",
            Self::Work { .. } => "work continued",
            Self::Done { .. } => "result told",
            Self::Stored { .. } => "result stored",
            Self::Seen(_) => "record seen",
            Self::Busy { .. } => "work busy",
            Self::Superseded { .. } => "work superseded",
            Self::NotBegun => "work not begun",
            Self::GivenUp => "work given up",
            Self::Broken => "record broken",
            Self::Abandoned => "work abandoned",
            Self::FingerprintDiffers => "fingerprint differs",
            Self::TokenReleased => "token of work released",
            Self::LeaseOver => "lease of work over",
            Self::AlreadyStored => "result already stored",
            Self::ResultDiffers => "result differs",
            Self::Refused | Self::Unknown | Self::Lost => "work in doubt or refused",
        }
    }

    /// Whether nobody knows if anything was done.
    fn is_in_doubt(&self) -> bool {
        matches!(self, Self::Lost | Self::Unknown)
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Operation {
    pub key: String,
    /// The token that was shown, or that the gateway made.
    pub token: Option<String>,
    /// Whether the request showed one.
    pub shows_token: bool,
    pub action: Action,
    pub start_us: u64,
    pub end_us: u64,
    /// When the gateway said it.
    pub said_us: u64,
    pub answer: Answer,
    /// Whether the gateway handed an answer out, which its client may have missed.
    pub was_handed_out: bool,
    /// Whether the gateway learns that the client has left.
    pub is_seen_to_leave: bool,
    /// Since when nothing failed, when it was answered.
    pub calm_since_us: Option<u64>,
}

/// What is written down of records.
#[derive(Default)]
pub struct Records(Mutex<Vec<(Operation, Arc<AtomicBool>)>>);

impl Records {
    /// A request is sent. It says of it later whether an answer was handed out.
    fn begin(&self, key: &str, token: Option<&str>, action: Action, seen: bool) -> (usize, Arc<AtomicBool>) {
        let mut operations = self.0.lock().unwrap();
        let now_us = now_us();
        let is_handed_out = Arc::new(AtomicBool::new(false));
        let operation = Operation {
            key: key.to_owned(),
            token: token.map(str::to_owned),
            shows_token: token.is_some(),
            action,
            start_us: now_us,
            end_us: u64::MAX,
            said_us: now_us,
            answer: Answer::Lost,
            was_handed_out: false,
            is_seen_to_leave: seen,
            calm_since_us: None,
        };
        operations.push((operation, is_handed_out.clone()));
        (operations.len() - 1, is_handed_out)
    }

    fn end(&self, world: &World, at: usize, said: Option<Said>) -> Operation {
        let mut operations = self.0.lock().unwrap();
        let (operation, _) = &mut operations[at];
        operation.end_us = now_us();
        if let Some(said) = said {
            (operation.answer, operation.said_us) = (said.answer, said.at_us);
            operation.token = said.token.or(operation.token.take());
            let calm_for = world.calm_since().map(|since| since.elapsed().as_micros() as u64);
            operation.calm_since_us = calm_for.map(|calm_us| operation.end_us.saturating_sub(calm_us));
            world.book.count(operation.answer.name());
        }
        operation.clone()
    }

    /// All of it so far, in the order in which it began.
    pub fn all(&self) -> Vec<Operation> {
        let operations = self.0.lock().unwrap();
        let all = operations.iter().map(|(operation, is_handed_out)| Operation {
            was_handed_out: is_handed_out.load(Ordering::SeqCst),
            ..operation.clone()
        });
        all.collect()
    }
}

struct Said {
    answer: Answer,
    /// The token that the gateway made, if it made one.
    token: Option<String>,
    at_us: u64,
}
