//! A Redis in the test's own process, and a disk, for tests in which time is simulated too.
//!
//! It knows the commands that the scripts and the gateway use, and runs the scripts by the same Lua as a server. Nothing in it
//! depends on real time, on threads, or on the order of hashes: the same commands at the same times have the same replies. A test
//! in `tests/stores` holds it against a real server.

#![allow(missing_docs, unreachable_pub, reason = "most names say it all")]

mod clock;
mod cluster;
mod commands;
mod data;
mod disk;
mod fleet;
mod history;
mod mistakes;
mod network;
mod reply;
mod script;
mod server;
mod state;
mod view;
mod wire;

pub use clock::Clock;
pub use cluster::{Cluster, slot_of};
pub use commands::COMMANDS;
pub use disk::{Access, Disk, Lie, OpenFile, Outcome, Outcomes};
pub use fleet::{Fleet, host};
pub use mistakes::{MISTAKES, scripts};
pub use network::{Condition, Network};
pub use reply::Reply;
pub use server::{Kept, Server};
pub use state::{Channel, Conditions, Identity, Layout, State};
pub use view::{Direction, Fate, Fates, View};
