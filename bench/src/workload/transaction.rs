//! Transactions: a half message, and when it is acknowledged END_TRANSACTION with commit or rollback, as the official
//! transaction producer does it. Some can be left open, so that the broker asks back (code 39) and is answered then.
//!
//! ```text
//! from ─ half message sent ─── acknowledged ─ END_TRANSACTION ─── answered
//!  ├──────────── half ───────────────┤└──────────── end ──────────────┤
//!  └───────────────────────────── whole ─────────────────────────────┘
//! ```
//!
//! `from` is the intended time in the open loop (`rate`), else the turn that sent it. The official client wants no answer
//! to its END_TRANSACTION (`--one-way-end`); then a transaction is whole when it is sent. What was committed must be in
//! the topic, and nothing else: the ends of its queues are counted before and after.

use super::crew::Phase;
use super::schedule::{Arrivals, Schedule};
use super::stored::{self, Stored};
use super::{
    BURST_MAX, Cost, DRAIN, Faults, PRODUCER_GROUP, Payload, SILENCE, SendKind, TICK_NS, Target, opaque,
    reactor_config, run_id,
};
use crate::chance;
use crate::environment::BrokerFacts;
use crate::frame::{self, FLAG_ONE_WAY, FLAG_RESPONSE, FrameFault, OPAQUE_BASE, Scanner, code};
use crate::latency::{self, Latency, Second, Summary, Timeline};
use crate::process::{Usage, Watch};
use crate::template::SendTemplate;
use ringmq_net::reactor::{ConnId, Outbound, Port, Reactor, Service};
use serde::Serialize;
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::time::Duration;

/// Of a half message: TRANSACTION_PREPARED_TYPE.
const SYS_FLAG_PREPARED: i32 = 1 << 2;
const START_NS: u64 = 20_000_000;
/// Producers are asked back on a connection that has told its group, and tells it again.
const HEARTBEAT_NS: u64 = 30_000_000_000;
/// The answers to heartbeats: no slot has this opaque.
const HEARTBEAT_OPAQUE: u32 = i32::MAX as u32;

#[derive(Clone, Debug, clap::Args)]
pub struct Settings {
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub payload: Payload,
    /// Transactions in flight on each connection; in the open loop the limit of them
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub in_flight: u32,
    /// Transactions a second: open loop, latencies from the intended time
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub rate: Option<u64>,
    /// How the transactions of an open loop follow each other
    #[arg(long, value_enum, default_value = "even")]
    pub arrivals: Arrivals,
    /// Measured time, after the warm-up
    #[arg(long, visible_alias = "duration", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: u64,
    /// Seconds before the measured part
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub warmup: u64,
    /// Share of the transactions that are rolled back
    #[arg(long, default_value_t = 0.1, value_parser = share)]
    pub rollback: f64,
    /// Share of the transactions that are left open until the broker asks back; then they are committed
    #[arg(long, default_value_t = 0.0, value_parser = share)]
    pub open: f64,
    /// How long to wait, after the run, for the broker to ask back (it does so every transactionCheckInterval, 60 s)
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=3_600))]
    pub check_seconds: u64,
    /// Want no answer to END_TRANSACTION, as the Java client
    #[arg(long)]
    pub one_way_end: bool,
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "a share from 0 to 1".into())
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub broker: BrokerFacts,
    /// For each transaction, whatever its end.
    pub cost: Cost,
    pub half: Summary,
    /// `None` of one-way ends.
    pub end: Option<Summary>,
    pub whole: Summary,
    pub schedule_delay: Option<Summary>,
    /// Over the whole run with its warm-up.
    pub committed: u64,
    pub rolled_back: u64,
    pub left_open: u64,
    /// Questions of the broker, and how many transactions they were about.
    pub checks: u64,
    pub checked: u64,
    pub stored: Option<Stored>,
    pub faults: Faults,
    pub timeline: Vec<Second>,
}

impl Report {
    pub fn is_good(&self) -> bool {
        self.faults.is_empty() && self.stored.is_none_or(|stored| stored.is_good())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { committed, rolled_back, left_open, checks, checked, .. } = self;
        writeln!(f, "promise   {}", self.broker)?;
        write!(f, "{}", self.cost)?;
        writeln!(f, "half      {}", self.half)?;
        if let Some(end) = &self.end {
            writeln!(f, "end       {end}")?;
        }
        writeln!(f, "whole     {}", self.whole)?;
        if let Some(delay) = &self.schedule_delay {
            writeln!(f, "schedule  {delay} late")?;
        }
        writeln!(f, "ends      {committed} committed, {rolled_back} rolled back, {left_open} left open")?;
        writeln!(f, "checks    the broker asked {checks} times about {checked} transactions")?;
        match &self.stored {
            Some(stored) => writeln!(f, "messages  {stored}")?,
            None => writeln!(f, "messages  not counted: the server gives no ends of queues")?,
        }
        write!(f, "{}", self.faults)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Commit,
    Rollback,
    Open,
}

impl End {
    /// commitOrRollback, in the bits of a system flag.
    fn flag(self) -> &'static str {
        match self {
            Self::Commit => "8",
            Self::Rollback => "12",
            Self::Open => "0",
        }
    }
}

/// How END_TRANSACTION is sent.
#[derive(Clone, Copy)]
struct Ending {
    end: End,
    is_one_way: bool,
    /// As an answer to the broker's question.
    is_checked: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Free,
    Half,
    End,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    connection: u32,
    generation: u32,
    number: u64,
    from_ns: u64,
    end_sent_ns: u64,
    stage: Stage,
    is_measured: bool,
}

struct Transactions<'a> {
    settings: &'a Settings,
    watch: Watch,
    templates: Vec<SendTemplate>,
    connections: Vec<ConnId>,
    slots: Vec<Slot>,
    slot_bits: u32,
    free: VecDeque<u32>,
    start_ns: u64,
    schedule: Option<Schedule>,
    heartbeat_at_ns: u64,
    phase: Phase,
    phase_started_ns: u64,
    sent: u64,
    /// Transactions with their end answered (sent, of one-way ends).
    whole_count: u64,
    waiting: u64,
    committing: u64,
    committed: u64,
    rolled_back: u64,
    left_open: u64,
    checks: u64,
    checked: BTreeSet<i64>,
    scanner: Scanner,
    half: Latency,
    end: Latency,
    whole: Latency,
    schedule_delay: Latency,
    timeline: Timeline,
    faults: Faults,
    heard_ns: u64,
    from: (Usage, u64),
    cost: Option<Cost>,
    failure: Option<io::Error>,
}

/// Runs to the end.
///
/// # Errors
/// The broker cannot be reached, does not create the topic, closes a connection or falls silent.
pub fn run(settings: &Settings) -> io::Result<Report> {
    let target = &settings.target;
    if settings.rollback + settings.open > 1.0 {
        return Err(io::Error::other("more than all transactions are to be rolled back or left open"));
    }
    let broker = target.facts();
    let watch = target.watch(&broker);
    let mut client = target.create_topics()?;
    let start = stored::Start::read(&mut client, target)?;
    drop(client);
    let mut service = Transactions::new(settings, watch);
    // Timers of this thread fire when they are due, not up to 50 µs later.
    nix::sys::prctl::set_timerslack(1)?;
    let mut reactor = Reactor::new(reactor_config()).map_err(io::Error::other)?;
    for _ in 0..target.connections {
        reactor.adopt(target.connect()?, Port(u8::MAX), &mut service);
    }
    reactor.run(&mut service).map_err(io::Error::other)?;
    // One-way ends must not be cut off: the connections stay open until they are counted.
    let committing = service.committing;
    let mut report = service.report(broker)?;
    if let Some(start) = start {
        let due = if settings.one_way_end { committing } else { report.committed };
        report.stored = Some(start.compare(target, committing, report.committed, due)?);
    }
    drop(reactor);
    Ok(report)
}

impl<'a> Transactions<'a> {
    fn new(settings: &'a Settings, watch: Watch) -> Self {
        let target = &settings.target;
        let properties = [("TRAN_MSG", "true"), ("PGROUP", PRODUCER_GROUP)];
        let kind = SendKind { properties: &properties, sys_flag: SYS_FLAG_PREPARED, ..SendKind::single(run_id()) };
        let slot_count = (target.connections * settings.in_flight) as usize;
        Self {
            settings,
            watch,
            templates: target.templates(&settings.payload, &kind),
            connections: Vec::new(),
            slots: vec![Slot::default(); slot_count],
            slot_bits: slot_count.next_power_of_two().trailing_zeros(),
            free: VecDeque::new(),
            start_ns: 0,
            schedule: None,
            heartbeat_at_ns: 0,
            phase: Phase::WarmUp,
            phase_started_ns: 0,
            sent: 0,
            whole_count: 0,
            waiting: 0,
            committing: 0,
            committed: 0,
            rolled_back: 0,
            left_open: 0,
            checks: 0,
            checked: BTreeSet::new(),
            scanner: Scanner::default(),
            half: Latency::default(),
            end: Latency::default(),
            whole: Latency::default(),
            schedule_delay: Latency::default(),
            timeline: Timeline::new(target.live("transaction")),
            faults: Faults::default(),
            heard_ns: 0,
            from: Default::default(),
            cost: None,
            failure: None,
        }
    }

    fn report(&mut self, broker: BrokerFacts) -> io::Result<Report> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        self.faults.unanswered += self.waiting;
        let timeline = std::mem::replace(&mut self.timeline, Timeline::new(None));
        Ok(Report {
            broker,
            cost: self.cost.take().ok_or_else(|| io::Error::other("the run ended before its measured part did"))?,
            half: self.half.summary(),
            end: (!self.settings.one_way_end).then(|| self.end.summary()),
            whole: self.whole.summary(),
            schedule_delay: self.schedule.as_ref().map(|_| self.schedule_delay.summary()),
            committed: self.committed,
            rolled_back: self.rolled_back,
            left_open: self.left_open - self.checked.len() as u64,
            checks: self.checks,
            checked: self.checked.len() as u64,
            stored: None,
            faults: self.faults.clone(),
            timeline: timeline.finish(),
        })
    }

    /// Of an open loop: the first measured transaction and the one after the last.
    fn numbers(&self) -> Option<(u64, u64)> {
        let Settings { rate, warmup, seconds, .. } = self.settings;
        rate.map(|rate| (rate * warmup, rate * (warmup + seconds)))
    }

    fn end_of(&self, number: u64) -> End {
        // Its own sequence, apart from that of the sizes.
        let share = chance::share(!self.settings.payload.seed, number);
        let Settings { rollback, open, .. } = self.settings;
        match share {
            _ if share < *rollback => End::Rollback,
            _ if share < rollback + open => End::Open,
            _ => End::Commit,
        }
    }

    /// `from_ns` is the intended time of an open loop.
    fn begin(&mut self, index: u32, from_ns: u64, out: &mut Outbound<'_>) {
        let now = out.now();
        let number = self.sent;
        let is_measured = match self.numbers() {
            Some((first, _)) => number >= first,
            None => self.phase == Phase::Measure,
        };
        let Slot { connection, generation, .. } = self.slots[index as usize];
        let generation = generation.wrapping_add(1);
        let Some(outbox) = out.buffer(self.connections[connection as usize]) else { return };
        let Payload { body, seed, .. } = &self.settings.payload;
        let template = (number % self.templates.len() as u64) as usize;
        let opaque = opaque(generation, index, self.slot_bits);
        self.templates[template].append(outbox, opaque, number, now.wall_ms, body.size(*seed, number));
        self.slots[index as usize] =
            Slot { connection, generation, number, from_ns, end_sent_ns: 0, stage: Stage::Half, is_measured };
        self.sent += 1;
        self.waiting += 1;
        if is_measured && self.schedule.is_some() {
            self.schedule_delay.record(now.mono_ns - from_ns);
        }
    }

    /// Open loop: sends what is due, and gives the time of the next turn.
    fn begin_due(&mut self, schedule: &Schedule, total: u64, out: &mut Outbound<'_>) -> u64 {
        let now_ns = out.now().mono_ns;
        for _ in 0..BURST_MAX {
            let intended_ns = schedule.intended_ns(self.sent);
            if self.sent == total || intended_ns > now_ns {
                return intended_ns;
            }
            // All of them wait: it leaves with the next that ends, late and charged for it.
            let Some(index) = self.free.pop_front() else { return now_ns + TICK_NS };
            self.begin(index, intended_ns, out);
        }
        now_ns
    }

    fn on_answer(&mut self, index: u32, code: i32, frame: &[u8], out: &mut Outbound<'_>) {
        let now_ns = out.now().mono_ns;
        let slot = self.slots[index as usize];
        if code != code::SUCCESS {
            self.faults.refused(code, frame);
            self.free(index, out);
            return;
        }
        if slot.stage == Stage::End {
            if slot.is_measured {
                self.end.record(now_ns.saturating_sub(slot.end_sent_ns));
            }
            self.ended(index, out);
            return;
        }
        if slot.is_measured {
            self.half.record(now_ns.saturating_sub(slot.from_ns));
        }
        let Ok(half) = half_message(frame) else {
            self.faults.unexpected += 1;
            self.free(index, out);
            return;
        };
        let end = self.end_of(slot.number);
        let is_one_way = self.settings.one_way_end || end == End::Open;
        let opaque = opaque(slot.generation, index, self.slot_bits);
        let connection = self.connections[slot.connection as usize];
        self.send_end(connection, opaque, Ending { end, is_one_way, is_checked: false }, &half, out);
        let slot = &mut self.slots[index as usize];
        slot.stage = Stage::End;
        slot.end_sent_ns = now_ns;
        if is_one_way {
            self.ended(index, out);
        }
    }

    fn send_end(
        &mut self,
        connection: ConnId,
        opaque: u32,
        ending: Ending,
        half: &HalfMessage,
        out: &mut Outbound<'_>,
    ) {
        let Ending { end, is_one_way, is_checked } = ending;
        self.committing += u64::from(end == End::Commit);
        let ext = [
            ("commitLogOffset", half.log_offset.to_string()),
            ("commitOrRollback", end.flag().to_owned()),
            ("fromTransactionCheck", is_checked.to_string()),
            ("msgId", half.message_id.clone()),
            ("producerGroup", PRODUCER_GROUP.to_owned()),
            ("tranStateTableOffset", half.queue_offset.to_string()),
            ("transactionId", half.message_id.clone()),
        ];
        let ext = ext.each_ref().map(|(key, value)| (*key, value.as_str()));
        let flag = if is_one_way { FLAG_ONE_WAY } else { 0 };
        if let Some(outbox) = out.buffer(connection) {
            let header = self.settings.target.header;
            let frame = frame::request_with_flag(header, code::END_TRANSACTION, flag, opaque, &ext, &[]);
            outbox.extend_from_slice(&frame);
        }
    }

    fn ended(&mut self, index: u32, out: &mut Outbound<'_>) {
        let now_ns = out.now().mono_ns;
        let slot = self.slots[index as usize];
        match self.end_of(slot.number) {
            End::Commit => self.committed += 1,
            End::Rollback => self.rolled_back += 1,
            End::Open => self.left_open += 1,
        }
        self.whole_count += 1;
        if slot.is_measured {
            let ns = now_ns.saturating_sub(slot.from_ns);
            latency::record(&mut self.whole, &mut self.timeline, now_ns, ns, 1);
        }
        self.free(index, out);
    }

    /// In the closed loop the next transaction takes the slot at once.
    fn free(&mut self, index: u32, out: &mut Outbound<'_>) {
        self.waiting -= 1;
        self.slots[index as usize].stage = Stage::Free;
        if self.settings.rate.is_some() {
            self.free.push_back(index);
        } else if self.phase <= Phase::Measure {
            let now_ns = out.now().mono_ns;
            self.begin(index, now_ns, out);
        }
    }

    /// The broker asks what became of a transaction: it is committed.
    fn on_check(&mut self, conn: ConnId, frame: &[u8], out: &mut Outbound<'_>) {
        let question = frame::decode(frame).and_then(|question| {
            Ok(HalfMessage {
                queue_offset: question.ext_number("tranStateTableOffset")?,
                log_offset: question.ext_number("commitLogOffset")?,
                message_id: question.ext.get("msgId").cloned().unwrap_or_default(),
            })
        });
        let Ok(half) = question else {
            self.faults.unexpected += 1;
            return;
        };
        self.checks += 1;
        // A broker that asks again before our answer reached it gets no second one.
        if self.checked.insert(half.log_offset) {
            self.committed += 1;
            let ending = Ending { end: End::Commit, is_one_way: true, is_checked: true };
            self.send_end(conn, HEARTBEAT_OPAQUE, ending, &half, out);
        }
    }

    fn send_heartbeats(&mut self, out: &mut Outbound<'_>) {
        for (number, conn) in self.connections.iter().enumerate() {
            let body = format!(
                "{{\"clientID\":\"127.0.0.1@ringmq-bench-{}-{number}\",\"consumerDataSet\":[],\
                 \"producerDataSet\":[{{\"groupName\":\"{PRODUCER_GROUP}\"}}]}}",
                std::process::id()
            );
            if let Some(outbox) = out.buffer(*conn) {
                let header = self.settings.target.header;
                let frame = frame::request(header, code::HEART_BEAT, HEARTBEAT_OPAQUE, &[], body.as_bytes());
                outbox.extend_from_slice(&frame);
            }
        }
        self.heartbeat_at_ns = out.now().mono_ns + HEARTBEAT_NS;
    }

    fn next_phase(&mut self, out: &mut Outbound<'_>) {
        let now_ns = out.now().mono_ns;
        let phase = Duration::from_nanos(now_ns.saturating_sub(self.phase_started_ns.max(self.start_ns)));
        let Settings { warmup, seconds, check_seconds, .. } = self.settings;
        let (numbers, sent) = (self.numbers(), self.sent);
        let is_over = |seconds: u64| phase >= Duration::from_secs(seconds);
        self.phase = match self.phase {
            Phase::WarmUp
                if now_ns >= self.start_ns && numbers.map_or(is_over(*warmup), |(first, _)| sent >= first) =>
            {
                self.read_usage(None);
                self.timeline.begin(now_ns);
                Phase::Measure
            }
            Phase::Measure
                if numbers.map_or(is_over(*seconds), |(_, total)| sent == total || self.faults.unsent > 0) =>
            {
                self.read_usage(Some(phase));
                Phase::Drain
            }
            Phase::Drain => {
                let is_ended = self.waiting == 0 || phase >= DRAIN;
                let is_asked = self.checked.len() as u64 == self.left_open || is_over(*check_seconds);
                if !is_ended || !is_asked {
                    return;
                }
                out.finish(now_ns + DRAIN.as_nanos() as u64);
                Phase::Done
            }
            _ => return,
        };
        self.phase_started_ns = now_ns;
    }

    /// Gives up an open loop that only measures its own queue.
    fn give_up_if_late(&mut self, schedule: &Schedule, total: u64, now_ns: u64) {
        let late = now_ns.saturating_sub(schedule.intended_ns(self.sent));
        if self.sent < total && Duration::from_nanos(late) > DRAIN {
            let due = (self.sent..total).take_while(|number| schedule.intended_ns(*number) <= now_ns);
            let due: Vec<u64> = due.collect();
            self.faults.unsent = due.len() as u64;
            due.iter().for_each(|number| self.whole.record(now_ns - schedule.intended_ns(*number)));
        }
    }

    fn read_usage(&mut self, phase: Option<Duration>) {
        let usage = match self.watch.read() {
            Ok(usage) => usage,
            Err(error) => {
                self.failure = Some(error);
                return;
            }
        };
        let (from, count) = self.from;
        if let Some(phase) = phase {
            let done = self.whole_count - count;
            self.cost = Some(Cost::new(&usage.since(&from), done, phase.as_secs_f64(), self.watch.broker_pid));
        }
        self.from = (usage, self.whole_count);
    }

    fn fail(&mut self, text: String) {
        self.failure.get_or_insert(io::Error::other(text));
    }
}

/// What END_TRANSACTION says of its half message.
struct HalfMessage {
    queue_offset: i64,
    log_offset: i64,
    message_id: String,
}

/// From the answer to its send. A message id is a store's address, and in its last 16 hex digits the place in the log.
fn half_message(frame: &[u8]) -> Result<HalfMessage, FrameFault> {
    let answer = frame::decode(frame)?;
    let message_id = answer.ext.get("msgId").cloned().unwrap_or_default();
    let digits = message_id.len().checked_sub(16).and_then(|at| message_id.get(at..));
    let log_offset = digits.and_then(|digits| i64::from_str_radix(digits, 16).ok());
    let log_offset = log_offset.ok_or_else(|| frame::fault(format!("{message_id:?} is no message id")))?;
    Ok(HalfMessage { queue_offset: answer.ext_number("queueOffset")?, log_offset, message_id })
}

impl Service for Transactions<'_> {
    type Mail = ();

    fn on_open(&mut self, conn: ConnId, _out: &mut Outbound<'_>) {
        let connection = self.connections.len() as u32;
        self.connections.push(conn);
        let depth = self.settings.in_flight;
        (connection * depth..(connection + 1) * depth)
            .for_each(|index| self.slots[index as usize].connection = connection);
    }

    fn on_frame(&mut self, conn: ConnId, frame: &[u8], out: &mut Outbound<'_>) {
        self.heard_ns = out.now().mono_ns;
        let Ok(seen) = self.scanner.scan(frame) else {
            self.faults.unexpected += 1;
            return;
        };
        if seen.flag & FLAG_RESPONSE == 0 {
            if seen.code == code::CHECK_TRANSACTION_STATE {
                self.on_check(conn, frame, out);
            }
            return;
        }
        if seen.opaque == HEARTBEAT_OPAQUE {
            if seen.code != code::SUCCESS {
                self.faults.refused(seen.code, frame);
            }
            return;
        }
        let bits = self.slot_bits;
        let index = seen.opaque & ((1 << bits) - 1);
        let is_open = |slot: &Slot| slot.stage != Stage::Free && opaque(slot.generation, index, bits) == seen.opaque;
        if seen.opaque & OPAQUE_BASE == 0 || !self.slots.get(index as usize).is_some_and(is_open) {
            self.faults.unexpected += 1;
            return;
        }
        self.on_answer(index, seen.code, frame, out);
    }

    fn on_mail(&mut self, (): (), _out: &mut Outbound<'_>) {}

    fn on_close(&mut self, _conn: ConnId, _out: &mut Outbound<'_>) {
        if self.phase != Phase::Done {
            self.faults.connections_closed += 1;
            self.fail("the broker closed a connection".into());
        }
    }

    fn on_turn(&mut self, out: &mut Outbound<'_>) -> Option<u64> {
        let now_ns = out.now().mono_ns;
        if self.connections.len() < self.settings.target.connections as usize {
            return Some(now_ns + 1_000_000);
        }
        let is_first_turn = self.start_ns == 0;
        if is_first_turn {
            self.start_ns = now_ns + START_NS;
            self.heard_ns = now_ns;
            let (depth, connections) = (self.settings.in_flight, self.settings.target.connections);
            self.free = (0..depth).flat_map(|at| (0..connections).map(move |c| c * depth + at)).collect();
        }
        if self.heartbeat_at_ns <= now_ns {
            self.send_heartbeats(out);
        }
        let mut next_ns = now_ns + TICK_NS;
        match (self.settings.rate, self.numbers()) {
            (Some(rate), Some((_, total))) => {
                let Settings { arrivals, payload, .. } = self.settings;
                let (start_ns, seed) = (self.start_ns, payload.seed);
                let new = || Schedule::new(start_ns, rate, 1, *arrivals, seed);
                let schedule = self.schedule.get_or_insert_with(new).clone();
                if self.phase <= Phase::Measure {
                    next_ns = next_ns.min(self.begin_due(&schedule, total, out));
                    self.give_up_if_late(&schedule, total, now_ns);
                }
            }
            _ if is_first_turn => {
                while let Some(index) = self.free.pop_front() {
                    self.begin(index, now_ns, out);
                }
            }
            _ => {}
        }
        self.next_phase(out);
        let silent = Duration::from_nanos(now_ns.saturating_sub(self.heard_ns));
        if self.waiting > 0 && silent > SILENCE {
            self.fail(format!("no answer for {} s, {} transactions are waiting", SILENCE.as_secs(), self.waiting));
        }
        if self.failure.is_some() {
            self.phase = Phase::Done;
            out.finish(now_ns);
        }
        if self.phase == Phase::Done { None } else { Some(next_ns) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Header;

    #[test]
    fn a_half_message_is_found_by_its_answer() {
        for (id, want) in [
            ("7F00000100002A9F00000000000001F4", Some(500)),
            ("00000000000000FF", Some(255)),
            ("1F4", None),
            ("é", None),
        ] {
            let ext = [("msgId", id), ("queueId", "0"), ("queueOffset", "7")];
            let frame = frame::request_with_flag(Header::Json, 0, FLAG_RESPONSE, OPAQUE_BASE, &ext, &[]);
            let half = half_message(&frame).ok();
            assert_eq!(half.as_ref().map(|half| half.log_offset), want, "{id}");
            assert!(half.is_none_or(|half| half.queue_offset == 7));
        }
    }
}
