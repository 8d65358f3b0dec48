//! What requests are counted as, and the numbers of this process for whoever collects them.

use std::sync::LazyLock;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::{CONNECTION, CONTENT_TYPE};
use axum::http::{HeaderValue, Method, StatusCode, Version};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};

use super::AppState;
use super::extract::CalledBy;
use super::observe::{Note, Noted, observe};
use super::openapi::MetricsProblems;
use super::problem::{Problem, ProblemType};
use crate::access::Right;
use crate::server::Application;
use crate::telemetry::metrics::{MEDIA_TYPE, SHORT_TIMES_S, metrics};
use crate::telemetry::{CounterTable, Histograms, Label, labels};

labels! {
    /// What a request asks for. A new one is a line here, and one where it is recognised.
    pub(super) enum Operation {
        Acquire = "acquire",
        Renew = "renew",
        Release = "release",
        Inspect = "inspect",
        Hold = "hold",
        List = "list",
        Break = "break",
        Events = "events",
        Other = "other",
    }
}

impl Operation {
    /// What a request asks for by its method and route. Where that depends on its query, the query says it instead, by
    /// `LockQuery::operation`.
    pub(super) fn of(method: &Method, route: &str) -> Self {
        match (method.as_str(), route) {
            ("PUT", "/locks/{key}" | "/lock") => Self::Acquire,
            ("PATCH", "/locks/{key}" | "/lock") => Self::Renew,
            ("DELETE", "/locks/{key}" | "/lock") => Self::Release,
            ("GET" | "HEAD", "/locks/{key}" | "/lock") => Self::Inspect,
            ("POST", "/hold") => Self::Hold,
            ("GET" | "HEAD", "/locks") => Self::List,
            ("GET" | "HEAD", "/events") => Self::Events,
            _ => Self::Other,
        }
    }
}

/// What became of a request: how it succeeded, or the type of its problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Granted,
    AlreadyHeld,
    Ok,
    /// Nobody was there any more to be answered.
    ClientLeft,
    Problem(ProblemType),
}

impl Outcome {
    /// Their names; those of the problems follow.
    const SUCCESSES: [&str; 4] = ["granted", "already-held", "ok", "client-left"];

    pub(super) fn of(operation: Operation, status: u16, problem: Option<ProblemType>) -> Self {
        match (operation, status, problem) {
            (_, _, Some(problem)) => Self::Problem(problem),
            (Operation::Acquire, 201, _) | (Operation::Hold, 200, _) => Self::Granted,
            (Operation::Acquire, 200, _) => Self::AlreadyHeld,
            _ => Self::Ok,
        }
    }
}

impl Outcome {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Problem(problem) => problem.name(),
            success => Self::SUCCESSES[success.index()],
        }
    }
}

impl Label for Outcome {
    fn names() -> Vec<&'static str> {
        Self::SUCCESSES.into_iter().chain(ProblemType::ALL.map(ProblemType::name)).collect()
    }

    fn index(self) -> usize {
        match self {
            Self::Granted => 0,
            Self::AlreadyHeld => 1,
            Self::Ok => 2,
            Self::ClientLeft => 3,
            Self::Problem(problem) => Self::SUCCESSES.len() + problem as usize,
        }
    }
}

/// The numbers of requests.
pub(super) struct Requests {
    total: CounterTable<Operation, Outcome>,
    seconds: Histograms<Operation>,
}

/// The numbers of requests of this process.
pub(super) fn requests() -> &'static Requests {
    static REQUESTS: LazyLock<Requests> = LazyLock::new(|| Requests {
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

impl Requests {
    /// One more. `took` is how long it took, if that says something of this gateway.
    pub(super) fn count(&self, operation: Operation, outcome: Outcome, took: Option<Duration>) {
        self.total.count(operation, outcome);
        if let Some(took) = took {
            self.seconds.observe(operation, took);
        }
    }
}

/// Read the metrics
///
/// Numbers of this gateway since its start, in the text form of Prometheus. They say nothing of single locks. Where the
/// operator gave the metrics an address of their own, they are not here.
#[utoipa::path(
    get, path = "/metrics", tag = "health",
    responses(
        (status = 200, description = "The numbers.", body = String, content_type = "text/plain", example = "fencepost_waiters 0\n"),
        MetricsProblems,
    )
)]
pub(super) async fn get_metrics(
    State(app): State<AppState>,
    CalledBy(caller): CalledBy,
    Extension(noted): Extension<Noted>,
) -> Result<Response, Problem> {
    noted.set(Note { right: Right::List, key: None, operation: None, waits: false });
    caller.check_prefix(Right::List, "")?;
    if !app.serves_metrics {
        return Err(Problem::new(ProblemType::NotFound, "the metrics have an address of their own"));
    }
    Ok(text(&app))
}

/// The metrics on an address of their own, where everybody may read them, and nothing else.
pub fn metrics_app(state: AppState) -> impl Application {
    let router = Router::new()
        .route("/metrics", get(alone))
        .fallback(async || Problem::new(ProblemType::NotFound, "there is only /metrics here"));
    Observed(router.with_state(state))
}

/// One answer a connection, and others between two of them: strangers may ask here too, and each answer takes as long as many
/// requests for locks.
async fn alone(State(app): State<AppState>, version: Version) -> Response {
    tokio::task::yield_now().await;
    let mut response = text(&app);
    if version <= Version::HTTP_11 {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Routes whose requests are written down, and nothing else.
#[derive(Clone)]
struct Observed(Router);

impl Application for Observed {
    async fn answer(self, mut request: Request) -> Response {
        let line = observe(&mut request, |_| false);
        line.hand_over(self.0.answer(request).await)
    }
}

fn text(app: &AppState) -> Response {
    // So that they are shown before the first request is counted.
    requests();
    let (metrics, service) = (metrics(), &app.service);
    metrics.waiters.set(number(service.waiters()));
    metrics.watchers.set(number(service.watchers()));
    metrics.holds.set(number(service.holds()));
    metrics.takes_back_pending.set(number(service.takes_back()));
    metrics.draining.set(app.draining.is_cancelled().into());
    (StatusCode::OK, [(CONTENT_TYPE, MEDIA_TYPE)], metrics.text()).into_response()
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table has a place for each, and under its own name.
    #[test]
    fn every_problem_is_counted_under_its_name() {
        let names = Outcome::names();
        for problem in ProblemType::ALL {
            assert_eq!(names[Outcome::Problem(problem).index()], problem.name());
        }
        assert_eq!(names[Outcome::ClientLeft.index()], "client-left");
    }
}
