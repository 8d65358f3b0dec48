//! Sixteen clients at work on some gateways while a test lets their store fail, and the judge's verdict on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinHandle;

use super::history::{Answer, History, Witness, check, is_kept, summary};
use super::visitors::{self, Visitor, look_at_what_is_left};
use super::{Client, Gateway, eventually, seed};

const CLIENTS: usize = 16;

/// Ends when it is judged.
pub struct Load {
    name: &'static str,
    /// One for each gateway.
    witnesses: Vec<Witness>,
    is_over: Arc<AtomicBool>,
    visitors: Vec<JoinHandle<()>>,
}

impl Load {
    /// Begins; some grants have been given when this returns. Each client stays with one of the gateways, so that what
    /// each of them said can also be judged by itself; the keys, and what their locks protect, are the same for all.
    pub async fn start(name: &'static str, gateways: &[Gateway]) -> Self {
        let mut random = StdRng::seed_from_u64(seed());
        let resources = visitors::resources();
        let is_over = Arc::new(AtomicBool::new(false));
        let witnesses: Vec<_> = gateways.iter().map(|_| Witness::default()).collect();
        let visitor = |number: usize| {
            let at = number % gateways.len();
            let doors = vec![Client::new(gateways[at].address)];
            let random = StdRng::seed_from_u64(random.random());
            let visitor = Visitor::new(doors, witnesses[at].clone(), resources.clone(), random);
            let is_over = is_over.clone();
            tokio::spawn(visitor.work_while(move || !is_over.load(Ordering::Relaxed)))
        };
        let visitors = (0..CLIENTS).map(visitor).collect();
        let load = Self { name, witnesses, is_over, visitors };
        load.goes_on().await;
        load
    }

    /// Waits until each gateway has granted some more locks.
    pub async fn goes_on(&self) {
        let before: Vec<_> = self.witnesses.iter().map(grants).collect();
        eventually("the clients are granted locks", async || {
            self.witnesses.iter().zip(&before).all(|(witness, before)| grants(witness) > before + 20)
        })
        .await;
    }

    /// Who sees what the clients of one gateway are told.
    pub fn witness(&self, gateway: usize) -> &Witness {
        &self.witnesses[gateway]
    }

    /// Says that the store lost what it held at some time since `start_us`.
    pub fn lost_since(&self, start_us: u64) {
        self.witnesses[0].lost_since(start_us);
    }

    /// Says that a deposed primary and its successor may both have granted locks since `start_us`.
    pub fn split_since(&self, start_us: u64) {
        self.witnesses[0].split_since(start_us);
    }

    /// Ends it, looks at what is left, and judges all that was seen; returns it.
    pub async fn judge(self, gateways: &[Gateway]) -> History {
        self.is_over.store(true, Ordering::Relaxed);
        join_all(self.visitors).await.into_iter().for_each(Result::unwrap);
        let histories: Vec<_> = self.witnesses.iter().map(Witness::history).collect();
        let losses = histories[0].losses.clone();
        let all = Witness::of_all(&histories);
        look_at_what_is_left(&Client::new(gateways[0].address), &all).await;
        let mut history = all.history();
        let logs: Vec<_> = gateways.iter().flat_map(Gateway::log).collect();
        history.learn_from_log(&logs);

        let mut is_right = is_kept(self.name, &history);
        for (at, own) in histories.into_iter().enumerate() {
            // No gateway goes back, not even while there are two servers that grant.
            let own = History { losses: losses.clone(), splits: Vec::new(), ..own };
            for violation in check(&own).iter().filter(|violation| violation.promise == "I2") {
                println!("  at gateway {at}: {violation}");
                is_right = false;
            }
        }
        if !is_right {
            let is_of_note = |line: &&String| !line.contains("answered");
            logs.iter().filter(is_of_note).for_each(|line| println!("{line}"));
        }
        assert!(is_right, "promises were broken: {}", self.name);
        // A run in which hardly anything happened would prove nothing.
        let count = |is_such: fn(&Answer) -> bool| {
            history.operations.iter().filter(|operation| is_such(&operation.answer)).count()
        };
        assert!(count(|answer| matches!(answer, Answer::Granted { .. })) > 60, "{}", summary(&history));
        assert!(history.updates.len() > 10, "{}", summary(&history));
        history
    }
}

fn grants(witness: &Witness) -> usize {
    witness.count(|answer| matches!(answer, Answer::Granted { .. }))
}
