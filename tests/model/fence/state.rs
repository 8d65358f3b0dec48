//! What there is at any moment: servers with their data, gateways with what they know, and the numbers given.

/// The `run_id` and the `master_replid` of a server.
pub type Incarnation = (u8, u8);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    pub began: u8,
    pub last: u8,
}

/// The hash.
pub type Fence = Vec<(Incarnation, Run)>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    pub is_primary: bool,
    /// Which of all promotions made it the primary: the one with the largest is the rightful one.
    pub term: u8,
    pub run_id: u8,
    pub replication_id: u8,
    pub fence: Fence,
    /// A gateway has met it as what it is now.
    pub is_met: bool,
    /// Its numbers may outgrow its successor's.
    pub is_excused: bool,
    pub has_lost_all: bool,
}

/// 0 is X, 1 is Y.
pub type Place = usize;

/// A gateway's connection to a server, and the name that it learned on it.
pub type Link = (Place, Incarnation);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    pub number: u8,
    /// Of the server that gave it.
    pub term: u8,
    pub is_excused: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub time: u8,
    pub servers: [Server; 2],
    /// Sorted, as the gateways are alike.
    pub gateways: [Option<Link>; 2],
    /// In the order in which they were given.
    pub grants: Vec<Grant>,
    pub mishaps_left: u8,
}

/// What a server has when it restarts, or what a replica has copied when it is promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    Nothing,
    /// All but the last so many numbers.
    Without(u8),
    /// What it had before it was made a replica, as it never reached its primary.
    Own,
}

impl Server {
    pub fn run(&mut self, name: Incarnation) -> Option<&mut Run> {
        self.fence.iter_mut().find(|(known, _)| *known == name).map(|(_, run)| run)
    }

    pub fn left_with(&self, data: Data) -> Fence {
        let mut fence = self.fence.clone();
        if let Some((_, run)) = fence.last_mut() {
            run.last -= data.lost();
        }
        if data == Data::Nothing {
            fence.clear();
        }
        fence
    }

    /// How much of its data may reach its disk or its replica.
    pub fn losses(&self) -> impl Iterator<Item = Data> + use<> {
        Data::after(self.fence.last().map(|(_, run)| *run))
    }
}

impl Data {
    /// What may be left of a server's data.
    pub fn after(run: Option<Run>) -> impl Iterator<Item = Self> {
        let given = run.map_or(0, |run| run.last - run.began);
        (0..=given).map(Self::Without).chain([Self::Nothing])
    }

    /// How many of the last numbers are missing in it.
    pub fn lost(self) -> u8 {
        match self {
            Self::Without(count) => count,
            Self::Nothing | Self::Own => 0,
        }
    }
}

impl State {
    pub fn is_deposed(&self, at: Place) -> bool {
        let [this, other] = [&self.servers[at], &self.servers[1 - at]];
        this.is_primary && other.is_primary && this.term < other.term
    }
}

/// Whether this holds for each pair of grants of which something is promised; the one that must have the smaller
/// number comes first.
pub fn promised(grants: &[Grant], holds: fn(u8, u8) -> bool) -> bool {
    let mut pairs = grants.iter().enumerate().flat_map(|(n, first)| {
        let later = grants[n + 1..].iter();
        later.map(move |second| if first.term <= second.term { (first, second) } else { (second, first) })
    });
    pairs.all(|(low, high)| {
        let is_excused = low.term < high.term && low.is_excused;
        is_excused || holds(low.number, high.number)
    })
}

/// Whether there are two grants, one after the other, of which this holds.
pub fn has_neighbours(grants: &[Grant], are: fn(&Grant, &Grant) -> bool) -> bool {
    grants.windows(2).any(|pair| are(&pair[0], &pair[1]))
}
