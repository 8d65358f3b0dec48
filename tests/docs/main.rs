//! The README, the book and all that they show: pages, recipes, clients, manifests, and the page at `/ui`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "a test that cannot go on must fail"
)]

mod claims;
mod clients;
mod compose;
mod deploying;
mod internals;
mod introduction;
mod packages;
mod pages;
mod proxies;
mod recipes;
mod tools;
mod transfers;
mod ui;
