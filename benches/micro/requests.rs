//! Whole requests through all layers, without a socket, on a store in memory.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use criterion::Criterion;
use fencepost::access::Shares;
use fencepost::api::{Admission, App, AppState, Limits, Middleware, app};
use fencepost::server::{Application, Peer, TcpTimeout};
use http_body_util::BodyExt;
use tokio_util::sync::CancellationToken;

use super::service::memory_service;

const TOKEN: &str = "a-token-of-the-client-0001";

pub fn measure(criterion: &mut Criterion) {
    let runtime = super::runtime();
    let app = runtime.block_on(async { application() });
    let ask = |line: &'static str, status: u16| {
        let app = app.clone();
        move || answer(app.clone(), line, status)
    };
    let mut group = criterion.benchmark_group("requests in memory");
    // What every request passes through, and next to nothing else.
    group.bench_function("GET /healthz", |bencher| {
        bencher.to_async(&runtime).iter(ask("GET /healthz", 200));
    });
    // All of the query is read, and the store is not asked.
    group.bench_function("PUT, refused for its query", |bencher| {
        bencher.to_async(&runtime).iter(ask("PUT /locks/k?ttl=30s&wait=0s&owner=ci%20%231&other=1", 400));
    });
    runtime.block_on(ask("PUT /locks/held?ttl=1h&owner=ci%20%231", 201)());
    group.bench_function("PUT, held already", |bencher| {
        bencher.to_async(&runtime).iter(ask("PUT /locks/held?ttl=1h&owner=ci%20%231", 200));
    });
    group.bench_function("PATCH", |bencher| {
        bencher.to_async(&runtime).iter(ask("PATCH /locks/held?ttl=1h", 200));
    });
    group.bench_function("GET", |bencher| bencher.to_async(&runtime).iter(ask("GET /locks/held", 200)));
    group.bench_function("GET, nobody holds it", |bencher| {
        bencher.to_async(&runtime).iter(ask("GET /locks/free", 404));
    });
    group.finish();
}

fn application() -> Middleware {
    let hour = Duration::from_secs(3_600);
    app(AppState::new(App {
        service: memory_service(),
        limits: Limits {
            default_ttl: Duration::from_secs(30),
            min_ttl: Duration::from_millis(10),
            max_ttl: hour,
            is_max_ttl_of_key: false,
            max_wait: Duration::from_secs(60),
            max_http1_waiters: 10,
            default_max_hold: hour,
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
        keyring: None,
        audit: Arc::default(),
        draining: CancellationToken::new(),
        facades: fencepost::api::Facades::default(),
    }))
}

async fn answer(app: Middleware, line: &str, status: u16) -> bytes::Bytes {
    let (method, target) = line.split_once(' ').unwrap();
    let request = Request::builder().method(method).uri(target).header("host", "localhost");
    let mut request = request.header("lease-token", TOKEN).body(Body::empty()).unwrap();
    let (address, tcp_timeout) = (SocketAddr::from((Ipv4Addr::LOCALHOST, 1)), TcpTimeout::default());
    let is_cut = AtomicBool::new(false);
    request.extensions_mut().insert(Arc::new(Peer { address, subject: None, tcp_timeout, is_cut }));
    let answer = app.answer(request).await;
    assert_eq!(answer.status(), status, "{line}");
    answer.into_body().collect().await.unwrap().to_bytes()
}
