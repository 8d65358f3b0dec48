//! What the gateway answers over HTTP, on each store.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "a test that cannot go on must fail"
)]

mod breaking;
mod browsers;
mod checking;
mod contract;
mod crowd;
mod events;
mod facades;
mod hammer;
mod hold;
mod late_copies;
mod leaving;
mod list;
mod lost_replies;
mod on_each;
mod once;
mod openapi;
mod retries;
mod serving;
mod several;
mod slots;
mod terms;
mod together;
mod vanishing_clients;
mod waiting;
