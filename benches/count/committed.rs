//! The numbers that were committed, and what a count means beside them.

use std::collections::BTreeMap;
use std::fs;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.json");
/// By how much a count may differ from what was committed.
const TOLERANCE_PERCENT: u64 = 5;

/// Instructions per request, by the name of the row.
pub type Counts = BTreeMap<String, u64>;

/// The counts of each profile.
pub struct Committed(BTreeMap<String, Counts>);

/// What a count is beside the committed one.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Same,
    /// So much better that a later loss of all of it would go unseen.
    Fewer,
    More,
    /// There is none to compare it with.
    New,
}

impl Committed {
    pub fn read() -> Self {
        let text = fs::read_to_string(FILE).unwrap_or_else(|_| "{}".to_owned());
        Self(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{FILE}: {error}")))
    }

    pub fn replace(&mut self, profile: &str, counts: Counts) {
        self.0.insert(profile.to_owned(), counts);
    }

    pub fn write(&self) {
        let text = serde_json::to_string_pretty(&self.0).unwrap();
        fs::write(FILE, text + "\n").unwrap_or_else(|error| panic!("{FILE}: {error}"));
    }

    /// The committed count of this row, if there is one, and what this one is beside it.
    pub fn judge(&self, profile: &str, name: &str, count: u64) -> (Option<u64>, Verdict) {
        let Some(before) = self.0.get(profile).and_then(|counts| counts.get(name)).copied() else {
            return (None, Verdict::New);
        };
        let verdict = match count * 100 {
            more if more > before * (100 + TOLERANCE_PERCENT) => Verdict::More,
            fewer if fewer < before * (100 - TOLERANCE_PERCENT) => Verdict::Fewer,
            _ => Verdict::Same,
        };
        (Some(before), verdict)
    }
}

impl Verdict {
    pub fn for_people(&self) -> &'static str {
        match self {
            Self::Same => "",
            Self::Fewer => "fewer: commit the new number",
            Self::More => "FAIL: more than before",
            Self::New => "FAIL: no number was committed",
        }
    }
}
