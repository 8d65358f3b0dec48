//! Pieces of work that are done once, as clients of real gateways see them: two of them on one Redis, or one on its
//! embedded store.

use kit::http::Call;
use kit::metrics::Scrape;
use kit::{Answer, Client, RedisServer, eventually};

use crate::waiting::Pair;

mod abandoned;
mod bodies;
mod crowd;
mod delivery;
mod fingerprints;
mod full;
mod leaving;
mod lost_answers;
mod replaying;
mod rights;
mod storing;
mod tokens;
mod waking;

/// Makes one test for each store out of a function that is given a [`Pair`].
macro_rules! on_each_pair {
    ($($name:ident),+ $(,)?) => {
        $(mod $name {
            #[tokio::test(flavor = "multi_thread")]
            async fn embedded() {
                super::$name(super::super::Pair::embedded_with(&[]).await).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn redis() {
                super::$name(super::super::on_redis().await).await;
            }
        })+
    };
}
use on_each_pair;

/// A server that says how much memory it may use: one that does not keeps no records.
async fn redis() -> RedisServer {
    RedisServer::start_with(&["--maxmemory", "1gb"]).await
}

async fn on_redis() -> Pair {
    Pair::on(redis().await, &[]).await
}

/// To begin the record `k`.
fn begin(client: &Client, query: &str, token: &str) -> Call {
    client.put(&format!("/once/k?{query}")).token(token)
}

/// To store a result in the record `k`.
fn store(client: &Client, token: &str, result: &str) -> Call {
    client.post("/once/k").token(token).body(result.to_owned())
}

/// By which way the answer came about.
#[track_caller]
fn way(answer: &Answer) -> &str {
    answer.header("Once").unwrap()
}

/// How many may have done the work before, which the header and the body agree on.
#[track_caller]
fn earlier(answer: &Answer) -> u64 {
    let earlier = answer.json()["earlier"].as_u64().unwrap();
    assert_eq!(answer.header("Once-Earlier"), Some(earlier.to_string().as_str()));
    earlier
}

/// How far the record `k` is; nothing where there is none.
async fn state(client: &Client) -> String {
    let look = client.get("/once/k").send().await;
    if look.status == 404 {
        look.expect_problem(404, "not-begun");
        return String::new();
    }
    look.expect(200).json()["state"].as_str().unwrap().to_owned()
}

/// Waits until the record `k` is so far.
async fn comes_to(client: &Client, expected: &str) {
    eventually(&format!("the record is {expected:?}"), async || state(client).await == expected).await;
}

/// Begins the record `k`, and lets the lease end.
async fn begin_and_lapse(client: &Client, query: &str, token: &str) -> Answer {
    let begun = begin(client, &format!("ttl=500ms&{query}"), token).send().await.expect(201);
    comes_to(client, "lapsed").await;
    begun
}

/// Waits until so many wait for records, at both gateways together.
async fn wait_there(pair: &Pair, waiters: f64) {
    eventually(&format!("{waiters} wait"), async || waiting(pair).await == waiters).await;
}

async fn waiting(pair: &Pair) -> f64 {
    sum(pair, "fencepost_once_waiters").await
}

/// A number of both gateways together.
async fn sum(pair: &Pair, series: &str) -> f64 {
    let mut sum = 0.0;
    for gateway in [Some(&pair.here), pair.there.as_ref()].into_iter().flatten() {
        sum += Scrape::of(gateway.address).await.get(series);
    }
    sum
}
