//! `make chaos`: clients at work for as long as one likes while gateways, servers and the ways between them fail, the judge's
//! verdict, and a report for people.
//!
//! It goes in rounds of a minute. After each of them all is mended, and everything must come right again.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::time::{Instant, sleep};

use crate::chaos::foreign::ForeignRig;
use crate::chaos::report::{Losses, Report};
use crate::faults::cluster::ClusterRig;
use crate::faults::rig::{EmbeddedRig, RedisRig, Rig};
use crate::faults::round;
use crate::faults::states::RefusingRig;
use crate::quorum_faults::chaos::{QuorumRig, Rules};
use kit::history::{check, now_us};
use kit::resource::Discipline;
use kit::seed;
use kit::visitors::{self, Resources};

mod foreign;
mod report;
mod tests;

const DISCIPLINES: [Discipline; 3] = [Discipline::Claim, Discipline::CheckAtWrite, Discipline::Unfenced];
const ROUND: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(20);

/// A run among all other tests is short. `CHAOS_SECONDS`, `CHAOS_STORE` and `CHAOS_MAY_LOSE` say what `make chaos` wants.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_under_faults_is_survived_and_reported() {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let length = set("CHAOS_SECONDS").map_or(SHORT, |text| Duration::from_secs(text.parse().unwrap()));
    let store = set("CHAOS_STORE").unwrap_or_else(|| "redis".to_owned());
    let report = match store.as_str() {
        "file" => play(&store, length, EmbeddedRig::start().await).await,
        "redis" => play(&store, length, RedisRig::start().await).await,
        "refusing" => play(&store, length, RefusingRig::start().await).await,
        "cluster" => play(&store, length, ClusterRig::start().await).await,
        "quorum" => play(&store, length, QuorumRig::start(Rules::Minority).await).await,
        url if url.contains(':') => {
            let may_lose = set("CHAOS_MAY_LOSE").is_some();
            play("yours", length, ForeignRig::start(url, may_lose).await).await
        }
        other => panic!("there is no store {other}: file, redis, refusing, cluster, quorum, or an address"),
    };
    println!("{}", report.to_text());
    println!("the report: {}", report.write().display());
    assert_eq!(report.violations(), [""; 0], "promises were broken");
    assert_eq!(report.lost_by(Discipline::Claim), 0, "a resource that claims lost updates");
}

async fn play<R: Rig>(store: &str, length: Duration, mut rig: R) -> Report {
    let seed = seed();
    let mut random = StdRng::seed_from_u64(seed);
    let resources = visitors::resources_with(&DISCIPLINES);
    let began = Instant::now();
    let mut report = Report::new(store, now_us());
    let losses = Arc::new(Mutex::new(Vec::new()));
    let watching = tokio::spawn(watch(resources.clone(), losses.clone()));
    while began.elapsed() < length {
        let end = (began + length).min(Instant::now() + ROUND);
        let history = round(&mut rig, &mut random, &resources, |_| Instant::now() < end).await;
        let violations = check(&history).iter().map(ToString::to_string).collect();
        report.add(history, violations);
        println!("{} of {} s", began.elapsed().as_secs().min(length.as_secs()), length.as_secs());
    }
    watching.abort();
    report.losses = losses.lock().unwrap().clone();
    report.losses.push(lost(&resources));
    report
}

/// Looks each second at what the resources have lost.
async fn watch(resources: Resources, losses: Arc<Mutex<Vec<Losses>>>) {
    loop {
        losses.lock().unwrap().push(lost(&resources));
        sleep(Duration::from_secs(1)).await;
    }
}

fn lost(resources: &Resources) -> Losses {
    let mut losses = Losses { at_us: now_us(), of: [(0, 0); 3] };
    for of_lock in resources.values() {
        for (sum, resource) in losses.of.iter_mut().zip(of_lock.lock().unwrap().iter()) {
            sum.0 += resource.updates();
            sum.1 += resource.lost();
        }
    }
    losses
}
