//! kill -9 at any moment in the modes where consumers see less than what is written: what was seen is there again, the
//! rest is a clean end, and nobody's offset points behind it.
//!
//! The parent starts this test binary again as a child that appends with all agents running, tells how far a consumer
//! could read, and dies by SIGKILL. The parent opens the store and goes on with it.

mod common;

use common::{LIMITS, config, entries, message, queues, with_record};
use ringmq_storage::append::AppendBatch;
use ringmq_storage::error::AppendError;
use ringmq_storage::flush::{FlushKeys, Medium, PoolSize, Promise};
use ringmq_storage::store::{Store, StoreConfig};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

const ROOT: &str = "RINGMQ_MODE_ROOT";
const MODE: &str = "RINGMQ_MODE";

fn config_of(root: &Path, mode: &str) -> StoreConfig {
    let pool = |buffer_count, fast_fail| Promise::Pool(PoolSize { buffer_count, fast_fail });
    let promise = match mode {
        "mapped" => Promise::Async,
        "sync" | "mapped-sync" => Promise::Sync,
        "pool" => pool(2, false),
        "pool-fast-fail" => pool(2, true),
        other => panic!("{other}"),
    };
    let keys = FlushKeys {
        interval_ms: 3,
        commit_interval_ms: 5,
        commit_thorough_interval_ms: 20,
        queue_interval_ms: 3,
        queue_thorough_interval_ms: 10,
        ..FlushKeys::default()
    };
    let medium = if mode.starts_with("mapped") { Medium::Mapped } else { Medium::Write };
    StoreConfig { promise, medium, keys, ..config(root) }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as u64
}

/// Does nothing when it is not started by the test below.
#[test]
fn child() {
    let Ok(root) = std::env::var(ROOT) else { return };
    let (store, _) = Store::open(config_of(root.as_ref(), &std::env::var(MODE).unwrap()), now_ms()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                store.wait_flush(store.flush_turn(now_ms()));
            }
        });
        scope.spawn(|| {
            loop {
                store.wait_files(store.files_turn(now_ms()));
            }
        });
        if store.uses_pool() {
            scope.spawn(|| {
                loop {
                    store.wait_commit(store.commit_turn(now_ms()));
                }
            });
        }
        let queues: Vec<_> = (0..3).map(|queue_id| store.queue_or_create("T", queue_id)).collect();
        let mut batch = AppendBatch::default();
        for turn in 0usize.. {
            batch.clear();
            let append = |batch: &mut AppendBatch| loop {
                match store.append(batch, now_ms()).error {
                    None => return,
                    Some(AppendError::NoFileYet { .. }) => std::thread::sleep(Duration::from_millis(1)),
                    Some(AppendError::Busy) => return std::thread::yield_now(),
                    Some(error) => panic!("{error}"),
                }
            };
            for unit in 0..=turn % 5 {
                let body = format!("{turn}.{unit} {}", "x".repeat(turn * 131 % 1500));
                batch
                    .push(&message("T", (unit % 3) as i32, body.as_bytes(), &[]), 0, &queues[unit % 3], LIMITS)
                    .unwrap();
            }
            append(&mut batch);
            let seen: Vec<String> = queues.iter().map(|queue| queue.max().to_string()).collect();
            let mut out = std::io::stdout().lock();
            out.write_all(format!("\nseen {}\n", seen.join(" ")).as_bytes()).expect("the parent listens");
        }
    });
}

#[test]
fn what_a_consumer_saw_survives_kill_9_in_every_mode() {
    for mode in ["sync", "pool", "pool-fast-fail", "mapped", "mapped-sync"] {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("store");
        for round in 0..6u64 {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["child", "--exact", "--nocapture"])
                .env(ROOT, &root)
                .env(MODE, mode)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let out = BufReader::new(child.stdout.take().unwrap());
            let killer = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(30 + 77 * round));
                child.kill().unwrap();
                child.wait().unwrap()
            });
            let mut seen = vec![0; 3];
            for line in out.split(b'\n') {
                let line = String::from_utf8(line.unwrap()).unwrap();
                if let Some(offsets) = line.strip_prefix("seen ") {
                    let offsets: Vec<u64> = offsets.split(' ').filter_map(|offset| offset.parse().ok()).collect();
                    if offsets.len() == 3 {
                        seen = offsets;
                    }
                }
            }
            let status = killer.join().unwrap();
            assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "it died of something else");

            let open = || Store::open(config_of(&root, mode), now_ms()).unwrap_or_else(|e| panic!("{e}"));
            let (store, report) = open();
            assert!(
                !report.lines.iter().any(|line| line.contains("removed")),
                "a file without a record: {:?}",
                report.lines
            );
            println!("{mode} {round} {seen:?}: {}", report.lines.join("; "));
            let mut ends = Vec::new();
            for queue in queues(&store) {
                for (offset, entry) in (0..).zip(entries(&queue)) {
                    with_record(&store, &entry, |record| assert_eq!(record.queue_offset, offset));
                }
                ends.push((queue.queue_id, queue.max()));
                let seen = seen[queue.queue_id as usize];
                assert!(queue.max() >= seen, "{mode} {round}: {} of {seen} in {}", queue.max(), queue.queue_id);
            }
            let is_there = |id: usize| ends.iter().any(|(queue_id, _)| *queue_id as usize == id);
            assert!((0..3).all(|id| seen[id] == 0 || is_there(id)), "{mode} {round}: {ends:?}");
            let log_end = store.log_max();
            drop(store);
            let (store, report) = open();
            let again: Vec<_> = queues(&store).iter().map(|queue| (queue.queue_id, queue.max())).collect();
            ends.sort_unstable();
            let mut sorted = again.clone();
            sorted.sort_unstable();
            assert_eq!((store.log_max(), &sorted), (log_end, &ends), "a second recovery changes nothing");
            assert!(!report.lines.iter().any(|line| line.contains("zeroed")), "{:?}", report.lines);
            if round % 2 == 1 {
                store.close(now_ms()).unwrap();
            }
        }
    }
}
