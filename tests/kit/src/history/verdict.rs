//! What the judge says of a run, for people.

use std::collections::BTreeMap;

use super::{History, check};
use crate::gateway::scratch;

/// Whether a run kept all promises. Prints what happened in it, and saves the history of one that did not.
pub fn is_kept(name: &str, history: &History) -> bool {
    let violations = check(history);
    println!("{name}: {}", summary(history));
    if violations.is_empty() {
        return true;
    }
    let file = scratch().join(format!("{name}.json"));
    history.save(&file);
    println!("{name}: {} violations; TEST_HISTORY={}", violations.len(), file.display());
    for violation in violations.iter().take(10) {
        println!("  {violation}");
    }
    false
}

/// How often which answer was given.
pub fn summary(history: &History) -> String {
    let mut counts = BTreeMap::new();
    for operation in &history.operations {
        let name = format!("{:?}", operation.answer);
        let name = name.split([' ', '(']).next().unwrap_or_default().to_owned();
        *counts.entry(name).or_insert(0) += 1;
    }
    format!("{} updates, {} losses of data, {counts:?}", history.updates.len(), history.losses.len())
}
