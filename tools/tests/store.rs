//! The binary on the stores that Java brokers wrote: sound ones are sound, and each damage is a finding.

use flate2::read::GzDecoder;
use ringmq_storage::append::AppendBatch;
use ringmq_storage::consume_queue::ConsumeQueue;
use ringmq_storage::index::IndexConfig;
use ringmq_storage::record::{NewRecord, RecordLimits};
use ringmq_storage::store::{Store, StoreConfig};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A copy of a fixture's store. Without the fixtures a test says SKIPPED, or fails if RINGMQ_REQUIRE_CLIENTS=1.
fn fixture(name: &str) -> Option<(tempfile::TempDir, PathBuf)> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures");
    if !dir.is_dir() {
        let required = std::env::var("RINGMQ_REQUIRE_CLIENTS").is_ok_and(|value| value == "1");
        assert!(!required, "the fixture stores are missing: {}", dir.display());
        println!("SKIPPED: the stores written by the Java broker are not there: {}", dir.display());
        return None;
    }
    let temp = tempfile::tempdir().expect("a folder");
    let archive = fs::File::open(dir.join(format!("{name}.tar.gz"))).expect("archive");
    let mut archive = tar::Archive::new(GzDecoder::new(archive));
    for entry in archive.entries().expect("archive") {
        let mut entry = entry.expect("archive entry");
        if !entry.path().expect("entry path").ends_with("timerwheel") {
            entry.unpack_in(temp.path()).expect("unpacked");
        }
    }
    let root = temp.path().join("store");
    Some((temp, root))
}

fn tool(args: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_ringmq-tools")).args(args).output().expect("runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!stderr.contains("panicked"), "{stderr}");
    (output.status.code().expect("not killed"), String::from_utf8(output.stdout).expect("UTF-8"))
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn verify(root: &Path) -> (i32, Vec<Value>) {
    let (code, text) = tool(&["store", "verify", root.to_str().unwrap(), "--json"]);
    (code, lines(&text))
}

fn kinds(lines: &[Value]) -> BTreeSet<&str> {
    lines.iter().filter_map(|line| line["finding"].as_str()).collect()
}

fn patch(path: PathBuf, position: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    file.write_all_at(bytes, position).unwrap();
}

fn log(root: &Path, start: u64) -> PathBuf {
    root.join(format!("commitlog/{start:020}"))
}

fn queue(root: &Path, name: &str, start: u64) -> PathBuf {
    root.join(format!("consumequeue/{name}/{start:020}"))
}

fn snapshot(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut dirs = vec![root.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                all.insert(path.clone(), fs::read(&path).unwrap());
            }
        }
    }
    all
}

#[test]
fn sound_stores_are_sound_and_stay_as_they_are() {
    for (name, records) in [("store-4.9.7-clean", 171), ("store-5.3.3-clean", 174), ("store-5.3.3-features", 22)] {
        let Some((_temp, root)) = fixture(name) else { return };
        let before = snapshot(&root);
        let (code, found) = verify(&root);
        assert_eq!((code, kinds(&found).len()), (0, 0), "{name}: {found:?}");
        let (code, dumped) = tool(&["store", "dump", root.to_str().unwrap(), "--json"]);
        let dumped = lines(&dumped);
        assert_eq!((code, dumped.len()), (0, records), "{name}");
        assert!(dumped.iter().all(|line| line["crcOk"] == true && line["fault"].is_null()));
        assert!(snapshot(&root) == before, "{name}: something has changed");
    }
}

#[test]
fn a_killed_store_tells_what_recovery_will_mend() {
    for (name, end) in [("store-4.9.7-killed", 191852), ("store-5.3.3-killed", 202586)] {
        let Some((_temp, root)) = fixture(name) else { return };
        let (code, found) = verify(&root);
        assert_eq!(code, 1);
        assert_eq!(kinds(&found), BTreeSet::from(["abort", "no-entry", "record"]), "{name}");
        let count = |kind| found.iter().filter(|line| line["finding"] == kind).count();
        assert_eq!((count("abort"), count("no-entry"), count("record")), (1, 5, 1), "{name}: {found:?}");
        let torn = found.iter().find(|line| line["finding"] == "record").unwrap();
        let path = Path::new(torn["path"].as_str().unwrap());
        let start: u64 = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
        assert_eq!(start + torn["position"].as_u64().unwrap(), end);
    }
}

/// What is done to a copy of the store.
type Damage = fn(&Path);

#[test]
fn each_damage_is_a_finding() {
    let cases: &[(&str, &str, Damage, &[&str])] = &[
        // The log. 186400 is TopicDirect (no body), 186502 TopicV6, 64484 the first blank.
        ("body", "4.9.7-clean", |r| patch(log(r, 131072), 186502 - 131072 + 100, b"\xFF"), &["record"]),
        ("own offset", "4.9.7-clean", |r| patch(log(r, 131072), 186400 - 131072 + 35, b"\xFF"), &["record"]),
        (
            "record size",
            "4.9.7-clean",
            |r| patch(log(r, 131072), 186400 - 131072 + 3, b"\x67"),
            &["no-record", "record"],
        ),
        ("magic", "4.9.7-clean", |r| patch(log(r, 0), 4, b"\0"), &["no-record", "record"]),
        (
            "queue id",
            "4.9.7-clean",
            |r| patch(log(r, 131072), 186400 - 131072 + 15, b"\x02"),
            &["no-entry", "no-record"],
        ),
        (
            "queue offset",
            "4.9.7-clean",
            |r| patch(log(r, 131072), 186400 - 131072 + 27, b"\x05"),
            &["no-entry", "no-record"],
        ),
        ("lost page", "4.9.7-clean", |r| patch(log(r, 0), 4096, &[0; 4096]), &["no-record", "record"]),
        (
            "zeros from a record on",
            "4.9.7-clean",
            |r| patch(log(r, 131072), 186400 - 131072, &[0; 102]),
            &["log-gap", "no-record"],
        ),
        (
            "end of the log",
            "4.9.7-clean",
            |r| patch(log(r, 131072), 186400 - 131072, &[0; 10000]),
            &["checkpoint", "no-record"],
        ),
        ("blank", "4.9.7-clean", |r| patch(log(r, 0), 64484, &[0, 0, 4, 0x1D]), &["blank"]),
        ("no blank", "4.9.7-clean", |r| patch(log(r, 0), 64484, &[0; 8]), &["log-gap"]),
        ("property CRC", "5.3.3-features", |r| patch(log(r, 0), 40, b"\xEE"), &["record"]),
        ("log file lost", "4.9.7-clean", |r| fs::remove_file(log(r, 65536)).unwrap(), &["file-gap", "no-record"]),
        (
            "log file cut",
            "4.9.7-clean",
            |r| OpenOptions::new().write(true).open(log(r, 131072)).unwrap().set_len(65000).unwrap(),
            &["file-size"],
        ),
        (
            "log file renamed",
            "4.9.7-clean",
            |r| fs::rename(log(r, 131072), log(r, 131073)).unwrap(),
            &["file-gap", "file-name", "no-entry", "no-record", "record"],
        ),
        ("stray file", "4.9.7-clean", |r| fs::write(r.join("commitlog/notes.txt"), "x").unwrap(), &["odd-file"]),
        ("stray folder", "4.9.7-clean", |r| fs::create_dir(r.join("commitlog/old")).unwrap(), &["odd-file"]),
        // Queues.
        ("entry offset", "4.9.7-clean", |r| patch(queue(r, "TopicV6/0", 0), 7, b"\x01"), &["no-entry", "no-record"]),
        ("entry size", "4.9.7-clean", |r| patch(queue(r, "TopicV6/0", 0), 11, b"\x01"), &["entry-size"]),
        (
            "entry size too large",
            "4.9.7-clean",
            |r| patch(queue(r, "TopicV6/0", 0), 8, b"\x01"),
            &["entry-order", "entry-size"],
        ),
        (
            "entry size negative",
            "4.9.7-clean",
            |r| patch(queue(r, "TopicV6/0", 0), 8, b"\xFF"),
            &["entry-invalid", "no-entry"],
        ),
        ("entry tags", "4.9.7-clean", |r| patch(queue(r, "TopicV6/0", 0), 19, b"\x01"), &["entry-tags"]),
        ("delivery time", "4.9.7-clean", |r| patch(queue(r, "SCHEDULE_TOPIC_XXXX/0", 0), 12, &[0; 8]), &["entry-tags"]),
        ("first entry lost", "4.9.7-clean", |r| patch(queue(r, "TopicV6/0", 0), 0, &[0; 20]), &["no-entry"]),
        ("entry lost", "4.9.7-clean", |r| patch(queue(r, "TopicBig/0", 0), 200, &[0; 20]), &["no-entry", "queue-gap"]),
        (
            "filler",
            "4.9.7-clean",
            |r| {
                patch(
                    queue(r, "TopicBig/0", 0),
                    200,
                    &[0, 0, 0, 0, 0, 0, 0, 0, 127, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0],
                )
            },
            &["no-entry", "queue-gap"],
        ),
        (
            "entry twice",
            "4.9.7-clean",
            |r| {
                let path = queue(r, "TopicV6/1", 0);
                let entry = fs::read(&path).unwrap()[..20].to_vec();
                patch(path, 20, &entry)
            },
            &["no-record"],
        ),
        (
            "entry behind the log",
            "4.9.7-clean",
            |r| patch(queue(r, "TopicV6/1", 0), 20, &[0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 100, 0, 0, 0, 0, 0, 0, 0, 0]),
            &["no-record"],
        ),
        ("queue file lost", "4.9.7-clean", |r| fs::remove_file(queue(r, "TopicBig/0", 0)).unwrap(), &["no-entry"]),
        ("queue lost", "4.9.7-clean", |r| fs::remove_dir_all(r.join("consumequeue/TopicV6/1")).unwrap(), &["no-entry"]),
        ("all queues lost", "4.9.7-clean", |r| fs::remove_dir_all(r.join("consumequeue")).unwrap(), &["no-entry"]),
        (
            "empty queue file",
            "4.9.7-clean",
            |r| fs::write(queue(r, "TopicV6/1", 1000), [0; 1000]).unwrap(),
            &["empty-file"],
        ),
        (
            "queue file cut",
            "4.9.7-clean",
            |r| OpenOptions::new().write(true).open(queue(r, "TopicV6/1", 0)).unwrap().set_len(10).unwrap(),
            &["empty-file", "file-size", "no-entry"],
        ),
        (
            "stray file in a queue",
            "4.9.7-clean",
            |r| fs::write(r.join("consumequeue/TopicV6/1/x.tmp"), "x").unwrap(),
            &["odd-file"],
        ),
        (
            "extension",
            "5.3.3-features",
            |r| patch(r.join("consumequeue_ext/TopicLmq/1/00000000000000000000"), 9, b"\x01"),
            &["entry-tags"],
        ),
        ("LMQ entry", "5.3.3-features", |r| patch(lmq(r), 7, b"\x01"), &["no-record"]),
        // Beside them.
        ("abort", "4.9.7-clean", |r| fs::write(r.join("abort"), "").unwrap(), &["abort"]),
        ("checkpoint lost", "4.9.7-clean", |r| fs::remove_file(r.join("checkpoint")).unwrap(), &["checkpoint"]),
        ("checkpoint short", "4.9.7-clean", |r| fs::write(r.join("checkpoint"), "x").unwrap(), &["checkpoint"]),
        ("log time", "4.9.7-clean", |r| patch(r.join("checkpoint"), 2, b"\x7F"), &["checkpoint"]),
        ("queues' time", "4.9.7-clean", |r| patch(r.join("checkpoint"), 8, b"\xFF"), &["checkpoint"]),
        ("topics torn", "4.9.7-clean", |r| fs::write(r.join("config/topics.json"), "{\"dataV").unwrap(), &["metadata"]),
        (
            "groups torn",
            "4.9.7-clean",
            |r| fs::write(r.join("config/subscriptionGroup.json"), "").unwrap(),
            &["metadata"],
        ),
        (
            "a delay that is no number",
            "4.9.7-clean",
            |r| fs::write(r.join("config/delayOffset.json"), "{\"offsetTable\":{\"3\":\"x\"}}").unwrap(),
            &["metadata"],
        ),
        (
            "a table of null",
            "4.9.7-clean",
            |r| fs::write(r.join("config/topics.json"), "{\"topicConfigTable\":null}").unwrap(),
            &["metadata"],
        ),
        ("no table", "4.9.7-clean", |r| fs::write(r.join("config/consumerOffset.json"), "[]").unwrap(), &["metadata"]),
        ("only a .bak", "4.9.7-clean", |r| fs::remove_file(r.join("config/topics.json")).unwrap(), &["metadata"]),
        (
            "deleted topics",
            "4.9.7-clean",
            |r| fs::write(r.join("ringmq-deleted-topics"), "12 T b7bec069\nx\n").unwrap(),
            &["deleted-topics"],
        ),
    ];
    let mut wrong = Vec::new();
    for (what, name, damage, want) in cases {
        let Some((_temp, root)) = fixture(&format!("store-{name}")) else { return };
        damage(&root);
        let before = snapshot(&root);
        let (code, found) = verify(&root);
        if kinds(&found) != BTreeSet::from_iter(want.iter().copied()) {
            wrong.push(format!("{what}: {want:?} wanted, {:?} found, {:?}", kinds(&found), found.first()));
        }
        assert_eq!(code, 1, "{what}");
        for line in found.iter().filter(|line| line["finding"].is_string()) {
            assert!(line["path"].as_str().unwrap().starts_with(root.to_str().unwrap()) && line["position"].is_u64());
        }
        tool(&["store", "dump", root.to_str().unwrap()]);
        assert!(snapshot(&root) == before, "{what}: something has changed");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The queue of the first `%LMQ%` topic.
fn lmq(root: &Path) -> PathBuf {
    let topics = fs::read_dir(root.join("consumequeue")).unwrap().map(|entry| entry.unwrap().path());
    let first = topics.filter(|path| path.to_str().unwrap().contains("%LMQ%")).min().expect("an LMQ topic");
    first.join("0/00000000000000000000")
}

/// Any byte of log, queue or checkpoint may be anything: no panic, no endless loop.
#[test]
fn random_damage_ends_in_an_exit_code() {
    let Some((_temp, root)) = fixture("store-5.3.3-clean") else { return };
    let files: Vec<_> =
        snapshot(&root).into_keys().filter(|path| !path.to_str().unwrap().contains("/index/")).collect();
    let mut random = 0x2545_F491_4F6C_DD1D_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for _ in 0..60 {
        let path = &files[next() as usize % files.len()];
        let bytes = fs::metadata(path).unwrap().len().max(1);
        let junk: Vec<u8> = (0..1 + next() % 9).map(|_| if next() % 3 == 0 { 0 } else { next() as u8 }).collect();
        patch(path.clone(), next() % bytes, &junk);
        assert!(matches!(verify(&root).0, 0 | 1));
        let (code, _) = tool(&["store", "dump", root.to_str().unwrap(), "--from", &(next() % 300_000).to_string()]);
        assert!(matches!(code, 0 | 1));
    }
}

#[test]
fn deleted_topics_are_no_finding() {
    let Some((_temp, root)) = fixture("store-4.9.7-clean") else { return };
    fs::remove_dir_all(root.join("consumequeue/TopicA")).unwrap();
    assert_eq!(kinds(&verify(&root).1), BTreeSet::from(["no-entry"]));
    // As ringmq notes it.
    fs::write(root.join("ringmq-deleted-topics"), "191390 TopicA 11967c1e\n").unwrap();
    assert_eq!(verify(&root).0, 0);
    // As a Java broker leaves it: not in topics.json any more.
    fs::remove_file(root.join("ringmq-deleted-topics")).unwrap();
    let path = root.join("config/topics.json");
    let text = fs::read_to_string(&path).unwrap().replace("\"TopicA\"", "\"TopicZ\"");
    fs::write(&path, text).unwrap();
    let (code, found) = verify(&root);
    assert_eq!(code, 0, "{found:?}");
    assert!(found.iter().any(|line| line["note"].as_str().is_some_and(|note| note.contains("TopicA"))));
}

#[test]
fn expired_log_files_are_no_finding() {
    let Some((_temp, root)) = fixture("store-4.9.7-clean") else { return };
    fs::remove_file(log(&root, 0)).unwrap();
    let (code, found) = verify(&root);
    assert_eq!(code, 0, "{found:?}");
}

const LIMITS: RecordLimits = RecordLimits::of_body(32_768);

fn config(root: &Path) -> StoreConfig {
    StoreConfig {
        commit_log_file_bytes: 65_536,
        consume_queue_file_bytes: 1000,
        body_bytes_max: LIMITS.body_bytes_max,
        index: IndexConfig { is_enabled: true, slot_count: 100, item_count: 300 },
        ..StoreConfig::new(root)
    }
}

fn send(store: &Store, queue: &Arc<ConsumeQueue>, body: &[u8]) {
    let record = NewRecord {
        topic: "TopicNew",
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 1,
        born_host: ([127, 0, 0, 1], 40_000).into(),
        store_host: ([127, 0, 0, 1], 10_911).into(),
        reconsume_times: 0,
        prepared_offset: 0,
        body,
        properties: &[b"KEYS\x01k"],
    };
    let mut batch = AppendBatch::default();
    batch.push(&record, 0, queue, LIMITS).expect("a good message");
    let outcome = store.append(&mut batch, 2_000_000_000_000);
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
}

/// What a start has mended is no finding: neither the stretch that was filled, nor the entries and items of what was there.
#[test]
fn a_mended_store_is_sound() {
    for (at, bytes) in [(0, [0x55; 4]), (84, [0x7F; 4]), (90, [b'?'; 4])] {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("store");
        let (store, _) = Store::open(config(&root), 1).expect("opens");
        let queue = store.queue_or_create("TopicNew", 0);
        (0..40).for_each(|_| send(&store, &queue, &[b'x'; 100]));
        let mut entries = Vec::new();
        queue.read(20, 1, &mut entries).expect("read");
        store.close(3).expect("closed");
        drop((queue, store));
        patch(log(&root, 0), entries[0].log_offset + at, &bytes);
        assert_eq!(verify_index(&root).0, 1, "at {at}");
        let (store, _) = Store::open(config(&root), 1).expect("opens");
        store.close(3).expect("closed");
        drop(store);
        let (code, found) = verify_index(&root);
        assert_eq!(code, 0, "at {at}: {found:?}");
        assert!(found.iter().any(|line| line["note"].as_str().is_some_and(|note| note.contains("close gaps"))));
    }
}

/// Ends the threads also when the test fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// While files roll and entries are filed, nothing that is only on its way is taken for damage.
#[test]
fn a_store_that_is_being_written_is_sound() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("store");
    let (store, _) = Store::open(config(&root), 1).expect("opens");
    let queue = store.queue_or_create("TopicNew", 0);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = SetOnDrop(&is_done);
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                store.files_turn(2);
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        scope.spawn(|| {
            let bodies = (1..).map(|n| vec![b'x'; 1 + n * 7919 % 9000]);
            for body in bodies.take_while(|_| !is_done.load(Ordering::Relaxed)).take(5_000) {
                send(&store, &queue, &body);
                std::thread::sleep(std::time::Duration::from_micros(50));
            }
        });
        let found: Vec<_> = (0..10).map(|_| verify(&root)).filter(|(code, _)| *code != 0).collect();
        assert!(found.is_empty(), "{found:#?}");
    });
    store.close(3).expect("closed");
    drop(store);
    let (code, found) = verify(&root);
    assert_eq!(code, 0, "{found:?}");
}

#[test]
fn beside_a_running_broker_abort_and_unfiled_entries_are_no_finding() {
    let Some((_temp, root)) = fixture("store-4.9.7-clean") else { return };
    let (store, _) = Store::open(config(&root), 1).expect("opens");
    let queue = store.queue_or_create("TopicNew", 0);
    send(&store, &queue, b"a body");
    let path = root.join("config/topics.json");
    let text = fs::read_to_string(&path).unwrap().replace("\"TopicRetry\"", "\"TopicNew\"");
    fs::write(&path, text).unwrap();

    let (code, found) = verify(&root);
    assert_eq!(code, 0, "{found:?}");
    let notes: Vec<_> = found.iter().filter_map(|line| line["note"].as_str()).collect();
    assert!(notes.iter().any(|note| note.contains("has the store open")), "{notes:?}");
    assert!(notes.iter().any(|note| note.contains("1 records whose entry is not yet")), "{notes:?}");
    let (code, dumped) = tool(&["store", "dump", root.to_str().unwrap(), "--topic", "TopicNew", "--json"]);
    assert_eq!((code, lines(&dumped).len()), (0, 1));

    store.close(3).expect("closed");
    drop(store);
    assert_eq!(verify(&root).0, 0, "filed by the stop");
    fs::write(root.join("abort"), "").unwrap();
    assert_eq!(verify(&root).0, 1, "nobody holds the lock");
}

#[test]
fn a_dump_is_filtered() {
    let Some((_temp, root)) = fixture("store-4.9.7-clean") else { return };
    let dump = |args: &[&str]| {
        let all = [&["store", "dump", root.to_str().unwrap()], args].concat();
        let (code, text) = tool(&all);
        assert_eq!(code, 0, "{args:?}");
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let want = "186400 102 TopicDirect 1 0 1796003496603 flag=7 sys=0x0 keys=\"\" tags=\"\" body=0 crc=ok".to_string();
    assert_eq!(dump(&["--from", "186400", "--limit", "1"]), std::slice::from_ref(&want));
    assert_eq!(dump(&["--topic", "TopicDirect", "--queue", "1"])[0], want);
    assert_eq!(dump(&["--topic", "TopicA"]).len(), 60);
    assert_eq!(dump(&["--topic", "TopicA", "--queue", "2"]).len(), 15);
    assert_eq!(dump(&["--limit", "7"]).len(), 7);
    assert_eq!(dump(&["--from", "999999999"]).len(), 0);
    // In the middle of a record: the next one, and told of.
    let args = ["store", "dump", root.to_str().unwrap(), "--from", "186399", "--limit", "1"];
    assert_eq!(tool(&args), (1, format!("{want}\n")));
    // The log's own folder does as well.
    let (_, text) = tool(&["store", "dump", root.join("commitlog").to_str().unwrap()]);
    assert_eq!(text.lines().count(), 171);
}

#[test]
fn what_is_no_store_cannot_be_read() {
    let temp = tempfile::tempdir().unwrap();
    for act in ["verify", "dump"] {
        assert_eq!(tool(&["store", act, temp.path().to_str().unwrap()]), (2, String::new()), "{act}");
    }
    fs::create_dir_all(temp.path().join("commitlog")).unwrap();
    fs::create_dir_all(temp.path().join("consumequeue")).unwrap();
    fs::write(temp.path().join("consumequeue/CURRENT"), "").unwrap();
    assert_eq!(verify(temp.path()).0, 2, "RocksDB");
}

/// With the slots that the fixtures' index files have.
fn verify_index(root: &Path) -> (i32, Vec<Value>) {
    let (code, text) = tool(&["store", "verify", root.to_str().unwrap(), "--json", "--index-slots", "100"]);
    (code, lines(&text))
}

fn index(root: &Path) -> PathBuf {
    let first = fs::read_dir(root.join("index")).unwrap().map(|entry| entry.unwrap().path()).min();
    first.expect("an index file")
}

#[test]
fn each_damage_of_the_index_is_a_finding() {
    for name in ["store-4.9.7-clean", "store-5.3.3-clean", "store-5.3.3-features"] {
        let Some((_temp, root)) = fixture(name) else { return };
        let (code, found) = verify_index(&root);
        assert_eq!((code, kinds(&found).len()), (0, 0), "{name}: {found:?}");
        assert!(!found.iter().any(|line| line["note"].as_str().is_some_and(|note| note.contains("--index-slots"))));
    }
    const ITEM_1: u64 = 40 + 400 + 20;
    // what, position, bytes, kinds
    let cases: [(&str, u64, &[u8], &[&str]); 7] = [
        ("next item", 36, &[0x7F, 0, 0, 0], &["index-header"]),
        ("used slots", 32, &[0, 0, 1, 0], &["index-header"]),
        ("hash", ITEM_1, &[0, 0, 0, 1], &["index-item", "index-slot"]),
        ("log offset", ITEM_1 + 4, &[0, 0, 0, 0, 0, 0, 0, 1], &["index-item"]),
        ("log offset behind the end", ITEM_1 + 4, &[1], &["index-item"]),
        ("seconds", ITEM_1 + 12, &[0x01, 0, 0, 0], &["index-item"]),
        ("chain", ITEM_1 + 16, &[0, 0, 1, 0], &["index-slot"]),
    ];
    for (what, position, bytes, want) in cases {
        let Some((_temp, root)) = fixture("store-4.9.7-clean") else { return };
        patch(index(&root), position, bytes);
        let (code, found) = verify_index(&root);
        assert_eq!((code, kinds(&found)), (1, want.iter().copied().collect()), "{what}: {found:?}");
    }
    let Some((_temp, root)) = fixture("store-4.9.7-clean") else { return };
    // Every chain lost.
    patch(index(&root), 40, &[0; 400]);
    assert_eq!(kinds(&verify_index(&root).1), BTreeSet::from(["index-slot"]));
    fs::write(root.join("index/notes.txt"), "x").unwrap();
    assert_eq!(kinds(&verify_index(&root).1), BTreeSet::from(["index-slot", "odd-file"]));
}
