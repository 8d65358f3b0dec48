//! How much a key may do, and how often somebody may show what is no key.

use std::time::Duration;

use http_body_util::BodyExt;
use serde_json::Value;

use kit::http::raw_call;
use kit::{Client, Gateway, KeysFile, RedisServer, eventually, fresh_token};

use super::gateway;

#[tokio::test(flavor = "multi_thread")]
async fn a_key_has_a_rate_of_its_own_and_is_told_what_is_left() {
    let mut file = KeysFile::new();
    let all = "every_key = true\nallow = [\"inspect\"]";
    // One request in 1000 seconds, so that none comes back while the test runs.
    let slow = file.add("slow", &format!("{all}\nrate = 0.001\nburst = 3"));
    let fast = file.add("fast", &format!("{all}\nrate = 100_000"));
    let free = file.add("free", all);
    let gateway = gateway(&file, &[]).await;
    let client = Client::new(gateway.address);
    let look = |key: &str| client.get("/locks/k").key(key).send();
    for (remaining, refills_s) in [(2, 1000), (1, 2000), (0, 3000)] {
        let answer = look(&slow).await.expect(404);
        assert_eq!(answer.header("ratelimit-policy"), Some("\"key\";q=3;w=3000"));
        let expected = format!("\"key\";r={remaining};t={refills_s}");
        assert_eq!(answer.header("ratelimit"), Some(expected.as_str()));
    }
    let answer = look(&slow).await.expect_problem(429, "rate-limited");
    assert_eq!(answer.header("ratelimit"), Some("\"key\";r=0;t=3000"));
    let retry_after: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((900..=1000).contains(&retry_after), "{retry_after}");
    // Others notice nothing of it.
    for _ in 0..20 {
        look(&fast).await.expect(404);
        assert!(look(&free).await.expect(404).header("ratelimit").is_none());
    }
    // And what is used up stays so when the file is read anew.
    let other = file.add("other", all);
    file.write();
    eventually("the file is read", async || look(&other).await.status == 404).await;
    look(&slow).await.expect_problem(429, "rate-limited");
    let more = all.replace("inspect", "acquire");
    file.change("slow", all, &more);
    file.change("slow", "burst = 3", "burst = 4");
    file.write();
    eventually("a new rate begins anew", async || look(&slow).await.status == 403).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_counts_as_more_than_a_key_has_left_is_told_what_smaller_ones_have() {
    let mut file = KeysFile::new();
    let slow = "every_key = true\nallow = [\"acquire\", \"inspect\"]\nrate = 0.001\nburst = 4";
    let key = file.add("slow", slow);
    let gateway = gateway(&file, &[]).await;
    let client = Client::new(gateway.address);
    client.get("/locks/k").key(&key).send().await.expect(404);
    let several = client.put("/lock?key=a&key=b&key=c&key=d").key(&key).send().await;
    let several = several.expect_problem(429, "rate-limited");
    assert_eq!(several.header("ratelimit"), Some("\"key\";r=3;t=1000"));
    for left in [2, 1, 0] {
        let answer = client.get("/locks/k").key(&key).send().await.expect(404);
        let expected = format!("\"key\";r={left};t={}", (4 - left) * 1000);
        assert_eq!(answer.header("ratelimit"), Some(expected.as_str()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_has_a_share_of_those_who_wait_and_hold() {
    let mut file = KeysFile::new();
    let lines = "every_key = true\nallow = [\"acquire\", \"inspect\"]\nmax_waiters = 1\nmax_holds = 1\nmax_watchers = 1\nmax_ttl = \"10s\"";
    let small = file.add("small", lines);
    let large = file.add_for_all("large", "\"acquire\", \"inspect\"");
    let gateway = gateway(&file, &[]).await;
    let client = Client::new(gateway.address);
    let held = client.put("/locks/held?ttl=1h").key(&large).send().await.expect(201).token();
    let waiters = async |expected: u64| {
        let look = async || client.get("/locks/held").key(&large).send().await.json()["waiters"] == expected;
        eventually("so many wait", look).await;
    };
    let first = tokio::spawn(client.put("/locks/held?wait=30s").key(&small).send());
    waiters(1).await;
    for call in [client.put("/locks/held?wait=30s"), client.call("POST", "/hold?key=held&wait=30s")] {
        let answer = call.key(&small).send().await.expect_problem(429, "too-many-waiters");
        assert!(answer.json()["detail"].as_str().unwrap().contains("API key"), "{}", answer.json());
    }
    // Without a wait it is not one of them, and others wait as ever.
    client.put("/locks/held").key(&small).send().await.expect(423);
    let second = tokio::spawn(client.put("/locks/held?wait=30s").key(&large).send());
    waiters(2).await;
    client.delete("/locks/held").key(&large).token(&held).send().await.expect(204);
    let granted = first.await.unwrap().expect(201);
    assert!(granted.json()["ttl_ms"].as_u64().unwrap() <= 10_000, "its leases are shorter");
    client.delete("/locks/held").key(&small).token(&granted.token()).send().await.expect(204);
    second.await.unwrap().expect(201);
    // The wait is over, and its place free again.
    client.put("/locks/held?wait=1ms").key(&small).send().await.expect_problem(423, "lock-held");

    let hold = |lock: &str| client.call("POST", &format!("/hold?key={lock}")).key(&small);
    let mut stream = hold("a").open().await;
    assert_eq!(stream.status(), 200);
    stream.body_mut().frame().await.unwrap().unwrap();
    hold("b").send().await.expect_problem(429, "too-many-holds");
    drop(stream);
    eventually("its place is free again", async || hold("b").open().await.status() == 200).await;

    let watch = || client.call("GET", "/events?key=a").key(&small);
    let stream = watch().open().await;
    assert_eq!(stream.status(), 200);
    watch().send().await.expect_problem(429, "too-many-watchers");
    drop(stream);
    eventually("its place is free again", async || watch().open().await.status() == 200).await;

    let renew = client.patch("/locks/k?ttl=11s").key(&small).token(&fresh_token());
    let detail = renew.send().await.expect_problem(400, "bad-parameter").json()["detail"].to_string();
    assert!(detail.contains("to 10s with this API key"), "{detail}");
}

/// Else a client could fill the disk as fast as it can ask.
#[tokio::test(flavor = "multi_thread")]
async fn requests_beyond_the_rate_of_a_key_have_no_line_each_in_the_log_nor_in_the_audit_log() {
    const REFUSED: usize = 200;
    let mut file = KeysFile::new();
    let slow = file.add("slow", "every_key = true\nallow = [\"inspect\"]\nrate = 0.001\nburst = 3");
    let free = file.add_for_all("free", "\"inspect\"");
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit.log");
    let gateway = gateway(&file, &["--audit-log", audit.to_str().unwrap()]).await;
    let client = Client::new(gateway.address);
    for _ in 0..3 {
        client.get("/locks/k").key(&slow).send().await.expect(404);
    }
    for _ in 0..REFUSED {
        client.get("/locks/k").key(&slow).send().await.expect_problem(429, "rate-limited");
    }
    client.get("/locks/k").key(&free).send().await.expect(404);
    let ours = |lines: &[String]| -> Vec<Value> {
        let lines = lines.iter().filter(|line| line.contains(&slow[3..15]));
        lines.map(|line| serde_json::from_str(line).expect("every line is an object")).collect()
    };
    let audited = || -> Vec<String> {
        let text = std::fs::read_to_string(&audit).unwrap_or_default();
        // The last line may be about to be written.
        text.rsplit_once('\n').map_or("", |(whole, _)| whole).lines().map(str::to_owned).collect()
    };
    let counted = |lines: &[Value]| lines.iter().filter_map(|line| line["count"].as_u64()).sum::<u64>();
    eventually("the log counts all of them", async || counted(&ours(&gateway.log())) == REFUSED as u64).await;
    eventually("the audit log does so too", async || counted(&ours(&audited())) == REFUSED as u64).await;
    let (said, noted) = (ours(&gateway.log()), ours(&audited()));
    // On a slow machine they may be counted twice.
    assert!((4..10).contains(&said.len()) && (4..10).contains(&noted.len()), "{said:#?} {noted:#?}");
    let own = |line: &&Value| line.get("request_id").is_some();
    assert_eq!((said.iter().filter(own).count(), noted.iter().filter(own).count()), (3, 3));
    let last = noted.last().unwrap();
    assert_eq!((&last["event"], &last["key_name"]), (&"rate-limited".into(), &"slow".into()), "{last}");
    let of_free = |line: &String| line.contains("\"request_id\"") && line.contains(&free[3..15]);
    assert!(gateway.log().iter().any(of_free), "others have their lines: {:#?}", gateway.log());
}

/// All requests of this test come from one address.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_guesses_is_not_listened_to_and_others_at_the_address_are() {
    let mut file = KeysFile::new();
    let good = file.add_for_all("good", "\"inspect\"");
    let gateway = gateway(&file, &[]).await;
    let client = Client::new(gateway.address);
    let guess = async |n: usize| {
        let key = format!("fp_{n:012}_{}", "s".repeat(32));
        client.get("/locks/k").key(&key).send().await.status
    };
    let mut statuses = Vec::new();
    for n in 0..60 {
        statuses.push(guess(n).await);
        client.get("/locks/k").key(&good).send().await.expect(404);
    }
    let heard = statuses.iter().filter(|status| **status == 401).count();
    assert!(statuses[..10].iter().all(|status| *status == 401), "{statuses:?}");
    // One more a second is listened to, however slow this machine is.
    assert!(heard < 40 && statuses.iter().all(|status| [401, 429].contains(status)), "{statuses:?}");
    let limited = raw_call(gateway.address, "GET", "/locks/k", "Authorization: Bearer fp_x\r\n").await;
    if limited.status == 429 {
        assert_eq!(limited.expect_problem(429, "rate-limited").header("retry-after"), Some("1"));
    }
    // Who shows none at all is told so.
    client.get("/locks/k").send().await.expect_problem(401, "key-required");
    let said = |text: &str| gateway.log().iter().filter(|line| line.contains(text)).count();
    eventually("the last request is in the log", async || said("key-required") == 1).await;
    assert!(said("an API key was refused") <= heard + 1 && said("rate-limited") == 0, "{:#?}", gateway.log());
    let told = Duration::from_secs(15);
    let until = std::time::Instant::now() + told;
    while said("more API keys were refused") == 0 {
        assert!(std::time::Instant::now() < until, "how many there were is not in the log");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// They are answered as ever, and the keys of others at their address too; only the log is spared.
#[tokio::test(flavor = "multi_thread")]
async fn requests_without_a_key_are_each_refused_and_not_each_a_line() {
    const REQUESTS: usize = 200;
    let mut file = KeysFile::new();
    file.add_for_all("all", "\"inspect\"");
    let gateway = gateway(&file, &[]).await;
    let client = Client::new(gateway.address);
    for _ in 0..REQUESTS {
        client.get("/locks/k").send().await.expect_problem(401, "key-required");
    }
    // Whoever shows what is no key has not used up what may be shown.
    client.get("/locks/k").key("nonsense").send().await.expect_problem(401, "key-refused");
    let said = |text: &str| gateway.log().iter().filter(|line| line.contains(text)).count();
    eventually("they are counted", async || said("more requests without an accepted API key") == 1).await;
    // One more a second has a line, however slow this machine is.
    assert!((10..REQUESTS / 2).contains(&said("key-required")), "{}", said("key-required"));
}

/// The gateway that granted it is told nothing of its release.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_another_gateway_released_counts_until_its_min_hold_is_over() {
    let redis = RedisServer::start().await;
    let mut file = KeysFile::new();
    let all = "every_key = true\nallow = [\"acquire\", \"inspect\", \"admin\"]";
    let (key, other) = (file.add("key", &format!("{all}\nmax_locks = 1")), file.add("other", all));
    file.write();
    let [flag, path] = file.flag();
    let gateways =
        [Gateway::on_redis(&redis, &[&flag, &path]).await, Gateway::on_redis(&redis, &[&flag, &path]).await];
    let [here, there] = gateways.each_ref().map(|gateway| Client::new(gateway.address));
    for call in [here.put("/locks/own?ttl=1s&min_hold=1h"), here.post("/hold?key=own&ttl=1s&min_hold=1h")] {
        let token = fresh_token();
        let mut taken = call.key(&key).token(&token).open().await;
        assert!(taken.status().is_success(), "{taken:?}");
        taken.body_mut().frame().await.unwrap().unwrap();
        there.delete("/locks/own").key(&key).token(&token).send().await.expect(204);
        // Its lease would be over by then.
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        here.put("/locks/more").key(&key).send().await.expect_problem(429, "too-many-locks");
        here.delete("/locks/own?force=true").key(&other).send().await.expect(204);
        let is_free = async || {
            let taken = here.put("/locks/more").key(&key).send().await;
            if taken.status == 201 {
                here.delete("/locks/more").key(&key).token(&taken.token()).send().await.expect(204);
            }
            taken.status == 201
        };
        eventually("what was broken makes room", is_free).await;
    }
}
