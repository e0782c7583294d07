//! Consume queues held against the records of the log, one record at a time, in log order.
//!
//! ```text
//!                        the queue ends at n
//! record claims q   < n: its entry is there                     → fine; the last one torn → made anew
//!                        another's: the older record            → passed over    else → rebuild
//!                   = n: behind the queue's last in the log     → appended
//!                   > n: a gap                                  → rebuild
//! ```
//! A walk over the end of the log only appends. A queue that does not agree with its records is marked, and rebuilt from
//! nothing by a reading of the whole log, where the later record has a queue offset that two claim: it was given after
//! the earlier was forgotten (a topic made again, a queue whose end Java lost). Unless it is older by its store time:
//! then it is what a Java broker left behind a cut, and gets no entry. A queue offset that is not the next one is believed
//! when the next record of the queue goes on from it; else the number has rotted: it is mended where the next one leaves
//! it a place, else its record has no entry. A record of whose topic or queue id a bit has turned is in no queue.
//!
//! A gap in the log itself (Java can leave one) is closed by entries that point to the record behind it. A consumer
//! gets that record again, under the queue offset it has; nothing is skipped and no entry points to nothing.

use crate::clean_stop::Tally;
use crate::commit_log::find;
use crate::consume_queue::{ConsumeQueue, Entry, LMQ_PREFIX, Loaded, QueueRoom, is_folder_name};
use crate::deleted_topics::DeletedTopics;
use crate::ext;
use crate::mapped_file::MappedFile;
use crate::record::decode::{Record, peek_store_timestamp};
use crate::record::layout::{QUEUE_OFFSET_AT, sys_flag};
use crate::record::properties;
use crate::survey::QueueFound;
use crate::wrong_queues::Names;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Entries in memory before they are filed.
const PENDING_COUNT_MAX: u64 = 500_000;
/// Entries of one queue read ahead while its records come by.
const WINDOW_COUNT: usize = 64;
/// Above this the file system is synced as a whole.
const SYNC_COUNT_EACH_BY_ITSELF: usize = 32;
/// A gap is closed by so many entries at most; a wider one is a number gone wrong, the queue then starts behind it.
const GAP_COUNT_MAX: u64 = 100_000;
/// Some µs each.
const LOOKUP_COUNT_MAX: usize = 50_000;
const RETRY_PREFIX: &[u8] = b"%RETRY%";
const MULTI_DISPATCH: &str = "INNER_MULTI_DISPATCH";
const MULTI_QUEUE_OFFSET: &str = "INNER_MULTI_QUEUE_OFFSET";

/// An error and the folder of the queue that it came from.
#[derive(Debug)]
pub(crate) struct QueueError {
    pub path: PathBuf,
    pub error: io::Error,
}

type Result<T> = std::result::Result<T, QueueError>;

pub(crate) struct QueueRepair<'a> {
    room: &'a Arc<QueueRoom>,
    deleted: &'a DeletedTopics,
    files: &'a [Arc<MappedFile>],
    log_min: u64,
    queues: HashMap<Box<str>, HashMap<i32, State>>,
    /// Of the delay levels: entries of the schedule topic hold the time of delivery.
    delays_ms: &'a [i64],
    /// Some queue is fed by INNER_MULTI_DISPATCH.
    has_lmq: bool,
    /// What is walked is the whole log: no gap can be closed by reading more of it.
    is_whole: bool,
    /// Every queue is as the last stop left it, complete.
    is_complete: bool,
    /// After a clean stop: the topics that there are, where that is known.
    topics: Option<&'a BTreeSet<String>>,
    is_clean: bool,
    /// Topics that were deleted and made again, by the log offset of the first record of the new one.
    made_again: HashMap<Box<str>, u64>,
    /// How many queues may still be searched for the entry of a record.
    lookups_left: usize,
    /// After a crash: entries of the records walked may be in the page cache only.
    is_doubtful: bool,
    buffer: Vec<u8>,
    pub counts: Counts,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub appended: u64,
    pub closed: u64,
    pub rebuilt: u64,
    /// Records of a queue that was deleted, with its topic, while we did not look.
    pub deleted: u64,
    /// Those topics, and the log offset behind their records.
    pub deleted_topics: BTreeMap<Box<str>, u64>,
    /// Records whose topic or queue id can not name a folder.
    pub unplaced: u64,
}

struct State {
    queue: Arc<ConsumeQueue>,
    /// The entry before the queue's end.
    last: Option<Entry>,
    window: Window,
    /// The walk met something that only the whole log can settle.
    is_rebuild: bool,
    is_changed: bool,
    /// Queue offset up to which the entries' files are known as not synced.
    doubted: u64,
    /// In a rebuild: it does not go on from the queue's end, and the next one will tell.
    held: Option<Claim>,
    /// In a rebuild: where the queue ended before.
    max_before: u64,
    /// What loading has taken away begins with a record here in the log.
    stray: Option<u64>,
    /// There was nothing of it before the walk.
    is_new: bool,
}

#[derive(Default)]
struct Window {
    from: u64,
    entries: Vec<Entry>,
}

/// Which record claims a place in a queue.
#[derive(Clone, Copy)]
struct Claim {
    queue_offset: u64,
    entry: Entry,
    store_timestamp: i64,
}

enum Verdict {
    Settled,
    /// A later record has its place.
    Surpassed,
    /// The queue ends right before it.
    Next,
    /// Its entry was torn.
    Torn,
    /// The queue ends before it, or begins behind it.
    Missing(&'static str),
    /// An entry is wrong.
    Rebuild(&'static str),
}

fn context<T>(queue: &ConsumeQueue, result: io::Result<T>) -> Result<T> {
    result.map_err(|error| QueueError { path: queue.dir(), error })
}

impl<'a> QueueRepair<'a> {
    /// Loads what the survey has found. Queues of deleted topics and damaged ones lose their files.
    pub fn load(
        room: &'a Arc<QueueRoom>,
        deleted: &'a DeletedTopics,
        files: &'a [Arc<MappedFile>],
        found: &[QueueFound],
        delays_ms: &'a [i64],
        lines: &mut Vec<String>,
    ) -> Result<QueueRepair<'a>> {
        let mut repair = QueueRepair {
            room,
            deleted,
            files,
            log_min: files.first().map_or(0, |file| file.start),
            delays_ms,
            queues: HashMap::new(),
            has_lmq: found.iter().any(|queue| queue.topic.starts_with(LMQ_PREFIX)),
            is_whole: false,
            is_doubtful: false,
            is_complete: false,
            topics: None,
            is_clean: false,
            made_again: HashMap::new(),
            lookups_left: LOOKUP_COUNT_MAX,
            buffer: Vec::new(),
            counts: Counts::default(),
        };
        for found in found {
            repair.load_queue(found, lines)?;
        }
        Ok(repair)
    }

    fn load_queue(&mut self, found: &QueueFound, lines: &mut Vec<String>) -> Result<()> {
        let queue = Arc::new(ConsumeQueue::new(self.room, &found.topic, found.queue_id));
        let is_first_missing = self.log_min == 0 && found.starts.first().is_some_and(|start| *start > 0);
        let missing = || format!("{}: its first file is missing", queue.dir().display());
        let Loaded { damage, stray } = match found.damage.clone().or_else(|| is_first_missing.then(missing)) {
            Some(damage) => {
                context(&queue, queue.remove_files(&found.starts))?;
                Loaded { damage: Some(damage), stray: None }
            }
            None => context(&queue, queue.load(&found.starts))?,
        };
        let is_rebuild = damage.is_some();
        if let Some(damage) = damage {
            lines.push(format!("{damage}; the queue is rebuilt from the log"));
        }
        context(&queue, queue.correct_min(self.log_min))?;
        let last = context(&queue, last_entry(&queue))?;
        let log_end = self.deleted.log_end(&found.topic);
        if log_end > 0 && last.is_none_or(|last| last.log_offset < log_end) {
            // The store was killed between the note and the removal. The note may go when this start is over.
            return context(&queue, queue.clear().and_then(|()| queue.sync_names()));
        }
        self.insert(State { last, is_rebuild, stray, ..State::new(queue) });
        Ok(())
    }

    fn insert(&mut self, state: State) {
        self.queues.entry(state.queue.topic.clone()).or_default().insert(state.queue.queue_id, state);
    }

    fn states(&mut self) -> impl Iterator<Item = &mut State> {
        self.queues.values_mut().flat_map(HashMap::values_mut)
    }

    /// In one order always: the disk sees the same calls each time.
    fn states_in_order(&mut self) -> impl Iterator<Item = &mut State> {
        let mut states: Vec<&mut State> = self.states().collect();
        states.sort_unstable_by(|a, b| (&a.queue.topic, a.queue.queue_id).cmp(&(&b.queue.topic, b.queue.queue_id)));
        states.into_iter()
    }

    /// These are rebuilt whatever the walk finds.
    pub fn mark(&mut self, wrong: &Names, lines: &mut Vec<String>) {
        for (topic, queue_id) in wrong {
            let state = self.queues.get_mut(&**topic).and_then(|queues| queues.get_mut(queue_id));
            if let Some(state) = state {
                state.is_rebuild = true;
                lines.push(format!(
                    "queue {queue_id} of {topic} had wrong entries when it was read, it is rebuilt from the log"
                ));
            }
        }
    }

    /// Queues that have lost entries of records before `walked_from`, which the walk will not see, are rebuilt.
    pub fn mark_stray(&mut self, walked_from: u64, lines: &mut Vec<String>) {
        for state in self.states_in_order() {
            if state.stray.is_some_and(|stray| stray < walked_from) && !state.is_rebuild {
                let (topic, queue_id, max) = (&state.queue.topic, state.queue.queue_id, state.queue.max());
                lines.push(format!(
                    "queue {queue_id} of {topic} is damaged behind its entry {max}, it is rebuilt from the log"
                ));
                state.is_rebuild = true;
            }
        }
    }

    /// Queues with entries in these stretches of the log, whose records are no more, are rebuilt.
    pub fn mark_filled(&mut self, filled: &[Range<u64>]) -> Result<()> {
        for range in filled {
            for state in self.states_in_order() {
                let queue = &state.queue;
                let first = context(queue, queue.first_entry(|entry| entry.log_offset >= range.start))?;
                let entry = context(queue, queue.entry(first))?;
                state.is_rebuild |= entry.is_some_and(|entry| entry.log_offset < range.end);
            }
        }
        Ok(())
    }

    /// Whether no queue has an entry: then only the whole log tells what there was.
    pub fn is_blank(&mut self) -> bool {
        self.states().all(|state| state.queue.max() == 0)
    }

    pub fn tally(&mut self) -> Tally {
        Tally::of(self.states().map(|state| state.queue.max()))
    }

    pub fn has_rebuilds(&mut self) -> bool {
        self.states().any(|state| state.is_rebuild)
    }

    /// The records that follow are all of the log.
    pub fn begin_whole(&mut self) {
        self.is_whole = true;
    }

    /// The store was stopped cleanly and has queues: of a queue that is not there the operator has lost the folder, or a Java
    /// broker, which leaves no note, has deleted the topic.
    pub fn begin_clean(&mut self, topics: Option<&'a BTreeSet<String>>) {
        self.is_clean = true;
        self.topics = topics;
    }

    /// No record that is walked lacks its entry.
    pub fn begin_complete(&mut self) {
        self.is_complete = true;
    }

    /// The store was not stopped cleanly.
    pub fn begin_doubt(&mut self) {
        self.is_doubtful = true;
    }

    /// A record of the walk, in log order.
    pub fn walk(&mut self, record: &Record<'_>) -> Result<()> {
        self.dispatch(record, false)
    }

    /// A record of the reading of the whole log, in log order.
    pub fn rebuild(&mut self, record: &Record<'_>) -> Result<()> {
        self.dispatch(record, true)
    }

    fn dispatch(&mut self, record: &Record<'_>, is_rebuild: bool) -> Result<()> {
        if !sys_flag::is_queued(record.sys_flag) || record.sys_flag & sys_flag::INNER_BATCH != 0 {
            return Ok(());
        }
        let info = record.dispatch_info(self.delays_ms);
        let entry = Entry { log_offset: record.log_offset, record_bytes: info.record_bytes, tags_code: info.tags_code };
        let claim = Claim { queue_offset: record.queue_offset, entry, store_timestamp: record.store_timestamp };
        self.place(&info.topic, record.queue_id, claim, is_rebuild)?;
        if self.has_lmq && !record.topic.starts_with(RETRY_PREFIX) {
            for (name, queue_offset) in light_queues(record.properties) {
                self.place(name, 0, Claim { queue_offset, ..claim }, is_rebuild)?;
            }
        }
        Ok(())
    }

    fn place(&mut self, topic: &str, queue_id: i32, claim: Claim, is_rebuild: bool) -> Result<()> {
        // A record's CRC covers neither; a file's byte offset must be a number, too.
        if !is_folder_name(topic) || queue_id < 0 || claim.queue_offset > i64::MAX as u64 / 40 {
            self.counts.unplaced += 1;
            return Ok(());
        }
        if claim.entry.log_offset < self.deleted.log_end(topic) {
            return Ok(());
        }
        if self.queues.get(topic).is_none_or(|queues| !queues.contains_key(&queue_id)) {
            if is_rebuild || self.find_owner(topic, queue_id, claim)? || self.is_complete {
                return Ok(());
            }
            if self.topics.is_some_and(|topics| !topics.contains(topic)) && !topic.starts_with(LMQ_PREFIX) {
                self.counts.deleted += 1;
                self.counts.deleted_topics.insert(topic.into(), claim.entry.log_end());
                return Ok(());
            }
            let queue = Arc::new(ConsumeQueue::new(self.room, topic, queue_id));
            self.insert(State { is_new: true, ..State::new(queue) });
        }
        let state = self.queues.get_mut(topic).and_then(|queues| queues.get_mut(&queue_id)).expect("inserted above");
        if state.is_rebuild != is_rebuild {
            return Ok(());
        }
        if is_rebuild {
            let queue = Arc::clone(&state.queue);
            for claim in context(&queue, state.believed(self.files, claim))?.into_iter().flatten() {
                state.rebuild_one(self.files, claim, &mut self.counts, &mut self.buffer)?;
            }
            return self.relieve();
        }
        let queue = Arc::clone(&state.queue);
        match context(&queue, state.judge(self.files, claim, self.is_whole, &mut self.buffer))? {
            Verdict::Settled => {
                // The checkpoint of this start will cover it, and it was written by the one before.
                if self.is_doubtful && claim.queue_offset >= state.doubted {
                    queue.doubt(claim.queue_offset);
                    state.doubted = queue.next_file(claim.queue_offset);
                }
                Ok(())
            }
            Verdict::Surpassed if self.is_clean && queue.min() == 0 => {
                let first = context(&queue, queue.entry(0))?.map_or(0, |entry| entry.log_offset);
                let made_again = self.made_again.entry(topic.into()).or_insert(first);
                *made_again = first.min(*made_again);
                self.find_owner(topic, queue_id, claim).map(|_| ())
            }
            Verdict::Surpassed => self.find_owner(topic, queue_id, claim).map(|_| ()),
            Verdict::Next | Verdict::Missing(_) if self.is_complete => {
                self.find_owner(topic, queue_id, claim).map(|_| ())
            }
            Verdict::Rebuild(reason) | Verdict::Missing(reason) => {
                // Whichever of the two is right.
                self.find_owner(topic, queue_id, claim)?;
                let state = self.queues.get_mut(topic).and_then(|queues| queues.get_mut(&queue_id));
                let state = state.expect("inserted above");
                tracing::warn!(
                    topic,
                    queue_id,
                    queue_offset = claim.queue_offset,
                    log_offset = claim.entry.log_offset,
                    reason,
                    "the consume queue is rebuilt"
                );
                state.is_rebuild = true;
                Ok(())
            }
            Verdict::Next | Verdict::Torn => {
                let state = self.queues.get_mut(topic).and_then(|queues| queues.get_mut(&queue_id));
                state.expect("inserted above").append(claim, &mut self.counts);
                self.relieve()
            }
        }
    }

    /// A record that claims a place where it is not expected: its topic, queue id or queue offset may have rotted. The queue
    /// with an entry for it is rebuilt, without it. Whether there is one.
    fn find_owner(&mut self, topic: &str, queue_id: i32, claim: Claim) -> Result<bool> {
        let queue_count: usize = self.queues.values().map(HashMap::len).sum();
        let Some(left) = self.lookups_left.checked_sub(queue_count).filter(|_| !topic.starts_with(LMQ_PREFIX)) else {
            return Ok(false);
        };
        self.lookups_left = left;
        let at = claim.entry.log_offset;
        for state in self.states_in_order().filter(|state| !state.queue.topic.starts_with(LMQ_PREFIX)) {
            let queue = Arc::clone(&state.queue);
            let number = context(&queue, queue.first_entry(|entry| entry.log_offset >= at))?;
            let is_its = context(&queue, queue.entry(number))?.is_some_and(|entry| entry.log_offset == at);
            let is_claimed = (&*queue.topic, queue.queue_id, number) == (topic, queue_id, claim.queue_offset);
            if is_its && !is_claimed {
                let (owner, owner_id, claimed) = (&*queue.topic, queue.queue_id, claim.queue_offset);
                tracing::error!(
                    owner,
                    owner_id,
                    number,
                    log_offset = at,
                    topic,
                    queue_id,
                    claimed,
                    "the record of a queue's entry says that it belongs to another place: it is in no queue any more"
                );
                state.is_rebuild = true;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// After the reading of the whole log: what was left to be told by a next record that never came.
    pub fn end_rebuild(&mut self) -> Result<()> {
        let files = self.files;
        let (mut counts, mut buffer) = (std::mem::take(&mut self.counts), std::mem::take(&mut self.buffer));
        for state in self.states_in_order() {
            let Some(claim) = state.held.take() else { continue };
            let (q, max) = (claim.queue_offset, state.queue.max());
            // A queue that ended with this record says which number it had.
            let claim = if q != max && state.max_before == max + 1 && q + 1 != state.max_before {
                context(&state.queue, state.corrected(files, claim))?
            } else if if q < max { state.max_before <= q + 1 } else { q - max <= GAP_COUNT_MAX } {
                Some(claim)
            } else {
                state.disbelieve(&claim);
                None
            };
            if let Some(claim) = claim {
                state.rebuild_one(files, claim, &mut counts, &mut buffer)?;
            }
        }
        (self.counts, self.buffer) = (counts, buffer);
        Ok(())
    }

    /// Not too much of it in memory.
    fn relieve(&mut self) -> Result<()> {
        if self.room.pending.load(Ordering::Relaxed) > PENDING_COUNT_MAX { self.file_tails() } else { Ok(()) }
    }

    fn file_tails(&mut self) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        for state in self.states_in_order().filter(|state| state.is_changed) {
            context(&state.queue, state.queue.file_tail(&mut buffer))?;
        }
        self.buffer = buffer;
        Ok(())
    }

    /// After the walk: entries of records beyond the log's end go, queues that do not end with one of their own records
    /// are marked.
    pub fn cut(&mut self, log_end: u64) -> Result<u64> {
        let (files, log_min, deleted) = (self.files, self.log_min, self.deleted);
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut count = 0;
        for state in self.states_in_order().filter(|state| !state.is_rebuild) {
            let queue = Arc::clone(&state.queue);
            if state.last.is_some_and(|last| last.log_end() > log_end) {
                let to = context(&queue, queue.first_entry(|entry| entry.log_end() > log_end))?;
                count += queue.max() - to;
                context(&queue, state.cut(to, &mut buffer))?;
                if state.last.is_some_and(|last| last.log_offset < deleted.log_end(&queue.topic)) {
                    // The removal of a deleted topic's queue was lost, and the log has lost its last records.
                    context(&queue, queue.clear().and_then(|()| queue.sync_names()))?;
                    state.last = None;
                }
            }
            if let Some(last) = state.last
                && last.log_offset >= log_min
                && !is_right(files, &last, &queue, queue.max() - 1)
            {
                tracing::warn!(topic = %queue.topic, queue_id = queue.queue_id, log_offset = last.log_offset, "the queue's last entry is not that of its record, it is rebuilt");
                state.is_rebuild = true;
            }
        }
        self.buffer = buffer;
        Ok(count)
    }

    /// Marked queues lose all but the entries whose records have expired: these say where the queue goes on.
    pub fn begin_rebuild(&mut self) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut count = 0;
        for state in self.states_in_order().filter(|state| state.is_rebuild) {
            let queue = Arc::clone(&state.queue);
            let max_before = queue.max();
            let cut = queue.cut(queue.min(), &mut buffer);
            context(&queue, cut)?;
            let last =
                context(&queue, if queue.has_files() { last_entry(&queue) } else { queue.clear().map(|()| None) })?;
            let is_new = state.is_new;
            *state = State { last, is_rebuild: true, is_changed: true, max_before, is_new, ..State::new(queue) };
            count += 1;
        }
        self.buffer = buffer;
        self.counts.rebuilt = count;
        Ok(())
    }

    /// Queues that were not there, of topics that were made again behind their last record.
    fn clear_deleted(&mut self) -> Result<()> {
        let made_again = std::mem::take(&mut self.made_again);
        let mut count = 0;
        let mut deleted_topics = std::mem::take(&mut self.counts.deleted_topics);
        for state in self.states_in_order().filter(|state| state.is_new) {
            let is_before = |last: Entry| made_again.get(&state.queue.topic).is_some_and(|at| last.log_offset < *at);
            if state.last.is_some_and(is_before) {
                count += state.queue.max() - state.queue.min();
                context(&state.queue, state.queue.clear())?;
                state.last = None;
                deleted_topics
                    .extend(made_again.get_key_value(&state.queue.topic).map(|(topic, at)| (topic.clone(), *at)));
            }
        }
        self.counts.deleted += count;
        self.counts.deleted_topics = deleted_topics;
        Ok(())
    }

    /// Everything into the files, what was cut onto the device. `is_synced`: and all of it. Returns all queues, and those still to be synced.
    pub fn finish(mut self, is_synced: bool) -> Result<(crate::store::Queues, Vec<Arc<ConsumeQueue>>, Counts)> {
        self.clear_deleted()?;
        self.file_tails()?;
        // Entries that were cut must not come back when the log has grown over the place that they point to.
        let cut_count = self.states().filter(|state| state.queue.is_cut()).count();
        if cut_count > SYNC_COUNT_EACH_BY_ITSELF {
            let (room, dir) = (self.room, &self.room.dir);
            room.disk.sync_all(dir).map_err(|error| QueueError { path: dir.clone(), error })?;
            self.states().for_each(|state| state.queue.note_synced());
        }
        let mut unsynced = Vec::new();
        for state in self.states_in_order().filter(|state| state.queue.is_unsynced()) {
            if is_synced || state.queue.is_cut() {
                context(&state.queue, state.queue.sync())?;
            } else {
                unsynced.push(Arc::clone(&state.queue));
            }
        }
        let queues = self.queues.into_iter().map(|(topic, queues)| {
            let queues = queues.into_iter().map(|(queue_id, state)| (queue_id, state.queue)).collect();
            (topic, queues)
        });
        Ok((queues.collect(), unsynced, self.counts))
    }
}

impl State {
    fn new(queue: Arc<ConsumeQueue>) -> State {
        State {
            queue,
            last: None,
            window: Window::default(),
            is_rebuild: false,
            is_changed: false,
            doubted: 0,
            held: None,
            max_before: 0,
            stray: None,
            is_new: false,
        }
    }

    /// The walk's rule.
    fn judge(
        &mut self,
        files: &[Arc<MappedFile>],
        claim: Claim,
        is_whole: bool,
        buffer: &mut Vec<u8>,
    ) -> io::Result<Verdict> {
        let (min, max) = (self.queue.min(), self.queue.max());
        let q = claim.queue_offset;
        let is_first = max == 0;
        if is_first && (q == 0 || is_whole) {
            self.queue.start_at(q);
            return Ok(Verdict::Next);
        } else if is_first {
            return Ok(Verdict::Missing("it has lost its beginning"));
        }
        if q >= max {
            // Behind the last entry in the queue, but before it in the log: from before the topic was made again.
            if let Some(last) = self.last.filter(|last| last.log_offset > claim.entry.log_offset) {
                let is_old = is_right(files, &last, &self.queue, max - 1);
                return Ok(if is_old { Verdict::Settled } else { Verdict::Rebuild("its last entry is wrong") });
            }
            return Ok(if q == max { Verdict::Next } else { Verdict::Missing("entries are missing") });
        }
        if q < min {
            return Ok(Verdict::Missing("it has lost its beginning"));
        }
        let Some(entry) = self.window(q)? else {
            return Ok(Verdict::Rebuild("an entry can not be read"));
        };
        if entry.log_offset == claim.entry.log_offset && entry.record_bytes == claim.entry.record_bytes {
            let is_its_own = entry.tags_code == claim.entry.tags_code || ext::is_address(entry.tags_code);
            // A crash can leave the first part of the last entry only: it names its record and not all of its tags.
            if !is_its_own && q + 1 == max {
                self.cut(q, buffer)?;
                return Ok(Verdict::Torn);
            }
            // A time of delivery is by the delay levels of then. A Java broker that recovers a killed store leaves none, which
            // would deliver at once.
            let is_timed = entry.tags_code != 0 && *self.queue.topic == *properties::SCHEDULE_TOPIC;
            let is_known = is_its_own || is_timed;
            return Ok(if is_known {
                Verdict::Settled
            } else {
                Verdict::Rebuild("an entry has other tags than its record")
            });
        }
        if entry.log_offset > claim.entry.log_offset && is_right(files, &entry, &self.queue, q) {
            return Ok(Verdict::Surpassed);
        }
        if is_right(files, &entry, &self.queue, q) && is_stale(files, &entry, claim) {
            return Ok(Verdict::Settled);
        }
        Ok(Verdict::Rebuild("an entry is not that of its record"))
    }

    /// What can be placed now that `claim` has come. One that does not go on from the queue's end waits for the next.
    fn believed(&mut self, files: &[Arc<MappedFile>], claim: Claim) -> io::Result<[Option<Claim>; 2]> {
        let (q, max) = (claim.queue_offset, self.queue.max());
        let Some(held) = self.held.take() else {
            let goes_on = self.last.is_none() || q == max;
            self.held = (!goes_on).then_some(claim);
            return Ok([goes_on.then_some(claim), None]);
        };
        if q == held.queue_offset + 1 {
            return Ok([Some(held), Some(claim)]);
        }
        if q == max + 1 {
            return Ok([self.corrected(files, held)?, Some(claim)]);
        }
        if q == max {
            self.disbelieve(&held);
            return Ok([Some(claim), None]);
        }
        self.held = Some(claim);
        Ok([Some(held), None])
    }

    /// The queue's end is the only place that is left for the record: its queue offset has rotted, and is written anew.
    fn corrected(&self, files: &[Arc<MappedFile>], claim: Claim) -> io::Result<Option<Claim>> {
        if self.queue.topic.starts_with(LMQ_PREFIX) {
            self.disbelieve(&claim);
            return Ok(None);
        }
        let Some(file) = find(files, claim.entry.log_offset) else { return Ok(None) };
        let right = self.queue.max();
        let at = claim.entry.log_offset - file.start + QUEUE_OFFSET_AT as u64;
        file.file.write_at(at, &right.to_be_bytes())?;
        file.file.sync()?;
        let (topic, queue_id, log_offset) = (&*self.queue.topic, self.queue.queue_id, claim.entry.log_offset);
        let wrong = claim.queue_offset;
        tracing::error!(
            topic,
            queue_id,
            log_offset,
            wrong,
            right,
            "the queue offset of a record was wrong, it is mended"
        );
        Ok(Some(Claim { queue_offset: right, ..claim }))
    }

    fn disbelieve(&self, claim: &Claim) {
        let (topic, queue_id) = (&*self.queue.topic, self.queue.queue_id);
        let (queue_offset, log_offset) = (claim.queue_offset, claim.entry.log_offset);
        tracing::error!(
            topic,
            queue_id,
            queue_offset,
            log_offset,
            "the queue offset of a record is wrong, no queue holds it"
        );
    }

    /// The rebuild's rule: the later record has the place. Whether the claim gets one.
    fn make_room(&mut self, files: &[Arc<MappedFile>], claim: Claim, buffer: &mut Vec<u8>) -> io::Result<bool> {
        let q = claim.queue_offset;
        let (min, max) = (self.queue.min(), self.queue.max());
        // With no entries left but those of expired records, nobody can say what a gap behind them held.
        let is_behind_gap = q > max && (q - max > GAP_COUNT_MAX || min == max);
        if self.last.is_none() {
            self.queue.start_at(q);
        } else if q < max {
            let rival = self.queue.entry(q.max(min))?;
            if rival.is_some_and(|rival| is_stale(files, &rival, claim)) {
                return Ok(false);
            }
            if q > min {
                self.cut(q, buffer)?;
            } else {
                self.queue.clear()?;
                self.queue.start_at(q);
            }
        } else if is_behind_gap {
            self.queue.clear()?;
            self.queue.start_at(q);
        }
        Ok(true)
    }

    fn rebuild_one(
        &mut self,
        files: &[Arc<MappedFile>],
        claim: Claim,
        counts: &mut Counts,
        buffer: &mut Vec<u8>,
    ) -> Result<()> {
        let queue = Arc::clone(&self.queue);
        if context(&queue, self.make_room(files, claim, buffer))? {
            self.append(claim, counts);
        }
        Ok(())
    }

    /// Slots up to the claim's point to its record, too.
    fn append(&mut self, claim: Claim, counts: &mut Counts) {
        let from = self.queue.max();
        assert!(from <= claim.queue_offset);
        self.queue.append((from..=claim.queue_offset).map(|queue_offset| (queue_offset, claim.entry)));
        self.queue.set_next(claim.queue_offset + 1);
        self.queue.publish(claim.queue_offset + 1);
        self.last = Some(claim.entry);
        self.is_changed = true;
        counts.closed += claim.queue_offset - from;
        counts.appended += 1;
    }

    fn cut(&mut self, to: u64, buffer: &mut Vec<u8>) -> io::Result<()> {
        self.queue.cut(to, buffer)?;
        self.window = Window::default();
        self.is_changed = true;
        self.last = last_entry(&self.queue)?;
        Ok(())
    }

    fn window(&mut self, queue_offset: u64) -> io::Result<Option<Entry>> {
        let Window { from, entries } = &mut self.window;
        let is_inside = queue_offset >= *from && queue_offset - *from < entries.len() as u64;
        if !is_inside {
            entries.clear();
            *from = queue_offset;
            self.queue.read(queue_offset, WINDOW_COUNT, entries)?;
        }
        Ok(entries.get((queue_offset - *from) as usize).copied())
    }
}

fn last_entry(queue: &ConsumeQueue) -> io::Result<Option<Entry>> {
    // Below `min` when all records have expired: it is read nevertheless, to know where the queue is in the log.
    match queue.max().checked_sub(1) {
        Some(last) => queue.slot(last),
        None => Ok(None),
    }
}

fn record<'f>(files: &'f [Arc<MappedFile>], entry: &Entry) -> Option<Record<'f>> {
    let file = find(files, entry.log_offset)?;
    let range = entry.log_offset - file.start..entry.log_end() - file.start;
    let record = (range.end <= file.bytes).then(|| Record::parse(file.unchecked_by_written(range)))?.ok()?;
    (record.log_offset == entry.log_offset && record.bytes.len() == entry.record_bytes as usize).then_some(record)
}

/// Whether the entry points to the record that belongs there. Entries that close a gap do not, and are never asked for.
fn is_right(files: &[Arc<MappedFile>], entry: &Entry, queue: &ConsumeQueue, queue_offset: u64) -> bool {
    record(files, entry).is_some_and(|record| {
        if queue.topic.starts_with(LMQ_PREFIX) {
            let mut claims = light_queues(record.properties);
            return claims.any(|claim| claim == (&*queue.topic, queue_offset));
        }
        let is_topic = record.topic == queue.topic.as_bytes();
        is_topic && record.queue_id == queue.queue_id && record.queue_offset == queue_offset
    })
}

/// Whether the claim, behind `rival`'s record in the log, is older by its store time.
fn is_stale(files: &[Arc<MappedFile>], rival: &Entry, claim: Claim) -> bool {
    let time = record(files, rival).and_then(|record| peek_store_timestamp(record.bytes));
    rival.log_offset < claim.entry.log_offset && time.is_some_and(|time| claim.store_timestamp < time)
}

/// The light queues that a record goes into beside its own: name and queue offset.
fn light_queues(text: &[u8]) -> impl Iterator<Item = (&str, u64)> {
    let [names, offsets] = properties::get_each(text, [MULTI_DISPATCH, MULTI_QUEUE_OFFSET]);
    split(names)
        .zip(split(offsets))
        .filter(|(name, _)| name.starts_with(LMQ_PREFIX))
        .filter_map(|(name, offset)| Some((name, offset.parse().ok()?)))
}

fn split(list: Option<&[u8]>) -> impl Iterator<Item = &str> {
    list.and_then(|list| std::str::from_utf8(list).ok()).unwrap_or("").split(',')
}
