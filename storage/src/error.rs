//! What can go wrong, by door.

use std::path::{Path, PathBuf};

/// Why a store does not open. Each text names the path and, where there is one, the remedy.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process, ours or Java's, holds byte 0 of `lock`.
    #[error("the store is in use: {} is locked by {}; stop that broker or choose another storePathRootDir", path.display(), holder(*pid))]
    Locked { path: PathBuf, pid: Option<i32> },
    #[error("{act} {}: {source}", path.display())]
    Io { act: &'static str, path: PathBuf, source: std::io::Error },
    /// Something that is no part of a store lies where only mapped files may be, or a mapped file is not whole.
    /// Nothing was changed.
    #[error("{}: {found}; {remedy}", path.display())]
    OddFile { path: PathBuf, found: String, remedy: String },
    /// Sizes that can not work together, or do not fit what is on disk.
    #[error("{key} = {value}: {reason}")]
    Config { key: &'static str, value: u64, reason: String },
    /// Data of a kind this version can not open.
    #[error("{}: {what}; {remedy}", path.display())]
    Unknown { path: PathBuf, what: &'static str, remedy: &'static str },
}

impl OpenError {
    pub(crate) fn io(act: &'static str, path: &Path, source: std::io::Error) -> OpenError {
        OpenError::Io { act, path: path.to_path_buf(), source }
    }
}

fn holder(pid: Option<i32>) -> String {
    match pid {
        Some(pid) if pid > 0 => format!("process {pid}"),
        _ => "another process".to_owned(),
    }
}

/// A record that can not be encoded: answered with code 13. The text is the answer's remark.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("the message body is empty")]
    BodyEmpty,
    /// Of one message, or of a whole client batch.
    #[error("the message body of {bytes} bytes is over the limit of {max} bytes (maxMessageSize)")]
    BodyTooLarge { bytes: usize, max: usize },
    #[error("the topic is empty")]
    TopicEmpty,
    #[error("the topic of {bytes} bytes is over the limit of {max} bytes")]
    TopicTooLong { bytes: usize, max: usize },
    #[error("the message properties of {bytes} bytes are over the limit of {max} bytes")]
    PropertiesTooLong { bytes: usize, max: usize },
    /// All records of one unit together.
    #[error("the message would take {bytes} bytes in the store, the limit is {max} bytes")]
    RecordTooLarge { bytes: usize, max: usize },
    #[error("the batch holds no message")]
    BatchEmpty,
    #[error("the batch is malformed at byte {position}: {what}")]
    BatchMalformed { position: usize, what: BatchFault },
}

/// What is wrong with one message inside a client batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BatchFault {
    #[error("{bytes} bytes left, a message needs at least {min}")]
    Short { bytes: usize, min: usize },
    #[error("total size {claimed}, but its fields add up to {sum}")]
    TotalSize { claimed: i32, sum: usize },
    #[error("body length {claimed}, {bytes} bytes left")]
    BodyLength { claimed: i32, bytes: usize },
    #[error("properties length {claimed}, {bytes} bytes left")]
    PropertiesLength { claimed: i16, bytes: usize },
}

/// A batch that could not be placed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// No mapped file could be made in time: code 1, the client tries another broker.
    #[error("create mapped file failed: {0}")]
    NoFile(String),
    /// The next log file is being made: come again. After too long a wait the answer is that of `NoFile`.
    #[error("create mapped file failed: the log file at {start} is not ready, the disk is slow")]
    NoFileYet { start: u64 },
    /// A unit longer than a log file: code 13. The units behind it were not tried.
    #[error("the message would take {bytes} bytes in the store, a log file holds {max}")]
    TooLarge { bytes: usize, max: usize },
    /// No buffer of the transient store pool is free: code 2, until the next commit brings one back.
    #[error(
        "[REJECTREQUEST]system busy, start flow control for a while: no buffer of the transient store pool is free"
    )]
    Busy,
    /// Shut down, disk full, or a failed flush: code 14.
    #[error("{0}")]
    NotWritable(String),
}
