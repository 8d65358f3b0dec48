//! Whether the process is alive, and whether it can serve.

use std::mem;
use std::time::{Duration, Instant};

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::api::answers;
use crate::api::middleware::is_known;
use crate::api::openapi::{ExplainProblems, HealthzProblems, ReadyzProblems};
use crate::api::problem::{Problem, ProblemType};
use crate::api::state::AppState;

/// What a caller without a key is told. The store's addresses, and what the store says, are for those with a key. A request for a
/// lock needs one, too, so its 503 says the same as this answer does to them.
const NOT_TOLD: &str =
    "the store cannot be used; the log says why, and so does this answer if you send an API key";

/// How long a probe waits at least before the log says that it left without an answer.
const SLOW: Duration = Duration::from_millis(500);

/// A probe that waits for the store.
struct Probe<'a> {
    app: &'a AppState,
    asked_at: Instant,
}

impl Drop for Probe<'_> {
    /// Its client may have left: then no answer says that the store is slow, and the log has to.
    fn drop(&mut self) {
        if self.asked_at.elapsed() >= SLOW {
            self.app.tell_unready("the store is slow: a probe has left before it answered");
        }
    }
}

/// The answer when all is well.
#[derive(Serialize, ToSchema)]
pub(super) struct Health {
    status: &'static str,
}

fn ok() -> Response {
    answers::json(StatusCode::OK, answers::JSON, &Health { status: "ok" })
}

/// Alive
///
/// The process is alive. The answer does not depend on the store, so that an outage of the store restarts no gateways.
#[utoipa::path(
    get, path = "/healthz", tag = "health",
    responses(
        (status = 200, description = "The process is alive.", body = Health, example = json!(Health { status: "ok" })),
        HealthzProblems,
    )
)]
pub(super) async fn healthz() -> Response {
    ok()
}

/// Ready
///
/// The gateway can reach the store, locks are safe there, and the store can grant more. Otherwise `detail` says why; if API keys are in use, only to
/// clients that send one.
#[utoipa::path(
    get, path = "/readyz", tag = "health",
    responses(
        (status = 200, description = "The gateway can serve.", body = Health, example = json!(Health { status: "ok" })),
        ReadyzProblems,
    )
)]
pub(super) async fn readyz(State(app): State<AppState>, request: Request) -> Result<Response, Problem> {
    if app.draining.is_cancelled() {
        return Err(Problem::new(
            ProblemType::ShuttingDown,
            "the gateway is stopping: send new requests to another one",
        ));
    }
    // This comes first: a reference to a body cannot be kept while the store is asked.
    let is_known = is_known(&app, &request);
    let probe = Probe { app: &app, asked_at: Instant::now() };
    let checked = app.service.check().await;
    mem::forget(probe);
    match checked {
        Ok(()) => {
            app.ready_again();
            Ok(ok())
        }
        Err(error) => {
            app.tell_unready(&error.to_string());
            Err(if is_known { error.into() } else { Problem::new(ProblemType::StoreUnavailable, NOT_TOLD) })
        }
    }
}

/// Explain a problem
///
/// Explains one type of problem to people.
#[utoipa::path(
    get, path = "/problems/{name}", tag = "health",
    params(("name" = String, Path, description = "The last part of a problem's `type`.", example = "lock-held")),
    responses(
        (status = 200, description = "What the error means, and what to do.", body = String, content_type = "text/plain", example = "423 Locked: Another client holds the lock"),
        ExplainProblems,
    )
)]
pub(super) async fn explain_problem(
    name: Result<Path<String>, axum::extract::rejection::PathRejection>,
) -> Response {
    let known =
        name.ok().and_then(|Path(name)| ProblemType::ALL.into_iter().find(|kind| kind.name() == name));
    match known {
        Some(kind) => format!("{}: {}\n\n{}\n", kind.status(), kind.title(), kind.text()).into_response(),
        None => Problem::new(ProblemType::NotFound, "no problem has that name").into_response(),
    }
}
