//! Workers: clients that begin pieces of work, store results, give up, crash and come back, and an operator who breaks records.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost::lock::{FencingToken, LeaseToken, LockKey, Note, Ttl};
use fencepost::once::{
    BrokenRecord, GivenUp, Keep, NotWorker, Place, RenewedWork, Stored, Storing, WorkResult,
};
use fencepost::service::{BeginOutcome, BeginRequest, NotBegun};
use fencepost::store::StoreError;
use kit::history::now_us;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::gateways::Gateway;
use crate::world::World;

mod judge;
mod workers;

pub use judge::{a_break_that_nobody_heard_of_may_still_be_done, judge};
pub use workers::Worker;

/// Longer than a request without a wait may take.
const PATIENCE: Duration = Duration::from_secs(5);
const KEYS: u64 = 3;
/// A key has another name after so long, so that not all of them are done.
const ERA_S: u64 = 5;
const LONGEST_TTL_MS: u64 = 2_000;
pub const WORKERS: u64 = 8;

/// What a worker asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Begin { ttl_ms: u64, may_take_over: bool, wait: Duration },
    Store { result: String },
    Renew { ttl_ms: u64 },
    GiveUp { is_clean: bool },
    Break { number: Option<u64>, is_clean: bool },
}

/// What it is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// A new grant, or the one that the token has.
    Work {
        number: u64,
        earlier: u64,
        left_ms: u64,
        is_new: bool,
    },
    Done {
        number: u64,
        result: String,
    },
    Stored {
        number: u64,
    },
    Busy,
    Superseded {
        number: u64,
    },
    NotBegun,
    GivenUp,
    Broken,
    /// Certainly nothing was done, for another reason.
    Refused,
    Unknown,
    /// Nobody heard it.
    Lost,
}

impl Answer {
    /// What it is counted as.
    fn name(&self) -> &'static str {
        match self {
            Self::Work { earlier: 0, is_new: true, .. } => "work begun",
            Self::Work { is_new: true, .. } => "work taken over",
            Self::Work { .. } => "work continued",
            Self::Done { .. } => "result told",
            Self::Stored { .. } => "result stored",
            Self::Busy => "work busy",
            Self::Superseded { .. } => "work superseded",
            Self::NotBegun => "work not begun",
            Self::GivenUp => "work given up",
            Self::Broken => "record broken",
            Self::Refused | Self::Unknown | Self::Lost => "work in doubt or refused",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Operation {
    pub key: String,
    pub token: Option<String>,
    pub action: Action,
    pub start_us: u64,
    pub end_us: u64,
    /// When the gateway said it.
    pub said_us: u64,
    pub answer: Answer,
    /// Since when nothing failed, when it was answered.
    pub calm_since_us: Option<u64>,
}

/// What is written down of records.
#[derive(Default)]
pub struct Records(Mutex<Vec<Operation>>);

impl Records {
    fn begin(&self, key: &str, token: Option<&str>, action: Action) -> usize {
        let mut operations = self.0.lock().unwrap();
        let now_us = now_us();
        let (key, token) = (key.to_owned(), token.map(str::to_owned));
        let (end_us, said_us, calm_since_us) = (u64::MAX, now_us, None);
        operations.push(Operation {
            key,
            token,
            action,
            start_us: now_us,
            end_us,
            said_us,
            answer: Answer::Lost,
            calm_since_us,
        });
        operations.len() - 1
    }

    fn end(&self, world: &World, at: usize, said: Option<Said>) -> Operation {
        let mut operations = self.0.lock().unwrap();
        let operation = &mut operations[at];
        operation.end_us = now_us();
        if let Some(said) = said {
            (operation.answer, operation.said_us) = (said.answer, said.at_us);
            operation.token = said.token.or(operation.token.take());
            let calm_for = world.calm_since().map(|since| since.elapsed().as_micros() as u64);
            operation.calm_since_us = calm_for.map(|calm_us| operation.end_us - calm_us);
            world.book.count(operation.answer.name());
        }
        operation.clone()
    }

    /// All of it, in the order in which it began.
    pub fn close(&self) -> Vec<Operation> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

struct Said {
    answer: Answer,
    /// The token that the gateway made, if it made one.
    token: Option<String>,
    at_us: u64,
}

/// What becomes of one request and its answer.
#[derive(Clone, Copy)]
struct Way {
    before: Duration,
    loses_request: bool,
    loses_answer: bool,
    is_seen_to_leave: bool,
}

async fn ask_by(
    world: Arc<World>,
    gateway: usize,
    key: &str,
    token: Option<&str>,
    action: Action,
    way: Way,
    patience: Duration,
) -> Operation {
    let at = world.records.begin(key, token, action.clone());
    let (reply, answer) = oneshot::channel();
    let (stays, client_is_gone) = oneshot::channel::<()>();
    let carried = carry(
        world.clone(),
        gateway,
        key.to_owned(),
        token.map(str::to_owned),
        action,
        way,
        client_is_gone,
        reply,
    );
    tokio::spawn(carried);
    let said = timeout(patience, answer).await.ok().and_then(Result::ok);
    drop(stays);
    world.records.end(&world, at, said)
}

#[expect(clippy::too_many_arguments, reason = "they are a request, and what becomes of it")]
async fn carry(
    world: Arc<World>,
    gateway: usize,
    key: String,
    token: Option<String>,
    action: Action,
    way: Way,
    client_is_gone: oneshot::Receiver<()>,
    reply: oneshot::Sender<Said>,
) {
    sleep(way.before).await;
    if way.loses_request {
        return;
    }
    let gateway = world.gateway(gateway);
    let client_leaves = async {
        let _ = client_is_gone.await;
        if !way.is_seen_to_leave {
            std::future::pending::<()>().await;
        }
    };
    let is_handed_out = AtomicBool::new(false);
    let said = tokio::select! {
        biased;
        () = gateway.gone.cancelled() => return,
        () = client_leaves => return,
        said = answer(&gateway, &key, token, action, &is_handed_out) => said,
    };
    if !way.loses_answer && is_handed_out.load(Ordering::SeqCst) {
        sleep(Duration::from_millis(1)).await;
        let _ = reply.send(said);
    }
}

async fn answer(
    gateway: &Gateway,
    key: &str,
    token: Option<String>,
    action: Action,
    is_handed_out: &AtomicBool,
) -> Said {
    let service = &gateway.service;
    let key = LockKey::parse(key.as_bytes()).unwrap();
    let own = token.as_ref().map(|token| LeaseToken::parse(token.as_bytes()).unwrap());
    let mut made = None;
    let ttl = |ttl_ms| Ttl::from_ms(ttl_ms).unwrap();
    let shown = || own.as_ref().expect("such a request has a token");
    let answer = match action {
        Action::Begin { ttl_ms, may_take_over, wait } => {
            let request = BeginRequest {
                key,
                token: own.clone(),
                ttl: ttl(ttl_ms),
                keep: Keep::DEFAULT,
                note: Note::default(),
                fingerprint: None,
                may_take_over,
                wait,
            };
            service.begin(request).await.map(|beginning| {
                let token = beginning.token.reveal().to_owned();
                match beginning.outcome {
                    BeginOutcome::Granted(place, guard) => {
                        guard.disarm();
                        made = Some(token);
                        work(&place, true)
                    }
                    BeginOutcome::Continued(place) => work(&place, false),
                    BeginOutcome::Done(stored) => done(&stored),
                    BeginOutcome::NotBegun(NotBegun::Busy(_)) => Answer::Busy,
                    BeginOutcome::NotBegun(_) => Answer::Refused,
                }
            })
        }
        Action::Store { result } => {
            let result = WorkResult { status: None, content_type: None, body: result.into() };
            service.store_result(&key, shown(), None, None, result).await.map(|told| match told {
                Storing::Stored { fencing_token, .. } => Answer::Stored { number: fencing_token.get() },
                Storing::Refused(why) => not_worker(why),
                Storing::NotReplicated(_) => Answer::Unknown,
                Storing::Differs | Storing::NearlyFull => Answer::Refused,
            })
        }
        Action::Renew { ttl_ms } => {
            service.renew_work(&key, shown(), None, ttl(ttl_ms)).await.map(|told| match told {
                RenewedWork::Renewed(place) => work(&place, false),
                RenewedWork::Refused(why) => not_worker(why),
                RenewedWork::LeaseOver | RenewedWork::AlreadyStored => Answer::Refused,
            })
        }
        Action::GiveUp { is_clean } => {
            service.give_up(&key, shown(), is_clean).await.map(|told| match told {
                GivenUp::GivenUp => Answer::GivenUp,
                GivenUp::AlreadyStored => Answer::Refused,
                GivenUp::Refused(why) => not_worker(why),
            })
        }
        Action::Break { number, is_clean } => {
            let number = FencingToken::new(number.unwrap_or(1)).unwrap();
            service.break_record(&key, number, is_clean).await.map(|told| match told {
                BrokenRecord::Broken => Answer::Broken,
                BrokenRecord::None => Answer::NotBegun,
                BrokenRecord::Superseded(number) => Answer::Superseded { number: number.get() },
            })
        }
    };
    is_handed_out.store(true, Ordering::SeqCst);
    let answer = answer.unwrap_or_else(|error| match error {
        StoreError::Unavailable(_) => Answer::Refused,
        StoreError::Unknown(_) => Answer::Unknown,
    });
    Said { answer, token: made, at_us: now_us() }
}

fn work(place: &Place, is_new: bool) -> Answer {
    let (number, left_ms) = (place.lease.fencing_token.get(), place.lease.left_ms);
    Answer::Work { number, earlier: place.earlier, left_ms, is_new }
}

fn done(stored: &Stored) -> Answer {
    let result = String::from_utf8(stored.result.body.to_vec()).unwrap();
    Answer::Done { number: stored.fencing_token.get(), result }
}

fn not_worker(why: NotWorker) -> Answer {
    match why {
        NotWorker::Superseded { fencing_token, .. } => Answer::Superseded { number: fencing_token.get() },
        NotWorker::NotBegun => Answer::NotBegun,
    }
}

/// When nothing fails any more and all leases are over, whoever begins is the worker, or is told the result (O4).
pub async fn nobody_blocks(world: &Arc<World>, operations: &[Operation]) -> Vec<String> {
    let keys: std::collections::BTreeSet<_> =
        operations.iter().map(|operation| operation.key.clone()).collect();
    let way =
        Way { before: Duration::ZERO, loses_request: false, loses_answer: false, is_seen_to_leave: true };
    let mut violations = Vec::new();
    for (number, key) in keys.iter().enumerate() {
        let token = format!("the-last-one-of-all-{number}");
        let begin = Action::Begin { ttl_ms: 1_000, may_take_over: true, wait: Duration::ZERO };
        let told = ask_by(world.clone(), number, key, Some(&token), begin, way, PATIENCE).await;
        if !matches!(told.answer, Answer::Work { .. } | Answer::Done { .. }) {
            violations.push(format!("O4: the record is blocked, though all leases are over: {told:?}"));
        }
    }
    violations
}
