//! Where the time of each request went, for whoever collects traces by OTLP: a span for the request, and one for each
//! step at the store. While nobody does, nothing of this runs, and a request only finds that out.
//!
//! What is said of a request is what its line in the log says. The names of locks are among it, tokens never.

use std::sync::OnceLock;
use std::time::Duration;

use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{FutureExt, Span, SpanKind, Status, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, Key, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use thiserror::Error;

use super::collector::Collector;
use super::metrics::{NoAnswer, Step};

/// What the service is called, unless the environment says otherwise.
const SERVICE: &str = "fencepost";

/// There once somebody collects.
static TRACER: OnceLock<SdkTracer> = OnceLock::new();

/// Why traces cannot be sent.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct TracesError(String);

/// What collects spans and sends them, from a thread of its own.
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// Sends what happens from now on to this address. Called once, within a runtime.
    pub fn start(endpoint: &str) -> Result<Self, TracesError> {
        let collector = Collector::new(endpoint).map_err(|error| TracesError(error.to_string()))?;
        let exporter =
            SpanExporter::builder().with_http().with_http_client(collector).with_endpoint(endpoint);
        let exporter = exporter.build().map_err(|error| TracesError(error.to_string()))?;
        let provider =
            SdkTracerProvider::builder().with_resource(resource()).with_batch_exporter(exporter).build();
        let _ = TRACER.set(provider.tracer(SERVICE));
        Ok(Self(provider))
    }

    /// Sends what is left, for at most `within`.
    pub async fn finish(self, within: Duration) {
        // It blocks the thread that asks for it. What could not be sent was said when it was tried.
        let _ = tokio::task::spawn_blocking(move || self.0.shutdown_with_timeout(within)).await;
    }
}

/// What is said of this process with each span.
fn resource() -> Resource {
    let named = Resource::builder().build();
    let name = named.get(&Key::from_static_str("service.name"));
    let is_named = name.is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    let resource =
        Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    if is_named { resource.build() } else { resource.with_service_name(SERVICE).build() }
}

/// The span of a request, if somebody collects.
pub struct RequestSpan(Option<Context>);

/// What a request turned out to be, when it is over.
pub struct RequestEnd<'a> {
    /// What it asked for.
    pub operation: &'static str,
    /// What became of it.
    pub outcome: &'static str,
    /// Absent where nobody was there to be answered.
    pub status: Option<u16>,
    /// The lock.
    pub key: Option<&'a str>,
    /// Who asked, by the id of the API key.
    pub key_id: Option<&'a str>,
    /// As it stands in the log.
    pub request_id: &'a str,
}

impl RequestSpan {
    /// A request has come. Its `traceparent` says of which trace it is a part, if it is of one.
    pub fn begin<'a>(method: &str, route: &str, traceparent: impl FnOnce() -> Option<&'a str>) -> Self {
        let Some(tracer) = TRACER.get() else { return Self(None) };
        let method = if METHODS.contains(&method) { method } else { "_OTHER" };
        let parent =
            TraceContextPropagator::new().extract_with_context(&Context::new(), &Parent(traceparent()));
        let span = tracer
            .span_builder(format!("{method} {route}"))
            .with_kind(SpanKind::Server)
            .with_attributes([
                KeyValue::new("http.request.method", method.to_owned()),
                KeyValue::new("http.route", route.to_owned()),
            ])
            .start_with_context(tracer, &parent);
        Self(Some(parent.with_span(span)))
    }

    /// Whether somebody collects it.
    pub fn is_recorded(&self) -> bool {
        self.0.is_some()
    }

    /// Has the steps of `answer` be known as those of this request.
    pub async fn around<T>(&self, answer: impl Future<Output = T>) -> T {
        match &self.0 {
            Some(context) => answer.with_context(context.clone()).await,
            None => answer.await,
        }
    }

    /// The request is over.
    pub fn end(&self, end: &RequestEnd<'_>) {
        let Some(context) = &self.0 else { return };
        let span = context.span();
        if !span.is_recording() {
            return;
        }
        span.set_attribute(KeyValue::new("fencepost.operation", end.operation));
        span.set_attribute(KeyValue::new("fencepost.outcome", end.outcome));
        span.set_attribute(KeyValue::new("fencepost.request_id", end.request_id.to_owned()));
        if let Some(key) = end.key {
            span.set_attribute(KeyValue::new("fencepost.key", key.to_owned()));
        }
        if let Some(key_id) = end.key_id {
            span.set_attribute(KeyValue::new("fencepost.key_id", key_id.to_owned()));
        }
        if let Some(status) = end.status {
            span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
            // Whoever holds a lock already is no error, nor is a caller's mistake one of this server.
            if status >= 500 {
                span.set_attribute(KeyValue::new("error.type", end.outcome));
                span.set_status(Status::error(end.outcome));
            }
        }
        span.end();
    }
}

/// The methods that a span is named after. Others are a client's invention.
const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// The one header that is taken over. Its companion `tracestate` would be free text of the client's.
struct Parent<'a>(Option<&'a str>);

impl Extractor for Parent<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.filter(|_| key == "traceparent")
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent"]
    }
}

/// The span of a step at the store, which ends when this is dropped.
pub struct StepSpan(<SdkTracer as Tracer>::Span);

impl StepSpan {
    /// The store is asked; `None` where that is for no request, or nobody collects.
    pub fn begin(step: Step) -> Option<Self> {
        let tracer = TRACER.get()?;
        let request = Context::current();
        if !request.span().is_recording() {
            return None;
        }
        let name = format!("store {}", step.name());
        let span = tracer.span_builder(name).with_kind(SpanKind::Client).start_with_context(tracer, &request);
        Some(Self(span))
    }

    /// The store has not answered.
    pub fn failed(&mut self, how: NoAnswer) {
        self.0.set_attribute(KeyValue::new("error.type", how.name()));
        self.0.set_status(Status::error(how.name()));
    }
}
