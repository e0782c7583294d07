//! Command line of the load generator; see the library for what it measures.

use clap::{Parser, Subcommand};
use ringmq_bench::workload::{e2e, produce};
use ringmq_bench::{compare, peer};
use serde::Serialize;
use std::fmt::Display;
use std::io;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "ringmq-bench", version, about = "Load generator for brokers of the RocketMQ remoting protocol")]
struct Arguments {
    #[command(subcommand)]
    command: Workload,
    /// Print the report as JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Workload {
    /// Closed loop: so many sends in flight, one message a request
    Produce(produce::Settings),
    /// Open loop at a fixed rate, with a consumer; latencies count from the intended send time
    E2e(e2e::Settings),
    /// Start two brokers in turn and print medians and ratios
    Compare(Box<compare::Settings>),
}

fn main() -> ExitCode {
    let Arguments { command, json } = Arguments::parse();
    let outcome = match &command {
        Workload::Produce(settings) => produce::run(settings).map(|report| print(&report, report.is_good(), json)),
        Workload::E2e(settings) => e2e::run(settings).map(|report| print(&report, report.is_good(), json)),
        Workload::Compare(settings) => compare_all(settings, json),
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

fn compare_all(settings: &compare::Settings, json: bool) -> io::Result<bool> {
    peer::clean_up_on_signal()?;
    // The progress goes to the error output, so that the table or the JSON stands alone in a file.
    let report = compare::run(settings, |text| eprintln!("{text}"))?;
    Ok(print(&report, report.is_good(), json))
}

fn print(report: &(impl Display + Serialize), is_good: bool, json: bool) -> bool {
    if json {
        println!("{}", serde_json::to_string_pretty(report).expect("a report is plain numbers and text"));
    } else {
        print!("{report}");
    }
    is_good
}
