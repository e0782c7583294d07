//! The JSON that Java's fastjson writes and reads, to and from strict JSON.
//!
//! ```text
//! peer                                  strict
//! {0:"a",}                              {"0":"a"}
//! {{"brokerName":"b","queueId":0}:5}    {"{\"brokerName\":\"b\",\"queueId\":0}":5}
//! {a:'x'}                               {"a":"x"}
//! ```
//!
//! One linear pass, output bounded by a constant times the input, depth bounded: a body is hostile until read.
//! Bodies are small and rare beside frames (heartbeats, routes, admin), so they go through serde.
//! Source: DefaultJSONParser and JSONLexerBase of fastjson 1.2.69 and 1.2.83.

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::ser::Serialize;
use serde_json::ser::{CharEscape, CompactFormatter, Formatter, Serializer};
use std::borrow::Cow;
use std::io;

/// Bodies of official peers are four deep.
pub const DEPTH_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    #[error("the body is empty, a JSON document is needed")]
    Empty,
    #[error("the body is the JSON value null, an object is needed")]
    Null,
    #[error("JSON nested deeper than {DEPTH_MAX} levels at byte {position}")]
    TooDeep { position: usize },
    #[error("JSON ends at byte {position}, {wanted} is missing")]
    Truncated { position: usize, wanted: &'static str },
    #[error("JSON is wrong at byte {position}: {wanted} is needed, found byte 0x{found:02x}")]
    Syntax { position: usize, wanted: &'static str, found: u8 },
    /// Well-formed, but not what this body should hold.
    #[error("JSON does not fit: {0}")]
    Mismatch(String),
}

/// Reads a body: as strict JSON, and if it is not that, as fastjson would.
///
/// # Errors
/// [`JsonError::Empty`] and [`JsonError::Null`] for a body that decodes to nothing: a probe's bare request
/// must not look like an object whose members are all absent.
pub fn from_slice<T: DeserializeOwned>(body: &[u8]) -> Result<T, JsonError> {
    match body.trim_ascii() {
        [] => return Err(JsonError::Empty),
        b"null" => return Err(JsonError::Null),
        _ => {}
    }
    if let Ok(value) = serde_json::from_slice(body) {
        return Ok(value);
    }
    serde_json::from_slice(&normalise(body)?).map_err(|error| JsonError::Mismatch(error.to_string()))
}

/// Strict JSON with the meaning of `text`; borrowed when it is strict already.
pub fn to_strict(text: &[u8]) -> Result<Cow<'_, [u8]>, JsonError> {
    if serde_json::from_slice::<IgnoredAny>(text).is_ok() && std::str::from_utf8(text).is_ok() {
        return Ok(Cow::Borrowed(text));
    }
    normalise(text).map(Cow::Owned)
}

fn normalise(text: &[u8]) -> Result<Vec<u8>, JsonError> {
    let text = String::from_utf8_lossy(text);
    let mut normaliser = Normaliser {
        text: text.as_bytes(),
        position: 0,
        out: Vec::with_capacity(text.len() + text.len() / 8),
        in_key: false,
    };
    normaliser.value(0)?;
    normaliser.skip_blanks();
    match normaliser.peek() {
        None => Ok(normaliser.out),
        Some(_) => Err(normaliser.wrong("the end")),
    }
}

/// Strict JSON, compact: integer keys quoted, object keys as string keys.
pub fn to_vec<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value)
        .expect("bodies have no failing serializers and no other keys than text, integer and queue")
}

/// As fastjson writes by default: integer keys and object keys raw. Not legal JSON, and the one form of some
/// bodies that every client reads (wire-protocol 2.4).
pub fn to_vec_java<T: Serialize>(value: &T) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    value
        .serialize(&mut Serializer::with_formatter(&mut out, JavaFormatter { key: Key::None }))
        .expect("bodies have no failing serializers and no other keys than text, integer and queue");
    out
}

struct Normaliser<'a> {
    text: &'a [u8],
    position: usize,
    out: Vec<u8>,
    /// Inside an object that is a key. Such a key inside such a key would double its backslashes at each
    /// level, so it is refused.
    in_key: bool,
}

impl Normaliser<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.position).copied()
    }

    #[cold]
    fn wrong(&self, wanted: &'static str) -> JsonError {
        let position = self.position;
        match self.peek() {
            None => JsonError::Truncated { position, wanted },
            Some(found) => JsonError::Syntax { position, wanted, found },
        }
    }

    fn skip_blanks(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r' | 0x0c | 0x08) = self.peek() {
            self.position += 1;
        }
    }

    /// fastjson takes any number of commas where one may be.
    fn skip_blanks_and_commas(&mut self) {
        self.skip_blanks();
        while self.peek() == Some(b',') {
            self.position += 1;
            self.skip_blanks();
        }
    }

    fn value(&mut self, depth: usize) -> Result<(), JsonError> {
        if depth > DEPTH_MAX {
            return Err(JsonError::TooDeep { position: self.position });
        }
        self.skip_blanks();
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(quote @ (b'"' | b'\'')) => self.string(quote),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b'a'..=b'z' | b'A'..=b'Z') => self.literal(),
            _ => Err(self.wrong("a value")),
        }
    }

    fn object(&mut self, depth: usize) -> Result<(), JsonError> {
        self.position += 1;
        self.out.push(b'{');
        let mut first = true;
        loop {
            self.skip_blanks_and_commas();
            if self.peek() == Some(b'}') {
                self.position += 1;
                self.out.push(b'}');
                return Ok(());
            }
            if !first {
                self.out.push(b',');
            }
            first = false;
            self.key(depth)?;
            self.skip_blanks();
            if self.peek() != Some(b':') {
                return Err(self.wrong("':'"));
            }
            self.position += 1;
            self.out.push(b':');
            self.value(depth + 1)?;
            self.skip_blanks();
            if !matches!(self.peek(), Some(b',' | b'}')) {
                return Err(self.wrong("',' or '}'"));
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<(), JsonError> {
        self.position += 1;
        self.out.push(b'[');
        let mut first = true;
        loop {
            self.skip_blanks_and_commas();
            if self.peek() == Some(b']') {
                self.position += 1;
                self.out.push(b']');
                return Ok(());
            }
            if !first {
                self.out.push(b',');
            }
            first = false;
            self.value(depth + 1)?;
            self.skip_blanks();
            if !matches!(self.peek(), Some(b',' | b']')) {
                return Err(self.wrong("',' or ']'"));
            }
        }
    }

    fn key(&mut self, depth: usize) -> Result<(), JsonError> {
        match self.peek() {
            Some(quote @ (b'"' | b'\'')) => self.string(quote),
            Some(b'{' | b'[') if self.in_key => Err(self.wrong("a key that is no object, inside an object key")),
            Some(b'{' | b'[') => {
                let start = self.out.len();
                self.in_key = true;
                self.value(depth + 1)?;
                self.in_key = false;
                let key = self.out.split_off(start);
                self.out.push(b'"');
                for byte in key {
                    if matches!(byte, b'"' | b'\\') {
                        self.out.push(b'\\');
                    }
                    self.out.push(byte);
                }
                self.out.push(b'"');
                Ok(())
            }
            Some(_) => {
                let rest = &self.text[self.position..];
                let bytes = rest.iter().take_while(|byte| is_bare(**byte)).count();
                if bytes == 0 {
                    return Err(self.wrong("a key"));
                }
                self.out.push(b'"');
                self.out.extend_from_slice(&rest[..bytes]);
                self.out.push(b'"');
                self.position += bytes;
                Ok(())
            }
            None => Err(self.wrong("a key")),
        }
    }

    fn string(&mut self, quote: u8) -> Result<(), JsonError> {
        self.position += 1;
        self.out.push(b'"');
        loop {
            let Some(byte) = self.peek() else {
                return Err(self.wrong("the end of a string"));
            };
            match byte {
                b'\\' => self.escape()?,
                _ if byte == quote => {
                    self.position += 1;
                    self.out.push(b'"');
                    return Ok(());
                }
                b'"' => {
                    self.position += 1;
                    self.out.extend_from_slice(b"\\\"");
                }
                0..0x20 => {
                    self.position += 1;
                    self.push_unit(u32::from(byte));
                }
                _ => {
                    self.position += 1;
                    self.out.push(byte);
                }
            }
        }
    }

    /// At a backslash.
    fn escape(&mut self) -> Result<(), JsonError> {
        self.position += 1;
        let Some(kind) = self.peek() else {
            return Err(self.wrong("an escape"));
        };
        match kind {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.out.extend_from_slice(&[b'\\', kind]),
            b'\'' => self.out.push(b'\''),
            b'0'..=b'7' => self.push_unit(u32::from(kind - b'0')),
            b'v' => self.push_unit(0x0b),
            b'F' => self.push_unit(0x0c),
            b'x' => {
                let unit = self.hex(2)?;
                self.push_unit(unit);
                return Ok(());
            }
            b'u' => {
                let unit = self.hex(4)?;
                return self.surrogates(unit);
            }
            _ => return Err(self.wrong("a known escape")),
        }
        self.position += 1;
        Ok(())
    }

    /// A surrogate without its other half is not legal in strict JSON; Java would keep it, we replace it.
    fn surrogates(&mut self, unit: u32) -> Result<(), JsonError> {
        if !(0xd800..0xe000).contains(&unit) {
            self.push_unit(unit);
            return Ok(());
        }
        if unit < 0xdc00 && self.text[self.position..].starts_with(b"\\u") {
            let mark = self.position;
            self.position += 1;
            let low = self.hex(4)?;
            if (0xdc00..0xe000).contains(&low) {
                self.push_unit(unit);
                self.push_unit(low);
                return Ok(());
            }
            self.position = mark;
        }
        self.push_unit(0xfffd);
        Ok(())
    }

    /// At the letter before `digits` hexadecimal digits.
    fn hex(&mut self, digits: usize) -> Result<u32, JsonError> {
        self.position += 1;
        let mut unit = 0;
        for _ in 0..digits {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            unit = unit * 16 + digit.ok_or_else(|| self.wrong("a hexadecimal digit"))?;
            self.position += 1;
        }
        Ok(unit)
    }

    fn push_unit(&mut self, unit: u32) {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let digit = |shift: u32| HEX[(unit >> shift & 15) as usize];
        self.out.extend_from_slice(&[b'\\', b'u', digit(12), digit(8), digit(4), digit(0)]);
    }

    fn digits(&mut self) -> usize {
        let bytes = self.text[self.position..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.position += bytes;
        bytes
    }

    /// Leading zeros, an empty fraction and Java's type suffixes go.
    fn number(&mut self) -> Result<(), JsonError> {
        if self.peek() == Some(b'-') {
            self.position += 1;
            self.out.push(b'-');
        }
        let start = self.position;
        if self.digits() == 0 {
            return Err(self.wrong("a digit"));
        }
        let zeros = self.text[start..self.position - 1].iter().take_while(|byte| **byte == b'0').count();
        self.out.extend_from_slice(&self.text[start + zeros..self.position]);
        if self.peek() == Some(b'.') {
            self.position += 1;
            let start = self.position;
            if self.digits() > 0 {
                self.out.push(b'.');
                self.out.extend_from_slice(&self.text[start..self.position]);
            }
        }
        if let Some(b'e' | b'E') = self.peek() {
            let start = self.position;
            self.position += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.position += 1;
            }
            if self.digits() == 0 {
                return Err(self.wrong("an exponent"));
            }
            self.out.extend_from_slice(&self.text[start..self.position]);
        } else if let Some(b'L' | b'S' | b'B' | b'F' | b'D') = self.peek() {
            self.position += 1;
        }
        Ok(())
    }

    fn literal(&mut self) -> Result<(), JsonError> {
        let rest = &self.text[self.position..];
        let bytes = rest.iter().take_while(|byte| is_bare(**byte)).count();
        let strict: &[u8] = match &rest[..bytes] {
            b"true" => b"true",
            b"false" => b"false",
            b"null" | b"undefined" | b"NaN" => b"null",
            _ => return Err(self.wrong("a value")),
        };
        self.out.extend_from_slice(strict);
        self.position += bytes;
        Ok(())
    }
}

/// May stand in a key without quotes.
fn is_bare(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'-' | b'.' | b'%' | b'@') || byte >= 0x80
}

/// Writes map keys as fastjson does: integers bare, an object (a key text that opens with a brace) as it is.
struct JavaFormatter {
    key: Key,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Key {
    /// Not in a key.
    None,
    /// In a key of which nothing is written: its first piece decides about quotes.
    Undecided,
    Bare,
    Quoted,
}

impl JavaFormatter {
    fn bare(&mut self) {
        if self.key == Key::Undecided {
            self.key = Key::Bare;
        }
    }
}

impl Formatter for JavaFormatter {
    fn begin_object_key<W: io::Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.key = Key::Undecided;
        if first { Ok(()) } else { writer.write_all(b",") }
    }

    fn end_object_key<W: io::Write + ?Sized>(&mut self, _writer: &mut W) -> io::Result<()> {
        self.key = Key::None;
        Ok(())
    }

    fn begin_string<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        if self.key == Key::None { writer.write_all(b"\"") } else { Ok(()) }
    }

    fn end_string<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        match self.key {
            Key::Bare => Ok(()),
            Key::None | Key::Quoted => writer.write_all(b"\""),
            Key::Undecided => writer.write_all(b"\"\""),
        }
    }

    fn write_i32<W: io::Write + ?Sized>(&mut self, writer: &mut W, value: i32) -> io::Result<()> {
        self.bare();
        CompactFormatter.write_i32(writer, value)
    }

    fn write_i64<W: io::Write + ?Sized>(&mut self, writer: &mut W, value: i64) -> io::Result<()> {
        self.bare();
        CompactFormatter.write_i64(writer, value)
    }

    fn write_u32<W: io::Write + ?Sized>(&mut self, writer: &mut W, value: u32) -> io::Result<()> {
        self.bare();
        CompactFormatter.write_u32(writer, value)
    }

    fn write_u64<W: io::Write + ?Sized>(&mut self, writer: &mut W, value: u64) -> io::Result<()> {
        self.bare();
        CompactFormatter.write_u64(writer, value)
    }

    fn write_string_fragment<W: io::Write + ?Sized>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        if self.key == Key::Undecided {
            if fragment.starts_with('{') {
                self.key = Key::Bare;
            } else {
                self.key = Key::Quoted;
                writer.write_all(b"\"")?;
            }
        }
        writer.write_all(fragment.as_bytes())
    }

    fn write_char_escape<W: io::Write + ?Sized>(&mut self, writer: &mut W, escape: CharEscape) -> io::Result<()> {
        match (self.key, &escape) {
            (Key::Bare, CharEscape::Quote) => return writer.write_all(b"\""),
            (Key::Bare, CharEscape::ReverseSolidus) => return writer.write_all(b"\\"),
            (Key::Undecided, _) => {
                self.key = Key::Quoted;
                writer.write_all(b"\"")?;
            }
            _ => {}
        }
        CompactFormatter.write_char_escape(writer, escape)
    }
}
