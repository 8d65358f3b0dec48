//! Taking a lock at once, on whose account, and what is handed out of a store's answer.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::ledger::{AskedLease, Counted, Room};
use super::time::{ends_at, lease_left, pause_before};
use super::{AcquireRequest, Acquisition, Doing, GrantGuard, LockService, NotAcquired, Outcome};
use crate::clock::boottime;
use crate::lock::{Acquired, Attempt, Confirmed, LeaseToken, Refusal, RolledBack, Slots};
use crate::store::{Confirm, KnownTo, LockRequest, RollBack, StoreError, TicketAfter, Try};
use crate::telemetry::metrics::{DoubtEnded, WaitEnded, metrics};

/// How many acquires one request may send. Each is sent after the one before was voided, and leaves a tombstone behind.
const MOST_ACQUIRES: usize = 3;

impl LockService {
    /// Takes a lock, or says why not.
    ///
    /// A caller that drops this future, or the guard in its answer, leaves nothing behind: what was or may yet be
    /// granted is rolled back in the background.
    pub fn acquire(
        &self,
        request: impl Into<Box<AcquireRequest>>,
    ) -> impl Future<Output = Result<Acquisition, StoreError>> + Send {
        self.acquire_by(Attempt::generate(), None, request.into())
    }

    /// As [`acquire`](Self::acquire), at first by this attempt, and then by others of its kind. Where the request has no token,
    /// `made` is the one that was made for it.
    pub(super) async fn acquire_by(
        &self,
        attempt: Attempt,
        made: Option<LeaseToken>,
        mut request: Box<AcquireRequest>,
    ) -> Result<Acquisition, StoreError> {
        if request.terms.slots > Slots::ONE
            && let Some(why) = self.store.shares_no_locks()
        {
            let token = request.token.unwrap_or_else(LeaseToken::generate);
            return Ok(Acquisition { token, outcome: Outcome::NotTaken(NotAcquired::NotShared(why)) });
        }
        let mut room = None;
        let Some(account) = request.tenant.account.clone() else {
            return self.acquire_uncounted(attempt, made, request, &mut room).await;
        };
        // A token of ours takes nothing anew.
        if !request.only_confirms() {
            match self.room(&request.key, request.terms.slots, &account) {
                Room::Free(free) => room = free,
                Room::Full if request.token.is_some() => request.tenant.is_full = true,
                Room::Full => {
                    let (token, outcome) =
                        (LeaseToken::generate(), Outcome::NotTaken(NotAcquired::TooManyLocks));
                    return Ok(Acquisition { token, outcome });
                }
            }
        }
        let (key, is_full) = (request.key.clone(), request.tenant.is_full);
        let (min_hold, is_to_wait) = (request.terms.min_hold, !request.wait.is_zero());
        let asked_by = request.token.as_ref().map(|token| (token.hash(), boottime()));
        if let Some((hash, asked_at)) = &asked_by {
            // It may hold the lock already, and its lease is made longer then, even if the client does not hear of it.
            let longest = request.wait + self.store_timeout + request.ttl.as_duration();
            self.ledger.may_last(&key, hash, *asked_at, longest);
        }
        let mut acquisition = self.acquire_uncounted(attempt, made, request, &mut room).await?;
        // Where the holder is not known, it may be the token.
        if let Some((hash, asked_at)) = asked_by
            && let Outcome::NotTaken(
                NotAcquired::Refused(Refusal { holder_unknown: false, .. }) | NotAcquired::TokenReleased,
            ) = &acquisition.outcome
        {
            self.ledger.lost(&key, &hash, asked_at, false);
        }
        match &acquisition.outcome {
            Outcome::Granted(lease, ..) | Outcome::AlreadyHeld(lease, ..) => {
                let at = asked_by.map_or(Duration::ZERO, |(_, asked_at)| asked_at);
                let asked = AskedLease { at, min_hold };
                self.ledger.holds(&key, acquisition.token.hash(), lease, asked, &account, room);
            }
            // It gets no lock in any case, so it does not matter whether its token was released before.
            Outcome::NotTaken(NotAcquired::TokenReleased) if is_full => {
                acquisition.outcome = Outcome::NotTaken(NotAcquired::TooManyLocks);
            }
            // It asked to wait, and has not: to be told that another holds the lock would mean that it has.
            Outcome::NotTaken(NotAcquired::Refused(Refusal { holder_unknown: false, .. }))
                if is_full && is_to_wait =>
            {
                acquisition.outcome = Outcome::NotTaken(NotAcquired::TooManyLocks);
            }
            Outcome::NotTaken(_) => {}
        }
        Ok(acquisition)
    }

    /// The same without an account. `room` is what its account has kept for the lock. Each way is boxed, so that neither carries
    /// room for the other. If the outcome is unknown, the lease of a token that holds the lock may have been made longer.
    fn acquire_uncounted<'a>(
        &'a self,
        attempt: Attempt,
        made: Option<LeaseToken>,
        request: Box<AcquireRequest>,
        room: &'a mut Option<Counted>,
    ) -> BoxFuture<'a, Result<Acquisition, StoreError>> {
        let key = request.key.clone();
        let or_unclear = move |answer| self.watch.or_unclear(&key, answer);
        if request.wait.is_zero() || request.only_confirms() {
            return self.acquire_at_once(attempt, made, request).map(or_unclear).boxed();
        }
        let mut timer = WaitTimer { entered: Instant::now(), ended: WaitEnded::NotGranted };
        let token = request.token_or(made.as_ref());
        let turn = self.acquire_in_turn(attempt, token, request, room).inspect(move |answer| {
            if let Ok(Acquisition { outcome: Outcome::Granted(..) | Outcome::AlreadyHeld(..), .. }) = answer {
                timer.ended = WaitEnded::Granted;
            }
            drop(timer);
        });
        turn.map(or_unclear).boxed()
    }

    async fn acquire_at_once(
        &self,
        mut attempt: Attempt,
        made: Option<LeaseToken>,
        request: Box<AcquireRequest>,
    ) -> Result<Acquisition, StoreError> {
        let deadline = self.deadline();
        // A token that the gateway made is sent once. If that copy is late, no release has left a tombstone to refuse it.
        let mut acquires_left = if made.is_some() { 1 } else { MOST_ACQUIRES };
        // Whether all that earlier acquires of this request may have done is undone.
        let mut is_undone = true;
        loop {
            acquires_left -= 1;
            let token = request.token_or(made.as_ref());
            let lock = request.lock_request(token.hash(), attempt);
            let account = request.tenant.account.as_ref();
            let guard = self.cleaner.guard(&lock, request.ticket_after()).on_account(account);
            let sent_at = boottime();
            let doubt = match self.ask_once(&request, &lock, self.until(deadline)).await {
                Ok(answer) => {
                    let answer = answer.map(NotAcquired::Refused);
                    return match self.hand_out(&request, answer, attempt, sent_at, guard, deadline).await {
                        Ok(Outcome::NotTaken(NotAcquired::NotReplicated(reason))) if !is_undone => {
                            Err(StoreError::Unknown(reason))
                        }
                        Ok(outcome) => Ok(Acquisition { token, outcome }),
                        Err(StoreError::Unavailable(reason)) => Err(not_granted(is_undone, reason)),
                        Err(unknown) => Err(unknown),
                    };
                }
                Err(StoreError::Unavailable(reason)) => {
                    guard.disarm();
                    return Err(not_granted(is_undone, reason));
                }
                Err(StoreError::Unknown(reason)) => reason,
            };
            // Doubt ends here for good: once its attempt is voided, no copy of that command takes anything, however
            // late it is. Sending the same attempt again would leave such a copy alive beyond the end of the lease.
            let voided = Box::pin(self.void(lock, request.ticket_after(), doubt.clone(), deadline)).await;
            let undone = voided.map(|was_deleted| is_undone && request.is_undone(was_deleted));
            is_undone = before_another_try(undone, guard, doubt, acquires_left, deadline).await?;
            attempt = attempt.another();
        }
    }

    async fn ask_once(
        &self,
        request: &AcquireRequest,
        lock: &LockRequest,
        until: Instant,
    ) -> Result<Acquired<Refusal>, StoreError> {
        match request.only_confirms() {
            // A lock with room for it is like a free one.
            true => match self.store.call(Confirm(lock.clone()), until).await? {
                Confirmed::Refused(refusal) if refusal.has_room(lock.terms.slots) => {
                    Ok(Acquired::TokenReleased)
                }
                confirmed => Ok(confirmed.into()),
            },
            false => {
                let ask = self.store.call(Try(lock.clone()), until);
                match self.refusals.as_ref().filter(|_| request.token.is_none()) {
                    Some(refusals) => Box::pin(refusals.ask(&lock.key, until, ask)).await,
                    None => ask.await,
                }
            }
        }
    }

    /// Turns a store's answer into the caller's: what is left of a lease is counted from before it was asked for.
    pub(super) async fn hand_out(
        &self,
        request: &AcquireRequest,
        answer: Acquired<NotAcquired>,
        attempt: Attempt,
        sent_at: Duration,
        mut guard: GrantGuard,
        deadline: Instant,
    ) -> Result<Outcome, StoreError> {
        let over = || "the lease ended before the request could be answered: ask for a longer ttl".to_owned();
        match answer {
            Acquired::Granted(lease) => {
                guard.is_granted(lease.fencing_token);
                let ends_at = ends_at(&lease, sent_at);
                match lease_left(lease, sent_at) {
                    Some(lease) => {
                        self.watch.tell(&request.key, || Doing::Granted(lease.clone()));
                        Ok(Outcome::Granted(lease, guard, attempt, ends_at))
                    }
                    None => match guard.roll_back_now(deadline).await {
                        Ok(was_deleted) => Err(not_granted(request.is_undone(was_deleted), over())),
                        Err(_) => Err(StoreError::Unknown(over())),
                    },
                }
            }
            Acquired::NotReplicated { is_new: true, reason } => match guard.roll_back_now(deadline).await {
                Ok(was_deleted) if request.is_undone(was_deleted) => {
                    let reason = format!("{reason}; the gateway has released the lock");
                    Ok(Outcome::NotTaken(NotAcquired::NotReplicated(reason)))
                }
                Ok(_) => Err(StoreError::Unknown(format!(
                    "{reason}; the lock was gone when the gateway wanted to release it"
                ))),
                Err(_) => {
                    Err(StoreError::Unknown(format!("{reason}; the gateway is still releasing the lock")))
                }
            },
            Acquired::AlreadyHeld(lease) => {
                guard.disarm();
                let ends = [ends_at(&lease, sent_at), boottime() + Duration::from_millis(lease.left_ms)];
                let lease = lease_left(lease, sent_at).ok_or_else(|| StoreError::Unknown(over()))?;
                // If a connection holds the lock, its own renewals are reported, and not this one.
                if !attempt.is_of_connection() {
                    self.watch.tell(&request.key, || Doing::Renewed(lease.clone()));
                }
                Ok(Outcome::AlreadyHeld(lease, attempt, ends))
            }
            // Its client was told before that it holds the lock, or may have been: nothing can be rolled back.
            Acquired::NotReplicated { is_new: false, reason } => {
                guard.disarm();
                Err(StoreError::Unknown(format!("the token holds the lock already, but {reason}")))
            }
            Acquired::TokenReleased => {
                guard.disarm();
                Ok(Outcome::NotTaken(NotAcquired::TokenReleased))
            }
            // Only this request knows its attempt, and it has not given up yet.
            Acquired::AttemptVoided => {
                guard.disarm();
                Err(StoreError::Unavailable("this request was given up before it arrived".into()))
            }
            Acquired::HeldOtherwise(slots) => {
                guard.disarm();
                Ok(Outcome::NotTaken(NotAcquired::HeldOtherwise(slots)))
            }
            Acquired::TakenOver => {
                guard.disarm();
                let reason = "another request of the same token was granted the lock";
                Err(StoreError::Unknown(reason.to_owned()))
            }
            Acquired::NotTaken(why) => {
                guard.disarm();
                Ok(Outcome::NotTaken(why))
            }
        }
    }

    /// Undoes what an unanswered acquire may have done, and keeps its copies from doing it later. Returns whether a
    /// lock was deleted.
    async fn void(
        &self,
        lock: LockRequest,
        ticket: TicketAfter,
        doubt: String,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        let LockRequest { key, token, attempt, .. } = lock;
        let roll_back = RollBack { key, token, attempt, ticket, known: KnownTo::Nobody };
        let step = |until| self.store.call(roll_back.clone(), until);
        let rolled_back = self.settle_from(Some(doubt), deadline, step).await?.answer;
        let was_deleted = matches!(rolled_back, RolledBack::Ended { .. });
        if was_deleted {
            self.watch.tell(&roll_back.key, || Doing::Unclear);
        }
        Ok(was_deleted)
    }
}

/// Observes how long a request has waited, also if its client leaves.
struct WaitTimer {
    entered: Instant,
    ended: WaitEnded,
}

impl Drop for WaitTimer {
    fn drop(&mut self) {
        metrics().wait_seconds.observe(self.ended, self.entered.elapsed());
    }
}

/// After a try that was not answered, and that was voided, or was to be: waits a moment, if another try may follow. `undone` says
/// whether all that the request has done so far is undone, and is what this returns.
pub(super) async fn before_another_try(
    undone: Result<bool, StoreError>,
    guard: GrantGuard,
    doubt: String,
    tries_left: usize,
    deadline: Instant,
) -> Result<bool, StoreError> {
    let Ok(is_undone) = undone else {
        // The guard is dropped armed: voiding goes on in the background.
        metrics().doubts.count(DoubtEnded::Unknown);
        return Err(StoreError::Unknown(doubt));
    };
    metrics().doubts.count(DoubtEnded::Undone);
    guard.disarm();
    if tries_left == 0 || !pause_before(deadline).await {
        let undone = if is_undone { "; what the request may have done was undone" } else { "" };
        return Err(not_granted(is_undone, format!("{doubt}{undone}")));
    }
    Ok(is_undone)
}

/// The answer where nothing was granted, and what an earlier acquire may have done was undone, or perhaps was not.
pub(super) fn not_granted(is_undone: bool, reason: String) -> StoreError {
    if is_undone { StoreError::Unavailable(reason) } else { StoreError::Unknown(reason) }
}
