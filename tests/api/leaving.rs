//! Clients that leave before the answer to a release or a renewal: what they sent is done.

use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use kit::certificates::Certificates;
use kit::h2::{self, pong};
use kit::secure::{SecureClient, call};
use kit::{
    Client, Gateway, KeysFile, PATIENCE, RedisServer, Stage, eventually, fresh_token, on_each_store, secrets,
};

on_each_store!(
    a_lock_whose_client_released_it_and_left_is_free,
    locks_that_a_client_released_by_http_2_in_one_go_and_left_are_free,
    a_client_that_left_has_no_lock_and_no_place_whatever_it_sent_behind_its_request,
);

/// Redis answers nothing for a moment: long enough for a client to leave meanwhile.
pub async fn pause(redis: &RedisServer) {
    redis.command::<()>(&["CLIENT", "PAUSE", "300", "ALL"]).await;
}

/// Sends a request, and leaves at once.
pub async fn sends_and_leaves(gateway: &Gateway, method: &str, path: &str, headers: &str) {
    sends_all_and_leaves(gateway, method, path, headers, "").await;
}

async fn sends_all_and_leaves(gateway: &Gateway, method: &str, path: &str, headers: &str, body: &str) {
    let length = body.len();
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n{headers}\r\n");
    secrets::remember_head(head.as_bytes());
    let request = head + body;
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
}

async fn a_lock_whose_client_released_it_and_left_is_free(stage: Stage) {
    let client = stage.client();
    for number in 0..20 {
        let (path, own) = (format!("/locks/left{number}"), fresh_token());
        client.put(&format!("{path}?ttl=1m&max_hold=10m")).token(&own).send().await.expect(201);
        sends_and_leaves(&stage.gateway, "DELETE", &path, &format!("Lease-Token: {own}\r\n")).await;
        eventually("it is free", async || client.get(&path).send().await.status == 404).await;
    }
}

/// A gateway with TLS, which is asked by `secure`, and beside it one without, which `client` asks.
struct WithTls {
    gateway: Gateway,
    secure: SecureClient,
    client: Client,
    _beside: (Certificates, RedisServer, Gateway),
}

async fn with_tls() -> WithTls {
    let certificates = Certificates::new();
    let (certificate, key) = (certificates.certificate(), certificates.key());
    let redis = RedisServer::start().await;
    let plain = Gateway::on_redis(&redis, &[]).await;
    let store = format!("--store={}", redis.url());
    let gateway = Gateway::start(&[&store, "--tls-cert", &certificate, "--tls-key", &key]).await;
    let (secure, client) = (SecureClient::new(&certificates), Client::new(plain.address));
    WithTls { gateway, secure, client, _beside: (certificates, redis, plain) }
}

/// Takes three locks of names with this number. Returns their addresses and tokens.
async fn three_locks(client: &Client, number: usize) -> [(String, String); 3] {
    let locks = [0, 1, 2].map(|place| (format!("/locks/left{number}-{place}"), fresh_token()));
    for (path, own) in &locks {
        client.put(&format!("{path}?ttl=10m")).token(own).send().await.expect(201);
    }
    locks
}

async fn are_free(client: &Client, locks: &[(String, String)]) {
    for (path, _) in locks {
        eventually(path, async || client.get(path).send().await.status == 404).await;
    }
}

/// Releases the locks by HTTP/2 in one write, and leaves at once. Of a connection that is used already, the gateway learns both
/// in the same moment.
async fn releases_by_http_2_and_leaves<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    is_used: bool,
    locks: &[(String, String)],
) {
    let mut bytes = [h2::PREFACE, &h2::frame(h2::SETTINGS, 0, 0, &[])].concat();
    if is_used {
        stream.write_all(&bytes).await.unwrap();
        pong(&mut stream, 1).await;
        bytes.clear();
    }
    for (number, (path, own)) in (1..).step_by(2).zip(locks) {
        let block = h2::header_block_with("DELETE", path, &[("lease-token", own)]);
        bytes.extend(h2::frame(h2::HEADERS, h2::END_STREAM | h2::END_HEADERS, number, &block));
    }
    stream.write_all(&bytes).await.unwrap();
    stream.flush().await.unwrap();
}

async fn locks_that_a_client_released_by_http_2_in_one_go_and_left_are_free(stage: Stage) {
    let client = stage.client();
    for number in 0..20 {
        let locks = three_locks(&client, number).await;
        let stream = TcpStream::connect(stage.gateway.address).await.unwrap();
        releases_by_http_2_and_leaves(stream, number % 2 == 0, &locks).await;
        are_free(&client, &locks).await;
    }
}

/// Many programs close a connection without the last word of TLS.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_free_whose_client_released_it_and_left_without_a_word_of_tls() {
    let WithTls { gateway, secure, client, .. } = &with_tls().await;
    for number in 0..20 {
        let locks = three_locks(client, number).await;
        let stream = secure.connect(gateway.address).await.unwrap();
        releases_by_http_2_and_leaves(stream, true, &locks).await;
        are_free(client, &locks).await;
        let [lock, ..] = three_locks(client, 100 + number).await;
        let mut stream = secure.connect(gateway.address).await.unwrap();
        call(&mut stream, "GET", "/healthz", "").await.unwrap();
        let request =
            format!("DELETE {} HTTP/1.1\r\nHost: localhost\r\nLease-Token: {}\r\n\r\n", lock.0, lock.1);
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        drop(stream);
        are_free(client, &[lock]).await;
    }
}

/// Its head was seen, and the rest comes together with its end.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_ended_by_a_request_in_two_parts_is_ended_though_its_client_left() {
    let tools = ["--store", "memory:", "--terraform", "--dapr", "--max-ttl", "24h"];
    let gateway = Gateway::start(&tools).await;
    let client = Client::new(gateway.address);
    for number in 0..20 {
        let run = format!(r#"{{"ID":"run-0123456789abcd{number}","Operation":"apply","Who":"ann"}}"#);
        let owner = format!(r#"{{"resourceId":"{number}","lockOwner":"ann","expiryInSeconds":600}}"#);
        let own = fresh_token();
        let [of_run, of_owner] = [&run, &owner].map(|body| format!("Content-Length: {}\r\n", body.len()));
        let in_chunks = format!("Lease-Token: {own}\r\nTransfer-Encoding: chunked\r\n");
        let (state, mine) = (format!("/terraform/state{number}"), format!("/locks/mine{number}"));
        let dapr = ["/v1.0-alpha1/lock/s", "/v1.0-alpha1/unlock/s"];
        for (key, take, ending, headers, body) in [
            (
                format!("state{number}"),
                client.call("LOCK", &state).body(run.clone()),
                format!("UNLOCK {state}"),
                of_run,
                &*run,
            ),
            (
                format!("dapr:s:{number}"),
                client.post(dapr[0]).body(owner.clone()),
                format!("POST {}", dapr[1]),
                of_owner,
                &owner,
            ),
            (
                format!("mine{number}"),
                client.put(&format!("{mine}?ttl=10m")).token(&own),
                format!("DELETE {mine}"),
                in_chunks,
                "0\r\n\r\n",
            ),
        ] {
            let status = take.send().await.status;
            assert!(matches!(status, 200 | 201), "{key}: {status}");
            let head =
                format!("{ending} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n{headers}\r\n");
            let mut stream = TcpStream::connect(gateway.address).await.unwrap();
            stream.write_all(head.as_bytes()).await.unwrap();
            // The rest is waited for by then.
            let mut told = [0; 25];
            timeout(PATIENCE, stream.read_exact(&mut told)).await.expect(&key).unwrap();
            assert_eq!(told, *b"HTTP/1.1 100 Continue\r\n\r\n", "{key}");
            stream.write_all(body.as_bytes()).await.unwrap();
            drop(stream);
            let lock = format!("/lock?key={key}");
            eventually(&key, async || client.get(&lock).send().await.status == 404).await;
        }
    }
}

/// Redis needs more than one step where somebody waits, and where a lock has terms or slots.
#[tokio::test(flavor = "multi_thread")]
async fn all_steps_of_a_release_are_done_though_its_client_left() {
    let redis = RedisServer::start().await;
    let gateway = Gateway::on_redis(&redis, &["--once-memory", "100000000"]).await;
    let client = Client::new(gateway.address);
    for (lock, terms, is_waited_for) in [
        ("plain", "", false),
        ("waited-for", "", true),
        ("terms", "&max_hold=10m", false),
        ("slots", "&slots=3", false),
    ] {
        let path = format!("/locks/{lock}");
        let token = client.put(&format!("{path}?ttl=10m{terms}")).send().await.expect(201).token();
        let next = client.put(&format!("{path}?wait=50s"));
        let next = is_waited_for.then(|| tokio::spawn(async move { next.send().await }));
        eventually("the next one waits", async || {
            let waiters = client.get(&path).send().await.json()["waiters"].as_u64();
            waiters == Some(u64::from(is_waited_for))
        })
        .await;
        pause(&redis).await;
        sends_and_leaves(&gateway, "DELETE", &path, &format!("Lease-Token: {token}\r\n")).await;
        match next {
            Some(next) => drop(next.await.unwrap().expect(201)),
            None => eventually(lock, async || client.get(&path).send().await.status == 404).await,
        }
    }
    // So it is with work that is given up.
    let token = client.put("/once/work?ttl=10m").send().await.expect(201).token();
    pause(&redis).await;
    sends_and_leaves(&gateway, "DELETE", "/once/work", &format!("Lease-Token: {token}\r\n")).await;
    eventually("another may begin", async || {
        client.put("/once/work").token(&fresh_token()).send().await.status == 201
    })
    .await;
}

/// An operator who breaks a lock is one, and so is each tool with words of its own for a release.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_operator_or_a_tool_ends_is_ended_though_it_left() {
    let redis = RedisServer::start().await;
    let tools = ["--terraform", "--dapr", "--fleet-lock", "default=1", "--max-ttl", "24h"];
    let gateway = Gateway::on_redis(&redis, &tools).await;
    let client = Client::new(gateway.address);
    let run = r#"{"ID":"run-0123456789abcdef","Operation":"apply","Who":"ann"}"#;
    let owner = r#"{"resourceId":"order","lockOwner":"ann","expiryInSeconds":600}"#;
    let machine = r#"{"client_params":{"id":"m1","group":"default"}}"#;
    let of_fleet_lock = "fleet-lock-protocol: true\r\n";
    for (key, taking, ending, headers, body) in [
        ("state", ("LOCK", "/terraform/state"), ("UNLOCK", "/terraform/state"), "", run),
        ("dapr:s:order", ("POST", "/v1.0-alpha1/lock/s"), ("POST", "/v1.0-alpha1/unlock/s"), "", owner),
        (
            "fleet-lock:default",
            ("POST", "/fleet-lock/v1/pre-reboot"),
            ("POST", "/fleet-lock/v1/steady-state"),
            of_fleet_lock,
            machine,
        ),
        ("broken", ("PUT", "/locks/broken?ttl=10m"), ("DELETE", "/locks/broken?force=true"), "", ""),
    ] {
        let mut take = client.call(taking.0, taking.1).body(body);
        if let Some((name, value)) = headers.trim_end().split_once(": ") {
            take = take.header(name, value);
        }
        let status = take.send().await.status;
        assert!(matches!(status, 200 | 201), "{key}: {status}");
        // Where somebody waits, Redis needs more than one step.
        let next = client.put(&format!("/lock?key={key}&wait=50s"));
        let next = tokio::spawn(async move { next.send().await });
        let lock = format!("/lock?key={key}");
        eventually("the next one waits", async || client.get(&lock).send().await.json()["waiters"] == 1)
            .await;
        pause(&redis).await;
        sends_all_and_leaves(&gateway, ending.0, ending.1, headers, body).await;
        let next = timeout(Duration::from_secs(10), next).await.expect(key);
        next.unwrap().expect(201);
    }
}

/// A worker relies on what it has sent, and an operator on a record that is broken.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_done_with_a_record_is_done_though_its_client_left() {
    let redis = RedisServer::start().await;
    let gateway = Gateway::on_redis(&redis, &["--once-memory", "100000000"]).await;
    let client = Client::new(gateway.address);
    let begin = async |token: &str| client.put("/once/work?ttl=1m").token(token).send().await.status;
    let [own, other] = [fresh_token(), fresh_token()];
    let headers = format!("Lease-Token: {own}\r\n");
    assert_eq!(begin(&own).await, 201);
    pause(&redis).await;
    sends_and_leaves(&gateway, "PATCH", "/once/work?ttl=10m", &headers).await;
    eventually("the lease is longer", async || {
        let left_ms = client.get("/once/work").send().await.json()["expires_in_ms"].as_u64();
        left_ms.is_some_and(|left_ms| left_ms > 60_000)
    })
    .await;
    pause(&redis).await;
    sends_all_and_leaves(&gateway, "POST", "/once/work", &headers, "the result").await;
    eventually("the result is there", async || begin(&other).await == 200).await;
    pause(&redis).await;
    sends_and_leaves(&gateway, "DELETE", "/once/work?force=true", "").await;
    eventually("the record is gone", async || begin(&other).await == 201).await;
}

/// Its client has never heard of the longer lease, but has it.
#[tokio::test(flavor = "multi_thread")]
async fn locks_count_for_a_key_for_as_long_as_they_were_renewed_though_its_client_left() {
    let redis = RedisServer::start().await;
    let mut file = KeysFile::new();
    let key = file.add("limited", "every_key = true\nallow = [\"acquire\", \"inspect\"]\nmax_locks = 1");
    file.write();
    let [flag, path] = file.flag();
    let gateway = Gateway::on_redis(&redis, &[&flag, &path]).await;
    let client = Client::new(gateway.address);
    for (number, (method, query)) in
        [("PATCH", "?ttl=10m"), ("PUT", "?ttl=10m"), ("PUT", "?ttl=10m&wait=10s")].into_iter().enumerate()
    {
        let (path, own) = (format!("/locks/renewed{number}"), fresh_token());
        let taken = client.put(&format!("{path}?ttl=1s")).key(&key).token(&own).send().await;
        let short = taken.expect(201).fencing_token();
        pause(&redis).await;
        let headers = format!("Lease-Token: {own}\r\nAuthorization: Bearer {key}\r\n");
        sends_and_leaves(&gateway, method, &format!("{path}{query}"), &headers).await;
        // Until the lease that it was told of is over, and beyond. A PUT may have been given up in time.
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(2_000) {
            let more = client.put("/locks/more").key(&key).send().await;
            if more.status == 201 {
                assert!(method == "PUT" && client.get(&path).key(&key).send().await.status == 404, "{query}");
                client.delete("/locks/more").key(&key).token(&more.token()).send().await.expect(204);
            } else {
                more.expect_problem(429, "too-many-locks");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let held = client.get(&path).key(&key).send().await;
        assert!(method == "PUT" || held.expect(200).fencing_token() == short);
        client.delete(&path).key(&key).token(&own).send().await;
    }
}

async fn a_client_that_left_has_no_lock_and_no_place_whatever_it_sent_behind_its_request(stage: Stage) {
    let connect = async || TcpStream::connect(stage.gateway.address).await.unwrap();
    leave_nothing(&stage.client(), connect, |stream| SockRef::from(stream)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_left_has_no_lock_and_no_place_also_with_tls() {
    let WithTls { gateway, secure, client, .. } = &with_tls().await;
    let connect = async || secure.connect(gateway.address).await.unwrap();
    leave_nothing(client, connect, |stream| SockRef::from(stream.get_ref().0)).await;
}

/// Clients that wait for a lock, or hold one, send something behind their request, and leave in each way.
async fn leave_nothing<S: AsyncRead + AsyncWrite + Unpin>(
    client: &Client,
    connect: impl AsyncFn() -> S,
    socket: impl Fn(&S) -> SockRef<'_>,
) {
    let next = "PUT /locks/next?ttl=10m HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let ways = [(false, false), (true, false), (false, true), (true, true)];
    for behind in
        ["", "\r\n", "\n", &next[..9], next, &"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(2_000)]
    {
        for (resets, comes_later) in ways {
            for (method, path) in [
                ("PUT", "/locks/k?ttl=10m&wait=50s"),
                ("POST", "/hold?key=k&ttl=10m&wait=50s"),
                ("POST", "/hold?key=k&ttl=10m"),
            ] {
                let waits = path.contains("wait");
                let holder = waits.then_some(client.put("/locks/k?ttl=10m"));
                let holder = match holder {
                    Some(put) => Some(put.send().await.expect(201).token()),
                    None => None,
                };
                let case = format!("{method} {path}, {:?}…, {resets} {comes_later}", behind.get(..9));
                let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
                let mut stream = connect().await;
                let at_once = if comes_later { head.clone() } else { head + behind };
                stream.write_all(at_once.as_bytes()).await.unwrap();
                stream.flush().await.unwrap();
                let look = async || client.get("/locks/k").send().await;
                eventually(&case, async || {
                    let look = look().await;
                    look.status == 200 && look.json()["waiters"] == u64::from(waits)
                })
                .await;
                if comes_later {
                    stream.write_all(behind.as_bytes()).await.unwrap();
                    stream.flush().await.unwrap();
                }
                if resets {
                    socket(&stream).set_linger(Some(Duration::ZERO)).unwrap();
                }
                drop(stream);
                if let Some(token) = holder {
                    eventually(&case, async || look().await.json()["waiters"] == 0).await;
                    client.delete("/locks/k").token(&token).send().await.expect(204);
                }
                eventually(&case, async || look().await.status == 404).await;
            }
        }
    }
    client.get("/locks/next").send().await.expect(404);
}
