//! The history of a run: what each client asked, when, and what it was told. [`check`] decides from it alone whether
//! the promises I1 to I9 were kept, for every store. It can be saved, and decided about again.

use std::path::Path;

use fencepost::clock::boottime;
use serde::{Deserialize, Serialize};

pub use check::check;
pub use shares::{Place, Share};
pub use verdict::{is_kept, summary};
pub use witness::Witness;

mod check;
mod connections;
mod holds;
mod leases;
mod shares;
mod terms;
mod verdict;
mod witness;

/// Everything that a run left for its judge.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct History {
    pub operations: Vec<Operation>,
    pub updates: Vec<Update>,
    /// Times within which the store lost what it held.
    pub losses: Vec<Span>,
    /// When a replica took the place of its primary.
    #[serde(default)]
    pub failovers: Vec<Failover>,
    /// Whether the replica of a failover had each lock before its client was told of it.
    #[serde(default)]
    pub asks_replicas: bool,
    /// Those of them in which an older state came back: what was lost before may be held again.
    #[serde(default)]
    pub returns: Vec<Span>,
    /// Times within which clients may have been granted locks by two servers: by a deposed primary, whose numbers are
    /// the smaller ones, and by its successor.
    #[serde(default)]
    pub splits: Vec<Span>,
    /// Whether the store is a quorum, which takes something off every lease for clocks that do not run alike.
    #[serde(default)]
    pub is_of_quorum: bool,
    /// Whether more of a quorum forgot at once than exclusion survives: then nobody's hold is judged.
    #[serde(default)]
    pub is_without_holds: bool,
    /// Times within which a gateway ended, and with it what it was about to take back.
    pub kills: Vec<Span>,
    /// From here on no command is under way any more, and nobody does anything but look.
    pub quiet_us: Option<u64>,
    /// What was done to gateways, servers and ways, for people.
    #[serde(default)]
    pub faults: Vec<Fault>,
}

/// Something that was done to a gateway, a server or a way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fault {
    pub name: String,
    pub start_us: u64,
}

/// Microseconds on the clock of the machine, suspend included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    pub start_us: u64,
    pub end_us: u64,
}

impl Span {
    fn overlaps(&self, other: &Self) -> bool {
        self.start_us <= other.end_us && other.start_us <= self.end_us
    }
}

/// A replica took the place of its primary.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Failover {
    /// What the old primary did within is lost, and nothing that it did before.
    pub lost: Span,
    /// When both took commands.
    pub split: Span,
    /// The numbers of the successor are no smaller, and all of the old primary are.
    pub successor_from: u64,
}

impl Failover {
    /// Whether what an operation did may be lost.
    fn forgets(&self, operation: &Operation) -> bool {
        // Nobody knows when one did something that was not answered.
        let is_over = operation.span.end_us < self.lost.start_us && !operation.is_in_doubt();
        let is_of_successor = operation.told().is_some_and(|number| number >= self.successor_from);
        !is_over && !is_of_successor && operation.span.start_us <= self.lost.end_us
    }
}

/// One request of one client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Operation {
    /// Unlike all others; sent as `owner` and as `X-Request-Id`, so that holders and log lines can be told apart.
    pub id: String,
    pub key: String,
    /// The token that was sent, or that the server made.
    pub token: Option<String>,
    pub action: Action,
    /// From before it was sent until it was answered, or until its client was gone.
    pub span: Span,
    pub answer: Answer,
    /// Whether it may wait in line.
    #[serde(default)]
    pub waits: bool,
    /// Since when the answer is true, where that is known better than from when it was asked for.
    #[serde(default)]
    pub true_at_us: Option<u64>,
    /// What else an acquire asks for.
    #[serde(default)]
    pub terms: Terms,
    /// When the connection ended that had the lock by this answer. From then on its client relies on it no more.
    #[serde(default)]
    pub ended_us: Option<u64>,
    /// What the answer says of those who share the lock.
    #[serde(default)]
    pub share: Share,
}

/// For how long a lock may, and must, be taken, and beside how many others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    pub max_hold_ms: Option<u64>,
    pub min_hold_ms: Option<u64>,
    /// How many may hold it at once. Without it, nobody else may.
    #[serde(default)]
    pub slots: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    Acquire {
        ttl_ms: u64,
    },
    Renew {
        ttl_ms: u64,
    },
    Release,
    Look,
    /// Ends the grant that is found, or only the one of this number.
    Break {
        number: Option<u64>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    Granted {
        number: u64,
        ttl_ms: u64,
    },
    AlreadyHeld {
        number: u64,
        ttl_ms: u64,
    },
    Renewed {
        number: u64,
        ttl_ms: u64,
    },
    Released,
    /// The grant of this number was broken.
    Broken {
        number: u64,
    },
    /// Nobody holds it: 404.
    NotHeld,
    /// 423, or 409 of a renewal or release, which names no holder; or the lock has none, and is kept for its `min_hold`.
    HeldByAnother(Option<Holder>),
    TokenReleased,
    /// The token holds it beside up to so many others, and asked for fewer.
    HeldOtherwise {
        slots: u16,
    },
    Held {
        holder: Holder,
        yours: Option<bool>,
    },
    NotDone,
    Unknown,
    /// None came. The gateway's log may say that it was handed to the socket all the same.
    Lost {
        was_written: bool,
    },
}

/// What an answer says of whoever holds the lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The operation that was granted.
    pub id: String,
    pub number: u64,
    pub left_ms: u64,
}

/// A change of something that a lock protects, acknowledged to its client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Update {
    pub resource: String,
    pub number: u64,
    /// The version that was read, and that the update replaced.
    pub before: u64,
}

impl History {
    pub fn save(&self, path: &Path) {
        std::fs::write(path, serde_json::to_vec_pretty(self).unwrap()).unwrap();
    }

    pub fn load(path: &Path) -> Self {
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    /// Learns from a gateway's log which answers were handed to a socket although their clients never saw them.
    pub fn learn_from_log(&mut self, lines: &[String]) {
        let written: std::collections::HashSet<String> = lines
            .iter()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
            .filter(|line| line["message"] == "answered")
            .filter_map(|line| line["request_id"].as_str().map(str::to_owned))
            .collect();
        for operation in &mut self.operations {
            if let Answer::Lost { was_written } = &mut operation.answer {
                *was_written |= written.contains(&operation.id);
            }
        }
    }
}

impl Operation {
    pub fn is_acquire(&self) -> bool {
        matches!(self.action, Action::Acquire { .. })
    }

    /// The lease that it asks for.
    pub fn asked_ttl_ms(&self) -> Option<u64> {
        match self.action {
            Action::Acquire { ttl_ms } | Action::Renew { ttl_ms } => Some(ttl_ms),
            Action::Release | Action::Look | Action::Break { .. } => None,
        }
    }

    /// For how long the lock may be taken by what it asks for.
    pub fn longest_ms(&self) -> Option<u64> {
        Some(self.asked_ttl_ms()?.max(self.terms.min_hold_ms.unwrap_or_default()))
    }

    /// The number by which its client was told that it holds the lock.
    pub fn told(&self) -> Option<u64> {
        match &self.answer {
            Answer::Granted { number, .. }
            | Answer::AlreadyHeld { number, .. }
            | Answer::Renewed { number, .. } => Some(*number),
            Answer::Held { holder, yours: Some(true) } => Some(holder.number),
            _ => None,
        }
    }

    /// What its client was told that is left of its lease.
    pub fn left_ms(&self) -> Option<u64> {
        match &self.answer {
            Answer::Granted { ttl_ms, .. }
            | Answer::AlreadyHeld { ttl_ms, .. }
            | Answer::Renewed { ttl_ms, .. } => Some(*ttl_ms),
            Answer::Held { holder, yours: Some(true) } => Some(holder.left_ms),
            _ => None,
        }
    }

    /// Whoever the answer says holds the lock, if it speaks of a holder.
    pub fn holder(&self) -> Option<&Holder> {
        match &self.answer {
            Answer::HeldByAnother(holder) => holder.as_ref(),
            Answer::Held { holder, .. } => Some(holder),
            _ => None,
        }
    }

    /// What the answer says is left of the lease of the number that it shows.
    pub fn shown_left_ms(&self) -> Option<u64> {
        self.left_ms().or_else(|| self.holder().map(|holder| holder.left_ms))
    }

    /// Until when its client may rely on the lease that it was told of.
    pub fn told_until_us(&self) -> Option<u64> {
        let lease_until_us = self.left_since_us() + self.left_ms()? * 1_000;
        Some(lease_until_us.min(self.ended_us.unwrap_or(u64::MAX)))
    }

    /// From when on what is left of a lease is counted.
    pub fn left_since_us(&self) -> u64 {
        self.true_at_us.unwrap_or(self.span.start_us)
    }

    /// Any number that the answer shows.
    pub fn shown(&self) -> Option<u64> {
        self.told().or_else(|| self.holder().map(|holder| holder.number))
    }

    /// Whether nobody knows what became of it.
    pub fn is_in_doubt(&self) -> bool {
        matches!(self.answer, Answer::Unknown | Answer::Lost { .. })
    }

    /// Whether a copy of it may act when it has long been answered. An acquire is voided before it is answered; a
    /// renewal is not, and neither is a look with a token, which pins.
    pub fn may_come_late(&self) -> bool {
        let is_voided = self.is_acquire() && !self.is_in_doubt();
        !is_voided && self.answer != Answer::NotDone
    }

    /// Whether the answer says that it changed nothing.
    pub fn is_refused(&self) -> bool {
        matches!(
            self.answer,
            Answer::NotDone
                | Answer::NotHeld
                | Answer::HeldByAnother(_)
                | Answer::TokenReleased
                | Answer::HeldOtherwise { .. }
        )
    }
}

pub fn now_us() -> u64 {
    u64::try_from(boottime().as_micros()).unwrap()
}
