//! One codec for disk and wire: the stored record is what a pull sends.

use crate::error::RecordError;
use std::net::SocketAddr;

pub mod batch;
pub mod decode;
pub mod encode;
pub mod properties;

/// A message about to be stored. `properties` is the final text, given in pieces that are joined as they are.
pub struct NewRecord<'a> {
    pub topic: &'a str,
    pub queue_id: i32,
    pub flag: i32,
    /// As the client sent it; the IPv6 bits are set by the encoder from the hosts.
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub born_host: SocketAddr,
    pub store_host: SocketAddr,
    pub reconsume_times: i32,
    pub prepared_offset: i64,
    pub body: &'a [u8],
    pub properties: &'a [&'a [u8]],
}

/// Limits in force (`maxMessageSize` and what follows from it).
#[derive(Clone, Copy, Debug)]
pub struct RecordLimits {
    pub body_bytes_max: usize,
}

/// `java.lang.String.hashCode` over UTF-16 units.
pub fn java_hash(_text: &str) -> i32 {
    todo!()
}

pub fn check(_record: &NewRecord<'_>, _limits: RecordLimits) -> Result<(), RecordError> {
    todo!()
}
