//! A Redis whose memory is full grants nothing: who asks is told so, and holders notice nothing.

use super::{lines_with, says};
use kit::gateway::run;
use kit::quorum::{asks_all, is_ready, shows};
use kit::{Client, Gateway, Quorum, RedisCluster, RedisServer, Stage, eventually, fresh_token};

const FULL: &str = "the memory of Redis is full, so no new lock is granted: raise maxmemory";
const TAKES_NO_RECORDS: &str = "this Redis takes no new records";

async fn set_maxmemory(redis: &RedisServer, bytes: &str) {
    let _: () = redis.command(&["CONFIG", "SET", "maxmemory", bytes]).await;
}

async fn is_told(client: &Client, path: &str) -> bool {
    let answer = client.get(path).send().await;
    answer.status == 503 && answer.json()["detail"].as_str().unwrap().contains(FULL)
}

async fn shows_unready(client: &Client) -> bool {
    let metrics = client.get("/metrics").send().await.expect(200);
    String::from_utf8_lossy(&metrics.body).contains("\nfencepost_ready 0\n")
}

fn check(store: &str) -> (Option<i32>, String) {
    let output = run(&["check", "--store", store]);
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_redis_makes_gateways_unready_and_holders_notice_nothing() {
    let stage = Stage::redis().await;
    let redis = stage.redis.as_ref().unwrap();
    let client = stage.client();
    let token = client.put("/locks/held?ttl=1m").send().await.expect(201).token();
    set_maxmemory(redis, "1").await;
    eventually("it is not ready", async || is_told(&client, "/readyz").await).await;
    says(&stage.gateway, FULL).await;
    let answer = client.put("/locks/new").send().await.expect_problem(503, "store-unavailable");
    assert!(answer.json()["detail"].as_str().unwrap().contains(FULL), "{}", answer.json());
    assert!(shows_unready(&client).await);
    let (status, page) = check(redis.url());
    assert_eq!(status, Some(1), "{page}");
    assert!(page.contains(&format!("\ncannot be used now: {FULL} (1 bytes)\n")), "{page}");
    assert!(page.contains("none; nothing more is granted at 1 bytes, and "), "{page}");
    client.patch("/locks/held?ttl=2m").token(&token).send().await.expect(200);
    client.delete("/locks/held").token(&token).send().await.expect(204);
    // It starts all the same: there may be room in a moment.
    let late = Gateway::on_redis(redis, &[]).await;
    let late_client = Client::new(late.address);
    assert!(is_told(&late_client, "/readyz").await);
    set_maxmemory(redis, "100mb").await;
    for client in [&client, &late_client] {
        eventually("there is room", async || client.get("/readyz").send().await.status == 200).await;
        client.put("/locks/new?ttl=1s").send().await;
    }
    assert_eq!(check(redis.url()).0, Some(0));
    assert!(lines_with(&stage.gateway, "nothing is granted on this Redis") == 0, "it is safe to lock on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_lost_its_bound_takes_what_was_begun_and_nothing_new_which_the_log_says_once() {
    let redis = RedisServer::start_with(&["--maxmemory", "1gb"]).await;
    let gateway = Gateway::on_redis(&redis, &[]).await;
    let client = Client::new(gateway.address);
    let token = client.put("/once/work?ttl=1m").send().await.expect(201).token();
    let begins = async || client.put(&format!("/once/{}?ttl=1m", fresh_token())).send().await;
    set_maxmemory(&redis, "0").await;
    eventually("it begins nothing", async || begins().await.status == 501).await;
    begins().await.expect_problem(501, "once-unsupported");
    client.get("/once/new").send().await.expect_problem(404, "not-begun");
    client.patch("/once/work").token(&token).send().await.expect(200);
    client.post("/once/work").token(&token).body("result").send().await.expect(200);
    client.put("/once/work").send().await.expect(200);
    client.get("/records").send().await.expect(200);
    client.delete("/once/work?force=true").send().await.expect(204);
    says(&gateway, TAKES_NO_RECORDS).await;
    assert!(check(redis.url()).1.contains("no new ones: Redis has no maxmemory"));
    set_maxmemory(&redis, "1gb").await;
    eventually("it begins some", async || begins().await.status == 201).await;
    says(&gateway, "this Redis takes new records again").await;
    assert_eq!(lines_with(&gateway, TAKES_NO_RECORDS), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_says_so_too_of_a_replica_without_a_bound_that_takes_over_in_a_cluster() {
    let cluster = RedisCluster::start_with(&["--maxmemory", "100mb"]).await;
    let gateway = Gateway::start(&["--store", &cluster.url()]).await;
    let client = Client::new(gateway.address);
    is_ready(&client).await;
    set_maxmemory(&cluster.nodes[cluster.replica_of(0).await], "0").await;
    assert_eq!(lines_with(&gateway, TAKES_NO_RECORDS), 0);
    let successor = cluster.take_over(0).await.server;
    says(&gateway, TAKES_NO_RECORDS).await;
    let address = format!("127.0.0.1:{}", cluster.nodes[successor].port());
    let is_of_it = |line: &String| line.contains(TAKES_NO_RECORDS) && line.contains(&address);
    assert!(gateway.log().iter().any(is_of_it), "{:?}", gateway.log());
}

/// Its disk is full, say, or a replica is away.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_refuses_to_write_makes_gateways_unready() {
    let stage = Stage::redis().await;
    let redis = stage.redis.as_ref().unwrap();
    let client = stage.client();
    let set = async |name: &str, value: &str| redis.command::<()>(&["CONFIG", "SET", name, value]).await;
    let unready = async |code: &str| {
        eventually(code, async || {
            let answer = client.get("/readyz").send().await;
            answer.status == 503 && answer.json()["detail"].as_str().unwrap().contains(code)
        })
        .await;
        client.put("/locks/other").send().await.expect_problem(503, "store-unavailable");
        assert!(shows_unready(&client).await);
        let (status, page) = check(redis.url());
        assert!(
            status == Some(1) && page.contains(&format!("\ncannot be used now: Redis: {code}")),
            "{page}"
        );
    };
    let ready = async || {
        eventually("it is ready", async || client.get("/readyz").send().await.status == 200).await;
        client.put(&format!("/locks/{}", fresh_token())).send().await.expect(201);
        assert_eq!(check(redis.url()).0, Some(0));
    };
    set("min-replicas-to-write", "1").await;
    unready("NOREPLICAS").await;
    set("min-replicas-to-write", "0").await;
    ready().await;
    // A snapshot cannot be saved: its place is taken by a folder.
    set("save", "3600 1").await;
    let snapshot = redis
        .directory()
        .join(redis.command::<Vec<String>>(&["CONFIG", "GET", "dbfilename"]).await.remove(1));
    std::fs::create_dir_all(snapshot.join("taken")).unwrap();
    let saves = async |status: &str| {
        redis.command::<()>(&["BGSAVE"]).await;
        eventually(status, async || redis.info("rdb_last_bgsave_status").await == status).await;
    };
    saves("err").await;
    unready("MISCONF").await;
    std::fs::remove_dir_all(&snapshot).unwrap();
    saves("ok").await;
    ready().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_is_ready_while_most_of_its_servers_have_room() {
    let quorum = Quorum::start(3).await;
    let gateway = quorum.gateway(&[]).await;
    let client = Client::new(gateway.address);
    is_ready(&client).await;
    let token = client.put("/locks/held?ttl=1m").send().await.expect(201).token();
    set_maxmemory(&quorum.nodes[0], "1").await;
    eventually("it is seen", async || check(&quorum.url()).1.contains(FULL)).await;
    let (status, page) = check(&quorum.url());
    assert!(status == Some(0) && page.contains("warning: 127.0.0.1:"), "{page}");
    client.get("/readyz").send().await.expect(200);
    client.put("/locks/new").send().await.expect(201);
    set_maxmemory(&quorum.nodes[1], "1").await;
    eventually("it is not ready", async || is_told(&client, "/readyz").await).await;
    let detail = client.get("/readyz").send().await.json()["detail"].as_str().unwrap().to_owned();
    assert!(
        detail.contains("2 of 3 servers are needed, and 1 can take new locks and connections: 127.0.0.1:"),
        "{detail}"
    );
    assert!(shows_unready(&client).await);
    let (status, page) = check(&quorum.url());
    assert!(status == Some(1) && page.contains("needed, and 1 can be used: "), "{page}");
    client.patch("/locks/held?ttl=2m").token(&token).send().await.expect(200);
    client.delete("/locks/held").token(&token).send().await.expect(204);
    set_maxmemory(&quorum.nodes[0], "0").await;
    is_ready(&client).await;
}

/// Else the alarms would be silent while one more failure, or none, stops all locking.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_a_quorum_that_accepts_no_new_lock_shows_in_the_numbers() {
    let quorum = Quorum::start(3).await;
    let gateway = quorum.gateway(&[]).await;
    is_ready(&Client::new(gateway.address)).await;
    asks_all(&gateway, &quorum).await;
    set_maxmemory(&quorum.nodes[0], "1").await;
    let set = async |value: &str| {
        let set = ["CONFIG", "SET", "min-replicas-to-write", value];
        quorum.nodes[1].command::<()>(&set).await;
    };
    set("1").await;
    shows(&gateway, &quorum.nodes[0], "grants-nothing").await;
    shows(&gateway, &quorum.nodes[1], "grants-nothing").await;
    shows(&gateway, &quorum.nodes[2], "counts").await;
    set_maxmemory(&quorum.nodes[0], "0").await;
    set("0").await;
    asks_all(&gateway, &quorum).await;
}
