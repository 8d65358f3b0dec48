//! Slow and greedy clients, and what others notice of them: in a binary of its own, since it measures times.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "a test that cannot go on must fail"
)]

mod attackers;
mod floods;
mod handshakes;
mod heads;
mod idle;
mod results;
mod ring;
mod slow;
mod unread;
