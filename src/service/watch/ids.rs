//! By what those who watch come back. An id says where in all that was told its reader is, and says it to this process
//! alone: the numbers count locks that the reader may not know of. It is good for one who watches the same: another one
//! would miss what it was not told.

use data_encoding::BASE64URL_NOPAD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::error::Unspecified;

/// What makes and reads the ids of one process.
pub(super) struct Ids([u8; 32]);

impl Default for Ids {
    fn default() -> Self {
        Self(rand::random())
    }
}

impl Ids {
    /// An id of this number for those who watch what has this name, another one each time.
    pub(super) fn of(&self, number: u64, wanted: &str) -> String {
        // With a key and a number of these lengths nothing fails.
        self.seal(number, wanted).unwrap_or_default()
    }

    fn seal(&self, number: u64, wanted: &str) -> Result<String, Unspecified> {
        let (nonce, mut text): ([u8; NONCE_LEN], _) = (rand::random(), number.to_be_bytes());
        let sealed_with = Nonce::assume_unique_for_key(nonce);
        let tag = self.key()?.seal_in_place_separate_tag(sealed_with, Aad::from(wanted), &mut text)?;
        Ok(BASE64URL_NOPAD.encode(&[&nonce[..], &text, tag.as_ref()].concat()))
    }

    /// The number in an id; `None` where this process has not given it to those who watch what has this name.
    pub(super) fn number(&self, id: &str, wanted: &str) -> Option<u64> {
        let bytes = BASE64URL_NOPAD.decode(id.as_bytes()).ok()?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>()?;
        let (nonce, mut sealed) = (Nonce::assume_unique_for_key(*nonce), sealed.to_vec());
        let text = self.key().ok()?.open_in_place(nonce, Aad::from(wanted), &mut sealed).ok()?;
        Some(u64::from_be_bytes(text.try_into().ok()?))
    }

    fn key(&self) -> Result<LessSafeKey, Unspecified> {
        Ok(LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, &self.0)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_says_its_number_to_whoever_gave_it_and_nothing_to_others() {
        let (ids, others) = (Ids::default(), Ids::default());
        for number in [0, 1, u64::MAX] {
            let (id, again) = (ids.of(number, "a"), ids.of(number, "a"));
            assert_ne!(id, again);
            assert_eq!((ids.number(&id, "a"), ids.number(&again, "a")), (Some(number), Some(number)));
            assert_eq!(
                (others.number(&id, "a"), ids.number(&id, ""), ids.number(&id, "b")),
                (None, None, None)
            );
            for (at, c) in id.char_indices() {
                let other = if c == 'A' { "B" } else { "A" };
                let forged = format!("{}{other}{}", &id[..at], &id[at + 1..]);
                assert_eq!(ids.number(&forged, "a"), None, "{id}");
            }
        }
        for id in ["", "x", "8d3f0c2a51b7e964-17", "é", &"A".repeat(48), &ids.of(7, "")[1..]] {
            assert_eq!(ids.number(id, ""), None, "{id}");
        }
    }
}
