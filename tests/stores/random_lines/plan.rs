//! What happens in a run: everything that its people do is drawn here, from the seed and the number of the run.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Longer than anything that keeps a lock from the line could take altogether, on a slow machine too.
pub const PATIENT_MS: u64 = 12_000;
/// A lease that outlasts the patient: whoever has one releases it, and what is left of one was nobody's.
pub const LONG_TTL_MS: u64 = 90_000;

/// One lock, and the few who want it.
#[derive(Debug)]
pub struct Run {
    pub people: Vec<Person>,
}

/// One who wants the lock.
#[derive(Debug)]
pub struct Person {
    /// Without one, the server makes a token for each request.
    pub has_own_token: bool,
    pub ttl_ms: u64,
    /// After how long the lock is released; `None` is never: the lease ends by itself.
    pub releases_after_ms: Option<u64>,
    /// Requests of one token may overlap, at two gateways too, and one may come back to the place of another. Without a
    /// token of their own, some ask again and again and never wait.
    pub puts: Vec<Put>,
    /// When the token is released without regard to what the requests are at.
    pub deletes_at_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub struct Put {
    pub at_ms: u64,
    pub gateway: usize,
    pub wait_ms: u64,
    pub hangs_up_after_ms: Option<u64>,
}

impl Run {
    /// Draws the run of this number. Where gateways are killed, an answer may be lost with a grant that nobody takes
    /// back, so no lease is long there.
    pub fn draw(seed: u64, number: u64, has_kills: bool) -> Self {
        let mut random = StdRng::seed_from_u64(seed.wrapping_add(number));
        let people = (0..random.random_range(2..=6)).map(|_| Person::draw(&mut random, has_kills));
        Self { people: people.collect() }
    }
}

impl Person {
    fn draw(random: &mut StdRng, has_kills: bool) -> Self {
        let has_own_token = random.random_bool(0.6);
        let releases = random.random_bool(0.75);
        let is_long = releases && !has_kills && random.random_bool(0.6);
        let mut puts = vec![Put::draw(random, 0)];
        if !has_own_token && random.random_bool(0.2) {
            puts = (0..12)
                .map(|_| Put { wait_ms: 0, hangs_up_after_ms: None, ..Put::draw(random, 0) })
                .collect();
        }
        if has_own_token {
            while puts.len() < 3 && random.random_bool(0.35) {
                let after_ms = puts[puts.len() - 1].at_ms;
                puts.push(Put::draw(random, after_ms));
            }
        }
        let deletes = has_own_token && random.random_bool(0.1);
        Self {
            has_own_token,
            ttl_ms: if is_long { LONG_TTL_MS } else { random.random_range(50..600) },
            releases_after_ms: releases.then(|| random.random_range(0..200)),
            puts,
            deletes_at_ms: deletes.then(|| random.random_range(0..1_500)),
        }
    }

    pub fn has_long_lease(&self) -> bool {
        self.ttl_ms == LONG_TTL_MS
    }
}

impl Put {
    fn draw(random: &mut StdRng, after_ms: u64) -> Self {
        let wait_ms = match random.random_range(0..10) {
            0 => 0,
            1..=3 => PATIENT_MS,
            _ => random.random_range(1..1_500),
        };
        Self {
            at_ms: after_ms + random.random_range(0..800),
            gateway: random.random_range(0..2),
            wait_ms,
            hangs_up_after_ms: random.random_bool(0.25).then(|| random.random_range(0..1_000)),
        }
    }
}
