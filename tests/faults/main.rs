//! Servers, networks and disks that fail, and gateways that are killed: no promise is broken.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "a test that cannot go on must fail"
)]

mod chaos;
mod embedded_faults;
mod failover;
mod faults;
mod quorum_faults;
mod records;
mod redis_cluster;
mod redis_faults;
mod redis_layouts;
mod redis_server_states;
mod replicas_ack;
mod rigs;
mod slots;
