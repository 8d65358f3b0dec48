//! Requests that go to Redis as one call: what they gain by it, and that none of them notices the others.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use fencepost::lock::{
    Acquired, Attempt, LeaseToken, LockKey, Note, Refusal, ReleaseEffect, Released, Terms, TokenHash, Ttl,
};
use fencepost::store::redis::RedisStore;
use fencepost::store::{Check, LockRequest, Release, StoreError, Tombstone, Try};
use futures_util::future::{FutureExt, join_all};
use tokio::time::Instant;

use kit::asking::LockStoreExt;
use kit::stores::redis_store;
use kit::{PATIENCE, RedisServer, eventually};

mod records;

/// The most that go together.
const MOST: usize = 32;

const MARK_TTL: Duration = Duration::from_secs(120);

/// A Redis, and a store that is connected to it.
struct Scene {
    redis: RedisServer,
    store: RedisStore,
}

/// Who asks for a lock.
#[derive(Clone)]
struct Caller {
    key: String,
    token: TokenHash,
    note: Note,
}

impl Caller {
    fn new(key: impl Into<String>) -> Self {
        Self { key: key.into(), token: LeaseToken::generate().hash(), note: Note::default() }
    }

    fn of(keys: usize) -> Vec<Self> {
        (0..keys).map(|n| Self::new(format!("k{n}"))).collect()
    }
}

fn deadline() -> Instant {
    Instant::now() + PATIENCE
}

impl Scene {
    async fn new() -> Self {
        let redis = RedisServer::start().await;
        let store = redis_store(&redis, MARK_TTL);
        eventually("the store is connected", async || store.call(Check, deadline()).await.is_ok()).await;
        Self { redis, store }
    }

    async fn take(&self, caller: &Caller) -> Result<Acquired<Refusal>, StoreError> {
        let request = LockRequest {
            key: LockKey::parse(caller.key.as_bytes()).unwrap(),
            token: caller.token,
            attempt: Attempt::generate(),
            ttl: Ttl::from_ms(30_000).unwrap(),
            note: caller.note.clone(),
            terms: Terms::default(),
        };
        self.store.call(Try(request.clone()), deadline()).await
    }

    /// Has all ask before any is answered: they are polled by one task, one after the other.
    async fn take_all(&self, callers: &[Caller]) -> Vec<Acquired<Refusal>> {
        let answers = join_all(callers.iter().map(|caller| self.take(caller))).await;
        answers.into_iter().map(Result::unwrap).collect()
    }

    async fn release(&self, caller: &Caller, mark: Tombstone) -> Result<ReleaseEffect, StoreError> {
        let key = LockKey::parse(caller.key.as_bytes()).unwrap();
        self.store.call(Release { key: key.clone(), token: caller.token, tombstone: mark }, deadline()).await
    }

    async fn free(&self, caller: &Caller, mark: Tombstone) -> Result<Released, StoreError> {
        Ok(self.release(caller, mark).await?.answer)
    }

    async fn free_all(&self, callers: &[(Caller, Tombstone)]) -> Vec<ReleaseEffect> {
        let answers = join_all(callers.iter().map(|(caller, mark)| self.release(caller, *mark))).await;
        answers.into_iter().map(Result::unwrap).collect()
    }

    /// How often the server ran a command meanwhile.
    async fn calls<T>(&self, command: &str, what: impl Future<Output = T>) -> (T, u64) {
        let before = self.redis.calls(command).await;
        let done = what.await;
        (done, self.redis.calls(command).await - before)
    }

    async fn marks(&self) -> usize {
        self.redis.keys().await.iter().filter(|key| key.contains(":freed:")).count()
    }
}

fn number(answer: &Acquired<Refusal>) -> u64 {
    match answer {
        Acquired::Granted(lease) => lease.fencing_token.get(),
        other => panic!("not granted: {other:?}"),
    }
}

/// As many as may go together are one call each way, and one more is a call more.
#[tokio::test]
async fn requests_that_are_ready_at_once_are_one_call() {
    let scene = Scene::new().await;
    for (many, calls) in [(1, 1), (2, 1), (MOST, 1), (MOST + 1, 2), (3 * MOST, 3)] {
        let callers = Caller::of(many);
        // Each call of the scripts runs these once.
        let (answers, taken) = scene.calls("hincrby", scene.take_all(&callers)).await;
        let numbers: BTreeSet<u64> = answers.iter().map(number).collect();
        assert_eq!(numbers.len(), many, "each has a number of its own");
        let held = scene.redis.locks().await;
        for (caller, answer) in callers.iter().zip(&answers) {
            assert_eq!(held[&caller.key].token_hash, caller.token.to_string());
            assert_eq!(held[&caller.key].number, number(answer));
        }
        let callers: Vec<_> = callers.into_iter().map(|caller| (caller, Tombstone::None)).collect();
        let (answers, freed) = scene.calls("mget", scene.free_all(&callers)).await;
        assert!(answers.iter().all(|freed| freed.answer == Released::Released));
        assert!(scene.redis.locks().await.is_empty());
        assert_eq!((taken, freed), (calls, calls), "{many} at once");
    }
    assert_eq!(scene.marks().await, 0);
}

/// One lock that many ask for at once is granted once, and the others learn who has it.
#[tokio::test]
async fn one_lock_is_granted_to_one_of_those_that_go_together() {
    let scene = Scene::new().await;
    for round in 0..20 {
        let key = format!("k{round}");
        let mut callers: Vec<_> = (0..MOST / 2).map(|_| Caller::new(&*key)).collect();
        callers.extend((0..MOST / 2).map(|n| Caller::new(format!("{key} {n}"))));
        let answers = scene.take_all(&callers).await;
        let (of_one, of_others) = answers.split_at(MOST / 2);
        let granted: Vec<_> = of_one.iter().filter(|answer| matches!(answer, Acquired::Granted(_))).collect();
        assert_eq!(granted.len(), 1, "{of_one:?}");
        let fence = number(granted[0]);
        for answer in of_one.iter().filter(|answer| !matches!(answer, Acquired::Granted(_))) {
            let Acquired::NotTaken(Refusal { holder: Some(holder), .. }) = answer else {
                panic!("{answer:?}")
            };
            assert_eq!(holder.fencing_token.get(), fence);
        }
        assert!(of_others.iter().all(|answer| matches!(answer, Acquired::Granted(_))), "{of_others:?}");
        // Those that were told that they did not get it are nowhere.
        assert_eq!(scene.redis.locks().await[&key].number, fence);
    }
}

/// Whatever stands in the way of one is nobody else's business.
#[tokio::test]
async fn what_stops_one_stops_no_other() {
    let scene = Scene::new().await;
    let held = Caller { note: Note::from_stored("who holds it").unwrap(), ..Caller::new("held") };
    let mine = Caller::new("mine");
    let freed = Caller::new("freed");
    scene.take_all(&[held.clone(), mine.clone(), freed.clone()]).await;
    assert_eq!(scene.free(&freed, Tombstone::Final).await, Ok(Released::Released));
    for key in ["list", "bad list"] {
        let _: i64 = scene.redis.command(&["RPUSH", &format!("fencepost:{{0}}:lock:{key}"), "x"]).await;
    }
    let named = Caller { note: Note::from_stored("somebody").unwrap(), ..Caller::new("named") };
    let callers = [Caller::new("held"), Caller::new("list"), mine.clone(), named, freed, Caller::new("free")];
    let answers = join_all(callers.iter().map(|caller| scene.take(caller))).await;
    let [of_held, of_list, of_mine, of_named, of_freed, of_free] = &answers[..] else { unreachable!() };
    let Ok(Acquired::NotTaken(Refusal { holder: Some(holder), .. })) = of_held else { panic!("{of_held:?}") };
    assert_eq!(holder.note, held.note);
    assert!(matches!(of_list, Err(StoreError::Unknown(_))), "{of_list:?}");
    assert!(matches!(of_mine, Ok(Acquired::AlreadyHeld(_))), "{of_mine:?}");
    let Ok(Acquired::Granted(lease)) = of_named else { panic!("{of_named:?}") };
    assert_eq!(lease.owner(), Some("somebody"));
    assert!(matches!(of_freed, Ok(Acquired::TokenReleased)), "{of_freed:?}");
    let Ok(Acquired::Granted(lease)) = of_free else { panic!("{of_free:?}") };
    assert_eq!(lease.owner(), None);

    let stranger = Caller::new("named");
    let bad = Caller::new("bad list");
    let callers = [stranger, bad, mine, held, Caller::new("nobody's")];
    let answers = join_all(callers.iter().map(|caller| scene.free(caller, Tombstone::None))).await;
    let [of_stranger, of_bad, of_mine, of_holder, of_nobody] = &answers[..] else { unreachable!() };
    assert_eq!(of_stranger, &Ok(Released::HeldByAnother));
    assert!(matches!(of_bad, Err(StoreError::Unknown(_))), "{of_bad:?}");
    assert_eq!([of_mine, of_holder], [&Ok(Released::Released), &Ok(Released::Released)]);
    assert_eq!(of_nobody, &Ok(Released::NotHeld));
    assert_eq!(scene.marks().await, 1, "only that of the one that was freed at first");
}

/// Marks are left for those that want one, and for no other, and each learns what became of its own lock, whatever the order.
#[tokio::test]
async fn marks_are_left_for_those_that_want_one() {
    let scene = Scene::new().await;
    let callers = Caller::of(MOST);
    let marks = |n: usize| if n.is_multiple_of(3) { Tombstone::Final } else { Tombstone::None };
    // Every fifth does not hold its lock.
    let holds = |n: usize| !n.is_multiple_of(5);
    let holders: Vec<_> = (0..MOST).filter(|n| holds(*n)).map(|n| callers[n].clone()).collect();
    let grants = scene.take_all(&holders).await;
    let mut numbers = grants.iter().map(number);
    let wishes: Vec<_> = callers.iter().cloned().enumerate().map(|(n, caller)| (caller, marks(n))).collect();
    let (releases, calls) = scene.calls("mget", scene.free_all(&wishes)).await;
    assert_eq!(calls, 1);
    for (n, release) in releases.iter().enumerate() {
        let answer = if holds(n) { Released::Released } else { Released::NotHeld };
        let ended = if holds(n) { numbers.next() } else { None };
        assert_eq!(
            (release.answer, release.ended.map(|ended| ended.fencing_token.get())),
            (answer, ended),
            "{n}"
        );
    }
    assert_eq!(scene.marks().await, MOST.div_ceil(3));
    // A token that was freed for good is not granted again, and a release is answered as before; the others may be.
    let again = scene.take_all(&callers).await;
    for (n, answer) in again.iter().enumerate() {
        let is_refused = matches!(answer, Acquired::TokenReleased);
        assert_eq!(is_refused, marks(n) == Tombstone::Final, "{n}: {answer:?}");
    }
    for (n, release) in scene.free_all(&wishes).await.iter().enumerate() {
        let is_final = marks(n) == Tombstone::Final;
        let answer = if is_final && !holds(n) { Released::NotHeld } else { Released::Released };
        assert_eq!(release.answer, answer, "{n}");
    }
}

/// The same release twice at once: one has freed it. With a mark both are told so, without one the other finds nothing.
#[tokio::test]
async fn a_lock_that_is_freed_twice_at_once_is_freed_once() {
    let scene = Scene::new().await;
    for (mark, of_copy) in [(Tombstone::Final, Released::Released), (Tombstone::None, Released::NotHeld)] {
        let twice = Caller::new(format!("twice {mark:?}"));
        let other = Caller::new(format!("other {mark:?}"));
        scene.take_all(&[twice.clone(), other.clone()]).await;
        let copies = [0, 1].map(|_| scene.release(&twice, mark));
        let (copies, of_other) = tokio::join!(join_all(copies), scene.free(&other, mark));
        let copies: Vec<_> = copies.into_iter().map(Result::unwrap).collect();
        assert_eq!([copies[0].answer, copies[1].answer], [Released::Released, of_copy]);
        assert_eq!(copies.iter().filter(|copy| copy.ended.is_some()).count(), 1, "one of them ended it");
        assert_eq!(of_other, Ok(Released::Released));
        assert!(scene.redis.locks().await.is_empty());
    }
}

/// A server without memory grants nothing, and says so to those who would have got a lock; the others are answered.
#[tokio::test]
async fn a_server_without_memory_refuses_and_frees() {
    let scene = Scene::new().await;
    let (held, mine) = (Caller::new("held"), Caller::new("mine"));
    scene.take_all(&[held.clone(), mine.clone()]).await;
    let _: () = scene.redis.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let callers = [Caller::new("held"), Caller::new("free"), Caller::new("free too")];
    let answers = join_all(callers.iter().map(|caller| scene.take(caller))).await;
    assert!(matches!(answers[0], Ok(Acquired::NotTaken(_))), "{:?}", answers[0]);
    for answer in &answers[1..] {
        let Err(StoreError::Unavailable(reason)) = answer else { panic!("{answer:?}") };
        assert!(reason.contains("OOM"), "{reason}");
    }
    let (of_held, of_mine) =
        tokio::join!(scene.free(&held, Tombstone::Final), scene.free(&mine, Tombstone::None));
    assert_eq!((of_held, of_mine), (Ok(Released::Released), Ok(Released::Released)));
    assert_eq!(scene.marks().await, 1);
    let _: () = scene.redis.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
}

/// After a flush those that go together begin the run of numbers anew, and no number is given twice or is smaller.
#[tokio::test]
async fn numbers_go_on_upward_after_a_flush() {
    let scene = Scene::new().await;
    let mut seen = HashSet::new();
    let mut largest = 0;
    for round in 0..10 {
        // New ones: those that were seen without a run are left to the other script for a second.
        let callers: Vec<_> = (0..MOST).map(|n| Caller::new(format!("{round} {n}"))).collect();
        let numbers: Vec<u64> = scene.take_all(&callers).await.iter().map(number).collect();
        assert!(numbers.iter().all(|number| *number > largest), "round {round}: {numbers:?}");
        assert!(numbers.iter().all(|number| seen.insert(*number)), "round {round}: {numbers:?}");
        largest = numbers.into_iter().max().unwrap();
        let _: () = scene.redis.command(&["FLUSHALL"]).await;
    }
}

/// A server that knows no script any more is told its text once more, and does what each asked for once.
#[tokio::test]
async fn a_forgotten_script_is_sent_again_for_all_of_them() {
    let scene = Scene::new().await;
    for round in 0..3 {
        let _: () = scene.redis.command(&["SCRIPT", "FLUSH"]).await;
        let callers: Vec<_> = (0..MOST).map(|n| Caller::new(format!("{round} {n}"))).collect();
        let numbers: BTreeSet<u64> = scene.take_all(&callers).await.iter().map(number).collect();
        assert_eq!(numbers.len(), MOST);
        assert_eq!(
            numbers.last().unwrap() - numbers.first().unwrap(),
            MOST as u64 - 1,
            "none was minted twice"
        );
        let wishes: Vec<_> = callers.into_iter().map(|caller| (caller, Tombstone::None)).collect();
        let _: () = scene.redis.command(&["SCRIPT", "FLUSH"]).await;
        let releases = scene.free_all(&wishes).await;
        assert!(releases.iter().all(|release| release.answer == Released::Released));
    }
}

/// Whoever leaves before the call is made does not take a lock by it.
#[tokio::test]
async fn who_leaves_before_the_call_takes_nothing() {
    let scene = Scene::new().await;
    let (gone, there) = (Caller::new("gone"), Caller::new("there"));
    // Polled once, which has it stand in the queue, and dropped.
    assert!(scene.take(&gone).now_or_never().is_none());
    number(&scene.take(&there).await.unwrap());
    // What is sent later comes later.
    assert_eq!(scene.redis.locks().await.into_keys().collect::<Vec<_>>(), ["there"]);
}

/// Whoever asks for a release and leaves counts on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_before_the_call_has_freed_the_lock() {
    let scene = Scene::new().await;
    let callers = Caller::of(MOST);
    scene.take_all(&callers).await;
    for caller in &callers {
        // On a busy machine the other thread may have it done before this one asks what became of it.
        let freed = scene.free(caller, Tombstone::Final).now_or_never();
        assert!(freed.is_none_or(|freed| freed.is_ok()));
    }
    eventually("all are free", async || scene.redis.locks().await.is_empty()).await;
    assert_eq!(scene.marks().await, MOST);
}

/// With several threads many more go together, each with what is its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_threads_share_calls() {
    const EACH: usize = 50;
    let scene = Arc::new(Scene::new().await);
    let before = scene.redis.calls("mget").await;
    let tasks: Vec<_> = (0..4 * MOST)
        .map(|task| {
            let scene = scene.clone();
            tokio::spawn(async move {
                let mut numbers = Vec::new();
                for round in 0..EACH {
                    let caller = Caller::new(format!("{task} {round}"));
                    let fence = number(&scene.take(&caller).await.unwrap());
                    let release = scene.release(&caller, Tombstone::None).await.unwrap();
                    assert_eq!(release.ended.map(|ended| ended.fencing_token.get()), Some(fence));
                    numbers.push(fence);
                }
                assert!(numbers.is_sorted(), "{numbers:?}");
                numbers
            })
        })
        .collect();
    let mut numbers = HashSet::new();
    for task in tasks {
        for fence in task.await.unwrap() {
            assert!(numbers.insert(fence), "{fence} was given twice");
        }
    }
    let releases = 4 * MOST * EACH;
    assert_eq!(numbers.len(), releases);
    let calls = scene.redis.calls("mget").await - before;
    assert!(calls * 2 < releases as u64, "{calls} calls for {releases} releases");
    assert!(scene.redis.locks().await.is_empty());
}
