//! What only a line in Redis has: gateways that die, and a server that forgets.

use std::time::Duration;

use fencepost::lock::{Attempt, Inspected, LeaseToken, LockKey, Released, Terms, TokenHash, Ttl};
use fencepost::store::redis::{RedisAddress, RedisSettings, RedisStore};
use fencepost::store::{
    Bucket, Heartbeat, Inspect, KnownTo, LockRequest, PassOn, Release, Renew, Renewer, RollBack, StoreError,
    TicketAfter, Tombstone,
};
use tokio::time::{Instant, sleep_until};

use crate::line_suite::{MARK_TTL, in_line, offer_lapses, soon};
use kit::asking::LockStoreExt;
use kit::asking::{self, Answer, Ask, Join};
use kit::stores::{LINE, redis_store};
use kit::{PATIENCE, RedisServer, eventually};

/// A gateway that was silent for longer is believed dead.
const HEARD_WITHIN: Duration = Duration::from_millis(1_500);

fn key() -> LockKey {
    LockKey::parse(b"k").unwrap()
}

fn token() -> TokenHash {
    LeaseToken::generate().hash()
}

async fn ask(store: &RedisStore, token: TokenHash, attempt: Attempt, how: Ask) -> Answer {
    let (ttl, terms) = (Ttl::from_ms(60_000).unwrap(), Terms::default());
    let lock = LockRequest { key: key(), token, attempt, ttl, note: Default::default(), terms };
    asking::ask(store, lock, how, soon()).await.unwrap()
}

async fn hold(store: &RedisStore) -> TokenHash {
    let holder = token();
    let answer = ask(store, holder, Attempt::generate(), Ask::Try).await;
    assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
    holder
}

fn join() -> Ask {
    Ask::Enqueue(Join { takes_over: true, ..Join::default() })
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
    store.call(Release { key: key(), token, tombstone: Tombstone::Final }, soon()).await.unwrap();
}

async fn is_new(store: &RedisStore) -> bool {
    store.call(Heartbeat { bucket: Bucket::default() }, soon()).await.unwrap().is_new
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
        let ticket = Some(fencepost::lock::Ticket::new(1_000 + number));
        let store = &dead[usize::try_from(number % 3).unwrap()];
        let join = Ask::Enqueue(Join { takes_over: true, ticket, supersedes: Vec::new() });
        in_line(ask(store, token(), Attempt::generate(), join).await);
    }
    let (waiter, attempt) = (token(), Attempt::generate());
    is_new(&live).await;
    let ticket = Some(fencepost::lock::Ticket::new(9_000));
    in_line(
        ask(&live, waiter, attempt, Ask::Enqueue(Join { takes_over: true, ticket, supersedes: Vec::new() }))
            .await,
    );

    // To queue up may have taken longer than they count as alive.
    for store in &dead {
        is_new(store).await;
    }
    release(&live, holder).await;
    let offered_at = Instant::now();
    let answer = ask(&live, waiter, attempt, Ask::Poll).await;
    assert!(matches!(answer, Answer::Queued(_)), "the dead were heard of a moment ago: {answer:?}");
    is_new(&live).await;
    offer_lapses(offered_at).await;
    let answer = ask(&live, waiter, attempt, Ask::Poll).await;
    assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
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
    let place = in_line(ask(&dead, absent, late, join()).await).ticket;
    let silent_since = Instant::now();
    let (waiter, attempt) = (token(), Attempt::generate());
    is_new(&live).await;
    in_line(ask(&live, waiter, attempt, join()).await);
    sleep_until(silent_since + HEARD_WITHIN + Duration::from_millis(50)).await;
    is_new(&live).await;
    release(&live, holder).await;
    let answer = ask(&live, waiter, attempt, Ask::Poll).await;
    assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
    let away = ["ZSCORE", "fencepost:{0}:away:k", &absent.to_string()];
    assert!(redis.command::<Option<f64>>(&away).await.is_some(), "its place is not kept for ever");
    // It was only slow: its place was kept.
    assert!(is_new(&dead).await);
    let standing = in_line(ask(&dead, absent, late, Ask::Poll).await);
    assert_eq!((standing.ticket, standing.is_first), (place, true));
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
        store.call(Heartbeat { bucket: Bucket::default() }, soon()).await.is_ok_and(|beat| beat.is_new)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_the_server_lost_is_put_back_in_its_order() {
    let (redis, store, holder) = held().await;
    let waiters = [0; 3].map(|_| (token(), Attempt::generate()));
    let mut places = Vec::new();
    for (waiter, attempt) in waiters {
        places.push(in_line(ask(&store, waiter, attempt, join()).await).ticket);
    }
    let _: () = redis.command(&["FLUSHALL"]).await;
    let newcomer = hold(&store).await;
    assert_ne!(newcomer, holder, "the lock is lost as well: whoever asks first has it");
    is_new(&store).await;
    for ((waiter, attempt), place) in waiters.iter().zip(&places).rev() {
        assert_eq!(ask(&store, *waiter, *attempt, Ask::Poll).await, Answer::TicketLost);
        let again = Ask::Enqueue(Join { takes_over: false, ticket: Some(*place), supersedes: Vec::new() });
        assert_eq!(in_line(ask(&store, *waiter, *attempt, again).await).ticket, *place);
    }
    release(&store, newcomer).await;
    let (first, attempt) = waiters[0];
    assert!(matches!(ask(&store, first, attempt, Ask::Poll).await, Answer::Granted(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_key_of_a_line_has_a_ttl() {
    let (redis, store, holder) = held().await;
    let waiters = [0; 3].map(|_| (token(), Attempt::generate()));
    for (waiter, attempt) in waiters {
        in_line(ask(&store, waiter, attempt, join()).await);
    }
    let ends = Ask::LastPoll(TicketAfter::Kept);
    assert!(matches!(ask(&store, waiters[2].0, waiters[2].1, ends).await, Answer::Refused(_)));
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
        .call(
            RollBack {
                key: key(),
                token: waiters[0].0,
                attempt: waiters[0].1,
                ticket: TicketAfter::Kept,
                known: KnownTo::Nobody,
            },
            soon(),
        )
        .await
        .unwrap();
    all_have(7).await;
}

/// What a poll lengthens alone would outlive the tickets. A gateway with longer times may have lengthened one of them before.
#[tokio::test(flavor = "multi_thread")]
async fn a_join_lengthens_all_keys_of_a_line() {
    let redis = RedisServer::start().await;
    let address = RedisAddress::parse(redis.url(), None).unwrap();
    let settings = RedisSettings { reply_timeout: PATIENCE, ..RedisSettings::default() };
    let store = RedisStore::start(&address, &settings).unwrap();
    hold(&store).await;
    is_new(&store).await;
    let [first, left] = [0; 2].map(|_| (token(), Attempt::generate()));
    for (waiter, attempt) in [first, left] {
        in_line(ask(&store, waiter, attempt, join()).await);
    }
    let ends = Ask::LastPoll(TicketAfter::Kept);
    assert!(matches!(ask(&store, left.0, left.1, ends).await, Answer::Refused(_)));
    let keys = ["seats", "line", "away"].map(|kind| format!("fencepost:{{0}}:{kind}:k"));
    let are_lengthened = async || {
        let mut longer = Vec::new();
        for key in &keys {
            longer.push(redis.command::<i64>(&["PTTL", key]).await > 60_000);
        }
        longer
    };
    for of_tickets in ["60000", "86400000"] {
        for (key, ms) in keys.iter().zip([of_tickets, "60000", "60000"]) {
            let _: () = redis.command(&["PEXPIRE", key, ms]).await;
        }
        in_line(ask(&store, first.0, first.1, Ask::Poll).await);
        assert_eq!(are_lengthened().await, [of_tickets != "60000", false, false]);
        in_line(ask(&store, token(), Attempt::generate(), join()).await);
        assert_eq!(are_lengthened().await, [true; 3]);
    }
}

/// Whose they were is not known. One joins after all were lost, then one joins a line of which only the tickets are left, and then
/// one is passed over whose own was lost.
#[tokio::test(flavor = "multi_thread")]
async fn every_gateway_learns_that_tickets_were_lost() {
    let (redis, store, holder) = held().await;
    let other = redis_store(&redis, MARK_TTL);
    is_new(&other).await;
    let are_new = async || [is_new(&store).await, is_new(&other).await];
    let joins = async || {
        let waiter = token();
        in_line(ask(&store, waiter, Attempt::generate(), join()).await);
        waiter.to_string()
    };
    joins().await;
    assert_eq!(are_new().await, [false; 2]);
    let _: () = redis.command(&["DEL", "fencepost:{0}:seats:k"]).await;
    let first = joins().await;
    assert_eq!(are_new().await, [true; 2]);
    assert_eq!(are_new().await, [false; 2]);
    let _: () = redis.command(&["DEL", "fencepost:{0}:line:k"]).await;
    let second = joins().await;
    assert_eq!(are_new().await, [true; 2]);
    assert_eq!(are_new().await, [false; 2]);
    let ends: Option<f64> = redis.command(&["ZSCORE", "fencepost:{0}:away:k", &first]).await;
    assert!(ends.is_some(), "a ticket that is not put back ends");
    let _: () = redis.command(&["HDEL", "fencepost:{0}:seats:k", &second]).await;
    release(&store, holder).await;
    assert_eq!(are_new().await, [true; 2]);
}

/// What is left of it counts for nothing: neither for its limit nor as somebody who is ahead.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_whose_tickets_were_lost_begins_anew() {
    let (redis, store, _) = held().await;
    for _ in 0..LINE.max_waiters_per_key {
        in_line(ask(&store, token(), Attempt::generate(), join()).await);
    }
    let _: () = redis.command(&["DEL", "fencepost:{0}:seats:k"]).await;
    assert!(in_line(ask(&store, token(), Attempt::generate(), join()).await).is_first);
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
    let answer = ask(&live, waiter, attempt, Ask::Poll).await;
    assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
}

/// The lease of the holder ended, and the first to ask is the first of the line, who does not wait just now.
#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_whose_turn_it_is_needs_no_offer() {
    let (redis, store, _) = held().await;
    let (waiter, attempt) = (token(), Attempt::generate());
    in_line(ask(&store, waiter, attempt, join()).await);
    let ends = Ask::LastPoll(TicketAfter::Kept);
    assert!(matches!(ask(&store, waiter, attempt, ends).await, Answer::Refused(_)));
    let _: () = redis.command(&["DEL", "fencepost:{0}:lock:k"]).await;
    let answer = ask(&store, waiter, Attempt::generate(), Ask::Try).await;
    assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
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
    store
        .call(
            Renew { key: key(), token: holder, ttl: Ttl::from_ms(600_000).unwrap(), by: Renewer::Token },
            soon(),
        )
        .await
        .unwrap();
    in_line(ask(&store, waiter, attempt, Ask::Poll).await);
    assert!(due_ms().await > Some(ends + 400_000.0), "the lease was renewed");
    // Nobody waits for it any more, or somebody would have looked.
    let _: () = redis.command(&["ZADD", "fencepost:{0}:due", "12345", "fencepost:{0}:lock:old"]).await;
    assert_eq!(store.call(Heartbeat { bucket: Bucket::default() }, soon()).await.unwrap().due, []);
    let left: u64 = redis.command(&["ZCARD", "fencepost:{0}:due"]).await;
    assert_eq!(left, 1);
    // Whoever follows need not look at a grant to have its end known.
    in_line(ask(&store, token(), Attempt::generate(), join()).await);
    release(&store, holder).await;
    assert!(matches!(ask(&store, waiter, attempt, Ask::Poll).await, Answer::Granted(_)));
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
    store
        .call(
            RollBack {
                key: key(),
                token: left.0,
                attempt: left.1,
                ticket: TicketAfter::Removed,
                known: KnownTo::Nobody,
            },
            soon(),
        )
        .await
        .unwrap();
    release(&store, holder).await;
    assert!(matches!(ask(&store, granted.0, granted.1, Ask::Poll).await, Answer::Granted(_)));
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
    assert_eq!(ask(&live, newcomer.0, newcomer.1, join()).await, Answer::QueueFull, "they may live");
    sleep_until(silent_since + HEARD_WITHIN + Duration::from_millis(50)).await;
    is_new(&live).await;
    eventually("there is a place", async || {
        matches!(ask(&live, newcomer.0, newcomer.1, join()).await, Answer::Queued(_))
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
    let last = Ask::LastPoll(TicketAfter::Kept);
    assert_eq!(
        ask(&store, waiter, attempt, last).await,
        Answer::TicketLost,
        "there is nobody to be refused for"
    );
    let answer = ask(&store, waiter, attempt, Ask::Enqueue(Join::default())).await;
    assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
}

/// Whoever waits goes on waiting, leaves and is served on a server that is out of memory; also one whose ticket another has.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_goes_on_while_the_server_is_out_of_memory() {
    let (redis, store, holder) = held().await;
    let [first, second, third] = [0; 3].map(|_| (token(), Attempt::generate()));
    for (waiter, attempt) in [first, second, third] {
        in_line(ask(&store, waiter, attempt, join()).await);
    }
    let (moved, taker) = (third.1, [0; 2].map(|_| Attempt::generate()));
    let third = (third.0, taker[1]);
    for attempt in taker {
        in_line(ask(&store, third.0, attempt, join()).await);
    }
    let _: () = redis.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    assert!(!is_new(&store).await, "its heartbeat is heard");
    assert!(matches!(ask(&store, third.0, moved, Ask::Poll).await, Answer::Moved(_)));
    assert!(matches!(
        ask(&store, third.0, taker[0], Ask::LastPoll(TicketAfter::Kept)).await,
        Answer::Refused(_)
    ));
    let pass_on = PassOn { key: key(), token: third.0, attempt: taker[0] };
    assert!(store.call(pass_on, soon()).await.unwrap().is_some());
    in_line(ask(&store, first.0, first.1, Ask::Poll).await);
    let last = Ask::LastPoll(TicketAfter::Kept);
    assert!(matches!(ask(&store, second.0, second.1, last).await, Answer::Refused(_)));
    store
        .call(
            RollBack {
                key: key(),
                token: third.0,
                attempt: third.1,
                ticket: TicketAfter::Kept,
                known: KnownTo::Nobody,
            },
            soon(),
        )
        .await
        .unwrap();
    release(&store, holder).await;
    let answer = ask(&store, first.0, first.1, Ask::Poll).await;
    assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
}

/// A server that takes no writes still says who holds a lock, whatever there is to tidy up in its line.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_needs_no_write() {
    let (redis, store, _) = held().await;
    let (waiter, attempt) = (token(), Attempt::generate());
    in_line(ask(&store, waiter, attempt, join()).await);
    let last = Ask::LastPoll(TicketAfter::Kept);
    assert!(matches!(ask(&store, waiter, attempt, last).await, Answer::Refused(_)));
    let _: () = redis.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    eventually("its ticket has ended", async || {
        match store.call(Inspect { key: key(), token: None }, soon()).await.unwrap() {
            Inspected::Held { waiters, .. } => waiters == 0,
            Inspected::Free { .. } => panic!("it is held"),
        }
    })
    .await;
}

/// K4. It has freed the lock, and told no waiter.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_was_cut_short_has_waiters_look_by_its_repetition() {
    let (redis, store, holder) = held().await;
    in_line(ask(&store, token(), Attempt::generate(), join()).await);
    let release = Release { key: key(), token: holder, tombstone: Tombstone::Final };
    let allow = async |zadd| redis.command::<()>(&["ACL", "SETUSER", "default", zadd]).await;
    allow("-zadd").await;
    let cut = store.call(release.clone(), soon()).await;
    assert!(matches!(cut, Err(StoreError::Unknown(_))), "{cut:?}");
    let repeated = store.call(release.clone(), soon()).await;
    assert!(matches!(repeated, Err(StoreError::Unknown(_))), "{repeated:?}");
    allow("+zadd").await;
    assert_eq!(store.call(release, soon()).await.unwrap().answer, Released::Released);
    let beat = store.call(Heartbeat { bucket: Bucket::default() }, soon()).await.unwrap();
    assert_eq!(beat.due, [(key(), 0)]);
}
