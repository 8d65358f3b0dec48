//! Faults in the heads of requests that hyper lets pass. It cuts off what follows a `#`, accepts a line feed alone as
//! the end of a line, and does not count `Host`. With each of these faults, two readers can see two different requests.

use std::sync::Arc;

use super::application::Malformed;
use super::requests::Requests;

/// Reads the heads of one connection before hyper does, and notes the first malformed one. Nothing behind it is served.
///
/// A request with a body is the last one of its connection. So there are only heads here.
pub(super) struct Heads {
    requests: Arc<Requests>,
    /// Requests whose head is complete.
    complete: usize,
    is_in_fields: bool,
    /// How many bytes of the unfinished line were read before, and the last byte of all.
    line_bytes: usize,
    last: u8,
    is_over: bool,
}

impl Heads {
    pub(super) fn new(requests: Arc<Requests>) -> Self {
        Self { requests, complete: 0, is_in_fields: false, line_bytes: 0, last: 0, is_over: false }
    }

    /// Says that the connection has no heads of HTTP/1.
    pub(super) fn stop(&mut self) {
        self.is_over = true;
    }

    /// Reads what hyper is about to read.
    pub(super) fn read(&mut self, bytes: &[u8]) {
        if self.is_over {
            return;
        }
        let mut begin = 0;
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
                        return self.note(Malformed::Fragment);
                    }
                    continue;
                }
                if (if at > 0 { bytes[at - 1] } else { self.last }) != b'\r' {
                    return self.note(Malformed::BareLineFeed);
                }
                // Empty lines are allowed before a request, as in hyper.
                let is_empty = self.line_bytes + at - begin == 1;
                self.complete += usize::from(self.is_in_fields && is_empty);
                self.is_in_fields = !is_empty;
                (self.line_bytes, begin) = (0, at + 1);
            }
            index += 1;
        }
        self.line_bytes += bytes.len() - begin;
        self.last = *bytes.last().unwrap_or(&self.last);
    }

    fn note(&mut self, why: Malformed) {
        self.requests.note_malformed(self.complete, why);
        self.is_over = true;
    }
}

/// Sets the high bit of each byte of a word that equals this byte. Lines of heads are short: a search that is made for
/// long texts would take longer to begin than this takes to end.
fn equal(word: u64, byte: u8) -> u64 {
    const ONES: u64 = u64::MAX / 255;
    const LOW: u64 = ONES * 0x7f;
    let differs = word ^ (ONES * u64::from(byte));
    !(((differs & LOW) + LOW) | differs | LOW)
}
