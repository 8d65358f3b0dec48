//! What must be reached, and what is aimed at. Where nothing else is said it is of the gateway on Redis.

use serde::Serialize;

use crate::idle::Idle;
use crate::measure::Run;
use crate::shared::verdict::verdict;
use crate::shared::workload::Workload;
use crate::shared::workload::Workload::{
    FailFast, Once, OwnTokens, Pairs, Renew, Replay, Slots4, Slots100, Slots900, SlotsRefused, SlotsRenew,
    Watched,
};
use crate::summary::{Summary, redis_cpu, row, throughput};

#[derive(Serialize)]
pub struct Goal {
    pub what: &'static str,
    direction: Direction,
    pub must: f64,
    pub aim: f64,
    /// Nothing where a filter left it out.
    pub measured: Option<f64>,
    pub verdict: &'static str,
}

#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Direction {
    AtLeast,
    AtMost,
}
use Direction::{AtLeast, AtMost};

impl Goal {
    fn new(what: &'static str, direction: Direction, must: f64, aim: f64, measured: Option<f64>) -> Self {
        let reaches = |measured: f64, goal: f64| match direction {
            AtLeast => measured >= goal,
            AtMost => measured <= goal,
        };
        let verdict =
            measured.map_or("not measured", |value| verdict(reaches(value, aim), reaches(value, must)));
        Self { what, direction, must, aim, measured, verdict }
    }

    pub fn sign(&self) -> &'static str {
        match self.direction {
            AtLeast => "≥",
            AtMost => "≤",
        }
    }
}

pub fn goals(run: &Run, rows: &[Summary<'_>], idle: &[Idle], told_ms: Option<f64>) -> Vec<Goal> {
    let main = rows.iter().find(|row| row.name == "pairs/64/redis");
    let of_main = |value: fn(&Summary<'_>) -> Option<f64>| main.and_then(value);
    let own_tokens = rows.iter().find(|row| row.name == "own-tokens/64/redis");
    let with_marks = own_tokens.and_then(|row| Some(row.redis_cpu_to_noop?.median));
    let embedded = |slug| row(run, slug, Pairs, 256);
    let durable = embedded("file").zip(embedded("memory"));
    let durable = durable.map(|(file, memory)| throughput(&file.turns, &memory.turns).median);
    let of_redis = rows.iter().filter(|row| row.name.ends_with("/redis"));
    // Works have servers of their own, with results in them; and watchers have a thousand connections.
    let of_redis = of_redis.filter(|row| !row.workload.is_of_records() && row.workload != Watched);
    let after_load = of_redis.filter_map(|row| Some(row.rss_mb?.most)).max_by(f64::total_cmp);
    let idle_kb = |target| idle.iter().find(|idle| idle.target == target).map(|idle| idle.kb_per_connection);
    let to_noop =
        |name: &str| rows.iter().find(|row| row.name == name).map(|row| row.requests_per_s_to_noop.median);
    let to_redis = |slug, workload| compared(run, (slug, workload), ("redis", workload));
    let at_redis = |workload| Some(&row(run, "redis", workload, 64)?.turns[..]);
    let works = at_redis(Once).zip(at_redis(OwnTokens));
    let mismatches = (run.replies() > 0).then(|| run.mismatches().count() as f64);
    vec![
        Goal::new(
            "pairs at 64 connections, requests/s, × no-op",
            AtLeast,
            0.65,
            0.85,
            of_main(|row| Some(row.requests_per_s_to_noop.median)),
        ),
        Goal::new(
            "gateway CPU per request there, × no-op",
            AtMost,
            1.7,
            1.25,
            of_main(|row| Some(row.server_cpu_to_noop?.median)),
        ),
        Goal::new(
            "Redis CPU per request there, × the no-op handler's",
            AtMost,
            0.65,
            0.45,
            of_main(|row| Some(row.redis_cpu_to_noop?.median)),
        ),
        Goal::new(
            "Redis CPU per request with tokens of the client's own, × the no-op handler's",
            AtMost,
            0.65,
            0.45,
            with_marks,
        ),
        Goal::new("p99 there, × no-op", AtMost, 2.0, 1.3, of_main(|row| Some(row.p99_to_noop.median))),
        Goal::new(
            "file, durable, pairs at 256 connections, requests/s, × memory",
            AtLeast,
            0.3,
            0.7,
            durable,
        ),
        Goal::new(
            "begin and store at 64 connections, requests/s, × pairs with tokens of the client's own",
            AtLeast,
            0.75,
            0.9,
            compared(run, ("redis", Once), ("redis", OwnTokens)),
        ),
        Goal::new(
            "Redis CPU per request there, × the same pairs'",
            AtMost,
            1.5,
            1.2,
            works.and_then(|(works, pairs)| Some(redis_cpu(works, pairs)?.median)),
        ),
        Goal::new(
            "results of work that is done at 64 connections, requests/s, × pairs",
            AtLeast,
            1.0,
            1.1,
            compared(run, ("redis", Replay), ("redis", Pairs)),
        ),
        slots(
            run,
            "slots, 4 others hold, requests/s at 64 connections, × pairs",
            0.6,
            ("redis", Slots4, Pairs),
        ),
        slots(run, "slots, 100 others hold, requests/s there, × pairs", 0.6, ("redis", Slots100, Pairs)),
        slots(run, "slots, 900 others hold, requests/s there, × pairs", 0.6, ("redis", Slots900, Pairs)),
        slots(
            run,
            "slots, 900 others hold, requests/s there, × where 4 hold",
            0.9,
            ("redis", Slots900, Slots4),
        ),
        slots(run, "no slot is free, requests/s there, × fail-fast", 0.6, ("redis", SlotsRefused, FailFast)),
        slots(run, "renewing a slot, requests/s there, × renew", 0.8, ("redis", SlotsRenew, Renew)),
        slots(run, "slots on file, 4 others hold, requests/s there, × pairs", 0.8, ("file", Slots4, Pairs)),
        Goal::new(
            "pairs at 64 connections while 1,000 others watch all locks, × without",
            AtLeast,
            0.85,
            0.95,
            compared(run, ("redis", Watched), ("redis", Pairs)),
        ),
        lines(run, "pairs at 64 connections with a line for each in a file, × without lines", "redis+log"),
        lines(run, "the same with lines to a pipe", "redis+log-pipe"),
        Goal::new("ms until one of 1,000 watchers is told of a grant, median", AtMost, 50.0, 25.0, told_ms),
        Goal::new("RSS idle, MB", AtMost, 15.0, 7.5, of_main(|row| row.idle_rss_mb)),
        Goal::new("RSS after all load, MB", AtMost, 40.0, 20.0, after_load),
        Goal::new("RSS per idle connection, kB", AtMost, 20.0, 10.0, idle_kb("redis")),
        Goal::new("RSS per idle connection with TLS, kB", AtMost, 10.0, 6.0, idle_kb("redis+tls")),
        Goal::new("pairs at 64 connections, × no-op", AtLeast, 0.82, 0.95, to_noop("pairs/64/redis")),
        Goal::new("pairs at 16 connections, × no-op", AtLeast, 0.62, 0.75, to_noop("pairs/16/redis")),
        Goal::new("pairs at one connection, × no-op", AtLeast, 0.66, 0.75, to_noop("pairs/1/redis")),
        Goal::new(
            "pairs at 64 connections beside somebody who takes an eighth of each core, × no-op",
            AtLeast,
            0.62,
            0.75,
            to_noop("crowded/64/redis"),
        ),
        Goal::new(
            "pairs in memory at 64 connections, × no-op",
            AtLeast,
            0.9,
            0.97,
            to_noop("pairs/64/memory"),
        ),
        Goal::new(
            "pairs on a quorum of three there, × one Redis",
            AtLeast,
            0.4,
            0.5,
            to_redis("quorum", Pairs),
        ),
        Goal::new(
            "pairs on a Cluster of three there, × one Redis",
            AtLeast,
            0.7,
            0.9,
            to_redis("cluster", Pairs),
        ),
        Goal::new(
            "refusals on a quorum of three there, × one Redis",
            AtLeast,
            0.4,
            0.8,
            to_redis("quorum", FailFast),
        ),
        Goal::new("wrong or mismatched replies, on all stores", AtMost, 0.0, 0.0, mismatches),
    ]
}

/// What the lines of the log cost, in the same round.
fn lines(run: &Run, what: &'static str, slug: &str) -> Goal {
    Goal::new(what, AtLeast, 0.95, 0.98, compared(run, (slug, Pairs), ("redis", Pairs)))
}

/// What a slot costs beside a lock that excludes all others, in the same round.
fn slots(run: &Run, what: &'static str, must: f64, (slug, of, to): (&str, Workload, Workload)) -> Goal {
    Goal::new(what, AtLeast, must, 1.0, compared(run, (slug, of), (slug, to)))
}

/// The throughput of a target under a load at 64 connections, × that of another, or under another.
fn compared(run: &Run, of: (&str, Workload), to: (&str, Workload)) -> Option<f64> {
    let turns = |(slug, workload)| Some(&row(run, slug, workload, 64)?.turns[..]);
    Some(throughput(turns(of)?, turns(to)?).median)
}
