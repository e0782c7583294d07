//! The JSON header, read in place in one pass.
//!
//! ```text
//! {"code":310,"extFields":{"a":"group","i":"WAIT\u0001true\u0002"},"flag":0,"language":"JAVA","opaque":7,…}
//!                              └ into the frame   └ unescaped into the room
//! ```
//!
//! Takes what fastjson takes from a peer: members in any order, keys without quotes or in single ones, stray
//! commas, numbers and booleans where text belongs, integers in quotes, null, unknown members of any shape.
//! Missing members have Java's defaults; a missing opaque is 0.
//! Source: RemotingSerializable.java, JSONLexerBase of fastjson.

use super::codes::language;
use super::command::{Command, DecodeError, ExtFields};
use super::{header_json_usual, scan};

/// Levels of an unknown member that is skipped: one bit each.
const DEPTH_MAX: u32 = 64;

/// Room for each byte of a header: an escape is never shorter than what it stands for, and two readers may need it.
pub(super) const ROOM_FACTOR: usize = 2;

/// Fills `command` from `header`. `room` is at least [`ROOM_FACTOR`] times as long.
pub(super) fn decode<'a>(header: &'a str, room: &'a mut [u8], command: &mut Command<'a>) -> Result<(), DecodeError> {
    let (room, other_room) = room.split_at_mut(header.len());
    let empty = Command { ext: ExtFields::default(), ..*command };
    if header_json_usual::decode(header, room, command) {
        return Ok(());
    }
    *command = empty;
    decode_any(header, other_room, command)
}

/// `room` is at least as long as `header`.
pub(super) fn decode_any<'a>(
    header: &'a str,
    room: &'a mut [u8],
    command: &mut Command<'a>,
) -> Result<(), DecodeError> {
    assert!(room.len() >= header.len());
    let mut scanner = Scanner { text: header, position: 0, room };
    command.language = Some(language::JAVA);
    scanner.skip_blanks();
    scanner.expect(b'{', "'{'")?;
    while let Some(key) = scanner.next_key()? {
        match key {
            "code" => command.code = scanner.integer("code")?,
            "flag" => command.flag = scanner.integer("flag")?,
            "opaque" => command.opaque = scanner.integer("opaque")?,
            "version" => command.version = scanner.integer("version")?,
            "language" => command.language = scanner.value()?.and_then(language_code),
            "remark" => command.remark = scanner.value()?,
            "extFields" => scanner.ext_fields(command)?,
            _ => scanner.skip_value()?,
        }
        scanner.end_of_member()?;
    }
    scanner.skip_blanks();
    if scanner.position < header.len() {
        return Err(scanner.wrong("the end"));
    }
    Ok(())
}

/// A name, or an ordinal, which is the code.
fn language_code(text: &str) -> Option<u8> {
    language::code(text).or_else(|| text.parse().ok().filter(|code| language::name(*code).is_some()))
}

struct Scanner<'a> {
    text: &'a str,
    position: usize,
    /// What is left of it; unescaped strings are cut off its front.
    room: &'a mut [u8],
}

impl<'a> Scanner<'a> {
    #[inline]
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.position).copied()
    }

    #[cold]
    fn wrong(&self, wanted: &'static str) -> DecodeError {
        DecodeError::Json { position: self.position, wanted }
    }

    #[inline]
    fn skip_blanks(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r' | 0x0c | 0x08) = self.peek() {
            self.position += 1;
        }
    }

    #[inline]
    fn expect(&mut self, byte: u8, wanted: &'static str) -> Result<(), DecodeError> {
        if self.peek() != Some(byte) {
            return Err(self.wrong(wanted));
        }
        self.position += 1;
        Ok(())
    }

    /// The next member's key with the colon behind it; `None` at the object's end, which is passed.
    #[inline]
    fn next_key(&mut self) -> Result<Option<&'a str>, DecodeError> {
        self.skip_blanks();
        while self.peek() == Some(b',') {
            self.position += 1;
            self.skip_blanks();
        }
        let key = match self.peek() {
            Some(b'}') => {
                self.position += 1;
                return Ok(None);
            }
            Some(quote @ (b'"' | b'\'')) => self.string(quote)?,
            Some(_) => self.bare("a key")?,
            None => return Err(self.wrong("'}'")),
        };
        self.skip_blanks();
        self.expect(b':', "':'")?;
        self.skip_blanks();
        Ok(Some(key))
    }

    #[inline]
    fn end_of_member(&mut self) -> Result<(), DecodeError> {
        self.skip_blanks();
        match self.peek() {
            Some(b',' | b'}') => Ok(()),
            _ => Err(self.wrong("',' or '}'")),
        }
    }

    fn ext_fields(&mut self, command: &mut Command<'a>) -> Result<(), DecodeError> {
        command.ext.fields.clear();
        if self.peek() != Some(b'{') {
            return match self.value()? {
                None => Ok(()),
                Some(_) => Err(self.wrong("an object, not this value of extFields,")),
            };
        }
        self.position += 1;
        while let Some(key) = self.next_key()? {
            if let Some(value) = self.value()? {
                command.ext.push(key, value)?;
            }
            self.end_of_member()?;
        }
        Ok(())
    }

    /// Any value as text: a string unescaped, others as they are written; null is `None`.
    #[inline]
    fn value(&mut self) -> Result<Option<&'a str>, DecodeError> {
        match self.peek() {
            Some(quote @ (b'"' | b'\'')) => self.string(quote).map(Some),
            Some(b'{' | b'[') => {
                let start = self.position;
                self.skip_value()?;
                Ok(Some(&self.text[start..self.position]))
            }
            _ => Ok(Some(self.bare("a value")?).filter(|text| *text != "null")),
        }
    }

    fn integer(&mut self, member: &'static str) -> Result<i32, DecodeError> {
        let position = self.position;
        match self.value()? {
            None => Ok(0),
            Some(text) => text.parse().map_err(|_| DecodeError::JsonNumber { position, member }),
        }
    }

    /// Something without quotes, up to a byte that ends it.
    fn bare(&mut self, wanted: &'static str) -> Result<&'a str, DecodeError> {
        let rest = &self.text.as_bytes()[self.position..];
        let is_end = |byte: &u8| matches!(byte, 0..=b' ' | b',' | b':' | b'{' | b'}' | b'[' | b']' | b'"' | b'\'');
        let bytes = rest.iter().position(is_end).unwrap_or(rest.len());
        if bytes == 0 {
            return Err(self.wrong(wanted));
        }
        let start = self.position;
        self.position += bytes;
        Ok(&self.text[start..self.position])
    }

    /// At an opening quote.
    #[inline]
    fn string(&mut self, quote: u8) -> Result<&'a str, DecodeError> {
        let start = self.position + 1;
        let bytes = self.text.as_bytes();
        match scan::quote_or_backslash(bytes, start, quote) {
            Some(stop) if bytes[stop] == quote => {
                self.position = stop + 1;
                Ok(&self.text[start..stop])
            }
            Some(stop) => self.escaped_string(start, stop, quote),
            None => Err(self.wrong("the end of this string")),
        }
    }

    /// A string whose first backslash is at `stop`.
    fn escaped_string(&mut self, start: usize, stop: usize, quote: u8) -> Result<&'a str, DecodeError> {
        let bytes = self.text.as_bytes();
        let room = std::mem::take(&mut self.room);
        let mut used = 0;
        let mut copied = start;
        let mut stop = stop;
        loop {
            let piece = &bytes[copied..stop];
            room[used..used + piece.len()].copy_from_slice(piece);
            used += piece.len();
            self.position = stop;
            if bytes[stop] == quote {
                break;
            }
            if let Some(&[_, b'u', b'0', b'0', b'0', digit @ b'0'..=b'9']) = bytes[stop..].first_chunk() {
                // What stands between properties, several times in every send.
                room[used] = digit - b'0';
                used += 1;
                self.position = stop + 6;
            } else {
                let unescaped = self.escape()?;
                used += unescaped.encode_utf8(&mut room[used..]).len();
            }
            copied = self.position;
            stop =
                scan::quote_or_backslash(bytes, copied, quote).ok_or_else(|| self.wrong("the end of this string"))?;
        }
        self.position += 1;
        let (string, rest) = room.split_at_mut(used);
        self.room = rest;
        Ok(std::str::from_utf8(string).expect("pieces of UTF-8 cut at ASCII bytes, and whole characters"))
    }

    /// At a backslash. Half a surrogate pair, which Java would keep, becomes a replacement character.
    #[inline]
    fn escape(&mut self) -> Result<char, DecodeError> {
        self.position += 1;
        let Some(kind) = self.peek() else {
            return Err(self.wrong("an escape"));
        };
        self.position += 1;
        Ok(match kind {
            b'u' => return self.unicode_escape(),
            b'"' | b'\\' | b'/' | b'\'' => char::from(kind),
            b'n' => '\n',
            b't' => '\t',
            b'r' => '\r',
            b'b' => '\u{8}',
            b'f' | b'F' => '\u{c}',
            b'v' => '\u{b}',
            b'0'..=b'7' => char::from(kind - b'0'),
            b'x' => char::from_u32(self.hex(2)?).expect("two digits are a character below 256"),
            _ => {
                self.position -= 1;
                return Err(self.wrong("a known escape"));
            }
        })
    }

    fn unicode_escape(&mut self) -> Result<char, DecodeError> {
        let unit = self.hex(4)?;
        if let Some(character) = char::from_u32(unit) {
            return Ok(character);
        }
        if unit < 0xdc00 && self.text.as_bytes()[self.position..].starts_with(b"\\u") {
            let mark = self.position;
            self.position += 2;
            let low = self.hex(4)?;
            if (0xdc00..0xe000).contains(&low) {
                let scalar = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
                return Ok(char::from_u32(scalar).expect("a pair of surrogates is a character"));
            }
            self.position = mark;
        }
        Ok(char::REPLACEMENT_CHARACTER)
    }

    #[inline]
    fn hex(&mut self, digits: usize) -> Result<u32, DecodeError> {
        let bytes = self.text.as_bytes().get(self.position..self.position + digits);
        let unit = bytes
            .and_then(|bytes| bytes.iter().try_fold(0, |unit, byte| Some(unit * 16 + char::from(*byte).to_digit(16)?)));
        let unit = unit.ok_or_else(|| self.wrong("hexadecimal digits"))?;
        self.position += digits;
        Ok(unit)
    }

    /// Passes one value of any shape. Brackets must match, what stands between them is not looked at.
    fn skip_value(&mut self) -> Result<(), DecodeError> {
        let mut depth = 0;
        // One bit a level, the innermost lowest: 1 for an object.
        let mut objects = 0u64;
        loop {
            self.skip_blanks();
            match self.peek() {
                Some(open @ (b'{' | b'[')) => {
                    if depth == DEPTH_MAX {
                        return Err(self.wrong("less nesting"));
                    }
                    depth += 1;
                    objects = (objects << 1) | u64::from(open == b'{');
                    self.position += 1;
                }
                Some(close @ (b'}' | b']')) if depth > 0 => {
                    if (objects & 1 == 1) != (close == b'}') {
                        return Err(self.wrong("the bracket that was opened"));
                    }
                    depth -= 1;
                    objects >>= 1;
                    self.position += 1;
                }
                Some(b',' | b':') if depth > 0 => self.position += 1,
                Some(quote @ (b'"' | b'\'')) => self.skip_string(quote)?,
                _ => {
                    self.bare("a value")?;
                }
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    fn skip_string(&mut self, quote: u8) -> Result<(), DecodeError> {
        let bytes = self.text.as_bytes();
        let mut from = self.position + 1;
        loop {
            let stop =
                scan::quote_or_backslash(bytes, from, quote).ok_or_else(|| self.wrong("the end of this string"))?;
            if bytes[stop] == quote {
                self.position = stop + 1;
                return Ok(());
            }
            from = stop + 2;
        }
    }
}
