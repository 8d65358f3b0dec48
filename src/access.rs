//! Who may do what: the rights, the API keys that have them, and the callers that show a key.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, pending};
use jiff::Timestamp;
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::lock::{LeaseToken, LockKey, Reach};

mod changing;
mod entry;
mod keyring;
mod keys_file;
mod rate;
mod revoking;
mod scope;
mod secret;
mod shares;

pub use entry::{Entry, Rate};
use keyring::{ApiKey, Proof};
pub use keyring::{Keyring, Refused};
pub use keys_file::{
    KeysFileError, append, is_plain, moment, parse as parse_keys, read_text, read_text_of_file,
};
pub use rate::{Guesses, RateLeft, Untold};
pub use revoking::revoke;
pub use scope::Scope;
pub use secret::{KeyId, SecretHash, ShownKey};
use shares::WaitingToken;
pub use shares::{Permit, Shares, WaitPermit};

/// How long a computed end of a key is relied on at most: the wall clock may be set.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// What one may be allowed to do. No right implies another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Right {
    /// Take locks, and renew and release what was taken.
    Acquire,
    /// Look at a lock whose name one knows.
    Inspect,
    /// See which locks there are.
    List,
    /// Break a lock that another holds, or a record.
    Admin,
    /// Begin pieces of work, store their results, and be told those of others.
    Once,
}

impl Right {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Acquire, Self::Inspect, Self::List, Self::Admin, Self::Once];

    /// Its name in a keys file, in an answer and in a log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Inspect => "inspect",
            Self::List => "list",
            Self::Admin => "admin",
            Self::Once => "once",
        }
    }

    /// The right of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|right| right.name() == name)
    }
}

/// Why a caller may not do what it asked for. It says nothing of the lock.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Denied {
    /// The key was good when the request began.
    #[error("the API key has expired, or was revoked or replaced")]
    NoLonger,
    /// The key has not got this right.
    #[error("this API key does not have the right {:?}", .0.name())]
    Right(Right),
    /// The right is there, for other locks than these.
    #[error("this API key has the right {:?} only for other names: none of its prefixes fits this one", .0.name())]
    Prefix(Right),
}

/// Who makes a request: the holder of an API key, or any client if no keys are in use.
#[derive(Clone, Debug)]
pub struct Caller(Option<Holder>);

/// A client that has shown a key. What the key allows is looked up in the file that is in force at that moment.
#[derive(Clone, Debug)]
struct Holder {
    /// As it was when the key was shown.
    shown: Arc<Entry>,
    key: Arc<ApiKey>,
    proof: Proof,
}

impl Caller {
    /// Any client, if no keys are in use: it may do everything.
    pub fn anybody() -> Self {
        Self(None)
    }

    fn with(key: Arc<ApiKey>, proof: Proof) -> Result<Self, Refused> {
        // Between two looks it may have been replaced.
        let shown = key.entry().filter(|entry| proof.is_of(entry)).ok_or(Refused::Unknown)?;
        if shown.is_expired() {
            return Err(Refused::Expired);
        }
        if proof.has_ended() {
            return Err(Refused::CertificateEnded);
        }
        Ok(Self(Some(Holder { shown, key, proof })))
    }

    /// The id of the key that was shown.
    pub fn id(&self) -> Option<&str> {
        self.0.as_ref().map(|holder| holder.shown.id.as_str())
    }

    /// Whom the key was given to.
    pub fn name(&self) -> Option<&str> {
        self.0.as_ref().map(|holder| holder.shown.name.as_str())
    }

    /// Whether the caller may do this to a lock.
    pub fn check(&self, right: Right, key: &LockKey) -> Result<(), Denied> {
        self.check_scope(right, |scope| scope.covers(key.as_str()))
    }

    /// Whether there may be locks whose names begin with `start` to which the caller may do this.
    pub fn check_prefix(&self, right: Right, start: &str) -> Result<(), Denied> {
        self.check_scope(right, |scope| scope.overlaps(start))
    }

    /// Whether the caller may see this lock among others.
    pub fn sees(&self, right: Right, key: &LockKey) -> bool {
        self.check(right, key).is_ok()
    }

    /// Of the locks whose names begin with `start`, those to which the caller may do this.
    pub fn reach(&self, right: Right, start: &str) -> Reach {
        match self.0.as_ref().and_then(Holder::entry) {
            // Also where it is good no more: then nothing is left to be seen.
            Some(entry) => match &entry.scope {
                Scope::Every => Reach::all(start),
                Scope::Below(prefixes) => {
                    let caller = self.clone();
                    let may_see = move |key: &LockKey| caller.sees(right, key);
                    Reach::limited(entry.scope.within(start), prefixes, may_see)
                }
            },
            None if self.0.is_none() => Reach::all(start),
            None => Reach::limited(Vec::new(), &[], |_| false),
        }
    }

    /// Tells of each change of the keys; `None` where nothing changes for the caller.
    pub fn changes(&self) -> Option<watch::Receiver<()>> {
        self.0.as_ref().map(|holder| holder.key.changes.clone())
    }

    /// Whether the key that was shown is still good. Answers that go on ask again.
    pub fn is_valid(&self) -> bool {
        self.0.as_ref().is_none_or(|holder| holder.entry().is_some())
    }

    /// Completes when the caller may no longer do this to a lock, and says why.
    pub fn until_denied<'a>(&'a self, right: Right, key: &'a LockKey) -> BoxFuture<'a, Denied> {
        // Most gateways have no keys, and there this takes no room.
        let Some(holder) = &self.0 else { return pending().boxed() };
        let denied = async move {
            let mut changes = holder.key.changes.clone();
            loop {
                changes.mark_unchanged();
                if let Err(denied) = self.check(right, key) {
                    return denied;
                }
                let end = holder.entry().and_then(|entry| entry.expires);
                let end = end.into_iter().chain(holder.proof.ends()).min();
                let expiry = async {
                    match end.map(|end| Duration::try_from(end.duration_since(Timestamp::now()))) {
                        Some(left) => sleep(left.unwrap_or_default().min(LONGEST_SLEEP)).await,
                        None => pending().await,
                    }
                };
                tokio::select! {
                    changed = changes.changed() => if changed.is_err() { return pending().await },
                    () = expiry => {}
                }
            }
        };
        denied.boxed()
    }

    /// Counts a request, as so many, against the rate of the key; `None` where it has none. Who has no key is not counted.
    pub fn count_request(&self, as_many: impl FnOnce() -> u32) -> Option<RateLeft> {
        self.0.as_ref()?.key.count(as_many())
    }

    /// The requests beyond the rate of the key; `None` without a key.
    pub fn beyond_rate(&self) -> Option<&Untold> {
        self.0.as_ref().map(|holder| &holder.key.beyond_rate)
    }

    /// Lets one request wait for a lock, or for several; `None` if as many wait as may. The ticket of a `token` that its client
    /// chose outlives the request.
    pub fn wait(&self, shares: &Shares, keys: &[LockKey], token: Option<&LeaseToken>) -> Option<WaitPermit> {
        let Some(holder) = &self.0 else { return Some(WaitPermit::UNCOUNTED) };
        let most = holder.entry()?.max_waiters.unwrap_or(shares.waiters);
        holder.key.uses.wait(most, tickets(keys, token), shares.ticket_ttl)
    }

    /// The tickets that a token may have left for these locks. A grant without a wait uses them up, and a release gives them up.
    pub fn left_tickets(&self, keys: &[LockKey], token: Option<&LeaseToken>) -> Option<WaitPermit> {
        self.0.as_ref()?.key.uses.left(|| tickets(keys, token))
    }

    /// Lets one connection hold a lock, or wait to; `None` where as many do as may.
    pub fn hold(&self, shares: &Shares) -> Option<Permit> {
        let Some(holder) = &self.0 else { return Some(Permit::UNCOUNTED) };
        Permit::take(&holder.key.uses.holds, holder.entry()?.max_holds.unwrap_or(shares.holds))
    }

    /// How many locks one request of the key can be granted at most, whatever it has otherwise.
    pub fn most_locks(&self, shares: &Shares) -> usize {
        let entry = self.0.as_ref().and_then(|holder| holder.entry());
        entry.map_or(usize::MAX, |entry| {
            entry.max_holds.unwrap_or(shares.holds).min(entry.max_locks.unwrap_or(shares.locks))
        })
    }

    /// How many locks count for the key, and how many may; `None` if locks are not counted.
    pub fn locks(&self, shares: &Shares) -> Option<(Arc<AtomicUsize>, usize)> {
        let holder = self.0.as_ref()?;
        // Of a key that was revoked meanwhile it makes no difference.
        let most = holder.entry().and_then(|entry| entry.max_locks).unwrap_or(shares.locks);
        Some((holder.key.uses.locks.clone(), most))
    }

    /// Lets one stream of events be open; `None` where as many are as may be.
    pub fn watch(&self, shares: &Shares) -> Option<Permit> {
        let Some(holder) = &self.0 else { return Some(Permit::UNCOUNTED) };
        Permit::take(&holder.key.uses.watchers, holder.entry()?.max_watchers.unwrap_or(shares.watchers))
    }

    /// Lets one request keep its connection by HTTP/1; `None` where as many do as may.
    pub fn keep_connection(&self, shares: &Shares) -> Option<Permit> {
        let Some(holder) = &self.0 else { return Some(Permit::UNCOUNTED) };
        Permit::take(&holder.key.uses.connections, shares.connections_of(&*holder.entry()?))
    }

    /// The longest lease that the key may ask for.
    pub fn max_ttl(&self) -> Option<Duration> {
        self.0.as_ref()?.entry()?.max_ttl
    }

    fn check_scope(&self, right: Right, covers: impl Fn(&Scope) -> bool) -> Result<(), Denied> {
        let Some(holder) = &self.0 else { return Ok(()) };
        let entry = holder.entry().ok_or(Denied::NoLonger)?;
        if !entry.rights.contains(&right) {
            return Err(Denied::Right(right));
        }
        if covers(&entry.scope) { Ok(()) } else { Err(Denied::Prefix(right)) }
    }
}

fn tickets(keys: &[LockKey], token: Option<&LeaseToken>) -> Vec<WaitingToken> {
    token.into_iter().flat_map(|token| keys.iter().map(|key| (key.clone(), token.hash()))).collect()
}

impl Holder {
    /// What is said of the key now; `None` where it is not good any more.
    fn entry(&self) -> Option<Arc<Entry>> {
        let entry = self.key.entry()?;
        (self.proof.is_of(&entry) && !self.proof.has_ended() && !entry.is_expired()).then_some(entry)
    }
}
