//! What an operator sees of a running gateway besides its log: metrics, and traces.
//!
//! Both belong to the process, as its log does. Any part of the program counts where something happens. Neither has a
//! token, and no label of a metric has a value that a client chose.

#[cfg(feature = "traces")]
mod collector;
mod connections;
mod labels;
pub mod metrics;
mod process;
#[cfg(feature = "traces")]
pub mod traces;
#[cfg(not(feature = "traces"))]
#[path = "telemetry/untraced.rs"]
pub mod traces;

pub use connections::{ConnectionRefused, Connections, OpenConnection};
pub(crate) use labels::labels;
pub use labels::{CounterTable, Counters, Histograms, Label, LateGauge, States};
