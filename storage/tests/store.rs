//! The store by its door: round trip, rolling, stops, torn and odd files, damaged queues, reads and times.

mod common;

use common::{LIMITS, bodies, check_all, config, entries, message, open, open_told, queues, send, snapshot};
use ringmq_storage::append::AppendBatch;
use ringmq_storage::error::{AppendError, OpenError};
use ringmq_storage::read::{ReadLimits, ReadStatus};
use ringmq_storage::record::layout::sys_flag;
use ringmq_storage::store::{Store, StoreConfig, TimeBoundary};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn root() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    (dir, root)
}

fn refused(root: &Path) -> String {
    Store::open(config(root), 1).err().expect("refused").to_string()
}

/// As the node's agents would leave it after a while.
fn run_agents(store: &Store, now_ms: u64) {
    store.flush_turn(now_ms);
    for step in 0..10 {
        store.files_turn(now_ms + 2000 * step);
    }
    store.files_turn(now_ms + 100_000);
}

/// Dies: what only memory held is gone, `abort` stays.
fn die(store: Arc<Store>) {
    assert_eq!(Arc::strong_count(&store), 1);
    drop(store);
}

fn wide() -> ReadLimits {
    ReadLimits {
        memory_bytes_max: 256 * 1024,
        memory_count_max: 32,
        disk_bytes_max: 64 * 1024,
        disk_count_max: 8,
        in_memory_bytes: u64::MAX,
    }
}

#[test]
fn a_message_comes_back_as_it_was_sent() {
    let (_dir, root) = root();
    let store = open(&root);
    let queue = store.queue_or_create("T", 3);
    let mut batch = AppendBatch::default();
    let one = batch.push(&message("T", 3, b"one", &[b"TAGS\x01a"]), 97, &queue, LIMITS).unwrap();
    let other = store.queue_or_create("U", 0);
    let two = batch.push(&message("U", 0, b"two", &[]), 0, &other, LIMITS).unwrap();
    let half = message("T", 3, b"prepared", &[]);
    let half = batch
        .push(&ringmq_storage::record::NewRecord { sys_flag: sys_flag::PREPARED, ..half }, 0, &queue, LIMITS)
        .unwrap();
    let three = batch.push(&message("T", 3, b"three", &[]), 0, &queue, LIMITS).unwrap();
    let outcome = store.append(&mut batch, 5000);
    assert_eq!((outcome.units_placed, outcome.error.is_none()), (4, true));
    let offsets = [one, two, half, three].map(|unit| batch.placed(unit)[0].queue_offset);
    assert_eq!(offsets, [0, 0, 0, 1]);
    assert_eq!(batch.placed(three)[0].store_timestamp, 5000);
    assert_eq!((queue.min(), queue.max(), other.max()), (0, 2, 1));
    assert_eq!(bodies(&store, "T", 3), ["one", "three"]);
    assert_eq!(entries(&queue)[0].tags_code, 97);
    assert_eq!(store.topics(), ["T", "U"]);
    assert_eq!(store.store_time(&queue, 1), 5000);
    assert_eq!(store.store_time(&queue, 2), -1);
    assert!(store.record_at(1).is_none());
    assert!(store.record_at(store.log_max()).is_none());
    assert!(store.queue("T", 0).is_none());
}

#[test]
fn store_times_never_go_back() {
    let (_dir, root) = root();
    let store = open(&root);
    for (now, want) in [(1000, 1000), (900, 1000), (1001, 1001)] {
        let offset = send(&store, "T", 0, b"x", now);
        assert_eq!(store.store_time(&store.queue("T", 0).unwrap(), offset), want);
    }
    drop(store);
    let (store, told) = open_told(&root);
    let offset = send(&store, "T", 0, b"x", 1);
    assert_eq!(store.store_time(&store.queue("T", 0).unwrap(), offset), 1001, "nor over a restart");
    assert!(!told.contains("ahead of"), "{told}");
    send(&store, "T", 0, b"x", 70_000);
    drop(store);
    let (_store, told) = open_told(&root);
    assert!(told.contains("stored 69 s ahead of this machine's clock"), "{told}");
}

#[test]
fn files_roll_and_everything_is_there_after_any_stop() {
    for (stop, with_agents) in [("close", true), ("close", false), ("die", true), ("die", false)] {
        let (_dir, root) = root();
        let mut sent = vec![Vec::new(); 3];
        for start in 0..3 {
            let store = open(&root);
            for number in 0..300 {
                let queue_id = number % 3;
                let body = format!("{start} {number} {}", "x".repeat(number * 7 % 900));
                let offset = send(&store, "T", queue_id as i32, body.as_bytes(), 1000 + number as u64);
                assert_eq!(offset as usize, sent[queue_id].len());
                sent[queue_id].push(body);
                if with_agents && number % 50 == 0 {
                    run_agents(&store, 10_000 * number as u64);
                }
            }
            for (queue_id, sent) in (0..).zip(&sent) {
                assert!(bodies(&store, "T", queue_id) == *sent);
            }
            check_all(&store);
            let end = store.log_max();
            match stop {
                "close" => {
                    store.close(1).unwrap();
                    assert_eq!(store.log_flushed(), end);
                    assert!(!root.join("abort").exists());
                    drop(store);
                }
                _ => {
                    die(store);
                    assert!(root.join("abort").exists());
                }
            }
            let (store, told) = open_told(&root);
            assert_eq!((store.log_max(), store.log_flushed()), (end, end), "{told}");
            assert!(!told.contains("rebuilt"), "{told}");
            for (queue_id, sent) in (0..).zip(&sent) {
                assert!(bodies(&store, "T", queue_id) == *sent);
            }
            check_all(&store);
            if stop == "close" {
                store.close(1).unwrap();
            }
        }
        // Whole files only, and none without an entry.
        for (path, bytes) in snapshot(&root) {
            match path.components().next().unwrap().as_os_str().to_str().unwrap() {
                "commitlog" => assert_eq!(bytes.len(), 65_536),
                "consumequeue" => {
                    assert_eq!(bytes.len(), 1000);
                    assert!(bytes[8..12] != [0; 4], "{} begins with no entry", path.display());
                }
                "checkpoint" => assert_eq!(bytes.len(), 4096),
                "lock" => assert_eq!(bytes, b"lock"),
                "abort" => assert_eq!(stop, "die"),
                "ringmq-clean-stop" => assert_eq!(stop, "close"),
                other => panic!("{other} in the store"),
            }
        }
    }
}

/// Puts `bytes` at a log offset behind the store's back.
fn scribble(root: &Path, log_offset: u64, bytes: &[u8]) {
    let path = root.join("commitlog").join(format!("{:020}", log_offset / 65_536 * 65_536));
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, log_offset % 65_536).unwrap();
}

#[test]
fn a_record_torn_at_any_byte_is_gone_for_good() {
    for properties in [&[][..], &[b"TAGS\x01a".as_slice()]] {
        torn_at_any_byte(properties);
    }
}

fn torn_at_any_byte(properties: &[&[u8]]) {
    let (_dir, root) = root();
    let store = open(&root);
    for number in 0..5 {
        let mut batch = AppendBatch::default();
        let body = format!("message {number}");
        let queue = store.queue_or_create("T", 0);
        batch.push(&message("T", 0, body.as_bytes(), properties), 0, &queue, LIMITS).unwrap();
        assert!(store.append(&mut batch, 1000).error.is_none());
    }
    let end = store.log_max();
    let queue = store.queue("T", 0).unwrap();
    let last = entries(&queue)[4];
    let record = store.record_at(last.log_offset).unwrap().to_vec();
    drop(queue);
    run_agents(&store, 10_000);
    die(store);
    let whole = snapshot(&root);
    for cut in 0..record.len() {
        for (path, bytes) in &whole {
            std::fs::write(root.join(path), bytes).unwrap();
        }
        scribble(&root, last.log_offset + cut as u64, &vec![0; record.len() - cut]);
        // Zeros may be the record's own last bytes.
        let is_torn = record[cut..].iter().any(|byte| *byte != 0);
        let want = if is_torn { last.log_offset } else { end };
        let (store, told) = open_told(&root);
        assert_eq!(store.log_max(), want, "cut at {cut}: {told}");
        assert_eq!(store.queue("T", 0).unwrap().max(), if is_torn { 4 } else { 5 }, "cut at {cut}");
        check_all(&store);
        die(store);
        let log = std::fs::read(root.join("commitlog/00000000000000000000")).unwrap();
        assert!(log[want as usize..].iter().all(|byte| *byte == 0), "cut at {cut}: the tail is zeroed");
        // A shorter record in its place, and a crash: the old bytes do not come back.
        let store = open(&root);
        send(&store, "T", 0, b"n", 1000);
        let end = store.log_max();
        die(store);
        let store = open(&root);
        assert_eq!(store.log_max(), end);
        check_all(&store);
        die(store);
    }
}

#[test]
fn damage_inside_ends_the_log_there() {
    // what of message 15 of 20 is overwritten
    for (what, at, bytes) in [("size", 0, vec![0xFF; 4]), ("magic", 4, vec![1; 4]), ("body", 90, vec![0xEE; 5])] {
        let (_dir, root) = root();
        let store = open(&root);
        for number in 0..20 {
            send(&store, "T", 0, format!("message {number}").as_bytes(), 1000);
        }
        let damaged = entries(&store.queue("T", 0).unwrap())[15];
        run_agents(&store, 10_000);
        die(store);
        scribble(&root, damaged.log_offset + at, &bytes);
        for start in 0..2 {
            let (store, told) = open_told(&root);
            assert_eq!(told.contains("zeroed"), start == 0, "{what}: {told}");
            assert_eq!(store.log_max(), damaged.log_offset, "{what}");
            assert_eq!(bodies(&store, "T", 0).len(), 15, "{what}");
            check_all(&store);
            die(store);
        }
        let store = open(&root);
        assert_eq!(send(&store, "T", 0, b"new", 1), 15);
        assert_eq!(bodies(&store, "T", 0)[15], "new");
        check_all(&store);
    }
}

#[test]
fn a_log_file_cut_short_is_made_whole() {
    let (_dir, root) = root();
    let store = open(&root);
    for number in 0..20 {
        send(&store, "T", 0, format!("message {number}").as_bytes(), 1000);
    }
    let queue = store.queue("T", 0).unwrap();
    let cut = entries(&queue)[15].log_offset + 50;
    drop(queue);
    store.close(1).unwrap();
    drop(store);
    let path = root.join("commitlog/00000000000000000000");
    OpenOptions::new().write(true).open(&path).unwrap().set_len(cut).unwrap();
    let (store, told) = open_told(&root);
    assert!(told.contains("cut short"), "{told}");
    assert_eq!(bodies(&store, "T", 0).len(), 15);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 65_536);
    check_all(&store);
}

#[test]
fn odd_files_are_refused_by_path_and_nothing_is_changed() {
    let (_dir, root) = root();
    let store = open(&root);
    for number in 0..400 {
        send(&store, "T", 0, &[b'x'; 500], 1000 + number);
    }
    store.close(1).unwrap();
    drop(store);
    let (log, queue) = (root.join("commitlog"), root.join("consumequeue/T/0"));
    let second = log.join("00000000000000065536");
    for (what, path, bytes, want) in [
        ("a note in the log", log.join("README"), 3, "README: not a file of the commit log; move it"),
        ("a short name", log.join("65536"), 65_536, "not a file of the commit log"),
        ("a log file beyond a gap", log.join("00000000000000655360"), 65_536, "is missing before it"),
        ("a note in a queue", queue.join("x.tmp"), 0, "x.tmp: not a file of a consume queue"),
    ] {
        std::fs::write(&path, vec![0; bytes]).unwrap();
        let before = snapshot(&root);
        let error = refused(&root);
        assert!(error.contains(want), "{what}: {error}");
        assert!(snapshot(&root) == before, "{what}");
        std::fs::remove_file(&path).unwrap();
    }
    let whole = std::fs::read(&second).unwrap();
    for (bytes, want) in [(60_000, "restore it from a copy"), (70_000, "mappedFileSizeCommitLog = 70000")] {
        let mut odd = whole.clone();
        odd.resize(bytes, 0);
        std::fs::write(&second, odd).unwrap();
        let error = refused(&root);
        assert!(error.contains(&format!("{bytes} bytes instead of 65536")) && error.contains(want), "{error}");
    }
    std::fs::remove_file(&second).unwrap();
    assert!(refused(&root).contains("the file at 65536 is missing"));
    std::fs::write(&second, whole).unwrap();
    std::fs::rename(&log, root.join("away")).unwrap();
    assert!(refused(&root).contains("is mounted"));
    std::fs::rename(root.join("away"), &log).unwrap();
    std::fs::create_dir(root.join("dledger-n0")).unwrap();
    assert!(refused(&root).contains("DLedger"));
    std::fs::remove_dir(root.join("dledger-n0")).unwrap();
    std::fs::write(root.join("consumequeue/CURRENT"), "").unwrap();
    assert!(refused(&root).contains("RocksDB"));
    std::fs::remove_file(root.join("consumequeue/CURRENT")).unwrap();
    for name in ["lock", "abort", "checkpoint", "ringmq-clean-stop", "ringmq-deleted-topics", "ringmq-rebuild"] {
        let path = root.join(name);
        let _ = std::fs::rename(&path, root.with_extension("away"));
        std::fs::create_dir(&path).unwrap();
        let error = refused(&root);
        assert!(error.contains(&format!("{name}: a folder where a file belongs; move it")), "{error}");
        std::fs::remove_dir(&path).unwrap();
        let _ = std::fs::rename(root.with_extension("away"), &path);
    }
    // A process that opens one of these waits for ever.
    for path in [root.join("checkpoint"), root.join("abort"), log.join("00000000000000000000"), log.join("pipe")] {
        let _ = std::fs::rename(&path, root.with_extension("away"));
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(refused(&root).contains("neither a file nor a folder"), "{}", path.display());
        std::fs::remove_file(&path).unwrap();
        let _ = std::fs::rename(root.with_extension("away"), &path);
    }
    let pipe = root.join("consumequeue/T/0/00000000000000900000");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(refused(&root).contains("neither a file nor a folder"));
    std::fs::remove_file(&pipe).unwrap();
    // What does not hurt is told of, and what a kill left of a file in the making goes.
    let staged = [log.join(".ringmq-staged-1"), root.join("consumequeue/T/0/.ringmq-staged-7")];
    staged.iter().for_each(|path| std::fs::write(path, "").unwrap());
    std::fs::write(log.join("00000000000000262144"), "").unwrap();
    std::fs::create_dir(log.join("lost+found")).unwrap();
    std::fs::create_dir_all(root.join("consumequeue/T/x")).unwrap();
    let (store, told) = open_told(&root);
    for want in ["empty last file", "lost+found: a folder", "T/x: no folder of a queue"] {
        assert!(told.contains(want), "{told}");
    }
    assert!(staged.iter().all(|path| !path.exists()));
    check_all(&store);
}

/// A store with two queues of several files each; its bytes are `whole`.
fn queue_store(is_clean: bool) -> (tempfile::TempDir, PathBuf) {
    let (dir, root) = root();
    let store = open(&root);
    for number in 0..260 {
        send(&store, "T", number % 2, format!("message {number}").as_bytes(), 1000);
    }
    run_agents(&store, 10_000);
    if is_clean {
        store.close(1).unwrap();
    }
    drop(store);
    (dir, root)
}

#[test]
fn damaged_queues_are_rebuilt_from_the_log() {
    type Damage = fn(&Path);
    const SECOND: &str = "00000000000000001000";
    const LAST: &str = "00000000000000002000";
    fn cut(path: PathBuf, bytes: u64) {
        OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
    }
    fn fill(path: PathBuf, byte: u8) {
        std::fs::write(path, vec![byte; 1000]).unwrap();
    }
    fn of(root: &Path, name: &str) -> PathBuf {
        root.join("consumequeue/T/0").join(name)
    }
    let damages: [(&str, Damage); 14] = [
        ("nothing", |_| ()),
        ("all queues gone", |root| std::fs::remove_dir_all(root.join("consumequeue")).unwrap()),
        ("a topic gone", |root| std::fs::remove_dir_all(root.join("consumequeue/T")).unwrap()),
        ("a queue gone", |root| std::fs::remove_dir_all(root.join("consumequeue/T/0")).unwrap()),
        ("first file gone", |root| std::fs::remove_file(of(root, "00000000000000000000")).unwrap()),
        ("middle file gone", |root| std::fs::remove_file(of(root, SECOND)).unwrap()),
        ("last file gone", |root| std::fs::remove_file(of(root, LAST)).unwrap()),
        ("last file empty", |root| cut(of(root, LAST), 0)),
        ("last file short", |root| cut(of(root, LAST), 77)),
        ("middle file short", |root| cut(of(root, SECOND), 980)),
        ("last file zeros", |root| fill(of(root, LAST), 0)),
        ("middle file zeros", |root| fill(of(root, SECOND), 0)),
        ("last file garbage", |root| fill(of(root, LAST), 0x41)),
        ("a new file of zeros behind", |root| fill(of(root, "00000000000000003000"), 0)),
    ];
    for is_clean in [true, false] {
        for (what, damage) in damages {
            let (_dir, root) = queue_store(is_clean);
            let before = snapshot(&root.join("consumequeue"));
            damage(&root);
            let (store, told) = open_told(&root);
            for queue_id in 0..2 {
                let want: Vec<String> = (0..130).map(|n| format!("message {}", 2 * n + queue_id)).collect();
                assert_eq!(bodies(&store, "T", queue_id), want, "{what}: {told}");
            }
            check_all(&store);
            assert_eq!(send(&store, "T", 0, b"next", 1000), 130, "{what}");
            store.close(1).unwrap();
            drop(store);
            let (store, told) = open_told(&root);
            assert!(!told.contains("rebuilt") && !told.contains("added"), "{what}: {told}");
            check_all(&store);
            drop(store);
            let after = snapshot(&root.join("consumequeue"));
            assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>(), "{what}");
        }
    }
}

#[test]
fn a_queue_lost_after_a_clean_stop_is_missed_wherever_its_records_are() {
    let (_dir, root) = root();
    let store = open(&root);
    send(&store, "Early", 0, b"x", 1);
    send(&store, "Early", 1, b"y", 1);
    for _ in 0..1000 {
        send(&store, "T", 0, &[b'x'; 500], 1);
    }
    store.close(1).unwrap();
    drop(store);
    let (store, told) = open_told(&root);
    let read: u64 = told.split(" records read").next().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(read < 110, "only the last file is read: {told}");
    store.close(1).unwrap();
    drop(store);
    std::fs::remove_dir_all(root.join("consumequeue/Early/0")).unwrap();
    let (store, told) = open_told(&root);
    assert!(told.contains("the whole log is read"), "{told}");
    assert_eq!((bodies(&store, "Early", 0), bodies(&store, "Early", 1)), (vec!["x".into()], vec!["y".into()]));
    check_all(&store);
}

#[test]
fn a_rebuild_that_was_killed_is_done_again() {
    let (_dir, root) = queue_store(true);
    std::fs::remove_dir_all(root.join("consumequeue/T/0")).unwrap();
    std::fs::write(root.join("ringmq-rebuild"), "").unwrap();
    let store = open(&root);
    check_all(&store);
    assert!(!root.join("ringmq-rebuild").exists());
}

#[test]
fn an_agreeing_checkpoint_spares_old_files() {
    let (_dir, root) = root();
    let store = open(&root);
    for number in 0..1000u64 {
        send(&store, "T", 0, &[b'x'; 500], 1_000_000 + number * 100);
    }
    run_agents(&store, 2_000_000);
    send(&store, "T", 0, b"late", 1_200_000);
    die(store);
    let (store, told) = open_told(&root);
    let read: u64 = told.split(" records read").next().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(read < 250, "{told}");
    assert_eq!(store.queue("T", 0).unwrap().max(), 1001);
    check_all(&store);
}

#[test]
fn a_store_is_opened_once_at_a_time() {
    let (_dir, root) = root();
    let store = open(&root);
    let error = Store::open(config(&root), 1).err().unwrap();
    assert!(matches!(error, OpenError::Locked { .. }), "{error}");
    assert!(error.to_string().contains("is locked by"));
    store.close(1).unwrap();
    let again = open(&root);
    drop((store, again));
}

#[test]
fn a_closed_store_takes_nothing() {
    let (_dir, root) = root();
    let store = open(&root);
    send(&store, "T", 0, b"x", 1);
    store.close(1).unwrap();
    store.close(1).unwrap();
    let mut batch = AppendBatch::default();
    batch.push(&message("T", 0, b"x", &[]), 0, &store.queue_or_create("T", 0), LIMITS).unwrap();
    let outcome = store.append(&mut batch, 1);
    assert_eq!(outcome.units_placed, 0);
    assert_eq!(outcome.error, Some(AppendError::NotWritable("the store is closed".into())));
    assert!(store.delete_topic("T").is_err());
    assert_eq!(bodies(&store, "T", 0), ["x"]);
}

#[test]
fn an_unused_store_leaves_no_log_file() {
    let (_dir, root) = root();
    let store = open(&root);
    run_agents(&store, 1000);
    assert_eq!(std::fs::read_dir(root.join("commitlog")).unwrap().count(), 0, "made ahead, without a name");
    store.close(1).unwrap();
    assert_eq!(std::fs::read_dir(root.join("commitlog")).unwrap().count(), 0);
    drop(store);
    let store = open(&root);
    assert_eq!((store.log_min(), store.log_max(), store.earliest_store_time()), (0, 0, -1));
}

#[test]
fn damage_in_the_middle_of_the_log_keeps_what_is_behind_it() {
    let (_dir, root) = root();
    let store = open(&root);
    for i in 0..40 {
        send(&store, "T", 0, &[b'x'; 20_000], i);
    }
    die(store);
    let first = root.join("commitlog/00000000000000000000");
    let mut bytes = std::fs::read(&first).unwrap();
    // In the second record's body.
    bytes[20_000 + 500] ^= 1;
    std::fs::write(&first, &bytes).unwrap();
    let (store, told) = open_told(&root);
    assert!(told.contains("moved to"), "{told}");
    assert_eq!(bodies(&store, "T", 0).len(), 1);
    let aside = std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path());
    let aside = aside.into_iter().find(|path| path.to_string_lossy().contains("-set-aside-")).expect("the folder");
    let names: Vec<_> = std::fs::read_dir(&aside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.len() > 10, "{names:?}");
    let rest = names.iter().find(|name| name.to_string_lossy().starts_with("rest-of-")).expect("the rest");
    let rest = std::fs::read(aside.join(rest)).unwrap();
    assert!(bytes.windows(rest.len()).any(|window| window == rest));
    send(&store, "T", 0, b"next", 50);
    assert_eq!(bodies(&store, "T", 0).len(), 2);
    die(store);
    let (store, told) = open_told(&root);
    assert!(!told.contains("moved to"), "{told}");
    assert_eq!(bodies(&store, "T", 0).len(), 2);
}

#[test]
fn many_queues_are_closed_at_once() {
    let (_dir, root) = root();
    let store = open(&root);
    for queue in 0..200 {
        send(&store, "T", queue, b"x", 1);
    }
    store.close(1).unwrap();
    drop(store);
    let (store, told) = open_told(&root);
    assert!(told.contains("clean"), "{told}");
    for queue in 0..200 {
        assert_eq!(bodies(&store, "T", queue), ["x"]);
    }
}

/// Java 4.9 on Java 17 does not open a store that has a log file behind the last record.
#[test]
fn a_kill_leaves_no_file_behind_the_end() {
    let (_dir, root) = root();
    let store = open(&root);
    for i in 0..40 {
        send(&store, "T", 0, &[b'x'; 20_000], i);
        run_agents(&store, 1000 + i);
        let files = std::fs::read_dir(root.join("commitlog")).unwrap().count() as u64;
        assert_eq!(files, store.log_max().div_ceil(65_536), "at {}", store.log_max());
    }
}

#[test]
fn a_unit_too_long_for_any_file_is_told() {
    let (_dir, root) = root();
    let store = open(&root);
    let queue = store.queue_or_create("T", 0);
    let body = vec![b'x'; 32_768];
    let properties: &[&[u8]] = &[&[b'p'; 32_767]];
    let mut batch = AppendBatch::default();
    batch.push(&message("T", 0, b"first", &[]), 0, &queue, LIMITS).unwrap();
    batch.push(&message("T", 0, &body, properties), 0, &queue, LIMITS).unwrap();
    let outcome = store.append(&mut batch, 1);
    assert_eq!(outcome.units_placed, 1);
    assert!(matches!(outcome.error, Some(AppendError::TooLarge { bytes: 65_627, max: 65_528 })), "{:?}", outcome.error);
    assert_eq!(send(&store, "T", 0, b"next", 1), 1);
    check_all(&store);
}

#[test]
fn deleted_topics_stay_deleted() {
    for is_clean in [true, false] {
        let (_dir, root) = root();
        let store = open(&root);
        for number in 0..120 {
            send(&store, if number % 2 == 0 { "Gone" } else { "Kept" }, 0, format!("{number}").as_bytes(), 1000);
        }
        run_agents(&store, 10_000);
        let old = store.queue("Gone", 0).unwrap();
        store.delete_topic("Gone").unwrap();
        store.delete_topic("Never").unwrap();
        assert!(store.queue("Gone", 0).is_none());
        assert_eq!(store.topics(), ["Kept"]);
        // An append that was under way and holds the old queue.
        let mut batch = AppendBatch::default();
        batch.push(&message("Gone", 0, b"anew", &[]), 0, &old, LIMITS).unwrap();
        assert!(store.append(&mut batch, 1000).error.is_none());
        assert_eq!(batch.placed(0)[0].queue_offset, 0);
        drop((batch, old));
        assert_eq!(bodies(&store, "Gone", 0), ["anew"]);
        run_agents(&store, 200_000);
        assert!(!root.join("ringmq-tmp").exists() || std::fs::read_dir(root.join("ringmq-tmp")).unwrap().count() == 0);
        assert_eq!(bodies(&store, "Gone", 0), ["anew"]);
        if is_clean {
            store.close(1).unwrap();
        }
        drop(store);
        for _ in 0..2 {
            let store = open(&root);
            assert_eq!(bodies(&store, "Gone", 0), ["anew"]);
            assert_eq!(bodies(&store, "Kept", 0).len(), 60);
            drop(store);
        }
        // Even when every queue must be made from the log.
        std::fs::remove_dir_all(root.join("consumequeue")).unwrap();
        let store = open(&root);
        assert_eq!(bodies(&store, "Gone", 0), ["anew"]);
        assert_eq!(bodies(&store, "Kept", 0).len(), 60);
    }
}

#[test]
fn a_deletion_that_was_killed_is_finished() {
    let (_dir, root) = root();
    let store = open(&root);
    send(&store, "Gone", 0, b"x", 1);
    send(&store, "Kept", 0, b"y", 1);
    let end = store.log_max();
    run_agents(&store, 1000);
    die(store);
    let text = format!("{end} Gone");
    let line = format!("{text} {:08x}\n", crc32fast::hash(text.as_bytes()));
    std::fs::write(root.join("ringmq-deleted-topics"), line).unwrap();
    for _ in 0..2 {
        let store = open(&root);
        assert!(store.queue("Gone", 0).is_none_or(|queue| queue.max() == 0));
        assert_eq!(bodies(&store, "Kept", 0), ["y"]);
        die(store);
    }
    assert!(!root.join("consumequeue/Gone/0/00000000000000000000").exists());
}

/// It leaves no note, so topics.json has to tell it from a folder that was lost.
#[test]
fn what_a_java_broker_has_deleted_stays_deleted() {
    // topics.json, whether all queues are gone, whether the stop was clean, messages that come back
    let rows = [
        (Some(vec!["Kept"]), false, true, 0),
        (Some(vec!["Kept", "Gone"]), false, true, 10),
        (None, false, true, 10),
        (Some(vec!["Kept"]), true, true, 10),
        (Some(vec!["Kept"]), false, false, 10),
    ];
    for (topics, is_all_lost, is_clean, want) in rows {
        for has_written in [false, true] {
            let (_dir, root) = root();
            let store = open(&root);
            for number in 0..20 {
                send(&store, if number % 2 == 0 { "Gone" } else { "Kept" }, 0, b"x", 1000);
            }
            run_agents(&store, 1000);
            if is_clean {
                store.close(1).unwrap();
            }
            drop(store);
            std::fs::remove_dir_all(root.join("consumequeue/Gone")).unwrap();
            if is_all_lost {
                std::fs::remove_dir_all(root.join("consumequeue")).unwrap();
            }
            if has_written {
                let _ = std::fs::remove_file(root.join("ringmq-clean-stop"));
            }
            let names = |names: &Vec<&str>| names.iter().map(|name| name.to_string()).collect();
            let config = StoreConfig { topics: topics.as_ref().map(names), ..config(&root) };
            for start in 0..2 {
                let (store, report) = Store::open(config.clone(), 1000).unwrap();
                let what = format!("{topics:?} {is_all_lost} {is_clean} {has_written} {start}: {:?}", report.lines);
                assert_eq!(bodies(&store, "Gone", 0).len(), want, "{what}");
                assert_eq!(bodies(&store, "Kept", 0).len(), 10, "{what}");
                let note = std::fs::read_to_string(root.join("ringmq-deleted-topics")).unwrap_or_default();
                assert_eq!(note.contains(" Gone "), want == 0, "{what}: {note}");
                store.close(1).unwrap();
            }
        }
    }
}

/// And made again: the queues of the later one are there, those that only the earlier one had are not.
#[test]
fn a_topic_that_a_java_broker_made_again_has_no_earlier_queue() {
    let (_dir, root) = root();
    let store = open(&root);
    for number in 0..20 {
        send(&store, "T", number % 2, b"old", 1000);
    }
    store.delete_topic("T").unwrap();
    for _ in 0..3 {
        send(&store, "T", 0, b"new", 1000);
    }
    run_agents(&store, 1000);
    store.close(1).unwrap();
    drop(store);
    std::fs::remove_file(root.join("ringmq-deleted-topics")).unwrap();
    std::fs::remove_file(root.join("ringmq-clean-stop")).unwrap();
    for _ in 0..2 {
        let (store, told) = open_told(&root);
        assert_eq!(bodies(&store, "T", 0), ["new"; 3], "{told}");
        assert!(bodies(&store, "T", 1).is_empty(), "{told}");
        store.close(1).unwrap();
    }
}

/// What Java leaves when a topic was deleted and made again: both generations are in the log, the queue holds the later.
#[test]
fn of_two_records_with_one_queue_offset_the_later_wins() {
    let (_dir, root) = root();
    let store = open(&root);
    for number in 0..10 {
        send(&store, "T", 0, format!("old {number}").as_bytes(), 1000);
    }
    store.delete_topic("T").unwrap();
    for number in 0..3 {
        send(&store, "T", 0, format!("new {number}").as_bytes(), 1000);
    }
    send(&store, "Other", 0, b"x", 1000);
    store.close(1).unwrap();
    drop(store);
    // Java knows nothing of our note.
    std::fs::remove_file(root.join("ringmq-deleted-topics")).unwrap();
    let (store, told) = open_told(&root);
    assert_eq!(bodies(&store, "T", 0), ["new 0", "new 1", "new 2"], "{told}");
    die(store);
    for damaged in ["consumequeue/T", "consumequeue"] {
        std::fs::remove_dir_all(root.join(damaged)).unwrap();
        let (store, told) = open_told(&root);
        assert_eq!(bodies(&store, "T", 0), ["new 0", "new 1", "new 2"], "{told}");
        assert_eq!(bodies(&store, "Other", 0), ["x"]);
        die(store);
    }
}

#[test]
fn a_gap_in_the_log_is_closed_with_the_next_record() {
    let (_dir, root) = root();
    let store = open(&root);
    for number in 0..10 {
        send(&store, "T", 0, format!("message {number}").as_bytes(), 1000);
    }
    let lost = entries(&store.queue("T", 0).unwrap())[4];
    store.close(1).unwrap();
    drop(store);
    // Message 4 becomes one of another queue.
    scribble(&root, lost.log_offset + 12, &9i32.to_be_bytes());
    std::fs::remove_dir_all(root.join("consumequeue")).unwrap();
    let (store, told) = open_told(&root);
    assert!(told.contains("rebuilt") && told.contains("1 consume queue offsets have no record"), "{told}");
    let got = bodies(&store, "T", 0);
    assert_eq!(got.len(), 10);
    assert_eq!(got[3..7], ["message 3", "message 5", "message 5", "message 6"]);
    assert_eq!(store.queue("T", 9).unwrap().min(), 4, "the stray begins where it says");
}

/// Retention has taken the first log files: what is left is served, and queues begin where the log does.
#[test]
fn queues_begin_where_the_log_begins() {
    for keeps_queue_files in [true, false] {
        let (_dir, root) = root();
        let store = open(&root);
        for number in 0..600 {
            send(&store, "T", 0, format!("{number} {}", "x".repeat(400)).as_bytes(), 1000);
        }
        send(&store, "Old", 0, b"x", 1000);
        let queue = store.queue("T", 0).unwrap();
        let first = entries(&queue).iter().position(|entry| entry.log_offset >= 131_072).unwrap() as u64;
        drop(queue);
        store.close(1).unwrap();
        drop(store);
        for name in ["00000000000000000000", "00000000000000065536"] {
            std::fs::remove_file(root.join("commitlog").join(name)).unwrap();
        }
        if !keeps_queue_files {
            std::fs::remove_dir_all(root.join("consumequeue/T")).unwrap();
        }
        for _ in 0..2 {
            let store = open(&root);
            let queue = store.queue("T", 0).unwrap();
            assert_eq!((store.log_min(), queue.min(), queue.max()), (131_072, first, 600));
            assert!(bodies(&store, "T", 0)[0].starts_with(&format!("{first} ")));
            let read = store.read(&queue, first as i64 - 1, 32, &wide(), &mut |_| true);
            assert_eq!((read.status, read.next_offset), (ReadStatus::OffsetTooSmall, first as i64));
            assert_eq!(store.offset_by_time(&queue, 0, TimeBoundary::Lower), first);
            assert_eq!(store.offset_by_time(&queue, 0, TimeBoundary::Upper), first);
        }
    }
}

#[test]
fn the_matrix_of_a_pull() {
    let (_dir, root) = root();
    let store = open(&root);
    let empty = store.queue_or_create("Empty", 0);
    let queue = store.queue_or_create("T", 0);
    for number in 0..20 {
        let mut batch = AppendBatch::default();
        batch.push(&message("T", 0, &[b'x'; 100], &[]), number % 5, &queue, LIMITS).unwrap();
        store.append(&mut batch, 1000);
    }
    use ReadStatus::*;
    // queue, from, count, tag wanted: status, next offset, count
    for (queue, from, count_max, tag, want) in [
        (&empty, 0, 32, None, (NoMessageInQueue, 0, 0)),
        (&empty, 5, 32, None, (NoMessageInQueue, 0, 0)),
        (&empty, -1, 32, None, (NoMessageInQueue, 0, 0)),
        (&queue, -1, 32, None, (OffsetTooSmall, 0, 0)),
        (&queue, 0, 32, None, (Found, 20, 20)),
        (&queue, 0, 7, None, (Found, 7, 7)),
        (&queue, 19, 7, None, (Found, 20, 1)),
        (&queue, 20, 7, None, (OffsetOverflowOne, 20, 0)),
        (&queue, 21, 7, None, (OffsetOverflowBadly, 20, 0)),
        (&queue, 1_000_000_000, 7, None, (OffsetOverflowBadly, 20, 0)),
        (&queue, i64::MAX, 7, None, (OffsetOverflowBadly, 20, 0)),
        (&queue, 0, 32, Some(3), (Found, 20, 4)),
        (&queue, 0, 2, Some(3), (Found, 9, 2)),
        (&queue, 0, 32, Some(9), (NoMatchedMessage, 20, 0)),
    ] {
        let read = store.read(queue, from, count_max, &wide(), &mut |code| tag.is_none_or(|tag| tag == code));
        assert_eq!((read.status, read.next_offset, read.count), want, "from {from}, at most {count_max}, tag {tag:?}");
        assert_eq!((read.min_offset, read.max_offset), (0, queue.max() as i64));
        assert_eq!(read.slices.iter().map(|slice| slice.len()).sum::<usize>(), read.bytes);
    }
    // Records are looked at where the tags let them through; those that are not wanted count as looked at.
    let mut seen = 0;
    let mut every_second = |record: &[u8]| {
        assert_eq!(record.len(), entries(&queue)[0].record_bytes as usize);
        seen += 1;
        seen % 2 == 0
    };
    let read = store.read_records(&queue, 0, 32, &wide(), &mut |code| code == 3, &mut every_second);
    assert_eq!((read.status, read.next_offset, read.count, seen), (Found, 20, 2, 4));
    let read = store.read_records(&queue, 0, 32, &wide(), &mut |_| true, &mut |_| false);
    assert_eq!((read.status, read.next_offset, read.count), (NoMatchedMessage, 20, 0));
    let record = store.entry_record(&entries(&queue)[4]).unwrap();
    assert_eq!(record, store.record_at(entries(&queue)[4].log_offset).unwrap());
    // Limits in memory and on disk; the first message always passes.
    let record = entries(&queue)[0].record_bytes as usize;
    for (in_memory_bytes, bytes_max, count_max, want) in [
        (u64::MAX, record * 3, 32, 3),
        (u64::MAX, record * 3 - 1, 32, 2),
        (u64::MAX, 1, 32, 1),
        (u64::MAX, 1 << 20, 5, 5),
        (0, 1 << 20, 5, 8),
    ] {
        let limits = ReadLimits { memory_bytes_max: bytes_max, memory_count_max: count_max, in_memory_bytes, ..wide() };
        let read = store.read(&queue, 0, 32, &limits, &mut |_| true);
        assert_eq!(read.count, want, "{limits:?}");
        assert_eq!(read.suggest_slave, in_memory_bytes == 0);
    }
    // Records side by side are one slice.
    assert_eq!(store.read(&queue, 0, 32, &wide(), &mut |_| true).slices.len(), 1);
    assert!(store.is_in_memory(&queue, 0, u64::MAX) && !store.is_in_memory(&queue, 0, 100));
    assert!(store.is_in_memory(&queue, 20, 0), "no record, nothing to read");
}

#[test]
fn a_scan_without_a_match_stops_after_800_entries() {
    let (_dir, root) = root();
    let store = open(&root);
    let queue = store.queue_or_create("T", 0);
    for number in 0..1000 {
        let mut batch = AppendBatch::default();
        batch.push(&message("T", 0, b"x", &[]), i64::from(number == 900), &queue, LIMITS).unwrap();
        store.append(&mut batch, 1000);
    }
    run_agents(&store, 10_000);
    let read = |from| store.read(&queue, from, 32, &wide(), &mut |code| code == 1);
    assert_eq!((read(0).status, read(0).next_offset), (ReadStatus::NoMatchedMessage, 800));
    let second = read(800);
    assert_eq!((second.status, second.next_offset, second.count), (ReadStatus::Found, 1000, 1));
}

#[test]
fn slices_outlive_the_store() {
    let (_dir, root) = root();
    let store = open(&root);
    send(&store, "T", 0, b"still here", 1);
    let read = store.read(&store.queue("T", 0).unwrap(), 0, 1, &wide(), &mut |_| true);
    drop(store);
    std::fs::remove_dir_all(&root).unwrap();
    assert!(read.slices[0].windows(10).any(|bytes| bytes == b"still here"));
}

#[test]
fn times_find_their_offsets() {
    let (_dir, root) = root();
    let store = open(&root);
    let queue = store.queue_or_create("T", 0);
    for edge in [TimeBoundary::Lower, TimeBoundary::Upper] {
        assert_eq!(store.offset_by_time(&queue, 1000, edge), 0, "empty");
    }
    for time in [1000, 1000, 1005, 1010, 1010, 1010, 1020] {
        send(&store, "T", 0, b"x", time);
    }
    for (time, lower, upper) in [
        (i64::MIN, 0, 0),
        (-1, 0, 0),
        (999, 0, 0),
        (1000, 0, 1),
        (1001, 2, 1),
        (1005, 2, 2),
        (1010, 3, 5),
        (1011, 6, 5),
        (1020, 6, 6),
        (1021, 7, 6),
        (i64::MAX, 7, 6),
    ] {
        let got = [TimeBoundary::Lower, TimeBoundary::Upper].map(|edge| store.offset_by_time(&queue, time, edge));
        assert_eq!(got, [lower, upper], "{time}");
    }
    assert_eq!(store.earliest_store_time(), 1000);
}

#[test]
fn many_threads_append_and_read_beside_the_agents() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let (_dir, root) = root();
    let store = open(&root);
    let is_done = AtomicBool::new(false);
    const EACH: u64 = 3000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut now = 0;
            while !is_done.load(Ordering::Relaxed) {
                now += 700;
                store.flush_turn(now);
                store.files_turn(now);
            }
        });
        let senders: Vec<_> = (0..3)
            .map(|sender| {
                let store = &store;
                scope.spawn(move || {
                    let mut batch = AppendBatch::default();
                    for number in 0..EACH / 3 {
                        batch.clear();
                        for queue_id in 0..3 {
                            let queue = store.queue_or_create("T", queue_id);
                            let body = format!("{sender} {number}");
                            batch.push(&message("T", queue_id, body.as_bytes(), &[]), 0, &queue, LIMITS).unwrap();
                        }
                        assert!(store.append(&mut batch, number).error.is_none());
                    }
                })
            })
            .collect();
        // What `max` shows can be read at once.
        for queue_id in 0..3 {
            let store = &store;
            scope.spawn(move || {
                let queue = store.queue_or_create("T", queue_id);
                let (mut next, mut count) = (0, 0);
                while next < EACH as i64 {
                    let read = store.read(&queue, next, 32, &wide(), &mut |_| true);
                    match read.status {
                        ReadStatus::Found => {
                            count += read.count;
                            assert_eq!(count as i64, read.next_offset, "nothing is passed over");
                            next = read.next_offset;
                        }
                        ReadStatus::OffsetOverflowOne | ReadStatus::NoMessageInQueue => std::thread::yield_now(),
                        other => panic!("{other:?} at {next}"),
                    }
                }
            });
        }
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        is_done.store(true, Ordering::Relaxed);
    });
    assert_eq!(queues(&store).iter().map(|queue| queue.max()).collect::<Vec<_>>(), [EACH; 3]);
    check_all(&store);
}
