//! The accept loop: from a listening socket to a router, and back again without cutting any client off.
//!
//! `axum::serve` limits neither how long a client may take to send its first request, nor how many clients there are.
//! It also cannot end while a client keeps its connection. This loop does the same on the same hyper, with limits. If a
//! client leaves, its handler is dropped. Then locks that could not be handed over are rolled back.

mod addresses;
mod application;
mod backpressure;
mod connection;
mod descriptors;
mod handshake;
mod heads;
mod hpack;
mod phase;
mod protocol;
mod requests;
mod settings;
mod tcp_timeout;
mod tls;
mod wire;

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};
use tokio::select;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep};
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use self::addresses::{AddressPermit, Addresses, network};
use self::backpressure::Backpressure;
use self::connection::serve_connection;
use self::handshake::{HandshakeTurns, shake_hands};
use self::phase::{DRAIN_GRACE, Phase};
use self::protocol::Protocols;
use self::tcp_timeout::TimeoutStream;
use crate::telemetry::ConnectionRefused;

pub use application::{Application, BodyWasRead, InMemory, Malformed, Peer};
pub use descriptors::make_room;
pub use phase::end_on_signals;
pub use settings::ServerSettings;
pub use tcp_timeout::{ShortTcpTimeout, TcpTimeout};
pub use tls::{Subject, Tls, TlsError, TlsFiles, read_pem};

/// The most connections that wait to be accepted: Linux's default. A drain takes as many out of the backlog at its end. Without a
/// limit, clients could hold up the drain by connecting as fast as they are accepted.
const BACKLOG_CONNECTIONS: u32 = 4096;

/// After this much silence, the kernel probes whether the peer is still there.
const TCP_KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
/// The time between two such probes.
const TCP_KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// After this many lost probes, the peer is given up. On Linux, the user timeout overrides this: one lost probe is then
/// enough.
const TCP_KEEPALIVE_PROBES: u32 = 3;
/// The pause after an accept that failed for lack of file descriptors or memory. Without it, the next one would fail
/// too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Such failures, and refused connections, are logged at most this often.
const ACCEPT_WARNING_INTERVAL: Duration = Duration::from_secs(1);

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainOutcome {
    /// Connections that had not ended by themselves within [`ServerSettings::drain_timeout`].
    pub cut_connections: usize,
}

/// Listens on the first of the addresses of `HOST:PORT` on which that is possible.
pub async fn listen(address: &str) -> io::Result<TcpListener> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in lookup_host(address).await? {
        let listen = || {
            let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            // A port is free again at once after a restart.
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            socket.listen(BACKLOG_CONNECTIONS)
        };
        match listen() {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Serves `app` over HTTP/1.1 and HTTP/2 (by prior knowledge) on `listener` until `shutdown` is canceled.
///
/// Then it drains and returns. At that point, every connection is closed and no handler runs any more. If the returned
/// future is dropped instead, all connections are cut.
pub async fn serve(
    listener: TcpListener,
    app: impl Application,
    settings: ServerSettings,
    shutdown: CancellationToken,
) -> DrainOutcome {
    let mut server = Server::new(app, settings);
    server.accept_until(&listener, shutdown.cancelled()).await;

    let mut deadline = pin!(sleep(server.settings.drain_timeout));
    let grace = DRAIN_GRACE.min(server.settings.drain_timeout);
    server.phase.send_replace(Phase::Draining);
    server.accept_until(&listener, sleep(grace)).await;
    // Idle connections end first, and give their descriptors to those that are accepted.
    server.phase.send_replace(Phase::Closing);
    select! {
        biased;
        () = server.accept_backlog(listener) => {}
        () = &mut deadline => {}
    }
    server.connections.close();
    server.streams.close();
    let cut_connections = select! {
        biased;
        () = server.connections.wait() => 0,
        () = &mut deadline => server.connections.len(),
    };
    server.phase.send_replace(Phase::Cut);
    server.connections.wait().await;
    server.streams.wait().await;
    DrainOutcome { cut_connections }
}

/// A connection, its address, and the permit by which it counts among those of its address.
type Accepted = (TcpStream, SocketAddr, AddressPermit);

struct Server<A> {
    app: A,
    settings: Arc<ServerSettings>,
    protocols: Arc<Protocols>,
    phase: watch::Sender<Phase>,
    permits: Arc<Semaphore>,
    addresses: Addresses,
    backpressure: Arc<Backpressure>,
    turns: Arc<HandshakeTurns>,
    connections: TaskTracker,
    streams: TaskTracker,
    last_warning: Option<Instant>,
    /// How many connections were refused since the last log line about them, and when that line was.
    refused: (u64, Option<Instant>),
}

impl<A: Application> Server<A> {
    fn new(app: A, settings: ServerSettings) -> Self {
        let streams = TaskTracker::new();
        Self {
            app,
            protocols: Arc::new(Protocols::new(&settings, streams.clone())),
            phase: watch::Sender::new(Phase::Serving),
            permits: Arc::new(Semaphore::new(settings.max_connections.clamp(1, Semaphore::MAX_PERMITS))),
            addresses: Addresses::default(),
            backpressure: Backpressure::new(settings.max_unread_bytes, Arc::clone(&settings.counts)),
            turns: Arc::new(HandshakeTurns::new()),
            connections: TaskTracker::new(),
            streams,
            settings: Arc::new(settings),
            last_warning: None,
            refused: (0, None),
        }
    }

    /// Accepts and serves connections until `end` completes.
    async fn accept_until(&mut self, listener: &TcpListener, end: impl Future<Output = ()>) {
        let mut end = pin!(end);
        loop {
            // The permit comes first. While there is none, new clients wait in the kernel's backlog: there they need no
            // descriptor and no memory of ours.
            let permit = select! {
                biased;
                () = &mut end => return,
                permit = Arc::clone(&self.permits).acquire_owned() => permit.ok(),
            };
            let accepted = select! {
                biased;
                () = &mut end => return,
                accepted = self.accept(listener) => accepted,
            };
            self.spawn(accepted, permit);
        }
    }

    /// Returns the next connection. After a failure it waits, since each failure passes.
    async fn accept(&mut self, listener: &TcpListener) -> Accepted {
        loop {
            match listener.accept().await {
                Ok((stream, address)) => match self.place(address.ip()) {
                    Some(place) => return (stream, address, place),
                    None => reset(&stream),
                },
                Err(error) if concerns_one_connection(&error) => debug!(%error, "a connection failed early"),
                Err(error) => self.pause_after(error).await,
            }
        }
    }

    /// Waits until the next accept may succeed again.
    async fn pause_after(&mut self, error: io::Error) {
        let now = Instant::now();
        if self.last_warning.is_none_or(|last| now - last >= ACCEPT_WARNING_INTERVAL) {
            warn!(%error, "cannot accept connections");
            self.last_warning = Some(now);
        }
        sleep(ACCEPT_PAUSE).await;
    }

    /// A permit for one more connection of this address, unless the address has as many as it may have.
    fn place(&mut self, address: IpAddr) -> Option<AddressPermit> {
        let most = self.settings.max_connections_per_address;
        let place = self.addresses.enter(address, most);
        if place.is_none() {
            self.settings.counts.refused.count(ConnectionRefused::AddressFull);
            let (refused, last) = &mut self.refused;
            *refused += 1;
            let now = Instant::now();
            if last.is_none_or(|last| now - last >= ACCEPT_WARNING_INTERVAL) {
                let address = network(address);
                warn!(%address, most, refused, "this address has as many connections as it may: more of them are closed at once");
                self.refused = (0, Some(now));
            }
        }
        place
    }

    /// Accepts the connections that the kernel has already completed, then closes the listener.
    ///
    /// The clients of these connections may have sent their requests already. If the listener were closed first, they
    /// would be reset. They are served without permits, because waiting for permits could take the whole drain.
    async fn accept_backlog(&mut self, listener: TcpListener) {
        // This uses the bare socket. tokio's socket only knows what its poller has seen so far.
        let listener = match listener.into_std() {
            Ok(listener) => listener,
            Err(error) => return debug!(%error, "cannot empty the backlog"),
        };
        for _ in 0..BACKLOG_CONNECTIONS {
            let accepted = listener.accept().and_then(|(stream, address)| {
                stream.set_nonblocking(true)?;
                Ok((TcpStream::from_std(stream)?, address))
            });
            match accepted {
                Ok((stream, address)) => match self.place(address.ip()) {
                    Some(place) => self.spawn((stream, address, place), None),
                    None => reset(&stream),
                },
                Err(error) if concerns_one_connection(&error) => debug!(%error, "a connection failed early"),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => self.pause_after(error).await,
            }
        }
    }

    fn spawn(&self, (stream, address, place): Accepted, permit: Option<OwnedSemaphorePermit>) {
        set_socket_options(&stream);
        // The subscription is made here and not in the task, so that the task misses no later phase, nor the current one.
        let mut phase = self.phase.subscribe();
        phase.mark_changed();
        let (protocols, app) = (Arc::clone(&self.protocols), self.app.clone());
        let (settings, backpressure) = (Arc::clone(&self.settings), Arc::clone(&self.backpressure));
        let turns = Arc::clone(&self.turns);
        let open = settings.counts.open();
        // Boxed, as the handshake is: a task has room for what it begins with, and for that, as long as the connection lives.
        let begun = Box::new((stream, address));
        self.connections.spawn(async move {
            // Not kept until the task ends, as what a task captures is.
            let (stream, address) = *{ begun };
            let tcp_timeout = TcpTimeout::default();
            let stream = TimeoutStream::new(stream, tcp_timeout.clone());
            let (stream, subject) = match &settings.tls {
                None => (Either::Left(stream), None),
                Some(tls) => {
                    let turns = (&*turns, place.handshakes());
                    let shaking = Box::pin(shake_hands(stream, tls, turns, &settings, &mut phase));
                    let Some(shaken) = shaking.await else { return };
                    shaken
                }
            };
            let peer = Arc::new(Peer { address, subject, tcp_timeout, is_cut: AtomicBool::new(false) });
            serve_connection(stream, peer, &protocols, app, &settings, &backpressure, phase).await;
            drop((open, place, permit));
        });
    }
}

/// Makes the kernel forget the connection at once. A client that is refused a thousand times a second must not leave as
/// many sockets behind that wait for their last packets.
fn reset(stream: &TcpStream) {
    if let Err(error) = SockRef::from(stream).set_linger(Some(Duration::ZERO)) {
        debug!(%error, "cannot set the linger time");
    }
}

/// Sets what can be set; [`TimeoutStream`] sees to the user timeout.
fn set_socket_options(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new()
        .with_time(TCP_KEEPALIVE_IDLE)
        .with_interval(TCP_KEEPALIVE_INTERVAL)
        .with_retries(TCP_KEEPALIVE_PROBES);
    // Answers are small and complete. To wait for more bytes would only delay them.
    for is_set in [socket.set_tcp_nodelay(true), socket.set_tcp_keepalive(&keepalive)] {
        if let Err(error) = is_set {
            debug!(%error, "cannot set a socket option");
        }
    }
}

/// Whether an error of `accept` is only about the connection that it would have returned. Then the next one can be
/// fine.
fn concerns_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::Interrupted
            | io::ErrorKind::NetworkDown
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::TimedOut
    )
}
