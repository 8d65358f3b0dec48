//! What connections cost that only stay open.

use std::time::Duration;

use serde::Serialize;

use crate::plan::{TARGETS, target};
use crate::shared::client::Client;
use crate::shared::memory::rss_kb;
use crate::summary::mb;

/// The gateway as most use it, the same with TLS, and what the no-op handler needs.
const OPENED_TO: [&str; 3] = ["noop", "redis", "redis+tls"];

/// For how long they have done nothing when it is measured: whatever keeps buffers for a while has given them back.
const IDLE_FOR: Duration = Duration::from_secs(3);

#[derive(Serialize)]
pub struct Idle {
    pub target: &'static str,
    pub label: &'static str,
    pub connections: usize,
    /// A thousand bytes of memory of the server.
    pub kb_per_connection: f64,
}

/// Opens so many connections to each, which all take a lock and give it back, and then do nothing more.
pub async fn measure(connections: usize) -> Result<Vec<Idle>, String> {
    let mut all = Vec::new();
    for slug in OPENED_TO {
        let Some(started) = TARGETS.get(target(slug)) else { continue };
        // It is a server that has done nothing before: one that was under load has memory to spare.
        let server = (started.start)();
        let pid = server.pid().unwrap();
        let mut open = vec![used_once(&server, 0).await?];
        let before = rss_kb(pid);
        while open.len() <= connections {
            open.push(used_once(&server, open.len()).await?);
        }
        tokio::time::sleep(IDLE_FOR).await;
        let grown = mb(rss_kb(pid).saturating_sub(before)) * 1e3;
        let kb_per_connection = grown / connections as f64;
        all.push(Idle { target: slug, label: server.name, connections, kb_per_connection });
    }
    Ok(all)
}

async fn used_once(server: &crate::shared::servers::Server, number: usize) -> Result<Client, String> {
    let mut client = Client::open(server).await?;
    let key = format!("idle-{number}");
    match client.acquire(&key, "").await? {
        true => client.release(&key).await.map(|()| client),
        false => Err(format!("{key}: a fresh key is held")),
    }
}
