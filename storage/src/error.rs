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

/// A record that can not be encoded: answered with code 13.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("placeholder")]
    Placeholder,
}
/// A batch that could not be placed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// No mapped file could be made in time: code 1, the client tries another broker.
    #[error("create mapped file failed: {0}")]
    NoFile(String),
    /// Shut down, disk full, or a failed flush: code 14.
    #[error("{0}")]
    NotWritable(String),
}
