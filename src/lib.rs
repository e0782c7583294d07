//! ringmq: a RocketMQ broker and name server for Linux x86_64. See docs/architecture.md.

pub mod agents;
pub mod broker;
pub mod config;
pub mod flush_waits;
pub mod namesrv;
pub mod node;
pub mod shard;
mod text_file;

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970, by the wall clock: for what is stored and shown.
pub fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// For intervals, in the agents; shards get their `Now` from the reactor.
pub fn mono_ns() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    // Never 0, which stands for long ago.
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64 + 1
}
