//! Cursors of lists. Each says itself where its page ended, so nothing has to be remembered that others could push out.
//!
//! It is sealed: the page may have ended at a lock that its caller may not know of. Only this process can open it.

use data_encoding::BASE64URL_NOPAD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::error::Unspecified;

use crate::lock::LockKey;

/// What seals the cursors of one store.
#[derive(Clone, Copy)]
pub(super) struct CursorSeal([u8; 32]);

impl CursorSeal {
    pub(super) fn new() -> Self {
        Self(rand::random())
    }

    /// The cursor of a page that ended at `key`, in the list of this name. All are of one length.
    pub(super) fn seal(&self, list: &str, key: &LockKey) -> Result<String, Unspecified> {
        // No key has a zero in it.
        let mut text = key.as_str().as_bytes().to_vec();
        text.resize(LockKey::MAX_BYTES, 0);
        let nonce: [u8; NONCE_LEN] = rand::random();
        let sealed_with = Nonce::assume_unique_for_key(nonce);
        self.key()?.seal_in_place_append_tag(sealed_with, Aad::from(list), &mut text)?;
        Ok(BASE64URL_NOPAD.encode(&[&nonce[..], &text].concat()))
    }

    /// Where the page ended, if this is a cursor of that list.
    pub(super) fn open(&self, list: &str, cursor: &str) -> Option<LockKey> {
        let bytes = BASE64URL_NOPAD.decode(cursor.as_bytes()).ok()?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>()?;
        let (nonce, mut sealed) = (Nonce::assume_unique_for_key(*nonce), sealed.to_vec());
        let text = self.key().ok()?.open_in_place(nonce, Aad::from(list), &mut sealed).ok()?;
        let length = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        LockKey::parse(text.get(..length)?).ok()
    }

    fn key(&self) -> Result<LessSafeKey, Unspecified> {
        Ok(LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, &self.0)?))
    }
}
