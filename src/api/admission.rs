//! What is refused before any handler runs: oversized heads, pages of other sites, and rebound names.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri};

use super::problem::{Problem, ProblemType};
use super::route::is_open;
use crate::server::Malformed;

/// The longest path and query, in bytes.
const LONGEST_URI: usize = 8 * 1024;
/// The most bytes of all header names and values together.
const LARGEST_HEADERS: usize = 16 * 1024;
/// By this header, a browser says from which site the page is.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The addresses of health checks.
const PROBES: [&str; 2] = ["/healthz", "/readyz"];

/// The names that a server answers to. If a page's name was rebound to the server, only `Host` shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KnownHosts {
    /// All names. This is for gateways with keys: a rebound page has no key to show.
    #[default]
    All,
    /// Names that cannot be rebound: those of loopback, and IP addresses. A name of one word is not among them, because
    /// a machine in this network may answer for it.
    Unbindable,
    /// The names of loopback.
    Loopback,
}

/// Which pages may talk to the server from a browser.
#[derive(Clone, Debug, Default)]
pub struct Admission {
    /// The names that `Host` may have, besides `allowed_hosts`.
    pub known_hosts: KnownHosts,
    /// Further names of this server, without port.
    pub allowed_hosts: Vec<String>,
    /// Origins of other sites whose pages may use this server, such as `https://app.example`.
    pub allowed_origins: Vec<HeaderValue>,
    /// Whether this server itself speaks TLS. If it does, a page that came without TLS is of another site.
    pub speaks_tls: bool,
}

/// Refuses a head that is larger than a handler should see.
pub(super) fn limit_head(request: &Request) -> Result<(), Problem> {
    let uri_bytes = request.uri().path_and_query().map_or(0, |uri| uri.as_str().len());
    if uri_bytes > LONGEST_URI {
        let detail = format!("path and query have {uri_bytes} bytes; at most {LONGEST_URI} are allowed");
        return Err(Problem::new(ProblemType::UriTooLong, detail));
    }
    let header_bytes: usize =
        request.headers().iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if header_bytes > LARGEST_HEADERS {
        let detail = format!("the headers have {header_bytes} bytes; at most {LARGEST_HEADERS} are allowed");
        return Err(Problem::new(ProblemType::HeadersTooLarge, detail));
    }
    Ok(())
}

/// Why a head is refused. A proxy, or another reader, may take it for a different request than we do.
pub(super) fn malformed(why: Malformed) -> Problem {
    let detail = match why {
        Malformed::Fragment => "the address has a #, and servers ignore what follows it: write %23",
        Malformed::BareLineFeed => {
            "a line of the request ends without a carriage return: end each line with \\r\\n"
        }
        Malformed::Length => {
            "the request must say its Content-Length once, as a plain number, and not beside a Transfer-Encoding"
        }
        Malformed::Host => {
            "the request must name its server once, in one Host header or in :authority, without a user and an @"
        }
    };
    Problem::new(ProblemType::MalformedRequest, detail)
}

/// Refuses what a browser sends for a page that may not use this server.
pub(super) fn guard_browsers(admission: &Admission, request: &Request) -> Result<(), Problem> {
    if is_plain(request.headers()) {
        return Ok(());
    }
    let host = host_of(request.headers(), request.uri());
    // Beyond loopback, load balancers probe by any name, and learn nothing about locks.
    if admission.known_hosts == KnownHosts::Loopback || !PROBES.contains(&request.uri().path()) {
        admission.check_host(host.as_ref())?;
    }
    admission.check_origin(request.headers(), host.as_ref())?;
    admission.check_site(request)
}

impl Admission {
    /// The name of a page can be rebound to this machine. Only its `Host` shows that.
    fn check_host(&self, host: Option<&Authority>) -> Result<(), Problem> {
        // A browser always sends a `Host`. Without one, the client is an old script or a health check.
        let Some(host) = host else { return Ok(()) };
        let name = host.host();
        let (is_known, place) = match self.known_hosts {
            KnownHosts::All => return Ok(()),
            KnownHosts::Unbindable => (is_loopback(name) || is_address(name), "asks for no keys"),
            KnownHosts::Loopback => (is_loopback(name), "listens on loopback"),
        };
        if is_known || self.allowed_hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(name)) {
            return Ok(());
        }
        let detail = format!(
            "this gateway {place}, so it answers only to names that no web page can have, and {name:?} is none; if clients reach it by that name, start it with --allow-host {name}"
        );
        Err(Problem::input(ProblemType::UnknownHost, "Host", detail))
    }

    /// A page of another site can embed an address of ours, or link to it: such requests have no `Origin`. Success or
    /// failure would tell the page whether a lock is held. So it may only link to pages that are open to all.
    fn check_site(&self, request: &Request) -> Result<(), Problem> {
        let headers = request.headers();
        let is_ours = |site: &HeaderValue| site == "same-origin" || site == "none";
        if headers.get_all(SEC_FETCH_SITE).iter().all(is_ours) || is_open(request.uri().path()) {
            return Ok(());
        }
        let mut origins = headers.get_all(ORIGIN).iter().peekable();
        if origins.peek().is_some() && origins.all(|origin| self.allowed_origins.contains(origin)) {
            return Ok(());
        }
        let detail = "pages of other sites may only link to the pages for people, such as /ui and /docs";
        Err(Problem::input(ProblemType::CrossOrigin, "Sec-Fetch-Site", detail))
    }

    fn check_origin(&self, headers: &HeaderMap, host: Option<&Authority>) -> Result<(), Problem> {
        let mut origins = headers.get_all(ORIGIN).iter();
        let is_welcome =
            |origin: &HeaderValue| self.allowed_origins.contains(origin) || self.is_own_origin(origin, host);
        match origins.find(|origin| !is_welcome(origin)) {
            None => Ok(()),
            Some(_) => Err(Problem::input(
                ProblemType::CrossOrigin,
                "Origin",
                "pages of other sites may not use this gateway; its operator can allow a site with --cors-origin",
            )),
        }
    }

    /// Whether a page of this very server sent the request. If a proxy ends TLS in front of us, our pages have an
    /// `https` origin although we speak plain HTTP. If we end TLS ourselves, an `http` origin is another site.
    fn is_own_origin(&self, origin: &HeaderValue, host: Option<&Authority>) -> bool {
        let (Ok(origin), Some(host)) = (origin.to_str(), host) else { return false };
        let Some((scheme, authority)) = origin.split_once("://") else { return false };
        let default_port = match scheme {
            "http" if !self.speaks_tls => 80,
            "https" => 443,
            _ => return false,
        };
        let Ok(authority) = authority.parse::<Authority>() else { return false };
        authority.host().eq_ignore_ascii_case(host.host())
            && authority.port_u16().unwrap_or(default_port) == host.port_u16().unwrap_or(default_port)
    }
}

/// Whether `Host` is one of the usual names of loopback, and no page of another site asks. Then the request is admitted
/// at once: these names are always known. Most requests are like this, and the other checks take ten times as long.
fn is_plain(headers: &HeaderMap) -> bool {
    let is_port = |port: &[u8]| match port {
        [] => true,
        [b':', digits @ ..] => digits.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    let is_usual = |host: &[u8]| {
        let port = [&b"127.0.0.1"[..], b"localhost"].iter().find_map(|name| host.strip_prefix(*name));
        port.is_some_and(is_port)
    };
    let mut is_usual_host = false;
    // There are few headers: to go through them takes as long as to look one up.
    for (name, value) in headers {
        if *name == HOST {
            is_usual_host = is_usual(value.as_bytes());
        } else if *name == ORIGIN || *name == SEC_FETCH_SITE {
            return false;
        }
    }
    is_usual_host
}

/// The name and port that the caller addressed: the `Host` header, or HTTP/2's `:authority`.
fn host_of(headers: &HeaderMap, uri: &Uri) -> Option<Authority> {
    match headers.get(HOST) {
        // A header that cannot be read matches no allowed name.
        Some(host) => Some(
            Authority::try_from(host.as_bytes())
                .unwrap_or_else(|_| Authority::from_static("malformed.invalid")),
        ),
        None => uri.authority().cloned(),
    }
}

fn is_loopback(name: &str) -> bool {
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    let lower = bare.trim_end_matches('.').to_ascii_lowercase();
    lower == "localhost"
        || lower.ends_with(".localhost")
        || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Whether a name is an IP address. An address cannot be rebound.
fn is_address(name: &str) -> bool {
    name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_names_are_known() {
        for name in ["localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.9.8.7", "[::1]"] {
            assert!(is_loopback(name), "{name}");
        }
        for name in ["localhost.evil.example", "128.0.0.1", "[::2]", "evil", "", "127.0.0.1.nip.io"] {
            assert!(!is_loopback(name), "{name}");
        }
    }

    #[test]
    fn addresses_are_nobodys_to_rebind() {
        for name in ["192.168.0.7", "[fd00::1]", "::1"] {
            assert!(is_address(name), "{name}");
        }
        for name in
            ["evil.example", "gateway", "10.0.0.1.nip.io", "", "malformed.invalid", "10.0.0.1.", "a%2Eb"]
        {
            assert!(!is_address(name), "{name}");
        }
    }

    #[test]
    fn an_origin_is_our_own_only_with_the_same_name_and_port() {
        let is_own_of = |speaks_tls, origin: &'static str, host: &'static str| {
            let host = Authority::from_static(host);
            let admission = Admission { speaks_tls, ..Admission::default() };
            admission.is_own_origin(&HeaderValue::from_static(origin), Some(&host))
        };
        let is_own = |origin, host| is_own_of(false, origin, host);
        assert!(is_own_of(true, "https://locks.example", "locks.example"));
        assert!(!is_own_of(true, "http://locks.example", "locks.example"));
        assert!(!is_own_of(true, "http://locks.example:443", "locks.example:443"));
        assert!(is_own("http://127.0.0.1:8080", "127.0.0.1:8080"));
        assert!(is_own("https://locks.example", "locks.example"));
        assert!(is_own("https://locks.example", "LOCKS.example:443"));
        assert!(!is_own("http://127.0.0.1:8081", "127.0.0.1:8080"));
        assert!(!is_own("http://evil.example", "127.0.0.1:8080"));
        assert!(!is_own("null", "127.0.0.1:8080"));
    }
}
