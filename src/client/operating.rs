//! What is asked once, by operators and by scripts: each answer is a decision, a refusal, or none.

use std::collections::VecDeque;
use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{Method, Response};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::gateway::Gateway;
use super::reply::{GatewayReply, ReleaseAnswer, RenewAnswer, not_a_gateways};
use super::trouble::Trouble;
use crate::clock::boottime;

/// The most locks of a page that a gateway gives.
const PAGE: usize = 1_000;
/// A gateway sends something each 10 s. After so long a silence it is gone.
const LONGEST_SILENCE: Duration = Duration::from_secs(25);
/// No event is so long. What is longer is no event.
const LONGEST_LINE: usize = 100_000;
const NO_EVENT: &str = "what it sends is not what a Fencepost gateway sends";
/// The form of events that is one JSON object a line.
const EVENTS: &str = "application/x-ndjson";

/// Why there is no decision.
pub(crate) enum NoDecision {
    /// Another try, or another gateway, may decide.
    NotNow(Trouble),
    /// The same request will be refused again.
    Refused(String),
}

/// Who holds a lock, and who waits.
#[derive(Deserialize, Serialize)]
pub(crate) struct ShownLock {
    pub(crate) key: String,
    #[serde(flatten)]
    pub(crate) grant: ShownGrant,
    pub(crate) waiters: u64,
    /// How many hold it, where it is held by slots; the rest is about the holder whose lease ends first.
    #[serde(default, rename(deserialize = "held"), skip_serializing_if = "Option::is_none")]
    pub(crate) held_by: Option<u64>,
    /// The smallest number of slots that one of them has said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) slots: Option<u64>,
    /// Each of them, up to a hundred.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) holders: Vec<ShownHolder>,
}

/// One of those who hold a lock by slots.
#[derive(Deserialize, Serialize)]
pub(crate) struct ShownHolder {
    pub(crate) slot: u64,
    pub(crate) slots: u64,
    #[serde(flatten)]
    pub(crate) grant: ShownGrant,
}

/// What a lock, or a slot of it, is held by.
#[derive(Deserialize, Serialize)]
pub(crate) struct ShownGrant {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<String>,
    pub(crate) fencing_token: u64,
    expires_at: String,
    pub(crate) expires_in_ms: u64,
    /// It was released, and stays taken for the rest of its `min_hold`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) released: bool,
}

/// One page of the list of held locks.
#[derive(Deserialize)]
pub(crate) struct ListPage {
    pub(crate) locks: Vec<ShownLock>,
    pub(crate) next_cursor: Option<String>,
}

/// What was seen of one lock.
pub(crate) enum Looked {
    Held(ShownLock),
    Free { waiters: u64 },
}

/// Something that happened to a lock, as a stream tells it.
#[derive(Deserialize, Serialize)]
pub(crate) struct LockEvent {
    pub(crate) event: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fencing_token: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ttl_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) waiters: Option<u64>,
}

/// The events that a gateway tells.
pub(crate) struct LockEvents {
    response: Response,
    lines: VecDeque<Vec<u8>>,
    rest: Vec<u8>,
}

impl Gateway {
    /// Looks at the lock; if several hold it, at each of them. A gateway of an earlier version knows of one alone.
    pub(crate) async fn look(&self, patience: Duration) -> Result<Looked, NoDecision> {
        match self.look_by(&[], patience).await? {
            Looked::Held(ShownLock { held_by: Some(_), .. }) => {
                self.look_by(&[("holders", "true".to_owned())], patience).await
            }
            looked => Ok(looked),
        }
    }

    async fn look_by(&self, query: &[(&str, String)], patience: Duration) -> Result<Looked, NoDecision> {
        let reply = self.call(Method::GET, "lock", query, patience).await?;
        let problem = reply.problem();
        if reply.status == 404 && problem.kind == "/problems/not-held" {
            return Ok(Looked::Free { waiters: problem.waiters });
        }
        match reply.parsed::<ShownLock>() {
            Some(lock) if reply.is_about(&lock.key) => Ok(Looked::Held(lock)),
            _ => Err(reply.undecided()),
        }
    }

    /// Breaks the lock, if this grant still holds it. What stands in front of a gateway may answer 204 as well, with an id or without.
    /// So the same is asked once more: a gateway then says, in its own words, that this grant holds the lock no longer.
    pub(crate) async fn break_grant(
        &self,
        fencing_token: u64,
        patience: Duration,
    ) -> Result<ReleaseAnswer, NoDecision> {
        let query = [("force", "true".to_owned()), ("fencing_token", fencing_token.to_string())];
        let ask = async || self.call(Method::DELETE, "lock", &query, patience).await;
        let reply = ask().await?;
        let broken = match reply.status {
            204 => ReleaseAnswer::Done,
            _ => reply.release().ok_or_else(|| reply.undecided())?,
        };
        if matches!(broken, ReleaseAnswer::Done) {
            let again = ask().await.map_err(|trouble| Trouble { may_be_done: true, ..trouble })?;
            if !matches!(again.release(), Some(ReleaseAnswer::NotHeld(_))) {
                return Err(Trouble::without_answer(again.reason()).into());
            }
        }
        Ok(broken)
    }

    /// A page of the held locks whose names begin so.
    pub(crate) async fn list(
        &self,
        prefix: &str,
        cursor: Option<&str>,
        patience: Duration,
    ) -> Result<ListPage, NoDecision> {
        let mut query = vec![("prefix", prefix.to_owned()), ("limit", PAGE.to_string())];
        query.extend(cursor.map(|cursor| ("cursor", cursor.to_owned())));
        let reply = self.call(Method::GET, "locks", &query, patience).await?;
        reply.parsed().ok_or_else(|| reply.undecided())
    }

    /// Renews the lease, for somebody who is told at once if that is refused.
    pub(crate) async fn renew_once(
        &self,
        ttl: Duration,
        patience: Duration,
    ) -> Result<RenewAnswer, NoDecision> {
        let reply = self.ask_to_renew(ttl, patience).await?;
        match reply.renewal() {
            // It was under way for longer than the lease. Only another answer tells whether that lasts.
            Some(RenewAnswer::Held(held)) if held.ends_at <= boottime() => {
                Err(Trouble::without_answer("the answer came when the lease was over").into())
            }
            answer => answer.ok_or_else(|| reply.undecided()),
        }
    }

    /// The same of a release.
    pub(crate) async fn release_once(&self, patience: Duration) -> Result<ReleaseAnswer, NoDecision> {
        let reply = self.ask_to_release(false, patience).await?;
        reply.release().ok_or_else(|| reply.undecided())
    }

    /// What happens from now on to the locks whose names begin so; or from behind an event on, if the gateway remembers it.
    pub(crate) async fn events(
        &self,
        prefix: &str,
        after: Option<&str>,
        patience: Duration,
    ) -> Result<LockEvents, NoDecision> {
        let sent_at = boottime();
        let mut request = self.request(Method::GET, "events", &[("prefix", prefix.to_owned())]);
        request = request.header(ACCEPT, EVENTS);
        if let Some(after) = after {
            request = request.header("last-event-id", after);
        }
        let began = timeout(patience, async {
            let response = request.send().await.map_err(Trouble::from)?;
            let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
            match response.status().as_u16() {
                200 if kind.is_some_and(|kind| kind.starts_with(EVENTS)) => Ok(response),
                // It may have no end.
                200 => Err(Trouble::without_answer(not_a_gateways(200)).into()),
                _ => Err(self.read(response, sent_at).await?.undecided()),
            }
        });
        let response =
            began.await.unwrap_or_else(|_| Err(Trouble::without_answer("no answer in time").into()))?;
        Ok(LockEvents { response, lines: VecDeque::new(), rest: Vec::new() })
    }
}

impl LockEvents {
    /// The next event. The error says why there is none any more.
    pub(crate) async fn next(&mut self) -> Result<LockEvent, Trouble> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return serde_json::from_slice(&line).map_err(|_| Trouble::without_answer(NO_EVENT));
            }
            let chunk = timeout(LONGEST_SILENCE, self.response.chunk()).await;
            let chunk = chunk.map_err(|_| Trouble::without_answer("the gateway has fallen silent"))??;
            let chunk = chunk.ok_or_else(|| Trouble::without_answer("the stream of events ended"))?;
            self.rest.extend_from_slice(&chunk);
            let end = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            let behind = self.rest.split_off(end);
            let whole = std::mem::replace(&mut self.rest, behind);
            self.lines.extend(whole.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec));
            if self.rest.len() > LONGEST_LINE {
                return Err(Trouble::without_answer(NO_EVENT));
            }
        }
    }
}

impl From<Trouble> for NoDecision {
    fn from(trouble: Trouble) -> Self {
        Self::NotNow(trouble)
    }
}

impl GatewayReply<'_> {
    /// What stands in an answer that says yes.
    fn parsed<T: DeserializeOwned>(&self) -> Option<T> {
        (self.status == 200).then(|| serde_json::from_slice(&self.body).ok()).flatten()
    }

    /// What an answer that decides nothing means.
    fn undecided(&self) -> NoDecision {
        match self.is_refusal() {
            true => NoDecision::Refused(self.reason()),
            false => NoDecision::NotNow(self.trouble()),
        }
    }
}
