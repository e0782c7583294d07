//! Delay levels: a message waits in the queue of its level and is stored anew in its own queue when its time has come.
//!
//! ```text
//! send, send-back, commit  DELAY n ──> SCHEDULE_TOPIC_XXXX, queue n − 1     REAL_TOPIC, REAL_QID: where it goes
//!                                      entry's tags code = store time + time of the level
//! delay agent    each level's queue from its cursor on: due ──> append ──> held pulls wake
//! cursors        delayOffset.json {"offsetTable":{3:17}}, by level, every flushDelayOffsetInterval and at stop
//! ```
//! One level never reorders. The cursor in the file is never ahead of what the disk has of the delivered messages, so after
//! a crash a message may come twice, never not at all. What can never be delivered is passed over and logged.
//! Source: ScheduleMessageService.java (4.9.7), CommitLog.asyncPutMessage.

use super::again::Again;
use super::persist::{JsonFile, PersistError};
use super::stats::Totals;
use super::transaction::{HALF_TOPIC, OP_TOPIC};
use super::{Broker, check_topic_name};
use ringmq_net::protocol::body::offsets::DelayOffsetTable;
use ringmq_net::reactor::Now;
use ringmq_storage::append::AppendBatch;
use ringmq_storage::consume_queue::{ConsumeQueue, Entry};
use ringmq_storage::error::{AppendError, RecordError};
use ringmq_storage::record::NewRecord;
use ringmq_storage::record::decode::Record;
use ringmq_storage::record::properties::{self, SCHEDULE_TOPIC};
use ringmq_storage::store::Store;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Between two looks of the agent: shorter would be a system call for each message.
const WAIT_MS_MIN: u64 = 4;
/// The wall clock may be set, and a level may be empty: longer than this the agent never sleeps.
const WAIT_MS_MAX: u64 = 1000;
/// After an append that failed.
const RETRY_MS: u64 = 100;
const ENTRIES_AT_ONCE: usize = 256;
/// Delivered by one append: the gate is not held long.
const BATCH_BYTES_MAX: usize = 256 << 10;
/// A queue id in a property is a stranger's number.
const QUEUE_ID_MAX: i32 = 65_535;
/// Levels above the configured ones whose queues are looked for at start.
const LEVELS_LOOKED_AT: usize = 1024;

/// Puts a message into the queue of its delay level. `record` names its own topic and queue; its properties are `text`.
///
/// # Errors
/// A limit of the store; the batch is unchanged then.
pub fn push(
    broker: &Broker,
    record: &NewRecord<'_>,
    text: &[u8],
    level: i64,
    append: &mut AppendBatch,
) -> Result<usize, RecordError> {
    let level = (level.max(1) as u64).min(broker.schedule.delays_ms.len() as u64) as usize;
    let text = properties::with(
        text,
        &[
            (properties::DELAY, &level.to_string()),
            (properties::REAL_TOPIC, record.topic),
            (properties::REAL_QID, &record.queue_id.to_string()),
        ],
    );
    let queue_id = level as i32 - 1;
    let queue = broker.store.queue_or_create(SCHEDULE_TOPIC, queue_id);
    let properties = [&text[..]];
    let record = NewRecord { topic: SCHEDULE_TOPIC, queue_id, properties: &properties, ..*record };
    append.push_delayed(&record, broker.schedule.delays_ms[level - 1], &queue, broker.own_limits)
}

/// The level of a message: above 0 it is delayed. `None` when DELAY is no number.
pub fn level(value: Option<&[u8]>) -> Option<i64> {
    let Some(value) = value else { return Some(0) };
    std::str::from_utf8(value).ok()?.parse::<i32>().ok().map(i64::from)
}

#[derive(Default)]
struct Written {
    /// As the file has them.
    cursors: Vec<u64>,
    /// To be written when the log is on disk up to there.
    next: Option<(Vec<u64>, u64)>,
    due_ns: u64,
}

pub struct Schedule {
    pub delays_ms: Vec<i64>,
    /// By level − 1: the next queue offset to deliver. Written by the agent only.
    cursors: Vec<AtomicU64>,
    /// Of levels that are configured no longer.
    others: BTreeMap<i32, i64>,
    written: Mutex<Written>,
    flush_interval_ns: u64,
    file: JsonFile,
}

impl Schedule {
    /// # Errors
    /// delayOffset.json and its backup cannot be used.
    pub fn open(
        config_dir: &Path,
        store: &Store,
        delays_ms: Vec<i64>,
        flush_interval_ms: u32,
    ) -> Result<Schedule, PersistError> {
        assert!(!delays_ms.is_empty());
        let file = JsonFile::new(config_dir, "delayOffset.json");
        let mut others = file.load_table("offsetTable", DelayOffsetTable::from_json)?.unwrap_or_default().offset_table;
        let cursors = (0..delays_ms.len() as i32).map(|queue_id| {
            let found = others.remove(&(queue_id + 1)).unwrap_or(0).max(0) as u64;
            let cursor = store.queue(SCHEDULE_TOPIC, queue_id).map_or(0, |queue| inside(found, &queue));
            if cursor != found {
                tracing::warn!(level = queue_id + 1, found, cursor, "delay cursor was outside its queue");
            }
            AtomicU64::new(cursor)
        });
        let cursors: Vec<AtomicU64> = cursors.collect();
        for queue_id in delays_ms.len()..LEVELS_LOOKED_AT {
            let level = queue_id as i32 + 1;
            let passed = others.get(&level).map_or(0, |passed| (*passed).max(0) as u64);
            let waiting = store.queue(SCHEDULE_TOPIC, level - 1).map_or(0, |queue| queue.max().saturating_sub(passed));
            if waiting > 0 {
                tracing::warn!(level, waiting, "messages wait in a level that messageDelayLevel no longer has");
            }
        }
        let snapshot = cursors.iter().map(|cursor| cursor.load(Ordering::Relaxed)).collect();
        Ok(Schedule {
            delays_ms,
            cursors,
            others,
            written: Mutex::new(Written { cursors: snapshot, ..Written::default() }),
            flush_interval_ns: u64::from(flush_interval_ms) * 1_000_000,
            file,
        })
    }

    fn snapshot(&self) -> Vec<u64> {
        self.cursors.iter().map(|cursor| cursor.load(Ordering::Acquire)).collect()
    }

    fn table(&self, cursors: &[u64]) -> DelayOffsetTable {
        let mut offset_table = self.others.clone();
        let levels = cursors.iter().zip(1..).filter(|(cursor, _)| **cursor > 0);
        offset_table.extend(levels.map(|(cursor, level)| (level, *cursor as i64)));
        DelayOffsetTable { data_version: None, offset_table }
    }

    /// The answer to GET_ALL_DELAY_OFFSET (45).
    pub fn to_json(&self) -> Vec<u8> {
        self.table(&self.snapshot()).to_json()
    }

    /// `(level, cursor, end of its queue)` of every level that ever had a message.
    pub fn progress(&self, store: &Store) -> Vec<(usize, u64, u64)> {
        let levels = self.snapshot().into_iter().enumerate();
        let of_level =
            |(index, cursor)| store.queue(SCHEDULE_TOPIC, index as i32).map(|queue| (index + 1, cursor, queue.max()));
        levels.filter_map(of_level).collect()
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the cursors when that is due and writes what was noted once the disk has what they say was delivered.
    fn flush_behind(&self, store: &Store, now_ns: u64) {
        let mut written = self.written();
        if written.next.is_none() && now_ns >= written.due_ns {
            written.due_ns = now_ns + self.flush_interval_ns;
            let cursors = self.snapshot();
            if cursors != written.cursors {
                // After the cursors: what they passed lies below.
                written.next = Some((cursors, store.log_max()));
            }
        }
        if let Some((cursors, log_end)) = &written.next
            && store.log_flushed() >= *log_end
        {
            match self.file.store(&self.table(cursors).to_json()) {
                Ok(()) => written.cursors = cursors.clone(),
                Err(error) => tracing::error!(%error, "delay cursors not written, trying again"),
            }
            written.next = None;
        }
    }

    /// At stop, when the log is on disk.
    ///
    /// # Errors
    /// What the disk answers; the next start delivers some messages twice then.
    pub fn flush(&self) -> Result<(), PersistError> {
        let mut written = self.written();
        let cursors = self.snapshot();
        if cursors != written.cursors {
            self.file.store(&self.table(&cursors).to_json())?;
            written.cursors = cursors;
        }
        Ok(())
    }
}

fn inside(cursor: u64, queue: &ConsumeQueue) -> u64 {
    cursor.min(queue.max()).max(queue.min())
}

/// What stopped a level.
enum Rest {
    /// Its next message is due in so many ms, or its queue is empty for at least that long.
    For(u64),
    /// A batch is full: there is more.
    Full,
}

/// The agent's own.
#[derive(Default)]
pub struct Deliverer {
    append: AppendBatch,
    entries: Vec<Entry>,
    /// Queue offset in the level's queue of each unit of the batch.
    offsets: Vec<u64>,
}

impl Deliverer {
    /// Delivers what is due in every level. `arrived` is told of every queue that got something. Returns ms until the next
    /// turn is wanted.
    pub fn turn(&mut self, broker: &Broker, now: Now, arrived: &mut dyn FnMut(&Arc<ConsumeQueue>)) -> u64 {
        let mut wait_ms = WAIT_MS_MAX;
        for index in 0..broker.schedule.delays_ms.len() {
            match self.level(broker, index, now.wall_ms, arrived) {
                Rest::For(ms) => wait_ms = wait_ms.min(ms),
                Rest::Full => wait_ms = 0,
            }
        }
        broker.schedule.flush_behind(&broker.store, now.mono_ns);
        if wait_ms == 0 { 0 } else { wait_ms.clamp(WAIT_MS_MIN, WAIT_MS_MAX) }
    }

    /// One batch of one level.
    fn level(
        &mut self,
        broker: &Broker,
        index: usize,
        now_ms: u64,
        arrived: &mut dyn FnMut(&Arc<ConsumeQueue>),
    ) -> Rest {
        let delay_ms = broker.schedule.delays_ms[index];
        // Nothing that comes now is due sooner.
        let empty = Rest::For(delay_ms.max(0) as u64);
        let Some(queue) = broker.store.queue(SCHEDULE_TOPIC, index as i32) else { return empty };
        let cursor = &broker.schedule.cursors[index];
        let from = inside(cursor.load(Ordering::Relaxed), &queue);
        self.entries.clear();
        if let Err(error) = queue.read(from, ENTRIES_AT_ONCE, &mut self.entries)
            && self.entries.is_empty()
        {
            tracing::error!(level = index + 1, from, %error, "the queue of a delay level cannot be read, trying again");
            return Rest::For(WAIT_MS_MAX);
        }
        if self.entries.is_empty() {
            cursor.store(from, Ordering::Release);
            return empty;
        }

        self.append.clear();
        self.offsets.clear();
        let mut to = from;
        let mut rest = Rest::Full;
        for entry in &self.entries {
            let left_ms = left_ms(entry.tags_code, now_ms, delay_ms);
            if left_ms > 0 {
                rest = Rest::For(left_ms);
                break;
            }
            if self.append.bytes() > BATCH_BYTES_MAX {
                break;
            }
            match deliver(broker, entry, &mut self.append) {
                Ok(_) => self.offsets.push(to),
                Err(why) => tracing::error!(
                    level = index + 1,
                    queue_offset = to,
                    log_offset = entry.log_offset,
                    why,
                    "a delayed message can not be delivered, passed over"
                ),
            }
            to += 1;
        }
        if self.offsets.is_empty() {
            cursor.store(to, Ordering::Release);
            return rest;
        }
        let outcome = broker.store.append(&mut self.append, now_ms);
        let mut touched: Vec<Arc<ConsumeQueue>> = Vec::new();
        for unit in 0..outcome.units_placed {
            let queue = self.append.queue(unit);
            if !touched.iter().any(|known| Arc::ptr_eq(known, queue)) {
                touched.push(Arc::clone(queue));
            }
        }
        let put = |unit| {
            let bytes = self.append.placed(unit).iter().map(|placed| u64::from(placed.record_bytes)).sum();
            Totals { count: 1, bytes, times: 1 }
        };
        let mut all = Totals::default();
        (0..outcome.units_placed).for_each(|unit| all += put(unit));
        let puts = (0..outcome.units_placed).map(|unit| (&*self.append.queue(unit).topic, put(unit)));
        broker.stats.put_into(puts, all);
        let stopped_at = self.offsets.get(outcome.units_placed).copied().unwrap_or(to);
        if let Some(AppendError::NoFileYet { .. }) = outcome.error {
            to = stopped_at;
            rest = Rest::For(1);
        } else if let Some(error) = outcome.error {
            tracing::error!(level = index + 1, queue_offset = stopped_at, %error, "a delayed message was not delivered");
            // One that no log file holds would stop the level for good.
            let passed = u64::from(matches!(error, AppendError::TooLarge { .. }));
            to = stopped_at + passed;
            rest = Rest::For(RETRY_MS);
        }
        broker.stats.put(outcome.units_placed as u64, self.append.bytes() as u64);
        cursor.store(to, Ordering::Release);
        touched.iter().for_each(arrived);
        rest
    }
}

/// A time further away than the level's own means that the wall clock was set back, or the level changed: now, as Java has
/// it.
fn left_ms(due_ms: i64, now_ms: u64, delay_ms: i64) -> u64 {
    let left = due_ms.saturating_sub(now_ms as i64);
    if left > delay_ms { 0 } else { left.max(0) as u64 }
}

/// Into the batch, with the bytes of the record in the level's queue: DELAY, REAL_TOPIC and REAL_QID stay, as in Java.
fn deliver(broker: &Broker, entry: &Entry, append: &mut AppendBatch) -> Result<usize, String> {
    let bytes = broker.store.record_at(entry.log_offset).ok_or("its record is not in the log")?;
    let record = Record::parse(&bytes).map_err(|fault| fault.to_string())?;
    let (topic, queue_id) = real_place(record.properties)?;
    if [SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC].contains(&topic) {
        return Err(format!("REAL_TOPIC is {topic}"));
    }
    Again::of(&record, topic, queue_id, record.properties).push(broker, append).map_err(|error| error.to_string())
}

/// Where a message goes in the end.
pub fn real_place(text: &[u8]) -> Result<(&str, i32), String> {
    let [topic, queue_id] = properties::get_each(text, [properties::REAL_TOPIC, properties::REAL_QID]);
    let topic = topic.and_then(|topic| std::str::from_utf8(topic).ok()).unwrap_or("");
    check_topic_name(topic).map_err(|refusal| format!("REAL_TOPIC: {}", refusal.remark))?;
    let queue_id = queue_id.and_then(|id| std::str::from_utf8(id).ok()).and_then(|id| id.parse().ok());
    match queue_id {
        Some(queue_id @ 0..=QUEUE_ID_MAX) => Ok((topic, queue_id)),
        _ => Err("REAL_QID is no queue".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;

    #[test]
    fn a_message_is_due_at_its_time_and_at_once_when_the_clock_went_back() {
        // due, now, delay, left
        for (due, now, delay, want) in [
            (2_000, 1_000, 1_000, 1_000),
            (2_000, 1_999, 1_000, 1),
            (2_000, 2_000, 1_000, 0),
            (2_000, 9_000, 1_000, 0),
            (2_000, 999, 1_000, 0),
            (i64::MAX, 0, 1_000, 0),
            (i64::MIN, 5, 1_000, 0),
        ] {
            assert_eq!(left_ms(due, now, delay), want, "{due} {now} {delay}");
        }
    }

    /// Cursors that are not read begin at 0: everything that waited once would be delivered again.
    #[test]
    fn a_damaged_file_is_not_one_without_cursors() {
        let dir = tempfile::tempdir().unwrap();
        let broker = testing::broker(dir.path(), &[]);
        let path = dir.path().join("delayOffset.json");
        let open = || Schedule::open(dir.path(), &broker.store, vec![1_000], 1).map(|schedule| schedule.others);
        for text in ["{\"offsetTablf\":{1:2,18:7}}", "{\"offsetTable\":null}", "{}"] {
            std::fs::write(&path, text).unwrap();
            assert!(open().is_err(), "{text}");
            std::fs::write(dir.path().join("delayOffset.json.bak"), "{\"offsetTable\":{1:2,18:7}}").unwrap();
            assert_eq!(open().unwrap(), BTreeMap::from([(18, 7)]), "{text}");
            std::fs::remove_file(dir.path().join("delayOffset.json.bak")).unwrap();
        }
        // As Java brokers write them.
        for text in [
            "{\n\t\"offsetTable\":{}\n}",
            "{\n\t\"dataVersion\":{\n\t\t\"counter\":1,\n\t\t\"stateVersion\":0,\n\t\t\"timestamp\":1796003475623\n\t},\n\t\"offsetTable\":{1:2,18:0\n\t}\n}",
        ] {
            std::fs::write(&path, text).unwrap();
            assert!(open().is_ok(), "{text}");
        }
    }

    #[test]
    fn levels_as_java_reads_them() {
        for (text, want) in [
            (Some("3"), Some(3)),
            (Some("-1"), Some(-1)),
            (Some("2147483648"), None),
            (Some("4x"), None),
            (Some(" 3 "), None),
            (Some("+3"), Some(3)),
            (None, Some(0)),
        ] {
            assert_eq!(level(text.map(str::as_bytes)), want, "{text:?}");
        }
    }

    #[test]
    fn a_real_place_is_a_topic_and_a_queue() {
        let text = |topic: &str, queue: &str| format!("REAL_TOPIC\u{1}{topic}\u{2}REAL_QID\u{1}{queue}");
        assert_eq!(real_place(text("T", "3").as_bytes()), Ok(("T", 3)));
        for (topic, queue) in [("../x", "0"), ("", "0"), ("T", "-1"), ("T", "x"), ("T", "70000"), ("T", "")] {
            assert!(real_place(text(topic, queue).as_bytes()).is_err(), "{topic} {queue}");
        }
    }

    fn sent<'a>(topic: &'a str, body: &'a [u8], text: &'a [u8], level: i64) -> Again<'a> {
        Again {
            topic,
            queue_id: 2,
            flag: 7,
            sys_flag: 0,
            born_timestamp: 5,
            born_host: ([127, 0, 0, 1], 1).into(),
            store_host: ([127, 0, 0, 1], 10911).into(),
            reconsume_times: 1,
            prepared_offset: 0,
            body,
            text,
            delay_level: level,
        }
    }

    fn now(ms: u64) -> Now {
        Now { wall_ms: ms, mono_ns: ms * 1_000_000 }
    }

    #[test]
    fn due_messages_go_to_their_queues_in_order_and_cursors_survive() {
        let dir = tempfile::tempdir().unwrap();
        let broker = testing::broker(dir.path(), &[("messageDelayLevel", "1s 2s")]);
        let mut batch = AppendBatch::default();
        for (body, level) in [(&b"a"[..], 1), (b"b", 2), (b"c", 1), (b"d", 99)] {
            sent("T", body, b"TAGS\x01t", level).push(&broker, &mut batch).unwrap();
        }
        assert_eq!(broker.store.append(&mut batch, 10_000).units_placed, 4);
        let queue = |id| broker.store.queue(SCHEDULE_TOPIC, id).unwrap();
        assert_eq!((queue(0).max(), queue(1).max()), (2, 2));
        let mut entries = Vec::new();
        queue(1).read(0, 1, &mut entries).unwrap();
        assert_eq!(entries[0].tags_code, 12_000);

        let mut deliverer = Deliverer::default();
        let mut woken = 0;
        let mut turn = |ms| deliverer.turn(&broker, now(ms), &mut |_| woken += 1);
        assert_eq!(turn(10_400), 600);
        assert_eq!(turn(10_999), WAIT_MS_MIN);
        assert!(broker.store.queue("T", 2).is_none());
        turn(11_000);
        assert_eq!(broker.store.queue("T", 2).unwrap().max(), 2);
        turn(11_999);
        assert_eq!(broker.store.queue("T", 2).unwrap().max(), 2);
        turn(12_000);
        assert_eq!(woken, 2);
        let target = broker.store.queue("T", 2).unwrap();
        assert_eq!(target.max(), 4);
        let mut entries = Vec::new();
        target.read(0, 4, &mut entries).unwrap();
        let bodies: Vec<u8> = entries
            .iter()
            .map(|entry| {
                assert_eq!(entry.tags_code, properties::tag_code(b"t"));
                let bytes = broker.store.record_at(entry.log_offset).unwrap();
                let record = Record::parse(&bytes).unwrap();
                assert_eq!((record.topic, record.queue_id, record.flag), (&b"T"[..], 2, 7));
                assert_eq!((record.reconsume_times, record.born_timestamp), (1, 5));
                assert_eq!(properties::get(record.properties, properties::REAL_TOPIC), Some(&b"T"[..]));
                record.body[0]
            })
            .collect();
        assert_eq!(bodies, b"acbd");
        assert_eq!(broker.schedule.progress(&broker.store), [(1, 2, 2), (2, 2, 2)]);

        broker.schedule.flush().unwrap();
        let text = std::fs::read_to_string(dir.path().join("store/config/delayOffset.json")).unwrap();
        assert!(text.contains("{1:2,2:2}"), "{text}");
    }

    #[test]
    fn a_cursor_outside_its_queue_is_corrected() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("store/config");
        std::fs::create_dir_all(&config).unwrap();
        std::fs::write(config.join("delayOffset.json"), "{\"offsetTable\":{1:9,2:-4,44:5}}").unwrap();
        let broker = testing::broker(dir.path(), &[]);
        assert_eq!(broker.schedule.snapshot(), vec![0; 18]);
        assert!(String::from_utf8(broker.schedule.to_json()).unwrap().contains("{44:5}"));
    }

    #[test]
    fn what_can_not_be_delivered_does_not_stop_its_level() {
        let dir = tempfile::tempdir().unwrap();
        let broker = testing::broker(dir.path(), &[]);
        let mut batch = AppendBatch::default();
        // The second pair of the place wins over the one that `push` adds only if it stands behind: a foreign store.
        for (topic, body) in [("T", &b"a"[..]), (HALF_TOPIC, b"b"), ("T", b"c")] {
            sent(topic, body, b"", 1).push(&broker, &mut batch).unwrap();
        }
        broker.store.append(&mut batch, 1_000);
        Deliverer::default().turn(&broker, now(2_000), &mut |_| {});
        assert_eq!(broker.store.queue("T", 2).unwrap().max(), 2);
        assert!(broker.store.queue(HALF_TOPIC, 2).is_none());
        assert_eq!(broker.schedule.progress(&broker.store), [(1, 3, 3)]);
    }
}
