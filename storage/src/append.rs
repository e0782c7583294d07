//! A turn's batch: records encoded side by side in one buffer, placed in the log by one call.

use crate::consume_queue::ConsumeQueue;
use crate::error::{AppendError, RecordError};
use crate::record::{NewRecord, RecordLimits};
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
pub struct AppendBatch {}

impl AppendBatch {
    pub fn is_empty(&self) -> bool {
        todo!()
    }
    pub fn bytes(&self) -> usize {
        todo!()
    }
    /// Number of units pushed.
    pub fn unit_count(&self) -> usize {
        todo!()
    }
    /// One record = one unit. `tags_code` is the queue entry's. Returns the unit's index.
    pub fn push(&mut self, _record: &NewRecord<'_>, _tags_code: i64, _queue: &Arc<ConsumeQueue>, _limits: RecordLimits) -> Result<usize, RecordError> {
        todo!()
    }
    /// A client batch (request 320): `body` in the batch encoding, every inner message becomes a record with `shared`'s
    /// topic, queue, hosts, times, sys_flag; its own flag, body, properties followed by `shared.properties` with the 0x02
    /// rule. One unit: all in one file, consecutive queue offsets. Errors leave the batch unchanged.
    pub fn push_client_batch(&mut self, _shared: &NewRecord<'_>, _queue: &Arc<ConsumeQueue>, _limits: RecordLimits) -> Result<usize, RecordError> {
        todo!()
    }
    /// After `Store::append`: the records of unit `index`, in order; empty slice if the unit was not placed.
    pub fn placed(&self, _index: usize) -> &[Placed] {
        todo!()
    }
    /// The queue of unit `index`.
    pub fn queue(&self, _index: usize) -> &Arc<ConsumeQueue> {
        todo!()
    }
    pub fn clear(&mut self) {
        todo!()
    }
}

/// The first `units_placed` units are in the log; the rest are not, because of `error`.
#[derive(Debug)]
pub struct AppendOutcome {
    pub units_placed: usize,
    pub error: Option<AppendError>,
}
