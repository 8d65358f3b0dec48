//! Asking until there is an answer, for as long as `fencepost run` looks for a gateway.

use std::time::Duration;

use crate::client::{CommandFailure, Gateway, Gateways, NoDecision, REFUSED, UNREACHABLE};
use crate::clock::{Backoff, boottime};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What is asked for, as an error says it.
#[derive(Clone, Copy)]
pub(super) struct Aim {
    pub(super) what: &'static str,
    /// What may be true although no answer said so.
    pub(super) doubt: &'static str,
}

impl Aim {
    /// Asking changes nothing.
    pub(super) const fn to(what: &'static str) -> Self {
        Self { what, doubt: "" }
    }
}

/// An answer, and what was tried before it came.
pub(super) struct Answered<T> {
    pub(super) answer: T,
    /// Whether an earlier try may have been carried out although its answer was lost.
    pub(super) is_repeated: bool,
}

/// Asks the gateways in turn until one of them decides.
pub(super) async fn ask<T>(
    gateways: &mut Gateways,
    aim: Aim,
    request: impl AsyncFn(&Gateway, Duration) -> Result<T, NoDecision>,
) -> Result<Answered<T>, CommandFailure> {
    let mut tries = AskTries::new(gateways);
    let mut is_repeated = false;
    loop {
        let (number, gateway) = gateways.next();
        let (asked_at, patience) = (boottime(), gateways.answer_may_take());
        let answer = request(&gateway, patience).await;
        gateways.note_stop(asked_at, patience);
        match answer {
            Ok(answer) => {
                gateways.answered(number);
                return Ok(Answered { answer, is_repeated });
            }
            Err(no_answer) => {
                is_repeated |= matches!(&no_answer, NoDecision::NotNow(trouble) if trouble.may_be_done);
                let aim = if is_repeated { aim } else { Aim::to(aim.what) };
                tries.failed(gateways, number, no_answer, aim, true).await?;
            }
        }
    }
}

/// Tries without an answer, one after the other.
pub(super) struct AskTries {
    began_at: Duration,
    backoff: Backoff,
}

impl AskTries {
    pub(super) fn new(gateways: &Gateways) -> Self {
        Self { began_at: gateways.now(), backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE) }
    }

    /// Notes one of them, and makes the pause before the next. It is the last one if the time for a gateway is over, where that
    /// counts, or if none would say anything else.
    pub(super) async fn failed(
        &mut self,
        gateways: &mut Gateways,
        number: usize,
        no_answer: NoDecision,
        aim: Aim,
        is_timed: bool,
    ) -> Result<(), CommandFailure> {
        let trouble = match no_answer {
            NoDecision::Refused(reason) => {
                let problem = format!("refused by {}: {reason}", gateways.name(number));
                return Err(CommandFailure::new(REFUSED, problem).and(aim.doubt));
            }
            NoDecision::NotNow(trouble) => trouble,
        };
        let reason = trouble.reason.clone();
        if !gateways.failed(number, trouble) {
            return Ok(());
        }
        let is_over = is_timed && gateways.left_since(self.began_at).is_zero();
        let is_useless = !gateways.may_answer();
        if is_over || is_useless {
            let why = gateways.trouble().unwrap_or(reason);
            let status = if is_useless { REFUSED } else { UNREACHABLE };
            return Err(CommandFailure::new(status, format!("cannot {}: {why}", aim.what)).and(aim.doubt));
        }
        self.pause(gateways).await;
        Ok(())
    }

    pub(super) async fn pause(&mut self, gateways: &mut Gateways) {
        gateways.pause(&mut self.backoff).await;
    }
}
