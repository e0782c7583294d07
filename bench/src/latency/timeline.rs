//! A run second by second, by the time of the answers, and the line of a terminal that shows it while it runs.

use super::{Latency, NS_MAX};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::io::Write;

const SECOND_NS: u64 = 1_000_000_000;

/// One second of a run, its first or last may be shorter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Second {
    /// From the begin of the measured part on.
    pub at_s: u64,
    pub messages: u64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}

/// Two significant digits: it is emptied every second, and a plot shows no more.
pub struct Timeline {
    from_ns: Option<u64>,
    second: u64,
    messages: u64,
    histogram: Histogram<u64>,
    seconds: Vec<Second>,
    /// What the line on the terminal begins with.
    live: Option<String>,
}

impl Timeline {
    pub fn new(live: Option<&str>) -> Self {
        let histogram = Histogram::new_with_bounds(1, NS_MAX, 2).expect("the bounds are constants that fit");
        let live = live.map(str::to_owned);
        Self { from_ns: None, second: 0, messages: 0, histogram, seconds: Vec::new(), live }
    }

    /// The begin of the measured part is that of the first second.
    pub fn begin(&mut self, now_ns: u64) {
        self.from_ns.get_or_insert(now_ns);
    }

    /// `now_ns` never goes back. Before [`Timeline::begin`] nothing is recorded.
    pub fn record(&mut self, now_ns: u64, latency_ns: Option<u64>, messages: u64) {
        let Some(from_ns) = self.from_ns else { return };
        let second = now_ns.saturating_sub(from_ns) / SECOND_NS;
        if second > self.second {
            self.close();
            self.second = second;
        }
        self.messages += messages;
        if let Some(ns) = latency_ns {
            self.histogram.saturating_record(ns);
        }
    }

    fn close(&mut self) {
        let us = |ns: u64| ns as f64 / 1e3;
        let second = Second {
            at_s: self.second,
            messages: self.messages,
            p50_us: us(self.histogram.value_at_quantile(0.5)),
            p99_us: us(self.histogram.value_at_quantile(0.99)),
            max_us: us(self.histogram.max()),
        };
        if let Some(name) = &self.live {
            let Second { at_s, messages, p50_us, p99_us, max_us } = second;
            eprint!(
                "\r{name} {at_s:>4} s  {messages:>8} msg/s  p50 {p50_us:.0} µs  p99 {p99_us:.0} µs  max {max_us:.0} µs\x1b[K"
            );
            // A terminal that is gone is no reason to end a measurement.
            let _ = std::io::stderr().flush();
        }
        self.seconds.push(second);
        self.messages = 0;
        self.histogram.reset();
    }

    pub fn finish(mut self) -> Vec<Second> {
        if self.messages > 0 {
            self.close();
        }
        if self.live.is_some() && !self.seconds.is_empty() {
            eprint!("\r\x1b[K");
        }
        self.seconds
    }
}

/// Of threads that began together: messages are summed, and of the percentiles the worst stands for all, because the
/// histograms of a second are gone by then.
pub fn merge(all: &mut Vec<Second>, other: &[Second]) {
    for second in other {
        match all.iter_mut().find(|known| known.at_s == second.at_s) {
            Some(known) => {
                known.messages += second.messages;
                known.p50_us = known.p50_us.max(second.p50_us);
                known.p99_us = known.p99_us.max(second.p99_us);
                known.max_us = known.max_us.max(second.max_us);
            }
            None => all.push(*second),
        }
    }
    all.sort_by_key(|second| second.at_s);
}

/// Both at once: what all workloads do with the latency of one request.
pub fn record(latency: &mut Latency, timeline: &mut Timeline, now_ns: u64, ns: u64, messages: u64) {
    latency.record(ns);
    timeline.record(now_ns, Some(ns), messages);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_falls_into_its_seconds() {
        let mut timeline = Timeline::new(None);
        timeline.record(4, Some(1), 1);
        timeline.begin(5);
        for (now_ns, us) in
            [(5, 10), (SECOND_NS, 30), (SECOND_NS + 5, 40), (3 * SECOND_NS + 4, 50), (3 * SECOND_NS + 5, 60)]
        {
            timeline.record(now_ns, Some(us * 1000), 2);
        }
        let seconds = timeline.finish();
        let places: Vec<_> = seconds.iter().map(|second| (second.at_s, second.messages)).collect();
        // The third second had no answer, and there is none for it.
        assert_eq!(places, [(0, 4), (1, 2), (2, 2), (3, 2)]);
        assert!((29.0..=31.0).contains(&seconds[0].max_us), "{seconds:?}");
        let mut all = seconds.clone();
        merge(
            &mut all,
            &[
                Second { at_s: 1, messages: 5, ..Second::default() },
                Second { at_s: 9, messages: 1, ..Second::default() },
            ],
        );
        assert_eq!((all[1].messages, all.last().unwrap().at_s), (7, 9));
    }
}
