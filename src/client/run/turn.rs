//! Taking the lock: asking until it is ours, with a place in the wait queue that outlives each request.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{interval, sleep, timeout};

use super::progress::Progress;
use super::signals::Signals;
use super::terminal::Terminal;
use crate::client::{
    ABANDONED, AcquireAnswer, AcquireSettings, Busy, CommandFailure, Contact, Gateway, Gateways, HeldGrant,
    REFUSED, RequestRefusal, StoredOutput, Trouble, UNREACHABLE, by_signal, fresh_token,
};
use crate::clock::{Backoff, boottime};
use crate::lock::LeaseToken;

/// How long one request waits. The place is kept for longer than the next takes to arrive.
const SLICE: Duration = Duration::from_secs(20);
/// The same where there is another gateway. One that hangs is left in time for the next to keep the place, which is there
/// for ten seconds.
const SLICE_OF_SEVERAL: Duration = Duration::from_secs(5);
/// The same for several locks: at its end the request gives back those that it has, and others go first. It is less than the
/// 50 s after which many a proxy ends the request, and the minute of a gateway. A gateway that hangs is left late.
const SLICE_OF_SEVERAL_LOCKS: Duration = Duration::from_secs(45);
/// The same where a person watches the place.
const WATCHED_SLICE: Duration = Duration::from_secs(2);
/// Each until a gateway has said who has the lock. It also shows whether there is a gateway.
const FIRST_SLICE: Duration = Duration::from_secs(1);
/// A gateway that refuses so short a wait is asked without a wait.
const SHORTEST_SLICE: Duration = Duration::from_millis(100);
/// How long one request may take while no gateway has ever answered.
const FIRST_ANSWER_MAY_TAKE: Duration = Duration::from_secs(5);
/// How long giving up a place may take. Mostly the place ends by itself. If not, the user is told of it.
const GIVING_UP_MAY_TAKE: Duration = Duration::from_secs(2);
/// Why a lock that was granted is given up.
const TOO_LATE: &str = "answers take too long for a lease this short";
/// Why there is no lock where nothing is to be begun with another token.
const TAKEN_AWAY: &str = "an operator broke what was taken already, or the store lost it";
/// Why a place in a record is given up whose lease ended before this process knew of it.
const OVER_BEFORE_IT_BEGAN: &str = "its lease ended before the answer arrived";
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Why there is no lock.
pub(crate) struct NotTaken {
    pub(crate) cause: Cause,
    reason: String,
    /// A request may have got it all the same, and no gateway has confirmed the release.
    pub(crate) may_be_held: bool,
}

/// Who is to blame.
pub(crate) enum Cause {
    /// This process is to end.
    Signal(Signal),
    Busy,
    /// A worker that has left may have done the work, and its work is not to be taken over.
    Abandoned,
    /// The work is done already.
    Done(StoredOutput),
    /// There is no gateway, or none that can use its store or has room for this client.
    Unreachable,
    /// No gateway can be spoken with until something is set right, such as a certificate.
    Misconfigured,
    /// The request is wrong, or its caller is not served.
    Refused,
}

impl NotTaken {
    fn because(cause: Cause, reason: impl Into<String>) -> Self {
        Self { cause, reason: reason.into(), may_be_held: false }
    }

    /// What is said of it, and the status; the one for a lock that is busy is the caller's.
    pub(crate) fn explain(&self, settings: &AcquireSettings, busy: u8) -> CommandFailure {
        let (name, reason) = (settings.name(), &self.reason);
        let verb = if settings.once.is_some() { "begin" } else { "take" };
        let (status, problem) = match &self.cause {
            Cause::Signal(signal) => (by_signal(signal.as_raw()), String::new()),
            Cause::Busy => (busy, format!("{name} {} busy: {reason}", settings.said_of("is", "are"))),
            Cause::Abandoned => {
                let why = "an earlier run may have done the work, and has stored no result: find out; if nothing was done, \
                           break its record by DELETE /once with force=true and clean=true, as fencepost break knows only \
                           locks; without --no-takeover, the command runs again";
                (ABANDONED, format!("{name} is not begun: {why}"))
            }
            Cause::Done(_) => (0, String::new()),
            Cause::Unreachable => (UNREACHABLE, format!("cannot {verb} {name}: {reason}")),
            Cause::Misconfigured => (REFUSED, format!("cannot {verb} {name}: {reason}")),
            Cause::Refused => (REFUSED, format!("refused by {reason}")),
        };
        CommandFailure::new(status, problem).and(if self.may_be_held { settings.left_behind() } else { "" })
    }
}

/// Takes the lock. If that fails, the place in the wait queue is given up. The token may be replaced, if there is one here. A
/// grant counts only if its answer took no longer than it may.
pub(crate) async fn take(
    gateways: &mut Gateways,
    settings: &AcquireSettings,
    token: Option<&mut LeaseToken>,
    grant_may_take: Duration,
    signals: &mut Signals,
    terminal: &Terminal,
) -> Result<HeldGrant, NotTaken> {
    let mut turn = Turn {
        gateways,
        settings,
        token,
        grant_may_take,
        began_at: boottime(),
        progress: Progress::new(terminal),
        contact: Contact::None,
        has_decided: false,
        is_asking: false,
        may_have_place: false,
        may_have_lock: false,
    };
    let taken = tokio::select! {
        biased;
        signal = signals.next() => Err(NotTaken::because(Cause::Signal(signal), "")),
        taken = turn.ask() => taken,
    };
    turn.progress.clear();
    let mut not_taken = match taken {
        Ok(held) => return Ok(held),
        Err(not_taken) => not_taken,
    };
    if turn.is_asking || turn.may_have_place {
        let may_be_held = turn.is_asking || turn.may_have_lock;
        // An answer that crosses this one grants nothing any more.
        let given_up =
            timeout(GIVING_UP_MAY_TAKE, turn.give_up(matches!(not_taken.cause, Cause::Refused))).await;
        not_taken.may_be_held = may_be_held && given_up != Ok(true);
    }
    Err(not_taken)
}

struct Turn<'a> {
    gateways: &'a mut Gateways,
    settings: &'a AcquireSettings,
    /// What the gateways are asked with, if it may be replaced.
    token: Option<&'a mut LeaseToken>,
    /// How long the answer to a grant may take.
    grant_may_take: Duration,
    began_at: Duration,
    progress: Progress<'a>,
    /// How far a request has come.
    contact: Contact,
    /// Whether a gateway has said who has the lock.
    has_decided: bool,
    /// Whether one is under way.
    is_asking: bool,
    /// Whether a request may have got the lock, or a place in its queue. One that was refused has neither.
    may_have_place: bool,
    /// Whether one may have got the lock.
    may_have_lock: bool,
}

impl Turn<'_> {
    async fn ask(&mut self) -> Result<HeldGrant, NotTaken> {
        let mut longest_slice = self.longest_slice();
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut may_not_wait = false;
        let mut is_repeated = false;
        let mut slow_since = None;
        loop {
            let asked_at = boottime();
            let is_kept_out = std::mem::take(&mut may_not_wait);
            let left = if is_kept_out || is_repeated {
                Duration::ZERO
            } else {
                self.wait_ends_at().saturating_sub(asked_at)
            };
            // A request in the queue hears nothing until its end. A gateway that goes away before it has said who has the lock
            // is not waited for long.
            let slice = if self.has_decided { longest_slice } else { FIRST_SLICE.min(longest_slice) };
            let wait = slice.min(left);
            let (number, gateway) = self.gateways.next();
            self.is_asking = true;
            let patience = self.patience(wait);
            let answer = self.answer(&gateway, wait, patience).await;
            self.is_asking = false;
            self.gateways.note_stop(asked_at, patience);
            let now = boottime();
            self.note(number, &answer);
            match answer {
                AcquireAnswer::Held(held) if now < held.sent_at + self.grant_may_take => return Ok(held),
                // It was sent before a long wait, so what it says is too little: the same request again, which does not wait,
                // says how much is left from now on.
                AcquireAnswer::Held(_) if !std::mem::replace(&mut is_repeated, true) => {}
                // It is the answers that are slow. Until they are faster, others may have the lock.
                AcquireAnswer::Held(_) => {
                    let since = *slow_since.get_or_insert(self.gateways.now());
                    let is_over = self.gateways.left_since(since).is_zero();
                    // With a min_hold the lock stays taken after a release, for this process too. A release that no gateway confirmed
                    // may still come: nothing is begun under this token any more.
                    if is_over || self.settings.min_hold.is_none() && !self.start_over().await {
                        return Err(NotTaken::because(Cause::Unreachable, TOO_LATE));
                    }
                    is_repeated = false;
                    self.gateways.pause(&mut backoff).await;
                }
                AcquireAnswer::TokenReleased(_)
                    if now >= self.wait_ends_at() && self.contact_is_over() || self.token.is_none() =>
                {
                    return Err(NotTaken::because(Cause::Busy, TAKEN_AWAY));
                }
                AcquireAnswer::TokenReleased(_) => {
                    self.start_over().await;
                    self.gateways.pause(&mut backoff).await;
                }
                AcquireAnswer::Done(result) => return Err(NotTaken::because(Cause::Done(result), "")),
                // The command was never started, so to give the place up leaves no doubt behind.
                AcquireAnswer::Busy(Busy { is_own: true, .. }) => {
                    return Err(NotTaken::because(Cause::Unreachable, OVER_BEFORE_IT_BEGAN));
                }
                // Hardly anything but a person ends this, so it is not waited for.
                AcquireAnswer::Busy(busy) if busy.is_abandoned => {
                    return Err(NotTaken::because(Cause::Abandoned, ""));
                }
                AcquireAnswer::Busy(busy) if now >= self.wait_ends_at() => {
                    let of = busy.key.map(|key| format!("{key:?}: ")).unwrap_or_default();
                    return Err(NotTaken::because(Cause::Busy, of + &busy.reason));
                }
                AcquireAnswer::Busy(busy) => {
                    (is_repeated, slow_since) = (false, None);
                    let key = busy.key.as_deref().unwrap_or(self.settings.key.as_str());
                    self.progress.note(key, &busy);
                    // Another gateway may have room for one who waits.
                    if is_kept_out {
                        self.gateways.pass_over(number);
                    }
                    // Where there is no place to wait in, it is looked for from time to time.
                    if wait.is_zero() || now < asked_at + wait / 2 {
                        self.gateways.pause(&mut backoff).await;
                    }
                }
                // The same gateway says whether another client has the lock, or why none can.
                AcquireAnswer::MayNotWait(_) => may_not_wait = true,
                AcquireAnswer::NotNow(trouble) => self.go_on_after(number, trouble, &mut backoff).await?,
                AcquireAnswer::Refused(refusal)
                    if refusal.parameter.as_deref() == Some("wait") && !wait.is_zero() =>
                {
                    longest_slice = if wait > SHORTEST_SLICE { wait / 2 } else { Duration::ZERO };
                }
                AcquireAnswer::Refused(RequestRefusal { reason, is_of_all, .. }) => {
                    let told = format!("{}: {reason}", self.gateways.name(number));
                    if is_of_all {
                        self.gateways.refused(number, reason);
                    }
                    return Err(NotTaken::because(Cause::Refused, told));
                }
            }
        }
    }

    fn wait_ends_at(&self) -> Duration {
        self.began_at.saturating_add(self.settings.wait)
    }

    /// Gateways that answer but do not decide are tried for this long at least.
    fn contact_is_over(&self) -> bool {
        self.gateways.left_since(self.began_at).is_zero()
    }

    fn longest_slice(&self) -> Duration {
        match self.settings.others.is_empty() {
            // The first of them is held meanwhile. At least half of what it may be held is for the command.
            false => self
                .settings
                .max_hold
                .map_or(SLICE_OF_SEVERAL_LOCKS, |most| SLICE_OF_SEVERAL_LOCKS.min(most / 2)),
            true if self.progress.is_seen() => WATCHED_SLICE,
            true if self.gateways.count() == 1 => SLICE,
            true => SLICE_OF_SEVERAL,
        }
    }

    /// How long the answer to a request may take that waits for so long.
    fn patience(&self, wait: Duration) -> Duration {
        if self.contact == Contact::Answered {
            return wait + self.gateways.answer_may_take();
        }
        // The last try too has some time, so that its failure says what is wrong.
        let left = self.gateways.left_since(self.began_at).min(FIRST_ANSWER_MAY_TAKE);
        left.div_f64(self.gateways.count() as f64).max(wait + FIRST_SLICE)
    }

    /// Notes how far a request has come, and what it may have got.
    fn note(&mut self, number: usize, answer: &AcquireAnswer) {
        let contact = match answer {
            AcquireAnswer::NotNow(trouble) => trouble.contact,
            _ => Contact::Answered,
        };
        self.contact = self.contact.max(contact);
        match answer {
            AcquireAnswer::Held(_) | AcquireAnswer::Busy(_) => {
                self.gateways.answered(number);
                self.has_decided = true;
                // A copy of an earlier request that had no answer may take the lock later.
                self.may_have_lock |=
                    matches!(answer, AcquireAnswer::Held(_) | AcquireAnswer::Busy(Busy { is_own: true, .. }));
                // A record has no queue. But a request that had no answer may reach a gateway yet.
                self.may_have_place |= self.may_have_lock || self.settings.once.is_none();
            }
            AcquireAnswer::NotNow(trouble) => {
                self.may_have_place |= contact > Contact::None;
                self.may_have_lock |= trouble.may_be_done;
            }
            AcquireAnswer::Done(_) => (self.may_have_place, self.may_have_lock) = (false, false),
            AcquireAnswer::Refused(_) | AcquireAnswer::MayNotWait(_) | AcquireAnswer::TokenReleased(_) => {}
        }
    }

    /// Makes the pause after an answer that decides nothing, if another one is worth waiting for.
    async fn go_on_after(
        &mut self,
        number: usize,
        trouble: Trouble,
        backoff: &mut Backoff,
    ) -> Result<(), NotTaken> {
        let reason = trouble.reason.clone();
        let have_all_failed = self.gateways.failed(number, trouble);
        // A lock that others hold is waited for, and a store that is away from the start is not.
        let is_over = self.contact_is_over() && (!self.has_decided || boottime() >= self.wait_ends_at());
        let is_useless = self.contact < Contact::Answered && !self.gateways.may_answer();
        if have_all_failed && (is_over || is_useless) {
            let reason = self.gateways.trouble().unwrap_or(reason);
            let cause = if is_useless { Cause::Misconfigured } else { Cause::Unreachable };
            return Err(NotTaken::because(cause, reason));
        }
        self.progress.trouble(self.settings.key.as_str(), &reason);
        if have_all_failed {
            self.gateways.pause(backoff).await;
        }
        Ok(())
    }

    /// The answer to one request; meanwhile the time on the terminal goes on.
    async fn answer(&mut self, gateway: &Gateway, wait: Duration, patience: Duration) -> AcquireAnswer {
        let acquire = gateway.acquire(self.settings, wait, patience);
        tokio::pin!(acquire);
        let mut seconds = interval(Duration::from_secs(1));
        loop {
            tokio::select! {
                biased;
                answer = &mut acquire => return answer,
                _ = seconds.tick() => self.progress.show(),
            }
        }
    }

    /// Gives back what the token has, and goes on with another one: one that was released is granted nothing any more. Returns
    /// whether that is done. If no gateway confirms it, the token stays, so that the end gives it up.
    async fn start_over(&mut self) -> bool {
        let (Some(token), Ok(fresh)) = (&mut self.token, fresh_token()) else { return false };
        let released = self.gateways.release(true, GIVING_UP_MAY_TAKE).await;
        if released.is_none() || self.gateways.use_token(&fresh).is_err() {
            return false;
        }
        **token = fresh;
        (self.may_have_place, self.may_have_lock) = (false, false);
        true
    }

    /// Gives up what a request may have got. After a refusal each gateway is asked at most once, and the one that refused
    /// is not: it would count one more wrong key. Returns whether a gateway has confirmed it.
    async fn give_up(&mut self, is_refused: bool) -> bool {
        // One whose answer was no HTTP may be a gateway that has granted the lock.
        self.gateways.forgive_strangers();
        while self.gateways.release(true, GIVING_UP_MAY_TAKE).await.is_none() {
            if is_refused || !self.gateways.may_answer() {
                return false;
            }
            sleep(FIRST_PAUSE).await;
        }
        true
    }
}
