//! Bits that flip on the disk: entries of a queue, queue offsets in records, the log after a clean stop.

mod common;

use common::{LIMITS, bodies, check_all, config, entries, message, open, open_told, send};
use ringmq_storage::append::AppendBatch;
use ringmq_storage::flush::{Medium, Promise};
use ringmq_storage::read::ReadLimits;
use ringmq_storage::record::decode::Record;
use ringmq_storage::store::{Store, StoreConfig};
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

/// What contradicts its neighbours is seen without its record.
#[test]
fn an_entry_out_of_order_far_back_is_mended_by_the_start() {
    for number in [10, 60] {
        let (_dir, root) = stopped(true, long);
        flip_entry(&root, number, 5, 0x10);
        let (store, told) = open_told(&root);
        check_bodies(&store, long, None, &told);
        check_all(&store);
        stop(store, true);
        assert!(!root.join("ringmq-wrong-queues").exists());
    }
}

/// The start reads the end of the log only, but who reads an entry finds that it is wrong.
#[test]
fn a_flipped_bit_far_back_is_met_by_a_pull_and_mended_by_the_next_start() {
    // Of the size, some grow and some shrink it.
    for (what, at, bits) in [("offset", 7, 1), ("size", 11, 1), ("size", 11, 2), ("size", 11, 4), ("size", 11, 8)] {
        let (_dir, root) = stopped(true, long);
        flip_entry(&root, 10, at, bits);
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

/// A client that can not read a record passes over the rest of the answer, and one that believes a queue offset beyond the
/// end commits it.
#[test]
fn a_record_that_no_client_should_get_is_passed_by() {
    let rots: [(&str, u64, &[u8]); 5] = [
        ("body length", 84, &[0, 0, 5, 0]),
        ("body length, huge", 84, &[0x7F; 4]),
        ("queue id", 12, &[0, 0, 0, 5]),
        ("queue offset", 20, &[0x40]),
        ("queue offset, near", 26, &[0x10]),
    ];
    for (what, at, bytes) in rots {
        let (_dir, root) = stopped(true, long);
        let store = open(&root);
        let rotten = entries(&store.queue("T", 0).unwrap())[10];
        stop(store, true);
        write_log(&root, rotten.log_offset + at, bytes);
        let (store, told) = open_told(&root);
        check_bodies(&store, long, Some(10), &format!("{what}: {told}"));
        stop(store, true);
        assert!(root.join("ringmq-wrong-queues").exists(), "{what}");
        for start in 0..2 {
            let (store, told) = open_told(&root);
            let mut got = pulled(&store, 0);
            // The place of the lost one is that of the next.
            got.dedup();
            let is_lost = |number: &usize| *number == 10 && !what.contains("near");
            let want: Vec<String> =
                (0..COUNT).filter(|number| !is_lost(number)).map(|number| long(2 * number)).collect();
            assert!(got == want, "{what}, start {start}: {told}");
            stop(store, true);
            assert!(!root.join("ringmq-wrong-queues").exists(), "{what}, start {start}");
        }
    }
}

/// What it covers is not read: times that no record has reached cover what nobody has seen.
#[test]
fn a_checkpoint_ahead_of_the_log_is_not_believed() {
    for is_queue_lost in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("store");
        let store = open(&root);
        for number in 0..2 * COUNT {
            send(&store, "T", (number % 2) as i32, long(number).as_bytes(), 10_000 + number as u64);
        }
        run_agents(&store);
        drop(store);
        let checkpoint = OpenOptions::new().write(true).open(root.join("checkpoint")).unwrap();
        checkpoint.write_all_at(&[1], 0).unwrap();
        checkpoint.write_all_at(&[1], 8).unwrap();
        if is_queue_lost {
            std::fs::remove_dir_all(root.join("consumequeue/T/1")).unwrap();
        }
        let (store, told) = open_told(&root);
        assert!(told.contains("newer than any record"), "{told}");
        check_bodies(&store, long, None, &told);
        check_all(&store);
    }
}

/// It may be what a Java broker has cut off and left: it is not served, but kept.
#[test]
fn older_records_behind_damage_are_kept_aside() {
    for is_clean in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("store");
        let store = open(&root);
        for number in 0..40 {
            send(&store, "T", 0, short(number).as_bytes(), 1000);
        }
        let records = entries(&store.queue("T", 0).unwrap());
        stop(store, is_clean);
        // Store times that go back, as a Java broker's can.
        for (number, entry) in records.iter().enumerate() {
            let time = if number < 20 { 5_000_000u64 } else { 4_000_000 };
            write_log(&root, entry.log_offset + 56, &time.to_be_bytes());
        }
        write_log(&root, records[20].log_offset, &[0x55; 40]);
        let (store, told) = open_told(&root);
        let got = pulled(&store, 0);
        if is_clean {
            // The stop has noted how far the log goes.
            assert_eq!(got.len(), 40, "{told}");
            continue;
        }
        assert_eq!(got.len(), 20, "{told}");
        let aside = root.join(format!("commitlog-set-aside-{}", records[20].log_offset));
        assert_eq!(std::fs::read_dir(aside).unwrap().count(), 1, "{told}");
    }
}

/// The folder that they go to is beside the log's, which can be a mount of its own.
#[test]
fn whole_files_are_set_aside_to_another_file_system() {
    let Ok(other) = tempfile::tempdir_in("/dev/shm") else { return };
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    std::fs::create_dir(&root).unwrap();
    std::os::unix::fs::symlink(other.path(), root.join("commitlog")).unwrap();
    let store = open(&root);
    for number in 0..2 * COUNT {
        send(&store, "T", (number % 2) as i32, long(number).as_bytes(), 1_000_000 + number as u64);
    }
    let record = entries(&store.queue("T", 0).unwrap())[40];
    drop(store);
    let kept = [2, 3].map(|file| format!("{:020}", file * LOG_FILE_BYTES));
    let before = kept.each_ref().map(|name| std::fs::read(other.path().join(name)).unwrap());
    for round in 0..2 {
        write_log(&root, record.log_offset + 90, b"?");
        let (store, told) = open_told(&root);
        assert_eq!(store.queue("T", 0).unwrap().max(), 40, "{told}");
        drop(store);
        let aside = root.join(format!("commitlog-set-aside-{}", record.log_offset));
        assert!(round > 0 || told.contains("has been moved to"), "{told}");
        for (name, bytes) in kept.iter().zip(&before) {
            assert!(std::fs::read(aside.join(name)).unwrap() == *bytes, "{name}");
            assert!(!other.path().join(name).exists());
        }
    }
}

/// As one that a bad sector is in: the process would get SIGBUS for the page.
#[test]
fn a_page_that_can_not_be_read_ends_no_process() {
    for medium in [Medium::Write, Medium::Mapped] {
        let (_dir, root) = stopped(true, long);
        let config = StoreConfig { medium, ..config(&root) };
        let store = Store::open(config.clone(), 1000).unwrap().0;
        let first = root.join("commitlog/00000000000000000000");
        let bytes = std::fs::read(&first).unwrap();
        OpenOptions::new().write(true).open(&first).unwrap().set_len(16_384).unwrap();
        let (got, want) = (pulled(&store, 0), (0..COUNT).map(|number| long(2 * number)).collect::<Vec<_>>());
        assert!(got.len() < COUNT && got.len() > 90, "{}", got.len());
        assert!(got.iter().all(|body| want.contains(body)));
        assert_eq!(send(&store, "T", 0, long(260).as_bytes(), 2000), COUNT as u64);
        stop(store, false);
        std::fs::write(&first, bytes).unwrap();
        let (store, told) = Store::open(config, 1000).map(|(store, report)| (store, report.lines.join("\n"))).unwrap();
        assert_eq!(pulled(&store, 0).len(), COUNT + 1, "{told}");
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

/// Where the start reads, the queue whose entry names the record is known, whatever the record says.
#[test]
fn a_record_that_says_it_belongs_elsewhere_is_in_no_queue() {
    let rots: [(&str, u64, &[u8]); 5] = [
        ("another queue", 15, &[1]),
        ("a queue that is not there", 15, &[7]),
        ("a large queue id", 12, &[7; 4]),
        ("another topic", 89 + 10, b"U"),
        ("a queue offset", 27, &[9]),
    ];
    for is_clean in [true, false] {
        for (what, at, bytes) in rots {
            for number in [0, 40] {
                let what = format!("{what} of {number}, clean: {is_clean}");
                let body = |number: usize| format!("body {number:05}");
                let (_dir, root) = stopped(is_clean, body);
                let store = open(&root);
                let rotten = entries(&store.queue("T", 0).unwrap())[number];
                stop(store, is_clean);
                write_log(&root, rotten.log_offset + at, bytes);
                for start in 0..2 {
                    let (store, told) = open_told(&root);
                    let mut got = pulled(&store, 0);
                    got.dedup();
                    let is_mended = what.starts_with("a queue offset") && number > 0;
                    let want: Vec<String> =
                        (0..COUNT).filter(|n| *n != number || is_mended).map(|n| body(2 * n)).collect();
                    assert!(got == want, "{what}, start {start}: {told}");
                    let want: Vec<String> = (0..COUNT).map(|n| body(2 * n + 1)).collect();
                    assert!(pulled(&store, 1) == want, "{what}, start {start}: {told}");
                    // After a second crash nothing is left that tells a damaged record from a new queue.
                    if is_clean || start == 0 {
                        assert_eq!(store.topics(), ["T"], "{what}, start {start}: {told}");
                        assert!(store.queue("T", 7).is_none(), "{what}, start {start}: {told}");
                    }
                    stop(store, is_clean);
                    assert!(!root.join("ringmq-wrong-queues").exists(), "{what}, start {start}: {told}");
                }
            }
        }
    }
}

#[test]
fn a_rotten_queue_offset_is_mended_or_takes_one_message() {
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
                    // The first record of a queue has nothing before it that tells.
                    let may_miss = |n: usize| n == number && n <= 1;
                    let wanted = |n: usize| may_miss(n) || got.contains(&short(2 * n));
                    let missing: Vec<usize> = (0..COUNT).filter(|n| !wanted(*n)).collect();
                    assert!(missing.is_empty(), "{what}: {missing:?} {told}");
                    let max = match (number, is_removed) {
                        (129, true) => COUNT - 1..=COUNT + 8,
                        _ => COUNT..=COUNT,
                    };
                    assert!(max.contains(&(queue.max() as usize)), "{what}: {} {told}", queue.max());
                    assert_eq!(bodies(&store, "T", 1).len(), COUNT, "{what}");
                    drop(queue);
                    stop(store, false);
                }
            }
        }
    }
}

/// After a clean stop no record is torn: one that is not whole costs itself, wherever it is and whatever makes the start
/// read more of the log. What it was is kept.
#[test]
fn a_rotten_record_after_a_clean_stop_costs_one_message() {
    type Damage = fn(&Path, u64);
    let rots: [(&str, Damage); 5] = [
        ("body", |root, at| write_log(root, at + 90, b"?")),
        ("size", |root, at| write_log(root, at, &[0x55; 4])),
        ("magic", |root, at| write_log(root, at + 4, &[0x55; 4])),
        ("zeros", |root, at| write_log(root, at, &[0; 60])),
        ("all zeros", |root, at| write_log(root, at, &[0; 99])),
    ];
    type Reason = fn(&Path);
    let reasons: [(&str, Reason); 4] = [
        ("nothing", |_| ()),
        ("a queue lost", |root| std::fs::remove_dir_all(root.join("consumequeue/T/1")).unwrap()),
        ("all queues lost", |root| std::fs::remove_dir_all(root.join("consumequeue")).unwrap()),
        ("no note", |root| std::fs::remove_file(root.join("ringmq-clean-stop")).unwrap()),
    ];
    for body in [short as fn(usize) -> String, long] {
        for (what, rot) in rots {
            for (reason, damage) in reasons {
                for number in [0, 10, 128] {
                    let what = format!("{what}, {reason}, {number}, {} bytes", body(0).len());
                    let (_dir, root) = stopped(true, body);
                    let store = open(&root);
                    let rotten = entries(&store.queue("T", 0).unwrap())[number];
                    let end = store.log_max();
                    stop(store, true);
                    rot(&root, rotten.log_offset);
                    damage(&root);
                    for start in 0..3 {
                        let (store, told) = open_told(&root);
                        let queue = store.queue("T", 0).unwrap();
                        assert_eq!((store.log_max(), queue.max()), (end, COUNT as u64), "{what}: {told}");
                        drop(queue);
                        let got = pulled(&store, 0);
                        let lost = |n: &usize| *n != number && !got.contains(&body(2 * n));
                        let lost: Vec<usize> = (0..COUNT).filter(lost).collect();
                        assert!(lost.is_empty(), "{what}, start {start}: {lost:?} {told}");
                        // A pull looks at the records' heads only, as Java's.
                        let is_known = |text: &String| (0..2 * COUNT).any(|n| *text == body(n)) || text.contains('?');
                        assert!(got.iter().all(is_known), "{what}, start {start}");
                        assert_eq!(pulled(&store, 1).len(), COUNT, "{what}: {told}");
                        stop(store, true);
                        // Queues of what the start has filled are mended by the start, before any pull.
                        let is_filled = told.contains("those behind it are not");
                        assert!(!is_filled || !root.join("ringmq-wrong-queues").exists(), "{what}: {told}");
                    }
                }
            }
        }
    }
}

/// A crash may have torn the tail, but not what the checkpoint covers.
#[test]
fn after_a_crash_what_the_checkpoint_covers_is_no_tail() {
    for (is_covered, want) in [(true, 2 * COUNT), (false, 101)] {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("store");
        let store = open(&root);
        for number in 0..2 * COUNT as u64 {
            let now_ms = if is_covered { 1_000 + number } else { 1_000_000 + number };
            send(&store, "T", 0, short(number as usize).as_bytes(), now_ms);
        }
        if is_covered {
            send(&store, "Other", 0, b"later", 9_000);
        } else {
            store.flush_turn(10_000);
        }
        let rotten = entries(&store.queue("T", 0).unwrap())[101];
        if is_covered {
            run_agents(&store);
        }
        drop(store);
        write_log(&root, rotten.log_offset + 90, b"?");
        let (store, told) = open_told(&root);
        assert_eq!(told.contains("those behind it are not"), is_covered, "{told}");
        assert_eq!(told.contains("has been moved to"), !is_covered, "{told}");
        let queue = store.queue("T", 0).unwrap();
        assert_eq!(queue.max() as usize, want, "{told}");
        let aside = root.join(format!("commitlog-set-aside-{}", rotten.log_offset));
        assert_eq!(std::fs::read_dir(aside).unwrap().count(), 1);
    }
}

/// With SYNC_FLUSH and a kill, what was answered some seconds before is known to be on the device, without any round.
#[test]
fn after_a_kill_answered_records_are_no_tail() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let config = StoreConfig { promise: Promise::Sync, ..config(&root) };
    let store = Store::open(config.clone(), 1000).unwrap().0;
    for number in 0..60u64 {
        send(&store, "T", 0, short(number as usize).as_bytes(), 10_000 + 100 * number);
        store.flush_turn(10_000 + 100 * number);
        store.files_turn(10_000 + 100 * number);
    }
    let rotten = entries(&store.queue("T", 0).unwrap())[10];
    drop(store);
    write_log(&root, rotten.log_offset + 90, b"?");
    let (store, report) = Store::open(config, 1000).unwrap();
    let queue = store.queue("T", 0).unwrap();
    assert_eq!(queue.max(), 60, "{:?}", report.lines);
}

/// Nothing that the walk after a crash reads belongs to the queue: what its files lack must be missed all the same.
#[test]
fn a_queue_at_rest_is_mended_after_a_crash() {
    type Damage = fn(&Path);
    fn write(root: &Path, at: u64, bytes: &[u8]) {
        let path = root.join("consumequeue/T/0/00000000000000000000");
        OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
    }
    let damages: [(&str, Damage); 7] = [
        ("nothing", |_| ()),
        ("top bit of an offset", |root| write(root, 200, &[0x80])),
        ("an entry of zeros", |root| write(root, 200, &[0; 20])),
        ("high byte of an offset", |root| write(root, 205, &[0x7F])),
        ("a size", |root| write(root, 210, &[1])),
        ("garbage", |root| write(root, 600, &[0xEE; 40])),
        ("zeros", |root| write(root, 0, &[0; 1000])),
    ];
    for (what, damage) in damages {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("store");
        let store = open(&root);
        for number in 0..45 {
            send(&store, "T", 0, short(number).as_bytes(), 1000);
        }
        for number in 0..400 {
            send(&store, "Other", 0, long(number).as_bytes(), 100_000 + 100 * number as u64);
        }
        run_agents(&store);
        drop(store);
        damage(&root);
        let (store, told) = open_told(&root);
        assert!(told.contains("after a crash"), "{told}");
        let want: Vec<String> = (0..45).map(short).collect();
        assert!(pulled(&store, 0) == want, "{what}: {told}");
        assert_eq!(send(&store, "T", 0, b"next", 200_000), 45, "{what}");
        drop(store);
        let (store, told) = open_told(&root);
        assert_eq!(pulled(&store, 0).len(), 46, "{what}: {told}");
        check_all(&store);
    }
}

/// As Java 4.9.7 leaves the schedule topic when it has recovered a killed store.
#[test]
fn delayed_messages_without_a_time_of_delivery_get_it() {
    const SCHEDULE: &str = "SCHEDULE_TOPIC_XXXX";
    for is_clean in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("store");
        let store = open(&root);
        let queue = store.queue_or_create(SCHEDULE, 1);
        let delayed = [b"DELAY\x012\x02REAL_TOPIC\x01T\x02REAL_QID\x010".as_slice()];
        for number in 0..30 {
            let mut batch = AppendBatch::default();
            let body = short(number);
            batch.push(&message(SCHEDULE, 1, body.as_bytes(), &delayed), 0, &queue, LIMITS).unwrap();
            assert!(store.append(&mut batch, 1000 + number as u64).error.is_none());
        }
        stop(store, is_clean);
        let path = root.join("consumequeue").join(SCHEDULE).join("1/00000000000000000000");
        let file = OpenOptions::new().write(true).open(path).unwrap();
        (0..30).for_each(|number| file.write_all_at(&[0; 8], number * ENTRY_BYTES + 12).unwrap());
        let (store, told) = open_told(&root);
        let got: Vec<i64> = entries(&store.queue(SCHEDULE, 1).unwrap()).iter().map(|entry| entry.tags_code).collect();
        assert_eq!(got, (0..30).map(|number| 1000 + number + 5000).collect::<Vec<i64>>(), "{is_clean}: {told}");
    }
}

#[test]
fn a_queue_without_its_first_file_is_made_anew() {
    for is_clean in [true, false] {
        let (_dir, root) = stopped(is_clean, long);
        std::fs::remove_file(root.join("consumequeue/T/0/00000000000000000000")).unwrap();
        let (store, told) = open_told(&root);
        check_bodies(&store, long, None, &told);
        check_all(&store);
    }
}
