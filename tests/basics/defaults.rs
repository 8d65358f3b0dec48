//! Defaults that nobody set give way to limits that somebody has set.

use std::ops::RangeInclusive;

use http_body_util::BodyExt;
use serde_json::Value;

use kit::http::Call;
use kit::{Client, Gateway, KeysFile, fresh_token};

/// How long leases last for which nobody gave a ttl: of a `PUT`, of its renewal, and of a hold, in milliseconds.
async fn leases(gateway: &Gateway, key: Option<&str>) -> [u64; 3] {
    let client = Client::new(gateway.address);
    let shown = |call: Call| match key {
        Some(key) => call.key(key),
        None => call,
    };
    let token = fresh_token();
    let granted = shown(client.put("/locks/k").token(&token)).send().await.expect(201).json();
    let renewed = shown(client.patch("/locks/k").token(&token)).send().await.expect(200).json();
    let hold = client.call("POST", "/hold?key=held").header("Accept", "application/x-ndjson");
    let mut response = shown(hold).open().await;
    assert_eq!(response.status(), 200);
    let event = response.body_mut().frame().await.unwrap().unwrap().into_data().unwrap();
    let held: Value = serde_json::from_slice(&event).unwrap();
    [granted, renewed, held].map(|lease| lease["ttl_ms"].as_u64().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_ttl_gets_what_the_limits_allow() {
    let cases: [(&[&str], RangeInclusive<u64>); 5] = [
        (&["--max-ttl", "5s"], 4_000..=5_000),
        (&["--max-ttl", "5m"], 14_000..=30_000),
        (&["--min-ttl", "40s"], 39_000..=40_000),
        (&["--min-ttl", "25h"], 89_000_000..=90_000_000),
        (&["--max-ttl", "5s", "--default-ttl", "2s"], 1_000..=5_000),
    ];
    for (args, lasting) in cases {
        let gateway = Gateway::start(&[&["--store", "memory:"], args].concat()).await;
        let leases = leases(&gateway, None).await;
        assert!(leases.iter().all(|ms| lasting.contains(ms)), "{args:?}: {leases:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_ttl_gets_what_its_key_allows() {
    let mut file = KeysFile::new();
    let key = file.add("short", "every_key = true\nallow = [\"acquire\"]\nmax_ttl = \"5s\"");
    file.write();
    let flag = file.flag();
    let gateway = Gateway::start(&["--store", "memory:", &flag[0], &flag[1]]).await;
    let leases = leases(&gateway, Some(&key)).await;
    assert!(leases.iter().all(|ms| (4_000..=5_000).contains(ms)), "{leases:?}");
}

/// The longest wait and the life of tombstones bound each other: the one that nobody set gives way.
#[tokio::test(flavor = "multi_thread")]
async fn the_longest_wait_and_the_life_of_tombstones_give_way_to_each_other() {
    let cases: [(&[&str], &str); 3] = [
        (&["--mark-ttl", "30s"], "from 0s to 5s"),
        (&["--max-wait", "10m"], "from 0s to 10m"),
        (&[], "from 0s to 1m"),
    ];
    for (args, said) in cases {
        let gateway =
            Gateway::start(&[&["--store", "memory:", "--store-timeout", "5s"], args].concat()).await;
        let refused = Client::new(gateway.address).put("/locks/k?wait=1h").send().await;
        let problem = refused.expect_problem(400, "bad-parameter").json();
        assert!(problem["detail"].as_str().unwrap().ends_with(said), "{args:?}: {problem}");
    }
}

/// As `fencepost run` asks for 30 s, which it shows to the person who started it.
#[tokio::test(flavor = "multi_thread")]
async fn who_asks_for_more_than_the_limit_is_told_what_to_write() {
    let gateway = Gateway::start(&["--store", "memory:", "--max-ttl", "5s"]).await;
    let refused = Client::new(gateway.address).put("/locks/k?ttl=30s").send().await;
    let problem = refused.expect_problem(400, "bad-parameter").json();
    assert_eq!(problem["detail"], "ttl must be from 10ms to 5s");
}
