//! How much memory answers take that their clients have not read yet, heads of requests that clients do not finish, what they
//! send behind a request that waits, and requests that are read faster than they are answered ([`read_ahead`]).
//!
//! An HTTP/2 client need not make room for its answers, and an HTTP/1 client need not read them. The kernel gives up
//! peers that take nothing, but it sees that late or never. So the server counts the unread bytes. If there are too
//! many, it closes one connection: the one with most bytes, of the address with most bytes.

use std::collections::HashMap;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use futures_util::task::AtomicWaker;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use thiserror::Error;
use tracing::debug;

use super::application::Peer;
use crate::telemetry::Connections;

use read_ahead::{AheadOfHandler, PlaceInLine, ReadAhead};

mod read_ahead;

/// Longer answers are handed on, and counted, piece by piece.
pub(super) const PIECE_BYTES: usize = 16 * 1024;
/// What an HTTP/2 answer takes in memory besides its body, as measured.
const H2_ANSWER_BYTES: usize = 3 * 1024;
/// A body that is longer counts besides.
const SHORT_BYTES: usize = 1024;
/// What a frame of a stream takes besides its bytes, until the connection has written it.
const FRAME_BYTES: usize = 512;

/// What is unread on all connections of a server.
pub(super) struct Backpressure {
    most_bytes: usize,
    debtors: Mutex<Debtors>,
    ahead: Arc<ReadAhead>,
    counts: Arc<Connections>,
}

#[derive(Default)]
struct Debtors {
    bytes: usize,
    /// The addresses that have something unread, and no others.
    addresses: HashMap<IpAddr, Address>,
}

#[derive(Default)]
struct Address {
    bytes: usize,
    connections: HashMap<usize, (usize, Arc<Unread>)>,
}

/// What is unread on one connection.
pub(super) struct Unread {
    backpressure: Arc<Backpressure>,
    peer: Arc<Peer>,
    address: IpAddr,
    /// How many HTTP/2 answers were begun in this period, and in the one before. The two take turns.
    begun: [AtomicUsize; 2],
    periods: AtomicUsize,
    /// This connection had most when there was too much. From then on, nothing of it is counted.
    is_cut: AtomicBool,
    /// Where it waits before it reads more.
    place: Mutex<Option<PlaceInLine>>,
    waker: AtomicWaker,
}

/// An answer goes no further, because too much is unread.
#[derive(Debug, Error)]
#[error("clients leave too much unread")]
pub(super) struct TooMuchUnread;

impl Backpressure {
    pub(super) fn new(most_bytes: usize, counts: Arc<Connections>) -> Arc<Self> {
        Arc::new(Self { most_bytes, debtors: Mutex::default(), ahead: Arc::default(), counts })
    }

    pub(super) fn connection(self: &Arc<Self>, peer: &Arc<Peer>) -> Arc<Unread> {
        Arc::new(Unread {
            backpressure: self.clone(),
            peer: peer.clone(),
            address: peer.network(),
            begun: Default::default(),
            periods: AtomicUsize::new(0),
            is_cut: AtomicBool::new(false),
            place: Mutex::default(),
            waker: AtomicWaker::new(),
        })
    }
}

impl Debtors {
    /// Notes that this connection has more, or less, unread.
    fn change(&mut self, unread: &Arc<Unread>, change: impl Fn(usize) -> usize) {
        let address = self.addresses.entry(unread.address).or_default();
        let name = Arc::as_ptr(unread) as usize;
        let (bytes, _) = address.connections.entry(name).or_insert_with(|| (0, unread.clone()));
        *bytes = change(*bytes);
        if *bytes == 0 {
            address.connections.remove(&name);
        }
        address.bytes = change(address.bytes);
        if address.connections.is_empty() {
            self.addresses.remove(&unread.address);
        }
        self.bytes = change(self.bytes);
    }

    /// Forgets the connection that has most.
    fn evict(&mut self) -> Option<Arc<Unread>> {
        let address = self.addresses.values().max_by_key(|address| address.bytes)?;
        let (bytes, greedy) = address.connections.values().max_by_key(|(bytes, _)| *bytes)?;
        let (bytes, greedy) = (*bytes, greedy.clone());
        self.change(&greedy, |had| had - bytes);
        Some(greedy)
    }
}

impl Unread {
    /// Begins a new period and returns false. If something is still unread from the period before this one, returns
    /// true instead.
    pub(super) fn is_stale(&self) -> bool {
        let next = self.periods.load(Ordering::Relaxed) + 1;
        let is_stale = self.begun[next % 2].load(Ordering::Relaxed) > 0;
        if !is_stale {
            self.periods.store(next, Ordering::Relaxed);
        }
        is_stale
    }

    /// Waits until the connection must end because of what it left unread.
    pub(super) async fn cut(&self) {
        poll_fn(|context| {
            self.waker.register(context.waker());
            if self.is_cut() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Acquire)
    }

    /// Counts a request that was read, until its handler begins.
    pub(super) fn read_ahead(&self) -> AheadOfHandler {
        ReadAhead::count(self.backpressure.ahead.clone())
    }

    /// Whether no more requests may be read now. Then the task of this connection is woken when they may.
    pub(super) fn must_pause(&self, context: &Context<'_>) -> bool {
        self.backpressure.ahead.must_wait(&mut self.place.lock(), self.address, context)
    }

    /// No more requests will be read.
    pub(super) fn leaves_line(&self) {
        if let Some(place) = self.place.lock().take() {
            self.backpressure.ahead.leaves(place);
        }
    }

    /// Counts this many more bytes, until the result is dropped.
    fn charge(self: &Arc<Self>, bytes: usize) -> Result<Charge, TooMuchUnread> {
        let mut debtors = self.backpressure.debtors.lock();
        if self.is_cut() {
            return Err(TooMuchUnread);
        }
        debtors.change(self, |had| had + bytes);
        while debtors.bytes > self.backpressure.most_bytes {
            let Some(greedy) = debtors.evict() else { break };
            debug!(address = %greedy.address, "clients leave too much unread: the connection with most of it is closed");
            self.backpressure.counts.cut_unread.inc();
            // Its answers may be dropped before its task knows: they are to say that their client has not left.
            greedy.peer.is_cut.store(true, Ordering::Relaxed);
            greedy.is_cut.store(true, Ordering::Release);
            greedy.waker.wake();
        }
        self.backpressure.counts.unread_bytes.set(i64::try_from(debtors.bytes).unwrap_or(i64::MAX));
        if self.is_cut() {
            return Err(TooMuchUnread);
        }
        Ok(Charge { unread: self.clone(), bytes })
    }

    /// Counts a frame of a stream by HTTP/2 until the connection has written it. It has no time to be read in: a connection that holds a
    /// lock must not end because its program reads nothing.
    pub(super) fn count_frame(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        // Where it is not counted, the connection is being closed.
        let charge = self.charge(FRAME_BYTES + bytes.len()).ok();
        counted(bytes, None, charge)
    }

    /// Counts this many bytes, in place of those of `charge`.
    pub(super) fn recharge(
        self: &Arc<Self>,
        charge: &mut Option<Charge>,
        bytes: usize,
    ) -> Result<(), TooMuchUnread> {
        if charge.as_ref().map_or(0, |charge| charge.bytes) != bytes {
            *charge = None;
            if bytes > 0 {
                *charge = Some(self.charge(bytes)?);
            }
        }
        Ok(())
    }
}

/// Bytes that are unread.
pub(super) struct Charge {
    unread: Arc<Unread>,
    bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        let backpressure = &self.unread.backpressure;
        let mut debtors = backpressure.debtors.lock();
        if !self.unread.is_cut() {
            debtors.change(&self.unread, |had| had - self.bytes);
            backpressure.counts.unread_bytes.set(i64::try_from(debtors.bytes).unwrap_or(i64::MAX));
        }
    }
}

/// An HTTP/2 answer that was begun. It belongs to a period.
struct Place {
    unread: Arc<Unread>,
    period: usize,
}

impl Place {
    fn new(unread: &Arc<Unread>) -> Self {
        let period = unread.periods.load(Ordering::Relaxed) % 2;
        unread.begun[period].fetch_add(1, Ordering::Relaxed);
        Self { unread: unread.clone(), period }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.unread.begun[self.period].fetch_sub(1, Ordering::Relaxed);
    }
}

/// Bytes that count as unread until the connection has written them.
struct Piece {
    bytes: Bytes,
    /// What goes on for long has none, and neither has an answer before its pieces.
    _place: Option<Place>,
    _charge: Charge,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// These bytes, which count by this charge.
fn counted(bytes: Bytes, place: Option<Place>, charge: Option<Charge>) -> Bytes {
    match charge {
        Some(charge) => Bytes::from_owner(Piece { bytes, _place: place, _charge: charge }),
        None => bytes,
    }
}

/// An answer of known size. It is handed on in pieces, and counted while it is unread.
pub(super) struct CountedBody {
    body: Body,
    /// What is left of its last frame. Each piece of it keeps the whole in memory, and so goes on counting the whole.
    rest: Bytes,
    /// Whether its bytes are in memory anyway, and so do not count.
    is_in_memory: bool,
    /// HTTP/1 copies each piece into a buffer at once. That is counted where it is written.
    counts_pieces: bool,
    unread: Arc<Unread>,
    /// What was counted for the next piece before it was asked for.
    charged: Option<Charges>,
}

/// What counts for a piece of an answer, and for the frame that it is the first of.
type Charges = (Option<Charge>, Option<Charge>);

impl CountedBody {
    /// The first piece is counted now: by HTTP/2, the head of the answer may be on its way before the piece is asked for. On an
    /// error, what the answer granted is rolled back.
    pub(super) fn new(
        body: Body,
        is_in_memory: bool,
        counts_pieces: bool,
        unread: Arc<Unread>,
    ) -> Result<Self, TooMuchUnread> {
        let mut body = Self { body, rest: Bytes::new(), is_in_memory, counts_pieces, unread, charged: None };
        body.charged = Some(body.charge_next()?);
        Ok(body)
    }

    /// Counts the next piece, and the next frame where it begins one.
    fn charge_next(&self) -> Result<Charges, TooMuchUnread> {
        let piece = self.counts_pieces.then(|| self.unread.charge(H2_ANSWER_BYTES)).transpose()?;
        if self.is_in_memory || !self.rest.is_empty() {
            return Ok((piece, None));
        }
        let bytes =
            self.body.size_hint().exact().map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let uncounted_bytes = if self.counts_pieces { SHORT_BYTES } else { PIECE_BYTES };
        let frame = (bytes > uncounted_bytes).then(|| self.unread.charge(bytes)).transpose()?;
        Ok((piece, frame))
    }
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        let place = this.counts_pieces.then(|| Place::new(&this.unread));
        let (piece, charge) = match this.charged.take() {
            Some(charged) => charged,
            None => this.charge_next().map_err(axum::Error::new)?,
        };
        if this.rest.is_empty() {
            match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.rest = counted(data, None, charge),
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
        let length = this.rest.len().min(PIECE_BYTES);
        Poll::Ready(Some(Ok(Frame::data(counted(this.rest.split_to(length), place, piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.body.size_hint().exact().unwrap_or_default();
        SizeHint::with_exact(rest + self.rest.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

    use std::net::Ipv4Addr;

    use http_body_util::BodyExt;

    use super::*;
    use crate::server::TcpTimeout;

    #[tokio::test]
    async fn a_cancelled_answer_counts_while_a_piece_of_it_is_unread() {
        const BYTES: usize = 4 * PIECE_BYTES;
        let counts = Arc::new(Connections::default());
        let (address, tcp_timeout) = ((Ipv4Addr::LOCALHOST, 1).into(), TcpTimeout::default());
        let peer = Peer { address, subject: None, tcp_timeout, is_cut: AtomicBool::new(false) };
        let unread = Backpressure::new(usize::MAX, counts.clone()).connection(&Arc::new(peer));
        let mut body = CountedBody::new(Body::from(vec![0; BYTES]), false, true, unread).unwrap();
        let piece = body.frame().await.unwrap().unwrap();
        drop(body);
        assert!(usize::try_from(counts.unread_bytes.get()).unwrap() >= BYTES);
        drop(piece);
        assert_eq!(counts.unread_bytes.get(), 0);
    }
}
