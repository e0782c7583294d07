//! Writing a version 1 record, in one pass, straight to the end of the batch's buffer.
//!
//! Queue offset, log offset and store time stay 0 here: only the commit log's gate knows them and patches them in.

use super::NewRecord;
use super::layout::{
    self, HEAD_BYTES, HOST_V4_BYTES, HOST_V6_BYTES, LOG_OFFSET_AT, MAGIC_V1, PROPERTIES_BYTES_MAX,
    QUEUE_OFFSET_AT, TOPIC_BYTES_MAX, sys_flag,
};
use std::net::{IpAddr, SocketAddr};

/// CRC-32 of the body as stored, in Java's positive half; 0 for an empty body.
pub fn body_crc(body: &[u8]) -> u32 {
    crc32fast::hash(body) & 0x7FFF_FFFF
}

pub(crate) fn joined_bytes(pieces: &[&[u8]]) -> usize {
    pieces.iter().map(|piece| piece.len()).sum()
}

/// What the encoded record will take, with `record`'s topic and hosts.
pub(crate) fn record_bytes(
    record: &NewRecord<'_>,
    body_bytes: usize,
    properties_bytes: usize,
) -> usize {
    HEAD_BYTES
        + host_bytes(record.born_host)
        + host_bytes(record.store_host)
        + body_bytes
        + 1
        + record.topic.len()
        + 2
        + properties_bytes
}

/// Java turns an IPv4 address mapped into IPv6, as a dual-stack listener reports it, back into IPv4.
fn host_bytes(host: SocketAddr) -> usize {
    if host.ip().to_canonical().is_ipv4() {
        HOST_V4_BYTES
    } else {
        HOST_V6_BYTES
    }
}

/// Appends the record to `out`. Returns where, from its start, its store timestamp is.
///
/// # Panics
/// When the record breaks a limit that [`super::check`] tests: its length fields could not hold the truth. An empty body
/// is encoded, since stores written by Java have them.
pub fn encode(record: &NewRecord<'_>, out: &mut Vec<u8>) -> usize {
    encode_as(
        record,
        record.flag,
        record.prepared_offset,
        record.body,
        record.properties.iter().copied(),
        out,
    )
}

/// As [`encode`], with flag, prepared offset, body and properties given beside `shared`: the messages of a client batch.
pub(crate) fn encode_as<'p>(
    shared: &NewRecord<'_>,
    flag: i32,
    prepared_offset: i64,
    body: &[u8],
    properties: impl Iterator<Item = &'p [u8]> + Clone,
    out: &mut Vec<u8>,
) -> usize {
    let topic = shared.topic.as_bytes();
    let properties_bytes = properties.clone().map(<[u8]>::len).sum();
    let total = record_bytes(shared, body.len(), properties_bytes);
    assert!(
        topic.len() <= TOPIC_BYTES_MAX,
        "unchecked topic of {} bytes",
        topic.len()
    );
    assert!(
        properties_bytes <= PROPERTIES_BYTES_MAX,
        "unchecked properties of {properties_bytes} bytes"
    );
    assert!(
        i32::try_from(total).is_ok(),
        "unchecked record of {total} bytes"
    );
    out.reserve(total);

    let mut head = Head {
        bytes: [0; HEAD_BYTES + 2 * HOST_V6_BYTES],
        len: 0,
    };
    head.put(&(total as u32).to_be_bytes());
    head.put(&MAGIC_V1.to_be_bytes());
    head.put(&body_crc(body).to_be_bytes());
    head.put(&shared.queue_id.to_be_bytes());
    head.put(&flag.to_be_bytes());
    head.len += 8 + 8;
    head.put(&stored_sys_flag(shared).to_be_bytes());
    head.put(&shared.born_timestamp.to_be_bytes());
    head.put_host(shared.born_host);
    let store_timestamp_at = head.len;
    head.len += 8;
    head.put_host(shared.store_host);
    head.put(&shared.reconsume_times.to_be_bytes());
    head.put(&prepared_offset.to_be_bytes());
    head.put(&(body.len() as u32).to_be_bytes());

    let start = out.len();
    out.extend_from_slice(&head.bytes[..head.len]);
    out.extend_from_slice(body);
    out.push(topic.len() as u8);
    out.extend_from_slice(topic);
    out.extend_from_slice(&(properties_bytes as u16).to_be_bytes());
    properties.for_each(|piece| out.extend_from_slice(piece));
    debug_assert_eq!(out.len() - start, total);
    debug_assert_eq!(
        store_timestamp_at,
        layout::store_timestamp_at(stored_sys_flag(shared))
    );
    store_timestamp_at
}

fn stored_sys_flag(record: &NewRecord<'_>) -> i32 {
    let bit = |host, bit| {
        if host_bytes(host) == HOST_V6_BYTES {
            bit
        } else {
            0
        }
    };
    record.sys_flag & !(sys_flag::BORN_HOST_V6 | sys_flag::STORE_HOST_V6)
        | bit(record.born_host, sys_flag::BORN_HOST_V6)
        | bit(record.store_host, sys_flag::STORE_HOST_V6)
}

/// The record up to its body, gathered on the stack so that the buffer grows by a few copies only.
struct Head {
    bytes: [u8; HEAD_BYTES + 2 * HOST_V6_BYTES],
    len: usize,
}

impl Head {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn put_host(&mut self, host: SocketAddr) {
        match host.ip().to_canonical() {
            IpAddr::V4(ip) => self.put(&ip.octets()),
            IpAddr::V6(ip) => self.put(&ip.octets()),
        }
        self.put(&u32::from(host.port()).to_be_bytes());
    }
}

/// Fills in what the gate decided. `record` starts at the record's first byte.
pub(crate) fn patch(
    record: &mut [u8],
    store_timestamp_at: usize,
    queue_offset: u64,
    log_offset: u64,
    store_timestamp: u64,
) {
    let mut put = |at: usize, value: u64| record[at..at + 8].copy_from_slice(&value.to_be_bytes());
    put(QUEUE_OFFSET_AT, queue_offset);
    put(LOG_OFFSET_AT, log_offset);
    put(store_timestamp_at, store_timestamp);
}
