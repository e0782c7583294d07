//! The commit log: one endless row of records, cut into files of equal length.
//!
//! ```text
//! file 0                          file 1                         file 2, made ahead
//! | record record ... record blank | record record | (zeros)      | (zeros)           |
//! min                                              written
//! ```
//! Medium "write": the turn's batch lies encoded in its own buffer and goes into the page cache by one `pwrite` for each
//! file it touches; readers use a shared mapping, which sees the page cache. What is written survives a kill.
//!
//! With the transient store pool the batch goes into a lent buffer instead, and `commit` writes it to the file.
//!
//! What consumers may see is decided by the promise (see `flush`). Where that is not what is `written`, the new ends of
//! queues wait in a row in log order, and are published when the mark that decides has passed them.
//!
//! One writer at a time, behind the gate. It gives the offsets and the store time, so that log order, queue order and
//! time order are one. Readers take the list of files once and see what is below `written`.
//!
//! A write that fails publishes nothing; what it left behind `written` is zeroed before the next one, so that a
//! record whose sender was told of the failure can not come back. A failed flush ends all writing.
//! Source: CommitLog.java, MappedFileQueue.java.

use crate::allocate::{FilesAhead, Taken};
use crate::append::{AppendBatch, AppendOutcome};
use crate::consume_queue::ConsumeQueue;
use crate::disk::Disk;
use crate::error::AppendError;
use crate::failed_sync;
use crate::flush::{Medium, Promise};
use crate::index_keys::AppendedKeys;
use crate::mapped_file::{MappedFile, file_name};
use crate::record::decode::{Checked, check};
use crate::record::layout::{BLANK_BYTES, blank};
use crate::transient_pool::TransientPool;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

const PAGE_BYTES: u64 = 4096;
/// Between two steps of a mebibyte each.
const WARM_PAUSE_MS: u64 = 15;

pub(crate) type Files = Arc<[Arc<MappedFile>]>;
/// Gives the queue that takes the place of a forgotten one.
pub(crate) type Successor<'a> = &'a dyn Fn(&ConsumeQueue) -> Arc<ConsumeQueue>;

/// Where a log's files are and how long each is.
pub(crate) struct LogPlace {
    pub disk: Arc<dyn Disk>,
    pub root: PathBuf,
    pub dir: PathBuf,
    pub staging: PathBuf,
    pub file_bytes: u64,
    pub medium: Medium,
}

pub(crate) struct CommitLog {
    place: LogPlace,
    promise: Promise,
    /// With [`Promise::Pool`].
    pool: Option<TransientPool>,
    files: RwLock<Files>,
    written: AtomicU64,
    /// Counts with a pool only.
    committed: AtomicU64,
    flushed: AtomicU64,
    /// Ends of queues that are not visible yet, in log order. Empty where all that is written is visible.
    unpublished: Mutex<VecDeque<Unpublished>>,
    /// As `store_timestamp`, of what is visible.
    published_timestamp: AtomicU64,
    /// Somebody waits for what is in a buffer of the pool.
    is_commit_awaited: AtomicBool,
    /// Queues that have grown while somebody waited for them.
    arrived: Mutex<Vec<Arc<ConsumeQueue>>>,
    /// Store time of the newest record; published after `written` and after the queue entries.
    store_timestamp: AtomicU64,
    gate: Mutex<Gate>,
    pub ahead: FilesAhead,
    /// Of what was appended, for the index.
    pub keys: AppendedKeys,
    is_flush_failed: AtomicBool,
    /// A flush failed or the store is closed: no write any more.
    is_stopped: AtomicBool,
    stop_reason: Mutex<String>,
    /// A write or a new file found the disk full.
    is_out_of_space: AtomicBool,
    is_lock_refused: AtomicBool,
}

/// `max` of `queue` becomes `next` when the mark that decides passes `log_end`.
struct Unpublished {
    log_end: u64,
    queue: Arc<ConsumeQueue>,
    next: u64,
}

/// What the one writer owns.
struct Gate {
    /// The file that is being written; `None` before the first and when recovery ended at a file's end.
    file: Option<Arc<MappedFile>>,
    /// Log offset of the next record.
    end: u64,
    store_timestamp: u64,
    /// A failed write may have left bytes up to this log offset.
    stale_end: u64,
}

impl CommitLog {
    /// A log as recovery has found it: `files` in order, `end` inside or at the end of the last one.
    pub fn new(place: LogPlace, files: Vec<Arc<MappedFile>>, end: u64, store_timestamp: u64) -> CommitLog {
        for pair in files.windows(2) {
            assert_eq!(pair[0].end(), pair[1].start);
        }
        let file = files.last().filter(|file| end < file.end()).cloned();
        CommitLog {
            place,
            promise: Promise::Async,
            pool: None,
            files: RwLock::new(files.into()),
            written: AtomicU64::new(end),
            committed: AtomicU64::new(end),
            flushed: AtomicU64::new(end),
            unpublished: Mutex::default(),
            published_timestamp: AtomicU64::new(store_timestamp),
            is_commit_awaited: AtomicBool::new(false),
            arrived: Mutex::default(),
            store_timestamp: AtomicU64::new(store_timestamp),
            gate: Mutex::new(Gate { file, end, store_timestamp, stale_end: 0 }),
            ahead: FilesAhead::default(),
            keys: AppendedKeys::default(),
            is_flush_failed: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            stop_reason: Mutex::default(),
            is_out_of_space: AtomicBool::new(false),
            is_lock_refused: AtomicBool::new(false),
        }
    }

    /// The same log with another promise than [`Promise::Async`].
    pub fn with_promise(self, promise: Promise, pool: Option<TransientPool>) -> CommitLog {
        assert_eq!(matches!(promise, Promise::Pool(_)), pool.is_some());
        CommitLog { promise, pool, ..self }
    }

    pub fn min(&self) -> u64 {
        self.files().first().map_or(self.written(), |file| file.start)
    }

    /// Log offset behind the last record.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// What is in the page cache.
    pub fn committed(&self) -> u64 {
        if self.pool.is_some() { self.committed.load(Ordering::Acquire) } else { self.written() }
    }

    pub fn flushed(&self) -> u64 {
        self.flushed.load(Ordering::Acquire)
    }

    /// Log offset below which consumers see everything.
    pub fn visible(&self) -> u64 {
        if self.is_sync() { self.flushed() } else { self.committed() }
    }

    pub fn is_sync(&self) -> bool {
        self.promise == Promise::Sync
    }

    /// Consumers see what is written.
    pub fn is_visible_at_once(&self) -> bool {
        self.promise == Promise::Async
    }

    /// Every record stored earlier lies below `written` as read after this, and has its entry in a tail.
    pub fn store_timestamp(&self) -> u64 {
        self.store_timestamp.load(Ordering::Acquire)
    }

    /// Every record stored earlier is visible, as far as it ever will be.
    pub fn visible_timestamp(&self) -> u64 {
        if self.is_visible_at_once() {
            self.store_timestamp()
        } else {
            self.published_timestamp.load(Ordering::Acquire)
        }
    }

    pub fn files(&self) -> Files {
        Arc::clone(&self.files.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// No append any more; the first reason stays.
    pub fn stop(&self, reason: &str) {
        let mut stored = self.stop_reason.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_stopped.load(Ordering::Relaxed) {
            stored.push_str(reason);
            self.is_stopped.store(true, Ordering::Release);
        }
    }

    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    fn stop_reason(&self) -> String {
        self.stop_reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// For what must not happen beside an append.
    pub fn hold_gate<T>(&self, act: impl FnOnce() -> T) -> T {
        let _gate = self.gate();
        act()
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        // A panic behind the gate leaves offsets given and bytes half written: nobody may go on from there.
        self.gate.lock().expect("an append panicked")
    }
}

/// The file of `files` that holds `log_offset`.
pub(crate) fn find(files: &[Arc<MappedFile>], log_offset: u64) -> Option<&Arc<MappedFile>> {
    files.get(find_index(files, log_offset)?)
}

/// Its place in the list.
pub(crate) fn find_index(files: &[Arc<MappedFile>], log_offset: u64) -> Option<usize> {
    let first = files.first()?;
    let index = usize::try_from(log_offset.checked_sub(first.start)? / first.bytes).ok()?;
    (index < files.len()).then_some(index)
}

/// Position behind the last record of a file that begins at `start`, if the file is whole: it ends in a blank record that
/// fits, or in zeros. `None` when its bytes stop within or right behind a record.
pub(crate) fn file_end_by_records(bytes: &[u8], start: u64) -> Option<u64> {
    let mut position = 0;
    loop {
        match check(&bytes[position..], Some(start + position as u64), false) {
            Ok(Checked::Record(record)) => position += record.bytes.len(),
            Ok(Checked::Blank { bytes_left }) if bytes_left as usize == bytes.len() - position => {
                return Some(position as u64);
            }
            Ok(Checked::End) if bytes.len() - position >= BLANK_BYTES => return Some(position as u64),
            _ => return None,
        }
    }
}

impl CommitLog {
    /// Places the batch, or what an earlier call has left of it. `report` is told of every queue that the agent does not yet know to have something to file.
    pub fn append(
        &self,
        batch: &mut AppendBatch,
        now_ms: u64,
        successor: Successor<'_>,
        report: &mut dyn FnMut(&Arc<ConsumeQueue>),
    ) -> AppendOutcome {
        let mut gate = self.gate();
        let gate = &mut *gate;
        let mut error = self.is_stopped().then(|| AppendError::NotWritable(self.stop_reason()));
        if error.is_none() && gate.stale_end > gate.end {
            error = self.zero_stale(gate).err().map(|e| not_writable(&e));
        }
        let store_timestamp = now_ms.max(gate.store_timestamp);
        let first = batch.units_placed();
        let mut units_placed = first;
        while error.is_none() && units_placed < batch.unit_count() {
            let room = gate.file.as_ref().map_or(0, |file| file.end() - gate.end);
            let units_end = place_units(batch, units_placed, room, gate.end, store_timestamp, successor);
            let placed = units_placed..units_end;
            let result = if placed.is_empty() {
                self.roll(gate, batch.unit_bytes(units_placed))
            } else {
                self.write(gate, batch.unit_slice(placed.clone()))
            };
            match result {
                Ok(()) => units_placed = units_end,
                Err(e) => {
                    take_back_units(batch, placed, successor);
                    error = Some(e);
                }
            }
        }
        batch.finish(units_placed);
        let mut is_awaited = false;
        if units_placed > first {
            gate.store_timestamp = store_timestamp;
            self.keys.put(batch, first..units_placed);
            if !self.is_visible_at_once() {
                // Before `written`: the flush that covers the records finds their queues here.
                let mut unpublished = self.unpublished.lock().unwrap_or_else(PoisonError::into_inner);
                // Pairs with the one in `await_commit`: either a holder sees that the queue goes on or this sees its bit.
                fence(Ordering::SeqCst);
                enter_entries(batch, first..units_placed, successor, report, &mut |queue, next, log_end| {
                    is_awaited |= queue.waiters.load(Ordering::SeqCst) != 0;
                    unpublished.push_back(Unpublished { log_end, queue: Arc::clone(queue), next });
                });
            }
        }
        // A file may have ended without a record in the next one.
        self.written.store(gate.end, Ordering::Release);
        if is_awaited && self.pool.is_some() {
            self.is_commit_awaited.store(true, Ordering::Release);
        }
        if units_placed > first {
            if self.is_visible_at_once() {
                enter_entries(batch, first..units_placed, successor, report, &mut |queue, next, _| queue.publish(next));
            }
            // `max` is published: whoever reads `waiters` after this call misses no holder that did not see it.
            fence(Ordering::SeqCst);
            self.store_timestamp.store(store_timestamp, Ordering::Release);
        }
        AppendOutcome { units_placed, error }
    }

    /// Writes `bytes` at the end. After an error nothing has happened but that `stale_end` is noted.
    fn write(&self, gate: &mut Gate, bytes: &[u8]) -> Result<(), AppendError> {
        let end = gate.end + bytes.len() as u64;
        self.write_or_note(gate, bytes)?;
        gate.end = end;
        let file = gate.file.as_ref().expect("written to");
        file.publish_written(end - file.start);
        Ok(())
    }

    fn write_or_note(&self, gate: &mut Gate, bytes: &[u8]) -> Result<(), AppendError> {
        let file = gate.file.as_ref().expect("units were placed in it");
        let position = gate.end - file.start;
        let Err(e) = file.write(position, bytes) else {
            return Ok(());
        };
        tracing::error!(path = %file.path.display(), position, bytes = bytes.len(), error = %e, "write failed");
        self.note_space(&e);
        gate.stale_end = gate.end + bytes.len() as u64;
        // When this fails, too, the next append tries again before it writes.
        let _ = self.zero_stale(gate);
        Err(not_writable(&e))
    }

    /// Takes back what a failed write left behind the end.
    fn zero_stale(&self, gate: &mut Gate) -> io::Result<()> {
        let file = gate.file.as_ref().expect("something was written to it");
        file.file.zero(gate.end - file.start, gate.stale_end - file.start)?;
        gate.stale_end = 0;
        Ok(())
    }

    /// Zeroes what a failed write left behind the end, if it is still there.
    pub fn forget_stale(&self) -> io::Result<()> {
        let gate = &mut *self.gate();
        if gate.stale_end > gate.end { self.zero_stale(gate) } else { Ok(()) }
    }

    /// Ends the current file with a blank record and goes on in the next.
    fn roll(&self, gate: &mut Gate, unit_bytes: usize) -> Result<(), AppendError> {
        let max = self.place.file_bytes as usize - BLANK_BYTES;
        if unit_bytes > max {
            return Err(AppendError::TooLarge { bytes: unit_bytes, max });
        }
        let start = gate.file.as_ref().map_or(gate.end, |file| file.end());
        let mut buffer = None;
        if let Some(pool) = &self.pool {
            buffer = pool.take();
            if buffer.is_none() && pool.is_fast_fail {
                // With its end the current file can be committed, and its buffer comes back.
                self.end_file(gate)?;
                return Err(AppendError::Busy);
            }
        }
        let next = match self.take_file(start) {
            Ok(next) => next,
            Err(e) => {
                if let (Some(pool), Some(buffer)) = (&self.pool, buffer) {
                    pool.give_back(buffer);
                }
                return Err(e);
            }
        };
        // The name comes last: an end without a next file is no fault, a next file without records is one for Java. With a
        // pool the commit gives it, when the first records come.
        let name = || if self.pool.is_some() { Ok(()) } else { next.name().map_err(|e| self.no_file(start, &e)) };
        if let Err(e) = self.end_file(gate).and_then(|()| name()) {
            self.ahead.give_back(next);
            if let (Some(pool), Some(buffer)) = (&self.pool, buffer) {
                pool.give_back(buffer);
            }
            return Err(e);
        }
        if let Some(buffer) = buffer {
            next.lend(buffer);
        }
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        *files = files.iter().cloned().chain([Arc::clone(&next)]).collect();
        drop(files);
        gate.file = Some(next);
        Ok(())
    }

    /// Puts a blank record behind the last one of the current file, which then takes nothing more.
    fn end_file(&self, gate: &mut Gate) -> Result<(), AppendError> {
        let Some(file) = gate.file.clone() else {
            return Ok(());
        };
        let left = u32::try_from(file.end() - gate.end).expect("a file is smaller than 4 GiB");
        let mut data_end = gate.end - file.start;
        // Too little for a blank record is left only where another writer than ours and Java's was: readers know.
        if left as usize >= BLANK_BYTES {
            self.write_or_note(gate, &blank(left))?;
            data_end += BLANK_BYTES as u64;
        }
        file.publish_end(data_end);
        gate.end = file.end();
        gate.file = None;
        Ok(())
    }

    fn no_file(&self, start: u64, error: &io::Error) -> AppendError {
        match self.note_space(error) {
            true => not_writable(error),
            false => AppendError::NoFile(format!("{}: {error}", self.place.dir.join(file_name(start)).display())),
        }
    }

    /// The file that begins at `start`, without a name.
    fn take_file(&self, start: u64) -> Result<Arc<MappedFile>, AppendError> {
        match self.ahead.take(start) {
            Taken::File(file) => Ok(file),
            Taken::Error(e) => Err(e),
            Taken::None => self.create_file(start).map_err(|e| self.no_file(start, &e)),
        }
    }

    /// Whether `error` says that the disk is full; retention is to know.
    pub fn note_space(&self, error: &io::Error) -> bool {
        let is_full = matches!(error.raw_os_error(), Some(nix::libc::ENOSPC | nix::libc::EDQUOT));
        if is_full {
            self.is_out_of_space.store(true, Ordering::Relaxed);
        }
        is_full
    }

    fn create_file(&self, start: u64) -> io::Result<Arc<MappedFile>> {
        let LogPlace { disk, root: _, dir, staging, file_bytes, medium } = &self.place;
        MappedFile::create_nameless(&**disk, dir, staging, start, *file_bytes, *medium).map(Arc::new)
    }
}

fn not_writable(error: &io::Error) -> AppendError {
    AppendError::NotWritable(format!("the commit log can not be written: {error}"))
}

/// Forgotten queues are rare: the successor is looked up each time.
fn with_queue<T>(queue: &Arc<ConsumeQueue>, successor: Successor<'_>, act: impl FnOnce(&Arc<ConsumeQueue>) -> T) -> T {
    if queue.is_forgotten() { act(&successor(queue)) } else { act(queue) }
}

/// Gives units from `from` on their places, as many as fit into `room` bytes at `log_offset`. Returns the first that does
/// not.
fn place_units(
    batch: &mut AppendBatch,
    from: usize,
    mut room: u64,
    mut log_offset: u64,
    store_timestamp: u64,
    successor: Successor<'_>,
) -> usize {
    for index in from..batch.unit_count() {
        let bytes = batch.unit_bytes(index) as u64;
        if bytes + BLANK_BYTES as u64 > room {
            return index;
        }
        let next = with_queue(batch.queue(index), successor, |queue| queue.next());
        let taken = batch.place_unit(index, log_offset, next, store_timestamp);
        with_queue(batch.queue(index), successor, |queue| queue.set_next(next + taken));
        room -= bytes;
        log_offset += bytes;
    }
    batch.unit_count()
}

/// Takes back the queue offsets of units that could not be written.
fn take_back_units(batch: &AppendBatch, units: Range<usize>, successor: Successor<'_>) {
    for index in units.rev() {
        if let Some((queue_offset, _)) = batch.entries(index).next() {
            with_queue(batch.queue(index), successor, |queue| queue.set_next(queue_offset));
        }
    }
}

/// Entries into the tails; `entered` is told how far each queue goes now, and where the log ends there. Neighbours of one
/// queue share a lock.
fn enter_entries(
    batch: &AppendBatch,
    units: Range<usize>,
    successor: Successor<'_>,
    report: &mut dyn FnMut(&Arc<ConsumeQueue>),
    entered: &mut dyn FnMut(&Arc<ConsumeQueue>, u64, u64),
) {
    let mut first = units.start;
    while first < units.end {
        let is_other = |index: &usize| !Arc::ptr_eq(batch.queue(*index), batch.queue(first));
        let end = (first..units.end).find(is_other).unwrap_or(units.end);
        with_queue(batch.queue(first), successor, |queue| {
            let is_news = queue.append((first..end).flat_map(|index| batch.entries(index)));
            // Not the queue's next offset: later units of this batch may have been given some already.
            if let Some((queue_offset, entry)) = (first..end).rev().find_map(|index| batch.entries(index).last()) {
                entered(queue, queue_offset + 1, entry.log_end());
            }
            if is_news {
                report(queue);
            }
        });
        first = end;
    }
}

/// The agents' side.
impl CommitLog {
    /// Whether the agent should make a file now. Asked after each append.
    pub fn wants_file(&self) -> bool {
        self.ahead.wants(self.used())
    }

    /// How much of the current file is written, and its length.
    fn used(&self) -> Option<(u64, u64)> {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        files.last().map(|file| (file.written(), file.bytes))
    }

    /// Whether the disk was full for somebody since the last call.
    pub fn take_out_of_space(&self) -> bool {
        self.is_out_of_space.load(Ordering::Relaxed) && self.is_out_of_space.swap(false, Ordering::Relaxed)
    }

    pub fn is_out_of_space(&self) -> bool {
        self.is_out_of_space.load(Ordering::Relaxed)
    }

    /// Log offset below which every record has its entry visible in its queue. `None`: not to be told just now.
    pub fn entered(&self) -> Option<u64> {
        if self.is_visible_at_once() {
            // Behind the gate no append is between its records and its entries.
            return Some(self.hold_gate(|| self.written()));
        }
        let visible = self.visible();
        let unpublished = self.unpublished.lock().unwrap_or_else(PoisonError::into_inner);
        let is_behind = unpublished.front().is_some_and(|first| first.log_end <= visible);
        (!is_behind).then_some(visible)
    }

    /// Takes the first file off the list, never the last. Who has a list keeps it.
    pub fn forget_first(&self) -> Option<Arc<MappedFile>> {
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        let [first, rest @ ..] = &**files else { return None };
        if rest.is_empty() {
            return None;
        }
        let (first, rest) = (Arc::clone(first), rest.into());
        *files = rest;
        Some(first)
    }

    /// Makes the next files, as far as it is time.
    ///
    /// # Errors
    /// What the disk answers.
    pub fn make_files_ahead(&self) -> io::Result<()> {
        let next_start = self.files().last().map_or(self.written(), |file| file.end());
        self.ahead.make(self.used(), next_start, |start| self.create_file(start), |start, e| self.no_file(start, e))
    }

    /// Preheats a part of the next file. One step; returns the ms until the next one, `None` when there is nothing to do.
    /// Steps are far apart, for the disk has other things to do, unless the log would be through with its file before.
    ///
    /// # Errors
    /// What the disk answers. A failed sync is final, as in `flush`: it may have told of records.
    pub fn warm_ahead(&self, pages_per_sync: u32, is_locking: bool) -> io::Result<Option<u64>> {
        let step = self.ahead.with_first(|file| {
            let from = file.warmed();
            let is_warmed = from == file.bytes || file.warm().map(|()| false)?;
            Ok::<_, io::Error>((!is_warmed).then(|| (Arc::clone(file), from)))
        });
        let Some((file, from)) = step.transpose()?.flatten() else { return Ok(None) };
        let (to, step) = (file.warmed(), u64::from(pages_per_sync.max(1)) * PAGE_BYTES);
        if (to == file.bytes || from / step != to / step)
            && let Err(e) = file.file.sync()
        {
            self.fail_flush(&file, &e);
            return Err(e);
        }
        if to == file.bytes
            && is_locking
            && let Err(e) = file.lock()
            && !self.is_lock_refused.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                error = %e,
                "preheated log files are not locked in memory: raise the limit (ulimit -l, LimitMEMLOCK) or they may be \
                 pushed out"
            );
        }
        // Both files are equally long. At three quarters of the one the other shall be ready.
        let is_behind = self.used().is_some_and(|(written, bytes)| written * 4 > to * 3 || written >= bytes);
        Ok(Some(if is_behind { 1 } else { WARM_PAUSE_MS }))
    }

    /// Full files need not stay in memory.
    pub fn unlock_full(&self) {
        if let [full @ .., _] = &*self.files() {
            full.iter().for_each(|file| file.unlock());
        }
    }

    pub fn pool_free_count(&self) -> Option<usize> {
        self.pool.as_ref().map(TransientPool::free_count)
    }

    /// Whether an append finds no buffer of the pool where it needs one, and until when nothing is appended.
    pub fn is_pool_exhausted(&self) -> bool {
        self.pool.as_ref().is_some_and(|pool| pool.is_fast_fail && pool.free_count() == 0)
    }

    /// Writes what lies in buffers of the pool to the files. `false`: nothing was there.
    ///
    /// # Errors
    /// What the disk answers. The buffers keep what was not written; call again.
    pub fn commit(&self) -> io::Result<bool> {
        let Some(pool) = &self.pool else { return Ok(false) };
        // Before `written` is read: what asks for a commit later asks for another.
        self.is_commit_awaited.store(false, Ordering::SeqCst);
        let store_timestamp = self.store_timestamp();
        let written = self.written();
        if written == self.committed() {
            return Ok(false);
        }
        let mut result = Ok(true);
        for file in self.files().iter() {
            if file.end() <= self.committed() || file.start >= written {
                continue;
            }
            let end = written.min(file.end());
            if let Err(e) = file.name().and_then(|()| file.commit(end - file.start)) {
                result = Err(io::Error::new(e.kind(), format!("{}: {e}", file.path.display())));
                break;
            }
            self.committed.store(end, Ordering::Release);
            if let Some(buffer) = file.take_buffer() {
                pool.give_back(buffer);
            }
        }
        self.publish(self.committed());
        if result.is_ok() {
            self.published_timestamp.fetch_max(store_timestamp, Ordering::AcqRel);
        }
        result
    }

    /// Somebody waits for `queue` to grow. Whether there is something in a buffer that a commit would show him.
    pub fn await_commit(&self, queue: &ConsumeQueue) -> bool {
        if self.pool.is_none() {
            return false;
        }
        fence(Ordering::SeqCst);
        let is_awaited = queue.next() > queue.max();
        if is_awaited {
            self.is_commit_awaited.store(true, Ordering::Release);
        }
        is_awaited
    }

    pub fn is_commit_awaited(&self) -> bool {
        self.is_commit_awaited.load(Ordering::Acquire)
    }

    /// Pages of the buffers that are written to next.
    pub fn populate_buffers(&self) {
        if let Some(pool) = &self.pool {
            if let Some(file) = self.files().last() {
                file.populate_buffer();
            }
            pool.populate_next();
        }
    }

    /// Whether fewer than `pages` whole pages wait for a commit and no full file does.
    pub fn is_little_uncommitted(&self, pages: u64) -> bool {
        self.is_little(self.written(), self.committed(), pages)
    }

    /// Everything below `visible` can be seen by consumers.
    fn publish(&self, visible: u64) {
        let mut moved: Vec<Arc<ConsumeQueue>> = Vec::new();
        {
            let mut unpublished = self.unpublished.lock().unwrap_or_else(PoisonError::into_inner);
            while let Some(Unpublished { queue, next, .. }) =
                unpublished.pop_front_if(|unpublished| unpublished.log_end <= visible)
            {
                queue.publish(next);
                if !moved.last().is_some_and(|last| Arc::ptr_eq(last, &queue)) {
                    moved.push(queue);
                }
            }
        }
        // As behind an append: either a holder sees the new `max` or this sees its bit.
        fence(Ordering::SeqCst);
        moved.retain(|queue| queue.waiters.load(Ordering::SeqCst) != 0);
        if !moved.is_empty() {
            self.arrived.lock().unwrap_or_else(PoisonError::into_inner).append(&mut moved);
        }
    }

    /// Queues that have become longer for consumers while somebody waited for them, since the last call.
    pub fn take_arrived(&self) -> Vec<Arc<ConsumeQueue>> {
        std::mem::take(&mut *self.arrived.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Why nothing is flushed any more.
    pub fn flush_failure(&self) -> Option<String> {
        self.is_flush_failed().then(|| self.stop_reason())
    }

    /// fdatasync of what is committed and not flushed. Nothing to do: `None`; else the store time up to which the log is
    /// durable.
    ///
    /// # Errors
    /// Final: the log takes no more writes.
    pub fn flush(&self) -> io::Result<Option<u64>> {
        if self.is_flush_failed() {
            return Err(io::Error::other(self.stop_reason()));
        }
        let store_timestamp = if self.pool.is_some() { self.visible_timestamp() } else { self.store_timestamp() };
        let committed = self.committed();
        if committed == self.flushed() {
            return Ok(None);
        }
        let result = self.flush_to(committed);
        if self.is_sync() {
            self.publish(self.flushed());
            if result.is_ok() {
                self.published_timestamp.fetch_max(store_timestamp, Ordering::AcqRel);
            }
        }
        result.map(|()| Some(store_timestamp))
    }

    fn flush_to(&self, committed: u64) -> io::Result<()> {
        for file in self.files().iter() {
            if file.end() <= self.flushed() || file.start >= committed {
                continue;
            }
            let end = committed.min(file.end());
            if let Err(e) = self.sync_file(file) {
                self.fail_flush(file, &e);
                return Err(e);
            }
            file.publish_flushed(end - file.start);
            self.flushed.fetch_max(end, Ordering::AcqRel);
        }
        Ok(())
    }

    fn fail_flush(&self, file: &MappedFile, error: &io::Error) {
        let path = file.path.display();
        self.stop(&format!(
            "a flush of {path} failed ({error}); what was not flushed may be lost, restart when the disk is repaired"
        ));
        // Behind the reason: who finds the failure finds it, too.
        self.is_flush_failed.store(true, Ordering::Release);
        failed_sync::note(&*self.place.disk, &self.place.root);
        tracing::error!(%path, %error, "flush failed, the log takes no more writes");
    }

    fn sync_file(&self, file: &MappedFile) -> io::Result<()> {
        file.file.sync()?;
        self.sync_names()
    }

    /// Names of the log's files survive a power loss: before anything that points into them does.
    pub fn sync_names(&self) -> io::Result<()> {
        let files = self.files();
        let is_unsynced = |file: &&Arc<MappedFile>| !file.is_name_synced.load(Ordering::Relaxed) && file.is_named();
        let unsynced: Vec<_> = files.iter().filter(is_unsynced).collect();
        if !unsynced.is_empty() {
            self.place.disk.sync_dir(&self.place.dir)?;
            unsynced.iter().for_each(|file| file.is_name_synced.store(true, Ordering::Relaxed));
        }
        Ok(())
    }

    pub fn is_flush_failed(&self) -> bool {
        self.is_flush_failed.load(Ordering::Acquire)
    }

    /// Whether fewer than `pages` whole pages wait for a flush and no full file does.
    pub fn is_little_unflushed(&self, pages: u64) -> bool {
        self.is_little(self.committed(), self.flushed(), pages)
    }

    fn is_little(&self, to: u64, from: u64, pages: u64) -> bool {
        to / PAGE_BYTES - from / PAGE_BYTES < pages && to / self.place.file_bytes == from / self.place.file_bytes
    }

    /// Takes away the files that nothing was written to. No append can be under way: the log is stopped.
    pub fn remove_unused(&self) -> io::Result<()> {
        assert!(self.is_stopped());
        // It has no name and goes with its descriptor.
        self.ahead.clear();
        // The first file when nothing was ever written. A later empty one stays: it shows where the log ends.
        if self.written() == 0 {
            for file in self.files().iter() {
                self.place.disk.remove_file(&file.path)?;
            }
        }
        Ok(())
    }
}
