//! That nobody waits for another in a circle, whatever order the keys are named in.

use std::sync::Arc;
use std::time::Duration;

use fencepost::lock::{LeaseToken, LockKey, Note, Terms, Ttl};
use fencepost::service::{AcquireRequest, GrantGuard, LockService, NotAcquired, Outcome, Several, Tenant};
use kit::stores::AnyStore;
use kit::{PATIENCE, for_each_store, fresh_token};
use tokio::time::Instant;

use super::until;

const MARK_TTL: Duration = Duration::from_secs(120);
/// How often two take both locks at once. Two gateways, each with two of them, do a thousand in all.
const ROUNDS: usize = 250;
const WAIT: Duration = Duration::from_secs(20);

for_each_store!(both_orders_at_once_a_thousand_times, who_holds_a_later_key_does_not_wait_for_an_earlier_one);

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
        match service.acquire_several(wish, &keys).await.unwrap() {
            Several::Held(held) => {
                held.guards.into_iter().for_each(GrantGuard::disarm);
                for key in &keys {
                    service.release(key, &held.token).await.unwrap();
                }
            }
            Several::NotHeld(key, _, why) => panic!("round {round} ended at {}: {why:?}", key.as_str()),
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

async fn who_holds_a_later_key_does_not_wait_for_an_earlier_one(store: &AnyStore) {
    let service = LockService::new(store.store.clone(), PATIENCE, MARK_TTL);
    let ([a, b], token) = (two_keys(), own_token());
    let mut guards = Vec::new();
    for (key, token) in [(&a, own_token()), (&b, token.clone())] {
        let wish = AcquireRequest { key: key.clone(), ..request(Some(token), Duration::ZERO) };
        let Outcome::Granted(_, guard) = service.acquire(wish).await.unwrap().outcome else {
            panic!("it is free")
        };
        guards.push(guard);
    }
    let began = Instant::now();
    let refused = service.acquire_several(request(Some(token.clone()), WAIT), &[b.clone(), a.clone()]).await;
    let Several::NotHeld(key, _, NotAcquired::Refused(_)) = refused.unwrap() else {
        panic!("it was not refused")
    };
    assert_eq!(key, a);
    until(began, WAIT / 2);
    // What it held it still holds.
    let seen = service.inspect(&b, Some(&token)).await.unwrap();
    assert!(matches!(seen, fencepost::lock::Inspected::Held { yours: Some(true), .. }), "{seen:?}");
    guards.into_iter().for_each(GrantGuard::disarm);
}
