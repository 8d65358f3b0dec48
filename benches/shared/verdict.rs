//! Whether a goal was reached.

/// What is said of a value by whether it is what is aimed at, and whether it is what must be reached.
pub fn verdict(is_aimed_at: bool, is_enough: bool) -> &'static str {
    match (is_aimed_at, is_enough) {
        (true, _) => "PASS, and what is aimed at",
        (false, true) => "PASS",
        (false, false) => "FAIL",
    }
}
