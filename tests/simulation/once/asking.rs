//! How workers ask, and what becomes of their requests and answers on the way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost::lock::{FencingToken, LeaseToken, LockKey, Note, Ttl};
use fencepost::once::{
    BrokenRecord, Fingerprint, GivenUp, Keep, NotWorker, Place, RecordView, RenewedWork, Stored, Storing,
    WorkResult, WorkState, WorkStatus,
};
use fencepost::service::{BeginOutcome, BeginRequest, NotBegun};
use fencepost::store::StoreError;
use kit::history::now_us;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::{Action, Answer, Operation, Said, Seen, State};
use crate::gateways::Gateway;
use crate::world::World;

/// What becomes of one request and its answer.
#[derive(Clone, Copy)]
pub(super) struct Way {
    pub(super) before: Duration,
    pub(super) loses_request: bool,
    pub(super) loses_answer: bool,
    pub(super) is_seen_to_leave: bool,
}

impl Way {
    /// On which nothing is lost.
    pub(super) const CERTAIN: Self =
        Self { before: Duration::ZERO, loses_request: false, loses_answer: false, is_seen_to_leave: true };
}

pub(super) async fn ask_by(
    world: Arc<World>,
    gateway: usize,
    key: &str,
    token: Option<&str>,
    action: Action,
    way: Way,
    patience: Duration,
) -> Operation {
    let (at, is_handed_out) = world.records.begin(key, token, action.clone(), way.is_seen_to_leave);
    let (reply, answer) = oneshot::channel();
    let (stays, client_is_gone) = oneshot::channel::<()>();
    let carried = carry(
        world.clone(),
        gateway,
        (key.to_owned(), token.map(str::to_owned), action),
        way,
        client_is_gone,
        is_handed_out,
        reply,
    );
    tokio::spawn(carried);
    let said = timeout(patience, answer).await.ok().and_then(Result::ok);
    drop(stays);
    world.records.end(&world, at, said)
}

async fn carry(
    world: Arc<World>,
    gateway: usize,
    (key, token, action): (String, Option<String>, Action),
    way: Way,
    client_is_gone: oneshot::Receiver<()>,
    is_handed_out: Arc<AtomicBool>,
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
    let said = tokio::select! {
        biased;
        () = gateway.gone.cancelled() => return,
        () = client_leaves => return,
        said = answer(&gateway, &key, token, action, &is_handed_out) => said,
    };
    if !way.loses_answer {
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
    let keep = |keep_s| Keep::new(Duration::from_secs(keep_s)).unwrap();
    let fence = |number: Option<u64>| number.and_then(FencingToken::new);
    let shown = || own.as_ref().expect("such a request has a token");
    let answer = match action {
        Action::Begin { ttl_ms, keep_s, may_take_over, wait, fingerprint } => {
            let request = BeginRequest {
                key,
                token: own.clone(),
                ttl: ttl(ttl_ms),
                keep: keep(keep_s),
                note: Note::default(),
                fingerprint: fingerprint.map(|text| Fingerprint::of(text.as_bytes()).unwrap()),
                may_take_over,
                wait,
                account: None,
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
                    BeginOutcome::NotBegun(why) => not_begun(&why),
                }
            })
        }
        Action::Store { result, status, keep_s, number } => {
            let status = status.and_then(WorkStatus::new);
            let result = WorkResult { status, content_type: None, body: result.into() };
            let stored = service.store_result(&key, shown(), fence(number), keep_s.map(keep), result).await;
            stored.map(|told| match told {
                Storing::Stored { fencing_token, .. } => Answer::Stored { number: fencing_token.get() },
                Storing::Refused(why) => not_worker(why),
                Storing::NotReplicated(_) => Answer::Unknown,
                Storing::Differs => Answer::ResultDiffers,
                Storing::NearlyFull => Answer::Refused,
            })
        }
        Action::Renew { ttl_ms, number } => {
            service.renew_work(&key, shown(), fence(number), ttl(ttl_ms)).await.map(|told| match told {
                RenewedWork::Renewed(place) => work(&place, false),
                RenewedWork::Refused(why) => not_worker(why),
                RenewedWork::LeaseOver => Answer::LeaseOver,
                RenewedWork::AlreadyStored => Answer::AlreadyStored,
            })
        }
        Action::GiveUp { is_clean } => {
            service.give_up(&key, shown(), is_clean).await.map(|told| match told {
                GivenUp::GivenUp => Answer::GivenUp,
                GivenUp::AlreadyStored => Answer::AlreadyStored,
                GivenUp::Refused(why) => not_worker(why),
            })
        }
        Action::Look => {
            let looked = service.look_at_record(&key, own.as_ref()).await;
            looked.map(|found| found.as_ref().map_or(Answer::NotBegun, seen))
        }
        Action::Break { number, is_clean } => service
            .break_record(&key, fence(number.or(Some(1))).unwrap(), is_clean)
            .await
            .map(|told| match told {
                BrokenRecord::Broken => Answer::Broken,
                BrokenRecord::None => Answer::NotBegun,
                BrokenRecord::Superseded(number) => {
                    Answer::Superseded { number: number.get(), is_done: false }
                }
            }),
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
    let status = stored.result.status.map(WorkStatus::get);
    Answer::Done { number: stored.fencing_token.get(), result, status }
}

fn not_begun(why: &NotBegun) -> Answer {
    match why {
        NotBegun::Busy(worker) => Answer::Busy { number: worker.place.lease.fencing_token.get() },
        NotBegun::Abandoned(..) => Answer::Abandoned,
        NotBegun::FingerprintMismatch => Answer::FingerprintDiffers,
        NotBegun::TokenReleased => Answer::TokenReleased,
        _ => Answer::Refused,
    }
}

fn not_worker(why: NotWorker) -> Answer {
    match why {
        NotWorker::Superseded { fencing_token, is_done } => {
            Answer::Superseded { number: fencing_token.get(), is_done }
        }
        NotWorker::NotBegun => Answer::NotBegun,
    }
}

fn seen(view: &RecordView) -> Answer {
    Answer::Seen(Seen {
        state: match view.state {
            WorkState::Working => State::Working,
            WorkState::Lapsed => State::Lapsed,
            WorkState::Done => State::Done,
        },
        number: view.place.lease.fencing_token.get(),
        earlier: view.place.earlier,
        left_ms: view.place.lease.left_ms,
        yours: view.yours,
        bytes: view.result.as_ref().map(|result| result.bytes),
    })
}
