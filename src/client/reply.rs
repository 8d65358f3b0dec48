//! What an answer of a gateway means.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap};
use serde::Deserialize;

use super::once::{StoredOutput, WorkOutput};
use super::trouble::{Contact, Trouble};

pub(super) const LEASE_TOKEN: &str = "lease-token";
const REQUEST_ID: &str = "x-request-id";
/// What an answer says that is no yes. First what is said of locks, then of work that is done once.
const NOT_HELD: &str = "/problems/not-held";
const HELD_BY_ANOTHER: &str = "/problems/held-by-another";
pub(super) const LOCK_HELD: &str = "/problems/lock-held";
pub(super) const RELEASED: &str = "/problems/token-released";
pub(super) const IN_PROGRESS: &str = "/problems/once-in-progress";
pub(super) const ABANDONED: &str = "/problems/once-abandoned";
pub(super) const UNSUPPORTED: &str = "/problems/once-unsupported";
pub(super) const NO_SLOTS: &str = "/problems/mode-not-available";
const NOT_BEGUN: &str = "/problems/not-begun";
const SUPERSEDED: &str = "/problems/superseded";
const LEASE_OVER: &str = "/problems/lease-over";
const ALREADY_STORED: &str = "/problems/already-stored";
/// How many characters of what a gateway says are told to people.
const LONGEST_REASON: usize = 500;

/// What an answer said of the lease.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeldGrant {
    pub(crate) fencing_token: u64,
    /// Its place, where others may hold the lock too.
    pub(crate) slot: Option<u64>,
    /// Of several locks, where they were taken: the number and the place of each. The fields above are those of the first.
    pub(crate) locks: Vec<NumberedLock>,
    /// When the request was sent.
    pub(crate) sent_at: Duration,
    /// When the lease ends at the earliest, counted from then.
    pub(crate) ends_at: Duration,
    /// Of work that is done once: how many workers may have done it before, and how long its result may be.
    pub(crate) earlier: u64,
    pub(crate) max_result_bytes: usize,
}

/// One of several locks, with the number of its grant.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct NumberedLock {
    pub(crate) key: String,
    pub(crate) fencing_token: u64,
    pub(crate) slot: Option<u64>,
}

/// What came of a renewal.
pub(crate) enum RenewAnswer {
    Held(HeldGrant),
    /// The lock is not ours any more.
    Gone(String),
    /// It stays ours until its lease ends, and not longer.
    MaxHoldReached(String),
}

impl RenewAnswer {
    /// That of several locks is that of the one that fares worst. Trouble with one does not hide that another is lost.
    pub(super) fn of_all(answers: Vec<Result<Self, Trouble>>) -> Result<Self, Trouble> {
        let worst = answers.into_iter().reduce(|worst, answer| match (worst, answer) {
            (gone @ Ok(Self::Gone(_)), _) | (_, gone @ Ok(Self::Gone(_))) => gone,
            (trouble @ Err(_), _) | (_, trouble @ Err(_)) => trouble,
            (most @ Ok(Self::MaxHoldReached(_)), _) | (_, most @ Ok(Self::MaxHoldReached(_))) => most,
            (Ok(Self::Held(one)), Ok(Self::Held(other))) => {
                let ends_at = one.ends_at.min(other.ends_at);
                Ok(Self::Held(HeldGrant { ends_at, sent_at: one.sent_at.min(other.sent_at), ..one }))
            }
        });
        worst.unwrap_or_else(|| Ok(Self::Gone("no lock was asked about".to_owned())))
    }
}

impl ReleaseAnswer {
    /// That of several locks.
    pub(super) fn of_all(answers: Vec<Self>) -> Self {
        let not_held = answers.into_iter().find(|answer| matches!(answer, Self::NotHeld(_)));
        not_held.unwrap_or(Self::Done)
    }
}

/// What came of a release, or of breaking a grant.
pub(crate) enum ReleaseAnswer {
    Done,
    /// It was not ours any more, or not that grant's.
    NotHeld(String),
}

/// What came of storing a result.
pub(crate) enum StoreAnswer {
    Stored,
    /// There is no room for one of this length.
    TooLong(String),
    /// There is no record: it was broken or lost.
    NotBegun,
    Superseded(String),
}

#[derive(Deserialize)]
struct GrantBody {
    key: String,
    token: String,
    fencing_token: u64,
    ttl_ms: u64,
    slot: Option<u64>,
    #[serde(default)]
    earlier: u64,
    #[serde(default)]
    max_result_bytes: usize,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct GatewayProblem {
    #[serde(rename = "type")]
    pub(super) kind: String,
    detail: String,
    pub(super) parameter: Option<String>,
    pub(super) key: Option<String>,
    pub(super) position: Option<u64>,
    pub(super) waiters: u64,
    /// Of work that a worker has left: whether the token is that worker's.
    pub(super) yours: Option<bool>,
}

#[derive(Deserialize)]
struct SeveralBody {
    token: String,
    locks: Vec<NumberedLock>,
    ttl_ms: u64,
}

/// Who was asked about what.
pub(super) struct AskedGateway<'a> {
    pub(super) keys: &'a [String],
    pub(super) headers: &'a HeaderMap,
    pub(super) speaks_tls: bool,
}

/// An answer, read to its end.
pub(super) struct GatewayReply<'a> {
    pub(super) asked: AskedGateway<'a>,
    pub(super) status: u16,
    pub(super) sent_at: Duration,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

impl GatewayProblem {
    fn is_gateways(&self) -> bool {
        self.kind.starts_with("/problems/")
    }

    /// A gateway says that it did not do what it was asked for.
    fn is_certain(&self) -> bool {
        self.is_gateways()
            && !matches!(self.kind.as_str(), "/problems/outcome-unknown" | "/problems/internal-error")
    }
}

impl GatewayReply<'_> {
    /// Whether this is the name of the lock that was asked about.
    pub(super) fn is_about(&self, key: &str) -> bool {
        self.asked.keys == [key]
    }

    /// The result that it brings, if it is one. No answer of another server is.
    pub(super) fn stored_output(&self) -> Option<StoredOutput> {
        let is_number = |text: &str| text.parse::<u64>().is_ok();
        let is_replay = self.status == 200
            && self.says("once") == Some("replayed")
            // A proxy that is behind by one answer brings the result of another request.
            && self.headers.get(LEASE_TOKEN) == self.asked.headers.get(LEASE_TOKEN)
            && self.says("fencing-token").is_some_and(is_number);
        // One that a proxy has broken off is none.
        if !is_replay || self.says("once-bytes") != Some(&self.body.len().to_string()) {
            return None;
        }
        // Other clients may store a larger number, or none.
        let status = self.says("once-status").map_or(0, |text| text.parse().unwrap_or(u8::MAX));
        let output = WorkOutput::read(self.says("once-content-type"), &self.body);
        Some(StoredOutput { status, output })
    }

    /// What it says of a result that was to be stored; `None` if it decides nothing.
    pub(super) fn storing(&self) -> Option<StoreAnswer> {
        Some(match (self.status, self.problem().kind.as_str()) {
            (200, _) if self.says("once").is_some_and(|how| how.starts_with("stored")) => StoreAnswer::Stored,
            // Only this process has the token. So it stored the other one, and that answer was lost.
            (409, "/problems/result-differs") => StoreAnswer::Stored,
            (413, "/problems/result-too-large") | (503, "/problems/store-nearly-full") => {
                StoreAnswer::TooLong(self.reason())
            }
            (404, NOT_BEGUN) => StoreAnswer::NotBegun,
            (409, SUPERSEDED) => StoreAnswer::Superseded(self.reason()),
            _ => return None,
        })
    }

    fn says(&self, header: &str) -> Option<&str> {
        self.headers.get(header)?.to_str().ok()
    }

    pub(super) fn held(&self) -> Option<HeldGrant> {
        if self.asked.keys.len() > 1 {
            return self.held_several();
        }
        let grant: GrantBody = match self.status {
            200 | 201 => serde_json::from_slice(&self.body).ok()?,
            _ => return None,
        };
        // A cache or another server may have answered about something else.
        let token = self.asked.headers.get(LEASE_TOKEN)?;
        if !self.is_about(&grant.key) || token != grant.token.as_str() {
            return None;
        }
        let GrantBody { fencing_token, ttl_ms, slot, earlier, max_result_bytes, .. } = grant;
        let sent_at = self.sent_at;
        let ends_at = sent_at + Duration::from_millis(ttl_ms);
        let locks = Vec::new();
        Some(HeldGrant { fencing_token, slot, locks, sent_at, ends_at, earlier, max_result_bytes })
    }

    fn held_several(&self) -> Option<HeldGrant> {
        let SeveralBody { token, locks, ttl_ms } = match self.status {
            200 | 201 => serde_json::from_slice(&self.body).ok()?,
            _ => return None,
        };
        let are_asked_about = locks.iter().map(|lock| &lock.key).eq(self.asked.keys);
        if !are_asked_about || self.asked.headers.get(LEASE_TOKEN)? != token.as_str() {
            return None;
        }
        let NumberedLock { fencing_token, slot, .. } = *locks.first()?;
        let sent_at = self.sent_at;
        let ends_at = sent_at + Duration::from_millis(ttl_ms);
        Some(HeldGrant { fencing_token, slot, locks, sent_at, ends_at, ..HeldGrant::default() })
    }

    /// What it says of a renewal; `None` if it decides nothing.
    pub(super) fn renewal(&self) -> Option<RenewAnswer> {
        if let Some(held) = self.held() {
            return Some(RenewAnswer::Held(held));
        }
        match (self.status, self.problem().kind.as_str()) {
            (404, NOT_HELD | NOT_BEGUN) | (409, HELD_BY_ANOTHER | RELEASED | SUPERSEDED | LEASE_OVER) => {
                Some(RenewAnswer::Gone(self.reason()))
            }
            (409, "/problems/max-hold-reached") => Some(RenewAnswer::MaxHoldReached(self.reason())),
            _ => None,
        }
    }

    /// What it says of a release; `None` if it decides nothing.
    pub(super) fn release(&self) -> Option<ReleaseAnswer> {
        match (self.status, self.problem().kind.as_str()) {
            // Each answer of a gateway has that. What answers 204 to all that it is asked gives none.
            (204, _) if self.headers.contains_key(REQUEST_ID) => Some(ReleaseAnswer::Done),
            (404, NOT_HELD | NOT_BEGUN) | (409, HELD_BY_ANOTHER | SUPERSEDED | ALREADY_STORED) => {
                Some(ReleaseAnswer::NotHeld(self.reason()))
            }
            _ => None,
        }
    }

    pub(super) fn problem(&self) -> GatewayProblem {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Why it decides nothing. What stands in front of a gateway may answer so although that has done what was asked for.
    pub(super) fn trouble(&self) -> Trouble {
        if self.wants_tls() {
            return Trouble::lasting("this port speaks TLS: write https://");
        }
        let problem = self.problem();
        if !problem.is_gateways() {
            return Trouble::without_answer(self.reason());
        }
        Trouble {
            reason: self.reason(),
            contact: Contact::Answered,
            may_be_done: !problem.is_certain(),
            is_lasting: self.is_refusal() && self.status != 400,
        }
    }

    /// Whether a gateway says that the same request will be refused again. No other answer is a refusal.
    pub(super) fn is_refusal(&self) -> bool {
        self.problem().is_gateways() && !matches!(self.status, 408 | 423 | 425 | 429 | 500..=599)
    }

    pub(super) fn reason(&self) -> String {
        let problem = self.problem();
        if !problem.is_gateways() {
            let why = match self.status == 204 && !self.headers.contains_key(REQUEST_ID) {
                true => ": it has no x-request-id, which a proxy may have taken away",
                false => "",
            };
            return not_a_gateways(self.status) + why;
        }
        if self.status == 401 && !self.asked.headers.contains_key(AUTHORIZATION) {
            return "it asks for an API key: name the file of yours by --api-key-file".to_owned();
        }
        // What the gateway says more is for those who write requests.
        if problem.kind == NOT_BEGUN {
            return "its place was given up, broken or lost".to_owned();
        }
        match problem.detail.char_indices().nth(LONGEST_REASON) {
            Some((end, _)) => format!("{}…", &problem.detail[..end]),
            None => problem.detail,
        }
    }

    /// Whether a server says, in its own words, that it reads nothing but TLS at this port.
    fn wants_tls(&self) -> bool {
        let page = String::from_utf8_lossy(&self.body).to_ascii_lowercase();
        self.status == 400
            && !self.asked.speaks_tls
            && !self.problem().is_gateways()
            && ["speaks tls", "plain http", "http request to an https"].iter().any(|said| page.contains(said))
    }
}

/// What is said of an answer that no gateway gives.
pub(super) fn not_a_gateways(status: u16) -> String {
    format!("the answer is HTTP {status}, and not that of a Fencepost gateway")
}
