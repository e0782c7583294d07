//! Bytes that survive: the commit log, its queues and what recovers them. No sockets, no request codes,
//! starts no thread that outlives a call, never asks for the time.

pub mod append;
pub mod consume_queue;
pub mod damage;
pub mod deleted_topics;
pub mod error;
pub mod flush;
pub mod index;
pub mod read;
pub mod record;
pub mod retention;
pub mod store;

mod agent;
mod allocate;
mod bus_error;
mod checkpoint;
mod clean_stop;
mod commit_log;
mod descriptors;
mod disk;
mod ext;
mod failed_sync;
mod index_file;
mod index_keys;
mod lock;
mod mapped_file;
mod queue_repair;
mod recovery;
mod survey;
mod transient_pool;
mod wrong_queues;

#[cfg(any(test, feature = "simulate"))]
pub mod testing;

#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod index_tests;
#[cfg(test)]
mod promise_tests;
