//! What was measured, as pictures.

use crate::shared::figures::Spread;
use crate::shared::lines::{lines, spread};
use crate::shared::workload::Workload;
use crate::summary::Summary;
use kit::plot::Plot;

/// The stores, and how they are reached.
const STORES: [&str; 6] = ["redis", "redis+tls", "memory", "file", "quorum", "cluster"];

/// Each with what it shows, in a sentence. Left out are those of which nothing was measured.
pub fn plots(rows: &[Summary<'_>]) -> Vec<(Plot, &'static str)> {
    let of = |slugs: &[&str], name: fn(&Summary<'_>) -> String, value: fn(&Summary<'_>) -> Option<Spread>| {
        let is_meant = |row: &&Summary<'_>| row.workload == Workload::Pairs && slugs.contains(&row.slug());
        lines(rows.iter().filter(is_meant), name, |row| Some(spread(row.connections, value(row)?)))
    };
    let label = |row: &Summary<'_>| row.label.to_owned();
    let plot = |file, title: &str, y_label, lines| Plot {
        file,
        title: title.to_owned(),
        x_label: "connections that all ask",
        is_log: true,
        y_label,
        lines,
    };
    let mut cpu = of(&["noop", "redis"], label, |row| row.server_cpu_us);
    cpu.extend(of(&["redis"], |_| "that Redis".to_owned(), |row| row.redis_cpu_us));
    let with_noop = [&["noop"], &STORES[..]].concat();
    let mut plots = vec![
        (
            plot(
                "share",
                "Throughput of acquires and releases",
                "requests/s, × the no-op handler's",
                of(&STORES, label, |row| Some(row.requests_per_s_to_noop)),
            ),
            "So much of what a handler does that does nothing, with as many connections, is left with each store.",
        ),
        (
            plot(
                "latency",
                "Latency of acquires and releases",
                "p50 in µs",
                of(&with_noop, label, |row| Some(row.p50_us)),
            ),
            "So long half of the requests take at most, while all connections ask without a pause.",
        ),
        (
            plot("cpu", "CPU time of acquires and releases", "µs/request", cpu),
            "So much time of a processor each request takes of the gateway, and of its Redis.",
        ),
    ];
    plots.retain(|(plot, _)| !plot.lines.is_empty());
    plots
}
