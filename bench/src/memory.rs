//! Memory that the machine really has: every free page is touched once before a measurement.
//!
//! A virtual machine gets its memory from the host page by page, at the first touch, and gives back what lies free for a
//! while. Where that costs 5 µs a page, a broker that fills the page cache with 1 GiB of log pays 1.3 s for it, which is as
//! much as everything else it does, and whoever is measured first pays for the others.

use serde::Serialize;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Instant;

const PAGE_BYTES: u64 = 4096;
const STEP_BYTES: u64 = 64 << 20;
/// Left to everybody else.
const LEFT_BYTES: u64 = 1 << 30;
/// Above it a page came from somewhere else than this kernel's free list.
const OWN_PAGE_NS_MAX: f64 = 4_000.0;

#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Settings {
    /// How much at most; the last free GiB is left alone
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub gib: u64,
}

/// `ringmq-bench touch`.
///
/// # Errors
/// As [`touch`].
pub fn run(settings: &Settings) -> io::Result<Touched> {
    touch(settings.gib << 30)
}

/// What a touch found.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Touched {
    pub mib: u64,
    pub ns_per_page: f64,
}

impl Touched {
    /// The pages were not the machine's own before.
    pub fn was_cold(&self) -> bool {
        self.ns_per_page > OWN_PAGE_NS_MAX
    }
}

impl fmt::Display for Touched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory    {} MiB touched, {:.2} µs a page", self.mib, self.ns_per_page / 1e3)?;
        if self.was_cold() { write!(f, ": pages came from the host") } else { Ok(()) }
    }
}

/// Takes up to `bytes` of the memory that is free, writes to each page and gives it back. Never takes what the page cache
/// or another process has, nor the last GiB, nor more than the memory cgroups around this process allow.
///
/// # Errors
/// What `mmap` and `madvise` answer; `ENOMEM` included.
pub fn touch(bytes: u64) -> io::Result<Touched> {
    let bytes = bytes.min(free_bytes().saturating_sub(LEFT_BYTES)) / STEP_BYTES * STEP_BYTES;
    if bytes == 0 {
        return Ok(Touched { mib: 0, ns_per_page: 0.0 });
    }
    let mut map = memmap2::MmapOptions::new().len(bytes as usize).map_anon()?;
    // Single pages: those of the page cache are.
    let _ = map.advise(memmap2::Advice::NoHugePage);
    let started = Instant::now();
    map.chunks_mut(PAGE_BYTES as usize).for_each(|page| page[0] = 1);
    let ns = started.elapsed().as_nanos() as f64;
    Ok(Touched { mib: bytes >> 20, ns_per_page: ns / (bytes / PAGE_BYTES) as f64 })
}

fn free_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = text.lines().find_map(|line| line.strip_prefix("MemFree:")?.trim().strip_suffix(" kB")?.parse().ok());
    free.map_or(0, |kib: u64| kib << 10).min(cgroup_free_bytes())
}

/// Of the tightest cgroup (version 2) around this process.
fn cgroup_free_bytes() -> u64 {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let leaf = Path::new("/sys/fs/cgroup").join(path);
    let number = |path: &Path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let folders = leaf.ancestors().take_while(|folder| folder.starts_with("/sys/fs/cgroup"));
    let free = folders.filter_map(|folder| {
        // "max" is no number: no limit.
        let limit = number(&folder.join("memory.max"))?;
        Some(limit.saturating_sub(number(&folder.join("memory.current"))?))
    });
    free.min().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_asked_for_is_touched() {
        let touched = touch(128 << 20).unwrap();
        assert!(touched.mib == 128 || free_bytes() < LEFT_BYTES + (128 << 20), "{touched:?}");
        assert_eq!(touch(1).unwrap().mib, 0);
    }
}
