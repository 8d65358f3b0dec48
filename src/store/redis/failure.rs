//! What the errors of the driver mean.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::link::describe;
use crate::store::StoreError;

/// What an error of the driver means for the request, and for the connection.
pub(super) struct Failure {
    pub(super) error: StoreError,
    /// Whether the connection must not be used again.
    pub(super) breaks_link: bool,
}

impl Failure {
    pub(super) fn of(error: &RedisError) -> Self {
        let reason = format!("Redis: {}", describe(error));
        let code = error.code().unwrap_or_default();
        match error.kind() {
            // The server's state speaks here, before the first write of a script: certainly nothing happened.
            ErrorKind::Server(
                ServerErrorKind::ReadOnly
                | ServerErrorKind::MasterDown
                | ServerErrorKind::BusyLoading
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::TryAgain
                | ServerErrorKind::Moved
                | ServerErrorKind::Ask,
            ) => Self { error: StoreError::Unavailable(reason), breaks_link: true },
            ErrorKind::Server(ServerErrorKind::NoPerm | ServerErrorKind::NoScript) => {
                Self { error: StoreError::Unavailable(reason), breaks_link: false }
            }
            _ if matches!(code, "OOM" | "MISCONF" | "NOREPLICAS" | "BUSY" | "WRONGTYPE") => {
                Self { error: StoreError::Unavailable(reason), breaks_link: false }
            }
            _ if matches!(code, "NOAUTH" | "WRONGPASS") => {
                Self { error: StoreError::Unavailable(reason), breaks_link: true }
            }
            // A script that errs keeps what it wrote.
            ErrorKind::Server(_) | ErrorKind::Extension => {
                Self { error: StoreError::Unknown(reason), breaks_link: false }
            }
            // One error stands for "never queued" and "sent, and the driver died": only the worse is safe.
            _ => Self { error: StoreError::Unknown(reason), breaks_link: true },
        }
    }
}
