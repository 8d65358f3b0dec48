//! The connection between gateway and Redis fails around one command about a record: the answer is right or `outcome-unknown`,
//! a repetition settles it, and no place is left behind.

use kit::http::Call;
use kit::proxy::{Fate, Framing, Gate, Progress};
use kit::{Answer, Client, Gateway, Proxy, RedisServer, fresh_token};

use super::{earlier, way};
use crate::lost_replies::failures;

struct Scene {
    proxy: Proxy,
    behind: Client,
    direct: Client,
    _others: (RedisServer, [Gateway; 2]),
}

impl Scene {
    async fn start() -> Self {
        let redis = super::redis().await;
        let proxy = Proxy::start(redis.port(), Framing::Resp).await;
        // Long enough for a second try on a busy machine.
        let behind = Gateway::start(&["--store", &proxy.redis_url(), "--store-timeout", "4s"]).await;
        let direct = Gateway::on_redis(&redis, &[]).await;
        let clients = [&behind, &direct].map(|gateway| Client::new(gateway.address));
        // Each script's first call sends its text as well: that is not what is under test.
        let (client, token) = (&clients[0], fresh_token());
        for key in ["warm1", "warm2"] {
            let address = format!("/once/{key}");
            client.put(&address).token(&token).send().await.expect(201);
            client.patch(&address).token(&token).send().await.expect(200);
        }
        client.post("/once/warm1").token(&token).body("x").send().await.expect(200);
        client.delete("/once/warm2").token(&token).send().await.expect(204);
        client.delete("/once/warm1?force=true").send().await.expect(204);
        let [first, second] = clients;
        Self { proxy, behind: first, direct: second, _others: (redis, [behind, direct]) }
    }

    /// Sends a request around whose command something goes wrong.
    async fn send(&self, key: &str, fate: Fate, progress: Progress, what: &str, call: Call) -> Answer {
        let passage = self.proxy.expect(&format!("once:{key}"), fate);
        let answer = call.send().await;
        assert_eq!(passage.progress(), progress, "{what}");
        answer
    }
}

/// Each failure, with a name for the key.
fn cases() -> impl Iterator<Item = (String, String, Fate, Progress)> {
    failures()
        .into_iter()
        .map(|(name, fate, progress)| (name.to_owned(), name.replace(' ', "-"), fate, progress))
}

fn address(key: &str, query: &str) -> String {
    format!("/once/{key}?{query}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_around_a_begin_begins_once() {
    let scene = Scene::start().await;
    for (what, key, fate, progress) in cases() {
        let token = fresh_token();
        let call = || scene.behind.put(&address(&key, "ttl=1h")).token(&token);
        let begun = scene.send(&key, fate, progress, &what, call()).await.expect(201);
        // The first copy was undone, so nobody was before it.
        assert_eq!((way(&begun), earlier(&begun)), ("begun", 0), "{what}");
        let again = call().send().await.expect(201);
        assert_eq!((way(&again), again.fencing_token()), ("continued", begun.fencing_token()), "{what}");
        scene.direct.delete(&address(&key, "clean=true")).token(&token).send().await.expect(204);
        scene.direct.get(&address(&key, "")).send().await.expect_problem(404, "not-begun");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_around_a_take_over_forgets_nobody_and_counts_nobody_twice() {
    let scene = Scene::start().await;
    for (what, key, fate, progress) in cases() {
        let (crashed, token) = (fresh_token(), fresh_token());
        scene.direct.put(&address(&key, "ttl=500ms")).token(&crashed).send().await.expect(201);
        kit::eventually("it lapses", async || {
            scene.direct.get(&address(&key, "")).send().await.json()["state"] == "lapsed"
        })
        .await;
        let call = scene.behind.put(&address(&key, "ttl=1h")).token(&token);
        let taken = scene.send(&key, fate, progress, &what, call).await.expect(201);
        assert_eq!((way(&taken), earlier(&taken)), ("taken-over", 1), "{what}");
        scene.direct.post(&address(&key, "")).token(&token).body("x").send().await.expect(200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_around_a_result_stores_it_once() {
    let scene = Scene::start().await;
    for (what, key, fate, progress) in cases() {
        let token = fresh_token();
        let begun = scene.direct.put(&address(&key, "ttl=1h")).token(&token).send().await.expect(201);
        let call = || scene.behind.post(&address(&key, "status=0")).token(&token).body("the result");
        let stored = scene.send(&key, fate, progress, &what, call()).await.expect(200);
        assert_eq!((way(&stored), stored.fencing_token()), ("stored", begun.fencing_token()), "{what}");
        call().send().await.expect(200);
        let read = scene.direct.put(&address(&key, "")).send().await.expect(200);
        assert_eq!((&read.body[..], read.header("Once-Status")), (&b"the result"[..], Some("0")), "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_around_a_renewal_of_work_renews() {
    let scene = Scene::start().await;
    for (what, key, fate, progress) in cases() {
        let token = fresh_token();
        let begun = scene.direct.put(&address(&key, "ttl=5m")).token(&token).send().await.expect(201);
        let call = scene.behind.patch(&address(&key, "ttl=1h")).token(&token);
        let renewed = scene.send(&key, fate, progress, &what, call).await.expect(200);
        assert_eq!(renewed.fencing_token(), begun.fencing_token(), "{what}");
        assert!(renewed.json()["ttl_ms"].as_u64().unwrap() > 3_500_000, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_around_a_worker_that_gives_up_counts_it_once() {
    let scene = Scene::start().await;
    for (what, key, fate, progress) in cases() {
        let (token, next) = (fresh_token(), fresh_token());
        scene.direct.put(&address(&key, "ttl=1h")).token(&token).send().await.expect(201);
        let call = || scene.behind.delete(&address(&key, "")).token(&token);
        scene.send(&key, fate, progress, &what, call()).await.expect(204);
        call().send().await.expect(204);
        let taken = scene.direct.put(&address(&key, "ttl=1h")).token(&next).send().await.expect(201);
        assert_eq!((way(&taken), earlier(&taken)), ("taken-over", 1), "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_around_a_break_ends_one_place() {
    let scene = Scene::start().await;
    for (what, key, fate, progress) in cases() {
        let begun = scene.direct.put(&address(&key, "ttl=1h")).token(&fresh_token()).send().await.expect(201);
        let number = begun.fencing_token();
        // Only the command that breaks says it. The look before says only the key.
        let passage = scene.proxy.expect(&number.to_string(), fate);
        let breaks = scene.behind.delete(&address(&key, &format!("force=true&fencing_token={number}")));
        breaks.send().await.expect(204);
        assert_eq!(passage.progress(), progress, "{what}");
        let next = scene.direct.put(&address(&key, "ttl=1h")).send().await.expect(201);
        assert_eq!((way(&next), earlier(&next)), ("taken-over", 1), "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_break_whose_answer_is_lost_is_unknown_once_another_has_begun() {
    let scene = Scene::start().await;
    let begun = scene.direct.put("/once/k?ttl=1h").token(&fresh_token()).send().await.expect(201);
    let number = begun.fencing_token();
    let mut lost = scene.proxy.expect(&number.to_string(), Fate::LoseAnswers);
    let breaks = scene.behind.delete(&format!("/once/k?force=true&fencing_token={number}"));
    let breaks = tokio::spawn(breaks.send());
    lost.reaches(Progress::Answered).await;
    scene.direct.put("/once/k?ttl=1h").token(&fresh_token()).send().await.expect(201);
    breaks.await.unwrap().expect_problem(503, "outcome-unknown");
    assert_eq!(scene.direct.get("/once/k").send().await.expect(200).json()["state"], "working");
}

/// A look with a token promises it something, so it is not said that nothing was done.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_in_doubt_is_unknown_to_a_token_only() {
    let (scene, token) = (Scene::start().await, fresh_token());
    scene.direct.put("/once/k?ttl=1h").token(&token).send().await.expect(201);
    let look = || scene.behind.get("/once/k");
    for (call, problem) in [(look().token(&token), "outcome-unknown"), (look(), "store-unavailable")] {
        let passage = scene.proxy.expect("once:k", Fate::CutAfter);
        scene.proxy.set_closed_to_new(true);
        call.send().await.expect_problem(503, problem);
        assert_eq!(passage.progress(), Progress::Answered, "{problem}");
        scene.proxy.set_closed_to_new(false);
        let is_back = async || scene.behind.get("/readyz").send().await.status == 200;
        kit::eventually("the gateway is back", is_back).await;
    }
}

/// Holds back a copy of a request until something else has happened.
async fn late(scene: &Scene, key: &str, call: Call, meanwhile: impl AsyncFnOnce()) {
    let gate = Gate::new();
    let mut late = scene.proxy.expect(&format!("once:{key}"), Fate::late(gate.clone()));
    let answer = call.send().await;
    assert!([200, 201, 204].contains(&answer.status), "{answer:?}");
    assert!(late.progress() <= Progress::Seen, "it was to be late");
    meanwhile().await;
    gate.cancel();
    late.reaches(Progress::Answered).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_comes_late_changes_nothing() {
    let (scene, token) = (Scene::start().await, fresh_token());
    let (client, direct) = (&scene.behind, &scene.direct);
    // A begin, after its worker has given up.
    let begin = client.put(&address("begin", "ttl=1h")).token(&token);
    late(&scene, "begin", begin, async || {
        direct.delete(&address("begin", "clean=true")).token(&token).send().await.expect(204);
    })
    .await;
    direct.get("/once/begin").send().await.expect_problem(404, "not-begun");
    // A result, after a break and the begin of another.
    direct.put("/once/post?ttl=1h").token(&token).send().await.expect(201);
    let next = fresh_token();
    let post = client.post("/once/post").token(&token).body("old");
    late(&scene, "post", post, async || {
        direct.delete("/once/post?force=true&clean=true").send().await.expect(204);
        direct.put("/once/post?ttl=1h").token(&next).send().await.expect(201);
    })
    .await;
    assert_eq!(direct.get("/once/post").send().await.expect(200).json()["state"], "working");
    // One who gives up, after another has begun.
    direct.put("/once/leave?ttl=1h").token(&token).send().await.expect(201);
    let leaves = client.delete("/once/leave").token(&token);
    late(&scene, "leave", leaves, async || {
        direct.put("/once/leave?ttl=1h").token(&next).send().await.expect(201);
    })
    .await;
    let look = direct.get("/once/leave").token(&next).send().await.expect(200).json();
    assert_eq!(
        (&look["state"], &look["yours"], &look["earlier"]),
        (&"working".into(), &true.into(), &1.into())
    );
}
