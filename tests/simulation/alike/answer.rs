//! Answers, in a form in which those of all stores must be the same, and what may differ.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::plan::Asked;
use super::scene::Answer;
use crate::settings::Store;

/// What may differ, and why. All else must be the same.
pub const MAY_DIFFER: [(&str, &str); 9] = [
    (
        "fencing_token, Fencing-Token",
        "which numbers there are is the store's; which grant is meant must be the same",
    ),
    ("token, Lease-Token", "a gateway makes them at random"),
    (
        "ttl_ms, expires_in_ms, kept_ms",
        "by 100 ms, since who waits learns later at some stores than at others that a lease is over; on a quorum by 1 % and 2 ms besides (quorum.md)",
    ),
    ("expires_at, forgotten_at, kept_until, stored_at", "they say the same by the clock of the gateway"),
    ("request_age_ms", "the store takes time to answer"),
    ("detail", "words for people, with times in them; `type` says the same"),
    ("Retry-After", "it is drawn at random; whether there is one must be the same"),
    ("next_cursor", "where a page ends is the store's"),
    ("501 on a quorum", "it has no slots and no records: slots.md, once.md"),
];

const LEFT_OUT: [&str; 7] =
    ["expires_at", "forgotten_at", "kept_until", "stored_at", "request_age_ms", "detail", "next_cursor"];
const TIMES: [&str; 3] = ["ttl_ms", "expires_in_ms", "kept_ms"];
const NUMBERS: [&str; 2] = ["fencing_token", "earlier_fencing_token"];
const HEADERS: [&str; 7] =
    ["slot", "once", "once-earlier", "once-status", "once-bytes", "once-content-type", "content-type"];
const ON_THE_WAY_MS: u64 = 100;

/// The answer without what may differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Words {
    pub text: String,
    pub status: u16,
    times_ms: Vec<u64>,
}

/// Grants by the order in which they were told.
#[derive(Default)]
pub struct Names(BTreeMap<(String, u64), usize>);

impl Names {
    pub fn in_words(&mut self, answer: &Answer, asked: &Asked) -> Words {
        let mut times_ms = Vec::new();
        let mut body = answer.body.clone();
        for list in ["locks", "records"] {
            if let (Some(Value::Array(rows)), true) = (
                body.get_mut(list),
                asked.address.starts_with("/locks") || asked.address.starts_with("/records"),
            ) {
                rows.sort_by_key(|row| row["key"].to_string());
            }
        }
        self.rename(&mut body, asked.key(), &mut times_ms);
        let mut text = format!("{} {body}", answer.status);
        for name in HEADERS {
            if let Some(value) = answer.headers.get(name) {
                let _ = write!(text, ", {name}: {}", value.to_str().unwrap());
            }
        }
        if let Some(number) = answer.headers.get("fencing-token") {
            let number = number.to_str().unwrap().parse().unwrap();
            let _ = write!(text, ", fencing-token: {}", self.name(asked.key(), number));
        }
        for name in ["retry-after", "lease-token"] {
            if answer.headers.contains_key(name) {
                let _ = write!(text, ", {name}");
            }
        }
        Words { text, status: answer.status, times_ms }
    }

    fn name(&mut self, key: &str, number: u64) -> String {
        let (so_far, key) = (self.0.keys().filter(|(of, _)| of == key).count(), key.to_owned());
        let at = *self.0.entry((key.clone(), number)).or_insert(so_far + 1);
        format!("{key}'s {at}")
    }

    fn rename(&mut self, value: &mut Value, key: &str, times_ms: &mut Vec<u64>) {
        match value {
            Value::Array(rows) => rows.iter_mut().for_each(|row| self.rename(row, key, times_ms)),
            Value::Object(fields) => self.rename_fields(fields, key, times_ms),
            _ => {}
        }
    }

    fn rename_fields(&mut self, fields: &mut Map<String, Value>, key: &str, times_ms: &mut Vec<u64>) {
        let key = fields.get("key").and_then(Value::as_str).unwrap_or(key).to_owned();
        for name in LEFT_OUT {
            fields.remove(name);
        }
        for (name, value) in fields.iter_mut() {
            let number = value.as_u64();
            match (name.as_str(), number) {
                (name, Some(number)) if NUMBERS.contains(&name) => *value = self.name(&key, number).into(),
                (name, Some(ms)) if TIMES.contains(&name) => {
                    times_ms.push(ms);
                    *value = "…".into();
                }
                ("token", _) => {
                    *value = if value.as_str().unwrap().starts_with('~') { "made" } else { "own" }.into()
                }
                _ => self.rename(value, &key, times_ms),
            }
        }
    }
}

/// Whether what a step was told on the stores differs, and in what.
pub fn differ(told: &[(Store, Vec<Words>)], asked: &Asked, has_slots: bool) -> Option<String> {
    let first = &told.iter().find(|(store, _)| *store == Store::Memory).unwrap_or(&told[0]).1;
    let is_same = |(store, words): &(Store, Vec<Words>)| {
        if *store == Store::Quorum && (asked.is_about_records() || has_slots) {
            let refused = asked.is_about_records() || asked.shares();
            return !refused || words.iter().all(|words| words.status == 501 || words.status == 400);
        }
        let less = |ms: u64| ON_THE_WAY_MS + if *store == Store::Quorum { ms / 100 + 3 } else { 0 };
        let are_near = |(one, other): (&Words, &Words)| {
            let times = one.times_ms.iter().zip(&other.times_ms);
            one.text == other.text && times.clone().all(|(one, other)| one.abs_diff(*other) <= less(*one))
        };
        words.len() == first.len() && first.iter().zip(words).all(are_near)
    };
    if told.iter().all(is_same) {
        return None;
    }
    let mut text = String::new();
    for (store, words) in told {
        let said =
            words.iter().map(|words| format!("{} {:?}", words.text, words.times_ms)).collect::<Vec<_>>();
        let said = if said.is_empty() { "nothing yet".to_owned() } else { said.join(" and ") };
        let mark = if is_same(&(*store, words.clone())) { "   " } else { "!! " };
        let _ = write!(text, "\n  {mark}{}: {said}", store.name());
    }
    Some(text)
}
