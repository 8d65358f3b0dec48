//! Gateways that can be killed: each is a service in a runtime of its own, before a store that outlives it.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost::clock::{SystemClock, boottime};
use fencepost::lock::{Inspected, Lease, LeaseToken, LockKey, Released};
use fencepost::service::{AcquireRequest, LockService, NotAcquired, Outcome};
use fencepost::store::embedded::{EmbeddedSettings, EmbeddedStore};
use fencepost::store::redis::{RedisAddress, RedisSettings, RedisStore};
use fencepost::store::{LineSettings, LockStore, StoreError};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::faults::{STALL, Weather};
use super::wire::{ASKED, Asked, Wire};
use super::{MARK_TTL, PREFIX, TICKET_TTL};
use kit::RedisServer;

/// How long a request may take at the store.
const STORE_TIMEOUT: Duration = Duration::from_secs(3);
/// How much later than it should an answer may come on a busy machine.
const SLACK: Duration = Duration::from_secs(15);
/// Between two looks at whether a runtime still runs.
const GLANCE: Duration = Duration::from_millis(50);

const FORGET: &str = "
for _, kind in ipairs({ 'seats', 'line', 'away', 'due', 'gates' }) do
    for _, name in ipairs(redis.call('KEYS', ARGV[1] .. ':{0}:' .. kind .. '*')) do redis.call('DEL', name) end
end";

/// What became of a request.
#[derive(Clone, Debug)]
pub enum Answer {
    Granted(LeaseToken, Lease),
    AlreadyHeld(LeaseToken, Lease),
    Refused,
    TooManyWaiters,
    ShuttingDown,
    TokenReleased,
    Failed(StoreError),
    /// The client hung up before it was answered.
    HungUp,
    /// The gateway was killed before it answered.
    Lost,
    /// It hangs.
    Never,
}

/// Where the locks are.
#[derive(Clone)]
pub enum Base {
    Redis(Arc<RedisServer>),
    Memory,
    /// With a file, what was granted outlives the gateway.
    File(PathBuf),
}

struct Gateway {
    store: Arc<dyn LockStore>,
    service: Arc<LockService>,
    handle: Handle,
    runtime: Mutex<Option<Runtime>>,
}

/// The gateways of a round.
pub struct Fleet {
    base: Base,
    weather: Arc<Weather>,
    gateways: Vec<Mutex<Arc<Gateway>>>,
}

impl Base {
    fn open(&self) -> Arc<dyn LockStore> {
        let line = LineSettings { ticket_ttl: TICKET_TTL, ..LineSettings::default() };
        let settings = EmbeddedSettings { mark_ttl: MARK_TTL, line, ..EmbeddedSettings::default() };
        match self {
            Self::Redis(server) => {
                let address = RedisAddress::parse(server.url(), None).unwrap();
                let (prefix, reply_timeout) = (PREFIX.to_owned(), STORE_TIMEOUT / 2);
                let mark_ttl = MARK_TTL;
                let settings =
                    RedisSettings { prefix, reply_timeout, mark_ttl, line, ..RedisSettings::default() };
                Arc::new(RedisStore::start(&address, &settings).unwrap())
            }
            Self::Memory => Arc::new(EmbeddedStore::in_memory(settings, Arc::new(SystemClock)).unwrap()),
            Self::File(path) => Arc::new(EmbeddedStore::open(path, settings, Arc::new(SystemClock)).unwrap()),
        }
    }
}

impl Gateway {
    fn start(base: &Base, name: String, weather: Arc<Weather>) -> Arc<Self> {
        let store = base.open();
        let wire = Wire::before(store.clone(), name, weather.clone());
        let service = Arc::new(LockService::new(Arc::new(wire), STORE_TIMEOUT, MARK_TTL));
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let handle = runtime.handle().clone();
        handle.spawn(async move {
            loop {
                let before = boottime();
                sleep(GLANCE).await;
                let after = boottime();
                if after - before > GLANCE + STALL {
                    weather.stalled(before, after);
                }
            }
        });
        Arc::new(Self { store, service, handle, runtime: Mutex::new(Some(runtime)) })
    }

    /// Nothing that the gateway would still have done is done.
    fn kill(&self) {
        if let Some(runtime) = self.runtime.lock().unwrap().take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Fleet {
    pub fn start(base: Base, weather: Arc<Weather>) -> Self {
        let count = if matches!(base, Base::Redis(_)) { 2 } else { 1 };
        let start = |number| Mutex::new(Gateway::start(&base, format!("G{number}"), weather.clone()));
        let gateways = (0..count).map(start).collect();
        Self { base, weather, gateways }
    }

    pub fn size(&self) -> usize {
        self.gateways.len()
    }

    /// Kills a gateway, after telling it or not, and after a while has another one in its stead.
    pub async fn replace(&self, number: usize, warned_before: Option<Duration>, pause: Duration) {
        let gateway = self.gateway(number);
        if let Some(before) = warned_before {
            gateway.service.stop_waiting();
            sleep(before).await;
        }
        gateway.kill();
        self.weather.note_for_all(&format!("G{number} was killed"));
        sleep(pause).await;
        let store = gateway.store.clone();
        if matches!(self.base, Base::File(_)) {
            store.close().await;
        } else {
            // What it had sent may still arrive.
            self.weather.outlive(async move { store.close().await });
        }
        let successor = Gateway::start(&self.base, format!("G{number}'"), self.weather.clone());
        *self.gateways[number].lock().unwrap() = successor;
    }

    /// Closes the connections of all gateways, where there are any.
    pub async fn cut(&self) {
        if let Base::Redis(server) = &self.base {
            let _: i64 = server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
            self.weather.note_for_all("the connections were cut");
        }
    }

    /// Has the server lose what it knows of lines and of gateways.
    pub async fn forget(&self) {
        if let Base::Redis(server) = &self.base {
            let _: Option<String> = server.command(&["EVAL", FORGET, "0", PREFIX]).await;
            self.weather.note_for_all("the lines were lost");
        }
    }

    /// Asks for the lock, and perhaps hangs up after a while.
    pub async fn put(
        &self,
        gateway: usize,
        wish: AcquireRequest,
        hangs_up_after: Option<Duration>,
    ) -> (Answer, Asked) {
        let patience = wish.wait + STORE_TIMEOUT + SLACK;
        // Chosen once: between two looks it may be killed and another stand in its place.
        let gateway = self.gateway(gateway);
        let service = gateway.service.clone();
        let (reply, mut answer) = oneshot::channel();
        let (hang_up, hung_up) = oneshot::channel();
        let request = async move {
            let outcome = tokio::select! {
                biased;
                Ok(()) = hung_up => return,
                outcome = service.acquire(wish) => outcome,
            };
            let answer = match outcome {
                Ok(acquisition) => match acquisition.outcome {
                    Outcome::Granted(lease, guard, ..) => {
                        guard.disarm();
                        Answer::Granted(acquisition.token, lease)
                    }
                    Outcome::AlreadyHeld(lease, ..) => Answer::AlreadyHeld(acquisition.token, lease),
                    Outcome::NotTaken(NotAcquired::NotReplicated(reason)) => {
                        panic!("no replica was asked for: {reason}")
                    }
                    Outcome::NotTaken(NotAcquired::Refused(_)) => Answer::Refused,
                    Outcome::NotTaken(NotAcquired::TooManyWaiters) => Answer::TooManyWaiters,
                    Outcome::NotTaken(NotAcquired::TooManyLocks) => panic!("nobody counts"),
                    Outcome::NotTaken(why @ (NotAcquired::HeldOtherwise(_) | NotAcquired::NotShared(_))) => {
                        panic!("nobody shares: {why:?}")
                    }
                    Outcome::NotTaken(NotAcquired::ShuttingDown) => Answer::ShuttingDown,
                    Outcome::NotTaken(NotAcquired::TokenReleased) => Answer::TokenReleased,
                },
                Err(error) => Answer::Failed(error),
            };
            let _ = reply.send((answer, ASKED.get().get()));
        };
        gateway.handle.spawn(ASKED.scope(Cell::default(), request));
        let mut unanswered = Answer::Lost;
        let outcome = async {
            if let Some(after) = hangs_up_after {
                if let Ok(answered) = timeout(after, &mut answer).await {
                    return answered;
                }
                unanswered = Answer::HungUp;
                let _ = hang_up.send(());
            }
            // Who hangs up just when the answer comes has been answered.
            answer.await
        };
        match timeout(patience, outcome).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => (unanswered, Asked::default()),
            Err(_) => (Answer::Never, Asked::default()),
        }
    }

    /// `None` where the gateway was killed before it answered.
    pub async fn release(
        &self,
        gateway: usize,
        key: LockKey,
        token: LeaseToken,
    ) -> Option<Result<Released, StoreError>> {
        let gateway = self.gateway(gateway);
        let service = gateway.service.clone();
        let answer = gateway.handle.spawn(async move { service.release(&key, &token).await });
        timeout(STORE_TIMEOUT + SLACK, answer).await.expect("a release hangs").ok()
    }

    /// What a stranger sees.
    pub async fn look(&self, key: LockKey) -> Result<Inspected, StoreError> {
        self.gateway(0).service.inspect(&key, None).await
    }

    fn gateway(&self, number: usize) -> Arc<Gateway> {
        self.gateways[number % self.gateways.len()].lock().unwrap().clone()
    }
}
