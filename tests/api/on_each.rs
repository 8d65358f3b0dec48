//! Real gateways on each kind of store, each with locks of its own.

use kit::{Client, Gateway, RedisServer, cluster, eventually, fresh_token, quorum};

/// On the stores that have slots.
pub async fn each_store_with_slots(test: impl AsyncFn(&Client)) {
    each_store_with_slots_and(&[], test).await;
}

/// On these and on a quorum.
pub async fn each_store(test: impl AsyncFn(&Client)) {
    each_store_and(&[], test).await;
}

/// The same, with more flags.
pub async fn each_store_with_slots_and(flags: &[&str], test: impl AsyncFn(&Client)) {
    let directory = tempfile::tempdir().unwrap();
    let file = format!("file:{}", directory.path().join("locks.redb").display());
    let (redis, cluster) = (RedisServer::start().await, cluster::shared().await.url());
    for store in ["memory:", &file, redis.url(), &cluster] {
        // All tests share the cluster.
        let prefix = fresh_token();
        let apart: &[&str] = if store == cluster { &["--redis-prefix", &prefix] } else { &[] };
        let gateway = Gateway::start(&[&["--store", store], apart, flags].concat()).await;
        let client = Client::new(gateway.address);
        eventually("the store is there", async || client.get("/locks/k").send().await.status == 404).await;
        test(&client).await;
    }
}

/// The same, with more flags.
pub async fn each_store_and(flags: &[&str], test: impl AsyncFn(&Client)) {
    each_store_with_slots_and(flags, &test).await;
    let prefix = fresh_token();
    let args = [&["--redis-prefix", &prefix], flags].concat();
    let gateway = quorum::shared().await.gateway(&args).await;
    let client = Client::new(gateway.address);
    quorum::is_ready(&client).await;
    test(&client).await;
}
