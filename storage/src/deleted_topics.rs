//! `ringmq-deleted-topics`: topics that were deleted, and where the log ended then.
//!
//! ```text
//! a line each    <log end> <topic> <CRC32 of the text before, in hex>
//! ```
//! One that does not agree is passed over: a wrong number would take messages away.
//! The records of a deleted topic stay in the log. Java's start after a crash makes queues of them again, and if the
//! topic was made anew, puts the old messages before the new. Ours gives no entry to a record of the topic below the
//! noted end. A line goes when the log no longer reaches back to it. Java does not know the file and leaves it alone.

use crate::disk::Disk;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

pub(crate) struct DeletedTopics {
    path: PathBuf,
    log_ends: BTreeMap<String, u64>,
}

impl DeletedTopics {
    /// Lines that can not be read are dropped: the worst is that a deleted topic comes back.
    pub fn load(disk: &dyn Disk, path: PathBuf) -> io::Result<DeletedTopics> {
        let text = disk.read(&path)?.unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let mut log_ends = BTreeMap::new();
        for line in text.lines() {
            match parse_line(line) {
                Some((log_end, topic)) => _ = log_ends.insert(topic.to_owned(), log_end),
                None => {
                    tracing::error!(path = %path.display(), line, "the line is damaged, a deleted topic may come back");
                }
            }
        }
        Ok(DeletedTopics { path, log_ends })
    }

    /// Records of `topic` below this log offset belong to the deleted one.
    pub fn log_end(&self, topic: &str) -> u64 {
        self.log_ends.get(topic).copied().unwrap_or(0)
    }

    /// On the device when this returns.
    pub fn insert(&mut self, disk: &dyn Disk, topic: &str, log_end: u64) -> io::Result<()> {
        let before = self.log_ends.insert(topic.to_owned(), log_end);
        self.write(disk).inspect_err(|_| {
            match before {
                Some(before) => self.log_ends.insert(topic.to_owned(), before),
                None => self.log_ends.remove(topic),
            };
        })
    }

    /// The log begins at `log_min` and ends at `log_max`. What lies before is of no use any more; what lies behind was
    /// lost with the end of the log, and what is stored there next is new.
    pub fn keep_within(&mut self, disk: &dyn Disk, log_min: u64, log_max: u64) -> io::Result<()> {
        let before = self.log_ends.clone();
        self.log_ends.values_mut().for_each(|log_end| *log_end = log_max.min(*log_end));
        self.log_ends.retain(|_, log_end| *log_end > log_min);
        if self.log_ends == before { Ok(()) } else { self.write(disk) }
    }

    fn write(&self, disk: &dyn Disk) -> io::Result<()> {
        let text: String = self.log_ends.iter().map(|(topic, log_end)| line(*log_end, topic)).collect();
        disk.replace(&self.path, text.as_bytes())
    }
}

/// Log end and topic of a line; `None` when it is none, or not as it was written.
pub fn parse_line(line: &str) -> Option<(u64, &str)> {
    let (log_end, rest) = line.split_once(' ')?;
    let (topic, crc) = rest.split_once(' ')?;
    (crc == checksum(log_end, topic)).then_some((log_end.parse().ok()?, topic))
}

fn checksum(log_end: &str, topic: &str) -> String {
    format!("{:08x}", crc32fast::hash(format!("{log_end} {topic}").as_bytes()))
}

fn line(log_end: u64, topic: &str) -> String {
    let log_end = log_end.to_string();
    format!("{log_end} {topic} {}\n", checksum(&log_end, topic))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;

    #[test]
    fn lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deleted");
        let load = || DeletedTopics::load(&RealDisk, path.clone()).unwrap();
        let mut deleted = load();
        deleted.insert(&RealDisk, "a", 100).unwrap();
        deleted.insert(&RealDisk, "%RETRY%b", 300).unwrap();
        deleted.insert(&RealDisk, "a", 200).unwrap();
        assert_eq!((load().log_end("a"), load().log_end("%RETRY%b"), load().log_end("c")), (200, 300, 0));
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replacen("200 a", "201 a", 1)).unwrap();
        assert_eq!((load().log_end("a"), load().log_end("%RETRY%b")), (0, 300), "a damaged line");
        std::fs::write(&path, text.replacen("200 a", "2000", 1)).unwrap();
        assert_eq!((load().log_end("a"), load().log_end("%RETRY%b")), (0, 300), "a shortened line");
        std::fs::write(&path, &text).unwrap();
        deleted.keep_within(&RealDisk, 200, 300).unwrap();
        assert_eq!((load().log_end("a"), load().log_end("%RETRY%b")), (0, 300));
        deleted.keep_within(&RealDisk, 200, 250).unwrap();
        assert_eq!(load().log_end("%RETRY%b"), 250, "the log was cut behind 250");
    }
}
