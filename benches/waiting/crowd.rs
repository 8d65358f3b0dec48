//! Those who wait for a lock that nobody gives back.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::Empty;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use tokio::task::JoinSet;

use crate::shared::connection::Connection;

const KEY: &str = "crowded";
/// They share connections by HTTP/2, so that no limit of open files bounds the crowd; a gateway allows 250.
const WAITERS_PER_CONNECTION: usize = 100;
/// How long they may take to gather.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Crowd {
    address: SocketAddr,
    count: usize,
    /// It is ended with the crowd.
    _waiting: JoinSet<()>,
}

#[derive(Deserialize)]
struct LockView {
    waiters: usize,
}

impl Crowd {
    /// Takes a lock and has so many wait for it; all do when this returns.
    pub async fn gather(address: SocketAddr, count: usize) -> Result<Self, String> {
        let mut holder = Connection::open(address).await?;
        if !holder.acquire(KEY, "?ttl=10m").await? {
            return Err(format!("{KEY}: a fresh key is held"));
        }
        let mut waiting = JoinSet::new();
        let uri = format!("http://{address}/locks/{KEY}?wait=60s");
        while waiting.len() < count {
            let client = Client::builder(TokioExecutor::new())
                .http2_only(true)
                .build::<_, Empty<Bytes>>(HttpConnector::new());
            for _ in 0..WAITERS_PER_CONNECTION.min(count - waiting.len()) {
                let request = Request::put(&uri).body(Empty::new()).unwrap();
                let answer = client.request(request);
                // Whoever is answered has not waited, which is found by the number of those who do.
                waiting.spawn(async { drop(answer.await) });
            }
        }
        let give_up = Instant::now() + PATIENCE;
        while waiters(&mut holder, KEY).await? < count {
            if Instant::now() > give_up {
                return Err(format!("fewer than {count} wait after {PATIENCE:?}"));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(Self { address, count, _waiting: waiting })
    }

    /// Checks that all of them waited until now.
    pub async fn still_waits(&self) -> Result<(), String> {
        let mut observer = Connection::open(self.address).await?;
        match waiters(&mut observer, KEY).await? {
            waiters if waiters == self.count => Ok(()),
            waiters => Err(format!("{waiters} of {} still wait", self.count)),
        }
    }
}

/// How many wait for a lock.
pub async fn waiters(observer: &mut Connection, key: &str) -> Result<usize, String> {
    let reply = observer.ask("GET", key).await?;
    match serde_json::from_slice::<LockView>(reply.body) {
        Ok(view) if reply.status == "200" => Ok(view.waiters),
        _ => Err(reply.mismatch("GET", key)),
    }
}
