//! Sentinel, Cluster and quorum as they are protected: with passwords and with TLS. What happens when they fail over, or
//! fail, stands in `failover.rs` and `quorum_faults.rs`.

use futures_util::future::join_all;

use kit::certificates::Certificates;
use kit::metrics::Scrape;
use kit::redis_server::RedisServer;
use kit::sentinels::{MASTER, SentinelOptions, SentinelSetup};
use kit::{Client, Gateway, Quorum, RedisCluster, eventually, server_port};

/// Takes a lock and releases it, which tells that all is connected.
async fn serves(gateway: &Gateway) {
    let client = Client::new(gateway.address);
    eventually("it is ready", async || client.get("/readyz").send().await.status == 200).await;
    let token = client.put("/locks/k?ttl=30s").send().await.expect(201).token();
    client.delete("/locks/k").token(&token).send().await.expect(204);
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_and_servers_ask_for_passwords_of_their_own() {
    let options = SentinelOptions {
        password: Some("of-servers"),
        sentinel_password: Some("of-sentinels"),
        ..SentinelOptions::default()
    };
    let setup = SentinelSetup::start_with(options).await;
    let gateway = Gateway::start(&["--store", &setup.url(), "--sentinel-password", "of-sentinels"]).await;
    serves(&gateway).await;
    // Either of them alone opens nothing, and none is told to anybody.
    for (args, told) in [
        (
            &["--store", &setup.url()][..],
            "only 0 of 3 sentinels named a primary, which is no majority: a sentinel asks for a password (NOAUTH): set \
             FENCEPOST_SENTINEL_PASSWORD",
        ),
        (
            &["--store", &setup.url(), "--sentinel-password", "of-servers"],
            "only 0 of 3 sentinels named a primary, which is no majority: a sentinel refuses the password, or does not know \
             the user (WRONGPASS): look at FENCEPOST_SENTINEL_PASSWORD (--sentinel-password) and --sentinel-user",
        ),
        (
            &[
                "--store",
                &setup.url().replace("of-servers", "guessed"),
                "--sentinel-password",
                "of-sentinels",
            ],
            "(WRONGPASS): look at --redis-password-file",
        ),
    ] {
        let stranger = Gateway::start(args).await;
        let client = Client::new(stranger.address);
        let mut said = String::new();
        // On a busy machine, a sentinel may at first not answer in time.
        eventually("a password is asked for", async || {
            let refused = client.put("/locks/k").send().await;
            let detail = refused.json()["detail"].as_str().unwrap().to_owned();
            refused.expect_problem(503, "store-unavailable");
            said += &detail;
            detail.contains(told)
        })
        .await;
        said += &stranger.log().join("\n");
        assert!(!said.contains("of-servers") && !said.contains("of-sentinels"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_and_their_servers_speak_tls() {
    let files = Certificates::new();
    let (tls_port, sentinel_tls_port) = (server_port(), server_port());
    let args = files.args(tls_port);
    let _server = RedisServer::start_with(&args.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let mut config = format!("tls-replication yes\nsentinel monitor {MASTER} 127.0.0.1 {tls_port} 1\n");
    for (name, value) in files.settings(sentinel_tls_port) {
        config += &format!("{name} {value}\n");
    }
    let _sentinel = RedisServer::start_sentinel_on(server_port(), &config, None).await.unwrap();
    let url = format!("rediss+sentinel://127.0.0.1:{sentinel_tls_port}/{MASTER}");
    serves(&Gateway::start(&["--store", &url, "--redis-ca", &files.authority()]).await).await;
    // The system's authorities know nothing of ours.
    let stranger = Gateway::start(&["--store", &url]).await;
    Client::new(stranger.address).put("/locks/k").send().await.expect_problem(503, "store-unavailable");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_speaks_tls() {
    let files = Certificates::new();
    let tls_port = server_port();
    let bus_port = server_port().to_string();
    let mut args = files.args(tls_port);
    let more = ["--tls-cluster", "yes", "--cluster-enabled", "yes", "--cluster-port", &bus_port];
    args.extend(more.map(str::to_owned));
    let server = RedisServer::start_with(&args.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let _: () = server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
    let url = format!("rediss+cluster://127.0.0.1:{tls_port}");
    serves(&Gateway::start(&["--store", &url, "--redis-ca", &files.authority()]).await).await;
    let stranger = Gateway::start(&["--store", &url]).await;
    Client::new(stranger.address).put("/locks/k").send().await.expect_problem(503, "store-unavailable");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_servers_of_a_quorum_ask_for_a_password_and_speak_tls() {
    let files = Certificates::new();
    let (mut servers, mut hosts) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let tls_port = server_port();
        let mut args = files.args(tls_port);
        args.extend(["--requirepass", "of-servers"].map(str::to_owned));
        let args = args.iter().map(String::as_str).collect::<Vec<_>>();
        servers.push(RedisServer::start_with(&args).await);
        hosts.push(format!("127.0.0.1:{tls_port}"));
    }
    let hosts = hosts.join(",");
    let url = format!("redlocks://:of-servers@{hosts}/2");
    serves(&Gateway::start(&["--store", &url, "--redis-ca", &files.authority()]).await).await;
    for url in [url.clone(), format!("redlocks://:guessed@{hosts}/2")] {
        let args = match url.contains("guessed") {
            true => vec!["--store".to_owned(), url, "--redis-ca".to_owned(), files.authority()],
            // The system's authorities know nothing of ours.
            false => vec!["--store".to_owned(), url],
        };
        let stranger = Gateway::start(&args.iter().map(String::as_str).collect::<Vec<_>>()).await;
        let refused = Client::new(stranger.address).put("/locks/k").send().await;
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        refused.expect_problem(503, "store-unavailable");
        let said = stranger.log().join("\n") + &detail;
        assert!(!said.contains("of-servers") && !said.contains("guessed"), "{said}");
    }
}

/// The connections that stand know nothing of it, and may end at any time.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_password_shows_with_several_servers_too_while_connections_stand() {
    async fn set_user(servers: &[RedisServer], rules: &[&str]) {
        for server in servers {
            let _: () = server.command(&[&["ACL", "SETUSER", "gateway"], rules].concat()).await;
        }
    }
    let (sentinel, cluster, quorum) =
        tokio::join!(SentinelSetup::start(), RedisCluster::start(), Quorum::start(3));
    let layouts =
        [(sentinel.url(), &sentinel.servers), (cluster.url(), &cluster.nodes), (quorum.url(), &quorum.nodes)];
    join_all(layouts.map(async |(url, servers)| {
        set_user(servers, &["on", ">before", "~*", "&*", "+@all"]).await;
        let gateway = Gateway::start(&["--store", &url.replace("://", "://gateway:before@")]).await;
        serves(&gateway).await;
        let client = Client::new(gateway.address);
        set_user(servers, &["resetpass", ">after"]).await;
        let told =
            "takes no new connection: the server refuses the password, or does not know the user (WRONGPASS)";
        eventually("it is told", async || {
            let answer = client.get("/readyz").send().await;
            answer.status == 503 && answer.json()["detail"].as_str().unwrap().contains(told)
        })
        .await;
        assert_eq!(Scrape::of(gateway.address).await.get("fencepost_ready"), 0.0, "{url}");
        client.put("/locks/k").send().await.expect(201);
        set_user(servers, &[">before"]).await;
        eventually("it is ready again", async || client.get("/readyz").send().await.status == 200).await;
    }))
    .await;
}

/// It stands neither in the arguments nor in what is said.
#[tokio::test(flavor = "multi_thread")]
async fn the_password_of_a_server_is_read_from_a_file() {
    let redis = RedisServer::start_with(&["--requirepass", "s3cret:/?#word"]).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    std::fs::write(&file, "s3cret:/?#word\n").unwrap();
    let flag = ["--store", redis.url(), "--redis-password-file", file.to_str().unwrap()];
    serves(&Gateway::start(&flag).await).await;
    // The user stays in the address.
    let url = redis.url().replace("://", "://default@");
    serves(&Gateway::start(&["--store", &url, flag[2], flag[3]]).await).await;

    std::fs::write(&file, "guessed-it\n").unwrap();
    let gateway = Gateway::start(&flag).await;
    let answer = Client::new(gateway.address).get("/readyz").send().await.expect(503);
    let said = gateway.log().join("\n") + &answer.json().to_string();
    assert!(said.contains("WRONGPASS") && !said.contains("guessed-it"), "{said}");
}

/// Waits until the gateway says so, to those who ask and in its log.
async fn says(gateway: &Gateway, reason: &str) {
    let client = Client::new(gateway.address);
    eventually(reason, async || {
        let answer = client.get("/readyz").send().await;
        answer.status == 503 && answer.json()["detail"].as_str().unwrap().contains(reason)
    })
    .await;
    gateway.logs("the log has it", |line| line.contains(reason)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_servers_the_one_that_cannot_be_used_is_named() {
    let evicts = ["CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru"];
    let mut cluster = RedisCluster::start().await;
    let gateway = Gateway::start(&["--store", &cluster.url()]).await;
    serves(&gateway).await;
    let at = format!("127.0.0.1:{}", cluster.nodes[1].port());
    let _: () = cluster.nodes[1].command(&evicts).await;
    says(&gateway, &format!("{at}: Redis may evict held locks")).await;
    // So that no other takes its place.
    cluster.nodes[4].kill();
    cluster.nodes[1].kill();
    says(&gateway, &format!("Redis at {at} cannot be used: Connection refused")).await;

    let setup = SentinelSetup::start().await;
    let gateway = Gateway::start(&["--store", &setup.url()]).await;
    serves(&gateway).await;
    let primary = &setup.servers[setup.current().await.unwrap()];
    let _: () = primary.command(&evicts).await;
    says(&gateway, &format!("127.0.0.1:{}: Redis may evict held locks", primary.port())).await;
    let mut sentinels: Vec<_> =
        setup.sentinels.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    sentinels.sort();
    let gateway = Gateway::start(&["--store", &setup.url().replace(MASTER, "nobody")]).await;
    let reason = format!("a sentinel says: ERR No such master with that name ({})", sentinels.join(", "));
    says(&gateway, &reason).await;
}
