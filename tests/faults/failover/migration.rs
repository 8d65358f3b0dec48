//! A slot whose migration has stopped in the middle.

use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::gateways;
use kit::cluster::{bucket_of, slot_of_lock};
use kit::{Answer, Client, RedisCluster, fresh_token};

/// When every request must have been answered: after `--store-timeout`, as far as a busy machine can see it.
const STORE_TIMEOUT: &str = "1s";
const ANSWERED_WITHIN: Duration = Duration::from_millis(2_500);

/// What somebody wants of a lock while its slot is on its way. All but the first begin with one that is held.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wish {
    TakeFree,
    TakeHeld,
    TakeAgain,
    Renew,
    Release,
    Look,
}

const WISHES: [Wish; 6] =
    [Wish::TakeFree, Wish::TakeHeld, Wish::TakeAgain, Wish::Renew, Wish::Release, Wish::Look];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    /// Fulfilled or refused, as it must be.
    Done,
    /// Certainly nothing was done.
    NotDone,
    Unknown,
}

struct Errand {
    client: Client,
    wish: Wish,
    key: String,
    token: String,
    /// The number of the grant that there was before.
    number: u64,
}

impl Errand {
    /// Takes the lock, where the wish needs one that is held.
    async fn prepare(client: Client, wish: Wish, key: String) -> Self {
        let token = fresh_token();
        let mut number = 0;
        if wish != Wish::TakeFree {
            let put = client.put(&format!("/locks/{key}?ttl=1h")).token(&token);
            number = put.send().await.expect(201).fencing_token();
        }
        Self { client, wish, key, token, number }
    }

    /// What became of the wish; fails the test where that is not right.
    async fn run(&self) -> Outcome {
        let address = format!("/locks/{}", self.key);
        let call = match self.wish {
            Wish::TakeFree | Wish::TakeAgain | Wish::TakeHeld => {
                self.client.put(&format!("{address}?ttl=1h"))
            }
            Wish::Renew => self.client.patch(&format!("{address}?ttl=2h")),
            Wish::Release => self.client.delete(&address),
            Wish::Look => self.client.get(&address),
        };
        let call = if self.wish == Wish::TakeHeld { call } else { call.token(&self.token) };
        let begun = Instant::now();
        let answer = call.send().await;
        assert!(begun.elapsed() < ANSWERED_WITHIN, "{}: {:?} after {:?}", self.key, answer, begun.elapsed());
        if answer.status == 503 {
            // Where Redis has refused in so many words, "unknown" would be an excuse; not where it was too busy to.
            if answer.json()["detail"] == "Redis did not answer in time" {
                return Outcome::Unknown;
            }
            answer.expect_problem(503, "store-unavailable");
            return Outcome::NotDone;
        }
        self.check(answer);
        Outcome::Done
    }

    fn check(&self, answer: Answer) {
        let right = match self.wish {
            Wish::TakeFree => 201,
            Wish::TakeHeld => 423,
            Wish::TakeAgain | Wish::Renew | Wish::Look => 200,
            Wish::Release => 204,
        };
        let answer = answer.expect(right);
        let number = match self.wish {
            Wish::Release => return,
            Wish::TakeHeld => answer.json()["holder"]["fencing_token"].as_u64().unwrap(),
            _ => answer.fencing_token(),
        };
        // The number that was given in between is not known here; every later one is larger.
        let is_new = self.wish == Wish::TakeFree;
        assert!(if is_new { number > self.number } else { number == self.number }, "{}: {number}", self.key);
    }
}

/// So many keys whose locks are in one bucket.
fn keys_of_one_bucket(count: usize) -> Vec<String> {
    let mut keys = (0..).map(|number: u32| format!("k{number}"));
    let first = keys.next().unwrap();
    let others = keys.filter(|key| bucket_of(key) == bucket_of(&first)).take(count - 1);
    std::iter::once(first.clone()).chain(others).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_a_slot_on_its_way_are_answered_truly_and_in_time() {
    let cluster = RedisCluster::start().await;
    let gateways = gateways(1, &cluster.url(), &["--store-timeout", STORE_TIMEOUT]).await;
    let client = Client::new(gateways[0].address);
    // None, some and all of the keys have been moved.
    const STAGES: usize = 3;
    let mut keys = keys_of_one_bucket(STAGES * WISHES.len()).into_iter();
    let slot = slot_of_lock(keys.as_slice()[0].as_str());
    let errands = (0..STAGES).flat_map(|_| WISHES).map(|wish| (wish, keys.next().unwrap()));
    let errands: Vec<_> = errands.map(|(wish, key)| Errand::prepare(client.clone(), wish, key)).collect();
    let errands = join_all(errands).await;

    let from = cluster.owner_of(slot).await;
    let migration = cluster.begin_migration(slot, (from + 1) % 3).await;
    let all = cluster.keys_left(migration).await.len();
    let mut left_undone = Vec::new();
    for (stage, errands) in errands.chunks(WISHES.len()).enumerate() {
        let moved = if stage == 1 { all / 2 } else { all };
        if stage > 0 {
            cluster.move_keys(migration, moved).await;
        }
        let outcomes = join_all(errands.iter().map(async |one| (one.wish, one.run().await))).await;
        println!("stage {stage}: {outcomes:?}");
        // It takes one key, so there is always somebody who has it.
        let is_renewed = !outcomes.contains(&(Wish::Renew, Outcome::NotDone));
        assert!(is_renewed, "a held lock cannot be renewed: {outcomes:?}");
        let with_outcomes = errands.iter().zip(outcomes);
        let undone = with_outcomes.filter(|(_, (_, outcome))| *outcome == Outcome::NotDone);
        left_undone.extend(undone.map(|(errand, _)| errand));
    }
    while cluster.move_keys(migration, usize::MAX).await > 0 {}
    cluster.end_migration(migration).await;

    // Nothing was done, so all can be done now; and at once, whatever the gateway believed before.
    assert!(!left_undone.is_empty(), "the slot was whole all the time");
    for errand in left_undone {
        let outcome = errand.run().await;
        assert_eq!(outcome, Outcome::Done, "{:?} cannot be done although the slot has moved", errand.wish);
    }
    cluster.is_whole().await;
    let largest = errands.iter().map(|errand| errand.number).max().unwrap();
    for errand in &errands {
        // Whoever holds it by now: it can be given back, and taken anew.
        let address = format!("/locks/{}", errand.key);
        client.delete(&address).token(&errand.token).send().await;
        if matches!(errand.wish, Wish::Release | Wish::TakeAgain | Wish::Renew) {
            let number = client.put(&address).send().await.expect(201).fencing_token();
            assert!(number > largest, "{number} after {largest}");
        }
    }
}
