//! Listing locks: what enough servers have is gone through, and all of them are asked about it.

use std::sync::Arc;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::QuorumStore;
use super::member::{MemberAnswer, Until};
use super::reports::{most_held, relied_on};
use super::scripts;
use crate::lock::{Listed, LockKey, Page};
use crate::store::redis::connection::scan::Scan;
use crate::store::redis::scripts::ScriptReply;
use crate::store::{List, StoreError};

/// The most locks that one call of the script lists, since all other commands wait for it.
const MOST_AT_ONCE: usize = 50;

impl QuorumStore {
    /// Lists some of the locks that most servers hold, beginning at the cursor. The servers are gone through one after
    /// the other. A lock that most have is on at least one of these, and may be found more than once.
    pub(super) async fn list_page(&self, request: &List, deadline: Instant) -> Result<Page, StoreError> {
        let membership = &self.pollster.membership;
        let (quorum, blocking) = (membership.quorum(), membership.blocking());
        let links: Vec<_> =
            membership.members.iter().filter_map(|member| member.link_now()).take(blocking).collect();
        if links.len() < blocking {
            return Err(StoreError::Unavailable(
                "too few servers of the quorum can be asked at present".to_owned(),
            ));
        }
        let walked = Scan::new(links, "").page(&self.keys, request.into(), deadline).await?;
        let keys: Vec<LockKey> = walked.found.into_iter().map(|(_, key)| key).collect();
        let polls: Vec<_> = keys
            .chunks(MOST_AT_ONCE)
            .map(|keys| {
                let names = keys.iter().map(|key| self.keys.lock(key)).collect();
                let call = self.call(&scripts::LIST, &keys[0], names, Vec::new(), Until::Always);
                (keys, self.pollster.ask(&Arc::new(call), deadline))
            })
            .collect();
        let answered = polls.into_iter().map(async |(keys, mut poll)| {
            poll.decide(deadline, |_| None::<()>).await;
            (keys, poll)
        });
        let mut locks = Vec::new();
        for (keys, poll) in join_all(answered).await {
            if poll.heard().count() < quorum {
                // A look changes nothing.
                return Err(StoreError::Unavailable(poll.too_few().to_string()));
            }
            for (index, key) in keys.iter().enumerate() {
                let answers: Vec<_> = poll.answers.iter().map(|answer| answer_of(answer, index)).collect();
                let Some(held) = most_held(&answers, quorum) else { continue };
                let Some(mut lease) = held.by(quorum) else { continue };
                lease.left_ms = relied_on(lease.left_ms);
                let waiters = self.waiters.step(|state, now| state.queues.waiters(key, now));
                locks.push(Listed { key: key.clone(), lease, waiters });
            }
        }
        locks.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(Page { locks, next: walked.next })
    }
}

/// What a server said of one of the locks that it was asked about.
fn answer_of(answer: &Option<MemberAnswer>, index: usize) -> Option<MemberAnswer> {
    match answer.as_ref()? {
        Ok(reply) => reply.field::<ScriptReply>(index).map(Ok),
        Err(silence) => Some(Err(silence.clone())),
    }
}
