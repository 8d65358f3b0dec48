//! Machines that are virtual may stand still, while they are moved or saved: then leases run out and deadlines pass
//! although nobody was slow. What came of that says nothing of a server.

use std::time::{Duration, Instant};

use tokio::time::sleep;

/// How often it is looked whether time goes on.
const TICK: Duration = Duration::from_millis(100);
/// Longer than any load keeps the machine from looking, and shorter than leases are.
const STANDSTILL: Duration = Duration::from_secs(5);
const MOST_ATTEMPTS: usize = 3;

/// Does something, and does it again if the machine stood still meanwhile.
pub async fn without<T>(mut attempt: impl AsyncFnMut() -> T) -> T {
    for _ in 1..MOST_ATTEMPTS {
        let (result, longest) = watched(attempt()).await;
        if longest < STANDSTILL {
            return result;
        }
        eprintln!("the machine stood still for {longest:.1?}: once more");
    }
    attempt().await
}

/// What comes of it, and for how long at most nothing went on.
async fn watched<T>(attempt: impl Future<Output = T>) -> (T, Duration) {
    let mut attempt = Box::pin(attempt);
    let (mut looked, mut longest) = (Instant::now(), Duration::ZERO);
    loop {
        let result = tokio::select! {
            result = &mut attempt => Some(result),
            () = sleep(TICK) => None,
        };
        longest = longest.max(looked.elapsed());
        looked = Instant::now();
        if let Some(result) = result {
            return (result, longest);
        }
    }
}
