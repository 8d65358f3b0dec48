//! One connection to Redis itself that takes, renews and gives back locks in the way that is recommended: a key with
//! an end, and scripts that compare the token. One command at a time; no reply is believed unseen.

use std::fmt::Write as _;
use std::net::SocketAddr;

use super::stream::Stream;

const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
const RENEW: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
    return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0";
/// The gateway's default.
const TTL_MS: &str = "30000";
/// Far more than any reply to a command that is sent here.
const REPLY_BYTES: usize = 256;

pub struct Direct {
    stream: Stream,
    command: String,
    reply: [u8; REPLY_BYTES],
    /// What names the two scripts.
    release: String,
    renew: String,
    /// That of the lock that was taken last.
    token: String,
}

impl Direct {
    pub async fn open(address: SocketAddr) -> Result<Self, String> {
        let stream = Stream::open(address, None).await.map_err(|error| error.to_string())?;
        let (release, renew) = (String::new(), String::new());
        let mut direct = Self {
            stream,
            command: String::new(),
            reply: [0; REPLY_BYTES],
            release,
            renew,
            token: String::new(),
        };
        direct.release = direct.load(RELEASE).await?;
        direct.renew = direct.load(RENEW).await?;
        Ok(direct)
    }

    /// Takes a lock by a fresh token, and keeps it; `false` if somebody else holds it.
    pub async fn acquire(&mut self, key: &str) -> Result<bool, String> {
        let Self { stream, command, reply, token, .. } = self;
        let fresh = rand::random::<u128>();
        let before = std::mem::take(token);
        write!(token, "{fresh:032x}").unwrap();
        write_command(command, &["SET", key, token, "NX", "PX", TTL_MS]);
        match exchange(stream, command, reply).await? {
            "+OK\r\n" => Ok(true),
            "$-1\r\n" => {
                *token = before;
                Ok(false)
            }
            other => Err(format!("SET {key}: {other}")),
        }
    }

    /// Renews the lock that was taken last.
    pub async fn renew(&mut self, key: &str) -> Result<(), String> {
        write_command(&mut self.command, &["EVALSHA", &self.renew, "1", key, &self.token, TTL_MS]);
        self.done("renew", key).await
    }

    /// Gives back the lock that was taken last.
    pub async fn release(&mut self, key: &str) -> Result<(), String> {
        write_command(&mut self.command, &["EVALSHA", &self.release, "1", key, &self.token]);
        self.done("release", key).await
    }

    async fn done(&mut self, what: &str, key: &str) -> Result<(), String> {
        match exchange(&mut self.stream, &self.command, &mut self.reply).await? {
            ":1\r\n" => Ok(()),
            other => Err(format!("{what} {key}: {other}")),
        }
    }

    async fn load(&mut self, script: &str) -> Result<String, String> {
        write_command(&mut self.command, &["SCRIPT", "LOAD", script]);
        let reply = exchange(&mut self.stream, &self.command, &mut self.reply).await?;
        let name = reply.strip_prefix("$40\r\n").ok_or_else(|| format!("SCRIPT LOAD: {reply}"))?;
        Ok(name.trim_end().to_owned())
    }
}

fn write_command(command: &mut String, words: &[&str]) {
    command.clear();
    write!(command, "*{}\r\n", words.len()).unwrap();
    for word in words {
        write!(command, "${}\r\n{word}\r\n", word.len()).unwrap();
    }
}

/// Sends one command and reads its reply, whole and with nothing behind it.
async fn exchange<'a>(stream: &mut Stream, command: &str, buffer: &'a mut [u8]) -> Result<&'a str, String> {
    stream.send(command.as_bytes()).await.map_err(|error| error.to_string())?;
    let mut filled = 0;
    loop {
        match stream.read(&mut buffer[filled..]).await {
            Ok(0) => return Err("the connection was closed, or the reply is too long".to_owned()),
            Ok(bytes) => filled += bytes,
            Err(error) => return Err(error.to_string()),
        }
        // All are one line, but for the name of a script, which is a second one.
        let lines = if buffer.starts_with(b"$40") { 2 } else { 1 };
        if buffer[..filled].windows(2).filter(|window| window == b"\r\n").count() >= lines {
            return str::from_utf8(&buffer[..filled]).map_err(|error| error.to_string());
        }
    }
}
