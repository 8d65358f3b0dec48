//! What lies on one server of a quorum: its record besides the locks.

use std::time::Duration;

use regex::Regex;

use super::redis::{
    ask, each_lock_is_as_it_was, largest_number, lay_down, lines_of, look, number_of, take_locks,
};
use super::{hold_against, recorded, versions};
use kit::quorum::{BRIEF, RECORD, asks_all, count_soon, is_ready};
use kit::{Client, Quorum, RedisServer, eventually};

const FIXTURE: &str = "quorum.txt";
/// How far numbers may be ahead of the clock, as after a gateway's clock was wrong; in µs.
const AHEAD_US: u64 = 3_600_000_000;

/// The addresses of the servers, as their records have them.
fn members_of(quorum: &Quorum) -> String {
    let mut names: Vec<_> = quorum.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    names.sort_unstable();
    names.join(" ")
}

/// The name that a record has for a server for as long as its data has one history.
async fn run_of(node: &RedisServer) -> String {
    format!("{}-{}", &node.info("run_id").await[..20], &node.info("master_replid").await[..20])
}

/// Makes of each server of a quorum what the fixture was: as if it had run on since then, or as if it had just been started
/// with what it had on its disk.
async fn lay_down_on_all(quorum: &Quorum, fixture: &str, has_run_on: bool) {
    for node in &quorum.nodes {
        let run = if has_run_on { run_of(node).await } else { format!("{0}-{0}", "0".repeat(20)) };
        let fixture = fixture.replace("<run>", &run).replace("<members>", &members_of(quorum));
        lay_down(node, &fixture, Duration::ZERO).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_lies_on_a_server_of_a_quorum_is_what_is_recorded_of_this_version() {
    let quorum = Quorum::start(3).await;
    let gateway = quorum.gateway(&[]).await;
    let client = Client::new(gateway.address);
    asks_all(&gateway, &quorum).await;
    let _held = take_locks(&client, "5m").await;
    ask(&client, "PUT", "key=broken&ttl=5m", "broken").await.expect(201);
    let number = client.get("/lock?key=broken").send().await.expect(200).fencing_token();
    client.delete(&format!("/lock?key=broken&force=true&fencing_token={number}")).send().await.expect(204);
    ask(&client, "PUT", "key=line&ttl=5m", "line").await.expect(201);
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { ask(&client, "PUT", "key=line&ttl=5m&wait=20s", "first").await }
    });
    let node = &quorum.nodes[0];
    let names = [
        ":lock:plain ",
        ":lock:owned ",
        ":lock:renewed ",
        ":lock:terms ",
        ":lock:kept ",
        ":lock:connection ",
    ];
    let more = [":lock:claimed ", "ä\" ", ":lock:line ", ":watch:line ", " \"! ####", "settled 1"];
    let mut all = String::new();
    eventually("the server has heard of all", async || {
        all = look(node).await;
        // What a majority has answered may still be on its way to the others.
        let dashes = "-".repeat(32);
        let is_pinned = all.lines().any(|line| line.contains(":lock:renewed ") && line.contains(&dashes));
        is_pinned
            && names.iter().chain(&more).all(|part| all.contains(part))
            && all.matches(":freed:").count() >= 6
    })
    .await;
    waiting.abort();
    let all = all.replace(&run_of(node).await, "<run>");
    let all = all.replace(&members_of(&quorum), "<members>");
    // A version that does not know these fields leaves them as they are.
    let all = all.replace(&format!("HSET {RECORD} evictions \"<run> 0\"\n"), "");
    let named = format!("HSET {RECORD} quorum ");
    let all: String = all.split_inclusive('\n').filter(|line| !line.starts_with(&named)).collect();
    hold_against(FIXTURE, &all, lines_of);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_lock_that_an_earlier_version_left_on_a_quorum_is_found_renewed_and_released() {
    for version in versions() {
        let (quorum, fixture) = (Quorum::start(3).await, recorded(&version, FIXTURE));
        lay_down_on_all(&quorum, &fixture, true).await;
        let gateway = quorum.gateway(&[]).await;
        let client = Client::new(gateway.address);
        is_ready(&client).await;
        // The server has no quarantine to serve.
        each_lock_is_as_it_was(&client, &fixture, Duration::from_secs(200)).await;
        // A grant that was broken there is not brought back: its lock is free.
        ask(&client, "PATCH", "key=broken&ttl=1m", "broken").await.expect_problem(404, "not-held");
        assert!(number_of(&fixture, "line") < largest_number(&fixture) + 1);
    }
}

/// The numbers in the record count, however far they are ahead of the clock.
#[tokio::test(flavor = "multi_thread")]
async fn the_numbers_that_an_earlier_version_left_on_a_quorum_are_outdone() {
    let number = Regex::new(r"\b\d{16}\b").unwrap();
    for version in versions() {
        for has_run_on in [true, false] {
            let fixture = recorded(&version, FIXTURE);
            let quorum = Quorum::start(3).await;
            let (s, _): (u64, u64) = quorum.nodes[0].command(&["TIME"]).await;
            let last = s * 1_000_000 + AHEAD_US;
            let record: String = fixture
                .lines()
                .filter(|line| line.contains(RECORD))
                .map(|line| format!("{line}\n"))
                .collect();
            assert!(number.is_match(&record), "{record}");
            let record = number.replace_all(&record, last.to_string());
            lay_down_on_all(&quorum, &record, has_run_on).await;
            for node in &quorum.nodes {
                // What is waited for here is not how long the leases were.
                let _: u64 = node.command(&["HSET", RECORD, "longest", "1"]).await;
            }
            let gateway = quorum.gateway(&BRIEF).await;
            let client = Client::new(gateway.address);
            if !has_run_on {
                let refused = client.put("/lock?key=plain&ttl=1s").send().await;
                refused.expect_problem(503, "store-unavailable");
                count_soon(&quorum.nodes).await;
            }
            is_ready(&client).await;
            // Of a server that has forgotten nothing, numbers of other locks need not be larger.
            let keys = ["plain", "owned", "another"];
            for key in &keys[..if has_run_on { 2 } else { 3 }] {
                let granted = client.put(&format!("/lock?key={key}&ttl=1s")).send().await.expect(201);
                assert!(granted.fencing_token() > last, "{key}, {has_run_on}");
            }
        }
    }
}

/// A gateway that is of no version that is recorded: its record tells nothing, so the server waits until nothing can be left.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_record_cannot_be_read_goes_into_quarantine() {
    let quorum = Quorum::start(3).await;
    let fixture = recorded("0.1.0", FIXTURE);
    lay_down_on_all(&quorum, &fixture, true).await;
    for node in &quorum.nodes {
        let _: u64 = node.command(&["HSET", RECORD, "run", "2:as a later version names it"]).await;
    }
    let gateway = quorum.gateway(&[]).await;
    let client = Client::new(gateway.address);
    for node in &quorum.nodes {
        eventually("it is in quarantine", async || {
            let since: String = node.command(&["HGET", RECORD, "since"]).await;
            since != "0"
        })
        .await;
    }
    client.put("/lock?key=plain").send().await.expect_problem(503, "store-unavailable");
}
