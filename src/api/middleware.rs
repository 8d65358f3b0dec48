//! What every request passes through before it reaches a handler, in its order.
//!
//! It is one service around the routes, not several layers. Each layer would box every request, and copy everything
//! inside of it.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, ORIGIN, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Method};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use futures_util::future::{Either, ready};
use tower::{Layer, Service, service_fn};
use tower_http::cors::CorsLayer;

use self::authenticate::{authenticate, with_rate_left};
use super::admission::{Admission, guard_browsers, limit_head, malformed};
use super::headers::{
    FENCING_TOKEN, LAST_EVENT_ID, LEASE_TOKEN, ONCE, ONCE_BYTES, ONCE_CONTENT_TYPE, ONCE_EARLIER,
    ONCE_FINGERPRINT, ONCE_KEPT_UNTIL, ONCE_STATUS, ONCE_STORED_AT, RATE_LIMIT, RATE_LIMIT_POLICY,
    REQUEST_ID, SLOT,
};
use super::problem::{Problem, ProblemType};
use super::state::AppState;
use crate::access::RateLeft;
use crate::server::{Application, Malformed};

mod authenticate;
mod counts;
mod delivery;
mod observe;
mod strangers;

pub(super) use authenticate::is_known;
pub(super) use counts::request_counts;
pub(super) use delivery::{Delivery, track};
pub(super) use observe::observe;

/// How long a browser may remember what pages of other sites may send here.
const CORS_MAX_AGE: Duration = Duration::from_secs(3600);

/// The routes, and what every request passes before it reaches them.
#[derive(Clone)]
pub struct Middleware(Arc<Layers>);

struct Layers {
    router: Router,
    state: AppState,
    cors: Option<CorsLayer>,
    /// Whether requests are only logged, and all of them reach the routes.
    is_open: bool,
}

impl Application for Middleware {
    /// All but the answer is done at once, so that a request that waits has no room for what went before.
    fn answer(self, mut request: Request) -> impl Future<Output = Response> + Send {
        let layers = self.0;
        if layers.is_open {
            let line = observe(&mut request, |_| false);
            let answer = layers.router.clone().answer(request);
            return Either::Right(answer.map(|response| line.hand_over(response)).boxed());
        }
        let guarded = guard_browsers(&layers.state.admission, &request);
        let is_welcome = guarded.is_ok();
        let line = observe(&mut request, |request| is_welcome && is_known(&layers.state, request));
        match guarded {
            Ok(()) if layers.cors.is_none() && !line.is_traced() => {
                Either::Left(layers.call(request).map(|response| line.hand_over(response)))
            }
            Ok(()) => {
                let answer = async move {
                    let response = line.traced(layers.call_with_cors(request)).await;
                    line.hand_over(response)
                };
                Either::Right(answer.boxed())
            }
            // This check comes before CORS. So a preflight of a site that is not allowed is refused too.
            Err(problem) => Either::Right(ready(line.hand_over(problem.into_response())).boxed()),
        }
    }

    fn refuse(self, mut request: Request, why: Malformed) -> Response {
        let line = observe(&mut request, |_| false);
        line.hand_over(malformed(why).into_response())
    }
}

impl Middleware {
    /// Makes every request pass all of this before it reaches `router`.
    pub fn new(router: Router<AppState>, state: AppState) -> Self {
        let cors = cors(&state.admission);
        Self(Arc::new(Layers { router: router.with_state(state.clone()), state, cors, is_open: false }))
    }

    /// Logs every request, and nothing else. It is no type of its own, because all of the server is compiled anew for each
    /// application.
    pub(super) fn open(router: Router<AppState>, state: AppState) -> Self {
        let router = router.with_state(state.clone());
        Self(Arc::new(Layers { router, state, cors: None, is_open: true }))
    }
}

impl Layers {
    async fn call_with_cors(&self, mut request: Request) -> Response {
        let Some(cors) = &self.cors else { return self.call(request).await };
        // The answer names it. A piece of the head would keep all of that in memory while the request waits.
        if let Some(origin) = request.headers_mut().get_mut(ORIGIN) {
            *origin = HeaderValue::from_bytes(origin.as_bytes()).unwrap_or(HeaderValue::from_static("null"));
        }
        let call = service_fn(async |request| Ok::<_, Infallible>(self.call(request).await));
        let Ok(response) = cors.layer(call).call(request).await;
        response
    }

    /// This runs inside of CORS, since preflights carry no key. The log and the request id are outside of it, so that a
    /// panic has both.
    fn call(&self, request: Request) -> impl Future<Output = Response> + Send + use<> {
        match catch_unwind(AssertUnwindSafe(|| self.check(&request))) {
            Ok(Ok(left)) => {
                let answer = AssertUnwindSafe(self.router.clone().answer(request)).catch_unwind();
                Either::Left(answer.map(move |answer| match answer {
                    Ok(response) => with_rate_left(response, left),
                    Err(_) => mistake(),
                }))
            }
            Ok(Err(refusal)) => Either::Right(ready(*refusal)),
            Err(_) => Either::Right(ready(mistake())),
        }
    }

    /// What the request's key has left of its rate, or the answer that refuses the request.
    fn check(&self, request: &Request) -> Result<Option<RateLeft>, Box<Response>> {
        limit_head(request).map_err(|problem| Box::new(problem.into_response()))?;
        authenticate(&self.state, request)
    }
}

/// The answer after a panic. The hook has written its message to the log, and the caller must not see it.
fn mistake() -> Response {
    let text = "the gateway made a mistake: look for the X-Request-Id of this answer in its log";
    Problem::new(ProblemType::InternalError, text).into_response()
}

fn cors(admission: &Admission) -> Option<CorsLayer> {
    if admission.allowed_origins.is_empty() {
        return None;
    }
    let cors = CorsLayer::new()
        .allow_origin(admission.allowed_origins.clone())
        .allow_methods([Method::PUT, Method::PATCH, Method::DELETE, Method::GET, Method::POST])
        .allow_headers([
            LEASE_TOKEN,
            REQUEST_ID,
            AUTHORIZATION,
            LAST_EVENT_ID,
            CONTENT_TYPE,
            FENCING_TOKEN,
            ONCE_FINGERPRINT,
        ])
        .expose_headers([
            LEASE_TOKEN,
            FENCING_TOKEN,
            SLOT,
            REQUEST_ID,
            RETRY_AFTER,
            RATE_LIMIT,
            RATE_LIMIT_POLICY,
            WWW_AUTHENTICATE,
            ONCE,
            ONCE_EARLIER,
            ONCE_STATUS,
            ONCE_CONTENT_TYPE,
            ONCE_BYTES,
            ONCE_STORED_AT,
            ONCE_KEPT_UNTIL,
        ])
        .max_age(CORS_MAX_AGE);
    Some(cors)
}
