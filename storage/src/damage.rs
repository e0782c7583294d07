//! Damage in the log that is no torn tail: a page that reads as zeros, a bit that flipped, with whole records behind.
//!
//! ```text
//! log    … whole | ? ? ? ? | whole …       is what comes behind known to have been durable?
//!                 └ end      └ next            yes  the stretch is kept aside and written over with records that belong
//!                                                   to no queue: the log is whole again, for a Java broker, too
//!                                              no   it may be the tail that a power loss tore: the log ends here, and
//!                                                   what is behind is moved aside
//! ```
//! Durable is, after a clean stop, everything; after a crash, what the checkpoint covers.

use crate::commit_log::find;
use crate::disk::Disk;
use crate::mapped_file::{MappedFile, file_name};
use crate::record::NewRecord;
use crate::record::decode::{Checked, Record, check, find_record, peek_store_timestamp};
use crate::record::encode::{encode, patch};
use crate::record::layout::{BLANK_BYTES, RECORD_BYTES_MIN, blank, sys_flag};
use nix::libc::EXDEV;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The topic of the records that fill a stretch.
const TOPIC: &str = "RINGMQ_DAMAGED";
/// Of one of them: every broker reads it into memory as a whole.
const FILLER_BYTES_MAX: u64 = 1 << 20;

/// The first whole record behind `end`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub log_offset: u64,
    pub store_timestamp: u64,
}

/// `None` when nothing but a tail is there.
pub(crate) fn next_record(files: &[Arc<MappedFile>], end: u64) -> io::Result<Option<Next>> {
    let first = files.iter().position(|file| file.end() > end).unwrap_or(files.len());
    for file in &files[first..] {
        let from = (end + 1).max(file.start) - file.start;
        let data_end = file.file.data_end(from, file.bytes)?;
        if data_end <= from {
            continue;
        }
        let bytes = file.unchecked_by_written(from..file.bytes);
        if let Some(at) = find_record(bytes, file.start + from, (data_end - from) as usize) {
            let store_timestamp = peek_store_timestamp(&bytes[at..]).and_then(|time| u64::try_from(time).ok());
            let log_offset = file.start + from + at as u64;
            return Ok(Some(Next { log_offset, store_timestamp: store_timestamp.unwrap_or(0) }));
        }
    }
    Ok(None)
}

/// Whether a record of its place starts at `position` of the file. Its CRC is not asked.
pub(crate) fn is_record(file: &MappedFile, position: u64) -> bool {
    let bytes = file.unchecked_by_written(position..file.bytes);
    matches!(check(bytes, Some(file.start + position), false), Ok(Checked::Record(_)))
}

/// Whether records follow `end` in their order: somebody has written behind what was noted as the end.
pub(crate) fn goes_on(files: &[Arc<MappedFile>], end: u64) -> bool {
    let next = files.iter().find(|file| file.start >= end);
    find(files, end).is_some_and(|file| is_record(file, end - file.start))
        || next.is_some_and(|next| is_record(next, 0))
}

/// A new folder for what is set aside at `end`: `<commit log folder>-set-aside-<end>`, or of that name in `root` where that can
/// not be made. With a number behind it when there is one from before.
pub(crate) fn make_aside(disk: &dyn Disk, log_dir: &Path, root: &Path, end: u64) -> io::Result<PathBuf> {
    let beside = log_dir.parent().unwrap_or(root);
    let name = log_dir.file_name().unwrap_or_default().to_string_lossy();
    let make = |parent: &Path| {
        for number in 1.. {
            let behind = if number == 1 { String::new() } else { format!("-{number}") };
            let dir = parent.join(format!("{name}-set-aside-{end}{behind}"));
            if disk.list(&dir)?.is_empty() {
                disk.create_dirs(&dir)?;
                disk.sync_dir(parent)?;
                return Ok(dir);
            }
        }
        unreachable!("some number is free")
    };
    make(beside).or_else(|_| make(root))
}

/// Also to another file system.
pub(crate) fn move_aside(disk: &dyn Disk, file: &MappedFile, to: &Path) -> io::Result<()> {
    match disk.rename(&file.path, to) {
        Err(error) if error.raw_os_error() == Some(EXDEV) => {
            disk.replace(to, file.unchecked_by_written(0..file.bytes))?;
            disk.remove_file(&file.path)
        }
        other => other,
    }
}

/// Keeps `[end, next)` aside, or what of it lies in the file that holds `end`, and fills it. The walk goes on at `end`.
pub(crate) fn fill(
    disk: &dyn Disk,
    root: &Path,
    files: &[Arc<MappedFile>],
    end: u64,
    next: Next,
    store_timestamp: u64,
) -> io::Result<PathBuf> {
    let file = find(files, end).ok_or_else(|| io::Error::other(format!("no log file holds {end}")))?;
    let to = next.log_offset.min(file.end());
    if next.log_offset < file.end() && to - end <= RECORD_BYTES_MIN as u64 {
        return Err(io::Error::other(format!("only {} bytes of damage at {end}, less than any record has", to - end)));
    }
    let dir = make_aside(disk, file.path.parent().unwrap_or(Path::new(".")), root, end)?;
    let damaged = file.unchecked_by_written(end - file.start..to - file.start).to_vec();
    disk.replace(&dir.join(format!("damaged-{}-from-{end}", file_name(file.start))), &damaged)?;
    if next.log_offset >= file.end() {
        // Too little for a blank is left as zeros: the walk knows.
        file.file.zero(end - file.start, file.bytes)?;
        if to - end >= BLANK_BYTES as u64 {
            file.file.write_at(end - file.start, &blank((to - end) as u32))?;
        }
        return Ok(dir);
    }
    let mut at = end;
    while at < to {
        let left = to - at;
        let bytes = if left > FILLER_BYTES_MAX + 2 * RECORD_BYTES_MIN as u64 { FILLER_BYTES_MAX } else { left };
        file.file.write_at(at - file.start, &filler(at, bytes, store_timestamp))?;
        at += bytes;
    }
    Ok(dir)
}

/// Whether the record is one of those that fill a stretch.
pub fn is_filler(record: &Record<'_>) -> bool {
    let is_rolled_back = record.sys_flag & sys_flag::TRANSACTION_MASK == sys_flag::ROLLBACK;
    is_rolled_back && !record.topic.is_empty() && TOPIC.as_bytes().starts_with(record.topic)
}

/// A record of `bytes` that no queue and no index holds: one that was rolled back.
fn filler(log_offset: u64, bytes: u64, store_timestamp: u64) -> Vec<u8> {
    let host = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let room = (bytes as usize).saturating_sub(RECORD_BYTES_MIN);
    let topic = &TOPIC[..TOPIC.len().min(room.max(1))];
    let body = vec![0; room.saturating_sub(topic.len())];
    let record = NewRecord {
        topic,
        queue_id: 0,
        flag: 0,
        sys_flag: sys_flag::ROLLBACK,
        born_timestamp: store_timestamp as i64,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_offset: 0,
        body: &body,
        properties: &[],
    };
    let mut out = Vec::new();
    let store_timestamp_at = encode(&record, &mut out);
    patch(&mut out, store_timestamp_at, 0, log_offset, store_timestamp);
    debug_assert!(Record::parse(&out).is_ok());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;

    /// Or the walk would come back to the same place for ever.
    #[test]
    fn a_walk_can_leave_a_file_whose_end_was_filled() {
        let dir = tempfile::tempdir().unwrap();
        let log_dir = dir.path().join("commitlog");
        std::fs::create_dir(&log_dir).unwrap();
        for left in [1, 7, 8, 9, 500] {
            let _ = std::fs::remove_file(log_dir.join(file_name(0)));
            let file = MappedFile::create(&RealDisk, &log_dir, dir.path(), 0, 4096).unwrap();
            file.file.write_at(4096 - left, &vec![0x55; left as usize]).unwrap();
            let next = Next { log_offset: 4096, store_timestamp: 5 };
            fill(&RealDisk, dir.path(), &[Arc::new(file)], 4096 - left, next, 5).unwrap();
            let bytes = std::fs::read(log_dir.join(file_name(0))).unwrap();
            let end = check(&bytes[4096 - left as usize..], Some(4096 - left), true).unwrap();
            assert!(matches!(end, Checked::Blank { .. }) == (left >= 8), "{left}: {end:?}");
            assert!(matches!(end, Checked::End) == (left < 8), "{left}: {end:?}");
        }
    }

    #[test]
    fn a_filler_has_any_length_that_a_record_can_have() {
        for bytes in (RECORD_BYTES_MIN as u64 + 1..400).chain([FILLER_BYTES_MAX]) {
            let filler = filler(77, bytes, 5);
            assert_eq!(filler.len() as u64, bytes);
            let Ok(Checked::Record(record)) = check(&filler, Some(77), true) else { panic!("{bytes}") };
            assert!(!sys_flag::is_queued(record.sys_flag) && record.store_timestamp == 5);
            assert!(is_filler(&record));
        }
    }
}
