//! What the embedded store withstands: being killed, clocks that were set, and a disk that is full or fails.

mod clock;
mod damage;
mod disk;
mod kills;
mod place;
mod syncs;
