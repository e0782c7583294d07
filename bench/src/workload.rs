//! What the workloads share: the broker they talk to, the shape of their messages, and what a run cost.

pub mod e2e;
pub mod produce;

use crate::client::Client;
use crate::frame::{self, Header, SendShape, SendTemplate};
use crate::process::{self, Memory, Usage};
use ringmq_net::reactor::ReactorConfig;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A run in which nothing comes back for so long has failed.
const SILENCE: Duration = Duration::from_secs(20);
/// How long a run waits, after its last message, for what is still on its way.
const DRAIN: Duration = Duration::from_secs(10);

/// A load generator that has no idle core left measures itself.
const OWN_CORES_MAX: f64 = 0.9;

#[derive(Clone, Debug, clap::Args)]
pub struct Target {
    /// Address of the broker
    #[arg(long, default_value = "127.0.0.1:10911")]
    pub broker: SocketAddr,
    /// Process of a broker on this machine, for its processor time and memory
    #[arg(long)]
    pub broker_pid: Option<u32>,
    /// Topic, created before the run
    #[arg(long, default_value = "RingmqBench")]
    pub topic: String,
    /// Queues of the topic, used in turn
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub queues: u32,
    /// Bytes of a message body
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    pub size: u32,
    /// Encoding of the request headers
    #[arg(long, value_enum, default_value = "json")]
    pub header: Header,
    /// Connections that send
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub connections: u32,
}

impl Target {
    fn create_topic(&self) -> io::Result<Client> {
        let mut client = Client::connect(self.broker)?;
        client.create_topic(&self.topic, self.queues)?;
        Ok(client)
    }

    /// One for each queue.
    fn templates(&self, run_id: u64) -> Vec<SendTemplate> {
        let shape = SendShape {
            header: self.header,
            group: "ringmq_bench_producer",
            topic: &self.topic,
            body_bytes: self.size as usize,
            run_id,
        };
        (0..self.queues).map(|queue| SendTemplate::new(&shape, queue)).collect()
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(self.broker)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
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
#[derive(Clone, Debug, Serialize)]
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
    pub broker_resident_mib: Option<f64>,
    pub broker_anonymous_mib: Option<f64>,
}

impl Cost {
    fn new(used: &Usage, messages: u64, seconds: f64, broker_pid: Option<u32>) -> Self {
        let per_message = |time: Duration| time.as_secs_f64() * 1e6 / messages as f64;
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
            broker_resident_mib: memory.map(|Memory { resident, .. }| mib(resident)),
            broker_anonymous_mib: memory.map(|Memory { anonymous, .. }| mib(anonymous)),
        }
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
        if *own_cores > OWN_CORES_MAX {
            writeln!(f, "WARNING   the client used {own_cores:.2} of a core: this run may have measured the client")?;
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
    /// Frames that could not be read or belong to no open request.
    pub unexpected: u64,
    pub connections_closed: u64,
}

impl Faults {
    pub fn is_empty(&self) -> bool {
        self.codes.is_empty() && self.unanswered == 0 && self.unexpected == 0 && self.connections_closed == 0
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
