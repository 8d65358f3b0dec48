//! Many clients on one key for ten seconds, or longer on a busy machine: the lock guards an unprotected counter in a plain
//! file.

use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kit::{Client, PATIENCE, Stage, fresh_token, on_each_store};

const CLIENTS: usize = 64;
const LENGTH: Duration = Duration::from_secs(10);
const ENOUGH: u64 = 100;

on_each_store!(no_update_is_lost_and_numbers_grow_in_grant_order);

struct Arena {
    client: Client,
    counter: PathBuf,
    /// How many believe that they hold the lock.
    inside: AtomicI64,
    /// The numbers, in the order in which their holders were inside.
    numbers: Mutex<Vec<u64>>,
    updates: AtomicU64,
    /// When the last one was made.
    updated_at: Mutex<Instant>,
}

async fn no_update_is_lost_and_numbers_grow_in_grant_order(stage: Stage) {
    let directory = tempfile::tempdir().unwrap();
    let counter = directory.path().join("counter");
    std::fs::write(&counter, "0").unwrap();
    let arena = Arc::new(Arena {
        client: stage.client(),
        counter: counter.clone(),
        inside: AtomicI64::new(0),
        numbers: Mutex::default(),
        updates: AtomicU64::new(0),
        updated_at: Mutex::new(Instant::now()),
    });
    let end = Instant::now() + LENGTH;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let arena = arena.clone();
            tokio::spawn(async move {
                while Instant::now() < end || arena.updates.load(Ordering::SeqCst) < ENOUGH {
                    arena.try_update(number).await;
                    let idle = arena.updated_at.lock().unwrap().elapsed();
                    assert!(idle < PATIENCE, "nobody gets the lock");
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    let counted: u64 = std::fs::read_to_string(&counter).unwrap().parse().unwrap();
    let updates = arena.updates.load(Ordering::SeqCst);
    assert_eq!(counted, updates, "an update was lost");
    let numbers = arena.numbers.lock().unwrap();
    assert!(numbers.is_sorted_by(|a, b| a < b), "fencing numbers do not grow in grant order");
    println!("{updates} updates by {CLIENTS} clients");
}

impl Arena {
    async fn try_update(&self, number: usize) {
        // Half of the clients choose their tokens, half let the server do it.
        let put = self.client.put("/locks/counter?ttl=30s");
        let put = if number.is_multiple_of(2) { put.token(&fresh_token()) } else { put };
        let answer = put.send().await;
        if answer.status == 423 {
            // Politeness, so that the holder gets a turn at the processor: no assertion rests on it.
            tokio::time::sleep(Duration::from_millis(1 + number as u64 % 7)).await;
            return;
        }
        let answer = answer.expect(201);
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "two holders at once");
        self.numbers.lock().unwrap().push(answer.fencing_token());
        // Read, give every other task a chance to interfere, and write.
        let value: u64 = std::fs::read_to_string(&self.counter).unwrap().parse().unwrap();
        tokio::task::yield_now().await;
        std::fs::write(&self.counter, (value + 1).to_string()).unwrap();
        self.updates.fetch_add(1, Ordering::SeqCst);
        *self.updated_at.lock().unwrap() = Instant::now();
        assert_eq!(self.inside.fetch_sub(1, Ordering::SeqCst), 1, "two holders at once");
        self.client.delete("/locks/counter").token(&answer.token()).send().await.expect(204);
    }
}
