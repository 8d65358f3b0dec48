//! How often a key is used, and how often an address may show what is no key.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use governor::clock::{Clock, DefaultClock};
use governor::middleware::{NoOpMiddleware, StateInformationMiddleware};
use governor::state::keyed::HashMapStateStore;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::Rate;

/// Refused keys that an address may show at once, and then one a second.
const GUESSES_AT_ONCE: NonZeroU32 = NonZeroU32::new(10).unwrap();
/// How many addresses are told apart. If there are more, the new ones share one rate.
const MOST_NETWORKS: usize = 10_000;
/// How often addresses that have kept quiet are forgotten, where the table is full.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// After this time, the requests without a line of their own are counted in one line.
const UNTOLD_INTERVAL: Duration = Duration::from_secs(10);

/// What a key has left of its rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLeft {
    /// Its rate.
    pub rate: Rate,
    /// Requests that it may still make at once.
    pub remaining: u32,
    /// When the next one is allowed, where this one is not.
    pub retry_after: Option<Duration>,
}

impl RateLeft {
    /// How long it takes until the key may make all of its burst again.
    pub fn refills_in(&self) -> Duration {
        Duration::from_secs_f64(
            f64::from(self.rate.burst - self.remaining.min(self.rate.burst)) / self.rate.per_second,
        )
    }

    /// The rate in whole numbers, which is what can be said: so many requests, in so many seconds. It is the burst in the time
    /// in which that comes back; where that is no whole number of seconds, more come back in what is added.
    pub fn policy(&self) -> (u64, u64) {
        let window_s = self.rate.window().as_millis().div_ceil(1000).max(1);
        let window_s = u64::try_from(window_s).unwrap_or(u64::MAX);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a rate has bounds, and a window too"
        )]
        let comes_back = (self.rate.per_second * window_s as f64) as u64;
        (comes_back.max(self.rate.burst.into()), window_s)
    }
}

/// Counts the requests of one key.
#[derive(Debug)]
pub(super) struct Meter {
    pub(super) rate: Rate,
    limiter: RateLimiter<NotKeyed, InMemoryState, DefaultClock, StateInformationMiddleware>,
}

impl Meter {
    pub(super) fn new(rate: Rate) -> Self {
        let burst = NonZeroU32::new(rate.burst).unwrap_or(NonZeroU32::MIN);
        // Within its bounds a rate has a period, which is not zero.
        let quota = Quota::with_period(Duration::from_secs_f64(rate.per_second.recip()))
            .unwrap_or_else(|| Quota::per_second(NonZeroU32::MIN))
            .allow_burst(burst);
        Self { rate, limiter: RateLimiter::direct(quota).with_middleware() }
    }

    /// Counts a request as so many, all or none: one that is worth more than all that may come at once counts as all.
    pub(super) fn count(&self, as_many: u32) -> RateLeft {
        let rate = self.rate;
        let many = NonZeroU32::new(as_many.min(rate.burst)).unwrap_or(NonZeroU32::MIN);
        match self.limiter.check_n(many) {
            // No more than the burst are ever asked for.
            Err(_) => RateLeft { rate, remaining: 0, retry_after: Some(rate.window()) },
            Ok(Ok(state)) => {
                RateLeft { rate, remaining: state.remaining_burst_capacity(), retry_after: None }
            }
            Ok(Err(not_until)) => {
                let wait = not_until.wait_time_from(DefaultClock::default().now());
                // So many come back in this time.
                let missing = (wait.as_nanos() * u128::from(rate.burst)).div_ceil(rate.window().as_nanos());
                let missing = u32::try_from(missing).unwrap_or(u32::MAX);
                RateLeft { rate, remaining: many.get().saturating_sub(missing), retry_after: Some(wait) }
            }
        }
    }
}

/// Clients that show a wrong key or none, by the network that they come from.
#[derive(Debug)]
pub struct Guesses {
    /// `None` stands for all for whom there is no room.
    limiter: RateLimiter<Option<IpAddr>, HashMapStateStore<Option<IpAddr>>, DefaultClock, NoOpMiddleware>,
    swept_at: Mutex<Instant>,
    /// Those beyond what is listened to.
    pub untold: Untold,
}

impl Default for Guesses {
    fn default() -> Self {
        let quota = Quota::per_second(NonZeroU32::MIN).allow_burst(GUESSES_AT_ONCE);
        Self {
            limiter: RateLimiter::hashmap(quota),
            swept_at: Mutex::new(Instant::now()),
            untold: Untold::default(),
        }
    }
}

impl Guesses {
    /// Counts one of this network; where there were too many, says when the next is listened to.
    pub fn count(&self, network: IpAddr) -> Result<(), Duration> {
        let network = self.has_room().then_some(network);
        let wait = |not_until: governor::NotUntil<_>| not_until.wait_time_from(DefaultClock::default().now());
        self.limiter.check_key(&network).map_err(wait)
    }

    /// Whether another address can be told apart. A flood from many of them must not fill the memory.
    fn has_room(&self) -> bool {
        if self.limiter.len() < MOST_NETWORKS {
            return true;
        }
        let mut swept_at = self.swept_at.lock();
        if swept_at.elapsed() >= SWEEP_INTERVAL {
            *swept_at = Instant::now();
            self.limiter.retain_recent();
        }
        self.limiter.len() < MOST_NETWORKS
    }
}

/// How many requests got no line of their own, since they were told of last.
#[derive(Debug, Default)]
pub struct Untold(Arc<AtomicU64>);

impl Untold {
    /// Counts one. Some seconds after the first, `tell` is given their number.
    pub fn count(&self, tell: impl FnOnce(u64) + Send + 'static) {
        if self.0.fetch_add(1, Ordering::Relaxed) > 0 {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        let untold = self.0.clone();
        runtime.spawn(async move {
            sleep(UNTOLD_INTERVAL).await;
            tell(untold.swap(0, Ordering::Relaxed));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_no_less_than_the_rate() {
        let policy = |per_second, burst| {
            RateLeft { rate: Rate::new(per_second, burst), remaining: 0, retry_after: None }.policy()
        };
        assert_eq!(policy(1000.0, Some(10)), (1000, 1));
        assert_eq!(policy(2.0, Some(3)), (4, 2));
        assert_eq!(policy(0.5, Some(7)), (7, 14));
        assert_eq!(policy(0.001, Some(3)), (3, 3000));
        assert_eq!(policy(50.0, None), (50, 1));
    }

    #[test]
    fn a_network_may_guess_ten_times_at_once_and_others_do_not_suffer_for_it() {
        let guesses = Guesses::default();
        let all = |last: u8, times: usize| {
            (0..times).filter(|_| guesses.count([10, 0, 0, last].into()).is_ok()).count()
        };
        // One more may be allowed each second that this takes.
        assert!((10..15).contains(&all(1, 100)));
        assert!(all(1, 100) < 5);
        assert_eq!(all(2, 5), 5);
    }

    #[test]
    fn the_table_of_addresses_is_bounded() {
        let guesses = Guesses::default();
        for address in 0..MOST_NETWORKS as u32 * 2 {
            let _ = guesses.count(IpAddr::V4(address.into()));
        }
        assert!(guesses.limiter.len() <= MOST_NETWORKS + 1);
    }
}
