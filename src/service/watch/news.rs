//! What is done to locks, and what those who watch are told of it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;

use crate::clock::boottime;
use crate::lock::{Ended, FencingToken, Lease, LockKey};

/// What somebody did to a lock.
#[derive(Clone, Debug)]
pub(in super::super) enum Doing {
    Granted(Lease),
    Renewed(Lease),
    Released(Ended),
    Broken(FencingToken),
    /// Somebody joined or left the line.
    Line,
    /// It is not known what became of it.
    Unclear,
}

impl Doing {
    /// The number of the grant that it was done to.
    pub(super) fn fence(&self) -> Option<FencingToken> {
        match self {
            Self::Granted(lease) | Self::Renewed(lease) => Some(lease.fencing_token),
            Self::Released(ended) => Some(ended.fencing_token),
            Self::Broken(number) => Some(*number),
            Self::Line | Self::Unclear => None,
        }
    }

    /// Whether it was done to one of several grants that share a lock, as far as it says so.
    pub(super) fn is_of_several(&self) -> bool {
        matches!(self, Self::Granted(lease) | Self::Renewed(lease) if lease.slot.is_some())
    }
}

/// What a watcher is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The lock was granted by this lease.
    Granted(Lease),
    /// The holder goes on, by this lease.
    Renewed(Lease),
    /// The holder released it, or it was rolled back before the holder knew of it.
    Released(Ended),
    /// The lease ended, and no gateway said that it was released.
    Expired(FencingToken),
    /// A client with the right to do so ended the lease.
    Broken(FencingToken),
    /// So many requests wait now.
    Waiting(u64),
    /// Something may have been missed: of this lock, or, without one, of all.
    Resync,
}

/// For how long a text is true enough that says what is left of a lease.
const FRESH: Duration = Duration::from_millis(100);

/// About how many bytes a text has besides the names in it.
const BYTES_WITHOUT_NAMES: usize = 200;

/// News, as they were told.
#[derive(Debug)]
pub struct Told {
    /// Grows with everything that is told at this gateway.
    pub(super) number: u64,
    /// The lock.
    pub key: Option<LockKey>,
    /// What happened to it.
    pub news: News,
    /// By the time since boot.
    pub(super) at: Duration,
    /// Each with the name of what those watch for whom it was written.
    texts: [OnceLock<(Arc<str>, Bytes)>; 2],
}

impl Told {
    pub(super) fn new(number: u64, key: Option<LockKey>, news: News) -> Self {
        Self { number, key, news, at: boottime(), texts: [const { OnceLock::new() }; 2] }
    }

    /// That what was told up to this number may have been missed.
    pub(super) fn missed(number: u64) -> Self {
        Self::new(number, None, News::Resync)
    }

    /// About how many bytes its text has.
    pub(super) fn about_bytes(&self) -> usize {
        let owner = match &self.news {
            News::Granted(lease) | News::Renewed(lease) => lease.owner(),
            _ => None,
        };
        let key = self.key.as_ref().map(LockKey::as_str);
        BYTES_WITHOUT_NAMES + key.into_iter().chain(owner).map(str::len).sum::<usize>()
    }

    /// The text of it in one of two forms. It is written once for all who watch the same and read it at about the same time.
    pub(super) fn text(&self, form: usize, wanted: &Arc<str>, write: impl Fn() -> Bytes) -> Bytes {
        match self.texts.get(form) {
            Some(text) if boottime().saturating_sub(self.at) < FRESH => {
                let (of, text) = text.get_or_init(|| (wanted.clone(), write()));
                if of == wanted { text.clone() } else { write() }
            }
            _ => write(),
        }
    }

    /// What is left now of a time that was told in milliseconds.
    pub fn left_ms(&self, told_ms: u64) -> u64 {
        let since = boottime().saturating_sub(self.at);
        told_ms.saturating_sub(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}
