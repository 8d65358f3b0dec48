//! Acquiring, with and without a line: the same steps as `redis/scripts/acquire.lua`.

use std::time::Duration;

use super::super::record::{HeldLock, Life, Verdict};
use super::Table;
use crate::lock::{Acquired, Attempt, LockKey, Refusal, TokenHash, Ttl};
use crate::store::wait_queue::{QueueFull, QueueTurn};
use crate::store::{AcquireRequest, Intent, PlaceAfter, StoreError};

impl Table {
    /// Takes a lock or a place in its line, or says why not.
    pub(in super::super) fn acquire(
        &mut self,
        request: &AcquireRequest,
        now: Duration,
    ) -> Result<Acquired, StoreError> {
        let AcquireRequest { key, token, attempt, ttl, intent, .. } = request;
        let is_voided = match self.verdict(key, token, now) {
            Some(Verdict::Final(_)) => return Ok(Acquired::TokenReleased),
            Some(Verdict::Voided(attempts)) => attempts.contains(attempt),
            None => false,
        };
        let own = self.held(key, now).filter(|lock| lock.token == *token);
        let claims = own.is_some() && attempt.is_of_connection();
        // An attempt that has claimed the lock is voided: a copy that comes late must not claim it anew.
        let has_claimed = claims && own.is_some_and(|lock| lock.attempt == Some(attempt.claim()));
        if is_voided && !has_claimed && (claims || !matches!(intent, Intent::LastLook(_))) {
            return Ok(Acquired::AttemptVoided);
        }
        let superseded = superseded(intent);
        for former in superseded {
            self.void(key, token, *former, now);
        }
        self.lines.prepare(key, token, superseded, *attempt, now);
        if let Some(lock) = self.held(key, now).filter(|lock| lock.token == *token) {
            return Ok(match lock.attempt {
                Some(granted) if granted == *attempt => Acquired::Granted(lock.lease(now)),
                Some(granted) if superseded.contains(&granted) => {
                    let lock = HeldLock { attempt: Some(*attempt), ..lock.clone() };
                    let lease = lock.lease(now);
                    self.put_lock(key, lock);
                    Acquired::Granted(lease)
                }
                _ => {
                    let told = attempt.is_of_connection().then(|| attempt.claim());
                    // A claim leaves the lease as it was told before.
                    let ttl = if claims { Ttl::SHORTEST } else { *ttl };
                    let lock = HeldLock { attempt: told, ..lock.extended(ttl, now) };
                    let lease = lock.lease(now);
                    self.put_lock(key, lock);
                    if claims {
                        self.void(key, token, *attempt, now);
                    }
                    Acquired::AlreadyHeld(lease)
                }
            });
        }
        let held = self.left(key, now);
        match intent {
            Intent::Confirm if self.held(key, now).is_some_and(|lock| !lock.was_held_by(token)) => {
                Ok(self.refusal(key, token, now))
            }
            Intent::Confirm => Ok(Acquired::TokenReleased),
            Intent::Grant => match self.lines.pass(key, token, held, now) {
                true => self.grant(request, now),
                false => Ok(self.refusal(key, token, now)),
            },
            Intent::Join(join) => match self.lines.join(key, token, *attempt, join, now) {
                Ok(()) => self.look(request, now, None),
                Err(QueueFull) => Ok(Acquired::LineFull),
            },
            Intent::Look => self.look(request, now, None),
            // A look never makes what it did not find: a copy of it that comes late would make it for nobody.
            Intent::LastLook(_) if !is_voided && held.is_none() && !self.lines.has_queue(key, now) => {
                Ok(Acquired::PlaceLost)
            }
            Intent::LastLook(place) => self.look(request, now, Some(*place)),
        }
    }

    /// Takes the lock if it is the turn of the attempt's place. With `last`, an attempt that is not granted gives it up.
    fn look(
        &mut self,
        request: &AcquireRequest,
        now: Duration,
        last: Option<PlaceAfter>,
    ) -> Result<Acquired, StoreError> {
        let AcquireRequest { key, token, attempt, .. } = request;
        let held = self.left(key, now);
        match (self.lines.look(key, token, *attempt, held, now), last) {
            (QueueTurn::Take, _) => self.grant(request, now),
            (_, Some(place)) => {
                self.lines.end(key, token, *attempt, place, now);
                // Whatever was found: a copy of an earlier command of this attempt may still be on its way.
                self.void(key, token, *attempt, now);
                Ok(self.refusal(key, token, now))
            }
            (QueueTurn::InLine(standing), None) => Ok(Acquired::InLine(standing)),
            (QueueTurn::Moved(standing), None) => Ok(Acquired::Moved(standing)),
            (QueueTurn::Lost, None) => Ok(Acquired::PlaceLost),
        }
    }

    /// Grants the lock, which takes the token out of the line.
    fn grant(&mut self, request: &AcquireRequest, now: Duration) -> Result<Acquired, StoreError> {
        let AcquireRequest { key, token, attempt, ttl, .. } = request;
        let lock = HeldLock {
            token: *token,
            attempt: Some(*attempt),
            fence: self.mint()?,
            owner: request.owner.clone(),
            life: Life::starting(now, ttl.as_duration()),
            max_hold: request.terms.max_hold.map(|length| Life::starting(now, length)),
            min_hold: request.terms.min_hold.map(|length| Life::starting(now, length)),
        };
        let lease = lock.lease(now);
        self.put_lock(key, lock);
        self.lines.granted(key, token, *attempt, *ttl, now);
        Ok(Acquired::Granted(lease))
    }

    fn refusal(&self, key: &LockKey, token: &TokenHash, now: Duration) -> Acquired {
        Acquired::Refused(Refusal {
            holder: self.held(key, now).map(|lock| lock.lease(now)),
            waiters: self.lines.waiters(key),
            position: self.lines.position(key, token),
            ..Refusal::default()
        })
    }
}

/// The attempts for which a request's attempt stands.
fn superseded(intent: &Intent) -> &[Attempt] {
    match intent {
        Intent::Join(join) => &join.supersedes,
        Intent::Grant | Intent::Confirm | Intent::Look | Intent::LastLook(_) => &[],
    }
}
