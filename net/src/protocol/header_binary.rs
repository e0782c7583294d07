//! The ROCKETMQ binary header.
//!
//! ```text
//! 2 code | 1 language | 2 version | 4 opaque | 4 flag | 4 n | n remark | 4 n | n pairs
//! pair:  2 n | n key | 4 n | n value             all signed, all big-endian; n = 0 is null
//! ```
//!
//! Every length is checked against what is left before anything is done with it.
//! Source: RocketMQSerializable.java.

use super::codes::language;
use super::command::{Command, DecodeError};

/// A byte that is no UTF-8 becomes a replacement character of three.
pub(super) const ROOM_FACTOR: usize = 3;

/// Fills `command` from `header`. Text that is no UTF-8 is replaced as Java does it, in `room`, which has
/// [`ROOM_FACTOR`] times the header's bytes.
pub(super) fn decode<'a>(header: &'a [u8], room: &'a mut [u8], command: &mut Command<'a>) -> Result<(), DecodeError> {
    assert!(room.len() >= ROOM_FACTOR * header.len());
    let mut reader = Reader { left: header, room };
    command.code = i32::from(i16::from_be_bytes(reader.array("code")?));
    let [language] = reader.array("language")?;
    command.language = language::name(language).map(|_| language);
    command.version = i32::from(i16::from_be_bytes(reader.array("version")?));
    command.opaque = i32::from_be_bytes(reader.array("opaque")?);
    command.flag = i32::from_be_bytes(reader.array("flag")?);
    let remark_bytes = i32::from_be_bytes(reader.array("remark length")?);
    command.remark = reader.text("remark", remark_bytes)?;
    let ext_bytes = i32::from_be_bytes(reader.array("extFields length")?);
    reader.left = reader.take("extFields", ext_bytes)?;
    while !reader.left.is_empty() {
        let key_bytes = i16::from_be_bytes(reader.array("key length")?);
        let key = reader.text("key", i32::from(key_bytes))?;
        let value_bytes = i32::from_be_bytes(reader.array("value length")?);
        let value = reader.text("value", value_bytes)?;
        if let (Some(key), Some(value)) = (key, value) {
            command.ext.push(key, value)?;
        }
    }
    Ok(())
}

struct Reader<'a> {
    left: &'a [u8],
    room: &'a mut [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, part: &'static str, length: i32) -> Result<&'a [u8], DecodeError> {
        let cut = usize::try_from(length).ok().and_then(|bytes| self.left.split_at_checked(bytes));
        let (head, tail) = cut.ok_or(DecodeError::Binary { part, length, left_bytes: self.left.len() })?;
        self.left = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self, part: &'static str) -> Result<[u8; N], DecodeError> {
        let bytes = self.take(part, N as i32)?;
        Ok(bytes.try_into().expect("as many bytes as were taken"))
    }

    fn text(&mut self, part: &'static str, length: i32) -> Result<Option<&'a str>, DecodeError> {
        let bytes = self.take(part, length)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        Ok(Some(std::str::from_utf8(bytes).unwrap_or_else(|_| self.replaced(bytes))))
    }

    #[cold]
    fn replaced(&mut self, bytes: &[u8]) -> &'a str {
        let text = String::from_utf8_lossy(bytes);
        let (target, rest) = std::mem::take(&mut self.room).split_at_mut(text.len());
        self.room = rest;
        target.copy_from_slice(text.as_bytes());
        std::str::from_utf8(target).expect("copied from a text")
    }
}
