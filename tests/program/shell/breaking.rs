//! `fencepost break` ends the grant that it has shown, and no other.

use std::time::Duration;

use serde_json::json;

use kit::proxy::{Fate, Framing, Progress};
use kit::{Client, Proxy, fresh_token};

use super::door::Door;
use crate::run::kit::Scene;
use crate::run::shape::Recorder;

async fn number(client: &Client) -> u64 {
    client.get("/locks/k").send().await.expect(200).fencing_token()
}

#[tokio::test(flavor = "multi_thread")]
async fn break_never_ends_a_grant_that_it_did_not_show() {
    let door = Door::plain().await;
    let client = door.client();
    let first = fresh_token();
    client.put("/locks/k?ttl=5m&owner=first").token(&first).send().await.expect(201);
    let mut person = door.person(&["break", "k"]);
    person.sees("held by \"first\"").await;
    // While the person thinks, the lock changes hands.
    client.delete("/locks/k").token(&first).send().await.expect(204);
    let second = client.put("/locks/k?ttl=5m&owner=second").send().await.expect(201).fencing_token();
    person.types("y\n");
    assert_eq!(person.status().await, Some(1), "{}", person.screen());
    assert_eq!(number(&client).await, second);
    // Nor does it where it is told which grant is meant, and another one holds the lock.
    let another = door.pipe(&format!("break k --yes --fencing-token {}", second - 1)).await;
    another.expect_line(1, &["another grant", "second", "nothing was broken"]);
    assert_eq!(number(&client).await, second);
    let broken = door.pipe(&format!("break k --yes --fencing-token {second}")).await;
    assert_eq!(broken.status, Some(0), "{broken:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_who_hold_a_lock_only_the_one_that_is_named_is_broken() {
    let door = Door::plain().await;
    let client = door.client();
    let mut numbers = Vec::new();
    for ttl in ["1m", "5m"] {
        let granted = client.put(&format!("/locks/k?slots=5&ttl={ttl}")).send().await.expect(201);
        numbers.push(granted.fencing_token());
    }
    let shown = door.pipe("status k").await.stdout;
    let rows: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[1], ["slots", "taken", "2", "of", "5"], "{shown}");
    let (first, second) = (&rows[rows.len() - 2], &rows[rows.len() - 1]);
    assert_eq!((first[0], first[first.len() - 1]), ("1", numbers[0].to_string().as_str()), "{shown}");
    assert_eq!((second[0], second[second.len() - 1]), ("2", numbers[1].to_string().as_str()), "{shown}");
    let json = door.pipe("status k --json").await.stdout;
    let told: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((json.matches("\"held\":").count(), &told["held"]), (1, &true.into()), "{json}");
    assert_eq!((&told["held_by"], &told["holders"][1]["fencing_token"]), (&2.into(), &numbers[1].into()));
    let refused = door.pipe("break k --yes").await;
    refused.expect_line(2, &["held by slots, by 2", "--fencing-token"]);
    assert_eq!(client.get("/locks/k").send().await.json()["held"], 2);
    // It is not the one that is shown first.
    let broken = door.pipe(&format!("break k --yes --fencing-token {}", numbers[1])).await;
    assert_eq!(broken.status, Some(0), "{broken:?}");
    let left = client.get("/locks/k?holders=true").send().await.expect(200).json();
    assert_eq!((&left["held"], &left["holders"][0]["fencing_token"]), (&json!(1), &json!(numbers[0])));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_break_whose_answer_was_lost_is_asked_for_again_and_spares_the_next_grant() {
    let mut door = Door::plain().await;
    let client = door.client();
    let proxy = Proxy::start(door.gateway.address.port(), Framing::Chunks).await;
    door.scene = Scene::at(proxy.url());
    client.put("/locks/k?ttl=5m").send().await.expect(201);
    let waits = tokio::spawn(client.put("/locks/k?ttl=5m&wait=15s").send());
    kit::eventually("the next one waits", async || {
        client.get("/locks/k").send().await.json()["waiters"] == 1
    })
    .await;
    let mut passage = proxy.expect("DELETE", Fate::CutAfter);
    let ended = door.pipe("break k --yes").await;
    passage.reaches(Progress::Answered).await;
    assert!(ended.status == Some(0) && ended.stdout.starts_with("over: "), "{ended:?}");
    let next = waits.await.unwrap().expect(201).fencing_token();
    assert_eq!(number(&client).await, next);
}

/// Each `DELETE` is answered by an empty 204 with an id, as what stands in front of a gateway may do.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_not_called_broken_because_something_answers_204() {
    let held = r#"{"key":"k","fencing_token":7,"expires_at":"","expires_in_ms":30000,"waiters":0}"#;
    let front = Recorder::telling(&[(Duration::ZERO, 200, held)]).await;
    let mut door = Door::plain().await;
    door.scene = Scene::at(front.url());
    let ended = door.pipe("break k --yes --gateway-wait 0s").await;
    assert_eq!((ended.status, ended.stdout.as_str()), (Some(69), ""), "{ended:?}");
    let said = ["cannot break the lock", "HTTP 204", "the grant may be over all the same"];
    assert!(said.iter().all(|words| ended.stderr.contains(words)), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_person_nothing_is_broken_unless_yes_is_there() {
    let door = Door::plain().await;
    let (_, held) = door.acquire("k --ttl 5m").await;
    for script in ["\"$F\" break k <<<y", "yes | \"$F\" break k", "\"$F\" break k </dev/null | cat"] {
        door.script(script).await.expect_line(2, &["--yes"]);
    }
    let mut person = door.person(&["break", "k"]);
    person.sees("[y/N]").await;
    // Where it cannot be told, it is done all the same.
    door.acquire("l --ttl 5m").await;
    let full = door.script("\"$F\" break l --yes >/dev/full").await;
    assert!(full.status == Some(71) && full.stderr.contains("the grant is over"), "{full:?}");
    // The end of what is typed is no yes.
    person.types("\u{4}");
    assert_eq!(person.status().await, Some(1));
    assert_eq!(number(&door.client()).await, held);
}
