//! Open files of the consume queues, bounded: a hundred thousand queues share a few hundred descriptors.
//!
//! The clock algorithm: a hand goes round, a file used since its last visit is spared once, else it is closed. Closing
//! only drops this reference; a read that is under way keeps its own.

use crate::disk::{Disk, DiskFile};
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A queue's number in this process and the start of one of its files.
pub(crate) type FileKey = (u64, u64);

pub(crate) struct Descriptors {
    count_max: usize,
    clock: Mutex<Clock>,
}

#[derive(Default)]
struct Clock {
    slots: Vec<Slot>,
    by_key: HashMap<FileKey, usize>,
    hand: usize,
}

struct Slot {
    key: FileKey,
    file: Arc<dyn DiskFile>,
    is_used: bool,
}

impl Descriptors {
    pub fn new(count_max: usize) -> Descriptors {
        assert!(count_max > 0);
        Descriptors { count_max, clock: Mutex::default() }
    }

    /// The open file of `key`, opened at `path` if need be.
    pub fn open(&self, disk: &dyn Disk, key: FileKey, path: impl FnOnce() -> PathBuf) -> io::Result<Arc<dyn DiskFile>> {
        {
            let mut clock = self.lock();
            if let Some(&index) = clock.by_key.get(&key) {
                let slot = &mut clock.slots[index];
                slot.is_used = true;
                return Ok(Arc::clone(&slot.file));
            }
        }
        let file: Arc<dyn DiskFile> = Arc::from(disk.open(&path())?);
        self.insert(key, Arc::clone(&file));
        Ok(file)
    }

    pub fn insert(&self, key: FileKey, file: Arc<dyn DiskFile>) {
        let mut clock = self.lock();
        let clock = &mut *clock;
        let slot = Slot { key, file, is_used: true };
        if let Some(&index) = clock.by_key.get(&key) {
            clock.slots[index] = slot;
        } else if clock.slots.len() < self.count_max {
            clock.by_key.insert(key, clock.slots.len());
            clock.slots.push(slot);
        } else {
            while clock.slots[clock.hand].is_used {
                clock.slots[clock.hand].is_used = false;
                clock.hand = (clock.hand + 1) % clock.slots.len();
            }
            let index = clock.hand;
            clock.hand = (clock.hand + 1) % clock.slots.len();
            clock.by_key.remove(&clock.slots[index].key);
            clock.by_key.insert(key, index);
            clock.slots[index] = slot;
        }
    }

    /// Closes the files that `is_gone` names: they were removed.
    pub fn forget(&self, is_gone: impl Fn(FileKey) -> bool) {
        let mut clock = self.lock();
        let clock = &mut *clock;
        clock.slots.retain(|slot| !is_gone(slot.key));
        clock.by_key = clock.slots.iter().enumerate().map(|(index, slot)| (slot.key, index)).collect();
        clock.hand = 0;
    }

    fn lock(&self) -> MutexGuard<'_, Clock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;

    #[test]
    fn the_number_of_open_files_is_bounded_and_used_ones_stay() {
        let dir = tempfile::tempdir().unwrap();
        let descriptors = Descriptors::new(3);
        for queue in 0..10u64 {
            std::fs::write(dir.path().join(queue.to_string()), "x").unwrap();
        }
        let open =
            |queue: u64| descriptors.open(&RealDisk, (queue, 0), || dir.path().join(queue.to_string())).map(|_| ());
        let keys = || {
            let mut keys: Vec<u64> = descriptors.lock().by_key.keys().map(|(queue, _)| *queue).collect();
            keys.sort_unstable();
            keys
        };
        for queue in [0, 1, 2, 3] {
            open(queue).unwrap();
        }
        assert_eq!(keys(), [1, 2, 3]);
        open(1).unwrap();
        open(4).unwrap();
        assert_eq!(keys(), [1, 3, 4]);
        descriptors.forget(|(queue, _)| queue == 3);
        assert_eq!(keys(), [1, 4]);
        assert!(open(11).is_err());
    }
}
