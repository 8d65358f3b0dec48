//! What the errors of the driver mean: the one place where a reply becomes "not yet", "not done" or "unknown".
//!
//! | what Redis replied, or what became of the connection | the step is | the connection |
//! |---|---|---|
//! | `MOVED`, `ASK` | not yet: sent to the server that was named | stays |
//! | `TRYAGAIN`, `BUSY` | not yet: sent again after a pause | stays |
//! | `READONLY`, `MASTERDOWN`, `LOADING`, `CLUSTERDOWN`, `STALE` of our own | not yet: sent to whoever is the primary then | is left |
//! | `NOAUTH`, `WRONGPASS` | not done | is left |
//! | `OOM`, `MISCONF`, `NOREPLICAS`, `NOPERM`, `NOSCRIPT` twice | not done | stays |
//! | any other error of a script, `WRONGTYPE` too | unknown, since it keeps what it wrote | stays |
//! | no answer in time; closed; reset; anything else | unknown | is left |
//!
//! That no connection could be made is said by the supervisor (`supervisor.rs`), before anything is sent: not done.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::node::Node;
use crate::store::StoreError;

/// What an error of the driver means for the step, and for the connection.
pub(super) struct Failure {
    pub(super) outcome: StepOutcome,
    pub(super) reason: String,
    /// Whether the connection must not be used again.
    pub(super) breaks_link: bool,
    /// Where the server points, for this once or from now on.
    pub(super) redirect: Option<Redirect>,
}

/// Where a server of a cluster points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// The slot is there.
    Moved(Node),
    /// The slot is on its way there: what was not found here may be there already.
    Ask(Node),
}

/// What is known of a step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepOutcome {
    /// Certainly nothing happened, and in a moment it may.
    NotYet,
    /// Certainly nothing happened, and somebody must do something about that first.
    NotDone,
    /// It may have happened, or may yet happen.
    Unknown,
}

impl Failure {
    pub(super) fn of(error: &RedisError) -> Self {
        let code = error.code().unwrap_or_default();
        let (outcome, breaks_link) = match error.kind() {
            // The server's state speaks here, before the first write of a script.
            ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask | ServerErrorKind::TryAgain) => {
                (StepOutcome::NotYet, false)
            }
            ErrorKind::Server(
                ServerErrorKind::ReadOnly
                | ServerErrorKind::MasterDown
                | ServerErrorKind::BusyLoading
                | ServerErrorKind::ClusterDown,
            ) => (StepOutcome::NotYet, true),
            _ if code == "STALE" => (StepOutcome::NotYet, true),
            _ if code == "BUSY" => (StepOutcome::NotYet, false),
            ErrorKind::Server(ServerErrorKind::NoPerm | ServerErrorKind::NoScript) => {
                (StepOutcome::NotDone, false)
            }
            _ if matches!(code, "OOM" | "MISCONF" | "NOREPLICAS") => (StepOutcome::NotDone, false),
            _ if matches!(code, "NOAUTH" | "WRONGPASS") => (StepOutcome::NotDone, true),
            // A script that errs keeps what it wrote.
            ErrorKind::Server(_) | ErrorKind::Extension => (StepOutcome::Unknown, false),
            // One error stands for "never queued" and "sent, and the driver died": only the worse is safe.
            _ => (StepOutcome::Unknown, true),
        };
        let node = error.redirect_node().and_then(|(node, _)| Node::parse(node)).filter(Node::is_known);
        let is_ask = error.kind() == ErrorKind::Server(ServerErrorKind::Ask);
        let redirect = node.map(if is_ask { Redirect::Ask } else { Redirect::Moved });
        Self { outcome, reason: format!("Redis: {}", describe(error)), breaks_link, redirect }
    }

    /// The reply may still come, and would then be taken for that of a later command.
    pub(super) fn no_answer() -> Self {
        let reason = "Redis did not answer in time".to_owned();
        Self { outcome: StepOutcome::Unknown, reason, breaks_link: true, redirect: None }
    }

    /// The error of a step that is not tried again.
    pub(super) fn into_error(self) -> StoreError {
        match self.outcome {
            StepOutcome::NotYet | StepOutcome::NotDone => StoreError::Unavailable(self.reason),
            StepOutcome::Unknown => StoreError::Unknown(self.reason),
        }
    }
}

/// An error of the driver in one line.
pub(super) fn describe(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    }
}
