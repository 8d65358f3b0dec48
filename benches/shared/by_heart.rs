//! What answers by heart what a gateway might, each in a process of its own: an axum handler that does nothing, by
//! which everything is judged; and a bare responder, which shows how much the load itself can ask.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::extract::Path;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::serve::ListenerExt;
use axum::{Json, Router};
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::servers::{Server, TOKEN_BY_HEART as TOKEN, free_address};
use super::workload::{CONTENDED, REPLAYED, RESULT};

/// The program runs itself with one of these arguments and an address, since a server needs a process whose CPU time is
/// its own.
pub const NOOP: &str = "noop-server";
const BARE: &str = "bare-server";

const FENCING_TOKEN: u64 = 1_795_240_800_123_456;
const EXPIRES_AT: &str = "2026-11-21T06:00:30.123Z";
/// The fields that all answers of the gateway have.
const COMMON: [(&str, &str); 2] = [("x-request-id", "85dcf52a0184bc90"), ("cache-control", "no-store")];

#[derive(Serialize)]
struct Grant {
    key: String,
    token: &'static str,
    fencing_token: u64,
    ttl_ms: u64,
    expires_at: &'static str,
}

#[derive(Serialize)]
struct Work {
    key: String,
    token: &'static str,
    fencing_token: u64,
    ttl_ms: u64,
    expires_at: &'static str,
    earlier: u64,
    max_result_bytes: u64,
}

#[derive(Serialize)]
struct Refusal {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: &'static str,
    holder: Holder,
    waiters: u64,
}

#[derive(Serialize)]
struct Holder {
    fencing_token: u64,
    expires_at: &'static str,
    expires_in_ms: u64,
}

/// The handler that does nothing.
pub fn noop() -> Server {
    of_myself("no-op handler", NOOP)
}

/// The least that answers at all.
pub fn bare() -> Server {
    of_myself("bare responder", BARE)
}

fn of_myself(name: &'static str, argument: &str) -> Server {
    let address = free_address();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([argument, &address.to_string()]);
    Server::by_heart(name, address, command)
}

/// Serves until the process is ended, if these are the arguments of one of the two.
pub fn serve_if_asked(arguments: &[String]) -> bool {
    let [argument, address] = arguments else { return false };
    let Ok(address) = address.parse() else { return false };
    match argument.as_str() {
        NOOP => serve_noop(address),
        BARE => serve_bare(address),
        _ => return false,
    }
    true
}

// The runtime is the usual one of axum.
#[tokio::main]
async fn serve_noop(address: SocketAddr) {
    let listener = TcpListener::bind(address).await.unwrap().tap_io(|stream| {
        stream.set_nodelay(true).unwrap();
    });
    let lock = put(acquire)
        .patch(async |path| grant(StatusCode::OK, path))
        .delete(async || (StatusCode::NO_CONTENT, COMMON));
    let once = put(begin).post(async |key| work(StatusCode::OK, key));
    let router = Router::new()
        .route("/locks/{key}", lock)
        .route("/once/{key}", once)
        .route("/open/{key}", put(stay_open))
        .route("/open", get(async || OPEN.load(Ordering::Relaxed).to_string()))
        .route("/readyz", get(async || "ready"))
        .route("/healthz", get(async || healthy()));
    axum::serve(listener, router).await.unwrap();
}

/// How many requests stay open.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// A request that is not answered, for as long as its client likes.
async fn stay_open(Path(key): Path<String>) -> StatusCode {
    OPEN.fetch_add(1, Ordering::Relaxed);
    std::future::pending::<()>().await;
    drop(key);
    StatusCode::NO_CONTENT
}

/// Where instructions are counted, this is seen to be entered.
#[inline(never)]
fn healthy() -> &'static str {
    std::hint::black_box("ok")
}

async fn acquire(key: Path<String>) -> Response {
    if *key == CONTENDED { refusal() } else { grant(StatusCode::CREATED, key) }
}

fn grant(status: StatusCode, Path(key): Path<String>) -> Response {
    let grant =
        Grant { key, token: TOKEN, fencing_token: FENCING_TOKEN, ttl_ms: 29_999, expires_at: EXPIRES_AT };
    let headers = [("fencing-token", "1795240800123456"), ("lease-token", TOKEN)];
    (status, COMMON, headers, Json(grant)).into_response()
}

async fn begin(key: Path<String>) -> Response {
    if key.starts_with(REPLAYED) { replay() } else { work(StatusCode::CREATED, key) }
}

fn work(status: StatusCode, Path(key): Path<String>) -> Response {
    let work = Work {
        key,
        token: TOKEN,
        fencing_token: FENCING_TOKEN,
        ttl_ms: 29_999,
        expires_at: EXPIRES_AT,
        earlier: 0,
        max_result_bytes: 65_536,
    };
    let headers = [
        ("fencing-token", "1795240800123456"),
        ("lease-token", TOKEN),
        ("once", "begun"),
        ("once-earlier", "0"),
    ];
    (status, COMMON, headers, Json(work)).into_response()
}

fn replay() -> Response {
    let headers = [
        ("content-type", "application/octet-stream"),
        ("fencing-token", "1795240800123456"),
        ("once", "replayed"),
        ("once-status", "0"),
        ("once-stored-at", EXPIRES_AT),
        ("once-kept-until", EXPIRES_AT),
        ("x-content-type-options", "nosniff"),
        ("content-security-policy", "default-src 'none'; sandbox; frame-ancestors 'none'"),
        ("content-disposition", "attachment"),
        ("cross-origin-resource-policy", "same-origin"),
    ];
    (StatusCode::OK, COMMON, headers, RESULT).into_response()
}

fn refusal() -> Response {
    let refusal = Refusal {
        r#type: "/problems/lock-held",
        title: "Someone else holds the lock",
        status: 423,
        detail: "the lock is held for at most 30 s more",
        holder: Holder { fencing_token: FENCING_TOKEN, expires_at: EXPIRES_AT, expires_in_ms: 29_984 },
        waiters: 0,
    };
    let headers = [(CONTENT_TYPE, "application/problem+json"), (RETRY_AFTER, "5")];
    (StatusCode::LOCKED, COMMON, headers, Json(refusal)).into_response()
}

// One thread, as the load has.
#[tokio::main(flavor = "current_thread")]
async fn serve_bare(address: SocketAddr) {
    let listener = TcpListener::bind(address).await.unwrap();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        tokio::spawn(answer_blindly(stream));
    }
}

/// Takes whatever was read for one request, and answers with constant bytes around the key.
async fn answer_blindly(mut stream: TcpStream) {
    let head =
        "HTTP/1.1 201 Created\r\ncontent-type: application/json\r\nfencing-token: 1795240800123456\r\n";
    let body_after_key = format!(
        "\",\"token\":\"{TOKEN}\",\"fencing_token\":{FENCING_TOKEN},\"ttl_ms\":29999,\"expires_at\":\"{EXPIRES_AT}\"}}"
    );
    let mut request = [0; 1024];
    let mut reply = Vec::new();
    while let Ok(1..) = stream.read(&mut request).await {
        let key =
            request.strip_prefix(b"PUT /locks/").and_then(|rest| rest.split(|byte| *byte == b' ').next());
        reply.clear();
        match key {
            Some(key) => {
                let length = "{\"key\":\"".len() + key.len() + body_after_key.len();
                write_to(
                    &mut reply,
                    format_args!("{head}lease-token: {TOKEN}\r\ncontent-length: {length}\r\n\r\n"),
                );
                reply.extend_from_slice(b"{\"key\":\"");
                reply.extend_from_slice(key);
                reply.extend_from_slice(body_after_key.as_bytes());
            }
            None if request.starts_with(b"GET ") => {
                reply.extend_from_slice(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            }
            None => reply.extend_from_slice(b"HTTP/1.1 204 No Content\r\n\r\n"),
        }
        if stream.write_all(&reply).await.is_err() {
            return;
        }
    }
}

fn write_to(reply: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    std::io::Write::write_fmt(reply, text).unwrap();
}
