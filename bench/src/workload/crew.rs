//! The threads of one workload: each has its own ring, its share of the connections and every n-th request, and all go
//! from phase to phase together.
//!
//! ```text
//! thread 0 (leads)   warm up ──▶ measure ──▶ drain ──▶ done      decides by what all have counted, and reads usages
//! thread 1 …         follows at its next turn                     requests 1, 1 + n, 1 + 2n … of the schedule
//! ```
//! One thread of this client feeds several cores of a broker; more are for a machine where that is not enough.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    WarmUp,
    Measure,
    Drain,
    Done,
}

const PHASES: [Phase; 4] = [Phase::WarmUp, Phase::Measure, Phase::Drain, Phase::Done];

#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub sent: u64,
    pub answered: u64,
    pub acknowledged: u64,
}

pub struct Crew {
    pub thread_count: u32,
    ready: AtomicU32,
    /// 0 until it is known.
    start_ns: AtomicU64,
    phase: AtomicU8,
    sent: AtomicU64,
    answered: AtomicU64,
    acknowledged: AtomicU64,
    has_failed: AtomicBool,
    gate: Barrier,
}

impl Crew {
    pub fn new(thread_count: u32) -> Self {
        assert!(thread_count > 0);
        Self {
            thread_count,
            ready: AtomicU32::new(0),
            start_ns: AtomicU64::new(0),
            phase: AtomicU8::new(Phase::WarmUp as u8),
            sent: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
            gate: Barrier::new(thread_count as usize),
        }
    }

    /// Connections of one thread.
    pub fn connections(&self, thread: u32, all: u32) -> u32 {
        all / self.thread_count + u32::from(thread < all % self.thread_count)
    }

    /// Once for each thread, when all its connections are open.
    pub fn ready(&self) {
        self.ready.fetch_add(1, Ordering::SeqCst);
    }

    /// When the first request is due, by the one that leads; `None` as long as connections are being opened.
    pub fn start_ns(&self, thread: u32, proposed_ns: u64) -> Option<u64> {
        let is_everybody_ready = self.ready.load(Ordering::SeqCst) == self.thread_count;
        if thread == 0 && is_everybody_ready && self.start_ns.load(Ordering::SeqCst) == 0 {
            self.start_ns.store(proposed_ns, Ordering::SeqCst);
        }
        Some(self.start_ns.load(Ordering::SeqCst)).filter(|start_ns| *start_ns > 0)
    }

    /// Adds what a thread has counted since it last told.
    pub fn tell(&self, told: &mut Counts, now: Counts) {
        self.sent.fetch_add(now.sent - told.sent, Ordering::SeqCst);
        self.answered.fetch_add(now.answered - told.answered, Ordering::SeqCst);
        self.acknowledged.fetch_add(now.acknowledged - told.acknowledged, Ordering::SeqCst);
        *told = now;
    }

    pub fn counts(&self) -> Counts {
        Counts {
            sent: self.sent.load(Ordering::SeqCst),
            answered: self.answered.load(Ordering::SeqCst),
            acknowledged: self.acknowledged.load(Ordering::SeqCst),
        }
    }

    pub fn phase(&self) -> Phase {
        PHASES[usize::from(self.phase.load(Ordering::SeqCst))]
    }

    pub fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::SeqCst);
    }

    pub fn fail(&self) {
        self.has_failed.store(true, Ordering::SeqCst);
    }

    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::SeqCst)
    }

    /// Returns when every thread has come here.
    pub fn meet(&self) {
        self.gate.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_shared_out_without_a_rest() {
        for (threads, all) in [(1, 4), (3, 4), (4, 4), (7, 1000)] {
            let crew = Crew::new(threads);
            let shares: Vec<u32> = (0..threads).map(|thread| crew.connections(thread, all)).collect();
            assert_eq!(shares.iter().sum::<u32>(), all);
            assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1, "{shares:?}");
        }
    }

    #[test]
    fn the_start_is_proposed_by_the_one_that_leads_when_all_are_ready() {
        let crew = Crew::new(2);
        crew.ready();
        assert_eq!((crew.start_ns(0, 5), crew.start_ns(1, 6)), (None, None));
        crew.ready();
        assert_eq!((crew.start_ns(1, 7), crew.start_ns(0, 8), crew.start_ns(1, 9)), (None, Some(8), Some(8)));
    }
}
