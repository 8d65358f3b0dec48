//! Which locks a caller may be told of, in lists and in streams of events.

use std::fmt;
use std::sync::Arc;

use super::LockKey;

/// Which locks somebody wants to know of, and may.
#[derive(Clone)]
pub struct Reach {
    /// How the names of all of them begin. Sorted, and none begins with another, so that a lock is below one of them at most.
    prefixes: Arc<[String]>,
    /// Which of those it may be told of; `None` for all.
    may_see: Option<MaySee>,
    /// Tells it from others that have other locks.
    name: Arc<str>,
}

type MaySee = Arc<dyn Fn(&LockKey) -> bool + Send + Sync>;

impl Reach {
    /// Those whose names begin so.
    pub fn all(prefix: impl Into<String>) -> Self {
        let prefix = prefix.into();
        Self { name: prefix.as_str().into(), prefixes: [prefix].into(), may_see: None }
    }

    /// Of those that begin with one of these, what `may_see` says. `limits` names what it goes by.
    pub fn limited(
        mut prefixes: Vec<String>,
        limits: &[String],
        may_see: impl Fn(&LockKey) -> bool + Send + Sync + 'static,
    ) -> Self {
        prefixes.sort_unstable();
        // What begins with another comes after it.
        prefixes.dedup_by(|next, before| next.starts_with(before.as_str()));
        // No prefix has a line's end in it.
        let name = format!("\n{}\n\n{}", prefixes.join("\n"), limits.join("\n"));
        Self { name: name.into(), prefixes: prefixes.into(), may_see: Some(Arc::new(may_see)) }
    }

    /// How the names begin.
    pub fn prefixes(&self) -> &[String] {
        &self.prefixes
    }

    /// Two that have the same name have the same locks. So what was cut off may go on in another request.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// How all of them begin.
    pub fn common_prefix(&self) -> &str {
        // Between the first and the last, all begin as these two do.
        let (Some(first), Some(last)) = (self.prefixes.first(), self.prefixes.last()) else { return "" };
        let same = first.chars().zip(last.chars()).take_while(|(a, b)| a == b);
        first.get(..same.map(|(c, _)| c.len_utf8()).sum()).unwrap_or_default()
    }

    /// Whether it may be told of this lock.
    pub fn has(&self, key: &LockKey) -> bool {
        // Of those that sort before it, only the last one may begin it.
        let before = self.prefixes.partition_point(|prefix| prefix.as_str() <= key.as_str());
        let prefix = before.checked_sub(1).and_then(|last| self.prefixes.get(last));
        prefix.is_some_and(|prefix| key.as_str().starts_with(prefix.as_str())) && self.may_see(key)
    }

    /// Whether it may be told of a lock that begins so.
    pub fn may_see(&self, key: &LockKey) -> bool {
        self.may_see.as_ref().is_none_or(|may_see| may_see(key))
    }
}

/// Two with a limit are equal only if it is the same limit.
impl PartialEq for Reach {
    fn eq(&self, other: &Self) -> bool {
        let is_same = match (&self.may_see, &other.may_see) {
            (Some(own), Some(others)) => Arc::ptr_eq(own, others),
            (own, others) => own.is_none() && others.is_none(),
        };
        is_same && self.prefixes == other.prefixes
    }
}

impl fmt::Debug for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reach").field(&self.prefixes).finish()
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

    use super::*;

    #[test]
    fn a_lock_is_below_one_prefix_at_most() {
        let reach = |prefixes: &[&str]| {
            Reach::limited(prefixes.iter().map(|prefix| (*prefix).to_owned()).collect(), &[], |key| {
                !key.as_str().ends_with('x')
            })
        };
        let some = reach(&["team/a", "é/b", "team", "b/", "team/a/b", "é/a"]);
        assert_eq!(some.prefixes(), ["b/", "team", "é/a", "é/b"]);
        assert_eq!(some.common_prefix(), "");
        assert_eq!(reach(&["é/b", "é/a"]).common_prefix(), "é/");
        assert_eq!(reach(&["one"]).common_prefix(), "one");
        assert_eq!(reach(&[]).common_prefix(), "");
        let has = |name: &str| some.has(&LockKey::parse(name.as_bytes()).unwrap());
        assert!(has("team") && has("team/c") && has("b/1") && has("é/b1"));
        assert!(!has("b/x") && !has("a") && !has("b0") && !has("tean") && !has("é/") && !has("ê"));
        assert!(Reach::all("").has(&LockKey::parse(b"x").unwrap()));
    }
}
