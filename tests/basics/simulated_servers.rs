//! What becomes of simulated servers, as the gateway's own store sees it, in simulated time.

mod records;
mod sentinels;
mod votes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fencepost::lock::{
    Acquired, Attempt, FencingToken, LeaseToken, LockKey, Note, Refusal, Released, Renewed, RolledBack,
    Terms, Ttl,
};
use fencepost::store::quorum::QuorumStore;
use fencepost::store::redis::{RedisAddress, RedisSettings, RedisStore};
use fencepost::store::{
    Bucket, Check, Enqueue, Heartbeat, Hint, KnownTo, LockRequest, LockStore, Release, Renew, Renewer,
    RollBack, StoreError, TicketAfter, Tombstone, Try,
};
use kit::asking::LockStoreExt;
use sim::{Clock, Cluster, Conditions, Direction, Fate, Fleet, Kept, Reply, Server, View};
use tokio::time::{Instant, sleep, timeout};

const NOW_US: u64 = 1_760_000_000_000_000;
const DEADLINE: Duration = Duration::from_secs(2);
const TTL_MS: u64 = 30_000;
/// Twice as long as a gateway goes without a look at its server.
const RECONNECTED_WITHIN: Duration = Duration::from_secs(2);

fn store(fleet: &Fleet) -> RedisStore {
    RedisStore::start(&fleet.address().unwrap(), &RedisSettings::default()).unwrap()
}

/// What asks for a lock by a new token.
fn request(key: &str) -> LockRequest {
    LockRequest {
        key: LockKey::parse(key.as_bytes()).unwrap(),
        token: LeaseToken::generate().hash(),
        attempt: Attempt::generate(),
        ttl: Ttl::from_ms(TTL_MS).unwrap(),
        note: Note::default(),
        terms: Terms::default(),
    }
}

async fn take(store: &RedisStore, key: &str) -> Result<Acquired<Refusal>, StoreError> {
    store.call(Try(request(key)), Instant::now() + DEADLINE).await
}

/// The number by which the lock is granted.
async fn number(store: &RedisStore, key: &str) -> u64 {
    match take(store, key).await {
        Ok(Acquired::Granted(lease)) => lease.fencing_token.get(),
        other => panic!("{key} is not granted: {other:?}"),
    }
}

fn words(command: &str) -> Vec<Vec<u8>> {
    command.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_lease_ends_by_the_clock_of_the_server() {
    let clock = Clock::running(NOW_US);
    let fleet = Fleet::alone(&clock);
    let store = store(&fleet);
    let first = number(&store, "a").await;
    clock.step(Duration::from_millis(TTL_MS - 1_000));
    assert!(matches!(take(&store, "a").await, Ok(Acquired::NotTaken(_))), "it is held");
    clock.step(Duration::from_millis(1_001));
    assert!(number(&store, "a").await > first);
}

#[tokio::test(start_paused = true)]
async fn numbers_grow_over_restarts_that_lose_all_or_the_last_of_it() {
    let fleet = Fleet::alone(&Clock::running(NOW_US));
    fleet.servers[0].state().keyspace.is_followed = true;
    let store = store(&fleet);
    for kept in [Kept::Everything, Kept::AllBut(1), Kept::Nothing] {
        let key = format!("{kept:?}");
        let last = number(&store, &key).await;
        fleet.servers[0].restart(kept);
        sleep(RECONNECTED_WITHIN).await;
        let next = match take(&store, &key).await {
            Ok(Acquired::Granted(lease)) if kept != Kept::Everything => lease.fencing_token.get(),
            Ok(Acquired::NotTaken(_)) if kept == Kept::Everything => number(&store, "another").await,
            other => panic!("{kept:?}: {other:?}"),
        };
        assert!(next > last, "{kept:?}: {next} after {last}");
        sleep(Duration::from_millis(TTL_MS)).await;
    }
}

/// A run would begin there, and no number would be left for any later one.
#[tokio::test(start_paused = true)]
async fn a_clock_past_the_largest_number_begins_no_run_and_costs_no_number() {
    let clock = Clock::running(NOW_US);
    let fleet = Fleet::alone(&clock);
    let server = &fleet.servers[0];
    let store = store(&fleet);
    let last = number(&store, "a").await;
    let by = Duration::from_micros(FencingToken::MAX);
    let check = async || store.call(Check, Instant::now() + DEADLINE).await;
    let expect_refusal = async |case: &str| {
        let began = Instant::now();
        loop {
            let said = [format!("{:?}", take(&store, "b").await), format!("{:?}", check().await)];
            if said.iter().all(|said| said.starts_with("Err") && said.contains("June 2255")) {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(20), "{case}: {said:?}");
            sleep(Duration::from_millis(100)).await;
        }
    };
    clock.step(by);
    // Numbers of the run that is there are far below the largest.
    for key in ["c", "d", "e"] {
        sleep(RECONNECTED_WITHIN).await;
        check().await.unwrap();
        number(&store, key).await;
    }
    // A gateway whose connection stands, and one that connects.
    server.ask(server.connect(), &words("FLUSHALL"));
    expect_refusal("flushed").await;
    server.restart(Kept::Nothing);
    expect_refusal("restarted").await;
    clock.step_back(by);
    sleep(RECONNECTED_WITHIN).await;
    check().await.unwrap();
    let next = number(&store, "a").await;
    assert!(next > last && next <= clock.now_us(), "{next} after {last}");
}

#[tokio::test(start_paused = true)]
async fn numbers_grow_over_a_failover_to_a_replica_that_lacks_the_last_of_it() {
    let clock = Clock::running(NOW_US);
    let fleet = Fleet::with_sentinels(&clock);
    let (primary, replica) = (&fleet.servers[0], &fleet.servers[1]);
    let store = store(&fleet);
    let known = number(&store, "known to both").await;
    replica.catch_up(primary, usize::MAX);
    let lost = number(&store, "lost").await;
    assert!(lost > known);
    assert!(matches!(take(&store, "known to both").await, Ok(Acquired::NotTaken(_))));

    replica.promote();
    (0..3).for_each(|sentinel| fleet.name_primary(sentinel, 1, 1));
    primary.disconnect_all();
    sleep(RECONNECTED_WITHIN).await;
    assert!(matches!(take(&store, "known to both").await, Ok(Acquired::NotTaken(_))), "it was copied");
    assert!(number(&store, "lost").await > lost);
}

#[tokio::test(start_paused = true)]
async fn a_sentinel_that_is_named_by_two_spellings_has_one_vote() {
    let fleet = Fleet::with_sentinels(&Clock::running(NOW_US));
    fleet.network.add("alias", 26379, &fleet.sentinels[0]);
    let store = |names: &str| {
        let url = format!("redis+sentinel://{names}/primary");
        let address = RedisAddress::parse(&url, None).unwrap().through(Arc::new(fleet.network.clone()));
        RedisStore::start(&address, &RedisSettings::default()).unwrap()
    };
    // It counts once among all, too: else one that is down would take the majority from the others.
    fleet.network.set("sentinel3", 26379, |way| way.refuses = true);
    let twice = store("alias,sentinel1,sentinel2,sentinel3");
    number(&twice, "most of them agree").await;
    fleet.network.set("sentinel3", 26379, |way| way.refuses = false);
    for epoch in [2, 1] {
        (0..3).for_each(|sentinel| fleet.name_primary(sentinel, 0, epoch));
        fleet.servers[0].disconnect_all();
        sleep(RECONNECTED_WITHIN).await;
        number(&twice, &format!("epoch {epoch}")).await;
    }
    drop(twice);
    for sentinel in 1..3 {
        fleet.name_primary(sentinel, 1, 1);
    }
    let split = store("alias,sentinel1,sentinel2");
    // Longer than requests wait for the first connection.
    sleep(2 * DEADLINE).await;
    let refused = take(&split, "one against one").await;
    assert!(
        matches!(&refused, Err(StoreError::Unavailable(reason))
            if reason.contains("alias:26379 and sentinel1:26379 are one sentinel, or have the same")),
        "{refused:?}"
    );
}

/// The way there, and a round trip each for the greeting and for the question, leave no time for a third one.
#[tokio::test(start_paused = true)]
async fn sentinels_that_are_far_away_are_heard_at_the_first_question() {
    let fleet = Fleet::with_sentinels(&Clock::running(NOW_US));
    for sentinel in 1..=3 {
        let name = format!("sentinel{sentinel}");
        fleet.network.set(&name, 26379, |way| way.delay = Duration::from_millis(80));
    }
    number(&store(&fleet), "a").await;
}

#[tokio::test(start_paused = true)]
async fn a_command_that_strays_is_done_after_what_was_sent_later_by_another_connection() {
    let fleet = Fleet::alone(&Clock::running(NOW_US));
    let (strays, stray_for) = (Arc::new(AtomicBool::new(false)), Duration::from_millis(500));
    let next = strays.clone();
    let view = fleet.network.view(Box::new(move |direction| match direction {
        Direction::ToServer if next.swap(false, Ordering::SeqCst) => Fate::Stray(stray_for),
        _ => Fate::Arrives,
    }));
    let address = fleet.address().unwrap().through(Arc::new(view));
    let store = RedisStore::start(&address, &RedisSettings::default()).unwrap();
    number(&store, "a").await;
    strays.store(true, Ordering::SeqCst);
    assert!(matches!(take(&store, "b").await, Err(StoreError::Unknown(_))));
    let later = number(&store, "c").await;
    sleep(stray_for).await;
    match take(&store, "b").await {
        Ok(Acquired::NotTaken(refusal)) => {
            assert!(refusal.holder.unwrap().fencing_token.get() > later, "it came first");
        }
        other => panic!("it is lost: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_command_that_a_silent_server_may_have_is_in_doubt_and_a_refused_one_is_not() {
    let fleet = Fleet::alone(&Clock::running(NOW_US));
    let store = store(&fleet);
    number(&store, "a").await;
    fleet.network.set("server1", 6379, |way| way.is_silent = true);
    assert!(matches!(take(&store, "b").await, Err(StoreError::Unknown(_))));
    fleet.network.set("server1", 6379, |way| way.is_silent = false);
    sleep(RECONNECTED_WITHIN).await;
    assert!(matches!(take(&store, "b").await, Ok(Acquired::NotTaken(_))), "the silent server had it");
    fleet.network.set("server1", 6379, |way| way.refuses = true);
    fleet.servers[0].disconnect_all();
    sleep(RECONNECTED_WITHIN).await;
    assert!(matches!(take(&store, "c").await, Err(StoreError::Unavailable(_))));
    fleet.network.set("server1", 6379, |way| way.refuses = false);
    sleep(RECONNECTED_WITHIN).await;
    number(&store, "c").await;
}

#[tokio::test(start_paused = true)]
async fn a_hint_that_is_lost_leaves_the_lock_offered() {
    for is_lost in [false, true] {
        let fleet = Fleet::alone(&Clock::running(NOW_US));
        let store = store(&fleet);
        let deadline = || Instant::now() + DEADLINE;
        store.call(Heartbeat { bucket: Bucket::default() }, deadline()).await.unwrap();
        let (holder, waiter) = (request("a"), request("a"));
        store.call(Try(holder.clone()), deadline()).await.unwrap();
        let (ticket, supersedes) = (None, Vec::new());
        let waits = Enqueue { lock: waiter.clone(), takes_over: true, ticket, supersedes };
        store.call(waits, deadline()).await.unwrap();
        let mut hints = store.hints();
        fleet.servers[0].state().loses = Some(Box::new(move |_, _| is_lost));
        let LockRequest { key, token, .. } = holder;
        store.call(Release { key, token, tombstone: Tombstone::Final }, deadline()).await.unwrap();
        let offered = Hint::Offered(waiter.key.clone(), waiter.token, waiter.attempt);
        let heard = timeout(DEADLINE, hints.recv()).await.ok().map(Result::unwrap);
        assert_eq!(heard, (!is_lost).then_some(offered));
    }
}

/// K3. Another program takes the TTL from a lock that a connection has claimed, or whose `max_hold` is over then.
#[tokio::test(start_paused = true)]
async fn a_lock_without_a_ttl_stays_for_what_was_told_of_it_and_no_longer_than_its_max_hold() {
    let fleet = Fleet::alone(&Clock::running(NOW_US));
    let store = store(&fleet);
    let max_hold = Some(Duration::from_millis(2 * TTL_MS));
    let lock = LockRequest { terms: Terms { max_hold, ..Terms::default() }, ..request("a") };
    let hold = LockRequest { attempt: Attempt::for_connection(), ..lock.clone() };
    let take = async |lock: &LockRequest| store.call(Try(lock.clone()), Instant::now() + DEADLINE).await;
    let Ok(Acquired::Granted(lease)) = take(&lock).await else { panic!("it is free") };
    assert!(matches!(take(&hold).await, Ok(Acquired::AlreadyHeld(_))));
    let endless = "for _, key in ipairs(redis.call('KEYS', '*:lock:*')) do redis.call('SET', key, redis.call('GET', key)) end";
    let take_ttl = || {
        let words = [&words("EVAL")[..], &[endless.as_bytes().to_vec()], &words("0")[..]].concat();
        fleet.servers[0].ask(fleet.servers[0].connect(), &words);
        assert_eq!(do_to_lock(&fleet.servers[0], "PTTL"), Reply::Int(-1));
    };
    take_ttl();
    let LockRequest { key, token, ttl, .. } = lock;
    let known = KnownTo::Connection { number: lease.fencing_token, told_for: Duration::from_secs(20) };
    let (attempt, ticket) = (hold.attempt.claim(), TicketAfter::Removed);
    let ends = RollBack { key: key.clone(), token, attempt, ticket, known };
    let ended = store.call(ends, Instant::now() + DEADLINE).await;
    assert!(matches!(ended, Ok(RolledBack::LeftToToken { left_ms: 20_000 })), "{ended:?}");
    assert!(matches!(do_to_lock(&fleet.servers[0], "PTTL"), Reply::Int(19_000..=20_000)));

    take_ttl();
    sleep(Duration::from_millis(2 * TTL_MS)).await;
    let renew = Renew { key, token, ttl, by: Renewer::Token };
    let _ = store.call(renew, Instant::now() + DEADLINE).await;
    sleep(Duration::from_millis(10)).await;
    number(&store, "a").await;
}

/// The address still names a server that has left the cluster, and that is a cluster of its own by now: no lock that is held is there.
#[tokio::test(start_paused = true)]
async fn a_server_that_is_in_another_cluster_is_not_asked_for_locks() {
    let clock = Clock::running(NOW_US);
    let fleet = Fleet::cluster(&clock);
    let stray = Server::start("stray", &clock);
    stray.state().cluster = Some(Cluster::new(0, &[("stray", 6379)]));
    fleet.network.add("stray", 6379, &stray);
    let start = || {
        let address = RedisAddress::parse("redis+cluster://stray,server1,server2,server3", None).unwrap();
        RedisStore::start(&address.through(Arc::new(fleet.network.clone())), &RedisSettings::default())
            .unwrap()
    };
    let refused = take(&start(), "a").await;
    let Err(StoreError::Unavailable(reason)) = &refused else { panic!("{refused:?}") };
    assert!(reason.contains("different clusters"), "{reason}");
    // One that has started in time stays where the locks are, also if nobody else answers.
    fleet.network.set("stray", 6379, |way| way.refuses = true);
    let store = start();
    number(&store, "a").await;
    fleet.network.set("stray", 6379, |way| way.refuses = false);
    for number in 0..3 {
        fleet.network.set(&sim::host(number), 6379, |way| way.refuses = true);
        fleet.servers[number].disconnect_all();
    }
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(20) {
        let answer = take(&store, "b").await;
        assert!(answer.is_err(), "{answer:?}");
        sleep(Duration::from_millis(100)).await;
    }
    // One that has heard nobody else at its start does not stay with the wrong one.
    let misled = start();
    number(&misled, "c").await;
    fleet.network.set(&sim::host(1), 6379, |way| way.refuses = false);
    let began = Instant::now();
    loop {
        match take(&misled, "d").await {
            Err(StoreError::Unavailable(reason)) if reason.contains("different clusters") => break,
            _ => assert!(began.elapsed() < Duration::from_secs(20), "it is not refused"),
        }
        sleep(Duration::from_millis(100)).await;
    }
    // Also if nobody contradicts any more.
    fleet.network.set(&sim::host(1), 6379, |way| way.refuses = true);
    fleet.servers[1].disconnect_all();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(20) {
        let answer = take(&misled, "e").await;
        assert!(answer.is_err(), "{answer:?}");
        sleep(Duration::from_millis(100)).await;
    }
}

/// The address of a server that died is soon that of another one, as with pods of Kubernetes: it is well, but no lock that is held is
/// there.
#[tokio::test(start_paused = true)]
async fn a_server_of_another_cluster_at_the_address_of_one_that_died_grants_nothing() {
    let clock = Clock::running(NOW_US);
    let fleet = Fleet::cluster(&clock);
    let server = &fleet.servers[0];
    let own = server.state().cluster.clone();
    let store = store(&fleet);
    let mut keys = (0..).map(|number| format!("k{number}"));
    let (key, held) = loop {
        let key = keys.next().unwrap();
        let number = number(&store, &key).await;
        let name = format!(":lock:{key}");
        if server.keys().iter().any(|there| there.ends_with(name.as_bytes())) {
            break (key, number);
        }
    };
    // It has the slots that the dead one had.
    server.state().cluster = Some(Cluster::new(0, &[("a", 6379), ("b", 6379), ("c", 6379)]));
    server.restart(Kept::Nothing);
    let began = Instant::now();
    let mut reason = String::new();
    while began.elapsed() < Duration::from_secs(20) {
        match take(&store, &key).await {
            Err(StoreError::Unavailable(why)) => reason = why,
            // The first request may go out on the connection that has just ended.
            Err(_) => {}
            Ok(answer) => panic!("the other cluster is asked: {answer:?}"),
        }
        sleep(Duration::from_millis(100)).await;
    }
    assert!(reason.contains("it is in another cluster"), "{reason}");
    // The right one comes back, and has lost what it held.
    server.state().cluster = own;
    server.restart(Kept::Nothing);
    sleep(RECONNECTED_WITHIN).await;
    assert!(number(&store, &key).await > held);
}

/// One server of a cluster after the other gives its place to a new one, until none is left that was there at first.
#[tokio::test(start_paused = true)]
async fn a_cluster_whose_servers_are_replaced_one_by_one_is_still_the_same() {
    let clock = Clock::running(NOW_US);
    let fleet = Fleet::cluster(&clock);
    let store = store(&fleet);
    number(&store, "a").await;
    let hosts: Vec<_> = (0..6).map(sim::host).collect();
    let mut nodes: Vec<_> = hosts[..3].iter().map(|host| (&**host, 6379)).collect();
    let mut servers = fleet.servers.clone();
    for at in 0..3 {
        let (host, old) = (&hosts[at + 3], servers[at].clone());
        nodes[at] = (host.as_str(), 6379);
        servers[at] = Server::start(host, &clock);
        fleet.network.add(host, 6379, &servers[at]);
        for (me, server) in servers.iter().enumerate() {
            server.state().cluster = Some(Cluster::new(me, &nodes));
        }
        fleet.network.set(&hosts[at], 6379, |way| way.refuses = true);
        old.disconnect_all();
        // The gateway asks for the map each second.
        sleep(Duration::from_secs(5)).await;
    }
    for key in ["b", "c", "d", "e", "f"] {
        number(&store, key).await;
    }
}

/// The time of the test, which no machine's load makes longer.
struct TestClock(Instant);

impl fencepost::clock::Clock for TestClock {
    fn boot(&self) -> Duration {
        self.0.elapsed()
    }

    fn wall(&self) -> Duration {
        Duration::from_micros(NOW_US) + self.0.elapsed()
    }

    fn boot_id(&self) -> String {
        String::new()
    }
}

/// A gateway's store on a quorum, once it counts on all of its servers.
async fn quorum_store(fleet: &Fleet) -> QuorumStore {
    start_quorum_store(&fleet.address().unwrap()).await
}

async fn quorum_store_through(fleet: &Fleet, view: View) -> QuorumStore {
    start_quorum_store(&fleet.address().unwrap().through(Arc::new(view))).await
}

async fn start_quorum_store(address: &RedisAddress) -> QuorumStore {
    let clock = Arc::new(TestClock(Instant::now()));
    let store = QuorumStore::start(address, &RedisSettings::default(), clock).unwrap();
    // Nobody has met these servers before.
    sleep(RECONNECTED_WITHIN).await;
    store
}

#[tokio::test(start_paused = true)]
async fn a_quorum_grants_while_one_of_its_servers_is_silent_and_not_while_two_are() {
    let fleet = Fleet::quorum(&Clock::running(NOW_US));
    let store = quorum_store(&fleet).await;
    let take = async |key| store.call(Try(request(key)), Instant::now() + DEADLINE).await;
    assert!(matches!(take("a").await, Ok(Acquired::Granted(_))));
    fleet.network.set("server1", 6379, |way| way.is_silent = true);
    assert!(matches!(take("b").await, Ok(Acquired::Granted(_))));
    fleet.network.set("server2", 6379, |way| way.is_silent = true);
    let without_most = take("c").await;
    assert!(without_most.is_err(), "{without_most:?}");
}

/// Does something to the only lock that a server may have.
fn do_to_lock(server: &Server, command: &str) -> Reply {
    let script = format!(
        "local found = redis.call('KEYS', '*:lock:*') return found[1] and redis.call('{command}', found[1]) or 0"
    );
    let words = [&words("EVAL")[..], &[script.into_bytes()], &words("0")[..]].concat();
    server.ask(server.connect(), &words)
}

async fn release(store: &QuorumStore, lock: &LockRequest) -> Result<Released, StoreError> {
    release_by(store, lock, Tombstone::Final).await
}

async fn release_by(
    store: &QuorumStore,
    lock: &LockRequest,
    tombstone: Tombstone,
) -> Result<Released, StoreError> {
    let LockRequest { key, token, .. } = lock.clone();
    let release = Release { key, token, tombstone };
    store.call(release, Instant::now() + DEADLINE).await.map(|effect| effect.answer)
}

/// A renewal may lengthen the lease on one server alone, where it comes late to the others.
#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_lease_on_one_server_of_a_quorum_is_not_called_released() {
    let fleet = Fleet::quorum(&Clock::running(NOW_US));
    let store = quorum_store(&fleet).await;
    let (first, second) = (request("a"), request("a"));
    let take = async |lock: &LockRequest| store.call(Try(lock.clone()), Instant::now() + DEADLINE).await;
    assert!(matches!(take(&first).await, Ok(Acquired::Granted(_))));
    for server in &fleet.servers[..2] {
        assert_eq!(do_to_lock(server, "DEL"), Reply::Int(1));
    }
    assert!(matches!(take(&second).await, Ok(Acquired::Granted(_))));
    fleet.network.set("server2", 6379, |way| way.is_silent = true);
    let answer = release(&store, &first).await;
    assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");
    fleet.network.set("server2", 6379, |way| way.is_silent = false);
    fleet.servers[1].disconnect_all();
    sleep(RECONNECTED_WITHIN).await;
    assert_eq!(release(&store, &first).await.unwrap(), Released::HeldByAnother);
    assert_eq!(release(&store, &second).await.unwrap(), Released::Released);
}

/// It would be asked again and again, and stand at the head of its queue meanwhile.
#[tokio::test(start_paused = true)]
async fn a_token_that_a_quorum_has_freed_is_refused_although_nobody_knows_what_its_release_was_answered() {
    let fleet = Fleet::quorum(&Clock::running(NOW_US));
    let store = quorum_store(&fleet).await;
    let lock = request("a");
    let take = async || store.call(Try(lock.clone()), Instant::now() + DEADLINE).await;
    assert!(matches!(take().await, Ok(Acquired::Granted(_))));
    assert_eq!(do_to_lock(&fleet.servers[1], "DEL"), Reply::Int(1));
    fleet.network.set("server3", 6379, |way| way.is_silent = true);
    for _ in 0..2 {
        let answer = release(&store, &lock).await;
        assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");
    }
    let answer = take().await;
    assert!(matches!(answer, Ok(Acquired::TokenReleased)), "{answer:?}");
}

/// It refuses all numbers of the others, and with one of these away it is needed.
#[tokio::test(start_paused = true)]
async fn a_free_lock_is_not_called_taken_where_a_clock_is_too_far_behind() {
    let fleet = Fleet::quorum(&Clock::running(NOW_US));
    fleet.servers[1].set_clock(Clock::running(NOW_US - 12_000_000));
    let store = quorum_store(&fleet).await;
    let take = async |lock: LockRequest| store.call(Try(lock), Instant::now() + DEADLINE).await;
    let held = request("a");
    assert!(matches!(take(held.clone()).await, Ok(Acquired::Granted(_))));
    assert_eq!(release(&store, &held).await.unwrap(), Released::Released);
    fleet.network.set("server3", 6379, |way| way.refuses = true);
    fleet.servers[2].disconnect_all();
    let first = take(request("a")).await;
    let Err(StoreError::Unavailable(reason)) = &first else { panic!("{first:?}") };
    assert!(
        reason.contains("the clocks of these are too far behind, or another was ahead: server2:6379"),
        "{reason}"
    );
    // Its clock reaches the number soon.
    let began = Instant::now();
    while !matches!(take(request("a")).await, Ok(Acquired::Granted(_))) {
        assert!(began.elapsed() < Duration::from_secs(10), "it is never granted");
    }
    assert!(matches!(take(request("b")).await, Ok(Acquired::Granted(_))));
}

/// A quorum whose servers have a clock each, and the store of a gateway on it.
async fn quorum_with_clocks() -> (Fleet, [Clock; 3], QuorumStore) {
    let clocks = [(); 3].map(|()| Clock::running(NOW_US));
    let fleet = Fleet::quorum(&clocks[0]);
    for (server, clock) in fleet.servers.iter().zip(&clocks) {
        server.set_clock(clock.clone());
    }
    let store = quorum_store(&fleet).await;
    (fleet, clocks, store)
}

/// Each of the servers accepts other numbers then, and the last one has accepted a larger one than those that are proposed after it.
#[tokio::test(start_paused = true)]
async fn a_lock_that_is_refused_as_clocks_were_set_back_is_left_on_no_server_and_the_quorum_is_not_ready() {
    let (fleet, clocks, store) = quorum_with_clocks().await;
    let take = async |lock: LockRequest| store.call(Try(lock), Instant::now() + DEADLINE).await;
    let check = async || store.call(Check, Instant::now() + DEADLINE).await;
    let by = Duration::from_secs(60);
    for clock in &clocks[..2] {
        let held = request("a");
        assert!(matches!(take(held.clone()).await, Ok(Acquired::Granted(_))));
        assert_eq!(release(&store, &held).await.unwrap(), Released::Released);
        sleep(RECONNECTED_WITHIN).await;
        clock.step_back(by);
    }
    let refused = take(request("a")).await;
    for server in &fleet.servers {
        assert_eq!(do_to_lock(server, "PTTL"), Reply::Int(0), "a lock is left behind: {refused:?}");
    }
    let Err(StoreError::Unavailable(reason)) = &refused else { panic!("{refused:?}") };
    assert!(reason.contains("the clocks of these are too far behind"), "{reason}");
    sleep(RECONNECTED_WITHIN).await;
    let unready = check().await;
    let Err(StoreError::Unavailable(reason)) = &unready else { panic!("{unready:?}") };
    assert!(
        reason.contains("2 of 3 servers are needed, and 1 can take new locks and connections"),
        "{reason}"
    );
    assert!(reason.contains("s behind the fencing tokens that it has accepted"), "{reason}");

    clocks[..2].iter().for_each(|clock| clock.step(by));
    sleep(RECONNECTED_WITHIN).await;
    check().await.unwrap();
    assert!(matches!(take(request("a")).await, Ok(Acquired::Granted(_))));
}

/// They go on by the next number.
#[tokio::test(start_paused = true)]
async fn a_quorum_whose_clocks_were_set_back_alike_grants_locks_and_is_ready() {
    let (_fleet, clocks, store) = quorum_with_clocks().await;
    let take_and_release = async || {
        let held = request("a");
        let Ok(Acquired::Granted(lease)) = store.call(Try(held.clone()), Instant::now() + DEADLINE).await
        else {
            panic!("it is not granted")
        };
        assert_eq!(release(&store, &held).await.unwrap(), Released::Released);
        lease.fencing_token
    };
    let first = take_and_release().await;
    clocks.iter().for_each(|clock| clock.step_back(Duration::from_secs(3_600)));
    sleep(RECONNECTED_WITHIN).await;
    assert!(take_and_release().await > first);
    store.call(Check, Instant::now() + DEADLINE).await.unwrap();
}

/// A repetition finds the place that the first one told of, and is answered alike.
#[tokio::test(start_paused = true)]
async fn a_release_that_is_not_known_to_have_happened_ends_no_place_in_the_line() {
    let fleet = Fleet::quorum(&Clock::running(NOW_US));
    let store = quorum_store(&fleet).await;
    let (holder, waiter) = (request("a"), request("a"));
    let deadline = || Instant::now() + DEADLINE;
    assert!(matches!(store.call(Try(holder), deadline()).await, Ok(Acquired::Granted(_))));
    let enqueue = Enqueue { lock: waiter.clone(), takes_over: true, ticket: None, supersedes: Vec::new() };
    assert!(matches!(store.call(enqueue, deadline()).await, Ok(Acquired::NotTaken(_))));
    for away in [&[0, 1, 2][..], &[1, 2]] {
        let set = |refuses| {
            for server in away {
                fleet.network.set(&sim::host(*server), 6379, |way| way.refuses = refuses);
                fleet.servers[*server].disconnect_all();
            }
        };
        set(true);
        let answer = release(&store, &waiter).await;
        assert!(answer.is_err(), "{answer:?}");
        set(false);
        sleep(RECONNECTED_WITHIN).await;
    }
    assert_eq!(release(&store, &waiter).await.unwrap(), Released::Released, "it has left the line");
}

/// Which server3 lacks, and is about to be given: what it is sent takes a while. With the store of another gateway.
async fn renewed_where_a_repair_comes_late(lock: LockRequest) -> (Fleet, [QuorumStore; 2], Instant) {
    let fleet = Fleet::quorum(&Clock::running(NOW_US));
    let (store, another) = (quorum_store(&fleet).await, quorum_store(&fleet).await);
    let LockRequest { key, token, ttl, .. } = lock.clone();
    fleet.network.set("server3", 6379, |way| way.refuses = true);
    fleet.servers[2].disconnect_all();
    assert!(matches!(store.call(Try(lock), Instant::now() + DEADLINE).await, Ok(Acquired::Granted(_))));
    fleet.network.set("server3", 6379, |way| way.refuses = false);
    sleep(RECONNECTED_WITHIN * 2).await;
    assert_eq!(do_to_lock(&fleet.servers[2], "PTTL"), Reply::Int(0), "it lacks the lock");
    fleet.network.set("server3", 6379, |way| way.delay = Duration::from_millis(80));
    let sent = Instant::now();
    let renew = Renew { key, token, ttl, by: Renewer::Token };
    assert!(matches!(store.call(renew, sent + DEADLINE).await, Ok(Renewed::Renewed(_))));
    (fleet, [store, another], sent)
}

/// Long enough for all that is on its way to a server of a quorum.
const ARRIVED: Duration = Duration::from_secs(5);

/// A release of a token that the gateway has made leaves no tombstone, which would stop the repair.
#[tokio::test(start_paused = true)]
async fn a_repair_that_comes_after_a_release_leaves_no_lock() {
    for tombstone in [Tombstone::None, Tombstone::Final] {
        let lock = request("a");
        let (fleet, [_store, another], _) = renewed_where_a_repair_comes_late(lock.clone()).await;
        // It hears of the release before the renewal.
        fleet.network.set("server3", 6379, |way| way.delay = Duration::ZERO);
        assert_eq!(release_by(&another, &lock, tombstone).await.unwrap(), Released::Released);
        sleep(ARRIVED).await;
        for server in &fleet.servers {
            assert_eq!(do_to_lock(server, "PTTL"), Reply::Int(0), "{tombstone:?}: a lock is left behind");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_repair_that_comes_late_does_not_lengthen_the_lease() {
    let (fleet, _stores, sent) = renewed_where_a_repair_comes_late(request("a")).await;
    sleep(ARRIVED).await;
    let Reply::Int(left_ms) = do_to_lock(&fleet.servers[2], "PTTL") else { panic!("it is no number") };
    let most_ms = TTL_MS as i64 - sent.elapsed().as_millis() as i64;
    assert!((most_ms - 500..=most_ms).contains(&left_ms), "{left_ms} of {most_ms}");
}

#[tokio::test(start_paused = true)]
async fn a_repair_that_comes_late_does_not_lengthen_a_max_hold() {
    let terms = Terms { max_hold: Some(Duration::from_millis(2 * TTL_MS)), ..Terms::default() };
    let (fleet, _stores, _) = renewed_where_a_repair_comes_late(LockRequest { terms, ..request("a") }).await;
    sleep(ARRIVED).await;
    let [there, repaired] = [0, 2].map(|at| max_hold_ends_at_ms(&fleet.servers[at]));
    assert!((there - 500..=there).contains(&repaired), "{repaired} and {there}");
}

fn max_hold_ends_at_ms(server: &Server) -> i64 {
    let Reply::Bulk(lock) = do_to_lock(server, "GET") else { panic!("it has no lock") };
    let lock = String::from_utf8(lock.to_vec()).unwrap();
    lock.split([' ', ':']).nth(3).unwrap().parse().unwrap()
}

/// The rows of the table at the head of `failure.rs`; `outcomes` has them on real servers.
#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_is_unavailable_until_its_state_passes() {
    let is = Conditions::default;
    let conditions = [
        ("OOM", Conditions { is_full: true, ..is() }),
        ("MISCONF", Conditions { disk_fails: true, has_file: true, ..is() }),
        ("LOADING", Conditions { is_loading: true, ..is() }),
        ("BUSY", Conditions { is_busy: true, ..is() }),
        ("NOREPLICAS", Conditions { replicas_to_write: 1, ..is() }),
    ];
    for (code, conditions) in conditions {
        let fleet = Fleet::alone(&Clock::running(NOW_US));
        let store = store(&fleet);
        number(&store, "a").await;
        fleet.servers[0].state().conditions = conditions;
        // The first try may find the connection given up, and nobody knows yet why there is no other.
        let mut reasons = Vec::new();
        for _ in 0..3 {
            match take(&store, "b").await {
                Err(StoreError::Unavailable(reason)) => reasons.push(reason),
                other => panic!("{code}: {other:?}"),
            }
        }
        assert!(reasons.iter().any(|reason| reason.contains(code)), "{code}: {reasons:?}");
        fleet.servers[0].state().conditions = is();
        sleep(RECONNECTED_WITHIN).await;
        number(&store, "b").await;
    }
}

#[test]
fn nothing_runs_while_a_script_does() {
    let server = Server::start("server1", &Clock::standing(NOW_US));
    let script = "redis.call('SET', KEYS[1], 'mine') for _ = 1, 300 do redis.call('TIME') end return redis.call('GET', KEYS[1])";
    let eval = [&words("EVAL")[..], &[script.as_bytes().to_vec()], &words("1 {0}a")[..]].concat();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let session = server.connect();
            while !is_over.load(Ordering::Relaxed) {
                server.ask(session, &words("SET {0}a theirs"));
            }
        });
        let session = server.connect();
        let replies: Vec<_> = (0..300).map(|_| server.ask(session, &eval)).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(replies.iter().all(|reply| *reply == Reply::bulk("mine")));
    });
}

#[test]
fn the_same_commands_at_the_same_times_have_the_same_replies_to_the_byte() {
    let play = || {
        let server = Server::start("server1", &Clock::standing(NOW_US));
        let session = server.connect();
        let commands = [
            "HELLO 3",
            "SUBSCRIBE news",
            "SET {0}a 1 PX 5000",
            "ZADD {0}set 1 b 1 a 2 c",
            "ZRANGE {0}set 0 -1 WITHSCORES",
            "HSET {0}hash z 1 a 2",
            "HGETALL {0}hash",
            "PUBLISH news now",
            "TIME",
            "INFO",
            "SCAN 0",
        ];
        let mut said = Vec::new();
        for command in commands.map(words) {
            let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
            for word in command {
                bytes.extend(format!("${}\r\n", word.len()).bytes().chain(word).chain(*b"\r\n"));
            }
            server.receive(session, &bytes);
            said.extend(server.take_output(session).unwrap());
        }
        server.restart(Kept::Nothing);
        said.extend(server.state().identity.run_id.bytes());
        said
    };
    assert_eq!(play(), play());
}
