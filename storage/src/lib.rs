//! Bytes that survive: the commit log, its queues and what recovers them. No sockets, no request codes,
//! starts no thread, never asks for the time.

pub mod append;
pub mod consume_queue;
pub mod error;
pub mod read;
pub mod record;
pub mod store;
