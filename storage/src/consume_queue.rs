//! Consume queue: from a place in a queue to a record in the commit log.
//!
//! ```text
//! entry, 20 bytes, big-endian   | log offset 8 | record bytes 4 | tags code 8 |
//! file, 300 000 entries         named by the byte offset of its first entry, 20 digits
//!
//! queue offset      min ............... base ........... filed ............ max
//!                   | files             | files and memory | memory (the tail) |
//! ```
//! Three parties. The log's gate appends to the tail and publishes `max`. The file agent writes `filed..max` to the
//! files and lets the tail go up to a few recent entries, which consumers at the end read without touching a file.
//! Readers on any shard take what is below `max`, from the tail or by position from the files; files are never mapped,
//! so that neither maps nor descriptors grow with the number of queues.
//!
//! A file appears with its first entries in it (an all-zero last file makes Java invent an entry). It is sparse: a
//! hundred thousand queues of one message would take 600 GB else. A full disk is an error of the agent's write.
//! After a crash the files are cut and completed from the log, so no send ever waits for them.
//! Source: ConsumeQueue.java (4.9.7, 5.3.3).

use crate::descriptors::Descriptors;
use crate::disk::{Blocks, Disk, DiskFile, NewFile};
use crate::mapped_file::file_name;
use crate::wrong_queues::WrongQueues;
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) const ENTRY_BYTES: u64 = 20;
/// Entries that the agent writes by one call.
const FILED_AT_ONCE_COUNT: usize = 8192;
/// Entries that a read takes from a file by one call.
const READ_AT_ONCE_COUNT: usize = 204;
/// Filed entries that stay in memory, all queues together and each.
const KEPT_COUNT_MAX: usize = 600_000;
const KEPT_COUNT_MAX_EACH: usize = 4096;
const KEPT_COUNT_MIN_EACH: usize = 4;

const _: () = assert!(ENTRY_BYTES == 8 + 4 + 8);

/// One 20-byte entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub log_offset: u64,
    pub record_bytes: u32,
    pub tags_code: i64,
}

/// Light queues are topics with this prefix: of single queues, fed by what a record names beside its own topic (5.x).
pub const LMQ_PREFIX: &str = "%LMQ%";

impl Entry {
    /// What Java puts into the slots before a queue's first entry when that is not number 0. It points to nothing.
    pub(crate) const FILLER: Entry = Entry { log_offset: 0, record_bytes: 0x7FFF_FFFF, tags_code: 0 };

    pub(crate) fn encode(&self) -> [u8; ENTRY_BYTES as usize] {
        let mut bytes = [0; ENTRY_BYTES as usize];
        bytes[..8].copy_from_slice(&self.log_offset.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.record_bytes.to_be_bytes());
        bytes[12..].copy_from_slice(&self.tags_code.to_be_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; ENTRY_BYTES as usize]) -> Entry {
        let [o0, o1, o2, o3, o4, o5, o6, o7, r0, r1, r2, r3, t0, t1, t2, t3, t4, t5, t6, t7] = *bytes;
        Entry {
            log_offset: u64::from_be_bytes([o0, o1, o2, o3, o4, o5, o6, o7]),
            record_bytes: u32::from_be_bytes([r0, r1, r2, r3]),
            tags_code: i64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7]),
        }
    }

    /// Java's test: all zeros is a slot never written.
    pub(crate) fn is_valid(&self) -> bool {
        self.log_offset <= i64::MAX as u64 && self.record_bytes > 0 && self.record_bytes <= i32::MAX as u32
    }

    pub(crate) fn is_filler(&self) -> bool {
        *self == Entry::FILLER
    }

    /// Whether it can stand behind `last`: its record comes later in the log, or is the same one (it closes a gap).
    fn can_follow(&self, last: &Entry) -> bool {
        self.is_valid() && (self.log_offset >= last.log_end() || self.log_offset == last.log_offset || last.is_filler())
    }

    /// Log offset behind the record.
    pub(crate) fn log_end(&self) -> u64 {
        self.log_offset.saturating_add(u64::from(self.record_bytes))
    }
}

/// What all queues of a store share.
pub(crate) struct QueueRoom {
    pub disk: Arc<dyn Disk>,
    /// `consumequeue`.
    pub dir: PathBuf,
    pub staging: PathBuf,
    pub file_bytes: u64,
    descriptors: Descriptors,
    /// Entries that no file holds yet.
    pub pending: AtomicU64,
    queue_count: AtomicUsize,
    number: AtomicU64,
    /// Bytes of full files that loading may still look through.
    look_bytes_left: AtomicU64,
    /// The name of `dir` is on the device.
    is_dir_synced: AtomicBool,
    pub wrong: WrongQueues,
}

/// What a start looks through, of queue files before each queue's last, for entries that are none: less than 50 ms.
const LOOK_BYTES_MAX: u64 = 64 << 20;

impl QueueRoom {
    pub fn new(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        staging: &Path,
        file_bytes: u64,
        descriptor_count_max: usize,
    ) -> QueueRoom {
        assert!(file_bytes > 0);
        assert!(file_bytes.is_multiple_of(ENTRY_BYTES));
        QueueRoom {
            disk,
            dir,
            staging: staging.to_path_buf(),
            file_bytes,
            descriptors: Descriptors::new(descriptor_count_max),
            pending: AtomicU64::new(0),
            queue_count: AtomicUsize::new(0),
            number: AtomicU64::new(0),
            look_bytes_left: AtomicU64::new(LOOK_BYTES_MAX),
            is_dir_synced: AtomicBool::new(false),
            wrong: WrongQueues::default(),
        }
    }

    /// Whether one more file may be looked through.
    fn may_look(&self) -> bool {
        let left = |left: u64| left.checked_sub(self.file_bytes);
        self.look_bytes_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_ok()
    }

    fn sync_own_name(&self) -> io::Result<()> {
        if !self.is_dir_synced.load(Ordering::Relaxed) {
            self.disk.sync_dir(self.dir.parent().unwrap_or(&self.dir))?;
            self.is_dir_synced.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn kept_count(&self) -> usize {
        let queues = self.queue_count.load(Ordering::Relaxed).max(1);
        (KEPT_COUNT_MAX / queues).clamp(KEPT_COUNT_MIN_EACH, KEPT_COUNT_MAX_EACH)
    }
}

pub struct ConsumeQueue {
    pub topic: Box<str>,
    pub queue_id: i32,
    /// Bit s: shard s holds pulls of this queue. Set by the holder, then SeqCst fence, then `max` is read again; the
    /// appender publishes `max`, SeqCst fence, then reads this.
    pub waiters: AtomicU64,
    room: Arc<QueueRoom>,
    /// Ours in this process: a topic made again is another queue.
    number: u64,
    min: AtomicU64,
    max: AtomicU64,
    /// Only touched under the log's gate.
    next: AtomicU64,
    /// Its topic was deleted. Written and read under the log's gate.
    is_forgotten: AtomicBool,
    tail: Mutex<Tail>,
    files: Mutex<QueueFiles>,
}

/// The entries in memory.
#[derive(Default)]
struct Tail {
    /// Queue offset of the first entry here.
    base: u64,
    /// Entries below are in the files.
    filed: u64,
    entries: VecDeque<Entry>,
    /// The agent knows that there is something to file.
    is_reported: bool,
}

impl Tail {
    fn end(&self) -> u64 {
        self.base + self.entries.len() as u64
    }

    fn trim(&mut self, kept_count: usize) {
        let filed = (self.filed - self.base) as usize;
        let dropped = filed.saturating_sub(kept_count);
        self.entries.drain(..dropped);
        self.base += dropped as u64;
        if self.entries.capacity() > 64 && self.entries.capacity() / 4 > self.entries.len() {
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }
}

/// The files as their owner, the agent, knows them. Byte offsets in the queue.
#[derive(Default)]
struct QueueFiles {
    first: u64,
    end: u64,
    /// Starts of the files with entries that no sync has covered.
    unsynced: Vec<u64>,
    /// Of these entries.
    unsynced_bytes: u64,
    is_name_unsynced: bool,
    /// Entries were taken away, and no sync has covered that.
    is_cut: bool,
    /// A coming round knows that there is something to sync.
    is_listed: bool,
    /// The topic was deleted: nothing is written any more.
    is_gone: bool,
}

impl ConsumeQueue {
    pub(crate) fn new(room: &Arc<QueueRoom>, topic: &str, queue_id: i32) -> ConsumeQueue {
        assert!(is_folder_name(topic), "topic {topic:?} can not name a folder");
        assert!(queue_id >= 0, "queue id {queue_id}");
        room.queue_count.fetch_add(1, Ordering::Relaxed);
        ConsumeQueue {
            topic: topic.into(),
            queue_id,
            waiters: AtomicU64::new(0),
            room: Arc::clone(room),
            number: room.number.fetch_add(1, Ordering::Relaxed),
            min: AtomicU64::new(0),
            max: AtomicU64::new(0),
            next: AtomicU64::new(0),
            is_forgotten: AtomicBool::new(false),
            tail: Mutex::default(),
            files: Mutex::default(),
        }
    }

    /// First readable queue offset.
    pub fn min(&self) -> u64 {
        self.min.load(Ordering::Acquire)
    }

    /// The queue offset the next visible message will get.
    pub fn max(&self) -> u64 {
        self.max.load(Ordering::Acquire)
    }

    /// Up to `count_max` entries from `from` on, appended to `out`; fewer at the end, none when `from` is below `min`.
    /// Serves the in-memory tail and the files.
    ///
    /// # Errors
    /// What the files answer; `NotFound` when a file of the queue is missing. `out` may have got some entries before.
    pub fn read(&self, from: u64, count_max: usize, out: &mut Vec<Entry>) -> io::Result<()> {
        let end = self.max().min(from.saturating_add(count_max as u64));
        if from < self.min() {
            return Ok(());
        }
        let mut from = from;
        while from < end {
            let base = {
                let tail = self.tail();
                if from >= tail.base {
                    // The gate publishes `max` after the tail has the entry.
                    let range = (from - tail.base) as usize..(end - tail.base) as usize;
                    out.extend(tail.entries.range(range));
                    return Ok(());
                }
                tail.base
            };
            let to = end.min(base);
            if let Err(e) = self.read_files(from, to, out) {
                // Retention was faster: the next read is told the new min.
                return if from < self.min() { Ok(()) } else { Err(e) };
            }
            from = to;
        }
        Ok(())
    }

    fn read_files(&self, from: u64, to: u64, out: &mut Vec<Entry>) -> io::Result<()> {
        let mut buffer = [0; READ_AT_ONCE_COUNT * ENTRY_BYTES as usize];
        let mut at = from * ENTRY_BYTES;
        let end = to * ENTRY_BYTES;
        while at < end {
            let start = at - at % self.room.file_bytes;
            let step = (end.min(start + self.room.file_bytes) - at).min(buffer.len() as u64);
            let chunk = &mut buffer[..step as usize];
            self.file(start)?.read_at(at - start, chunk)?;
            let (entries, _) = chunk.as_chunks();
            out.extend(entries.iter().map(Entry::decode));
            at += step;
        }
        Ok(())
    }

    /// Queue offset of the first entry of the file after the one that holds `queue_offset`.
    pub(crate) fn next_file(&self, queue_offset: u64) -> u64 {
        let in_file = self.room.file_bytes / ENTRY_BYTES;
        queue_offset - queue_offset % in_file + in_file
    }

    fn file(&self, start: u64) -> io::Result<Arc<dyn DiskFile>> {
        let path = || self.dir().join(file_name(start));
        self.room.descriptors.open(&*self.room.disk, (self.number, start), path)
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.room.dir.join(&*self.topic).join(self.queue_id.to_string())
    }

    fn tail(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn files(&self) -> MutexGuard<'_, QueueFiles> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The gate's side.
impl ConsumeQueue {
    pub(crate) fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    pub(crate) fn set_next(&self, next: u64) {
        self.next.store(next, Ordering::Relaxed);
    }

    pub(crate) fn is_forgotten(&self) -> bool {
        self.is_forgotten.load(Ordering::Relaxed)
    }

    /// The topic is being deleted: appends that still hold this queue go to its successor.
    pub(crate) fn forget(&self) {
        self.is_forgotten.store(true, Ordering::Relaxed);
    }

    /// Appends to the tail. `true` when the agent has to be told of this queue.
    pub(crate) fn append(&self, entries: impl Iterator<Item = (u64, Entry)>) -> bool {
        let mut tail = self.tail();
        let before = tail.end();
        for (queue_offset, entry) in entries {
            assert!(
                queue_offset == tail.end(),
                "a gap in {} {}: {queue_offset} at {}",
                self.topic,
                self.queue_id,
                tail.end()
            );
            tail.entries.push_back(entry);
        }
        self.room.pending.fetch_add(tail.end() - before, Ordering::Relaxed);
        let is_news = tail.end() > tail.filed && !tail.is_reported;
        tail.is_reported |= is_news;
        is_news
    }

    /// Entries below `next`, which are in the tail, become visible.
    pub(crate) fn publish(&self, next: u64) {
        self.max.store(next, Ordering::Release);
    }
}

/// The agent's side.
impl ConsumeQueue {
    /// Writes what is visible of the tail to the files. `true` when the queue has become dirty: the next round has to
    /// `sync` it.
    ///
    /// # Errors
    /// What the files answer. The tail keeps what was not written; call again.
    pub(crate) fn file_tail(&self, buffer: &mut Vec<u8>) -> io::Result<bool> {
        let mut files = self.files();
        let kept_count = self.room.kept_count();
        loop {
            buffer.clear();
            let from = {
                let mut tail = self.tail();
                let pending = self.max().saturating_sub(tail.filed);
                if files.is_gone {
                    let pending = tail.end() - tail.filed;
                    self.room.pending.fetch_sub(pending, Ordering::Relaxed);
                    tail.filed = tail.end();
                    tail.is_reported = false;
                    return Ok(false);
                }
                if pending == 0 {
                    tail.is_reported = tail.end() > tail.filed;
                    tail.trim(kept_count);
                    let is_new = !files.unsynced.is_empty() && !files.is_listed;
                    files.is_listed |= is_new;
                    return Ok(is_new);
                }
                let first = (tail.filed - tail.base) as usize;
                let last = first + (pending as usize).min(FILED_AT_ONCE_COUNT);
                for entry in tail.entries.range(first..last) {
                    buffer.extend_from_slice(&entry.encode());
                }
                tail.filed
            };
            self.write_entries(&mut files, from, buffer)?;
            let count = buffer.len() as u64 / ENTRY_BYTES;
            let mut tail = self.tail();
            tail.filed += count;
            tail.trim(kept_count);
            drop(tail);
            self.room.pending.fetch_sub(count, Ordering::Relaxed);
        }
    }

    /// Some entries were not visible yet when the tail was filed last: the agent comes back for them.
    pub(crate) fn is_reported(&self) -> bool {
        self.tail().is_reported
    }

    /// Bytes of entries in the files that no sync has covered.
    pub(crate) fn unsynced_bytes(&self) -> u64 {
        self.files().unsynced_bytes
    }

    fn write_entries(&self, files: &mut QueueFiles, from: u64, bytes: &[u8]) -> io::Result<()> {
        files.unsynced_bytes += bytes.len() as u64;
        let mut at = from * ENTRY_BYTES;
        let mut rest = bytes;
        while !rest.is_empty() {
            let start = at - at % self.room.file_bytes;
            let position = at - start;
            let room = (self.room.file_bytes - position) as usize;
            let (now, later) = rest.split_at(rest.len().min(room));
            if start < files.end {
                self.file(start)?.write_at(position, now)?;
            } else {
                self.create_file(files, start, position, now)?;
            }
            if !files.unsynced.contains(&start) {
                files.unsynced.push(start);
            }
            at += now.len() as u64;
            rest = later;
        }
        Ok(())
    }

    /// A new file with its first entries. Slots before them, in a queue that does not start at a file's start, are filled
    /// as Java fills them.
    fn create_file(&self, files: &mut QueueFiles, start: u64, position: u64, entries: &[u8]) -> io::Result<()> {
        let is_first = files.first == files.end;
        assert!(
            is_first || (start == files.end && position == 0),
            "a gap before file {start} of {} {}",
            self.topic,
            self.queue_id
        );
        let dir = self.dir();
        if is_first {
            self.room.disk.create_dirs(&dir)?;
        }
        let mut content = Entry::FILLER.encode().repeat((position / ENTRY_BYTES) as usize);
        content.extend_from_slice(entries);
        let file = self.room.disk.create(&NewFile {
            path: &dir.join(file_name(start)),
            staging: &self.room.staging,
            bytes: self.room.file_bytes,
            blocks: Blocks::Sparse,
            content: &content,
        })?;
        self.room.descriptors.insert((self.number, start), Arc::from(file));
        if is_first {
            files.first = start;
        }
        files.end = start + self.room.file_bytes;
        files.is_name_unsynced = true;
        Ok(())
    }

    /// Makes what is in the files survive a power loss. After an error the entries that it covered may be lost.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.files().is_listed = false;
        self.sync_files()
    }

    /// The same, while the queue stays on the list of the coming round.
    pub(crate) fn sync_files(&self) -> io::Result<()> {
        let mut files = self.files();
        files.unsynced_bytes = 0;
        if files.is_gone {
            return Ok(());
        }
        while let Some(start) = files.unsynced.last().copied() {
            self.file(start)?.sync()?;
            files.unsynced.pop();
        }
        if files.is_name_unsynced {
            let dir = self.dir();
            for dir in [dir.as_path(), dir.parent().unwrap_or(&dir), self.room.dir.as_path()] {
                self.room.disk.sync_dir(dir)?;
            }
            self.room.sync_own_name()?;
            files.is_name_unsynced = false;
        }
        files.is_cut = false;
        Ok(())
    }

    /// Recovery only: entries from `queue_offset` on, up to the end of their file, are those of a process that was killed,
    /// and may never have been synced.
    pub(crate) fn doubt(&self, queue_offset: u64) {
        let mut files = self.files();
        let at = queue_offset * ENTRY_BYTES;
        let start = at - at % self.room.file_bytes;
        if (files.first..files.end).contains(&start) && !files.unsynced.contains(&start) {
            files.unsynced.push(start);
        }
        files.is_name_unsynced |= start < files.end;
    }

    /// Whether `sync` would find something.
    pub(crate) fn is_unsynced(&self) -> bool {
        let files = self.files();
        !files.unsynced.is_empty() || files.is_name_unsynced
    }

    /// Whether a power loss could bring back entries that were taken away.
    pub(crate) fn is_cut(&self) -> bool {
        self.files().is_cut
    }

    /// The whole file system has been synced since anything was written.
    pub(crate) fn note_synced(&self) {
        let mut files = self.files();
        files.unsynced_bytes = 0;
        files.unsynced.clear();
        files.is_name_unsynced = false;
        files.is_cut = false;
    }

    /// `min` becomes the first entry whose record is at `log_min` or above; `max` when there is none.
    pub(crate) fn correct_min(&self, log_min: u64) -> io::Result<()> {
        let is_kept = |entry: &Entry| !entry.is_filler() && entry.log_offset >= log_min;
        if self.entry(self.min())?.is_some_and(|entry| !is_kept(&entry)) {
            self.min.store(self.first_entry(is_kept)?, Ordering::Release);
        }
        Ok(())
    }

    /// Whether `remove_file_below_min` would find one.
    pub(crate) fn has_file_below_min(&self) -> bool {
        let files = self.files();
        let end = files.first + self.room.file_bytes;
        // Never the last one: it says where the queue goes on.
        !files.is_gone && end < files.end && end <= self.min() * ENTRY_BYTES
    }

    /// Unlinks the first file when all of its entries lie below `min`, and the next says where the queue goes on, whatever a
    /// power loss takes: by an entry on the device whose record is there, too. The log is flushed up to `flushed`.
    pub(crate) fn remove_file_below_min(&self, flushed: u64) -> io::Result<bool> {
        if !self.has_file_below_min() {
            return Ok(false);
        }
        let next = {
            let files = self.files();
            let next = files.first + self.room.file_bytes;
            if files.unsynced.contains(&next) || files.is_name_unsynced {
                return Ok(false);
            }
            next / ENTRY_BYTES
        };
        if self.slot(next)?.is_none_or(|entry| entry.log_end() > flushed) {
            return Ok(false);
        }
        let mut files = self.files();
        let (start, dir) = (files.first, self.dir());
        let path = dir.join(file_name(start));
        self.room.disk.remove_file(&path)?;
        files.first += self.room.file_bytes;
        files.unsynced.retain(|unsynced| *unsynced != start);
        self.room.descriptors.forget(|key| key == (self.number, start));
        tracing::info!(path = %path.display(), "consume queue file deleted");
        self.room.disk.sync_dir(&dir)?;
        Ok(true)
    }

    /// No file of this queue is written from here on.
    pub(crate) fn abandon_files(&self) {
        self.files().is_gone = true;
        self.room.descriptors.forget(|(number, _)| number == self.number);
    }
}

impl Drop for ConsumeQueue {
    fn drop(&mut self) {
        self.room.queue_count.fetch_sub(1, Ordering::Relaxed);
        let tail = self.tail();
        self.room.pending.fetch_sub(tail.end() - tail.filed, Ordering::Relaxed);
    }
}

/// What loading has found, beside the entries.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    /// What is wrong: the queue ends before that and has to be rebuilt.
    pub damage: Option<String>,
    /// Lowest log offset of what was taken away behind the queue's end; 0 when that is no entry, or no file has any.
    pub stray: Option<u64>,
}

impl Loaded {
    fn see_stray(&mut self, stray: Option<u64>) {
        self.stray = [self.stray, stray].into_iter().flatten().min();
    }
}

/// Recovery's side: one thread, nobody else has the queue yet.
impl ConsumeQueue {
    /// Takes over the files that begin at `starts` (byte offsets, neighbours, all of full length). The queue ends before
    /// the first slot of the last file that holds no valid entry; what lies behind it is zeroed, files without any entry
    /// are removed.
    pub(crate) fn load(&self, starts: &[u64]) -> io::Result<Loaded> {
        let mut loaded = Loaded::default();
        let (Some(first), Some(last)) = (starts.first(), starts.last()) else {
            return Ok(loaded);
        };
        {
            let mut files = self.files();
            files.first = *first;
            files.end = last + self.room.file_bytes;
        }
        let mut end = *first / ENTRY_BYTES;
        for (index, start) in starts.iter().enumerate().rev() {
            let count = self.valid_count(*start)?;
            loaded.see_stray(self.stray(*start, count)?);
            if count == 0 {
                continue;
            }
            end = start / ENTRY_BYTES + count;
            let mut broken = None;
            for full in starts[..index].iter().rev() {
                if !self.is_full(*full)? {
                    broken = Some(*full);
                }
            }
            if let Some(broken) = broken {
                let path = self.dir().join(file_name(broken));
                let count = self.valid_count(broken)?;
                let end = broken / ENTRY_BYTES + count;
                self.cut_files(end * ENTRY_BYTES)?;
                self.place_at(first / ENTRY_BYTES, end);
                if end * ENTRY_BYTES == *first {
                    self.clear()?;
                }
                loaded.damage =
                    Some(format!("{} has {count} entries and then something else, but files follow", path.display()));
                return Ok(loaded);
            }
            break;
        }
        if end * ENTRY_BYTES == *first {
            loaded.stray = Some(0);
        }
        self.cut_files(end * ENTRY_BYTES)?;
        self.place_at(first / ENTRY_BYTES, end);
        if end * ENTRY_BYTES == *first || self.entry(end - 1)?.is_some_and(|entry| entry.is_filler()) {
            self.clear()?;
        }
        Ok(loaded)
    }

    /// What stands in a file behind its first `count` entries, by the lowest log offset there: `None` when there are zeros, 0
    /// when something is no entry.
    fn stray(&self, start: u64, count: u64) -> io::Result<Option<u64>> {
        let file = self.file(start)?;
        let from = count * ENTRY_BYTES;
        let end = file.data_end(from, self.room.file_bytes)?.next_multiple_of(ENTRY_BYTES).min(self.room.file_bytes);
        let mut bytes = vec![0; (end - from) as usize];
        file.read_at(from, &mut bytes)?;
        let (slots, _) = bytes.as_chunks();
        let written = slots.iter().filter(|slot| **slot != [0; ENTRY_BYTES as usize]).map(Entry::decode);
        Ok(written.map(|entry| if entry.is_valid() { entry.log_offset } else { 0 }).min())
    }

    /// Files that are gone stay gone. The queue's folder is there.
    pub(crate) fn sync_names(&self) -> io::Result<()> {
        self.room.disk.sync_dir(&self.dir())
    }

    /// An entry points to no record of this queue.
    pub(crate) fn note_wrong(&self) {
        self.room.wrong.add(&self.topic, self.queue_id);
    }

    /// Whether a file before the last is full of entries, as far as a look at it is affordable.
    fn is_full(&self, start: u64) -> io::Result<bool> {
        if self.room.may_look() {
            return Ok(self.valid_count(start)? == self.room.file_bytes / ENTRY_BYTES);
        }
        let mut bytes = [0; ENTRY_BYTES as usize];
        self.file(start)?.read_at(self.room.file_bytes - ENTRY_BYTES, &mut bytes)?;
        Ok(Entry::decode(&bytes).is_valid())
    }

    /// Entries from the start of a file on, up to one that is none or that its neighbours contradict.
    fn valid_count(&self, start: u64) -> io::Result<u64> {
        let file = self.file(start)?;
        let mut buffer = vec![0; 4096 / ENTRY_BYTES as usize * ENTRY_BYTES as usize];
        let mut position = 0;
        let mut last = Entry::FILLER;
        while position < self.room.file_bytes {
            let step = (self.room.file_bytes - position).min(buffer.len() as u64);
            let chunk = &mut buffer[..step as usize];
            file.read_at(position, chunk)?;
            let (entries, _) = chunk.as_chunks();
            for (index, bytes) in entries.iter().enumerate() {
                let entry = Entry::decode(bytes);
                if !entry.can_follow(&last) {
                    return Ok(position / ENTRY_BYTES + index as u64);
                }
                last = entry;
            }
            position += step;
            // A long queue is read by larger steps.
            buffer.resize(READ_AT_ONCE_COUNT * 64 * ENTRY_BYTES as usize, 0);
        }
        Ok(self.room.file_bytes / ENTRY_BYTES)
    }

    /// The entry at `queue_offset`, `None` outside of `min..max`.
    pub(crate) fn entry(&self, queue_offset: u64) -> io::Result<Option<Entry>> {
        let mut entries = Vec::with_capacity(1);
        self.read(queue_offset, 1, &mut entries)?;
        Ok(entries.pop())
    }

    /// As [`ConsumeQueue::entry`], but from the files and below `min`, too.
    pub(crate) fn slot(&self, queue_offset: u64) -> io::Result<Option<Entry>> {
        if queue_offset >= self.min() {
            return self.entry(queue_offset);
        }
        {
            // Its file may have expired.
            let files = self.files();
            if !(files.first..files.end).contains(&(queue_offset * ENTRY_BYTES)) {
                return Ok(None);
            }
        }
        let mut entries = Vec::with_capacity(1);
        self.read_files(queue_offset, queue_offset + 1, &mut entries)?;
        Ok(entries.pop())
    }

    /// The first queue offset whose entry passes `passes`, `max` if none does; all behind one that passes must pass, too.
    pub(crate) fn first_entry(&self, passes: impl Fn(&Entry) -> bool) -> io::Result<u64> {
        let (mut low, mut high) = (self.min(), self.max());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.entry(middle)?.is_some_and(|entry| passes(&entry)) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Ok(low)
    }

    /// Entries from `to` on go, from memory and files. `min` stays below `to`, or becomes it.
    pub(crate) fn cut(&self, to: u64, buffer: &mut Vec<u8>) -> io::Result<()> {
        assert!(to <= self.max());
        self.file_tail(buffer)?;
        self.cut_files(to * ENTRY_BYTES)?;
        self.place_at(self.min().min(to), to);
        Ok(())
    }

    pub(crate) fn has_files(&self) -> bool {
        self.files().end > 0
    }

    /// No entries and no files any more.
    pub(crate) fn clear(&self) -> io::Result<()> {
        self.cut_files(0)?;
        self.place_at(0, 0);
        Ok(())
    }

    /// Removes files that `load` could not take over; the queue is empty then. Highest first.
    pub(crate) fn remove_files(&self, starts: &[u64]) -> io::Result<()> {
        for start in starts.iter().rev() {
            self.room.disk.remove_file(&self.dir().join(file_name(*start)))?;
        }
        self.room.descriptors.forget(|(number, _)| number == self.number);
        *self.files() = QueueFiles { is_name_unsynced: true, is_cut: true, ..QueueFiles::default() };
        self.place_at(0, 0);
        Ok(())
    }

    /// The next entry of this empty queue will be number `queue_offset`.
    pub(crate) fn start_at(&self, queue_offset: u64) {
        assert!(!self.has_files(), "a queue with files goes on where they end");
        self.place_at(queue_offset, queue_offset);
    }

    fn place_at(&self, min: u64, end: u64) {
        let mut tail = self.tail();
        self.room.pending.fetch_sub(tail.end() - tail.filed, Ordering::Relaxed);
        *tail = Tail { base: end, filed: end, ..Tail::default() };
        self.min.store(min, Ordering::Release);
        self.next.store(end, Ordering::Relaxed);
        self.max.store(end, Ordering::Release);
    }

    /// Highest file first: a kill in between leaves neighbours.
    fn cut_files(&self, end: u64) -> io::Result<()> {
        let mut files = self.files();
        while files.end > files.first && files.end - self.room.file_bytes >= end {
            let start = files.end - self.room.file_bytes;
            self.room.disk.remove_file(&self.dir().join(file_name(start)))?;
            self.room.descriptors.forget(|key| key == (self.number, start));
            files.unsynced.retain(|unsynced| *unsynced != start);
            files.end = start;
            files.is_name_unsynced = true;
            files.is_cut = true;
        }
        if files.end == files.first {
            (files.first, files.end) = (0, 0);
        } else if end < files.end {
            let start = files.end - self.room.file_bytes;
            if self.file(start)?.zero(end - start, self.room.file_bytes)? > 0 {
                files.is_cut = true;
                if !files.unsynced.contains(&start) {
                    files.unsynced.push(start);
                }
            }
        }
        Ok(())
    }
}

/// Whether a topic can name a folder of its own. Topics from records and from foreign stores are tested, too: a record's
/// CRC does not cover its topic.
pub(crate) fn is_folder_name(topic: &str) -> bool {
    !topic.is_empty() && topic.len() <= 255 && topic != "." && topic != ".." && !topic.contains(['/', '\0'])
}
