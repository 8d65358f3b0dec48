//! All integration tests, in one binary: real gateways, real Redis servers, real `curl`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "a test that cannot go on must fail"
)]

mod contract;
mod support;
