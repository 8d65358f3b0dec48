//! Two clients that take one lock in turn, and how long each waits for it after the other has begun to give it back.

use std::mem;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::crowd::waiters;
use crate::shared::connection::Connection;

const KEY: &str = "in-turn";
/// How often those ask who do not wait in line.
const POLL_EVERY: Duration = Duration::from_millis(50);

pub struct Pair {
    holder: Connection,
    /// Nobody has it while it waits.
    next: Option<Connection>,
    observer: Connection,
}

/// One who waits for the lock: when it was granted, and over which connection.
type Waiting = JoinHandle<Result<(Instant, Connection), String>>;

impl Pair {
    pub async fn open(address: SocketAddr) -> Result<Self, String> {
        let mut holder = Connection::open(address).await?;
        if !holder.acquire(KEY, "").await? {
            return Err(format!("{KEY}: a fresh key is held"));
        }
        let (next, observer) = (Connection::open(address).await?, Connection::open(address).await?);
        Ok(Self { holder, next: Some(next), observer })
    }

    /// From just before the holder's DELETE is sent until the next one has read its 201, in nanoseconds.
    pub async fn hand_off_in_line(&mut self) -> Result<u64, String> {
        let mut next = self.next.take().expect("nobody waits yet");
        let waiting = tokio::spawn(async move {
            match next.acquire(KEY, "?wait=30s").await? {
                true => Ok((Instant::now(), next)),
                false => Err("the wait was over before the lock was free".to_owned()),
            }
        });
        while waiters(&mut self.observer, KEY).await? == 0 {}
        self.finish(waiting).await
    }

    /// The same where the next one does not wait in line, but asks again and again.
    pub async fn hand_off_by_polling(&mut self) -> Result<u64, String> {
        let mut next = self.next.take().expect("nobody waits yet");
        let (refused, was_refused) = oneshot::channel();
        let waiting = tokio::spawn(async move {
            let mut refused = Some(refused);
            while !next.acquire(KEY, "").await? {
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
        self.holder.release(KEY).await?;
        let (granted, next) = waiting.await.expect("the client does not panic")?;
        self.next = Some(mem::replace(&mut self.holder, next));
        Ok(u64::try_from((granted - started).as_nanos()).unwrap())
    }
}
