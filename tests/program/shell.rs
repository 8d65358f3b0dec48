//! The commands for a shell: each with and without keys and TLS, at a terminal and in a pipe.

mod breaking;
mod door;
mod everywhere;
mod holding;
mod hostile;
mod keys;
mod looking;
mod output;
mod proxies;
