//! The client batch (request 320): the messages of one send, back to back.
//!
//! ```text
//! message   | total size 4 | magic 4 | CRC 4 | flag 4 | body length 4 | body | properties length 2 | properties |
//! ```
//! Clients leave magic and CRC zero. The total size is checked against the other lengths: Java's broker walks by the
//! lengths and clients by the total size, so a message where they differ would mean two things.
//! Source: MessageDecoder.encodeMessages, MessageExtEncoder.encode(MessageExtBatch).

use super::decode::{read_i16, read_i32};
use crate::error::{BatchFault, RecordError};

/// A message without body and properties.
pub const MESSAGE_BYTES_MIN: usize = 5 * 4 + 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchMessage<'a> {
    pub flag: i32,
    pub body: &'a [u8],
    pub properties: &'a [u8],
}

/// The messages of a batch body in order. After an error it ends.
pub fn messages(body: &[u8]) -> Messages<'_> {
    Messages { body, position: 0 }
}

pub struct Messages<'a> {
    body: &'a [u8],
    position: usize,
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<BatchMessage<'a>, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = &self.body[self.position..];
        if rest.is_empty() {
            return None;
        }
        match message(rest) {
            Ok((message, bytes)) => {
                self.position += bytes;
                Some(Ok(message))
            }
            Err(what) => {
                let position = self.position;
                self.position = self.body.len();
                Some(Err(RecordError::BatchMalformed { position, what }))
            }
        }
    }
}

/// The message at the start of `rest`, and its bytes.
fn message(rest: &[u8]) -> Result<(BatchMessage<'_>, usize), BatchFault> {
    if rest.len() < MESSAGE_BYTES_MIN {
        return Err(BatchFault::Short {
            bytes: rest.len(),
            min: MESSAGE_BYTES_MIN,
        });
    }
    let body_bytes = read_i32(rest, 16);
    let room = rest.len() - MESSAGE_BYTES_MIN;
    let body_end = match usize::try_from(body_bytes) {
        Ok(bytes) if bytes <= room => 20 + bytes,
        _ => {
            return Err(BatchFault::BodyLength {
                claimed: body_bytes,
                bytes: room,
            });
        }
    };
    let properties_bytes = read_i16(rest, body_end);
    let room = rest.len() - body_end - 2;
    let end = match usize::try_from(properties_bytes) {
        Ok(bytes) if bytes <= room => body_end + 2 + bytes,
        _ => {
            return Err(BatchFault::PropertiesLength {
                claimed: properties_bytes,
                bytes: room,
            });
        }
    };
    let claimed = read_i32(rest, 0);
    if usize::try_from(claimed) != Ok(end) {
        return Err(BatchFault::TotalSize { claimed, sum: end });
    }
    Ok((
        BatchMessage {
            flag: read_i32(rest, 12),
            body: &rest[20..body_end],
            properties: &rest[body_end + 2..end],
        },
        end,
    ))
}
