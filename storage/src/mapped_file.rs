//! One file of the commit log: written by position, read through a mapping.
//!
//! ```text
//! 0 ............ flushed ........... written ............ bytes
//! | on the device | in the page cache | zeros, or a write under way |
//! ```
//! One writer, the log's gate. Readers get slices below `written` only. A slice keeps the file mapped and its
//! descriptor open, so that a pull may still be sending from a file that retention has unlinked.
//! With the write medium `committed` (readable) and `written` are one position; the pool will part them.
//! Source: MappedFile.java.

use crate::disk::{Blocks, Disk, DiskFile, NewFile};
use bytes::Bytes;
use memmap2::MmapRaw;
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(crate) struct MappedFile {
    /// Log offset of the first byte; the name says the same.
    pub start: u64,
    pub bytes: u64,
    pub path: PathBuf,
    pub file: Box<dyn DiskFile>,
    map: MmapRaw,
    written: AtomicU64,
    flushed: AtomicU64,
    /// The name survives a power loss.
    pub is_name_synced: AtomicBool,
}

/// 20 decimal digits, zero padded.
pub(crate) fn file_name(offset: u64) -> String {
    format!("{offset:020}")
}

/// `None` unless `name` is exactly 20 digits of a number that can be an offset.
pub(crate) fn parse_file_name(name: &OsStr) -> Option<u64> {
    let name = name.to_str()?;
    let is_digits = name.len() == 20 && name.bytes().all(|byte| byte.is_ascii_digit());
    let offset = is_digits.then(|| name.parse::<u64>().ok()).flatten()?;
    (offset <= i64::MAX as u64).then_some(offset)
}

impl MappedFile {
    pub fn create(disk: &dyn Disk, dir: &Path, staging: &Path, start: u64, bytes: u64) -> io::Result<MappedFile> {
        let path = dir.join(file_name(start));
        let file = disk.create(&NewFile { path: &path, staging, bytes, blocks: Blocks::Taken, content: &[] })?;
        MappedFile::new(file, path, start, bytes, false)
    }

    /// The same, but without its name, which follows by [`MappedFile::name`] when it is needed: Java 4.9 on Java 17 does
    /// not open a store whose log has a file behind the last record.
    pub fn create_nameless(
        disk: &dyn Disk,
        dir: &Path,
        staging: &Path,
        start: u64,
        bytes: u64,
    ) -> io::Result<MappedFile> {
        let path = dir.join(file_name(start));
        let new = NewFile { path: &path, staging, bytes, blocks: Blocks::Taken, content: &[] };
        let file = disk.create_nameless(&new)?;
        MappedFile::new(file, path, start, bytes, false)
    }

    pub fn name(&self) -> io::Result<()> {
        self.file.name(&self.path)
    }

    pub fn open(disk: &dyn Disk, path: PathBuf, start: u64, bytes: u64) -> io::Result<MappedFile> {
        let file = disk.open(&path)?;
        MappedFile::new(file, path, start, bytes, true)
    }

    fn new(
        file: Box<dyn DiskFile>,
        path: PathBuf,
        start: u64,
        bytes: u64,
        is_name_synced: bool,
    ) -> io::Result<MappedFile> {
        // A mapping longer than its file would turn reads behind the end into SIGBUS.
        if file.bytes()? < bytes {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter than its mapping"));
        }
        let map = file.map(bytes as usize)?;
        assert_eq!(map.len() as u64, bytes);
        let is_name_synced = AtomicBool::new(is_name_synced);
        Ok(MappedFile {
            start,
            bytes,
            path,
            file,
            map,
            written: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            is_name_synced,
        })
    }

    pub fn end(&self) -> u64 {
        self.start + self.bytes
    }

    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// The gate has written up to `position`.
    pub fn publish_written(&self, position: u64) {
        assert!(position <= self.bytes);
        assert!(position >= self.written.load(Ordering::Relaxed), "written goes back in {}", self.path.display());
        self.written.store(position, Ordering::Release);
    }

    pub fn publish_flushed(&self, position: u64) {
        assert!(position <= self.written());
        self.flushed.fetch_max(position, Ordering::AcqRel);
    }

    /// Recovery only: nothing reads and nothing writes yet.
    pub fn reset_positions(&self, position: u64) {
        assert!(position <= self.bytes);
        self.written.store(position, Ordering::Release);
        self.flushed.store(position, Ordering::Release);
    }

    /// The bytes at `range` of the file.
    ///
    /// # Panics
    /// When it reaches above `written`.
    pub fn slice(&self, range: Range<u64>) -> &[u8] {
        assert!(range.end <= self.written(), "{range:?} is not written in {}", self.path.display());
        self.unchecked_by_written(range)
    }

    /// Recovery only: the bytes at `range` whether or not they count as written.
    pub fn unchecked_by_written(&self, range: Range<u64>) -> &[u8] {
        assert!(range.start <= range.end);
        assert!(range.end <= self.bytes);
        let (start, len) = (range.start as usize, (range.end - range.start) as usize);
        // SAFETY: `map` is one live mapping of `bytes` bytes until `drop`, and the asserts keep the range inside it; the
        // file is at least as long (checked in `new`) and is never shortened while the store has it. Bytes below
        // `written` are never written again; above it only recovery reads, before anybody writes. `self` outlives
        // the slice.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(start), len) }
    }

    /// Without copying: the slice keeps the file mapped.
    pub fn pinned(self: &Arc<Self>, range: Range<u64>) -> Bytes {
        assert!(range.start <= range.end);
        assert!(range.end <= self.written(), "{range:?} is not written in {}", self.path.display());
        Bytes::from_owner(Pinned { file: Arc::clone(self), range })
    }
}

struct Pinned {
    file: Arc<MappedFile>,
    range: Range<u64>,
}

impl AsRef<[u8]> for Pinned {
    fn as_ref(&self) -> &[u8] {
        self.file.slice(self.range.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;

    #[test]
    fn names() {
        for (name, want) in [
            ("00000000000000000000", Some(0)),
            ("00000000001073741824", Some(1_073_741_824)),
            ("0", None),
            ("0000000000000000000x", None),
            ("+0000000000000000001", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(parse_file_name(name.as_ref()), want, "{name}");
        }
        assert_eq!(file_name(65536), "00000000000000065536");
    }

    #[test]
    fn a_slice_outlives_the_name_of_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = Arc::new(MappedFile::create(&RealDisk, dir.path(), dir.path(), 0, 8192).unwrap());
        file.file.write_at(0, b"hello").unwrap();
        file.publish_written(5);
        let slice = file.pinned(1..5);
        std::fs::remove_file(&file.path).unwrap();
        drop(file);
        assert_eq!(&slice[..], b"ello");
    }

    #[test]
    #[should_panic(expected = "is not written")]
    fn nobody_reads_above_written() {
        let dir = tempfile::tempdir().unwrap();
        let file = MappedFile::create(&RealDisk, dir.path(), dir.path(), 0, 8192).unwrap();
        file.slice(0..1);
    }
}
