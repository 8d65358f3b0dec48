//! Several locks for one token: all of them, or none.
//!
//! They are taken one after the other, in the order of the bytes of their keys, whatever order they were asked for in. So a
//! request waits only for a key that comes later than all it has, and no requests wait for each other in a circle. The rule is that
//! of Havender, "Avoiding deadlock in multitasking systems", IBM Systems Journal 7 (1968).
//!
//! Until it has the last one, the gateway keeps the others as it does for a connection: each by an attempt of its own and a short
//! lease, which is renewed. So a gateway that dies between two keys leaves little behind, and what is refused is given back.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep};

use super::super::time::RETRY_PAUSE;
use super::super::{AcquireRequest, GrantGuard, LockService, NotAcquired, Tenant};
use super::{Denial, Hold, Keeper, Kept, Loss};
use crate::clock::Backoff;
use crate::lock::{Attempt, Inspected, Lease, LeaseToken, LockKey, TokenHash, Ttl};
use crate::store::{PassOn, StoreError};

/// The most locks that one request can take.
pub const MOST_LOCKS: usize = 16;
/// The longest lease of a lock while the request has not got all of them. A gateway that dies then leaves no more behind.
const LONGEST_TTL_OF_PART_MS: u64 = 10_000;

/// How often a request takes over again what another of its token has taken over. Copies that arrive at once disturb each other often, and
/// for a moment. A request that waits counts each time for more: another that comes while it waits is a repetition, and goes on.
const MOST_TAKEN_BACK: usize = 20;
const TAKEN_WHILE_IT_WAITS: usize = 5;
/// The longest pause before that, or so many times as long as a round took, if that is more: of several that begin again, one must get
/// through before the next begins.
const LONGEST_PAUSE: Duration = Duration::from_millis(160);
const PAUSE_IN_ROUNDS: u32 = 8;
/// A ticket may last for no longer, where the store does not answer for how long it does.
const SHORTEST_TICKET_TTL: Duration = Duration::from_secs(1);
/// A request that has asked for a lock for so long waits.
const WAITS_AFTER: Duration = Duration::from_millis(300);

/// The answer to a request for several locks. But for the first, none of them is held by it.
pub enum Several<T> {
    /// All are held.
    Held(T),
    /// This is why the token did not get this one.
    NotHeld(LockKey, LeaseToken, NotAcquired),
    /// This one was lost while the others were taken.
    Lost(LockKey, Loss),
    /// The store failed when this one was taken. Others may be held until they are rolled back.
    Failed(LockKey, StoreError),
    /// The gateway has as many locks to renew as it may have.
    TooManyHolds,
}

impl<T> Several<T> {
    fn map<U>(self, change: impl FnOnce(T) -> Several<U>) -> Several<U> {
        match self {
            Self::Held(held) => change(held),
            Self::NotHeld(key, token, why) => Several::NotHeld(key, token, why),
            Self::Lost(key, loss) => Several::Lost(key, loss),
            Self::Failed(key, error) => Several::Failed(key, error),
            Self::TooManyHolds => Several::TooManyHolds,
        }
    }
}

/// Several locks that one token holds.
pub struct HeldSeveral {
    /// The token that holds them.
    pub token: LeaseToken,
    /// The lease of each, in the order in which they were asked for.
    pub leases: Vec<Lease>,
    /// Whether any of them is a new grant.
    pub is_new: bool,
    /// What rolls them back, unless their client is told of them.
    pub guards: Vec<GrantGuard>,
}

/// A lock that the request has, and the place of its key among those that were asked for.
struct Part(usize, Box<Keeper>);

/// What a request for several locks asks for.
struct Plan<'a> {
    request: &'a AcquireRequest,
    keys: &'a [LockKey],
    /// The token, if the request has none.
    made: Option<LeaseToken>,
    /// When the wait is over.
    ends_at: Instant,
    permit: Arc<OwnedSemaphorePermit>,
}

impl LockService {
    /// Takes the locks of all these keys, or none of them, and says why not. `request` says how; its own key does not count.
    /// What [`acquire`](Self::acquire) says of dropping holds here too.
    pub async fn acquire_several(&self, request: AcquireRequest, keys: &[LockKey]) -> Several<HeldSeveral> {
        self.take_all(request, keys).await.map(|mut keepers| {
            // Measured once more, since one renewal may have taken longer than another.
            let mut leases = Vec::with_capacity(keepers.len());
            for keeper in &keepers {
                match keeper.known.now() {
                    Some(lease) => leases.push(lease),
                    None => return Several::Lost(keeper.key.clone(), Loss::Expired),
                }
            }
            Several::Held(HeldSeveral {
                leases,
                is_new: keepers.iter().any(|keeper| keeper.told_until.is_zero()),
                token: keepers.first().map_or_else(LeaseToken::generate, |keeper| keeper.token.clone()),
                guards: keepers.iter_mut().map(|keeper| keeper.guard.take()).collect(),
            })
        })
    }

    /// The same for a connection. Once they are held, the hold of each ends when the future at its place in `denied` completes.
    pub async fn hold_several(
        &self,
        request: AcquireRequest,
        keys: &[LockKey],
        denied: Vec<Denial>,
    ) -> Several<Vec<Hold>> {
        if let Some(key) = keys.first().filter(|_| self.wakeups.closing.is_cancelled()) {
            let token = request.token.unwrap_or_else(LeaseToken::generate);
            return Several::NotHeld(key.clone(), token, NotAcquired::ShuttingDown);
        }
        self.take_all(request, keys).await.map(|keepers| {
            let holds = keepers.into_iter().zip(denied);
            Several::Held(holds.map(|(keeper, denied)| self.for_connection(keeper, denied)).collect())
        })
    }

    /// Takes all, in the order of `keys`, or none of them.
    async fn take_all(&self, request: AcquireRequest, keys: &[LockKey]) -> Several<Vec<Box<Keeper>>> {
        let many = u32::try_from(keys.len()).unwrap_or(u32::MAX);
        let Ok(permit) = self.hold_permits.clone().try_acquire_many_owned(many) else {
            return Several::TooManyHolds;
        };
        let plan = Plan {
            request: &request,
            keys,
            made: request.token.is_none().then(LeaseToken::generate),
            ends_at: Instant::now() + request.wait,
            permit: Arc::new(permit),
        };
        let mut parts = Vec::with_capacity(keys.len());
        let mut pause = Backoff::new(RETRY_PAUSE, LONGEST_PAUSE);
        let mut taken_back = 0;
        loop {
            let began_at = Instant::now();
            let mut asked_at = began_at;
            let taken = match self.take_missing(&plan, &mut parts, &mut asked_at).await {
                Ok(lost) if lost.is_empty() => lengthen(&mut parts, request.ttl)
                    .await
                    .map_err(|(place, error)| Several::Failed(keys[place].clone(), error)),
                taken => taken,
            };
            let lost = match taken {
                Ok(lost) => lost,
                // It may take as long to roll back as it took to fail: the client is not to wait for that too. What was lost made it
                // drop what it asked for then, which may be granted yet.
                Err(Several::Failed(key, error)) if !parts.is_empty() || taken_back > 0 => {
                    return Several::Failed(key, StoreError::Unknown(error.into_reason()));
                }
                Err(why) => {
                    self.give_back(parts).await;
                    return why;
                }
            };
            let others = lost.iter().find(|(_, loss)| !matches!(loss, Loss::TakenOver));
            match others.or(lost.first()) {
                None => break,
                // The other request may be a copy of this one. Either may go on, but not both go without.
                Some((_, Loss::TakenOver)) if taken_back < MOST_TAKEN_BACK => {
                    parts.retain(|Part(place, _)| lost.iter().all(|(lost, _)| lost != place));
                    // One that does not wait was only served slowly.
                    let has_waited = !request.wait.is_zero() && asked_at.elapsed() > WAITS_AFTER;
                    taken_back += if has_waited { TAKEN_WHILE_IT_WAITS } else { 1 };
                    pause.allow(PAUSE_IN_ROUNDS * began_at.elapsed().min(WAITS_AFTER));
                    pause_and_renew(&mut pause, &mut parts).await;
                }
                Some((place, loss)) => {
                    let (key, loss) = (keys[*place].clone(), loss.clone());
                    self.give_back(parts).await;
                    return Several::Lost(key, loss);
                }
            }
        }
        parts.sort_by_key(|Part(place, _)| *place);
        Several::Held(parts.into_iter().map(|Part(_, keeper)| keeper).collect())
    }

    /// Takes one after the other, and renews meanwhile what it has. Returns what was lost, as [`lengthen`] does.
    async fn take_missing<T>(
        &self,
        plan: &Plan<'_>,
        parts: &mut Vec<Part>,
        asked_at: &mut Instant,
    ) -> Result<Vec<(usize, Loss)>, Several<T>> {
        let Plan { request, keys, ends_at, .. } = *plan;
        let mut in_order: Vec<_> = keys.iter().enumerate().collect();
        in_order.sort_by_key(|(_, key)| *key);
        let ttl = Ttl::from_ms(request.ttl.as_ms().min(LONGEST_TTL_OF_PART_MS)).unwrap_or(request.ttl);
        for (at, &(place, key)) in in_order.iter().enumerate() {
            if parts.iter().any(|Part(taken, _)| *taken == place) {
                continue;
            }
            let later = &in_order[at + 1..];
            // Of the later ones it has none, unless this one was taken from it.
            let has_later = parts.iter().any(|Part(taken, _)| later.iter().any(|(place, _)| place == taken));
            let left = ends_at.saturating_duration_since(Instant::now());
            let wait = if has_later { Duration::ZERO } else { left };
            let mut one = AcquireRequest { key: key.clone(), ttl, wait, ..request.clone() };
            one.tenant.place = place;
            *asked_at = Instant::now();
            let kept = tokio::select! {
                biased;
                kept = self.keep_next(plan, one, later) => kept,
                lost = first_lost(parts) => return Ok(vec![lost]),
            };
            match kept {
                Ok(Kept::Held(keeper)) => parts.push(Part(place, keeper)),
                Ok(Kept::NotHeld(token, why)) => return Err(Several::NotHeld(key.clone(), token, why)),
                Err(error) => return Err(Several::Failed(key.clone(), error)),
            }
        }
        Ok(Vec::new())
    }

    /// Takes the next one. It waits only where its token holds none of those that come `later`: the holder of one of these may
    /// wait for that token in turn.
    async fn keep_next(
        &self,
        plan: &Plan<'_>,
        request: AcquireRequest,
        later: &[(usize, &LockKey)],
    ) -> Result<Kept, StoreError> {
        let keep = |request| self.keep(plan.made.clone(), request, plan.permit.clone());
        let Some(token) = request.token.as_ref().filter(|_| !request.wait.is_zero()) else {
            return keep(request).await;
        };
        let refused = keep(AcquireRequest { wait: Duration::ZERO, ..request.clone() }).await?;
        if !matches!(refused, Kept::NotHeld(_, NotAcquired::Refused(_))) {
            return Ok(refused);
        }
        for (_, key) in later {
            if let Inspected::Held { yours: Some(true), .. } = self.inspect(key, Some(token)).await? {
                return Ok(refused);
            }
        }
        let wait = plan.ends_at.saturating_duration_since(Instant::now());
        tokio::select! {
            biased;
            kept = keep(AcquireRequest { wait, ..request.clone() }) => kept,
            never = self.keep_tickets(token.hash(), later, &request.tenant) => never,
        }
    }

    /// Keeps the tickets that the token has in these queues from earlier requests: its client waits elsewhere. Never ends.
    async fn keep_tickets<T>(&self, token: TokenHash, later: &[(usize, &LockKey)], tenant: &Tenant) -> T {
        // No ticket has this attempt, so none is let go.
        let attempt = Attempt::generate();
        let mut queues = later.to_vec();
        loop {
            // Where it has no ticket, there is nothing to keep again.
            let mut shortest = Duration::MAX;
            for (place, key) in std::mem::take(&mut queues) {
                let pass_on = PassOn { key: key.clone(), token, attempt };
                let kept = self.store.call(pass_on, self.deadline()).await;
                let Some(ticket_ttl) = kept.unwrap_or(Some(SHORTEST_TICKET_TTL)) else { continue };
                Tenant { place, ..tenant.clone() }.keeps_ticket(true);
                queues.push((place, key));
                shortest = shortest.min(ticket_ttl);
            }
            sleep(shortest / 3).await;
        }
    }

    /// Rolls back, the last one first. What cannot be rolled back at once is in the background.
    async fn give_back(&self, parts: Vec<Part>) {
        let deadline = Instant::now() + self.store_timeout / 4;
        for Part(_, mut keeper) in parts.into_iter().rev() {
            let _ = keeper.guard.take().roll_back_now(deadline).await;
        }
    }
}

/// Renews all of them until one is lost. Returns the place of its key.
async fn first_lost(parts: &mut [Part]) -> (usize, Loss) {
    let renewals =
        parts.iter_mut().map(|Part(place, keeper)| async { (*place, keeper.renew_until_lost().await) });
    // Without any, nothing is ever lost.
    match renewals.collect::<FuturesUnordered<_>>().next().await {
        Some(lost) => lost,
        None => pending().await,
    }
}

/// Makes a pause, and renews meanwhile what there is. What is lost is to be taken again.
async fn pause_and_renew(pause: &mut Backoff, parts: &mut Vec<Part>) {
    tokio::select! {
        () = pause.pause() => {}
        (lost, _) = first_lost(parts) => parts.retain(|Part(place, _)| *place != lost),
    }
}

/// Lengthens each lease to `ttl`. Returns the places of those that were lost, or of one of which that is not known, or whose
/// replicas have not acknowledged it in time: its client must not be told that it lasts for so long.
async fn lengthen(parts: &mut [Part], ttl: Ttl) -> Result<Vec<(usize, Loss)>, (usize, StoreError)> {
    let lengthened = parts.iter_mut().map(|Part(place, keeper)| async {
        keeper.ttl = ttl;
        keeper.guard.guards_for(ttl);
        match keeper.renew_until_answered().await {
            Ok(lost) => Ok(lost.map(|loss| (*place, loss))),
            Err(error) => Err((*place, error)),
        }
    });
    join_all(lengthened).await.into_iter().filter_map(Result::transpose).collect()
}
