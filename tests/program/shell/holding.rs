//! `fencepost acquire`, `renew` and `release`: a lock for a script.

use std::os::unix::fs::PermissionsExt;

use kit::proxy::{Fate, Framing, Progress};
use kit::{Proxy, eventually};

use super::door::Door;
use crate::run::kit::{Scene, is_held, waiters};

#[tokio::test(flavor = "multi_thread")]
async fn a_script_holds_a_lock_from_one_line_to_another_without_eval() {
    let door = Door::plain().await;
    let script = "LEASE=$(\"$F\" acquire k) || exit
        export LEASE_TOKEN=${LEASE% *} FENCING_TOKEN=${LEASE#* }
        \"$F\" renew k && echo $FENCING_TOKEN && \"$F\" status k >&- 2>&-
        \"$F\" release k";
    let ended = door.script(script).await.expect_silent(0);
    assert!(ended.stdout.trim_end().parse::<u64>().is_ok(), "{ended:?}");
    assert!(!is_held(&door.client(), "k").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_file_is_new_and_for_its_owner_alone_and_goes_if_there_is_no_lock() {
    let door = Door::plain().await;
    let file = door.scene.path("token");
    let ended = door.pipe("acquire k --ttl 5m --token-file token").await.expect_silent(0);
    assert!(ended.stdout.trim_end().parse::<u64>().is_ok(), "{ended:?}");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let token = door.scene.read("token");
    // What is there already is left as it is, and no lock is taken.
    door.pipe("acquire other --token-file token").await.expect_line(2, &["--token-file", "is there already"]);
    assert_eq!(door.scene.read("token"), token);
    assert!(!is_held(&door.client(), "other").await);
    door.pipe("acquire k --wait 0s --token-file busy").await.expect_line(75, &["busy"]);
    assert!(!door.scene.path("busy").exists());
    door.pipe("renew k --token-file token").await.expect_silent(0);
    door.script("\"$F\" release k --token-file /dev/stdin <token").await.expect_silent(0);
    door.pipe("release k").await.expect_line(2, &["--token-file", "LEASE_TOKEN"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_whose_answer_was_lost_is_asked_for_again_with_the_same_token() {
    let mut door = Door::plain().await;
    let proxy = Proxy::start(door.gateway.address.port(), Framing::Chunks).await;
    door.scene = Scene::at(format!("http://127.0.0.1:{}", proxy.port()));
    let mut passage = proxy.expect("PUT", Fate::CutAfter);
    let (token, number) = door.acquire("k --ttl 5m --wait 0s").await;
    passage.reaches(Progress::Answered).await;
    let held = door.client().get("/locks/k").token(&token).send().await.expect(200).json();
    assert_eq!((&held["yours"], held["fencing_token"].as_u64()), (&true.into(), Some(number)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_whose_tokens_cannot_be_printed_is_released() {
    let door = Door::plain().await;
    door.script("\"$F\" acquire k --ttl 5m >/dev/full").await.expect_line(71, &["cannot print"]);
    assert!(!is_held(&door.client(), "k").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_while_acquire_waits_gives_up_the_place() {
    let door = Door::plain().await;
    let client = door.client();
    door.acquire("k --ttl 5m").await;
    let waiting = door.start("exec \"$F\" acquire k --token-file token");
    eventually("it waits", async || waiters(&client).await == 1).await;
    waiting.signal("TERM");
    waiting.end().await.expect_silent(143);
    assert_eq!(waiters(&client).await, 0);
    assert!(!door.scene.path("token").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_gateway_is_69_and_a_refusal_is_2_and_another_gateway_of_the_list_is_asked() {
    let mut door = Door::plain().await;
    let nobody = format!("http://127.0.0.1:{}", kit::free_port());
    let both = format!("{nobody},{}", door.scene.url);
    door.scene = Scene::at(both);
    door.acquire("k --ttl 5m").await;
    door.pipe("list").await.expect_silent(0);
    door.scene = Scene::at(nobody.clone());
    for words in ["list", "status k", "break k --yes", "watch"] {
        door.pipe(words).await.expect_line(69, &[&nobody, "connection refused"]);
    }
    door.pipe_with("a-token-of-16-chars", "release k").await.expect_line(69, &["cannot release"]);
    let keyed = Door::open(true, false).await;
    for words in ["list", "status k", "break k --yes", "watch", "acquire k"] {
        let ended = keyed.script(&format!("unset FENCEPOST_API_KEY_FILE; \"$F\" {words} | cat")).await;
        ended.expect_line(2, &["refused by", "--api-key-file"]);
    }
}
