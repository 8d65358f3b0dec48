//! Finds a raw `#` in a `:path` of HTTP/2. The library cuts off the `#` and all that follows, as it does for HTTP/1.
//!
//! Nothing that the library tells shows this. So the blocks of header fields are walked before the library reads them
//! (RFC 9113 and RFC 7541). Each `#` in a value that may be a `:path` becomes a `>`. No path contains a `>`, so the
//! library resets the stream.
//!
//! The codes of both characters have the same length, so nothing moves. Other fields may take their names from the dynamic
//! table too, and their values are left as they are. So the walk remembers which entries of the table are a `:path`.
//!
//! It also follows how much memory the table takes. The library keeps a `:path`, or another field that begins with a
//! colon, as a part of the buffer that it was read from. So one byte in the table may keep a head of 25 KiB.

use std::collections::VecDeque;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
const FRAME_HEAD_BYTES: usize = 9;
const PRIORITY_BYTES: usize = 5;
/// What a field takes in memory, however short it is, as measured.
const FIELD_BYTES: usize = 130;
/// What each byte of it takes besides, as measured: the library has it up to three times.
const COPIES: usize = 3;
/// The library reads frames and texts into buffers that have no more room than this for what came before.
const BUFFER_BYTES: usize = 16 * 1024;
/// What the entries of a table may keep without being counted: as many heads of 1 KiB as it has entries.
const MOST_KEPT_BYTES: usize = MOST_ENTRIES * 1024;

/// The first entry of the dynamic table. An entry takes at least 32 of the table's 4,096 bytes.
const FIRST_DYNAMIC: usize = 62;
const MOST_ENTRIES: usize = 128;
/// The name as it is, and in the Huffman code.
const NAME: &[u8] = b":path";
const CODED_NAME: &[u8] = &[0xb9, 0x58, 0xd3, 0x3f];
/// How many Huffman codes there are for each number of bits (RFC 7541, appendix B). Codes of one length are consecutive
/// numbers, and go on where those of the length before end.
const CODES: [u32; 31] =
    [0, 0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19, 29, 0, 4];
/// The code of `#`. It differs from that of `>` only in its last bit.
const HASH: (u32, usize) = (0xffa, 12);

/// How far the bytes of an HTTP/2 connection were walked, behind its preface.
#[derive(Default)]
pub(super) struct Paths {
    head: [u8; FRAME_HEAD_BYTES],
    /// How many bytes of a frame's head are known.
    known: usize,
    /// How many bytes of the frame are left.
    left: usize,
    is_padded: bool,
    padding: usize,
    /// How many bytes come before the block of a frame that has one.
    before: usize,
    /// The stream that its stream depends on. The library does not read the block of one that depends on itself.
    depends_on: u32,
    is_unread: bool,
    /// What the blocks take in memory that have no end yet.
    unfinished_bytes: usize,
    block: Block,
    table: Table,
}

/// The dynamic table, from the latest entry. The library removes the oldest first, and refuses their numbers. It may
/// have removed more of them than the walk has.
#[derive(Default)]
struct Table {
    entries: VecDeque<Entry>,
    kept_bytes: usize,
    /// What was read since the latest entry that keeps something: of heads, and of all else.
    head_bytes: usize,
    other_bytes: usize,
}

struct Entry {
    name: Name,
    kept_bytes: usize,
}

/// What is known of the name of a field.
#[derive(Clone, Copy, Default)]
struct Name {
    is_path: bool,
    /// It begins with a colon, so that its value is kept as a part of a buffer.
    is_pseudo: bool,
}

impl Table {
    fn insert(&mut self, name: Name, is_coded: bool) {
        let mut kept_bytes = 0;
        if name.is_pseudo {
            kept_bytes += std::mem::take(&mut self.head_bytes);
            // What comes in the Huffman code is kept in a buffer that only heads are in.
            if !is_coded {
                kept_bytes += std::mem::take(&mut self.other_bytes);
            }
        }
        if self.entries.len() == MOST_ENTRIES
            && let Some(oldest) = self.entries.pop_back()
        {
            self.kept_bytes -= oldest.kept_bytes;
        }
        self.kept_bytes += kept_bytes;
        self.entries.push_front(Entry { name, kept_bytes });
    }

    fn name(&self, entry: usize) -> Name {
        match entry {
            4 | 5 => Name { is_path: true, is_pseudo: true },
            1 | 6 | 7 => Name { is_path: false, is_pseudo: true },
            _ => {
                let dynamic = entry.checked_sub(FIRST_DYNAMIC).and_then(|age| self.entries.get(age));
                dynamic.map_or_else(Name::default, |entry| entry.name)
            }
        }
    }
}

/// How far a block of header fields was walked.
#[derive(Clone, Copy, Default)]
enum Block {
    #[default]
    Instruction,
    Number {
        what: Number,
        value: usize,
        shift: u32,
    },
    /// The length of a string comes next.
    Length(Text),
    Text {
        text: Text,
        is_coded: bool,
        left: usize,
        seen: usize,
        symbol: Symbol,
    },
}

#[derive(Clone, Copy)]
enum Number {
    /// An indexed field, or the size of the table. Nothing else belongs to it.
    Alone,
    /// That of a name; 0 where the name itself comes next.
    Name {
        is_inserted: bool,
    },
    Length {
        text: Text,
        is_coded: bool,
    },
}

/// Whether a string is a name or a value, and what the name may be, as far as it was read.
#[derive(Clone, Copy)]
enum Text {
    Name { name: Name, is_inserted: bool },
    Value { name: Name, is_inserted: bool },
}

/// The bits of a Huffman code that were read so far.
#[derive(Clone, Copy, Default)]
struct Symbol {
    code: u32,
    first: u32,
    bits: usize,
}

impl Paths {
    /// Walks the bytes that the library is about to read.
    pub(super) fn walk(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            if self.known < FRAME_HEAD_BYTES {
                self.head[self.known] = *byte;
                self.known += 1;
                if self.known == FRAME_HEAD_BYTES {
                    self.begin_frame();
                }
            } else {
                self.left -= 1;
                self.walk_frame(byte);
            }
            if self.known == FRAME_HEAD_BYTES && self.left == 0 {
                self.known = 0;
                if self.has_block() && self.head[4] & END_HEADERS != 0 {
                    self.unfinished_bytes = 0;
                }
            }
        }
    }

    /// What the header fields of a request take in memory whose end has not come.
    pub(super) fn unfinished_bytes(&self) -> usize {
        self.unfinished_bytes
    }

    /// What the entries of the table keep in memory beyond what those of an honest client do.
    pub(super) fn excess_bytes(&self) -> usize {
        (self.table.kept_bytes + self.table.head_bytes).saturating_sub(MOST_KEPT_BYTES) * COPIES
    }

    fn has_block(&self) -> bool {
        matches!(self.head[3], HEADERS | CONTINUATION)
    }

    fn begin_frame(&mut self) {
        let [a, b, c, kind, flags, ..] = self.head;
        self.left = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        (self.is_padded, self.padding, self.before) = (false, 0, 0);
        if kind != CONTINUATION {
            let Table { head_bytes, other_bytes, .. } = &mut self.table;
            (*head_bytes, *other_bytes) = ((*head_bytes).min(BUFFER_BYTES), (*other_bytes).min(BUFFER_BYTES));
        }
        if kind == HEADERS {
            self.block = Block::Instruction;
            self.is_padded = flags & PADDED != 0;
            self.before = if flags & PRIORITY != 0 { PRIORITY_BYTES } else { 0 };
            (self.depends_on, self.is_unread) = (0, false);
        }
    }

    fn walk_frame(&mut self, byte: &mut u8) {
        if !self.has_block() {
            self.table.other_bytes += 1;
            return;
        }
        self.table.head_bytes += 1;
        self.unfinished_bytes += COPIES;
        if std::mem::take(&mut self.is_padded) {
            self.padding = usize::from(*byte);
        } else if self.before > 1 {
            self.before -= 1;
            self.depends_on = self.depends_on << 8 | u32::from(*byte);
        } else if self.before == 1 {
            self.before = 0;
            let [.., a, b, c, d] = self.head;
            // The first bit is not a part of either number.
            self.is_unread = (u32::from_be_bytes([a, b, c, d]) ^ self.depends_on) << 1 == 0;
        } else if self.left >= self.padding && !self.is_unread {
            if matches!(self.block, Block::Instruction) {
                self.unfinished_bytes += FIELD_BYTES;
            }
            self.block = self.block.after(byte, &mut self.table);
        }
    }
}

impl Block {
    fn after(self, byte: &mut u8, table: &mut Table) -> Self {
        match self {
            Self::Instruction => {
                let (mask, what) = match *byte {
                    0x80.. => (0x7f, Number::Alone),
                    0x40.. => (0x3f, Number::Name { is_inserted: true }),
                    0x20.. => (0x1f, Number::Alone),
                    _ => (0x0f, Number::Name { is_inserted: false }),
                };
                Self::number(what, *byte, mask, table)
            }
            Self::Number { what, value, shift } => {
                // The library refuses a number with more bytes.
                let more = usize::from(*byte & 0x7f).checked_shl(shift).unwrap_or(usize::MAX);
                let value = value.saturating_add(more);
                match *byte & 0x80 {
                    0 => Self::known(what, value, table),
                    _ => Self::Number { what, value, shift: shift.saturating_add(7) },
                }
            }
            Self::Length(text) => {
                Self::number(Number::Length { text, is_coded: *byte & 0x80 != 0 }, *byte, 0x7f, table)
            }
            Self::Text { mut text, is_coded, left, seen, mut symbol } => {
                match &mut text {
                    Text::Name { name, .. } => {
                        let path = if is_coded { CODED_NAME } else { NAME };
                        name.is_path &= path.get(seen) == Some(byte) && seen + left == path.len();
                        // The code of a colon has 7 bits.
                        name.is_pseudo &= seen > 0 || (*byte ^ path[0]) >> u8::from(is_coded) == 0;
                    }
                    Text::Value { name: Name { is_path: false, .. }, .. } => {}
                    Text::Value { .. } if is_coded => symbol.walk(byte),
                    Text::Value { .. } if *byte == b'#' => *byte = b'>',
                    Text::Value { .. } => {}
                }
                match left {
                    1 => text.behind(),
                    _ => Self::Text { text, is_coded, left: left - 1, seen: seen + 1, symbol },
                }
            }
        }
    }

    /// Reads a number that begins in the last bits of a byte.
    fn number(what: Number, byte: u8, mask: u8, table: &mut Table) -> Self {
        match byte & mask {
            all if all == mask => Self::Number { what, value: usize::from(all), shift: 0 },
            value => Self::known(what, usize::from(value), table),
        }
    }

    fn known(what: Number, value: usize, table: &mut Table) -> Self {
        match (what, value) {
            (Number::Alone, _) => Self::Instruction,
            (Number::Name { is_inserted }, 0) => {
                Self::Length(Text::Name { name: Name { is_path: true, is_pseudo: true }, is_inserted })
            }
            (Number::Name { is_inserted }, name) => {
                Text::Name { name: table.name(name), is_inserted }.behind()
            }
            (Number::Length { text: Text::Name { is_inserted, .. }, .. }, 0) => {
                Text::Name { name: Name::default(), is_inserted }.behind()
            }
            (Number::Length { text, is_coded }, left) => {
                if let Text::Value { name, is_inserted: true } = text {
                    table.insert(name, is_coded);
                }
                match left {
                    0 => text.behind(),
                    _ => Self::Text { text, is_coded, left, seen: 0, symbol: Symbol::default() },
                }
            }
        }
    }
}

impl Text {
    fn behind(self) -> Block {
        match self {
            Self::Name { name, is_inserted } => Block::Length(Self::Value { name, is_inserted }),
            Self::Value { .. } => Block::Instruction,
        }
    }
}

impl Symbol {
    fn walk(&mut self, byte: &mut u8) {
        for place in (0..8).rev() {
            let bit = u32::from(*byte >> place & 1);
            self.first = (self.first + CODES[self.bits]) << 1;
            self.code = self.code << 1 | bit;
            self.bits += 1;
            if (self.code, self.bits) == HASH {
                *byte |= 1 << place;
            }
            // No code is longer. The library refuses such a string.
            if self.code.wrapping_sub(self.first) < CODES[self.bits] || self.bits + 1 == CODES.len() {
                *self = Self::default();
            }
        }
    }
}
