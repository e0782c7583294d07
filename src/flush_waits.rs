//! Sends of one shard that are stored and wait for the flush that covers them (SYNC_FLUSH).
//!
//! ```text
//! append ─> row, in log order ─┬─ `flushed` has passed its end ──> 0
//!                              ├─ syncFlushTimeout is over ──────> 10, stored all the same
//!                              └─ a flush has failed ────────────> 14, nobody knows whether it is stored
//! ```
//! What an answer needs is kept, not the message. The row dies with the process.
//! Source: GroupCommitService, FlushDiskWatcher.

use ringmq_net::protocol::writer::Reply;
use ringmq_net::reactor::ConnId;
use std::collections::VecDeque;

/// What the answer to a stored send says.
#[derive(Debug, PartialEq, Eq)]
pub struct Stored {
    pub conn: ConnId,
    pub reply: Reply,
    /// `None`: the answer says no more than its code, as that to the end of a transaction.
    pub queue_id: Option<i32>,
    pub queue_offset: u64,
    pub log_offset: u64,
    /// Of the further messages of a client batch.
    pub further: Box<[u64]>,
}

struct Wait {
    stored: Stored,
    /// Log offset behind the last record.
    end: u64,
    since_ns: u64,
}

pub struct FlushWaits {
    waits: VecDeque<Wait>,
    count_max: usize,
}

impl FlushWaits {
    /// `bytes_max`: what the row may take.
    pub fn new(bytes_max: usize) -> FlushWaits {
        FlushWaits { waits: VecDeque::new(), count_max: bytes_max / size_of::<Wait>() }
    }

    pub fn len(&self) -> usize {
        self.waits.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    /// Whether `more` sends that are not here yet leave room for another.
    pub fn is_full(&self, more: usize) -> bool {
        self.waits.len() + more >= self.count_max
    }

    pub fn push(&mut self, stored: Stored, end: u64, now_ns: u64) {
        debug_assert!(self.waits.back().is_none_or(|last| last.end <= end && last.since_ns <= now_ns));
        self.waits.push_back(Wait { stored, end, since_ns: now_ns });
    }

    /// The next that a flush has covered.
    pub fn pop_flushed(&mut self, flushed: u64) -> Option<Stored> {
        self.waits.pop_front_if(|wait| wait.end <= flushed).map(|wait| wait.stored)
    }

    /// The next that has waited for `timeout_ns`. The time-out is that of now, whatever it was when the wait began.
    pub fn pop_late(&mut self, now_ns: u64, timeout_ns: u64) -> Option<Stored> {
        self.waits.pop_front_if(|wait| wait.since_ns + timeout_ns <= now_ns).map(|wait| wait.stored)
    }

    pub fn pop(&mut self) -> Option<Stored> {
        self.waits.pop_front().map(|wait| wait.stored)
    }

    pub fn due_ns(&self, timeout_ns: u64) -> Option<u64> {
        self.waits.front().map(|wait| wait.since_ns + timeout_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringmq_net::protocol::frame::Serialize;

    fn stored(opaque: i32) -> Stored {
        Stored {
            conn: ConnId { slot: 0, generation: 0 },
            reply: Reply { opaque, serialize: Serialize::Json },
            queue_id: Some(0),
            queue_offset: 0,
            log_offset: 0,
            further: Box::default(),
        }
    }

    #[test]
    fn the_row_is_left_in_order_by_flush_or_time() {
        let mut waits = FlushWaits::new(1 << 16);
        for (opaque, end, now_ns) in [(1, 100, 10), (2, 200, 10), (3, 300, 20)] {
            waits.push(stored(opaque), end, now_ns);
        }
        let opaque = |stored: Option<Stored>| stored.map(|stored| stored.reply.opaque);
        assert_eq!(opaque(waits.pop_flushed(99)), None);
        assert_eq!(opaque(waits.pop_flushed(199)), Some(1));
        assert_eq!(opaque(waits.pop_flushed(199)), None);
        assert_eq!(waits.due_ns(5), Some(15));
        assert_eq!(opaque(waits.pop_late(14, 5)), None);
        assert_eq!(opaque(waits.pop_late(15, 5)), Some(2));
        assert_eq!(opaque(waits.pop_late(15, 5)), None);
        assert_eq!(opaque(waits.pop_late(20, 0)), Some(3));
        assert!(waits.is_empty());
        assert_eq!(waits.due_ns(5), None);
    }

    #[test]
    fn the_row_has_an_end() {
        let mut waits = FlushWaits::new(size_of::<Wait>() * 2);
        assert!(!waits.is_full(1));
        assert!(waits.is_full(2));
        waits.push(stored(1), 1, 1);
        assert!(waits.is_full(1));
    }
}
