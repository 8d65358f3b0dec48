//! Whole requests, through all that requests pass through, to locks in memory. An input is lines: the method and the
//! address, then headers, then an empty line and a body, where there is one.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use fencepost::access::{Keyring, Shares, ShownKey, parse_keys};
use fencepost::api::{Admission, App, AppState, Facades, Limits, Middleware, NEVER_RENEWED_TTL, app};
use fencepost::clock::SystemClock;
use fencepost::lock::LeaseToken;
use fencepost::server::{Application, Peer, TcpTimeout};
use fencepost::service::LockService;
use fencepost::store::embedded::{EmbeddedSettings, EmbeddedStore};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

const MAX_TTL: Duration = Duration::from_secs(60);
/// What stands for a good key in an input.
const PLACEHOLDER: &[u8] = b"KEY";

/// The end of every good token.
static SECRET: LazyLock<String> = LazyLock::new(|| format!("{:032x}", rand::random::<u128>()));
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
static FOR_ANYBODY: LazyLock<Middleware> = LazyLock::new(|| application(None, Facades::default()));
/// One key, which is for the locks below `ours/`.
static WITH_KEYS: LazyLock<(Middleware, String)> =
    LazyLock::new(|| with_key(&["ours/"], &["acquire", "inspect", "list", "admin"], Facades::default()));

/// What serves one key with these prefixes and rights, and the key.
pub fn with_key(prefixes: &[&str], rights: &[&str], facades: Facades) -> (Middleware, String) {
    let key = ShownKey::generate();
    let (id, hash) = (key.id.as_str(), key.hash());
    let entry = format!("id = \"{id}\"\nname = \"fuzz\"\nsecret_sha256 = \"{hash}\"");
    let file = format!("[[key]]\n{entry}\nprefixes = {prefixes:?}\nallow = {rights:?}\n");
    let keyring = Arc::new(Keyring::new(parse_keys(&file).unwrap()));
    (application(Some(keyring), facades), key.reveal())
}

fn application(keyring: Option<Arc<Keyring>>, facades: Facades) -> Middleware {
    let _inside = RUNTIME.enter();
    let store = EmbeddedStore::in_memory(EmbeddedSettings::default(), Arc::new(SystemClock)).unwrap();
    app(AppState::new(App {
        service: LockService::new(Arc::new(store), Duration::from_secs(10), Duration::from_secs(120)),
        limits: Limits {
            default_ttl: Duration::from_secs(30),
            min_ttl: Duration::from_millis(10),
            max_ttl: if facades.fleet_lock.is_empty() { MAX_TTL } else { NEVER_RENEWED_TTL },
            is_max_ttl_of_key: false,
            max_wait: Duration::ZERO,
            max_http1_waiters: 10,
            default_max_hold: Duration::from_secs(60),
            max_result_bytes: 65_536,
            shares: Shares {
                waiters: 10,
                holds: 10,
                watchers: 10,
                locks: 10_000,
                connections: 10,
                ticket_ttl: Duration::from_secs(10),
            },
        },
        admission: Admission::default(),
        serves_metrics: true,
        keyring,
        audit: Arc::default(),
        draining: CancellationToken::new(),
        facades,
    }))
}

pub struct Answer {
    pub status: u16,
    headers: HeaderMap,
    pub body: Value,
}

/// A good token, ended by what no input can have: what else a client says, errors may repeat, even where it is the token's
/// own text.
fn secret(token: &[u8]) -> Vec<u8> {
    if LeaseToken::parse(token).is_err() {
        return token.to_vec();
    }
    let kept = token.len().min(LeaseToken::MAX_CHARS - SECRET.len());
    [&token[..kept], SECRET.as_bytes()].concat()
}

/// The request that an input stands for, where it is one.
pub fn read(input: &[u8]) -> Option<Request> {
    let end = input.windows(2).position(|pair| pair == b"\n\n");
    let (head, body) = end.map_or((input, &input[..0]), |end| (&input[..end], &input[end + 2..]));
    let mut lines = head.split(|byte| *byte == b'\n');
    let (method, target) = std::str::from_utf8(lines.next()?).ok()?.split_once(' ')?;
    let mut request = Request::builder().method(method).uri(target).body(Body::from(body.to_vec())).ok()?;
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = (HeaderName::from_bytes(&line[..colon]).ok()?, line[colon + 1..].trim_ascii());
        let value = if name == "lease-token" { secret(value) } else { value.to_vec() };
        request.headers_mut().append(name, HeaderValue::from_bytes(&value).ok()?);
    }
    // Each from an address of its own: wrong keys are counted by address.
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let address = Ipv4Addr::from(NUMBER.fetch_add(1, Ordering::Relaxed));
    let (address, tcp_timeout) = (SocketAddr::from((address, 1)), TcpTimeout::default());
    request.extensions_mut().insert(Arc::new(Peer {
        address,
        subject: None,
        tcp_timeout,
        is_cut: AtomicBool::new(false),
    }));
    Some(request)
}

/// What is true of every answer, also to other tools.
pub fn ask_any(app: &Middleware, request: Request) -> Answer {
    let app = app.clone();
    let answer = RUNTIME.block_on(async {
        let response = app.answer(request).await;
        let (head, body) = response.into_parts();
        // Some of them never end: they are read no further than to their head.
        let has_end = !head.headers.get("content-type").is_some_and(|kind| {
            [&b"text/event-stream"[..], b"application/x-ndjson"].contains(&kind.as_bytes())
        });
        let body = if has_end { body.collect().await.unwrap().to_bytes() } else { bytes::Bytes::new() };
        let body = serde_json::from_slice(&body).unwrap_or_default();
        Answer { status: head.status.as_u16(), headers: head.headers, body }
    });
    assert_ne!(answer.status, 500, "{}", answer.body);
    assert!(answer.headers.contains_key("x-request-id") && answer.headers["cache-control"] == "no-store");
    answer
}

/// What is true of every answer that is no other tool's.
fn ask(app: &Middleware, request: Request) -> Answer {
    let method = request.method().clone();
    let answer = ask_any(app, request);
    if answer.status >= 400 && method != Method::HEAD {
        assert!(answer.body["type"].as_str().is_some_and(|kind| kind.starts_with("/problems/")));
        assert!(!answer.body.to_string().contains(SECRET.as_str()), "a token is repeated: {}", answer.body);
    }
    if let Some(ttl_ms) = answer.body["ttl_ms"].as_u64() {
        assert!(u128::from(ttl_ms) <= MAX_TTL.as_millis(), "{}", answer.body);
    }
    answer
}

/// A plain description of which lock an address means.
fn lock_of(path: &str, query: &str) -> Option<Vec<u8>> {
    let decode = |text: &str| percent_encoding::percent_decode_str(text).collect::<Vec<u8>>();
    match path.strip_prefix("/locks/") {
        Some(segment) => Some(decode(segment)),
        None => query.split('&').find_map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(&name.replace('+', " ")) == b"key").then(|| decode(&value.replace('+', " ")))
        }),
    }
}

pub fn anybody(input: &[u8]) {
    let Some(request) = read(input) else { return };
    let uri = request.uri().clone();
    let answer = ask(&FOR_ANYBODY, request);
    if let Some(key) = answer.body["key"].as_str().filter(|_| answer.status < 300) {
        assert_eq!(Some(key.as_bytes()), lock_of(uri.path(), uri.query().unwrap_or_default()).as_deref());
    }
}

/// Whoever shows no good key gets at no lock, and whoever shows one only at those below its prefix.
pub fn with_keys(input: &[u8]) {
    let (app, key) = &*WITH_KEYS;
    let at = input.windows(PLACEHOLDER.len()).position(|piece| piece == PLACEHOLDER);
    let input = match at {
        Some(at) => [&input[..at], key.as_bytes(), &input[at + PLACEHOLDER.len()..]].concat(),
        None => input.to_vec(),
    };
    let Some(request) = read(&input) else { return };
    let uri = request.uri().clone();
    let shows_key = request
        .headers()
        .get_all("Authorization")
        .iter()
        .any(|value| value.as_bytes().windows(key.len()).any(|piece| piece == key.as_bytes()));
    let answer = ask(app, request);
    let is_about_locks =
        ["/lock", "/hold", "/events", "/metrics"].iter().any(|start| uri.path().starts_with(start));
    if answer.status >= 300 || !is_about_locks {
        return;
    }
    assert!(shows_key, "{uri} was answered to nobody");
    // The metrics are of no lock, whatever stands behind their address.
    let lock = lock_of(uri.path(), uri.query().unwrap_or_default()).filter(|_| uri.path() != "/metrics");
    assert!(lock.is_none_or(|lock| lock.starts_with(b"ours/")), "{uri} was answered");
}
