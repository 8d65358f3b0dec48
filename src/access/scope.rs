//! To which locks a right reaches.

use unicode_general_category::GeneralCategory::{EnclosingMark, NonspacingMark, SpacingMark};
use unicode_general_category::get_general_category;

/// What may follow a prefix that ends in a letter, a digit or a mark, in the keys that it covers.
const DELIMITERS: [char; 3] = ['/', ':', '.'];

/// The locks that an API key is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All of them.
    Every,
    /// Those below one of these prefixes.
    Below(Vec<String>),
}

impl Scope {
    /// Whether this lock is among them.
    pub fn covers(&self, key: &str) -> bool {
        match self {
            Self::Every => true,
            Self::Below(prefixes) => prefixes.iter().any(|prefix| is_below(key, prefix)),
        }
    }

    /// How the names of those begin that begin with `start`, too.
    pub fn within(&self, start: &str) -> Vec<String> {
        match self {
            Self::Every => vec![start.to_owned()],
            Self::Below(prefixes) => {
                let below = |prefix: &String| match prefix.starts_with(start) {
                    true => Some(prefix.clone()),
                    false => is_below(start, prefix).then(|| start.to_owned()),
                };
                prefixes.iter().filter_map(below).collect()
            }
        }
    }

    /// Whether a lock whose name begins with `start` may be among them.
    pub fn overlaps(&self, start: &str) -> bool {
        match self {
            Self::Every => true,
            // Of two that differ in length, the longer one is the name to be judged.
            Self::Below(prefixes) => {
                prefixes.iter().any(|prefix| prefix.starts_with(start) || is_below(start, prefix))
            }
        }
    }
}

/// A prefix that ends in the middle of a word stands for that whole word: `team` is not for `team2` or `team-b`.
fn is_below(key: &str, prefix: &str) -> bool {
    let Some(rest) = key.strip_prefix(prefix) else { return false };
    let ends_in_word = prefix.ends_with(is_of_a_word);
    !ends_in_word || rest.is_empty() || rest.starts_with(DELIMITERS)
}

/// Letters and digits, and the marks that belong to the letter before them, such as the accent of `é` in two
/// characters, or the signs of many scripts. Also the two characters that join letters or part them.
fn is_of_a_word(c: char) -> bool {
    let is_mark = || matches!(get_general_category(c), NonspacingMark | SpacingMark | EnclosingMark);
    c.is_alphanumeric() || matches!(c, '\u{200c}' | '\u{200d}') || (!c.is_ascii() && is_mark())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn below(prefixes: &[&str]) -> Scope {
        Scope::Below(prefixes.iter().map(|prefix| (*prefix).to_owned()).collect())
    }

    #[test]
    fn a_prefix_that_ends_in_a_word_stands_for_the_whole_word() {
        let scope = below(&["team", "百家号", "job-", "db/"]);
        for key in
            ["team", "team/a", "team:a", "team.a", "team/../x", "百家号", "百家号/1", "job-1", "job-", "db/x"]
        {
            assert!(scope.covers(key), "{key}");
        }
        for key in [
            "team2",
            "team-b",
            "team_b",
            "teamé",
            "tea",
            "Team",
            "job",
            "jobs",
            "db",
            "百家号二",
            "xteam",
            "",
        ] {
            assert!(!scope.covers(key), "{key}");
        }
        assert!(Scope::Every.covers("anything"));
    }

    /// `é` of two characters, Thai with a mark of its tone, Hindi with a virama, and Balinese with one that takes room.
    #[test]
    fn a_prefix_that_ends_in_a_mark_ends_in_a_word() {
        for prefix in ["cafe\u{301}", "แม่", "राम\u{94d}", "ᬓ\u{1b44}", "क\u{94d}\u{200d}", "x\u{20dd}"]
        {
            let scope = below(&[prefix]);
            for rest in ["", "/x", ":x", ".x"] {
                assert!(scope.covers(&format!("{prefix}{rest}")), "{prefix}{rest}");
            }
            for rest in ["s", "2", "-b", "_", " ", "น้ำ", "\u{301}", "\u{200d}"] {
                assert!(!scope.covers(&format!("{prefix}{rest}")), "{prefix}{rest}");
                assert!(!scope.overlaps(&format!("{prefix}{rest}")), "{prefix}{rest}");
            }
        }
        // What looks like the longer word is another one.
        assert!(!below(&["cafe"]).covers("cafe\u{301}") && !below(&["cafe"]).covers("cafe\u{301}/x"));
    }

    #[test]
    fn what_is_listed_may_begin_above_or_below_a_prefix() {
        let scope = below(&["team", "db/"]);
        for start in ["", "t", "team", "team/", "team:x/y", "db", "db/", "db/x"] {
            assert!(scope.overlaps(start), "{start}");
        }
        for start in ["team2", "team-", "x", "dbx", "d/"] {
            assert!(!scope.overlaps(start) && scope.within(start).is_empty(), "{start}");
        }
        assert_eq!(scope.within(""), ["team", "db/"]);
        assert_eq!(scope.within("te"), ["team"]);
        assert_eq!(scope.within("team:x"), ["team:x"]);
        assert_eq!(Scope::Every.within("x"), ["x"]);
    }
}
