//! The rows of a comparison: what runs, on which configuration of the broker, and what it must reach beside the Java
//! broker. The set `table` is the table of docs/benchmarks.md.

use super::Settings;
use crate::body::BodySizes;
use crate::environment::BrokerFacts;
use crate::frame::Header;
use crate::latency::Summary;
use crate::peer::Peer;
use crate::workload::schedule::Arrivals;
use crate::workload::{Cost, Faults, Payload, Target, consume, e2e, produce};
use serde::Serialize;
use std::fmt;
use std::io;

const OPEN_LOOP_WARMUP_SECONDS: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Closed loop, one message a request
    Produce,
    /// Closed loop, many small messages a request
    Batch,
    /// Open loop of sends alone
    Open,
    /// Open loop with a consumer
    E2e,
    /// Drains what `produce`, or else `batch`, stored
    Consume,
    /// SYNC_FLUSH, closed loop
    Sync,
    /// SYNC_FLUSH, one connection with one request in flight
    SyncOne,
    /// SYNC_FLUSH, open loop
    SyncOpen,
    /// transientStorePoolEnable, closed loop
    Pool,
    /// transientStorePoolEnable, open loop of sends alone
    PoolOpen,
    /// transientStorePoolEnable, open loop with a consumer
    PoolE2e,
    /// 1 000 connections with one request of 128 bytes in flight
    Connections,
    /// All of these: the table of docs/benchmarks.md
    Table,
}

use Workload::{Batch, Connections, Consume, E2e, Open, Pool, PoolE2e, PoolOpen, Produce, Sync, SyncOne, SyncOpen};

const TABLE: [Workload; 12] =
    [Produce, Batch, Open, E2e, Consume, Connections, Sync, SyncOne, SyncOpen, Pool, PoolOpen, PoolE2e];

/// `table` stands for its rows; none comes twice.
pub fn expanded(workloads: &[Workload]) -> Vec<Workload> {
    let mut rows = Vec::new();
    for workload in workloads {
        let of = if *workload == Workload::Table { &TABLE[..] } else { std::slice::from_ref(workload) };
        for row in of {
            if !rows.contains(row) {
                rows.push(*row);
            }
        }
    }
    rows
}

/// How the broker is configured for a row, beyond what both are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// ASYNC_FLUSH, if the command line does not say otherwise.
    Given,
    Sync,
    Pool,
}

impl Profile {
    pub fn properties(self) -> &'static [&'static str] {
        match self {
            Self::Given => &[],
            Self::Sync => &["flushDiskType=SYNC_FLUSH"],
            // Three files are filled, one buffer for each.
            Self::Pool => &["flushDiskType=ASYNC_FLUSH", "transientStorePoolEnable=true", "transientStorePoolSize=3"],
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Given => "as given",
            Self::Sync => "SYNC_FLUSH",
            Self::Pool => "transientStorePoolEnable",
        })
    }
}

/// A figure of a row that must reach something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    Rate,
    Cpu,
    P50,
    P99,
    P999,
}

/// A rate at least so many times the other's; everything else at most that part of it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Goal {
    pub figure: Figure,
    pub times: f64,
    /// A rate is good enough, too, when the log grows as fast as the disk writes.
    pub or_disk: bool,
}

const fn goal(figure: Figure, times: f64) -> Goal {
    Goal { figure, times, or_disk: false }
}

/// What decides a latency without a broker, so that it is measured once on the echo server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Shape {
    pub connections: u32,
    pub in_flight: u32,
    pub batch: u32,
    pub body_bytes: u64,
    pub rate: Option<u64>,
}

impl Workload {
    pub fn profile(self) -> Profile {
        match self {
            Sync | SyncOne | SyncOpen => Profile::Sync,
            Pool | PoolOpen | PoolE2e => Profile::Pool,
            _ => Profile::Given,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Produce => "produce",
            Batch => "batch",
            Open => "open",
            E2e => "e2e",
            Consume => "consume",
            Sync => "sync",
            SyncOne => "sync-one",
            SyncOpen => "sync-open",
            Pool => "pool",
            PoolOpen => "pool-open",
            PoolE2e => "pool-e2e",
            Connections => "connections",
            Workload::Table => "table",
        }
    }

    /// Of the issue that set them.
    pub fn goals(self) -> Vec<Goal> {
        use Figure::{Cpu, P50, P99, P999, Rate};
        match self {
            Produce => vec![goal(Cpu, 10.0), Goal { or_disk: true, ..goal(Rate, 7.0) }, goal(P99, 20.0)],
            Batch => vec![goal(Rate, 4.0), goal(Cpu, 6.0)],
            Open => vec![goal(P50, 2.0), goal(P99, 20.0), goal(P999, 10.0), goal(Cpu, 4.0)],
            E2e => vec![goal(P50, 6.0), goal(P99, 4.0), goal(P999, 10.0)],
            Consume => vec![goal(Rate, 1.8), goal(Cpu, 4.0)],
            Sync => vec![goal(Rate, 5.0), goal(Cpu, 8.0)],
            SyncOne => vec![goal(Rate, 2.0)],
            SyncOpen => vec![goal(P50, 3.0), goal(P99, 10.0), goal(P999, 10.0)],
            Pool => vec![goal(Rate, 5.0), goal(Cpu, 8.0)],
            PoolOpen => vec![goal(P99, 2.0), goal(P999, 3.0)],
            PoolE2e => vec![goal(P50, 20.0)],
            Connections => vec![goal(Rate, 2.5), goal(Cpu, 4.0), goal(P99, 3.0)],
            Workload::Table => vec![],
        }
    }

    fn is_round_trip(self) -> bool {
        matches!(self, E2e | PoolE2e)
    }

    /// `None` of what no server without a store can be asked for. An open loop with a consumer has the floor of its sends.
    pub fn shape(self, settings: &Settings) -> Option<Shape> {
        let (connections, in_flight) = match self {
            Consume => return None,
            SyncOne => (1, 1),
            Connections => (1_000, 1),
            _ => (settings.connections, settings.in_flight),
        };
        let body_bytes = match self {
            Batch => settings.batch_size.into(),
            Connections => 128,
            _ => settings.payload.body.max() as u64,
        };
        let rate = match self {
            Open | PoolOpen => Some(settings.open_rate),
            SyncOpen => Some(settings.rate),
            _ if self.is_round_trip() => Some(settings.rate),
            _ => None,
        };
        let batch = if self == Batch { settings.batch } else { 1 };
        Some(Shape { connections, in_flight, batch, body_bytes, rate })
    }

    /// Measured messages of a closed loop: so that each row takes some seconds and the first fill three files.
    fn messages(self, messages: u64) -> u64 {
        let scaled = match self {
            Batch => messages * 3,
            Sync => messages / 3,
            SyncOne => messages / 100,
            Connections => messages / 5,
            _ => messages,
        };
        scaled.max(1)
    }

    /// Runs it against a broker.
    pub fn run(self, settings: &Settings, peer: &Peer) -> io::Result<RowReport> {
        let topic = self.topic(settings);
        let target = |connections| Target {
            broker: peer.address,
            broker_pid: peer.pid(),
            topic: topic.clone(),
            topic_count: settings.topic_count,
            queues: settings.queues,
            header: settings.header,
            connections,
            progress: false,
        };
        let Some(shape) = self.shape(settings) else {
            return consume::run(&consume::Settings {
                target: target(settings.connections),
                pull: settings.pull,
                passes: 1,
                warmup: settings.warmup,
                subscription: "*".into(),
            })
            .map(|report| RowReport::Consume(Box::new(report)));
        };
        let payload = self.payload(settings);
        if let Some(rate) = shape.rate.filter(|_| self.is_round_trip()) {
            return e2e::run(&e2e::Settings {
                target: target(shape.connections),
                payload,
                rate,
                arrivals: Arrivals::Even,
                seconds: settings.open_seconds,
                warmup: OPEN_LOOP_WARMUP_SECONDS,
                consumers: 1,
                pull: 32,
            })
            .map(|report| RowReport::RoundTrip(Box::new(report)));
        }
        let closed = produce::Settings {
            messages: self.messages(settings.messages),
            seconds: settings.seconds,
            warmup: self.messages(settings.warmup),
            ..sends(target(shape.connections), payload, shape)
        };
        produce::run(&open(closed, shape.rate, settings.open_seconds)).map(|report| RowReport::Sends(Box::new(report)))
    }

    /// What `consume` drains is what one of the others stored.
    fn topic(self, settings: &Settings) -> String {
        let rows = expanded(&settings.workloads);
        let of = match self {
            Consume if rows.contains(&Produce) => Produce,
            Consume => Batch,
            _ => self,
        };
        format!("Bench_{}_{}", of.name(), settings.run_name())
    }

    fn payload(self, settings: &Settings) -> Payload {
        let body = match self {
            Batch => BodySizes::Fixed(settings.batch_size),
            Connections => BodySizes::Fixed(128),
            _ => settings.payload.body.clone(),
        };
        Payload { body, ..settings.payload.clone() }
    }
}

fn sends(target: Target, payload: Payload, shape: Shape) -> produce::Settings {
    produce::Settings {
        target,
        payload,
        in_flight: shape.in_flight,
        batch: shape.batch,
        rate: None,
        arrivals: Arrivals::Even,
        messages: 1,
        seconds: None,
        warmup: 0,
        threads: 1,
        late_seconds_max: 10,
        one_way: false,
        verify: false,
    }
}

fn open(closed: produce::Settings, rate: Option<u64>, seconds: u64) -> produce::Settings {
    let Some(rate) = rate else { return closed };
    let warmup = rate * OPEN_LOOP_WARMUP_SECONDS;
    produce::Settings { rate: Some(rate), seconds: Some(seconds), warmup, ..closed }
}

impl Shape {
    /// The same against the echo server.
    pub fn run(self, settings: &Settings, echo: &Peer) -> io::Result<produce::Report> {
        const CLOSED_SECONDS: u64 = 3;
        let target = Target {
            broker: echo.address,
            broker_pid: echo.pid(),
            topic: "BenchEcho".into(),
            topic_count: settings.topic_count,
            queues: settings.queues,
            header: settings.header,
            connections: self.connections,
            progress: false,
        };
        let body = BodySizes::Fixed(u32::try_from(self.body_bytes).expect("a body is below 4 MB"));
        let payload = Payload { body, ..settings.payload.clone() };
        let closed = produce::Settings { seconds: Some(CLOSED_SECONDS), warmup: 1_000, ..sends(target, payload, self) };
        produce::run(&open(closed, self.rate, settings.open_seconds.min(10)))
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connections, in_flight, batch, body_bytes, rate } = self;
        write!(f, "{connections} × {in_flight}")?;
        if *batch > 1 {
            write!(f, ", {batch} messages a request")?;
        }
        write!(f, ", {body_bytes} B")?;
        rate.map_or(Ok(()), |rate| write!(f, ", open loop {rate} msg/s"))
    }
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RowReport {
    Sends(Box<produce::Report>),
    RoundTrip(Box<e2e::Report>),
    Consume(Box<consume::Report>),
}

impl RowReport {
    pub fn is_good(&self) -> bool {
        match self {
            Self::Sends(report) => report.is_good(),
            Self::RoundTrip(report) => report.is_good(),
            Self::Consume(report) => report.is_good(),
        }
    }

    pub fn broker(&self) -> &BrokerFacts {
        match self {
            Self::Sends(report) => &report.broker,
            Self::RoundTrip(report) => &report.broker,
            Self::Consume(report) => &report.broker,
        }
    }

    pub fn cost(&self) -> &Cost {
        match self {
            Self::Sends(report) => &report.cost,
            Self::RoundTrip(report) => &report.cost,
            Self::Consume(report) => &report.cost,
        }
    }

    pub fn faults(&self) -> &Faults {
        match self {
            Self::Sends(report) => &report.faults,
            Self::RoundTrip(report) => &report.faults,
            Self::Consume(report) => &report.faults,
        }
    }

    pub fn lost(&self) -> u64 {
        match self {
            Self::Sends(report) => report.stored.map_or(0, |stored| stored.lost),
            Self::RoundTrip(report) => report.lost,
            Self::Consume(report) => report.lost,
        }
    }

    pub fn repeated(&self) -> u64 {
        match self {
            Self::Sends(report) => report.stored.map_or(0, |stored| stored.surplus),
            Self::RoundTrip(report) => report.repeated,
            Self::Consume(report) => report.repeated,
        }
    }

    /// The latency a row is about: to the acknowledgement, end to end, or of a pull.
    pub fn latency(&self) -> Option<&Summary> {
        match self {
            Self::Sends(report) => report.ack.as_ref(),
            Self::RoundTrip(report) => Some(&report.end_to_end),
            Self::Consume(report) => Some(&report.pull),
        }
    }

    pub fn schedule_delay(&self) -> Option<&Summary> {
        match self {
            Self::Sends(report) => report.schedule_delay.as_ref(),
            Self::RoundTrip(report) => report.schedule_delay.as_ref(),
            Self::Consume(_) => None,
        }
    }

    /// Messages that went into the log, with the warm-up.
    pub fn stored(&self) -> Option<u64> {
        match self {
            Self::Sends(report) => report.stored.map(|stored| stored.stored),
            Self::RoundTrip(report) => Some(report.acknowledged),
            Self::Consume(_) => None,
        }
    }

    pub fn figure(&self, figure: Figure) -> Option<f64> {
        match figure {
            Figure::Rate => Some(self.cost().rate_per_s),
            Figure::Cpu => self.cost().broker_us_per_message,
            Figure::P50 => Some(self.latency()?.p50_us),
            Figure::P99 => Some(self.latency()?.p99_us),
            Figure::P999 => Some(self.latency()?.p999_us),
        }
    }
}

impl fmt::Display for RowReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sends(report) => report.fmt(f),
            Self::RoundTrip(report) => report.fmt(f),
            Self::Consume(report) => report.fmt(f),
        }
    }
}

impl Figure {
    /// Name, unit, digits.
    pub fn text(self) -> (&'static str, &'static str, usize) {
        match self {
            Self::Rate => ("rate", "msg/s", 0),
            Self::Cpu => ("broker CPU", "µs/msg", 2),
            Self::P50 => ("p50", "µs", 0),
            Self::P99 => ("p99", "µs", 0),
            Self::P999 => ("p99.9", "µs", 0),
        }
    }
}

/// The header of all rows is the one of the settings; it is named in the table.
pub fn header_name(header: Header) -> &'static str {
    match header {
        Header::Json => "JSON headers",
        Header::Rocketmq => "binary headers",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_stands_for_its_rows_once() {
        for (given, want) in [
            (&[Workload::Table][..], &TABLE[..]),
            (&[E2e, Produce][..], &[E2e, Produce][..]),
            (&[Produce, Produce][..], &[Produce][..]),
        ] {
            assert_eq!(expanded(given), want);
        }
        let rows = expanded(&[Workload::Table, Open]);
        assert_eq!(rows.len(), TABLE.len());
        assert!(TABLE.iter().all(|row| !row.goals().is_empty()));
    }
}
