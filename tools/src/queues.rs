//! The consume queues against the log.
//!
//! ```text
//! log, in order       each record's slot in its queue holds an entry for it       counted for the queue: `matched`
//! queue, in order     slots without gap; entries that point into the log          counted: `live`
//! ```
//! An entry belongs to one record, so `matched == live` says that every entry is right. Only a queue where they differ
//! is read again, each entry with its record. Memory: a queue's files and two numbers.

use crate::files::{Reader, Segment, find, folder, list};
use crate::report::Report;
use ringmq_storage::consume_queue::Entry;
use ringmq_storage::record::decode::{Checked, DispatchInfo, Record, check};
use ringmq_storage::record::layout::sys_flag;
use ringmq_storage::record::properties::{self, DELAYS_MS, SCHEDULE_TOPIC};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};

pub const ENTRY_BYTES: u64 = 20;
/// What Java puts before a queue's first entry when that is not number 0.
const FILLER: Entry = Entry { log_offset: 0, record_bytes: 0x7FFF_FFFF, tags_code: 0 };
/// Tags codes up to this one are addresses in the extension files.
const EXT_ADDRESS_MAX: i64 = i32::MIN as i64 - 1;
const RECORD_BYTES_MAX: u32 = 128 << 20;
const READ_AT_ONCE_BYTES: u64 = 4096 * ENTRY_BYTES;

pub struct Queue {
    dir: PathBuf,
    segments: Vec<Segment>,
    /// Records of the log that have their entry here.
    matched: u64,
}

impl Queue {
    /// With its place.
    fn entry(&self, queue_offset: u64, reader: &mut Reader) -> io::Result<Option<(Entry, PathBuf, u64)>> {
        let Some(offset) = queue_offset.checked_mul(ENTRY_BYTES) else { return Ok(None) };
        let Some(segment) = find(&self.segments, offset) else { return Ok(None) };
        let mut bytes = [0; ENTRY_BYTES as usize];
        let position = offset - segment.start;
        let filled = reader.read_at(&segment.path, position, &mut bytes)?;
        Ok((filled == bytes.len()).then(|| (decode(&bytes), segment.path.clone(), position)))
    }

    /// Whether the entry points where that of a later message does: nothing was stored in its place.
    fn closes_gap(&self, record: &Record<'_>, at: u64, queue_offset: u64, reader: &mut Reader) -> io::Result<bool> {
        if record.queue_offset <= queue_offset {
            return Ok(false);
        }
        Ok(self.entry(record.queue_offset, reader)?.is_some_and(|(entry, ..)| entry.log_offset == at))
    }
}

/// Where a slot is.
struct Slot<'a> {
    queue_offset: u64,
    segment: &'a Segment,
    position: u64,
}

pub struct Queues {
    topics: BTreeMap<String, BTreeMap<i32, Queue>>,
    ext: HashMap<(String, i32), Vec<Segment>>,
    is_running: bool,
    /// Records that a running broker has not yet filed.
    pub unfiled: u64,
    /// Delayed messages with another delay than the default table's.
    pub own_delays: u64,
    /// Entries that close a gap: they point to the record of a later one.
    pub closing: u64,
    pub entry_count: u64,
    pub queue_count: u64,
}

/// The 20 bytes as the store reads them.
fn decode(bytes: &[u8]) -> Entry {
    let field = |at: usize| i64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let record_bytes = u32::from_be_bytes(bytes[8..12].try_into().expect("4 bytes"));
    Entry { log_offset: field(0) as u64, record_bytes, tags_code: field(12) }
}

fn is_valid(entry: &Entry) -> bool {
    entry.log_offset <= i64::MAX as u64 && entry.record_bytes > 0 && entry.record_bytes <= i32::MAX as u32
}

impl Queues {
    /// Lists the queues' files and checks their names and lengths.
    pub fn open(root: &Path, is_running: bool, report: &mut Report<'_>) -> io::Result<Queues> {
        let dir = root.join("consumequeue");
        if dir.join("CURRENT").is_file() {
            let text = format!("{}: the consume queues are in RocksDB, which this tool does not read", dir.display());
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let mut queues = Queues {
            topics: BTreeMap::new(),
            ext: HashMap::new(),
            is_running,
            unfiled: 0,
            own_delays: 0,
            closing: 0,
            entry_count: 0,
            queue_count: 0,
        };
        let mut lengths: BTreeMap<u64, u64> = BTreeMap::new();
        for (topic, id, dir) in folders(&dir, Some(report))? {
            let found = folder(&dir)?;
            for (path, why) in &found.odd {
                report.finding("odd-file", path, 0, why)?;
            }
            for segment in &found.segments {
                *lengths.entry(segment.bytes).or_default() += 1;
            }
            let queue = Queue { dir, segments: found.segments, matched: 0 };
            queues.queue_count += 1;
            queues.topics.entry(topic).or_default().insert(id, queue);
        }
        let usual = usual(lengths);
        for queue in queues.topics.values().flat_map(BTreeMap::values) {
            check_row(&queue.segments, usual, report)?;
        }
        for (topic, id, dir) in folders(&root.join("consumequeue_ext"), None)? {
            queues.ext.insert((topic, id), folder(&dir)?.segments);
        }
        Ok(queues)
    }

    pub fn has_topic(&self, topic: &str) -> bool {
        self.topics.contains_key(topic)
    }

    /// The entry of a record that must have one. `log`: the record's file and the position there, for the finding.
    pub fn check_record(
        &mut self,
        record: &Record<'_>,
        at: u64,
        log: (&Path, u64),
        reader: &mut Reader,
        report: &mut Report<'_>,
    ) -> io::Result<()> {
        let info = record.dispatch_info(&DELAYS_MS);
        self.check_multi_dispatch(record, at, reader)?;
        let queue = self.topics.get(&*info.topic).and_then(|ids| ids.get(&info.queue_id));
        let found = match queue {
            Some(queue) => queue.entry(info.queue_offset, reader)?,
            None => None,
        };
        let name = format!("{} queue {} offset {}", info.topic, info.queue_id, info.queue_offset);
        let Some((entry, path, position)) = found.filter(|(entry, ..)| is_valid(entry)) else {
            if self.is_running {
                self.unfiled += 1;
                return Ok(());
            }
            let why = if queue.is_none() { "there is no such queue" } else { "the slot was never written" };
            return report.finding("no-entry", log.0, log.1, &format!("record at {at}, {name}: no entry, {why}"));
        };
        if entry.log_offset != at {
            let text = format!(
                "record at {at}, {name}: no entry, the slot points to {} (or a Java broker deleted the topic and made it anew)",
                entry.log_offset
            );
            return report.finding("no-entry", log.0, log.1, &text);
        }
        let is_tagged = self.is_tags_code_right(&entry, &info, record, reader)?;
        let queue = self.topics.get_mut(&*info.topic).and_then(|ids| ids.get_mut(&info.queue_id));
        queue.expect("found above").matched += 1;
        if entry.record_bytes != info.record_bytes {
            let text = format!("{name}: {} bytes, the record at {at} has {}", entry.record_bytes, info.record_bytes);
            report.finding("entry-size", &path, position, &text)?;
        }
        if !is_tagged {
            let text = format!("{name}: tags code {}, the record at {at} has {}", entry.tags_code, info.tags_code);
            report.finding("entry-tags", &path, position, &text)?;
        }
        Ok(())
    }

    fn is_tags_code_right(
        &mut self,
        entry: &Entry,
        info: &DispatchInfo<'_>,
        record: &Record<'_>,
        reader: &mut Reader,
    ) -> io::Result<bool> {
        if entry.tags_code == info.tags_code {
            return Ok(true);
        }
        if entry.tags_code <= EXT_ADDRESS_MAX {
            let offset = entry.tags_code.wrapping_sub(i64::MIN) as u64;
            let segments = self.ext.get(&(info.topic.to_string(), info.queue_id));
            let Some(segment) = segments.and_then(|segments| find(segments, offset)) else { return Ok(false) };
            let mut unit = [0; 10];
            let filled = reader.read_at(&segment.path, offset - segment.start, &mut unit)?;
            let code = i64::from_be_bytes(unit[2..].try_into().expect("8 bytes"));
            return Ok(filled == unit.len() && code == info.tags_code);
        }
        // `messageDelayLevel` is not recorded in a store, so any time of delivery may be right.
        let is_delayed =
            info.topic == SCHEDULE_TOPIC && properties::get(record.properties, properties::DELAY).is_some();
        let is_own_delay = is_delayed && entry.tags_code > record.store_timestamp;
        self.own_delays += u64::from(is_own_delay);
        Ok(is_own_delay)
    }

    /// The entries in further queues that 5.x gives a record for `%LMQ%` topics. Counted only: a broker without
    /// `enableMultiDispatch` keeps the client's property and gives none.
    fn check_multi_dispatch(&mut self, record: &Record<'_>, at: u64, reader: &mut Reader) -> io::Result<()> {
        for (topic, queue_offset) in multi_dispatch(record) {
            let Some(queue) = self.topics.get(topic).and_then(|ids| ids.get(&0)) else { continue };
            let entry = queue.entry(queue_offset, reader)?;
            if entry.is_some_and(|(entry, ..)| is_valid(&entry) && entry.log_offset == at) {
                let queue = self.topics.get_mut(topic).and_then(|ids| ids.get_mut(&0));
                queue.expect("found above").matched += 1;
            }
        }
        Ok(())
    }

    /// After the log: every slot of every queue. `log` is where the log has records, `log_files` its files.
    pub fn check_slots(
        &mut self,
        log: std::ops::Range<u64>,
        log_files: &[Segment],
        reader: &mut Reader,
        report: &mut Report<'_>,
    ) -> io::Result<()> {
        for (topic, ids) in &self.topics {
            for (id, queue) in ids {
                let live = check_queue(queue, &log, self.is_running, reader, report)?;
                self.entry_count += live;
                if live != queue.matched {
                    self.closing += check_entries(queue, (topic, *id), &log, log_files, reader, report)?;
                }
            }
        }
        Ok(())
    }
}

/// `%LMQ%` topics of a record and the record's place in their queue 0.
fn multi_dispatch<'a>(record: &Record<'a>) -> Vec<(&'a str, u64)> {
    let names = ["INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"];
    let [Some(topics), Some(offsets)] = properties::get_each(record.properties, names) else { return Vec::new() };
    let (Ok(topics), Ok(offsets)) = (std::str::from_utf8(topics), std::str::from_utf8(offsets)) else {
        return Vec::new();
    };
    let pairs = topics.split(',').zip(offsets.split(','));
    pairs.filter_map(|(topic, offset)| Some((topic, offset.parse().ok()?))).collect()
}

/// Topic, queue id and path of each queue below `dir`.
fn folders(dir: &Path, mut report: Option<&mut Report<'_>>) -> io::Result<Vec<(String, i32, PathBuf)>> {
    let mut queues = Vec::new();
    let mut odd = |path: &Path, why| match &mut report {
        Some(report) => report.finding("odd-file", path, 0, why),
        None => Ok(()),
    };
    for (path, metadata) in list(dir)? {
        let Some(topic) = path.file_name().and_then(|name| name.to_str()).filter(|_| metadata.is_dir()) else {
            odd(&path, "no folder of a topic")?;
            continue;
        };
        for (path, metadata) in list(&path)? {
            let id = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse::<i32>().ok());
            match id.filter(|id| *id >= 0 && metadata.is_dir()) {
                Some(id) => queues.push((topic.to_owned(), id, path)),
                None => odd(&path, "no folder of a queue")?,
            }
        }
    }
    Ok(queues)
}

/// The length that most files have: the setting is not recorded in a store.
pub fn usual(counts: BTreeMap<u64, u64>) -> u64 {
    counts.into_iter().max_by_key(|(_, count)| *count).map_or(0, |(bytes, _)| bytes)
}

/// Lengths, and that each file begins where the one before it ends.
pub fn check_row(segments: &[Segment], usual: u64, report: &mut Report<'_>) -> io::Result<()> {
    let mut expected = None;
    for segment in segments {
        if segment.bytes != usual {
            let text = format!("{} bytes, files of its kind have {usual}", segment.bytes);
            report.finding("file-size", &segment.path, segment.bytes, &text)?;
        }
        if usual > 0 && segment.start % usual != 0 {
            let text = format!("the name {} is no multiple of the {usual} bytes of a file", segment.start);
            report.finding("file-name", &segment.path, 0, &text)?;
        }
        if let Some(expected) = expected.filter(|expected| *expected != segment.start) {
            let text = format!("the file at {expected} is missing before it");
            report.finding("file-gap", &segment.path, 0, &text)?;
        }
        expected = Some(segment.start + usual);
    }
    Ok(())
}

/// Every slot of the queue that is not all zeros, in order.
fn each_written(
    queue: &Queue,
    reader: &mut Reader,
    act: &mut dyn FnMut(&mut Reader, Slot<'_>, Entry) -> io::Result<()>,
) -> io::Result<()> {
    let mut buffer = vec![0; READ_AT_ONCE_BYTES as usize];
    for segment in &queue.segments {
        let mut position = 0;
        let whole = segment.bytes - segment.bytes % ENTRY_BYTES;
        while position < whole {
            let Some(data) = reader.data_from(&segment.path, position)? else { break };
            position = position.max(data - data % ENTRY_BYTES);
            let bytes = READ_AT_ONCE_BYTES.min(whole.saturating_sub(position)) as usize;
            let filled = reader.read_at(&segment.path, position, &mut buffer[..bytes])?;
            if filled < ENTRY_BYTES as usize {
                break;
            }
            for bytes in buffer[..filled].chunks_exact(ENTRY_BYTES as usize) {
                if bytes.iter().any(|byte| *byte != 0) {
                    let queue_offset = (segment.start + position) / ENTRY_BYTES;
                    act(reader, Slot { queue_offset, segment, position }, decode(bytes))?;
                }
                position += ENTRY_BYTES;
            }
        }
    }
    Ok(())
}

/// Slots without gap, log offsets that grow. How many entries point into the log.
fn check_queue(
    queue: &Queue,
    log: &std::ops::Range<u64>,
    is_running: bool,
    reader: &mut Reader,
    report: &mut Report<'_>,
) -> io::Result<u64> {
    let mut live = 0;
    let mut next = None;
    let mut log_offset_min = 0;
    let mut last_start = None;
    let mut last_at = None;
    each_written(queue, reader, &mut |_, slot, entry| {
        let (path, position, n) = (&slot.segment.path, slot.position, slot.queue_offset);
        last_start = Some(slot.segment.start);
        if let Some(next) = next.filter(|next| *next != n) {
            report.finding("queue-gap", path, position, &format!("queue offsets {next} to {} have no entry", n - 1))?;
        }
        if entry == FILLER {
            return match next {
                None => Ok(()),
                Some(_) => report.finding("queue-gap", path, position, &format!("queue offset {n} is only a filler")),
            };
        }
        next = Some(n + 1);
        if !is_valid(&entry) {
            let text = format!(
                "queue offset {n}: log offset {}, {} bytes",
                entry.log_offset as i64, entry.record_bytes as i32
            );
            return report.finding("entry-invalid", path, position, &text);
        }
        let (at, end) = (entry.log_offset, entry.log_offset + u64::from(entry.record_bytes));
        // Entries that close a gap point to one record.
        if at < log_offset_min && last_at != Some(at) {
            let text = format!("queue offset {n}: log offset {at}, the entry before reaches up to {log_offset_min}");
            report.finding("entry-order", path, position, &text)?;
        }
        (log_offset_min, last_at) = (end, Some(at));
        // The message has expired with its log file.
        if at < log.start {
            return Ok(());
        }
        if at < log.end {
            live += 1;
        } else if !is_running {
            let text = format!("queue offset {n}: the entry points to {at}, the log ends at {}", log.end);
            report.finding("no-record", path, position, &text)?;
        }
        Ok(())
    })?;
    if let Some(last) = queue.segments.last().filter(|last| last_start != Some(last.start) && !is_running) {
        report.finding("empty-file", &last.path, 0, "holds no entry; a start of a Java broker invents one")?;
    }
    if queue.segments.is_empty() && !is_running {
        report.note(&format!("{}: a queue without files", queue.dir.display()))?;
    }
    Ok(live)
}

/// Every entry into the log with the record it points to. What the log's turn has told of is not told again. How many close
/// a gap.
fn check_entries(
    queue: &Queue,
    (topic, id): (&str, i32),
    log: &std::ops::Range<u64>,
    log_files: &[Segment],
    reader: &mut Reader,
    report: &mut Report<'_>,
) -> io::Result<u64> {
    let mut buffer = Vec::new();
    let mut closing = 0;
    each_written(queue, reader, &mut |reader, slot, entry| {
        let at = entry.log_offset;
        if entry == FILLER || !is_valid(&entry) || !log.contains(&at) {
            return Ok(());
        }
        let n = slot.queue_offset;
        let Some(segment) = find(log_files, at) else {
            let text = format!("queue offset {n}: no log file holds {at}");
            return report.finding("no-record", &slot.segment.path, slot.position, &text);
        };
        // A wrong size of the entry must not hide the record, so its own size is read.
        let mut head = [0; 8];
        let filled = reader.read_at(&segment.path, at - segment.start, &mut head)?;
        let claimed = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
        let bytes = u64::from(claimed.min(RECORD_BYTES_MAX)).max(256).min(segment.end() - at);
        buffer.resize(if filled < head.len() { 0 } else { bytes as usize }, 0);
        let filled = reader.read_at(&segment.path, at - segment.start, &mut buffer)?;
        let bytes = &buffer[..filled];
        let is_of_queue = |record: &Record<'_>| {
            let is_entered = sys_flag::is_queued(record.sys_flag) && record.sys_flag & sys_flag::INNER_BATCH == 0;
            record.topic == topic.as_bytes() && record.queue_id == id && is_entered
        };
        let is_mine = |record: &Record<'_>| {
            let is_own = is_of_queue(record) && record.queue_offset == n;
            is_own || (id == 0 && multi_dispatch(record).contains(&(topic, n)))
        };
        let text = match check(bytes, Some(at), false) {
            Ok(Checked::Record(record)) if is_mine(&record) => return Ok(()),
            Ok(Checked::Record(record)) => {
                if is_of_queue(&record) && queue.closes_gap(&record, at, n, reader)? {
                    closing += 1;
                    return Ok(());
                }
                let (topic, id) = (String::from_utf8_lossy(record.topic), record.queue_id);
                format!("queue offset {n}: the record at {at} is {topic} queue {id} offset {}", record.queue_offset)
            }
            Ok(Checked::Blank { .. }) => format!("queue offset {n}: at {at} a log file ends"),
            Ok(Checked::End) => format!("queue offset {n}: nothing is written at {at}"),
            Err(_) if Record::parse(bytes).is_ok_and(|record| is_mine(&record)) => return Ok(()),
            Err(fault) => format!("queue offset {n}: no record at {at}: {fault}"),
        };
        report.finding("no-record", &slot.segment.path, slot.position, &text)
    })?;
    Ok(closing)
}
