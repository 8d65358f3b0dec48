//! What is read by itself, held against a plain description of it.

use fencepost::access::{KeyId, ShownKey, parse_keys};
use fencepost::lock::{Attempt, LeaseToken, LockKey, Owner, TokenHash};

pub fn names(bytes: &[u8]) {
    let text = std::str::from_utf8(bytes);
    let is_plain = text.is_ok_and(|text| !text.chars().any(char::is_control));
    let key = LockKey::parse(bytes);
    assert_eq!(key.is_ok(), is_plain && (1..=512).contains(&bytes.len()));
    if let Ok(key) = &key {
        assert_eq!(key.as_str().as_bytes(), bytes);
        let risky = format!("/{}/", key.as_str());
        let is_risky = ["//", "/./", "/../"].iter().any(|part| risky.contains(part));
        assert_eq!(key.is_risky_in_path(), is_risky);
    }
    let owner = Owner::parse(bytes);
    assert_eq!(owner.is_ok(), is_plain && bytes.len() <= 256);
    if let Ok(owner) = owner {
        assert_eq!(owner.as_ref().map_or("", Owner::as_str).as_bytes(), bytes);
    }
}

pub fn tokens(bytes: &[u8]) {
    let in_alphabet = |byte: &u8| byte.is_ascii_alphanumeric() || b"._~-".contains(byte);
    let token = LeaseToken::parse(bytes);
    assert_eq!(token.is_ok(), (16..=128).contains(&bytes.len()) && bytes.iter().all(in_alphabet));
    if let Ok(token) = token {
        assert_eq!(token.reveal().as_bytes(), bytes);
        assert_eq!(token.is_server_made(), bytes[0] == b'~');
        assert!(!format!("{token:?} {}", token.hash()).contains(token.reveal()));
        assert_eq!(TokenHash::parse(&token.hash().to_string()), Some(token.hash()));
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let is_hex = |length| text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert_eq!(TokenHash::parse(text).map(|hash| hash.to_string()), is_hex(64).then(|| text.to_lowercase()));
    assert_eq!(Attempt::parse(text).map(|one| one.to_string()), is_hex(32).then(|| text.to_lowercase()));
}

pub fn api_keys(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let parts: Vec<_> = text.split('_').collect();
    let is_id = |id: &str| id.len() == 12 && id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let is_secret = |secret: &str| secret.len() == 32 && secret.bytes().all(|b| b.is_ascii_alphanumeric());
    let is_key = matches!(parts[..], ["fp", id, secret] if is_id(id) && is_secret(secret));
    let key = ShownKey::parse(text);
    assert_eq!(key.is_some(), is_key);
    assert!(key.is_none_or(|key| key.reveal() == text && ShownKey::id_in(text).as_ref() == Some(&key.id)));
    // What may be told of something that is no key is never more than an id.
    assert!(ShownKey::id_in(text).is_none_or(|id| is_id(id.as_str()) && text.contains(id.as_str())));
    assert_eq!(KeyId::parse(text).is_some(), is_id(text));
}

pub fn keys_files(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match parse_keys(text) {
        Ok(keys) => {
            let ids: std::collections::HashSet<_> = keys.iter().map(|key| key.id.as_str()).collect();
            assert!(!keys.is_empty() && ids.len() == keys.len());
            for key in &keys {
                assert!(key.secret.is_some() || !key.subjects.is_empty(), "nobody could show {key:?}");
            }
        }
        Err(error) => {
            let said = error.to_string();
            assert!(said.starts_with("line "), "{said}");
            // A secret that stands in the wrong place must not be repeated.
            let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| word.len() >= 32);
            for word in words {
                assert!(!said.contains(word), "{said}");
            }
        }
    }
}
