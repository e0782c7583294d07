//! Reading a queue: DefaultMessageStore.getMessage.
//!
//! Entries are walked in order, each tested by its tags code before the log is touched, until the answer is full. The
//! records are handed out as slices of the mapped files, neighbours in the log joined: the wire body of a pull is the
//! disk record.
//! Source: DefaultMessageStore.getMessage, isTheBatchFull (4.9.7); ConsumeQueue.getOffsetInQueueByTime (5.3.3).

use crate::commit_log::{CommitLog, Files, find, find_index};
use crate::consume_queue::{ConsumeQueue, Entry, LMQ_PREFIX};
use crate::mapped_file::MappedFile;
use crate::record::decode::{Checked, Record, check, peek_store_timestamp};
use crate::record::layout::sys_flag;
use bytes::Bytes;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of entries that one read walks at least, whatever its count.
const SCAN_BYTES_MIN: usize = 16_000;
const ENTRY_BYTES: usize = 20;
/// Entries taken from the queue at a time.
const STEP_COUNT: usize = 64;
/// The head of a record is asked for so many entries before it is looked at.
const AHEAD_COUNT: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadStatus {
    Found,
    NoMatchedMessage,
    MessageWasRemoving,
    NoMatchedLogicQueue,
    NoMessageInQueue,
    OffsetTooSmall,
    OffsetOverflowOne,
    OffsetOverflowBadly,
    OffsetFoundNull,
}

impl ReadStatus {
    /// Java's enum name, the remark of a pull answer ("FOUND", "NO_MATCHED_MESSAGE", ...).
    pub fn name(self) -> &'static str {
        match self {
            ReadStatus::Found => "FOUND",
            ReadStatus::NoMatchedMessage => "NO_MATCHED_MESSAGE",
            ReadStatus::MessageWasRemoving => "MESSAGE_WAS_REMOVING",
            ReadStatus::NoMatchedLogicQueue => "NO_MATCHED_LOGIC_QUEUE",
            ReadStatus::NoMessageInQueue => "NO_MESSAGE_IN_QUEUE",
            ReadStatus::OffsetTooSmall => "OFFSET_TOO_SMALL",
            ReadStatus::OffsetOverflowOne => "OFFSET_OVERFLOW_ONE",
            ReadStatus::OffsetOverflowBadly => "OFFSET_OVERFLOW_BADLY",
            ReadStatus::OffsetFoundNull => "OFFSET_FOUND_NULL",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct ReadLimits {
    pub memory_bytes_max: usize,
    pub memory_count_max: usize,
    pub disk_bytes_max: usize,
    pub disk_count_max: usize,
    /// A record farther than this from the log's end counts as on disk (40 % of RAM).
    pub in_memory_bytes: u64,
}

pub struct Read {
    pub status: ReadStatus,
    pub next_offset: i64,
    pub min_offset: i64,
    pub max_offset: i64,
    /// Records back to back, neighbours in the log joined. Each slice keeps its file mapped.
    pub slices: Vec<Bytes>,
    pub bytes: usize,
    pub count: usize,
    pub suggest_slave: bool,
}

/// Of a whole record.
type RecordTest<'a> = &'a mut dyn FnMut(&[u8]) -> bool;

/// What a read asks of each entry, and of the record of one that passed.
pub(crate) struct EntryTest<'a> {
    /// The code that an entry with an extension address stands for, `None` when it is not there: the entry passes.
    pub resolve: &'a dyn Fn(i64) -> Option<i64>,
    pub accept: &'a mut dyn FnMut(i64) -> bool,
    /// Only with this one is the log touched for a message that is not wanted.
    pub accept_record: Option<RecordTest<'a>>,
}

/// DefaultMessageStore.getMessage.
pub(crate) fn read(
    log: &CommitLog,
    queue: &ConsumeQueue,
    from: i64,
    count_max: usize,
    limits: &ReadLimits,
    test: EntryTest<'_>,
) -> Read {
    let (min, max) = (queue.min() as i64, queue.max() as i64);
    let nothing = |status, next_offset| Read {
        status,
        next_offset,
        min_offset: min,
        max_offset: max,
        slices: Vec::new(),
        bytes: 0,
        count: 0,
        suggest_slave: false,
    };
    if max == 0 {
        return nothing(ReadStatus::NoMessageInQueue, 0);
    } else if from < min {
        return nothing(ReadStatus::OffsetTooSmall, min);
    } else if from == max {
        return nothing(ReadStatus::OffsetOverflowOne, from);
    } else if from > max {
        return nothing(ReadStatus::OffsetOverflowBadly, max);
    }
    match Scan::new(log, count_max, limits).run(queue, from as u64..max as u64, test) {
        Ok(scan) => Read {
            status: scan.status,
            next_offset: from + scan.scanned as i64,
            min_offset: min,
            max_offset: max,
            slices: scan.slices(),
            bytes: scan.bytes,
            count: scan.count,
            suggest_slave: scan.log_max.saturating_sub(scan.last_log_offset) > limits.in_memory_bytes,
        },
        Err(e) => {
            tracing::error!(topic = %queue.topic, queue_id = queue.queue_id, from, error = %e, "consume queue not readable");
            nothing(ReadStatus::OffsetFoundNull, queue.next_file(from as u64).min(max as u64) as i64)
        }
    }
}

/// A stretch of one file that will be one slice.
struct Stretch {
    /// In the list of the scan.
    file: usize,
    range: Range<u64>,
}

struct Scan<'a> {
    files: Files,
    log_max: u64,
    count_max: usize,
    limits: &'a ReadLimits,
    status: ReadStatus,
    scanned: usize,
    stretches: Vec<Stretch>,
    bytes: usize,
    count: usize,
    last_log_offset: u64,
    /// Entries below are passed over: one of them was not in the log, which begins here.
    skip_to: u64,
    /// One above the highest queue offset that a record of the queue can have; `None` when the records are those of another.
    queue_max: Option<u64>,
}

impl<'a> Scan<'a> {
    fn new(log: &CommitLog, count_max: usize, limits: &'a ReadLimits) -> Scan<'a> {
        // The end first: what is below it lies in the files taken after.
        let log_max = log.written();
        Scan {
            files: log.files(),
            log_max,
            count_max,
            limits,
            status: ReadStatus::NoMatchedMessage,
            scanned: 0,
            stretches: Vec::new(),
            bytes: 0,
            count: 0,
            last_log_offset: log_max,
            skip_to: 0,
            queue_max: None,
        }
    }

    /// `range` ends where `max` was before the list of files was taken: the record of a newer entry may lie in a file that
    /// is not on it.
    fn run(mut self, queue: &ConsumeQueue, range: Range<u64>, mut test: EntryTest<'_>) -> io::Result<Scan<'a>> {
        let from = range.start;
        self.queue_max = (!queue.topic.starts_with(LMQ_PREFIX)).then_some(range.end);
        let scan_count = SCAN_BYTES_MIN.max(self.count_max.saturating_mul(ENTRY_BYTES)) / ENTRY_BYTES;
        let scan_count = scan_count.min(usize::try_from(range.end - from).unwrap_or(usize::MAX));
        let mut entries = Vec::with_capacity(STEP_COUNT);
        while self.scanned < scan_count {
            entries.clear();
            let result =
                queue.read(from + self.scanned as u64, STEP_COUNT.min(scan_count - self.scanned), &mut entries);
            if entries.is_empty() {
                // An error counts only when nothing came before it: the next read meets it again.
                if self.scanned == 0 {
                    result?;
                }
                break;
            }
            for (index, entry) in entries.iter().enumerate() {
                if let Some(next) = entries.get(index + AHEAD_COUNT)
                    && let Some(file) = find(&self.files, next.log_offset)
                {
                    file.prefetch(next.log_offset - file.start);
                }
                if self.is_full(entry) {
                    return Ok(self);
                }
                self.scanned += 1;
                self.last_log_offset = entry.log_offset;
                self.take(queue, entry, &mut test);
            }
        }
        Ok(self)
    }

    fn is_full(&self, entry: &Entry) -> bool {
        if self.count == 0 || entry.log_offset < self.skip_to {
            return false;
        }
        let is_on_disk = self.log_max.saturating_sub(entry.log_offset) > self.limits.in_memory_bytes;
        let (bytes_max, count_max) = if is_on_disk {
            (self.limits.disk_bytes_max, self.limits.disk_count_max)
        } else {
            (self.limits.memory_bytes_max, self.limits.memory_count_max)
        };
        self.count >= self.count_max.min(count_max) || self.bytes + entry.record_bytes as usize > bytes_max
    }

    fn take(&mut self, queue: &ConsumeQueue, entry: &Entry, test: &mut EntryTest<'_>) {
        if entry.log_offset < self.skip_to || entry.is_filler() {
            return;
        }
        if !(test.resolve)(entry.tags_code).is_none_or(&mut *test.accept) {
            return;
        }
        let Some(index) = find_index(&self.files, entry.log_offset) else {
            return self.is_gone(queue, entry);
        };
        let file = &self.files[index];
        let range = entry.log_offset - file.start..entry.log_end() - file.start;
        if range.end > file.readable() || !self.is_right(queue, entry, file.slice(range.clone())) {
            return self.is_gone(queue, entry);
        }
        if let Some(accept) = &mut test.accept_record
            && !accept(file.slice(range.clone()))
        {
            return;
        }
        match self.stretches.last_mut() {
            Some(last) if last.file == index && last.range.end == range.start => last.range.end = range.end,
            _ => self.stretches.push(Stretch { file: index, range }),
        }
        self.bytes += entry.record_bytes as usize;
        self.count += 1;
        self.status = ReadStatus::Found;
    }

    /// Parts of one owner for each file: an owner for each record costs more than its entry and its look.
    fn slices(&self) -> Vec<Bytes> {
        let mut whole: Option<(usize, Bytes)> = None;
        let mut slices = Vec::with_capacity(self.stretches.len());
        for Stretch { file, range } in &self.stretches {
            let (_, bytes) = match whole.take_if(|(index, _)| index == file) {
                Some(same) => whole.insert(same),
                None => whole.insert((*file, self.files[*file].pinned(0..self.files[*file].readable()))),
            };
            slices.push(bytes.slice(range.start as usize..range.end as usize));
        }
        slices
    }

    /// Whether `bytes` are the record that the entry means, by its own words, with lengths that a client can go by: one that is
    /// none would take the rest of the answer with it, and a queue offset beyond the end the messages to come.
    fn is_right(&self, queue: &ConsumeQueue, entry: &Entry, bytes: &[u8]) -> bool {
        Record::parse(bytes).is_ok_and(|record| {
            let is_its_own =
                self.queue_max.is_none_or(|max| record.queue_id == queue.queue_id && record.queue_offset < max);
            is_its_own
                && record.bytes.len() == bytes.len()
                && record.log_offset == entry.log_offset
                && sys_flag::is_queued(record.sys_flag)
        })
    }

    /// The record of `entry` is not in the log: retention took its file, or the entry is wrong.
    fn is_gone(&mut self, queue: &ConsumeQueue, entry: &Entry) {
        if self.count == 0 {
            self.status = ReadStatus::MessageWasRemoving;
        }
        let log_min = self.files.first().map_or(0, |file| file.start);
        if entry.log_offset >= log_min {
            tracing::error!(topic = %queue.topic, queue_id = queue.queue_id, ?entry, log_max = self.log_max, "a consume queue entry points to no record, the next start mends the queue");
            queue.note_wrong();
        }
        // Java passes over all of the missing file. An entry that is wrong must not take its neighbours with it.
        self.skip_to = log_min;
    }
}

/// The record that starts at `log_offset`, if a whole and plausible one does.
pub(crate) fn record_at(log: &CommitLog, log_offset: u64) -> Option<Bytes> {
    let files = log.files();
    let file = find(&files, log_offset)?;
    let position = log_offset - file.start;
    if position >= file.readable() {
        // Not committed yet, or it was meanwhile and the buffer is gone.
        let buffered = file.in_buffer(position, |bytes| match check(bytes, Some(log_offset), true) {
            Ok(Checked::Record(record)) => Some(Bytes::copy_from_slice(record.bytes)),
            _ => None,
        });
        if let Some(record) = buffered {
            return record;
        }
    }
    let readable = file.readable();
    let bytes = file.slice(position.min(readable)..readable);
    match check(bytes, Some(log_offset), true) {
        Ok(Checked::Record(record)) => Some(file.pinned(position..position + record.bytes.len() as u64)),
        _ => None,
    }
}

/// The record that `entry` points to, unchecked; `None` when it is not in the log, or not to be seen yet.
pub(crate) fn entry_record(log: &CommitLog, entry: &Entry) -> Option<Bytes> {
    let files = log.files();
    let file = find(&files, entry.log_offset)?;
    let range = entry.log_offset - file.start..entry.log_end() - file.start;
    (range.end <= file.readable()).then(|| file.pinned(range))
}

/// Store time of the record that `entry` points to.
pub(crate) fn entry_store_time(files: &[Arc<MappedFile>], entry: &Entry) -> Option<i64> {
    let file = find(files, entry.log_offset)?;
    let range = entry.log_offset - file.start..entry.log_end() - file.start;
    (range.end <= file.readable()).then(|| peek_store_timestamp(file.slice(range))).flatten()
}

/// The first queue offset whose store time passes `passes`, `max` if none does. Times grow with the offset; an entry whose
/// record is gone counts as older than all.
pub(crate) fn first_by_time(log: &CommitLog, queue: &ConsumeQueue, passes: impl Fn(i64) -> bool) -> u64 {
    let (mut low, mut high) = (queue.min(), queue.max());
    let files = log.files();
    let mut entries = Vec::with_capacity(1);
    while low < high {
        let middle = low + (high - low) / 2;
        entries.clear();
        let time = match queue.read(middle, 1, &mut entries) {
            Ok(()) => entries.first().and_then(|entry| entry_store_time(&files, entry)),
            Err(_) => None,
        };
        if time.is_some_and(&passes) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}
