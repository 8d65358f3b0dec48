//! A network between the service and its store that loses commands and answers, and delivers commands late.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use fencepost::lock::{
    Acquired, Attempt, Broken, FencingToken, Inspected, LockKey, Page, Reach, Release, Renewed, TokenHash,
    Ttl, Undone,
};
use fencepost::store::{
    AcquireRequest, Beat, Bucket, Hint, KnownTo, LockStore, PlaceAfter, ReleaseMark, Renewer, StoreError,
};
use futures_util::future::BoxFuture;
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::PATIENCE;

/// What happens to one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    None,
    /// The store never hears of it.
    Command,
    /// It certainly does not reach the store, and its sender knows.
    Refused,
    /// The store acts on it, and its answer is lost.
    Answer,
    /// Its sender waits no longer, and the store is given it when the test says so.
    Late,
}

pub struct Network {
    store: Arc<dyn LockStore>,
    losses: Mutex<VecDeque<Loss>>,
    late: Mutex<Vec<BoxFuture<'static, ()>>>,
    outage: Mutex<Option<Loss>>,
    repeats_puts: AtomicBool,
    commands: AtomicU64,
}

impl Network {
    pub fn before(store: Arc<dyn LockStore>) -> Self {
        Self {
            store,
            losses: Mutex::default(),
            late: Mutex::default(),
            outage: Mutex::default(),
            repeats_puts: AtomicBool::new(false),
            commands: AtomicU64::new(0),
        }
    }

    /// What happens to all commands from now on.
    pub fn lose_all(&self, loss: Loss) {
        *self.outage.lock().unwrap() = Some(loss);
    }

    pub fn works_again(&self) {
        *self.outage.lock().unwrap() = None;
    }

    /// From now on a proxy repeats each PUT, so that its acquire is followed by another one of the same token.
    pub fn repeat_puts(&self) {
        self.repeats_puts.store(true, Ordering::SeqCst);
    }

    /// How many commands were sent, lost ones included.
    pub fn commands(&self) -> u64 {
        self.commands.load(Ordering::SeqCst)
    }

    /// What happens to the next commands, one after the other.
    pub fn lose(&self, losses: &[Loss]) {
        self.losses.lock().unwrap().extend(losses);
    }

    /// How many losses have not happened yet.
    pub fn losses_left(&self) -> usize {
        self.losses.lock().unwrap().len()
    }

    /// Gives the store what is late; fails the test where nothing is.
    pub async fn deliver_late(&self) {
        let late = std::mem::take(&mut *self.late.lock().unwrap());
        assert!(!late.is_empty(), "nothing is late");
        for command in late {
            command.await;
        }
    }

    async fn pass<T, F>(&self, command: impl FnOnce(Arc<dyn LockStore>) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        self.commands.fetch_add(1, Ordering::SeqCst);
        let outage = *self.outage.lock().unwrap();
        let loss = outage.or_else(|| self.losses.lock().unwrap().pop_front());
        let step = command(self.store.clone());
        match loss {
            None | Some(Loss::None) => step.await,
            Some(Loss::Refused) => Err(StoreError::Unavailable("the store is out of reach".into())),
            Some(Loss::Command) => Err(StoreError::Unknown("the command was lost".into())),
            Some(Loss::Answer) => {
                step.await?;
                Err(StoreError::Unknown("the answer was lost".into()))
            }
            Some(Loss::Late) => {
                self.late.lock().unwrap().push(Box::pin(async move { drop(step.await) }));
                Err(StoreError::Unknown("the command is late".into()))
            }
        }
    }
}

/// The sender's deadline is not the store's: what is late has outlived it.
fn later() -> Instant {
    Instant::now() + PATIENCE
}

#[async_trait]
impl LockStore for Network {
    async fn acquire(&self, request: &AcquireRequest, _: Instant) -> Result<Acquired, StoreError> {
        let request = request.clone();
        let is_repeated = self.repeats_puts.load(Ordering::SeqCst);
        let acquire = |store: Arc<dyn LockStore>| async move {
            let answer = store.acquire(&request, later()).await?;
            if is_repeated {
                let ttl = Ttl::from_ms(30_000).unwrap();
                let second = || AcquireRequest { attempt: Attempt::generate(), ttl, ..request.clone() };
                // A lease that ends just then may leave the second one in doubt, and the proxy repeats it once more.
                if store.acquire(&second(), later()).await.is_err() {
                    store.acquire(&second(), later()).await?;
                }
            }
            Ok(answer)
        };
        self.pass(acquire).await
    }

    async fn renew(
        &self,
        key: &LockKey,
        token: &TokenHash,
        ttl: Ttl,
        by: Renewer,
        _: Instant,
    ) -> Result<Renewed, StoreError> {
        let (key, token) = (key.clone(), *token);
        self.pass(|store| async move { store.renew(&key, &token, ttl, by, later()).await }).await
    }

    async fn release(
        &self,
        key: &LockKey,
        token: &TokenHash,
        mark: ReleaseMark,
        _: Instant,
    ) -> Result<Release, StoreError> {
        let (key, token) = (key.clone(), *token);
        self.pass(|store| async move { store.release(&key, &token, mark, later()).await }).await
    }

    async fn take_back(
        &self,
        key: &LockKey,
        token: &TokenHash,
        attempt: Attempt,
        place: PlaceAfter,
        known: KnownTo,
        _: Instant,
    ) -> Result<Undone, StoreError> {
        let (key, token) = (key.clone(), *token);
        self.pass(|store| async move { store.take_back(&key, &token, attempt, place, known, later()).await })
            .await
    }

    async fn decline(
        &self,
        key: &LockKey,
        token: &TokenHash,
        attempt: Attempt,
        _: Instant,
    ) -> Result<(), StoreError> {
        let (key, token) = (key.clone(), *token);
        self.pass(|store| async move { store.decline(&key, &token, attempt, later()).await }).await
    }

    fn bucket_of(&self, key: &LockKey) -> Bucket {
        self.store.bucket_of(key)
    }

    async fn beat(&self, bucket: Bucket, _: Instant) -> Result<Beat, StoreError> {
        self.pass(|store| async move { store.beat(bucket, later()).await }).await
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.store.hints()
    }

    async fn inspect(
        &self,
        key: &LockKey,
        token: Option<&TokenHash>,
        _: Instant,
    ) -> Result<Inspected, StoreError> {
        let (key, token) = (key.clone(), token.copied());
        self.pass(|store| async move { store.inspect(&key, token.as_ref(), later()).await }).await
    }

    async fn break_lock(&self, key: &LockKey, fence: FencingToken, _: Instant) -> Result<Broken, StoreError> {
        let key = key.clone();
        self.pass(|store| async move { store.break_lock(&key, fence, later()).await }).await
    }

    async fn list(
        &self,
        reach: &Reach,
        cursor: Option<&str>,
        limit: usize,
        _: Instant,
    ) -> Result<Page, StoreError> {
        let (reach, cursor) = (reach.clone(), cursor.map(str::to_owned));
        self.pass(|store| async move { store.list(&reach, cursor.as_deref(), limit, later()).await }).await
    }

    async fn check(&self, _: Instant) -> Result<(), StoreError> {
        self.pass(|store| async move { store.check(later()).await }).await
    }

    async fn close(&self) {
        self.store.close().await;
    }
}
