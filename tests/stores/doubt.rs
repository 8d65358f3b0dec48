//! What the service makes of commands and answers that get lost or late, on every store: a true answer, or "unknown",
//! and no lock that nobody was told of.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fencepost::clock::SystemClock;
use fencepost::lock::{
    Acquired, Attempt, Broken, Inspected, LeaseToken, LockKey, Released, Renewed, Slots, Terms, Ttl,
};
use fencepost::service::{
    Account, AcquireRequest, Acquisition, GrantGuard, Holding, LockService, NotAcquired, Outcome, Tenant,
};
use fencepost::store::embedded::{EmbeddedSettings, EmbeddedStore};
use fencepost::store::{
    Inspect, KnownTo, LockRequest, LockStore, Renewer, RollBack, StoreError, TicketAfter, Try,
};
use tokio::time::Instant;

use crate::for_each_store;
use kit::asking::LockStoreExt;
use kit::network::{Loss, Network};
use kit::stores::AnyStore;
use kit::{PATIENCE, eventually, fresh_token};

const MARK_TTL: Duration = Duration::from_secs(120);

for_each_store!(
    a_lost_acquire_is_voided_and_made_anew,
    a_put_none_of_whose_answers_came_is_undone_and_called_so,
    a_put_whose_grant_was_pinned_by_another_is_never_called_undone,
    a_put_that_lengthened_the_lease_of_its_token_is_never_called_undone,
    a_lost_renewal_is_repeated,
    a_lost_release_is_answered_by_its_mark_or_unknown,
    a_lost_look_is_unknown_only_with_a_token,
    a_lost_break_of_one_that_no_look_has_shown_is_unknown,
    a_grant_that_nobody_was_told_of_is_taken_back_however_often_that_fails,
    an_acquire_that_comes_late_takes_nothing,
    a_renewal_that_comes_late_lengthens_no_other_lease,
    a_release_that_comes_late_frees_no_other_lease,
    a_take_back_that_comes_late_spares_the_retry,
    a_retry_keeps_its_grant_in_every_order_of_arrival,
);

struct Scene {
    network: Arc<Network>,
    service: LockService,
    key: LockKey,
    account: Option<Account>,
}

impl Scene {
    fn on(store: Arc<dyn LockStore>) -> Self {
        let network = Arc::new(Network::before(store));
        let service = LockService::new(network.clone(), PATIENCE, MARK_TTL);
        Self { network, service, key: LockKey::parse(b"k").unwrap(), account: None }
    }

    fn request(&self, token: Option<LeaseToken>, ttl_ms: u64) -> AcquireRequest {
        AcquireRequest {
            key: self.key.clone(),
            token,
            ttl: Ttl::from_ms(ttl_ms).unwrap(),
            note: Default::default(),
            wait: Duration::ZERO,
            terms: Terms::default(),
            tenant: Tenant::new(self.account.clone(), None),
        }
    }

    async fn acquire(&self, token: Option<LeaseToken>, ttl_ms: u64) -> Result<Acquisition, StoreError> {
        self.service.acquire(self.request(token, ttl_ms)).await
    }

    async fn grant_for(&self, token: Option<LeaseToken>, ttl_ms: u64) -> (LeaseToken, GrantGuard) {
        let acquisition = self.acquire(token, ttl_ms).await.unwrap();
        let Outcome::Granted(_, guard, ..) = acquisition.outcome else { panic!("{:?}", acquisition.outcome) };
        (acquisition.token, guard)
    }

    /// A grant of half a minute whose client was told of it.
    async fn grant(&self, token: Option<LeaseToken>) -> LeaseToken {
        let (token, guard) = self.grant_for(token, 30_000).await;
        guard.disarm();
        token
    }

    async fn renew(&self, token: &LeaseToken, ttl_ms: u64) -> Result<Renewed, StoreError> {
        self.service.renew(&self.key, token, Ttl::from_ms(ttl_ms).unwrap(), Renewer::Token, None).await
    }

    async fn release(&self, token: &LeaseToken) -> Result<Released, StoreError> {
        self.service.release(&self.key, token).await
    }

    async fn look(&self) -> Inspected {
        self.service.inspect(&self.key, None).await.unwrap()
    }

    async fn is_free(&self) -> bool {
        matches!(self.look().await, Inspected::Free { .. })
    }

    /// What is left of a lease that `token` must hold.
    async fn left_ms(&self, token: &LeaseToken) -> u64 {
        match self.service.inspect(&self.key, Some(token)).await.unwrap() {
            Inspected::Held { lease, yours: Some(true), .. } => lease.left_ms,
            other => panic!("{other:?}"),
        }
    }
}

/// None is a token that the server makes.
fn each_token() -> [Option<LeaseToken>; 2] {
    [None, own_token()]
}

fn own_token() -> Option<LeaseToken> {
    Some(LeaseToken::parse(fresh_token().as_bytes()).unwrap())
}

async fn a_lost_acquire_is_voided_and_made_anew(store: &AnyStore) {
    for loss in [Loss::Command, Loss::Answer] {
        for token in each_token() {
            let scene = Scene::on(store.store.clone());
            scene.network.lose(&[loss]);
            let token = scene.grant(token).await;
            assert_eq!(scene.release(&token).await, Ok(Released::Released));
            assert!(scene.is_free().await);
        }
    }
}

/// The answers to all acquires of one request are lost, those to its takes-back come.
const NO_ACQUIRE_IS_ANSWERED: [Loss; 6] =
    [Loss::Answer, Loss::None, Loss::Answer, Loss::None, Loss::Answer, Loss::None];

async fn a_put_none_of_whose_answers_came_is_undone_and_called_so(store: &AnyStore) {
    for token in each_token() {
        let scene = Scene::on(store.store.clone());
        scene.network.lose(&NO_ACQUIRE_IS_ANSWERED);
        let answer = scene.acquire(token, 30_000).await;
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
        assert!(scene.is_free().await);
    }
}

/// What a second PUT with the same token has pinned is not taken back, so no answer may say that it was: neither
/// where the answers were lost, nor where the lease that was asked for is over before its answer comes.
async fn a_put_whose_grant_was_pinned_by_another_is_never_called_undone(store: &AnyStore) {
    for (losses, ttl_ms) in [(&NO_ACQUIRE_IS_ANSWERED[..], 30_000), (&[], 1)] {
        let scene = Scene::on(store.store.clone());
        let token = own_token();
        scene.network.lose(losses);
        scene.network.repeat_puts();
        let answer = scene.acquire(token.clone(), ttl_ms).await;
        assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");
        assert_eq!(scene.release(&token.unwrap()).await, Ok(Released::Released));
    }
}

/// Taking back undoes a grant. It does not undo what a repeated PUT did to the lease that its token had already.
async fn a_put_that_lengthened_the_lease_of_its_token_is_never_called_undone(store: &AnyStore) {
    for losses in [&NO_ACQUIRE_IS_ANSWERED[..], &[Loss::Answer, Loss::None, Loss::Refused]] {
        for token in each_token() {
            let scene = Scene::on(store.store.clone());
            let token = scene.grant(token).await;
            scene.network.lose(losses);
            let answer = scene.acquire(Some(token.clone()), 300_000).await;
            assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");
            assert!(scene.left_ms(&token).await > 200_000, "it did happen");
            scene.release(&token).await.unwrap();
        }
    }
}

async fn a_lost_renewal_is_repeated(store: &AnyStore) {
    for loss in [Loss::Command, Loss::Answer] {
        for token in each_token() {
            let scene = Scene::on(store.store.clone());
            let token = scene.grant(token).await;
            scene.network.lose(&[loss]);
            assert!(matches!(scene.renew(&token, 90_000).await, Ok(Renewed::Renewed(_))));
            assert!(scene.left_ms(&token).await > 60_000);
            scene.release(&token).await.unwrap();
        }
    }
}

/// The second copy finds nothing to release, and cannot tell whether the first one did it, unless a mark says so.
async fn a_lost_release_is_answered_by_its_mark_or_unknown(store: &AnyStore) {
    for loss in [Loss::Command, Loss::Answer] {
        for token in each_token() {
            let scene = Scene::on(store.store.clone());
            let token = scene.grant(token).await;
            scene.network.lose(&[loss]);
            let released = scene.release(&token).await;
            match (loss, token.is_server_made()) {
                (Loss::Answer, true) => {
                    assert!(matches!(released, Err(StoreError::Unknown(_))), "{released:?}");
                }
                _ => assert_eq!(released, Ok(Released::Released)),
            }
            assert!(scene.is_free().await);
        }
    }
}

/// A look changes nothing, but one with the holder's token pins its grant.
async fn a_lost_look_is_unknown_only_with_a_token(store: &AnyStore) {
    let network = Arc::new(Network::before(store.store.clone()));
    network.lose_all(Loss::Answer);
    let service = LockService::new(network, Duration::from_millis(200), MARK_TTL);
    let key = LockKey::parse(b"k").unwrap();
    let bare = service.inspect(&key, None).await;
    assert!(matches!(bare, Err(StoreError::Unavailable(_))), "{bare:?}");
    let with_token = service.inspect(&key, own_token().as_ref()).await;
    assert!(matches!(with_token, Err(StoreError::Unknown(_))), "{with_token:?}");
}

/// A look shows a hundred of those who hold a lock. The second copy of a break does not find the grant that the first one ended,
/// and where no look has shown it, it may also have been over before.
async fn a_lost_break_of_one_that_no_look_has_shown_is_unknown(store: &AnyStore) {
    if store.store.shares_no_locks().is_some() {
        return;
    }
    let terms = Terms { slots: Slots::MOST, ..Terms::default() };
    let soon = || Instant::now() + PATIENCE;
    for holders in [100, 101, 102] {
        let mut scene = Scene::on(store.store.clone());
        scene.key = LockKey::parse(format!("of {holders}").as_bytes()).unwrap();
        let mut last = None;
        for number in 0..holders {
            let (key, token) = (scene.key.clone(), own_token().unwrap().hash());
            // Each ends behind those before it, so the last one is the first that a look leaves out.
            let ttl = Ttl::from_ms(600_000 + 10_000 * number).unwrap();
            let attempt = Attempt::generate();
            let lock = LockRequest { key, token, attempt, ttl, note: Default::default(), terms };
            match store.store.call(Try(lock), soon()).await.unwrap() {
                Acquired::Granted(lease) => last = Some(lease.fencing_token),
                other => panic!("{other:?}"),
            }
        }
        scene.network.lose(&[Loss::None, Loss::Answer]);
        let (broken, _) = scene.service.break_lock(&scene.key, last).await;
        let is_right = match holders {
            100 => matches!(broken, Ok(Broken::Broken(_))),
            _ => matches!(broken, Err(StoreError::Unknown(_))),
        };
        assert!(is_right, "one of {holders}: {broken:?}");
        let Inspected::Held { sharing: Some(sharing), .. } = scene.look().await else {
            panic!("none is left")
        };
        assert_eq!(sharing.held, holders - 1, "it was done");
    }
}

async fn a_grant_that_nobody_was_told_of_is_taken_back_however_often_that_fails(store: &AnyStore) {
    for token in each_token() {
        let scene = Scene::on(store.store.clone());
        let (_, guard) = scene.grant_for(token, 30_000).await;
        assert!(!scene.is_free().await);
        scene.network.lose(&[Loss::Command; 3]);
        drop(guard);
        eventually("three tries are lost", async || scene.network.losses_left() == 0).await;
        eventually("the grant is taken back", async || scene.is_free().await).await;
    }
}

async fn an_acquire_that_comes_late_takes_nothing(store: &AnyStore) {
    for token in each_token() {
        // Its client was answered by the second try, and has released.
        let scene = Scene::on(store.store.clone());
        scene.network.lose(&[Loss::Late]);
        let used = scene.grant(token.clone()).await;
        scene.release(&used).await.unwrap();
        scene.network.deliver_late().await;
        assert!(scene.is_free().await);
    }
    for token in each_token() {
        // It was answered, and its lease has ended.
        let scene = Scene::on(store.store.clone());
        scene.network.lose(&[Loss::Late]);
        scene.grant_for(token, 200).await.1.disarm();
        eventually("the lease ends", async || scene.is_free().await).await;
        scene.network.deliver_late().await;
        assert!(scene.is_free().await);
    }
    for token in each_token() {
        // It has left.
        let scene = Scene::on(store.store.clone());
        scene.network.lose(&[Loss::Late]);
        drop(scene.grant_for(token, 30_000).await.1);
        eventually("the grant is taken back", async || scene.is_free().await).await;
        scene.network.deliver_late().await;
        assert!(scene.is_free().await);
    }
}

async fn a_renewal_that_comes_late_lengthens_no_other_lease(store: &AnyStore) {
    for token in each_token() {
        let scene = Scene::on(store.store.clone());
        let token = scene.grant(token).await;
        scene.network.lose(&[Loss::Late]);
        assert!(matches!(scene.renew(&token, 3_600_000).await, Ok(Renewed::Renewed(_))));
        scene.release(&token).await.unwrap();
        let other = scene.grant(own_token()).await;
        scene.network.deliver_late().await;
        assert!(scene.left_ms(&other).await <= 30_000);
        scene.release(&other).await.unwrap();
    }
}

async fn a_release_that_comes_late_frees_no_other_lease(store: &AnyStore) {
    for token in each_token() {
        let scene = Scene::on(store.store.clone());
        let token = scene.grant(token).await;
        scene.network.lose(&[Loss::Late]);
        assert_eq!(scene.release(&token).await, Ok(Released::Released));
        let other = scene.grant(own_token()).await;
        scene.network.deliver_late().await;
        assert!(scene.left_ms(&other).await > 0);
        scene.release(&other).await.unwrap();
    }
}

async fn a_take_back_that_comes_late_spares_the_retry(store: &AnyStore) {
    let scene = Scene::on(store.store.clone());
    let token = own_token();
    let (_, guard) = scene.grant_for(token.clone(), 30_000).await;
    scene.network.lose(&[Loss::Late]);
    drop(guard);
    eventually("a later copy takes it back", async || scene.is_free().await).await;
    let token = scene.grant(token).await;
    scene.network.deliver_late().await;
    assert!(scene.left_ms(&token).await > 0);
}

/// A client's connection drops, and its retry is sent elsewhere: its two acquires and the clean-up of the first
/// arrive in every order, and what the retry was answered stays.
async fn a_retry_keeps_its_grant_in_every_order_of_arrival(store: &AnyStore) {
    #[derive(Clone, Copy, PartialEq)]
    enum Arrival {
        First,
        CleanUp,
        Retry,
    }
    use Arrival::{CleanUp, First, Retry};
    let orders = [
        [First, CleanUp, Retry],
        [First, Retry, CleanUp],
        [CleanUp, First, Retry],
        [CleanUp, Retry, First],
        [Retry, First, CleanUp],
        [Retry, CleanUp, First],
    ];
    for (number, order) in orders.into_iter().enumerate() {
        let soon = || Instant::now() + PATIENCE;
        let key = LockKey::parse(format!("order {number}").as_bytes()).unwrap();
        let token = LeaseToken::parse(fresh_token().as_bytes()).unwrap().hash();
        let ttl = Ttl::from_ms(30_000).unwrap();
        let request = |attempt| {
            let key = key.clone();
            LockRequest { key, token, attempt, ttl, note: Default::default(), terms: Terms::default() }
        };
        let (first, retry) = (request(Attempt::generate()), request(Attempt::generate()));
        let mut told = None;
        for arrival in order {
            match arrival {
                First => drop(store.store.call(Try(first.clone()), soon()).await.unwrap()),
                CleanUp => drop(
                    store
                        .store
                        .call(
                            RollBack {
                                key: key.clone(),
                                token,
                                attempt: first.attempt,
                                ticket: TicketAfter::Kept,
                                known: KnownTo::Nobody,
                            },
                            soon(),
                        )
                        .await
                        .unwrap(),
                ),
                Retry => match store.store.call(Try(retry.clone()), soon()).await.unwrap() {
                    Acquired::Granted(lease) | Acquired::AlreadyHeld(lease) => {
                        told = Some(lease.fencing_token)
                    }
                    other => panic!("{other:?}"),
                },
            }
        }
        let Inspected::Held { lease, yours, .. } =
            store.store.call(Inspect { key: key.clone(), token: Some(token) }, soon()).await.unwrap()
        else {
            panic!("order {number}: what was answered was taken back");
        };
        assert_eq!((Some(lease.fencing_token), yours), (told, Some(true)), "order {number}");
    }
}

/// Beyond ten thousand takes-back under way a grant ends at its ttl: a gateway whose store is away does not drown.
#[tokio::test(flavor = "multi_thread")]
async fn takes_back_are_bounded_in_number() {
    const MOST: usize = 10_000;
    let store = AnyStore::memory(MARK_TTL).await;
    let mut scene = Scene::on(store.store.clone());
    let key = |number: usize| LockKey::parse(format!("k{number}").as_bytes()).unwrap();
    let mut guards = Vec::new();
    for number in 0..=MOST {
        scene.key = key(number);
        guards.push(scene.grant_for(None, 3_600_000).await.1);
    }
    scene.network.lose_all(Loss::Command);
    drop(guards);
    scene.network.works_again();
    let is_free = async |number| {
        matches!(scene.service.inspect(&key(number), None).await.unwrap(), Inspected::Free { .. })
    };
    for number in 0..MOST {
        eventually("it is taken back", async || is_free(number).await).await;
    }
    assert!(!is_free(MOST).await, "one more than the limit is taken back");
}

/// Else one that leaves before its answers, again and again, would have the locks of others stay that their clients have left.
#[tokio::test(flavor = "multi_thread")]
async fn one_tenant_leaves_others_places_for_takes_back_and_a_hold_needs_none() {
    const MOST: usize = 10_000;
    /// More than its quarter, as nobody else needs them before.
    const SHARE: usize = MOST / 2;
    const HOUR_MS: u64 = 3_600_000;
    let store = AnyStore::memory(MARK_TTL).await;
    let mut scene = Scene::on(store.store.clone());
    let key = |name: &str| LockKey::parse(name.as_bytes()).unwrap();
    let account = || Some(Account { count: Arc::default(), most: usize::MAX });
    scene.key = key("held");
    let held = scene.service.hold(scene.request(None, HOUR_MS), std::future::pending()).await.unwrap();
    let Holding::Held(mut hold) = held else { panic!("it is not held") };
    assert!(hold.delivered().is_some());
    let mut guards = Vec::new();
    // The last of a greedy tenant has no place, one of another tenant has, and then come as many as there are still places.
    for (prefix, count, account) in
        [("greedy", SHARE + 1, account()), ("other", 1, account()), ("more", MOST - SHARE - 1, None)]
    {
        scene.account = account;
        for number in 0..count {
            scene.key = key(&format!("{prefix}{number}"));
            guards.push(scene.grant_for(None, HOUR_MS).await.1);
        }
    }
    scene.network.lose_all(Loss::Command);
    drop(guards);
    assert_eq!(scene.service.roll_backs(), MOST);
    drop(hold);
    eventually("the hold is taken back too", async || scene.service.roll_backs() == MOST + 1).await;
    scene.network.works_again();
    let is_free = async |name: &str| {
        matches!(scene.service.inspect(&key(name), None).await.unwrap(), Inspected::Free { .. })
    };
    for name in ["held", "other0", "greedy0"] {
        eventually("it is taken back", async || is_free(name).await).await;
    }
    eventually("all is taken back", async || scene.service.roll_backs() == 0).await;
    assert!(!is_free(&format!("greedy{SHARE}")).await, "it is taken back beyond its share");
}

/// No copy arrives once marks have ended and the lease is over: then there is nothing left to take back.
#[tokio::test(flavor = "multi_thread")]
async fn takes_back_are_bounded_in_time() {
    let store = AnyStore::memory(MARK_TTL).await;
    let network = Arc::new(Network::before(store.store.clone()));
    let service = LockService::new(network.clone(), PATIENCE, Duration::from_millis(300));
    let scene =
        Scene { network: network.clone(), service, key: LockKey::parse(b"k").unwrap(), account: None };
    let (_, guard) = scene.grant_for(None, 400).await;
    network.lose_all(Loss::Command);
    let started = Instant::now();
    drop(guard);
    let mut last = (network.commands(), Instant::now());
    eventually("nothing is tried any more", async || {
        if network.commands() != last.0 {
            last = (network.commands(), Instant::now());
        }
        // More than twice the longest pause between two tries.
        last.1.elapsed() > Duration::from_secs(1)
    })
    .await;
    let tried_for = last.1 - started;
    assert!(tried_for >= Duration::from_millis(300), "it gave up after {tried_for:?}");
}

/// A wait queue keeps the ticket for its token, as with a grant that reached no client.
#[tokio::test]
async fn the_ticket_of_a_grant_that_was_undone_for_want_of_replicas_counts_for_its_client() {
    let store = AnyStore::memory(MARK_TTL).await;
    let scene = Scene::on(store.store.clone());
    let (holder, left) = (scene.grant(None).await, Arc::new(AtomicU32::new(0)));
    let tenant = Tenant::new(None, Some(left.clone()));
    let request = AcquireRequest { wait: PATIENCE, tenant, ..scene.request(own_token(), 30_000) };
    scene.network.lose_all(Loss::NotReplicated);
    let release = async {
        let waits = async || matches!(scene.look().await, Inspected::Held { waiters: 1, .. });
        eventually("it waits", waits).await;
        scene.release(&holder).await.unwrap();
    };
    let (answer, ()) = tokio::join!(scene.service.acquire(request), release);
    let outcome = answer.unwrap().outcome;
    assert!(matches!(outcome, Outcome::NotTaken(NotAcquired::NotReplicated(_))), "{outcome:?}");
    assert_eq!(left.load(Ordering::Relaxed), 1);
}

/// A server that stands still may have a command before it for longer than any ttl, but nobody waits for ever.
#[tokio::test]
async fn a_store_that_is_out_of_reach_is_waited_for_for_an_hour() {
    let store = AnyStore::memory(MARK_TTL).await;
    let scene = Scene::on(store.store.clone());
    let (_, guard) = scene.grant_for(None, 30_000).await;
    scene.network.lose_all(Loss::Refused);
    // No store is asked from here on: time passes as fast as nothing happens in it.
    tokio::time::pause();
    drop(guard);
    tokio::time::sleep(Duration::from_secs(59 * 60)).await;
    let tried = scene.network.commands();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(scene.network.commands() > tried, "it has given up too early");
    tokio::time::sleep(Duration::from_secs(60)).await;
    let tried = scene.network.commands();
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    assert_eq!(scene.network.commands(), tried, "it never gives up");
}

/// The program may end right after a client has left: what that client was granted does not outlive it.
#[tokio::test(flavor = "multi_thread")]
async fn closing_waits_for_what_is_being_taken_back() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    let open = || {
        let store = EmbeddedStore::open(&file, EmbeddedSettings::default(), Arc::new(SystemClock)).unwrap();
        Scene::on(Arc::new(store))
    };
    let scene = open();
    let (_, guard) = scene.grant_for(own_token(), 30_000).await;
    scene.network.lose(&[Loss::Command; 3]);
    drop(guard);
    scene.service.close(PATIENCE).await;
    drop(scene);
    assert!(open().is_free().await);
}
