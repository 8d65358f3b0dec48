//! What is simulated: all of it stands in the environment, so that one line plays it again.

use std::env;
use std::fmt;
use std::time::Duration;

/// Servers that stand together, and how; or what a gateway has itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Store {
    Redis,
    Sentinel,
    Cluster,
    Quorum,
    Memory,
    File,
}

impl Store {
    pub const ALL: [Self; 6] =
        [Self::Redis, Self::Sentinel, Self::Cluster, Self::Quorum, Self::Memory, Self::File];

    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
            Self::Quorum => "quorum",
            Self::Memory => "memory",
            Self::File => "file",
        }
    }

    /// Whether it is within the gateway, of which there is only one then.
    pub fn is_embedded(self) -> bool {
        matches!(self, Self::Memory | Self::File)
    }

    pub fn gateways(self) -> usize {
        if self.is_embedded() { 1 } else { 3 }
    }

    /// Of locks that nobody else asks for: what is left of them, and nobody was told of, is seen at the end. A quorum does
    /// without a server that forgot for as long as that.
    pub fn longest_ttl_ms(self) -> u64 {
        if self == Self::Quorum { 6_000 } else { 300_000 }
    }

    /// Of a request for a lock.
    pub fn longest_wait_ms(self) -> u64 {
        if self == Self::Quorum { 6_000 } else { 10_000 }
    }

    /// As the program asks for: the longest wait, what a request may take besides, and the time after which nothing arrives any
    /// more. The commands of a quorum end with their requests, and it does without a server that forgot for as long as that.
    pub fn mark_ttl(self) -> Duration {
        Duration::from_secs(if self == Self::Quorum { 12 } else { 25 })
    }

    pub fn named(name: &str) -> Self {
        let found = Self::ALL.into_iter().find(|store| store.name() == name);
        found.unwrap_or_else(|| panic!("SIM_STORE={name}: there is no such store"))
    }
}

/// One simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub seed: u64,
    pub store: Store,
    pub seconds: u64,
    pub clients: u64,
    /// Faults that are left out.
    pub without: Vec<String>,
    /// What is wrong on purpose.
    pub hole: Option<String>,
}

impl Settings {
    pub fn new(seed: u64, store: Store, seconds: u64) -> Self {
        Self { seed, store, seconds, clients: 30, without: Vec::new(), hole: None }
    }

    /// What the environment says; nothing where it names no seed.
    pub fn from_environment() -> Option<Self> {
        let number = |name: &str| env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
        let seed = number("SIM_SEED")?;
        let store = env::var("SIM_STORE").map_or(Store::Redis, |name| Store::named(&name));
        let mut settings = Self::new(seed, store, number("SIM_SECONDS").unwrap_or(60));
        settings.clients = number("SIM_CLIENTS").unwrap_or(settings.clients);
        let without = env::var("SIM_WITHOUT").unwrap_or_default();
        settings.without = without.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        settings.hole = env::var("SIM_HOLE").ok().filter(|name| !name.is_empty());
        Some(settings)
    }

    pub fn variables(&self) -> [(&'static str, String); 6] {
        [
            ("SIM_SEED", self.seed.to_string()),
            ("SIM_STORE", self.store.name().to_owned()),
            ("SIM_SECONDS", self.seconds.to_string()),
            ("SIM_CLIENTS", self.clients.to_string()),
            ("SIM_WITHOUT", self.without.join(",")),
            ("SIM_HOLE", self.hole.clone().unwrap_or_default()),
        ]
    }

    /// Whether each server has a clock of its own.
    pub fn has_clocks_that_differ(&self) -> bool {
        let may = match self.store {
            Store::Quorum => true,
            Store::Cluster => !self.seed.is_multiple_of(2),
            _ => false,
        };
        may && self.has("clocks differ")
    }

    /// Whether several may hold a lock at once. In a slot that moves, their leases go on by the clock of the node that has it by then.
    pub fn has_pools(&self) -> bool {
        match self.store {
            Store::Quorum => false,
            Store::Cluster => !self.has_clocks_that_differ(),
            _ => true,
        }
    }

    /// Whether a lock must be on the replica before it is handed out.
    pub fn asks_replicas(&self) -> bool {
        self.store == Store::Sentinel && self.seed.is_multiple_of(2)
    }

    /// Whether it goes on until what was kept for a short time is over, which takes minutes.
    pub fn forgets(&self) -> bool {
        self.seed % 4 >= 2
    }

    pub fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    pub fn has(&self, fault: &str) -> bool {
        !self.without.iter().any(|name| name == fault || name == "all")
    }
}

impl fmt::Display for Settings {
    /// The line that plays it again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.variables() {
            if !value.is_empty() {
                // Names of faults have blanks.
                let quote = if value.contains(' ') { "'" } else { "" };
                write!(f, "{name}={quote}{value}{quote} ")?;
            }
        }
        f.write_str("cargo test --test simulation")
    }
}
