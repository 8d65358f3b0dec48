//! A node that stands still costs those nothing who ask for locks.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use kit::quorum::is_ready;
use kit::{Client, Quorum, fresh_token};

const CLIENTS: usize = 8;
/// How long each of both is measured in a round.
const TURN: Duration = Duration::from_millis(500);
/// The fewest requests of a turn.
const LEAST: usize = 100;
const WARM_UP: Duration = Duration::from_millis(200);
/// By how much a node that stands still may lengthen the p99.
const MOST: f64 = 2.0;
/// More rounds are made where the machine is too busy with something else.
const ROUNDS: std::ops::RangeInclusive<usize> = 5..=15;

/// What a request took with all nodes well, and with one that stands still: a p99 of each round.
#[derive(Default)]
struct Rounds {
    undisturbed: Vec<Duration>,
    stalled: Vec<Duration>,
}

impl Rounds {
    /// How much longer it took: the median of one beside that of the other.
    fn ratio(&self) -> f64 {
        median(&self.stalled).as_secs_f64() / median(&self.undisturbed).as_secs_f64()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_five_that_stands_still_does_not_double_the_p99() {
    let quorum = Quorum::start(5).await;
    let gateway = quorum.gateway(&[]).await;
    let client = Client::new(gateway.address);
    quorum.is_whole().await;
    is_ready(&client).await;
    let mut rounds = Rounds::default();
    while rounds.stalled.len() < *ROUNDS.end() {
        let node = &quorum.nodes[rounds.stalled.len() % quorum.nodes.len()];
        // What the node was sent while it stood still is not to make this turn slow.
        work(&client, WARM_UP).await;
        rounds.undisturbed.push(p99(&client).await);
        node.stand_still().await;
        rounds.stalled.push(p99(&client).await);
        node.signal("CONT");
        while node.try_command::<String>(&["PING"]).await.is_err() {}
        if rounds.stalled.len() >= *ROUNDS.start() && rounds.ratio() <= MOST {
            break;
        }
    }
    println!(
        "p99 {:?}, with one node that stands still {:?}, ratio {:.2}; {:?} {:?}",
        median(&rounds.undisturbed),
        median(&rounds.stalled),
        rounds.ratio(),
        rounds.undisturbed,
        rounds.stalled
    );
    assert!(rounds.ratio() <= MOST, "a node that stands still costs too much");
}

/// What a request to take a lock, or to give it back, takes at most, but for one in a hundred.
async fn p99(client: &Client) -> Duration {
    let mut took = work(client, TURN).await;
    took.sort_unstable();
    took[took.len() * 99 / 100]
}

/// Has all clients work for so long, and longer until so many requests are answered that one in a hundred is told apart; returns
/// what each request took.
async fn work(client: &Client, time: Duration) -> Vec<Duration> {
    let end = Instant::now() + time;
    let all = join_all((0..CLIENTS).map(|_| tokio::spawn(take_and_give_back(client.clone(), end)))).await;
    all.into_iter().flat_map(Result::unwrap).collect()
}

async fn take_and_give_back(client: Client, end: Instant) -> Vec<Duration> {
    let mut took = Vec::new();
    while Instant::now() < end || took.len() < LEAST.div_ceil(CLIENTS) {
        let key = format!("/locks/{}", fresh_token());
        let started = Instant::now();
        let taken = client.put(&key).send().await.expect(201);
        took.push(started.elapsed());
        let started = Instant::now();
        client.delete(&key).token(&taken.token()).send().await.expect(204);
        took.push(started.elapsed());
    }
    took
}

fn median(values: &[Duration]) -> Duration {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}
