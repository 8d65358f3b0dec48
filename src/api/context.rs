//! What a request carries from the door to its line in the log: who asks, for what, and under which id.

use std::sync::{Arc, OnceLock};

use axum::http::{HeaderValue, Method};

use crate::access::{Caller, Right};
use crate::audit::{Audit, Who};
use crate::lock::LockKey;
use crate::server::Peer;
use crate::telemetry::labels;

labels! {
    /// What a request asks for. A new one is a line here, and one where it is recognized.
    pub(super) enum Operation {
        Acquire = "acquire",
        Renew = "renew",
        Release = "release",
        Inspect = "inspect",
        Hold = "hold",
        List = "list",
        Break = "break",
        Events = "events",
        Other = "other",
    }
}

impl Operation {
    /// What a request asks for by its method and route. Where that depends on its query, the query says it instead, by
    /// `LockQuery::asked`.
    pub(super) fn of(method: &Method, route: &str) -> Self {
        match (method.as_str(), route) {
            ("PUT", "/locks/{key}" | "/lock") => Self::Acquire,
            ("PATCH", "/locks/{key}" | "/lock") => Self::Renew,
            ("DELETE", "/locks/{key}" | "/lock") => Self::Release,
            ("GET" | "HEAD", "/locks/{key}" | "/lock") => Self::Inspect,
            ("POST", "/hold") => Self::Hold,
            ("GET" | "HEAD", "/locks") => Self::List,
            ("GET" | "HEAD", "/events") => Self::Events,
            _ => Self::Other,
        }
    }
}

/// Where it is left for the log line and the numbers who asks for what.
#[derive(Clone)]
pub(super) struct RequestContext(Arc<Found>);

struct Found {
    request_id: HeaderValue,
    peer: Option<Arc<Peer>>,
    asked: OnceLock<Asked>,
    /// With the place where it is written down what the caller does, if that is worth it.
    caller: OnceLock<(Caller, Option<Arc<Audit>>)>,
    /// Whether it is worth a line, where that was found out.
    has_line: OnceLock<bool>,
}

/// What a request turned out to be once it was read.
pub(super) struct Asked {
    /// What its caller must be allowed to do.
    pub(super) right: Right,
    /// The parsed key, never the raw address: a caller who puts a token there by mistake must not find it in a log.
    pub(super) key: Option<LockKey>,
    /// What it asks for, where that is not what its method and route say.
    pub(super) operation: Option<Operation>,
    /// Whether it asks to wait, so that its time says nothing of the gateway.
    pub(super) waits: bool,
}

impl Asked {
    /// A request that is what its method and route say, and does not wait.
    pub(super) fn of(right: Right, key: Option<LockKey>) -> Self {
        Self { right, key, operation: None, waits: false }
    }
}

impl RequestContext {
    pub(super) fn new(request_id: HeaderValue, peer: Option<Arc<Peer>>) -> Self {
        let (asked, caller, has_line) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Self(Arc::new(Found { request_id, peer, asked, caller, has_line }))
    }

    pub(super) fn request_id(&self) -> &HeaderValue {
        &self.0.request_id
    }

    /// Where the request comes from; `None` without an accept loop in front.
    pub(super) fn peer(&self) -> Option<&Arc<Peer>> {
        self.0.peer.as_ref()
    }

    /// Says what the request asks for.
    pub(super) fn set_asked(&self, asked: Asked) {
        // A request is read once: were it read again, the first time would stand.
        let _ = self.0.asked.set(asked);
    }

    /// What the request asks for, once it was read.
    pub(super) fn asked(&self) -> Option<&Asked> {
        self.0.asked.get()
    }

    /// Who makes the request.
    pub(super) fn set_caller(&self, caller: Caller, audit: Option<&Arc<Audit>>) {
        let _ = self.0.caller.set((caller, audit.cloned()));
    }

    /// Who makes the request, once that was found out.
    pub(super) fn caller(&self) -> Option<&Caller> {
        self.0.caller.get().map(|(caller, _)| caller)
    }

    /// Where it is written down what the caller does, if that is worth it.
    pub(super) fn audit(&self) -> Option<&Arc<Audit>> {
        self.0.caller.get().and_then(|(_, audit)| audit.as_ref())
    }

    /// Who makes the request, for the audit log.
    pub(super) fn who(&self) -> Who {
        let caller = self.caller();
        Who {
            request_id: self.0.request_id.to_str().unwrap_or_default().to_owned(),
            address: self.0.peer.as_ref().map(|peer| peer.address.ip().to_canonical().to_string()),
            key_id: caller.and_then(Caller::id).map(str::to_owned),
            key_name: caller.and_then(Caller::name).map(str::to_owned),
        }
    }

    /// Says whether the request is worth a line of the log. Otherwise one is, of which it is known who makes it, and of
    /// strangers as many as of one address.
    pub(super) fn set_has_line(&self, has_line: bool) {
        let _ = self.0.has_line.set(has_line);
    }

    /// Whether the request is worth a line of the log, where that was found out.
    pub(super) fn has_line(&self) -> Option<bool> {
        self.0.has_line.get().copied()
    }
}
