//! The comparison as markdown: what must be reached and whether it is, then every figure; medians, with the smallest and
//! the largest of the rounds in brackets.

use super::row::{Figure, Workload, header_name};
use super::verdict::{self, Verdict};
use super::{FILES_FILLED_MIN, ROUND_COUNT_MIN, Report, Round, Row, letter};
use crate::latency::{Summary, median};
use crate::memory::Touched;
use crate::report::chart::{self, Unit};
use crate::report::{Figures, Part};
use crate::workload::{Cost, Faults};
use std::fmt;

type LatencyFigure = fn(&Summary) -> f64;
type Pick = Box<dyn Fn(&Round) -> Option<f64>>;

/// A figure of a round.
struct Line {
    name: String,
    unit: &'static str,
    digits: usize,
    pick: Pick,
}

#[derive(Default)]
struct Lines(Vec<Line>);

impl Lines {
    fn add(&mut self, name: String, unit: &'static str, digits: usize, pick: impl Fn(&Round) -> Option<f64> + 'static) {
        self.0.push(Line { name, unit, digits, pick: Box::new(pick) });
    }

    fn row(
        &mut self,
        workload: Workload,
        what: &str,
        unit: &'static str,
        digits: usize,
        pick: impl Fn(&Row) -> Option<f64> + 'static,
    ) {
        let name = format!("{}: {what}", workload.name());
        self.add(name, unit, digits, move |round| pick(round.row(workload)?));
    }

    fn cost(&mut self, workload: Workload, what: &str, unit: &'static str, pick: fn(&Cost) -> Option<f64>) {
        let digits = if matches!(unit, "µs/msg" | "cores") { 2 } else { 0 };
        self.row(workload, what, unit, digits, move |row| pick(row.report.cost()));
    }

    fn latency(&mut self, workload: Workload, what: &str, pick: fn(&Row) -> Option<&Summary>) {
        let figures: [(&str, LatencyFigure); 5] = [
            ("p50", |summary| summary.p50_us),
            ("p99", |summary| summary.p99_us),
            ("p99.9", |summary| summary.p999_us),
            ("p99.99", |summary| summary.p9999_us),
            ("max", |summary| summary.max_us),
        ];
        for (name, figure) in figures {
            self.row(workload, &format!("{what} {name}"), "µs", 0, move |row| pick(row).map(figure));
        }
    }

    fn workload(&mut self, workload: Workload) {
        self.cost(workload, "rate", "msg/s", |cost| Some(cost.rate_per_s));
        self.cost(workload, "broker CPU", "µs/msg", |cost| cost.broker_us_per_message);
        self.cost(workload, "broker CPU", "cores", |cost| cost.broker_cores);
        self.cost(workload, "machine CPU", "µs/msg", |cost| Some(cost.machine_us_per_message));
        self.cost(workload, "client CPU", "µs/msg", |cost| Some(cost.own_us_per_message));
        self.cost(workload, "client CPU", "cores", |cost| Some(cost.own_cores));
        self.cost(workload, "other CPU", "cores", |cost| cost.other_cores);
        self.cost(workload, "RssAnon after", "MiB", |cost| cost.broker_anonymous_mib);
        self.cost(workload, "resident after", "MiB", |cost| cost.broker_resident_mib);
        self.cost(workload, "write calls", "calls", |cost| cost.broker_write_calls.map(|count| count as f64));
        self.cost(workload, "device writes", "writes", |cost| cost.device_writes.map(|count| count as f64));
        self.cost(workload, "device flushes", "flushes", |cost| cost.device_flushes.map(|count| count as f64));
        self.row(workload, "log", "MiB/s", 1, Row::log_mib_per_s);
        self.row(workload, "a pwrite and its fdatasync before it, p50", "µs", 0, |row| {
            Some(row.durable_write?.p50_us)
        });
        let what = match workload {
            Workload::Consume => "pull",
            Workload::Batch => "ack of a request",
            Workload::E2e | Workload::PoolE2e => "end to end",
            _ => "ack",
        };
        self.latency(workload, what, |row| row.report.latency());
        self.latency(workload, "schedule late", |row| row.report.schedule_delay());
    }
}

fn lines(workloads: &[Workload]) -> Vec<Line> {
    let mut lines = Lines::default();
    lines.add("ready".into(), "ms", 0, |round| Some(round.runs.first()?.ready_ms));
    lines.add("idle RssAnon".into(), "MiB", 1, |round| round.runs.first()?.idle_anonymous_mib);
    workloads.iter().for_each(|workload| lines.workload(*workload));
    lines.add("lost".into(), "messages", 0, |round| Some(round.lost() as f64));
    lines.add("stored or pulled twice".into(), "messages", 0, |round| Some(round.repeated() as f64));
    lines.add("stop".into(), "ms", 0, |round| Some(round.runs.first()?.stop_ms));
    lines.0
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.names.iter().enumerate() {
            writeln!(f, "{} = {name}", letter(index))?;
            // What it promises, once for each configuration.
            for run in self.rounds[index].first().into_iter().flat_map(|round| &round.runs) {
                writeln!(f, "    {}: {}", run.profile, run.broker)?;
            }
        }
        let disk = spread(&self.disk_mib_per_s, 0);
        let kind = self.file_system.as_deref().unwrap_or("unknown file system");
        writeln!(f, "disk ({kind}): {disk} MiB/s, one sequential write and fdatasync before each round")?;
        if let Some(text) = self.memory() {
            writeln!(f, "{text}")?;
        }
        for left_out in &self.left_out {
            writeln!(f, "not measured: {left_out}")?;
        }
        let rounds = self.rounds[0].len();
        writeln!(f, "{}; medians of {rounds} rounds (smallest to largest)\n", header_name(self.header))?;
        self.write_verdicts(f)?;
        let has_ratio = self.rounds.len() > 1;
        write!(f, "| measure |")?;
        (0..self.rounds.len()).try_for_each(|index| write!(f, " {} |", letter(index)))?;
        writeln!(f, "{}", if has_ratio { " A / B |" } else { "" })?;
        writeln!(f, "|---|{}{}", "---|".repeat(self.rounds.len()), if has_ratio { "---|" } else { "" })?;
        for line in lines(&self.workloads()) {
            self.write_line(f, &line)?;
        }
        self.write_floor(f)?;
        self.write_warnings(f)
    }
}

impl Report {
    /// The table that says what is met.
    fn write_verdicts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.verdict_rows();
        if rows.is_empty() {
            return Ok(());
        }
        let (head, rows) = (Self::VERDICT_HEAD, rows);
        writeln!(f, "| {} |\n|{}", head.join(" | "), "---|".repeat(head.len()))?;
        rows.iter().try_for_each(|row| writeln!(f, "| {} |", row.join(" | ")))?;
        writeln!(f)
    }

    pub(super) const VERDICT_HEAD: [&str; 7] = ["row", "A", "B", "A / B", "must reach", "echo (floor)", "met"];

    pub(super) fn verdict_rows(&self) -> Vec<Vec<String>> {
        let row = |verdict: &Verdict| {
            let (figure, unit, digits) = verdict.figure.text();
            let is_end_to_end = matches!(verdict.workload, Workload::E2e | Workload::PoolE2e);
            let of = if is_end_to_end && verdict.figure != Figure::Cpu { " end to end" } else { "" };
            let met = match verdict.is_met {
                Some(true) => format!("yes ({})", verdict.why),
                Some(false) => format!("NO ({})", verdict.why),
                None => "–".into(),
            };
            vec![
                format!("{}:{of} {figure}, {unit}", verdict.workload.name()),
                spread(&verdict.a, digits),
                spread(&verdict.b, digits),
                spread(&verdict.ratios, 3),
                verdict.must.clone(),
                verdict.floor.map_or("–".into(), |floor| format!("{floor:.digits$}")),
                met,
            ]
        };
        verdict::verdicts(self).iter().map(row).collect()
    }

    fn write_line(&self, f: &mut fmt::Formatter<'_>, line: &Line) -> fmt::Result {
        let figures: Vec<Vec<f64>> =
            self.rounds.iter().map(|rounds| rounds.iter().filter_map(|round| (line.pick)(round)).collect()).collect();
        if figures.iter().all(Vec::is_empty) {
            return Ok(());
        }
        write!(f, "| {}, {} |", line.name, line.unit)?;
        for values in &figures {
            write!(f, " {} |", spread(values, line.digits))?;
        }
        if figures.len() > 1 {
            write!(f, " {} |", spread(&verdict::ratios(self, &line.pick), 3))?;
        }
        writeln!(f)
    }

    /// What the touches of free memory found.
    fn memory(&self) -> Option<String> {
        let touched = self.rounds.iter().flatten().flat_map(Round::rows).map(|row| row.memory);
        let touched: Vec<Touched> = touched.filter(|touched| touched.mib > 0).collect();
        let least = touched.iter().map(|touched| touched.mib).min()?;
        let cold: Vec<f64> =
            touched.iter().filter(|touched| touched.was_cold()).map(|touched| touched.ns_per_page).collect();
        let found = match cold.iter().copied().reduce(f64::max) {
            None => "all of it this machine's own".to_owned(),
            Some(most) => format!(
                "before {} of {} rows pages came from the host, at up to {:.1} µs each",
                cold.len(),
                touched.len(),
                most / 1e3
            ),
        };
        Some(format!("memory: {least} MiB and more touched before each row, {found}"))
    }

    fn write_floor(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for floor in &self.floor {
            let cost = &floor.report.cost;
            write!(f, "\nfloor {}: {:.0} msg/s", floor.shape, cost.rate_per_s)?;
            if let Some(us) = cost.broker_us_per_message {
                write!(f, ", {us:.2} µs/msg")?;
            }
            if let Some(ack) = &floor.report.ack {
                write!(f, ", {ack}")?;
            }
        }
        if self.floor.is_empty() { Ok(()) } else { writeln!(f) }
    }

    fn write_warnings(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, rounds) in self.rounds.iter().enumerate() {
            let letter = letter(index);
            let bad = rounds.iter().filter(|round| !round.is_good()).count();
            if bad > 0 {
                let mut faults = Faults::default();
                rounds.iter().flat_map(Round::faults).for_each(|fault| faults.add(fault));
                let of = rounds.iter().flat_map(Round::rows).filter(|row| !row.report.is_good());
                let names: Vec<&str> = of.map(|row| row.workload.name()).collect();
                writeln!(f, "\n{letter}: FAULTS in {bad} of {} rounds ({})\n{faults}", rounds.len(), names.join(", "))?;
            }
            for (test, what) in [
                (Cost::is_client_busy as fn(&Cost) -> bool, "the client may have measured itself"),
                (Cost::is_noisy, "others used this machine (see other CPU)"),
            ] {
                let of = rounds.iter().flat_map(Round::rows).filter(|row| test(row.report.cost()));
                let mut names: Vec<&str> = of.map(|row| row.workload.name()).collect();
                names.sort_unstable();
                names.dedup();
                if !names.is_empty() {
                    writeln!(f, "\n{letter}: {what} in {}", names.join(", "))?;
                }
            }
            let is_short = |round: &Round| {
                let mut runs = round.runs.iter();
                runs.any(|run| {
                    run.rows.iter().any(|row| matches!(row.workload, Workload::Produce | Workload::Pool))
                        && run.files_filled.is_some_and(|count| count < FILES_FILLED_MIN)
                })
            };
            if rounds.iter().any(is_short) {
                writeln!(f, "\n{letter}: fewer than {FILES_FILLED_MIN} files of 1 GiB were filled")?;
            }
        }
        let rounds = self.rounds.iter().map(Vec::len).min().unwrap_or_default();
        if rounds < ROUND_COUNT_MIN {
            writeln!(f, "\nfewer than {ROUND_COUNT_MIN} rounds: how much they vary is not known")?;
        }
        if let Some(failure) = &self.failure {
            writeln!(f, "\nENDED EARLY in {failure}")?;
        }
        Ok(())
    }
}

impl Figures for Report {
    fn parts(&self) -> Vec<Part> {
        let head = Self::VERDICT_HEAD.map(str::to_owned).to_vec();
        let mut parts = vec![Part::Table { head, rows: self.verdict_rows() }];
        for workload in self.workloads() {
            let name = workload.name();
            let mut curves: Vec<(String, &Summary)> = Vec::new();
            let mut cpu = Vec::new();
            for (index, rounds) in self.rounds.iter().enumerate() {
                // The last round stands for all in a curve; the table has the medians.
                let Some(row) = rounds.iter().rev().find_map(|round| round.row(workload)) else { continue };
                curves.extend(row.report.latency().map(|latency| (letter(index).to_string(), latency)));
                cpu.extend(row.report.cost().broker_us_per_message.map(|us| (letter(index).to_string(), us)));
            }
            if let Some(floor) = self.floor_of(workload) {
                curves.extend(floor.ack.as_ref().map(|ack| ("echo".to_owned(), ack)));
                cpu.extend(floor.cost.broker_us_per_message.map(|us| ("echo".to_owned(), us)));
            }
            parts.push(Part::Heading(name.into()));
            parts.push(Part::Chart(chart::percentiles(&format!("{name}: latency by percentile"), &curves)));
            let title = format!("{name}: broker processor time of a message");
            parts.push(Part::Chart(chart::bars(&title, "µs", cpu, Unit::Us)));
        }
        parts
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
    use crate::compare::{Floor, Profile, RowReport, Run, Shape};
    use crate::workload::produce;
    use crate::workload::stored::Stored;

    #[test]
    fn a_spread_has_its_median_and_its_ends() {
        for (values, want) in [(&[][..], "–"), (&[1.0][..], "1.00"), (&[3.0, 1.0, 2.0][..], "2.00 (1.00 to 3.00)")] {
            assert_eq!(spread(values, 2), want);
        }
    }

    fn round(rate_per_s: f64, p50_us: f64, lost: u64) -> Round {
        let stored = Stored { sent: 9, acknowledged: 9, stored: 9 - lost, lost, surplus: 0 };
        let row = Row {
            workload: Workload::Produce,
            report: RowReport::Sends(Box::new(sends(rate_per_s, p50_us, Some(stored)))),
            log_bytes: None,
            durable_write: None,
            memory: Touched { mib: 64, ns_per_page: 300.0 },
        };
        let run = Run {
            profile: Profile::Given,
            broker: Default::default(),
            ready_ms: 1.0,
            idle_anonymous_mib: None,
            rows: vec![row],
            files_filled: None,
            stop_ms: 1.0,
        };
        Round { runs: vec![run] }
    }

    fn sends(rate_per_s: f64, p50_us: f64, stored: Option<Stored>) -> produce::Report {
        produce::Report {
            broker: Default::default(),
            cost: Cost { rate_per_s, ..Default::default() },
            ack: Some(Summary { p50_us, p99_us: p50_us, ..Default::default() }),
            schedule_delay: None,
            faults: Default::default(),
            stored,
            verified: None,
            timeline: Vec::new(),
        }
    }

    fn report(rounds: Vec<Vec<Round>>) -> Report {
        Report {
            names: vec!["x".into(); rounds.len()],
            header: crate::frame::Header::Json,
            file_system: None,
            disk_mib_per_s: vec![100.0],
            floor: Vec::new(),
            shapes: Vec::new(),
            has_goals: true,
            rounds,
            left_out: Vec::new(),
            failure: None,
        }
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // The medians would give 200 / 50 = 4; the rounds give 10, 4 and 1.
        let a = [100.0, 200.0, 300.0].map(|rate| round(rate, 1.0, 0)).to_vec();
        let b = [10.0, 50.0, 300.0].map(|rate| round(rate, 2.0, 0)).to_vec();
        let table = report(vec![a, b]).to_string();
        let rate = "| produce: rate, msg/s | 200 (100 to 300) | 50 (10 to 300) | 4.000 (1.000 to 10.000) |";
        assert!(table.contains(rate), "{table}");
        assert!(table.contains("| produce: ack p50, µs | 1 (1 to 1) | 2 (2 to 2) | 0.500 (0.500 to 0.500) |"));
        assert!(table.contains("≥ 7 ×, or the disk's rate | – | NO (1.75 × away) |"), "{table}");
        assert!(!table.contains("FAULTS") && !table.contains("e2e"), "{table}");
    }

    #[test]
    fn a_row_is_met_by_its_ratio_the_echo_server_or_the_disk() {
        let verdict = |report: &Report, figure| {
            let mut verdicts = verdict::verdicts(report).into_iter();
            verdicts.find(|verdict| verdict.figure == figure).unwrap()
        };
        let mut report = report(vec![vec![round(100.0, 10.0, 0)], vec![round(10.0, 100.0, 0)]]);
        // figure, met, by what: the rate is 10 times B's; the latency must be 1/20 and is 1/10
        let met = |report: &Report, figure| (verdict(report, figure).is_met, verdict(report, figure).why);
        assert_eq!(met(&report, Figure::Rate), (Some(true), "ratio".into()));
        assert_eq!(met(&report, Figure::P99), (Some(false), "2.00 × away".into()));
        assert_eq!(met(&report, Figure::Cpu), (None, String::new()));
        let shape = Shape { connections: 4, in_flight: 64, batch: 1, body_bytes: 1024, rate: None };
        report.shapes = vec![(Workload::Produce, shape)];
        report.floor = vec![Floor { shape, report: sends(1e6, 7.0, None) }];
        assert_eq!(met(&report, Figure::P99), (Some(true), "echo".into()));
        let mut slow = report.clone();
        slow.rounds[0][0] = round(20.0, 10.0, 0);
        assert_eq!(met(&slow, Figure::Rate).0, Some(false));
        // Nine messages were stored in 9 × 5 MiB of log: at 20 a second that is the disk's rate of 100 MiB/s.
        slow.rounds[0][0].runs[0].rows[0].log_bytes = Some(9 * (5 << 20));
        assert_eq!(met(&slow, Figure::Rate), (Some(true), "disk".into()));
        // A alone.
        slow.rounds.pop();
        assert_eq!(met(&slow, Figure::Cpu).0, None);
    }

    #[test]
    fn memory_that_came_from_the_host_is_said() {
        let mut report = report(vec![vec![round(1.0, 1.0, 0), round(1.0, 1.0, 0)]]);
        assert!(report.to_string().contains("memory: 64 MiB and more touched before each row, all of it"), "{report}");
        report.rounds[0][1].runs[0].rows[0].memory = Touched { mib: 128, ns_per_page: 5_340.0 };
        assert!(report.to_string().contains("before 1 of 2 rows pages came from the host, at up to 5.3 µs each"));
    }

    #[test]
    fn a_loss_and_a_short_comparison_are_said() {
        let mut report = report(vec![vec![round(1.0, 1.0, 0), round(1.0, 1.0, 3)], vec![round(1.0, 1.0, 0)]]);
        report.failure = Some("round 2: gone".into());
        assert!(!report.is_good());
        let table = report.to_string();
        assert!(table.contains("A: FAULTS in 1 of 2 rounds (produce)"), "{table}");
        assert!(table.contains("| lost, messages | 2 (0 to 3) | 0 | – |"), "{table}");
        assert!(table.contains("ENDED EARLY in round 2: gone"), "{table}");
    }
}
