//! Producers and consumers at once, as hard as they can or at a rate: what a broker gives when it must do both, with both
//! latencies and how far the consumers fell behind ([`super::round_trip`]). One thread of this client does all of it.

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
    /// Requests in flight on each connection that sends, without a rate
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub in_flight: u32,
    /// Messages a second: open loop, latencies from the intended time
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub rate: Option<u64>,
    /// How the messages of an open loop follow each other
    #[arg(long, value_enum, default_value = "even")]
    pub arrivals: Arrivals,
    /// Measured time, after the warm-up
    #[arg(long, visible_alias = "duration", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: u64,
    /// Seconds before the measured part
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub warmup: u64,
    /// Connections that pull; the queues are shared out
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
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
    let Settings { target, payload, arrivals, .. } = settings;
    let closed = Pace::Closed { in_flight: settings.in_flight };
    round_trip::run(&Plan {
        name: "mixed",
        target,
        payload,
        pace: settings.rate.map_or(closed, |rate| Pace::Open { rate, arrivals: *arrivals }),
        consumers: settings.consumers,
        pull: settings.pull,
        warmup: Duration::from_secs(settings.warmup),
        measured: Duration::from_secs(settings.seconds),
        delays: &[],
    })
}
