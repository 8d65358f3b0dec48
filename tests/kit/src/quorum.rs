//! Independent Redis servers that are a quorum together, all of them real.

use futures_util::future::join_all;
use tokio::sync::OnceCell;

use super::metrics::Scrape;
use super::{Client, Gateway, RedisServer, end_with_the_tests, eventually, server_port};

/// What a server is started with that loses nothing when it is killed, unless somebody says otherwise meanwhile.
pub const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// Settings of a gateway whose quarantines are as short as they may be: as long as marks live, which must outlive every
/// late copy of a command.
pub const BRIEF: [&str; 10] = [
    "--max-ttl",
    "4s",
    "--default-ttl",
    "4s",
    "--max-wait",
    "500ms",
    "--store-timeout",
    "500ms",
    "--mark-ttl",
    "21s",
];
/// What tests do not wait of such a quarantine. What they do wait, 5.5 s, is more than any lease with its attempt lasts.
const SKIPPED_MS: u64 = 15_500;
/// Where a node keeps what it is in the quorum of gateways with the usual prefix.
pub const RECORD: &str = "fencepost:{quorum}:record";

/// Ends all its nodes when dropped. None knows of another.
pub struct Quorum {
    pub nodes: Vec<RedisServer>,
}

/// The three nodes that tests share which let nothing fail; each has a prefix of its own.
pub async fn shared() -> &'static Quorum {
    static SHARED: OnceCell<Quorum> = OnceCell::const_new();
    let start = async || {
        let quorum = Quorum::start(3).await;
        end_with_the_tests(&quorum.nodes.iter().collect::<Vec<_>>());
        quorum
    };
    SHARED.get_or_init(start).await
}

impl Quorum {
    /// Starts so many nodes that keep nothing on disk.
    pub async fn start(count: usize) -> Self {
        Self::start_with(count, &[]).await
    }

    /// Starts so many nodes with further arguments of `redis-server`; all are up when this returns.
    pub async fn start_with(count: usize, args: &[&str]) -> Self {
        // Another process may take a port between our look and the server's.
        for _ in 0..5 {
            let nodes = join_all((0..count).map(|_| RedisServer::start_on(server_port(), args))).await;
            if let Some(nodes) = nodes.into_iter().collect() {
                return Self { nodes };
            }
        }
        panic!("the nodes do not start");
    }

    /// Where a gateway finds it.
    pub fn url(&self) -> String {
        url_of(&self.nodes.iter().map(RedisServer::port).collect::<Vec<_>>())
    }

    /// A gateway on it, with further arguments.
    pub async fn gateway(&self, args: &[&str]) -> Gateway {
        Gateway::start(&[&["--store", &self.url()], args].concat()).await
    }

    /// Waits until every node counts.
    pub async fn is_whole(&self) {
        for node in &self.nodes {
            counts(node).await;
        }
    }
}

/// Waits until this gateway asks every node: it may hear that one counts later than the node itself, or another gateway.
pub async fn asks_all(gateway: &Gateway, quorum: &Quorum) {
    for node in &quorum.nodes {
        shows(gateway, node, "counts").await;
    }
}

/// Waits until the numbers of this gateway show a node so, and not otherwise.
pub async fn shows(gateway: &Gateway, node: &RedisServer, expected: &str) {
    let series = |status: &str| {
        format!("fencepost_quorum_members{{server=\"127.0.0.1:{}\",status=\"{status}\"}}", node.port())
    };
    eventually(expected, async || {
        let scrape = Scrape::of(gateway.address).await;
        ["counts", "quarantine", "grants-nothing", "unusable"].iter().all(|status| {
            let shown = scrape.series().contains(series(status).as_str());
            shown && scrape.get(&series(status)) == f64::from(*status == expected)
        })
    })
    .await;
}

/// Waits until a gateway says that it can serve.
pub async fn is_ready(client: &Client) {
    eventually("the gateway is ready", async || {
        client.get("/readyz").try_send().await.is_ok_and(|answer| answer.status == 200)
    })
    .await;
}

/// Where a gateway finds nodes at these ports.
pub fn url_of(ports: &[u16]) -> String {
    let nodes: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("redlock://{}", nodes.join(","))
}

/// Waits until a node counts: some gateway has met it as it runs now, and it is not, or not any more, in quarantine.
pub async fn counts(node: &RedisServer) {
    eventually("the node counts", async || does_count(node).await.unwrap_or(false)).await;
}

/// Has a quarantine that began on a node be so many ms old, and no less, as if gateways had seen them go by.
pub const AGE_QUARANTINE: &str = "local since = tonumber(redis.call('HGET', KEYS[1], 'since') or 0)
    local time = redis.call('TIME')
    local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
    local earlier = string.format('%.0f', now_ms - ARGV[1])
    local served = earlier .. ' ' .. ARGV[1] .. ' ' .. string.format('%.0f', now_ms)
    if since > tonumber(earlier) then redis.call('HSET', KEYS[1], 'since', earlier, 'served', served) end";

async fn age_quarantine(node: &RedisServer, ms: u64) {
    // A node that does not answer is asked another time.
    let _ = node.try_command::<()>(&["EVAL", AGE_QUARANTINE, "1", RECORD, &ms.to_string()]).await;
}

/// Has a quarantine that began on this node, if any, be over sooner: as if most of it had passed already.
pub async fn hasten(node: &RedisServer) {
    age_quarantine(node, SKIPPED_MS).await;
}

/// Has a quarantine that began on this node, if any, be over.
pub async fn pass_quarantine(node: &RedisServer) {
    const HOURS_MS: u64 = 10 * 3_600_000;
    age_quarantine(node, HOURS_MS).await;
}

/// Waits until a node counts, and for no quarantine: as if that had begun long ago.
pub async fn counts_at_once(node: &RedisServer) {
    eventually("the node counts", async || {
        pass_quarantine(node).await;
        does_count(node).await.unwrap_or(false)
    })
    .await;
}

/// As [`counts`], of a node that forgot and whose quarantine need not be waited for in full.
pub async fn counts_soon(node: &RedisServer) {
    eventually("the node counts", async || {
        hasten(node).await;
        does_count(node).await.unwrap_or(false)
    })
    .await;
}

/// As [`counts_at_once`], of nodes of which none may count before enough of the others may.
pub async fn count_at_once(nodes: impl IntoIterator<Item = &RedisServer>) {
    join_all(nodes.into_iter().map(counts_at_once)).await;
}

/// As [`counts_soon`], of such nodes.
pub async fn count_soon(nodes: impl IntoIterator<Item = &RedisServer>) {
    join_all(nodes.into_iter().map(counts_soon)).await;
}

/// Whether a node counts just now; an error where the node does not answer.
pub async fn does_count(node: &RedisServer) -> Result<bool, String> {
    let info: String = node.try_command(&["INFO"]).await?;
    let half =
        |name: &str| Some(info.lines().find_map(|line| line.strip_prefix(name))?.get(..20)?.to_owned());
    let run = half("run_id:").zip(half("master_replid:")).map(|(run, data)| format!("{run}-{data}"));
    let record = ["HMGET", RECORD, "run", "since"];
    let (known, since): (Option<String>, Option<u64>) = node.try_command(&record).await?;
    Ok(run.is_some() && known == run && since == Some(0))
}

/// Whether a lock stands on this node.
pub async fn has_lock(node: &RedisServer, key: &str) -> bool {
    number_on(node, key).await.is_some()
}

/// The number by which a lock stands on this node; that of somebody who is about to be refused, too.
pub async fn number_on(node: &RedisServer, key: &str) -> Option<u64> {
    let names: Vec<String> = node.try_command(&["KEYS", "*"]).await.ok()?;
    let name = names.iter().find(|name| name.ends_with(&format!("}}:lock:{key}")))?;
    let lock: String = node.try_command(&["GET", name]).await.ok()?;
    lock.split(' ').nth(2)?.parse().ok()
}
