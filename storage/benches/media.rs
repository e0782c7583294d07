//! The media side by side: how records of 1 KiB reach log files of 1 GiB that are really rolled, with the flush, commit and
//! file agents running as in a node. One line a run:
//!
//! ```text
//! records/s · CPU of the whole process a record · append call p50 to max · slowest of the 100 calls around a roll · bytes
//! the disk got for a byte of log
//! ```
//! `cargo bench -p ringmq-storage --bench media -- [medium=write,mapped,pool] [turn=1,16,200] [gib=3.5] [flush_ms=200]
//! [warm=no,yes] [rounds=1] [rate=0]` with `rate` in records/s, 0 for flat out. TMPDIR says where the files lie.

use hdrhistogram::Histogram;
use ringmq_storage::append::AppendBatch;
use ringmq_storage::error::AppendError;
use ringmq_storage::flush::{FlushKeys, Medium, PoolSize, Promise};
use ringmq_storage::index::IndexConfig;
use ringmq_storage::record::{NewRecord, RecordLimits};
use ringmq_storage::store::{Store, StoreConfig};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

const LIMITS: RecordLimits = RecordLimits::of_body(4 << 20);
const AROUND: usize = 50;
const FILE_BYTES: u64 = 1 << 30;

fn now_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}

/// Of this process, all threads.
fn cpu() -> Duration {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF).expect("always there");
    [usage.user_time(), usage.system_time()]
        .iter()
        .map(|time| Duration::from_micros((time.tv_sec() * 1_000_000 + time.tv_usec()) as u64))
        .sum()
}

/// Bytes that this process has made dirty for the disk, as the kernel counts them.
fn disk_bytes() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").expect("Linux");
    io.lines().find_map(|line| line.strip_prefix("write_bytes: ")).and_then(|text| text.parse().ok()).unwrap_or(0)
}

struct Run {
    medium: String,
    turn: usize,
    warm: bool,
    bytes: u64,
    flush_ms: u64,
    rate: u64,
}

fn run(plan: &Run) -> String {
    let dir = tempfile::tempdir().expect("a folder in TMPDIR");
    let promise = match plan.medium.as_str() {
        "pool" => Promise::Pool(PoolSize { buffer_count: 3, fast_fail: false }),
        _ => Promise::Async,
    };
    let medium = if plan.medium == "mapped" { Medium::Mapped } else { Medium::Write };
    let is_warm = plan.warm || medium == Medium::Mapped;
    let (store, _) = Store::open(
        StoreConfig {
            commit_log_file_bytes: FILE_BYTES,
            promise,
            medium,
            keys: FlushKeys {
                interval_ms: plan.flush_ms,
                warm_pages: is_warm.then_some(4096),
                warm_lock: plan.warm,
                ..FlushKeys::default()
            },
            index: IndexConfig { is_enabled: false, ..IndexConfig::default() },
            ..StoreConfig::new(dir.path())
        },
        now_ms(),
    )
    .expect("a fresh store opens");
    let is_done = AtomicBool::new(false);
    let line = std::thread::scope(|scope| {
        let agents: [fn(&Store); 3] = [
            |store| store.wait_flush(store.flush_turn(now_ms())),
            |store| store.wait_files(store.files_turn(now_ms())),
            |store| store.wait_commit(store.commit_turn(now_ms())),
        ];
        for agent in agents {
            let (store, is_done) = (&store, &is_done);
            scope.spawn(move || {
                while !is_done.load(Ordering::Relaxed) {
                    agent(store);
                }
            });
        }
        // The first files, and some of the preheating.
        std::thread::sleep(Duration::from_secs(if is_warm { 4 } else { 1 }));
        let line = appends(&store, plan);
        is_done.store(true, Ordering::Relaxed);
        store.wake_agents();
        line
    });
    store.close(now_ms()).expect("closes");
    line
}

fn appends(store: &Store, plan: &Run) -> String {
    let body = vec![b'x'; 1024];
    let queues: Vec<_> = (0..8).map(|queue_id| store.queue_or_create("BenchmarkTest", queue_id)).collect();
    let mut took = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).expect("good bounds");
    let mut recent = VecDeque::with_capacity(AROUND);
    let (mut around, mut around_left, mut worst) = (0, 0, Vec::new());
    let (mut file, mut waits, mut count) = (0, 0u64, 0u64);
    let mut batch = AppendBatch::default();
    let (began, cpu_before, disk_before) = (Instant::now(), cpu(), disk_bytes());
    while store.log_max() < plan.bytes {
        if let Some(due) = (count * 1_000_000_000).checked_div(plan.rate) {
            std::thread::sleep(Duration::from_nanos(due).saturating_sub(began.elapsed()));
        }
        batch.clear();
        for index in 0..plan.turn {
            let record = NewRecord {
                topic: "BenchmarkTest",
                queue_id: (index % 8) as i32,
                flag: 0,
                sys_flag: 0,
                born_timestamp: 1,
                born_host: ([127, 0, 0, 1], 40_000).into(),
                store_host: ([127, 0, 0, 1], 10_911).into(),
                reconsume_times: 0,
                prepared_offset: 0,
                body: &body,
                properties: &[b"UNIQ_KEY\x017F000001295E5FFD2B2795BE99AB0000\x02CLUSTER\x01DefaultCluster"],
            };
            batch.push(&record, 0, &queues[index % 8], LIMITS).expect("a good record");
        }
        let call = Instant::now();
        let now = now_ms();
        loop {
            match store.append(&mut batch, now).error {
                None => break,
                Some(AppendError::NoFileYet { .. }) => {
                    waits += 1;
                    std::thread::sleep(Duration::from_micros(200));
                }
                Some(error) => panic!("{error}"),
            }
        }
        let ns = call.elapsed().as_nanos() as u64;
        count += plan.turn as u64;
        took.saturating_record(ns);
        let at = batch.placed(plan.turn - 1)[0].log_offset / FILE_BYTES;
        if at != file {
            file = at;
            around = recent.iter().copied().max().unwrap_or(0);
            around_left = AROUND;
        }
        if around_left > 0 {
            around = around.max(ns);
            around_left -= 1;
            if around_left == 0 {
                worst.push(around);
            }
        }
        if recent.len() == AROUND {
            recent.pop_front();
        }
        recent.push_back(ns);
    }
    let seconds = began.elapsed().as_secs_f64();
    let cpu_ns = (cpu() - cpu_before).as_nanos() as f64 / count as f64;
    // What the agents still owe.
    while store.log_flushed() < store.log_max() && plan.medium != "pool" {
        std::thread::sleep(Duration::from_millis(10));
    }
    let disk = (disk_bytes() - disk_before) as f64 / store.log_max() as f64;
    let us = |ns: u64| ns as f64 / 1000.0;
    let at = |quantile| us(took.value_at_quantile(quantile));
    let rolls: Vec<String> = worst.iter().map(|ns| format!("{:.0}", us(*ns))).collect();
    format!(
        "| {}{} | {} | {:.0} | {:.2} | {:.1} | {:.1} | {:.1} | {:.0} | {:.0} | {} | {:.2} | {waits} |",
        plan.medium,
        if plan.warm { ", warm" } else { "" },
        plan.turn,
        count as f64 / seconds / 1000.0,
        cpu_ns / 1000.0,
        at(0.5),
        at(0.99),
        at(0.999),
        at(0.9999),
        us(took.max()),
        rolls.join(" "),
        disk,
    )
}

fn main() {
    let given: HashMap<String, String> = std::env::args()
        .skip(1)
        .filter_map(|arg| arg.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned())))
        .collect();
    let of = |key: &str, default: &str| given.get(key).cloned().unwrap_or(default.to_owned());
    let number = |key: &str, default: &str| of(key, default).parse::<f64>().expect("a number");
    println!(
        "| medium | records a turn | 1000 records/s | CPU µs a record | call p50 µs | p99 | p99.9 | p99.99 | max | slowest of 100 \
         around each roll | disk bytes a byte | waits |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    for _ in 0..number("rounds", "1") as u32 {
        for turn in of("turn", "1,16,200").split(',') {
            for medium in of("medium", "write,mapped,pool").split(',') {
                for warm in of("warm", "no").split(',') {
                    let plan = Run {
                        medium: medium.to_owned(),
                        turn: turn.parse().expect("a number"),
                        warm: warm == "yes",
                        bytes: (number("gib", "3.5") * FILE_BYTES as f64) as u64,
                        flush_ms: number("flush_ms", "200") as u64,
                        rate: number("rate", "0") as u64,
                    };
                    println!("{}", run(&plan));
                }
            }
        }
    }
}
