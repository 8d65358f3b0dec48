//! The settings of the accept loop.

use std::num::NonZero;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::address::check_listen;
use super::error::{SettingsError, duration, require};
use crate::server::{ServerSettings, Tls, TlsFiles};

/// The longest of the times that bound a connection.
const LONGEST_CONNECTION_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// What a single list may take, with room to spare.
const LEAST_UNREAD_BYTES: usize = 4 * 1024 * 1024;

/// Connections that may be open to the address of the metrics.
pub(super) const METRICS_CONNECTIONS: usize = 1_024;
/// How long one of them may take to ask, or to ask again.
const METRICS_PATIENCE: Duration = Duration::from_secs(2);
/// What may wait there for clients to read it.
const METRICS_UNREAD_BYTES: usize = 16 * 1024 * 1024;

/// The most threads that may serve requests.
const MOST_THREADS: usize = 1024;

/// The flags of the accept loop.
#[derive(Args, Clone, Debug)]
pub struct ServerArgs {
    /// The address and port to listen on
    #[arg(
        long,
        help_heading = "Connections",
        env = "FENCEPOST_LISTEN",
        default_value = "127.0.0.1:8080",
        value_name = "HOST:PORT"
    )]
    pub(super) listen: String,

    /// How many threads serve requests [default: half of the cores, at least 1]
    #[arg(long, help_heading = "Connections", env = "FENCEPOST_THREADS", value_name = "N")]
    threads: Option<usize>,

    /// The certificate of this gateway, in PEM
    ///
    /// With it, the gateway speaks HTTPS only. After the certificate, the file has those that lead to an authority. The
    /// gateway reads it again when it changes, and on SIGHUP.
    #[arg(long, help_heading = "TLS", env = "FENCEPOST_TLS_CERT", value_name = "FILE")]
    tls_cert: Option<PathBuf>,

    /// The private key of that certificate, in PEM
    #[arg(long, help_heading = "TLS", env = "FENCEPOST_TLS_KEY", value_name = "FILE")]
    tls_key: Option<PathBuf>,

    /// The authorities of client certificates, in PEM
    ///
    /// The keys file names the subjects of client certificates: tls_subjects.
    #[arg(long, help_heading = "TLS", env = "FENCEPOST_TLS_CLIENT_CA", value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,

    /// How long a TLS handshake may take
    #[arg(long, help_heading = "TLS", env = "FENCEPOST_TLS_HANDSHAKE_TIMEOUT", default_value = "10s", value_parser = duration, value_name = "DURATION")]
    tls_handshake_timeout: Duration,

    /// How many connections may be open
    ///
    /// More connections wait in the kernel.
    #[arg(
        long,
        help_heading = "Connections",
        env = "FENCEPOST_MAX_CONNECTIONS",
        default_value = "10000",
        value_name = "N"
    )]
    max_connections: usize,

    /// How many connections one address may have open [default: half of --max-connections]
    ///
    /// For IPv6, a network of 64 bits counts as one address. More connections are closed at once.
    #[arg(
        long,
        help_heading = "Connections",
        env = "FENCEPOST_MAX_CONNECTIONS_PER_ADDRESS",
        value_name = "N"
    )]
    max_connections_per_address: Option<usize>,

    /// How many requests one HTTP/2 connection may have open
    #[arg(
        long,
        help_heading = "Connections",
        env = "FENCEPOST_MAX_H2_STREAMS",
        default_value = "250",
        value_name = "N"
    )]
    max_h2_streams: u32,

    /// How many bytes of answers may wait for clients to read them
    ///
    /// Heads of requests that have no end yet count as well, and what stands behind a request. Beyond that, the gateway closes the connection with the most of both.
    #[arg(
        long,
        help_heading = "Connections",
        env = "FENCEPOST_MAX_UNREAD_BYTES",
        default_value = "67108864",
        value_name = "BYTES"
    )]
    max_unread_bytes: usize,

    /// How long the first request of a connection may take to arrive
    ///
    /// With TLS, the time starts after the handshake.
    #[arg(long, help_heading = "Connections", env = "FENCEPOST_FIRST_REQUEST_TIMEOUT", default_value = "10s", value_parser = duration, value_name = "DURATION")]
    first_request_timeout: Duration,

    /// How long a connection may be idle between two requests
    #[arg(long, help_heading = "Connections", env = "FENCEPOST_IDLE_TIMEOUT", default_value = "75s", value_parser = duration, value_name = "DURATION")]
    idle_timeout: Duration,

    /// How long requests may go on after SIGTERM
    #[arg(long, help_heading = "Connections", env = "FENCEPOST_DRAIN_TIMEOUT", default_value = "10s", value_parser = duration, value_name = "DURATION")]
    drain_timeout: Duration,
}

impl ServerArgs {
    /// How many threads are to serve requests. What they leave of the machine is the store's, the kernel's and its
    /// neighbors': on a busy machine threads that must wake each other cost more than they bring.
    pub(super) fn threads(&self) -> Result<usize, SettingsError> {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let threads = self.threads.unwrap_or((cores / 2).clamp(1, MOST_THREADS));
        require("--threads", (1..=MOST_THREADS).contains(&threads), "from 1 to 1024")?;
        Ok(threads)
    }

    pub(super) fn check(&self) -> Result<ServerSettings, SettingsError> {
        check_listen("--listen", &self.listen)?;
        require("--max-connections", self.max_connections > 0, "at least 1")?;
        let per_address = self.max_connections_per_address.unwrap_or(self.max_connections.div_ceil(2));
        require("--max-connections-per-address", per_address > 0, "at least 1")?;
        require("--max-h2-streams", self.max_h2_streams > 0, "at least 1")?;
        require("--max-unread-bytes", self.max_unread_bytes >= LEAST_UNREAD_BYTES, "at least 4194304")?;
        for (flag, time) in [
            ("--tls-handshake-timeout", self.tls_handshake_timeout),
            ("--first-request-timeout", self.first_request_timeout),
            ("--idle-timeout", self.idle_timeout),
            ("--drain-timeout", self.drain_timeout),
        ] {
            let is_sane = (Duration::from_millis(10)..=LONGEST_CONNECTION_TIMEOUT).contains(&time);
            require(flag, is_sane, "from 10ms to 1day")?;
        }
        Ok(ServerSettings {
            tls: self.tls_files()?.map(load).transpose()?,
            tls_handshake_timeout: self.tls_handshake_timeout,
            first_request_timeout: self.first_request_timeout,
            idle_timeout: self.idle_timeout,
            max_connections: self.max_connections,
            max_connections_per_address: per_address,
            max_h2_streams: self.max_h2_streams,
            max_unread_bytes: self.max_unread_bytes,
            drain_timeout: self.drain_timeout,
            ..ServerSettings::default()
        })
    }

    /// The files of the certificate, if there is to be TLS.
    fn tls_files(&self) -> Result<Option<TlsFiles>, SettingsError> {
        let client_authorities = self.tls_client_ca.clone();
        match (self.tls_cert.clone(), self.tls_key.clone()) {
            (Some(certificate), Some(key)) => Ok(Some(TlsFiles { certificate, key, client_authorities })),
            (Some(_), None) => Err(lacks("--tls-cert", "--tls-key")),
            (None, Some(_)) => Err(lacks("--tls-key", "--tls-cert")),
            (None, None) if client_authorities.is_some() => Err(lacks("--tls-client-ca", "--tls-cert")),
            (None, None) => Ok(None),
        }
    }
}

impl ServerSettings {
    /// Whether clients may show certificates.
    pub(super) fn knows_clients(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.files().client_authorities.is_some())
    }

    /// Those of the address of the metrics, which strangers may reach as well as collectors. One address may have half
    /// of the connections. A client that stalls is cut before a collector would give up.
    pub fn for_metrics(max_connections: usize) -> Self {
        Self {
            max_connections,
            max_connections_per_address: max_connections.div_ceil(2),
            first_request_timeout: METRICS_PATIENCE,
            idle_timeout: METRICS_PATIENCE,
            max_unread_bytes: METRICS_UNREAD_BYTES,
            ..Self::default()
        }
    }
}

fn load(files: TlsFiles) -> Result<Tls, SettingsError> {
    Tls::load(files.clone()).map_err(|error| {
        let flag = match error.file() {
            file if file == files.key => "--tls-key",
            file if file == files.certificate => "--tls-cert",
            _ => "--tls-client-ca",
        };
        SettingsError::new(flag, error.to_string())
    })
}

fn lacks(flag: &'static str, other: &str) -> SettingsError {
    SettingsError::new(flag, format!("needs {other} beside it"))
}
