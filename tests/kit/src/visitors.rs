//! What clients do during a run: everything that the contract allows, and some of what it does not.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use tokio::time::sleep;

use super::history::{Action, Answer, Operation, Update, Witness};
use super::resource::{Discipline, Resource};
use super::{Client, fresh_token};

/// Fewer than clients, so that they meet.
pub const KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// Those that several may hold at once, of which the first is asked for by all alike.
const POOLS: [&str; 2] = ["pool-a", "pool-b"];
/// How many may hold a lock at once, as visitors say: nobody else, a few, or all who say so.
const MOST_BESIDE: [Option<u16>; 5] = [None, Some(2), Some(3), Some(5), Some(1_000)];
const LONGEST_TTL_MS: u64 = 3_000;
/// Longer than a request may take, so that only those give up that mean to.
const PATIENCE: Duration = Duration::from_secs(6);
/// Time for requests that are under way to end, when nothing fails any more.
const SETTLING: Duration = Duration::from_secs(3);

/// How long the leases are that visitors ask for.
#[derive(Clone, Copy, Debug)]
pub struct Ttls {
    pub shortest_ms: u64,
    /// At most as long as whoever looks at what is left waits.
    pub longest_ms: u64,
    /// Of locks that nobody else asks for: what is left of them, and nobody was told of, is seen at the end of the run.
    pub outlasting_ms: u64,
}

impl Default for Ttls {
    fn default() -> Self {
        Self { shortest_ms: 200, longest_ms: LONGEST_TTL_MS, outlasting_ms: 3_600_000 }
    }
}

/// What the lock of each name protects.
pub type Resources = Arc<BTreeMap<&'static str, Mutex<Vec<Resource>>>>;

/// Each of them claims.
pub fn resources() -> Resources {
    resources_with(&[Discipline::Claim])
}

/// One of each discipline for each lock.
pub fn resources_with(disciplines: &[Discipline]) -> Resources {
    let each = || disciplines.iter().map(|discipline| Resource::with(*discipline)).collect();
    Arc::new(KEYS.iter().map(|key| (*key, Mutex::new(each()))).collect())
}

/// Waits until no request is under way any more, and looks at every lock that was asked for: soon after, and when the
/// short leases are over.
pub async fn look_at_what_is_left(client: &Client, witness: &Witness) {
    sleep(SETTLING).await;
    witness.is_quiet();
    for wait in [Duration::from_millis(1_100), Duration::from_millis(LONGEST_TTL_MS)] {
        sleep(wait).await;
        for key in witness.keys() {
            witness.ask(client, &key, None, Action::Look, PATIENCE).await;
        }
    }
}

/// One client; it may come in by several doors.
pub struct Visitor {
    doors: Vec<Client>,
    witness: Witness,
    resources: Resources,
    random: StdRng,
    ttls: Ttls,
    /// Whether it asks for locks that several hold at once, and beside how many others now.
    shares: bool,
    slots: Option<u16>,
}

impl Visitor {
    pub fn new(doors: Vec<Client>, witness: Witness, resources: Resources, random: StdRng) -> Self {
        Self { doors, witness, resources, random, ttls: Ttls::default(), shares: false, slots: None }
    }

    pub fn who_shares(self, shares: bool) -> Self {
        Self { shares, ..self }
    }

    pub fn with_ttls(self, ttls: Ttls) -> Self {
        Self { ttls, ..self }
    }

    pub async fn work_while(mut self, is_on: impl Fn() -> bool) {
        while is_on() {
            let is_of_pool = self.shares && self.random.random_bool(0.3);
            let keys = if is_of_pool { &POOLS[..] } else { &KEYS[..] };
            let key = *keys.choose(&mut self.random).unwrap();
            self.slots = self.some_slots(key);
            match self.random.random_range(0..10) {
                0 => drop(self.ask(key, None, Action::Look).await),
                1 => self.meddle(key).await,
                2 => {
                    let pool = if is_of_pool { "pool-" } else { "" };
                    self.visit(&format!("{pool}alone-{}", fresh_token()), self.ttls.outlasting_ms).await;
                }
                _ => {
                    let ttl_ms = self.random.random_range(self.ttls.shortest_ms..=self.ttls.longest_ms);
                    self.visit(key, ttl_ms).await;
                }
            }
            self.pause(60).await;
        }
    }

    fn some_slots(&mut self, key: &str) -> Option<u16> {
        match POOLS.iter().position(|pool| *pool == key)? {
            0 => Some(3),
            _ => *MOST_BESIDE.choose(&mut self.random).unwrap(),
        }
    }

    /// Takes the lock, works, and releases, more or less.
    async fn visit(&mut self, key: &str, ttl_ms: u64) {
        let own = self.random.random_bool(0.7).then(fresh_token);
        let (acquire, renew) = (Action::Acquire { ttl_ms }, Action::Renew { ttl_ms });
        let mut answer = self.ask(key, own.as_deref(), acquire).await;
        // Whoever has a token of its own may find out what became of it.
        for _ in 0..self.random.random_range(0..4) {
            if own.is_none() || !(answer.is_in_doubt() || answer.answer == Answer::NotDone) {
                break;
            }
            self.pause(100).await;
            // Each of them may tell it that it holds the lock.
            let action = *[acquire, acquire, renew, Action::Look].choose(&mut self.random).unwrap();
            answer = self.ask(key, own.as_deref(), action).await;
        }
        let Some(token) = answer.token.clone() else { return };
        if let Some(number) = answer.told() {
            self.update(key, number, ttl_ms).await;
            if self.random.random_bool(0.4) {
                self.ask(key, Some(&token), renew).await;
                self.pause(ttl_ms.min(self.ttls.longest_ms) / 8).await;
            }
            if self.random.random_bool(0.2) {
                self.ask(key, Some(&token), Action::Look).await;
            }
            if self.random.random_bool(0.2) {
                self.slots = self.some_slots(key);
                self.ask(key, Some(&token), acquire).await;
            }
        } else if !answer.is_in_doubt() {
            return;
        }
        if self.random.random_bool(0.8) {
            for _ in 0..self.random.random_range(1..4) {
                self.ask(key, Some(&token), Action::Release).await;
            }
            if self.random.random_bool(0.2) {
                self.ask(key, Some(&token), acquire).await;
            }
        }
    }

    /// Claims, reads and writes, with pauses that may outlast the lease.
    async fn update(&mut self, key: &str, number: u64, ttl_ms: u64) {
        let resources = self.resources.clone();
        let Some(resources) = resources.get(key) else { return };
        self.pause(20).await;
        let read: Vec<_> = resources.lock().unwrap().iter_mut().map(|one| one.read(number)).collect();
        let longest_ms = if self.random.random_bool(0.1) { ttl_ms * 3 / 2 } else { 30 };
        self.pause(longest_ms).await;
        for (resource, before) in resources.lock().unwrap().iter_mut().zip(read) {
            let Some(before) = before else { continue };
            // The others lose updates, whatever a lock service does.
            if resource.write(number, before) && resource.discipline() == Discipline::Claim {
                self.witness.updated(Update { resource: key.to_owned(), number, before });
            }
        }
    }

    /// Tries what only the holder may do.
    async fn meddle(&mut self, key: &'static str) {
        let stranger = if self.random.random() { fresh_token() } else { format!("~{}", fresh_token()) };
        let actions = [
            Action::Renew { ttl_ms: self.ttls.longest_ms },
            Action::Release,
            Action::Look,
            Action::Acquire { ttl_ms: self.ttls.shortest_ms },
        ];
        // One that acquires with a made-up token of the server's kind is refused; with its own it would hold.
        let count = if stranger.starts_with('~') { 4 } else { 3 };
        let action = *actions[..count].choose(&mut self.random).unwrap();
        self.ask(key, Some(&stranger), action).await;
    }

    async fn ask(&mut self, key: &str, token: Option<&str>, action: Action) -> Operation {
        let door = self.doors.choose(&mut self.random).unwrap().clone();
        // Some hang up while they are waiting.
        let hangs_up = self.random.random_bool(0.05);
        let patience = match hangs_up {
            true => Duration::from_micros(self.random.random_range(100..20_000)),
            false => PATIENCE,
        };
        self.witness.ask_beside(&door, key, token, action, self.slots, patience).await
    }

    async fn pause(&mut self, longest_ms: u64) {
        sleep(Duration::from_millis(self.random.random_range(0..=longest_ms))).await;
    }
}
