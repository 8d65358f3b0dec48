//! What goes wrong in a round, when, and the record of it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost::clock::boottime;
use fencepost::lock::LockKey;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

/// The latest that anything arrives.
pub const LATEST_MS: u64 = 1_000;
/// A command that takes longer, or a task that sleeps on for longer, shows a machine too busy to keep a line's times.
pub const STALL: Duration = Duration::from_millis(250);

/// What may go wrong, and with which probability.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub hint_is_lost: f64,
    pub hint_is_late: f64,
    /// The command, or its answer, is lost or late, and its sender does not know.
    pub command_is_bad: f64,
    /// Commands and answers take a while and overtake each other.
    pub command_is_slow: f64,
    /// Gateways are killed, and others take their places.
    pub kills: bool,
    /// The connections to the server are closed, and with them the subscriptions.
    pub cuts: bool,
    /// The server loses its lines, as by a failover that lost what came last, but no lock.
    pub forgets: bool,
}

/// What happened to one lock, in the order in which it ended.
pub struct Tape {
    /// Decides about everything that concerns this lock, so that its fate depends on its run alone.
    random: Mutex<StdRng>,
    lines: Mutex<Vec<(Duration, String)>>,
}

impl Tape {
    pub fn new(seed: u64) -> Self {
        Self { random: Mutex::new(StdRng::seed_from_u64(seed)), lines: Mutex::default() }
    }

    pub fn note(&self, at: Duration, text: String) {
        self.lines.lock().unwrap().push((at, text));
    }

    /// All of it, by the time at which each thing began.
    pub fn read(&self) -> Vec<String> {
        let mut lines = self.lines.lock().unwrap().clone();
        lines.sort();
        let begin = lines.first().map_or(Duration::ZERO, |(at, _)| *at);
        let told =
            |(at, text): (Duration, String)| format!("{:9.3} {text}", (at - begin).as_secs_f64() * 1e3);
        lines.into_iter().map(told).collect()
    }
}

/// What all wires of a round share.
pub struct Weather {
    faults: Faults,
    has_cleared: AtomicBool,
    tapes: Mutex<HashMap<LockKey, Arc<Tape>>>,
    /// For what concerns no lock.
    sundries: Arc<Tape>,
    /// What is under way without its sender.
    pub under_way: TaskTracker,
    /// When the machine, or the store, was too slow.
    stalls: Mutex<Vec<(Duration, Duration)>>,
}

impl Weather {
    pub fn new(faults: Faults, seed: u64) -> Self {
        Self {
            faults,
            has_cleared: AtomicBool::new(false),
            tapes: Mutex::default(),
            sundries: Arc::new(Tape::new(seed)),
            under_way: TaskTracker::new(),
            stalls: Mutex::default(),
        }
    }

    pub fn watch(&self, key: LockKey, tape: Arc<Tape>) {
        self.tapes.lock().unwrap().insert(key, tape);
    }

    /// From now on nothing goes wrong; returns when all that was late has arrived.
    pub async fn clear(&self) {
        self.has_cleared.store(true, Ordering::SeqCst);
        self.under_way.close();
        self.under_way.wait().await;
    }

    /// Does this when all that a gateway has sent until now has arrived.
    pub fn outlive(&self, deed: impl Future<Output = ()> + Send + 'static) {
        self.under_way.spawn(async {
            sleep(2 * Duration::from_millis(LATEST_MS)).await;
            deed.await;
        });
    }

    /// Notes for every lock what concerns them all.
    pub fn note_for_all(&self, text: &str) {
        let now = boottime();
        for tape in self.tapes.lock().unwrap().values() {
            tape.note(now, text.to_owned());
        }
    }

    pub fn stalled(&self, from: Duration, until: Duration) {
        self.stalls.lock().unwrap().push((from, until));
    }

    pub fn had_stall_within(&self, from: Duration, until: Duration) -> bool {
        self.stalls.lock().unwrap().iter().any(|(begin, end)| *begin <= until && from <= *end)
    }

    /// Whether there was one that ended later than this.
    pub fn had_stall_since(&self, time: Duration) -> bool {
        self.stalls.lock().unwrap().iter().rev().take(100).any(|(_, end)| *end > time)
    }

    pub fn stalls(&self) -> usize {
        self.stalls.lock().unwrap().len()
    }

    pub fn tape(&self, key: Option<&LockKey>) -> Arc<Tape> {
        let tape = key.and_then(|key| self.tapes.lock().unwrap().get(key).cloned());
        tape.unwrap_or_else(|| self.sundries.clone())
    }

    pub fn draw<T>(&self, tape: &Tape, draw: impl FnOnce(&mut StdRng, Faults) -> T) -> Option<T> {
        let is_foul = !self.has_cleared.load(Ordering::SeqCst);
        is_foul.then(|| draw(&mut tape.random.lock().unwrap(), self.faults))
    }
}

/// What becomes of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Pass,
    Slow { before_ms: u64, after_ms: u64 },
    Lost,
    Refused,
    AnswerLost,
    Late { by_ms: u64 },
}

impl Fate {
    pub fn draw(random: &mut StdRng, faults: Faults) -> Self {
        if random.random_bool(faults.command_is_slow) {
            let (before_ms, after_ms) = (random.random_range(0..120), random.random_range(0..60));
            return Self::Slow { before_ms, after_ms };
        }
        if !random.random_bool(faults.command_is_bad) {
            return Self::Pass;
        }
        match random.random_range(0..10) {
            0..2 => Self::Lost,
            2 => Self::Refused,
            3..6 => Self::AnswerLost,
            _ => Self::Late { by_ms: random.random_range(0..LATEST_MS) },
        }
    }
}
