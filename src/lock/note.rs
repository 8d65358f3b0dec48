//! What is said of a grant for people to read.

use std::sync::Arc;

use thiserror::Error;

use super::{TextError, read_text};

/// What stores keep of a grant without reading it, and give back with its lease: who took the lock, where that was said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note(Option<Arc<str>>);

impl Note {
    /// Says what a caller gave.
    pub fn new(owner: Option<Owner>) -> Self {
        Self(owner.map(|owner| owner.0))
    }

    /// The text to keep; empty where there is nothing to keep.
    pub fn stored(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    /// Reads what [`Note::stored`] gave; `None` for a text that it never gives.
    pub fn from_stored(text: &str) -> Option<Self> {
        Owner::parse(text.as_bytes()).ok().map(Self::new)
    }

    /// Who took the lock.
    pub fn owner(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

/// Who takes a lock, as a note for people. Up to 256 bytes without control characters, and not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner(Arc<str>);

/// Why a text is not an [`Owner`].
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the owner {0}")]
pub struct OwnerError(TextError);

impl Owner {
    /// The longest owner, in bytes.
    pub const MAX_BYTES: usize = 256;

    /// An empty text means that no owner was given, so that `owner=$UNSET` in a script is no error.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, OwnerError> {
        let text = read_text(bytes, Self::MAX_BYTES).map_err(OwnerError)?;
        Ok((!text.is_empty()).then(|| Self(text.into())))
    }

    /// The owner as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
