//! What gateways are told when a command has ended.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::signals::Signals;
use crate::client::{AcquireSettings, Gateway, Gateways, ReleaseAnswer, Trouble, say};

/// How long a release is tried: after that the lock is free when its lease ends.
const RELEASE_MAY_TAKE: Duration = Duration::from_secs(5);
/// The same where it decides whether work counts as done perhaps: the next run may have to wait for a person.
const CLEAN_RELEASE_MAY_TAKE: Duration = Duration::from_mins(1);
/// How long one try may take, and the pause before the next one.
const RELEASE_TRY_MAY_TAKE: Duration = Duration::from_secs(2);
const RELEASE_PAUSE: Duration = Duration::from_millis(200);
/// How long the release may take after a lease was lost, as the gateway is likely to be away, or after a signal.
pub(super) const LAST_WORD_MAY_TAKE: Duration = Duration::from_secs(1);

/// Releases the lock, and says so if that cannot be done: the exit status stays that of the command. A service manager that has sent a
/// signal may kill this process soon.
pub(super) async fn release(
    lock: &AcquireSettings,
    is_clean: bool,
    was_signaled: bool,
    gateways: &mut Gateways,
    signals: &mut Signals,
) {
    let release = async |gateway: &Gateway, patience| gateway.release(is_clean, patience).await;
    let name = lock.name();
    let is_clean_work = is_clean && lock.once.is_some();
    let is_patient = is_clean_work && !was_signaled;
    let may_take = if is_patient { CLEAN_RELEASE_MAY_TAKE } else { RELEASE_MAY_TAKE };
    let counts = if is_clean_work { ", and then counts as work that may have been done" } else { "" };
    match last_answer(gateways, signals, may_take, RELEASE_TRY_MAY_TAKE, release).await {
        Some(ReleaseAnswer::Done) => {}
        Some(ReleaseAnswer::NotHeld(reason)) => {
            let one = lock.said_of("", "at least one of ");
            say(&format!("{one}{name} was not held any more at the end{counts}: {reason}"));
        }
        None => {
            let why = gateways.trouble().unwrap_or_else(|| "no answer in time".to_owned());
            let until = lock.said_of(
                "could not be released, and may stay taken until its lease ends",
                "could not all be released, and may stay taken until their leases end",
            );
            say(&format!("{name} {until}{counts}: {why}"));
        }
    }
}

/// Asks about the end of the command until there is an answer, or no time left.
pub(super) async fn last_answer<T>(
    gateways: &mut Gateways,
    signals: &mut Signals,
    may_take: Duration,
    try_may_take: Duration,
    request: impl AsyncFn(&Gateway, Duration) -> Result<T, Trouble>,
) -> Option<T> {
    // What has arrived before was meant for the command, and has ended it perhaps.
    signals.forget().await;
    gateways.forget_troubles();
    let tries = async {
        loop {
            let answer = gateways.ask(try_may_take, &request).await;
            if answer.is_some() || !gateways.may_answer() {
                return answer;
            }
            sleep(RELEASE_PAUSE).await;
        }
    };
    // A person who interrupts does not want to wait for long. But a service manager may send a signal to all processes,
    // and the command may have ended by it already. So time for one try is left.
    let interrupted = async {
        signals.next().await;
        sleep(LAST_WORD_MAY_TAKE).await;
    };
    tokio::select! {
        biased;
        done = timeout(may_take, tries) => done.ok().flatten(),
        () = interrupted => None,
    }
}
