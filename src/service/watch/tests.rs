#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on must fail")]

use std::future::poll_fn;
use std::task::Waker;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use tokio::sync::broadcast;
use tokio::time::timeout;

use super::*;
use crate::clock::SystemClock;
use crate::lock::Reach;
use crate::store::embedded::{EmbeddedSettings, EmbeddedStore};
use crate::store::{
    Bucket, Heard, Hint, LineSettings, LockStore, PeerBus, Replying, Request, StoreError, Topic,
};

fn store() -> EmbeddedStore {
    let mark_ttl = Duration::from_secs(60);
    let settings = EmbeddedSettings { mark_ttl, line: LineSettings::default(), once_memory_bytes: 1 << 20 };
    EmbeddedStore::in_memory_without_thread(settings, Arc::new(SystemClock))
}

async fn watching(watch: &Arc<Watch>, prefix: &str) -> Watching {
    let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
    let deadline = Instant::now() + Duration::from_secs(1);
    let wanted = Wanted::reach(Reach::all(prefix));
    match watch.clone().enter(wanted, None, permit, deadline).await {
        Ok(Watched::Watching(watching)) => watching,
        _ => panic!("it may not watch"),
    }
}

#[tokio::test]
async fn a_stream_that_has_ended_does_not_go_on_when_its_key_is_for_other_locks() {
    let watch = Watch::new(MeteredStore::new(Arc::new(store())), Duration::from_secs(1));
    let mut watching = watching(&watch, "a").await;
    let other = Wanted::reach(Reach::all("b"));
    watch.state.lock().subscribers.end_all();
    watching.change(other.clone());
    let mut context = Context::from_waker(Waker::noop());
    assert!(matches!(watching.poll_told(&mut context), Poll::Ready(None)), "it has not ended");
    assert!(!watch.state.lock().subscribers.has_followed(&other, boottime()), "it is not followed");
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
    let mut watching = watching(&watch, "").await;
    bus.may_listen.store(false, Ordering::Release);
    for heard in std::iter::once(Heard::Deaf).chain(std::iter::repeat_n(Heard::Connected, ROOM)) {
        bus.heard.send(heard).unwrap();
    }
    let ends = async { while poll_fn(|context| watching.poll_told(context)).await.is_some() {} };
    timeout(Duration::from_secs(10), ends).await.expect("the streams go on");
}
