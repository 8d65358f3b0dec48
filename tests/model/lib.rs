//! Models of the protocols, searched exhaustively, with mutants that the search must catch.

#![cfg(test)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "a test that cannot go on must fail"
)]

mod fence;
mod holds;
mod line;
mod once;
mod quorum;
mod retries;
mod sentinel;
mod slots;

/// Whether the searches have the larger bounds, by the variable `MODEL`.
fn is_long() -> bool {
    std::env::var("MODEL").is_ok_and(|bounds| bounds == "long")
}
