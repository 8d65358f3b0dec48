//! What there is at any moment: nodes with what is on its way to them, and requests with what they have heard.

use std::collections::BTreeSet;

pub type Number = u8;
pub type Token = u8;
/// Which request, by its place in the scenario.
pub type By = usize;
/// Each request may make some attempts: `by * PER_REQUEST + n`.
pub type Attempt = usize;
/// What makes or lengthens leases: one for each proposal and each renewal, `by * PER_REQUEST + n`.
pub type Source = usize;
/// A set of numbers, of attempts or of sources.
pub type Set = u32;

pub const TOKENS: usize = 3;
pub const PER_REQUEST: usize = 4;

pub fn has(set: Set, n: usize) -> bool {
    set & (1 << n) != 0
}

pub fn set_of(n: usize) -> Set {
    1 << n
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Answer {
    Released,
    NotHeld,
    HeldByAnother,
}

/// Time has no numbers here. A client's belief ends before any node's lease of the same source does: the node counts
/// from later, and for longer. So a lease that ends at a node ends the beliefs that rest on its sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lock {
    pub token: Token,
    pub number: Number,
    /// None once it is pinned.
    pub attempt: Option<Attempt>,
    /// Whose proposal it was: for the promises alone.
    pub by: By,
    /// What its lease outlives.
    pub times: Set,
}

/// What a gateway tells a node. Commands arrive in any order, however late, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Command {
    Acquire { attempt: Attempt, number: Number, source: Source },
    Yield { attempt: Attempt, number: Number },
    TakeBack { attempt: Attempt },
    Release { by: By },
    Renew { source: Source },
    Repair { source: Source, number: Number, proposer: By },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reply {
    #[default]
    None,
    /// The node does not stand in the list, or not in good standing: it did nothing.
    Out,
    Accepted(Number),
    Low(Number),
    Held(Token, Number),
    Own(Number),
    Voided,
    WasReleased,
    Yielded {
        is_pinned: bool,
    },
    TookBack {
        has_deleted: bool,
    },
    Freed(Answer),
    Live {
        number: Number,
        proposer: By,
    },
    Absent,
    Other,
}

/// What a request knows of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Heard {
    pub reply: Reply,
    /// Numbers that it was asked to accept, and neither refused nor gave back.
    pub may_hold: Set,
}

/// How a node stands in the lists of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// In each list.
    Member,
    /// In the list of the first epoch only.
    Former,
    /// In the list of the second epoch only.
    Added,
    /// A gateway that is misled finds it behind two names,
    Doubled,
    /// and this one behind none.
    Hidden,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Standing {
    Good,
    /// Its record is missing, or of another process.
    Forgot,
    /// Until all that was sent before is over.
    Quarantined(Set),
    /// That is over, and this was read from the others.
    Restored(Number),
}

/// All that belongs to a node stands here, so that nodes can be put in order: they are alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node {
    pub role: Role,
    pub standing: Standing,
    pub epoch: u8,
    pub fence: Number,
    pub lock: Option<Lock>,
    pub marks: [Option<Answer>; TOKENS],
    pub voided: Set,
    /// What it held when its file was last written, or its replica left it, where that is not what it holds.
    pub copy: Option<Box<Memory>>,
    pub inbox: BTreeSet<Command>,
    /// By request.
    pub heard: Vec<Heard>,
}

/// What a server holds, and may load.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Memory {
    pub fence: Number,
    pub lock: Option<Lock>,
    pub marks: [Option<Answer>; TOKENS],
    pub voided: Set,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    NotBegun,
    /// A proposal, a renewal or a release is out.
    Asking {
        attempt: Attempt,
        number: Number,
        source: Source,
    },
    Yielding {
        attempt: Attempt,
        number: Number,
    },
    Voiding,
    /// The client was told that it holds.
    Holds {
        number: Number,
        source: Source,
    },
    /// That has ended.
    Held {
        number: Number,
    },
    /// The client was told that it certainly holds nothing.
    Refused,
    /// It was told nothing, or that the outcome is unknown.
    Unknown,
    Answered(Answer),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    pub phase: Phase,
    /// The largest number that was answered before it began.
    pub above: Number,
    /// Its token was released before it began.
    pub is_late: bool,
    pub proposals: usize,
    pub attempts: usize,
    /// The largest number that its gateway has seen.
    pub seen: Number,
}

/// What went wrong at the moment of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    SameNumber,
    OutOfOrder,
    ReleasedIsGranted,
    OldIsConfirmed,
    HolderIsDenied,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub nodes: Vec<Node>,
    pub requests: Vec<Request>,
    /// Sources whose time is over at clients.
    pub over: Set,
    /// Numbers that were granted, by token.
    pub granted: [Set; TOKENS],
    pub largest: Number,
    pub fault: Option<Fault>,
    /// The second epoch counts.
    pub is_settled: bool,
    /// A lock was repaired on a node whose fence is beyond its number.
    pub was_repaired_below: bool,
    pub repeats_left: u8,
    pub mishaps_left: u8,
    pub bumps_left: u8,
}

impl Node {
    pub fn is_good(&self) -> bool {
        self.standing == Standing::Good
    }

    /// Also those that it may load.
    pub fn all_locks(&mut self) -> impl Iterator<Item = &mut Lock> {
        let copied = self.copy.as_mut().and_then(|copy| copy.lock.as_mut());
        self.lock.iter_mut().chain(copied)
    }

    pub fn memory(&self) -> Memory {
        Memory { fence: self.fence, lock: self.lock, marks: self.marks, voided: self.voided }
    }

    pub fn load(&mut self, memory: Memory) {
        Memory { fence: self.fence, lock: self.lock, marks: self.marks, voided: self.voided } = memory;
    }
}

impl Request {
    pub fn is_at_rest(&self) -> bool {
        !matches!(self.phase, Phase::Asking { .. } | Phase::Yielding { .. } | Phase::Voiding)
    }
}

impl State {
    /// The time of these sources is over.
    pub fn end(&mut self, sources: Set) {
        self.over |= sources;
        for node in &mut self.nodes {
            for lock in node.all_locks() {
                lock.times &= !self.over;
            }
        }
        for request in &mut self.requests {
            if let Phase::Holds { number, source } = request.phase
                && has(self.over, source)
            {
                request.phase = Phase::Held { number };
            }
        }
    }

    pub fn forget_replies(&mut self, by: By) {
        for node in &mut self.nodes {
            node.heard[by].reply = Reply::None;
        }
    }

    pub fn locks(&self) -> impl Iterator<Item = Lock> {
        self.nodes.iter().filter_map(|node| node.lock)
    }
}
