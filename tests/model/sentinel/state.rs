//! What there is at any moment: servers with their data, what sentinels know, and how far gateways have come.

pub use crate::fence::state::{Data, Grant, Place, Run};

/// Sentinel's config-epoch: it counts failovers.
pub type Epoch = u8;

/// By which epoch which server is the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Word {
    pub epoch: Epoch,
    pub at: Place,
}

/// The hash: the run of one process, by its `run_id`, and the epoch by which it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fence {
    pub run: Option<(u8, Run)>,
    pub epoch: Option<Epoch>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    pub is_primary: bool,
    /// Which of all promotions made it the primary: the one with the largest is the rightful one.
    pub term: u8,
    /// What Sentinel calls that promotion.
    pub epoch: Epoch,
    pub run_id: u8,
    pub fence: Fence,
    /// A gateway has met it as what it is now, by the epoch that it has now.
    pub is_met: bool,
    /// Its numbers may outgrow its successor's.
    pub is_excused: bool,
}

/// Who of the sentinels knows the newest primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Heard {
    /// The one that led the failover. The others know the former.
    ByOne,
    /// At least a majority, and all where that is worse.
    ByMost,
    /// A minority: the others have begun again with this server, as they were once told.
    Forgotten(Place),
}

/// How far a gateway is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    Idle,
    /// Connected to a server, it was told this, and whether all sentinels say so.
    Asked(Word, bool),
    /// It has made the server learn it, and uses the connection.
    Linked(Word),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gateway {
    /// The epoch that it believed last.
    pub followed: Epoch,
    pub phase: Phase,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub time: u8,
    pub servers: [Server; 2],
    /// What sentinels knew before the last failover.
    pub former: Word,
    pub heard: Heard,
    /// Sorted, as they are alike.
    pub gateways: [Gateway; 2],
    /// In the order in which they were given.
    pub grants: Vec<Grant>,
    pub mishaps_left: u8,
}

impl Fence {
    pub fn left_with(self, data: Data) -> Self {
        let run = self.run.map(|(run_id, run)| (run_id, Run { last: run.last - data.lost(), ..run }));
        if data == Data::Nothing { Self::default() } else { Self { run, ..self } }
    }
}

impl Server {
    /// The run of this very process.
    pub fn run(&mut self) -> Option<&mut Run> {
        self.fence.run.as_mut().filter(|(run_id, _)| *run_id == self.run_id).map(|(_, run)| run)
    }
}

impl Phase {
    /// The server at the other end.
    pub fn server(self) -> Option<Place> {
        match self {
            Self::Idle => None,
            Self::Asked(word, _) | Self::Linked(word) => Some(word.at),
        }
    }
}

impl State {
    /// What the last failover has made true.
    pub fn newest(&self) -> Word {
        let at = usize::from(self.servers[0].term < self.servers[1].term);
        Word { epoch: self.servers[at].epoch, at }
    }

    pub fn is_deposed(&self, at: Place) -> bool {
        self.servers[at].is_primary && self.newest().at != at
    }

    /// From now on nobody is promoted, and nobody forgets: who was met, and what was followed, is of no more use.
    pub fn drop_what_is_past(&mut self) {
        for server in &mut self.servers {
            server.is_met = false;
        }
        if !matches!(self.heard, Heard::Forgotten(_)) {
            for gateway in &mut self.gateways {
                gateway.followed = 0;
            }
        }
    }
}
