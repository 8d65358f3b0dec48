//! `fencepost list`, `status` and `watch`: whole lists, names that cannot deceive, and streams that go on.

use std::collections::HashSet;
use std::fmt::Write;
use std::time::Duration;

use kit::proxy::{Fate, Framing, Progress};
use kit::{Gateway, KeysFile, Proxy, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::door::Door;
use crate::run::kit::Scene;

/// A name that writes from right to left, ends like a text and looks like two columns. The second form is for addresses.
const ODD: [&str; 2] = ["a\u{202e}  b\"", "a%E2%80%AE%20%20b%22"];

#[tokio::test(flavor = "multi_thread")]
async fn what_clients_have_chosen_reaches_no_terminal_and_no_pipe_raw() {
    let door = Door::plain().await;
    let client = door.client();
    let words = format!("acquire $'{}'", "a\\u202e  b\"");
    let seen = door.start("\"$F\" watch | tee seen >&2");
    let seen_by_machine = door.start("\"$F\" watch --json | tee events >&2");
    door.scene.says("seen", "resync").await;
    door.scene.says("events", "resync").await;
    let held = client.put(&format!("/lock?key={}&ttl=5m&owner=%E2%80%AEx", ODD[1])).send().await.expect(201);
    door.scene.says("seen", "granted").await;
    door.scene.says("events", "granted").await;
    let mut all = door.scene.read("seen") + &door.scene.read("events");
    for ended in [
        door.pipe("list").await,
        door.pipe("list --json").await,
        door.pipe(&words.replace("acquire", "status")).await,
        door.pipe(&words.replace("acquire", "status --json")).await,
        door.pipe(&format!("{words} --wait 0s")).await,
        door.pipe(&words.replace("acquire", "break --json --yes")).await,
    ] {
        write!(all, "{}{}", ended.stdout, ended.stderr).unwrap();
    }
    let is_raw = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
    assert!(!all.contains(is_raw), "{all:?}");
    assert_eq!(all.matches("a\\u{202e}  b\\\"").count(), 5, "{all}");
    // A machine reads the name as it is.
    let number = held.fencing_token();
    let names = door.scene.read("events");
    let event = names.lines().find(|line| line.contains(&number.to_string())).unwrap();
    let event: serde_json::Value = serde_json::from_str(event).unwrap();
    assert_eq!(event["key"], ODD[0]);
    let mut person = door.person(&["break", ODD[0]]);
    assert_eq!(person.status().await, Some(1));
    assert!(!person.screen().contains('\u{202e}'), "{:?}", person.screen());
    drop((seen, seen_by_machine));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_list_is_whole() {
    let door = Door::plain().await;
    let client = door.client();
    for number in 0..1_100 {
        client.put(&format!("/locks/l{number}?ttl=5m")).send().await.expect(201);
    }
    let listed = door.json("list l").await;
    let names: HashSet<_> = listed.iter().map(|lock| lock["key"].as_str().unwrap()).collect();
    assert_eq!((listed.len(), names.len()), (1_100, 1_100));
    let table = door.pipe("list l").await.expect_silent(0).stdout;
    assert_eq!(table.lines().count(), 1_101);
    assert_eq!(table.matches("FENCING TOKEN").count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_lists_and_watches_what_it_may_see_and_is_told_what_it_may_not() {
    let mut keys = KeysFile::new();
    let narrow = keys.add("ci", "prefixes = [\"ci/\"]\nallow = [\"acquire\", \"list\", \"inspect\"]");
    keys.write();
    let flags = keys.flag();
    let gateway = Gateway::start(&["--store", "memory:", &flags[0], &flags[1]]).await;
    let mut door = Door::plain().await;
    door.scene = Scene::on(&gateway);
    std::fs::write(door.scene.path("key"), narrow).unwrap();
    let ask = async |words: &str| door.pipe(&format!("{words} --api-key-file key")).await;
    ask("acquire ci/a --ttl 5m").await.expect_silent(0);
    assert!(ask("list ci/").await.expect_silent(0).stdout.contains("ci/a"));
    ask("status pay/a").await.expect_line(2, &["refused by", "inspect"]);
    ask("break ci/a --yes").await;
    assert_eq!(ask("status ci/a").await.status, Some(0), "a key without the right admin breaks nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_goes_ends_the_program_without_a_word() {
    let door = Door::plain().await;
    // Nothing happens after the first event, so no write finds out.
    let ended = door.script("\"$F\" watch | head -1; echo ${PIPESTATUS[0]}").await.expect_silent(0);
    assert!(ended.stdout.contains("resync") && ended.stdout.ends_with("\n141\n"), "{ended:?}");
    door.acquire("k --ttl 5m").await;
    let ended = door.script("{ sleep 0.2; \"$F\" list; echo $? >&2; } | true").await;
    assert_eq!(ended.stderr, "141\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_goes_on_when_its_gateway_is_back() {
    let mut door = Door::plain().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    let mut gateway = Gateway::on_file(&file, &[]).await;
    let address = gateway.address.to_string();
    door.scene = Scene::on(&gateway);
    let watching = door.start("exec \"$F\" watch >seen 2>said");
    door.scene.says("seen", "resync").await;
    gateway.kill();
    drop(gateway);
    // It might stay for ever.
    let other = TcpListener::bind(&address).await.unwrap();
    let other = tokio::spawn(async move {
        while let Ok((mut stream, _)) = other.accept().await {
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(b"\x15\x03\x03\x00\x02\x02\x46").await;
        }
    });
    door.scene.says("said", "what answers at this port is not HTTP").await;
    other.abort();
    assert!(other.await.unwrap_err().is_cancelled());
    let gateway = Gateway::on_file(&file, &["--listen", &address]).await;
    let resyncs = || door.scene.read("seen").matches("resync").count();
    eventually("it looks again", async || resyncs() == 2).await;
    door.acquire("k --ttl 5m").await;
    door.scene.says("seen", "granted").await;
    watching.signal("TERM");
    watching.end().await;
    assert!(door.scene.read("said").contains("looking for a gateway"));
    drop(gateway);
}

/// Its answer may have been there all the time.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_was_stopped_before_its_answer_asks_again() {
    let mut door = Door::plain().await;
    door.client().put("/locks/k?ttl=5m").send().await.expect(201);
    let proxy = Proxy::start(door.gateway.address.port(), Framing::Chunks).await;
    door.scene = Scene::at(proxy.url());
    let mut silent = proxy.expect("GET ", Fate::HalfOpen);
    let asking = door.scene.launch(door.scene.command_of("status", &["k", "--gateway-wait", "0s"]));
    silent.reaches(Progress::Seen).await;
    asking.signal("STOP");
    // Its request may take ten seconds, and a busy machine may add one.
    tokio::time::sleep(Duration::from_secs(12)).await;
    asking.signal("CONT");
    asking.end().await.expect_silent(0);
}
