//! Command line of the load generator; see the library for what it measures.

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use ringmq_bench::report::{Figures, Output};
use ringmq_bench::workload::{consume, delay, e2e, mixed, produce, transaction};
use ringmq_bench::{compare, echo, ladder, memory, peer, tune};
use serde::Serialize;
use std::fmt::Display;
use std::io;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Parser)]
#[command(name = "ringmq-bench", version, about = "Load generator for brokers of the RocketMQ remoting protocol")]
struct Arguments {
    #[command(subcommand)]
    command: Workload,
    #[command(flatten)]
    output: Output,
}

#[derive(Subcommand)]
enum Workload {
    /// Sends: closed loop with so many requests in flight, or with --rate open loop by a schedule
    Produce(produce::Settings),
    /// The same as `produce`, with 32 messages of 128 bytes a request
    Batch(produce::Settings),
    /// Open loop with held pulls: latency from the intended send time to the pulled message
    E2e(e2e::Settings),
    /// Producers and consumers at once, closed loop or with --rate open loop, with both latencies
    Mixed(mixed::Settings),
    /// Drains existing queues
    Consume(consume::Settings),
    /// Half messages and their commits and rollbacks; the broker's questions are answered
    Transaction(transaction::Settings),
    /// Messages with a delay level: how late they come, and that none comes early
    Delay(delay::Settings),
    /// Rising rates up to saturation: throughput against latency, and the knee
    Ladder(ladder::Settings),
    /// Measure configurations of ringmq for a goal, and write the recommended broker.conf
    Tune(Box<tune::Settings>),
    /// Start two brokers in turn and print medians and ratios; --workloads table is the table of docs/benchmarks.md
    Compare(Box<compare::Settings>),
    /// Touch the machine's free memory once: a virtual machine may get it from its host only then, page by page
    Touch(memory::Settings),
    /// Serve as a broker that stores nothing, for the floor of the other figures
    Echo(echo::Settings),
}

fn main() -> ExitCode {
    let command = Arguments::command().mut_subcommand("batch", |batch| {
        batch.mut_arg("batch", |arg| arg.default_value("32")).mut_arg("body", |arg| arg.default_value("128"))
    });
    let matches = command.get_matches();
    let Arguments { command, output } = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let outcome = match &command {
        Workload::Produce(settings) | Workload::Batch(settings) => {
            produce::run(settings).and_then(|report| output.write(&report, report.is_good()))
        }
        Workload::E2e(settings) => e2e::run(settings).and_then(|report| output.write(&report, report.is_good())),
        Workload::Mixed(settings) => mixed::run(settings).and_then(|report| output.write(&report, report.is_good())),
        Workload::Consume(settings) => {
            consume::run(settings).and_then(|report| output.write(&report, report.is_good()))
        }
        Workload::Transaction(settings) => {
            transaction::run(settings).and_then(|report| output.write(&report, report.is_good()))
        }
        Workload::Delay(settings) => delay::run(settings).and_then(|report| output.write(&report, report.is_good())),
        Workload::Ladder(settings) => {
            let progress = |step: &ladder::Step| eprintln!("{}", ladder::row(step).join("  "));
            ladder::run(settings, progress).and_then(|report| output.write(&report, report.is_good()))
        }
        Workload::Tune(settings) => tune_all(settings, &output),
        Workload::Compare(settings) => compare_all(settings, &output),
        Workload::Touch(settings) => memory::run(settings).map(|touched| {
            println!("{touched}");
            true
        }),
        Workload::Echo(settings) => echo::run(settings).map(|()| true),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("ringmq-bench: {error}");
            ExitCode::from(2)
        }
    }
}

/// What a long run knows so far, for the moment it is interrupted.
#[derive(Clone, Default)]
struct SoFar(Arc<Mutex<String>>);

impl SoFar {
    /// From now on an interrupt prints it, after what was started has been ended.
    fn begin() -> io::Result<Self> {
        let so_far = Self::default();
        let last = so_far.clone();
        peer::clean_up_on_signal(move || println!("INTERRUPTED\n{}", last.text()))?;
        Ok(so_far)
    }

    fn text(&self) -> MutexGuard<'_, String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The progress goes to the error output, so that the table stands alone in a file.
    fn tell<R: Display + Serialize + Figures>(&self, text: &str, report: &R, output: &Output) {
        eprintln!("{text}");
        *self.text() = report.to_string();
        if let Err(error) = output.write_partial(report) {
            eprintln!("ringmq-bench: what is known so far is not written: {error}");
        }
    }
}

fn compare_all(settings: &compare::Settings, output: &Output) -> io::Result<bool> {
    let so_far = SoFar::begin()?;
    let report = compare::run(settings, |text, report| so_far.tell(text, report, output))?;
    output.write(&report, report.is_good())
}

fn tune_all(settings: &tune::Settings, output: &Output) -> io::Result<bool> {
    let so_far = SoFar::begin()?;
    let report = tune::run(settings, |text, report| so_far.tell(text, report, output))?;
    output.write(&report, report.is_met)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }
}
