//! The gateway as its client sees it: three requests, and what each answer means for the holder of a lock.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Method, Url};
use serde::Deserialize;

use super::RunSettings;
use super::addresses::GatewayAddresses;
use super::lease::HeldGrant;
use super::trouble::{Contact, Trouble};
use crate::clock::{boottime, whole_ms};
use crate::lock::LeaseToken;

/// How long a connection may take to be made, and how long where another gateway can be asked instead.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT_OF_SEVERAL: Duration = Duration::from_secs(2);
/// The other end of a silent connection is probed after this time, and as often after that. Two probes without an answer
/// end the connection. That is early enough for the place in the wait queue to be kept elsewhere.
const KEEPALIVE: Duration = Duration::from_secs(2);
/// Less than gateways and proxies keep an idle connection, so that a request never meets one that is just being closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// One lock at a gateway, asked for with one token.
pub(super) struct Gateway {
    client: Client,
    address: Url,
    headers: HeaderMap,
}

/// What came of asking for the lock.
pub(super) enum AcquireAnswer {
    Held(HeldGrant),
    /// Another client has it, or too many wait.
    Busy(Busy),
    /// Nothing is decided: ask again.
    NotNow(Trouble),
    /// No request like this one will ever be granted.
    Refused(RequestRefusal),
}

/// An answer that stays the same however often the same is asked.
pub(super) struct RequestRefusal {
    /// A gateway says so, and not something in front of it.
    pub(super) is_gateways: bool,
    pub(super) parameter: Option<String>,
    pub(super) reason: String,
    /// It refuses the caller, and not the request: a release would be refused too.
    pub(super) is_of_all: bool,
}

/// Why the lock is not ours yet, and who else waits.
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
    NotNow(Trouble),
}

/// What came of a release.
pub(super) enum ReleaseAnswer {
    Done,
    /// It was not ours any more.
    NotHeld(String),
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
    shows_key: bool,
    speaks_tls: bool,
    status: u16,
    sent_at: Duration,
    body: Vec<u8>,
}

/// What speaks HTTP with all of them, and trusts these authorities instead of those of this machine.
pub(super) fn client(addresses: &GatewayAddresses, authorities: Option<&[u8]>) -> Result<Client, String> {
    // A second call changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let is_alone = addresses.iter().count() == 1;
    let mut builder = Client::builder()
        .redirect(Policy::none())
        .connect_timeout(if is_alone { CONNECT_TIMEOUT } else { CONNECT_TIMEOUT_OF_SEVERAL })
        .tcp_keepalive(KEEPALIVE)
        .tcp_keepalive_interval(KEEPALIVE)
        .tcp_keepalive_retries(2)
        .pool_idle_timeout(IDLE_TIMEOUT);
    if addresses.iter().all(|address| address.scheme() == "http") {
        // Where no certificates are needed, none need be installed on this machine.
        builder = builder.tls_certs_only([]);
    }
    let tls_error = |error| format!("cannot use TLS: {}", Trouble::from(error).reason);
    if let Some(pem) = authorities {
        builder = builder.tls_certs_only(Certificate::from_pem_bundle(pem).map_err(tls_error)?);
    }
    builder.build().map_err(tls_error)
}

impl Gateway {
    pub(super) fn new(
        client: Client,
        address: &Url,
        settings: &RunSettings,
        token: &LeaseToken,
    ) -> Result<Self, String> {
        let mut address = address.clone();
        address.query_pairs_mut().append_pair("key", settings.key.as_str());
        let mut headers = HeaderMap::new();
        headers.insert("lease-token", secret(token.reveal())?);
        if let Some(key) = &settings.api_key {
            headers.insert(AUTHORIZATION, secret(&format!("Bearer {key}"))?);
        }
        Ok(Self { client, address, headers })
    }

    /// Asks for the lock, waiting in the queue for so long.
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
            Err(trouble) => return AcquireAnswer::NotNow(trouble),
        };
        if let Some(held) = reply.held() {
            return AcquireAnswer::Held(held);
        }
        let problem = reply.problem();
        let reason = reply.reason();
        match reply.status {
            // A full wait queue is one of a lock that others hold.
            423 | 429
                if matches!(problem.kind.as_str(), "/problems/lock-held" | "/problems/too-many-waiters") =>
            {
                AcquireAnswer::Busy(Busy { position: problem.position, waiters: problem.waiters, reason })
            }
            // A proxy may answer so while the gateway restarts. A limit says nothing of who holds the lock.
            408 | 423 | 425 | 429 | 500..=599 => AcquireAnswer::NotNow(reply.trouble()),
            _ => AcquireAnswer::Refused(RequestRefusal {
                is_gateways: problem.is_gateways(),
                parameter: problem.parameter,
                reason,
                is_of_all: reply.status != 400,
            }),
        }
    }

    /// Renews the lease; what proxies say is never taken for what the gateway says.
    pub(super) async fn renew(&self, ttl: Duration, patience: Duration) -> RenewAnswer {
        let reply = match self.call(Method::PATCH, &[("ttl", in_ms(ttl))], patience).await {
            Ok(reply) => reply,
            Err(trouble) => return RenewAnswer::NotNow(trouble),
        };
        if let Some(held) = reply.held() {
            return RenewAnswer::Held(held);
        }
        match (reply.status, reply.problem().kind.as_str()) {
            (404, "/problems/not-held") | (409, "/problems/held-by-another" | "/problems/token-released") => {
                RenewAnswer::Gone(reply.reason())
            }
            (409, "/problems/max-hold-reached") => RenewAnswer::MaxHoldReached,
            _ => RenewAnswer::NotNow(reply.trouble()),
        }
    }

    /// Releases the lock, or gives up the place in the queue.
    pub(super) async fn release(&self, patience: Duration) -> Result<ReleaseAnswer, Trouble> {
        let reply = self.call(Method::DELETE, &[], patience).await?;
        match (reply.status, reply.problem().kind.as_str()) {
            (204, _) => Ok(ReleaseAnswer::Done),
            (404, "/problems/not-held") | (409, "/problems/held-by-another") => {
                Ok(ReleaseAnswer::NotHeld(reply.reason()))
            }
            _ => Err(reply.trouble()),
        }
    }

    async fn call(
        &self,
        method: Method,
        query: &[(&str, String)],
        patience: Duration,
    ) -> Result<Reply, Trouble> {
        let mut url = self.address.clone();
        url.query_pairs_mut().extend_pairs(query);
        // A lease is counted from before the request that got it.
        let sent_at = boottime();
        let request = self.client.request(method, url).headers(self.headers.clone()).timeout(patience);
        let response = request.send().await.map_err(Trouble::from)?;
        let status = response.status().as_u16();
        let body = response.bytes().await.map_err(Trouble::from)?.to_vec();
        let shows_key = self.headers.contains_key(AUTHORIZATION);
        let speaks_tls = self.address.scheme() == "https";
        Ok(Reply { shows_key, speaks_tls, status, sent_at, body })
    }
}

impl ProblemBody {
    fn is_gateways(&self) -> bool {
        self.kind.starts_with("/problems/")
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

    fn trouble(&self) -> Trouble {
        // A proxy's own pages say nothing of what the gateway does next.
        let is_lasting = self.problem().is_gateways()
            && matches!(self.status, 400..500)
            && !matches!(self.status, 400 | 408 | 425 | 429);
        Trouble { reason: self.reason(), contact: Contact::Answered, is_lasting }
    }

    fn reason(&self) -> String {
        let ProblemBody { kind, detail, .. } = self.problem();
        if kind.is_empty() {
            if self.status == 400 && !self.speaks_tls && names_tls(&self.body) {
                return "this port speaks TLS: write https://".to_owned();
            }
            return format!("the answer is HTTP {}, and not that of a Fencepost gateway", self.status);
        }
        if self.status == 401 && !self.shows_key {
            return "it asks for an API key: name the file of yours by --api-key-file".to_owned();
        }
        // It goes to a terminal, in one line.
        detail.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
    }
}

/// Whether the page of a server says that it wants TLS, in whichever words.
fn names_tls(page: &[u8]) -> bool {
    let page = String::from_utf8_lossy(page).to_ascii_lowercase();
    page.contains("https") || page.contains("tls")
}

fn secret(text: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_str(text).map_err(|error| error.to_string())?;
    value.set_sensitive(true);
    Ok(value)
}

fn in_ms(time: Duration) -> String {
    format!("{}ms", whole_ms(time))
}
