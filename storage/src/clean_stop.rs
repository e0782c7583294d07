//! `ringmq-clean-stop`: what a clean stop left behind, so that the next start can tell whether it is still there.
//!
//! ```text
//! one line    <log end> <queues> <sum of their max offsets> <end of the log in the index> <its items>
//! ```
//! When log and queues are as noted, a start reads the last log file only. Another log end: a Java broker has written in
//! between, and its queues are held against the last three files, as it does. Other queues: some were removed or lost
//! their end, and only the whole log can say what was in them.
//! Written before `abort` goes, removed once `abort` is there again. Java does not know the file and leaves it alone.

use crate::disk::Disk;
use crate::index::IndexEnd;
use std::io;
use std::path::{Path, PathBuf};

/// Queues with entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub queue_count: u64,
    pub max_sum: u64,
}

impl Tally {
    pub fn of(max_offsets: impl Iterator<Item = u64>) -> Tally {
        max_offsets.filter(|max| *max > 0).fold(Tally::default(), |tally, max| Tally {
            queue_count: tally.queue_count + 1,
            max_sum: tally.max_sum.wrapping_add(max),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CleanStop {
    pub log_end: u64,
    pub tally: Tally,
    pub index: IndexEnd,
}

fn path(root: &Path) -> PathBuf {
    root.join("ringmq-clean-stop")
}

impl CleanStop {
    /// `None` when there is none, or none that can be read.
    pub fn read(disk: &dyn Disk, root: &Path) -> io::Result<Option<CleanStop>> {
        let bytes = disk.read(&path(root))?.unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let mut numbers = text.split_whitespace().map(|word| word.parse().ok());
        let mut next = || numbers.next().flatten();
        Ok((|| {
            Some(CleanStop {
                log_end: next()?,
                tally: Tally { queue_count: next()?, max_sum: next()? },
                index: IndexEnd { built: next()?, item_count: next()? },
            })
        })())
    }

    pub fn write(&self, disk: &dyn Disk, root: &Path) -> io::Result<()> {
        let CleanStop { log_end, tally: Tally { queue_count, max_sum }, index: IndexEnd { built, item_count } } = self;
        disk.replace(&path(root), format!("{log_end} {queue_count} {max_sum} {built} {item_count}\n").as_bytes())
    }

    pub fn remove(disk: &dyn Disk, root: &Path) -> io::Result<()> {
        disk.remove_file(&path(root))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;

    #[test]
    fn a_note_is_read_back_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let read = || CleanStop::read(&RealDisk, dir.path()).unwrap();
        assert_eq!(read(), None);
        let stop = CleanStop {
            log_end: 5,
            tally: Tally::of([0, 3, 4, 0].into_iter()),
            index: IndexEnd { built: 5, item_count: 9 },
        };
        assert_eq!(stop.tally, Tally { queue_count: 2, max_sum: 7 });
        stop.write(&RealDisk, dir.path()).unwrap();
        assert_eq!(read(), Some(stop));
        for text in ["", "5 2", "5 2 x", "-5 2 7 5 9", "5 2 7"] {
            std::fs::write(path(dir.path()), text).unwrap();
            assert_eq!(read(), None, "{text:?}");
        }
        CleanStop::remove(&RealDisk, dir.path()).unwrap();
        CleanStop::remove(&RealDisk, dir.path()).unwrap();
    }
}
