//! The gateway as its client sees it: three requests, and what each answer means for whoever holds a lock.

use std::error::Error;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, Url};
use serde::Deserialize;

use super::RunSettings;
use super::lease::HeldGrant;
use crate::clock::{boottime, whole_ms};
use crate::lock::LeaseToken;

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How soon a waiting connection is probed whose other end may be gone, and how long for an answer. Twice unanswered, it
/// is given up.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// Less than gateways and proxies keep an idle connection, so that none is used that is about to be closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// The address of a gateway.
#[derive(Clone)]
pub struct GatewayAddress(Url);

impl GatewayAddress {
    /// Reads one; the error says what is wrong with it without repeating it, since it may hold a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut url = Url::parse(text).map_err(|error| format!("is no address: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err("must begin with http:// or https://, and name a host".into());
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err("must have neither a query nor a fragment".into());
        }
        // A gateway may be behind a path of a proxy.
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().push("lock");
        }
        Ok(Self(url))
    }

    /// Scheme, host and port, for people.
    pub(super) fn origin(&self) -> String {
        self.0.origin().ascii_serialization()
    }
}

/// One lock at a gateway, asked for with one token.
pub(super) struct Gateway {
    client: Client,
    address: Url,
    headers: HeaderMap,
}

/// What came of asking for the lock.
pub(super) enum AcquireAnswer {
    Held(HeldGrant),
    /// Somebody else has it, or too many wait.
    Busy(Busy),
    /// Nothing that decides: it is to be asked again.
    NotNow {
        reason: String,
        contact: Contact,
    },
    /// It will never be granted to a request like this.
    Refused {
        /// A gateway says so, and not something in front of it.
        is_gateways: bool,
        parameter: Option<String>,
        reason: String,
    },
}

/// How far a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Contact {
    /// There was no connection.
    None,
    /// It may have arrived.
    Sent,
    Answered,
}

/// How things stand in front of a lock.
pub(super) struct Busy {
    pub(super) position: Option<u64>,
    pub(super) waiters: u64,
    pub(super) reason: String,
}

/// What came of a renewal.
pub(super) enum RenewAnswer {
    Held(HeldGrant),
    /// The lock is not ours any more.
    Gone(String),
    /// It stays ours until its lease ends, and not longer.
    MaxHoldReached,
    NotNow(String),
}

/// What came of a release.
pub(super) enum ReleaseAnswer {
    Done,
    /// It was not ours any more.
    NotHeld(String),
    NotNow(String),
}

#[derive(Deserialize)]
struct GrantBody {
    fencing_token: u64,
    ttl_ms: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ProblemBody {
    #[serde(rename = "type")]
    kind: String,
    detail: String,
    parameter: Option<String>,
    position: Option<u64>,
    waiters: u64,
}

struct Reply {
    status: u16,
    sent_at: Duration,
    body: Vec<u8>,
}

impl Gateway {
    pub(super) fn new(settings: &RunSettings, token: &LeaseToken) -> Result<Self, String> {
        // A second call changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Client::builder()
            .redirect(Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_keepalive(KEEPALIVE)
            .tcp_keepalive_interval(KEEPALIVE)
            .tcp_keepalive_retries(2)
            .pool_idle_timeout(IDLE_TIMEOUT);
        if settings.gateway.0.scheme() == "http" {
            // Where no certificates are needed, none need be installed on this machine.
            builder = builder.tls_certs_only([]);
        }
        let client = builder.build().map_err(|error| format!("cannot use TLS: {}", cause(error)))?;
        let mut address = settings.gateway.0.clone();
        address.query_pairs_mut().append_pair("key", settings.key.as_str());
        let mut headers = HeaderMap::new();
        headers.insert("lease-token", secret(token.reveal())?);
        if let Some(key) = &settings.api_key {
            headers.insert(AUTHORIZATION, secret(&format!("Bearer {key}"))?);
        }
        Ok(Self { client, address, headers })
    }

    /// Asks for the lock, waiting in line at the gateway for so long.
    pub(super) async fn acquire(
        &self,
        settings: &RunSettings,
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
        let reply = match self.call(Method::PUT, &query, patience).await {
            Ok(reply) => reply,
            Err(Failure { reason, contact }) => return AcquireAnswer::NotNow { reason, contact },
        };
        if let Some(held) = reply.held() {
            return AcquireAnswer::Held(held);
        }
        let problem = reply.problem();
        let reason = reply.reason();
        match reply.status {
            423 | 429 => {
                AcquireAnswer::Busy(Busy { position: problem.position, waiters: problem.waiters, reason })
            }
            // A proxy may answer so while the gateway restarts.
            408 | 425 | 500..=599 => AcquireAnswer::NotNow { reason, contact: Contact::Answered },
            _ => {
                let is_gateways = problem.kind.starts_with("/problems/");
                AcquireAnswer::Refused { is_gateways, parameter: problem.parameter, reason }
            }
        }
    }

    /// Renews the lease; what proxies say is never taken for what the gateway says.
    pub(super) async fn renew(&self, ttl: Duration, patience: Duration) -> RenewAnswer {
        let reply = match self.call(Method::PATCH, &[("ttl", in_ms(ttl))], patience).await {
            Ok(reply) => reply,
            Err(failure) => return RenewAnswer::NotNow(failure.reason),
        };
        if let Some(held) = reply.held() {
            return RenewAnswer::Held(held);
        }
        match (reply.status, reply.problem().kind.as_str()) {
            (404, "/problems/not-held") | (409, "/problems/held-by-another" | "/problems/token-released") => {
                RenewAnswer::Gone(reply.reason())
            }
            (409, "/problems/max-hold-reached") => RenewAnswer::MaxHoldReached,
            _ => RenewAnswer::NotNow(reply.reason()),
        }
    }

    /// Releases the lock, or gives up the place in line.
    pub(super) async fn release(&self, patience: Duration) -> ReleaseAnswer {
        let reply = match self.call(Method::DELETE, &[], patience).await {
            Ok(reply) => reply,
            Err(failure) => return ReleaseAnswer::NotNow(failure.reason),
        };
        match (reply.status, reply.problem().kind.as_str()) {
            (204, _) => ReleaseAnswer::Done,
            (404, "/problems/not-held") | (409, "/problems/held-by-another") => {
                ReleaseAnswer::NotHeld(reply.reason())
            }
            _ => ReleaseAnswer::NotNow(reply.reason()),
        }
    }

    async fn call(
        &self,
        method: Method,
        query: &[(&str, String)],
        patience: Duration,
    ) -> Result<Reply, Failure> {
        let mut url = self.address.clone();
        url.query_pairs_mut().extend_pairs(query);
        // A lease is counted from before the request that got it.
        let sent_at = boottime();
        let request = self.client.request(method, url).headers(self.headers.clone()).timeout(patience);
        let response = request.send().await.map_err(Failure::from)?;
        let status = response.status().as_u16();
        let body = response.bytes().await.map_err(Failure::from)?.to_vec();
        Ok(Reply { status, sent_at, body })
    }
}

/// There is no answer.
struct Failure {
    reason: String,
    contact: Contact,
}

impl From<reqwest::Error> for Failure {
    fn from(error: reqwest::Error) -> Self {
        let contact = if error.is_connect() { Contact::None } else { Contact::Sent };
        Self { contact, reason: cause(error) }
    }
}

impl Reply {
    fn held(&self) -> Option<HeldGrant> {
        let grant: GrantBody = match self.status {
            200 | 201 => serde_json::from_slice(&self.body).ok()?,
            _ => return None,
        };
        let ends_at = self.sent_at + Duration::from_millis(grant.ttl_ms);
        Some(HeldGrant { fencing_token: grant.fencing_token, sent_at: self.sent_at, ends_at })
    }

    fn problem(&self) -> ProblemBody {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    fn reason(&self) -> String {
        let ProblemBody { kind, detail, .. } = self.problem();
        if kind.is_empty() {
            return format!("the answer is HTTP {}, and not that of a Fencepost gateway", self.status);
        }
        // It goes to a terminal, in one line.
        detail.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
    }
}

fn secret(text: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_str(text).map_err(|error| error.to_string())?;
    value.set_sensitive(true);
    Ok(value)
}

fn in_ms(time: Duration) -> String {
    format!("{}ms", whole_ms(time))
}

/// The innermost cause of an error, which says what happened; the address may hold a password, and is left out.
fn cause(error: reqwest::Error) -> String {
    if error.is_timeout() {
        return "no answer in time".to_owned();
    }
    let error = error.without_url();
    let mut innermost: &dyn Error = &error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
