//! The kit's search for secrets finds those that are there, and nothing else.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};

use kit::http::raw_call;
use kit::secrets::{find, is_public, remember_header};
use kit::{Client, Gateway, fresh_token};

async fn gateway(args: &[&str]) -> (Gateway, Client) {
    let gateway = Gateway::start(&[&["--store", "memory:"], args].concat()).await;
    let client = Client::new(gateway.address);
    (gateway, client)
}

/// What the end of a gateway fails the test with, if it does.
fn ends_with(gateway: Gateway) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(|| drop(gateway))).err()?;
    Some(*panic.downcast::<String>().unwrap())
}

/// A key is logged: so who takes a token for one has it in the log.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_gets_into_a_log_fails_the_test() {
    for is_made in [false, true] {
        let (gateway, client) = gateway(&[]).await;
        let own = client.put("/locks/k");
        let own = if is_made { own } else { own.token(&fresh_token()) };
        let token = own.send().await.expect(201).token();
        client.get(&format!("/lock?key=a/{token}")).send().await.expect(404);
        gateway.logs("it is logged", |line| line.contains(&token)).await;
        let finding = ends_with(gateway).expect("nobody notices");
        assert!(finding.starts_with("a secret is in the log") && finding.contains(&token), "{finding}");
    }
    // Also one that only the bytes of a request held, and one that nobody was told of.
    let sent = fresh_token();
    for planted in [sent.clone(), format!("~{}", fresh_token())] {
        let (gateway, client) = gateway(&[]).await;
        raw_call(gateway.address, "GET", "/locks/k", &format!("lease-token: {sent}\r\n")).await.expect(404);
        client.get(&format!("/locks/{planted}")).send().await.expect(404);
        gateway.logs("it is logged", |line| line.contains(&planted)).await;
        assert!(ends_with(gateway).is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_a_test_means_to_have_logged_fails_nothing() {
    let (gateway, client) = gateway(&[]).await;
    let token = client.put("/locks/k").send().await.expect(201).token();
    is_public(&token);
    client.get(&format!("/locks/{token}")).send().await.expect(404);
    assert_eq!(ends_with(gateway), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_is_searched_too() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("audit.json");
    let token = fresh_token();
    remember_header("Lease-Token", token.as_bytes());
    let (mut gateway, _) = gateway(&[]).await;
    gateway.audited_in(file.clone());
    std::fs::write(&file, format!("{{\"key\":\"{token}\"}}\n")).unwrap();
    let finding = ends_with(gateway).expect("nobody notices");
    assert!(finding.starts_with("a secret is in the audit log"), "{finding}");
}

/// No token gets into the metrics, so somebody else answers for the gateway.
#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_are_searched_too() {
    let token = fresh_token();
    remember_header("Lease-Token", token.as_bytes());
    let (mut gateway, _) = gateway(&[]).await;
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    gateway.address = other.local_addr().unwrap();
    let answers = std::thread::spawn(move || {
        let (mut stream, _) = other.accept().unwrap();
        assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
        write!(stream, "HTTP/1.1 200 OK\r\n\r\nfencepost_locks{{token=\"{token}\"}} 1\n").unwrap();
    });
    let finding = ends_with(gateway).expect("nobody notices");
    assert!(finding.starts_with("a secret is in the metrics"), "{finding}");
    answers.join().unwrap();
}

#[test]
fn secrets_are_found_whole_in_part_and_by_their_form() {
    let token = format!("{}-{}", fresh_token(), fresh_token());
    remember_header("lease-token", token.as_bytes());
    let (id, secret) = ("k3y0f4lice00", fresh_token());
    remember_header("Authorization", format!("Bearer fp_{id}_{secret}").as_bytes());
    let other = fresh_token();
    for line in [
        format!(r#"{{"key":"{token}"}}"#),
        format!("key=a/{token}/b"),
        format!("%7E{}", &token[1..]),
        token[1..30].to_owned(),
        token[token.len() - 20..].to_owned(),
        secret.clone(),
        format!("x{secret}x"),
        format!("fp_{id}_{secret}"),
        // Nobody has remembered these.
        format!("the token ~{other} is wrong"),
        format!("\"fp_{id}_{other}\""),
    ] {
        assert_eq!(find([line.as_str()]), [line.as_str()]);
    }
    for line in [
        "2026-11-22T05:31:08.123456Z  INFO fencepost: listening on http://127.0.0.1:8080".to_owned(),
        format!(r#"{{"request_id":"{}","key_id":"{id}","key":"fp_{id}_"}}"#, &other[..16]),
        format!("fencepost:{{0}}:lock:{other} ~{} ~fencepost:*", &other[..20]),
        other,
    ] {
        assert_eq!(find([line.as_str()]), [""; 0]);
    }
    // What nobody made at random may be anywhere.
    remember_header("Lease-Token", "t".repeat(128).as_bytes());
    assert_eq!(find(["t".repeat(300).as_str()]), [""; 0]);
}

/// It is done at the end of each gateway, and some of them write a great many lines.
#[test]
fn a_long_log_is_searched_in_no_time() {
    for _ in 0..10_000 {
        remember_header("Lease-Token", fresh_token().as_bytes());
    }
    let line = format!(
        r#"{{"timestamp":"2026-11-22T05:31:08.123456Z","level":"INFO","message":"answered","request_id":"{}","method":"PUT","route":"/locks/{{key}}","key":"alone-{}","status":201,"elapsed_us":321,"target":"fencepost::api"}}"#,
        &fresh_token()[..16],
        fresh_token(),
    );
    let started = std::time::Instant::now();
    assert!(find(std::iter::repeat_n(line.as_str(), 100_000)).is_empty());
    println!("100,000 lines took {:?}", started.elapsed());
    assert!(started.elapsed() < kit::PATIENCE);
}
