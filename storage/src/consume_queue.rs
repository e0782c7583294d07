//! Consume queue: from a place in a queue to a record in the commit log.

use std::sync::atomic::AtomicU64;

/// One 20-byte entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub log_offset: u64,
    pub record_bytes: u32,
    pub tags_code: i64,
}

pub struct ConsumeQueue {
    pub topic: Box<str>,
    pub queue_id: i32,
    /// Bit s: shard s holds pulls of this queue. Set by the holder, then SeqCst fence, then `max` is read again; the
    /// appender publishes `max`, SeqCst fence, then reads this.
    pub waiters: AtomicU64,
}

impl ConsumeQueue {
    /// First readable queue offset.
    pub fn min(&self) -> u64 {
        todo!()
    }
    /// The queue offset the next visible message will get.
    pub fn max(&self) -> u64 {
        todo!()
    }
    /// Up to `count_max` entries from `from` on, appended to `out`; fewer at the end. Serves the in-memory tail and the files.
    pub fn read(&self, _from: u64, _count_max: usize, _out: &mut Vec<Entry>) -> std::io::Result<()> {
        todo!()
    }
}
