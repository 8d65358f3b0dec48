//! The program; it does nothing yet.

fn main() {}
