//! As much of HTTP/2 as can be sent by hand.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::PATIENCE;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;

/// Of HEADERS and DATA: nothing follows them.
pub const END_STREAM: u8 = 1;
/// Of HEADERS: all headers have been said.
pub const END_HEADERS: u8 = 4;

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// The headers of a request, in literals that are not indexed.
pub fn header_block(method: &str, path: &str) -> Vec<u8> {
    header_block_to("t", method, path)
}

fn header_block_to(authority: &str, method: &str, path: &str) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in [(0x02, method), (0x04, path), (0x01, authority)] {
        block.extend([name, u8::try_from(value.len()).unwrap()]);
        block.extend(value.as_bytes());
    }
    // And the scheme, `http`, by its index.
    block.push(0x86);
    block
}

/// The same to `localhost`, which every gateway of this machine answers to, and with more headers.
pub fn header_block_with(method: &str, path: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    let mut block = header_block_to("localhost", method, path);
    for (name, value) in headers {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.as_bytes());
        }
    }
    block
}

/// A request in one frame.
pub fn request(stream: u32, method: &str, path: &str) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &header_block(method, path))
}

/// The same, with an API key.
pub fn request_with_key(stream: u32, method: &str, path: &str, key: &str) -> Vec<u8> {
    let mut block = header_block(method, path);
    let value = format!("Bearer {key}");
    // The name `authorization` by its index, 23, in a literal that is not indexed.
    block.extend([0x0f, 23 - 15, u8::try_from(value.len()).unwrap()]);
    block.extend(value.as_bytes());
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &block)
}

/// That a request is of no interest any more.
pub fn cancel(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())
}

/// Asks for a sign of life, and reads until it comes: then all that was sent before has been read.
pub async fn pong(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), number: u8) {
    stream.write_all(&frame(PING, 0, 0, &[number; 8])).await.unwrap();
    stream.flush().await.unwrap();
    let (pong, mut answered) = (frame(PING, 1, 0, &[number; 8]), Vec::<u8>::new());
    while !answered.windows(pong.len()).any(|window| window == pong) {
        let mut more = [0; 1024];
        let read = timeout(PATIENCE, stream.read(&mut more)).await.unwrap().unwrap();
        assert!(read > 0, "the connection is closed");
        answered.extend(&more[..read]);
    }
}
