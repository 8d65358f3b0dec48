//! Requests of all kinds, mixed, on all stores, and how many replies do not fit theirs. Here nothing is measured, so
//! that each reply can be looked at as closely as there is something to see.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio::task::JoinSet;

use crate::plan::{TARGETS, target};
use crate::shared::servers::Server;
use crate::shared::standstill;

mod caller;
mod episodes;

use caller::Caller;
use episodes::Stage;

/// Of a hundred replies, how many are of each. A quorum asks three servers about each step.
const SHARES: [(&str, u64); 5] =
    [("redis", 30), ("memory", 25), ("file", 20), ("redis+keys+tls", 20), ("quorum", 5)];
const CONNECTIONS: u64 = 64;
/// How many mismatches are told in full.
const MOST_TOLD: u64 = 10;

/// What has been seen so far.
#[derive(Default)]
pub struct Count {
    pub replies: AtomicU64,
    pub mismatches: AtomicU64,
}

/// Makes so many requests, and says how many replies did not fit.
pub async fn check(requests: u64) -> u64 {
    let (mut all, mut mismatches) = (0, 0);
    for (slug, share) in SHARES {
        let done = standstill::without(async || {
            let server = Arc::new((TARGETS[target(slug)].start)());
            let started = Instant::now();
            let count = of_server(&server, requests * share / 100).await;
            (server, started, count)
        });
        let (server, started, count) = done.await;
        let replies = count.replies.load(Ordering::Relaxed);
        let wrong = count.mismatches.load(Ordering::Relaxed);
        let seconds = started.elapsed().as_secs_f64();
        println!("{}: {wrong} mismatches in {replies} replies, {seconds:.0} s", server.name);
        if wrong > 0 {
            eprintln!("its log: {}", server.log());
        }
        all += replies;
        mismatches += wrong;
    }
    println!("all together: {mismatches} mismatches in {all} replies");
    mismatches
}

async fn of_server(server: &Arc<Server>, requests: u64) -> Arc<Count> {
    let count = Arc::new(Count::default());
    let stage = Arc::new(Stage::default());
    let mut connections = JoinSet::new();
    for number in 0..CONNECTIONS {
        let (server, stage, count) = (server.clone(), stage.clone(), count.clone());
        connections.spawn(async move {
            // One after a mismatch is not believed: the next has a connection, and names, of its own.
            for life in 0.. {
                let mut caller = Caller::open(&server, format!("{number}-{life}"), count.clone()).await;
                let ended = loop {
                    if count.replies.load(Ordering::Relaxed) >= requests {
                        return;
                    }
                    if let Err(mismatch) = episodes::any(&mut caller, &stage).await {
                        break mismatch;
                    }
                };
                if count.mismatches.fetch_add(1, Ordering::Relaxed) < MOST_TOLD {
                    eprintln!("{}: {ended}", server.name);
                }
            }
        });
    }
    connections.join_all().await;
    count
}
