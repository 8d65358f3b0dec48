//! A look at an embedded store, for operators.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Access, access};

use super::disk::{OTHERS, PRIVATE, lock};
use super::file::{LeftAs, left_as};
use super::life::judge_clock;
use super::{OpenError, UnusableFile, work_rows};
use crate::clock::SystemClock;
use crate::store::diagnostics::{Block, Diagnostics, PromiseStatus, promises};

const IN_USE: &str = "in use by another process";
/// What is said of a file that is [`LeftAs::OpenWithoutNewest`].
const WITHOUT_NEWEST: &str = "the newest commit in the file cannot be read, so the one before it is used. A crash or a power cut while it was \
     written does this, and then nothing that was answered is lost. If the disk has damaged it, locks of the last moments may be \
     missing: stop the gateway for the longest ttl, or stop the holders";

/// Looks at the store in the file at `path`. It makes no file, and does not disturb a process that has it open.
pub fn survey(path: &Path) -> Diagnostics {
    let mut rows = vec![("store", format!("embedded, in the file {}", path.display()))];
    let mut survey = Diagnostics::default();
    match look(path) {
        Ok((state, mode, left)) => {
            if left == Some(LeftAs::OpenWithoutNewest) {
                survey.warnings.push(WITHOUT_NEWEST.to_owned());
            }
            if mode & OTHERS != 0 {
                survey.warnings.push(format!(
                    "other users may open the file (mode {:o}); the next start makes it {PRIVATE:o}",
                    mode & 0o777
                ));
            }
            if state.ends_with(IN_USE) {
                survey.warnings.push(
                    "another process has the file open, perhaps your gateway; no second gateway can use it"
                        .to_owned(),
                );
            }
            rows.push(("file", state));
            if let Some((records, bytes)) = work_rows::count(path) {
                rows.push(("records", format!("{records}, with {bytes} bytes of results")));
            }
        }
        Err(reason) => survey.refusals.push(reason),
    }
    rows.push(("persistence", "each grant is on disk before it is answered".to_owned()));
    rows.push(("gateways", "one at a time".to_owned()));
    survey.blocks.push(Block(rows));
    if survey.refusals.is_empty() {
        survey.promises = promises([const { PromiseStatus::Holds }; 5]);
    }
    survey
}

/// What a store in memory is.
pub fn survey_memory() -> Diagnostics {
    let rows = vec![
        ("store", "embedded, in memory".to_owned()),
        ("persistence", "none".to_owned()),
        ("gateways", "one".to_owned()),
    ];
    let exclusion = PromiseStatus::unless(&["the process ends (all locks are forgotten)"]);
    let holds = || PromiseStatus::Holds;
    Diagnostics {
        blocks: vec![Block(rows)],
        promises: promises([holds(), holds(), exclusion, holds(), holds()]),
        warnings: vec!["all locks are lost when the process ends".to_owned()],
        ..Diagnostics::default()
    }
}

/// Looks at the file at `path` before it is opened, and says in the log if not all of it is there.
pub(super) fn look_before_opening(path: &Path) -> Result<(), OpenError> {
    if left_as(path)? == LeftAs::OpenWithoutNewest {
        tracing::warn!(file = %path.display(), "{WITHOUT_NEWEST}");
    }
    Ok(())
}

/// What stands there with which mode, and how it was left if that can be seen; or why it cannot be used.
fn look(path: &Path) -> Result<(String, u32, Option<LeftAs>), String> {
    judge_clock(&SystemClock)?;
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return will_be_made(path).map(|state| (state, PRIVATE, None));
        }
        Err(error) => return Err(format!("{} cannot be opened: {error}", path.display())),
    };
    lock(&file).map_err(|error| format!("{} cannot be opened: {error}", path.display()))?;
    let about = file.metadata().map_err(|error| error.to_string())?;
    let bytes = about.len();
    // It is read under another lock.
    drop(file);
    let (state, left) = match left_as(path) {
        Ok(LeftAs::Closed) => (format!("{bytes} bytes, not in use"), Some(LeftAs::Closed)),
        Ok(left) => {
            let state =
                format!("{bytes} bytes, not in use; it was not closed, and the next start repairs it");
            (state, Some(left))
        }
        Err(OpenError::File(_, UnusableFile::InUse)) => (format!("{bytes} bytes, {IN_USE}"), None),
        Err(error) => return Err(error.to_string()),
    };
    Ok((state, about.mode(), left))
}

fn will_be_made(path: &Path) -> Result<String, String> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match access(directory, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => Ok("there is none yet; a gateway makes it".to_owned()),
        Err(error) => Err(format!("{} cannot be made: {}", path.display(), io::Error::from(error))),
    }
}
