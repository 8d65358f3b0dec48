//! An API key as it is shown, `fp_<id>_<secret>`, and what is kept of it: the SHA-256 of the secret.

use std::fmt;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::lock::{Hex, parse_hex};

/// How every key begins, so that it is known for one wherever it turns up.
const MARK: &str = "fp_";
/// The length of an id, in characters of `a-z0-9`.
const ID_LENGTH: usize = 12;
/// The length of a secret, in characters of `A-Za-z0-9`: 190 bits where it is random.
const SECRET_LENGTH: usize = 32;
const ID_ALPHABET: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
const SECRET_ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/// Names a key where its secret must not show.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyId(String);

impl KeyId {
    /// Reads twelve of `a-z0-9`.
    pub fn parse(text: &str) -> Option<Self> {
        let is_id = text.len() == ID_LENGTH && text.bytes().all(|byte| ID_ALPHABET.contains(&byte));
        is_id.then(|| Self(text.to_owned()))
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A key as its holder shows it.
pub struct ShownKey {
    /// Which key it claims to be.
    pub id: KeyId,
    secret: String,
}

impl ShownKey {
    /// A fresh one.
    pub fn generate() -> Self {
        let random = |alphabet: &[u8], length| {
            (0..length)
                .map(|_| char::from(alphabet[rand::random_range(0..alphabet.len())]))
                .collect::<String>()
        };
        Self { id: KeyId(random(ID_ALPHABET, ID_LENGTH)), secret: random(SECRET_ALPHABET, SECRET_LENGTH) }
    }

    /// Reads `fp_<id>_<secret>`.
    pub fn parse(text: &str) -> Option<Self> {
        let (id, secret) = Self::split(text)?;
        let is_secret =
            secret.len() == SECRET_LENGTH && secret.bytes().all(|byte| byte.is_ascii_alphanumeric());
        is_secret.then(|| Self { id, secret: secret.to_owned() })
    }

    /// The id in what may be a key, and what stands behind it.
    fn split(text: &str) -> Option<(KeyId, &str)> {
        let (id, rest) = text.strip_prefix(MARK)?.split_once('_')?;
        Some((KeyId::parse(id)?, rest))
    }

    /// What stands behind the id in each part of a text that may be a key, also in capitals.
    fn behind_ids(text: &[u8]) -> impl Iterator<Item = &[u8]> {
        const LENGTH: usize = MARK.len() + ID_LENGTH + 1;
        let is_begun = |part: &[u8]| {
            part[LENGTH - 1] == b'_'
                && part[..MARK.len()].eq_ignore_ascii_case(MARK.as_bytes())
                && part[MARK.len()..LENGTH - 1].iter().all(u8::is_ascii_alphanumeric)
        };
        let parts = text.windows(LENGTH).enumerate().filter(move |(_, part)| is_begun(part));
        parts.map(|(at, _)| &text[at + LENGTH..])
    }

    /// The id in what may be a key with something wrong about it, for the log.
    pub fn id_in(text: &str) -> Option<KeyId> {
        Self::split(text).map(|(id, _)| id)
    }

    /// Whether a key stands anywhere in a text, or one with something wrong about its secret.
    pub fn is_begun_in(text: &[u8]) -> bool {
        Self::behind_ids(text).next().is_some()
    }

    /// Whether a key stands anywhere in a text, or most of one. Names that only begin like one are names.
    pub fn stands_in(text: &[u8]) -> bool {
        let secrets = Self::behind_ids(text)
            .map(|rest| rest.iter().take_while(|byte| byte.is_ascii_alphanumeric()).count());
        secrets.max().is_some_and(|longest| longest >= SECRET_LENGTH / 2)
    }

    /// What is kept of it.
    pub fn hash(&self) -> SecretHash {
        SecretHash(Sha256::digest(self.secret.as_bytes()).into())
    }

    /// The whole key, for the client that is to have it.
    pub fn reveal(&self) -> String {
        format!("{MARK}{}_{}", self.id.0, self.secret)
    }
}

/// The SHA-256 of a secret. Secrets are random, so that a plain hash is enough to keep them out of files.
#[derive(Clone, Copy)]
pub struct SecretHash([u8; 32]);

impl SecretHash {
    /// What no secret is known to have: an unknown id is compared with it, and takes as long as a known one.
    pub(super) const NONE: Self = Self([0; 32]);

    /// Reads 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        parse_hex(text).map(Self)
    }

    /// Compares all of both, even if they differ early.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Display for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Hex(&self.0).fmt(f)
    }
}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretHash(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_key_reads_back_and_its_hash_is_what_sha256sum_says() {
        let key = ShownKey::generate();
        let read = ShownKey::parse(&key.reveal()).map(|read| (read.id.clone(), read.hash().is(&key.hash())));
        assert_eq!(read, Some((key.id.clone(), true)));
        assert_ne!(ShownKey::generate().reveal(), key.reveal());
        let known = ShownKey::parse("fp_abcdefghijkl_ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef")
            .map(|key| key.hash().to_string());
        // printf %s ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef | sha256sum
        assert_eq!(
            known.as_deref(),
            Some("918c28f73f02ffcb653102a34bf5fbc3b7393e46945b7e99a19eafae2d80e724")
        );
        assert_eq!(SecretHash::parse(&key.hash().to_string()).map(|hash| hash.is(&key.hash())), Some(true));
    }

    #[test]
    fn a_key_is_found_in_whatever_stands_around_it() {
        let key = ShownKey::generate().reveal();
        let most = format!("job-{}-1", &key[..40]);
        for text in [key.clone(), key.to_uppercase(), format!("x{key}"), format!("fp_fp_{key}"), most] {
            let bytes = text.as_bytes();
            assert!(ShownKey::is_begun_in(bytes) && ShownKey::stands_in(bytes), "{text}");
        }
        let named = ["fp_subscription_42", "dfp_transactions_eu_2026", "fp_abcdefghijkl_ABCDEFGHIJKLMNO"];
        assert!(!named.into_iter().any(|name| ShownKey::stands_in(name.as_bytes())));
        for text in ["", "fp_", "fp_job_1", "fp_abcdefghijkl", "my-request-1"] {
            assert!(!ShownKey::is_begun_in(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn nothing_else_is_a_key() {
        let secret = "s".repeat(32);
        for text in [
            String::new(),
            "fp_".into(),
            format!("fp_abcdefghijkl{secret}"),
            format!("fp_abcdefghijk_{secret}"),
            format!("fp_ABCDEFGHIJKL_{secret}"),
            format!("fp_abcdefghijkl_{secret}s"),
            format!("fp_abcdefghijkl_{}", &secret[1..]),
            format!("fp_abcdefghijkl_{}-", &secret[1..]),
            format!("FP_abcdefghijkl_{secret}"),
            format!(" fp_abcdefghijkl_{secret}"),
        ] {
            assert!(ShownKey::parse(&text).is_none(), "{text:?}");
        }
        assert!(SecretHash::parse(&"+1".repeat(32)).is_none());
        assert!(SecretHash::parse(&"é".repeat(32)).is_none());
    }
}
