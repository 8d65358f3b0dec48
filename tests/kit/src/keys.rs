//! Keys files, and the keys that they are for.

use std::collections::BTreeMap;
use std::path::PathBuf;

use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::secrets;

/// A keys file that can be rewritten while a gateway reads it.
pub struct KeysFile {
    directory: TempDir,
    /// The entries by their names.
    entries: BTreeMap<String, String>,
}

impl KeysFile {
    pub fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), entries: BTreeMap::new() }
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("keys.toml")
    }

    /// The flag that makes a gateway use it.
    pub fn flag(&self) -> [String; 2] {
        ["--keys".into(), self.path().display().to_string()]
    }

    /// Adds a key with these further lines, and returns what its holder shows; it is in force once [`Self::write`] ran.
    pub fn add(&mut self, name: &str, lines: &str) -> String {
        let (id, secret) = (random(12, "abcdefghijklmnopqrstuvwxyz0123456789"), random(32, "abcXYZ0189"));
        let hash: String = Sha256::digest(&secret).iter().map(|byte| format!("{byte:02x}")).collect();
        let entry =
            format!("[[key]]\nid = \"{id}\"\nname = \"{name}\"\nsecret_sha256 = \"{hash}\"\n{lines}\n");
        self.entries.insert(name.to_owned(), entry);
        let key = format!("fp_{id}_{secret}");
        secrets::remember_header("Authorization", key.as_bytes());
        key
    }

    /// Adds a key that may do all this to all locks.
    pub fn add_for_all(&mut self, name: &str, rights: &str) -> String {
        self.add(name, &format!("every_key = true\nallow = [{rights}]"))
    }

    pub fn remove(&mut self, name: &str) {
        self.entries.remove(name).unwrap();
    }

    /// Changes a text in the entry of a key.
    pub fn change(&mut self, name: &str, from: &str, to: &str) {
        let entry = self.entries.get_mut(name).unwrap();
        assert!(entry.contains(from), "{entry}");
        *entry = entry.replace(from, to);
    }

    pub fn text(&self) -> String {
        self.entries.values().cloned().collect()
    }

    /// Puts the whole file into its place at once.
    pub fn write(&self) {
        self.write_text(&self.text());
    }

    pub fn write_text(&self, text: &str) {
        let new = self.directory.path().join("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.path()).unwrap();
    }
}

fn random(length: usize, alphabet: &str) -> String {
    let alphabet = alphabet.as_bytes();
    (0..length).map(|_| char::from(alphabet[rand::random_range(0..alphabet.len())])).collect()
}
