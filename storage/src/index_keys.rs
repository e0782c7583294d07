//! Keys of appended records on their way to the index, which else reads the records again.
//!
//! ```text
//! append  ─ under the gate ─> shared  | stretch of the log: its keys | stretch | …
//! index   ─ takes all of it ─> own    | stretch … |      goes on behind it where the stretches do, or walks up to the next
//! ```
//! A stretch says that the log from here to there has these keys and no others. Nothing is lost with one: what no stretch
//! covers (all of the log at a start, what came while too many waited) is walked.

use crate::append::AppendBatch;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// So many keys wait at most; further stretches are left to the walk.
const KEYS_MAX: usize = 1 << 18;

/// One key of a record, to be put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub hash: u32,
    pub log_offset: u64,
    pub store_timestamp: i64,
}

#[derive(Clone, Copy, Debug)]
struct Stretch {
    from: u64,
    to: u64,
    key_count: usize,
    /// Of its last record.
    store_timestamp: u64,
}

#[derive(Default)]
struct Stretches {
    keys: Vec<Key>,
    stretches: Vec<Stretch>,
}

/// Of the log: appends put, the index takes.
#[derive(Default)]
pub(crate) struct AppendedKeys {
    shared: Mutex<Stretches>,
    is_off: AtomicBool,
}

impl AppendedKeys {
    /// There is no index.
    pub fn turn_off(&self) {
        self.is_off.store(true, Ordering::Relaxed);
    }

    /// Units that were placed, in the order of the log: under its gate.
    pub fn put(&self, batch: &AppendBatch, units: Range<usize>) {
        if self.is_off.load(Ordering::Relaxed) {
            return;
        }
        let (Some(first), Some(last)) = (batch.placed(units.start).first(), batch.placed(units.end - 1).last()) else {
            return;
        };
        let (from, to) = (first.log_offset, last.log_offset + u64::from(last.record_bytes));
        let Stretches { keys, stretches } = &mut *self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if keys.len() >= KEYS_MAX {
            return;
        }
        let before = keys.len();
        keys.extend(batch.keys(units));
        let key_count = keys.len() - before;
        match stretches.last_mut() {
            Some(open) if open.to == from => {
                open.to = to;
                open.key_count += key_count;
                open.store_timestamp = last.store_timestamp;
            }
            _ => stretches.push(Stretch { from, to, key_count, store_timestamp: last.store_timestamp }),
        }
    }
}

/// How the index goes on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The keys are taken of all records below `position`, the last of which was stored at `store_timestamp` or later.
    Taken { position: u64, store_timestamp: u64 },
    /// By walking the log, up to there.
    Walk { to: u64 },
}

/// Of the index: what it took and has not put yet.
#[derive(Default)]
pub(crate) struct OwnKeys {
    own: Stretches,
    next_key: usize,
    next_stretch: usize,
}

impl OwnKeys {
    /// Keys of the records from `position` on, some `count_max` of them, all of records below `end`.
    pub fn take(
        &mut self,
        shared: &AppendedKeys,
        position: u64,
        end: u64,
        count_max: usize,
        out: &mut Vec<Key>,
    ) -> Next {
        loop {
            if self.next_stretch == self.own.stretches.len() {
                self.own.keys.clear();
                self.own.stretches.clear();
                (self.next_key, self.next_stretch) = (0, 0);
                std::mem::swap(&mut self.own, &mut shared.shared.lock().unwrap_or_else(PoisonError::into_inner));
            }
            let Some(stretch) = self.own.stretches.get_mut(self.next_stretch) else {
                return Next::Walk { to: end };
            };
            if stretch.to <= position {
                self.next_key += stretch.key_count;
                self.next_stretch += 1;
                continue;
            }
            if stretch.from > position {
                return Next::Walk { to: end.min(stretch.from) };
            }
            let keys = &self.own.keys[self.next_key..][..stretch.key_count];
            // Those of walked records.
            let first = keys.partition_point(|key| key.log_offset < position);
            let below = keys.partition_point(|key| key.log_offset < end);
            // All keys of a record together.
            let cut = keys.get(first + count_max).map(|key| key.log_offset);
            let last = cut.map_or(below, |offset| below.min(keys.partition_point(|key| key.log_offset <= offset)));
            out.extend_from_slice(&keys[first..last]);
            let is_all = last == keys.len() && stretch.to <= end;
            let store_timestamp = match last.checked_sub(1) {
                _ if is_all => stretch.store_timestamp,
                Some(last) => keys[last].store_timestamp as u64,
                None => 0,
            };
            let behind = keys.get(last).map_or(stretch.to, |key| key.log_offset).min(end).max(position);
            self.next_key += last;
            stretch.key_count -= last;
            stretch.from = behind;
            self.next_stretch += usize::from(is_all);
            return Next::Taken { position: behind, store_timestamp };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(log_offset: u64, hash: u32) -> Key {
        Key { hash, log_offset, store_timestamp: log_offset as i64 }
    }

    fn shared(stretches: &[(u64, u64, &[u64])]) -> AppendedKeys {
        let shared = AppendedKeys::default();
        {
            let mut all = shared.shared.lock().unwrap();
            for (from, to, offsets) in stretches {
                all.keys.extend(offsets.iter().enumerate().map(|(hash, at)| key(*at, hash as u32)));
                all.stretches.push(Stretch { from: *from, to: *to, key_count: offsets.len(), store_timestamp: *to });
            }
        }
        shared
    }

    /// Offsets of the keys taken and where that ends, 10 records of 10 bytes from 100 on with keys as `stretches` have them.
    fn takes(shared: &AppendedKeys, mut position: u64, end: u64, count_max: usize) -> Vec<(Vec<u64>, Next)> {
        let mut own = OwnKeys::default();
        let mut all = Vec::new();
        while position < end {
            let mut out = Vec::new();
            let next = own.take(shared, position, end, count_max, &mut out);
            position = match &next {
                Next::Taken { position, .. } => *position,
                Next::Walk { to } => *to,
            };
            all.push((out.iter().map(|key| key.log_offset).collect(), next));
        }
        all
    }

    #[test]
    fn what_no_stretch_covers_is_walked() {
        let keys = shared(&[(120, 150, &[120, 130, 130]), (170, 200, &[190])]);
        let taken = |position, store_timestamp| Next::Taken { position, store_timestamp };
        let walk = |to| Next::Walk { to };
        let want = vec![
            (vec![], walk(120)),
            (vec![120, 130, 130], taken(150, 150)),
            (vec![], walk(170)),
            (vec![190], taken(200, 200)),
            (vec![], walk(230)),
        ];
        assert_eq!(takes(&keys, 100, 230, 99), want);
    }

    #[test]
    fn keys_of_walked_records_are_passed_over() {
        let keys = shared(&[(100, 150, &[100, 110, 140]), (150, 200, &[150])]);
        let want = vec![
            (vec![140], Next::Taken { position: 150, store_timestamp: 150 }),
            (vec![150], Next::Taken { position: 200, store_timestamp: 200 }),
        ];
        assert_eq!(takes(&keys, 120, 200, 99), want);
        assert_eq!(takes(&shared(&[(100, 150, &[100])]), 150, 160, 99), vec![(vec![], Next::Walk { to: 160 })]);
    }

    #[test]
    fn a_records_keys_stay_together_and_none_is_above_the_end() {
        let keys = shared(&[(100, 200, &[100, 110, 110, 110, 150, 190])]);
        let mut own = OwnKeys::default();
        let mut take = |position, end| {
            let mut out = Vec::new();
            let next = own.take(&keys, position, end, 1, &mut out);
            (out.iter().map(|key| key.log_offset).collect::<Vec<u64>>(), next)
        };
        assert_eq!(take(100, 180), (vec![100, 110, 110, 110], Next::Taken { position: 150, store_timestamp: 110 }));
        assert_eq!(take(150, 180), (vec![150], Next::Taken { position: 180, store_timestamp: 150 }));
        assert_eq!(take(180, 190), (vec![], Next::Taken { position: 190, store_timestamp: 0 }));
        assert_eq!(take(190, 200), (vec![190], Next::Taken { position: 200, store_timestamp: 200 }));
        assert_eq!(take(200, 300), (vec![], Next::Walk { to: 300 }));
    }
}
