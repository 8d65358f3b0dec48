//! A thousand who wait for one lock: they are served in the order in which they came, and what each of them costs does
//! not depend on how many there are.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use kit::{Client, Gateway, PATIENCE, RedisServer, cpu_time, fresh_token};

const WAITERS: usize = 1_000;
const HOLDING: Duration = Duration::from_millis(1);
/// They share connections, so that the limit of open files is no limit of the test; a gateway allows 250.
const WAITERS_PER_CONNECTION: usize = 100;
/// The longest wait that a gateway allows, and time for the answer.
const LONGEST: Duration = Duration::from_secs(80);

/// Whoever is kept from taking an offer for so long is passed over, and rightly so: it says nothing about order.
const OFFER: Duration = Duration::from_millis(800);
/// How often a machine may stand still for that long before it is the test that fails.
const MOST_RUNS: usize = 3;

/// One script releases and offers, and one takes the offer. The rest is for heartbeats, which come with time and not
/// with grants, and for the looks that they cause.
const MOST_SCRIPTS_PER_GRANT: f64 = 2.5;
/// The grants over which the commands are counted, at the head of the line and at its end.
const COUNTED: usize = 200;

/// What a gateway sends while nothing happens: 5 heartbeats in 3 s, and 6 commands a second by which it makes sure of
/// the server. The rest is for a machine that catches up.
const MOST_COMMANDS_PER_S: f64 = 12.0;
const IDLE_WAITERS: usize = 200;
const IDLE: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_waiters_are_served_in_order_by_the_embedded_store() {
    let gateway = Gateway::embedded(&[]).await;
    serve_in_order(&[gateway], None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_waiters_are_served_in_order_by_two_gateways() {
    let redis = Arc::new(RedisServer::start().await);
    let gateways = [Gateway::on_redis(&redis, &[]).await, Gateway::on_redis(&redis, &[]).await];
    serve_in_order(&gateways, Some(redis.clone())).await;

    let left = redis.keys().await;
    let is_of_a_line =
        |key: &String| ["line", "seats", "away"].iter().any(|kind| key.contains(&format!(":{kind}:")));
    assert!(!left.iter().any(is_of_a_line), "something of the line is left: {left:?}");
}

/// Waiting costs heartbeats, one for each gateway, and nothing for each waiter.
#[tokio::test(flavor = "multi_thread")]
async fn idle_waiters_cost_redis_no_more_than_heartbeats() {
    let redis = RedisServer::start().await;
    let gateways = [Gateway::on_redis(&redis, &[]).await, Gateway::on_redis(&redis, &[]).await];
    let mut line = Line::behind_a_holder(&gateways).await;
    let mut calls_per_s = Vec::new();
    for waiters in [gateways.len(), IDLE_WAITERS] {
        while line.waiting.len() < waiters {
            line.join(wait_for_ever).await;
        }
        let (before, started) = (redis.all_calls().await, Instant::now());
        // Nothing is waited for: this is how long is counted.
        tokio::time::sleep(IDLE).await;
        let calls = difference(&redis.all_calls().await, &before);
        let per_s = |calls: u64| calls as f64 / started.elapsed().as_secs_f64() / gateways.len() as f64;
        // What is called from clients only; the rest are called by scripts. One of each `info` is the test's own.
        let sent = ["evalsha", "eval", "info", "script|load"].iter().filter_map(|name| calls.get(*name));
        let (sent, all) = (per_s(sent.sum()), per_s(calls.values().sum()));
        println!(
            "{waiters} idle waiters: a gateway sends {sent:.1} commands/s, {all:.1}/s with those in scripts"
        );
        assert!(sent <= MOST_COMMANDS_PER_S, "{waiters} idle waiters: {sent:.1} commands/s: {calls:?}");
        calls_per_s.push(all);
    }
    let (few, many) = (calls_per_s[0], calls_per_s[1]);
    assert!(many <= 1.5 * few + 5.0, "{few:.1} commands/s with 2 waiters, {many:.1} with {IDLE_WAITERS}");
    assert!(line.waiting.try_join_next().is_none(), "somebody did not wait");

    let channels: Vec<String> = redis.command(&["PUBSUB", "SHARDCHANNELS"]).await;
    assert_eq!(channels.len(), gateways.len(), "{channels:?}");
    let clients: String = redis.command(&["CLIENT", "LIST"]).await;
    let field = |client: &str, name: &str| -> u64 {
        let value = client.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        value.unwrap().parse().unwrap()
    };
    let subscriptions = clients.lines().map(|client| field(client, "sub") + field(client, "ssub"));
    let subscriptions: Vec<u64> = subscriptions.filter(|count| *count > 0).collect();
    // One for its waiters, and one for gateways at which somebody watches.
    assert_eq!(subscriptions, vec![2; gateways.len()], "{clients}");
}

/// What became of one who waited.
struct Grant {
    /// It came as this one, from 0 on.
    number: usize,
    fencing_token: u64,
    granted: Instant,
    released: Instant,
}

/// How often each command was called.
type Calls = HashMap<String, u64>;

/// Those who wait for one lock, and its holder.
struct Line {
    addresses: Vec<SocketAddr>,
    holder: Client,
    token: String,
    /// The clients that further waiters use, a connection each.
    clients: Vec<Client>,
    waiting: JoinSet<Grant>,
}

impl Line {
    async fn behind_a_holder(gateways: &[Gateway]) -> Self {
        let addresses: Vec<_> = gateways.iter().map(|gateway| gateway.address).collect();
        let holder = Client::new(addresses[0]);
        let token = holder.put("/locks/crowd?ttl=2m").send().await.expect(201).token();
        Self { addresses, holder, token, clients: Vec::new(), waiting: JoinSet::new() }
    }

    /// Has one more wait, at each gateway in turn, and returns when it stands in the line.
    async fn join<F>(&mut self, wait: impl FnOnce(usize, Client) -> F)
    where
        F: Future<Output = Grant> + Send + 'static,
    {
        let (number, gateways) = (self.waiting.len(), self.addresses.len());
        if number.is_multiple_of(WAITERS_PER_CONNECTION * gateways) {
            self.clients = self.addresses.iter().map(|address| Client::h2c(*address)).collect();
        }
        self.waiting.spawn(wait(number, self.clients[number % gateways].clone()));
        let give_up = Instant::now() + PATIENCE;
        loop {
            let seen = self.holder.get("/locks/crowd").send().await.expect(200).json();
            if seen["waiters"] == number + 1 {
                return;
            }
            assert!(Instant::now() < give_up, "waiter {number} does not appear: {seen}");
        }
    }
}

async fn wait_for_ever(_: usize, client: Client) -> Grant {
    let answer = client.put("/locks/crowd?wait=60s").within(LONGEST).send().await;
    panic!("it was to wait: {answer:?}");
}

async fn serve_in_order(gateways: &[Gateway], redis: Option<Arc<RedisServer>>) {
    for _ in 0..MOST_RUNS {
        let (grants, counts) = serve_a_thousand(gateways, redis.clone()).await;
        let hand_offs = grants.windows(2).map(|pair| pair[1].granted - pair[0].released);
        let longest = hand_offs.max().unwrap();
        println!("the longest hand-off: {longest:.1?}");
        if longest >= OFFER {
            continue;
        }
        let overtaking = grants.windows(2).map(|pair| (pair[0].number, pair[1].number)).find(|(a, b)| a > b);
        assert_eq!(overtaking, None, "the first of these was served before the second, and came after it");
        if redis.is_some() {
            judge_commands(&counts);
        }
        return;
    }
    panic!("no run of {MOST_RUNS} without a hand-off of more than {OFFER:?}");
}

/// Has a thousand stand in line, and each hold the lock for a moment. Returns who was granted it, in the order of
/// their fencing tokens, and what Redis had been asked when some of them held it.
async fn serve_a_thousand(
    gateways: &[Gateway],
    redis: Option<Arc<RedisServer>>,
) -> (Vec<Grant>, HashMap<usize, Calls>) {
    let mut line = Line::behind_a_holder(gateways).await;
    let started = Instant::now();
    let (inside, counts) = (Arc::new(AtomicI64::new(0)), Arc::new(Mutex::new(HashMap::new())));
    for _ in 0..WAITERS {
        let (inside, counts, redis) = (inside.clone(), counts.clone(), redis.clone());
        line.join(|number, client| async move {
            let put = client.put("/locks/crowd?ttl=30s&wait=60s").within(LONGEST);
            // Half of those at each gateway choose their tokens, half let the server do it.
            let put = if number % 4 < 2 { put.token(&fresh_token()) } else { put };
            let answer = put.send().await.expect(201);
            let granted = Instant::now();
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders at once");
            tokio::time::sleep(HOLDING).await;
            if let Some(redis) = redis
                && [0, COUNTED, WAITERS - 1 - COUNTED, WAITERS - 1].contains(&number)
            {
                let calls = redis.all_calls().await;
                counts.lock().unwrap().insert(number, calls);
            }
            inside.fetch_sub(1, Ordering::SeqCst);
            let released = Instant::now();
            client.delete("/locks/crowd").token(&answer.token()).send().await.expect(204);
            Grant { number, fencing_token: answer.fencing_token(), granted, released }
        })
        .await;
    }
    let joining = started.elapsed();
    let cpu = || -> Duration { gateways.iter().map(|gateway| cpu_time(gateway.pid())).sum() };
    let redis_cpu = || redis.as_ref().map(|redis| cpu_time(redis.pid()));
    let (cpu_before, redis_cpu_before, started) = (cpu(), redis_cpu(), Instant::now());

    line.holder.delete("/locks/crowd").token(&line.token).send().await.expect(204);
    let mut grants = line.waiting.join_all().await;

    let (elapsed, cpu) = (started.elapsed(), cpu() - cpu_before);
    let us_per_grant = |time: Duration| time.as_secs_f64() * 1e6 / WAITERS as f64;
    println!("{WAITERS} waiters joined in {joining:.1?}, each after the one before was seen in the line");
    println!("{:.0} grants/s, each held for {HOLDING:?}", WAITERS as f64 / elapsed.as_secs_f64());
    println!("CPU per grant: {:.0} µs of {} gateway(s)", us_per_grant(cpu), gateways.len());
    if let Some(time) = redis_cpu().zip(redis_cpu_before).map(|(now, before)| now - before) {
        println!("CPU per grant: {:.0} µs of Redis", us_per_grant(time));
    }

    let after = line.holder.get("/locks/crowd").send().await.expect(404).json();
    assert_eq!(after["waiters"], 0, "{after}");
    assert_eq!(grants.len(), WAITERS);
    grants.sort_unstable_by_key(|grant| grant.fencing_token);
    let counts = std::mem::take(&mut *counts.lock().unwrap());
    (grants, counts)
}

/// Each count was taken by the waiter of that number while it held the lock.
fn judge_commands(counts: &HashMap<usize, Calls>) {
    let per_grant = |from: usize, to: usize| {
        let calls = difference(&counts[&to], &counts[&from]);
        let of = |calls: u64| calls as f64 / (to - from) as f64;
        let scripts = of(calls["evalsha"]);
        let all = of(calls.values().sum());
        let (longest, shortest) = (WAITERS - 1 - from, WAITERS - 1 - to);
        println!(
            "Redis: {scripts:.2} scripts per grant, {all:.1} commands in all, with {longest} to {shortest} in line"
        );
        assert!(scripts <= MOST_SCRIPTS_PER_GRANT, "{scripts:.2} scripts per grant");
        all
    };
    per_grant(0, WAITERS - 1);
    let (long, short) = (per_grant(0, COUNTED), per_grant(WAITERS - 1 - COUNTED, WAITERS - 1));
    assert!(long <= 1.5 * short, "{long:.1} commands per grant in a long line, {short:.1} in a short one");
}

fn difference(after: &Calls, before: &Calls) -> Calls {
    after.iter().map(|(name, count)| (name.clone(), count - before.get(name).unwrap_or(&0))).collect()
}
