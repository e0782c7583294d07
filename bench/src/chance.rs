//! Chance that comes back with its seed: sizes, arrivals, bodies and fates are functions of a seed and a number, so a
//! run can be repeated, and every thread knows them without asking another.

/// The `number`-th word of a seed (splitmix64).
pub fn word(seed: u64, number: u64) -> u64 {
    let mut word = seed.wrapping_add(number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// From 0 up to and without 1.
pub fn share(seed: u64, number: u64) -> f64 {
    (word(seed, number) >> 11) as f64 / (1_u64 << 53) as f64
}

/// From 0 up to and without `end`.
pub fn below(seed: u64, number: u64, end: u64) -> u64 {
    ((u128::from(word(seed, number)) * u128::from(end)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_spread_evenly_and_come_back() {
        let mut counts = [0; 10];
        for number in 0..10_000 {
            assert_eq!(word(7, number), word(7, number));
            counts[(share(7, number) * 10.0) as usize] += 1;
            assert!(below(7, number, 3) < 3);
        }
        // A thousand each; the words are the same on every machine.
        assert!(counts.iter().all(|count| (900..1100).contains(count)), "{counts:?}");
        assert_ne!(word(7, 0), word(8, 0));
    }
}
