//! What an SQL92 filter costs a message: numbers of docs/benchmarks.md. `cargo bench -p ringmq --bench filter`.

use criterion::{Criterion, criterion_group, criterion_main};
use ringmq::broker::filter::Expression;
use std::hint::black_box;

/// As a message of an official client is stored: eight properties of its own among those of client and broker.
const PROPERTIES: &str = "KEYS\u{1}order-4711\u{2}UNIQ_KEY\u{1}7F0000010A2C18B4AAC2A1B2C3D40000\u{2}TAGS\u{1}paid\u{2}\
    amount\u{1}129.95\u{2}region\u{1}eu-west\u{2}priority\u{1}7\u{2}customer\u{1}gold\u{2}attempts\u{1}2\u{2}\
    currency\u{1}EUR\u{2}weight\u{1}12\u{2}express\u{1}true\u{2}CLUSTER\u{1}DefaultCluster";

const ALL_EIGHT: &str = "amount > 100.0 AND region IN ('eu-west', 'eu-north', 'us-east') AND priority BETWEEN 5 AND 9 \
    AND customer = 'gold' AND attempts < 3 AND currency <> 'USD' AND weight <= 20 AND express = TRUE";

fn evaluate(c: &mut Criterion) {
    let mut group = c.benchmark_group("filter");
    for (name, text, is_wanted) in [
        ("8 properties, all wanted", ALL_EIGHT, true),
        ("1 property, wanted", "priority > 5", true),
        ("1 property, not wanted", "priority > 8", false),
        ("1 property that is not there", "missing > 8", false),
    ] {
        let expression = Expression::compile(text).expect("our own expression");
        assert_eq!(expression.matches(PROPERTIES.as_bytes()), is_wanted);
        group.bench_function(name, |b| b.iter(|| expression.matches(black_box(PROPERTIES.as_bytes()))));
    }
    group.bench_function("compile", |b| b.iter(|| Expression::compile(black_box(ALL_EIGHT))));
    group.finish();
}

criterion_group!(benches, evaluate);
criterion_main!(benches);
