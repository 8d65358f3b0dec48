//! What is refused before any handler runs: oversized heads, pages of other sites, and rebound names.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Uri};
use axum::middleware::Next;
use axum::response::Response;

use super::AppState;
use super::problem::{Problem, ProblemType};

/// The longest path and query, in bytes.
const LONGEST_URI: usize = 8 * 1024;
/// The most that all names and values of the headers may come to, in bytes.
const LARGEST_HEADERS: usize = 16 * 1024;

/// Who may be talked to from a browser.
#[derive(Clone, Debug, Default)]
pub struct Admission {
    /// Whether `Host` must be a loopback name or one of `allowed_hosts`: true while bound to loopback.
    pub only_known_hosts: bool,
    /// Further names by which this server may be called, without port.
    pub allowed_hosts: Vec<String>,
    /// Origins of other sites whose pages may use this server, such as `https://app.example`.
    pub allowed_origins: Vec<HeaderValue>,
}

/// Refuses a head that is larger than a handler should see.
pub(super) async fn limit_head(request: Request, next: Next) -> Result<Response, Problem> {
    let uri_bytes = request.uri().path_and_query().map_or(0, |uri| uri.as_str().len());
    if uri_bytes > LONGEST_URI {
        let detail = format!("the address has {uri_bytes} bytes, and at most {LONGEST_URI} are allowed");
        return Err(Problem::new(ProblemType::UriTooLong, detail));
    }
    let header_bytes: usize =
        request.headers().iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if header_bytes > LARGEST_HEADERS {
        let detail =
            format!("the headers have {header_bytes} bytes, and at most {LARGEST_HEADERS} are allowed");
        return Err(Problem::new(ProblemType::HeadersTooLarge, detail));
    }
    Ok(next.run(request).await)
}

/// Refuses what a browser sends on behalf of a page that has no business here.
pub(super) async fn guard_browsers(
    State(app): State<AppState>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let host = host_of(request.headers(), request.uri());
    app.admission.check_host(host.as_ref())?;
    app.admission.check_origin(request.headers(), host.as_ref())?;
    Ok(next.run(request).await)
}

impl Admission {
    /// A page can be served under a name that is then rebound to this machine: only its `Host` gives it away.
    fn check_host(&self, host: Option<&Authority>) -> Result<(), Problem> {
        // A browser always sends a Host; what sends none is an old script or a health check.
        let Some(host) = host.filter(|_| self.only_known_hosts) else { return Ok(()) };
        let name = host.host();
        if is_loopback(name) || self.allowed_hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(name)) {
            return Ok(());
        }
        let detail = format!(
            "this server listens on loopback and does not answer to {name:?}; behind a reverse proxy that passes its own name on, start it with --allow-host {name}"
        );
        Err(Problem::input(ProblemType::UnknownHost, "Host", detail))
    }

    fn check_origin(&self, headers: &HeaderMap, host: Option<&Authority>) -> Result<(), Problem> {
        let mut origins = headers.get_all(ORIGIN).iter();
        let is_welcome =
            |origin: &HeaderValue| self.allowed_origins.contains(origin) || is_own_origin(origin, host);
        match origins.find(|origin| !is_welcome(origin)) {
            None => Ok(()),
            Some(_) => Err(Problem::input(
                ProblemType::CrossOrigin,
                "Origin",
                "pages of other sites may not use this server; --cors-origin allows them",
            )),
        }
    }
}

/// The name and port that the caller addressed: the `Host` header, or HTTP/2's `:authority`.
fn host_of(headers: &HeaderMap, uri: &Uri) -> Option<Authority> {
    match headers.get(HOST) {
        // What cannot be read matches no name that is allowed.
        Some(host) => {
            Some(Authority::try_from(host.as_bytes()).unwrap_or_else(|_| Authority::from_static("malformed")))
        }
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

/// Whether a page of this very server sent the request. TLS may end in front of us, so the scheme says nothing
/// but which port is left out.
fn is_own_origin(origin: &HeaderValue, host: Option<&Authority>) -> bool {
    let (Ok(origin), Some(host)) = (origin.to_str(), host) else { return false };
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    let default_port = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return false,
    };
    let Ok(authority) = authority.parse::<Authority>() else { return false };
    authority.host().eq_ignore_ascii_case(host.host())
        && authority.port_u16().unwrap_or(default_port) == host.port_u16().unwrap_or(default_port)
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
    fn an_origin_is_our_own_only_with_the_same_name_and_port() {
        let is_own = |origin: &'static str, host: &'static str| {
            is_own_origin(&HeaderValue::from_static(origin), Some(&Authority::from_static(host)))
        };
        assert!(is_own("http://127.0.0.1:8080", "127.0.0.1:8080"));
        assert!(is_own("https://locks.example", "locks.example"));
        assert!(is_own("https://locks.example", "LOCKS.example:443"));
        assert!(!is_own("http://127.0.0.1:8081", "127.0.0.1:8080"));
        assert!(!is_own("http://evil.example", "127.0.0.1:8080"));
        assert!(!is_own("null", "127.0.0.1:8080"));
    }
}
