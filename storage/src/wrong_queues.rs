//! `ringmq-wrong-queues`: a pull has met entries that point to no record of theirs; the next start makes these queues anew.
//!
//! ```text
//! one line for each queue    <queue id> <topic>
//! ```
//! A start holds the entries of the last log file against its records; what lies further back is only met by who reads it.
//! Written by the file agent, removed by the start that has mended them.

use crate::disk::Disk;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Queues named at most: with more than these the whole store needs a look.
const QUEUE_COUNT_MAX: usize = 10_000;

pub(crate) type Names = BTreeSet<(String, i32)>;

/// Those met since the start.
#[derive(Default)]
pub(crate) struct WrongQueues {
    names: Mutex<Names>,
    is_new: AtomicBool,
}

fn path(root: &Path) -> PathBuf {
    root.join("ringmq-wrong-queues")
}

impl WrongQueues {
    pub fn add(&self, topic: &str, queue_id: i32) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() < QUEUE_COUNT_MAX && names.insert((topic.to_owned(), queue_id)) {
            self.is_new.store(true, Ordering::Release);
        }
    }

    /// Writes the note, if something is new. What fails is tried again at the next call.
    pub fn write(&self, disk: &dyn Disk, root: &Path) -> io::Result<()> {
        if !self.is_new.load(Ordering::Relaxed) || !self.is_new.swap(false, Ordering::Acquire) {
            return Ok(());
        }
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let text: String = names.iter().map(|(topic, queue_id)| format!("{queue_id} {topic}\n")).collect();
        disk.replace(&path(root), text.as_bytes()).inspect_err(|_| self.is_new.store(true, Ordering::Release))
    }
}

/// Of the processes before.
pub(crate) fn read(disk: &dyn Disk, root: &Path) -> io::Result<Names> {
    let bytes = disk.read(&path(root))?.unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let name = |line: &str| {
        let (queue_id, topic) = line.split_once(' ')?;
        Some((topic.to_owned(), queue_id.parse().ok()?))
    };
    Ok(text.lines().filter_map(name).collect())
}

pub(crate) fn remove(disk: &dyn Disk, root: &Path) -> io::Result<()> {
    disk.remove_file(&path(root))
}
