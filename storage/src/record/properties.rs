//! A message's properties: one text of pairs, searched where it lies.
//!
//! ```text
//! name 0x01 value 0x02 name 0x01 value [0x02]
//! ```
//! A reader ignores a piece without name, without value or without 0x01; the value goes up to the 0x02, further 0x01
//! included; of two equal names the later wins; order has no meaning. The text is never rewritten into a canonical form:
//! Java's broker does that (in the order of its hash map, malformed pieces dropped), but no reader can tell, and a
//! consumer gets the client's bytes. What 4.9.7 does to it and readers can tell is kept: WAIT is taken out of the text of
//! a plain send, CLUSTER is added, no 0x02 at the end.
//! Source: MessageDecoder.string2messageProperties, SendMessageProcessor.java (4.9.7).

use super::java_text::java_hash_bytes;
use smallvec::SmallVec;
use std::ops::Range;

pub const NAME_END: u8 = 1;
pub const PAIR_END: u8 = 2;

pub const TAGS: &str = "TAGS";
pub const KEYS: &str = "KEYS";
pub const UNIQ_KEY: &str = "UNIQ_KEY";
pub const WAIT: &str = "WAIT";
pub const DELAY: &str = "DELAY";
pub const CLUSTER: &str = "CLUSTER";
/// Where a delayed or a half message goes in the end.
pub const REAL_TOPIC: &str = "REAL_TOPIC";
pub const REAL_QID: &str = "REAL_QID";
/// Where a message came from that was sent back, and which one it was at first.
pub const RETRY_TOPIC: &str = "RETRY_TOPIC";
pub const ORIGIN_MESSAGE_ID: &str = "ORIGIN_MESSAGE_ID";
/// `true`: a half message.
pub const TRAN_MSG: &str = "TRAN_MSG";
/// The group whose producers can end it.
pub const PGROUP: &str = "PGROUP";
/// How often they were asked.
pub const TRANSACTION_CHECK_TIMES: &str = "TRANSACTION_CHECK_TIMES";
/// Seconds before they are asked for the first time.
pub const CHECK_IMMUNITY: &str = "CHECK_IMMUNITY_TIME_IN_SECONDS";

pub const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";

/// `messageDelayLevel` when nothing is set: 1s 5s 10s 30s 1m … 10m 20m 30m 1h 2h.
pub const DELAYS_MS: [i64; 18] = [
    1_000, 5_000, 10_000, 30_000, 60_000, 120_000, 180_000, 240_000, 300_000, 360_000, 420_000, 480_000, 540_000,
    600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000,
];

/// One stretch of the text, up to and with its 0x02.
struct Piece<'a> {
    bytes: &'a [u8],
    pair: Option<(&'a [u8], &'a [u8])>,
}

fn pieces(mut text: &[u8]) -> impl Iterator<Item = Piece<'_>> {
    std::iter::from_fn(move || {
        if text.is_empty() {
            return None;
        }
        let end = pair_end(text);
        let name_end = text[..end].iter().position(|&byte| byte == NAME_END);
        let pair = name_end.filter(|&at| at > 0 && at + 1 < end).map(|at| (&text[..at], &text[at + 1..end]));
        let (bytes, rest) = text.split_at((end + 1).min(text.len()));
        text = rest;
        Some(Piece { bytes, pair })
    })
}

/// Place of the first 0x02, or the length. Eight bytes at a time: every message is searched several times.
fn pair_end(text: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 0xFF;
    const HIGHS: u64 = ONES << 7;
    let (words, rest) = text.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let zero_if_end = u64::from_le_bytes(*word) ^ (ONES * PAIR_END as u64);
        // The lowest bit set is that of the first zero byte; higher ones may be set falsely.
        let ends = zero_if_end.wrapping_sub(ONES) & !zero_if_end & HIGHS;
        if ends != 0 {
            return index * 8 + ends.trailing_zeros() as usize / 8;
        }
    }
    let at = rest.iter().position(|&byte| byte == PAIR_END);
    words.len() * 8 + at.unwrap_or(rest.len())
}

/// Every pair a reader sees, in order, duplicates included.
pub fn pairs(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    pieces(text).filter_map(|piece| piece.pair)
}

/// The same, each with the place of its stretch of the text, 0x02 included.
pub fn placed_pairs(text: &[u8]) -> impl Iterator<Item = (Range<usize>, &[u8], &[u8])> {
    let mut at = 0;
    pieces(text).filter_map(move |piece| {
        let start = at;
        at += piece.bytes.len();
        piece.pair.map(|(name, value)| (start..at, name, value))
    })
}

/// The value of `name`.
pub fn get<'a>(text: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let [value] = get_each(text, [name]);
    value
}

/// The values of several names, none of them empty, by one pass over the text.
pub fn get_each<'a, const N: usize>(text: &'a [u8], names: [&str; N]) -> [Option<&'a [u8]>; N] {
    let mut values = [None; N];
    for (name, value) in pairs(text) {
        for (wanted, found) in names.iter().zip(&mut values) {
            // Names of one length are many, and a call to compare them costs more than all the rest.
            if name[0] == wanted.as_bytes()[0] && name == wanted.as_bytes() {
                *found = Some(value);
            }
        }
    }
    values
}

/// Whether the sender's answer waits for the flush and the slave that the flush mode and the role promise: WAIT, read as
/// `Boolean.parseBoolean` reads it; `true` when absent.
pub fn wants_wait(text: &[u8]) -> bool {
    get(text, WAIT).is_none_or(|value| value.eq_ignore_ascii_case(b"true"))
}

/// Whether a pair put behind `text` needs a 0x02 before it.
pub fn needs_separator(text: &[u8]) -> bool {
    text.last().is_some_and(|&last| last != PAIR_END)
}

/// A properties text in pieces, to be joined as they are.
pub type Pieces<'a> = SmallVec<[&'a [u8]; 4]>;

/// The text without the pairs called `name`, in as few pieces as possible; it may end in a 0x02.
pub fn without<'a>(text: &'a [u8], name: &str) -> Pieces<'a> {
    let mut kept = Pieces::new();
    let (mut from, mut at) = (0, 0);
    for piece in pieces(text) {
        let end = at + piece.bytes.len();
        if piece.pair.is_some_and(|(n, _)| n == name.as_bytes()) {
            if from < at {
                kept.push(&text[from..at]);
            }
            from = end;
        }
        at = end;
    }
    if from < at {
        kept.push(&text[from..at]);
    }
    kept
}

/// The stored text of a plain send: the client's without WAIT, then `added` (`CLUSTER 0x01 name`, see [`pair`]).
/// Nothing is copied.
pub fn stored<'a>(client_text: &'a [u8], added: &'a [u8]) -> Pieces<'a> {
    with_added(without(client_text, WAIT), added)
}

/// The same where the one pair called WAIT stands at `wait`, or there is none.
pub fn stored_but<'a>(client_text: &'a [u8], wait: Option<Range<usize>>, added: &'a [u8]) -> Pieces<'a> {
    let wait = wait.unwrap_or(client_text.len()..client_text.len());
    let kept = [&client_text[..wait.start], &client_text[wait.end..]];
    with_added(kept.into_iter().filter(|piece| !piece.is_empty()).collect(), added)
}

fn with_added<'a>(mut all: Pieces<'a>, added: &'a [u8]) -> Pieces<'a> {
    if !added.is_empty() {
        if all.last().is_some_and(|last| needs_separator(last)) {
            all.push(&[PAIR_END]);
        }
        all.push(added);
    }
    all
}

/// The text with these pairs, in their order, behind all others and in place of those of the same names. No 0x02 at the
/// end, as 4.9.7 has it. What no reader sees as a pair stays.
pub fn with(text: &[u8], added: &[(&str, &str)]) -> Vec<u8> {
    let added_bytes: usize = added.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
    let mut out = Vec::with_capacity(text.len() + added_bytes);
    for piece in pieces(text) {
        let is_replaced =
            piece.pair.is_some_and(|(name, _)| added.iter().any(|(replaced, _)| replaced.as_bytes() == name));
        if !is_replaced {
            out.extend_from_slice(piece.bytes);
        }
    }
    for (name, value) in added {
        if needs_separator(&out) {
            out.push(PAIR_END);
        }
        out.extend_from_slice(name.as_bytes());
        out.push(NAME_END);
        out.extend_from_slice(value.as_bytes());
    }
    out
}

/// `name 0x01 value`.
pub fn pair(name: &str, value: &str) -> Vec<u8> {
    [name.as_bytes(), &[NAME_END], value.as_bytes()].concat()
}

/// The third field of the queue entry: what a pull's tag filter tests. The Java hash of TAGS, whole and sign-extended;
/// for the schedule topic the time of delivery, `delays_ms[level - 1]` after `store_timestamp`.
pub fn tags_code(topic: &str, text: &[u8], store_timestamp: i64, delays_ms: &[i64]) -> i64 {
    let [tags, delay] = get_each(text, [TAGS, DELAY]);
    tags_code_of(topic, tags, delay, store_timestamp, delays_ms)
}

pub(crate) fn tags_code_of(
    topic: &str,
    tags: Option<&[u8]>,
    delay: Option<&[u8]>,
    store_timestamp: i64,
    delays_ms: &[i64],
) -> i64 {
    if topic == SCHEDULE_TOPIC
        && let Some(level) = delay.and_then(level)
    {
        let level = level.min(delays_ms.len());
        // Java's answer to a level that its table lacks.
        let delay_ms = level.checked_sub(1).map_or(1_000, |index| delays_ms[index]);
        return store_timestamp.saturating_add(delay_ms);
    }
    tags.map_or(0, tag_code)
}

/// A positive delay level.
fn level(value: &[u8]) -> Option<usize> {
    let level: i32 = std::str::from_utf8(value).ok()?.parse().ok()?;
    usize::try_from(level).ok().filter(|&level| level > 0)
}

/// The code of a tag, as subscriptions list it.
pub fn tag_code(tags: &[u8]) -> i64 {
    i64::from(java_hash_bytes(tags))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn without_the_wait_that_was_found_is_what_is_stored(
            text in "((WAIT|A|BC)\u{1}(true|x|)\u{2}|\u{1}|q|\u{2}){0,5}(WAIT\u{1}false)?",
        ) {
            let text = text.as_bytes();
            let mut waits = placed_pairs(text).filter(|(_, name, _)| *name == WAIT.as_bytes()).map(|(place, ..)| place);
            let (first, second) = (waits.next(), waits.next());
            if second.is_none() {
                let added = b"CLUSTER\x01c";
                prop_assert_eq!(stored_but(text, first, added).concat(), stored(text, added).concat());
            }
        }
    }

    fn map(text: &[u8]) -> BTreeMap<Vec<u8>, Vec<u8>> {
        pairs(text).map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
    }

    /// `MessageDecoder.string2messageProperties`, step by step.
    fn java_map(text: &str) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut map = BTreeMap::new();
        let mut index = 0;
        while index < text.len() {
            let end = text[index..].find('\x02').map_or(text.len(), |found| index + found);
            let utf16 = text[index..end].encode_utf16().count();
            if utf16 >= 3
                && let Some(separator) = text[index..].find('\x01').map(|found| index + found)
                && separator > index
                && separator < end - 1
            {
                map.insert(text[index..separator].into(), text[separator + 1..end].into());
            }
            index = end + 1;
        }
        map
    }

    /// The right column was printed by the jars of 4.9.7 and 5.3.3, which agree.
    #[test]
    fn texts_parse_as_in_java() {
        for (text, want) in [
            ("a\x01b\x02DELAY\x013", &[("DELAY", "3"), ("a", "b")][..]),
            ("\x02\x02", &[]),
            ("x", &[]),
            ("\x01v", &[]),
            ("k\x01", &[]),
            ("k\x01v\x01w", &[("k", "v\x01w")]),
            ("k\x01v\x02k\x01w", &[("k", "w")]),
            ("\x01v\x01w", &[]),
            ("ab\x02c\x01d", &[("c", "d")]),
            ("k\x01\x01", &[("k", "\x01")]),
            ("\x01\x01\x01", &[]),
            ("k\x01v\x02\x02\x02m\x01n\x02", &[("k", "v"), ("m", "n")]),
            ("a=\n\x01b=\n", &[("a=\n", "b=\n")]),
            ("\u{1F600}\x01\u{1F600}", &[("\u{1F600}", "\u{1F600}")]),
            ("k\x01\x01v", &[("k", "\x01v")]),
            ("k\x01v\x01", &[("k", "v\x01")]),
        ] {
            let want: BTreeMap<_, _> =
                want.iter().map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec())).collect();
            assert_eq!(map(text.as_bytes()), want, "{text:?}");
            assert_eq!(java_map(text), want, "{text:?}");
        }
    }

    #[test]
    fn values_by_name() {
        let text = b"KEYS\x01a b\x02TAGS\x01first\x02bad\x02WAIT\x01false\x02TAGS\x01last\x02";
        assert_eq!(get(text, TAGS), Some(&b"last"[..]));
        assert_eq!(get(text, "TAG"), None);
        assert_eq!(get_each(text, [WAIT, DELAY, KEYS]), [Some(&b"false"[..]), None, Some(b"a b")]);
        let many: Vec<u8> = (0..10_000).flat_map(|i| format!("k{i}\x01{i}\x02").into_bytes()).collect();
        assert_eq!((pairs(&many).count(), get(&many, "k9999")), (10_000, Some(&b"9999"[..])));
    }

    #[test]
    fn pairs_take_the_place_of_their_namesakes() {
        for (text, added, want) in [
            ("", &[("a", "1")][..], "a\x011"),
            ("a\x010", &[("a", "1")], "a\x011"),
            ("a\x010\x02b\x012\x02", &[("a", "1"), ("c", "3")], "b\x012\x02a\x011\x02c\x013"),
            ("b\x012\x02a\x010\x02a\x019", &[("a", "1")], "b\x012\x02a\x011"),
            ("bad\x02a\x02b\x01", &[("a", "1")], "bad\x02a\x02b\x01\x02a\x011"),
            ("a\x010\x02", &[], "a\x010\x02"),
        ] {
            assert_eq!(with(text.as_bytes(), added), want.as_bytes(), "{text:?} {added:?}");
        }
    }

    #[test]
    fn wait_is_true_unless_told_otherwise() {
        for (text, want) in [
            ("", true),
            ("WAIT\x01true", true),
            ("a\x01b\x02WAIT\x01TRUE\x02", true),
            ("WAIT\x01false", false),
            ("WAIT\x01yes", false),
            ("WAIT\x01false\x02WAIT\x01true", true),
            ("WAIT\x01", true),
        ] {
            assert_eq!(wants_wait(text.as_bytes()), want, "{text:?}");
        }
    }

    #[test]
    fn the_stored_text_of_a_plain_send() {
        for (text, want, count) in [
            ("", "CLUSTER\x01c", 1),
            ("TAGS\x01a", "TAGS\x01a\x02CLUSTER\x01c", 3),
            ("TAGS\x01a\x02", "TAGS\x01a\x02CLUSTER\x01c", 2),
            ("WAIT\x01true", "CLUSTER\x01c", 1),
            ("WAIT\x01true\x02TAGS\x01a\x02", "TAGS\x01a\x02CLUSTER\x01c", 2),
            ("TAGS\x01a\x02WAIT\x01true", "TAGS\x01a\x02CLUSTER\x01c", 2),
            ("a\x01b\x02WAIT\x01x\x02WAIT\x01y\x02c\x01d", "a\x01b\x02c\x01d\x02CLUSTER\x01c", 4),
            ("bad\x02WAIT\x02NOWAIT\x011\x02WAITS\x011", "bad\x02WAIT\x02NOWAIT\x011\x02WAITS\x011\x02CLUSTER\x01c", 3),
            ("CLUSTER\x01other\x02", "CLUSTER\x01other\x02CLUSTER\x01c", 2),
        ] {
            let cluster = pair(CLUSTER, "c");
            let pieces = stored(text.as_bytes(), &cluster);
            assert_eq!(pieces.concat(), want.as_bytes(), "{text:?}");
            assert_eq!(pieces.len(), count, "{text:?}");
            assert_eq!(get(&pieces.concat(), CLUSTER), Some(&b"c"[..]));
        }
        assert_eq!(stored(b"WAIT\x01true", b"").concat(), b"");
    }

    #[test]
    fn tags_codes() {
        let code = |topic, text: &str| tags_code(topic, text.as_bytes(), 1000, &DELAYS_MS);
        for (topic, text, want) in [
            ("t", "", 0),
            ("t", "TAGS\x01TagA\x02", 2598919),
            ("t", "TAGS\x01polygenelubricants", -2147483648),
            ("t", "TAGS\x01a||b", i64::from(super::super::java_hash("a||b"))),
            ("t", "TAGS\x01TagA\x02DELAY\x013", 2598919),
            (SCHEDULE_TOPIC, "TAGS\x01TagA\x02DELAY\x013", 11_000),
            (SCHEDULE_TOPIC, "DELAY\x0118", 7_201_000),
            (SCHEDULE_TOPIC, "DELAY\x0119", 7_201_000),
            (SCHEDULE_TOPIC, "TAGS\x01TagA\x02DELAY\x010", 2598919),
            (SCHEDULE_TOPIC, "TAGS\x01TagA\x02DELAY\x01-1", 2598919),
            (SCHEDULE_TOPIC, "TAGS\x01TagA\x02DELAY\x014x", 2598919),
            (SCHEDULE_TOPIC, "DELAY\x01999999999999", 0),
        ] {
            assert_eq!(code(topic, text), want, "{topic} {text:?}");
        }
        assert_eq!(tags_code(SCHEDULE_TOPIC, b"DELAY\x013", 1000, &[]), 2000, "no table");
        assert_eq!(tags_code(SCHEDULE_TOPIC, b"DELAY\x011", i64::MAX, &[5]), i64::MAX);
    }

    proptest! {
        #[test]
        fn the_parser_is_javas(text in "(\x01|\x02|[abWAIT]|é|\u{1F600}|WAIT\x01|TAGS\x01){0,30}") {
            let java = java_map(&text);
            prop_assert_eq!(map(text.as_bytes()), java.clone());
            for name in ["a", "WAIT", "TAGS", "é"] {
                prop_assert_eq!(get(text.as_bytes(), name), java.get(name.as_bytes()).map(Vec::as_slice));
            }
        }

        #[test]
        fn taking_a_name_out_leaves_the_others(bytes in prop::collection::vec(prop_oneof![Just(1u8), Just(2u8), Just(b'a'), any::<u8>()], 0..60)) {
            let left = without(&bytes, "a").concat();
            let mut want = map(&bytes);
            want.remove(&b"a"[..]);
            prop_assert_eq!(map(&left), want);
            let stored = stored(&bytes, b"CLUSTER\x01c").concat();
            let mut want = map(&bytes);
            want.insert(b"CLUSTER".to_vec(), b"c".to_vec());
            prop_assert_eq!(map(&stored), want);
            tags_code(SCHEDULE_TOPIC, &bytes, 0, &DELAYS_MS);
        }
    }
}
