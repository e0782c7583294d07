//! What the background loops do in one turn: the flush and the commit agent for the log, the file agent for the rest.
//!
//! ```text
//! flush    async: every flush interval, when there are enough pages or the thorough interval is over → fdatasync
//!          sync: as soon as something was appended; what comes meanwhile is the next flush's
//! commit   with a pool: every commit interval, likewise → buffers into the log files, page cache
//! files    next log file ahead · every queue interval: tails → queue files · every thorough interval: a round
//!          retention: a look at the disk, a file deleted (retention.rs)
//! round    store time T taken → all tails filed → every dirty queue file synced, some each turn → checkpoint says T
//! ```
//! An agent with nothing to do marks itself idle; the first append after that wakes it, the following ones do not: a
//! wake-up costs more than a message.
//! Source: FlushRealTimeService, CommitRealTimeService, GroupCommitService, FlushConsumeQueueService.

use crate::bus_error;
use crate::consume_queue::ConsumeQueue;
use crate::failed_sync;
use crate::mapped_file::MappedFile;
use crate::retention::{Durable, Retention};
use crate::store::Store;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Longest time an idle agent asks for.
pub(crate) const IDLE_MS: u64 = 60_000;
/// How long a record waits for the index, at most, when nobody asks for its key.
const INDEX_INTERVAL_MS: u64 = 20;
/// Slices of the log indexed in one turn, and in one with a flush round or the end.
const INDEX_SLICES_MAX: usize = 32;
const INDEX_SLICES_MAX_OF_ROUND: usize = 4096;
/// Queues synced in one turn, so that the next log file is never long in coming.
const SYNC_COUNT_MAX: usize = 64;
/// Queues synced in one interval because they have grown much: they are made from the log again if they must be, so
/// this never costs much of the disk's time.
const EARLY_SYNC_COUNT_MAX: usize = 16;
const PAGE_BYTES: u64 = 4096;
/// A round comes before its interval is over when the log has grown by this much, but not more often than each 2 s.
const ROUND_LOG_BYTES: u64 = 256 << 20;
const ROUND_EARLY_MS: u64 = 2000;

/// Between two notes of how far the log is flushed.
const LOG_TIME_MS: u64 = 1000;
/// How often it is said that no log file can be made ahead.
const AHEAD_TOLD_MS: u64 = 10_000;

/// An agent waits, an append wakes.
#[derive(Default)]
pub(crate) struct Waiter {
    is_woken: Mutex<bool>,
    condvar: Condvar,
    is_idle: AtomicBool,
    is_wanted: AtomicBool,
}

impl Waiter {
    pub fn wait(&self, timeout_ms: u64) {
        let woken = self.is_woken.lock().unwrap_or_else(PoisonError::into_inner);
        let timeout = Duration::from_millis(timeout_ms);
        let waited = self.condvar.wait_timeout_while(woken, timeout, |woken| !*woken);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }

    pub fn wake(&self) {
        *self.is_woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.condvar.notify_all();
    }

    /// After something was published that an idle agent has to know.
    pub fn wake_if_idle(&self) {
        // Pairs with the fence in `rest`: either the agent sees what was published or this sees it idle.
        fence(Ordering::SeqCst);
        if self.is_idle.load(Ordering::Relaxed) && self.is_idle.swap(false, Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Wakes the agent once until its next turn.
    pub fn wake_once(&self) {
        if !self.is_wanted.load(Ordering::Relaxed) && !self.is_wanted.swap(true, Ordering::Relaxed) {
            self.wake();
        }
    }

    fn begin(&self) {
        self.is_wanted.store(false, Ordering::Relaxed);
        self.is_idle.store(false, Ordering::Relaxed);
    }

    /// Marks the agent idle, unless there is something to do after all.
    fn rest(&self, is_busy: impl FnOnce() -> bool) {
        self.is_idle.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if is_busy() {
            self.is_idle.store(false, Ordering::Relaxed);
        }
    }
}

/// What is left of an interval that began at `last_ms`; nothing when the clock has gone back behind that.
pub(crate) fn left_ms(now_ms: u64, last_ms: u64, interval_ms: u64) -> u64 {
    now_ms.checked_sub(last_ms).map_or(0, |gone| interval_ms.saturating_sub(gone))
}

pub(crate) struct FlushAgent {
    last_pass_ms: u64,
    last_flush_ms: u64,
}

impl FlushAgent {
    pub fn new(now_ms: u64) -> FlushAgent {
        FlushAgent { last_pass_ms: now_ms, last_flush_ms: now_ms }
    }

    pub fn turn(&mut self, store: &Store, now_ms: u64) -> u64 {
        let (log, waiter, keys) = (&store.log, &store.flush_waiter, store.keys());
        waiter.begin();
        let is_dirty = || log.committed() > log.flushed() && !log.is_flush_failed();
        if log.is_sync() {
            if is_dirty() {
                FlushAgent::flush(store);
            }
            waiter.rest(is_dirty);
            return if is_dirty() { 0 } else { IDLE_MS };
        }
        if is_dirty() {
            let left = left_ms(now_ms, self.last_pass_ms, keys.interval_ms);
            if keys.timed && left > 0 {
                return left;
            }
            self.last_pass_ms = now_ms;
            let thorough_left = left_ms(now_ms, self.last_flush_ms, keys.thorough_interval_ms);
            if thorough_left > 0 && log.is_little_unflushed(u64::from(keys.least_pages)) {
                let next_ms = keys.interval_ms.min(thorough_left);
                return if keys.timed { next_ms } else { FlushAgent::rest_untimed(store, next_ms) };
            }
            self.last_flush_ms = now_ms;
            FlushAgent::flush(store);
        }
        if !keys.timed {
            return FlushAgent::rest_untimed(store, if is_dirty() { keys.interval_ms } else { IDLE_MS });
        }
        waiter.rest(is_dirty);
        if is_dirty() { keys.interval_ms } else { IDLE_MS }
    }

    /// Idle in name: the next append looks whether the pages are enough now. Those that came before this do not wake.
    fn rest_untimed(store: &Store, next_ms: u64) -> u64 {
        let log = &store.log;
        store.flush_waiter.rest(|| false);
        let is_dirty = log.committed() > log.flushed() && !log.is_flush_failed();
        let is_enough = is_dirty && !log.is_little_unflushed(u64::from(store.keys().least_pages));
        if is_enough { 0 } else { next_ms }
    }

    fn flush(store: &Store) {
        // An error has been told and has stopped the log.
        if let Ok(Some(store_timestamp)) = store.log.flush() {
            store.checkpoint.advance_log(store_timestamp);
        }
    }
}

pub(crate) struct CommitAgent {
    last_pass_ms: u64,
    last_commit_ms: u64,
    is_failing: bool,
}

impl CommitAgent {
    pub fn new(now_ms: u64) -> CommitAgent {
        CommitAgent { last_pass_ms: now_ms, last_commit_ms: now_ms, is_failing: false }
    }

    pub fn turn(&mut self, store: &Store, now_ms: u64) -> u64 {
        let (log, waiter, keys) = (&store.log, &store.commit_waiter, store.keys());
        waiter.begin();
        log.populate_buffers();
        let is_dirty = || log.written() > log.committed();
        if is_dirty() {
            let left = left_ms(now_ms, self.last_pass_ms, keys.commit_interval_ms);
            let is_awaited = log.is_commit_awaited();
            let is_urgent = (log.is_pool_exhausted() || is_awaited) && !self.is_failing;
            if left > 0 && !is_urgent {
                return left;
            }
            self.last_pass_ms = now_ms;
            let is_thorough = left_ms(now_ms, self.last_commit_ms, keys.commit_thorough_interval_ms) == 0;
            if !is_thorough && !is_awaited && log.is_little_uncommitted(u64::from(keys.commit_least_pages)) {
                return keys.commit_interval_ms;
            }
            self.last_commit_ms = now_ms;
            match log.commit() {
                Ok(_) => self.is_failing = false,
                Err(e) => {
                    if !self.is_failing {
                        tracing::error!(error = %e, "messages in the transient store pool can not be written, trying on");
                    }
                    self.is_failing = true;
                    return keys.commit_interval_ms;
                }
            }
            store.flush_waiter.wake_if_idle();
        }
        waiter.rest(is_dirty);
        if is_dirty() { keys.commit_interval_ms } else { IDLE_MS }
    }
}

/// Above this the file system is synced as a whole at the stop.
const QUEUE_COUNT_EACH_BY_ITSELF: usize = 32;

pub(crate) struct FileAgent {
    /// Queues with entries that no file holds.
    unfiled: Vec<Arc<ConsumeQueue>>,
    file_due_ms: Option<u64>,
    /// Queues whose files changed since the last round began.
    unsynced: Vec<Arc<ConsumeQueue>>,
    round: Option<Round>,
    last_round_ms: u64,
    last_round_log: u64,
    warm_due_ms: u64,
    ahead_told_ms: u64,
    noted_ms: u64,
    noted_log_time: u64,
    /// Pages that could not be read, told so far.
    faults_seen: usize,
    /// A queue file could not be synced: what it held may be lost, so the checkpoint stays where it is for good.
    is_sync_failed: bool,
    /// The index could not be written when it was tried last.
    is_index_failing: bool,
    /// Every record below has its entry on the device.
    queues_synced: u64,
    retention: Retention,
    log_min: u64,
    buffer: Vec<u8>,
}

/// A flush round of all queues that were dirty when it began.
struct Round {
    store_timestamp: u64,
    /// Records below have their entries in the queues' files.
    entered: Option<u64>,
    queues: Vec<Arc<ConsumeQueue>>,
}

impl FileAgent {
    /// So many entries that no file holds are worth a turn out of turn.
    pub const PENDING_COUNT_WAKE: u64 = 500_000;

    /// `unsynced`: what recovery has written.
    pub fn new(unsynced: Vec<Arc<ConsumeQueue>>, now_ms: u64) -> FileAgent {
        FileAgent {
            unfiled: Vec::new(),
            file_due_ms: None,
            unsynced,
            round: None,
            last_round_ms: now_ms,
            last_round_log: 0,
            warm_due_ms: 0,
            ahead_told_ms: 0,
            noted_ms: 0,
            noted_log_time: 0,
            faults_seen: bus_error::count(),
            is_sync_failed: false,
            is_index_failing: false,
            queues_synced: 0,
            retention: Retention::new(now_ms),
            log_min: 0,
            buffer: Vec::new(),
        }
    }

    pub fn turn(&mut self, store: &Store, now_ms: u64) -> u64 {
        store.files_waiter.begin();
        let next_ms = [
            self.ahead_turn(store, now_ms),
            FileAgent::remove_discarded(store),
            FileAgent::note_wrong_queues(store),
            self.tell_faults(store),
            self.note_log_time(store, now_ms),
            self.index_turn(store, now_ms, INDEX_SLICES_MAX),
            self.tails_turn(store, now_ms),
            self.round_turn(store, now_ms),
            self.retention_turn(store, now_ms),
        ];
        if self.unfiled.is_empty() {
            store.files_waiter.rest(|| {
                let has_reports = !store.reported.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
                has_reports || store.index.is_behind(&store.log)
            });
        }
        next_ms.into_iter().fold(IDLE_MS, u64::min)
    }

    fn ahead_turn(&mut self, store: &Store, now_ms: u64) -> u64 {
        let log = &store.log;
        if log.is_stopped() {
            return IDLE_MS;
        }
        if (log.ahead.is_failing() || log.wants_file())
            && let Err(e) = log.make_files_ahead()
        {
            log.note_space(&e);
            // Each refused append wakes the agent.
            if left_ms(now_ms, self.ahead_told_ms, AHEAD_TOLD_MS) == 0 {
                self.ahead_told_ms = now_ms;
                tracing::warn!(error = %e, "the next log file can not be made ahead, trying on");
            }
            return 1000;
        }
        let keys = store.keys();
        if keys.warm_lock {
            log.unlock_full();
        }
        let left = self.warm_due_ms.saturating_sub(now_ms);
        // More than a pause: the clock has gone back.
        if left > 0 && left < IDLE_MS {
            return left;
        }
        match keys.warm_pages.map_or(Ok(None), |pages| log.warm_ahead(pages, keys.warm_lock)) {
            Ok(Some(wait_ms)) => {
                self.warm_due_ms = now_ms + wait_ms;
                wait_ms
            }
            Ok(None) => IDLE_MS,
            Err(e) => {
                tracing::warn!(error = %e, "the next log file can not be warmed");
                1000
            }
        }
    }

    fn retention_turn(&mut self, store: &Store, now_ms: u64) -> u64 {
        let durable = Durable { queues_synced: self.queues_synced, is_sync_failed: self.is_sync_failed };
        self.retention.turn(store, durable, now_ms)
    }

    /// Puts what was appended since into the index. Returns ms until it wants to go on.
    fn index_turn(&mut self, store: &Store, now_ms: u64, slices_max: usize) -> u64 {
        let log_min = store.log.min();
        if log_min != self.log_min {
            self.log_min = log_min;
            store.index.remove_before(log_min);
        }
        match store.index.build(&store.log, &store.checkpoint, now_ms, slices_max) {
            Ok(is_complete) => {
                self.is_index_failing = false;
                let is_quiet = self.unfiled.is_empty() && is_complete;
                if is_quiet {
                    IDLE_MS
                } else if is_complete {
                    INDEX_INTERVAL_MS
                } else {
                    0
                }
            }
            Err(e) => {
                if !self.is_index_failing {
                    tracing::error!(error = %e, "keys can not be put into the index, trying on; queries do not see them");
                }
                self.is_index_failing = true;
                1000
            }
        }
    }

    fn tails_turn(&mut self, store: &Store, now_ms: u64) -> u64 {
        self.collect(store);
        if self.unfiled.is_empty() {
            self.file_due_ms = None;
            return IDLE_MS;
        }
        let interval_ms = store.keys().queue_interval_ms;
        let due_ms = *self.file_due_ms.get_or_insert(now_ms + interval_ms);
        let is_due = now_ms >= due_ms || due_ms > now_ms + interval_ms;
        if is_due || store.room.pending.load(Ordering::Relaxed) > FileAgent::PENDING_COUNT_WAKE {
            self.file_due_ms = None;
            if let Err(e) = self.file_tails(store) {
                tracing::error!(error = %e, "consume queue entries can not be written, they wait in memory");
            }
            self.sync_early(store);
            if !self.unfiled.is_empty() {
                self.file_due_ms = Some(now_ms + interval_ms);
            }
        }
        self.file_due_ms.map_or(IDLE_MS, |due_ms| due_ms.saturating_sub(now_ms))
    }

    fn collect(&mut self, store: &Store) {
        self.unfiled.append(&mut store.reported.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Syncs some of the queues that have grown by the least pages, before their round comes.
    fn sync_early(&mut self, store: &Store) {
        let pages = store.keys().queue_least_pages.max(1);
        let is_large = |queue: &&Arc<ConsumeQueue>| queue.unsynced_bytes() >= u64::from(pages) * PAGE_BYTES;
        for queue in self.unsynced.iter().filter(is_large).take(EARLY_SYNC_COUNT_MAX) {
            if self.is_sync_failed {
                return;
            }
            if let Err(e) = queue.sync_files() {
                self.is_sync_failed = true;
                failed_sync::note(&*store.disk, &store.config.root);
                let error = with_path(&e, queue);
                tracing::error!(%error, "a flush of a consume queue failed; a start after a crash will read more of the log");
            }
        }
    }

    /// Writes every tail to its files. After an error the others are still tried; what failed stays for the next time.
    fn file_tails(&mut self, store: &Store) -> io::Result<()> {
        self.collect(store);
        store.log.sync_names()?;
        let mut result = Ok(());
        for queue in std::mem::take(&mut self.unfiled) {
            match queue.file_tail(&mut self.buffer) {
                Ok(is_dirty) => {
                    if queue.is_reported() {
                        self.unfiled.push(Arc::clone(&queue));
                    }
                    if is_dirty {
                        self.unsynced.push(queue);
                    }
                }
                Err(e) => {
                    store.log.note_space(&e);
                    result = Err(with_path(&e, &queue));
                    self.unfiled.push(queue);
                }
            }
        }
        result
    }

    /// Starts a round when one is due, or does a part of it. Returns ms until it wants to go on.
    fn round_turn(&mut self, store: &Store, now_ms: u64) -> u64 {
        if self.is_sync_failed {
            return IDLE_MS;
        }
        if self.round.is_none() {
            // Retention deletes no record before all that it could be needed for is on the device.
            let is_wanted = std::mem::take(&mut self.retention.is_round_wanted);
            if self.unsynced.is_empty() && !store.index.is_dirty() && !is_wanted {
                return IDLE_MS;
            }
            let left = left_ms(now_ms, self.last_round_ms, store.keys().queue_thorough_interval_ms);
            // A start after a crash reads what has come since. Where a round is cheap it shall not be much. With sends that
            // wait for the disk it is not: the index's pages lie all over its file and take 350 ms.
            let log_bytes = store.log.written().saturating_sub(self.last_round_log);
            let is_early = !store.is_sync()
                && log_bytes >= ROUND_LOG_BYTES
                && self.unsynced.len() <= QUEUE_COUNT_EACH_BY_ITSELF
                && left_ms(now_ms, self.last_round_ms, ROUND_EARLY_MS) == 0;
            if left > 0 && !is_wanted && !is_early {
                return left.min(ROUND_EARLY_MS);
            }
            self.last_round_ms = now_ms;
            self.last_round_log = store.log.written();
            if let Err(e) = self.begin_round(store) {
                tracing::error!(error = %e, "no flush round of the consume queues");
                return store.keys().queue_interval_ms;
            }
        }
        match self.sync_some(store, SYNC_COUNT_MAX, now_ms) {
            Ok(true) => IDLE_MS,
            Ok(false) => 1,
            Err(e) => {
                tracing::error!(error = %e, "a flush of the consume queues failed; a start after a crash will read more of the log");
                IDLE_MS
            }
        }
    }

    fn begin_round(&mut self, store: &Store) -> io::Result<()> {
        // Taken before the tails: every record up to this time has its entry in one of them or in a file, and is visible.
        let store_timestamp = store.log.visible_timestamp();
        let entered = store.log.entered();
        self.file_tails(store)?;
        let mut queues = self.round.take().map_or(Vec::new(), |round| round.queues);
        queues.append(&mut self.unsynced);
        self.round = Some(Round { store_timestamp, entered, queues });
        Ok(())
    }

    /// Syncs up to `count_max` queues of the round. `true` when it is complete and the checkpoint is written.
    fn sync_some(&mut self, store: &Store, count_max: usize, now_ms: u64) -> io::Result<bool> {
        let Some(round) = &mut self.round else {
            return Ok(true);
        };
        let rest = round.queues.len().saturating_sub(count_max);
        for queue in round.queues.drain(rest..) {
            if let Err(e) = queue.sync() {
                self.is_sync_failed = true;
                failed_sync::note(&*store.disk, &store.config.root);
                return Err(with_path(&e, &queue));
            }
        }
        if rest > 0 {
            return Ok(false);
        }
        let (store_timestamp, entered) = (round.store_timestamp, round.entered);
        self.round = None;
        // A Java broker that finds the store after a kill puts into the index what it reads of the log, from the
        // checkpoint on: the index must reach there. One that can not be written holds nothing up.
        self.index_turn(store, now_ms, INDEX_SLICES_MAX_OF_ROUND);
        if let Err(e) = store.index.file(&store.checkpoint) {
            tracing::error!(error = %e, "the index can not be flushed; a start after a crash will mend it");
        }
        store.checkpoint.advance_queues(store_timestamp);
        store.checkpoint.write()?;
        self.queues_synced = entered.unwrap_or(self.queues_synced);
        Ok(true)
    }

    fn remove_discarded(store: &Store) -> u64 {
        let dir = store.discarded.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some(dir) = dir else {
            return IDLE_MS;
        };
        if let Err(e) = store.disk.remove_dir_all(&dir) {
            tracing::warn!(path = %dir.display(), error = %e, "can not be removed now, the next start will try again");
        }
        1
    }

    /// So that a start after a kill knows which records were on the device, and damage among them from a torn tail. A round
    /// says it a minute later.
    fn note_log_time(&mut self, store: &Store, now_ms: u64) -> u64 {
        let time = store.checkpoint.times().log;
        if time <= self.noted_log_time {
            return IDLE_MS;
        }
        let left = left_ms(now_ms, self.noted_ms, LOG_TIME_MS);
        if left > 0 {
            return left;
        }
        (self.noted_ms, self.noted_log_time) = (now_ms, time);
        if let Err(e) = store.checkpoint.note_log() {
            tracing::warn!(error = %e, "the checkpoint can not be written");
        }
        IDLE_MS
    }

    fn tell_faults(&mut self, store: &Store) -> u64 {
        tell_faults(&store.log.files(), &mut self.faults_seen, &mut |text| tracing::error!("{text}"));
        IDLE_MS
    }

    fn note_wrong_queues(store: &Store) -> u64 {
        match store.room.wrong.write(&*store.disk, &store.config.root) {
            Ok(()) => IDLE_MS,
            Err(e) => {
                tracing::warn!(error = %e, "queues with wrong entries can not be noted for the next start, trying on");
                1000
            }
        }
    }

    /// Everything that appends have left to the agent, durable. The log takes no more appends.
    pub fn finish(&mut self, store: &Store, now_ms: u64) -> io::Result<()> {
        assert!(store.log.is_stopped());
        if self.is_sync_failed {
            return Err(io::Error::other("a flush of the consume queues has failed before"));
        }
        FileAgent::note_wrong_queues(store);
        self.begin_round(store)?;
        // A stop does not take a sync for each of thousands of queues.
        if let Some(round) = self.round.as_ref().filter(|round| round.queues.len() > QUEUE_COUNT_EACH_BY_ITSELF) {
            store.disk.sync_all(&store.config.root)?;
            for queue in &round.queues {
                queue.note_synced();
            }
        }
        // What is left even so is built by the next start.
        store.index.build(&store.log, &store.checkpoint, now_ms, INDEX_SLICES_MAX_OF_ROUND)?;
        store.index.file(&store.checkpoint)?;
        self.sync_some(store, usize::MAX, now_ms)?;
        Ok(())
    }
}

/// Pages of the log that could not be read since the fault number `seen`.
pub(crate) fn tell_faults(files: &[Arc<MappedFile>], seen: &mut usize, tell: &mut dyn FnMut(String)) {
    for address in bus_error::faults_since(seen) {
        let place = files.iter().find_map(|file| Some((file, file.position_of(address)?)));
        if let Some((file, position)) = place {
            tell(format!(
                "{}: the disk does not give the page at {position}, it reads as zeros: messages in it are not served; look at \
                 the disk, and restore the file from a copy",
                file.path.display()
            ));
        }
    }
}

fn with_path(error: &io::Error, queue: &ConsumeQueue) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", queue.dir().display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_survive_a_clock_that_goes_back() {
        // now, last, interval, left
        for (now, last, interval, left) in [
            (1000, 1000, 500, 500),
            (1300, 1000, 500, 200),
            (1500, 1000, 500, 0),
            (9000, 1000, 500, 0),
            (10, 1000, 500, 0),
        ] {
            assert_eq!(left_ms(now, last, interval), left, "now {now} last {last}");
        }
    }

    #[test]
    fn a_wake_before_the_wait_is_not_lost() {
        let waiter = Waiter::default();
        waiter.rest(|| false);
        waiter.wake_if_idle();
        waiter.wait(60_000);
        waiter.wake_once();
        waiter.wake_once();
        waiter.wait(60_000);
        waiter.rest(|| true);
        waiter.wake_if_idle();
        waiter.wait(1);
    }
}
