//! The two protocols, and how hyper speaks each of them.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::HttpService;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio_util::task::TaskTracker;

use super::backpressure::TooMuchUnread;
use super::settings::ServerSettings;
use super::wire::{Spoken, Wire};

/// The most bytes that HTTP/1 buffers of a request's head. The application's own limits, 24 KiB together, are below, so that
/// clients see the application's answer (a problem document).
const H1_BUFFER_BYTES: usize = 32 * 1024;
/// The most bytes of an HTTP/2 request's headers, as HTTP/2 counts them: 32 more for each field. A field takes some 130 bytes
/// in memory, however short it is, so this is little more than what the application allows.
const H2_HEADER_LIST_BYTES: u32 = 25 * 1024;
/// How many bytes an HTTP/2 client may send before the application reads them, per stream and per connection. It is the
/// least that the protocol allows, because requests have no bodies here. hyper's default is a megabyte.
const H2_WINDOW_BYTES: u32 = 65_535;
/// After this much silence, an HTTP/2 client is sent a PING. If no answer comes within [`H2_PING_TIMEOUT`], it is gone.
const H2_PING_INTERVAL: Duration = Duration::from_secs(30);
/// How long an HTTP/2 client may take to answer a PING.
const H2_PING_TIMEOUT: Duration = Duration::from_secs(10);

/// How each protocol is spoken.
pub(super) struct Protocols {
    one: http1::Builder,
    two: http2::Builder<StreamExecutor>,
}

/// A connection that hyper serves.
pub(super) enum Served<A: Answers> {
    One(Box<http1::Connection<TokioIo<Wire>, A>>),
    Two(Box<http2::Connection<TokioIo<Wire>, A, StreamExecutor>>),
}

/// The type of service that hyper needs.
pub(super) trait Answers:
    HttpService<Incoming, ResBody = Body, Error = TooMuchUnread, Future: Send + Unpin + 'static> + Unpin
{
}

impl<A> Answers for A where
    A: HttpService<Incoming, ResBody = Body, Error = TooMuchUnread, Future: Send + Unpin + 'static> + Unpin
{
}

impl Protocols {
    /// The requests of HTTP/2 connections run among `streams`.
    pub(super) fn new(settings: &ServerSettings, streams: TaskTracker) -> Self {
        let mut one = http1::Builder::new();
        // A client's FIN must drop the handler, so that what was granted is rolled back.
        //
        // hyper allows a request 100 fields, and answers 431 to more. With any other number given here, it would
        // allocate and fill two tables of that many fields for each request. It would also set a timer for each
        // request, but the connection has one already.
        //
        // Head and body of an answer are written together. They are small, and two writes cost the kernel more.
        one.half_close(false).header_read_timeout(None).max_buf_size(H1_BUFFER_BYTES).writev(false);
        let mut two = http2::Builder::new(StreamExecutor(streams));
        // The limits on streams that are reset at once ("rapid reset") are those of h2: 20 that were never accepted,
        // and 1024 that broke the protocol.
        two.timer(TokioTimer::new())
            .keep_alive_interval(H2_PING_INTERVAL)
            .keep_alive_timeout(H2_PING_TIMEOUT)
            .max_concurrent_streams(settings.max_h2_streams)
            .max_header_list_size(H2_HEADER_LIST_BYTES)
            .initial_stream_window_size(H2_WINDOW_BYTES)
            .initial_connection_window_size(H2_WINDOW_BYTES);
        Self { one, two }
    }

    /// Lets hyper answer, by `service`, what has begun on `wire`.
    pub(super) fn serve<A: Answers>(&self, begun: Spoken, wire: Wire, service: A) -> Served<A> {
        let io = TokioIo::new(wire);
        match begun {
            Spoken::Http1 => Served::One(Box::new(self.one.serve_connection(io, service))),
            Spoken::Http2 => Served::Two(Box::new(self.two.serve_connection(io, service))),
        }
    }
}

impl<A: Answers> Served<A> {
    /// Ends it after the requests that are in flight.
    pub(super) fn graceful_shutdown(&mut self) {
        match self {
            Self::One(connection) => Pin::new(&mut **connection).graceful_shutdown(),
            Self::Two(connection) => Pin::new(&mut **connection).graceful_shutdown(),
        }
    }

    /// Takes it back from hyper. This works only for HTTP/1, and only if hyper has written everything, and used all that it
    /// has read: the rest would be lost.
    pub(super) fn take_back(self) -> Option<(Wire, A)> {
        let Self::One(connection) = self else { return None };
        let parts = connection.into_parts();
        parts.read_buf.is_empty().then(|| (parts.io.into_inner(), parts.service))
    }
}

impl<A: Answers> Future for Served<A> {
    type Output = hyper::Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::One(connection) => Pin::new(&mut **connection).poll(context),
            Self::Two(connection) => Pin::new(&mut **connection).poll(context),
        }
    }
}

/// Runs the requests of HTTP/2 connections, each as a task of its own. The drain waits for these tasks: when a
/// connection is cut, its requests end a moment later.
#[derive(Clone)]
pub(super) struct StreamExecutor(TaskTracker);

impl<F> hyper::rt::Executor<F> for StreamExecutor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        self.0.spawn(stream);
    }
}
