//! How a stored result is served: whole, to everybody who may begin, and so that no browser runs it.

use super::{Pair, begin, on_each_pair, state, store};
use kit::{Client, fresh_token, quorum};

on_each_pair!(
    a_result_comes_back_as_it_was_and_runs_nowhere,
    a_look_tells_of_the_result_and_never_the_result,
    what_makes_no_sense_is_refused_and_begins_nothing,
);

/// Media types that workers send, with those under which results are served, and whether the first is told.
const TYPES: [(&str, &str, bool); 13] = [
    ("application/json", "application/json", true),
    ("application/json; charset=utf-8", "application/json; charset=utf-8", true),
    ("text/plain;charset=utf-8", "text/plain;charset=utf-8", true),
    ("text/html", "application/octet-stream", true),
    ("TEXT/HTML; charset=utf-8", "application/octet-stream", true),
    ("image/svg+xml", "application/octet-stream", true),
    ("text/javascript", "application/octet-stream", true),
    ("application/xml", "application/octet-stream", true),
    ("application/pdf", "application/octet-stream", true),
    ("application/problem+json", "application/octet-stream", true),
    ("application/x-www-form-urlencoded", "application/octet-stream", false),
    ("nonsense", "application/octet-stream", false),
    ("", "application/octet-stream", false),
];

async fn a_result_comes_back_as_it_was_and_runs_nowhere(pair: Pair) {
    let (here, there) = (pair.here(), pair.there());
    for (number, (sent, served, is_told)) in TYPES.into_iter().enumerate() {
        let (address, token) = (format!("/once/type{number}"), fresh_token());
        here.put(&address).token(&token).send().await.expect(201);
        let post = here.post(&address).token(&token).header("Content-Type", sent);
        post.body("<script>").send().await.expect(200);
        // By the token of the request, a client knows that this is no answer to another one.
        let reader = fresh_token();
        let form = if number % 2 == 0 { address } else { format!("/once?key=type{number}") };
        let answer = there.put(&form).token(&reader).send().await.expect(200);
        assert_eq!(answer.body, "<script>");
        for (name, value) in [
            ("Content-Type", Some(served)),
            ("Once-Content-Type", Some(sent).filter(|_| is_told)),
            ("Once-Status", None),
            ("Once-Bytes", Some("8")),
            ("Once", Some("replayed")),
            ("X-Content-Type-Options", Some("nosniff")),
            ("Content-Security-Policy", Some("default-src 'none'; sandbox; frame-ancestors 'none'")),
            ("Content-Disposition", Some("attachment")),
            ("Cross-Origin-Resource-Policy", Some("same-origin")),
            ("Cache-Control", Some("no-store")),
            ("Lease-Token", Some(&*reader)),
        ] {
            assert_eq!(answer.header(name), value, "{sent}: {name}");
        }
        for name in ["Once-Stored-At", "Once-Kept-Until"] {
            humantime::parse_rfc3339(answer.header(name).unwrap()).unwrap();
        }
    }
    // One that is too long for a header is none, and the longest comes back.
    for (length, is_told) in [(127, true), (128, false)] {
        let (address, token) = (format!("/once/long{length}"), fresh_token());
        let long = format!("text/{}", "x".repeat(length - "text/".len()));
        here.put(&address).token(&token).send().await.expect(201);
        here.post(&address).token(&token).header("Content-Type", &long).body("x").send().await.expect(200);
        let answer = there.put(&address).send().await.expect(200);
        assert_eq!(answer.header("Once-Content-Type"), Some(&*long).filter(|_| is_told), "{length}");
        assert!(answer.header("Lease-Token").is_some_and(|made| made != token), "{length}");
    }
}

async fn a_look_tells_of_the_result_and_never_the_result(pair: Pair) {
    let (here, there, token) = (pair.here(), pair.there(), fresh_token());
    begin(&here, "ttl=1m&owner=me", &token).send().await.expect(201);
    let working = there.get("/once/k").token(&token).send().await.expect(200).json();
    assert_eq!((&working["state"], &working["owner"]), (&"working".into(), &"me".into()));
    assert_eq!(working["yours"], true);
    let result = fresh_token();
    let post = here.post("/once/k?status=7").token(&token).header("Content-Type", "text/plain");
    let stored = post.body(result.clone()).send().await.expect(200);
    for look in [
        there.get("/once/k").send().await,
        there.get("/records").send().await,
        there.call("HEAD", "/once/k").send().await,
    ] {
        let look = look.expect(200);
        assert!(look.header("Once-Content-Type").is_none() && look.header("Once").is_none());
        if look.body.is_empty() {
            continue;
        }
        let record = match look.json() {
            list if list["records"].is_array() => list["records"][0].clone(),
            record => record,
        };
        assert!(!String::from_utf8_lossy(&look.body).contains(&result), "{record}");
        assert_eq!((&record["state"], &record["status"]), (&"done".into(), &7.into()));
        assert_eq!((&record["result_bytes"], &record["content_type"]), (&32.into(), &"text/plain".into()));
        assert_eq!(record["fencing_token"], stored.fencing_token());
        assert_eq!((&record["expires_in_ms"], &record["earlier"]), (&0.into(), &0.into()));
    }
    let of_another = there.get("/once/k").token(&fresh_token()).send().await.expect(200).json();
    assert_eq!(of_another["yours"], false);
}

async fn what_makes_no_sense_is_refused_and_begins_nothing(pair: Pair) {
    let client = pair.here();
    for (query, parameter) in [
        ("keep=1m", "keep"),
        ("keep=119999ms", "keep"),
        ("keep=169h", "keep"),
        ("keep=8d", "keep"),
        ("keep=3600", "keep"),
        ("ttl=1ms", "ttl"),
        ("wait=2m", "wait"),
        ("status=0", "status"),
        ("pause=1m", "pause"),
        ("max_hold=1h", "max_hold"),
    ] {
        let answer = begin(&client, query, &fresh_token()).send().await;
        assert_eq!(answer.expect_problem(400, "bad-parameter").json()["parameter"], parameter, "{query}");
    }
    begin(&client, "", &fresh_token()).body("x").send().await.expect_problem(400, "unexpected-body");
    assert_eq!(state(&client).await, "");
    let token = fresh_token();
    begin(&client, "keep=168h&ttl=1m", &token).send().await.expect(201);
    for query in ["status=1000", "status=-1", "status=", "status=1e2", "keep=1m", "force=true"] {
        let post = client.post(&format!("/once/k?{query}")).token(&token).body("x").send().await;
        post.expect_problem(400, "bad-parameter");
    }
    client.post("/once/k").body("x").send().await.expect_problem(400, "token-required");
    for method in ["POST", "PUT", "DELETE", "PATCH"] {
        client.call(method, "/records").send().await.expect_problem(405, "method-not-allowed");
    }
    assert_eq!(state(&client).await, "working");
    store(&client, &token, "x").send().await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_keeps_no_records_and_asks_no_server() {
    let quorum = quorum::Quorum::start(3).await;
    let gateway = quorum.gateway(&[]).await;
    let client = Client::new(gateway.address);
    quorum::is_ready(&client).await;
    let token = fresh_token();
    let keys = async || {
        let mut keys = Vec::new();
        for node in &quorum.nodes {
            keys.extend(node.keys().await);
        }
        keys.into_iter().filter(|key| key.contains("once") || key.contains("freed")).collect::<Vec<_>>()
    };
    // Gateways look after their servers by themselves meanwhile. Each of these requests would ask three servers.
    const ROUNDS: u64 = 10;
    let asked = async || {
        let mut asked = 0;
        for node in &quorum.nodes {
            let calls = node.all_calls().await.into_iter();
            let scripts = calls.filter(|(name, _)| name.starts_with("eval") || name == "scan");
            asked += scripts.map(|(_, calls)| calls).sum::<u64>();
        }
        asked
    };
    let before = asked().await;
    for _ in 0..ROUNDS {
        for call in [
            begin(&client, "wait=1s", &token),
            store(&client, &token, "x"),
            client.patch("/once/k").token(&token),
            client.delete("/once/k").token(&token),
            client.delete("/once/k?force=true"),
            client.get("/once/k"),
            client.get("/records"),
        ] {
            let told = call.send().await.expect_problem(501, "once-unsupported");
            assert!(told.json()["detail"].as_str().unwrap().contains("quorum"), "{}", told.json());
        }
    }
    let more = asked().await - before;
    assert!(more < 7 * ROUNDS, "{more} calls");
    // A client that still writes reads the answer too.
    let large = client.post("/once/k").token(&token).body("x".repeat(900_000));
    large.send().await.expect_problem(501, "once-unsupported");
    assert_eq!(keys().await, Vec::<String>::new());
    // Nothing is counted of a step at the store.
    let steps = kit::metrics::Scrape::of(gateway.address).await;
    for step in ["begin", "store", "give-up"] {
        assert_eq!(steps.get(&format!("fencepost_store_seconds_count{{step=\"{step}\"}}")), 0.0, "{step}");
    }
}
