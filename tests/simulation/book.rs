//! What is written down of a simulation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use kit::history::{Action, Answer, Failover, History, Operation, Share, Span, Update, now_us};

use crate::gateways::{Reply, Request};
use crate::once;

/// All that its judge is shown, and how often what was done.
#[derive(Default)]
pub struct Book(Mutex<Pages>);

/// What is left of it.
pub struct Closed {
    pub history: History,
    /// What was asked about records.
    pub records: Vec<once::Operation>,
    pub counts: BTreeMap<&'static str, u64>,
    pub violations: Vec<String>,
}

#[derive(Default)]
struct Pages {
    history: History,
    /// For operations, whether their answers were handed out.
    written: Vec<(usize, Arc<AtomicBool>)>,
    counts: BTreeMap<&'static str, u64>,
    /// What was seen to be wrong while it went on.
    violations: Vec<String>,
}

impl Book {
    /// A request is sent. It counts as unanswered until it is finished.
    pub fn begin(&self, request: &Request) -> (usize, Arc<AtomicBool>) {
        let mut pages = self.0.lock().unwrap();
        let is_written = Arc::new(AtomicBool::new(false));
        let at = pages.history.operations.len();
        pages.written.push((at, is_written.clone()));
        pages.history.operations.push(Operation {
            id: request.id.clone(),
            key: request.key.clone(),
            token: request.token.clone(),
            action: request.action,
            span: Span { start_us: now_us(), end_us: u64::MAX },
            answer: Answer::Lost { was_written: false },
            waits: !request.wait.is_zero(),
            true_at_us: None,
            ended_us: None,
            terms: request.terms,
            share: Share::default(),
        });
        (at, is_written)
    }

    /// Its client was answered, or has given it up.
    pub fn finish(&self, at: usize, reply: Option<Reply>) -> Operation {
        let mut pages = self.0.lock().unwrap();
        let operation = &mut pages.history.operations[at];
        operation.span.end_us = now_us();
        if let Some(reply) = reply {
            operation.true_at_us = match operation.action {
                Action::Acquire { .. } | Action::Renew { .. } => Some(reply.said_at_us),
                Action::Release | Action::Look | Action::Break { .. } => None,
            };
            operation.answer = reply.answer;
            (operation.token, operation.share) = (reply.token, reply.share);
        }
        operation.clone()
    }

    /// A gateway may have done something that no client hears of, for this token.
    pub fn unheard(&self, at: usize, token: Option<&String>) {
        self.finish(at, None);
        let mut pages = self.0.lock().unwrap();
        let its_own = &mut pages.history.operations[at].token;
        *its_own = its_own.take().or(token.cloned());
    }

    /// A client was told something that it did not ask for.
    pub fn told(&self, request: &Request, start_us: u64, reply: Reply) -> usize {
        let ((at, _), said_at_us) = (self.begin(request), reply.said_at_us);
        self.finish(at, Some(reply));
        let mut pages = self.0.lock().unwrap();
        let operation = &mut pages.history.operations[at];
        // What is left was counted when it was said.
        (operation.span.start_us, operation.true_at_us) = (start_us, Some(said_at_us));
        at
    }

    /// The connection has ended that had the lock by these.
    pub fn ended(&self, all: &[usize]) {
        let mut pages = self.0.lock().unwrap();
        for at in all {
            pages.history.operations[*at].ended_us = Some(now_us());
        }
    }

    pub fn updated(&self, update: Update) {
        self.0.lock().unwrap().history.updates.push(update);
    }

    pub fn lost_since(&self, start_us: u64) {
        self.0.lock().unwrap().history.losses.push(Span { start_us, end_us: now_us() });
    }

    pub fn failed_over(&self, failover: Failover) {
        self.0.lock().unwrap().history.failovers.push(failover);
    }

    /// An older state came back now.
    pub fn came_back(&self) {
        let now = Span { start_us: now_us(), end_us: now_us() };
        let mut pages = self.0.lock().unwrap();
        pages.history.losses.push(now);
        pages.history.returns.push(now);
    }

    pub fn killed_since(&self, start_us: u64) {
        self.0.lock().unwrap().history.kills.push(Span { start_us, end_us: now_us() });
    }

    pub fn is_quiet(&self) {
        self.0.lock().unwrap().history.quiet_us = Some(now_us());
    }

    /// One more of these was done.
    pub fn count(&self, what: &'static str) {
        *self.0.lock().unwrap().counts.entry(what).or_default() += 1;
    }

    pub fn violated(&self, what: String) {
        self.0.lock().unwrap().violations.push(what);
    }

    /// Prints what happens, where `SIM_TRACE` says so.
    pub fn trace(&self, what: impl FnOnce() -> String) {
        if std::env::var_os("SIM_TRACE").is_some() {
            println!("{} {}", now_us(), what());
        }
    }

    pub fn keys(&self) -> BTreeSet<String> {
        self.0.lock().unwrap().history.operations.iter().map(|operation| operation.key.clone()).collect()
    }

    /// All that was written, when everybody has gone.
    pub fn close(&self) -> Closed {
        let mut pages = self.0.lock().unwrap();
        let written = std::mem::take(&mut pages.written);
        let now_us = now_us();
        for (at, is_written) in written {
            let operation = &mut pages.history.operations[at];
            operation.span.end_us = operation.span.end_us.min(now_us);
            if let Answer::Lost { was_written } = &mut operation.answer {
                *was_written |= is_written.load(Ordering::SeqCst);
            }
        }
        let Pages { history, counts, violations, .. } = std::mem::take(&mut *pages);
        Closed { history, records: Vec::new(), counts, violations }
    }
}
