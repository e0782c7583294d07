//! Command line of the load generator; see the library for what it measures.

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use ringmq_bench::environment::Environment;
use ringmq_bench::workload::{consume, delay, e2e, mixed, produce, transaction};
use ringmq_bench::{compare, echo, peer};
use serde::Serialize;
use std::fmt::Display;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "ringmq-bench", version, about = "Load generator for brokers of the RocketMQ remoting protocol")]
struct Arguments {
    #[command(subcommand)]
    command: Workload,
    #[command(flatten)]
    output: Output,
}

#[derive(Args)]
struct Output {
    /// Write the report as JSON to this file too; - prints it instead of the text
    #[arg(long, global = true, value_name = "FILE")]
    json: Option<PathBuf>,
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
    /// Start two brokers in turn and print medians and ratios
    Compare(Box<compare::Settings>),
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
        Workload::Compare(settings) => compare_all(settings, &output),
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

fn compare_all(settings: &compare::Settings, output: &Output) -> io::Result<bool> {
    peer::clean_up_on_signal(|| ())?;
    // The progress goes to the error output, so that the table stands alone in a file.
    let report = compare::run(settings, |text, _| eprintln!("{text}"))?;
    output.write(&report, report.is_good())
}

#[derive(Serialize)]
struct Document<'a, R> {
    environment: Environment,
    is_good: bool,
    report: &'a R,
}

impl Output {
    /// Gives `is_good` back.
    fn write(&self, report: &(impl Display + Serialize), is_good: bool) -> io::Result<bool> {
        let document = Document { environment: Environment::read(), is_good, report };
        let json = || serde_json::to_string_pretty(&document).expect("a report is plain numbers and text");
        match &self.json {
            Some(path) if path.as_os_str() == "-" => {
                println!("{}", json());
                return Ok(is_good);
            }
            Some(path) => fs::write(path, json())?,
            None => {}
        }
        print!("{}{report}", document.environment);
        Ok(is_good)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }
}
