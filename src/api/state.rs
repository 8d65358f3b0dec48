//! What the handlers share: the service, the settings of the application, and the limit on connections that are kept
//! for long.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::Version;
use futures_util::FutureExt;
use futures_util::future::{self, BoxFuture, WeakShared};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::admission::Admission;
use super::context::RequestContext;
use super::problem::{Problem, ProblemType};
use super::result_room::{ResultRoom, RoomTaken};
use crate::access::{Caller, Keyring, Permit, Shares};
use crate::audit::Audit;
use crate::lock::{LockKey, Slots};
use crate::service::{Account, LockService};

/// A gateway that is not ready logs the reasons at most this often.
const UNREADY_INTERVAL: Duration = Duration::from_secs(1);

/// So much time a text of the metrics leaves to all others. Those who ask meanwhile share it.
const PAUSE_BEFORE_METRICS: Duration = Duration::from_millis(5);

/// The shortest lease of several locks at once, unless the longest one is shorter.
const SHORTEST_TTL_OF_SEVERAL: Duration = Duration::from_secs(1);

/// What the handlers share.
#[derive(Clone)]
pub struct AppState(Arc<Shared>);

struct Shared {
    app: App,
    /// One permit for each request over HTTP/1 that may keep its connection.
    http1_places: Arc<Semaphore>,
    result_room: Arc<ResultRoom>,
    /// Why the gateway was not ready, as it was last logged, and when.
    unready: Mutex<Option<(String, Instant)>>,
    /// The text of the metrics that is made next, if somebody waits for it.
    next_metrics: Mutex<Option<WeakShared<BoxFuture<'static, Bytes>>>>,
}

/// What [`AppState::see_through`] does. Dropped before its end, it goes on in the background.
#[must_use = "it begins where it is awaited"]
pub(super) struct SeenThrough<T: 'static> {
    work: Option<BoxFuture<'static, T>>,
    /// On whose account it goes on.
    account: Option<Account>,
    app: AppState,
}

impl<T> Future for SeenThrough<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // It is taken out, so that what panics does not go on.
        let Some(mut work) = self.work.take() else { return Poll::Pending };
        let polled = work.as_mut().poll(context);
        if polled.is_pending() {
            self.work = Some(work);
        }
        polled
    }
}

impl<T> Drop for SeenThrough<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.app.service.go_on_without_client(self.account.take(), work.map(drop));
        }
    }
}

/// The permission for a request to keep its connection for long. Over HTTP/2, many requests share a connection, so they
/// are not counted.
pub(super) struct ConnectionPlace {
    _permits: Option<(Permit, OwnedSemaphorePermit)>,
}

/// The contents of [`AppState`].
pub struct App {
    /// The operations on locks.
    pub service: LockService,
    /// What callers may ask for.
    pub limits: Limits,
    /// Which pages may talk to the gateway from a browser.
    pub admission: Admission,
    /// Whether the metrics are served here, and not at an address of their own.
    pub serves_metrics: bool,
    /// The keys that callers show; `None` if no key is needed.
    pub keyring: Option<Arc<Keyring>>,
    /// The audit log.
    pub audit: Arc<Audit>,
    /// Canceled when the server begins to drain.
    pub draining: CancellationToken,
    /// Which protocols of other tools are spoken.
    pub facades: Facades,
}

/// The lease of tools that never renew one.
pub const NEVER_RENEWED_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// The protocols of other tools: which of them are spoken.
#[derive(Clone, Debug, Default)]
pub struct Facades {
    /// That of Terraform's and OpenTofu's `http` backend.
    pub terraform: bool,
    /// That of Dapr's locks.
    pub dapr: bool,
    /// That of FleetLock, with its groups.
    pub fleet_lock: Vec<RebootGroup>,
}

/// Machines of which only so many may reboot at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebootGroup {
    /// What it is called.
    pub name: String,
    /// How many.
    pub slots: Slots,
}

impl RebootGroup {
    /// The most slots of a group: those who hold a lock by more are not all named.
    const MOST_SLOTS: u16 = 100;
    /// The longest name: it is a part of the key of the group's lock.
    const MOST_CHARS: usize = 200;

    /// Reads `NAME=SLOTS`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let is_named =
            |name: &&str| (1..=Self::MOST_CHARS).contains(&name.len()) && name.bytes().all(is_of_group_name);
        let parsed = text.split_once('=').filter(|(name, _)| is_named(name)).and_then(|(name, slots)| {
            let slots = Slots::parse(slots.as_bytes()).filter(|slots| slots.get() <= Self::MOST_SLOTS)?;
            Some(Self { name: name.to_owned(), slots })
        });
        parsed.ok_or_else(|| {
            "write a group and its slots, 1 to 100, such as default=1; a name has A-Z a-z 0-9 . -".into()
        })
    }
}

fn is_of_group_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-')
}

/// What callers may ask for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The lease of a request that names none.
    pub default_ttl: Duration,
    /// The shortest lease.
    pub min_ttl: Duration,
    /// The longest lease.
    pub max_ttl: Duration,
    /// Whether the API key makes it shorter than the gateway does.
    pub is_max_ttl_of_key: bool,
    /// The longest wait.
    pub max_wait: Duration,
    /// The most requests over HTTP/1 that may wait, hold a lock, or watch. Each of them keeps a connection.
    pub max_http1_waiters: usize,
    /// The limits of a key for which the keys file names none.
    pub shares: Shares,
    /// The `max_hold` of a lock that a connection holds, if the request names none.
    pub default_max_hold: Duration,
    /// The longest result of a piece of work, in bytes.
    pub max_result_bytes: usize,
}

impl Limits {
    /// With leases of at most this length.
    pub(super) fn lowered_to(&self, max_ttl: Option<Duration>) -> Self {
        let max_ttl = max_ttl.map_or(self.max_ttl, |max_ttl| max_ttl.clamp(self.min_ttl, self.max_ttl));
        let is_max_ttl_of_key = max_ttl < self.max_ttl;
        Self { max_ttl, is_max_ttl_of_key, default_ttl: self.default_ttl.min(max_ttl), ..*self }
    }

    /// For several locks at once, whose leases must last for as long as it may take to lengthen them.
    pub(super) fn of_several(&self) -> Self {
        let min_ttl = self.min_ttl.max(SHORTEST_TTL_OF_SEVERAL).min(self.max_ttl);
        Self { min_ttl, default_ttl: self.default_ttl.max(min_ttl), ..*self }
    }
}

impl AppState {
    /// Shares the application among the handlers.
    pub fn new(app: App) -> Self {
        let most = app.limits.max_http1_waiters.min(Semaphore::MAX_PERMITS);
        let http1_places = Arc::new(Semaphore::new(most));
        Self(Arc::new(Shared {
            app,
            http1_places,
            result_room: Arc::default(),
            unready: Mutex::default(),
            next_metrics: Mutex::default(),
        }))
    }

    /// Logs why the gateway is not ready, unless this reason was logged lately: probes may ask often.
    pub(super) fn tell_unready(&self, reason: &str) {
        let mut told = self.0.unready.lock();
        let is_due =
            told.as_ref().is_none_or(|(known, at)| known != reason && at.elapsed() >= UNREADY_INTERVAL);
        if is_due {
            tracing::warn!(reason, "the gateway is not ready");
            *told = Some((reason.to_owned(), Instant::now()));
        }
    }

    /// The gateway is ready: the next reason why it is not is logged again.
    pub(super) fn ready_again(&self) {
        *self.0.unready.lock() = None;
    }

    /// The text of the metrics, as `made` after this was called. It takes as long as many requests for locks, and as much memory. So
    /// there is one for all who ask before it is begun.
    pub(super) fn next_metrics(
        &self,
        made: impl Future<Output = Bytes> + Send + 'static,
    ) -> future::Shared<BoxFuture<'static, Bytes>> {
        let mut next = self.0.next_metrics.lock();
        next.as_ref().and_then(WeakShared::upgrade).unwrap_or_else(|| {
            let app = self.clone();
            let text = async move {
                sleep(PAUSE_BEFORE_METRICS).await;
                *app.0.next_metrics.lock() = None;
                made.await
            };
            let text = text.boxed().shared();
            *next = text.downgrade();
            text
        })
    }

    /// Does something that a client has asked for to its end, even if the client leaves before. A client that has sent a `DELETE` and
    /// left relies on it, and the store may need several steps for one. Requests that take a lock or wait end with their client.
    pub(super) fn see_through<T: 'static>(
        &self,
        account: Option<Account>,
        work: impl Future<Output = T> + Send + 'static,
    ) -> SeenThrough<T> {
        SeenThrough { work: Some(work.boxed()), account, app: self.clone() }
    }

    /// Refuses before anything else happens what the store cannot do.
    pub(super) fn needs_records(&self, key: Option<&LockKey>) -> Result<(), Problem> {
        let why = self.service.keeps_no_records(key);
        why.map_or(Ok(()), |why| Err(Problem::new(ProblemType::OnceUnsupported, why)))
    }

    /// Room for a result, or another body, that is about to arrive: of the API key that sends it, or else of its network.
    pub(super) fn room_for_body(&self, caller: &Caller, context: &RequestContext) -> RoomTaken {
        let network = || context.peer().map(|peer| peer.network().to_string());
        let who = caller.id().map(str::to_owned).or_else(network);
        self.0.result_room.enter(who.unwrap_or_default())
    }

    /// Lets a request keep its connection, unless too few would be left for others. The key has a limit, and so has the
    /// server.
    pub(super) fn keep_connection(
        &self,
        version: Version,
        caller: &Caller,
        too_many_of_key: fn() -> Problem,
        too_many: fn() -> Problem,
    ) -> Result<ConnectionPlace, Problem> {
        if version > Version::HTTP_11 {
            return Ok(ConnectionPlace { _permits: None });
        }
        let of_key = caller.keep_connection(&self.limits.shares).ok_or_else(too_many_of_key)?;
        let of_server = self.0.http1_places.clone().try_acquire_owned().map_err(|_| too_many())?;
        Ok(ConnectionPlace { _permits: Some((of_key, of_server)) })
    }
}

impl std::ops::Deref for AppState {
    type Target = App;

    fn deref(&self) -> &App {
        &self.0.app
    }
}
