//! The JSON header as official clients write it, read by one walk over its quotes.
//!
//! ```text
//! {"code":310,"extFields":{"a":"group","i":"WAIT\u0001true\u0002"},"flag":0,"language":"JAVA","opaque":7,…}
//!  ^    ^      ^         ^  ^ ^ ^     ^                                       marks, found 64 bytes at a time
//! ```
//! No blanks, known members only, keys and texts in double quotes, only texts below extFields. Whatever is not like that is
//! left to `header_json`, which says what is wrong with it, or that nothing is.

use super::codes::language;
use super::command::Command;
use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8};

/// Fills `command` from `header`, exactly as `header_json` would, or says that it is not of this kind; what it has filled
/// in then is void. `room` is at least as long as `header`.
pub(super) fn decode<'a>(header: &'a str, room: &'a mut [u8], command: &mut Command<'a>) -> bool {
    Walk { text: header, position: 0, marks: Marks::of(header.as_bytes()), room }.header(command).is_some()
}

struct Walk<'a> {
    text: &'a str,
    position: usize,
    marks: Marks<'a>,
    /// What is left of it; unescaped strings are cut off its front.
    room: &'a mut [u8],
}

impl<'a> Walk<'a> {
    fn header(&mut self, command: &mut Command<'a>) -> Option<()> {
        command.language = Some(language::JAVA);
        self.expect(b'{')?;
        loop {
            let key = self.string()?;
            self.expect(b':')?;
            match key {
                "code" => command.code = self.integer()?,
                "flag" => command.flag = self.integer()?,
                "opaque" => command.opaque = self.integer()?,
                "version" => command.version = self.integer()?,
                "language" => command.language = Some(language::code(self.string()?)?),
                "remark" => command.remark = Some(self.string()?),
                "extFields" => self.ext_fields(command)?,
                "serializeTypeCurrentRPC" => {
                    self.string()?;
                }
                _ => return None,
            }
            if self.is_last()? {
                return (self.position == self.text.len()).then_some(());
            }
        }
    }

    fn ext_fields(&mut self, command: &mut Command<'a>) -> Option<()> {
        command.ext.fields.clear();
        self.expect(b'{')?;
        if self.byte() == Some(b'}') {
            self.position += 1;
            return Some(());
        }
        loop {
            let key = self.string()?;
            self.expect(b':')?;
            let value = self.string()?;
            command.ext.push(key, value).ok()?;
            if self.is_last()? {
                return Some(());
            }
        }
    }

    #[inline]
    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.position).copied()
    }

    #[inline]
    fn expect(&mut self, byte: u8) -> Option<()> {
        let is_there = self.byte()? == byte;
        self.position += 1;
        is_there.then_some(())
    }

    /// Behind a member: whether the object ends here.
    #[inline]
    fn is_last(&mut self) -> Option<bool> {
        let byte = self.byte()?;
        self.position += 1;
        match byte {
            b',' => Some(false),
            b'}' => Some(true),
            _ => None,
        }
    }

    #[inline]
    fn integer(&mut self) -> Option<i32> {
        let is_negative = self.byte() == Some(b'-');
        self.position += usize::from(is_negative);
        let start = self.position;
        let mut number = 0i64;
        while let Some(digit @ b'0'..=b'9') = self.byte() {
            number = number * 10 + i64::from(digit - b'0');
            self.position += 1;
            if self.position - start > 10 {
                return None;
            }
        }
        if self.position == start {
            return None;
        }
        i32::try_from(if is_negative { -number } else { number }).ok()
    }

    #[inline]
    fn string(&mut self) -> Option<&'a str> {
        let open = self.marks.next()?;
        if open != self.position || self.text.as_bytes()[open] != b'"' {
            return None;
        }
        let stop = self.marks.next()?;
        if self.text.as_bytes()[stop] != b'"' {
            return self.escaped_string(open + 1, stop);
        }
        self.position = stop + 1;
        self.text.get(open + 1..stop)
    }

    /// A string whose first backslash is at `stop`.
    fn escaped_string(&mut self, start: usize, mut stop: usize) -> Option<&'a str> {
        let bytes = self.text.as_bytes();
        let room = std::mem::take(&mut self.room);
        let (mut used, mut copied) = (0, start);
        loop {
            let piece = &bytes[copied..stop];
            room[used..used + piece.len()].copy_from_slice(piece);
            used += piece.len();
            if bytes[stop] == b'"' {
                break;
            }
            // What stands between properties, several times in every send.
            if let Some(&[_, b'u', b'0', b'0', high @ b'0'..=b'1', low @ b'0'..=b'9']) = bytes[stop..].first_chunk() {
                room[used] = (high - b'0') * 16 + low - b'0';
                copied = stop + 6;
            } else {
                room[used] = match *bytes.get(stop + 1)? {
                    // A mark of its own.
                    escaped @ (b'"' | b'\\') => {
                        self.marks.next()?;
                        escaped
                    }
                    b'/' => b'/',
                    b'n' => b'\n',
                    b't' => b'\t',
                    b'r' => b'\r',
                    _ => return None,
                };
                copied = stop + 2;
            }
            used += 1;
            stop = self.marks.next()?;
        }
        self.position = stop + 1;
        let (string, rest) = room.split_at_mut(used);
        self.room = rest;
        std::str::from_utf8(string).ok()
    }
}

/// Positions of the double quotes and backslashes of a text, in order.
struct Marks<'a> {
    text: &'a [u8],
    /// Of `bits`' lowest bit.
    start: usize,
    bits: u64,
}

impl<'a> Marks<'a> {
    fn of(text: &'a [u8]) -> Marks<'a> {
        Marks { text, start: 0, bits: marks_at(text, 0) }
    }

    #[inline]
    fn next(&mut self) -> Option<usize> {
        while self.bits == 0 {
            self.start += 64;
            if self.start >= self.text.len() {
                return None;
            }
            self.bits = marks_at(self.text, self.start);
        }
        let position = self.start + self.bits.trailing_zeros() as usize;
        self.bits &= self.bits - 1;
        Some(position)
    }
}

/// One bit for each of the 64 bytes from `start` on.
#[inline]
fn marks_at(text: &[u8], start: usize) -> u64 {
    let rest = &text[start..];
    match rest.first_chunk::<64>() {
        Some(chunk) => marks_of(chunk),
        None => {
            let mut chunk = [0; 64];
            chunk[..rest.len()].copy_from_slice(rest);
            marks_of(&chunk)
        }
    }
}

#[inline]
fn marks_of(chunk: &[u8; 64]) -> u64 {
    let (quarters, _) = chunk.as_chunks::<16>();
    let mut bits = 0;
    for (index, quarter) in quarters.iter().enumerate() {
        // SAFETY: every x86_64 has SSE2, and the load reads the 16 bytes of `quarter`, at any alignment.
        let hits = unsafe {
            let bytes = _mm_loadu_si128(quarter.as_ptr().cast());
            let is = |byte: u8| _mm_cmpeq_epi8(bytes, _mm_set1_epi8(byte as i8));
            _mm_movemask_epi8(_mm_or_si128(is(b'"'), is(b'\\')))
        };
        bits |= u64::from(hits as u16) << (index * 16);
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::super::command::{Command, ExtFields};
    use super::super::frame::Serialize;
    use super::super::header_json;
    use super::*;
    use proptest::prelude::*;

    fn empty<'a>() -> Command<'a> {
        Command {
            code: 0,
            language: None,
            version: 0,
            opaque: 0,
            flag: 0,
            remark: None,
            ext: ExtFields::default(),
            body: &[],
            serialize: Serialize::Json,
        }
    }

    /// Whether it is read here; and then the other must read the same.
    fn is_read(header: &str) -> bool {
        let (mut room, mut other_room) = (vec![0; header.len()], vec![0; header.len()]);
        let (mut command, mut other) = (empty(), empty());
        let is_read = decode(header, &mut room, &mut command);
        let result = header_json::decode_any(header, &mut other_room, &mut other);
        if is_read {
            assert_eq!(result, Ok(()), "{header}");
            assert_eq!(command, other, "{header}");
        }
        is_read
    }

    const USUAL: &str = r#"{"code":310,"extFields":{"a":"group","b":"Topic \"é\"","g":"1796003496363","i":"UNIQ_KEY\u00017F00\u0002WAIT\u0001true\u0002\\\/\n\t\r\u0010","k":"false"},"flag":0,"language":"JAVA","opaque":-2147483648,"serializeTypeCurrentRPC":"JSON","version":407}"#;

    #[test]
    fn what_clients_write_is_read_here() {
        for header in [
            USUAL,
            r#"{"code":0}"#,
            r#"{"code":105,"extFields":{},"flag":0,"language":"GO","opaque":1,"remark":"","version":317}"#,
            r#"{"code":1,"extFields":{"a":"","":"b"},"extFields":{"c":"d"},"opaque":2147483647}"#,
        ] {
            assert!(is_read(header), "{header}");
        }
        for header in [
            "",
            "{}",
            "{",
            r#"{"code":310"#,
            r#"{"code":310} "#,
            r#"{"code":310,}"#,
            r#"{"code":2147483648}"#,
            r#"{"code":99999999999999999999}"#,
            r#"{"code":-}"#,
            r#"{"code":"310"}"#,
            r#"{"code": 310}"#,
            r#"{"code":310,"extFields":{"a":1}}"#,
            r#"{"code":310,"extFields":{"a":null}}"#,
            r#"{"code":310,"extFields":null}"#,
            r#"{"code":310,"remark":"\u00e9"}"#,
            r#"{"code":310,"remark":"\ud83d\ude00"}"#,
            r#"{"code":310,"remark":"a\"#,
            r#"{'code':310}"#,
            r#"{"code":310,"other":{"a":["b"]}}"#,
            r#"{"code":310,"language":"NONE"}"#,
            r#"{"\"code":310}"#,
        ] {
            assert!(!is_read(header), "{header}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn both_readers_agree(at in 0usize..USUAL.len(), len in 0usize..4, put in r#"["\\{}:,0u1a é-]{0,3}"#) {
            let chars: Vec<char> = USUAL.chars().collect();
            let (at, end) = (at.min(chars.len()), (at + len).min(chars.len()));
            let header: String = chars[..at].iter().copied().chain(put.chars()).chain(chars[end..].iter().copied()).collect();
            is_read(&header);
        }

        #[test]
        fn marks_are_all_found(text in r#"["\\a é]{0,200}"#) {
            let bytes = text.as_bytes();
            let plain: Vec<usize> = (0..bytes.len()).filter(|index| matches!(bytes[*index], b'"' | b'\\')).collect();
            let mut marks = Marks::of(bytes);
            let found: Vec<usize> = std::iter::from_fn(|| marks.next()).collect();
            prop_assert_eq!(found, plain);
        }
    }
}
