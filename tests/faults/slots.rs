//! At most so many at a resource, whatever fails between clients and a store that loses nothing.

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kit::history::Witness;
use kit::{Client, RedisServer, eventually, fresh_token, seed};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tokio::time::sleep;

use crate::faults::entrance::Entrance;

const CLIENTS: u64 = 64;
const TTL: Duration = Duration::from_secs(1);
/// Leases are counted in whole milliseconds.
const ROUNDING: Duration = Duration::from_millis(3);

/// One who was at the resource within its lease.
#[derive(Clone, Copy, Debug)]
struct Stay {
    from: Instant,
    until: Instant,
    slot: u64,
    slots: u16,
}

/// Two gateways on one Redis, with ways that fail, and what came of those who asked through them.
struct Crowd {
    entrances: Vec<Entrance>,
    /// How many may hold the lock, as all say from now on.
    slots: AtomicU16,
    stays: Mutex<Vec<Stay>>,
    _redis: RedisServer,
}

impl Crowd {
    async fn gather(slots: u16) -> Arc<Self> {
        let redis = RedisServer::start().await;
        let args = ["--store", redis.url(), "--store-timeout", "500ms"];
        let entrances = vec![Entrance::open(&args).await, Entrance::open(&args).await];
        let (slots, stays) = (AtomicU16::new(slots), Mutex::default());
        Arc::new(Self { entrances, slots, stays, _redis: redis })
    }

    fn set(&self, slots: u16) {
        self.slots.store(slots, Ordering::SeqCst);
    }

    /// Asks again and again, until told to end: waits, stays for a moment, and leaves, if its answers come.
    async fn come_and_go(self: Arc<Self>, mut random: StdRng, is_over: Arc<AtomicBool>) {
        let doors: Vec<Client> = self.entrances.iter().flat_map(Entrance::doors).collect();
        while !is_over.load(Ordering::SeqCst) {
            let (door, slots) = (doors.choose(&mut random).unwrap(), self.slots.load(Ordering::SeqCst));
            let (token, sent) = (fresh_token(), Instant::now());
            let address = format!("/locks/k?ttl=1s&wait=2s&slots={slots}");
            let told = door.put(&address).token(&token).within(Duration::from_secs(4)).try_send().await;
            let Ok(granted) = told.map(|told| (told.status == 201).then_some(told)) else { continue };
            let Some(granted) = granted else { continue };
            // Its lease began after that, though nobody knows when: the answer may have been on its way for long.
            let over = sent + TTL - ROUNDING;
            let slot = granted.json()["slot"].as_u64().unwrap();
            let from = Instant::now();
            sleep(Duration::from_millis(random.random_range(0..30))).await;
            self.stays.lock().unwrap().push(Stay { from, until: over.min(Instant::now()), slot, slots });
            let _ = door.delete("/locks/k").token(&token).within(Duration::from_secs(4)).try_send().await;
        }
    }

    /// Lets them all come, while ways fail and the second gateway is killed, and `meanwhile` goes on.
    async fn come(self: &Arc<Self>, meanwhile: impl Future<Output = ()>) {
        let (seed, witness) = (seed(), Witness::default());
        let is_over = Arc::new(AtomicBool::new(false));
        let random = |part: u64| StdRng::seed_from_u64(seed.wrapping_add(part));
        let come = |part| tokio::spawn(self.clone().come_and_go(random(part), is_over.clone()));
        let all: Vec<_> = (1..=CLIENTS).map(come).collect();
        let mut random = random(0);
        let failing = async {
            loop {
                match random.random_range(0..4) {
                    0 => self.entrances[1].is_killed(&witness).await,
                    at => self.entrances[at % 2].way_fails(&mut random, &witness).await,
                }
                sleep(Duration::from_millis(random.random_range(50..500))).await;
            }
        };
        tokio::select! {
            () = failing => unreachable!("it goes on for ever"),
            () = meanwhile => {}
        }
        for entrance in &self.entrances {
            entrance.heal().await;
        }
        is_over.store(true, Ordering::SeqCst);
        for one in all {
            one.await.unwrap();
        }
    }

    /// The most that were there at a time; that no more were than any of them has said, and each in a slot of its own.
    fn judge(&self) -> usize {
        let stays: Vec<_> =
            self.stays.lock().unwrap().iter().copied().filter(|stay| stay.from < stay.until).collect();
        let mut most = 0;
        for stay in &stays {
            let there: Vec<_> =
                stays.iter().filter(|other| other.from <= stay.from && stay.from < other.until).collect();
            let least = there.iter().map(|stay| usize::from(stay.slots)).min().unwrap();
            assert!(there.len() <= least, "more than {least}: {there:?}");
            let mut slots: Vec<_> = there.iter().map(|stay| stay.slot).collect();
            slots.sort_unstable();
            slots.dedup();
            assert_eq!(slots.len(), there.len(), "two in one slot: {there:?}");
            most = most.max(there.len());
        }
        most
    }

    async fn nobody_is_left(&self) {
        let door = self.entrances[0].safe_door();
        eventually("nobody holds it", async || door.get("/locks/k").send().await.status == 404).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_clients_are_never_more_than_five_while_ways_are_cut_and_a_gateway_is_killed() {
    let crowd = Crowd::gather(5).await;
    crowd.come(sleep(Duration::from_secs(20))).await;
    let over = Instant::now() + TTL + Duration::from_secs(1);
    crowd.nobody_is_left().await;
    assert!(Instant::now() < over, "what nobody was told of lasts no longer than its ttl");
    assert_eq!(crowd.judge(), 5, "all five are reached");
}

#[tokio::test(flavor = "multi_thread")]
async fn from_five_to_three_there_are_never_four_beside_one_that_said_three_and_back_all_five_hold() {
    let crowd = Crowd::gather(5).await;
    let phase = Duration::from_secs(5);
    crowd
        .come(async {
            sleep(phase).await;
            crowd.set(3);
            sleep(phase).await;
            crowd.set(5);
            sleep(phase).await
        })
        .await;
    assert_eq!(crowd.judge(), 5);
    let mut stays = crowd.stays.lock().unwrap().clone();
    stays.sort_by_key(|stay| stay.from);
    let last_of_three = stays.iter().rfind(|stay| stay.slots == 3).unwrap().from;
    assert!(stays.iter().any(|stay| stay.slot == 5 && stay.from > last_of_three), "five hold again");
}
