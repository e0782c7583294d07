//! Delayed messages: sent at a rate with the property DELAY, and pulled from the topic they were sent to. How late they
//! come, and that none comes early ([`super::round_trip`]).
//!
//! The delay of a level is the broker's (`messageDelayLevel`), or RocketMQ's where a broker does not give its own. Java's
//! broker looks at each level every 100 ms, which is what its lateness shows.

pub use super::round_trip::Report;

use super::round_trip::{self, Delay, Pace, Plan};
use super::schedule::Arrivals;
use super::{Payload, Target};
use std::io;
use std::time::Duration;

const DELAYS: &str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h";

#[derive(Clone, Debug, clap::Args)]
pub struct Settings {
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub payload: Payload,
    /// Levels of the delay, taken in turn; 1 is a second, 2 are five, if the broker does not say otherwise
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub levels: Vec<u32>,
    /// Messages a second
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub rate: u64,
    /// How messages follow each other
    #[arg(long, value_enum, default_value = "even")]
    pub arrivals: Arrivals,
    /// Measured time of sending, after the warm-up
    #[arg(long, visible_alias = "duration", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: u64,
    /// Seconds at the same rate before the measured part
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub warmup: u64,
}

/// Runs until the last delay has passed.
///
/// # Errors
/// As [`super::e2e::run`], and for a level that the broker has not.
pub fn run(settings: &Settings) -> io::Result<Report> {
    let Settings { target, payload, .. } = settings;
    let configured = target.facts().delay_levels;
    let delays = delays(configured.as_deref().unwrap_or(DELAYS), &settings.levels)?;
    round_trip::run(&Plan {
        name: "delay",
        target,
        payload,
        pace: Pace::Open { rate: settings.rate, arrivals: settings.arrivals },
        consumers: 1,
        pull: 32,
        warmup: Duration::from_secs(settings.warmup),
        measured: Duration::from_secs(settings.seconds),
        delays: &delays,
    })
}

fn delays(configured: &str, levels: &[u32]) -> io::Result<Vec<Delay>> {
    let all: Vec<&str> = configured.split_ascii_whitespace().collect();
    let delay = |level: &u32| {
        let text = all.get(*level as usize - 1).copied();
        let seconds = text.and_then(seconds);
        let unknown = || io::Error::other(format!("no level {level} in messageDelayLevel {configured:?}"));
        seconds.map(|seconds| Delay { level: *level, ns: seconds * 1_000_000_000 }).ok_or_else(unknown)
    };
    levels.iter().map(delay).collect()
}

fn seconds(text: &str) -> Option<u64> {
    let unit = match text.chars().last()? {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return None,
    };
    text[..text.len() - 1].parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_as_the_broker_has_them() {
        let second = 1_000_000_000;
        for (configured, levels, want) in [
            (DELAYS, &[1, 5, 18][..], Some(vec![second, 60 * second, 7_200 * second])),
            ("3s  1d", &[2, 1][..], Some(vec![86_400 * second, 3 * second])),
            ("3s", &[2][..], None),
            ("3x", &[1][..], None),
            ("", &[1][..], None),
        ] {
            let found = delays(configured, levels).ok();
            let found = found.map(|found| found.iter().map(|delay| delay.ns).collect::<Vec<_>>());
            assert_eq!(found, want, "{configured}");
        }
    }
}
