//! Two brokers, A B A B …, in one run on one machine: each time a fresh store, the same workloads, whole processes.
//!
//! A ratio is taken within a round, where both brokers met the same machine, and then the median of the rounds.

use crate::client::Client;
use crate::frame::Header;
use crate::latency::median;
use crate::peer::{Kind, Options, Peer};
use crate::process;
use crate::workload::{Target, e2e, produce};
use serde::Serialize;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

const FILE_BYTES: u64 = 1 << 30;
/// A comparison must contain what a long run contains: files that are full and followed by the next.
const FILES_FILLED_MIN: u64 = 3;
const OPEN_LOOP_WARMUP_SECONDS: u64 = 3;

#[derive(Clone, Debug, clap::Args)]
pub struct Settings {
    /// Broker A: ringmq:PATH of a release binary, or java:DIR of jars
    #[arg(long, default_value = "ringmq:target/release/ringmq")]
    pub a: Kind,
    /// Broker B; without it A is measured alone
    #[arg(long)]
    pub b: Option<Kind>,
    /// The published Java broker as B: the folder of its jars, filled by
    /// mvn -f bench/java/pom.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=DIR
    #[arg(long, conflicts_with = "b")]
    pub java_lib: Option<PathBuf>,
    /// How often each broker is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Measured messages of the closed loop; 2.9 million of 1 KiB fill three files of 1 GiB
    #[arg(long, default_value_t = 3_000_000)]
    pub messages: u64,
    /// Messages of the closed loop before its measured part
    #[arg(long, default_value_t = 300_000)]
    pub warmup: u64,
    /// Connections of the closed loop
    #[arg(long, default_value_t = 4)]
    pub connections: u32,
    /// Sends in flight on each of them
    #[arg(long, default_value_t = 64)]
    pub in_flight: u32,
    /// Bytes of a message body
    #[arg(long, default_value_t = 1024)]
    pub size: u32,
    /// Queues of the topics
    #[arg(long, default_value_t = 8)]
    pub queues: u32,
    /// Encoding of the request headers
    #[arg(long, value_enum, default_value = "json")]
    pub header: Header,
    /// Messages a second of the open loop; 0 leaves it out
    #[arg(long, default_value_t = 5_000)]
    pub e2e_rate: u64,
    /// Measured seconds of the open loop
    #[arg(long, default_value_t = 20)]
    pub e2e_seconds: u64,
    /// Connections that send in the open loop; one more pulls
    #[arg(long, default_value_t = 4)]
    pub e2e_connections: u32,
    /// Seconds a started broker is left alone before its idle memory is read
    #[arg(long, default_value_t = 3)]
    pub idle_seconds: u64,
    /// Stores are made here: the file system that matters
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    pub work_dir: PathBuf,
    /// Nothing is started with less free space
    #[arg(long, default_value_t = 20)]
    pub free_gib_min: u64,
    /// A line of broker.conf for both, key=value
    #[arg(long = "property")]
    pub properties: Vec<String>,
    /// A line of broker.conf for A
    #[arg(long = "a-property")]
    pub a_properties: Vec<String>,
    /// A line of broker.conf for B
    #[arg(long = "b-property")]
    pub b_properties: Vec<String>,
}

impl Settings {
    fn peers(&self) -> Vec<(Kind, Options)> {
        let options = |own: &[String]| Options {
            work_dir: self.work_dir.clone(),
            free_gib_min: self.free_gib_min,
            properties: [&self.properties, own].concat(),
        };
        let b = self.b.clone().or_else(|| self.java_lib.clone().map(Kind::Java));
        let mut peers = vec![(self.a.clone(), options(&self.a_properties))];
        peers.extend(b.map(|kind| (kind, options(&self.b_properties))));
        peers
    }

    fn target(&self, peer: &Peer, topic: &str, connections: u32) -> Target {
        Target {
            broker: peer.address,
            broker_pid: Some(peer.pid()),
            topic: topic.into(),
            queues: self.queues,
            size: self.size,
            header: self.header,
            connections,
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Run {
    pub ready_ms: f64,
    pub idle_anonymous_mib: f64,
    pub produce: produce::Report,
    /// Files of the log that the closed loop filled, if the broker says where its log ends.
    pub files_filled: Option<u64>,
    pub e2e: Option<e2e::Report>,
    pub stop_ms: f64,
}

impl Run {
    fn is_good(&self) -> bool {
        self.produce.is_good() && self.e2e.as_ref().is_none_or(e2e::Report::is_good)
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub names: Vec<String>,
    /// By peer, then by round.
    pub runs: Vec<Vec<Run>>,
}

impl Report {
    pub fn is_good(&self) -> bool {
        self.runs.iter().flatten().all(Run::is_good)
    }
}

/// Runs all rounds; each run is told to `progress` as soon as it ends.
///
/// # Errors
/// A broker does not start or stop, falls silent, or the disk is too full.
pub fn run(settings: &Settings, mut progress: impl FnMut(&str)) -> io::Result<Report> {
    let peers = settings.peers();
    let mut runs: Vec<Vec<Run>> = peers.iter().map(|_| Vec::new()).collect();
    for round in 1..=settings.rounds {
        for (index, (kind, options)) in peers.iter().enumerate() {
            let run = run_one(settings, kind, options)?;
            progress(&format!("── round {round} of {}: {} = {kind}\n{run}", settings.rounds, letter(index)));
            runs[index].push(run);
        }
    }
    Ok(Report { names: peers.iter().map(|(kind, _)| kind.to_string()).collect(), runs })
}

fn run_one(settings: &Settings, kind: &Kind, options: &Options) -> io::Result<Run> {
    let peer = Peer::start(kind, options)?;
    thread::sleep(Duration::from_secs(settings.idle_seconds));
    let idle = process::memory(peer.pid())?;
    let produce = produce::run(&produce::Settings {
        target: settings.target(&peer, "BenchProduce", settings.connections),
        in_flight: settings.in_flight,
        messages: settings.messages,
        seconds: None,
        warmup: settings.warmup,
        verify: false,
    })?;
    let files_filled = files_filled(&peer);
    let e2e = if settings.e2e_rate == 0 {
        None
    } else {
        Some(e2e::run(&e2e::Settings {
            target: settings.target(&peer, "BenchEndToEnd", settings.e2e_connections),
            rate: settings.e2e_rate,
            seconds: settings.e2e_seconds,
            warmup: OPEN_LOOP_WARMUP_SECONDS,
        })?)
    };
    let ready_ms = peer.ready.as_secs_f64() * 1e3;
    let stop_ms = peer.stop()?.as_secs_f64() * 1e3;
    let idle_anonymous_mib = idle.anonymous as f64 / f64::from(1 << 20);
    Ok(Run { ready_ms, idle_anonymous_mib, produce, files_filled, e2e, stop_ms })
}

fn files_filled(peer: &Peer) -> Option<u64> {
    let table = Client::connect(peer.address).and_then(|mut client| client.runtime_info()).ok()?;
    let end: u64 = table.get("commitLogMaxOffset")?.parse().ok()?;
    Some(end / FILE_BYTES)
}

fn letter(index: usize) -> char {
    if index == 0 { 'A' } else { 'B' }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "ready     {:.0} ms; {:.0} MiB anonymous when idle", self.ready_ms, self.idle_anonymous_mib)?;
        write!(f, "{}", self.produce)?;
        match self.files_filled {
            Some(count) => writeln!(f, "log       {count} files of 1 GiB filled")?,
            None => writeln!(f, "log       the broker does not say where its log ends")?,
        }
        if let Some(e2e) = &self.e2e {
            write!(f, "open loop\n{e2e}")?;
        }
        writeln!(f, "stop      {:.0} ms", self.stop_ms)
    }
}

/// A figure of a run, as a row of the table.
struct Row {
    name: &'static str,
    unit: &'static str,
    digits: usize,
    pick: fn(&Run) -> Option<f64>,
}

const fn row(name: &'static str, unit: &'static str, digits: usize, pick: fn(&Run) -> Option<f64>) -> Row {
    Row { name, unit, digits, pick }
}

fn open(run: &Run) -> Option<&e2e::Report> {
    run.e2e.as_ref()
}

const ROWS: [Row; 23] = [
    row("ready", "ms", 0, |run| Some(run.ready_ms)),
    row("idle RssAnon", "MiB", 1, |run| Some(run.idle_anonymous_mib)),
    row("closed loop: rate", "msg/s", 0, |run| Some(run.produce.cost.rate_per_s)),
    row("closed loop: broker CPU", "µs/msg", 2, |run| run.produce.cost.broker_us_per_message),
    row("closed loop: broker CPU", "cores", 2, |run| run.produce.cost.broker_cores),
    row("closed loop: machine CPU", "µs/msg", 2, |run| Some(run.produce.cost.machine_us_per_message)),
    row("closed loop: client CPU", "µs/msg", 2, |run| Some(run.produce.cost.own_us_per_message)),
    row("closed loop: ack p50", "µs", 0, |run| Some(run.produce.ack.p50_us)),
    row("closed loop: ack p99", "µs", 0, |run| Some(run.produce.ack.p99_us)),
    row("closed loop: ack p99.9", "µs", 0, |run| Some(run.produce.ack.p999_us)),
    row("closed loop: ack max", "µs", 0, |run| Some(run.produce.ack.max_us)),
    row("closed loop: RssAnon after", "MiB", 1, |run| run.produce.cost.broker_anonymous_mib),
    row("open loop: broker CPU", "µs/msg", 2, |run| open(run)?.cost.broker_us_per_message),
    row("open loop: client CPU", "µs/msg", 2, |run| Some(open(run)?.cost.own_us_per_message)),
    row("open loop: schedule late p99", "µs", 0, |run| Some(open(run)?.schedule_delay.p99_us)),
    row("open loop: ack p50", "µs", 0, |run| Some(open(run)?.ack.p50_us)),
    row("open loop: ack p99", "µs", 0, |run| Some(open(run)?.ack.p99_us)),
    row("open loop: ack p99.9", "µs", 0, |run| Some(open(run)?.ack.p999_us)),
    row("open loop: end to end p50", "µs", 0, |run| Some(open(run)?.end_to_end.p50_us)),
    row("open loop: end to end p99", "µs", 0, |run| Some(open(run)?.end_to_end.p99_us)),
    row("open loop: end to end p99.9", "µs", 0, |run| Some(open(run)?.end_to_end.p999_us)),
    row("open loop: end to end max", "µs", 0, |run| Some(open(run)?.end_to_end.max_us)),
    row("stop", "ms", 0, |run| Some(run.stop_ms)),
];

impl fmt::Display for Report {
    /// A markdown table: medians with the smallest and the largest of the rounds in brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.names.iter().enumerate() {
            writeln!(f, "{} = {name}", letter(index))?;
        }
        writeln!(f, "medians of {} rounds (smallest to largest)\n", self.runs[0].len())?;
        let has_b = self.runs.len() > 1;
        writeln!(f, "| measure | A |{}", if has_b { " B | A / B |" } else { "" })?;
        writeln!(f, "|---|---|{}", if has_b { "---|---|" } else { "" })?;
        for row in &ROWS {
            let figures: Vec<Vec<f64>> =
                self.runs.iter().map(|runs| runs.iter().filter_map(row.pick).collect()).collect();
            if figures.iter().all(Vec::is_empty) {
                continue;
            }
            write!(f, "| {}, {} |", row.name, row.unit)?;
            for values in &figures {
                write!(f, " {} |", spread(values, row.digits))?;
            }
            if let [a, b] = &figures[..] {
                let ratios: Vec<f64> = a.iter().zip(b).map(|(a, b)| a / b).collect();
                write!(f, " {} |", spread(&ratios, 3))?;
            }
            writeln!(f)?;
        }
        for (index, runs) in self.runs.iter().enumerate() {
            let letter = letter(index);
            let bad = runs.iter().filter(|run| !run.is_good()).count();
            if bad > 0 {
                writeln!(f, "\n{letter}: FAULTS in {bad} of {} runs", runs.len())?;
            }
            if runs.iter().any(|run| run.files_filled.is_none_or(|count| count < FILES_FILLED_MIN)) {
                writeln!(f, "\n{letter}: fewer than {FILES_FILLED_MIN} files of 1 GiB were filled, or it is not known")?;
            }
        }
        Ok(())
    }
}

fn spread(values: &[f64], digits: usize) -> String {
    let Some(middle) = median(values) else { return "–".into() };
    if values.len() == 1 {
        return format!("{middle:.digits$}");
    }
    let (min, max) = values.iter().fold((f64::MAX, f64::MIN), |(min, max), value| (min.min(*value), max.max(*value)));
    format!("{middle:.digits$} ({min:.digits$} to {max:.digits$})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_its_median_and_its_ends() {
        for (values, want) in [(&[][..], "–"), (&[1.0][..], "1.00"), (&[3.0, 1.0, 2.0][..], "2.00 (1.00 to 3.00)")] {
            assert_eq!(spread(values, 2), want);
        }
    }

    fn run_at(rate: f64, p50_us: f64) -> Run {
        let cost = workload_cost(rate);
        let ack = crate::latency::Summary { p50_us, ..Default::default() };
        let produce = produce::Report { cost, ack, faults: Default::default(), verified: None };
        Run { ready_ms: 1.0, idle_anonymous_mib: 1.0, produce, files_filled: Some(3), e2e: None, stop_ms: 1.0 }
    }

    fn workload_cost(rate_per_s: f64) -> crate::workload::Cost {
        crate::workload::Cost {
            seconds: 1.0,
            messages: 1,
            rate_per_s,
            own_us_per_message: 1.0,
            own_cores: 0.1,
            broker_us_per_message: None,
            broker_cores: None,
            machine_us_per_message: 1.0,
            stolen_cores: 0.0,
            broker_resident_mib: None,
            broker_anonymous_mib: None,
        }
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // The medians would give 200 / 50 = 4; the rounds give 10, 4 and 1.
        let a = [100.0, 200.0, 300.0].map(|rate| run_at(rate, 1.0)).to_vec();
        let b = [10.0, 50.0, 300.0].map(|rate| run_at(rate, 2.0)).to_vec();
        let table = Report { names: vec!["x".into(), "y".into()], runs: vec![a, b] }.to_string();
        let rate = "| closed loop: rate, msg/s | 200 (100 to 300) | 50 (10 to 300) | 4.000 (1.000 to 10.000) |";
        assert!(table.contains(rate), "{table}");
        assert!(table.contains("| closed loop: ack p50, µs | 1 (1 to 1) | 2 (2 to 2) | 0.500 (0.500 to 0.500) |"));
        assert!(!table.contains("broker CPU") && !table.contains("FAULTS"), "{table}");
    }
}
