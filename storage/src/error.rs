//! What can go wrong, by door.

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("placeholder")]
    Placeholder,
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
