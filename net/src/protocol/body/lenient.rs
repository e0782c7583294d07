//! Reading members the way fastjson casts them.

use serde::de::{Deserialize, Deserializer, Error, Visitor};
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

/// A number, or a number in quotes; null and an empty text are 0.
pub fn number<'de, D: Deserializer<'de>, T: Number>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_any(NumberVisitor(PhantomData))
}

/// As [`number`], and null is none.
pub fn number_or_none<'de, D: Deserializer<'de>, T: Number>(deserializer: D) -> Result<Option<T>, D::Error> {
    struct Quotable<T>(T);
    impl<'de, T: Number> Deserialize<'de> for Quotable<T> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            number(deserializer).map(Quotable)
        }
    }
    Ok(Option::<Quotable<T>>::deserialize(deserializer)?.map(|quotable| quotable.0))
}

/// As [`number`], and null is what the member has when it is absent.
pub fn number_or<'de, D: Deserializer<'de>, T: Number + From<i32>, const ABSENT: i32>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(number_or_none(deserializer)?.unwrap_or_else(|| ABSENT.into()))
}

/// As [`flag`], and null is true.
pub fn flag_or_true<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    struct Flag(bool);
    impl<'de> Deserialize<'de> for Flag {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            flag(deserializer).map(Flag)
        }
    }
    Ok(Option::<Flag>::deserialize(deserializer)?.is_none_or(|flag| flag.0))
}

/// true, 1, "true" in any case and "1" are true; all else is false.
pub fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    let text = text(deserializer)?;
    Ok(text == "1" || text.eq_ignore_ascii_case("true"))
}

/// A string, or a number or boolean taken as text; null is empty.
pub fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    deserializer.deserialize_any(TextVisitor)
}

/// null is the default: of a list, an empty one.
pub fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

pub trait Number: Default + FromStr + TryFrom<i64> + TryFrom<u64> {}
impl Number for i32 {}
impl Number for i64 {}

struct NumberVisitor<T>(PhantomData<T>);

impl<T: Number> Visitor<'_> for NumberVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an integer")
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<T, E> {
        value.try_into().map_err(|_| E::custom(format_args!("integer {value} is out of range")))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<T, E> {
        value.try_into().map_err(|_| E::custom(format_args!("integer {value} is out of range")))
    }

    /// fastjson cuts a fraction off; the cast saturates.
    fn visit_f64<E: Error>(self, value: f64) -> Result<T, E> {
        self.visit_i64(value as i64)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<T, E> {
        if value.is_empty() {
            return Ok(T::default());
        }
        value.parse().map_err(|_| E::custom(format_args!("'{value}' is not an integer")))
    }

    fn visit_unit<E: Error>(self) -> Result<T, E> {
        Ok(T::default())
    }
}

struct TextVisitor;

impl Visitor<'_> for TextVisitor {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<String, E> {
        Ok(value.to_owned())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<String, E> {
        Ok(value)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_unit<E: Error>(self) -> Result<String, E> {
        Ok(String::new())
    }
}
