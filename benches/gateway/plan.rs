//! What is measured: which servers, under which loads, how often and for how long.

use std::time::Duration;

use crate::shared::by_heart;
use crate::shared::load::Load;
use crate::shared::servers::{Build, Demands, Server};
use crate::shared::workload::Workload;

pub const CONNECTIONS: [usize; 4] = [1, 16, 64, 256];

/// A server that is measured.
#[derive(Clone, Copy)]
pub struct Target {
    /// How it is called where rows are chosen, and in results.
    pub slug: &'static str,
    pub start: fn() -> Server,
}

/// How often and how long is measured.
pub struct Plan {
    pub rounds: usize,
    /// The rows that goals are set for, and all others.
    pub main: Length,
    pub others: Length,
    /// Connections that only stay open, once each has made its request.
    pub idle_connections: usize,
    /// Locks of which watchers are told where nothing else is done.
    pub locks_told: usize,
    /// Replies that are checked where nothing else is done.
    pub replies: u64,
}

#[derive(Clone, Copy)]
pub struct Length {
    pub warm_up: Duration,
    pub measured: Duration,
}

/// One line of the results.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Which of the targets.
    pub target: usize,
    pub workload: Workload,
    pub connections: usize,
}

const fn length(warm_up_ms: u64, measured_ms: u64) -> Length {
    Length { warm_up: Duration::from_millis(warm_up_ms), measured: Duration::from_millis(measured_ms) }
}

pub const MEASUREMENT: Plan = Plan {
    rounds: 7,
    main: length(300, 2_000),
    others: length(100, 400),
    idle_connections: 2_000,
    locks_told: 20,
    replies: 10_000_000,
};
/// To see at a glance what a change does, and no more.
pub const QUICK: Plan = Plan { rounds: 3, main: length(100, 500), ..MEASUREMENT };
/// Just enough to see that everything still works together.
pub const TRIAL: Plan = Plan {
    rounds: 1,
    main: length(10, 30),
    others: length(5, 15),
    idle_connections: 20,
    locks_told: 1,
    replies: 2_000,
};

/// All that are compared with the first one, and what the second one says of the load itself.
pub const TARGETS: [Target; 15] = [
    Target { slug: "noop", start: by_heart::noop },
    Target { slug: "bare", start: by_heart::bare },
    Target { slug: "redis-direct", start: || Server::redis_itself("Redis directly") },
    Target { slug: "redis", start: || Server::on_redis("gateway on Redis") },
    Target { slug: "memory", start: || Server::embedded("gateway, memory", "memory:") },
    Target { slug: "file", start: || Server::embedded("gateway, file, durable", "file:locks.redb") },
    Target { slug: "quorum", start: || Server::on_quorum("gateway on a quorum of 3", 3) },
    Target { slug: "cluster", start: || Server::on_cluster("gateway on a Cluster of 3", 3) },
    Target {
        slug: "redis+keys",
        start: || secure("gateway on Redis, keys", Demands { api_key: true, tls: false }),
    },
    Target {
        slug: "redis+tls",
        start: || secure("gateway on Redis, TLS", Demands { api_key: false, tls: true }),
    },
    Target {
        slug: "redis+keys+tls",
        start: || secure("gateway on Redis, keys, TLS", Demands { api_key: true, tls: true }),
    },
    Target {
        slug: "redis+log",
        start: || Server::with_lines("gateway on Redis, a line for each request", false),
    },
    Target {
        slug: "redis+log-pipe",
        start: || Server::with_lines("gateway on Redis, these lines to a pipe", true),
    },
    Target {
        slug: "redis-other",
        start: || Server::on_redis_with("another build on Redis", Build::Other, Demands::default()),
    },
    Target {
        slug: "memory-other",
        start: || Server::embedded_with("another build, memory", Build::Other, "memory:"),
    },
];
/// Those that another build is measured for, and the same of the other build.
pub const OTHERS: [(&str, &str); 2] = [("redis", "redis-other"), ("memory", "memory-other")];

fn secure(name: &'static str, demands: Demands) -> Server {
    Server::on_redis_with(name, Build::Ours, demands)
}

/// What is started of a target for a load. Of those that keep records it is one with room for all of the rounds.
pub fn start(target: usize, workload: Workload) -> Server {
    const ROOM: [&str; 2] = ["--once-memory", "8589934592"];
    let Target { slug, start } = TARGETS[target];
    match slug {
        "redis" if workload.is_of_records() => Server::on_redis_set("gateway on Redis", &ROOM),
        "memory" if workload.is_of_records() => Server::embedded_set("gateway, memory", "memory:", &ROOM),
        "file" if workload.is_of_records() => {
            Server::embedded_set("gateway, file, durable", "file:locks.redb", &ROOM)
        }
        _ => start(),
    }
}

/// The target of this name.
pub fn target(slug: &str) -> usize {
    TARGETS.iter().position(|target| target.slug == slug).unwrap()
}

impl Row {
    /// What a target is asked in this row, as it is written in filters.
    pub fn name(&self) -> String {
        format!("{}/{}/{}", self.workload.name(), self.connections, TARGETS[self.target].slug)
    }

    /// Goals are set for these; two embedded stores are compared at 256 connections.
    fn is_main(&self) -> bool {
        let slugs: &[&str] = match (self.workload, self.connections) {
            (Workload::Pairs, 64) => &[
                "noop",
                "redis-direct",
                "redis",
                "memory",
                "file",
                "redis+log",
                "redis+log-pipe",
                "cluster",
                "redis-other",
                "memory-other",
            ],
            (Workload::Watched | Workload::Crowded | Workload::Spread, 64) => &["noop", "redis", "memory"],
            (Workload::OwnTokens | Workload::Once | Workload::Replay, 64) => {
                &["noop", "redis", "memory", "file"]
            }
            (Workload::Pairs, 256) => &["memory", "file"],
            _ => &[],
        };
        slugs.contains(&TARGETS[self.target].slug)
    }

    /// Whether both are of the same load.
    pub fn is_like(&self, other: &Self) -> bool {
        (self.workload, self.connections) == (other.workload, other.connections)
    }

    pub fn load(&self, plan: &Plan) -> Load {
        let Length { warm_up, measured } = if self.is_main() { plan.main } else { plan.others };
        Load { workload: self.workload, connections: self.connections, warm_up, measured }
    }

    /// Whether `pairs/64/redis` or the beginning of it, such as `pairs/64`, means this row. Left out is whatever stands
    /// for all: `//redis` are all rows of one target.
    fn is_meant_by(&self, filter: &str) -> bool {
        let name = self.name();
        let mut parts = name.split('/');
        filter.split('/').all(|wanted| parts.next().is_some_and(|part| wanted.is_empty() || wanted == part))
    }
}

/// The rows that these filters mean, all where there are none; and with each the no-op handler's under the same load.
pub fn rows(filters: &[String]) -> Vec<Row> {
    let mut rows = Vec::new();
    for workload in Workload::ALL {
        for connections in CONNECTIONS {
            let all = (0..TARGETS.len()).map(|target| Row { target, workload, connections });
            let mut meant: Vec<Row> =
                all.filter(|row| can_be_measured(row) && is_chosen(row, filters)).collect();
            let reference = Row { target: 0, workload, connections };
            if !meant.is_empty() && !meant.contains(&reference) {
                meant.insert(0, reference);
            }
            rows.extend(meant);
        }
    }
    rows
}

fn is_chosen(row: &Row, filters: &[String]) -> bool {
    filters.is_empty() || filters.iter().any(|filter| row.is_meant_by(filter))
}

fn can_be_measured(row: &Row) -> bool {
    let is_of_main_rows_alone = [Workload::OwnTokens, Workload::Watched, Workload::Crowded, Workload::Spread]
        .contains(&row.workload)
        || row.workload.is_of_records();
    if is_of_main_rows_alone && !row.is_main() {
        return false;
    }
    let has_slots = ["noop", "redis", "memory", "file"].contains(&TARGETS[row.target].slug);
    if row.workload.beside().is_some() && !(has_slots && [1, 64].contains(&row.connections)) {
        return false;
    }
    match TARGETS[row.target].slug {
        // The first knows no more than a pair; the others are compared with what has no lines.
        "bare" | "redis+log" | "redis+log-pipe" => row.workload == Workload::Pairs,
        slug if OTHERS.iter().any(|(_, other)| *other == slug) => Build::Other.program().is_some(),
        _ => true,
    }
}
