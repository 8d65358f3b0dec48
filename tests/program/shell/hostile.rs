//! Servers that are no gateways, or lie, or never come to an end; and files that do not.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::door::Door;
use crate::run::kit::Scene;
use crate::run::shape::Recorder;

const TOKEN: &str = "a-token-of-16-chars";

/// Words of bash, asked of a server that gives these answers first.
async fn told(words: &str, answers: &[(u16, &'static str)]) -> crate::run::kit::Ended {
    let answers: Vec<_> = answers.iter().map(|(status, body)| (Duration::ZERO, *status, *body)).collect();
    let recorder = Recorder::telling(&answers).await;
    let mut door = Door::plain().await;
    door.scene = Scene::at(recorder.url());
    door.pipe_with(TOKEN, words).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_proxy_says_of_a_change_is_no_refusal_and_it_is_asked_again() {
    for (status, body) in [(404, "<h1>Not Found</h1>"), (403, ""), (200, "<h1>Hello</h1>")] {
        told("renew k", &[(status, body)]).await.expect_silent(0);
        let ended = told("renew k --gateway-wait 0s", &[(status, body)]).await;
        ended.expect_line(69, &["not that of a Fencepost gateway", "the lease may be longer all the same"]);
        // To look changes nothing, and so it is told at once that this is another server.
        told("status k", &[(status, body)]).await.expect_line(2, &["not that of a Fencepost gateway"]);
        told("watch", &[(status, body)]).await.expect_line(2, &["not that of a Fencepost gateway"]);
    }
    let refused = r#"{"type":"/problems/right-missing","detail":"it may not"}"#;
    told("renew k", &[(403, refused)]).await.expect_line(2, &["refused by", "it may not"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_from_the_start_is_not_waited_for_as_a_lock_is() {
    let away = r#"{"type":"/problems/store-unavailable","detail":"no store"}"#;
    let ended = told("acquire k --gateway-wait 0s", &[(503, away); 20]).await;
    let ended = ended.expect_line(69, &["cannot take the lock", "no store"]);
    assert!(!ended.stderr.contains("may stay taken"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_about_something_else_is_not_believed() {
    let of_another = r#"{"key":"other","fencing_token":1,"expires_at":"","expires_in_ms":1,"waiters":0}"#;
    told("status k", &[(200, of_another)]).await.expect_line(2, &["not that of"]);
    for grant in [
        r#"{"key":"other","token":"t","fencing_token":1,"ttl_ms":30000,"expires_at":""}"#,
        r#"{"key":"k","token":"another-token-of-somebody","fencing_token":1,"ttl_ms":30000,"expires_at":""}"#,
    ] {
        told("acquire k", &[(201, grant)]).await.expect_line(2, &["not that of"]);
    }
    let page = r#"{"locks":[],"next_cursor":"again"}"#;
    told("list", &[(200, page), (200, page)]).await.expect_line(69, &["the same page again"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_says_is_told_in_one_short_line_without_what_cannot_be_seen() {
    let long = "x".repeat(100_000);
    let detail =
        format!(r#"{{"type":"/problems/right-missing","detail":"a\u202eb\u001b[31mc\u200bd{long}"}}"#);
    let detail: &'static str = detail.leak();
    for words in ["list", "acquire k", "renew k", "run k -- true"] {
        let ended =
            told(words, &[(403, detail)]).await.expect_line(2, &["a\\u{202e}b\\u{1b}[31mc\\u{200b}dxxx"]);
        assert!(ended.stderr.len() < 1_000, "{}", ended.stderr.len());
    }
    let door = Door::plain().await;
    let ended = door.pipe("list --api-key-file $'\\e[31mx'").await;
    ended.expect_line(2, &["--api-key-file", "\\u{1b}[31mx"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_end_fills_no_memory() {
    let address = serves("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n", &[b' '; 65_536]).await;
    let mut door = Door::plain().await;
    door.scene = Scene::at(format!("http://{address}"));
    for words in ["list --gateway-wait 0s", "status k --gateway-wait 0s"] {
        door.pipe(words).await.expect_line(69, &["too long"]);
    }
    for words in ["renew k --token-file", "list --api-key-file", "key list --keys"] {
        door.pipe(&format!("{words} /dev/zero")).await.expect_line(2, &["/dev/zero", "too long"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_cannot_be_read_is_not_taken_for_tls() {
    let address = serves("HTTP/1.1 200 OK\r\n", "X-More: x\r\n".repeat(1_000).leak().as_bytes()).await;
    let mut door = Door::plain().await;
    door.scene = Scene::at(format!("http://{address}"));
    let ended = door.pipe_with(TOKEN, "release k --gateway-wait 0s").await;
    let ended = ended.expect_line(69, &["its answer cannot be read", "the lock may be free all the same"]);
    assert!(!ended.stderr.contains("TLS"), "{ended:?}");
}

/// Where a server answers each request with this, and then with more and more of that.
async fn serves(begin: &'static str, more: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                stream.read_buf(&mut Vec::new()).await.unwrap();
                stream.write_all(begin.as_bytes()).await.unwrap();
                // Until the client has enough.
                while stream.write_all(more).await.is_ok() {}
            });
        }
    });
    address
}
