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
pub use labels::{CounterTable, Counters, Histograms, Label, States};

/// What is known about a request when it is over.
pub struct RequestEnd<'a> {
    /// What it asked for.
    pub operation: &'static str,
    /// What became of it.
    pub outcome: &'static str,
    /// Absent if the client had left.
    pub status: Option<u16>,
    /// The lock.
    pub key: Option<&'a str>,
    /// The caller, by the id of the API key.
    pub key_id: Option<&'a str>,
    /// The request's id, as in the log.
    pub request_id: &'a str,
}
