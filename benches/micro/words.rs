//! Parsing and making the words of the domain.

use std::hint::black_box;

use criterion::Criterion;
use fencepost::lock::{Attempt, LeaseToken, LockKey};

pub fn measure(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("words");
    let long = "a".repeat(LockKey::MAX_BYTES);
    for (name, key) in [("short", "orders/4711"), ("longest", &long)] {
        group.bench_function(format!("parse key, {name}"), |bencher| {
            bencher.iter(|| LockKey::parse(black_box(key.as_bytes())).unwrap());
        });
    }
    let ours = LeaseToken::generate();
    for (name, text) in
        [("of the server", ours.reveal()), ("of the client", "0192f1c5-7a3b-7c44-9d1e-5f6a7b8c9d0e")]
    {
        group.bench_function(format!("parse token, {name}"), |bencher| {
            bencher.iter(|| LeaseToken::parse(black_box(text.as_bytes())).unwrap());
        });
    }
    group.bench_function("hash token", |bencher| bencher.iter(|| black_box(&ours).hash()));
    group.bench_function("make token", |bencher| bencher.iter(LeaseToken::generate));
    group.bench_function("make attempt", |bencher| bencher.iter(Attempt::generate));
    group.finish();
}
