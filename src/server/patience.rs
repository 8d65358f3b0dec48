//! How long a peer may leave what was sent to it unacknowledged: the server's own time, or less, where a request on the
//! connection asks for that.

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tracing::debug;

use super::TCP_USER_TIMEOUT;

/// The patience with the peer of one connection. Each request finds it among its extensions, and may shorten it.
#[derive(Clone, Debug, Default)]
pub struct Patience(Arc<Mutex<Wanted>>);

#[derive(Debug, Default)]
struct Wanted {
    /// What the requests under way have asked for: several share an HTTP/2 connection.
    times: Vec<Duration>,
}

impl Wanted {
    fn shortest(&self) -> Duration {
        self.times.iter().copied().min().unwrap_or(TCP_USER_TIMEOUT).min(TCP_USER_TIMEOUT)
    }
}

impl Patience {
    /// Gives the peer up when it has left something unacknowledged for this time, for as long as the answer lives. It
    /// holds from the next write on.
    pub fn at_most(&self, time: Duration) -> ShortPatience {
        self.lock().times.push(time);
        ShortPatience { patience: self.clone(), time }
    }

    fn lock(&self) -> MutexGuard<'_, Wanted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// That a request has less patience than the server.
#[derive(Debug)]
pub struct ShortPatience {
    patience: Patience,
    time: Duration,
}

impl Drop for ShortPatience {
    fn drop(&mut self) {
        let mut wanted = self.patience.lock();
        if let Some(at) = wanted.times.iter().position(|time| *time == self.time) {
            wanted.times.swap_remove(at);
        }
    }
}

/// An accepted socket that is written to with the patience of its requests.
pub(super) struct PatientStream<S> {
    stream: S,
    patience: Patience,
    /// What the kernel was told last.
    told: Duration,
}

impl<S: AsFd> PatientStream<S> {
    /// `stream` has the user timeout of all accepted sockets.
    pub(super) fn new(stream: S, patience: Patience) -> Self {
        Self { stream, patience, told: TCP_USER_TIMEOUT }
    }

    /// The socket itself.
    pub(super) fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Tells the kernel before it is given more to send, as that is when its time begins to count.
    fn tell(&mut self) {
        let wanted = self.patience.lock().shortest();
        if wanted != self.told {
            self.told = wanted;
            if let Err(error) = SockRef::from(&self.stream).set_tcp_user_timeout(Some(wanted)) {
                debug!(%error, "cannot set the user timeout");
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PatientStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + AsFd + Unpin> AsyncWrite for PatientStream<S> {
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
