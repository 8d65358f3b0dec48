//! Many locks, taken as fast as the gateway gives them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::task::JoinSet;

use crate::shared::connection::Connection;
use crate::shared::servers::Server;

const CONNECTIONS: usize = 64;

/// Takes the locks of these numbers; `query` is asked for each when its turn has come.
pub async fn fill(
    server: &Server,
    numbers: Range<usize>,
    query: impl Fn() -> String + Send + Sync + 'static,
) -> Result<(), String> {
    let (next, query) = (Arc::new(AtomicUsize::new(numbers.start)), Arc::new(query));
    let mut connections = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let mut connection = Connection::open(server.address).await?;
        let (next, query, end) = (next.clone(), query.clone(), numbers.end);
        connections.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= end {
                    return Ok(());
                }
                let key = key(number);
                if !connection.acquire(&key, &query()).await? {
                    return Err(format!("{key}: a fresh key is held"));
                }
            }
        });
    }
    connections.join_all().await.into_iter().collect()
}

pub fn key(number: usize) -> String {
    format!("filled-{number}")
}
