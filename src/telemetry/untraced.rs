//! What stands for [`traces`](self) in a program that was built without them: nothing is collected, and nothing is sent.

use std::time::Duration;

use thiserror::Error;

use super::RequestEnd;
use super::metrics::{NoAnswer, Step};

/// Why traces cannot be sent.
#[derive(Debug, Error)]
#[error("this program was built without traces")]
pub struct TracesError;

/// There are none.
pub enum Traces {}

impl Traces {
    /// Always refuses.
    pub fn start(_endpoint: &str) -> Result<Self, TracesError> {
        Err(TracesError)
    }

    /// Is never called.
    pub async fn finish(self, _within: Duration) {
        match self {}
    }
}

/// The span of a request, which is not recorded.
pub struct RequestSpan;

impl RequestSpan {
    /// A request has come.
    pub fn begin<'a>(_method: &str, _route: &str, _traceparent: impl FnOnce() -> Option<&'a str>) -> Self {
        Self
    }

    /// Whether the span is collected.
    pub fn is_recorded(&self) -> bool {
        false
    }

    /// Runs `answer`.
    pub fn around<A: Future>(&self, answer: A) -> A {
        answer
    }

    /// The request is over.
    pub fn end(&self, _end: &RequestEnd<'_>) {}
}

/// The span of a step at the store. There is none.
pub enum StepSpan {}

impl StepSpan {
    /// The store is asked.
    pub fn begin(_step: Step) -> Option<Self> {
        None
    }

    /// Is never called.
    pub fn failed(&mut self, _how: NoAnswer) {
        match *self {}
    }
}
