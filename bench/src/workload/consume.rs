//! Drains what is stored: each queue from its oldest message to the end it had when the run began, one pull in flight
//! for a queue, no held pulls.
//!
//! ```text
//! warm up ──(warmup messages)──▶ measure ──(every queue at its end, `passes` times)──▶ done
//! ```
//!
//! A latency is that of one pull, from the turn that queued it to the turn that saw its answer. Without a filter the
//! queue offsets must follow each other: what is left out or comes twice is counted.

use super::{Cost, Faults, SILENCE, TICK_NS, Target, reactor_config};
use crate::client::Client;
use crate::environment::BrokerFacts;
use crate::frame::{self, OPAQUE_BASE, OPAQUE_BITS, Scanner, Seen, code};
use crate::latency::{self, Latency, Second, Summary, Timeline};
use crate::process::{Usage, Watch};
use ringmq_net::reactor::{ConnId, Outbound, Port, Reactor, Service};
use serde::Serialize;
use std::fmt;
use std::io;
use std::time::Duration;

/// The subscription stands in the request, and the broker does not hold it.
const SYS_FLAG: u32 = 1 << 2;
/// A pull that was refused, or that found nothing before the end, is tried again after this.
const RETRY_NS: u64 = 20_000_000;
/// A queue that gives nothing so often in a row is given up.
const RETRY_COUNT_MAX: u32 = 250;

#[derive(Clone, Debug, clap::Args)]
pub struct Settings {
    #[command(flatten)]
    pub target: Target,
    /// Messages a pull asks for
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub pull: u32,
    /// How often each queue is drained
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub passes: u32,
    /// Messages before the measured part
    #[arg(long, default_value_t = 0)]
    pub warmup: u64,
    /// Tag expression, as "Tag0001 || Tag0002"
    #[arg(long, default_value = "*")]
    pub subscription: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub broker: BrokerFacts,
    pub cost: Cost,
    pub mib_per_s: f64,
    pub pull: Summary,
    pub messages_per_pull: f64,
    /// Over all passes, by the ends of the queues at the start.
    pub due: u64,
    pub pulled: u64,
    /// Queue offsets that were left out; not known with a filter.
    pub lost: u64,
    pub repeated: u64,
    pub faults: Faults,
    pub timeline: Vec<Second>,
}

impl Report {
    pub fn is_good(&self) -> bool {
        self.faults.is_empty() && self.lost + self.repeated == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mib_per_s, messages_per_pull, due, pulled, lost, repeated, .. } = self;
        writeln!(f, "promise   {}", self.broker)?;
        write!(f, "{}", self.cost)?;
        writeln!(f, "bytes     {mib_per_s:.1} MiB/s of records, {messages_per_pull:.1} messages a pull")?;
        writeln!(f, "pull      {}", self.pull)?;
        writeln!(f, "messages  {due} were stored, {pulled} pulled: {lost} lost, {repeated} twice")?;
        write!(f, "{}", self.faults)
    }
}

#[derive(Clone, Debug, Default)]
struct Cursor {
    topic: usize,
    queue: u32,
    begin: u64,
    end: u64,
    offset: u64,
    generation: u32,
    sent_ns: u64,
    is_waiting: bool,
    retry_at_ns: Option<u64>,
    retry_count: u32,
}

struct Consumer<'a> {
    settings: &'a Settings,
    watch: Watch,
    topics: Vec<String>,
    connections: Vec<ConnId>,
    cursors: Vec<Cursor>,
    cursor_bits: u32,
    pass: u32,
    /// Queues that have not reached their end in this pass.
    open: usize,
    scanner: Scanner,
    latency: Latency,
    timeline: Timeline,
    pulled: u64,
    /// Of the measured part.
    measured: Measured,
    lost: u64,
    repeated: u64,
    heard_ns: u64,
    faults: Faults,
    cost: Option<Cost>,
    is_done: bool,
    failure: Option<io::Error>,
}

#[derive(Default)]
struct Measured {
    usage: Option<Usage>,
    from_ns: u64,
    messages: u64,
    bytes: u64,
    pulls: u64,
}

/// Runs to the end.
///
/// # Errors
/// The broker cannot be reached, has no such topic or nothing in it, closes a connection or falls silent.
pub fn run(settings: &Settings) -> io::Result<Report> {
    let target = &settings.target;
    let broker = target.facts();
    let watch = target.watch(&broker);
    let topics = target.topics();
    let cursors = cursors(target, &topics)?;
    let stored: u64 = cursors.iter().map(|cursor| cursor.end - cursor.begin).sum();
    let due = stored * u64::from(settings.passes);
    if due <= settings.warmup {
        return Err(io::Error::other(format!("{due} messages to drain, and the warm-up takes {}", settings.warmup)));
    }
    let mut consumer = Consumer {
        settings,
        watch,
        topics,
        connections: Vec::new(),
        cursor_bits: cursors.len().next_power_of_two().trailing_zeros(),
        cursors,
        pass: 0,
        open: 0,
        scanner: Scanner::default(),
        latency: Latency::default(),
        timeline: Timeline::new(target.live("consume")),
        pulled: 0,
        measured: Measured::default(),
        lost: 0,
        repeated: 0,
        heard_ns: 0,
        faults: Faults::default(),
        cost: None,
        is_done: false,
        failure: None,
    };
    let mut reactor = Reactor::new(reactor_config()).map_err(io::Error::other)?;
    for _ in 0..target.connections {
        reactor.adopt(target.connect()?, Port(u8::MAX), &mut consumer);
    }
    reactor.run(&mut consumer).map_err(io::Error::other)?;
    consumer.report(broker, due)
}

fn cursors(target: &Target, topics: &[String]) -> io::Result<Vec<Cursor>> {
    let mut client = Client::connect(target.broker)?;
    let mut cursors = Vec::new();
    for queue in 0..target.queues {
        for (topic, name) in topics.iter().enumerate() {
            let unknown = || io::Error::other("the server gives no ends of queues, so nothing can be drained");
            let begin = client.min_offset(name, queue)?.ok_or_else(unknown)?;
            let end = client.max_offset(name, queue)?.ok_or_else(unknown)?.max(begin);
            cursors.push(Cursor { topic, queue, begin, end, ..Cursor::default() });
        }
    }
    Ok(cursors)
}

impl Consumer<'_> {
    fn report(mut self, broker: BrokerFacts, due: u64) -> io::Result<Report> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let cost = self.cost.take().ok_or_else(|| io::Error::other("the run ended before its measured part did"))?;
        let Measured { messages, bytes, pulls, .. } = self.measured;
        Ok(Report {
            broker,
            mib_per_s: bytes as f64 / f64::from(1 << 20) / cost.seconds,
            cost,
            pull: self.latency.summary(),
            messages_per_pull: messages as f64 / pulls.max(1) as f64,
            due,
            pulled: self.pulled,
            lost: self.lost,
            repeated: self.repeated,
            faults: self.faults,
            timeline: self.timeline.finish(),
        })
    }

    fn is_filtered(&self) -> bool {
        self.settings.subscription != "*"
    }

    fn begin_pass(&mut self, out: &mut Outbound<'_>) {
        self.open = self.cursors.len();
        for index in 0..self.cursors.len() {
            self.cursors[index].offset = self.cursors[index].begin;
            self.pull(index, out);
        }
    }

    /// The next pull of a queue, or its end.
    fn pull(&mut self, index: usize, out: &mut Outbound<'_>) {
        let cursor = &mut self.cursors[index];
        cursor.retry_at_ns = None;
        if cursor.offset >= cursor.end {
            self.open -= 1;
            return;
        }
        cursor.generation = cursor.generation.wrapping_add(1);
        cursor.sent_ns = out.now().mono_ns;
        cursor.is_waiting = true;
        let opaque = opaque(cursor.generation, index, self.cursor_bits);
        let ext = [
            ("commitOffset", "0"),
            ("consumerGroup", "ringmq_bench_consumer"),
            ("expressionType", "TAG"),
            ("maxMsgNums", &self.settings.pull.to_string()),
            ("queueId", &cursor.queue.to_string()),
            ("queueOffset", &cursor.offset.to_string()),
            ("subVersion", "0"),
            ("subscription", &self.settings.subscription),
            ("suspendTimeoutMillis", "0"),
            ("sysFlag", &SYS_FLAG.to_string()),
            ("topic", &self.topics[cursor.topic]),
        ];
        let connection = self.connections[index % self.connections.len()];
        if let Some(outbox) = out.buffer(connection) {
            let header = self.settings.target.header;
            outbox.extend_from_slice(&frame::request(header, code::PULL_MESSAGE, opaque, &ext, &[]));
        }
    }

    fn on_answer(&mut self, index: usize, answer: &Seen<'_>, frame: &[u8], out: &mut Outbound<'_>) {
        let now_ns = out.now().mono_ns;
        match answer.code {
            code::SUCCESS => {
                self.on_messages(index, answer.body, now_ns);
                if self.is_filtered() {
                    self.move_to_next_begin(index, frame);
                }
                self.cursors[index].retry_count = 0;
                self.pull(index, out);
            }
            code::PULL_RETRY_IMMEDIATELY | code::PULL_OFFSET_MOVED => {
                let from = self.cursors[index].offset;
                self.move_to_next_begin(index, frame);
                let cursor = &self.cursors[index];
                if !self.is_filtered() {
                    self.lost += cursor.offset.saturating_sub(from);
                }
                if cursor.offset > from {
                    self.pull(index, out);
                } else {
                    self.retry_later(index, now_ns);
                }
            }
            code::PULL_NOT_FOUND => self.retry_later(index, now_ns),
            other => {
                self.faults.refused(other, frame);
                self.retry_later(index, now_ns);
            }
        }
    }

    fn retry_later(&mut self, index: usize, now_ns: u64) {
        let cursor = &mut self.cursors[index];
        cursor.retry_count += 1;
        cursor.retry_at_ns = Some(now_ns + RETRY_NS);
        if cursor.retry_count > RETRY_COUNT_MAX {
            let Cursor { queue, offset, end, .. } = *cursor;
            self.fail(format!("queue {queue} gives nothing at offset {offset}, and its end is {end}"));
        }
    }

    fn move_to_next_begin(&mut self, index: usize, frame: &[u8]) {
        match frame::decode(frame).and_then(|answer| answer.ext_number("nextBeginOffset")) {
            Ok(offset) => self.cursors[index].offset = offset.max(0) as u64,
            Err(_) => self.faults.unexpected += 1,
        }
    }

    fn on_messages(&mut self, index: usize, body: &[u8], now_ns: u64) {
        let is_filtered = self.is_filtered();
        let is_measured = self.measured.usage.is_some();
        let cursor = &mut self.cursors[index];
        let mut count = 0;
        for message in frame::pulled(body) {
            match message {
                Ok(message) if message.queue == cursor.queue => {
                    let offset = message.queue_offset;
                    if offset < cursor.offset {
                        self.repeated += 1;
                    } else if !is_filtered {
                        self.lost += offset - cursor.offset;
                    }
                    cursor.offset = cursor.offset.max(offset + 1);
                    count += 1;
                }
                _ => self.faults.unexpected += 1,
            }
        }
        self.pulled += count;
        if is_measured {
            let ns = now_ns.saturating_sub(cursor.sent_ns);
            latency::record(&mut self.latency, &mut self.timeline, now_ns, ns, count);
            self.measured.messages += count;
            self.measured.bytes += body.len() as u64;
            self.measured.pulls += 1;
        }
    }

    fn read_usage(&mut self, now_ns: u64) {
        let pid = self.watch.broker_pid;
        match (self.watch.read(), &self.measured.usage) {
            (Ok(usage), Some(start)) => {
                let seconds = Duration::from_nanos(now_ns - self.measured.from_ns).as_secs_f64();
                self.cost = Some(Cost::new(&usage.since(start), self.measured.messages, seconds, pid));
            }
            (Ok(usage), None) => {
                self.measured.from_ns = now_ns;
                self.timeline.begin(now_ns);
                self.measured.usage = Some(usage);
            }
            (Err(error), _) => self.failure = Some(error),
        }
    }

    fn fail(&mut self, text: String) {
        self.failure.get_or_insert(io::Error::other(text));
    }
}

/// Low bits: the cursor. High bits: how often it pulled.
fn opaque(generation: u32, index: usize, cursor_bits: u32) -> u32 {
    OPAQUE_BASE | (((generation << cursor_bits) | index as u32) & ((1 << OPAQUE_BITS) - 1))
}

impl Service for Consumer<'_> {
    type Mail = ();

    fn on_open(&mut self, conn: ConnId, out: &mut Outbound<'_>) {
        self.heard_ns = out.now().mono_ns;
        self.connections.push(conn);
    }

    fn on_frame(&mut self, _conn: ConnId, frame: &[u8], out: &mut Outbound<'_>) {
        self.heard_ns = out.now().mono_ns;
        let bits = self.cursor_bits;
        let seen = self.scanner.scan(frame).ok();
        let found = seen.and_then(|answer| {
            let index = (answer.opaque & ((1 << bits) - 1)) as usize;
            let cursor = self.cursors.get_mut(index)?;
            let is_open = cursor.is_waiting && opaque(cursor.generation, index, bits) == answer.opaque;
            cursor.is_waiting = cursor.is_waiting && !is_open;
            is_open.then_some((index, answer))
        });
        match found {
            Some((index, answer)) => self.on_answer(index, &answer, frame, out),
            None => self.faults.unexpected += 1,
        }
    }

    fn on_mail(&mut self, (): (), _out: &mut Outbound<'_>) {}

    fn on_close(&mut self, _conn: ConnId, _out: &mut Outbound<'_>) {
        if !self.is_done {
            self.faults.connections_closed += 1;
            self.fail("the broker closed a connection".into());
        }
    }

    fn on_turn(&mut self, out: &mut Outbound<'_>) -> Option<u64> {
        let now_ns = out.now().mono_ns;
        let is_open = self.connections.len() == self.settings.target.connections as usize;
        if is_open && self.measured.usage.is_none() && self.pulled >= self.settings.warmup {
            self.read_usage(now_ns);
        }
        if is_open && self.open == 0 && !self.is_done {
            if self.pass < self.settings.passes {
                self.pass += 1;
                self.begin_pass(out);
            } else {
                self.read_usage(now_ns);
                self.is_done = true;
            }
        }
        for index in 0..self.cursors.len() {
            if self.cursors[index].retry_at_ns.is_some_and(|at_ns| at_ns <= now_ns) {
                self.pull(index, out);
            }
        }
        if Duration::from_nanos(now_ns.saturating_sub(self.heard_ns)) > SILENCE {
            self.fail(format!("nothing came back for {} s", SILENCE.as_secs()));
        }
        if self.is_done || self.failure.is_some() {
            self.is_done = true;
            out.finish(now_ns);
            return None;
        }
        let retry_ns = self.cursors.iter().filter_map(|cursor| cursor.retry_at_ns).min();
        Some(retry_ns.unwrap_or(u64::MAX).min(now_ns + TICK_NS))
    }
}
