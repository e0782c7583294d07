//! What one record costs before and after the log: the numbers of the ledger in docs/benchmarks.md.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ringmq_storage::record::{NewRecord, RecordLimits, check, decode, encode, properties};
use std::hint::black_box;

const CLIENT_TEXT: &[u8] = b"UNIQ_KEY\x017F000001295E5FFD2B2795BE99AB0000\x02WAIT\x01true\x02TAGS\x01TagA\x02";
const CLUSTER: &[u8] = b"CLUSTER\x01DefaultCluster";

fn record<'a>(body: &'a [u8], properties: &'a [&'a [u8]]) -> NewRecord<'a> {
    NewRecord {
        topic: "BenchmarkTopic",
        queue_id: 3,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 1_796_003_496_363,
        born_host: ([127, 0, 0, 1], 47906).into(),
        store_host: ([127, 0, 0, 1], 10911).into(),
        reconsume_times: 0,
        prepared_offset: 0,
        body,
        properties,
    }
}

fn bench(c: &mut Criterion) {
    let limits = RecordLimits::of_body(4 * 1024 * 1024);
    let body = vec![b'x'; 1024];
    let pieces = properties::stored(CLIENT_TEXT, CLUSTER);
    let mut encoded = Vec::new();
    encode::encode(&record(&body, &pieces), &mut encoded);

    let mut group = c.benchmark_group("record_1k");
    group.throughput(Throughput::Bytes(encoded.len() as u64));
    let mut buffer = Vec::with_capacity(1 << 16);
    group.bench_function("check_and_encode", |b| {
        b.iter(|| {
            if buffer.len() > 60_000 {
                buffer.clear();
            }
            let record = record(black_box(&body), &pieces);
            check(&record, limits).expect("within the limits");
            encode::encode(&record, &mut buffer)
        });
    });
    group.bench_function("body_crc", |b| b.iter(|| encode::body_crc(black_box(&body))));
    group.bench_function("check_with_crc", |b| b.iter(|| decode::check(black_box(&encoded), Some(0), true).is_ok()));
    group
        .bench_function("check_without_crc", |b| b.iter(|| decode::check(black_box(&encoded), Some(0), false).is_ok()));
    group.bench_function("dispatch_info", |b| {
        b.iter(|| {
            let checked = decode::check(black_box(&encoded), Some(0), false);
            let Ok(decode::Checked::Record(record)) = checked else { panic!("a good record") };
            record.dispatch_info(&properties::DELAYS_MS).tags_code
        });
    });
    group.finish();

    let mut group = c.benchmark_group("properties");
    group.bench_function("stored", |b| b.iter(|| properties::stored(black_box(CLIENT_TEXT), CLUSTER).len()));
    group.bench_function("wants_wait", |b| b.iter(|| properties::wants_wait(black_box(CLIENT_TEXT))));
    group.bench_function("get_each_4", |b| {
        let names = ["TAGS", "DELAY", "KEYS", "UNIQ_KEY"];
        b.iter(|| properties::get_each(black_box(CLIENT_TEXT), names))
    });
    group.bench_function("tags_code", |b| {
        let delays = &properties::DELAYS_MS;
        b.iter(|| properties::tags_code("BenchmarkTopic", black_box(CLIENT_TEXT), 0, delays));
    });
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
