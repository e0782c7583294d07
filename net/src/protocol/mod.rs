//! The RocketMQ remoting protocol, pure: no I/O, no unsafe, no allocation for each frame.

pub mod body;
pub mod codes;
pub mod command;
pub mod fastjson;
pub mod frame;
pub mod headers;
pub mod writer;
