//! Locks that several may hold at once: how many of them, and which place each has.

use std::num::NonZeroU16;

/// How many may hold a lock at once, as one of them says, that one included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slots(NonZeroU16);

impl Slots {
    /// A lock that excludes all others.
    pub const ONE: Self = Self(NonZeroU16::MIN);
    /// The most that there can be: what a reader says.
    pub const MOST: Self = Self(NonZeroU16::new(1_000).unwrap());

    /// What people are to write.
    pub const FORM: &str = "write how many may hold the lock at once: 1 to 1000, or any";

    /// `None` for zero, and for more than there can be.
    pub fn new(number: u16) -> Option<Self> {
        NonZeroU16::new(number).map(Self).filter(|slots| *slots <= Self::MOST)
    }

    /// Reads a number without a sign or a zero before it, or `any` for the most.
    pub fn parse(text: &[u8]) -> Option<Self> {
        if text == b"any" {
            return Some(Self::MOST);
        }
        let is_bare = text.iter().all(u8::is_ascii_digit) && text.first() != Some(&b'0');
        let number = std::str::from_utf8(text).ok().filter(|_| is_bare)?;
        Self::new(number.parse().ok()?)
    }

    /// The number.
    pub fn get(self) -> u16 {
        self.0.get()
    }
}

impl Default for Slots {
    fn default() -> Self {
        Self::ONE
    }
}

/// One of the places in a lock that several hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its number, from 1 on: the smallest that was free. No two have the same, and it never changes.
    pub number: u16,
    /// With how many others its holder can share the lock, itself included.
    pub slots: Slots,
}

/// Those who share a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharing<T> {
    /// How many they are. One that is released, and kept for the rest of its `min_hold`, counts.
    pub held: u64,
    /// The smallest number that any of them has said.
    pub slots: Slots,
    /// What more is said of them.
    pub holders: T,
}
