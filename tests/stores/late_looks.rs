//! Those who wait for a record learn from each other how far it is. An answer that is late teaches them nothing old.

use std::sync::Arc;
use std::time::Duration;

use fencepost::lock::{FencingToken, LeaseToken, LockKey, Ttl};
use fencepost::once::{Keep, WorkResult};
use fencepost::service::{BeginOutcome, BeginRequest, Beginning, LockService, NotBegun};
use fencepost::store::StoreError;
use tokio::task::JoinHandle;

use kit::network::{Loss, Network};
use kit::stores::AnyStore;
use kit::{PATIENCE, eventually};

const MARK_TTL: Duration = Duration::from_secs(120);

/// A gateway whose answers can be held back, and another one on the same store.
struct Scene {
    network: Arc<Network>,
    here: Arc<LockService>,
    elsewhere: LockService,
}

impl Scene {
    async fn new() -> Self {
        let store = AnyStore::memory_for_records(MARK_TTL, u64::MAX).await;
        let network = Arc::new(Network::before(store.store.clone()));
        let here = Arc::new(LockService::new(network.clone(), PATIENCE, MARK_TTL));
        Self { network, here, elsewhere: LockService::new(store.store.clone(), PATIENCE, MARK_TTL) }
    }

    fn request(token: Option<&LeaseToken>, wait: Duration) -> BeginRequest {
        BeginRequest {
            key: key(),
            token: token.cloned(),
            ttl: Ttl::from_ms(30_000).unwrap(),
            keep: Keep::DEFAULT,
            note: Default::default(),
            fingerprint: None,
            may_take_over: true,
            wait,
        }
    }

    async fn begin_elsewhere(&self, token: &LeaseToken) -> FencingToken {
        let begun = self.elsewhere.begin(Self::request(Some(token), Duration::ZERO)).await.unwrap();
        let BeginOutcome::Granted(place, guard) = begun.outcome else { panic!("{:?}", begun.outcome) };
        guard.disarm();
        place.lease.fencing_token
    }

    /// Waits here, and returns once the store has been asked.
    async fn wait_here(&self, wait: Duration) -> JoinHandle<Result<Beginning, StoreError>> {
        let (here, commands) = (self.here.clone(), self.network.commands());
        let waiting = tokio::spawn(async move { here.begin(Self::request(None, wait)).await });
        eventually("the store is asked", async || self.network.commands() > commands).await;
        waiting
    }

    /// One who waits, and whose first answer comes late; and one who came later, and waits briefly.
    async fn two_who_wait(
        &self,
        second: Loss,
        then: impl AsyncFnOnce(),
    ) -> JoinHandle<Result<Beginning, StoreError>> {
        self.network.lose(&[Loss::HeldBack, second]);
        drop(self.wait_here(4 * PATIENCE).await);
        then().await;
        let brief = self.wait_here(Duration::from_secs(1)).await;
        self.network.bring_answers();
        brief
    }
}

fn key() -> LockKey {
    LockKey::parse(b"k").unwrap()
}

fn own_token() -> LeaseToken {
    LeaseToken::parse(kit::fresh_token().as_bytes()).unwrap()
}

#[tokio::test]
async fn an_answer_that_is_late_hides_no_later_worker_from_those_who_wait() {
    let scene = Scene::new().await;
    let (first, second) = (own_token(), own_token());
    scene.begin_elsewhere(&first).await;
    let mut number = None;
    let brief = scene
        .two_who_wait(Loss::None, async || {
            scene.elsewhere.give_up(&key(), &first, true).await.unwrap();
            number = Some(scene.begin_elsewhere(&second).await);
            // Until the wait of the second is over, no look has an answer but its first.
            scene.network.lose(&[Loss::HeldBack; 100]);
        })
        .await;
    match brief.await.unwrap().unwrap().outcome {
        BeginOutcome::NotBegun(NotBegun::Busy(worker)) => {
            assert_eq!(Some(worker.place.lease.fencing_token), number);
        }
        other => panic!("{other:?}"),
    }
}

/// Whether the second has had an answer of its own before that, or only after.
#[tokio::test]
async fn a_result_that_is_late_is_not_told_to_those_who_came_after_it() {
    for second in [Loss::None, Loss::HeldBack] {
        let scene = Scene::new().await;
        let (first, next) = (own_token(), own_token());
        let number = scene.begin_elsewhere(&first).await;
        let result = WorkResult { status: None, content_type: None, body: "paid".into() };
        scene.elsewhere.store_result(&key(), &first, None, None, result).await.unwrap();
        let brief = scene
            .two_who_wait(second, async || {
                scene.elsewhere.break_record(&key(), number, true).await.unwrap();
                scene.begin_elsewhere(&next).await;
            })
            .await;
        let outcome = brief.await.unwrap().unwrap().outcome;
        assert!(matches!(outcome, BeginOutcome::NotBegun(NotBegun::Busy(_))), "{second:?}: {outcome:?}");
    }
}
