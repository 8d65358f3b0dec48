//! The way between a gateway and its store: it notes all that passes, loses some of it, and delivers some of it late.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use fencepost::clock::boottime;
use fencepost::lock::{Acquired, Enqueued, LockKey, Polled};
use fencepost::store::{
    Bucket, Enqueue, Hint, LastPoll, LockStore, PassOn, Release, Reply, Request, RollBack, StoreError,
};
use futures_util::future::{BoxFuture, FutureExt};
use rand::RngExt;
use tokio::runtime::Handle;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time::{Instant, sleep};

use super::faults::{Fate, LATEST_MS, STALL, Weather};
use kit::PATIENCE;
use kit::asking::lock_request;

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

    async fn pass(&self, request: &Request, what: String, deadline: Instant) -> Result<Reply, StoreError> {
        let tape = self.weather.tape(key_of(request));
        let fate = self.weather.draw(&tape, Fate::draw).unwrap_or(Fate::Pass);
        // What was lost on the way is not late for its sender's deadline.
        let until = if fate == Fate::Pass { deadline } else { Instant::now() + PATIENCE };
        let (store, request) = (self.store.clone(), request.clone());
        let step = async move { store.run(&request, until).await };
        let what = format!("{} {what}", self.name);
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

/// The one lock that a noted request is about.
fn key_of(request: &Request) -> Option<&LockKey> {
    match request {
        Request::Release(Release { key, .. })
        | Request::RollBack(RollBack { key, .. })
        | Request::PassOn(PassOn { key, .. }) => Some(key),
        _ => lock_request(request).map(|lock| &lock.key),
    }
}

/// What is noted of a request; nothing of those that always pass.
fn name_of_request(request: &Request) -> Option<String> {
    if let Some(lock) = lock_request(request) {
        let how = match request {
            Request::Enqueue(Enqueue { takes_over, ticket, supersedes, .. }) => {
                format!("Enqueue, takes over: {takes_over}, {ticket:?}, for {supersedes:?}")
            }
            Request::LastPoll(LastPoll { ticket, .. }) => format!("LastPoll, {ticket:?}"),
            Request::Poll(_) => "Poll".into(),
            Request::Confirm(_) => "Confirm".into(),
            _ => "Try".into(),
        };
        return Some(format!("{}/{} {how}", short(&lock.token), short(&lock.attempt)));
    }
    Some(match request {
        Request::Release(Release { token, tombstone, .. }) => {
            format!("{} release {tombstone:?}", short(token))
        }
        Request::RollBack(RollBack { token, attempt, ticket, .. }) => {
            format!("{}/{} roll back, ticket {ticket:?}", short(token), short(attempt))
        }
        Request::PassOn(PassOn { token, attempt, .. }) => {
            format!("{}/{} pass on", short(token), short(attempt))
        }
        Request::Heartbeat(_) => "heartbeat".into(),
        _ => return None,
    })
}

impl LockStore for Wire {
    fn run<'a>(
        &'a self,
        request: &'a Request,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Reply, StoreError>> {
        let Some(what) = name_of_request(request) else { return self.store.run(request, deadline) };
        async move {
            let sent = boottime();
            let answer = self.pass(request, what, deadline).await;
            let answered = boottime();
            let is_queued = matches!(
                answer,
                Ok(Reply::Enqueue(Acquired::NotTaken(Enqueued::Polled(Polled::Queued(_))))
                    | Reply::Poll(Acquired::NotTaken(Polled::Queued(_))))
            );
            if lock_request(request).is_some() {
                // Commands of the background belong to no request.
                let _ = ASKED.try_with(|asked| {
                    let mut note = asked.get();
                    note.first_sent.get_or_insert(sent);
                    if is_queued {
                        note.in_line_since.get_or_insert(answered);
                    }
                    asked.set(Asked { sent, answered, ..note });
                });
            }
            answer
        }
        .boxed()
    }

    fn bucket_of(&self, key: &LockKey) -> Bucket {
        self.store.bucket_of(key)
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.store.close()
    }
}
