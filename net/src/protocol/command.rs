//! A decoded frame, borrowed from the bytes it came in.
//!
//! ```text
//! frame bytes ──┬─ header ── header_json or header_binary ─┬─> code, opaque, flag, …
//!               │                                          └─> remark, ext: &str into the frame,
//!               └─ body ───> &[u8] into the frame              or into Scratch where text had escapes
//! ```
//!
//! Nothing is allocated for a frame of usual size. Scratch grows with the largest header seen and is cut back
//! after an unusually large one. A frame that does not decode ends its connection, as in Java.

use super::frame::{FrameError, HEAD_BYTES, Serialize, frame_head_limited};
use super::writer::Reply;
use super::{header_binary, header_json};
use smallvec::SmallVec;

/// Fields of one header. Official peers send fewer than 30; a field costs 32 bytes here and may cost its
/// sender four, so their number is bounded.
pub const EXT_FIELDS_MAX: usize = 4096;

/// What scratch keeps between frames.
const SCRATCH_BYTES_KEPT: usize = 64 << 10;

/// Room for unescaped JSON text; one for each shard, reused for every frame.
#[derive(Default)]
pub struct Scratch {
    text: Vec<u8>,
    /// A header that was no UTF-8, with its wrong bytes replaced as Java replaces them.
    lossy: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command<'a> {
    pub code: i32,
    /// Language code byte (wire-protocol 1.4), `None` when unknown.
    pub language: Option<u8>,
    pub version: i32,
    pub opaque: i32,
    pub flag: i32,
    pub remark: Option<&'a str>,
    pub ext: ExtFields<'a>,
    pub body: &'a [u8],
    pub serialize: Serialize,
}

impl Command<'_> {
    pub fn is_response(&self) -> bool {
        self.flag & 1 != 0
    }

    pub fn is_oneway(&self) -> bool {
        self.flag & 2 != 0
    }

    /// What an answer to this command must repeat.
    pub fn reply(&self) -> Reply {
        Reply { opaque: self.opaque, serialize: self.serialize }
    }
}

/// The header's `extFields`: null values are absent; of two equal keys the later wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtFields<'a> {
    pub fields: SmallVec<[(&'a str, &'a str); 20]>,
}

impl<'a> ExtFields<'a> {
    pub fn get(&self, key: &str) -> Option<&'a str> {
        self.fields.iter().rev().find(|field| field.0 == key).map(|field| field.1)
    }

    pub(super) fn push(&mut self, key: &'a str, value: &'a str) -> Result<(), DecodeError> {
        if self.fields.len() == EXT_FIELDS_MAX {
            return Err(DecodeError::TooManyFields);
        }
        self.fields.push((key, value));
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("{received_bytes} bytes of a frame of {frame_bytes}")]
    Incomplete { received_bytes: usize, frame_bytes: usize },
    #[error("JSON header, byte {position}: {wanted} is needed")]
    Json { position: usize, wanted: &'static str },
    #[error("JSON header, byte {position}: {member} is no 32-bit integer")]
    JsonNumber { position: usize, member: &'static str },
    #[error("binary header: {part} of {length} bytes, {left_bytes} left")]
    Binary { part: &'static str, length: i32, left_bytes: usize },
    #[error("more than {EXT_FIELDS_MAX} ext fields")]
    TooManyFields,
}

/// Decodes one whole frame (`frame[0..4]` is its length word). Bytes behind the frame are not looked at.
///
/// # Errors
/// Whatever is wrong with the frame; nothing is answered then, the connection closes.
pub fn decode<'a>(frame: &'a [u8], scratch: &'a mut Scratch) -> Result<Command<'a>, DecodeError> {
    let received_bytes = frame.len();
    // Its length was limited when it was received, and here it must be there.
    let head = frame_head_limited(frame, usize::MAX)?
        .ok_or(DecodeError::Incomplete { received_bytes, frame_bytes: HEAD_BYTES })?;
    let frame_bytes = head.frame_bytes;
    let Some(frame) = frame.get(..frame_bytes) else {
        return Err(DecodeError::Incomplete { received_bytes, frame_bytes });
    };
    let (header, body) = frame[HEAD_BYTES..].split_at(head.header_bytes);
    let mut command = Command {
        code: 0,
        language: None,
        version: 0,
        opaque: 0,
        flag: 0,
        remark: None,
        ext: ExtFields::default(),
        body,
        serialize: head.serialize,
    };
    let Scratch { text, lossy } = scratch;
    lossy.clear();
    lossy.shrink_to(SCRATCH_BYTES_KEPT);
    match head.serialize {
        Serialize::Json => {
            let header = match std::str::from_utf8(header) {
                Ok(header) => header,
                Err(_) => {
                    lossy.push_str(&String::from_utf8_lossy(header));
                    lossy.as_str()
                }
            };
            let room = room(text, header_json::ROOM_FACTOR * header.len());
            header_json::decode(header, room, &mut command)?;
        }
        Serialize::Binary => {
            let room = room(text, header_binary::ROOM_FACTOR * header.len());
            header_binary::decode(header, room, &mut command)?;
        }
    }
    Ok(command)
}

/// The first `bytes` of `text`, grown to that and cut back from an earlier giant.
fn room(text: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
    if text.len() < bytes {
        text.resize(bytes, 0);
    } else if text.len() > SCRATCH_BYTES_KEPT.max(bytes) {
        text.truncate(SCRATCH_BYTES_KEPT.max(bytes));
        text.shrink_to_fit();
    }
    &mut text[..bytes]
}
