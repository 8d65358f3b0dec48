//! The path and the query as they were sent: decoded once and strictly, without guessing.
//!
//! The extractors of frameworks keep a malformed `%zz` as it stands, and replace bytes that are not UTF-8. Then two
//! different addresses could mean one lock. Here, such input is an error.

use percent_encoding::percent_decode;

/// The parameters of a query, in the order in which they came: each at most once, but for keys.
pub(crate) struct Pairs(Vec<(String, Vec<u8>)>);

/// Why a query cannot be read. Carries the name of the parameter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum QueryError {
    /// In this parameter, a `%` is not followed by two hexadecimal digits.
    Malformed(String),
    /// This parameter is there twice, or more often than it may be.
    Repeated(String),
    /// This parameter is one more than any request takes.
    TooMany(String),
}

/// The most parameters of a query, which is more than any request takes. Each is compared with all before it, so there
/// must be a limit.
const MOST_PARAMETERS: usize = 8;
/// The only one that some requests take more than once.
const KEY: &str = "key";

impl Pairs {
    /// Reads `a=1&b=2`, with up to `most_keys` of the parameter `key`. As in every form, `+` stands for a space and `%2B` for a
    /// plus.
    pub(crate) fn parse(query: &str, most_keys: usize) -> Result<Self, QueryError> {
        let mut pairs: Vec<(String, Vec<u8>)> = Vec::new();
        let mut names = 0;
        for piece in query.split('&').filter(|piece| !piece.is_empty()) {
            let (raw_name, raw_value) = piece.split_once('=').unwrap_or((piece, ""));
            let malformed = || QueryError::Malformed(raw_name.to_owned());
            let name = decode(&raw_name.replace('+', " ")).ok_or_else(malformed)?;
            let name = String::from_utf8(name).map_err(|_| malformed())?;
            let value = decode(&raw_value.replace('+', " ")).ok_or_else(malformed)?;
            let most = if name == KEY { most_keys } else { 1 };
            match pairs.iter().filter(|(known, _)| *known == name).count() {
                0 if names == MOST_PARAMETERS => return Err(QueryError::TooMany(name)),
                0 => names += 1,
                known if known >= most => return Err(QueryError::Repeated(name)),
                _ => {}
            }
            pairs.push((name, value));
        }
        Ok(Self(pairs))
    }

    /// Removes a parameter and returns its value.
    pub(crate) fn take(&mut self, name: &str) -> Option<Vec<u8>> {
        let at = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.remove(at).1)
    }

    /// All that were not taken.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(String, Vec<u8>)> {
        self.0.iter()
    }

    /// The name of a parameter that was not taken.
    pub(crate) fn left_over(&self) -> Option<&str> {
        self.0.first().map(|(name, _)| name.as_str())
    }
}

/// Percent-decodes once. Returns `None` if a `%` is not followed by two hexadecimal digits.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let bytes = text.as_bytes();
    let is_escape =
        |at: usize| bytes.get(at + 1..at + 3).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit));
    let mut escapes = bytes.iter().enumerate().filter(|&(_, &byte)| byte == b'%');
    escapes.all(|(at, _)| is_escape(at)).then(|| percent_decode(bytes).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_happens_once_and_refuses_what_is_malformed() {
        assert_eq!(decode("a%2Fb"), Some(b"a/b".to_vec()));
        assert_eq!(decode("%2541"), Some(b"%41".to_vec()));
        assert_eq!(decode("%FF"), Some(vec![0xff]));
        for malformed in ["%", "%2", "%zz", "a%+1", "%%41"] {
            assert_eq!(decode(malformed), None, "{malformed}");
        }
    }

    #[test]
    fn a_query_keeps_each_parameter_once() {
        let mut pairs = Pairs::parse("key=a+b%2B&&ttl=", 1).unwrap_or_else(|error| panic!("{error:?}"));
        assert_eq!(pairs.take("key"), Some(b"a b+".to_vec()));
        assert_eq!(pairs.left_over(), Some("ttl"));
        assert_eq!(pairs.take("ttl"), Some(Vec::new()));
        assert_eq!(pairs.left_over(), None);
        assert_eq!(Pairs::parse("a=1&%61=2", 2).err(), Some(QueryError::Repeated("a".into())));
        assert_eq!(Pairs::parse("a&b&c&d&e&f&g&h&i", 1).err(), Some(QueryError::TooMany("i".into())));
        assert!(Pairs::parse("a&b&c&d&e&f&g&h", 1).is_ok());
        assert_eq!(Pairs::parse("a=%4", 1).err(), Some(QueryError::Malformed("a".into())));
    }

    #[test]
    fn a_query_has_as_many_keys_as_it_may_have() {
        let mut pairs = Pairs::parse("key=b&ttl=1s&%6Bey=a", 2).unwrap_or_else(|error| panic!("{error:?}"));
        assert_eq!(pairs.take("key"), Some(b"b".to_vec()));
        assert_eq!(pairs.take("key"), Some(b"a".to_vec()));
        assert_eq!(pairs.take("key"), None);
        assert_eq!(Pairs::parse("key=a&key=b&key=c", 2).err(), Some(QueryError::Repeated("key".into())));
        assert_eq!(Pairs::parse("key=a&key=b", 1).err(), Some(QueryError::Repeated("key".into())));
        assert!(Pairs::parse("a&b&c&d&e&f&g&key=1&key=2", 2).is_ok());
    }
}
