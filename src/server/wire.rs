//! The stream of a connection, also while hyper does not have it: before the first request, and between requests.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use futures_util::FutureExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use super::backpressure::{Charge, Unread};
use super::heads::Heads;
use super::hpack::Paths;
use super::requests::Requests;
use super::tcp_timeout::TimeoutStream;

/// A connection without TLS, or with it. It is one type, because all of hyper is compiled anew for each type of stream.
pub(super) type Stream = Either<TimeoutStream<TcpStream>, Box<TlsStream<TimeoutStream<TcpStream>>>>;

/// How many bytes TLS may keep of what it was given to write.
const TLS_BUFFER_BYTES: usize = 64 * 1024;
/// A head that takes less than this has room in the buffers that each connection has.
const SHORT_HEAD_BYTES: usize = 8 * 1024;
/// With this much behind the request that is being answered, nothing more is read.
const BEHIND_BYTES: usize = 8 * 1024;
/// How often the socket is looked at while nothing more is read.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The first bytes of an HTTP/2 client that knows it may begin so (RFC 9113, section 3.4).
const H2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The protocol that a connection has begun to speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spoken {
    Http1,
    Http2,
}

/// A stream whose first bytes may have been read already. It notes what is read and written.
pub(super) struct Wire {
    stream: Stream,
    /// What has come, and hyper has not seen: the beginning of a connection, and what is behind the request that is being
    /// answered.
    first: BytesMut,
    heads: Heads,
    /// For HTTP/2, behind its preface.
    paths: Option<Box<Paths>>,
    requests: Arc<Requests>,
    unread: Arc<Unread>,
    /// What hyper could not write yet.
    held_up: Option<Charge>,
    /// What the head of a request takes whose end has not come, what heads before it still take, and what is behind a request.
    heads_charge: Option<Charge>,
    /// The task that wants to read while nothing can be written, or behind the request that is being answered.
    reader: Option<Waker>,
    /// When the socket is looked at again, while nothing more is read.
    next_look: Option<Pin<Box<Sleep>>>,
    /// Why the stream has ended, where hyper was not told that yet.
    failed: Option<io::Error>,
    /// Whether hyper had nothing left to begin when it last found nothing more to read.
    is_at_rest: bool,
}

impl Wire {
    pub(super) fn new(stream: Stream, requests: Arc<Requests>, unread: Arc<Unread>) -> Self {
        let heads = Heads::new(requests.clone());
        Self {
            stream,
            first: BytesMut::new(),
            heads,
            paths: None,
            requests,
            unread,
            held_up: None,
            heads_charge: None,
            reader: None,
            next_look: None,
            failed: None,
            is_at_rest: true,
        }
    }

    /// Waits until a request begins, and until enough bytes have come to tell its protocol. Returns `None` if the
    /// client has gone or the stream fails. If the wait is given up, the bytes that were read are read again.
    pub(super) async fn begins(&mut self) -> Option<Spoken> {
        let is_first = self.requests.version().is_none();
        let mut bytes = [0; H2_PREFACE.len()];
        loop {
            let known = self.first.len().min(bytes.len());
            if known > 0 && !(is_first && H2_PREFACE.starts_with(&self.first[..known])) {
                return Some(Spoken::Http1);
            }
            if known == bytes.len() {
                self.heads.stop();
                self.paths = Some(Box::default());
                return Some(Spoken::Http2);
            }
            match self.stream.read(&mut bytes[known..]).await {
                Ok(0) | Err(_) if known == 0 => return None,
                // hyper notices by itself that the request does not go on.
                Ok(0) | Err(_) => return Some(Spoken::Http1),
                Ok(more) => {
                    self.first.extend_from_slice(&bytes[known..known + more]);
                }
            }
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.unread.leaves_line();
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // While a client does not read its answers, we do not read its requests: each would put one more answer into
        // memory.
        if self.held_up.is_some() && self.requests.are_answered_by_http1() {
            self.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        // HTTP/2 is read although answers wait: their room is told in between. But no faster than requests are begun.
        if self.paths.is_some() && self.unread.must_pause(context) {
            self.is_at_rest = self.requests.come_to_rest();
            return Poll::Pending;
        }
        let this = &mut *self;
        // A request that has come as a whole is being answered until none is in flight.
        if this.heads.is_complete() && this.requests.has_begun_another() {
            return this.poll_leaves(context, buffer);
        }
        let before = buffer.filled().len();
        if this.first.has_remaining() {
            let bytes = this.first.len().min(buffer.remaining());
            let bytes = if this.paths.is_some() { bytes } else { this.heads.read(&this.first[..bytes]) };
            buffer.put_slice(&this.first[..bytes]);
            this.first.advance(bytes);
            if this.first.is_empty() {
                // It would still keep its whole buffer in memory.
                this.first = BytesMut::new();
                this.next_look = None;
            }
        } else {
            ready!(this.poll_stream(context, buffer))?;
            match &mut this.paths {
                None => {
                    let end = before + this.heads.read(&buffer.filled()[before..]);
                    if end < buffer.filled().len() {
                        this.first.extend_from_slice(&buffer.filled()[end..]);
                        buffer.set_filled(end);
                    }
                }
                Some(paths) => paths.walk(&mut buffer.filled_mut()[before..]),
            }
        }
        if buffer.filled().len() > before {
            self.requests.note_read();
            self.charge_heads()?;
        }
        Poll::Ready(Ok(()))
    }
}

impl Wire {
    /// Reads from the stream itself. If nothing is read, its end may be told. An error is an end as well: a client of TLS may
    /// leave without a word.
    fn poll_stream(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = match self.failed.take() {
            Some(error) => Poll::Ready(Err(error)),
            None => Pin::new(&mut self.stream).poll_read(context, buffer),
        };
        let Poll::Ready(read) = read else {
            self.is_at_rest = self.requests.come_to_rest();
            return Poll::Pending;
        };
        if (read.is_err() || buffer.filled().len() == before) && self.poll_end(context).is_pending() {
            // TLS would not say it once more.
            self.failed = read.err();
            return Poll::Pending;
        }
        Poll::Ready(read)
    }

    /// Waits until hyper may be told that the client sends nothing more.
    ///
    /// A client may send a request, or the rest of one, and leave at once. hyper reads both in one go, and would drop the request
    /// before it is seen. So the end is told when hyper asks once more, and by HTTP/2 once more for each request: they begin
    /// one by one. Of one that was seen, and waits, it is told at once: its answer may be ready in the same moment, and no one
    /// is there to read it.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.is_at_rest = self.requests.come_to_rest();
        if self.is_at_rest {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Whether hyper is not told yet that it cannot write. By HTTP/2, it writes before it begins what it has read.
    fn holds_back_failure(&mut self, context: &Context<'_>) -> bool {
        if self.paths.is_none() || self.is_at_rest {
            return false;
        }
        self.is_at_rest = true;
        context.waker().wake_by_ref();
        true
    }

    /// Waits until the client has left, and keeps what it sends before that. hyper would look for it no more once it had bytes
    /// of the next request.
    fn poll_leaves(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        while self.first.len() < BEHIND_BYTES {
            match self.poll_stream(context, buffer)? {
                Poll::Ready(()) if buffer.filled().len() == before => return Poll::Ready(Ok(())),
                Poll::Ready(()) => {
                    self.first.extend_from_slice(&buffer.filled()[before..]);
                    buffer.set_filled(before);
                    self.charge_heads()?;
                }
                Poll::Pending => {
                    if self.first.has_remaining() {
                        self.reader = Some(context.waker().clone());
                    }
                    return Poll::Pending;
                }
            }
        }
        self.reader = Some(context.waker().clone());
        // The socket wakes no task while there is more to read.
        let look = self.next_look.get_or_insert_with(|| Box::pin(sleep(LOOK_EVERY)));
        while look.as_mut().poll(context).is_ready() {
            let socket = match &self.stream {
                Either::Left(stream) => stream.get_ref(),
                Either::Right(stream) => stream.get_ref().0.get_ref(),
            };
            let is_readable = socket.ready(Interest::READABLE).now_or_never();
            if is_readable.is_some_and(|ready| ready.is_ok_and(|ready| ready.is_read_closed())) {
                return self.poll_end(context).map(Ok);
            }
            look.as_mut().reset(Instant::now() + LOOK_EVERY);
        }
        self.is_at_rest = self.requests.come_to_rest();
        Poll::Pending
    }

    /// Counts a head whose end has not come, and what is behind a request, as if it were an unread answer. Otherwise, heads without ends on all connections
    /// would take several times as much memory as all else. Heads that an HTTP/2 client leaves in memory by its table of
    /// fields count as well. A new connection begins with an empty table, so the client is told to open one.
    fn charge_heads(&mut self) -> io::Result<()> {
        let bytes = match &self.paths {
            // hyper's buffer has half as much room again.
            None => self.heads.unfinished_bytes() * 3 / 2 + self.first.len(),
            Some(paths) => {
                let excess_bytes = paths.excess_bytes();
                if excess_bytes > 0 {
                    self.requests.note_full_table();
                }
                paths.unfinished_bytes() + excess_bytes
            }
        };
        let counted = if bytes > SHORT_HEAD_BYTES { bytes } else { 0 };
        self.unread.recharge(&mut self.heads_charge, counted).map_err(io::Error::other)
    }

    /// Notes how many bytes hyper waits to write, or that it does not wait any more.
    fn is_held_up_by(&mut self, bytes: usize) -> io::Result<()> {
        if bytes == 0 && self.held_up.is_none() {
            return Ok(());
        }
        if bytes > 0 {
            self.requests.note_held_up();
        } else if let Some(reader) = self.reader.take() {
            reader.wake();
        }
        self.unread.recharge(&mut self.held_up, bytes).map_err(io::Error::other)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.requests.note_writing();
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Err(_)) = written
            && self.holds_back_failure(context)
        {
            return Poll::Pending;
        }
        if written.is_pending() {
            self.is_held_up_by(bytes.len())?;
        }
        written
    }

    /// hyper flushes when it has written everything.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        match &flushed {
            Poll::Ready(Ok(())) => {
                self.requests.note_written();
                self.is_held_up_by(0)?;
                // hyper would wait for the socket, and what is behind the request has been read from it.
                if !self.requests.has_begun_another()
                    && let Some(reader) = self.reader.take()
                {
                    reader.wake();
                }
            }
            Poll::Ready(Err(_)) if self.holds_back_failure(context) => return Poll::Pending,
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.is_held_up_by(TLS_BUFFER_BYTES)?,
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // To close means that something was written, or is still to be written.
        self.requests.note_writing();
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
