//! A question to all servers at once, and their answers as they come.
//!
//! The caller goes on as soon as it knows enough. Calls that have no answer yet go on in the background, until they are
//! answered or their time is over. To drop them would not stop them, and would hide that a connection is broken.
//!
//! Until then the caller makes the calls itself. So requests that one client sends one after the other reach each
//! server in that order, even under load, unless a small script left one of them to a general one. A server that heard of a
//! release before the grant has to be told again.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::member::{MemberAnswer, MemberCall, Silence};
use super::membership::Membership;
use crate::clock::Backoff;
use crate::store::StoreError;
use crate::store::redis::scripts::ScriptReply;

/// Calls to one server that may be seen through at once, and repairs that may be looked after. Beyond, what they would undo there ends
/// at its ttl.
const MOST_SEEN_THROUGH: usize = 2_000;
/// The pause before a call that is seen through is tried again: it doubles from the first to the last, with jitter.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(50);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// If the answers of most servers decide nothing, the gateway waits for the others: so many times as long as those
/// took, and at least the shortest time.
const GRACE_FACTOR: u32 = 3;
const SHORTEST_GRACE: Duration = Duration::from_millis(20);

/// Who asks the servers.
#[derive(Clone)]
pub(super) struct Pollster {
    pub(super) membership: Arc<Membership>,
    /// For each server.
    seen_through: Arc<[SeenThrough]>,
    /// For repairs whose outcome is looked at.
    pub(super) looks_after: Arc<Semaphore>,
}

/// Calls to a server that are seen through.
struct SeenThrough {
    permits: Arc<Semaphore>,
    /// Whether there were too many, and none of them has ended since.
    is_full: AtomicBool,
}

/// The answers to a question so far.
pub(super) struct Inquiry {
    membership: Arc<Membership>,
    calls: Calls,
    /// One entry for each server; nothing if it was not asked, or has not answered.
    pub(super) answers: Vec<Option<MemberAnswer>>,
    /// Which servers were asked.
    pub(super) asked: Vec<bool>,
    asked_at: Instant,
}

/// Calls that were not answered yet. If their caller has gone, they go on in the background.
struct Calls(FuturesUnordered<InFlight>);

/// A call to the server of this index.
type InFlight = Pin<Box<dyn Future<Output = (usize, MemberAnswer)> + Send>>;

impl Drop for Calls {
    fn drop(&mut self) {
        // Without a runtime this is the end of the process.
        if let Ok(runtime) = Handle::try_current()
            && !self.0.is_empty()
        {
            runtime.spawn(std::mem::take(&mut self.0).for_each(async |_| ()));
        }
    }
}

impl Pollster {
    pub(super) fn new(membership: Arc<Membership>) -> Self {
        let none = |_| SeenThrough {
            permits: Arc::new(Semaphore::new(MOST_SEEN_THROUGH)),
            is_full: AtomicBool::new(false),
        };
        let seen_through = membership.members.iter().map(none).collect();
        Self { membership, seen_through, looks_after: Arc::new(Semaphore::new(MOST_SEEN_THROUGH)) }
    }

    /// Asks all servers, as soon as the answers are waited for.
    pub(super) fn ask(&self, call: &Arc<MemberCall>, deadline: Instant) -> Inquiry {
        self.ask_some(call, deadline, |_| true)
    }

    /// Asks those of the servers that are `wanted`.
    pub(super) fn ask_some(
        &self,
        call: &Arc<MemberCall>,
        deadline: Instant,
        wanted: impl Fn(usize) -> bool,
    ) -> Inquiry {
        self.ask_each(deadline, |index| wanted(index).then(|| call.clone()))
    }

    /// Asks each server what is for it, if anything is.
    pub(super) fn ask_each(
        &self,
        deadline: Instant,
        call_for: impl Fn(usize) -> Option<Arc<MemberCall>>,
    ) -> Inquiry {
        let calls = Calls(FuturesUnordered::new());
        let mut asked = Vec::new();
        for (index, member) in self.membership.members.iter().enumerate() {
            let call = call_for(index);
            asked.push(call.is_some());
            if let Some(call) = call {
                let member = member.clone();
                calls.0.push(Box::pin(async move { (index, member.run(&call, deadline).await) }));
            }
        }
        let answers = self.membership.members.iter().map(|_| None).collect();
        Inquiry { membership: self.membership.clone(), calls, answers, asked, asked_at: Instant::now() }
    }

    /// Has every server that was asked and did nothing yet do it after all, in the background, for at most as long as a
    /// lease can last.
    pub(super) fn see_through(&self, call: &Arc<MemberCall>, poll: Inquiry) {
        let call = call.clone();
        self.see_each_through(poll, move |_| call.clone());
    }

    /// The same where each server was asked what is for it.
    pub(super) fn see_each_through(
        &self,
        mut poll: Inquiry,
        call_for: impl Fn(usize) -> Arc<MemberCall> + Send + 'static,
    ) {
        let this = self.clone();
        tokio::spawn(async move {
            poll.rest().await;
            for (index, answer) in poll.answers.iter().enumerate() {
                if matches!(answer, Some(Err(_))) {
                    this.see_through_at(index, call_for(index));
                }
            }
        });
    }

    /// Has every server whose answer to a question is `wanted` do something else in the background, once all have answered.
    pub(super) fn follow_up(
        &self,
        call: &Arc<MemberCall>,
        mut poll: Inquiry,
        wanted: impl Fn(&Option<MemberAnswer>) -> bool + Send + 'static,
    ) {
        // Most often there is nothing to do.
        if poll.answers.iter().all(|answer| answer.is_some() && !wanted(answer)) {
            return;
        }
        let (this, call) = (self.clone(), call.clone());
        tokio::spawn(async move {
            poll.rest().await;
            let wanted: Vec<_> = poll.answers.iter().map(&wanted).collect();
            if wanted.contains(&true) {
                let deadline = Instant::now() + this.membership.reply_timeout;
                let asked = this.ask_some(&call, deadline, |index| wanted[index]);
                this.see_through(&call, asked);
            }
        });
    }

    fn see_through_at(&self, index: usize, call: Arc<MemberCall>) {
        let (membership, all) = (self.membership.clone(), self.seen_through.clone());
        let Ok(permit) = all[index].permits.clone().try_acquire_owned() else {
            if !all[index].is_full.swap(true, Ordering::Relaxed) {
                let server = &membership.members[index].name;
                tracing::warn!(
                    server,
                    "too many calls wait for this server: what others would undo there ends with its ttl"
                );
            }
            return;
        };
        tokio::spawn(async move {
            let started = Instant::now();
            let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
            while started.elapsed() < membership.longest() && !membership.stop.is_cancelled() {
                backoff.pause().await;
                if call.until.is_over(membership.clock.boot()) {
                    break;
                }
                let deadline = Instant::now() + membership.reply_timeout;
                if membership.members[index].run(&call, deadline).await.is_ok() {
                    break;
                }
            }
            drop(permit);
            all[index].is_full.store(false, Ordering::Relaxed);
        });
    }
}

impl Inquiry {
    /// Waits until `decide` knows what follows from the answers. It gives up when all have answered, when most have and
    /// the rest takes too long, or when the deadline has passed.
    pub(super) async fn decide<D>(
        &mut self,
        deadline: Instant,
        mut decide: impl FnMut(&[Option<MemberAnswer>]) -> Option<D>,
    ) -> Option<D> {
        let mut patience = deadline;
        loop {
            if let Some(decision) = decide(&self.answers) {
                return Some(decision);
            }
            if patience == deadline && self.heard().count() >= self.membership.quorum() {
                let grace = (self.asked_at.elapsed() * GRACE_FACTOR).max(SHORTEST_GRACE);
                patience = deadline.min(Instant::now() + grace);
            }
            match timeout_at(patience, self.calls.0.next()).await {
                Ok(Some((index, answer))) => self.answers[index] = Some(answer),
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// Waits until most servers have answered; else says that too few have.
    pub(super) async fn most(&mut self, deadline: Instant) -> Result<(), StoreError> {
        let quorum = self.membership.quorum();
        let most = |answers: &[Option<MemberAnswer>]| (heard(answers).count() >= quorum).then_some(());
        self.decide(deadline, most).await.ok_or_else(|| self.too_few())
    }

    /// Waits for all answers that are still to come.
    pub(super) async fn rest(&mut self) {
        while let Some((index, answer)) = self.calls.0.next().await {
            self.answers[index] = Some(answer);
        }
    }

    /// What the servers said that counted.
    pub(super) fn heard(&self) -> impl Iterator<Item = &ScriptReply> {
        heard(&self.answers)
    }

    /// That too few servers answered, or that those which did do not agree. Nothing happened if each of them says so, and none is
    /// still silent.
    pub(super) fn too_few(&self) -> StoreError {
        let mut is_certain = true;
        let mut reasons = Vec::new();
        for (answer, member) in self.answers.iter().zip(&self.membership.members) {
            match answer {
                Some(Err(Silence::Out(reason))) => reasons.push(reason.clone()),
                Some(Err(Silence::Doubt(reason))) => {
                    is_certain = false;
                    reasons.push(reason.clone());
                }
                Some(Ok(_)) => is_certain = false,
                None => {
                    is_certain = false;
                    reasons.push(format!("{}: no answer yet", member.name));
                }
            }
        }
        let (quorum, all) = (self.membership.quorum(), self.answers.len());
        let heard = self.heard().count();
        // It is not the silent ones that are to blame then, or not alone.
        let mut reason = match heard < quorum {
            true => format!("{quorum} of {all} servers are needed"),
            false => format!("the {heard} servers that answered do not agree"),
        };
        if !reasons.is_empty() {
            reason = format!("{reason}: {}", reasons.join("; "));
        }
        if is_certain { StoreError::Unavailable(reason) } else { StoreError::Unknown(reason) }
    }
}

/// What the servers said that counted.
pub(super) fn heard(answers: &[Option<MemberAnswer>]) -> impl Iterator<Item = &ScriptReply> {
    answers.iter().flatten().filter_map(|answer| answer.as_ref().ok())
}
