//! The page at `/ui`, in a real browser, beside a real `curl`. What happens there is told in `tests/ui`.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use crate::clients::{installed, root};
use kit::keys::KeysFile;
use kit::proxy::Framing;
use kit::secrets::remember_header;
use kit::{Client, Gateway, Proxy, Stage, eventually, server_port};

/// How long a scenario may take: most take some seconds.
const LONGEST: Duration = Duration::from_secs(300);

/// Runs a scenario, and does meanwhile what it asks for.
async fn browse(scenario: &str, args: &[&str], mut help: impl AsyncFnMut(&str)) {
    let mut command = Command::new("node");
    command.arg(root().join("tests/ui/main.mjs"));
    command.arg(installed("node_modules")).arg(root().join("target/artefacts"));
    command.arg(scenario).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let run = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            match line.split_once(' ') {
                Some(("ask", what)) => {
                    help(what).await;
                    input.write_all(b"done\n").await.unwrap();
                }
                // What curl was given is a secret to the gateway's log, too.
                Some(("token", token)) => remember_header("Lease-Token", token.as_bytes()),
                _ => println!("{line}"),
            }
        }
        child.wait().await.unwrap()
    };
    let status = timeout(LONGEST, run).await.expect("the browser does not come to an end");
    assert!(status.success(), "{scenario}: see what it printed");
}

/// For scenarios that need no help.
async fn alone(what: &str) {
    panic!("nobody can {what}");
}

fn url(gateway: &Gateway) -> String {
    format!("http://{}", gateway.address)
}

async fn gateway(args: &[&str]) -> Gateway {
    Gateway::start(&[&["--store", "memory:"], args].concat()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_comes_from_the_binary_and_nothing_else_runs_in_it() {
    let gateway = gateway(&[]).await;
    let client = Client::new(gateway.address);
    let page = client.get("/ui").send().await.expect(200);
    let text = String::from_utf8(page.body.to_vec()).unwrap();
    let linked = text.split('"').filter(|part| part.starts_with("ui/"));
    let linked: Vec<_> = linked.map(|file| format!("/{file}")).collect();
    assert!(linked.len() > 5, "{text}");
    for address in linked.iter().map(String::as_str).chain(["/ui"]) {
        let answer = client.get(address).send().await.expect(200);
        let policy = answer.header("content-security-policy").unwrap();
        for rule in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"] {
            assert!(policy.contains(rule), "{policy}");
        }
        assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
        assert!(answer.header("content-type").is_some());
    }
    let slash = client.get("/ui/").send().await.expect(308);
    assert_eq!(slash.header("location"), Some("../ui"));
    for missing in ["/ui/nothing.js", "/ui/page.js/x", "/ui/..%2fapi.rs", "/ui/%ff"] {
        client.get(missing).send().await.expect_problem(404, "not-found");
    }
    client.call("POST", "/ui").send().await.expect_problem(405, "method-not-allowed");
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_are_shown_as_they_are_and_broken_after_a_question() {
    let stage = Stage::redis().await;
    browse("locks", &[&url(&stage.gateway)], alone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_who_hold_a_lock_the_chosen_one_is_broken() {
    let stage = Stage::redis().await;
    browse("several", &[&url(&stage.gateway)], alone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_asked_for_and_shows_no_more_than_it_may() {
    let mut file = KeysFile::new();
    let of_all = file.add_for_all("all", r#""acquire", "inspect""#);
    let of_team = file.add("team", "prefixes = [\"ci/\"]\nallow = [\"list\", \"admin\"]");
    let of_watcher = file.add_for_all("watcher", r#""list""#);
    file.write();
    let gateway = gateway(&file.flag().each_ref().map(String::as_str)).await;
    for key in [&of_all, &of_team, &of_watcher] {
        remember_header("Authorization", format!("Bearer {key}").as_bytes());
    }
    browse("keys", &[&url(&gateway), &of_all, &of_team, &of_watcher], async |_| {
        file.remove("watcher");
        file.write();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_strangers_chose_do_no_harm() {
    let gateway = gateway(&[]).await;
    browse("names", &[&url(&gateway)], alone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_introduction_works_under_its_policy_and_in_no_frame_of_another_site() {
    let gateway = gateway(&[]).await;
    browse("introduction", &[&url(&gateway)], alone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_site_does_not_learn_whether_a_lock_is_held() {
    let gateway = gateway(&[]).await;
    browse("spying", &[&url(&gateway)], alone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_result_runs_in_no_browser() {
    let gateway = gateway(&[]).await;
    browse("results", &[&url(&gateway)], alone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_lost_is_told_of_and_made_again() {
    let gateway = gateway(&[]).await;
    let proxy = Proxy::start(gateway.address.port(), Framing::Chunks).await;
    let through = proxy.url();
    browse("outage", &[&url(&gateway), &through], async |what| {
        proxy.set_target(if what == "cut" { server_port() } else { gateway.address.port() });
        proxy.sever();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_no_more_may_watch_the_page_lists() {
    let gateway = gateway(&["--max-watchers", "1"]).await;
    browse("turnedAway", &[&url(&gateway)], alone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_sleep_and_nobody_looking_end_a_connection() {
    let gateway = gateway(&[]).await;
    browse("patience", &[&url(&gateway)], alone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_says_how_old_it_is_also_where_the_gateway_takes_requests_and_does_not_answer() {
    let gateway = gateway(&[]).await;
    browse("unanswered", &[&url(&gateway)], alone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_misses_much_lists_once_a_second() {
    let gateway = gateway(&[]).await;
    browse("pauses", &[&url(&gateway)], alone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_locks_leave_the_page_usable() {
    const LOCKS: usize = 2_500;
    let gateway = gateway(&[]).await;
    let client = Client::new(gateway.address);
    let puts = (0..LOCKS).map(|n| client.put(&format!("/locks/job%2F{n:06}?ttl=10m")).send());
    for grant in futures_util::future::join_all(puts).await {
        grant.expect(201);
    }
    let waiting = tokio::spawn(client.put("/locks/job%2F001999?wait=60s").try_send());
    eventually("somebody waits", async || {
        client.get("/locks/job%2F001999").send().await.json()["waiters"] == 1
    })
    .await;
    browse("crowd", &[&url(&gateway), &LOCKS.to_string()], alone).await;
    waiting.abort();
}

/// Without a browser: it is about what the page concludes.
#[tokio::test(flavor = "multi_thread")]
async fn lists_and_events_end_in_the_truth_in_whatever_order_they_come() {
    browse("merging", &[], alone).await;
}
