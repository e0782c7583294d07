//! When to look for idle connections, and how often to complain.

const NANOS_PER_MS: u64 = 1_000_000;
/// Two sweeps are so far apart at least, or a quarter of a shorter limit.
const SWEEP_NS: u64 = 1_000 * NANOS_PER_MS;

/// A coarse sweep over all connections: traffic sets no timer, it only moves its connection's `active_ns`. A
/// connection is closed at most one sweep later than its limit says. Times are `mono_ns`.
pub struct IdleSweep {
    idle_ns: u64,
    next_ns: Option<u64>,
}

impl IdleSweep {
    pub fn new(idle_ms: u64) -> Self {
        Self { idle_ns: idle_ms.max(1).saturating_mul(NANOS_PER_MS), next_ns: None }
    }

    /// A connection was opened.
    pub fn add(&mut self, now_ns: u64) {
        if self.next_ns.is_none() {
            self.next_ns = Some(now_ns.saturating_add(self.idle_ns));
        }
    }

    /// A sweep is needed at `at_ns` at the latest.
    pub fn hurry(&mut self, at_ns: u64) {
        self.next_ns = Some(self.next_ns.map_or(at_ns, |next_ns| next_ns.min(at_ns)));
    }

    pub fn next_ns(&self) -> Option<u64> {
        self.next_ns
    }

    pub fn is_due(&self, now_ns: u64) -> bool {
        self.next_ns.is_some_and(|next_ns| next_ns <= now_ns)
    }

    pub fn is_idle(&self, active_ns: u64, now_ns: u64) -> bool {
        now_ns.saturating_sub(active_ns) >= self.idle_ns
    }

    /// A sweep is over; `oldest_ns` is the oldest `active_ns` it left.
    pub fn swept(&mut self, oldest_ns: Option<u64>, now_ns: u64) {
        let earliest_ns = now_ns + SWEEP_NS.min(self.idle_ns / 4);
        self.next_ns = oldest_ns.map(|oldest_ns| oldest_ns.saturating_add(self.idle_ns).max(earliest_ns));
    }
}

/// At most `LINE_COUNT_MAX` log lines a second about peers that anybody can make.
#[derive(Default)]
pub struct LogLimit {
    second: u64,
    count: u32,
    dropped_count: u64,
}

impl LogLimit {
    const LINE_COUNT_MAX: u32 = 10;

    /// `Some` when a line may be written: how many were dropped since the last one.
    pub fn line(&mut self, now_ns: u64) -> Option<u64> {
        let second = now_ns / (1_000 * NANOS_PER_MS);
        if second != self.second {
            (self.second, self.count) = (second, 0);
        }
        if self.count == Self::LINE_COUNT_MAX {
            self.dropped_count += 1;
            return None;
        }
        self.count += 1;
        Some(std::mem::take(&mut self.dropped_count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_limited_by_the_second() {
        let mut limit = LogLimit::default();
        let second = 1_000 * NANOS_PER_MS;
        assert_eq!((0..25).filter(|_| limit.line(5 * second).is_some()).count(), 10);
        assert_eq!(limit.line(6 * second), Some(15));
        assert_eq!(limit.line(6 * second), Some(0));
    }

    #[test]
    fn sweeps_follow_the_oldest_connection() {
        let second = 1_000 * NANOS_PER_MS;
        let mut sweep = IdleSweep::new(120_000);
        assert_eq!(sweep.next_ns(), None);
        sweep.add(5 * second);
        sweep.add(50 * second);
        assert_eq!(sweep.next_ns(), Some(125 * second));
        assert!(!sweep.is_due(124 * second) && sweep.is_due(125 * second));
        assert!(sweep.is_idle(5 * second, 125 * second) && !sweep.is_idle(50 * second, 125 * second));
        // oldest left, next sweep
        for (oldest, want) in [(Some(50), Some(170)), (Some(5), Some(126)), (None, None)] {
            sweep.swept(oldest.map(|oldest| oldest * second), 125 * second);
            assert_eq!(sweep.next_ns(), want.map(|want: u64| want * second), "{oldest:?}");
        }
        for (at, want) in [(300, 300), (200, 200), (250, 200)] {
            sweep.hurry(at * second);
            assert_eq!(sweep.next_ns(), Some(want * second));
        }
    }
}
