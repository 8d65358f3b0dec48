//! A real proxy with the configuration that docs/deploying/proxies.md gives, in front of gateways.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command as Started;

use crate::clients::installed;
use crate::pages::file;
use kit::certificates::Certificates;
use kit::{Client, Gateway, PATIENCE, eventually, server_port};

/// By what the clients call it.
pub const NAME: &str = "locks.example";
/// What a gateway on loopback without keys is told, so that it answers to that name.
pub const ALLOWED: [&str; 2] = ["--allow-host", NAME];
/// The firewall's rules that the Debian package `modsecurity-crs` has, and the module for nginx.
const CORE_RULES: &str = "/usr/share/modsecurity-crs/rules/*.conf";
const CORE_SETUP: &str = "/etc/modsecurity/crs/crs-setup.conf";
const FIREWALL: &str = "/usr/lib/nginx/modules/ngx_http_modsecurity_module.so";

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Nginx,
    Haproxy,
    Caddy,
    Traefik,
    Envoy,
}

/// Ends its proxy when dropped.
pub struct Front {
    child: Child,
    port: u16,
    directory: TempDir,
}

impl Front {
    /// Before this gateway.
    pub async fn start(kind: Kind, gateway: &Gateway) -> Self {
        Self::start_with(kind, &[gateway], &[]).await
    }

    /// Before these gateways, after each of the texts of its configuration was replaced by the other one.
    pub async fn start_with(kind: Kind, gateways: &[&Gateway], changes: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let port = server_port();
        let address = |number: usize| gateways[number.min(gateways.len() - 1)].address.to_string();
        let at = |place: &str| directory.path().join(place).display().to_string();
        certificates(directory.path());
        let listen = format!("127.0.0.1:{port}");
        let (certificate, key) = (at("cert.pem"), at("key.pem"));
        let ours = match kind {
            Kind::Nginx => vec![
                ("127.0.0.1:8080", address(0)),
                ("listen 443", format!("listen {listen}")),
                ("/etc/ssl/locks.example/fullchain.pem", certificate),
                ("/etc/ssl/locks.example/privkey.pem", key),
            ],
            Kind::Haproxy => vec![
                ("192.0.2.11:8080", address(0)),
                ("192.0.2.12:8080", address(1)),
                ("bind :443", format!("bind {listen}")),
                ("/etc/ssl/locks.example/combined.pem", at("both.pem")),
            ],
            Kind::Caddy => vec![
                ("127.0.0.1:8080", address(0)),
                // It asks nobody for a certificate, and listens on loopback only.
                ("locks.example {", format!("{NAME}:{port} {{\n\tbind 127.0.0.1\n\ttls {certificate} {key}")),
            ],
            Kind::Traefik => vec![
                ("127.0.0.1:8080", address(0)),
                ("\":443\"", listen),
                ("/etc/traefik/fencepost.yml", at("fencepost.yml")),
                ("/etc/ssl/locks.example/fullchain.pem", certificate),
                ("/etc/ssl/locks.example/privkey.pem", key),
            ],
            Kind::Envoy => vec![
                ("address: 0.0.0.0, port_value: 443", format!("address: 127.0.0.1, port_value: {port}")),
                ("address: 192.0.2.11, port_value: 8080", for_envoy(gateways[0].address)),
                ("address: 192.0.2.12, port_value: 8080", for_envoy(gateways[gateways.len() - 1].address)),
                ("/etc/ssl/locks.example/fullchain.pem", certificate),
                ("/etc/ssl/locks.example/privkey.pem", key),
            ],
        };
        let mut files: Vec<_> = kind.files().iter().map(|name| (*name, file(name))).collect();
        for (theirs, ours) in
            ours.iter().map(|(theirs, ours)| (*theirs, ours.as_str())).chain(changes.iter().copied())
        {
            let is_said = files.iter().any(|(_, text)| text.contains(theirs));
            assert!(is_said, "{:?} do not say {theirs:?}", kind.files());
            files.iter_mut().for_each(|(_, text)| *text = text.replace(theirs, ours));
        }
        for (name, text) in &files[1..] {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        Self::launch(kind, directory, port, &files[0].1).await
    }

    /// Nginx with a firewall by the rules that Debian has, and these before them.
    pub async fn with_firewall(gateway: &Gateway, before: &str) -> Self {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("before.conf"), before).unwrap();
        let rules = format!(
            "SecRuleEngine On\nSecRequestBodyAccess On\nInclude {CORE_SETUP}\nInclude {}\nInclude {CORE_RULES}\n",
            place.path().join("before.conf").display()
        );
        let file = place.path().join("rules.conf");
        std::fs::write(&file, rules).unwrap();
        let guarded = format!("modsecurity on;\nmodsecurity_rules_file {};\nlocation / {{", file.display());
        let front = Self::start_with(Kind::Nginx, &[gateway], &[("location / {", &guarded)]).await;
        // It has read them.
        drop(place);
        front
    }

    async fn launch(kind: Kind, directory: TempDir, port: u16, text: &str) -> Self {
        let child = start(kind, directory.path(), text);
        let mut front = Self { child, port, directory };
        eventually("the proxy passes requests on", async || {
            if front.child.try_wait().unwrap().is_some() {
                panic!("{kind:?} has ended: {}", front.log());
            }
            front.ask("GET", "/readyz", &[]).await.0 == 200
        })
        .await;
        front
    }

    /// What the proxy has said so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `curl`, on its way through the proxy; `path_and_query` goes out as it is.
    pub fn curl(&self, method: &str, path_and_query: &str, args: &[&str]) -> Started {
        let mut curl = Started::new("curl");
        curl.args(["-sS", "-N", "--path-as-is", "-X", method, "--max-time"])
            .arg(PATIENCE.as_secs().to_string())
            .args(["--resolve", &format!("{NAME}:{}:127.0.0.1", self.port), "--cacert"])
            .arg(self.path("ca.pem"))
            .args(args)
            .arg(format!("https://{NAME}:{}{path_and_query}", self.port))
            .env("NO_PROXY", "*")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        curl
    }

    /// The status and the JSON of an answer; 0 where there was none, and null where the body is something else.
    pub async fn ask(&self, method: &str, path_and_query: &str, args: &[&str]) -> (u16, Value) {
        let args = [args, &["-w", "\n%{http_code}"]].concat();
        let output = self.curl(method, path_and_query, &args).output().await.unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (body, status) = text.rsplit_once('\n').unwrap_or_default();
        (status.parse().unwrap_or(0), serde_json::from_str(body).unwrap_or_default())
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Kind {
    /// The first is what it is started with. The others lie beside it.
    fn files(self) -> &'static [&'static str] {
        match self {
            Self::Nginx => &["nginx.conf"],
            Self::Haproxy => &["haproxy.cfg"],
            Self::Caddy => &["Caddyfile"],
            Self::Traefik => &["traefik.yml", "fencepost.yml"],
            Self::Envoy => &["envoy.yaml"],
        }
    }
}

/// As Envoy writes an address.
pub fn for_envoy(address: SocketAddr) -> String {
    format!("address: {}, port_value: {}", address.ip(), address.port())
}

/// Starts a proxy with this configuration. What it says goes into the file `log` of the directory.
pub fn start(kind: Kind, directory: &Path, text: &str) -> Child {
    let place = directory.display();
    let (program, args, text): (_, &[&str], _) = match kind {
        Kind::Nginx => {
            let module = if text.contains("modsecurity on") {
                format!("load_module {FIREWALL};\n")
            } else {
                String::new()
            };
            // One process, so that nothing is left of it when it is killed.
            let process = format!("daemon off;\nmaster_process off;\nerror_log stderr;\npid {place}/pid;\n");
            let places = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
                .map(|kind| format!("{kind}_temp_path {place}/{kind};\n"))
                .concat();
            let whole =
                format!("{module}{process}events {{}}\nhttp {{\naccess_log off;\n{places}{text}\n}}\n");
            ("nginx", &["-e", "stderr", "-c"], whole)
        }
        Kind::Haproxy => ("haproxy", &["-db", "-f"], text.to_owned()),
        Kind::Caddy => {
            let global = "{\n\tadmin off\n\tauto_https disable_redirects\n}\n";
            ("caddy", &["run", "--adapter", "caddyfile", "--config"], format!("{global}{text}"))
        }
        Kind::Traefik => {
            // It asks nobody for a newer version.
            let global = "global:\n  checkNewVersion: false\n  sendAnonymousUsage: false\n";
            ("traefik", &["--configFile"], format!("{text}{global}"))
        }
        Kind::Envoy => {
            let args =
                &["--disable-hot-restart", "--concurrency", "1", "--component-log-level", "hc:debug", "-c"];
            ("envoy", args, text.to_owned())
        }
    };
    let config = directory.join(kind.files()[0]);
    std::fs::write(&config, text).unwrap();
    let installed = installed("venv/bin");
    let log = std::fs::File::create(directory.join("log")).unwrap();
    Command::new(program)
        .args(args)
        .arg(&config)
        .env("HOME", directory)
        .env("XDG_DATA_HOME", directory)
        .env("XDG_CONFIG_HOME", directory)
        // Debian has nginx and HAProxy where only root looks.
        .env("PATH", format!("{}:{}:/usr/sbin:/sbin", installed.display(), std::env::var("PATH").unwrap()))
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap_or_else(|error| panic!("{program} must be installed, as `make clients` does: {error}"))
}

/// A gateway behind a proxy, and a client that goes around the proxy.
pub async fn gateway(args: &[&str]) -> (Gateway, Client) {
    let gateway = Gateway::start(&[&["--store", "memory:"], &ALLOWED[..], args].concat()).await;
    let client = Client::new(gateway.address);
    (gateway, client)
}

/// Writes a certificate for the name, its key, both in one file, and the authority that the clients trust.
fn certificates(place: &Path) {
    let authority = Certificates::new();
    std::fs::copy(authority.authority(), place.join("ca.pem")).unwrap();
    let (certificate, key) = authority.server_called(&[NAME]);
    for (name, text) in
        [("cert.pem", &certificate), ("key.pem", &key), ("both.pem", &format!("{certificate}{key}"))]
    {
        std::fs::write(place.join(name), text).unwrap();
    }
}
