//! Models of the protocols, searched exhaustively, with mutants that the search must catch.

#![cfg(test)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "a test that cannot go on must fail"
)]

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model};

mod fence;
mod holds;
mod line;
mod once;
mod quorum;
mod retries;
mod sentinel;
mod slots;

/// Whether the searches have the larger bounds, by the variable `MODEL`.
fn is_long() -> bool {
    std::env::var("MODEL").is_ok_and(|bounds| bounds == "long")
}

/// What a search compares, and prints where it finds something.
trait Data: Clone + Debug + PartialEq {}

impl<T: Clone + Debug + PartialEq> Data for T {}

/// Searches all that may happen, until this was found.
fn search<M>(rules: M, until: HasDiscoveries) -> impl Checker<M>
where
    M: Model<State: Data + Hash + Send + Sync, Action: Data> + Send + Sync + 'static,
{
    rules.checker().threads(2).finish_when(until).spawn_bfs().join()
}

/// Fails unless the search finds this promise broken by rules of which one is left out. Prints how.
fn is_missed<M>(what: &str, rules: M, promise: &'static str)
where
    M: Model<State: Data + Hash + Send + Sync, Action: Data> + Send + Sync + 'static,
{
    let checker = search(rules, HasDiscoveries::AnyOf(BTreeSet::from([promise])));
    let Some(trace) = checker.discovery(promise) else { panic!("{what}: it is not missed that {promise}") };
    println!("{what}: {} states, {:?}", checker.unique_state_count(), trace.into_actions());
}
