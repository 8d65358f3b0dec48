//! What a server says of itself, what its user lacks, and whether that is safe to lock on.

pub(crate) mod identity;
pub(crate) mod loading;
pub(crate) mod monitor;
mod permissions;
pub(crate) mod preflight;
pub(crate) mod profile;
pub(crate) mod quorum;
pub(crate) mod room;
