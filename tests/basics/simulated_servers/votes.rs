//! What becomes of a number of a token while servers still vote on it, and another gateway does something with the token.

use super::*;
use fencepost::lock::{Broken, FencingToken};
use fencepost::store::{Break, Poll};

/// Links look at their servers each second. What is delayed or lost here is not to be one of these questions.
const BETWEEN_LOOKS: Duration = Duration::from_millis(300);

/// Two gateways on a quorum whose third server lacks the lock, and by which number the token holds it.
async fn held_by_two(lock: &LockRequest) -> (Fleet, [QuorumStore; 2], FencingToken) {
    let fleet = Fleet::quorum(&Clock::running(NOW_US));
    let stores = [quorum_store(&fleet).await, quorum_store(&fleet).await];
    fleet.network.set("server3", 6379, |way| way.refuses = true);
    fleet.servers[2].disconnect_all();
    let Ok(Acquired::Granted(lease)) = ask(&stores[0], Try(lock.clone())).await else { panic!("it is free") };
    fleet.network.set("server3", 6379, |way| way.refuses = false);
    sleep(RECONNECTED_WITHIN * 2 + BETWEEN_LOOKS).await;
    assert_eq!(do_to_lock(&fleet.servers[2], "PTTL"), Reply::Int(0), "it lacks the lock");
    (fleet, stores, lease.fencing_token)
}

async fn ask<C: fencepost::store::Call>(store: &QuorumStore, call: C) -> Result<C::Answer, StoreError> {
    store.call(call, Instant::now() + DEADLINE).await
}

/// Has the token ask once more: the third server accepts it at once, the others hear of it later.
async fn repeated(
    fleet: &Fleet,
    store: QuorumStore,
    lock: LockRequest,
) -> tokio::task::JoinHandle<Result<Acquired<Refusal>, StoreError>> {
    let late =
        |server: &str, ms| fleet.network.set(server, 6379, |way| way.delay = Duration::from_millis(ms));
    late("server1", 500);
    late("server2", 1_200);
    let asked = tokio::spawn(async move { ask(&store, Try(lock)).await });
    sleep(Duration::from_millis(2)).await;
    late("server1", 0);
    late("server2", 0);
    assert!(matches!(do_to_lock(&fleet.servers[2], "PTTL"), Reply::Int(1..)), "it has accepted a number");
    asked
}

/// Whether a stranger is granted the lock, once the token was told something of its own.
async fn is_strangers(store: &QuorumStore, key: &str) -> bool {
    matches!(ask(store, Try(request(key))).await, Ok(Acquired::Granted(_)))
}

#[tokio::test(start_paused = true)]
async fn a_repair_replaces_no_number_that_may_still_be_granted() {
    let lock = request("a");
    let (fleet, [store, another], number) = held_by_two(&lock).await;
    let again = LockRequest { attempt: Attempt::generate(), ..lock.clone() };
    let asked = repeated(&fleet, another, again).await;
    let LockRequest { key, token, ttl, .. } = lock;
    let renew = Renew { key: key.clone(), token, ttl, by: Renewer::Token };
    assert!(matches!(ask(&store, renew).await, Ok(Renewed::Renewed(_))));
    sleep(Duration::from_millis(100)).await;
    let Reply::Bulk(mended) = do_to_lock(&fleet.servers[2], "GET") else { panic!("it has no lock") };
    let mended = String::from_utf8(mended.to_vec()).unwrap();
    assert!(mended.contains(&number.get().to_string()), "it is mended all the same: {mended}");
    assert!(matches!(ask(&store, Break { key, fence: number }).await, Ok(Broken::Broken(_))));
    let told = asked.await.unwrap();
    let is_told = matches!(told, Ok(Acquired::Granted(_) | Acquired::AlreadyHeld(_)));
    assert!(!is_told || !is_strangers(&store, "a").await, "two tokens were told that they hold it: {told:?}");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_connection_removes_no_number_that_is_still_voted_on() {
    let lock = LockRequest { ttl: Ttl::from_ms(8_000).unwrap(), ..request("a") };
    let began = Instant::now();
    let (fleet, [store, another], number) = held_by_two(&lock).await;
    let granted = began + RECONNECTED_WITHIN * 2;
    tokio::time::sleep_until(granted + Duration::from_millis(7_700)).await;
    let again =
        LockRequest { attempt: Attempt::generate(), ttl: Ttl::from_ms(60_000).unwrap(), ..lock.clone() };
    let asked = repeated(&fleet, another, again).await;
    let claiming = LockRequest { attempt: Attempt::for_connection(), ..lock.clone() };
    assert!(matches!(ask(&store, Try(claiming.clone())).await, Ok(Acquired::AlreadyHeld(_))));
    // What the token was told before is over by then.
    tokio::time::sleep_until(granted + Duration::from_millis(8_050)).await;
    let LockRequest { key, token, .. } = lock;
    let known = KnownTo::Connection { number, told_for: Duration::ZERO };
    let (attempt, ticket) = (claiming.attempt.claim(), TicketAfter::Removed);
    ask(&store, RollBack { key, token, attempt, ticket, known }).await.unwrap();
    let told = asked.await.unwrap();
    let is_told = matches!(told, Ok(Acquired::Granted(_) | Acquired::AlreadyHeld(_)));
    assert!(!is_told || !is_strangers(&store, "a").await, "two tokens were told that they hold it: {told:?}");
}

/// As if it had accepted another one of the token just before the connection claimed it.
#[tokio::test(start_paused = true)]
async fn a_connection_releases_no_larger_number_than_it_was_told_of() {
    let fleet = Fleet::quorum(&Clock::running(NOW_US));
    let store = quorum_store(&fleet).await;
    let first = request("a");
    let Ok(Acquired::Granted(lease)) = ask(&store, Try(first.clone())).await else { panic!("it is free") };
    let lock = LockRequest { attempt: Attempt::for_connection(), ..first };
    assert!(matches!(ask(&store, Try(lock.clone())).await, Ok(Acquired::AlreadyHeld(_))));
    let script = "local key = redis.call('KEYS', '*:lock:*')[1] local lock = redis.call('GET', key) \
        return redis.call('SET', key, string.sub(lock, 1, 98) .. '9' .. string.sub(lock, 100), 'KEEPTTL')";
    let server = &fleet.servers[2];
    let renumber = [&words("EVAL")[..], &[script.as_bytes().to_vec()], &words("0")[..]].concat();
    assert_eq!(server.ask(server.connect(), &renumber), Reply::OK);
    let LockRequest { key, token, attempt, .. } = lock;
    let (attempt, told_for) = (attempt.claim(), Duration::ZERO);
    let known = KnownTo::Connection { number: lease.fencing_token, told_for };
    ask(&store, RollBack { key, token, attempt, ticket: TicketAfter::Removed, known }).await.unwrap();
    sleep(ARRIVED).await;
    let is_held = |server: &Server| matches!(do_to_lock(server, "PTTL"), Reply::Int(1..));
    assert_eq!(fleet.servers.iter().map(is_held).collect::<Vec<_>>(), [false, false, true]);
}

/// The second server lacks it by then, and the third one, which is away, may have it.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_lock_that_a_connection_held_is_told_though_one_server_lacks_it_and_another_is_away() {
    let lasting = Terms { min_hold: Some(Duration::from_secs(10)), ..Terms::default() };
    for (was_told_before, terms) in [(false, Terms::default()), (false, lasting), (true, Terms::default())] {
        let fleet = Fleet::quorum(&Clock::running(NOW_US));
        let store = quorum_store(&fleet).await;
        let lock = LockRequest { terms, ..request("a") };
        let hold = LockRequest { attempt: Attempt::for_connection(), ..lock.clone() };
        let first = if was_told_before { &lock } else { &hold };
        let Ok(Acquired::Granted(lease)) = ask(&store, Try(first.clone())).await else {
            panic!("it is free")
        };
        let (mut attempt, mut told_for) = (hold.attempt, Duration::ZERO);
        if was_told_before {
            assert!(matches!(ask(&store, Try(hold.clone())).await, Ok(Acquired::AlreadyHeld(_))));
            (attempt, told_for) = (attempt.claim(), Duration::from_secs(20));
        }
        sleep(BETWEEN_LOOKS).await;
        assert_eq!(do_to_lock(&fleet.servers[1], "DEL"), Reply::Int(1));
        fleet.network.set("server3", 6379, |way| way.refuses = true);
        fleet.servers[2].disconnect_all();
        let known = KnownTo::Connection { number: lease.fencing_token, told_for };
        let LockRequest { key, token, .. } = hold;
        let ends = RollBack { key, token, attempt, ticket: TicketAfter::Removed, known };
        let ended = ask(&store, ends.clone()).await;
        let is_told = match ended {
            Ok(RolledBack::Ended { kept_ms: 0 }) => !was_told_before && terms.min_hold.is_none(),
            Ok(RolledBack::Ended { kept_ms: 9_000..=10_000 }) => terms.min_hold.is_some(),
            Ok(RolledBack::LeftToToken { left_ms: 20_000..21_000 }) => was_told_before,
            _ => false,
        };
        assert!(is_told, "{ended:?} of {terms:?}");
        if !was_told_before {
            assert_eq!(ask(&store, ends).await, Ok(RolledBack::Nothing), "it is over");
        }
    }
}

/// One server has kept it by the number of an earlier vote, and a late copy of the acquire may come to the one that lacks it.
#[tokio::test(start_paused = true)]
async fn a_release_without_a_tombstone_burns_the_largest_number_by_which_servers_held_the_lock() {
    let lock = request("a");
    let (fleet, [store, _], number) = held_by_two(&lock).await;
    let run = |server: &Server, script: &str| {
        let eval = [&words("EVAL")[..], &[script.as_bytes().to_vec()], &words("0")[..]].concat();
        server.ask(server.connect(), &eval)
    };
    let renumber = "local key = redis.call('KEYS', '*:lock:*')[1] local lock = redis.call('GET', key) \
        redis.call('SET', key, string.sub(lock, 1, 98) .. '0' .. string.sub(lock, 100), 'KEEPTTL') \
        return string.match(key, '{(%d+)}')";
    let Reply::Bulk(bucket) = run(&fleet.servers[0], renumber) else { panic!("it has no lock") };
    let bucket = String::from_utf8(bucket.to_vec()).unwrap();
    assert_eq!(release_by(&store, &lock, Tombstone::None).await.unwrap(), Released::Released);
    sleep(ARRIVED).await;
    let burnt = format!("return redis.call('HGET', redis.call('KEYS', '*:record')[1], 'b{bucket}')");
    assert_eq!(run(&fleet.servers[2], &burnt), Reply::Bulk(number.get().to_string().into_bytes()));
}

/// Servers have pinned the lock, which keeps its first request from being undone.
#[tokio::test(start_paused = true)]
async fn what_a_server_has_pinned_is_not_called_unchanged() {
    let fleet = Fleet::quorum(&Clock::running(NOW_US));
    let store = quorum_store(&fleet).await;
    let lock = request("a");
    assert!(matches!(ask(&store, Try(lock.clone())).await, Ok(Acquired::Granted(_))));
    for server in [1, 2] {
        fleet.network.set(&sim::host(server), 6379, |way| way.refuses = true);
        fleet.servers[server].disconnect_all();
    }
    let again = LockRequest { attempt: Attempt::generate(), ..lock };
    let answer = ask(&store, Try(again)).await;
    assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");
}

/// One server is away, and the answer of another does not arrive. Another request of the token is told of the lock meanwhile.
#[tokio::test(start_paused = true)]
async fn what_a_connection_has_claimed_meanwhile_is_not_called_undone() {
    let fleet = Fleet::quorum(&Clock::running(NOW_US));
    let (cuts, ms) = (Arc::new(AtomicBool::new(false)), Duration::from_millis);
    let next = cuts.clone();
    let view = fleet.network.view(Box::new(move |direction| match direction {
        Direction::FromServer if next.swap(false, Ordering::SeqCst) => Fate::Cut,
        _ => Fate::Arrives,
    }));
    let (store, another) = (quorum_store(&fleet).await, quorum_store_through(&fleet, view).await);
    fleet.network.set("server2", 6379, |way| way.refuses = true);
    fleet.servers[1].disconnect_all();
    sleep(RECONNECTED_WITHIN + BETWEEN_LOOKS).await;
    let lock = request("a");
    let delay = |by| fleet.network.set("server1", 6379, |way| way.delay = by);
    delay(ms(100));
    let first = lock.clone();
    let asked = tokio::spawn(async move { ask(&another, Try(first)).await });
    // The third server's answer arrives at once, and this one's is on its way once it has the lock.
    while do_to_lock(&fleet.servers[0], "PTTL") == Reply::Int(0) {
        sleep(ms(1)).await;
    }
    delay(Duration::ZERO);
    let claiming = LockRequest { attempt: Attempt::for_connection(), ..lock };
    assert!(matches!(ask(&store, Try(claiming)).await, Ok(Acquired::AlreadyHeld(_))));
    cuts.store(true, Ordering::SeqCst);
    let told = asked.await.unwrap();
    assert!(matches!(told, Err(StoreError::Unknown(_))), "{told:?}");
}

/// A server keeps for longer than the others what the token held before.
#[tokio::test(start_paused = true)]
async fn a_connection_whose_token_one_server_took_for_the_holder_goes_on_waiting() {
    let fleet = Fleet::quorum(&Clock::running(NOW_US));
    let store = quorum_store(&fleet).await;
    let (former, holder) = (request("a"), request("a"));
    assert!(matches!(ask(&store, Try(former.clone())).await, Ok(Acquired::Granted(_))));
    for server in &fleet.servers[1..] {
        assert_eq!(do_to_lock(server, "DEL"), Reply::Int(1));
    }
    assert!(matches!(ask(&store, Try(holder.clone())).await, Ok(Acquired::Granted(_))));
    let lock = LockRequest { attempt: Attempt::for_connection(), ..former };
    let enqueue = Enqueue { lock: lock.clone(), takes_over: true, ticket: None, supersedes: Vec::new() };
    let waits = ask(&store, enqueue).await;
    assert!(matches!(waits, Ok(Acquired::NotTaken(_))), "{waits:?}");
    assert_eq!(do_to_lock(&fleet.servers[0], "DEL"), Reply::Int(1));
    assert_eq!(release(&store, &holder).await.unwrap(), Released::Released);
    let polled = ask(&store, Poll(lock)).await;
    assert!(matches!(polled, Ok(Acquired::Granted(_))), "{polled:?}");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_has_waited_and_claimed_a_lock_claims_it_once() {
    let fleet = Fleet::quorum(&Clock::running(NOW_US));
    let (store, another) = (quorum_store(&fleet).await, quorum_store(&fleet).await);
    let former = request("a");
    assert!(matches!(ask(&another, Try(former.clone())).await, Ok(Acquired::Granted(_))));
    let lock = LockRequest { attempt: Attempt::for_connection(), ..former.clone() };
    let enqueue = Enqueue { lock: lock.clone(), takes_over: true, ticket: None, supersedes: Vec::new() };
    assert!(matches!(ask(&store, enqueue.clone()).await, Ok(Acquired::AlreadyHeld(_))));
    // Another request of the token is told that it holds the lock. A copy of what came before takes that from nobody.
    let LockRequest { key, token, ttl, .. } = former;
    let renew = Renew { key, token, ttl, by: Renewer::Token };
    assert!(matches!(ask(&another, renew).await, Ok(Renewed::Renewed(_))));
    let copy = ask(&another, enqueue).await;
    assert!(!matches!(copy, Ok(Acquired::Granted(_) | Acquired::AlreadyHeld(_))), "{copy:?}");
}

/// The third server misses the renewal of a token. Then a connection claims its lock, while the second one is away, answers late, or
/// does not answer before the connection ends. So what most servers hold the lock for is less than the token was told.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_connection_ends_no_lease_that_was_told_before_and_that_one_server_has_missed() {
    let ms = Duration::from_millis;
    for late_ms in [None, Some(500), Some(20_000)] {
        let is_away = late_ms.is_none();
        let fleet = Fleet::quorum(&Clock::running(NOW_US));
        let store = quorum_store(&fleet).await;
        let refuse = |server: usize, refuses| {
            fleet.network.set(&sim::host(server), 6379, |way| way.refuses = refuses);
            fleet.servers[server].disconnect_all();
        };
        let lock = LockRequest { ttl: Ttl::from_ms(12_000).unwrap(), ..request("a") };
        assert!(matches!(ask(&store, Try(lock.clone())).await, Ok(Acquired::Granted(_))));
        refuse(2, true);
        sleep(RECONNECTED_WITHIN).await;
        let LockRequest { key, token, .. } = lock.clone();
        let renew = |ms, by| Renew { key: key.clone(), token, ttl: Ttl::from_ms(ms).unwrap(), by };
        let Ok(Renewed::Renewed(told)) = ask(&store, renew(60_000, Renewer::Token)).await else {
            panic!("it is held")
        };
        let told_until = Instant::now() + ms(told.left_ms);
        refuse(2, false);
        sleep(RECONNECTED_WITHIN).await;
        refuse(1, is_away);
        sleep(RECONNECTED_WITHIN).await;
        fleet.network.set("server2", 6379, |way| way.delay = ms(late_ms.unwrap_or(0)));
        let claiming = LockRequest { attempt: Attempt::for_connection(), ..lock };
        let claimed = ask(&store, Try(claiming.clone())).await;
        let Ok(Acquired::AlreadyHeld(lease)) = claimed else { panic!("{claimed:?}") };
        assert!(lease.left_ms < 12_000, "most servers have the lock for longer: {lease:?}");
        fleet.network.set("server2", 6379, |way| way.delay = Duration::ZERO);
        sleep(ms(1_500)).await;
        let attempt = claiming.attempt.claim();
        let renewed = ask(&store, renew(90_000, Renewer::Connection(attempt))).await;
        assert!(matches!(renewed, Ok(Renewed::Renewed(_))), "{renewed:?}");
        let known = KnownTo::Connection { number: lease.fencing_token, told_for: ms(lease.left_ms - 1_500) };
        let ticket = TicketAfter::Removed;
        ask(&store, RollBack { key: key.clone(), token, attempt, ticket, known }).await.unwrap();
        refuse(1, false);
        tokio::time::sleep_until(told_until - ms(1_000)).await;
        assert!(!is_strangers(&store, "a").await, "what was told is over before its time: {late_ms:?}");
        // The others decide, where one does not say what it had.
        sleep(ms(3_000)).await;
        assert!(is_strangers(&store, "a").await, "it is never free: {late_ms:?}");
    }
}

/// A connection has waited and asked often. Its first question comes to the second server when its claim is answered and the token was
/// told of a longer lease, and before that server hears that the attempt is voided.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_connection_that_has_waited_ends_no_lease_that_a_late_copy_of_its_first_question_has_claimed()
 {
    let ms = Duration::from_millis;
    let fleet = Fleet::quorum(&Clock::running(NOW_US));
    let strays = Arc::new(AtomicBool::new(false));
    let next = strays.clone();
    let way = fleet.network.view(Box::new(move |direction| match direction {
        Direction::ToServer if next.swap(false, Ordering::SeqCst) => Fate::Stray(ms(1_500)),
        _ => Fate::Arrives,
    }));
    let waiting = quorum_store_through(&fleet, way).await;
    let other_way = fleet.network.view(Box::new(|_| Fate::Arrives));
    let renewing = quorum_store_through(&fleet, other_way.clone()).await;
    let store = quorum_store(&fleet).await;
    let (holder, lock) = (request("a"), LockRequest { ttl: Ttl::from_ms(12_000).unwrap(), ..request("a") });
    let hold = LockRequest { attempt: Attempt::for_connection(), ..lock.clone() };
    assert!(matches!(ask(&store, Try(holder.clone())).await, Ok(Acquired::Granted(_))));

    let refuse = |refuses| fleet.network.set("server2", 6379, |way| way.refuses = refuses);
    let delay = |by| ["server1", "server3"].map(|host| fleet.network.set(host, 6379, |way| way.delay = by));
    let enqueue = |lock| Enqueue { lock, takes_over: true, ticket: None, supersedes: Vec::new() };
    // From now on the servers know the script.
    ask(&waiting, enqueue(hold.clone())).await.unwrap();
    delay(ms(50));
    // The one whose connection is to end gets no other.
    refuse(true);
    strays.store(true, Ordering::SeqCst);
    let waits = waiting.call(enqueue(hold.clone()), Instant::now() + 5 * DEADLINE).await;
    assert!(matches!(waits, Ok(Acquired::NotTaken(_))), "{waits:?}");
    delay(Duration::ZERO);

    assert_eq!(release(&store, &holder).await.unwrap(), Released::Released);
    assert!(matches!(ask(&store, Try(lock.clone())).await, Ok(Acquired::Granted(_))));
    let claimed = ask(&waiting, Poll(hold.clone())).await;
    let Ok(Acquired::AlreadyHeld(lease)) = claimed else { panic!("{claimed:?}") };
    let claimed_at = Instant::now();
    let LockRequest { key, token, .. } = lock;
    let attempt = hold.attempt.claim();
    other_way.cut_off(["server3".to_owned()].into());
    let renew = Renew { key: key.clone(), token, ttl: Ttl::from_ms(60_000).unwrap(), by: Renewer::Token };
    let Ok(Renewed::Renewed(told)) = ask(&renewing, renew).await else { panic!("it is held") };
    let told_until = Instant::now() + ms(told.left_ms);
    sleep(ms(1_500)).await;
    let Reply::Bulk(there) = do_to_lock(&fleet.servers[1], "GET") else { panic!("it has no lock") };
    let there = String::from_utf8(there.to_vec()).unwrap();
    assert!(there.contains(&attempt.to_string()), "the copy did not come: {there}");

    refuse(false);
    sleep(RECONNECTED_WITHIN).await;
    let told_for = ms(lease.left_ms).saturating_sub(claimed_at.elapsed());
    let known = KnownTo::Connection { number: lease.fencing_token, told_for };
    ask(&waiting, RollBack { key, token, attempt, ticket: TicketAfter::Removed, known }).await.unwrap();
    tokio::time::sleep_until(told_until - ms(1_000)).await;
    assert!(!is_strangers(&store, "a").await, "what was told is over before its time");
    sleep(ms(3_000)).await;
    assert!(is_strangers(&store, "a").await, "it is never free");
}

/// A server heard that an attempt was voided, and not that it had claimed the lock.
#[tokio::test(start_paused = true)]
async fn one_server_that_has_missed_the_claim_of_a_connection_does_not_call_it_voided() {
    let fleet = Fleet::quorum(&Clock::running(NOW_US));
    let store = quorum_store(&fleet).await;
    let lock = request("a");
    assert!(matches!(ask(&store, Try(lock.clone())).await, Ok(Acquired::Granted(_))));
    let hold = LockRequest { attempt: Attempt::for_connection(), ..lock };
    let enqueue = Enqueue { lock: hold.clone(), takes_over: true, ticket: None, supersedes: Vec::new() };
    assert!(matches!(ask(&store, enqueue).await, Ok(Acquired::AlreadyHeld(_))));
    assert_eq!(do_to_lock(&fleet.servers[2], "DEL"), Reply::Int(1));
    let late = |host: &str| fleet.network.set(host, 6379, |way| way.delay = Duration::from_millis(100));
    ["server1", "server2"].iter().for_each(|host| late(host));
    let again = ask(&store, Poll(hold)).await;
    assert!(matches!(again, Ok(Acquired::AlreadyHeld(_))), "{again:?}");
}
