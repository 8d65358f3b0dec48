//! `kill -9` in the middle of load, again and again, on one file.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::Notify;
use tokio::time::timeout;

use kit::{Answer, Client, Gateway, PATIENCE, fresh_token, seed};

const ROUNDS: usize = 50;
const CLIENTS: usize = 8;
/// About as many locks does a client hold.
const STOCK: usize = 10;
/// What all clients want, for a moment, by tokens of their own. Any other lock is asked for by one token only.
const SHARED: [&str; 3] = ["/locks/shared-1", "/locks/shared-2", "/locks/shared-3"];
const BRIEF_MS: Range<u64> = 50..500;
const LONG_MS: Range<u64> = 300_000..900_000;
/// What the rounding to milliseconds may add up to.
const ROUNDING: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Put,
    Patch,
    Delete,
}

/// A token and its lock, as far as the answers tell.
#[derive(Debug)]
struct Claim {
    path: String,
    /// `None` where the server makes it and has not told it.
    token: Option<String>,
    ttl_ms: u64,
    /// The number of the grant; `None` until it is told.
    number: Option<u64>,
    /// The lease ends between these two.
    ends: (Instant, Instant),
    is_released: bool,
    /// What was sent and not answered.
    in_doubt: Option<Op>,
}

/// One process on the file, as all of its clients see it.
struct Run {
    client: Client,
    /// Every number that anybody was told, by earlier processes too.
    numbers: Mutex<BTreeSet<u64>>,
    answers: AtomicUsize,
    /// With so many answers the load is in its middle.
    middle: usize,
    is_middle: Notify,
}

impl Claim {
    /// One of the locks that a client may wish for.
    fn choose(choices: &mut StdRng) -> Self {
        let is_shared = choices.random_bool(0.25);
        let is_brief = is_shared || choices.random_bool(0.2);
        let own = (is_shared || choices.random_bool(0.5)).then(fresh_token);
        let now = Instant::now();
        Self {
            path: match is_shared {
                true => SHARED[choices.random_range(0..SHARED.len())].to_owned(),
                false => format!("/locks/{}", fresh_token()),
            },
            token: own,
            ttl_ms: choices.random_range(if is_brief { BRIEF_MS } else { LONG_MS }),
            number: None,
            ends: (now, now),
            is_released: false,
            in_doubt: None,
        }
    }

    fn is_shared(&self) -> bool {
        SHARED.contains(&self.path.as_str())
    }

    /// Whether it must be held at `now`.
    fn is_surely_held(&self, now: Instant) -> bool {
        self.number.is_some() && !self.is_released && now + ROUNDING < self.ends.0
    }

    /// Whether it cannot be held at `now`.
    fn is_surely_over(&self, now: Instant) -> bool {
        self.is_released || now > self.ends.1 + ROUNDING
    }

    /// Asks once, and holds the answer against what is known. `None` if there was no answer.
    async fn send(&mut self, op: Op, run: &Run) -> Option<Answer> {
        let with_ttl = format!("{}?ttl={}ms", self.path, self.ttl_ms);
        let mut call = match op {
            Op::Put => run.client.put(&with_ttl),
            Op::Patch => run.client.patch(&with_ttl),
            Op::Delete => run.client.delete(&self.path),
        };
        if let Some(token) = &self.token {
            call = call.token(token);
        }
        let ttl = Duration::from_millis(self.ttl_ms);
        let told_before = run.numbers.lock().unwrap().last().copied();
        let sent_at = Instant::now();
        let was_over = self.is_surely_over(sent_at);
        let answer = call.try_send().await;
        let is_held = self.is_surely_held(Instant::now());
        if op != Op::Delete {
            self.ends.1 = self.ends.1.max(Instant::now() + ttl);
        }
        self.in_doubt = answer.is_err().then_some(op);
        let answer = answer.ok()?;
        match (op, answer.status) {
            (Op::Put, 201) => {
                assert!(!is_held, "granted twice: {answer:?} {self:?}");
                self.token = Some(answer.token());
                self.number = None;
                let number = self.learn(&answer, run);
                assert!(Some(number) > told_before, "{told_before:?} came before {answer:?}");
                self.ends.0 = sent_at + ttl;
            }
            (Op::Put | Op::Patch, 200) => {
                assert!(!was_over, "it lives longer than its ttl: {answer:?} {self:?}");
                self.learn(&answer, run);
                self.ends.0 = self.ends.0.max(sent_at + ttl);
            }
            (Op::Delete, 204) => self.is_released = true,
            (Op::Put, 423) => assert!(self.is_shared() && !is_held, "who holds it? {answer:?} {self:?}"),
            (Op::Put, 409) | (Op::Patch | Op::Delete, 404 | 409) => {
                assert!(!is_held, "it is lost: {answer:?} {self:?}");
            }
            // On a slow disk a brief lease is over before anybody can be told of it.
            (Op::Put | Op::Patch, 503) if sent_at.elapsed() >= ttl => {}
            _ => panic!("{op:?}: {answer:?} {self:?}"),
        }
        Some(answer)
    }

    /// Learns the number of a grant, or finds it as it was told. No two grants have the same.
    fn learn(&mut self, answer: &Answer, run: &Run) -> u64 {
        let number = answer.fencing_token();
        match self.number.replace(number) {
            Some(told) => assert_eq!(number, told, "{self:?}"),
            None => assert!(run.numbers.lock().unwrap().insert(number), "twice: {answer:?} {self:?}"),
        }
        number
    }

    /// Looks at the lock and holds that against what is known. Says whether this token holds it; without a token, whether
    /// anybody does.
    async fn look(&mut self, run: &Run) -> bool {
        let sent_at = Instant::now();
        let call = run.client.get(&self.path);
        let call = match &self.token {
            Some(token) => call.token(token),
            None => call,
        };
        let answer = call.send().await;
        let seen_at = Instant::now();
        if answer.status == 404 || answer.json()["yours"] == false {
            let may_be_gone = self.in_doubt == Some(Op::Delete) || !self.is_surely_held(seen_at);
            assert!(may_be_gone, "it is lost: {answer:?} {self:?}");
            return false;
        }
        assert!(!self.is_surely_over(sent_at), "it is held beyond its end: {answer:?} {self:?}");
        let left = Duration::from_millis(answer.json()["expires_in_ms"].as_u64().unwrap());
        assert!(sent_at + left <= self.ends.1 + ROUNDING, "its lease has grown: {answer:?} {self:?}");
        // The time since the command was sent to the store is taken off.
        let told_at = seen_at + (seen_at - sent_at);
        assert!(told_at + left + ROUNDING >= self.ends.0, "its lease has shrunk: {answer:?} {self:?}");
        self.ends.0 = self.ends.0.max(sent_at + left);
        self.learn(&answer, run);
        true
    }

    /// After a restart: what is known is still so, and what is in doubt is settled by asking again. Says whether that
    /// had been done, where it can be told.
    async fn check(&mut self, run: &Run) -> Option<bool> {
        let was_granted = self.number.is_some();
        let is_held = self.look(run).await;
        let was_done = match self.in_doubt {
            Some(Op::Put) if !was_granted => Some(is_held),
            Some(Op::Delete) if Instant::now() < self.ends.0 => Some(!is_held),
            _ => None,
        };
        let Some(token) = &self.token else {
            // The token was never told. Nobody else asks for that lock, and it ends by itself.
            assert!(!self.is_shared());
            return was_done;
        };
        let is_own = !token.starts_with('~');
        match self.in_doubt {
            Some(Op::Delete) => {
                // Of the server's tokens no mark is kept: repeated, a release that was done finds nothing.
                self.is_released = !is_own && !is_held;
                self.send(Op::Delete, run).await.expect("no answer");
                self.is_released = true;
            }
            Some(op) => drop(self.send(op, run).await.expect("no answer")),
            None => {}
        }
        if self.is_released {
            self.look(run).await;
            if is_own {
                self.send(Op::Put, run).await.expect("no answer").expect_problem(409, "token-released");
            }
        }
        was_done
    }

    fn is_in_use(&self) -> bool {
        self.number.is_some() && self.token.is_some() && !self.is_surely_over(Instant::now())
    }
}

/// Works as one client until the process is gone. Returns what may be held then, and what it has released.
async fn work(run: Arc<Run>, mut stock: Vec<Claim>, mut choices: StdRng) -> Vec<Claim> {
    let mut released = Vec::new();
    loop {
        let (mut claim, op) = if choices.random_range(0..2 * STOCK) >= stock.len() {
            (Claim::choose(&mut choices), Op::Put)
        } else {
            let claim = stock.swap_remove(choices.random_range(0..stock.len()));
            match choices.random_range(0..4) {
                // Of a brief one nobody could tell which grant an unanswered request had met.
                0 if !BRIEF_MS.contains(&claim.ttl_ms) => (claim, Op::Put),
                0 | 1 => (claim, Op::Patch),
                _ => (claim, Op::Delete),
            }
        };
        let Some(answer) = claim.send(op, &run).await else {
            stock.push(claim);
            stock.extend(released);
            return stock;
        };
        match answer.status {
            200 | 201 => stock.push(claim),
            204 => released.push(claim),
            // It has ended by itself, or never was.
            _ => {}
        }
        if run.answers.fetch_add(1, Ordering::SeqCst) == run.middle {
            run.is_middle.notify_one();
        }
    }
}

/// Whoever holds one of the shared locks is one of us.
async fn holders_are_known(run: &Run, claims: &[Claim]) {
    for path in SHARED {
        let look = run.client.get(path).send().await;
        if look.status != 404 {
            let number = look.fencing_token();
            let is_ours = |claim: &Claim| claim.path == path && claim.number == Some(number);
            assert!(claims.iter().any(is_ours), "who holds it? {look:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_kills_in_the_middle_of_load_lose_nothing_that_was_answered() {
    let mut choices = StdRng::seed_from_u64(seed());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    let (mut claims, mut numbers, mut checked, mut settled) = (Vec::new(), BTreeSet::new(), 0, Vec::new());
    for round in 0..=ROUNDS {
        // Slowness is no fault here.
        let mut gateway = Gateway::on_file(&file, &["--store-timeout", "20s"]).await;
        let run = Arc::new(Run {
            client: Client::new(gateway.address),
            numbers: Mutex::new(numbers),
            answers: AtomicUsize::new(0),
            middle: choices.random_range(30..200),
            is_middle: Notify::new(),
        });
        checked += claims.len();
        settled.extend(join_all(claims.iter_mut().map(|claim: &mut Claim| claim.check(&run))).await);
        holders_are_known(&run, &claims).await;
        claims.retain(Claim::is_in_use);
        if round == ROUNDS {
            break;
        }
        let mut stocks: Vec<Vec<Claim>> = (0..CLIENTS).map(|_| Vec::new()).collect();
        for (number, claim) in claims.drain(..).enumerate() {
            stocks[number % CLIENTS].push(claim);
        }
        let workers: Vec<_> = stocks
            .into_iter()
            .map(|stock| tokio::spawn(work(run.clone(), stock, StdRng::seed_from_u64(choices.random()))))
            .collect();
        timeout(PATIENCE, run.is_middle.notified()).await.expect("the load stands still");
        // Anywhere between two commits, or within one: nothing depends on where.
        std::thread::sleep(Duration::from_micros(choices.random_range(0..3_000)));
        gateway.kill();
        for worker in workers {
            claims.extend(worker.await.unwrap());
        }
        numbers = std::mem::take(&mut run.numbers.lock().unwrap());
    }
    let count = |fate: bool| settled.iter().filter(|settled| **settled == Some(fate)).count();
    let (done, undone) = (count(true), count(false));
    println!(
        "{checked} claims were true; of what was under way at a kill {done} were done, {undone} were not"
    );
    assert!(done > 0 && undone > 0, "the kills missed the load: {done} done, {undone} undone");
}
