//! A connection without its socket: pieces in, whole frames out; answers in, lists of segments out.
//!
//! ```text
//! piece ──┬─ whole frames: slices of the piece ───────────────────────> on_frame
//!         └─ cut frame: copied to `held`, which grows with what came ─> on_frame once whole
//! buffer/push ─> segments [Vec | Bytes | Vec …] ─ one Flight at a time ─> SEND/SENDMSG
//! ```
//!
//! No I/O and no unsafe here.

use crate::protocol::frame::{FrameError, HEAD_BYTES, frame_head_limited};
use bytes::Bytes;

/// A buffer above this is not pooled.
const KEPT_BYTES_MAX: usize = 256 << 10;
/// A new buffer of an outbox has so much room.
const SEGMENT_BYTES: usize = 4 << 10;
/// Room of all pooled buffers, and number and length of pooled lists of segments (32 bytes each).
const POOL_BYTES_MAX: usize = 16 << 20;
const POOL_LIST_COUNT_MAX: usize = 1024;
const POOL_LIST_CAPACITY_MAX: usize = 256;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("half-received large frames hold {used_bytes} bytes, {more_bytes} more exceed the limit {bytes_max}")]
    PartialBytes { used_bytes: usize, more_bytes: usize, bytes_max: usize },
}

/// Memory of all half-received frames of a reactor that are longer than one receive buffer.
#[derive(Debug)]
pub struct PartialBudget {
    used_bytes: usize,
    bytes_max: usize,
    /// Room up to this is not counted: it is bounded by the number of connections.
    free_bytes: usize,
}

impl PartialBudget {
    pub fn new(bytes_max: usize, free_bytes: usize) -> Self {
        Self { used_bytes: 0, bytes_max, free_bytes }
    }

    #[cfg(test)]
    fn used_bytes(&self) -> usize {
        self.used_bytes
    }
}

/// Cuts frames from received pieces.
#[derive(Debug, Default)]
pub struct Inbox {
    /// The beginning of a frame that was cut, or a whole one that `next` has just returned.
    held: Vec<u8>,
    /// Of the frame in `held`; 0 while its head is not whole.
    frame_bytes: usize,
    /// Part of the budget that `held` has.
    charged_bytes: usize,
}

impl Inbox {
    /// The next whole frame at the front of `piece` (with what is held before it), or `None` when the piece is
    /// used up. A frame lives until the next call.
    ///
    /// # Errors
    /// The connection cannot go on: its bytes are no frames, or too much memory is held by half frames.
    pub fn next<'a, 'piece: 'a>(
        &'a mut self,
        piece: &mut &'piece [u8],
        frame_bytes_max: usize,
        budget: &mut PartialBudget,
    ) -> Result<Option<&'a [u8]>, Refusal> {
        self.release_read(budget);
        if self.held.is_empty() {
            let head = frame_head_limited(piece, frame_bytes_max)?;
            let frame_bytes = head.map_or(0, |head| head.frame_bytes);
            if frame_bytes != 0 && frame_bytes <= piece.len() {
                let (frame, rest) = piece.split_at(frame_bytes);
                *piece = rest;
                return Ok(Some(frame));
            }
            self.frame_bytes = frame_bytes;
            self.hold(piece, piece.len(), budget)?;
            return Ok(None);
        }
        if self.frame_bytes == 0 {
            self.hold(piece, HEAD_BYTES - self.held.len(), budget)?;
            match frame_head_limited(&self.held, frame_bytes_max)? {
                None => return Ok(None),
                Some(head) => self.frame_bytes = head.frame_bytes,
            }
        }
        self.hold(piece, self.frame_bytes - self.held.len(), budget)?;
        Ok((self.held.len() == self.frame_bytes).then_some(&self.held))
    }

    /// Moves up to `bytes` bytes from the front of `piece` into `held`, whose room at most doubles.
    fn hold(&mut self, piece: &mut &[u8], bytes: usize, budget: &mut PartialBudget) -> Result<(), Refusal> {
        let (taken, rest) = piece.split_at(bytes.min(piece.len()));
        let held_bytes = self.held.len() + taken.len();
        if held_bytes > self.held.capacity() {
            let doubled = held_bytes.max(2 * self.held.capacity());
            let room = match self.frame_bytes {
                0 => HEAD_BYTES,
                // No more than a receive buffer: taken at once.
                frame_bytes if frame_bytes <= budget.free_bytes => frame_bytes,
                frame_bytes => doubled.min(frame_bytes),
            };
            self.charge(room, budget)?;
            self.held.reserve_exact(room - self.held.len());
        }
        self.held.extend_from_slice(taken);
        *piece = rest;
        Ok(())
    }

    fn charge(&mut self, room: usize, budget: &mut PartialBudget) -> Result<(), Refusal> {
        let more_bytes = if room > budget.free_bytes { room - self.charged_bytes } else { 0 };
        if more_bytes > budget.bytes_max - budget.used_bytes {
            let (used_bytes, bytes_max) = (budget.used_bytes, budget.bytes_max);
            return Err(Refusal::PartialBytes { used_bytes, more_bytes, bytes_max });
        }
        budget.used_bytes += more_bytes;
        self.charged_bytes += more_bytes;
        Ok(())
    }

    /// Lets go of a frame that `next` returned.
    pub fn release_read(&mut self, budget: &mut PartialBudget) {
        if self.frame_bytes != 0 && self.held.len() == self.frame_bytes {
            self.release(budget);
        }
    }

    /// Forgets what is held and gives its part of the budget back.
    pub fn release(&mut self, budget: &mut PartialBudget) {
        budget.used_bytes -= self.charged_bytes;
        self.charged_bytes = 0;
        self.frame_bytes = 0;
        if self.held.capacity() > budget.free_bytes {
            self.held = Vec::new();
        } else {
            self.held.clear();
        }
    }

    /// In the middle of a frame.
    pub fn is_partial(&self) -> bool {
        !self.held.is_empty()
    }
}

/// A run of bytes to be sent.
#[derive(Debug)]
pub enum Segment {
    Owned(Vec<u8>),
    Shared(Bytes),
}

impl Segment {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Segment::Owned(bytes) => bytes,
            Segment::Shared(bytes) => bytes,
        }
    }
}

/// Emptied buffers of a reactor, for reuse: in a steady state no frame allocates.
#[derive(Default)]
pub struct Pool {
    buffers: Vec<Vec<u8>>,
    buffers_bytes: usize,
    lists: Vec<Vec<Segment>>,
}

impl Pool {
    fn buffer(&mut self) -> Vec<u8> {
        let Some(buffer) = self.buffers.pop() else { return Vec::with_capacity(SEGMENT_BYTES) };
        self.buffers_bytes -= buffer.capacity();
        buffer
    }

    fn list(&mut self) -> Vec<Segment> {
        self.lists.pop().unwrap_or_default()
    }

    pub fn recycle(&mut self, segment: Segment) {
        if let Segment::Owned(mut bytes) = segment
            && (1..=KEPT_BYTES_MAX).contains(&bytes.capacity())
            && self.buffers_bytes + bytes.capacity() <= POOL_BYTES_MAX
        {
            bytes.clear();
            self.buffers_bytes += bytes.capacity();
            self.buffers.push(bytes);
        }
    }

    /// `list` has been emptied.
    pub fn recycle_list(&mut self, list: Vec<Segment>) {
        debug_assert!(list.is_empty());
        if self.lists.len() < POOL_LIST_COUNT_MAX && (1..=POOL_LIST_CAPACITY_MAX).contains(&list.capacity()) {
            self.lists.push(list);
        }
    }
}

/// What waits to be sent on a connection.
#[derive(Default)]
pub struct Outbox {
    segments: Vec<Segment>,
    /// Of all segments but the last, which a caller of `tail` may still lengthen.
    sealed_bytes: usize,
}

impl Outbox {
    /// The buffer at the end, to append to.
    pub fn tail(&mut self, pool: &mut Pool) -> &mut Vec<u8> {
        if !matches!(self.segments.last(), Some(Segment::Owned(_))) {
            self.add(Segment::Owned(pool.buffer()), pool);
        }
        match self.segments.last_mut() {
            Some(Segment::Owned(tail)) => tail,
            _ => unreachable!("an owned segment is at the end"),
        }
    }

    pub fn push(&mut self, bytes: Bytes, pool: &mut Pool) {
        if !bytes.is_empty() {
            self.add(Segment::Shared(bytes), pool);
        }
    }

    fn add(&mut self, segment: Segment, pool: &mut Pool) {
        if self.segments.capacity() == 0 {
            self.segments = pool.list();
        }
        self.sealed_bytes += self.segments.last().map_or(0, |last| last.bytes().len());
        self.segments.push(segment);
    }

    pub fn bytes(&self) -> usize {
        self.sealed_bytes + self.segments.last().map_or(0, |last| last.bytes().len())
    }

    pub fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// All segments, in their order; the outbox is empty then.
    pub fn take(&mut self) -> Vec<Segment> {
        self.sealed_bytes = 0;
        std::mem::take(&mut self.segments)
    }

    pub fn clear(&mut self, pool: &mut Pool) {
        let mut segments = self.take();
        segments.drain(..).for_each(|segment| pool.recycle(segment));
        pool.recycle_list(segments);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FRAME_BYTES_MAX: usize = 1 << 20;

    fn frame(header_bytes: usize, body_bytes: usize) -> Vec<u8> {
        let mut frame = (4 + header_bytes + body_bytes).to_be_bytes()[4..].to_vec();
        frame.extend((header_bytes as u32).to_be_bytes());
        frame.extend((0..header_bytes + body_bytes).map(|index| index as u8));
        frame
    }

    /// Frames that come out when `bytes` comes in pieces of the given lengths, repeated.
    fn cut(bytes: &[u8], lengths: &[usize], budget: &mut PartialBudget) -> Result<Vec<Vec<u8>>, Refusal> {
        let mut inbox = Inbox::default();
        let mut frames = Vec::new();
        let mut rest = bytes;
        for length in lengths.iter().cycle() {
            let (mut piece, after) = rest.split_at((*length).min(rest.len()));
            while let Some(frame) = inbox.next(&mut piece, FRAME_BYTES_MAX, budget)? {
                frames.push(frame.to_vec());
            }
            assert!(piece.is_empty());
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        Ok(frames)
    }

    #[test]
    fn a_frame_may_be_cut_at_every_byte() {
        let frames = [frame(10, 30), frame(0, 0), frame(3, 0), frame(0, 90)];
        let bytes = frames.concat();
        for first in 1..=bytes.len() {
            for second in [1, 2, 7, bytes.len()] {
                let mut budget = PartialBudget::new(1000, 16);
                assert_eq!(cut(&bytes, &[first, second], &mut budget).unwrap(), frames, "{first} {second}");
                assert_eq!(budget.used_bytes(), 0);
            }
        }
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_frames(
            sizes in prop::collection::vec((0_usize..300, 0_usize..5000), 1..20),
            lengths in prop::collection::vec(1_usize..4000, 1..20),
        ) {
            let frames: Vec<_> = sizes.iter().map(|&(header, body)| frame(header, body)).collect();
            let mut budget = PartialBudget::new(1 << 20, 1024);
            prop_assert_eq!(cut(&frames.concat(), &lengths, &mut budget).unwrap(), frames);
            prop_assert_eq!(budget.used_bytes(), 0);
        }

        #[test]
        fn noise_never_panics(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            lengths in prop::collection::vec(1_usize..20, 1..5),
        ) {
            let _ = cut(&bytes, &lengths, &mut PartialBudget::new(1 << 20, 64));
        }
    }

    /// Fault 1 and 3: a length word alone takes no memory.
    #[test]
    fn room_grows_with_what_came() {
        let large = frame(100, FRAME_BYTES_MAX - 108);
        let mut inbox = Inbox::default();
        let mut budget = PartialBudget::new(2 << 20, 4096);
        let mut received_bytes = 0;
        for mut piece in large.chunks(1000) {
            received_bytes += piece.len();
            let whole = inbox.next(&mut piece, FRAME_BYTES_MAX, &mut budget).unwrap().is_some();
            assert_eq!(whole, received_bytes == large.len());
            assert!(inbox.held.capacity() <= 2 * received_bytes.max(64));
            assert!(budget.used_bytes() <= inbox.held.capacity());
            assert!(inbox.held.capacity() <= 4096 || budget.used_bytes() == inbox.held.capacity());
        }
        assert_eq!(inbox.held, large);
        assert!(inbox.next(&mut [].as_slice(), FRAME_BYTES_MAX, &mut budget).unwrap().is_none());
        assert_eq!((budget.used_bytes(), inbox.held.capacity()), (0, 0));
    }

    #[test]
    fn half_frames_share_one_limit() {
        let large = frame(0, 60_000);
        let mut budget = PartialBudget::new(100_000, 4096);
        let mut inboxes = [Inbox::default(), Inbox::default()];
        let mut refused = None;
        for mut piece in large[..60_000].chunks(1000) {
            for inbox in &mut inboxes {
                let mut piece = std::mem::take(&mut piece);
                if let Err(error) = inbox.next(&mut piece, FRAME_BYTES_MAX, &mut budget) {
                    refused = Some(error);
                    inbox.release(&mut budget);
                }
            }
            assert!(budget.used_bytes() <= 100_000);
        }
        assert_eq!(refused, None, "one alone fits");
        let mut both = large[..59_000].chunks(1000).map(|piece| {
            let mut piece = piece;
            inboxes[1].next(&mut piece, FRAME_BYTES_MAX, &mut budget).map(|_| ())
        });
        assert!(both.any(|result| matches!(result, Err(Refusal::PartialBytes { bytes_max: 100_000, .. }))));
        inboxes.iter_mut().for_each(|inbox| inbox.release(&mut budget));
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn wrong_lengths_end_at_the_first_four_bytes() {
        for word in [*b"GET ", [0xff; 4], [0, 0, 0, 3], [0x7f, 0xff, 0xff, 0xff]] {
            for length in 1..=4 {
                assert!(cut(&word, &[length], &mut PartialBudget::new(1000, 64)).is_err(), "{word:?}");
            }
        }
    }

    #[test]
    fn segments_keep_their_order() {
        let mut pool = Pool::default();
        let mut outbox = Outbox::default();
        assert!(outbox.is_empty());
        outbox.tail(&mut pool).extend(b"ab");
        outbox.tail(&mut pool).extend(b"c");
        outbox.push(Bytes::from_static(b"def"), &mut pool);
        outbox.push(Bytes::new(), &mut pool);
        outbox.push(Bytes::from_static(b"g"), &mut pool);
        outbox.tail(&mut pool).extend(b"hi");
        assert_eq!(outbox.bytes(), 9);
        let segments = outbox.take();
        assert_eq!(segments.len(), 4);
        assert_eq!(segments.iter().flat_map(|segment| segment.bytes()).copied().collect::<Vec<_>>(), b"abcdefghi");
        assert!(outbox.is_empty());
    }
}
