//! What the rounds of a row come down to. Ratios are taken within one round, where the machine was the same for both;
//! between rounds it need not be.

use serde::Serialize;

use crate::measure::{Measured, Run};
use crate::plan::{OTHERS, Row, TARGETS, target};
use crate::shared::figures::{Spread, spread};
use crate::shared::load::Turn;
use crate::shared::workload::Workload;

#[derive(Serialize)]
pub struct Summary<'a> {
    /// As it is written in filters.
    pub name: String,
    pub label: &'static str,
    pub workload: Workload,
    pub connections: usize,
    pub requests_per_s: Spread,
    pub requests_per_s_to_noop: Spread,
    pub requests_per_s_to_redis_direct: Option<Spread>,
    pub p50_us: Spread,
    pub p99_us: Spread,
    pub p99_to_noop: Spread,
    pub server_cpu_us: Option<Spread>,
    pub server_cpu_to_noop: Option<Spread>,
    pub redis_cpu_us: Option<Spread>,
    /// What Redis used, compared with what the no-op handler did.
    pub redis_cpu_to_noop: Option<Spread>,
    /// When the server was ready, and at the end of each turn.
    pub idle_rss_mb: Option<f64>,
    pub rss_mb: Option<Spread>,
    /// Where another build is measured, and this is its row: the same row of ours, compared with it.
    pub ours_to_other: Option<Comparison>,
    pub generator_cores: Spread,
    pub others_cores: Spread,
    pub rounds: &'a [Turn],
}

impl Summary<'_> {
    /// Which target it is of.
    pub fn slug(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or_default()
    }
}

/// A million bytes, of kilobytes as the kernel counts them.
pub fn mb(kb: u64) -> f64 {
    kb as f64 * 1024.0 / 1e6
}

pub fn summaries(run: &Run) -> Vec<Summary<'_>> {
    run.rows.iter().map(|measured| summary(run, measured)).collect()
}

fn summary<'a>(run: &'a Run, measured: &'a Measured) -> Summary<'a> {
    let Measured { row, turns } = measured;
    let noop = run.reference(row);
    let direct = run.of(target("redis-direct"), row).map(|measured| &measured.turns[..]);
    let server = run.server(row);
    let of = |value: fn(&Turn) -> f64| spread(turns.iter().map(value).collect());
    let of_some = |value: fn(&Turn) -> Option<f64>| each(turns.iter().map(value));
    let redis_cpu_to_noop =
        turns.iter().zip(noop).map(|(turn, noop)| Some(turn.redis_cpu_us? / noop.server_cpu_us?));
    Summary {
        name: row.name(),
        label: server.name,
        workload: row.workload,
        connections: row.connections,
        requests_per_s: of(|turn| turn.requests_per_s),
        requests_per_s_to_noop: throughput(turns, noop),
        requests_per_s_to_redis_direct: direct.map(|direct| throughput(turns, direct)),
        p50_us: of(|turn| turn.p50_us),
        p99_us: of(|turn| turn.p99_us),
        p99_to_noop: spread(turns.iter().zip(noop).map(|(turn, noop)| turn.p99_us / noop.p99_us).collect()),
        server_cpu_us: of_some(|turn| turn.server_cpu_us),
        server_cpu_to_noop: each(
            turns.iter().zip(noop).map(|(turn, noop)| Some(turn.server_cpu_us? / noop.server_cpu_us?)),
        ),
        redis_cpu_us: of_some(|turn| turn.redis_cpu_us),
        redis_cpu_to_noop: each(redis_cpu_to_noop),
        idle_rss_mb: server.idle_rss_kb.map(mb),
        rss_mb: of_some(|turn| turn.rss_kb.map(mb)),
        ours_to_other: ours(run, row).map(|ours| compare(&ours.turns, turns)),
        generator_cores: of(|turn| turn.generator_cores),
        others_cores: of(|turn| turn.others_cores),
        rounds: turns,
    }
}

/// Requests per second, compared with another's in the same round.
pub fn throughput(turns: &[Turn], others: &[Turn]) -> Spread {
    spread(turns.iter().zip(others).map(|(turn, other)| turn.requests_per_s / other.requests_per_s).collect())
}

/// What Redis used for a request, compared with another load in the same round.
pub fn redis_cpu(turns: &[Turn], others: &[Turn]) -> Option<Spread> {
    each(turns.iter().zip(others).map(|(turn, other)| Some(turn.redis_cpu_us? / other.redis_cpu_us?)))
}

/// The row of our own build, where this is one of another.
fn ours<'a>(run: &'a Run, row: &Row) -> Option<&'a Measured> {
    let (ours, _) = OTHERS.iter().find(|(_, other)| target(other) == row.target)?;
    run.of(target(ours), row)
}

/// What one server did, as ratios to what another did in the same round.
#[derive(Clone, Copy, Serialize)]
pub struct Comparison {
    pub requests_per_s: Spread,
    pub p99: Spread,
    pub server_cpu: Option<Spread>,
}

fn compare(turns: &[Turn], others: &[Turn]) -> Comparison {
    let both = || turns.iter().zip(others);
    Comparison {
        requests_per_s: throughput(turns, others),
        p99: spread(both().map(|(turn, other)| turn.p99_us / other.p99_us).collect()),
        server_cpu: each(both().map(|(turn, other)| Some(turn.server_cpu_us? / other.server_cpu_us?))),
    }
}

/// What all rounds have a value of.
fn each(values: impl Iterator<Item = Option<f64>>) -> Option<Spread> {
    values.collect::<Option<Vec<_>>>().map(spread)
}

/// The row of a target under a load, if it was measured.
pub fn row<'a>(run: &'a Run, slug: &str, workload: Workload, connections: usize) -> Option<&'a Measured> {
    debug_assert!(TARGETS.iter().any(|target| target.slug == slug));
    run.of(target(slug), &Row { target: 0, workload, connections })
}
