//! Two brokers, A B A B …, in one run on one machine: each time a fresh store, the same workloads, whole processes.
//!
//! ```text
//! floor    each shape once on the echo server
//! round    disk: a sequential write
//! row      memory touched, see memory.rs
//!          for each configuration that a row asks for (as given, SYNC_FLUSH, pool)
//!            A: start, its rows, stop        B: start, its rows, stop
//! ```
//! A ratio is taken within a round, where both brokers met the same machine, and then the median of the rounds. What is
//! there is told after each broker, so that an interrupted comparison has said what it knew.

mod row;
mod table;
mod verdict;

pub use row::{Profile, RowReport, Shape, Workload};

use crate::client::Client;
use crate::disk;
use crate::environment::{BrokerFacts, file_system};
use crate::frame::Header;
use crate::latency::Summary;
use crate::memory::{self, Touched};
use crate::peer::{Kind, Options, Peer};
use crate::process;
use crate::workload::{Faults, Payload, produce};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const FILE_BYTES: u64 = 1 << 30;
/// A comparison must contain what a long run contains: files that are full and followed by the next.
const FILES_FILLED_MIN: u64 = 3;
/// Of fewer rounds nobody can say how far apart they lie.
const ROUND_COUNT_MIN: usize = 3;
const MIB: f64 = (1 << 20) as f64;
/// A record of 1 KiB with its properties, as the log holds it.
const RECORD_BYTES: usize = 1_280;
const DURABLE_WRITE_COUNT: u64 = 2_000;

#[derive(Clone, Debug, clap::Args)]
pub struct Settings {
    /// Broker A: ringmq:PATH of a release binary, java, java:DIR of jars, address:IP:PORT of one that runs, or echo
    #[arg(long, default_value = "ringmq:target/release/ringmq")]
    pub a: Kind,
    /// Broker B; without it A is measured alone. `java` is the published broker that bench/java/pom.xml names
    #[arg(long)]
    pub b: Option<Kind>,
    /// Measure the echo server, too, once for each shape: the floor of machine, kernel, reactor and client. `table` does
    /// it anyway
    #[arg(long)]
    pub floor: bool,
    /// Which rows; `table` are all of docs/benchmarks.md. Those of one configuration run on one store
    #[arg(long, value_enum, value_delimiter = ',', default_value = "produce,batch,e2e,consume")]
    pub workloads: Vec<Workload>,
    /// How often each broker is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Measured messages of `produce` and `pool`, from which the other closed loops have theirs (batch 3 times, sync 1/3,
    /// connections 1/5, sync-one 1/100); 2.9 million of 1 KiB fill three files of 1 GiB
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
    #[arg(long, visible_alias = "header-encoding", value_enum, default_value = "json")]
    pub header: Header,
    /// Messages a second of `e2e`, `pool-e2e` and `sync-open`
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub rate: u64,
    /// Messages a second of `open` and `pool-open`
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub open_rate: u64,
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
    /// GiB of free memory that are touched before each row, so that no broker pays for what a virtual machine gets from its
    /// host at the first touch; 0 leaves it out
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(..=1024))]
    pub touch_gib: u64,
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
        Ok(peers)
    }

    fn has_floor(&self) -> bool {
        self.floor || self.workloads.contains(&Workload::Table)
    }

    /// The topics of this run; a broker that runs already may hold those of another.
    fn run_name(&self) -> u32 {
        static NAME: OnceLock<u32> = OnceLock::new();
        *NAME.get_or_init(|| {
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            (time.as_millis() % 100_000_000) as u32
        })
    }

    /// By configuration, each in the order of the list.
    fn profiles(&self) -> BTreeMap<Profile, Vec<Workload>> {
        let mut profiles: BTreeMap<Profile, Vec<Workload>> = BTreeMap::new();
        row::expanded(&self.workloads).into_iter().for_each(|row| profiles.entry(row.profile()).or_default().push(row));
        profiles
    }

    fn check(&self) -> io::Result<()> {
        let rows = row::expanded(&self.workloads);
        let has = |workload| rows.contains(&workload);
        if has(Workload::Consume) && !has(Workload::Produce) && !has(Workload::Batch) {
            return Err(io::Error::other("consume drains what produce or batch stored, and neither is in the list"));
        }
        Ok(())
    }
}

/// One row of one broker in one round.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub workload: Workload,
    pub report: RowReport,
    /// How much the log grew, if the broker says where it ends.
    pub log_bytes: Option<u64>,
    /// Of `sync-one`: writes of one record, each with its fdatasync, on the same file system right before it.
    pub durable_write: Option<Summary>,
    /// The machine's memory right before it.
    pub memory: Touched,
}

impl Row {
    /// How fast the log grew in the measured part.
    fn log_mib_per_s(&self) -> Option<f64> {
        let bytes_per_message = self.log_bytes? as f64 / self.report.stored()?.max(1) as f64;
        Some(self.report.cost().rate_per_s * bytes_per_message / MIB)
    }
}

/// One broker in one round with one configuration, on a store of its own.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    pub profile: Profile,
    pub broker: BrokerFacts,
    pub ready_ms: f64,
    pub idle_anonymous_mib: Option<f64>,
    pub rows: Vec<Row>,
    /// Files of the log that the workloads filled, if the broker says where its log ends.
    pub files_filled: Option<u64>,
    pub stop_ms: f64,
}

/// One broker in one round.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Round {
    pub runs: Vec<Run>,
}

impl Round {
    fn rows(&self) -> impl Iterator<Item = &Row> {
        self.runs.iter().flat_map(|run| &run.rows)
    }

    fn row(&self, workload: Workload) -> Option<&Row> {
        self.rows().find(|row| row.workload == workload)
    }

    fn is_good(&self) -> bool {
        self.rows().all(|row| row.report.is_good())
    }

    fn faults(&self) -> impl Iterator<Item = &Faults> {
        self.rows().map(|row| row.report.faults())
    }

    /// Messages lost over all workloads.
    fn lost(&self) -> u64 {
        self.rows().map(|row| row.report.lost()).sum()
    }

    /// Messages stored or pulled more than once over all workloads.
    fn repeated(&self) -> u64 {
        self.rows().map(|row| row.report.repeated()).sum()
    }
}

/// A shape on the echo server.
#[derive(Clone, Debug, Serialize)]
pub struct Floor {
    pub shape: Shape,
    pub report: produce::Report,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub names: Vec<String>,
    pub header: Header,
    /// Of the work dir.
    pub file_system: Option<String>,
    /// Sequential write of the disk before each round, MiB/s.
    pub disk_mib_per_s: Vec<f64>,
    pub floor: Vec<Floor>,
    /// Which shape each row has, for its floor.
    pub shapes: Vec<(Workload, Shape)>,
    /// What must be reached is said of A beside Java's broker, or one at an address that may be it; beside another ringmq, or
    /// an echo, it means nothing.
    pub has_goals: bool,
    /// By peer, then by round.
    pub rounds: Vec<Vec<Round>>,
    /// Which configurations were not measured, and of which broker.
    pub left_out: Vec<String>,
    /// Why there are fewer rounds than were asked for.
    pub failure: Option<String>,
}

impl Report {
    pub fn is_good(&self) -> bool {
        self.failure.is_none() && self.rounds.iter().flatten().all(Round::is_good)
    }

    fn has_rows(&self) -> bool {
        self.rounds.iter().flatten().any(|round| !round.runs.is_empty())
    }

    fn floor_of(&self, workload: Workload) -> Option<&produce::Report> {
        let (_, shape) = self.shapes.iter().find(|(of, _)| *of == workload)?;
        self.floor.iter().find(|floor| floor.shape == *shape).map(|floor| &floor.report)
    }

    /// All rows that were run, in their order.
    fn workloads(&self) -> Vec<Workload> {
        let mut workloads = Vec::new();
        for row in self.rounds.iter().flatten().flat_map(Round::rows) {
            if !workloads.contains(&row.workload) {
                workloads.push(row.workload);
            }
        }
        workloads
    }
}

/// Runs all rounds; `progress` gets each run as text as soon as it ends, and the report as it is then. A broker that does
/// not start or stop or that falls silent ends the comparison; what was measured before it is still reported.
///
/// # Errors
/// A binary or the jars are missing, the settings contradict each other, or not even the first run ended.
pub fn run(settings: &Settings, mut progress: impl FnMut(&str, &Report)) -> io::Result<Report> {
    settings.check()?;
    let peers = settings.peers()?;
    let rows = row::expanded(&settings.workloads);
    let mut report = Report {
        names: peers.iter().map(|(kind, _)| kind.to_string()).collect(),
        header: settings.header,
        file_system: file_system(&settings.work_dir),
        disk_mib_per_s: Vec::new(),
        floor: Vec::new(),
        shapes: rows.iter().filter_map(|row| Some((*row, row.shape(settings)?))).collect(),
        has_goals: peers.get(1).is_none_or(|(kind, _)| !matches!(kind, Kind::Ringmq(_) | Kind::Echo)),
        rounds: peers.iter().map(|_| Vec::new()).collect(),
        left_out: left_out(settings, &peers),
        failure: None,
    };
    let outcome = run_all(settings, &peers, &mut report, &mut progress);
    if let Err(error) = outcome {
        if !report.has_rows() {
            return Err(error);
        }
        report.failure = Some(error.to_string());
    }
    Ok(report)
}

/// A broker that was not started here cannot be given another configuration.
fn can_run(kind: &Kind, profile: Profile) -> bool {
    !matches!(kind, Kind::Running(_)) || profile == Profile::Given
}

fn left_out(settings: &Settings, peers: &[(Kind, Options)]) -> Vec<String> {
    let mut left_out = Vec::new();
    for profile in settings.profiles().into_keys() {
        let peers = peers.iter().enumerate().filter(|(_, (kind, _))| !can_run(kind, profile));
        left_out.extend(peers.map(|(index, _)| format!("{profile} of {}: it runs already", letter(index))));
    }
    left_out
}

fn run_all(
    settings: &Settings,
    peers: &[(Kind, Options)],
    report: &mut Report,
    progress: &mut impl FnMut(&str, &Report),
) -> io::Result<()> {
    if settings.has_floor() {
        measure_floor(settings, &peers[0].1, report, progress)?;
    }
    for round in 1..=settings.rounds {
        run_round(settings, peers, report, round, progress)
            .map_err(|error| io::Error::other(format!("round {round}: {error}")))?;
    }
    Ok(())
}

fn measure_floor(
    settings: &Settings,
    options: &Options,
    report: &mut Report,
    progress: &mut impl FnMut(&str, &Report),
) -> io::Result<()> {
    let echo = Peer::start(&Kind::Echo, options)?;
    let mut shapes: Vec<Shape> = report.shapes.iter().map(|(_, shape)| *shape).collect();
    shapes.sort_unstable();
    shapes.dedup();
    for shape in shapes {
        let floor = Floor { shape, report: shape.run(settings, &echo)? };
        let text = format!("── floor: {shape}\n{}", floor.report);
        report.floor.push(floor);
        progress(&text, report);
    }
    echo.stop().map(drop)
}

fn run_round(
    settings: &Settings,
    peers: &[(Kind, Options)],
    report: &mut Report,
    round: u32,
    progress: &mut impl FnMut(&str, &Report),
) -> io::Result<()> {
    memory::touch(settings.touch_gib << 30)?;
    if settings.disk_mib > 0 {
        report.disk_mib_per_s.push(disk::sequential_write_mib_s(&settings.work_dir, settings.disk_mib << 20)?);
    }
    let profiles = settings.profiles();
    report.rounds.iter_mut().for_each(|rounds| rounds.push(Round::default()));
    for (profile, workloads) in &profiles {
        for (index, (kind, options)) in peers.iter().enumerate() {
            if !can_run(kind, *profile) {
                continue;
            }
            let run = run_one(settings, kind, options, *profile, workloads)?;
            let of = settings.rounds;
            let text = format!("── round {round} of {of}, {profile}: {} = {kind}\n{run}", letter(index));
            let rounds = report.rounds[index].last_mut().expect("a round has just begun");
            rounds.runs.push(run);
            progress(&text, report);
        }
    }
    Ok(())
}

fn run_one(
    settings: &Settings,
    kind: &Kind,
    options: &Options,
    profile: Profile,
    workloads: &[Workload],
) -> io::Result<Run> {
    let mut options = options.clone();
    options.properties.extend(profile.properties().iter().map(|line| (*line).to_owned()));
    let peer = Peer::start(kind, &options)?;
    thread::sleep(Duration::from_secs(settings.idle_seconds));
    let idle = peer.pid().map(process::memory).transpose()?;
    let mut run = Run {
        profile,
        broker: peer.facts(),
        ready_ms: peer.ready.as_secs_f64() * 1e3,
        idle_anonymous_mib: idle.map(|idle| idle.anonymous as f64 / MIB),
        rows: Vec::new(),
        files_filled: None,
        stop_ms: 0.0,
    };
    for workload in workloads {
        // What a server that stores nothing can be asked for.
        if *kind == Kind::Echo && matches!(workload, Workload::E2e | Workload::PoolE2e | Workload::Consume) {
            continue;
        }
        let durable_write = (*workload == Workload::SyncOne)
            .then(|| disk::durable_writes(&settings.work_dir, RECORD_BYTES, DURABLE_WRITE_COUNT))
            .transpose()?;
        let memory = memory::touch(settings.touch_gib << 30)?;
        let before = log_end(&peer);
        let report = workload.run(settings, &peer)?;
        let log_bytes = log_end(&peer).zip(before).map(|(after, before)| after.saturating_sub(before));
        run.rows.push(Row { workload: *workload, report, log_bytes, durable_write, memory });
    }
    run.files_filled = log_end(&peer).map(|end| end / FILE_BYTES);
    run.stop_ms = peer.stop()?.as_secs_f64() * 1e3;
    Ok(run)
}

fn log_end(peer: &Peer) -> Option<u64> {
    let table = Client::connect(peer.address).and_then(|mut client| client.runtime_info()).ok()?;
    table.get("commitLogMaxOffset")?.parse().ok()
}

fn letter(index: usize) -> char {
    ['A', 'B'][index]
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ready     {:.0} ms", self.ready_ms)?;
        match self.idle_anonymous_mib {
            Some(mib) => writeln!(f, "; {mib:.0} MiB anonymous when idle")?,
            None => writeln!(f)?,
        }
        for row in &self.rows {
            write!(f, "[{}]\n{}", row.workload.name(), row.report)?;
        }
        match self.files_filled {
            Some(count) => writeln!(f, "log       {count} files of 1 GiB filled")?,
            None => writeln!(f, "log       the broker does not say where its log ends")?,
        }
        writeln!(f, "stop      {:.0} ms", self.stop_ms)
    }
}
