//! What a connection that holds a lock is told, on a simulated server. Leases are counted by the real clock.

use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::time::Duration;

use fencepost::lock::{Inspected, LockKey, Terms, Ttl};
use fencepost::service::{AcquireRequest, HoldEvent, Holding, LockService, Loss, Tenant};
use fencepost::store::redis::{RedisSettings, RedisStore};
use sim::{Clock, Fleet, host};
use tokio::time::{Instant, timeout};

const PORT: u16 = 6379;
const TTL: Duration = Duration::from_secs(1);
/// So long a gateway may ask its store.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);
/// On a busy machine it is told a moment later.
const SOON: Duration = Duration::from_secs(2);

fn scene() -> (Fleet, LockService) {
    let fleet = Fleet::alone(&Clock::running(1_760_000_000_000_000));
    let store = RedisStore::start(&fleet.address().unwrap(), &RedisSettings::default()).unwrap();
    (fleet, LockService::new(Arc::new(store), STORE_TIMEOUT, 2 * STORE_TIMEOUT))
}

fn request(ttl: Duration) -> AcquireRequest {
    AcquireRequest {
        key: LockKey::parse(b"k").unwrap(),
        token: None,
        ttl: Ttl::from_ms(ttl.as_millis() as u64).unwrap(),
        note: Default::default(),
        wait: Duration::ZERO,
        terms: Terms::default(),
        tenant: Tenant::default(),
    }
}

#[tokio::test]
async fn a_gateway_that_stops_says_in_time_that_a_lease_is_over_which_it_cannot_renew() {
    let (fleet, service) = scene();
    let Ok(Holding::Held(mut hold)) = service.hold(request(TTL), pending()).await else {
        panic!("it is not held")
    };
    let over_at = Instant::now() + TTL;
    hold.delivered().unwrap();
    fleet.network.set(&host(0), PORT, |way| way.is_silent = true);
    service.stop_waiting();
    let lost = async {
        loop {
            match poll_fn(|context| hold.poll_event(context)).await {
                Some(HoldEvent::Lost(loss)) => return loss,
                Some(_) => {}
                None => panic!("it ends without a word"),
            }
        }
    };
    assert_eq!(timeout(2 * STORE_TIMEOUT, lost).await.unwrap(), Loss::Expired);
    assert!(Instant::now() < over_at + SOON, "told {:?} after its end", over_at.elapsed());
}

/// A busy machine lets the thread read its clock only later.
#[tokio::test]
async fn a_stall_of_the_gateway_lengthens_no_lease_that_it_takes() {
    const STALL: Duration = Duration::from_millis(100);
    /// Leases are told in whole milliseconds.
    const ROUNDING_MS: u64 = 3;
    let (_fleet, service) = scene();
    let stall = system::Stall::before(system::CLOCK_BOOTTIME, STALL);
    let Ok(Holding::Held(mut hold)) = service.hold(request(60 * TTL), pending()).await else {
        panic!("it is not held")
    };
    drop(stall);
    let asked_at = Instant::now();
    let told = hold.delivered().unwrap();
    let Inspected::Held { lease: seen, .. } = service.inspect(&hold.key, None).await.unwrap() else {
        panic!("it is free")
    };
    let most_ms = seen.left_ms + asked_at.elapsed().as_millis() as u64 + ROUNDING_MS;
    assert!(told.left_ms <= most_ms, "{} ms are told, and {most_ms} ms are left", told.left_ms);
}
