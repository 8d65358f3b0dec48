//! Where a Redis server is, and how to talk to it: what `redis://` and `rediss://` say.

use std::fmt;
use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{Client, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, TlsCertificates};
use thiserror::Error;

use super::link::describe;

/// When a silent connection is probed, how often, and how many silent probes end it.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(3);
const KEEPALIVE_PROBES: u32 = 3;
/// How long the kernel resends unacknowledged bytes. It bounds how late a copy of a command can arrive, so it must
/// stay below the life of a mark.
pub const TCP_USER_TIMEOUT: Duration = Duration::from_secs(20);

/// The address of one server with its credentials. `Debug` and `Display` show neither user nor password.
#[derive(Clone)]
pub struct RedisAddress {
    info: ConnectionInfo,
    ca_pem: Option<Vec<u8>>,
}

/// Why an address cannot be used. The text names no secret.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AddressError {
    /// Not of the form `redis[s]://[user[:password]@]host[:port][/database]`.
    #[error("{0}; write redis://[user[:password]@]host[:port][/database], or rediss:// for TLS")]
    Malformed(String),
    /// Its form is right, but it cannot be used.
    #[error("{0}")]
    Unusable(String),
}

impl RedisAddress {
    /// Reads an address. `ca_pem` is the certificate authority of a `rediss://` server where it is not one of the
    /// system's.
    pub fn parse(url: &str, ca_pem: Option<Vec<u8>>) -> Result<Self, AddressError> {
        let with_tls = match url.split_once("://") {
            Some(("redis", _)) => false,
            Some(("rediss", _)) => true,
            _ => return Err(AddressError::Malformed("this is no Redis address".into())),
        };
        // The driver knows switches such as `?protocol=resp2` and `#insecure`, which would weaken what is promised.
        if url.contains(['?', '#']) {
            return Err(AddressError::Malformed(
                "a Redis address takes no ? and no # (in a password they are %3F and %23)".into(),
            ));
        }
        if ca_pem.is_some() && !with_tls {
            return Err(AddressError::Unusable("a certificate authority needs a rediss:// address".into()));
        }
        let info = url.into_connection_info().map_err(|error| AddressError::Malformed(describe(&error)))?;
        Ok(Self { info, ca_pem })
    }

    /// A client that knows all that is needed to connect; it has not connected yet.
    pub(super) fn client(&self) -> Result<Client, AddressError> {
        let keepalive = TcpKeepalive::new()
            .with_time(KEEPALIVE_AFTER)
            .with_interval(KEEPALIVE_EVERY)
            .with_retries(KEEPALIVE_PROBES);
        let tcp = TcpSettings::default()
            .set_nodelay(true)
            .set_keepalive(keepalive)
            .set_user_timeout(TCP_USER_TIMEOUT);
        // RESP3, because the driver says only there that a connection has ended.
        let redis =
            self.info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
        let info = self.info.clone().set_tcp_settings(tcp).set_redis_settings(redis);
        let client = match &self.ca_pem {
            Some(pem) => Client::build_with_tls(
                info,
                TlsCertificates { client_tls: None, root_cert: Some(pem.clone()) },
            ),
            None => Client::open(info),
        };
        client.map_err(|error| AddressError::Unusable(describe(&error)))
    }
}

impl fmt::Display for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "redis at {}, database {}", self.info.addr(), self.info.redis_settings().db())
    }
}

impl fmt::Debug for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisAddress({self})")
    }
}
