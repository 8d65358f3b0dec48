//! What is true of a store in memory alone: whoever asks does the step, and there is no file to come back from.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost::clock::{Clock, SystemClock};
use fencepost::store::embedded::{EmbeddedSettings, EmbeddedStore};
use fencepost::store::{Check, LockStore, StoreError};
use futures_util::FutureExt;
use tokio::time::Instant;

use kit::asking::LockStoreExt;

use super::SetClock;

/// A clock that has a step panic from then on.
#[derive(Clone, Default)]
struct Breaking(Arc<AtomicBool>);

impl Clock for Breaking {
    fn boot(&self) -> Duration {
        assert!(!self.0.load(Ordering::Relaxed), "broken");
        SystemClock.boot()
    }

    fn wall(&self) -> Duration {
        SystemClock.wall()
    }

    fn boot_id(&self) -> String {
        SystemClock.boot_id()
    }
}

fn in_memory(clock: impl Clock) -> EmbeddedStore {
    EmbeddedStore::in_memory(EmbeddedSettings::default(), Arc::new(clock)).unwrap()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn is_refused(answer: &Result<(), StoreError>) -> bool {
    matches!(answer, Err(StoreError::Unavailable(_)))
}

#[tokio::test]
async fn a_store_in_memory_answers_nothing_more_once_a_step_has_panicked() {
    let clock = Breaking::default();
    let store = in_memory(clock.clone());
    store.call(Check, soon()).await.unwrap();
    assert!(store.seems_ready().await);
    clock.0.store(true, Ordering::Relaxed);
    assert!(AssertUnwindSafe(store.call(Check, soon())).catch_unwind().await.is_err());
    clock.0.store(false, Ordering::Relaxed);
    assert!(is_refused(&store.call(Check, soon()).await));
    assert!(!store.seems_ready().await);
}

#[tokio::test]
async fn a_store_in_memory_does_nothing_once_it_is_too_late_or_closed() {
    let store = in_memory(SystemClock);
    assert!(is_refused(&store.call(Check, Instant::now()).await));
    store.call(Check, soon()).await.unwrap();
    store.close().await;
    assert!(is_refused(&store.call(Check, soon()).await));
}

#[tokio::test]
async fn a_store_without_a_number_for_the_next_grant_is_not_ready() {
    let store = in_memory(SetClock(Duration::from_secs(9_007_199_255)));
    assert!(is_refused(&store.call(Check, soon()).await));
}
