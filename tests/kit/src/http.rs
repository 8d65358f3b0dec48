//! An HTTP client for tests. Every answer that it receives is held against the OpenAPI document.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::{Client as Pool, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{PATIENCE, document, secrets};

/// Talks to one gateway over kept connections.
#[derive(Clone)]
pub struct Client {
    pool: Pool<HttpConnector, Full<Bytes>>,
    address: SocketAddr,
}

/// A request in the making.
pub struct Call {
    client: Client,
    request: http::request::Builder,
    path_and_query: String,
    method: Method,
    body: Bytes,
    patience: Duration,
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self { pool: Pool::builder(TokioExecutor::new()).build(connector), address }
    }

    /// The same gateway by HTTP/2 without TLS.
    pub fn h2c(address: SocketAddr) -> Self {
        let pool = Pool::builder(TokioExecutor::new()).http2_only(true).build(HttpConnector::new());
        Self { pool, address }
    }

    pub fn call(&self, method: &str, path_and_query: &str) -> Call {
        let method: Method = method.parse().unwrap();
        let url = format!("http://{}{path_and_query}", self.address);
        Call {
            client: self.clone(),
            request: Request::builder().method(method.clone()).uri(url),
            path_and_query: path_and_query.to_owned(),
            method,
            body: Bytes::new(),
            patience: PATIENCE,
        }
    }

    pub fn put(&self, path_and_query: &str) -> Call {
        self.call("PUT", path_and_query)
    }

    pub fn post(&self, path_and_query: &str) -> Call {
        self.call("POST", path_and_query)
    }

    pub fn patch(&self, path_and_query: &str) -> Call {
        self.call("PATCH", path_and_query)
    }

    pub fn delete(&self, path_and_query: &str) -> Call {
        self.call("DELETE", path_and_query)
    }

    pub fn get(&self, path_and_query: &str) -> Call {
        self.call("GET", path_and_query)
    }
}

impl Call {
    pub fn token(self, token: &str) -> Self {
        self.header("Lease-Token", token)
    }

    /// Shows an API key.
    pub fn key(self, key: &str) -> Self {
        self.header("Authorization", format!("Bearer {key}"))
    }

    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        secrets::remember_header(name, value.as_ref());
        self.request = self.request.header(name, http::HeaderValue::from_bytes(value.as_ref()).unwrap());
        self
    }

    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        secrets::remember_result(&self.body);
        self
    }

    /// Waits so long for the answer.
    pub fn within(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Sends it; fails the test when no answer comes.
    pub async fn send(self) -> Answer {
        let what = format!("{} {}", self.method, self.path_and_query);
        self.try_send().await.unwrap_or_else(|error| panic!("{what}: {error}"))
    }

    /// Sends it, and leaves the body to be read as it comes.
    pub async fn open(self) -> http::Response<Incoming> {
        let request = self.request.body(Full::new(self.body)).unwrap();
        let response = tokio::time::timeout(self.patience, self.client.pool.request(request)).await;
        let response = response.expect("no answer in time").unwrap();
        remember_answer(response.headers());
        response
    }

    /// Sends it; the error says why no answer came.
    pub async fn try_send(self) -> Result<Answer, String> {
        let request = self.request.body(Full::new(self.body)).map_err(|error| error.to_string())?;
        let exchange = async {
            let response = self.client.pool.request(request).await.map_err(|error| format!("{error:?}"))?;
            let (head, body) = response.into_parts();
            remember_answer(&head.headers);
            let body = body.collect().await.map_err(|error| format!("{error:?}"))?.to_bytes();
            Ok::<_, String>(Answer { status: head.status.as_u16(), headers: head.headers, body })
        };
        let answer = tokio::time::timeout(self.patience, exchange)
            .await
            .map_err(|_| "no answer in time".to_owned())??;
        document::check(&self.method, &self.path_and_query, &answer);
        if is_told_to_others(&self.path_and_query) {
            secrets::search(&self.path_and_query, String::from_utf8_lossy(&answer.body).lines());
        }
        Ok(answer)
    }
}

/// Whether an address tells of locks that the caller may have no token of, so that no token may be in what it answers.
fn is_told_to_others(path_and_query: &str) -> bool {
    matches!(
        path_and_query.split('?').next(),
        Some("/locks" | "/records" | "/events" | "/metrics" | "/ui" | "/readyz")
    )
}

fn remember_answer(headers: &HeaderMap) {
    if let Some(token) = headers.get("Lease-Token") {
        secrets::remember_header("Lease-Token", token.as_bytes());
    }
}

impl Answer {
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{:?}", String::from_utf8_lossy(&self.body));
        self
    }

    /// Expects an error of this type, with the status that it has.
    #[track_caller]
    pub fn expect_problem(self, status: u16, name: &str) -> Self {
        let answer = self.expect(status);
        assert_eq!(answer.json()["type"], format!("/problems/{name}"), "{}", answer.json());
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        answer
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(&self.body)))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The fencing number, which the header and the body agree on.
    #[track_caller]
    pub fn fencing_token(&self) -> u64 {
        let number = self.json()["fencing_token"].as_u64().unwrap();
        assert_eq!(self.header("Fencing-Token"), Some(number.to_string().as_str()));
        number
    }

    /// The token, which the header and the body agree on.
    #[track_caller]
    pub fn token(&self) -> String {
        let token = self.json()["token"].as_str().unwrap().to_owned();
        assert_eq!(self.header("Lease-Token"), Some(token.as_str()));
        token
    }
}

/// Sends bytes as they are on a connection of their own, and returns all that comes back until it is closed.
pub async fn raw(address: SocketAddr, request: &[u8]) -> Vec<u8> {
    secrets::remember_head(request);
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    tokio::time::timeout(PATIENCE, read).await.expect("the connection stays open").unwrap();
    secrets::remember_head(&answer);
    answer
}

/// As [`raw`], for one request with `Connection: close`; returns status and body, and checks both.
pub async fn raw_call(address: SocketAddr, method: &str, target: &str, more_headers: &str) -> Answer {
    let request =
        format!("{method} {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{more_headers}\r\n");
    let bytes = raw(address, request.as_bytes()).await;
    let answer = parse(&bytes);
    document::check(&method.parse().unwrap(), target, &answer);
    answer
}

/// Reads an HTTP/1.1 response with a Content-Length.
pub fn parse(bytes: &[u8]) -> Answer {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("no end of the head");
    let head = std::str::from_utf8(&bytes[..end]).unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let mut headers = HeaderMap::new();
    for line in lines {
        let (name, value) = line.split_once(':').unwrap();
        headers.append(http::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.trim().parse().unwrap());
    }
    Answer { status, headers, body: Bytes::copy_from_slice(&bytes[end + 4..]) }
}
