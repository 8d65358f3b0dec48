//! A client of HTTP/2 that sees each frame.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{PATIENCE, TestServer};
pub(super) use kit::h2::{DATA, GOAWAY, HEADERS, PING, PREFACE, SETTINGS, cancel, frame};

pub(super) fn request(stream: u32, path: &str) -> Vec<u8> {
    kit::h2::request(stream, "GET", path)
}

pub(super) async fn connect(server: &TestServer) -> TcpStream {
    let mut stream = server.connect().await;
    stream.write_all(PREFACE).await.unwrap();
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
    stream
}

/// The next frame that is not about the connection's upkeep, which is seen to here: its kind, flags and stream.
/// `None` when the server closes.
pub(super) async fn next(stream: &mut TcpStream) -> Option<(u8, u8, u32)> {
    loop {
        let mut head = [0; 9];
        timeout(PATIENCE, stream.read_exact(&mut head)).await.expect("no frame").ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut payload).await.ok()?;
        match (head[3], head[4]) {
            (SETTINGS, 0) => stream.write_all(&frame(SETTINGS, 1, 0, &[])).await.ok()?,
            (PING, 0) => stream.write_all(&frame(PING, 1, 0, &payload)).await.ok()?,
            (SETTINGS | PING | 8, _) => {}
            (kind, flags) => {
                return Some((kind, flags, u32::from_be_bytes([head[5], head[6], head[7], head[8]])));
            }
        }
    }
}
