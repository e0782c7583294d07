//! What a start makes of the files it finds: after a clean stop, after a crash, ours or Java's.
//!
//! ```text
//! 1 survey      names and lengths of all files; what is odd is refused before anything is changed
//! 2 load        each queue: its last valid entry
//! 3 walk        records from S on, each checked; the log ends at E, before the first that is not whole
//!                 clean:  S = the start of the last file when log and queues are as noted (clean_stop.rs),
//!                             else of the last three, as 4.9.7
//!                 crash:  S = the last file whose first record the checkpoint covers
//!               a record whose entry is missing gets it; damage that is no torn tail is filled and passed (damage.rs)
//! 4 cut         entries beyond E go, files beyond E go, the rest of E's file is zeroed
//! 5 rebuild     queues that do not agree with their records: the whole log is read for them (queue_repair.rs)
//! ```
//! `abort` is written between 1 and 2, so a start that is killed is followed by one after a crash; one that is killed
//! while it rebuilds leaves `ringmq-rebuild`, and the next walks the whole log. Everything is idempotent: a second start
//! finds nothing to do.
//!
//! Where it does more than Java: queues are repaired each for itself, by queue offset; a gap is never left; stale bytes
//! behind a cut are zeroed; topics deleted stay deleted. What it can not see: after a crash, or after a stop of Java's, the
//! folder of a single queue is gone and the records walked hold none of that queue.
//! Source: DefaultMessageStore.load/recover, CommitLog.recoverNormally/recoverAbnormally, ConsumeQueue.recover.

use crate::agent::tell_faults;
use crate::bus_error;
use crate::checkpoint::{self, Checkpoint};
use crate::clean_stop::CleanStop;
use crate::commit_log::{CommitLog, LogPlace, find};
use crate::consume_queue::{ConsumeQueue, QueueRoom};
use crate::damage;
use crate::deleted_topics::DeletedTopics;
use crate::disk::Disk;
use crate::error::OpenError;
use crate::ext::ExtFiles;
use crate::failed_sync;
use crate::index::{self, Index};
use crate::mapped_file::{MappedFile, file_name};
use crate::queue_repair::{QueueError, QueueRepair};
use crate::record::decode::{Checked, Record, check, find_record, peek_size, peek_store_timestamp};
use crate::record::layout::{BLANK_BYTES, MAGIC_V1, MAGIC_V2};
use crate::store::{OpenReport, Queues, StoreConfig};
use crate::survey::{LogFiles, survey_log, survey_others, survey_queues};
use crate::wrong_queues;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Folders under the root with a folder for each topic.
pub(crate) const QUEUE_DIRS: [&str; 3] = ["consumequeue", "consumequeue_ext", "batchconsumequeue"];
/// Files walked after a clean stop.
const CLEAN_FILE_COUNT: usize = 3;

pub(crate) struct Recovered {
    pub log: CommitLog,
    pub index: Index,
    pub room: Arc<QueueRoom>,
    pub queues: Queues,
    /// Queues whose files recovery, or the process that died before it, has changed and not synced.
    pub unsynced: Vec<Arc<ConsumeQueue>>,
    pub ext: ExtFiles,
    pub checkpoint: Checkpoint,
    pub deleted: DeletedTopics,
    pub report: OpenReport,
}

/// Turns an I/O error into one that names what was done to which path.
fn told<T>(act: &'static str, path: &Path, result: io::Result<T>) -> Result<T, OpenError> {
    result.map_err(|e| OpenError::io(act, path, e))
}

fn told_queue<T>(result: Result<T, QueueError>) -> Result<T, OpenError> {
    result.map_err(|e| OpenError::io("can not recover the consume queue", &e.path, e.error))
}

/// The caller holds the lock.
pub(crate) fn recover(disk: &Arc<dyn Disk>, config: &StoreConfig) -> Result<Recovered, OpenError> {
    let root = &config.root;
    let staging = root.join("ringmq-tmp");
    let mut lines = Vec::new();
    let log_found = survey_log(&**disk, config, &mut lines)?;
    let queues_found = survey_queues(&**disk, config, &mut lines)?;
    survey_others(&**disk, root, &mut lines)?;
    if log_found.is_empty() && queues_found.iter().any(|queue| !queue.starts.is_empty()) {
        return Err(OpenError::OddFile {
            path: config.commit_log_dir.clone(),
            found: "no commit log, but consume queues with entries".to_owned(),
            remedy:
                "check storePathCommitLog and that its disk is mounted; to start anew, remove the folder consumequeue"
                    .to_owned(),
        });
    }
    let abort = root.join("abort");
    let is_clean = told("can not read", &abort, disk.read(&abort))?.is_none();
    told("can not write", &abort, disk.replace(&abort, std::process::id().to_string().as_bytes()))?;
    let note = told("can not read the clean stop in", root, CleanStop::read(&**disk, root))?.filter(|_| is_clean);
    told("can not remove the clean stop in", root, CleanStop::remove(&**disk, root))?;
    told("can not empty", &staging, disk.remove_dir_all(&staging))?;
    told("can not create", &config.commit_log_dir, disk.create_dirs(&config.commit_log_dir))?;
    let path = root.join("checkpoint");
    let checkpoint = told("can not open", &path, Checkpoint::open(&**disk, &path, &staging, &mut lines))?;
    let path = root.join("ringmq-deleted-topics");
    let mut deleted = told("can not read", &path, DeletedTopics::load(&**disk, path.clone()))?;
    let path = root.join("consumequeue_ext");
    let ext = told("can not read", &path, ExtFiles::load(&**disk, &path))?;

    let mut faults_seen = bus_error::count();
    let mut files = open_log(&**disk, config, log_found, &mut lines)?;
    if !is_clean {
        // Before any queue: a power loss in the middle of this start must not leave queues and no log.
        told("can not flush", &config.commit_log_dir, disk.sync_dir(&config.commit_log_dir))?;
    }
    let queue_dir = root.join("consumequeue");
    let room = Arc::new(QueueRoom::new(
        Arc::clone(disk),
        queue_dir,
        &staging,
        config.consume_queue_file_bytes,
        descriptor_count_max(),
    ));

    let recent_crash = first_file_after_crash(&files, checkpoint.times().recover_from());
    if told("can not read what a failed sync has left in", root, failed_sync::is_noted(&**disk, root))? {
        lines.push("a sync has failed before: what it may have lost is written once more".to_owned());
        told("can not rewrite", root, failed_sync::rewrite(&**disk, root, &files[recent_crash.min(files.len())..]))?;
    }
    let marker = Marker { disk: &**disk, path: root.join("ringmq-rebuild") };
    let is_marked = marker.is_set()?;
    // Somebody has written since, a Java broker, whose queues are not those of the note either.
    let note = note.filter(|note| !damage::goes_on(&files, note.log_end));
    let mut repair =
        told_queue(QueueRepair::load(&room, &deleted, &files, &queues_found, &config.delays_ms, &mut lines))?;
    let wrong = told("can not read what pulls have noted in", root, wrong_queues::read(&**disk, root))?;
    repair.mark(&wrong, &mut lines);
    let is_lost = note.is_some_and(|note| note.tally != repair.tally()) && !is_marked;
    if is_lost {
        lines.push("the consume queues are not those of the last clean stop, the whole log is read".to_owned());
    }
    let is_whole = !files.is_empty() && (is_marked || is_lost || repair.is_blank());
    let recent = files.len().saturating_sub(CLEAN_FILE_COUNT);
    let mut first = if is_whole {
        // A start that is killed halfway leaves some queues complete and others empty.
        marker.set()?;
        0
    } else if note.is_some() {
        files.len().saturating_sub(1)
    } else if is_clean {
        recent
    } else {
        recent_crash
    };
    if is_clean && !repair.is_blank() {
        repair.begin_clean(config.topics.as_ref());
    }
    repair.mark_stray(files.get(first).map_or(0, |file| file.start), &mut lines);
    if first == 0 {
        repair.begin_whole();
    }
    if !is_clean {
        repair.begin_doubt();
    } else if note.is_some() && !is_whole {
        repair.begin_complete();
    }
    let mut visit = |record: &Record<'_>| told_queue(repair.walk(record));
    let known = Durable {
        log_end: note.map(|note| note.log_end),
        until_ms: if is_clean { u64::MAX } else { checkpoint.times().log.saturating_sub(checkpoint::MARGIN_MS) },
    };
    let mut mender = Mender { disk: &**disk, root, files: &files, known, lines: &mut lines };
    let mut walk = mender.walk(first, config.check_crc_on_recover, &mut visit)?;
    let again = if note.is_some_and(|note| note.log_end != walk.end) {
        recent
    } else if !is_clean && checkpoint.times().recover_from() > walk.store_timestamp {
        0
    } else {
        first
    };
    if again < first {
        if !is_clean {
            mender.lines.push("the checkpoint is newer than any record, so the whole log is read".to_owned());
            first = 0;
        }
        let filled = std::mem::take(&mut walk.filled);
        walk = mender.walk(again, config.check_crc_on_recover, &mut visit)?;
        walk.filled.extend(filled);
    }
    tell_faults(&files, &mut faults_seen, &mut |line| lines.push(line));
    if let Some(fault) = &walk.fault {
        lines.push(format!("the commit log ends at {}: {fault}", walk.end));
    }
    told_queue(repair.mark_filled(&walk.filled))?;
    let entries_cut = told_queue(repair.cut(walk.end))?;
    let is_rebuild = repair.has_rebuilds();
    if is_rebuild {
        marker.set()?;
        told_queue(repair.begin_rebuild())?;
        self::walk_to(&files, walk.end, &mut |record| told_queue(repair.rebuild(record)))?;
        told_queue(repair.end_rebuild())?;
    }
    // After a crash the checkpoint does not cover what the walk added. Else nothing would bring it back a second time.
    let is_synced = is_clean || is_whole || is_rebuild;
    let (queues, unsynced, counts) = told_queue(repair.finish(is_synced))?;
    let is_damaged = walk.is_followed || note.is_some_and(|note| note.log_end > walk.end);
    cut_log(&**disk, root, &mut files, walk.end, is_damaged, &mut lines)?;
    if walk.count > 0 {
        checkpoint.limit(walk.store_timestamp);
    }
    sync_log(&**disk, config, &files[first.min(files.len())..])?;
    let path = root.join("ringmq-deleted-topics");
    let log_min = files.first().map_or(0, |file| file.start);
    for (topic, log_end) in &counts.deleted_topics {
        // From here on it is as one that was deleted here.
        told("can not write", &path, deleted.insert(&**disk, topic, *log_end))?;
    }
    told("can not write", &path, deleted.keep_within(&**disk, log_min, walk.end))?;
    marker.remove()?;
    told("can not remove what a failed sync has left in", root, failed_sync::remove(&**disk, root))?;
    told("can not remove what pulls have noted in", root, wrong_queues::remove(&**disk, root))?;

    lines.push(format!(
        "{}: {} log files, {log_min} to {}; {} records read after {}",
        root.display(),
        files.len(),
        walk.end,
        walk.count,
        if is_clean { "a clean stop" } else { "a crash" },
    ));
    for (count, what) in [
        (counts.appended, "consume queue entries were missing and have been added"),
        (counts.closed, "consume queue offsets have no record and point to the next"),
        (counts.rebuilt, "consume queues did not agree with the log and have been rebuilt"),
        (entries_cut, "consume queue entries beyond the end of the log have been removed"),
        (counts.deleted, "records are of topics or queues that a Java broker has deleted, and are in none"),
        (counts.unplaced, "records name no possible queue and are in none"),
    ] {
        if count > 0 {
            lines.push(format!("{count} {what}"));
        }
    }
    let place = LogPlace {
        disk: Arc::clone(disk),
        root: root.clone(),
        dir: config.commit_log_dir.clone(),
        staging,
        file_bytes: config.commit_log_file_bytes,
        medium: config.medium,
    };
    let staging = place.staging.clone();
    let log = CommitLog::new(place, files, walk.end, walk.store_timestamp);
    let found = index::Found { is_clean, noted: note.map(|note| note.index), log: &log, checkpoint: &checkpoint };
    let index = Index::open(disk, root, &staging, &config.index, &found, &mut lines);
    Ok(Recovered { log, index, room, queues, unsynced, ext, checkpoint, deleted, report: OpenReport { lines } })
}

fn open_log(
    disk: &dyn Disk,
    config: &StoreConfig,
    found: LogFiles,
    lines: &mut Vec<String>,
) -> Result<Vec<Arc<MappedFile>>, OpenError> {
    let file_bytes = config.commit_log_file_bytes;
    let mut files = Vec::with_capacity(found.len());
    for (start, bytes) in found {
        let path = config.commit_log_dir.join(file_name(start));
        if bytes < file_bytes {
            told("can not lengthen", &path, disk.open(&path).and_then(|file| file.extend(file_bytes)))?;
            lines
                .push(format!("{}: cut short at {bytes} bytes, lengthened with zeros to {file_bytes}", path.display()));
        }
        let file = told("can not open", &path, MappedFile::open(disk, path.clone(), start, file_bytes, config.medium))?;
        files.push(Arc::new(file));
    }
    Ok(files)
}

/// The last file whose first record is not newer than `time`; queues and log are durable up to there.
fn first_file_after_crash(files: &[Arc<MappedFile>], time: u64) -> usize {
    let is_covered = |file: &Arc<MappedFile>| {
        let bytes = file.unchecked_by_written(0..file.bytes);
        let is_record = peek_size(bytes).is_some_and(|(_, magic)| magic == MAGIC_V1 || magic == MAGIC_V2);
        is_record && peek_store_timestamp(bytes).is_some_and(|stored| stored > 0 && stored as u64 <= time)
    };
    files.iter().rposition(is_covered).unwrap_or(0)
}

/// What is known of the log before it is read.
#[derive(Clone, Copy)]
struct Durable {
    /// Where it ended at a clean stop of ours.
    log_end: Option<u64>,
    /// Records stored up to then were on the device.
    until_ms: u64,
}

/// Walks, and mends the log on the way.
struct Mender<'a> {
    disk: &'a dyn Disk,
    root: &'a Path,
    files: &'a [Arc<MappedFile>],
    known: Durable,
    lines: &'a mut Vec<String>,
}

impl Mender<'_> {
    fn walk(&mut self, first: usize, verify_crc: bool, visit: Visit<'_>) -> Result<Walk, OpenError> {
        let mut walk = walk(self.files, first, verify_crc, visit)?;
        while self.known.log_end != Some(walk.end) {
            let end = walk.end;
            let path = || find(self.files, end).or(self.files.last()).map_or(Path::new(""), |file| &file.path);
            let next =
                told("can not look behind the end of the log in", path(), damage::next_record(self.files, walk.end))?;
            let Some(next) = next else { break };
            // One that is older than what is before it may be what a Java broker has cut off there once and left.
            let is_noted = self.known.log_end.is_some_and(|log_end| next.log_offset < log_end);
            let is_covered = (walk.store_timestamp..=self.known.until_ms).contains(&next.store_timestamp);
            if !is_noted && !is_covered {
                walk.is_followed = true;
                break;
            }
            let filled = damage::fill(self.disk, self.root, self.files, walk.end, next, walk.store_timestamp);
            let aside = told("can not mend the log in", path(), filled)?;
            self.lines.push(format!(
                "the log was damaged from {} to {}: what was there is kept in {}, its messages are lost, those behind it are not",
                walk.end,
                next.log_offset,
                aside.display()
            ));
            walk.filled.push(walk.end..next.log_offset);
            let from = self.files.partition_point(|file| file.end() <= walk.end);
            let rest = read_records(&self.files[from..], walk.end, verify_crc, &|_| false, visit)?;
            if rest.end <= walk.end {
                let error = io::Error::other(format!("what was written to it at {} can not be read back", walk.end));
                return Err(OpenError::io("can not mend the log in", path(), error));
            }
            walk = Walk {
                count: walk.count + rest.count,
                store_timestamp: walk.store_timestamp.max(rest.store_timestamp),
                filled: walk.filled,
                ..rest
            };
        }
        Ok(walk)
    }
}

struct Walk {
    /// Where the log ends.
    end: u64,
    /// Why it ends there, when not in zeros.
    fault: Option<String>,
    count: u64,
    /// The newest of the records.
    store_timestamp: u64,
    /// Whole records lie behind the end, which may never have been durable.
    is_followed: bool,
    /// What was damaged and has been filled.
    filled: Vec<Range<u64>>,
}

type Visit<'v> = &'v mut dyn FnMut(&Record<'_>) -> Result<(), OpenError>;

/// Reads records from the start of file `first` on, up to the end of the log. Where that is much, another thread goes
/// ahead: it meets the page faults and computes the CRCs.
fn walk(files: &[Arc<MappedFile>], first: usize, verify_crc: bool, visit: Visit<'_>) -> Result<Walk, OpenError> {
    let walked = &files[first.min(files.len())..];
    let bytes: u64 = walked.iter().map(|file| file.bytes).sum();
    let is_parallel = std::thread::available_parallelism().is_ok_and(|count| count.get() > 1);
    if !verify_crc || !is_parallel || bytes < AHEAD_FROM_BYTES {
        return read_records(walked, 0, verify_crc, &|_| false, visit);
    }
    let ahead = Ahead::default();
    std::thread::scope(|scope| {
        scope.spawn(|| ahead.run(walked));
        let result = read_records(walked, 0, verify_crc, &|end| ahead.has_checked(end), visit);
        ahead.is_over.store(true, Ordering::Relaxed);
        result
    })
}

/// Below this a second thread is not worth it.
const AHEAD_FROM_BYTES: u64 = if cfg!(test) { 4096 } else { 16 << 20 };
const AHEAD_STEP_BYTES: u64 = 64 << 10;

/// Checks records before they are walked.
#[derive(Default)]
struct Ahead {
    /// Log offset below which every record is right. It stops at what is not, or at the end.
    checked: AtomicU64,
    is_stopped: AtomicBool,
    /// Nobody walks any more.
    is_over: AtomicBool,
}

impl Ahead {
    fn run(&self, files: &[Arc<MappedFile>]) {
        let mut told = 0;
        let walked = read_records(files, 0, true, &|_| false, &mut |record| {
            let end = record.log_offset + record.bytes.len() as u64;
            if end - told >= AHEAD_STEP_BYTES {
                told = end;
                self.checked.store(end, Ordering::Release);
            }
            if self.is_over.load(Ordering::Relaxed) { Err(()) } else { Ok(()) }
        });
        if let Ok(walk) = walked {
            self.checked.store(walk.end, Ordering::Release);
        }
        self.is_stopped.store(true, Ordering::Release);
    }

    /// Whether a record that ends at `end` was checked. Waits for it.
    fn has_checked(&self, end: u64) -> bool {
        loop {
            // Before `checked`: what was checked before the stop counts.
            let is_stopped = self.is_stopped.load(Ordering::Acquire);
            if self.checked.load(Ordering::Acquire) >= end {
                return true;
            }
            if is_stopped {
                return false;
            }
            std::thread::yield_now();
        }
    }
}

/// Reads the records of these files from `from` on up to the end of the log, each with its CRC unless `is_checked` says of
/// the record that ends there that somebody has looked.
fn read_records<E>(
    files: &[Arc<MappedFile>],
    from: u64,
    verify_crc: bool,
    is_checked: &dyn Fn(u64) -> bool,
    visit: &mut dyn FnMut(&Record<'_>) -> Result<(), E>,
) -> Result<Walk, E> {
    let end = files.first().map_or(0, |file| file.start);
    let mut walk = Walk { end, fault: None, count: 0, store_timestamp: 0, is_followed: false, filled: Vec::new() };
    for file in files {
        walk.end = file.start.max(from);
        loop {
            let bytes = file.unchecked_by_written(walk.end - file.start..file.bytes);
            let record_bytes = peek_size(bytes).map_or(0, |(size, _)| u64::from(size));
            let is_checked = record_bytes <= bytes.len() as u64 && is_checked(walk.end + record_bytes);
            match check(bytes, Some(walk.end), verify_crc && !is_checked) {
                Ok(Checked::Record(record)) => {
                    if let Some(fault) = tail_fault(&record, &bytes[record.bytes.len()..]) {
                        walk.fault = Some(fault);
                        return Ok(walk);
                    }
                    visit(&record)?;
                    walk.count += 1;
                    walk.store_timestamp = walk.store_timestamp.max(u64::try_from(record.store_timestamp).unwrap_or(0));
                    walk.end += record.bytes.len() as u64;
                }
                // Without a next file the blank counts for nothing: the next record goes there.
                Ok(Checked::Blank { .. }) => break,
                Ok(Checked::End) if bytes.len() < BLANK_BYTES => break,
                Ok(Checked::End) => return Ok(walk),
                Err(fault) => {
                    walk.fault = Some(fault.to_string());
                    return Ok(walk);
                }
            }
        }
    }
    Ok(walk)
}

/// What is wrong with the end of a record, which the body's CRC does not cover. A kill can stop a write at a page: the rest
/// is zeros then, and so is what follows. No text that we or Java store ends in a zero byte. The CRC that 5.x can put into
/// the properties is not asked: a client could put a wrong one there, and the log would end at its message.
fn tail_fault(record: &Record<'_>, rest: &[u8]) -> Option<String> {
    let text = if record.properties.is_empty() { record.topic } else { record.properties };
    let is_torn = text.last() == Some(&0) && rest.iter().take(BLANK_BYTES).all(|byte| *byte == 0);
    is_torn.then(|| "the last record ends in zeros".to_owned())
}

/// Reads the records of the whole log up to `end`, which a walk has found.
fn walk_to(files: &[Arc<MappedFile>], end: u64, visit: Visit<'_>) -> Result<(), OpenError> {
    for file in files.iter().take_while(|file| file.start < end) {
        let mut offset = file.start;
        while offset < end.min(file.end()) {
            let bytes = file.unchecked_by_written(offset - file.start..file.bytes);
            match check(bytes, Some(offset), false) {
                Ok(Checked::Record(record)) => {
                    visit(&record)?;
                    offset += record.bytes.len() as u64;
                }
                Ok(Checked::Blank { .. }) => break,
                other => {
                    let rest = &bytes[..bytes.len().min((end - offset) as usize)];
                    let next = rest.get(1..).and_then(|rest| find_record(rest, offset + 1, rest.len()));
                    let next = next.map(|at| offset + 1 + at as u64);
                    if let Err(fault) = other {
                        tracing::error!(path = %file.path.display(), offset, %fault, ?next, "records are out of reach");
                    }
                    let Some(next) = next else { break };
                    offset = next;
                }
            }
        }
    }
    Ok(())
}

/// Removes the files behind `end` and zeroes the rest of the file that holds it. Files that begin with a record of theirs
/// are no torn tail, something before them is damaged: they and the rest of the file that holds `end` are moved out of the
/// log and kept, beside its folder (a Java broker does not start with anything else in it). So is the rest when whole records
/// are in it, or a clean stop has left more than there is (`is_damaged`).
fn cut_log(
    disk: &dyn Disk,
    root: &Path,
    files: &mut Vec<Arc<MappedFile>>,
    end: u64,
    is_damaged: bool,
    lines: &mut Vec<String>,
) -> Result<(), OpenError> {
    // Always the last file first: a crash in between must not leave a hole in the row.
    let kept =
        files.iter().rposition(|file| file.start > end && damage::is_record(file, 0)).map_or(0, |index| index + 1);
    while files.len() > kept
        && let Some(file) = files.pop_if(|file| file.start > end)
    {
        let held = told("can not read", &file.path, file.file.zero(0, file.bytes))?;
        told("can not remove", &file.path, disk.remove_file(&file.path))?;
        if held > 0 {
            lines.push(format!("{}: behind the end of the log at {end}, removed", file.path.display()));
        }
    }
    if kept > 0 || is_damaged {
        set_aside(disk, root, files, end, lines)?;
    }
    let last = files.len().saturating_sub(1);
    for (index, file) in files.iter().enumerate() {
        let position = if index == last { end - file.start } else { file.bytes };
        file.reset_positions(position);
        let held = if position < file.bytes {
            told("can not zero", &file.path, file.file.zero(position, file.bytes))?
        } else {
            0
        };
        if held > 0 {
            lines.push(format!(
                "{}: {held} bytes behind the end of the log at {end} have been zeroed",
                file.path.display()
            ));
        }
    }
    Ok(())
}

/// Moves the files behind `end` into `<commit log folder>-set-aside-<end>`, with a copy of what lies behind `end` in its own
/// file.
fn set_aside(
    disk: &dyn Disk,
    root: &Path,
    files: &mut Vec<Arc<MappedFile>>,
    end: u64,
    lines: &mut Vec<String>,
) -> Result<(), OpenError> {
    let first = files.iter().position(|file| file.start > end).unwrap_or(files.len());
    let Some(log_dir) = files.first().and_then(|file| file.path.parent()).map(Path::to_path_buf) else {
        return Ok(());
    };
    let rest = files[..first].last().map(|damaged| {
        let rest = damaged.unchecked_by_written(end - damaged.start..damaged.bytes);
        let held = rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        (damaged.start, &rest[..held])
    });
    if first == files.len() && rest.is_none_or(|(_, rest)| rest.is_empty()) {
        return Ok(());
    }
    let made = damage::make_aside(disk, &log_dir, root, end);
    let dir = told("can not make a folder for the damaged part of the log, beside it or in", root, made)?;
    if let Some((start, rest)) = rest {
        let path = dir.join(format!("rest-of-{}-from-{end}", file_name(start)));
        told("can not write", &path, disk.replace(&path, rest))?;
    }
    for file in files.drain(first..).rev() {
        let to = dir.join(file_name(file.start));
        told("can not move aside", &file.path, damage::move_aside(disk, &file, &to))?;
    }
    for dir in [&dir, &log_dir] {
        told("can not sync", dir, disk.sync_dir(dir))?;
    }
    lines.push(format!(
        "the log is damaged at {end}, but not only its tail: what lay behind has been moved to {} and is not served. Look \
         into it with ringmq-tools store dump, or restore the damaged file from a copy",
        dir.display()
    ));
    Ok(())
}

/// What was walked is durable, names included: `flushed` begins at the end of the log.
fn sync_log(disk: &dyn Disk, config: &StoreConfig, walked: &[Arc<MappedFile>]) -> Result<(), OpenError> {
    for file in walked {
        told("can not flush", &file.path, file.file.sync())?;
    }
    told("can not flush", &config.commit_log_dir, disk.sync_dir(&config.commit_log_dir))
}

/// `ringmq-rebuild`: queues are being rebuilt, their files hold less than they should.
struct Marker<'a> {
    disk: &'a dyn Disk,
    path: std::path::PathBuf,
}

impl Marker<'_> {
    fn is_set(&self) -> Result<bool, OpenError> {
        Ok(told("can not read", &self.path, self.disk.read(&self.path))?.is_some())
    }

    fn set(&self) -> Result<(), OpenError> {
        told("can not write", &self.path, self.disk.replace(&self.path, b""))
    }

    fn remove(&self) -> Result<(), OpenError> {
        told("can not remove", &self.path, self.disk.remove_file(&self.path))
    }
}

/// Queue files open at once: a part of what the process may open.
fn descriptor_count_max() -> usize {
    let soft =
        nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    (soft / 4).clamp(16, 4096) as usize
}
