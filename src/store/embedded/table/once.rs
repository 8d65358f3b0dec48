//! Pieces of work: who does which, what came of it, and what is remembered of those who may have done it.

use std::time::Duration;

use super::super::life::Life;
use super::super::record::{Record, RecordId, Verdict};
use super::super::work::{RECORD_BYTES, Since, StoredResult, Work};
use super::Table;
use crate::lock::{FencingToken, LockKey, TokenHash};
use crate::once::{
    Begun, BrokenRecord, Fingerprint, GivenUp, MEMORY, NotWorker, RecordView, RenewedWork, Storing,
};
use crate::store::{
    Begin, BreakRecord, GiveUp, LookAtRecord, RenewWork, StoreError, StoreResult, Tombstone, UndoBegin,
};

impl Table {
    /// Grants the place of a worker, or says why not. The order of these judgments is part of the contract.
    pub(in super::super) fn begin(&mut self, begin: &Begin, now: Duration) -> Result<Begun, StoreError> {
        let Begin { key, token, attempt, fingerprint, may_take_over, only_confirms, .. } = begin;
        let found = self.work(key, now);
        if let Some(work) = found {
            if !Fingerprint::fits(work.fingerprint, *fingerprint) {
                return Ok(Begun::FingerprintMismatch);
            }
            if let Some(stored) = work.stored(now) {
                return Ok(Begun::Done(stored));
            }
        }
        let under_way = found.filter(|work| work.is_under_way(now));
        let own = under_way.filter(|work| work.token == *token);
        match self.verdict(key, token, now) {
            Some(verdict) if verdict.is_final() => return Ok(Begun::TokenReleased),
            _ if *only_confirms && own.is_none() => return Ok(Begun::TokenReleased),
            Some(Verdict::Voided(attempts)) if attempts.contains(attempt) => return Ok(Begun::AttemptVoided),
            _ => {}
        }
        if let Some(own) = own {
            if own.attempt == Some(*attempt) {
                return Ok(Begun::Granted(own.place(now)));
            }
            let pinned = own.extended(begin.ttl, now);
            let place = pinned.place(now);
            self.put_work(key, Some(pinned));
            return Ok(Begun::Continued(place));
        }
        match (under_way, found) {
            (Some(work), _) => Ok(Begun::Busy(work.worker(now))),
            // Somebody may have done the work: a record that had no worker leaves nothing.
            (None, Some(work)) if !may_take_over => Ok(Begun::Abandoned(work.worker(now))),
            (None, None) if !self.has_room_for(key) => Ok(Begun::NearlyFull),
            (None, found) => {
                let found = found.cloned();
                self.grant_work(begin, found, now)
            }
        }
    }

    fn grant_work(&mut self, begin: &Begin, found: Option<Work>, now: Duration) -> Result<Begun, StoreError> {
        let Begin { key, token, attempt, ttl, keep, note, fingerprint, .. } = begin;
        let lease = Life::starting(now, ttl.as_duration());
        // The record lives for so long, also where it was to live for less.
        let memory = ttl.as_duration() + MEMORY;
        let granted = Work {
            token: *token,
            attempt: Some(*attempt),
            fence: self.mint()?,
            note: note.clone(),
            earlier: 0,
            earlier_fence: None,
            former: None,
            fingerprint: *fingerprint,
            keep: *keep,
            lease,
            life: Life::starting(now, memory),
            result: None,
        };
        let granted = match found {
            None => granted,
            Some(found) => {
                // The worker that left the place was counted then, or has certainly done nothing.
                let left = if found.is_nobodys() { found.clone() } else { found.left_to_nobody(false, now) };
                let former = Some(Box::new(Work { former: None, ..found }));
                Work {
                    earlier: left.earlier,
                    earlier_fence: left.earlier_fence,
                    former,
                    fingerprint: left.fingerprint,
                    life: left.life.extended(now, memory),
                    ..granted
                }
            }
        };
        let place = granted.place(now);
        self.put_work(key, Some(granted));
        Ok(Begun::Granted(place))
    }

    /// Stores a result, which ends the lease.
    pub(in super::super) fn store_result(&mut self, request: &StoreResult, now: Duration) -> Storing {
        let StoreResult { key, token, fence, keep, result } = request;
        let work = match self.work_of(key, token, *fence, now) {
            Ok(work) => work,
            Err(refusal) => return Storing::Refused(refusal),
        };
        if let Some(stored) = &work.result {
            // The same result with another `keep` is a repetition too: the first one counts.
            return match stored.result == *result {
                true => Storing::Stored {
                    fencing_token: work.fence,
                    kept_ms: work.life.left_ms(now),
                    is_late: work.is_late(),
                },
                false => Storing::Differs,
            };
        }
        if !result.is_short() && self.once_bytes + result.body.len() as u64 > self.most_once_bytes() {
            return Storing::NearlyFull;
        }
        let (fencing_token, is_late) = (work.fence, work.lease.is_over(now));
        let life = Life::starting(now, keep.unwrap_or(work.keep).as_duration());
        let stored = Since { at: now, before: Duration::ZERO, wall_ns: None };
        let done = Work {
            attempt: None,
            lease: Work::ended_lease(now, is_late),
            life,
            result: Some(StoredResult { stored, result: result.clone() }),
            former: None,
            ..work.clone()
        };
        self.put_work(key, Some(done));
        Storing::Stored { fencing_token, kept_ms: life.left_ms(now), is_late }
    }

    /// Sets the lease to the longer of what is left and `ttl`, if it is not over.
    pub(in super::super) fn renew_work(&mut self, request: &RenewWork, now: Duration) -> RenewedWork {
        let RenewWork { key, token, fence, ttl } = request;
        let work = match self.work_of(key, token, *fence, now) {
            Err(refusal) => return RenewedWork::Refused(refusal),
            Ok(work) if work.result.is_some() => return RenewedWork::AlreadyStored,
            Ok(work) if work.lease.is_over(now) => return RenewedWork::LeaseOver,
            Ok(work) => work,
        };
        let renewed = work.extended(*ttl, now);
        let place = renewed.place(now);
        self.put_work(key, Some(renewed));
        RenewedWork::Renewed(place)
    }

    /// Ends the place of the token. With [`Tombstone::Final`] it also retires the token, whatever it is answered.
    pub(in super::super) fn give_up(&mut self, request: &GiveUp, now: Duration) -> GivenUp {
        let GiveUp { key, token, is_clean, tombstone } = request;
        if *tombstone == Tombstone::Final
            && let Some(Verdict::GaveUp(answer)) = self.verdict(key, token, now).cloned()
        {
            self.put_mark(key, token, Verdict::GaveUp(answer), now);
            return answer;
        }
        // It is not the worker again either when another leaves the place as it was found.
        let was_former = |former: &Work| former.token == *token;
        if let Some(work) = self.work(key, now).filter(|work| work.former.as_deref().is_some_and(was_former))
        {
            let work = Work { former: None, ..work.clone() };
            self.put_work(key, Some(work));
        }
        let answer = match self.work_of(key, token, None, now) {
            Err(refusal) => GivenUp::Refused(refusal),
            Ok(work) if work.result.is_some() => GivenUp::AlreadyStored,
            Ok(work) => {
                let work = work.clone();
                self.leave(key, &work, *is_clean, now);
                GivenUp::GivenUp
            }
        };
        if *tombstone == Tombstone::Final {
            self.put_mark(key, token, Verdict::GaveUp(answer), now);
        }
        answer
    }

    /// Undoes the grant of this very attempt of `token`, and voids the attempt in any case. Returns whether there was a grant.
    pub(in super::super) fn undo_begin(&mut self, request: &UndoBegin, now: Duration) -> bool {
        let UndoBegin { key, token, attempt } = request;
        let is_granted = |work: &&Work| work.token == *token && work.attempt == Some(*attempt);
        let granted = self.work(key, now).filter(is_granted).cloned();
        if let Some(work) = &granted {
            self.leave(key, work, true, now);
        }
        self.void(key, token, *attempt, now);
        granted.is_some()
    }

    /// Ends the place of the worker with this number, or removes its result.
    pub(in super::super) fn break_record(&mut self, request: &BreakRecord, now: Duration) -> BrokenRecord {
        let BreakRecord { key, fence, is_clean } = request;
        let left = match self.work(key, now) {
            None => return BrokenRecord::None,
            Some(work) if work.fence != *fence => return BrokenRecord::Superseded(work.fence),
            // Who says that nothing was done says it of all who were at work.
            Some(_) if *is_clean => None,
            // It was broken or given up before.
            Some(work) if work.is_nobodys() => return BrokenRecord::Broken,
            Some(work) => Some(work.left_to_nobody(false, now)),
        };
        self.put_work(key, left);
        BrokenRecord::Broken
    }

    /// Says how far a piece of work is. `None` where its worker asks, and its grant is not pinned: this has to come first.
    pub(in super::super) fn see_record(
        &self,
        look: &LookAtRecord,
        now: Duration,
    ) -> Option<Option<RecordView>> {
        let LookAtRecord { key, token } = look;
        let Some(work) = self.work(key, now) else { return Some(None) };
        let view = work.view(token.as_ref(), now);
        (view.yours != Some(true) || work.attempt.is_none()).then_some(Some(view))
    }

    /// Says how far a piece of work is, and pins the grant if its worker asks: it takes itself for the worker from now on.
    pub(in super::super) fn look_at_record(
        &mut self,
        look: &LookAtRecord,
        now: Duration,
    ) -> Option<RecordView> {
        let LookAtRecord { key, token } = look;
        let work = self.work(key, now)?;
        let view = work.view(token.as_ref(), now);
        if view.yours == Some(true) {
            let pinned = Work { attempt: None, ..work.clone() };
            self.put_work(key, Some(pinned));
        }
        Some(view)
    }

    /// Takes the worker out of its place. If it has done nothing, the record is as it was before.
    fn leave(&mut self, key: &LockKey, work: &Work, is_clean: bool, now: Duration) {
        let left = if is_clean { work.as_found(now) } else { Some(work.left_to_nobody(false, now)) };
        self.put_work(key, left);
    }

    /// The record of `key`, if it has not ended.
    fn work(&self, key: &LockKey, now: Duration) -> Option<&Work> {
        match self.records.get(&RecordId::Work(key.clone())) {
            Some(Record::Work(work)) if !work.life.is_over(now) => Some(work),
            _ => None,
        }
    }

    /// The record that `token` works on, or has stored the result of, by the grant of this number if it says one.
    fn work_of(
        &self,
        key: &LockKey,
        token: &TokenHash,
        fence: Option<FencingToken>,
        now: Duration,
    ) -> Result<&Work, NotWorker> {
        match self.work(key, now) {
            Some(work) if work.is_nobodys() => Err(NotWorker::NotBegun),
            None => Err(NotWorker::NotBegun),
            Some(work) if work.token == *token && fence.is_none_or(|fence| fence == work.fence) => Ok(work),
            Some(work) => {
                Err(NotWorker::Superseded { fencing_token: work.fence, is_done: work.result.is_some() })
            }
        }
    }

    fn put_work(&mut self, key: &LockKey, work: Option<Work>) {
        self.put(RecordId::Work(key.clone()), work.map(|work| Record::Work(Box::new(work))));
    }

    /// Whether there is room for a new record of `key`. One that has ended, and was not removed yet, makes room for it.
    fn has_room_for(&self, key: &LockKey) -> bool {
        let id = RecordId::Work(key.clone());
        let ended = self.records.get(&id).map_or(0, |record| record.once_bytes(&id));
        self.once_bytes - ended + RECORD_BYTES <= self.settings.once_memory_bytes
    }

    /// Up to so much results are stored that are not short: a third more than is begun up to.
    fn most_once_bytes(&self) -> u64 {
        self.settings.once_memory_bytes.saturating_add(self.settings.once_memory_bytes / 3)
    }
}
