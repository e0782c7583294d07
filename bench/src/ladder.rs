//! Throughput against latency: open loops at rising rates until the broker does not keep up, then some steps between the
//! last rate it kept and the first it did not.
//!
//! ```text
//! rate       1 000   2 000   4 000   8 000 ✗      then 5 657, 6 727 …   (between the two, in the middle by ratio)
//! sustained  at least 95 % of the rate was answered in its time, nothing refused, nothing left over
//! knee       the highest sustained rate whose p99 is at most 10 times the lowest p99 of the sustained rates
//! capacity   the most that was answered in any step
//! ```

use crate::environment::BrokerFacts;
use crate::latency::Summary;
use crate::report::chart::{self, Axis, Chart, Line, Scale, Unit};
use crate::report::{Figures, Part, text};
use crate::workload::schedule::Arrivals;
use crate::workload::{Cost, Faults, Payload, Target, produce};
use serde::Serialize;
use std::fmt;
use std::io;

const SUSTAINED_SHARE: f64 = 0.95;
const KNEE_TIMES: f64 = 10.0;
/// A step that is later than this is lost; going on would only measure its queue.
const LATE_SECONDS_MAX: u64 = 1;
/// No ladder has more.
const STEP_COUNT_MAX: usize = 64;

#[derive(Clone, Debug, clap::Args)]
pub struct Settings {
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub payload: Payload,
    #[command(flatten)]
    pub climb: Climb,
    /// The most requests in flight on each connection
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub in_flight: u32,
    /// Messages of a request
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub batch: u32,
    /// Threads of this client, which share the connections
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: u32,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Climb {
    /// Messages a second of the first step
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub from: u64,
    /// No step has more messages a second
    #[arg(long, default_value_t = 4_000_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub to: u64,
    /// From one step to the next
    #[arg(long, default_value_t = 2.0, value_parser = factor)]
    pub factor: f64,
    /// Steps between the last sustained rate and the first that was not
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(..=16))]
    pub refine: u32,
    /// Measured seconds of a step
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub step_seconds: u64,
    /// Seconds of a step before its measured part
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=3_600))]
    pub step_warmup: u64,
    /// How the requests of a step follow each other
    #[arg(long, value_enum, default_value = "even")]
    pub arrivals: Arrivals,
}

fn factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor| (1.05..=100.0).contains(factor));
    factor.ok_or_else(|| "a factor from 1.05 to 100".into())
}

#[derive(Clone, Debug, Serialize)]
pub struct Step {
    pub offered_per_s: u64,
    pub achieved_per_s: f64,
    pub is_sustained: bool,
    pub ack: Summary,
    pub schedule_delay: Option<Summary>,
    pub cost: Cost,
    pub faults: Faults,
}

impl Step {
    pub fn of(offered_per_s: u64, report: &produce::Report) -> Self {
        let achieved_per_s = report.cost.rate_per_s;
        let is_sustained = report.is_good() && achieved_per_s >= SUSTAINED_SHARE * offered_per_s as f64;
        Self {
            offered_per_s,
            achieved_per_s,
            is_sustained,
            ack: report.ack.unwrap_or_default(),
            schedule_delay: report.schedule_delay,
            cost: report.cost.clone(),
            faults: report.faults.clone(),
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub broker: BrokerFacts,
    /// By rate.
    pub steps: Vec<Step>,
    pub capacity_per_s: f64,
    pub knee_per_s: Option<u64>,
    /// Not even the highest rate was too much.
    pub is_open_ended: bool,
}

/// Runs all steps; each is told to `progress` as soon as it ends.
///
/// # Errors
/// The broker cannot be reached, does not create the topic, closes every connection or falls silent.
pub fn run(settings: &Settings, mut progress: impl FnMut(&Step)) -> io::Result<Report> {
    let Settings { target, payload, climb, in_flight, batch, threads } = settings;
    let step = |rate: u64| {
        let report = produce::run(&produce::Settings {
            target: target.clone(),
            payload: payload.clone(),
            in_flight: *in_flight,
            batch: *batch,
            rate: Some(rate),
            arrivals: climb.arrivals,
            messages: 1,
            seconds: Some(climb.step_seconds),
            warmup: rate * climb.step_warmup,
            threads: *threads,
            late_seconds_max: LATE_SECONDS_MAX,
            one_way: false,
            verify: false,
        })?;
        let step = Step::of(rate, &report);
        progress(&step);
        Ok(step)
    };
    let steps = climb.steps(step)?;
    Ok(Report { broker: BrokerFacts::read(target.broker, target.broker_pid), ..report(steps) })
}

impl Climb {
    /// The steps by rate; `step` runs one.
    pub fn steps(&self, mut step: impl FnMut(u64) -> io::Result<Step>) -> io::Result<Vec<Step>> {
        let mut steps: Vec<Step> = Vec::new();
        let mut rate = self.from.min(self.to) as f64;
        while steps.len() < STEP_COUNT_MAX {
            let next = step(rate.round() as u64)?;
            let is_sustained = next.is_sustained;
            steps.push(next);
            // The last step is the highest that may be.
            if !is_sustained || rate >= self.to as f64 {
                break;
            }
            rate = (rate * self.factor).min(self.to as f64);
        }
        for _ in 0..self.refine {
            let sustained = steps.iter().filter(|step| step.is_sustained).map(|step| step.offered_per_s).max();
            let lost = steps.iter().filter(|step| !step.is_sustained).map(|step| step.offered_per_s).min();
            let (Some(sustained), Some(lost)) = (sustained, lost) else { break };
            let middle = (sustained as f64 * lost as f64).sqrt().round() as u64;
            if middle <= sustained || middle >= lost {
                break;
            }
            steps.push(step(middle)?);
        }
        steps.sort_by_key(|step| step.offered_per_s);
        Ok(steps)
    }
}

pub fn report(steps: Vec<Step>) -> Report {
    Report {
        broker: BrokerFacts::default(),
        capacity_per_s: steps.iter().map(|step| step.achieved_per_s).fold(0.0, f64::max),
        knee_per_s: knee(&steps),
        is_open_ended: steps.iter().all(|step| step.is_sustained),
        steps,
    }
}

fn knee(steps: &[Step]) -> Option<u64> {
    let sustained = || steps.iter().filter(|step| step.is_sustained);
    let best = sustained().map(|step| step.ack.p99_us).min_by(f64::total_cmp)?;
    sustained().filter(|step| step.ack.p99_us <= KNEE_TIMES * best).map(|step| step.offered_per_s).max()
}

impl Report {
    /// A step that was not kept up with is what a ladder looks for.
    pub fn is_good(&self) -> bool {
        self.knee_per_s.is_some()
    }
}

pub const HEAD: [&str; 10] =
    ["offered, msg/s", "achieved", "p50", "p99", "p99.9", "p99.99", "max", "broker CPU, µs/msg", "client cores", ""];

pub fn row(step: &Step) -> Vec<String> {
    let Step { ack, cost, .. } = step;
    let mut remarks = Vec::new();
    if !step.is_sustained {
        remarks.push("not sustained".to_owned());
    }
    remarks.extend(step.faults.codes.iter().map(|(code, count)| format!("code {code} × {count}")));
    if cost.is_client_busy() {
        remarks.push("the client was busy".into());
    }
    let mut cells = vec![step.offered_per_s.to_string(), format!("{:.0}", step.achieved_per_s)];
    cells.extend([ack.p50_us, ack.p99_us, ack.p999_us, ack.p9999_us, ack.max_us].map(text::duration));
    cells.push(cost.broker_us_per_message.map_or("–".into(), |us| format!("{us:.2}")));
    cells.push(format!("{:.2}", cost.own_cores));
    cells.push(remarks.join(", "));
    cells
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "promise   {}", self.broker)?;
        f.write_str(&text::table(&HEAD, &self.steps.iter().map(row).collect::<Vec<_>>()))?;
        writeln!(f, "capacity  {:.0} msg/s, the most that was answered", self.capacity_per_s)?;
        match self.knee_per_s {
            Some(knee) => {
                writeln!(f, "knee      {knee} msg/s: above it p99 is more than {KNEE_TIMES} times its lowest")?
            }
            None => writeln!(f, "knee      none: not even the first rate was kept up with")?,
        }
        if self.is_open_ended {
            writeln!(f, "the highest rate was kept up with: --to may be higher")?;
        }
        Ok(())
    }
}

type LatencyFigure = fn(&Summary) -> f64;

/// Latency by rate; the name of a line says what of which ladder.
pub fn latency_chart(ladders: &[(&str, &[Step])]) -> Chart {
    let quantiles: [(&str, LatencyFigure); 3] =
        [("p50", |ack| ack.p50_us), ("p99", |ack| ack.p99_us), ("p99.9", |ack| ack.p999_us)];
    // Of many ladders one line each, or nobody sees anything.
    let quantiles = if ladders.len() > 1 { &quantiles[1..2] } else { &quantiles[..] };
    let mut lines = Vec::new();
    for (name, steps) in ladders {
        for (quantile, pick) in quantiles {
            let points = steps.iter().map(|step| (step.achieved_per_s, pick(&step.ack))).collect();
            lines.push(Line { name: format!("{name} {quantile}"), points });
        }
    }
    Chart {
        title: "Latency by throughput".into(),
        x: Axis { label: "messages a second, achieved", scale: Scale::Log, unit: Unit::Count },
        y: Axis { label: "latency", scale: Scale::Log, unit: Unit::Us },
        lines,
        is_bars: false,
    }
}

pub fn cpu_chart(ladders: &[(&str, &[Step])]) -> Chart {
    let line = |(name, steps): &(&str, &[Step])| {
        let points = steps.iter().filter_map(|step| Some((step.achieved_per_s, step.cost.broker_us_per_message?)));
        Line { name: (*name).to_owned(), points: points.collect() }
    };
    Chart {
        title: "Broker processor time of a message by throughput".into(),
        x: Axis { label: "messages a second, achieved", scale: Scale::Log, unit: Unit::Count },
        y: Axis { label: "µs", scale: Scale::Linear, unit: Unit::Us },
        lines: ladders.iter().map(line).collect(),
        is_bars: false,
    }
}

impl Figures for Report {
    fn parts(&self) -> Vec<Part> {
        let ladder = [("", &self.steps[..])];
        let name = |step: &Step| format!("{} msg/s", step.offered_per_s);
        let curves: Vec<(String, &Summary)> =
            self.steps.iter().filter(|step| step.is_sustained).map(|step| (name(step), &step.ack)).collect();
        vec![
            Part::Chart(latency_chart(&ladder)),
            Part::Chart(cpu_chart(&ladder)),
            Part::Chart(chart::percentiles("Latency by percentile, sustained steps", &curves)),
            Part::Table { head: HEAD.map(str::to_owned).to_vec(), rows: self.steps.iter().map(row).collect() },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(rate: u64, capacity: u64, p99_us: f64) -> Step {
        let achieved = rate.min(capacity) as f64;
        Step {
            offered_per_s: rate,
            achieved_per_s: achieved,
            is_sustained: rate <= capacity,
            ack: Summary { p99_us, ..Default::default() },
            schedule_delay: None,
            cost: Cost::default(),
            faults: Faults::default(),
        }
    }

    fn climb(from: u64, to: u64, refine: u32) -> Climb {
        let (step_seconds, step_warmup, arrivals) = (1, 0, Arrivals::Even);
        Climb { from, to, factor: 2.0, refine, step_seconds, step_warmup, arrivals }
    }

    #[test]
    fn a_ladder_closes_in_on_the_capacity() {
        // from, to, refine, rates for a capacity of 5 000
        for (from, to, refine, want) in [
            (1_000, 100_000, 0, &[1_000, 2_000, 4_000, 8_000][..]),
            (1_000, 100_000, 2, &[1_000, 2_000, 4_000, 4_757, 5_657, 8_000][..]),
            (1_000, 4_000, 2, &[1_000, 2_000, 4_000][..]),
            (1_000, 4_500, 0, &[1_000, 2_000, 4_000, 4_500][..]),
            (1_000, 6_000, 0, &[1_000, 2_000, 4_000, 6_000][..]),
            (9_000, 90_000, 3, &[9_000][..]),
        ] {
            let steps = climb(from, to, refine).steps(|rate| Ok(step(rate, 5_000, 1.0))).unwrap();
            let rates: Vec<u64> = steps.iter().map(|step| step.offered_per_s).collect();
            assert_eq!(rates, want, "from={from} to={to} refine={refine}");
        }
    }

    #[test]
    fn the_knee_comes_before_latency_explodes() {
        let p99 = |rate: u64| if rate <= 4_000 { 100.0 } else { 5_000.0 };
        let steps = climb(1_000, 100_000, 0).steps(|rate| Ok(step(rate, 20_000, p99(rate)))).unwrap();
        let report = report(steps);
        assert_eq!((report.knee_per_s, report.capacity_per_s), (Some(4_000), 20_000.0));
        assert!(!report.is_open_ended && report.is_good());
        let lost = super::report(vec![step(9_000, 5_000, 1.0)]);
        assert_eq!(lost.knee_per_s, None);
        assert!(!lost.is_good() && lost.to_string().contains("not sustained"), "{lost}");
    }
}
