//! Every node is restarted, one at a time, while a lock is renewed throughout.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::sleep;

use crate::support::quorum::{BRIEF, DURABLE, counts_soon, is_ready, number_on};
use crate::support::{Client, Gateway, Quorum, eventually};

const KEY: &str = "kept";

/// A lock that its holder renews through one gateway, and that others ask for through another.
struct Kept {
    holder: Client,
    others: Client,
    ttl: &'static str,
    number: u64,
    renewals: AtomicUsize,
    is_over: AtomicBool,
}

impl Kept {
    async fn take(gateways: &[Gateway], ttl: &'static str) -> (Self, String) {
        let [holder, others] = [0, 1].map(|at| Client::new(gateways[at].address));
        let taken = holder.put(&format!("/locks/{KEY}?ttl={ttl}")).send().await.expect(201);
        let number = taken.fencing_token();
        let kept = Self {
            holder,
            others,
            ttl,
            number,
            renewals: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
        };
        (kept, taken.token())
    }

    /// Renews it until all is over. Nobody may say that it is lost.
    async fn renew(&self, token: &str) {
        while !self.is_over.load(Ordering::Relaxed) {
            let renewal = self.holder.patch(&format!("/locks/{KEY}?ttl={}", self.ttl)).token(token);
            let answer = renewal.send().await;
            if answer.status != 503 {
                assert_eq!(answer.expect(200).fencing_token(), self.number);
                self.renewals.fetch_add(1, Ordering::Relaxed);
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Asks for it until all is over. Nobody else may have it.
    async fn ask(&self) {
        while !self.is_over.load(Ordering::Relaxed) {
            let answer = self.others.put(&format!("/locks/{KEY}?ttl={}", self.ttl)).send().await;
            assert!([423, 503].contains(&answer.status), "{} {}", answer.status, answer.json());
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until it has been renewed some more times.
    async fn is_renewed(&self) {
        let before = self.renewals.load(Ordering::Relaxed);
        eventually("the lock is renewed", async || self.renewals.load(Ordering::Relaxed) > before + 2).await;
    }

    fn is_over(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Takes a lock, and keeps it while something is done to the nodes.
async fn keep_while(
    quorum: &mut Quorum,
    args: &[&str],
    ttl: &'static str,
    work: impl AsyncFnOnce(&mut Quorum, &Kept),
) {
    let gateways = join_all((0..2).map(|_| quorum.gateway(args))).await;
    for gateway in &gateways {
        is_ready(&Client::new(gateway.address)).await;
    }
    let (kept, token) = Kept::take(&gateways, ttl).await;
    let work = async {
        kept.is_renewed().await;
        // It may have been taken before a gateway had met all of them; a renewal puts it where it is missing.
        for node in &quorum.nodes {
            eventually("the lock is on each node", async || number_on(node, KEY).await == Some(kept.number))
                .await;
        }
        work(quorum, &kept).await;
        kept.is_renewed().await;
        kept.is_over();
    };
    tokio::join!(kept.renew(&token), kept.ask(), work);
    let key = format!("/locks/{KEY}");
    assert_eq!(kept.others.get(&key).send().await.expect(200).json()["fencing_token"], kept.number);
    kept.holder.delete(&key).token(&token).send().await.expect(204);
    assert!(kept.others.put(&key).send().await.expect(201).fencing_token() > kept.number);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_outlives_all_nodes_when_each_forgets_and_its_quarantine_is_waited_for() {
    let mut quorum = Quorum::start(3).await;
    keep_while(&mut quorum, &BRIEF, "2s", async |quorum, kept| {
        for node in &mut quorum.nodes {
            node.restart_empty().await;
            counts_soon(node).await;
            // A renewal puts the lock there. What others ask for stands there for moments, too.
            eventually("the lock is on the node", async || number_on(node, KEY).await == Some(kept.number))
                .await;
            kept.is_renewed().await;
        }
    })
    .await;
}

/// The longest lease is left as it is by default, so that no test would see the end of a quarantine.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_outlives_all_nodes_when_none_forgets_and_nobody_waits() {
    let mut quorum = Quorum::start_with(3, &DURABLE).await;
    keep_while(&mut quorum, &[], "5s", async |quorum, _| {
        for node in &mut quorum.nodes {
            node.restart().await;
        }
        quorum.is_whole().await;
    })
    .await;
}
