//! Several gateways of one store.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use super::kit::{Scene, release_of, requests, waiters};
use super::shape::{Answer, Recorder};
use kit::keys::KeysFile;
use kit::{Client, Gateway, RedisServer, eventually, fresh_token, server_port};

/// Renewed after two seconds, and in need of it until almost five.
const FLAGS: [&str; 4] = ["--ttl", "6s", "--kill-after", "500ms"];
const RUNS_UNTIL_OVER: &str = "echo >ready; while [ ! -e over ]; do sleep 0.02; done; exit 8";

async fn two_gateways() -> (RedisServer, Gateway, Gateway, Scene) {
    let redis = RedisServer::start().await;
    let (first, second) = (Gateway::on_redis(&redis, &[]).await, Gateway::on_redis(&redis, &[]).await);
    let scene = Scene::at(format!("http://{},http://{}", first.address, second.address));
    (redis, first, second, scene)
}

fn count(gateway: &Gateway, method: &str, status: u64) -> usize {
    requests(gateway).iter().filter(|r| r.method == method && r.status == status).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_away_is_left_at_once_for_the_next_one() {
    let gateway = Gateway::embedded(&[]).await;
    let [one, two] = [server_port(), server_port()];
    let scene =
        Scene::at(format!("http://127.0.0.1:{one}, http://127.0.0.1:{two},http://{}", gateway.address));
    let ended = scene.run_script(&[], "exit 3").await.expect_silent(3);
    assert!(ended.took < Duration::from_secs(2), "{ended:?}");
    assert_eq!(release_of(&gateway).await.status, 204);
    // The flag says the same.
    let both = format!("http://127.0.0.1:{one},http://{}", gateway.address);
    scene.run(&["--url", &both, "k", "--", "true"]).await.expect_silent(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_says_nothing_is_left_in_time() {
    let gateway = Gateway::embedded(&[]).await;
    // It takes connections, and never reads from them.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let scene = Scene::at(format!("http://127.0.0.1:{port},http://{}", gateway.address));
    let ended = scene.run(&["k", "--", "true"]).await.expect_silent(0);
    assert!(ended.took < Duration::from_secs(6), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_shuts_down_or_has_no_store_is_left_and_the_token_goes_on_at_the_next() {
    for body in [
        r#"{"type":"/problems/shutting-down","title":"","status":503,"detail":"draining"}"#,
        r#"{"type":"/problems/store-unavailable","title":"","status":503,"detail":"no connection"}"#,
        "<h1>Bad Gateway</h1>",
    ] {
        let (first, second) =
            (Recorder::telling(&[(Duration::ZERO, 503, body)]).await, Recorder::start().await);
        let scene = Scene::at(format!("{},{}", first.url(), second.url()));
        let ended = scene.run(&["k", "--", "true"]).await.expect_silent(0);
        assert!(ended.took < Duration::from_secs(2), "{ended:?}");
        let (left, kept) = (first.requests(), second.requests());
        let methods = |requests: &[super::shape::Recorded]| -> Vec<_> {
            requests.iter().map(|request| request.method.clone()).collect()
        };
        // The one that answered last is asked first.
        assert_eq!(
            (methods(&left), methods(&kept)),
            (vec!["PUT".into()], vec!["PUT".into(), "DELETE".into()])
        );
        let token = left[0].header("lease-token");
        assert!(token.is_some() && kept.iter().all(|request| request.header("lease-token") == token));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_does_not_notice_that_its_gateway_dies_or_hangs() {
    for signal in ["KILL", "STOP"] {
        let (_redis, first, second, scene) = two_gateways().await;
        let running = scene.start_script(&FLAGS, RUNS_UNTIL_OVER);
        eventually("the command runs", async || scene.path("ready").exists()).await;
        assert_eq!(count(&second, "PUT", 201), 0);
        first.signal(signal);
        eventually("the other gateway renews", async || count(&second, "PATCH", 200) >= 2).await;
        std::fs::write(scene.path("over"), "").unwrap();
        running.end().await.expect_silent(8);
        assert_eq!(release_of(&second).await.status, 204, "{signal}");
    }
}

/// What answers for a moment in the place of a gateway, and what a gateway says that reads its file of keys later.
const OUT_OF_PLACE: [Answer; 2] = [
    (Duration::ZERO, 0, ""),
    (Duration::ZERO, 401, r#"{"type":"/problems/missing-api-key","detail":"no key"}"#),
];
const SHORT_GRANT: Answer =
    (Duration::ZERO, 201, r#"{"key":"k","token":"t","fencing_token":1,"ttl_ms":6000,"expires_at":""}"#);

/// A gateway that says this, and one that is away.
async fn one_beside_one_that_is_away(answers: &[Answer]) -> (Recorder, Scene) {
    let recorder = Recorder::telling(answers).await;
    let scene = Scene::at(format!("{},http://127.0.0.1:{}", recorder.url(), server_port()));
    (recorder, scene)
}

fn recorded(recorder: &Recorder, method: &str) -> usize {
    recorder.requests().iter().filter(|request| request.method == method).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_out_of_place_for_a_moment_is_asked_to_renew_again_while_the_others_are_away() {
    for answer in OUT_OF_PLACE {
        let (recorder, scene) = one_beside_one_that_is_away(&[SHORT_GRANT, answer]).await;
        let running = scene.start_script(&["--ttl", "6s"], RUNS_UNTIL_OVER);
        eventually("it is asked again", async || recorded(&recorder, "PATCH") >= 2).await;
        std::fs::write(scene.path("over"), "").unwrap();
        running.end().await.expect_silent(8);
        assert_eq!(recorded(&recorder, "DELETE"), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_did_not_renew_is_asked_to_release_what_was_lost() {
    for answer in OUT_OF_PLACE {
        let answers = [&[SHORT_GRANT][..], &[answer; 50]].concat();
        let (recorder, scene) = one_beside_one_that_is_away(&answers).await;
        scene.run_script(&["--ttl", "6s"], RUNS_UNTIL_OVER).await.expect_line(76, &["could not be renewed"]);
        assert_eq!(recorded(&recorder, "DELETE"), 1);
        // Too many wrong keys would shut out others.
        assert!(answer.1 == 0 || (2..7).contains(&recorded(&recorder, "PATCH")), "{:?}", recorder.requests());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_goes_on_at_one_in_whose_place_something_else_has_answered_for_a_moment() {
    let held =
        (Duration::ZERO, 423, r#"{"type":"/problems/lock-held","detail":"held","waiters":1,"position":1}"#);
    let (recorder, scene) = one_beside_one_that_is_away(&[held, OUT_OF_PLACE[0]]).await;
    let ended = scene.run(&["--wait", "1m", "k", "--", "true"]).await.expect_silent(0);
    assert!(ended.took < Duration::from_secs(20), "{ended:?}");
    assert_eq!(recorded(&recorder, "PUT"), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_is_released_at_another_gateway_where_the_last_one_died_since() {
    let (_redis, mut first, second, scene) = two_gateways().await;
    let running = scene.start_script(&["--ttl", "5m"], RUNS_UNTIL_OVER);
    eventually("the command runs", async || scene.path("ready").exists()).await;
    first.kill();
    std::fs::write(scene.path("over"), "").unwrap();
    running.end().await.expect_silent(8);
    assert_eq!(release_of(&second).await.status, 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_in_the_queue_is_kept_when_its_gateway_dies() {
    let (_redis, mut first, second, scene) = two_gateways().await;
    let client = Client::new(second.address);
    let holder = fresh_token();
    client.put("/locks/k?ttl=5m").token(&holder).send().await.expect(201);
    let early = scene.start_script(&[], "echo early >>order");
    eventually("it waits", async || waiters(&client).await == 1).await;
    let alone = Scene::on(&second);
    let order = scene.path("order").display().to_string();
    let late = alone.start(&["k", "--", "sh", "-c", "echo late >>\"$0\"", &order]);
    eventually("both wait", async || waiters(&client).await == 2).await;
    first.kill();
    // The first answer to the late one comes after a second, so the next is to the early one.
    eventually("it waits at the other gateway", async || count(&second, "PUT", 423) >= 2).await;
    assert_eq!(waiters(&client).await, 2);
    client.delete("/locks/k").token(&holder).send().await.expect(204);
    early.end().await.expect_silent(0);
    late.end().await.expect_silent(0);
    assert_eq!(scene.read("order"), "early\nlate\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_by_one_of_several_is_told_by_its_name() {
    let mut keys = KeysFile::new();
    keys.add_for_all("another", "\"acquire\"");
    keys.write();
    let redis = RedisServer::start().await;
    let open = Gateway::on_redis(&redis, &[]).await;
    let keyed = Gateway::on_redis(&redis, &keys.flag().each_ref().map(String::as_str)).await;
    let name = format!("http://{}", keyed.address);
    // It answers, so the other one is not asked; and what the other one answers hides nothing.
    for url in
        [format!("{name},http://{}", open.address), format!("http://127.0.0.1:{},{name}", server_port())]
    {
        let ended = Scene::at(url).run(&["k", "--", "true"]).await.expect_line(2, &[&name, "API key"]);
        assert!(ended.took < Duration::from_secs(2), "{ended:?}");
    }
    // Of renewals it is told in the end what each said.
    let mut open = open;
    let scene = Scene::at(format!("http://{},{name}", open.address));
    let running = scene.start_script(&["--ttl", "3s"], RUNS_UNTIL_OVER);
    eventually("the command runs", async || scene.path("ready").exists()).await;
    open.kill();
    let both = [&name, "API key", &format!("http://{}", open.address), "refused"];
    running.end().await.expect_line(76, &both);
    let refused = || keyed.log().iter().filter(|line| line.contains("\"status\":401")).count();
    eventually("it was asked each time", async || refused() >= 3).await;
    assert!(refused() < 8, "{}", refused());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_is_told_of_when_none_can_be_reached() {
    let ports = [server_port(), server_port()];
    let [one, two] = ports.map(|port| format!("http://127.0.0.1:{port}"));
    let begun_at = Instant::now();
    let ended = Scene::at(format!("{one},{two}")).run(&["k", "--", "true"]).await;
    ended.expect_line(69, &[&one, &two, "refused"]);
    assert!(begun_at.elapsed() < Duration::from_secs(15), "{:?}", begun_at.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_that_cannot_be_meant_are_refused_with_what_to_write() {
    let scene = Scene::at("http://a,,http://b");
    scene
        .run(&["k", "--", "true"])
        .await
        .expect_line(2, &["--url", "address 2 of 3 is empty", "write http://"]);
    for (url, said) in [
        ("http://a,http://a:80/", "address 2 of 2 is the same as address 1"),
        ("http://a,b:8080", "address 2 of 2 must begin with http:// or https://"),
        ("", "is empty"),
        ("http://u:fp_abcdefghijkl_ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef@a", "must not hold an API key"),
    ] {
        scene.run(&["--url", url, "k", "--", "true"]).await.expect_line(2, &["--url", said]);
    }
    let mut command = scene.command(&["--url", "http://user:hunter2@a", "k", "--", "true"]);
    command.env("FENCEPOST_API_KEY", "secret");
    let ended = scene.launch(command).end().await.expect_line(2, &["--url", "give one of them"]);
    assert!(!ended.stderr.contains("hunter2"), "{ended:?}");
}
