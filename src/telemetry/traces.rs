//! Where the time of each request went, for a collector of traces (OTLP): one span for the request, and one for each
//! step at the store. Without a collector, nothing of this runs: a request only finds out that there is none.
//!
//! A span says the same about a request as its line in the log. It has the names of locks, but never a token.

use std::sync::OnceLock;
use std::time::Duration;

use futures_util::future::Either;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{FutureExt, Span, SpanKind, Status, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, Key, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use thiserror::Error;

use super::RequestEnd;
use super::collector::Collector;
use super::metrics::{NoAnswer, Step};

/// The name of the service, unless the environment has another.
const SERVICE: &str = "fencepost";

/// Set when there is a collector.
static TRACER: OnceLock<SdkTracer> = OnceLock::new();

/// Why traces cannot be sent.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct TracesError(String);

/// Collects spans and sends them, in a thread of its own.
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// From now on, sends spans to this address. Must be called once, within a runtime.
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

    /// Sends the remaining spans, for at most `within`.
    pub async fn finish(self, within: Duration) {
        // This blocks the calling thread. Failures were logged when they happened.
        let _ = tokio::task::spawn_blocking(move || self.0.shutdown_with_timeout(within)).await;
    }
}

/// What each span says about this process.
fn resource() -> Resource {
    let named = Resource::builder().build();
    let name = named.get(&Key::from_static_str("service.name"));
    let is_named = name.is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    let resource =
        Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    if is_named { resource.build() } else { resource.with_service_name(SERVICE).build() }
}

/// The span of a request, if there is a collector.
pub struct RequestSpan(Option<Context>);

impl RequestSpan {
    /// A request has come. Its `traceparent` names the trace that it belongs to, if there is one.
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

    /// Whether the span is collected.
    pub fn is_recorded(&self) -> bool {
        self.0.is_some()
    }

    /// Runs `answer`. Its steps belong to this span. (An `async fn` would have room for `answer` twice.)
    pub fn around<A: Future>(&self, answer: A) -> impl Future<Output = A::Output> + use<A> {
        match &self.0 {
            Some(context) => Either::Left(answer.with_context(context.clone())),
            None => Either::Right(answer),
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
            // It is no error of this server if a lock is held, or if a caller makes a mistake.
            if status >= 500 {
                span.set_attribute(KeyValue::new("error.type", end.outcome));
                span.set_status(Status::error(end.outcome));
            }
        }
        span.end();
    }
}

/// The methods that give spans their names. A client can invent others.
const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// The one header that is read. The other one, `tracestate`, would be free text of the client's.
struct Parent<'a>(Option<&'a str>);

impl Extractor for Parent<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.filter(|_| key == "traceparent")
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent"]
    }
}

/// The span of a step at the store. It ends when this is dropped.
pub struct StepSpan(<SdkTracer as Tracer>::Span);

impl StepSpan {
    /// The store is asked. `None` if that is for no request, or there is no collector.
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
