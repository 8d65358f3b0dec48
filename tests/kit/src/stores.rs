//! Every store, for what is asked through the trait.

use std::sync::Arc;
use std::time::Duration;

use fencepost::clock::SystemClock;
use fencepost::store::embedded::{EmbeddedSettings, EmbeddedStore};
use fencepost::store::redis::{RedisAddress, RedisSettings, RedisStore};
use fencepost::store::{LineSettings, LockStore};
use tempfile::TempDir;

use super::{PATIENCE, RedisServer, cluster, fresh_token, quorum, sentinels};

/// How lines behave here: tickets end soon enough to be seen, and lines are full soon.
pub const LINE: LineSettings =
    LineSettings { ticket_ttl: Duration::from_millis(1_500), max_waiters_per_key: 5 };

/// A store, and what must live as long as it does.
pub struct AnyStore {
    pub store: Arc<dyn LockStore>,
    _directory: Option<TempDir>,
    _redis: Option<RedisServer>,
    /// Where others find the same locks, and what their keys begin with; nothing where there can be no others.
    found_at: Option<(String, String)>,
}

impl AnyStore {
    fn of(store: impl LockStore) -> Self {
        Self::of_any(Arc::new(store))
    }

    fn of_any(store: Arc<dyn LockStore>) -> Self {
        Self { store, _directory: None, _redis: None, found_at: None }
    }

    pub async fn file(mark_ttl: Duration) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("locks.redb");
        let store =
            EmbeddedStore::open(&file, EmbeddedSettings { mark_ttl, line: LINE }, Arc::new(SystemClock))
                .unwrap();
        Self { _directory: Some(directory), ..Self::of(store) }
    }

    pub async fn memory(mark_ttl: Duration) -> Self {
        Self::of(
            EmbeddedStore::in_memory(EmbeddedSettings { mark_ttl, line: LINE }, Arc::new(SystemClock))
                .unwrap(),
        )
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

    fn at(url: &str, prefix: &str, mark_ttl: Duration) -> Self {
        let found_at = Some((url.to_owned(), prefix.to_owned()));
        Self { found_at, ..Self::of_any(store_at(url, prefix, mark_ttl)) }
    }

    /// Another gateway's view of the same locks and lines; an embedded store has only one, and lines on a quorum too.
    pub fn another_gateway(&self, mark_ttl: Duration) -> Arc<dyn LockStore> {
        match &self.found_at {
            Some((url, prefix)) => store_at(url, prefix, mark_ttl),
            None => self.store.clone(),
        }
    }
}

/// What keys in Redis begin with, unless something else is asked for.
const PREFIX: &str = "fencepost";

/// The Redis store on a server of the test's.
pub fn redis_store(redis: &RedisServer, mark_ttl: Duration) -> RedisStore {
    let (address, settings) = place(redis.url(), PREFIX, mark_ttl);
    RedisStore::start(&address, &settings).unwrap()
}

fn store_at(url: &str, prefix: &str, mark_ttl: Duration) -> Arc<dyn LockStore> {
    let (address, settings) = place(url, prefix, mark_ttl);
    fencepost::store::open(&address, &settings).unwrap()
}

fn place(url: &str, prefix: &str, mark_ttl: Duration) -> (RedisAddress, RedisSettings) {
    let address = RedisAddress::parse(url, None).unwrap();
    let prefix = prefix.to_owned();
    let (reply_timeout, max_ttl) = (PATIENCE, Duration::from_secs(24 * 60 * 60));
    let settings =
        RedisSettings { prefix, reply_timeout, mark_ttl, max_ttl, line: LINE, ..RedisSettings::default() };
    (address, settings)
}

/// Makes a test for each of these stores out of a function that is given an [`AnyStore`]; its module says the `MARK_TTL`.
#[macro_export]
macro_rules! store_tests {
    ($name:ident on $($store:ident)+) => {
        mod $name {
            use super::MARK_TTL;
            use $crate::stores::AnyStore;

            $(#[tokio::test(flavor = "multi_thread")]
            async fn $store() {
                super::$name(&AnyStore::$store(MARK_TTL).await).await;
            })+
        }
    };
}

/// Tests on the stores that need no server.
#[macro_export]
macro_rules! for_each_local_store {
    ($($name:ident),+ $(,)?) => { $($crate::store_tests!($name on file memory);)+ };
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
