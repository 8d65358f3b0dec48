//! What the parts of a request cost by themselves: words that callers send, steps of the service on a store in memory,
//! and whole requests without a socket. What a whole request costs more than its step of the service is what is read,
//! written, and passed through.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    unreachable_pub,
    reason = "a measurement that cannot go on must fail"
)]

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use tokio::runtime::{Builder, Runtime};

mod requests;
mod service;
mod words;

/// Each measurement takes two and a half seconds, so that all of them take a minute.
fn settings() -> Criterion {
    Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2))
}

/// One thread, besides that of the store: what is measured is work, and not which core it wakes.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

criterion_group!(name = all; config = settings(); targets = words::measure, service::measure, requests::measure);
criterion_main!(all);
