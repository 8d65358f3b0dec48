//! What heads of requests say that hyper lets pass: it cuts off what follows a `#`, takes a line feed alone for the end of a
//! line, and counts no `Host`. Each has two readers see two different requests.

use std::sync::Arc;

use axum::http::header::HOST;
use axum::http::{Request, Version};
use memchr::{memchr, memchr_iter};

use super::requests::Requests;

/// Why a request is refused, whatever it asks for: the application says it by [`Application::refuse`](super::Application::refuse).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Its target has a `#`, behind which servers see nothing.
    Fragment,
    /// A line of its head ends without a carriage return.
    BareLineFeed,
    /// It has no `Host`, several, or another one than its target.
    Host,
}

impl Malformed {
    /// Whether a request names its server once (RFC 9112, section 3.2, and RFC 9113, section 8.3.1).
    pub(super) fn by_host<B>(request: &Request<B>) -> Option<Self> {
        let mut hosts = request.headers().get_all(HOST).iter();
        let is_named_once = match (hosts.next(), hosts.next(), request.version()) {
            (None, _, Version::HTTP_11) | (_, Some(_), _) => false,
            (Some(host), None, _) => {
                let authority = request.uri().authority().map(|authority| authority.as_str().as_bytes());
                authority.is_none_or(|authority| authority.eq_ignore_ascii_case(host.as_bytes()))
            }
            _ => true,
        };
        (!is_named_once).then_some(Self::Host)
    }
}

/// Reads the heads of one connection beside hyper, and notes the first that is malformed: nothing behind it is served.
///
/// A request with a body is the last of its connection, so that there are only heads here.
pub(super) struct Heads {
    requests: Arc<Requests>,
    /// Requests whose head is complete.
    complete: usize,
    is_in_fields: bool,
    line: Line,
    is_over: bool,
}

/// What was read of a line that has not ended.
#[derive(Clone, Copy, Default)]
struct Line {
    bytes: usize,
    ends_in_return: bool,
}

impl Line {
    /// The same line with this behind it.
    fn with(self, piece: &[u8]) -> Self {
        match piece.last() {
            None => self,
            Some(last) => Self { bytes: self.bytes + piece.len(), ends_in_return: *last == b'\r' },
        }
    }
}

impl Heads {
    pub(super) fn new(requests: Arc<Requests>) -> Self {
        Self { requests, complete: 0, is_in_fields: false, line: Line::default(), is_over: false }
    }

    /// There are no heads of HTTP/1.
    pub(super) fn stop(&mut self) {
        self.is_over = true;
    }

    /// Reads what hyper is about to read.
    pub(super) fn read(&mut self, bytes: &[u8]) {
        if self.is_over {
            return;
        }
        let mut begin = 0;
        for end in memchr_iter(b'\n', bytes) {
            let piece = &bytes[begin..end];
            begin = end + 1;
            let line = self.line.with(piece);
            self.line = Line::default();
            if !self.is_in_fields && memchr(b'#', piece).is_some() {
                return self.note(Malformed::Fragment);
            }
            if !line.ends_in_return {
                return self.note(Malformed::BareLineFeed);
            }
            // Lines may be empty before a request, as hyper has it.
            let is_empty = line.bytes == 1;
            self.complete += usize::from(self.is_in_fields && is_empty);
            self.is_in_fields = !is_empty;
        }
        let rest = &bytes[begin..];
        if !self.is_in_fields && memchr(b'#', rest).is_some() {
            return self.note(Malformed::Fragment);
        }
        self.line = self.line.with(rest);
    }

    fn note(&mut self, why: Malformed) {
        self.requests.note_malformed(self.complete, why);
        self.is_over = true;
    }
}
