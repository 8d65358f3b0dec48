//! How long a peer may leave sent bytes unacknowledged. The server has a time for all connections, and a request may
//! shorten it for its own.

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tracing::debug;

/// The longest time that sent bytes may stay unacknowledged, or the peer's window closed. Then the kernel gives up the
/// peer. A request may have less time ([`TcpTimeout`]).
pub(super) const TCP_USER_TIMEOUT: Duration = Duration::from_secs(30);

/// The time that the peer of one connection has. Each request finds it among its extensions, and may shorten it: these are the
/// times that the current requests ask for. Several requests can share an HTTP/2 connection.
#[derive(Clone, Debug, Default)]
pub struct TcpTimeout(Arc<Mutex<Vec<Duration>>>);

impl TcpTimeout {
    /// While the result lives, gives up the peer if it has left something unacknowledged for this time. This holds from
    /// the next write on.
    pub fn at_most(&self, time: Duration) -> ShortTcpTimeout {
        self.0.lock().push(time);
        ShortTcpTimeout { tcp_timeout: self.clone(), time }
    }

    fn shortest(&self) -> Duration {
        self.0.lock().iter().copied().fold(TCP_USER_TIMEOUT, Duration::min)
    }
}

/// A request gives its peer less time than the server does, until this is dropped.
#[derive(Debug)]
pub struct ShortTcpTimeout {
    tcp_timeout: TcpTimeout,
    time: Duration,
}

impl Drop for ShortTcpTimeout {
    fn drop(&mut self) {
        let mut times = self.tcp_timeout.0.lock();
        if let Some(at) = times.iter().position(|time| *time == self.time) {
            times.swap_remove(at);
        }
    }
}

/// An accepted socket, with the TCP timeout that its requests allow.
pub(super) struct TimeoutStream<S> {
    stream: S,
    tcp_timeout: TcpTimeout,
    /// The time that the kernel was told last.
    told: Duration,
}

impl<S: AsFd> TimeoutStream<S> {
    /// `stream` has the user timeout of all accepted sockets.
    pub(super) fn new(stream: S, tcp_timeout: TcpTimeout) -> Self {
        Self { stream, tcp_timeout, told: TCP_USER_TIMEOUT }
    }

    /// The socket itself.
    pub(super) fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Tells the kernel before it gets more to send: that is when its time begins to count.
    fn tell(&mut self) {
        let wanted = self.tcp_timeout.shortest();
        if wanted != self.told {
            self.told = wanted;
            if let Err(error) = SockRef::from(&self.stream).set_tcp_user_timeout(Some(wanted)) {
                debug!(%error, "cannot set the user timeout");
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimeoutStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + AsFd + Unpin> AsyncWrite for TimeoutStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.tell();
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.tell();
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
