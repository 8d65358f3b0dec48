//! All integration tests, in one binary: real gateways, real Redis servers, real `curl`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "a test that cannot go on must fail"
)]

mod accept_loop;
mod audit;
mod breaking;
mod browsers;
mod check;
mod claims;
mod cli;
mod clients;
mod code_map;
mod compose;
mod contract;
mod crowd;
mod defaults;
mod deploying;
mod descriptors;
mod differential;
mod doubt;
mod embedded_faults;
mod embedded_store;
mod events;
mod failover;
mod faults;
mod hammer;
mod heads;
mod hold;
mod internals;
mod introduction;
mod judge;
mod keys;
mod late_copies;
mod line_suite;
mod list;
mod log;
mod lost_replies;
mod metrics;
mod openapi;
mod outcomes;
mod pages;
mod preflight;
mod proxies;
mod quorum_faults;
mod quorum_store;
mod random_lines;
mod recipes;
mod redis_cluster;
mod redis_faults;
mod redis_layouts;
mod redis_line;
mod redis_server_states;
mod redis_store;
mod replicas_ack;
mod retries;
mod rigs;
mod run;
mod secrets;
mod serving;
mod store_suite;
mod support;
mod terms;
mod tls;
mod together;
mod traces;
mod ui;
mod unreadable;
mod vanishing_clients;
mod waiting;
mod wording;
