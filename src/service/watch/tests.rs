#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on must fail")]

use std::future::poll_fn;
use std::sync::atomic::AtomicUsize;
use std::task::Waker;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::broadcast;
use tokio::time::timeout;

use super::super::{AcquireRequest, Outcome};
use super::*;
use crate::clock::SystemClock;
use crate::lock::{Lease, Reach, Ttl};
use crate::store::embedded::{EmbeddedSettings, EmbeddedStore};
use crate::store::{
    Bucket, Heard, Hint, LineSettings, LockStore, PeerBus, Replying, Request, StoreError, Topic,
};

fn store() -> EmbeddedStore {
    let mark_ttl = Duration::from_secs(60);
    let settings = EmbeddedSettings { mark_ttl, line: LineSettings::default(), once_memory_bytes: 1 << 20 };
    EmbeddedStore::in_memory_without_thread(settings, Arc::new(SystemClock))
}

async fn watching(watch: &Arc<Watch>, prefix: &str, after: Option<&str>) -> Watching {
    watching_wanted(watch, Wanted::reach(Reach::all(prefix)), after).await
}

async fn watching_wanted(watch: &Arc<Watch>, wanted: Wanted, after: Option<&str>) -> Watching {
    let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
    let deadline = Instant::now() + Duration::from_secs(1);
    match watch.clone().enter(wanted, after, permit, deadline).await {
        Ok(Watched::Watching(watching)) => watching,
        _ => panic!("it may not watch"),
    }
}

#[tokio::test]
async fn a_stream_that_has_ended_does_not_go_on_when_its_key_is_for_other_locks() {
    let watch = Watch::new(MeteredStore::new(Arc::new(store())), Duration::from_secs(1));
    let mut watching = watching(&watch, "a", None).await;
    let other = Wanted::reach(Reach::all("b"));
    watch.state.lock().subscribers.end_all();
    watching.change(other);
    let mut context = Context::from_waker(Waker::noop());
    assert!(matches!(watching.poll_told(&mut context), Poll::Ready(None)), "it has not ended");
    let selection = Selection::Prefix("b".to_owned());
    assert!(!watch.state.lock().subscribers.follows(&selection, boottime()), "it is followed");
}

/// Nothing of it was followed for a while, although another one watched other locks all the time.
#[tokio::test]
async fn each_one_who_comes_back_to_what_was_not_followed_meanwhile_looks() {
    let watch = Watch::new(MeteredStore::new(Arc::new(store())), Duration::from_secs(1));
    let _others = watching(&watch, "others", None).await;
    let gone = watching(&watch, "own", None).await;
    let last = watch.ids.of(watch.state.lock().memory.last(), &gone.wanted.name);
    drop(gone);
    let mut goes_on = watching(&watch, "own", Some(&last)).await;
    watch.tell(&key("own"), || Doing::Unclear);
    assert_eq!(first(&mut goes_on).await, (Some(key("own")), News::Resync), "it was followed until now");
    drop(goes_on);
    watch.state.lock().subscribers.tidy(boottime() + Duration::from_secs(60));
    for _ in 0..2 {
        let mut back = watching(&watch, "own", Some(&last)).await;
        assert_eq!(first(&mut back).await, (None, News::Resync));
    }
}

fn key(name: &str) -> LockKey {
    LockKey::parse(name.as_bytes()).unwrap()
}

/// What one who watches is told next.
async fn next(watching: &mut Watching) -> Vec<Arc<Told>> {
    let told = timeout(Duration::from_secs(10), poll_fn(|context| watching.poll_told(context))).await;
    told.expect("nothing is told").expect("the stream ends")
}

async fn first(watching: &mut Watching) -> (Option<LockKey>, News) {
    let told = next(watching).await;
    (told[0].key.clone(), told[0].news.clone())
}

/// A store that says nothing of some locks, and whose lists come when they may.
struct Reluctant {
    store: EmbeddedStore,
    lists: AtomicUsize,
    may_list: Semaphore,
}

impl Reluctant {
    fn new() -> Arc<Self> {
        Arc::new(Self { store: store(), lists: AtomicUsize::new(0), may_list: Semaphore::new(0) })
    }

    /// Holds a lock of which no watcher is told.
    async fn holds(self: &Arc<Self>, key: LockKey, ttl_ms: u64) -> Lease {
        let service = LockService::new(self.clone(), Duration::from_secs(1), Duration::from_secs(60));
        let request = AcquireRequest {
            key,
            token: None,
            ttl: Ttl::from_ms(ttl_ms).unwrap(),
            note: Default::default(),
            wait: Duration::ZERO,
            terms: Default::default(),
            tenant: Default::default(),
        };
        let Outcome::Granted(lease, guard, ..) = service.acquire(request).await.unwrap().outcome else {
            panic!("it is not granted")
        };
        guard.disarm();
        lease
    }
}

impl LockStore for Reluctant {
    fn run<'a>(&'a self, request: &'a Request, deadline: Instant) -> Replying<'a> {
        match request {
            Request::Inspect(inspect) if inspect.key.as_str().starts_with("bad") => async move {
                tokio::time::sleep_until(deadline).await;
                Err(StoreError::Unavailable("it is away".to_owned()))
            }
            .boxed(),
            Request::List(_) => {
                self.lists.fetch_add(1, Ordering::Relaxed);
                let list = async move { drop(self.may_list.acquire().await) };
                list.then(move |()| self.store.run(request, deadline)).boxed()
            }
            _ => self.store.run(request, deadline),
        }
    }

    fn bucket_of(&self, key: &LockKey) -> Bucket {
        self.store.bucket_of(key)
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.store.hints()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.store.close()
    }
}

/// Else a store with many locks would be gone through for one after the other, and the ends of leases would not be told
/// meanwhile.
#[tokio::test]
async fn one_list_is_for_all_who_began_to_watch_meanwhile() {
    let store = Reluctant::new();
    let held = (0..50).map(|n| (format!("p{n}/"), key(&format!("p{n}/lock"))));
    let watch = Watch::new(MeteredStore::new(store.clone()), Duration::from_secs(1));
    let mut open = vec![watching(&watch, "first", None).await];
    while store.lists.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    for (prefix, key) in held {
        store.holds(key, 3_600_000).await;
        open.push(watching(&watch, &prefix, None).await);
    }
    store.may_list.close();
    // Once all are followed, each end of a lease has its timer.
    while watch.state.lock().view.next_look().is_none() {
        tokio::task::yield_now().await;
    }
    assert_eq!(store.lists.load(Ordering::Relaxed), 2);
    let State { view, .. } = &mut *watch.state.lock();
    let ends = std::iter::from_fn(|| view.take_due(boottime() + Duration::from_secs(3_601), |_| true));
    assert_eq!(ends.take(100).count(), 50);
}

/// Each look at one of them takes as long as it may, as at a server that is away.
#[tokio::test]
async fn the_end_of_a_lease_is_told_beside_many_locks_that_cannot_be_looked_at() {
    let store = Reluctant::new();
    let watch = Watch::new(MeteredStore::new(store.clone()), Duration::from_secs(1));
    let mut open = Vec::new();
    for n in 0..1_000 {
        open.push(watching_wanted(&watch, Wanted::key(key(&format!("bad{n}"))), None).await);
    }
    let mut good = watching_wanted(&watch, Wanted::key(key("good")), None).await;
    let lease = store.holds(key("good"), 1_500).await;
    watch.tell(&key("good"), || Doing::Granted(lease));
    let is_end = |told: &Arc<Told>| matches!(told.news, News::Expired(_));
    while !next(&mut good).await.iter().any(is_end) {}
}

/// A store whose peer bus keeps little, and may be forbidden.
struct OnBus {
    store: EmbeddedStore,
    heard: broadcast::Sender<Heard>,
    may_listen: AtomicBool,
}

impl LockStore for OnBus {
    fn run<'a>(&'a self, request: &'a Request, deadline: Instant) -> Replying<'a> {
        self.store.run(request, deadline)
    }

    fn bucket_of(&self, key: &LockKey) -> Bucket {
        self.store.bucket_of(key)
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.store.hints()
    }

    fn peers(&self) -> Option<&dyn PeerBus> {
        Some(self)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.store.close()
    }
}

#[async_trait]
impl PeerBus for OnBus {
    fn tell(&self, _: Topic, _: String) {}

    fn heard(&self) -> broadcast::Receiver<Heard> {
        self.heard.subscribe()
    }

    async fn listen(&self, _: Instant) -> Result<(), StoreError> {
        let may_listen = self.may_listen.load(Ordering::Acquire);
        may_listen.then_some(()).ok_or_else(|| StoreError::Unavailable("it is forbidden".to_owned()))
    }

    fn stop_listening(&self) {}
}

/// Else an open stream would tell nothing of what other gateways do.
#[tokio::test]
async fn streams_end_though_the_word_that_others_are_heard_no_more_was_skipped() {
    const ROOM: usize = 4;
    let heard = broadcast::Sender::new(ROOM);
    let bus = Arc::new(OnBus { store: store(), heard, may_listen: AtomicBool::new(true) });
    let watch = Watch::new(MeteredStore::new(bus.clone()), Duration::from_secs(1));
    let mut watching = watching(&watch, "", None).await;
    bus.may_listen.store(false, Ordering::Release);
    for heard in std::iter::once(Heard::Deaf).chain(std::iter::repeat_n(Heard::Connected, ROOM)) {
        bus.heard.send(heard).unwrap();
    }
    let ends = async { while poll_fn(|context| watching.poll_told(context)).await.is_some() {} };
    timeout(Duration::from_secs(10), ends).await.expect("the streams go on");
}
