//! Writes frames straight into an outbox.
//!
//! ```text
//! JSON    | 8 head | {"code":0 | ,"extFields":{…} | ,"flag":1,"language":"RUST","opaque":7 | ,"remark":"…" | …}
//! binary  | 8 head | 13 fixed | 4 n | remark | 4 n | pairs |
//! ```
//!
//! Ext fields go to their place at once. A remark is appended where the frame then ends and rotated into its
//! place by `finish`, so the calls may come in any order and a plain answer moves no byte twice.
//! Members are in Java's (alphabetical) order, absent ones are left out, ext values are JSON strings (Go reads
//! nothing else). Our language is RUST, known to both generations: clients never look at an answer's language.
//! Source: RemotingCommand.java, RocketMQSerializable.java.

use super::codes::{language, response, version};
use super::frame::{HEAD_BYTES, Serialize};
use super::scan;
use std::ops::Range;

/// What an answer must take from its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    pub opaque: i32,
    pub serialize: Serialize,
}

const FLAG_RESPONSE: u8 = 1;
const FLAG_ONEWAY: u8 = 2;

/// Binary: code, language, version, opaque, flag; the remark's length word comes next.
const FIXED_BYTES: usize = 2 + 1 + 2 + 4 + 4;
const HEADER_BYTES_MAX: usize = 0xff_ffff;

const _: () = assert!(version::CURRENT == 407, "the number is part of JSON_END");
const JSON_END: &[u8] = b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":407}";

/// One frame being written at the end of `out`. Call order: `response` or `request`, then `remark` and `ext*`
/// in any order, then exactly one `finish*`.
#[must_use = "a frame without a finish breaks its connection"]
pub struct FrameWriter<'a> {
    out: &'a mut Vec<u8>,
    /// Where this frame begins in `out`.
    start: usize,
    serialize: Serialize,
    opaque: i32,
    flag: u8,
    has_ext: bool,
    /// Where the remark (in JSON: the whole member) was appended.
    remark: Option<Range<usize>>,
}

impl<'a> FrameWriter<'a> {
    pub fn response(out: &'a mut Vec<u8>, reply: Reply, code: i32) -> Self {
        Self::begin(out, reply.serialize, code, reply.opaque, FLAG_RESPONSE)
    }

    pub fn request(out: &'a mut Vec<u8>, serialize: Serialize, code: i32, opaque: i32, oneway: bool) -> Self {
        Self::begin(out, serialize, code, opaque, if oneway { FLAG_ONEWAY } else { 0 })
    }

    /// A code above 16 bits (POP) is written in JSON whatever was asked.
    fn begin(out: &'a mut Vec<u8>, serialize: Serialize, code: i32, opaque: i32, flag: u8) -> Self {
        let start = out.len();
        out.reserve(256);
        let serialize = match (serialize, i16::try_from(code)) {
            (Serialize::Binary, Ok(code)) => {
                let [code_high, code_low] = code.to_be_bytes();
                let [.., version_high, version_low] = version::CURRENT.to_be_bytes();
                let mut fixed = [0; HEAD_BYTES + FIXED_BYTES + 4 + 4];
                fixed[8..13].copy_from_slice(&[code_high, code_low, language::RUST, version_high, version_low]);
                fixed[13..17].copy_from_slice(&opaque.to_be_bytes());
                fixed[17..21].copy_from_slice(&i32::from(flag).to_be_bytes());
                out.extend_from_slice(&fixed);
                Serialize::Binary
            }
            _ => {
                out.extend_from_slice(b"\0\0\0\0\0\0\0\0{\"code\":");
                out.extend_from_slice(itoa::Buffer::new().format(code).as_bytes());
                Serialize::Json
            }
        };
        Self { out, start, serialize, opaque, flag, has_ext: false, remark: None }
    }

    /// Of two remarks the later stands.
    pub fn remark(mut self, remark: &str) -> Self {
        if let Some(earlier) = self.remark.take() {
            self.out.drain(earlier);
        }
        let start = self.out.len();
        match self.serialize {
            Serialize::Json => {
                self.out.extend_from_slice(b",\"remark\":\"");
                self.push_escaped(remark);
                self.out.push(b'"');
            }
            Serialize::Binary => self.out.extend_from_slice(remark.as_bytes()),
        }
        self.remark = Some(start..self.out.len());
        self
    }

    pub fn ext(mut self, key: &str, value: &str) -> Self {
        match self.serialize {
            Serialize::Json => {
                self.begin_json_pair(key);
                self.push_escaped(value);
                self.out.push(b'"');
            }
            Serialize::Binary => self.push_binary_pair(key, value),
        }
        self
    }

    pub fn ext_num(self, key: &str, value: i64) -> Self {
        self.ext_plain(key, itoa::Buffer::new().format(value))
    }

    pub fn ext_bool(self, key: &str, value: bool) -> Self {
        self.ext_plain(key, if value { "true" } else { "false" })
    }

    /// A key and a value that need no escapes.
    pub fn ext_plain(mut self, key: &str, value: &str) -> Self {
        match self.serialize {
            Serialize::Json => {
                debug_assert!(scan::must_escape(key.as_bytes()).or(scan::must_escape(value.as_bytes())).is_none());
                self.begin_json_pair_plain(key);
                self.out.extend_from_slice(value.as_bytes());
                self.out.push(b'"');
            }
            Serialize::Binary => self.push_binary_pair(key, value),
        }
        self
    }

    pub fn finish(self) {
        self.finish_header(0);
    }

    pub fn finish_body(self, body: &[u8]) {
        self.finish_header(body.len()).extend_from_slice(body);
    }

    /// The body's bytes follow as other segments of the same connection's outbox.
    pub fn finish_body_bytes(self, body_bytes: usize) {
        self.finish_header(body_bytes);
    }

    fn begin_json_pair(&mut self, key: &str) {
        self.begin_json_key();
        self.push_escaped(key);
        self.out.extend_from_slice(b"\":\"");
    }

    fn begin_json_pair_plain(&mut self, key: &str) {
        self.begin_json_key();
        self.out.extend_from_slice(key.as_bytes());
        self.out.extend_from_slice(b"\":\"");
    }

    fn begin_json_key(&mut self) {
        if self.has_ext {
            self.out.extend_from_slice(b",\"");
        } else {
            self.has_ext = true;
            self.out.extend_from_slice(b",\"extFields\":{\"");
        }
    }

    /// An empty value is a null one to its reader, as Java has it. A key of more than 32 767 bytes, which only
    /// a peer can have made up, cannot be expressed and is left out.
    fn push_binary_pair(&mut self, key: &str, value: &str) {
        let Ok(key_bytes) = i16::try_from(key.len()) else {
            return;
        };
        self.has_ext = true;
        self.out.extend_from_slice(&key_bytes.to_be_bytes());
        self.out.extend_from_slice(key.as_bytes());
        self.out.extend_from_slice(&(value.len() as u32).to_be_bytes());
        self.out.extend_from_slice(value.as_bytes());
    }

    #[inline]
    fn push_escaped(&mut self, text: &str) {
        match scan::must_escape(text.as_bytes()) {
            None => self.out.extend_from_slice(text.as_bytes()),
            Some(first) => push_with_escapes(self.out, text.as_bytes(), first),
        }
    }

    fn finish_header(mut self, body_bytes: usize) -> &'a mut Vec<u8> {
        match self.serialize {
            Serialize::Json => self.end_json(),
            Serialize::Binary => self.end_binary(),
        }
        let Self { out, start, serialize, opaque, flag, .. } = self;
        let header_bytes = out.len() - start - HEAD_BYTES;
        if header_bytes > HEADER_BYTES_MAX {
            // Only text that others gave us is so long, and the head has three bytes for the length.
            out.truncate(start);
            let remark = format!("header of {header_bytes} bytes, limit {HEADER_BYTES_MAX}");
            return Self::begin(out, serialize, response::SYSTEM_ERROR, opaque, flag)
                .remark(&remark)
                .finish_header(body_bytes);
        }
        let length = u32::try_from(4 + header_bytes + body_bytes).expect("a frame's body is below 4 GiB");
        let header_word = ((serialize as u32) << 24) | header_bytes as u32;
        out[start..start + 4].copy_from_slice(&length.to_be_bytes());
        out[start + 4..start + 8].copy_from_slice(&header_word.to_be_bytes());
        out
    }

    fn end_json(&mut self) {
        let out = &mut *self.out;
        if self.has_ext {
            out.push(b'}');
        }
        out.extend_from_slice(match self.flag {
            FLAG_RESPONSE => b",\"flag\":1,\"language\":\"RUST\",\"opaque\":",
            FLAG_ONEWAY => b",\"flag\":2,\"language\":\"RUST\",\"opaque\":",
            _ => b",\"flag\":0,\"language\":\"RUST\",\"opaque\":",
        });
        out.extend_from_slice(itoa::Buffer::new().format(self.opaque).as_bytes());
        if let Some(remark) = &self.remark {
            out[remark.start..].rotate_left(remark.len());
        }
        out.extend_from_slice(JSON_END);
    }

    fn end_binary(&mut self) {
        let remark_at = self.start + HEAD_BYTES + FIXED_BYTES + 4;
        let mut remark_bytes = 0;
        if let Some(remark) = &self.remark {
            remark_bytes = remark.len();
            self.out[remark_at..remark.end].rotate_right(remark_bytes);
        }
        let pairs_at = remark_at + remark_bytes + 4;
        let ext_bytes = self.out.len() - pairs_at;
        self.out[remark_at - 4..remark_at].copy_from_slice(&(remark_bytes as u32).to_be_bytes());
        self.out[pairs_at - 4..pairs_at].copy_from_slice(&(ext_bytes as u32).to_be_bytes());
    }
}

/// `text` with its escapes; the first byte that needs one is at `first`.
fn push_with_escapes(out: &mut Vec<u8>, text: &[u8], first: usize) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut rest = text;
    let mut next = Some(first);
    while let Some(at) = next {
        out.extend_from_slice(&rest[..at]);
        match rest[at] {
            quoted @ (b'"' | b'\\') => out.extend_from_slice(&[b'\\', quoted]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            control => {
                let digits = [HEX[usize::from(control >> 4)], HEX[usize::from(control & 15)]];
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', digits[0], digits[1]]);
            }
        }
        rest = &rest[at + 1..];
        next = scan::must_escape(rest);
    }
    out.extend_from_slice(rest);
}
