//! TransientStorePool: buffers of a log file's size, lent to the files that are being written.
//!
//! ```text
//! free ──lend──> file: appends go to the buffer, commits write them to the file ──all committed──> free
//! ```
//! A buffer keeps what it held: a file's bytes are those that its writer put there, and nothing else is committed.
//! Its pages come with their first touch, ahead of the appends by the commit agent; they are locked where that is
//! permitted. All of it is lost with the process.
//! Source: TransientStorePool.java.

use memmap2::{MmapOptions, MmapRaw};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Pages made present by one call: some ten milliseconds at most.
const POPULATE_BYTES_MAX: u64 = 32 << 20;

pub(crate) struct TransientPool {
    free: Mutex<Vec<PoolBuffer>>,
    /// Without a free buffer nothing is appended.
    pub is_fast_fail: bool,
}

impl TransientPool {
    /// `remarks` gets a line when the memory cannot be locked.
    pub fn new(
        buffer_count: u32,
        buffer_bytes: u64,
        is_fast_fail: bool,
        remarks: &mut Vec<String>,
    ) -> io::Result<TransientPool> {
        let mut free = Vec::new();
        let mut is_locked = true;
        for _ in 0..buffer_count {
            let buffer = PoolBuffer::new(buffer_bytes)?;
            if is_locked && let Err(e) = buffer.lock() {
                is_locked = false;
                remarks.push(format!(
                    "the buffers of the transient store pool are not locked in memory ({e}): raise the limit \
                     (ulimit -l, LimitMEMLOCK) or they may be swapped out"
                ));
            }
            free.push(buffer);
        }
        Ok(TransientPool { free: Mutex::new(free), is_fast_fail })
    }

    fn free(&self) -> MutexGuard<'_, Vec<PoolBuffer>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn take(&self) -> Option<PoolBuffer> {
        self.free().pop()
    }

    pub fn give_back(&self, buffer: PoolBuffer) {
        self.free().push(buffer);
    }

    pub fn free_count(&self) -> usize {
        self.free().len()
    }

    /// The buffer that is lent next has its first pages.
    pub fn populate_next(&self) {
        // Under the lock: a roll that comes just now waits some milliseconds, once in the buffer's life.
        if let Some(buffer) = self.free().last().filter(|buffer| buffer.populated() == 0) {
            buffer.populate(0);
        }
    }
}

pub(crate) struct PoolBuffer {
    map: MmapRaw,
    /// Bytes from its start on that have pages.
    populated: AtomicU64,
}

impl PoolBuffer {
    fn new(bytes: u64) -> io::Result<PoolBuffer> {
        let map = MmapRaw::from(MmapOptions::new().len(bytes as usize).map_anon()?);
        Ok(PoolBuffer { map, populated: AtomicU64::new(0) })
    }

    /// Pages are locked as they come.
    fn lock(&self) -> io::Result<()> {
        // SAFETY: the range is this live mapping; locking changes no byte of it.
        let result = unsafe { libc::mlock2(self.map.as_ptr().cast(), self.map.len(), libc::MLOCK_ONFAULT as _) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn populated(&self) -> u64 {
        self.populated.load(Ordering::Relaxed)
    }

    /// Makes some pages ahead of `written` present, once in the buffer's life.
    pub fn populate(&self, written: u64) {
        let from = self.populated().max(written & !4095);
        let to = (self.map.len() as u64).min((written & !4095) + POPULATE_BYTES_MAX);
        if to <= from {
            return;
        }
        self.populated.store(to, Ordering::Relaxed);
        // SAFETY: `from` is a page's start and `to` at most the end of this live mapping; the call makes pages present
        // and changes no byte, so it may run beside the writer. Its failure costs page faults later.
        unsafe {
            let start = self.map.as_mut_ptr().add(from as usize);
            libc::madvise(start.cast(), (to - from) as usize, libc::MADV_POPULATE_WRITE);
        }
    }

    /// # Safety
    /// One writer at a time, and nobody reads `position..position + bytes.len()` before this returns.
    pub unsafe fn write(&self, position: u64, bytes: &[u8]) {
        let end = position + bytes.len() as u64;
        assert!(end <= self.map.len() as u64);
        // SAFETY: the assert keeps the target inside the mapping, which lives as long as `self`; the caller excludes
        // other writers and readers of these bytes.
        unsafe {
            let target = self.map.as_mut_ptr().add(position as usize);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
        }
    }

    /// # Safety
    /// Nobody writes to `range` while the slice lives.
    pub unsafe fn slice(&self, range: Range<u64>) -> &[u8] {
        assert!(range.start <= range.end);
        assert!(range.end <= self.map.len() as u64);
        // SAFETY: inside the mapping by the asserts, which lives as long as `self`; the caller excludes writers.
        unsafe {
            let start = self.map.as_ptr().add(range.start as usize);
            std::slice::from_raw_parts(start, (range.end - range.start) as usize)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_lent_and_come_back() {
        let mut remarks = Vec::new();
        let pool = TransientPool::new(2, 65_536, true, &mut remarks).unwrap();
        pool.populate_next();
        let (first, second) = (pool.take().unwrap(), pool.take().unwrap());
        assert!(pool.take().is_none());
        // SAFETY: this test is the only user of the buffer, one step after the other.
        unsafe {
            first.write(65_530, b"abcdef");
            assert_eq!(first.slice(65_531..65_536), b"bcdef");
        }
        first.populate(65_000);
        first.populate(0);
        assert_eq!(first.populated(), 65_536);
        pool.give_back(second);
        assert_eq!(pool.free_count(), 1);
    }
}
