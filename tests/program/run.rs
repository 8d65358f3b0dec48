//! `fencepost run`: real commands under real locks. Each sentence of what it promises is a test.

mod descendants;
mod environment;
pub mod kit;
mod lease;
mod line;
mod many_locks;
mod outages;
pub mod pty;
mod refused;
mod several;
pub mod shape;
mod signals;
mod statuses;
mod stopped;
mod terminal;
