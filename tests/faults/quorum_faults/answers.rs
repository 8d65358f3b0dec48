//! What is answered where servers do not say the same: one answer to one question, and none that is not known.

use super::ways::{Divisible, Parting, begin};
use kit::proxy::Gate;
use kit::quorum::{has_lock, is_ready};
use kit::{Client, Gateway, RedisServer, eventually, fresh_token};

const LOCK: &str = "/locks/k?ttl=1m";

/// Three servers, and two gateways that may each be parted from some of them.
struct Scene {
    whole: Divisible,
    _gateways: Vec<Gateway>,
    here: Client,
    there: Client,
}

impl Scene {
    async fn start() -> Self {
        let whole = Divisible::start(3, 2, &[]).await;
        let mut gateways = Vec::new();
        for at in 0..2 {
            let url = whole.url(at);
            gateways.push(Gateway::start(&["--store", &url, "--store-timeout", "500ms"]).await);
        }
        let [here, there] = [0, 1].map(|at: usize| Client::new(gateways[at].address));
        for client in [&here, &there] {
            is_ready(client).await;
            let (key, token) = (fresh_token(), fresh_token());
            // A gateway may meet some only after the others.
            eventually("the gateway has met all servers", async || {
                client.put(&format!("/locks/{key}")).token(&token).send().await;
                let [a, b, c] = &whole.quorum.nodes[..] else { unreachable!() };
                has_lock(a, &key).await && has_lock(b, &key).await && has_lock(c, &key).await
            })
            .await;
        }
        Self { whole, _gateways: gateways, here, there }
    }

    fn node(&self, node: usize) -> &RedisServer {
        &self.whole.quorum.nodes[node]
    }

    fn part(&self, gateway: usize, node: usize) {
        begin(Parting::Silence, &self.whole.ways[node].to_node[gateway], &Gate::new());
    }

    fn mend(&self, gateway: usize, node: usize) {
        let way = &self.whole.ways[node].to_node[gateway];
        way.become_good();
        // What fell silent stays so; a new connection works.
        way.proxy.sever();
    }
}

async fn delete(client: &Client, token: &str) -> u16 {
    client.delete("/locks/k").token(token).send().await.status
}

#[tokio::test(flavor = "multi_thread")]
async fn one_delete_has_one_answer_also_where_its_token_waits() {
    let Scene { here, there, whole: _whole, _gateways } = &Scene::start().await;
    here.put(LOCK).send().await.expect(201);
    let [away_first, here_first] = [fresh_token(), fresh_token()];
    for ticket in [&away_first, &here_first] {
        let waited = here.put("/locks/k?wait=10ms").token(ticket).send().await.expect(423);
        assert!(waited.json()["position"].is_u64(), "{}", waited.json());
    }
    // The other gateway knows of no place, and what it said holds.
    for client in [there, there, here, there, here] {
        assert_eq!(delete(client, &away_first).await, 409);
    }
    let waits_no_more = here.put("/locks/k?wait=10ms").token(&away_first);
    waits_no_more.send().await.expect_problem(409, "token-released");
    for client in [here, there, here] {
        assert_eq!(delete(client, &here_first).await, 204);
    }
}

/// The lock was free by most servers when the token was released, and is held by the one that has not heard of that.
#[tokio::test(flavor = "multi_thread")]
async fn one_delete_has_one_answer_also_by_a_server_that_has_not_heard_of_it() {
    let scene = Scene::start().await;
    let token = fresh_token();
    scene.part(0, 2);
    assert_eq!(delete(&scene.here, &token).await, 404);
    scene.there.put(LOCK).send().await.expect(201);
    eventually("the last server has the lock", async || has_lock(scene.node(2), "k").await).await;
    scene.part(1, 0);
    assert_eq!(delete(&scene.there, &token).await, 404);
}

/// Either of the two answers may have been given, by those who had a server more.
#[tokio::test(flavor = "multi_thread")]
async fn a_delete_whose_answer_is_not_known_is_answered_once_it_is() {
    let scene = Scene::start().await;
    let token = fresh_token();
    assert_eq!(delete(&scene.here, &token).await, 404);
    let marks = async |node| scene.node(node).command::<Vec<String>>(&["KEYS", "*:freed:*"]).await;
    eventually("the last server has the mark", async || marks(2).await.len() == 1).await;
    let _: () = scene.node(2).command(&["SET", &marks(2).await[0], "2", "KEEPTTL"]).await;
    scene.part(1, 0);
    let again = scene.there.delete("/locks/k").token(&token).send().await;
    again.expect_problem(503, "outcome-unknown");
    scene.mend(1, 0);
    eventually("it is answered as before", async || delete(&scene.there, &token).await == 404).await;
}

/// Why the lock is not to be had. On a busy machine a server may not answer in time, and the gateway cannot tell: then it is
/// asked again.
async fn refusal(scene: &Scene, address: &str) -> serde_json::Value {
    let give_up = tokio::time::Instant::now() + kit::PATIENCE;
    loop {
        let answer = scene.there.put(address).send().await;
        if answer.status != 503 || tokio::time::Instant::now() > give_up {
            return answer.expect_problem(423, "lock-held").json();
        }
    }
}

/// The lock stands on two servers, and one of those is out of reach.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_who_is_not_known_is_not_taken_for_nobody() {
    let scene = Scene::start().await;
    scene.part(0, 2);
    let held = scene.here.put(LOCK).send().await.expect(201);
    assert!(!has_lock(scene.node(2), "k").await);
    scene.part(1, 0);
    for wait in ["", "&wait=100ms"] {
        let refused = refusal(&scene, &format!("{LOCK}{wait}")).await;
        assert!(refused["holder"].is_null() && refused["holder_unknown"] == true, "{refused}");
        assert!(
            refused["detail"].as_str().unwrap().starts_with("it is not known who holds the lock"),
            "{refused}"
        );
    }
    scene.mend(1, 0);
    eventually("the holder is known", async || {
        let refused = refusal(&scene, LOCK).await;
        let is_known = refused["holder_unknown"].is_null();
        is_known && refused["holder"]["fencing_token"] == held.fencing_token()
    })
    .await;
}
