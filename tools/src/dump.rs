//! `store dump`: a line for each record.

use crate::DumpArgs;
use crate::files::{Reader, Segment, folder};
use crate::walk::{Step, walk_file};
use ringmq_storage::record::decode::{Record, RecordFault};
use ringmq_storage::record::properties::{self, KEYS, TAGS};
use serde_json::json;
use std::io::{self, Write};
use std::path::Path;

/// Whether no fault was met. Faults go to stderr, with their place.
pub fn run(args: &DumpArgs, out: &mut dyn Write) -> io::Result<bool> {
    let inner = args.dir.join("commitlog");
    let dir = if inner.is_dir() { &inner } else { &args.dir };
    let mut found = folder(dir)?;
    found.segments.extend(found.odd.iter().filter_map(|(path, _)| set_aside(path)));
    found.segments.sort_by_key(|segment| segment.start);
    let Some(first) = found.segments.first() else {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("{}: no files of a commit log", dir.display())));
    };
    let from = args.from.unwrap_or(first.start).max(first.start);
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut is_sound = true;
    let mut reader = Reader::default();
    for segment in found.segments.iter().filter(|segment| segment.end() > from) {
        if left == 0 {
            break;
        }
        let position = from.saturating_sub(segment.start);
        walk_file(&mut reader, segment, position, false, &mut |_, position, step| {
            let at = segment.start + position;
            match step {
                Step::Record(record, fault) => {
                    is_sound &= fault.is_none();
                    let is_wanted = args.topic.as_ref().is_none_or(|topic| topic.as_bytes() == record.topic)
                        && args.queue.is_none_or(|queue| queue == record.queue_id);
                    if is_wanted {
                        left -= 1;
                        line(&record, at, fault.as_ref(), args.json, out)?;
                    }
                }
                Step::Fault(fault, next) => {
                    is_sound = false;
                    let next = next.map_or("none behind it in this file".to_string(), |next| {
                        format!("the next one is at {}", segment.start + next)
                    });
                    eprintln!("{}:{position}: no record at {at}: {fault}; {next}", segment.path.display());
                }
                Step::Blank { .. } | Step::Zeros(_) | Step::FileEnd => {}
            }
            Ok(left > 0)
        })?;
    }
    Ok(is_sound)
}

/// What a start has moved out of a log: `rest-of-<file>-from-<offset>`, `damaged-<file>-from-<offset>`.
fn set_aside(path: &Path) -> Option<Segment> {
    let name = path.file_name()?.to_str()?;
    let is_ours = name.starts_with("rest-of-") || name.starts_with("damaged-");
    let (_, start) = name.rsplit_once("-from-").filter(|_| is_ours)?;
    let bytes = path.metadata().ok().filter(std::fs::Metadata::is_file)?.len();
    Some(Segment { start: start.parse().ok()?, bytes, path: path.to_path_buf() })
}

fn line(
    record: &Record<'_>,
    at: u64,
    fault: Option<&RecordFault>,
    is_json: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    let [keys, tags] = properties::get_each(record.properties, [KEYS, TAGS]);
    let text = |bytes: Option<&[u8]>| bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    let (topic, keys, tags) = (String::from_utf8_lossy(record.topic), text(keys), text(tags));
    let is_crc_ok = !matches!(fault, Some(RecordFault::BodyCrc { .. } | RecordFault::PropertyCrc { .. }));
    if is_json {
        let line = json!({
            "logOffset": at, "bytes": record.bytes.len(), "topic": topic, "queue": record.queue_id,
            "queueOffset": record.queue_offset, "storeTime": record.store_timestamp, "flag": record.flag,
            "sysFlag": record.sys_flag, "keys": keys, "tags": tags, "bodyBytes": record.body.len(),
            "crcOk": is_crc_ok, "fault": fault.map(ToString::to_string),
        });
        return writeln!(out, "{line}");
    }
    write!(
        out,
        "{at} {} {topic} {} {} {} flag={} sys={:#x} keys={:?} tags={:?} body={} crc={}",
        record.bytes.len(),
        record.queue_id,
        record.queue_offset,
        record.store_timestamp,
        record.flag,
        record.sys_flag,
        keys.unwrap_or_default(),
        tags.unwrap_or_default(),
        record.body.len(),
        if is_crc_ok { "ok" } else { "BAD" },
    )?;
    match fault {
        Some(fault) => writeln!(out, " # {fault}"),
        None => writeln!(out),
    }
}
