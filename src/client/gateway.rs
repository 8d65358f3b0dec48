//! The gateway as its client sees it: requests, and what each answer means for the holder of a lock.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Method, RequestBuilder, Response, Url};

use super::addresses::is_of_this_machine;
use super::once::{StoredOutput, WorkOutput};
use super::reply::{
    ABANDONED, AskedGateway, GatewayReply, HeldGrant, IN_PROGRESS, LEASE_TOKEN, LOCK_HELD, NO_SLOTS,
    RELEASED, ReleaseAnswer, RenewAnswer, StoreAnswer, UNSUPPORTED,
};
use super::trouble::Trouble;
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
/// Where a gateway is asked about a lock.
pub(crate) const LOCK: &str = "lock";

/// A gateway, and what all requests to it have in common.
#[derive(Clone)]
pub(crate) struct Gateway {
    client: Client,
    address: Url,
    /// The locks that are asked about, mostly one; and where.
    keys: Vec<String>,
    path: &'static str,
    /// The API key, and the lease token if there is one.
    headers: HeaderMap,
}

/// What came of asking for the lock.
pub(crate) enum AcquireAnswer {
    Held(HeldGrant),
    /// The work is done, and this is its result.
    Done(StoredOutput),
    /// Another client has it.
    Busy(Busy),
    /// Too many wait already, which says nothing of the lock: ask the same without waiting.
    MayNotWait(Trouble),
    /// Nothing is decided: ask again.
    NotNow(Trouble),
    /// The token was released, broken with its lock, or lost: only another one is granted the lock.
    TokenReleased(String),
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
    /// Which lock, if several were asked for.
    pub(crate) key: Option<String>,
    pub(crate) position: Option<u64>,
    pub(crate) waiters: u64,
    pub(crate) reason: String,
    /// No client is at work, but one may have done it, and the work is not to be taken over.
    pub(crate) is_abandoned: bool,
    /// The client that has left is this one: its lease ended before it knew of it.
    pub(crate) is_own: bool,
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
        path: &'static str,
        address: &Url,
        settings: &GatewaySettings,
        keys: &[LockKey],
        token: Option<&LeaseToken>,
    ) -> Result<Self, String> {
        let mut headers = HeaderMap::new();
        if let Some(key) = &settings.api_key {
            headers.insert(AUTHORIZATION, secret(&format!("Bearer {key}"))?);
        }
        let keys = keys.iter().map(|key| key.as_str().to_owned()).collect();
        let mut gateway =
            Self { client: client(settings, address)?, address: address.clone(), keys, path, headers };
        token.map_or(Ok(()), |token| gateway.use_token(token))?;
        Ok(gateway)
    }

    /// Asks with this token from now on.
    pub(super) fn use_token(&mut self, token: &LeaseToken) -> Result<(), String> {
        self.headers.insert(LEASE_TOKEN, secret(token.reveal())?);
        Ok(())
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
        if let Some(slots) = settings.slots {
            query.push(("slots", slots.get().to_string()));
        }
        let terms = settings.once.as_ref();
        if let Some(terms) = terms {
            query.extend([("keep", in_ms(terms.keep)), ("takeover", terms.may_take_over.to_string())]);
        }
        let mut request = self.request(Method::PUT, self.path, &query);
        if let Some(fingerprint) = terms.and_then(|terms| terms.fingerprint.as_ref()) {
            request = request.header("once-fingerprint", fingerprint);
        }
        let reply = match self.send(request, patience).await {
            Ok(reply) => reply,
            Err(trouble) => return AcquireAnswer::NotNow(trouble),
        };
        if let Some(result) = reply.stored_output() {
            return AcquireAnswer::Done(result);
        }
        if let Some(held) = reply.held() {
            return AcquireAnswer::Held(held);
        }
        let problem = reply.problem();
        // What is wrong with it in any case has no key. With one, the wait for another lock was too long for it.
        let is_used_up = problem.key.is_some() && problem.parameter.as_deref() == Some("max_hold");
        match problem.kind.as_str() {
            // It may be the queue of the lock that is full. But it may as well be the gateway, or the share of the API key.
            "/problems/too-many-waiters" if !wait.is_zero() => AcquireAnswer::MayNotWait(reply.trouble()),
            RELEASED => AcquireAnswer::TokenReleased(reply.reason()),
            kind if is_used_up || [LOCK_HELD, IN_PROGRESS, ABANDONED].contains(&kind) => {
                AcquireAnswer::Busy(Busy {
                    key: problem.key,
                    position: problem.position,
                    waiters: problem.waiters,
                    reason: reply.reason(),
                    is_abandoned: problem.kind == ABANDONED,
                    is_own: problem.yours == Some(true),
                })
            }
            kind if reply.is_refusal() || [UNSUPPORTED, NO_SLOTS].contains(&kind) => {
                AcquireAnswer::Refused(RequestRefusal {
                    parameter: problem.parameter,
                    reason: reply.reason(),
                    is_of_all: !matches!(reply.status, 400 | 409),
                })
            }
            // A limit says nothing of who holds the lock.
            _ => AcquireAnswer::NotNow(reply.trouble()),
        }
    }

    /// Renews the lease; what proxies say is never taken for what the gateway says.
    pub(crate) async fn renew(&self, ttl: Duration, patience: Duration) -> Result<RenewAnswer, Trouble> {
        let renew = async |one: Self| {
            let reply = one.ask_to_renew(ttl, patience).await?;
            reply.renewal().ok_or_else(|| reply.trouble())
        };
        let mut answers = self.each().map(renew).collect::<FuturesUnordered<_>>();
        let mut all = Vec::new();
        // One that hangs does not hide that another is lost.
        while let Some(answer) = answers.next().await {
            let is_gone = matches!(answer, Ok(RenewAnswer::Gone(_)));
            all.push(answer);
            if is_gone {
                break;
            }
        }
        RenewAnswer::of_all(all)
    }

    /// Releases the lock, or gives up the place in the queue.
    pub(crate) async fn release(&self, is_clean: bool, patience: Duration) -> Result<ReleaseAnswer, Trouble> {
        let release = async |one: Self| {
            let reply = one.ask_to_release(is_clean, patience).await?;
            reply.release().ok_or_else(|| reply.trouble())
        };
        // One that cannot be released must not keep the others.
        let answers = join_all(self.each().map(release)).await;
        Ok(ReleaseAnswer::of_all(answers.into_iter().collect::<Result<_, _>>()?))
    }

    /// To be asked about each of the locks by itself: only taking them is one request.
    fn each(&self) -> impl Iterator<Item = Self> {
        self.keys.iter().map(|key| Self { keys: vec![key.clone()], ..self.clone() })
    }

    /// Stores the output of a command that has succeeded.
    pub(crate) async fn store(
        &self,
        output: &WorkOutput,
        patience: Duration,
    ) -> Result<StoreAnswer, Trouble> {
        let (media_type, body) = output.envelope();
        let request = self.request(Method::POST, self.path, &[("status", "0".to_owned())]);
        let reply = self.send(request.header(CONTENT_TYPE, media_type).body(body), patience).await?;
        reply.storing().ok_or_else(|| reply.trouble())
    }

    pub(super) async fn ask_to_renew(
        &self,
        ttl: Duration,
        patience: Duration,
    ) -> Result<GatewayReply<'_>, Trouble> {
        self.call(Method::PATCH, self.path, &[("ttl", in_ms(ttl))], patience).await
    }

    pub(super) async fn ask_to_release(
        &self,
        is_clean: bool,
        patience: Duration,
    ) -> Result<GatewayReply<'_>, Trouble> {
        // Of a lock, nothing is said of that.
        let clean = (is_clean && self.path != LOCK).then(|| ("clean", "true".to_owned()));
        self.call(Method::DELETE, self.path, clean.as_slice(), patience).await
    }

    /// One request and its whole answer, which may take so long.
    pub(super) async fn call(
        &self,
        method: Method,
        place: &str,
        query: &[(&str, String)],
        patience: Duration,
    ) -> Result<GatewayReply<'_>, Trouble> {
        self.send(self.request(method, place, query), patience).await
    }

    /// The same of a request that is made already.
    pub(super) async fn send(
        &self,
        request: RequestBuilder,
        patience: Duration,
    ) -> Result<GatewayReply<'_>, Trouble> {
        // A lease is counted from before the request that got it.
        let sent_at = boottime();
        let response = request.timeout(patience).send().await?;
        self.read(response, sent_at).await
    }

    /// A request that is yet to be sent.
    pub(super) fn request(&self, method: Method, place: &str, query: &[(&str, String)]) -> RequestBuilder {
        let mut url = self.address.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.push(place);
        }
        let keys = self.keys.iter().map(|key| ("key", key));
        url.query_pairs_mut().extend_pairs(keys).extend_pairs(query);
        self.client.request(method, url).headers(self.headers.clone())
    }

    /// Reads the rest of an answer.
    pub(super) async fn read(
        &self,
        mut response: Response,
        sent_at: Duration,
    ) -> Result<GatewayReply<'_>, Trouble> {
        let status = response.status().as_u16();
        let headers = std::mem::take(response.headers_mut());
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            if body.len() + chunk.len() > LONGEST_BODY {
                return Err(Trouble::without_answer("its answer is too long for one of a Fencepost gateway"));
            }
            body.extend_from_slice(&chunk);
        }
        let asked = AskedGateway {
            keys: &self.keys,
            headers: &self.headers,
            speaks_tls: self.address.scheme() == "https",
        };
        Ok(GatewayReply { asked, status, sent_at, headers, body })
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
