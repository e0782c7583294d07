//! The RocketMQ remoting protocol, pure: no I/O, no unsafe, no allocation for each frame.
//!
//! ```text
//! received bytes ─ frame::frame_head ─ command::decode ─┬─ headers::*  typed views of extFields
//!                                                       └─ body::*     JSON and binary bodies
//! outbox bytes   <───────────────── writer::FrameWriter
//! ```

pub mod body;
pub mod codes;
pub mod command;
pub mod fastjson;
pub mod frame;
mod header_binary;
mod header_json;
pub mod headers;
mod scan;
pub mod writer;
