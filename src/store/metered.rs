//! A store whose steps are measured.

use std::ops::Deref;
use std::sync::Arc;

use tokio::time::Instant;

use super::{AcquireRequest, Beat, Bucket, KnownTo, LockStore, PlaceAfter, ReleaseMark, Renewer, StoreError};
use crate::lock::{
    Acquired, Attempt, Broken, FencingToken, Inspected, LockKey, Page, Reach, Release, Renewed, TokenHash,
    Ttl, Undone,
};
use crate::telemetry::metrics::{NoAnswer, Step, metrics};
use crate::telemetry::traces::StepSpan;

/// Any store, with a measure on each of its steps. What takes no time worth measuring is the store's own.
///
/// It is no [`LockStore`] itself: behind that trait each step would be boxed twice.
#[derive(Clone)]
pub struct MeteredStore(Arc<dyn LockStore>);

impl MeteredStore {
    /// Measures this store.
    pub fn new(store: Arc<dyn LockStore>) -> Self {
        Self(store)
    }
}

impl Deref for MeteredStore {
    type Target = dyn LockStore;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

/// One line for each step: its method, what it is counted as, and what it takes.
macro_rules! steps {
    ($($method:ident: $step:ident($($name:ident: $kind:ty),*) -> $answer:ty;)+) => {
        impl MeteredStore {
            $(
                #[doc = concat!("[`LockStore::", stringify!($method), "`]")]
                pub async fn $method(&self, $($name: $kind,)* deadline: Instant) -> Result<$answer, StoreError> {
                    measured(Step::$step, self.0.$method($($name,)* deadline)).await
                }
            )+
        }
    };
}

steps! {
    acquire: Acquire(request: &AcquireRequest) -> Acquired;
    renew: Renew(key: &LockKey, token: &TokenHash, ttl: Ttl, by: Renewer) -> Renewed;
    release: Release(key: &LockKey, token: &TokenHash, mark: ReleaseMark) -> Release;
    inspect: Inspect(key: &LockKey, token: Option<&TokenHash>) -> Inspected;
    take_back: TakeBack(key: &LockKey, token: &TokenHash, attempt: Attempt, place: PlaceAfter, known: KnownTo) -> Undone;
    decline: Decline(key: &LockKey, token: &TokenHash, attempt: Attempt) -> ();
    break_lock: Break(key: &LockKey, fence: FencingToken) -> Broken;
    list: List(reach: &Reach, cursor: Option<&str>, limit: usize) -> Page;
    beat: Beat(bucket: Bucket) -> Beat;
    check: Check() -> ();
}

async fn measured<T>(
    step: Step,
    answer: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let span = StepSpan::begin(step);
    let started = Instant::now();
    let answer = answer.await;
    metrics().store_seconds.observe(step, started.elapsed());
    let failure = match &answer {
        Ok(_) => return answer,
        Err(StoreError::Unavailable(_)) => NoAnswer::Unavailable,
        Err(StoreError::Unknown(_)) => NoAnswer::Unknown,
    };
    metrics().store_errors.count(step, failure);
    if let Some(mut span) = span {
        span.failed(failure);
    }
    answer
}
