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
//!
//! With more than one thread (`--threads`, [`super::crew`]) each sends its share; percentiles are of all answers.

mod verify;

use super::crew::{Counts, Crew, Phase};
use super::schedule::{Arrivals, Schedule};
use super::stored::{self, Stored};
use super::{
    BURST_MAX, Cost, DRAIN, Faults, Payload, SILENCE, SendKind, TICK_NS, Target, opaque, reactor_config, run_id,
};
use crate::environment::BrokerFacts;
use crate::frame::{OPAQUE_BASE, OPAQUE_BITS, Scanner, code};
use crate::latency::{self, Latency, Second, Summary, Timeline};
use crate::process::{Usage, Watch};
use crate::template::SendTemplate;
use ringmq_net::reactor::{ConnId, Outbound, Port, Reactor, Service};
use serde::Serialize;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::thread;
use std::time::Duration;
use verify::{Check, Verified};

/// All connections are open and quiet before the first request of an open loop is due.
const START_NS: u64 = 20_000_000;
/// A thread that follows looks so often at what phase it is.
const FOLLOW_NS: u64 = 5_000_000;

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
    /// How the requests of an open loop follow each other
    #[arg(long, value_enum, default_value = "even")]
    pub arrivals: Arrivals,
    /// Measured messages, after the warm-up
    #[arg(long, default_value_t = 1_000_000, conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..))]
    pub messages: u64,
    /// Measured time instead of a count
    #[arg(long, visible_alias = "duration", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: Option<u64>,
    /// Messages before the measured part
    #[arg(long, default_value_t = 100_000)]
    pub warmup: u64,
    /// Threads of this client, which share the connections; more where one is busy all the time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: u32,
    /// An open loop that is later than this is given up
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub late_seconds_max: u64,
    /// Ask for no answers; needs a rate
    #[arg(long, requires = "rate", conflicts_with = "verify")]
    pub one_way: bool,
    /// Read each answer in full and check message ids, queues and that the queue offsets have no gap and no
    /// repetition (costs the client time, and needs topics nobody else writes to and one thread)
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
    pub timeline: Vec<Second>,
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
    crew: &'a Crew,
    watch: &'a Watch,
    /// Which of the threads; 0 leads.
    thread: u32,
    /// Of this thread.
    connection_count: u32,
    templates: Vec<SendTemplate>,
    connections: Vec<ConnId>,
    slots: Vec<Slot>,
    slot_bits: u32,
    /// Open loop: the slots that wait for nothing.
    free: VecDeque<u32>,
    /// Open loop: from the first turn with all connections of all threads on.
    schedule: Option<Schedule>,
    /// Of this thread, and what of it the others know.
    counts: Counts,
    told: Counts,
    /// Of all threads, when this phase began.
    phase_counts: Counts,
    waiting: u64,
    scanner: Scanner,
    latency: Latency,
    timeline: Timeline,
    schedule_delay: Latency,
    faults: Faults,
    check: Option<Check>,
    phase: Phase,
    phase_started_ns: u64,
    heard_ns: u64,
    usage: Usage,
    cost: Option<Cost>,
    failure: Option<io::Error>,
}

/// What one thread brings home.
struct Share {
    latency: Latency,
    schedule_delay: Latency,
    timeline: Vec<Second>,
    faults: Faults,
    verified: Option<Verified>,
    /// Of the thread that leads.
    cost: Option<Cost>,
}

/// Runs to the end.
///
/// # Errors
/// The broker cannot be reached, does not create the topic, closes every connection or falls silent.
pub fn run(settings: &Settings) -> io::Result<Report> {
    let target = &settings.target;
    if settings.threads > target.connections {
        let Target { connections, .. } = target;
        return Err(io::Error::other(format!("{} threads share {connections} connections", settings.threads)));
    }
    if settings.verify && settings.threads > 1 {
        return Err(io::Error::other("queue offsets are verified by one thread"));
    }
    let broker = target.facts();
    let watch = target.watch(&broker);
    let mut client = target.create_topics()?;
    let start = stored::Start::read(&mut client, target)?;
    let check = if settings.verify { Some(Check::new(&mut client, target, settings.batch)?) } else { None };
    drop(client);
    let crew = Crew::new(settings.threads);
    let run_id = run_id();
    let member = |thread: u32, check, count: &mut dyn FnMut() -> io::Result<()>| {
        let producer = || Producer::new(settings, &crew, &watch, thread, run_id, check);
        run_thread(settings, &crew, producer, count)
    };
    let mut stored = None;
    let mut count = || {
        let Some(start) = &start else { return Ok(()) };
        let messages = u64::from(settings.batch);
        let Counts { sent, acknowledged, .. } = crew.counts();
        let (sent, acknowledged) = (sent * messages, acknowledged * messages);
        let due = if settings.one_way { sent } else { acknowledged };
        stored = Some(start.compare(target, sent, acknowledged, due)?);
        Ok(())
    };
    let shares: Vec<Share> = thread::scope(|scope| {
        let member = &member;
        let others: Vec<_> =
            (1..settings.threads).map(|thread| scope.spawn(move || member(thread, None, &mut || Ok(())))).collect();
        let first = member(0, check, &mut count);
        let others = others.into_iter().map(|other| other.join().expect("a thread of the bench does not panic"));
        std::iter::once(first).chain(others).collect::<io::Result<_>>()
    })?;
    report(settings, broker, shares, stored)
}

/// One-way sends must not be cut off: the connections of all threads stay open until they are counted.
fn run_thread<'a>(
    settings: &'a Settings,
    crew: &Crew,
    producer: impl FnOnce() -> Producer<'a>,
    count: &mut dyn FnMut() -> io::Result<()>,
) -> io::Result<Share> {
    let mut reactor = None;
    let mut outcome = drive(settings, producer(), &mut reactor);
    if outcome.is_err() {
        crew.fail();
    }
    crew.meet();
    if outcome.is_ok()
        && let Err(error) = count()
    {
        outcome = Err(error);
    }
    crew.meet();
    outcome
}

fn drive<'a>(
    settings: &'a Settings,
    mut producer: Producer<'a>,
    reactor: &mut Option<Reactor<Producer<'a>>>,
) -> io::Result<Share> {
    if settings.rate.is_some() {
        // Timers of this thread fire when they are due, not up to 50 µs later.
        nix::sys::prctl::set_timerslack(1)?;
    }
    let reactor = reactor.insert(Reactor::new(reactor_config()).map_err(io::Error::other)?);
    for _ in 0..producer.connection_count {
        reactor.adopt(settings.target.connect()?, Port(u8::MAX), &mut producer);
    }
    reactor.run(&mut producer).map_err(io::Error::other)?;
    producer.share()
}

fn report(settings: &Settings, broker: BrokerFacts, shares: Vec<Share>, stored: Option<Stored>) -> io::Result<Report> {
    let mut shares = shares.into_iter();
    let mut all = shares.next().expect("there is at least one thread");
    for share in shares {
        all.latency.add(&share.latency);
        all.schedule_delay.add(&share.schedule_delay);
        all.faults.add(&share.faults);
        latency::merge(&mut all.timeline, &share.timeline);
    }
    let cost = all.cost.ok_or_else(|| io::Error::other("the run ended before its measured part did"))?;
    Ok(Report {
        broker,
        cost: Cost { client_threads: settings.threads, ..cost },
        ack: (!settings.one_way).then(|| all.latency.summary()),
        schedule_delay: settings.rate.map(|_| all.schedule_delay.summary()),
        faults: all.faults,
        stored,
        verified: all.verified,
        timeline: all.timeline,
    })
}

impl<'a> Producer<'a> {
    fn new(
        settings: &'a Settings,
        crew: &'a Crew,
        watch: &'a Watch,
        thread: u32,
        run_id: u64,
        check: Option<Check>,
    ) -> Self {
        let target = &settings.target;
        let connection_count = crew.connections(thread, target.connections);
        let slot_count = (connection_count * settings.in_flight) as usize;
        let kind = SendKind { messages: settings.batch, is_one_way: settings.one_way, ..SendKind::single(run_id) };
        let live = target.live("produce").filter(|_| thread == 0);
        Self {
            settings,
            crew,
            watch,
            thread,
            connection_count,
            templates: target.templates(&settings.payload, &kind),
            connections: Vec::new(),
            slots: vec![Slot::default(); slot_count],
            slot_bits: slot_count.next_power_of_two().trailing_zeros(),
            free: VecDeque::new(),
            schedule: None,
            counts: Counts::default(),
            told: Counts::default(),
            phase_counts: Counts::default(),
            waiting: 0,
            scanner: Scanner::default(),
            latency: Latency::default(),
            timeline: Timeline::new(live),
            schedule_delay: Latency::default(),
            faults: Faults::default(),
            check,
            phase: Phase::WarmUp,
            phase_started_ns: 0,
            heard_ns: 0,
            usage: Usage::default(),
            cost: None,
            failure: None,
        }
    }

    fn share(mut self) -> io::Result<Share> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        self.faults.unanswered += self.waiting;
        Ok(Share {
            latency: self.latency,
            schedule_delay: self.schedule_delay,
            timeline: self.timeline.finish(),
            faults: self.faults,
            verified: self.check.as_ref().map(Check::verified),
            cost: self.cost,
        })
    }

    /// Of the next request.
    fn number(&self) -> u64 {
        self.counts.sent * u64::from(self.crew.thread_count) + u64::from(self.thread)
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
        let number = self.number();
        let Some(outbox) = out.buffer(self.connections[connection as usize]) else { return false };
        let Payload { body, seed, .. } = &self.settings.payload;
        let serial = number * u64::from(self.settings.batch);
        let template = (number % self.templates.len() as u64) as usize;
        self.templates[template].append(outbox, opaque, serial, wall_ms, body.size(*seed, number));
        self.counts.sent += 1;
        true
    }

    fn send(&mut self, index: u32, from_ns: u64, out: &mut Outbound<'_>) {
        let Slot { connection, generation, .. } = self.slots[index as usize];
        let generation = generation.wrapping_add(1);
        let number = self.number();
        if self.append(connection, opaque(generation, index, self.slot_bits), out) {
            self.slots[index as usize] = Slot { connection, generation, number, from_ns, is_waiting: true };
            self.waiting += 1;
        }
    }

    /// Open loop: sends what is due, and gives the time of the next turn.
    fn send_due(&mut self, schedule: &Schedule, out: &mut Outbound<'_>) -> u64 {
        let now_ns = out.now().mono_ns;
        let warmup = self.settings.warmup_requests();
        for _ in 0..BURST_MAX {
            let number = self.number();
            let intended_ns = schedule.intended_ns(number);
            if number >= self.total() || intended_ns > now_ns {
                return intended_ns;
            }
            if self.settings.one_way {
                let connection = (self.counts.sent % u64::from(self.connection_count)) as u32;
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
            if number >= warmup && self.number() > number {
                self.schedule_delay.record(now_ns - intended_ns);
                if self.settings.one_way {
                    self.timeline.record(now_ns, None, u64::from(self.settings.batch));
                }
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
        self.counts.answered += 1;
        self.heard_ns = now_ns;
        if answer.code != code::SUCCESS {
            self.faults.refused(answer.code, frame);
            return Some(index);
        }
        self.counts.acknowledged += 1;
        if self.is_measured(number) {
            let (ns, messages) = (now_ns.saturating_sub(from_ns), u64::from(self.settings.batch));
            latency::record(&mut self.latency, &mut self.timeline, now_ns, ns, messages);
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
        let is_leading = self.thread == 0;
        self.phase = match self.phase {
            Phase::WarmUp if self.is_warm(now_ns) => {
                if is_leading {
                    self.read_usage(None);
                }
                self.timeline.begin(now_ns);
                Phase::Measure
            }
            Phase::Measure if self.is_measure_over(phase_ns) => {
                if is_leading {
                    self.read_usage(Some(phase_ns));
                }
                Phase::Drain
            }
            Phase::Drain if self.waiting == 0 || Duration::from_nanos(phase_ns) >= DRAIN => {
                self.charge_unanswered(now_ns);
                out.finish(now_ns + DRAIN.as_nanos() as u64);
                Phase::Done
            }
            _ => return,
        };
        if is_leading {
            self.crew.set_phase(self.phase);
        }
        self.phase_started_ns = now_ns;
        self.phase_counts = self.crew.counts();
    }

    /// The thread that leads knows by itself; the others see it.
    fn is_warm(&self, now_ns: u64) -> bool {
        let warmup = self.settings.warmup_requests();
        match (self.settings.rate, &self.schedule) {
            _ if self.thread > 0 => self.crew.phase() >= Phase::Measure,
            (None, _) => self.crew.counts().answered >= warmup,
            (Some(_), None) => false,
            // Without a warm-up the wait for the first request is no part of the measure.
            (Some(_), Some(schedule)) => now_ns >= schedule.start_ns && self.number() >= warmup,
        }
    }

    /// In the open loop each thread sends its share to the end.
    fn is_measure_over(&self, phase_ns: u64) -> bool {
        match (self.settings.rate, self.settings.seconds) {
            (Some(_), _) => self.number() >= self.total() || self.faults.unsent > 0,
            _ if self.thread > 0 => self.crew.phase() >= Phase::Drain,
            (None, Some(seconds)) => Duration::from_nanos(phase_ns) >= Duration::from_secs(seconds),
            (None, None) => {
                self.crew.counts().answered - self.phase_counts.answered >= self.settings.measured_requests()
            }
        }
    }

    /// Gives up an open loop that is so late that it only measures its own queue.
    fn give_up_if_late(&mut self, schedule: &Schedule, now_ns: u64) {
        let late = Duration::from_nanos(now_ns.saturating_sub(schedule.intended_ns(self.number())));
        if self.number() < self.total() && late > Duration::from_secs(self.settings.late_seconds_max) {
            let due = self
                .numbers_to_come()
                .take_while(|number| *number < self.total() && schedule.intended_ns(*number) <= now_ns);
            self.faults.unsent = due.count() as u64;
        }
    }

    fn numbers_to_come(&self) -> impl Iterator<Item = u64> + use<> {
        (self.number()..).step_by(self.crew.thread_count as usize)
    }

    /// Requests that got no answer, or never left, count with the age they have reached.
    fn charge_unanswered(&mut self, now_ns: u64) {
        let Some(schedule) = self.schedule.clone() else { return };
        if self.settings.one_way {
            return;
        }
        let waiting: Vec<u64> = self.slots.iter().filter(|slot| slot.is_waiting).map(|slot| slot.number).collect();
        let unsent: Vec<u64> = self.numbers_to_come().take(self.faults.unsent as usize).collect();
        for number in waiting.into_iter().chain(unsent).filter(|number| *number >= self.settings.warmup_requests()) {
            self.latency.record(now_ns.saturating_sub(schedule.intended_ns(number)));
        }
    }

    fn read_usage(&mut self, phase_ns: Option<u64>) {
        match self.watch.read() {
            Ok(usage) => {
                if let Some(ns) = phase_ns {
                    let seconds = Duration::from_nanos(ns).as_secs_f64();
                    let counts = self.crew.counts();
                    let requests = if self.settings.one_way {
                        counts.sent.saturating_sub(self.settings.warmup_requests())
                    } else {
                        counts.acknowledged - self.phase_counts.acknowledged
                    };
                    let messages = requests * u64::from(self.settings.batch);
                    self.cost = Some(Cost::new(&usage.since(&self.usage), messages, seconds, self.watch.broker_pid));
                }
                self.usage = usage;
            }
            Err(error) => self.failure = Some(error),
        }
    }

    /// True with all connections of this thread open; the crew is told once.
    fn is_ready(&mut self) -> bool {
        if !self.free.is_empty() || self.schedule.is_some() {
            return true;
        }
        if self.connections.len() < self.connection_count as usize {
            return false;
        }
        // Connection by connection in turn.
        let depth = self.settings.in_flight;
        self.free = (0..depth).flat_map(|at| (0..self.connection_count).map(move |c| c * depth + at)).collect();
        self.crew.ready();
        true
    }

    fn fail(&mut self, text: String) {
        self.failure.get_or_insert(io::Error::other(text));
    }
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
        if self.faults.connections_closed == u64::from(self.connection_count) {
            self.fail("the broker closed every connection".into());
        }
    }

    fn on_turn(&mut self, out: &mut Outbound<'_>) -> Option<u64> {
        let now_ns = out.now().mono_ns;
        let mut next_ns = now_ns + TICK_NS;
        if let (Some(rate), true) = (self.settings.rate, self.is_ready()) {
            if self.schedule.is_none() {
                self.schedule = self.crew.start_ns(self.thread, now_ns + START_NS).map(|start_ns| {
                    let Settings { batch, arrivals, payload, .. } = self.settings;
                    Schedule::new(start_ns, rate, u64::from(*batch), *arrivals, payload.seed)
                });
                next_ns = now_ns + 1_000_000;
            }
            if let (Some(schedule), Phase::WarmUp | Phase::Measure) = (self.schedule.clone(), self.phase) {
                next_ns = next_ns.min(self.send_due(&schedule, out));
                self.give_up_if_late(&schedule, now_ns);
            }
        }
        self.crew.tell(&mut self.told, self.counts);
        self.next_phase(out);
        let silent = Duration::from_nanos(now_ns.saturating_sub(self.heard_ns));
        if self.waiting > 0 && silent > SILENCE {
            self.fail(format!("no answer for {} s, {} requests are waiting", SILENCE.as_secs(), self.waiting));
        }
        if self.thread > 0 {
            // To see soon what phase it is.
            next_ns = next_ns.min(now_ns + FOLLOW_NS);
        }
        if self.crew.has_failed() && self.phase != Phase::Done {
            self.fail("another thread of this client failed".into());
        }
        if self.failure.is_some() {
            self.crew.fail();
            self.phase = Phase::Done;
            out.finish(now_ns);
        }
        if self.phase == Phase::Done { None } else { Some(next_ns) }
    }
}
