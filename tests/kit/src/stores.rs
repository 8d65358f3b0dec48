//! Every store, for what is asked through the trait.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fencepost::clock::SystemClock;
use fencepost::store::embedded::{EmbeddedSettings, EmbeddedStore};
use fencepost::store::redis::{OnceMemory, RedisAddress, RedisSettings, RedisStore};
use fencepost::store::{LineSettings, LockStore};
use sim::{Clock, Fleet};
use tempfile::TempDir;

use super::{PATIENCE, RedisServer, cluster, fresh_token, quorum, sentinels};

/// How lines behave here: tickets end soon enough to be seen, and lines are full soon.
pub const LINE: LineSettings =
    LineSettings { ticket_ttl: Duration::from_millis(1_500), max_waiters_per_key: 5 };

/// A store, and what must live as long as it does.
pub struct AnyStore {
    pub store: Arc<dyn LockStore>,
    /// The clock of a store that goes by one of the test's.
    clock: Option<TestClock>,
    _directory: Option<TempDir>,
    _redis: Option<RedisServer>,
    /// Where others find the same locks, and what their keys begin with; nothing where there can be no others.
    found_at: Option<(RedisAddress, String)>,
}

/// A clock that a test moves.
enum TestClock {
    OfMachine(SkippingClock),
    OfServers(Clock),
}

impl AnyStore {
    /// A store that needs nothing else here.
    pub fn of(store: impl LockStore) -> Self {
        Self::of_any(Arc::new(store))
    }

    fn of_any(store: Arc<dyn LockStore>) -> Self {
        Self { store, clock: None, _directory: None, _redis: None, found_at: None }
    }

    pub async fn file(mark_ttl: Duration) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("locks.redb");
        let clock = SkippingClock::default();
        let store = EmbeddedStore::open(&file, embedded(mark_ttl), Arc::new(clock.clone())).unwrap();
        Self { clock: Some(TestClock::OfMachine(clock)), _directory: Some(directory), ..Self::of(store) }
    }

    pub async fn memory(mark_ttl: Duration) -> Self {
        Self::memory_for_records(mark_ttl, EmbeddedSettings::default().once_memory_bytes).await
    }

    /// In memory, with room for so many bytes of records.
    pub async fn memory_for_records(mark_ttl: Duration, once_memory_bytes: u64) -> Self {
        let clock = SkippingClock::default();
        let settings = EmbeddedSettings { once_memory_bytes, ..embedded(mark_ttl) };
        let store = EmbeddedStore::in_memory(settings, Arc::new(clock.clone())).unwrap();
        Self { clock: Some(TestClock::OfMachine(clock)), ..Self::of(store) }
    }

    pub async fn redis(mark_ttl: Duration) -> Self {
        let redis = RedisServer::start().await;
        let url = redis.url().to_owned();
        Self { _redis: Some(redis), ..Self::at(&url, PREFIX, mark_ttl) }
    }

    /// On the primary of the sentinels that all tests share.
    pub async fn sentinel(mark_ttl: Duration) -> Self {
        Self::at(&sentinels::shared().await.url(), &fresh_token(), mark_ttl)
    }

    /// On the quorum that all tests share. Its gateways keep their lines apart, so nobody else stands in this one's.
    pub async fn quorum(mark_ttl: Duration) -> Self {
        Self { found_at: None, ..Self::at(&quorum::shared().await.url(), &fresh_token(), mark_ttl) }
    }

    /// On the cluster that all tests share.
    pub async fn cluster(mark_ttl: Duration) -> Self {
        Self::at(&cluster::shared().await.url(), &fresh_token(), mark_ttl)
    }

    /// On a Redis in this process, whose time is tokio's. The others stand together as their names say.
    pub async fn simulated(mark_ttl: Duration) -> Self {
        Self::among(Fleet::alone, mark_ttl)
    }

    pub async fn simulated_sentinel(mark_ttl: Duration) -> Self {
        Self::among(Fleet::with_sentinels, mark_ttl)
    }

    pub async fn simulated_cluster(mark_ttl: Duration) -> Self {
        Self::among(Fleet::cluster, mark_ttl)
    }

    fn among(fleet: impl FnOnce(&Clock) -> Fleet, mark_ttl: Duration) -> Self {
        let clock = clock();
        let address = fleet(&clock).address().unwrap();
        Self { clock: Some(TestClock::OfServers(clock)), ..Self::of_address(address, PREFIX, mark_ttl) }
    }

    fn at(url: &str, prefix: &str, mark_ttl: Duration) -> Self {
        Self::of_address(RedisAddress::parse(url, None).unwrap(), prefix, mark_ttl)
    }

    fn of_address(address: RedisAddress, prefix: &str, mark_ttl: Duration) -> Self {
        let store = store_at(&address, prefix, mark_ttl);
        Self { found_at: Some((address, prefix.to_owned())), ..Self::of_any(store) }
    }

    /// Lets time pass for the store: at once where its clock is the test's.
    pub async fn pass(&self, time: Duration) {
        match &self.clock {
            Some(TestClock::OfMachine(clock)) => *clock.0.lock().unwrap() += time,
            // A server has a key until its last millisecond is over.
            Some(TestClock::OfServers(clock)) => clock.step(time + Duration::from_millis(1)),
            None => tokio::time::sleep(time).await,
        }
    }

    /// Another gateway's view of the same locks and lines; an embedded store has only one, and lines on a quorum too.
    pub fn another_gateway(&self, mark_ttl: Duration) -> Arc<dyn LockStore> {
        match &self.found_at {
            Some((address, prefix)) => store_at(address, prefix, mark_ttl),
            None => self.store.clone(),
        }
    }
}

/// The clocks of this machine, ahead by what a test has skipped.
#[derive(Clone, Debug, Default)]
struct SkippingClock(Arc<Mutex<Duration>>);

impl fencepost::clock::Clock for SkippingClock {
    fn boot(&self) -> Duration {
        SystemClock.boot() + *self.0.lock().unwrap()
    }

    fn wall(&self) -> Duration {
        SystemClock.wall() + *self.0.lock().unwrap()
    }

    fn boot_id(&self) -> String {
        SystemClock.boot_id()
    }
}

fn embedded(mark_ttl: Duration) -> EmbeddedSettings {
    EmbeddedSettings { mark_ttl, line: LINE, ..EmbeddedSettings::default() }
}

/// What keys in Redis begin with, unless something else is asked for.
const PREFIX: &str = "fencepost";

/// The Redis store on a server of the test's.
pub fn redis_store(redis: &RedisServer, mark_ttl: Duration) -> RedisStore {
    let address = RedisAddress::parse(redis.url(), None).unwrap();
    RedisStore::start(&address, &settings(PREFIX, mark_ttl)).unwrap()
}

fn store_at(address: &RedisAddress, prefix: &str, mark_ttl: Duration) -> Arc<dyn LockStore> {
    fencepost::store::open(address, &settings(prefix, mark_ttl)).unwrap()
}

fn settings(prefix: &str, mark_ttl: Duration) -> RedisSettings {
    let prefix = prefix.to_owned();
    let (reply_timeout, max_ttl) = (PATIENCE, Duration::from_secs(24 * 60 * 60));
    // Without a bound, and `maxmemory`, no records are kept.
    let once_memory = OnceMemory::Bytes(1 << 30);
    RedisSettings {
        prefix,
        reply_timeout,
        mark_ttl,
        max_ttl,
        once_memory,
        line: LINE,
        ..RedisSettings::default()
    }
}

/// A clock that begins at the time of this machine and goes on as tokio's does.
fn clock() -> Clock {
    Clock::running(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64)
}

/// Makes a test for each of these stores out of a function that is given an [`AnyStore`]; its module says the `MARK_TTL`.
#[macro_export]
macro_rules! store_tests {
    ($name:ident on $($store:ident)+ $(, simulated as $($simulated:ident)+)?) => {
        mod $name {
            use super::MARK_TTL;
            use $crate::stores::AnyStore;

            $(#[tokio::test(flavor = "multi_thread")]
            async fn $store() {
                super::$name(&AnyStore::$store(MARK_TTL).await).await;
            })+

            // Nothing outside of these takes time, so none is waited for.
            $($(#[tokio::test(start_paused = true)]
            async fn $simulated() {
                super::$name(&AnyStore::$simulated(MARK_TTL).await).await;
            })+)?
        }
    };
}

/// Tests on the stores that need no server, or none outside of the test's own process.
#[macro_export]
macro_rules! for_each_local_store {
    ($($name:ident),+ $(,)?) => {
        $($crate::store_tests!(
            // Not on a quorum: what the gateway itself keeps for one goes by the clock of the machine.
            $name on file memory, simulated as simulated simulated_sentinel simulated_cluster
        );)+
    };
}

/// Tests on the stores that are servers.
#[macro_export]
macro_rules! for_each_server {
    ($($name:ident),+ $(,)?) => { $($crate::store_tests!($name on redis sentinel cluster quorum);)+ };
}

/// Tests on all stores.
#[macro_export]
macro_rules! for_each_store {
    ($($name:ident),+ $(,)?) => { $($crate::store_tests!($name on file memory redis sentinel cluster quorum);)+ };
}

/// Tests on the stores that keep records. None of them waits for longer than a short lease.
#[macro_export]
macro_rules! for_each_record_store {
    ($($name:ident),+ $(,)?) => {
        $($crate::store_tests!(
            $name on file memory redis sentinel cluster,
            simulated as simulated simulated_sentinel simulated_cluster
        );)+
    };
}

/// Tests in which days pass: on the stores that keep records and whose clock a test can move.
#[macro_export]
macro_rules! for_each_record_store_with_a_clock {
    ($($name:ident),+ $(,)?) => {
        $($crate::store_tests!(
            $name on file memory, simulated as simulated simulated_sentinel simulated_cluster
        );)+
    };
}
