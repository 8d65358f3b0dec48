//! A way to one server, and the connections that are made by it.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, ErrorKind, RedisResult};
use tokio::io::{AsyncRead, AsyncWrite};

/// What leads to servers in the place of TCP. Tests have their servers, and what goes wrong between, in their own process.
#[async_trait]
pub trait Network: Send + Sync + 'static {
    /// Opens a stream to the server that listens there.
    async fn connect(&self, host: &str, port: u16) -> io::Result<Box<dyn ByteStream>>;
}

/// Bytes in both directions.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// Knows all that is needed to connect to a server. It has not connected yet.
#[derive(Clone)]
pub(crate) struct Client {
    client: redis::Client,
    network: Option<Arc<dyn Network>>,
}

/// Settings of a connection without the driver's own deadlines: those of the caller bound connecting and replies, and leave none on
/// the way.
pub(crate) fn without_deadlines() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None)
}

impl Client {
    pub(super) fn new(client: redis::Client, network: Option<Arc<dyn Network>>) -> Self {
        Self { client, network }
    }

    pub(crate) async fn connect(&self, config: AsyncConnectionConfig) -> RedisResult<MultiplexedConnection> {
        let Some(network) = &self.network else {
            return self.client.get_multiplexed_async_connection_with_config(&config).await;
        };
        let (ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. }) = self.address()
        else {
            return Err((ErrorKind::InvalidClientConfig, "this server has no host").into());
        };
        let stream = network.connect(host, *port).await?;
        let settings = self.client.get_connection_info().redis_settings();
        let (connection, driver) = MultiplexedConnection::new_with_config(settings, stream, config).await?;
        tokio::spawn(driver);
        Ok(connection)
    }

    pub(crate) fn address(&self) -> &ConnectionAddr {
        self.client.get_connection_info().addr()
    }
}
