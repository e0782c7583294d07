//! The comparison as a markdown table: medians, with the smallest and the largest of the rounds in brackets.

use super::{FILES_FILLED_MIN, Report, Run, letter};
use crate::latency::{Summary, median};
use crate::workload::{Cost, Faults, produce};
use std::fmt;

type Pick = Box<dyn Fn(&Run) -> Option<f64>>;

/// A figure of a run.
struct Row {
    name: String,
    unit: &'static str,
    digits: usize,
    pick: Pick,
}

#[derive(Default)]
struct Rows(Vec<Row>);

impl Rows {
    fn add(&mut self, name: String, unit: &'static str, digits: usize, pick: impl Fn(&Run) -> Option<f64> + 'static) {
        self.0.push(Row { name, unit, digits, pick: Box::new(pick) });
    }

    fn cost(&mut self, workload: &str, cost: fn(&Run) -> Option<&Cost>) {
        let name = |what: &str| format!("{workload}: {what}");
        self.add(name("rate"), "msg/s", 0, move |run| Some(cost(run)?.rate_per_s));
        self.add(name("broker CPU"), "µs/msg", 2, move |run| cost(run)?.broker_us_per_message);
        self.add(name("broker CPU"), "cores", 2, move |run| cost(run)?.broker_cores);
        self.add(name("machine CPU"), "µs/msg", 2, move |run| Some(cost(run)?.machine_us_per_message));
        self.add(name("client CPU"), "µs/msg", 2, move |run| Some(cost(run)?.own_us_per_message));
        self.add(name("client CPU"), "cores", 2, move |run| Some(cost(run)?.own_cores));
        self.add(name("other CPU"), "cores", 2, move |run| cost(run)?.other_cores);
        self.add(name("RssAnon after"), "MiB", 1, move |run| cost(run)?.broker_anonymous_mib);
    }

    fn latency(&mut self, name: &str, latency: fn(&Run) -> Option<&Summary>) {
        self.add(format!("{name} p50"), "µs", 0, move |run| Some(latency(run)?.p50_us));
        self.add(format!("{name} p99"), "µs", 0, move |run| Some(latency(run)?.p99_us));
        self.add(format!("{name} p99.9"), "µs", 0, move |run| Some(latency(run)?.p999_us));
        self.add(format!("{name} max"), "µs", 0, move |run| Some(latency(run)?.max_us));
    }
}

fn rows() -> Vec<Row> {
    let mut rows = Rows::default();
    rows.add("ready".into(), "ms", 0, |run| Some(run.ready_ms));
    rows.add("idle RssAnon".into(), "MiB", 1, |run| Some(run.idle_anonymous_mib));
    rows.cost("produce", |run| Some(&run.produce.as_ref()?.cost));
    rows.latency("produce: ack", |run| ack(run.produce.as_ref()));
    rows.cost("batch", |run| Some(&run.batch.as_ref()?.cost));
    rows.latency("batch: ack of a request", |run| ack(run.batch.as_ref()));
    rows.cost("open", |run| Some(&run.open.as_ref()?.cost));
    rows.latency("open: ack", |run| ack(run.open.as_ref()));
    rows.latency("open: schedule late", |run| run.open.as_ref()?.schedule_delay.as_ref());
    rows.cost("e2e", |run| Some(&run.e2e.as_ref()?.cost));
    rows.latency("e2e: ack", |run| Some(&run.e2e.as_ref()?.ack));
    rows.latency("e2e: end to end", |run| Some(&run.e2e.as_ref()?.end_to_end));
    rows.latency("e2e: schedule late", |run| Some(&run.e2e.as_ref()?.schedule_delay));
    rows.cost("consume", |run| Some(&run.consume.as_ref()?.cost));
    rows.add("consume: bytes".into(), "MiB/s", 1, |run| Some(run.consume.as_ref()?.mib_per_s));
    rows.latency("consume: pull", |run| Some(&run.consume.as_ref()?.pull));
    rows.add("lost".into(), "messages", 0, |run| Some(run.lost() as f64));
    rows.add("stored or pulled twice".into(), "messages", 0, |run| Some(run.repeated() as f64));
    rows.add("stop".into(), "ms", 0, |run| Some(run.stop_ms));
    rows.0
}

fn ack(report: Option<&produce::Report>) -> Option<&Summary> {
    report?.ack.as_ref()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.names.iter().enumerate() {
            let promise = self.runs[index].first().map(|run| run.broker.to_string()).unwrap_or_default();
            writeln!(f, "{} = {name}: {promise}", letter(index))?;
        }
        let disk = spread(&self.disk_mib_per_s, 0);
        let kind = self.file_system.as_deref().unwrap_or("unknown file system");
        writeln!(f, "disk ({kind}): {disk} MiB/s, one sequential write and fdatasync before each round")?;
        writeln!(f, "medians of {} rounds (smallest to largest)\n", self.runs[0].len())?;
        let has_ratio = self.runs.len() > 1;
        write!(f, "| measure |")?;
        (0..self.runs.len()).try_for_each(|index| write!(f, " {} |", letter(index)))?;
        writeln!(f, "{}", if has_ratio { " A / B |" } else { "" })?;
        writeln!(f, "|---|{}{}", "---|".repeat(self.runs.len()), if has_ratio { "---|" } else { "" })?;
        for row in rows() {
            self.write_row(f, &row)?;
        }
        self.write_warnings(f)
    }
}

impl Report {
    fn write_row(&self, f: &mut fmt::Formatter<'_>, row: &Row) -> fmt::Result {
        let figures: Vec<Vec<f64>> =
            self.runs.iter().map(|runs| runs.iter().filter_map(|run| (row.pick)(run)).collect()).collect();
        if figures.iter().all(Vec::is_empty) {
            return Ok(());
        }
        write!(f, "| {}, {} |", row.name, row.unit)?;
        for values in &figures {
            write!(f, " {} |", spread(values, row.digits))?;
        }
        if let [a, b, ..] = &figures[..] {
            // Within a round. Nothing is divided by zero: such a ratio says nothing.
            let ratios: Vec<f64> = a.iter().zip(b).filter(|(_, b)| **b != 0.0).map(|(a, b)| a / b).collect();
            write!(f, " {} |", spread(&ratios, 3))?;
        }
        writeln!(f)
    }

    fn write_warnings(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, runs) in self.runs.iter().enumerate() {
            let letter = letter(index);
            let bad = runs.iter().filter(|run| !run.is_good()).count();
            if bad > 0 {
                let mut faults = Faults::default();
                runs.iter().flat_map(Run::faults).for_each(|fault| faults.add(fault));
                writeln!(f, "\n{letter}: FAULTS in {bad} of {} runs\n{faults}", runs.len())?;
            }
            let busy = runs.iter().filter(|run| run.costs().any(Cost::is_client_busy)).count();
            if busy > 0 {
                writeln!(f, "\n{letter}: in {busy} of {} runs the client may have measured itself", runs.len())?;
            }
            let noisy = runs.iter().filter(|run| run.costs().any(Cost::is_noisy)).count();
            if noisy > 0 {
                writeln!(f, "\n{letter}: in {noisy} of {} runs others used this machine (see other CPU)", runs.len())?;
            }
            let is_short = |run: &Run| run.produce.is_some() && run.files_filled.is_some_and(|n| n < FILES_FILLED_MIN);
            if runs.iter().any(is_short) {
                writeln!(f, "\n{letter}: fewer than {FILES_FILLED_MIN} files of 1 GiB were filled")?;
            }
        }
        if let Some(failure) = &self.failure {
            writeln!(f, "\nENDED EARLY in {failure}")?;
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
    use crate::workload::stored::Stored;

    #[test]
    fn a_spread_has_its_median_and_its_ends() {
        for (values, want) in [(&[][..], "–"), (&[1.0][..], "1.00"), (&[3.0, 1.0, 2.0][..], "2.00 (1.00 to 3.00)")] {
            assert_eq!(spread(values, 2), want);
        }
    }

    fn run_at(rate_per_s: f64, p50_us: f64, lost: u64) -> Run {
        let stored = Stored { sent: 9, acknowledged: 9, stored: 9 - lost, lost, surplus: 0 };
        let produce = produce::Report {
            broker: Default::default(),
            cost: Cost { rate_per_s, ..Default::default() },
            ack: Some(Summary { p50_us, ..Default::default() }),
            schedule_delay: None,
            faults: Default::default(),
            stored: Some(stored),
            verified: None,
        };
        Run { produce: Some(produce), ..Default::default() }
    }

    fn report(runs: Vec<Vec<Run>>) -> Report {
        let names = vec!["x".into(); runs.len()];
        Report { names, file_system: None, disk_mib_per_s: vec![100.0], runs, failure: None }
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // The medians would give 200 / 50 = 4; the rounds give 10, 4 and 1.
        let a = [100.0, 200.0, 300.0].map(|rate| run_at(rate, 1.0, 0)).to_vec();
        let b = [10.0, 50.0, 300.0].map(|rate| run_at(rate, 2.0, 0)).to_vec();
        let table = report(vec![a, b]).to_string();
        let rate = "| produce: rate, msg/s | 200 (100 to 300) | 50 (10 to 300) | 4.000 (1.000 to 10.000) |";
        assert!(table.contains(rate), "{table}");
        assert!(table.contains("| produce: ack p50, µs | 1 (1 to 1) | 2 (2 to 2) | 0.500 (0.500 to 0.500) |"));
        assert!(!table.contains("broker CPU") && !table.contains("FAULTS") && !table.contains("e2e"), "{table}");
    }

    #[test]
    fn a_loss_and_a_short_comparison_are_said() {
        let mut report = report(vec![vec![run_at(1.0, 1.0, 0), run_at(1.0, 1.0, 3)], vec![run_at(1.0, 1.0, 0)]]);
        report.failure = Some("round 2: gone".into());
        assert!(!report.is_good());
        let table = report.to_string();
        assert!(table.contains("A: FAULTS in 1 of 2 runs"), "{table}");
        assert!(table.contains("| lost, messages | 2 (0 to 3) | 0 | – |"), "{table}");
        assert!(table.contains("ENDED EARLY in round 2: gone"), "{table}");
    }
}
