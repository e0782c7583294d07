//! One file of the commit log: written by position, read through a mapping.
//!
//! ```text
//! 0 ............ flushed ........... readable .......... written ............ bytes
//! | on the device | in the page cache | in a lent buffer  | zeros, or a write under way |
//! ```
//! One writer, the log's gate. Readers get slices below `readable` only. A slice keeps the file mapped and its
//! descriptor open, so that a pull may still be sending from a file that retention has unlinked.
//! With the write medium `readable` and `written` are one position. A file that was lent a buffer of the pool is written
//! there; `commit` brings the bytes into the file, and the buffer goes back when all of them are there. With the mapped
//! medium it is written by stores into the mapping.
//! Source: MappedFile.java.

use crate::bus_error::{self, Watched};
use crate::disk::{Blocks, Disk, DiskFile, NewFile};
use crate::flush::Medium;
use crate::transient_pool::PoolBuffer;
use bytes::Bytes;
use memmap2::MmapRaw;
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Made warm by one step: no longer than the disk can bear beside the log itself.
const WARM_BYTES: u64 = 1 << 20;

pub(crate) struct MappedFile {
    /// Log offset of the first byte; the name says the same.
    pub start: u64,
    pub bytes: u64,
    pub path: PathBuf,
    pub file: Box<dyn DiskFile>,
    /// Before `map`, so that it is dropped first.
    _watched: Watched,
    map: MmapRaw,
    /// `map` may be stored to, and is.
    is_mapped: bool,
    written: AtomicU64,
    flushed: AtomicU64,
    /// It was lent a buffer, so `committed` counts. Set before anybody else has the file.
    is_pooled: AtomicBool,
    committed: AtomicU64,
    /// Behind the last byte that was put here, once the log has gone on in the next file.
    data_end: AtomicU64,
    buffer: RwLock<Option<PoolBuffer>>,
    /// Preheated up to here before its first record.
    warmed: AtomicU64,
    is_locked: AtomicBool,
    is_named: AtomicBool,
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
    #[cfg(test)]
    pub fn create(disk: &dyn Disk, dir: &Path, staging: &Path, start: u64, bytes: u64) -> io::Result<MappedFile> {
        let path = dir.join(file_name(start));
        let file =
            disk.create_nameless(&NewFile { path: &path, staging, bytes, blocks: Blocks::Taken, content: &[] })?;
        let file = MappedFile::new(file, path, start, bytes, Medium::Write, false)?;
        file.name()?;
        Ok(file)
    }

    /// Without its name, which follows by [`MappedFile::name`] when it is needed: Java 4.9 on Java 17 does not open a store
    /// whose log has a file behind the last record.
    pub fn create_nameless(
        disk: &dyn Disk,
        dir: &Path,
        staging: &Path,
        start: u64,
        bytes: u64,
        medium: Medium,
    ) -> io::Result<MappedFile> {
        let path = dir.join(file_name(start));
        let new = NewFile { path: &path, staging, bytes, blocks: Blocks::Taken, content: &[] };
        let file = disk.create_nameless(&new)?;
        MappedFile::new(file, path, start, bytes, medium, false)
    }

    pub fn is_named(&self) -> bool {
        self.is_named.load(Ordering::Acquire)
    }

    /// Nothing happens when it has its name.
    pub fn name(&self) -> io::Result<()> {
        if !self.is_named.load(Ordering::Acquire) {
            self.file.name(&self.path)?;
            self.is_named.store(true, Ordering::Release);
        }
        Ok(())
    }

    pub fn open(disk: &dyn Disk, path: PathBuf, start: u64, bytes: u64, medium: Medium) -> io::Result<MappedFile> {
        let file = disk.open(&path)?;
        MappedFile::new(file, path, start, bytes, medium, true)
    }

    fn new(
        file: Box<dyn DiskFile>,
        path: PathBuf,
        start: u64,
        bytes: u64,
        medium: Medium,
        is_name_synced: bool,
    ) -> io::Result<MappedFile> {
        // A mapping longer than its file would turn reads behind the end into SIGBUS.
        if file.bytes()? < bytes {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter than its mapping"));
        }
        let is_mapped = medium == Medium::Mapped;
        let map = if is_mapped { file.map_writable(bytes as usize)? } else { file.map(bytes as usize)? };
        assert_eq!(map.len() as u64, bytes);
        // What was found has a name that survives, what is new has none.
        let (is_named, is_name_synced) = (AtomicBool::new(is_name_synced), AtomicBool::new(is_name_synced));
        Ok(MappedFile {
            start,
            bytes,
            path,
            file,
            _watched: bus_error::watch(map.as_ptr(), map.len()),
            map,
            is_mapped,
            written: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            is_pooled: AtomicBool::new(false),
            committed: AtomicU64::new(0),
            data_end: AtomicU64::new(bytes),
            buffer: RwLock::new(None),
            warmed: AtomicU64::new(0),
            is_locked: AtomicBool::new(false),
            is_named,
            is_name_synced,
        })
    }

    pub fn end(&self) -> u64 {
        self.start + self.bytes
    }

    /// Where in the file an address of its mapping is.
    pub fn position_of(&self, address: usize) -> Option<u64> {
        let position = address.checked_sub(self.map.as_ptr() as usize)? as u64;
        (position < self.bytes).then_some(position)
    }

    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Bytes below are in the page cache.
    pub fn readable(&self) -> u64 {
        if self.is_pooled() { self.committed.load(Ordering::Acquire) } else { self.written() }
    }

    pub fn is_pooled(&self) -> bool {
        self.is_pooled.load(Ordering::Relaxed)
    }

    /// The gate has written up to `position`.
    pub fn publish_written(&self, position: u64) {
        assert!(position <= self.bytes);
        assert!(position >= self.written.load(Ordering::Relaxed), "written goes back in {}", self.path.display());
        self.written.store(position, Ordering::Release);
    }

    pub fn publish_flushed(&self, position: u64) {
        assert!(position <= self.readable());
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
    /// When it reaches above `readable`.
    pub fn slice(&self, range: Range<u64>) -> &[u8] {
        assert!(range.end <= self.readable(), "{range:?} is not written in {}", self.path.display());
        self.unchecked_by_written(range)
    }

    /// Asks the processor for the bytes at `position`, which are read soon. Costs nothing where they are not in memory.
    pub fn prefetch(&self, position: u64) {
        if position < self.bytes {
            // SAFETY: the address lies in the mapping, and a prefetch reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.map.as_ptr().add(position as usize).cast()) };
        }
    }

    /// Recovery only: the bytes at `range` whether or not they count as written.
    pub fn unchecked_by_written(&self, range: Range<u64>) -> &[u8] {
        assert!(range.start <= range.end);
        assert!(range.end <= self.bytes);
        let (start, len) = (range.start as usize, (range.end - range.start) as usize);
        // SAFETY: `map` is one live mapping of `bytes` bytes until `drop`, and the asserts keep the range inside it; the
        // file is at least as long (checked in `new`) and is never shortened while the store has it. Bytes below
        // `readable` are never written again; above it only recovery reads, before anybody writes. `self` outlives
        // the slice.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(start), len) }
    }

    /// Without copying: the slice keeps the file mapped.
    pub fn pinned(self: &Arc<Self>, range: Range<u64>) -> Bytes {
        assert!(range.start <= range.end);
        assert!(range.end <= self.readable(), "{range:?} is not written in {}", self.path.display());
        Bytes::from_owner(Pinned { file: Arc::clone(self), range })
    }
}

/// The allocation service's, on the file agent.
impl MappedFile {
    pub fn warmed(&self) -> u64 {
        self.warmed.load(Ordering::Relaxed)
    }

    /// Preheats the next piece, before the file is written to: blocks become written ones, pages present. The caller keeps
    /// the gate from taking the file meanwhile.
    pub fn warm(&self) -> io::Result<()> {
        static ZEROS: [u8; WARM_BYTES as usize] = [0; WARM_BYTES as usize];
        assert!(self.written() == 0);
        let from = self.warmed();
        let bytes = (self.bytes - from).min(WARM_BYTES);
        if self.is_mapped {
            self.populate(from..from + bytes)?;
        } else {
            self.file.write_at(from, &ZEROS[..bytes as usize])?;
        }
        self.warmed.store(from + bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Pages that can be stored to, of blocks that the next sync makes written ones.
    fn populate(&self, range: Range<u64>) -> io::Result<()> {
        // SAFETY: the range is whole pages of this live, writable mapping (a warm step begins at a multiple of its size);
        // the call makes pages present and changes no byte.
        let result = unsafe {
            let start = self.map.as_mut_ptr().add(range.start as usize);
            libc::madvise(start.cast(), (range.end - range.start) as usize, libc::MADV_POPULATE_WRITE)
        };
        match result {
            0 => Ok(()),
            _ => match io::Error::last_os_error() {
                // Before Linux 5.14: the pages come with their first store.
                e if e.raw_os_error() == Some(libc::EINVAL) => Ok(()),
                e => Err(e),
            },
        }
    }

    /// Keeps its pages in memory until [`MappedFile::unlock`].
    ///
    /// # Errors
    /// Mostly the limit of locked memory.
    pub fn lock(&self) -> io::Result<()> {
        // SAFETY: the range is this live mapping; locking changes no byte of it.
        match unsafe { libc::mlock(self.map.as_ptr().cast(), self.map.len()) } {
            0 => {
                self.is_locked.store(true, Ordering::Relaxed);
                Ok(())
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub fn unlock(&self) {
        if self.is_locked.swap(false, Ordering::Relaxed) {
            // SAFETY: as in `lock`.
            unsafe { libc::munlock(self.map.as_ptr().cast(), self.map.len()) };
        }
    }
}

/// What the gate writes, and with a buffer of the pool its commit.
impl MappedFile {
    /// Before the file is given to anybody else.
    pub fn lend(&self, buffer: PoolBuffer) {
        assert!(self.written() == 0);
        *self.buffer.write().unwrap_or_else(PoisonError::into_inner) = Some(buffer);
        self.is_pooled.store(true, Ordering::Release);
    }

    /// The gate puts `bytes` behind `written`, into the buffer, the mapping or the file.
    pub fn write(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        assert!(position >= self.written());
        if self.is_mapped && !self.is_pooled() {
            assert!(position + bytes.len() as u64 <= self.bytes);
            let mut fault_count = bus_error::count();
            // SAFETY: `map` is a live writable mapping of `bytes` bytes, as long as the file; the gate is the only writer and
            // everybody else reads below `written` only. The blocks are taken, so no store meets a full disk.
            unsafe {
                let target = self.map.as_mut_ptr().add(position as usize);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
            }
            self.file.stored(position, bytes.len() as u64);
            let is_ours = |address: usize| self.position_of(address).is_some();
            if bus_error::count() != fault_count && bus_error::faults_since(&mut fault_count).into_iter().any(is_ours) {
                return Err(io::Error::other("a page of the mapped file can not be had from the disk"));
            }
            return Ok(());
        }
        if !self.is_pooled() {
            return self.file.write_at(position, bytes);
        }
        let buffer = self.buffer.read().unwrap_or_else(PoisonError::into_inner);
        let buffer = buffer.as_ref().expect("it stays until the file is full");
        // SAFETY: the gate is the only writer, and everybody else reads below `written` only.
        unsafe { buffer.write(position, bytes) };
        Ok(())
    }

    /// The log goes on in the next file; what was put here ends at `position`.
    pub fn publish_end(&self, position: u64) {
        self.data_end.store(position, Ordering::Release);
        self.publish_written(self.bytes);
    }

    /// Makes what lies below `position` readable. For a file without a buffer there is nothing to do.
    pub fn commit(&self, position: u64) -> io::Result<()> {
        assert!(position <= self.written());
        if !self.is_pooled() {
            return Ok(());
        }
        let from = self.committed.load(Ordering::Acquire);
        let end = position.min(self.data_end.load(Ordering::Acquire));
        if from < end {
            let buffer = self.buffer.read().unwrap_or_else(PoisonError::into_inner);
            let buffer = buffer.as_ref().expect("it stays until the file is committed");
            // SAFETY: below `written` nobody writes any more.
            self.file.write_at(from, unsafe { buffer.slice(from..end) })?;
        }
        self.committed.store(position, Ordering::Release);
        Ok(())
    }

    /// The buffer of a file that is full and committed.
    pub fn take_buffer(&self) -> Option<PoolBuffer> {
        if self.is_pooled() && self.readable() == self.bytes {
            self.buffer.write().unwrap_or_else(PoisonError::into_inner).take()
        } else {
            None
        }
    }

    /// Gives `act` what was written from `position` on, as long as it is in the buffer.
    pub fn in_buffer<T>(&self, position: u64, act: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let buffer = self.buffer.read().unwrap_or_else(PoisonError::into_inner);
        let end = self.written().min(self.data_end.load(Ordering::Acquire));
        // SAFETY: below `written` nobody writes any more, and the lock keeps the buffer here.
        buffer.as_ref().filter(|_| position <= end).map(|buffer| act(unsafe { buffer.slice(position..end) }))
    }

    /// Pages for what comes next.
    pub fn populate_buffer(&self) {
        if let Some(buffer) = &*self.buffer.read().unwrap_or_else(PoisonError::into_inner) {
            buffer.populate(self.written());
        }
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
    use crate::transient_pool::TransientPool;

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
    fn what_is_in_a_buffer_is_committed_up_to_its_end_only() {
        let dir = tempfile::tempdir().unwrap();
        let file = MappedFile::create(&RealDisk, dir.path(), dir.path(), 0, 8192).unwrap();
        let pool = TransientPool::new(1, 8192, true, &mut Vec::new()).unwrap();
        // What an earlier file left in it.
        let buffer = pool.take().unwrap();
        // SAFETY: nobody else has the buffer.
        unsafe { buffer.write(0, &[7; 8192]) };
        file.lend(buffer);
        file.write(0, b"hello").unwrap();
        file.publish_written(5);
        assert_eq!(file.readable(), 0);
        assert_eq!(file.in_buffer(1, <[u8]>::to_vec).unwrap(), b"ello");
        file.commit(5).unwrap();
        assert_eq!(file.slice(0..5), b"hello");
        file.write(5, b" world").unwrap();
        file.publish_written(11);
        file.publish_end(11);
        assert!(file.take_buffer().is_none());
        file.commit(8192).unwrap();
        assert_eq!(file.slice(0..12), b"hello world\0");
        assert!(file.slice(11..8192).iter().all(|byte| *byte == 0));
        pool.give_back(file.take_buffer().unwrap());
        assert!(file.in_buffer(0, <[u8]>::to_vec).is_none());
    }

    #[test]
    #[should_panic(expected = "is not written")]
    fn nobody_reads_above_written() {
        let dir = tempfile::tempdir().unwrap();
        let file = MappedFile::create(&RealDisk, dir.path(), dir.path(), 0, 8192).unwrap();
        file.slice(0..1);
    }
}
