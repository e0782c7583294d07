//! One file of the commit log from record to record, by the store's own `record::decode::check`.
//!
//! ```text
//! record record fault ....... record blank | (rest of the file, not looked at)
//!                     searched for the next record that names its own place and has a right CRC
//! ```
//! Memory: one window, the longest record or 4 MiB.

use crate::files::{Reader, Segment};
use ringmq_storage::record::decode::{Checked, Record, RecordFault, check, peek_size};
use ringmq_storage::record::layout::{BLANK_BYTES, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN};
use std::io;
use std::path::Path;

const WINDOW_BYTES: u64 = 4 << 20;
/// Longer ones are not believed. Java's limit is `maxMessageSize`, 4 MiB if not set.
const RECORD_BYTES_MAX: u64 = 128 << 20;

/// What the walk met at a position.
pub enum Step<'a> {
    /// With a fault that leaves its lengths right: CRC or log offset.
    Record(Record<'a>, Option<RecordFault>),
    /// `bytes_left` as it claims; the file is done.
    Blank { bytes_left: u32 },
    /// No record; where the next one is. Without a next one the file is done.
    Fault(RecordFault, Option<u64>),
    /// Never written; as for a fault.
    Zeros(Option<u64>),
    /// The file is used up without a blank.
    FileEnd,
}

struct Window<'a> {
    reader: &'a mut Reader,
    path: &'a Path,
    file_bytes: u64,
    buffer: Vec<u8>,
    start: u64,
}

impl Window<'_> {
    /// From `position` on, at least `want` bytes where the file has them.
    fn at(&mut self, position: u64, want: u64) -> io::Result<&[u8]> {
        let want = want.min(self.file_bytes - position);
        let end = self.start + self.buffer.len() as u64;
        if position < self.start || position + want > end {
            let bytes = want.max(WINDOW_BYTES).min(self.file_bytes - position);
            self.buffer.resize(bytes as usize, 0);
            self.buffer.shrink_to(2 * WINDOW_BYTES as usize);
            let filled = self.reader.read_at(self.path, position, &mut self.buffer)?;
            self.buffer.truncate(filled);
            self.start = position;
        }
        Ok(&self.buffer[(position - self.start) as usize..])
    }

    /// As much as the record that begins there claims.
    fn record(&mut self, position: u64) -> io::Result<&[u8]> {
        let head = peek_size(self.at(position, BLANK_BYTES as u64)?);
        let claimed = match head {
            Some((size, MAGIC_V1 | MAGIC_V2)) => u64::from(size).min(RECORD_BYTES_MAX),
            _ => 0,
        };
        self.at(position, claimed.max(2 * RECORD_BYTES_MIN as u64))
    }

    /// The first whole record, or the blank of this file, behind `position`.
    fn next_whole(&mut self, segment: &Segment, position: u64) -> io::Result<Option<u64>> {
        let mut at = position + 1;
        while at + BLANK_BYTES as u64 <= self.file_bytes {
            match self.reader.data_from(self.path, at)? {
                None => return Ok(None),
                // A size may be zeros up to the magic.
                Some(data) => at = at.max(data.saturating_sub(4)),
            }
            let bytes = self.at(at, BLANK_BYTES as u64)?;
            if bytes.len() < BLANK_BYTES {
                return Ok(None);
            }
            let is_magic = |word: &[u8]| {
                matches!(word[0], 0xDA | 0xCB)
                    && [MAGIC_V1, MAGIC_V2, MAGIC_BLANK].iter().any(|magic| word == magic.to_be_bytes())
            };
            let Some(found) = bytes[4..].windows(4).position(is_magic) else {
                at += bytes.len() as u64 - BLANK_BYTES as u64 + 1;
                continue;
            };
            at += found as u64;
            let left = self.file_bytes - at;
            match check(self.record(at)?, Some(segment.start + at), true) {
                Ok(Checked::Record(_)) => return Ok(Some(at)),
                Ok(Checked::Blank { bytes_left }) if u64::from(bytes_left) == left => return Ok(Some(at)),
                _ => at += 1,
            }
        }
        Ok(None)
    }
}

/// Walks `segment` from `position` on. `act` gets positions in the file and says whether to go on. `is_searched`: also
/// behind zeros; not beside a running broker, which may write there at this moment.
pub fn walk_file(
    reader: &mut Reader,
    segment: &Segment,
    mut position: u64,
    is_searched: bool,
    act: &mut dyn FnMut(&mut Reader, u64, Step<'_>) -> io::Result<bool>,
) -> io::Result<()> {
    // Steps borrow the window's buffer while `act` reads other files, so the window has a reader of its own.
    let mut own = Reader::default();
    let mut window =
        Window { reader: &mut own, path: &segment.path, file_bytes: segment.bytes, buffer: Vec::new(), start: 0 };
    loop {
        let left = segment.bytes - position;
        let (fault, step_bytes) = match check(window.record(position)?, Some(segment.start + position), true) {
            Ok(Checked::Record(record)) => {
                let bytes = record.bytes.len() as u64;
                let fault = record.verify_property_crc().err();
                if !act(reader, position, Step::Record(record, fault))? {
                    return Ok(());
                }
                (None, Some(bytes))
            }
            Ok(Checked::Blank { bytes_left }) => {
                act(reader, position, Step::Blank { bytes_left })?;
                return Ok(());
            }
            Ok(Checked::End) if left < BLANK_BYTES as u64 => {
                act(reader, position, Step::FileEnd)?;
                return Ok(());
            }
            Ok(Checked::End) => (None, None),
            Err(fault @ (RecordFault::BodyCrc { .. } | RecordFault::LogOffset { .. })) => {
                let record = Record::parse(window.record(position)?).expect("checked but for CRC and offset");
                let bytes = record.bytes.len() as u64;
                if !act(reader, position, Step::Record(record, Some(fault)))? {
                    return Ok(());
                }
                (None, Some(bytes))
            }
            Err(fault) => (Some(fault), None),
        };
        if let Some(bytes) = step_bytes {
            position += bytes;
            continue;
        }
        let next = match &fault {
            None if !is_searched => None,
            _ => window.next_whole(segment, position)?,
        };
        let step = fault.map_or(Step::Zeros(next), |fault| Step::Fault(fault, next));
        let goes_on = act(reader, position, step)?;
        match next {
            Some(next) if goes_on => position = next,
            _ => return Ok(()),
        }
    }
}
