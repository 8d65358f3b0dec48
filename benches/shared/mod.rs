//! What all measurements are made of: servers in processes of their own, clients that believe no reply unseen, and
//! readings of what both of them use.

pub mod by_heart;
pub mod client;
pub mod cluster;
pub mod connection;
pub mod cpu;
pub mod direct;
pub mod figures;
pub mod lines;
pub mod load;
pub mod memory;
pub mod neighbor;
pub mod numbers;
pub mod page;
pub mod secure;
pub mod servers;
pub mod standstill;
pub mod stream;
pub mod table;
pub mod verdict;
pub mod watchers;
pub mod workload;
