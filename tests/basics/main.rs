//! What needs nothing but Rust: the stores without a server, the rules of the code, and connections of our own client.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "a test that cannot go on must fail"
)]

use kit::for_each_local_store as for_each_store;

mod accept_loop;
mod code_map;
mod defaults;
mod embedded_store;
mod heads;
mod judge;
mod secrets;
mod simulated_holds;
mod simulated_scripts;
mod simulated_servers;
mod wording;

/// The suites of the stores, on those that need no server outside of this process. The others have theirs in `tests/stores`.
#[path = "../stores"]
mod stores {
    pub mod differential;
    mod doubt;
    mod line_suite;
    mod store_suite;
}
