//! What a Redis does to its gateways' promises when it stands still, ends, forgets, or is one of two.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use kit::{Answer, Client, fresh_token};

mod client_scenarios;
mod restarts;
mod split;
mod stalls;

/// Every number that was given, with the moments at which its clients asked and were answered.
#[derive(Default)]
struct Grants(Mutex<Vec<Given>>);

#[derive(Clone, Copy, Debug)]
struct Given {
    number: u64,
    asked: Instant,
    answered: Instant,
}

impl Grants {
    /// Asks for a lock and notes the number, if it is granted.
    async fn take(&self, client: &Client, key: &str, token: Option<&str>) -> Answer {
        let put = client.put(&format!("/locks/{key}?ttl=1h"));
        let put = if let Some(token) = token { put.token(token) } else { put };
        let asked = Instant::now();
        let answer = put.send().await;
        assert!([200, 201, 423, 503].contains(&answer.status), "{}", answer.json());
        if answer.status == 201 {
            let given = Given { number: answer.fencing_token(), asked, answered: Instant::now() };
            self.0.lock().unwrap().push(given);
        }
        answer
    }

    /// Takes a lock and gives it back, whatever that costs; nothing where somebody else holds it, or nobody knows.
    async fn take_and_release(&self, client: &Client, key: &str) -> Answer {
        let own = fresh_token();
        let answer = self.take(client, key, rand::random::<bool>().then_some(&own)).await;
        if answer.status == 201 {
            let token = answer.token();
            while client.delete(&format!("/locks/{key}")).token(&token).send().await.status == 503 {
                sleep(Duration::from_millis(5)).await;
            }
        }
        answer
    }

    /// The grants of two places as one.
    fn of_both(both: &[Arc<Self>; 2]) -> Self {
        let all = both.each_ref().map(|grants| grants.0.lock().unwrap().clone());
        Self(Mutex::new(all.concat()))
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// No number is given twice, and each is above all that were answered before it was asked for.
    fn check_order(&self) {
        let mut given = self.0.lock().unwrap().clone();
        let mut numbers: Vec<_> = given.iter().map(|given| given.number).collect();
        numbers.sort_unstable();
        assert!(numbers.is_sorted_by(|a, b| a < b), "a number was given twice");
        given.sort_unstable_by_key(|given| given.answered);
        let mut largest = 0;
        let largest_until: Vec<_> = given
            .iter()
            .map(|given| {
                largest = largest.max(given.number);
                largest
            })
            .collect();
        for one in &given {
            let before = given.partition_point(|other| other.answered < one.asked);
            let bound = before.checked_sub(1).map_or(0, |last| largest_until[last]);
            assert!(one.number > bound, "{} was given after {bound} had been answered", one.number);
        }
    }

    fn smallest(&self) -> u64 {
        self.0.lock().unwrap().iter().map(|given| given.number).min().unwrap()
    }

    fn largest(&self) -> u64 {
        self.0.lock().unwrap().iter().map(|given| given.number).max().unwrap()
    }
}
