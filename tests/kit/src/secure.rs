//! Connections with TLS, as clients make them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::PATIENCE;
use super::certificates::Certificates;
use super::http::{Answer, parse};

/// A client that trusts one authority.
#[derive(Clone)]
pub struct SecureClient(TlsConnector);

impl SecureClient {
    pub fn new(certificates: &Certificates) -> Self {
        Self::with(certificates, None)
    }

    /// With a certificate of its own, and its key, if it has one.
    pub fn with(certificates: &Certificates, own: Option<(String, String)>) -> Self {
        let mut authorities = RootCertStore::empty();
        for authority in read_certificates(&certificates.authority()) {
            authorities.add(authority).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(authorities);
        let config = match own {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => config
                .with_client_auth_cert(
                    read_certificates(&certificate),
                    PrivateKeyDer::from_pem_file(key).unwrap(),
                )
                .unwrap(),
        };
        Self(TlsConnector::from(Arc::new(config)))
    }

    /// A connection, its handshake made: of TLS 1.3 that means that the server is known, and not yet that it is content.
    pub async fn connect(&self, address: SocketAddr) -> io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let handshake = self.0.connect(ServerName::try_from("localhost").unwrap(), stream);
        timeout(PATIENCE, handshake).await.expect("the handshake takes too long")
    }

    /// The first bytes of a handshake. They may be sent many times, and then cost a client nothing.
    pub fn greeting(&self) -> Vec<u8> {
        let server = ServerName::try_from("localhost").unwrap();
        let mut begun = ClientConnection::new(self.0.config().clone(), server).unwrap();
        let mut bytes = Vec::new();
        begun.write_tls(&mut bytes).unwrap();
        bytes
    }
}

fn read_certificates(file: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(file).unwrap().collect::<Result<_, _>>().unwrap()
}

/// One request and its answer, which has a length, on a connection that stays open.
pub async fn call(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    method: &str,
    target: &str,
    more_headers: &str,
) -> io::Result<Answer> {
    let exchange = exchange(stream, method, target, more_headers);
    timeout(2 * PATIENCE, exchange).await.expect("no answer in time")
}

async fn exchange(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    method: &str,
    target: &str,
    more_headers: &str,
) -> io::Result<Answer> {
    let request = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{more_headers}\r\n");
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).await?;
    bytes.extend(body);
    Ok(parse(&bytes))
}
