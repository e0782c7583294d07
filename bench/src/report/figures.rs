//! What a page shows of each workload: the percentile curves, its seconds, and what a message cost.

use super::chart::{self, SecondFigure, Unit};
use super::{Figures, Part};
use crate::latency::{Second, Summary};
use crate::workload::{Cost, consume, e2e, produce, transaction};

pub fn curves(summaries: &[(&str, Option<&Summary>)]) -> Part {
    let known: Vec<(String, &Summary)> =
        summaries.iter().filter_map(|(name, summary)| Some(((*name).to_owned(), (*summary)?))).collect();
    Part::Chart(chart::percentiles("Latency by percentile", &known))
}

fn timeline(seconds: &[Second]) -> Vec<Part> {
    if seconds.len() < 2 {
        return Vec::new();
    }
    let rate: [(&str, SecondFigure); 1] = [("messages", |second| second.messages as f64)];
    let latency: [(&str, SecondFigure); 3] =
        [("p50", |second| second.p50_us), ("p99", |second| second.p99_us), ("max", |second| second.max_us)];
    vec![
        Part::Chart(chart::seconds("Messages, second by second", seconds, &rate, Unit::Count)),
        Part::Chart(chart::seconds("Latency, second by second", seconds, &latency, Unit::Us)),
    ]
}

fn cpu(cost: &Cost) -> Part {
    let mut values = vec![("client".to_owned(), cost.own_us_per_message)];
    if let Some(us) = cost.broker_us_per_message {
        values.insert(0, ("broker".into(), us));
    }
    values.push(("whole machine".into(), cost.machine_us_per_message));
    Part::Chart(chart::bars("Processor time of a message", "µs", values, Unit::Us))
}

impl Figures for produce::Report {
    fn parts(&self) -> Vec<Part> {
        let mut parts =
            vec![curves(&[("acknowledged", self.ack.as_ref()), ("left late", self.schedule_delay.as_ref())])];
        parts.extend(timeline(&self.timeline));
        parts.push(cpu(&self.cost));
        parts
    }
}

impl Figures for e2e::Report {
    fn parts(&self) -> Vec<Part> {
        let mut parts = vec![curves(&[
            ("acknowledged", Some(&self.ack)),
            ("end to end", Some(&self.end_to_end)),
            ("after its delay", self.lateness.as_ref()),
            ("left late", self.schedule_delay.as_ref()),
        ])];
        parts.push(Part::Heading("Acknowledged".into()));
        parts.extend(timeline(&self.ack_timeline));
        parts.push(Part::Heading("End to end".into()));
        parts.extend(timeline(&self.end_to_end_timeline));
        parts.push(cpu(&self.cost));
        parts
    }
}

impl Figures for consume::Report {
    fn parts(&self) -> Vec<Part> {
        let mut parts = vec![curves(&[("a pull", Some(&self.pull))])];
        parts.extend(timeline(&self.timeline));
        parts.push(cpu(&self.cost));
        parts
    }
}

impl Figures for transaction::Report {
    fn parts(&self) -> Vec<Part> {
        let mut parts = vec![curves(&[
            ("half message", Some(&self.half)),
            ("its end", self.end.as_ref()),
            ("whole", Some(&self.whole)),
            ("left late", self.schedule_delay.as_ref()),
        ])];
        parts.extend(timeline(&self.timeline));
        parts.push(cpu(&self.cost));
        parts
    }
}
