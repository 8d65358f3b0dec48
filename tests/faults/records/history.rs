//! Many workers at random, through a Redis that is killed, emptied, or loses what it had; and whether all that they were told can
//! be true together.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::random_range;
use tokio::time::{Instant, sleep};

use super::{ROOM, told};
use kit::{Answer, Client, Gateway, RedisServer, fresh_token};

const CLIENTS: usize = 8;
const BLOWS: usize = 6;
/// How long one key is new, and how many of the keys before are asked for again.
const KEY_LASTS: Duration = Duration::from_millis(100);
const KEYS_AGAIN: u64 = 10;
const BETWEEN_BLOWS: Duration = Duration::from_millis(600);

/// What one client was told of one key.
#[derive(Clone, Debug)]
struct Told {
    key: u64,
    token: String,
    number: u64,
    what: What,
    asked: Instant,
    answered: Instant,
}

#[derive(Clone, Debug, PartialEq)]
enum What {
    Begun { earlier: u64 },
    LeftClean,
    Stored,
    Read { body: String },
}

#[derive(Default)]
struct History {
    told: Mutex<Vec<Told>>,
    /// When data was lost, from the moment before to the moment after.
    losses: Mutex<Vec<(Instant, Instant)>>,
}

/// The result of one worker, by which it is known.
fn result_of(token: &str, number: u64) -> String {
    format!("{token} {number}")
}

struct Person {
    client: Client,
    history: Arc<History>,
    key: u64,
    token: String,
}

impl Person {
    fn address(&self) -> String {
        format!("/once/history-{}", self.key)
    }

    fn note(&self, asked: Instant, number: u64, what: What) {
        let (key, token, answered) = (self.key, self.token.clone(), Instant::now());
        self.history.told.lock().unwrap().push(Told { key, token, number, what, asked, answered });
    }

    /// Asks to begin; returns the number if this is the worker now.
    async fn begin(&self) -> Option<u64> {
        let asked = Instant::now();
        let wait = random_range(0..2) * 300;
        let query = format!("ttl={}ms&wait={wait}ms", random_range(300..1_500));
        let address = format!("{}?{query}", self.address());
        let answer = told(|| self.client.put(&address).token(&self.token)).await;
        let number = |answer: &Answer| answer.header("Fencing-Token").unwrap().parse().unwrap();
        match answer.status {
            201 => {
                let earlier = answer.header("Once-Earlier").unwrap().parse().unwrap();
                self.note(asked, number(&answer), What::Begun { earlier });
                Some(number(&answer))
            }
            200 => {
                let body = String::from_utf8(answer.body.to_vec()).unwrap();
                self.note(asked, number(&answer), What::Read { body });
                None
            }
            _ => {
                answer.expect_problem(423, "once-in-progress");
                None
            }
        }
    }

    async fn works(&self) {
        let Some(mut number) = self.begin().await else { return };
        sleep(Duration::from_millis(random_range(0..40))).await;
        match random_range(0..10) {
            // It crashes.
            0 => return,
            left @ (1 | 2) => {
                let (asked, is_clean) = (Instant::now(), left == 1);
                let address = format!("{}?clean={is_clean}", self.address());
                let answer = told(|| self.client.delete(&address).token(&self.token)).await;
                assert!([204, 404, 409].contains(&answer.status), "{}", answer.json());
                if is_clean {
                    self.note(asked, number, What::LeftClean);
                }
                return;
            }
            _ => {}
        }
        loop {
            let (asked, address, result) = (Instant::now(), self.address(), result_of(&self.token, number));
            let answer = told(|| self.client.post(&address).token(&self.token).body(result.clone())).await;
            match answer.status {
                200 => {
                    assert_eq!(answer.fencing_token(), number);
                    self.note(asked, number, What::Stored);
                    return;
                }
                409 => {
                    let superseded = answer.expect_problem(409, "superseded").json();
                    assert!(superseded["fencing_token"].as_u64().unwrap() > number, "{superseded}");
                    return;
                }
                _ => drop(answer.expect_problem(404, "not-begun")),
            }
            // It has a result in hand.
            let Some(again) = self.begin().await else { return };
            number = again;
        }
    }
}

async fn works_until(
    is_over: Arc<AtomicBool>,
    clients: [Client; 2],
    history: Arc<History>,
    started: Instant,
) {
    while !is_over.load(Ordering::Relaxed) {
        let newest = started.elapsed().as_millis() / KEY_LASTS.as_millis();
        let key = u64::try_from(newest).unwrap().saturating_sub(random_range(0..KEYS_AGAIN));
        let client = clients[random_range(0..2)].clone();
        Person { client, history: history.clone(), key, token: fresh_token() }.works().await;
        sleep(Duration::from_millis(random_range(0..10))).await;
    }
}

impl History {
    /// Whether data may have been lost after one thing was asked for and before another was answered.
    fn has_lost(&self, after: &Told, before: &Told) -> bool {
        let losses = self.losses.lock().unwrap();
        losses.iter().any(|(begun, ended)| *begun <= before.answered && *ended >= after.asked)
    }

    fn judge(&self) {
        let all = self.told.lock().unwrap().clone();
        let mut by_key: HashMap<u64, Vec<Told>> = HashMap::new();
        for told in all {
            by_key.entry(told.key).or_default().push(told);
        }
        for told in by_key.values_mut() {
            told.sort_by_key(|told| told.asked);
            self.judge_key(told);
        }
    }

    fn judge_key(&self, all: &[Told]) {
        let begun = || all.iter().filter(|told| matches!(told.what, What::Begun { .. }));
        let done = || all.iter().filter(|told| matches!(told.what, What::Stored | What::Read { .. }));
        let left_clean: HashSet<_> =
            all.iter().filter(|told| told.what == What::LeftClean).map(|told| &told.token).collect();
        let mut owners = HashMap::new();
        for told in begun() {
            let owner = owners.entry(told.number).or_insert(&told.token);
            assert_eq!(*owner, &told.token, "two have one number: {all:#?}");
            let before = begun().filter(|other| other.answered < told.asked && other.token != told.token);
            for other in before {
                assert!(other.number < told.number, "{} after {}: {all:#?}", told.number, other.number);
                let is_forgotten = told.what == What::Begun { earlier: 0 };
                let may_have_worked = !left_clean.contains(&other.token);
                assert!(
                    !is_forgotten || !may_have_worked || self.has_lost(other, told),
                    "{} was told of nobody, after {}: {all:#?}",
                    told.number,
                    other.number
                );
            }
        }
        for told in done() {
            if let What::Read { body } = &told.what {
                // A worker may have been told nothing, as the server forgot it: then its token is in no list.
                let (token, number) = body.split_once(' ').unwrap();
                assert_eq!(number.parse(), Ok(told.number), "the result of another: {all:#?}");
                assert!(owners.get(&told.number).is_none_or(|owner| *owner == token), "{all:#?}");
            }
            for other in done() {
                let is_later = told.number > other.number;
                assert!(
                    !is_later || self.has_lost(other, told),
                    "{} and {} have both a result: {all:#?}",
                    other.number,
                    told.number
                );
                let goes_back =
                    is_later && told.answered < other.asked && matches!(other.what, What::Read { .. });
                assert!(!goes_back, "{} was read after {}: {all:#?}", other.number, told.number);
            }
        }
    }

    fn count(&self, is_such: fn(&What) -> bool) -> usize {
        self.told.lock().unwrap().iter().filter(|told| is_such(&told.what)).count()
    }
}

#[derive(Clone, Copy, Debug)]
enum Blow {
    Kill,
    Flush,
    KillAndLose,
}

async fn holds_through(blows: &[Blow]) {
    let mut redis = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let gateways = [Gateway::on_redis(&redis, &ROOM).await, Gateway::on_redis(&redis, &ROOM).await];
    let clients = gateways.each_ref().map(|gateway| Client::new(gateway.address));
    let (history, is_over) = (Arc::new(History::default()), Arc::new(AtomicBool::new(false)));
    let started = Instant::now();
    let workers: Vec<_> = (0..CLIENTS)
        .map(|_| tokio::spawn(works_until(is_over.clone(), clients.clone(), history.clone(), started)))
        .collect();
    for _ in 0..BLOWS {
        sleep(BETWEEN_BLOWS).await;
        let (blow, begun) = (blows[random_range(0..blows.len())], Instant::now());
        match blow {
            Blow::Kill => redis.restart().await,
            Blow::Flush => redis.command(&["FLUSHALL"]).await,
            Blow::KillAndLose => redis.restart_empty().await,
        }
        if !matches!(blow, Blow::Kill) {
            history.losses.lock().unwrap().push((begun, Instant::now()));
        }
    }
    sleep(BETWEEN_BLOWS).await;
    is_over.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.unwrap();
    }
    let begun = history.count(|what| matches!(what, What::Begun { .. }));
    let stored = history.count(|what| *what == What::Stored);
    let read = history.count(|what| matches!(what, What::Read { .. }));
    println!("{blows:?}: {begun} were begun, {stored} stored, {read} read");
    assert!(begun > 20 && stored > 10 && read > 20, "{begun}, {stored}, {read}");
    history.judge();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_workers_are_told_can_be_true_together_though_redis_is_killed() {
    holds_through(&[Blow::Kill]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_workers_are_told_can_be_true_together_though_redis_loses_its_data() {
    holds_through(&[Blow::Kill, Blow::Flush, Blow::KillAndLose]).await;
}
