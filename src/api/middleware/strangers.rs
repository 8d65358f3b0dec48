//! The log lines of requests whose caller is not known. Their number is limited, so that they cannot flood the log. The
//! requests are answered all the same.

use std::sync::{Arc, LazyLock};

use crate::access::Guesses;
use crate::server::Peer;

/// How many requests each address has sent. The counts belong to the process, as the log does.
static STRANGERS: LazyLock<Guesses> = LazyLock::new(Guesses::default);

/// Whether one more request from this peer gets a line in the log.
pub(crate) fn is_worth_a_line(peer: Option<&Arc<Peer>>) -> bool {
    // Without an accept loop in front of us, the address is not known.
    let Some(peer) = peer else { return true };
    if STRANGERS.count(peer.network()).is_ok() {
        return true;
    }
    STRANGERS.untold.count(|count| {
        tracing::info!(
            count,
            "there were more requests without an accepted API key, from addresses that send many"
        );
    });
    false
}
