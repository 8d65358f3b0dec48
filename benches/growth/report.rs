//! What was measured, as tables and as pictures.

use std::fmt::Write as _;

use crate::api_keys::ApiKeys;
use crate::connections::Connections;
use crate::crowd::Wish;
use crate::expiry::Expiry;
use crate::keys::Keys;
use crate::live::Live;
use crate::results::Results;
use crate::shared::figures::Spread;
use crate::shared::lines::{lines, spread};
use crate::shared::verdict::verdict;
use crate::waiters::Waiters;
use kit::plot::{Line, Plot, Point};

/// Of the throughput beside a thousand locks, so much is to be left beside a million.
const MUST_BE_KEPT: f64 = 0.9;
const AIMED_AT: f64 = 0.97;
/// How much memory one who waits may take beside an open request, where most wait.
const MOST_KB_OF_WAITER: f64 = 2.0;
const KB_AIMED_AT: f64 = 1.0;

pub fn tables(results: &Results) -> String {
    let Results { live, keys, waiters, expiry, connections, api_keys, .. } = results;
    let mut tables = String::new();
    put(
        &mut tables,
        "live locks | requests/s, thousands | × few locks | p99 × few locks | gateway MB | Redis MB",
        live.iter().map(of_live).collect(),
    );
    if let Some(judgement) = judge(live) {
        writeln!(tables, "{judgement}\n").unwrap();
    }
    let mut table = |head: &str, rows: Vec<String>| put(&mut tables, head, rows);
    table("distinct keys | requests/s, thousands | gateway MB | Redis MB", of_keys(keys));
    table(
        "clients that wait or hold | requests/s of others, thousands | × without them | p99 × without them | kB for each | without its connection | cores while nothing happens",
        waiters.iter().map(of_waiters).collect(),
    );
    table(
        "leases that end at once | p99 of others before, ms | after, ms | longest before, ms | after, ms | gateway MB full, after | Redis MB full, after",
        expiry.iter().map(of_expiry).collect(),
    );
    table(
        "connections | requests/s, thousands | p50 ms | p99 ms | gateway CPU µs/request | Redis CPU µs/request | gateway MB | told 503",
        connections.iter().map(of_connections).collect(),
    );
    table(
        "API keys with limits | requests/s, thousands | × one key without | p99 × one key without | gateway MB",
        api_keys.iter().map(of_api_keys).collect(),
    );
    if let Some(judgement) = judge_waiters(waiters) {
        writeln!(tables, "{judgement}\n").unwrap();
    }
    tables
}

fn put(tables: &mut String, head: &str, rows: Vec<String>) {
    if !rows.is_empty() {
        let columns = "|---".repeat(head.matches(" | ").count() + 1);
        writeln!(tables, "| {head} |\n{columns}|\n{}\n", rows.join("\n")).unwrap();
    }
}

/// What is kept of the throughput beside the most locks, and whether that is enough.
fn judge(live: &[Live]) -> Option<String> {
    let most = live.iter().map(|row| row.locks).max()?;
    let told = live.iter().filter(|row| row.locks == most).map(|row| {
        let kept = row.compared.kept.median;
        let verdict = verdict(kept >= AIMED_AT, kept >= MUST_BE_KEPT);
        format!("{} {kept:.3}: {verdict}", row.store)
    });
    let told: Vec<_> = told.collect();
    Some(format!(
        "Throughput kept beside {most} live locks, which must be {MUST_BE_KEPT} and is to be {AIMED_AT}: {}.",
        told.join("; ")
    ))
}

/// What one of the most who wait takes of memory, and whether that is little enough.
fn judge_waiters(waiters: &[Waiters]) -> Option<String> {
    let weighed =
        || waiters.iter().filter(|row| row.kb_without_connection.is_some() && row.wish != Wish::Hold);
    let most = weighed().map(|row| row.waiters).max()?;
    let told = weighed().filter(|row| row.waiters == most).filter_map(|row| {
        let kb = row.kb_without_connection?;
        let verdict = verdict(kb <= KB_AIMED_AT, kb <= MOST_KB_OF_WAITER);
        Some(format!("{} {kb:.1}: {verdict}", row.store))
    });
    let told: Vec<_> = told.collect();
    Some(format!(
        "Memory of one of {most} waiters without its connection, which must be {MOST_KB_OF_WAITER} kB and is to be {KB_AIMED_AT}: {}.",
        told.join("; ")
    ))
}

fn of_api_keys(row: &ApiKeys) -> String {
    let ApiKeys { api_keys, compared, gateway_mb } = row;
    format!(
        "| {api_keys} | {:.1} | {:.2} | {:.2} | {gateway_mb:.0} |",
        thousands(compared.requests_per_s),
        compared.kept,
        compared.p99_ratio
    )
}

fn of_live(row: &Live) -> String {
    let Live { store, locks, compared, gateway_mb, redis_mb } = row;
    format!(
        "| {store}, {locks} | {:.1} | {:.2} | {:.2} | {gateway_mb:.0} | {} |",
        thousands(compared.requests_per_s),
        compared.kept,
        compared.p99_ratio,
        or_none(*redis_mb)
    )
}

/// The first and the last turn of each store: those between are in the picture.
fn of_keys(rows: &[Keys]) -> Vec<String> {
    let of_row = |row: &Keys| {
        let Keys { store, keys, requests_per_s, gateway_mb, redis_mb } = row;
        format!(
            "| {store}, {keys} | {:.1} | {gateway_mb:.1} | {} |",
            requests_per_s / 1e3,
            redis_mb.map_or("–".to_owned(), |mb| format!("{mb:.1}"))
        )
    };
    let stores = rows.chunk_by(|one, next| one.store == next.store);
    stores
        .filter_map(|rows| rows.first().zip(rows.last()))
        .flat_map(|(a, b)| [of_row(a), of_row(b)])
        .collect()
}

fn of_waiters(row: &Waiters) -> String {
    let Waiters { store, wish, waiters, compared, kb_per_waiter, kb_without_connection, waiting_cores } = row;
    let kb = |kb: &Option<f64>| kb.map_or("–".to_owned(), |kb| format!("{kb:.1}"));
    format!(
        "| {store}, {waiters}, {} | {:.1} | {:.2} | {:.2} | {} | {} | {waiting_cores:.2} |",
        wish.name(),
        thousands(compared.requests_per_s),
        compared.kept,
        compared.p99_ratio,
        kb(kb_per_waiter),
        kb(kb_without_connection),
    )
}

fn of_expiry(row: &Expiry) -> String {
    let ms = |us: f64| us / 1e3;
    format!(
        "| {}, {} | {:.2} | {:.2} | {:.1} | {:.1} | {}, {} | {}, {} |",
        row.store,
        row.locks,
        ms(row.before_p99_us),
        ms(row.after_p99_us),
        ms(row.before_longest_us),
        ms(row.after_longest_us),
        or_none(row.full_mb[0]),
        or_none(row.left_mb[0]),
        or_none(row.full_mb[1]),
        or_none(row.left_mb[1]),
    )
}

fn of_connections(row: &Connections) -> String {
    let ms = |us: Spread| scaled(us, 1e3);
    format!(
        "| {}, {} | {:.1} | {:.2} | {:.2} | {:.1} | {} | {:.0} | {} |",
        row.store,
        row.connections,
        thousands(row.requests_per_s),
        ms(row.p50_us),
        ms(row.p99_us),
        row.gateway_cpu_us,
        row.redis_cpu_us.map_or("–".to_owned(), |us| format!("{us:.1}")),
        row.gateway_mb,
        row.unavailable
    )
}

fn thousands(spread: Spread) -> Spread {
    scaled(spread, 1e3)
}

fn scaled(Spread { median, least, most }: Spread, by: f64) -> Spread {
    Spread { median: median / by, least: least / by, most: most / by }
}

fn or_none(mb: Option<f64>) -> String {
    mb.map_or("–".to_owned(), |mb| format!("{mb:.0}"))
}

pub fn plots(results: &Results) -> Vec<Plot> {
    let Results { live, keys, waiters, expiry, connections, .. } = results;
    let plot = |file, title: &str, x_label, is_log, y_label, lines| Plot {
        file,
        title: title.to_owned(),
        x_label,
        is_log,
        y_label,
        lines,
    };
    let point = |x: f64, y: f64| Point { x, y, between: None };
    let of_keys = |value: fn(&Keys) -> Option<f64>, name: fn(&Keys) -> String| {
        lines(keys, name, move |row| Some(point(row.keys as f64, value(row)?)))
    };
    let mut memory_of_keys = of_keys(|row| Some(row.gateway_mb), |row| format!("gateway on {}", row.store));
    memory_of_keys.extend(of_keys(|row| row.redis_mb, |_| "that Redis".to_owned()));
    let for_whom = |row: &Waiters| format!("{}, {}", row.store, row.wish.name());
    let slices = |row: &Expiry| Line {
        name: row.store.to_owned(),
        points: row.slices.iter().map(|slice| point(slice.at_s, slice.p99_us / 1e3)).collect(),
    };
    let mut plots = vec![
        plot(
            "live-locks",
            "Throughput beside locks that are held",
            "locks that are held",
            true,
            "requests/s, × a gateway with few",
            lines(live, |row| row.store.to_owned(), |row| Some(spread(row.locks, row.compared.kept))),
        ),
        plot(
            "distinct-keys",
            "Throughput after keys that were used once",
            "keys that were taken and given back",
            false,
            "requests/s",
            of_keys(|row| Some(row.requests_per_s), |row| row.store.to_owned()),
        ),
        plot(
            "distinct-keys-memory",
            "Memory after keys that were used once",
            "keys that were taken and given back",
            false,
            "MB",
            memory_of_keys,
        ),
        plot(
            "waiters",
            "Latency of others beside clients that wait or hold",
            "clients that wait or hold",
            true,
            "p99, × a gateway without them",
            lines(waiters, for_whom, |row| Some(spread(row.waiters, row.compared.p99_ratio))),
        ),
        plot(
            "waiters-memory",
            "Memory of clients that wait or hold",
            "clients that wait or hold",
            true,
            "kB of the gateway for each, without its connection",
            lines(waiters, for_whom, |row| Some(point(row.waiters as f64, row.kb_without_connection?))),
        ),
        plot(
            "expiry",
            "Latency of others when many leases end at once",
            "seconds from the end of the leases",
            false,
            "p99 in ms, by quarters of a second",
            expiry.iter().map(slices).collect(),
        ),
        plot(
            "connections",
            "Throughput by connections",
            "connections that all ask",
            true,
            "requests/s",
            lines(
                connections,
                |row| row.store.to_owned(),
                |row| Some(spread(row.connections, row.requests_per_s)),
            ),
        ),
        plot(
            "connections-memory",
            "Memory by connections",
            "connections that all ask",
            true,
            "MB",
            lines(
                connections,
                |row| row.store.to_owned(),
                |row| Some(point(row.connections as f64, row.gateway_mb)),
            ),
        ),
    ];
    plots.retain(|plot| plot.lines.iter().any(|line| !line.points.is_empty()));
    plots
}
