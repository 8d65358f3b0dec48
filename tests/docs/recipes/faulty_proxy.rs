//! The scripts with `curl`, behind a proxy that loses answers, cuts them, or puts a page of its own in their place. Each
//! time the gateway has done what it was asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use tokio::process::Command;

use super::Scene;
use crate::pages::Said;
use kit::proxy::{Fate, Framing, Gate, Progress, Proxy};
use kit::{Client, eventually, fresh_token};

/// What a proxy says where it has no answer, with this status.
fn page(status: u16) -> Fate {
    instead(status, "text/html", "<html>a page of the proxy</html>\n")
}

/// What a gateway says that refuses.
fn problem(status: u16, name: &str) -> Fate {
    let body = format!("{{\"type\":\"/problems/{name}\",\"title\":\"No\",\"status\":{status}}}");
    instead(status, "application/problem+json", &body)
}

fn instead(status: u16, content_type: &str, body: &str) -> Fate {
    let length = body.len();
    Fate::Instead(format!(
        "HTTP/1.1 {status} Page\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    ))
}

/// A proxy in front of the gateway of the scene. This becomes of requests with that method.
async fn behind(scene: &Scene, method: &'static str, fate: Fate) -> Proxy {
    let proxy = Proxy::start(scene.gateway.address.port(), Framing::Chunks).await;
    let is_asked = move |message: &[u8]| message.starts_with(method.as_bytes());
    proxy.set_policy(move |message| if is_asked(message) { fate.clone() } else { Fate::Pass });
    proxy
}

async fn say(mut command: Command, proxy: &Proxy) -> Said {
    command.env("FENCEPOST_URL", proxy.url());
    Scene::say(command).await
}

/// The script of the page on records, for this key and with this work, as the page advises for payments.
fn once(scene: &Scene, key: &str, work: &str) -> Command {
    let code = scene.shell.pasted("--retry-all-errors");
    let code =
        code.replace("K=report-2026-11-24", &format!("K={key}")).replace("if date ", &format!("if {work} "));
    let code = code.replace("-d wait=20s", "-d takeover=false");
    assert!(
        code.contains(&format!("if {work} >\"$dir/result\"")) && code.contains("takeover=false"),
        "{code}"
    );
    let name = format!("once-{key}.sh");
    scene.write(&name, &code);
    scene.command("bash", &["-e", "-u", &name])
}

async fn store(client: &Client, key: &str, result: &str) {
    let token = fresh_token();
    client.put(&format!("/once?key={key}&ttl=1m")).token(&token).send().await.expect(201);
    let stored = client.post(&format!("/once?key={key}&status=0")).token(&token).body(result.to_owned());
    stored.send().await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_proxy_says_is_no_result_and_leaves_no_work_begun() {
    let scene = Scene::without_keys().await;
    let fates = [page(200), page(201), page(404), page(504), Fate::CutAfter, Fate::CutAnswer];
    let try_out = async |(number, fate): (usize, Fate)| {
        let key = format!("k{number}");
        let what = format!("{fate:?}");
        let proxy = behind(&scene, "PUT", fate).await;
        let said = say(once(&scene, &key, "touch wrong"), &proxy).await;
        assert_eq!(said.code, Some(69), "{what}: {said:?}");
        scene.client.get(&format!("/once?key={key}")).send().await.expect_problem(404, "not-begun");
    };
    join_all(fates.into_iter().enumerate().map(try_out)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_is_cut_is_printed_whole_or_not_at_all() {
    let scene = Scene::without_keys().await;
    let result = "the stored result";
    store(&scene.client, "k", result).await;
    let proxy = behind(&scene, "PUT", Fate::CutAnswer).await;
    let said = say(once(&scene, "k", "touch wrong"), &proxy).await;
    assert!(said.code == Some(69) && !said.text.starts_with("the"), "{said:?}");
    proxy.set_policy(|_| Fate::Pass);
    proxy.expect("PUT /", Fate::CutAnswer);
    let said = say(once(&scene, "k", "touch wrong"), &proxy).await;
    assert!(said.code == Some(0) && said.text.starts_with(result), "{said:?}");
}

/// The proxy is behind by one answer.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_to_another_request_is_no_result_and_begins_no_work() {
    let scene = Scene::without_keys().await;
    for (status, about) in [(200, "once-bytes: 6"), (201, "once-earlier: 0")] {
        let token = fresh_token();
        let head = format!("HTTP/1.1 {status} OK\r\nlease-token: {token}\r\n{about}\r\ncontent-length: 6");
        let theirs = Fate::Instead(format!("{head}\r\nconnection: close\r\n\r\ntheirs"));
        let proxy = behind(&scene, "PUT", theirs).await;
        say(once(&scene, "k", "touch wrong"), &proxy).await.expect(69, "theirs");
        assert!(!scene.shell.path("wrong").exists());
        scene.client.get("/once?key=k").send().await.expect_problem(404, "not-begun");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_is_stored_though_an_answer_is_lost_and_else_it_is_said() {
    let scene = Scene::without_keys().await;
    let proxy = behind(&scene, "none", Fate::Pass).await;
    let state = async |key: &str| {
        scene.client.get(&format!("/once?key={key}")).send().await.expect(200).json()["state"].clone()
    };
    for (key, method, fate) in [
        ("a", "PUT /", Fate::CutAfter),
        ("b", "PUT /", page(502)),
        ("c", "POST /", Fate::CutAfter),
        ("d", "POST /", Fate::CutAnswer),
        ("e", "POST /", page(502)),
    ] {
        proxy.expect(method, fate);
        let said = say(once(&scene, key, "echo done"), &proxy).await;
        assert!(said.code == Some(0) && said.text.starts_with("done\n"), "{key}: {said:?}");
        assert_eq!(state(key).await, "done");
    }
    proxy.expect("POST /", page(200));
    let said = say(once(&scene, "f", "echo done"), &proxy).await;
    said.expect(74, "done, but perhaps not stored");
}

/// Also the file with the key may be named from where the reader is.
#[tokio::test(flavor = "multi_thread")]
async fn the_work_of_a_record_begins_where_the_reader_is() {
    let scene = Scene::with_keys_and_tls().await;
    scene.program("report", "#!/bin/sh\necho reported\n");
    let mut script = once(&scene, "k", "./report");
    script.env("FENCEPOST_CURL", "fencepost.curl");
    let said = Scene::say(script).await;
    assert_eq!((said.code, said.text.as_str()), (Some(0), "reported\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_cannot_be_printed_is_stored() {
    let scene = Scene::without_keys().await;
    drop(once(&scene, "k", "echo done"));
    // The second time, it is done.
    for _ in 0..2 {
        let script = scene.command("bash", &["-c", "bash -e -u once-k.sh >/dev/full"]);
        Scene::say(script).await.expect(71, "");
        assert_eq!(scene.client.get("/once?key=k").send().await.expect(200).json()["state"], "done");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_whose_grant_was_not_told_is_released() {
    let scene = Scene::without_keys().await;
    let fates = [200, 404, 423, 429, 502].map(page).into_iter().chain([Fate::CutAfter, Fate::CutAnswer]);
    let try_out = async |(number, fate): (usize, Fate)| {
        let key = format!("k{number}");
        let what = format!("{fate:?}");
        let proxy = behind(&scene, "PUT", fate).await;
        let said = say(scene.script("try-lock", &[&key, "1h"]), &proxy).await;
        assert_eq!(said.code, Some(69), "{what}: {said:?}");
        scene.client.get(&format!("/locks/{key}")).send().await.expect_problem(404, "not-held");
    };
    join_all(fates.enumerate().map(try_out)).await;
}

/// `curl` has given the request up and repeated it, and nobody would know of a lock that it takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_was_told_to_be_busy_is_not_taken_by_a_late_copy_of_the_request() {
    let scene = Scene::without_keys().await;
    let (proxy, gate, other) = (behind(&scene, "none", Fate::Pass).await, Gate::new(), fresh_token());
    scene.client.put("/locks/k?ttl=1h").token(&other).send().await.expect(201);
    let mut late = proxy.expect("PUT /", Fate::Late { cut: gate.clone(), message: gate.clone() });
    say(scene.script("try-lock", &["k", "1h"]), &proxy).await.expect(75, "k: busy\n");
    scene.client.delete("/locks/k").token(&other).send().await.expect(204);
    gate.cancel();
    late.reaches(Progress::Answered).await;
    scene.client.get("/locks/k").send().await.expect_problem(404, "not-held");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_a_proxy_after_the_answer_of_a_gateway_is_no_refusal() {
    let scene = Scene::without_keys().await;
    let proxy = behind(&scene, "PUT", page(404)).await;
    proxy.expect("PUT /", problem(503, "store-unavailable"));
    say(scene.script("try-lock", &["k", "1h"]), &proxy).await.expect(69, "the gateway is away");
}

/// The gateway counts each request with a wrong key.
#[tokio::test(flavor = "multi_thread")]
async fn a_script_shows_a_wrong_key_only_once() {
    let scene = Scene::without_keys().await;
    let in_turn = scene.script("in-turn", &["k", "touch", "wrong"]);
    let (try_lock, once) = (scene.script("try-lock", &["k", "1h"]), once(&scene, "k", "touch wrong"));
    for (command, code) in [(try_lock, 2), (in_turn, 2), (once, 1)] {
        let (proxy, asked) = (behind(&scene, "none", Fate::Pass).await, Arc::new(AtomicUsize::new(0)));
        let count = asked.clone();
        proxy.set_policy(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            problem(401, "key-refused")
        });
        say(command, &proxy).await.expect(code, "");
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_the_gateway_is_no_refusal() {
    let scene = Scene::without_keys().await;
    let proxy = behind(&scene, "none", Fate::Pass).await;
    proxy.set_policy(|_| problem(429, "rate-limited"));
    let mut in_turn = scene.script("in-turn", &["k", "touch", "wrong"]);
    in_turn.env("GIVE_UP_S", "0");
    let hold = scene.script("hold", &["k", "touch", "wrong"]);
    let try_lock = scene.script("try-lock", &["k", "1h"]);
    for command in [try_lock, hold, in_turn, once(&scene, "k", "touch wrong")] {
        say(command, &proxy).await.expect(69, "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_waits_for_its_turn_though_a_proxy_answers_in_between() {
    let scene = Scene::without_keys().await;
    let proxy = behind(&scene, "none", Fate::Pass).await;
    let fates = [page(502), page(504), page(404), page(200), Fate::CutAfter, Fate::CutAnswer];
    for (number, fate) in fates.into_iter().enumerate() {
        let (key, what) = (format!("k{number}"), format!("{fate:?}"));
        proxy.expect("PUT /", fate);
        let said = say(scene.script("in-turn", &[&key, "echo", "works"]), &proxy).await;
        assert!(said.code == Some(0) && said.text.starts_with("works\n"), "{what}: {said:?}");
    }
    let proxy = behind(&scene, "PUT", page(502)).await;
    let mut hopeless = scene.script("in-turn", &["k", "touch", "wrong"]);
    hopeless.env("GIVE_UP_S", "0");
    say(hopeless, &proxy).await.expect(69, "k: no lock: HTTP 502");
    scene.client.get("/locks/k").send().await.expect_problem(404, "not-held");
    assert!(!scene.shell.path("wrong").exists());
}

/// With a key whose rate allows one request each second, it is the second one that is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_turn_has_come_keeps_it_though_its_next_request_is_refused() {
    let scene = Scene::without_keys().await;
    let proxy = behind(&scene, "none", Fate::Pass).await;
    let fates = [problem(429, "rate-limited"), problem(503, "store-unavailable"), page(502), Fate::CutAfter];
    for (number, fate) in fates.into_iter().enumerate() {
        let (key, what) = (format!("k{number}"), format!("{fate:?}"));
        proxy.expect("POST /", fate);
        let said = say(scene.script("in-turn", &[&key, "echo", "works"]), &proxy).await;
        assert!(said.code == Some(0) && said.text.starts_with("works\n"), "{what}: {said:?}");
    }
    let proxy = behind(&scene, "POST", problem(429, "rate-limited")).await;
    let mut hopeless = scene.script("in-turn", &["k", "touch", "wrong"]);
    hopeless.env("GIVE_UP_S", "2");
    say(hopeless, &proxy).await.expect(69, "k: no lock: {");
    assert!(!scene.shell.path("wrong").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_turn_has_passed_while_the_gateway_was_away_waits_for_another() {
    let scene = Scene::without_keys().await;
    let proxy = behind(&scene, "POST", page(502)).await;
    let mut command = scene.script("in-turn", &["k", "echo", "works"]);
    let job = command.env("FENCEPOST_URL", proxy.url()).spawn().unwrap();
    let look = async || scene.client.get("/locks/k").send().await;
    eventually("its turn has come", async || look().await.status == 200).await;
    let other = fresh_token();
    scene.client.put("/locks/k?ttl=1m&wait=30s").token(&other).send().await.expect(201);
    proxy.set_policy(|_| Fate::Pass);
    eventually("it waits again", async || look().await.json()["waiters"] == 1).await;
    scene.client.delete("/locks/k").token(&other).send().await.expect(204);
    let said = Scene::end(job).await;
    assert!(said.code == Some(0) && said.text.contains("works\n"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_a_proxy_is_no_refusal_to_hold_a_lock() {
    let scene = Scene::without_keys().await;
    let fates = [200, 404, 423, 429, 502].map(page).into_iter().chain([Fate::CutAfter, Fate::CutAnswer]);
    for fate in fates {
        let what = format!("{fate:?}");
        let proxy = behind(&scene, "POST", fate).await;
        let said = say(scene.script("hold", &["k", "touch", "wrong"]), &proxy).await;
        assert_eq!(said.code, Some(69), "{what}: {said:?}");
        scene.becomes_free("k").await;
        assert!(!scene.shell.path("wrong").exists(), "{what}");
    }
}
