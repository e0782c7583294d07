//! When a request of an open loop is due, whatever the broker does.
//!
//! ```text
//! even      |   |   |   |   |   |   |        number n is due n / rate seconds after the start
//! poisson   | |     |  | |        |  |       gaps drawn by the exponential distribution: many independent senders
//! ```
//! The drawn gaps are a table of 65 536 that repeats, scaled so that one pass of it takes exactly its time: the rate is
//! kept over any length, and the time of any request is found without those before it.

use crate::chance;
use std::rc::Rc;

const GAP_COUNT: usize = 1 << 16;
/// A gap of the table is in units of 1 / 2^32 of the mean gap.
const GAP_BITS: u32 = 32;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    #[default]
    Even,
    Poisson,
}

/// Request number `n` is due `n * messages / rate` seconds after the start, or about that.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Monotonic.
    pub start_ns: u64,
    /// Messages a second.
    rate: u64,
    /// Messages of a request.
    messages: u64,
    /// Sums of the drawn gaps, from 0 on; none for even arrivals.
    gaps: Option<Rc<[u64]>>,
}

impl Schedule {
    pub fn new(start_ns: u64, rate: u64, messages: u64, arrivals: Arrivals, seed: u64) -> Self {
        let gaps = match arrivals {
            Arrivals::Even => None,
            Arrivals::Poisson => Some(poisson(seed)),
        };
        Self { start_ns, rate, messages, gaps }
    }

    pub fn intended_ns(&self, number: u64) -> u64 {
        let messages = u128::from(self.messages);
        let rate = u128::from(self.rate);
        let ns = match &self.gaps {
            None => u128::from(number) * messages * 1_000_000_000 / rate,
            Some(gaps) => {
                let turn = u128::from(number) / GAP_COUNT as u128 * GAP_COUNT as u128;
                let sum = (turn << GAP_BITS) + u128::from(gaps[number as usize % GAP_COUNT]);
                (sum * messages * 1_000_000_000 / rate) >> GAP_BITS
            }
        };
        self.start_ns + ns as u64
    }
}

fn poisson(seed: u64) -> Rc<[u64]> {
    // 1 - share is never 0.
    let gaps: Vec<f64> = (0..GAP_COUNT as u64).map(|number| -(1.0 - chance::share(seed, number)).ln()).collect();
    let scale = (GAP_COUNT as f64 / gaps.iter().sum::<f64>()) * (1_u64 << GAP_BITS) as f64;
    let mut sum = 0.0;
    let sums = gaps.iter().map(|gap| {
        let before = sum;
        sum += gap * scale;
        before as u64
    });
    sums.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_does_not_drift() {
        // messages, number, intended
        for (messages, number, want) in [
            (1, 0, 100),
            (1, 1, 333_333_433),
            (1, 3, 1_000_000_100),
            (1, 3_000_000, 1_000_000_000_000_100),
            (32, 3, 32_000_000_100),
        ] {
            let schedule = Schedule::new(100, 3, messages, Arrivals::Even, 1);
            assert_eq!(schedule.intended_ns(number), want, "number={number}");
        }
    }

    #[test]
    fn drawn_arrivals_keep_the_rate_and_come_back_with_their_seed() {
        let rate = 1_000_000;
        let schedule = |seed| Schedule::new(100, rate, 1, Arrivals::Poisson, seed);
        let one = schedule(5);
        for turns in [0, 1, 1_000] {
            let number = turns * GAP_COUNT as u64;
            assert_eq!(one.intended_ns(number), 100 + number * 1000);
        }
        let times: Vec<u64> = (0..2 * GAP_COUNT as u64).map(|number| one.intended_ns(number)).collect();
        assert!(times.windows(2).all(|pair| pair[0] <= pair[1]));
        // Of exponential gaps a share of 1 - 1/e is below the mean, and 1/e^3 above three of it.
        let gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let share =
            |test: &dyn Fn(u64) -> bool| gaps.iter().filter(|gap| test(**gap)).count() as f64 / gaps.len() as f64;
        assert!((share(&|gap| gap < 1000) - 0.632).abs() < 0.02);
        assert!((share(&|gap| gap > 3000) - 0.0498).abs() < 0.01);
        let again = schedule(5);
        assert!((0..).zip(&times).all(|(number, time)| again.intended_ns(number) == *time));
        assert_ne!(one.intended_ns(7), schedule(6).intended_ns(7));
    }
}
