//! Reading a record: whole and checked for recovery and tools, single fields for the hot path. No bytes make it panic.
//!
//! Source: CommitLog.checkMessageAndReturnSize, MessageDecoder.decode.

use super::encode::body_crc;
use super::layout::{
    BLANK_BYTES, BORN_HOST_AT, LOG_OFFSET_AT, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, QUEUE_ID_AT,
    QUEUE_OFFSET_AT, RECORD_BYTES_MIN, SYS_FLAG_AT, store_host_bytes, store_timestamp_at, sys_flag,
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
    TotalSize {
        claimed: i32,
        min: usize,
        bytes_left: usize,
    },
    #[error("body length {claimed}, {bytes} bytes of the record left")]
    BodyLength { claimed: i32, bytes: usize },
    #[error("topic length {claimed}, {bytes} bytes of the record left")]
    TopicLength { claimed: i16, bytes: usize },
    #[error("properties length {claimed}, {bytes} bytes of the record left")]
    PropertiesLength { claimed: i16, bytes: usize },
    #[error("total size {claimed}, but the fields add up to {sum}")]
    LengthsDisagree { claimed: usize, sum: usize },
    #[error("body CRC {stored:08x} stored, {computed:08x} computed over {bytes} bytes")]
    BodyCrc {
        stored: u32,
        computed: u32,
        bytes: usize,
    },
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
pub fn check(
    bytes: &[u8],
    expected_log_offset: Option<u64>,
    verify_crc: bool,
) -> Result<Checked<'_>, RecordFault> {
    if bytes.len() < BLANK_BYTES {
        return if bytes.iter().all(|&b| b == 0) {
            Ok(Checked::End)
        } else {
            Err(RecordFault::Short {
                bytes: bytes.len(),
                min: RECORD_BYTES_MIN,
            })
        };
    }
    match read_u32(bytes, 4) {
        MAGIC_BLANK => {
            return Ok(Checked::Blank {
                bytes_left: read_u32(bytes, 0),
            });
        }
        0 if read_u32(bytes, 0) == 0 => return Ok(Checked::End),
        _ => {}
    }
    let record = Record::parse(bytes)?;
    if verify_crc && !record.body.is_empty() {
        let computed = body_crc(record.body);
        if computed != record.body_crc {
            return Err(RecordFault::BodyCrc {
                stored: record.body_crc,
                computed,
                bytes: record.body.len(),
            });
        }
    }
    match expected_log_offset {
        Some(expected) if expected != record.log_offset => Err(RecordFault::LogOffset {
            stored: record.log_offset,
            expected,
        }),
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
            return Err(RecordFault::Short {
                bytes: bytes.len(),
                min: RECORD_BYTES_MIN,
            });
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
                return Err(RecordFault::TotalSize {
                    claimed,
                    min,
                    bytes_left: bytes.len(),
                });
            }
        };
        let bytes = &bytes[..total];

        let claimed = read_i32(bytes, body_at - 4);
        let room = total - min;
        let body_end = match usize::try_from(claimed) {
            Ok(length) if length <= room => body_at + length,
            _ => {
                return Err(RecordFault::BodyLength {
                    claimed,
                    bytes: room,
                });
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
                return Err(RecordFault::TopicLength {
                    claimed,
                    bytes: room,
                });
            }
        };
        let claimed = read_i16(bytes, topic_end);
        let properties_at = topic_end + 2;
        let room = total - properties_at;
        let end = match usize::try_from(claimed) {
            Ok(length) if length <= room => properties_at + length,
            _ => {
                return Err(RecordFault::PropertiesLength {
                    claimed,
                    bytes: room,
                });
            }
        };
        if end != total {
            return Err(RecordFault::LengthsDisagree {
                claimed: total,
                sum: end,
            });
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
            [
                properties::TAGS,
                properties::DELAY,
                properties::KEYS,
                properties::UNIQ_KEY,
            ],
        );
        let topic = String::from_utf8_lossy(self.topic);
        DispatchInfo {
            queue_id: self.queue_id,
            queue_offset: self.queue_offset,
            log_offset: self.log_offset,
            record_bytes: self.bytes.len() as u32,
            tags_code: properties::tags_code_of(
                &topic,
                tags,
                delay,
                self.store_timestamp,
                delays_ms,
            ),
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
        let Some(digits) = tail
            .strip_prefix(PROPERTY_CRC_NAME)
            .and_then(|rest| rest.strip_suffix(b"\x02"))
        else {
            return Ok(false);
        };
        let computed = crc32fast::hash(covered) & 0x7FFF_FFFF;
        // The digits stand least significant first.
        let stored = digits
            .iter()
            .rev()
            .try_fold(0u32, |value, digit| match digit {
                b'0'..=b'9' => value.checked_mul(10)?.checked_add(u32::from(digit - b'0')),
                _ => None,
            });
        if stored == Some(computed) {
            Ok(true)
        } else {
            Err(RecordFault::PropertyCrc { stored, computed })
        }
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
    (bytes.len() >= QUEUE_OFFSET_AT + 8).then(|| {
        (
            read_i32(bytes, QUEUE_ID_AT),
            read_u64(bytes, QUEUE_OFFSET_AT),
        )
    })
}

fn read_host(bytes: &[u8]) -> SocketAddr {
    let (address, port) = bytes.split_at(bytes.len() - 4);
    let ip = match <[u8; 16]>::try_from(address) {
        Ok(v6) => IpAddr::V6(Ipv6Addr::from(v6)),
        Err(_) => IpAddr::V4(Ipv4Addr::new(
            address[0], address[1], address[2], address[3],
        )),
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
    bytes[at..at + N]
        .try_into()
        .expect("a slice of N bytes is an array of N bytes")
}
