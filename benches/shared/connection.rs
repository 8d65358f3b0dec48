//! One keep-alive connection that takes, renews and gives back locks, or does pieces of work once, and believes no
//! reply unseen.
//!
//! It speaks just as much HTTP/1.1 as the servers here answer with, because a complete client would need more of the
//! machine than the servers under test.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::net::SocketAddr;

use serde::Deserialize;

use super::secure::Access;
use super::stream::Stream;

mod records;

/// Far more than any reply to a request that is made here.
const REPLY_BYTES: usize = 16 * 1024;

pub struct Connection {
    stream: Stream,
    /// The header fields that all requests have.
    common: String,
    request: String,
    reply: Box<[u8; REPLY_BYTES]>,
    /// That of the lock that was taken last.
    pub token: String,
    /// The fencing number of the grant that was told of last, be it our own or that of whoever held the lock.
    pub number: u64,
}

/// A reply, as far as the checks need it.
pub struct Reply<'a> {
    pub status: &'a str,
    pub body: &'a [u8],
    head: &'a str,
}

/// The body of a grant.
#[derive(Deserialize)]
pub struct Grant<'a> {
    #[serde(borrow)]
    pub key: Cow<'a, str>,
    pub token: &'a str,
    pub fencing_token: u64,
}

/// The body of a refusal.
#[derive(Deserialize)]
struct Refusal {
    status: u16,
    holder: Holder,
}

#[derive(Deserialize)]
struct Holder {
    fencing_token: u64,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> Result<Self, String> {
        Self::open_with(address, &Access::default()).await
    }

    pub async fn open_with(address: SocketAddr, access: &Access) -> Result<Self, String> {
        let stream = Stream::open(address, access.tls.as_ref()).await.map_err(|error| error.to_string())?;
        let mut common = format!("host: {address}\r\n");
        if let Some(api_key) = access.next_key() {
            write!(common, "authorization: Bearer {api_key}\r\n").unwrap();
        }
        let reply = Box::new([0; REPLY_BYTES]);
        Ok(Self { stream, common, request: String::new(), reply, token: String::new(), number: 0 })
    }

    /// Takes a lock, and keeps its token; `false` if somebody else holds it.
    pub async fn acquire(&mut self, key: &str, query: &str) -> Result<bool, String> {
        self.take(key, query, None).await
    }

    /// The same by a token of our own.
    pub async fn acquire_by(&mut self, key: &str, token: &str) -> Result<bool, String> {
        self.take(key, "", Some(token)).await
    }

    async fn take(&mut self, key: &str, query: &str, own: Option<&str>) -> Result<bool, String> {
        let Self { stream, common, request, reply, token, number, .. } = self;
        request.clear();
        write!(request, "PUT /locks/{key}{query} HTTP/1.1\r\n{common}").unwrap();
        if let Some(own) = own {
            write!(request, "lease-token: {own}\r\n").unwrap();
        }
        request.push_str("\r\n");
        let reply = exchange(stream, request, &mut **reply).await?;
        match reply.status {
            "201" => {
                let grant = reply.grant(key).filter(|grant| own.is_none_or(|own| own == grant.token));
                let grant = grant.ok_or_else(|| reply.mismatch("PUT", key))?;
                token.clear();
                token.push_str(grant.token);
                *number = grant.fencing_token;
                Ok(true)
            }
            "423" => {
                *number = reply.holders_number().ok_or_else(|| reply.mismatch("PUT", key))?;
                Ok(false)
            }
            _ => Err(reply.mismatch("PUT", key)),
        }
    }

    /// Renews the lock that was taken last, which must have kept its number.
    pub async fn renew(&mut self, key: &str) -> Result<(), String> {
        self.write("PATCH", key);
        let reply = exchange(&mut self.stream, &self.request, &mut *self.reply).await?;
        match reply.grant(key) {
            Some(Grant { token, fencing_token, .. })
                if reply.status == "200" && token == self.token && fencing_token == self.number =>
            {
                Ok(())
            }
            _ => Err(reply.mismatch("PATCH", key)),
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
        self.write(method, key);
        exchange(&mut self.stream, &self.request, &mut *self.reply).await
    }

    /// Sends a request with these lines and no others but the common ones: that of the request, and header fields.
    pub async fn ask_in_full(&mut self, line: &str, fields: &str) -> Result<Reply<'_>, String> {
        let Self { stream, common, request, reply, .. } = self;
        request.clear();
        write!(request, "{line} HTTP/1.1\r\n{common}{fields}\r\n").unwrap();
        exchange(stream, request, &mut **reply).await
    }

    fn write(&mut self, method: &str, key: &str) {
        let Self { common, request, token, .. } = self;
        request.clear();
        write!(request, "{method} /locks/{key} HTTP/1.1\r\n{common}").unwrap();
        if !token.is_empty() {
            write!(request, "lease-token: {token}\r\n").unwrap();
        }
        request.push_str("\r\n");
    }
}

impl Reply<'_> {
    /// The grant of this key, if the reply is one, and says the same in its header and in its body.
    pub fn grant(&self, key: &str) -> Option<Grant<'_>> {
        let grant: Grant<'_> = serde_json::from_slice(self.body).ok()?;
        let number = self.field("fencing-token")?.parse::<u64>().ok()?;
        let is_one = grant.key == key && grant.fencing_token == number && number > 0;
        (is_one && self.field("lease-token") == Some(grant.token)).then_some(grant)
    }

    /// The fencing number of whoever holds the lock, if the reply is a refusal.
    pub fn holders_number(&self) -> Option<u64> {
        let refusal: Refusal = serde_json::from_slice(self.body).ok()?;
        (refusal.status == 423).then_some(refusal.holder.fencing_token)
    }

    /// The value of a header field.
    pub fn field(&self, name: &str) -> Option<&str> {
        field(self.head, name)
    }

    pub fn mismatch(&self, method: &str, key: &str) -> String {
        format!("{method} {key}: {} {}", self.head, String::from_utf8_lossy(self.body))
    }
}

/// Sends one request and reads its reply, whole and with nothing behind it.
async fn exchange<'a>(stream: &mut Stream, request: &str, buffer: &'a mut [u8]) -> Result<Reply<'a>, String> {
    stream.send(request.as_bytes()).await.map_err(|error| error.to_string())?;
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
    Some(Reply { status, head, body: &reply[end + 4..] })
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = head.split("\r\n").filter_map(|line| line.split_once(": "));
    fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}
