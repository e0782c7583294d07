//! What a start makes of the files it finds: after a clean stop, after a crash, ours or Java's.
//!
//! ```text
//! 1 survey      names and lengths of all files; what is odd is refused before anything is changed
//! 2 load        each queue: its last valid entry
//! 3 walk        records from S on, each checked; the log ends at E, before the first that is not whole
//!                 clean:  S = the record of the newest entry of all queues
//!                 crash:  S = the last file whose first record the checkpoint covers
//!               a record whose entry is missing gets it
//! 4 rebuild     queues in which the walk met a gap: the whole log is read for them
//! 5 cut         entries beyond E go, files beyond E go, the rest of E's file is zeroed
//! ```
//! `abort` is written between 1 and 2, so a start that is killed is followed by one after a crash. Everything is
//! idempotent: a second start finds nothing to do.
//!
//! Where it does more than Java: queues are repaired each for itself, by queue offset; a gap is never left; stale bytes
//! behind a cut are zeroed; topics deleted stay deleted. When two records claim one queue offset the later in the log
//! has it, since it was given after the earlier was forgotten (a topic made again, a queue that Java lost the end of);
//! unless it is older by its store time: then it is what a Java broker left behind a cut, and gets no entry.
//! Source: DefaultMessageStore.load/recover, CommitLog.recoverNormally/recoverAbnormally, ConsumeQueue.recover.

use crate::checkpoint::Checkpoint;
use crate::commit_log::{CommitLog, LogPlace, find};
use crate::consume_queue::{ConsumeQueue, Entry, QueueRoom, is_folder_name};
use crate::deleted_topics::DeletedTopics;
use crate::disk::Disk;
use crate::error::OpenError;
use crate::ext::ExtFiles;
use crate::mapped_file::{MappedFile, file_name, parse_file_name};
use crate::record::decode::{Checked, Record, RecordFault, check, peek_size, peek_store_timestamp};
use crate::record::layout::{BLANK_BYTES, MAGIC_V1, MAGIC_V2, sys_flag};
use crate::record::properties;
use crate::store::{OpenReport, Queues, StoreConfig};
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Folders under the root with a folder for each topic.
pub(crate) const QUEUE_DIRS: [&str; 3] = ["consumequeue", "consumequeue_ext", "batchconsumequeue"];
/// Entries in memory during recovery before they are filed.
const PENDING_COUNT_MAX: u64 = 500_000;
/// Entries of one queue read ahead while its records come by.
const WINDOW_COUNT: usize = 64;
const LMQ_PREFIX: &str = "%LMQ%";

pub(crate) struct Recovered {
    pub log: CommitLog,
    pub room: Arc<QueueRoom>,
    pub queues: Queues,
    /// Queues whose files recovery has changed.
    pub unsynced: Vec<Arc<ConsumeQueue>>,
    pub ext: ExtFiles,
    pub checkpoint: Checkpoint,
    pub deleted: DeletedTopics,
    pub report: OpenReport,
}

/// The caller holds the lock.
pub(crate) fn recover(disk: &Arc<dyn Disk>, config: &StoreConfig) -> Result<Recovered, OpenError> {
    let root = &config.root;
    let staging = root.join("ringmq-tmp");
    let mut lines = Vec::new();
    let log_files = survey_log(&**disk, config, &mut lines)?;
    let queue_files = survey_queues(&**disk, config, &mut lines)?;
    survey_others(&**disk, root, &mut lines)?;
    let abort = root.join("abort");
    let is_clean = disk.read(&abort).map_err(|e| OpenError::io("can not read", &abort, e))?.is_none();

    let context = |act: &'static str, path: &Path| {
        let path = path.to_path_buf();
        move |e: io::Error| OpenError::io(act, &path, e)
    };
    disk.replace(&abort, std::process::id().to_string().as_bytes()).map_err(context("can not write", &abort))?;
    disk.remove_dir_all(&staging).map_err(context("can not empty", &staging))?;
    disk.create_dirs(&config.commit_log_dir).map_err(context("can not create", &config.commit_log_dir))?;
    let path = root.join("checkpoint");
    let checkpoint = Checkpoint::open(&**disk, &path, &staging, &mut lines).map_err(context("can not open", &path))?;
    let path = root.join("ringmq-deleted-topics");
    let deleted = DeletedTopics::load(&**disk, path.clone()).map_err(context("can not read", &path))?;
    let path = root.join("consumequeue_ext");
    let ext = ExtFiles::load(&**disk, &path).map_err(context("can not read", &path))?;

    let mut files = Vec::with_capacity(log_files.len());
    for (start, bytes) in log_files {
        let path = config.commit_log_dir.join(file_name(start));
        files.push(open_log_file(&**disk, config, path, start, bytes, &mut lines)?);
    }
    let queue_dir = root.join("consumequeue");
    let room = Arc::new(QueueRoom::new(
        Arc::clone(disk),
        queue_dir.clone(),
        &staging,
        config.consume_queue_file_bytes,
        descriptor_count_max(),
    ));
    let mut recovery = Recovery {
        disk: &**disk,
        config,
        room: Arc::clone(&room),
        deleted,
        lines,
        files,
        queues: HashMap::new(),
        has_lmq: false,
        unfiled: Vec::new(),
        unsynced: Vec::new(),
        rebuilds: HashSet::new(),
        windows: HashMap::new(),
        store_timestamp: 0,
        counts: Counts::default(),
        buffer: Vec::new(),
    };
    let end = recovery.run(queue_files, is_clean, &checkpoint).map_err(|e| match e {
        Failure::Io(path, e) => OpenError::io("recovery failed at", &path, e),
    })?;
    let Recovery { files, queues, unsynced, deleted, lines, store_timestamp, .. } = recovery;
    let place = LogPlace {
        disk: Arc::clone(disk),
        dir: config.commit_log_dir.clone(),
        staging,
        file_bytes: config.commit_log_file_bytes,
    };
    let log = CommitLog::new(place, files, end.written, end.flushed, store_timestamp);
    Ok(Recovered { log, room, queues, unsynced, ext, checkpoint, deleted, report: OpenReport { lines } })
}
