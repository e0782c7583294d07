//! Send requests made once and patched for each message.
//!
//! ```text
//! patched   opaque (JSON: ten digits, so its width never changes), born timestamp (13 digits);
//!           of each message: UNIQ_KEY (last 16 of 32 hex digits), tag (4 digits)
//! batch     the body is `messages` times
//!           | size 4 | magic 0 4 | CRC 0 4 | flag 4 | body size 4 | body | properties size 2 | properties |
//! ```
//!
//! Source: MQClientAPIImpl.java, SendMessageRequestHeaderV2.java, MessageDecoder.encodeMessage (4.9.7).

use crate::frame::{self, Header, OPAQUE_BASE, code};
use std::rc::Rc;

/// What all messages of a run have in common.
#[derive(Clone, Debug)]
pub struct SendShape<'a> {
    pub header: Header,
    pub group: &'a str,
    /// Messages of a request; more than one makes it SEND_BATCH_MESSAGE.
    pub messages: u32,
    /// Different tags, 0 for none.
    pub tags: u32,
    pub is_one_way: bool,
    /// Makes the UNIQ_KEYs of this run different from those of any other.
    pub run_id: u64,
    pub body: Rc<[u8]>,
}

/// Sends to one queue, ready but for what changes from request to request.
pub struct SendTemplate {
    head: Vec<u8>,
    body: Rc<[u8]>,
    header: Header,
    opaque_at: usize,
    born_at: usize,
    keys: Keys,
    tags: u32,
}

/// Where in the frame the keys and tags of its messages are.
struct Keys {
    count: u32,
    serial_at: usize,
    tag_at: Option<usize>,
    /// From one message to the next.
    step: usize,
}

const OPAQUE_DIGITS: usize = 10;
const SERIAL_DIGITS: usize = 16;
const BORN_DIGITS: usize = 13;
const TAG_DIGITS: usize = 4;
pub const TAG_COUNT_MAX: u32 = 10_000;

impl SendTemplate {
    pub fn new(shape: &SendShape<'_>, topic: &str, queue: u32) -> Self {
        assert!(shape.messages > 0);
        assert!(shape.tags <= TAG_COUNT_MAX);
        let is_batch = shape.messages > 1;
        let key = format!("{:016X}{}", shape.run_id, "0".repeat(SERIAL_DIGITS));
        let tag = if shape.tags == 0 { String::new() } else { "\u{2}TAGS\u{1}Tag0000".into() };
        let properties = format!("UNIQ_KEY\u{1}{key}\u{2}WAIT\u{1}true{tag}");
        let born = "1".repeat(BORN_DIGITS);
        let queue = queue.to_string();
        let ext = [
            ("a", shape.group),
            ("b", topic),
            ("c", "TBW102"),
            ("d", "4"),
            ("e", &queue),
            ("f", "0"),
            ("g", &born),
            ("h", "0"),
            // The keys of a batch are in its messages.
            ("i", if is_batch { "WAIT\u{1}true" } else { &properties }),
            ("j", "0"),
            ("k", "false"),
            ("m", if is_batch { "true" } else { "false" }),
        ];
        let one = batched(&shape.body, &properties);
        let step = one.len();
        let body = if is_batch { one.repeat(shape.messages as usize).into() } else { shape.body.clone() };
        let code = if is_batch { code::SEND_BATCH_MESSAGE } else { code::SEND_MESSAGE_V2 };
        let flag = if shape.is_one_way { frame::FLAG_ONE_WAY } else { 0 };
        let mut bytes = frame::request_with_flag(shape.header, code, flag, OPAQUE_BASE, &ext, &body);
        let serial_at = find(&bytes, key.as_bytes()) + key.len() - SERIAL_DIGITS;
        let tag_at = if shape.tags == 0 { None } else { Some(find(&bytes, b"Tag0000") + "Tag".len()) };
        let opaque_at = match shape.header {
            Header::Json => find(&bytes, format!("\"opaque\":{OPAQUE_BASE}").as_bytes()) + "\"opaque\":".len(),
            Header::Rocketmq => 8 + 5,
        };
        let born_at = find(&bytes, born.as_bytes());
        bytes.truncate(bytes.len() - body.len());
        let keys = Keys { count: shape.messages, serial_at, tag_at, step };
        Self { head: bytes, body, header: shape.header, opaque_at, born_at, keys, tags: shape.tags }
    }

    pub fn frame_bytes(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Appends one frame and gives back its body, to be patched further. `opaque` must have ten digits. Its messages
    /// have the serials from `serial` on.
    pub fn append<'o>(&self, out: &'o mut Vec<u8>, opaque: u32, serial: u64, born_ms: u64) -> &'o mut [u8] {
        debug_assert!((OPAQUE_BASE..=i32::MAX as u32).contains(&opaque));
        let start = out.len();
        out.extend_from_slice(&self.head);
        out.extend_from_slice(&self.body);
        let frame = &mut out[start..];
        match self.header {
            Header::Json => {
                frame::digits(&mut frame[self.opaque_at..self.opaque_at + OPAQUE_DIGITS], u64::from(opaque))
            }
            Header::Rocketmq => frame[self.opaque_at..self.opaque_at + 4].copy_from_slice(&opaque.to_be_bytes()),
        }
        frame::digits(&mut frame[self.born_at..self.born_at + BORN_DIGITS], born_ms);
        for index in 0..self.keys.count {
            let serial = serial + u64::from(index);
            let shift = index as usize * self.keys.step;
            let at = self.keys.serial_at + shift;
            hex_digits(&mut frame[at..at + SERIAL_DIGITS], serial);
            if let Some(tag_at) = self.keys.tag_at {
                let at = tag_at + shift;
                frame::digits(&mut frame[at..at + TAG_DIGITS], u64::from(tag(serial, self.tags)));
            }
        }
        &mut frame[self.head.len()..]
    }
}

/// Spread by a multiplication, because queues are taken in turn and would each meet few tags otherwise.
fn tag(serial: u64, tags: u32) -> u32 {
    ((serial.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) % u64::from(tags)) as u32
}

fn batched(body: &[u8], properties: &str) -> Vec<u8> {
    let size = 5 * 4 + body.len() + 2 + properties.len();
    let mut out = Vec::with_capacity(size);
    for number in [size, 0, 0, 0, body.len()] {
        out.extend_from_slice(&u32::try_from(number).expect("a message is far below 4 GiB").to_be_bytes());
    }
    out.extend_from_slice(body);
    out.extend_from_slice(&u16::try_from(properties.len()).expect("two short properties").to_be_bytes());
    out.extend_from_slice(properties.as_bytes());
    out
}

/// Letters that do not compress well, the same for the same seed (splitmix64).
pub fn body(bytes: usize, seed: u64) -> Rc<[u8]> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    };
    (0..bytes).map(|_| b'a' + (next() % 26) as u8).collect()
}

fn find(bytes: &[u8], part: &[u8]) -> usize {
    frame::search(bytes, part).expect("the template holds what it was made of")
}

fn hex_digits(field: &mut [u8], mut value: u64) {
    for digit in field.iter_mut().rev() {
        *digit = b"0123456789ABCDEF"[(value & 15) as usize];
        value >>= 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(header: Header, messages: u32, tags: u32) -> SendShape<'static> {
        let body = body(40, 7);
        SendShape { header, group: "g", messages, tags, is_one_way: false, run_id: 0xABCD, body }
    }

    #[test]
    fn a_patched_frame_reads_back_as_a_client_sends_it() {
        for header in [Header::Json, Header::Rocketmq] {
            let template = SendTemplate::new(&shape(header, 1, 5), "TopicA", 3);
            for serial in [0, 1, u64::from(u32::MAX)] {
                let mut out = b"before".to_vec();
                let opaque = OPAQUE_BASE + serial as u32 % 1000;
                template.append(&mut out, opaque, serial, 1_700_000_000_000)[..3].copy_from_slice(b"123");
                let bytes = &out[6..];
                assert_eq!(bytes.len(), template.frame_bytes());
                let read = frame::decode(bytes).unwrap();
                assert_eq!((read.code, read.opaque, read.is_response), (code::SEND_MESSAGE_V2, opaque, false));
                assert_eq!((read.ext["b"].as_str(), read.ext["e"].as_str()), ("TopicA", "3"));
                assert_eq!(read.ext["g"], "1700000000000");
                let key = format!("{:016X}{serial:016X}", 0xABCD);
                let tag = tag(serial, 5);
                assert_eq!(
                    read.ext["i"],
                    format!("UNIQ_KEY\u{1}{key}\u{2}WAIT\u{1}true\u{2}TAGS\u{1}Tag{tag:04}"),
                    "{header:?}"
                );
                assert_eq!(read.body.len(), 40);
                assert_eq!((&read.body[..3], &read.body[3..]), (&b"123"[..], &body(40, 7)[3..]));
            }
        }
    }

    #[test]
    fn a_batch_holds_its_messages_each_with_its_own_key() {
        for header in [Header::Json, Header::Rocketmq] {
            let template = SendTemplate::new(&shape(header, 32, 3), "TopicA", 0);
            let mut out = Vec::new();
            template.append(&mut out, OPAQUE_BASE, 64, 1_700_000_000_000);
            let read = frame::decode(&out).unwrap();
            assert_eq!((read.code, read.ext["m"].as_str()), (code::SEND_BATCH_MESSAGE, "true"));
            assert_eq!(read.ext["i"], "WAIT\u{1}true");
            let mut rest = read.body;
            for index in 0..32 {
                let size = u32::from_be_bytes(rest[..4].try_into().unwrap()) as usize;
                let (message, after) = rest.split_at(size);
                assert_eq!(message[4..16], [0; 12]);
                assert_eq!(message[16..20], 40_u32.to_be_bytes());
                assert_eq!(&message[20..60], &body(40, 7)[..]);
                let properties = &message[62..];
                assert_eq!(usize::from(u16::from_be_bytes([message[60], message[61]])), properties.len());
                let serial = 64 + index;
                let want = format!(
                    "UNIQ_KEY\u{1}{:016X}{serial:016X}\u{2}WAIT\u{1}true\u{2}TAGS\u{1}Tag{:04}",
                    0xABCD,
                    tag(serial, 3)
                );
                assert_eq!(properties, want.as_bytes(), "{header:?} {index}");
                rest = after;
            }
            assert!(rest.is_empty());
        }
    }

    #[test]
    fn a_one_way_send_says_so_and_may_have_no_tag() {
        for header in [Header::Json, Header::Rocketmq] {
            let shape = SendShape { is_one_way: true, ..shape(header, 1, 0) };
            let template = SendTemplate::new(&shape, "TopicA", 0);
            let mut out = Vec::new();
            template.append(&mut out, OPAQUE_BASE, 0, 1_700_000_000_000);
            let seen = frame::Scanner::default().scan(&out).unwrap();
            assert_eq!(seen.flag, frame::FLAG_ONE_WAY);
            assert!(!frame::decode(&out).unwrap().ext["i"].contains("TAGS"));
        }
    }

    #[test]
    fn bodies_repeat_with_their_seed_and_tags_are_spread() {
        assert_eq!(body(100, 1), body(100, 1));
        assert_ne!(body(100, 1), body(100, 2));
        // Every queue of 8 meets every tag of 8.
        for queue in 0..8 {
            let mut seen = [false; 8];
            (0..1000).for_each(|turn| seen[tag(turn * 8 + queue, 8) as usize] = true);
            assert_eq!(seen, [true; 8], "queue={queue}");
        }
    }
}
