//! Renewing: each third of the ttl, and, when no answer comes, again and again until one does.

use std::convert::Infallible;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::lease::LeaseClock;
use crate::client::{Gateway, Gateways, HeldGrant, RenewAnswer, Trouble};
use crate::clock::{boottime, jittered};

/// When the lease is renewed, as a part of it.
const PART: u32 = 3;
/// A request that is not answered within this part of the ttl is followed by another, to the next gateway. The first is
/// not given up: the answer that comes first counts, and what stands still may be the connection alone.
const FOLLOWED_AFTER_PART: u32 = 10;
/// When each gateway has failed, the next request follows after this part of the ttl.
const PAUSE_PART: u32 = 30;
const SHORTEST_PAUSE: Duration = Duration::from_millis(30);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// When a command has ended, the first renewal follows after this part of the ttl, and in any case after half a second. Mostly the
/// result is stored by then. A lease has at least twice as much left when its command has ended by itself.
const AFTER_END_PART: u32 = 20;
const LONGEST_AFTER_END: Duration = Duration::from_millis(500);

/// The renewals of one lease.
pub(super) struct Renewals<'a> {
    gateways: &'a mut Gateways,
    ttl: Duration,
    tries: JoinSet<(usize, Result<RenewAnswer, Trouble>)>,
    next_at: Duration,
    /// When the first was sent since one succeeded, or since it stood still.
    first_at: Option<Duration>,
    /// When those are asked again that have refused.
    forgives_at: Duration,
    /// Why nothing is sent any more.
    over: Option<String>,
}

impl<'a> Renewals<'a> {
    pub(super) fn new(gateways: &'a mut Gateways, held: &HeldGrant, ttl: Duration) -> Self {
        let (tries, next_at) = (JoinSet::new(), due_after(held));
        Self { gateways, ttl, tries, next_at, first_at: None, forgives_at: next_at, over: None }
    }

    /// When something is to be sent; nothing once there is nothing to gain.
    pub(super) fn next_at(&self) -> Option<Duration> {
        self.over.is_none().then_some(self.next_at)
    }

    /// Sends one, if it is time.
    pub(super) fn send_if_due(&mut self, lease: &LeaseClock) {
        let now = boottime();
        if self.over.is_some() || now < self.next_at {
            return;
        }
        // Later than that, no answer counts.
        let patience = lease.kills_at().saturating_sub(now);
        let followed_after = (self.ttl / FOLLOWED_AFTER_PART).max(SHORTEST_PAUSE);
        // A gateway may read a file of keys later than the others. It is asked again when it would be without an answer, and not
        // more often: too many wrong keys would shut out others at this address.
        if now >= self.forgives_at {
            self.gateways.forgive_all();
            self.forgives_at = now + followed_after;
        }
        if !self.tries.is_empty() {
            self.gateways.pass_over(self.gateways.next().0);
        }
        let (number, gateway) = self.gateways.next();
        let ttl = self.ttl;
        self.tries.spawn(async move { (number, gateway.renew(ttl, patience).await) });
        if self.stood_still() {
            self.first_at = Some(now);
        }
        self.first_at.get_or_insert(now);
        self.next_at = now + followed_after;
    }

    /// The next answer, and which gateway gave it. It does not end while there is no request under way.
    pub(super) async fn answer(&mut self) -> (usize, Result<RenewAnswer, Trouble>) {
        match self.tries.join_next().await {
            Some(Ok(renewed)) => renewed,
            // A try that panicked is one that failed.
            Some(Err(error)) => (self.gateways.next().0, Err(Trouble::without_answer(error.to_string()))),
            None => std::future::pending().await,
        }
    }

    /// Plans the next after an answer that renewed.
    pub(super) fn succeeded(&mut self, number: usize, held: &HeldGrant) {
        // The others are dropped, and with them what they would say.
        self.tries = JoinSet::new();
        self.gateways.answered(number);
        self.next_at = due_after(held);
        self.first_at = None;
    }

    /// Whether the next was not sent for so long after its time that this process or the machine has stood still.
    fn stood_still(&self) -> bool {
        boottime() > self.next_at + self.ttl / FOLLOWED_AFTER_PART
    }

    /// When the command must be asked to end. If this process or the machine stood still until then, it was not asked to renew
    /// in time: that comes first, and may take half of what is left.
    pub(super) fn terms_at(&self, lease: &LeaseClock) -> Duration {
        let (terms_at, kills_at) = (lease.terms_at(), lease.kills_at());
        match self.first_at {
            _ if self.over.is_some() => terms_at,
            None if self.next_at < terms_at => kills_at,
            _ if self.next_at < terms_at && self.stood_still() => kills_at,
            Some(at) if at > terms_at => at + kills_at.saturating_sub(at) / 2,
            _ => terms_at,
        }
    }

    /// Plans the next after one that decides nothing: at once at another gateway, after a pause once each has failed.
    pub(super) fn failed(&mut self, number: usize, trouble: Trouble) {
        let have_all_failed = self.gateways.failed(number, trouble);
        if !self.gateways.may_answer() {
            // Each of them refuses.
            return;
        }
        let pause = if have_all_failed {
            // Jitter keeps those apart who lost the same gateway together.
            jittered(pause_of(self.ttl))
        } else {
            Duration::ZERO
        };
        self.next_at = self.next_at.min(boottime() + pause);
    }

    /// Sends no more, for this reason: the lock is held for as long as its lease runs, and not longer.
    pub(super) fn end(&mut self, reason: String) {
        self.tries = JoinSet::new();
        self.over = Some(reason);
    }

    /// Why the lease could not be renewed.
    pub(super) fn failure(&self) -> String {
        let was_asked = self.first_at.is_some() || boottime() < self.next_at;
        let silence = if was_asked { "no answer in time" } else { "this process or the machine stood still" };
        self.over.clone().or_else(|| self.gateways.trouble()).unwrap_or_else(|| silence.into())
    }
}

/// How long the answer to a grant may take for the command to be started: a renewal that takes as long must be back before
/// the command is asked to end.
pub(super) fn grant_may_take(ttl: Duration, kill_after: Duration) -> Duration {
    let held = HeldGrant { ends_at: ttl, ..HeldGrant::default() };
    let (renewed_at, lease) = (due_after(&held), LeaseClock::new(&held, ttl, kill_after));
    renewed_at.min(lease.terms_at().saturating_sub(renewed_at))
}

/// Goes on renewing when the command has ended, until it is dropped. No answer ends that: what a worker sends needs no
/// lease, and the lease only keeps others from doing the work again meanwhile.
pub(super) async fn go_on_renewing(mut gateways: Gateways, ttl: Duration) -> Infallible {
    sleep((ttl / AFTER_END_PART).min(LONGEST_AFTER_END)).await;
    gateways.forget_troubles();
    loop {
        let renew = async |gateway: &Gateway, patience| gateway.renew(ttl, patience).await;
        let pause = match gateways.ask(ttl / PART, renew).await {
            Some(_) => ttl / PART,
            None => pause_of(ttl),
        };
        sleep(pause).await;
    }
}

/// The pause once each gateway has failed.
fn pause_of(ttl: Duration) -> Duration {
    (ttl / PAUSE_PART).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}

fn due_after(held: &HeldGrant) -> Duration {
    held.sent_at + held.ends_at.saturating_sub(held.sent_at) / PART
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the page on `run` says it.
    #[test]
    fn a_command_is_started_only_if_its_first_renewal_can_be_back_before_it_is_asked_to_end() {
        for (ttl_ms, kill_after_ms, may_take_ms) in
            [(1_500, 500, 350), (9_000, 3_000, 2_100), (18_000, 5_000, 6_000), (30_000, 5_000, 10_000)]
        {
            let [ttl, kill_after, may_take] = [ttl_ms, kill_after_ms, may_take_ms].map(Duration::from_millis);
            assert_eq!(grant_may_take(ttl, kill_after), may_take, "{ttl_ms}");
        }
    }
}
