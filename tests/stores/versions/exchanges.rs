//! A gateway of another version and one of this build on one Redis: each finds, ends and hands on what the other did, and each is
//! told of its waiters by the other. The other one is played: see `transcript`.

use std::time::Duration;

use fencepost::lock::{
    Acquired, Attempt, Enqueued, FencingToken, Inspected, Lease, LeaseToken, LockKey, Note, Owner, Polled,
    QueuePosition, Reach, Released, Renewed, RolledBack, Terms, TokenHash, Ttl,
};
use fencepost::store::redis::{RedisAddress, RedisSettings, RedisStore};
use fencepost::store::{
    Break, Bucket, Call, Confirm, Enqueue, Heartbeat, Hint, Inspect, KnownTo, LastPoll, LineSettings, List,
    LockRequest, LockStore, PassOn, Poll, Release, Renew, Renewer, RollBack, TicketAfter, Tombstone, Try,
};
use tokio::sync::broadcast::Receiver;
use tokio::time::{Instant, timeout};

use super::redis::token_of;
use super::transcript::Other;
use super::{is_recording, versions};
use kit::asking::LockStoreExt;
use kit::{PATIENCE, RedisServer, eventually};

const HOUR: Duration = Duration::from_secs(3600);
/// Less than that is told of at once where somebody waits.
const SHORT: Duration = Duration::from_millis(1_500);

fn store_at(url: &str) -> RedisStore {
    let line = LineSettings { ticket_ttl: Duration::from_secs(60), max_waiters_per_key: 5 };
    let settings = RedisSettings { reply_timeout: PATIENCE, line, ..RedisSettings::default() };
    RedisStore::start(&RedisAddress::parse(url, None).unwrap(), &settings).unwrap()
}

fn key(name: &str) -> LockKey {
    LockKey::parse(name.as_bytes()).unwrap()
}

fn token(name: &str) -> TokenHash {
    LeaseToken::parse(token_of(name).as_bytes()).unwrap().hash()
}

fn attempt(pair: &str) -> Attempt {
    Attempt::parse(&pair.repeat(16)).unwrap()
}

/// What a token asks for by an attempt.
fn lock(name: &str, by: &str, pair: &str) -> LockRequest {
    let note = Note::new(Owner::parse(by.as_bytes()).unwrap());
    let (ttl, terms) = (ttl(HOUR), Terms::default());
    LockRequest { key: key(name), token: token(by), attempt: attempt(pair), ttl, note, terms }
}

fn ttl(length: Duration) -> Ttl {
    Ttl::from_ms(length.as_millis().try_into().unwrap()).unwrap()
}

fn enqueue(lock: LockRequest) -> Enqueue {
    Enqueue { lock, takes_over: false, ticket: None, supersedes: Vec::new() }
}

fn take_over(lock: LockRequest) -> Enqueue {
    Enqueue { takes_over: true, ..enqueue(lock) }
}

fn release(name: &str, by: &str) -> Release {
    Release { key: key(name), token: token(by), tombstone: Tombstone::Final }
}

fn renew(name: &str, by: &str, length: Duration, renewer: Renewer) -> Renew {
    Renew { key: key(name), token: token(by), ttl: ttl(length), by: renewer }
}

fn look(name: &str, by: &str) -> Inspect {
    Inspect { key: key(name), token: Some(token(by)) }
}

const BEAT: Heartbeat = Heartbeat { bucket: Bucket(0) };

/// The two gateways.
struct Scene {
    there: Other,
    here: RedisStore,
    hints: Receiver<Hint>,
    /// The number of the latest grant, by either of them.
    last: u64,
}

impl Scene {
    async fn here<C: Call>(&self, call: C) -> C::Answer {
        self.here.call(call, Instant::now() + PATIENCE).await.unwrap()
    }

    /// This gateway takes a lock that is free, or its turn.
    async fn is_granted<T: std::fmt::Debug>(&mut self, call: impl Call<Answer = Acquired<T>>) {
        let answer = self.here(call).await;
        let Acquired::Granted(lease) = answer else { panic!("{answer:?}") };
        self.grows(&lease);
    }

    /// This gateway sees what the other one was granted.
    async fn sees_grant(&mut self, name: &str, by: &str) -> Lease {
        let seen = self.here(look(name, by)).await;
        let Inspected::Held { lease, yours: Some(true), .. } = seen else { panic!("{seen:?}") };
        self.grows(&lease);
        lease
    }

    fn grows(&mut self, lease: &Lease) {
        assert!(lease.fencing_token.get() > self.last, "{lease:?} after {}", self.last);
        self.last = lease.fencing_token.get();
    }

    async fn is_released(&self, name: &str, by: &str) {
        assert_eq!(self.here(release(name, by)).await.answer, Released::Released);
    }

    async fn waits(&self, enqueue: Enqueue) -> QueuePosition {
        let answer = self.here(enqueue).await;
        let Acquired::NotTaken(Enqueued::Polled(Polled::Queued(position))) = answer else {
            panic!("{answer:?}")
        };
        position
    }

    /// Both have been heard of when the next step begins.
    async fn both_beat(&mut self, step: &str) {
        self.here(BEAT).await;
        self.there.asks(&format!("beats before {step}"), BEAT).await;
    }

    /// Waits until this gateway is told this.
    async fn is_told(&mut self, what: &str, is_it: impl Fn(&Hint) -> bool) {
        let told = async { while !is_it(&self.hints.recv().await.unwrap()) {} };
        timeout(PATIENCE, told).await.unwrap_or_else(|_| panic!("this gateway is not told: {what}"));
    }
}

/// Locks that nobody waits for.
async fn take_and_end(scene: &mut Scene) {
    let taken = lock("taken", "there", "01");
    scene.there.asks("takes a free lock", Try(taken.clone())).await;
    let lease = scene.sees_grant("taken", "there").await;
    assert_eq!(lease.owner(), Some("there"));
    scene.there.asks("takes what was told to be its own", Try(taken.clone())).await;
    scene.there.asks("makes sure of it", Confirm(taken)).await;
    let refused = scene.here(Try(lock("taken", "here", "02"))).await;
    let Acquired::NotTaken(refusal) = refused else { panic!("{refused:?}") };
    assert_eq!(refusal.holder.unwrap().fencing_token, lease.fencing_token);
    let renewed = scene.here(renew("taken", "there", 2 * HOUR, Renewer::Token)).await;
    assert!(matches!(renewed, Renewed::Renewed(longer) if longer.left_ms > 3_700_000));
    scene.is_released("taken", "there").await;
    scene.there.asks("releases what was released", release("taken", "there")).await;
    scene.there.asks("takes what was released", Try(lock("taken", "there", "03"))).await;

    scene.is_granted(Try(lock("mine", "here", "04"))).await;
    scene.there.asks("is refused", Try(lock("mine", "there", "05"))).await;
    scene.there.asks("looks", look("mine", "there")).await;
    let reach = Reach::all("mine");
    scene.there.asks("lists", List { reach, cursor: None, limit: 10 }).await;
    scene.there.asks("renews", renew("mine", "here", 2 * HOUR, Renewer::Token)).await;
    scene.there.asks("releases", release("mine", "here")).await;
    scene.is_released("mine", "here").await;
    assert_eq!(scene.here(Try(lock("mine", "here", "06"))).await, Acquired::TokenReleased);
}

/// Locks with terms, and attempts that are undone.
async fn keep_and_undo(scene: &mut Scene) {
    let terms = Terms { max_hold: Some(2 * HOUR), min_hold: Some(HOUR), ..Terms::default() };
    scene.there.asks("takes with terms", Try(LockRequest { terms, ..lock("kept", "there", "11") })).await;
    let longest = scene.here(renew("kept", "there", 9 * HOUR, Renewer::Token)).await;
    assert!(matches!(longest, Renewed::Renewed(lease) if (7_000_000..=7_200_000).contains(&lease.left_ms)));
    let ended = scene.here(release("kept", "there")).await.ended.unwrap();
    assert!((3_000_000..=3_600_000).contains(&ended.kept_ms), "{ended:?}");
    scene.there.asks("releases what is kept", release("kept", "there")).await;
    scene.there.asks("is refused what is kept", Try(lock("kept", "other", "12"))).await;
    let limited = LockRequest { terms, ..lock("limited", "here", "13") };
    scene.is_granted(Try(limited)).await;
    scene.there.asks("renews up to the limit", renew("limited", "here", 9 * HOUR, Renewer::Token)).await;
    scene.there.asks("releases early", release("limited", "here")).await;
    let seen = scene.here(Inspect { key: key("limited"), token: None }).await;
    assert!(matches!(&seen, Inspected::Held { lease, .. } if lease.is_released), "{seen:?}");

    let undo = |name: &str, by: &str, pair: &str| {
        let (ticket, known) = (TicketAfter::Removed, KnownTo::Nobody);
        RollBack { key: key(name), token: token(by), attempt: attempt(pair), ticket, known }
    };
    scene.there.asks("takes what is undone", Try(lock("undone", "there", "14"))).await;
    scene.there.asks("undoes it", undo("undone", "there", "14")).await;
    assert_eq!(scene.here(Try(lock("undone", "there", "14"))).await, Acquired::AttemptVoided);
    scene.is_granted(Try(lock("undone", "here", "15"))).await;
    assert!(matches!(scene.here(undo("undone", "here", "15")).await, RolledBack::Ended { .. }));
    scene.there.asks("takes what was undone", Try(lock("undone", "here", "15"))).await;
}

/// A lock goes from one to the next, in the order of their tickets.
async fn hand_on(scene: &mut Scene) {
    let (first, next) = (lock("line", "there", "21"), lock("line", "here", "22"));
    scene.is_granted(Try(lock("line", "holder", "20"))).await;
    scene.there.asks("waits", enqueue(first.clone())).await;
    assert!(!scene.waits(enqueue(next.clone())).await.is_first);
    scene.both_beat("it is offered the lock").await;
    scene.is_released("line", "holder").await;
    scene.there.hears("is offered the lock").await;
    let waiting = scene.here(Poll(next.clone())).await;
    let Acquired::NotTaken(Polled::Queued(position)) = waiting else { panic!("{waiting:?}") };
    assert_eq!(position.offered_to, Some(first.attempt));
    scene.there.asks("takes its turn", Poll(first.clone())).await;
    scene.sees_grant("line", "there").await;
    scene.both_beat("it hands the lock on").await;
    scene.there.asks("hands the lock on", release("line", "there")).await;
    let offered = Hint::Offered(next.key.clone(), next.token, next.attempt);
    scene.is_told("it is offered the lock", |hint| *hint == offered).await;
    scene.is_granted(Poll(next)).await;

    // Of locks that come soon.
    let (soon, later) = (lock("line", "other", "23"), lock("line", "late", "24"));
    scene.there.asks("waits again", enqueue(soon.clone())).await;
    scene.waits(enqueue(later.clone())).await;
    scene.both_beat("it is granted the lock for a moment").await;
    scene.is_released("line", "here").await;
    scene.there.hears("is offered the lock again").await;
    let brief = LockRequest { ttl: ttl(SHORT), ..soon };
    scene.there.asks("takes it for a moment", Poll(brief)).await;
    scene.there.asks("gives it up", release("line", "other")).await;
    let short_ms = u64::try_from(SHORT.as_millis()).unwrap();
    let is_due =
        |hint: &Hint| matches!(hint, Hint::Due(key, in_ms) if *key == later.key && *in_ms <= short_ms);
    scene.is_told("the lock is due", is_due).await;
    scene.there.asks("waits at last", enqueue(lock("line", "last", "25"))).await;
    scene.both_beat("the lock is due").await;
    let brief = LockRequest { ttl: ttl(SHORT), ..later };
    scene.is_granted(Poll(brief)).await;
    scene.there.hears("is told when the lock is due").await;
    scene.is_released("line", "late").await;
    scene.there.hears("is offered the lock at last").await;
    let passed = lock("line", "last", "25");
    let LockRequest { key, token, attempt, .. } = passed;
    scene.there.asks("passes it on", PassOn { key: key.clone(), token, attempt }).await;
    let seen = scene.here(Inspect { key, token: None }).await;
    assert!(matches!(seen, Inspected::Free { .. }), "{seen:?}");
}

/// Requests of one token at both, whose ticket goes from one to the other and back.
async fn take_over_and_give_back(scene: &mut Scene) {
    scene.is_granted(Try(lock("moved", "holder", "30"))).await;
    let fence = FencingToken::new(scene.last).unwrap();
    let (there, here) = (lock("moved", "both", "31"), lock("moved", "both", "32"));
    scene.there.asks("waits where it will move", enqueue(there.clone())).await;
    scene.waits(take_over(here.clone())).await;
    scene.there.hears("is told to look").await;
    scene.there.asks("finds that it has moved", Poll(there.clone())).await;
    scene.here(LastPoll { lock: here, ticket: TicketAfter::Kept }).await;
    scene.there.hears("is told to look again").await;
    scene.there.asks("has its ticket back", Poll(there.clone())).await;
    let fresh = Enqueue { supersedes: vec![there.attempt], ..enqueue(lock("moved", "both", "33")) };
    scene.there.asks("stands for its former attempt", fresh).await;
    scene
        .there
        .asks("leaves", LastPoll { lock: lock("moved", "both", "33"), ticket: TicketAfter::Kept })
        .await;
    assert!(scene.waits(enqueue(lock("moved", "both", "34"))).await.is_first);

    let look = Hint::Look(key("moved"), attempt("34"));
    scene.there.asks("takes the ticket over", take_over(lock("moved", "both", "35"))).await;
    scene.is_told("its ticket was taken over", |hint| *hint == look).await;
    let moved = scene.here(Poll(lock("moved", "both", "34"))).await;
    assert!(matches!(moved, Acquired::NotTaken(Polled::Moved(_))), "{moved:?}");
    let last = LastPoll { lock: lock("moved", "both", "35"), ticket: TicketAfter::Removed };
    scene.there.asks("gives the ticket back", last).await;
    scene.is_told("its ticket is back", |hint| *hint == look).await;
    let back = scene.here(Poll(lock("moved", "both", "34"))).await;
    assert!(matches!(back, Acquired::NotTaken(Polled::Queued(_))), "{back:?}");
    scene.there.asks("sees who waits", Inspect { key: key("moved"), token: None }).await;
    scene.both_beat("it breaks the lock").await;
    scene.there.asks("breaks the lock", Break { key: key("moved"), fence }).await;
    let offered = Hint::Offered(key("moved"), token("both"), attempt("34"));
    scene.is_told("it is offered the lock that was broken", |hint| *hint == offered).await;
    scene.is_granted(Poll(lock("moved", "both", "34"))).await;
}

/// Locks that connections hold.
async fn hold(scene: &mut Scene) {
    let by = |pair: &str| Renewer::Connection(attempt(pair));
    scene.there.asks("holds by a connection", Try(lock("held", "there", "81"))).await;
    let seen = scene.here(look("held", "there")).await;
    assert!(matches!(seen, Inspected::Held { yours: Some(true), .. }), "{seen:?}");
    scene.there.asks("renews for its connection", renew("held", "there", HOUR, by("81"))).await;
    let own = scene.here(Try(lock("held", "there", "41"))).await;
    assert!(matches!(own, Acquired::AlreadyHeld(_)), "{own:?}");
    scene.there.asks("finds its connection replaced", renew("held", "there", HOUR, by("81"))).await;

    scene.is_granted(Try(lock("claimed", "here", "82"))).await;
    scene.there.asks("claims for a connection", Try(lock("claimed", "here", "93"))).await;
    assert_eq!(scene.here(renew("claimed", "here", HOUR, by("82"))).await, Renewed::TakenOver);
    let claim = attempt("93").claim();
    scene.there.asks("renews by its claim", renew("claimed", "here", HOUR, Renewer::Connection(claim))).await;
    let number = FencingToken::new((1 << 53) - 1).unwrap();
    let known = KnownTo::Connection { number, told_for: Duration::from_secs(600) };
    let (key, token, ticket) = (key("claimed"), token("here"), TicketAfter::Removed);
    scene.there.asks("loses its connection", RollBack { key, token, attempt: claim, ticket, known }).await;
    let seen = scene.here(look("claimed", "here")).await;
    let Inspected::Held { lease, yours: Some(true), .. } = seen else { panic!("{seen:?}") };
    assert!((500_000..=600_000).contains(&lease.left_ms), "{lease:?}");
}

async fn play(redis: &RedisServer, there: Other) {
    let here = store_at(redis.url());
    let listeners = async || {
        let channels: Vec<String> =
            redis.command(&["PUBSUB", "SHARDCHANNELS", "fencepost:{0}:gates:*"]).await;
        channels.len()
    };
    let hints = here.hints();
    let mut scene = Scene { there, here, hints, last: 0 };
    scene.here(BEAT).await;
    eventually("this gateway listens", async || listeners().await >= 1).await;
    scene.there.starts(async || listeners().await == 2).await;
    assert_eq!(listeners().await, 2);
    take_and_end(&mut scene).await;
    keep_and_undo(&mut scene).await;
    hand_on(&mut scene).await;
    take_over_and_give_back(&mut scene).await;
    hold(&mut scene).await;
    scene.there.ends();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_of_an_earlier_version_and_one_of_this_build_share_a_redis() {
    if is_recording() {
        let redis = RedisServer::start().await;
        let there = Other::live(&redis, store_at).await;
        play(&redis, there).await;
    }
    for version in versions() {
        let redis = RedisServer::start().await;
        let there = Other::played(&redis, &version).await;
        play(&redis, there).await;
    }
}
