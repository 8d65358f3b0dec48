//! Traces, as a collector receives them.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use kit::gateway::{command, run};
use kit::{Client, Gateway, KeysFile, RedisServer, Stage, eventually, fresh_token, server_port};

/// A collector that takes all it is sent.
struct Collector {
    address: SocketAddr,
    received: Arc<Mutex<Received>>,
}

#[derive(Default)]
struct Received {
    spans: Vec<Span>,
    services: Vec<String>,
    bytes: Vec<u8>,
}

impl Collector {
    async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (address, received) = (listener.local_addr().unwrap(), Arc::<Mutex<Received>>::default());
        tokio::spawn({
            let received = received.clone();
            async move {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    tokio::spawn(take(stream, received.clone()));
                }
            }
        });
        Self { address, received }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All that a gateway has told when it has ended.
    async fn all_of(&self, mut gateway: Gateway) -> Vec<Span> {
        gateway.signal("TERM");
        assert!(gateway.exit_status().await.success());
        self.received.lock().unwrap().spans.clone()
    }
}

/// Answers one connection.
async fn take(mut stream: TcpStream, received: Arc<Mutex<Received>>) -> Option<()> {
    let mut bytes = Vec::new();
    loop {
        let end = loop {
            match bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                Some(end) => break end + 4,
                None => more(&mut stream, &mut bytes).await?,
            }
        };
        let head = String::from_utf8(bytes.drain(..end).collect()).unwrap().to_lowercase();
        assert!(head.starts_with("post /v1/traces http/1.1\r\n"), "{head}");
        assert!(head.contains("\r\ncontent-type: application/x-protobuf\r\n"), "{head}");
        let length = head.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap();
        let length: usize = length.parse().unwrap();
        while bytes.len() < length {
            more(&mut stream, &mut bytes).await?;
        }
        let body: Vec<u8> = bytes.drain(..length).collect();
        let request = ExportTraceServiceRequest::decode(body.as_slice()).unwrap();
        {
            let mut received = received.lock().unwrap();
            received.bytes.extend(body);
            for resource_spans in request.resource_spans {
                let resource = resource_spans.resource.unwrap();
                let service =
                    resource.attributes.into_iter().find(|pair| pair.key == "service.name").unwrap();
                received.services.push(text(service.value.unwrap().value));
                received.spans.extend(resource_spans.scope_spans.into_iter().flat_map(|scope| scope.spans));
            }
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.ok()?;
    }
}

async fn more(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<()> {
    (stream.read_buf(bytes).await.ok()? > 0).then_some(())
}

fn text(value: Option<Value>) -> String {
    match value.unwrap() {
        Value::StringValue(text) => text,
        Value::IntValue(number) => number.to_string(),
        other => panic!("{other:?}"),
    }
}

/// What a span says under this name; nothing where it says nothing.
fn said(span: &Span, name: &str) -> String {
    let pair = span.attributes.iter().find(|pair| pair.key == name);
    pair.map_or_else(String::new, |pair| text(pair.value.clone().unwrap().value))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The spans of steps that belong to this one, by their names.
fn steps_of<'a>(span: &Span, all: &'a [Span]) -> Vec<&'a Span> {
    all.iter().filter(|step| step.parent_span_id == span.span_id && step.trace_id == span.trace_id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_request_is_a_span_of_its_trace_with_a_child_for_each_step_at_the_store() {
    let collector = Collector::start().await;
    let stage = Stage::redis_with(&["--otlp-endpoint", &collector.url()]).await;
    let (client, token) = (stage.client(), fresh_token());
    let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let call = |method: &str, address: &str| {
        let call = client.call(method, address).header("traceparent", format!("00-{trace}-{parent}-01"));
        call.token(&token).header("X-Request-Id", format!("of-{method}"))
    };
    call("PUT", "/locks/backup%2Fdb").header("tracestate", &token).send().await.expect(201);
    call("PATCH", "/lock?key=backup/db").send().await.expect(200);
    client.put("/locks/backup%2Fdb").send().await.expect(423);
    call("DELETE", "/locks/backup%2Fdb").send().await.expect(204);
    client.get("/locks/backup%2Fdb?nonsense=1").send().await.expect(400);
    let made = client.put("/locks/made?owner=me").send().await.expect(201).token();
    client.call("HOSTILE", "/locks/x").send().await.expect(405);
    let spans = collector.all_of(stage.gateway).await;

    let ours: Vec<_> = spans.iter().filter(|span| hex(&span.parent_span_id) == parent).collect();
    let seen: Vec<_> =
        ours.iter().map(|span| (span.name.as_str(), said(span, "fencepost.outcome"))).collect();
    let expected = [("PUT /locks/{key}", "granted"), ("PATCH /lock", "ok"), ("DELETE /locks/{key}", "ok")];
    assert_eq!(seen, expected.map(|(name, outcome)| (name, outcome.to_owned())));
    for (span, step) in ours.iter().zip(["store acquire", "store renew", "store release"]) {
        assert_eq!(hex(&span.trace_id), trace);
        assert_eq!(said(span, "fencepost.key"), "backup/db");
        assert_eq!(said(span, "fencepost.request_id"), format!("of-{}", said(span, "http.request.method")));
        assert!(span.trace_state.is_empty(), "free text of the client: {}", span.trace_state);
        let steps = steps_of(span, &spans);
        assert!(!steps.is_empty() && steps.iter().all(|child| child.name == step), "{steps:#?}");
        let child = steps[0];
        assert!(span.start_time_unix_nano <= child.start_time_unix_nano);
        assert!(child.end_time_unix_nano <= span.end_time_unix_nano);
    }
    let of_status = |status: &str| {
        let mut found = spans.iter().filter(|span| said(span, "http.response.status_code") == status);
        found.next().unwrap_or_else(|| panic!("no span with {status}"))
    };
    let refused = of_status("423");
    assert_eq!(said(refused, "fencepost.outcome"), "lock-held");
    assert!(refused.parent_span_id.is_empty() && hex(&refused.trace_id) != trace);
    assert!(refused.status.as_ref().is_none_or(|status| status.code == 0), "being refused is no error");
    // What is refused at the door asks the store nothing, and what a client invents names no span.
    assert!(steps_of(of_status("400"), &spans).is_empty());
    assert_eq!(of_status("405").name, "_OTHER /locks/{key}");
    let received = collector.received.lock().unwrap();
    assert!(received.services.iter().all(|service| service == "fencepost"));
    for secret in [&token, &made[1..]] {
        let is_there = received.bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!is_there, "a token was sent to the collector");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_piece_of_work_is_traced_without_its_result_and_its_secrets() {
    let collector = Collector::start().await;
    let stage = Stage::embedded_with(&["--otlp-endpoint", &collector.url()]).await;
    let client = stage.client();
    let [token, fingerprint, result] = std::array::from_fn(|_| fresh_token());
    let put = || client.put("/once/pay").token(&token).header("Once-Fingerprint", &fingerprint);
    put().send().await.expect(201);
    client.post("/once/pay").token(&token).body(result.clone()).send().await.expect(200);
    put().send().await.expect(200);
    let spans = collector.all_of(stage.gateway).await;
    let of_route = |span: &&Span| span.name.contains("/once/");
    let seen: Vec<_> = spans.iter().filter(of_route).map(|span| said(span, "fencepost.outcome")).collect();
    assert_eq!(seen, ["begun", "stored", "replayed"]);
    let received = collector.received.lock().unwrap();
    for secret in [&token, &fingerprint, &result] {
        let is_there = received.bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!is_there, "a secret was sent to the collector");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_does_not_answer_shows_in_the_trace() {
    let collector = Collector::start().await;
    let redis = RedisServer::start().await;
    let args = ["--otlp-endpoint", &collector.url(), "--store-timeout", "400ms"];
    let gateway = Gateway::on_redis(&redis, &args).await;
    let client = Client::new(gateway.address);
    client.get("/locks/a").send().await.expect(404);
    redis.stand_still().await;
    client.put("/locks/a").send().await.expect_problem(503, "outcome-unknown");
    redis.signal("CONT");
    let spans = collector.all_of(gateway).await;
    let failed = spans.iter().find(|span| said(span, "fencepost.outcome") == "outcome-unknown").unwrap();
    assert_eq!(failed.status.as_ref().unwrap().code, 2);
    let steps = steps_of(failed, &spans);
    let unknown = steps.iter().filter(|step| said(step, "error.type") == "unknown");
    assert!(unknown.count() >= 1 && steps[0].name == "store acquire", "{steps:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_traceparent_that_is_none_is_not_believed_and_one_that_is_not_sampled_is_heeded() {
    let collector = Collector::start().await;
    let gateway = Gateway::start(&["--store", "memory:", "--otlp-endpoint", &collector.url()]).await;
    let client = Client::new(gateway.address);
    let long = format!("00-{}-{}-01", "a".repeat(4_000), "b".repeat(4_000));
    let zero = format!("00-{}-{}-01", "0".repeat(32), "0".repeat(16));
    let invalid = [
        "",
        "hostile",
        "00-hostile-hostile-01",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        &zero,
        &long,
    ];
    for traceparent in invalid {
        client.get("/locks/believed").header("traceparent", traceparent).send().await.expect(404);
    }
    let unsampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
    client.get("/locks/unsampled").header("traceparent", unsampled).send().await.expect(404);
    let spans = collector.all_of(gateway).await;
    let of = |key: &str| spans.iter().filter(|span| said(span, "fencepost.key") == key).collect::<Vec<_>>();
    assert_eq!(of("believed").len(), invalid.len());
    assert!(of("believed").iter().all(|span| span.parent_span_id.is_empty()));
    assert!(of("unsampled").is_empty());
}

/// Nothing is sampled but what somebody asks for, and strangers ask for nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_traceparent_counts_only_from_who_shows_a_key_where_keys_are_in_use() {
    let collector = Collector::start().await;
    let mut file = KeysFile::new();
    let key = file.add_for_all("known", "\"inspect\"");
    file.write();
    let flag = file.flag();
    let args = ["--store", "memory:", "--otlp-endpoint", &collector.url(), &flag[0], &flag[1]];
    let mut program = command(&args);
    program.env("OTEL_TRACES_SAMPLER", "parentbased_traceidratio").env("OTEL_TRACES_SAMPLER_ARG", "0");
    let gateway = Gateway::try_start_by(program, &args).await.unwrap();
    let client = Client::new(gateway.address);
    let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let ask = |address: &str| client.get(address).header("traceparent", format!("00-{trace}-{parent}-01"));
    ask("/locks/anonymous").send().await.expect(401);
    ask("/locks/wrong").key(&format!("{}x", &key[..key.len() - 1])).send().await.expect(401);
    for address in ["/healthz", "/openapi.json", "/ui", "/problems/lock-held", "/nothing"] {
        ask(address).send().await;
    }
    ask("/locks/foreign").key(&key).header("Origin", "https://evil.example").send().await.expect(403);
    ask("/locks/known").key(&key).send().await.expect(404);
    let spans = collector.all_of(gateway).await;
    let of_requests: Vec<_> = spans.iter().filter(|span| span.name.starts_with("GET ")).collect();
    let seen: Vec<_> = of_requests.iter().map(|span| said(span, "fencepost.key")).collect();
    assert_eq!(seen, ["known"], "{of_requests:#?}");
    assert_eq!(hex(&of_requests[0].parent_span_id), parent);
}

/// The threads of a process, by their names.
fn threads(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_costs_a_line_of_the_log_and_no_request() {
    let nobody = format!("http://127.0.0.1:{}", server_port());
    let mut gateway = Gateway::start(&["--store", "memory:", "--otlp-endpoint", &nobody]).await;
    let client = Client::new(gateway.address);
    // More than are sent at once, so that sending is tried several times.
    for _ in 0..1_200 {
        client.get("/locks/a").send().await.expect(404);
    }
    let warnings = |gateway: &Gateway| {
        gateway.log().iter().filter(|line| line.contains("the collector does not accept them")).count()
    };
    eventually("it is warned of", async || warnings(&gateway) > 0).await;
    assert!(threads(gateway.pid()).iter().any(|name| name.starts_with("OpenTelemetry")));
    gateway.signal("TERM");
    assert!(gateway.exit_status().await.success());
    assert_eq!(warnings(&gateway), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_collector_nothing_of_it_runs() {
    let gateway = Gateway::start(&["--store", "memory:"]).await;
    Client::new(gateway.address).get("/locks/a").send().await.expect(404);
    assert!(!threads(gateway.pid()).iter().any(|name| name.starts_with("OpenTelemetry")));
    for (endpoint, rule) in [
        ("localhost:4318", "http://"),
        ("ftp://localhost", "http://"),
        ("http://", "address"),
        ("http://127.0.0.1:99999", "address"),
        ("http://127.0.0.1:0", "address"),
        ("http://user:hunter2@localhost:4318", "OTEL_EXPORTER_OTLP_HEADERS"),
    ] {
        let output = run(&["--store", "memory:", "--otlp-endpoint", endpoint]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.lines().count() == 1 && said.contains("--otlp-endpoint") && said.contains(rule),
            "{said}"
        );
        assert!(!said.contains("hunter2"), "{said}");
    }
}
