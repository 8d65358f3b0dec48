//! Proxies that ask whether a grant still holds its lock, as docs/claiming/proxy.md has them.

use std::net::SocketAddr;
use std::process::Child;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::front::{Kind, for_envoy, start};
use crate::pages::file;
use kit::{Client, Gateway, KeysFile, eventually, server_port};

on_each_proxy!(lets_only_the_holder_through, shows_its_own_key, passes_on_no_number_that_it_did_not_check,);

/// A proxy in front of an application, which is a gateway that is asked about its health.
struct Guarded {
    child: Child,
    client: Client,
    directory: TempDir,
}

impl Guarded {
    async fn start(kind: Kind, gateway: &Gateway, application: SocketAddr, key: Option<&str>) -> Self {
        let (directory, port) = (tempfile::tempdir().unwrap(), server_port());
        let place = directory.path().display().to_string();
        let at_home = |name: &str| {
            key.map_or_else(|| file(name), |key| with_key(kind, &file(name), key))
                .replace("127.0.0.1:8080", &gateway.address.to_string())
                .replace("127.0.0.1:9000", &application.to_string())
                .replace(":8090", &format!(":{port}"))
                .replace("/etc/haproxy", &place)
                .replace("/etc/traefik", &place)
                .replace("address: 127.0.0.1, port_value: 8080", &for_envoy(gateway.address))
                .replace("address: 127.0.0.1, port_value: 9000", &for_envoy(application))
                .replace("port_value: 8090", &format!("port_value: {port}"))
        };
        let (name, others): (_, &[&str]) = match kind {
            Kind::Nginx => ("guarded.conf", &[]),
            Kind::Haproxy => ("guarded.cfg", &["grant.lua"]),
            Kind::Caddy => ("Caddyfile.guarded", &[]),
            Kind::Traefik => ("traefik-guarded.yml", &["reports.yml"]),
            Kind::Envoy => ("guarded-envoy.yaml", &[]),
        };
        for name in others {
            std::fs::write(directory.path().join(name), at_home(name)).unwrap();
        }
        let text = at_home(name);
        let child = start(kind, directory.path(), &text);
        let client = Client::new(([127, 0, 0, 1], port).into());
        let mut guarded = Self { child, client, directory };
        eventually("the proxy answers", async || {
            if guarded.child.try_wait().unwrap().is_some() {
                panic!("{kind:?} has ended: {}", guarded.log());
            }
            tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok()
        })
        .await;
        // Traefik listens before it knows whom it serves.
        eventually("it knows the application", async || guarded.status(None, &[]).await != 404).await;
        guarded
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    /// The status of a request to the application, with these further headers.
    async fn status(&self, number: Option<u64>, headers: &[(&str, &str)]) -> u16 {
        let mut call = self.client.get("/healthz");
        if let Some(number) = number {
            call = call.header("fencing-token", number.to_string());
        }
        for (name, value) in headers {
            call = call.header(name, value);
        }
        call.open().await.status().as_u16()
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The recipe with what the page says of a gateway with keys.
fn with_key(kind: Kind, text: &str, key: &str) -> String {
    let bearer = format!("\"Bearer {key}\"");
    let (theirs, ours) = match kind {
        Kind::Nginx => (
            "proxy_set_header Host 127.0.0.1;",
            format!("proxy_set_header Host 127.0.0.1;\nproxy_set_header Authorization {bearer};"),
        ),
        Kind::Haproxy => ("headers = {", format!("headers = {{ [\"Authorization\"] = {{ {bearer} }},")),
        Kind::Caddy => ("header_up -Authorization", format!("header_up Authorization {bearer}")),
        Kind::Traefik => ("http://127.0.0.1:8080", format!("http://proxy:{key}@127.0.0.1:8080")),
        Kind::Envoy => {
            ("[\":method\"] = \"GET\",", format!("[\":method\"] = \"GET\", authorization = {bearer},"))
        }
    };
    text.replace(theirs, &ours)
}

async fn lets_only_the_holder_through(kind: Kind) {
    let mut gateway = Gateway::start(&["--store", "memory:"]).await;
    let application =
        Gateway::start(&["--store", "memory:", "--cors-origin", "http://elsewhere.example"]).await;
    let client = Client::new(gateway.address);
    let guarded = Guarded::start(kind, &gateway, application.address, None).await;
    let granted = client.put("/locks/reports?ttl=1m").send().await.expect(201);
    let number = granted.fencing_token();
    assert_eq!(guarded.status(Some(number), &[]).await, 200, "{}", guarded.log());
    // What the client says to the application is not for Fencepost.
    let headers = [
        ("authorization", "Basic YTpi"),
        ("origin", "http://elsewhere.example"),
        ("cookie", "a=b"),
        // Fencepost refuses a request with two of them.
        ("lease-token", "abcdefghijklmnopqrst"),
        ("lease-token", "abcdefghijklmnopqrst"),
    ];
    assert_eq!(guarded.status(Some(number), &headers).await, 200);
    assert_eq!(guarded.status(Some(number + 1), &[]).await, 403);
    // By another name of the proxy, too.
    assert!(guarded.status(None, &[("host", "elsewhere.example")]).await >= 400);
    // Nothing, rubbish, and more than a number.
    assert!(guarded.status(None, &[]).await >= 400);
    for rubbish in ["x", "header", "1&key=other"] {
        assert!(guarded.status(None, &[("fencing-token", rubbish)]).await >= 400, "{rubbish}");
    }
    // The token of the lease does not stand for the number.
    assert!(guarded.status(None, &[("lease-token", &granted.token())]).await >= 400);
    client.delete("/locks/reports").token(&granted.token()).send().await.expect(204);
    assert_eq!(guarded.status(Some(number), &[]).await, 403, "it was released");
    let next = client.put("/locks/reports?ttl=1m").send().await.expect(201).fencing_token();
    assert_eq!((guarded.status(Some(next), &[]).await, guarded.status(Some(number), &[]).await), (200, 403));
    gateway.kill();
    assert!(guarded.status(Some(next), &[]).await >= 400, "it lets through what nobody has checked");
}

/// The application is asked with the client's own `Authorization`, and the gateway with the proxy's.
async fn shows_its_own_key(kind: Kind) {
    let mut file = KeysFile::new();
    let [writer, proxy] = [("writer", "\"acquire\""), ("proxy", "\"inspect\"")]
        .map(|(name, rights)| file.add_for_all(name, rights));
    file.write();
    let [flag, path] = file.flag();
    let gateway = Gateway::start(&["--store", "memory:", &flag, &path]).await;
    let application = Gateway::start(&["--store", "memory:"]).await;
    let guarded = Guarded::start(kind, &gateway, application.address, Some(&proxy)).await;
    let client = Client::new(gateway.address);
    let granted = client.put("/locks/reports?ttl=1m").key(&writer).send().await.expect(201);
    let number = granted.fencing_token();
    for headers in [&[][..], &[("authorization", "Basic YTpi")]] {
        assert_eq!(guarded.status(Some(number), headers).await, 200, "{headers:?}: {}", guarded.log());
        assert_eq!(guarded.status(Some(number + 1), headers).await, 403, "{headers:?}");
    }
    client.delete("/locks/reports").key(&writer).token(&granted.token()).send().await.expect(204);
    assert_eq!(guarded.status(Some(number), &[]).await, 403, "it was released");
}

/// An application that tells which heads reach it.
async fn application() -> (SocketAddr, UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, (told, heads)) = (listener.local_addr().unwrap(), unbounded_channel());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let told = told.clone();
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await?);
                }
                let _ = told.send(String::from_utf8_lossy(&head).to_lowercase());
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                stream.write_all(answer).await
            });
        }
    });
    (address, heads)
}

/// The signs that a name of a header may have, beside the `-`.
const SIGNS: [char; 14] = ['!', '#', '$', '%', '&', '\'', '*', '+', '.', '^', '_', '`', '|', '~'];

/// A writer may send two, also by a name that some applications take for the same.
async fn passes_on_no_number_that_it_did_not_check(kind: Kind) {
    let gateway = Gateway::start(&["--store", "memory:"]).await;
    let (application, mut heads) = application().await;
    let guarded = Guarded::start(kind, &gateway, application, None).await;
    let granted = Client::new(gateway.address).put("/locks/reports?ttl=1m").send().await.expect(201);
    let (own, other) = (granted.fencing_token(), granted.fencing_token() + 1);
    assert_eq!(guarded.status(Some(own), &[]).await, 200, "{}", guarded.log());
    guarded.status(Some(own), &[("fencing-token", &other.to_string())]).await;
    guarded.status(Some(other), &[("fencing-token", &own.to_string())]).await;
    for sign in SIGNS {
        let name = format!("fencing{sign}token");
        assert_eq!(guarded.status(Some(own), &[(&name, &other.to_string())]).await, 200, "{name}");
    }
    let mut numbers = Vec::new();
    while let Ok(head) = heads.try_recv() {
        let head = head.replace(SIGNS, "-");
        let lines: Vec<_> = head.lines().filter(|line| line.starts_with("fencing-token")).collect();
        numbers.push(lines.join(", "));
    }
    assert!(!numbers.is_empty());
    assert!(numbers.iter().all(|line| *line == format!("fencing-token: {own}")), "{numbers:?}");
}
