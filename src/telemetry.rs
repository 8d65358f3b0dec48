//! What an operator sees of a running gateway besides its log: numbers, and where the time of a request went.
//!
//! Both are a process's own, as its log is: whoever has something to count says so where it happens. Neither ever says
//! a token, and no label of a number has a value that a client chose.

mod collector;
mod connections;
mod labels;
pub mod metrics;
mod process;
pub mod traces;

pub use connections::{ConnectionRefused, Connections, OpenConnection};
pub(crate) use labels::labels;
pub use labels::{CounterTable, Counters, Histograms, Label, LateGauge, States};
