//! `fencepost once`: real commands, whose output goes to all who ask for the same work.

mod lost;
mod output;
mod refused;
mod storing;
mod threads;
mod working;
