//! The metrics of this process, for those who collect them.

use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::{CONNECTION, CONTENT_TYPE};
use axum::http::{HeaderValue, Version};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};

use crate::access::Right;
use crate::api::context::{Asked, RequestContext};
use crate::api::extract::caller;
use crate::api::middleware::{Middleware, request_counts};
use crate::api::openapi::MetricsProblems;
use crate::api::problem::{Problem, ProblemType};
use crate::api::state::AppState;
use crate::telemetry::metrics::{MEDIA_TYPE, metrics};

/// Read the metrics
///
/// Counts of this gateway since its start, in the text format of Prometheus. They name no single lock. If the operator set
/// `--metrics-listen`, they are at that address only.
#[utoipa::path(
    get, path = "/metrics", tag = "health",
    responses(
        (status = 200, description = "The numbers.", body = String, content_type = "text/plain", example = "fencepost_waiters 0\n"),
        MetricsProblems,
    )
)]
pub(super) async fn get_metrics(
    State(app): State<AppState>,
    Extension(context): Extension<RequestContext>,
) -> Result<Response, Problem> {
    context.set_asked(Asked::of(Right::List, None));
    caller(&context)?.check_prefix(Right::List, "")?;
    if !app.serves_metrics {
        return Err(Problem::new(
            ProblemType::NotFound,
            "the metrics of this gateway are at the address of --metrics-listen",
        ));
    }
    Ok(text(&app).await)
}

/// The metrics at an address of their own, and nothing else. Everybody may read them there.
pub fn metrics_app(state: AppState) -> Middleware {
    let router = Router::new()
        .route("/metrics", get(alone))
        .fallback(async || Problem::new(ProblemType::NotFound, "this address has /metrics only"));
    Middleware::open(router, state)
}

/// Each connection gets one answer, so that those of strangers end.
async fn alone(State(app): State<AppState>, version: Version) -> Response {
    let mut response = text(&app).await;
    if version <= Version::HTTP_11 {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

async fn text(app: &AppState) -> Response {
    let text = app.next_metrics(made(app.clone())).await;
    ([(CONTENT_TYPE, MEDIA_TYPE)], text).into_response()
}

async fn made(app: AppState) -> Bytes {
    // This makes them visible before the first request is counted.
    request_counts();
    let (metrics, service) = (metrics(), &app.service);
    metrics.waiters.set(number(service.waiters()));
    metrics.once_waiters.set(number(service.record_waiters()));
    metrics.watchers.set(number(service.watchers()));
    metrics.holds.set(number(service.holds()));
    metrics.takes_back_pending.set(number(service.roll_backs()));
    let is_draining = app.draining.is_cancelled();
    metrics.draining.set(is_draining.into());
    metrics.ready.set((!is_draining && service.seems_ready().await).into());
    metrics.text().into()
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
