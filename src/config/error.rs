//! What is wrong with settings, and how that is found.

use std::time::Duration;

use thiserror::Error;

use crate::lock::parse_duration;

/// What is wrong with the settings, in one line that names no secret.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{flag}: {problem}")]
pub struct SettingsError {
    pub(super) flag: &'static str,
    pub(super) problem: String,
}

pub(super) fn require(flag: &'static str, holds: bool, rule: &str) -> Result<(), SettingsError> {
    if holds {
        return Ok(());
    }
    Err(SettingsError { flag, problem: format!("must be {rule}") })
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "write a duration with its unit, such as 500ms, 30s or 2m".into())
}
