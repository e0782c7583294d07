//! Looking for the few bytes of a JSON text that mean something, eight at a time.

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// The high bit of each zero byte. Bits above the lowest one may be wrong, the lowest never is.
fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(LOW) & !word & HIGH
}

/// Position of the first `quote` or backslash at or after `from`.
#[inline]
pub fn quote_or_backslash(bytes: &[u8], from: usize, quote: u8) -> Option<usize> {
    let quotes = LOW * u64::from(quote);
    let backslashes = LOW * u64::from(b'\\');
    let mut position = from;
    while let Some(chunk) = bytes.get(position..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*chunk);
        let hits = zero_bytes(word ^ quotes) | zero_bytes(word ^ backslashes);
        if hits != 0 {
            return Some(position + (hits.trailing_zeros() / 8) as usize);
        }
        position += 8;
    }
    let rest = bytes.get(position..)?;
    let index = rest.iter().position(|byte| *byte == quote || *byte == b'\\');
    index.map(|index| position + index)
}

/// Position of the first byte that JSON text in double quotes must escape.
#[inline]
pub fn must_escape(bytes: &[u8]) -> Option<usize> {
    let quotes = LOW * u64::from(b'"');
    let backslashes = LOW * u64::from(b'\\');
    let mut position = 0;
    while let Some(chunk) = bytes.get(position..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*chunk);
        // Below 0x20: subtracting 0x20 borrows, unless the byte's own high bit is set.
        let controls = word.wrapping_sub(LOW * 0x20) & !word & HIGH;
        let hits = controls | zero_bytes(word ^ quotes) | zero_bytes(word ^ backslashes);
        if hits != 0 {
            return Some(position + (hits.trailing_zeros() / 8) as usize);
        }
        position += 8;
    }
    let rest = bytes.get(position..)?;
    let index = rest.iter().position(|byte| matches!(byte, 0..0x20 | b'"' | b'\\'));
    index.map(|index| position + index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn both_agree_with_a_plain_loop(
            bytes in proptest::collection::vec(any::<u8>(), 0..40),
            from in 0usize..40,
        ) {
            let plain = (from..bytes.len()).find(|index| matches!(bytes[*index], b'\'' | b'\\'));
            prop_assert_eq!(quote_or_backslash(&bytes, from, b'\''), plain);
            let plain = bytes.iter().position(|byte| matches!(byte, 0..0x20 | b'"' | b'\\'));
            prop_assert_eq!(must_escape(&bytes), plain);
        }

        #[test]
        fn also_where_hits_are_rare(text in "[a-z !#é\u{1f}\u{7f}]{0,40}") {
            let plain = text.bytes().position(|byte| matches!(byte, 0..0x20 | b'"' | b'\\'));
            prop_assert_eq!(must_escape(text.as_bytes()), plain);
        }
    }
}
