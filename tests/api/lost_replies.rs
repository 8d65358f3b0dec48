//! The connection between gateway and Redis fails around one command, and the proxy knows whether that command ran:
//! the answer is right or `outcome-unknown`, a retry settles it, and nothing is left behind.

use kit::metrics::Scrape;
use kit::proxy::{Fate, Framing, Progress};
use kit::{Answer, Client, Gateway, Proxy, RedisServer, fresh_token};

/// What goes wrong, and how far the command came by then.
pub fn failures() -> [(&'static str, Fate, Progress); 6] {
    [
        ("cut before", Fate::CutBefore, Progress::Seen),
        ("cut within", Fate::CutWithin, Progress::Seen),
        ("half-open", Fate::HalfOpen, Progress::Seen),
        ("cut during", Fate::CutDuring, Progress::PassedOn),
        ("cut after", Fate::CutAfter, Progress::Answered),
        ("lost answer", Fate::LoseAnswers, Progress::Answered),
    ]
}

/// A gateway whose way to Redis fails when it is told to.
pub struct Scene {
    pub redis: RedisServer,
    pub proxy: Proxy,
    pub gateway: Gateway,
    pub client: Client,
}

impl Scene {
    pub async fn start() -> Self {
        let redis = RedisServer::start().await;
        let proxy = Proxy::start(redis.port(), Framing::Resp).await;
        // Long enough for a second try on a busy machine.
        let gateway = Gateway::start(&["--store", &proxy.redis_url(), "--store-timeout", "4s"]).await;
        let client = Client::new(gateway.address);
        let scene = Self { redis, proxy, gateway, client };
        // Each script's first call sends its text as well: that is not what is under test.
        let token = fresh_token();
        scene.put("warm", &token).await.expect(201);
        scene.client.patch("/locks/warm").token(&token).send().await.expect(200);
        scene.delete("warm", &token).await.expect(204);
        scene
    }

    pub async fn put(&self, key: &str, token: &str) -> Answer {
        let put = self.client.put(&format!("/locks/{key}?ttl=1h"));
        if token.is_empty() { put.send().await } else { put.token(token).send().await }
    }

    pub async fn delete(&self, key: &str, token: &str) -> Answer {
        self.client.delete(&format!("/locks/{key}")).token(token).send().await
    }

    /// How many locks were ever granted, as the fence counts them.
    async fn granted(&self) -> u64 {
        let numbers: Vec<u64> = self.redis.command(&["HVALS", "fencepost:{0}:fence"]).await;
        numbers[0]
    }

    pub async fn assert_free(&self, key: &str, what: &str) {
        let look = self.client.get(&format!("/locks/{key}")).send().await;
        assert_eq!(look.status, 404, "{what}: an orphan {}", look.json());
    }
}

/// Each failure with a token of the client's own and with one that the server makes.
fn cases() -> impl Iterator<Item = (String, String, String, Fate, Progress)> {
    let tokens = [("own", true), ("made", false)];
    tokens.into_iter().flat_map(|(kind, is_own)| {
        failures().into_iter().map(move |(name, fate, progress)| {
            let token = if is_own { fresh_token() } else { String::new() };
            let key = format!("{kind}-{}", name.replace(' ', "-"));
            (format!("{kind} token, {name}"), key, token, fate, progress)
        })
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_around_an_acquire_grants_once_and_leaves_nothing() {
    let scene = Scene::start().await;
    for (what, key, token, fate, progress) in cases() {
        let before = scene.granted().await;
        let passage = scene.proxy.expect(&format!("lock:{key}"), fate);
        let granted = scene.put(&key, &token).await.expect(201);
        assert_eq!(passage.progress(), progress, "{what}");
        // The first copy's grant, if there was one, was undone, and the second try made another.
        let grants = scene.granted().await - before;
        match progress {
            Progress::Answered => assert_eq!(grants, 2, "{what}"),
            Progress::PassedOn => assert!((1..=2).contains(&grants), "{what}: {grants}"),
            _ => assert_eq!(grants, 1, "{what}"),
        }
        let again = scene.put(&key, &granted.token()).await.expect(200);
        assert_eq!(again.fencing_token(), granted.fencing_token(), "{what}");
        scene.delete(&key, &granted.token()).await.expect(204);
        scene.assert_free(&key, &what).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_around_a_renewal_renews() {
    let scene = Scene::start().await;
    for (what, key, token, fate, progress) in cases() {
        let put = scene.client.put(&format!("/locks/{key}?ttl=5m"));
        let put = if token.is_empty() { put } else { put.token(&token) };
        let granted = put.send().await.expect(201);
        let passage = scene.proxy.expect(&format!("lock:{key}"), fate);
        let patch = scene.client.patch(&format!("/locks/{key}?ttl=1h")).token(&granted.token());
        let renewed = patch.send().await.expect(200);
        assert_eq!(passage.progress(), progress, "{what}");
        assert_eq!(renewed.fencing_token(), granted.fencing_token(), "{what}");
        let look = scene.client.get(&format!("/locks/{key}")).send().await.expect(200);
        assert!(look.json()["expires_in_ms"].as_u64().unwrap() > 3_500_000, "{what}: {}", look.json());
        scene.delete(&key, &granted.token()).await.expect(204);
        scene.assert_free(&key, &what).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_around_a_release_is_answered_rightly_or_unknown() {
    let scene = Scene::start().await;
    for (what, key, token, fate, progress) in cases() {
        let granted = scene.put(&key, &token).await.expect(201);
        let passage = scene.proxy.expect(&format!("lock:{key}"), fate);
        let released = scene.delete(&key, &granted.token()).await;
        assert_eq!(passage.progress(), progress, "{what}");
        let is_made = token.is_empty();
        match progress {
            // Of a token of ours there is no mark that could tell what the first copy found.
            Progress::Answered if is_made => drop(released.expect_problem(503, "outcome-unknown")),
            Progress::PassedOn if is_made && released.status == 503 => {
                drop(released.expect_problem(503, "outcome-unknown"));
            }
            _ => drop(released.expect(204)),
        }
        let again = scene.delete(&key, &granted.token()).await;
        assert_eq!(again.status, if is_made { 404 } else { 204 }, "{what}");
        scene.assert_free(&key, &what).await;
    }
}

/// Where doubt cannot be ended within the deadline it is called by its name, and the same token settles it.
#[tokio::test(flavor = "multi_thread")]
async fn doubt_that_outlasts_the_deadline_is_unknown_and_settled_by_a_retry() {
    let scene = Scene::start().await;
    let token = fresh_token();
    let cut_off = async |name: &str, call: kit::http::Call| {
        let mut passage = scene.proxy.expect("lock:k", Fate::CutAfter);
        scene.proxy.set_closed_to_new(true);
        call.send().await.expect_problem(503, "outcome-unknown");
        passage.reaches(Progress::Answered).await;
        scene.proxy.set_closed_to_new(false);
        kit::eventually(name, async || scene.client.get("/readyz").send().await.status == 200).await;
    };
    let (put, patch) = ("/locks/k?ttl=1h", "/locks/k?ttl=2h");
    cut_off("back after PUT", scene.client.put(put).token(&token)).await;
    let granted = scene.put("k", &token).await;
    assert!([200, 201].contains(&granted.status), "{}", granted.status);
    // Until it has tried to undo what the first PUT was granted, the next cut may meet that instead of the PATCH.
    let has_undone =
        async || Scrape::of(scene.gateway.address).await.get("fencepost_takes_back_pending") == 0.0;
    kit::eventually("it has tried to undo the first PUT", has_undone).await;
    cut_off("back after PATCH", scene.client.patch(patch).token(&token)).await;
    let renewed = scene.client.patch(patch).token(&token).send().await.expect(200);
    assert_eq!(renewed.fencing_token(), granted.fencing_token());
    cut_off("back after DELETE", scene.client.delete("/locks/k").token(&token)).await;
    scene.delete("k", &token).await.expect(204);
    scene.assert_free("k", "after the retry").await;
    scene.gateway.logs("it says so", |line| line.contains("outcome-unknown")).await;
}
