//! Locks that a connection holds: also those that its token held before, and those that are handed over.

use std::sync::atomic::Ordering;
use std::time::Duration;

use kit::history::{Action, Answer, now_us};
use rand::RngExt;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::{Client, LONGEST_TTL_MS, POOL, SHORTEST_TTL_MS, leaves, take, what_it_guards};
use crate::gateways::{Event, Reply, Request};

/// How long after the end of a lease a gateway may be busy with ending it before it says so.
const TOLD_WITHIN: Duration = Duration::from_millis(1_500);

/// How a hold ended.
enum End {
    ByClient,
    Lost,
    /// The token has the lock from now on.
    HandedOver,
}

/// What a client knows of its hold.
struct Held {
    key: String,
    renewal: Request,
    told: mpsc::UnboundedReceiver<Event>,
    /// What was written down of it.
    written: Vec<usize>,
    /// When the last answer was given, and when its lease is over.
    heard_us: u64,
    over_at: Instant,
}

impl Held {
    fn hears(&mut self, reply: &Reply) {
        if let Answer::Granted { ttl_ms, .. }
        | Answer::AlreadyHeld { ttl_ms, .. }
        | Answer::Renewed { ttl_ms, .. } = reply.answer
        {
            self.over_at = Instant::now() + Duration::from_millis(ttl_ms);
        }
        self.heard_us = reply.said_at_us;
    }
}

impl Client {
    /// Holds the lock by a connection, for a while.
    pub(super) async fn hold(&mut self, key: &str) {
        // What is left of one that nobody else asks for is seen at the end.
        let is_alone = self.random.random_bool(0.15);
        let pool = if key.starts_with(POOL) { POOL } else { "" };
        let key = if is_alone { format!("{pool}alone-{}", self.next_id()) } else { key.to_owned() };
        let token = self.fresh_token();
        let longest_ms = self.world.settings.store.longest_ttl_ms();
        let ttl_ms = if is_alone { longest_ms } else { self.ttl_ms().max(600) };
        self.terms = self.some_terms(&key, ttl_ms);
        if self.random.random_bool(0.3) {
            // The connection takes over what its token has by then.
            let ttl_ms = self.random.random_range(SHORTEST_TTL_MS..=ttl_ms.min(LONGEST_TTL_MS));
            self.ask(&key, Some(&token), Action::Acquire { ttl_ms }, Duration::ZERO).await;
            self.world.book.count("hold of a token that asked before");
        }
        let wait = if self.random.random_bool(0.5) { self.wait() } else { Duration::ZERO };
        let request = self.request(&key, Some(&token), Action::Acquire { ttl_ms }, wait);
        let way = self.way();
        let (at, is_written) = self.world.book.begin(&request);
        let (first, answer) = oneshot::channel();
        let (events, told) = mpsc::unbounded_channel();
        let (stays, client_is_gone) = oneshot::channel::<()>();
        let (world, gateway, asked) = (self.world.clone(), self.gateway, request.clone());
        tokio::spawn(async move {
            take(way.before).await;
            if way.loses_request {
                return;
            }
            let gateway = world.gateway(gateway);
            world.line.knows(&asked);
            gateway.hold(asked, first, events, leaves(client_is_gone, way.notices)).await;
        });
        let patience = self.patience(wait);
        let reply = timeout(patience, answer).await.ok().and_then(Result::ok).flatten();
        // Where a proxy hides that the client has left, the gateway tells the proxy.
        is_written.store(reply.is_some() || way.notices.is_none(), Ordering::SeqCst);
        let over_at = Instant::now();
        let renewal = Request { action: Action::Renew { ttl_ms }, ..request.clone() };
        let mut held = Held { key, renewal, told, written: vec![at], heard_us: now_us(), over_at };
        if let Some(reply) = &reply {
            held.hears(reply);
        }
        let answer = self.world.book.finish(at, reply);
        let Some(number) = answer.told() else { return };
        held.heard_us = answer.span.start_us;
        self.world.book.count("hold");
        // The gateway renews it, which the client may never hear.
        let unheard = Request { id: self.next_id(), ..held.renewal.clone() };
        let (unheard, _) = self.world.book.begin(&unheard);
        let resource = what_it_guards(&held.key, &answer);
        let end = self.listen(&mut held, &resource, number).await;
        drop(stays);
        self.world.book.finish(unheard, None);
        // A gateway that does not notice goes on to renew it.
        if way.notices.is_some() || !matches!(end, End::ByClient) {
            held.written.push(unheard);
        }
        self.world.book.ended(&held.written);
        self.world.book.count(match end {
            End::ByClient => "hold ended",
            End::Lost => "hold lost",
            End::HandedOver => "hold handed over",
        });
        self.goes_on(&held.key, &token, end, ttl_ms).await;
    }

    /// Works with what the lock protects, and hears of the lease.
    async fn listen(&mut self, held: &mut Held, resource: &str, number: u64) -> End {
        let until = Instant::now() + Duration::from_millis(self.random.random_range(50..5_000));
        if let Some(before) = self.world.with_resource(resource, |resource| resource.read(number)) {
            self.pause(200).await;
            self.write(resource, number, before);
        }
        loop {
            let latest = held.over_at + TOLD_WITHIN;
            let event = tokio::select! {
                biased;
                event = held.told.recv() => event,
                () = sleep_until(until) => return End::ByClient,
                () = sleep_until(latest) => {
                    let request = &held.renewal;
                    let what = format!("the lease of a connection is over, and it is not told: {} of {}", request.id, held.key);
                    self.world.book.violated(format!("H12: {what}"));
                    return End::Lost;
                }
            };
            let (reply, is_last) = match event {
                Some(Event::Lease(reply)) => (reply, false),
                Some(Event::HandedOver(reply)) => (reply, true),
                Some(Event::Lost) | None => return End::Lost,
            };
            let told = Request { id: self.next_id(), ..held.renewal.clone() };
            if is_last {
                // Where it could not be renewed, it is as long as it was, and what was lost since is not known.
                self.world.book.told(&Request { action: Action::Look, ..told }, held.heard_us, reply);
                return End::HandedOver;
            }
            let heard_us = held.heard_us;
            held.hears(&reply);
            held.written.push(self.world.book.told(&told, heard_us, reply));
        }
    }

    /// What its client does next.
    async fn goes_on(&mut self, key: &str, token: &str, end: End, ttl_ms: u64) {
        let is_handed_over = matches!(end, End::HandedOver);
        if !is_handed_over && self.random.random_bool(0.8) {
            return;
        }
        self.gateway += 1;
        if is_handed_over {
            self.pause(ttl_ms.min(1_000)).await;
        }
        let action = match is_handed_over && self.random.random_bool(0.5) {
            true => Action::Release,
            false => Action::Acquire { ttl_ms: ttl_ms.min(LONGEST_TTL_MS) },
        };
        self.ask(key, Some(token), action, Duration::ZERO).await;
    }
}
