//! Texts as numbers, as Java reads them: `Integer.valueOf`, `Long.valueOf`, `Double.valueOf`.
//!
//! Digits other than 0 to 9, which Java takes in whole numbers, are none here.

/// `Long.valueOf`: one sign and digits, nothing else.
pub fn long(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] | digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    // Downwards: the smallest number has no positive counterpart.
    let mut value = 0_i64;
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_sub(i64::from(digit))?;
    }
    if is_negative { Some(value) } else { value.checked_neg() }
}

/// `Integer.valueOf`.
pub fn int(text: &[u8]) -> Option<i32> {
    i32::try_from(long(text)?).ok()
}

/// `Double.valueOf`: blanks around, `NaN`, `Infinity`, decimal or hexadecimal, a last `d` or `f`.
pub fn double(text: &[u8]) -> Option<f64> {
    if let Some(value) = short(text) {
        return Some(value);
    }
    // Java's `trim`.
    let begin = text.iter().position(|&byte| byte > b' ')?;
    let end = text.iter().rposition(|&byte| byte > b' ')? + 1;
    let (is_negative, rest) = match &text[begin..end] {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] | rest => (false, rest),
    };
    let value = match rest {
        b"NaN" => f64::NAN,
        b"Infinity" => f64::INFINITY,
        [b'0', b'x' | b'X', hex @ ..] => hexadecimal(without_suffix(hex))?,
        _ => {
            let digits = without_suffix(rest);
            // Rust knows more names than Java.
            let is_plain = digits.iter().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(byte));
            let is_unsigned = digits.first().is_some_and(|byte| byte.is_ascii_digit() || *byte == b'.');
            if !is_plain || !is_unsigned {
                return None;
            }
            str::from_utf8(digits).ok()?.parse().ok()?
        }
    };
    Some(if is_negative { -value } else { value })
}

/// What most numbers are: up to 15 digits, perhaps with a point. Both parts are whole doubles, so their quotient is the
/// nearest one.
fn short(text: &[u8]) -> Option<f64> {
    const POWERS: [f64; 16] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];
    if text.len() > POWERS.len() {
        return None;
    }
    let mut mantissa = 0_u64;
    let mut point_at = None;
    for (index, &byte) in text.iter().enumerate() {
        match byte {
            b'0'..=b'9' => mantissa = mantissa * 10 + u64::from(byte - b'0'),
            b'.' if point_at.is_none() => point_at = Some(index),
            _ => return None,
        }
    }
    let digits = text.len() - usize::from(point_at.is_some());
    let fraction = point_at.map_or(0, |at| text.len() - 1 - at);
    (1..POWERS.len()).contains(&digits).then(|| mantissa as f64 / POWERS[fraction])
}

fn without_suffix(text: &[u8]) -> &[u8] {
    match text {
        [rest @ .., b'd' | b'D' | b'f' | b'F'] => rest,
        _ => text,
    }
}

/// `h.hhh p exponent` behind the 0x; the exponent must be there.
fn hexadecimal(text: &[u8]) -> Option<f64> {
    let power_at = text.iter().position(|byte| matches!(byte, b'p' | b'P'))?;
    let (digits, power) = (&text[..power_at], &text[power_at + 1..]);
    let power = match long(power) {
        Some(power) => power,
        // Too far to matter how far.
        None if power.len() > 18 && power[1..].iter().all(u8::is_ascii_digit) => {
            if power[0] == b'-' {
                i64::MIN / 4
            } else {
                i64::MAX / 4
            }
        }
        None => return None,
    };
    let point_at = digits.iter().position(|&byte| byte == b'.');
    let mut mantissa = 0_u64;
    let mut shift = 0_i64;
    let mut count = 0;
    for (index, &byte) in digits.iter().enumerate() {
        if Some(index) == point_at {
            continue;
        }
        let digit = u64::from(char::from(byte).to_digit(16)?);
        count += 1;
        let is_fraction = point_at.is_some_and(|at| index > at);
        if mantissa >> 60 == 0 {
            mantissa = mantissa << 4 | digit;
            shift -= if is_fraction { 4 } else { 0 };
        } else {
            // Beyond 60 bits a digit only says whether the number is exact.
            mantissa |= u64::from(digit != 0);
            shift += if is_fraction { 0 } else { 4 };
        }
    }
    if count == 0 {
        return None;
    }
    let power = (power + shift).clamp(-3000, 3000) as i32;
    // In three steps none of which leaves the range before the last one does.
    let step = |power: i32| 2_f64.powi(power.clamp(-1000, 1000));
    let (first, rest) = (power.clamp(-1000, 1000), power - power.clamp(-1000, 1000));
    Some(mantissa as f64 * step(first) * step(rest) * step(rest - rest.clamp(-1000, 1000)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_as_java_reads_them() {
        for (text, want) in [
            ("0", Some(0)),
            ("+7", Some(7)),
            ("-7", Some(-7)),
            ("007", Some(7)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("", None),
            ("+", None),
            ("-", None),
            ("+-1", None),
            (" 1", None),
            ("1L", None),
            ("1.0", None),
            ("0x10", None),
        ] {
            assert_eq!(long(text.as_bytes()), want, "{text:?}");
        }
        assert_eq!(int(b"2147483647"), Some(i32::MAX));
        assert_eq!(int(b"2147483648"), None);
        assert_eq!(int(b"-2147483648"), Some(i32::MIN));
    }

    #[test]
    fn doubles_as_java_reads_them() {
        for (text, want) in [
            ("1", Some(1.0)),
            (" \t1.5\n", Some(1.5)),
            ("1.", Some(1.0)),
            ("129.95", Some(129.95)),
            ("0.000000000001", Some(1e-12)),
            ("999999999999999", Some(999_999_999_999_999.0)),
            ("9999999999999999", Some(9_999_999_999_999_999.0)),
            ("0.1.2", None),
            (".5", Some(0.5)),
            ("-1e3", Some(-1000.0)),
            ("1d", Some(1.0)),
            ("1.5F", Some(1.5)),
            ("Infinity", Some(f64::INFINITY)),
            ("-Infinity", Some(f64::NEG_INFINITY)),
            ("1e999", Some(f64::INFINITY)),
            ("0x1p3", Some(8.0)),
            ("-0X1.8p1f", Some(-3.0)),
            ("0x.8p0", Some(0.5)),
            ("0x123456789abcdef01p0", Some(0x0001_2345_6789_abcd_ef01_u128 as f64)),
            ("0x1p-1074", Some(f64::from_bits(1))),
            ("0x1p9999", Some(f64::INFINITY)),
            ("0x1p-99999999999999999999", Some(0.0)),
            ("0x10", None),
            ("0xp1", None),
            ("", None),
            (" ", None),
            (".", None),
            ("+-1", None),
            ("--1", None),
            ("e5", None),
            ("inf", None),
            ("nan", None),
            ("infinity", None),
            ("1_000", None),
            ("1 2", None),
            ("1dd", None),
        ] {
            assert_eq!(double(text.as_bytes()), want, "{text:?}");
        }
        assert!(double(b"NaN").unwrap().is_nan());
    }
}
