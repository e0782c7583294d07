//! The ring: submission, completion, and what must stay alive between the two.
//!
//! ```text
//! user_data   | operation 8 | 0 24 | slot 32 |
//! ```
//!
//! Everything an operation points to is owned here from its push until its CQE: bytes and iovecs of a send as a
//! [`Flight`], the receive buffers as the [`Region`]. Whoever drops a ring with operations outstanding leaks
//! them; the kernel never meets freed memory.

use super::buffers::{BufferRing, Received, Region};
use super::connection::{Pool, Segment};
use super::error::RingError;
use io_uring::types::{BufRingEntry, CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The one buffer group of a ring.
const BUFFER_GROUP: u16 = 0;
/// A send operation carries so much at most. Its CQE is the only sign of progress that the idle limit sees: a
/// reader must take this within it.
const SEND_BYTES_MAX: usize = 1 << 20;
/// The kernel's limit (UIO_MAXIOV).
const IOVEC_COUNT_MAX: usize = 1024;
/// `io_uring_register` operations that io-uring keeps to itself.
const REGISTER_RING_FDS: libc::c_uint = 20;
const UNREGISTER_RING_FDS: libc::c_uint = 21;
const SEND_FLAGS: i32 = libc::MSG_WAITALL | libc::MSG_NOSIGNAL;

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Operation {
    Accept = 1,
    Receive = 2,
    Send = 3,
    Bell = 4,
    Cancel = 5,
}

fn token(operation: Operation, slot: u32) -> u64 {
    (operation as u64) << 56 | u64::from(slot)
}

/// What a CQE says. `result` is a count or an errno, `more` that the same operation goes on.
pub enum Completion {
    Accept {
        listener: u32,
        result: Result<OwnedFd, i32>,
        more: bool,
    },
    /// `Ok(None)` is the end of the peer's bytes.
    Receive {
        slot: u32,
        result: Result<Option<Received>, i32>,
        more: bool,
    },
    Send {
        slot: u32,
        result: Result<usize, i32>,
        flight: Box<Flight>,
    },
    Bell {
        more: bool,
    },
    Cancel,
}

/// Segments on their way out, and how far they got.
pub struct Flight {
    segments: Vec<Segment>,
    /// The segment where the rest begins, and how much of it is sent.
    first: usize,
    position: usize,
    left_bytes: usize,
    iovecs: Vec<libc::iovec>,
    header: libc::msghdr,
}

impl Flight {
    pub fn new() -> Box<Self> {
        Box::new(Self {
            segments: Vec::new(),
            first: 0,
            position: 0,
            left_bytes: 0,
            iovecs: Vec::new(),
            // SAFETY: a msghdr is numbers and pointers; all zero is its empty value.
            header: unsafe { std::mem::zeroed() },
        })
    }

    pub fn load(&mut self, segments: Vec<Segment>) {
        assert!(self.segments.is_empty());
        self.left_bytes = segments.iter().map(|segment| segment.bytes().len()).sum();
        assert!(self.left_bytes > 0);
        (self.segments, self.first, self.position) = (segments, 0, 0);
    }

    pub fn left_bytes(&self) -> usize {
        self.left_bytes
    }

    /// `bytes` were sent. What is sent is let go at once: it may pin a file.
    pub fn advance(&mut self, bytes: usize, pool: &mut Pool) {
        assert!(bytes <= self.left_bytes);
        self.left_bytes -= bytes;
        self.position += bytes;
        while let Some(segment) = self.segments.get_mut(self.first) {
            let segment_bytes = segment.bytes().len();
            if self.position < segment_bytes {
                break;
            }
            self.position -= segment_bytes;
            self.first += 1;
            pool.recycle(std::mem::replace(segment, Segment::Owned(Vec::new())));
        }
        if self.left_bytes == 0 {
            self.unload(pool);
        }
    }

    /// Lets go of all segments.
    pub fn unload(&mut self, pool: &mut Pool) {
        self.left_bytes = 0;
        self.segments.drain(..).for_each(|segment| pool.recycle(segment));
        pool.recycle_list(std::mem::take(&mut self.segments));
    }

    /// The operation for the next part. Its pointers are good while `self` lives unchanged.
    fn operation(&mut self, fd: RawFd) -> squeue::Entry {
        self.iovecs.clear();
        let mut position = self.position;
        let mut room = SEND_BYTES_MAX;
        for segment in &self.segments[self.first..] {
            let bytes = &segment.bytes()[position..];
            position = 0;
            if bytes.is_empty() {
                continue;
            }
            let length = bytes.len().min(room);
            self.iovecs.push(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: length });
            room -= length;
            if room == 0 || self.iovecs.len() == IOVEC_COUNT_MAX {
                break;
            }
        }
        match *self.iovecs {
            [] => unreachable!("a flight without bytes"),
            [only] => opcode::Send::new(Fd(fd), only.iov_base.cast_const().cast(), only.iov_len as u32)
                .flags(SEND_FLAGS)
                .build(),
            _ => {
                self.header.msg_iov = self.iovecs.as_mut_ptr();
                self.header.msg_iovlen = self.iovecs.len();
                opcode::SendMsg::new(Fd(fd), &raw const self.header).flags(SEND_FLAGS as u32).build()
            }
        }
    }
}

/// The argument of (UN)REGISTER_RING_FDS: `struct io_uring_rsrc_update`.
#[repr(C)]
struct RingFdUpdate {
    /// The index in the thread's table; all ones lets the kernel choose.
    offset: u32,
    reserved: u32,
    data: u64,
}

pub struct Ring {
    uring: IoUring,
    /// What `enter` names the ring by: an index in the thread's table, which saves the kernel the look-up and the
    /// count of the descriptor in each call. `None` if the table was full.
    registered: Option<u32>,
    /// By connection slot.
    flights: Vec<Option<Box<Flight>>>,
    /// The receive buffers, once registered.
    region: Option<Rc<Region>>,
    /// Operations whose last CQE has not been seen.
    outstanding: usize,
    /// CQEs taken while the submission queue was full.
    backlog: Vec<cqueue::Entry>,
}

impl Ring {
    /// `polls`: the kernel marks pending work where user space sees it ([`has_work`](Self::has_work)).
    ///
    /// # Errors
    /// io_uring is denied or too old; the error names the remedy.
    pub fn new(sq_entries: u32, polls: bool) -> Result<Self, RingError> {
        let sq_entries = sq_entries.clamp(8, 1 << 14).next_power_of_two();
        let mut builder = IoUring::builder();
        builder
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_coop_taskrun()
            .setup_submit_all()
            .setup_cqsize(4 * sq_entries)
            .dontfork();
        if polls {
            builder.setup_taskrun_flag();
        }
        let uring = builder.build(sq_entries).map_err(|error| RingError::setup(&error))?;
        if !uring.params().is_feature_nodrop() || !uring.params().is_feature_ext_arg() {
            return Err(RingError::too_old("NODROP and EXT_ARG"));
        }
        let mut update = RingFdUpdate { offset: u32::MAX, reserved: 0, data: uring.as_raw_fd() as u64 };
        let registered = register_ring_fd(&uring, REGISTER_RING_FDS, &mut update).then_some(update.offset);
        Ok(Self { uring, registered, flights: Vec::new(), region: None, outstanding: 0, backlog: Vec::new() })
    }

    pub fn uring(&self) -> &IoUring {
        &self.uring
    }

    /// # Errors
    /// The kernel has no buffer rings (before 5.19) or no memory.
    pub fn register_buffers(&mut self, buffers: &BufferRing) -> io::Result<()> {
        assert!(self.region.is_none());
        let region = Rc::clone(buffers.region());
        let address = region.address();
        debug_assert_eq!(address as usize % align_of::<BufRingEntry>(), 0);
        // SAFETY: the region begins with `count` entries, is page-aligned, and lives as long as this ring: `drop`
        // leaks it if operations are outstanding.
        unsafe {
            self.uring.submitter().register_buf_ring_with_flags(address, buffers.count(), BUFFER_GROUP, 0)?;
        }
        self.region = Some(region);
        Ok(())
    }

    pub fn accept(&mut self, listener: u32, fd: RawFd) -> Result<(), RingError> {
        let entry = opcode::AcceptMulti::new(Fd(fd)).flags(libc::SOCK_CLOEXEC).build();
        self.push(entry, Operation::Accept, listener)
    }

    /// One multishot receive into the provided buffers.
    pub fn receive(&mut self, slot: u32, fd: RawFd) -> Result<(), RingError> {
        let entry = opcode::RecvMulti::new(Fd(fd), BUFFER_GROUP).build();
        self.push(entry, Operation::Receive, slot)
    }

    /// At most one for each slot: its bytes must leave in their order.
    pub fn send(&mut self, slot: u32, fd: RawFd, mut flight: Box<Flight>) -> Result<(), RingError> {
        let index = slot as usize;
        if self.flights.len() <= index {
            self.flights.resize_with(index + 1, || None);
        }
        assert!(self.flights[index].is_none(), "two sends of slot {slot}");
        let entry = flight.operation(fd);
        self.flights[index] = Some(flight);
        self.push(entry, Operation::Send, slot)
    }

    /// A CQE for each time the eventfd is written, until one says it was the last.
    pub fn poll_bell(&mut self, fd: RawFd) -> Result<(), RingError> {
        let entry = opcode::PollAdd::new(Fd(fd), libc::POLLIN as u32).multi(true).build();
        self.push(entry, Operation::Bell, 0)
    }

    pub fn cancel_accept(&mut self, listener: u32) -> Result<(), RingError> {
        self.cancel(CancelBuilder::user_data(token(Operation::Accept, listener)))
    }

    pub fn cancel_receive(&mut self, slot: u32) -> Result<(), RingError> {
        self.cancel(CancelBuilder::user_data(token(Operation::Receive, slot)))
    }

    pub fn cancel_all(&mut self) -> Result<(), RingError> {
        self.cancel(CancelBuilder::any().all())
    }

    fn cancel(&mut self, what: CancelBuilder) -> Result<(), RingError> {
        self.push(opcode::AsyncCancel2::new(what).build(), Operation::Cancel, 0)
    }

    fn push(&mut self, entry: squeue::Entry, operation: Operation, slot: u32) -> Result<(), RingError> {
        let entry = entry.user_data(token(operation, slot));
        loop {
            // SAFETY: entries are built in this file only. They point to nothing, or to a flight that `flights`
            // owns until its CQE, or name the buffer group of `region`, which lives as long.
            let pushed = unsafe { self.uring.submission().push(&entry) };
            if pushed.is_ok() {
                self.outstanding += 1;
                return Ok(());
            }
            self.enter(0, None)?;
            // A full completion queue keeps the kernel from taking submissions.
            self.backlog.extend(self.uring.completion());
        }
    }

    /// Submits what is queued, runs deferred work, and waits for `wanted` CQEs, at most for `timeout`. Being
    /// interrupted, timed out or told to reap first is no error.
    pub fn enter(&mut self, wanted: u32, timeout: Option<Duration>) -> Result<(), RingError> {
        let to_submit = self.uring.submission().len() as u32;
        let timespec = timeout.map(Timespec::from);
        let mut args = SubmitArgs::new();
        if let Some(timespec) = &timespec {
            args = args.timespec(timespec);
        }
        let mut flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        let fd = match self.registered {
            Some(index) => {
                flags |= EnterFlags::REGISTERED_RING;
                index as RawFd
            }
            None => self.uring.as_raw_fd(),
        };
        // SAFETY: `fd` names this ring on the thread that made it (a ring is not `Send`). `args` is the argument that
        // EXT_ARG announces, with its size; it and its timespec live through the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                fd,
                to_submit,
                wanted,
                flags.bits(),
                &raw const args,
                size_of_val(&args),
            )
        };
        if result >= 0 {
            return Ok(());
        }
        let source = io::Error::last_os_error();
        match source.raw_os_error() {
            Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
            _ => Err(RingError::Enter { source }),
        }
    }

    /// Something to reap, or (of a ring that `polls`) work that an `enter` would turn into completions.
    pub fn has_work(&mut self) -> bool {
        !self.backlog.is_empty() || !self.uring.completion().is_empty() || self.uring.submission().taskrun()
    }

    /// Moves all CQEs there are into `into`.
    pub fn reap(&mut self, into: &mut Vec<cqueue::Entry>) -> Result<(), RingError> {
        into.append(&mut self.backlog);
        loop {
            into.extend(self.uring.completion());
            if !self.uring.submission().cq_overflow() {
                return Ok(());
            }
            // The kernel keeps what found no room until it is asked.
            self.enter(0, None)?;
        }
    }

    pub fn completion(&mut self, entry: &cqueue::Entry) -> Completion {
        let slot = entry.user_data() as u32;
        let more = cqueue::more(entry.flags());
        let result = match entry.result() {
            count @ 0.. => Ok(count as u32),
            error => Err(-error),
        };
        if !more {
            self.outstanding -= 1;
        }
        match (entry.user_data() >> 56) as u8 {
            operation if operation == Operation::Accept as u8 => {
                // SAFETY: an accept has just made this descriptor for us; nobody else knows it.
                let result = result.map(|fd| unsafe { OwnedFd::from_raw_fd(fd as RawFd) });
                Completion::Accept { listener: slot, result, more }
            }
            operation if operation == Operation::Receive as u8 => {
                let received = cqueue::buffer_select(entry.flags());
                let result = match (result, received) {
                    // A buffer may come back without bytes; it still has to be given back.
                    (Ok(bytes), Some(id)) => Ok(Some(BufferRing::received(id, bytes))),
                    (Ok(_), None) => Ok(None),
                    (Err(error), _) => Err(error),
                };
                Completion::Receive { slot, result, more }
            }
            operation if operation == Operation::Send as u8 => {
                let flight = self.flights[slot as usize].take().expect("a send has its flight");
                Completion::Send { slot, result: result.map(|bytes| bytes as usize), flight }
            }
            operation if operation == Operation::Bell as u8 => Completion::Bell { more },
            _ => Completion::Cancel,
        }
    }

    /// Ends all operations and waits for their CQEs, `timeout` at most. Sockets should be shut down before.
    pub fn drain(&mut self, timeout: Duration) {
        let mut entries = Vec::new();
        let deadline = Instant::now() + timeout;
        let _ = self.cancel_all();
        while self.outstanding > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.enter(1, Some(left)).is_err() || self.reap(&mut entries).is_err() {
                break;
            }
            for entry in entries.drain(..) {
                // Closes an accepted socket, frees a flight.
                drop(self.completion(&entry));
            }
        }
    }
}

fn register_ring_fd(uring: &IoUring, operation: libc::c_uint, update: &mut RingFdUpdate) -> bool {
    // SAFETY: one `update` is read and written during the call.
    let count = unsafe {
        libc::syscall(libc::SYS_io_uring_register, uring.as_raw_fd(), operation, ptr::from_mut(update), 1_u32)
    };
    count == 1
}

impl Drop for Ring {
    fn drop(&mut self) {
        if let Some(offset) = self.registered {
            // Else the thread's table keeps the ring until the thread ends.
            register_ring_fd(&self.uring, UNREGISTER_RING_FDS, &mut RingFdUpdate { offset, reserved: 0, data: 0 });
        }
        if self.outstanding > 0 {
            tracing::error!(operations = self.outstanding, "io_uring: dropped in flight, their memory is leaked");
            std::mem::forget(std::mem::take(&mut self.flights));
            std::mem::forget(self.region.take());
        }
    }
}

/// Nanoseconds of CLOCK_MONOTONIC, milliseconds of the wall clock since 1970.
pub fn clocks() -> (u64, u64) {
    let read = |clock| {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is a valid timespec to write to; both clocks exist on every Linux.
        let result = unsafe { libc::clock_gettime(clock, ptr::from_mut(&mut time)) };
        debug_assert_eq!(result, 0);
        (time.tv_sec as u64, time.tv_nsec as u64)
    };
    let (seconds, nanos) = read(libc::CLOCK_MONOTONIC);
    let (wall_seconds, wall_nanos) = read(libc::CLOCK_REALTIME);
    (seconds * 1_000_000_000 + nanos, wall_seconds * 1000 + wall_nanos / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    /// More rings than a thread's table has places (16), one after the other and at once.
    #[test]
    fn rings_give_their_place_back() {
        for _ in 0..40 {
            assert!(Ring::new(8, false).unwrap().registered.is_some());
        }
        let mut rings: Vec<_> = (0..20).map(|_| Ring::new(8, false).unwrap()).collect();
        assert!(rings.iter().any(|ring| ring.registered.is_none()));
        for ring in &mut rings {
            ring.enter(0, None).unwrap();
            ring.enter(1, Some(Duration::from_millis(1))).unwrap();
        }
    }

    #[test]
    fn a_flight_goes_on_where_the_kernel_stopped() {
        let mut pool = Pool::default();
        let mut flight = Flight::new();
        let mut rest: Vec<u8> = (0..=99).collect();
        let owned = |range: std::ops::Range<u8>| Segment::Owned(range.collect());
        flight.load(vec![
            owned(0..10),
            Segment::Owned(Vec::new()),
            Segment::Shared(Bytes::from((10..60).collect::<Vec<u8>>())),
            owned(60..100),
        ]);
        for bytes in [3, 7, 0, 49, 1, 39] {
            let entry = flight.operation(0);
            let want = if flight.iovecs.len() == 1 { opcode::Send::CODE } else { opcode::SendMsg::CODE };
            assert_eq!(entry.get_opcode(), u32::from(want));
            assert_eq!(flight.iovecs.iter().map(|iovec| iovec.iov_len).sum::<usize>(), rest.len());
            flight.advance(bytes, &mut pool);
            rest.drain(..bytes);
            assert_eq!(flight.left_bytes(), rest.len());
        }
        flight.advance(1, &mut pool);
        assert!(flight.segments.is_empty());
    }

    #[test]
    fn a_send_is_limited() {
        let mut flight = Flight::new();
        flight.load((0..3000).map(|_| Segment::Owned(vec![1; 100])).collect());
        flight.operation(0);
        assert_eq!(flight.iovecs.len(), IOVEC_COUNT_MAX);
        flight.unload(&mut Pool::default());
        flight.load(vec![Segment::Owned(vec![1; SEND_BYTES_MAX + 1])]);
        flight.operation(0);
        assert_eq!(flight.iovecs[0].iov_len, SEND_BYTES_MAX);
    }
}
