//! The gateway as its client sees it: requests, and what each answer means for the holder of a lock.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Method, RequestBuilder, Response, Url};
use serde::Deserialize;

use super::addresses::is_of_this_machine;
use super::trouble::{Contact, Trouble};
use super::{AcquireSettings, GatewaySettings};
use crate::clock::{boottime, whole_ms};
use crate::lock::{LeaseToken, LockKey};

/// How long a connection may take to be made, and how long where another gateway can be asked instead.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT_OF_SEVERAL: Duration = Duration::from_secs(2);
/// The other end of a silent connection is probed after this time, and as often after that. Two probes without an answer
/// end the connection. That is early enough for the place in the wait queue to be kept elsewhere.
const KEEPALIVE: Duration = Duration::from_secs(2);
/// Less than gateways and proxies keep an idle connection, so that a request never meets one that is just being closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// No answer of a gateway is so long: the longest is a page of a thousand locks. What is longer must not fill the memory.
const LONGEST_BODY: usize = 16 << 20;
/// How many characters of what a gateway says are told to people.
const LONGEST_REASON: usize = 500;
const LEASE_TOKEN: &str = "lease-token";

/// A gateway, and what all requests to it have in common.
pub(crate) struct Gateway {
    client: Client,
    address: Url,
    /// The lock that is asked about, if it is one.
    key: Option<String>,
    /// The API key, and the lease token if there is one.
    headers: HeaderMap,
}

/// What an answer said of the lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldGrant {
    pub(crate) fencing_token: u64,
    /// When the request was sent.
    pub(crate) sent_at: Duration,
    /// When the lease ends at the earliest, counted from then.
    pub(crate) ends_at: Duration,
}

/// What came of asking for the lock.
pub(crate) enum AcquireAnswer {
    Held(HeldGrant),
    /// Another client has it, or too many wait.
    Busy(Busy),
    /// Nothing is decided: ask again.
    NotNow(Trouble),
    /// No request like this one will ever be granted.
    Refused(RequestRefusal),
}

/// What a gateway says, and nothing in front of it, however often the same is asked.
pub(crate) struct RequestRefusal {
    pub(crate) parameter: Option<String>,
    pub(crate) reason: String,
    /// It refuses the caller, and not the request: a release would be refused too.
    pub(crate) is_of_all: bool,
}

/// Why the lock is not ours yet, and who else waits.
pub(crate) struct Busy {
    pub(crate) position: Option<u64>,
    pub(crate) waiters: u64,
    pub(crate) reason: String,
}

/// What came of a renewal.
pub(crate) enum RenewAnswer {
    Held(HeldGrant),
    /// The lock is not ours any more.
    Gone(String),
    /// It stays ours until its lease ends, and not longer.
    MaxHoldReached(String),
}

/// What came of a release.
pub(crate) enum ReleaseAnswer {
    Done,
    /// It was not ours any more.
    NotHeld(String),
}

#[derive(Deserialize)]
struct GrantBody {
    key: String,
    token: String,
    fencing_token: u64,
    ttl_ms: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct GatewayProblem {
    #[serde(rename = "type")]
    pub(super) kind: String,
    detail: String,
    parameter: Option<String>,
    position: Option<u64>,
    pub(super) waiters: u64,
}

/// An answer, read to its end.
pub(super) struct GatewayReply<'a> {
    /// Who was asked.
    gateway: &'a Gateway,
    pub(super) status: u16,
    sent_at: Duration,
    pub(super) body: Vec<u8>,
}

/// What speaks HTTP with a gateway at this address.
fn client(settings: &GatewaySettings, address: &Url) -> Result<Client, String> {
    // A second call changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let is_alone = settings.addresses.iter().count() == 1;
    let mut builder = Client::builder()
        .redirect(Policy::none())
        .connect_timeout(if is_alone { CONNECT_TIMEOUT } else { CONNECT_TIMEOUT_OF_SEVERAL })
        .tcp_keepalive(KEEPALIVE)
        .tcp_keepalive_interval(KEEPALIVE)
        .tcp_keepalive_retries(2)
        .pool_idle_timeout(IDLE_TIMEOUT);
    if is_of_this_machine(address) {
        // Secrets must not leave the machine for a gateway on it.
        builder = builder.no_proxy();
    }
    if address.scheme() != "https" {
        // Where no certificates are needed, none need be installed on this machine.
        builder = builder.tls_certs_only([]);
    }
    let tls_error = |error| format!("cannot use TLS: {}", Trouble::from(error).reason);
    if let Some(pem) = &settings.authorities {
        builder = builder.tls_certs_only(Certificate::from_pem_bundle(pem).map_err(tls_error)?);
    }
    builder.build().map_err(tls_error)
}

impl Gateway {
    pub(crate) fn new(
        address: &Url,
        settings: &GatewaySettings,
        key: Option<&LockKey>,
        token: Option<&LeaseToken>,
    ) -> Result<Self, String> {
        let mut headers = HeaderMap::new();
        if let Some(token) = token {
            headers.insert(LEASE_TOKEN, secret(token.reveal())?);
        }
        if let Some(key) = &settings.api_key {
            headers.insert(AUTHORIZATION, secret(&format!("Bearer {key}"))?);
        }
        let key = key.map(|key| key.as_str().to_owned());
        Ok(Self { client: client(settings, address)?, address: address.clone(), key, headers })
    }

    /// Asks for the lock, waiting in the queue for so long.
    pub(crate) async fn acquire(
        &self,
        settings: &AcquireSettings,
        wait: Duration,
        patience: Duration,
    ) -> AcquireAnswer {
        let mut query = vec![("ttl", in_ms(settings.ttl))];
        if let Some(owner) = &settings.owner {
            query.push(("owner", owner.as_str().to_owned()));
        }
        let times = [("max_hold", settings.max_hold), ("min_hold", settings.min_hold)];
        query.extend(times.into_iter().filter_map(|(name, time)| Some((name, in_ms(time?)))));
        if !wait.is_zero() {
            query.push(("wait", in_ms(wait)));
        }
        let reply = match self.call(Method::PUT, "lock", &query, patience).await {
            Ok(reply) => reply,
            Err(trouble) => return AcquireAnswer::NotNow(trouble),
        };
        if let Some(held) = reply.held() {
            return AcquireAnswer::Held(held);
        }
        let problem = reply.problem();
        match problem.kind.as_str() {
            // A full wait queue is one of a lock that others hold.
            "/problems/lock-held" | "/problems/too-many-waiters" => AcquireAnswer::Busy(Busy {
                position: problem.position,
                waiters: problem.waiters,
                reason: reply.reason(),
            }),
            _ if reply.is_refusal() => AcquireAnswer::Refused(RequestRefusal {
                parameter: problem.parameter,
                reason: reply.reason(),
                is_of_all: reply.status != 400,
            }),
            // A limit says nothing of who holds the lock.
            _ => AcquireAnswer::NotNow(reply.trouble()),
        }
    }

    /// Renews the lease; what proxies say is never taken for what the gateway says.
    pub(crate) async fn renew(&self, ttl: Duration, patience: Duration) -> Result<RenewAnswer, Trouble> {
        let reply = self.ask_to_renew(ttl, patience).await?;
        reply.renewal().ok_or_else(|| reply.trouble())
    }

    /// Releases the lock, or gives up the place in the queue.
    pub(crate) async fn release(&self, patience: Duration) -> Result<ReleaseAnswer, Trouble> {
        let reply = self.ask_to_release(patience).await?;
        reply.release().ok_or_else(|| reply.trouble())
    }

    pub(super) async fn ask_to_renew(
        &self,
        ttl: Duration,
        patience: Duration,
    ) -> Result<GatewayReply<'_>, Trouble> {
        self.call(Method::PATCH, "lock", &[("ttl", in_ms(ttl))], patience).await
    }

    pub(super) async fn ask_to_release(&self, patience: Duration) -> Result<GatewayReply<'_>, Trouble> {
        self.call(Method::DELETE, "lock", &[], patience).await
    }

    /// One request and its whole answer, which may take so long.
    pub(super) async fn call(
        &self,
        method: Method,
        place: &str,
        query: &[(&str, String)],
        patience: Duration,
    ) -> Result<GatewayReply<'_>, Trouble> {
        // A lease is counted from before the request that got it.
        let sent_at = boottime();
        let response = self.request(method, place, query).timeout(patience).send().await;
        self.read(response.map_err(Trouble::from)?, sent_at).await
    }

    /// A request that is yet to be sent.
    pub(super) fn request(&self, method: Method, place: &str, query: &[(&str, String)]) -> RequestBuilder {
        let mut url = self.address.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.push(place);
        }
        let key = self.key.iter().map(|key| ("key", key));
        url.query_pairs_mut().extend_pairs(key).extend_pairs(query);
        self.client.request(method, url).headers(self.headers.clone())
    }

    /// Reads the rest of an answer.
    pub(super) async fn read(
        &self,
        mut response: Response,
        sent_at: Duration,
    ) -> Result<GatewayReply<'_>, Trouble> {
        let status = response.status().as_u16();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            if body.len() + chunk.len() > LONGEST_BODY {
                return Err(Trouble::without_answer("its answer is too long for one of a Fencepost gateway"));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(GatewayReply { gateway: self, status, sent_at, body })
    }

    /// Whether this is the name of the lock that it is asked about.
    pub(super) fn is_asked_about(&self, key: &str) -> bool {
        self.key.as_deref() == Some(key)
    }
}

impl GatewayProblem {
    fn is_gateways(&self) -> bool {
        self.kind.starts_with("/problems/")
    }

    /// A gateway says that it did not do what it was asked for.
    fn is_certain(&self) -> bool {
        self.is_gateways()
            && !matches!(self.kind.as_str(), "/problems/outcome-unknown" | "/problems/internal-error")
    }
}

impl GatewayReply<'_> {
    fn held(&self) -> Option<HeldGrant> {
        let grant: GrantBody = match self.status {
            200 | 201 => serde_json::from_slice(&self.body).ok()?,
            _ => return None,
        };
        // A cache or another server may have answered about something else.
        let token = self.gateway.headers.get(LEASE_TOKEN)?;
        if !self.gateway.is_asked_about(&grant.key) || token != grant.token.as_str() {
            return None;
        }
        let ends_at = self.sent_at + Duration::from_millis(grant.ttl_ms);
        Some(HeldGrant { fencing_token: grant.fencing_token, sent_at: self.sent_at, ends_at })
    }

    /// What it says of a renewal; `None` if it decides nothing.
    pub(super) fn renewal(&self) -> Option<RenewAnswer> {
        if let Some(held) = self.held() {
            return Some(RenewAnswer::Held(held));
        }
        match (self.status, self.problem().kind.as_str()) {
            (404, "/problems/not-held") | (409, "/problems/held-by-another" | "/problems/token-released") => {
                Some(RenewAnswer::Gone(self.reason()))
            }
            (409, "/problems/max-hold-reached") => Some(RenewAnswer::MaxHoldReached(self.reason())),
            _ => None,
        }
    }

    /// What it says of a release; `None` if it decides nothing.
    pub(super) fn release(&self) -> Option<ReleaseAnswer> {
        match (self.status, self.problem().kind.as_str()) {
            (204, _) => Some(ReleaseAnswer::Done),
            (404, "/problems/not-held") | (409, "/problems/held-by-another") => {
                Some(ReleaseAnswer::NotHeld(self.reason()))
            }
            _ => None,
        }
    }

    pub(super) fn problem(&self) -> GatewayProblem {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Why it decides nothing. What stands in front of a gateway may answer so although that has done what was asked for.
    pub(super) fn trouble(&self) -> Trouble {
        if self.wants_tls() {
            let reason = "this port speaks TLS: write https://".to_owned();
            return Trouble { reason, contact: Contact::None, may_be_done: false, is_lasting: true };
        }
        let problem = self.problem();
        if !problem.is_gateways() {
            return Trouble::without_answer(self.reason());
        }
        Trouble {
            reason: self.reason(),
            contact: Contact::Answered,
            may_be_done: !problem.is_certain(),
            is_lasting: self.is_refusal() && self.status != 400,
        }
    }

    /// Whether a gateway says that the same request will be refused again. No other answer is a refusal.
    pub(super) fn is_refusal(&self) -> bool {
        self.problem().is_gateways() && !matches!(self.status, 408 | 423 | 425 | 429 | 500..=599)
    }

    pub(super) fn reason(&self) -> String {
        let problem = self.problem();
        if !problem.is_gateways() {
            return not_a_gateways(self.status);
        }
        if self.status == 401 && !self.gateway.headers.contains_key(AUTHORIZATION) {
            return "it asks for an API key: name the file of yours by --api-key-file".to_owned();
        }
        match problem.detail.char_indices().nth(LONGEST_REASON) {
            Some((end, _)) => format!("{}…", &problem.detail[..end]),
            None => problem.detail,
        }
    }

    /// Whether a server says, in its own words, that it reads nothing but TLS at this port.
    fn wants_tls(&self) -> bool {
        let page = String::from_utf8_lossy(&self.body).to_ascii_lowercase();
        self.status == 400
            && self.gateway.address.scheme() == "http"
            && !self.problem().is_gateways()
            && ["speaks tls", "plain http", "http request to an https"].iter().any(|said| page.contains(said))
    }
}

/// What is said of an answer that no gateway gives.
pub(super) fn not_a_gateways(status: u16) -> String {
    format!("the answer is HTTP {status}, and not that of a Fencepost gateway")
}

fn secret(text: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_str(text).map_err(|error| error.to_string())?;
    value.set_sensitive(true);
    Ok(value)
}

fn in_ms(time: Duration) -> String {
    format!("{}ms", whole_ms(time))
}
