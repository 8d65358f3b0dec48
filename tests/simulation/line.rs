//! Who came first to which lock, as far as that is certain. While nothing fails, nobody is granted a lock before one who came
//! earlier and still waits, and a position counts those who did.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::history::{Action, Answer, Terms};
use tokio::time::{Instant, sleep};

use crate::gateways::{Reply, Request};
use crate::settings::Store;
use crate::world::World;

/// For so long nothing must have failed before one came: what failed before is over then.
const SETTLED: Duration = Duration::from_secs(3);
/// Longer than a request is on its way to the queue, or from it.
const CERTAIN: Duration = Duration::from_secs(1);
/// Longer than an answer is on its way that was given at the same time.
const CONFIRMED: Duration = Duration::from_millis(200);
/// A ticket without a client certainly lasts for so long.
const TICKETS_LAST: Duration = Duration::from_secs(8);
const TICKETS_LAST_AT_MOST: Duration = Duration::from_secs(12);

/// The lock, and the id of a request or a token.
type Who = (String, String);

/// Those who wait, and those who have waited.
#[derive(Default)]
pub struct Line(Mutex<Pages>);

#[derive(Default)]
struct Pages {
    /// By the ids of their requests.
    waiting: BTreeMap<Who, Comer>,
    tokens: BTreeMap<Who, Known>,
}

/// What is known of a token that asks for a lock.
struct Known {
    first_came: Instant,
    /// How many of its requests have come so far.
    came: usize,
    /// How many of those are there that ask for the lock.
    requests: usize,
    /// The gateway that keeps its ticket, since when, and for how long certainly.
    ticket: Option<(u64, Instant, Instant)>,
    /// Until when it may have a place in line without a request, and beside how many others it would come in.
    may_stand_until: Option<Instant>,
    slots: u16,
}

#[derive(Clone)]
struct Comer {
    token: Option<String>,
    slots: u16,
    /// Which of its token's requests it is.
    number: usize,
    gateway: u64,
    came: Instant,
    /// When it came, or its ticket is from.
    place: Instant,
    /// When its token came first, at whichever gateway.
    first_came: Instant,
    ends: Instant,
}

/// A request that has come to its gateway.
#[must_use]
pub struct Place {
    who: Who,
    comer: Comer,
    /// Whether it asks to be granted the lock.
    acquires: bool,
}

impl Line {
    /// A request comes to this gateway.
    pub fn comes(&self, request: &Request, gateway: u64) -> Place {
        let (mut pages, came) = (self.0.lock().unwrap(), Instant::now());
        let (mut place, mut first_came, mut number) = (came, came, 0);
        let acquires = matches!(request.action, Action::Acquire { .. });
        if let Some(token) = &request.token {
            let known = pages.tokens.entry((request.key.clone(), token.clone())).or_insert(Known::from(came));
            known.came += 1;
            known.requests += usize::from(acquires);
            (first_came, number) = (known.first_came, known.came);
            let kept = known.ticket.filter(|(keeper, _, until)| *keeper == gateway && came < *until);
            place = kept.map_or(came, |(_, since, _)| since);
        }
        let who = (request.key.clone(), request.id.clone());
        let (token, ends) = (request.token.clone(), came + request.wait);
        let slots = request.terms.slots.unwrap_or(1);
        let comer = Comer { token, slots, number, gateway, came, place, first_came, ends };
        // A token that the gateway made only confirms.
        let only_confirms = request.token.as_ref().is_some_and(|token| token.starts_with('~'));
        if !request.wait.is_zero() && !only_confirms {
            pages.waiting.insert(who.clone(), comer.clone());
        }
        Place { who, comer, acquires }
    }

    /// A connection asks for a lock, or a request for several, and may wait. They are not judged themselves, but others wait behind
    /// them, and behind the places that they keep.
    pub fn knows(&self, request: &Request) {
        if let Some(token) = &request.token {
            let (mut pages, now) = (self.0.lock().unwrap(), Instant::now());
            let known = pages.tokens.entry((request.key.clone(), token.clone())).or_insert(Known::from(now));
            known.came += 1;
            known.slots = request.terms.slots.unwrap_or(1);
            known.may_stand_until = Some(now + request.wait + TICKETS_LAST_AT_MOST);
        }
    }

    /// The lock and the id of each request that waits.
    pub fn waiting(&self) -> Vec<Who> {
        self.0.lock().unwrap().waiting.keys().cloned().collect()
    }

    /// The least that any of those bears who wait for this lock.
    pub fn least_slots(&self, key: &str) -> u16 {
        let pages = self.0.lock().unwrap();
        let waiting = pages.waiting.iter().filter(|((other, _), _)| other == key);
        // Who is away keeps its place, and those behind it wait until it would be let in.
        let away = pages.tokens.iter().filter(|((other, _), known)| {
            other == key && known.may_stand_until.is_some_and(|until| Instant::now() < until)
        });
        let away = away.map(|(_, known)| known.slots);
        waiting.map(|(_, comer)| comer.slots).chain(away).min().unwrap_or(u16::MAX)
    }

    fn is_waiting(&self, who: &Who) -> bool {
        self.0.lock().unwrap().waiting.contains_key(who)
    }
}

impl Known {
    fn from(first_came: Instant) -> Self {
        Self { first_came, came: 0, requests: 0, ticket: None, may_stand_until: None, slots: 1 }
    }
}

impl Pages {
    /// Whether no other request of its token is there, nor has come since: that one may have been granted the lock, or have
    /// released it.
    fn is_alone(&self, key: &str, comer: &Comer) -> bool {
        let Some(token) = &comer.token else { return true };
        let known = self.tokens.get(&(key.to_owned(), token.clone()));
        known.is_some_and(|known| known.requests == 1 && known.came == comer.number)
    }

    /// Those who certainly came before `comer`, and wait for a while yet.
    fn before(&self, key: &str, comer: &Comer, world: &World) -> Vec<Who> {
        let Some(calm_since) = world.calm_since() else { return Vec::new() };
        let now = Instant::now();
        let is_before = |other: &Comer| {
            // Each gateway of a quorum has a queue of its own.
            let is_of_queue = world.settings.store != Store::Quorum || other.gateway == comer.gateway;
            let is_there = other.came + CERTAIN < now && now + CERTAIN < other.ends;
            let is_settled = calm_since + SETTLED < other.place;
            let is_other = other.token.is_none() || other.token != comer.token;
            is_of_queue && is_other && is_there && is_settled && other.place + CERTAIN < comer.first_came
        };
        let others = self.waiting.iter().filter(|((other, _), _)| other == key);
        let before = others.filter(|(_, other)| is_before(other) && self.is_alone(key, other));
        before.map(|(who, _)| who.clone()).collect()
    }
}

impl Place {
    /// The request is answered, or its client or its gateway has gone.
    pub fn ends(self, world: &Arc<World>, said: Option<&Reply>) {
        let Self { who, comer, acquires } = self;
        if !acquires {
            return;
        }
        let (key, answer) = (&who.0, said.map(|reply| &reply.answer));
        let mut pages = world.line.0.lock().unwrap();
        let waited = pages.waiting.remove(&who).is_some();
        let is_refused = matches!(answer, Some(Answer::HeldByAnother(_)));
        if let Some(Answer::Granted { .. }) = answer {
            complain(world, pages.before(key, &comer, world), 1, format!("W2: {who:?} is granted the lock"));
        }
        if waited && is_refused && comer.token.is_some() && pages.is_alone(key, &comer) {
            let position = said.and_then(|reply| reply.position).unwrap_or_default() as usize;
            let before = pages.before(key, &comer, world);
            let is_settled = world.calm_since().is_some_and(|since| since + SETTLED < comer.place);
            if position == 0 && is_settled {
                world.book.violated(format!("W14: {who:?} has waited, and has no position"));
            }
            complain(world, before, position.max(1), format!("W14: {who:?} has position {position}"));
        }
        if let Some(token) = &comer.token
            && let Some(known) = pages.tokens.get_mut(&(key.clone(), token.clone()))
        {
            known.requests -= 1;
            let is_over = matches!(answer, Some(Answer::Granted { .. } | Answer::AlreadyHeld { .. }));
            known.may_stand_until = (!is_over).then(|| Instant::now() + TICKETS_LAST_AT_MOST);
            known.slots = comer.slots;
            if waited || !is_refused {
                let until = Instant::now() + TICKETS_LAST;
                known.ticket = is_refused.then_some((comer.gateway, comer.place, until));
            }
        }
    }
}

/// A test: others wait behind the place of one who asked for several locks at once, and do not wait in vain.
pub fn who_asks_for_several_has_a_place_in_line() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(async {
        let (line, key, wait) = (Line::default(), "pool-a-0".to_owned(), Duration::from_secs(5));
        let (id, token) = ("1.1".to_owned(), Some("token-1.1".to_owned()));
        let (action, terms) = (Action::Acquire { ttl_ms: 1_000 }, Terms::default());
        line.knows(&Request { id, key: key.clone(), token, action, wait, terms });
        sleep(wait + TICKETS_LAST).await;
        assert_eq!(line.least_slots(&key), 1);
        sleep(TICKETS_LAST_AT_MOST - TICKETS_LAST).await;
        assert_eq!(line.least_slots(&key), u16::MAX);
    });
}

/// Says so if at least so many of these still wait a little later.
fn complain(world: &Arc<World>, before: Vec<Who>, many: usize, what: String) {
    if before.len() < many {
        return;
    }
    let world = world.clone();
    tokio::spawn(async move {
        sleep(CONFIRMED).await;
        let still: Vec<_> = before.iter().filter(|who| world.line.is_waiting(who)).collect();
        if still.len() >= many && world.calm_since().is_some() {
            world.book.violated(format!("{what}, and earlier came {still:?}"));
        }
    });
}
