//! What lies in Redis: everything that gateways write, as the server has it, and what a later version makes of it.
//!
//! A fixture is a list of commands that makes the same keys. Numbers of 13 digits are times in ms: in a fixture they are
//! `@+5000` or `@-5000`, counted from the moment at which it was recorded. So a fixture can be laid down as it would lie some
//! time after that.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use regex::{Captures, Regex};
use tokio::task::JoinSet;

use super::notation::{line, with_names, words};
use super::{hold_against, recorded, versions};
use kit::secrets::is_public;
use kit::{Answer, Client, Gateway, RedisServer, eventually};

const FIXTURE: &str = "redis.txt";

/// Says what all keys hold at one moment, and for how long.
const LOOK: &str = "local time, all = redis.call('TIME'), {}
    for _, name in ipairs(redis.call('KEYS', 'fencepost:*')) do
        local kind, value = redis.call('TYPE', name).ok, {}
        if kind == 'string' then value = { redis.call('GET', name) } end
        if kind == 'hash' then value = redis.call('HGETALL', name) end
        if kind == 'zset' then value = redis.call('ZRANGE', name, 0, -1, 'WITHSCORES') end
        all[#all + 1] = { name, kind, redis.call('PTTL', name), value }
    end
    return { time[1] * 1000 + math.floor(time[2] / 1000), all }";

/// The commands that make what a server holds.
pub async fn look(redis: &RedisServer) -> String {
    type Key = (String, String, i64, Vec<String>);
    let (now_ms, mut all): (i64, Vec<Key>) = redis.command(&["EVAL", LOOK, "0"]).await;
    all.sort();
    let mut lines = Vec::new();
    for (name, kind, left_ms, value) in &all {
        let life = left_ms.to_string();
        match (kind.as_str(), &value[..]) {
            // A lock without an end, say.
            ("string", [value]) if *left_ms < 0 => lines.push(line(&["SET", name, value])),
            ("string", [value]) => lines.push(line(&["SET", name, value, "PX", &life])),
            ("hash", fields) => {
                lines.extend(fields.chunks(2).map(|pair| line(&["HSET", name, &pair[0], &pair[1]])));
            }
            ("zset", members) => {
                lines.extend(members.chunks(2).map(|pair| line(&["ZADD", name, &pair[1], &pair[0]])));
            }
            _ => panic!("{name} is a {kind}"),
        }
        if kind != "string" && *left_ms >= 0 {
            lines.push(line(&["PEXPIRE", name, &life]));
        }
    }
    let from_now = |found: &Captures<'_>| format!("@{:+}", found[0].parse::<i64>().unwrap() - now_ms);
    let time = Regex::new(r"\b1\d{12}\b").unwrap();
    lines.iter().map(|line| time.replace_all(line, from_now) + "\n").collect()
}

/// Makes of a server what the fixture was so long after it had been recorded.
pub async fn lay_down(redis: &RedisServer, fixture: &str, after: Duration) {
    let after_ms = i64::try_from(after.as_millis()).unwrap();
    let (s, us): (i64, i64) = redis.command(&["TIME"]).await;
    let recorded_ms = s * 1000 + us / 1000 - after_ms;
    let by_clock = |found: &Captures<'_>| (recorded_ms + found[0][1..].parse::<i64>().unwrap()).to_string();
    let time = Regex::new(r"@[+-]\d+").unwrap();
    for line in fixture.lines() {
        let mut words = words(&time.replace_all(line, by_clock));
        if words[0] == "PEXPIRE" || words.get(3).is_some_and(|word| word == "PX") {
            let life_ms = words.last().unwrap().parse::<i64>().unwrap() - after_ms;
            if words[0] == "SET" && life_ms <= 0 {
                continue;
            }
            *words.last_mut().unwrap() = life_ms.to_string();
        }
        let _: redis::Value = redis.command(&words.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }
}

/// What is left of a fixture without what differs each time.
pub fn lines_of(fixture: &str) -> BTreeSet<String> {
    let (time, life) =
        (Regex::new(r"@[+-]\d+").unwrap(), Regex::new(r"^(SET.* PX|PEXPIRE .*) \d+$").unwrap());
    let line = |line: &str| {
        let line = time.replace_all(line, "@");
        let line = life.replace(&line, "$1 <life>").into_owned();
        // The name of a tombstone is made of its key and token, which are always the same.
        match line.split_once(":freed:") {
            Some((begin, rest)) => {
                format!("{begin}:freed:{}", rest[..32].to_owned() + &with_names(&rest[32..]))
            }
            None => with_names(&line),
        }
    };
    fixture.lines().map(line).collect()
}

/// The token by which a lock is held, or waited for.
pub fn token_of(name: &str) -> String {
    format!("token-of-{name}-0123456789")
}

/// The number in the value of a lock.
pub fn number_of(fixture: &str, lock: &str) -> u64 {
    let line = fixture.lines().map(words).find(|words| words[1].ends_with(&format!(":lock:{lock}")));
    let value = line.unwrap_or_else(|| panic!("there is no lock {lock}")).remove(2);
    let number = value.split(' ').nth(2).unwrap().split(':').next().unwrap();
    number.parse().unwrap()
}

/// The largest number that stands in a fixture.
pub fn largest_number(fixture: &str) -> u64 {
    let number = Regex::new(r"\b\d{16}\b").unwrap();
    number.find_iter(fixture).map(|found| found.as_str().parse().unwrap()).max().unwrap()
}

/// What is done to a lock, by the token that bears a name.
pub async fn ask(client: &Client, method: &str, query: &str, name: &str) -> Answer {
    client.call(method, &format!("/lock?{query}")).token(&token_of(name)).send().await
}

/// Locks in each form in which they lie, but for those that others wait for. Returns what must live for them to be held.
pub async fn take_locks(client: &Client, ttl: &str) -> Vec<http::Response<hyper::body::Incoming>> {
    ask(client, "PUT", &format!("key=plain&ttl={ttl}"), "plain").await.expect(201);
    ask(client, "PUT", &format!("key=owned&ttl={ttl}&owner=Ada%20%22%C3%BC%22%20%5C"), "owned")
        .await
        .expect(201);
    ask(client, "PUT", &format!("key=a%2Fb%20%7B1%7D%20%C3%A4&ttl={ttl}"), "odd").await.expect(201);
    ask(client, "PUT", "key=renewed&ttl=1m&owner=Bo", "renewed").await.expect(201);
    ask(client, "PATCH", &format!("key=renewed&ttl={ttl}"), "renewed").await.expect(200);
    let terms = format!("key=terms&ttl={ttl}&max_hold=23h&min_hold={ttl}&owner=batch");
    ask(client, "PUT", &terms, "terms").await.expect(201);
    ask(client, "PUT", &format!("key=kept&ttl={ttl}&min_hold={ttl}&owner=cron"), "kept").await.expect(201);
    ask(client, "DELETE", "key=kept", "kept").await.expect(204);
    ask(client, "PUT", &format!("key=claimed&ttl={ttl}"), "claimed").await.expect(201);
    // Final tombstones, with each answer.
    ask(client, "PUT", "key=freed&ttl=1m", "freed").await.expect(201);
    ask(client, "DELETE", "key=freed", "freed").await.expect(204);
    ask(client, "DELETE", "key=never", "never").await.expect_problem(404, "not-held");
    ask(client, "DELETE", "key=plain", "stranger").await.expect_problem(409, "held-by-another");
    let mut held = Vec::new();
    for name in ["connection", "claimed"] {
        let hold = client.call("POST", &format!("/hold?key={name}&ttl={ttl}&max_hold=23h&owner=run"));
        let response = hold.token(&token_of(name)).open().await;
        assert_eq!(response.status(), 200);
        held.push(response);
    }
    held
}

/// The locks that are held in every fixture, and by whom.
pub const HELD: [(&str, &str, Option<&str>); 7] = [
    ("plain", "plain", None),
    ("owned", "owned", Some("Ada \"ü\" \\")),
    ("a%2Fb%20%7B1%7D%20%C3%A4", "odd", None),
    ("renewed", "renewed", Some("Bo")),
    ("terms", "terms", Some("batch")),
    ("connection", "connection", Some("run")),
    ("claimed", "claimed", None),
];

/// Each lock of a fixture is found with its holder, its number and the rest of its lease, can be renewed and released by its
/// token, and is then granted by a larger number.
pub async fn each_lock_is_as_it_was(client: &Client, fixture: &str, at_least: Duration) {
    let mut last = largest_number(fixture);
    for (key, name, owner) in HELD {
        let number = number_of(fixture, if name == "odd" { "a/b {1} ä" } else { key });
        let seen = ask(client, "GET", &format!("key={key}"), name).await.expect(200);
        let body = seen.json();
        assert_eq!((seen.fencing_token(), body["yours"].as_bool()), (number, Some(true)), "{body}");
        assert_eq!(body["owner"].as_str(), owner, "{body}");
        assert!(u128::from(body["expires_in_ms"].as_u64().unwrap()) >= at_least.as_millis(), "{body}");
        ask(client, "PUT", &format!("key={key}&ttl=1m"), "another").await.expect_problem(423, "lock-held");
        let renewed = ask(client, "PATCH", &format!("key={key}&ttl=1m"), name).await.expect(200);
        assert_eq!(renewed.fencing_token(), number);
        ask(client, "DELETE", &format!("key={key}"), name).await.expect(204);
        let next = ask(client, "PUT", &format!("key={key}&ttl=1m"), &format!("next-{name}")).await;
        if name == "terms" {
            // Its `min_hold` is not over.
            next.expect_problem(423, "lock-held");
            continue;
        }
        let next = next.expect(201).fencing_token();
        assert!(next > last, "{next} after {last}");
        last = next;
    }
    let kept = client.get("/lock?key=kept").send().await.expect(200).json();
    assert_eq!((kept["released"].as_bool(), kept["owner"].as_str()), (Some(true), Some("cron")), "{kept}");
    // Of each token that was released it is known what was answered.
    ask(client, "DELETE", "key=kept", "kept").await.expect(204);
    ask(client, "DELETE", "key=freed", "freed").await.expect(204);
    ask(client, "PUT", "key=freed&ttl=1m", "freed").await.expect_problem(409, "token-released");
    ask(client, "DELETE", "key=never", "never").await.expect_problem(404, "not-held");
    ask(client, "PUT", "key=plain&ttl=1m", "stranger-2").await.expect(423);
}

/// Whether the wait queue of a lock has so many tickets of this kind.
async fn has_tickets(redis: &RedisServer, key: &str, count: usize, is_such: impl Fn(&str) -> bool) {
    eventually("the tickets are there", async || {
        let all: Vec<String> = redis.command(&["HVALS", &format!("fencepost:{{0}}:seats:{key}")]).await;
        all.iter().filter(|ticket| is_such(ticket)).count() == count
    })
    .await;
}

/// A request that waits for a lock.
fn wait(client: &Client, key: &str, name: &str) -> impl Future<Output = Answer> + 'static {
    let (client, key, name) = (client.clone(), key.to_owned(), name.to_owned());
    async move { ask(&client, "PUT", &format!("key={key}&ttl=1m&wait=60s"), &name).await }
}

/// Takes a ticket by a client that leaves.
async fn leave_a_ticket(client: &Client, redis: &RedisServer, key: &str, name: &str) {
    let leaving = tokio::spawn(wait(client, key, name));
    let hash = fencepost::lock::LeaseToken::parse(token_of(name).as_bytes()).unwrap().hash().to_string();
    let seats = format!("fencepost:{{0}}:seats:{key}");
    let ticket = async || redis.command::<Option<String>>(&["HGET", &seats, &hash]).await;
    eventually("it has a ticket", async || ticket().await.is_some()).await;
    leaving.abort();
    eventually("it has left", async || ticket().await.unwrap().ends_with("- -")).await;
}

/// Everything that a gateway writes into one server.
async fn write_all(redis: &RedisServer) -> String {
    let gateway = Gateway::on_redis(redis, &["--ticket-ttl", "10m"]).await;
    let client = Client::new(gateway.address);
    let _held = take_locks(&client, "22h").await;
    ask(&client, "PUT", "key=line&ttl=22h&owner=holder", "line").await.expect(201);
    let mut waiting = JoinSet::new();
    waiting.spawn(wait(&client, "line", "first"));
    has_tickets(redis, "line", 1, |_| true).await;
    leave_a_ticket(&client, redis, "line", "second").await;
    // The later of two requests of a token has taken the ticket over.
    waiting.spawn(wait(&client, "line", "third"));
    has_tickets(redis, "line", 3, |_| true).await;
    waiting.spawn(wait(&client, "line", "third"));
    has_tickets(redis, "line", 1, |ticket| ticket.split(' ').count() == 5).await;
    // A wait that has ended voids its attempt.
    ask(&client, "PUT", "key=line&ttl=1m&wait=10ms", "voided").await.expect(423);
    // The last step, since an offer is soon over: it is made to a gateway that cannot take it.
    let stopped = Gateway::on_redis(redis, &["--ticket-ttl", "10m"]).await;
    ask(&client, "PUT", "key=offered&ttl=1m", "holder").await.expect(201);
    waiting.spawn(wait(&Client::new(stopped.address), "offered", "offered"));
    has_tickets(redis, "offered", 1, |_| true).await;
    let present = async || redis.command::<u64>(&["ZCARD", "fencepost:{0}:gates"]).await == 2;
    eventually("both gateways are present", present).await;
    stopped.signal("STOP");
    let threads = format!("/proc/{}/task", stopped.pid());
    let stands = |thread: PathBuf| {
        std::fs::read_to_string(thread.join("stat")).is_ok_and(|stat| stat.contains(") T "))
    };
    let has_stopped =
        async || std::fs::read_dir(&threads).unwrap().all(|thread| stands(thread.unwrap().path()));
    eventually("each of its threads stands still", has_stopped).await;
    ask(&client, "DELETE", "key=offered", "holder").await.expect(204);
    let all = look(redis).await;
    waiting.shutdown().await;
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn what_lies_in_redis_is_what_is_recorded_of_this_version() {
    let redis = RedisServer::start().await;
    let all = write_all(&redis).await;
    hold_against(FIXTURE, &all, lines_of);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_lock_that_an_earlier_version_left_in_redis_is_found_renewed_and_released() {
    for version in versions() {
        let (redis, fixture) = (RedisServer::start().await, recorded(&version, FIXTURE));
        lay_down(&redis, &fixture, Duration::ZERO).await;
        let gateway = Gateway::on_redis(&redis, &[]).await;
        each_lock_is_as_it_was(&Client::new(gateway.address), &fixture, Duration::from_secs(20 * 3600)).await;
    }
}

/// This version takes none of such a name.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_an_earlier_version_named_after_its_own_token_is_renewed_and_released() {
    let name = token_of("plain");
    is_public(&name);
    for version in versions() {
        let redis = RedisServer::start().await;
        lay_down(&redis, &recorded(&version, FIXTURE), Duration::ZERO).await;
        let lock = |name: &str| format!("fencepost:{{0}}:lock:{name}");
        let _: () = redis.command(&["RENAME", &lock("plain"), &lock(&name)]).await;
        let gateway = Gateway::on_redis(&redis, &[]).await;
        let (client, query) = (Client::new(gateway.address), format!("key={name}"));
        ask(&client, "PUT", &query, "plain").await.expect_problem(400, "bad-key");
        assert_eq!(ask(&client, "GET", &query, "plain").await.expect(200).json()["yours"], true);
        ask(&client, "PATCH", &query, "plain").await.expect(200);
        ask(&client, "DELETE", &query, "plain").await.expect(204);
        ask(&client, "GET", &query, "plain").await.expect_problem(404, "not-held");
    }
}

/// They ask anew, with their tokens, in the reverse of their order; somebody who never had a ticket comes before them all.
#[tokio::test(flavor = "multi_thread")]
async fn those_who_waited_at_an_earlier_version_are_served_in_their_order() {
    let name = Regex::new(r"[0-9a-f]{32}").unwrap();
    for version in versions() {
        let (redis, fixture) = (RedisServer::start().await, recorded(&version, FIXTURE));
        lay_down(&redis, &fixture, Duration::ZERO).await;
        let gateway = Gateway::on_redis(&redis, &[]).await;
        let client = Client::new(gateway.address);
        let formers: BTreeSet<_> = fixture
            .lines()
            .filter(|line| line.contains(":gates"))
            .flat_map(|line| name.find_iter(line).map(|found| found.as_str().to_owned()))
            .collect();
        let names = ["first", "second", "third", "new"];
        let mut waiting: Vec<_> = names.iter().map(|_| None).collect();
        for (count, at) in [3, 2, 1, 0].into_iter().enumerate() {
            waiting[at] = Some(tokio::spawn(wait(&client, "line", names[at])));
            has_tickets(&redis, "line", count + 1, |ticket| {
                !ticket.ends_with("- -") && !formers.contains(ticket.split(' ').nth(1).unwrap())
            })
            .await;
        }
        ask(&client, "DELETE", "key=line", "line").await.expect(204);
        let mut last = largest_number(&fixture);
        for (name, waiting) in names.into_iter().zip(waiting) {
            let number = waiting.unwrap().await.unwrap().expect(201).fencing_token();
            assert!(number > last, "{name} came too early");
            last = number;
            ask(&client, "DELETE", "key=line", name).await.expect(204);
        }
    }
}

/// The offer is made to last, so that it is there when it is looked at.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_an_earlier_version_has_offered_goes_to_the_ticket_that_it_was_offered_to() {
    let offer = Regex::new(r#"(?m)^(SET \S+ "\?.*) @\S+" PX \d+$"#).unwrap();
    for version in versions() {
        let (redis, fixture) = (RedisServer::start().await, recorded(&version, FIXTURE));
        assert_eq!(offer.find_iter(&fixture).count(), 1);
        let fixture = offer.replace(&fixture, r#"$1 @+600000" PX 600000"#);
        lay_down(&redis, &fixture, Duration::ZERO).await;
        let gateway = Gateway::on_redis(&redis, &[]).await;
        let client = Client::new(gateway.address);
        ask(&client, "PUT", "key=offered&ttl=1m", "another").await.expect_problem(423, "lock-held");
        let late = tokio::spawn(wait(&client, "offered", "late"));
        has_tickets(&redis, "offered", 2, |_| true).await;
        wait(&client, "offered", "offered").await.expect(201);
        ask(&client, "DELETE", "key=offered", "offered").await.expect(204);
        late.await.unwrap().expect(201);
    }
}

/// When all leases are over, the last number is left, and nothing else; it counts also where the clock was set back.
#[tokio::test(flavor = "multi_thread")]
async fn of_locks_of_an_earlier_version_that_have_ended_the_last_number_is_left() {
    const AHEAD_US: u64 = 3_600_000_000;
    for version in versions() {
        let (redis, fixture) = (RedisServer::start().await, recorded(&version, FIXTURE));
        lay_down(&redis, &fixture, Duration::from_secs(25 * 3600)).await;
        assert_eq!(redis.keys().await, ["fencepost:{0}:fence"]);
        let run: Vec<String> = redis.command(&["HKEYS", "fencepost:{0}:fence"]).await;
        let (s, _): (u64, u64) = redis.command(&["TIME"]).await;
        let last = s * 1_000_000 + AHEAD_US;
        let _: () = redis.command(&["HSET", "fencepost:{0}:fence", &run[0], &last.to_string()]).await;
        let gateway = Gateway::on_redis(&redis, &[]).await;
        let client = Client::new(gateway.address);
        for (key, name, _) in HELD {
            ask(&client, "PATCH", &format!("key={key}&ttl=1m"), name).await.expect_problem(404, "not-held");
            let number = ask(&client, "PUT", &format!("key={key}&ttl=1m"), name).await.expect(201);
            assert!(number.fencing_token() > last, "{key}");
        }
    }
}
