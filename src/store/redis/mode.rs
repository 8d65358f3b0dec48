//! What the script that acquires is told of an intent.

use crate::lock::Attempt;
use crate::store::{Intent, PlaceAfter};

/// What the script is told of an intent.
pub(super) struct Mode {
    pub(super) name: &'static str,
    /// Whether the arguments that concern the wait queue are sent.
    pub(super) waits: bool,
    pub(super) supersedes: String,
    pub(super) place: String,
}

impl Mode {
    pub(super) fn of(intent: &Intent) -> Self {
        let mode = |name, waits| Self { name, waits, supersedes: String::new(), place: String::new() };
        let listed = |attempts: &[Attempt]| attempts.iter().map(|attempt| format!("{attempt} ")).collect();
        match intent {
            Intent::Grant => mode("grant", false),
            Intent::Confirm => mode("confirm", false),
            Intent::Look => mode("look", true),
            Intent::Join(join) => Self {
                supersedes: listed(&join.supersedes),
                place: join.place.map_or_else(String::new, |place| place.get().to_string()),
                ..mode(if join.displaces { "join" } else { "rejoin" }, true)
            },
            Intent::LastLook(PlaceAfter::Removed) => mode("end", true),
            Intent::LastLook(PlaceAfter::Kept | PlaceAfter::KeptAt(_)) => mode("end-keep", true),
        }
    }
}
