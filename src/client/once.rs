//! Work that is done once: its result, as it is stored and as it is answered to those who ask again.
//!
//! The status is the exit status of the command, and the body is its standard output. So other clients can read it.

use serde::{Deserialize, Serialize};

/// The media type of what stands for an output that could not be stored. An output that looks like it has another type.
const OMITTED: &str = "application/vnd.fencepost.output-omitted+json";
const TEXT: &str = "text/plain; charset=utf-8";
const BYTES: &str = "application/octet-stream";

/// What a command has printed, as far as it is stored.
pub(crate) enum WorkOutput {
    Whole(Vec<u8>),
    /// It was too long. A part of it would look like the whole.
    Omitted {
        output_bytes: u64,
    },
}

/// The result of work that was done before.
pub(crate) struct StoredOutput {
    pub(crate) status: u8,
    pub(crate) output: WorkOutput,
}

#[derive(Deserialize, Serialize)]
struct OmittedOutput {
    output_bytes: u64,
}

impl WorkOutput {
    /// What stands for it where there is no room for it.
    pub(crate) fn omitted(&self) -> Self {
        match *self {
            Self::Whole(ref bytes) => Self::Omitted { output_bytes: bytes.len() as u64 },
            Self::Omitted { output_bytes } => Self::Omitted { output_bytes },
        }
    }

    /// The media type and the body that are stored.
    pub(super) fn envelope(&self) -> (&'static str, Vec<u8>) {
        match self {
            Self::Whole(bytes) if std::str::from_utf8(bytes).is_ok() => (TEXT, bytes.clone()),
            Self::Whole(bytes) => (BYTES, bytes.clone()),
            &Self::Omitted { output_bytes } => {
                // A number can be written.
                (OMITTED, serde_json::to_vec(&OmittedOutput { output_bytes }).unwrap_or_default())
            }
        }
    }

    /// Reads what was stored.
    pub(super) fn read(media_type: Option<&str>, body: &[u8]) -> Self {
        let omitted = || serde_json::from_slice::<OmittedOutput>(body).ok();
        match (media_type == Some(OMITTED)).then(omitted).flatten() {
            Some(OmittedOutput { output_bytes }) => Self::Omitted { output_bytes },
            None => Self::Whole(body.to_vec()),
        }
    }
}
