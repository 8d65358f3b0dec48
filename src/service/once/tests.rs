//! What those who wait for a record are told.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::clock::SystemClock;
use crate::lock::{FencingToken, LeaseToken, LockKey};
use crate::once::{Stored, WorkResult};
use crate::service::crowd::{Next, RecordWaits};
use crate::store::MeteredStore;
use crate::store::embedded::{EmbeddedSettings, EmbeddedStore};

/// A newer request of the same token comes before the older one has read what it was told.
#[tokio::test]
async fn a_result_that_a_waiter_was_told_is_its_answer_whatever_comes_later() {
    let store = EmbeddedStore::in_memory_without_thread(EmbeddedSettings::default(), Arc::new(SystemClock));
    let waits = RecordWaits::start(MeteredStore::new(Arc::new(store)));
    let (Ok(key), Some(number)) = (LockKey::parse(b"k"), FencingToken::new(7)) else { panic!("a bad key") };
    let (token, other) = (LeaseToken::generate(), LeaseToken::generate());
    let enter = |token| waits.enter(&key, Some(token), true, 10);
    let (Some(mut older), Some(mut another)) = (enter(&token), enter(&other)) else { panic!("no room") };
    let result = WorkResult { status: None, content_type: None, body: "done".into() };
    let stored = Stored { fencing_token: number, age_ms: 0, kept_ms: 60_000, fingerprint: None, result };
    another.is_done(Instant::now(), &stored);
    let _newer = enter(&token);
    let told = older.next(Instant::now() + Duration::from_secs(60)).await;
    assert!(matches!(told, Next::Answer(answer) if answer == stored));
}
