//! The program: its commands, its settings, what it writes, and how its code is laid out.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "a test that cannot go on must fail"
)]

mod audit;
mod check;
mod cli;
mod descriptors;
mod keys;
mod log;
mod metrics;
mod once;
mod preflight;
mod run;
mod shell;
mod start;
mod tls;
mod traces;
