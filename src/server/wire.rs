//! The stream of a connection, before and between the times in which hyper has it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use super::backpressure::{Charge, Unread};
use super::heads::Heads;
use super::hpack::Paths;
use super::requests::Requests;

/// What TLS may keep of what it was given to write.
const TLS_BUFFER_BYTES: usize = 64 * 1024;

/// What a client of HTTP/2 says first, if it knows that it may (RFC 9113, section 3.4).
const H2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What a connection has begun to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begun {
    Http1,
    Http2,
}

/// A stream whose first bytes may have been read already. It notes what is read and written.
pub(super) struct Wire<S> {
    stream: S,
    /// What is read before anything else.
    first: Bytes,
    heads: Heads,
    /// Of HTTP/2, behind its preface.
    paths: Option<Box<Paths>>,
    requests: Arc<Requests>,
    unread: Arc<Unread>,
    /// What hyper could not write yet.
    held_up: Option<Charge>,
    /// Whoever wants to read while nothing can be written.
    reader: Option<Waker>,
}

impl<S: AsyncRead + Unpin> Wire<S> {
    pub(super) fn new(stream: S, requests: Arc<Requests>, unread: Arc<Unread>) -> Self {
        let heads = Heads::new(requests.clone());
        Self {
            stream,
            first: Bytes::new(),
            heads,
            paths: None,
            requests,
            unread,
            held_up: None,
            reader: None,
        }
    }

    /// Has these bytes, which were read from it, be read again.
    pub(super) fn put_back(&mut self, bytes: Bytes) {
        // Also no bytes at all keep the whole buffer in which they stood.
        self.first = if bytes.is_empty() { Bytes::new() } else { bytes };
    }

    /// Waits for the beginning of a request, and for as many bytes as tell what it is; `None` where the client has gone, or
    /// the stream fails. What had been read when this was given up stays to be read.
    pub(super) async fn begins(&mut self) -> Option<Begun> {
        let is_first = self.requests.version().is_none();
        let mut bytes = [0; H2_PREFACE.len()];
        loop {
            let known = self.first.len().min(bytes.len());
            if known > 0 && !(is_first && H2_PREFACE.starts_with(&self.first[..known])) {
                return Some(Begun::Http1);
            }
            if known == bytes.len() {
                self.heads.stop();
                self.paths = Some(Box::default());
                return Some(Begun::Http2);
            }
            match self.stream.read(&mut bytes[known..]).await {
                Ok(0) | Err(_) if known == 0 => return None,
                // Whatever it was to become, hyper finds its end.
                Ok(0) | Err(_) => return Some(Begun::Http1),
                Ok(more) => {
                    self.heads.read(&bytes[known..known + more]);
                    bytes[..known].copy_from_slice(&self.first);
                    self.first = Bytes::copy_from_slice(&bytes[..known + more]);
                }
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Wire<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // A client that reads no answers is not read either: each of its requests would be one more answer in memory.
        if self.held_up.is_some() && self.requests.are_answered_by_http1() {
            self.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        if self.first.has_remaining() {
            let bytes = self.first.len().min(buffer.remaining());
            buffer.put_slice(&self.first.split_to(bytes));
        } else {
            let this = &mut *self;
            ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
            match &mut this.paths {
                None => this.heads.read(&buffer.filled()[before..]),
                Some(paths) => paths.walk(&mut buffer.filled_mut()[before..]),
            }
        }
        if buffer.filled().len() > before {
            self.requests.note_read();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S> Wire<S> {
    /// Notes that hyper waits to write so many bytes, or none any more.
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

impl<S: AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.requests.note_writing();
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if written.is_pending() {
            self.is_held_up_by(bytes.len())?;
        }
        written
    }

    /// hyper flushes once it has written all that it has.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        match &flushed {
            Poll::Ready(Ok(())) => {
                self.requests.note_written();
                self.is_held_up_by(0)?;
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.is_held_up_by(TLS_BUFFER_BYTES)?,
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Whoever closes has said so, or has something to say yet.
        self.requests.note_writing();
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
