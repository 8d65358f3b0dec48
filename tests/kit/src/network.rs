//! A network between the service and its store that loses commands and answers, and delivers commands late.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fencepost::lock::{Acquired, Attempt, LockKey, Ttl};
use fencepost::store::{
    Bucket, Confirm, Enqueue, Hint, LastPoll, LockRequest, LockStore, Poll, Reply, Request, StoreError, Try,
};
use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::{Notify, broadcast};
use tokio::time::Instant;

use super::PATIENCE;

/// What happens to one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    None,
    /// The store never hears of it.
    Command,
    /// It certainly does not reach the store, and its sender knows.
    Refused,
    /// The store acts on it, and its answer is lost.
    Answer,
    /// Its sender waits no longer, and the store is given it when the test says so.
    Late,
    /// The store acts on it, and its sender waits for the answer until the test says so.
    HeldBack,
    /// The store acts on it, and its replicas do not. Only one who asks for a lock in the wait queue is told so.
    NotReplicated,
}

pub struct Network {
    store: Arc<dyn LockStore>,
    losses: Mutex<VecDeque<Loss>>,
    late: Mutex<Vec<BoxFuture<'static, ()>>>,
    held_back: Notify,
    outage: Mutex<Option<Loss>>,
    repeats_puts: AtomicBool,
    commands: AtomicU64,
}

impl Network {
    pub fn before(store: Arc<dyn LockStore>) -> Self {
        Self {
            store,
            losses: Mutex::default(),
            late: Mutex::default(),
            held_back: Notify::new(),
            outage: Mutex::default(),
            repeats_puts: AtomicBool::new(false),
            commands: AtomicU64::new(0),
        }
    }

    /// What happens to all commands from now on.
    pub fn lose_all(&self, loss: Loss) {
        *self.outage.lock().unwrap() = Some(loss);
    }

    pub fn works_again(&self) {
        *self.outage.lock().unwrap() = None;
    }

    /// From now on a proxy repeats each PUT, so that its acquire is followed by another one of the same token.
    pub fn repeat_puts(&self) {
        self.repeats_puts.store(true, Ordering::SeqCst);
    }

    /// How many commands were sent, lost ones included.
    pub fn commands(&self) -> u64 {
        self.commands.load(Ordering::SeqCst)
    }

    /// What happens to the next commands, one after the other.
    pub fn lose(&self, losses: &[Loss]) {
        self.losses.lock().unwrap().extend(losses);
    }

    /// How many losses have not happened yet.
    pub fn losses_left(&self) -> usize {
        self.losses.lock().unwrap().len()
    }

    /// Gives the store what is late; fails the test where nothing is.
    pub async fn deliver_late(&self) {
        let late = std::mem::take(&mut *self.late.lock().unwrap());
        assert!(!late.is_empty(), "nothing is late");
        for command in late {
            command.await;
        }
    }

    /// Brings the answers that are held back at this moment.
    pub fn bring_answers(&self) {
        self.held_back.notify_waiters();
    }

    async fn pass(&self, request: Request) -> Result<Reply, StoreError> {
        self.commands.fetch_add(1, Ordering::SeqCst);
        let outage = *self.outage.lock().unwrap();
        let loss = outage.or_else(|| self.losses.lock().unwrap().pop_front());
        let store = self.store.clone();
        let is_repeated = self.repeats_puts.load(Ordering::SeqCst);
        let step = async move {
            let answer = store.run(&request, later()).await?;
            if is_repeated && let Some(second) = repeated(&request) {
                // A lease that ends just then may leave the second one in doubt, and the proxy repeats it once more.
                if store.run(&second, later()).await.is_err()
                    && let Some(third) = repeated(&request)
                {
                    store.run(&third, later()).await?;
                }
            }
            Ok(answer)
        };
        match loss {
            None | Some(Loss::None) => step.await,
            Some(Loss::Refused) => Err(StoreError::Unavailable("the store is out of reach".into())),
            Some(Loss::Command) => Err(StoreError::Unknown("the command was lost".into())),
            Some(Loss::Answer) => {
                step.await?;
                Err(StoreError::Unknown("the answer was lost".into()))
            }
            Some(Loss::HeldBack) => {
                let answer = step.await;
                self.held_back.notified().await;
                answer
            }
            Some(Loss::NotReplicated) => step.await.map(not_replicated),
            Some(Loss::Late) => {
                self.late.lock().unwrap().push(Box::pin(async move { drop(step.await) }));
                Err(StoreError::Unknown("the command is late".into()))
            }
        }
    }
}

/// The sender's deadline is not the store's: what is late has outlived it.
fn later() -> Instant {
    Instant::now() + PATIENCE
}

fn not_replicated(reply: Reply) -> Reply {
    let (is_new, reason) = (true, "no replica has it".to_owned());
    match reply {
        Reply::Enqueue(Acquired::Granted(_)) => Reply::Enqueue(Acquired::NotReplicated { is_new, reason }),
        Reply::Poll(Acquired::Granted(_)) => Reply::Poll(Acquired::NotReplicated { is_new, reason }),
        other => other,
    }
}

/// What a proxy that repeats a PUT makes of it: another one of the same token, with an attempt of its own.
fn repeated(request: &Request) -> Option<Request> {
    let mut copy = request.clone();
    let (Request::Try(Try(lock))
    | Request::Confirm(Confirm(lock))
    | Request::Poll(Poll(lock))
    | Request::Enqueue(Enqueue { lock, .. })
    | Request::LastPoll(LastPoll { lock, .. })) = &mut copy
    else {
        return None;
    };
    let ttl = Ttl::from_ms(30_000).unwrap();
    *lock = LockRequest { attempt: Attempt::generate(), ttl, ..lock.clone() };
    Some(copy)
}

impl LockStore for Network {
    fn run<'a>(&'a self, request: &'a Request, _: Instant) -> BoxFuture<'a, Result<Reply, StoreError>> {
        self.pass(request.clone()).boxed()
    }

    fn bucket_of(&self, key: &LockKey) -> Bucket {
        self.store.bucket_of(key)
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.store.hints()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.store.close()
    }
}
