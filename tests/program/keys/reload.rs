//! What becomes of requests when the keys change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use kit::metrics::{Scrape, metrics_address};
use kit::{Client, Gateway, KeysFile, PATIENCE, eventually, fresh_token, h2};

use super::gateway;

/// The file's second entry, so that something stays when the other goes.
fn two_keys() -> (KeysFile, String, String) {
    let mut file = KeysFile::new();
    let stays = file.add_for_all("stays", "\"acquire\", \"inspect\"");
    let goes = file.add_for_all("goes", "\"acquire\", \"inspect\"");
    (file, stays, goes)
}

/// Else a revocation could fail, and only one line of the log would know.
#[tokio::test(flavor = "multi_thread")]
async fn a_keys_file_that_cannot_be_read_shows_in_the_numbers_until_it_can() {
    let (mut file, stays, goes) = two_keys();
    let gateway = gateway(&file, &["--metrics-listen", "127.0.0.1:0"]).await;
    let (client, numbers) = (Client::new(gateway.address), metrics_address(&gateway));
    let in_force =
        async || Scrape::of(numbers).await.get("fencepost_settings_file_in_force{file=\"keys\"}") == 1.0;
    assert!(in_force().await);
    let away = file.path().with_extension("away");
    std::fs::rename(file.path(), &away).unwrap();
    eventually("it shows", async || !in_force().await).await;
    client.get("/locks/k").key(&goes).send().await.expect(404);
    file.remove("goes");
    file.write();
    eventually("it is in force again", async || in_force().await).await;
    client.get("/locks/k").key(&goes).send().await.expect_problem(401, "key-refused");
    client.get("/locks/k").key(&stays).send().await.expect(404);
    std::fs::write(file.path(), "[[key]]\nnonsense").unwrap();
    eventually("a mistake shows too", async || !in_force().await).await;
}

/// To open it would wait for one who writes, and nothing would be read any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_pipe_in_the_place_of_the_keys_is_told_of_and_the_next_file_is_read() {
    let (mut file, stays, goes) = two_keys();
    let gateway = gateway(&file, &[]).await;
    let client = Client::new(gateway.address);
    let pipe = file.path().with_extension("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::fs::rename(&pipe, file.path()).unwrap();
    gateway.logs("it is told", |line| line.contains("is a pipe: write a file")).await;
    client.get("/locks/k").key(&goes).send().await.expect(404);
    std::fs::remove_file(file.path()).unwrap();
    file.remove("goes");
    file.write();
    let is_gone = async || client.get("/locks/k").key(&goes).send().await.status == 401;
    eventually("the new file is in force", is_gone).await;
    client.get("/locks/k").key(&stays).send().await.expect(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_was_taken_out_is_refused_at_once_also_where_it_waits_and_holds() {
    let (mut file, stays, goes) = two_keys();
    let gateway = gateway(&file, &[]).await;
    let client = Client::new(gateway.address);
    client.put("/locks/held?ttl=1h").key(&stays).send().await.expect(201);
    let waiting = tokio::spawn(client.put("/locks/held?wait=60s").key(&goes).send());
    let mut holds = Vec::new();
    for accept in ["text/event-stream", "application/x-ndjson"] {
        let lock = format!("/hold?key=held-{}", holds.len());
        holds.push(client.call("POST", &lock).key(&goes).header("Accept", accept).open().await);
    }
    let mut kept = client.call("POST", "/hold?key=kept").key(&stays).open().await;
    assert!(String::from_utf8_lossy(&event(&mut kept).await.unwrap()).contains("granted"));
    let waits = async || client.get("/locks/held").key(&stays).send().await.json()["waiters"] == 1;
    eventually("it waits", waits).await;
    file.remove("goes");
    file.write();
    gateway.signal("HUP");
    let refused = waiting.await.unwrap().expect_problem(401, "key-refused");
    assert!(refused.json()["detail"].as_str().unwrap().contains("revoked"), "{}", refused.json());
    for (number, hold) in holds.iter_mut().enumerate() {
        let all = rest(hold).await;
        let all = String::from_utf8_lossy(&all);
        assert!(all.contains("lost") && all.contains("\"reason\":\"key-refused\""), "{all}");
        let lock = format!("/locks/held-{number}");
        eventually("its lock is free", async || client.get(&lock).key(&stays).send().await.status == 404)
            .await;
    }
    client.get("/locks/held").key(&goes).send().await.expect_problem(401, "key-refused");
    client.get("/locks/kept").key(&stays).send().await.expect(200);
}

/// Its first event is all that is taken from the gateway, which learns nothing more of its client but that it lives.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_was_taken_out_holds_nothing_by_a_client_that_takes_nothing() {
    let (mut file, stays, goes) = two_keys();
    let gateway = gateway(&file, &[]).await;
    let client = Client::new(gateway.address);
    let mut stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
    let no_room = h2::frame(h2::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let hold = h2::request_with_key(1, "POST", "/hold?key=held&ttl=2s&max_hold=1h", &goes);
    stream.write_all(&[h2::PREFACE, &no_room, &hold].concat()).await.unwrap();
    let status = async || client.get("/locks/held").key(&stays).send().await;
    eventually("it is held", async || status().await.status == 200).await;
    let first_lease_ends = Instant::now() + Duration::from_secs(2);
    let is_renewed = async || status().await.status == 200 && Instant::now() > first_lease_ends;
    eventually("it is renewed", is_renewed).await;
    file.remove("goes");
    file.write();
    gateway.signal("HUP");
    eventually("it is free", async || status().await.status == 404).await;
    drop(stream);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_was_taken_out_takes_nobodys_place_by_a_client_that_takes_nothing() {
    let mut file = KeysFile::new();
    let stays = file.add_for_all("stays", "\"inspect\", \"list\"");
    let goes = file.add_for_all("goes", "\"inspect\"");
    let gateway = gateway(&file, &["--max-watchers", "4"]).await;
    let client = Client::new(gateway.address);
    let watch = async |key: &str| client.call("GET", "/events?key=other").key(key).open().await;
    let mut stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
    let no_room = h2::frame(h2::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let watches = h2::request_with_key(1, "GET", "/events?key=held", &goes);
    stream.write_all(&[h2::PREFACE, &no_room, &watches].concat()).await.unwrap();
    let watchers = async |count: u64| {
        let metrics = client.get("/metrics").key(&stays).send().await;
        String::from_utf8_lossy(&metrics.body)
            .lines()
            .any(|line| line == format!("fencepost_watchers {count}"))
    };
    eventually("it watches", async || watchers(1).await).await;
    // A quarter of the places is one.
    assert_eq!(watch(&goes).await.status(), 429);
    assert_eq!(watch(&stays).await.status(), 200);
    file.remove("goes");
    file.write();
    gateway.signal("HUP");
    eventually("nobody watches", async || watchers(0).await).await;
    drop(stream);
}

/// All that a stream still says until it ends.
async fn rest(stream: &mut http::Response<hyper::body::Incoming>) -> bytes::Bytes {
    let rest = tokio::time::timeout(PATIENCE, stream.body_mut().collect()).await;
    rest.expect("the stream does not end").unwrap().to_bytes()
}

/// The next thing that a stream says.
async fn event(stream: &mut http::Response<hyper::body::Incoming>) -> Option<bytes::Bytes> {
    Some(stream.body_mut().frame().await?.unwrap().into_data().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_may_do_what_the_newest_file_says_and_ends_when_it_says() {
    let (mut file, _, key) = two_keys();
    let gateway = gateway(&file, &[]).await;
    let client = Client::new(gateway.address);
    let put = |lock: &str| client.put(&format!("/locks/{lock}")).key(&key).send();
    put("a").await.expect(201);
    file.change("goes", "every_key = true", "prefixes = [\"b\"]");
    file.write();
    // Nobody was told: it is found by itself.
    eventually("the file is read", async || put("a2").await.status == 403).await;
    put("b").await.expect(201);
    let mut hold = client.call("POST", "/hold?key=b/hold").key(&key).open().await;
    event(&mut hold).await.unwrap();
    let end =
        std::process::Command::new("date").args(["-u", "-d", "2 seconds", "+%Y-%m-%dT%H:%M:%SZ"]).output();
    let end = String::from_utf8(end.unwrap().stdout).unwrap();
    file.change("goes", "allow", &format!("expires = {}\nallow", end.trim()));
    file.write();
    let last = rest(&mut hold).await;
    assert!(String::from_utf8_lossy(&last).contains("key-refused"), "{last:?}");
    let refused = put("b").await.expect_problem(401, "key-refused");
    assert!(refused.json()["detail"].as_str().unwrap().contains("expired"), "{}", refused.json());
    // A secret that was exchanged is as good as none.
    let before = file.text();
    let hash = before.split("secret_sha256 = \"").nth(1).unwrap()[..64].to_owned();
    file.write_text(
        &before.replace(&hash, &"0".repeat(64)).replace(&format!("expires = {}\n", end.trim()), ""),
    );
    let refused =
        async || put("b").await.json()["detail"].as_str().unwrap().contains("does not know the API key");
    eventually("the other secret is in force", refused).await;
}

/// Its key was good when its head came, and a body may take seconds to arrive.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_key_or_right_is_gone_when_its_body_is_there_does_nothing() {
    let rights = r#"allow = ["acquire", "inspect", "once"]"#;
    let own = r#"{"ID":"run","Operation":"o","Who":"w"}"#;
    let dapr = r#"{"resourceId":"r","lockOwner":"w","expiryInSeconds":60}"#;
    let machine = r#"{"client_params":{"id":"m","group":"one"}}"#;
    let requests = [
        ("LOCK", "/terraform/free", own),
        ("UNLOCK", "/terraform/own", own),
        ("POST", "/v1.0-alpha1/lock/s", dapr),
        ("POST", "/fleet-lock/v1/pre-reboot", machine),
        ("POST", "/once/work", "paid"),
        // Only its end shows that such a body is none.
        ("PUT", "/locks/plain", ""),
        ("DELETE", "/locks/held", ""),
    ];
    for (from, to, status) in [
        ("", "", 401),
        ("every_key = true", "every_key = true\nexpires = 2020-01-01T00:00:00Z", 401),
        ("every_key = true", "prefixes = [\"elsewhere/\"]", 403),
        (rights, "allow = [\"admin\"]", 403),
    ] {
        let mut file = KeysFile::new();
        let stays = file.add("stays", &format!("every_key = true\n{rights}"));
        let goes = file.add("goes", &format!("every_key = true\n{rights}"));
        let audit = file.path().with_extension("audit");
        let tools = ["--terraform", "--dapr", "--fleet-lock", "one=1"];
        let gateway = gateway(&file, &[&tools[..], &["--audit-log", audit.to_str().unwrap()]].concat()).await;
        let (client, token) = (Client::new(gateway.address), fresh_token());
        client.call("LOCK", "/terraform/own").key(&stays).body(own).send().await.expect(200);
        client.put("/once/work?ttl=1h").key(&stays).token(&token).send().await.expect(201);
        client.put("/locks/held?ttl=1h").key(&stays).token(&token).send().await.expect(201);
        let mut begun = Vec::new();
        for (method, target, body) in requests {
            let mut stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
            let head = format!(
                "{method} {target} HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {goes}\r\nLease-Token: {token}\r\n\
                 Fleet-Lock-Protocol: true\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            // So far it was allowed: the gateway asks for the body.
            let mut said = [0; "HTTP/1.1 100 Continue\r\n\r\n".len()];
            stream.read_exact(&mut said).await.unwrap();
            assert!(said.starts_with(b"HTTP/1.1 100 "), "{target}: {}", String::from_utf8_lossy(&said));
            begun.push((target, body, stream));
        }
        match from {
            "" => file.remove("goes"),
            _ => file.change("goes", from, to),
        }
        file.write();
        gateway.signal("HUP");
        let look = async || client.get("/locks/plain").key(&goes).send().await.status;
        eventually("the new file is in force", async || look().await == status).await;
        for (target, body, mut stream) in begun {
            let chunk = format!("{:x}\r\n{body}\r\n", body.len());
            let rest = if body.is_empty() { String::new() } else { chunk } + "0\r\n\r\n";
            stream.write_all(rest.as_bytes()).await.unwrap();
            let mut said = Vec::new();
            stream.read_to_end(&mut said).await.unwrap();
            let said = String::from_utf8_lossy(&said);
            assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{to} {target}: {said}");
        }
        for (lock, status) in [("free", 404), ("own", 200), ("dapr:s:r", 404), ("plain", 404), ("held", 200)]
        {
            client.get(&format!("/locks/{lock}")).key(&stays).send().await.expect(status);
        }
        assert_eq!(client.get("/once/work").key(&stays).send().await.expect(200).json()["state"], "working");
        let uses = || {
            let text = std::fs::read_to_string(&audit).unwrap();
            let of_goes =
                text.lines().filter(|line| line.contains(r#""key_name":"goes""#)).map(str::to_owned);
            of_goes.filter(|line| !line.contains(r#""operation":"inspect""#)).collect::<Vec<_>>()
        };
        eventually("each use is written", async || uses().len() >= requests.len()).await;
        let is_refusal = |line: &String| line.contains(&format!("\"status\":{status}"));
        assert!(uses().iter().all(is_refusal), "{:?}", uses());
    }
}

/// The store takes connections and says nothing, so that the start takes a while.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_was_taken_out_during_the_start_is_refused() {
    let (mut file, _, goes) = two_keys();
    file.write();
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (store, flag) = (format!("redis://{}", silent.local_addr().unwrap()), file.flag());
    let args = ["--store", &store, "--store-timeout", "1s", &flag[0], &flag[1]];
    let taking_out = async {
        let connection = silent.accept().await.unwrap();
        // By now the keys were read.
        file.remove("goes");
        file.write();
        connection
    };
    let (gateway, _connection) = tokio::join!(Gateway::start(&args), taking_out);
    let client = Client::new(gateway.address);
    let refused = async || client.get("/locks/k").key(&goes).send().await.status == 401;
    eventually("it is refused", refused).await;
}

/// What a limiter cannot count once ended the task that reads the file, and no key was revoked any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_burst_that_cannot_be_counted_is_refused_and_the_next_file_is_read() {
    let (mut file, stays, goes) = two_keys();
    let gateway = gateway(&file, &[]).await;
    let client = Client::new(gateway.address);
    file.change("stays", "allow", "rate = 0.001\nburst = 4_000_000_000\nallow");
    file.write();
    let is_said = async || gateway.log().join("\n").contains("more than the rate allows in 366 days");
    eventually("it is refused", is_said).await;
    file.change("stays", "rate = 0.001\nburst = 4_000_000_000\n", "");
    file.remove("goes");
    file.write();
    let refused = async || client.get("/locks/k").key(&goes).send().await.status == 401;
    eventually("the next file is in force", refused).await;
    client.get("/locks/k").key(&stays).send().await.expect(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_wrong_changes_nothing_and_the_log_says_where() {
    let (mut file, stays, goes) = two_keys();
    let gateway = gateway(&file, &[]).await;
    let client = Client::new(gateway.address);
    let says = async |text: &str| {
        eventually(text, async || gateway.log().join("\n").contains(text)).await;
    };
    let good = file.text();
    file.write_text(&good.replace("every_key = true", "every_key = \"SecretThatNobodyMaySee\""));
    says("line 5: every_key must be true or false").await;
    std::fs::remove_file(file.path()).unwrap();
    says("No such file").await;
    file.write_text("");
    says("it holds no key").await;
    for key in [&stays, &goes] {
        client.get("/locks/k").key(key).send().await.expect(404);
    }
    assert!(!gateway.log().join("\n").contains("SecretThatNobodyMaySee"));
    // A link that is exchanged, as orchestrators do it, is followed.
    file.remove("goes");
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::write(elsewhere.path().join("keys"), file.text()).unwrap();
    std::fs::remove_file(file.path()).unwrap();
    std::os::unix::fs::symlink(elsewhere.path().join("keys"), file.path()).unwrap();
    let refused = async || client.get("/locks/k").key(&goes).send().await.status == 401;
    eventually("the new file is in force", refused).await;
    client.get("/locks/k").key(&stays).send().await.expect(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_ends_no_gateway_also_where_there_is_nothing_to_read() {
    let gateway = Gateway::start(&["--store", "memory:"]).await;
    for _ in 0..3 {
        gateway.signal("HUP");
        Client::new(gateway.address).put("/locks/k").send().await;
    }
    Client::new(gateway.address).get("/locks/k").send().await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_are_replaced_under_load_drop_no_request() {
    let mut file = KeysFile::new();
    let keys: Vec<_> =
        (0..4).map(|n| file.add_for_all(&format!("worker {n}"), "\"acquire\", \"inspect\"")).collect();
    let gateway = gateway(&file, &[]).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let requests = Arc::new(AtomicUsize::new(0));
    let workers = keys.into_iter().enumerate().map(|(n, key)| {
        let (client, is_over, requests) = (Client::new(gateway.address), is_over.clone(), requests.clone());
        tokio::spawn(async move {
            let lock = format!("/locks/{n}");
            while !is_over.load(Ordering::Relaxed) {
                let token = fresh_token();
                client.put(&lock).key(&key).token(&token).send().await.expect(201);
                client.delete(&lock).key(&key).token(&token).send().await.expect(204);
                requests.fetch_add(2, Ordering::Relaxed);
            }
        })
    });
    let workers: Vec<_> = workers.collect();
    let client = Client::new(gateway.address);
    for _ in 0..15 {
        let visitor = file.add_for_all("visitor", "\"inspect\"");
        file.write();
        gateway.signal("HUP");
        let look = async || client.get("/locks/k").key(&visitor).send().await.status;
        eventually("the visitor is known", async || look().await == 404).await;
        file.remove("visitor");
        file.write();
        gateway.signal("HUP");
        eventually("the visitor is not", async || [401, 429].contains(&look().await)).await;
    }
    is_over.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.unwrap();
    }
    println!("{} requests while keys were replaced 30 times", requests.load(Ordering::Relaxed));
    assert!(requests.load(Ordering::Relaxed) > 60);
}

/// As docs/access.md says: a file without a key is refused, so the entry stays.
#[tokio::test(flavor = "multi_thread")]
async fn the_only_key_is_revoked_by_an_expiry_that_is_over() {
    let mut file = KeysFile::new();
    let key = file.add_for_all("only", "\"acquire\", \"inspect\"");
    file.write();
    let gateway = gateway(&file, &[]).await;
    let client = Client::new(gateway.address);
    client.get("/locks/k").key(&key).send().await.expect(404);
    file.change("only", "allow", "expires = 2020-01-01T00:00:00Z\nallow");
    file.write();
    let refused = async || client.get("/locks/k").key(&key).send().await.status == 401;
    eventually("it is refused", refused).await;
}
