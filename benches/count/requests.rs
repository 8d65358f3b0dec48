//! The requests that are counted, byte for byte the same in every run.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long an answer may take: under valgrind all is slower by a factor of fifty.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Request {
    pub name: &'static str,
    method: &'static str,
    path: &'static str,
    query: &'static str,
    /// What the token begins with; the rest is the key's.
    token: &'static str,
    pub status: &'static str,
    body: &'static str,
}

/// A result of 200 bytes.
const RESULT: &str = const {
    match str::from_utf8(&[b'x'; 200]) {
        Ok(text) => text,
        Err(_) => panic!(),
    }
};

/// Every kind, in the order of a lock's life, and of a record's.
pub const ALL: [Request; 8] = [
    ACQUIRE,
    lock("refuse", "PUT", "another", "423"),
    lock("renew", "PATCH", "holder", "200"),
    Request { query: "", ..lock("inspect", "GET", "holder", "200") },
    RELEASE,
    work("begin", "PUT", "worker", "201"),
    Request { query: "?status=0", body: RESULT, ..work("store", "POST", "worker", "200") },
    work("replay", "PUT", "another", "200"),
];

/// What takes a lock and gives it back.
pub const PAIR: [Request; 2] = [ACQUIRE, RELEASE];

const ACQUIRE: Request = lock("acquire", "PUT", "holder", "201");
const RELEASE: Request = Request { query: "", ..lock("release", "DELETE", "holder", "204") };

const fn lock(
    name: &'static str,
    method: &'static str,
    token: &'static str,
    status: &'static str,
) -> Request {
    Request { name, method, path: "locks", query: "?ttl=10m", token, status, body: "" }
}

const fn work(
    name: &'static str,
    method: &'static str,
    token: &'static str,
    status: &'static str,
) -> Request {
    Request { path: "once", ..lock(name, method, token, status) }
}

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
        self.send(request, key);
        self.receive(request.status);
    }

    pub fn send(&mut self, request: &Request, key: &str) {
        let Request { method, path, query, token, body, .. } = request;
        let line = format!("{method} /{path}/{key}{query}");
        let length =
            if body.is_empty() { String::new() } else { format!("content-length: {}\r\n", body.len()) };
        self.send_text(&line, &format!("lease-token: {token}-{key}\r\n{length}"), body);
    }

    /// The cheapest request that there is.
    pub fn ask_for_health(&mut self) {
        self.send_text("GET /healthz", "", "");
        self.receive("200");
    }

    fn send_text(&mut self, line: &str, headers: &str, body: &str) {
        let text = format!("{line} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n{body}");
        self.0.write_all(text.as_bytes()).unwrap();
    }

    pub fn receive(&mut self, status: &str) {
        // Answers are a few hundred bytes, written at once. Were one read in part, the next would not begin as one.
        let mut reply = [0; 4096];
        let bytes = self.0.read(&mut reply).unwrap();
        let reply = String::from_utf8_lossy(&reply[..bytes]);
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "not {status}: {reply}");
    }
}
