//! A certificate authority of the test's own, and certificates by it.

use std::fs;
use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair};
use tempfile::TempDir;

/// The files of an authority and of a server on this machine; they end with it.
pub struct Certificates {
    directory: TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Certificates {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Were it called as the others are, curl would take those for their own issuers.
        params.distinguished_name.push(DnType::CommonName, "the tests' authority");
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let files = Self { directory: tempfile::tempdir().unwrap(), authority };
        fs::write(files.path("ca.pem"), files.authority.pem()).unwrap();
        files.renew();
        files
    }

    /// What a client is told to trust.
    pub fn authority(&self) -> String {
        self.path("ca.pem")
    }

    /// The server's certificate.
    pub fn certificate(&self) -> String {
        self.path("cert.pem")
    }

    /// Its private key.
    pub fn key(&self) -> String {
        self.path("key.pem")
    }

    /// Gives the server a new certificate in the place of the old one: each file at once, one after the other.
    pub fn renew(&self) {
        let (certificate, key) = self.server();
        for (name, text) in [("cert.pem", certificate), ("key.pem", key)] {
            let new = self.path("new");
            fs::write(&new, text).unwrap();
            fs::rename(new, self.path(name)).unwrap();
        }
    }

    /// The same with a key that takes long to sign with: an RSA key of 4,096 bits.
    pub fn renew_with_rsa(&self) {
        let mut openssl = Command::new("openssl");
        openssl.args(["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:4096"]);
        let made = openssl.output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let key = String::from_utf8(made.stdout).unwrap();
        let pair = KeyPair::from_pem(&key).unwrap();
        let params = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        fs::write(self.certificate(), params.signed_by(&pair, &self.authority).unwrap().pem()).unwrap();
        fs::write(self.key(), key).unwrap();
    }

    /// A certificate for a server on this machine and its key, in PEM.
    pub fn server(&self) -> (String, String) {
        self.server_called(&["localhost", "127.0.0.1"])
    }

    /// The same for a server by other names.
    pub fn server_called(&self, names: &[&str]) -> (String, String) {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        self.server_with(CertificateParams::new(names).unwrap())
    }

    /// The same for a server with a certificate of another kind.
    pub fn server_with(&self, params: CertificateParams) -> (String, String) {
        self.sign(params)
    }

    /// The files of a client's certificate and of its key.
    pub fn client(&self, file: &str, name: DistinguishedName) -> (String, String) {
        self.client_with(file, name, |_| {})
    }

    /// As [`Self::client`], with something about it that is different.
    pub fn client_with(
        &self,
        file: &str,
        name: DistinguishedName,
        change: impl FnOnce(&mut CertificateParams),
    ) -> (String, String) {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name = name;
        change(&mut params);
        let (certificate, key) = self.sign(params);
        let paths = (self.path(&format!("{file}.pem")), self.path(&format!("{file}-key.pem")));
        fs::write(&paths.0, certificate).unwrap();
        fs::write(&paths.1, key).unwrap();
        paths
    }

    fn sign(&self, params: CertificateParams) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.authority).unwrap().pem(), key.serialize_pem())
    }

    /// What `redis-server` is told: pairs of a setting and its value.
    pub fn settings(&self, tls_port: u16) -> Vec<(String, String)> {
        let pairs = [
            ("tls-port", tls_port.to_string()),
            ("tls-cert-file", self.certificate()),
            ("tls-key-file", self.key()),
            ("tls-ca-cert-file", self.authority()),
            ("tls-auth-clients", "no".to_owned()),
        ];
        pairs.map(|(name, value)| (name.to_owned(), value)).to_vec()
    }

    /// The same as arguments.
    pub fn args(&self, tls_port: u16) -> Vec<String> {
        self.settings(tls_port).into_iter().flat_map(|(name, value)| [format!("--{name}"), value]).collect()
    }

    /// A place among the files.
    pub fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }
}
