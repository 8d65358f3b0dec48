//! What must be true of every run, by what its clients saw.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use fencepost::lock::Released;
use fencepost::store::StoreError;

use super::faults::Faults;
use super::fleet::Answer;
use super::people::{Act, Deed};
use super::plan::PATIENT_MS;

/// A lease as its client sees it: from the store's answer until it says that it releases the lock, or until the lease
/// that it was told of is over. It really begins earlier and ends later, so what overlaps here overlaps indeed.
struct Hold<'a> {
    token: &'a str,
    from: Duration,
    until: Duration,
    told_until: Duration,
}

/// All that is wrong with a run, in words, and how many pairs of requests were found to be served in order.
/// `is_timely` says whether the machine kept the times on which answers, and the order of a line, rest.
pub fn judge(deeds: &[Deed], faults: Faults, is_timely: bool) -> (Vec<String>, usize) {
    let mut wrong = Vec::new();
    let releases = releases_by_token(deeds);
    let holds = holds_by_number(deeds, &releases, &mut wrong);
    one_at_a_time(&holds, &mut wrong);
    for deed in deeds {
        match &deed.act {
            Act::Put { .. } => answer_is_allowed(deed, deeds, faults, is_timely, &releases, &mut wrong),
            Act::Release(answer) => holder_is_believed(deed, answer.as_ref(), &holds, &releases, &mut wrong),
        }
    }
    let has_no_faults = faults.command_is_bad == 0.0 && faults.command_is_slow == 0.0 && !faults.kills;
    let is_calm = has_no_faults && faults.hint_is_lost == 0.0 && faults.hint_is_late == 0.0;
    let pairs = if is_calm && is_timely { first_come_first_served(deeds, &mut wrong) } else { 0 };
    (wrong, pairs)
}

fn name(deed: &Deed) -> Option<&str> {
    deed.token.as_ref().map(|token| token.reveal())
}

fn releases_by_token(deeds: &[Deed]) -> HashMap<&str, Vec<&Deed>> {
    let mut releases: HashMap<&str, Vec<&Deed>> = HashMap::new();
    for deed in deeds.iter().filter(|deed| matches!(deed.act, Act::Release(_))) {
        releases.entry(name(deed).unwrap_or_default()).or_default().push(deed);
    }
    for of_token in releases.values_mut() {
        of_token.sort_by_key(|deed| deed.started);
    }
    releases
}

fn holds_by_number<'a>(
    deeds: &'a [Deed],
    releases: &HashMap<&str, Vec<&Deed>>,
    wrong: &mut Vec<String>,
) -> BTreeMap<u64, Hold<'a>> {
    let mut holds: BTreeMap<u64, Hold> = BTreeMap::new();
    for deed in deeds {
        let Act::Put { answer: Answer::Granted(_, lease) | Answer::AlreadyHeld(_, lease), asked, .. } =
            &deed.act
        else {
            continue;
        };
        let token = name(deed).unwrap_or_default();
        let number = lease.fencing_token.get();
        let told_until = asked.answered + Duration::from_millis(lease.left_ms);
        let hold = Hold { token, from: asked.answered, until: told_until, told_until };
        let hold = holds.entry(number).or_insert(hold);
        hold.from = hold.from.min(asked.answered);
        hold.told_until = hold.told_until.max(told_until);
        hold.until = hold.told_until;
        if hold.token != token {
            wrong.push(format!("number {number} was given to two tokens"));
        }
    }
    for hold in holds.values_mut() {
        if let Some(first) = releases.get(hold.token).and_then(|releases| releases.first()) {
            hold.until = hold.until.min(first.started);
        }
    }
    holds
}

/// Numbers are given in the order of the grants, so every hold of a smaller number is over before one of a larger
/// number begins: no two at once, and numbers that grow in real time.
fn one_at_a_time(holds: &BTreeMap<u64, Hold>, wrong: &mut Vec<String>) {
    let mut latest: Option<(u64, Duration)> = None;
    for (number, hold) in holds {
        if let Some((before, until)) = latest
            && until > hold.from
        {
            wrong.push(format!(
                "two holders at once: number {before} until {:?} after number {number} was told",
                until - hold.from
            ));
        }
        if latest.is_none_or(|(_, until)| until < hold.until) {
            latest = Some((*number, hold.until));
        }
    }
}

fn answer_is_allowed(
    deed: &Deed,
    deeds: &[Deed],
    faults: Faults,
    is_timely: bool,
    releases: &HashMap<&str, Vec<&Deed>>,
    wrong: &mut Vec<String>,
) {
    let Act::Put { wait, answer, asked, .. } = &deed.act else { return };
    let took = deed.ended - deed.started;
    let released = name(deed).and_then(|token| releases.get(token)).into_iter().flatten();
    let has_losses = faults.command_is_bad > 0.0;
    // A patient one is to be answered long before the end of its wait. But where hints are lost, nobody tells a request
    // that its token was released, or that another one of its token was granted the lock from its place.
    let is_at_end_of_patience = *wait == Duration::from_millis(PATIENT_MS) && took >= *wait;
    let has_no_place = || matches!(answer, Answer::TokenReleased) || has_served_meanwhile(deed, deeds);
    if is_timely && is_at_end_of_patience && !(faults.hint_is_lost > 0.0 && has_no_place()) {
        wrong.push(format!("person {} waited to the end, and was answered {answer:?}", deed.person));
        return;
    }
    let is_allowed = match answer {
        Answer::Granted(..) | Answer::AlreadyHeld(..) => {
            let mut done = released.filter(|release| matches!(release.act, Act::Release(Some(Ok(_)))));
            !done.any(|release| release.ended < asked.sent)
        }
        // Nobody is sent away before the end of its wait.
        Answer::Refused => took >= *wait,
        Answer::TokenReleased => {
            released.min_by_key(|deed| deed.started).is_some_and(|r| r.started < deed.ended)
        }
        Answer::Failed(error) => {
            let (StoreError::Unavailable(reason) | StoreError::Unknown(reason)) = error;
            has_losses || !is_timely || reason.contains("the lease ended before")
        }
        Answer::HungUp => true,
        Answer::Lost | Answer::ShuttingDown => faults.kills,
        Answer::TooManyWaiters | Answer::Never => false,
    };
    if !is_allowed {
        wrong.push(format!("person {} was answered {answer:?} after {took:?}", deed.person));
    }
}

/// Whether another request of the same token was granted the lock while this one waited, or may have been: on a slow
/// machine a lease may be over before its answer comes.
fn has_served_meanwhile(deed: &Deed, deeds: &[Deed]) -> bool {
    let mut others = deeds.iter().filter(|other| other.token == deed.token && other.token.is_some());
    others.any(|other| {
        let granted = |answer: &Answer| matches!(answer, Answer::Granted(..) | Answer::Failed(_));
        matches!(&other.act, Act::Put { answer, .. } if granted(answer))
            && deed.started < other.ended
            && other.ended < deed.ended
    })
}

/// Nobody takes a lock away from its holder: the first release within the lease finds it.
fn holder_is_believed(
    deed: &Deed,
    answer: Option<&Result<Released, StoreError>>,
    holds: &BTreeMap<u64, Hold>,
    releases: &HashMap<&str, Vec<&Deed>>,
    wrong: &mut Vec<String>,
) {
    let Some(Ok(answer)) = answer else { return };
    let token = name(deed).unwrap_or_default();
    let is_first = releases.get(token).is_some_and(|releases| releases[0].started == deed.started);
    let mut holds = holds.values().filter(|hold| hold.token == token);
    let holds = holds.any(|hold| hold.from <= deed.started && deed.ended < hold.told_until);
    if is_first && holds && *answer != Released::Released {
        wrong.push(format!("person {} holds the lock, and its release was answered {answer:?}", deed.person));
    }
}

/// Whoever was told that it stands in line before another one asked is served before.
fn first_come_first_served(deeds: &[Deed], wrong: &mut Vec<String>) -> usize {
    let mut pairs = 0;
    let served = |deed: &Deed| match &deed.act {
        Act::Put { is_alone: true, answer: Answer::Granted(_, lease), asked, .. } => {
            Some((lease.fencing_token.get(), *asked, deed.person))
        }
        _ => None,
    };
    for (first, was_in_line, early) in deeds.iter().filter_map(served) {
        let Some(since) = was_in_line.in_line_since else { continue };
        for (second, asked, late) in deeds.iter().filter_map(served) {
            if asked.first_sent.is_some_and(|sent| since < sent) {
                pairs += 1;
                if second < first {
                    wrong.push(format!("person {late} came after person {early} and was served before"));
                }
            }
        }
    }
    pairs
}
