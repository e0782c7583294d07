//! Two brokers, A B A B …, in one run on one machine: each time a fresh store, the same workloads, whole processes.
//!
//! A ratio is taken within a round, where both brokers met the same machine, and then the median of the rounds. Before
//! each round the disk's own speed is measured.

mod table;

use crate::client::Client;
use crate::disk;
use crate::environment::{BrokerFacts, file_system};
use crate::frame::Header;
use crate::peer::{Kind, Options, Peer};
use crate::process;
use crate::workload::{Cost, Faults, Payload, Target, consume, e2e, produce};
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
const MIB: f64 = (1 << 20) as f64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
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
}

#[derive(Clone, Debug, clap::Args)]
pub struct Settings {
    /// Broker A: ringmq:PATH of a release binary, java, java:DIR of jars, or echo
    #[arg(long, default_value = "ringmq:target/release/ringmq")]
    pub a: Kind,
    /// Broker B; without it A is measured alone. `java` is the published broker that bench/java/pom.xml names
    #[arg(long)]
    pub b: Option<Kind>,
    /// Measure the echo server in each round too: the floor of machine, kernel, reactor and client
    #[arg(long)]
    pub floor: bool,
    /// Which workloads, in the order of this list
    #[arg(long, value_enum, value_delimiter = ',', default_value = "produce,batch,e2e,consume")]
    pub workloads: Vec<Workload>,
    /// How often each broker is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Measured messages of a closed loop; 2.9 million of 1 KiB fill three files of 1 GiB
    #[arg(long, default_value_t = 3_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub messages: u64,
    /// Measured seconds of a closed loop instead of a count
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: Option<u64>,
    /// Messages of a closed loop before its measured part
    #[arg(long, default_value_t = 300_000)]
    pub warmup: u64,
    /// Connections of each workload; one more pulls in `e2e`
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub connections: u32,
    /// Requests in flight on each of them in a closed loop
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub in_flight: u32,
    #[command(flatten)]
    pub payload: Payload,
    /// Messages of a request of `batch`
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub batch: u32,
    /// Bytes of a message body of `batch`
    #[arg(long, default_value_t = 128)]
    pub batch_size: u32,
    /// Topics of each workload
    #[arg(long = "topics", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub topic_count: u32,
    /// Queues of a topic
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub queues: u32,
    /// Encoding of the request headers
    #[arg(long, value_enum, default_value = "json")]
    pub header: Header,
    /// Messages a second of the open loops
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub rate: u64,
    /// Measured seconds of an open loop
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub open_seconds: u64,
    /// Messages a pull asks for in `consume`
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub pull: u32,
    /// Seconds a started broker is left alone before its idle memory is read
    #[arg(long, default_value_t = 3)]
    pub idle_seconds: u64,
    /// Stores are made here: the file system that matters
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    pub work_dir: PathBuf,
    /// Nothing is started with less free space
    #[arg(long, default_value_t = 20)]
    pub free_gib_min: u64,
    /// MiB of the sequential write before each round; 0 leaves it out
    #[arg(long, default_value_t = 1024)]
    pub disk_mib: u64,
    /// Heap of Java's broker, as -Xmx takes it
    #[arg(long, default_value = "4g")]
    pub java_heap: String,
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
    fn peers(&self) -> io::Result<Vec<(Kind, Options)>> {
        let options = |own: &[String]| Options {
            work_dir: self.work_dir.clone(),
            free_gib_min: self.free_gib_min,
            properties: [&self.properties, own].concat(),
            java_heap: self.java_heap.clone(),
        };
        let mut peers = vec![(self.a.resolved()?, options(&self.a_properties))];
        if let Some(b) = &self.b {
            peers.push((b.resolved()?, options(&self.b_properties)));
        }
        if self.floor {
            peers.push((Kind::Echo, options(&[])));
        }
        Ok(peers)
    }

    fn target(&self, peer: &Peer, topic: &str) -> Target {
        Target {
            broker: peer.address,
            broker_pid: Some(peer.pid()),
            topic: topic.into(),
            topic_count: self.topic_count,
            queues: self.queues,
            header: self.header,
            connections: self.connections,
        }
    }

    fn closed_loop(&self, target: Target, payload: Payload, batch: u32) -> produce::Settings {
        produce::Settings {
            target,
            payload,
            in_flight: self.in_flight,
            batch,
            rate: None,
            messages: self.messages,
            seconds: self.seconds,
            warmup: self.warmup,
            one_way: false,
            verify: false,
        }
    }

    /// What a server that stores nothing can be asked for.
    fn is_for(&self, workload: Workload, kind: &Kind) -> bool {
        let stores = *kind != Kind::Echo;
        self.workloads.contains(&workload) && (stores || !matches!(workload, Workload::E2e | Workload::Consume))
    }

    fn check(&self) -> io::Result<()> {
        let has = |workload| self.workloads.contains(&workload);
        if has(Workload::Consume) && !has(Workload::Produce) && !has(Workload::Batch) {
            return Err(io::Error::other("consume drains what produce or batch stored, and neither is in the list"));
        }
        Ok(())
    }
}

/// One broker in one round.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Run {
    pub broker: BrokerFacts,
    pub ready_ms: f64,
    pub idle_anonymous_mib: f64,
    pub produce: Option<produce::Report>,
    pub batch: Option<produce::Report>,
    pub open: Option<produce::Report>,
    pub e2e: Option<e2e::Report>,
    pub consume: Option<consume::Report>,
    /// Files of the log that the workloads filled, if the broker says where its log ends.
    pub files_filled: Option<u64>,
    pub stop_ms: f64,
}

impl Run {
    fn sends(&self) -> impl Iterator<Item = &produce::Report> {
        [&self.produce, &self.batch, &self.open].into_iter().flatten()
    }

    fn is_good(&self) -> bool {
        self.sends().all(produce::Report::is_good)
            && self.e2e.as_ref().is_none_or(e2e::Report::is_good)
            && self.consume.as_ref().is_none_or(consume::Report::is_good)
    }

    fn costs(&self) -> impl Iterator<Item = &Cost> {
        let sends = self.sends().map(|report| &report.cost);
        let e2e = self.e2e.iter().map(|report| &report.cost);
        sends.chain(e2e).chain(self.consume.iter().map(|report| &report.cost))
    }

    fn faults(&self) -> impl Iterator<Item = &Faults> {
        let sends = self.sends().map(|report| &report.faults);
        let e2e = self.e2e.iter().map(|report| &report.faults);
        sends.chain(e2e).chain(self.consume.iter().map(|report| &report.faults))
    }

    /// Messages lost over all workloads.
    fn lost(&self) -> u64 {
        let sends: u64 = self.sends().filter_map(|report| report.stored).map(|stored| stored.lost).sum();
        let e2e = self.e2e.as_ref().map_or(0, |report| report.lost);
        sends + e2e + self.consume.as_ref().map_or(0, |report| report.lost)
    }

    /// Messages stored or pulled more than once over all workloads.
    fn repeated(&self) -> u64 {
        let sends: u64 = self.sends().filter_map(|report| report.stored).map(|stored| stored.surplus).sum();
        let e2e = self.e2e.as_ref().map_or(0, |report| report.repeated);
        sends + e2e + self.consume.as_ref().map_or(0, |report| report.repeated)
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub names: Vec<String>,
    /// Of the work dir.
    pub file_system: Option<String>,
    /// Sequential write of the disk before each round, MiB/s.
    pub disk_mib_per_s: Vec<f64>,
    /// By peer, then by round.
    pub runs: Vec<Vec<Run>>,
    /// Why there are fewer rounds than were asked for.
    pub failure: Option<String>,
}

impl Report {
    pub fn is_good(&self) -> bool {
        self.failure.is_none() && self.runs.iter().flatten().all(Run::is_good)
    }
}

/// Runs all rounds; each run is told to `progress` as soon as it ends. A broker that does not start or stop or that
/// falls silent ends the comparison; the rounds before it are still reported.
///
/// # Errors
/// A binary or the jars are missing, the settings contradict each other, or not even the first run ended.
pub fn run(settings: &Settings, mut progress: impl FnMut(&str)) -> io::Result<Report> {
    settings.check()?;
    let peers = settings.peers()?;
    let mut report = Report {
        names: peers.iter().map(|(kind, _)| kind.to_string()).collect(),
        file_system: file_system(&settings.work_dir),
        disk_mib_per_s: Vec::new(),
        runs: peers.iter().map(|_| Vec::new()).collect(),
        failure: None,
    };
    for round in 1..=settings.rounds {
        let outcome = run_round(settings, &peers, &mut report, |index, run| {
            let (letter, name) = (letter(index), &peers[index].0);
            progress(&format!("── round {round} of {}: {letter} = {name}\n{run}", settings.rounds));
        });
        if let Err(error) = outcome {
            if report.runs[0].is_empty() {
                return Err(error);
            }
            report.failure = Some(format!("round {round}: {error}"));
            break;
        }
    }
    Ok(report)
}

fn run_round(
    settings: &Settings,
    peers: &[(Kind, Options)],
    report: &mut Report,
    mut progress: impl FnMut(usize, &Run),
) -> io::Result<()> {
    if settings.disk_mib > 0 {
        report.disk_mib_per_s.push(disk::sequential_write_mib_s(&settings.work_dir, settings.disk_mib << 20)?);
    }
    for (index, (kind, options)) in peers.iter().enumerate() {
        let run = run_one(settings, kind, options)?;
        progress(index, &run);
        report.runs[index].push(run);
    }
    Ok(())
}

fn run_one(settings: &Settings, kind: &Kind, options: &Options) -> io::Result<Run> {
    let peer = Peer::start(kind, options)?;
    thread::sleep(Duration::from_secs(settings.idle_seconds));
    let idle = process::memory(peer.pid())?;
    let mut run = Run {
        broker: peer.facts(),
        ready_ms: peer.ready.as_secs_f64() * 1e3,
        idle_anonymous_mib: idle.anonymous as f64 / MIB,
        ..Run::default()
    };
    for workload in &settings.workloads {
        if settings.is_for(*workload, kind) {
            run_workload(settings, *workload, &peer, &mut run)?;
        }
    }
    run.files_filled = files_filled(&peer);
    run.stop_ms = peer.stop()?.as_secs_f64() * 1e3;
    Ok(run)
}

fn run_workload(settings: &Settings, workload: Workload, peer: &Peer, run: &mut Run) -> io::Result<()> {
    const PRODUCED: &str = "BenchProduce";
    const BATCHED: &str = "BenchBatch";
    let payload = settings.payload.clone();
    match workload {
        Workload::Produce => {
            run.produce = Some(produce::run(&settings.closed_loop(settings.target(peer, PRODUCED), payload, 1))?);
        }
        Workload::Batch => {
            let payload = Payload { size: settings.batch_size, ..payload };
            let target = settings.target(peer, BATCHED);
            run.batch = Some(produce::run(&settings.closed_loop(target, payload, settings.batch))?);
        }
        Workload::Open => {
            let closed = settings.closed_loop(settings.target(peer, "BenchOpen"), payload, 1);
            run.open = Some(produce::run(&produce::Settings {
                rate: Some(settings.rate),
                seconds: Some(settings.open_seconds),
                warmup: settings.rate * OPEN_LOOP_WARMUP_SECONDS,
                ..closed
            })?);
        }
        Workload::E2e => {
            run.e2e = Some(e2e::run(&e2e::Settings {
                target: settings.target(peer, "BenchEndToEnd"),
                payload,
                rate: settings.rate,
                seconds: settings.open_seconds,
                warmup: OPEN_LOOP_WARMUP_SECONDS,
            })?);
        }
        Workload::Consume => {
            let has_produced = settings.workloads.contains(&Workload::Produce);
            run.consume = Some(consume::run(&consume::Settings {
                target: settings.target(peer, if has_produced { PRODUCED } else { BATCHED }),
                pull: settings.pull,
                passes: 1,
                warmup: settings.warmup,
                subscription: "*".into(),
            })?);
        }
    }
    Ok(())
}

fn files_filled(peer: &Peer) -> Option<u64> {
    let table = Client::connect(peer.address).and_then(|mut client| client.runtime_info()).ok()?;
    let end: u64 = table.get("commitLogMaxOffset")?.parse().ok()?;
    Some(end / FILE_BYTES)
}

fn letter(index: usize) -> char {
    ['A', 'B', 'C'][index]
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "ready     {:.0} ms; {:.0} MiB anonymous when idle", self.ready_ms, self.idle_anonymous_mib)?;
        for (name, report) in [("produce", &self.produce), ("batch", &self.batch), ("open", &self.open)] {
            if let Some(report) = report {
                write!(f, "[{name}]\n{report}")?;
            }
        }
        if let Some(report) = &self.e2e {
            write!(f, "[e2e]\n{report}")?;
        }
        if let Some(report) = &self.consume {
            write!(f, "[consume]\n{report}")?;
        }
        match self.files_filled {
            Some(count) => writeln!(f, "log       {count} files of 1 GiB filled")?,
            None => writeln!(f, "log       the broker does not say where its log ends")?,
        }
        writeln!(f, "stop      {:.0} ms", self.stop_ms)
    }
}
