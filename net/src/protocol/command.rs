//! A decoded frame, borrowed from the bytes it came in.

use super::frame::Serialize;
use smallvec::SmallVec;

/// Room for unescaped JSON text; one for each shard, reused for every frame.
#[derive(Default)]
pub struct Scratch {
    _text: Vec<u8>,
}

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
}

/// The header's `extFields`: null values are absent; of two equal keys the later wins.
#[derive(Default)]
pub struct ExtFields<'a> {
    pub fields: SmallVec<[(&'a str, &'a str); 20]>,
}

impl<'a> ExtFields<'a> {
    pub fn get(&self, _key: &str) -> Option<&'a str> {
        todo!()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("placeholder")]
    Placeholder,
}

/// Decodes one whole frame (`frame[0..4]` is its length word).
pub fn decode<'a>(_frame: &'a [u8], _scratch: &'a mut Scratch) -> Result<Command<'a>, DecodeError> {
    todo!()
}
