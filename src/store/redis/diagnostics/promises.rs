//! What becomes of the promises I1 to I5 on servers that were looked at.

use crate::store::diagnostics::PromiseStatus;
use crate::store::redis::address::Layout;
use crate::store::redis::health::loading::Loading;
use crate::store::redis::health::preflight::Look;
use crate::store::redis::health::profile::Profile;

/// What becomes of the promises I1 to I5 on these servers.
pub(super) fn statuses(looks: &[Look], layout: &Layout, replicas_ack: u32) -> [PromiseStatus; 5] {
    let any = |holds: &dyn Fn(&Profile) -> bool| looks.iter().any(|look| holds(&look.profile));
    let fails_over = *layout != Layout::Server || any(&|profile| profile.replicas > 0);
    let lacks_guard =
        looks.iter().find_map(|look| look.profile.lacks_guard(&look.config)).filter(|_| fails_over);
    let goes_on = lacks_guard.map(|reason| {
        let (goes_on, in_which) = match layout {
            // It notices by itself that it cannot reach most primaries.
            Layout::Cluster => (
                "a primary that is cut off goes on granting for about cluster-node-timeout",
                " in slots that were not used before, or",
            ),
            _ => ("a primary that is cut off goes on granting", ""),
        };
        (
            format!("{goes_on}{in_which} after a restart or a loss of data ({reason})"),
            format!("{goes_on} ({reason})"),
        )
    });
    let numbers = match &goes_on {
        Some((numbers, _)) => PromiseStatus::unless(&[numbers]),
        // Its successor has settings of its own, which are not known here.
        None if fails_over => PromiseStatus::unless(&[
            "a replica is promoted that lacks min-replicas-to-write, and is cut off in turn (replicas are not asked)",
        ]),
        None => PromiseStatus::Holds,
    };
    let mut exceptions: Vec<_> = looks.iter().flat_map(forgets).collect();
    exceptions.sort_unstable();
    exceptions.dedup();
    if fails_over {
        let may_lack_all = any(&|profile| profile.replicas > u64::from(replicas_ack));
        exceptions.push(match replicas_ack {
            0 => "a replica is promoted (it may lack what was granted last, and its clock may be ahead)",
            _ if may_lack_all => {
                "a replica is promoted that has not acknowledged the lock, lacks its renewal, or has a clock that is ahead"
            }
            _ => "a replica is promoted (it may lack the last renewals, and its clock may be ahead)",
        });
    }
    if let Some((_, exclusion)) = &goes_on {
        exceptions.push(exclusion);
    }
    let exclusion = loses_held_locks(looks).unwrap_or_else(|| PromiseStatus::unless(&exceptions));
    [numbers.clone(), numbers.clone(), exclusion, PromiseStatus::Holds, numbers]
}

/// The same for a quorum. A server that has forgotten all is in quarantine. One that loses single locks counts.
pub(super) fn of_quorum(looks: &[Look]) -> [PromiseStatus; 5] {
    let numbers = PromiseStatus::unless(&["most servers forget at once (then it rests on their clocks)"]);
    let exclusion = loses_held_locks(looks).unwrap_or_else(|| {
        PromiseStatus::unless(&["most servers forget at once", "the clock of a server is set forward"])
    });
    [numbers.clone(), numbers.clone(), exclusion, PromiseStatus::Holds, numbers]
}

/// That I3 does not hold, since servers lose locks that are held, although they run on.
fn loses_held_locks(looks: &[Look]) -> Option<PromiseStatus> {
    let any = |holds: &dyn Fn(&Profile) -> bool| looks.iter().any(|look| holds(&look.profile));
    let why = if any(&|profile| !profile.identity.is_primary) {
        "it is a replica, which forgets what is written to it"
    } else if any(&Profile::evicts) {
        "it evicts locks that are held"
    } else {
        return None;
    };
    Some(PromiseStatus::Fails(why.to_owned()))
}

/// What it takes for a server to forget locks.
fn forgets(Look { profile, config, loading, .. }: &Look) -> Vec<&'static str> {
    if !profile.has_append_only_file {
        return vec![match config.takes_snapshots {
            Some(true) => "the server restarts (it forgets the last minutes)",
            Some(false) => "the server restarts (it forgets all locks)",
            None => "the server restarts (it forgets the last minutes, or all locks)",
        }];
    }
    let by_restart = match loading {
        Loading::All => None,
        Loading::Part(_) => Some("the server restarts (it may forget all locks)"),
        Loading::Unknown => Some("the server restarts (whether it forgets locks is not known)"),
    };
    let by_crash = match config.append_fsync.as_deref() {
        Some("always") => None,
        Some("everysec") => Some("its machine crashes (it forgets the last second)"),
        Some("no") => Some("its machine crashes (it forgets what was not synced)"),
        _ => Some("its machine crashes (how much it forgets is not known)"),
    };
    by_restart.into_iter().chain(by_crash).collect()
}
