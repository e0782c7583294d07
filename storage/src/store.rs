//! The store as the broker sees it.

use crate::append::{AppendBatch, AppendOutcome};
use crate::consume_queue::ConsumeQueue;
use crate::error::OpenError;
use crate::read::{Read, ReadLimits};
use bytes::Bytes;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct StoreConfig {
    pub root: PathBuf,
    pub commit_log_dir: PathBuf,
    pub commit_log_file_bytes: u64,
    pub consume_queue_file_bytes: u64,
    pub body_bytes_max: usize,
    /// `flushIntervalCommitLog` 500, `flushCommitLogLeastPages` 4, `flushCommitLogThoroughInterval` 10 000.
    pub flush_interval_ms: u64,
    pub flush_least_pages: u32,
    pub flush_thorough_interval_ms: u64,
    /// `flushIntervalConsumeQueue` 1000, `flushConsumeQueueLeastPages`, `flushConsumeQueueThoroughInterval` 60 000.
    pub queue_flush_interval_ms: u64,
    pub queue_flush_thorough_interval_ms: u64,
    pub check_crc_on_recover: bool,
}

/// What opening found and did, for the log.
#[derive(Debug, Default)]
pub struct OpenReport {
    pub lines: Vec<String>,
}

pub enum TimeBoundary {
    Lower,
    Upper,
}

pub struct Store {}

impl Store {
    /// Takes the lock, loads, recovers, writes `abort`. After it returns the store takes appends.
    pub fn open(_config: StoreConfig, _now_ms: u64) -> Result<(Arc<Store>, OpenReport), OpenError> {
        todo!()
    }
    /// Places the batch: gate, queue offsets and log offsets given, one write (or one for each file touched), `written`
    /// published, queue entries appended to the in-memory tails, queues' `max` published (this call ends visible).
    pub fn append(&self, _batch: &mut AppendBatch, _now_ms: u64) -> AppendOutcome {
        todo!()
    }
    pub fn queue(&self, _topic: &str, _queue_id: i32) -> Option<Arc<ConsumeQueue>> {
        todo!()
    }
    pub fn queue_or_create(&self, _topic: &str, _queue_id: i32) -> Arc<ConsumeQueue> {
        todo!()
    }
    /// Every topic that has a queue in memory or on disk.
    pub fn topics(&self) -> Vec<String> {
        todo!()
    }
    /// `accept` tests the entry's tags code before the log is touched.
    pub fn read(&self, _queue: &ConsumeQueue, _from: i64, _count_max: usize, _limits: &ReadLimits, _accept: &mut dyn FnMut(i64) -> bool) -> Read {
        todo!()
    }
    /// The record that starts at `log_offset`; `None` unless a whole, plausible record starts there.
    pub fn record_at(&self, _log_offset: u64) -> Option<Bytes> {
        todo!()
    }
    /// Lower: first entry with store time >= `time_ms`, or max. Upper: last entry with store time <= `time_ms`. Empty: 0.
    pub fn offset_by_time(&self, _queue: &ConsumeQueue, _time_ms: i64, _boundary: TimeBoundary) -> u64 {
        todo!()
    }
    /// Store time of the entry, -1 if there is none.
    pub fn store_time(&self, _queue: &ConsumeQueue, _queue_offset: u64) -> i64 {
        todo!()
    }
    /// Forgets the topic's queues and removes their files. Offsets start at 0 again.
    pub fn delete_topic(&self, _topic: &str) -> std::io::Result<()> {
        todo!()
    }
    pub fn log_min(&self) -> u64 {
        todo!()
    }
    pub fn log_max(&self) -> u64 {
        todo!()
    }
    pub fn log_flushed(&self) -> u64 {
        todo!()
    }
    /// One pass of FlushRealTimeService; may block in fdatasync. Returns ms until it wants the next pass.
    pub fn flush_turn(&self, _now_ms: u64) -> u64 {
        todo!()
    }
    /// One pass of the file agent: next log file made ahead, queue tails written to their files, queue flush round and
    /// checkpoint when due. Returns ms until the next pass.
    pub fn files_turn(&self, _now_ms: u64) -> u64 {
        todo!()
    }
    /// Blocks an agent until `append` wants it (a file is needed, the first bytes after idleness) or `timeout_ms`.
    pub fn wait_flush(&self, _timeout_ms: u64) {
        todo!()
    }
    pub fn wait_files(&self, _timeout_ms: u64) {
        todo!()
    }
    /// Wakes both waits, for shutdown.
    pub fn wake_agents(&self) {
        todo!()
    }
    /// Everything to disk, checkpoint, unused files away, `abort` removed. Appends are refused from here on.
    pub fn close(&self, _now_ms: u64) -> std::io::Result<()> {
        todo!()
    }
}
