//! Begins and results that go to Redis as one call.

use bytes::Bytes;

use fencepost::lock::FencingToken;
use fencepost::once::{Begun, Keep, NotWorker, RecordView, Storing, WorkResult, WorkState};
use fencepost::store::{Begin, LookAtRecord, StoreResult};

use super::*;

/// Longer than any that shares a call.
const LONG: usize = 5_000;

fn record(key: &str) -> String {
    format!("fencepost:{{0}}:once:{key}")
}

fn result_of(body: &[u8]) -> WorkResult {
    WorkResult { status: None, content_type: None, body: Bytes::copy_from_slice(body) }
}

impl Scene {
    async fn begin(&self, caller: &Caller) -> Result<Begun, StoreError> {
        let begin = Begin {
            key: LockKey::parse(caller.key.as_bytes()).unwrap(),
            token: caller.token,
            attempt: Attempt::generate(),
            ttl: Ttl::from_ms(30_000).unwrap(),
            keep: Keep::DEFAULT,
            note: caller.note.clone(),
            fingerprint: None,
            may_take_over: true,
            only_confirms: false,
        };
        self.store.call(begin, deadline()).await
    }

    async fn begin_all(&self, callers: &[Caller]) -> Vec<Begun> {
        let answers = join_all(callers.iter().map(|caller| self.begin(caller))).await;
        answers.into_iter().map(Result::unwrap).collect()
    }

    async fn post(&self, caller: &Caller, result: &WorkResult) -> Result<Storing, StoreError> {
        let (key, result) = (LockKey::parse(caller.key.as_bytes()).unwrap(), result.clone());
        let post = StoreResult { key, token: caller.token, fence: None, keep: None, result };
        self.store.call(post, deadline()).await
    }

    async fn post_all(&self, callers: &[Caller], result: &WorkResult) -> Vec<Storing> {
        let answers = join_all(callers.iter().map(|caller| self.post(caller, result))).await;
        answers.into_iter().map(Result::unwrap).collect()
    }

    async fn seen(&self, key: &str) -> Option<RecordView> {
        let look = LookAtRecord { key: LockKey::parse(key.as_bytes()).unwrap(), token: None };
        self.store.call(look, deadline()).await.unwrap()
    }
}

fn granted(answer: &Begun) -> FencingToken {
    match answer {
        Begun::Granted(place) => place.lease.fencing_token,
        other => panic!("not granted: {other:?}"),
    }
}

fn stored(answer: &Storing) -> FencingToken {
    match answer {
        Storing::Stored { fencing_token, is_late: false, .. } => *fencing_token,
        other => panic!("not stored: {other:?}"),
    }
}

/// As many as may go together are one call each way, and one more is a call more. A long result has a call of its own.
#[tokio::test]
async fn begins_that_are_ready_at_once_are_one_call_and_so_are_results() {
    let scene = Scene::new().await;
    for (many, calls) in [(1, 1), (2, 1), (MOST, 1), (MOST + 1, 2), (3 * MOST, 3)] {
        let callers: Vec<_> = (0..many).map(|n| Caller::new(format!("{many} {n}"))).collect();
        // Each call looks once whether all of its records are new.
        let (answers, begins) = scene.calls("exists", scene.begin_all(&callers)).await;
        let numbers: BTreeSet<_> = answers.iter().map(granted).collect();
        assert_eq!(numbers.len(), many, "each has a number of its own");
        let result = result_of(format!("{many}").as_bytes());
        let (stores, posts) = scene.calls("time", scene.post_all(&callers, &result)).await;
        assert!(stores.iter().map(stored).eq(answers.iter().map(granted)), "each has its own number");
        let (answers, replays) = scene.calls("exists", scene.begin_all(&callers)).await;
        let replayed = |answer: &Begun| matches!(answer, Begun::Done(done) if done.result == result);
        assert!(answers.iter().all(replayed), "{answers:?}");
        assert_eq!((begins, posts, replays), (calls, calls, calls), "{many} at once");
    }
    let callers = Caller::of(MOST);
    scene.begin_all(&callers).await;
    let (_, posts) = scene.calls("time", scene.post_all(&callers, &result_of(&[b'x'; LONG]))).await;
    assert_eq!(posts, MOST as u64, "long results share no call");
}

/// One record that many begin at once is granted once, and the others learn who works.
#[tokio::test]
async fn one_record_is_granted_to_one_of_those_that_go_together() {
    let scene = Scene::new().await;
    for round in 0..20 {
        let key = format!("k{round}");
        let mut callers: Vec<_> = (0..MOST / 2).map(|_| Caller::new(&*key)).collect();
        callers.extend((0..MOST / 2).map(|n| Caller::new(format!("{key} {n}"))));
        let answers = scene.begin_all(&callers).await;
        let (of_one, of_others) = answers.split_at(MOST / 2);
        let fence = granted(&of_one[0]);
        for answer in &of_one[1..] {
            assert!(matches!(answer, Begun::Busy(at) if at.place.lease.fencing_token == fence), "{answer:?}");
        }
        for answer in of_others {
            granted(answer);
        }
        let stores = scene.post_all(&callers, &result_of(b"done")).await;
        assert_eq!(stored(&stores[0]), fence);
        for answer in &stores[1..MOST / 2] {
            let superseded = Storing::Refused(NotWorker::Superseded { fencing_token: fence, is_done: true });
            assert_eq!(*answer, superseded);
        }
    }
}

/// Whatever stands in the way of one is nobody else's business: each is answered as if it were alone.
#[tokio::test]
async fn what_stops_one_begin_or_result_stops_no_other() {
    let scene = Scene::new().await;
    let [done, mine, busy] = ["done", "mine", "busy"].map(Caller::new);
    scene.begin_all(&[done.clone(), mine.clone(), busy]).await;
    stored(&scene.post(&done, &result_of(b"it")).await.unwrap());
    let _: i64 = scene.redis.command(&["RPUSH", &record("list"), "x"]).await;
    let _: () = scene.redis.command(&["SET", &record("foreign"), "x"]).await;
    let callers =
        ["list", "done", "foreign", "busy", "free"].map(Caller::new).into_iter().chain([mine.clone()]);
    let callers: Vec<_> = callers.collect();
    let answers = join_all(callers.iter().map(|caller| scene.begin(caller))).await;
    let [of_list, of_done, of_foreign, of_busy, of_free, of_mine] = &answers[..] else { unreachable!() };
    assert!(matches!(of_list, Err(StoreError::Unknown(_))), "{of_list:?}");
    assert!(matches!(of_done, Ok(Begun::Done(_))), "{of_done:?}");
    assert!(matches!(of_foreign, Err(StoreError::Unavailable(_))), "{of_foreign:?}");
    assert!(matches!(of_busy, Ok(Begun::Busy(_))), "{of_busy:?}");
    assert!(matches!(of_free, Ok(Begun::Granted(_))), "{of_free:?}");
    assert!(matches!(of_mine, Ok(Begun::Continued(_))), "{of_mine:?}");

    let own = result_of(b"own");
    let answers = join_all(callers.iter().map(|caller| scene.post(caller, &own))).await;
    let [of_list, of_done, of_foreign, of_busy, of_free, of_mine] = &answers[..] else { unreachable!() };
    assert!(matches!(of_list, Err(StoreError::Unknown(_))), "{of_list:?}");
    assert!(matches!(of_foreign, Err(StoreError::Unavailable(_))), "{of_foreign:?}");
    for refused in [of_done, of_busy] {
        let is_superseded = matches!(refused, Ok(Storing::Refused(NotWorker::Superseded { .. })));
        assert!(is_superseded, "{refused:?}");
    }
    for answer in [of_free, of_mine] {
        stored(answer.as_ref().unwrap());
    }
}

/// A server without memory lets nobody begin, and each worker can store a short result.
#[tokio::test]
async fn a_server_without_memory_stores_short_results() {
    let scene = Scene::new().await;
    let callers = Caller::of(4);
    scene.begin_all(&callers).await;
    let _: () = scene.redis.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let (long, short) = (result_of(&[b'x'; 2_000]), result_of(b"done"));
    let results = [&long, &short, &long, &short];
    let begins = ["new", "newer"].map(Caller::new);
    let (begun, posted) = tokio::join!(
        join_all(begins.iter().map(|caller| scene.begin(caller))),
        join_all(callers.iter().zip(results).map(|(caller, result)| scene.post(caller, result))),
    );
    for answer in begun {
        let Err(StoreError::Unavailable(reason)) = &answer else { panic!("{answer:?}") };
        assert!(reason.contains("OOM"), "{reason}");
    }
    stored(posted[1].as_ref().unwrap());
    stored(posted[3].as_ref().unwrap());
    assert_eq!(posted[0], Ok(Storing::NearlyFull), "no result before it had written anything");
    let _: () = scene.redis.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
}

/// Whoever leaves before the call is made begins nothing by it, and has stored what it sent.
#[tokio::test]
async fn who_leaves_before_the_call_begins_nothing_and_has_stored() {
    let scene = Scene::new().await;
    let (gone, there) = (Caller::new("gone"), Caller::new("there"));
    assert!(scene.begin(&gone).now_or_never().is_none());
    granted(&scene.begin(&there).await.unwrap());
    assert_eq!(scene.seen("gone").await, None);
    assert!(scene.post(&there, &result_of(b"done")).now_or_never().is_none());
    eventually("it is stored", async || {
        scene.seen("there").await.is_some_and(|seen| seen.state == WorkState::Done)
    })
    .await;
}

/// After a flush those that begin together begin the run of numbers anew, and no number is given twice or is smaller.
#[tokio::test]
async fn numbers_of_records_go_on_upward_after_a_flush() {
    let scene = Scene::new().await;
    let mut largest = None;
    for _ in 0..10 {
        let numbers: BTreeSet<_> = scene.begin_all(&Caller::of(MOST)).await.iter().map(granted).collect();
        assert_eq!(numbers.len(), MOST);
        assert!(numbers.first().copied() > largest, "{numbers:?}");
        largest = numbers.last().copied();
        let _: () = scene.redis.command(&["FLUSHALL"]).await;
    }
}
