//! Proxies that ask whether a grant still holds its lock, as docs/claiming/proxy.md has them.

use std::process::Child;

use tempfile::TempDir;

use super::front::{Kind, start};
use crate::pages::file;
use kit::{Client, Gateway, eventually, server_port};

/// A proxy in front of an application, which is a gateway that is asked about its health.
struct Guarded {
    child: Child,
    client: Client,
    directory: TempDir,
}

impl Guarded {
    async fn start(kind: Kind, gateway: &Gateway, application: &Gateway) -> Self {
        let (directory, port) = (tempfile::tempdir().unwrap(), server_port());
        let place = directory.path().display().to_string();
        let at_home = |name: &str| {
            file(name)
                .replace("127.0.0.1:8080", &gateway.address.to_string())
                .replace("127.0.0.1:9000", &application.address.to_string())
                .replace("127.0.0.1:8090", &format!("127.0.0.1:{port}"))
                .replace("/etc/haproxy", &place)
        };
        let text = at_home(match kind {
            Kind::Nginx => "guarded.conf",
            Kind::Haproxy => "guarded.cfg",
            Kind::Caddy => "Caddyfile.guarded",
        });
        std::fs::write(directory.path().join("grant.lua"), at_home("grant.lua")).unwrap();
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

async fn lets_only_the_holder_through(kind: Kind) {
    let mut gateway = Gateway::start(&["--store", "memory:"]).await;
    let application =
        Gateway::start(&["--store", "memory:", "--cors-origin", "http://elsewhere.example"]).await;
    let client = Client::new(gateway.address);
    let guarded = Guarded::start(kind, &gateway, &application).await;
    let granted = client.put("/locks/reports?ttl=1m").send().await.expect(201);
    let number = granted.fencing_token();
    assert_eq!(guarded.status(Some(number), &[]).await, 200, "{}", guarded.log());
    // What the client says to the application is not for Fencepost.
    let headers =
        [("authorization", "Basic YTpi"), ("origin", "http://elsewhere.example"), ("cookie", "a=b")];
    assert_eq!(guarded.status(Some(number), &headers).await, 200);
    assert_eq!(guarded.status(Some(number + 1), &[]).await, 403);
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

#[tokio::test(flavor = "multi_thread")]
async fn nginx_lets_only_the_holder_through() {
    lets_only_the_holder_through(Kind::Nginx).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn haproxy_lets_only_the_holder_through() {
    lets_only_the_holder_through(Kind::Haproxy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn caddy_lets_only_the_holder_through() {
    lets_only_the_holder_through(Kind::Caddy).await;
}
