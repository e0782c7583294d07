//! The disk's own speed, to stand beside what a broker got out of it.

use crate::latency::{Latency, Summary};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

const CHUNK_BYTES: usize = 1 << 20;

/// MiB/s of one sequential write of `bytes` into a fresh file in `dir`, an fdatasync at its end included. The file is
/// gone afterwards.
pub fn sequential_write_mib_s(dir: &Path, bytes: u64) -> io::Result<f64> {
    let file: File = tempfile::tempfile_in(dir)?;
    // Not zeros: a disk or a hypervisor may treat them apart.
    let chunk = crate::template::body(CHUNK_BYTES, 1);
    let started = Instant::now();
    let mut position = 0;
    while position < bytes {
        let count = (bytes - position).min(CHUNK_BYTES as u64) as usize;
        file.write_all_at(&chunk[..count], position)?;
        position += count as u64;
    }
    file.sync_data()?;
    Ok(bytes as f64 / f64::from(1 << 20) / started.elapsed().as_secs_f64())
}

/// What one durable write costs without any broker: `pwrite` of `bytes`, one after the other in a file whose blocks are
/// taken and written already, each with its fdatasync. The file is gone afterwards.
pub fn durable_writes(dir: &Path, bytes: usize, count: u64) -> io::Result<Summary> {
    let file: File = tempfile::tempfile_in(dir)?;
    let one = crate::template::body(bytes, 1);
    for number in 0..count {
        file.write_all_at(&one, number * bytes as u64)?;
    }
    file.sync_all()?;
    let mut latency = Latency::default();
    for number in 0..count {
        let started = Instant::now();
        file.write_all_at(&one, number * bytes as u64)?;
        file.sync_data()?;
        latency.record(started.elapsed().as_nanos() as u64);
    }
    Ok(latency.summary())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durable_writes_are_counted_and_leave_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(durable_writes(dir.path(), 1280, 5).unwrap().count, 5);
        assert_eq!(dir.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn a_rate_is_measured_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        assert!(sequential_write_mib_s(dir.path(), 3 << 19).unwrap() > 0.0);
        assert_eq!(dir.path().read_dir().unwrap().count(), 0);
    }
}
