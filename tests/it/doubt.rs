//! What the service makes of commands and answers that get lost: a true answer, or "unknown", and no lock that nobody
//! was told of.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use fencepost::clock::SystemClock;
use fencepost::lock::{Acquired, Attempt, Inspected, LeaseToken, LockKey, Released, Renewed, TokenHash, Ttl};
use fencepost::service::{Acquire, Acquisition, LockService, Outcome, TakeBack};
use fencepost::store::embedded::{EmbeddedSettings, EmbeddedStore};
use fencepost::store::{AcquireRequest, LockStore, ReleaseMark, StoreError};
use tokio::time::Instant;

use crate::support::{PATIENCE, eventually, fresh_token};

/// A store behind a network that loses the next commands, or the answers to the next commands.
struct Lossy {
    store: EmbeddedStore,
    commands: AtomicU32,
    answers: AtomicU32,
}

impl Lossy {
    async fn pass<T>(&self, step: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let is_lost = |left: &AtomicU32| {
            left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
        };
        if is_lost(&self.commands) {
            return Err(StoreError::Unknown("the command was lost".into()));
        }
        let answer = step.await?;
        if is_lost(&self.answers) {
            return Err(StoreError::Unknown("the answer was lost".into()));
        }
        Ok(answer)
    }
}

#[async_trait]
impl LockStore for Lossy {
    async fn acquire(&self, request: &AcquireRequest, deadline: Instant) -> Result<Acquired, StoreError> {
        self.pass(self.store.acquire(request, deadline)).await
    }

    async fn renew(
        &self,
        key: &LockKey,
        token: &TokenHash,
        ttl: Ttl,
        deadline: Instant,
    ) -> Result<Renewed, StoreError> {
        self.pass(self.store.renew(key, token, ttl, deadline)).await
    }

    async fn release(
        &self,
        key: &LockKey,
        token: &TokenHash,
        mark: ReleaseMark,
        deadline: Instant,
    ) -> Result<Released, StoreError> {
        self.pass(self.store.release(key, token, mark, deadline)).await
    }

    async fn take_back(
        &self,
        key: &LockKey,
        token: &TokenHash,
        attempt: Attempt,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        self.pass(self.store.take_back(key, token, attempt, deadline)).await
    }

    async fn inspect(
        &self,
        key: &LockKey,
        token: Option<&TokenHash>,
        deadline: Instant,
    ) -> Result<Inspected, StoreError> {
        self.pass(self.store.inspect(key, token, deadline)).await
    }

    async fn check(&self, deadline: Instant) -> Result<(), StoreError> {
        self.pass(self.store.check(deadline)).await
    }

    async fn close(&self) {
        self.store.close().await;
    }
}

struct Scene {
    network: Arc<Lossy>,
    service: LockService,
    key: LockKey,
}

impl Scene {
    fn new() -> Self {
        Self::on(EmbeddedStore::in_memory(EmbeddedSettings::default(), Arc::new(SystemClock)).unwrap())
    }

    fn on(store: EmbeddedStore) -> Self {
        let network = Arc::new(Lossy { store, commands: AtomicU32::new(0), answers: AtomicU32::new(0) });
        let service = LockService::new(network.clone(), PATIENCE, Duration::from_secs(120));
        Self { network, service, key: LockKey::parse(b"k").unwrap() }
    }

    async fn acquire(&self, token: Option<LeaseToken>) -> Acquisition {
        let ttl = Ttl::from_ms(30_000).unwrap();
        self.service.acquire(Acquire { key: self.key.clone(), token, ttl, owner: None }).await.unwrap()
    }

    async fn grant(&self, token: Option<LeaseToken>) -> (LeaseToken, TakeBack) {
        let acquisition = self.acquire(token).await;
        let Outcome::Granted(_, guard) = acquisition.outcome else { panic!("{:?}", acquisition.outcome) };
        (acquisition.token, guard)
    }

    async fn is_free(&self) -> bool {
        self.service.inspect(&self.key, None).await.unwrap() == Inspected::Free
    }
}

fn own_token() -> Option<LeaseToken> {
    Some(LeaseToken::parse(fresh_token().as_bytes()).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_whose_answer_was_lost_is_voided_and_made_anew() {
    for token in [None, own_token()] {
        let scene = Scene::new();
        scene.network.answers.store(1, Ordering::SeqCst);
        let (token, guard) = scene.grant(token).await;
        guard.disarm();
        assert_eq!(scene.service.release(&scene.key, &token).await, Ok(Released::Released));
        assert!(scene.is_free().await);
    }
}

/// The second copy finds nothing to release, and cannot tell whether the first one did it, unless a mark says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_whose_answer_was_lost_is_answered_by_its_mark_or_unknown() {
    for token in [None, own_token()] {
        let scene = Scene::new();
        let (token, guard) = scene.grant(token).await;
        guard.disarm();
        scene.network.answers.store(1, Ordering::SeqCst);
        let released = scene.service.release(&scene.key, &token).await;
        match token.is_server_made() {
            true => assert!(matches!(released, Err(StoreError::Unknown(_))), "{released:?}"),
            false => assert_eq!(released, Ok(Released::Released)),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_nobody_was_told_of_is_taken_back_however_often_that_fails() {
    for token in [None, own_token()] {
        let scene = Scene::new();
        let (_, guard) = scene.grant(token).await;
        assert!(!scene.is_free().await);
        scene.network.commands.store(3, Ordering::SeqCst);
        drop(guard);
        eventually("three tries are lost", async || scene.network.commands.load(Ordering::SeqCst) == 0).await;
        eventually("the grant is taken back", async || scene.is_free().await).await;
    }
}

/// The program may end right after a client has left: what that client was granted does not outlive it.
#[tokio::test(flavor = "multi_thread")]
async fn closing_waits_for_what_is_being_taken_back() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    let open = || {
        let store = EmbeddedStore::open(&file, EmbeddedSettings::default(), Arc::new(SystemClock)).unwrap();
        Scene::on(store)
    };
    let scene = open();
    let (_, guard) = scene.grant(own_token()).await;
    scene.network.commands.store(3, Ordering::SeqCst);
    drop(guard);
    scene.service.close(PATIENCE).await;
    drop(scene);
    assert!(open().is_free().await);
}
