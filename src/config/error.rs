//! What is wrong with settings, and how that is found.

use std::ffi::OsStr;
use std::ops::Deref;
use std::time::Duration;

use thiserror::Error;

use crate::lock::parse_duration;

/// What is wrong with the settings, in one line that names no secret.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{flag}: {problem}")]
pub struct SettingsError {
    flag: &'static str,
    problem: String,
}

impl SettingsError {
    /// What is wrong with what was given for this flag.
    pub fn new(flag: &'static str, problem: impl Into<String>) -> Self {
        Self { flag, problem: problem.into() }
    }

    pub(super) fn flag(&self) -> &'static str {
        self.flag
    }
}

pub(super) fn require(flag: &'static str, holds: bool, rule: &str) -> Result<(), SettingsError> {
    if holds { Ok(()) } else { Err(SettingsError::new(flag, format!("must be {rule}"))) }
}

/// That what a flag goes with is there, where the flag is.
pub(super) fn needs(flag: &'static str, holds: bool, what: &str) -> Result<(), SettingsError> {
    if holds { Ok(()) } else { Err(SettingsError::new(flag, format!("needs {what}"))) }
}

/// A variable that is set to nothing, as compose files and unit files do it, names nothing.
pub(super) fn given<T: Deref<Target: AsRef<OsStr>>>(value: &Option<T>) -> Option<&T::Target> {
    value.as_deref().filter(|value| !value.as_ref().is_empty())
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text)
        .ok_or_else(|| "write a duration with its unit, such as 500ms, 30s or 2m (minutes)".into())
}
