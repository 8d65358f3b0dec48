//! Faults in the heads of requests that hyper lets pass. It cuts off what follows a `#`, accepts a line feed alone as
//! the end of a line, and does not count `Host`. With each of these faults, two readers can see two different requests.

use std::sync::Arc;

use super::application::Malformed;
use super::requests::Requests;

/// The longest line of a head that is read for what it says of the body.
const MOST_FIELD_BYTES: usize = 64;

/// Reads the heads of one connection before hyper does, and notes the first malformed one. Nothing behind it is served.
///
/// It finds the end of each request: a body is skipped by its length, or by those of its chunks. Behind a body in chunks,
/// [no request is served](super::connection).
pub(super) struct Heads {
    requests: Arc<Requests>,
    /// Requests whose head is complete.
    complete: usize,
    is_in_fields: bool,
    /// How many bytes of the unfinished head were read.
    head_bytes: usize,
    /// How many bytes of the unfinished line were read before, the first of them, and the last byte of all.
    line_bytes: usize,
    line: Vec<u8>,
    last: u8,
    /// What the head that is being read says of its body: its length, or that only its own marks end it.
    announced: Option<u64>,
    is_coded: bool,
    /// Whether the fields that are being read stand behind a body. They say nothing of one.
    is_in_trailers: bool,
    /// What is left to be read of a body, or of its chunk.
    body_bytes: u64,
    /// Whether the request that was read last is complete.
    is_complete: bool,
    is_over: bool,
}

impl Heads {
    pub(super) fn new(requests: Arc<Requests>) -> Self {
        Self {
            requests,
            complete: 0,
            is_in_fields: false,
            head_bytes: 0,
            line_bytes: 0,
            line: Vec::new(),
            last: 0,
            announced: None,
            is_coded: false,
            is_in_trailers: false,
            body_bytes: 0,
            is_complete: false,
            is_over: false,
        }
    }

    /// Says that the connection has no heads of HTTP/1.
    pub(super) fn stop(&mut self) {
        (self.is_over, self.head_bytes) = (true, 0);
    }

    /// How many bytes of a head were read whose end has not come. Nothing is known of the end of a malformed one.
    pub(super) fn unfinished_bytes(&self) -> usize {
        self.head_bytes
    }

    /// Whether all that was read ends with the end of a request.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Reads what hyper is about to read, up to the end of a request. Returns how many bytes that are.
    pub(super) fn read(&mut self, bytes: &[u8]) -> usize {
        let mut read = 0;
        if self.is_over && self.head_bytes > 0 {
            self.head_bytes += bytes.len();
        }
        self.is_complete = false;
        while !self.is_over && !self.is_complete && read < bytes.len() {
            let rest = &bytes[read..];
            read += if self.body_bytes > 0 {
                self.read_body(rest)
            } else if self.is_coded && !self.is_in_fields {
                self.read_chunk_head(rest)
            } else {
                self.read_head(rest)
            };
        }
        if self.is_complete { read } else { bytes.len() }
    }

    fn read_body(&mut self, bytes: &[u8]) -> usize {
        let of_body = bytes.len().min(usize::try_from(self.body_bytes).unwrap_or(usize::MAX));
        self.body_bytes -= of_body as u64;
        self.is_complete = self.body_bytes == 0 && !self.is_coded;
        of_body
    }

    /// Reads up to the end of the line that says how long the next chunk is. hyper refuses one that says nothing. What follows
    /// the last chunk is read like the fields of a head.
    fn read_chunk_head(&mut self, bytes: &[u8]) -> usize {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let read = end.map_or(bytes.len(), |end| end + 1);
        let room = MOST_FIELD_BYTES - self.line.len();
        self.line.extend(bytes[..read].iter().take(room));
        if end.is_some() {
            let digits = self.line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
            let digits = std::str::from_utf8(&self.line[..digits]).unwrap_or_default();
            match u64::from_str_radix(digits, 16) {
                // The number may go on. hyper takes any of zeros before it.
                _ if digits.len() == MOST_FIELD_BYTES => self.is_over = true,
                Ok(0) => {
                    (self.is_coded, self.is_in_trailers, self.is_in_fields) = (false, true, true);
                }
                Ok(bytes) => self.body_bytes = bytes.saturating_add(2),
                Err(_) => self.is_over = true,
            }
            self.line.clear();
        }
        read
    }

    /// Reads up to the end of a head, and returns how many bytes that are.
    fn read_head(&mut self, bytes: &[u8]) -> usize {
        let mut begin = 0;
        self.head_bytes += bytes.len();
        let (words, rest) = bytes.as_chunks();
        let mut padded = [0; 8];
        padded[..rest.len()].copy_from_slice(rest);
        let mut index = 0;
        while index <= words.len() {
            let word = u64::from_le_bytes(if index < words.len() { words[index] } else { padded });
            let mut found = equal(word, b'\n');
            if found != 0 || !self.is_in_fields {
                found |= equal(word, b'#');
            }
            while found != 0 {
                let at = 8 * index + found.trailing_zeros() as usize / 8;
                found &= found - 1;
                if bytes[at] == b'#' {
                    if !self.is_in_fields {
                        self.note(Malformed::Fragment);
                        return bytes.len();
                    }
                    continue;
                }
                if (if at > 0 { bytes[at - 1] } else { self.last }) != b'\r' {
                    self.note(Malformed::BareLineFeed);
                    return bytes.len();
                }
                // Empty lines are allowed before a request, as in hyper.
                let is_empty = self.line_bytes + at - begin == 1;
                let ends = self.is_in_fields && is_empty;
                if self.is_in_fields && !is_empty && !self.is_in_trailers {
                    self.read_field(&bytes[begin..at]);
                }
                self.is_in_fields = !is_empty;
                (self.line_bytes, begin) = (0, at + 1);
                self.line.clear();
                if ends {
                    self.complete += 1;
                    self.body_bytes = self.announced.take().unwrap_or(0);
                    self.is_complete = self.body_bytes == 0 && !self.is_coded;
                    // What ends a body begins no line.
                    (self.head_bytes, self.last, self.is_in_trailers) = (0, 0, false);
                }
                if ends || self.is_over {
                    return begin;
                }
            }
            index += 1;
        }
        self.line_bytes += bytes.len() - begin;
        let room = MOST_FIELD_BYTES - self.line.len();
        self.line.extend(bytes[begin..].iter().take(room));
        self.last = *bytes.last().unwrap_or(&self.last);
        bytes.len()
    }

    /// Reads a line of a head, of which `rest` is what has come now.
    fn read_field(&mut self, rest: &[u8]) {
        let bytes = self.line_bytes + rest.len();
        if !self.line.is_empty() {
            let room = MOST_FIELD_BYTES - self.line.len();
            self.line.extend(rest.iter().take(room));
        }
        let line = if self.line.is_empty() { rest } else { &self.line };
        if !matches!(line.first(), Some(b'c' | b'C' | b't' | b'T')) {
            return;
        }
        self.is_coded |= value_of(line, b"transfer-encoding:").is_some();
        let value = value_of(line, b"content-length:");
        // hyper goes by the coding alone, and others by the length.
        if self.is_coded && (self.announced.is_some() || value.is_some()) {
            return self.note(Malformed::Length);
        }
        let Some(value) = value else { return };
        let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
        let number = std::str::from_utf8(value).ok().filter(|_| is_number).and_then(|text| text.parse().ok());
        // hyper takes two that say the same, and others may not.
        if number.is_none() || self.announced.is_some() || bytes > MOST_FIELD_BYTES {
            return self.note(Malformed::Length);
        }
        self.announced = number;
    }

    fn note(&mut self, why: Malformed) {
        self.requests.note_malformed(self.complete, why);
        self.is_over = true;
    }
}

/// What a line says, if it begins with this name in lower case.
fn value_of<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (begin, value) = line.split_at_checked(name.len())?;
    begin.eq_ignore_ascii_case(name).then(|| value.trim_ascii())
}

/// Sets the high bit of each byte of a word that equals this byte. Lines of heads are short: a search that is made for
/// long texts would take longer to begin than this takes to end.
fn equal(word: u64, byte: u8) -> u64 {
    const ONES: u64 = u64::MAX / 255;
    const LOW: u64 = ONES * 0x7f;
    let differs = word ^ (ONES * u64::from(byte));
    !(((differs & LOW) + LOW) | differs | LOW)
}
