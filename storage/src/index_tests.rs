//! The index on a disk that fails, and after kills and power losses: what it holds is found, what it lost comes from the log.

use crate::append::AppendBatch;
use crate::fault_tests::{Faults, message, open_as};
use crate::flush::Promise;
use crate::index::KeyQuery;
use crate::record::RecordLimits;
use crate::store::Store;
use nix::libc::{EIO, ENOSPC};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn open(root: &Path) -> (Arc<Store>, Arc<Faults>, String) {
    open_as(root, Promise::Async)
}

fn send(store: &Store, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let mut batch = AppendBatch::default();
        let text = format!("KEYS\x01all k{number}\x02UNIQ_KEY\x01u{number}");
        let properties = [text.as_bytes()];
        let record = message("T", b"body", &properties);
        let queue = store.queue_or_create("T", 0);
        batch.push(&record, 0, &queue, RecordLimits::of_body(1000)).unwrap();
        assert!(store.append(&mut batch, 1000 + number).error.is_none());
    }
}

fn settle(store: &Store, now_ms: u64) {
    (0..100).find(|_| store.files_turn(now_ms) > 0).expect("an end");
}

fn count(store: &Store, key: &str) -> usize {
    let (count_max, begin_ms, end_ms) = (5000, 0, i64::MAX);
    store.find_by_key(&KeyQuery { topic: "T", key, is_unique: false, count_max, begin_ms, end_ms }).records.len()
}

/// Every message of the log once, and none else.
fn check(store: &Store) -> usize {
    settle(store, 1_000_000);
    let messages = store.queue("T", 0).map_or(0, |queue| queue.max()) as usize;
    assert_eq!(count(store, "all"), messages);
    for number in [0, messages / 3, messages.saturating_sub(1), messages] {
        for kind in ["k", "u"] {
            assert_eq!(count(store, &format!("{kind}{number}")), usize::from(number < messages), "{kind}{number}");
        }
    }
    messages
}

fn items(root: &Path) -> i32 {
    let entries = std::fs::read_dir(root.join("index")).unwrap();
    let items =
        |path: std::path::PathBuf| i32::from_be_bytes(std::fs::read(path).unwrap()[36..40].try_into().unwrap()) - 1;
    entries.map(|entry| items(entry.unwrap().path())).sum()
}

#[test]
fn a_full_disk_stops_the_index_and_not_the_broker() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults, _) = open(dir.path());
    send(&store, 0..50);
    settle(&store, 1);
    faults.queue_write.store(ENOSPC, Ordering::Relaxed);
    send(&store, 50..70);
    for step in 1..5 {
        store.files_turn(2000 * step);
    }
    assert_eq!((count(&store, "all"), count(&store, "k20"), count(&store, "k60")), (50, 1, 0));
    faults.queue_write.store(0, Ordering::Relaxed);
    // Where a file is to be made.
    faults.create.store(ENOSPC, Ordering::Relaxed);
    send(&store, 70..150);
    store.files_turn(20_000);
    assert!(count(&store, "all") < 150);
    faults.create.store(0, Ordering::Relaxed);
    assert_eq!(check(&store), 150);
    store.close(1).unwrap();
    assert_eq!(items(dir.path()), 450, "no key twice");
}

#[test]
fn after_a_failed_sync_nothing_is_called_durable() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults, _) = open(dir.path());
    send(&store, 0..50);
    settle(&store, 1);
    faults.sync.store(EIO, Ordering::Relaxed);
    assert!(store.index.file(&store.checkpoint).is_err());
    faults.sync.store(0, Ordering::Relaxed);
    assert!(store.index.file(&store.checkpoint).is_err(), "no later success counts");
    send(&store, 50..60);
    settle(&store, 2);
    assert_eq!((count(&store, "all"), store.checkpoint.times().index), (60, 0));
    assert!(store.close(1).is_err());
    drop(store);
    let (store, ..) = open(dir.path());
    assert_eq!(check(&store), 60);
}

/// The store is killed, or loses power, after every few messages, at any distance from filings and rolls.
#[test]
fn kills_and_power_losses_lose_no_key() {
    for by_power in [false, true] {
        let mut dir = tempfile::tempdir().unwrap();
        let mut sent = 0;
        for round in 0..40u64 {
            let (store, faults, told) = open(dir.path());
            let messages = check(&store) as u64;
            assert!(if by_power { messages <= sent } else { messages == sent }, "{messages} of {sent}: {told}");
            sent = messages + 7 + round % 5;
            send(&store, messages..sent);
            if round % 3 != 0 {
                settle(&store, 1_000_000);
            }
            if round % 4 == 1 {
                settle(&store, 2_000_000 + round * 100_000);
            }
            if round % 7 == 2 {
                send(&store, sent..sent + 3);
                sent += 3;
                store.flush_turn(3_000_000 + round * 100_000);
            }
            if by_power {
                store.flush_turn(3_000_000 + round * 100_000);
                let after = tempfile::tempdir().unwrap();
                // What this process has not synced stayed as the start found it.
                copy(dir.path(), after.path());
                faults.lose_power(dir.path(), after.path());
                drop(store);
                dir = after;
            }
        }
        let (store, ..) = open(dir.path());
        let messages = check(&store);
        assert!(messages > 200);
        store.close(1).unwrap();
        assert_eq!(items(dir.path()), 3 * messages as i32, "no key twice");
    }
}

/// Only what does not change any more: full files.
fn copy(from: &Path, to: &Path) {
    for name in ["index", "commitlog", "consumequeue/T/0"] {
        std::fs::create_dir_all(to.join(name)).unwrap();
        for entry in std::fs::read_dir(from.join(name)).into_iter().flatten() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), to.join(name).join(entry.file_name())).unwrap();
        }
    }
    let _ = std::fs::copy(from.join("checkpoint"), to.join("checkpoint"));
}
