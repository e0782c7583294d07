//! Reading a record: whole and checked for recovery and tools, single fields for the hot path. No bytes make it panic.
//!
//! Source: CommitLog.checkMessageAndReturnSize, MessageDecoder.decode.

use super::encode::body_crc;
use super::layout::{
    BLANK_BYTES, BORN_HOST_AT, LOG_OFFSET_AT, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, QUEUE_ID_AT, QUEUE_OFFSET_AT,
    RECORD_BYTES_MIN, SYS_FLAG_AT, store_host_bytes, store_timestamp_at, sys_flag,
};
use super::properties;
use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Topic length in one byte: what 4.9 reads and we write.
    V1,
    /// Topic length in two bytes, 5.x only.
    V2,
}

/// A stored record, its fields as they lie there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The whole record.
    pub bytes: &'a [u8],
    pub version: Version,
    pub body_crc: u32,
    pub queue_id: i32,
    pub flag: i32,
    pub queue_offset: u64,
    pub log_offset: u64,
    pub sys_flag: i32,
    pub born_timestamp: i64,
    /// The low 16 bits of the stored port.
    pub born_host: SocketAddr,
    pub store_timestamp: i64,
    pub store_host: SocketAddr,
    pub reconsume_times: i32,
    pub prepared_offset: i64,
    /// As stored: compressed if the sys flag says so.
    pub body: &'a [u8],
    pub topic: &'a [u8],
    pub properties: &'a [u8],
}

/// What starts at a position of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked<'a> {
    Record(Record<'a>),
    /// The end of this file, by its own claim `bytes_left` bytes before it. The next record is the next file's first.
    Blank {
        bytes_left: u32,
    },
    /// Nothing was written here: zeros, or the file is used up.
    End,
}

/// Why the bytes at a position of the log are no record. The log ends before them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordFault {
    #[error("{bytes} bytes left, not zero, too few for a record of at least {min}")]
    Short { bytes: usize, min: usize },
    #[error("magic {found:08x} is neither a record's nor a blank's")]
    Magic { found: u32 },
    #[error("total size {claimed}, at least {min} and at most {bytes_left} expected")]
    TotalSize { claimed: i32, min: usize, bytes_left: usize },
    #[error("body length {claimed}, {bytes} bytes of the record left")]
    BodyLength { claimed: i32, bytes: usize },
    #[error("topic length {claimed}, {bytes} bytes of the record left")]
    TopicLength { claimed: i16, bytes: usize },
    #[error("properties length {claimed}, {bytes} bytes of the record left")]
    PropertiesLength { claimed: i16, bytes: usize },
    #[error("total size {claimed}, but the fields add up to {sum}")]
    LengthsDisagree { claimed: usize, sum: usize },
    #[error("body CRC {stored:08x} stored, {computed:08x} computed over {bytes} bytes")]
    BodyCrc { stored: u32, computed: u32, bytes: usize },
    #[error("log offset {stored} stored in the record at {expected}")]
    LogOffset { stored: u64, expected: u64 },
    #[error("property CRC {stored:?} stored, {computed} computed")]
    PropertyCrc { stored: Option<u32>, computed: u32 },
}

/// Checks what starts at the first of `bytes`, which reach to the end of the file (or of what may be read).
///
/// # Errors
/// The first thing that is wrong: magic, total size, the lengths inside, the body's CRC (if `verify_crc`; an empty body
/// has none), the record's own log offset (if expected).
pub fn check(bytes: &[u8], expected_log_offset: Option<u64>, verify_crc: bool) -> Result<Checked<'_>, RecordFault> {
    if bytes.len() < BLANK_BYTES {
        return if bytes.iter().all(|&b| b == 0) {
            Ok(Checked::End)
        } else {
            Err(RecordFault::Short { bytes: bytes.len(), min: RECORD_BYTES_MIN })
        };
    }
    match read_u32(bytes, 4) {
        MAGIC_BLANK => {
            return Ok(Checked::Blank { bytes_left: read_u32(bytes, 0) });
        }
        0 if read_u32(bytes, 0) == 0 => return Ok(Checked::End),
        _ => {}
    }
    let record = Record::parse(bytes)?;
    if verify_crc && !record.body.is_empty() {
        let computed = body_crc(record.body);
        if computed != record.body_crc {
            return Err(RecordFault::BodyCrc { stored: record.body_crc, computed, bytes: record.body.len() });
        }
    }
    match expected_log_offset {
        Some(expected) if expected != record.log_offset => {
            Err(RecordFault::LogOffset { stored: record.log_offset, expected })
        }
        _ => Ok(Checked::Record(record)),
    }
}

impl<'a> Record<'a> {
    /// The record at the start of `bytes`, which may reach beyond it. Everything but the CRCs and the offsets is checked.
    ///
    /// # Errors
    /// The first field that cannot be.
    pub fn parse(bytes: &'a [u8]) -> Result<Record<'a>, RecordFault> {
        if bytes.len() < RECORD_BYTES_MIN {
            return Err(RecordFault::Short { bytes: bytes.len(), min: RECORD_BYTES_MIN });
        }
        let version = match read_u32(bytes, 4) {
            MAGIC_V1 => Version::V1,
            MAGIC_V2 => Version::V2,
            found => return Err(RecordFault::Magic { found }),
        };
        let flags = read_i32(bytes, SYS_FLAG_AT);
        let topic_length_bytes = if version == Version::V1 { 1 } else { 2 };
        let store_at = store_timestamp_at(flags);
        let reconsume_at = store_at + 8 + store_host_bytes(flags);
        let body_at = reconsume_at + 4 + 8 + 4;
        let min = body_at + topic_length_bytes + 2;
        let claimed = read_i32(bytes, 0);
        let total = match usize::try_from(claimed) {
            Ok(total) if total >= min && total <= bytes.len() => total,
            _ => {
                return Err(RecordFault::TotalSize { claimed, min, bytes_left: bytes.len() });
            }
        };
        let bytes = &bytes[..total];

        let claimed = read_i32(bytes, body_at - 4);
        let room = total - min;
        let body_end = match usize::try_from(claimed) {
            Ok(length) if length <= room => body_at + length,
            _ => {
                return Err(RecordFault::BodyLength { claimed, bytes: room });
            }
        };
        let claimed = match version {
            // Java reads this byte as signed: 128 and above is a negative length there.
            Version::V1 => i16::from(bytes[body_end] as i8),
            Version::V2 => read_i16(bytes, body_end),
        };
        let topic_at = body_end + topic_length_bytes;
        let room = total - 2 - topic_at;
        let topic_end = match usize::try_from(claimed) {
            Ok(length) if length <= room => topic_at + length,
            _ => {
                return Err(RecordFault::TopicLength { claimed, bytes: room });
            }
        };
        let claimed = read_i16(bytes, topic_end);
        let properties_at = topic_end + 2;
        let room = total - properties_at;
        let end = match usize::try_from(claimed) {
            Ok(length) if length <= room => properties_at + length,
            _ => {
                return Err(RecordFault::PropertiesLength { claimed, bytes: room });
            }
        };
        if end != total {
            return Err(RecordFault::LengthsDisagree { claimed: total, sum: end });
        }
        Ok(Record {
            bytes,
            version,
            body_crc: read_u32(bytes, 8),
            queue_id: read_i32(bytes, QUEUE_ID_AT),
            flag: read_i32(bytes, 16),
            queue_offset: read_u64(bytes, QUEUE_OFFSET_AT),
            log_offset: read_u64(bytes, LOG_OFFSET_AT),
            sys_flag: flags,
            born_timestamp: read_u64(bytes, 40) as i64,
            born_host: read_host(&bytes[BORN_HOST_AT..store_at]),
            store_timestamp: read_u64(bytes, store_at) as i64,
            store_host: read_host(&bytes[store_at + 8..reconsume_at]),
            reconsume_times: read_i32(bytes, reconsume_at),
            prepared_offset: read_u64(bytes, reconsume_at + 4) as i64,
            body: &bytes[body_at..body_end],
            topic: &bytes[topic_at..topic_end],
            properties: &bytes[properties_at..],
        })
    }

    /// What the consume queue and the index need of it. `delays_ms` as in [`properties::tags_code`].
    pub fn dispatch_info(&self, delays_ms: &[i64]) -> DispatchInfo<'a> {
        let [tags, delay, keys, uniq_key] = properties::get_each(
            self.properties,
            [properties::TAGS, properties::DELAY, properties::KEYS, properties::UNIQ_KEY],
        );
        let topic = String::from_utf8_lossy(self.topic);
        DispatchInfo {
            queue_id: self.queue_id,
            queue_offset: self.queue_offset,
            log_offset: self.log_offset,
            record_bytes: self.bytes.len() as u32,
            tags_code: properties::tags_code_of(&topic, tags, delay, self.store_timestamp, delays_ms),
            store_timestamp: self.store_timestamp,
            sys_flag: self.sys_flag,
            topic,
            keys,
            uniq_key,
        }
    }

    /// The CRC over everything before it that 5.x can put at the end of the properties (`enabledAppendPropCRC`).
    /// `true`: there and right; `false`: not there.
    ///
    /// # Errors
    /// [`RecordFault::PropertyCrc`] when it is there and wrong.
    pub fn verify_property_crc(&self) -> Result<bool, RecordFault> {
        let at = self.bytes.len() - self.properties.len().min(PROPERTY_CRC_BYTES);
        let (covered, tail) = self.bytes.split_at(at);
        let Some(digits) = tail.strip_prefix(PROPERTY_CRC_NAME).and_then(|rest| rest.strip_suffix(b"\x02")) else {
            return Ok(false);
        };
        let computed = crc32fast::hash(covered) & 0x7FFF_FFFF;
        // The digits stand least significant first.
        let stored = digits.iter().rev().try_fold(0u32, |value, digit| match digit {
            b'0'..=b'9' => value.checked_mul(10)?.checked_add(u32::from(digit - b'0')),
            _ => None,
        });
        if stored == Some(computed) { Ok(true) } else { Err(RecordFault::PropertyCrc { stored, computed }) }
    }
}

const PROPERTY_CRC_NAME: &[u8] = b"__CRC32#\x01";
const PROPERTY_CRC_BYTES: usize = PROPERTY_CRC_NAME.len() + 10 + 1;

/// A record as the consume queue and the index see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DispatchInfo<'a> {
    /// Borrowed, unless a foreign store holds one that is not UTF-8.
    pub topic: Cow<'a, str>,
    pub queue_id: i32,
    pub queue_offset: u64,
    pub log_offset: u64,
    pub record_bytes: u32,
    pub tags_code: i64,
    pub store_timestamp: i64,
    pub sys_flag: i32,
    /// Separated by single spaces.
    pub keys: Option<&'a [u8]>,
    pub uniq_key: Option<&'a [u8]>,
}

impl DispatchInfo<'_> {
    /// Whether it gets an entry: prepared and rollback records do not.
    pub fn is_queued(&self) -> bool {
        sys_flag::is_queued(self.sys_flag)
    }
}

/// Where the first whole record in `bytes` starts, which begin at `log_offset`: behind damage, a record says itself where
/// it was written. Looks at the first `length` bytes for its start.
pub(crate) fn find_record(bytes: &[u8], log_offset: u64, length: usize) -> Option<usize> {
    let [first, ..] = MAGIC_V1.to_be_bytes();
    let end = bytes.len().min(length.saturating_add(4));
    let mut at = 4;
    while at < end {
        at += bytes[at..end].iter().position(|byte| *byte == first)?;
        let from = at - 4;
        let is_it = matches!(check(&bytes[from..], Some(log_offset + from as u64), true), Ok(Checked::Record(_)));
        if is_it {
            return Some(from);
        }
        at += 1;
    }
    None
}

/// Total size and magic as they stand there, unchecked.
pub fn peek_size(bytes: &[u8]) -> Option<(u32, u32)> {
    (bytes.len() >= BLANK_BYTES).then(|| (read_u32(bytes, 0), read_u32(bytes, 4)))
}

/// Store timestamp of the record that starts at the first of `bytes`; `None` if they end before it.
pub fn peek_store_timestamp(bytes: &[u8]) -> Option<i64> {
    let flags = (bytes.len() >= BORN_HOST_AT).then(|| read_i32(bytes, SYS_FLAG_AT))?;
    let at = store_timestamp_at(flags);
    (bytes.len() >= at + 8).then(|| read_u64(bytes, at) as i64)
}

/// Queue id and queue offset of the record that starts at the first of `bytes`.
pub fn peek_queue(bytes: &[u8]) -> Option<(i32, u64)> {
    (bytes.len() >= QUEUE_OFFSET_AT + 8).then(|| (read_i32(bytes, QUEUE_ID_AT), read_u64(bytes, QUEUE_OFFSET_AT)))
}

fn read_host(bytes: &[u8]) -> SocketAddr {
    let (address, port) = bytes.split_at(bytes.len() - 4);
    let ip = match <[u8; 16]>::try_from(address) {
        Ok(v6) => IpAddr::V6(Ipv6Addr::from(v6)),
        Err(_) => IpAddr::V4(Ipv4Addr::new(address[0], address[1], address[2], address[3])),
    };
    SocketAddr::new(ip, u16::from_be_bytes([port[2], port[3]]))
}

pub(crate) fn read_i16(bytes: &[u8], at: usize) -> i16 {
    i16::from_be_bytes(field(bytes, at))
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(field(bytes, at))
}

pub(crate) fn read_i32(bytes: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(field(bytes, at))
}

fn read_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(field(bytes, at))
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a slice of N bytes is an array of N bytes")
}

#[cfg(test)]
mod tests {
    use super::super::encode::tests::{TOPIC_DIRECT, TOPIC_V6, from_hex};
    use super::super::{NewRecord, encode, layout};
    use super::*;
    use proptest::prelude::*;

    fn with(bytes: &[u8], at: usize, patch: &[u8]) -> Vec<u8> {
        let mut changed = bytes.to_vec();
        changed[at..at + patch.len()].copy_from_slice(patch);
        changed
    }

    #[test]
    fn fields_of_a_worked_record() {
        let bytes = from_hex(TOPIC_V6);
        let Ok(Checked::Record(record)) = check(&bytes, Some(186827), true) else { panic!("a good record") };
        assert_eq!(record.topic, b"TopicV6");
        assert_eq!(record.body, b"both v6");
        assert_eq!(record.properties, b"TAGS\x01v6\x02KEYS\x01ipv6key\x02UNIQ_KEY\x01FIXTUREUNIQ0001");
        assert_eq!(record.store_host, "[2001:db8::2]:10911".parse().unwrap());
        let info = record.dispatch_info(&properties::DELAYS_MS);
        assert!(matches!(info.topic, Cow::Borrowed("TopicV6")));
        assert_eq!((info.log_offset, info.record_bytes, info.tags_code), (186827, 174, 3712));
        assert_eq!((info.keys, info.uniq_key), (Some(&b"ipv6key"[..]), Some(&b"FIXTUREUNIQ0001"[..])));
        assert!(info.is_queued());
    }

    #[test]
    fn what_starts_at_a_position() {
        let good = from_hex(TOPIC_V6);
        let direct = from_hex(TOPIC_DIRECT);
        let body_at = HEAD_V6;
        const HEAD_V6: usize = layout::HEAD_BYTES + 2 * layout::HOST_V6_BYTES;
        let mut with_rest = good.clone();
        with_rest.extend([0xFF; 300]);
        assert!(matches!(check(&with_rest, None, true), Ok(Checked::Record(r)) if r.bytes.len() == 174));
        assert!(matches!(check(&direct, Some(186400), true), Ok(Checked::Record(r)) if r.bytes.len() == 102));

        assert_eq!(check(&[], None, true), Ok(Checked::End));
        assert_eq!(check(&[0; 7], None, true), Ok(Checked::End));
        assert_eq!(check(&[0; 200], None, true), Ok(Checked::End));
        assert_eq!(check(&layout::blank(1052), Some(5), true), Ok(Checked::Blank { bytes_left: 1052 }));

        use RecordFault::*;
        let len = good.len();
        for (what, bytes, want) in [
            ("torn in the size", good[..5].to_vec(), Short { bytes: 5, min: 91 }),
            ("torn in the head", good[..90].to_vec(), Short { bytes: 90, min: 91 }),
            ("torn in the body", good[..120].to_vec(), TotalSize { claimed: 174, min: 115, bytes_left: 120 }),
            ("magic", with(&good, 4, &[0, 0, 0, 1]), Magic { found: 1 }),
            ("magic 0", with(&good, 4, &[0; 4]), Magic { found: 0 }),
            ("size 0", with(&good, 0, &[0; 4]), TotalSize { claimed: 0, min: 115, bytes_left: len }),
            ("size < 0", with(&good, 0, &[0xFF; 4]), TotalSize { claimed: -1, min: 115, bytes_left: len }),
            ("size + 1", with(&good, 3, &[0xAF]), TotalSize { claimed: 175, min: 115, bytes_left: len }),
            ("size - 1", with(&good, 3, &[0xAD]), PropertiesLength { claimed: 45, bytes: 44 }),
            ("body < 0", with(&good, body_at - 4, &[0x80]), BodyLength { claimed: i32::MIN + 7, bytes: 59 }),
            ("body > rest", with(&good, body_at - 1, &[60]), BodyLength { claimed: 60, bytes: 59 }),
            ("body + 1", with(&good, body_at - 1, &[8]), TopicLength { claimed: 84, bytes: 51 }),
            ("topic signed", with(&good, body_at + 7, &[128]), TopicLength { claimed: -128, bytes: 52 }),
            ("topic > rest", with(&good, body_at + 7, &[53]), TopicLength { claimed: 53, bytes: 52 }),
            ("properties < 0", with(&good, body_at + 15, &[0x80]), PropertiesLength { claimed: -32723, bytes: 45 }),
            ("properties - 1", with(&good, body_at + 16, &[44]), LengthsDisagree { claimed: 174, sum: 173 }),
            ("properties + 1", with(&good, body_at + 16, &[46]), PropertiesLength { claimed: 46, bytes: 45 }),
            (
                "body bit",
                with(&good, body_at, b"c"),
                BodyCrc { stored: 0x04b5abd7, computed: encode::body_crc(b"coth v6"), bytes: 7 },
            ),
            ("log offset", with(&good, 28, &[1]), LogOffset { stored: 186827 + (1 << 56), expected: 186827 }),
            (
                "a stale v4 record, IPv6 bits set",
                with(&direct, 39, &[0x30]),
                TotalSize { claimed: 102, min: 115, bytes_left: 102 },
            ),
        ] {
            assert_eq!(check(&bytes, Some(186827), true), Err(want), "{what}");
        }
        assert!(check(&with(&good, body_at, b"c"), None, false).is_ok(), "the CRC is left alone when not asked for");
        assert!(check(&with(&direct, 8, &[9; 4]), None, true).is_ok(), "an empty body has no CRC");
    }

    #[test]
    fn topic_length_of_version_2_has_two_bytes() {
        let v1 = from_hex(TOPIC_DIRECT);
        let topic = "%RETRY%".to_owned() + &"g".repeat(140);
        let mut v2 = v1[..88].to_vec();
        v2.extend((topic.len() as u16).to_be_bytes());
        v2.extend(topic.as_bytes());
        v2.extend([0, 0]);
        v2[7] = 0xAB;
        let total = v2.len() as u8;
        v2[3] = total;
        let Ok(Checked::Record(record)) = check(&v2, None, true) else { panic!("a good record") };
        assert_eq!((record.version, record.topic), (Version::V2, topic.as_bytes()));
    }

    #[test]
    fn property_crc() {
        // 22 right ones are in the fixture store-5.3.3-features (tests/record_fixtures.rs).
        let mut record = NewRecord {
            topic: "t",
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 0,
            born_host: ([0; 4], 0).into(),
            store_host: ([0; 4], 0).into(),
            reconsume_times: 0,
            prepared_offset: 0,
            body: b"b",
            properties: &[b"TAGS\x01a\x02__CRC32#\x010000000000\x02"],
        };
        let mut bytes = Vec::new();
        encode::encode(&record, &mut bytes);
        let end = bytes.len();
        let computed = crc32fast::hash(&bytes[..end - 20]) & 0x7FFF_FFFF;
        let verify = |bytes: &[u8]| Record::parse(bytes).unwrap().verify_property_crc();
        assert_eq!(verify(&bytes), Err(RecordFault::PropertyCrc { stored: Some(0), computed }));
        let digits: String = format!("{computed:010}").chars().rev().collect();
        let right = with(&bytes, end - 11, digits.as_bytes());
        assert_eq!(verify(&right), Ok(true));
        assert!(verify(&with(&right, 10, &[9])).is_err());
        let letters = with(&right, end - 2, b"x");
        assert_eq!(verify(&letters), Err(RecordFault::PropertyCrc { stored: None, computed }));
        let huge = with(&right, end - 11, b"9999999999");
        assert_eq!(verify(&huge), Err(RecordFault::PropertyCrc { stored: None, computed }));

        record.properties = &[b"TAGS\x01a"];
        let mut bytes = Vec::new();
        encode::encode(&record, &mut bytes);
        assert_eq!(verify(&bytes), Ok(false));
    }

    fn host() -> impl Strategy<Value = SocketAddr> {
        prop_oneof![
            any::<([u8; 4], u16)>().prop_map(SocketAddr::from),
            any::<([u16; 8], u16)>()
                .prop_map(SocketAddr::from)
                .prop_filter("mapped addresses come back as IPv4", |host| { host.ip() == host.ip().to_canonical() }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            topic in "[a-zA-Z0-9_%|-]{0,127}",
            numbers in any::<(i32, i32, i32, i64, i32, i64)>(),
            born_host in host(),
            store_host in host(),
            body in prop::collection::vec(any::<u8>(), 0..2000),
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..5),
            placed in any::<(u64, u64, i64)>(),
        ) {
            let (queue_id, flag, sys_flag, born_timestamp, reconsume_times, prepared_offset) = numbers;
            let (queue_offset, log_offset, store_timestamp) = placed;
            let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            let new = NewRecord {
                topic: &topic, queue_id, flag, sys_flag, born_timestamp, born_host, store_host,
                reconsume_times, prepared_offset, body: &body, properties: &pieces,
            };
            let mut bytes = Vec::new();
            let at = encode::encode(&new, &mut bytes);
            encode::patch(&mut bytes, at, queue_offset, log_offset, store_timestamp as u64);
            let Ok(Checked::Record(record)) = check(&bytes, Some(log_offset), true) else { panic!("a good record") };
            let bits = layout::sys_flag::BORN_HOST_V6 | layout::sys_flag::STORE_HOST_V6;
            let want_bits = i32::from(born_host.is_ipv6()) << 4 | i32::from(store_host.is_ipv6()) << 5;
            prop_assert_eq!(record, Record {
                bytes: &bytes, version: Version::V1, body_crc: encode::body_crc(&body), queue_id, flag, queue_offset,
                log_offset, sys_flag: sys_flag & !bits | want_bits, born_timestamp, born_host, store_timestamp, store_host,
                reconsume_times, prepared_offset, body: &body, topic: topic.as_bytes(), properties: &pieces.concat(),
            });
            prop_assert_eq!(peek_store_timestamp(&bytes), Some(store_timestamp));
            prop_assert_eq!(peek_queue(&bytes), Some((queue_id, queue_offset)));
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), magic in 0..4usize) {
            let mut bytes = bytes;
            if bytes.len() >= 8 {
                let magics = [layout::MAGIC_V1, layout::MAGIC_V2, layout::MAGIC_BLANK, 0];
                bytes[4..8].copy_from_slice(&magics[magic].to_be_bytes());
                bytes[..2].fill(0);
            }
            survive(&bytes);
        }

        #[test]
        fn damaged_records_do_not_panic(at in 0..174usize, byte: u8, end in 0..=174usize, v2: bool) {
            let mut bytes = from_hex(TOPIC_V6);
            if v2 {
                bytes[7] = 0xAB;
            }
            bytes[at] = byte;
            survive(&bytes[..end]);
            bytes.extend_from_slice(&[0; 64]);
            survive(&bytes);
        }
    }

    /// Everything that reads, on bytes that may be anything.
    fn survive(bytes: &[u8]) {
        if let Ok(Checked::Record(record)) = check(bytes, None, false) {
            record.dispatch_info(&properties::DELAYS_MS);
            let _ = record.verify_property_crc();
            assert_eq!(record.bytes, &bytes[..record.bytes.len()]);
        }
        let _ = check(bytes, Some(0), true);
        let _ = (peek_size(bytes), peek_queue(bytes), peek_store_timestamp(bytes));
    }
}
