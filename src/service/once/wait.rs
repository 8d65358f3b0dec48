//! Requests that wait for a record. There is no order among them, since all get the same result.
//!
//! Those who wait for one record at this gateway are a crowd (`service/crowd.rs`), and only one of them looks at a time. It looks when a
//! worker's lease ends, when anybody tells that the record has ended, and as a precaution again and again. What it is told all
//! others learn. Nothing rests on what gateways tell each other.

use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::{BeginOutcome, BeginRequest, Beginning, MOST_BEGINS, NotBegun};
use crate::lock::LeaseToken;
use crate::once::Fingerprint;
use crate::service::LockService;
use crate::service::acquire::not_granted;
use crate::service::crowd::{InCrowd, Next};
use crate::store::StoreError;

/// A request that heard nothing for so long begins no record any more: the result may have come and gone. The shortest time that one
/// is kept is twice as long, which leaves time for a slow look before, and a slow begin after.
const LONGEST_SILENCE: Duration = Duration::from_secs(60);
const STOOD_STILL: &str =
    "this gateway heard nothing of the record for more than 1 min: its result may have come and gone";
const STOPS: &str = "the gateway is stopping";

impl LockService {
    /// Begins a piece of work, or waits for its result, or for its worker's place.
    pub(super) async fn begin_or_wait(&self, request: BeginRequest) -> Result<Beginning, StoreError> {
        let refused = |why| {
            let token = request.token.clone().unwrap_or_else(LeaseToken::generate);
            Ok(Beginning { token, outcome: BeginOutcome::NotBegun(why) })
        };
        let end = Instant::now() + request.wait;
        // Before the first look, so that nothing is missed after it.
        let Ok(_place) = self.wait_permits.try_acquire() else { return refused(NotBegun::TooManyWaiters) };
        let most = self.max_waiters_per_record;
        let Some(mut waiting) =
            self.records.enter(&request.key, request.token.as_ref(), request.may_take_over, most)
        else {
            return refused(NotBegun::TooManyWaiters);
        };
        let mut was_answered = false;
        // Whether all that its unanswered begins may have done is undone.
        let mut is_undone = true;
        loop {
            let asked_at = Instant::now();
            match Box::pin(self.look_once(&request, &mut waiting, asked_at, end, is_undone)).await {
                Ok(Beginning { outcome: BeginOutcome::NotBegun(NotBegun::Busy(worker)), .. }) => {
                    (was_answered, is_undone) = (true, true);
                    waiting.is_told(asked_at, Ok((worker, true)));
                }
                Ok(Beginning { outcome: BeginOutcome::NotBegun(NotBegun::Abandoned(worker, _)), .. }) => {
                    (was_answered, is_undone) = (true, true);
                    waiting.is_told(asked_at, Ok((worker, false)));
                }
                Ok(answer) => {
                    if let BeginOutcome::Done(stored) = &answer.outcome {
                        waiting.is_done(asked_at, stored);
                    }
                    return Ok(answer);
                }
                Err(error) if waiting.silence() < LONGEST_SILENCE && Instant::now() < end => {
                    if matches!(error, StoreError::Unknown(_)) {
                        // Only the store can tell now what became of it.
                        (was_answered, is_undone) = (false, false);
                    }
                    waiting.is_told(asked_at, Err(error.into_reason()));
                }
                Err(error) => return Err(error),
            }
            let next = waiting.next(end).await;
            if matches!(next, Next::Look | Next::Displaced | Next::Over)
                && waiting.silence() >= LONGEST_SILENCE
            {
                // The store did not answer, or this gateway stood still.
                let stood_still = |_| STOOD_STILL.to_owned();
                let reason = waiting.last_told().map_or_else(StoreError::into_reason, stood_still);
                return Err(not_granted(is_undone, reason));
            }
            match next {
                Next::Look => {}
                Next::Answer(stored) => {
                    if !Fingerprint::fits(stored.fingerprint, request.fingerprint) {
                        return refused(NotBegun::FingerprintMismatch);
                    }
                    let token = request.token.clone().unwrap_or_else(LeaseToken::generate);
                    return Ok(Beginning { token, outcome: BeginOutcome::Done(stored) });
                }
                Next::ShuttingDown if !is_undone => return Err(StoreError::Unknown(STOPS.to_owned())),
                Next::ShuttingDown => return refused(NotBegun::ShuttingDown),
                // What others were told is not all that there is to say to this token. It may have given up.
                Next::Displaced | Next::Over if !was_answered => {
                    return Box::pin(self.begin_once(&request, self.deadline(), MOST_BEGINS, is_undone))
                        .await;
                }
                // A newer request of the same token waits in the place of this one: what is known is all that it is told.
                Next::Displaced | Next::Over => {
                    let (worker, is_working) = waiting.last_told()?;
                    if !Fingerprint::fits(worker.fingerprint, request.fingerprint) {
                        return refused(NotBegun::FingerprintMismatch);
                    }
                    if is_working || request.may_take_over {
                        return refused(NotBegun::Busy(worker));
                    }
                    let is_own =
                        request.token.as_ref().is_some_and(|token| token.record_hash() == worker.token);
                    return refused(NotBegun::Abandoned(worker, is_own));
                }
            }
        }
    }

    /// Looks for a crowd, by one begin. If it is not answered, this returns once it is voided: only then another may follow.
    async fn look_once(
        &self,
        request: &BeginRequest,
        waiting: &mut InCrowd,
        asked_at: Instant,
        end: Instant,
        is_undone: bool,
    ) -> Result<Beginning, StoreError> {
        let mut look = pin!(self.begin_once(request, end + self.store_timeout, 1, is_undone));
        if let Ok(looked) = timeout_at(self.deadline(), &mut look).await {
            return looked;
        }
        waiting.is_told(asked_at, Err("the store does not answer".to_owned()));
        tokio::select! {
            looked = look => looked,
            // Voiding goes on in the background.
            () = self.records.closing.cancelled() => Err(StoreError::Unknown(STOPS.to_owned())),
        }
    }
}
