//! The accept loop: from a listening socket to a router, and back out again without cutting anyone off.
//!
//! `axum::serve` bounds neither how long a client may take over its first request nor how many clients there are,
//! and it cannot end while a client holds on. This loop does what it does on the same hyper, with limits.
//! A client that leaves drops its handler: locks that could not be handed over are taken back because of that.

mod addresses;
mod connection;
mod descriptors;
mod handshake;
mod heads;
mod hpack;
mod patience;
mod protocol;
mod requests;
mod subject;
mod tls;
mod unread;
mod wire;

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::select;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Service;
use tracing::{debug, warn};

use crate::telemetry::{ConnectionRefused, Connections};
pub use addresses::network;
use addresses::{Addresses, Place};
use connection::serve_connection;
pub use descriptors::make_room;
use handshake::shake_hands;
pub use heads::Malformed;
use patience::PatientStream;
pub use patience::{Patience, ShortPatience};
use protocol::Protocols;
pub use subject::Subject;
pub use tls::{Tls, TlsError, TlsFiles};
use unread::Backlog;

/// How long a drain still accepts and serves. Each answer in this time tells its client to close, so that a client
/// in a closed loop is never cut between two requests.
const DRAIN_GRACE: Duration = Duration::from_millis(500);
/// The most connections that a drain takes out of the backlog at its end: what Linux keeps there by default. Without
/// a bound, clients that connect as fast as they are accepted could hold up the drain.
const DRAIN_BACKLOG_CONNECTIONS: usize = 4096;

/// After this much silence the kernel probes whether the peer is still there,
const TCP_KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
/// and goes on probing at this interval
const TCP_KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// until this many probes are lost; [`TCP_USER_TIMEOUT`] overrides this on Linux, where one lost probe is then enough.
const TCP_KEEPALIVE_PROBES: u32 = 3;
/// How long what was sent may stay unacknowledged, or the peer's window closed, before the kernel gives the peer up: at
/// most, since a request may have less [`Patience`].
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(30);

/// The pause after an accept that failed for want of file descriptors or memory, which would fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Such failures, and refusals of connections, are logged at most this often.
const ACCEPT_WARNING_INTERVAL: Duration = Duration::from_secs(1);

/// What answers the requests of all connections. It is cloned for each.
pub trait Application: Clone + Send + Sync + Unpin + 'static {
    /// Answers one request. The future is moved about with each: the smaller, the better.
    fn answer(self, request: Request) -> impl Future<Output = Response> + Send;

    /// Answers a request that two readers may take for two.
    fn refuse(self, _request: Request, _why: Malformed) -> Response {
        StatusCode::BAD_REQUEST.into_response()
    }
}

impl Application for Router {
    fn answer(mut self, request: Request) -> impl Future<Output = Response> + Send {
        self.call(request).map(|Ok(response)| response)
    }
}

/// How connections are served by [`serve`], and their limits.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// What makes connections secure; without it they are not.
    pub tls: Option<Tls>,
    /// How long after being accepted a connection may take over its TLS handshake.
    pub tls_handshake_timeout: Duration,
    /// How long after that, or after being accepted, a connection may take to deliver its first complete request head.
    pub first_request_timeout: Duration,
    /// How long a connection may be without a request in flight before it is closed. For HTTP/1, the next request's
    /// head must also be complete by then.
    pub idle_timeout: Duration,
    /// The most connections at a time, at least 1; further ones wait in the kernel's backlog.
    pub max_connections: usize,
    /// The most connections that one address may have at a time, or one network of IPv6; further ones are closed.
    pub max_connections_per_address: usize,
    /// The most concurrent requests on one HTTP/2 connection.
    pub max_h2_streams: u32,
    /// The most bytes of answers that wait in memory for their clients to read them. Beyond that, whoever has most is cut.
    pub max_unread_bytes: usize,
    /// How long a drain may take from its beginning; then the remaining connections are cut.
    pub drain_timeout: Duration,
    /// Where it is counted what becomes of connections.
    pub counts: Arc<Connections>,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            tls: None,
            tls_handshake_timeout: Duration::from_secs(10),
            first_request_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            max_connections: 10_000,
            max_connections_per_address: 5_000,
            max_h2_streams: 250,
            max_unread_bytes: 64 * 1024 * 1024,
            drain_timeout: Duration::from_secs(10),
            counts: Arc::default(),
        }
    }
}

/// Who is at the other end of a connection. Each request finds it among its extensions.
#[derive(Debug)]
pub struct Peer {
    /// Where it connects from: the last proxy, where there is one.
    pub address: SocketAddr,
    /// Whom the client certificate names that it has shown, if it has.
    pub subject: Option<Subject>,
    /// How long it may leave unacknowledged what was sent to it. A request may shorten that.
    pub patience: Patience,
}

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainOutcome {
    /// Connections that had not ended by themselves within [`ServerSettings::drain_timeout`].
    pub cut_connections: usize,
}

/// Serves `app` over HTTP/1.1 and HTTP/2 (by prior knowledge) on `listener` until `shutdown` is cancelled.
///
/// Then it drains and returns: at that point every connection is closed and no handler runs any more. When the
/// returned future is dropped instead, all connections are cut.
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
    server.accept_backlog(listener);

    server.phase.send_replace(Phase::Closing);
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

/// Where a server is in its life. It only moves forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing has been asked to end.
    Serving,
    /// New connections are still welcome; clients are told to close theirs.
    Draining,
    /// The listener is closed, and so is each connection as soon as no request is in flight on it.
    Closing,
    /// The drain has taken too long: connections end now, whatever they are doing.
    Cut,
}

/// A connection, who is at its other end, and that it counts among theirs.
type Accepted = (TcpStream, SocketAddr, Place);

struct Server<A> {
    app: A,
    settings: Arc<ServerSettings>,
    protocols: Arc<Protocols>,
    phase: watch::Sender<Phase>,
    permits: Arc<Semaphore>,
    addresses: Addresses,
    backlog: Arc<Backlog>,
    connections: TaskTracker,
    streams: TaskTracker,
    last_warning: Option<Instant>,
    /// Connections that were refused since the last line about them, and when that was.
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
            backlog: Backlog::new(settings.max_unread_bytes, Arc::clone(&settings.counts)),
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
            // The permit comes first: while there is none, new clients wait in the kernel's backlog, where they cost
            // neither a descriptor nor memory of ours.
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

    /// The next connection. Failures are waited out, since each of them passes.
    async fn accept(&mut self, listener: &TcpListener) -> Accepted {
        loop {
            match listener.accept().await {
                Ok((stream, address)) => match self.place(address.ip()) {
                    Some(place) => return (stream, address, place),
                    None => reset(&stream),
                },
                Err(error) if concerns_one_connection(&error) => debug!(%error, "a connection failed early"),
                Err(error) => {
                    let now = Instant::now();
                    if self.last_warning.is_none_or(|last| now - last >= ACCEPT_WARNING_INTERVAL) {
                        warn!(%error, "cannot accept connections");
                        self.last_warning = Some(now);
                    }
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// A place for one more connection of this address, unless it has as many as it may have.
    fn place(&mut self, address: IpAddr) -> Option<Place> {
        let most = self.settings.max_connections_per_address;
        let place = self.addresses.enter(address, most);
        if place.is_none() {
            self.settings.counts.refused.count(ConnectionRefused::AddressFull);
            let (refused, last) = &mut self.refused;
            *refused += 1;
            let now = Instant::now();
            if last.is_none_or(|last| now - last >= ACCEPT_WARNING_INTERVAL) {
                let address = network(address);
                warn!(%address, most, refused, "an address has its connections: more of them are closed at once");
                self.refused = (0, Some(now));
            }
        }
        place
    }

    /// Accepts what the kernel has already completed, then closes the listener.
    ///
    /// Those clients believe to be connected, and may have sent their request: closing the listener resets them. They
    /// are served without permits, as waiting for those could take the whole drain.
    fn accept_backlog(&mut self, listener: TcpListener) {
        // The bare socket, because tokio's only knows what its poller has seen so far.
        let listener = match listener.into_std() {
            Ok(listener) => listener,
            Err(error) => return debug!(%error, "cannot empty the backlog"),
        };
        for _ in 0..DRAIN_BACKLOG_CONNECTIONS {
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
                Err(error) => return warn!(%error, "cannot accept connections"),
            }
        }
    }

    fn spawn(&self, (stream, address, place): Accepted, permit: Option<OwnedSemaphorePermit>) {
        if let Err(error) = set_socket_options(&stream) {
            debug!(%error, "cannot set socket options");
        }
        // Subscribed to here and not in the task, so that no phase that follows can be missed.
        let mut phase = self.phase.subscribe();
        let (protocols, app) = (Arc::clone(&self.protocols), self.app.clone());
        let (settings, backlog) = (Arc::clone(&self.settings), Arc::clone(&self.backlog));
        let open = settings.counts.open();
        self.connections.spawn(async move {
            let patience = Patience::default();
            let stream = PatientStream::new(stream, patience.clone());
            let peer = |subject| Arc::new(Peer { address, subject, patience });
            match &settings.tls {
                None => {
                    serve_connection(stream, peer(None), &protocols, app, &settings, &backlog, phase).await;
                }
                // Boxed, so that connections without TLS do not carry the room for it.
                Some(tls) => {
                    let secure = async {
                        let shaken = shake_hands(stream, tls, &settings, &mut phase).await;
                        let Some((stream, subject)) = shaken else { return };
                        serve_connection(stream, peer(subject), &protocols, app, &settings, &backlog, phase)
                            .await;
                    };
                    Box::pin(secure).await;
                }
            }
            drop((open, place, permit));
        });
    }
}

/// Makes the kernel forget the connection at once: whoever is refused a thousand times a second must not leave as many
/// sockets behind that wait for their last packets.
fn reset(stream: &TcpStream) {
    if let Err(error) = SockRef::from(stream).set_linger(Some(Duration::ZERO)) {
        debug!(%error, "cannot set the linger time");
    }
}

fn set_socket_options(stream: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(stream);
    // Answers are small and complete: waiting for more to send only delays them.
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(TCP_KEEPALIVE_IDLE)
            .with_interval(TCP_KEEPALIVE_INTERVAL)
            .with_retries(TCP_KEEPALIVE_PROBES),
    )?;
    socket.set_tcp_user_timeout(Some(TCP_USER_TIMEOUT))
}

/// Whether an error of `accept` says something about the connection that it would have returned, and nothing about
/// the next one.
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
