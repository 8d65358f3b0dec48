//! What becomes of records when the server that keeps them ends, forgets or is replaced, or a gateway is killed: at
//! every step of a piece of work, clients are told what the contract says of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use kit::http::Call;
use kit::{Answer, Client, PATIENCE, fresh_token};

mod failover;
mod history;
mod killed_gateways;
mod redis;

/// A server keeps no records without a bound for them.
const ROOM: [&str; 2] = ["--once-memory", "1073741824"];
/// Longer than any of the faults lasts.
const TTL: &str = "ttl=5m";

/// Sends a request again, as clients do, until the gateway knows what became of it.
async fn told(request: impl Fn() -> Call) -> Answer {
    let give_up = Instant::now() + 2 * PATIENCE;
    loop {
        match request().try_send().await {
            Ok(answer) if answer.status != 503 => return answer,
            not_known => assert!(Instant::now() < give_up, "{not_known:?}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// One client's piece of work.
#[derive(Clone)]
struct Work {
    client: Client,
    address: String,
    token: String,
}

impl Work {
    fn new(client: &Client, key: &str) -> Self {
        Self { client: client.clone(), address: format!("/once/{key}"), token: fresh_token() }
    }

    /// The same work of another client.
    fn of_another(&self, client: &Client) -> Self {
        Self { client: client.clone(), address: self.address.clone(), token: fresh_token() }
    }

    async fn begin(&self, query: &str) -> Answer {
        let address = format!("{}?{TTL}&{query}", self.address);
        told(|| self.client.put(&address).token(&self.token).within(4 * PATIENCE)).await
    }

    async fn store(&self, result: &str) -> Answer {
        told(|| self.client.post(&self.address).token(&self.token).body(result.to_owned())).await
    }

    /// Begins it as the first one of whom anybody knows.
    async fn begins_anew(&self) -> u64 {
        let begun = self.begin("").await.expect(201);
        assert_eq!((begun.header("Once"), begun.header("Once-Earlier")), (Some("begun"), Some("0")));
        begun.fencing_token()
    }

    /// Another asks, and gets this result of this worker.
    async fn is_done(&self, result: &str, number: u64) {
        let read = self.of_another(&self.client).begin("").await.expect(200);
        let told: u64 = read.header("Fencing-Token").unwrap().parse().unwrap();
        assert_eq!((read.body, told), (result.to_owned().into(), number));
    }
}

/// Asks the same again and again, through all that happens meanwhile.
struct Hammer {
    is_over: Arc<AtomicBool>,
    answers: JoinHandle<Vec<Answer>>,
}

impl Hammer {
    fn start<A>(send: impl Fn() -> A + Send + Sync + 'static) -> Self
    where
        A: Future<Output = Answer> + Send,
    {
        let is_over = Arc::new(AtomicBool::new(false));
        let answers = tokio::spawn({
            let is_over = is_over.clone();
            async move {
                let mut answers = Vec::new();
                // The last one is asked when it is over.
                loop {
                    let is_last = is_over.load(Ordering::Relaxed);
                    answers.push(send().await);
                    if is_last {
                        return answers;
                    }
                    sleep(Duration::from_millis(5)).await;
                }
            }
        });
        Self { is_over, answers }
    }

    async fn end(self) -> Vec<Answer> {
        self.is_over.store(true, Ordering::Relaxed);
        self.answers.await.unwrap()
    }
}

/// Pieces of work that are caught by a fault, each at another step.
struct Caught {
    /// Somebody is at it, and nobody else wants it.
    working: (Work, u64),
    /// Somebody is at it, and somebody else waits at the other gateway.
    waited_for: (Work, u64),
    waits: (Work, JoinHandle<Answer>),
    /// It is done.
    done: (Work, u64),
}

/// Pieces of work that are asked for, and stored, while the fault happens.
struct Asked {
    beginning: (Work, Hammer),
    posting: (Work, u64, Hammer),
}

impl Caught {
    async fn at(clients: &[Client; 2], key: impl Fn(&str) -> String) -> Self {
        let [here, there] = clients;
        let begun = async |name: &str| {
            let work = Work::new(here, &key(name));
            let number = work.begins_anew().await;
            (work, number)
        };
        let (working, waited_for, done) =
            (begun("working").await, begun("waited-for").await, begun("done").await);
        done.0.store("before").await.expect(200);
        let waits = waited_for.0.of_another(there);
        let waiting = tokio::spawn({
            let waits = waits.clone();
            async move { waits.begin("wait=60s").await }
        });
        Self { working, waited_for, waits: (waits, waiting), done }
    }

    /// Nothing was lost: everything goes on where it was.
    async fn goes_on(self) {
        let (work, number) = self.working;
        let repeated = work.begin("").await.expect(201);
        assert_eq!((repeated.header("Once"), repeated.fencing_token()), (Some("continued"), number));
        work.store("after").await.expect(200);
        work.is_done("after", number).await;

        let (work, number) = self.waited_for;
        work.store("after").await.expect(200);
        assert_eq!(self.waits.1.await.unwrap().expect(200).body, "after");
        work.is_done("after", number).await;

        let (work, number) = self.done;
        work.is_done("before", number).await;
        work.store("before").await.expect(200);
        work.store("another").await.expect_problem(409, "result-differs");
    }

    /// All of it was lost: whoever did it begins once more, with a larger number, or hears of another who has.
    async fn begins_again(self) {
        let (work, before) = self.working;
        work.store("after").await.expect_problem(404, "not-begun");
        let again = work.begins_anew().await;
        assert!(again > before, "{again} after {before}");
        work.store("after").await.expect(200);
        work.is_done("after", again).await;

        // Who waits finds out by itself, and does the work.
        let (work, before) = self.waited_for;
        let (other, waiting) = self.waits;
        let begun = waiting.await.unwrap().expect(201);
        let number = begun.fencing_token();
        assert!(number > before, "{number} after {before}");
        let superseded = work.store("after").await.expect_problem(409, "superseded").json();
        assert_eq!(
            (superseded["fencing_token"].as_u64(), &superseded["done"]),
            (Some(number), &false.into())
        );
        other.store("of the other").await.expect(200);
        work.is_done("of the other", number).await;
        let superseded = work.store("after").await.expect_problem(409, "superseded").json();
        assert_eq!(superseded["done"], true);

        let (work, before) = self.done;
        let other = work.of_another(&work.client);
        let number = other.begins_anew().await;
        assert!(number > before, "{number} after {before}");
        work.store("before").await.expect_problem(409, "superseded");
        other.store("anew").await.expect(200);
        work.is_done("anew", number).await;
    }
}

impl Asked {
    async fn at(clients: &[Client; 2], key: impl Fn(&str) -> String) -> Self {
        let [here, there] = clients;
        let (beginning, posting) = (Work::new(there, &key("beginning")), Work::new(here, &key("posting")));
        let number = posting.begins_anew().await;
        let begins = Hammer::start({
            let work = beginning.clone();
            move || {
                let work = work.clone();
                async move { work.begin("").await }
            }
        });
        let posts = Hammer::start({
            let work = posting.clone();
            move || {
                let work = work.clone();
                async move { work.store("result").await }
            }
        });
        Self { beginning: (beginning, begins), posting: (posting, number, posts) }
    }

    /// One token begins with one number for each time that its record was lost, and a result is stored until it is lost.
    async fn was_told_right(self, losses: usize) {
        let (work, hammer) = self.beginning;
        let begun = hammer.end().await;
        let mut numbers: Vec<_> = begun.into_iter().map(|begun| begun.expect(201).fencing_token()).collect();
        assert!(numbers.is_sorted(), "{numbers:?}");
        numbers.dedup();
        assert!(numbers.len() <= losses + 1, "{numbers:?}");
        work.store("begun").await.expect(200);
        work.is_done("begun", *numbers.last().unwrap()).await;

        let (work, number, hammer) = self.posting;
        let stored = hammer.end().await;
        let first_lost = stored.iter().position(|answer| answer.status != 200);
        let (kept, lost) = stored.split_at(first_lost.unwrap_or(stored.len()));
        assert!(kept.iter().all(|stored| stored.fencing_token() == number));
        // A post makes no record, so what is lost stays lost.
        for answer in lost {
            assert_eq!(answer.json()["type"], "/problems/not-begun", "{}", answer.json());
        }
        if lost.is_empty() {
            work.is_done("result", number).await;
        } else {
            assert!(losses > 0, "nothing was lost");
            let again = work.begins_anew().await;
            assert!(again > number, "{again} after {number}");
            work.store("result").await.expect(200);
            work.is_done("result", again).await;
        }
    }
}
