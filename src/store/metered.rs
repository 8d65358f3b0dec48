//! A store whose steps are measured.

use std::ops::Deref;
use std::sync::Arc;

use tokio::time::Instant;

use super::{AnswerTo, Call, LockStore, Reply, Request, StoreError};
use crate::telemetry::metrics::{NoAnswer, Step, metrics};
use crate::telemetry::traces::StepSpan;

/// Any store, with a measure on each request. What takes no time worth measuring is the store's own.
///
/// It is no [`LockStore`] itself: behind that trait each step would be boxed twice.
#[derive(Clone)]
pub struct MeteredStore(Arc<dyn LockStore>);

impl MeteredStore {
    /// Measures this store.
    pub fn new(store: Arc<dyn LockStore>) -> Self {
        Self(store)
    }

    /// Asks the store, and takes this request's own answer out of the reply.
    pub fn call<C: Call>(&self, call: C, deadline: Instant) -> impl Future<Output = AnswerTo<C>> + Send {
        let request = call.into();
        async move { self.ask::<C>(&request, deadline).await }
    }

    /// The same for a request that is asked several times: it is in no future, which are moved about.
    pub async fn ask<C: Call>(&self, request: &Request, deadline: Instant) -> AnswerTo<C> {
        let step = step_of(request);
        let span = StepSpan::begin(step);
        let started = Instant::now();
        let reply = self.0.run(request, deadline).await;
        metrics().store_seconds.observe(step, started.elapsed());
        let failure = match reply {
            Ok(reply) => return answer_of::<C>(reply),
            Err(StoreError::Unavailable(_)) => NoAnswer::Unavailable,
            Err(StoreError::Unknown(_)) => NoAnswer::Unknown,
        };
        metrics().store_errors.count(step, failure);
        if let Some(mut span) = span {
            span.failed(failure);
        }
        reply.and_then(answer_of::<C>)
    }
}

impl Deref for MeteredStore {
    type Target = dyn LockStore;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

fn answer_of<C: Call>(reply: Reply) -> AnswerTo<C> {
    C::answer(reply).ok_or_else(|| StoreError::Unknown("the store answered another request".into()))
}

/// What a request is counted as.
fn step_of(request: &Request) -> Step {
    match request {
        Request::Try(_)
        | Request::Confirm(_)
        | Request::Enqueue(_)
        | Request::Poll(_)
        | Request::LastPoll(_) => Step::Acquire,
        Request::Renew(_) | Request::RenewWork(_) => Step::Renew,
        Request::Release(_) => Step::Release,
        Request::RollBack(_) | Request::UndoBegin(_) => Step::TakeBack,
        Request::PassOn(_) => Step::Decline,
        Request::Inspect(_) | Request::LookAtRecord(_) => Step::Inspect,
        Request::Break(_) | Request::BreakRecord(_) => Step::Break,
        Request::List(_) | Request::ListRecords(_) => Step::List,
        Request::Heartbeat(_) => Step::Beat,
        Request::Check(_) => Step::Check,
        Request::Begin(_) => Step::Begin,
        Request::StoreResult(_) => Step::Store,
        Request::GiveUp(_) => Step::GiveUp,
    }
}
