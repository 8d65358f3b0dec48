//! Renewing: each third of the ttl, and, when no answer comes, again and again until one does.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::gateway::{Gateway, RenewAnswer};
use super::lease::{HeldGrant, LeaseClock};
use crate::clock::boottime;

/// When the lease is renewed, as a part of it.
const PART: u32 = 3;
/// A request that is not answered within this part of the ttl is followed by another. It is not given up: whichever
/// answer comes first counts, and what stands still may be the connection alone.
const FOLLOWED_AFTER_PART: u32 = 10;
/// A request that failed is followed by another after this part of the ttl.
const PAUSE_PART: u32 = 30;
const SHORTEST_PAUSE: Duration = Duration::from_millis(30);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The renewals of one lease.
pub(super) struct Renewals {
    gateway: Arc<Gateway>,
    ttl: Duration,
    tries: JoinSet<RenewAnswer>,
    next_at: Duration,
    is_over: bool,
    /// Why the last that failed did so.
    failure: Option<String>,
}

impl Renewals {
    pub(super) fn new(gateway: Arc<Gateway>, held: HeldGrant, ttl: Duration) -> Self {
        let next_at = due_after(held);
        Self { gateway, ttl, tries: JoinSet::new(), next_at, is_over: false, failure: None }
    }

    /// When something is to be sent; nothing once there is nothing to gain.
    pub(super) fn next_at(&self) -> Option<Duration> {
        (!self.is_over).then_some(self.next_at)
    }

    /// Sends one, if it is time.
    pub(super) fn send_if_due(&mut self, lease: &LeaseClock) {
        let now = boottime();
        if self.is_over || now < self.next_at {
            return;
        }
        // Later than that, no answer counts.
        let patience = lease.kills_at().saturating_sub(now);
        let (gateway, ttl) = (self.gateway.clone(), self.ttl);
        self.tries.spawn(async move { gateway.renew(ttl, patience).await });
        self.next_at = now + (self.ttl / FOLLOWED_AFTER_PART).max(SHORTEST_PAUSE);
    }

    /// The next answer; it does not end while there is no request under way.
    pub(super) async fn answer(&mut self) -> RenewAnswer {
        match self.tries.join_next().await {
            Some(Ok(renewed)) => renewed,
            // A try that panicked is one that failed.
            Some(Err(error)) => RenewAnswer::NotNow(error.to_string()),
            None => std::future::pending().await,
        }
    }

    /// Plans the next after an answer that renewed.
    pub(super) fn succeeded(&mut self, held: HeldGrant) {
        // The others are dropped, and with them what they would say.
        self.tries = JoinSet::new();
        self.failure = None;
        self.next_at = due_after(held);
    }

    /// Plans the next after one that decides nothing.
    pub(super) fn failed(&mut self, reason: String) {
        let pause = (self.ttl / PAUSE_PART).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        // Jitter keeps those apart who lost the same gateway together.
        let pause = pause.mul_f64(0.5 + rand::random::<f64>() / 2.0);
        self.next_at = self.next_at.min(boottime() + pause);
        self.failure = Some(reason);
    }

    /// Sends no more: the lock is held for as long as its lease runs, and not longer.
    pub(super) fn end(&mut self) {
        self.tries = JoinSet::new();
        self.is_over = true;
    }

    /// Why the lease could not be renewed.
    pub(super) fn failure(&self) -> &str {
        self.failure.as_deref().unwrap_or("no answer in time")
    }
}

fn due_after(held: HeldGrant) -> Duration {
    held.sent_at + held.ends_at.saturating_sub(held.sent_at) / PART
}
