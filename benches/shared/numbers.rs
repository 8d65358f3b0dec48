//! The fencing numbers that a server has given out, as far as its clients can know their order.

use std::collections::HashMap;
use std::sync::Mutex;

/// The largest number of each key that somebody was told of.
#[derive(Default)]
pub struct Numbers(Mutex<HashMap<String, u64>>);

impl Numbers {
    /// The largest number of a key so far. A grant that is asked for from now on must have a larger one.
    pub fn largest(&self, key: &str) -> u64 {
        self.0.lock().unwrap().get(key).copied().unwrap_or(0)
    }

    /// Takes down the number of a grant that was asked for when `before` was the largest.
    pub fn granted(&self, key: &str, before: u64, number: u64) -> Result<(), String> {
        if number <= before {
            return Err(format!("{key}: the number {number} was granted after {before}"));
        }
        let mut numbers = self.0.lock().unwrap();
        match numbers.get_mut(key) {
            Some(largest) => *largest = number.max(*largest),
            None => drop(numbers.insert(key.to_owned(), number)),
        }
        Ok(())
    }
}
