//! The commands that ask gateways. They know of a gateway what its contract says, as other clients do.
//!
//! A client chooses its own lease token. So each request can be repeated, at the same gateway or at another one of the same
//! store.

use std::time::Duration;

use crate::lock::{LeaseToken, LockKey, Owner, Slots};

mod addresses;
mod ending;
mod gateway;
mod gateways;
mod once;
mod operating;
mod reply;
pub mod run;
pub mod shell;
mod trouble;

pub use addresses::GatewayAddresses;
pub(crate) use ending::{
    ABANDONED, BUSY, CommandFailure, LOST, REFUSED, UNREACHABLE, by_signal, carry_out, exit_code,
    expect_descriptors,
};
pub use ending::{build_runtime, say};
pub(crate) use gateway::{AcquireAnswer, Busy, Gateway, LOCK, RequestRefusal};
pub(crate) use gateways::Gateways;
pub(crate) use once::{StoredOutput, WorkOutput};
pub(crate) use operating::{ListPage, LockEvent, Looked, NoDecision, ShownGrant, ShownLock};
pub(crate) use reply::{HeldGrant, ReleaseAnswer, RenewAnswer, StoreAnswer};
pub(crate) use trouble::{Contact, Trouble};

/// Which gateways are asked, and how.
#[derive(Clone)]
pub struct GatewaySettings {
    /// Where they are.
    pub addresses: GatewayAddresses,
    /// How long to wait for one of them, at the start.
    pub wait: Duration,
    /// The authorities that are trusted instead of those of this machine, in PEM.
    pub authorities: Option<Vec<u8>>,
    /// The API key that they ask for.
    pub api_key: Option<String>,
}

/// A lock that is to be taken.
#[derive(Clone)]
pub struct AcquireSettings {
    /// The name of the lock.
    pub key: LockKey,
    /// Those of others that are taken with it.
    pub others: Vec<LockKey>,
    /// The lease.
    pub ttl: Duration,
    /// How long to wait for the lock.
    pub wait: Duration,
    /// The longest that the lock may be held.
    pub max_hold: Option<Duration>,
    /// The shortest that it stays taken.
    pub min_hold: Option<Duration>,
    /// How many may hold it at once; `None` for one.
    pub slots: Option<Slots>,
    /// A note for people.
    pub owner: Option<Owner>,
    /// If it is no lock, but a piece of work that is done once: on which terms.
    pub once: Option<OnceTerms>,
}

/// On which terms a piece of work is begun.
#[derive(Clone)]
pub struct OnceTerms {
    /// How long the result is kept.
    pub keep: Duration,
    /// Whether it may be taken over from a worker that may have done it.
    pub may_take_over: bool,
    /// Which request the record is for.
    pub fingerprint: Option<String>,
}

impl AcquireSettings {
    /// What it is called in what people read.
    pub(crate) fn name(&self) -> String {
        match (&self.once, &self.others[..]) {
            (Some(_), _) => format!("the work {:?}", self.key.as_str()),
            (None, []) => format!("the lock {:?}", self.key.as_str()),
            (None, _) => format!("the locks {}", self.keys()),
        }
    }

    /// The key, or all of them.
    pub(crate) fn all_keys(&self) -> impl Iterator<Item = &LockKey> {
        std::iter::once(&self.key).chain(&self.others)
    }

    /// The keys, as people read them.
    pub(crate) fn keys(&self) -> String {
        self.all_keys().map(|key| format!("{:?}", key.as_str())).collect::<Vec<_>>().join(", ")
    }

    /// Its place, where others may hold it too. A lock that was taken with all of its slots is told without one: it has the first.
    pub(crate) fn slot(&self, told: Option<u64>) -> Option<u64> {
        told.or(self.slots.map(|_| 1))
    }

    /// How a sentence about it goes on, for one lock and for several.
    pub(crate) fn said_of(&self, one: &'static str, several: &'static str) -> &'static str {
        if self.others.is_empty() { one } else { several }
    }

    /// What is said of it if this process may have it, and could not release it.
    pub(crate) fn left_behind(&self) -> &'static str {
        match &self.once {
            Some(terms) if !terms.may_take_over => {
                "the command did not run, but its record may be left: until that is broken, runs with --no-takeover may end with 77"
            }
            Some(_) => "the work may stay blocked until its lease ends",
            None => self.said_of(
                "the lock may stay taken until its ttl ends",
                "the locks may stay taken until their ttl ends",
            ),
        }
    }
}

/// A token that no other acquisition has; the `~` in front of those that gateways make is not for clients.
pub(crate) fn fresh_token() -> Result<LeaseToken, CommandFailure> {
    let text = format!("{:032x}", rand::random::<u128>());
    LeaseToken::parse(text.as_bytes()).map_err(|error| CommandFailure::not_possible(error.to_string()))
}
