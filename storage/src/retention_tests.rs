//! Retention on an injected clock, with injected ratios and mtimes.

use super::*;
use crate::append::AppendBatch;
use crate::error::AppendError;
use crate::fault_tests::{Faults, message, open_as};
use crate::flush::{PoolSize, Promise};
use crate::read::{ReadLimits, ReadStatus};
use crate::record::RecordLimits;
use crate::store::TimeBoundary;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const HOUR_MS: u64 = 3_600_000;
const LIMITS: ReadLimits = ReadLimits {
    memory_bytes_max: 1 << 20,
    memory_count_max: 32,
    disk_bytes_max: 1 << 20,
    disk_count_max: 32,
    in_memory_bytes: 1 << 30,
};

struct Bed {
    dir: tempfile::TempDir,
    store: Arc<Store>,
    faults: Arc<Faults>,
    now_ms: u64,
}

impl Bed {
    /// Messages 0..count of topics A and B by turns, one each second, then a day of nothing.
    fn new(count: u64) -> Bed {
        Bed::of(Promise::Async, count)
    }

    fn of(promise: Promise, count: u64) -> Bed {
        let dir = tempfile::tempdir().unwrap();
        let (store, faults, _) = open_as(dir.path(), promise);
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        let mut bed = Bed { dir, store, faults, now_ms };
        bed.faults.used_percent.store(50, Ordering::Relaxed);
        for number in 0..count {
            bed.send(["A", "B"][number as usize % 2]).unwrap();
            bed.now_ms += 1000;
            if promise != Promise::Async {
                bed.run(1000);
            }
        }
        bed.run(2 * HOUR_MS);
        bed
    }

    fn send(&self, topic: &str) -> Result<u64, AppendError> {
        let record = message(topic, &[b'x'; 1000], &[]);
        let mut batch = AppendBatch::default();
        let queue = self.store.queue_or_create(topic, 0);
        batch.push(&record, 0, &queue, RecordLimits::of_body(32_768)).unwrap();
        match self.store.append(&mut batch, self.now_ms).error {
            None => Ok(batch.placed(0)[0].queue_offset),
            Some(e) => Err(e),
        }
    }

    fn run(&mut self, ms: u64) {
        let end = self.now_ms + ms;
        while self.now_ms < end {
            let commit_ms = if self.store.uses_pool() { self.store.commit_turn(self.now_ms) } else { 1000 };
            let flush_ms = self.store.flush_turn(self.now_ms).min(commit_ms);
            let files_ms = self.store.files_turn(self.now_ms);
            self.now_ms += flush_ms.min(files_ms).clamp(1, end - self.now_ms);
        }
    }

    fn names(&self, dir: &str) -> Vec<u64> {
        let mut names: Vec<u64> = std::fs::read_dir(self.dir.path().join(dir))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
            .collect();
        names.sort_unstable();
        names
    }

    fn log(&self) -> Vec<u64> {
        self.names("commitlog")
    }

    fn mins(&self) -> [u64; 2] {
        ["A", "B"].map(|topic| self.store.queue(topic, 0).unwrap().min())
    }

    /// Queues begin with the first of their records that the log has, and every entry has its record.
    fn check(&self) {
        let log_min = self.store.log_min();
        assert_eq!(log_min, self.log()[0]);
        for topic in ["A", "B"] {
            let queue = self.store.queue(topic, 0).unwrap();
            let (min, max) = (queue.min(), queue.max());
            let mut number = min;
            while number < max {
                let read = self.store.read(&queue, number as i64, 32, &LIMITS, &mut |_| true);
                assert_eq!(read.status, ReadStatus::Found, "{topic} {number}");
                assert!(read.count > 0);
                number = read.next_offset as u64;
            }
            if min > 0 {
                let read = self.store.read(&queue, 0, 32, &LIMITS, &mut |_| true);
                assert_eq!((read.status, read.next_offset), (ReadStatus::OffsetTooSmall, min as i64));
                let before = queue.slot(min - 1);
                assert!(before.is_err() || before.unwrap().is_none_or(|entry| entry.log_offset < log_min));
            }
            let files = self.names(&format!("consumequeue/{topic}/0"));
            assert!(files[0] + 1000 > min * 20 || files.len() == 1, "{files:?} min {min}");
            let (first, last) = (self.store.store_time(&queue, min), self.store.store_time(&queue, max - 1));
            let find = |time, boundary| self.store.offset_by_time(&queue, time, boundary);
            for (time, boundary, want) in [
                (0, TimeBoundary::Lower, min),
                (0, TimeBoundary::Upper, min),
                (first, TimeBoundary::Lower, min),
                (first + 1, TimeBoundary::Lower, min + 1),
                (first + 1, TimeBoundary::Upper, min),
                (last, TimeBoundary::Lower, max - 1),
                (last + 1, TimeBoundary::Lower, max),
                (i64::MAX, TimeBoundary::Upper, max - 1),
            ] {
                assert_eq!(find(time, boundary), want, "{topic} {time} {boundary:?}, from {min} to {max}");
            }
        }
    }

    /// As a kill leaves it, and the next start.
    fn kill(&mut self) -> String {
        let (store, faults, told) = {
            let unused = tempfile::tempdir().unwrap();
            // Only one may have the lock.
            self.store = open_as(unused.path(), Promise::Async).0;
            open_as(self.dir.path(), Promise::Async)
        };
        (self.store, self.faults) = (store, faults);
        self.faults.used_percent.store(50, Ordering::Relaxed);
        told
    }
}

/// Nothing by the hour.
fn keys() -> RetentionKeys {
    RetentionKeys { hours: 0, ..RetentionKeys::default() }
}

fn set_modified(path: &Path, ms: u64) {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::from_millis(ms)).unwrap();
}

#[test]
fn what_is_deleted_follows_from_hour_ratio_and_request() {
    let keys = RetentionKeys::default();
    let gentle = RetentionKeys { is_forced: false, ..keys };
    // keys, hour, percent, out of space, by hand, what
    for (keys, hour, percent, is_out, is_by_hand, want) in [
        (&keys, 3, 75, false, false, None),
        (&keys, 4, 10, false, false, Some(Kind::Expired)),
        (&keys, 3, 10, false, true, Some(Kind::Expired)),
        (&keys, 3, 76, false, false, Some(Kind::Expired)),
        (&keys, 3, 85, false, false, Some(Kind::Expired)),
        (&keys, 4, 86, false, true, Some(Kind::Forced)),
        (&gentle, 3, 95, false, false, Some(Kind::Expired)),
        (&keys, 3, 10, true, false, Some(Kind::Room)),
        (&gentle, 3, 10, true, false, Some(Kind::Expired)),
    ] {
        assert_eq!(kind_of(keys, hour, percent, is_out, is_by_hand), want, "{hour} {percent} {is_out} {is_by_hand}");
    }
    assert_eq!([7, 93, 100].map(ratio), ["0.07", "0.93", "1.00"]);
}

#[test]
fn expired_files_go_by_hand_one_by_one_and_the_queues_follow() {
    let mut bed = Bed::new(400);
    let before = bed.log();
    assert!(before.len() > 5, "{before:?}");
    bed.store.set_retention(keys());
    bed.run(2 * 60_000);
    assert_eq!(bed.log(), before, "nobody asked");
    // All are two hours old; of the first five the owner says more.
    for start in &before[..5] {
        let path = bed.dir.path().join("commitlog").join(crate::mapped_file::file_name(*start));
        set_modified(&path, bed.now_ms - 80 * HOUR_MS);
    }
    let queue_file = bed.dir.path().join("consumequeue/A/0").join(crate::mapped_file::file_name(0));
    bed.store.clean_log();
    bed.store.files_turn(bed.now_ms);
    assert_eq!(bed.log().len(), before.len() - 1, "one a turn");
    bed.run(2000);
    assert_eq!(bed.log(), &before[5..], "the sixth is not old enough");
    bed.run(1000);
    assert!(!queue_file.exists());
    bed.check();
    assert!(bed.mins().iter().all(|min| *min > 100), "{:?}", bed.mins());
    // Never the last, and ten in a round.
    bed.store.set_retention(RetentionKeys { reserved_ms: 0, ..keys() });
    bed.store.clean_log();
    bed.run(5000);
    assert_eq!(bed.log(), &before[before.len() - 1..]);
    bed.check();
    let end = bed.store.log_max();
    bed.store.close(bed.now_ms).unwrap();
    let told = bed.kill();
    assert!(told.contains("a clean stop") && !told.contains("rebuilt"), "{told}");
    assert_eq!(bed.store.log_max(), end);
    bed.check();
    assert_eq!(bed.send("A").unwrap(), 200);
}

#[test]
fn a_round_takes_ten_files_and_comes_again_by_the_hour() {
    let mut bed = Bed::new(900);
    let before = bed.log().len();
    assert!(before > 13);
    bed.store.set_retention(RetentionKeys { hours: (1 << 24) - 1, reserved_ms: HOUR_MS, ..keys() });
    bed.run(5000);
    assert_eq!(bed.log().len(), before - 10);
    bed.run(10_000);
    assert_eq!(bed.log().len(), 1);
    bed.check();
    let other_hour = 1 << ((local_time(bed.now_ms).tm_hour + 12) % 24);
    let mut bed = Bed::new(200);
    bed.store.set_retention(RetentionKeys { hours: other_hour, reserved_ms: 0, ..keys() });
    bed.run(60_000);
    assert!(bed.log().len() > 1);
}

#[test]
fn a_full_disk_is_told_emptied_and_appends_come_back_by_themselves() {
    let mut bed = Bed::new(400);
    let before = bed.log();
    bed.store.set_retention(RetentionKeys { is_forced: false, ..keys() });
    bed.run(100);
    bed.faults.used_percent.store(91, Ordering::Relaxed);
    bed.run(10_000);
    let error = bed.send("A").unwrap_err().to_string();
    for part in [
        "[CL: 0.91 CQ: 0.91 INDEX: 0.91]",
        "0.90 (diskSpaceWarningLevelRatio)",
        "is deleted in ",
        "fileReservedTime=72 h",
    ] {
        assert!(error.contains(part), "{error}");
    }
    assert!(error.contains(&crate::mapped_file::file_name(0)), "{error}");
    assert_eq!(bed.log(), before);
    // Reads go on.
    bed.check();
    bed.faults.used_percent.store(90, Ordering::Relaxed);
    bed.run(2000);
    assert_eq!(bed.send("A").unwrap(), 200);

    bed.store.set_retention(keys());
    bed.faults.used_percent.store(86, Ordering::Relaxed);
    bed.run(10_500);
    assert!(bed.log().len() < before.len(), "{:?}", bed.log());
    assert!(bed.log().len() > 1 || before.len() <= 11);
    bed.faults.used_percent.store(95, Ordering::Relaxed);
    bed.run(30_000);
    assert_eq!(bed.log().len(), 1, "all but the one that is written");
    let error = bed.send("A").unwrap_err().to_string();
    assert!(error.contains("nothing can be deleted"), "{error}");
    bed.check();
    bed.faults.used_percent.store(80, Ordering::Relaxed);
    bed.run(2000);
    bed.send("B").unwrap();
}

#[test]
fn no_more_goes_than_the_ratio_asks_for() {
    let mut bed = Bed::new(400);
    let before = bed.log().len();
    bed.store.set_retention(keys());
    bed.faults.used_percent.store(86, Ordering::Relaxed);
    while bed.log().len() == before {
        bed.run(50);
    }
    bed.faults.used_percent.store(85, Ordering::Relaxed);
    bed.run(30_000);
    assert_eq!(bed.log().len(), before - 1);
}

#[test]
fn what_somebody_has_not_consumed_stays() {
    let mut bed = Bed::new(400);
    let before = bed.log();
    let from = Arc::new(Mutex::new(before[2] + 5));
    let kept = Arc::clone(&from);
    bed.store.set_keeper(Box::new(move |_| Some(Kept { from: *kept.lock().unwrap(), who: "group g".into() })));
    bed.store.set_retention(RetentionKeys { reserved_ms: 0, ..keys() });
    bed.faults.used_percent.store(99, Ordering::Relaxed);
    bed.run(30_000);
    assert_eq!(bed.log(), &before[2..]);
    let error = bed.send("A").unwrap_err().to_string();
    assert!(error.contains("is kept (ringmq.retentionKeepUnconsumed): group g"), "{error}");
    *from.lock().unwrap() = u64::MAX;
    bed.run(30_000);
    assert_eq!(bed.log().len(), 1);
}

#[test]
fn a_file_that_finds_no_room_takes_that_of_the_oldest() {
    let mut bed = Bed::new(400);
    let before = bed.log();
    bed.store.set_retention(keys());
    bed.run(70_000);
    bed.faults.create.store(nix::libc::ENOSPC, Ordering::Relaxed);
    let error = (0..200).find_map(|_| bed.send("A").err()).unwrap();
    assert!(
        matches!(&error, AppendError::NotWritable(text) if text.contains("os error 28") && text.contains("CL: 0.50"))
    );
    bed.run(200);
    assert_eq!(bed.log()[0], before[1], "one");
    bed.faults.create.store(0, Ordering::Relaxed);
    bed.send("A").unwrap();
    bed.run(5000);
    bed.check();
}

#[test]
fn a_file_stays_mapped_for_who_reads_from_it() {
    let mut bed = Bed::new(200);
    let queue = bed.store.queue("A", 0).unwrap();
    let read = bed.store.read(&queue, 0, 32, &LIMITS, &mut |_| true);
    let copy: Vec<u8> = read.slices[0].to_vec();
    bed.store.set_retention(RetentionKeys { reserved_ms: 0, ..keys() });
    bed.store.clean_log();
    bed.run(5000);
    assert_eq!(bed.log().len(), 1);
    assert_eq!(&read.slices[0][..], copy);
    assert_eq!(bed.store.read(&queue, 0, 32, &LIMITS, &mut |_| true).status, ReadStatus::OffsetTooSmall);
}

/// A file of the pool has no name before its first commit, and a start does not see it.
#[test]
fn the_last_file_with_a_name_stays() {
    let mut bed = Bed::of(Promise::Pool(PoolSize { buffer_count: 1, fast_fail: true }), 2);
    while bed.send("A").is_ok() {}
    // The buffer is committed and comes back; the next file gets a message, and no commit.
    bed.store.commit_turn(bed.now_ms);
    bed.now_ms += 1000;
    bed.store.commit_turn(bed.now_ms);
    bed.store.files_turn(bed.now_ms);
    bed.send("A").unwrap();
    assert_eq!((bed.log().len(), bed.store.log.files().len()), (1, 2));
    bed.store.set_retention(RetentionKeys { reserved_ms: 0, ..RetentionKeys::default() });
    bed.store.clean_log();
    for _ in 0..200 {
        bed.now_ms += 1000;
        bed.store.flush_turn(bed.now_ms);
        bed.store.files_turn(bed.now_ms);
    }
    assert_eq!(bed.log().len(), 1);
    bed.kill();
    assert!(bed.store.queue("A", 0).unwrap().max() > 2);
}

#[test]
fn every_promise_lets_old_files_go() {
    for promise in [Promise::Sync, Promise::Pool(PoolSize { buffer_count: 3, fast_fail: false })] {
        let mut bed = Bed::of(promise, 200);
        assert!(bed.log().len() > 2, "{promise:?}");
        bed.store.set_retention(RetentionKeys { reserved_ms: 0, ..keys() });
        bed.store.clean_log();
        bed.run(5000);
        assert_eq!(bed.log().len(), 1, "{promise:?}");
        bed.check();
        bed.kill();
        bed.check();
        assert_eq!(bed.send("A").unwrap(), 100);
    }
}

#[test]
fn a_queue_whose_records_are_all_gone_goes_on_where_it_was() {
    let mut bed = Bed::new(20);
    while bed.log().len() < 3 {
        bed.send("B").unwrap();
    }
    bed.run(HOUR_MS);
    bed.store.set_retention(RetentionKeys { reserved_ms: 0, ..keys() });
    bed.store.clean_log();
    bed.run(5000);
    let state = |bed: &Bed| {
        let queue = bed.store.queue("A", 0).unwrap();
        (queue.min(), queue.max())
    };
    assert_eq!(state(&bed), (10, 10));
    bed.kill();
    assert_eq!(state(&bed), (10, 10));
    assert_eq!(bed.send("A").unwrap(), 10);
    bed.check();
    bed.kill();
    assert_eq!(state(&bed), (10, 11));
    bed.check();
}

/// A kill after each of the steps of a deletion.
#[test]
fn a_kill_in_the_middle_of_a_deletion_is_mended() {
    let mut steps = 0;
    loop {
        let mut bed = Bed::new(500);
        let ends = ["A", "B"].map(|topic| bed.store.queue(topic, 0).unwrap().max());
        bed.store.set_retention(RetentionKeys { reserved_ms: 0, batch_max: 4, ..keys() });
        bed.store.clean_log();
        let count = |bed: &Bed| {
            bed.log().len() + ["A", "B"].iter().map(|t| bed.names(&format!("consumequeue/{t}/0")).len()).sum::<usize>()
        };
        let (mut before, mut is_over) = (count(&bed), false);
        // Until the next file is gone, so often.
        for _ in 0..=steps {
            let until = bed.now_ms + 9000;
            while count(&bed) == before && bed.now_ms < until {
                bed.run(20);
            }
            is_over = bed.now_ms >= until;
            before = count(&bed);
        }
        let log = bed.log();
        let told = bed.kill();
        assert!(!told.contains("rebuilt"), "step {steps}: {told}");
        assert_eq!(bed.log(), log);
        assert_eq!(["A", "B"].map(|topic| bed.store.queue(topic, 0).unwrap().max()), ends);
        bed.store.set_retention(keys());
        bed.run(3000);
        bed.check();
        assert_eq!(bed.send("A").unwrap(), ends[0]);
        if is_over {
            break;
        }
        steps += 1;
    }
    assert!(steps >= 4, "only {steps} steps");
}
