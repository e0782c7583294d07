//! Open loop with consumers that wait: from the intended send time to the acknowledgement and to the pulled message
//! ([`super::round_trip`]).

pub use super::round_trip::Report;

use super::round_trip::{self, Pace, Plan};
use super::schedule::Arrivals;
use super::{Payload, Target};
use std::io;
use std::time::Duration;

#[derive(Clone, Debug, clap::Args)]
pub struct Settings {
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub payload: Payload,
    /// Messages a second
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub rate: u64,
    /// How messages follow each other
    #[arg(long, value_enum, default_value = "even")]
    pub arrivals: Arrivals,
    /// Measured time, after the warm-up
    #[arg(long, visible_alias = "duration", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: u64,
    /// Seconds at the same rate before the measured part
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub warmup: u64,
    /// Connections that pull; the queues are shared out
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub consumers: u32,
    /// Messages a pull asks for
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub pull: u32,
}

/// Runs to the end.
///
/// # Errors
/// The broker cannot be reached, does not create the topic, closes connections or falls silent.
pub fn run(settings: &Settings) -> io::Result<Report> {
    let Settings { target, payload, rate, arrivals, seconds, warmup, consumers, pull } = settings;
    round_trip::run(&Plan {
        name: "e2e",
        target,
        payload,
        pace: Pace::Open { rate: *rate, arrivals: *arrivals },
        consumers: *consumers,
        pull: *pull,
        warmup: Duration::from_secs(*warmup),
        measured: Duration::from_secs(*seconds),
        delays: &[],
    })
}
