//! The store without a machine: a disk in memory that fails, dies and loses power where a seed says so, and the sweep
//! that stops the store at every call it makes and looks at what is left.

pub mod crash_sweep;
mod sim_disk;

/// Chance as an argument: the same seed gives the same run. splitmix64.
#[derive(Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// From 0 up to and without `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0);
        self.next() % end
    }

    /// True once in `parts`.
    pub fn one_in(&mut self, parts: u64) -> bool {
        self.below(parts) == 0
    }
}
