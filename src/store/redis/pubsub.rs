//! What servers tell without being asked: to this gateway what concerns its waiters, and to all of them what gateways tell each
//! other.

use std::sync::Arc;

use tokio::sync::broadcast;

use self::peer_bus::PeerChannels;
use crate::store::Hint;

pub(crate) mod hints;
pub(crate) mod peer_bus;

/// Hints that may wait to be heard; past it, the oldest are lost.
pub(crate) const MOST_HINTS: usize = 4096;

/// Where what the server tells goes.
#[derive(Clone)]
pub(crate) struct Hints {
    /// The name by which the server knows this gateway.
    pub(crate) gateway: Arc<str>,
    pub(crate) sender: broadcast::Sender<Hint>,
    /// What gateways tell each other.
    pub(crate) peer_channels: Arc<PeerChannels>,
}
