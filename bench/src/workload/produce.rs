//! Closed loop: each connection keeps so many sends in flight, and an answer is followed by the next send.
//!
//! ```text
//! warm up ──(warmup answers)──▶ measure ──(messages or seconds)──▶ drain ──(nothing in flight)──▶ done
//! ```
//!
//! A latency is the time from the turn that queued the send to the turn that saw its answer, so it holds the
//! client's own work of a turn: a little more than the broker's part, never less.

use super::{Cost, DRAIN, Faults, SILENCE, Target, reactor_config, run_id};
use crate::client::Client;
use crate::frame::{self, AnswerScanner, OPAQUE_BASE, OPAQUE_BITS, SendTemplate, code};
use crate::latency::{Latency, Summary};
use crate::process::Usage;
use ringmq_net::reactor::{ConnId, Outbound, Port, Reactor, Service};
use serde::Serialize;
use std::fmt;
use std::io;
use std::mem;
use std::time::Duration;

#[derive(Clone, Debug, clap::Args)]
pub struct Settings {
    #[command(flatten)]
    pub target: Target,
    /// Sends in flight on each connection
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub in_flight: u32,
    /// Measured messages, after the warm-up
    #[arg(long, default_value_t = 1_000_000, conflicts_with = "seconds")]
    pub messages: u64,
    /// Measured time instead of a count
    #[arg(long)]
    pub seconds: Option<u64>,
    /// Messages before the measured part
    #[arg(long, default_value_t = 100_000)]
    pub warmup: u64,
    /// Read each answer in full and check message ids, queues and that the queue offsets have no gap and no
    /// repetition (costs the client time, and needs a topic nobody else writes to)
    #[arg(long)]
    pub verify: bool,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub cost: Cost,
    pub ack: Summary,
    pub faults: Faults,
    pub verified: Option<Verified>,
}

impl Report {
    pub fn is_good(&self) -> bool {
        self.faults.is_empty() && self.verified.as_ref().is_none_or(|verified| verified.faults() == 0)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.cost)?;
        writeln!(f, "ack       {}", self.ack)?;
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

#[derive(Clone, Copy, Default)]
struct Slot {
    connection: u32,
    generation: u32,
    queue: u32,
    sent_ns: u64,
    is_waiting: bool,
}

struct Producer<'a> {
    settings: &'a Settings,
    templates: Vec<SendTemplate>,
    connections: Vec<ConnId>,
    slots: Vec<Slot>,
    slot_bits: u32,
    sent: u64,
    waiting: u64,
    scanner: AnswerScanner,
    latency: Latency,
    faults: Faults,
    check: Option<Check>,
    phase: Phase,
    phase_started_ns: u64,
    /// Answers in this phase, and those of them with code 0.
    answered: u64,
    stored: u64,
    answered_ns: u64,
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
    let mut client = target.create_topic()?;
    let check = if settings.verify { Some(Check::new(&mut client, target)?) } else { None };
    drop(client);
    let slot_count = (target.connections * settings.in_flight) as usize;
    let mut producer = Producer {
        settings,
        templates: target.templates(run_id()),
        connections: Vec::new(),
        slots: vec![Slot::default(); slot_count],
        slot_bits: slot_count.next_power_of_two().trailing_zeros(),
        sent: 0,
        waiting: 0,
        scanner: AnswerScanner::default(),
        latency: Latency::default(),
        faults: Faults::default(),
        check,
        phase: Phase::WarmUp,
        phase_started_ns: 0,
        answered: 0,
        stored: 0,
        answered_ns: 0,
        usage: Usage::default(),
        cost: None,
        failure: None,
    };
    let mut reactor = Reactor::new(reactor_config()).map_err(io::Error::other)?;
    for _ in 0..target.connections {
        reactor.adopt(target.connect()?, Port(u8::MAX), &mut producer);
    }
    reactor.run(&mut producer).map_err(io::Error::other)?;
    producer.report()
}

impl Producer<'_> {
    fn report(mut self) -> io::Result<Report> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        self.faults.unanswered += self.waiting;
        let cost = self.cost.ok_or_else(|| io::Error::other("the run ended before its measured part did"))?;
        let verified = self.check.map(|check| check.verified());
        Ok(Report { cost, ack: self.latency.summary(), faults: self.faults, verified })
    }

    fn send(&mut self, index: u32, out: &mut Outbound<'_>) {
        let now = out.now();
        let slot = &mut self.slots[index as usize];
        let Some(outbox) = out.buffer(self.connections[slot.connection as usize]) else { return };
        // Queues in turn; `sent` is also the serial of the UNIQ_KEY.
        let queue = (self.sent % u64::from(self.settings.target.queues)) as u32;
        slot.generation = slot.generation.wrapping_add(1);
        let opaque = opaque(slot.generation, index, self.slot_bits);
        self.templates[queue as usize].append(outbox, opaque, self.sent, now.wall_ms);
        slot.queue = queue;
        slot.sent_ns = now.mono_ns;
        slot.is_waiting = true;
        self.sent += 1;
        self.waiting += 1;
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
        self.waiting -= 1;
        self.answered += 1;
        self.answered_ns = now_ns;
        if answer.code == code::SUCCESS {
            self.stored += 1;
            if self.phase == Phase::Measure {
                self.latency.record(now_ns - slot.sent_ns);
            }
            if let Some(check) = &mut self.check {
                check.answer(frame, slot.queue);
            }
        } else {
            self.faults.refused(answer.code, frame);
        }
        Some(index)
    }

    fn next_phase(&mut self, out: &mut Outbound<'_>) {
        let now_ns = out.now().mono_ns;
        let phase_ns = now_ns.saturating_sub(self.phase_started_ns);
        let Settings { messages, seconds, warmup, .. } = *self.settings;
        self.phase = match self.phase {
            Phase::WarmUp if self.answered >= warmup => {
                self.read_usage(None);
                Phase::Measure
            }
            Phase::Measure
                if seconds.map_or(self.answered >= messages, |limit| {
                    Duration::from_nanos(phase_ns) >= Duration::from_secs(limit)
                }) =>
            {
                self.read_usage(Some(phase_ns));
                Phase::Drain
            }
            Phase::Drain if self.waiting == 0 || Duration::from_nanos(phase_ns) >= DRAIN => {
                out.finish(now_ns);
                Phase::Done
            }
            _ => return,
        };
        self.phase_started_ns = now_ns;
        self.answered = 0;
        self.stored = 0;
    }

    fn read_usage(&mut self, phase_ns: Option<u64>) {
        let pid = self.settings.target.broker_pid;
        match Usage::read(pid) {
            Ok(usage) => {
                if let Some(ns) = phase_ns {
                    let seconds = Duration::from_nanos(ns).as_secs_f64();
                    self.cost = Some(Cost::new(&usage.since(&self.usage), self.stored, seconds, pid));
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
        self.answered_ns = out.now().mono_ns;
        for index in connection * self.settings.in_flight..(connection + 1) * self.settings.in_flight {
            self.slots[index as usize].connection = connection;
            self.send(index, out);
        }
    }

    fn on_frame(&mut self, _conn: ConnId, frame: &[u8], out: &mut Outbound<'_>) {
        let answered = self.answer(frame, out.now().mono_ns);
        if let (Some(index), Phase::WarmUp | Phase::Measure) = (answered, self.phase) {
            self.send(index, out);
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
        self.next_phase(out);
        let silent = Duration::from_nanos(now_ns.saturating_sub(self.answered_ns));
        if self.waiting > 0 && silent > SILENCE {
            self.fail(format!("no answer for {} s, {} sends are waiting", SILENCE.as_secs(), self.waiting));
        }
        if self.failure.is_some() {
            self.phase = Phase::Done;
            out.finish(now_ns);
        }
        if self.phase == Phase::Done { None } else { Some(now_ns + 100_000_000) }
    }
}

/// The full check of each answer.
struct Check {
    queues: Vec<QueueOffsets>,
    answers: u64,
    bad_answers: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Verified {
    pub answers: u64,
    /// Answers without a well-formed message id, or of another queue than asked for.
    pub bad_answers: u64,
    pub repeated: u64,
    /// Offsets between the queue's end at the start and the highest answer that no answer named.
    pub missing: u64,
}

impl Verified {
    fn faults(&self) -> u64 {
        self.bad_answers + self.repeated + self.missing
    }
}

impl Check {
    fn new(client: &mut Client, target: &Target) -> io::Result<Self> {
        let queues = (0..target.queues)
            .map(|queue| Ok(QueueOffsets { first: client.max_offset(&target.topic, queue)?, ..Default::default() }));
        Ok(Self { queues: queues.collect::<io::Result<_>>()?, answers: 0, bad_answers: 0 })
    }

    fn answer(&mut self, frame: &[u8], queue: u32) {
        self.answers += 1;
        match checked_offset(frame, queue) {
            Some(offset) => self.queues[queue as usize].add(offset),
            None => self.bad_answers += 1,
        }
    }

    fn verified(&self) -> Verified {
        Verified {
            answers: self.answers,
            bad_answers: self.bad_answers,
            repeated: self.queues.iter().map(|queue| queue.repeated).sum(),
            missing: self.queues.iter().map(QueueOffsets::missing).sum(),
        }
    }
}

/// The queue offset of an answer in which everything an official client reads is as it should be.
fn checked_offset(frame: &[u8], queue: u32) -> Option<u64> {
    let answer = frame::decode(frame).ok()?;
    let id = answer.ext.get("msgId")?;
    let is_id = matches!(id.len(), 32 | 56) && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'A'..=b'F'));
    if !is_id || !answer.is_response || answer.ext_number("queueId").ok()? != i64::from(queue) {
        return None;
    }
    u64::try_from(answer.ext_number("queueOffset").ok()?).ok()
}

/// Which offsets of a queue were given to us, from the first free one on.
#[derive(Default)]
struct QueueOffsets {
    first: u64,
    seen: Vec<bool>,
    /// Given twice, or below `first` and so given to somebody before.
    repeated: u64,
}

impl QueueOffsets {
    fn add(&mut self, offset: u64) {
        let Some(index) = offset.checked_sub(self.first) else {
            self.repeated += 1;
            return;
        };
        let index = index as usize;
        if index >= self.seen.len() {
            self.seen.resize(index + 1, false);
        }
        self.repeated += u64::from(mem::replace(&mut self.seen[index], true));
    }

    fn missing(&self) -> u64 {
        self.seen.iter().filter(|seen| !**seen).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_and_repetitions_of_queue_offsets_are_counted() {
        // first, offsets, repeated, missing
        for (first, offsets, repeated, missing) in [
            (0, &[0, 1, 2][..], 0, 0),
            (5, &[7, 5, 6][..], 0, 0),
            (5, &[5, 5, 7][..], 1, 1),
            (5, &[4, 5][..], 1, 0),
            (9, &[][..], 0, 0),
        ] {
            let mut queue = QueueOffsets { first, ..Default::default() };
            offsets.iter().for_each(|offset| queue.add(*offset));
            assert_eq!((queue.repeated, queue.missing()), (repeated, missing), "{first} {offsets:?}");
        }
    }

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
