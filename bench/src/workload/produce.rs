//! Sends. In the closed loop each connection keeps so many requests in flight, and an answer is followed by the next
//! request. In the open loop (`rate`) requests leave by a schedule, whatever the broker does.
//!
//! ```text
//! warm up ──(warmup messages)──▶ measure ──(messages or seconds)──▶ drain ──(nothing in flight)──▶ done
//!
//! closed loop   latency = turn of the answer − turn that queued the request
//! open loop     latency = turn of the answer − intended time
//! ```
//!
//! The closed loop's latencies hold the client's own work of a turn: a little more than the broker's part, never less.
//! It sends less while a broker stalls, so its percentiles do not say what a steady stream of requests would have met
//! (coordinated omission). The open loop's do: a stall of 100 ms is charged to every request that was due in it, also
//! those that could not even leave because all slots were waiting, and those still unanswered at the end count with
//! the age they had reached. How late requests left stands beside.
//!
//! A one-way send has no answer, so it has only a rate, the open loop, and what the ends of the queues say.

mod verify;

use super::schedule::Schedule;
use super::stored::{self, Stored};
use super::{Cost, DRAIN, Faults, Payload, SILENCE, Target, reactor_config, run_id};
use crate::environment::BrokerFacts;
use crate::frame::{OPAQUE_BASE, OPAQUE_BITS, Scanner, code};
use crate::latency::{Latency, Summary};
use crate::process::Usage;
use crate::template::SendTemplate;
use ringmq_net::reactor::{ConnId, Outbound, Port, Reactor, Service};
use serde::Serialize;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::time::Duration;
use verify::{Check, Verified};

/// All connections are open and quiet before the first request of an open loop is due.
const START_NS: u64 = 20_000_000;
/// Requests that one turn makes up for at most; the rest follows in the next turns.
const BURST_MAX: u64 = 1024;
/// At least so often a turn looks at clocks and limits.
const TICK_NS: u64 = 100_000_000;

#[derive(Clone, Debug, clap::Args)]
pub struct Settings {
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub payload: Payload,
    /// Requests in flight on each connection; in the open loop the limit of them
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub in_flight: u32,
    /// Messages of a request; more than one sends SEND_BATCH_MESSAGE
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub batch: u32,
    /// Messages a second: open loop, latencies from the intended time
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub rate: Option<u64>,
    /// Measured messages, after the warm-up
    #[arg(long, default_value_t = 1_000_000, conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..))]
    pub messages: u64,
    /// Measured time instead of a count
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: Option<u64>,
    /// Messages before the measured part
    #[arg(long, default_value_t = 100_000)]
    pub warmup: u64,
    /// Ask for no answers; needs a rate
    #[arg(long, requires = "rate", conflicts_with = "verify")]
    pub one_way: bool,
    /// Read each answer in full and check message ids, queues and that the queue offsets have no gap and no
    /// repetition (costs the client time, and needs topics nobody else writes to)
    #[arg(long)]
    pub verify: bool,
}

impl Settings {
    fn warmup_requests(&self) -> u64 {
        self.warmup.div_ceil(u64::from(self.batch))
    }

    /// The measured requests of an open loop, and of a closed one that counts.
    fn measured_requests(&self) -> u64 {
        let messages = match (self.seconds, self.rate) {
            (Some(seconds), Some(rate)) => seconds * rate,
            _ => self.messages,
        };
        messages.div_ceil(u64::from(self.batch))
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub broker: BrokerFacts,
    pub cost: Cost,
    /// Requests answered with 0; of the open loop also those without an answer. None of one-way sends.
    pub ack: Option<Summary>,
    /// How much later than intended the requests of an open loop left.
    pub schedule_delay: Option<Summary>,
    pub faults: Faults,
    /// Over the whole run with its warm-up; `None` of a server that knows no queues.
    pub stored: Option<Stored>,
    pub verified: Option<Verified>,
}

impl Report {
    pub fn is_good(&self) -> bool {
        self.faults.is_empty()
            && self.stored.is_none_or(|stored| stored.is_good())
            && self.verified.is_none_or(|verified| verified.faults() == 0)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "promise   {}", self.broker)?;
        write!(f, "{}", self.cost)?;
        if let Some(ack) = &self.ack {
            writeln!(f, "ack       {ack}")?;
        }
        if let Some(delay) = &self.schedule_delay {
            writeln!(f, "schedule  {delay} late")?;
        }
        match &self.stored {
            Some(stored) => writeln!(f, "messages  {stored}")?,
            None => writeln!(f, "messages  not counted: the server gives no ends of queues")?,
        }
        if let Some(Verified { answers, bad_answers, repeated, missing }) = self.verified {
            writeln!(
                f,
                "verified  {answers} answers: {bad_answers} bad, {repeated} queue offsets twice, {missing} missing"
            )?;
        }
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

/// Room for one request that waits for its answer.
#[derive(Clone, Copy, Default)]
struct Slot {
    connection: u32,
    generation: u32,
    number: u64,
    /// Closed loop: when it was queued. Open loop: when it was due.
    from_ns: u64,
    is_waiting: bool,
}

struct Producer<'a> {
    settings: &'a Settings,
    templates: Vec<SendTemplate>,
    connections: Vec<ConnId>,
    slots: Vec<Slot>,
    slot_bits: u32,
    /// Open loop: the slots that wait for nothing.
    free: VecDeque<u32>,
    /// Open loop: from the first turn with all connections on.
    schedule: Option<Schedule>,
    /// Requests; also the number of the next.
    sent: u64,
    waiting: u64,
    scanner: Scanner,
    latency: Latency,
    schedule_delay: Latency,
    faults: Faults,
    check: Option<Check>,
    phase: Phase,
    phase_started_ns: u64,
    /// Answers in this phase, and those of them with code 0.
    answered: u64,
    acknowledged: u64,
    acknowledged_all: u64,
    heard_ns: u64,
    usage: Usage,
    cost: Option<Cost>,
    failure: Option<io::Error>,
}

/// Runs to the end.
///
/// # Errors
/// The broker cannot be reached, does not create the topic, closes every connection or falls silent.
pub fn run(settings: &Settings) -> io::Result<Report> {
    let target = &settings.target;
    let broker = BrokerFacts::read(target.broker);
    let mut client = target.create_topics()?;
    let start = stored::Start::read(&mut client, target)?;
    let check = if settings.verify { Some(Check::new(&mut client, target, settings.batch)?) } else { None };
    drop(client);
    let mut producer = Producer::new(settings, check);
    if settings.rate.is_some() {
        // Timers of this thread fire when they are due, not up to 50 µs later.
        nix::sys::prctl::set_timerslack(1)?;
    }
    let mut reactor = Reactor::new(reactor_config()).map_err(io::Error::other)?;
    for _ in 0..target.connections {
        reactor.adopt(target.connect()?, Port(u8::MAX), &mut producer);
    }
    reactor.run(&mut producer).map_err(io::Error::other)?;
    // One-way sends must not be cut off: the connections stay open until they are counted.
    let mut report = producer.report(broker)?;
    if let Some(start) = start {
        let messages = u64::from(settings.batch);
        let sent = producer.sent * messages;
        let acknowledged = producer.acknowledged_all * messages;
        let due = if settings.one_way { sent } else { acknowledged };
        report.stored = Some(start.compare(target, sent, acknowledged, due)?);
    }
    drop(reactor);
    Ok(report)
}

impl<'a> Producer<'a> {
    fn new(settings: &'a Settings, check: Option<Check>) -> Self {
        let target = &settings.target;
        let slot_count = (target.connections * settings.in_flight) as usize;
        Self {
            settings,
            templates: target.templates(&settings.payload, settings.batch, settings.one_way, run_id()),
            connections: Vec::new(),
            slots: vec![Slot::default(); slot_count],
            slot_bits: slot_count.next_power_of_two().trailing_zeros(),
            free: VecDeque::new(),
            schedule: None,
            sent: 0,
            waiting: 0,
            scanner: Scanner::default(),
            latency: Latency::default(),
            schedule_delay: Latency::default(),
            faults: Faults::default(),
            check,
            phase: Phase::WarmUp,
            phase_started_ns: 0,
            answered: 0,
            acknowledged: 0,
            acknowledged_all: 0,
            heard_ns: 0,
            usage: Usage::default(),
            cost: None,
            failure: None,
        }
    }

    fn report(&mut self, broker: BrokerFacts) -> io::Result<Report> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        self.faults.unanswered += self.waiting;
        let is_open_loop = self.settings.rate.is_some();
        Ok(Report {
            broker,
            cost: self.cost.take().ok_or_else(|| io::Error::other("the run ended before its measured part did"))?,
            ack: (!self.settings.one_way).then(|| self.latency.summary()),
            schedule_delay: is_open_loop.then(|| self.schedule_delay.summary()),
            faults: self.faults.clone(),
            stored: None,
            verified: self.check.as_ref().map(Check::verified),
        })
    }

    /// The requests an open loop sends in all; a closed loop goes on until its measured part has ended.
    fn total(&self) -> u64 {
        match self.settings.rate {
            Some(_) => self.settings.warmup_requests() + self.settings.measured_requests(),
            None => u64::MAX,
        }
    }

    /// Appends the next request to a connection, unless that is gone.
    fn append(&mut self, connection: u32, opaque: u32, out: &mut Outbound<'_>) -> bool {
        let wall_ms = out.now().wall_ms;
        let Some(outbox) = out.buffer(self.connections[connection as usize]) else { return false };
        let serial = self.sent * u64::from(self.settings.batch);
        let template = (self.sent % self.templates.len() as u64) as usize;
        self.templates[template].append(outbox, opaque, serial, wall_ms);
        self.sent += 1;
        true
    }

    fn send(&mut self, index: u32, from_ns: u64, out: &mut Outbound<'_>) {
        let Slot { connection, generation, .. } = self.slots[index as usize];
        let generation = generation.wrapping_add(1);
        let number = self.sent;
        if self.append(connection, opaque(generation, index, self.slot_bits), out) {
            self.slots[index as usize] = Slot { connection, generation, number, from_ns, is_waiting: true };
            self.waiting += 1;
        }
    }

    /// Open loop: sends what is due, and gives the time of the next turn.
    fn send_due(&mut self, schedule: Schedule, out: &mut Outbound<'_>) -> u64 {
        let now_ns = out.now().mono_ns;
        let warmup = self.settings.warmup_requests();
        for _ in 0..BURST_MAX {
            let intended_ns = schedule.intended_ns(self.sent);
            if self.sent == self.total() || intended_ns > now_ns {
                return intended_ns;
            }
            let number = self.sent;
            if self.settings.one_way {
                let connection = (number % u64::from(self.settings.target.connections)) as u32;
                let opaque = OPAQUE_BASE | (number as u32 & ((1 << OPAQUE_BITS) - 1));
                if !self.append(connection, opaque, out) {
                    self.fail("a connection of one-way sends is gone".into());
                    return now_ns;
                }
            } else {
                // All of them wait: the request leaves with the next answer, late and charged for it.
                let Some(index) = self.free.pop_front() else { return now_ns + TICK_NS };
                self.send(index, intended_ns, out);
            }
            if number >= warmup && self.sent > number {
                self.schedule_delay.record(now_ns - intended_ns);
            }
        }
        now_ns
    }

    /// The slot that is free again.
    fn answer(&mut self, frame: &[u8], now_ns: u64) -> Option<u32> {
        let Ok(answer) = self.scanner.scan(frame) else {
            self.faults.unexpected += 1;
            return None;
        };
        let bits = self.slot_bits;
        let index = answer.opaque & ((1 << bits) - 1);
        let slot = self.slots.get_mut(index as usize);
        let is_open = |slot: &Slot| slot.is_waiting && opaque(slot.generation, index, bits) == answer.opaque;
        let Some(slot) = slot.filter(|slot| is_open(slot)) else {
            self.faults.unexpected += 1;
            return None;
        };
        slot.is_waiting = false;
        let Slot { number, from_ns, .. } = *slot;
        self.waiting -= 1;
        self.answered += 1;
        self.heard_ns = now_ns;
        if answer.code != code::SUCCESS {
            self.faults.refused(answer.code, frame);
            return Some(index);
        }
        self.acknowledged += 1;
        self.acknowledged_all += 1;
        if self.is_measured(number) {
            self.latency.record(now_ns.saturating_sub(from_ns));
        }
        if let Some(check) = &mut self.check {
            check.answer(frame, (number % self.templates.len() as u64) as usize);
        }
        Some(index)
    }

    /// By the number in the open loop, so that none is left out whenever its answer comes; by the time of the answer in
    /// the closed one.
    fn is_measured(&self, number: u64) -> bool {
        match self.settings.rate {
            Some(_) => number >= self.settings.warmup_requests(),
            None => self.phase == Phase::Measure,
        }
    }

    fn next_phase(&mut self, out: &mut Outbound<'_>) {
        let now_ns = out.now().mono_ns;
        let phase_ns = now_ns.saturating_sub(self.phase_started_ns);
        self.phase = match self.phase {
            Phase::WarmUp if self.is_warm() => {
                self.read_usage(None);
                Phase::Measure
            }
            Phase::Measure if self.is_measure_over(phase_ns) => {
                self.read_usage(Some(phase_ns));
                Phase::Drain
            }
            Phase::Drain if self.waiting == 0 || Duration::from_nanos(phase_ns) >= DRAIN => {
                self.charge_unanswered(now_ns);
                out.finish(now_ns + DRAIN.as_nanos() as u64);
                Phase::Done
            }
            _ => return,
        };
        self.phase_started_ns = now_ns;
        self.answered = 0;
        self.acknowledged = 0;
    }

    fn is_warm(&self) -> bool {
        let warmup = self.settings.warmup_requests();
        match (self.settings.rate, self.schedule) {
            (None, _) => self.answered >= warmup,
            (Some(_), None) => false,
            (Some(_), Some(_)) => self.sent >= warmup,
        }
    }

    fn is_measure_over(&self, phase_ns: u64) -> bool {
        match (self.settings.rate, self.settings.seconds) {
            (None, Some(seconds)) => Duration::from_nanos(phase_ns) >= Duration::from_secs(seconds),
            (None, None) => self.answered >= self.settings.measured_requests(),
            (Some(_), _) => self.sent == self.total() || self.faults.unsent > 0,
        }
    }

    /// Gives up an open loop that is so late that it only measures its own queue.
    fn give_up_if_late(&mut self, schedule: Schedule, now_ns: u64) {
        let late = Duration::from_nanos(now_ns.saturating_sub(schedule.intended_ns(self.sent)));
        if self.sent < self.total() && late > DRAIN {
            self.faults.unsent =
                (self.sent..self.total()).take_while(|number| schedule.intended_ns(*number) <= now_ns).count() as u64;
        }
    }

    /// Requests that got no answer, or never left, count with the age they have reached.
    fn charge_unanswered(&mut self, now_ns: u64) {
        let Some(schedule) = self.schedule else { return };
        let waiting = self.slots.iter().filter(|slot| slot.is_waiting).map(|slot| slot.number);
        let unsent = self.sent..self.sent + self.faults.unsent;
        for number in waiting.chain(unsent).filter(|number| *number >= self.settings.warmup_requests()) {
            self.latency.record(now_ns.saturating_sub(schedule.intended_ns(number)));
        }
    }

    fn read_usage(&mut self, phase_ns: Option<u64>) {
        let pid = self.settings.target.broker_pid;
        match Usage::read(pid) {
            Ok(usage) => {
                if let Some(ns) = phase_ns {
                    let seconds = Duration::from_nanos(ns).as_secs_f64();
                    let requests = if self.settings.one_way {
                        self.sent - self.settings.warmup_requests()
                    } else {
                        self.acknowledged
                    };
                    let messages = requests * u64::from(self.settings.batch);
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

/// Low bits: the slot. High bits: how often it was used, so that a second answer to one request is noticed.
fn opaque(generation: u32, slot: u32, slot_bits: u32) -> u32 {
    OPAQUE_BASE | (((generation << slot_bits) | slot) & ((1 << OPAQUE_BITS) - 1))
}

impl Service for Producer<'_> {
    type Mail = ();

    fn on_open(&mut self, conn: ConnId, out: &mut Outbound<'_>) {
        let connection = self.connections.len() as u32;
        self.connections.push(conn);
        let now_ns = out.now().mono_ns;
        self.heard_ns = now_ns;
        for index in connection * self.settings.in_flight..(connection + 1) * self.settings.in_flight {
            self.slots[index as usize].connection = connection;
            if self.settings.rate.is_none() {
                self.send(index, now_ns, out);
            }
        }
    }

    fn on_frame(&mut self, _conn: ConnId, frame: &[u8], out: &mut Outbound<'_>) {
        let now_ns = out.now().mono_ns;
        let Some(index) = self.answer(frame, now_ns) else { return };
        if self.settings.rate.is_some() {
            self.free.push_back(index);
        } else if matches!(self.phase, Phase::WarmUp | Phase::Measure) {
            self.send(index, now_ns, out);
        }
    }

    fn on_mail(&mut self, (): (), _out: &mut Outbound<'_>) {}

    fn on_close(&mut self, conn: ConnId, _out: &mut Outbound<'_>) {
        if self.phase == Phase::Done {
            return;
        }
        self.faults.connections_closed += 1;
        let connection = self.connections.iter().position(|open| *open == conn);
        for slot in &mut self.slots {
            if slot.is_waiting && Some(slot.connection as usize) == connection {
                slot.is_waiting = false;
                self.waiting -= 1;
                self.faults.unanswered += 1;
            }
        }
        if self.faults.connections_closed == u64::from(self.settings.target.connections) {
            self.fail("the broker closed every connection".into());
        }
    }

    fn on_turn(&mut self, out: &mut Outbound<'_>) -> Option<u64> {
        let now_ns = out.now().mono_ns;
        let mut next_ns = now_ns + TICK_NS;
        let is_open = self.connections.len() == self.settings.target.connections as usize;
        if let (Some(rate), true) = (self.settings.rate, is_open) {
            if self.schedule.is_none() {
                // Connection by connection in turn.
                let depth = self.settings.in_flight;
                let turns =
                    (0..depth).flat_map(|at| (0..self.settings.target.connections).map(move |c| c * depth + at));
                self.free = turns.collect();
            }
            let messages = u64::from(self.settings.batch);
            let first_turn = Schedule { start_ns: now_ns + START_NS, rate, messages };
            let schedule = *self.schedule.get_or_insert(first_turn);
            if matches!(self.phase, Phase::WarmUp | Phase::Measure) {
                next_ns = next_ns.min(self.send_due(schedule, out));
                self.give_up_if_late(schedule, now_ns);
            }
        }
        self.next_phase(out);
        let silent = Duration::from_nanos(now_ns.saturating_sub(self.heard_ns));
        if self.waiting > 0 && silent > SILENCE {
            self.fail(format!("no answer for {} s, {} requests are waiting", SILENCE.as_secs(), self.waiting));
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
