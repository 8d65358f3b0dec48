//! Answers of HTTP/2 that their clients have not taken yet.
//!
//! A client that makes no room for its answers lets each of them stay in memory, and the kernel, which gives up peers that
//! take nothing of a connection of HTTP/1, sees nothing of it. So each is counted until its last byte is on its way.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use thiserror::Error;

use crate::telemetry::Connections;

/// Unread answers of all connections, beyond which none may have more than [`FEW`].
const MOST: usize = 8_192;
const FEW: usize = 4;
/// A long answer is counted piece by piece, so that a slow client is seen to take it.
const PIECE_BYTES: usize = 16 * 1024;

/// The unread answers of one connection.
pub(super) struct Unread {
    /// Those that were begun in this period, and in the one before, in turns.
    begun: [AtomicUsize; 2],
    periods: AtomicUsize,
    all: Arc<Connections>,
}

/// An answer that is not made, since too many wait to be read.
#[derive(Debug, Error)]
#[error("too many answers are unread")]
struct TooManyUnread;

impl Unread {
    pub(super) fn new(all: Arc<Connections>) -> Arc<Self> {
        Arc::new(Self { begun: Default::default(), periods: AtomicUsize::new(0), all })
    }

    /// Begins a new period, unless something is unread from before the one that ends. Returns whether that is so.
    pub(super) fn is_stale(&self) -> bool {
        let next = self.periods.load(Ordering::Relaxed) + 1;
        let is_stale = self.begun[next % 2].load(Ordering::Relaxed) > 0;
        if !is_stale {
            self.periods.store(next, Ordering::Relaxed);
        }
        is_stale
    }

    /// Counts one more, until it is dropped; `None` where there are too many.
    fn enter(self: &Arc<Self>) -> Option<Place> {
        let period = self.periods.load(Ordering::Relaxed) % 2;
        let place = Place { unread: self.clone(), period };
        let before = self.all.unread.fetch_add(1, Ordering::Relaxed);
        self.begun[period].fetch_add(1, Ordering::Relaxed);
        let here: usize = self.begun.iter().map(|begun| begun.load(Ordering::Relaxed)).sum();
        (before < MOST || here <= FEW).then_some(place)
    }
}

struct Place {
    unread: Arc<Unread>,
    period: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.unread.begun[self.period].fetch_sub(1, Ordering::Relaxed);
        self.unread.all.unread.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Bytes that count as unread until the connection has written them.
struct Piece {
    bytes: Bytes,
    _place: Place,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// An answer of known size, counted while it is unread.
pub(super) struct CountedBody {
    body: Body,
    /// What is left of its last frame.
    rest: Bytes,
    unread: Arc<Unread>,
}

impl CountedBody {
    pub(super) fn new(body: Body, unread: Arc<Unread>) -> Self {
        Self { body, rest: Bytes::new(), unread }
    }
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // Before the answer knows that it is taken: what it grants is taken back then.
        let Some(place) = self.unread.enter() else {
            return Poll::Ready(Some(Err(axum::Error::new(TooManyUnread))));
        };
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
        let length = self.rest.len().min(PIECE_BYTES);
        let piece = Piece { bytes: self.rest.split_to(length), _place: place };
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_owner(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.body.size_hint().exact().unwrap_or_default();
        SizeHint::with_exact(rest + self.rest.len() as u64)
    }
}
