//! That nobody waits for another in a circle, whatever order the keys are named in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost::lock::{Inspected, LeaseToken, LockKey, Note, Renewed, Terms, Ttl};
use fencepost::service::{
    AcquireRequest, GrantGuard, LockService, Loss, NotAcquired, Outcome, Several, Tenant,
};
use fencepost::store::{Bucket, Hint, LockStore, Reply, Request, StoreError};
use futures_util::future::{BoxFuture, join_all};
use kit::stores::{AnyStore, LINE};
use kit::{PATIENCE, eventually, for_each_store, fresh_token};
use tokio::sync::broadcast;
use tokio::time::{Instant, sleep};

use super::until;

const MARK_TTL: Duration = Duration::from_secs(120);
/// How often two take both locks at once. Two gateways, each with two of them, do a thousand in all.
const ROUNDS: usize = 250;
const WAIT: Duration = Duration::from_secs(20);

for_each_store!(
    both_orders_at_once_a_thousand_times,
    of_copies_at_once_one_is_granted_and_all_that_are_have_the_same_grants,
    who_holds_a_later_key_does_not_wait_for_an_earlier_one,
    a_ticket_at_a_later_lock_is_kept_while_its_token_waits_for_an_earlier_one,
    what_was_dropped_when_a_lock_was_lost_is_not_called_undone_later,
);

fn request(token: Option<LeaseToken>, wait: Duration) -> AcquireRequest {
    AcquireRequest {
        key: LockKey::parse(b"unused").unwrap(),
        token,
        ttl: Ttl::from_ms(30_000).unwrap(),
        note: Note::default(),
        wait,
        terms: Terms::default(),
        tenant: Tenant::default(),
    }
}

fn two_keys() -> [LockKey; 2] {
    let name = fresh_token();
    ["a", "b"].map(|letter| LockKey::parse(format!("{letter}-{name}").as_bytes()).unwrap())
}

fn own_token() -> LeaseToken {
    LeaseToken::parse(fresh_token().as_bytes()).unwrap()
}

/// Takes them again and again, and releases them.
async fn go_round(service: Arc<LockService>, keys: [LockKey; 2], has_token: bool) {
    for round in 0..ROUNDS {
        let wish = request(has_token.then(own_token), WAIT);
        match service.acquire_several(wish, &keys).await {
            Several::Held(held) => {
                held.guards.into_iter().for_each(GrantGuard::disarm);
                for key in &keys {
                    service.release(key, &held.token).await.unwrap();
                }
            }
            Several::NotHeld(key, _, why) => panic!("round {round} ended at {}: {why:?}", key.as_str()),
            Several::Lost(key, loss) => panic!("round {round} lost {}: {loss:?}", key.as_str()),
            Several::Failed(key, error) => panic!("round {round} failed at {}: {error}", key.as_str()),
            Several::TooManyHolds => panic!("there are so few"),
        }
    }
}

async fn both_orders_at_once_a_thousand_times(store: &AnyStore) {
    let gateways = [store.store.clone(), store.another_gateway(MARK_TTL)];
    let [a, b] = two_keys();
    let mut clients = tokio::task::JoinSet::new();
    for gateway in gateways {
        let service = Arc::new(LockService::new(gateway, PATIENCE, MARK_TTL));
        clients.spawn(go_round(service.clone(), [a.clone(), b.clone()], true));
        clients.spawn(go_round(service, [b.clone(), a.clone()], false));
    }
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
}

async fn of_copies_at_once_one_is_granted_and_all_that_are_have_the_same_grants(store: &AnyStore) {
    let gateways = [store.store.clone(), store.another_gateway(MARK_TTL)]
        .map(|store| LockService::new(store, PATIENCE, MARK_TTL));
    let names = fresh_token();
    for round in 0..10 {
        let keys = ["a", "b", "c"].map(|letter| format!("{letter}-{round}-{names}"));
        let keys = keys.map(|key| LockKey::parse(key.as_bytes()).unwrap());
        let token = own_token();
        let copies = (0..4).map(|copy| {
            gateways[copy % 2].acquire_several(request(Some(token.clone()), Duration::ZERO), &keys)
        });
        let mut numbers = Vec::new();
        for copy in join_all(copies).await {
            let held = match copy {
                Several::Held(held) => held,
                // Another has taken over, and this one does not know what that is told.
                Several::Lost(_, Loss::TakenOver) => continue,
                Several::NotHeld(key, _, why) => panic!("round {round}: {} is {why:?}", key.as_str()),
                Several::Lost(key, loss) => panic!("round {round}: {} is lost: {loss:?}", key.as_str()),
                Several::Failed(key, error) => panic!("round {round}: {}: {error}", key.as_str()),
                Several::TooManyHolds => panic!("there are so few"),
            };
            held.guards.into_iter().for_each(GrantGuard::disarm);
            numbers.push(held.leases.iter().map(|lease| lease.fencing_token).collect::<Vec<_>>());
        }
        assert!(!numbers.is_empty(), "in round {round} no copy is granted the locks");
        // None of them ends what another was told of.
        for (key, number) in keys.iter().zip(&numbers[0]) {
            let seen = gateways[0].inspect(key, Some(&token)).await.unwrap();
            let Inspected::Held { lease, yours: Some(true), .. } = seen else { panic!("{seen:?}") };
            assert_eq!(lease.fencing_token, *number);
        }
        numbers.dedup();
        assert_eq!(numbers.len(), 1, "round {round}");
    }
}

async fn who_holds_a_later_key_does_not_wait_for_an_earlier_one(store: &AnyStore) {
    let service = LockService::new(store.store.clone(), PATIENCE, MARK_TTL);
    let ([a, b], token) = (two_keys(), own_token());
    let mut guards = Vec::new();
    for (key, token) in [(&a, own_token()), (&b, token.clone())] {
        let wish = AcquireRequest { key: key.clone(), ..request(Some(token), Duration::ZERO) };
        let Outcome::Granted(_, guard, ..) = service.acquire(wish).await.unwrap().outcome else {
            panic!("it is free")
        };
        guards.push(guard);
    }
    let began = Instant::now();
    let refused = service.acquire_several(request(Some(token.clone()), WAIT), &[b.clone(), a.clone()]).await;
    let Several::NotHeld(key, _, NotAcquired::Refused(_)) = refused else { panic!("it was not refused") };
    assert_eq!(key, a);
    until(began, WAIT / 2);
    // What it held it still holds.
    let seen = service.inspect(&b, Some(&token)).await.unwrap();
    assert!(matches!(seen, Inspected::Held { yours: Some(true), .. }), "{seen:?}");
    guards.into_iter().for_each(GrantGuard::disarm);
}

/// Takes one lock for a token, and keeps it.
async fn take(service: &LockService, key: &LockKey, token: LeaseToken, wait: Duration) {
    let wish = AcquireRequest { key: key.clone(), ..request(Some(token), wait) };
    match service.acquire(wish).await.unwrap().outcome {
        Outcome::Granted(_, guard, ..) => guard.disarm(),
        outcome => panic!("{outcome:?}"),
    }
}

async fn a_ticket_at_a_later_lock_is_kept_while_its_token_waits_for_an_earlier_one(store: &AnyStore) {
    let service = Arc::new(LockService::new(store.store.clone(), PATIENCE, MARK_TTL));
    let ([a, b], token) = (two_keys(), own_token());
    let both = [a.clone(), b.clone()];
    take(&service, &b, own_token(), Duration::ZERO).await;
    let refused = service.acquire_several(request(Some(token.clone()), WAIT / 100), &both).await;
    assert!(matches!(refused, Several::NotHeld(key, ..) if key == b));
    // Another comes to the later lock behind it, and to the earlier one before it.
    let holder = own_token();
    take(&service, &a, holder.clone(), Duration::ZERO).await;
    let newcomer = tokio::spawn({
        let (service, b) = (service.clone(), b.clone());
        async move { take(&service, &b, own_token(), PATIENCE).await }
    });
    eventually("the other waits", async || service.waiters() == 1).await;
    let again = service.acquire_several(request(Some(token), WAIT / 4), &both);
    let (refused, ()) = tokio::join!(again, async {
        sleep(LINE.ticket_ttl + Duration::from_millis(500)).await;
        service.release(&a, &holder).await.unwrap();
    });
    let Several::NotHeld(key, _, NotAcquired::Refused(refusal)) = refused else { panic!("not refused") };
    assert_eq!((key, refusal.position), (b, Some(1)));
    newcomer.abort();
}

/// Once it has said that a lock was taken over, it takes nothing more.
struct FailsOnceTakenOver {
    store: Arc<dyn LockStore>,
    fails: AtomicBool,
}

impl LockStore for FailsOnceTakenOver {
    fn run<'a>(
        &'a self,
        request: &'a Request,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Reply, StoreError>> {
        Box::pin(async move {
            if self.fails.load(Ordering::SeqCst) && matches!(request, Request::Try(_) | Request::Enqueue(_)) {
                return Err(StoreError::Unavailable("the store is out of reach".to_owned()));
            }
            let reply = self.store.run(request, deadline).await;
            if matches!(reply, Ok(Reply::Renew(Renewed::TakenOver))) {
                self.fails.store(true, Ordering::SeqCst);
            }
            reply
        })
    }

    fn bucket_of(&self, key: &LockKey) -> Bucket {
        self.store.bucket_of(key)
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.store.hints()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.store.close()
    }
}

/// It waited for the later lock then, and may have been granted it.
async fn what_was_dropped_when_a_lock_was_lost_is_not_called_undone_later(store: &AnyStore) {
    let failing = FailsOnceTakenOver { store: store.store.clone(), fails: AtomicBool::new(false) };
    let [here, there] = [Arc::new(failing) as Arc<dyn LockStore>, store.store.clone()]
        .map(|store| LockService::new(store, PATIENCE, MARK_TTL));
    let ([a, b], token) = (two_keys(), own_token());
    take(&there, &b, own_token(), Duration::ZERO).await;
    let wish = AcquireRequest { ttl: Ttl::from_ms(1_000).unwrap(), ..request(Some(token.clone()), WAIT) };
    let both = [a.clone(), b.clone()];
    let copy = async {
        eventually("the first waits", async || here.waiters() == 1).await;
        let wish = AcquireRequest { key: a.clone(), ..request(Some(token), Duration::ZERO) };
        there.acquire(wish).await.unwrap().outcome
    };
    let (answer, taken) = tokio::join!(here.acquire_several(wish, &both), copy);
    assert!(matches!(taken, Outcome::AlreadyHeld(..)), "{taken:?}");
    let Several::Failed(key, error) = answer else { panic!("it did not fail") };
    assert!(key == a && matches!(error, StoreError::Unknown(_)), "{error}");
}
