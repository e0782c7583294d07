//! The disk's own speed, to stand beside what a broker got out of it.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_measured_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        assert!(sequential_write_mib_s(dir.path(), 3 << 19).unwrap() > 0.0);
        assert_eq!(dir.path().read_dir().unwrap().count(), 0);
    }
}
