//! What was measured, as pictures.

use crate::shared::figures::Spread;
use crate::shared::workload::Workload;
use crate::summary::Summary;
use kit::plot::{Line, Plot, Point};

/// The stores, and how they are reached.
const STORES: [&str; 6] = ["redis", "redis+tls", "memory", "file", "quorum", "cluster"];

/// What is shown of a row.
type Value<'a> = &'a dyn Fn(&Summary<'_>) -> Option<Spread>;

/// Each with what it shows, in a sentence. Left out are those of which nothing was measured.
pub fn plots(rows: &[Summary<'_>]) -> Vec<(Plot, &'static str)> {
    let line = |slug: &str, name: &str, value: Value<'_>| {
        let of_line = rows.iter().filter(|row| row.workload == Workload::Pairs && row.slug() == slug);
        let point = |row: &Summary<'_>| {
            let Spread { median, least, most } = value(row)?;
            Some(Point { x: row.connections as f64, y: median, between: Some((least, most)) })
        };
        let name = if name.is_empty() { of_line.clone().next().map_or("", |row| row.label) } else { name };
        Line { name: name.to_owned(), points: of_line.filter_map(point).collect() }
    };
    let all = |slugs: &[&str], value: Value<'_>| {
        let lines = slugs.iter().map(|slug| line(slug, "", value));
        lines.filter(|line| !line.points.is_empty()).collect::<Vec<_>>()
    };
    let plot = |file, title: &str, y_label, lines| Plot {
        file,
        title: title.to_owned(),
        x_label: "connections that all ask",
        is_log: true,
        y_label,
        lines,
    };
    let of_redis: [(&str, &str, Value<'_>); 3] = [
        ("noop", "no-op handler", &|row| row.server_cpu_us),
        ("redis", "gateway on Redis", &|row| row.server_cpu_us),
        ("redis", "that Redis", &|row| row.redis_cpu_us),
    ];
    let cpu = of_redis.map(|(slug, name, value)| line(slug, name, value));
    let with_noop = [&["noop"], &STORES[..]].concat();
    let mut plots = vec![
        (
            plot(
                "share",
                "Throughput of acquires and releases",
                "requests/s, × the no-op handler's",
                all(&STORES, &|row| Some(row.requests_per_s_to_noop)),
            ),
            "So much of what a handler does that does nothing, with as many connections, is left with each store.",
        ),
        (
            plot(
                "latency",
                "Latency of acquires and releases",
                "p50 in µs",
                all(&with_noop, &|row| Some(row.p50_us)),
            ),
            "So long half of the requests take at most, while all connections ask without a pause.",
        ),
        (
            plot("cpu", "CPU time of acquires and releases", "µs/request", cpu.into()),
            "So much time of a processor each request takes of the gateway, and of its Redis.",
        ),
    ];
    plots.retain(|(plot, _)| plot.lines.iter().any(|line| !line.points.is_empty()));
    plots
}
