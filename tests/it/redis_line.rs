//! What only a line in Redis has: gateways that die, and a server that forgets.

use std::time::Duration;

use fencepost::lock::{Acquired, Attempt, Inspected, LeaseToken, LockKey, Terms, TokenHash, Ttl};
use fencepost::store::redis::RedisStore;
use fencepost::store::{
    AcquireRequest, Bucket, Intent, Join, KnownTo, LockStore, PlaceAfter, ReleaseMark, Renewer,
};
use tokio::time::{Instant, sleep_until};

use crate::line_suite::{MARK_TTL, in_line, offer_lapses, soon};
use crate::support::stores::{LINE, redis_store};
use crate::support::{RedisServer, eventually};

/// A gateway that was silent for longer is believed dead.
const HEARD_WITHIN: Duration = Duration::from_millis(1_500);

fn key() -> LockKey {
    LockKey::parse(b"k").unwrap()
}

fn token() -> TokenHash {
    LeaseToken::generate().hash()
}

async fn ask(store: &RedisStore, token: TokenHash, attempt: Attempt, intent: Intent) -> Acquired {
    let ttl = Ttl::from_ms(60_000).unwrap();
    let request =
        AcquireRequest { key: key(), token, attempt, ttl, owner: None, terms: Terms::default(), intent };
    store.acquire(&request, soon()).await.unwrap()
}

async fn hold(store: &RedisStore) -> TokenHash {
    let holder = token();
    let answer = ask(store, holder, Attempt::generate(), Intent::Grant).await;
    assert!(matches!(answer, Acquired::Granted(_)), "{answer:?}");
    holder
}

fn join() -> Intent {
    Intent::Join(Join { displaces: true, ..Join::default() })
}

/// A server, a gateway that it has heard of, and the holder of the lock.
async fn held() -> (RedisServer, RedisStore, TokenHash) {
    let redis = RedisServer::start().await;
    let store = redis_store(&redis, MARK_TTL);
    let holder = hold(&store).await;
    is_new(&store).await;
    (redis, store, holder)
}

async fn release(store: &RedisStore, token: TokenHash) {
    store.release(&key(), &token, ReleaseMark::Final, soon()).await.unwrap();
}

async fn is_new(store: &RedisStore) -> bool {
    store.beat(Bucket::default(), soon()).await.unwrap().is_new
}

/// Three gateways and hundreds of waiters die at the head of the line: all step aside together.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_dead_gateways_cost_one_lapse_together_however_many() {
    let redis = RedisServer::start().await;
    let live = redis_store(&redis, MARK_TTL);
    let holder = hold(&live).await;
    let dead = [0; 3].map(|_| redis_store(&redis, MARK_TTL));
    for store in &dead {
        is_new(store).await;
    }
    // Past the limit of a line, as gateways with other settings may have let them in.
    for number in 0..300 {
        let place = Some(fencepost::lock::Place::new(1_000 + number));
        let store = &dead[usize::try_from(number % 3).unwrap()];
        let join = Intent::Join(Join { displaces: true, place, supersedes: Vec::new() });
        in_line(ask(store, token(), Attempt::generate(), join).await);
    }
    let (waiter, attempt) = (token(), Attempt::generate());
    is_new(&live).await;
    let place = Some(fencepost::lock::Place::new(9_000));
    in_line(
        ask(&live, waiter, attempt, Intent::Join(Join { displaces: true, place, supersedes: Vec::new() }))
            .await,
    );

    release(&live, holder).await;
    let offered_at = Instant::now();
    let answer = ask(&live, waiter, attempt, Intent::Look).await;
    assert!(matches!(answer, Acquired::InLine(_)), "the dead were heard of a moment ago: {answer:?}");
    is_new(&live).await;
    offer_lapses(offered_at).await;
    let answer = ask(&live, waiter, attempt, Intent::Look).await;
    assert!(matches!(answer, Acquired::Granted(_)), "{answer:?}");
    // They are forgotten, so that their next heartbeat is a first one.
    for store in &dead {
        assert!(is_new(store).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_a_gateway_long_silent_cost_nothing() {
    let redis = RedisServer::start().await;
    let (live, dead) = (redis_store(&redis, MARK_TTL), redis_store(&redis, MARK_TTL));
    let holder = hold(&live).await;
    is_new(&dead).await;
    let (absent, late) = (token(), Attempt::generate());
    let place = in_line(ask(&dead, absent, late, join()).await).place;
    let silent_since = Instant::now();
    let (waiter, attempt) = (token(), Attempt::generate());
    is_new(&live).await;
    in_line(ask(&live, waiter, attempt, join()).await);
    sleep_until(silent_since + HEARD_WITHIN + Duration::from_millis(50)).await;
    is_new(&live).await;
    release(&live, holder).await;
    let answer = ask(&live, waiter, attempt, Intent::Look).await;
    assert!(matches!(answer, Acquired::Granted(_)), "{answer:?}");
    let away = ["ZSCORE", "fencepost:{0}:away:k", &absent.to_string()];
    assert!(redis.command::<Option<f64>>(&away).await.is_some(), "its place is not kept for ever");
    // It was only slow: its place was kept.
    assert!(is_new(&dead).await);
    let standing = in_line(ask(&dead, absent, late, Intent::Look).await);
    assert_eq!((standing.place, standing.is_first), (place, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_learns_that_it_may_have_been_forgotten() {
    let redis = RedisServer::start().await;
    let store = redis_store(&redis, MARK_TTL);
    let _: () = redis.command(&["ZADD", "fencepost:{0}:gates", "12345", "long dead"]).await;
    assert!(is_new(&store).await, "it is new");
    let gates: u64 = redis.command(&["ZCARD", "fencepost:{0}:gates"]).await;
    assert_eq!(gates, 1, "the dead are forgotten");
    assert!(!is_new(&store).await);
    let _: () = redis.command(&["FLUSHALL"]).await;
    assert!(is_new(&store).await, "the server has lost it");
    assert!(!is_new(&store).await);
    // A heartbeat of its own whose answer it never saw.
    let gate: Vec<String> = redis.command(&["ZRANGE", "fencepost:{0}:gates", "0", "0"]).await;
    let _: () = redis.command(&["ZADD", "fencepost:{0}:gates", "12345", &gate[0]]).await;
    assert!(is_new(&store).await, "a late copy hides nothing");
    assert!(!is_new(&store).await);
    // Silent for so long, it may have missed what was struck off as overdue.
    tokio::time::sleep(Duration::from_millis(5_050)).await;
    assert!(is_new(&store).await, "it was silent");
    assert!(!is_new(&store).await);
    let _: () = redis.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    eventually("over a new connection it is new", async || {
        store.beat(Bucket::default(), soon()).await.is_ok_and(|beat| beat.is_new)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_the_server_lost_is_put_back_in_its_order() {
    let (redis, store, holder) = held().await;
    let waiters = [0; 3].map(|_| (token(), Attempt::generate()));
    let mut places = Vec::new();
    for (waiter, attempt) in waiters {
        places.push(in_line(ask(&store, waiter, attempt, join()).await).place);
    }
    let _: () = redis.command(&["FLUSHALL"]).await;
    let newcomer = hold(&store).await;
    assert_ne!(newcomer, holder, "the lock is lost as well: whoever asks first has it");
    is_new(&store).await;
    for ((waiter, attempt), place) in waiters.iter().zip(&places).rev() {
        assert_eq!(ask(&store, *waiter, *attempt, Intent::Look).await, Acquired::PlaceLost);
        let again = Intent::Join(Join { displaces: false, place: Some(*place), supersedes: Vec::new() });
        assert_eq!(in_line(ask(&store, *waiter, *attempt, again).await).place, *place);
    }
    release(&store, newcomer).await;
    let (first, attempt) = waiters[0];
    assert!(matches!(ask(&store, first, attempt, Intent::Look).await, Acquired::Granted(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_key_of_a_line_has_a_ttl() {
    let (redis, store, holder) = held().await;
    let waiters = [0; 3].map(|_| (token(), Attempt::generate()));
    for (waiter, attempt) in waiters {
        in_line(ask(&store, waiter, attempt, join()).await);
    }
    let ends = Intent::LastLook(PlaceAfter::Kept);
    assert!(matches!(ask(&store, waiters[2].0, waiters[2].1, ends).await, Acquired::Refused(_)));
    let all_have = async |least: usize| {
        let keys = redis.keys().await;
        for key in keys.iter().filter(|key| !key.ends_with(":fence")) {
            let left_ms: i64 = redis.command(&["PTTL", key]).await;
            assert!(left_ms > 0, "{key}: {left_ms}");
        }
        assert!(keys.len() >= least, "{keys:?}");
    };
    all_have(7).await;
    release(&store, holder).await;
    all_have(7).await;
    store
        .take_back(&key(), &waiters[0].0, waiters[0].1, PlaceAfter::Kept, KnownTo::Nobody, soon())
        .await
        .unwrap();
    all_have(7).await;
}

/// The clock of the server was set back: what it said before is no sign of life.
#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_that_is_yet_to_come_counts_for_nothing() {
    let redis = RedisServer::start().await;
    let (live, dead) = (redis_store(&redis, MARK_TTL), redis_store(&redis, MARK_TTL));
    let holder = hold(&live).await;
    is_new(&dead).await;
    in_line(ask(&dead, token(), Attempt::generate(), join()).await);
    let gate: Vec<String> = redis.command(&["ZRANGE", "fencepost:{0}:gates", "0", "0"]).await;
    let _: () = redis.command(&["ZINCRBY", "fencepost:{0}:gates", "3600000", &gate[0]]).await;
    let (waiter, attempt) = (token(), Attempt::generate());
    is_new(&live).await;
    in_line(ask(&live, waiter, attempt, join()).await);
    release(&live, holder).await;
    is_new(&live).await;
    let answer = ask(&live, waiter, attempt, Intent::Look).await;
    assert!(matches!(answer, Acquired::Granted(_)), "{answer:?}");
}

/// The lease of the holder ended, and the first to ask is the first of the line, who does not wait just now.
#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_whose_turn_it_is_needs_no_offer() {
    let (redis, store, _) = held().await;
    let (waiter, attempt) = (token(), Attempt::generate());
    in_line(ask(&store, waiter, attempt, join()).await);
    let ends = Intent::LastLook(PlaceAfter::Kept);
    assert!(matches!(ask(&store, waiter, attempt, ends).await, Acquired::Refused(_)));
    let _: () = redis.command(&["DEL", "fencepost:{0}:lock:k"]).await;
    let answer = ask(&store, waiter, Attempt::generate(), Intent::Grant).await;
    assert!(matches!(answer, Acquired::Granted(_)), "{answer:?}");
}

/// When a lease ends is known to all gateways, whichever of them waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_notes_when_the_lease_ends_and_heartbeats_strike_off_what_is_long_past() {
    let (redis, store, holder) = held().await;
    let due_ms = async || -> Option<f64> {
        redis.command(&["ZSCORE", "fencepost:{0}:due", "fencepost:{0}:lock:k"]).await
    };
    let (waiter, attempt) = (token(), Attempt::generate());
    in_line(ask(&store, waiter, attempt, join()).await);
    let ends = due_ms().await.expect("somebody waits for the end of the lease");
    store.renew(&key(), &holder, Ttl::from_ms(600_000).unwrap(), Renewer::Token, soon()).await.unwrap();
    in_line(ask(&store, waiter, attempt, Intent::Look).await);
    assert!(due_ms().await > Some(ends + 400_000.0), "the lease was renewed");
    // Nobody waits for it any more, or somebody would have looked.
    let _: () = redis.command(&["ZADD", "fencepost:{0}:due", "12345", "fencepost:{0}:lock:old"]).await;
    assert_eq!(store.beat(Bucket::default(), soon()).await.unwrap().due, []);
    let left: u64 = redis.command(&["ZCARD", "fencepost:{0}:due"]).await;
    assert_eq!(left, 1);
    // Whoever follows need not look at a grant to have its end known.
    in_line(ask(&store, token(), Attempt::generate(), join()).await);
    release(&store, holder).await;
    assert!(matches!(ask(&store, waiter, attempt, Intent::Look).await, Acquired::Granted(_)));
    assert!(due_ms().await > Some(ends), "the new lease has an end of its own");
}

/// A line that nobody stands in any more leaves nothing.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_line_leaves_no_keys() {
    let (redis, store, holder) = held().await;
    let (granted, left) = ((token(), Attempt::generate()), (token(), Attempt::generate()));
    for (waiter, attempt) in [granted, left] {
        in_line(ask(&store, waiter, attempt, join()).await);
    }
    store.take_back(&key(), &left.0, left.1, PlaceAfter::Removed, KnownTo::Nobody, soon()).await.unwrap();
    release(&store, holder).await;
    assert!(matches!(ask(&store, granted.0, granted.1, Intent::Look).await, Acquired::Granted(_)));
    release(&store, granted.0).await;
    let keys = redis.keys().await;
    let of_line = |key: &&String| {
        [":seats:", ":line:", ":away:", ":due", ":lock:"].iter().any(|part| key.contains(part))
    };
    assert_eq!(keys.iter().filter(of_line).collect::<Vec<_>>(), Vec::<&String>::new());
}

/// Nobody hands a lock off that is held for long: a crowd that died meanwhile makes way for those who live all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_full_of_the_dead_lets_the_living_in() {
    let redis = RedisServer::start().await;
    let (live, dead) = (redis_store(&redis, MARK_TTL), redis_store(&redis, MARK_TTL));
    hold(&live).await;
    is_new(&dead).await;
    for _ in 0..LINE.max_waiters_per_key {
        in_line(ask(&dead, token(), Attempt::generate(), join()).await);
    }
    let silent_since = Instant::now();
    is_new(&live).await;
    let newcomer = (token(), Attempt::generate());
    assert_eq!(ask(&live, newcomer.0, newcomer.1, join()).await, Acquired::LineFull, "they may live");
    sleep_until(silent_since + HEARD_WITHIN + Duration::from_millis(50)).await;
    is_new(&live).await;
    eventually("there is a place", async || {
        matches!(ask(&live, newcomer.0, newcomer.1, join()).await, Acquired::InLine(_))
    })
    .await;
    assert!(is_new(&dead).await, "were it only slow, its waiters would come back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_last_look_at_a_lock_that_the_server_has_forgotten_ends_nothing() {
    let (redis, store, _) = held().await;
    let (waiter, attempt) = (token(), Attempt::generate());
    in_line(ask(&store, waiter, attempt, join()).await);
    let _: () = redis.command(&["FLUSHALL"]).await;
    let last = Intent::LastLook(PlaceAfter::Kept);
    assert_eq!(
        ask(&store, waiter, attempt, last).await,
        Acquired::PlaceLost,
        "there is nobody to be refused for"
    );
    let answer = ask(&store, waiter, attempt, Intent::Join(Join::default())).await;
    assert!(matches!(answer, Acquired::Granted(_)), "{answer:?}");
}

/// Whoever waits goes on waiting, leaves and is served on a server that is out of memory.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_goes_on_while_the_server_is_out_of_memory() {
    let (redis, store, holder) = held().await;
    let [first, second, third] = [0; 3].map(|_| (token(), Attempt::generate()));
    for (waiter, attempt) in [first, second, third] {
        in_line(ask(&store, waiter, attempt, join()).await);
    }
    let _: () = redis.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    assert!(!is_new(&store).await, "its heartbeat is heard");
    in_line(ask(&store, first.0, first.1, Intent::Look).await);
    let last = Intent::LastLook(PlaceAfter::Kept);
    assert!(matches!(ask(&store, second.0, second.1, last).await, Acquired::Refused(_)));
    store.take_back(&key(), &third.0, third.1, PlaceAfter::Kept, KnownTo::Nobody, soon()).await.unwrap();
    release(&store, holder).await;
    let answer = ask(&store, first.0, first.1, Intent::Look).await;
    assert!(matches!(answer, Acquired::Granted(_)), "{answer:?}");
}

/// A server that takes no writes still says who holds a lock, whatever there is to tidy up in its line.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_needs_no_write() {
    let (redis, store, _) = held().await;
    let (waiter, attempt) = (token(), Attempt::generate());
    in_line(ask(&store, waiter, attempt, join()).await);
    let last = Intent::LastLook(PlaceAfter::Kept);
    assert!(matches!(ask(&store, waiter, attempt, last).await, Acquired::Refused(_)));
    let _: () = redis.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    eventually("its ticket has ended", async || match store.inspect(&key(), None, soon()).await.unwrap() {
        Inspected::Held { waiters, .. } => waiters == 0,
        Inspected::Free { .. } => panic!("it is held"),
    })
    .await;
}
