//! What was measured, as tables in Markdown.

use std::fmt::Write as _;

use crate::goals::Goal;
use crate::idle::Idle;
use crate::shared::figures::Spread;
use crate::shared::workload::Workload;
use crate::summary::{Comparison, Summary};

const HEAD: &str = "\
| target | connections | requests/s, thousands | × no-op | × Redis directly | p50 µs | p99 µs | p99 × no-op | server CPU µs/request \
| × no-op | Redis CPU µs/request | × no-op's | RSS MB, idle | after | generator, cores | others, cores |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
";

/// One table for each kind of load.
pub fn tables(rows: &[Summary<'_>]) -> String {
    let mut text = String::new();
    for workload in Workload::ALL {
        let rows: Vec<_> = rows.iter().filter(|row| row.workload == workload).collect();
        if rows.is_empty() {
            continue;
        }
        write!(text, "**{}**\n\n{HEAD}", title(workload)).unwrap();
        for row in rows {
            writeln!(text, "{}", line(row)).unwrap();
        }
        text.push('\n');
    }
    text
}

fn title(workload: Workload) -> &'static str {
    match workload {
        Workload::Pairs => "Acquire and release, on fresh keys",
        Workload::Watched => "The same while 1,000 others watch all locks",
        Workload::Crowded => "The same beside somebody else who takes an eighth of each core",
        Workload::Spread => "The same with a moment of nothing before each request",
        Workload::OwnTokens => "The same with tokens of the client's own",
        Workload::FailFast => "Refused: one lock that somebody else holds",
        Workload::Renew => "Renew",
        Workload::Once => "Begin a piece of work, and store its result of 200 bytes",
        Workload::Replay => "Get the result of work that is done",
        Workload::Slots4 => "Acquire and release a slot of one lock that 4 others hold",
        Workload::Slots100 => "The same beside 100 others",
        Workload::Slots900 => "The same beside 900 others",
        Workload::SlotsRefused => "Refused: a lock of which all 4 slots are taken",
        Workload::SlotsRenew => "Renew a slot",
    }
}

fn line(row: &Summary<'_>) -> String {
    let thousands = |spread: Spread| Spread {
        median: spread.median / 1e3,
        least: spread.least / 1e3,
        most: spread.most / 1e3,
    };
    let cells = [
        row.label.to_owned(),
        row.connections.to_string(),
        format!("{:.1}", thousands(row.requests_per_s)),
        format!("{:.2}", row.requests_per_s_to_noop),
        some(row.requests_per_s_to_redis_direct, 2),
        format!("{:.0}", row.p50_us),
        format!("{:.0}", row.p99_us),
        format!("{:.2}", row.p99_to_noop),
        some(row.server_cpu_us, 1),
        some(row.server_cpu_to_noop, 2),
        some(row.redis_cpu_us, 1),
        some(row.redis_cpu_to_noop, 2),
        row.idle_rss_mb.map_or("–".to_owned(), |mb| format!("{mb:.1}")),
        some(row.rss_mb, 1),
        format!("{:.2}", row.generator_cores),
        format!("{:.2}", row.others_cores),
    ];
    format!("| {} |", cells.join(" | "))
}

fn some(spread: Option<Spread>, digits: usize) -> String {
    spread.map_or("–".to_owned(), |spread| format!("{spread:.digits$}"))
}

/// Our own build beside another one, where there is one.
pub fn comparison(rows: &[Summary<'_>]) -> String {
    let mut text = String::new();
    for row in rows {
        let Some(Comparison { requests_per_s, p99, server_cpu }) = row.ours_to_other else { continue };
        if text.is_empty() {
            text += "| our build × the other | requests/s | p99 | server CPU |\n|---|---|---|---|\n";
        }
        let server_cpu = some(server_cpu, 3);
        writeln!(text, "| {} | {requests_per_s:.3} | {p99:.2} | {server_cpu} |", row.name).unwrap();
    }
    text
}

/// What connections cost that only stay open.
pub fn idle(all: &[Idle]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut text = "| target | idle connections | RSS kB/connection |\n|---|---|---|\n".to_owned();
    for Idle { label, connections, kb_per_connection, .. } in all {
        writeln!(text, "| {label} | {connections} | {kb_per_connection:.1} |").unwrap();
    }
    text
}

pub fn goals(goals: &[Goal]) -> String {
    let mut text = "| goal | must | aim | measured | |\n|---|---|---|---|---|\n".to_owned();
    for goal in goals {
        let Goal { what, must, aim, measured: Some(measured), verdict, .. } = goal else { continue };
        let sign = goal.sign();
        writeln!(text, "| {what} | {sign} {must} | {sign} {aim} | {measured:.2} | {verdict} |").unwrap();
    }
    text
}
