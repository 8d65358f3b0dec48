//! What a request carries from its arrival to its line in the log: its caller, what it asks for, and its id.

use std::sync::{Arc, OnceLock};

use axum::http::{HeaderValue, Method};

use super::route::is_of_tool;
use crate::access::{Caller, Denied, Right};
use crate::audit::{Audit, Who};
use crate::lock::LockKey;
use crate::server::Peer;
use crate::telemetry::labels;

/// Both forms of the address of a record.
const ONCE_PATH: &str = "/once/{key}";
const ONCE_QUERY: &str = "/once";

labels! {
    /// What a request asks for. A new operation is added here, and where it is recognized.
    pub(super) enum Operation {
        Acquire = "acquire",
        Renew = "renew",
        Release = "release",
        Inspect = "inspect",
        Hold = "hold",
        List = "list",
        Break = "break",
        Events = "events",
        Begin = "begin",
        Store = "store",
        OnceRenew = "once-renew",
        GiveUp = "give-up",
        OnceLook = "once-look",
        OnceBreak = "once-break",
        Records = "records",
        /// In the protocol of another tool.
        FacadeAcquire = "facade-acquire",
        FacadeRelease = "facade-release",
        /// What such a protocol does not have.
        Facade = "facade",
        Other = "other",
    }
}

impl Operation {
    /// What the method and the route of a request ask for. Where the query decides, `LockQuery::asked` says it instead.
    pub(super) fn of(method: &Method, route: &str) -> Self {
        match (method.as_str(), route) {
            ("PUT", "/locks/{key}" | "/lock") => Self::Acquire,
            ("PATCH", "/locks/{key}" | "/lock") => Self::Renew,
            ("DELETE", "/locks/{key}" | "/lock") => Self::Release,
            ("GET" | "HEAD", "/locks/{key}" | "/lock") => Self::Inspect,
            ("POST", "/hold") => Self::Hold,
            ("GET" | "HEAD", "/locks") => Self::List,
            ("GET" | "HEAD", "/events") => Self::Events,
            ("PUT", ONCE_PATH | ONCE_QUERY) => Self::Begin,
            ("POST", ONCE_PATH | ONCE_QUERY) => Self::Store,
            ("PATCH", ONCE_PATH | ONCE_QUERY) => Self::OnceRenew,
            ("DELETE", ONCE_PATH | ONCE_QUERY) => Self::GiveUp,
            ("GET" | "HEAD", ONCE_PATH | ONCE_QUERY) => Self::OnceLook,
            ("GET" | "HEAD", "/records") => Self::Records,
            // Also where the request is refused before it is known which lock it is about.
            (_, "/v1.0-alpha1/lock/{store}" | "/fleet-lock/v1/pre-reboot") => Self::FacadeAcquire,
            (_, "/v1.0-alpha1/unlock/{store}" | "/fleet-lock/v1/steady-state") => Self::FacadeRelease,
            ("LOCK" | "PUT" | "POST", "/terraform" | "/terraform/{key}") => Self::FacadeAcquire,
            ("UNLOCK" | "DELETE", "/terraform" | "/terraform/{key}") => Self::FacadeRelease,
            _ if is_of_tool(route) => Self::Facade,
            _ => Self::Other,
        }
    }

    /// Whether its key names a record.
    pub(super) fn is_of_record(self) -> bool {
        let is_workers = matches!(self, Self::Begin | Self::Store | Self::OnceRenew | Self::GiveUp);
        is_workers || matches!(self, Self::OnceLook | Self::OnceBreak)
    }
}

/// Notes who asks for what, for the log line and the metrics.
#[derive(Clone)]
pub(super) struct RequestContext(Arc<Found>);

struct Found {
    request_id: HeaderValue,
    peer: Option<Arc<Peer>>,
    asked: OnceLock<Asked>,
    /// With the audit log, if the caller's requests belong there.
    caller: OnceLock<(Caller, Option<Arc<Audit>>)>,
    /// The right that it turned out to need besides.
    further_right: OnceLock<Right>,
    /// Whether the request gets a line, if that was decided.
    has_line: OnceLock<bool>,
}

/// What a request turned out to be once it was read.
pub(super) struct Asked {
    /// What its caller must be allowed to do.
    pub(super) right: Right,
    /// The parsed key, never the raw address. A caller may put a token there by mistake, and no token may get into a
    /// log.
    pub(super) key: Option<LockKey>,
    /// More of them, if it takes several locks.
    pub(super) others: Vec<LockKey>,
    /// What it asks for, if that differs from what its method and route say.
    pub(super) operation: Option<Operation>,
    /// Whether it asks to wait. Then its duration says nothing about the gateway.
    pub(super) waits: bool,
}

impl Asked {
    /// A request that does not wait, and that asks for what its method and route say.
    pub(super) fn of(right: Right, key: Option<LockKey>) -> Self {
        Self { right, key, others: Vec::new(), operation: None, waits: false }
    }
}

impl RequestContext {
    pub(super) fn new(request_id: HeaderValue, peer: Option<Arc<Peer>>) -> Self {
        let (asked, caller, has_line) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Self(Arc::new(Found { request_id, peer, asked, caller, further_right: OnceLock::new(), has_line }))
    }

    pub(super) fn request_id(&self) -> &HeaderValue {
        &self.0.request_id
    }

    /// Where the request comes from; `None` without an accept loop in front of us.
    pub(super) fn peer(&self) -> Option<&Arc<Peer>> {
        self.0.peer.as_ref()
    }

    /// Says what the request asks for.
    pub(super) fn set_asked(&self, asked: Asked) {
        // A request is read only once. If it were read again, the first result would stay.
        let _ = self.0.asked.set(asked);
    }

    /// Only its body says that the request needs this right.
    pub(super) fn needs_further(&self, right: Right) {
        let _ = self.0.further_right.set(right);
    }

    /// The right that the request needs, once it was read.
    pub(super) fn right(&self) -> Option<Right> {
        self.0.further_right.get().copied().or_else(|| self.asked().map(|asked| asked.right))
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

    /// The audit log, if the caller's requests belong there.
    pub(super) fn audit(&self) -> Option<&Arc<Audit>> {
        self.0.caller.get().and_then(|(_, audit)| audit.as_ref())
    }

    /// Whether the caller may still have what it asked for: the keys may have changed since.
    pub(super) fn check_again(&self) -> Result<(), Denied> {
        let (Some(caller), Some(asked)) = (self.caller(), self.asked()) else { return Ok(()) };
        // Also where it names no lock.
        caller.check_prefix(asked.right, "")?;
        asked.key.iter().chain(&asked.others).try_for_each(|key| caller.check(asked.right, key))
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

    /// Decides whether the request gets a line in the log. Without this call, a known caller's request gets one. Of
    /// other requests, each address has a limited number.
    pub(super) fn set_has_line(&self, has_line: bool) {
        let _ = self.0.has_line.set(has_line);
    }

    /// Whether the request gets a line in the log, if that was decided.
    pub(super) fn has_line(&self) -> Option<bool> {
        self.0.has_line.get().copied()
    }
}
