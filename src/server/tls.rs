//! TLS: certificates that are read again when they change, and the subject of a client's certificate.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::ops::RangeInclusive;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::{RwLock, RwLockReadGuard};
use rustix::fs::OFlags;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{Error, RootCertStore, ServerConfig};
use thiserror::Error;
use tokio_rustls::TlsAcceptor;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

mod subject;

pub use subject::Subject;

/// No file of certificates is so long. One without an end, such as `/dev/zero`, must not fill the memory.
const LONGEST_FILE: u64 = 16 << 20;

/// The protocols that clients may choose by ALPN. If a client chooses none, its first bytes decide.
const PROTOCOLS: [&[u8]; 3] = [b"h2", b"http/1.1", b"http/1.0"];

/// The files of a server's certificate, all in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, and the chain from it to an authority that clients know.
    pub certificate: PathBuf,
    /// The private key of the server's certificate.
    pub key: PathBuf,
    /// The authorities of client certificates. Without it, clients are not asked for a certificate.
    pub client_authorities: Option<PathBuf>,
}

impl TlsFiles {
    /// The paths of the files.
    pub fn paths(&self) -> Vec<PathBuf> {
        let all = [Some(&self.certificate), Some(&self.key), self.client_authorities.as_ref()];
        all.into_iter().flatten().cloned().collect()
    }
}

/// Why a certificate cannot be used. It quotes nothing from the files, since one of them is the key.
#[derive(Debug, Error)]
pub enum TlsError {
    /// The file is missing, or the gateway may not read it.
    #[error("cannot read {}: {error}", file.display())]
    Unreadable {
        /// The path of the file.
        file: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The content of the file cannot be used.
    #[error("{}: {problem}", file.display())]
    Unusable {
        /// The path of the file.
        file: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

impl TlsError {
    /// The path of the file that cannot be used.
    pub fn file(&self) -> &Path {
        match self {
            Self::Unreadable { file, .. } | Self::Unusable { file, .. } => file,
        }
    }
}

/// The settings for handshakes. All clones change together when the files are read again.
#[derive(Clone)]
pub struct Tls {
    files: Arc<TlsFiles>,
    current: Arc<RwLock<Current>>,
}

struct Current {
    config: Arc<ServerConfig>,
    valid: RangeInclusive<Timestamp>,
}

impl Tls {
    /// Reads the files.
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let current = Arc::new(RwLock::new(read(&files)?));
        Ok(Self { files: Arc::new(files), current })
    }

    /// Reads the files again. What is returned puts them into force, for new connections. If that fails, nothing changes; nor
    /// does it where the certificate is not valid now, and the one before is.
    pub fn read_again(&self) -> Result<impl FnOnce() -> Result<(), TlsError> + Send + use<>, TlsError> {
        let (next, this) = (read(&self.files)?, self.clone());
        Ok(move || {
            let (now, mut current) = (Timestamp::now(), this.current.write());
            if current.valid.contains(&now) && !next.valid.contains(&now) {
                let (from, until) = next.valid.into_inner();
                let problem =
                    format!("it is valid from {from} until {until}, and not now: the one before is served");
                return Err(TlsError::Unusable { file: this.files.certificate.clone(), problem });
            }
            *current = next;
            Ok(())
        })
    }

    /// The files that were read.
    pub fn files(&self) -> &TlsFiles {
        &self.files
    }

    /// The time in which the server's certificate is valid.
    pub fn valid(&self) -> RangeInclusive<Timestamp> {
        self.current().valid.clone()
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.current().config))
    }

    fn current(&self) -> RwLockReadGuard<'_, Current> {
        self.current.read()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The content of the files is not for the log.
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

fn read(files: &TlsFiles) -> Result<Current, TlsError> {
    let chain = certificates(&files.certificate)?;
    let key = private_key(&files.key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = match &files.client_authorities {
        Some(file) => client_verifier(file, &provider)?,
        None => WebPkiClientVerifier::no_client_auth(),
    };
    let valid = validity(&chain).ok_or_else(|| unusable(&files.certificate, "the certificate is damaged"))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(&files.certificate, error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|error| match error {
            Error::InconsistentKeys(_) => {
                unusable(&files.key, "it is not the private key of the certificate")
            }
            Error::InvalidCertificate(_) => unusable(&files.certificate, error),
            _ => unusable(&files.key, "its kind of key is not supported, or it is damaged"),
        })?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    if files.client_authorities.is_some() {
        // A resumed session is not verified again. With resumption, a client could go on after its certificate or its
        // authority has ended.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(Current { config: Arc::new(config), valid })
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&readable(file)?).collect();
    match found {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        Ok(_) => Err(unusable(file, "it holds no certificate in PEM")),
        Err(_) => Err(unusable(file, "its PEM is damaged")),
    }
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let problem = "it holds no private key in PEM; an encrypted one cannot be read";
    PrivateKeyDer::from_pem_slice(&readable(file)?).map_err(|_| unusable(file, problem))
}

fn client_verifier(
    file: &Path,
    provider: &Arc<rustls::crypto::CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let mut authorities = RootCertStore::empty();
    for certificate in certificates(file)? {
        authorities.add(certificate).map_err(|error| unusable(file, error))?;
    }
    // Optional: a client without a certificate may still show an API key.
    WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), Arc::clone(provider))
        .allow_unauthenticated()
        .build()
        .map_err(|error| unusable(file, error))
}

fn validity(chain: &[CertificateDer<'_>]) -> Option<RangeInclusive<Timestamp>> {
    let (_, first) = X509Certificate::from_der(chain.first()?).ok()?;
    let validity = first.validity();
    // A certificate without an end of its own says 9999-12-31, which is beyond the last that can be told.
    let time = |seconds: i64| {
        let seconds = seconds.clamp(Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
        Timestamp::from_second(seconds).ok()
    };
    Some(time(validity.not_before.timestamp())?..=time(validity.not_after.timestamp())?)
}

fn readable(file: &Path) -> Result<Vec<u8>, TlsError> {
    read_pem(file).map_err(|error| TlsError::Unreadable { file: file.to_owned(), error })
}

/// Reads a file in PEM, unless it is far too long for one.
pub fn read_pem(file: &Path) -> io::Result<Vec<u8>> {
    // A pipe may be read at the start. To open one that has come since would be to wait for a writer, perhaps for ever.
    let is_pipe = file.metadata().is_ok_and(|about| about.file_type().is_fifo());
    let flags = if is_pipe { OFlags::empty() } else { OFlags::NONBLOCK };
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(i32::try_from(flags.bits()).unwrap_or_default());
    let mut bytes = Vec::new();
    let length = options.open(file)?.take(LONGEST_FILE).read_to_end(&mut bytes)?;
    if length as u64 == LONGEST_FILE {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is too long for such a file"));
    }
    Ok(bytes)
}

fn unusable(file: &Path, problem: impl ToString) -> TlsError {
    TlsError::Unusable { file: file.to_owned(), problem: problem.to_string() }
}
