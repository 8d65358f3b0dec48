//! A request that waits in line, from its first command to its answer.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::line::{Ring, Waiting};
use super::{Acquire, Acquisition, Doing, LockService, Outcome, RETRY_PAUSE, TakeBack, not_granted};
use crate::clock::{Backoff, boottime};
use crate::lock::{Acquired, Attempt, LeaseToken};
use crate::store::{AcquireRequest, Intent, Join, StoreError};
use crate::telemetry::metrics::{DoubtEnded, metrics};

/// The longest pause before an unanswered command is followed by another: it doubles up to there.
const LONGEST_PAUSE: Duration = Duration::from_millis(320);
/// How often one looks whose place was taken over by another request of the same token.
const LOOK_WHEN_MOVED: Duration = Duration::from_secs(1);

/// A request that waits.
struct Turn {
    request: AcquireRequest,
    waiting: Waiting,
    guard: TakeBack,
    step: Step,
    /// Attempts whose last command was not answered.
    superseded: Vec<Attempt>,
    /// Whether a command was not answered, and none since.
    is_in_doubt: bool,
    backoff: Backoff,
    /// The end of the wait.
    ends_at: Instant,
    /// When the answer is given up.
    deadline: Instant,
}

/// What a request does next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// To take a place, or the token's own.
    Join,
    /// To take the place again, if nobody else of the same token is at it.
    PutBack,
    /// To look whether it is its turn.
    Look,
}

impl LockService {
    /// Takes a lock, after waiting in its line for at most the wish's `wait`.
    ///
    /// A command without an answer is followed by one of a fresh attempt, which supersedes the attempts before: what
    /// they were given becomes its own, and what copies of them could still do is voided, in one step. So no attempt
    /// ends in doubt, and a grant whose answer was lost is not lost.
    pub(super) async fn acquire_in_line(&self, wish: Acquire) -> Result<Acquisition, StoreError> {
        let ends_at = Instant::now() + wish.wait;
        let token = wish.token.clone().unwrap_or_else(LeaseToken::generate);
        let ended = |outcome| Ok(Acquisition { token: token.clone(), outcome });
        let request = wish.request(&token);
        let bucket = self.store.bucket_of(&wish.key);
        let Some(waiting) = self.lines.enter(&wish.key, bucket, request.attempt, self.max_waiters) else {
            return ended(Outcome::TooManyWaiters);
        };
        if self.lines.closing.is_cancelled() {
            return ended(Outcome::ShuttingDown);
        }
        // The gateway is heard of before any of its waiters is.
        match timeout_at(self.deadline(), self.heart.be_heard(bucket)).await {
            Ok(Ok(())) => {}
            Ok(Err(StoreError::Unavailable(reason) | StoreError::Unknown(reason))) => {
                return Err(StoreError::Unavailable(reason));
            }
            Err(_) => return Err(StoreError::Unavailable("the store does not answer".into())),
        }
        let guard = self.cleaner.guard(&request, wish.place_after());
        // From the first command on, since its answer may be lost.
        wish.tenant.keeps_place(true);
        let deadline = ends_at + self.store_timeout;
        let mut turn = Turn::new(request, waiting, guard, ends_at, deadline);
        let mut permit = None;
        loop {
            turn.request.intent = turn.next_intent(&wish);
            let sent_at = boottime();
            let answer = self.store.acquire(&turn.request, self.until(deadline)).await;
            let looks_again_at = match answer {
                Err(error) => {
                    turn = turn.goes_on_after(error, &wish).await?;
                    if self.lines.closing.is_cancelled() {
                        // The guard is dropped armed.
                        let reason = "the server is shutting down".to_owned();
                        return if turn.is_in_doubt {
                            metrics().doubts.count(DoubtEnded::Unknown);
                            Err(StoreError::Unknown(reason))
                        } else {
                            ended(Outcome::ShuttingDown)
                        };
                    }
                    continue;
                }
                Ok(answer) => {
                    turn.is_answered();
                    drop(permit.take());
                    match answer {
                        Acquired::InLine(standing) => {
                            if turn.waiting.place().is_none() {
                                self.watch.tell(&wish.key, || Doing::Line);
                            }
                            turn.waiting.note(&standing);
                            turn.guard.stands_at(standing.place);
                            ends_at
                        }
                        Acquired::Moved(standing) => {
                            turn.waiting.note(&standing);
                            ends_at.min(Instant::now() + LOOK_WHEN_MOVED)
                        }
                        Acquired::PlaceLost => {
                            // A copy of a last look would end what comes after it.
                            if turn.was_last_look() {
                                turn.supersede();
                            }
                            turn.step = Step::PutBack;
                            continue;
                        }
                        answer => {
                            if turn.waiting.place().is_some() {
                                self.watch.tell(&wish.key, || Doing::Line);
                            }
                            // Of a grant that reaches nobody it is kept as well.
                            let keeps_place = matches!(answer, Acquired::Granted(_) | Acquired::Refused(_));
                            wish.tenant.keeps_place(keeps_place);
                            let handed = self.hand_out(&wish, answer, sent_at, turn.guard, deadline).await;
                            return handed.map(|outcome| Acquisition { token, outcome });
                        }
                    }
                }
            };
            tokio::select! {
                biased;
                () = self.lines.closing.cancelled() => {
                    // Its place is kept for a while, for the same token at another gateway. Where that fails, it goes on
                    // in the background.
                    drop(turn.guard.take_back_now(self.deadline()).await);
                    return ended(Outcome::ShuttingDown);
                }
                ring = timeout_at(looks_again_at, turn.waiting.rung()) => {
                    if let Ok(Ring::PutBack(held)) = ring {
                        permit = Some(held);
                        turn.step = Step::PutBack;
                    }
                }
            }
        }
    }
}

/// The pauses between commands that are not answered.
fn retries() -> Backoff {
    Backoff::new(RETRY_PAUSE, LONGEST_PAUSE)
}

impl Turn {
    fn new(
        request: AcquireRequest,
        waiting: Waiting,
        guard: TakeBack,
        ends_at: Instant,
        deadline: Instant,
    ) -> Self {
        let (superseded, step, backoff) = (Vec::new(), Step::Join, retries());
        Self { request, waiting, guard, step, superseded, is_in_doubt: false, backoff, ends_at, deadline }
    }

    fn next_intent(&self, wish: &Acquire) -> Intent {
        let supersedes = self.superseded.clone();
        match self.step {
            Step::Look if Instant::now() >= self.ends_at => Intent::LastLook(wish.place_after()),
            Step::Look => Intent::Look,
            Step::Join => Intent::Join(Join { displaces: true, place: None, supersedes }),
            Step::PutBack => Intent::Join(Join { displaces: false, place: self.waiting.place(), supersedes }),
        }
    }

    /// The last command was answered, and with it what came before.
    fn is_answered(&mut self) {
        self.superseded.clear();
        if std::mem::take(&mut self.is_in_doubt) {
            metrics().doubts.count(DoubtEnded::Answered);
        }
        self.guard.keep_last();
        self.backoff = retries();
        self.step = Step::Look;
    }

    /// Goes on under a fresh attempt, which stands for those before.
    fn supersede(&mut self) {
        self.superseded.push(self.request.attempt);
        self.request.attempt = self.request.attempt.another();
        self.waiting.also_answers_to(self.request.attempt);
        self.guard.covers(self.request.attempt);
    }

    fn was_last_look(&self) -> bool {
        matches!(self.request.intent, Intent::LastLook(_))
    }

    /// Prepares for another command, after a pause, where the last one was not answered; or gives up.
    async fn goes_on_after(mut self, error: StoreError, wish: &Acquire) -> Result<Self, StoreError> {
        let (reason, is_unknown) = match error {
            StoreError::Unknown(reason) => (reason, true),
            StoreError::Unavailable(reason) => (reason, false),
        };
        self.is_in_doubt |= is_unknown;
        // Whoever has no place yet is told at once that the store is out of reach.
        if self.waiting.place().is_none() && !self.is_in_doubt {
            self.guard.disarm();
            wish.tenant.keeps_place(false);
            return Err(StoreError::Unavailable(reason));
        }
        if Instant::now() + self.backoff.next() >= self.deadline {
            if self.is_in_doubt {
                metrics().doubts.count(DoubtEnded::Unknown);
            }
            // The guard is dropped armed: the place and what is in doubt are seen to in the background.
            return Err(not_granted(!self.is_in_doubt, reason));
        }
        // A last look voids itself, so it may be sent again as it is.
        if is_unknown && !self.was_last_look() {
            self.supersede();
            if self.step == Step::Look {
                self.step = Step::PutBack;
            }
        }
        self.backoff.pause().await;
        Ok(self)
    }
}
