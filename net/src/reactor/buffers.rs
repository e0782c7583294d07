//! Receive buffers that the kernel picks from (a provided-buffer ring, `IORING_REGISTER_PBUF_RING`).
//!
//! ```text
//! one mapping   | entry 0 | entry 1 | … entry n-1 |  page boundary  | buffer 0 | buffer 1 | … |
//! entry, 16     | address 8 | length 4 | id 2 | tail 2, of entry 0 only |
//! ```
//!
//! We write entries and the tail, the kernel takes them in order. A buffer belongs to the kernel from
//! `give_back` until a CQE names it; between the two it is ours and a [`Received`] stands for it.

use io_uring::types::BufRingEntry;
use std::io;
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};

const PAGE_BYTES: usize = 4096;
const ENTRY_BYTES: usize = size_of::<BufRingEntry>();
/// `tail` lies where entry 0 has its reserved field.
const TAIL_POSITION: usize = 14;
/// The kernel's limit of a buffer ring.
pub const BUFFER_COUNT_MAX: u16 = 1 << 15;

const _: () = assert!(ENTRY_BYTES == 16);

/// The mapping. Shared with the ring, which outlives all operations that may write into it.
pub struct Region {
    base: NonNull<u8>,
    bytes: usize,
}

impl Region {
    fn new(bytes: usize) -> io::Result<Self> {
        // SAFETY: a fresh anonymous mapping; nothing existing is replaced without MAP_FIXED.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { base: NonNull::new(base.cast()).expect("mmap gives no null page"), bytes })
    }

    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `base..base + bytes` is the mapping made in `new`; the last owner drops it, and no slice into it
        // outlives the `BufferRing` it was borrowed from.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// A filled buffer, ours until it is given back. Made from a CQE only.
#[derive(Debug)]
pub struct Received {
    id: u16,
    bytes: u32,
}

impl Received {
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }
}

pub struct BufferRing {
    region: Rc<Region>,
    count: u16,
    buffer_bytes: usize,
    /// Where buffer 0 begins in the region.
    buffers_position: usize,
    tail: u16,
}

impl BufferRing {
    /// `count` is rounded up to a power of two. All buffers are the kernel's once the ring is registered.
    ///
    /// # Errors
    /// No memory.
    pub fn new(count: u16, buffer_bytes: u32) -> io::Result<Self> {
        let count = count.clamp(1, BUFFER_COUNT_MAX).next_power_of_two();
        let buffer_bytes = (buffer_bytes.max(64) as usize).next_multiple_of(64);
        let buffers_position = (usize::from(count) * ENTRY_BYTES).next_multiple_of(PAGE_BYTES);
        let region = Rc::new(Region::new(buffers_position + usize::from(count) * buffer_bytes)?);
        let mut ring = Self { region, count, buffer_bytes, buffers_position, tail: 0 };
        for id in 0..count {
            ring.add(id);
        }
        Ok(ring)
    }

    pub fn region(&self) -> &Rc<Region> {
        &self.region
    }

    pub fn count(&self) -> u16 {
        self.count
    }

    pub fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// The CQE said that the kernel has put `bytes` bytes into buffer `id`.
    pub(super) fn received(id: u16, bytes: u32) -> Received {
        Received { id, bytes }
    }

    pub fn bytes(&self, received: &Received) -> &[u8] {
        assert!(received.id < self.count);
        assert!(received.bytes() <= self.buffer_bytes);
        // SAFETY: the asserts keep the slice inside buffer `id` of the live mapping. The kernel filled its first
        // `bytes` bytes and does not touch it again before `add`, which consumes the `Received`.
        unsafe {
            let buffer = self.region.base.as_ptr().add(self.position(received.id));
            std::slice::from_raw_parts(buffer, received.bytes())
        }
    }

    pub fn give_back(&mut self, received: Received) {
        self.add(received.id);
    }

    fn position(&self, id: u16) -> usize {
        self.buffers_position + usize::from(id) * self.buffer_bytes
    }

    fn add(&mut self, id: u16) {
        assert!(id < self.count);
        let index = usize::from(self.tail & (self.count - 1));
        let address = self.region.address() + self.position(id) as u64;
        // SAFETY: `index` is below `count`, so the entry lies inside the mapping and is aligned (the mapping is by
        // a page, entries are 16 bytes). The kernel reads entries below the tail only, and there are as many
        // entries as buffers, so this one is not below it. No Rust reference to the entries is kept.
        unsafe {
            let entry = &mut *self.region.base.as_ptr().cast::<BufRingEntry>().add(index);
            entry.set_addr(address);
            entry.set_len(self.buffer_bytes as u32);
            entry.set_bid(id);
        }
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: two aligned bytes of the mapping, of which the kernel is a reader only; `set_*` above do not
        // touch them. Release: the entry is there before the tail says so.
        unsafe {
            let tail = &*self.region.base.as_ptr().add(TAIL_POSITION).cast::<AtomicU16>();
            tail.store(self.tail, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_made_to_fit() {
        // count, bytes, count then, bytes then
        for (count, bytes, want_count, want_bytes) in [(1, 1, 1, 64), (5, 4096, 8, 4096), (256, 16384, 256, 16384)] {
            let ring = BufferRing::new(count, bytes).unwrap();
            assert_eq!((ring.count(), ring.buffer_bytes()), (want_count, want_bytes));
            assert_eq!(ring.tail, ring.count());
        }
    }

    #[test]
    fn each_buffer_has_its_own_bytes() {
        let mut ring = BufferRing::new(4, 64).unwrap();
        let slices: Vec<_> = (0..4).map(|id| ring.bytes(&BufferRing::received(id, 64)).as_ptr_range()).collect();
        for pair in slices.windows(2) {
            assert_eq!(pair[0].end, pair[1].start);
        }
        for turn in 0..70_000_u32 {
            ring.give_back(BufferRing::received((turn % 4) as u16, 1));
        }
        assert_eq!(ring.tail, (4 + 70_000_u32) as u16);
    }
}
