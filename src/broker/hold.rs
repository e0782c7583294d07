//! Pulls that found nothing and may wait.
//!
//! ```text
//! hold      waiters |= shard's bit ─ SeqCst fence ─ read max again ──> nothing new: held
//! append    max published ────────── SeqCst fence ─ read waiters ────> wake that shard
//! ```
//! Whatever the order of the two, one of them sees the other: no wake-up is lost (`tests/hold_loom.rs`).
//! A held pull keeps the bytes of its request; arrival and deadline run the same pull again, with suspension off.
//! Every 5 s a pull whose queue has grown is run again even if nothing matched: its answer moves a filtered consumer
//! forward. One table for each shard; it dies with the process.
//! Source: PullRequestHoldService.java.

use super::filter::Filter;
use ringmq_net::reactor::ConnId;
use ringmq_storage::consume_queue::{ConsumeQueue, Entry};
use ringmq_storage::store::Store;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Between two looks at a held pull whose filter did not match.
const SWEEP_NS: u64 = 5_000_000_000;
/// Entries tested at a time.
const STEP_COUNT: usize = 256;

pub struct Held {
    pub conn: ConnId,
    /// The whole request.
    pub frame: Box<[u8]>,
    pub queue: Arc<ConsumeQueue>,
    pub filter: Filter,
    /// The first offset wanted.
    pub from: u64,
    /// Entries below have been tested.
    pub checked_to: u64,
    /// Monotonic: the answer leaves then at the latest.
    pub deadline_ns: u64,
}

impl Held {
    /// Whether an entry that came since the last look passes the filter. A queue that cannot be read counts: the pull
    /// is run and says what is wrong.
    fn has_match(&mut self, store: &Store, entries: &mut Vec<Entry>) -> bool {
        let max = self.queue.max();
        if max <= self.checked_to {
            return false;
        }
        if self.filter.is_all() {
            return true;
        }
        while self.checked_to < max {
            entries.clear();
            if self.queue.read(self.checked_to, STEP_COUNT, entries).is_err() || entries.is_empty() {
                return true;
            }
            if entries.iter().any(|entry| self.filter.accepts(entry, store)) {
                return true;
            }
            self.checked_to += entries.len() as u64;
        }
        false
    }
}

type Id = u64;

struct Slot {
    held: Held,
    /// When the table looks at it next.
    look_ns: u64,
}

pub struct HoldTable {
    /// This shard's bit in the queues' `waiters`.
    bit: u64,
    count_max: usize,
    store: Arc<Store>,
    next_id: Id,
    slots: HashMap<Id, Slot>,
    by_queue: BTreeSet<(usize, Id)>,
    by_conn: BTreeSet<(ConnId, Id)>,
    by_time: BTreeSet<(u64, Id)>,
    entries: Vec<Entry>,
}

fn key(queue: &Arc<ConsumeQueue>) -> usize {
    Arc::as_ptr(queue) as usize
}

impl HoldTable {
    pub fn new(shard: u8, count_max: usize, store: Arc<Store>) -> HoldTable {
        assert!(shard < 64, "one bit of a u64 for each shard");
        HoldTable {
            bit: 1 << shard,
            count_max,
            store,
            next_id: 0,
            slots: HashMap::new(),
            by_queue: BTreeSet::new(),
            by_conn: BTreeSet::new(),
            by_time: BTreeSet::new(),
            entries: Vec::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Gives the pull back when it must run at once: something arrived meanwhile, or the table is full.
    pub fn hold(&mut self, mut held: Held, now_ns: u64) -> Option<Held> {
        if self.slots.len() >= self.count_max {
            return Some(held);
        }
        held.queue.waiters.fetch_or(self.bit, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let queue = Arc::clone(&held.queue);
        if held.has_match(&self.store, &mut self.entries) {
            self.rest(&queue);
            return Some(held);
        }
        self.store.await_visible(&queue);
        let id = self.next_id;
        self.next_id += 1;
        let look_ns = held.deadline_ns.min(now_ns + SWEEP_NS);
        self.by_queue.insert((key(&queue), id));
        self.by_conn.insert((held.conn, id));
        self.by_time.insert((look_ns, id));
        self.slots.insert(id, Slot { held, look_ns });
        None
    }

    /// Takes out what the queue's new entries wake.
    pub fn arrived(&mut self, queue: &Arc<ConsumeQueue>, out: &mut Vec<Held>) {
        let ids: Vec<Id> = self.by_queue.range((key(queue), 0)..=(key(queue), Id::MAX)).map(|(_, id)| *id).collect();
        for id in ids {
            let Some(slot) = self.slots.get_mut(&id) else { continue };
            if slot.held.has_match(&self.store, &mut self.entries) {
                out.extend(self.take(id));
            }
        }
        self.rest(queue);
    }

    /// Takes out what must run now: past its deadline, or behind its queue at the 5 s look.
    pub fn due(&mut self, now_ns: u64, out: &mut Vec<Held>) {
        while let Some(&(look_ns, id)) = self.by_time.first() {
            if look_ns > now_ns {
                break;
            }
            let slot = self.slots.get_mut(&id).expect("each id by time has its slot");
            if slot.held.deadline_ns <= now_ns || slot.held.queue.max() > slot.held.from {
                let held = self.take(id);
                if let Some(held) = &held {
                    self.rest(&Arc::clone(&held.queue));
                }
                out.extend(held);
            } else {
                self.by_time.remove(&(look_ns, id));
                slot.look_ns = slot.held.deadline_ns.min(now_ns + SWEEP_NS);
                self.by_time.insert((slot.look_ns, id));
            }
        }
    }

    pub fn next_due_ns(&self) -> Option<u64> {
        self.by_time.first().map(|(look_ns, _)| *look_ns)
    }

    /// Takes out what waits for queues that are no longer `current`: their topics were deleted.
    pub fn stale(&mut self, current: impl Fn(&Arc<ConsumeQueue>) -> bool, out: &mut Vec<Held>) {
        let stale = self.slots.iter().filter(|(_, slot)| !current(&slot.held.queue));
        let ids: Vec<Id> = stale.map(|(id, _)| *id).collect();
        out.extend(ids.into_iter().filter_map(|id| self.take(id)));
    }

    /// The connection is gone.
    pub fn forget(&mut self, conn: ConnId) {
        let ids: Vec<Id> = self.by_conn.range((conn, 0)..=(conn, Id::MAX)).map(|(_, id)| *id).collect();
        for id in ids {
            if let Some(held) = self.take(id) {
                self.rest(&held.queue);
            }
        }
    }

    /// Everything, at stop.
    pub fn drain(&mut self) -> Vec<Held> {
        let ids: Vec<Id> = self.slots.keys().copied().collect();
        ids.into_iter().filter_map(|id| self.take(id)).collect()
    }

    fn take(&mut self, id: Id) -> Option<Held> {
        let Slot { held, look_ns } = self.slots.remove(&id)?;
        self.by_queue.remove(&(key(&held.queue), id));
        self.by_conn.remove(&(held.conn, id));
        self.by_time.remove(&(look_ns, id));
        Some(held)
    }

    /// Nobody here waits for the queue any more: appends need not look here.
    fn rest(&self, queue: &Arc<ConsumeQueue>) {
        if self.by_queue.range((key(queue), 0)..=(key(queue), Id::MAX)).next().is_none() {
            queue.waiters.fetch_and(!self.bit, Ordering::SeqCst);
        }
    }
}
