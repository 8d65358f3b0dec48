//! What one key leaves to others, whatever its holder does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use http::Response;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::gateway;
use kit::http::{Call, raw};
use kit::{Client, KeysFile, cpu_time, eventually, fresh_token};

const ALL: &str = "\"acquire\", \"inspect\", \"list\"";

/// A key that says nothing of how much it may have, for the locks below `own/`.
fn narrow(file: &mut KeysFile) -> String {
    file.add("narrow", &format!("prefixes = [\"own/\"]\nallow = [{ALL}]"))
}

/// Opens streams until one is refused; returns those that are open, and the refusal's detail.
async fn open_all(call: impl Fn(usize) -> Call, problem: &str) -> (Vec<Response<Incoming>>, String) {
    let mut open = Vec::new();
    loop {
        assert!(open.len() < 50, "nobody is refused");
        let answer = call(open.len()).open().await;
        if answer.status() != 200 {
            assert_eq!(answer.status(), 429);
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(body["type"], format!("/problems/{problem}"));
            return (open, body["detail"].as_str().unwrap().to_owned());
        }
        open.push(answer);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_says_nothing_has_a_quarter_of_the_places_of_those_who_hold_wait_and_watch() {
    let mut file = KeysFile::new();
    let (narrow, other) = (narrow(&mut file), file.add_for_all("other", ALL));
    let gateway = gateway(&file, &["--max-holds", "12", "--max-waiters", "8", "--max-watchers", "16"]).await;
    let client = Client::new(gateway.address);
    let hold = |n: usize| client.call("POST", &format!("/hold?key=own/{n}")).key(&narrow);
    let (holds, detail) = open_all(hold, "too-many-holds").await;
    assert!(holds.len() == 3 && detail.contains("API key"), "{} {detail}", holds.len());
    let watch = |_| client.call("GET", "/events?prefix=own/").key(&narrow);
    let (streams, detail) = open_all(watch, "too-many-watchers").await;
    assert!(streams.len() == 4 && detail.contains("API key"), "{} {detail}", streams.len());
    let wait = |key: &str| client.put("/lock?key=own/0&wait=30s").key(key).send();
    let waiting: Vec<_> = (0..2).map(|_| tokio::spawn(wait(&narrow))).collect();
    eventually("they wait", async || {
        client.get("/lock?key=own/0").key(&other).send().await.json()["waiters"] == 2
    })
    .await;
    let refused = wait(&narrow).await.expect_problem(429, "too-many-waiters");
    assert!(refused.json()["detail"].as_str().unwrap().contains("API key"), "{}", refused.json());
    // All this leaves the others their places.
    client.put("/lock?key=own/0&wait=1ms").key(&other).send().await.expect_problem(423, "lock-held");
    assert_eq!(client.call("POST", "/hold?key=else").key(&other).open().await.status(), 200);
    assert_eq!(client.call("GET", "/events?key=else").key(&other).open().await.status(), 200);
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_says_nothing_has_a_quarter_of_the_connections_that_may_be_kept_by_http1() {
    let mut file = KeysFile::new();
    let (narrow, other) = (narrow(&mut file), file.add_for_all("other", ALL));
    let large = file.add("large", &format!("every_key = true\nallow = [{ALL}]\nmax_watchers = 6"));
    // Twelve of these may be kept.
    let gateway = gateway(&file, &["--max-connections", "16", "--max-connections-per-address", "16"]).await;
    let client = Client::new(gateway.address);
    let watch = |key: &str| client.call("GET", "/events?key=own/k").key(key);
    let (streams, detail) = open_all(|_| watch(&narrow), "too-many-watchers").await;
    assert!(streams.len() == 3 && detail.contains("API key"), "{} {detail}", streams.len());
    client.call("POST", "/hold?key=own/h").key(&narrow).send().await.expect_problem(429, "too-many-holds");
    client.put("/lock?key=own/h&wait=1s").key(&narrow).send().await.expect_problem(429, "too-many-waiters");
    client.put("/lock?key=own/h").key(&narrow).send().await.expect(201);
    // Whose entry says more has more.
    assert_eq!(open_all(|_| watch(&large), "too-many-watchers").await.0.len(), 6);
    assert_eq!(watch(&other).open().await.status(), 200);
    drop(streams);
    eventually("they have their connections again", async || watch(&narrow).open().await.status() == 200)
        .await;
}

/// A place in a line is kept for a while for a client that has left, with a token of its own; so it counts for as long.
#[tokio::test(flavor = "multi_thread")]
async fn places_of_clients_who_left_count_until_they_end_or_are_used() {
    let mut file = KeysFile::new();
    let other = file.add_for_all("other", ALL);
    let small = file.add("small", &format!("every_key = true\nallow = [{ALL}]\nmax_waiters = 2"));
    let gateway = gateway(&file, &["--ticket-ttl", "6s"]).await;
    let client = Client::new(gateway.address);
    let held = client.put("/locks/k?ttl=1h").key(&other).send().await.expect(201).token();
    let wait = |key: &str, token: &str| client.put("/locks/k?wait=1ms&ttl=1h").key(key).token(token).send();
    let (first, second, third) = (fresh_token(), fresh_token(), fresh_token());
    wait(&small, &first).await.expect_problem(423, "lock-held");
    // This one leaves before its answer.
    let leaving = tokio::spawn(client.put("/locks/k?wait=30s&ttl=1h").key(&small).token(&second).send());
    let stand = async |expected: u64| {
        let look = async || client.get("/locks/k").key(&other).send().await.json()["waiters"] == expected;
        eventually("so many stand in line", look).await;
    };
    stand(2).await;
    leaving.abort();
    stand(1).await;
    let refused = wait(&small, &third).await.expect_problem(429, "too-many-waiters");
    assert!(refused.json()["detail"].as_str().unwrap().contains("API key"), "{}", refused.json());
    let hold = client.call("POST", "/hold?key=k&wait=1ms").key(&small).token(&third);
    hold.send().await.expect_problem(429, "too-many-waiters");
    // Whoever has a place comes back to it, and others have places of their own.
    assert_eq!(wait(&small, &first).await.expect_problem(423, "lock-held").json()["position"], 1);
    assert_eq!(wait(&other, &fresh_token()).await.expect_problem(423, "lock-held").json()["position"], 2);
    // Given up, it is another's.
    client.delete("/locks/k").key(&small).token(&second).send().await.expect(204);
    wait(&small, &third).await.expect_problem(423, "lock-held");
    wait(&small, &fresh_token()).await.expect_problem(429, "too-many-waiters");
    // Used, it is as well.
    client.delete("/locks/k").key(&other).token(&held).send().await.expect(204);
    let wait_long = client.put("/locks/k?wait=30s&ttl=1h").key(&small).token(&first);
    wait_long.send().await.expect(201);
    let fourth = fresh_token();
    wait(&small, &fourth).await.expect_problem(423, "lock-held");
    wait(&small, &fresh_token()).await.expect_problem(429, "too-many-waiters");
    // And once the line has forgotten them.
    eventually("they have ended", async || wait(&small, &fresh_token()).await.status == 423).await;
}

/// A token is good with any key, as while keys are rotated.
#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_its_token_gives_up_or_uses_with_another_key_counts_no_more_for_the_first() {
    let mut file = KeysFile::new();
    let other = file.add_for_all("other", ALL);
    let lines = format!("every_key = true\nallow = [{ALL}]\nmax_waiters = 1");
    let [old, new] = ["old", "new"].map(|name| file.add(name, &lines));
    let gateway = gateway(&file, &["--ticket-ttl", "1m"]).await;
    let client = Client::new(gateway.address);
    client.put("/locks/k?ttl=1h").key(&other).send().await.expect(201);
    let held = client.put("/locks/else?ttl=1h").key(&other).send().await.expect(201).token();
    let put =
        |query: &str, key: &str, token: &str| client.put(&format!("/lock?{query}")).key(key).token(token);
    let waits = async |lock: &str, key: &str, token: &str| {
        let query = format!("key={lock}&wait=1ms");
        put(&query, key, token).send().await.expect_problem(423, "lock-held");
    };
    let too_many = async |lock: &str, key: &str, token: &str| {
        let query = format!("key={lock}&wait=1ms");
        put(&query, key, token).send().await.expect_problem(429, "too-many-waiters");
    };
    let (first, second, third) = (fresh_token(), fresh_token(), fresh_token());

    waits("k", &old, &first).await;
    client.delete("/locks/k").key(&new).token(&first).send().await.expect(204);
    waits("k", &old, &second).await;
    too_many("k", &old, &fresh_token()).await;

    // It comes back with the other key, and counts for that one.
    waits("k", &new, &second).await;
    too_many("k", &new, &fresh_token()).await;
    waits("else", &old, &third).await;
    too_many("else", &old, &fresh_token()).await;
    // A key that has no room takes none over.
    too_many("else", &new, &third).await;
    too_many("else", &old, &fresh_token()).await;

    // It is used by a request that does not wait.
    client.delete("/locks/else").key(&other).token(&held).send().await.expect(204);
    put("key=else", &new, &third).send().await.expect(201);
    waits("else", &old, &fresh_token()).await;
    too_many("k", &new, &fresh_token()).await;
}

/// Of what a greedy key asks for, only so much is done while another's page waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_waits_for_a_few_pages_of_another_key_however_many_it_asks_for() {
    const GREEDY: usize = 100;
    let mut file = KeysFile::new();
    let (greedy, admin) = (narrow(&mut file), file.add_for_all("admin", ALL));
    let gateway = gateway(&file, &[]).await;
    let client = Client::new(gateway.address);
    join_all((0..4).map(async |part| {
        for n in 0..500 {
            client.put(&format!("/lock?key=own/{part}-{n}&ttl=1h")).key(&admin).send().await.expect(201);
        }
    }))
    .await;
    let pages = Arc::new(AtomicUsize::new(0));
    let asking: Vec<_> = (0..GREEDY)
        .map(|_| {
            let (address, pages) = (gateway.address, pages.clone());
            let request = format!(
                "GET /locks?limit=1000 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {greedy}\r\nConnection: close\r\n\r\n"
            );
            tokio::spawn(async move {
                loop {
                    // Whoever reads little of what it is told asks the most.
                    raw(address, request.as_bytes()).await;
                    pages.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    eventually("they ask", async || pages.load(Ordering::Relaxed) > GREEDY).await;
    const OWN: usize = 9;
    for _ in 0..OWN {
        client.get("/locks?limit=1").key(&admin).send().await.expect(200);
    }
    asking.iter().for_each(tokio::task::JoinHandle::abort);
    // As the gateway saw it: what it answered to others between a request of one's own and its answer.
    let lines = |key: &str| -> Vec<(i128, i128)> {
        let log = gateway.log();
        let lines = log.iter().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let lines = lines.filter(|line| line["key_id"] == key[3..15] && line["route"] == "/locks");
        lines
            .map(|line| {
                let end: jiff::Timestamp = line["timestamp"].as_str().unwrap().parse().unwrap();
                let end_us = end.as_nanosecond() / 1_000;
                (end_us - i128::from(line["elapsed_us"].as_u64().unwrap()), end_us)
            })
            .collect()
    };
    eventually("all is in the log", async || lines(&admin).len() == OWN).await;
    let others = lines(&greedy);
    let count = |(start, end)| others.iter().filter(|(_, at)| (start..=end).contains(at)).count();
    let mut meanwhile: Vec<usize> = lines(&admin).into_iter().map(count).collect();
    meanwhile.sort_unstable();
    println!("pages of others before one's own: {meanwhile:?}");
    assert!(meanwhile[OWN / 2] < GREEDY / 5, "{meanwhile:?}");
}

/// Many streams of a key that may see none of it make what others do no dearer.
#[tokio::test(flavor = "multi_thread")]
async fn streams_that_may_not_see_a_lock_cost_those_who_take_it_nothing() {
    const PAIRS: usize = 1_500;
    let mut file = KeysFile::new();
    let (narrow, other) = (narrow(&mut file), file.add_for_all("other", ALL));
    let gateway = gateway(&file, &[]).await;
    let client = Client::new(gateway.address);
    let pairs = async || {
        let before = cpu_time(gateway.pid());
        for _ in 0..PAIRS {
            let token = fresh_token();
            client.put("/locks/else").key(&other).token(&token).send().await.expect(201);
            client.delete("/locks/else").key(&other).token(&token).send().await.expect(204);
        }
        cpu_time(gateway.pid()) - before
    };
    let by_http2 = Client::h2c(gateway.address);
    let mut seeing = by_http2.call("GET", "/events?prefix=").key(&other).open().await;
    seeing.body_mut().frame().await.unwrap().unwrap();
    pairs().await;
    let alone = pairs().await;
    let mut streams = Vec::new();
    for _ in 0..240 {
        let stream = by_http2.call("GET", "/events?prefix=").key(&narrow).open().await;
        assert_eq!(stream.status(), 200);
        streams.push(stream);
    }
    let beside = pairs().await;
    println!("{PAIRS} pairs take {alone:?} alone, and {beside:?} beside {} streams", streams.len());
    assert!(beside < alone.mul_f64(1.5), "{beside:?} and not {alone:?}");
}
