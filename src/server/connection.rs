//! One connection: its time limits, its part in the drain, and whether hyper serves it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Context;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::header::{CONNECTION, TRANSFER_ENCODING};
use axum::http::{HeaderValue, Request, Version};
use axum::response::Response;
use futures_util::FutureExt;
use futures_util::future::{Either, lazy, ready};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use tokio::io::AsyncWriteExt;
use tokio::select;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::debug;

use super::application::{Application, BodyWasRead, InMemory, Malformed, Peer};
use super::backpressure::{Backpressure, CountedBody, PIECE_BYTES, TooMuchUnread, Unread};
use super::phase::{DRAIN_GRACE, Phase};
use super::protocol::{Answers, Protocols, Served};
use super::requests::{InFlight, Requests};
use super::settings::ServerSettings;
use super::wire::{Spoken, Stream, Wire};
use crate::telemetry::ConnectionRefused;

/// After this long without a request, an HTTP/1 connection is taken from hyper, whose buffers for it have 16 KiB. It
/// goes back when the next request begins.
const DORMANT_AFTER: Duration = Duration::from_secs(1);

/// How long it may take to close a connection on which nothing else is sent.
const LAST_WORD: Duration = Duration::from_millis(100);

/// How long an HTTP/2 client that was told to go may take to read answers that it has not made room for.
const H2_FAREWELL: Duration = Duration::from_secs(10);

/// If an HTTP/2 client does not take an answer, its connection ends after once to twice this time.
const H2_UNREAD: Duration = Duration::from_secs(30);

/// What ends a connection, apart from its client.
struct Ends<'a> {
    settings: &'a ServerSettings,
    peer: Arc<Peer>,
    phase: watch::Receiver<Phase>,
    /// When the head of the first request must be complete.
    first_request_by: Instant,
    /// Whether the server closes. Then only the first request is still awaited.
    is_closing: bool,
}

impl Ends<'_> {
    /// Waits for the server's next phase. Returns `None` if the server itself was dropped.
    async fn next_phase(&mut self) -> Option<Phase> {
        self.phase.changed().await.ok()?;
        Some(*self.phase.borrow_and_update())
    }

    /// Ends the connection after its first request, and returns how long to wait for that. If hyper were told to shut
    /// down now, it would drop a first request that it has not read yet. A connection that has just come out of the
    /// backlog gets as long as all others had.
    fn close_after_first(&mut self) -> Instant {
        self.is_closing = true;
        let accepted = self.first_request_by - self.settings.first_request_timeout;
        self.first_request_by = self.first_request_by.min(accepted + DRAIN_GRACE);
        self.first_request_by
    }

    /// Has requests that are in flight say that it was not their client who ended the connection.
    fn cut<T>(&self) -> Option<T> {
        self.peer.is_cut.store(true, Ordering::Relaxed);
        None
    }

    fn no_request_in_time(&self) {
        self.settings.counts.refused.count(ConnectionRefused::NoRequest);
        debug!("no request arrived in time");
    }
}

/// Serves one connection until it ends, is idle or silent for too long, or the server's `phase` ends it. The requests
/// may shorten the TCP timeout of `stream`.
///
/// An `async fn` would have room for its arguments beside that for what is made of them, as long as the connection lives.
pub(super) fn serve_connection<'a, A: Application>(
    stream: Stream,
    peer: Arc<Peer>,
    protocols: &'a Protocols,
    app: A,
    settings: &'a ServerSettings,
    backpressure: &Arc<Backpressure>,
    phase: watch::Receiver<Phase>,
) -> impl Future<Output = ()> + use<'a, A> {
    let requests = Arc::new(Requests::default());
    let unread = backpressure.connection(&peer);
    let mut service = {
        let (requests, phase, unread) = (Arc::clone(&requests), phase.clone(), Arc::clone(&unread));
        let peer = Arc::clone(&peer);
        service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer.clone());
            // It is counted here and not in the future: an HTTP/2 connection leaves that to another task.
            let in_flight = InFlight::new(&requests, request.version());
            let malformed = requests.malformed().or_else(|| Malformed::by_host(&request));
            let (app, phase, unread) = (app.clone(), phase.clone(), unread.clone());
            let read_ahead = (request.version() == Version::HTTP_2).then(|| unread.read_ahead());
            // Boxed: hyper keeps room for it as long as it has the connection, and so this is only the room of a
            // pointer. Lazy: a request that waits has no room for what it came with.
            let begin = move |_: &mut Context<'_>| {
                drop(read_ahead);
                respond(app, request, malformed, in_flight, phase, unread)
            };
            Box::pin(lazy(begin).flatten())
        })
    };
    let first_request_by = Instant::now() + settings.first_request_timeout;
    let mut ends = Ends { settings, peer, phase, first_request_by, is_closing: false };
    let mut wire = Wire::new(stream, Arc::clone(&requests), unread.clone());
    async move {
        while let Some(begun) = until_begun(&mut wire, &requests, &mut ends).await {
            let served = protocols.serve(begun, wire, service);
            let Some(quiet) = until_quiet(served, &requests, &unread, &mut ends).await else { return };
            let Some(same) = quiet.take_back() else { return };
            (wire, service) = same;
        }
        if *ends.phase.borrow() != Phase::Cut {
            // This tells a TLS client that nothing more comes. If the client does not read it, it does not matter.
            let _ = timeout(LAST_WORD, wire.shutdown()).await;
        }
    }
}

/// Waits for the first bytes of the next request. Returns `None` if there will be none.
async fn until_begun(wire: &mut Wire, requests: &Requests, ends: &mut Ends<'_>) -> Option<Spoken> {
    let end = match requests.silent_for() {
        Some(silent) => Instant::now() + ends.settings.idle_timeout.saturating_sub(silent),
        None => ends.first_request_by,
    };
    let mut timer = pin!(sleep_until(end));
    loop {
        // The order matters: a request that has arrived is seen before a reason to close.
        select! {
            biased;
            begun = wire.begins() => return begun,
            changed = ends.next_phase() => match changed {
                None | Some(Phase::Cut) => return None,
                Some(Phase::Closing) if requests.version().is_some() => return None,
                Some(Phase::Closing) => timer.as_mut().reset(ends.close_after_first()),
                Some(Phase::Draining | Phase::Serving) => {}
            },
            () = &mut timer => {
                if requests.version().is_none() {
                    ends.no_request_in_time();
                }
                return None;
            }
        }
    }
}

/// Lets hyper serve a connection until it ends. An HTTP/1 connection that has had nothing to do for a while is
/// returned.
async fn until_quiet<A: Answers>(
    mut served: Served<A>,
    requests: &Requests,
    unread: &Unread,
    ends: &mut Ends<'_>,
) -> Option<Served<A>> {
    let settings = ends.settings;
    let mut told_to_go = false;
    let unread_period = H2_UNREAD.min(settings.idle_timeout);
    let mut period_ends = Instant::now() + unread_period;
    // hyper's own timers are not enough. They start when hyper knows the protocol, which a silent client never tells
    // it, and they start anew for each request. Also, hyper keeps an HTTP/2 connection without streams as long as the
    // client answers PINGs.
    let first_look = Instant::now() + DORMANT_AFTER.min(unread_period);
    let is_first = requests.version().is_none();
    let first_look = if is_first { first_look.min(ends.first_request_by) } else { first_look };
    let mut timer = pin!(sleep_until(first_look));
    let mut timer_runs = true;
    loop {
        // The order is that of `until_begun`.
        select! {
            biased;
            result = &mut served => {
                if let Err(error) = result {
                    // hyper has answered it, and it is a line of no log.
                    if error.is_parse() {
                        settings.counts.refused.count(ConnectionRefused::Unreadable);
                    }
                    debug!(%error, "connection failed");
                }
                return None;
            }
            () = unread.cut() => return None,
            () = requests.table_is_full(), if !told_to_go => {
                served.graceful_shutdown();
                told_to_go = true;
            }
            changed = ends.next_phase() => match changed {
                None | Some(Phase::Cut) => return ends.cut(),
                Some(Phase::Closing) if requests.version().is_some() => {
                    served.graceful_shutdown();
                    told_to_go = true;
                }
                Some(Phase::Closing) => timer.as_mut().reset(ends.close_after_first()),
                Some(Phase::Draining) if requests.version() == Some(Version::HTTP_2) => {
                    served.graceful_shutdown();
                }
                // An HTTP/1 client learns it from its next answer.
                Some(Phase::Draining | Phase::Serving) => {}
            },
            () = &mut timer, if timer_runs => match (requests.version(), requests.quiet_for()) {
                (None, _) if Instant::now() < ends.first_request_by => {
                    timer.as_mut().reset(ends.first_request_by);
                }
                (None, _) => {
                    ends.no_request_in_time();
                    return None;
                }
                (Some(_), _) if ends.is_closing => {
                    served.graceful_shutdown();
                    timer_runs = false;
                }
                (Some(Version::HTTP_2), _) if Instant::now() >= period_ends && unread.is_stale() => {
                    debug!("a client left its answers unread");
                    return ends.cut();
                }
                (Some(Version::HTTP_2), Some(quiet)) if quiet >= settings.idle_timeout => {
                    if told_to_go {
                        debug!("a client that was told to go left its answers unread");
                        return ends.cut();
                    }
                    served.graceful_shutdown();
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
                (Some(_), _) => {
                    let silent = requests.silent_for().unwrap_or_default();
                    let longest = settings.idle_timeout;
                    // hyper would go on waiting for the rest of a request that a quiet connection has begun.
                    let longest = if told_to_go { longest.min(DRAIN_GRACE) } else { longest };
                    if silent >= longest {
                        return None;
                    }
                    if silent >= DORMANT_AFTER && !told_to_go && !requests.has_begun_another() {
                        return Some(served);
                    }
                    let soon = DORMANT_AFTER.checked_sub(silent).filter(|left| !left.is_zero());
                    let left = longest - silent;
                    timer.as_mut().reset(Instant::now() + left.min(soon.unwrap_or(DORMANT_AFTER)));
                }
            },
        }
    }
}

/// Answers one request through `app`.
fn respond(
    app: impl Application,
    request: Request<Incoming>,
    malformed: Option<Malformed>,
    in_flight: InFlight,
    phase: watch::Receiver<Phase>,
    unread: Arc<Unread>,
) -> impl Future<Output = Result<Response, TooMuchUnread>> {
    let version = request.version();
    let (has_body, is_malformed) = (!request.body().is_end_stream(), malformed.is_some());
    let is_coded = request.headers().contains_key(TRANSFER_ENCODING);
    let request = request.map(Body::new);
    let answer = match malformed {
        None => Either::Left(app.answer(request)),
        Some(why) => Either::Right(ready(app.refuse(request, why))),
    };
    answer.map(move |mut response| {
        // If a request has a malformed head, or a body that was not read, or one in chunks, nothing behind it can be trusted.
        let is_unread = has_body && response.extensions().get::<BodyWasRead>().is_none();
        let is_last = is_malformed || is_coded || is_unread;
        let is_in_memory = response.extensions().get::<InMemory>().is_some();
        // A stream is in flight until its end. For the timers, all other answers are over when the handler returns.
        if response.body().size_hint().exact().is_none() {
            let counts = (version == Version::HTTP_2).then_some(unread);
            response = response.map(|body| {
                Body::new(body.map_frame(move |frame| {
                    let _ = &in_flight;
                    match &counts {
                        Some(unread) => frame.map_data(|bytes| unread.count_frame(bytes)),
                        None => frame,
                    }
                }))
            });
        } else {
            let is_counted = match version {
                Version::HTTP_2 => !response.body().is_end_stream(),
                _ => response.body().size_hint().lower() > PIECE_BYTES as u64,
            };
            if is_counted {
                let (head, body) = response.into_parts();
                let body = CountedBody::new(body, is_in_memory, version == Version::HTTP_2, unread)?;
                response = Response::from_parts(head, Body::new(body));
            }
        }
        if version <= Version::HTTP_11 && (is_last || *phase.borrow() != Phase::Serving) {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            // Otherwise hyper adds `keep-alive` if an HTTP/1.0 client asked for it.
            *response.version_mut() = version;
        }
        Ok(response)
    })
}
