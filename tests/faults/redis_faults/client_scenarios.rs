//! What clients do while their Redis stands still, and whether what they were told is true.
//!
//! Each errand has a lock of its own, so that whatever is found there afterwards is its work. Left out is the one case
//! in which a lock may stay: two requests of one token, the later of which pins what neither client was told.

use std::collections::HashMap;
use std::time::Duration;

use fencepost::lock::LeaseToken;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::{self, FuturesUnordered};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use kit::redis_server::StoredLock;
use kit::{Answer, Client, Gateway, RedisServer, eventually, fresh_token, sockets};

/// What `--store-timeout` is unless it is given, and how much later an answer may be seen on a busy machine.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);
const MARGIN: Duration = Duration::from_millis(1500);
/// From when the server goes on until nothing is left that nobody was told of.
pub(super) const CLEAN_WITHIN: Duration = Duration::from_secs(1);

const HOUR_MS: u64 = 3_600_000;

/// What a client wants while Redis stands still. All but the first begin with a lock that is held for an hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    TakeFree,
    TakeHeld,
    TakeAgain,
    Renew,
    Release,
    Look,
}

pub(super) const WISHES: [Wish; 10] = [
    Wish::TakeFree,
    Wish::TakeHeld,
    Wish::TakeFree,
    Wish::TakeAgain,
    Wish::TakeFree,
    Wish::Renew,
    Wish::TakeFree,
    Wish::Release,
    Wish::TakeFree,
    Wish::Look,
];

pub(super) struct Errand {
    client: Client,
    wish: Wish,
    key: String,
    /// The token of the holder, or the one that a free lock is asked for with.
    token: Option<String>,
    /// The number of the grant that there was before.
    number: u64,
    begins_after: Duration,
    /// When the client closes its connection, unless it is answered before; never, where it stays.
    leaves_after: Option<Duration>,
}

/// How an errand ended; without an answer, its client left.
pub(super) struct Done {
    errand: Errand,
    pub(super) answer: Option<Answer>,
    took: Duration,
}

pub(super) struct Scene {
    pub(super) redis: RedisServer,
    gateways: Vec<Gateway>,
}

impl Scene {
    pub(super) async fn new(gateways: usize, args: &[&str]) -> Self {
        let redis = RedisServer::start().await;
        let gateways = join_all((0..gateways).map(|_| Gateway::on_redis(&redis, args))).await;
        let client = Client::new(gateways[0].address);
        let token = fresh_token();
        // The server knows all scripts from here on: a late command needs no further round to take its effect.
        for (method, status) in [("PUT", 201), ("PATCH", 200), ("GET", 200), ("DELETE", 204)] {
            client.call(method, "/locks/warm").token(&token).send().await.expect(status);
        }
        Self { gateways, redis }
    }

    pub(super) fn client(&self, number: usize) -> Client {
        Client::new(self.gateways[number % self.gateways.len()].address)
    }

    /// Makes errands that begin within this time, and the locks that they need. Every other one is by a client who
    /// leaves, where `with_leavers` says so.
    pub(super) async fn errands(
        &self,
        wishes: &[Wish],
        count: usize,
        within: Duration,
        with_leavers: bool,
    ) -> Vec<Errand> {
        let clients: Vec<_> = (0..self.gateways.len()).map(|number| self.client(number)).collect();
        let errand = async |number: usize| {
            let wish = wishes[number % wishes.len()];
            let client = clients[rand::random_range(0..clients.len())].clone();
            let key = format!("{wish:?}-{number}");
            let own = rand::random::<bool>().then(fresh_token);
            let (token, number) = match wish {
                Wish::TakeFree => (own, 0),
                _ => {
                    let put = client.put(&format!("/locks/{key}?ttl=1h"));
                    let put = if let Some(own) = &own { put.token(own) } else { put };
                    let granted = put.send().await.expect(201);
                    (Some(granted.token()), granted.fencing_token())
                }
            };
            let leaves_after = (with_leavers && rand::random::<bool>())
                .then(|| Duration::from_secs(1).mul_f64(rand::random()));
            Errand {
                client,
                wish,
                key,
                token,
                number,
                begins_after: within.saturating_sub(leaves_after.unwrap_or_default()).mul_f64(rand::random()),
                leaves_after,
            }
        };
        stream::iter(0..count).map(errand).buffer_unordered(16).collect().await
    }

    /// Grants that were made for nobody and undone.
    pub(super) fn taken_back(&self) -> usize {
        let is_it = |line: &String| line.contains("released a lock whose answer could not be delivered");
        self.gateways.iter().map(|gateway| gateway.log().iter().filter(|line| is_it(line)).count()).sum()
    }

    /// Waits until every gateway has seen that those clients are gone who are.
    async fn departures_are_seen(&self) {
        let half_closed =
            || self.gateways.iter().map(|one| sockets(one.address.port(), "08").len()).sum::<usize>();
        eventually("the gateways see who has left", async || half_closed() == 0).await;
    }

    /// Lets the clients run while Redis stands still until `enough`. Returns what became of them, and the locks
    /// that there were a second after the server went on.
    pub(super) async fn stall(
        &self,
        errands: Vec<Errand>,
        enough: impl Future,
    ) -> (Vec<Done>, HashMap<String, StoredLock>) {
        self.redis.stand_still().await;
        let (stayers, leavers): (Vec<_>, Vec<_>) =
            errands.into_iter().partition(|errand| errand.leaves_after.is_none());
        let stayers = start(stayers);
        let leavers = start(leavers);
        enough.await;
        let mut done = finish(leavers).await;
        self.departures_are_seen().await;
        let resumed = Instant::now();
        self.redis.signal("CONT");
        sleep_until(resumed + CLEAN_WITHIN).await;
        let locks = self.redis.locks().await;
        done.extend(finish(stayers).await);
        (done, locks)
    }
}

fn start(errands: Vec<Errand>) -> Vec<JoinHandle<Done>> {
    errands.into_iter().map(|errand| tokio::spawn(errand.run())).collect()
}

async fn finish(tasks: Vec<JoinHandle<Done>>) -> Vec<Done> {
    let tasks: FuturesUnordered<_> = tasks.into_iter().collect();
    tasks.map(Result::unwrap).collect().await
}

impl Errand {
    async fn run(self) -> Done {
        sleep(self.begins_after).await;
        let address = format!("/locks/{}", self.key);
        let call = match self.wish {
            Wish::TakeFree | Wish::TakeHeld => self.client.put(&format!("{address}?ttl=1h")),
            Wish::TakeAgain => self.client.put(&format!("{address}?ttl=2h")),
            Wish::Renew => self.client.patch(&format!("{address}?ttl=2h")),
            Wish::Release => self.client.delete(&address),
            Wish::Look => self.client.get(&address),
        };
        let call = match &self.token {
            Some(token) if self.wish != Wish::TakeHeld => call.token(token),
            _ => call,
        };
        let begun = Instant::now();
        let answer = match self.leaves_after {
            // The future that is dropped closes its connection.
            Some(patience) => timeout(patience, call.send()).await.ok(),
            None => Some(call.send().await),
        };
        Done { errand: self, answer, took: begun.elapsed() }
    }
}

impl Done {
    /// Whether it was answered that nobody knows, or certainly nothing happened; `None` for a true answer.
    pub(super) fn failure(&self) -> Option<String> {
        let answer = self.answer.as_ref().filter(|answer| answer.status == 503)?;
        Some(answer.json()["type"].as_str().unwrap().to_owned())
    }

    pub(super) fn may_have_happened(&self) -> bool {
        self.answer.is_none() || self.failure().is_some_and(|failure| failure == "/problems/outcome-unknown")
    }

    /// Holds the answer against the lock that is there in the end.
    fn check(&self, lock: Option<&StoredLock>) {
        let Errand { wish, key, number, .. } = &self.errand;
        let told = format!(
            "{key}: {:?} {:?} after {:?}, and there is {lock:?}",
            self.answer,
            self.failure(),
            self.took
        );
        assert!(self.took < STORE_TIMEOUT + MARGIN, "too late: {told}");
        let status = self.answer.as_ref().map(|answer| answer.status);
        let true_answer = match wish {
            Wish::TakeFree => 201,
            Wish::TakeHeld => 423,
            Wish::TakeAgain | Wish::Renew | Wish::Look => 200,
            Wish::Release => 204,
        };
        match status {
            None => {}
            Some(503) => {
                let failure = self.failure().unwrap();
                assert!(
                    ["/problems/outcome-unknown", "/problems/store-unavailable"].contains(&failure.as_str()),
                    "{told}"
                );
            }
            Some(status) => assert_eq!(status, true_answer, "{told}"),
        }
        let happened = status == Some(true_answer);
        let is_as_before =
            |lock: &StoredLock| lock.number == *number && !lock.is_pinned && lock.left_ms <= HOUR_MS;
        match wish {
            Wish::TakeFree if happened => {
                let answer = self.answer.as_ref().unwrap();
                let lock = lock.unwrap_or_else(|| panic!("a grant is lost: {told}"));
                let hash = LeaseToken::parse(answer.token().as_bytes()).unwrap().hash().to_string();
                assert_eq!((lock.number, &lock.token_hash), (answer.fencing_token(), &hash), "{told}");
            }
            Wish::TakeFree => assert!(lock.is_none(), "an orphan: {told}"),
            Wish::Release if happened => assert!(lock.is_none(), "{told}"),
            Wish::Release if self.may_have_happened() => {}
            Wish::TakeAgain | Wish::Renew if happened => {
                assert!(lock.is_some_and(|lock| lock.number == *number && lock.left_ms > HOUR_MS), "{told}");
            }
            Wish::Look if happened => {
                let answer = self.answer.as_ref().unwrap();
                assert!(answer.json()["yours"] == true && answer.fencing_token() == *number, "{told}");
            }
            Wish::TakeAgain | Wish::Renew | Wish::Look if self.may_have_happened() => {
                assert!(lock.is_some_and(|lock| lock.number == *number), "{told}");
            }
            // Certainly nothing happened.
            _ => assert!(lock.is_some_and(is_as_before), "{told}"),
        }
    }
}

/// Every lock that nobody was told of. `locks` are those of one moment, and `done` may have been answered later.
fn orphans<'a>(done: &'a [Done], locks: &'a HashMap<String, StoredLock>) -> Vec<&'a str> {
    let was_told = |done: &&Done| done.answer.as_ref().is_some_and(|answer| answer.status == 201);
    let takes = done.iter().filter(|done| done.errand.wish == Wish::TakeFree);
    let untold = takes.filter(|done| !was_told(done));
    untold.map(|done| done.errand.key.as_str()).filter(|key| locks.contains_key(*key)).collect()
}

/// Nothing of a stall is left: each answer is true, and a token that was in doubt can be used.
pub(super) async fn check_all(scene: &Scene, done: &[Done], locks: &HashMap<String, StoredLock>) {
    assert_eq!(orphans(done, locks), Vec::<&str>::new(), "nobody was told of these");
    let locks = scene.redis.locks().await;
    for done in done {
        done.check(locks.get(&done.errand.key));
    }
    let largest = locks.values().map(|lock| lock.number).max().unwrap_or(0);
    let in_doubt = done.iter().filter(|done| done.errand.wish == Wish::TakeFree && done.may_have_happened());
    for Errand { client, key, token, .. } in in_doubt.map(|done| &done.errand) {
        let Some(token) = token else { continue };
        let granted = client.put(&format!("/locks/{key}?ttl=1h")).token(token).send().await.expect(201);
        assert!(granted.fencing_token() > largest);
    }
}
