//! The store as the broker sees it.
//!
//! ```text
//! shard     append: gate, one write, tails, `max`          read: entries from tail or files, records from mappings
//! agents    flush_turn: fdatasync of the log               files_turn: next log file, tails to files, queue sync, checkpoint
//!           commit_turn: buffers of the pool into the log files
//! ```
//! A store starts no thread and asks for no time: the node calls the turns, from one thread each, and passes `now_ms`.

use crate::agent::{CommitAgent, FileAgent, FlushAgent, Waiter};
use crate::append::{AppendBatch, AppendOutcome};
use crate::checkpoint::Checkpoint;
use crate::clean_stop::{CleanStop, Tally};
use crate::commit_log::CommitLog;
use crate::consume_queue::{ConsumeQueue, ENTRY_BYTES, Entry, QueueRoom};
use crate::deleted_topics::DeletedTopics;
use crate::disk::{Disk, RealDisk};
use crate::error::{AppendError, OpenError};
use crate::ext::ExtFiles;
use crate::flush::{FlushKeys, Medium, Promise};
use crate::index::{Index, IndexConfig, KeyFound, KeyQuery};
use crate::lock::StoreLock;
use crate::read::{self, EntryTest, Read, ReadLimits};
use crate::record::decode::peek_store_timestamp;
use crate::record::properties;
use crate::recovery::{self, Recovered};
use crate::retention::Cleaning;
use crate::transient_pool::TransientPool;
use bytes::Bytes;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Entries in memory that no file holds yet, at most: 64 MiB.
const PENDING_COUNT_MAX: u64 = (64 << 20) / 24;

/// A store time further ahead of the clock is worth a remark.
const FUTURE_MS: u64 = 5000;

#[derive(Clone, Debug)]
pub struct StoreConfig {
    pub root: PathBuf,
    pub commit_log_dir: PathBuf,
    pub commit_log_file_bytes: u64,
    pub consume_queue_file_bytes: u64,
    pub body_bytes_max: usize,
    pub promise: Promise,
    pub medium: Medium,
    /// As it starts; [`Store::set_keys`] changes them.
    pub keys: FlushKeys,
    pub check_crc_on_recover: bool,
    pub index: IndexConfig,
    /// `messageDelayLevel`, from level 1 on.
    pub delays_ms: Vec<i64>,
    /// Those of topics.json, when it can be read: after a clean stop others without a queue were deleted by a Java broker.
    pub topics: Option<BTreeSet<String>>,
}

/// Smaller files would hold no message at all.
pub const LOG_FILE_BYTES_MIN: u64 = 1024;

impl StoreConfig {
    /// Of a store in `root`, with Java's defaults.
    pub fn new(root: &Path) -> StoreConfig {
        StoreConfig {
            root: root.to_path_buf(),
            commit_log_dir: root.join("commitlog"),
            commit_log_file_bytes: 1 << 30,
            consume_queue_file_bytes: 6_000_000,
            body_bytes_max: 4 << 20,
            promise: Promise::Async,
            medium: Medium::Write,
            keys: FlushKeys::default(),
            check_crc_on_recover: true,
            index: IndexConfig::default(),
            delays_ms: properties::DELAYS_MS.to_vec(),
            topics: None,
        }
    }

    fn check(&self) -> Result<(), OpenError> {
        let wrong = |key, value, reason: String| Err(OpenError::Config { key, value, reason });
        let log = self.commit_log_file_bytes;
        let key = "mappedFileSizeCommitLog";
        if log < LOG_FILE_BYTES_MIN {
            return wrong(key, log, format!("below {LOG_FILE_BYTES_MIN}"));
        }
        // Sizes inside a file are `i32` for Java.
        if log > i32::MAX as u64 {
            return wrong(key, log, "above 2147483647, the most that Java can map".to_owned());
        }
        let index = self.index.shape();
        if index.slot_count == 0 || index.item_count < 2 || index.file_bytes() > i32::MAX as u64 {
            let reason =
                format!("with maxHashSlotNum = {} an index file has 2 items to 2147483647 bytes", index.slot_count);
            return wrong("maxIndexNum", u64::from(index.item_count), reason);
        }
        let queue = self.consume_queue_file_bytes;
        if !(ENTRY_BYTES..=i32::MAX as u64 - ENTRY_BYTES).contains(&queue) {
            return wrong("mappedFileSizeConsumeQueue", queue, "not between 20 and 2147483627".to_owned());
        }
        Ok(())
    }
}

/// What opening found and did, for the log.
#[derive(Debug, Default)]
pub struct OpenReport {
    pub lines: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeBoundary {
    Lower,
    Upper,
}

pub(crate) type Queues = HashMap<Box<str>, HashMap<i32, Arc<ConsumeQueue>>>;

pub struct Store {
    pub(crate) config: StoreConfig,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) log: CommitLog,
    pub(crate) index: Index,
    pub(crate) room: Arc<QueueRoom>,
    queues: RwLock<Queues>,
    ext: ExtFiles,
    pub(crate) checkpoint: Checkpoint,
    deleted: Mutex<DeletedTopics>,
    keys: RwLock<FlushKeys>,
    flush_agent: Mutex<FlushAgent>,
    commit_agent: Mutex<CommitAgent>,
    file_agent: Mutex<FileAgent>,
    pub(crate) cleaning: Cleaning,
    /// Queues that have something to file and that the agent does not know yet.
    pub(crate) reported: Mutex<Vec<Arc<ConsumeQueue>>>,
    /// Folders of deleted topics, moved out of the way, for the agent to remove.
    pub(crate) discarded: Mutex<Vec<PathBuf>>,
    discarded_count: AtomicU64,
    pub(crate) flush_waiter: Waiter,
    pub(crate) commit_waiter: Waiter,
    pub(crate) files_waiter: Waiter,
    /// Given back by `close`.
    lock: Mutex<Option<StoreLock>>,
}

impl Store {
    /// Takes the lock, loads, recovers, writes `abort`. After it returns the store takes appends.
    ///
    /// # Errors
    /// [`OpenError`]. The lock comes first, odd files are found before anything is changed.
    pub fn open(config: StoreConfig, now_ms: u64) -> Result<(Arc<Store>, OpenReport), OpenError> {
        Store::open_on(Arc::new(RealDisk), config, now_ms)
    }

    pub(crate) fn open_on(
        disk: Arc<dyn Disk>,
        mut config: StoreConfig,
        now_ms: u64,
    ) -> Result<(Arc<Store>, OpenReport), OpenError> {
        config.check()?;
        config.consume_queue_file_bytes = config.consume_queue_file_bytes.next_multiple_of(ENTRY_BYTES);
        disk.create_dirs(&config.root).map_err(|e| OpenError::io("can not create", &config.root, e))?;
        let lock = disk.lock(&config.root.join("lock"))?;
        let Recovered { log, index, room, queues, unsynced, ext, checkpoint, deleted, mut report } =
            recovery::recover(&disk, &config)?;
        let ahead_ms = log.store_timestamp().saturating_sub(now_ms);
        if ahead_ms > FUTURE_MS {
            report.lines.push(format!(
                "the newest record was stored {} s ahead of this machine's clock: store times stay at {} until the clock is \
                 there",
                ahead_ms / 1000,
                log.store_timestamp()
            ));
        }
        let pool = match config.promise {
            Promise::Pool(size) => {
                let (count, bytes) = (size.buffer_count, config.commit_log_file_bytes);
                let pool = TransientPool::new(count, bytes, size.fast_fail, &mut report.lines);
                Some(pool.map_err(|e| OpenError::Config {
                    key: "transientStorePoolSize",
                    value: u64::from(count),
                    reason: format!("no memory for so many buffers of {bytes} bytes ({e})"),
                })?)
            }
            Promise::Async | Promise::Sync => None,
        };
        let log = log.with_promise(config.promise, pool);
        if log.written() == 0 {
            // A new store: its folders, too, must survive a power loss. Those further up may not be ours to open.
            for dir in config.commit_log_dir.ancestors().skip(1).chain(config.root.ancestors()) {
                let _ = disk.sync_dir(dir);
            }
        }
        let keys = config.keys;
        let store = Store {
            config,
            disk,
            log,
            index,
            room,
            queues: RwLock::new(queues),
            ext,
            checkpoint,
            deleted: Mutex::new(deleted),
            keys: RwLock::new(keys),
            flush_agent: Mutex::new(FlushAgent::new(now_ms)),
            commit_agent: Mutex::new(CommitAgent::new(now_ms)),
            file_agent: Mutex::new(FileAgent::new(unsynced, now_ms)),
            cleaning: Cleaning::default(),
            reported: Mutex::default(),
            discarded: Mutex::default(),
            discarded_count: AtomicU64::new(0),
            flush_waiter: Waiter::default(),
            commit_waiter: Waiter::default(),
            files_waiter: Waiter::default(),
            lock: Mutex::new(Some(lock)),
        };
        Ok((Arc::new(store), report))
    }

    /// Places the batch: gate, queue offsets and log offsets given, one write (or one for each file touched), `written`
    /// published, queue entries appended to the in-memory tails, queues' `max` published (this call ends visible).
    pub fn append(&self, batch: &mut AppendBatch, now_ms: u64) -> AppendOutcome {
        let units_placed = batch.units_placed();
        let pending = self.room.pending.load(Ordering::Relaxed);
        if pending > PENDING_COUNT_MAX {
            self.files_waiter.wake_once();
            let reason = format!(
                "{pending} consume queue entries wait to be written to their files, the limit is {PENDING_COUNT_MAX}: the disk is too slow or full"
            );
            return AppendOutcome { units_placed, error: Some(AppendError::NotWritable(reason)) };
        }
        if let Some(reason) = self.cleaning.refusal() {
            return AppendOutcome { units_placed, error: Some(AppendError::NotWritable(reason)) };
        }
        let successor = |queue: &ConsumeQueue| self.queue_or_create(&queue.topic, queue.queue_id);
        let mut reported = None;
        let mut outcome = self.log.append(batch, now_ms, &successor, &mut |queue| {
            let lock = || self.reported.lock().unwrap_or_else(PoisonError::into_inner);
            reported.get_or_insert_with(lock).push(Arc::clone(queue));
        });
        drop(reported);
        if let Some(AppendError::NotWritable(reason)) = &mut outcome.error
            && self.log.is_out_of_space()
        {
            self.files_waiter.wake_once();
            let situation = self.cleaning.situation();
            if !situation.is_empty() {
                *reason = format!("{reason}; {situation}");
            }
        }
        match outcome.error {
            Some(AppendError::Busy) => self.commit_waiter.wake_once(),
            Some(AppendError::NoFileYet { .. }) => self.files_waiter.wake_once(),
            _ => {}
        }
        if outcome.units_placed > units_placed {
            if self.uses_pool() {
                if self.log.is_commit_awaited() {
                    self.commit_waiter.wake_once();
                } else {
                    self.commit_waiter.wake_if_idle();
                }
            } else {
                self.flush_waiter.wake_if_idle();
            }
            self.files_waiter.wake_if_idle();
            let is_behind = pending > FileAgent::PENDING_COUNT_WAKE;
            if is_behind || self.log.wants_file() {
                self.files_waiter.wake_once();
            }
        }
        outcome
    }

    pub fn queue(&self, topic: &str, queue_id: i32) -> Option<Arc<ConsumeQueue>> {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        queues.get(topic)?.get(&queue_id).cloned()
    }

    /// # Panics
    /// When `topic` can not name a folder (`/`, `..`, empty) or `queue_id` is negative: the broker has checked both.
    pub fn queue_or_create(&self, topic: &str, queue_id: i32) -> Arc<ConsumeQueue> {
        if let Some(queue) = self.queue(topic, queue_id) {
            return queue;
        }
        // Checked before the lock: a panic inside would leave an empty topic behind.
        let made = Arc::new(ConsumeQueue::new(&self.room, topic, queue_id));
        let mut queues = self.queues.write().unwrap_or_else(PoisonError::into_inner);
        let of_topic = queues.entry(topic.into()).or_default();
        Arc::clone(of_topic.entry(queue_id).or_insert(made))
    }

    /// Every topic that has a queue in memory or on disk.
    pub fn topics(&self) -> Vec<String> {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        let mut topics: Vec<String> = queues.keys().map(|topic| String::from(&**topic)).collect();
        topics.sort_unstable();
        topics
    }

    /// `accept` tests the entry's tags code before the log is touched.
    pub fn read(
        &self,
        queue: &ConsumeQueue,
        from: i64,
        count_max: usize,
        limits: &ReadLimits,
        accept: &mut dyn FnMut(i64) -> bool,
    ) -> Read {
        let resolve = |code| self.ext.resolve(queue, code);
        let test = EntryTest { resolve: &resolve, accept, accept_record: None };
        read::read(&self.log, queue, from, count_max, limits, test)
    }

    /// The same, and of what `accept` let through only the records that `accept_record` wants.
    pub fn read_records(
        &self,
        queue: &ConsumeQueue,
        from: i64,
        count_max: usize,
        limits: &ReadLimits,
        accept: &mut dyn FnMut(i64) -> bool,
        accept_record: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Read {
        let resolve = |code| self.ext.resolve(queue, code);
        let test = EntryTest { resolve: &resolve, accept, accept_record: Some(accept_record) };
        read::read(&self.log, queue, from, count_max, limits, test)
    }

    /// The record that an entry of a queue points to; `None` when it is gone.
    pub fn entry_record(&self, entry: &Entry) -> Option<Bytes> {
        read::entry_record(&self.log, entry)
    }

    /// The record that starts at `log_offset`; `None` unless a whole, plausible record starts there.
    pub fn record_at(&self, log_offset: u64) -> Option<Bytes> {
        read::record_at(&self.log, log_offset)
    }

    /// The records that carry a key. Reads a bounded number of pages, cold ones perhaps.
    pub fn find_by_key(&self, query: &KeyQuery<'_>) -> KeyFound {
        self.index.find(&self.log, query)
    }

    /// Lower: first entry with store time >= `time_ms`, or max. Upper: last entry with store time <= `time_ms`, or min.
    /// Empty: 0.
    pub fn offset_by_time(&self, queue: &ConsumeQueue, time_ms: i64, boundary: TimeBoundary) -> u64 {
        match boundary {
            TimeBoundary::Lower => read::first_by_time(&self.log, queue, |time| time >= time_ms),
            TimeBoundary::Upper => {
                let later = read::first_by_time(&self.log, queue, |time| time > time_ms);
                later.saturating_sub(1).max(queue.min())
            }
        }
    }

    /// Store time of the entry, -1 if there is none.
    pub fn store_time(&self, queue: &ConsumeQueue, queue_offset: u64) -> i64 {
        let mut entries = Vec::with_capacity(1);
        if queue.read(queue_offset, 1, &mut entries).is_err() {
            return -1;
        }
        entries.first().and_then(|entry| read::entry_store_time(&self.log.files(), entry)).unwrap_or(-1)
    }

    /// Whether the record at `queue_offset` lies within `in_memory_bytes` of the log's end (40 % of RAM). `true` also where
    /// there is no record: nothing would have to be read. Source: DefaultMessageStore.checkInDiskByConsumeOffset.
    pub fn is_in_memory(&self, queue: &ConsumeQueue, queue_offset: u64, in_memory_bytes: u64) -> bool {
        let entry = queue.entry(queue_offset).ok().flatten();
        entry.is_none_or(|entry| self.log.written().saturating_sub(entry.log_offset) <= in_memory_bytes)
    }

    /// Store time of the oldest record in the log, -1 if there is none. Source: getEarliestMessageTime.
    pub fn earliest_store_time(&self) -> i64 {
        let files = self.log.files();
        let first = files.first().filter(|file| file.readable() > 0);
        first.and_then(|file| peek_store_timestamp(file.slice(0..file.readable()))).unwrap_or(-1)
    }

    /// Forgets the topic's queues and removes their files. Offsets start at 0 again.
    ///
    /// The records stay in the log, as in Java. So that a start after a crash does not rebuild the queues from them, the
    /// topic and the log's end are written down first: older records of the topic get no entry any more. An append that
    /// is under way and still holds a queue of the topic goes into the queue made after.
    ///
    /// Waits for the file agent's turn to end: neither may meet the other's half-done work.
    ///
    /// # Errors
    /// What the disk answers; the topic may then be gone from memory and come back at the next start. Or the store is
    /// closed.
    pub fn delete_topic(&self, topic: &str) -> io::Result<()> {
        let _agent = self.file_agent.lock().unwrap_or_else(PoisonError::into_inner);
        if self.lock.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            return Err(io::Error::other("the store is closed"));
        }
        let mut deleted = self.deleted.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.queues.read().unwrap_or_else(PoisonError::into_inner).contains_key(topic) {
            return Ok(());
        }
        // Noted before anything is forgotten: on a disk that takes no note everything stays as it was.
        let noted = self.log.written();
        deleted.insert(&*self.disk, topic, noted)?;
        let (gone, log_end) = self.log.hold_gate(|| {
            let mut queues = self.queues.write().unwrap_or_else(PoisonError::into_inner);
            let gone = queues.remove(topic).unwrap_or_default();
            gone.values().for_each(|queue| queue.forget());
            (gone, self.log.written())
        });
        gone.values().for_each(|queue| queue.abandon_files());
        if log_end > noted {
            deleted.insert(&*self.disk, topic, log_end)?;
        }
        self.disk.create_dirs(&self.room.staging)?;
        let mut discarded = self.discarded.lock().unwrap_or_else(PoisonError::into_inner);
        for dir in recovery::QUEUE_DIRS {
            let from = self.config.root.join(dir).join(topic);
            // The agent removes it: that may take long.
            let number = self.discarded_count.fetch_add(1, Ordering::Relaxed);
            let to = self.room.staging.join(format!("deleted-{number}"));
            match self.disk.rename(&from, &to) {
                Ok(()) => discarded.push(to),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(_) => self.disk.remove_dir_all(&from)?,
            }
        }
        self.files_waiter.wake();
        Ok(())
    }

    /// In one order always: the disk sees the same calls each time.
    pub(crate) fn all_queues(&self) -> Vec<Arc<ConsumeQueue>> {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = queues.values().flat_map(HashMap::values).cloned().collect();
        drop(queues);
        all.sort_unstable_by(|a, b| (&a.topic, a.queue_id).cmp(&(&b.topic, b.queue_id)));
        all
    }

    /// Log offset of the record that the queue's entry points to.
    pub fn log_offset(&self, queue: &ConsumeQueue, queue_offset: u64) -> Option<u64> {
        queue.entry(queue_offset).ok().flatten().map(|entry| entry.log_offset)
    }

    pub fn log_min(&self) -> u64 {
        self.log.min()
    }

    pub fn log_max(&self) -> u64 {
        self.log.written()
    }

    pub fn log_flushed(&self) -> u64 {
        self.log.flushed()
    }

    /// What is in the page cache: behind `log_max` with the transient store pool.
    pub fn log_committed(&self) -> u64 {
        self.log.committed()
    }

    /// Buffers of the transient store pool that are not lent; `None` without a pool.
    pub fn pool_free_count(&self) -> Option<usize> {
        self.log.pool_free_count()
    }

    /// A pull waits for the queue to grow, its bit is set: what a commit would show it is committed at once, not at the
    /// interval's end.
    pub fn await_visible(&self, queue: &ConsumeQueue) {
        if self.log.await_commit(queue) {
            self.commit_waiter.wake_once();
        }
    }

    /// Whether an answered send lies in a buffer of the transient store pool first.
    pub fn uses_pool(&self) -> bool {
        matches!(self.config.promise, Promise::Pool(_))
    }

    /// SYNC_FLUSH: a send is answered when `log_flushed` has passed its end.
    pub fn is_sync(&self) -> bool {
        self.log.is_sync()
    }

    /// Whether consumers see an append when it returns. Otherwise a turn makes it visible; see [`Store::take_arrived`].
    pub fn is_visible_at_once(&self) -> bool {
        self.log.is_visible_at_once()
    }

    /// To be asked after each turn of the flush and the commit agent: the queues that have grown for consumers while
    /// somebody's bit was set in their `waiters`.
    pub fn take_arrived(&self) -> Vec<Arc<ConsumeQueue>> {
        self.log.take_arrived()
    }

    /// Why nothing is flushed and nothing written any more: what is above `log_flushed` may be lost.
    pub fn flush_failure(&self) -> Option<String> {
        self.log.flush_failure()
    }

    pub fn keys(&self) -> FlushKeys {
        *self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// In force from the agents' next turns on, which come now.
    pub fn set_keys(&self, keys: FlushKeys) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
        self.wake_agents();
    }

    /// One pass of FlushRealTimeService or GroupCommitService; may block in fdatasync. Returns ms until it wants the
    /// next pass.
    pub fn flush_turn(&self, now_ms: u64) -> u64 {
        let mut agent = self.flush_agent.lock().unwrap_or_else(PoisonError::into_inner);
        agent.turn(self, now_ms)
    }

    /// One pass of CommitRealTimeService, for a store that [`uses_pool`](Store::uses_pool). Returns ms until it wants
    /// the next pass.
    pub fn commit_turn(&self, now_ms: u64) -> u64 {
        let mut agent = self.commit_agent.lock().unwrap_or_else(PoisonError::into_inner);
        agent.turn(self, now_ms)
    }

    /// One pass of the file agent: next log file made ahead, queue tails written to their files, queue flush round and
    /// checkpoint when due. Returns ms until the next pass.
    pub fn files_turn(&self, now_ms: u64) -> u64 {
        let mut agent = self.file_agent.lock().unwrap_or_else(PoisonError::into_inner);
        agent.turn(self, now_ms)
    }

    /// Whether an append waits for a flush.
    pub fn has_unflushed(&self) -> bool {
        self.log.committed() > self.log.flushed() && !self.log.is_flush_failed()
    }

    /// Blocks an agent until `append` wants it (a file is needed, the first bytes after idleness) or `timeout_ms`.
    pub fn wait_flush(&self, timeout_ms: u64) {
        self.flush_waiter.wait(timeout_ms);
    }

    pub fn wait_commit(&self, timeout_ms: u64) {
        self.commit_waiter.wait(timeout_ms);
    }

    pub fn wait_files(&self, timeout_ms: u64) {
        self.log.ahead.set_agent();
        self.files_waiter.wait(timeout_ms);
    }

    /// Wakes all waits, for shutdown.
    pub fn wake_agents(&self) {
        self.flush_waiter.wake();
        self.commit_waiter.wake();
        self.files_waiter.wake();
    }

    /// Everything to disk, checkpoint, unused files away, `abort` removed. Appends are refused from here on. The lock is
    /// given back, whatever the outcome; a second call does nothing.
    ///
    /// # Errors
    /// Something could not be written or made durable. `abort` stays then, and the next start recovers as after a crash.
    pub fn close(&self, now_ms: u64) -> io::Result<()> {
        let mut agent = self.file_agent.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(_lock) = self.lock.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return Ok(());
        };
        self.log.hold_gate(|| self.log.stop("the store is closed"));
        // What a failed write has left is nobody's message.
        self.log.forget_stale()?;
        self.wake_agents();
        {
            let _commits = self.commit_agent.lock().unwrap_or_else(PoisonError::into_inner);
            self.log.commit()?;
        }
        if let Some(store_timestamp) = self.log.flush()? {
            self.checkpoint.advance_log(store_timestamp);
        }
        agent.finish(self, now_ms)?;
        self.log.remove_unused()?;
        self.disk.remove_dir_all(&self.room.staging)?;
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        let max_offsets = queues.values().flat_map(HashMap::values).map(|queue| queue.max());
        let stop = CleanStop { log_end: self.log.written(), tally: Tally::of(max_offsets), index: self.index.end() };
        stop.write(&*self.disk, &self.config.root)?;
        self.disk.remove_file(&self.config.root.join("abort"))?;
        self.disk.sync_dir(&self.config.root)
    }
}
