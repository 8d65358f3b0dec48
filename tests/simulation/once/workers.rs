//! What workers do.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use tokio::time::sleep;

use super::asking::{Way, ask_by};
use super::{
    ALONE, ALONE_TTL_MS, Action, Answer, ERA_S, KEYS, LONG_KEEP_S, LONGEST_TTL_MS, Operation, PATIENCE,
    SHORT_KEEP_S,
};
use crate::world::World;

/// What a request may be for.
pub(super) const FINGERPRINTS: [Option<&str>; 3] = [None, Some("x"), Some("y")];

/// More than what passes a script.
const LONG_RESULT_BYTES: usize = 5_000;

pub struct Worker {
    world: Arc<World>,
    random: StdRng,
    gateway: usize,
    number: u64,
    tokens: u64,
}

impl Worker {
    pub fn new(world: Arc<World>, number: u64) -> Self {
        let random = world.random(5_000 + number);
        Self { world, random, gateway: number as usize, number, tokens: 0 }
    }

    pub async fn live(mut self) {
        while !self.world.is_over() {
            let key = self.world.record_key(self.random.random_range(0..KEYS), ERA_S);
            match self.random.random_range(0..17) {
                0 | 1 => self.break_record(&key).await,
                2 | 3 => self.leave_alone().await,
                _ => self.work(&key).await,
            }
            self.pause(300).await;
        }
    }

    /// Begins a piece of work, and does what workers do, or what they should not.
    async fn work(&mut self, key: &str) {
        let token = self.random.random_bool(0.8).then(|| self.fresh_token());
        let ttl_ms = self.random.random_range(200..=LONGEST_TTL_MS);
        let waits = self.random.random_bool(0.4);
        let begin = Action::Begin {
            ttl_ms,
            keep_s: self.keep_s(),
            may_take_over: self.random.random_bool(0.8),
            wait: Duration::from_millis(if waits { self.random.random_range(100..6_000) } else { 0 }),
            fingerprint: self.fingerprint(key),
        };
        let mut told = self.ask(key, token.as_deref(), begin.clone()).await;
        for _ in 0..self.random.random_range(0..3) {
            if token.is_none() || !matches!(told.answer, Answer::Unknown | Answer::Lost | Answer::Refused) {
                break;
            }
            self.gateway += 1;
            // It looks whether the place is its own, or begins once more.
            let again = if self.random.random_bool(0.3) { Action::Look } else { begin.clone() };
            told = self.ask(key, token.as_deref(), again).await;
        }
        let (Some(number), Some(token)) = (told.work(), told.token.clone()) else { return };
        let shown = self.random.random_bool(0.4).then_some(number);
        self.pause(ttl_ms * 3 / 2).await;
        for _ in 0..self.random.random_range(0..3) {
            match self.random.random_range(0..4) {
                0 => self.ask(key, Some(&token), Action::Look).await,
                // It asks once more, as one that has forgotten the answer.
                1 => self.ask(key, Some(&token), begin.clone()).await,
                _ => {
                    let ttl_ms = self.random.random_range(200..=LONGEST_TTL_MS);
                    self.ask(key, Some(&token), Action::Renew { ttl_ms, number: shown }).await
                }
            };
            self.pause(ttl_ms / 2).await;
        }
        match self.random.random_range(0..10) {
            // It crashes.
            0 | 1 => {}
            2 | 3 => {
                let is_clean = self.random.random_bool(0.5);
                for _ in 0..self.random.random_range(1..3) {
                    self.ask(key, Some(&token), Action::GiveUp { is_clean }).await;
                }
                if self.random.random_bool(0.2) {
                    self.store(key, &token, shown, &begin).await;
                }
            }
            _ => self.store(key, &token, shown, &begin).await,
        }
        if self.random.random_bool(0.3) {
            self.pause(ttl_ms * 2).await;
            self.ask(key, Some(&token), begin).await;
        }
    }

    /// Stores a result, until that is answered, or it has asked often enough.
    async fn store(&mut self, key: &str, token: &str, number: Option<u64>, begin: &Action) {
        let mut has_begun_anew = false;
        let mut number = number;
        let keep_s = self.random.random_bool(0.5).then(|| self.keep_s());
        let length = if self.random.random_bool(0.2) { LONG_RESULT_BYTES } else { 9 };
        for attempt in 0..4 {
            let (length, status) = match self.random.random_range(0..16) {
                0 => (length + attempt + 1, None),
                1 => (length, Some(1)),
                _ => (length, None),
            };
            let result = format!("{token}-{}", "*".repeat(length));
            let told = self.ask(key, Some(token), Action::Store { result, status, keep_s, number }).await;
            match told.answer {
                Answer::Unknown | Answer::Lost | Answer::Refused => self.gateway += 1,
                Answer::NotBegun if !has_begun_anew => {
                    has_begun_anew = true;
                    let told = self.ask(key, Some(token), begin.clone()).await;
                    let Answer::Work { number: anew, .. } = told.answer else { return };
                    number = number.map(|_| anew);
                }
                // It asks whether that was done.
                _ if self.random.random_bool(0.2) => {}
                _ => return,
            }
        }
    }

    /// Begins what nobody else does, with a long lease. It is gone before it is answered, or gives up.
    async fn leave_alone(&mut self) {
        let token = self.fresh_token();
        let key = format!("{ALONE}{token}");
        let begin = Action::Begin {
            ttl_ms: ALONE_TTL_MS,
            keep_s: self.keep_s(),
            may_take_over: true,
            wait: Duration::ZERO,
            fingerprint: None,
        };
        let shown = self.random.random_bool(0.5).then_some(&*token);
        let patience = Duration::from_millis(self.random.random_range(1..30));
        let way = Way { is_seen_to_leave: true, ..self.way() };
        let patience = if self.random.random_bool(0.5) { patience } else { PATIENCE };
        let told = ask_by(self.world.clone(), self.gateway, &key, shown, begin, way, patience).await;
        if told.work().is_some() {
            self.pause(100).await;
            self.ask(&key, told.token.as_deref(), Action::GiveUp { is_clean: true }).await;
        }
    }

    /// Breaks what it finds, or only looks at it.
    async fn break_record(&mut self, key: &str) {
        let told = self.ask(key, None, Action::Look).await;
        if self.random.random_bool(0.5) {
            return;
        }
        let number = if let Answer::Seen(seen) = told.answer { Some(seen.number) } else { None };
        // What it found may be another one's by then.
        let is_slow = self.random.random_bool(0.3);
        self.pause(if is_slow { 3_000 } else { 100 }).await;
        let is_clean = self.random.random_bool(0.3);
        self.ask(key, None, Action::Break { number, is_clean }).await;
    }

    fn keep_s(&mut self) -> u64 {
        if self.random.random_bool(0.7) { SHORT_KEEP_S } else { LONG_KEEP_S }
    }

    /// Most requests for a record are for the same.
    fn fingerprint(&mut self, key: &str) -> Option<String> {
        let one = FINGERPRINTS[key.len() % FINGERPRINTS.len()];
        let any = FINGERPRINTS[self.random.random_range(0..FINGERPRINTS.len())];
        if self.random.random_bool(0.9) { one } else { any }.map(str::to_owned)
    }

    async fn ask(&mut self, key: &str, token: Option<&str>, action: Action) -> Operation {
        let way = self.way();
        // The same comes once more, or a look.
        if token.is_some() && self.random.random_bool(0.06) {
            let most_ms = if self.random.random_bool(0.5) { 10 } else { 3_000 };
            let before = Duration::from_millis(self.random.random_range(0..most_ms));
            let looks = self.random.random_bool(0.3);
            let way = Way { before, loses_answer: !looks, ..way };
            let action = if looks { Action::Look } else { action.clone() };
            let (world, gateway) = (self.world.clone(), self.gateway + 1);
            let (key, token) = (key.to_owned(), token.map(str::to_owned));
            tokio::spawn(async move {
                ask_by(world, gateway, &key, token.as_deref(), action, way, PATIENCE).await
            });
        }
        let wait = if let Action::Begin { wait, .. } = action { wait } else { Duration::ZERO };
        let mut patience = wait + PATIENCE;
        if self.random.random_bool(0.06) {
            let most_ms = if self.random.random_bool(0.5) { 8 } else { 60 + wait.as_millis() as u64 };
            patience = Duration::from_millis(self.random.random_range(0..most_ms));
        }
        ask_by(self.world.clone(), self.gateway, key, token, action, way, patience).await
    }

    fn way(&mut self) -> Way {
        let late = self.random.random_bool(0.02);
        let before_ms = self.random.random_range(1..if late { 2_000 } else { 3 });
        Way {
            before: Duration::from_millis(before_ms),
            loses_request: self.random.random_bool(0.02),
            loses_answer: self.random.random_bool(0.03),
            is_seen_to_leave: self.random.random_bool(0.8),
        }
    }

    async fn pause(&mut self, most_ms: u64) {
        sleep(Duration::from_millis(self.random.random_range(0..=most_ms))).await;
    }

    fn fresh_token(&mut self) -> String {
        self.tokens += 1;
        format!("worker-{}-{}-{:016x}", self.number, self.tokens, self.random.random::<u64>())
    }
}
