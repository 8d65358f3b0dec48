//! Two clients that take one lock in turn, and how long each waits for it after the other has begun to give it back.

use std::mem;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::crowd::waiters;
use crate::shared::connection::Connection;

/// How a lock is asked for, and how many others hold it all the while.
pub struct Lock {
    key: &'static str,
    query: &'static str,
    others: usize,
}

/// One has it at a time.
pub const EXCLUSIVE: Lock = Lock { key: "in-turn", query: "?ttl=1h", others: 0 };
/// The last of its slots changes hands.
pub const SLOT: Lock = Lock { key: "slot-in-turn", query: "?ttl=1h&slots=4", others: 3 };

/// How often those ask who do not wait in line.
const POLL_EVERY: Duration = Duration::from_millis(50);

pub struct Pair {
    lock: &'static Lock,
    holder: Connection,
    /// Nobody has it while it waits.
    next: Option<Connection>,
    observer: Connection,
}

/// One who waits for the lock: when it was granted, and over which connection.
type Waiting = JoinHandle<Result<(Instant, Connection), String>>;

impl Pair {
    pub async fn open(address: SocketAddr, lock: &'static Lock) -> Result<Self, String> {
        for _ in 0..lock.others {
            Self::hold(address, lock).await?;
        }
        let holder = Self::hold(address, lock).await?;
        let (next, observer) = (Connection::open(address).await?, Connection::open(address).await?);
        Ok(Self { lock, holder, next: Some(next), observer })
    }

    async fn hold(address: SocketAddr, Lock { key, query, .. }: &Lock) -> Result<Connection, String> {
        let mut connection = Connection::open(address).await?;
        let is_held = connection.acquire(key, query).await?;
        if is_held { Ok(connection) } else { Err(format!("{key}: a fresh key is held")) }
    }

    /// From just before the holder's DELETE is sent until the next one has read its 201, in nanoseconds.
    pub async fn hand_off_in_line(&mut self) -> Result<u64, String> {
        let mut next = self.next.take().expect("nobody waits yet");
        let Lock { key, query, .. } = self.lock;
        let waiting = tokio::spawn(async move {
            match next.acquire(key, &format!("{query}&wait=30s")).await? {
                true => Ok((Instant::now(), next)),
                false => Err("the wait was over before the lock was free".to_owned()),
            }
        });
        while waiters(&mut self.observer, key).await? == 0 {}
        self.finish(waiting).await
    }

    /// The same where the next one does not wait in line, but asks again and again.
    pub async fn hand_off_by_polling(&mut self) -> Result<u64, String> {
        let mut next = self.next.take().expect("nobody waits yet");
        let Lock { key, query, .. } = self.lock;
        let (refused, was_refused) = oneshot::channel();
        let waiting = tokio::spawn(async move {
            let mut refused = Some(refused);
            while !next.acquire(key, query).await? {
                // The first refusal is what is waited for.
                let _ = refused.take().map(|refused| refused.send(()));
                sleep(POLL_EVERY).await;
            }
            Ok((Instant::now(), next))
        });
        was_refused.await.map_err(|_| "the lock was free before it was given back".to_owned())?;
        // Locks are given back at any time, whenever the others ask.
        sleep(POLL_EVERY.mul_f64(rand::random())).await;
        self.finish(waiting).await
    }

    async fn finish(&mut self, waiting: Waiting) -> Result<u64, String> {
        let started = Instant::now();
        self.holder.release(self.lock.key).await?;
        let (granted, next) = waiting.await.expect("the client does not panic")?;
        self.next = Some(mem::replace(&mut self.holder, next));
        Ok(u64::try_from((granted - started).as_nanos()).unwrap())
    }
}
