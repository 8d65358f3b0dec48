//! The lines of requests of which nobody is known: the log is no place for a flood. They are answered as ever.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::access::Guesses;
use crate::server::Peer;

/// Those without a line of their own are told of together after so long.
const UNTOLD_INTERVAL: Duration = Duration::from_secs(10);

/// How many each address has sent. The log is the process's own, and so is this.
static STRANGERS: LazyLock<Guesses> = LazyLock::new(Guesses::default);

/// Whether one more request from there is worth a line.
pub(crate) fn is_worth_a_line(peer: Option<&Arc<Peer>>) -> bool {
    // Without an accept loop in front there is no address to tell apart.
    let Some(peer) = peer else { return true };
    if STRANGERS.count(peer.address.ip()).is_ok() {
        return true;
    }
    if STRANGERS.leave_untold()
        && let Ok(runtime) = Handle::try_current()
    {
        runtime.spawn(async {
            sleep(UNTOLD_INTERVAL).await;
            let count = STRANGERS.take_untold();
            tracing::info!(
                count,
                "there were more requests without an accepted API key, from addresses that send many"
            );
        });
    }
    false
}
