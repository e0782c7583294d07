//! Send requests made once and patched for each message.
//!
//! ```text
//! patched   frame length; opaque (JSON: ten digits, so its width never changes), born timestamp (13 digits);
//!           of each message: UNIQ_KEY (last 16 of 32 hex digits), tag (4 digits)
//! batch     the body is `messages` times
//!           | size 4 | magic 0 4 | CRC 0 4 | flag 4 | body size 4 | body | properties size 2 | properties |
//! ```
//!
//! Source: MQClientAPIImpl.java, SendMessageRequestHeaderV2.java, MessageDecoder.encodeMessage (4.9.7).

use crate::chance;
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
    /// Of all messages, beside UNIQ_KEY, WAIT and TAGS.
    pub properties: &'a [(&'a str, &'a str)],
    pub sys_flag: i32,
    /// Makes the UNIQ_KEYs of this run different from those of any other.
    pub run_id: u64,
    /// The largest; a smaller one is its first bytes.
    pub body: Rc<[u8]>,
}

/// Sends to one queue, ready but for what changes from request to request.
pub struct SendTemplate {
    head: Vec<u8>,
    body: Rc<[u8]>,
    batch: Option<Batch>,
    header: Header,
    opaque_at: usize,
    born_at: usize,
    /// In the frame, or of a batch in the properties of each message.
    serial_at: usize,
    tag_at: Option<usize>,
    tags: u32,
}

struct Batch {
    count: u32,
    properties: Vec<u8>,
    /// All messages with bodies of the largest size.
    largest: Vec<u8>,
}

const OPAQUE_DIGITS: usize = 10;
const SERIAL_DIGITS: usize = 16;
const BORN_DIGITS: usize = 13;
const TAG_DIGITS: usize = 4;
/// Five words before the body of a message of a batch.
const BATCH_HEAD_BYTES: usize = 5 * 4;
pub const TAG_COUNT_MAX: u32 = 10_000;

impl SendTemplate {
    pub fn new(shape: &SendShape<'_>, topic: &str, queue: u32) -> Self {
        assert!(shape.messages > 0);
        assert!(shape.tags <= TAG_COUNT_MAX);
        let is_batch = shape.messages > 1;
        let key = format!("{:016X}{}", shape.run_id, "0".repeat(SERIAL_DIGITS));
        let tag = if shape.tags == 0 { String::new() } else { "\u{2}TAGS\u{1}Tag0000".into() };
        let mut properties = format!("UNIQ_KEY\u{1}{key}\u{2}WAIT\u{1}true{tag}");
        for (name, value) in shape.properties {
            properties.push_str(&format!("\u{2}{name}\u{1}{value}"));
        }
        let sys_flag = shape.sys_flag.to_string();
        let born = "1".repeat(BORN_DIGITS);
        let queue = queue.to_string();
        let ext = [
            ("a", shape.group),
            ("b", topic),
            ("c", "TBW102"),
            ("d", "4"),
            ("e", &queue),
            ("f", &sys_flag),
            ("g", &born),
            ("h", "0"),
            // The keys of a batch are in its messages.
            ("i", if is_batch { "WAIT\u{1}true" } else { &properties }),
            ("j", "0"),
            ("k", "false"),
            ("m", if is_batch { "true" } else { "false" }),
        ];
        let code = if is_batch { code::SEND_BATCH_MESSAGE } else { code::SEND_MESSAGE_V2 };
        let flag = if shape.is_one_way { frame::FLAG_ONE_WAY } else { 0 };
        let head = frame::request_with_flag(shape.header, code, flag, OPAQUE_BASE, &ext, &[]);
        let batch = is_batch.then(|| Batch {
            count: shape.messages,
            largest: batched(&shape.body, properties.as_bytes()).repeat(shape.messages as usize),
            properties: properties.into_bytes(),
        });
        let keyed = batch.as_ref().map_or(&head, |batch| &batch.properties);
        let serial_at = find(keyed, key.as_bytes()) + key.len() - SERIAL_DIGITS;
        let tag_at = if shape.tags == 0 { None } else { Some(find(keyed, b"Tag0000") + "Tag".len()) };
        let opaque_at = match shape.header {
            Header::Json => find(&head, format!("\"opaque\":{OPAQUE_BASE}").as_bytes()) + "\"opaque\":".len(),
            Header::Rocketmq => 8 + 5,
        };
        let born_at = find(&head, born.as_bytes());
        let (body, header, tags) = (shape.body.clone(), shape.header, shape.tags);
        Self { head, body, batch, header, opaque_at, born_at, serial_at, tag_at, tags }
    }

    /// Appends one frame and gives back its body, to be patched further. `opaque` must have ten digits. Its messages
    /// have the serials from `serial` on and bodies of `body_bytes`.
    pub fn append<'o>(
        &self,
        out: &'o mut Vec<u8>,
        opaque: u32,
        serial: u64,
        born_ms: u64,
        body_bytes: usize,
    ) -> &'o mut [u8] {
        debug_assert!((OPAQUE_BASE..=i32::MAX as u32).contains(&opaque));
        let start = out.len();
        out.extend_from_slice(&self.head);
        let body = &self.body[..body_bytes];
        match &self.batch {
            None => out.extend_from_slice(body),
            Some(batch) if body.len() == self.body.len() => out.extend_from_slice(&batch.largest),
            Some(batch) => {
                let one = batched(body, &batch.properties);
                (0..batch.count).for_each(|_| out.extend_from_slice(&one));
            }
        }
        let frame = &mut out[start..];
        let rest = u32::try_from(frame.len() - 4).expect("a request of the bench is far below 4 GiB");
        frame[..4].copy_from_slice(&rest.to_be_bytes());
        match self.header {
            Header::Json => {
                frame::digits(&mut frame[self.opaque_at..self.opaque_at + OPAQUE_DIGITS], u64::from(opaque))
            }
            Header::Rocketmq => frame[self.opaque_at..self.opaque_at + 4].copy_from_slice(&opaque.to_be_bytes()),
        }
        frame::digits(&mut frame[self.born_at..self.born_at + BORN_DIGITS], born_ms);
        match &self.batch {
            None => self.patch_key(frame, serial),
            Some(batch) => {
                let step = BATCH_HEAD_BYTES + body_bytes + 2 + batch.properties.len();
                let messages = frame[self.head.len()..].chunks_exact_mut(step);
                for (serial, message) in (serial..).zip(messages) {
                    self.patch_key(&mut message[BATCH_HEAD_BYTES + body_bytes + 2..], serial);
                }
            }
        }
        &mut frame[self.head.len()..]
    }

    fn patch_key(&self, bytes: &mut [u8], serial: u64) {
        hex_digits(&mut bytes[self.serial_at..self.serial_at + SERIAL_DIGITS], serial);
        if let Some(at) = self.tag_at {
            frame::digits(&mut bytes[at..at + TAG_DIGITS], u64::from(tag(serial, self.tags)));
        }
    }
}

/// Spread by a multiplication, because queues are taken in turn and would each meet few tags otherwise.
fn tag(serial: u64, tags: u32) -> u32 {
    ((serial.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) % u64::from(tags)) as u32
}

fn batched(body: &[u8], properties: &[u8]) -> Vec<u8> {
    let size = BATCH_HEAD_BYTES + body.len() + 2 + properties.len();
    let mut out = Vec::with_capacity(size);
    for number in [size, 0, 0, 0, body.len()] {
        out.extend_from_slice(&u32::try_from(number).expect("a message is far below 4 GiB").to_be_bytes());
    }
    out.extend_from_slice(body);
    out.extend_from_slice(&u16::try_from(properties.len()).expect("a few short properties").to_be_bytes());
    out.extend_from_slice(properties);
    out
}

/// Letters that do not compress well, the same for the same seed.
pub fn body(bytes: usize, seed: u64) -> Rc<[u8]> {
    (0..bytes as u64).map(|number| b'a' + chance::below(seed, number, 26) as u8).collect()
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
        let (is_one_way, properties, sys_flag) = (false, &[][..], 0);
        SendShape { header, group: "g", messages, tags, is_one_way, properties, sys_flag, run_id: 0xABCD, body }
    }

    #[test]
    fn a_patched_frame_reads_back_as_a_client_sends_it() {
        for header in [Header::Json, Header::Rocketmq] {
            let template = SendTemplate::new(&shape(header, 1, 5), "TopicA", 3);
            for serial in [0, 1, u64::from(u32::MAX)] {
                let mut out = b"before".to_vec();
                let opaque = OPAQUE_BASE + serial as u32 % 1000;
                template.append(&mut out, opaque, serial, 1_700_000_000_000, 40)[..3].copy_from_slice(b"123");
                let bytes = &out[6..];
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
            for size in [40, 17] {
                let template = SendTemplate::new(&shape(header, 32, 3), "TopicA", 0);
                let mut out = Vec::new();
                template.append(&mut out, OPAQUE_BASE, 64, 1_700_000_000_000, size);
                let read = frame::decode(&out).unwrap();
                assert_eq!((read.code, read.ext["m"].as_str()), (code::SEND_BATCH_MESSAGE, "true"));
                assert_eq!(read.ext["i"], "WAIT\u{1}true");
                let mut rest = read.body;
                for index in 0..32 {
                    let (message, after) = rest.split_at(u32::from_be_bytes(rest[..4].try_into().unwrap()) as usize);
                    assert_eq!(message[4..16], [0; 12]);
                    assert_eq!(message[16..20], (size as u32).to_be_bytes());
                    let (found, properties) = message[20..].split_at(size);
                    assert_eq!(found, &body(40, 7)[..size]);
                    let (length, properties) = properties.split_at(2);
                    assert_eq!(usize::from(u16::from_be_bytes([length[0], length[1]])), properties.len());
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
    }

    #[test]
    fn a_smaller_body_ends_its_frame_earlier() {
        for header in [Header::Json, Header::Rocketmq] {
            let shape = SendShape { properties: &[("DELAY", "3")], sys_flag: 4, ..shape(header, 1, 1) };
            let template = SendTemplate::new(&shape, "TopicA", 0);
            let mut out = Vec::new();
            template.append(&mut out, OPAQUE_BASE, 9, 1_700_000_000_000, 11);
            let read = frame::decode(&out).unwrap();
            assert_eq!((read.body, read.ext["f"].as_str()), (&body(40, 7)[..11], "4"));
            assert!(read.ext["i"].ends_with("\u{2}DELAY\u{1}3"));
        }
    }

    #[test]
    fn a_one_way_send_says_so_and_may_have_no_tag() {
        for header in [Header::Json, Header::Rocketmq] {
            let shape = SendShape { is_one_way: true, ..shape(header, 1, 0) };
            let template = SendTemplate::new(&shape, "TopicA", 0);
            let mut out = Vec::new();
            template.append(&mut out, OPAQUE_BASE, 0, 1_700_000_000_000, 40);
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
