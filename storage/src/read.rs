//! Reading a queue: DefaultMessageStore.getMessage.

use bytes::Bytes;

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
        todo!()
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
