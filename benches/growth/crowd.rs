//! Many requests that stay open, and what each of them wants.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::fill::{fill, key};
use crate::shared::servers::Server;

/// They share connections by HTTP/2; a gateway allows 250.
const REQUESTS_PER_CONNECTION: usize = 100;
/// Thousands who come at the same moment would be a load of another kind, and some of them be told that the store does not
/// answer in time.
const COME_AT_ONCE: usize = 500;
/// How long these may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// What each of a crowd wants.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Wish {
    /// To wait for the one lock that all want.
    One,
    /// To wait for a lock that nobody else wants.
    Another,
    /// To hold a lock of its own.
    Hold,
    /// No answer, of a handler that has none.
    Silence,
}

impl Wish {
    pub fn name(self) -> &'static str {
        match self {
            Self::One => "one lock",
            Self::Another => "a lock each",
            Self::Hold => "holding",
            Self::Silence => "silence",
        }
    }

    fn request(self, address: SocketAddr, number: usize) -> Request<Empty<Bytes>> {
        let (method, path) = match self {
            Self::One => ("PUT", format!("locks/{}?wait=10m", key(0))),
            Self::Another => ("PUT", format!("locks/{}?wait=10m", key(number))),
            Self::Hold => ("POST", format!("hold?key={}&ttl=1m", key(number))),
            Self::Silence => ("PUT", format!("open/{}", key(number))),
        };
        let request = Request::builder().method(method).uri(format!("http://{address}/{path}"));
        request.body(Empty::new()).unwrap()
    }

    /// How many of the server's clients have what they wish, by its own word.
    pub fn granted(self, address: SocketAddr) -> std::io::Result<usize> {
        let (path, before) = match self {
            Self::One | Self::Another => ("metrics", "fencepost_waiters "),
            Self::Hold => ("metrics", "fencepost_holds "),
            Self::Silence => ("open", ""),
        };
        let mut stream = TcpStream::connect(address)?;
        write!(stream, "GET /{path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply)?;
        let number = reply.lines().rev().find_map(|line| line.strip_prefix(before)?.trim().parse().ok());
        Ok(number.expect("the server says how many there are"))
    }
}

/// It ends with this value.
#[derive(Default)]
pub struct Crowd(JoinSet<()>);

impl Crowd {
    /// Has so many in all who wish for the same, and returns when they have it.
    pub async fn grow(&mut self, server: &Server, count: usize, wish: Wish) -> Result<(), String> {
        let before = self.0.len();
        let locks = match wish {
            Wish::One => before.min(1)..1,
            Wish::Another => before..count,
            Wish::Hold | Wish::Silence => 0..0,
        };
        fill(server, locks, || "?ttl=6h".to_owned()).await?;
        let mut newcomers = before..count;
        while !newcomers.is_empty() {
            for _ in 0..COME_AT_ONCE / REQUESTS_PER_CONNECTION {
                let client = Client::builder(TokioExecutor::new())
                    .http2_only(true)
                    .build::<_, Empty<Bytes>>(HttpConnector::new());
                for number in newcomers.by_ref().take(REQUESTS_PER_CONNECTION) {
                    let answer = client.request(wish.request(server.address, number));
                    // Whoever is refused, or told of an end, is missing in the number of those who have what they wish.
                    self.0.spawn(async {
                        if let Ok(mut answer) = answer.await {
                            while let Some(Ok(_)) = answer.body_mut().frame().await {}
                        }
                    });
                }
            }
            self.is_there(server, wish).await?;
        }
        Ok(())
    }

    async fn is_there(&self, server: &Server, wish: Wish) -> Result<(), String> {
        let (count, give_up) = (self.0.len(), Instant::now() + PATIENCE);
        loop {
            let granted = wish.granted(server.address).map_err(|error| error.to_string())?;
            if granted == count {
                return Ok(());
            }
            if Instant::now() > give_up {
                return Err(format!("{}: {granted} of {count} are there after {PATIENCE:?}", server.name));
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}
