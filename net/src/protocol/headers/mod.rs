//! Typed views of extFields, by capability: borrowed, parsed in one pass, nothing allocated.
//!
//! ```text
//! extFields  {"topic":"T","queueId":"3",…}  ->  MaxOffsetHeader { topic: "T", queue_id: 3, committed: true }
//! ```
//!
//! A field is required, optional (`Option`) or has a default; unknown fields are ignored, of two equal
//! names the later wins. Numbers read as Java's `parseInt` and `parseLong` do, booleans as `parseBoolean`:
//! everything but `true` in any case is false. An error names its field, for the remark of the answer.
//! Source: the `*RequestHeader` classes of common (4.9.7) and remoting (5.3.3).

pub mod admin;
pub mod client;
pub mod namesrv;
pub mod offset;
pub mod pull;
pub mod query;
pub mod send;
pub mod transaction;

use std::fmt;
use std::num::IntErrorKind;

/// What a remark repeats of a value it does not like, in characters.
const QUOTED_CHARS_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderError {
    /// As it is named on the wire.
    pub field: &'static str,
    pub problem: HeaderProblem,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderProblem {
    Missing,
    NotANumber { value: String },
    OutOfRange { value: String, bits: u32 },
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = self.field;
        match &self.problem {
            HeaderProblem::Missing => write!(f, "request header field {field} is missing"),
            HeaderProblem::NotANumber { value } => {
                write!(f, "request header field {field} is not a number: '{value}'")
            }
            HeaderProblem::OutOfRange { value, bits } => {
                write!(f, "request header field {field} does not fit {bits} bits: '{value}'")
            }
        }
    }
}

impl std::error::Error for HeaderError {}

pub(crate) fn missing(field: &'static str) -> HeaderError {
    HeaderError { field, problem: HeaderProblem::Missing }
}

/// A type that an ext field's text can stand for.
pub(crate) trait FieldValue<'a>: Sized {
    fn read(field: &'static str, text: &'a str) -> Result<Self, HeaderError>;
}

impl<'a> FieldValue<'a> for &'a str {
    fn read(_field: &'static str, text: &'a str) -> Result<Self, HeaderError> {
        Ok(text)
    }
}

impl FieldValue<'_> for bool {
    fn read(_field: &'static str, text: &str) -> Result<Self, HeaderError> {
        Ok(text.eq_ignore_ascii_case("true"))
    }
}

impl FieldValue<'_> for i32 {
    fn read(field: &'static str, text: &str) -> Result<Self, HeaderError> {
        text.parse().map_err(|error: std::num::ParseIntError| bad_number(field, text, error.kind(), 32))
    }
}

impl FieldValue<'_> for i64 {
    fn read(field: &'static str, text: &str) -> Result<Self, HeaderError> {
        text.parse().map_err(|error: std::num::ParseIntError| bad_number(field, text, error.kind(), 64))
    }
}

#[cold]
fn bad_number(field: &'static str, text: &str, kind: &IntErrorKind, bits: u32) -> HeaderError {
    let value = text.chars().take(QUOTED_CHARS_MAX).collect();
    let problem = match kind {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => HeaderProblem::OutOfRange { value, bits },
        _ => HeaderProblem::NotANumber { value },
    };
    HeaderError { field, problem }
}

pub(crate) fn required<'a, T: FieldValue<'a>>(field: &'static str, text: Option<&'a str>) -> Result<T, HeaderError> {
    T::read(field, text.ok_or_else(|| missing(field))?)
}

pub(crate) fn optional<'a, T: FieldValue<'a>>(
    field: &'static str,
    text: Option<&'a str>,
) -> Result<Option<T>, HeaderError> {
    text.map(|text| T::read(field, text)).transpose()
}

pub(crate) fn or<'a, T: FieldValue<'a>>(
    field: &'static str,
    text: Option<&'a str>,
    default: T,
) -> Result<T, HeaderError> {
    Ok(optional(field, text)?.unwrap_or(default))
}

/// Declares a header: `name: type = "wire name", required | optional | or(default);`
/// `parse` finds all fields in one pass over the ext fields, then reads their values.
macro_rules! header {
    (@type required $type:ty) => { $type };
    (@type optional $type:ty) => { Option<$type> };
    (@type or $type:ty) => { $type };
    ($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty = $wire:literal, $kind:ident $(($default:expr))?;)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name<'a> {
            $($(#[$field_meta])* pub $field: crate::protocol::headers::header!(@type $kind $type),)+
        }

        impl<'a> $name<'a> {
            pub fn parse(
                ext: &crate::protocol::command::ExtFields<'a>,
            ) -> Result<Self, crate::protocol::headers::HeaderError> {
                $(let mut $field: Option<&'a str> = None;)+
                for &(key, value) in &ext.fields {
                    match key {
                        $($wire => $field = Some(value),)+
                        _ => {}
                    }
                }
                Ok(Self { $($field: crate::protocol::headers::$kind($wire, $field $(, $default)?)?,)+ })
            }
        }
    };
}
pub(crate) use header;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_java_reads_them() {
        // text, i32
        for (text, want) in [
            ("0", Some(0)),
            ("+7", Some(7)),
            ("-7", Some(-7)),
            ("007", Some(7)),
            ("2147483647", Some(i32::MAX)),
            ("-2147483648", Some(i32::MIN)),
        ] {
            assert_eq!(i32::read("f", text).ok(), want, "{text:?}");
        }
        for text in ["", " ", "1 ", " 1", "+", "-", "1.0", "0x1", "1e3", "null", "--1"] {
            let error = i32::read("queueId", text).unwrap_err();
            assert_eq!(error.problem, HeaderProblem::NotANumber { value: text.into() }, "{text:?}");
            assert!(error.to_string().contains("queueId"), "{error}");
        }
        assert_eq!(
            i32::read("f", "2147483648").unwrap_err().problem,
            HeaderProblem::OutOfRange { value: "2147483648".into(), bits: 32 }
        );
        assert_eq!(i64::read("f", "2147483648"), Ok(2_147_483_648));
        assert!(i64::read("f", "9223372036854775808").is_err());
    }

    #[test]
    fn only_true_is_true() {
        for (text, want) in [
            ("true", true),
            ("TRUE", true),
            ("tRuE", true),
            ("1", false),
            ("", false),
            ("yes", false),
            (" true", false),
        ] {
            assert_eq!(bool::read("f", text), Ok(want), "{text:?}");
        }
    }

    #[test]
    fn a_remark_does_not_repeat_a_megabyte() {
        let error = i64::read("offset", &"x".repeat(1 << 20)).unwrap_err();
        assert!(error.to_string().len() < 200);
    }
}
