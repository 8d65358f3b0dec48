//! One of the six stores, with the gateways before it, and what clients were told there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use fencepost::access::Shares;
use fencepost::api::{Admission, App, AppState, Facades, Limits, Middleware, app};
use fencepost::clock::SystemClock;
use fencepost::server::Application;
use fencepost::service::LockService;
use fencepost::store::LockStore;
use fencepost::store::embedded::{EmbeddedSettings, EmbeddedStore, Writer};
use fencepost::store::quorum::QuorumStore;
use fencepost::store::redis::{OnceMemory, RedisSettings, RedisStore};
use http::{HeaderMap, Method};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use sim::{Clock, Disk, Fleet, Outcome};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::plan::{Asked, Step, Token, What};
use crate::settings::Store;

const NOW_US: u64 = 1_760_000_000_000_000;
const GATEWAYS: usize = 2;
const STORE_TIMEOUT: Duration = Duration::from_secs(3);
/// Longer than any sequence takes.
const MARK_TTL: Duration = Duration::from_secs(120);
const TURN: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(300);

/// What all sequences share that are played at once.
pub struct Fleets {
    store: Store,
    gateways: Vec<Middleware>,
    _servers: Fleet,
}

pub struct Scene {
    pub store: Store,
    gateways: Vec<Middleware>,
    /// What the names of its locks begin with.
    prefix: String,
    told: Arc<Mutex<BTreeMap<usize, Told>>>,
    clients: BTreeMap<usize, JoinHandle<()>>,
}

/// What a client was told.
#[derive(Default)]
struct Told {
    /// Those that were not taken yet.
    answers: Vec<Answer>,
    token: Option<String>,
    /// Of each lock.
    numbers: BTreeMap<String, u64>,
}

pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Value,
}

impl Fleets {
    pub fn new(store: Store) -> Self {
        let clock = Clock::running(NOW_US);
        let fleet = match store {
            Store::Redis => Fleet::alone(&clock),
            Store::Sentinel => Fleet::with_sentinels(&clock),
            Store::Cluster => Fleet::cluster(&clock),
            Store::Quorum => Fleet::quorum(&clock),
            Store::Memory | Store::File => Fleet::none(),
        };
        let count = if store.is_embedded() { 1 } else { GATEWAYS };
        let gateways = (0..count).map(|_| gateway(start(store, &fleet))).collect();
        Self { store, gateways, _servers: fleet }
    }

    pub fn scene(&self, number: u64) -> Scene {
        Scene {
            store: self.store,
            gateways: self.gateways.clone(),
            prefix: format!("{number}-"),
            told: Arc::default(),
            clients: BTreeMap::new(),
        }
    }
}

impl Scene {
    pub fn play(&mut self, step: &Step, stays_at_one: bool) {
        let asked = match &step.what {
            What::Ask(asked) => asked,
            What::Leave(client) => {
                self.clients.remove(client).inspect(JoinHandle::abort);
                return;
            }
        };
        let number = if stays_at_one && self.store == Store::Quorum { 0 } else { step.gateway };
        let gateway = self.gateways[number % self.gateways.len()].clone();
        let (id, told, request) = (step.id, self.told.clone(), self.request(asked));
        let key = format!("{}{}", self.prefix, asked.key());
        self.clients.insert(
            id,
            tokio::spawn(async move {
                let response = gateway.answer(request).await;
                let (head, mut body) = response.into_parts();
                let of_hold =
                    head.headers.get("content-type").is_some_and(|kind| kind == "application/x-ndjson");
                let mut bytes = Vec::new();
                while let Some(frame) = body.frame().await {
                    bytes.extend_from_slice(&frame.unwrap().into_data().unwrap_or_default());
                    if of_hold {
                        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                            let body: Value = serde_json::from_slice(line).unwrap();
                            let is_news = body["event"] != "renewed" && body["event"] != "heartbeat";
                            if is_news {
                                tell(
                                    &told,
                                    id,
                                    &key,
                                    Answer { status: 200, headers: HeaderMap::new(), body },
                                );
                            }
                        }
                        bytes.clear();
                    }
                }
                if !of_hold {
                    let body = serde_json::from_slice(&bytes)
                        .unwrap_or_else(|_| json!(String::from_utf8_lossy(&bytes)));
                    tell(
                        &told,
                        id,
                        &key,
                        Answer { status: head.status.as_u16(), headers: head.headers, body },
                    );
                }
            }),
        );
    }

    fn request(&self, asked: &Asked) -> Request {
        let told = self.told.lock().unwrap();
        let key = format!("{}{}", self.prefix, asked.key());
        let number = |step| told.get(&step).and_then(|told| told.numbers.get(&key)).copied().unwrap_or(1);
        let mut address = asked.address.clone();
        for name in ["key=", "prefix="] {
            address = address.replace(name, &format!("{name}{}", self.prefix));
        }
        let mut request = Request::builder().method(Method::from_bytes(asked.method.as_bytes()).unwrap());
        match asked.number {
            Some((step, true)) => {
                address += if address.contains('?') { "&" } else { "?" };
                address += &format!("fencing_token={}", number(step));
            }
            Some((step, false)) => request = request.header("Fencing-Token", number(step)),
            None => {}
        }
        match asked.token {
            Some(Token::Own(number)) => request = request.header("Lease-Token", own_token(number)),
            Some(Token::Of(step)) => {
                let token = told.get(&step).and_then(|told| told.token.clone());
                request = request.header("Lease-Token", token.unwrap_or_else(|| own_token(99)));
            }
            None => {}
        }
        if let Some(fingerprint) = asked.fingerprint {
            request = request.header("Once-Fingerprint", fingerprint);
        }
        if asked.address.starts_with("/hold") {
            request = request.header("Accept", "application/x-ndjson");
        }
        request.uri(address).body(Body::from(asked.body)).unwrap()
    }

    /// What the client of this step was told since this was asked last.
    pub fn take(&self, step: usize) -> Vec<Answer> {
        let mut told = self.told.lock().unwrap();
        told.get_mut(&step).map(|told| std::mem::take(&mut told.answers)).unwrap_or_default()
    }
}

fn own_token(number: usize) -> String {
    format!("token-of-client-{number}-0123456789abcdef")
}

fn tell(told: &Mutex<BTreeMap<usize, Told>>, id: usize, key: &str, answer: Answer) {
    let mut told = told.lock().unwrap();
    let told = told.entry(id).or_default();
    let body = &answer.body;
    for lock in body["locks"].as_array().into_iter().flatten().chain([body, &body["holder"]]) {
        if let Some(number) = lock["fencing_token"].as_u64() {
            told.numbers.insert(lock["key"].as_str().unwrap_or(key).to_owned(), number);
        }
    }
    let of_head = answer.headers.get("lease-token").map(|token| token.to_str().unwrap());
    let token = body["token"].as_str().or(of_head).map(str::to_owned);
    told.token = told.token.take().or(token);
    told.answers.push(answer);
}

fn start(store: Store, fleet: &Fleet) -> Arc<dyn LockStore> {
    let settings = RedisSettings {
        mark_ttl: MARK_TTL,
        once_memory: OnceMemory::Bytes(1 << 30),
        ..RedisSettings::default()
    };
    let embedded = EmbeddedSettings { mark_ttl: MARK_TTL, ..EmbeddedSettings::default() };
    let clock = Arc::new(SystemClock);
    match store {
        Store::Memory => Arc::new(EmbeddedStore::in_memory_without_thread(embedded, clock)),
        Store::File => {
            let disk = Disk::new(0);
            disk.decide_by(Box::new(|_| Outcome::Done));
            let (store, writer) =
                EmbeddedStore::without_thread(disk.open().unwrap(), embedded, clock).unwrap();
            tokio::spawn(write(writer));
            Arc::new(store)
        }
        Store::Quorum => Arc::new(QuorumStore::start(&fleet.address().unwrap(), &settings, clock).unwrap()),
        _ => Arc::new(RedisStore::start(&fleet.address().unwrap(), &settings).unwrap()),
    }
}

async fn write(mut writer: Writer) {
    loop {
        sleep(TURN).await;
        let batch = writer.commit_queued();
        let Some(next) = writer.answer(batch) else { return };
        writer = next;
    }
}

fn gateway(store: Arc<dyn LockStore>) -> Middleware {
    const MANY: usize = 1_000;
    app(AppState::new(App {
        service: LockService::new(store, STORE_TIMEOUT, MARK_TTL),
        limits: Limits {
            default_ttl: Duration::from_secs(30),
            min_ttl: Duration::from_millis(10),
            max_ttl: LONGEST,
            is_max_ttl_of_key: false,
            max_wait: LONGEST,
            max_http1_waiters: MANY,
            shares: Shares {
                waiters: MANY,
                holds: MANY,
                watchers: MANY,
                locks: MANY,
                connections: MANY,
                ticket_ttl: Duration::from_secs(10),
            },
            default_max_hold: LONGEST,
            max_result_bytes: 65_536,
        },
        admission: Admission::default(),
        serves_metrics: false,
        keyring: None,
        audit: Arc::default(),
        draining: CancellationToken::new(),
        facades: Facades::default(),
    }))
}
