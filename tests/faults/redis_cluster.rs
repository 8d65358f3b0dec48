//! What only a cluster can do to its gateways.

use std::collections::HashSet;

use futures_util::future::join_all;
use tempfile::TempDir;
use tokio::time::{Duration, Instant, sleep};

use kit::cluster::slot_of_lock;
use kit::gateway::run;
use kit::metrics::Scrape;
use kit::{Client, Gateway, RedisCluster, RedisServer, eventually, fresh_token};

/// A lock of this node.
async fn key_on(cluster: &RedisCluster, node: usize) -> String {
    for number in 0.. {
        let key = format!("k{number}");
        if cluster.owner_of(slot_of_lock(&key)).await == node {
            return key;
        }
    }
    unreachable!("each primary has slots")
}

/// A server that is deposed and comes back keeps its connections, and has lost what its replica had not heard.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_was_suspended_repeats_no_number_of_a_server_that_was_a_replica_meanwhile() {
    let cluster = RedisCluster::start().await;
    let gateway = Gateway::start(&["--store", &cluster.url()]).await;
    let client = Client::new(gateway.address);
    let (first, second) = (0, cluster.replica_of(0).await);
    let key = key_on(&cluster, first).await;
    let put = async || {
        let answer = client.put(&format!("/locks/{key}?ttl=30s")).send().await;
        if answer.status != 201 {
            return None;
        }
        client.delete(&format!("/locks/{key}")).token(&answer.token()).send().await;
        Some(answer.fencing_token())
    };
    eventually("the gateway serves", async || put().await.is_some()).await;
    // From here on the replica hears nothing.
    let [primary, replica] = [&cluster.nodes[first], &cluster.nodes[second]];
    let _: () = replica.command(&["CONFIG", "SET", "masterauth", "wrong"]).await;
    let _: () = primary.command(&["CLIENT", "KILL", "TYPE", "replica"]).await;
    eventually("the replica is gone", async || primary.info("connected_slaves").await == "0").await;
    let mut given = HashSet::new();
    for _ in 0..5 {
        given.insert(put().await.unwrap());
    }
    gateway.signal("STOP");
    let _: () = replica.command(&["CLUSTER", "FAILOVER", "TAKEOVER"]).await;
    let _: () = replica.command(&["CONFIG", "SET", "masterauth", ""]).await;
    eventually("the first one has the other's data", async || {
        primary.info("role").await == "slave" && primary.info("master_link_status").await == "up"
    })
    .await;
    let _: () = primary.command(&["CLUSTER", "FAILOVER", "TAKEOVER"]).await;
    primary.becomes_primary().await;
    let late = tokio::spawn({
        let (client, key) = (client.clone(), key.clone());
        async move {
            // Each by a connection of its own, so that some come before the gateway looks.
            let puts =
                (0..20).map(|number| client.put(&format!("/locks/{key}?ttl=30s&owner=o{number}")).send());
            join_all(puts).await
        }
    });
    gateway.signal("CONT");
    let late = late.await.unwrap();
    let number = late.iter().find(|answer| answer.status == 201).map(kit::Answer::fencing_token);
    let newest = given.iter().max().unwrap();
    assert!(number.is_none_or(|number| number > *newest), "{number:?} after {newest}");
}

/// Those who wait at one server do not wait for another.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_are_put_back_although_those_of_another_server_cannot_be() {
    let cluster = RedisCluster::start().await;
    let gateway = Gateway::start(&["--store", &cluster.url()]).await;
    let client = Client::new(gateway.address);
    let (stuck, free) = (key_on(&cluster, 0).await, key_on(&cluster, 1).await);
    for key in [&stuck, &free] {
        client.put(&format!("/locks/{key}?ttl=1h")).send().await.expect(201);
    }
    let wait = |key: &String| {
        let (client, target) = (client.clone(), format!("/locks/{key}?wait=30s&ttl=30s"));
        tokio::spawn(async move { client.put(&target).token(&fresh_token()).send().await })
    };
    let crowd: Vec<_> = (0..30).map(|_| wait(&stuck)).collect();
    let waiter = wait(&free);
    for (key, waiters) in [(&stuck, 30), (&free, 1)] {
        eventually("they wait", async || {
            client.get(&format!("/locks/{key}")).send().await.json()["waiters"] == waiters
        })
        .await;
    }
    // A gateway that comes back by another connection has its waiters tell their places again, which nobody can do whose
    // slot is on its way.
    let migration = cluster.begin_migration(slot_of_lock(&stuck), 2).await;
    for kind in ["normal", "pubsub"] {
        let _: u64 = cluster.nodes[0].command(&["CLIENT", "KILL", "TYPE", kind]).await;
    }
    eventually("their places cannot be put back", async || {
        let refused: String = cluster.nodes[0].command(&["INFO", "errorstats"]).await;
        let count = refused.lines().find_map(|line| line.strip_prefix("errorstat_TRYAGAIN:count="));
        count.is_some_and(|count| count.trim().parse::<u32>().unwrap() >= 16)
    })
    .await;
    let _: () = cluster.nodes[1].command(&["FLUSHALL"]).await;
    let flushed_at = Instant::now();
    waiter.await.unwrap().expect(201);
    assert!(flushed_at.elapsed() < Duration::from_secs(5), "woken after {:?}", flushed_at.elapsed());
    while cluster.move_keys(migration, 1_000).await > 0 {}
    cluster.end_migration(migration).await;
    for waiter in crowd {
        waiter.abort();
    }
}

/// A server ends the subscriptions to a slot that leaves it. Until the gateway subscribes again, a waiter learns of its turn late.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_listened_to_again_once_a_slot_has_left_it_and_come_back() {
    let cluster = RedisCluster::start().await;
    let gateway = Gateway::start(&["--store", &cluster.url()]).await;
    let client = Client::new(gateway.address);
    let key = key_on(&cluster, 0).await;
    let lock = format!("/locks/{key}");
    let token = client.put(&format!("{lock}?ttl=1h")).send().await.expect(201).token();
    let waiter = tokio::spawn({
        let (client, target) = (client.clone(), format!("{lock}?wait=60s&ttl=30s"));
        async move { client.put(&target).token(&fresh_token()).send().await }
    });
    let is_listened_to = async |node: usize| {
        let channels: Vec<String> = cluster.nodes[node].command(&["PUBSUB", "SHARDCHANNELS"]).await;
        !channels.is_empty()
    };
    eventually("the server with the slot is listened to", async || is_listened_to(0).await).await;
    for (from, to) in [(0, 1), (1, 0)] {
        let migration = cluster.begin_migration(slot_of_lock(&key), to).await;
        while cluster.move_keys(migration, 1_000).await > 0 {}
        cluster.end_migration(migration).await;
        cluster.is_whole().await;
        eventually("the server that has the slot now is listened to, and no other", async || {
            is_listened_to(to).await && !is_listened_to(from).await
        })
        .await;
    }
    client.delete(&lock).token(&token).send().await.expect(204);
    waiter.await.unwrap().expect(201);
}

/// A server of a cluster may know its neighbours by no name that its clients could use.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_names_no_host_is_followed_to_where_it_points() {
    let cluster = RedisCluster::start_with(&["--cluster-preferred-endpoint-type", "unknown-endpoint"]).await;
    let gateway = Gateway::start(&["--store", &cluster.url()]).await;
    let client = Client::new(gateway.address);
    let key = key_on(&cluster, 0).await;
    let lock = format!("/locks/{key}?ttl=30s");
    let token = client.put(&lock).send().await.expect(201).token();
    let renew = async || client.patch(&lock).token(&token).send().await.expect(200);
    // To the new server once (ASK), and for good (MOVED).
    let migration = cluster.begin_migration(slot_of_lock(&key), 1).await;
    while cluster.move_keys(migration, 1_000).await > 0 {}
    renew().await;
    cluster.end_migration(migration).await;
    let _: () = cluster.nodes[0].command(&["CONFIG", "RESETSTAT"]).await;
    renew().await;
    let pointed: String = cluster.nodes[0].command(&["INFO", "errorstats"]).await;
    let count = pointed.lines().find_map(|line| line.strip_prefix("errorstat_MOVED:count="));
    let count = count.map_or(0, |count| count.trim().parse::<u32>().unwrap());
    assert!(count <= 1, "sent to the old server {count} times");
}

/// A new node of a cluster has no slot until its first one has come.
#[tokio::test(flavor = "multi_thread")]
async fn the_link_to_a_server_lasts_while_its_first_slot_is_on_its_way() {
    let cluster = RedisCluster::start().await;
    let empty = &cluster.nodes[3];
    let nodes: String = cluster.nodes[0].command(&["CLUSTER", "NODES"]).await;
    let own = nodes.lines().find(|line| line.contains("myself")).unwrap();
    let (_, ports) = own.split(' ').nth(1).unwrap().split_once(':').unwrap();
    let (port, bus_port) = ports.split(',').next().unwrap().split_once('@').unwrap();
    let _: () = empty.command(&["CLUSTER", "RESET", "SOFT"]).await;
    let _: () = empty.command(&["CLUSTER", "MEET", "127.0.0.1", port, bus_port]).await;
    eventually("the empty server knows the others", async || {
        let state: String = empty.command(&["CLUSTER", "INFO"]).await;
        state.contains("cluster_state:ok") && state.contains("cluster_known_nodes:6")
    })
    .await;
    let gateway = Gateway::start(&["--store", &cluster.url()]).await;
    let client = Client::new(gateway.address);
    let key = key_on(&cluster, 0).await;
    let lock = format!("/locks/{key}?ttl=30s");
    let token = client.put(&lock).send().await.expect(201).token();
    let migration = cluster.begin_migration(slot_of_lock(&key), 3).await;
    while cluster.move_keys(migration, 1_000).await > 0 {}
    let renew = async || client.patch(&lock).token(&token).send().await.expect(200);
    let connections = async || {
        let list: String = empty.command(&["CLIENT", "LIST", "TYPE", "normal"]).await;
        let others =
            list.lines().filter(|line| !["cmd=client", "cmd=restore"].iter().any(|own| line.contains(own)));
        others.map(|line| line.split(' ').next().unwrap().to_owned()).collect::<HashSet<_>>()
    };
    renew().await;
    let first = connections().await;
    assert!(!first.is_empty(), "nothing has come to the new server");
    // The map is asked for each second.
    let mut pace = tokio::time::interval(Duration::from_millis(100));
    for _ in 0..25 {
        pace.tick().await;
        renew().await;
    }
    let last = connections().await;
    assert!(first.is_subset(&last), "{first:?} have become {last:?}");
    cluster.end_migration(migration).await;
    renew().await;
}

/// A server that knows the cluster of now, and never hears of it again: it looks for the others where none listens.
async fn cut_off(cluster: &RedisCluster, node_timeout_ms: &str) -> (RedisServer, TempDir) {
    knowing(&known_to_one_cut_off(cluster).await, &["--cluster-node-timeout", node_timeout_ms]).await
}

/// Its file of nodes.
async fn known_to_one_cut_off(cluster: &RedisCluster) -> String {
    let nodes: String = cluster.nodes[0].command(&["CLUSTER", "NODES"]).await;
    let mut known = format!("{} 127.0.0.1:0@0 myself,master - 0 0 0 connected\n", "f".repeat(40));
    for line in nodes.lines() {
        let words: Vec<_> = line.split(' ').collect();
        let (address, _) = words[1].split_once('@').unwrap();
        let flags = words[2].trim_start_matches("myself,");
        known += &format!("{} {address}@1 {flags} {}\n", words[0], words[3..].join(" "));
    }
    known
}

/// A server of a cluster that starts with this in its file of nodes.
async fn knowing(nodes: &str, args: &[&str]) -> (RedisServer, TempDir) {
    let nodes = format!("{nodes}vars currentEpoch 9 lastVoteEpoch 0\n");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("nodes.conf");
    std::fs::write(&file, nodes).unwrap();
    // Its own port for this is of no use to anybody, and by default it is the port plus 10,000.
    let bus_port = kit::server_port().to_string();
    let place = file.to_str().unwrap();
    let own = ["--cluster-enabled", "yes", "--cluster-port", &bus_port, "--cluster-config-file", place];
    let args = [&own[..], args].concat();
    (RedisServer::start_with(&args).await, directory)
}

/// The address of the cluster, with this server before all others.
fn with_first(cluster: &RedisCluster, first: &RedisServer) -> String {
    cluster.url().replace("://", &format!("://127.0.0.1:{},", first.port()))
}

/// How often a server was asked for the map.
async fn asked_for_the_map(server: &RedisServer) -> u32 {
    let stats: String = server.command(&["INFO", "commandstats"]).await;
    let count = stats.lines().find_map(|line| line.strip_prefix("cmdstat_cluster|slots:calls="));
    count.map_or(0, |count| count.split(',').next().unwrap().parse().unwrap())
}

/// Its balancer sends it nothing while it is not ready: no request finds out that the map is an old one.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_without_requests_follows_a_failover_that_the_server_with_the_map_does_not_know() {
    let cluster = RedisCluster::start().await;
    // It takes the cluster for whole for an hour.
    let (cut_off, _files) = cut_off(&cluster, "3600000").await;
    eventually("it takes the cluster for whole", async || {
        cut_off.command::<String>(&["CLUSTER", "INFO"]).await.contains("cluster_state:ok")
    })
    .await;
    let gateway = Gateway::start(&["--store", &with_first(&cluster, &cut_off)]).await;
    let client = Client::new(gateway.address);
    eventually("it is ready", async || client.get("/readyz").send().await.status == 200).await;
    let before = asked_for_the_map(&cut_off).await;
    eventually("that server is the one with the map", async || {
        asked_for_the_map(&cut_off).await >= before + 2
    })
    .await;
    cluster.take_over(0).await;
    let named = format!("Redis at 127.0.0.1:{} cannot be used: it is a replica", cluster.nodes[0].port());
    eventually("it says which server it misses", async || {
        let answer = client.get("/readyz").send().await;
        answer.status == 503 && answer.json()["detail"].as_str().unwrap().contains(&named)
    })
    .await;
    eventually("it is ready again", async || client.get("/readyz").send().await.status == 200).await;
}

/// As when servers have come back at each other's addresses: the others serve all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_lost_the_address_of_a_primary_makes_no_hole_that_another_can_fill() {
    let cluster = RedisCluster::start().await;
    let known = known_to_one_cut_off(&cluster).await;
    let addressed = format!("127.0.0.1:{}@1 master", cluster.nodes[1].port());
    assert!(known.contains(&addressed), "{known}");
    let lost = known.replace(&addressed, ":0@0 master,noaddr");
    let (holey, _files) = knowing(&lost, &["--cluster-node-timeout", "3600000"]).await;
    eventually("it calls the cluster up", async || {
        holey.command::<String>(&["CLUSTER", "INFO"]).await.contains("cluster_state:ok")
    })
    .await;
    let alone = format!("redis+cluster://127.0.0.1:{}", holey.port());
    for url in [with_first(&cluster, &holey), alone] {
        let output = run(&["check", "--store", &url]);
        let page = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && page.contains("16384 of 16384 have a server"), "{page}");

        let gateway = Gateway::start(&["--store", &url]).await;
        let client = Client::new(gateway.address);
        eventually("it is ready", async || client.get("/readyz").send().await.status == 200).await;
        let key = key_on(&cluster, 1).await;
        let before = asked_for_the_map(&holey).await;
        eventually("the server with the hole is the one with the map", async || {
            client.get("/readyz").send().await.expect(200);
            let token = client.put(&format!("/locks/{key}?ttl=30s")).send().await.expect(201).token();
            client.delete(&format!("/locks/{key}")).token(&token).send().await.expect(204);
            asked_for_the_map(&holey).await >= before + 3
        })
        .await;
    }
}

/// It may know an older map than any other.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_finds_the_cluster_down_is_not_asked_for_the_map_any_more() {
    let cluster = RedisCluster::start().await;
    let (cut_off, _files) = cut_off(&cluster, "500").await;
    eventually("it misses all others", async || {
        let info: String = cut_off.command(&["CLUSTER", "INFO"]).await;
        info.contains("cluster_state:fail") && info.contains("cluster_slots_pfail:16384")
    })
    .await;
    let gateway = Gateway::start(&["--store", &with_first(&cluster, &cut_off)]).await;
    let client = Client::new(gateway.address);
    eventually("it is ready", async || client.get("/readyz").send().await.status == 200).await;
    // The map is asked for each second.
    sleep(Duration::from_secs(2)).await;
    let asked = asked_for_the_map(&cut_off).await;
    assert!(asked > 0, "nothing was put to the test");
    sleep(Duration::from_secs(3)).await;
    assert_eq!(asked_for_the_map(&cut_off).await, asked);
}

/// What the page on stores grants to a gateway's user is enough.
#[tokio::test(flavor = "multi_thread")]
async fn the_smallest_user_is_enough_on_a_cluster() {
    let cluster = RedisCluster::start().await;
    let page = include_str!("../../docs/stores.md");
    let user = page.lines().find(|line| line.trim().starts_with("ACL SETUSER fencepost")).unwrap();
    let (_, more) = page.split_once("A cluster's gateways need `").unwrap();
    let words: Vec<_> = user.split_whitespace().chain(more.split('`').next().unwrap().split(' ')).collect();
    for node in &cluster.nodes {
        let _: () = node.command(&words).await;
    }
    let url = cluster.url().replace("://", "://fencepost:password@");
    let gateway = Gateway::start(&["--store", &url]).await;
    let client = Client::new(gateway.address);
    for node in 0..3 {
        let key = key_on(&cluster, node).await;
        client.put(&format!("/locks/{key}?ttl=1s")).send().await.expect(201);
        let waited = client.put(&format!("/locks/{key}?ttl=30s&wait=10s")).send().await.expect(201);
        client.patch(&format!("/locks/{key}")).token(&waited.token()).send().await.expect(200);
        client.delete(&format!("/locks/{key}")).token(&waited.token()).send().await.expect(204);
    }
    client.get("/readyz").send().await.expect(200);
}

/// A cluster without full coverage goes on as if nothing were missing, also one that was told to forget its dead servers.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_not_called_usable_while_slots_have_no_server() {
    let own = format!("{} 127.0.0.1:0@0 myself,master - 0 0 1 connected", "f".repeat(40));
    // The cluster has lost the address of the other one, and calls itself up.
    let lost = format!("{} :0@0 master,noaddr - 0 0 2 disconnected 16383", "e".repeat(40));
    for nodes in [format!("{own} 0-16382\n"), format!("{own} 0-16382\n{lost}\n")] {
        let (server, _files) = knowing(&nodes, &["--cluster-require-full-coverage", "no"]).await;
        eventually("it calls the cluster up", async || {
            server.command::<String>(&["CLUSTER", "INFO"]).await.contains("cluster_state:ok")
        })
        .await;
        let url = format!("redis+cluster://127.0.0.1:{}", server.port());
        let gateway = Gateway::start(&["--store", &url]).await;
        let client = Client::new(gateway.address);
        let reason = "some slots of the cluster have no server: 1 of 16384";
        for target in ["/readyz", "/locks"] {
            let answer = client.get(target).send().await.expect_problem(503, "store-unavailable");
            assert_eq!(answer.json()["detail"], reason, "{target}: {nodes}");
        }
        let is_ready = async || Scrape::of(gateway.address).await.get("fencepost_ready") == 1.0;
        assert!(!is_ready().await, "{nodes}");
        let check = || {
            let output = run(&["check", "--store", &url]);
            (output.status.code(), String::from_utf8(output.stdout).unwrap())
        };
        let (code, page) = check();
        let is_told = page.contains(&format!("\ncannot be used now: {reason}\n"));
        assert!(code == Some(1) && is_told && page.contains("16383 of 16384 have a server"), "{page}");
        assert!(page.ends_with("It cannot be used now.\n"), "{page}");

        let _: () = server.command(&["CLUSTER", "SETSLOT", "16383", "NODE", &"f".repeat(40)]).await;
        eventually("it is ready", async || client.get("/readyz").send().await.status == 200).await;
        assert!(is_ready().await, "{nodes}");
        let (code, page) = check();
        assert!(code == Some(0) && page.contains("16384 of 16384 have a server"), "{page}");
    }
}
