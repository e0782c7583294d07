//! The stored record: positions, sizes and limits. The same bytes lie in the commit log and in the body of a pull answer.
//!
//! ```text
//!   0 total size 4 | 4 magic 4 | 8 body CRC 4 | 12 queue id 4 | 16 flag 4 | 20 queue offset 8 | 28 log offset 8
//!  36 sys flag 4 | 40 born time 8 | 48 born host b | 48+b store time 8 | 56+b store host s | reconsume times 4
//!     prepared offset 8 | body length 4 | body | topic length t | topic | properties length 2 | properties
//! ```
//! All numbers big-endian. b and s are 8 (IPv4 address and a 4-byte port) or 20 (IPv6), as `sys_flag` says; t is 1 in
//! version 1, which is what ringmq writes, and 2 in version 2, which 5.x writes for topics over 127 bytes.
//! A file of the log ends in a blank record: the bytes left and its own magic, 8 bytes in all.
//! Source: CommitLog.java, MessageExtEncoder.java; held to it by the stores in `shared/fixtures` (tests/fixtures.rs).

pub const MAGIC_V1: u32 = 0xDAA3_20A7;
pub const MAGIC_V2: u32 = 0xDAA3_20AB;
pub const MAGIC_BLANK: u32 = 0xCBD4_3194;

/// Room that a log file keeps for its blank record: a record of n bytes fits if n + `BLANK_BYTES` bytes are left.
pub const BLANK_BYTES: usize = 8;

/// Java reads the length byte of version 1 as a signed number.
pub const TOPIC_BYTES_MAX: usize = 127;
/// The length field is an `i16`.
pub const PROPERTIES_BYTES_MAX: usize = i16::MAX as usize;
/// Everything of a record but its body: Java allows it 64 KiB.
pub const RECORD_BEYOND_BODY_BYTES: usize = 64 * 1024;
/// How many times `maxMessageSize` the records of one client batch may take together. Headers, topic and the batch's own
/// properties are repeated for every message, so a hostile batch could grow by a factor of a thousand; honest ones double.
pub const BATCH_GROWTH_MAX: usize = 4;

pub const QUEUE_ID_AT: usize = 12;
pub const QUEUE_OFFSET_AT: usize = 20;
pub const LOG_OFFSET_AT: usize = 28;
pub const SYS_FLAG_AT: usize = 36;
pub const BORN_HOST_AT: usize = 48;
/// Both hosts IPv4, no topic, no body, no properties.
pub const RECORD_BYTES_MIN: usize = 91;
/// From the start to the body, without the two hosts.
pub const HEAD_BYTES: usize = BORN_HOST_AT + 8 + 4 + 8 + 4;

pub const HOST_V4_BYTES: usize = 4 + 4;
pub const HOST_V6_BYTES: usize = 16 + 4;
const _: () = assert!(RECORD_BYTES_MIN == HEAD_BYTES + 2 * HOST_V4_BYTES + 1 + 2);
const _: () =
    assert!(TOPIC_BYTES_MAX + PROPERTIES_BYTES_MAX + HEAD_BYTES + 2 * HOST_V6_BYTES + 3 < RECORD_BEYOND_BODY_BYTES);

/// Bits of a message's sysFlag.
pub mod sys_flag {
    pub const COMPRESSED: i32 = 0x1;
    pub const MULTI_TAGS: i32 = 0x2;
    pub const TRANSACTION_MASK: i32 = 0xC;
    pub const PREPARED: i32 = 0x4;
    pub const COMMIT: i32 = 0x8;
    pub const ROLLBACK: i32 = 0xC;
    pub const BORN_HOST_V6: i32 = 0x10;
    pub const STORE_HOST_V6: i32 = 0x20;
    pub const INNER_BATCH: i32 = 0x80;

    /// Prepared and rollback records have queue offset 0 and no entry in a queue.
    pub fn is_queued(flag: i32) -> bool {
        matches!(flag & TRANSACTION_MASK, 0 | COMMIT)
    }
}

pub fn born_host_bytes(flag: i32) -> usize {
    if flag & sys_flag::BORN_HOST_V6 == 0 { HOST_V4_BYTES } else { HOST_V6_BYTES }
}

pub fn store_host_bytes(flag: i32) -> usize {
    if flag & sys_flag::STORE_HOST_V6 == 0 { HOST_V4_BYTES } else { HOST_V6_BYTES }
}

pub fn store_timestamp_at(flag: i32) -> usize {
    BORN_HOST_AT + born_host_bytes(flag)
}

/// The end of a file, to be written where `bytes_left` bytes of it are left. What lies behind keeps its bytes.
pub fn blank(bytes_left: u32) -> [u8; BLANK_BYTES] {
    assert!(bytes_left as usize >= BLANK_BYTES, "no room for a blank record: {bytes_left} bytes left");
    let mut blank = [0; BLANK_BYTES];
    blank[..4].copy_from_slice(&bytes_left.to_be_bytes());
    blank[4..].copy_from_slice(&MAGIC_BLANK.to_be_bytes());
    blank
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_blank_record_of_the_4_9_7_fixture() {
        assert_eq!(super::blank(1052), [0, 0, 4, 0x1c, 0xcb, 0xd4, 0x31, 0x94]);
    }
}
