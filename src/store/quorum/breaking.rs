//! Breaking a lock: ending one grant on most servers.

use std::sync::Arc;

use tokio::time::Instant;

use super::QuorumStore;
use super::member::Until;
use super::poll::heard;
use super::reports::count;
use super::scripts;
use crate::lock::Broken;
use crate::store::{AnswerTo, Break, StoreError};

impl QuorumStore {
    /// Ends the grant of this number, if most servers hold the lock by it.
    pub(super) async fn break_all(&self, Break { key, fence }: &Break, deadline: Instant) -> AnswerTo<Break> {
        let (holder, lease) = match self.holder(key, None, deadline).await? {
            None => return Ok(Broken::NotHeld),
            Some((_, lease)) if lease.fencing_token != *fence => return Ok(Broken::HeldByAnother),
            Some(held) => held,
        };
        let quorum = self.pollster.membership.quorum();
        let args = vec![fence.get().to_string(), self.mark_ttl.as_millis().to_string()];
        // Even if it comes late, it does nothing to any other grant.
        let call = self.call(&scripts::BREAK, key, self.keys_of(key, &holder), args, Until::Always);
        let call = Arc::new(call);
        let mut poll = self.pollster.ask(&call, deadline);
        // Once so many have ended the grant, too few are left to make it one, and nothing mends it on these.
        poll.decide(deadline, |answers| (heard(answers).count() >= quorum).then_some(())).await;
        if poll.heard().count() < quorum {
            let error = poll.too_few();
            if let StoreError::Unknown(_) = error {
                // Some have ended it, and it must not come back to them from the others.
                self.pollster.see_through(&call, poll);
            }
            return Err(error);
        }
        let has_ended = count(&poll.answers, 0) > 0;
        self.pollster.see_through(&call, poll);
        // It may have been released just before.
        Ok(if has_ended { Broken::Broken(lease) } else { Broken::NotHeld })
    }
}
