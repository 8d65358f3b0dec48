//! The two protocols, and how hyper speaks each of them.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::HttpService;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::task::TaskTracker;

use super::settings::ServerSettings;
use super::wire::{Begun, Wire};

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

/// How each protocol is spoken.
pub(super) struct Protocols {
    one: http1::Builder,
    two: http2::Builder<StreamExecutor>,
}

/// A connection that hyper has.
pub(super) enum Served<S, A: Answers> {
    One(Box<http1::Connection<TokioIo<Wire<S>>, A>>),
    Two(Box<http2::Connection<TokioIo<Wire<S>>, A, StreamExecutor>>),
}

/// What answers requests, as hyper wants it.
pub(super) trait Answers:
    HttpService<Incoming, ResBody = Body, Error = Infallible, Future: Send + Unpin + 'static> + Unpin
{
}

impl<A> Answers for A where
    A: HttpService<Incoming, ResBody = Body, Error = Infallible, Future: Send + Unpin + 'static> + Unpin
{
}

impl Protocols {
    /// The requests of HTTP/2 connections run among `streams`.
    pub(super) fn new(settings: &ServerSettings, streams: TaskTracker) -> Self {
        let mut one = http1::Builder::new();
        // A client's FIN must drop the handler: whatever was granted is then taken back. A request may have 100 fields, as
        // hyper has it, which answers 431 to more: any other number, given here, would have it allocate and fill two
        // tables of that many for each request. For each it would set a timer too; the connection has one that does.
        // Head and body of an answer are written as one, as small as they are: in two pieces they cost the kernel more.
        one.half_close(false).header_read_timeout(None).max_buf_size(H1_BUFFER_BYTES).writev(false);
        let mut two = http2::Builder::new(StreamExecutor(streams));
        // The limits on streams that are reset at once ("rapid reset") stay as h2 sets them: 20 that were never accepted,
        // 1024 that broke the protocol.
        two.timer(TokioTimer::new())
            .keep_alive_interval(H2_PING_INTERVAL)
            .keep_alive_timeout(H2_PING_TIMEOUT)
            .max_concurrent_streams(settings.max_h2_streams)
            .max_header_list_size(H2_HEADER_LIST_BYTES)
            .initial_stream_window_size(H2_WINDOW_BYTES)
            .initial_connection_window_size(H2_WINDOW_BYTES);
        Self { one, two }
    }

    /// Has hyper answer, by `service`, what has begun on `wire`.
    pub(super) fn serve<S, A>(&self, begun: Begun, wire: Wire<S>, service: A) -> Served<S, A>
    where
        S: AsyncRead + AsyncWrite + Unpin,
        A: Answers,
    {
        let io = TokioIo::new(wire);
        match begun {
            Begun::Http1 => Served::One(Box::new(self.one.serve_connection(io, service))),
            Begun::Http2 => Served::Two(Box::new(self.two.serve_connection(io, service))),
        }
    }
}

impl<S, A> Served<S, A>
where
    S: AsyncRead + AsyncWrite + Unpin,
    A: Answers,
{
    /// Has it end with the requests that are in flight.
    pub(super) fn graceful_shutdown(&mut self) {
        match self {
            Self::One(connection) => Pin::new(&mut **connection).graceful_shutdown(),
            Self::Two(connection) => Pin::new(&mut **connection).graceful_shutdown(),
        }
    }

    /// Takes it from hyper, with what hyper has read and not made sense of yet. Only of HTTP/1, and only where nothing that
    /// was written is left there: it would be lost.
    pub(super) fn take_back(self) -> Option<(Wire<S>, Bytes, A)> {
        let Self::One(connection) = self else { return None };
        let parts = connection.into_parts();
        Some((parts.io.into_inner(), parts.read_buf, parts.service))
    }
}

impl<S, A> Future for Served<S, A>
where
    S: AsyncRead + AsyncWrite + Unpin,
    A: Answers,
{
    type Output = hyper::Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::One(connection) => Pin::new(&mut **connection).poll(context),
            Self::Two(connection) => Pin::new(&mut **connection).poll(context),
        }
    }
}

/// Runs the requests of HTTP/2 connections, each of which is a task of its own, where the drain can wait for them:
/// a connection that is cut takes its requests down with it, but only a moment later.
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
