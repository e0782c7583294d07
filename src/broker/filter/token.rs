//! An expression's words.
//!
//! ```text
//! name     [A-Za-z_$][A-Za-z0-9_$]*, unless it is a keyword in any case
//! whole    0 | [1-9][0-9]* [Ll]?             007 is 0, 0 and 7
//! point    1.5  1.  .5  1e3                  with e or E, signed
//! text     '…', a quote in it doubled
//! between  blank, tab, line ends, form feed, /* … */, and -- up to a line end, without which it is two signs
//! ```
//! Words are cut when they are asked for: what lies behind the first word after a whole expression is never looked at,
//! as in Java. Source: SelectorParser.jj (4.9.7, 5.3.3).

use super::Fault;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Not,
    And,
    Or,
    Between,
    In,
    True,
    False,
    Null,
    Is,
    Contains,
    StartsWith,
    EndsWith,
    Whole,
    Point,
    Text,
    Name,
    Equal,
    NotEqual,
    Greater,
    GreaterEqual,
    Less,
    LessEqual,
    Open,
    Comma,
    Close,
    Plus,
    Minus,
    End,
}

const KEYWORDS: [(&str, Kind); 12] = [
    ("NOT", Kind::Not),
    ("AND", Kind::And),
    ("OR", Kind::Or),
    ("BETWEEN", Kind::Between),
    ("IN", Kind::In),
    ("TRUE", Kind::True),
    ("FALSE", Kind::False),
    ("NULL", Kind::Null),
    ("IS", Kind::Is),
    ("CONTAINS", Kind::Contains),
    ("STARTSWITH", Kind::StartsWith),
    ("ENDSWITH", Kind::EndsWith),
];

/// A word and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    pub kind: Kind,
    pub text: &'a str,
    /// In the expression, in bytes.
    pub position: usize,
}

pub struct Tokens<'a> {
    text: &'a str,
    position: usize,
}

impl<'a> Tokens<'a> {
    pub fn new(text: &'a str) -> Tokens<'a> {
        Tokens { text, position: 0 }
    }

    /// Line and column of `position`, both from 1.
    pub fn fault(&self, position: usize, what: impl Into<String>) -> Fault {
        let before = &self.text[..position];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
        Fault { line, column, what: what.into() }
    }

    pub fn next(&mut self) -> Result<Token<'a>, Fault> {
        self.skip()?;
        let position = self.position;
        let rest = &self.text.as_bytes()[position..];
        let Some(&first) = rest.first() else { return Ok(Token { kind: Kind::End, text: "", position }) };
        let (kind, bytes) = match (first, rest.get(1)) {
            (b'<', Some(b'>')) => (Kind::NotEqual, 2),
            (b'<', Some(b'=')) => (Kind::LessEqual, 2),
            (b'>', Some(b'=')) => (Kind::GreaterEqual, 2),
            (b'<', _) => (Kind::Less, 1),
            (b'>', _) => (Kind::Greater, 1),
            (b'=', _) => (Kind::Equal, 1),
            (b'(', _) => (Kind::Open, 1),
            (b',', _) => (Kind::Comma, 1),
            (b')', _) => (Kind::Close, 1),
            (b'+', _) => (Kind::Plus, 1),
            (b'-', _) => (Kind::Minus, 1),
            (b'\'', _) => match text_bytes(rest) {
                Some(bytes) => (Kind::Text, bytes),
                None => return Err(self.fault(position, "the string that begins here has no closing quote")),
            },
            (b'0'..=b'9' | b'.', _) => match number(rest) {
                Some(found) => found,
                None => return Err(self.fault(position, "'.' is no number")),
            },
            (first, _) if is_name(first) => {
                let bytes = rest.iter().position(|&byte| !is_name(byte) && !byte.is_ascii_digit());
                (Kind::Name, bytes.unwrap_or(rest.len()))
            }
            _ => {
                let found = self.text[position..].chars().next().unwrap_or(' ');
                return Err(self.fault(position, format!("{found:?} is nothing an expression can have")));
            }
        };
        self.position += bytes;
        let text = &self.text[position..self.position];
        let keyword = |(word, _): &&(&str, Kind)| word.eq_ignore_ascii_case(text);
        let kind = match kind {
            Kind::Name => KEYWORDS.iter().find(keyword).map_or(Kind::Name, |(_, kind)| *kind),
            kind => kind,
        };
        Ok(Token { kind, text, position })
    }

    /// Passes over blanks and comments.
    fn skip(&mut self) -> Result<(), Fault> {
        let bytes = self.text.as_bytes();
        loop {
            let rest = &bytes[self.position..];
            match rest {
                [b' ' | b'\t' | b'\n' | b'\r' | b'\x0c', ..] => self.position += 1,
                [b'-', b'-', ..] => match rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
                    Some(end) => self.position += end + 1,
                    None => return Ok(()),
                },
                [b'/', b'*', inner @ ..] => match inner.windows(2).position(|pair| pair == b"*/") {
                    Some(end) => self.position += 2 + end + 2,
                    None => return Err(self.fault(self.position, "the comment that begins here has no end")),
                },
                _ => return Ok(()),
            }
        }
    }
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte == b'$'
}

/// Up to and with the closing quote; a doubled one is none, unless no other follows.
fn text_bytes(rest: &[u8]) -> Option<usize> {
    let mut at = 1;
    let mut doubled = None;
    while let Some(quote) = rest[at..].iter().position(|&byte| byte == b'\'') {
        at += quote + 1;
        if rest.get(at) != Some(&b'\'') {
            return Some(at);
        }
        doubled = Some(at);
        at += 1;
    }
    doubled
}

fn digits(rest: &[u8]) -> usize {
    rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len())
}

/// Bytes of an exponent, 0 where there is none.
fn exponent(rest: &[u8]) -> usize {
    let (sign, more) = match rest {
        [b'e' | b'E', b'+' | b'-', more @ ..] => (1, more),
        [b'e' | b'E', more @ ..] => (0, more),
        _ => return 0,
    };
    match digits(more) {
        0 => 0,
        count => 1 + sign + count,
    }
}

fn number(rest: &[u8]) -> Option<(Kind, usize)> {
    let whole = digits(rest);
    let tail = &rest[whole..];
    if let [b'.', fraction @ ..] = tail {
        let count = digits(fraction);
        return (whole + count > 0).then(|| (Kind::Point, whole + 1 + count + exponent(&fraction[count..])));
    }
    Some(match (exponent(tail), rest[0], tail.first()) {
        (0, b'0', _) => (Kind::Whole, 1),
        (0, _, Some(b'l' | b'L')) => (Kind::Whole, whole + 1),
        (0, _, _) => (Kind::Whole, whole),
        (bytes, _, _) => (Kind::Point, whole + bytes),
    })
}
