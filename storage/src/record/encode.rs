//! Writing a version 1 record, in one pass, straight to the end of the batch's buffer.
//!
//! Queue offset, log offset and store time stay 0 here: only the commit log's gate knows them and patches them in.

use super::NewRecord;
use super::layout::{
    self, HEAD_BYTES, HOST_V4_BYTES, HOST_V6_BYTES, LOG_OFFSET_AT, MAGIC_V1, PROPERTIES_BYTES_MAX, QUEUE_OFFSET_AT,
    TOPIC_BYTES_MAX, sys_flag,
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
pub(crate) fn record_bytes(record: &NewRecord<'_>, body_bytes: usize, properties_bytes: usize) -> usize {
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
    if host.ip().to_canonical().is_ipv4() { HOST_V4_BYTES } else { HOST_V6_BYTES }
}

/// Appends the record to `out`. Returns where, from its start, its store timestamp is.
///
/// # Panics
/// When the record breaks a limit that [`super::check`] tests: its length fields could not hold the truth. An empty body
/// is encoded, since stores written by Java have them.
pub fn encode(record: &NewRecord<'_>, out: &mut Vec<u8>) -> usize {
    encode_as(record, record.flag, record.prepared_offset, record.body, record.properties.iter().copied(), out)
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
    assert!(topic.len() <= TOPIC_BYTES_MAX, "unchecked topic of {} bytes", topic.len());
    assert!(properties_bytes <= PROPERTIES_BYTES_MAX, "unchecked properties of {properties_bytes} bytes");
    assert!(i32::try_from(total).is_ok(), "unchecked record of {total} bytes");
    out.reserve(total);

    let mut head = Head { bytes: [0; HEAD_BYTES + 2 * HOST_V6_BYTES], len: 0 };
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
    debug_assert_eq!(store_timestamp_at, layout::store_timestamp_at(stored_sys_flag(shared)));
    store_timestamp_at
}

fn stored_sys_flag(record: &NewRecord<'_>) -> i32 {
    let bit = |host, bit| {
        if host_bytes(host) == HOST_V6_BYTES { bit } else { 0 }
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

#[cfg(test)]
pub(super) mod tests {
    use super::super::decode::Record;
    use super::*;

    pub fn from_hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    /// Written by the broker 4.9.7, at 186400 and 186827 of the fixture store-4.9.7-clean.
    pub const TOPIC_DIRECT: &str = "
        00000066 daa320a7 00000000 00000001 00000007
        0000000000000000 000000000002d820
        00000000 000001a22a26829b 7f000001 00009c40
        000001a22a26829b 7f000001 00002a9f
        00000000 0000000000000000 00000000
        0b 546f706963446972656374 0000";
    pub const TOPIC_V6: &str = "
        000000ae daa320a7 04b5abd7 00000001 00000007  0000000000000000 000000000002d9cb
        00000030 000001a22a26829b 20010db8000000000000000000000001 00009c46
        000001a22a26829b 20010db8000000000000000000000002 00002a9f
        00000000 0000000000000000 00000007 626f7468207636
        07 546f7069635636  002d 5441475301763602 4b45595301697076366b657902
        554e49515f4b455901 46495854555245554e495130303031";

    fn encoded(record: &NewRecord<'_>, log_offset: u64) -> Vec<u8> {
        // Records follow each other in the buffer: the second must not disturb the first, nor depend on it.
        let mut out = Vec::new();
        encode(record, &mut out);
        let start = out.len();
        let store_timestamp_at = encode(record, &mut out);
        patch(&mut out[start..], store_timestamp_at, 0, log_offset, 1_796_003_496_603);
        out.split_off(start)
    }

    #[test]
    fn records_of_the_4_9_7_broker_byte_for_byte() {
        let mut record = NewRecord {
            topic: "TopicDirect",
            queue_id: 1,
            flag: 7,
            sys_flag: 0,
            born_timestamp: 1_796_003_496_603,
            born_host: "127.0.0.1:40000".parse().unwrap(),
            store_host: "127.0.0.1:10911".parse().unwrap(),
            reconsume_times: 0,
            prepared_offset: 0,
            body: b"",
            properties: &[],
        };
        assert_eq!(encoded(&record, 186400), from_hex(TOPIC_DIRECT));
        record.born_host = "[::ffff:127.0.0.1]:40000".parse().unwrap();
        record.sys_flag = sys_flag::BORN_HOST_V6;
        assert_eq!(encoded(&record, 186400), from_hex(TOPIC_DIRECT), "a mapped address is IPv4");

        record.topic = "TopicV6";
        record.sys_flag = 0;
        record.born_host = "[2001:db8::1]:40006".parse().unwrap();
        record.store_host = "[2001:db8::2]:10911".parse().unwrap();
        record.body = b"both v6";
        record.properties = &[b"TAGS\x01v6\x02", b"KEYS\x01ipv6key\x02UNIQ_KEY", b"\x01FIXTUREUNIQ0001"];
        assert_eq!(encoded(&record, 186827), from_hex(TOPIC_V6));
    }

    #[test]
    fn each_host_has_its_own_family() {
        for (born, store, bytes, bits) in [
            ("1.2.3.4:5", "6.7.8.9:10", 93, 0),
            ("[::1]:5", "6.7.8.9:10", 105, sys_flag::BORN_HOST_V6),
            ("1.2.3.4:65535", "[::1]:10", 105, sys_flag::STORE_HOST_V6),
            ("[::1]:5", "[::2]:65535", 117, sys_flag::BORN_HOST_V6 | sys_flag::STORE_HOST_V6),
        ] {
            let (born_host, store_host) = (born.parse().unwrap(), store.parse().unwrap());
            let record = NewRecord {
                topic: "t",
                queue_id: 0,
                flag: 0,
                sys_flag: 0x700 | sys_flag::COMPRESSED,
                born_timestamp: -1,
                born_host,
                store_host,
                reconsume_times: 16,
                prepared_offset: i64::MAX,
                body: b"b",
                properties: &[],
            };
            let bytes_out = encoded(&record, 1);
            let back = Record::parse(&bytes_out).unwrap();
            assert_eq!(bytes_out.len(), bytes, "{born} {store}");
            assert_eq!((back.born_host, back.store_host), (born_host, store_host));
            assert_eq!(back.sys_flag, 0x700 | sys_flag::COMPRESSED | bits);
            assert_eq!((back.born_timestamp, back.reconsume_times, back.prepared_offset), (-1, 16, i64::MAX));
        }
    }
}
