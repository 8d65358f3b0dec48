//! What a gateway sends to Redis for each operation, as `MONITOR` tells it.

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::timeout;

use kit::{Client, Gateway, PATIENCE, RedisServer, fresh_token};

/// Hears what clients send to a server.
pub struct Spy {
    lines: Lines<BufReader<OwnedReadHalf>>,
    /// Without it the server's side would be closed.
    _open: tokio::net::tcp::OwnedWriteHalf,
}

impl Spy {
    pub async fn on(redis: &RedisServer) -> Self {
        let (read, mut write) = TcpStream::connect(("127.0.0.1", redis.port())).await.unwrap().into_split();
        write.write_all(b"MONITOR\r\n").await.unwrap();
        let mut spy = Self { lines: BufReader::new(read).lines(), _open: write };
        assert_eq!(spy.next().await, "+OK");
        spy
    }

    async fn next(&mut self) -> String {
        timeout(PATIENCE, self.lines.next_line()).await.expect("MONITOR is silent").unwrap().unwrap()
    }

    /// The commands that clients sent since the last call, in words.
    pub async fn heard(&mut self, redis: &RedisServer) -> Vec<Vec<String>> {
        let all = self.heard_all(redis).await.into_iter();
        all.filter_map(|(is_of_script, words)| (!is_of_script).then_some(words)).collect()
    }

    /// The same with those of scripts, which are marked.
    pub async fn heard_all(&mut self, redis: &RedisServer) -> Vec<(bool, Vec<String>)> {
        let marker = fresh_token();
        let _: String = redis.command(&["ECHO", &marker]).await;
        let mut heard = Vec::new();
        loop {
            let line = self.next().await;
            if line.contains(&marker) {
                return heard;
            }
            // The time, the database and the client stand before the words, each of which is in quotes.
            let (head, words) = line.split_once("] ").unwrap();
            let words = words.trim_matches('"').split("\" \"").map(str::to_owned);
            heard.push((head.ends_with("lua"), words.collect()));
        }
    }
}

/// Whether it is the gateway's own look, which comes each second, or the test's way to speak.
fn is_of_nobody(words: &[String]) -> bool {
    match words[0].as_str() {
        "INFO" | "HELLO" | "CLIENT" | "PING" => true,
        // The run of numbers is looked for, and what the user may do.
        "EVALSHA" => words[3].ends_with(":fence"),
        "EVAL" => words[2] == "0" || words[3].ends_with(":fence"),
        _ => false,
    }
}

/// The names of the commands that a request makes a gateway send.
async fn sent(spy: &mut Spy, redis: &RedisServer, call: kit::http::Call, status: u16) -> Vec<String> {
    spy.heard(redis).await;
    call.send().await.expect(status);
    let heard = spy.heard(redis).await;
    heard.into_iter().filter(|words| !is_of_nobody(words)).map(|words| words[0].clone()).collect()
}

async fn of_each_operation(redis: &RedisServer, gateway: &Gateway) -> [Vec<String>; 6] {
    let client = Client::new(gateway.address);
    let mut spy = Spy::on(redis).await;
    let mut all = <[Vec<String>; 6]>::default();
    // The first call of each script sends its text as well.
    for _ in 0..2 {
        let token = fresh_token();
        let calls = [
            (client.put("/locks/k?ttl=30s"), 201),
            (client.put("/locks/k?ttl=30s"), 200),
            (client.patch("/locks/k?ttl=30s"), 200),
            (client.get("/locks/k"), 200),
            (client.delete("/locks/k"), 204),
            (client.get("/locks/k"), 404),
        ];
        for ((call, status), sent_for) in calls.into_iter().zip(&mut all) {
            *sent_for = sent(&mut spy, redis, call.token(&token), status).await;
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn each_operation_is_one_call_of_one_script() {
    let redis = RedisServer::start().await;
    let gateway = Gateway::on_redis(&redis, &[]).await;
    let [take, again, others @ ..] = of_each_operation(&redis, &gateway).await;
    // The small script that takes what is free leaves a token's own lock to the one that knows all cases. For a moment that is
    // remembered.
    assert!((1..=2).contains(&again.len()) && again.iter().all(|sent| sent == "EVALSHA"), "{again:?}");
    for sent in others.into_iter().chain([take]) {
        assert_eq!(sent, ["EVALSHA"]);
    }
}

/// The commonest refusal costs no more than a grant.
#[tokio::test(flavor = "multi_thread")]
async fn to_be_refused_is_one_call_of_one_script() {
    let redis = RedisServer::start().await;
    let gateway = Gateway::on_redis(&redis, &[]).await;
    let client = Client::new(gateway.address);
    client.put("/locks/k?ttl=30s").send().await.expect(201);
    let mut spy = Spy::on(&redis).await;
    assert_eq!(sent(&mut spy, &redis, client.put("/locks/k"), 423).await, ["EVALSHA"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_operation_on_a_record_is_one_call_of_one_script() {
    let redis = RedisServer::start_with(&["--maxmemory", "1gb"]).await;
    let gateway = Gateway::on_redis(&redis, &[]).await;
    let client = Client::new(gateway.address);
    let mut spy = Spy::on(&redis).await;
    // The first call of each script sends its text as well.
    for is_known in [false, true] {
        let (token, other) = (fresh_token(), fresh_token());
        let path = if is_known { "/once/b" } else { "/once/a" };
        let with_ttl = format!("{path}?ttl=30s");
        let calls = [
            (client.put(&with_ttl).token(&token), 201),
            (client.put(&with_ttl).token(&token), 201),
            (client.put(&with_ttl).token(&other), 423),
            (client.patch(&with_ttl).token(&token), 200),
            (client.get(path).token(&token), 200),
            (client.call("POST", path).token(&token).body("done"), 200),
            (client.call("POST", path).token(&token).body("done"), 200),
            (client.put(&with_ttl).token(&other), 200),
            (client.delete(path).token(&other), 409),
        ];
        for (at, (call, status)) in calls.into_iter().enumerate() {
            let sent = sent(&mut spy, &redis, call, status).await;
            if is_known {
                assert_eq!(sent, ["EVALSHA"], "{at}");
            }
        }
    }
}

/// Only what hands a lock out, or confirms it, waits for replicas.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_are_asked_in_one_more_round_for_a_lock_and_nothing_else() {
    let redis = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]).await;
    let replica = RedisServer::start().await;
    replica.follow(redis.port()).await;
    let gateway = Gateway::on_redis(&redis, &["--replicas-ack", "1", "--store-timeout", "10s"]).await;
    let [take, again, others @ ..] = of_each_operation(&redis, &gateway).await;
    assert_eq!(take, ["EVALSHA", "EVALSHA", "WAIT"]);
    assert!(again.ends_with(&take) && again.len() <= take.len() + 1, "{again:?}");
    for sent in others {
        assert_eq!(sent, ["EVALSHA"]);
    }
}
