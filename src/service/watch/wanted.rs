//! Which locks somebody watches, and may be told of.

use std::sync::Arc;

use crate::lock::{LockKey, Reach};

/// Which locks somebody watches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Selection {
    /// This one.
    Key(LockKey),
    /// Those whose names begin so.
    Prefix(String),
}

/// What one who watches is told of.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// By which it is found. A lock is in one of them at most.
    pub(super) selections: Vec<Selection>,
    /// What of it may be told; `None` for all.
    reach: Option<Reach>,
    /// Two that have the same name are told of the same.
    pub(super) name: Arc<str>,
}

impl Wanted {
    /// This lock.
    pub fn key(key: LockKey) -> Self {
        let name = format!("key {}", key.as_str()).into();
        Self { selections: vec![Selection::Key(key)], reach: None, name }
    }

    /// These locks. They are found by how the names of those begin that may be told of: so nothing is done for a lock that
    /// may not.
    pub fn reach(reach: Reach) -> Self {
        let selections = reach.prefixes().iter().cloned().map(Selection::Prefix).collect();
        let name = format!("reach {}", reach.name()).into();
        Self { selections, reach: Some(reach), name }
    }

    pub(super) fn has(&self, key: &LockKey) -> bool {
        let has = |selection: &Selection| match selection {
            Selection::Key(own) => own == key,
            Selection::Prefix(prefix) => key.as_str().starts_with(prefix),
        };
        self.may_see(key) && self.selections.iter().any(has)
    }

    /// Whether a lock that is in one of the selections may be told of.
    pub(super) fn may_see(&self, key: &LockKey) -> bool {
        self.reach.as_ref().is_none_or(|reach| reach.may_see(key))
    }
}
