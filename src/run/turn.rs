//! Taking the lock: asking until it is ours, with a place in line that outlives each request.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{interval, sleep, timeout};

use super::RunSettings;
use super::gateway::{AcquireAnswer, Contact, Gateway, ReleaseAnswer};
use super::lease::HeldGrant;
use super::progress::Progress;
use super::signals::Signals;
use super::terminal::Terminal;
use crate::clock::{Backoff, boottime};

/// How long one request waits in line. The place is kept for longer than the next takes to arrive.
const SLICE: Duration = Duration::from_secs(20);
/// The same where a person watches the place.
const WATCHED_SLICE: Duration = Duration::from_secs(2);
/// The first, which also shows whether there is a gateway.
const FIRST_SLICE: Duration = Duration::from_secs(1);
/// Below this, a gateway that refuses the wait is not asked for a shorter one, but for none.
const SHORTEST_SLICE: Duration = Duration::from_millis(100);
/// How long a gateway that was never heard of is tried, and one that does not decide at least.
const FIRST_CONTACT: Duration = Duration::from_secs(5);
/// What an answer may take beyond the wait.
const ANSWER_MAY_TAKE: Duration = Duration::from_secs(10);
/// A lease is worked under when at most this part of it may be over.
const FRESH_PART: u32 = 3;
/// How long giving up a place may take: it is a courtesy, and ends by itself.
const GIVING_UP_MAY_TAKE: Duration = Duration::from_secs(2);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Why there is no lock.
pub(super) enum NotTaken {
    Because(Cause, String),
    /// This process is to end.
    Signal(Signal),
}

/// Who is to blame.
#[derive(Clone, Copy)]
pub(super) enum Cause {
    Busy,
    /// There is no gateway, or none that can use its store.
    Unreachable,
    /// The request is wrong.
    Refused,
}

/// Takes the lock. Whoever is denied has no place in line any more.
pub(super) async fn take(
    gateway: &Gateway,
    settings: &RunSettings,
    signals: &mut Signals,
    terminal: &Terminal,
) -> Result<HeldGrant, NotTaken> {
    let mut turn = Turn {
        gateway,
        settings,
        progress: Progress::new(terminal),
        contact: Contact::None,
        is_asking: false,
    };
    let taken = tokio::select! {
        biased;
        signal = signals.next() => Err(NotTaken::Signal(signal)),
        taken = turn.ask() => taken,
    };
    turn.progress.clear();
    if taken.is_err() && (turn.is_asking || turn.contact > Contact::None) {
        // An answer that crosses this one grants nothing any more.
        let _ = timeout(GIVING_UP_MAY_TAKE, turn.give_up()).await;
    }
    taken
}

struct Turn<'a> {
    gateway: &'a Gateway,
    settings: &'a RunSettings,
    progress: Progress<'a>,
    /// How far a request has come.
    contact: Contact,
    /// Whether one is under way.
    is_asking: bool,
}

impl Turn<'_> {
    async fn ask(&mut self) -> Result<HeldGrant, NotTaken> {
        let began_at = boottime();
        let wait_ends_at = began_at.saturating_add(self.settings.wait);
        let contact_ends_at = began_at + FIRST_CONTACT;
        let mut longest_slice = if self.progress.is_seen() { WATCHED_SLICE } else { SLICE };
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut may_go_past = true;
        loop {
            let asked_at = boottime();
            let left = wait_ends_at.saturating_sub(asked_at);
            let (wait, patience) = if self.contact == Contact::Answered {
                (longest_slice.min(left), longest_slice.min(left) + ANSWER_MAY_TAKE)
            } else {
                // The last try too has some time, so that its failure says what is wrong.
                let wait = FIRST_SLICE.min(longest_slice).min(left);
                (wait, contact_ends_at.saturating_sub(asked_at).max(wait + FIRST_SLICE))
            };
            self.is_asking = true;
            let answer = match self.answer(wait, patience).await {
                // There was a gateway: a proxy may say so while it is away.
                AcquireAnswer::Refused { is_gateways: false, reason, .. }
                    if self.contact == Contact::Answered =>
                {
                    AcquireAnswer::NotNow { reason, contact: Contact::Answered }
                }
                answer => answer,
            };
            self.is_asking = false;
            let now = boottime();
            self.contact = self.contact.max(match answer {
                AcquireAnswer::NotNow { contact, .. } => contact,
                _ => Contact::Answered,
            });
            match answer {
                AcquireAnswer::Held(held) if now < held.sent_at + self.settings.ttl / FRESH_PART => {
                    return Ok(held);
                }
                // It was sent before a long wait, so what it says is too little: the same request again says how much is
                // left from now on. One granted at the last moment is worth a repetition past the end.
                AcquireAnswer::Held(_)
                    if now < wait_ends_at.max(contact_ends_at) || std::mem::take(&mut may_go_past) => {}
                AcquireAnswer::Held(_) => {
                    let reason = "answers take too long for a lease this short";
                    return Err(NotTaken::Because(Cause::Unreachable, reason.to_owned()));
                }
                AcquireAnswer::Busy(busy) if now >= wait_ends_at => {
                    return Err(NotTaken::Because(Cause::Busy, busy.reason));
                }
                AcquireAnswer::Busy(busy) => {
                    self.progress.note(self.settings.key.as_str(), &busy);
                    // Where there is no place to wait in, it is looked for from time to time.
                    if wait.is_zero() || now < asked_at + wait / 2 {
                        backoff.pause().await;
                    }
                }
                AcquireAnswer::NotNow { reason, .. } => {
                    let is_known = self.contact == Contact::Answered;
                    if now >= contact_ends_at && (!is_known || now >= wait_ends_at) {
                        return Err(NotTaken::Because(Cause::Unreachable, reason));
                    }
                    self.progress.trouble(self.settings.key.as_str(), &reason);
                    backoff.pause().await;
                }
                AcquireAnswer::Refused { parameter, .. }
                    if parameter.as_deref() == Some("wait") && !wait.is_zero() =>
                {
                    longest_slice = if wait > SHORTEST_SLICE { wait / 2 } else { Duration::ZERO };
                }
                AcquireAnswer::Refused { reason, .. } => {
                    return Err(NotTaken::Because(Cause::Refused, reason));
                }
            }
        }
    }

    /// The answer to one request; meanwhile the time goes on in front of whoever watches.
    async fn answer(&mut self, wait: Duration, patience: Duration) -> AcquireAnswer {
        let acquire = self.gateway.acquire(self.settings, wait, patience);
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

    async fn give_up(&self) {
        while let ReleaseAnswer::NotNow(_) = self.gateway.release(GIVING_UP_MAY_TAKE).await {
            sleep(FIRST_PAUSE).await;
        }
    }
}
