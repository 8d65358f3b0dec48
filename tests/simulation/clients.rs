//! What clients do: everything that the contract allows, and some of what it does not.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use kit::history::{Action, Answer, Operation, Terms, Update, now_us};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::gateways::{Reply, Request};
use crate::world::World;

mod holds;
mod several;

/// Longer than a request may take, so that only those give up that mean to.
const PATIENCE: Duration = Duration::from_secs(5);
const SHORTEST_TTL_MS: u64 = 200;
const LONGEST_TTL_MS: u64 = 3_000;

/// What the names of locks begin with that several hold at once.
pub const POOL: &str = "pool-";
/// One of these that is seldom waited for.
const CALM_POOL: &str = "pool-calm";
/// How many may hold a lock at once, as clients say: nobody else, a few, or all who say so.
const MOST_BESIDE: [Option<u16>; 6] = [None, Some(1), Some(2), Some(3), Some(5), Some(1_000)];

/// What becomes of a request and its answer between client and gateway.
#[derive(Clone, Copy, Default)]
struct Way {
    before: Duration,
    after: Duration,
    loses_request: bool,
    loses_answer: bool,
    /// How long after the client has left the gateway knows; never, if a proxy hides it.
    notices: Option<Duration>,
}

pub struct Client {
    world: Arc<World>,
    number: u64,
    random: StdRng,
    /// Where it goes first.
    gateway: usize,
    requests: u64,
    /// What it asks for now.
    terms: Terms,
}

impl Client {
    pub fn new(world: Arc<World>, number: u64) -> Self {
        let random = world.random(1 + number);
        Self { world, number, random, gateway: number as usize, requests: 0, terms: Terms::default() }
    }

    pub async fn live(mut self) {
        while !self.world.is_over() {
            let shares = self.world.settings.has_pools() && self.random.random_bool(0.3);
            let key = match shares {
                true => self.world.pool(&mut self.random),
                false => self.world.key(&mut self.random),
            };
            match self.random.random_range(0..20) {
                0 => drop(self.ask(&key, None, Action::Look, Duration::ZERO).await),
                1 if self.random.random_bool(0.5) => self.meddle(&key).await,
                1 => self.break_lock(&key).await,
                2 => {
                    let alone = format!("{}alone-{}", if shares { POOL } else { "" }, self.next_id());
                    self.visit(&alone, self.world.settings.store.longest_ttl_ms(), Duration::ZERO).await;
                }
                3 => self.take_several().await,
                // Where hardly anybody waits, and several come, the gateway asks other scripts.
                4..=9 if shares && self.random.random_bool(0.4) => {
                    for _ in 0..5 {
                        let (ttl_ms, waits) = (self.ttl_ms(), self.random.random_bool(0.05));
                        let wait = if waits { self.wait() } else { Duration::ZERO };
                        self.visit(CALM_POOL, ttl_ms, wait).await;
                    }
                }
                4..=6 => self.hold(&key).await,
                7..=13 => {
                    let (ttl_ms, wait) = (self.ttl_ms(), self.wait());
                    self.visit(&key, ttl_ms, wait).await;
                }
                _ => {
                    let ttl_ms = self.ttl_ms();
                    self.visit(&key, ttl_ms, Duration::ZERO).await;
                }
            }
            self.pause(400).await;
        }
    }

    fn ttl_ms(&mut self) -> u64 {
        self.random.random_range(SHORTEST_TTL_MS..=LONGEST_TTL_MS)
    }

    fn wait(&mut self) -> Duration {
        Duration::from_millis(self.random.random_range(1..self.world.settings.store.longest_wait_ms()))
    }

    async fn pause(&mut self, most_ms: u64) {
        sleep(Duration::from_millis(self.random.random_range(0..=most_ms))).await;
    }

    /// Takes the lock, works, and releases, more or less.
    async fn visit(&mut self, key: &str, ttl_ms: u64, wait: Duration) {
        let own = self.random.random_bool(0.7).then(|| self.fresh_token());
        self.terms = self.some_terms(key, ttl_ms);
        // A shorter lease than the one that there is changes nothing.
        let longest_ms = self.world.settings.store.longest_ttl_ms().min(2 * ttl_ms);
        let renewed_ms = self.random.random_range(SHORTEST_TTL_MS..=longest_ms);
        let (acquire, renew) = (Action::Acquire { ttl_ms }, Action::Renew { ttl_ms: renewed_ms });
        let mut answer = self.ask(key, own.as_deref(), acquire, wait).await;
        // Whoever has a token of its own may find out what became of it, also elsewhere.
        for _ in 0..self.random.random_range(0..4) {
            // One who has waited in vain comes back with its ticket.
            let has_waited = !wait.is_zero() && matches!(answer.answer, Answer::HeldByAnother(_));
            if own.is_none() || !(answer.is_in_doubt() || answer.answer == Answer::NotDone || has_waited) {
                break;
            }
            if has_waited {
                self.pause(2_000).await;
                self.changes_its_mind(key);
                answer = self.ask(key, own.as_deref(), acquire, wait).await;
                continue;
            }
            self.gateway += usize::from(self.random.random_bool(0.5));
            self.pause(100).await;
            // Each of them may tell it that it holds the lock.
            let action = *[acquire, acquire, renew, Action::Look].choose(&mut self.random).unwrap();
            let wait = if matches!(action, Action::Acquire { .. }) { wait } else { Duration::ZERO };
            answer = self.ask(key, own.as_deref(), action, wait).await;
        }
        let Some(token) = answer.token.clone() else { return };
        if let Some(number) = answer.told() {
            self.update(&what_it_guards(key, &answer), number, ttl_ms).await;
            if self.random.random_bool(0.4) {
                self.ask(key, Some(&token), renew, Duration::ZERO).await;
                self.pause(ttl_ms.min(LONGEST_TTL_MS) / 8).await;
            }
            if self.random.random_bool(0.2) {
                self.ask(key, Some(&token), Action::Look, Duration::ZERO).await;
            }
            if self.random.random_bool(0.2) {
                self.changes_its_mind(key);
                self.ask(key, Some(&token), acquire, Duration::ZERO).await;
            }
        } else if !answer.is_in_doubt() {
            return;
        }
        if self.random.random_bool(0.8) {
            for _ in 0..self.random.random_range(1..4) {
                self.ask(key, Some(&token), Action::Release, Duration::ZERO).await;
            }
            if self.random.random_bool(0.2) {
                self.ask(key, Some(&token), acquire, wait).await;
            }
        }
    }

    /// Claims, reads and writes, with pauses that may outlast the lease.
    async fn update(&mut self, resource: &str, number: u64, ttl_ms: u64) {
        let longest_ms = ttl_ms.min(LONGEST_TTL_MS);
        if self.random.random_bool(0.3) {
            self.pause(longest_ms).await;
        }
        let read = self.world.with_resource(resource, |resource| resource.read(number));
        let Some(before) = read else { return };
        self.pause(longest_ms / 4).await;
        self.write(resource, number, before);
    }

    fn write(&self, resource: &str, number: u64, before: u64) {
        if self.world.with_resource(resource, |resource| resource.write(number, before)) {
            self.world.book.updated(Update { resource: resource.to_owned(), number, before });
        }
    }

    /// Renews or releases what it does not hold.
    async fn meddle(&mut self, key: &str) {
        let token = self.fresh_token();
        let ttl_ms = self.ttl_ms();
        let action = *[Action::Release, Action::Renew { ttl_ms }].choose(&mut self.random).unwrap();
        self.ask(key, Some(&token), action, Duration::ZERO).await;
    }

    /// Ends a grant that it has seen, which may be over by then; or the one that is found.
    async fn break_lock(&mut self, key: &str) {
        let seen = self.ask(key, None, Action::Look, Duration::ZERO).await.shown();
        self.pause(200).await;
        let number = seen.filter(|_| self.random.random_bool(0.8));
        self.ask(key, None, Action::Break { number }, Duration::ZERO).await;
        self.world.book.count("break");
    }

    /// It may ask for another number of slots from now on.
    fn changes_its_mind(&mut self, key: &str) {
        if key.starts_with(POOL) && self.random.random_bool(0.3) {
            self.terms.slots = self.some_slots(key);
        }
    }

    /// Beside how many others it may hold the lock. Of one pool all say the same.
    fn some_slots(&mut self, key: &str) -> Option<u16> {
        let drawn = *MOST_BESIDE.choose(&mut self.random).unwrap();
        match key.strip_prefix(POOL) {
            None => None,
            Some(name) if name.starts_with('a') => Some(3),
            Some(_) => drawn,
        }
    }

    fn some_terms(&mut self, key: &str, ttl_ms: u64) -> Terms {
        let slots = self.some_slots(key);
        // In a slot that moves, terms go on by the clock of the node that has it by then.
        let probability = if self.world.are_nodes_clocks_apart() { 0.0 } else { 0.15 };
        let has = [probability; 2].map(|probability| self.random.random_bool(probability));
        let max_hold_ms = has[0].then(|| ttl_ms + self.random.random_range(0..2_000));
        let longest_ms = max_hold_ms.unwrap_or(LONGEST_TTL_MS).min(2_000);
        let min_hold_ms = has[1].then(|| self.random.random_range(100..=longest_ms.max(100)));
        Terms { max_hold_ms, min_hold_ms, slots }
    }

    async fn ask(&mut self, key: &str, token: Option<&str>, action: Action, wait: Duration) -> Operation {
        let way = self.way();
        if token.is_some() && self.happens("request doubled", 0.03) {
            let after = Duration::from_millis(self.random.random_range(0..3_000));
            let (world, gateway) = (self.world.clone(), self.gateway + self.random.random_range(0..2));
            let request = self.request(key, token, action, Duration::ZERO);
            let way = Way { before: after, loses_answer: true, ..way };
            tokio::spawn(async move { drop(ask_by(world, gateway, request, way, PATIENCE).await) });
        }
        let request = self.request(key, token, action, wait);
        let patience = self.patience(wait);
        ask_by(self.world.clone(), self.gateway, request, way, patience).await
    }

    fn request(&mut self, key: &str, token: Option<&str>, action: Action, wait: Duration) -> Request {
        let terms = if matches!(action, Action::Acquire { .. }) { self.terms } else { Terms::default() };
        Request {
            id: self.next_id(),
            key: key.to_owned(),
            token: token.map(str::to_owned),
            action,
            wait,
            terms,
        }
    }

    fn way(&mut self) -> Way {
        // The judge tells what came first by times that differ.
        let mut ms = |most: u64| Duration::from_millis(self.random.random_range(1..=most));
        let (mut before, mut after, notices) = (ms(2), ms(2), ms(20));
        if self.happens("request late", 0.02) {
            before = Duration::from_millis(self.random.random_range(1..2_000));
        }
        if self.happens("answer late", 0.02) {
            after = Duration::from_millis(self.random.random_range(1..2_000));
        }
        let notices = (!self.happens("departure hidden", 0.2)).then_some(notices);
        let loses_request = self.happens("request lost", 0.02);
        let loses_answer = self.happens("answer lost", 0.02);
        Way { before, after, loses_request, loses_answer, notices }
    }

    fn patience(&mut self, wait: Duration) -> Duration {
        if self.happens("client left", 0.06) {
            let most_ms = 40 + wait.as_millis() as u64;
            return Duration::from_millis(self.random.random_range(0..most_ms));
        }
        wait + PATIENCE
    }

    fn happens(&mut self, what: &'static str, probability: f64) -> bool {
        let happens = self.random.random_bool(probability) && self.world.settings.has(what);
        if happens {
            self.world.book.count(what);
        }
        happens
    }

    fn next_id(&mut self) -> String {
        self.requests += 1;
        format!("{}.{}", self.number, self.requests)
    }

    fn fresh_token(&mut self) -> String {
        let id = self.next_id();
        format!("token-{id}-{:016x}", self.random.random::<u64>())
    }
}

/// What is counted of locks that several hold.
fn counted(told: &Operation) -> Option<&'static str> {
    match (&told.answer, told.share.place) {
        (Answer::Granted { .. }, Some(_)) => Some("slot taken"),
        (Answer::Renewed { .. }, Some(_)) => Some("slot renewed"),
        (Answer::HeldOtherwise { .. }, _) => Some("slot held otherwise"),
        (Answer::Held { .. }, _)
            if told.share.slots.is_some_and(|slots| u64::from(slots) == told.share.held) =>
        {
            Some("lock of several full")
        }
        _ => None,
    }
}

/// What a lock protects, or the part of it that is for this place. Who has no place beside others leaves those parts alone.
fn what_it_guards(key: &str, told: &Operation) -> String {
    let slot = told.share.place.map(|place| format!(" in slot {}", place.slot));
    format!("{key}{}", slot.unwrap_or_default())
}

/// Sleeps, where there is something to sleep for.
async fn take(time: Duration) {
    if !time.is_zero() {
        sleep(time).await;
    }
}

/// Completes when the gateway knows that the client has left.
async fn leaves(client_is_gone: oneshot::Receiver<()>, notices: Option<Duration>) {
    let _ = client_is_gone.await;
    match notices {
        Some(after) => sleep(after).await,
        None => std::future::pending().await,
    }
}

async fn ask_by(
    world: Arc<World>,
    gateway: usize,
    request: Request,
    way: Way,
    patience: Duration,
) -> Operation {
    let (at, is_written) = world.book.begin(&request);
    let (reply, answer) = oneshot::channel();
    let (stays, client_is_gone) = oneshot::channel();
    let client_is_gone = leaves(client_is_gone, way.notices);
    tokio::spawn(carry(world.clone(), gateway, request, way, client_is_gone, is_written, reply));
    let reply = timeout(patience, answer).await.ok().and_then(Result::ok);
    drop(stays);
    let told = world.book.finish(at, reply);
    if let Some(what) = counted(&told) {
        world.book.count(what);
    }
    told
}

/// Takes a request to its gateway, and the answer back.
async fn carry(
    world: Arc<World>,
    gateway: usize,
    request: Request,
    way: Way,
    client_is_gone: impl Future<Output = ()>,
    is_written: Arc<AtomicBool>,
    reply: oneshot::Sender<Reply>,
) {
    take(way.before).await;
    if way.loses_request {
        return;
    }
    let gateway = world.gateway(gateway);
    let place = world.line.comes(&request, gateway.number);
    let said = gateway.serve(request, client_is_gone, &is_written).await;
    place.ends(&world, said.as_ref());
    let Some(said) = said else { return };
    take(way.after).await;
    if !way.loses_answer {
        let _ = reply.send(said);
    }
}

/// A stranger looks at a lock.
pub async fn look(world: &Arc<World>, key: &str) {
    let id = format!("look-{key}-{}", now_us());
    let (action, wait, terms) = (Action::Look, Duration::ZERO, Terms::default());
    let request = Request { id, key: key.to_owned(), token: None, action, wait, terms };
    let way = Way { before: Duration::from_millis(1), ..Way::default() };
    ask_by(world.clone(), 0, request, way, PATIENCE).await;
}
