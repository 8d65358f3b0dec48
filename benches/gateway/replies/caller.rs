//! One connection that names each of its requests, and holds against it what came back.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::Value;

use super::Count;
use crate::shared::connection::{Connection, Reply};
use crate::shared::servers::Server;

pub struct Caller {
    connection: Connection,
    /// What all names begin with that it gives to requests, locks and tokens.
    pub name: String,
    calls: u64,
    count: Arc<Count>,
}

/// A reply to the request that it was made for, which says nothing that contradicts itself.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Value,
    pub lease_token: Option<String>,
    pub fencing_token: Option<u64>,
}

impl Caller {
    pub async fn open(server: &Server, name: String, count: Arc<Count>) -> Self {
        let connection = Connection::open_with(server.address, &server.access).await;
        Self { connection: connection.expect("a server takes 64 connections"), name, calls: 0, count }
    }

    /// A text that nobody has used before, at this server.
    pub fn fresh(&self, prefix: &str) -> String {
        format!("{prefix}-{}-{}", self.name, self.calls)
    }

    pub async fn call(&mut self, method: &str, target: &str, token: Option<&str>) -> Result<Answer, String> {
        self.calls += 1;
        let id = format!("{}-{}", self.name, self.calls);
        let mut fields = format!("x-request-id: {id}\r\n");
        if let Some(token) = token {
            write!(fields, "lease-token: {token}\r\n").unwrap();
        }
        let reply = self.connection.ask_in_full(&format!("{method} {target}"), &fields).await?;
        self.count.replies.fetch_add(1, Ordering::Relaxed);
        answer(&reply, &id).ok_or_else(|| reply.mismatch(method, &format!("{target} as {id}")))
    }
}

/// What a reply says, if it is that to the request of this name.
fn answer(reply: &Reply<'_>, id: &str) -> Option<Answer> {
    let status: u16 = reply.status.parse().ok()?;
    if reply.field("x-request-id") != Some(id) || reply.field("cache-control") != Some("no-store") {
        return None;
    }
    let body = if reply.body.is_empty() { Value::Null } else { serde_json::from_slice(reply.body).ok()? };
    let media_type = match status {
        204 => None,
        200..300 => Some("application/json"),
        _ => Some("application/problem+json"),
    };
    let is_problem = status >= 300;
    let fits = reply.field("content-type") == media_type
        && body.is_null() == media_type.is_none()
        && (!is_problem || body["status"] == status);
    let fencing_token = reply.field("fencing-token").map(str::parse).transpose().ok()?;
    let lease_token = reply.field("lease-token").map(str::to_owned);
    fits.then_some(Answer { status, body, lease_token, fencing_token })
}

impl Answer {
    /// The number of a grant, which must be of this lock, and by this token where one is given.
    pub fn granted(self, status: u16, key: &str, token: Option<&str>) -> Result<(String, u64), String> {
        let number = self.fencing_token.filter(|number| self.body["fencing_token"] == *number);
        let told = self.lease_token.as_deref().filter(|told| self.body["token"] == *told);
        let is_mine = token.is_none_or(|token| told == Some(token));
        let left = self.body["ttl_ms"].as_u64();
        let fits =
            self.status == status && self.body["key"] == key && is_mine && left.is_some_and(|ms| ms > 0);
        match (told, number) {
            (Some(told), Some(number)) if fits && number > 0 => Ok((told.to_owned(), number)),
            _ => Err(format!("{key:?}: no grant to {token:?} with {status}: {self:?}")),
        }
    }

    /// Says who holds a lock; `yours` is what it must say of the token that was shown.
    pub fn held(self, key: &str, number: u64, yours: Option<bool>) -> Result<(), String> {
        let fits = self.status == 200
            && self.body["key"] == key
            && self.body["fencing_token"] == number
            && self.fencing_token == Some(number)
            && self.body.get("yours").and_then(Value::as_bool) == yours
            && self.lease_token.is_none();
        if fits { Ok(()) } else { Err(format!("{key:?}: not held with {number}, yours {yours:?}: {self:?}")) }
    }

    /// The number of whoever holds the lock.
    pub fn refused(self, key: &str) -> Result<u64, String> {
        let number = self.body["holder"]["fencing_token"].as_u64();
        let fits = self.status == 423 && self.body["type"] == "/problems/lock-held";
        number.filter(|_| fits).ok_or_else(|| format!("{key:?}: no refusal: {self:?}"))
    }

    pub fn released(self, key: &str) -> Result<(), String> {
        let fits = self.status == 204 && self.fencing_token.is_none() && self.lease_token.is_none();
        if fits { Ok(()) } else { Err(format!("{key:?}: not released: {self:?}")) }
    }

    pub fn problem(self, key: &str, status: u16, name: &str) -> Result<(), String> {
        let fits = self.status == status && self.body["type"] == format!("/problems/{name}");
        if fits { Ok(()) } else { Err(format!("{key:?}: not {status} {name}: {self:?}")) }
    }
}
