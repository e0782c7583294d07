//! Retention: old log files go, and what points into them follows.
//!
//! ```text
//! look      every interval (each second while appends are refused): how full are the partitions?
//!             above stop: appends are refused, with the reason; not above: they are taken again
//! sweep     by hour, above max used, by hand    → expired files        by age of the mtime
//!           above force                         → any, until it is no longer above
//!           no room for a file (ENOSPC)         → any, one
//!           the first log file: unlinked ─ interval ─ the next ... at most 10, never the last
//! follow    the log's min has moved → each queue's min ─ files wholly below it unlinked, one each interval
//!           index files: the file agent tells the index
//! ```
//! One step a turn of the file agent, so that nothing waits for a row of deletions, the look at the disk least of all.
//! A file is unlinked when the log is flushed beyond it and every queue is synced beyond it, so that recovery never
//! misses it: a queue's place outlives the records. The log's files go first, lowest first, each on the device before the
//! next; a kill anywhere leaves queues that begin below the log, which recovery corrects and the next start's first
//! follow completes.
//!
//! A file that a pull still sends from stays mapped. It is given up here, by the last to hold it: a gigabyte of blocks
//! takes long to free, and no shard shall do it.
//! Source: DefaultMessageStore.java (CleanCommitLogService, CleanConsumeQueueService), MappedFileQueue.java.

use crate::agent::{IDLE_MS, left_ms};
use crate::consume_queue::ConsumeQueue;
use crate::index_file::local_time;
use crate::mapped_file::MappedFile;
use crate::store::Store;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// Java begins so long after the start: an operator who sees what is about to go can still stop it.
const BEGIN_AFTER_MS: u64 = 60_000;
/// Between two looks while appends are refused.
const LOOK_REFUSING_MS: u64 = 1000;
/// Rounds that one request by hand gives, as in Java.
const MANUAL_ROUNDS: u32 = 20;
/// Queues whose min is corrected in one turn.
const FOLLOW_COUNT_MAX: usize = 256;

/// The keys of retention. The defaults are Java's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionKeys {
    /// `cleanResourceInterval`
    pub interval_ms: u64,
    /// `fileReservedTime`: age of the last write from which a file is expired.
    pub reserved_ms: u64,
    /// `deleteWhen`: bit h stands for the local hour h.
    pub hours: u32,
    /// `deleteFileBatchMax`: files of one sweep.
    pub batch_max: u32,
    /// `deleteCommitLogFilesInterval`
    pub log_file_interval_ms: u64,
    /// `deleteConsumeQueueFilesInterval`
    pub queue_file_interval_ms: u64,
    /// `diskMaxUsedSpaceRatio`: above it expired files go at any hour.
    pub max_used_percent: u8,
    /// `diskSpaceCleanForciblyRatio`: above it files go at any age, if `is_forced`.
    pub force_percent: u8,
    /// `diskSpaceWarningLevelRatio`: above it appends are refused.
    pub stop_percent: u8,
    /// `cleanFileForciblyEnable`
    pub is_forced: bool,
}

impl Default for RetentionKeys {
    fn default() -> RetentionKeys {
        RetentionKeys {
            interval_ms: 10_000,
            reserved_ms: 72 * 3_600_000,
            hours: 1 << 4,
            batch_max: 10,
            log_file_interval_ms: 100,
            queue_file_interval_ms: 100,
            max_used_percent: 75,
            force_percent: 85,
            stop_percent: 90,
            is_forced: true,
        }
    }
}

/// From this log offset on, everything stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    pub from: u64,
    /// For whom.
    pub who: String,
}

/// Says what must not be deleted yet.
pub type Keeper = Box<dyn Fn(&Store) -> Option<Kept> + Send + Sync>;

/// How full the partitions are, in percent, rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskUse {
    pub log_percent: u8,
    pub queue_percent: u8,
    pub index_percent: u8,
    /// Of the log's partition.
    pub log_used_bytes: u64,
    pub log_free_bytes: u64,
}

impl DiskUse {
    fn worst_percent(&self) -> u8 {
        self.log_percent.max(self.queue_percent)
    }
}

/// `0.07`, as Java writes it.
fn ratio(percent: u8) -> String {
    format!("{}.{:02}", percent / 100, percent % 100)
}

/// What others see of retention, and ask of it.
#[derive(Default)]
pub(crate) struct Cleaning {
    /// Without keys nothing is measured and nothing deleted.
    keys: RwLock<Option<RetentionKeys>>,
    keeper: OnceLock<Keeper>,
    manual_rounds: AtomicU32,
    is_follow_wanted: AtomicBool,
    is_refusing: AtomicBool,
    /// How full the disk is and what is done about it.
    situation: RwLock<String>,
}

impl Cleaning {
    fn keys(&self) -> Option<RetentionKeys> {
        *self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why appends are refused.
    pub fn refusal(&self) -> Option<String> {
        self.is_refusing.load(Ordering::Relaxed).then(|| self.situation())
    }

    /// Empty until it was looked at.
    pub fn situation(&self) -> String {
        self.situation.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Store {
    /// Old files are deleted from the next turn on, and appends refused when the disk is too full.
    pub fn set_retention(&self, keys: RetentionKeys) {
        *self.cleaning.keys.write().unwrap_or_else(PoisonError::into_inner) = Some(keys);
        self.files_waiter.wake();
    }

    /// Asked before files are deleted. The first one stays.
    pub fn set_keeper(&self, keeper: Keeper) {
        let _ = self.cleaning.keeper.set(keeper);
    }

    /// Expired log files go now, at whatever hour.
    pub fn clean_log(&self) {
        self.cleaning.manual_rounds.store(MANUAL_ROUNDS, Ordering::Relaxed);
        self.files_waiter.wake();
    }

    /// Queues are compared with the log now, and files of theirs that lie below it go.
    pub fn clean_queues(&self) {
        self.cleaning.is_follow_wanted.store(true, Ordering::Relaxed);
        self.files_waiter.wake();
    }

    /// # Errors
    /// What the disk answers.
    pub fn disk_use(&self) -> io::Result<DiskUse> {
        let log = self.disk.space(&self.config.commit_log_dir)?;
        let root = self.disk.space(&self.config.root)?;
        // A folder may lie elsewhere by a link, and may not be there yet.
        let percent = |name: &str| self.disk.space(&self.config.root.join(name)).unwrap_or(root).used_percent();
        Ok(DiskUse {
            log_percent: log.used_percent(),
            queue_percent: percent("consumequeue"),
            index_percent: percent("index"),
            log_used_bytes: log.used_bytes,
            log_free_bytes: log.free_bytes,
        })
    }
}

/// Why a sweep goes over the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Expired,
    /// The disk is above `force_percent`.
    Forced,
    /// Something found no room on the disk.
    Room,
}

/// What is to be deleted now, if anything.
fn kind_of(keys: &RetentionKeys, hour: u32, worst_percent: u8, is_out: bool, is_by_hand: bool) -> Option<Kind> {
    if is_out && keys.is_forced {
        Some(Kind::Room)
    } else if worst_percent > keys.force_percent && keys.is_forced {
        Some(Kind::Forced)
    } else if is_by_hand || worst_percent > keys.max_used_percent || is_out || keys.hours >> hour & 1 == 1 {
        Some(Kind::Expired)
    } else {
        None
    }
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Expired => "expired",
            Kind::Forced => "the disk is fuller than diskSpaceCleanForciblyRatio",
            Kind::Room => "the disk is full",
        }
    }
}

struct Sweep {
    kind: Kind,
    left: u32,
    due_ms: u64,
    kept: Option<Kept>,
}

/// What becomes of the log's first file.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Goes,
    /// Not durable around it yet.
    Waits,
    /// Nothing goes: this one does not.
    Stays,
}

/// What the file agent knows of durability.
#[derive(Clone, Copy)]
pub(crate) struct Durable {
    /// Every record below has its entry on the device.
    pub queues_synced: u64,
    /// That will not move any more.
    pub is_sync_failed: bool,
}

pub(crate) struct Retention {
    begun_ms: u64,
    looked_ms: Option<u64>,
    disk_use: Option<DiskUse>,
    last_plan_ms: Option<u64>,
    sweep: Option<Sweep>,
    /// Unlinked; somebody may send from them.
    leaving: Vec<Arc<MappedFile>>,
    followed_min: u64,
    /// Queues whose min is to be corrected, and those with files below theirs.
    followers: Vec<Arc<ConsumeQueue>>,
    shedding: Vec<Arc<ConsumeQueue>>,
    shed_due_ms: u64,
    /// A file waits for the queues to be synced.
    pub is_round_wanted: bool,
}

impl Retention {
    pub fn new(now_ms: u64) -> Retention {
        Retention {
            begun_ms: now_ms,
            looked_ms: None,
            disk_use: None,
            last_plan_ms: None,
            sweep: None,
            leaving: Vec::new(),
            followed_min: 0,
            followers: Vec::new(),
            shedding: Vec::new(),
            shed_due_ms: 0,
            is_round_wanted: false,
        }
    }

    /// Returns ms until it wants to go on.
    pub fn turn(&mut self, store: &Store, durable: Durable, now_ms: u64) -> u64 {
        let Some(keys) = store.cleaning.keys() else { return IDLE_MS };
        self.leaving.retain(|file| Arc::strong_count(file) > 1);
        let is_out = store.log.take_out_of_space();
        let next_ms = [
            self.look_turn(store, &keys, is_out, now_ms),
            self.plan_turn(store, &keys, is_out, now_ms),
            self.sweep_turn(store, &keys, durable, now_ms),
            self.follow_turn(store, &keys, now_ms),
            if self.leaving.is_empty() { IDLE_MS } else { 1000 },
        ];
        next_ms.into_iter().fold(IDLE_MS, u64::min)
    }

    /// How full the disk is, and so whether appends are taken.
    fn look_turn(&mut self, store: &Store, keys: &RetentionKeys, is_out: bool, now_ms: u64) -> u64 {
        let cleaning = &store.cleaning;
        let interval_ms = || {
            let is_refusing = cleaning.is_refusing.load(Ordering::Relaxed);
            if is_refusing { keys.interval_ms.min(LOOK_REFUSING_MS) } else { keys.interval_ms }
        };
        let left = self.looked_ms.map_or(0, |looked_ms| left_ms(now_ms, looked_ms, interval_ms()));
        if left > 0 && !is_out {
            return left;
        }
        self.looked_ms = Some(now_ms);
        let disk_use = match store.disk_use() {
            Ok(disk_use) => disk_use,
            Err(e) => {
                tracing::warn!(error = %e, "how full the disk is can not be told");
                return interval_ms();
            }
        };
        self.disk_use = Some(disk_use);
        let situation = self.situation(store, keys, &disk_use, now_ms);
        let is_refusing = disk_use.worst_percent() > keys.stop_percent;
        let was_refusing = cleaning.is_refusing.load(Ordering::Relaxed);
        if is_refusing && !was_refusing {
            tracing::error!("{situation}");
        }
        *cleaning.situation.write().unwrap_or_else(PoisonError::into_inner) = situation;
        cleaning.is_refusing.store(is_refusing, Ordering::Relaxed);
        if was_refusing && !is_refusing {
            tracing::info!(
                used = ratio(disk_use.worst_percent()),
                "there is room on the disk, messages are taken again"
            );
        }
        interval_ms()
    }

    /// For the remark of a refused send.
    fn situation(&self, store: &Store, keys: &RetentionKeys, disk_use: &DiskUse, now_ms: u64) -> String {
        let next = self
            .next_to_go(store, keys, disk_use, now_ms)
            .unwrap_or_else(|e| format!("the oldest file can not be read: {e}"));
        format!(
            "service not available now: the broker's disk is full [CL: {} CQ: {} INDEX: {}], messages are refused above {} \
             (diskSpaceWarningLevelRatio); {next}",
            ratio(disk_use.log_percent),
            ratio(disk_use.queue_percent),
            ratio(disk_use.index_percent),
            ratio(keys.stop_percent),
        )
    }

    fn next_to_go(&self, store: &Store, keys: &RetentionKeys, disk_use: &DiskUse, now_ms: u64) -> io::Result<String> {
        let files = store.log.files();
        let [first, _, ..] = &*files else {
            return Ok("nothing can be deleted: the log has only the file that is being written".to_owned());
        };
        let path = first.path.display();
        if let Some(kept) = kept(store).filter(|kept| kept.from < first.end()) {
            return Ok(format!("{path} is kept (ringmq.retentionKeepUnconsumed): {}", kept.who));
        }
        let hours = keys.reserved_ms / 3_600_000;
        let left = (first.file.modified_ms()? + keys.reserved_ms).saturating_sub(now_ms);
        let is_forced = disk_use.worst_percent() > keys.force_percent && keys.is_forced;
        Ok(if is_forced {
            format!(
                "{path} is deleted next, whatever its age (above {}: diskSpaceCleanForciblyRatio)",
                ratio(keys.force_percent)
            )
        } else if left == 0 {
            format!("{path} is deleted next, it is older than fileReservedTime={hours} h")
        } else {
            let minutes = left.div_ceil(60_000);
            format!("{path} is deleted in {minutes} min, when it is older than fileReservedTime={hours} h")
        })
    }

    /// Whether a sweep begins.
    fn plan_turn(&mut self, store: &Store, keys: &RetentionKeys, is_out: bool, now_ms: u64) -> u64 {
        let manual_rounds = &store.cleaning.manual_rounds;
        let is_refusing = store.cleaning.is_refusing.load(Ordering::Relaxed);
        let begin_left = left_ms(now_ms, self.begun_ms, BEGIN_AFTER_MS);
        let is_by_hand = manual_rounds.load(Ordering::Relaxed) > 0;
        if self.sweep.is_some() {
            return IDLE_MS;
        }
        let interval_ms = if is_refusing { LOOK_REFUSING_MS } else { keys.interval_ms };
        let left = self.last_plan_ms.map_or(0, |last_plan_ms| left_ms(now_ms, last_plan_ms, interval_ms));
        let is_urgent = is_out || (is_by_hand && manual_rounds.load(Ordering::Relaxed) == MANUAL_ROUNDS);
        if left > 0 && !is_urgent {
            return left;
        }
        if begin_left > 0 && !is_urgent && !is_by_hand && !is_refusing {
            return begin_left.min(keys.interval_ms);
        }
        self.last_plan_ms = Some(now_ms);
        if is_by_hand {
            manual_rounds.fetch_sub(1, Ordering::Relaxed);
        }
        let worst_percent = self.disk_use.map_or(0, |disk_use| disk_use.worst_percent());
        let hour = local_time(now_ms).tm_hour as u32;
        if let Some(kind) = kind_of(keys, hour, worst_percent, is_out, is_by_hand) {
            let left = if kind == Kind::Room { 1 } else { keys.batch_max };
            self.sweep = Some(Sweep { kind, left, due_ms: now_ms, kept: kept(store) });
        }
        interval_ms
    }

    fn sweep_turn(&mut self, store: &Store, keys: &RetentionKeys, durable: Durable, now_ms: u64) -> u64 {
        let Some(Sweep { due_ms, .. }) = self.sweep else { return IDLE_MS };
        if now_ms < due_ms && due_ms - now_ms <= keys.log_file_interval_ms {
            return due_ms - now_ms;
        }
        let verdict = self.verdict(store, keys, durable, now_ms).unwrap_or_else(|e| {
            tracing::warn!(error = %e, "the oldest log file can not be looked at and stays");
            Verdict::Stays
        });
        let is_over = match verdict {
            Verdict::Stays => true,
            Verdict::Waits => {
                let first_end = store.log.files().first().map_or(0, |first| first.end());
                self.is_round_wanted = first_end > durable.queues_synced;
                false
            }
            Verdict::Goes => {
                if let Err(e) = self.remove_first(store) {
                    tracing::error!(error = %e, "a log file can not be deleted");
                    true
                } else {
                    let sweep = self.sweep.as_mut().expect("it was there above");
                    sweep.left -= 1;
                    sweep.left == 0
                }
            }
        };
        if is_over {
            self.sweep = None;
            return IDLE_MS;
        }
        let interval_ms = keys.log_file_interval_ms.max(1);
        self.sweep.as_mut().expect("not over").due_ms = now_ms + interval_ms;
        interval_ms
    }

    fn verdict(&self, store: &Store, keys: &RetentionKeys, durable: Durable, now_ms: u64) -> io::Result<Verdict> {
        let files = store.log.files();
        let (Some(sweep), [first, second, ..]) = (&self.sweep, &*files) else {
            return Ok(Verdict::Stays);
        };
        // In a pool the newest has no name before its first commit: it is none to a start.
        if !second.is_named() {
            return Ok(Verdict::Stays);
        }
        if sweep.left == 0 || sweep.kept.as_ref().is_some_and(|kept| kept.from < first.end()) {
            return Ok(Verdict::Stays);
        }
        let is_due = match sweep.kind {
            Kind::Room => true,
            Kind::Forced if self.is_above_force(store, keys)? => true,
            Kind::Forced | Kind::Expired => first.file.modified_ms()?.saturating_add(keys.reserved_ms) <= now_ms,
        };
        if !is_due || store.log.is_flush_failed() {
            return Ok(Verdict::Stays);
        }
        let is_settled = durable.is_sync_failed || first.end() <= durable.queues_synced;
        Ok(if is_settled && first.end() <= store.log.flushed() { Verdict::Goes } else { Verdict::Waits })
    }

    /// With what was unlinked and is still held counted as free.
    fn is_above_force(&self, store: &Store, keys: &RetentionKeys) -> io::Result<bool> {
        let DiskUse { queue_percent, log_used_bytes, log_free_bytes, .. } = store.disk_use()?;
        let leaving: u64 = self.leaving.iter().map(|file| file.bytes).sum();
        let leaving = leaving.min(log_used_bytes);
        let log = crate::disk::Space { used_bytes: log_used_bytes - leaving, free_bytes: log_free_bytes + leaving };
        let queue_percent = if leaving == 0 { queue_percent } else { 0 };
        Ok(log.used_percent().max(queue_percent) > keys.force_percent)
    }

    fn remove_first(&mut self, store: &Store) -> io::Result<()> {
        let files = store.log.files();
        let first = files.first().expect("it was looked at");
        let told = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", first.path.display()));
        store.disk.remove_file(&first.path).map_err(told)?;
        let gone = store.log.forget_first().expect("there is another");
        assert!(Arc::ptr_eq(&gone, first));
        let kind = self.sweep.as_ref().map(|sweep| sweep.kind);
        tracing::info!(path = %gone.path.display(), why = kind.map(Kind::name), "log file deleted");
        self.leaving.push(gone);
        drop(files);
        // Its room comes back now, unless somebody sends from it.
        self.leaving.retain(|file| Arc::strong_count(file) > 1);
        store.disk.sync_dir(&store.config.commit_log_dir)
    }

    /// What points below the log's min.
    fn follow_turn(&mut self, store: &Store, keys: &RetentionKeys, now_ms: u64) -> u64 {
        let log_min = store.log.min();
        if self.followers.is_empty() {
            let is_wanted = store.cleaning.is_follow_wanted.swap(false, Ordering::Relaxed);
            if is_wanted || log_min != self.followed_min {
                self.followed_min = log_min;
                self.followers = store.all_queues();
            }
        }
        let rest = self.followers.len().saturating_sub(FOLLOW_COUNT_MAX);
        for queue in self.followers.drain(rest..) {
            if let Err(e) = queue.correct_min(self.followed_min) {
                tracing::warn!(topic = %queue.topic, queue_id = queue.queue_id, error = %e, "the consume queue's first offset can not be found");
            } else if queue.has_file_below_min() && !self.shedding.iter().any(|shedding| Arc::ptr_eq(shedding, &queue))
            {
                self.shedding.push(queue);
            }
        }
        let next_ms = if self.followers.is_empty() { IDLE_MS } else { 1 };
        next_ms.min(self.shed_turn(keys, store.log.flushed(), now_ms))
    }

    /// Unlinks one file of one queue.
    fn shed_turn(&mut self, keys: &RetentionKeys, flushed: u64, now_ms: u64) -> u64 {
        let Some(queue) = self.shedding.last() else { return IDLE_MS };
        let interval_ms = keys.queue_file_interval_ms.max(1);
        if now_ms < self.shed_due_ms && self.shed_due_ms - now_ms <= interval_ms {
            return self.shed_due_ms - now_ms;
        }
        match queue.remove_file_below_min(flushed) {
            Ok(true) => {}
            Ok(false) if queue.has_file_below_min() => {
                // Its next file is not on the device yet: the other queues first, and this one again.
                self.shedding.rotate_right(1);
            }
            Ok(false) => {
                self.shedding.pop();
                return if self.shedding.is_empty() { IDLE_MS } else { 1 };
            }
            Err(e) => {
                tracing::warn!(topic = %queue.topic, queue_id = queue.queue_id, error = %e, "a consume queue file can not be deleted");
                self.shedding.pop();
            }
        }
        self.shed_due_ms = now_ms + interval_ms;
        interval_ms
    }
}

fn kept(store: &Store) -> Option<Kept> {
    store.cleaning.keeper.get().and_then(|keeper| keeper(store))
}

#[cfg(test)]
#[path = "retention_tests.rs"]
mod tests;
