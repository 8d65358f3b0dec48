//! All integration tests, in one binary: real gateways, real Redis servers, real `curl`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "a test that cannot go on must fail"
)]

mod contract;
mod embedded_store;
mod hammer;
mod redis_store;
mod retries;
mod store_suite;
mod support;
