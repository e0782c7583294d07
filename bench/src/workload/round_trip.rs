//! Sends and pulls at once, in one thread: what `e2e`, `mixed` and `delay` have in common. Messages leave by a schedule
//! (open loop) or as answers come (closed loop), and consumers with one held pull for each queue take them back.
//!
//! ```text
//! from ─ delay of the schedule ─ sent ─────────── acknowledged        ack = acknowledged − from
//!  └───────────────────────────────────── pulled               end to end = pulled − from
//!                                 sent ── delay of its level ── pulled      lateness = pulled − sent − delay
//! ```
//!
//! In the open loop `from` is the *intended* time. A broker that stalls for 100 ms is charged for all messages that
//! were due in that time, not for the one that happened to be under way (coordinated omission), and a client that
//! comes late charges itself; how late it was stands beside. In the closed loop `from` is the turn that sent it.
//!
//! The body says which run a message belongs to and its number, so what is lost, comes twice or is foreign is seen:
//! | run id 8 | number 8 | filler |

use super::crew::Phase;
use super::schedule::{Arrivals, Schedule};
use super::{BURST_MAX, Cost, DRAIN, Faults, Payload, SILENCE, SendKind, TICK_NS, Target, reactor_config, run_id};
use crate::environment::BrokerFacts;
use crate::frame::{self, OPAQUE_BASE, OPAQUE_BITS, Pulled, Scanner, Seen, code};
use crate::latency::{self, Latency, Second, Summary, Timeline};
use crate::process::{Usage, Watch};
use crate::template::SendTemplate;
use ringmq_net::reactor::{ConnId, Outbound, Port, Reactor, Service};
use serde::Serialize;
use std::fmt;
use std::io;
use std::mem;
use std::time::Duration;

const STAMP_BYTES: usize = 16;
/// As the official push consumer asks for.
const SUSPEND_MS: u32 = 15_000;
/// The broker may hold (suspend) the request; the subscription stands in it.
const SYS_FLAG: u32 = (1 << 1) | (1 << 2);
/// A pull that was refused is tried again after this.
const RETRY_NS: u64 = 100_000_000;
/// The first pulls are held by the broker before the first message is due.
const START_NS: u64 = 100_000_000;
/// A delay counts from the store's clock in whole milliseconds, which is behind ours by up to one.
const CLOCK_NS: u64 = 1_000_000;

#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// Messages a second.
    Open { rate: u64, arrivals: Arrivals },
    /// On each connection that sends.
    Closed { in_flight: u32 },
}

/// A level of RocketMQ's delays, and how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    pub level: u32,
    pub ns: u64,
}

/// What a workload wants.
pub struct Plan<'a> {
    pub name: &'a str,
    pub target: &'a Target,
    pub payload: &'a Payload,
    pub pace: Pace,
    /// Connections that pull.
    pub consumers: u32,
    /// Messages a pull asks for.
    pub pull: u32,
    pub warmup: Duration,
    pub measured: Duration,
    /// Taken in turn; none for messages that are due at once.
    pub delays: &'a [Delay],
}

impl Plan<'_> {
    fn count(rate: u64, time: Duration) -> u64 {
        rate * time.as_secs()
    }

    /// The first measured message of an open loop, and the one after its last.
    fn numbers(&self) -> Option<(u64, u64)> {
        match self.pace {
            Pace::Open { rate, .. } => {
                Some((Self::count(rate, self.warmup), Self::count(rate, self.warmup + self.measured)))
            }
            Pace::Closed { .. } => None,
        }
    }

    fn delay(&self, number: u64) -> Option<Delay> {
        let queues = u64::from(self.target.queues * self.target.topic_count);
        let turn = (number / queues) as usize;
        self.delays.get(turn.checked_rem(self.delays.len())?).copied()
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub broker: BrokerFacts,
    pub cost: Cost,
    pub ack: Summary,
    pub end_to_end: Summary,
    /// How much later than intended the sends of an open loop left.
    pub schedule_delay: Option<Summary>,
    /// How much later than its delay a delayed message came.
    pub lateness: Option<Summary>,
    /// Delayed messages that came before their time.
    pub early: u64,
    /// Of the measured part.
    pub pulled_per_s: f64,
    /// The most that was acknowledged and not yet pulled.
    pub backlog_max: u64,
    /// Over the whole run with its warm-up.
    pub acknowledged: u64,
    pub pulled: u64,
    /// Acknowledged and never pulled.
    pub lost: u64,
    pub repeated: u64,
    /// Pulled messages that this run did not send.
    pub foreign: u64,
    pub faults: Faults,
    pub ack_timeline: Vec<Second>,
    pub end_to_end_timeline: Vec<Second>,
}

impl Report {
    pub fn is_good(&self) -> bool {
        self.faults.is_empty() && self.lost + self.repeated + self.foreign + self.early == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { acknowledged, pulled, lost, repeated, foreign, .. } = self;
        writeln!(f, "promise   {}", self.broker)?;
        write!(f, "{}", self.cost)?;
        writeln!(f, "ack       {}", self.ack)?;
        writeln!(f, "e2e       {}", self.end_to_end)?;
        if let Some(lateness) = &self.lateness {
            writeln!(f, "lateness  {lateness}; {} came early", self.early)?;
        }
        if let Some(delay) = &self.schedule_delay {
            writeln!(f, "schedule  {delay} late")?;
        }
        writeln!(f, "pulled    {:.0} msg/s, at most {} behind", self.pulled_per_s, self.backlog_max)?;
        writeln!(
            f,
            "messages  {acknowledged} acknowledged, {pulled} pulled: {lost} lost, {repeated} twice, {foreign} foreign"
        )?;
        write!(f, "{}", self.faults)
    }
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
    from_ns: u64,
    /// How much later it was sent; what does not fit is the most that does.
    sent_late_ns: u32,
    is_measured: bool,
    is_answered: bool,
    is_acknowledged: bool,
    is_pulled: bool,
}

struct RoundTrip<'a> {
    plan: &'a Plan<'a>,
    watch: Watch,
    run_id: u64,
    /// For each delay those of all queues.
    templates: Vec<SendTemplate>,
    topics: Vec<String>,
    /// The first pull, the others send.
    connections: Vec<ConnId>,
    scanner: Scanner,
    start_ns: u64,
    /// Of an open loop.
    schedule: Option<Schedule>,
    phase: Phase,
    phase_started_ns: u64,
    /// By number.
    fates: Vec<Fate>,
    answered: u64,
    acknowledged: u64,
    pulled: u64,
    /// Acknowledged or pulled, but not both yet.
    halfway: u64,
    backlog_max: u64,
    repeated: u64,
    foreign: u64,
    early: u64,
    cursors: Vec<Cursor>,
    ack: Latency,
    end_to_end: Latency,
    lateness: Latency,
    schedule_delay: Latency,
    ack_timeline: Timeline,
    end_to_end_timeline: Timeline,
    heard_ns: u64,
    faults: Faults,
    /// When the measured part began.
    from: Counted,
    cost: Option<Cost>,
    pulled_per_s: f64,
    failure: Option<io::Error>,
}

#[derive(Default)]
struct Counted {
    usage: Usage,
    acknowledged: u64,
    pulled: u64,
}

/// Runs to the end.
///
/// # Errors
/// The broker cannot be reached, does not create the topic, closes connections or falls silent.
pub fn run(plan: &Plan<'_>) -> io::Result<Report> {
    let target = plan.target;
    let body_bytes = plan.payload.body.min();
    if body_bytes < STAMP_BYTES {
        return Err(io::Error::other(format!("a body holds a stamp of {STAMP_BYTES} bytes, and one has {body_bytes}")));
    }
    if let Some((_, total)) = plan.numbers().filter(|(_, total)| *total > u64::from(PULL_BIT)) {
        return Err(io::Error::other(format!("{total} messages in one run, limit {PULL_BIT}")));
    }
    let broker = target.facts();
    let watch = target.watch(&broker);
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
    let mut service = RoundTrip {
        plan,
        watch,
        run_id,
        templates: templates(plan, run_id),
        topics,
        connections: Vec::new(),
        scanner: Scanner::default(),
        start_ns: 0,
        schedule: None,
        phase: Phase::WarmUp,
        phase_started_ns: 0,
        // None is moved in an open loop: a copy of megabytes would be a latency.
        fates: Vec::with_capacity(plan.numbers().map_or(1 << 20, |(_, total)| total as usize)),
        answered: 0,
        acknowledged: 0,
        pulled: 0,
        halfway: 0,
        backlog_max: 0,
        repeated: 0,
        foreign: 0,
        early: 0,
        cursors,
        ack: Latency::default(),
        end_to_end: Latency::default(),
        lateness: Latency::default(),
        schedule_delay: Latency::default(),
        ack_timeline: Timeline::new(target.live(plan.name)),
        end_to_end_timeline: Timeline::new(None),
        heard_ns: 0,
        faults: Faults::default(),
        from: Counted::default(),
        cost: None,
        pulled_per_s: 0.0,
        failure: None,
    };
    // Timers of this thread fire when they are due, not up to 50 µs later.
    nix::sys::prctl::set_timerslack(1)?;
    let mut reactor = Reactor::new(reactor_config()).map_err(io::Error::other)?;
    for _ in 0..plan.consumers + target.connections {
        reactor.adopt(target.connect()?, Port(u8::MAX), &mut service);
    }
    reactor.run(&mut service).map_err(io::Error::other)?;
    service.report(broker)
}

fn templates(plan: &Plan<'_>, run_id: u64) -> Vec<SendTemplate> {
    let of = |properties: &[(&str, &str)]| {
        let kind = SendKind { properties, ..SendKind::single(run_id) };
        plan.target.templates(plan.payload, &kind)
    };
    if plan.delays.is_empty() {
        return of(&[]);
    }
    plan.delays.iter().flat_map(|delay| of(&[("DELAY", &delay.level.to_string())])).collect()
}

impl RoundTrip<'_> {
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
            schedule_delay: self.schedule.map(|_| self.schedule_delay.summary()),
            lateness: (!self.plan.delays.is_empty()).then(|| self.lateness.summary()),
            early: self.early,
            pulled_per_s: self.pulled_per_s,
            backlog_max: self.backlog_max,
            acknowledged: self.acknowledged,
            pulled: self.pulled,
            lost: self.fates.iter().filter(|fate| fate.is_acknowledged && !fate.is_pulled).count() as u64,
            repeated: self.repeated,
            foreign: self.foreign,
            faults: self.faults,
            ack_timeline: self.ack_timeline.finish(),
            end_to_end_timeline: self.end_to_end_timeline.finish(),
        })
    }

    fn sent(&self) -> u64 {
        self.fates.len() as u64
    }

    /// Of an open loop by the number, so that none is left out whenever it is sent.
    fn is_measured(&self, number: u64) -> bool {
        match self.plan.numbers() {
            Some((first, _)) => number >= first,
            None => self.phase == Phase::Measure,
        }
    }

    /// The next message, on a connection that may be gone.
    fn send(&mut self, connection: ConnId, from_ns: u64, out: &mut Outbound<'_>) {
        let now = out.now();
        let number = self.sent();
        let Payload { body, seed, .. } = &self.plan.payload;
        let queues = self.cursors.len() as u64;
        // For each delay, one for each queue.
        let index = (number % self.templates.len() as u64) as usize;
        debug_assert_eq!(index as u64 % queues, number % queues);
        let is_measured = self.is_measured(number);
        let sent_late_ns = u32::try_from(now.mono_ns - from_ns).unwrap_or(u32::MAX);
        self.fates.push(Fate { from_ns, sent_late_ns, is_measured, ..Fate::default() });
        let Some(outbox) = out.buffer(connection) else { return };
        let body_bytes = body.size(*seed, number);
        let body = self.templates[index].append(outbox, send_opaque(number), number, now.wall_ms, body_bytes);
        body[..8].copy_from_slice(&self.run_id.to_be_bytes());
        body[8..16].copy_from_slice(&number.to_be_bytes());
        if is_measured && self.schedule.is_some() {
            self.schedule_delay.record(now.mono_ns - from_ns);
        }
    }

    /// Open loop: sends what is due, and gives the time of the next.
    fn send_due(&mut self, schedule: &Schedule, total: u64, out: &mut Outbound<'_>) -> u64 {
        let now_ns = out.now().mono_ns;
        for number in self.sent()..total.min(self.sent() + BURST_MAX) {
            let intended_ns = schedule.intended_ns(number);
            if intended_ns > now_ns {
                break;
            }
            let index = self.plan.consumers as usize + (number % u64::from(self.plan.target.connections)) as usize;
            self.send(self.connections[index], intended_ns, out);
        }
        schedule.intended_ns(self.sent())
    }

    /// Closed loop: fills every connection.
    fn send_first(&mut self, in_flight: u32, out: &mut Outbound<'_>) {
        let now_ns = out.now().mono_ns;
        for _ in 0..in_flight {
            for index in self.plan.consumers as usize..self.connections.len() {
                self.send(self.connections[index], now_ns, out);
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
            ("maxMsgNums", &self.plan.pull.to_string()),
            ("queueId", &cursor.queue.to_string()),
            ("queueOffset", &cursor.offset.to_string()),
            ("subVersion", "0"),
            ("subscription", "*"),
            ("suspendTimeoutMillis", &SUSPEND_MS.to_string()),
            ("sysFlag", &SYS_FLAG.to_string()),
            ("topic", &self.topics[cursor.topic]),
        ];
        if let Some(outbox) = out.buffer(self.connections[(index % self.plan.consumers) as usize]) {
            let header = self.plan.target.header;
            outbox.extend_from_slice(&frame::request(header, code::PULL_MESSAGE, opaque, &ext, &[]));
        }
    }

    fn on_send_answer(&mut self, answer: &Seen<'_>, frame: &[u8], now_ns: u64) {
        let number = u64::from(answer.opaque & (PULL_BIT - 1));
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
        if fate.is_measured {
            let ns = now_ns.saturating_sub(fate.from_ns);
            latency::record(&mut self.ack, &mut self.ack_timeline, now_ns, ns, 1);
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
        let Fate { from_ns, sent_late_ns, is_measured, .. } = *fate;
        if is_measured {
            let ns = now_ns.saturating_sub(from_ns);
            latency::record(&mut self.end_to_end, &mut self.end_to_end_timeline, now_ns, ns, 1);
        }
        if let Some(delay) = self.plan.delay(number) {
            let due_ns = from_ns + u64::from(sent_late_ns) + delay.ns;
            self.early += u64::from(now_ns + CLOCK_NS < due_ns);
            if is_measured {
                self.lateness.record(now_ns.saturating_sub(due_ns));
            }
        }
    }

    fn next_phase(&mut self, out: &mut Outbound<'_>) {
        let now_ns = out.now().mono_ns;
        let phase = Duration::from_nanos(now_ns.saturating_sub(self.phase_started_ns.max(self.start_ns)));
        let is_begun = now_ns >= self.start_ns;
        let sent = self.sent();
        let numbers = self.plan.numbers();
        self.phase = match self.phase {
            Phase::WarmUp if is_begun && numbers.map_or(phase >= self.plan.warmup, |(first, _)| sent >= first) => {
                self.read_usage(None);
                self.ack_timeline.begin(now_ns);
                self.end_to_end_timeline.begin(now_ns);
                Phase::Measure
            }
            Phase::Measure if numbers.map_or(phase >= self.plan.measured, |(_, total)| sent == total) => {
                self.read_usage(Some(phase));
                Phase::Drain
            }
            Phase::Drain => {
                let is_everything_back = self.answered == sent && self.halfway == 0;
                let delay_ns = self.plan.delays.iter().map(|delay| delay.ns).max().unwrap_or_default();
                if !is_everything_back && phase <= DRAIN + Duration::from_nanos(delay_ns) {
                    return;
                }
                out.finish(now_ns);
                Phase::Done
            }
            _ => return,
        };
        self.phase_started_ns = now_ns;
    }

    fn read_usage(&mut self, phase: Option<Duration>) {
        let usage = match self.watch.read() {
            Ok(usage) => usage,
            Err(error) => {
                self.failure = Some(error);
                return;
            }
        };
        if let Some(phase) = phase {
            let seconds = phase.as_secs_f64();
            let messages = self.acknowledged - self.from.acknowledged;
            let pid = self.watch.broker_pid;
            self.cost = Some(Cost::new(&usage.since(&self.from.usage), messages, seconds, pid));
            self.pulled_per_s = (self.pulled - self.from.pulled) as f64 / seconds;
        }
        self.from = Counted { usage, acknowledged: self.acknowledged, pulled: self.pulled };
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

impl Service for RoundTrip<'_> {
    type Mail = ();

    fn on_open(&mut self, conn: ConnId, out: &mut Outbound<'_>) {
        self.connections.push(conn);
        if self.connections.len() == self.plan.consumers as usize {
            for index in 0..self.cursors.len() as u32 {
                self.pull(index, out);
            }
        }
    }

    fn on_frame(&mut self, conn: ConnId, frame: &[u8], out: &mut Outbound<'_>) {
        let now_ns = out.now().mono_ns;
        self.heard_ns = now_ns;
        match self.scanner.scan(frame) {
            Ok(answer) if answer.opaque & (OPAQUE_BASE | PULL_BIT) == OPAQUE_BASE => {
                self.on_send_answer(&answer, frame, now_ns);
                if self.schedule.is_none() && self.phase <= Phase::Measure {
                    self.send(conn, now_ns, out);
                }
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
        if self.connections.iter().take(self.plan.consumers as usize).any(|pulling| *pulling == conn) {
            self.fail("the broker closed a connection that pulls".into());
        } else if self.faults.connections_closed == u64::from(self.plan.target.connections) {
            self.fail("the broker closed every connection that sends".into());
        }
    }

    fn on_turn(&mut self, out: &mut Outbound<'_>) -> Option<u64> {
        let now_ns = out.now().mono_ns;
        if self.connections.len() < (self.plan.consumers + self.plan.target.connections) as usize {
            return Some(now_ns + 1_000_000);
        }
        let is_first_turn = self.start_ns == 0;
        if is_first_turn {
            self.start_ns = now_ns + START_NS;
        }
        let mut next_ns = now_ns + TICK_NS;
        match (self.plan.pace, self.plan.numbers()) {
            (Pace::Open { rate, arrivals }, Some((_, total))) => {
                let seed = self.plan.payload.seed;
                let schedule =
                    self.schedule.get_or_insert_with(|| Schedule::new(self.start_ns, rate, 1, arrivals, seed)).clone();
                if self.phase <= Phase::Measure {
                    next_ns = next_ns.min(self.send_due(&schedule, total, out));
                }
            }
            (Pace::Closed { in_flight }, _) if is_first_turn => self.send_first(in_flight, out),
            _ => {}
        }
        self.backlog_max = self.backlog_max.max(self.acknowledged.saturating_sub(self.pulled));
        self.next_phase(out);
        for index in 0..self.cursors.len() as u32 {
            if self.cursors[index as usize].retry_at_ns.is_some_and(|at_ns| at_ns <= now_ns) {
                self.pull(index, out);
            }
        }
        let silent = Duration::from_nanos(now_ns.saturating_sub(self.heard_ns.max(self.start_ns)));
        if silent > SILENCE && self.answered < self.sent() {
            self.fail(format!("nothing came back for {} s", SILENCE.as_secs()));
        }
        if self.sent() > u64::from(PULL_BIT) - BURST_MAX {
            self.fail(format!("more than {} messages in one run", self.sent()));
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
