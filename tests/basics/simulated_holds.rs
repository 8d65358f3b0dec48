//! What a connection that holds a lock is told, on a simulated server. Leases are counted by the real clock.

use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::time::Duration;

use fencepost::lock::{LockKey, Terms, Ttl};
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

#[tokio::test]
async fn a_gateway_that_stops_says_in_time_that_a_lease_is_over_which_it_cannot_renew() {
    let fleet = Fleet::alone(&Clock::running(1_760_000_000_000_000));
    let store = RedisStore::start(&fleet.address().unwrap(), &RedisSettings::default()).unwrap();
    let service = LockService::new(Arc::new(store), STORE_TIMEOUT, 2 * STORE_TIMEOUT);
    let request = AcquireRequest {
        key: LockKey::parse(b"k").unwrap(),
        token: None,
        ttl: Ttl::from_ms(1_000).unwrap(),
        note: Default::default(),
        wait: Duration::ZERO,
        terms: Terms::default(),
        tenant: Tenant::default(),
    };
    let Ok(Holding::Held(mut hold)) = service.hold(request, pending()).await else {
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
