//! The log lines of requests whose caller is not known. Their number is limited, so that they cannot flood the log. The
//! requests are answered all the same.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::access::Guesses;
use crate::server::Peer;

/// After this time, the requests without a line of their own are counted in one line.
const UNTOLD_INTERVAL: Duration = Duration::from_secs(10);

/// How many requests each address has sent. The counts belong to the process, as the log does.
static STRANGERS: LazyLock<Guesses> = LazyLock::new(Guesses::default);

/// Whether one more request from this peer gets a line in the log.
pub(crate) fn is_worth_a_line(peer: Option<&Arc<Peer>>) -> bool {
    // Without an accept loop in front of us, the address is not known.
    let Some(peer) = peer else { return true };
    if STRANGERS.count(peer.network()).is_ok() {
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
