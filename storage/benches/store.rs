//! What the store costs a message of 1 KiB: an append by medium, to a preheated file, and batch size, a pull of 32 from the tail, and the start of a store
//! of a gigabyte after a clean stop and after a kill.
//!
//! The files are of the default size and lie in TMPDIR. No agent runs beside an append; their turns
//! come in between and are not counted.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ringmq_storage::append::AppendBatch;
use ringmq_storage::flush::{FlushKeys, Medium, PoolSize, Promise};
use ringmq_storage::read::ReadLimits;
use ringmq_storage::record::{NewRecord, RecordLimits};
use ringmq_storage::store::{Store, StoreConfig};
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

const LIMITS: RecordLimits = RecordLimits::of_body(4 << 20);

fn config(root: &Path) -> StoreConfig {
    StoreConfig::new(root)
}

/// The medium by its name, and files made ready as a node would.
fn preheated(root: &Path, medium: &str) -> StoreConfig {
    let keys = FlushKeys { warm_pages: Some(4096), warm_lock: true, ..FlushKeys::default() };
    let promise = match medium {
        "pool" => Promise::Pool(PoolSize { buffer_count: 2, fast_fail: false }),
        _ => Promise::Async,
    };
    let medium = if medium == "mapped" { Medium::Mapped } else { Medium::Write };
    StoreConfig { keys, promise, medium, ..config(root) }
}

fn push(store: &Store, batch: &mut AppendBatch, queue_id: i32, body: &[u8]) {
    let record = NewRecord {
        topic: "BenchmarkTest",
        queue_id,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 1,
        born_host: ([127, 0, 0, 1], 40_000).into(),
        store_host: ([127, 0, 0, 1], 10_911).into(),
        reconsume_times: 0,
        prepared_offset: 0,
        body,
        properties: &[b"UNIQ_KEY\x017F000001295E5FFD2B2795BE99AB0000\x02CLUSTER\x01DefaultCluster"],
    };
    let queue = store.queue_or_create(record.topic, queue_id);
    batch.push(&record, 0, &queue, LIMITS).expect("a good record");
}

/// Returns what was spent under the gate.
fn fill(store: &Store, batch: &mut AppendBatch, count: usize, body: &[u8]) -> Duration {
    batch.clear();
    (0..count).for_each(|number| push(store, batch, (number % 8) as i32, body));
    let began = Instant::now();
    let outcome = store.append(batch, 1000);
    assert!(outcome.error.is_none());
    began.elapsed()
}

fn store(c: &mut Criterion) {
    let body = vec![b'x'; 1024];
    let media = ["write", "mapped", "pool"].into_iter().flat_map(|medium| [1, 16, 200].map(|count| (medium, count)));
    for ((medium, count), is_gate) in media.flat_map(|shape| [(shape, false), (shape, true)]) {
        // What only one shard at a time can do, or all of it.
        let what = if is_gate { "gate" } else { "append" };
        let mut group = c.benchmark_group(format!("{what}, {medium}"));
        group.throughput(Throughput::Elements(count as u64)).sample_size(10).measurement_time(Duration::from_secs(2));
        group.bench_function(format!("{count} a batch"), |b| {
            b.iter_custom(|rounds| {
                let dir = tempfile::tempdir().expect("a folder");
                let (store, _) = Store::open(preheated(dir.path(), medium), 1000).expect("opens");
                let agents = |now_ms| {
                    store.files_turn(now_ms);
                    store.commit_turn(now_ms);
                };
                // What is ahead is made and preheated.
                (0..400).for_each(|turn| agents(1000 + 100 * turn));
                let mut batch = AppendBatch::default();
                fill(&store, &mut batch, count, &body);
                let mut spent = Duration::ZERO;
                // The preheating takes longer than the rounds that a sample is given: it gets more, and the mean counts.
                let all = rounds.max(300_000 / count as u64);
                let step = 1024 / count as u64 + 1;
                let mut round = 0;
                while round < all {
                    agents(100_000 + 2000 * round);
                    let until = all.min(round + step);
                    let began = Instant::now();
                    let gate: Duration = (round..until).map(|_| fill(&store, &mut batch, count, &body)).sum();
                    spent += if is_gate { gate } else { began.elapsed() };
                    round = until;
                }
                spent.mul_f64(rounds as f64 / all as f64)
            });
        });
    }

    let dir = tempfile::tempdir().expect("a folder");
    let mut batch = AppendBatch::default();
    let open = || Store::open(config(dir.path()), 1000).expect("opens").0;
    let written = open();
    while written.log_max() < 1_000_000_000 {
        fill(&written, &mut batch, 200, &body);
        if written.log_max() % 97 == 0 {
            written.files_turn(written.log_max());
        }
    }
    let limits = ReadLimits {
        memory_bytes_max: 256 << 10,
        memory_count_max: 32,
        disk_bytes_max: 64 << 10,
        disk_count_max: 8,
        in_memory_bytes: u64::MAX,
    };
    let queue = written.queue("BenchmarkTest", 0).expect("there");
    for (place, from) in [("tail", queue.max() as i64 - 64), ("files", 1000)] {
        let mut group = c.benchmark_group("pull of 32");
        group.throughput(Throughput::Elements(32));
        group.bench_function(place, |b| {
            b.iter(|| black_box(written.read(&queue, from, 32, &limits, &mut |_| true)).count);
        });
    }
    drop((written, queue));
    let mut group = c.benchmark_group("start with 1 GB");
    group.sample_size(10);
    group.bench_function("after a kill", |b| b.iter(|| black_box(open())));
    open().close(1).expect("closes");
    group.bench_function("after a clean stop", |b| b.iter(|| open().close(1).expect("closes")));
}

criterion_group!(benches, store);
criterion_main!(benches);
