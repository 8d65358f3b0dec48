//! Those who wait: each for one lock that all want, or each for a lock that nobody else wants.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::Empty;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::fill::{fill, key};
use crate::shared::servers::Server;

/// They share connections by HTTP/2; a gateway allows 250.
const WAITERS_PER_CONNECTION: usize = 100;
/// Thousands who come at the same moment would be a load of another kind, and some of them be told that the store does not
/// answer in time.
const COME_AT_ONCE: usize = 500;
/// How long these may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// It ends with this value.
#[derive(Default)]
pub struct Crowd(JoinSet<()>);

impl Crowd {
    /// Has so many wait in all, and returns when they do. `is_for_one` says whether all of them want the same lock.
    pub async fn grow(&mut self, server: &Server, count: usize, is_for_one: bool) -> Result<(), String> {
        let before = self.0.len();
        let locks = if is_for_one { before.min(1)..1 } else { before..count };
        fill(server, locks, || "?ttl=6h".to_owned()).await?;
        let mut newcomers = before..count;
        while !newcomers.is_empty() {
            for _ in 0..COME_AT_ONCE / WAITERS_PER_CONNECTION {
                let client = Client::builder(TokioExecutor::new())
                    .http2_only(true)
                    .build::<_, Empty<Bytes>>(HttpConnector::new());
                for number in newcomers.by_ref().take(WAITERS_PER_CONNECTION) {
                    let key = key(if is_for_one { 0 } else { number });
                    let uri = format!("http://{}/locks/{key}?wait=3m", server.address);
                    let answer = client.request(Request::put(uri).body(Empty::new()).unwrap());
                    // Whoever is answered has not waited, which is found by the number of those who do.
                    self.0.spawn(async { drop(answer.await) });
                }
            }
            self.all_wait(server).await?;
        }
        Ok(())
    }

    async fn all_wait(&self, server: &Server) -> Result<(), String> {
        let (count, give_up) = (self.0.len(), Instant::now() + PATIENCE);
        loop {
            let waiting = waiters(server.address).map_err(|error| error.to_string())?;
            if waiting == count {
                return Ok(());
            }
            if Instant::now() > give_up {
                return Err(format!("{}: {waiting} of {count} wait after {PATIENCE:?}", server.name));
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// How many wait at this gateway, as its metrics say.
pub fn waiters(address: SocketAddr) -> std::io::Result<usize> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    let waiters = reply.lines().find_map(|line| line.strip_prefix("fencepost_waiters "));
    Ok(waiters.and_then(|number| number.trim().parse().ok()).expect("the metrics say how many wait"))
}
