//! What a server serves, and what it tells the application about each request.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicBool;

use axum::Router;
use axum::extract::Request;
use axum::http::header::HOST;
use axum::http::{StatusCode, Version};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use tower::Service;

use super::addresses::network;
use super::tcp_timeout::TcpTimeout;
use super::tls::Subject;

/// The application that answers the requests of all connections. It is cloned for each.
pub trait Application: Clone + Send + Sync + Unpin + 'static {
    /// Answers one request. The future is moved with each request, so it should be small.
    fn answer(self, request: Request) -> impl Future<Output = Response> + Send;

    /// Refuses a request that two readers may read in two ways.
    fn refuse(self, _request: Request, _why: Malformed) -> Response {
        StatusCode::BAD_REQUEST.into_response()
    }
}

impl Application for Router {
    fn answer(mut self, request: Request) -> impl Future<Output = Response> + Send {
        self.call(request).map(|Ok(response)| response)
    }
}

/// The other end of a connection. Each request finds it among its extensions.
#[derive(Debug)]
pub struct Peer {
    /// The address from which it connects: that of the last proxy, if there is one.
    pub address: SocketAddr,
    /// The subject of the client certificate, if one was shown.
    pub subject: Option<Subject>,
    /// How long it may leave sent bytes unacknowledged. A request may shorten that.
    pub tcp_timeout: TcpTimeout,
    /// Whether the server has ended the connection while requests were in flight. Their clients have not left.
    pub is_cut: AtomicBool,
}

impl Peer {
    /// What a connection counts for, where parties have shares: an IPv4 address, or an IPv6 network of 64 bits.
    pub fn network(&self) -> IpAddr {
        network(self.address.ip())
    }
}

/// Among the extensions of an answer: the body of its request was read to its end, so what comes behind it is another request.
#[derive(Clone, Copy, Debug)]
pub struct BodyWasRead;

/// Among the extensions of an answer: its bytes are in memory anyway, so that they do not count while it is unread.
#[derive(Clone, Copy, Debug)]
pub struct InMemory;

/// Why a request is refused, whatever it asks for. [`Application::refuse`] makes the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Its target has a `#`. Servers do not see what follows it.
    Fragment,
    /// A line of its head ends without a carriage return.
    BareLineFeed,
    /// It says its `Content-Length` twice, beside a `Transfer-Encoding`, or not by a plain number.
    Length,
    /// It has no `Host`, several, a different one than its target, or one with a user in it.
    Host,
}

impl Malformed {
    /// Whether a request names its server once (RFC 9112, section 3.2, and RFC 9113, section 8.3.1).
    pub(super) fn by_host<B>(request: &axum::http::Request<B>) -> Option<Self> {
        let headers = request.headers();
        let authority = request.uri().authority().map(|authority| authority.as_str().as_bytes());
        let has_user = |name: &[u8]| name.contains(&b'@');
        let is_named_once = match headers.get(HOST) {
            // A health check by HTTP/2 may know no name for it.
            None => request.version() != Version::HTTP_11 && !authority.is_some_and(has_user),
            Some(_) if headers.len() > headers.keys_len() && headers.get_all(HOST).iter().count() > 1 => {
                false
            }
            Some(host) => {
                let host = host.as_bytes();
                !has_user(host) && authority.is_none_or(|authority| authority.eq_ignore_ascii_case(host))
            }
        };
        (!is_named_once).then_some(Self::Host)
    }
}
