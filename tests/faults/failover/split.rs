//! A primary that does not know that it is deposed: it stood still, or is cut off with a gateway and a minority of the
//! sentinels. A resource that claims loses no update to its holders, and two that do not claim show that this
//! test would notice.

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{all_resume, gateways, has_lock, new_key};
use kit::history::{Action, Answer, History, check, now_us};
use kit::load::Load;
use kit::resource::{Discipline, Resource};
use kit::sentinels::{Promotion, SentinelOptions};
use kit::{Client, Gateway, PATIENCE, SentinelSetup, eventually, fresh_token};

const DISCIPLINES: [Discipline; 3] = [Discipline::Claim, Discipline::CheckAtWrite, Discipline::Unfenced];

/// Locks that are granted just before the primary stands still.
const UNTOLD: [&str; 2] = ["untold-here", "untold-there"];

/// Who holds the lock of an account, and has read its version.
#[derive(Debug)]
struct Holder {
    number: u64,
    before: u64,
}

/// Things that locks protect, one for each discipline.
struct Accounts {
    resources: [Resource; 3],
    acknowledged: [u64; 3],
}

impl Accounts {
    fn new() -> Self {
        Self { resources: DISCIPLINES.map(Resource::with), acknowledged: [0; 3] }
    }

    /// Takes all the locks through one gateway, and claims and reads what they protect.
    async fn take_and_read(&mut self, client: &Client, ttl: &str) -> Vec<Holder> {
        let mut holders = Vec::new();
        for (at, discipline) in DISCIPLINES.iter().enumerate() {
            let mut granted = None;
            eventually("the lock of the account is granted", async || {
                let answer = client.put(&format!("/locks/account-{discipline:?}?ttl={ttl}")).send().await;
                let is_granted = answer.status == 201;
                granted = is_granted.then_some(answer);
                is_granted
            })
            .await;
            let number = granted.unwrap().fencing_token();
            let before = self.resources[at].read(number).expect("nobody has shown a larger number");
            holders.push(Holder { number, before });
        }
        holders
    }

    fn write(&mut self, holders: &[Holder]) {
        for (at, Holder { number, before }) in holders.iter().enumerate() {
            self.acknowledged[at] += u64::from(self.resources[at].write(*number, *before));
        }
    }

    /// The first holders have read, the second have read, the first write, the second write: who claims loses nothing,
    /// and both of the others lose what the first wrote.
    fn judge(mut self, first: &[Holder], second: &[Holder]) {
        for (first, second) in first.iter().zip(second) {
            assert!(first.number < second.number, "{first:?} {second:?}");
        }
        self.write(first);
        self.write(second);
        let versions = self.resources.each_ref().map(Resource::version);
        assert_eq!((versions, self.acknowledged), ([1, 1, 1], [1, 2, 2]), "{first:?} {second:?}");
        // And who comes late to a resource that claims is refused before it reads.
        assert_eq!(self.resources[0].read(first[0].number), None);
    }
}

/// What nobody was told of, and stayed, although nothing that was answered has been lost.
fn assert_no_orphans(history: History) {
    let unexcused = History { losses: Vec::new(), ..history };
    let orphans: Vec<_> = check(&unexcused).into_iter().filter(|one| one.promise == "I7").collect();
    assert!(orphans.is_empty(), "{orphans:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_stood_still_costs_a_claiming_resource_no_update_and_leaves_no_orphan() {
    let options = SentinelOptions { is_divisible: true, ..SentinelOptions::default() };
    let setup = SentinelSetup::start_with(options).await;
    let gateways = gateways(2, &setup.url(), &[]).await;
    let [here, there] = [0, 1].map(|at: usize| Client::new(gateways[at].address));
    let load = Load::start("sentinel-stall", &gateways).await;
    let mut accounts = Accounts::new();

    let start_us = now_us();
    let first = accounts.take_and_read(&here, "500ms").await;
    // The last grants are made and copied, and nobody hears of them.
    let pids: Vec<_> = gateways.iter().map(Gateway::pid).collect();
    setup.network().lose_answers_to(&pids);
    let untold = [0, 1].map(|at| {
        let (witness, client) = (load.witness(at).clone(), Client::new(gateways[at].address));
        let asking = async move {
            let (token, acquire) = (fresh_token(), Action::Acquire { ttl_ms: 3_600_000 });
            witness.ask(&client, UNTOLD[at], Some(&token), acquire, PATIENCE).await
        };
        tokio::spawn(asking)
    });
    eventually("the grants are copied", async || {
        let copied = UNTOLD.map(|key| has_lock(&setup.servers[1], key));
        join_all(copied).await == [true, true]
    })
    .await;
    setup.servers[0].stand_still().await;
    setup.network().mend();
    let promotion = Promotion { server: 1, at: setup.servers[1].becomes_primary().await };
    all_resume(&gateways, promotion, &setup.servers[1], new_key).await;
    load.lost_since(start_us);
    let second = accounts.take_and_read(&there, "30s").await;
    // It runs what had been sent to it, and takes itself for the primary.
    setup.servers[0].signal("CONT");
    assert_eq!(setup.servers[0].info("role").await, "master");
    load.goes_on().await;
    accounts.judge(&first, &second);
    setup.settles_on(1).await;
    join_all(untold).await.into_iter().for_each(|asked| drop(asked.unwrap()));
    let history = load.judge(&gateways).await;
    assert_no_orphans(history);
}

/// The numbers that were granted within these times.
fn granted_within(history: &History, start_us: u64, end_us: u64) -> Vec<u64> {
    let within = history.operations.iter().filter(|operation| {
        operation.span.start_us > start_us && operation.span.end_us < end_us && operation.is_acquire()
    });
    let numbers = within.filter_map(|operation| match operation.answer {
        Answer::Granted { number, .. } => Some(number),
        _ => None,
    });
    numbers.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_is_cut_off_with_a_gateway_costs_a_claiming_resource_no_update() {
    let options = SentinelOptions { is_divisible: true, ..SentinelOptions::default() };
    let setup = SentinelSetup::start_with(options).await;
    let gateways = gateways(2, &setup.url(), &[]).await;
    let [cut_off, rightful] = [0, 1].map(|at: usize| Client::new(gateways[at].address));
    let load = Load::start("sentinel-split", &gateways).await;
    let mut accounts = Accounts::new();

    let start_us = now_us();
    setup.network().cut_off(&[setup.servers[0].pid(), setup.sentinels[2].pid(), gateways[0].pid()]);
    let promotion = Promotion { server: 1, at: setup.servers[1].becomes_primary().await };
    all_resume(&gateways[1..], promotion, &setup.servers[1], new_key).await;
    let split_us = now_us();
    // Both sides grant what the other one holds.
    let first = accounts.take_and_read(&cut_off, "30s").await;
    let second = accounts.take_and_read(&rightful, "30s").await;
    load.goes_on().await;
    accounts.judge(&first, &second);

    let mended_us = now_us();
    setup.network().mend();
    let mended = Promotion { server: 1, at: Instant::now() };
    all_resume(&gateways[..1], mended, &setup.servers[1], new_key).await;
    load.lost_since(start_us);
    load.split_since(start_us);

    let deposed = granted_within(&load.witness(0).history(), split_us, mended_us);
    let successors = granted_within(&load.witness(1).history(), split_us, mended_us);
    assert!(!deposed.is_empty(), "the cut-off side granted nothing: too little was put to the test");
    let (largest, smallest) = (deposed.iter().max().unwrap(), successors.iter().min().unwrap());
    assert!(largest < smallest, "numbers of a deposed primary rose above its successor's");

    setup.settles_on(1).await;
    load.judge(&gateways).await;
}

/// Without replicas a primary takes no writes here, so once that is noticed there is one holder at a time again.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_needs_replicas_stops_granting_when_it_is_cut_off() {
    let options = SentinelOptions {
        is_divisible: true,
        server_args: &["--min-replicas-to-write", "1", "--min-replicas-max-lag", "1"],
        ..SentinelOptions::default()
    };
    let setup = SentinelSetup::start_with(options).await;
    let gateways = gateways(2, &setup.url(), &[]).await;
    let cut_off = Client::new(gateways[0].address);
    let load = Load::start("sentinel-min-replicas", &gateways).await;

    let start_us = now_us();
    setup.network().cut_off(&[setup.servers[0].pid(), setup.sentinels[2].pid(), gateways[0].pid()]);
    let promotion = Promotion { server: 1, at: setup.servers[1].becomes_primary().await };
    all_resume(&gateways[1..], promotion, &setup.servers[1], new_key).await;
    eventually("the cut-off side grants nothing any more", async || {
        let answer = cut_off.put(&format!("/locks/{}", new_key())).send().await;
        answer.status == 503
    })
    .await;
    let stopped_us = now_us();
    println!("it stopped {} ms after the cut", (stopped_us - start_us) / 1_000);

    let enough = load.witness(1).history().operations.len() + 300;
    eventually("the other side goes on", async || load.witness(1).history().operations.len() > enough).await;
    let answer = cut_off.put(&format!("/locks/{}", new_key())).send().await;
    let answer = answer.expect_problem(503, "store-unavailable");
    assert!(answer.json()["detail"].as_str().unwrap().contains("NOREPLICAS"), "{}", answer.json());
    let granted = granted_within(&load.witness(0).history(), stopped_us, now_us());
    assert_eq!(granted, [0; 0], "it goes on granting");

    setup.network().mend();
    let mended = Promotion { server: 1, at: Instant::now() };
    all_resume(&gateways[..1], mended, &setup.servers[1], new_key).await;
    // What it granted before it stopped is not known to its successor, and its word on who holds what is an old one.
    load.lost_since(start_us);
    load.split_since(start_us);
    load.judge(&gateways).await;
}
