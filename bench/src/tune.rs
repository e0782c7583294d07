//! Which configuration of ringmq meets a goal on this machine: brokers are started with one after the other, each is
//! measured at the goal's rate and up its ladder, and the one that keeps most of what it acknowledged is recommended.
//!
//! ```text
//! goal ─▶ promises that lose no more than it allows ─▶ at its rate, then a ladder ─▶ best
//!                       best + warm-up, medium, shards ─▶ the same ─▶ recommendation, broker.conf
//! best      meets every latency; of those it loses least by power, then by kill, then has the lowest first latency;
//!           if none meets them, the one that comes nearest
//! ```

pub mod candidate;

use crate::disk;
use crate::environment::file_system;
use crate::frame::Header;
use crate::goal::{Goal, LatencyGoal, Quantile};
use crate::ladder::{self, Climb, Step};
use crate::latency::{Summary, median};
use crate::memory;
use crate::peer::{Kind, Options, Peer};
use crate::report::chart::{self, Unit};
use crate::report::{Figures, Part, text};
use crate::workload::schedule::Arrivals;
use crate::workload::{Cost, Payload, Target, e2e, produce};
use candidate::{Candidate, Loss};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

#[derive(Clone, Debug, clap::Args)]
pub struct Settings {
    /// What is wanted, as "p99 < 1ms at 30000 msg/s, may lose 200ms on power loss"
    #[arg(long)]
    pub goal: Goal,
    /// The broker's release binary
    #[arg(long, default_value = "target/release/ringmq")]
    pub ringmq: PathBuf,
    /// Where the recommended configuration is written; what is there goes to .bak
    #[arg(long, default_value = "tuned-broker.conf")]
    pub conf: PathBuf,
    #[command(flatten)]
    pub payload: Payload,
    #[command(flatten)]
    pub climb: Climb,
    /// Connections that send
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub connections: u32,
    /// The most requests in flight on each
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub in_flight: u32,
    /// Queues of the topic
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub queues: u32,
    /// Encoding of the request headers
    #[arg(long, visible_alias = "header-encoding", value_enum, default_value = "json")]
    pub header: Header,
    /// Measured seconds at the goal's rate
    #[arg(long, visible_alias = "duration", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub seconds: u64,
    /// How often each configuration is measured at the goal's rate; medians count
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// A configuration to measure too, "name: key=value, key=value"
    #[arg(long = "candidate", value_parser = candidate::named)]
    pub candidates: Vec<Candidate>,
    /// Measure only those whose names are in this list; `warm`, `mapped` and `shards-N` are added to the best of the others
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Leave the ladders out
    #[arg(long)]
    pub no_ladder: bool,
    /// A line of broker.conf for all, key=value
    #[arg(long = "property")]
    pub properties: Vec<String>,
    /// Stores are made here: the file system that matters
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    pub work_dir: PathBuf,
    /// GiB of free memory that are touched before each configuration, as `compare` does it; 0 leaves it out
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(..=1024))]
    pub touch_gib: u64,
    /// Nothing is started with less free space
    #[arg(long, default_value_t = 10)]
    pub free_gib_min: u64,
}

/// What is measured without a rate in the goal.
const RATE_PER_S: u64 = 10_000;
const WARMUP_SECONDS: u64 = 2;
const DISK_BYTES: u64 = 256 << 20;
const RECORD_BYTES: usize = 1_280;
const DURABLE_WRITE_COUNT: u64 = 500;

/// One configuration.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    pub candidate: Candidate,
    pub loss: Loss,
    /// At the goal's rate, by round.
    pub ack: Vec<Summary>,
    pub end_to_end: Vec<Summary>,
    pub costs: Vec<Cost>,
    /// Answered less than the rate, or something went wrong.
    pub is_sustained: bool,
    pub ladder: Vec<Step>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub goal: Goal,
    pub rate_per_s: u64,
    pub file_system: Option<String>,
    pub disk_mib_per_s: f64,
    pub durable_write: Summary,
    pub measured: Vec<Measured>,
    /// Names of those that were not measured, and why.
    pub skipped: Vec<(String, String)>,
    /// Name of the recommended configuration.
    pub best: Option<String>,
    pub is_met: bool,
    pub conf: PathBuf,
}

impl Measured {
    /// The median of the rounds, µs; endless when the rate was not kept.
    pub fn latency(&self, goal: LatencyGoal) -> f64 {
        let summaries = if goal.is_end_to_end { &self.end_to_end } else { &self.ack };
        let figures: Vec<f64> = summaries.iter().map(|summary| goal.quantile.of(summary)).collect();
        median(&figures).filter(|_| self.is_sustained).unwrap_or(f64::INFINITY)
    }

    pub fn is_met(&self, goal: &Goal) -> bool {
        self.is_sustained && goal.latencies.iter().all(|latency| self.latency(*latency) < latency.below_us)
    }

    /// The worst of the latencies as a part of what it may be; below 1 it is met.
    fn distance(&self, goal: &Goal) -> f64 {
        let of = goal.latencies.iter().map(|latency| self.latency(*latency) / latency.below_us);
        of.fold(if self.is_sustained { 0.0 } else { f64::INFINITY }, f64::max)
    }

    fn first_latency(&self, goal: &Goal) -> f64 {
        let default = LatencyGoal { is_end_to_end: false, quantile: Quantile::P99, below_us: f64::INFINITY };
        self.latency(goal.latencies.first().copied().unwrap_or(default))
    }
}

/// The index of the best, if there is any.
pub fn best(measured: &[Measured], goal: &Goal) -> Option<usize> {
    let rank = |of: &Measured| {
        // What does not meet the goal comes after all that do, the nearest first.
        let missed = if of.is_met(goal) { 0.0 } else { of.distance(goal).max(1.0) };
        [missed, of.loss.power_ms, of.loss.kill_ms, of.first_latency(goal)]
    };
    let order = |a: &[f64; 4], b: &[f64; 4]| {
        let by = a.iter().zip(b).map(|(a, b)| a.total_cmp(b));
        by.into_iter().find(|order| order.is_ne()).unwrap_or(std::cmp::Ordering::Equal)
    };
    (0..measured.len()).min_by(|a, b| order(&rank(&measured[*a]), &rank(&measured[*b])))
}

/// Measures, and writes the recommended broker.conf. `progress` gets each configuration as text as soon as it ends, and
/// the report as it is then.
///
/// # Errors
/// The binary is missing, no configuration may be measured, or a broker does not start, stop or answer.
pub fn run(settings: &Settings, mut progress: impl FnMut(&str, &Report)) -> io::Result<Report> {
    let kind = Kind::Ringmq(settings.ringmq.clone()).resolved()?;
    let Kind::Ringmq(binary) = &kind else { unreachable!("it was one a line before") };
    let known = keys(binary)?;
    let mut report = Report {
        goal: settings.goal.clone(),
        rate_per_s: settings.goal.rate_per_s.unwrap_or(RATE_PER_S),
        file_system: file_system(&settings.work_dir),
        disk_mib_per_s: disk::sequential_write_mib_s(&settings.work_dir, DISK_BYTES)?,
        durable_write: disk::durable_writes(&settings.work_dir, RECORD_BYTES, DURABLE_WRITE_COUNT)?,
        measured: Vec::new(),
        skipped: Vec::new(),
        best: None,
        is_met: false,
        conf: settings.conf.clone(),
    };
    let is_wanted = |candidate: &Candidate| settings.only.is_empty() || settings.only.contains(&candidate.name);
    let mut promises: Vec<Candidate> = candidate::promises().into_iter().filter(is_wanted).collect();
    promises.extend(settings.candidates.iter().cloned());
    measure_all(settings, &kind, &known, promises, &mut report, &mut progress)?;
    let Some(index) = best(&report.measured, &report.goal) else {
        let why: Vec<String> = report.skipped.iter().map(|(name, why)| format!("{name}: {why}")).collect();
        return Err(io::Error::other(format!("no configuration may be measured:\n{}", why.join("\n"))));
    };
    let base = report.measured[index].candidate.clone();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let more = candidate::settings(cores).into_iter().filter(is_wanted).map(|more| base.with(&more)).collect();
    measure_all(settings, &kind, &known, more, &mut report, &mut progress)?;
    report.choose();
    if settings.conf.exists() {
        // It may be somebody's, or that of the last tune.
        fs::rename(&settings.conf, settings.conf.with_added_extension("bak"))?;
    }
    fs::write(&settings.conf, report.broker_conf(&settings.properties))?;
    Ok(report)
}

/// The keys that a broker has, with its defaults: what `-p` prints.
fn keys(binary: &Path) -> io::Result<BTreeMap<String, String>> {
    let output = Command::new(binary).args(["broker", "-p"]).output()?;
    let keys = crate::client::properties(&String::from_utf8_lossy(&output.stdout));
    if !output.status.success() || keys.is_empty() {
        return Err(io::Error::other(format!("{} broker -p ended with {}", binary.display(), output.status)));
    }
    Ok(keys)
}

fn measure_all(
    settings: &Settings,
    kind: &Kind,
    known: &BTreeMap<String, String>,
    candidates: Vec<Candidate>,
    report: &mut Report,
    progress: &mut impl FnMut(&str, &Report),
) -> io::Result<()> {
    for candidate in candidates {
        let unknown = candidate.unknown_keys(known);
        let loss = candidate.loss(known);
        let why = if !unknown.is_empty() {
            format!("this broker has no key {}", unknown.join(", "))
        } else if !loss.is_within(&report.goal) {
            format!("may lose {:.0} ms on power loss and {:.0} ms on a kill", loss.power_ms, loss.kill_ms)
        } else {
            match measure(settings, kind, candidate.clone(), loss, report.rate_per_s) {
                Ok(measured) => {
                    report.measured.push(measured);
                    report.choose();
                    let measured = report.measured.last().expect("one was just pushed");
                    progress(&text::table(&HEAD, &[measured.row(&report.goal)]), report);
                    continue;
                }
                // One that does not start says why, and the others may.
                Err(error) => error.to_string(),
            }
        };
        progress(&format!("{}: not measured: {why}\n", candidate.name), report);
        report.skipped.push((candidate.name, why));
    }
    Ok(())
}

fn measure(
    settings: &Settings,
    kind: &Kind,
    candidate: Candidate,
    loss: Loss,
    rate_per_s: u64,
) -> io::Result<Measured> {
    let options = Options {
        work_dir: settings.work_dir.clone(),
        free_gib_min: settings.free_gib_min,
        properties: [&settings.properties[..], &candidate.lines()].concat(),
        java_heap: String::new(),
    };
    memory::touch(settings.touch_gib << 30)?;
    let peer = Peer::start(kind, &options)?;
    let (ack, end_to_end, costs, ladder) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut measured = Measured { candidate, loss, ack, end_to_end, costs, is_sustained: true, ladder };
    let target = |topic: &str| Target {
        broker: peer.address,
        broker_pid: peer.pid(),
        topic: topic.into(),
        topic_count: 1,
        queues: settings.queues,
        header: settings.header,
        connections: settings.connections,
        progress: false,
    };
    let sends = |topic: &str, rate: u64, seconds: u64, warmup: u64| produce::Settings {
        target: target(topic),
        payload: settings.payload.clone(),
        in_flight: settings.in_flight,
        batch: 1,
        rate: Some(rate),
        arrivals: settings.climb.arrivals,
        messages: 1,
        seconds: Some(seconds),
        warmup: rate * warmup,
        threads: 1,
        late_seconds_max: 1,
        one_way: false,
        verify: false,
    };
    let wants_end_to_end = settings.goal.latencies.iter().any(|latency| latency.is_end_to_end);
    for _ in 0..settings.rounds {
        let report = produce::run(&sends("TuneGoal", rate_per_s, settings.seconds, WARMUP_SECONDS))?;
        let step = Step::of(rate_per_s, &report);
        measured.is_sustained &= step.is_sustained;
        measured.ack.push(step.ack);
        measured.costs.push(step.cost);
        // One that does not keep the rate of sends alone would only pile up messages.
        if wants_end_to_end && step.is_sustained {
            let report = e2e::run(&e2e::Settings {
                target: target("TuneEndToEnd"),
                payload: settings.payload.clone(),
                rate: rate_per_s,
                arrivals: Arrivals::Even,
                seconds: settings.seconds,
                warmup: WARMUP_SECONDS,
                consumers: 1,
                pull: 32,
            })?;
            measured.is_sustained &= report.is_good();
            measured.end_to_end.push(report.end_to_end);
        }
    }
    if !settings.no_ladder {
        let Climb { step_seconds, step_warmup, .. } = settings.climb;
        measured.ladder = settings.climb.steps(|rate| {
            produce::run(&sends("TuneLadder", rate, step_seconds, step_warmup)).map(|report| Step::of(rate, &report))
        })?;
    }
    peer.stop()?;
    Ok(measured)
}

const HEAD: [&str; 10] =
    ["configuration", "lost by power", "by kill", "p50", "p99", "p99.9", "e2e p99", "broker CPU", "knee", "goal"];

impl Measured {
    fn row(&self, goal: &Goal) -> Vec<String> {
        let ack = |quantile| LatencyGoal { is_end_to_end: false, quantile, below_us: 0.0 };
        let shown = |us: f64| if us.is_finite() { text::duration(us) } else { "–".into() };
        let loss = |ms: f64| if ms == 0.0 { "nothing".into() } else { text::duration(ms * 1e3) };
        let cpu: Vec<f64> = self.costs.iter().filter_map(|cost| cost.broker_us_per_message).collect();
        let ladder = ladder::report(self.ladder.clone());
        vec![
            self.candidate.name.clone(),
            loss(self.loss.power_ms),
            loss(self.loss.kill_ms),
            shown(self.latency(ack(Quantile::P50))),
            shown(self.latency(ack(Quantile::P99))),
            shown(self.latency(ack(Quantile::P999))),
            shown(self.latency(LatencyGoal { is_end_to_end: true, ..ack(Quantile::P99) })),
            median(&cpu).map_or("–".into(), |us| format!("{us:.1} µs")),
            ladder.knee_per_s.map_or("–".into(), |knee| format!("{knee} msg/s")),
            match (self.is_met(goal), self.is_sustained) {
                (true, _) => "met".into(),
                (false, true) => format!("{:.2} × of it", self.distance(goal)),
                (false, false) => "rate not kept".into(),
            },
        ]
    }
}

impl Report {
    fn choose(&mut self) {
        let found = best(&self.measured, &self.goal).map(|index| &self.measured[index]);
        self.is_met = found.is_some_and(|best| best.is_met(&self.goal));
        self.best = found.map(|best| best.candidate.name.clone());
    }

    fn chosen(&self) -> Option<&Measured> {
        self.measured.iter().find(|measured| Some(&measured.candidate.name) == self.best.as_ref())
    }

    fn rows(&self) -> Vec<Vec<String>> {
        self.measured.iter().map(|measured| measured.row(&self.goal)).collect()
    }

    /// What the broker is to be started with.
    pub fn broker_conf(&self, common: &[String]) -> String {
        let Some(chosen) = self.chosen() else { return String::new() };
        let Loss { power_ms, kill_ms } = chosen.loss;
        let is_met = if self.is_met { "met" } else { "NOT met: this comes nearest" };
        let mut text = format!(
            "# {}: measured by ringmq-bench tune at {} msg/s\n# goal {is_met}\n\
             # lost at most: {power_ms:.0} ms on power loss, {kill_ms:.0} ms when the process is killed\n",
            chosen.candidate.name, self.rate_per_s
        );
        self.goal.latencies.iter().for_each(|latency| {
            let us = text::duration(chosen.latency(*latency));
            text.push_str(&format!("# wanted {latency}, measured {us}\n"));
        });
        for line in common.iter().cloned().chain(chosen.candidate.lines()) {
            text.push_str(&line);
            text.push('\n');
        }
        text
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rate_per_s, disk_mib_per_s, durable_write, .. } = self;
        let kind = self.file_system.as_deref().unwrap_or("unknown file system");
        writeln!(f, "disk      {kind}, {disk_mib_per_s:.0} MiB/s sequential; a durable write {durable_write}")?;
        writeln!(f, "at        {rate_per_s} msg/s\n")?;
        f.write_str(&text::table(&HEAD, &self.rows()))?;
        for (name, why) in &self.skipped {
            writeln!(f, "not measured: {name}: {why}")?;
        }
        let Some(best) = &self.best else { return writeln!(f, "nothing was measured") };
        let is_met = if self.is_met { "meets the goal" } else { "does NOT meet the goal but comes nearest" };
        writeln!(f, "\nrecommended: {best} {is_met}; written to {}", self.conf.display())
    }
}

impl Figures for Report {
    fn parts(&self) -> Vec<Part> {
        let ladders: Vec<(&str, &[Step])> =
            self.measured.iter().map(|of| (of.candidate.name.as_str(), &of.ladder[..])).collect();
        let curves: Vec<(String, &Summary)> = self
            .measured
            .iter()
            .filter(|of| of.is_sustained)
            .filter_map(|of| Some((of.candidate.name.clone(), of.ack.last()?)))
            .collect();
        let cpu = self
            .measured
            .iter()
            .filter_map(|of| Some((of.candidate.name.clone(), of.costs.last()?.broker_us_per_message?)));
        let mut parts = vec![
            Part::Table { head: HEAD.map(str::to_owned).to_vec(), rows: self.rows() },
            Part::Chart(chart::percentiles("Acknowledged, by percentile, at the goal's rate", &curves)),
            Part::Chart(chart::bars(
                "Broker processor time of a message at the goal's rate",
                "µs",
                cpu.collect(),
                Unit::Us,
            )),
        ];
        if ladders.iter().any(|(_, steps)| !steps.is_empty()) {
            parts.push(Part::Chart(ladder::latency_chart(&ladders)));
            parts.push(Part::Chart(ladder::cpu_chart(&ladders)));
        }
        parts.push(Part::Heading("Recommended broker.conf".into()));
        parts.push(Part::Text(self.broker_conf(&[])));
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(name: &str, p99_us: f64, power_ms: f64, is_sustained: bool) -> Measured {
        Measured {
            candidate: candidate::named(&format!("{name}: k={name}")).unwrap(),
            loss: Loss { power_ms, kill_ms: 0.0 },
            ack: vec![Summary { p99_us, ..Default::default() }],
            end_to_end: Vec::new(),
            costs: Vec::new(),
            is_sustained,
            ladder: Vec::new(),
        }
    }

    #[test]
    fn the_best_meets_the_goal_and_loses_least() {
        let goal: Goal = "p99 < 1ms at 5 msg/s".parse().unwrap();
        // p99, power, sustained; which is best
        for (all, want) in [
            (&[(900.0, 0.0, true), (100.0, 70.0, true)][..], Some(0)),
            (&[(1_100.0, 0.0, true), (100.0, 70.0, true)][..], Some(1)),
            (&[(900.0, 70.0, true), (100.0, 70.0, true)][..], Some(1)),
            (&[(3_000.0, 0.0, true), (2_000.0, 70.0, true)][..], Some(1)),
            (&[(100.0, 0.0, false), (2_000.0, 70.0, true)][..], Some(1)),
            (&[][..], None),
        ] {
            let all: Vec<Measured> = all.iter().map(|(us, ms, kept)| measured("x", *us, *ms, *kept)).collect();
            assert_eq!(best(&all, &goal), want, "{all:?}");
        }
    }

    #[test]
    fn the_configuration_says_what_it_was_made_for() {
        let mut report = Report {
            goal: "p99 < 1ms at 5 msg/s".parse().unwrap(),
            rate_per_s: 5,
            file_system: None,
            disk_mib_per_s: 1.0,
            durable_write: Summary::default(),
            measured: vec![measured("slow", 2_000.0, 0.0, true), measured("quick", 500.0, 70.0, true)],
            skipped: vec![("pool".into(), "may lose 200 ms".into())],
            best: None,
            is_met: false,
            conf: "x.conf".into(),
        };
        report.choose();
        assert_eq!((report.best.as_deref(), report.is_met), (Some("quick"), true));
        let conf = report.broker_conf(&["common=1".into()]);
        assert!(conf.contains("# wanted ack p99 < 1.00 ms, measured 500 µs\ncommon=1\nk=quick\n"), "{conf}");
        let text = report.to_string();
        assert!(text.contains("recommended: quick meets the goal") && text.contains("not measured: pool"), "{text}");
        report.measured.pop();
        report.choose();
        assert!(report.broker_conf(&[]).contains("NOT met") && !report.is_met);
    }
}
