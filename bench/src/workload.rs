//! What the workloads share: the broker they talk to, the shape of their messages, and what a run cost.

pub mod consume;
mod crew;
pub mod delay;
pub mod e2e;
pub mod mixed;
pub mod produce;
mod round_trip;
pub mod schedule;
pub mod stored;
pub mod transaction;

use crate::body::BodySizes;
use crate::client::Client;
use crate::environment::BrokerFacts;
use crate::frame::{self, Header, OPAQUE_BASE, OPAQUE_BITS};
use crate::process::{self, Memory, Usage, Watch};
use crate::template::{self, SendShape, SendTemplate, TAG_COUNT_MAX};
use ringmq_net::reactor::ReactorConfig;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, IsTerminal};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A run in which nothing comes back for so long has failed.
const SILENCE: Duration = Duration::from_secs(20);
/// Requests that one turn makes up for at most; the rest follows in the next turns.
const BURST_MAX: u64 = 1024;
/// At least so often a turn looks at clocks and limits.
const TICK_NS: u64 = 100_000_000;
/// How long a run waits, after its last message, for what is still on its way.
const DRAIN: Duration = Duration::from_secs(10);

/// A load generator that has no idle core left measures itself.
const OWN_CORES_MAX: f64 = 0.9;
/// More than the kernel's own threads take for this broker and this client: somebody else measures or builds here.
const OTHER_CORES_MAX: f64 = 0.4;

#[derive(Clone, Debug, clap::Args)]
pub struct Target {
    /// Address of the broker
    #[arg(long, default_value = "127.0.0.1:10911")]
    pub broker: SocketAddr,
    /// Process of a broker on this machine, for its processor time and memory
    #[arg(long)]
    pub broker_pid: Option<u32>,
    /// Topic, created before the run; of several, each has its number appended
    #[arg(long, default_value = "RingmqBench")]
    pub topic: String,
    /// Topics, used in turn
    #[arg(long = "topics", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub topic_count: u32,
    /// Queues of a topic, used in turn
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub queues: u32,
    /// Encoding of the request headers
    #[arg(long, visible_alias = "header-encoding", value_enum, default_value = "json")]
    pub header: Header,
    /// Connections of the workload
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub connections: u32,
    /// Show each second on the error output; on a terminal it is shown anyway
    #[arg(long)]
    pub progress: bool,
}

/// What is in a message.
#[derive(Clone, Debug, clap::Args)]
pub struct Payload {
    /// Bytes of a message body: 1k, 128..4k (evenly between), or 128:6,1k:3,16k:1 (by weight); of a request's messages
    /// all have the same
    #[arg(long, visible_alias = "size", default_value = "1024")]
    pub body: BodySizes,
    /// Different tags, spread evenly; 0 sends none
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(..=i64::from(TAG_COUNT_MAX)))]
    pub tags: u32,
    /// Seed of everything drawn: sizes, arrivals, letters in the bodies, which transactions are rolled back
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Target {
    pub fn topics(&self) -> Vec<String> {
        match self.topic_count {
            1 => vec![self.topic.clone()],
            count => (0..count).map(|number| format!("{}_{number}", self.topic)).collect(),
        }
    }

    fn create_topics(&self) -> io::Result<Client> {
        if let Some(pid) = self.broker_pid
            && !Path::new(&format!("/proc/{pid}/stat")).exists()
        {
            return Err(io::Error::other(format!("--broker-pid {pid}: there is no such process")));
        }
        let mut client = Client::connect(self.broker)?;
        for topic in self.topics() {
            client.create_topic(&topic, self.queues)?;
        }
        Ok(client)
    }

    fn facts(&self) -> BrokerFacts {
        BrokerFacts::read(self.broker, self.broker_pid)
    }

    fn watch(&self, facts: &BrokerFacts) -> Watch {
        Watch::new(self.broker_pid, facts.store_path.as_deref().map(Path::new))
    }

    /// What the line of a terminal begins with.
    fn live<'a>(&self, workload: &'a str) -> Option<&'a str> {
        (self.progress || io::stderr().is_terminal()).then_some(workload)
    }

    /// One for each queue: the same queue of all topics first, then the next queue.
    fn templates(&self, payload: &Payload, kind: &SendKind<'_>) -> Vec<SendTemplate> {
        let shape = SendShape {
            header: self.header,
            group: PRODUCER_GROUP,
            messages: kind.messages,
            tags: payload.tags,
            is_one_way: kind.is_one_way,
            properties: kind.properties,
            sys_flag: kind.sys_flag,
            run_id: kind.run_id,
            body: template::body(payload.body.max(), payload.seed),
        };
        let topics = self.topics();
        let of_queue = |queue| topics.iter().map(move |topic| (topic, queue));
        (0..self.queues).flat_map(of_queue).map(|(topic, queue)| SendTemplate::new(&shape, topic, queue)).collect()
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(self.broker).map_err(|e| told(&self.broker.to_string(), e))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// Names what the error is about.
pub fn told(what: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

const PRODUCER_GROUP: &str = "ringmq_bench_producer";

/// What the sends of one workload have in common beside their payload.
#[derive(Clone, Copy)]
struct SendKind<'a> {
    run_id: u64,
    messages: u32,
    is_one_way: bool,
    properties: &'a [(&'a str, &'a str)],
    sys_flag: i32,
}

impl SendKind<'_> {
    fn single(run_id: u64) -> Self {
        Self { run_id, messages: 1, is_one_way: false, properties: &[], sys_flag: 0 }
    }
}

/// Low bits: the slot. High bits: how often it was used, so that a second answer to one request is noticed.
fn opaque(generation: u32, slot: u32, slot_bits: u32) -> u32 {
    OPAQUE_BASE | (((generation << slot_bits) | slot) & ((1 << OPAQUE_BITS) - 1))
}

fn run_id() -> u64 {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    nanos ^ (u64::from(std::process::id()) << 48)
}

/// The bench holds back by its own rules; the reactor's limits must not do it in their place.
fn reactor_config() -> ReactorConfig {
    ReactorConfig { idle_ms: 600_000, out_bytes_max: 256 << 20, ..ReactorConfig::default() }
}

/// What is measured beside the latencies between the start and the end of the measured part.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Cost {
    pub seconds: f64,
    pub messages: u64,
    pub rate_per_s: f64,
    pub own_us_per_message: f64,
    pub own_cores: f64,
    pub broker_us_per_message: Option<f64>,
    pub broker_cores: Option<f64>,
    pub machine_us_per_message: f64,
    pub stolen_cores: f64,
    /// Neither broker nor client: kernel threads, interrupts and whatever else runs on this machine.
    pub other_cores: Option<f64>,
    pub broker_resident_mib: Option<f64>,
    pub broker_anonymous_mib: Option<f64>,
    /// Write calls of the broker, those to sockets too, and what it made dirty in the page cache.
    pub broker_write_calls: Option<u64>,
    pub broker_written_mib: Option<f64>,
    /// Of the device below the store, by whomever.
    pub device_writes: Option<u64>,
    pub device_written_mib: Option<f64>,
    pub device_flushes: Option<u64>,
    pub client_threads: u32,
}

impl Cost {
    fn new(used: &Usage, messages: u64, seconds: f64, broker_pid: Option<u32>) -> Self {
        let per_message = |time: Duration| time.as_secs_f64() * 1e6 / messages.max(1) as f64;
        let cores = |time: Duration| time.as_secs_f64() / seconds;
        let memory = broker_pid.and_then(|pid| process::memory(pid).ok());
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        Self {
            seconds,
            messages,
            rate_per_s: messages as f64 / seconds,
            own_us_per_message: per_message(used.own),
            own_cores: cores(used.own),
            broker_us_per_message: used.broker.map(per_message),
            broker_cores: used.broker.map(cores),
            machine_us_per_message: per_message(used.machine),
            stolen_cores: cores(used.stolen),
            other_cores: used.broker.map(|broker| cores(used.machine.saturating_sub(broker + used.own))),
            broker_resident_mib: memory.map(|Memory { resident, .. }| mib(resident)),
            broker_anonymous_mib: memory.map(|Memory { anonymous, .. }| mib(anonymous)),
            broker_write_calls: used.broker_writes.map(|writes| writes.count),
            broker_written_mib: used.broker_writes.map(|writes| mib(writes.bytes)),
            device_writes: used.device_writes.map(|device| device.writes.count),
            device_written_mib: used.device_writes.map(|device| mib(device.writes.bytes)),
            device_flushes: used.device_writes.and_then(|device| device.flushes),
            client_threads: 1,
        }
    }

    /// Then the figures may be the client's limit and not the broker's.
    pub fn is_client_busy(&self) -> bool {
        self.own_cores > OWN_CORES_MAX * f64::from(self.client_threads.max(1))
    }

    /// Then somebody else measured or built here at the same time.
    pub fn is_noisy(&self) -> bool {
        self.other_cores.is_some_and(|cores| cores > OTHER_CORES_MAX)
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seconds, messages, rate_per_s, own_us_per_message, own_cores, .. } = self;
        writeln!(f, "rate      {rate_per_s:.0} msg/s  ({messages} in {seconds:.2} s)")?;
        if let (Some(us), Some(cores)) = (self.broker_us_per_message, self.broker_cores) {
            writeln!(f, "broker    {us:.2} µs of processor a message, {cores:.2} cores")?;
        }
        writeln!(f, "client    {own_us_per_message:.2} µs a message, {own_cores:.2} cores")?;
        write!(f, "machine   {:.2} µs a message", self.machine_us_per_message)?;
        if self.stolen_cores > 0.01 {
            write!(f, "; {:.2} cores were stolen by the hypervisor", self.stolen_cores)?;
        }
        writeln!(f)?;
        if let (Some(resident), Some(anonymous)) = (self.broker_resident_mib, self.broker_anonymous_mib) {
            writeln!(f, "memory    {resident:.0} MiB resident, {anonymous:.0} MiB of it anonymous")?;
        }
        if let (Some(calls), Some(mib)) = (self.broker_write_calls, self.broker_written_mib) {
            write!(f, "writes    {calls} calls (sockets too), {mib:.0} MiB written by the broker (page cache)")?;
            if let (Some(writes), Some(mib)) = (self.device_writes, self.device_written_mib) {
                write!(f, "; the device took {writes} writes, {mib:.0} MiB")?;
            }
            if let Some(flushes) = self.device_flushes {
                write!(f, ", {flushes} flushes")?;
            }
            writeln!(f)?;
        }
        if let Some(other) = self.other_cores.filter(|_| self.is_noisy()) {
            writeln!(f, "WARNING   {other:.2} cores went to neither broker nor client: this machine is not quiet")?;
        }
        if self.is_client_busy() {
            writeln!(
                f,
                "WARNING   the client used {own_cores:.2} cores with its {} threads: this run may have measured the client",
                self.client_threads
            )?;
        }
        Ok(())
    }
}

/// What went wrong. All zero in a good run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Faults {
    /// Answers other than 0, by code.
    pub codes: BTreeMap<i32, u64>,
    pub first_remark: Option<String>,
    /// Requests without an answer when the run ended or their connection closed.
    pub unanswered: u64,
    /// Requests of an open loop that were due and never sent, because too many waited for their answers.
    pub unsent: u64,
    /// Frames that could not be read or belong to no open request.
    pub unexpected: u64,
    pub connections_closed: u64,
}

impl Faults {
    pub fn is_empty(&self) -> bool {
        self.codes.is_empty() && self.unanswered + self.unsent + self.unexpected + self.connections_closed == 0
    }

    /// Takes in those of another workload.
    pub fn add(&mut self, other: &Self) {
        for (code, count) in &other.codes {
            *self.codes.entry(*code).or_default() += count;
        }
        if self.first_remark.is_none() {
            self.first_remark.clone_from(&other.first_remark);
        }
        self.unanswered += other.unanswered;
        self.unsent += other.unsent;
        self.unexpected += other.unexpected;
        self.connections_closed += other.connections_closed;
    }

    fn refused(&mut self, code: i32, frame: &[u8]) {
        *self.codes.entry(code).or_default() += 1;
        if self.first_remark.is_none() {
            self.first_remark = frame::decode(frame).ok().and_then(|answer| answer.remark);
        }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return writeln!(f, "faults    none");
        }
        for (code, count) in &self.codes {
            writeln!(f, "FAULT     code {code} × {count}")?;
        }
        if let Some(remark) = &self.first_remark {
            writeln!(f, "          first remark: {remark}")?;
        }
        for (count, what) in [
            (self.unanswered, "requests without an answer"),
            (self.unsent, "requests were due and never sent: the broker did not keep up"),
            (self.unexpected, "frames that answer nothing"),
            (self.connections_closed, "connections closed by the broker"),
        ] {
            if count > 0 {
                writeln!(f, "FAULT     {count} {what}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opaques_keep_ten_digits_and_differ_by_slot_and_generation() {
        for slot_bits in [0, 8, 24] {
            let last = (1_u32 << slot_bits) - 1;
            for generation in [0, 1, u32::MAX] {
                let value = opaque(generation, last, slot_bits);
                assert!((OPAQUE_BASE..=i32::MAX as u32).contains(&value));
                assert_eq!(value & last, last);
                assert_ne!(value, opaque(generation.wrapping_add(1), last, slot_bits));
            }
        }
    }
}
