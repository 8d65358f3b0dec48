//! The process as a whole: deadlines of connections, limits of heads, panics, and a stop under load.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::get;
use fencepost::access::Shares;
use fencepost::api::{Admission, App, AppState, Limits, Middleware, app};
use fencepost::clock::SystemClock;
use fencepost::server::{Application, ServerSettings, serve};
use fencepost::service::LockService;
use fencepost::store::embedded::{EmbeddedSettings, EmbeddedStore};
use http::header::ACCEPT;
use http_body_util::BodyExt;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use kit::http::{parse, raw_call};
use kit::{Gateway, PATIENCE, Stage, eventually, fresh_token, on_each_store};

on_each_store!(sigterm_under_load_answers_every_accepted_request);

#[tokio::test(flavor = "multi_thread")]
async fn silence_and_half_a_header_end_at_their_deadline() {
    let gateway = Gateway::embedded(&["--first-request-timeout", "300ms", "--idle-timeout", "600ms"]).await;
    let complete = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n".as_slice();
    for (bytes, at_least_ms) in
        [(b"".as_slice(), 300), (b"PUT /locks/k HTTP/1.1\r\nHost: loc", 300), (complete, 600)]
    {
        let started = Instant::now();
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut rest = Vec::new();
        tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("it stays open").ok();
        assert!(started.elapsed() >= Duration::from_millis(at_least_ms));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn oversized_heads_are_problems() {
    let stage = Stage::embedded().await;
    let address = stage.gateway.address;
    let owner = |bytes: usize| format!("/locks/k?owner={}", "o".repeat(bytes - "/locks/k?owner=".len()));
    // At the edge the address itself is fine, and only its owner is too long.
    raw_call(address, "PUT", &owner(8 * 1024), "").await.expect_problem(400, "bad-parameter");
    raw_call(address, "PUT", &owner(8 * 1024 + 1), "").await.expect_problem(414, "uri-too-long");
    raw_call(address, "PUT", &owner(30_000), "").await.expect_problem(414, "uri-too-long");
    raw_call(address, "PUT", "/locks/k", &format!("X-Long: {}\r\n", "x".repeat(16 * 1024 + 1)))
        .await
        .expect_problem(431, "headers-too-large");
    let many: String = (0..90).map(|n| format!("X-Header-{n:04}: {}\r\n", "x".repeat(200))).collect();
    raw_call(address, "PUT", "/locks/k", &many).await.expect_problem(431, "headers-too-large");
    stage.client().get("/locks/k").send().await.expect_problem(404, "not-held");
    let several: String = (0..90).map(|n| format!("X-{n}: x\r\n")).collect();
    raw_call(address, "PUT", "/locks/k", &several).await.expect(201);
}

/// The application on a store in memory, for what needs a look from inside.
fn in_memory(draining: CancellationToken) -> AppState {
    let settings = EmbeddedSettings::default();
    let store = Arc::new(EmbeddedStore::in_memory(settings, Arc::new(SystemClock)).unwrap());
    AppState::new(App {
        service: LockService::new(store, Duration::from_secs(2), Duration::from_secs(120)),
        limits: Limits {
            default_ttl: Duration::from_secs(30),
            min_ttl: Duration::from_millis(10),
            max_ttl: Duration::from_secs(60),
            is_max_ttl_of_key: false,
            max_wait: Duration::ZERO,
            max_http1_waiters: 1,
            shares: Shares {
                waiters: 1,
                holds: 1,
                watchers: 1,
                locks: 1,
                connections: 1,
                ticket_ttl: Duration::from_secs(10),
            },
            default_max_hold: Duration::from_secs(7200),
            max_result_bytes: 65_536,
        },
        admission: Admission::default(),
        serves_metrics: true,
        keyring: None,
        audit: Arc::default(),
        draining,
        facades: fencepost::api::Facades::default(),
    })
}

/// An answer that no socket takes leaves no lock behind, and one that was taken leaves it alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_reached_no_socket_is_taken_back() {
    let app = app(in_memory(CancellationToken::new()));
    let call = async |method: &str, address: &str| {
        let request = Request::builder().method(method).uri(address).body(Body::empty()).unwrap();
        app.clone().answer(request).await
    };
    let taken = call("PUT", "/locks/taken").await;
    assert_eq!(taken.status(), 201);
    assert!(!taken.into_body().collect().await.unwrap().to_bytes().is_empty());
    let lost = call("PUT", "/locks/lost").await;
    assert_eq!(lost.status(), 201);
    assert_eq!(call("GET", "/locks/lost").await.status(), 200);
    drop(lost);
    eventually("it is taken back", async || call("GET", "/locks/lost").await.status() == 404).await;
    assert_eq!(call("GET", "/locks/taken").await.status(), 200);
}

/// The age of the request and what is left of the lease are told of one moment, or of two of which the age is the earlier one.
#[tokio::test]
async fn a_stall_while_an_event_of_a_hold_is_made_lengthens_no_lease() {
    const TTL_MS: u64 = 15_000;
    let app = app(in_memory(CancellationToken::new()));
    let asked_at = Instant::now();
    let request = Request::post(format!("/hold?key=k&ttl={TTL_MS}ms")).header(ACCEPT, "application/x-ndjson");
    let answer = app.answer(request.body(Body::empty()).unwrap()).await;
    assert_eq!(answer.status(), 200);
    let most_ms = TTL_MS + asked_at.elapsed().as_millis() as u64 + 1;
    let _stall = system::Stall::before(system::CLOCK_REALTIME, Duration::from_secs(1));
    let granted = answer.into_body().frame().await.unwrap().unwrap().into_data().unwrap();
    let granted: Value = serde_json::from_slice(&granted).unwrap();
    let told_ms = granted["request_age_ms"].as_u64().unwrap() + granted["ttl_ms"].as_u64().unwrap();
    assert!(told_ms <= most_ms, "{granted}: {most_ms}");
}

/// A handler of the test's own, behind everything that the real handlers are behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_panic_is_a_problem_with_a_request_id() {
    let draining = CancellationToken::new();
    let state = in_memory(draining.clone());
    async fn panicking() {
        panic!("on purpose");
    }
    let app = Middleware::new(Router::new().route("/panic", get(panicking)), state);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(serve(listener, app, ServerSettings::default(), draining.clone()));
    let answer = raw_call(address, "GET", "/panic", "X-Request-Id: find-me\r\n").await;
    let answer = answer.expect_problem(500, "internal-error");
    assert_eq!(answer.header("x-request-id"), Some("find-me"));
    assert!(!answer.json().to_string().contains("on purpose"), "what went wrong is for the log");
    draining.cancel();
    server.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_server_is_not_ready() {
    let stage = Stage::embedded().await;
    let mut stream = TcpStream::connect(stage.gateway.address).await.unwrap();
    let mut ask = async || {
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        parse(&read_response(&mut stream).await.unwrap())
    };
    ask().await.expect(200);
    stage.gateway.signal("TERM");
    stage.gateway.logs("the server drains", |line| line.contains("SIGTERM: draining")).await;
    // The line is written a moment before the drain begins, and the drain begins a moment before all answers say so.
    eventually("the server is not ready, and tells its clients to close", async || {
        let answer = ask().await;
        if answer.status == 503 {
            let answer = answer.expect_problem(503, "shutting-down");
            // New connections are still served for a moment.
            assert_eq!(answer.json()["detail"], "the gateway is stopping: send new requests to another one");
            return answer.header("connection") == Some("close");
        }
        false
    })
    .await;
}

/// The idle connections have all descriptors, and the clients that wait have sent their requests already.
#[tokio::test(flavor = "multi_thread")]
async fn a_drain_answers_those_who_wait_in_the_backlog_by_the_descriptors_of_idle_connections() {
    const MOST: usize = 40;
    let most = MOST.to_string();
    let args = ["--max-connections", &most, "--max-connections-per-address", "1000"];
    let mut gateway = Gateway::embedded(&args).await;
    const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let connect = async || {
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        stream.write_all(REQUEST).await.unwrap();
        stream
    };
    let mut idle = Vec::new();
    for _ in 0..MOST {
        let mut stream = connect().await;
        parse(&read_response(&mut stream).await.unwrap()).expect(200);
        idle.push(stream);
    }
    let mut waiting = Vec::new();
    for _ in 0..MOST {
        waiting.push(connect().await);
    }
    let open = std::fs::read_dir(format!("/proc/{}/fd", gateway.pid())).unwrap().count() as u64;
    let limit = Rlimit { current: Some(open + 2), maximum: getrlimit(Resource::Nofile).maximum };
    prlimit(Pid::from_raw(gateway.pid().try_into().unwrap()), Resource::Nofile, limit).unwrap();
    gateway.signal("TERM");
    for mut stream in waiting {
        let answer = read_response(&mut stream).await.expect("it is cut off");
        assert_eq!(parse(&answer).expect(200).header("connection"), Some("close"));
    }
    assert_eq!(gateway.exit_status().await.code(), Some(0));
}

/// Thirty clients in closed loops, on connections that they keep until they are told to close them.
async fn sigterm_under_load_answers_every_accepted_request(mut stage: Stage) {
    let address = stage.gateway.address;
    let stopping = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..30)
        .map(|client| {
            let stopping = stopping.clone();
            tokio::spawn(async move { closed_loop(address, client, &stopping).await })
        })
        .collect();
    eventually("the load is there", async || stage.gateway.log().len() > 500).await;
    stopping.store(true, Ordering::SeqCst);
    stage.gateway.signal("TERM");
    let mut received = HashSet::new();
    for client in clients {
        received.extend(client.await.unwrap());
    }
    assert_eq!(stage.gateway.exit_status().await.code(), Some(0));
    // Whatever the server says that it answered has arrived, and it has begun nothing that it did not answer.
    let log = stage.gateway.log();
    let requests: Vec<_> = log.iter().filter(|line| line.contains("\"/locks/{key}\"")).collect();
    for line in &requests {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["message"], "answered", "{line}");
        assert!(received.contains(line["request_id"].as_str().unwrap()), "never arrived: {line}");
    }
    assert!(requests.len() > 500);
    assert!(log.iter().any(|line| line.contains("\"connections_cut\":0")), "{:?}", log.last());
}

/// Takes and releases until the server is gone; returns the ids of all requests that were answered.
async fn closed_loop(address: std::net::SocketAddr, client: usize, stopping: &AtomicBool) -> Vec<String> {
    let mut answered = Vec::new();
    loop {
        let Ok(mut stream) = TcpStream::connect(address).await else {
            assert!(stopping.load(Ordering::SeqCst), "refused before the stop");
            return answered;
        };
        let mut answered_here = 0;
        for number in 0.. {
            let token = fresh_token();
            // An id with the token in it would be replaced.
            let id = format!("{client}-{number}-{}", fresh_token());
            let method = if number % 2 == 0 { "PUT" } else { "DELETE" };
            let request = format!(
                "{method} /locks/k{client} HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: {id}\r\nLease-Token: {token}\r\n\r\n"
            );
            let sent = stream.write_all(request.as_bytes()).await;
            let response = match sent {
                Ok(()) => read_response(&mut stream).await,
                Err(error) => Err(error),
            };
            match response {
                Ok(bytes) => {
                    let answer = parse(&bytes);
                    assert!(matches!(answer.status, 201 | 404 | 409 | 423), "{answer:?}");
                    answered.push(id);
                    answered_here += 1;
                    if answer.header("connection") == Some("close") {
                        break;
                    }
                }
                // The kernel may have completed a connection that the server never accepted.
                Err(error) => {
                    assert!(stopping.load(Ordering::SeqCst), "cut off before the stop: {error}");
                    assert_eq!(answered_here, 0, "cut off between two requests: {error}");
                    return answered;
                }
            }
        }
    }
}

/// Reads one response with a Content-Length off a connection that stays open.
async fn read_response(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).await?;
    bytes.extend(body);
    Ok(bytes)
}
