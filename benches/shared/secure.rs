//! API keys and certificates of the gateways that are measured, and what their clients need of both.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustls::crypto::ring::default_provider;
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio_rustls::TlsConnector;

/// What a client must have to be served.
#[derive(Default)]
pub struct Access {
    pub tls: Option<TlsConnector>,
    /// Each connection has the next of them.
    pub api_keys: Vec<String>,
    next: AtomicUsize,
}

impl Access {
    pub fn new(tls: Option<TlsConnector>, api_keys: Vec<String>) -> Self {
        Self { tls, api_keys, next: AtomicUsize::default() }
    }

    /// The key of the next connection, where one is needed.
    pub fn next_key(&self) -> Option<&str> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        Some(self.api_keys.get(turn.checked_rem(self.api_keys.len())?)?)
    }
}

/// Gives a gateway, whose command this is, a certificate of its own.
pub fn add_certificate(command: &mut Command, directory: &TempDir) -> TlsConnector {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| directory.path().join(name));
    fs::write(&certificate, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    command.arg("--tls-cert").arg(certificate).arg("--tls-key").arg(key);

    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsConnector::from(Arc::new(config))
}

/// Gives a gateway a file with so many keys, with these limits, and returns the keys.
pub fn add_api_keys(
    command: &mut Command,
    directory: &TempDir,
    count: usize,
    limits: &[&str],
) -> Vec<String> {
    let file = directory.path().join("keys.toml");
    let make = |number: usize| {
        let mut key_new = Command::new(command.get_program());
        key_new.args(["key", "new", "--name", &format!("bench-{number}"), "--every-key"]);
        key_new.args(["--allow", "acquire,inspect"]).args(limits);
        let output = key_new.arg("--append-to").arg(&file).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let keys = (0..count).map(make).collect();
    command.arg("--keys").arg(file);
    keys
}
