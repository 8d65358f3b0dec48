//! One connection: its protocol, its time limits, its part in the drain.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request, Version};
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::select;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::unread::{CountedBody, Unread};
use super::{Application, DRAIN_GRACE, Peer, Phase, ServerSettings};
use crate::telemetry::ConnectionRefused;

/// The most bytes that HTTP/1 buffers of a request's head. It is far above the application's own limit, so that the
/// application's answer (a problem document) is the one that clients see.
const H1_BUFFER_BYTES: usize = 64 * 1024;
/// The most bytes of an HTTP/2 request's headers, as HTTP/2 counts them; see [`H1_BUFFER_BYTES`].
const H2_HEADER_LIST_BYTES: u32 = 64 * 1024;
/// How many bytes an HTTP/2 client may send ahead of the application's reading, per stream and per connection. It is
/// the least that the protocol allows, as requests have no bodies here; hyper's default is a megabyte.
const H2_WINDOW_BYTES: u32 = 65_535;
/// After this much silence an HTTP/2 client is sent a PING, and is gone if no answer comes within [`H2_PING_TIMEOUT`].
const H2_PING_INTERVAL: Duration = Duration::from_secs(30);
/// How long an HTTP/2 client may take to answer a PING.
const H2_PING_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an HTTP/2 client that was told to go may take over answers that it has not made room for.
const H2_FAREWELL: Duration = Duration::from_secs(10);

/// An answer that an HTTP/2 client does not take ends its connection, after once to twice this time.
const H2_UNREAD: Duration = Duration::from_secs(30);

/// Serves one connection until it ends, is idle or silent for too long, or the server's `phase` ends it. Its requests
/// may shorten the patience that `stream` has.
pub(super) async fn serve_connection<S>(
    stream: S,
    peer: Arc<Peer>,
    http: &auto::Builder<StreamExecutor>,
    app: impl Application,
    settings: &ServerSettings,
    mut phase: watch::Receiver<Phase>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let accepted = Instant::now();
    let requests = Arc::new(Requests::default());
    let unread = Unread::new(Arc::clone(&settings.counts));
    let service = {
        let (requests, phase, unread) = (Arc::clone(&requests), phase.clone(), Arc::clone(&unread));
        service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer.clone());
            // Counted here and not in the future, which an HTTP/2 connection leaves to another task to poll.
            let in_flight = InFlight::new(&requests, request.version());
            respond(app.clone(), request, in_flight, phase.clone(), unread.clone())
        })
    };
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    let (mut closing, mut told_to_go) = (false, false);
    // hyper's own timers start when it knows the protocol, which a silent client never tells it: hence this one.
    // Later it watches for HTTP/2 connections without streams, which hyper keeps for as long as they answer PINGs.
    let mut timer = pin!(sleep(settings.first_request_timeout));
    let mut timer_runs = true;
    let unread_period = H2_UNREAD.min(settings.idle_timeout);
    let mut period_ends = accepted + unread_period;

    loop {
        // In this order, so that a request which has arrived is seen before a reason to close is acted on.
        select! {
            biased;
            result = connection.as_mut() => {
                return if let Err(error) = result { debug!(%error, "connection failed") };
            }
            changed = phase.changed() => match (changed, *phase.borrow_and_update()) {
                // An error means that the server itself was dropped.
                (Err(_), _) | (Ok(()), Phase::Cut) => return,
                (Ok(()), Phase::Closing) if requests.version().is_some() => {
                    connection.as_mut().graceful_shutdown();
                }
                // Asked to shut down now, hyper would drop a first request that it has not read yet. Whoever came
                // out of the backlog just now gets as long as all others had.
                (Ok(()), Phase::Closing) => {
                    closing = true;
                    let patience_ends = timer.deadline().min(accepted + DRAIN_GRACE);
                    timer.as_mut().reset(patience_ends);
                }
                (Ok(()), Phase::Draining) if requests.version() == Some(Version::HTTP_2) => {
                    connection.as_mut().graceful_shutdown();
                }
                // An HTTP/1 client is told by its next answer.
                (Ok(()), Phase::Draining | Phase::Serving) => {}
            },
            () = &mut timer, if timer_runs => match (requests.version(), requests.quiet_for()) {
                (None, _) => {
                    settings.counts.refused.count(ConnectionRefused::NoRequest);
                    return debug!("no request arrived in time");
                }
                (Some(_), _) if closing => {
                    connection.as_mut().graceful_shutdown();
                    timer_runs = false;
                }
                (Some(Version::HTTP_2), _) if Instant::now() >= period_ends && unread.is_stale() => {
                    return debug!("a client left its answers unread");
                }
                (Some(Version::HTTP_2), Some(quiet)) if quiet >= settings.idle_timeout => {
                    if told_to_go {
                        return debug!("a client that was told to go left its answers unread");
                    }
                    connection.as_mut().graceful_shutdown();
                    told_to_go = true;
                    timer.as_mut().reset(Instant::now() + H2_FAREWELL.min(settings.idle_timeout));
                }
                (Some(Version::HTTP_2), quiet) => {
                    let now = Instant::now();
                    if now >= period_ends {
                        period_ends = now + unread_period;
                    }
                    let left = settings.idle_timeout.saturating_sub(quiet.unwrap_or_default());
                    timer.as_mut().reset(period_ends.min(now + left));
                }
                (Some(_), _) => timer_runs = false,
            },
        }
    }
}

/// Answers one request through `app`.
async fn respond(
    app: impl Application,
    request: Request<Incoming>,
    in_flight: InFlight,
    phase: watch::Receiver<Phase>,
    unread: Arc<Unread>,
) -> Result<Response, Infallible> {
    let version = request.version();
    let mut response = app.answer(request.map(Body::new)).await;
    // An answer that goes on is in flight until its end; all others are over with the handler, as far as timers go.
    if response.body().size_hint().exact().is_none() {
        response = response.map(|body| {
            Body::new(body.map_frame(move |frame| {
                let _ = &in_flight;
                frame
            }))
        });
    } else if version == Version::HTTP_2 && !response.body().is_end_stream() {
        response = response.map(|body| Body::new(CountedBody::new(body, unread)));
    }
    if version <= Version::HTTP_11 && *phase.borrow() != Phase::Serving {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        // Otherwise hyper appends `keep-alive` when an HTTP/1.0 client asked for that.
        *response.version_mut() = version;
    }
    Ok(response)
}

/// What a connection's timers need to know of its requests.
#[derive(Default)]
struct Requests(Mutex<RequestCounts>);

#[derive(Default)]
struct RequestCounts {
    /// Of the first request; `None` before it.
    version: Option<Version>,
    in_flight: usize,
    /// When the last request in flight ended.
    quiet_since: Option<Instant>,
}

impl Requests {
    fn lock(&self) -> MutexGuard<'_, RequestCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn version(&self) -> Option<Version> {
        self.lock().version
    }

    /// For how long no request has been in flight; `None` while one is, and before the first.
    fn quiet_for(&self) -> Option<Duration> {
        self.lock().quiet_since.map(|since| since.elapsed())
    }
}

/// One request in flight; dropped when it has been answered, or when the client has gone.
struct InFlight(Arc<Requests>);

impl InFlight {
    fn new(requests: &Arc<Requests>, version: Version) -> Self {
        let mut counts = requests.lock();
        counts.version.get_or_insert(version);
        counts.in_flight += 1;
        counts.quiet_since = None;
        Self(Arc::clone(requests))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut counts = self.0.lock();
        counts.in_flight -= 1;
        if counts.in_flight == 0 {
            counts.quiet_since = Some(Instant::now());
        }
    }
}

/// Runs the requests of HTTP/2 connections, each of which is a task of its own, where the drain can wait for them:
/// a connection that is cut takes its requests down with it, but only a moment later.
#[derive(Clone)]
pub(super) struct StreamExecutor(pub(super) TaskTracker);

impl<F> hyper::rt::Executor<F> for StreamExecutor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        self.0.spawn(stream);
    }
}

pub(super) fn http_builder(
    settings: &ServerSettings,
    executor: StreamExecutor,
) -> auto::Builder<StreamExecutor> {
    let mut builder = auto::Builder::new(executor);
    builder
        .http1()
        .timer(TokioTimer::new())
        // It runs whenever a request's head is awaited, from the moment the answer before is written out.
        .header_read_timeout(settings.idle_timeout)
        // A client's FIN must drop the handler: whatever was granted is then taken back.
        .half_close(false)
        // A request may have 100 fields, as hyper has it, which answers 431 to more: any other number, given here, would
        // have it allocate and fill two tables of that many for each request.
        .max_buf_size(H1_BUFFER_BYTES);
    // The limits on streams that are reset at once ("rapid reset") stay as h2 sets them: 20 that were never accepted,
    // 1024 that broke the protocol.
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(H2_PING_INTERVAL)
        .keep_alive_timeout(H2_PING_TIMEOUT)
        .max_concurrent_streams(settings.max_h2_streams)
        .max_header_list_size(H2_HEADER_LIST_BYTES)
        .initial_stream_window_size(H2_WINDOW_BYTES)
        .initial_connection_window_size(H2_WINDOW_BYTES);
    builder
}
