//! What the embedded store withstands: being killed, clocks that were set, and a disk that is full.

mod clock;
mod disk;
mod kills;
