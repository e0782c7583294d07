//! The bits that stand for a group and a topic in Java's bit maps: it wants them in consumerFilter.json.
//!
//! Nothing here reads them: they only spare Java an evaluation where `enableCalcFilterBitMap` is on.
//! Source: BloomFilter.java (20 % of 32 filters: 3 bits of 112), guava's murmur3_128.

use ringmq_net::protocol::body::filter::BloomFilterData;

const BITS: i32 = 112;
const BITS_EACH: i32 = 3;

pub fn bits(group: &str, topic: &str) -> BloomFilterData {
    let hash = murmur3(format!("{group}#{topic}").as_bytes());
    let (low, high) = (hash as i32, (hash >> 32) as i32);
    let bit = |index: i32| {
        let sum = low.wrapping_add(high.wrapping_mul(index));
        (if sum < 0 { !sum } else { sum }) % BITS
    };
    BloomFilterData { bit_num: BITS, bit_pos: (1..=BITS_EACH).map(bit).collect() }
}

/// The low half of MurmurHash3 x64 128, seed 0.
fn murmur3(bytes: &[u8]) -> u64 {
    const C1: u64 = 0x87c3_7b91_1142_53d5;
    const C2: u64 = 0x4cf5_ad43_2745_937f;
    let mix1 = |k: u64| k.wrapping_mul(C1).rotate_left(31).wrapping_mul(C2);
    let mix2 = |k: u64| k.wrapping_mul(C2).rotate_left(33).wrapping_mul(C1);
    let finish = |mut k: u64| {
        k = (k ^ k >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        k = (k ^ k >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        k ^ k >> 33
    };
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
    let (mut h1, mut h2) = (0_u64, 0_u64);
    let (blocks, rest) = bytes.as_chunks::<16>();
    for block in blocks {
        h1 ^= mix1(word(&block[..8]));
        h1 = h1.rotate_left(27).wrapping_add(h2).wrapping_mul(5).wrapping_add(0x52dc_e729);
        h2 ^= mix2(word(&block[8..]));
        h2 = h2.rotate_left(31).wrapping_add(h1).wrapping_mul(5).wrapping_add(0x3849_5ab5);
    }
    let (low, high) = rest.split_at(rest.len().min(8));
    h1 ^= mix1(word(low));
    h2 ^= mix2(word(high));
    h1 ^= bytes.len() as u64;
    h2 ^= bytes.len() as u64;
    h1 = h1.wrapping_add(h2);
    h2 = h2.wrapping_add(h1);
    (h1, h2) = (finish(h1), finish(h2));
    h1.wrapping_add(h2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Printed by `BloomFilter.createByFn(20, 32).generate(group + "#" + topic)` of 4.9.7.
    #[test]
    fn the_bits_are_java_s() {
        for (group, topic, want) in [
            ("g", "t", [22, 87, 58]),
            ("gabcde", "t", [57, 11, 63]),
            ("gabcdef", "t", [25, 90, 49]),
            ("gabcdefghijklm", "t", [65, 76, 24]),
            ("gabcdefghijklmn", "t", [70, 86, 12]),
            ("gabcdefghijklmnopqrstu", "t", [53, 85, 31]),
            ("gabcdefghijklmnopqrstuvwxyzabcdefghi", "t", [6, 0, 24]),
            ("GID_x", "TopicTest", [111, 15, 0]),
            ("组", "主题", [38, 9, 19]),
            ("%RETRY%g", "t", [95, 100, 72]),
        ] {
            assert_eq!(bits(group, topic), BloomFilterData { bit_num: 112, bit_pos: want.to_vec() }, "{group}#{topic}");
        }
    }
}
