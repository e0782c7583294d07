//! What the tests of the store share: a small store, messages, and the rules that must hold in any of them.
#![allow(dead_code)]

use flate2::read::GzDecoder;
use ringmq_storage::append::AppendBatch;
use ringmq_storage::consume_queue::{ConsumeQueue, Entry};
use ringmq_storage::index::IndexConfig;
use ringmq_storage::record::decode::{Checked, Record, check};
use ringmq_storage::record::{NewRecord, RecordLimits, properties};
use ringmq_storage::store::{Store, StoreConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub const LIMITS: RecordLimits = RecordLimits::of_body(32_768);

/// The fixtures' sizes: logs of 64 KiB, queue files of 50 entries.
pub fn config(root: &Path) -> StoreConfig {
    StoreConfig {
        commit_log_file_bytes: 65_536,
        consume_queue_file_bytes: 1000,
        body_bytes_max: LIMITS.body_bytes_max,
        index: IndexConfig { is_enabled: true, slot_count: 100, item_count: 300 },
        ..StoreConfig::new(root)
    }
}

pub fn open(root: &Path) -> Arc<Store> {
    open_told(root).0
}

/// With what the start had to tell.
pub fn open_told(root: &Path) -> (Arc<Store>, String) {
    let (store, report) = Store::open(config(root), 1_000).unwrap_or_else(|e| panic!("{e}"));
    (store, report.lines.join("\n"))
}

pub fn message<'a>(topic: &'a str, queue_id: i32, body: &'a [u8], properties: &'a [&'a [u8]]) -> NewRecord<'a> {
    NewRecord {
        topic,
        queue_id,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 1,
        born_host: ([127, 0, 0, 1], 40_000).into(),
        store_host: ([127, 0, 0, 1], 10_911).into(),
        reconsume_times: 0,
        prepared_offset: 0,
        body,
        properties,
    }
}

/// Appends one message; its queue offset.
pub fn send(store: &Store, topic: &str, queue_id: i32, body: &[u8], now_ms: u64) -> u64 {
    let mut batch = AppendBatch::default();
    let queue = store.queue_or_create(topic, queue_id);
    let tags = [b"TAGS\x01a".as_slice()];
    batch
        .push(&message(topic, queue_id, body, &tags), properties::tag_code(b"a"), &queue, LIMITS)
        .expect("a good message");
    let outcome = store.append(&mut batch, now_ms);
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    batch.placed(0)[0].queue_offset
}

pub fn entries(queue: &ConsumeQueue) -> Vec<Entry> {
    let mut entries = Vec::new();
    queue.read(queue.min(), usize::MAX, &mut entries).expect("readable");
    assert_eq!(entries.len() as u64, queue.max() - queue.min());
    entries
}

pub fn with_record<T>(store: &Store, entry: &Entry, act: impl FnOnce(&Record<'_>) -> T) -> T {
    let bytes = store.record_at(entry.log_offset).unwrap_or_else(|| panic!("no record at {}", entry.log_offset));
    assert_eq!(bytes.len(), entry.record_bytes as usize);
    match check(&bytes, Some(entry.log_offset), true) {
        Ok(Checked::Record(record)) => act(&record),
        other => panic!("at {}: {other:?}", entry.log_offset),
    }
}

pub fn bodies(store: &Store, topic: &str, queue_id: i32) -> Vec<String> {
    let Some(queue) = store.queue(topic, queue_id) else { return Vec::new() };
    let body = |entry| with_record(store, entry, |record| String::from_utf8_lossy(record.body).into_owned());
    entries(&queue).iter().map(body).collect()
}

/// Every entry of every queue points to its own record, and every record of the log has an entry.
pub fn check_all(store: &Store) {
    let mut count = 0;
    let all: Vec<_> = queues(store);
    for queue in &all {
        for (queue_offset, entry) in (queue.min()..).zip(entries(queue)) {
            with_record(store, &entry, |record| {
                assert_eq!(record.queue_offset, queue_offset);
                assert_eq!((record.topic, record.queue_id), (queue.topic.as_bytes(), queue.queue_id));
            });
            count += 1;
        }
    }
    let mut records = 0;
    let mut offset = store.log_min();
    while offset < store.log_max() {
        match store.record_at(offset) {
            Some(record) => {
                records += 1;
                offset += record.len() as u64;
            }
            // A blank: on to the next file.
            None => offset = (offset / 65_536 + 1) * 65_536,
        }
    }
    assert_eq!(count, records, "entries and records");
}

pub fn queues(store: &Store) -> Vec<Arc<ConsumeQueue>> {
    let queues = |topic: String| (0..64).filter_map(move |id| store.queue(&topic, id)).collect::<Vec<_>>();
    store.topics().into_iter().flat_map(queues).collect()
}

/// Names, lengths and bytes of all files below `root` but for `lock` and our own notes.
pub fn snapshot(root: &Path) -> std::collections::BTreeMap<PathBuf, Vec<u8>> {
    let mut all = std::collections::BTreeMap::new();
    let mut dirs = vec![root.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                all.insert(path.strip_prefix(root).unwrap().to_path_buf(), std::fs::read(&path).unwrap());
            }
        }
    }
    all
}

/// The stores written by the Java broker lie in `shared/fixtures` beside the repository. Without them a test says SKIPPED,
/// or fails if RINGMQ_REQUIRE_CLIENTS=1.
pub fn fixtures() -> Option<PathBuf> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures");
    if dir.is_dir() {
        return Some(dir);
    }
    let required = std::env::var("RINGMQ_REQUIRE_CLIENTS").is_ok_and(|value| value == "1");
    assert!(!required, "the fixture stores are missing: {}", dir.display());
    println!("SKIPPED: the stores written by the Java broker are not there: {}", dir.display());
    None
}

/// A copy of a fixture's store, with its manifest. The big sparse `timerwheel` is left out.
pub fn fixture(name: &str) -> Option<(tempfile::TempDir, PathBuf, serde_json::Value)> {
    let dir = fixtures()?;
    let temp = tempfile::tempdir().expect("a folder");
    let manifest = std::fs::read(dir.join(format!("{name}.manifest.json"))).expect("manifest");
    let archive = std::fs::File::open(dir.join(format!("{name}.tar.gz"))).expect("archive");
    let mut archive = tar::Archive::new(GzDecoder::new(archive));
    for entry in archive.entries().expect("archive") {
        let mut entry = entry.expect("archive entry");
        if !entry.path().expect("entry path").ends_with("timerwheel") {
            entry.unpack_in(temp.path()).expect("unpacked");
        }
    }
    let root = temp.path().join("store");
    Some((temp, root, serde_json::from_slice(&manifest).expect("manifest")))
}
