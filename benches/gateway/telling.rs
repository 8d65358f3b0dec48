//! How soon those who watch are told.

use crate::plan::{TARGETS, target};
use crate::shared::client::Client;
use crate::shared::figures::percentile;
use crate::shared::watchers::Watchers;

/// The median of how many milliseconds pass from the request to take a lock until one of many watchers is told.
pub async fn median_ms(locks: usize) -> Result<f64, String> {
    let server = (TARGETS[target("redis")].start)();
    let watchers = Watchers::open(&server).await?;
    let mut client = Client::open(&server).await?;
    let mut delays_ns = Vec::new();
    for number in 0..locks {
        let key = format!("told-{number}");
        delays_ns.extend(watchers.delays_ns(async { client.acquire(&key, "").await.map(drop) }).await?);
        // Of the release, too, all are told before the next one.
        watchers.delays_ns(client.release(&key)).await?;
    }
    delays_ns.sort_unstable();
    Ok(percentile(&delays_ns, 50) / 1e6)
}
