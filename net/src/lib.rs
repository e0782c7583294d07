//! Bytes that move: frames, connections, the ring. Knows no topic and no store.

pub mod client;
pub mod mailbox;
pub mod protocol;
pub mod reactor;
