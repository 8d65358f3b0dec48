//! Every node is restarted, one at a time, while a lock is renewed throughout.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::sleep;

use kit::quorum::{BRIEF, DURABLE, RECORD, count_soon, counts_soon, is_ready, number_on};
use kit::{Client, Gateway, Quorum, eventually};

const KEY: &str = "kept";
const LOCK: &str = "/locks/kept?ttl=2s";

/// A lock that its holder renews through one gateway, and that others ask for through another.
struct Kept {
    holder: Client,
    others: Client,
    number: u64,
    renewals: AtomicUsize,
    is_over: AtomicBool,
}

impl Kept {
    async fn take(gateways: &[Gateway]) -> (Self, String) {
        let [holder, others] = [0, 1].map(|at| Client::new(gateways[at].address));
        let taken = holder.put(LOCK).send().await.expect(201);
        let number = taken.fencing_token();
        let (renewals, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let kept = Self { holder, others, number, renewals, is_over };
        (kept, taken.token())
    }

    /// Renews it until all is over. Nobody may say that it is lost.
    async fn renew(&self, token: &str) {
        while !self.is_over.load(Ordering::Relaxed) {
            let answer = self.holder.patch(LOCK).token(token).send().await;
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
            let answer = self.others.put(LOCK).send().await;
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
async fn keep_while(quorum: &mut Quorum, work: impl AsyncFnOnce(&mut Quorum, &Kept)) {
    let gateways = join_all((0..2).map(|_| quorum.gateway(&BRIEF))).await;
    for gateway in &gateways {
        is_ready(&Client::new(gateway.address)).await;
    }
    let (kept, token) = Kept::take(&gateways).await;
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
    keep_while(&mut quorum, async |quorum, kept| {
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

/// Their files do not shorten the quarantine, but the numbers in them count at its end, whatever the clocks say.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_restart_at_once_wait_whatever_they_keep_and_go_on_from_their_numbers() {
    let mut quorum = Quorum::start_with(3, &DURABLE).await;
    let gateway = quorum.gateway(&BRIEF).await;
    let client = Client::new(gateway.address);
    is_ready(&client).await;
    quorum.is_whole().await;
    let number = client.put(&format!("/locks/{KEY}?ttl=4s")).send().await.expect(201).fencing_token();
    let ahead_us = number + 3_600_000_000;
    for node in &mut quorum.nodes {
        let _: i64 = node.command(&["HSET", RECORD, "floor", &ahead_us.to_string()]).await;
        node.kill();
    }
    for node in &mut quorum.nodes {
        node.start_again().await;
    }
    eventually("all are in quarantine", async || {
        let answer = client.put(&format!("/locks/{KEY}")).send().await;
        assert_eq!(answer.status, 503, "{}", answer.json());
        let answer = client.get("/readyz").send().await;
        // For moments it has connections, and does not know yet that the nodes were restarted.
        if answer.status == 200 {
            return false;
        }
        let why = answer.expect(503).json()["detail"].to_string();
        why.matches("in quarantine until").count() == 3
    })
    .await;
    count_soon(&quorum.nodes).await;
    is_ready(&client).await;
    assert!(client.put(&format!("/locks/{KEY}")).send().await.expect(201).fencing_token() > ahead_us);
}
