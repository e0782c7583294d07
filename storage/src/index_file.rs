//! One index file: from the hash of `topic#key` to records of the log.
//!
//! ```text
//! header 40   | begin time 8 | end time 8 | begin log offset 8 | end log offset 8 | used slots 4 | next item 4 |
//! slots       4 bytes each, maxHashSlotNum of them: number of the newest item of the chain, 0 = none
//! items       20 bytes each, maxIndexNum of them, number 0 unused
//!             | hash 4 | log offset 8 | seconds since begin time 4 | previous item of the chain 4 |
//! name        local time of its making, yyyyMMddHHmmssSSS
//! ```
//! Two parts with two fates. Items are appended by one write for many; behind `next item` nobody reads them. Slots and
//! header live in memory (`Head`, loaded by pieces of 4 KiB when first touched) and reach the file together when the
//! index is filed (index.rs says when), so that between two filings the file on disk is a whole, older index.
//! A slot that names an item at or behind `next item` hides its whole chain from Java for good: hence the care.
//!
//! Positioned reads and writes, no mapping: a full or failing disk is an error and not a SIGBUS, and the sparse file
//! takes what it holds.
//! Source: IndexFile.java, IndexHeader.java (4.9.7, 5.3.3), which agree.

use crate::disk::{Blocks, Disk, DiskFile, NewFile};
use crate::index_keys::Key;
use std::io;
use std::path::{Path, PathBuf};

pub const HEADER_BYTES: u64 = 40;
pub const SLOT_BYTES: u64 = 4;
pub const ITEM_BYTES: u64 = 20;
const HEADER_WORDS: usize = (HEADER_BYTES / 4) as usize;
/// Header and slots are loaded and written by pieces of this many words: a page of the file.
const PIECE_WORDS: usize = 1024;
const PIECE_BYTES: usize = PIECE_WORDS * 4;
/// Pieces written by one call.
const PIECES_AT_ONCE: usize = 64;
/// Items read by one call when a chain is followed: it often leads to a neighbour.
const ITEMS_AT_ONCE: u64 = 204;
/// Items read by one call when all are.
const ITEMS_OF_SCAN: u64 = 52_428;

const _: () = assert!(ITEM_BYTES == 4 + 8 + 4 + 4);
const _: () = assert!(HEADER_BYTES == 4 * 8 + 2 * 4);

/// `maxHashSlotNum` and `maxIndexNum`. The file does not say them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub slot_count: u32,
    pub item_count: u32,
}

impl Shape {
    pub fn file_bytes(self) -> u64 {
        self.item_at(self.item_count)
    }

    pub fn item_at(self, number: u32) -> u64 {
        HEADER_BYTES + SLOT_BYTES * u64::from(self.slot_count) + ITEM_BYTES * u64::from(number)
    }

    fn slot_of(self, hash: u32) -> usize {
        (hash % self.slot_count) as usize
    }

    fn head_words(self) -> usize {
        HEADER_WORDS + self.slot_count as usize
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub begin_timestamp: i64,
    pub end_timestamp: i64,
    pub begin_log_offset: u64,
    pub end_log_offset: u64,
    pub used_slots: u32,
    /// Number of the next item, `index count` for Java.
    pub next: u32,
}

impl Header {
    /// Of a file that follows one which ended so.
    pub fn after(previous: Option<&Header>) -> Header {
        let (timestamp, offset) = previous.map_or((0, 0), |header| (header.end_timestamp, header.end_log_offset));
        Header {
            begin_timestamp: timestamp,
            end_timestamp: timestamp,
            begin_log_offset: offset,
            end_log_offset: offset,
            used_slots: 0,
            next: 1,
        }
    }

    pub fn encode(&self) -> [u8; HEADER_BYTES as usize] {
        let mut bytes = [0; HEADER_BYTES as usize];
        bytes[..8].copy_from_slice(&self.begin_timestamp.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.end_timestamp.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.begin_log_offset.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.end_log_offset.to_be_bytes());
        bytes[32..36].copy_from_slice(&self.used_slots.to_be_bytes());
        bytes[36..].copy_from_slice(&self.next.to_be_bytes());
        bytes
    }

    /// As Java reads it: a count of 0 or below stands for a file nothing was put into.
    pub fn decode(bytes: &[u8; HEADER_BYTES as usize]) -> Header {
        let long = |at: usize| i64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let int = |at: usize| i32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        Header {
            begin_timestamp: long(0),
            end_timestamp: long(8),
            begin_log_offset: long(16) as u64,
            end_log_offset: long(24) as u64,
            used_slots: int(32).max(0) as u32,
            next: int(36).max(1) as u32,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.next <= 1
    }

    pub(crate) fn item_count(&self) -> u64 {
        u64::from(self.next.saturating_sub(1))
    }

    /// Whether it can be the header of a file of this shape.
    pub(crate) fn is_plausible(&self, shape: Shape) -> bool {
        self.next <= shape.item_count.max(1)
            && self.used_slots < self.next
            && self.begin_timestamp >= 0
            && self.end_timestamp >= 0
            && self.begin_log_offset <= self.end_log_offset
            && self.end_log_offset <= i64::MAX as u64
    }

    /// Seconds that an item of a record stored at `timestamp` gets now.
    fn seconds(&self, timestamp: i64) -> u32 {
        if self.begin_timestamp <= 0 {
            return 0;
        }
        (timestamp.saturating_sub(self.begin_timestamp) / 1000).clamp(0, i64::from(i32::MAX)) as u32
    }

    /// Start of the second in which the item's record was stored.
    pub fn item_timestamp(&self, item: &Item) -> i64 {
        self.begin_timestamp.saturating_add(i64::from(item.seconds as i32).saturating_mul(1000))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    pub hash: u32,
    pub log_offset: u64,
    pub seconds: u32,
    pub previous: u32,
}

impl Item {
    pub fn encode(&self) -> [u8; ITEM_BYTES as usize] {
        let mut bytes = [0; ITEM_BYTES as usize];
        bytes[..4].copy_from_slice(&self.hash.to_be_bytes());
        bytes[4..12].copy_from_slice(&self.log_offset.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.seconds.to_be_bytes());
        bytes[16..].copy_from_slice(&self.previous.to_be_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Item {
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let log_offset = u64::from_be_bytes(bytes[4..12].try_into().expect("8 bytes"));
        Item { hash: word(0), log_offset, seconds: word(12), previous: word(16) }
    }
}

/// `|hash|` of `topic#key`, as items hold it.
pub(crate) fn item_hash(java_hash: i32) -> u32 {
    // Java's `Math.abs` leaves the least integer negative; it is made 0 then.
    u32::try_from(java_hash.checked_abs().unwrap_or(0)).expect("not negative")
}

/// A file as readers share it: items below a `next` that they know never change.
pub(crate) struct IndexFile {
    pub path: PathBuf,
    pub shape: Shape,
    file: Box<dyn DiskFile>,
}

impl IndexFile {
    pub fn create(
        disk: &dyn Disk,
        path: PathBuf,
        staging: &Path,
        shape: Shape,
        header: &Header,
    ) -> io::Result<IndexFile> {
        // As Java: a file has times and offsets from the start, but no count until it has an item.
        let content = Header { next: 0, ..*header }.encode();
        let bytes = shape.file_bytes();
        let file = disk.create(&NewFile { path: &path, staging, bytes, blocks: Blocks::Sparse, content: &content })?;
        Ok(IndexFile { path, shape, file })
    }

    pub fn open(disk: &dyn Disk, path: PathBuf, shape: Shape) -> io::Result<(IndexFile, Header)> {
        let file = IndexFile { file: disk.open(&path)?, path, shape };
        let header = file.read_header()?;
        Ok((file, header))
    }

    pub fn read_header(&self) -> io::Result<Header> {
        let mut bytes = [0; HEADER_BYTES as usize];
        self.file.read_at(0, &mut bytes)?;
        Ok(Header::decode(&bytes))
    }

    pub fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    pub fn read_slot(&self, hash: u32) -> io::Result<u32> {
        let mut bytes = [0; SLOT_BYTES as usize];
        let slot = self.shape.slot_of(hash) as u64;
        self.file.read_at(HEADER_BYTES + SLOT_BYTES * slot, &mut bytes)?;
        Ok(u32::from_be_bytes(bytes))
    }

    /// Gives the items from number 1 on, up to `end`, until `visit` says no.
    pub fn scan(&self, end: u32, visit: &mut dyn FnMut(u32, Item) -> bool) -> io::Result<()> {
        let mut buffer = vec![0; (ITEMS_OF_SCAN.min(u64::from(end)) * ITEM_BYTES) as usize];
        let mut number = 1;
        while number < end {
            let count = u64::from(end - number).min(ITEMS_OF_SCAN);
            let bytes = &mut buffer[..(count * ITEM_BYTES) as usize];
            self.file.read_at(self.shape.item_at(number), bytes)?;
            for item in bytes.chunks_exact(ITEM_BYTES as usize) {
                if !visit(number, Item::decode(item)) {
                    return Ok(());
                }
                number += 1;
            }
        }
        Ok(())
    }

    /// How many items in a row, the last one included, are of the record at `log_offset`.
    pub fn count_of_last(&self, next: u32, log_offset: u64) -> io::Result<u32> {
        let mut items = ItemReader::new(self, next);
        let mut count = 0;
        while count + 1 < next && items.read(next - 1 - count)?.log_offset == log_offset {
            count += 1;
        }
        Ok(count)
    }
}

/// Follows chains, a page of items at a time.
pub(crate) struct ItemReader<'a> {
    file: &'a IndexFile,
    /// Items from here on do not exist.
    end: u32,
    bytes: Vec<u8>,
    first: u32,
    /// Pages read so far: what a search costs.
    pub read_count: usize,
}

impl<'a> ItemReader<'a> {
    pub fn new(file: &'a IndexFile, end: u32) -> ItemReader<'a> {
        ItemReader { file, end, bytes: Vec::new(), first: 0, read_count: 0 }
    }

    pub fn read(&mut self, number: u32) -> io::Result<Item> {
        assert!(number < self.end, "item {number} of {}", self.end);
        let held = (self.bytes.len() as u64 / ITEM_BYTES) as u32;
        if !(self.first..self.first + held).contains(&number) {
            // Chains go down.
            let first = (u64::from(number) + 1).saturating_sub(ITEMS_AT_ONCE) as u32;
            self.bytes.resize(((number + 1 - first) as u64 * ITEM_BYTES) as usize, 0);
            self.read_count += 1;
            if let Err(e) = self.file.file.read_at(self.file.shape.item_at(first), &mut self.bytes) {
                self.bytes.clear();
                return Err(e);
            }
            self.first = first;
        }
        let at = (number - self.first) as usize * ITEM_BYTES as usize;
        Ok(Item::decode(&self.bytes[at..at + ITEM_BYTES as usize]))
    }
}

/// Header and slots of the file that is being filled.
pub(crate) struct Head {
    /// Header words unused; slots as numbers. Untouched memory costs nothing.
    words: Vec<u32>,
    /// A bit for each piece.
    loaded: Vec<u64>,
    dirty: Vec<u64>,
}

impl Head {
    fn new(shape: Shape, is_loaded: bool) -> Head {
        let piece_words = shape.head_words().div_ceil(PIECE_WORDS).div_ceil(64);
        let loaded = if is_loaded { u64::MAX } else { 0 };
        Head { words: vec![0; shape.head_words()], loaded: vec![loaded; piece_words], dirty: vec![0; piece_words] }
    }

    fn piece_count(&self) -> usize {
        self.words.len().div_ceil(PIECE_WORDS)
    }

    fn load(&mut self, file: &IndexFile, piece: usize) -> io::Result<()> {
        let from = piece * PIECE_WORDS;
        let to = (from + PIECE_WORDS).min(self.words.len());
        let mut bytes = [0; PIECE_BYTES];
        let bytes = &mut bytes[..(to - from) * 4];
        file.file.read_at(from as u64 * 4, bytes)?;
        for (word, bytes) in self.words[from..to].iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_be_bytes(bytes.try_into().expect("4 bytes"));
        }
        self.loaded[piece / 64] |= 1 << (piece % 64);
        Ok(())
    }

    #[inline]
    fn slot(&mut self, file: &IndexFile, slot: usize) -> io::Result<&mut u32> {
        let word = HEADER_WORDS + slot;
        let piece = word / PIECE_WORDS;
        if self.loaded[piece / 64] & (1 << (piece % 64)) == 0 {
            self.load(file, piece)?;
        }
        Ok(&mut self.words[word])
    }

    #[inline]
    fn mark(&mut self, slot: usize) {
        let piece = (HEADER_WORDS + slot) / PIECE_WORDS;
        self.dirty[piece / 64] |= 1 << (piece % 64);
    }
}

/// The last file while it is not full.
pub(crate) struct Active {
    pub file: std::sync::Arc<IndexFile>,
    pub header: Header,
    head: Head,
}

impl Active {
    pub fn new(file: IndexFile, header: Header, is_fresh: bool) -> Active {
        let head = Head::new(file.shape, is_fresh);
        Active { file: std::sync::Arc::new(file), header, head }
    }

    pub fn is_full(&self) -> bool {
        self.header.next >= self.file.shape.item_count
    }

    pub fn is_dirty(&self) -> bool {
        self.head.dirty.iter().any(|bits| *bits != 0)
    }

    /// Newest item of the chain of `hash`, 0 if there is none.
    pub fn newest(&mut self, hash: u32) -> io::Result<u32> {
        let slot = self.file.shape.slot_of(hash);
        Ok(*self.head.slot(&self.file, slot)?)
    }

    /// Puts keys in order, as many as the file has room for; returns how many. `buffer` is scratch.
    ///
    /// # Errors
    /// What the disk answers; nothing was put then.
    pub fn put(&mut self, keys: &[Key], buffer: &mut Vec<u8>) -> io::Result<usize> {
        let before = self.header;
        let count = keys.len().min(self.file.shape.item_count.saturating_sub(before.next) as usize);
        buffer.clear();
        let mut result = Ok(());
        for key in &keys[..count] {
            result = self.put_one(key, buffer);
            if result.is_err() {
                break;
            }
        }
        if result.is_ok() {
            result = self.file.file.write_at(self.file.shape.item_at(before.next), buffer);
        }
        if result.is_err() {
            self.take_back(buffer);
            self.header = before;
        }
        result.map(|()| count)
    }

    #[inline]
    fn put_one(&mut self, key: &Key, buffer: &mut Vec<u8>) -> io::Result<()> {
        let header = &mut self.header;
        let index = self.file.shape.slot_of(key.hash);
        let slot = self.head.slot(&self.file, index)?;
        // A value that can not be, as Java reads it.
        let previous = if *slot as i32 <= 0 || *slot > header.next { 0 } else { *slot };
        let seconds = header.seconds(key.store_timestamp);
        buffer.extend_from_slice(&Item { hash: key.hash, log_offset: key.log_offset, seconds, previous }.encode());
        *slot = header.next;
        self.head.mark(index);
        if header.next <= 1 {
            header.begin_log_offset = key.log_offset;
            header.begin_timestamp = key.store_timestamp;
        }
        header.used_slots += u32::from(previous == 0);
        header.next += 1;
        header.end_log_offset = key.log_offset;
        header.end_timestamp = key.store_timestamp;
        Ok(())
    }

    /// Undoes the puts whose items are in `items`, the last first.
    fn take_back(&mut self, items: &[u8]) {
        for item in items.chunks_exact(ITEM_BYTES as usize).rev().map(Item::decode) {
            let slot = self.file.shape.slot_of(item.hash);
            *self.head.slot(&self.file, slot).expect("loaded by the put") = item.previous;
        }
    }

    /// The next dirty pieces in `buffer`, with the place they belong to; they count as clean from here on.
    pub fn take_dirty(&mut self, buffer: &mut Vec<u8>) -> Option<u64> {
        let count = self.head.piece_count();
        let is_dirty = |head: &Head, piece: usize| head.dirty[piece / 64] & (1 << (piece % 64)) != 0;
        let first = (0..count).find(|piece| is_dirty(&self.head, *piece))?;
        let end = (first..count.min(first + PIECES_AT_ONCE)).find(|piece| !is_dirty(&self.head, *piece));
        let end = end.unwrap_or(count.min(first + PIECES_AT_ONCE));
        for piece in first..end {
            self.head.dirty[piece / 64] &= !(1 << (piece % 64));
        }
        let (from, to) = ((first * PIECE_WORDS).max(HEADER_WORDS), (end * PIECE_WORDS).min(self.head.words.len()));
        buffer.clear();
        buffer.extend(self.head.words[from..to].iter().flat_map(|word| word.to_be_bytes()));
        Some(from as u64 * 4)
    }

    /// After [`Active::take_dirty`], when its bytes could not be written.
    pub fn give_back_dirty(&mut self, position: u64, bytes: usize) {
        let first = position as usize / PIECE_BYTES;
        for piece in first..(position as usize + bytes).div_ceil(PIECE_BYTES) {
            self.head.dirty[piece / 64] |= 1 << (piece % 64);
        }
    }

    /// Makes the slots anew from the items below `header.next`, which recovery has checked. All of them are written by
    /// the next filing; what the file holds in other slots goes.
    pub fn relink(&mut self) -> io::Result<()> {
        let shape = self.file.shape;
        self.head = Head::new(shape, true);
        let (head, header) = (&mut self.head, &mut self.header);
        header.used_slots = 0;
        self.file.scan(header.next, &mut |number, item| {
            let word = &mut head.words[HEADER_WORDS + shape.slot_of(item.hash)];
            header.used_slots += u32::from(*word == 0);
            *word = number;
            true
        })?;
        self.file.file.zero(HEADER_BYTES, shape.item_at(0))?;
        for piece in 0..self.head.piece_count() {
            let from = (piece * PIECE_WORDS).max(HEADER_WORDS);
            let to = ((piece + 1) * PIECE_WORDS).min(self.head.words.len());
            if self.head.words[from..to].iter().any(|word| *word != 0) {
                self.head.dirty[piece / 64] |= 1 << (piece % 64);
            }
        }
        Ok(())
    }
}

/// What a filing writes; the caller holds no lock.
impl IndexFile {
    pub fn write_slots(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(position, bytes)
    }

    pub fn write_header(&self, header: &Header) -> io::Result<()> {
        self.file.write_at(0, &header.encode())
    }
}

/// In the time zone of this process.
pub(crate) fn local_time(now_ms: u64) -> libc::tm {
    let seconds = (now_ms / 1000) as libc::time_t;
    // SAFETY: an all-zero `tm` is a value of that plain C type.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live values of this frame; the function writes `tm` only. On failure it is left zero.
    unsafe { libc::localtime_r(&seconds, &mut tm) };
    tm
}

/// The number that a file name is. Beyond the year 9999 it is nobody's, and none could follow it.
pub(crate) fn parse_file_name(name: &str) -> Option<u64> {
    let is_number = name.len() == 17 && name.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_number.then(|| name.parse().ok())?;
    number.filter(|number| *number < 99_991_231_235_959_999)
}

/// `yyyyMMddHHmmssSSS` in local time, as Java names the files; above `last`, so that names sort as the files follow.
pub(crate) fn file_name(now_ms: u64, last: Option<u64>) -> String {
    let tm = local_time(now_ms);
    let date = [(tm.tm_year + 1900, 100), (tm.tm_mon + 1, 100), (tm.tm_mday, 100), (tm.tm_hour, 100), (tm.tm_min, 100)];
    let to_minute = date.iter().fold(0u64, |name, (part, base)| name * base + *part as u64);
    let name = (to_minute * 100 + tm.tm_sec as u64) * 1000 + now_ms % 1000;
    let name = last.map_or(name, |last| name.max(last + 1));
    format!("{name:017}")
}
