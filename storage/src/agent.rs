//! What the background loops do in one turn: the flush agent for the log, the file agent for everything else.
//!
//! ```text
//! flush    every flush interval: enough pages, or the thorough interval over  → fdatasync, `flushed`
//! files    next log file ahead · every queue interval: tails → queue files · every thorough interval: a round
//! round    store time T taken → all tails filed → every dirty queue file synced, some each turn → checkpoint says T
//! ```
//! An agent with nothing to do marks itself idle; the first append after that wakes it, the following ones do not: a
//! wake-up costs more than a message.
//! Source: FlushRealTimeService, FlushConsumeQueueService.

use crate::checkpoint::Checkpoint;
use crate::commit_log::CommitLog;
use crate::consume_queue::ConsumeQueue;
use crate::store::{Store, StoreConfig};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Longest time an idle agent asks for.
const IDLE_MS: u64 = 60_000;
/// Queues synced in one turn, so that the next log file is never long in coming.
const SYNC_COUNT_MAX: usize = 64;

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
fn left_ms(now_ms: u64, last_ms: u64, interval_ms: u64) -> u64 {
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

    pub fn turn(
        &mut self,
        config: &StoreConfig,
        log: &CommitLog,
        checkpoint: &Checkpoint,
        waiter: &Waiter,
        now_ms: u64,
    ) -> u64 {
        waiter.begin();
        let is_dirty = || log.written() > log.flushed() && !log.is_flush_failed();
        if is_dirty() {
            let left = left_ms(now_ms, self.last_pass_ms, config.flush_interval_ms);
            if left > 0 {
                return left;
            }
            self.last_pass_ms = now_ms;
            let is_thorough = left_ms(now_ms, self.last_flush_ms, config.flush_thorough_interval_ms) == 0;
            if !is_thorough && log.is_little_unflushed(u64::from(config.flush_least_pages)) {
                return config.flush_interval_ms;
            }
            self.last_flush_ms = now_ms;
            // An error has been told and has stopped the log.
            if let Ok(Some(store_timestamp)) = log.flush() {
                checkpoint.advance_log(store_timestamp);
            }
        }
        waiter.rest(is_dirty);
        if is_dirty() { config.flush_interval_ms } else { IDLE_MS }
    }
}

pub(crate) struct FileAgent {
    /// Queues with entries that no file holds.
    unfiled: Vec<Arc<ConsumeQueue>>,
    file_due_ms: Option<u64>,
    /// Queues whose files changed since the last round began.
    unsynced: Vec<Arc<ConsumeQueue>>,
    round: Option<Round>,
    last_round_ms: u64,
    /// The last attempt to make a log file ahead failed.
    is_ahead_missing: bool,
    /// A queue file could not be synced: what it held may be lost, so the checkpoint stays where it is for good.
    is_sync_failed: bool,
    buffer: Vec<u8>,
}

/// A flush round of all queues that were dirty when it began.
struct Round {
    store_timestamp: u64,
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
            is_ahead_missing: false,
            is_sync_failed: false,
            buffer: Vec::new(),
        }
    }

    pub fn turn(&mut self, store: &Store, now_ms: u64) -> u64 {
        store.files_waiter.begin();
        let next_ms = [
            self.ahead_turn(store),
            FileAgent::remove_discarded(store),
            self.tails_turn(store, now_ms),
            self.round_turn(store, now_ms),
        ];
        if self.unfiled.is_empty() {
            store.files_waiter.rest(|| !store.reported.lock().unwrap_or_else(PoisonError::into_inner).is_empty());
        }
        next_ms.into_iter().fold(IDLE_MS, u64::min)
    }

    fn ahead_turn(&mut self, store: &Store) -> u64 {
        if !store.log.is_stopped() && (self.is_ahead_missing || store.log.wants_file()) {
            let made = store.log.make_file_ahead();
            self.is_ahead_missing = made.is_err();
            if let Err(e) = made {
                tracing::warn!(error = %e, "the next log file can not be made ahead");
                return 1000;
            }
        }
        IDLE_MS
    }

    fn tails_turn(&mut self, store: &Store, now_ms: u64) -> u64 {
        self.collect(store);
        if self.unfiled.is_empty() {
            self.file_due_ms = None;
            return IDLE_MS;
        }
        let interval_ms = store.config.queue_flush_interval_ms;
        let due_ms = *self.file_due_ms.get_or_insert(now_ms + interval_ms);
        let is_due = now_ms >= due_ms || due_ms > now_ms + interval_ms;
        if is_due || store.room.pending.load(Ordering::Relaxed) > FileAgent::PENDING_COUNT_WAKE {
            self.file_due_ms = None;
            if let Err(e) = self.file_tails(store) {
                tracing::error!(error = %e, "consume queue entries can not be written, they wait in memory");
                self.file_due_ms = Some(now_ms + interval_ms);
            }
        }
        self.file_due_ms.map_or(IDLE_MS, |due_ms| due_ms.saturating_sub(now_ms))
    }

    fn collect(&mut self, store: &Store) {
        self.unfiled.append(&mut store.reported.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Writes every tail to its files. After an error the others are still tried; what failed stays for the next time.
    fn file_tails(&mut self, store: &Store) -> io::Result<()> {
        self.collect(store);
        let mut result = Ok(());
        for queue in std::mem::take(&mut self.unfiled) {
            match queue.file_tail(&mut self.buffer) {
                Ok(true) => self.unsynced.push(queue),
                Ok(false) => {}
                Err(e) => {
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
            if self.unsynced.is_empty() {
                return IDLE_MS;
            }
            let left = left_ms(now_ms, self.last_round_ms, store.config.queue_flush_thorough_interval_ms);
            if left > 0 {
                return left;
            }
            self.last_round_ms = now_ms;
            if let Err(e) = self.begin_round(store) {
                tracing::error!(error = %e, "no flush round of the consume queues");
                return store.config.queue_flush_interval_ms;
            }
        }
        match self.sync_some(store, SYNC_COUNT_MAX) {
            Ok(true) => IDLE_MS,
            Ok(false) => 1,
            Err(e) => {
                tracing::error!(error = %e, "a flush of the consume queues failed; a start after a crash will read more of the log");
                IDLE_MS
            }
        }
    }

    fn begin_round(&mut self, store: &Store) -> io::Result<()> {
        // Taken before the tails: every record up to this time has its entry in one of them or in a file.
        let store_timestamp = store.log.store_timestamp();
        self.file_tails(store)?;
        let mut queues = self.round.take().map_or(Vec::new(), |round| round.queues);
        queues.append(&mut self.unsynced);
        self.round = Some(Round { store_timestamp, queues });
        Ok(())
    }

    /// Syncs up to `count_max` queues of the round. `true` when it is complete and the checkpoint is written.
    fn sync_some(&mut self, store: &Store, count_max: usize) -> io::Result<bool> {
        let Some(round) = &mut self.round else {
            return Ok(true);
        };
        let rest = round.queues.len().saturating_sub(count_max);
        for queue in round.queues.drain(rest..) {
            if let Err(e) = queue.sync() {
                self.is_sync_failed = true;
                return Err(with_path(&e, &queue));
            }
        }
        if rest > 0 {
            return Ok(false);
        }
        store.checkpoint.advance_queues(round.store_timestamp);
        self.round = None;
        store.checkpoint.write()?;
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

    /// Everything that appends have left to the agent, durable. The log takes no more appends.
    pub fn finish(&mut self, store: &Store) -> io::Result<()> {
        assert!(store.log.is_stopped());
        if self.is_sync_failed {
            return Err(io::Error::other("a flush of the consume queues has failed before"));
        }
        self.begin_round(store)?;
        self.sync_some(store, usize::MAX)?;
        Ok(())
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
