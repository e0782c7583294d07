//! The RocketMQ remoting protocol, pure: no I/O, no allocation for each frame, one unsafe load (`header_json_usual`).
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
mod header_json_usual;
pub mod headers;
mod scan;
pub mod writer;
