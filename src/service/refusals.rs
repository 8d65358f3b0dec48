//! One refusal for all who ask for a lock at the same moment, where each is dear: a quorum asks most servers for it.
//!
//! While one asks, the others wait. Then one of those asks for all of them. So each who is told that the lock is held hears of a moment
//! after it has come, as if it had asked itself. If the lock is granted, or nothing is known, they are told nothing: each asks for
//! itself. Only requests whose tokens the gateway has made ask for each other: a token of the client's own may hold the lock, or may
//! have been released, which the answer to another one does not say.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::lock::{Acquired, LockKey, Refusal};
use crate::store::StoreError;

/// The locks that are asked for.
#[derive(Default)]
pub(super) struct SharedRefusals {
    /// For each of them those who have come since it was asked for.
    asked: Mutex<HashMap<LockKey, Vec<oneshot::Sender<Heard>>>>,
}

/// What one hears that waits.
enum Heard {
    Refused(Refusal),
    /// It is its turn to ask.
    Turn(Asking),
}

/// One that asks. Dropped, it lets another one ask.
struct Asking {
    refusals: Arc<SharedRefusals>,
    key: LockKey,
    /// Those for whom it asks, too.
    others: Vec<oneshot::Sender<Heard>>,
}

impl SharedRefusals {
    /// Asks for a lock by `ask`, or hears of the refusal of one that has asked since this was called.
    pub(super) async fn ask(
        self: &Arc<Self>,
        key: &LockKey,
        until: Instant,
        ask: impl Future<Output = Result<Acquired<Refusal>, StoreError>>,
    ) -> Result<Acquired<Refusal>, StoreError> {
        let mut asking = match self.enter(key) {
            Ok(asking) => asking,
            Err(heard) => match timeout_at(until, heard).await {
                Ok(Ok(Heard::Turn(asking))) => asking,
                Ok(Ok(Heard::Refused(refusal))) => return Ok(Acquired::NotTaken(refusal)),
                // The one that asked was granted the lock, or has left.
                Ok(Err(_)) => return ask.await,
                Err(_) => return Err(StoreError::Unavailable("other requests took all the time".to_owned())),
            },
        };
        let answer = ask.await;
        if let Ok(Acquired::NotTaken(refusal)) = &answer
            && refusal.holder.is_some()
        {
            for other in mem::take(&mut asking.others) {
                // It may have left.
                let _ = other.send(Heard::Refused(refusal.clone()));
            }
        }
        answer
    }

    fn enter(self: &Arc<Self>, key: &LockKey) -> Result<Asking, oneshot::Receiver<Heard>> {
        let mut asked = self.asked.lock();
        match asked.get_mut(key) {
            Some(waiting) => {
                let (tell, heard) = oneshot::channel();
                waiting.push(tell);
                Err(heard)
            }
            None => {
                asked.insert(key.clone(), Vec::new());
                Ok(Asking { refusals: self.clone(), key: key.clone(), others: Vec::new() })
            }
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let next = {
            let mut asked = self.refusals.asked.lock();
            let mut waiting = asked.get_mut(&self.key).map(mem::take).unwrap_or_default();
            waiting.retain(|other| !other.is_closed());
            if waiting.is_empty() {
                asked.remove(&self.key);
                return;
            }
            waiting
        };
        let mut others = next.into_iter();
        if let Some(first) = others.next() {
            let asking =
                Self { refusals: self.refusals.clone(), key: self.key.clone(), others: others.collect() };
            // If it has left just now, dropping this lets another one ask.
            drop(first.send(Heard::Turn(asking)));
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tokio::task::{JoinSet, yield_now};

    use super::*;
    use crate::lock::{FencingToken, Lease, Note};

    fn held() -> Acquired<Refusal> {
        let fencing_token = FencingToken::new(7).unwrap();
        let lease =
            Lease { fencing_token, left_ms: 1_000, note: Note::default(), is_released: false, slot: None };
        Acquired::NotTaken(Refusal { holder: Some(lease), ..Refusal::default() })
    }

    #[tokio::test]
    async fn one_asks_for_those_who_came_before_and_another_if_it_leaves() {
        let (refusals, key) = (Arc::<SharedRefusals>::default(), LockKey::parse(b"k").unwrap());
        let (until, times) = (Instant::now() + Duration::from_secs(10), Arc::new(AtomicUsize::new(0)));
        let (its_refusals, its_key) = (refusals.clone(), key.clone());
        let leaves = tokio::spawn(async move { its_refusals.ask(&its_key, until, pending()).await });
        yield_now().await;
        let mut others = JoinSet::new();
        for _ in 0..10 {
            let (refusals, key, times) = (refusals.clone(), key.clone(), times.clone());
            others.spawn(async move {
                let ask = async {
                    times.fetch_add(1, Ordering::Relaxed);
                    Ok(held())
                };
                refusals.ask(&key, until, ask).await.unwrap()
            });
        }
        yield_now().await;
        assert_eq!(times.load(Ordering::Relaxed), 0, "what the first is told was asked before they came");
        leaves.abort();
        assert!(others.join_all().await.iter().all(|answer| matches!(answer, Acquired::NotTaken(_))));
        assert_eq!(times.load(Ordering::Relaxed), 1);
        assert!(refusals.asked.lock().is_empty(), "it is forgotten who has asked");
    }

    #[tokio::test]
    async fn each_asks_for_itself_where_one_is_told_nothing_that_holds_for_others() {
        let (refusals, key) = (Arc::<SharedRefusals>::default(), LockKey::parse(b"k").unwrap());
        let until = Instant::now() + Duration::from_secs(10);
        let unknown = || Err(StoreError::Unknown("no answer came".to_owned()));
        let ask = |answer| {
            refusals.ask(&key, until, async {
                yield_now().await;
                answer
            })
        };
        let (first, second, third) = tokio::join!(ask(Ok(held())), ask(unknown()), ask(Ok(held())));
        assert!(first.is_ok() && second.is_err() && third.is_ok());
    }
}
