//! Frames as an official Java client writes them, and answers, read only as far as a measurement needs.
//!
//! ```text
//! frame     | length 4 | type 1, header length 3 | header | body |
//! ```
//!
//! This is written apart from `ringmq_net::protocol` on purpose: the load generator must send what clients send,
//! not what our own writer likes, and its checks must not share our decoder's mistakes.

use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

pub mod code {
    pub const PULL_MESSAGE: i32 = 11;
    pub const UPDATE_AND_CREATE_TOPIC: i32 = 17;
    pub const GET_BROKER_CONFIG: i32 = 26;
    pub const GET_BROKER_RUNTIME_INFO: i32 = 28;
    pub const GET_MAX_OFFSET: i32 = 30;
    pub const GET_MIN_OFFSET: i32 = 31;
    pub const HEART_BEAT: i32 = 34;
    pub const END_TRANSACTION: i32 = 37;
    pub const CHECK_TRANSACTION_STATE: i32 = 39;
    pub const SEND_MESSAGE_V2: i32 = 310;
    pub const SEND_BATCH_MESSAGE: i32 = 320;

    pub const SUCCESS: i32 = 0;
    pub const REQUEST_CODE_NOT_SUPPORTED: i32 = 3;
    pub const PULL_NOT_FOUND: i32 = 19;
    pub const PULL_RETRY_IMMEDIATELY: i32 = 20;
    pub const PULL_OFFSET_MOVED: i32 = 21;
}

pub const FLAG_RESPONSE: i32 = 1;
pub const FLAG_ONE_WAY: i32 = 2;

/// Every opaque of the bench is at least this: ten decimal digits up to `i32::MAX`, and far from the small
/// numbers a broker gives to its own requests on the same connection.
pub const OPAQUE_BASE: u32 = 1 << 30;
/// Bits of an opaque that a workload may use.
pub const OPAQUE_BITS: u32 = 30;

/// What 4.9.7 calls itself, and JAVA.
const VERSION: i16 = 407;
const LANGUAGE_JAVA: u8 = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Header {
    Json,
    /// RocketMQ's binary headers
    #[value(alias = "binary")]
    Rocketmq,
}

/// A whole request frame.
pub fn request(header: Header, code: i32, opaque: u32, ext: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    request_with_flag(header, code, 0, opaque, ext, body)
}

/// As [`request`], with [`FLAG_ONE_WAY`] or [`FLAG_RESPONSE`].
pub fn request_with_flag(
    header: Header,
    code: i32,
    flag: i32,
    opaque: u32,
    ext: &[(&str, &str)],
    body: &[u8],
) -> Vec<u8> {
    let head = match header {
        Header::Json => json_header(code, flag, opaque, ext),
        Header::Rocketmq => binary_header(code, flag, opaque, ext),
    };
    let mut out = Vec::with_capacity(8 + head.len() + body.len());
    out.extend_from_slice(&u32_of(4 + head.len() + body.len()).to_be_bytes());
    out.extend_from_slice(&((u32::from(header == Header::Rocketmq) << 24) | u32_of(head.len())).to_be_bytes());
    out.extend_from_slice(&head);
    out.extend_from_slice(body);
    out
}

fn u32_of(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a request of the bench is far below 4 GiB")
}

/// Members sorted and nulls left out, as fastjson does it.
fn json_header(code: i32, flag: i32, opaque: u32, ext: &[(&str, &str)]) -> Vec<u8> {
    let mut text = format!("{{\"code\":{code},");
    if !ext.is_empty() {
        text.push_str("\"extFields\":{");
        for (index, (key, value)) in ext.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            // serde_json writes control characters as fastjson does: \u0001.
            let value = serde_json::to_string(value).expect("a string is always JSON");
            text.push_str(&format!("{comma}\"{key}\":{value}"));
        }
        text.push_str("},");
    }
    text.push_str(&format!(
        "\"flag\":{flag},\"language\":\"JAVA\",\"opaque\":{opaque},\"serializeTypeCurrentRPC\":\"JSON\",\"version\":{VERSION}}}"
    ));
    text.into_bytes()
}

fn binary_header(code: i32, flag: i32, opaque: u32, ext: &[(&str, &str)]) -> Vec<u8> {
    let mut head = Vec::new();
    head.extend_from_slice(&i16::try_from(code).expect("no code above 32767 is used here").to_be_bytes());
    head.push(LANGUAGE_JAVA);
    head.extend_from_slice(&VERSION.to_be_bytes());
    head.extend_from_slice(&opaque.to_be_bytes());
    head.extend_from_slice(&flag.to_be_bytes());
    head.extend_from_slice(&[0; 4]); // remark length
    let at = head.len();
    head.extend_from_slice(&[0; 4]);
    for (key, value) in ext {
        head.extend_from_slice(&i16::try_from(key.len()).expect("keys are words").to_be_bytes());
        head.extend_from_slice(key.as_bytes());
        head.extend_from_slice(&u32_of(value.len()).to_be_bytes());
        head.extend_from_slice(value.as_bytes());
    }
    let pairs = u32_of(head.len() - at - 4);
    head[at..at + 4].copy_from_slice(&pairs.to_be_bytes());
    head
}

pub(crate) fn search(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

/// Writes a number over a field of decimal digits.
pub(crate) fn digits(field: &mut [u8], mut value: u64) {
    for digit in field.iter_mut().rev() {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameFault(String);

impl fmt::Display for FrameFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for FrameFault {}

pub(crate) fn fault(text: impl Into<String>) -> FrameFault {
    FrameFault(text.into())
}

/// Splits a frame at its header. Checks the length word against the bytes.
fn split(frame: &[u8]) -> Result<(Header, &[u8], &[u8]), FrameFault> {
    if frame.len() < 8 || be_u32(frame, 0) as usize != frame.len() - 4 {
        return Err(fault(format!("length word does not fit a frame of {} bytes", frame.len())));
    }
    let word = be_u32(frame, 4);
    let header_bytes = (word & 0xFF_FFFF) as usize;
    let header = match word >> 24 {
        0 => Header::Json,
        1 => Header::Rocketmq,
        other => return Err(fault(format!("serialize type {other}"))),
    };
    let (head, body) =
        frame[8..].split_at_checked(header_bytes).ok_or_else(|| fault("header longer than its frame"))?;
    Ok((header, head, body))
}

fn be_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn be_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen<'a> {
    pub code: i32,
    pub opaque: u32,
    pub flag: i32,
    pub body: &'a [u8],
}

/// Reads code, opaque and flag and nothing else. It remembers where it found them: answers of one kind from one broker
/// look alike, so nearly every frame is read by three comparisons, whatever order the broker writes its members in.
#[derive(Default)]
pub struct Scanner {
    code_at: usize,
    opaque_from_end: usize,
    flag_from_end: usize,
}

impl Scanner {
    pub fn scan<'a>(&mut self, frame: &'a [u8]) -> Result<Seen<'a>, FrameFault> {
        let (header, head, body) = split(frame)?;
        if header == Header::Rocketmq {
            if head.len() < 21 {
                return Err(fault("binary header below 21 bytes"));
            }
            let code = i32::from(i16::from_be_bytes([head[0], head[1]]));
            return Ok(Seen { code, opaque: be_u32(head, 5), flag: be_u32(head, 9) as i32, body });
        }
        let code_at = place(head, CODE, self.code_at)?;
        let opaque_at = place(head, OPAQUE, head.len().saturating_sub(self.opaque_from_end))?;
        let flag_at = place(head, FLAG, head.len().saturating_sub(self.flag_from_end))?;
        self.code_at = code_at;
        self.opaque_from_end = head.len() - opaque_at;
        self.flag_from_end = head.len() - flag_at;
        let code = number(&head[code_at + CODE.len()..])?;
        let opaque = number(&head[opaque_at + OPAQUE.len()..])?;
        let flag = number(&head[flag_at + FLAG.len()..])?;
        Ok(Seen { code: code as i32, opaque: opaque as u32, flag: flag as i32, body })
    }
}

const CODE: &[u8] = b"\"code\":";
const OPAQUE: &[u8] = b"\"opaque\":";
const FLAG: &[u8] = b"\"flag\":";

/// A quote inside a JSON string is escaped, so a quoted key with its colon is never met inside a value.
fn place(head: &[u8], key: &[u8], hint: usize) -> Result<usize, FrameFault> {
    if head.get(hint..).is_some_and(|rest| rest.starts_with(key)) {
        return Ok(hint);
    }
    search(head, key).ok_or_else(|| fault(format!("no {} in the header", String::from_utf8_lossy(key))))
}

fn number(text: &[u8]) -> Result<i64, FrameFault> {
    let text = text.trim_ascii_start();
    let (is_negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let mut value = 0_i64;
    let mut count = 0;
    for digit in text.iter().take_while(|byte| byte.is_ascii_digit()).take(12) {
        value = value * 10 + i64::from(digit - b'0');
        count += 1;
    }
    if count == 0 {
        return Err(fault("a number was expected in the header"));
    }
    Ok(if is_negative { -value } else { value })
}

/// A frame read in full: for calls outside the measurement and for the full check.
#[derive(Debug)]
pub struct Decoded<'a> {
    pub code: i32,
    pub opaque: u32,
    pub is_response: bool,
    pub remark: Option<String>,
    pub ext: BTreeMap<String, String>,
    pub body: &'a [u8],
}

impl Decoded<'_> {
    pub fn ext_number(&self, key: &str) -> Result<i64, FrameFault> {
        let text = self.ext.get(key).ok_or_else(|| fault(format!("answer without {key}")))?;
        text.parse().map_err(|_| fault(format!("{key} is {text:?}")))
    }
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct JsonHeader {
    code: i32,
    opaque: i32,
    #[serde(default)]
    flag: i32,
    remark: Option<String>,
    ext_fields: Option<BTreeMap<String, String>>,
}

pub fn decode(frame: &[u8]) -> Result<Decoded<'_>, FrameFault> {
    let (header, head, body) = split(frame)?;
    match header {
        Header::Json => {
            let json: JsonHeader = serde_json::from_slice(head).map_err(|error| fault(error.to_string()))?;
            Ok(Decoded {
                code: json.code,
                opaque: json.opaque as u32,
                is_response: json.flag & 1 != 0,
                remark: json.remark,
                ext: json.ext_fields.unwrap_or_default(),
                body,
            })
        }
        Header::Rocketmq => decode_binary(head, body),
    }
}

fn decode_binary<'a>(head: &'a [u8], body: &'a [u8]) -> Result<Decoded<'a>, FrameFault> {
    let short = || fault("binary header ends early");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| fault("text that is not UTF-8"));
    if head.len() < 21 {
        return Err(short());
    }
    let code = i32::from(i16::from_be_bytes([head[0], head[1]]));
    let (remark, rest) = head[17..].split_at_checked(be_u32(head, 13) as usize).ok_or_else(short)?;
    if rest.len() < 4 || be_u32(rest, 0) as usize != rest.len() - 4 {
        return Err(fault("length of the extension fields does not fit"));
    }
    let mut rest = &rest[4..];
    let mut ext = BTreeMap::new();
    while !rest.is_empty() {
        let (size, after) = rest.split_at_checked(2).ok_or_else(short)?;
        let key_bytes = usize::from(u16::from_be_bytes([size[0], size[1]]));
        let (key, after) = after.split_at_checked(key_bytes).ok_or_else(short)?;
        let (size, after) = after.split_at_checked(4).ok_or_else(short)?;
        let (value, after) = after.split_at_checked(be_u32(size, 0) as usize).ok_or_else(short)?;
        ext.insert(text(key)?, text(value)?);
        rest = after;
    }
    let remark = if remark.is_empty() { None } else { Some(text(remark)?) };
    Ok(Decoded { code, opaque: be_u32(head, 5), is_response: be_u32(head, 9) & 1 != 0, remark, ext, body })
}

/// One stored message of a pull body, as far as a workload looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pulled<'a> {
    pub queue: u32,
    pub queue_offset: u64,
    pub body: &'a [u8],
}

const MAGIC_V1: u32 = 0xDAA3_20A7;
const MAGIC_V2: u32 = 0xDAA3_20AB;

/// Walks the messages of a pull body; the last item may be the fault that ended the walk.
pub fn pulled(body: &[u8]) -> impl Iterator<Item = Result<Pulled<'_>, FrameFault>> {
    let mut rest = body;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (item, after) = match pulled_one(rest) {
            Ok((message, after)) => (Ok(message), after),
            Err(error) => (Err(error), &[][..]),
        };
        rest = after;
        Some(item)
    })
}

fn pulled_one(bytes: &[u8]) -> Result<(Pulled<'_>, &[u8]), FrameFault> {
    // Up to and with the born timestamp every record is laid out alike.
    const HEAD_BYTES: usize = 48;
    if bytes.len() < HEAD_BYTES {
        return Err(fault(format!("{} bytes left in a pull body, no record", bytes.len())));
    }
    let record_bytes = be_u32(bytes, 0) as usize;
    let magic = be_u32(bytes, 4);
    if magic != MAGIC_V1 && magic != MAGIC_V2 {
        return Err(fault(format!("magic {magic:#x} in a pull body")));
    }
    let sys_flag = be_u32(bytes, 36);
    let host_bytes = |bit: u32| if sys_flag & bit != 0 { 16 + 4 } else { 4 + 4 };
    // born host, store timestamp, store host, reconsume times, prepared transaction offset
    let size_at = HEAD_BYTES + host_bytes(1 << 4) + 8 + host_bytes(1 << 5) + 4 + 8;
    if record_bytes > bytes.len() || record_bytes < size_at + 4 {
        return Err(fault(format!("record of {record_bytes} bytes, {} left", bytes.len())));
    }
    let (record, after) = bytes.split_at(record_bytes);
    let body = record[size_at + 4..]
        .get(..be_u32(record, size_at) as usize)
        .ok_or_else(|| fault("message body longer than its record"))?;
    Ok((Pulled { queue: be_u32(record, 12), queue_offset: be_u64(record, 20), body }, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json_frame(head: &str) -> Vec<u8> {
        let mut frame = ((4 + head.len()) as u32).to_be_bytes().to_vec();
        frame.extend_from_slice(&(head.len() as u32).to_be_bytes());
        frame.extend_from_slice(head.as_bytes());
        frame
    }

    #[test]
    fn the_scanner_reads_every_order_of_members() {
        let mut scanner = Scanner::default();
        // header, code, opaque; one scanner for all, so each hint but the second's is wrong
        for (head, code, opaque) in [
            (r#"{"code":0,"extFields":{"queueId":"1"},"flag":1,"opaque":1073741824,"version":407}"#, 0, OPAQUE_BASE),
            (
                r#"{"code":0,"extFields":{"queueId":"2"},"flag":1,"opaque":1073741825,"version":407}"#,
                0,
                OPAQUE_BASE + 1,
            ),
            (r#"{"opaque": -1, "version":407,"flag":1,"code": 208}"#, 208, u32::MAX),
            (r#"{"remark":"\"code\":5 \"opaque\":6","opaque":12,"code":1,"flag":3}"#, 1, 12),
        ] {
            let frame = json_frame(head);
            let answer = scanner.scan(&frame).unwrap();
            assert_eq!((answer.code, answer.opaque), (code, opaque), "{head}");
        }
        for head in [r#"{"code":1}"#, r#"{"code":"0","opaque":1}"#, "", "{}"] {
            assert!(scanner.scan(&json_frame(head)).is_err(), "{head}");
        }
        assert!(scanner.scan(&[0, 0, 0, 9, 0, 0, 0, 0]).is_err());
    }

    #[test]
    fn the_scanner_reads_binary_answers() {
        let frame = request(Header::Rocketmq, -3, 77, &[], b"xy");
        let answer = Scanner::default().scan(&frame).unwrap();
        assert_eq!(answer, Seen { code: -3, opaque: 77, flag: 0, body: b"xy" });
    }

    fn record(queue: u32, offset: u64, is_ipv6: bool, body: &[u8]) -> Vec<u8> {
        let mut out = vec![0; 4];
        out.extend_from_slice(&MAGIC_V1.to_be_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&queue.to_be_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&offset.to_be_bytes());
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(&(if is_ipv6 { 0x30_u32 } else { 0 }).to_be_bytes());
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(&vec![0; if is_ipv6 { 20 + 8 + 20 + 12 } else { 8 + 8 + 8 + 12 }]);
        out.extend_from_slice(&(body.len() as u32).to_be_bytes());
        out.extend_from_slice(body);
        out.extend_from_slice(b"\x01T\x00\x00");
        let size = out.len() as u32;
        out[..4].copy_from_slice(&size.to_be_bytes());
        out
    }

    #[test]
    fn a_pull_body_is_walked_to_its_end_or_its_fault() {
        let first = record(1, 10, false, b"one");
        // 91 bytes and the topic are what the format documents for an empty IPv4 record.
        assert_eq!(first.len(), 91 + 1 + 3);
        let mut body = first.clone();
        body.extend_from_slice(&record(2, 11, true, b"two"));
        let all: Vec<_> = pulled(&body).map(Result::unwrap).collect();
        assert_eq!(all[0], Pulled { queue: 1, queue_offset: 10, body: b"one" });
        assert_eq!(all[1], Pulled { queue: 2, queue_offset: 11, body: b"two" });
        for cut in [1, 47, 60, 100] {
            let last = pulled(&body[..first.len() + cut]).last().unwrap();
            assert!(last.is_err(), "cut={cut}");
        }
    }
}
