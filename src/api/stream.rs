//! Answers that go on: server-sent events, or JSON objects line by line.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::extract::FromRequestParts;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

pub(super) mod hold_event;
pub(super) mod lock_event;

/// Makes nginx pass events on as they come.
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
/// Server-sent events.
pub(super) const SSE: &str = "text/event-stream";
/// One JSON object a line.
pub(super) const NDJSON: &str = "application/x-ndjson";

/// How events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamForm {
    Sse,
    Ndjson,
}

/// An event of a stream.
pub(super) trait StreamEvent: Serialize {
    /// Removes from the event what a server-sent event says in lines of its own, and returns these lines. `None` means
    /// that the event only says that the stream goes on.
    fn take_head(&mut self) -> Option<String>;
}

impl StreamForm {
    fn media_type(self) -> &'static str {
        match self {
            Self::Sse => SSE,
            Self::Ndjson => NDJSON,
        }
    }

    /// The answer that is a stream in this form.
    pub(super) fn stream(self, body: Body) -> Response {
        let headers = [
            (CONTENT_TYPE, HeaderValue::from_static(self.media_type())),
            (ACCEL_BUFFERING, HeaderValue::from_static("no")),
        ];
        (headers, body).into_response()
    }

    /// An event as it is written.
    pub(super) fn write(self, mut event: impl StreamEvent) -> Bytes {
        let text = match self {
            Self::Ndjson => json(&event) + "\n",
            Self::Sse => match event.take_head() {
                Some(head) => format!("{head}data: {}\n\n", json(&event)),
                // A comment, which clients skip.
                None => ":\n\n".to_owned(),
            },
        };
        text.into()
    }

    /// The form that the client prefers by its `Accept`. If it prefers none, or accepts neither, it gets server-sent
    /// events: the status 406 would not help it.
    fn accepted(headers: &HeaderMap) -> Self {
        let lines = headers.get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok());
        let ranges: Vec<_> = lines.flat_map(|line| line.split(',')).filter_map(range).collect();
        let weight = |media_type: &str| {
            let (kind, _) = media_type.split_once('/').unwrap_or_default();
            let fit = |name: &str| match name {
                "*/*" => Some(0),
                _ if name.eq_ignore_ascii_case(media_type) => Some(2),
                _ => name.strip_suffix("/*").filter(|range| range.eq_ignore_ascii_case(kind)).map(|_| 1),
            };
            // The most specific range decides the quality of a form. If both forms have the same quality, the form with
            // the more specific range wins.
            let fits = ranges.iter().filter_map(|(name, quality)| Some((fit(name)?, *quality)));
            fits.max_by_key(|(fit, _)| *fit).map_or((0, 0), |(fit, quality)| (quality, fit))
        };
        if weight(NDJSON) > weight(SSE) { Self::Ndjson } else { Self::Sse }
    }
}

/// It is read before the handler, which has no headers then: it may wait, and they may be long.
impl<S: Sync> FromRequestParts<S> for StreamForm {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::accepted(&parts.headers))
    }
}

/// Events always have a JSON form.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// The line of a server-sent event that names it.
fn name_line(name: &impl Serialize) -> String {
    format!("event: {}\n", json(name).trim_matches('"'))
}

/// A media range, and its quality in thousandths.
fn range(text: &str) -> Option<(&str, u32)> {
    let mut parts = text.split(';').map(str::trim);
    let name = parts.next().filter(|name| !name.is_empty())?;
    let quality = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
    // A range whose quality cannot be read does not count.
    let quality = quality.map_or(Some(1.0), |quality| quality.trim().parse::<f64>().ok())?;
    // The cast is safe: the bounds are checked here.
    (0.0..=1.0).contains(&quality).then_some((name, (quality * 1000.0) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_is_what_the_client_prefers() {
        let form = |accept: &'static str| {
            let headers = HeaderMap::from_iter([(ACCEPT, axum::http::HeaderValue::from_static(accept))]);
            StreamForm::accepted(&headers)
        };
        for accept in [
            "*/*",
            "text/event-stream",
            "text/event-stream, */*",
            "application/json, text/plain, */*",
            "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
            "application/json",
            "text/event-stream, application/x-ndjson;q=0.9",
            "application/x-ndjson;q=0, */*",
            "application/x-ndjson;q=nonsense",
            "text/*, application/*",
            "",
        ] {
            assert_eq!(form(accept), StreamForm::Sse, "{accept}");
        }
        for accept in [
            "application/x-ndjson",
            "Application/X-NDJSON; q=0.5",
            "application/x-ndjson, */*",
            "text/event-stream;q=0.5, application/x-ndjson",
            "text/event-stream;q=0, */*",
        ] {
            assert_eq!(form(accept), StreamForm::Ndjson, "{accept}");
        }
        assert_eq!(StreamForm::accepted(&HeaderMap::new()), StreamForm::Sse);
    }
}
