//! The log: one line per request, with its id, and never a token.

use std::process::Stdio;

use serde_json::Value;

use crate::support::gateway::bare_command;
use crate::support::http::{raw, raw_call};
use crate::support::{Stage, eventually, fresh_token, on_each_store};

on_each_store!(one_line_per_request_and_never_a_token, request_ids_are_taken_over_or_made);

fn requests(stage: &Stage) -> Vec<Value> {
    let lines = stage.gateway.log();
    let values =
        lines.iter().map(|line| serde_json::from_str::<Value>(line).expect("every line is an object"));
    // The stage itself asks whether the gateway is ready, and its line may come at any time.
    values.filter(|line| line.get("request_id").is_some() && line["route"] != "/readyz").collect()
}

async fn one_line_per_request_and_never_a_token(stage: Stage) {
    let client = stage.client();
    let token = fresh_token();
    let call = |method: &str, address: &str| client.call(method, address).token(&token);
    call("PUT", "/locks/k?owner=me").send().await.expect(201);
    call("PUT", "/locks/k").send().await.expect(200);
    call("PATCH", "/lock?key=k").send().await.expect(200);
    call("GET", "/locks/k").send().await.expect(200);
    let made = client.put("/locks/m").send().await.expect(201).token();
    client.put("/locks/k").send().await.expect(423);
    // Where a token does not belong, it does not get into the log either.
    client.put(&format!("/locks/x?token={token}")).send().await.expect(400);
    client.put(&format!("/locks/x/{token}")).send().await.expect(404);
    call("GET", "/locks/k").header("X-Request-Id", &token).send().await.expect(200);
    call("HEAD", "/locks/k").send().await.expect(200);
    raw(stage.gateway.address, format!("{token}\r\n\r\n").as_bytes()).await;
    call("DELETE", "/locks/k").send().await.expect(204);
    client.delete("/locks/m").token(&made).send().await.expect(204);
    eventually("all lines are written", async || requests(&stage).len() == 12).await;

    let lines = requests(&stage);
    let statuses: Vec<_> = lines.iter().map(|line| line["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [201, 200, 200, 200, 201, 423, 400, 404, 200, 200, 204, 204]);
    assert_eq!(lines[0]["key"], "k");
    assert_eq!(lines[0]["route"], "/locks/{key}");
    assert_eq!(lines[0]["method"], "PUT");
    assert_eq!(lines[2]["route"], "/lock");
    assert_eq!(lines[5]["problem"], "lock-held");
    assert!(lines.iter().all(|line| line["message"] == "answered"), "{lines:#?}");
    assert!(lines.iter().all(|line| line["elapsed_us"].is_u64() && line["timestamp"].is_string()));
    let log = stage.gateway.log().join("\n");
    for secret in [&token, &made, &made[1..]] {
        assert!(!log.contains(secret), "a token is in the log");
    }
}

async fn request_ids_are_taken_over_or_made(stage: Stage) {
    let address = stage.gateway.address;
    let longest = "x".repeat(128);
    for id in ["abc-123", "!~", &longest] {
        let answer = raw_call(address, "GET", "/healthz", &format!("X-Request-Id: {id}\r\n")).await;
        assert_eq!(answer.header("x-request-id"), Some(id));
    }
    let mut made = std::collections::HashSet::new();
    for id in ["", "with space", &"x".repeat(129), "ümlaut"] {
        let answer = raw_call(address, "GET", "/locks/free", &format!("X-Request-Id: {id}\r\n")).await;
        made.insert(answer.header("x-request-id").unwrap().to_owned());
    }
    assert_eq!(made.len(), 4, "each is fresh: {made:?}");
    eventually("the ids are in the log", async || {
        requests(&stage).iter().any(|line| line["request_id"] == "abc-123")
    })
    .await;
}

#[test]
fn text_is_the_default_and_has_no_colours_off_a_terminal() {
    use std::io::{BufRead, BufReader};
    let mut child = bare_command()
        .args(["--listen", "127.0.0.1:0", "--store", "memory:"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.contains(" WARN locks live in memory") && !line.contains('\u{1b}'), "{line:?}");
}
