//! The stores, asked through their trait and by way of gateways: each gives the same answers.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "a test that cannot go on must fail"
)]

use kit::for_each_server as for_each_store;

mod conformance;
mod differential;
mod doubt;
mod late_looks;
mod line_suite;
mod once_suite;
mod outcomes;
mod quorum_store;
mod random_lines;
mod redis_line;
mod redis_slots;
mod redis_store;
mod slot_hand_offs;
mod store_suite;
mod table_and_scripts;
mod unreadable;
mod versions;
