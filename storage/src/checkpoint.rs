//! `checkpoint`: up to which store time everything is on the device.
//!
//! ```text
//! 4096 bytes | log 8 | queues 8 | index 8 | master flushed offset 8 | confirmed offset 8 | zeros |
//! ```
//! A start after a crash reads the log from the last file whose first record is not newer than the smaller of the first
//! two, less three seconds. So a time too old costs time and a time too new costs messages: the queues' time is the
//! store time taken before a round in which every queue was written and synced. The last two are 5.x's and kept.
//! Source: StoreCheckpoint.java.

use crate::disk::{Blocks, Disk, DiskFile, NewFile};
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

const BYTES: u64 = 4096;
/// Java's margin for records of one moment.
pub(crate) const MARGIN_MS: u64 = 3000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    pub log: u64,
    pub queues: u64,
    pub index: u64,
}

impl Times {
    /// The store time that a record may have at most for recovery to start at it.
    pub fn recover_from(self) -> u64 {
        self.log.min(self.queues).saturating_sub(MARGIN_MS)
    }
}

pub(crate) struct Checkpoint {
    file: Box<dyn DiskFile>,
    times: Mutex<Times>,
}

impl Checkpoint {
    /// Opens or makes the file. One that is too short is of no use and is made anew, with a remark.
    pub fn open(disk: &dyn Disk, path: &Path, staging: &Path, remarks: &mut Vec<String>) -> io::Result<Checkpoint> {
        if let Some(bytes) = disk.read(path)? {
            if bytes.len() as u64 >= BYTES {
                let time = |at: usize| {
                    let time = i64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
                    u64::try_from(time).unwrap_or(0)
                };
                let times = Times { log: time(0), queues: time(8), index: time(16) };
                return Ok(Checkpoint { file: disk.open(path)?, times: Mutex::new(times) });
            }
            remarks.push(format!("{}: {} bytes instead of {BYTES}, made anew", path.display(), bytes.len()));
            disk.remove_file(path)?;
        }
        let file = disk.create(&NewFile { path, staging, bytes: BYTES, blocks: Blocks::Taken, content: &[] })?;
        Ok(Checkpoint { file, times: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn times(&self) -> Times {
        *self.lock()
    }

    /// The log is durable up to this store time; written by the next `write`.
    pub fn advance_log(&self, store_timestamp: u64) {
        let mut times = self.lock();
        times.log = times.log.max(store_timestamp);
    }

    /// So are the queues.
    pub fn advance_queues(&self, store_timestamp: u64) {
        let mut times = self.lock();
        times.queues = times.queues.max(store_timestamp);
    }

    /// Every index file that ends at or before this store time is on the device. Goes back, too: while the last one is
    /// being written nothing is said of it.
    pub fn set_index(&self, store_timestamp: u64) {
        self.lock().index = store_timestamp;
    }

    /// The log's time alone, and not synced: a process that is killed leaves it behind, and it is true whenever it arrives.
    pub fn note_log(&self) -> io::Result<()> {
        self.file.write_at(0, &self.times().log.to_be_bytes())
    }

    /// No record is newer: a time beyond it would cover records that are yet to come.
    pub fn limit(&self, store_timestamp: u64) {
        let mut times = self.lock();
        times.log = times.log.min(store_timestamp);
        times.queues = times.queues.min(store_timestamp);
        times.index = times.index.min(store_timestamp);
    }

    pub fn write(&self) -> io::Result<()> {
        let times = self.times();
        let mut bytes = [0; 24];
        for (field, time) in bytes.chunks_exact_mut(8).zip([times.log, times.queues, times.index]) {
            field.copy_from_slice(&time.to_be_bytes());
        }
        self.file.write_at(0, &bytes)?;
        self.file.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;

    #[test]
    fn what_is_written_is_read_and_a_stump_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoint");
        let mut remarks = Vec::new();
        let mut open = || Checkpoint::open(&RealDisk, &path, dir.path(), &mut remarks).unwrap();
        let checkpoint = open();
        assert_eq!(checkpoint.times(), Times::default());
        checkpoint.advance_log(5000);
        checkpoint.advance_queues(4000);
        checkpoint.advance_queues(3000);
        checkpoint.write().unwrap();
        assert_eq!(std::fs::read(&path).unwrap().len(), 4096);
        assert_eq!(open().times(), Times { log: 5000, queues: 4000, index: 0 });
        assert_eq!(open().times().recover_from(), 1000);
        let checkpoint = open();
        checkpoint.limit(4500);
        assert_eq!(checkpoint.times(), Times { log: 4500, queues: 4000, index: 0 });
        std::fs::write(&path, "x").unwrap();
        assert_eq!(open().times(), Times::default());
        assert!(remarks[0].contains("1 bytes instead of 4096"));
        assert_eq!(remarks.len(), 1);
    }
}
