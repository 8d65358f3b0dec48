//! What workers do.

use std::sync::Arc;
use std::time::Duration;

use fencepost::lock::LockKey;
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::time::sleep;

use super::{Action, Answer, ERA_S, KEYS, LONGEST_TTL_MS, Operation, PATIENCE, Way, ask_by};
use crate::world::World;

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
            match self.random.random_range(0..12) {
                0 => self.break_record(&key).await,
                _ => self.work(&key).await,
            }
            self.pause(300).await;
        }
    }

    async fn work(&mut self, key: &str) {
        let token = self.random.random_bool(0.8).then(|| self.fresh_token());
        let ttl_ms = self.random.random_range(200..=LONGEST_TTL_MS);
        let waits = self.random.random_bool(0.4);
        let wait = Duration::from_millis(if waits { self.random.random_range(100..6_000) } else { 0 });
        let begin = Action::Begin { ttl_ms, may_take_over: self.random.random_bool(0.8), wait };
        let mut told = self.ask(key, token.as_deref(), begin.clone()).await;
        for _ in 0..self.random.random_range(0..3) {
            if token.is_none() || !matches!(told.answer, Answer::Unknown | Answer::Lost | Answer::Refused) {
                break;
            }
            self.gateway += 1;
            told = self.ask(key, token.as_deref(), begin.clone()).await;
        }
        let (Answer::Work { .. }, Some(token)) = (&told.answer, told.token.clone()) else { return };
        self.pause(ttl_ms * 3 / 2).await;
        if self.random.random_bool(0.3) {
            self.ask(key, Some(&token), Action::Renew { ttl_ms }).await;
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
            }
            _ => self.store(key, &token, ttl_ms).await,
        }
        if self.random.random_bool(0.2) {
            self.ask(key, Some(&token), begin).await;
        }
    }

    /// Stores a result, until that is answered, or it has asked often enough.
    async fn store(&mut self, key: &str, token: &str, ttl_ms: u64) {
        let mut has_begun_anew = false;
        for attempt in 0..4 {
            let other = self.random.random_bool(0.1);
            let result = format!("{token}-{}", if other { attempt } else { 9 });
            let told = self.ask(key, Some(token), Action::Store { result }).await;
            match told.answer {
                Answer::Unknown | Answer::Lost | Answer::Refused => self.gateway += 1,
                Answer::NotBegun if !has_begun_anew => {
                    has_begun_anew = true;
                    let begin = Action::Begin { ttl_ms, may_take_over: true, wait: Duration::ZERO };
                    let told = self.ask(key, Some(token), begin).await;
                    if !matches!(told.answer, Answer::Work { .. }) {
                        return;
                    }
                }
                _ => return,
            }
        }
    }

    /// Breaks what it finds.
    async fn break_record(&mut self, key: &str) {
        let parsed = LockKey::parse(key.as_bytes()).unwrap();
        let gateway = self.world.gateway(self.gateway);
        let look = gateway.service.look_at_record(&parsed, None);
        let seen = tokio::select! {
            biased;
            () = gateway.gone.cancelled() => None,
            seen = look => seen.ok().flatten(),
        };
        let number = seen.map(|record| record.place.lease.fencing_token.get());
        self.pause(100).await;
        let is_clean = self.random.random_bool(0.3);
        self.ask(key, None, Action::Break { number, is_clean }).await;
    }

    async fn ask(&mut self, key: &str, token: Option<&str>, action: Action) -> Operation {
        let way = self.way();
        if token.is_some() && self.random.random_bool(0.04) {
            let late = Duration::from_millis(self.random.random_range(0..3_000));
            let way = Way { before: late, loses_answer: true, ..way };
            let (world, gateway) = (self.world.clone(), self.gateway + 1);
            let (key, token, action) = (key.to_owned(), token.map(str::to_owned), action.clone());
            tokio::spawn(async move {
                ask_by(world, gateway, &key, token.as_deref(), action, way, PATIENCE).await
            });
        }
        let wait = if let Action::Begin { wait, .. } = action { wait } else { Duration::ZERO };
        let mut patience = wait + PATIENCE;
        if self.random.random_bool(0.06) {
            patience = Duration::from_millis(self.random.random_range(0..60 + wait.as_millis() as u64));
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
