//! What becomes of a hold when commands and answers get lost or late, on every store.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use fencepost::lock::{Inspected, LeaseToken, LockKey, Renewed, Terms, Ttl};
use fencepost::service::{AcquireRequest, Hold, HoldEvent, Holding, LockService, Loss, Outcome, Tenant};
use fencepost::store::Renewer;
use tokio::time::{Instant, sleep, timeout};

use kit::for_each_store;
use kit::network::{Loss as Lost, Network};
use kit::stores::AnyStore;
use kit::{PATIENCE, eventually, fresh_token};

pub(super) const MARK_TTL: Duration = Duration::from_secs(120);
pub(super) const TTL_MS: u64 = 4_000;

for_each_store!(
    a_hold_that_no_client_was_told_of_leaves_nothing,
    a_renewal_whose_answer_is_lost_is_repeated,
    a_renewal_that_comes_late_keeps_no_hold_alive,
    what_its_token_was_told_of_since_is_no_longer_the_connections,
    a_hold_by_a_token_that_held_the_lock_frees_nothing_that_was_told_before,
);

pub(super) struct Scene {
    pub(super) network: Arc<Network>,
    pub(super) service: LockService,
    pub(super) key: LockKey,
}

impl Scene {
    pub(super) fn on(store: &AnyStore) -> Self {
        let network = Arc::new(Network::before(store.store.clone()));
        let service = LockService::new(network.clone(), PATIENCE, MARK_TTL);
        Self { network, service, key: LockKey::parse(fresh_token().as_bytes()).unwrap() }
    }

    pub(super) fn wish(&self, token: &LeaseToken) -> AcquireRequest {
        AcquireRequest {
            key: self.key.clone(),
            token: Some(token.clone()),
            ttl: Ttl::from_ms(TTL_MS).unwrap(),
            note: Default::default(),
            wait: Duration::ZERO,
            terms: Terms::default(),
            tenant: Tenant::default(),
        }
    }

    pub(super) async fn hold(&self, token: &LeaseToken) -> Hold {
        match self.service.hold(self.wish(token), std::future::pending()).await.unwrap() {
            Holding::Held(hold) => hold,
            Holding::NotHeld(_, why) => panic!("{why:?}"),
            Holding::TooManyHolds => panic!("too many"),
        }
    }

    /// One whose client is told of it.
    pub(super) async fn hold_for_good(&self, token: &LeaseToken) -> Hold {
        let mut hold = self.hold(token).await;
        hold.delivered();
        hold
    }

    /// Takes the lock with a `PUT`, whose client is told of it.
    pub(super) async fn put(&self, token: &LeaseToken) {
        let wish = self.wish(token);
        let Outcome::Granted(_, guard, ..) = self.service.acquire(wish).await.unwrap().outcome else {
            panic!("it was not granted");
        };
        guard.disarm();
    }

    pub(super) async fn is_free(&self) -> bool {
        matches!(self.service.inspect(&self.key, None).await.unwrap(), Inspected::Free { .. })
    }

    pub(super) async fn renew(&self, token: &LeaseToken, ttl_ms: u64) {
        let renewed =
            self.service.renew(&self.key, token, Ttl::from_ms(ttl_ms).unwrap(), Renewer::Token, None).await;
        assert!(matches!(renewed, Ok(Renewed::Renewed(_))), "{renewed:?}");
    }

    /// The lock stays held for a while.
    async fn stays_held(&self) {
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(400) {
            assert!(!self.is_free().await, "it was freed");
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// The next event that is no heartbeat.
pub(super) async fn next(hold: &mut Hold) -> Option<HoldEvent> {
    loop {
        let event = timeout(PATIENCE, poll_fn(|context| hold.poll_event(context))).await;
        match event.expect("no event comes") {
            Some(HoldEvent::Heartbeat) => {}
            event => return event,
        }
    }
}

async fn is_renewed(hold: &mut Hold) {
    let event = next(hold).await;
    assert!(matches!(event, Some(HoldEvent::Renewed(_))), "{event:?}");
}

pub(super) fn own_token() -> LeaseToken {
    LeaseToken::parse(fresh_token().as_bytes()).unwrap()
}

async fn a_hold_that_no_client_was_told_of_leaves_nothing(store: &AnyStore) {
    let (scene, token) = (Scene::on(store), own_token());
    drop(scene.hold(&token).await);
    eventually("it is taken back", async || scene.is_free().await).await;
    // Nobody was told of the second one; the first is told that it lost the lock, which stays its token's.
    let mut first = scene.hold_for_good(&token).await;
    drop(scene.hold(&token).await);
    assert!(matches!(next(&mut first).await, Some(HoldEvent::Lost(Loss::TakenOver))));
    drop(first);
    scene.stays_held().await;
    scene.service.release(&scene.key, &token).await.unwrap();
}

/// Whether the token holds the lock already when the connection asks for it.
const EACH_WAY: [bool; 2] = [false, true];

/// Also that by which the lock becomes the connection's own.
async fn a_renewal_whose_answer_is_lost_is_repeated(store: &AnyStore) {
    for (loss, is_held) in
        [Lost::Answer, Lost::Command, Lost::Refused].into_iter().zip(EACH_WAY.into_iter().cycle())
    {
        let (scene, token) = (Scene::on(store), own_token());
        if is_held {
            scene.put(&token).await;
        }
        let mut hold = scene.hold_for_good(&token).await;
        scene.network.lose(&[loss; 2]);
        is_renewed(&mut hold).await;
        assert_eq!(scene.network.losses_left(), 0);
        is_renewed(&mut hold).await;
        drop(hold);
        eventually("it is taken back", async || scene.is_free().await).await;
    }
}

async fn a_renewal_that_comes_late_keeps_no_hold_alive(store: &AnyStore) {
    for is_held in EACH_WAY {
        let (scene, token) = (Scene::on(store), own_token());
        if is_held {
            scene.put(&token).await;
        }
        let mut hold = scene.hold_for_good(&token).await;
        scene.network.lose(&[Lost::Late]);
        is_renewed(&mut hold).await;
        drop(hold);
        eventually("it is taken back", async || scene.is_free().await).await;
        scene.network.deliver_late().await;
        assert!(scene.is_free().await, "it came back");
    }
}

/// Also before the first renewal of a connection whose token held the lock already, and also where a copy of that comes
/// late.
async fn what_its_token_was_told_of_since_is_no_longer_the_connections(store: &AnyStore) {
    for (is_held, is_late) in [(false, false), (true, false), (true, true)] {
        let (scene, token) = (Scene::on(store), own_token());
        if is_held {
            scene.put(&token).await;
        }
        let mut hold = scene.hold_for_good(&token).await;
        if is_late {
            scene.network.lose(&[Lost::Late]);
            is_renewed(&mut hold).await;
        }
        scene.renew(&token, 60_000).await;
        if is_late {
            scene.network.deliver_late().await;
        }
        let event = next(&mut hold).await;
        assert!(
            matches!(event, Some(HoldEvent::Lost(Loss::TakenOver))),
            "held {is_held}, late {is_late}: {event:?}"
        );
        drop(hold);
        scene.stays_held().await;
        scene.service.release(&scene.key, &token).await.unwrap();
    }
}

async fn a_hold_by_a_token_that_held_the_lock_frees_nothing_that_was_told_before(store: &AnyStore) {
    let (scene, token) = (Scene::on(store), own_token());
    let mut first = scene.hold_for_good(&token).await;
    // As a late copy does, on a connection that is dead.
    drop(scene.hold_for_good(&token).await);
    assert!(matches!(next(&mut first).await, Some(HoldEvent::Lost(Loss::TakenOver))));
    drop(first);
    scene.stays_held().await;
    // One that renews for long enough is as good as any other, but not before the lease is over that was told first.
    scene.renew(&token, 3 * TTL_MS).await;
    let told = Instant::now();
    let mut second = scene.hold_for_good(&token).await;
    is_renewed(&mut second).await;
    drop(second);
    while told.elapsed() < Duration::from_millis(3 * TTL_MS - 50) {
        assert!(!scene.is_free().await, "freed after {:?}", told.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
    eventually("it is taken back", async || scene.is_free().await).await;
}
