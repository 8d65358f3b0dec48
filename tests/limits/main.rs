//! Slow and greedy clients, and what others notice of them: in a binary of its own, since it measures times.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "a test that cannot go on must fail"
)]

#[allow(dead_code, unused_imports, unused_macros, reason = "the kit serves other tests as well")]
#[path = "../it"]
mod kit {
    pub mod support;
}

use kit::support;

mod attackers;
mod floods;
mod idle;
mod ring;
mod slow;
mod unread;
