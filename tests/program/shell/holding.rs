//! `fencepost acquire`, `renew` and `release`: a lock for a script.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

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
async fn a_script_and_a_person_are_told_which_slot_they_have() {
    let door = Door::plain().await;
    let slot = async |words: &str| door.json(words).await[0]["slot"].as_u64();
    assert_eq!(slot("acquire k --slots 3 --ttl 5m").await, Some(1));
    assert_eq!(slot("acquire k --slots 3 --ttl 5m --token-file token").await, Some(2));
    let mut person = door.person(&["acquire", "k", "--slots", "3", "--ttl", "5m"]);
    assert_eq!(person.status().await, Some(0));
    let screen = person.screen();
    let shown = screen.lines().find_map(|line| line.strip_prefix("slot")).map(str::trim);
    assert_eq!(shown, Some("3"), "{screen}");
    // One that holds it alone has the first, and a lock without slots has none.
    assert_eq!(slot("acquire alone --slots 1 --ttl 5m").await, Some(1));
    assert_eq!(slot("acquire other --ttl 5m").await, None);
    // The line for scripts has the same words as ever.
    door.acquire("line --slots 3 --ttl 5m").await;
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
    door.scene = Scene::at(proxy.url());
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
async fn a_lock_that_may_be_left_behind_is_told_of_and_the_file_with_its_token_stays() {
    let mut door = Door::plain().await;
    let client = door.client();
    let proxy = Proxy::start(door.gateway.address.port(), Framing::Chunks).await;
    let asks = |message: &[u8], method: &str| message.starts_with(method.as_bytes());
    door.scene = Scene::at(proxy.url());
    let left = "may stay taken until its ttl ends";
    let url = format!("http://{}", door.gateway.address);
    let releases = async |door: &Door, file: &str| {
        door.pipe(&format!("release k --token-file {file} --url {url}")).await.expect_silent(0);
    };

    // The tokens cannot be printed, and no release arrives.
    proxy.set_policy(move |message| if asks(message, "DELETE") { Fate::CutBefore } else { Fate::Pass });
    let full = door.script("\"$F\" acquire k --ttl 5m --token-file full >/dev/full").await;
    full.expect_line(71, &["cannot print", left, "its token is in \"full\""]);
    releases(&door, "full").await;

    // No answer arrives either.
    proxy.set_policy(move |message| match () {
        () if asks(message, "PUT") => Fate::CutAfter,
        () if asks(message, "DELETE") => Fate::CutBefore,
        () => Fate::Pass,
    });
    let lost = door.pipe("acquire k --ttl 5m --gateway-wait 0s --token-file lost").await;
    lost.expect_line(69, &["cannot take", left, "its token is in \"lost\""]);
    releases(&door, "lost").await;
    let run = door.script("\"$F\" run --ttl 5m --gateway-wait 0s k -- true").await;
    run.expect_line(69, &["cannot take", left]);
    // `run` has not told its token.
    client.delete("/locks/k?force=true").send().await.expect(204);

    // A signal comes while the answer is under way.
    proxy.set_policy(move |message| match () {
        () if asks(message, "PUT") => Fate::LoseAnswers,
        () if asks(message, "DELETE") => Fate::CutBefore,
        () => Fate::Pass,
    });
    let waiting = door.start("exec \"$F\" acquire k --ttl 5m --token-file killed");
    eventually("it has the lock", async || is_held(&client, "k").await).await;
    waiting.signal("TERM");
    waiting.end().await.expect_line(143, &[left, "its token is in \"killed\""]);
    releases(&door, "killed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_without_an_answer_says_that_the_lease_may_be_over() {
    let mut door = Door::plain().await;
    let (token, _) = door.acquire("k --ttl 5m").await;
    let proxy = Proxy::start(door.gateway.address.port(), Framing::Chunks).await;
    door.scene = Scene::at(proxy.url());
    let over = "it may be over by now: count from the last renewal that succeeded";
    proxy.set_policy(|_| Fate::CutWithin);
    let ended = door.pipe_with(&token, "renew k --gateway-wait 0s").await;
    ended.expect_line(69, &["cannot renew the lease", "the lease may be longer all the same", over]);
    // No request was sent, so it is no longer.
    door.scene = Scene::at(format!("http://127.0.0.1:{}", kit::server_port()));
    let ended = door.pipe_with(&token, "renew k --gateway-wait 0s").await;
    let ended = ended.expect_line(69, &["connection refused", over]);
    assert!(!ended.stderr.contains("longer"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_whose_answer_comes_after_the_lease_is_none() {
    let mut door = Door::plain().await;
    let proxy = Proxy::start(door.gateway.address.port(), Framing::Chunks).await;
    let direct = std::mem::replace(&mut door.scene, Scene::at(proxy.url()));
    let late = || Fate::late_answer(Duration::from_secs(4));
    let renew = "renew k --ttl 3s";
    let (token, _) = door.acquire("k --ttl 3s").await;
    let mut passage = proxy.expect("PATCH", late());
    door.pipe_with(&token, renew).await.expect_line(76, &["is not held any more"]);
    passage.reaches(Progress::Answered).await;
    // Another gateway, or a later try, may still have it.
    let (token, _) = door.acquire("k --ttl 3s").await;
    proxy.set_policy(move |_| late());
    let ended = door.pipe_with(&token, &format!("{renew} --gateway-wait 0s")).await;
    ended.expect_line(69, &["the answer came when the lease was over", "it may be over by now"]);
    door.scene = direct;
    door.pipe_with(&token, renew).await.expect_line(76, &["is not held any more"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_whose_tokens_would_be_lost_is_not_taken() {
    let door = Door::plain().await;
    for output in [">&-", "1</dev/null"] {
        let ended = door.script(&format!("\"$F\" acquire k --ttl 5m {output}")).await;
        ended.expect_line(71, &["standard output", "nothing was done"]);
        assert!(!is_held(&door.client(), "k").await);
    }
    door.script("\"$F\" list 1</dev/null").await.expect_line(71, &["standard output"]);
    // Whoever throws them away means it.
    door.script("\"$F\" acquire k --ttl 5m >/dev/null").await.expect_silent(0);
    door.script("\"$F\" acquire l --token-file token --ttl 5m >&-").await.expect_silent(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_acquire_while_nobody_reads_its_output() {
    let door = Door::plain().await;
    let fill = "mkfifo pipe; exec 3<>pipe; dd if=/dev/zero of=pipe bs=65536 count=1 2>/dev/null";
    let stuck = door.start(&format!("{fill}; exec \"$F\" acquire k --ttl 5m >pipe"));
    eventually("it has the lock", async || is_held(&door.client(), "k").await).await;
    stuck.signal("TERM");
    stuck.end().await.expect_silent(143);
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
    let nobody = format!("http://127.0.0.1:{}", kit::server_port());
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
