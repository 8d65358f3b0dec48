//! Those who attack, and how they hold out.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use kit::give_way;

/// They give way to the gateway and to the client that is measured, as real ones have machines of their own: what is
/// left of this one they use up.
pub struct Attackers {
    runtime: Runtime,
    tasks: Vec<JoinHandle<()>>,
    /// How often an attack has come to an end by the gateway's doing.
    ended: Arc<AtomicU64>,
}

impl Attackers {
    pub fn new() -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .on_thread_start(|| give_way(19))
            .enable_all()
            .build();
        Self { runtime: runtime.unwrap(), tasks: Vec::new(), ended: Arc::default() }
    }

    /// Begins as many attacks, each of which is begun again when it has come to its end.
    pub fn begin<A>(&mut self, count: usize, address: SocketAddr, attack: fn(SocketAddr) -> A)
    where
        A: Future<Output = ()> + Send + 'static,
    {
        self.tasks.extend((0..count).map(|_| {
            let ended = Arc::clone(&self.ended);
            self.runtime.spawn(async move {
                loop {
                    attack(address).await;
                    ended.fetch_add(1, Ordering::Relaxed);
                }
            })
        }));
    }

    pub fn end(&mut self) {
        self.tasks.drain(..).for_each(|task| task.abort());
    }

    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Has one of them do something to its end.
    pub fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        self.runtime.block_on(self.runtime.spawn(work)).unwrap()
    }
}

/// Sends `first`, then what `more` makes, again and again with a pause between, and reads and forgets whatever comes
/// back, until the gateway closes.
pub async fn send(address: SocketAddr, first: &[u8], pause: Duration, mut more: impl FnMut() -> Vec<u8>) {
    let Ok(mut stream) = TcpStream::connect(address).await else {
        // It has closed the listener, or there is no port: neither passes at once.
        return sleep(Duration::from_millis(10)).await;
    };
    let (mut reader, mut writer) = stream.split();
    let write = async {
        writer.write_all(first).await?;
        loop {
            let bytes = more();
            if bytes.is_empty() {
                std::future::pending::<()>().await;
            }
            writer.write_all(&bytes).await?;
            if !pause.is_zero() {
                sleep(pause).await;
            }
        }
    };
    let read = async {
        let mut bytes = [0; 16 * 1024];
        while reader.read(&mut bytes).await? > 0 {}
        Ok(())
    };
    let _: std::io::Result<()> = tokio::select! {
        result = write => result,
        result = read => result,
    };
}
