//! `LOCK` and `UNLOCK`, with what Terraform 1.0 and OpenTofu send and expect.

use std::time::Duration;

use kit::h2;
use kit::keys::KeysFile;
use kit::{Client, Gateway, RedisServer, eventually, fresh_token};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::listed;
use crate::on_each::each_store_and;

const LONG: [&str; 3] = ["--terraform", "--max-ttl", "24h"];
const BOTH_FORMS: [&str; 2] = ["/terraform/k?ttl=24h", "/terraform?key=k&ttl=24h"];

/// As it is sent by Terraform 1.0.3.
fn lock_info(id: &str, who: &str) -> String {
    json!({
        "ID": id, "Operation": "OperationTypeApply", "Info": "", "Who": who, "Version": "1.0.3",
        "Created": "2026-11-27T12:00:00.123456789Z", "Path": "",
    })
    .to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_has_the_lock_until_it_unlocks() {
    each_store_and(&LONG, async |client| {
        for form in BOTH_FORMS {
            let ids = [fresh_token(), fresh_token()];
            let [lock, unlock] = ["LOCK", "UNLOCK"]
                .map(|method| move |id: &str| client.call(method, form).body(lock_info(id, "ann@laptop")));
            lock(&ids[0]).send().await.expect(200);
            // What is sent again, as after a 503, is the same run.
            lock(&ids[0]).send().await.expect(200);
            let owner = format!("ann@laptop OperationTypeApply ID={}", ids[0]);
            assert_eq!(listed(client).await, [("k".to_owned(), owner)]);
            let refused = lock(&ids[1]).send().await.expect(423).json();
            assert_eq!(refused["ID"], json!(ids[0]));
            assert_eq!(refused["Who"], "ann@laptop");
            assert_eq!(refused["Operation"], "OperationTypeApply");
            assert_eq!(refused["Path"], "k");
            let other = unlock(&fresh_token()).send().await.expect_problem(409, "held-by-another");
            assert!(other.json()["detail"].as_str().unwrap().contains("a run with another ID"));
            unlock(&ids[0]).send().await.expect(200);
            unlock(&ids[0]).send().await.expect(200);
            // A late copy of the run's first request.
            let over = lock(&ids[0]).send().await.expect(409).json();
            assert_eq!(over["ID"], json!(ids[0]));
            assert_eq!(over["Info"], "this ID was unlocked before: begin a new run");
            lock(&ids[1]).send().await.expect(200);
            unlock(&ids[1]).send().await.expect(200);
            unlock(&fresh_token()).send().await.expect_problem(404, "not-held");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unlock_that_is_sent_again_says_whether_another_run_has_the_lock_now() {
    each_store_and(&LONG, async |client| {
        let [run, other] = [fresh_token(), fresh_token()];
        let [lock, unlock] = ["LOCK", "UNLOCK"].map(|method| {
            move |id: &str| client.call(method, BOTH_FORMS[0]).body(lock_info(id, "ann@laptop"))
        });
        lock(&run).send().await.expect(200);
        unlock(&other).send().await.expect_problem(409, "held-by-another");
        unlock(&run).send().await.expect(200);
        unlock(&other).send().await.expect_problem(404, "not-held");
        lock(&fresh_token()).send().await.expect(200);
        unlock(&other).send().await.expect_problem(409, "held-by-another");
    })
    .await;
}

/// A copy of a request of the run that was killed may be on its way. If the run is at work after all, it must be told.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_lock_was_opened_by_its_id_does_not_take_it_again() {
    each_store_and(&LONG, async |client| {
        let [run, late, other, waiting] = [(); 4].map(|()| fresh_token());
        let [lock, unlock] = ["LOCK", "UNLOCK"].map(|method| {
            move |id: &str| client.call(method, BOTH_FORMS[0]).body(lock_info(id, "ann@laptop"))
        });
        let open = |id: &str| client.call("UNLOCK", BOTH_FORMS[0]).body(json!({ "ID": id }).to_string());
        lock(&run).send().await.expect(200);
        open(&run).send().await.expect(200);
        lock(&run).send().await.expect(409);
        unlock(&run).send().await.expect_problem(404, "not-held");
        // It is opened before its first request has come.
        open(&late).send().await.expect_problem(404, "not-held");
        lock(&late).send().await.expect(409);
        lock(&other).send().await.expect(200);
        unlock(&run).send().await.expect_problem(409, "held-by-another");
        // The ID of a run that was refused is easily taken for the holder's.
        open(&waiting).send().await.expect_problem(409, "held-by-another");
        unlock(&other).send().await.expect(200);
        lock(&waiting).send().await.expect(200);
        unlock(&waiting).send().await.expect(200);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_min_hold_keeps_is_told_as_released() {
    let gateway = Gateway::start(&["--store", "memory:", "--terraform"]).await;
    let client = Client::new(gateway.address);
    let put = client.put("/locks/k?ttl=1m&min_hold=50s&owner=w").send().await.expect(201);
    client.delete("/locks/k").token(&put.token()).send().await.expect(204);
    let refused = client.call("LOCK", "/terraform/k").body(lock_info("1", "a")).send().await;
    let told = refused.expect(423).json()["Info"].as_str().unwrap().to_owned();
    assert!(told.starts_with("it was released, and min_hold keeps the lock taken for "), "{told}");
    let unlock = client.call("UNLOCK", "/terraform/k").body(lock_info("1", "a")).send().await;
    let problem = unlock.expect_problem(409, "held-by-another").json();
    assert!(problem["detail"].as_str().unwrap().contains("min_hold keeps it taken"), "{problem}");
}

/// A run that ends after its lease must be told, and not that all went well.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_as_long_as_the_address_says_and_else_a_day() {
    let gateway = Gateway::start(&["--store", "memory:", "--terraform"]).await;
    let client = Client::new(gateway.address);
    let left_ms =
        async || client.get("/locks/k").send().await.expect(200).json()["expires_in_ms"].as_u64().unwrap();
    client.call("LOCK", "/terraform/k").body(lock_info("1", "a")).send().await.expect(200);
    assert!((86_390_000..=86_400_000).contains(&left_ms().await));
    client.call("UNLOCK", "/terraform/k").body(lock_info("1", "a")).send().await.expect(200);
    client.call("LOCK", "/terraform/k?ttl=20ms").body(lock_info("2", "a")).send().await.expect(200);
    kit::eventually("the lease ends", async || client.get("/locks/k").send().await.status == 404).await;
    client
        .call("UNLOCK", "/terraform/k")
        .body(lock_info("2", "a"))
        .send()
        .await
        .expect_problem(404, "not-held");
    for wrong in ["ttl=25h", "ttl=1", "owner=a", "wait=1s"] {
        let call = client.call("LOCK", &format!("/terraform/k?{wrong}"));
        call.body(lock_info("3", "a")).send().await.expect_problem(400, "bad-parameter");
    }
    client.get("/locks/k").send().await.expect(404);
}

/// The address to unlock names no ttl, and the limits may have become others meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_locked_is_unlocked_whatever_ttl_the_address_names() {
    let mut keys = KeysFile::new();
    let ci = keys.add("ci", "every_key = true\nallow = [\"acquire\", \"inspect\"]\nmax_ttl = \"5m\"");
    keys.write();
    let flag = keys.flag();
    let gateway = Gateway::start(&["--store", "memory:", "--terraform", &flag[0], &flag[1]]).await;
    let client = Client::new(gateway.address);
    let call = |method: &str, query: &str| {
        client.call(method, &format!("/terraform/k{query}")).key(&ci).body(lock_info("1", "a"))
    };
    call("LOCK", "").send().await.expect_problem(400, "bad-parameter");
    call("LOCK", "?ttl=6m").send().await.expect_problem(400, "bad-parameter");
    client.get("/locks/k").key(&ci).send().await.expect(404);
    call("LOCK", "?ttl=4m").send().await.expect(200);
    call("UNLOCK", "").send().await.expect(200);
    for query in ["?ttl=24h", "?ttl=1"] {
        call("UNLOCK", query).send().await.expect(200);
    }
    client.get("/locks/k").key(&ci).send().await.expect(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_goes_on_at_another_gateway() {
    let redis = RedisServer::start().await;
    let mut gateway = Gateway::on_redis(&redis, &["--terraform"]).await;
    let client = Client::new(gateway.address);
    client.call("LOCK", "/terraform/k").body(lock_info("1", "a")).send().await.expect(200);
    gateway.kill();
    let gateway = Gateway::on_redis(&redis, &["--terraform"]).await;
    let client = Client::new(gateway.address);
    client.call("LOCK", "/terraform/k").body(lock_info("2", "b")).send().await.expect(423);
    client.call("LOCK", "/terraform/k").body(lock_info("1", "a")).send().await.expect(200);
    client.call("UNLOCK", "/terraform/k").body(lock_info("1", "a")).send().await.expect(200);
    client.get("/locks/k").send().await.expect(404);
}

/// Where the tool knows no `ID` it sends no body.
#[tokio::test(flavor = "multi_thread")]
async fn forcing_a_lock_open_needs_the_right_to_break() {
    let mut keys = KeysFile::new();
    let [ci, admin] = [("ci", "\"acquire\""), ("admin", "\"acquire\", \"admin\"")]
        .map(|(name, rights)| keys.add_for_all(name, rights));
    keys.write();
    let flag = keys.flag();
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit.log");
    let args =
        ["--store", "memory:", "--terraform", &flag[0], &flag[1], "--audit-log", audit.to_str().unwrap()];
    let gateway = Gateway::start(&args).await;
    let client = Client::new(gateway.address);
    let lock = |id| client.call("LOCK", "/terraform/k").key(&ci).body(lock_info(id, "a"));
    lock("1").send().await.expect(200);
    let force = |key| client.call("UNLOCK", "/terraform/k").key(key);
    force(&ci).send().await.expect_problem(403, "right-missing");
    lock("2").send().await.expect(423);
    force(&admin).send().await.expect(200);
    force(&admin).send().await.expect(200);
    lock("2").send().await.expect(200);
    // Newer ones send the ID that a person has typed, and nothing else. Who may lock may unlock.
    let force_by_id =
        |key, id: &str| client.call("UNLOCK", "/terraform/k").key(key).body(format!(r#"{{"ID":"{id}"}}"#));
    force_by_id(&ci, "1").send().await.expect_problem(409, "held-by-another");
    force_by_id(&ci, "2").send().await.expect(200);
    force_by_id(&ci, "2").send().await.expect_problem(404, "not-held");
    // The run that lost its lock so must not be told that all went well.
    lock("3").send().await.expect(200);
    client
        .call("UNLOCK", "/terraform/k")
        .key(&ci)
        .body(lock_info("2", "a"))
        .send()
        .await
        .expect_problem(409, "held-by-another");
    force_by_id(&ci, "3").send().await.expect(200);
    // A client that has no ID is told by its number.
    let number = client.put("/locks/k?ttl=1m").key(&ci).send().await.expect(201).fencing_token().to_string();
    assert_eq!(lock("4").send().await.expect(423).json()["ID"], json!(number));
    force_by_id(&ci, &number).send().await.expect_problem(403, "right-missing");
    force_by_id(&admin, &number).send().await.expect(200);
    lock("4").send().await.expect(200);
    // They are written after the answers.
    let rights = |event: &str| -> Vec<String> {
        let text = std::fs::read_to_string(&audit).unwrap();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let lines = lines.filter(|line| line["event"] == event && line["lock"] == "k");
        lines.map(|line| line["right"].as_str().unwrap().to_owned()).collect()
    };
    let admin_uses = || rights("key-use").iter().filter(|right| *right == "admin").count();
    eventually("the last use is written", async || admin_uses() >= 5).await;
    assert_eq!(admin_uses(), 5);
    assert_eq!(rights("break"), ["admin", "acquire", "acquire", "admin"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_others_is_told_by_the_number_of_its_grant() {
    let gateway = Gateway::start(&["--store", "memory:", "--terraform"]).await;
    let client = Client::new(gateway.address);
    for who in ["", "deploy", "sleep on vm", "me on my own"] {
        let put = client.put(&format!("/lock?key=k&ttl=1m&owner={}", who.replace(' ', "+")));
        let number = put.send().await.expect(201).fencing_token().to_string();
        let call = client.call("LOCK", "/terraform/k").body(lock_info("1", "a"));
        let refused = call.send().await.expect(423).json();
        assert_eq!((&refused["Who"], &refused["Operation"]), (&json!(who), &json!("")), "{refused}");
        assert_eq!(refused["ID"], json!(number), "{refused}");
        // What it is told opens the lock.
        let unlock = client.call("UNLOCK", "/terraform/k").body(format!(r#"{{"ID":"{number}"}}"#));
        unlock.send().await.expect(200);
        client.get("/locks/k").send().await.expect(404);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_changes_nothing() {
    let gateway = Gateway::start(&["--store", "memory:", "--terraform"]).await;
    let client = Client::new(gateway.address);
    let long = "x".repeat(65);
    let bodies = [
        "".to_owned(),
        "x".to_owned(),
        "{}".to_owned(),
        "[]".to_owned(),
        lock_info("", "a"),
        lock_info("a b", "a"),
        lock_info(&long, "a"),
        r#"{"ID":7}"#.to_owned(),
        format!(r#"{{"ID":"1","Who":"{}"}}"#, "w".repeat(16 * 1024)),
    ];
    for body in bodies {
        let answer = client.call("LOCK", "/terraform/k").body(body.clone()).send().await;
        answer.expect_problem(400, "bad-parameter");
        if !body.is_empty() {
            client
                .call("UNLOCK", "/terraform/k")
                .body(body)
                .send()
                .await
                .expect_problem(400, "bad-parameter");
        }
    }
    let other = client.get("/terraform/k").send().await.expect_problem(405, "method-not-allowed");
    assert_eq!(other.header("allow"), Some("LOCK, UNLOCK, PUT, POST, DELETE"));
    let detail = other.json()["detail"].as_str().unwrap().to_owned();
    assert!(
        detail.contains("LOCK, for which PUT and POST stand") && detail.contains("UNLOCK, for which DELETE")
    );
    client.call("LOCK", "/terraform/").body(lock_info("1", "a")).send().await.expect_problem(400, "bad-key");
    client.call("LOCK", "/terraform").body(lock_info("1", "a")).send().await.expect_problem(400, "bad-key");
    assert!(listed(&client).await.is_empty());
    // Who is long or odd is shown as far as that goes.
    let call = client.call("LOCK", "/terraform/k").body(lock_info("1", &"ä\tb ".repeat(100)));
    call.send().await.expect(200);
    let [(_, owner)] = &listed(&client).await[..] else { panic!() };
    assert!(
        owner.starts_with("ä-b-ä-b-") && owner.ends_with(" OperationTypeApply ID=1") && owner.len() <= 256,
        "{owner}"
    );
}

/// A body that got lost must not look like one that is empty, which forces the lock open.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_was_cut_off_forces_nothing_open() {
    let gateway = Gateway::start(&["--store", "memory:", "--terraform"]).await;
    let client = Client::new(gateway.address);
    client.call("LOCK", "/terraform/k").body(lock_info("1", "a")).send().await.expect(200);
    for (version, length) in [("1.1", "content-length: 9\r\n"), ("1.0", "content-length: 9\r\n"), ("1.0", "")]
    {
        let mut socket = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
        let request =
            format!("UNLOCK /terraform/k HTTP/{version}\r\nhost: {}\r\n{length}\r\n", gateway.address);
        socket.write_all(request.as_bytes()).await.unwrap();
        socket.shutdown().await.unwrap();
        let mut said = Vec::new();
        socket.read_to_end(&mut said).await.unwrap();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(said.is_empty() || said.contains(" 400 "), "{version} {length}: {said}");
        // Whole or not, there it cannot be known.
        assert!(!length.is_empty() || said.contains("over HTTP/1.0, send Content-Length"), "{said}");
        client.get("/locks/k").send().await.expect(200);
    }
    client.call("UNLOCK", "/terraform/k").header("content-length", "0").send().await.expect(200);
    client.get("/locks/k").send().await.expect(404);
}

/// As Terraform sends it to a gateway that speaks TLS, and `curl -T -` too: only a frame behind the head says that there is no body.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_turns_out_empty_over_http2_forces_the_lock_open() {
    let gateway = Gateway::start(&["--store", "memory:", "--terraform", "--allow-host", "t"]).await;
    let client = Client::new(gateway.address);
    for method in ["UNLOCK", "DELETE"] {
        client.call("LOCK", "/terraform/k").body(lock_info(method, "a")).send().await.expect(200);
        let mut stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
        let mut bytes = [h2::PREFACE, &h2::frame(h2::SETTINGS, 0, 0, &[])].concat();
        let block = h2::header_block(method, "/terraform/k");
        bytes.extend(h2::frame(h2::HEADERS, h2::END_HEADERS, 1, &block));
        stream.write_all(&bytes).await.unwrap();
        // The gateway may look at the body before its end is there.
        tokio::time::sleep(Duration::from_millis(50)).await;
        client.get("/locks/k").send().await.expect(200);
        stream.write_all(&h2::frame(h2::DATA, h2::END_STREAM, 1, &[])).await.unwrap();
        eventually("the lock is open", async || client.get("/locks/k").send().await.status == 404).await;
    }
}

/// No body forces the lock open. Over HTTP/2, a client that leaves may reset its stream without an error.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_its_client_has_reset_forces_no_lock_open() {
    let gateway = Gateway::start(&["--store", "memory:", "--terraform", "--allow-host", "t"]).await;
    let client = Client::new(gateway.address);
    client.call("LOCK", "/terraform/k").body(lock_info("1", "a")).send().await.expect(200);
    let is_free = async || client.get("/locks/k").send().await.status == 404;
    let begun = [None, Some(""), Some(r#"{"ID":"1"}"#)];
    for (method, begun) in
        ["UNLOCK", "DELETE"].into_iter().flat_map(|method| begun.map(|body| (method, body)))
    {
        let mut stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
        let mut bytes = [h2::PREFACE, &h2::frame(h2::SETTINGS, 0, 0, &[])].concat();
        let block = h2::header_block(method, "/terraform/k");
        bytes.extend(h2::frame(h2::HEADERS, h2::END_HEADERS, 1, &block));
        if let Some(body) = begun {
            bytes.extend(h2::frame(h2::DATA, 0, 1, body.as_bytes()));
        }
        bytes.extend(h2::frame(h2::RST_STREAM, 0, 1, &0_u32.to_be_bytes()));
        // Whatever comes after it is answered after it.
        bytes.extend(h2::request(3, "UNLOCK", "/terraform/another"));
        stream.write_all(&bytes).await.unwrap();
        let mut answered = Vec::new();
        while !answered.windows(9).any(|head| head[3] == h2::HEADERS && head[5..9] == 3_u32.to_be_bytes()) {
            assert!(
                stream.read_buf(&mut answered).await.unwrap() > 0,
                "{method} {begun:?}: it has closed the connection"
            );
        }
        assert!(!is_free().await, "{method} {begun:?}");
    }
    let mut stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
    let whole = [h2::PREFACE, &h2::frame(h2::SETTINGS, 0, 0, &[]), &h2::request(1, "UNLOCK", "/terraform/k")];
    stream.write_all(&whole.concat()).await.unwrap();
    eventually("one that has ended does", is_free).await;
}
