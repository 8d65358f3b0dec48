//! The five ways of asking for a lock, as one value; and every answer to them, as another.

use fencepost::lock::{
    Acquired, Attempt, Enqueued, LastPolled, Lease, Polled, QueuePosition, Refusal, Slots, Ticket,
};
use fencepost::store::{
    AnswerTo, Call, Confirm, Enqueue, LastPoll, LockRequest, LockStore, Poll, Request, StoreError,
    TicketAfter, Try,
};
use tokio::time::Instant;

/// Typed requests to any store.
pub trait LockStoreExt: LockStore {
    /// Asks the store, and takes this request's own answer out of the reply.
    fn call<C: Call>(&self, call: C, deadline: Instant) -> impl Future<Output = AnswerTo<C>> + Send {
        let request = call.into();
        async move {
            let reply = self.run(&request, deadline).await?;
            Ok(C::answer(reply).expect("the store answered another request"))
        }
    }
}

impl<S: LockStore + ?Sized> LockStoreExt for S {}

/// What is asked for, where the request may end with the lock held.
pub fn lock_request(request: &Request) -> Option<&LockRequest> {
    match request {
        Request::Try(Try(lock)) | Request::Confirm(Confirm(lock)) | Request::Poll(Poll(lock)) => Some(lock),
        Request::Enqueue(Enqueue { lock, .. }) | Request::LastPoll(LastPoll { lock, .. }) => Some(lock),
        _ => None,
    }
}

/// How a lock is asked for.
#[derive(Clone, Debug)]
pub enum Ask {
    Try,
    Confirm,
    Enqueue(Join),
    Poll,
    LastPoll(TicketAfter),
}

/// How a wait queue is joined.
#[derive(Clone, Debug, Default)]
pub struct Join {
    pub takes_over: bool,
    pub ticket: Option<Ticket>,
    pub supersedes: Vec<Attempt>,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Granted(Lease),
    AlreadyHeld(Lease),
    NotReplicated { is_new: bool, reason: String },
    TokenReleased,
    AttemptVoided,
    HeldOtherwise(Slots),
    TakenOver,
    Refused(Refusal),
    Queued(QueuePosition),
    Moved(QueuePosition),
    TicketLost,
    QueueFull,
}

/// Asks a store for a lock.
pub async fn ask<S: LockStore + ?Sized>(
    store: &S,
    lock: LockRequest,
    ask: Ask,
    deadline: Instant,
) -> Result<Answer, StoreError> {
    Ok(match ask {
        Ask::Try => store.call(Try(lock), deadline).await?.into(),
        Ask::Confirm => Acquired::from(store.call(Confirm(lock), deadline).await?).into(),
        Ask::Enqueue(Join { takes_over, ticket, supersedes }) => {
            store.call(Enqueue { lock, takes_over, ticket, supersedes }, deadline).await?.into()
        }
        Ask::Poll => store.call(Poll(lock), deadline).await?.into(),
        Ask::LastPoll(ticket) => store.call(LastPoll { lock, ticket }, deadline).await?.into(),
    })
}

impl<T: Into<Answer>> From<Acquired<T>> for Answer {
    fn from(answer: Acquired<T>) -> Self {
        match answer {
            Acquired::Granted(lease) => Self::Granted(lease),
            Acquired::AlreadyHeld(lease) => Self::AlreadyHeld(lease),
            Acquired::NotReplicated { is_new, reason } => Self::NotReplicated { is_new, reason },
            Acquired::TokenReleased => Self::TokenReleased,
            Acquired::AttemptVoided => Self::AttemptVoided,
            Acquired::HeldOtherwise(slots) => Self::HeldOtherwise(slots),
            Acquired::TakenOver => Self::TakenOver,
            Acquired::NotTaken(told) => told.into(),
        }
    }
}

impl From<Refusal> for Answer {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Enqueued> for Answer {
    fn from(enqueued: Enqueued) -> Self {
        match enqueued {
            Enqueued::Polled(polled) => polled.into(),
            Enqueued::QueueFull => Self::QueueFull,
        }
    }
}

impl From<Polled> for Answer {
    fn from(polled: Polled) -> Self {
        match polled {
            Polled::Queued(position) => Self::Queued(position),
            Polled::Moved(position) => Self::Moved(position),
            Polled::TicketLost => Self::TicketLost,
        }
    }
}

impl From<LastPolled> for Answer {
    fn from(polled: LastPolled) -> Self {
        match polled {
            LastPolled::Refused(refusal) => Self::Refused(refusal),
            LastPolled::TicketLost => Self::TicketLost,
        }
    }
}
