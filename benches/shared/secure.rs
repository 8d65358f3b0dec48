//! API keys and certificates of the gateways that are measured, and what their clients need of both.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio_rustls::TlsConnector;

/// What a client must have to be served.
#[derive(Clone, Default)]
pub struct Access {
    pub tls: Option<TlsConnector>,
    pub api_key: Option<String>,
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

/// Gives a gateway a file with one key, which it returns.
pub fn add_api_key(command: &mut Command, directory: &TempDir) -> String {
    let file = directory.path().join("keys.toml");
    let mut key_new = Command::new(command.get_program());
    key_new.args(["key", "new", "--name", "bench", "--every-key", "--allow", "acquire,inspect"]);
    let output = key_new.arg("--append-to").arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    command.arg("--keys").arg(file);
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
