//! Pool sizes and limits, computed once at start from memory and cores.
//!
//! Each is a share of the memory that this process may use, between a floor (below which the feature would not work)
//! and a ceiling (above which more room buys nothing). Limits are room that may be used, not memory that is taken:
//! what is really allocated at start is the receive ring of each shard.

/// A frame is refused above this, so one of them must always find room.
const FRAME_BYTES_MAX: u64 = 16 << 20;
const SHARD_MEMORY_BYTES: u64 = 128 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Half-received large frames of one shard, together.
    pub partial_bytes_max: u64,
    /// Unsent bytes of one connection at which reading from it stops.
    pub out_bytes_max: u64,
    /// Copies of requests that wait on one shard (no file ready, topic not yet durable).
    pub parked_bytes_max: u64,
    /// Held pulls of one shard.
    pub hold_count_max: u32,
    /// Connections of the node.
    pub connection_count_max: u32,
    /// Messages in the box of one shard.
    pub mail_count_max: u32,
    /// Whether populating log files ahead leaves memory for anything else.
    pub preheat_enable: bool,
    /// Whether two log files locked in memory do.
    pub lock_enable: bool,
}

impl Limits {
    pub fn new(memory_bytes: u64, shard_count: u32, log_file_bytes: u64) -> Limits {
        let shard_share = memory_bytes / u64::from(shard_count.max(1));
        Limits {
            partial_bytes_max: (shard_share / 8).clamp(FRAME_BYTES_MAX, 256 << 20),
            out_bytes_max: (memory_bytes / 256).clamp(1 << 20, 16 << 20),
            parked_bytes_max: (shard_share / 16).clamp(FRAME_BYTES_MAX, 128 << 20),
            // A held pull costs about half a kilobyte with its place in two tables.
            hold_count_max: count(shard_share / 16 / 512, 4096, 1_000_000),
            // The kernel's socket buffers count too: about 64 KiB a connection that is in use.
            connection_count_max: count(memory_bytes / 65_536, 1024, 65_536),
            mail_count_max: count(shard_share / 64 / 512, 4096, 65_536),
            preheat_enable: memory_bytes / 4 >= log_file_bytes,
            lock_enable: memory_bytes / 8 >= log_file_bytes,
        }
    }
}

/// Where nothing is set: a core is left to the agents, and a shard wants its share of memory.
pub fn default_shard_count(core_count: usize, memory_bytes: u64) -> u32 {
    let by_memory = (memory_bytes / SHARD_MEMORY_BYTES).max(1);
    let by_cores = core_count.saturating_sub(1).max(1) as u64;
    by_cores.min(by_memory).min(u64::from(SHARD_COUNT_MAX)) as u32
}

/// A queue's waiting shards are the bits of one `u64`.
pub const SHARD_COUNT_MAX: u32 = u64::BITS;

fn count(wanted: u64, least: u32, most: u32) -> u32 {
    wanted.clamp(u64::from(least), u64::from(most)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_machine_keeps_most_of_its_memory() {
        let memory = 512 << 20;
        let shards = default_shard_count(2, memory);
        assert_eq!(shards, 1);
        let limits = Limits::new(memory, shards, 1 << 30);
        assert!(limits.partial_bytes_max + limits.parked_bytes_max <= memory / 4, "{limits:?}");
        assert!(u64::from(limits.hold_count_max) * 512 <= memory / 16);
        assert!(!limits.preheat_enable);
        assert!(Limits::new(16 << 30, 7, 1 << 30).preheat_enable);
    }

    #[test]
    fn a_core_is_left_to_agents_and_memory_bounds_the_shards() {
        // cores, memory in MiB, shards
        for (cores, memory_mib, want) in [
            (1, 512, 1),
            (2, 8192, 1),
            (8, 65536, 7),
            (64, 512, 4),
            (1024, 1 << 20, 64),
            (65, 1 << 20, 64),
            (64, 1 << 20, 63),
            (0, 16, 1),
        ] {
            assert_eq!(default_shard_count(cores, memory_mib << 20), want, "cores={cores} memory={memory_mib}");
        }
    }

    #[test]
    fn a_frame_always_fits() {
        for memory in [0, 64 << 20, 1 << 40] {
            for shards in [0, 1, SHARD_COUNT_MAX] {
                let limits = Limits::new(memory, shards, 4096);
                assert!(limits.partial_bytes_max >= FRAME_BYTES_MAX);
                assert!(limits.parked_bytes_max >= FRAME_BYTES_MAX);
                assert!(limits.out_bytes_max >= 1 << 20);
            }
        }
    }
}
