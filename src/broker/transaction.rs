//! Transactions: half messages, their end, and the question to the producer when the end does not come.
//!
//! ```text
//! send TRAN_MSG ──> RMQ_SYS_TRANS_HALF_TOPIC, queue 0      REAL_TOPIC, REAL_QID: where it goes when it is committed
//! END_TRANSACTION   commit:   the message in its own queue, and
//!                   rollback: RMQ_SYS_TRANS_OP_HALF_TOPIC "d", body: the half message's queue offset      one append
//! agent             open for longer than transactionTimeOut ──> CHECK_TRANSACTION_STATE to a producer of its group
//!                   asked transactionCheckMax times, or older than fileReservedTime ──> TRANS_CHECK_MAX_TIME_TOPIC
//! ```
//! What is open is known in memory: half messages from the progress on, without those that op records name. A transaction
//! ends once: the second end of a half message, in whichever shard, is refused. Progress is kept as Java keeps it, as
//! offsets of the group CID_RMQ_SYS_TRANS, never ahead of what the disk has.
//!
//! Unlike Java, an open half message is not stored again for each check: its offsets stay what the producer was told, so
//! that a late end finds it, and a producer that is gone does not fill the log. A check that nobody could be asked does
//! not count. Counts begin anew with the process.
//!
//! A crash inside the append of an end may leave the message without its op record: the start looks for it and the agent
//! writes the op record.
//! Source: EndTransactionProcessor.java, TransactionalMessageServiceImpl.java, TransactionalMessageBridge.java (4.9.7).

use super::again::Again;
use super::offsets::Offsets;
use super::schedule::{self, real_place};
use super::send::push_message_id;
use super::{Answer, Broker, Channel, Push, PushWhat, Refusal, Request};
use ringmq_net::protocol::codes::response;
use ringmq_net::protocol::command::Command;
use ringmq_net::protocol::headers::transaction::{EndTransactionHeader, ResumeCheckHeader, commit_or_rollback};
use ringmq_net::reactor::Now;
use ringmq_storage::append::AppendBatch;
use ringmq_storage::consume_queue::{ConsumeQueue, Entry};
use ringmq_storage::error::RecordError;
use ringmq_storage::record::decode::{Record, Version};
use ringmq_storage::record::layout::sys_flag;
use ringmq_storage::record::{NewRecord, properties};
use ringmq_storage::store::Store;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub const HALF_TOPIC: &str = "RMQ_SYS_TRANS_HALF_TOPIC";
pub const OP_TOPIC: &str = "RMQ_SYS_TRANS_OP_HALF_TOPIC";
/// Where half messages go that nobody ended.
pub const GIVE_UP_TOPIC: &str = "TRANS_CHECK_MAX_TIME_TOPIC";
pub(super) const GROUP: &str = "CID_RMQ_SYS_TRANS";
/// All half messages are in one queue, as in Java.
const QUEUE_ID: i32 = 0;
const TICK_MS: u64 = 1000;
/// While a round of checks goes on.
const ROUND_TICK_MS: u64 = 100;
/// Asked in one tick: what producers and their connections are given at once.
const CHECKS_AT_ONCE: usize = 1000;
const CHECK_BYTES_AT_ONCE: usize = 8 << 20;
const ENTRIES_AT_ONCE: usize = 256;
/// Op records that progress counts as one.
const OPS_PER_CHUNK: u64 = 1024;
/// Last records of each queue that a start looks at for a message whose op record is missing.
const LAST_LOOKED_AT: u64 = 8;

/// A half message that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Half {
    log_offset: u64,
    /// Store time.
    since_ms: u64,
    /// Its own time before the first check.
    immunity_ms: Option<u64>,
    /// How often a producer was asked.
    check_count: u32,
}

/// An end that is in a batch.
#[derive(Clone, Copy, Debug)]
struct Ending {
    /// To be open again if the append fails; `None` while the agent has not read it.
    half: Option<Half>,
    /// Its op record will not stand before this.
    op_from: u64,
}

#[derive(Default)]
struct State {
    /// Half messages below `read_to`, by queue offset.
    open: BTreeMap<u64, Half>,
    read_to: u64,
    /// Ended, from `read_to` on.
    ended: HashSet<u64>,
    ending: BTreeMap<u64, Ending>,
    /// By op queue offset / 1024: the highest half message that those op records name.
    op_chunks: BTreeMap<u64, u64>,
    /// Op records below are in `op_chunks`, or below the progress.
    op_to: u64,
    op_progress: u64,
    /// Ended, but the op record is not in the log yet.
    op_missing: Vec<u64>,
    /// Progress that the disk does not have yet: half, op, the log's end.
    behind: Option<(u64, u64, u64)>,
}

impl State {
    fn is_ended(&self, half: u64) -> bool {
        self.ending.contains_key(&half)
            || if half < self.read_to { !self.open.contains_key(&half) } else { self.ended.contains(&half) }
    }

    /// Whether the caller may end it.
    fn begin(&mut self, half: u64, op_from: u64) -> bool {
        if self.is_ended(half) {
            return false;
        }
        let known = self.open.remove(&half);
        self.ending.insert(half, Ending { half: known, op_from });
        true
    }

    fn finish(&mut self, half: u64, op_offset: Option<u64>) {
        self.ending.remove(&half);
        if half >= self.read_to {
            self.ended.insert(half);
        }
        match op_offset {
            Some(op_offset) => self.note_op(op_offset, half),
            None => self.op_missing.push(half),
        }
    }

    fn note_op(&mut self, op_offset: u64, half: u64) {
        let highest = self.op_chunks.entry(op_offset / OPS_PER_CHUNK).or_default();
        *highest = half.max(*highest);
        self.op_to = self.op_to.max(op_offset + 1);
    }

    fn abort(&mut self, half: u64) {
        if let Some(Ending { half: Some(known), .. }) = self.ending.remove(&half) {
            self.open.insert(half, known);
        }
    }

    /// The next half message of the queue; `None`: there is none at this offset any more.
    fn read(&mut self, offset: u64, half: Option<Half>) {
        debug_assert_eq!(offset, self.read_to);
        self.read_to = offset + 1;
        if self.ended.remove(&offset) {
            return;
        }
        let Some(half) = half else { return };
        match self.ending.get_mut(&offset) {
            Some(ending) => ending.half = Some(half),
            None => {
                self.open.insert(offset, half);
            }
        }
    }

    /// Below: every half message has ended and its op record is in the log, or progress need not know.
    fn half_progress(&self) -> u64 {
        let first = |keys: Option<u64>| keys.unwrap_or(u64::MAX);
        first(self.open.keys().next().copied())
            .min(first(self.ending.keys().next().copied()))
            .min(first(self.op_missing.iter().min().copied()))
            .min(self.read_to)
    }

    /// Below: every op record names a half message below the progress. Forgets those.
    fn op_progress(&mut self, half_progress: u64) -> u64 {
        let floor = self.ending.values().map(|ending| ending.op_from).min().unwrap_or(u64::MAX);
        let needed = self.op_chunks.iter().find(|(_, highest)| **highest >= half_progress);
        let to = needed.map_or(self.op_to, |(chunk, _)| chunk * OPS_PER_CHUNK).min(floor);
        self.op_progress = self.op_progress.max(to);
        let done = self.op_progress / OPS_PER_CHUNK;
        self.op_chunks = self.op_chunks.split_off(&done);
        self.op_progress
    }
}

pub struct Transactions {
    state: Mutex<State>,
}

impl Transactions {
    /// Reads what is open.
    pub fn open(store: &Store, offsets: &Offsets) -> Transactions {
        let mut state = State::default();
        let from = |topic: &str, queue: &ConsumeQueue| {
            let kept = offsets.get(GROUP, topic, QUEUE_ID).unwrap_or(0).max(0) as u64;
            kept.min(queue.max()).max(queue.min())
        };
        let half_queue = store.queue(HALF_TOPIC, QUEUE_ID);
        state.read_to = half_queue.as_ref().map_or(0, |queue| from(HALF_TOPIC, queue));
        if let Some(queue) = store.queue(OP_TOPIC, QUEUE_ID) {
            state.op_to = from(OP_TOPIC, &queue);
            state.op_progress = state.op_to;
            each_record(store, &queue, state.op_to, queue.max(), |op_offset, record| {
                for half in ended_by(record) {
                    state.note_op(op_offset, half);
                    if half >= state.read_to {
                        state.ended.insert(half);
                    }
                }
                state.op_to = op_offset + 1;
            });
        }
        if let Some(queue) = half_queue {
            // A Java broker stores a half message anew for each check: only the last copy is open.
            let mut copies: HashMap<Vec<u8>, u64> = HashMap::new();
            let (from, to) = (state.read_to, queue.max());
            each_record(store, &queue, from, to, |offset, record| {
                let half = record.map(half_of);
                state.read(offset, half);
                if let Some(record) = record
                    && let Some(key) = properties::get(record.properties, properties::UNIQ_KEY)
                    && let Some(earlier) = copies.insert(key.to_vec(), offset)
                    && half.is_some_and(|half| half.check_count > 0)
                {
                    state.open.remove(&earlier);
                }
            });
            if !state.open.is_empty() {
                tracing::info!(open = state.open.len(), "transactions are open");
            }
        }
        Transactions { state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A crash may have left a message whose op record is missing: that transaction has ended.
    pub fn mend(&self, store: &Store, queues: impl Iterator<Item = Arc<ConsumeQueue>>) {
        let mut state = self.state();
        if state.open.is_empty() {
            return;
        }
        let by_log_offset: HashMap<i64, u64> =
            state.open.iter().map(|(offset, half)| (half.log_offset as i64, *offset)).collect();
        for queue in queues {
            let from = queue.max().saturating_sub(LAST_LOOKED_AT).max(queue.min());
            each_record(store, &queue, from, queue.max(), |_, record| {
                if let Some(record) = record
                    && record.sys_flag & sys_flag::TRANSACTION_MASK == sys_flag::COMMIT
                    && let Some(half) = by_log_offset.get(&record.prepared_offset)
                    && state.open.remove(half).is_some()
                {
                    tracing::warn!(half, topic = %queue.topic, "a committed message had no op record");
                    state.op_missing.push(*half);
                }
            });
        }
    }

    /// The end was stored: the op record has this queue offset. `None`: the message is in the log, its op record is not.
    pub fn finish(&self, half: u64, op_offset: Option<u64>) {
        self.state().finish(half, op_offset);
    }

    /// Nothing of it was stored.
    pub fn abort(&self, half: u64) {
        self.state().abort(half);
    }

    pub fn open_count(&self) -> usize {
        self.state().open.len()
    }

    /// Moves the group's offsets to where the disk is; all the way when `is_last`.
    pub fn keep_progress(&self, store: &Store, offsets: &Offsets, is_last: bool) {
        let mut state = self.state();
        if state.behind.is_none() || is_last {
            let half = state.half_progress();
            let op = state.op_progress(half);
            state.behind = Some((half, op, store.log_max()));
        }
        if let Some((half, op, log_end)) = state.behind
            && (is_last || store.log_flushed() >= log_end)
        {
            state.behind = None;
            drop(state);
            for (topic, progress) in [(HALF_TOPIC, half), (OP_TOPIC, op)] {
                let kept = offsets.get(GROUP, topic, QUEUE_ID);
                if kept != Some(progress as i64) && (kept.is_some() || progress > 0) {
                    offsets.commit(GROUP, topic, QUEUE_ID, progress as i64);
                }
            }
        }
    }
}

/// Every record of a stretch of a queue, `None` for those that the log does not have (any more).
fn each_record(store: &Store, queue: &ConsumeQueue, from: u64, to: u64, mut act: impl FnMut(u64, Option<&Record<'_>>)) {
    let mut entries: Vec<Entry> = Vec::new();
    let mut at = from;
    while at < to {
        entries.clear();
        let count = ENTRIES_AT_ONCE.min((to - at) as usize);
        let result = queue.read(at, count, &mut entries);
        if entries.is_empty() {
            tracing::error!(topic = %queue.topic, at, ?result, "queue not readable");
            return;
        }
        for entry in &entries {
            let bytes = store.record_at(entry.log_offset);
            let record = bytes.as_ref().and_then(|bytes| Record::parse(bytes).ok());
            act(at, record.as_ref());
            at += 1;
        }
    }
}

/// Half messages that an op record ends: one of 4.9, a comma-terminated list of 5.x.
fn ended_by(record: Option<&Record<'_>>) -> Vec<u64> {
    record.map(|record| ended_by_text(&String::from_utf8_lossy(record.body))).unwrap_or_default()
}

fn ended_by_text(text: &str) -> Vec<u64> {
    text.split(',').filter_map(|number| number.trim().parse().ok()).collect()
}

fn half_of(record: &Record<'_>) -> Half {
    let [times, immunity] =
        properties::get_each(record.properties, [properties::TRANSACTION_CHECK_TIMES, properties::CHECK_IMMUNITY]);
    let number = |text: Option<&[u8]>| std::str::from_utf8(text?).ok()?.parse::<i64>().ok();
    Half {
        log_offset: record.log_offset,
        since_ms: record.store_timestamp.max(0) as u64,
        immunity_ms: number(immunity).and_then(|seconds| u64::try_from(seconds).ok()).map(|s| s.saturating_mul(1000)),
        check_count: number(times).and_then(|times| u32::try_from(times).ok()).unwrap_or(0),
    }
}

/// What became of an end.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// The producer does not know: nothing is done and nothing answered.
    Unknown,
    /// In the batch: `message` when it was committed, and the op record. [`Transactions::finish`] or `abort` must follow.
    /// `is_flush_awaited`: answered after the flush, as the half message's own WAIT says.
    Pushed { half: u64, message: Option<usize>, op: usize, is_flush_awaited: bool },
}

/// END_TRANSACTION (37).
///
/// # Errors
/// The refusal to answer with; nothing has changed then.
pub fn end(broker: &Broker, command: &Command<'_>, now: Now, append: &mut AppendBatch) -> Result<Ended, Refusal> {
    let header = EndTransactionHeader::parse(&command.ext)?;
    let wrong = |remark: &str| Refusal::new(response::SYSTEM_ERROR, remark);
    let is_commit = match header.commit_or_rollback {
        commit_or_rollback::UNKNOWN => return Ok(Ended::Unknown),
        commit_or_rollback::COMMIT => true,
        commit_or_rollback::ROLLBACK => false,
        other => return Err(wrong(&format!("commitOrRollback {other} is none of 0, 8 and 12"))),
    };
    let no_half = || wrong("Find prepared transaction message failed");
    let bytes = super::again::record_at(broker, header.commit_log_offset).ok_or_else(no_half)?;
    let record = Record::parse(&bytes).map_err(|_| no_half())?;
    if record.topic != HALF_TOPIC.as_bytes() {
        return Err(no_half());
    }
    if properties::get(record.properties, properties::PGROUP) != Some(header.producer_group.as_bytes()) {
        return Err(wrong("The producer group wrong"));
    }
    if i64::try_from(record.queue_offset) != Ok(header.tran_state_table_offset) {
        return Err(wrong("The transaction state table offset wrong"));
    }
    let half = record.queue_offset;
    let place = real_place(record.properties).map_err(|why| wrong(&why))?;
    let op_from = broker.store.queue_or_create(OP_TOPIC, QUEUE_ID).max();
    if !broker.transactions.state().begin(half, op_from) {
        return Err(wrong("The transaction has ended before"));
    }
    let message = if is_commit {
        let pushed = commit(broker, &record, place, append);
        Some(pushed.map_err(|error| {
            broker.transactions.abort(half);
            Refusal::new(response::MESSAGE_ILLEGAL, error.to_string())
        })?)
    } else {
        None
    };
    let op = push_op(broker, half, now, append);
    let is_flush_awaited = is_commit && broker.store.is_sync() && properties::wants_wait(record.properties);
    Ok(Ended::Pushed { half, message, op, is_flush_awaited })
}

/// The half message in its own place. REAL_TOPIC, REAL_QID and TRAN_MSG stay in the text, as in Java.
fn commit(
    broker: &Broker,
    record: &Record<'_>,
    (topic, queue_id): (&str, i32),
    append: &mut AppendBatch,
) -> Result<usize, RecordError> {
    let mut again = Again::of(record, topic, queue_id, record.properties);
    again.sys_flag = record.sys_flag & !sys_flag::TRANSACTION_MASK | sys_flag::COMMIT;
    again.prepared_offset = record.log_offset as i64;
    again.delay_level = schedule::level(properties::get(record.properties, properties::DELAY)).unwrap_or(0);
    again.push(broker, append)
}

fn push_op(broker: &Broker, half: u64, now: Now, append: &mut AppendBatch) -> usize {
    let body = half.to_string();
    let record = NewRecord {
        topic: OP_TOPIC,
        queue_id: QUEUE_ID,
        flag: 0,
        sys_flag: 0,
        born_timestamp: now.wall_ms as i64,
        born_host: broker.store_host,
        store_host: broker.store_host,
        reconsume_times: 0,
        prepared_offset: 0,
        body: body.as_bytes(),
        properties: &[b"WAIT\x01true\x02TAGS\x01d"],
    };
    let queue = broker.store.queue_or_create(OP_TOPIC, QUEUE_ID);
    append
        .push(&record, properties::tag_code(b"d"), &queue, broker.own_limits)
        .expect("an op record of some 200 bytes fits the smallest log file")
}

/// RESUME_CHECK_HALF_MESSAGE (323): a half message that was given up is open again and will be asked about from the start;
/// one that is open is asked about from the start. Java stores anew whatever message the id names.
///
/// # Errors
/// No such message, or one that is neither.
pub fn resume(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = ResumeCheckHeader::parse(&request.command.ext)?;
    let wrong = |remark: String| Refusal::new(response::SYSTEM_ERROR, remark);
    let offset = super::query::log_offset_of(header.msg_id)?;
    let bytes = broker.store.record_at(offset);
    let Some(record) = bytes.as_ref().and_then(|bytes| Record::parse(bytes).ok()) else {
        return Err(wrong(format!("can not find message by the offset, {offset}")));
    };
    if record.topic == HALF_TOPIC.as_bytes() {
        let mut state = broker.transactions.state();
        let Some(half) = state.open.get_mut(&record.queue_offset) else {
            return Err(wrong("The transaction has ended before".to_string()));
        };
        half.check_count = 0;
        return Ok(Answer::empty());
    }
    if record.topic != GIVE_UP_TOPIC.as_bytes() {
        return Err(wrong(format!("the message is neither in {GIVE_UP_TOPIC} nor an open half message")));
    }
    let text = properties::with(record.properties, &[(properties::TRANSACTION_CHECK_TIMES, "0")]);
    let mut append = AppendBatch::default();
    let pushed = Again::of(&record, HALF_TOPIC, QUEUE_ID, &text).push(broker, &mut append);
    pushed.map_err(|error| Refusal::new(response::MESSAGE_ILLEGAL, error.to_string()))?;
    match broker.store.append(&mut append, request.now.wall_ms).error {
        None => Ok(Answer::empty()),
        Some(error) => Err(wrong(format!("Put message back to {HALF_TOPIC} failed: {error}"))),
    }
}

/// The agent's own.
#[derive(Default)]
pub struct Checker {
    append: AppendBatch,
    round_ns: Option<u64>,
    /// Half messages of the round that goes on, the last first.
    round: Vec<u64>,
    /// Producers of a group take turns.
    pick: usize,
}

impl Checker {
    /// Returns ms until the next turn is wanted. `send` gives a push to the shard of its client; `false`: not now.
    pub fn turn(&mut self, broker: &Broker, now: Now, send: &mut dyn FnMut(Push) -> bool) -> u64 {
        let transactions = &broker.transactions;
        self.read_halves(broker);
        self.write_missing(broker, now);
        transactions.keep_progress(&broker.store, &broker.offsets, false);
        let config = broker.live.config();
        let interval_ns = u64::from(config.transaction_check_interval_ms) * 1_000_000;
        let since_ns = *self.round_ns.get_or_insert(now.mono_ns);
        if now.mono_ns >= since_ns + interval_ns && self.round.is_empty() {
            self.round_ns = Some(now.mono_ns);
            self.round = due(&transactions.state().open, now.wall_ms, u64::from(config.transaction_timeout_ms));
            self.round.reverse();
        }
        self.check(broker, now, send);
        if !self.round.is_empty() {
            return ROUND_TICK_MS;
        }
        let left_ms =
            self.round_ns.map_or(TICK_MS, |since_ns| (since_ns + interval_ns).saturating_sub(now.mono_ns) / 1_000_000);
        left_ms.clamp(1, TICK_MS)
    }

    /// What was sent since the last turn.
    fn read_halves(&mut self, broker: &Broker) {
        let Some(queue) = broker.store.queue(HALF_TOPIC, QUEUE_ID) else { return };
        let max = queue.max();
        let mut entries = Vec::new();
        loop {
            let from = broker.transactions.state().read_to;
            if from >= max {
                return;
            }
            if from < queue.min() {
                let mut state = broker.transactions.state();
                (state.read_to..queue.min()).for_each(|offset| state.read(offset, None));
                continue;
            }
            entries.clear();
            let result = queue.read(from, ENTRIES_AT_ONCE, &mut entries);
            if entries.is_empty() {
                tracing::error!(from, ?result, "the queue of half messages is not readable, trying again");
                return;
            }
            for (offset, entry) in (from..).zip(&entries) {
                // Most have ended by now and are not looked at.
                let is_ended = broker.transactions.state().ended.contains(&offset);
                let bytes = if is_ended { None } else { broker.store.record_at(entry.log_offset) };
                let record = bytes.as_ref().and_then(|bytes| Record::parse(bytes).ok());
                broker.transactions.state().read(offset, record.as_ref().map(half_of));
            }
        }
    }

    fn write_missing(&mut self, broker: &Broker, now: Now) {
        let missing = broker.transactions.state().op_missing.clone();
        for half in missing {
            self.append.clear();
            let unit = push_op(broker, half, now, &mut self.append);
            broker.store.append(&mut self.append, now.wall_ms);
            let Some(placed) = self.append.placed(unit).first() else { return };
            let mut state = broker.transactions.state();
            state.op_missing.retain(|known| *known != half);
            state.note_op(placed.queue_offset, half);
        }
    }

    fn check(&mut self, broker: &Broker, now: Now, send: &mut dyn FnMut(Push) -> bool) {
        let config = broker.live.config();
        let (mut count, mut bytes_sent) = (0, 0);
        while count < CHECKS_AT_ONCE && bytes_sent < CHECK_BYTES_AT_ONCE {
            let Some(offset) = self.round.pop() else { return };
            let Some(half) = broker.transactions.state().open.get(&offset).copied() else { continue };
            let Some(bytes) = broker.store.record_at(half.log_offset) else {
                tracing::warn!(offset, log_offset = half.log_offset, "an open half message is no longer in the log");
                broker.transactions.state().open.remove(&offset);
                continue;
            };
            let Ok(record) = Record::parse(&bytes) else { continue };
            count += 1;
            let age_ms = now.wall_ms.saturating_sub(half.since_ms);
            if half.check_count >= config.transaction_check_max || age_ms > u64::from(config.reserved_hours) * 3_600_000
            {
                self.give_up(broker, &record, half, now);
                continue;
            }
            let group = properties::get(record.properties, properties::PGROUP);
            let group = group.and_then(|group| std::str::from_utf8(group).ok());
            if let Some(group) = group {
                self.pick = self.pick.wrapping_add(1);
                let Some(channel) = broker.clients.producer(group, self.pick) else {
                    tracing::debug!(group, offset, "no producer is there to be asked");
                    continue;
                };
                let Some(push) = question(&record, channel, half.check_count + 1) else { continue };
                bytes_sent += bytes.len();
                if !send(push) {
                    self.round.push(offset);
                    return;
                }
            }
            // Without a group nobody can ever be asked, and nobody can end it.
            if let Some(half) = broker.transactions.state().open.get_mut(&offset) {
                half.check_count += 1;
            }
        }
    }

    /// A copy to where an operator finds it; the half message has ended.
    fn give_up(&mut self, broker: &Broker, record: &Record<'_>, half: Half, now: Now) {
        let offset = record.queue_offset;
        if broker.topics.get_or_create(GIVE_UP_TOPIC, 1, false, now.wall_ms).is_none() {
            return;
        }
        let op_from = broker.store.queue_or_create(OP_TOPIC, QUEUE_ID).max();
        if !broker.transactions.state().begin(offset, op_from) {
            return;
        }
        let times = half.check_count.to_string();
        let text = properties::with(record.properties, &[(properties::TRANSACTION_CHECK_TIMES, &times)]);
        self.append.clear();
        let pushed = Again::of(record, GIVE_UP_TOPIC, 0, &text).push(broker, &mut self.append);
        let Ok(message) = pushed else {
            broker.transactions.abort(offset);
            return;
        };
        let op = push_op(broker, offset, now, &mut self.append);
        broker.store.append(&mut self.append, now.wall_ms);
        settle(broker, &self.append, offset, Some(message), op);
        tracing::warn!(offset, times = half.check_count, "nobody ended a transaction: it is in {GIVE_UP_TOPIC}");
    }
}

/// After the append of an end. Whether it was stored.
pub fn settle(broker: &Broker, append: &AppendBatch, half: u64, message: Option<usize>, op: usize) -> bool {
    let op_offset = append.placed(op).first().map(|placed| placed.queue_offset);
    let is_stored = match message {
        Some(message) => !append.placed(message).is_empty(),
        None => op_offset.is_some(),
    };
    if is_stored {
        broker.transactions.finish(half, op_offset);
    } else {
        broker.transactions.abort(half);
    }
    is_stored
}

/// Those that have been open for long enough.
fn due(open: &BTreeMap<u64, Half>, now_ms: u64, timeout_ms: u64) -> Vec<u64> {
    let is_due = |half: &Half| {
        now_ms.saturating_sub(half.since_ms) >= half.immunity_ms.unwrap_or(timeout_ms) || half.since_ms > now_ms
    };
    open.iter().filter(|(_, half)| is_due(half)).map(|(offset, _)| *offset).collect()
}

/// CHECK_TRANSACTION_STATE (39): the half message with its own topic and queue, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub half_offset: u64,
    pub log_offset: u64,
    pub uniq_key: String,
    pub message_id: String,
    pub body: Vec<u8>,
}

fn question(record: &Record<'_>, to: Channel, check_count: u32) -> Option<Push> {
    let (topic, queue_id) = real_place(record.properties).ok()?;
    let times = check_count.to_string();
    let text = properties::with(record.properties, &[(properties::TRANSACTION_CHECK_TIMES, &times)]);
    let mut message_id = String::new();
    push_message_id(&mut message_id, record.store_host, record.log_offset);
    let uniq_key = properties::get(record.properties, properties::UNIQ_KEY).unwrap_or_default();
    let question = Question {
        half_offset: record.queue_offset,
        log_offset: record.log_offset,
        uniq_key: String::from_utf8_lossy(uniq_key).into_owned(),
        message_id,
        body: readdressed(record, topic, queue_id, &text)?,
    };
    Some(Push { to, what: PushWhat::CheckTransaction(Box::new(question)) })
}

/// The record's bytes with another topic, queue and properties text.
fn readdressed(record: &Record<'_>, topic: &str, queue_id: i32, text: &[u8]) -> Option<Vec<u8>> {
    let topic_length_bytes = if record.version == Version::V1 { 1 } else { 2 };
    let tail_bytes = topic_length_bytes + record.topic.len() + 2 + record.properties.len();
    let (head, _) = record.bytes.split_at(record.bytes.len().checked_sub(tail_bytes)?);
    let mut out = head.to_vec();
    if record.version == Version::V2 {
        out.push(0);
    }
    out.push(u8::try_from(topic.len()).ok()?);
    out.extend_from_slice(topic.as_bytes());
    out.extend_from_slice(&i16::try_from(text.len()).ok()?.to_be_bytes());
    out.extend_from_slice(text);
    let total = i32::try_from(out.len()).ok()?;
    out[..4].copy_from_slice(&total.to_be_bytes());
    out[12..16].copy_from_slice(&queue_id.to_be_bytes());
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn half(since_ms: u64) -> Half {
        Half { log_offset: since_ms * 100, since_ms, immunity_ms: None, check_count: 0 }
    }

    #[test]
    fn a_half_message_ends_once_whoever_comes_first() {
        let mut state = State::default();
        // Ended before the agent has read it, while it reads it, and after.
        assert!(state.begin(0, 0));
        assert!(!state.begin(0, 0));
        state.finish(0, Some(0));
        assert!(!state.begin(0, 1));
        assert!(state.begin(1, 1));
        state.read(0, Some(half(0)));
        state.read(1, Some(half(1)));
        state.read(2, Some(half(2)));
        state.read(3, None);
        assert_eq!(state.open.keys().copied().collect::<Vec<_>>(), [2]);
        assert!(!state.begin(1, 1));
        state.finish(1, Some(1));
        assert!(!state.begin(0, 2) && !state.begin(1, 2) && !state.begin(3, 2));
        assert!(state.begin(2, 2));
        // The append failed: it is open as before.
        state.abort(2);
        assert_eq!(state.open.get(&2), Some(&half(2)));
        assert!(state.begin(2, 2));
        state.finish(2, Some(2));
        assert!(state.open.is_empty() && state.ended.is_empty() && state.ending.is_empty());
    }

    #[test]
    fn an_end_that_failed_before_the_agent_came_leaves_it_open() {
        let mut state = State::default();
        assert!(state.begin(0, 0));
        state.abort(0);
        state.read(0, Some(half(0)));
        assert!(state.open.contains_key(&0));
        assert!(state.begin(1, 0));
        state.read(1, Some(half(1)));
        state.abort(1);
        assert!(state.open.contains_key(&1));
    }

    #[test]
    fn progress_never_passes_what_a_start_must_see_again() {
        let mut state = State::default();
        (0..4).for_each(|offset| state.read(offset, Some(half(offset))));
        assert_eq!((state.half_progress(), state.op_progress(0)), (0, 0));
        for (offset, op) in [(0, 0), (2, 1)] {
            assert!(state.begin(offset, op));
            state.finish(offset, Some(op));
        }
        assert_eq!(state.half_progress(), 1);
        // The op record of 2 is needed while 1 is open; progress counts them by the thousand.
        assert_eq!(state.op_progress(1), 0);
        assert!(state.begin(1, 2));
        assert_eq!(state.half_progress(), 1, "its end is under way");
        state.finish(1, None);
        assert_eq!(state.half_progress(), 1, "its op record is missing");
        state.op_missing.clear();
        state.note_op(2, 1);
        assert_eq!((state.half_progress(), state.op_progress(3)), (3, 3));
        assert!(state.begin(3, 3));
        state.note_op(3, 9);
        assert_eq!(state.op_progress(20), 3, "an op record may be on its way below");
        state.finish(3, Some(4));
        assert_eq!((state.half_progress(), state.op_progress(20)), (4, 5));
    }

    #[test]
    fn due_is_what_waited_for_its_own_time() {
        let immune = |ms| Half { immunity_ms: Some(ms), ..half(10_000) };
        let open = BTreeMap::from([(0, half(10_000)), (1, half(12_000)), (2, immune(1_000)), (3, immune(9_000))]);
        // now, due: the time-out is 6 s; a store time that is still to come means that the clock was set back
        for (now, want) in
            [(10_500, &[1][..]), (11_000, &[1, 2]), (12_000, &[2]), (16_000, &[0, 2]), (19_000, &[0, 1, 2, 3])]
        {
            assert_eq!(due(&open, now, 6_000), want, "{now}");
        }
    }

    #[test]
    fn op_records_of_both_generations_are_read() {
        for (body, want) in [("7", &[7][..]), ("1,2,", &[1, 2]), ("", &[]), ("x,3", &[3])] {
            assert_eq!(ended_by_text(body), want, "{body}");
        }
    }
}
