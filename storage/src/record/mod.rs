//! One codec for disk and wire: the stored record is what a pull sends.

use crate::error::RecordError;
use std::net::SocketAddr;

pub mod batch;
pub mod decode;
pub mod encode;
pub mod java_text;
pub mod layout;
pub mod properties;

pub use java_text::java_hash;

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
    /// 1 for clients; 0 for what the store has already: stores written by Java have empty bodies.
    pub body_bytes_min: usize,
    pub body_bytes_max: usize,
    /// What a log file has room for (its length without the blank record): one record, or all of a client batch.
    pub unit_bytes_max: usize,
}

impl RecordLimits {
    /// Limited by the body alone.
    pub const fn of_body(body_bytes_max: usize) -> RecordLimits {
        RecordLimits { body_bytes_min: 1, body_bytes_max, unit_bytes_max: i32::MAX as usize }
    }
}

/// Whether the record can be stored: topic, body, properties and the whole, in Java's order.
///
/// # Errors
/// The first limit that is broken, with its numbers.
pub fn check(record: &NewRecord<'_>, limits: RecordLimits) -> Result<(), RecordError> {
    check_topic(record.topic)?;
    check_body(record.body, limits)?;
    let properties_bytes = encode::joined_bytes(record.properties);
    check_properties(properties_bytes)?;
    check_total(encode::record_bytes(record, record.body.len(), properties_bytes), limits, 1)
}

pub(crate) fn check_topic(topic: &str) -> Result<(), RecordError> {
    match topic.len() {
        0 => Err(RecordError::TopicEmpty),
        bytes if bytes > layout::TOPIC_BYTES_MAX => {
            Err(RecordError::TopicTooLong { bytes, max: layout::TOPIC_BYTES_MAX })
        }
        _ => Ok(()),
    }
}

pub(crate) fn check_body(body: &[u8], limits: RecordLimits) -> Result<(), RecordError> {
    match body.len() {
        bytes if bytes < limits.body_bytes_min => Err(RecordError::BodyEmpty),
        bytes if bytes > limits.body_bytes_max => Err(RecordError::BodyTooLarge { bytes, max: limits.body_bytes_max }),
        _ => Ok(()),
    }
}

pub(crate) fn check_properties(bytes: usize) -> Result<(), RecordError> {
    let max = layout::PROPERTIES_BYTES_MAX;
    if bytes > max { Err(RecordError::PropertiesTooLong { bytes, max }) } else { Ok(()) }
}

/// `growth`: how many times the limit of one record all records of a unit may take.
pub(crate) fn check_total(bytes: usize, limits: RecordLimits, growth: usize) -> Result<(), RecordError> {
    let one = limits.body_bytes_max.saturating_add(layout::RECORD_BEYOND_BODY_BYTES);
    // A size is an `i32` in the log and in the queue.
    let max = one.saturating_mul(growth).min(limits.unit_bytes_max).min(i32::MAX as usize - layout::BLANK_BYTES);
    if bytes > max { Err(RecordError::RecordTooLarge { bytes, max }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use RecordError::*;

    #[test]
    fn limits() {
        let (t127, t128) = ("t".repeat(127), "t".repeat(128));
        let properties = vec![b'p'; 20_000];
        let full: &[&[u8]] = &[&properties, &properties[..12_767]];
        let over: &[&[u8]] = &[&properties, &properties[..12_767], b"p"];
        for (topic, body_bytes, properties, want) in [
            ("t", 1, &[][..], Ok(())),
            (&t127, 100, full, Ok(())),
            ("", 1, &[], Err(TopicEmpty)),
            (&t128, 1, &[], Err(TopicTooLong { bytes: 128, max: 127 })),
            ("t", 0, &[], Err(BodyEmpty)),
            ("t", 101, &[], Err(BodyTooLarge { bytes: 101, max: 100 })),
            ("t", 1, over, Err(PropertiesTooLong { bytes: 32_768, max: 32_767 })),
        ] {
            let body = vec![0; body_bytes];
            let record = NewRecord {
                topic,
                queue_id: 0,
                flag: 0,
                sys_flag: 0,
                born_timestamp: 0,
                born_host: ([0; 4], 0).into(),
                store_host: ([0; 4], 0).into(),
                reconsume_times: 0,
                prepared_offset: 0,
                body: &body,
                properties,
            };
            assert_eq!(check(&record, RecordLimits::of_body(100)), want, "{topic} {body_bytes}");
        }
    }
}
