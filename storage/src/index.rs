//! The index: which records carry a key. Built from the log by the file agent, read by queries.
//!
//! ```text
//! log      min ................... built .............. written
//!              | in the index       | not yet: the next build, of the agent or of a query
//! files    full | full | active: items on disk, slots and header in memory
//! filing   checkpoint below the file's end → slots, header → fdatasync → checkpoint says T
//! ```
//! A record is indexed by UNIQ_KEY, then by each word of KEYS, under its own topic; rolled-back records are not. The append
//! only hands over the keys (index_keys.rs): the agent puts them behind the appends, by slices, and holds no lock longer than
//! one; where there are none it walks the log.
//! A query first builds what is missing, if that is little, so that a message is found as soon as it is stored.
//!
//! What a kill finds on disk is the state of the last filing, which is the checkpoint's: a Java broker opens it without
//! destroying a file and completes it from where it reads the log. Only in the middle of a filing the checkpoint lies
//! below the file's end, and then Java makes the file anew, and we make its slots anew from its items.
//!
//! ```text
//! open     no file, or items are missing from it        everything in the log is put (in the background)
//!          end time above the checkpoint, after a crash  items checked in order, slots made from them; cut at the first
//!                                                        that is none, as what the items of a lost page are
//!          items of records behind the log's end         cut
//!          last record half put                          its other keys are put
//! ```
//! A file of another length than the configuration's is passed over: its shape is not known.
//! Source: IndexService.java (4.9.7, 5.3.3).

use crate::checkpoint::Checkpoint;
use crate::commit_log::{CommitLog, Files, find};
use crate::disk::Disk;
use crate::failed_sync;
use crate::index_file::{Active, IndexFile, ItemReader, Shape, file_name, item_hash, parse_file_name};
pub use crate::index_file::{HEADER_BYTES, Header, ITEM_BYTES, Item, SLOT_BYTES};
use crate::index_keys::{Key, Next, OwnKeys};
use crate::mapped_file::MappedFile;
use crate::record::decode::{Checked, Record, check};
use crate::record::java_text::java_hash_on;
use crate::record::layout::sys_flag;
use crate::record::properties::{KEYS, UNIQ_KEY, get_each};
use bytes::Bytes;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What one build may walk before others get the lock: some 100 µs.
const SLICE_BYTES: u64 = 1 << 20;
const SLICE_KEYS: usize = 1024;
/// As much of the log behind the index is worth a line at start.
const TOLD_BYTES: u64 = 64 << 20;
/// Of records without keys between two index files, before a start believes that there are none with keys.
const GAP_LOOK_BYTES: u64 = 1 << 20;
/// What a query builds by itself at most.
const QUERY_SLICES_MAX: usize = 16;
/// Pages of items and records that one query may read. They can be cold, and it runs on a shard.
const QUERY_READS_MAX: usize = 4096;
const QUERY_RECORDS_MAX: usize = 1024;
/// Bytes of records in one answer: a client's frame has at most 16 MiB.
const QUERY_BYTES_MAX: usize = 12 << 20;

/// `messageIndexEnable`, `maxHashSlotNum`, `maxIndexNum`.
#[derive(Clone, Copy, Debug)]
pub struct IndexConfig {
    pub is_enabled: bool,
    pub slot_count: u32,
    pub item_count: u32,
}

impl Default for IndexConfig {
    fn default() -> IndexConfig {
        IndexConfig { is_enabled: true, slot_count: 5_000_000, item_count: 20_000_000 }
    }
}

impl IndexConfig {
    pub(crate) fn shape(&self) -> Shape {
        Shape { slot_count: self.slot_count, item_count: self.item_count }
    }
}

/// What a clean stop notes of the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IndexEnd {
    /// Every record below has its items.
    pub built: u64,
    pub item_count: u64,
}

pub struct KeyQuery<'a> {
    pub topic: &'a str,
    pub key: &'a str,
    /// Only UNIQ_KEY counts, not KEYS.
    pub is_unique: bool,
    pub count_max: usize,
    /// Store times, both included, in ms.
    pub begin_ms: i64,
    pub end_ms: i64,
}

#[derive(Debug, Default)]
pub struct KeyFound {
    /// Oldest first. The newest ones, if there are more than asked for.
    pub records: Vec<Bytes>,
    /// Of the newest item in the index.
    pub last_timestamp: i64,
    pub last_log_offset: u64,
    /// The search ended at a limit of its own and not of the caller's.
    pub is_cut: bool,
}

/// What a build leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Built {
    All,
    More,
    /// The last file is full, or there is none: the agent makes the next.
    FileWanted,
}

pub(crate) struct Index {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    staging: PathBuf,
    shape: Shape,
    is_enabled: bool,
    built: AtomicU64,
    is_dirty: AtomicBool,
    state: Mutex<State>,
}

struct State {
    /// In order, all but the active one.
    full: Vec<(Arc<IndexFile>, Header)>,
    active: Option<Active>,
    /// The name of the newest file there ever was.
    last_name: Option<u64>,
    /// Log offset of the next record to walk; the keys of those before that wait for their file.
    position: u64,
    waiting: Vec<Key>,
    /// Store time of the newest record walked, and of the newest whose keys are all put.
    walked_timestamp: u64,
    built_timestamp: u64,
    /// Slots are on their way to the file: nothing may be put meanwhile.
    is_filing: bool,
    /// The checkpoint can not vouch for the last file until it is filed.
    is_filing_urgent: bool,
    /// The folder's names are not durable.
    is_name_unsynced: bool,
    /// A sync failed: what the files hold is unknown, so the checkpoint stays below them for good.
    is_failed: bool,
    topic: TopicHash,
    own: OwnKeys,
    buffer: Vec<u8>,
}

/// Hash of `topic#`, of the topic asked for last.
#[derive(Default)]
pub(crate) struct TopicHash {
    topic: Vec<u8>,
    hash: i32,
}

impl TopicHash {
    pub fn of(&mut self, topic: &[u8]) -> i32 {
        if self.topic != topic || topic.is_empty() {
            self.topic.clear();
            self.topic.extend_from_slice(topic);
            self.hash = java_hash_on(java_hash_on(0, topic), b"#");
        }
        self.hash
    }
}

/// The hash under which a key of a topic is found. Source: IndexFile.indexKeyHashMethod.
pub fn key_hash(topic: &[u8], key: &[u8]) -> u32 {
    item_hash(java_hash_on(TopicHash::default().of(topic), key))
}

/// The properties by which a record is found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keys<'a> {
    pub uniq_key: Option<&'a [u8]>,
    pub keys: Option<&'a [u8]>,
}

impl<'a> Keys<'a> {
    pub fn of(properties: &'a [u8]) -> Keys<'a> {
        let [uniq_key, keys] = get_each(properties, [UNIQ_KEY, KEYS]);
        Keys { uniq_key, keys }
    }

    /// Each in the order in which Java puts them; none of a record that was rolled back.
    pub(crate) fn indexed(self, flags: i32) -> impl Iterator<Item = &'a [u8]> {
        let is_indexed = flags & sys_flag::TRANSACTION_MASK != sys_flag::ROLLBACK;
        let Keys { uniq_key, keys } = if is_indexed { self } else { Keys::default() };
        uniq_key.into_iter().chain(words(keys.unwrap_or_default()))
    }
}

/// The keys of a record in the order in which Java puts them.
pub fn keys_of<'a>(record: &Record<'a>) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    Keys::of(record.properties).indexed(record.sys_flag)
}

/// `String.split(" ")` without what is empty.
fn words(keys: &[u8]) -> impl Iterator<Item = &[u8]> {
    keys.split(|byte| *byte == b' ').filter(|word| !word.is_empty())
}

/// Whether a query for `key` means this record.
fn is_of(record: &Record<'_>, query: &KeyQuery<'_>) -> bool {
    let [uniq_key, keys] = get_each(record.properties, [UNIQ_KEY, KEYS]);
    let key = query.key.as_bytes();
    record.topic == query.topic.as_bytes()
        && (uniq_key == Some(key) || (!query.is_unique && words(keys.unwrap_or_default()).any(|word| word == key)))
}

/// What recovery knows of the log.
pub(crate) struct Found<'a> {
    pub is_clean: bool,
    /// Of our own clean stop, if the last one was.
    pub noted: Option<IndexEnd>,
    pub log: &'a CommitLog,
    pub checkpoint: &'a Checkpoint,
}

impl Index {
    /// Never fails: what can not be opened is told and passed over, as everything here can be made from the log.
    pub fn open(
        disk: &Arc<dyn Disk>,
        root: &Path,
        staging: &Path,
        config: &IndexConfig,
        found: &Found<'_>,
        lines: &mut Vec<String>,
    ) -> Index {
        let dir = root.join("index");
        let mut opening = Opening { disk: &**disk, dir: &dir, shape: config.shape(), found, lines };
        let state = if config.is_enabled { opening.state() } else { State::new(found.log.written()) };
        if !config.is_enabled {
            found.log.keys.turn_off();
        }
        Index {
            disk: Arc::clone(disk),
            dir,
            staging: staging.to_path_buf(),
            shape: config.shape(),
            is_enabled: config.is_enabled,
            built: AtomicU64::new(state.position),
            is_dirty: AtomicBool::new(state.is_filing_urgent),
            state: Mutex::new(state),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether records wait to be indexed.
    pub fn is_behind(&self, log: &CommitLog) -> bool {
        self.is_enabled && self.built.load(Ordering::Relaxed) < log.visible()
    }

    /// Whether there is something that a filing would bring to the device.
    pub fn is_dirty(&self) -> bool {
        self.is_dirty.load(Ordering::Relaxed)
    }

    pub fn end(&self) -> IndexEnd {
        let state = self.lock();
        let item_count = state.headers().map(Header::item_count).sum();
        IndexEnd { built: self.built.load(Ordering::Relaxed), item_count }
    }

    /// The agent's turn: up to `slices_max` slices of the log. `true`: nothing is left.
    ///
    /// # Errors
    /// What the disk answers; the same records are tried again by the next call.
    pub fn build(&self, log: &CommitLog, checkpoint: &Checkpoint, now_ms: u64, slices_max: usize) -> io::Result<bool> {
        if !self.is_enabled {
            return Ok(true);
        }
        for _ in 0..slices_max {
            let built = self.build_slice(log, &mut self.lock())?;
            match built {
                Built::All => return Ok(true),
                Built::More => {}
                Built::FileWanted => {
                    // The full file first: none behind the checkpoint's time may be left when the next one begins.
                    self.file(checkpoint)?;
                    self.next_file(now_ms)?;
                }
            }
        }
        Ok(false)
    }

    fn build_slice(&self, log: &CommitLog, state: &mut State) -> io::Result<Built> {
        if state.waiting.is_empty() {
            state.walk(log);
        }
        if !state.waiting.is_empty() {
            let State { active, waiting, buffer, .. } = state;
            let Some(active) = active.as_mut().filter(|active| !active.is_full()) else {
                return Ok(Built::FileWanted);
            };
            self.is_dirty.store(true, Ordering::Relaxed);
            let count = active.put(waiting, buffer)?;
            waiting.drain(..count);
            if !waiting.is_empty() {
                return Ok(Built::FileWanted);
            }
        }
        state.built_timestamp = state.walked_timestamp;
        self.built.store(state.position, Ordering::Relaxed);
        Ok(if state.position < log.visible() { Built::More } else { Built::All })
    }

    fn next_file(&self, now_ms: u64) -> io::Result<()> {
        let mut state = self.lock();
        let previous = state.headers().last().copied();
        let header = Header::after(previous.as_ref());
        let name = file_name(now_ms, state.last_name);
        self.disk.create_dirs(&self.dir)?;
        let file = IndexFile::create(&*self.disk, self.dir.join(&name), &self.staging, self.shape, &header)?;
        state.last_name = name.parse().ok();
        state.is_name_unsynced = true;
        if let Some(active) = state.active.replace(Active::new(file, header, true)) {
            state.full.push((active.file, active.header));
        }
        Ok(())
    }

    /// Brings the index to the device and says so in the checkpoint. Queries go on meanwhile; only the agent calls it.
    ///
    /// # Errors
    /// What the disk answers. After a failed sync none of it is ever called durable.
    pub fn file(&self, checkpoint: &Checkpoint) -> io::Result<()> {
        if !self.is_enabled {
            return Ok(());
        }
        let mut state = self.lock();
        if state.is_failed {
            return Err(io::Error::other("a flush of the index has failed before"));
        }
        let is_needed = state.is_filing_urgent || state.is_name_unsynced || self.is_dirty();
        let Some(active) = state.active.as_ref().filter(|_| is_needed) else {
            checkpoint.set_index(state.built_timestamp);
            return Ok(());
        };
        let (file, header) = (Arc::clone(&active.file), active.header);
        let (is_name_unsynced, time) = (state.is_name_unsynced, state.built_timestamp.max(header.end_timestamp as u64));
        state.is_filing = true;
        drop(state);
        let result = self.file_head(checkpoint, &file, &header, is_name_unsynced);
        let mut state = self.lock();
        state.is_filing = false;
        match result {
            Ok(()) => {
                state.is_filing_urgent = false;
                state.is_name_unsynced = false;
                self.is_dirty.store(false, Ordering::Relaxed);
                drop(state);
                checkpoint.set_index(time);
                checkpoint.write()
            }
            Err(FilingError::Write(e)) => Err(e),
            Err(FilingError::Sync(e)) => {
                state.is_failed = true;
                drop(state);
                failed_sync::note(&*self.disk, self.dir.parent().unwrap_or(&self.dir));
                Err(e)
            }
        }
    }

    fn file_head(
        &self,
        checkpoint: &Checkpoint,
        file: &IndexFile,
        header: &Header,
        is_name_unsynced: bool,
    ) -> Result<(), FilingError> {
        let time = checkpoint.times().index;
        let before = self.filed_end(file).map_err(FilingError::Write)?;
        if time >= before {
            checkpoint.set_index(before.saturating_sub(1));
            checkpoint.write().map_err(FilingError::Sync)?;
        }
        let mut buffer = Vec::new();
        loop {
            let position = self.lock().active.as_mut().and_then(|active| active.take_dirty(&mut buffer));
            let Some(position) = position else { break };
            if let Err(e) = file.write_slots(position, &buffer) {
                if let Some(active) = &mut self.lock().active {
                    active.give_back_dirty(position, buffer.len());
                }
                return Err(FilingError::Write(e));
            }
        }
        file.write_header(header).map_err(FilingError::Write)?;
        file.sync().map_err(FilingError::Sync)?;
        if is_name_unsynced {
            self.disk.sync_dir(&self.dir).map_err(FilingError::Sync)?;
        }
        Ok(())
    }

    /// End time in the header on disk.
    fn filed_end(&self, file: &IndexFile) -> io::Result<u64> {
        Ok(u64::try_from(file.read_header()?.end_timestamp).unwrap_or(0))
    }

    /// Removes the files of which no record is left in the log, never the last one.
    pub fn remove_before(&self, log_min: u64) {
        let mut state = self.lock();
        let count = state.full.iter().take_while(|(_, header)| header.end_log_offset < log_min).count();
        let kept_min = usize::from(state.active.is_none());
        let count = count.min(state.full.len().saturating_sub(kept_min));
        let gone: Vec<_> = state.full.drain(..count).collect();
        drop(state);
        for (file, _) in gone {
            match self.disk.remove_file(&file.path) {
                Ok(()) => tracing::info!(path = %file.path.display(), "index file removed, its records are gone"),
                Err(e) => {
                    tracing::warn!(path = %file.path.display(), error = %e, "index file not removed; the next start tries again")
                }
            }
        }
    }
}

enum FilingError {
    /// To be tried again.
    Write(io::Error),
    /// Final.
    Sync(io::Error),
}

impl State {
    fn new(position: u64) -> State {
        State {
            full: Vec::new(),
            active: None,
            last_name: None,
            position,
            waiting: Vec::new(),
            walked_timestamp: 0,
            built_timestamp: 0,
            is_filing: false,
            is_filing_urgent: false,
            is_name_unsynced: false,
            is_failed: false,
            topic: TopicHash::default(),
            own: OwnKeys::default(),
            buffer: Vec::new(),
        }
    }

    fn headers(&self) -> impl Iterator<Item = &Header> {
        self.full.iter().map(|(_, header)| header).chain(self.active.as_ref().map(|active| &active.header))
    }

    /// Collects the keys of the next slice of the log, as they were handed over or from the records.
    fn walk(&mut self, log: &CommitLog) {
        // The end first: what is below it lies in the files taken after.
        let end = log.visible();
        if self.position >= end {
            return;
        }
        let end = match self.own.take(&log.keys, self.position, end, SLICE_KEYS, &mut self.waiting) {
            Next::Taken { position, store_timestamp } => {
                self.position = position;
                self.walked_timestamp = self.walked_timestamp.max(store_timestamp);
                return;
            }
            Next::Walk { to } => to,
        };
        let files = log.files();
        let mut bytes_left = SLICE_BYTES;
        while self.position < end && bytes_left > 0 && self.waiting.len() < SLICE_KEYS {
            let Some(file) = find(&files, self.position) else {
                // Retention was faster.
                let first = files.first().map_or(end, |file| file.start);
                self.position = if first > self.position { first.min(end) } else { end };
                continue;
            };
            let bytes = file.slice(self.position - file.start..end.min(file.end()) - file.start);
            let step = self.walk_record(bytes, file);
            self.position += step;
            bytes_left = bytes_left.saturating_sub(step);
        }
    }

    /// Takes the keys of what starts at `position`; returns how many bytes it has.
    fn walk_record(&mut self, bytes: &[u8], file: &MappedFile) -> u64 {
        let to_end = file.end().min(self.position + bytes.len() as u64) - self.position;
        match check(bytes, Some(self.position), false) {
            Ok(Checked::Record(record)) => {
                self.take_keys(&record, 0);
                record.bytes.len() as u64
            }
            Ok(Checked::Blank { .. } | Checked::End) => to_end,
            Err(fault) => {
                tracing::error!(path = %file.path.display(), offset = self.position, %fault, "records are out of the index's reach");
                to_end
            }
        }
    }

    fn take_keys(&mut self, record: &Record<'_>, skip: usize) {
        let prefix = self.topic.of(record.topic);
        let (log_offset, store_timestamp) = (record.log_offset, record.store_timestamp);
        self.waiting.extend(keys_of(record).skip(skip).map(|key| Key {
            hash: item_hash(java_hash_on(prefix, key)),
            log_offset,
            store_timestamp,
        }));
        self.walked_timestamp = self.walked_timestamp.max(u64::try_from(store_timestamp).unwrap_or(0));
    }
}

/// Makes the state from the files found.
struct Opening<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    shape: Shape,
    found: &'a Found<'a>,
    lines: &'a mut Vec<String>,
}

impl Opening<'_> {
    fn state(&mut self) -> State {
        let log = self.found.log;
        let mut state = State::new(log.min());
        state.walked_timestamp = self.found.checkpoint.times().index;
        let mut files = self.files(&mut state.last_name);
        let mut is_changed = false;
        let item_count: u64 = files.iter().map(|file| file.header.item_count()).sum();
        if self.found.noted.is_some_and(|noted| item_count < noted.item_count) && !files.is_empty() {
            self.lines.push(format!("{}: items are missing since the last stop, it is made anew", self.dir.display()));
            files.drain(..).for_each(|file| self.remove(&file.file.path));
        }
        let mut at = 0;
        while at < files.len() {
            let is_last = at + 1 == files.len();
            let is_cut = match self.check(&mut files[at]) {
                // The next file begins when the one before is full.
                Ok(Check::Good) if !is_last && !files[at].is_full() => {
                    let path = files[at].file.path.clone();
                    self.lines.push(format!("{}: is not full, but files follow", path.display()));
                    is_changed = true;
                    true
                }
                Ok(Check::Good) => false,
                Ok(Check::Mended { is_cut }) => {
                    is_changed = true;
                    is_cut
                }
                Err(e) => {
                    let path = files[at].file.path.clone();
                    self.lines.push(format!("{}: can not be used ({e}), made anew from the log", path.display()));
                    files[at].header.next = 1;
                    true
                }
            };
            if is_cut {
                let keep = at + usize::from(!files[at].header.is_empty());
                for file in files.drain(keep..) {
                    self.remove(&file.file.path);
                }
                break;
            }
            at += 1;
        }
        if self.found.noted.is_none()
            && let Some(at) = self.gap(&files)
        {
            self.lines.push(format!("{}: a file is missing before its file {}", self.dir.display(), at + 1));
            is_changed = true;
            for file in files.drain(at..) {
                self.remove(&file.file.path);
            }
        }
        state.is_filing_urgent = is_changed;
        self.place(&mut state, files);
        state
    }

    /// The first file that does not begin where the one before it, or the log, would have it: between them the log has a
    /// record with keys.
    fn gap(&self, files: &[Active]) -> Option<usize> {
        let log = self.found.log;
        let log_files = log.files();
        let mut from = log.min();
        for (index, header) in files.iter().map(|file| file.header).enumerate() {
            if header.is_empty() {
                continue;
            }
            let begin = header.begin_log_offset;
            let end = begin.min(from.saturating_add(GAP_LOOK_BYTES));
            while from < end {
                let Some(file) = find(&log_files, from) else { break };
                match record_in(&log_files, from) {
                    Some(record) if keys_of(&record).next().is_some() => return Some(index),
                    Some(record) => from += record.bytes.len() as u64,
                    None => from = file.end(),
                }
            }
            from = header.end_log_offset.max(log.min());
            // The last one's other keys may be in the next file.
            if from == header.end_log_offset
                && let Some(record) = record_in(&log_files, from)
            {
                from += record.bytes.len() as u64;
            }
        }
        None
    }

    fn remove(&mut self, path: &Path) {
        let result = self.disk.remove_file(path);
        self.lines.push(match result {
            Ok(()) => format!("{}: removed, its keys are put anew from the log", path.display()),
            Err(e) => format!("{}: can not be removed: {e}", path.display()),
        });
    }

    /// Every file of the right length, in order.
    fn files(&mut self, last_name: &mut Option<u64>) -> Vec<Active> {
        let found = match self.disk.list(self.dir) {
            Ok(found) => found,
            Err(e) => {
                self.lines.push(format!("{}: can not be listed: {e}", self.dir.display()));
                return Vec::new();
            }
        };
        let mut files = Vec::new();
        for found in found {
            let path = self.dir.join(&found.name);
            let name = found.name.to_str().filter(|_| !found.is_dir).and_then(parse_file_name);
            let Some(name) = name else {
                self.lines.push(format!("{}: no index file, passed over", path.display()));
                continue;
            };
            *last_name = Some(last_name.map_or(name, |last: u64| last.max(name)));
            if found.bytes != self.shape.file_bytes() {
                self.lines.push(format!(
                    "{}: {} bytes instead of {}: another maxHashSlotNum or maxIndexNum; passed over, queries do not see its messages",
                    path.display(),
                    found.bytes,
                    self.shape.file_bytes()
                ));
                continue;
            }
            match IndexFile::open(self.disk, path.clone(), self.shape) {
                Ok((file, header)) => files.push(Active::new(file, header, false)),
                Err(e) => self.lines.push(format!("{}: can not be opened, passed over: {e}", path.display())),
            }
        }
        files
    }

    fn check(&mut self, file: &mut Active) -> io::Result<Check> {
        let header = file.header;
        let end = self.found.log.written();
        if !header.is_plausible(self.shape) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its header is damaged"));
        }
        let index_time = self.found.checkpoint.times().index;
        let is_unsure = !self.found.is_clean && header.end_timestamp as u64 > index_time;
        if header.is_empty() {
            // A filing may have begun: slots without items.
            file.relink()?;
            return Ok(Check::Good);
        }
        let noted_end = ItemReader::new(&file.file, header.next).read(header.next - 1)?.log_offset;
        if !is_unsure && header.end_log_offset < end && noted_end == header.end_log_offset {
            return Ok(Check::Good);
        }
        let mut next = 1;
        let mut last = Item { hash: 0, log_offset: 0, seconds: 0, previous: 0 };
        file.file.scan(header.next, &mut |number, item| {
            let is_item = item.log_offset >= last.log_offset
                && item.log_offset < end
                && item != Item { hash: 0, log_offset: 0, seconds: 0, previous: 0 }
                && item.previous <= number
                && item.hash <= i32::MAX as u32
                && item.seconds <= i32::MAX as u32;
            if is_item {
                (next, last) = (number + 1, item);
            }
            is_item
        })?;
        let is_cut = next < header.next || last.log_offset != header.end_log_offset;
        if is_cut {
            self.lines.push(format!(
                "{}: {} of {} items are of records in the log, others are put anew",
                file.file.path.display(),
                next - 1,
                header.next - 1
            ));
            if next > 1 {
                file.header.end_log_offset = last.log_offset;
                file.header.end_timestamp =
                    self.store_timestamp(last.log_offset).unwrap_or_else(|| header.item_timestamp(&last));
            }
        }
        file.header.next = next;
        if next > 1 {
            self.lower_checkpoint(header.end_timestamp.min(file.header.end_timestamp))?;
            file.relink()?;
        }
        Ok(Check::Mended { is_cut })
    }

    /// A file whose end the checkpoint covers must not be changed before it no longer does.
    fn lower_checkpoint(&self, end_timestamp: i64) -> io::Result<()> {
        let end = u64::try_from(end_timestamp).unwrap_or(0);
        if self.found.checkpoint.times().index >= end {
            self.found.checkpoint.set_index(end.saturating_sub(1));
            self.found.checkpoint.write()?;
        }
        Ok(())
    }

    fn store_timestamp(&self, log_offset: u64) -> Option<i64> {
        record_in(&self.found.log.files(), log_offset).map(|record| record.store_timestamp)
    }

    /// Where to go on: behind the last record that is whole in the index.
    fn place(&mut self, state: &mut State, mut files: Vec<Active>) {
        let log = self.found.log;
        let log_end = log.written();
        let last = files.iter().rev().map(|file| file.header).find(|header| !header.is_empty());
        let item_count: u64 = files.iter().map(|file| file.header.item_count()).sum();
        if let Some(header) = last {
            state.walked_timestamp = state.walked_timestamp.max(header.end_timestamp as u64);
            state.position = header.end_log_offset.max(log.min()).min(log_end);
            if state.position == header.end_log_offset {
                self.resume(state, &files);
            }
        }
        if let Some(noted) = self.found.noted
            && noted.item_count == item_count
            && noted.built >= state.position
        {
            state.position = noted.built.min(log_end);
            state.waiting.clear();
        }
        state.built_timestamp = state.walked_timestamp;
        // A Java broker leaves the checkpoint behind its last file for as long as that is not full.
        let index_time = self.found.checkpoint.times().index;
        state.is_filing_urgent |= last.is_some_and(|header| header.end_timestamp as u64 > index_time);
        if files.last().is_some_and(|file| !file.is_full()) {
            state.active = files.pop();
        }
        for mut file in files {
            match settle(&mut file) {
                Ok(()) => state.full.push((file.file, file.header)),
                Err(e) => self.lines.push(format!("{}: can not be mended: {e}", file.file.path.display())),
            }
        }
        let left = log_end - state.position;
        if left > TOLD_BYTES {
            self.lines.push(format!(
                "{}: {left} bytes of the log are not in the index yet and are put while the broker serves",
                self.dir.display()
            ));
        }
    }

    /// The record at `position` is in the index with some or all of its keys; those that are not are put.
    fn resume(&self, state: &mut State, files: &[Active]) {
        let log_files = self.found.log.files();
        let Some(record) = record_in(&log_files, state.position) else { return };
        let mut done = 0;
        for file in files.iter().rev() {
            let next = file.header.next;
            // A file that can not be read: better no key twice.
            let count = file.file.count_of_last(next, record.log_offset).unwrap_or(u32::MAX - 1);
            done += count as usize;
            if count + 1 < next {
                break;
            }
        }
        state.take_keys(&record, done);
        state.position += record.bytes.len() as u64;
    }
}

/// Brings what was mended in a full file to it; only the last file is filed later.
fn settle(file: &mut Active) -> io::Result<()> {
    if !file.is_dirty() {
        return Ok(());
    }
    let mut buffer = Vec::new();
    while let Some(position) = file.take_dirty(&mut buffer) {
        file.file.write_slots(position, &buffer)?;
    }
    file.file.write_header(&file.header)?;
    file.file.sync()
}

fn record_in(files: &[Arc<MappedFile>], log_offset: u64) -> Option<Record<'_>> {
    let file = find(files, log_offset)?;
    let readable = file.readable();
    let bytes = file.slice((log_offset - file.start).min(readable)..readable);
    match check(bytes, Some(log_offset), false) {
        Ok(Checked::Record(record)) => Some(record),
        _ => None,
    }
}

enum Check {
    Good,
    /// Its slots were made anew; `is_cut`: items were taken away.
    Mended {
        is_cut: bool,
    },
}

/// Queries.
impl Index {
    /// The records that carry the key, the newest `count_max` of them.
    pub fn find(&self, log: &CommitLog, query: &KeyQuery<'_>) -> KeyFound {
        let mut found = KeyFound::default();
        if !self.is_enabled {
            return found;
        }
        let prefix = java_hash_on(java_hash_on(0, query.topic.as_bytes()), b"#");
        let hash = item_hash(java_hash_on(prefix, query.key.as_bytes()));
        let mut state = self.lock();
        self.build_for_query(log, &mut state);
        let mut files: Vec<_> = state.full.iter().map(|(file, header)| (Arc::clone(file), *header, None)).collect();
        if let Some(active) = &mut state.active {
            let newest = active.newest(hash).unwrap_or_else(|e| told(&active.file, &e));
            files.push((Arc::clone(&active.file), active.header, Some(newest)));
        }
        drop(state);
        if let Some((_, header, _)) = files.last() {
            found.last_timestamp = header.end_timestamp;
            found.last_log_offset = header.end_log_offset;
        }
        let mut search = Search {
            query,
            hash,
            log_files: log.files(),
            found: Vec::new(),
            bytes: 0,
            reads_left: QUERY_READS_MAX,
            records_left: QUERY_RECORDS_MAX,
            is_cut: false,
        };
        for (file, header, newest) in files.iter().rev() {
            if header.begin_timestamp <= query.end_ms && header.end_timestamp >= query.begin_ms {
                let newest = newest.unwrap_or_else(|| file.read_slot(hash).unwrap_or_else(|e| told(file, &e)));
                search.chain(file, header, newest);
            }
            if header.begin_timestamp < query.begin_ms || search.is_done() {
                break;
            }
        }
        search.found.sort_unstable_by_key(|(log_offset, _)| *log_offset);
        found.is_cut = search.is_cut;
        found.records = search.found.into_iter().map(|(_, record)| record).collect();
        found
    }

    /// A message is found as soon as it is stored, unless so many came before it that the agent must do it.
    fn build_for_query(&self, log: &CommitLog, state: &mut State) {
        if state.is_filing {
            return;
        }
        for _ in 0..QUERY_SLICES_MAX {
            match self.build_slice(log, state) {
                Ok(Built::More) => {}
                Ok(Built::All | Built::FileWanted) => return,
                Err(e) => return tracing::warn!(error = %e, "the index can not be written"),
            }
        }
    }
}

fn told(file: &IndexFile, error: &io::Error) -> u32 {
    tracing::error!(path = %file.path.display(), %error, "index file not readable");
    0
}

struct Search<'a> {
    query: &'a KeyQuery<'a>,
    hash: u32,
    log_files: Files,
    found: Vec<(u64, Bytes)>,
    bytes: usize,
    reads_left: usize,
    records_left: usize,
    is_cut: bool,
}

impl Search<'_> {
    fn is_done(&self) -> bool {
        self.is_cut || self.found.len() >= self.query.count_max
    }

    /// Follows a chain, the newest item first.
    fn chain(&mut self, file: &IndexFile, header: &Header, newest: u32) {
        let mut items = ItemReader::new(file, header.next);
        let mut number = newest;
        while !self.is_done() && (1..header.next).contains(&number) {
            let item = match items.read(number) {
                Ok(item) => item,
                Err(e) => {
                    told(file, &e);
                    break;
                }
            };
            if items.read_count > self.reads_left {
                self.is_cut = true;
                break;
            }
            let second = header.item_timestamp(&item);
            // The record was stored within this second.
            let is_before = second.saturating_add(999) < self.query.begin_ms;
            if item.hash == self.hash && !is_before && second <= self.query.end_ms {
                self.candidate(item.log_offset);
            }
            // A chain goes down, else it is none.
            if is_before || item.previous >= number {
                break;
            }
            number = item.previous;
        }
        self.reads_left = self.reads_left.saturating_sub(items.read_count);
    }

    /// Takes the record if it is one of those asked for and not another with the same hash.
    fn candidate(&mut self, log_offset: u64) {
        if self.found.iter().any(|(taken, _)| *taken == log_offset) {
            return;
        }
        let Some(left) = self.records_left.checked_sub(1) else {
            self.is_cut = true;
            return;
        };
        self.records_left = left;
        let Some(file) = find(&self.log_files, log_offset) else { return };
        let Some(record) = record_in(&self.log_files, log_offset) else { return };
        if !is_of(&record, self.query) || record.store_timestamp < self.query.begin_ms {
            return;
        }
        let bytes = record.bytes.len();
        if self.bytes + bytes > QUERY_BYTES_MAX && !self.found.is_empty() {
            self.is_cut = true;
            return;
        }
        self.bytes += bytes;
        let position = log_offset - file.start;
        self.found.push((log_offset, file.pinned(position..position + bytes as u64)));
    }
}
