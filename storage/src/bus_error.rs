//! SIGBUS: a page of a mapped log file can not be read, its sector is bad or the file has become shorter.
//!
//! ```text
//! fault in a watched mapping   a page of zeros takes its place, the address is noted, whoever read goes on
//!       anywhere else          as if nobody had asked for the signal
//! ```
//! Zeros are no record: a pull passes the entry by, a start takes it for damage. Without this one bad sector would end the
//! process again and again, at each pull that comes to it. The page stays one of zeros until the file is mapped anew.
//! A store into such a page is lost, so a write into a mapping looks at [`count`] before it is believed.

use nix::libc;
use std::io;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

const PAGE_BYTES: usize = 4096;
/// More files than a store has mapped at once are read as before, without protection.
const RANGE_COUNT: usize = 8192;
const FAULT_COUNT: usize = 64;

struct Range {
    start: AtomicUsize,
    end: AtomicUsize,
}

static RANGES: [Range; RANGE_COUNT] =
    [const { Range { start: AtomicUsize::new(0), end: AtomicUsize::new(0) } }; RANGE_COUNT];
/// Slots from here on were never used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// The last addresses, in a ring.
static FAULTS: [AtomicUsize; FAULT_COUNT] = [const { AtomicUsize::new(0) }; FAULT_COUNT];
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Who had the signal before.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());
static INSTALLED: Once = Once::new();

/// A mapping that may fault, until this is dropped: before the mapping is.
pub(crate) struct Watched {
    slot: Option<usize>,
}

/// How often a page was replaced in this process.
pub(crate) fn count() -> usize {
    COUNT.load(Ordering::Acquire)
}

/// The addresses since the fault number `seen`, as far as they are known.
pub(crate) fn faults_since(seen: &mut usize) -> Vec<usize> {
    let count = count();
    let from = (*seen).max(count.saturating_sub(FAULT_COUNT));
    *seen = count;
    (from..count).map(|number| FAULTS[number % FAULT_COUNT].load(Ordering::Acquire)).collect()
}

pub(crate) fn watch(start: *const u8, bytes: usize) -> Watched {
    INSTALLED.call_once(install);
    let start = start as usize;
    let take = |slot: &usize| {
        let free = &RANGES[*slot].start;
        free.compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    let slot = (0..RANGE_COUNT).find(take);
    if let Some(slot) = slot {
        RANGES[slot].end.store(start + bytes, Ordering::Release);
        USED.fetch_max(slot + 1, Ordering::AcqRel);
    }
    Watched { slot }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            RANGES[slot].end.store(0, Ordering::Release);
            RANGES[slot].start.store(0, Ordering::Release);
        }
    }
}

fn install() {
    // SAFETY: all fields are set; the handler is async-signal-safe (atomics, mmap, sigaction). What was there before is
    // kept for good, since the handler may need it at any time.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = handle;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigemptyset(&mut action.sa_mask);
        let before: *mut libc::sigaction = Box::into_raw(Box::new(std::mem::zeroed()));
        if libc::sigaction(libc::SIGBUS, &action, before) == 0 {
            BEFORE.store(before, Ordering::Release);
        } else {
            tracing::warn!(error = %io::Error::last_os_error(), "unreadable sectors of the log will end the process");
        }
    }
}

extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid `info` for SIGBUS.
    let address = unsafe { (*info).si_addr() } as usize;
    let ranges = &RANGES[..USED.load(Ordering::Acquire)];
    let is_ours = address != 0
        && ranges.iter().any(|range| {
            let (start, end) = (range.start.load(Ordering::Acquire), range.end.load(Ordering::Acquire));
            start != 0 && (start..end).contains(&address)
        });
    if is_ours && replace_page(address) {
        let number = COUNT.load(Ordering::Relaxed);
        FAULTS[number % FAULT_COUNT].store(address, Ordering::Release);
        COUNT.fetch_add(1, Ordering::AcqRel);
        return;
    }
    // SAFETY: what `install` has kept is a valid action and is never freed. A handler of that kind takes these arguments.
    unsafe {
        let before = BEFORE.load(Ordering::Acquire);
        let is_function = |action: usize| action != libc::SIG_DFL && action != libc::SIG_IGN;
        if !before.is_null() && (*before).sa_flags & libc::SA_SIGINFO != 0 && is_function((*before).sa_sigaction) {
            type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            let handler = std::mem::transmute::<usize, Handler>((*before).sa_sigaction);
            return handler(signal, info, context);
        }
        // The instruction faults once more, and ends the process.
        let mut default: libc::sigaction = std::mem::zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(libc::SIGBUS, &default, std::ptr::null_mut());
    }
}

fn replace_page(address: usize) -> bool {
    let page = address & !(PAGE_BYTES - 1);
    // SAFETY: the page lies in a mapping of ours that lives (its slot is given back first), and its content is lost anyway.
    // Whoever reads it finds zeros from here on.
    let mapped = unsafe {
        libc::mmap(
            page as *mut libc::c_void,
            PAGE_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    mapped != libc::MAP_FAILED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_gone_reads_as_zeros_and_is_told() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(3 * PAGE_BYTES as u64).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[7; 3 * PAGE_BYTES], 0).unwrap();
        let map = memmap2::MmapOptions::new().len(3 * PAGE_BYTES).map_raw_read_only(&file).unwrap();
        let watched = watch(map.as_ptr(), map.len());
        let mut seen = count();
        file.set_len(PAGE_BYTES as u64).unwrap();
        // SAFETY: inside the mapping, which lives; a read that faults is what is tested.
        let read = |at: usize| unsafe { map.as_ptr().add(at).read_volatile() };
        assert_eq!((read(10), read(PAGE_BYTES + 10), read(2 * PAGE_BYTES)), (7, 0, 0));
        let told = faults_since(&mut seen);
        assert!(told.contains(&(map.as_ptr() as usize + PAGE_BYTES + 10)), "{told:x?}");
        assert!(told.contains(&(map.as_ptr() as usize + 2 * PAGE_BYTES)), "{told:x?}");
        assert!(faults_since(&mut seen).len() < 2);
        drop(watched);
    }
}
