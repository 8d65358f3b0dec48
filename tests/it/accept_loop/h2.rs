//! As much of HTTP/2 as a test client needs.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{PATIENCE, TestServer};

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

pub(super) fn request(stream: u32, path: &str) -> Vec<u8> {
    // GET, http, and two literals that are not indexed: the path and the authority.
    let mut block = vec![0x82, 0x86, 0x04, u8::try_from(path.len()).unwrap()];
    block.extend(path.as_bytes());
    block.extend([0x01, 1, b't']);
    frame(HEADERS, 0x5, stream, &block)
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
