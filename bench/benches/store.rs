//! What a record costs in the store, by how many share a turn: encoding, the append with its one write, its key in the
//! index, and reading back by the consume queue. Numbers of the ledger in docs/benchmarks.md.
//!
//! The store is in the temporary folder (TMPDIR), and its agents run beside, as in a node. It grows by some GiB and is
//! deleted at the end. An append that must wait for the next file is not counted in; it is retried.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ringmq_storage::append::AppendBatch;
use ringmq_storage::consume_queue::ConsumeQueue;
use ringmq_storage::read::ReadLimits;
use ringmq_storage::record::{NewRecord, RecordLimits, check, encode, properties};
use ringmq_storage::store::{Store, StoreConfig};
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

const CLIENT_TEXT: &[u8] = b"UNIQ_KEY\x017F000001295E5FFD2B2795BE99AB0000\x02WAIT\x01true\x02TAGS\x01TagA\x02";
const CLUSTER: &[u8] = b"CLUSTER\x01DefaultCluster";
const TOPIC: &str = "BenchmarkTopic";
const LIMITS: RecordLimits = RecordLimits::of_body(4 << 20);
/// Java's getMessageStoreConfig defaults.
const READ_LIMITS: ReadLimits = ReadLimits {
    memory_bytes_max: 256 << 10,
    memory_count_max: 32,
    disk_bytes_max: 64 << 10,
    disk_count_max: 8,
    in_memory_bytes: 8 << 30,
};

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}

fn config(root: &Path) -> StoreConfig {
    StoreConfig::new(root)
}

/// A store with its agents; both end when dropped.
struct Running {
    store: Arc<Store>,
    is_stopping: Arc<AtomicBool>,
    agents: Vec<JoinHandle<()>>,
    _dir: TempDir,
}

impl Running {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a folder in TMPDIR");
        let (store, _) = Store::open(config(dir.path()), now_ms()).expect("a fresh store opens");
        let is_stopping = Arc::new(AtomicBool::new(false));
        let flush = |store: &Store| store.wait_flush(store.flush_turn(now_ms()));
        let files = |store: &Store| store.wait_files(store.files_turn(now_ms()));
        let agents = [flush as fn(&Store), files].map(|turn| {
            let (store, is_stopping) = (Arc::clone(&store), Arc::clone(&is_stopping));
            thread::spawn(move || {
                while !is_stopping.load(Ordering::Relaxed) {
                    turn(&store);
                }
            })
        });
        Self { store, is_stopping, agents: agents.into(), _dir: dir }
    }

    /// Only the append's own time; encoding is not in it. Pushed once, placed as often as asked.
    fn append(&self, queue: &Arc<ConsumeQueue>, count: usize, turns: u64) -> Duration {
        let mut batch = AppendBatch::default();
        let mut took = Duration::ZERO;
        for _ in 0..turns {
            loop {
                push(&mut batch, queue, count);
                let started = Instant::now();
                let outcome = self.store.append(&mut batch, now_ms());
                let elapsed = started.elapsed();
                batch.clear();
                if outcome.units_placed == count {
                    took += elapsed;
                    break;
                }
                // The next file is not ready, or the queues' files are behind.
                assert!(outcome.error.is_some());
                thread::sleep(Duration::from_millis(1));
            }
        }
        took
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        self.store.wake_agents();
        for agent in self.agents.drain(..) {
            agent.join().expect("an agent does not panic");
        }
        self.store.close(now_ms()).expect("the store closes");
    }
}

fn record<'a>(body: &'a [u8], properties: &'a [&'a [u8]]) -> NewRecord<'a> {
    NewRecord {
        topic: TOPIC,
        queue_id: 0,
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

fn push(batch: &mut AppendBatch, queue: &Arc<ConsumeQueue>, count: usize) {
    let body = [b'x'; 1024];
    let pieces = properties::stored(CLIENT_TEXT, CLUSTER);
    for _ in 0..count {
        batch.push(&record(&body, &pieces), 1, queue, LIMITS).expect("within the limits");
    }
}

fn encode_record(c: &mut Criterion) {
    let body = [b'x'; 1024];
    let pieces = properties::stored(CLIENT_TEXT, CLUSTER);
    let mut buffer = Vec::with_capacity(1 << 16);
    encode::encode(&record(&body, &pieces), &mut buffer);
    let mut group = c.benchmark_group("record");
    group.throughput(Throughput::Bytes(buffer.len() as u64));
    group.bench_function("properties_check_encode_1k", |b| {
        b.iter(|| {
            buffer.clear();
            let pieces = properties::stored(black_box(CLIENT_TEXT), CLUSTER);
            let record = record(black_box(&body), &pieces);
            check(&record, LIMITS).expect("within the limits");
            encode::encode(&record, &mut buffer)
        });
    });
    group.finish();
}

fn append(c: &mut Criterion) {
    let running = Running::start();
    let queue = running.store.queue_or_create(TOPIC, 0);
    let mut group = c.benchmark_group("append_1k");
    // Short, because every second is gigabytes.
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(20);
    for count in [1, 16, 200] {
        group.throughput(Throughput::Elements(count as u64));
        group.bench_function(BenchmarkId::new("records_a_turn", count), |b| {
            b.iter_custom(|turns| running.append(&queue, count, turns));
        });
    }
    group.finish();
}

fn read(c: &mut Criterion) {
    let running = Running::start();
    let queue = running.store.queue_or_create(TOPIC, 0);
    running.append(&queue, 200, 1_000);
    // The older entries are in the queue's file by now or soon, the newest in its tail.
    thread::sleep(Duration::from_secs(2));
    let last = queue.max() - 32;
    let mut group = c.benchmark_group("read_32");
    group.throughput(Throughput::Elements(32));
    for (name, from) in [("oldest", 0), ("newest", last)] {
        let mut entries = Vec::new();
        group.bench_function(BenchmarkId::new("queue_entries", name), |b| {
            b.iter(|| {
                entries.clear();
                queue.read(black_box(from), 32, &mut entries).expect("the queue's files are there");
                assert_eq!(entries.len(), 32);
            });
        });
        group.bench_function(BenchmarkId::new("records", name), |b| {
            b.iter(|| {
                let read = running.store.read(&queue, black_box(from as i64), 32, &READ_LIMITS, &mut |_| true);
                assert_eq!(read.count, 32);
                read.slices.len()
            });
        });
    }
    group.finish();
}

/// A key put into the index, the walk over the log that finds it included: the file agent's turn by hand, at a time that
/// stands still, so that it does nothing else.
fn index_put(c: &mut Criterion) {
    const RECORDS: u64 = 2_000;
    let dir = tempfile::tempdir().expect("a folder in TMPDIR");
    let mut now_ms = now_ms();
    let (store, _) = Store::open(config(dir.path()), now_ms).expect("a fresh store opens");
    let queue = store.queue_or_create(TOPIC, 0);
    let mut batch = AppendBatch::default();
    let mut round = || {
        // Whatever else is due, long before the part that counts.
        now_ms += 60_000;
        store.flush_turn(now_ms);
        while store.files_turn(now_ms) == 0 {}
        let mut left = RECORDS as usize;
        while left > 0 {
            push(&mut batch, &queue, left.min(200));
            let placed = store.append(&mut batch, now_ms).units_placed;
            batch.clear();
            left -= placed;
            if placed == 0 {
                // The next log file is wanted. What is indexed now is not counted, once in many rounds.
                store.files_turn(now_ms);
            }
        }
        let started = Instant::now();
        while store.files_turn(now_ms) == 0 {}
        started.elapsed()
    };
    let mut group = c.benchmark_group("index");
    group.throughput(Throughput::Elements(RECORDS)).sample_size(20);
    group.bench_function("put_2000_of_1k", |b| b.iter_custom(|rounds| (0..rounds).map(|_| round()).sum()));
    group.finish();
    store.close(now_ms).expect("the store closes");
}

criterion_group!(benches, encode_record, append, index_put, read);
criterion_main!(benches);
