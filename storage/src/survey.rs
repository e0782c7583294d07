//! What lies in the folders of a store, looked at before anything is changed.
//!
//! ```text
//! commitlog/      only files of full length, neighbours by name      else refused, with the remedy
//! consumequeue/   <topic>/<queue id>/ the same                       a damaged queue is rebuilt from the log
//! others          kinds of data of 5.x that this version can not open  refused, or told of
//! ```
//! Sizes are not recorded in a store. A length that fits the names of the files, or that all queue files share, is taken
//! for a wrong setting and refused; a last file cut short by a copy or a full disk is lengthened (log) or rebuilt (queue).
//! Source: MappedFileQueue.load, DefaultMessageStore.loadConsumeQueue.

use crate::commit_log::file_end_by_records;
use crate::consume_queue::is_folder_name;
use crate::disk::{Disk, Found, STAGED_PREFIX};
use crate::error::OpenError;
use crate::flush::Medium;
use crate::mapped_file::{MappedFile, file_name, parse_file_name};
use crate::store::StoreConfig;
use std::path::{Path, PathBuf};

/// Offset of its first byte and length of each log file, in order. Only the last may be short.
pub(crate) type LogFiles = Vec<(u64, u64)>;

/// One queue's folder.
pub(crate) struct QueueFound {
    pub topic: String,
    pub queue_id: i32,
    /// Byte offsets of its files, in order. Neighbours of full length, unless `damage` says otherwise.
    pub starts: Vec<u64>,
    pub damage: Option<String>,
}

fn list(disk: &dyn Disk, dir: &Path) -> Result<Vec<Found>, OpenError> {
    disk.list(dir).map_err(|e| OpenError::io("can not list", dir, e))
}

fn odd(path: PathBuf, found: impl Into<String>, remedy: impl Into<String>) -> OpenError {
    OpenError::OddFile { path, found: found.into(), remedy: remedy.into() }
}

/// Removes what a kill has left of a file in the making.
fn is_staged(disk: &dyn Disk, path: &Path, found: &Found) -> Result<bool, OpenError> {
    let is_staged = found.name.to_str().is_some_and(|name| name.starts_with(STAGED_PREFIX));
    if is_staged {
        disk.remove_file(path).map_err(|e| OpenError::io("can not remove", path, e))?;
    }
    Ok(is_staged)
}

fn check_kind(path: &Path, found: &Found) -> Result<(), OpenError> {
    let remedy = "move it to another place";
    if found.is_special { Err(odd(path.to_path_buf(), "neither a file nor a folder", remedy)) } else { Ok(()) }
}

pub(crate) fn survey_log(
    disk: &dyn Disk,
    config: &StoreConfig,
    lines: &mut Vec<String>,
) -> Result<LogFiles, OpenError> {
    let dir = &config.commit_log_dir;
    let file_bytes = config.commit_log_file_bytes;
    let mut files = Vec::new();
    for found in list(disk, dir)? {
        let path = dir.join(&found.name);
        check_kind(&path, &found)?;
        if found.is_dir {
            lines.push(format!(
                "{}: a folder among the log files is passed over; a 4.9 broker would not start",
                path.display()
            ));
            continue;
        }
        if is_staged(disk, &path, &found)? {
            continue;
        }
        match parse_file_name(&found.name) {
            Some(start) => files.push((start, found.bytes)),
            None => return Err(odd(path, "not a file of the commit log", "move it to another folder")),
        }
    }
    // What a 5.x broker leaves when the disk fills up. The only file stays: without any the queues would have no log.
    if let [_, .., (start, 0)] = files[..] {
        let path = dir.join(file_name(start));
        disk.remove_file(&path).map_err(|e| OpenError::io("can not remove", &path, e))?;
        lines.push(format!("{}: the empty last file of the log was removed", path.display()));
        files.pop();
    }
    let last = files.len().saturating_sub(1);
    let mut expected = files.first().map_or(0, |(start, _)| start - start % file_bytes);
    for (index, (start, bytes)) in files.iter().copied().enumerate() {
        let path = dir.join(file_name(start));
        if start != expected {
            let step = files.get(1).map_or(bytes, |(second, _)| second - files[0].0);
            let found = format!("the file at {expected} is missing before it, if files have {file_bytes} bytes");
            let remedy = format!(
                "set mappedFileSizeCommitLog to what the store was written with ({step}?), bring the file back, or move to \
                 another folder what is no part of this log"
            );
            return Err(odd(path, found, remedy));
        }
        expected = start + file_bytes;
        if bytes == file_bytes {
            continue;
        }
        let found = format!("a log file of {bytes} bytes instead of {file_bytes}");
        let setting = format!("set mappedFileSizeCommitLog = {bytes} if the store was written with that");
        let is_by_name = files.get(1).is_some_and(|(second, _)| second - files[0].0 == bytes);
        if bytes > file_bytes || is_by_name {
            return Err(odd(path, found, setting));
        } else if index < last {
            let remedy = "restore it from a copy; what it lacks and all later files would be lost otherwise";
            return Err(odd(path, found, remedy));
        } else if index == 0 && !is_cut_short(disk, &path, start, bytes)? {
            return Err(odd(path, found, setting));
        }
    }
    Ok(files)
}

/// Whether a log file shorter than it should be was cut, in the middle of its records, and is not the whole file of a
/// store with smaller ones.
fn is_cut_short(disk: &dyn Disk, path: &Path, start: u64, bytes: u64) -> Result<bool, OpenError> {
    if bytes == 0 {
        return Ok(true);
    }
    let file = MappedFile::open(disk, path.to_path_buf(), start, bytes, Medium::Write)
        .map_err(|e| OpenError::io("can not read", path, e))?;
    Ok(file_end_by_records(file.unchecked_by_written(0..bytes), start).is_none())
}

pub(crate) fn survey_queues(
    disk: &dyn Disk,
    config: &StoreConfig,
    lines: &mut Vec<String>,
) -> Result<Vec<QueueFound>, OpenError> {
    let dir = config.root.join("consumequeue");
    let mut queues = Vec::new();
    let mut lengths = Lengths::default();
    for topic in list(disk, &dir)? {
        let path = dir.join(&topic.name);
        if !topic.is_dir {
            if topic.name == "CURRENT" {
                let remedy = "drain it with the broker that wrote it, or use another storePathRootDir";
                return Err(OpenError::Unknown {
                    path,
                    what: "consume queues in RocksDB (storeType=defaultRocksDB)",
                    remedy,
                });
            }
            lines.push(format!("{}: not a folder, passed over", path.display()));
            continue;
        }
        let Some(name) = topic.name.to_str().filter(|name| is_folder_name(name)) else {
            lines.push(format!("{}: the name is no topic, passed over", path.display()));
            continue;
        };
        for queue in list(disk, &path)? {
            let path = path.join(&queue.name);
            let queue_id = queue.name.to_str().and_then(|id| id.parse::<i32>().ok()).filter(|id| *id >= 0);
            let Some(queue_id) = queue_id.filter(|_| queue.is_dir) else {
                lines.push(format!("{}: no folder of a queue, passed over", path.display()));
                continue;
            };
            queues.push(survey_queue(disk, config, &path, name, queue_id, &mut lengths)?);
        }
    }
    lengths.check(config)?;
    Ok(queues)
}

fn survey_queue(
    disk: &dyn Disk,
    config: &StoreConfig,
    dir: &Path,
    topic: &str,
    queue_id: i32,
    lengths: &mut Lengths,
) -> Result<QueueFound, OpenError> {
    let file_bytes = config.consume_queue_file_bytes;
    let mut queue = QueueFound { topic: topic.to_owned(), queue_id, starts: Vec::new(), damage: None };
    for found in list(disk, dir)? {
        let path = dir.join(&found.name);
        if is_staged(disk, &path, &found)? {
            continue;
        }
        check_kind(&path, &found)?;
        let Some(start) = parse_file_name(&found.name).filter(|_| !found.is_dir) else {
            return Err(odd(path, "not a file of a consume queue", "move it to another folder"));
        };
        let expected = queue.starts.last().map_or(start - start % file_bytes, |last| last + file_bytes);
        lengths.see(found.bytes, file_bytes);
        if start != expected {
            queue
                .damage
                .get_or_insert_with(|| format!("{}: the file at {expected} is missing before it", path.display()));
        } else if found.bytes != file_bytes {
            queue
                .damage
                .get_or_insert_with(|| format!("{}: {} bytes instead of {file_bytes}", path.display(), found.bytes));
        }
        queue.starts.push(start);
    }
    Ok(queue)
}

/// Lengths of all queue files, to tell a wrong setting from a damaged file.
#[derive(Default)]
struct Lengths {
    is_one_right: bool,
    wrong: Option<u64>,
    is_wrong_mixed: bool,
}

impl Lengths {
    fn see(&mut self, bytes: u64, file_bytes: u64) {
        if bytes == file_bytes {
            self.is_one_right = true;
        } else if bytes > 0 && bytes.is_multiple_of(20) {
            self.is_wrong_mixed |= self.wrong.is_some_and(|wrong| wrong != bytes);
            self.wrong = Some(bytes);
        }
    }

    fn check(&self, config: &StoreConfig) -> Result<(), OpenError> {
        match self.wrong {
            Some(wrong) if !self.is_one_right && !self.is_wrong_mixed => Err(OpenError::Config {
                key: "mappedFileSizeConsumeQueue",
                value: config.consume_queue_file_bytes,
                reason: format!(
                    "the consume queue files in {} have {wrong} bytes; set it to that",
                    config.root.display()
                ),
            }),
            _ => Ok(()),
        }
    }
}

const FILES: [&str; 8] = [
    "abort",
    "checkpoint",
    "ringmq-clean-stop",
    "ringmq-deleted-topics",
    "ringmq-rebuild",
    "ringmq-sync-failed",
    "ringmq-wrong-queues",
    "lock",
];

/// What 5.x may have put beside log and queues, and folders where files belong.
pub(crate) fn survey_others(disk: &dyn Disk, root: &Path, lines: &mut Vec<String>) -> Result<(), OpenError> {
    for found in list(disk, root)? {
        check_kind(&root.join(&found.name), &found)?;
        if found.is_dir && FILES.iter().any(|name| found.name == *name) {
            return Err(odd(root.join(found.name), "a folder where a file belongs", "move it to another place"));
        }
        if found.is_dir && found.name.to_str().is_some_and(|name| name.starts_with("dledger-")) {
            return Err(OpenError::Unknown {
                path: root.join(found.name),
                what: "a commit log of DLedger (enableDLegerCommitLog)",
                remedy: "use another storePathRootDir",
            });
        }
    }
    for (name, what) in [
        ("batchconsumequeue", "batch consume queues (queue.type=BatchCQ) are kept but not served"),
        ("timerlog", "timer messages of 5.x that were not yet delivered stay undelivered"),
    ] {
        let path = root.join(name);
        if !list(disk, &path)?.is_empty() {
            lines.push(format!("{}: {what}", path.display()));
        }
    }
    Ok(())
}
