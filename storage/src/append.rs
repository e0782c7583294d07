//! A turn's batch: records encoded side by side in one buffer, placed in the log by one call.
//!
//! ```text
//! buffer    | record | record record record | record |     unit = what must lie in one file:
//! units       0        1 (client batch)       2            one record, or all of a client batch
//! ```
//! The shard pushes (everything that needs no lock), the commit log places: unit by unit it decides where, patches the
//! three fields of every record that depend on it, and writes neighbouring units by one slice of the buffer.
//! Only what [`AppendBatch::finish`] says is placed; the rest of the batch never happened.

use crate::consume_queue::{ConsumeQueue, Entry};
use crate::error::{AppendError, RecordError};
use crate::index::{Keys, TopicHash};
use crate::index_file::item_hash;
use crate::index_keys::Key;
use crate::record::java_text::java_hash_on;
use crate::record::layout::{BATCH_GROWTH_MAX, sys_flag};
use crate::record::{
    NewRecord, RecordLimits, batch, check, check_body, check_properties, check_topic, check_total, encode, properties,
};
use std::ops::Range;
use std::sync::Arc;

/// Where a record went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    pub log_offset: u64,
    pub record_bytes: u32,
    pub queue_offset: u64,
    pub store_timestamp: u64,
}

/// One for each shard, reused. Everything that needs no lock is done in `push`: sizes, CRC, property bytes.
#[derive(Default)]
pub struct AppendBatch {
    buffer: Vec<u8>,
    records: Vec<PushedRecord>,
    units: Vec<Unit>,
    /// By record.
    keys: Vec<PushedKey>,
    topic: TopicHash,
    /// One for each record, as far as the commit log has come.
    placed: Vec<Placed>,
    units_placed: usize,
    /// Turns in a row that used a small part of the buffer only.
    small_turns: u32,
}

struct PushedRecord {
    position: usize,
    store_timestamp_at: usize,
    tags_code: TagsCode,
}

/// What a message's sender has read of its properties already.
#[derive(Clone, Copy, Debug)]
pub struct Marked<'a> {
    pub tags_code: i64,
    /// `None`: they are searched for.
    pub keys: Option<Keys<'a>>,
}

impl From<i64> for Marked<'_> {
    fn from(tags_code: i64) -> Self {
        Marked { tags_code, keys: None }
    }
}

/// Under which hash the index has a record.
struct PushedKey {
    record: usize,
    hash: u32,
}

/// The third field of the queue entry.
#[derive(Clone, Copy)]
enum TagsCode {
    Of(i64),
    /// So many ms after the store time.
    After(i64),
}

impl TagsCode {
    fn at(self, store_timestamp: u64) -> i64 {
        match self {
            TagsCode::Of(code) => code,
            TagsCode::After(ms) => (store_timestamp as i64).saturating_add(ms),
        }
    }
}

struct Unit {
    queue: Arc<ConsumeQueue>,
    records: Range<usize>,
    bytes: Range<usize>,
    /// Prepared and rollback records take no queue offset and get no entry.
    is_queued: bool,
}

/// A buffer up to this size is kept for good.
const BUFFER_KEPT_BYTES: usize = 1024 * 1024;
/// Above this it is given back after the turn that needed it, below only when turns stay small for a while.
const BUFFER_KEPT_BYTES_MAX: usize = 8 * 1024 * 1024;
const SMALL_TURNS_MAX: u32 = 256;

impl AppendBatch {
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// Bytes of all records pushed.
    pub fn bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Number of units pushed.
    pub fn unit_count(&self) -> usize {
        self.units.len()
    }

    /// One record = one unit. The tags code is the queue entry's. Returns the unit's index.
    ///
    /// # Errors
    /// What [`check`] finds; the batch is unchanged then.
    pub fn push<'a>(
        &mut self,
        record: &NewRecord<'_>,
        marked: impl Into<Marked<'a>>,
        queue: &Arc<ConsumeQueue>,
        limits: RecordLimits,
    ) -> Result<usize, RecordError> {
        let Marked { tags_code, keys } = marked.into();
        self.push_as(record, TagsCode::Of(tags_code), keys, queue, limits)
    }

    /// As [`AppendBatch::push`] for the schedule topic: the entry's tags code is the time of delivery, `delay_ms` after the
    /// store time.
    ///
    /// # Errors
    /// What [`check`] finds; the batch is unchanged then.
    pub fn push_delayed(
        &mut self,
        record: &NewRecord<'_>,
        delay_ms: i64,
        queue: &Arc<ConsumeQueue>,
        limits: RecordLimits,
    ) -> Result<usize, RecordError> {
        self.push_as(record, TagsCode::After(delay_ms), None, queue, limits)
    }

    fn push_as(
        &mut self,
        record: &NewRecord<'_>,
        tags_code: TagsCode,
        keys: Option<Keys<'_>>,
        queue: &Arc<ConsumeQueue>,
        limits: RecordLimits,
    ) -> Result<usize, RecordError> {
        check(record, limits)?;
        let position = self.buffer.len();
        let store_timestamp_at = encode::encode(record, &mut self.buffer);
        self.records.push(PushedRecord { position, store_timestamp_at, tags_code });
        self.push_keys(record, keys, encode::joined_bytes(record.properties));
        Ok(self.end_unit(position, 1, record.sys_flag, queue))
    }

    /// A client batch (request 320): `shared.body` in the batch encoding; every inner message becomes a record with
    /// `shared`'s topic, queue, hosts, times and sys flag, its own flag and body, and its own properties followed by
    /// `shared.properties` (with a 0x02 between where needed). `marked`: of the joined properties, in order; topic
    /// SCHEDULE_TOPIC_XXXX is not for batches. One unit: all in one file, consecutive queue offsets.
    ///
    /// # Errors
    /// A limit of the whole or of one message broken, or a batch that cannot be read; the batch is unchanged then.
    ///
    /// # Panics
    /// When more or fewer are marked than there are messages.
    pub fn push_client_batch(
        &mut self,
        shared: &NewRecord<'_>,
        marked: &[Marked<'_>],
        queue: &Arc<ConsumeQueue>,
        limits: RecordLimits,
    ) -> Result<usize, RecordError> {
        check_topic(shared.topic)?;
        if shared.body.is_empty() {
            return Err(RecordError::BatchEmpty);
        }
        check_body(shared.body, limits)?;
        let shared_bytes = encode::joined_bytes(shared.properties);
        let mut total = 0;
        let mut count = 0;
        for message in batch::messages(shared.body) {
            let message = message?;
            check_body(message.body, limits)?;
            let properties_bytes =
                message.properties.len() + separator(message.properties, shared_bytes).len() + shared_bytes;
            check_properties(properties_bytes)?;
            total += encode::record_bytes(shared, message.body.len(), properties_bytes);
            count += 1;
        }
        check_total(total, limits, BATCH_GROWTH_MAX)?;
        assert_eq!(count, marked.len(), "each message is marked");

        let start = self.buffer.len();
        self.buffer.reserve(total);
        for (message, marked) in batch::messages(shared.body).zip(marked) {
            let message = message.expect("read without error above");
            let position = self.buffer.len();
            let pieces = [message.properties, separator(message.properties, shared_bytes)];
            let pieces = pieces.into_iter().chain(shared.properties.iter().copied());
            let store_timestamp_at = encode::encode_as(shared, message.flag, 0, message.body, pieces, &mut self.buffer);
            self.records.push(PushedRecord { position, store_timestamp_at, tags_code: TagsCode::Of(marked.tags_code) });
            let properties_bytes =
                message.properties.len() + separator(message.properties, shared_bytes).len() + shared_bytes;
            self.push_keys(shared, marked.keys, properties_bytes);
        }
        debug_assert_eq!(self.buffer.len() - start, total);
        Ok(self.end_unit(start, count, shared.sys_flag, queue))
    }

    /// Of the record that ends the buffer, with its properties.
    fn push_keys(&mut self, of: &NewRecord<'_>, keys: Option<Keys<'_>>, properties_bytes: usize) {
        let record = self.records.len() - 1;
        let keys = keys.unwrap_or_else(|| Keys::of(&self.buffer[self.buffer.len() - properties_bytes..]));
        let prefix = self.topic.of(of.topic.as_bytes());
        self.keys.extend(
            keys.indexed(of.sys_flag).map(|key| PushedKey { record, hash: item_hash(java_hash_on(prefix, key)) }),
        );
    }

    fn end_unit(&mut self, start: usize, count: usize, flags: i32, queue: &Arc<ConsumeQueue>) -> usize {
        let records = self.records.len() - count..self.records.len();
        self.units.push(Unit {
            queue: Arc::clone(queue),
            records,
            bytes: start..self.buffer.len(),
            is_queued: sys_flag::is_queued(flags),
        });
        self.units.len() - 1
    }

    /// How many units are in the log. The next `Store::append` goes on behind them.
    pub fn units_placed(&self) -> usize {
        self.units_placed
    }

    /// After `Store::append`: the records of unit `index`, in order; empty slice if the unit was not placed.
    pub fn placed(&self, index: usize) -> &[Placed] {
        if index < self.units_placed { &self.placed[self.units[index].records.clone()] } else { &[] }
    }

    /// The queue of unit `index`.
    pub fn queue(&self, index: usize) -> &Arc<ConsumeQueue> {
        &self.units[index].queue
    }

    /// Empty again. The buffer is kept, unless it has become much larger than the turns are.
    pub fn clear(&mut self) {
        let capacity = self.buffer.capacity();
        self.small_turns = if self.buffer.len() < capacity / 4 { self.small_turns + 1 } else { 0 };
        self.buffer.clear();
        if capacity > BUFFER_KEPT_BYTES_MAX || (capacity > BUFFER_KEPT_BYTES && self.small_turns > SMALL_TURNS_MAX) {
            self.buffer.shrink_to(BUFFER_KEPT_BYTES);
            self.small_turns = 0;
        }
        self.records.clear();
        self.keys.clear();
        self.units.clear();
        self.placed.clear();
        self.units_placed = 0;
    }
}

/// What stands between a message's own properties and its batch's.
fn separator(own: &[u8], shared_bytes: usize) -> &'static [u8] {
    if shared_bytes > 0 && properties::needs_separator(own) { &[properties::PAIR_END] } else { &[] }
}

/// For the commit log, under its gate: `place_unit` for units 0, 1, 2 …, the bytes written, then `finish` once.
impl AppendBatch {
    /// Bytes that unit `index` needs in one file.
    pub(crate) fn unit_bytes(&self, index: usize) -> usize {
        self.units[index].bytes.len()
    }

    /// Puts unit `index` at `log_offset`: patches its records and notes where they go. `queue_offset` is the next one of
    /// its queue. Returns how many queue offsets the unit takes: 0 for a record that gets no entry.
    pub(crate) fn place_unit(&mut self, index: usize, log_offset: u64, queue_offset: u64, store_timestamp: u64) -> u64 {
        let unit = &self.units[index];
        assert!(self.placed.len() == unit.records.start, "unit {index} placed out of order");
        let taken = if unit.is_queued { unit.records.len() as u64 } else { 0 };
        for i in unit.records.clone() {
            let record = &self.records[i];
            let end = self.records.get(i + 1).map_or(self.buffer.len(), |next| next.position);
            let log_offset = log_offset + (record.position - unit.bytes.start) as u64;
            let queue_offset = if unit.is_queued { queue_offset + (i - unit.records.start) as u64 } else { 0 };
            encode::patch(
                &mut self.buffer[record.position..end],
                record.store_timestamp_at,
                queue_offset,
                log_offset,
                store_timestamp,
            );
            self.placed.push(Placed {
                log_offset,
                record_bytes: (end - record.position) as u32,
                queue_offset,
                store_timestamp,
            });
        }
        taken
    }

    /// The bytes of neighbouring units, ready to be written once they are placed side by side.
    pub(crate) fn unit_slice(&self, units: Range<usize>) -> &[u8] {
        match (self.units.get(units.start), self.units[..units.end].last()) {
            (Some(first), Some(last)) if !units.is_empty() => &self.buffer[first.bytes.start..last.bytes.end],
            _ => &[],
        }
    }

    /// Queue offsets and entries of unit `index`, once it is placed.
    pub(crate) fn entries(&self, index: usize) -> impl Iterator<Item = (u64, Entry)> {
        let unit = &self.units[index];
        let records = if unit.is_queued { unit.records.clone() } else { 0..0 };
        self.records[records.clone()].iter().zip(&self.placed[records]).map(|(record, placed)| {
            let tags_code = record.tags_code.at(placed.store_timestamp);
            let entry = Entry { log_offset: placed.log_offset, record_bytes: placed.record_bytes, tags_code };
            (placed.queue_offset, entry)
        })
    }

    /// What the index gets of units that were placed.
    pub(crate) fn keys(&self, units: Range<usize>) -> impl Iterator<Item = Key> {
        let (from, to) = (self.units[units.start].records.start, self.units[units.end - 1].records.end);
        let first = self.keys.partition_point(|key| key.record < from);
        self.keys[first..].iter().take_while(move |key| key.record < to).map(|key| {
            let placed = &self.placed[key.record];
            let (log_offset, store_timestamp) = (placed.log_offset, placed.store_timestamp as i64);
            Key { hash: key.hash, log_offset, store_timestamp }
        })
    }

    /// The first `units_placed` units are in the log; what was noted for the others is void.
    pub(crate) fn finish(&mut self, units_placed: usize) {
        let records = units_placed.checked_sub(1).map_or(0, |last| self.units[last].records.end);
        assert!(self.placed.len() >= records, "{units_placed} units finished, fewer placed");
        self.placed.truncate(records);
        self.units_placed = units_placed;
    }
}

/// The first `units_placed` units of the batch are in the log; the rest are not, because of `error`. After
/// [`AppendError::NoFileYet`] the same batch can be appended again and goes on where it was.
#[derive(Debug)]
pub struct AppendOutcome {
    pub units_placed: usize,
    pub error: Option<AppendError>,
}
