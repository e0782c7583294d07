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
        return Err(BatchFault::Short { bytes: rest.len(), min: MESSAGE_BYTES_MIN });
    }
    let body_bytes = read_i32(rest, 16);
    let room = rest.len() - MESSAGE_BYTES_MIN;
    let body_end = match usize::try_from(body_bytes) {
        Ok(bytes) if bytes <= room => 20 + bytes,
        _ => {
            return Err(BatchFault::BodyLength { claimed: body_bytes, bytes: room });
        }
    };
    let properties_bytes = read_i16(rest, body_end);
    let room = rest.len() - body_end - 2;
    let end = match usize::try_from(properties_bytes) {
        Ok(bytes) if bytes <= room => body_end + 2 + bytes,
        _ => {
            return Err(BatchFault::PropertiesLength { claimed: properties_bytes, bytes: room });
        }
    };
    let claimed = read_i32(rest, 0);
    if usize::try_from(claimed) != Ok(end) {
        return Err(BatchFault::TotalSize { claimed, sum: end });
    }
    Ok((
        BatchMessage { flag: read_i32(rest, 12), body: &rest[20..body_end], properties: &rest[body_end + 2..end] },
        end,
    ))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As a client writes it.
    pub fn encoded(messages: &[(i32, &[u8], &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        for (flag, body, properties) in messages {
            let total = MESSAGE_BYTES_MIN + body.len() + properties.len();
            out.extend((total as i32).to_be_bytes());
            out.extend([0; 8]);
            out.extend(flag.to_be_bytes());
            out.extend((body.len() as i32).to_be_bytes());
            out.extend(*body);
            out.extend((properties.len() as i16).to_be_bytes());
            out.extend(*properties);
        }
        out
    }

    fn read(body: &[u8]) -> Result<Vec<BatchMessage<'_>>, RecordError> {
        messages(body).collect()
    }

    #[test]
    fn messages_in_order() {
        let mut body = encoded(&[(7, b"one", b"TAGS\x01a\x02"), (0, b"", b""), (-1, b"three", b"k\x01v")]);
        // Magic and CRC are not looked at.
        body[4..12].fill(0xEE);
        assert_eq!(
            read(&body).unwrap(),
            [
                BatchMessage { flag: 7, body: b"one", properties: b"TAGS\x01a\x02" },
                BatchMessage { flag: 0, body: b"", properties: b"" },
                BatchMessage { flag: -1, body: b"three", properties: b"k\x01v" },
            ]
        );
        assert_eq!(read(b""), Ok(vec![]));
    }

    #[test]
    fn malformed_messages_are_named_with_their_place() {
        use BatchFault::*;
        let good = encoded(&[(0, b"12345", b"pp")]);
        let first = good.len();
        let second = |at: usize, patch: &[u8]| {
            let mut body = good.repeat(2);
            body[first + at..first + at + patch.len()].copy_from_slice(patch);
            body
        };
        let mut short = good.clone();
        short.extend([0; 21]);
        for (what, body, want) in [
            ("rest", short, Short { bytes: 21, min: 22 }),
            ("total 0", second(0, &[0; 4]), TotalSize { claimed: 0, sum: 29 }),
            ("total < 0", second(0, &[0xFF; 4]), TotalSize { claimed: -1, sum: 29 }),
            ("total - 1", second(3, &[28]), TotalSize { claimed: 28, sum: 29 }),
            ("body < 0", second(16, &[0xFF; 4]), BodyLength { claimed: -1, bytes: 7 }),
            ("body huge", second(16, &[0x7F; 4]), BodyLength { claimed: 0x7F7F7F7F, bytes: 7 }),
            ("properties < 0", second(25, &[0x80]), PropertiesLength { claimed: -32766, bytes: 2 }),
            ("properties > rest", second(26, &[3]), PropertiesLength { claimed: 3, bytes: 2 }),
        ] {
            assert_eq!(read(&body), Err(RecordError::BatchMalformed { position: first, what: want }), "{what}");
        }
        let mut walk = messages(&good[..25]);
        assert!(walk.next().is_some_and(|message| message.is_err()));
        assert!(walk.next().is_none(), "ends after an error");
    }

    proptest! {
        #[test]
        fn any_bytes_end_in_messages_that_add_up_or_in_an_error(
            count in 0..=3usize,
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut in any::<prop::sample::Index>(),
        ) {
            let messages: [(i32, &[u8], &[u8]); 3] =
                [(1, b"some body", b"TAGS\x01a\x02k\x01v"), (2, b"x", b""), (3, b"yy", b"p")];
            let mut body = encoded(&messages[..count]);
            for (at, byte) in damage {
                if !body.is_empty() {
                    let at = at.index(body.len());
                    body[at] = byte;
                }
            }
            body.truncate(cut.index(body.len() + 1).max(body.len() / 2));
            if let Ok(messages) = read(&body) {
                let sum: usize = messages.iter().map(|m| MESSAGE_BYTES_MIN + m.body.len() + m.properties.len()).sum();
                prop_assert_eq!(sum, body.len());
            }
        }
    }
}
