//! Where Redis is, and how to talk to it: what `redis://` and its kin say.

use std::collections::HashSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, TlsCertificates};
use thiserror::Error;

use super::client::{Client, Network};
use super::failure::describe;
use super::node::Node;

/// When a silent connection is probed, how often, and how many silent probes end it.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(3);
const KEEPALIVE_PROBES: u32 = 3;
/// How long the kernel resends unacknowledged bytes. It bounds how late a copy of a command can arrive, so it must
/// stay below the life of a tombstone.
pub const TCP_USER_TIMEOUT: Duration = Duration::from_secs(20);

/// Where a server listens, where the address does not say it.
const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// How many servers a quorum may have: of fewer than three none may fail, and each one more costs every lock a bit more.
const QUORUM_SIZES: RangeInclusive<usize> = 3..=15;

/// What is at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// One server.
    Server,
    /// Sentinels, which say which server is the primary of this name.
    Sentinel(String),
    /// Some of the servers of a cluster, which say who the others are.
    Cluster,
    /// Independent servers, most of which must agree.
    Quorum,
}

/// The addresses of servers with their credentials. `Debug` and `Display` show neither user nor password.
#[derive(Clone)]
pub struct RedisAddress {
    layout: Layout,
    nodes: Vec<Node>,
    /// All but the host of a connection to a server that holds data.
    template: ConnectionInfo,
    sentinel_credentials: Option<Credentials>,
    ca_pem: Option<Vec<u8>>,
    /// What leads to the servers, where it is not TCP.
    network: Option<Arc<dyn Network>>,
}

/// What a server asks for before it talks.
#[derive(Clone)]
pub struct Credentials {
    /// The user; without one, Redis' default user.
    pub user: Option<String>,
    /// The password.
    pub password: String,
}

/// Why an address cannot be used. The text names no secret.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AddressError {
    /// Not of a form that is known.
    #[error(
        "{0}; write redis://[user[:password]@]host[:port][/database], redis+sentinel://host,host,host/name, \
         redis+cluster://host,host, or redlock://host,host,host; and with TLS rediss or redlocks"
    )]
    Malformed(String),
    /// Its form is right, but it cannot be used.
    #[error("{0}")]
    Unusable(String),
}

impl RedisAddress {
    /// Reads an address. `ca_pem` is the certificate authority of servers with TLS where it is not one of the
    /// system's.
    pub fn parse(url: &str, ca_pem: Option<Vec<u8>>) -> Result<Self, AddressError> {
        let malformed = |problem: &str| AddressError::Malformed(problem.to_owned());
        let (scheme, rest) =
            url.split_once("://").ok_or_else(|| malformed("this is not the address of a Redis"))?;
        let (transport, layout) = match scheme {
            "redlock" => ("redis", "quorum"),
            "redlocks" => ("rediss", "quorum"),
            _ => scheme.split_once('+').unwrap_or((scheme, "")),
        };
        if !matches!(transport, "redis" | "rediss") {
            return Err(malformed("this is not the address of a Redis"));
        }
        // The driver knows switches such as `?protocol=resp2` and `#insecure`, which would weaken what is promised.
        if url.contains(['?', '#']) {
            return Err(malformed(
                "the address of a Redis has no ? and no # (in a password write %3F and %23)",
            ));
        }
        if ca_pem.is_some() && transport == "redis" {
            return Err(AddressError::Unusable(
                "--redis-ca needs an address with TLS, such as rediss://".into(),
            ));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = authority.rsplit_once('@').map_or(("", authority), |(user, hosts)| (user, hosts));
        let (layout, database, port) = match layout {
            "" => (Layout::Server, path, REDIS_PORT),
            "sentinel" => {
                let (name, database) = path.split_once('/').unwrap_or((path, ""));
                let is_known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
                if name.is_empty() || !name.bytes().all(is_known) {
                    return Err(malformed(
                        "behind the sentinels write / and the name by which they know the primary",
                    ));
                }
                (Layout::Sentinel(name.to_owned()), database, SENTINEL_PORT)
            }
            "cluster" if path.is_empty() => (Layout::Cluster, "", REDIS_PORT),
            "cluster" => {
                return Err(malformed("a cluster has one database: write nothing behind the servers"));
            }
            "quorum" if !scheme.contains('+') => (Layout::Quorum, path, REDIS_PORT),
            _ => return Err(malformed("this is not the address of a Redis")),
        };
        if layout == Layout::Server && hosts.contains(',') {
            return Err(malformed(
                "redis:// names one server; several servers are a cluster, a quorum, or sentinels",
            ));
        }
        if !database.is_empty() && database.parse::<u32>().is_err() {
            return Err(malformed("the database, behind the /, must be a number, such as 0"));
        }
        // The driver reads one server at a time: it knows users, passwords, IPv6 and percent signs.
        let read = |host: &str| {
            let at = if user.is_empty() { "" } else { "@" };
            let url = format!("{transport}://{user}{at}{host}/{database}");
            url.into_connection_info().map_err(|_| {
                malformed("a host, a port or a password cannot be read (in a password, write / as %2F and @ as %40)")
            })
        };
        let mut nodes = Vec::new();
        let mut template = None;
        for host in hosts.split(',') {
            let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
            let info = read(&if has_port { host.to_owned() } else { format!("{host}:{port}") })?;
            let (ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. }) = info.addr()
            else {
                return Err(malformed("this is not the address of a Redis"));
            };
            nodes.push(Node { host: host.clone(), port: *port });
            template = Some(info);
        }
        // A sentinel that is named twice would have two votes.
        if nodes.iter().collect::<HashSet<_>>().len() < nodes.len() {
            return Err(malformed("a server is named twice: name each once"));
        }
        if layout == Layout::Quorum && !QUORUM_SIZES.contains(&nodes.len()) {
            return Err(malformed("name 3 to 15 servers for a quorum, best an odd number"));
        }
        let template = template.ok_or_else(|| malformed("name a server"))?;
        Ok(Self { layout, nodes, template, sentinel_credentials: None, ca_pem, network: None })
    }

    /// How the servers stand together, in a word.
    pub fn kind(&self) -> &'static str {
        match self.layout {
            Layout::Server => "redis",
            Layout::Sentinel(_) => "sentinel",
            Layout::Cluster => "cluster",
            Layout::Quorum => "quorum",
        }
    }

    /// Whether it names independent servers, most of which must agree.
    pub fn is_quorum(&self) -> bool {
        self.layout == Layout::Quorum
    }

    /// The same, with what the sentinels ask for; it is not what the servers behind them do.
    pub fn with_sentinel_credentials(self, credentials: Credentials) -> Result<Self, AddressError> {
        if !matches!(self.layout, Layout::Sentinel(_)) {
            return Err(AddressError::Unusable("needs a redis+sentinel:// store".into()));
        }
        Ok(Self { sentinel_credentials: Some(credentials), ..self })
    }

    /// The same, with the password of the servers that hold data.
    pub fn with_password(self, password: &str) -> Result<Self, AddressError> {
        let settings = self.template.redis_settings().clone();
        if settings.password().is_some() {
            return Err(AddressError::Unusable("the address has a password too; give one of them".into()));
        }
        Ok(Self { template: self.template.set_redis_settings(settings.set_password(password)), ..self })
    }

    /// The same servers, reached by this network.
    pub fn through(self, network: Arc<dyn Network>) -> Self {
        Self { network: Some(network), ..self }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The number of the database.
    pub(crate) fn database(&self) -> i64 {
        self.template.redis_settings().db()
    }

    /// The servers that the address names; there is at least one.
    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// A client that knows all that is needed to connect to a server that holds data; it has not connected yet.
    pub(crate) fn client(&self, node: &Node) -> Result<Client, AddressError> {
        self.client_of(self.template.clone(), node)
    }

    /// The same, for a sentinel.
    pub(crate) fn sentinel_client(&self, node: &Node) -> Result<Client, AddressError> {
        let mut redis = redis::RedisConnectionInfo::default();
        if let Some(Credentials { user, password }) = &self.sentinel_credentials {
            redis = redis.set_password(password);
            if let Some(user) = user {
                redis = redis.set_username(user);
            }
        }
        self.client_of(self.template.clone().set_redis_settings(redis), node)
    }

    fn client_of(&self, info: ConnectionInfo, node: &Node) -> Result<Client, AddressError> {
        let mut addr = info.addr().clone();
        if let ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } = &mut addr {
            host.clone_from(&node.host);
            *port = node.port;
        }
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
            info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
        let info = info.set_addr(addr).set_tcp_settings(tcp).set_redis_settings(redis);
        let client = match &self.ca_pem {
            Some(pem) => redis::Client::build_with_tls(
                info,
                TlsCertificates { client_tls: None, root_cert: Some(pem.clone()) },
            ),
            None => redis::Client::open(info),
        };
        let client = client.map_err(|error| AddressError::Unusable(describe(&error)))?;
        Ok(Client::new(client, self.network.clone()))
    }
}

impl fmt::Display for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = self.nodes.iter().map(Node::to_string).collect::<Vec<_>>().join(", ");
        let database = self.database();
        match &self.layout {
            Layout::Server => write!(f, "redis at {nodes}, database {database}"),
            Layout::Sentinel(name) => {
                write!(f, "redis {name:?} of the sentinels at {nodes}, database {database}")
            }
            Layout::Cluster => write!(f, "redis cluster at {nodes}"),
            Layout::Quorum => write!(f, "a quorum of redis at {nodes}, database {database}"),
        }?;
        f.write_str(if matches!(self.template.addr(), ConnectionAddr::TcpTls { .. }) {
            ", with TLS"
        } else {
            ""
        })
    }
}

impl fmt::Debug for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisAddress({self})")
    }
}
