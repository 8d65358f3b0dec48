//! Six stores answer alike: random sequences of requests go to gateways of each store, in simulated time and without faults, and at
//! each step the answers are the same. What may differ stands in one table, with the reason ([`answer::MAY_DIFFER`]).
//!
//! A sequence (`plan.rs`) is drawn from the seed and its number. It has locks of its own, and is played together with others. A thread
//! and a runtime are new each time, so the same comes out whenever it is played. `TEST_SEED=… TEST_RUN=…` plays one again, and
//! `TEST_SEQUENCES=…` more of them.
//!
//! The seed is fixed: of fresh ones, about one sequence in a hundred still differs (see the README).

use std::ops::Range;
use std::process::Command;
use std::time::Duration;
use std::{env, thread};

use futures_util::future::join_all;
use tokio::time::sleep;

use self::answer::{MAY_DIFFER, Names, differ};
use self::plan::{Plan, What};
use self::scene::Fleets;
use crate::settings::Store;

mod answer;
mod plan;
mod scene;

const SEED: u64 = 2;
const SEQUENCES: u64 = 160;
/// For the process that plays them: the seed, the first number, and the one after the last.
pub const VARIABLE: &str = "SIM_ALIKE";
/// What gateways do each second is done once for all of these.
const AT_ONCE: usize = 20;
/// Gateways learn of their servers.
const AT_FIRST: Duration = Duration::from_secs(2);
/// The longest wait ends.
const AT_LAST: Duration = Duration::from_secs(8);

/// A test: the clock and the random bytes are those of a process of its own.
pub fn six_stores_answer_alike() {
    let asked = |name| env::var(name).ok().map(|number| number.parse::<u64>().unwrap());
    let (seed, count) = (asked("TEST_SEED").unwrap_or(SEED), asked("TEST_SEQUENCES").unwrap_or(SEQUENCES));
    let Range { start, end } = asked("TEST_RUN").map_or(0..count, |number| number..number + 1);
    let mut command = Command::new(env::current_exe().unwrap());
    let output = command.env(VARIABLE, format!("{seed} {start} {end}")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

/// Plays what the variable says, until a sequence differs. Returns whether none does.
pub fn play(what: &str) -> bool {
    let numbers: Vec<u64> = what.split(' ').map(|number| number.parse().unwrap()).collect();
    let [seed, start, end] = numbers[..] else { panic!("{VARIABLE}={what}") };
    let goes_on = env::var_os("SIM_ALIKE_ALL").is_some();
    let mut is_well = true;
    for first in (start..end).step_by(AT_ONCE) {
        let plans: Vec<_> =
            (first..end.min(first + AT_ONCE as u64)).map(|number| plan::draw(seed, number)).collect();
        for (plan, found) in plans.iter().zip(differences(&plans, seed)) {
            let Some(found) = found else { continue };
            is_well = false;
            let (shortest, difference) = shortest(plan.clone(), found, seed);
            println!("TEST_SEED={seed} TEST_RUN={}: {difference}\nafter", plan.number);
            shortest.steps.iter().for_each(|step| println!("  {step}"));
        }
        if !is_well && !goes_on {
            break;
        }
    }
    let allowed = MAY_DIFFER.iter().filter(|_| !is_well);
    allowed.for_each(|(what, why)| println!("may differ: {what}, since {why}"));
    println!("{:?} of the processor for {} sequences", system::processor_time(), end - start);
    is_well
}

/// Leaves out steps for as long as the rest still differs when it is played alone.
fn shortest(mut plan: Plan, mut difference: String, seed: u64) -> (Plan, String) {
    let mut at = 0;
    while at < plan.steps.len() {
        let mut shorter = plan.clone();
        shorter.steps.remove(at);
        match differences(std::slice::from_ref(&shorter), seed).remove(0) {
            Some(still) => (plan, difference, at) = (shorter, still, 0),
            None => at += 1,
        }
    }
    (plan, difference)
}

/// Plays these at once, by the same gateways. Returns in what each of them differs first.
fn differences(plans: &[Plan], seed: u64) -> Vec<Option<String>> {
    let play = || {
        system::simulate(seed);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            system::follow_tokio();
            let fleets = Store::ALL.map(Fleets::new);
            sleep(AT_FIRST).await;
            join_all(plans.iter().map(|plan| difference(plan, &fleets))).await
        })
    };
    thread::scope(|scope| scope.spawn(play).join().unwrap())
}

async fn difference(plan: &Plan, fleets: &[Fleets; 6]) -> Option<String> {
    let mut scenes = fleets.each_ref().map(|fleet| (fleet.scene(plan.number), Names::default()));
    for (at, step) in plan.steps.iter().enumerate() {
        for (scene, _) in &mut scenes {
            scene.play(step, plan.has_waits);
        }
        let is_last = at + 1 == plan.steps.len();
        sleep(if is_last { AT_LAST } else { Duration::from_millis(step.pause_ms) }).await;
        for asked in &plan.steps[..=at] {
            let What::Ask(request) = &asked.what else { continue };
            let told = scenes.each_mut().map(|(scene, names)| {
                let answers = scene.take(asked.id);
                (
                    scene.store,
                    answers.iter().map(|answer| names.in_words(answer, request)).collect::<Vec<_>>(),
                )
            });
            if let Some(difference) = differ(&told, request, plan.has_slots) {
                return Some(format!(
                    "#{} is answered otherwise by the end of #{}:{difference}",
                    asked.id, step.id
                ));
            }
        }
    }
    None
}
