//! What a server stores: texts, hashes and sorted sets, each with its end if it has one.

use std::collections::{BTreeMap, BTreeSet};

/// A score, in the order of scores.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Score(f64);

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // Zero has one place, whatever its sign.
        (self.0 + 0.0).total_cmp(&(other.0 + 0.0))
    }
}

/// Fields in the order in which they were made: Redis tells small hashes in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hash {
    fields: BTreeMap<Vec<u8>, (u64, Vec<u8>)>,
    made: u64,
}

impl Hash {
    pub fn get(&self, field: &[u8]) -> Option<&Vec<u8>> {
        self.fields.get(field).map(|(_, value)| value)
    }

    /// Whether the field is new.
    pub fn set(&mut self, field: &[u8], value: Vec<u8>) -> bool {
        if let Some((_, known)) = self.fields.get_mut(field) {
            *known = value;
            return false;
        }
        self.made += 1;
        self.fields.insert(field.to_owned(), (self.made, value));
        true
    }

    pub fn remove(&mut self, field: &[u8]) -> bool {
        self.fields.remove(field).is_some()
    }

    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    pub fn in_order(&self) -> Vec<(&Vec<u8>, &Vec<u8>)> {
        let mut all: Vec<_> = self.fields.iter().collect();
        all.sort_unstable_by_key(|(_, (made, _))| *made);
        all.into_iter().map(|(field, (_, value))| (field, value)).collect()
    }
}

/// Members by score, and those of one score in the order of their bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SortedSet {
    scores: BTreeMap<Vec<u8>, Score>,
    order: BTreeSet<(Score, Vec<u8>)>,
}

impl SortedSet {
    pub fn score(&self, member: &[u8]) -> Option<f64> {
        self.scores.get(member).map(|score| score.0)
    }

    pub fn set(&mut self, member: &[u8], score: f64) {
        self.remove(member);
        // Small sets are told without the sign of a zero.
        let score = score + 0.0;
        self.scores.insert(member.to_owned(), Score(score));
        self.order.insert((Score(score), member.to_owned()));
    }

    pub fn remove(&mut self, member: &[u8]) -> bool {
        let Some(score) = self.scores.remove(member) else { return false };
        self.order.remove(&(score, member.to_owned()))
    }

    pub fn len(&self) -> usize {
        self.scores.len()
    }

    pub fn is_empty(&self) -> bool {
        self.scores.is_empty()
    }

    pub fn rank(&self, member: &[u8]) -> Option<usize> {
        let score = self.scores.get(member)?;
        self.order.iter().position(|entry| entry.0 == *score && entry.1 == member)
    }

    pub fn in_order(&self) -> impl Iterator<Item = (&Vec<u8>, f64)> {
        self.order.iter().map(|(score, member)| (member, score.0))
    }
}

/// A value of one of the types that the gateway uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    Text(Vec<u8>),
    Hash(Hash),
    Sorted(SortedSet),
}

impl Data {
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Text(_) => "string",
            Self::Hash(_) => "hash",
            Self::Sorted(_) => "zset",
        }
    }
}

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub data: Data,
    /// Milliseconds since 1970.
    pub ends_ms: Option<u64>,
}

impl Entry {
    /// Whether its end is not over by then. At its end a key is still there.
    fn is_there(&self, now_ms: u64) -> bool {
        self.ends_ms.is_none_or(|ends_ms| now_ms <= ends_ms)
    }
}

/// A key, what it held before a step, and what it holds since.
type Changed = (Vec<u8>, Option<Entry>, Option<Entry>);

/// What was changed by one command or script, as one step.
#[derive(Clone, Debug)]
pub struct Change(pub Vec<Changed>);

/// All keys of a server.
#[derive(Clone, Debug, Default)]
pub struct Keyspace {
    entries: BTreeMap<Vec<u8>, Entry>,
    /// What the present step has changed, each with what it held before.
    touched: BTreeMap<Vec<u8>, Option<Entry>>,
    /// Whether what changes is to be told; it costs a copy of each value.
    pub is_followed: bool,
}

impl Keyspace {
    /// What the key holds, unless its end is over by then.
    pub fn get(&self, key: &[u8], now_ms: u64) -> Option<&Entry> {
        self.entries.get(key).filter(|entry| entry.is_there(now_ms))
    }

    /// The same, to be changed.
    pub fn change(&mut self, key: &[u8], now_ms: u64) -> Option<&mut Entry> {
        self.get(key, now_ms)?;
        self.touch(key);
        self.entries.get_mut(key)
    }

    pub fn put(&mut self, key: &[u8], entry: Entry) {
        self.touch(key);
        self.entries.insert(key.to_owned(), entry);
    }

    pub fn remove(&mut self, key: &[u8], now_ms: u64) -> bool {
        let was_there = self.get(key, now_ms).is_some();
        if self.entries.contains_key(key) {
            self.touch(key);
            self.entries.remove(key);
        }
        was_there
    }

    pub fn clear(&mut self) {
        for key in self.entries.keys().cloned().collect::<Vec<_>>() {
            self.touch(&key);
        }
        self.entries.clear();
    }

    /// The keys that are there, in the order of their bytes.
    pub fn keys(&self, now_ms: u64) -> impl Iterator<Item = &Vec<u8>> {
        self.entries.iter().filter(move |(_, entry)| entry.is_there(now_ms)).map(|(key, _)| key)
    }

    fn touch(&mut self, key: &[u8]) {
        if self.is_followed && !self.touched.contains_key(key) {
            self.touched.insert(key.to_owned(), self.entries.get(key).cloned());
        }
    }

    /// Ends a step: what it has changed, if it was followed.
    pub fn take_change(&mut self) -> Option<Change> {
        let touched = std::mem::take(&mut self.touched);
        let of = |(key, before): (Vec<u8>, Option<Entry>)| {
            let since = self.entries.get(&key).cloned();
            // A time that is set to what it is counts as well: replicas are told.
            (before.is_some() || since.is_some()).then_some((key, before, since))
        };
        let changed: Vec<_> = touched.into_iter().filter_map(of).collect();
        (!changed.is_empty()).then_some(Change(changed))
    }

    /// Does what another server did.
    pub fn redo(&mut self, Change(changed): &Change) {
        changed.iter().for_each(|(key, _, since)| self.restore(key, since));
    }

    /// Forgets what was done.
    pub fn undo(&mut self, Change(changed): &Change) {
        changed.iter().for_each(|(key, before, _)| self.restore(key, before));
    }

    fn restore(&mut self, key: &[u8], entry: &Option<Entry>) {
        match entry {
            Some(entry) => drop(self.entries.insert(key.to_owned(), entry.clone())),
            None => drop(self.entries.remove(key)),
        }
    }
}
