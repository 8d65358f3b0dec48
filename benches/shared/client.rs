//! Who takes locks, be it through a gateway or from Redis itself.

use super::connection::Connection;
use super::direct::Direct;
use super::servers::{Kind, Server};

pub enum Client {
    Http(Box<Connection>),
    Redis(Box<Direct>),
}

impl Client {
    pub async fn open(server: &Server) -> Result<Self, String> {
        Ok(match server.kind {
            Kind::Redis => Self::Redis(Box::new(Direct::open(server.address).await?)),
            Kind::Gateway | Kind::ByHeart => {
                Self::Http(Box::new(Connection::open_with(server.address, &server.access).await?))
            }
        })
    }

    /// Takes a lock; `false` if somebody else holds it.
    ///
    /// `query` is what else is asked for, of which Redis itself knows nothing.
    pub async fn acquire(&mut self, key: &str, query: &str) -> Result<bool, String> {
        match self {
            Self::Http(connection) => connection.acquire(key, query).await,
            Self::Redis(direct) => direct.acquire(key).await,
        }
    }

    /// Takes a lock by a token of our own, as all are that are shown to Redis itself.
    pub async fn acquire_by(&mut self, key: &str, token: &str) -> Result<bool, String> {
        match self {
            Self::Http(connection) => connection.acquire_by(key, token).await,
            Self::Redis(direct) => direct.acquire(key).await,
        }
    }

    /// What shows that the lock is ours that was taken last. To be put back before it is given back.
    pub fn token(&mut self) -> &mut String {
        match self {
            Self::Http(connection) => &mut connection.token,
            Self::Redis(_) => unreachable!("Redis itself has no slots"),
        }
    }

    /// Renews the lock that was taken last.
    pub async fn renew(&mut self, key: &str) -> Result<(), String> {
        match self {
            Self::Http(connection) => connection.renew(key).await,
            Self::Redis(direct) => direct.renew(key).await,
        }
    }

    /// Gives back the lock that was taken last.
    pub async fn release(&mut self, key: &str) -> Result<(), String> {
        match self {
            Self::Http(connection) => connection.release(key).await,
            Self::Redis(direct) => direct.release(key).await,
        }
    }

    /// Begins a piece of work by a token of our own; `false` if it is done, or another does it.
    pub async fn begin(&mut self, key: &str, query: &str, token: &str) -> Result<bool, String> {
        self.over_http()?.begin(key, query, token).await
    }

    /// Stores the result of what this token has begun last.
    pub async fn store(&mut self, key: &str, token: &str, result: &str) -> Result<(), String> {
        self.over_http()?.store(key, token, result).await
    }

    /// Asks for the result of what was begun last.
    pub async fn replay(&mut self, key: &str, query: &str, token: &str, result: &str) -> Result<(), String> {
        self.over_http()?.replay(key, query, token, result).await
    }

    /// Redis by itself keeps no records.
    fn over_http(&mut self) -> Result<&mut Connection, String> {
        match self {
            Self::Http(connection) => Ok(connection),
            Self::Redis(_) => Err("Redis itself does no work once".to_owned()),
        }
    }

    /// The fencing number of the grant that was told of last, our own or somebody else's. Redis by itself has none.
    pub fn number(&self) -> u64 {
        match self {
            Self::Http(connection) => connection.number,
            Self::Redis(_) => 0,
        }
    }
}
