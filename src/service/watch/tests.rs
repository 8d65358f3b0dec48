#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::task::Waker;

use super::*;
use crate::clock::SystemClock;
use crate::lock::Reach;
use crate::store::LineSettings;
use crate::store::embedded::{EmbeddedSettings, EmbeddedStore};

#[tokio::test]
async fn a_stream_that_has_ended_does_not_go_on_when_its_key_is_for_other_locks() {
    let mark_ttl = Duration::from_secs(60);
    let settings = EmbeddedSettings { mark_ttl, line: LineSettings::default(), once_memory_bytes: 1 << 20 };
    let store = EmbeddedStore::in_memory_without_thread(settings, Arc::new(SystemClock));
    let watch = Watch::new(MeteredStore::new(Arc::new(store)), Duration::from_secs(1));
    let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
    let wanted = |prefix: &str| Wanted::reach(Reach::all(prefix));
    let deadline = Instant::now() + Duration::from_secs(1);
    let Ok(Watched::Watching(mut watching)) = watch.clone().enter(wanted("a"), None, permit, deadline).await
    else {
        panic!("it may not watch");
    };
    watch.state.lock().subscribers.end_all();
    watching.change(wanted("b"));
    let mut context = Context::from_waker(Waker::noop());
    assert!(matches!(watching.poll_told(&mut context), Poll::Ready(None)), "it has not ended");
    assert!(!watch.state.lock().subscribers.has_followed(&wanted("b"), boottime()), "it is not followed");
}
