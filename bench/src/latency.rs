//! Latencies: nanoseconds in, three significant digits kept, microseconds out.

mod timeline;

pub use timeline::{Second, Timeline, merge, record};

use hdrhistogram::Histogram;
use serde::Serialize;
use std::fmt;

/// Longer than any run waits for an answer; what is longer counts as this.
const NS_MAX: u64 = 600_000_000_000;

/// Where the percentile curve has its points: of so many latencies one is above.
pub const CURVE_ONE_IN: [f64; 20] =
    [1.0, 1.25, 1.6, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6];

#[derive(Clone)]
pub struct Latency {
    histogram: Histogram<u64>,
}

impl Default for Latency {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, NS_MAX, 3).expect("the bounds are constants that fit");
        Self { histogram }
    }
}

impl Latency {
    pub fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
    }

    /// Takes in those of another thread.
    pub fn add(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("all have the same bounds");
    }

    pub fn summary(&self) -> Summary {
        let us = |ns: u64| ns as f64 / 1e3;
        let at = |quantile| us(self.histogram.value_at_quantile(quantile));
        Summary {
            count: self.histogram.len(),
            mean_us: self.histogram.mean() / 1e3,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            p9999_us: at(0.9999),
            max_us: us(self.histogram.max()),
            curve_us: CURVE_ONE_IN.map(|one_in| at(1.0 - 1.0 / one_in)),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Summary {
    pub count: u64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub p9999_us: f64,
    pub max_us: f64,
    /// By [`CURVE_ONE_IN`].
    pub curve_us: [f64; CURVE_ONE_IN.len()],
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { p50_us, p99_us, p999_us, p9999_us, max_us, .. } = self;
        write!(f, "p50 {p50_us:.0} µs  p99 {p99_us:.0} µs  p99.9 {p999_us:.0} µs  ")?;
        write!(f, "p99.99 {p9999_us:.0} µs  max {max_us:.0} µs")
    }
}

/// The middle one; the mean of the two middle ones of an even count. `None` of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        count if count % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_a_known_distribution() {
        let mut latency = Latency::default();
        for us in 1..=10_000_u64 {
            latency.record(us * 1_000);
        }
        let summary = latency.summary();
        assert_eq!(summary.count, 10_000);
        // what, want; three significant digits are kept
        for (got, want) in [
            (summary.mean_us, 5_000.5),
            (summary.p50_us, 5_000.0),
            (summary.p99_us, 9_900.0),
            (summary.p999_us, 9_990.0),
            (summary.p9999_us, 9_999.0),
            (summary.curve_us[3], 5_000.0),
            (summary.curve_us[12], 9_990.0),
            (summary.max_us, 10_000.0),
        ] {
            assert!((got - want).abs() <= want * 0.001, "got={got} want={want}");
        }
    }

    #[test]
    fn a_latency_beyond_the_range_is_kept_as_the_longest() {
        let mut latency = Latency::default();
        latency.record(0);
        latency.record(u64::MAX);
        let summary = latency.summary();
        assert_eq!(summary.count, 2);
        assert!(summary.max_us >= NS_MAX as f64 / 1e3);
    }

    #[test]
    fn the_median_of_few_values() {
        for (values, want) in
            [(&[][..], None), (&[3.0][..], Some(3.0)), (&[9.0, 1.0, 2.0][..], Some(2.0)), (&[4.0, 1.0][..], Some(2.5))]
        {
            assert_eq!(median(values), want, "{values:?}");
        }
    }
}
