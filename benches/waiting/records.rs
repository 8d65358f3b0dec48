//! What records cost those who wait for them, and those who only want locks.

use std::time::{Duration, Instant};

use crate::Plan;
use crate::report::{RecordFindings, RecordRound, is_undisturbed};
use crate::shared::cpu::Cpu;
use crate::shared::servers::Server;
use crate::stores::Stores;
use crate::unrelated;
use crate::woken::Work;

/// Room for all results of a run.
const ROOM: [&str; 2] = ["--once-memory", "8589934592"];
/// How long the workers store before anything is measured beside them.
const WARM_UP: Duration = Duration::from_millis(100);

/// Two gateways on one Redis.
pub async fn on_redis(plan: &Plan) -> Result<RecordFindings, String> {
    let here = Server::on_redis_set("Redis", &ROOM);
    let there = here.another(&ROOM);
    of_store(plan, &here, Some(&there)).await.map_err(|mismatch| told(mismatch, &here))
}

/// One gateway on its own store.
pub async fn in_memory(plan: &Plan) -> Result<RecordFindings, String> {
    let server = Server::embedded_set("memory", "memory:", &ROOM);
    of_store(plan, &server, None).await.map_err(|mismatch| told(mismatch, &server))
}

fn told(mismatch: String, server: &Server) -> String {
    format!("{}: {mismatch}\nits log: {}", server.name, server.log())
}

async fn of_store(plan: &Plan, here: &Server, there: Option<&Server>) -> Result<RecordFindings, String> {
    let mut same = Work::open("same", here.address, here.address).await?;
    let mut other = match there {
        Some(there) => Some(Work::open("other", here.address, there.address).await?),
        None => None,
    };
    let mut findings = RecordFindings { store: here.name, rounds: Vec::new() };
    let servers: Vec<&Server> = [Some(here), there].into_iter().flatten().collect();
    for number in 1..=plan.most_rounds {
        let (before, started) = (Cpu::read(&servers), Instant::now());
        let mut round = RecordRound::default();
        for _ in 0..plan.woken {
            round.same_ns.push(same.woken().await?);
            if let Some(other) = &mut other {
                round.other_ns.push(other.woken().await?);
            }
        }
        // Which of both comes first changes from round to round.
        let turns = if number % 2 == 0 { [true, false] } else { [false, true] };
        for beside_stores in turns {
            let stores = beside_stores.then(|| Stores::start(here.address, number));
            if stores.is_some() {
                tokio::time::sleep(WARM_UP).await;
            }
            let turn = number * 2 + usize::from(beside_stores);
            let latency = unrelated::measure(here.address, turn, plan.measured).await?;
            match stores {
                Some(stores) => (round.beside, round.stores_per_s) = (latency, stores.end()?),
                None => round.alone = latency,
            }
        }
        let others = Cpu::read(&servers).since(&before).others();
        round.others_cores = others.as_secs_f64() / started.elapsed().as_secs_f64();
        findings.rounds.push(round);
        if findings.rounds.iter().filter(|round| is_undisturbed(round.others_cores)).count() >= plan.rounds {
            break;
        }
    }
    Ok(findings)
}
