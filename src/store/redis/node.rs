//! A server of several.

use std::fmt;

/// A server, by where it listens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Node {
    /// Reads `host:port`, where the host may be an IPv6 address without brackets, as clusters write it. Port 0 stands for a
    /// server whose address the cluster has lost.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port != 0)?;
        Some(Self { host: host.to_owned(), port })
    }

    /// Whether its host has a name. A cluster may know the names of its nodes only by what its clients use.
    pub(crate) fn is_known(&self) -> bool {
        !matches!(&*self.host, "" | "?")
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}
