//! What happens in a sequence.

use std::fmt;
use std::time::Duration;

use fencepost::lock::{Attempt, FencingToken, LockKey, Note, Slots, Terms, Ticket, TokenHash, Ttl};
use fencepost::store::{
    Break, Confirm, Enqueue, Inspect, KnownTo, LastPoll, LockRequest, PassOn, Poll, Release, Renew, Renewer,
    Request, RollBack, TicketAfter, Tombstone, Try,
};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

// Time passes by multiples of 1,200 ms. No two ends of different kinds, counted from such times, are closer to each other, or to
// such a time, than 300 ms, and an offer of 800 ms than 400 ms.
pub const PASSES_MS: [u64; 4] = [1_200, 6_000, 12_000, 36_000];
const TTLS_MS: [u64; 3] = [3_000, 15_000, 45_000];
const MAX_HOLDS_MS: [u64; 2] = [8_700, 27_900];
const MIN_HOLDS_MS: [u64; 2] = [4_500, 18_900];
/// How many may hold the lock, as requests say: each attempt the same whenever it asks.
const SLOTS: [u16; 5] = [1, 2, 3, 2, 1];
const TOLD_FOR_MS: [u64; 3] = [0, 5_400, 42_600];
pub const TICKET_TTL: Duration = Duration::from_millis(9_900);
pub const MARK_TTL: Duration = Duration::from_millis(30_600);
/// Fewer than there are tokens.
pub const MOST_WAITERS: usize = 2;

const TOKENS: u8 = 3;
/// Of each token as many of a plain request, and as many of a connection.
const ATTEMPTS: u8 = 2;
/// Of a hundred requests, where those of each kind end.
const KINDS_END: [usize; 11] = [12, 16, 40, 54, 62, 70, 80, 89, 93, 96, 100];
/// The kind that has a client wait.
const WAITING: usize = 2;
const MOST_AT_ONCE: usize = 6;
const STEPS: std::ops::RangeInclusive<usize> = 8..=16;

/// One thing that happens.
#[derive(Clone)]
pub struct Step {
    /// Copies of a request share it.
    pub id: usize,
    pub what: What,
}

#[derive(Clone)]
pub enum What {
    /// Time passes.
    Pass(u64),
    /// Somebody asks. The number of a grant is said by the order in which they were told, from 1 on, and a ticket by the order
    /// of those of its token.
    Ask { request: Request, gateway: usize, fate: Fate },
    /// Several ask a gateway at one moment, in this order. What they ask for goes to Redis in one call.
    AskAtOnce { requests: Vec<Request>, gateway: usize },
}

/// What becomes of a request, beside its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Answered,
    /// What it was told of is known to nobody.
    AnswerLost,
    /// It reaches nobody, unless a copy does.
    Lost,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            What::Pass(ms) => write!(f, "{ms} ms pass"),
            What::Ask { request, gateway, fate } => {
                let request = by_names(&format!("{request:?}"));
                write!(f, "#{} by gateway {gateway}, {fate:?}: {request}", self.id)
            }
            What::AskAtOnce { requests, gateway } => {
                let requests = by_names(&format!("{requests:?}"));
                write!(f, "#{} by gateway {gateway}, at once: {requests}", self.id)
            }
        }
    }
}

/// A sequence.
pub fn draw(seed: u64, number: u64) -> Vec<Step> {
    let mut random = StdRng::seed_from_u64(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut steps: Vec<Step> = Vec::new();
    let kinds = kinds(&mut random);
    for id in 0..random.random_range(STEPS) {
        let copied = steps.choose(&mut random).filter(|_| random.random_bool(0.1)).cloned();
        let step = copied.unwrap_or_else(|| Step { id, what: something(kinds, &mut random) });
        steps.push(match step.what {
            // It arrives, late.
            What::Ask { request, gateway, .. } if step.id != id => {
                Step { id: step.id, what: What::Ask { request, gateway, fate: Fate::Answered } }
            }
            _ => step,
        });
    }
    // In half of them there are no slots: most of what there is has nothing to do with them.
    let is_asked = |step: &mut Step| match &mut step.what {
        What::Ask { request, .. } if number.is_multiple_of(2) => alone(request),
        What::AskAtOnce { requests, .. } if number.is_multiple_of(2) => requests.iter_mut().for_each(alone),
        _ => {}
    };
    steps.iter_mut().for_each(is_asked);
    steps
}

/// Asks for a lock that has one holder at a time.
fn alone(request: &mut Request) {
    if let Request::Try(Try(lock))
    | Request::Confirm(Confirm(lock))
    | Request::Poll(Poll(lock))
    | Request::Enqueue(Enqueue { lock, .. })
    | Request::LastPoll(LastPoll { lock, .. }) = request
    {
        lock.terms.slots = Slots::ONE;
    }
}

fn something(kinds: u16, random: &mut StdRng) -> What {
    if random.random_bool(0.18) {
        return What::Pass(one(random, &PASSES_MS));
    }
    if random.random_bool(0.15) {
        return What::AskAtOnce { requests: at_once(random), gateway: random.random_range(0..2) };
    }
    let fate = match random.random_range(0..20) {
        0 => Fate::Lost,
        1..3 => Fate::AnswerLost,
        _ => Fate::Answered,
    };
    What::Ask { request: request(kinds, random), gateway: random.random_range(0..2), fate }
}

/// Which kinds of requests a sequence has: all, or some of them, so that they meet each other more often (swarm testing, by
/// Groce and others, 2012).
fn kinds(random: &mut StdRng) -> u16 {
    let some = random.random::<u16>() | 1 << WAITING;
    if random.random_bool(0.5) { u16::MAX } else { some }
}

fn request(kinds: u16, random: &mut StdRng) -> Request {
    let lock = lock(random);
    let (key, token, attempt, ttl) = (lock.key.clone(), lock.token, lock.attempt, lock.ttl);
    let ticket = match random.random_range(0..4) {
        0 => TicketAfter::Removed,
        1 => TicketAfter::KeptAt(any_ticket(random)),
        _ => TicketAfter::Kept,
    };
    let is_had = |share: &usize| kinds & 1 << KINDS_END.partition_point(|end| end <= share) != 0;
    let share = std::iter::repeat_with(|| random.random_range(0..100)).find(is_had).unwrap();
    match share {
        0..12 => Try(lock).into(),
        12..16 => Confirm(lock).into(),
        16..40 => {
            let takes_over = random.random_bool(0.6);
            let ticket = random.random_bool(0.3).then(|| any_ticket(random));
            // What the same client asked for before, and in the same way.
            let before = attempt_of(token, random);
            let is_before = before != attempt && before.is_of_connection() == attempt.is_of_connection();
            let supersedes = if is_before { vec![before] } else { Vec::new() };
            Enqueue { lock, takes_over, ticket, supersedes }.into()
        }
        40..54 => Poll(lock).into(),
        54..62 => LastPoll { lock, ticket }.into(),
        62..70 => {
            let by = match random.random_range(0..3) {
                0 => Renewer::Token,
                1 => Renewer::Connection(attempt),
                _ => Renewer::Connection(attempt.claim()),
            };
            Renew { key, token, ttl, by }.into()
        }
        70..80 => {
            let tombstone = if random.random_bool(0.3) { Tombstone::Final } else { Tombstone::None };
            Release { key, token, tombstone }.into()
        }
        80..89 => {
            let told_for = Duration::from_millis(one(random, &TOLD_FOR_MS));
            // Only a quorum minds it.
            let number = FencingToken::new(1).unwrap();
            let known = if random.random_bool(0.5) {
                KnownTo::Nobody
            } else {
                KnownTo::Connection { number, told_for }
            };
            // What a connection held may have been claimed.
            let attempt = if random.random_bool(0.2) { attempt.claim() } else { attempt };
            RollBack { key, token, attempt, ticket, known }.into()
        }
        89..93 => PassOn { key, token, attempt }.into(),
        93..96 => Inspect { key, token: Some(token) }.into(),
        _ => Break { key, fence: FencingToken::new(random.random_range(1..5)).unwrap() }.into(),
    }
}

/// Requests of one kind, for slots, without times, and for leases of one length: others come to Redis in another order.
fn at_once(random: &mut StdRng) -> Vec<Request> {
    let (kind, count) = (random.random_range(0..4), random.random_range(2..=MOST_AT_ONCE));
    let locks = (0..count).map(|_| lock(random)).collect::<Vec<_>>().into_iter();
    let ttl = Ttl::from_ms(one(random, &TTLS_MS)).unwrap();
    let of_kind = |mut lock: LockRequest| {
        lock.ttl = ttl;
        (lock.terms.max_hold, lock.terms.min_hold) = (None, None);
        let (key, token) = (lock.key.clone(), lock.token);
        match kind {
            0 => Release { key, token, tombstone: Tombstone::None }.into(),
            1 => Renew { key, token, ttl, by: Renewer::Token }.into(),
            _ => Try(lock).into(),
        }
    };
    locks.filter(|lock| lock.terms.slots > Slots::ONE).map(of_kind).collect()
}

fn lock(random: &mut StdRng) -> LockRequest {
    let token = TokenHash::from_bytes([random.random_range(1..=TOKENS); 32]);
    let note = if random.random_bool(0.3) { "somebody" } else { "" };
    let mut term = |lengths: &[u64]| {
        random.random_bool(0.3).then(|| Duration::from_millis(*lengths.choose(random).unwrap()))
    };
    let (max_hold, min_hold) = (term(&MAX_HOLDS_MS), term(&MIN_HOLDS_MS));
    let attempt = attempt_of(token, random);
    let slots = Slots::new(SLOTS[usize::from(attempt.as_bytes()[0]) % SLOTS.len()]).unwrap();
    let terms = Terms { max_hold, min_hold, slots };
    LockRequest {
        key: LockKey::parse(b"lock").unwrap(),
        token,
        attempt,
        ttl: Ttl::from_ms(one(random, &TTLS_MS)).unwrap(),
        note: Note::from_stored(note).unwrap(),
        terms,
    }
}

fn attempt_of(token: TokenHash, random: &mut StdRng) -> Attempt {
    let number = if random.random_bool(0.7) { 1 } else { random.random_range(1..=ATTEMPTS) };
    attempt(token.as_bytes()[0], number, random.random_bool(0.25))
}

/// An attempt of a token, by their numbers.
fn attempt(token: u8, number: u8, is_of_connection: bool) -> Attempt {
    // The first bits say whose it is, as in `Attempt::for_connection`.
    let base = if is_of_connection { 0x70 } else { 0 };
    Attempt::from_bytes([base + 0x10 * token + number; 16])
}

/// The text with names in the place of hashes and attempts.
pub fn by_names(text: &str) -> String {
    let mut text = text.to_owned();
    for token in 1..=TOKENS {
        let hash = TokenHash::from_bytes([token; 32]);
        text = text.replace(&format!("{hash:?}"), &format!("T{token}"));
        for (number, is_of_connection) in (1..=ATTEMPTS).flat_map(|number| [(number, false), (number, true)])
        {
            let name =
                format!("{}{token}.{number}", if is_of_connection { "connection " } else { "attempt " });
            let attempt = attempt(token, number, is_of_connection);
            text = text.replace(&format!("{attempt:?}"), &name);
            text = text.replace(&format!("{:?}", attempt.claim()), &format!("claim of {name}"));
        }
    }
    text
}

fn any_ticket(random: &mut StdRng) -> Ticket {
    Ticket::new(random.random_range(1..4))
}

fn one(random: &mut StdRng, lengths: &[u64]) -> u64 {
    *lengths.choose(random).unwrap()
}
