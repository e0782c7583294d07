//! Whether A reached what a row must reach: by its ratio to B, or by what the machine itself gives in the same run.
//!
//! ```text
//! rate          A / B ≥ times, or (produce) the log grows as fast as the disk writes
//! CPU           A / B ≤ 1 / times
//! latency       A / B ≤ 1 / times, or A ≤ 1.5 × the echo server's
//! sync-one      also by itself: p50 ≤ 1.3 × (p50 of pwrite and fdatasync + p50 of the echo server)
//! ```

use super::row::{Figure, Goal, Workload};
use super::{Report, Round, Row};
use crate::latency::median;
use serde::Serialize;

pub const FLOOR_TIMES: f64 = 1.5;
pub const DURABLE_TIMES: f64 = 1.3;
/// The disk's rate varies from round to round by more than this.
const DISK_SHARE: f64 = 0.95;

#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    pub workload: Workload,
    pub figure: Figure,
    pub a: Vec<f64>,
    pub b: Vec<f64>,
    /// A / B by round.
    pub ratios: Vec<f64>,
    pub must: String,
    pub floor: Option<f64>,
    /// `None` with nothing to measure it by.
    pub is_met: Option<bool>,
    /// By what, or how far.
    pub why: String,
}

pub fn verdicts(report: &Report) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    if !report.has_goals {
        return verdicts;
    }
    for workload in report.workloads() {
        verdicts.extend(workload.goals().iter().map(|goal| verdict(report, workload, *goal)));
        if workload == Workload::SyncOne {
            verdicts.extend(durable(report));
        }
    }
    verdicts
}

fn figures(report: &Report, peer: usize, workload: Workload, pick: &dyn Fn(&Row) -> Option<f64>) -> Vec<f64> {
    let rounds = report.rounds.get(peer).map_or(&[][..], Vec::as_slice);
    rounds.iter().filter_map(|round| pick(round.row(workload)?)).collect()
}

/// Within a round. Nothing is divided by zero: such a ratio says nothing.
pub fn ratios(report: &Report, pick: &dyn Fn(&Round) -> Option<f64>) -> Vec<f64> {
    let [a, b, ..] = &report.rounds[..] else { return Vec::new() };
    let pairs = a.iter().zip(b).filter_map(|(a, b)| Some((pick(a)?, pick(b)?)));
    pairs.filter(|(_, b)| *b != 0.0).map(|(a, b)| a / b).collect()
}

fn verdict(report: &Report, workload: Workload, goal: Goal) -> Verdict {
    let Goal { figure, times, or_disk } = goal;
    let pick = |row: &Row| row.report.figure(figure);
    let (a, b) = (figures(report, 0, workload, &pick), figures(report, 1, workload, &pick));
    let ratios = ratios(report, &|round| round.row(workload).and_then(pick));
    let is_latency = matches!(figure, Figure::P50 | Figure::P99 | Figure::P999);
    let floor = report.floor_of(workload).and_then(|floor| match figure {
        Figure::Rate => Some(floor.cost.rate_per_s),
        Figure::Cpu => floor.cost.broker_us_per_message,
        Figure::P50 => Some(floor.ack?.p50_us),
        Figure::P99 => Some(floor.ack?.p99_us),
        Figure::P999 => Some(floor.ack?.p999_us),
    });
    let ratio = median(&ratios);
    let by_ratio = ratio.map(|ratio| if figure == Figure::Rate { ratio >= times } else { ratio <= 1.0 / times });
    let middle = median(&a);
    let by_floor = middle.zip(floor.filter(|_| is_latency)).map(|(a, floor)| a <= FLOOR_TIMES * floor);
    let log = median(&figures(report, 0, workload, &Row::log_mib_per_s));
    let disk = median(&report.disk_mib_per_s);
    let by_disk = log.zip(disk).filter(|_| or_disk).map(|(log, disk)| log >= DISK_SHARE * disk);
    let known: Vec<bool> = [by_ratio, by_floor, by_disk].into_iter().flatten().collect();
    let is_met = known.iter().any(|met| *met);
    let mut why = String::new();
    if by_ratio == Some(true) {
        why = "ratio".into();
    } else if by_floor == Some(true) {
        why = "echo".into();
    } else if by_disk == Some(true) {
        why = "disk".into();
    } else if let Some(ratio) = ratio {
        // How much more it must become.
        let missing = if figure == Figure::Rate { times / ratio } else { ratio * times };
        why = format!("{missing:.2} × away");
    }
    let must = match figure {
        Figure::Rate if or_disk => format!("≥ {times} ×, or the disk's rate"),
        Figure::Rate => format!("≥ {times} ×"),
        Figure::Cpu => format!("≤ 1/{times}"),
        _ => format!("≤ 1/{times}, or {FLOOR_TIMES} × echo"),
    };
    // A ratio that cannot be taken (A alone) is no failure.
    let is_met = if is_met { Some(true) } else { by_ratio };
    Verdict { workload, figure, a, b, ratios, must, floor, is_met, why }
}

/// A durable send needs one durable write and one way there and back; what it takes beyond them is the broker's.
fn durable(report: &Report) -> Option<Verdict> {
    let workload = Workload::SyncOne;
    let p50 = |row: &Row| row.report.figure(Figure::P50);
    let (a, b) = (figures(report, 0, workload, &p50), figures(report, 1, workload, &p50));
    let write = median(&figures(report, 0, workload, &|row| Some(row.durable_write?.p50_us)))?;
    let echo = report.floor_of(workload)?.ack?.p50_us;
    let middle = median(&a)?;
    Some(Verdict {
        workload,
        figure: Figure::P50,
        ratios: ratios(report, &|round| round.row(workload).and_then(p50)),
        a,
        b,
        must: format!("≤ {DURABLE_TIMES} × (write {write:.0} + echo {echo:.0} µs)"),
        floor: Some(write + echo),
        is_met: Some(middle <= DURABLE_TIMES * (write + echo)),
        why: format!("{:.2} × of it", middle / (write + echo)),
    })
}
