//! What `fencepost run` sends, read at a small server that says what a gateway would.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::kit::Scene;

/// Takes every request for that of a holder whose lock is free, and remembers it. It ends when dropped.
pub struct Recorder {
    port: u16,
    shared: Arc<Shared>,
    ended: CancellationToken,
}

#[derive(Default)]
struct Shared {
    requests: Mutex<Vec<Recorded>>,
    /// What the first requests that are no releases are told instead.
    answers: Mutex<VecDeque<Answer>>,
}

/// An answer: how late it is, its status and its body. With the status 0 it is no HTTP, and ends the connection.
pub type Answer = (Duration, u16, &'static str);

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Recorded {
    pub method: String,
    pub target: String,
    headers: Vec<(String, String)>,
}

impl Recorded {
    fn parse(head: &str) -> Self {
        let mut lines = head.lines();
        let mut first = lines.next().unwrap().split(' ').map(str::to_owned);
        let headers = lines.filter_map(|line| line.split_once(": "));
        Self {
            method: first.next().unwrap(),
            target: first.next().unwrap(),
            headers: headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect(),
        }
    }

    /// What is answered, with the token of the request in the place of `t`, and the lock of the request in that of `k`.
    fn as_asked(&self, body: &str) -> String {
        let url = reqwest::Url::parse(&format!("http://any{}", self.target)).unwrap();
        let key =
            url.query_pairs().find(|(name, _)| name == "key").map_or_else(String::new, |(_, key)| key.into());
        let token = self.header("lease-token").unwrap_or_default();
        let own = [("\"key\":\"k\"", "key", key), ("\"token\":\"t\"", "token", token)];
        own.into_iter().fold(body.to_owned(), |body, (text, name, own)| {
            body.replace(text, &format!("\"{name}\":{}", serde_json::Value::from(own)))
        })
    }

    pub fn header(&self, name: &str) -> Option<String> {
        self.headers.iter().find(|(this, _)| this == name).map(|(_, value)| value.clone())
    }
}

impl Recorder {
    pub async fn start() -> Self {
        Self::telling(&[]).await
    }

    /// One that gives these answers first.
    pub async fn telling(answers: &[Answer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let answers = Mutex::new(answers.iter().copied().collect());
        let shared = Arc::new(Shared { answers, ..Shared::default() });
        let recorder = Self { port, shared: shared.clone(), ended: CancellationToken::new() };
        let ended = recorder.ended.clone();
        tokio::spawn(ended.run_until_cancelled_owned(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, shared.clone()));
            }
        }));
        recorder
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn requests(&self) -> Vec<Recorded> {
        self.shared.requests.lock().unwrap().clone()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

/// A grant of thirty seconds.
pub const GRANT: &str = r#"{"key":"k","token":"t","fencing_token":1,"ttl_ms":30000,"expires_at":""}"#;

/// Answers request after request on one connection. None of them has a body.
async fn serve(mut stream: TcpStream, shared: Arc<Shared>) {
    let mut bytes = Vec::new();
    while stream.read_buf(&mut bytes).await.is_ok_and(|read| read > 0) {
        while let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head: Vec<u8> = bytes.drain(..end + 4).collect();
            let recorded = Recorded::parse(std::str::from_utf8(&head).unwrap());
            let answer = match recorded.method.as_str() {
                "DELETE" => "HTTP/1.1 204 No Content\r\nx-request-id: r\r\n\r\n".to_owned(),
                _ => {
                    let told = shared.answers.lock().unwrap().pop_front();
                    let (late, status, body) = told.unwrap_or((Duration::ZERO, 201, GRANT));
                    let body = recorded.as_asked(body);
                    tokio::time::sleep(late).await;
                    if status == 0 {
                        shared.requests.lock().unwrap().push(recorded);
                        let _ = stream.write_all(b"\x15\x03\x01\0\x02\x02\x28").await;
                        return;
                    }
                    format!("HTTP/1.1 {status} So\r\nContent-Length: {}\r\n\r\n{body}", body.len())
                }
            };
            shared.requests.lock().unwrap().push(recorded);
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_asked_for_is_passed_on() {
    let recorder = Recorder::start().await;
    let scene = Scene::at(format!("{}/behind/a/proxy/", recorder.url()));
    let flags = ["--ttl", "90s", "--wait", "0s", "--max-hold", "2h", "--min-hold", "50s", "--owner", "a & b"];
    scene.run(&[&flags[..], &["c/d?#é", "--", "true"]].concat()).await.expect_silent(0);
    let requests = recorder.requests();
    let targets: Vec<_> = requests.iter().map(|r| (r.method.as_str(), r.target.as_str())).collect();
    let key = "/behind/a/proxy/lock?key=c%2Fd%3F%23%C3%A9";
    let put = format!("{key}&ttl=90000ms&owner=a+%26+b&max_hold=7200000ms&min_hold=50000ms");
    assert_eq!(targets, [("PUT", put.as_str()), ("DELETE", key)]);
    // One token for both, of the client's own making.
    let token = requests[0].header("lease-token").unwrap();
    assert!(token.len() >= 32 && !token.starts_with('~'), "{token}");
    assert_eq!(requests[1].header("lease-token"), Some(token));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_is_the_command_and_the_machine_if_none_is_given() {
    let recorder = Recorder::start().await;
    let scene = Scene::at(recorder.url());
    scene.run(&["--wait", "0s", "k", "--", "/bin/true"]).await.expect_silent(0);
    let machine = rustix::system::uname().nodename().to_str().unwrap().to_owned();
    let target = &recorder.requests()[0].target;
    assert!(target.ends_with(&format!("&owner=true+on+{machine}")), "{target}");
}
