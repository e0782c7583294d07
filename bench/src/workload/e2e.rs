//! Open loop: messages leave by a schedule, whatever the broker does, and a consumer with one held pull for each
//! queue takes them back.
//!
//! ```text
//! intended ─ delay of the schedule ─ sent ─────────── acknowledged        ack = acknowledged − intended
//!    └───────────────────────────────────── pulled                 end to end = pulled − intended
//! ```
//!
//! Every latency counts from the *intended* time. A broker that stalls for 100 ms is charged for all messages that
//! were due in that time, not for the one that happened to be under way (coordinated omission), and a client that
//! comes late charges itself; how late it was stands beside.
//!
//! The body says which run a message belongs to, its number and its intended time, so what is lost, comes twice or
//! is foreign is seen: | run id 8 | number 8 | intended 8, monotonic ns | filler |

use super::schedule::Schedule;
use super::{Cost, DRAIN, Faults, Payload, SILENCE, Target, reactor_config, run_id};
use crate::environment::BrokerFacts;
use crate::frame::{self, OPAQUE_BASE, OPAQUE_BITS, Pulled, Scanner, Seen, code};
use crate::latency::{Latency, Summary};
use crate::process::Usage;
use crate::template::SendTemplate;
use ringmq_net::reactor::{ConnId, Outbound, Port, Reactor, Service};
use serde::Serialize;
use std::fmt;
use std::io;
use std::mem;
use std::time::Duration;

const STAMP_BYTES: usize = 24;
const PULL_COUNT_MAX: u32 = 32;
/// As the official push consumer asks for.
const SUSPEND_MS: u32 = 15_000;
/// The broker may hold (suspend) the request; the subscription stands in it.
const SYS_FLAG: u32 = (1 << 1) | (1 << 2);
/// A pull that was refused is tried again after this.
const RETRY_NS: u64 = 100_000_000;
/// The first pulls are held by the broker before the first message is due.
const START_NS: u64 = 100_000_000;
/// Sends that one turn makes up for at most; the rest follows in the next turns.
const BURST_MAX: u64 = 1024;

#[derive(Clone, Debug, clap::Args)]
pub struct Settings {
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub payload: Payload,
    /// Messages a second
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub rate: u64,
    /// Measured time, after the warm-up
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: u64,
    /// Seconds at the same rate before the measured part
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub warmup: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub broker: BrokerFacts,
    pub cost: Cost,
    pub ack: Summary,
    pub end_to_end: Summary,
    /// How much later than intended the sends left.
    pub schedule_delay: Summary,
    /// Over the whole run with its warm-up.
    pub acknowledged: u64,
    pub pulled: u64,
    /// Acknowledged and never pulled.
    pub lost: u64,
    pub repeated: u64,
    /// Pulled messages that this run did not send.
    pub foreign: u64,
    pub faults: Faults,
}

impl Report {
    pub fn is_good(&self) -> bool {
        self.faults.is_empty() && self.lost + self.repeated + self.foreign == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { acknowledged, pulled, lost, repeated, foreign, .. } = self;
        writeln!(f, "promise   {}", self.broker)?;
        write!(f, "{}", self.cost)?;
        writeln!(f, "ack       {}", self.ack)?;
        writeln!(f, "e2e       {}", self.end_to_end)?;
        writeln!(f, "schedule  {} late", self.schedule_delay)?;
        writeln!(
            f,
            "messages  {acknowledged} acknowledged, {pulled} pulled: {lost} lost, {repeated} twice, {foreign} foreign"
        )?;
        write!(f, "{}", self.faults)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    WarmUp,
    Measure,
    Drain,
    Done,
}

/// A place in one queue and the pull that asks for it.
#[derive(Clone, Copy, Default)]
struct Cursor {
    topic: usize,
    queue: u32,
    offset: u64,
    generation: u32,
    /// After a refusal.
    retry_at_ns: Option<u64>,
}

#[derive(Clone, Copy, Default)]
struct Fate {
    is_answered: bool,
    is_acknowledged: bool,
    is_pulled: bool,
}

struct EndToEnd<'a> {
    settings: &'a Settings,
    run_id: u64,
    templates: Vec<SendTemplate>,
    topics: Vec<String>,
    /// The first pulls, the others send.
    connections: Vec<ConnId>,
    scanner: Scanner,
    schedule: Option<Schedule>,
    phase: Phase,
    /// By number.
    fates: Vec<Fate>,
    answered: u64,
    acknowledged: u64,
    pulled: u64,
    /// Acknowledged or pulled, but not both yet.
    halfway: u64,
    repeated: u64,
    foreign: u64,
    cursors: Vec<Cursor>,
    ack: Latency,
    end_to_end: Latency,
    schedule_delay: Latency,
    heard_ns: u64,
    drain_started_ns: u64,
    faults: Faults,
    usage: Usage,
    cost: Option<Cost>,
    failure: Option<io::Error>,
}

/// Runs to the end.
///
/// # Errors
/// The broker cannot be reached, does not create the topic, closes connections or falls silent.
pub fn run(settings: &Settings) -> io::Result<Report> {
    let target = &settings.target;
    if (settings.payload.size as usize) < STAMP_BYTES {
        return Err(io::Error::other(format!(
            "a body holds a stamp of {STAMP_BYTES} bytes, size is {}",
            settings.payload.size
        )));
    }
    let total = settings.rate * (settings.warmup + settings.seconds);
    if total > u64::from(PULL_BIT) {
        return Err(io::Error::other(format!("{total} messages in one run, limit {PULL_BIT}")));
    }
    let broker = BrokerFacts::read(target.broker);
    let mut client = target.create_topics()?;
    let topics = target.topics();
    let mut cursors = Vec::new();
    // In the order of the templates.
    for queue in 0..target.queues {
        for (topic, name) in topics.iter().enumerate() {
            let offset = client
                .max_offset(name, queue)?
                .ok_or_else(|| io::Error::other("the server gives no ends of queues, so nothing can be pulled"))?;
            cursors.push(Cursor { topic, queue, offset, ..Cursor::default() });
        }
    }
    drop(client);
    if cursors.len() > QUEUE_COUNT_MAX as usize {
        return Err(io::Error::other(format!("{} queues of all topics, limit {QUEUE_COUNT_MAX}", cursors.len())));
    }
    let run_id = run_id();
    let mut service = EndToEnd {
        settings,
        run_id,
        templates: target.templates(&settings.payload, 1, false, run_id),
        topics,
        connections: Vec::new(),
        scanner: Scanner::default(),
        schedule: None,
        phase: Phase::WarmUp,
        fates: Vec::with_capacity(total as usize),
        answered: 0,
        acknowledged: 0,
        pulled: 0,
        halfway: 0,
        repeated: 0,
        foreign: 0,
        cursors,
        ack: Latency::default(),
        end_to_end: Latency::default(),
        schedule_delay: Latency::default(),
        heard_ns: 0,
        drain_started_ns: 0,
        faults: Faults::default(),
        usage: Usage::default(),
        cost: None,
        failure: None,
    };
    // Timers of this thread fire when they are due, not up to 50 µs later.
    nix::sys::prctl::set_timerslack(1)?;
    let mut reactor = Reactor::new(reactor_config()).map_err(io::Error::other)?;
    for _ in 0..=target.connections {
        reactor.adopt(target.connect()?, Port(u8::MAX), &mut service);
    }
    reactor.run(&mut service).map_err(io::Error::other)?;
    service.report(broker)
}

impl EndToEnd<'_> {
    fn report(mut self, broker: BrokerFacts) -> io::Result<Report> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let cost = self.cost.ok_or_else(|| io::Error::other("the run ended before its measured part did"))?;
        self.faults.unanswered += self.fates.iter().filter(|fate| !fate.is_answered).count() as u64;
        Ok(Report {
            broker,
            cost,
            ack: self.ack.summary(),
            end_to_end: self.end_to_end.summary(),
            schedule_delay: self.schedule_delay.summary(),
            acknowledged: self.acknowledged,
            pulled: self.pulled,
            lost: self.fates.iter().filter(|fate| fate.is_acknowledged && !fate.is_pulled).count() as u64,
            repeated: self.repeated,
            foreign: self.foreign,
            faults: self.faults,
        })
    }

    fn sent(&self) -> u64 {
        self.fates.len() as u64
    }

    /// Numbers below are warm-up.
    fn measured_from(&self) -> u64 {
        self.settings.rate * self.settings.warmup
    }

    fn total(&self) -> u64 {
        self.settings.rate * (self.settings.warmup + self.settings.seconds)
    }

    fn send_due(&mut self, schedule: Schedule, out: &mut Outbound<'_>) {
        let now = out.now();
        let last = self.total().min(self.sent() + BURST_MAX);
        for number in self.sent()..last {
            let intended_ns = schedule.intended_ns(number);
            if intended_ns > now.mono_ns {
                break;
            }
            let connection = 1 + (number % u64::from(self.settings.target.connections)) as usize;
            let index = (number % self.templates.len() as u64) as usize;
            self.fates.push(Fate::default());
            let Some(outbox) = out.buffer(self.connections[connection]) else { continue };
            let body = self.templates[index].append(outbox, send_opaque(number), number, now.wall_ms);
            for (at, value) in [(0, self.run_id), (8, number), (16, intended_ns)] {
                body[at..at + 8].copy_from_slice(&value.to_be_bytes());
            }
            if number >= self.measured_from() {
                self.schedule_delay.record(now.mono_ns - intended_ns);
            }
        }
    }

    /// `index` is that of the cursor.
    fn pull(&mut self, index: u32, out: &mut Outbound<'_>) {
        let cursor = &mut self.cursors[index as usize];
        cursor.retry_at_ns = None;
        cursor.generation = cursor.generation.wrapping_add(1);
        let opaque = pull_opaque(cursor.generation, index);
        let ext = [
            ("commitOffset", "0"),
            ("consumerGroup", "ringmq_bench_consumer"),
            ("expressionType", "TAG"),
            ("maxMsgNums", &PULL_COUNT_MAX.to_string()),
            ("queueId", &cursor.queue.to_string()),
            ("queueOffset", &cursor.offset.to_string()),
            ("subVersion", "0"),
            ("subscription", "*"),
            ("suspendTimeoutMillis", &SUSPEND_MS.to_string()),
            ("sysFlag", &SYS_FLAG.to_string()),
            ("topic", &self.topics[cursor.topic]),
        ];
        if let Some(outbox) = out.buffer(self.connections[0]) {
            let header = self.settings.target.header;
            outbox.extend_from_slice(&frame::request(header, code::PULL_MESSAGE, opaque, &ext, &[]));
        }
    }

    fn on_send_answer(&mut self, answer: &Seen<'_>, frame: &[u8], now_ns: u64) {
        let number = u64::from(answer.opaque & (PULL_BIT - 1));
        let is_measured = number >= self.measured_from();
        let Some(fate) = self.fates.get_mut(number as usize).filter(|fate| !fate.is_answered) else {
            self.faults.unexpected += 1;
            return;
        };
        fate.is_answered = true;
        self.answered += 1;
        if answer.code != code::SUCCESS {
            self.faults.refused(answer.code, frame);
            return;
        }
        fate.is_acknowledged = true;
        self.acknowledged += 1;
        if fate.is_pulled {
            self.halfway -= 1;
        } else {
            self.halfway += 1;
        }
        if let (true, Some(schedule)) = (is_measured, self.schedule) {
            self.ack.record(now_ns.saturating_sub(schedule.intended_ns(number)));
        }
    }

    fn on_pull_answer(&mut self, answer: &Seen<'_>, frame: &[u8], out: &mut Outbound<'_>) {
        let now_ns = out.now().mono_ns;
        let index = answer.opaque & (QUEUE_COUNT_MAX - 1);
        let is_open =
            |cursor: &Cursor| cursor.retry_at_ns.is_none() && pull_opaque(cursor.generation, index) == answer.opaque;
        if !self.cursors.get(index as usize).is_some_and(is_open) {
            self.faults.unexpected += 1;
            return;
        }
        match answer.code {
            code::SUCCESS => {
                for message in frame::pulled(answer.body) {
                    match message {
                        Ok(message) => self.on_message(index, &message, now_ns),
                        Err(_) => self.faults.unexpected += 1,
                    }
                }
            }
            code::PULL_NOT_FOUND => {}
            code::PULL_RETRY_IMMEDIATELY | code::PULL_OFFSET_MOVED => {
                let next = frame::decode(frame).and_then(|answer| answer.ext_number("nextBeginOffset"));
                match next {
                    Ok(offset) => self.cursors[index as usize].offset = offset.max(0) as u64,
                    Err(_) => self.faults.unexpected += 1,
                }
            }
            other => {
                self.faults.refused(other, frame);
                self.cursors[index as usize].retry_at_ns = Some(now_ns + RETRY_NS);
                return;
            }
        }
        self.pull(index, out);
    }

    fn on_message(&mut self, index: u32, message: &Pulled<'_>, now_ns: u64) {
        let cursor = &mut self.cursors[index as usize];
        cursor.offset = message.queue_offset + 1;
        let queue = cursor.queue;
        let stamp = |at: usize| {
            let bytes = message.body.get(at..at + 8)?;
            Some(u64::from_be_bytes(bytes.try_into().expect("eight bytes")))
        };
        let number = stamp(8).filter(|_| stamp(0) == Some(self.run_id) && message.queue == queue);
        let found = number.and_then(|number| Some((number, self.fates.get_mut(number as usize)?)));
        let Some((number, fate)) = found else {
            self.foreign += 1;
            return;
        };
        if mem::replace(&mut fate.is_pulled, true) {
            self.repeated += 1;
            return;
        }
        self.pulled += 1;
        if fate.is_acknowledged {
            self.halfway -= 1;
        } else {
            self.halfway += 1;
        }
        if let (true, Some(intended_ns)) = (number >= self.measured_from(), stamp(16)) {
            self.end_to_end.record(now_ns.saturating_sub(intended_ns));
        }
    }

    fn next_phase(&mut self, schedule: Schedule, out: &mut Outbound<'_>) {
        let now_ns = out.now().mono_ns;
        match self.phase {
            Phase::WarmUp if self.sent() >= self.measured_from() && now_ns >= schedule.start_ns => {
                self.read_usage(None);
                self.phase = Phase::Measure;
            }
            Phase::Measure if self.sent() == self.total() => {
                self.read_usage(Some(now_ns - schedule.intended_ns(self.measured_from())));
                self.drain_started_ns = now_ns;
                self.phase = Phase::Drain;
            }
            Phase::Drain => {
                let is_everything_back = self.answered == self.sent() && self.halfway == 0;
                let drained = Duration::from_nanos(now_ns - self.drain_started_ns);
                if is_everything_back || drained > DRAIN {
                    self.phase = Phase::Done;
                    out.finish(now_ns);
                }
            }
            _ => {}
        }
    }

    fn read_usage(&mut self, phase_ns: Option<u64>) {
        let pid = self.settings.target.broker_pid;
        match Usage::read(pid) {
            Ok(usage) => {
                if let Some(ns) = phase_ns {
                    let seconds = Duration::from_nanos(ns).as_secs_f64();
                    let messages = self.total() - self.measured_from();
                    self.cost = Some(Cost::new(&usage.since(&self.usage), messages, seconds, pid));
                }
                self.usage = usage;
            }
            Err(error) => self.failure = Some(error),
        }
    }

    fn fail(&mut self, text: String) {
        self.failure.get_or_insert(io::Error::other(text));
    }
}

/// Sends have this bit clear and their number below it; pulls have it set.
const PULL_BIT: u32 = 1 << (OPAQUE_BITS - 1);
const QUEUE_COUNT_MAX: u32 = 1024;

fn send_opaque(number: u64) -> u32 {
    debug_assert!(number < u64::from(PULL_BIT));
    OPAQUE_BASE | (number as u32 & (PULL_BIT - 1))
}

fn pull_opaque(generation: u32, queue: u32) -> u32 {
    OPAQUE_BASE | PULL_BIT | (generation.wrapping_mul(QUEUE_COUNT_MAX) & (PULL_BIT - 1)) | queue
}

impl Service for EndToEnd<'_> {
    type Mail = ();

    fn on_open(&mut self, conn: ConnId, out: &mut Outbound<'_>) {
        self.connections.push(conn);
        if self.connections.len() == 1 {
            for index in 0..self.cursors.len() as u32 {
                self.pull(index, out);
            }
        }
    }

    fn on_frame(&mut self, _conn: ConnId, frame: &[u8], out: &mut Outbound<'_>) {
        let now_ns = out.now().mono_ns;
        self.heard_ns = now_ns;
        match self.scanner.scan(frame) {
            Ok(answer) if answer.opaque & (OPAQUE_BASE | PULL_BIT) == OPAQUE_BASE => {
                self.on_send_answer(&answer, frame, now_ns);
            }
            Ok(answer) if answer.opaque & OPAQUE_BASE != 0 => self.on_pull_answer(&answer, frame, out),
            _ => self.faults.unexpected += 1,
        }
    }

    fn on_mail(&mut self, (): (), _out: &mut Outbound<'_>) {}

    fn on_close(&mut self, conn: ConnId, _out: &mut Outbound<'_>) {
        if self.phase == Phase::Done {
            return;
        }
        self.faults.connections_closed += 1;
        if self.connections.first() == Some(&conn) {
            self.fail("the broker closed the connection that pulls".into());
        } else if self.faults.connections_closed == u64::from(self.settings.target.connections) {
            self.fail("the broker closed every connection that sends".into());
        }
    }

    fn on_turn(&mut self, out: &mut Outbound<'_>) -> Option<u64> {
        let now_ns = out.now().mono_ns;
        if self.connections.len() <= self.settings.target.connections as usize {
            return Some(now_ns + 1_000_000);
        }
        let first_turn = Schedule { start_ns: now_ns + START_NS, rate: self.settings.rate, messages: 1 };
        let schedule = *self.schedule.get_or_insert(first_turn);
        if matches!(self.phase, Phase::WarmUp | Phase::Measure) {
            self.send_due(schedule, out);
        }
        self.next_phase(schedule, out);
        for index in 0..self.cursors.len() as u32 {
            if self.cursors[index as usize].retry_at_ns.is_some_and(|at_ns| at_ns <= now_ns) {
                self.pull(index, out);
            }
        }
        let silent = Duration::from_nanos(now_ns.saturating_sub(self.heard_ns.max(schedule.start_ns)));
        if silent > SILENCE && self.answered < self.sent() {
            self.fail(format!("nothing came back for {} s", SILENCE.as_secs()));
        }
        if self.failure.is_some() {
            self.phase = Phase::Done;
            out.finish(now_ns);
        }
        match self.phase {
            Phase::WarmUp | Phase::Measure => Some(schedule.intended_ns(self.sent())),
            Phase::Drain => Some(now_ns + RETRY_NS),
            Phase::Done => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opaques_of_sends_and_pulls_never_meet() {
        for value in [0, 1, 1023, PULL_BIT - 1] {
            let send = send_opaque(u64::from(value));
            let pull = pull_opaque(value, 1023);
            assert_eq!(send & PULL_BIT, 0);
            assert_eq!(pull & PULL_BIT, PULL_BIT);
            assert_eq!(pull & (QUEUE_COUNT_MAX - 1), 1023);
            assert!(send.max(pull) <= i32::MAX as u32);
            assert!(send.min(pull) >= OPAQUE_BASE);
        }
    }
}
