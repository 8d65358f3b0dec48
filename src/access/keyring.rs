//! The keys in force, and how they are exchanged for others while requests go on.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::rate::Meter;
use super::shares::{Tickets, Uses};
use super::{Caller, Entry, Guesses, KeyId, RateLeft, SecretHash, ShownKey, Untold};

/// The keys in force.
#[derive(Debug)]
pub struct Keyring {
    keys: RwLock<Keys>,
    changes: watch::Sender<()>,
    tickets: Arc<Mutex<Tickets>>,
    /// The clients that have shown a wrong key.
    pub guesses: Guesses,
}

#[derive(Debug, Default)]
struct Keys {
    by_id: HashMap<KeyId, Arc<ApiKey>>,
    by_subject: HashMap<String, Arc<ApiKey>>,
}

/// Why a key is not accepted. The log says more of it than the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no such id.
    Unknown,
    /// The secret is another one.
    WrongSecret,
    /// It was good once.
    Expired,
    /// The certificate that stands for the key was good once.
    CertificateEnded,
}

impl Keyring {
    /// With these keys.
    pub fn new(entries: Vec<Entry>) -> Self {
        let (tickets, guesses) = (Arc::default(), Guesses::default());
        let keyring = Self { keys: RwLock::default(), changes: watch::Sender::new(()), tickets, guesses };
        keyring.replace(entries);
        keyring
    }

    /// Puts these keys in the place of those before. A key that stays keeps its counts; one that is gone is revoked, also
    /// for requests that go on.
    ///
    /// Returns what is different, by ids and names and for people; empty where nothing is.
    pub fn replace(&self, entries: Vec<Entry>) -> String {
        let mut different = Vec::new();
        let mut keys = self.keys.write();
        let stay: HashSet<_> = entries.iter().map(|entry| entry.id.clone()).collect();
        keys.by_id.retain(|id, key| {
            let stays = stay.contains(id);
            if !stays {
                let name = key.entry().map_or_else(String::new, |entry| format!(" ({})", entry.name));
                different.push(format!("revoked {}{name}", id.as_str()));
                key.set(None);
            }
            stays
        });
        keys.by_subject.clear();
        for entry in entries {
            let subjects = entry.subjects.clone();
            let new = || Arc::new(ApiKey::new(self.changes.subscribe(), self.tickets.clone()));
            let key = keys.by_id.entry(entry.id.clone()).or_insert_with(new);
            // As it is written, an entry shows whatever may be different.
            let change = match key.entry().map(|before| before.to_string() == entry.to_string()) {
                None => Some("new"),
                Some(false) => Some("changed"),
                Some(true) => None,
            };
            let described = |change| format!("{change} {} ({})", entry.id.as_str(), entry.name);
            different.extend(change.map(described));
            key.set(Some(entry));
            let key = key.clone();
            keys.by_subject.extend(subjects.into_iter().map(|subject| (subject, key.clone())));
        }
        drop(keys);
        self.changes.send_replace(());
        different.join(", ")
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.keys.read().by_id.len()
    }

    /// Who shows this key.
    pub fn by_key(&self, shown: &ShownKey) -> Result<Caller, Refused> {
        let key = self.keys.read().by_id.get(&shown.id).cloned();
        let entry = key.as_ref().and_then(|key| key.entry());
        let secret = entry.as_ref().and_then(|entry| entry.secret);
        // An id that is not known takes as long as one that is.
        let is_right = shown.hash().is(&secret.unwrap_or(SecretHash::NONE));
        match (key, secret) {
            (None, _) => Err(Refused::Unknown),
            (Some(key), Some(secret)) if is_right => Caller::with(key, Proof::Secret(secret)),
            _ => Err(Refused::WrongSecret),
        }
    }

    /// Who shows a certificate of this subject, if a key stands for it.
    pub fn by_subject(&self, subject: &Arc<str>, ends_at: SystemTime) -> Option<Result<Caller, Refused>> {
        let key = self.keys.read().by_subject.get(&**subject).cloned()?;
        Some(Caller::with(key, Proof::Subject(subject.clone(), timestamp(ends_at))))
    }
}

/// One key, from the first file that has it to the first that has not.
#[derive(Debug)]
pub(super) struct ApiKey {
    current: RwLock<Option<Arc<Current>>>,
    pub(super) uses: Arc<Uses>,
    pub(super) beyond_rate: Untold,
    pub(super) changes: watch::Receiver<()>,
}

/// What the file in force says of it.
#[derive(Debug)]
struct Current {
    entry: Arc<Entry>,
    meter: Option<Arc<Meter>>,
}

/// By what a caller has shown to be the holder of a key.
#[derive(Clone, Debug)]
pub(super) enum Proof {
    Secret(SecretHash),
    /// And when the certificate ends.
    Subject(Arc<str>, Timestamp),
}

impl ApiKey {
    fn new(changes: watch::Receiver<()>, tickets: Arc<Mutex<Tickets>>) -> Self {
        let uses = Arc::new(Uses { tickets, ..Uses::default() });
        Self { current: RwLock::default(), uses, beyond_rate: Untold::default(), changes }
    }

    fn set(&self, entry: Option<Entry>) {
        let mut current = self.current.write();
        let before = current.as_ref().and_then(|current| current.meter.clone());
        *current = entry.map(|entry| {
            let meter = entry.rate.map(|rate| {
                before.filter(|meter| meter.rate == rate).unwrap_or_else(|| Arc::new(Meter::new(rate)))
            });
            Arc::new(Current { entry: Arc::new(entry), meter })
        });
    }

    fn current(&self) -> Option<Arc<Current>> {
        self.current.read().clone()
    }

    /// What is said of it; `None` when it was revoked.
    pub(super) fn entry(&self) -> Option<Arc<Entry>> {
        Some(self.current()?.entry.clone())
    }

    /// Counts a request as so many; `None` where none are counted.
    pub(super) fn count(&self, as_many: u32) -> Option<RateLeft> {
        Some(self.current()?.meter.as_ref()?.count(as_many))
    }
}

impl Proof {
    /// When it proves nothing any more.
    pub(super) fn ends(&self) -> Option<Timestamp> {
        match self {
            Self::Secret(_) => None,
            Self::Subject(_, ends_at) => Some(*ends_at),
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ends().is_some_and(|end| end <= Timestamp::now())
    }

    /// Whether the key still is what this proved to hold.
    pub(super) fn is_of(&self, entry: &Entry) -> bool {
        match self {
            Self::Secret(hash) => entry.secret.is_some_and(|secret| secret.is(hash)),
            Self::Subject(subject, _) => entry.subjects.iter().any(|known| **known == **subject),
        }
    }
}

/// A time that is too late to be told is as good as none.
fn timestamp(time: SystemTime) -> Timestamp {
    Timestamp::try_from(time).unwrap_or(Timestamp::MAX)
}

impl Entry {
    pub(super) fn is_expired(&self) -> bool {
        self.expires.is_some_and(|end| end <= Timestamp::now())
    }
}
