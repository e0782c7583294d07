//! The store on a disk that fails: what was refused leaves no trace, a failed flush is final, a full disk is survived.

use crate::append::AppendBatch;
use crate::consume_queue::{ConsumeQueue, Entry, QueueRoom};
use crate::disk::{Disk, DiskFile, Found, NewFile, RealDisk, Space};
use crate::error::{AppendError, OpenError};
use crate::flush::{FlushKeys, Promise};
use crate::lock::StoreLock;
use crate::record::{NewRecord, RecordLimits};
use crate::store::{Store, StoreConfig};
use nix::libc::{EIO, ENOSPC};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Each holds the errno that such calls answer, 0 for none.
#[derive(Default)]
pub(crate) struct Faults {
    pub log_write: AtomicI32,
    pub queue_write: AtomicI32,
    pub sync: AtomicI32,
    pub create: AtomicI32,
    /// Syncs of log files that have begun.
    pub log_sync_count: AtomicU64,
    /// While it is held, syncs of log files do not come to their end.
    pub log_sync_hold: Mutex<()>,
    /// What the partition says of itself, percent in use; 0 for what the machine's says.
    pub used_percent: AtomicU64,
    /// What a power loss leaves of each file: as it was at its last sync.
    images: Mutex<BTreeMap<PathBuf, Vec<u8>>>,
}

impl Faults {
    /// The disk as it comes back after a power loss, in `to`. `root` is the folder of the store.
    pub fn lose_power(&self, root: &Path, to: &Path) {
        for (path, bytes) in &*self.images.lock().unwrap() {
            let path = to.join(path.strip_prefix(root).unwrap());
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        std::fs::write(to.join("abort"), "1").unwrap();
    }
}

fn answer(fault: &AtomicI32) -> io::Result<()> {
    match fault.load(Ordering::Relaxed) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

pub(crate) struct FaultyDisk(pub Arc<Faults>);

impl FaultyDisk {
    fn file(&self, path: &Path, file: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        let is_log = path.parent().is_some_and(|dir| dir.ends_with("commitlog"));
        Box::new(FaultyFile { file, faults: Arc::clone(&self.0), is_log, path: path.to_path_buf() })
    }
}

impl Disk for FaultyDisk {
    fn list(&self, dir: &Path) -> io::Result<Vec<Found>> {
        RealDisk.list(dir)
    }
    fn create_dirs(&self, dir: &Path) -> io::Result<()> {
        RealDisk.create_dirs(dir)
    }
    fn create_nameless(&self, new: &NewFile<'_>) -> io::Result<Box<dyn DiskFile>> {
        answer(&self.0.create)?;
        Ok(self.file(new.path, RealDisk.create_nameless(new)?))
    }
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.file(path, RealDisk.open(path)?))
    }
    fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        RealDisk.read(path)
    }
    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        RealDisk.replace(path, content)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove_file(path)
    }
    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        RealDisk.remove_dir_all(dir)
    }
    fn sync_all(&self, dir: &Path) -> io::Result<()> {
        RealDisk.sync_all(dir)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.sync_dir(dir)
    }
    fn space(&self, path: &Path) -> io::Result<Space> {
        match self.0.used_percent.load(Ordering::Relaxed) {
            0 => RealDisk.space(path),
            percent => Ok(Space { used_bytes: percent << 20, free_bytes: (100 - percent) << 20 }),
        }
    }
    fn lock(&self, path: &Path) -> Result<StoreLock, OpenError> {
        RealDisk.lock(path)
    }
}

struct FaultyFile {
    file: Box<dyn DiskFile>,
    faults: Arc<Faults>,
    is_log: bool,
    path: PathBuf,
}

impl DiskFile for FaultyFile {
    fn name(&self, path: &Path) -> io::Result<()> {
        self.file.name(path)
    }
    fn write_at(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        let fault = if self.is_log { &self.faults.log_write } else { &self.faults.queue_write };
        if let Err(e) = answer(fault) {
            // As a full disk does: a part is written.
            self.file.write_at(position, &bytes[..bytes.len() * 2 / 3])?;
            return Err(e);
        }
        self.file.write_at(position, bytes)
    }
    fn read_at(&self, position: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_at(position, out)
    }
    fn sync(&self) -> io::Result<()> {
        let mut image = vec![0; self.file.bytes()? as usize];
        self.file.read_at(0, &mut image)?;
        if self.is_log {
            self.faults.log_sync_count.fetch_add(1, Ordering::SeqCst);
            let _hold = self.faults.log_sync_hold.lock();
        }
        answer(&self.faults.sync)?;
        self.file.sync()?;
        self.faults.images.lock().unwrap().insert(self.path.clone(), image);
        Ok(())
    }
    fn zero(&self, from: u64, to: u64) -> io::Result<u64> {
        answer(&self.faults.log_write)?;
        self.file.zero(from, to)
    }
    fn data_end(&self, from: u64, to: u64) -> io::Result<u64> {
        self.file.data_end(from, to)
    }

    fn extend(&self, bytes: u64) -> io::Result<()> {
        self.file.extend(bytes)
    }
    fn bytes(&self) -> io::Result<u64> {
        self.file.bytes()
    }
    fn modified_ms(&self) -> io::Result<u64> {
        self.file.modified_ms()
    }
    fn rewrite(&self) -> io::Result<()> {
        self.file.rewrite()
    }
    fn map(&self, bytes: usize) -> io::Result<memmap2::MmapRaw> {
        self.file.map(bytes)
    }
    fn map_writable(&self, bytes: usize) -> io::Result<memmap2::MmapRaw> {
        self.file.map_writable(bytes)
    }
}

fn open(root: &Path) -> (Arc<Store>, Arc<Faults>, String) {
    open_as(root, Promise::Async)
}

pub(crate) fn open_as(root: &Path, promise: Promise) -> (Arc<Store>, Arc<Faults>, String) {
    let config = StoreConfig {
        commit_log_file_bytes: 65_536,
        consume_queue_file_bytes: 1000,
        body_bytes_max: 32_768,
        promise,
        keys: FlushKeys { least_pages: 0, ..FlushKeys::default() },
        index: crate::index::IndexConfig { is_enabled: true, slot_count: 100, item_count: 300 },
        ..StoreConfig::new(root)
    };
    let faults = Arc::new(Faults::default());
    let disk = Arc::new(FaultyDisk(Arc::clone(&faults)));
    let (store, report) = Store::open_on(disk, config, 1).unwrap_or_else(|e| panic!("{e}"));
    (store, faults, report.lines.join("\n"))
}

/// A message of queue 0 in which nothing else matters.
pub(crate) fn message<'a>(topic: &'a str, body: &'a [u8], properties: &'a [&'a [u8]]) -> NewRecord<'a> {
    let host = ([127, 0, 0, 1], 1).into();
    NewRecord {
        topic,
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 0,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_offset: 0,
        body,
        properties,
    }
}

/// Two messages in two queues by one batch.
fn send(store: &Store, body: &[u8]) -> Result<u64, AppendError> {
    let mut batch = AppendBatch::default();
    for topic in ["A", "B"] {
        let record = message(topic, body, &[]);
        let queue = store.queue_or_create(topic, 0);
        batch.push(&record, 0, &queue, RecordLimits::of_body(32_768)).unwrap();
    }
    let outcome = store.append(&mut batch, 1000);
    match outcome.error {
        None => Ok(batch.placed(1)[0].queue_offset),
        Some(e) => {
            assert_eq!(outcome.units_placed, 0);
            assert!(batch.placed(0).is_empty());
            Err(e)
        }
    }
}

fn ends(store: &Store) -> (u64, u64, u64) {
    (store.log_max(), store.queue("A", 0).unwrap().max(), store.queue("B", 0).unwrap().max())
}

#[test]
fn a_failed_write_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults, _) = open(dir.path());
    send(&store, b"first").unwrap();
    let before = ends(&store);
    faults.log_write.store(ENOSPC, Ordering::Relaxed);
    for _ in 0..2 {
        let error = send(&store, &[b'y'; 500]).unwrap_err();
        assert!(matches!(&error, AppendError::NotWritable(text) if text.contains("os error 28")), "{error}");
        assert_eq!(ends(&store), before);
    }
    faults.log_write.store(0, Ordering::Relaxed);
    // A shorter one in its place; what the failed ones left would be a record behind it.
    assert_eq!(send(&store, b"s").unwrap(), 1);
    let end = ends(&store);
    drop(store);
    let (store, _, told) = open(dir.path());
    assert_eq!(ends(&store), end);
    assert!(!told.contains("zeroed"), "nothing was behind the end: {told}");
}

#[test]
fn a_failed_flush_ends_all_writing() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults, _) = open(dir.path());
    send(&store, b"first").unwrap();
    faults.sync.store(EIO, Ordering::Relaxed);
    store.flush_turn(10_000);
    faults.sync.store(0, Ordering::Relaxed);
    store.flush_turn(20_000);
    let error = send(&store, b"second").unwrap_err().to_string();
    assert!(error.contains("a flush of") && error.contains("restart"), "{error}");
    assert_eq!(store.log_flushed(), 0, "no later success counts");
    assert!(store.close(1).is_err());
    assert!(dir.path().join("abort").exists());
    drop(store);
    let (store, ..) = open(dir.path());
    assert_eq!(send(&store, b"second").unwrap(), 1);
}

#[test]
fn without_room_for_a_file_appends_fail_and_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults, _) = open(dir.path());
    faults.create.store(ENOSPC, Ordering::Relaxed);
    assert!(matches!(send(&store, b"x").unwrap_err(), AppendError::NotWritable(_)));
    faults.create.store(EIO, Ordering::Relaxed);
    store.files_turn(1000);
    assert!(matches!(send(&store, b"x").unwrap_err(), AppendError::NoFile(_)));
    faults.create.store(0, Ordering::Relaxed);
    let mut sent = 0;
    while store.log_max() < 65_536 - 10_000 {
        send(&store, &[b'x'; 1000]).unwrap();
        sent += 1;
    }
    faults.create.store(ENOSPC, Ordering::Relaxed);
    while send(&store, &[b'x'; 1000]).is_ok() {
        sent += 1;
    }
    assert!(store.log_max() < 65_536);
    faults.create.store(0, Ordering::Relaxed);
    assert_eq!(send(&store, &[b'x'; 1000]).unwrap(), sent);
    assert!(store.log_max() > 65_536);
    store.close(1).unwrap();
}

/// What it covered may be lost though the page cache still has it: the next start writes it once more.
#[test]
fn after_a_failed_sync_the_next_start_writes_everything_again() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults, _) = open(dir.path());
    send(&store, b"first").unwrap();
    faults.sync.store(EIO, Ordering::Relaxed);
    store.flush_turn(10_000);
    let note = dir.path().join("ringmq-sync-failed");
    assert!(note.exists());
    drop(store);
    let modified = |path: &Path| std::fs::metadata(path).unwrap().modified().unwrap();
    let log = dir.path().join("commitlog").join("0".repeat(20));
    let before = modified(&log);
    std::thread::sleep(std::time::Duration::from_millis(20));
    let (store, _, told) = open(dir.path());
    assert!(told.contains("written once more"), "{told}");
    assert!(modified(&log) > before);
    assert!(!note.exists());
    assert_eq!(send(&store, b"second").unwrap(), 1);
    drop(store);
    let (_store, _, told) = open(dir.path());
    assert!(!told.contains("written once more"), "{told}");
}

/// Its earlier files have expired, its last ones are cut: there is no entry before the cut to look at.
#[test]
fn a_queue_is_cut_where_it_begins() {
    let dir = tempfile::tempdir().unwrap();
    let queues = dir.path().join("consumequeue");
    let room = Arc::new(QueueRoom::new(Arc::new(RealDisk), queues.clone(), &dir.path().join("tmp"), 1000, 16));
    let queue = ConsumeQueue::new(&room, "T", 0);
    let mut buffer = Vec::new();
    queue.start_at(50);
    queue.append((50..60).map(|offset| (offset, Entry { log_offset: 100 * offset, record_bytes: 100, tags_code: 0 })));
    queue.set_next(60);
    queue.publish(60);
    queue.file_tail(&mut buffer).unwrap();
    assert_eq!(std::fs::read_dir(queues.join("T/0")).unwrap().count(), 1);
    queue.cut(50, &mut buffer).unwrap();
    assert_eq!((queue.min(), queue.max()), (50, 50));
    assert_eq!(queue.slot(49).unwrap(), None);
}

/// Every file with a hole is behind the queue's end: a hole before it would be an entry that nobody can read.
#[test]
fn a_queue_ends_in_the_first_of_its_files_that_is_not_full() {
    for holes in [vec![0, 1], vec![1], vec![0, 2], vec![2], vec![0, 1, 2]] {
        let dir = tempfile::tempdir().unwrap();
        let queues = dir.path().join("consumequeue");
        let room = || Arc::new(QueueRoom::new(Arc::new(RealDisk), queues.clone(), &dir.path().join("tmp"), 200, 16));
        let made = room();
        let queue = ConsumeQueue::new(&made, "T", 0);
        let entry = |offset| (offset, Entry { log_offset: 100 * offset, record_bytes: 100, tags_code: 0 });
        queue.append((0..35).map(entry));
        queue.set_next(35);
        queue.publish(35);
        queue.file_tail(&mut Vec::new()).unwrap();
        for hole in &holes {
            let file = std::fs::OpenOptions::new().write(true).open(queues.join(format!("T/0/{:020}", 200 * hole)));
            file.unwrap().write_all_at(&[0; 60], if *hole == 1 { 0 } else { 100 }).unwrap();
        }
        let made = room();
        let queue = ConsumeQueue::new(&made, "T", 0);
        assert!(queue.load(&[0, 200, 400, 600]).unwrap().damage.is_some());
        let end = 10 * holes[0] + if holes[0] == 1 { 0 } else { 5 };
        assert_eq!((queue.min(), queue.max()), (0, end), "{holes:?}");
    }
}

/// As a power loss can leave it. The queues are cut; a store without any log file would be refused.
#[test]
fn the_only_log_file_is_empty() {
    for is_clean in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (store, ..) = open(dir.path());
        send(&store, b"first").unwrap();
        store.files_turn(100_000);
        if is_clean {
            store.close(1).unwrap();
        }
        drop(store);
        let log = dir.path().join("commitlog").join("0".repeat(20));
        std::fs::File::create(&log).unwrap();
        for _ in 0..2 {
            let (store, _, told) = open(dir.path());
            assert_eq!((store.log_max(), store.queue_or_create("A", 0).max()), (0, 0), "clean {is_clean}: {told}");
            assert_eq!(std::fs::metadata(&log).unwrap().len(), 65_536);
            drop(store);
        }
        let (store, ..) = open(dir.path());
        assert_eq!(send(&store, b"again").unwrap(), 0);
    }
}

/// Ten messages of 9 KB in one batch: more than a file holds.
fn long_batch(store: &Store) -> AppendBatch {
    let mut batch = AppendBatch::default();
    let queue = store.queue_or_create("T", 0);
    for number in 0..10u8 {
        let body = [number; 9000];
        let record = message("T", &body, &[]);
        batch.push(&record, 0, &queue, RecordLimits::of_body(32_768)).unwrap();
    }
    batch
}

#[test]
fn where_an_agent_makes_files_a_batch_waits_for_it_and_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults, _) = open(dir.path());
    store.wait_files(0);
    let mut batch = long_batch(&store);
    let outcome = store.append(&mut batch, 1);
    assert_eq!((outcome.units_placed, outcome.error), (0, Some(AppendError::NoFileYet { start: 0 })));
    store.files_turn(1);
    let outcome = store.append(&mut batch, 1);
    assert_eq!((outcome.units_placed, outcome.error), (10, None), "the next and the next but one are there");
    assert_eq!(batch.placed(9)[0].queue_offset, 9);

    // Behind those the agent is needed again.
    let mut placed = 10;
    let mut batch = long_batch(&store);
    while store.append(&mut batch, 2).error.is_none() {
        placed += 10;
        batch = long_batch(&store);
    }
    let before = batch.units_placed();
    assert_eq!(store.queue_or_create("T", 0).max(), placed + before as u64, "what is placed can be seen");
    faults.create.store(EIO, Ordering::Relaxed);
    store.files_turn(3);
    let error = store.append(&mut batch, 3).error.unwrap();
    assert!(matches!(&error, AppendError::NoFile(text) if text.contains("os error 5")), "{error}");
    faults.create.store(0, Ordering::Relaxed);
    store.files_turn(4);
    let outcome = store.append(&mut batch, 4);
    assert_eq!((outcome.units_placed, outcome.error), (10, None));
    let offsets: Vec<u64> = (0..10).map(|unit| batch.placed(unit)[0].queue_offset).collect();
    assert_eq!(offsets, (placed..placed + 10).collect::<Vec<_>>());
    drop(store);
    let (store, ..) = open(dir.path());
    assert_eq!(store.queue_or_create("T", 0).max(), placed + 10);
}

#[test]
fn queue_entries_wait_in_memory_for_a_disk_that_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults, _) = open(dir.path());
    for fault in [&faults.create, &faults.queue_write] {
        store.files_turn(1);
        send(&store, b"x").unwrap();
        fault.store(ENOSPC, Ordering::Relaxed);
        for step in 1..5 {
            store.files_turn(2000 * step);
        }
        send(&store, b"x").unwrap();
        fault.store(0, Ordering::Relaxed);
    }
    for step in 5..50 {
        store.files_turn(2000 * step);
    }
    store.close(1).unwrap();
    drop(store);
    let (store, _, told) = open(dir.path());
    assert!(!told.contains("added"), "{told}");
    assert_eq!(ends(&store).1, 4);
}

#[test]
fn a_failed_sync_of_a_queue_keeps_the_checkpoint_back() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults, _) = open(dir.path());
    send(&store, b"x").unwrap();
    faults.sync.store(EIO, Ordering::Relaxed);
    for step in 1..5 {
        store.files_turn(61_000 * step);
    }
    faults.sync.store(0, Ordering::Relaxed);
    for step in 5..9 {
        store.files_turn(61_000 * step);
    }
    assert_eq!(store.checkpoint.times().queues, 0);
    assert!(store.close(1).is_err());
    assert!(dir.path().join("abort").exists());
}
