//! Acquiring, with and without a line: the same steps as `redis/acquire.lua`.

use std::time::Duration;

use super::super::record::{HeldLock, Life, Verdict};
use super::Table;
use crate::lock::{Acquired, Attempt, LockKey, Refusal, Standing, TokenHash};
use crate::store::{AcquireRequest, Hint, Intent, Join, PlaceAfter, StoreError};

/// Gateways are told of the end of leases shorter than this: their next heartbeats may come too late.
const SHORT_LEASE: Duration = Duration::from_secs(2);
/// What is due until a bit after the next heartbeat but one.
const LOOK_AHEAD: Duration = Duration::from_millis(1_250);

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
        if is_voided && !matches!(intent, Intent::LastLook(_)) {
            return Ok(Acquired::AttemptVoided);
        }
        let superseded = superseded(intent);
        for former in superseded {
            self.void(key, token, *former, now);
        }
        if let Some(line) = self.lines.get_mut(key) {
            line.purge(now);
            line.rename(token, superseded, *attempt);
        }
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
                    let lock = lock.confirmed(*ttl, now);
                    let lease = lock.lease(now);
                    self.put_lock(key, lock);
                    Acquired::AlreadyHeld(lease)
                }
            });
        }
        match intent {
            Intent::Confirm if self.held(key, now).is_some() => Ok(self.refusal(key, token, now)),
            Intent::Confirm => Ok(Acquired::TokenReleased),
            Intent::Grant => self.take(request, now),
            Intent::Join(join) => {
                if let Err(full) = self.join(request, join, now) {
                    return Ok(full);
                }
                self.look(request, now, None)
            }
            Intent::Look => self.look(request, now, None),
            // A look never makes what it did not find: a copy of it that comes late would make it for nobody.
            Intent::LastLook(_) if !is_voided && self.is_free_for_all(key, now) => Ok(Acquired::PlaceLost),
            Intent::LastLook(place) => self.look(request, now, Some(*place)),
        }
    }

    /// Says which locks of those that somebody waits for are due, and in how many milliseconds; and the session, which
    /// changes whenever those who wait may have lost their places.
    pub(in super::super) fn beat(&self, now: Duration) -> (u64, Vec<(LockKey, u64)>) {
        let mut due = Vec::new();
        for (key, line) in &self.lines {
            let left = match (self.held(key, now), line.offer()) {
                (Some(lock), _) => lock.life.end.saturating_sub(now),
                (None, _) => Duration::ZERO,
            };
            if left <= LOOK_AHEAD {
                due.push((key.clone(), u64::try_from(left.as_millis()).unwrap_or(u64::MAX)));
            }
        }
        (self.session, due)
    }

    /// Takes an attempt out of the line of a lock, from which it may have been granted the lock that was taken back.
    pub(in super::super) fn vacate(
        &mut self,
        key: &LockKey,
        token: &TokenHash,
        attempt: Attempt,
        place: PlaceAfter,
        was_granted: bool,
        now: Duration,
    ) {
        let lost_at = now + self.settings.line.ticket_ttl;
        let Some(line) = self.lines.get_mut(key) else { return };
        let (former, was_offered) = line.vacate(token, attempt, place, lost_at);
        self.hints.extend(former.map(|former| Hint::Look(key.clone(), former)));
        if was_offered {
            self.hand_off(key, now, None);
        }
        if let PlaceAfter::KeptAt(granted_at) = place
            && was_granted
            && let Some(line) = self.lines.get_mut(key)
        {
            line.keep(token, granted_at, lost_at);
        }
        self.forget_line_if_over(key, now);
    }

    /// Offers a lock that nobody holds to the first of its line, and says so.
    pub(super) fn hand_off(&mut self, key: &LockKey, now: Duration, caller: Option<&TokenHash>) {
        let lost_at = now + self.settings.line.ticket_ttl;
        let Some(line) = self.lines.get_mut(key) else { return };
        let lapsed = line.offer().filter(|offer| offer.left(now).is_none());
        let offer = line.hand_off(now, lost_at, caller);
        if let Some(lapsed) = lapsed
            && let Some(attempt) = lapsed.attempt
            && !line.is_standing(&lapsed.token)
        {
            // It may come back as soon as it learns of it, at the latest from the next heartbeat.
            self.hints.push(Hint::Look(key.clone(), attempt));
            self.session = rand::random();
        }
        if let Some(offer) = offer
            && let Some(attempt) = offer.attempt
            && caller != Some(&offer.token)
        {
            self.hints.push(Hint::Offered(key.clone(), offer.token, attempt));
        }
    }

    pub(super) fn forget_line_if_over(&mut self, key: &LockKey, now: Duration) {
        if self.lines.get(key).is_some_and(|line| line.is_over(now)) {
            self.lines.remove(key);
        }
    }

    /// Grants the lock to one who does not wait, unless it is held, or promised to another.
    fn take(&mut self, request: &AcquireRequest, now: Duration) -> Result<Acquired, StoreError> {
        let AcquireRequest { key, token, .. } = request;
        if self.held(key, now).is_some() {
            return Ok(self.refusal(key, token, now));
        }
        if self.standing_offer(key, now).is_none() {
            self.hand_off(key, now, None);
        }
        match self.standing_offer(key, now) {
            Some(offered) if offered != *token => Ok(self.refusal(key, token, now)),
            _ => self.grant(request, now),
        }
    }

    /// Takes a place in the line, or takes the token's own over.
    fn join(&mut self, request: &AcquireRequest, join: &Join, now: Duration) -> Result<(), Acquired> {
        let AcquireRequest { key, token, attempt, .. } = request;
        let most_waiters = self.settings.line.max_waiters_per_key;
        let line = self.lines.entry(key.clone()).or_default();
        let seat = line.seat(token).cloned();
        let present = seat.as_ref().and_then(|seat| seat.attempt).filter(|_| line.is_standing(token));
        let displaced = present.filter(|present| present != attempt);
        if displaced.is_some() && !join.displaces {
            return Ok(());
        }
        if seat.is_none() && join.place.is_none() && line.waiters() >= most_waiters {
            return Err(Acquired::LineFull);
        }
        // The earlier of the two, where the place was lost and an older request has brought the token into the line anew.
        let place = seat.as_ref().map(|seat| seat.place).into_iter().chain(join.place).min();
        let place = place.unwrap_or_else(|| line.last_place(now));
        let kept = seat.filter(|seat| seat.attempt == Some(*attempt));
        let former = displaced.or_else(|| kept.and_then(|seat| seat.former));
        let before = line.seat(token).and_then(|seat| seat.attempt).filter(|before| before != attempt);
        line.sit(*token, place, *attempt, former);
        self.hints.extend(before.map(|before| Hint::Look(key.clone(), before)));
        Ok(())
    }

    /// Takes the lock if it is the turn of the attempt's place. With `last`, an attempt that is not granted gives it up.
    fn look(
        &mut self,
        request: &AcquireRequest,
        now: Duration,
        last: Option<PlaceAfter>,
    ) -> Result<Acquired, StoreError> {
        let AcquireRequest { key, token, attempt, .. } = request;
        let lost_at = now + self.settings.line.ticket_ttl;
        let mut is_seated = false;
        let mut is_taken_over = false;
        if let Some(line) = self.lines.get_mut(key)
            && let Some(waiting) = line.seat(token).and_then(|seat| seat.attempt)
        {
            is_seated = waiting == *attempt;
            is_taken_over = !is_seated && line.is_standing(token);
            if is_seated {
                line.stand(token);
            }
        }
        if self.held(key, now).is_none() {
            if self.standing_offer(key, now).is_none() {
                self.hand_off(key, now, Some(token).filter(|_| is_seated));
            }
            if is_seated && self.standing_offer(key, now) == Some(*token) {
                return self.grant(request, now);
            }
        }
        if let Some(place) = last {
            let line = self.lines.get_mut(key);
            let former = line.and_then(|line| line.end(token, *attempt, place, lost_at));
            self.hints.extend(former.map(|former| Hint::Look(key.clone(), former)));
            // Whatever was found: a copy of an earlier command of this attempt may still be on its way.
            self.void(key, token, *attempt, now);
            let refusal = self.refusal(key, token, now);
            self.forget_line_if_over(key, now);
            return Ok(refusal);
        }
        // The offer may just have lapsed, and the one who took the place over have stepped aside.
        is_taken_over &= self.lines.get(key).is_some_and(|line| line.is_standing(token));
        if !is_seated {
            self.forget_line_if_over(key, now);
        }
        Ok(match self.standing(key, token, now) {
            Some(standing) if is_seated => Acquired::InLine(standing),
            Some(standing) if is_taken_over => Acquired::Moved(standing),
            _ => Acquired::PlaceLost,
        })
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
        };
        let lease = lock.lease(now);
        self.put_lock(key, lock);
        if let Some(line) = self.lines.get_mut(key) {
            line.take_offer();
            // Another request of this token that waits at the place is told that its token holds the lock.
            let waiting = line.seat(token).and_then(|seat| seat.attempt).filter(|waiting| waiting != attempt);
            self.hints.extend(waiting.map(|waiting| Hint::Look(key.clone(), waiting)));
            line.remove(token);
            if line.first().is_some() && ttl.as_duration() < SHORT_LEASE {
                self.hints.push(Hint::Due(key.clone(), ttl.as_ms()));
            }
            self.forget_line_if_over(key, now);
        }
        Ok(Acquired::Granted(lease))
    }

    /// Whether nobody holds the lock, and nobody waits for it.
    fn is_free_for_all(&self, key: &LockKey, now: Duration) -> bool {
        self.held(key, now).is_none() && self.lines.get(key).is_none_or(|line| line.is_over(now))
    }

    /// To whom the free lock is promised, unless that has lapsed.
    fn standing_offer(&self, key: &LockKey, now: Duration) -> Option<TokenHash> {
        let offer = self.lines.get(key)?.offer()?;
        offer.left(now).map(|_| offer.token)
    }

    fn standing(&self, key: &LockKey, token: &TokenHash, now: Duration) -> Option<Standing> {
        let line = self.lines.get(key)?;
        let place = line.seat(token)?.place;
        let offer = line.offer();
        let due = match self.held(key, now) {
            Some(lock) => lock.life.end.saturating_sub(now),
            None => offer.and_then(|offer| offer.left(now)).unwrap_or_default(),
        };
        Some(Standing {
            place,
            is_first: line.first() == Some(token),
            due_in_ms: u64::try_from(due.as_millis()).unwrap_or(u64::MAX),
            offered_to: offer.and_then(|offer| offer.attempt),
        })
    }

    fn refusal(&self, key: &LockKey, token: &TokenHash, now: Duration) -> Acquired {
        let position = self.lines.get(key).and_then(|line| line.position(token));
        Acquired::Refused(Refusal {
            holder: self.held(key, now).map(|lock| lock.lease(now)),
            waiters: self.waiters(key),
            position: position.and_then(|position| u64::try_from(position).ok()),
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
