//! Gateways that can be killed and replaced: each is a service with all of its tasks, before a store that reaches its servers on
//! a way of its own, or that has a file.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost::lock::{
    Broken, FencingToken, Inspected, Lease, LeaseToken, LockKey, Note, Owner, Released, Renewed, Sharing,
    Slot, Slots, Terms, Ttl,
};
use fencepost::service::{
    AcquireRequest, GrantGuard, Hold, HoldEvent, Holding, LockService, Loss, NotAcquired, Outcome, Several,
    Tenant,
};
use fencepost::store::{LockStore, Renewer, StoreError};
use kit::history::{self, Action, Answer, Holder, Place, Share, now_us};
use sim::View;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::machine::Process;

const STORE_TIMEOUT: Duration = Duration::from_secs(3);

/// One gateway, until it ends.
pub struct Gateway {
    /// No other has had it.
    pub number: u64,
    pub service: Arc<LockService>,
    way: Way,
    /// Cancelled when it is gone.
    pub gone: CancellationToken,
}

/// To where its locks are.
pub enum Way {
    Servers(View),
    Own(Process),
}

/// What a client asks for.
#[derive(Clone)]
pub struct Request {
    pub id: String,
    pub key: String,
    pub token: Option<String>,
    pub action: Action,
    pub wait: Duration,
    pub terms: history::Terms,
}

/// What a gateway says.
#[derive(Debug)]
pub struct Reply {
    pub answer: Answer,
    /// The token that was sent, or that the gateway made.
    pub token: Option<String>,
    /// When the gateway said so.
    pub said_at_us: u64,
    /// What a request that is refused is told of its place in the queue.
    pub position: Option<u64>,
    pub share: Share,
}

/// What a connection that holds a lock is told.
#[derive(Debug)]
pub enum Event {
    /// It was renewed.
    Lease(Reply),
    /// The gateway stops, and the token has the lock.
    HandedOver(Reply),
    Lost,
}

impl Gateway {
    pub fn start(number: u64, store: Arc<dyn LockStore>, mark_ttl: Duration, way: Way) -> Arc<Self> {
        let service = Arc::new(LockService::new(store, STORE_TIMEOUT, mark_ttl));
        Arc::new(Self { number, service, way, gone: CancellationToken::new() })
    }

    /// Its way to the servers.
    pub fn view(&self) -> &View {
        let Way::Servers(view) = &self.way else { panic!("it has no servers") };
        view
    }

    /// From here on nothing that it does reaches anybody.
    pub fn kill(&self) {
        // First: what becomes of its futures now, such as the end of a hold, is not done by a process that is gone.
        match &self.way {
            Way::Servers(view) => {
                view.set(|way| way.refuses = true);
                view.cut_all();
            }
            Way::Own(process) => process.kill(),
        }
        self.gone.cancel();
    }

    /// Ends it as SIGTERM does.
    pub async fn drain(&self) {
        self.service.stop_waiting();
        sleep(Duration::from_millis(100)).await;
        self.service.close(Duration::from_secs(2)).await;
        self.kill();
    }

    /// Serves a request until it is answered or its client is known to be gone. Sets `is_written` when the answer is handed out.
    pub async fn serve(
        &self,
        request: Request,
        client_is_gone: impl Future<Output = ()>,
        is_written: &AtomicBool,
    ) -> Option<Reply> {
        tokio::select! {
            biased;
            () = self.gone.cancelled() => None,
            () = client_is_gone => None,
            reply = self.answer(request, is_written) => Some(reply),
        }
    }

    async fn answer(&self, request: Request, is_written: &AtomicBool) -> Reply {
        let key = LockKey::parse(request.key.as_bytes()).unwrap();
        let token = request.token.as_ref().map(|token| LeaseToken::parse(token.as_bytes()).unwrap());
        let mut made = request.token.clone();
        let (mut position, mut share) = (None, Share::default());
        let own = || token.clone().expect("such a request has a token");
        let answer = match request.action {
            Action::Acquire { .. } => match self.service.acquire(wish(&request)).await {
                Ok(acquired) => {
                    if matches!(acquired.outcome, Outcome::Granted(..)) {
                        made = Some(acquired.token.reveal().to_owned());
                    }
                    match acquired.outcome {
                        Outcome::Granted(lease, guard, ..) => {
                            guard.disarm();
                            share.place = place(lease.slot);
                            granted(&lease)
                        }
                        Outcome::AlreadyHeld(lease, ..) => {
                            share.place = place(lease.slot);
                            already_held(&lease)
                        }
                        Outcome::NotTaken(why) => {
                            if let NotAcquired::Refused(refusal) = &why {
                                position = refusal.position;
                            }
                            not_taken(why)
                        }
                    }
                }
                Err(error) => failed(&error),
            },
            Action::Renew { ttl_ms } => {
                let ttl = Ttl::from_ms(ttl_ms).unwrap();
                match self.service.renew(&key, &own(), ttl, Renewer::Token, None).await {
                    Ok(Renewed::Renewed(lease) | Renewed::MaxHoldReached(lease)) => {
                        share.place = place(lease.slot);
                        renewed(&lease)
                    }
                    Ok(Renewed::NotHeld) => Answer::NotHeld,
                    Ok(Renewed::Released) => Answer::TokenReleased,
                    Ok(Renewed::HeldByAnother | Renewed::TakenOver) => Answer::HeldByAnother(None),
                    Err(error) => failed(&error),
                }
            }
            Action::Release => match self.service.release(&key, &own()).await {
                Ok(Released::Released) => Answer::Released,
                Ok(Released::NotHeld) => Answer::NotHeld,
                Ok(Released::HeldByAnother) => Answer::HeldByAnother(None),
                Err(error) => failed(&error),
            },
            Action::Look => match self.service.inspect(&key, token.as_ref()).await {
                Ok(Inspected::Held { lease, yours, sharing, .. }) => {
                    share = Share { place: place(lease.slot), ..seen(sharing) };
                    match lease.is_released {
                        true => Answer::HeldByAnother(None),
                        false => Answer::Held { holder: holder(&lease), yours },
                    }
                }
                Ok(Inspected::Free { .. }) => Answer::NotHeld,
                Err(error) => failed(&error),
            },
            Action::Break { number } => {
                match self.service.break_lock(&key, number.and_then(FencingToken::new)).await.0 {
                    Ok(Broken::Broken(lease)) => Answer::Broken { number: lease.fencing_token.get() },
                    Ok(Broken::NotHeld) => Answer::NotHeld,
                    Ok(Broken::HeldByAnother | Broken::HeldBySeveral) => Answer::HeldByAnother(None),
                    Err(error) => failed(&error),
                }
            }
        };
        is_written.store(true, Ordering::SeqCst);
        Reply { answer, token: made, said_at_us: now_us(), position, share }
    }

    /// Takes the locks of these requests, all or none; each is answered. Of those that it had to give back nothing is said.
    pub async fn serve_several(
        &self,
        requests: &[Request],
        client_is_gone: impl Future<Output = ()>,
        is_written: &[Arc<AtomicBool>],
    ) -> Option<Vec<Option<Reply>>> {
        tokio::select! {
            biased;
            () = self.gone.cancelled() => None,
            () = client_is_gone => None,
            replies = self.answer_several(requests, is_written) => Some(replies),
        }
    }

    async fn answer_several(
        &self,
        requests: &[Request],
        is_written: &[Arc<AtomicBool>],
    ) -> Vec<Option<Reply>> {
        let keys: Vec<_> =
            requests.iter().map(|request| LockKey::parse(request.key.as_bytes()).unwrap()).collect();
        let reply = |answer, token: Option<&str>, share| {
            let token = token.map(str::to_owned);
            Some(Reply { answer, token, said_at_us: now_us(), position: None, share })
        };
        let own = requests[0].token.as_deref();
        let told = match self.service.acquire_several(wish(&requests[0]), &keys).await {
            Several::Held(held) => {
                held.guards.into_iter().for_each(GrantGuard::disarm);
                let of = |(request, lease): (&Request, &Lease)| {
                    // What the token held already was not granted to this request.
                    let is_new = lease.owner() == Some(&request.id);
                    let answer = if is_new { granted(lease) } else { already_held(lease) };
                    let share = Share { place: place(lease.slot), ..Share::default() };
                    reply(answer, Some(held.token.reveal()), share)
                };
                requests.iter().zip(&held.leases).map(of).collect()
            }
            Several::NotHeld(key, _, why) => {
                let mut why = Some(not_taken(why));
                let of_key = |request: &Request| if request.key == key.as_str() { why.take() } else { None };
                let answers = requests.iter().map(of_key);
                answers.map(|answer| reply(answer?, own, Share::default())).collect()
            }
            Several::Lost(_, Loss::TakenOver) | Several::Failed(_, StoreError::Unknown(_)) => {
                requests.iter().map(|_| reply(Answer::Unknown, own, Share::default())).collect()
            }
            Several::Lost(..) | Several::Failed(..) => requests.iter().map(|_| None).collect(),
            Several::TooManyHolds => panic!("so many holds were never meant"),
        };
        let told: Vec<Option<Reply>> = told;
        for (is_written, told) in is_written.iter().zip(&told) {
            is_written.store(told.is_some(), Ordering::SeqCst);
        }
        told
    }

    /// Holds a lock for a client that listens, until it hangs up.
    pub async fn hold(
        &self,
        request: Request,
        first: oneshot::Sender<Option<Reply>>,
        events: mpsc::UnboundedSender<Event>,
        client_is_gone: impl Future<Output = ()>,
    ) {
        tokio::select! {
            biased;
            () = self.gone.cancelled() => {}
            () = client_is_gone => {}
            () = self.keep(request, first, events) => {}
        }
    }

    async fn keep(
        &self,
        request: Request,
        first: oneshot::Sender<Option<Reply>>,
        events: mpsc::UnboundedSender<Event>,
    ) {
        let held = self.service.hold(wish(&request), std::future::pending()).await;
        let reply =
            |answer, token, share| Reply { answer, token, said_at_us: now_us(), position: None, share };
        let of = |lease: &Lease| Share { place: place(lease.slot), ..Share::default() };
        let mut hold: Hold = match held {
            Ok(Holding::Held(hold)) => hold,
            Ok(Holding::NotHeld(_, why)) => {
                let _ = first.send(Some(reply(not_taken(why), request.token, Share::default())));
                return;
            }
            Ok(Holding::TooManyHolds) => panic!("so many holds were never meant"),
            Err(error) => {
                let _ = first.send(Some(reply(failed(&error), request.token, Share::default())));
                return;
            }
        };
        let token = Some(hold.token.reveal().to_owned());
        let Some(lease) = hold.delivered() else {
            let _ = first.send(None);
            return;
        };
        // What is held by another request already was not granted to this one.
        let is_new = lease.owner() == Some(&request.id);
        let answer = if is_new { granted(&lease) } else { already_held(&lease) };
        let _ = first.send(Some(reply(answer, token.clone(), of(&lease))));
        while let Some(event) = std::future::poll_fn(|context| hold.poll_event(context)).await {
            let told = match event {
                HoldEvent::Renewed(lease) => Event::Lease(reply(renewed(&lease), token.clone(), of(&lease))),
                HoldEvent::Heartbeat => continue,
                HoldEvent::Lost(Loss::ShuttingDown(lease)) => {
                    let answer = Answer::Held { holder: holder(&lease), yours: Some(true) };
                    Event::HandedOver(reply(answer, token.clone(), of(&lease)))
                }
                HoldEvent::Lost(_) => Event::Lost,
            };
            if events.send(told).is_err() {
                return;
            }
        }
    }
}

fn wish(request: &Request) -> AcquireRequest {
    let Action::Acquire { ttl_ms } = request.action else { panic!("it is no acquire") };
    AcquireRequest {
        key: LockKey::parse(request.key.as_bytes()).unwrap(),
        token: request.token.as_ref().map(|token| LeaseToken::parse(token.as_bytes()).unwrap()),
        ttl: Ttl::from_ms(ttl_ms).unwrap(),
        note: Note::new(Owner::parse(request.id.as_bytes()).unwrap()),
        wait: request.wait,
        terms: Terms {
            max_hold: request.terms.max_hold_ms.map(Duration::from_millis),
            min_hold: request.terms.min_hold_ms.map(Duration::from_millis),
            slots: request.terms.slots.map_or(Slots::ONE, |slots| Slots::new(slots).unwrap()),
        },
        tenant: Tenant::default(),
    }
}

fn granted(lease: &Lease) -> Answer {
    Answer::Granted { number: lease.fencing_token.get(), ttl_ms: lease.left_ms }
}

fn already_held(lease: &Lease) -> Answer {
    Answer::AlreadyHeld { number: lease.fencing_token.get(), ttl_ms: lease.left_ms }
}

fn renewed(lease: &Lease) -> Answer {
    Answer::Renewed { number: lease.fencing_token.get(), ttl_ms: lease.left_ms }
}

fn holder(lease: &Lease) -> Holder {
    let id = lease.owner().unwrap_or_default().to_owned();
    Holder { id, number: lease.fencing_token.get(), left_ms: lease.left_ms }
}

fn place(slot: Option<Slot>) -> Option<Place> {
    slot.map(|slot| Place { slot: slot.number, slots: slot.slots.get() })
}

/// What a look shows of those who share the lock.
fn seen(sharing: Option<Sharing<Vec<Lease>>>) -> Share {
    let Some(sharing) = sharing else { return Share::default() };
    let holders = sharing.holders.iter().filter(|lease| !lease.is_released);
    let holders = holders.map(|lease| (holder(lease), place(lease.slot).unwrap())).collect();
    Share { place: None, holders, held: sharing.held, slots: Some(sharing.slots.get()) }
}

fn not_taken(why: NotAcquired) -> Answer {
    match why {
        // A lock that is kept for its `min_hold` has no holder.
        NotAcquired::Refused(refusal) => {
            Answer::HeldByAnother(refusal.holder.as_ref().filter(|lease| !lease.is_released).map(holder))
        }
        NotAcquired::TokenReleased => Answer::TokenReleased,
        NotAcquired::ShuttingDown | NotAcquired::NotReplicated(_) => Answer::NotDone,
        NotAcquired::TooManyWaiters | NotAcquired::TooManyLocks => panic!("nothing here is so full"),
        NotAcquired::HeldOtherwise(slots) => Answer::HeldOtherwise { slots: slots.get() },
        NotAcquired::NotShared(_) => panic!("nobody shares a lock of a quorum"),
    }
}

fn failed(error: &StoreError) -> Answer {
    match error {
        StoreError::Unavailable(_) => Answer::NotDone,
        StoreError::Unknown(_) => Answer::Unknown,
    }
}
