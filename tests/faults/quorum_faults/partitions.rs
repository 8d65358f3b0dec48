//! Gateways that do not reach every node, or are not answered by them.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::ways::{Divisible, Parting, begin};
use kit::proxy::Gate;
use kit::quorum::{does_count, has_lock, is_ready};
use kit::{Client, Gateway, eventually, fresh_token};

/// Three nodes, and a gateway on them beside one that can be parted from some.
struct Scene {
    whole: Divisible,
    _gateways: Vec<Gateway>,
    parted: Client,
    other: Client,
}

impl Scene {
    async fn start() -> Self {
        let whole = Divisible::start(3, 2, &[]).await;
        let mut gateways = Vec::new();
        for at in 0..2 {
            let url = whole.url(at);
            gateways.push(Gateway::start(&["--store", &url, "--store-timeout", "500ms"]).await);
        }
        let [parted, other] = [0, 1].map(|at: usize| Client::new(gateways[at].address));
        for client in [&parted, &other] {
            is_ready(client).await;
        }
        Self { whole, _gateways: gateways, parted, other }
    }

    /// Parts the gateway from the first of the nodes.
    fn part_from(&self, nodes: usize, parting: Parting) {
        for node in 0..nodes {
            self.part(0, node, parting);
        }
    }

    fn part(&self, gateway: usize, node: usize, parting: Parting) {
        begin(parting, &self.whole.ways[node].to_node[gateway], &Gate::new());
    }

    fn mend(&self) {
        for ways in &self.whole.ways {
            ways.to_node[0].become_good();
            // What fell silent stays so; a new connection works.
            ways.to_node[0].proxy.sever();
        }
    }
}

fn new_lock() -> String {
    format!("/locks/{}", fresh_token())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_reaches_no_majority_grants_nothing_and_stops_nobody() {
    let scene = Scene::start().await;
    let kept = new_lock();
    let held = scene.parted.put(&format!("{kept}?ttl=1m")).send().await.expect(201);
    scene.part_from(2, Parting::Closed);
    eventually("the gateway is not ready", async || scene.parted.get("/readyz").send().await.status == 503)
        .await;
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(1) {
        let lock = new_lock();
        scene.parted.put(&lock).send().await.expect(503);
        let granted = scene.other.put(&lock).send().await.expect(201);
        scene.other.delete(&lock).token(&granted.token()).send().await.expect(204);
        // Whoever holds a lock renews it through the other.
        scene.parted.patch(&kept).token(&held.token()).send().await.expect(503);
        scene.other.patch(&kept).token(&held.token()).send().await.expect(200);
    }
    scene.mend();
    is_ready(&scene.parted).await;
    let lock = new_lock();
    let before = scene.other.put(&lock).send().await.expect(201);
    scene.other.delete(&lock).token(&before.token()).send().await.expect(204);
    let after = scene.parted.put(&lock).send().await.expect(201);
    assert!(after.fencing_token() > before.fencing_token());
}

/// A node whose answers are lost does all that it is asked to do, and is not waited for.
#[tokio::test(flavor = "multi_thread")]
async fn one_node_that_is_heard_by_nobody_keeps_nobody_waiting_and_keeps_no_lock() {
    let scene = Scene::start().await;
    scene.part_from(1, Parting::Unanswered);
    let mut locks = Vec::new();
    for _ in 0..20 {
        let lock = new_lock();
        let granted = scene.parted.put(&format!("{lock}?ttl=1m")).send().await.expect(201);
        scene.parted.delete(&lock).token(&granted.token()).send().await.expect(204);
        let other = scene.other.put(&format!("{lock}?ttl=1m")).send().await.expect(201);
        assert!(other.fencing_token() > granted.fencing_token());
        scene.other.delete(&lock).token(&other.token()).send().await.expect(204);
        locks.push(lock);
    }
    // It may not have been told of each release, by a gateway that it does not answer.
    scene.mend();
    for lock in locks {
        let key = lock.strip_prefix("/locks/").unwrap();
        let node = &scene.whole.quorum.nodes[0];
        eventually("the node has heard of the release", async || !has_lock(node, key).await).await;
    }
}

/// Every node took the lock, and only one could say so: nobody learns of the grant, and nothing of it stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_too_few_nodes_could_confirm_is_taken_back() {
    let scene = Scene::start().await;
    for parting in [Parting::Unanswered, Parting::Silence] {
        scene.part_from(2, parting);
        let lock = new_lock();
        scene.parted.put(&format!("{lock}?ttl=5m")).send().await.expect(503);
        scene.mend();
        eventually("the lock is free", async || {
            let put = scene.other.put(&format!("{lock}?ttl=5m")).send().await;
            put.status == 201
        })
        .await;
        is_ready(&scene.parted).await;
    }
}

/// One gateway cannot tell the first node of a release, so that the lock stays there. The other, which cannot ask the last
/// node, hears of it from one node, and of the lock's holder from another.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_of_another_lock_is_no_reason_to_refuse_its_holder() {
    let scene = Scene::start().await;
    let (key, old) = (fresh_token(), fresh_token());
    let lock = format!("/locks/{key}?ttl=1m");
    scene.other.put(&lock).token(&old).send().await.expect(201);
    let [first, _, last] = &scene.whole.quorum.nodes[..] else { unreachable!() };
    eventually("the lock is on every node", async || {
        // The gateway may have met one of them only now: then a repetition puts it there.
        scene.other.put(&lock).token(&old).send().await;
        has_lock(first, &key).await && has_lock(last, &key).await
    })
    .await;
    scene.part(1, 0, Parting::Silence);
    scene.other.delete(&format!("/locks/{key}")).token(&old).send().await.expect(204);
    let token = fresh_token();
    let held = scene.other.put(&lock).token(&token).send().await.expect(201);
    scene.part(0, 2, Parting::Closed);
    assert!(has_lock(first, &key).await, "the first node has heard of the release");
    for _ in 0..6 {
        let again = scene.parted.put(&lock).token(&token).send().await;
        assert!([200, 503].contains(&again.status), "{} {}", again.status, again.json());
        // Whoever is refused may be told of no holder, or of the right one.
        let refused = scene.parted.put(&lock).send().await;
        let named = &refused.json()["holder"]["fencing_token"];
        assert!([423, 503].contains(&refused.status), "{} {}", refused.status, refused.json());
        assert!(named.is_null() || *named == held.fencing_token(), "{}", refused.json());
    }
}

/// The lock stands on two nodes of three. If the one that forgot counted, it would be a majority with the third.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_forgot_helps_nobody_to_a_lock_that_it_held() {
    let lease = Duration::from_secs(10);
    let scene = Scene::start().await;
    scene.part(0, 2, Parting::Silence);
    let (key, asked_at) = (fresh_token(), Instant::now());
    scene.parted.put(&format!("/locks/{key}?ttl=10s")).send().await.expect(201);
    let [first, _, last] = &scene.whole.quorum.nodes[..] else { unreachable!() };
    assert!(has_lock(first, &key).await && !has_lock(last, &key).await);
    let _: () = first.command(&["FLUSHALL"]).await;
    // By then it was noticed, and would have been taken in again.
    let end = Instant::now() + Duration::from_secs(4);
    while Instant::now() < end {
        let answer = scene.other.put(&format!("/locks/{key}")).send().await;
        let is_refused = [423, 503].contains(&answer.status);
        assert!(is_refused || asked_at.elapsed() > lease, "{} {}", answer.status, answer.json());
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(does_count(first).await, Ok(false), "its quarantine is over");
}
