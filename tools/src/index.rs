//! The index: slots, chains and items of each file, and every item against the record that it names.
//!
//! ```text
//! header ─ next item n     slot ─> newest item ─> previous ─> … ─> 0      each item 1..n is in one chain, once
//!                          item ─> log offset ─> a record with a key of that hash, stored at that second
//! ```
//! Beside a running broker the newest file is between two states, and only its items are looked at.
//! Layout: storage's index_file.rs.

use crate::files::{Reader, Segment, failed, find, list};
use crate::report::Report;
use ringmq_storage::index::{HEADER_BYTES, Header, ITEM_BYTES, Item, SLOT_BYTES, key_hash, keys_of};
use ringmq_storage::record::decode::{Record, peek_size};
use std::io;
use std::ops::Range;
use std::path::Path;

/// Items come in log order, so one piece of the log serves many.
const WINDOW_BYTES: usize = 1 << 20;

pub struct IndexCheck<'a> {
    /// Where the log has records.
    pub log: Range<u64>,
    /// Where damage was filled, in order: the records that items there name are no more.
    pub filled: &'a [Range<u64>],
    pub segments: &'a [Segment],
    pub slots: Option<u32>,
    pub is_running: bool,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

impl IndexCheck<'_> {
    pub fn check(&self, dir: &Path, reader: &mut Reader, report: &mut Report<'_>) -> io::Result<()> {
        let files = list(dir)?;
        let mut window = Window::default();
        for (index, (path, metadata)) in files.iter().enumerate() {
            let is_name = path
                .file_name()
                .and_then(|name| name.to_str())
                .is_some_and(|name| name.len() == 17 && name.bytes().all(|byte| byte.is_ascii_digit()));
            if !is_name || metadata.is_dir() {
                report.finding("odd-file", path, 0, "the name is not the 17 digits of a time")?;
                continue;
            }
            let is_changing = self.is_running && index + 1 == files.len();
            self.check_file(path, metadata.len(), is_changing, &mut window, reader, report)?;
        }
        Ok(())
    }

    fn check_file(
        &self,
        path: &Path,
        bytes: u64,
        is_changing: bool,
        window: &mut Window,
        reader: &mut Reader,
        report: &mut Report<'_>,
    ) -> io::Result<()> {
        let Some((slots, items)) = self.shape(bytes) else {
            return report.note(&format!(
                "{}: not checked, its {bytes} bytes do not say how many slots it has: give --index-slots",
                path.display()
            ));
        };
        let mut header = [0; HEADER_BYTES as usize];
        if reader.read_at(path, 0, &mut header)? < header.len() {
            // Removed by a broker since it was listed.
            return Ok(());
        }
        // Not as `Header` has them, who takes a negative number for none, as Java does.
        let (used_slots, next) = (word(&header, 32), word(&header, 36).max(1));
        if next > items || used_slots > slots {
            let text = format!("{used_slots} slots used of {slots}, next item {next} of {items}");
            return report.finding("index-header", path, 32, &text);
        }
        let all = self.read_items(path, slots, next, reader)?;
        if !is_changing {
            check_chains(path, slots, &all, reader, report)?;
        }
        let item_at = |number: usize| HEADER_BYTES + SLOT_BYTES * u64::from(slots) + ITEM_BYTES * number as u64;
        let began = Header::decode(&header).begin_timestamp;
        let (mut expired, mut lost) = (0, 0);
        for (number, item) in all.iter().enumerate().skip(1) {
            if item.log_offset < self.log.start {
                expired += 1;
                continue;
            }
            let before = self.filled.partition_point(|range| range.end <= item.log_offset);
            if self.filled.get(before).is_some_and(|range| range.start <= item.log_offset) {
                lost += 1;
                continue;
            }
            if let Some(text) = self.fault(item, began, window, reader)? {
                // What is behind the log's end of a moment ago may have come since.
                if !(self.is_running && item.log_offset >= self.log.end) {
                    report.finding("index-item", path, item_at(number), &format!("item {number}: {text}"))?;
                }
            }
        }
        if expired > 0 {
            report.note(&format!("{}: {expired} items of records that are no longer in the log", path.display()))?;
        }
        if lost > 0 {
            report.note(&format!("{}: {lost} items of records that were damaged and filled", path.display()))?;
        }
        Ok(())
    }

    /// Slots and items of a file so long.
    fn shape(&self, bytes: u64) -> Option<(u32, u32)> {
        let room = bytes.checked_sub(HEADER_BYTES)?;
        let slots = match self.slots {
            Some(slots) => u64::from(slots),
            None => (room % (SLOT_BYTES + 4 * ITEM_BYTES) == 0).then_some(room / (SLOT_BYTES + 4 * ITEM_BYTES))?,
        };
        let items = room.checked_sub(slots * SLOT_BYTES).filter(|rest| rest % ITEM_BYTES == 0)? / ITEM_BYTES;
        Some((u32::try_from(slots).ok().filter(|slots| *slots > 0)?, u32::try_from(items).ok()?))
    }

    /// With one of number 0, which is not used.
    fn read_items(&self, path: &Path, slots: u32, next: u32, reader: &mut Reader) -> io::Result<Vec<Item>> {
        let mut bytes = vec![0; next as usize * ITEM_BYTES as usize];
        reader.read_at(path, HEADER_BYTES + SLOT_BYTES * u64::from(slots), &mut bytes)?;
        Ok(bytes.chunks_exact(ITEM_BYTES as usize).map(Item::decode).collect())
    }

    /// What is wrong with an item whose record should be in the log.
    fn fault(&self, item: &Item, began: i64, window: &mut Window, reader: &mut Reader) -> io::Result<Option<String>> {
        let at = item.log_offset;
        let segment = if at < self.log.end { find(self.segments, at) } else { None };
        let Some(segment) = segment else {
            return Ok(Some(format!("the log has nothing at {at}, it ends at {}", self.log.end)));
        };
        let bytes = window.record(segment, at - segment.start, reader)?;
        let Ok(record) = Record::parse(bytes) else {
            return Ok(Some(format!("no record begins at {at}")));
        };
        if !keys_of(&record).any(|key| key_hash(record.topic, key) == item.hash) {
            return Ok(Some(format!("the record at {at} has no key with the hash {}", item.hash)));
        }
        // Whole seconds, and 0 where Java's sum has no room.
        let seconds = record.store_timestamp.saturating_sub(began) / 1000;
        let noted = item.seconds as i32;
        if noted > 0 && began > 0 && (seconds - i64::from(noted)).abs() > 1 {
            let text = format!("{noted} s behind the file's begin, its record at {at} {seconds} s");
            return Ok(Some(text));
        }
        Ok(None)
    }
}

fn check_chains(path: &Path, slots: u32, all: &[Item], reader: &mut Reader, report: &mut Report<'_>) -> io::Result<()> {
    let mut bytes = vec![0; slots as usize * SLOT_BYTES as usize];
    reader.read_at(path, HEADER_BYTES, &mut bytes)?;
    let mut is_linked = vec![false; all.len()];
    for slot in 0..slots {
        let position = HEADER_BYTES + SLOT_BYTES * u64::from(slot);
        let mut number = word(&bytes, slot as usize * SLOT_BYTES as usize) as usize;
        if number >= all.len() {
            let text = format!("slot {slot} names item {number}, the next one is {}", all.len());
            report.finding("index-slot", path, position, &text)?;
            continue;
        }
        while number != 0 {
            let item = &all[number];
            if item.hash % slots != slot {
                let text = format!("item {number} with hash {} is in the chain of slot {slot}", item.hash);
                report.finding("index-slot", path, position, &text)?;
                break;
            }
            is_linked[number] = true;
            let previous = item.previous as usize;
            if previous >= number {
                let text = format!("behind item {number} of slot {slot} comes item {previous}: no older one");
                report.finding("index-slot", path, position, &text)?;
                break;
            }
            number = previous;
        }
    }
    let lost: Vec<usize> = (1..all.len()).filter(|number| !is_linked[*number]).collect();
    if let Some(first) = lost.first() {
        let position = HEADER_BYTES + SLOT_BYTES * u64::from(slots) + ITEM_BYTES * *first as u64;
        let text = format!("{} items are in no chain, the first is {first}", lost.len());
        report.finding("index-slot", path, position, &text)?;
    }
    Ok(())
}

/// A piece of a log file.
#[derive(Default)]
struct Window {
    start: Option<u64>,
    position: u64,
    bytes: Vec<u8>,
}

impl Window {
    /// From a record's first byte on, as much as it claims where that is believable.
    fn record(&mut self, segment: &Segment, position: u64, reader: &mut Reader) -> io::Result<&[u8]> {
        let claimed = |bytes: &[u8]| peek_size(bytes).map_or(0, |(size, _)| size as usize);
        let is_here = |window: &Window| {
            let offset = position.checked_sub(window.position).map(|offset| offset as usize);
            let rest = offset.and_then(|offset| window.bytes.get(offset..))?;
            (window.start == Some(segment.start) && rest.len() >= claimed(rest).max(8)).then_some(())
        };
        if is_here(self).is_none() {
            let mut head = [0; 8];
            reader.read_at(&segment.path, position, &mut head)?;
            let want = claimed(&head).clamp(WINDOW_BYTES, 128 << 20).min((segment.bytes - position) as usize);
            self.bytes.resize(want, 0);
            let filled = reader.read_at(&segment.path, position, &mut self.bytes).map_err(failed(&segment.path))?;
            self.bytes.truncate(filled);
            (self.start, self.position) = (Some(segment.start), position);
        }
        Ok(&self.bytes[(position - self.position) as usize..])
    }
}
