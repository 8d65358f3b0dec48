//! Those who watch all locks of a gateway.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::servers::{Kind, Server};
use super::stream::Stream;

/// How many watch, which is as many as may where no setting says otherwise.
pub const WATCHERS: usize = 1_000;
/// How long they may take to be told of something.
const PATIENCE: Duration = Duration::from_secs(10);

/// Dropped, they leave.
pub struct Watchers {
    all: JoinSet<()>,
    told: Arc<Told>,
}

struct Told {
    since: Instant,
    /// When each was last told something, in nanoseconds since then.
    at_ns: Vec<AtomicU64>,
}

impl Watchers {
    /// Nothing is to watch where the answers are known by heart.
    pub async fn open(server: &Server) -> Result<Self, String> {
        let count = if server.kind == Kind::Gateway { WATCHERS } else { 0 };
        let at_ns = (0..count).map(|_| AtomicU64::new(0)).collect();
        let mut watchers =
            Self { all: JoinSet::new(), told: Arc::new(Told { since: Instant::now(), at_ns }) };
        let request = format!("GET /events?prefix= HTTP/1.1\r\nhost: {}\r\n\r\n", server.address);
        for number in 0..count {
            let mut stream = Stream::open(server.address, None).await.map_err(|error| error.to_string())?;
            stream.send(request.as_bytes()).await.map_err(|error| error.to_string())?;
            let told = watchers.told.clone();
            watchers.all.spawn(async move {
                let mut buffer = vec![0; 4 * 1024];
                while stream.read(&mut buffer).await.is_ok_and(|bytes| bytes > 0) {
                    told.at_ns[number].store(told.now_ns(), Ordering::Relaxed);
                }
            });
        }
        watchers.told_since(0).await.map(|_| watchers)
    }

    /// How many nanoseconds passed until each was told something that is done now.
    pub async fn delays_ns(
        &self,
        done: impl Future<Output = Result<(), String>>,
    ) -> Result<Vec<u64>, String> {
        let from = self.told.now_ns();
        done.await?;
        let told_at = self.told_since(from).await?;
        Ok(told_at.into_iter().map(|at| at - from).collect())
    }

    /// When each was told something, once all were since then.
    async fn told_since(&self, from_ns: u64) -> Result<Vec<u64>, String> {
        let all_told = async {
            loop {
                let at: Vec<_> = self.told.at_ns.iter().map(|at| at.load(Ordering::Relaxed)).collect();
                if at.iter().all(|at| *at > from_ns) {
                    return at;
                }
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, all_told).await.map_err(|_| "somebody who watches is told nothing".to_owned())
    }
}

impl Told {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_nanos()).unwrap()
    }
}
