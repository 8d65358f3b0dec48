//! Servers that are no gateways, or lie, or never come to an end; and files that do not.

use std::net::SocketAddr;
use std::time::Duration;

use kit::Proxy;
use kit::proxy::{Fate, Framing, Progress};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::door::Door;
use crate::run::kit::{Scene, is_held};
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

/// What proxies say while a gateway behind them restarts, or where there is none.
const PAGES: [u16; 9] = [200, 204, 302, 400, 401, 403, 404, 409, 502];

#[tokio::test(flavor = "multi_thread")]
async fn what_a_proxy_says_is_no_refusal_and_the_next_gateway_is_asked() {
    for status in PAGES {
        let proxy = pages(status).await;
        let mut door = Door::plain().await;
        door.scene = Scene::at(format!("http://{proxy},{}", door.scene.url));
        let (token, _) = door.acquire("k --ttl 5m").await;
        door.pipe("status k").await.expect_silent(0);
        assert_eq!(door.json("list").await.len(), 1);
        let watch = door.start("exec \"$F\" watch >seen");
        door.scene.says("seen", "resync").await;
        drop(watch);
        door.pipe_with(&token, "renew k").await.expect_silent(0);
        door.pipe_with(&token, "release k").await.expect_silent(0);
        door.acquire("k --ttl 5m").await;
        assert_eq!(door.pipe("break k --yes").await.status, Some(0));
        door.pipe("run k -- true").await.expect_silent(0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_proxy_says_is_no_refusal_where_no_other_gateway_is_left() {
    let mut door = Door::plain().await;
    for status in PAGES {
        door.scene = Scene::at(format!("http://{}", pages(status).await));
        for (words, doubt) in [
            ("list", ""),
            ("status k", ""),
            ("watch", ""),
            ("break k --yes", ""),
            (
                "renew k",
                "; the lease may be longer all the same; it may be over by now: count from the last renewal that succeeded",
            ),
            ("release k", "; the lock may be free all the same"),
        ] {
            let ended = door.pipe_with(TOKEN, &format!("{words} --gateway-wait 0s")).await;
            let why = if status == 204 {
                ": it has no x-request-id, which a proxy may have taken away"
            } else {
                ""
            };
            let said = format!("HTTP {status}, and not that of a Fencepost gateway{why}{doubt}\n");
            ended.expect_line(69, &[&said]);
        }
    }
    let left = "the lock may stay taken until its ttl ends";
    door.pipe("run --gateway-wait 0s k -- true").await.expect_line(69, &["not that of a Fencepost", left]);
    let ended = door.pipe("acquire k --gateway-wait 0s --token-file token").await;
    ended.expect_line(69, &["not that of a Fencepost", left, "its token is in \"token\""]);
}

/// It is that of a network that wants people to sign in, or of a web server without settings.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_204_without_a_request_id_ends_no_lock_and_no_work() {
    let mut door = Door::plain().await;
    let client = door.client();
    let proxy = Proxy::start(door.gateway.address.port(), Framing::Chunks).await;
    door.scene = Scene::at(format!("{},http://{}", proxy.url(), pages(204).await));
    let (token, _) = door.acquire("k --ttl 5m").await;
    for (words, status) in [("release k", 0), ("run k -- true", 0), ("once k --clean-status 1 -- false", 1)] {
        let mut cut = proxy.expect("DELETE ", Fate::CutBefore);
        door.pipe_with(&token, words).await.expect_silent(status);
        cut.reaches(Progress::Seen).await;
        client.get("/locks/k").send().await.expect_problem(404, "not-held");
        client.get("/once/k").send().await.expect_problem(404, "not-begun");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_proxy_says_once_is_asked_again() {
    for (status, body) in [(404, "<h1>Not Found</h1>"), (403, ""), (200, "<h1>Hello</h1>"), (409, "{}")] {
        told("renew k", &[(status, body)]).await.expect_silent(0);
        told("acquire k", &[(status, body)]).await.expect_silent(0);
        told("run k -- true", &[(status, body)]).await.expect_silent(0);
    }
    // A proxy has problems of its own.
    let of_proxy = r#"{"type":"about:blank","title":"Forbidden"}"#;
    let ended = told("list --gateway-wait 0s", &[(403, of_proxy)]).await;
    ended.expect_line(69, &["HTTP 403, and not that of a Fencepost gateway"]);
    let refused = r#"{"type":"/problems/right-missing","detail":"it may not"}"#;
    for words in ["renew k", "list", "acquire k"] {
        told(words, &[(403, refused)]).await.expect_line(2, &["refused by", "it may not"]);
    }
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
    let ended = told("status k --gateway-wait 0s", &[(200, of_another)]).await;
    ended.expect_line(69, &["not that of"]);
    for grant in [
        r#"{"key":"other","token":"t","fencing_token":1,"ttl_ms":30000,"expires_at":""}"#,
        r#"{"key":"k","token":"another-token-of-somebody","fencing_token":1,"ttl_ms":30000,"expires_at":""}"#,
    ] {
        let ended = told("acquire k --gateway-wait 0s", &[(201, grant); 20]).await;
        ended.expect_line(69, &["not that of"]);
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

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_whose_answer_is_no_http_is_given_back_and_if_it_cannot_be_that_is_told() {
    let mut door = Door::plain().await;
    let client = door.client();
    let proxy = Proxy::start(door.gateway.address.port(), Framing::Chunks).await;
    let url = std::mem::replace(&mut door.scene, Scene::at(proxy.url())).url;
    let garbage = || Fate::Instead("no word of HTTP\r\n".to_owned());
    let said = "probably TLS: write https://";

    proxy.set_policy(move |message| if message.starts_with(b"PUT") { garbage() } else { Fate::Pass });
    for words in [
        "acquire k --ttl 5m --token-file token",
        "run --ttl 5m k -- touch wrong",
        "once --ttl 5m --no-takeover k -- touch wrong",
    ] {
        let ended = door.pipe(words).await.expect_line(2, &[said]);
        assert!(!ended.stderr.contains(" may "), "{ended:?}");
    }
    assert!(!is_held(&client, "k").await);
    client.get("/once/k").send().await.expect(404);
    assert!(!door.scene.path("token").exists() && !door.scene.path("wrong").exists());

    // No release arrives.
    proxy.set_policy(move |message| if message.starts_with(b"PUT") { garbage() } else { Fate::CutBefore });
    let ended = door.pipe("acquire k --ttl 5m --token-file token").await;
    let left = "the lock may stay taken until its ttl ends";
    ended.expect_line(2, &[said, left, "its token is in \"token\""]);
    assert!(is_held(&client, "k").await);

    proxy.set_policy(move |_| garbage());
    for (words, doubt) in [
        ("renew k --token-file token", "the lease may be longer all the same"),
        ("release k --token-file token", "the lock may be free all the same"),
    ] {
        door.pipe(words).await.expect_line(2, &[said, doubt]);
    }
    // The release has arrived, and is told of when it is asked for again.
    let ended = door.pipe(&format!("release k --token-file token --url {url}")).await;
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(!is_held(&client, "k").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_whose_answer_is_damaged_within_tls_is_told_of_and_its_token_stays() {
    let mut door = Door::open(false, true).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let damaging = format!("https://{}", listener.local_addr().unwrap());
    let url = std::mem::replace(&mut door.scene, Scene::at(damaging)).url;
    let look = format!("status k --url {url}");
    let ended = tokio::select! {
        ended = door.pipe("acquire k --ttl 5m --gateway-wait 0s --token-file token") => ended,
        () = damages(&listener, &door, &look) => unreachable!(),
    };
    let left = "the lock may stay taken until its ttl ends";
    ended.expect_line(69, &["damaged on the way", left, "its token is in \"token\""]);
}

/// Damages what a gateway says with TLS after a handshake, once the lock has been held. All else passes.
async fn damages(listener: &TcpListener, door: &Door, look: &str) {
    const HANDSHAKE: u8 = 22;
    let mut has_been_held = false;
    loop {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut gateway = TcpStream::connect(door.gateway.address).await.unwrap();
        let (mut asked, mut said) = (Vec::new(), Vec::new());
        loop {
            let read = tokio::select! {
                read = client.read_buf(&mut asked) => read,
                read = gateway.read_buf(&mut said) => read,
            };
            if said.first().is_some_and(|kind| *kind != HANDSHAKE) {
                has_been_held = has_been_held || door.pipe(look).await.status == Some(0);
                *said.last_mut().unwrap() ^= u8::from(has_been_held);
            }
            let passed = gateway.write_all(&asked).await.and(client.write_all(&said).await);
            if passed.is_err() || !read.is_ok_and(|read| read > 0) {
                break;
            }
            asked.clear();
            said.clear();
        }
    }
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

/// Where a proxy answers each request with a page of its own.
pub async fn pages(status: u16) -> SocketAddr {
    let page = format!("<h1>{status}</h1> See <a href=https://proxy.example/>https</a>");
    let answer = format!(
        "HTTP/1.1 {status} So\r\nLocation: /elsewhere\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{page}",
        page.len()
    );
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = answer.clone();
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n")
                    && stream.read_buf(&mut head).await.is_ok_and(|read| read > 0)
                {}
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    address
}
