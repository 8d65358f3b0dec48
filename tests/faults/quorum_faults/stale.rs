//! A server that comes back with what it held some time ago, while only one fails at a time. Whatever its record says of
//! it, it has no say before every lease is over that it may have helped to grant.

use super::ways::{Divisible, Parting, begin};
use kit::proxy::Gate;
use kit::quorum::{DURABLE, RECORD, counts_at_once, is_ready};
use kit::{Client, Gateway, RedisServer, eventually, fresh_token};

/// Else a server waits for five seconds before it sends its data to one that follows it.
const COPIES_AT_ONCE: [&str; 2] = ["--repl-diskless-sync-delay", "0"];

/// The server that is made to forget, and the other two.
const STALE: usize = 0;
const SECOND: usize = 1;
const THIRD: usize = 2;

/// Three servers that have each write on their disks before they answer, and one gateway.
struct Scene {
    whole: Divisible,
    _gateway: Gateway,
    client: Client,
    lock: String,
}

impl Scene {
    async fn start() -> Self {
        let whole = Divisible::start(3, 1, &[&DURABLE[..], &COPIES_AT_ONCE].concat()).await;
        let url = whole.url(0);
        let gateway = Gateway::start(&["--store", &url, "--store-timeout", "500ms"]).await;
        let client = Client::new(gateway.address);
        is_ready(&client).await;
        whole.quorum.is_whole().await;
        for node in &whole.quorum.nodes {
            // So gateways of an earlier version have it.
            let _: i64 = node.command(&["HSET", RECORD, "durable", "1"]).await;
        }
        let lock = format!("/locks/{}?ttl=2m", fresh_token());
        Self { whole, _gateway: gateway, client, lock }
    }

    fn stale(&mut self) -> &mut RedisServer {
        &mut self.whole.quorum.nodes[STALE]
    }

    fn part(&self, node: usize) {
        begin(Parting::Silence, &self.whole.ways[node].to_node[0], &Gate::new());
    }

    fn mend(&self, node: usize) {
        let way = &self.whole.ways[node].to_node[0];
        way.become_good();
        // What fell silent stays so; a new connection works.
        way.proxy.sever();
    }

    /// Has the lock granted by all servers but one.
    async fn grant_without(&self, node: usize) {
        self.part(node);
        // The gateway may have to find out first that the others count.
        eventually("the lock is granted", async || self.client.put(&self.lock).send().await.status == 201)
            .await;
    }

    /// Has what the server keeps on its disk fall behind what it accepts, with a lock that stands there and at one other.
    async fn forget_the_grant(&mut self) {
        self.grant_without(THIRD).await;
        self.stale().restart().await;
        self.mend(THIRD);
        self.part(SECOND);
    }

    /// Waits until the gateway has found out that the server follows another.
    async fn is_known_as_replica(&self) {
        eventually("the gateway knows it as a replica", async || {
            let answer = self.client.get("/readyz").send().await;
            answer.status == 503 && answer.json()["detail"].as_str().unwrap().contains("it is a replica")
        })
        .await;
    }

    /// Nobody else gets the lock, before the server is in quarantine or after that.
    async fn nobody_else_gets_it(&self) {
        let try_once = async || {
            let answer = self.client.put(&self.lock).send().await;
            assert!([423, 503].contains(&answer.status), "{} {}", answer.status, answer.json());
        };
        let node = &self.whole.quorum.nodes[STALE];
        eventually("the server is in quarantine", async || {
            try_once().await;
            is_in_quarantine(node).await
        })
        .await;
        let others = [SECOND, THIRD].map(|node| &self.whole.quorum.nodes[node]);
        for node in others {
            assert!(!is_in_quarantine(node).await, "more than one has forgotten");
        }
        try_once().await;
        // Another gateway may have seen it first. On a busy machine servers may not answer in time for a while.
        eventually("the gateway knows of the quarantine", async || {
            let answer = self.client.get("/readyz").send().await;
            answer.status == 503 && answer.json()["detail"].to_string().contains("quarantine")
        })
        .await;
    }
}

async fn is_in_quarantine(node: &RedisServer) -> bool {
    node.command::<Option<u64>>(&["HGET", RECORD, "since"]).await.is_some_and(|since| since > 0)
}

/// One server that counts has the lock, and the other one lacks it: neither are enough.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_too_few_servers_have_left_is_told_of_and_can_be_broken_by_its_number() {
    let mut scene = Scene::start().await;
    scene.grant_without(THIRD).await;
    let path = scene.lock.split('?').next().unwrap().to_owned();
    let number = scene.client.get(&path).send().await.expect(200).json()["fencing_token"].as_u64().unwrap();
    scene.mend(THIRD);
    scene.whole.quorum.nodes[SECOND].restart().await;
    eventually("the grant is told of", async || {
        let answer = scene.client.get(&path).send().await;
        let detail = answer.json()["detail"].as_str().unwrap_or_default().to_owned();
        let names = format!("the grant {number} has the lock on 1 of them");
        answer.status == 503
            && ["do not agree: ", "quarantine", &names].into_iter().all(|part| detail.contains(part))
    })
    .await;
    let forced = format!("{path}?force=true");
    scene.client.delete(&forced).send().await.expect(503);
    scene.client.delete(&format!("{forced}&fencing_token={}", number + 1)).send().await.expect(503);
    // None of these has ended it.
    scene.client.get(&path).send().await.expect(503);
    eventually("it is over", async || {
        let answer = scene.client.delete(&format!("{forced}&fencing_token={number}")).send().await;
        assert!([503, 404].contains(&answer.status), "{}", answer.status);
        answer.status == 404
    })
    .await;
    eventually("the next client gets it", async || scene.client.put(&scene.lock).send().await.status == 201)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_file_was_switched_off_has_no_say_by_what_the_file_says() {
    let mut scene = Scene::start().await;
    let _: () = scene.stale().command(&["CONFIG", "SET", "appendonly", "no"]).await;
    scene.forget_the_grant().await;
    scene.nobody_else_gets_it().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ran_without_its_file_has_no_say_by_what_the_file_says() {
    let mut scene = Scene::start().await;
    let stale = scene.stale();
    stale.kill();
    stale.start_once_with(&["--appendonly", "no"]).await;
    counts_at_once(stale).await;
    scene.forget_the_grant().await;
    scene.nobody_else_gets_it().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_followed_another_has_no_say_by_what_that_one_holds() {
    let mut scene = Scene::start().await;
    let second = &scene.whole.quorum.nodes[SECOND];
    // Its first replica would make that one go into quarantine, too.
    let (port, first) = (second.port(), RedisServer::start().await);
    first.follow(port).await;
    counts_at_once(second).await;
    scene.grant_without(SECOND).await;
    scene.mend(SECOND);
    scene.stale().follow(port).await;
    scene.part(THIRD);
    scene.is_known_as_replica().await;
    scene.stale().promote().await;
    scene.nobody_else_gets_it().await;
}

/// Its process is the same all the time, and the record is its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_followed_its_former_replica_has_no_say_by_the_record_that_comes_back() {
    let mut scene = Scene::start().await;
    let copy = RedisServer::start_with(&COPIES_AT_ONCE).await;
    copy.follow(scene.stale().port()).await;
    // By its first replica it went into quarantine.
    counts_at_once(scene.stale()).await;
    let record =
        async |node: &RedisServer| node.command::<Vec<String>>(&["HMGET", RECORD, "run", "since"]).await;
    let own = record(scene.stale()).await;
    eventually("the replica has the record", async || record(&copy).await == own).await;
    copy.promote().await;
    scene.grant_without(THIRD).await;
    scene.stale().follow(copy.port()).await;
    scene.is_known_as_replica().await;
    scene.mend(THIRD);
    scene.part(SECOND);
    scene.stale().promote().await;
    scene.nobody_else_gets_it().await;
}
