//! Real gateways on each kind of store, each with locks of its own.

use kit::{Client, Gateway, RedisServer, cluster, eventually, fresh_token, quorum};

/// On the stores that have slots.
pub async fn each_store_with_slots(test: impl AsyncFn(&Client)) {
    let directory = tempfile::tempdir().unwrap();
    let file = format!("file:{}", directory.path().join("locks.redb").display());
    let (redis, cluster) = (RedisServer::start().await, cluster::shared().await.url());
    for store in ["memory:", &file, redis.url(), &cluster] {
        let gateway = Gateway::start(&["--store", store, "--redis-prefix", &fresh_token()]).await;
        let client = Client::new(gateway.address);
        eventually("the store is there", async || client.get("/locks/k").send().await.status == 404).await;
        test(&client).await;
    }
}

/// On these and on a quorum.
pub async fn each_store(test: impl AsyncFn(&Client)) {
    each_store_with_slots(&test).await;
    let gateway = quorum::shared().await.gateway(&["--redis-prefix", &fresh_token()]).await;
    let client = Client::new(gateway.address);
    quorum::is_ready(&client).await;
    test(&client).await;
}
