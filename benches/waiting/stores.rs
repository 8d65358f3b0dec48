//! Workers that store large results, at a steady rate, beside those that are measured.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::interval_at;

use crate::shared::connection::Connection;
use crate::shared::workload::BEGIN;

/// The longest result that a gateway takes unless it is told otherwise.
const RESULT_BYTES: usize = 64 * 1024;
const CONNECTIONS: usize = 8;
/// Each stores so often that all of them store 1,000 a second.
const EVERY: Duration = Duration::from_millis(CONNECTIONS as u64);

pub struct Stores {
    is_over: Arc<AtomicBool>,
    /// A thread of its own, or the client that is measured would wait for the writing of the results.
    thread: JoinHandle<Result<u64, String>>,
    started: Instant,
}

impl Stores {
    pub fn start(address: SocketAddr, round: usize) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let until = is_over.clone();
        let thread = thread::spawn(move || run(address, round, &until));
        Self { is_over, thread, started: Instant::now() }
    }

    /// How many were stored in a second.
    pub fn end(self) -> Result<f64, String> {
        let elapsed = self.started.elapsed();
        self.is_over.store(true, Ordering::Relaxed);
        let stored = self.thread.join().expect("the thread does not panic")?;
        Ok(stored as f64 / elapsed.as_secs_f64())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn run(address: SocketAddr, round: usize, is_over: &Arc<AtomicBool>) -> Result<u64, String> {
    let mut workers = JoinSet::new();
    let started = tokio::time::Instant::now();
    for number in 0..CONNECTIONS {
        let is_over = is_over.clone();
        // One after the other, or all of them would store at the same moment.
        let first = started + EVERY * number as u32 / CONNECTIONS as u32;
        workers
            .spawn(async move { work(address, &format!("stored-{round}-{number}"), first, &is_over).await });
    }
    let mut stored = 0;
    for of_worker in workers.join_all().await {
        stored += of_worker?;
    }
    Ok(stored)
}

async fn work(
    address: SocketAddr,
    name: &str,
    first: tokio::time::Instant,
    is_over: &AtomicBool,
) -> Result<u64, String> {
    let mut connection = Connection::open(address).await?;
    let result = "x".repeat(RESULT_BYTES);
    // Turns that were missed are made up for: it is the rate that counts.
    let mut turns = interval_at(first, EVERY);
    let mut stored = 0;
    while !is_over.load(Ordering::Relaxed) {
        turns.tick().await;
        let (key, token) = (format!("{name}-{stored}"), format!("{:032x}", rand::random::<u128>()));
        if !connection.begin(&key, BEGIN, &token).await? {
            return Err(format!("{key}: a fresh record is there"));
        }
        connection.store(&key, &token, &result).await?;
        stored += 1;
    }
    Ok(stored)
}
