//! Connections: to which servers, what replaces one that is no longer good, and what is gone through over them.

pub(crate) mod batcher;
mod cluster;
pub(crate) mod connector;
pub(crate) mod door;
pub(crate) mod link;
mod map;
pub(crate) mod replicas;
pub(crate) mod scan;
pub(crate) mod sentinel;
pub(crate) mod servers;
pub(crate) mod slots;
pub(crate) mod supervisor;
