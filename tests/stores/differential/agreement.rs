//! When two answers are the same: what the stores count apart, numbers of grants and tickets, are in the same order, and lengths
//! of leases within a tolerance.

use fencepost::lock::{
    Acquired, Broken, Confirmed, Enqueued, FencingToken, Inspected, LastPolled, Lease, Polled, QueuePosition,
    Refusal, ReleaseEffect, Released, Renewed, RolledBack, Ticket,
};
use fencepost::store::Reply;

/// Less than any two lengths differ that a request can tell apart.
const TOLERANCE_MS: u64 = 250;

/// What was seen in a sequence, first as the table has it and then as Redis does.
#[derive(Default)]
pub struct Known {
    fences: Vec<(u64, u64)>,
    tickets: Vec<(u64, u64)>,
}

/// What two answers tell of: first as the table has it and then as Redis does.
pub struct Numbers {
    pub fences: Vec<(FencingToken, FencingToken)>,
    pub tickets: Vec<(Ticket, Ticket)>,
}

/// What differs between the answers of the table and of Redis, or what both tell of.
pub fn agree((table, redis): (Reply, Reply), known: &mut Known) -> Result<Numbers, String> {
    let ((of_table, by_table), (of_redis, by_redis)) = (masked(table.clone()), masked(redis.clone()));
    let pairs_of = |a: Vec<u64>, b: Vec<u64>| a.into_iter().zip(b).collect::<Vec<_>>();
    let fences = pairs_of(by_table.fences, by_redis.fences);
    let tickets = pairs_of(by_table.tickets, by_redis.tickets);
    let lengths = pairs_of(by_table.lengths_ms, by_redis.lengths_ms);
    let is_same = of_table == of_redis
        && lengths.iter().all(|(a, b)| a.abs_diff(*b) <= TOLERANCE_MS)
        && are_in_order(&mut known.fences, &fences)
        && are_in_order(&mut known.tickets, &tickets);
    if !is_same {
        return Err(format!("  the table: {table:?}\n  Redis:     {redis:?}"));
    }
    let fence = |number| FencingToken::new(number).unwrap();
    Ok(Numbers {
        fences: fences.into_iter().map(|(a, b)| (fence(a), fence(b))).collect(),
        tickets: tickets.into_iter().map(|(a, b)| (Ticket::new(a), Ticket::new(b))).collect(),
    })
}

/// The answer without what it says of others, who may have come before it or behind it.
pub fn of_itself(mut reply: Reply) -> Reply {
    match &mut reply {
        Reply::Try(Acquired::NotTaken(refusal)) => *refusal = Refusal::default(),
        Reply::Release(ReleaseEffect { answer: answer @ Released::HeldByAnother, .. }) => {
            *answer = Released::NotHeld
        }
        _ => {}
    }
    reply
}

/// Whether both have these in the same order as each other, and as those that they had before.
fn are_in_order(known: &mut Vec<(u64, u64)>, seen: &[(u64, u64)]) -> bool {
    seen.iter().all(|pair| {
        let is_in_order = known.iter().all(|(a, b)| a.cmp(&pair.0) == b.cmp(&pair.1));
        known.push(*pair);
        is_in_order
    })
}

/// What was taken out of an answer.
#[derive(Default)]
struct Parts {
    fences: Vec<u64>,
    tickets: Vec<u64>,
    lengths_ms: Vec<u64>,
}

/// The answer without what is compared by other means than equality.
fn masked(mut reply: Reply) -> (Reply, Parts) {
    let mut parts = Parts::default();
    match &mut reply {
        Reply::Try(answer) => parts.take_acquired(answer, Parts::take_refusal),
        Reply::Confirm(Confirmed::AlreadyHeld(lease)) => parts.take_lease(lease),
        Reply::Confirm(Confirmed::Refused(refusal)) => parts.take_refusal(refusal),
        Reply::Enqueue(answer) => parts.take_acquired(answer, |parts, told| match told {
            Enqueued::Polled(polled) => parts.take_polled(polled),
            Enqueued::QueueFull => {}
        }),
        Reply::Poll(answer) => parts.take_acquired(answer, Parts::take_polled),
        Reply::LastPoll(answer) => parts.take_acquired(answer, |parts, told| match told {
            LastPolled::Refused(refusal) => parts.take_refusal(refusal),
            LastPolled::TicketLost => {}
        }),
        Reply::Renew(Renewed::Renewed(lease) | Renewed::MaxHoldReached(lease)) => parts.take_lease(lease),
        Reply::Release(effect) => {
            if let Some(ended) = &mut effect.ended {
                parts.take_fence(&mut ended.fencing_token);
                parts.take_length(&mut ended.kept_ms);
            }
        }
        Reply::RollBack(RolledBack::Ended { kept_ms: ms } | RolledBack::LeftToToken { left_ms: ms }) => {
            parts.take_length(ms);
        }
        Reply::Inspect(Inspected::Held { lease, sharing, yours, .. }) => {
            // Which of several ends first is decided by milliseconds.
            if let Some(sharing) = sharing {
                sharing.holders.sort_by_key(|lease| lease.slot.map(|slot| slot.number));
                if *yours != Some(true) {
                    *lease = sharing.holders[0].clone();
                }
                sharing.holders.iter_mut().for_each(|lease| parts.take_lease(lease));
            }
            parts.take_lease(lease);
        }
        Reply::Break(Broken::Broken(lease)) => parts.take_lease(lease),
        _ => {}
    }
    (reply, parts)
}

impl Parts {
    fn take_acquired<T>(&mut self, answer: &mut Acquired<T>, take: impl FnOnce(&mut Self, &mut T)) {
        match answer {
            Acquired::Granted(lease) | Acquired::AlreadyHeld(lease) => self.take_lease(lease),
            Acquired::NotTaken(told) => take(self, told),
            Acquired::NotReplicated { .. }
            | Acquired::TokenReleased
            | Acquired::AttemptVoided
            | Acquired::TakenOver
            | Acquired::HeldOtherwise(_) => {}
        }
    }

    fn take_refusal(&mut self, refusal: &mut Refusal) {
        match &mut refusal.holder {
            holder if refusal.sharing.as_ref().is_some_and(|sharing| sharing.held > 1) => *holder = None,
            Some(lease) => self.take_lease(lease),
            None => {}
        }
    }

    fn take_polled(&mut self, polled: &mut Polled) {
        if let Polled::Queued(position) | Polled::Moved(position) = polled {
            let QueuePosition { ticket, due_in_ms, .. } = position;
            self.tickets.push(std::mem::replace(ticket, Ticket::new(0)).get());
            self.take_length(due_in_ms);
        }
    }

    fn take_lease(&mut self, lease: &mut Lease) {
        self.take_fence(&mut lease.fencing_token);
        self.take_length(&mut lease.left_ms);
    }

    fn take_fence(&mut self, fence: &mut FencingToken) {
        self.fences.push(std::mem::replace(fence, FencingToken::new(1).unwrap()).get());
    }

    fn take_length(&mut self, ms: &mut u64) {
        self.lengths_ms.push(std::mem::take(ms));
    }
}
