//! An answer that is late tells nothing old. A look tells of no lease that is over by then. Those who wait for a record learn from
//! each other how far it is, and nothing of what was before they came.

use std::sync::Arc;
use std::time::Duration;

use fencepost::lock::{FencingToken, Inspected, LeaseToken, LockKey, Slots, Terms, Ttl};
use fencepost::once::{Keep, WorkResult, WorkState};
use fencepost::service::{
    AcquireRequest, BeginOutcome, BeginRequest, Beginning, LockService, NotBegun, Outcome, Tenant,
};
use fencepost::store::StoreError;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use kit::network::{Loss, Network};
use kit::stores::AnyStore;
use kit::{PATIENCE, eventually};

const MARK_TTL: Duration = Duration::from_secs(120);
/// A lease that is over before the answer comes, and the time until then.
const SHORT_MS: u64 = 1_000;
const LATE: Duration = Duration::from_millis(1_100);

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
            account: None,
        }
    }

    /// Takes a slot of the lock, or all of it, for so long.
    async fn take_elsewhere(&self, token: &LeaseToken, slots: u16, ttl_ms: u64) {
        let request = AcquireRequest {
            key: key(),
            token: Some(token.clone()),
            ttl: Ttl::from_ms(ttl_ms).unwrap(),
            note: Default::default(),
            wait: Duration::ZERO,
            terms: Terms { slots: Slots::new(slots).unwrap(), ..Terms::default() },
            tenant: Tenant::default(),
        };
        let taken = self.elsewhere.acquire(request).await.unwrap();
        let Outcome::Granted(_, guard, ..) = taken.outcome else { panic!("{:?}", taken.outcome) };
        guard.disarm();
    }

    /// What a look is told whose first answer comes late.
    async fn late<T: Send + 'static>(
        &self,
        look: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let commands = self.network.commands();
        self.network.lose(&[Loss::HeldBack]);
        let look = tokio::spawn(look);
        eventually("the store is asked", async || self.network.commands() > commands).await;
        sleep(LATE).await;
        self.network.bring_answers();
        look.await.unwrap()
    }

    async fn begin_elsewhere(&self, token: &LeaseToken) -> FencingToken {
        self.begin_elsewhere_for(token, 30_000).await
    }

    async fn begin_elsewhere_for(&self, token: &LeaseToken, ttl_ms: u64) -> FencingToken {
        let ttl = Ttl::from_ms(ttl_ms).unwrap();
        let request = BeginRequest { ttl, ..Self::request(Some(token), Duration::ZERO) };
        let begun = self.elsewhere.begin(request).await.unwrap();
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

#[tokio::test]
async fn a_lease_that_is_over_when_the_answer_comes_is_not_told_to_those_who_look() {
    for is_own in [false, true] {
        let (scene, holder) = (Scene::new().await, own_token());
        let token = is_own.then(|| holder.clone());
        let (here, shown) = (scene.here.clone(), token.clone());
        scene.take_elsewhere(&holder, 1, SHORT_MS).await;
        let seen = scene.late(async move { here.inspect(&key(), shown.as_ref()).await }).await;
        assert!(matches!(seen, Ok(Inspected::Free { .. })), "{is_own}: {seen:?}");
        // Where no time is left to look again, nothing is said.
        let hasty = LockService::new(scene.network.clone(), LATE / 2, MARK_TTL);
        scene.take_elsewhere(&own_token(), 1, SHORT_MS).await;
        let seen = scene.late(async move { hasty.inspect(&key(), token.as_ref()).await }).await;
        match seen {
            Err(StoreError::Unavailable(_)) => assert!(!is_own),
            Err(StoreError::Unknown(_)) => assert!(is_own),
            other => panic!("{is_own}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_lease_that_still_runs_when_the_answer_comes_is_told_by_what_is_left_of_it() {
    let (scene, short, long) = (Scene::new().await, own_token(), own_token());
    scene.take_elsewhere(&short, 2, SHORT_MS).await;
    scene.take_elsewhere(&long, 2, 30_000).await;
    let (here, token) = (scene.here.clone(), long.clone());
    let seen = scene.late(async move { here.inspect(&key(), Some(&token)).await }).await.unwrap();
    let Inspected::Held { lease, yours: Some(true), sharing: Some(sharing), .. } = seen else {
        panic!("{seen:?}")
    };
    assert!(lease.left_ms <= 29_000, "{lease:?}");
    let [first, second] = &sharing.holders[..] else { panic!("{sharing:?}") };
    assert_eq!((sharing.held, first.left_ms, second.fencing_token), (2, 1, lease.fencing_token));
    assert!(second.left_ms <= 29_000, "{second:?}");
}

#[tokio::test]
async fn a_worker_whose_lease_is_over_when_the_answer_comes_is_not_said_to_be_at_work() {
    for is_own in [false, true] {
        let (scene, worker) = (Scene::new().await, own_token());
        let (here, token) = (scene.here.clone(), is_own.then(|| worker.clone()));
        scene.begin_elsewhere_for(&worker, SHORT_MS).await;
        let seen = scene.late(async move { here.look_at_record(&key(), token.as_ref()).await }).await;
        assert_eq!(seen.unwrap().unwrap().state, WorkState::Lapsed, "{is_own}");
    }
    let (scene, worker) = (Scene::new().await, own_token());
    let here = scene.here.clone();
    scene.begin_elsewhere(&worker).await;
    let seen = scene.late(async move { here.look_at_record(&key(), None).await }).await.unwrap().unwrap();
    assert!(seen.state == WorkState::Working && seen.place.lease.left_ms <= 29_000, "{seen:?}");
}

/// A look whose answer is lost is voided, for as long as that takes, before the next one: so the place is granted once, and as one
/// that can be undone.
#[tokio::test]
async fn who_waits_for_a_record_goes_on_while_the_store_is_silent_and_leaves_nothing_behind() {
    let scene = Scene::new().await;
    let (worker, token) = (own_token(), own_token());
    let before = scene.begin_elsewhere(&worker).await;
    let store_timeout = Duration::from_millis(200);
    let hasty = LockService::new(scene.network.clone(), store_timeout, MARK_TTL);
    let request = Scene::request(Some(&token), 4 * PATIENCE);
    let commands = scene.network.commands();
    let waiting = tokio::spawn(async move { hasty.begin(request).await });
    eventually("the store is asked", async || scene.network.commands() > commands).await;
    scene.network.lose_all(Loss::Refused);
    scene.elsewhere.give_up(&key(), &worker, true).await.unwrap();
    // The next look is granted the place, and nothing is heard for much longer than a store is given. There is a pause of 20 ms at
    // least before each of the others.
    scene.network.lose(&[&[Loss::Answer][..], &[Loss::Command; 50]].concat());
    scene.network.works_again();
    let begun = waiting.await.unwrap().unwrap();
    assert_eq!(scene.network.losses_left(), 0);
    let BeginOutcome::Granted(place, guard) = begun.outcome else { panic!("{:?}", begun.outcome) };
    assert!(place.earlier == 0 && place.lease.fencing_token > before, "{place:?}");
    drop(guard);
    eventually("nothing is left", async || {
        scene.elsewhere.look_at_record(&key(), None).await.unwrap().is_none()
    })
    .await;
}

/// What it was to be told may have come and gone: it would be the second that does the work.
#[tokio::test]
async fn who_was_told_nothing_for_long_begins_no_record() {
    for (silence_s, may_begin) in [(50, true), (61, false)] {
        let (scene, worker) = (Scene::new().await, own_token());
        let number = scene.begin_elsewhere_for(&worker, 300_000).await;
        let waiting = scene.wait_here(Duration::from_secs(300)).await;
        scene.network.lose_all(Loss::Refused);
        scene.elsewhere.break_record(&key(), number, true).await.unwrap();
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(silence_s)).await;
        tokio::time::resume();
        scene.network.works_again();
        match waiting.await.unwrap() {
            Ok(Beginning { outcome: BeginOutcome::Granted(..), .. }) => assert!(may_begin),
            Err(StoreError::Unavailable(_)) => assert!(!may_begin),
            other => panic!("{silence_s}: {other:?}"),
        }
    }
}
