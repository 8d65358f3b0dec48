//! The requests that are counted, byte for byte the same in every run.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long an answer may take: under valgrind all is slower by a factor of fifty.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Request {
    pub name: &'static str,
    method: &'static str,
    query: &'static str,
    /// What the token begins with; the rest is the key's.
    token: &'static str,
    status: &'static str,
}

/// Every kind, in the order of a lock's life.
pub const ALL: [Request; 5] = [
    Request { name: "acquire", method: "PUT", query: "?ttl=10m", token: "holder", status: "201" },
    Request { name: "refuse", method: "PUT", query: "?ttl=10m", token: "another", status: "423" },
    Request { name: "renew", method: "PATCH", query: "?ttl=10m", token: "holder", status: "200" },
    Request { name: "inspect", method: "GET", query: "", token: "holder", status: "200" },
    Request { name: "release", method: "DELETE", query: "", token: "holder", status: "204" },
];

/// One connection that asks for one thing at a time.
pub struct Client(TcpStream);

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    /// Sends a request, and panics unless it is answered as it should be.
    pub fn ask(&mut self, request: &Request, key: &str) {
        let Request { method, query, token, status, .. } = request;
        let line = format!("{method} /locks/{key}{query}");
        self.exchange(&line, &format!("lease-token: {token}-{key}\r\n"), status);
    }

    /// The cheapest request that there is.
    pub fn ask_for_health(&mut self) {
        self.exchange("GET /healthz", "", "200");
    }

    fn exchange(&mut self, line: &str, headers: &str, status: &str) {
        let text = format!("{line} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
        self.0.write_all(text.as_bytes()).unwrap();
        // Answers are a few hundred bytes, written at once. Were one read in part, the next would not begin as one.
        let mut reply = [0; 4096];
        let bytes = self.0.read(&mut reply).unwrap();
        let reply = String::from_utf8_lossy(&reply[..bytes]);
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{line}: {reply}");
    }
}
