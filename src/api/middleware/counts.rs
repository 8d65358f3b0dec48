//! How requests are counted.

use std::sync::LazyLock;
use std::time::Duration;

use axum::http::HeaderValue;

use crate::api::context::Operation;
use crate::api::problem::ProblemType;
use crate::telemetry::metrics::{SHORT_TIMES_S, metrics};
use crate::telemetry::{CounterTable, Histograms, Label};

/// What became of a request: how it succeeded, or the type of its problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestOutcome {
    Granted,
    AlreadyHeld,
    Ok,
    /// To begin: the work is the caller's to do; with those before it, if there were any; or was its own already.
    Begun,
    TakenOver,
    Continued,
    /// The result was there.
    Replayed,
    Stored,
    /// After the end of the lease: the ttl is too short.
    StoredLate,
    /// The client had left before it was answered.
    ClientLeft,
    /// The gateway had ended the connection before.
    Cut,
    Problem(ProblemType),
}

impl RequestOutcome {
    /// Each with its name; the problems follow.
    const SUCCESSES: [(Self, &str); 11] = [
        (Self::Granted, "granted"),
        (Self::AlreadyHeld, "already-held"),
        (Self::Ok, "ok"),
        (Self::Begun, "begun"),
        (Self::TakenOver, "taken-over"),
        (Self::Continued, "continued"),
        (Self::Replayed, "replayed"),
        (Self::Stored, "stored"),
        (Self::StoredLate, "stored-late"),
        (Self::ClientLeft, "client-left"),
        (Self::Cut, "cut"),
    ];

    pub(crate) fn of(operation: Operation, status: u16, problem: Option<ProblemType>) -> Self {
        match (operation, status, problem) {
            (_, _, Some(problem)) => Self::Problem(problem),
            (Operation::Acquire, 201, _) | (Operation::Hold, 200, _) => Self::Granted,
            (Operation::Acquire, 200, _) => Self::AlreadyHeld,
            _ => Self::Ok,
        }
    }

    /// How a request about a record succeeded, by what its answer says in `Once`.
    pub(crate) fn of_record(said: &HeaderValue) -> Option<Self> {
        Self::SUCCESSES.into_iter().find(|(_, name)| name == said).map(|(outcome, _)| outcome)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Problem(problem) => problem.name(),
            success => Self::SUCCESSES[success.index()].1,
        }
    }
}

impl Label for RequestOutcome {
    fn names() -> Vec<&'static str> {
        let successes = Self::SUCCESSES.map(|(_, name)| name);
        successes.into_iter().chain(ProblemType::ALL.map(ProblemType::name)).collect()
    }

    fn index(self) -> usize {
        match self {
            Self::Problem(problem) => Self::SUCCESSES.len() + problem as usize,
            success => Self::SUCCESSES.iter().position(|(known, _)| *known == success).unwrap_or_default(),
        }
    }
}

/// The numbers of requests.
pub(crate) struct RequestCounts {
    total: CounterTable<Operation, RequestOutcome>,
    seconds: Histograms<Operation>,
}

/// The numbers of requests of this process.
pub(crate) fn request_counts() -> &'static RequestCounts {
    static REQUESTS: LazyLock<RequestCounts> = LazyLock::new(|| RequestCounts {
        total: CounterTable::register(
            metrics().registry(),
            "fencepost_requests_total",
            "Requests, by what they asked for and what became of them: an outcome is a success or the name of a problem.",
            ["operation", "outcome"],
        ),
        seconds: Histograms::register(
            metrics().registry(),
            "fencepost_request_seconds",
            "How long requests took until their answer went to the socket, but for those that asked to wait.",
            "operation",
            SHORT_TIMES_S,
        ),
    });
    &REQUESTS
}

impl RequestCounts {
    /// Counts one more request. `took` is given if its duration says something about this gateway.
    pub(crate) fn count(&self, operation: Operation, outcome: RequestOutcome, took: Option<Duration>) {
        self.total.count(operation, outcome);
        if let Some(took) = took {
            self.seconds.observe(operation, took);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each outcome has its own place in the table, under its own name.
    #[test]
    fn every_outcome_is_counted_under_its_name() {
        let names = RequestOutcome::names();
        for problem in ProblemType::ALL {
            assert_eq!(names[RequestOutcome::Problem(problem).index()], problem.name());
        }
        for (at, (outcome, name)) in RequestOutcome::SUCCESSES.into_iter().enumerate() {
            assert_eq!((outcome.index(), outcome.name(), names[at]), (at, name, name));
        }
    }
}
