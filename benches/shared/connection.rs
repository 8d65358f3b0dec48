//! One keep-alive connection that takes and gives back locks, and believes no reply unseen.
//!
//! It speaks just as much HTTP/1.1 as the servers here answer with, because a complete client would need more of the
//! machine than the servers under test.

use std::fmt::Write as _;
use std::net::SocketAddr;

use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Far more than any reply to an acquire or a release.
const REPLY_BYTES: usize = 16 * 1024;

pub struct Connection {
    stream: TcpStream,
    host: String,
    request: String,
    reply: Box<[u8; REPLY_BYTES]>,
    token: String,
}

/// A reply, as far as the checks need it.
pub struct Reply<'a> {
    pub status: &'a str,
    pub body: &'a [u8],
    lease_token: Option<&'a str>,
}

#[derive(Deserialize)]
struct Grant<'a> {
    key: &'a str,
    token: &'a str,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> Result<Self, String> {
        let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let reply = Box::new([0; REPLY_BYTES]);
        Ok(Self { stream, host: address.to_string(), request: String::new(), reply, token: String::new() })
    }

    /// Takes a lock, and keeps its token; `false` if somebody else holds it.
    pub async fn acquire(&mut self, key: &str, query: &str) -> Result<bool, String> {
        self.request.clear();
        write!(self.request, "PUT /locks/{key}{query} HTTP/1.1\r\nhost: {}\r\n\r\n", self.host).unwrap();
        let reply = exchange(&mut self.stream, &self.request, &mut *self.reply).await?;
        let grant: Option<Grant<'_>> = serde_json::from_slice(reply.body).ok();
        match (reply.status, grant) {
            ("201", Some(grant)) if grant.key == key && reply.lease_token == Some(grant.token) => {
                self.token.clear();
                self.token.push_str(grant.token);
                Ok(true)
            }
            ("423", None) => Ok(false),
            _ => Err(reply.mismatch("PUT", key)),
        }
    }

    /// Gives back the lock that was taken last.
    pub async fn release(&mut self, key: &str) -> Result<(), String> {
        let reply = self.ask("DELETE", key).await?;
        if reply.status != "204" || !reply.body.is_empty() {
            return Err(reply.mismatch("DELETE", key));
        }
        Ok(())
    }

    /// Sends any other request, with the token of the lock that was taken last, if any was.
    pub async fn ask(&mut self, method: &str, key: &str) -> Result<Reply<'_>, String> {
        let Self { host, request, token, .. } = self;
        request.clear();
        write!(request, "{method} /locks/{key} HTTP/1.1\r\nhost: {host}\r\n").unwrap();
        if !token.is_empty() {
            write!(request, "lease-token: {token}\r\n").unwrap();
        }
        request.push_str("\r\n");
        exchange(&mut self.stream, &self.request, &mut *self.reply).await
    }
}

impl Reply<'_> {
    pub fn mismatch(&self, method: &str, key: &str) -> String {
        format!("{method} {key}: {} {}", self.status, String::from_utf8_lossy(self.body))
    }
}

/// Sends one request and reads its reply, whole and with nothing behind it.
async fn exchange<'a>(
    stream: &mut TcpStream,
    request: &str,
    buffer: &'a mut [u8],
) -> Result<Reply<'a>, String> {
    stream.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
    let mut filled = 0;
    let total = loop {
        match stream.read(&mut buffer[filled..]).await {
            Ok(0) => return Err("the connection was closed, or the reply is too long".to_owned()),
            Ok(bytes) => filled += bytes,
            Err(error) => return Err(error.to_string()),
        }
        match reply_bytes(&buffer[..filled]) {
            Some(total) if total <= filled => break total,
            _ => {}
        }
    };
    if filled > total {
        return Err(format!("{} bytes follow the reply", filled - total));
    }
    parse(&buffer[..total]).ok_or_else(|| "the reply is not HTTP".to_owned())
}

/// How long the whole reply is, once its head is there. A reply without a length has no body.
fn reply_bytes(received: &[u8]) -> Option<usize> {
    let head_bytes = received.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = str::from_utf8(&received[..head_bytes]).ok()?;
    let length = field(head, "content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    Some(head_bytes + length)
}

fn parse(reply: &[u8]) -> Option<Reply<'_>> {
    let end = reply.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = str::from_utf8(&reply[..end]).ok()?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?;
    Some(Reply { status, lease_token: field(head, "lease-token"), body: &reply[end + 4..] })
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = head.split("\r\n").filter_map(|line| line.split_once(": "));
    fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}
