//! `store verify`: the log first, each record with its queue entry; then the queues; then what lies beside them.
//!
//! A broker that has the store open is seen by its lock. Then the log's end moves, entries may not be filed yet and
//! `abort` is there: none of that is a finding. Without a broker all of it is.

use crate::VerifyArgs;
use crate::files::{Reader, Segment, folder, is_locked};
use crate::index::IndexCheck;
use crate::metadata::{check_checkpoint, check_config, deleted_topics};
use crate::queues::{Queues, check_row, usual};
use crate::report::Report;
use crate::walk::{Step, walk_file};
use ringmq_storage::damage::is_filler;
use ringmq_storage::record::decode::Record;
use ringmq_storage::record::layout::sys_flag;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Write};
use std::ops::Range;
use std::path::PathBuf;

struct Log {
    record_count: u64,
    /// Behind the last record or blank.
    end: u64,
    store_timestamp_max: Option<i64>,
    /// Where the records of a file ended before its end; wrong if the log goes on in a later file.
    stopped: Option<(PathBuf, u64, &'static str)>,
    inner_batches: u64,
    /// Stretches of damage that a start has filled.
    filled: Vec<Range<u64>>,
    /// Records of topics that are neither in topics.json nor have a queue.
    of_lost_topics: BTreeMap<String, u64>,
}

struct Known {
    deleted: HashMap<String, u64>,
    topics: Option<HashSet<String>>,
}

pub fn run(args: &VerifyArgs, out: &mut dyn Write) -> io::Result<bool> {
    let root = &args.dir;
    let log_dir = args.commit_log.clone().unwrap_or_else(|| root.join("commitlog"));
    if !log_dir.is_dir() {
        let text = format!("{}: no folder of a commit log; is {} a store?", log_dir.display(), root.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, text));
    }
    let mut report = Report::new(out, args.json);
    let report = &mut report;
    let is_running = is_locked(&root.join("lock"))?;
    let abort = root.join("abort");
    if is_running {
        report.note("a broker has the store open: checked up to what is written and filed at this moment")?;
    } else if abort.exists() {
        report.finding("abort", &abort, 0, "the last end was not a clean stop; the next start recovers the store")?;
    }
    let topics = check_config(&root.join("config"), report)?;
    let known = Known { deleted: deleted_topics(root, report)?, topics };

    // The queues' files are listed before the log is read, so that a running broker files no entry in a file that is
    // not known here for a record that is; such a record counts as not yet filed.
    let mut queues = Queues::open(root, is_running, report)?;
    let found = folder(&log_dir)?;
    for (path, why) in &found.odd {
        report.finding("odd-file", path, 0, why)?;
    }
    let mut lengths: BTreeMap<u64, u64> = BTreeMap::new();
    for segment in &found.segments {
        *lengths.entry(segment.bytes).or_default() += 1;
    }
    check_row(&found.segments, usual(lengths), report)?;
    let mut log_min = found.segments.first().map_or(0, |first| first.start);
    let mut log = Log {
        record_count: 0,
        end: log_min,
        store_timestamp_max: None,
        stopped: None,
        inner_batches: 0,
        filled: Vec::new(),
        of_lost_topics: BTreeMap::new(),
    };
    let mut reader = Reader::default();
    for (index, segment) in found.segments.iter().enumerate() {
        if is_running {
            // Retention takes the oldest files away.
            if log.record_count == 0 && !segment.path.exists() {
                log_min = segment.end();
                log.end = log_min;
                continue;
            }
            // The log was read to its end in the file before. If it has come to this file since, the rest of that one
            // is there now; else this one was made ahead.
            if let Some((_, position, _)) = &log.stopped {
                let mut head = [0; 8];
                reader.read_at(&segment.path, 0, &mut head)?;
                if head == [0; 8] {
                    break;
                }
                let (position, before) = (*position, &found.segments[index - 1]);
                log.stopped = None;
                check_log_file(before, position, &mut log, &known, &mut queues, is_running, &mut reader, report)?;
            }
        }
        check_log_file(segment, 0, &mut log, &known, &mut queues, is_running, &mut reader, report)?;
    }
    queues.check_slots(log_min..log.end, &found.segments, &mut reader, report)?;
    let (segments, filled) = (&found.segments, &log.filled);
    let index = IndexCheck { log: log_min..log.end, filled, segments, slots: args.index_slots, is_running };
    index.check(&root.join("index"), &mut reader, report)?;
    check_checkpoint(root, log.store_timestamp_max, is_running, report)?;
    notes(&log, &queues, report)?;
    let summary = format!(
        "{} records in {} log files from {log_min} to {}, {} entries in {} queues",
        log.record_count,
        found.segments.len(),
        log.end,
        queues.entry_count,
        queues.queue_count
    );
    report.finish(&summary)
}

const ZEROS: &str = "nothing is written there";

#[allow(clippy::too_many_arguments)]
fn check_log_file(
    segment: &Segment,
    from: u64,
    log: &mut Log,
    known: &Known,
    queues: &mut Queues,
    is_running: bool,
    reader: &mut Reader,
    report: &mut Report<'_>,
) -> io::Result<()> {
    let path = &segment.path;
    walk_file(reader, segment, from, !is_running, &mut |reader, position, step| {
        let at = segment.start + position;
        let is_data = matches!(step, Step::Record(..) | Step::Blank { .. });
        if let Some((path, position, what)) = log.stopped.take_if(|_| is_data) {
            let text = format!("the log goes on at {at}, but before it: {what}");
            report.finding("log-gap", &path, position, &text)?;
        }
        match step {
            Step::Record(record, fault) => {
                if let Some(fault) = fault {
                    report.finding("record", path, position, &format!("record at {at}: {fault}"))?;
                }
                log.record_count += 1;
                log.end = at + record.bytes.len() as u64;
                log.store_timestamp_max = log.store_timestamp_max.max(Some(record.store_timestamp));
                check_entry_of(&record, at, (path, position), log, known, queues, reader, report)?;
            }
            Step::Blank { bytes_left } => {
                let left = segment.bytes - position;
                if u64::from(bytes_left) != left {
                    let text = format!("blank record of {bytes_left} bytes, {left} are left in the file");
                    report.finding("blank", path, position, &text)?;
                }
                log.end = segment.end();
            }
            Step::Fault(fault, next) => {
                let text = match next {
                    Some(next) => format!("no record at {at}: {fault}; the next one is at {}", segment.start + next),
                    None => format!("no record at {at}, nor behind it in this file: {fault}"),
                };
                // The end of a log that is being written.
                if !is_running || next.is_some() {
                    report.finding("record", path, position, &text)?;
                }
                if next.is_none() {
                    log.stopped = Some((path.clone(), position, "no record"));
                }
            }
            Step::Zeros(Some(next)) => {
                let text = format!("nothing is written at {at}, but at {} is a record", segment.start + next);
                report.finding("log-gap", path, position, &text)?;
            }
            Step::Zeros(None) => {
                log.stopped.get_or_insert((path.clone(), position, ZEROS));
            }
            Step::FileEnd => {
                report.finding("blank", path, position, "the file is used up without a blank record")?;
            }
        }
        Ok(true)
    })
}

#[allow(clippy::too_many_arguments)]
fn check_entry_of(
    record: &Record<'_>,
    at: u64,
    place: (&std::path::Path, u64),
    log: &mut Log,
    known: &Known,
    queues: &mut Queues,
    reader: &mut Reader,
    report: &mut Report<'_>,
) -> io::Result<()> {
    if !sys_flag::is_queued(record.sys_flag) {
        if is_filler(record) {
            log.filled.push(at..at + record.bytes.len() as u64);
        }
        return Ok(());
    }
    if record.sys_flag & sys_flag::INNER_BATCH != 0 {
        log.inner_batches += 1;
        return Ok(());
    }
    let topic = String::from_utf8_lossy(record.topic);
    if known.deleted.get(&*topic).is_some_and(|end| at < *end) {
        return Ok(());
    }
    let is_unknown = known.topics.as_ref().is_some_and(|topics| !topics.contains(&*topic));
    if is_unknown && !queues.has_topic(&topic) {
        *log.of_lost_topics.entry(topic.into_owned()).or_default() += 1;
        return Ok(());
    }
    queues.check_record(record, at, place, reader, report)
}

fn notes(log: &Log, queues: &Queues, report: &mut Report<'_>) -> io::Result<()> {
    for (topic, count) in &log.of_lost_topics {
        let text =
            format!("{count} records of {topic}, which is not in topics.json and has no queue: taken as deleted");
        report.note(&text)?;
    }
    if log.inner_batches > 0 {
        report
            .note(&format!("{} inner batches: their queues (batchconsumequeue) are not checked", log.inner_batches))?;
    }
    if queues.closing > 0 {
        report.note(&format!(
            "{} entries close gaps in their queues: they point to the next record of the queue",
            queues.closing
        ))?;
    }
    if !log.filled.is_empty() {
        let bytes: u64 = log.filled.iter().map(|range| range.end - range.start).sum();
        report.note(&format!(
            "{bytes} bytes of the log were damaged once and have been filled, the first at {}",
            log.filled[0].start
        ))?;
    }
    if queues.own_delays > 0 {
        report.note(&format!(
            "{} delayed messages with a delay not in the default messageDelayLevel",
            queues.own_delays
        ))?;
    }
    if queues.unfiled > 0 {
        report.note(&format!("{} records whose entry is not yet in a file", queues.unfiled))?;
    }
    Ok(())
}
