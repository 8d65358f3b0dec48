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
use tokio::time::Instant;

use super::super::{AcquireRequest, GrantGuard, LockService, NotAcquired};
use super::{Denial, Hold, Keeper, Kept, Loss};
use crate::lock::{Inspected, Lease, LeaseToken, LockKey, Ttl};
use crate::store::StoreError;

/// The most locks that one request can take.
pub const MOST_LOCKS: usize = 16;
/// The longest lease of a lock while the request has not got all of them. A gateway that dies then leaves no more behind.
const LONGEST_TTL_OF_PART_MS: u64 = 10_000;

/// The answer to a request for several locks.
pub enum Several<T> {
    /// All are held.
    Held(T),
    /// None is held: this is why the token did not get this one.
    NotHeld(LockKey, LeaseToken, NotAcquired),
    /// The gateway has as many locks to renew as it may have.
    TooManyHolds,
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

impl LockService {
    /// Takes the locks of all these keys, or none of them, and says why not. `request` says how; its own key does not count.
    /// What [`acquire`](Self::acquire) says of dropping holds here too.
    pub async fn acquire_several(
        &self,
        request: AcquireRequest,
        keys: &[LockKey],
    ) -> Result<Several<HeldSeveral>, StoreError> {
        Ok(match self.take_all(request, keys).await? {
            Several::Held(mut keepers) => {
                // Measured once more, since one renewal may have taken longer than another.
                let leases = keepers
                    .iter()
                    .map(|keeper| keeper.known.now().ok_or_else(|| lost(keeper, &Loss::Expired)));
                Several::Held(HeldSeveral {
                    leases: leases.collect::<Result<_, _>>()?,
                    is_new: keepers.iter().any(|keeper| keeper.told_until.is_zero()),
                    token: keepers.first().map_or_else(LeaseToken::generate, |keeper| keeper.token.clone()),
                    guards: keepers.iter_mut().map(|keeper| keeper.guard.take()).collect(),
                })
            }
            Several::NotHeld(key, token, why) => Several::NotHeld(key, token, why),
            Several::TooManyHolds => Several::TooManyHolds,
        })
    }

    /// The same for a connection. Once they are held, the hold of each ends when the future at its place in `denied` completes.
    pub async fn hold_several(
        &self,
        request: AcquireRequest,
        keys: &[LockKey],
        denied: Vec<Denial>,
    ) -> Result<Several<Vec<Hold>>, StoreError> {
        Ok(match self.take_all(request, keys).await? {
            Several::Held(keepers) => {
                let holds = keepers.into_iter().zip(denied);
                Several::Held(holds.map(|(keeper, denied)| self.for_connection(keeper, denied)).collect())
            }
            Several::NotHeld(key, token, why) => Several::NotHeld(key, token, why),
            Several::TooManyHolds => Several::TooManyHolds,
        })
    }

    /// Takes all, in the order of `keys`, or none of them.
    async fn take_all(
        &self,
        request: AcquireRequest,
        keys: &[LockKey],
    ) -> Result<Several<Vec<Box<Keeper>>>, StoreError> {
        let ttl = request.ttl;
        let mut parts = Vec::with_capacity(keys.len());
        let refused = match self.take_each(request, keys, &mut parts).await {
            Ok(None) => match lengthen(&mut parts, ttl).await {
                Ok(()) => {
                    parts.sort_by_key(|Part(place, _)| *place);
                    return Ok(Several::Held(parts.into_iter().map(|Part(_, keeper)| keeper).collect()));
                }
                Err(error) => Err(error),
            },
            Ok(Some(not_held)) => Ok(not_held),
            Err(error) => Err(error),
        };
        let is_undone = self.give_back(parts).await;
        match refused {
            Err(StoreError::Unavailable(reason)) if !is_undone => Err(StoreError::Unknown(reason)),
            refused => refused,
        }
    }

    /// Takes one after the other, and renews meanwhile what it has. `None` once it has all of them.
    async fn take_each(
        &self,
        request: AcquireRequest,
        keys: &[LockKey],
        parts: &mut Vec<Part>,
    ) -> Result<Option<Several<Vec<Box<Keeper>>>>, StoreError> {
        let many = u32::try_from(keys.len()).unwrap_or(u32::MAX);
        let Ok(permit) = self.hold_permits.clone().try_acquire_many_owned(many) else {
            return Ok(Some(Several::TooManyHolds));
        };
        let permit = Arc::new(permit);
        let mut in_order: Vec<_> = keys.iter().enumerate().collect();
        in_order.sort_by_key(|(_, key)| *key);
        let ttl = Ttl::from_ms(request.ttl.as_ms().min(LONGEST_TTL_OF_PART_MS)).unwrap_or(request.ttl);
        let request = AcquireRequest { ttl, ..request };
        let made = request.token.is_none().then(LeaseToken::generate);
        let ends_at = Instant::now() + request.wait;
        for (at, &(place, key)) in in_order.iter().enumerate() {
            let wait = ends_at.saturating_duration_since(Instant::now());
            let one = AcquireRequest { key: key.clone(), wait, ..request.clone() };
            let kept = tokio::select! {
                biased;
                kept = self.keep_next(&made, one, &in_order[at + 1..], &permit) => kept?,
                lost = first_lost(parts) => return Err(lost),
            };
            match kept {
                Kept::Held(keeper) => parts.push(Part(place, keeper)),
                Kept::NotHeld(token, why) => return Ok(Some(Several::NotHeld(key.clone(), token, why))),
            }
        }
        Ok(None)
    }

    /// Takes the next one. It waits only where its token holds none of those that come `later`: the holder of one of these may
    /// wait for that token in turn.
    async fn keep_next(
        &self,
        made: &Option<LeaseToken>,
        request: AcquireRequest,
        later: &[(usize, &LockKey)],
        permit: &Arc<OwnedSemaphorePermit>,
    ) -> Result<Kept, StoreError> {
        let keep = |request| self.keep(made.clone(), request, permit.clone());
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
        keep(request).await
    }

    /// Rolls back, the last one first. Whether that is done: where it is not, it goes on in the background.
    async fn give_back(&self, parts: Vec<Part>) -> bool {
        let deadline = self.deadline();
        let mut is_undone = true;
        for Part(_, mut keeper) in parts.into_iter().rev() {
            is_undone &= keeper.guard.take().roll_back_now(deadline).await.is_ok();
        }
        is_undone
    }
}

/// Renews all of them until one is lost.
async fn first_lost(parts: &mut [Part]) -> StoreError {
    let renewals = parts.iter_mut().map(|Part(_, keeper)| async {
        let loss = keeper.renew_until_lost().await;
        lost(keeper, &loss)
    });
    // Without any, nothing is ever lost.
    match renewals.collect::<FuturesUnordered<_>>().next().await {
        Some(lost) => lost,
        None => pending().await,
    }
}

/// Lengthens each lease to `ttl`.
async fn lengthen(parts: &mut [Part], ttl: Ttl) -> Result<(), StoreError> {
    let lengthened = parts.iter_mut().map(|Part(_, keeper)| async {
        keeper.ttl = ttl;
        keeper.guard.guards_for(ttl);
        keeper.renew_until_answered().await.map_err(|loss| lost(keeper, &loss))
    });
    join_all(lengthened).await.into_iter().try_for_each(|lengthened| lengthened.map(drop))
}

/// What to say where one of the locks was lost before the last one was taken.
fn lost(keeper: &Keeper, loss: &Loss) -> StoreError {
    let key = keeper.key.as_str();
    match loss {
        Loss::TakenOver => StoreError::Unknown(format!(
            "another request of the same token has taken over the lock {key:?}, and may hold all of them"
        )),
        loss => {
            let reason = loss.reason().name();
            StoreError::Unavailable(format!(
                "the lock {key:?} was lost while the others were taken ({reason}): the others were given back"
            ))
        }
    }
}
