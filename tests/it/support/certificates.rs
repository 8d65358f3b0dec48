//! A certificate authority of the test's own, and a server's certificate by it.

use tempfile::TempDir;

/// The files of an authority and of a server on this machine; they end with it.
pub struct Certificates(TempDir);

impl Certificates {
    pub fn new() -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut ca = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
        ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca = rcgen::CertifiedIssuer::self_signed(ca, key).unwrap();
        let server_key = rcgen::KeyPair::generate().unwrap();
        let server = rcgen::CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
        let server = server.signed_by(&server_key, &ca).unwrap();
        let files = Self(tempfile::tempdir().unwrap());
        std::fs::write(files.path("ca.pem"), ca.pem()).unwrap();
        std::fs::write(files.path("cert.pem"), server.pem()).unwrap();
        std::fs::write(files.path("key.pem"), server_key.serialize_pem()).unwrap();
        files
    }

    /// What a client is told to trust.
    pub fn authority(&self) -> String {
        self.path("ca.pem")
    }

    /// What `redis-server` is told: pairs of a setting and its value.
    pub fn settings(&self, tls_port: u16) -> Vec<(String, String)> {
        let pairs = [
            ("tls-port", tls_port.to_string()),
            ("tls-cert-file", self.path("cert.pem")),
            ("tls-key-file", self.path("key.pem")),
            ("tls-ca-cert-file", self.path("ca.pem")),
            ("tls-auth-clients", "no".to_owned()),
        ];
        pairs.map(|(name, value)| (name.to_owned(), value)).to_vec()
    }

    /// The same as arguments.
    pub fn args(&self, tls_port: u16) -> Vec<String> {
        self.settings(tls_port).into_iter().flat_map(|(name, value)| [format!("--{name}"), value]).collect()
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
}
