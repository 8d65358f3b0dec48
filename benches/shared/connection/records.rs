//! The requests that begin a piece of work, store its result, and get it.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde::Deserialize;

use super::{Connection, exchange};

/// What a `201` and the answer to a stored result both say.
#[derive(Deserialize)]
struct Work<'a> {
    #[serde(borrow)]
    key: Cow<'a, str>,
    fencing_token: u64,
}

impl Connection {
    /// Begins a piece of work by a token of our own; `false` if it is done, or another does it.
    pub async fn begin(&mut self, key: &str, query: &str, token: &str) -> Result<bool, String> {
        self.write_once("PUT", key, query, token, "");
        let Self { stream, request, reply, number, .. } = self;
        let reply = exchange(stream, request, &mut **reply).await?;
        let told = reply.field("fencing-token").and_then(|told| told.parse().ok());
        match reply.status {
            "200" | "423" => Ok(false),
            // The first of its key, and told so to nobody but us.
            "201"
                if reply.field("once") == Some("begun")
                    && reply.field("once-earlier") == Some("0")
                    && reply.field("lease-token") == Some(token) =>
            {
                let work: Option<Work<'_>> = serde_json::from_slice(reply.body).ok();
                let is_ours = |work: &Work<'_>| work.key == key && Some(work.fencing_token) == told;
                *number = work.filter(is_ours).ok_or_else(|| reply.mismatch("PUT", key))?.fencing_token;
                Ok(true)
            }
            _ => Err(reply.mismatch("PUT", key)),
        }
    }

    /// Stores the result of what this token has begun last.
    pub async fn store(&mut self, key: &str, token: &str, result: &str) -> Result<(), String> {
        self.write_once("POST", key, "?status=0", token, result);
        let reply = exchange(&mut self.stream, &self.request, &mut *self.reply).await?;
        let work: Option<Work<'_>> = serde_json::from_slice(reply.body).ok();
        let is_ours = |work: Work<'_>| work.key == key && work.fencing_token == self.number;
        if reply.status != "200" || !work.is_some_and(is_ours) {
            return Err(reply.mismatch("POST", key));
        }
        Ok(())
    }

    /// Asks for the result of work that is done, which is this one of that number.
    pub async fn replay(&mut self, key: &str, query: &str, token: &str, result: &str) -> Result<(), String> {
        self.write_once("PUT", key, query, token, "");
        let reply = exchange(&mut self.stream, &self.request, &mut *self.reply).await?;
        let told = reply.field("fencing-token").and_then(|told| told.parse().ok());
        if reply.status != "200" || reply.body != result.as_bytes() || told != Some(self.number) {
            return Err(reply.mismatch("PUT", key));
        }
        Ok(())
    }

    fn write_once(&mut self, method: &str, key: &str, query: &str, token: &str, result: &str) {
        let Self { common, request, .. } = self;
        request.clear();
        write!(request, "{method} /once/{key}{query} HTTP/1.1\r\n{common}lease-token: {token}\r\n").unwrap();
        if result.is_empty() {
            request.push_str("\r\n");
        } else {
            write!(request, "content-length: {}\r\n\r\n{result}", result.len()).unwrap();
        }
    }
}
