//! `simulate`: the crash sweep of the store for as long as one likes, and again what it found.

use crate::SimulateArgs;
use ringmq_storage::testing::crash_sweep::{Depth, Mode, Sweep};
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const DEPTH: Depth = Depth { stride: 7, recovery_points: 5, recovery_stride: 2 };

/// `true` when every promise was kept. What was not, a panic tells on stderr, with the arguments to run it again.
pub fn run(args: &SimulateArgs, out: &mut impl Write) -> io::Result<bool> {
    let modes: Vec<Mode> =
        Mode::ALL.into_iter().filter(|mode| args.mode.is_none_or(|wanted| wanted == *mode)).collect();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
    let mut seed = args.seed.unwrap_or(since);
    let end = Instant::now() + Duration::from_secs(args.seconds);
    loop {
        for mode in &modes {
            let mut sweep = Sweep::new(*mode, seed);
            let done = catch_unwind(AssertUnwindSafe(|| match args.at {
                Some(at) => sweep.point(at, Some(1)),
                None => sweep.run(DEPTH),
            }));
            let counts = sweep.counts;
            writeln!(
                out,
                "{} seed {seed}: stopped at {} calls, {} starts checked, {} starts stopped, {} records read: {}",
                mode.name(),
                counts.points,
                counts.starts,
                counts.starts_ended,
                counts.records,
                if done.is_ok() { "sound" } else { "A PROMISE IS BROKEN" },
            )?;
            out.flush()?;
            if done.is_err() {
                return Ok(false);
            }
        }
        if args.seed.is_some() || Instant::now() >= end {
            return Ok(true);
        }
        seed += 1;
    }
}
