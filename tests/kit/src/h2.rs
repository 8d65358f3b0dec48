//! As much of HTTP/2 as can be sent by hand.

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
    let mut block = Vec::new();
    for (name, value) in [(0x02, method), (0x04, path), (0x01, "t")] {
        block.extend([name, u8::try_from(value.len()).unwrap()]);
        block.extend(value.as_bytes());
    }
    // And the scheme, `http`, by its index.
    block.push(0x86);
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
