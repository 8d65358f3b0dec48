//! What is done with a record, once, for every store: beginning a piece of work, storing its result, and what happens when an
//! answer is lost on either side.
//!
//! Doubt, repetitions and rolling back are those of locks (`service.rs`, `roll_back.rs`). Who waits for a record is in
//! `once/wait.rs`: there is no order among them, since all get the same result.

use std::time::Duration;

use tokio::time::Instant;

use super::acquire::{before_another_try, not_granted};
use super::time::{count_down, lease_left, renewed_too_late, seen_too_late};
use super::{Account, GrantGuard, LockService, Settled, Turn};
use crate::clock::boottime;
use crate::lock::{Attempt, FencingToken, LeaseToken, LockKey, Note, TokenHash, Ttl};
use crate::once::{
    Begun, BrokenRecord, Fingerprint, GivenUp, Keep, NotWorker, Place, RecordPage, RecordView, RenewedWork,
    Stored, Storing, WorkResult, WorkState, Worker,
};
use crate::store::{
    Begin, BreakRecord, GiveUp, ListRecords, LookAtRecord, RenewWork, StoreError, StoreResult, Tombstone,
    UndoBegin,
};

mod wait;

/// How many begins one request may send. Each is sent after the one before was voided, and leaves a tombstone behind.
const MOST_BEGINS: usize = 3;

/// What is asked for: to begin a piece of work, or its result.
#[derive(Clone, Debug)]
pub struct BeginRequest {
    /// The record.
    pub key: LockKey,
    /// The caller's token; without one the service makes one.
    pub token: Option<LeaseToken>,
    /// The lease that is asked for.
    pub ttl: Ttl,
    /// How long the result is to be kept.
    pub keep: Keep,
    /// A note about the worker for people.
    pub note: Note,
    /// Which requests the record is for.
    pub fingerprint: Option<Fingerprint>,
    /// Whether it may be granted a place that somebody had before.
    pub may_take_over: bool,
    /// How long to wait for the result; zero does not wait.
    pub wait: Duration,
    /// On whose account a grant is undone that its client is not told of.
    pub account: Option<Account>,
}

/// What became of a [`BeginRequest`].
#[derive(Debug)]
pub struct Beginning {
    /// The token of the worker, if the request is one.
    pub token: LeaseToken,
    /// The answer.
    pub outcome: BeginOutcome,
}

/// The answer to a [`BeginRequest`].
#[derive(Debug)]
pub enum BeginOutcome {
    /// The work is the caller's to do. The code that hands this to the client disarms the guard. If the guard is dropped
    /// before, it undoes the grant.
    Granted(Place, GrantGuard),
    /// The token is at work already.
    Continued(Place),
    /// It is done.
    Done(Stored),
    /// The caller may not begin, and there is no result.
    NotBegun(NotBegun),
}

/// Why a piece of work was not begun, where there is no result.
#[derive(Debug)]
pub enum NotBegun {
    /// Another is at work.
    Busy(Worker),
    /// No lease runs, somebody may have done the work, and the request does not take over. With whether that was its own token.
    Abandoned(Worker, bool),
    /// The record is for other requests.
    FingerprintMismatch,
    /// The token gave up before, or is one of ours that has no place.
    TokenReleased,
    /// There is no room for a new record.
    NearlyFull,
    /// The store takes no new records, for this reason.
    Unsupported(String),
    /// As many wait at this gateway as may.
    TooManyWaiters,
    /// Fewer replicas of the store than must have acknowledged the grant, for this reason, and it was undone.
    NotReplicated(String),
    /// The gateway stops, so the wait ended early.
    ShuttingDown,
}

impl BeginRequest {
    /// What a store is asked, by this attempt.
    fn call(&self, token: &LeaseToken, attempt: Attempt) -> Begin {
        Begin {
            key: self.key.clone(),
            token: token.record_hash(),
            attempt,
            ttl: self.ttl,
            keep: self.keep,
            note: self.note.clone(),
            fingerprint: self.fingerprint,
            may_take_over: self.may_take_over,
            only_confirms: token.is_server_made() && self.token.is_some(),
        }
    }

    /// Whether a begin that was undone has left nothing, as with a lock.
    fn is_undone(&self, was_granted: bool) -> bool {
        was_granted || self.token.is_none()
    }
}

impl LockService {
    /// Why there is no record of this key, or one of any key, if there can be none.
    pub fn keeps_no_records(&self, key: Option<&LockKey>) -> Option<String> {
        self.store.keeps_no_records(key)
    }

    /// How many wait for records at this moment.
    pub fn record_waiters(&self) -> usize {
        self.records.count()
    }

    /// Begins a piece of work, or says how far it is.
    ///
    /// A caller that drops this future, or the guard in its answer, leaves nothing behind: what was or may yet be granted is
    /// undone in the background.
    pub async fn begin(&self, request: BeginRequest) -> Result<Beginning, StoreError> {
        let only_confirms = request.token.as_ref().is_some_and(LeaseToken::is_server_made);
        // As with a lock, each is boxed, so that neither carries room for the other.
        if !request.wait.is_zero() && !only_confirms {
            return Box::pin(self.begin_or_wait(request)).await;
        }
        Box::pin(self.begin_once(&request, self.deadline(), MOST_BEGINS, true)).await
    }

    /// The same without waiting, by at most so many begins. `is_undone` says whether all that earlier begins of this request may
    /// have done is undone. Before the deadline it returns only when what it has sent itself is answered or voided.
    async fn begin_once(
        &self,
        request: &BeginRequest,
        deadline: Instant,
        mut begins_left: usize,
        mut is_undone: bool,
    ) -> Result<Beginning, StoreError> {
        loop {
            begins_left -= 1;
            let attempt = Attempt::generate();
            // A token that the gateway made is sent once, as with a lock.
            let token = request.token.clone().unwrap_or_else(LeaseToken::generate);
            let begin = request.call(&token, attempt);
            let guard = self.cleaner.guard_begin(&begin, self.records.clone());
            let guard = guard.on_account(request.account.as_ref());
            let undo = UndoBegin { key: begin.key.clone(), token: begin.token, attempt };
            let sent_at = boottime();
            let doubt = match self.store.call(begin, self.until(deadline)).await {
                Ok(answer) => {
                    let outcome =
                        self.hand_out_place(request, answer, undo.token, sent_at, guard, deadline).await;
                    return match outcome {
                        Ok(BeginOutcome::NotBegun(NotBegun::NotReplicated(reason))) if !is_undone => {
                            Err(StoreError::Unknown(reason))
                        }
                        Ok(outcome) => Ok(Beginning { token, outcome }),
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
            // Once its attempt is voided, no copy of that begin takes anything, however late it is.
            let step = |until| self.store.call(undo.clone(), until);
            let voided = self.settle_from(Some(doubt.clone()), deadline, step).await;
            let undone = voided.map(|voided| is_undone && request.is_undone(voided.answer));
            is_undone = before_another_try(undone, guard, doubt, begins_left, deadline).await?;
        }
    }

    /// Turns a store's answer into the caller's.
    async fn hand_out_place(
        &self,
        request: &BeginRequest,
        answer: Begun,
        token: TokenHash,
        sent_at: Duration,
        mut guard: GrantGuard,
        deadline: Instant,
    ) -> Result<BeginOutcome, StoreError> {
        let over = || "the lease ended before the request could be answered: ask for a longer ttl".to_owned();
        let left = |place: Place| Some(Place { lease: lease_left(place.lease, sent_at)?, ..place });
        if !matches!(answer, Begun::Granted(_) | Begun::NotReplicated { is_new: true, .. }) {
            // No grant is new.
            guard.take().disarm();
        }
        Ok(BeginOutcome::NotBegun(match answer {
            Begun::Granted(place) => {
                return match left(place) {
                    Some(place) => Ok(BeginOutcome::Granted(place, guard)),
                    None => match guard.roll_back_now(deadline).await {
                        Ok(was_granted) => Err(not_granted(request.is_undone(was_granted), over())),
                        Err(_) => Err(StoreError::Unknown(over())),
                    },
                };
            }
            Begun::NotReplicated { is_new: true, reason } => {
                return match guard.roll_back_now(deadline).await {
                    Ok(was_granted) if request.is_undone(was_granted) => {
                        let reason = format!("{reason}; the gateway has given the place up");
                        Ok(BeginOutcome::NotBegun(NotBegun::NotReplicated(reason)))
                    }
                    Ok(_) => Err(StoreError::Unknown(format!(
                        "{reason}; the place was gone when the gateway wanted to give it up"
                    ))),
                    Err(_) => Err(StoreError::Unknown(format!(
                        "{reason}; the gateway is still giving the place up"
                    ))),
                };
            }
            Begun::Continued(place) => {
                let place = left(place).ok_or_else(|| StoreError::Unknown(over()))?;
                return Ok(BeginOutcome::Continued(place));
            }
            Begun::Done(stored) => return Ok(BeginOutcome::Done(stored)),
            Begun::NotReplicated { reason, .. } => {
                return Err(StoreError::Unknown(format!("the work was begun before, but {reason}")));
            }
            // Only this request knows its attempt, and it has not given up yet.
            Begun::AttemptVoided => {
                return Err(StoreError::Unavailable("this request was given up before it arrived".into()));
            }
            Begun::Busy(worker) => NotBegun::Busy(worker),
            Begun::Abandoned(worker) => {
                let is_own = worker.token == token;
                NotBegun::Abandoned(worker, is_own)
            }
            Begun::FingerprintMismatch => NotBegun::FingerprintMismatch,
            Begun::TokenReleased => NotBegun::TokenReleased,
            Begun::NearlyFull => NotBegun::NearlyFull,
            Begun::Unsupported(reason) => NotBegun::Unsupported(reason),
        }))
    }

    /// Stores the result of the token's work.
    ///
    /// A client that has sent all of a result has done the work, and the result is to be stored even if the client leaves. So call
    /// this in a task of its own.
    pub async fn store_result(
        &self,
        key: &LockKey,
        token: &LeaseToken,
        fence: Option<FencingToken>,
        keep: Option<Keep>,
        result: WorkResult,
    ) -> Result<Storing, StoreError> {
        let told = result.clone();
        let store = StoreResult { key: key.clone(), token: token.record_hash(), fence, keep, result };
        let asked_at = Instant::now();
        // Repeating is safe: the same result is stored already, and is answered as it was the first time.
        let Settled { answer, in_doubt } = self.settle_call(self.deadline(), store).await?;
        match answer {
            Storing::Stored { fencing_token, kept_ms, .. } => {
                let (age_ms, fingerprint) = (0, None);
                let stored = Stored { fencing_token, age_ms, kept_ms, fingerprint, result: told };
                self.records.has_result(key, asked_at, stored);
                Ok(answer)
            }
            // Other clients may have been told of it already.
            Storing::NotReplicated(reason) => {
                self.records.ended(key);
                Err(StoreError::Unknown(format!("the result is stored, but {reason}: send it again")))
            }
            // An earlier copy may have stored it, and the store may have lost it since.
            Storing::Refused(NotWorker::NotBegun) | Storing::NearlyFull if in_doubt => {
                Err(StoreError::Unknown("an earlier copy of this request may have stored the result".into()))
            }
            other => Ok(other),
        }
    }

    /// Sets the lease of a worker to the longer of what is left and `ttl`.
    pub async fn renew_work(
        &self,
        key: &LockKey,
        token: &LeaseToken,
        fence: Option<FencingToken>,
        ttl: Ttl,
    ) -> Result<RenewedWork, StoreError> {
        let renew = &RenewWork { key: key.clone(), token: token.record_hash(), fence, ttl }.into();
        let step = |until| async move {
            let sent_at = boottime();
            match self.store.ask::<RenewWork>(renew, until).await? {
                RenewedWork::Renewed(Place { lease, earlier, earlier_fencing_token }) => {
                    let lease = lease_left(lease, sent_at).ok_or_else(renewed_too_late)?;
                    Ok(RenewedWork::Renewed(Place { lease, earlier, earlier_fencing_token }))
                }
                other => Ok(other),
            }
        };
        Ok(self.settle(self.deadline(), step).await?.answer)
    }

    /// Gives up the place of a worker; `is_clean` says that it has certainly done nothing.
    pub async fn give_up(
        &self,
        key: &LockKey,
        token: &LeaseToken,
        is_clean: bool,
    ) -> Result<GivenUp, StoreError> {
        let tombstone = if token.is_server_made() { Tombstone::None } else { Tombstone::Final };
        let call = GiveUp { key: key.clone(), token: token.record_hash(), is_clean, tombstone };
        let Settled { answer, in_doubt } = self.settle_call(self.deadline(), call).await?;
        if in_doubt || answer == GivenUp::GivenUp {
            self.records.ended(key);
        }
        // Without a tombstone, the place may be gone because of the copy whose answer was lost.
        if in_doubt && tombstone == Tombstone::None && matches!(answer, GivenUp::Refused(_)) {
            return Err(StoreError::Unknown("an earlier copy of this request may have done it".into()));
        }
        Ok(answer)
    }

    /// Says how far a piece of work is, and whether `token` is its worker; `None` where there is no record.
    pub async fn look_at_record(
        &self,
        key: &LockKey,
        token: Option<&LeaseToken>,
    ) -> Result<Option<RecordView>, StoreError> {
        let look = &LookAtRecord { key: key.clone(), token: token.map(LeaseToken::record_hash) }.into();
        let step = |until| async move {
            let sent_at = boottime();
            let mut seen = self.store.ask::<LookAtRecord>(look, until).await?;
            // Nothing is left of the lease of any other record.
            if let Some(RecordView { state: WorkState::Working, place, .. }) = &mut seen {
                place.lease = lease_left(place.lease.clone(), sent_at).ok_or_else(seen_too_late)?;
            }
            Ok(seen)
        };
        match token {
            None => self.look(step).await,
            // To tell a token that it is the worker's is a promise, and the store may have made it.
            Some(_) => Ok(self.settle(self.deadline(), step).await?.answer),
        }
    }

    /// Breaks a record of this number: its worker's place, or its result.
    pub async fn break_record(
        &self,
        key: &LockKey,
        fence: FencingToken,
        is_clean: bool,
    ) -> Result<BrokenRecord, StoreError> {
        let call = BreakRecord { key: key.clone(), fence, is_clean };
        let Settled { answer, in_doubt } = self.settle_call(self.deadline(), call).await?;
        if in_doubt || answer == BrokenRecord::Broken {
            self.records.ended(key);
        }
        match answer {
            // An earlier copy has ended the place.
            BrokenRecord::None if in_doubt => Ok(BrokenRecord::Broken),
            // Or the next worker had begun before any copy came.
            BrokenRecord::Superseded(_) if in_doubt => {
                Err(StoreError::Unknown("an earlier copy of this request may have broken the record".into()))
            }
            answer => Ok(answer),
        }
    }

    /// Lists some of the records, in the turn of somebody who lists.
    pub async fn list_records(&self, _: &Turn, list: ListRecords) -> Result<RecordPage, StoreError> {
        let (sent_at, list) = (boottime(), list.into());
        let mut page = self.look(|until| self.store.ask::<ListRecords>(&list, until)).await?;
        let views = page.records.iter_mut().map(|(_, view)| view);
        views
            .filter(|view| view.state == WorkState::Working)
            .for_each(|view| count_down(&mut view.place.lease, sent_at));
        Ok(page)
    }
}

#[cfg(test)]
mod tests;
