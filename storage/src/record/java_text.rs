//! Text as Java sees it: `String.hashCode`, and UTF-16 decoded from bytes that may not be UTF-8.
//!
//! The hash of a message's TAGS is stored in the consume queue and compared by every reader, so it must come out as Java's
//! for any bytes a client sends. Java's decoder replaces what is malformed, but in other portions than Rust's
//! `from_utf8_lossy` (a UTF-8-encoded surrogate gives one U+FFFD in Java and three in Rust), hence this decoder.
//! Source: String.java (decoding with UTF_8 and replacement); the sums in the test were printed by OpenJDK 17.

const REPLACEMENT: u16 = 0xFFFD;

/// `java.lang.String.hashCode` over UTF-16 units.
pub fn java_hash(text: &str) -> i32 {
    if text.is_ascii() {
        return hash_units(text.bytes().map(u16::from));
    }
    hash_units(text.encode_utf16())
}

/// The hash of the string that Java makes of these bytes (`new String(bytes, UTF_8).hashCode()`).
pub fn java_hash_bytes(bytes: &[u8]) -> i32 {
    java_hash_on(0, bytes)
}

/// The hash of a text that goes on with `bytes`, where `hash` is that of its beginning.
pub fn java_hash_on(hash: i32, bytes: &[u8]) -> i32 {
    if bytes.is_ascii() {
        return hash_ascii_on(hash, bytes);
    }
    let mut hash = hash;
    decode(bytes, |unit| hash = step(hash, unit));
    hash
}

/// Four steps at once: each multiplication waits for the one before, and keys are hashed by the million.
fn hash_ascii_on(hash: i32, bytes: &[u8]) -> i32 {
    const P2: i32 = 31 * 31;
    const P3: i32 = P2 * 31;
    const P4: i32 = P3 * 31;
    let (fours, rest) = bytes.as_chunks::<4>();
    let hash = fours.iter().fold(hash, |hash, [a, b, c, d]| {
        let sum = i32::from(*a) * P3 + i32::from(*b) * P2 + i32::from(*c) * 31 + i32::from(*d);
        hash.wrapping_mul(P4).wrapping_add(sum)
    });
    rest.iter().fold(hash, |hash, byte| step(hash, u16::from(*byte)))
}

fn step(hash: i32, unit: u16) -> i32 {
    hash.wrapping_mul(31).wrapping_add(i32::from(unit))
}

fn hash_units(units: impl Iterator<Item = u16>) -> i32 {
    units.fold(0, step)
}

/// Gives every UTF-16 unit of the string that Java decodes from `bytes`.
fn decode(bytes: &[u8], mut unit: impl FnMut(u16)) {
    let mut at = 0;
    while at < bytes.len() {
        match decode_one(&bytes[at..]) {
            (Some(c), used) => {
                c.encode_utf16(&mut [0; 2]).iter().for_each(|&u| unit(u));
                at += used;
            }
            (None, used) => {
                unit(REPLACEMENT);
                at += used;
            }
        }
    }
}

/// The character at the start of `rest` and its bytes, or `None` and how many bytes one replacement stands for.
fn decode_one(rest: &[u8]) -> (Option<char>, usize) {
    let lead = rest[0];
    let tail = |i: usize| rest.get(i).copied();
    let is_tail = |b: u8| b & 0xC0 == 0x80;
    let bits = |b: u8| u32::from(b & 0x3F);
    match lead {
        0..=0x7F => (Some(char::from(lead)), 1),
        0xC2..=0xDF => match tail(1) {
            Some(b) if is_tail(b) => (char::from_u32(u32::from(lead & 0x1F) << 6 | bits(b)), 2),
            _ => (None, 1),
        },
        0xE0..=0xEF => match (tail(1), tail(2)) {
            (Some(b), _) if !is_tail(b) || (lead == 0xE0 && b & 0xE0 == 0x80) => (None, 1),
            // A surrogate comes out as `None`: one replacement for all three bytes.
            (Some(b), Some(c)) if is_tail(c) => {
                (char::from_u32(u32::from(lead & 0x0F) << 12 | bits(b) << 6 | bits(c)), 3)
            }
            (Some(_), _) => (None, 2),
            (None, _) => (None, 1),
        },
        0xF0..=0xF4 => match (tail(1), tail(2), tail(3)) {
            (Some(b), ..) if !is_tail(b) || (lead == 0xF0 && b < 0x90) || (lead == 0xF4 && b > 0x8F) => (None, 1),
            (Some(b), Some(c), Some(d)) if is_tail(c) && is_tail(d) => {
                (char::from_u32(u32::from(lead & 0x07) << 18 | bits(b) << 12 | bits(c) << 6 | bits(d)), 4)
            }
            (Some(_), Some(c), _) if is_tail(c) => (None, 3),
            (Some(_), ..) => (None, 2),
            (None, ..) => (None, 1),
        },
        _ => (None, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_of_the_fixtures() {
        for (text, want) in [
            ("", 0),
            ("d", 100),
            ("TagA", 2598919),
            ("TagB", 2598920),
            ("标签-雪", 823785204),
            ("polygenelubricants", i32::MIN),
            ("\u{1F600}", 1772899),
        ] {
            assert_eq!(java_hash(text), want, "{text}");
            assert_eq!(java_hash_bytes(text.as_bytes()), want, "{text}");
        }
    }

    #[test]
    fn a_hash_goes_on_where_another_ended() {
        for text in ["", "a", "topic#key", "polygenelubricants", "标签-雪 and more", "\u{1F600}\u{1F600}xyz0123456789"]
        {
            for at in (0..=text.len()).filter(|at| text.is_char_boundary(*at)) {
                let (begin, rest) = text.split_at(at);
                assert_eq!(java_hash_on(java_hash(begin), rest.as_bytes()), java_hash(text), "{text} at {at}");
            }
        }
        assert_eq!(java_hash_on(7, b"\xff"), java_hash_on(7, "\u{FFFD}".as_bytes()));
    }

    /// Every string of up to four of these bytes, which border all cases of Java's decoder. The sums come from
    /// `acc = acc * 31 + new String(bytes, UTF_8).hashCode()`, first byte counting fastest.
    #[test]
    fn malformed_text_hashes_as_in_java() {
        const BYTES: [u8; 23] = [
            0x41, 0x01, 0x7f, 0x80, 0xbf, 0xc0, 0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xed, 0xef, 0xf0, 0xf1, 0xf4, 0xf5, 0xf8,
            0xff, 0x8f, 0x90, 0x9f, 0xa0,
        ];
        for (count, want) in [(1usize, -399498401), (2, -867383706), (3, -1672019557), (4, 197737698)] {
            let mut sum = 0i32;
            let mut text = [0; 4];
            for number in 0..BYTES.len().pow(count as u32) {
                let mut rest = number;
                for byte in &mut text[..count] {
                    *byte = BYTES[rest % BYTES.len()];
                    rest /= BYTES.len();
                }
                sum = sum.wrapping_mul(31).wrapping_add(java_hash_bytes(&text[..count]));
            }
            assert_eq!(sum, want, "{count} bytes");
        }
    }
}
