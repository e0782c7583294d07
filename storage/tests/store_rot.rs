//! Bits that flip on the disk: entries of a queue, queue offsets in records, the log after a clean stop.

mod common;

use common::{bodies, check_all, entries, open, open_told, send};
use ringmq_storage::read::ReadLimits;
use ringmq_storage::record::decode::Record;
use ringmq_storage::store::Store;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const LOG_FILE_BYTES: u64 = 65_536;
const QUEUE_FILE_BYTES: u64 = 1000;
const ENTRY_BYTES: u64 = 20;
const COUNT: usize = 130;

/// As the node's agents would leave it after a while.
fn run_agents(store: &Store) {
    store.flush_turn(10_000);
    for step in 0..60 {
        store.files_turn(10_000 + 2000 * step);
    }
}

fn stop(store: Arc<Store>, is_clean: bool) {
    run_agents(&store);
    if is_clean {
        store.close(1).unwrap();
    }
    drop(store);
}

/// A stopped store with two queues of three files each.
fn stopped(is_clean: bool, body: impl Fn(usize) -> String) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let store = open(&root);
    for number in 0..2 * COUNT {
        send(&store, "T", (number % 2) as i32, body(number).as_bytes(), 1000);
    }
    stop(store, is_clean);
    (dir, root)
}

/// Bodies as a consumer gets them.
fn pulled(store: &Store, queue_id: i32) -> Vec<String> {
    let queue = store.queue("T", queue_id).unwrap();
    let limits = ReadLimits {
        memory_bytes_max: 256 * 1024,
        memory_count_max: 32,
        disk_bytes_max: 64 * 1024,
        disk_count_max: 8,
        in_memory_bytes: u64::MAX,
    };
    let (mut got, mut next) = (Vec::new(), queue.min() as i64);
    while next < queue.max() as i64 {
        let read = store.read(&queue, next, 32, &limits, &mut |_| true);
        assert!(read.next_offset > next, "at {next}");
        next = read.next_offset;
        for slice in &read.slices {
            let mut rest = &slice[..];
            while !rest.is_empty() {
                let record = Record::parse(rest).unwrap();
                got.push(String::from_utf8_lossy(record.body).into_owned());
                rest = &rest[record.bytes.len()..];
            }
        }
    }
    got
}

/// Both queues, without what `lost` says of queue 0.
fn check_bodies(store: &Store, body: impl Fn(usize) -> String, lost: Option<usize>, what: &str) {
    for queue in 0..2 {
        let got = pulled(store, queue as i32);
        let mut want: Vec<String> = (0..COUNT).map(|number| body(2 * number + queue)).collect();
        if let Some(lost) = lost.filter(|_| queue == 0) {
            want.remove(lost);
        }
        assert_eq!(got.len(), want.len(), "{what}, queue {queue}");
        assert!(got == want, "{what}, queue {queue}");
    }
}

fn flip(path: &Path, at: u64, bits: u8) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ bits], at).unwrap();
}

/// One bit of one byte of an entry of queue 0.
fn flip_entry(root: &Path, number: usize, at: u64, bits: u8) {
    let position = number as u64 * ENTRY_BYTES + at;
    let name = format!("{:020}", position / QUEUE_FILE_BYTES * QUEUE_FILE_BYTES);
    flip(&root.join("consumequeue/T/0").join(name), position % QUEUE_FILE_BYTES, bits);
}

fn write_log(root: &Path, log_offset: u64, bytes: &[u8]) {
    let name = format!("{:020}", log_offset / LOG_FILE_BYTES * LOG_FILE_BYTES);
    let file = OpenOptions::new().write(true).open(root.join("commitlog").join(name)).unwrap();
    file.write_all_at(bytes, log_offset % LOG_FILE_BYTES).unwrap();
}

fn short(number: usize) -> String {
    format!("message {number}")
}

fn long(number: usize) -> String {
    format!("message {number} {}", "x".repeat(1000))
}

#[test]
fn a_flipped_bit_in_an_entry_is_mended_by_the_next_start() {
    let bytes = [("offset, far", 2, 4), ("offset, near", 7, 1), ("size", 11, 1), ("tags", 15, 1), ("sign", 0, 128)];
    for is_clean in [true, false] {
        let (_dir, root) = stopped(is_clean, short);
        for (what, at, bits) in bytes {
            for number in [0, 30, 49, 50, 75, 100, 128, 129] {
                let what = format!("{what} of entry {number}, clean: {is_clean}");
                flip_entry(&root, number, at, bits);
                let (store, told) = open_told(&root);
                check_bodies(&store, short, None, &format!("{what}: {told}"));
                check_all(&store);
                stop(store, is_clean);
                let (store, told) = open_told(&root);
                assert!(!told.contains("rebuilt") && !told.contains("added"), "{what}: {told}");
                stop(store, is_clean);
            }
        }
    }
}

/// The start reads the end of the log only, but who reads an entry finds that it is wrong.
#[test]
fn a_flipped_bit_far_back_is_met_by_a_pull_and_mended_by_the_next_start() {
    for (what, at) in [("offset", 7), ("size", 11)] {
        let (_dir, root) = stopped(true, long);
        flip_entry(&root, 10, at, 1);
        let (store, told) = open_told(&root);
        check_bodies(&store, long, Some(10), &format!("{what}: {told}"));
        stop(store, true);
        assert!(root.join("ringmq-wrong-queues").exists());
        let (store, told) = open_told(&root);
        assert!(told.contains("queue 0 of T had wrong entries"), "{told}");
        check_bodies(&store, long, None, what);
        check_all(&store);
        stop(store, true);
        assert!(!root.join("ringmq-wrong-queues").exists());
    }
}

/// A rebuild passes over the damage only, not over the rest of the file.
#[test]
fn a_record_that_rotted_far_back_takes_no_other_with_it() {
    for (what, at) in [("size", 0), ("magic", 4), ("log offset", 28)] {
        let (_dir, root) = stopped(true, long);
        let store = open(&root);
        let rotten = entries(&store.queue("T", 0).unwrap())[10];
        stop(store, true);
        write_log(&root, rotten.log_offset + at, &[0x55; 4]);
        for start in 0..3 {
            let store = open(&root);
            let got = pulled(&store, 0);
            let mut others = got.clone();
            others.dedup();
            others.retain(|body| *body == long(body.split(' ').nth(1).unwrap().parse().unwrap()) && *body != long(20));
            assert_eq!(others.len(), COUNT - 1, "{what}, start {start}: {}", got.len());
            assert_eq!(pulled(&store, 1).len(), COUNT, "{what}");
            stop(store, true);
        }
    }
}

#[test]
fn a_rotten_queue_offset_takes_one_message() {
    type Rot = fn(u64) -> u64;
    let numbers: [(&str, Rot); 4] =
        [("far up", |q| q + (1 << 33)), ("up", |q| q + 8), ("to the first", |_| 0), ("down", |q| q / 2)];
    for is_removed in [false, true] {
        for (what, rotten) in numbers {
            for number in [0usize, 1, 40, 128, 129] {
                // Nothing but the last number says where a queue that is gone had ended.
                let is_lost = is_removed && number == 129;
                if rotten(number as u64) == number as u64 || is_lost {
                    continue;
                }
                let what = format!("{what}, {number}, queues removed: {is_removed}");
                let (_dir, root) = stopped(false, short);
                let store = open(&root);
                let record = entries(&store.queue("T", 0).unwrap())[number];
                stop(store, false);
                write_log(&root, record.log_offset + 20, &rotten(number as u64).to_be_bytes());
                if is_removed {
                    std::fs::remove_dir_all(root.join("consumequeue")).unwrap();
                }
                for _ in 0..2 {
                    let (store, told) = open_told(&root);
                    let queue = store.queue("T", 0).unwrap();
                    let got = bodies(&store, "T", 0);
                    let wanted = |n: usize| n == number || got.contains(&short(2 * n));
                    let missing: Vec<usize> = (0..COUNT).filter(|n| !wanted(*n)).collect();
                    assert!(missing.is_empty(), "{what}: {missing:?} {told}");
                    let max = if number == COUNT - 1 { COUNT - 1..=COUNT + 8 } else { COUNT..=COUNT };
                    assert!(max.contains(&(queue.max() as usize)), "{what}: {} {told}", queue.max());
                    assert_eq!(bodies(&store, "T", 1).len(), COUNT, "{what}");
                    drop(queue);
                    stop(store, false);
                }
            }
        }
    }
}

/// After a clean stop no record is torn: what lies behind one that is not whole is worth keeping.
#[test]
fn what_lies_behind_a_rotten_record_is_kept_after_a_clean_stop() {
    let (_dir, root) = stopped(true, short);
    let store = open(&root);
    let rotten = entries(&store.queue("T", 0).unwrap())[100];
    let end = store.log_max();
    stop(store, true);
    write_log(&root, rotten.log_offset + 90, b"?");
    let before = std::fs::read(root.join("commitlog/00000000000000000000")).unwrap();
    for start in 0..2 {
        let (store, told) = open_told(&root);
        assert_eq!(told.contains("has been moved to"), start == 0, "{told}");
        assert_eq!((store.log_max(), bodies(&store, "T", 0).len()), (rotten.log_offset, 100));
        check_all(&store);
        stop(store, true);
    }
    let aside = root.join(format!("commitlog-set-aside-{}", rotten.log_offset));
    let kept = std::fs::read(aside.join(format!("rest-of-{:020}-from-{}", 0, rotten.log_offset))).unwrap();
    assert!(before[rotten.log_offset as usize..].starts_with(&kept));
    assert_eq!(kept.len() as u64, end - rotten.log_offset);
}
