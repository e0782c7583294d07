//! Every interleaving of holding a pull and appending to its queue: no wake-up is lost.
//!
//! The protocol of `src/broker/hold.rs`, as a model with loom's atomics:
//!
//! ```text
//! hold      waiters |= bit ─ SeqCst fence ─ read max again ──> nothing new: held
//! append    max published ── SeqCst fence ─ read waiters ────> wake that shard
//! ```
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release --test hold_loom`; otherwise this is an empty test.
//! Without the fences both sides may read the old value (store buffering): `without_fences_a_wake_up_is_lost` keeps the
//! proof that they are needed. The model must be changed together with `HoldTable::hold`, `rest` and `Shard::append`.

#![cfg(loom)]

use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;

struct Queue {
    max: AtomicU64,
    waiters: AtomicU64,
}

struct Shared {
    queue: Queue,
    /// The mailbox of the holding shard: a lock, as the real one has.
    mails: Mutex<u32>,
}

impl Shared {
    fn new() -> Shared {
        Shared { queue: Queue { max: AtomicU64::new(0), waiters: AtomicU64::new(0) }, mails: Mutex::new(0) }
    }

    /// `Shard::append` and `wake_others` of another shard. `bit` is the holder's.
    fn append(&self, fenced: bool, bit: u64) {
        self.queue.max.fetch_add(1, Ordering::Release);
        if fenced {
            fence(Ordering::SeqCst);
        }
        if self.queue.waiters.load(if fenced { Ordering::SeqCst } else { Ordering::Relaxed }) & bit != 0 {
            *self.mails.lock().unwrap() += 1;
        }
    }

    /// `HoldTable::hold`. True: held, the pull waits for a mail.
    fn hold(&self, fenced: bool, bit: u64, from: u64) -> bool {
        let order = if fenced { Ordering::SeqCst } else { Ordering::Relaxed };
        self.queue.waiters.fetch_or(bit, order);
        if fenced {
            fence(Ordering::SeqCst);
        }
        if self.queue.max.load(Ordering::Acquire) > from {
            self.rest(bit);
            return false;
        }
        true
    }

    /// `HoldTable::rest`, when nobody of this shard waits any more.
    fn rest(&self, bit: u64) {
        self.queue.waiters.fetch_and(!bit, Ordering::SeqCst);
    }
}

fn check(appenders: u32, fenced: bool) {
    loom::model(move || {
        let shared = Arc::new(Shared::new());
        let threads: Vec<_> = (0..appenders)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.append(fenced, 1))
            })
            .collect();
        let is_held = shared.hold(fenced, 1, 0);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let mails = *shared.mails.lock().unwrap();
        assert!(!is_held || mails > 0, "held with {} messages and nobody told", appenders);
    });
}

#[test]
fn one_appender() {
    check(1, true);
}

#[test]
fn two_appenders() {
    check(2, true);
}

/// The fences are not there for show: the very same steps lose a wake-up without them.
#[test]
#[should_panic(expected = "nobody told")]
fn without_fences_a_wake_up_is_lost() {
    check(1, false);
}

/// Woken, answered, held again at the new end: the bit that the first answer cleared is set again before the look.
#[test]
fn a_second_hold_after_a_wake_up() {
    loom::model(|| {
        let shared = Arc::new(Shared::new());
        let appender = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.append(true, 1);
                shared.append(true, 1);
            })
        };
        let mut from = 0;
        let mut is_held = shared.hold(true, 1, from);
        // One turn of the holder: a mail lets it look, and an answer lets it ask again.
        let is_rung = std::mem::take(&mut *shared.mails.lock().unwrap()) > 0;
        if !is_held || is_rung {
            if is_held {
                shared.rest(1);
            }
            from = shared.queue.max.load(Ordering::Acquire);
            is_held = shared.hold(true, 1, from);
        }
        appender.join().unwrap();
        let max = shared.queue.max.load(Ordering::Acquire);
        let mails = *shared.mails.lock().unwrap();
        assert!(!is_held || max == from || mails > 0, "held at {from} of {max} and nobody told");
    });
}

/// Two shards wait for one queue: each has its own bit, and the one's rest does not take the other's.
#[test]
fn two_holders() {
    loom::model(|| {
        let shared = Arc::new(Shared::new());
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                if !shared.hold(true, 2, 5) {
                    return;
                }
                shared.rest(2);
            })
        };
        let appender = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.append(true, 1))
        };
        let is_held = shared.hold(true, 1, 0);
        other.join().unwrap();
        appender.join().unwrap();
        let mails = *shared.mails.lock().unwrap();
        assert!(!is_held || mails > 0, "held and nobody told");
    });
}
