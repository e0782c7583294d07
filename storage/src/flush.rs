//! What a store promises of an answered send, and the keys that tune its flushes.
//!
//! ```text
//! mark        async            pool                       sync
//! written     answered         answered, in the buffer    in the page cache; answered with WAIT=false
//! committed   = written        in the page cache          = written
//! flushed     on the device    on the device              answered
//! visible     = written        = committed                = flushed
//! ```
//! Consumers see what is below `visible`: never what the failure that the promise covers could take back, else their
//! offsets would pass over the messages that come in its place.
//! Source: MessageStoreConfig.java, CommitLog.java (FlushRealTimeService, CommitRealTimeService, GroupCommitService).

/// What an answered send may lose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Promise {
    /// ASYNC_FLUSH: nothing by a kill; by a power loss what was not flushed.
    #[default]
    Async,
    /// ASYNC_FLUSH with transientStorePoolEnable: by a kill what was not committed.
    Pool(PoolSize),
    /// SYNC_FLUSH: nothing.
    Sync,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSize {
    /// `transientStorePoolSize` 5: buffers, each of a log file's size.
    pub buffer_count: u32,
    /// `fastFailIfNoBufferInStorePool` false: without a free buffer a new file is written without one.
    pub fast_fail: bool,
}

/// How record bytes reach a log file that has no buffer of the pool. The bytes are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Medium {
    /// One write of the turn's batch into the page cache.
    #[default]
    Write,
    /// Stores into the file's mapping, as Java does without the pool.
    Mapped,
}

/// What may change while the store runs. The defaults are Java's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushKeys {
    /// `flushCommitLogTimed`: whether the flush sleeps its interval, or the first append ends the sleep.
    pub timed: bool,
    /// `flushIntervalCommitLog`
    pub interval_ms: u64,
    /// `flushCommitLogLeastPages`
    pub least_pages: u32,
    /// `flushCommitLogThoroughInterval`
    pub thorough_interval_ms: u64,
    /// `commitIntervalCommitLog`
    pub commit_interval_ms: u64,
    /// `commitCommitLogLeastPages`
    pub commit_least_pages: u32,
    /// `commitCommitLogThoroughInterval`
    pub commit_thorough_interval_ms: u64,
    /// `flushIntervalConsumeQueue`
    pub queue_interval_ms: u64,
    /// `flushConsumeQueueLeastPages`
    pub queue_least_pages: u32,
    /// `flushConsumeQueueThoroughInterval`
    pub queue_thorough_interval_ms: u64,
    /// `warmMapedFileEnable`: the next file is preheated, synced after so many pages
    /// (`flushLeastPagesWhenWarmMapedFile`): zeros are written over it, or its mapping gets its pages.
    pub warm_pages: Option<u32>,
    /// What is preheated is locked in memory, too, until its file is full.
    pub warm_lock: bool,
}

impl Default for FlushKeys {
    fn default() -> FlushKeys {
        FlushKeys {
            timed: true,
            interval_ms: 500,
            least_pages: 4,
            thorough_interval_ms: 10_000,
            commit_interval_ms: 200,
            commit_least_pages: 4,
            commit_thorough_interval_ms: 200,
            queue_interval_ms: 1000,
            queue_least_pages: 2,
            queue_thorough_interval_ms: 60_000,
            warm_pages: None,
            warm_lock: false,
        }
    }
}
