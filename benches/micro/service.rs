//! The steps of the service on a store in memory, without HTTP.

use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput};
use fencepost::clock::SystemClock;
use fencepost::lock::{LeaseToken, LockKey, Released, Renewed, Terms, Ttl};
use fencepost::service::{AcquireRequest, LockService, NotAcquired, Outcome, Tenant};
use fencepost::store::Renewer;
use fencepost::store::embedded::{EmbeddedSettings, EmbeddedStore};
use futures_util::future::join_all;

/// How many ask at the same time where many do: as many as connections in the other measurements.
const AT_ONCE: usize = 64;

pub fn memory_service() -> LockService {
    let store = EmbeddedStore::in_memory(EmbeddedSettings::default(), Arc::new(SystemClock)).unwrap();
    LockService::new(Arc::new(store), Duration::from_secs(10), Duration::from_secs(120))
}

pub fn measure(criterion: &mut Criterion) {
    let runtime = super::runtime();
    let service = runtime.block_on(async { memory_service() });
    let mut group = criterion.benchmark_group("service in memory");
    let key = LockKey::parse(b"orders/4711").unwrap();
    group.bench_function("acquire and release", |bencher| {
        bencher.to_async(&runtime).iter(|| acquire_and_release(&service, &key));
    });

    let keys: Vec<_> =
        (0..AT_ONCE).map(|n| LockKey::parse(format!("orders/{n}").as_bytes()).unwrap()).collect();
    group.throughput(Throughput::Elements(AT_ONCE as u64));
    group.bench_function(format!("{AT_ONCE} at once, acquire and release"), |bencher| {
        bencher
            .to_async(&runtime)
            .iter(|| join_all(keys.iter().map(|key| acquire_and_release(&service, key))));
    });

    group.throughput(Throughput::Elements(1));
    let held = LockKey::parse(b"held").unwrap();
    let token = runtime.block_on(take(&service, &held));
    group.bench_function("refuse", |bencher| {
        bencher.to_async(&runtime).iter(async || {
            let answer = service.acquire(wish(&held)).await.unwrap();
            assert!(matches!(answer.outcome, Outcome::NotTaken(NotAcquired::Refused(_))));
        });
    });
    group.bench_function("renew", |bencher| {
        bencher.to_async(&runtime).iter(async || {
            let answer = service.renew(&held, &token, an_hour(), Renewer::Token, None).await.unwrap();
            assert!(matches!(answer, Renewed::Renewed(_)));
        });
    });
    group.bench_function("inspect", |bencher| {
        bencher.to_async(&runtime).iter(async || service.inspect(&held, None).await.unwrap());
    });
    group.finish();
}

async fn acquire_and_release(service: &LockService, key: &LockKey) {
    let token = take(service, key).await;
    assert_eq!(service.release(key, &token).await.unwrap(), Released::Released);
}

async fn take(service: &LockService, key: &LockKey) -> LeaseToken {
    let answer = service.acquire(wish(key)).await.unwrap();
    match answer.outcome {
        Outcome::Granted(_, guard, ..) => guard.disarm(),
        other => panic!("{key:?} is not free: {other:?}"),
    }
    answer.token
}

fn wish(key: &LockKey) -> AcquireRequest {
    AcquireRequest {
        key: key.clone(),
        token: None,
        ttl: an_hour(),
        note: Default::default(),
        wait: Duration::ZERO,
        terms: Terms::default(),
        tenant: Tenant::default(),
    }
}

fn an_hour() -> Ttl {
    Ttl::from_ms(3_600_000).unwrap()
}
