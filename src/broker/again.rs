//! A record of the log on its way into the log once more: sent back, due, committed, given up.
//!
//! Body, flags, born data and properties stay what they were, in bytes; topic and queue are others. A delay level sends it
//! through the schedule topic. Limits are the store's: what was accepted once fits again, whatever was added since.

use super::Broker;
use super::schedule;
use bytes::Bytes;
use ringmq_storage::append::AppendBatch;
use ringmq_storage::error::RecordError;
use ringmq_storage::record::decode::Record;
use ringmq_storage::record::layout::sys_flag;
use ringmq_storage::record::{NewRecord, properties};
use std::net::SocketAddr;

pub struct Again<'a> {
    pub topic: &'a str,
    pub queue_id: i32,
    pub flag: i32,
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub born_host: SocketAddr,
    pub store_host: SocketAddr,
    pub reconsume_times: i32,
    pub prepared_offset: i64,
    pub body: &'a [u8],
    pub text: &'a [u8],
    /// Above 0: delivered when that level's time is over.
    pub delay_level: i64,
}

impl<'a> Again<'a> {
    pub fn of(record: &Record<'a>, topic: &'a str, queue_id: i32, text: &'a [u8]) -> Again<'a> {
        let mut flags = record.sys_flag;
        if !sys_flag::is_queued(flags) {
            // It would be stored and never seen.
            flags &= !sys_flag::TRANSACTION_MASK;
        }
        Again {
            topic,
            queue_id,
            flag: record.flag,
            sys_flag: flags,
            born_timestamp: record.born_timestamp,
            born_host: record.born_host,
            store_host: record.store_host,
            reconsume_times: record.reconsume_times,
            prepared_offset: 0,
            body: record.body,
            text,
            delay_level: 0,
        }
    }

    /// Into the batch. Returns the unit.
    ///
    /// # Errors
    /// A limit of the store itself; the batch is unchanged then.
    pub fn push(&self, broker: &Broker, append: &mut AppendBatch) -> Result<usize, RecordError> {
        let properties = [self.text];
        let record = NewRecord {
            topic: self.topic,
            queue_id: self.queue_id,
            flag: self.flag,
            sys_flag: self.sys_flag,
            born_timestamp: self.born_timestamp,
            born_host: self.born_host,
            store_host: self.store_host,
            reconsume_times: self.reconsume_times,
            prepared_offset: self.prepared_offset,
            body: self.body,
            properties: &properties,
        };
        if self.delay_level > 0 {
            return schedule::push(broker, &record, self.text, self.delay_level, append);
        }
        let tags_code = properties::get(self.text, properties::TAGS).map_or(0, properties::tag_code);
        let queue = broker.store.queue_or_create(self.topic, self.queue_id);
        append.push(&record, tags_code, &queue, broker.own_limits)
    }
}

/// The record at a log offset that a client gave.
pub fn record_at(broker: &Broker, offset: i64) -> Option<Bytes> {
    broker.store.record_at(u64::try_from(offset).ok()?)
}
