//! Several locks at once: all of them or none.

use std::time::Duration;

use kit::history::{Action, Answer, Operation};
use rand::RngExt;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::{Client, POOL, leaves, take, what_it_guards};
use crate::gateways::Request;

/// The most that a client asks for at once.
const MOST_KEYS: usize = 3;

impl Client {
    /// Takes some locks together, works with what each of them protects, and releases most of them.
    pub(super) async fn take_several(&mut self) {
        let mut keys: Vec<String> = Vec::new();
        for _ in 0..self.random.random_range(2..=MOST_KEYS) {
            let is_shared = self.world.settings.has_pools() && self.random.random_bool(0.2);
            let is_alone = self.random.random_bool(0.1);
            let key = match (is_alone, is_shared) {
                // What is left of one that nobody else asks for is seen at the end.
                (true, _) => format!("{}alone-{}", if is_shared { POOL } else { "" }, self.next_id()),
                (_, true) => self.world.pool(&mut self.random),
                (_, false) => self.world.key(&mut self.random),
            };
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        if keys.len() < 2 {
            return;
        }
        let own = self.random.random_bool(0.7).then(|| self.fresh_token());
        let ttl_ms = self.ttl_ms().max(1_000);
        // Of a lock alone all say the same, and so does the request of all its keys.
        let are_pools = keys.iter().all(|key| key.starts_with(POOL));
        self.terms = self.some_terms(if are_pools { &keys[0] } else { "" }, ttl_ms);
        let wait = if self.random.random_bool(0.6) { self.wait() } else { Duration::ZERO };
        let mut told = self.ask_for_several(&keys, own.as_deref(), ttl_ms, wait).await;
        for _ in 0..self.random.random_range(0..3) {
            let is_certain = told.iter().any(|told| matches!(told.answer, Answer::HeldByAnother(_)));
            if own.is_none() || is_certain || told.iter().all(|told| told.told().is_some()) {
                break;
            }
            self.gateway += usize::from(self.random.random_bool(0.5));
            self.pause(100).await;
            told = self.ask_for_several(&keys, own.as_deref(), ttl_ms, wait).await;
        }
        let are_held = told.iter().all(|told| told.told().is_some());
        if are_held {
            self.world.book.count("several locks taken together");
            for told in &told {
                let Some(number) = told.told() else { continue };
                self.update(&what_it_guards(&told.key, told), number, ttl_ms).await;
            }
        }
        let Some(token) = told.iter().find_map(|told| told.token.clone()).or(own) else { return };
        if !are_held && self.random.random_bool(0.7) {
            return;
        }
        for key in &keys {
            if self.random.random_bool(0.2) {
                self.ask(key, Some(&token), Action::Renew { ttl_ms }, Duration::ZERO).await;
            }
            if self.random.random_bool(0.8) {
                self.ask(key, Some(&token), Action::Release, Duration::ZERO).await;
            }
        }
    }

    /// What the client is told of each. One that was to be given back was never told of.
    async fn ask_for_several(
        &mut self,
        keys: &[String],
        token: Option<&str>,
        ttl_ms: u64,
        wait: Duration,
    ) -> Vec<Operation> {
        let action = Action::Acquire { ttl_ms };
        let id = self.next_id();
        let request = |key: &String| Request {
            id: id.clone(),
            key: key.clone(),
            token: token.map(str::to_owned),
            action,
            wait,
            terms: self.terms,
        };
        let requests: Vec<_> = keys.iter().map(request).collect();
        let (written, is_written): (Vec<_>, Vec<_>) =
            requests.iter().map(|request| self.world.book.begin(request)).unzip();
        // The gateway renews each, which no client hears of.
        let unheard: Vec<_> = requests
            .iter()
            .map(|request| {
                let renewal =
                    Request { id: self.next_id(), action: Action::Renew { ttl_ms }, ..request.clone() };
                self.world.book.begin(&renewal).0
            })
            .collect();
        let way = self.way();
        let (reply, answer) = oneshot::channel();
        let (stays, client_is_gone) = oneshot::channel::<()>();
        let (world, gateway) = (self.world.clone(), self.gateway);
        tokio::spawn(async move {
            take(way.before).await;
            if way.loses_request {
                return;
            }
            let gateway = world.gateway(gateway);
            for request in &requests {
                world.line.knows(request);
            }
            let gone = leaves(client_is_gone, way.notices);
            let Some(said) = gateway.serve_several(&requests, gone, &is_written).await else { return };
            take(way.after).await;
            if !way.loses_answer {
                let _ = reply.send(said);
            }
        });
        let patience = self.patience(wait);
        let replies = timeout(patience, answer).await.ok().and_then(Result::ok);
        drop(stays);
        let mut replies = replies.unwrap_or_default().into_iter();
        let told: Vec<_> =
            written.into_iter().map(|at| self.world.book.finish(at, replies.next().flatten())).collect();
        // They are for the token that the gateway made, too.
        let token = told.iter().find_map(|told| told.token.as_ref());
        for at in unheard {
            self.world.book.unheard(at, token);
        }
        told
    }
}
