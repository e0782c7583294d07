//! Random damage to any files of a store: a start never panics. It refuses with a path, or gives a store that can be read,
//! written, stopped and started again.

mod common;

use common::{config, message, queues, snapshot};
use ringmq_storage::append::AppendBatch;
use ringmq_storage::read::ReadLimits;
use ringmq_storage::store::{Store, TimeBoundary};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % end.max(1)
    }
}

fn send(store: &Store, number: u64) -> bool {
    let mut batch = AppendBatch::default();
    for topic in ["A", "B"] {
        let queue = store.queue_or_create(topic, (number % 3) as i32);
        let body = vec![b'x'; 1 + (number * 37 % 700) as usize];
        batch.push(&message(topic, (number % 3) as i32, &body, &[b"k\x01v"]), 0, &queue, common::LIMITS).unwrap();
    }
    store.append(&mut batch, 1_000_000 + number * 100).error.is_none()
}

fn damage(random: &mut Random, files: &mut BTreeMap<PathBuf, Vec<u8>>) -> String {
    let index = random.below(files.len() as u64) as usize;
    let path = files.keys().nth(index).unwrap().clone();
    let bytes = files.get_mut(&path).unwrap();
    // Mostly where something is: files are long and empty.
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1) as u64;
    let at = random.below(used + 30).min(bytes.len() as u64) as usize;
    let end = (at + 1 + random.below(40) as usize).min(bytes.len());
    let what = match random.below(8) {
        0 => {
            files.remove(&path);
            "removed"
        }
        1 => {
            bytes.truncate(at);
            "cut"
        }
        2 => {
            bytes[at..].fill(0);
            "zeros to the end"
        }
        3 => {
            bytes[at..end].fill(0);
            "zeros"
        }
        4 => {
            bytes[at..end].fill(0xFF);
            "ones"
        }
        5 => {
            let from = random.below(used) as usize;
            let from = from.min(bytes.len() - (end - at));
            bytes.copy_within(from..from + (end - at), at);
            "bytes of elsewhere"
        }
        _ => {
            for byte in &mut bytes[at..end] {
                *byte = random.below(256) as u8;
            }
            "garbage"
        }
    };
    format!("{} {what} at {at}", path.display())
}

fn use_store(root: &Path) -> Result<(), String> {
    let (store, report) = Store::open(config(root), 1).map_err(|e| e.to_string())?;
    let limits = ReadLimits {
        memory_bytes_max: 1 << 20,
        memory_count_max: 32,
        disk_bytes_max: 1 << 20,
        disk_count_max: 8,
        in_memory_bytes: 100_000,
    };
    for queue in queues(&store) {
        let mut from = queue.min() as i64;
        while from < queue.max() as i64 {
            let read = store.read(&queue, from, 32, &limits, &mut |_| true);
            assert!(read.next_offset > from, "{:?} at {from}: {:?}", read.status, report.lines);
            from = read.next_offset;
        }
        store.offset_by_time(&queue, 1_000_500, TimeBoundary::Upper);
    }
    let before: Vec<_> = ["A", "B"].map(|topic| store.queue_or_create(topic, 0).max()).into();
    assert!(send(&store, 0), "{:?}", report.lines);
    for (topic, before) in ["A", "B"].iter().zip(before) {
        assert_eq!(store.queue_or_create(topic, 0).max(), before + 1);
        assert_eq!(
            store.store_time(&store.queue_or_create(topic, 0), before).max(1_000_000),
            store.store_time(&store.queue_or_create(topic, 0), before)
        );
    }
    store.files_turn(1);
    store.files_turn(100_000);
    store.close(1).map_err(|e| e.to_string())
}

#[test]
fn a_start_on_a_damaged_store_never_panics() {
    let seed = std::env::var("RINGMQ_SEED").ok().and_then(|seed| seed.parse().ok());
    let rounds = std::env::var("RINGMQ_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(150u64);
    let seed: u64 = seed.unwrap_or_else(|| std::process::id().into());
    println!("RINGMQ_SEED={seed}");
    let mut random = Random((seed << 20) | 1);
    let dir = tempfile::tempdir().unwrap();
    let mut stores = Vec::new();
    for is_clean in [true, false] {
        let root = dir.path().join(format!("made-{is_clean}"));
        let (store, _) = Store::open(config(&root), 1).unwrap();
        for number in 0..250 {
            send(&store, number);
        }
        store.files_turn(1);
        store.files_turn(100_000);
        send(&store, 251);
        if is_clean {
            store.close(1).unwrap();
        }
        drop(store);
        stores.push(snapshot(&root));
    }
    let mut refused = 0;
    for round in 0..rounds {
        let mut files = stores[(round % 2) as usize].clone();
        let told: Vec<String> = (0..=random.below(3)).map(|_| damage(&mut random, &mut files)).collect();
        println!("round {round}: {}", told.join("; "));
        let root = dir.path().join(format!("round-{round}"));
        for (path, bytes) in &files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        match use_store(&root) {
            Ok(()) => use_store(&root).expect("a second start of what the first has made good"),
            Err(e) => {
                println!("refused: {e}");
                assert!(e.contains(root.to_str().unwrap()) || e.contains("mappedFileSize"), "{e}");
                refused += 1;
            }
        }
        std::fs::remove_dir_all(&root).unwrap();
    }
    println!("{refused} of {rounds} refused");
    assert!(refused * 2 < rounds);
}
