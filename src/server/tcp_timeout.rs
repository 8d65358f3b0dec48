//! How long a peer may leave sent bytes unacknowledged. The server has a time for all connections, and a request may
//! shorten it for its own.

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::{Arc, Once};
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tracing::warn;

/// The longest time that sent bytes may stay unacknowledged, or the peer's window closed. Then the kernel gives up the
/// peer. A request may have less time ([`TcpTimeout`]).
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(30);

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
    /// The time that the kernel was told last, if it took any.
    told: Option<Duration>,
}

impl<S: AsFd> TimeoutStream<S> {
    pub(super) fn new(stream: S, tcp_timeout: TcpTimeout) -> Self {
        let mut stream = Self { stream, tcp_timeout, told: None };
        stream.tell();
        stream
    }

    /// The socket itself.
    pub(super) fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Tells the kernel before it gets more to send: that is when its time begins to count. If that fails, it is tried again
    /// before the next write.
    fn tell(&mut self) {
        static WARNED: Once = Once::new();
        let wanted = Some(self.tcp_timeout.shortest());
        if wanted != self.told {
            match SockRef::from(&self.stream).set_tcp_user_timeout(wanted) {
                Ok(()) => self.told = wanted,
                Err(error) => WARNED.call_once(|| {
                    warn!(%error, "cannot set TCP_USER_TIMEOUT: clients that vanish are noticed late");
                }),
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

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

    use std::cell::Cell;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::BorrowedFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// A connection whose options cannot be set a few times: in their place, those of a socket without this option are.
    struct Refusing {
        stream: TcpStream,
        other: UnixStream,
        refusals: Cell<u32>,
    }

    impl AsFd for Refusing {
        fn as_fd(&self) -> BorrowedFd<'_> {
            match self.refusals.get() {
                0 => self.stream.as_fd(),
                left => {
                    self.refusals.set(left - 1);
                    self.other.as_fd()
                }
            }
        }
    }

    #[test]
    fn a_timeout_that_could_not_be_set_is_set_before_the_next_write() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connection = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, refusals) = (UnixStream::pair().unwrap().0, Cell::new(1));
        let tcp_timeout = TcpTimeout::default();
        let refusing = Refusing { stream: connection, other, refusals };
        let mut stream = TimeoutStream::new(refusing, tcp_timeout.clone());
        let time = |stream: &TimeoutStream<Refusing>| SockRef::from(&stream.stream.stream).tcp_user_timeout();
        assert_ne!(time(&stream).unwrap(), Some(TCP_USER_TIMEOUT), "it was not refused");
        stream.tell();
        assert_eq!(time(&stream).unwrap(), Some(TCP_USER_TIMEOUT));
        let short = Duration::from_secs(3);
        let _short = tcp_timeout.at_most(short);
        stream.stream.refusals.set(2);
        for is_told in [false, false, true, true] {
            stream.tell();
            assert_eq!(time(&stream).unwrap() == Some(short), is_told);
        }
    }
}
