//! The promises, row by row: what is answered when, what consumers see, and what a kill or a power loss leaves.
//!
//! A kill is a store that is dropped without `close`: what it wrote is there, its buffers are not. A power loss leaves
//! each file as it was at its last sync, and no file that was never synced.

use crate::append::AppendBatch;
use crate::error::AppendError;
use crate::fault_tests::{Faults, message, open_as};
use crate::flush::{FlushKeys, PoolSize, Promise};
use crate::read::{ReadLimits, ReadStatus};
use crate::record::RecordLimits;
use crate::record::decode::peek_store_timestamp;
use crate::store::Store;
use nix::libc::{EIO, ENOSPC};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const LIMITS: ReadLimits = ReadLimits {
    memory_bytes_max: 1 << 20,
    memory_count_max: 1000,
    disk_bytes_max: 1 << 20,
    disk_count_max: 1000,
    in_memory_bytes: 1 << 30,
};
const FILE_BYTES: u64 = 65_536;

fn pool(buffer_count: u32, fast_fail: bool) -> Promise {
    Promise::Pool(PoolSize { buffer_count, fast_fail })
}

/// One message; its log offset and the log offset behind it.
fn send(store: &Store, body: &[u8], now_ms: u64) -> Result<(u64, u64), AppendError> {
    let mut batch = AppendBatch::default();
    let record = message("T", body, &[]);
    let queue = store.queue_or_create("T", 0);
    batch.push(&record, 0, &queue, RecordLimits::of_body(32_768)).unwrap();
    let outcome = store.append(&mut batch, now_ms);
    match outcome.error {
        Some(error) => Err(error),
        None => {
            let placed = batch.placed(0)[0];
            Ok((placed.log_offset, placed.log_offset + u64::from(placed.record_bytes)))
        }
    }
}

/// How many messages a consumer sees: by `max`, and by reading from the start.
fn seen(store: &Store) -> u64 {
    let queue = store.queue_or_create("T", 0);
    let read = store.read(&queue, 0, 1000, &LIMITS, &mut |_| true);
    assert_eq!(read.max_offset as u64, queue.max());
    assert_eq!(read.count as u64, queue.max(), "{:?}", read.status);
    let at_end = store.read(&queue, queue.max() as i64, 1, &LIMITS, &mut |_| true).status;
    let want = if queue.max() == 0 { ReadStatus::NoMessageInQueue } else { ReadStatus::OffsetOverflowOne };
    assert_eq!(at_end, want);
    queue.max()
}

fn after_power_loss(root: &Path, faults: &Faults) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    faults.lose_power(root, dir.path());
    let (store, ..) = open_as(dir.path(), Promise::Async);
    let first = seen(&store);
    drop(store);
    let (store, _, told) = open_as(dir.path(), Promise::Async);
    assert_eq!(seen(&store), first, "a second recovery changes nothing: {told}");
    first
}

fn after_kill(root: &Path) -> (u64, String) {
    let (store, _, told) = open_as(root, Promise::Async);
    (seen(&store), told)
}

#[test]
fn asynchronous_is_seen_at_once_and_survives_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults, _) = open_as(dir.path(), Promise::Async);
    assert!(store.is_visible_at_once() && !store.is_sync() && !store.uses_pool());
    send(&store, b"one", 1000).unwrap();
    assert_eq!(seen(&store), 1);
    assert_eq!(store.log_flushed(), 0);
    store.flush_turn(20_000);
    assert_eq!(store.log_flushed(), store.log_max());
    send(&store, b"two", 20_000).unwrap();
    assert_eq!(after_power_loss(dir.path(), &faults), 1);
    drop(store);
    assert_eq!(after_kill(dir.path()).0, 2);
}

#[test]
fn synchronous_is_seen_when_it_is_flushed_and_survives_a_power_loss() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults, _) = open_as(dir.path(), Promise::Sync);
    assert!(!store.is_visible_at_once() && store.is_sync());
    let queue = store.queue_or_create("T", 0);
    for count in 1..=3 {
        let (at, end) = send(&store, b"body", 1000 * count).unwrap();
        assert_eq!((seen(&store), store.log_max()), (count - 1, end));
        assert!(store.log_flushed() < end, "nothing is answered yet");
        assert!(store.record_at(at).is_some(), "inside it is there at once");
        assert_eq!(store.log.visible_timestamp(), 1000 * (count - 1));
        // A holder sets its bit, then looks again: it sees the end or is told.
        queue.waiters.store(u64::from(count == 2), Ordering::SeqCst);
        store.flush_turn(1);
        assert_eq!((seen(&store), store.log_flushed()), (count, end));
        assert_eq!(store.take_arrived().len(), usize::from(count == 2));
        assert_eq!(store.log.visible_timestamp(), 1000 * count);
    }
    send(&store, b"WAIT=false: answered without a flush", 5000).unwrap();
    assert_eq!(after_power_loss(dir.path(), &faults), 3);
    drop(store);
    assert_eq!(after_kill(dir.path()).0, 4);
}

#[test]
fn one_flush_covers_all_that_wait_and_the_next_gathers_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults, _) = open_as(dir.path(), Promise::Sync);
    let mut end = 0;
    for _ in 0..10 {
        end = send(&store, b"waits", 1).unwrap().1;
    }
    let hold = faults.log_sync_hold.lock().unwrap();
    let begun = faults.log_sync_count.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        let turn = scope.spawn(|| store.flush_turn(1));
        while faults.log_sync_count.load(Ordering::SeqCst) == begun {
            std::thread::yield_now();
        }
        let late = send(&store, b"gathers", 1).unwrap().1;
        assert_eq!((store.log_flushed(), seen(&store)), (0, 0));
        drop(hold);
        assert_eq!(turn.join().unwrap(), 0, "the next flush is wanted at once");
        assert_eq!((store.log_flushed(), seen(&store)), (end, 10));
        assert_eq!(faults.log_sync_count.load(Ordering::SeqCst), begun + 1);
        assert!(store.flush_turn(1) > 1000, "nothing to do");
        assert_eq!((store.log_flushed(), seen(&store)), (late, 11));
        assert_eq!(faults.log_sync_count.load(Ordering::SeqCst), begun + 2);
    });
}

#[test]
fn an_append_ends_the_sleep_of_the_synchronous_flush() {
    let dir = tempfile::tempdir().unwrap();
    let (store, ..) = open_as(dir.path(), Promise::Sync);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let wait_ms = store.flush_turn(1);
            if store.log_flushed() == 0 {
                assert!(wait_ms > 1000);
                store.wait_flush(wait_ms);
                store.flush_turn(1);
            }
        });
        send(&store, b"x", 1).unwrap();
    });
    assert_eq!(seen(&store), 1);
}

#[test]
fn a_failed_flush_is_final() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults, _) = open_as(dir.path(), Promise::Sync);
    send(&store, b"first", 1).unwrap();
    store.flush_turn(1);
    let flushed = store.log_flushed();
    send(&store, b"second", 1).unwrap();
    assert!(store.flush_failure().is_none());
    faults.sync.store(EIO, Ordering::Relaxed);
    store.flush_turn(1);
    faults.sync.store(0, Ordering::Relaxed);
    for _ in 0..2 {
        assert!(store.flush_turn(1) > 1000);
        let reason = store.flush_failure().unwrap();
        assert!(reason.contains("a flush of") && reason.contains("os error 5"), "{reason}");
        assert_eq!(send(&store, b"third", 1).unwrap_err(), AppendError::NotWritable(reason));
        assert_eq!((store.log_flushed(), seen(&store)), (flushed, 1));
    }
    assert!(store.close(1).is_err());
    assert_eq!(after_power_loss(dir.path(), &faults), 1);
}

#[test]
fn a_flush_covers_every_file_that_was_written_to() {
    let dir = tempfile::tempdir().unwrap();
    let (store, ..) = open_as(dir.path(), Promise::Sync);
    let mut sent = 0;
    while store.log_max() < FILE_BYTES {
        send(&store, &[b'x'; 4000], 1).unwrap();
        sent += 1;
    }
    store.flush_turn(1);
    assert_eq!((store.log_flushed(), seen(&store)), (store.log_max(), sent));
}

#[test]
fn the_pool_is_seen_when_it_is_committed_and_a_kill_loses_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults, _) = open_as(dir.path(), pool(2, false));
    assert!(store.uses_pool() && !store.is_visible_at_once() && !store.is_sync());
    let (first, first_end) = send(&store, b"first", 1000).unwrap();
    let names = || std::fs::read_dir(dir.path().join("commitlog")).unwrap().count();
    assert_eq!(names(), 0, "a kill leaves no empty file");
    assert_eq!((seen(&store), store.log_max()), (0, first_end));
    let record = store.record_at(first).expect("inside it is there at once");
    assert_eq!(peek_store_timestamp(&record), Some(1000));
    assert!(store.record_at(first + 1).is_none());
    let queue = store.queue_or_create("T", 0);
    queue.waiters.store(1, Ordering::SeqCst);
    store.flush_turn(30_000);
    assert_eq!((seen(&store), store.log_flushed()), (0, 0), "there is nothing to flush");
    store.commit_turn(10_000);
    assert_eq!((seen(&store), store.log_flushed(), names()), (1, 0, 1));
    assert_eq!(store.take_arrived().len(), 1);
    assert_eq!(store.record_at(first), Some(record));
    assert_eq!(after_power_loss(dir.path(), &faults), 0);
    store.flush_turn(60_000);
    assert_eq!(store.log_flushed(), first_end);
    assert_eq!(after_power_loss(dir.path(), &faults), 1);
    send(&store, b"second", 70_000).unwrap();
    // Its entry is not visible, so it is in no file either.
    store.files_turn(1);
    store.files_turn(100_000);
    store.files_turn(200_000);
    drop(store);
    let (count, told) = after_kill(dir.path());
    assert_eq!(count, 1);
    assert!(!told.contains("zeroed") && !told.contains("removed"), "{told}");
}

#[test]
fn what_a_held_pull_waits_for_is_committed_before_the_interval_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let (store, ..) = open_as(dir.path(), pool(2, false));
    let queue = store.queue_or_create("T", 0);
    store.commit_turn(1);
    // Nobody waits: the interval.
    send(&store, b"first", 2).unwrap();
    assert!(store.commit_turn(2) > 100);
    assert_eq!(seen(&store), 0);
    // A holder comes behind an append.
    queue.waiters.store(1, Ordering::SeqCst);
    store.await_visible(&queue);
    store.wait_commit(60_000);
    store.commit_turn(3);
    assert_eq!(seen(&store), 1);
    // And before one.
    store.await_visible(&queue);
    send(&store, b"second", 4).unwrap();
    store.wait_commit(60_000);
    store.commit_turn(4);
    assert_eq!((seen(&store), store.take_arrived().len()), (2, 2));
    queue.waiters.store(0, Ordering::SeqCst);
    send(&store, b"third", 5).unwrap();
    assert!(store.commit_turn(5) > 100);
    assert_eq!(seen(&store), 2);
}

#[test]
fn a_stop_keeps_what_is_in_the_pool() {
    let dir = tempfile::tempdir().unwrap();
    let (store, ..) = open_as(dir.path(), pool(2, false));
    for _ in 0..40 {
        send(&store, &[b'x'; 4000], 1).unwrap();
    }
    store.close(1).unwrap();
    drop(store);
    let (count, told) = after_kill(dir.path());
    assert_eq!(count, 40);
    assert!(told.contains("a clean stop") && !told.contains("missing"), "{told}");
}

/// Sends until the file that the log is in is full and the next one is needed.
fn fill(store: &Store) -> u64 {
    let start = store.log_max();
    let mut sent = 0;
    loop {
        match send(store, &[b'x'; 4000], 1) {
            Ok((at, _)) if at / FILE_BYTES > start / FILE_BYTES => return sent + 1,
            Ok(_) => sent += 1,
            Err(AppendError::Busy) => return sent,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Fault 17 of the public reports.
#[test]
fn an_exhausted_pool_pushes_back_and_recovers_by_itself() {
    for count in 1..=2 {
        let dir = tempfile::tempdir().unwrap();
        let (store, ..) = open_as(dir.path(), pool(count, true));
        let mut sent = 0;
        for _ in 0..count {
            sent += fill(&store);
        }
        for _ in 0..3 {
            let error = send(&store, &[b'x'; 4000], 1).unwrap_err();
            assert_eq!(error, AppendError::Busy);
            assert!(error.to_string().starts_with("[REJECTREQUEST]system busy"), "{error}");
        }
        // Out of turn: it is wanted now.
        store.commit_turn(1);
        for _ in 0..5 {
            sent += fill(&store);
            store.commit_turn(1);
        }
        store.flush_turn(60_000);
        drop(store);
        assert_eq!(after_kill(dir.path()).0, sent, "{count} buffers");
    }
}

#[test]
fn without_fast_failure_files_are_written_without_a_buffer() {
    let dir = tempfile::tempdir().unwrap();
    let (store, ..) = open_as(dir.path(), pool(1, false));
    let mut sent = fill(&store) + fill(&store) + fill(&store);
    assert_eq!(seen(&store), 0, "the first file is not committed, so nobody sees what is behind it");
    store.commit_turn(10_000);
    assert_eq!(seen(&store), sent);
    // The buffer is back and is lent again.
    sent += fill(&store);
    assert_eq!(seen(&store), store.queue("T", 0).unwrap().max());
    store.commit_turn(20_000);
    assert_eq!(seen(&store), sent);
    store.close(1).unwrap();
}

#[test]
fn what_can_not_be_committed_waits_in_its_buffer() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults, _) = open_as(dir.path(), pool(2, false));
    let (at, _) = send(&store, b"x", 1).unwrap();
    faults.log_write.store(ENOSPC, Ordering::Relaxed);
    for now_ms in [10_000, 20_000] {
        assert_eq!(store.commit_turn(now_ms), 200);
        assert_eq!(seen(&store), 0);
        assert!(store.record_at(at).is_some());
    }
    faults.log_write.store(0, Ordering::Relaxed);
    store.commit_turn(30_000);
    assert_eq!(seen(&store), 1);
    drop(store);
    assert_eq!(after_kill(dir.path()).0, 1);
}

#[test]
fn a_file_is_warmed_before_it_is_taken_and_holds_what_is_written_then() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults, _) = open_as(dir.path(), Promise::Sync);
    store.set_keys(FlushKeys { warm_pages: Some(4), ..FlushKeys::default() });
    let mut sent = 0;
    let mut now_ms = 0;
    let mut turn = || {
        now_ms += 1000;
        store.files_turn(now_ms)
    };
    for _ in 0..3 {
        send(&store, &[b'x'; 20_000], 1).unwrap();
        sent += 1;
        let before = faults.log_sync_count.load(Ordering::SeqCst);
        assert!(turn() <= 15, "made and warmed");
        assert_eq!(faults.log_sync_count.load(Ordering::SeqCst), before + 1);
        turn();
        assert_eq!(faults.log_sync_count.load(Ordering::SeqCst), before + 1, "once");
        sent += fill(&store);
        store.flush_turn(1);
        assert_eq!(seen(&store), sent);
    }
    // A sync of what is warmed tells of a disk that fails.
    send(&store, &[b'x'; 20_000], 1).unwrap();
    faults.sync.store(EIO, Ordering::Relaxed);
    turn();
    faults.sync.store(0, Ordering::Relaxed);
    assert!(store.flush_failure().is_some());
    assert!(send(&store, b"x", 1).is_err());
    drop(store);
    assert_eq!(after_kill(dir.path()).0, sent + 1);
}

/// now, pages appended since the last row, whether the agent has acted afterwards
type Row = (u64, u64, bool);

fn run(store: &Arc<Store>, rows: &[Row], turn: impl Fn(&Store, u64) -> u64, mark: impl Fn(&Store) -> u64) {
    for &(now_ms, pages, acts) in rows {
        for _ in 0..pages {
            send(store, &[b'x'; 4000], now_ms).unwrap();
        }
        let before = mark(store);
        assert!(before < store.log_max(), "{now_ms}");
        turn(store, now_ms);
        assert_eq!(mark(store) == store.log_max(), acts, "{now_ms}");
        assert!(acts || mark(store) == before);
    }
}

#[test]
fn intervals_and_page_counts_decide_when() {
    let keys = FlushKeys { least_pages: 3, interval_ms: 100, thorough_interval_ms: 1000, ..FlushKeys::default() };
    let dir = tempfile::tempdir().unwrap();
    let (store, ..) = open_as(dir.path(), Promise::Async);
    store.set_keys(keys);
    let flush = |store: &Store, now_ms| store.flush_turn(now_ms);
    // 1: the interval is not over; 101, 201: too few pages; 301: enough; 1301: the thorough interval.
    let rows = [(1, 1, false), (101, 0, false), (201, 1, false), (301, 2, true), (401, 1, false), (1301, 0, true)];
    run(&store, &rows, flush, Store::log_flushed);
    // Not timed: the pages alone count.
    store.set_keys(FlushKeys { timed: false, ..keys });
    run(&store, &[(1302, 1, false), (1303, 3, true), (1304, 1, false)], flush, Store::log_flushed);

    let keys = FlushKeys {
        commit_least_pages: 3,
        commit_interval_ms: 100,
        commit_thorough_interval_ms: 1000,
        ..FlushKeys::default()
    };
    let dir = tempfile::tempdir().unwrap();
    let (store, ..) = open_as(dir.path(), pool(3, false));
    store.set_keys(keys);
    run(&store, &rows, |store, now_ms| store.commit_turn(now_ms), |store| store.log.committed());
    assert_eq!(store.keys(), keys);
}

#[test]
fn a_queue_that_has_grown_by_the_least_pages_is_flushed_at_its_interval() {
    // least pages, messages, whether the queue's file survives a power loss without a round
    for (pages, count, is_synced) in [(2, 100, false), (1, 250, true), (0, 250, true), (1, 100, false)] {
        let dir = tempfile::tempdir().unwrap();
        let (store, faults, _) = open_as(dir.path(), Promise::Async);
        store.set_keys(FlushKeys { queue_least_pages: pages, ..FlushKeys::default() });
        for _ in 0..count {
            send(&store, b"x", 1).unwrap();
        }
        store.files_turn(1000);
        store.files_turn(3000);
        let to = tempfile::tempdir().unwrap();
        faults.lose_power(dir.path(), to.path());
        assert_eq!(to.path().join("consumequeue/T").exists(), is_synced, "{pages} pages, {count} messages");
    }
}
