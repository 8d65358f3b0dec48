//! The way between a gateway and its store: it notes all that passes, loses some of it, and delivers some of it late.

use std::cell::Cell;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencepost::clock::boottime;
use fencepost::lock::{
    Acquired, Attempt, Broken, FencingToken, Inspected, LockKey, Page, Reach, Release, Renewed, TokenHash,
    Ttl, Undone,
};
use fencepost::store::{
    AcquireRequest, Beat, Bucket, Hint, KnownTo, LockStore, PlaceAfter, ReleaseMark, Renewer, StoreError,
};
use rand::RngExt;
use tokio::runtime::Handle;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time::{Instant, sleep};

use super::faults::{Fate, LATEST_MS, STALL, Weather};
use crate::support::PATIENCE;

/// What a request's commands did, for the judge.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// When the first was sent.
    pub first_sent: Option<Duration>,
    /// When an answer first said that it stands in line.
    pub in_line_since: Option<Duration>,
    /// When the last one was sent, and answered.
    pub sent: Duration,
    pub answered: Duration,
}

tokio::task_local! {
    /// Of the request whose task this is.
    pub static ASKED: Cell<Asked>;
}

/// The way between one gateway and the store.
pub struct Wire {
    store: Arc<dyn LockStore>,
    name: String,
    weather: Arc<Weather>,
    hints: broadcast::Sender<Hint>,
    /// Runs what goes on without its sender, who may have been killed.
    beyond: Handle,
}

impl Wire {
    /// To be called in a runtime that outlives the gateway.
    pub fn before(store: Arc<dyn LockStore>, name: String, weather: Arc<Weather>) -> Self {
        let hints = broadcast::Sender::new(4_096);
        tokio::spawn(carry_hints(store.hints(), hints.clone(), name.clone(), weather.clone()));
        Self { store, name, weather, hints, beyond: Handle::current() }
    }

    async fn pass<T, F>(
        &self,
        key: Option<&LockKey>,
        what: impl FnOnce() -> String,
        deadline: Instant,
        command: impl FnOnce(Arc<dyn LockStore>, Instant) -> F,
    ) -> Result<T, StoreError>
    where
        T: Debug + Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let tape = self.weather.tape(key);
        let fate = self.weather.draw(&tape, Fate::draw).unwrap_or(Fate::Pass);
        // What was lost on the way is not late for its sender's deadline.
        let until = if fate == Fate::Pass { deadline } else { Instant::now() + PATIENCE };
        let step = command(self.store.clone(), until);
        let what = format!("{} {}", self.name, what());
        let sent = boottime();
        let noted = {
            let (tape, what) = (tape.clone(), what.clone());
            async move {
                let answer = step.await;
                tape.note(sent, format!("{what} -> {answer:?} at +{:?} {fate:?}", boottime() - sent));
                answer
            }
        };
        let unknown = |reason: &str| Err(StoreError::Unknown(reason.into()));
        let answer = match fate {
            Fate::Pass => noted.await,
            Fate::Slow { before_ms, after_ms } => {
                let answer = self.weather.under_way.spawn_on(
                    async move {
                        sleep(Duration::from_millis(before_ms)).await;
                        let answer = noted.await;
                        sleep(Duration::from_millis(after_ms)).await;
                        answer
                    },
                    &self.beyond,
                );
                answer.await.unwrap_or_else(|_| unknown("the test has ended"))
            }
            Fate::Lost => unknown("the command was lost"),
            Fate::Refused => Err(StoreError::Unavailable("the store is out of reach".into())),
            Fate::AnswerLost => noted.await.and_then(|_| unknown("the answer was lost")),
            Fate::Late { by_ms } => {
                let late = async move {
                    sleep(Duration::from_millis(by_ms)).await;
                    drop(noted.await);
                };
                self.weather.under_way.spawn_on(late, &self.beyond);
                unknown("the command is late")
            }
        };
        let answered = boottime();
        if matches!(fate, Fate::Lost | Fate::Refused | Fate::Late { .. }) {
            tape.note(sent, format!("{what} {fate:?}"));
        } else if fate == Fate::Pass && answered - sent > STALL {
            self.weather.stalled(sent, answered);
        }
        answer
    }
}

async fn carry_hints(
    mut from: broadcast::Receiver<Hint>,
    to: broadcast::Sender<Hint>,
    name: String,
    weather: Arc<Weather>,
) {
    loop {
        let hint = match from.recv().await {
            Ok(hint) => hint,
            Err(RecvError::Lagged(_)) => continue,
            Err(RecvError::Closed) => return,
        };
        let (Hint::Offered(key, ..) | Hint::Look(key, _) | Hint::Due(key, _)) = &hint;
        let tape = weather.tape(Some(key));
        let late_by_ms = weather.draw(&tape, |random, faults| {
            let is_lost = random.random_bool(faults.hint_is_lost);
            let is_late = random.random_bool(faults.hint_is_late);
            let by_ms = if is_late { random.random_range(0..LATEST_MS) } else { 0 };
            (!is_lost).then_some(by_ms)
        });
        tape.note(boottime(), format!("{name} {} late by {late_by_ms:?}", name_of(&hint)));
        // Nobody listens where the gateway was killed, or nobody has waited yet.
        match late_by_ms.unwrap_or(Some(0)) {
            None => {}
            Some(0) => drop(to.send(hint)),
            Some(by_ms) => {
                let to = to.clone();
                weather.under_way.spawn(async move {
                    sleep(Duration::from_millis(by_ms)).await;
                    drop(to.send(hint));
                });
            }
        }
    }
}

fn short(name: &impl ToString) -> String {
    name.to_string().chars().take(6).collect()
}

fn name_of(hint: &Hint) -> String {
    match hint {
        Hint::Offered(_, token, attempt) => format!("hint: offered to {}/{}", short(token), short(attempt)),
        Hint::Look(_, attempt) => format!("hint: look {}", short(attempt)),
        Hint::Due(_, in_ms) => format!("hint: due in {in_ms} ms"),
    }
}

#[async_trait]
impl LockStore for Wire {
    async fn acquire(&self, request: &AcquireRequest, deadline: Instant) -> Result<Acquired, StoreError> {
        let sent = boottime();
        let request = request.clone();
        let (key, token, attempt) = (request.key.clone(), short(&request.token), short(&request.attempt));
        let what = || format!("{token}/{attempt} {:?}", request.intent);
        let sent_request = request.clone();
        let send =
            |store: Arc<dyn LockStore>, until| async move { store.acquire(&sent_request, until).await };
        let answer = self.pass(Some(&key), what, deadline, send).await;
        let answered = boottime();
        // Commands of the background belong to no request.
        let _ = ASKED.try_with(|asked| {
            let mut note = asked.get();
            note.first_sent.get_or_insert(sent);
            if matches!(answer, Ok(Acquired::InLine(_))) {
                note.in_line_since.get_or_insert(answered);
            }
            asked.set(Asked { sent, answered, ..note });
        });
        answer
    }

    async fn renew(
        &self,
        key: &LockKey,
        token: &TokenHash,
        ttl: Ttl,
        by: Renewer,
        deadline: Instant,
    ) -> Result<Renewed, StoreError> {
        self.store.renew(key, token, ttl, by, deadline).await
    }

    async fn release(
        &self,
        key: &LockKey,
        token: &TokenHash,
        mark: ReleaseMark,
        deadline: Instant,
    ) -> Result<Release, StoreError> {
        let (sought, token) = (key.clone(), *token);
        let send = |store: Arc<dyn LockStore>, until| async move {
            store.release(&sought, &token, mark, until).await
        };
        self.pass(Some(key), || format!("{} release {mark:?}", short(&token)), deadline, send).await
    }

    async fn take_back(
        &self,
        key: &LockKey,
        token: &TokenHash,
        attempt: Attempt,
        place: PlaceAfter,
        known: KnownTo,
        deadline: Instant,
    ) -> Result<Undone, StoreError> {
        let (sought, token) = (key.clone(), *token);
        let what = || format!("{}/{} take back, place {place:?}", short(&token), short(&attempt));
        let send = |store: Arc<dyn LockStore>, until| async move {
            store.take_back(&sought, &token, attempt, place, known, until).await
        };
        self.pass(Some(key), what, deadline, send).await
    }

    async fn decline(
        &self,
        key: &LockKey,
        token: &TokenHash,
        attempt: Attempt,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let (sought, token) = (key.clone(), *token);
        let what = || format!("{}/{} decline", short(&token), short(&attempt));
        let send = |store: Arc<dyn LockStore>, until| async move {
            store.decline(&sought, &token, attempt, until).await
        };
        self.pass(Some(key), what, deadline, send).await
    }

    fn bucket_of(&self, key: &LockKey) -> Bucket {
        self.store.bucket_of(key)
    }

    async fn beat(&self, bucket: Bucket, deadline: Instant) -> Result<Beat, StoreError> {
        let send = |store: Arc<dyn LockStore>, until| async move { store.beat(bucket, until).await };
        self.pass(None, || "beat".into(), deadline, send).await
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    async fn inspect(
        &self,
        key: &LockKey,
        token: Option<&TokenHash>,
        deadline: Instant,
    ) -> Result<Inspected, StoreError> {
        self.store.inspect(key, token, deadline).await
    }

    async fn break_lock(
        &self,
        key: &LockKey,
        fence: FencingToken,
        deadline: Instant,
    ) -> Result<Broken, StoreError> {
        self.store.break_lock(key, fence, deadline).await
    }

    async fn list(
        &self,
        reach: &Reach,
        cursor: Option<&str>,
        limit: usize,
        deadline: Instant,
    ) -> Result<Page, StoreError> {
        self.store.list(reach, cursor, limit, deadline).await
    }

    async fn check(&self, deadline: Instant) -> Result<(), StoreError> {
        self.store.check(deadline).await
    }

    async fn close(&self) {
        self.store.close().await;
    }
}
