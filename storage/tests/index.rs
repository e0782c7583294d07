//! The index: Java's bytes, Java's answers, and what damage, kills and odd files leave of it.

mod common;

use common::{LIMITS, config, fixture, message, open, open_told};
use ringmq_storage::append::{AppendBatch, Marked};
use ringmq_storage::index::{IndexConfig, KeyFound, KeyQuery};
use ringmq_storage::record::decode::{Record, peek_size};
use ringmq_storage::record::java_hash;
use ringmq_storage::store::{Store, StoreConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FILE_BYTES: usize = 40 + 4 * 100 + 20 * 300;

fn files(root: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(root.join("index")) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn contents(root: &Path) -> Vec<Vec<u8>> {
    files(root).iter().map(|path| std::fs::read(path).unwrap()).collect()
}

fn long(bytes: &[u8], at: usize) -> i64 {
    i64::from_be_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn int(bytes: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn index_time(root: &Path) -> i64 {
    long(&std::fs::read(root.join("checkpoint")).unwrap(), 16)
}

fn find(store: &Store, topic: &str, key: &str) -> KeyFound {
    find_within(store, topic, key, 64, 0, i64::MAX)
}

fn find_within(store: &Store, topic: &str, key: &str, count_max: usize, begin_ms: i64, end_ms: i64) -> KeyFound {
    store.find_by_key(&KeyQuery { topic, key, is_unique: false, count_max, begin_ms, end_ms })
}

fn offsets(found: &KeyFound) -> Vec<u64> {
    found.records.iter().map(|bytes| Record::parse(bytes).unwrap().log_offset).collect()
}

fn bodies(found: &KeyFound) -> Vec<String> {
    let body = |bytes: &bytes::Bytes| String::from_utf8(Record::parse(bytes).unwrap().body.to_vec()).unwrap();
    found.records.iter().map(body).collect()
}

/// Appends a message with these keys; its log offset.
fn put(store: &Store, topic: &str, properties: &str, body: &str, now_ms: u64) -> u64 {
    let mut batch = AppendBatch::default();
    let queue = store.queue_or_create(topic, 0);
    batch.push(&message(topic, 0, body.as_bytes(), &[properties.as_bytes()]), 0, &queue, LIMITS).unwrap();
    let outcome = store.append(&mut batch, now_ms);
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    batch.placed(0)[0].log_offset
}

fn settle(store: &Store, now_ms: u64) {
    for _ in 0..100 {
        if store.files_turn(now_ms) > 0 {
            return;
        }
    }
    panic!("the agent does not come to an end");
}

/// What Java's chains give: newest first, by hash alone.
fn chain(file: &[u8], topic: &str, key: &str) -> Vec<i64> {
    let hash = java_hash(&format!("{topic}#{key}")).checked_abs().unwrap_or(0);
    let count = int(file, 36);
    let mut number = int(file, 40 + 4 * (hash % 100) as usize);
    let mut found = Vec::new();
    while number > 0 && number < count {
        let at = 440 + 20 * number as usize;
        if int(file, at) == hash {
            found.push(long(file, at + 4));
        }
        assert!(int(file, at + 16) < number);
        number = int(file, at + 16);
    }
    found
}

#[test]
fn an_index_made_from_the_log_is_javas_byte_for_byte() {
    for name in ["store-4.9.7-clean", "store-5.3.3-clean", "store-5.3.3-features"] {
        let Some((_temp, root, _)) = fixture(name) else { return };
        let javas = contents(&root);
        std::fs::remove_dir_all(root.join("index")).unwrap();
        let store = open(&root);
        settle(&store, 1_796_003_600_000);
        store.close(1_796_003_600_000).unwrap();
        let ours = contents(&root);
        assert_eq!(ours.len(), javas.len(), "{name}");
        for (index, (ours, javas)) in ours.iter().zip(&javas).enumerate() {
            assert_eq!(ours.len(), FILE_BYTES);
            assert_eq!(ours[..40], javas[..40], "{name}, file {index}, header");
            assert_eq!(ours[40..440], javas[40..440], "{name}, file {index}, slots");
            for number in 0..300 {
                let at = 440 + 20 * number..460 + 20 * number;
                assert_eq!(ours[at.clone()], javas[at], "{name}, file {index}, item {number}");
            }
        }
        for path in files(&root) {
            assert_eq!(path.file_name().unwrap().len(), 17, "{}", path.display());
        }
    }
}

/// Every key query of the manifests, on the files as Java left them and on files of ours.
#[test]
fn queries_answer_as_java_does() {
    for name in ["store-4.9.7-clean", "store-4.9.7-killed", "store-5.3.3-clean", "store-5.3.3-killed"] {
        for is_rebuilt in [false, true] {
            let Some((_temp, root, manifest)) = fixture(name) else { return };
            if is_rebuilt {
                std::fs::remove_dir_all(root.join("index")).unwrap();
            }
            let store = open(&root);
            settle(&store, 1_796_003_600_000);
            let queries = manifest["asSeenByJava"]["queryByKey"].as_array().unwrap();
            for query in queries {
                let (topic, key) = (query["topic"].as_str().unwrap(), query["key"].as_str().unwrap());
                let want: Vec<u64> =
                    query["physicalOffsets"].as_array().unwrap().iter().map(|at| at.as_u64().unwrap()).collect();
                let got = offsets(&find(&store, topic, key));
                // 5.3.3 has lost what was before its recovery's start; we have not.
                let lost = name == "store-5.3.3-killed" && got.len() > want.len();
                assert!(got == want || lost && got.ends_with(&want), "{name} {topic} {key}: {got:?}, Java {want:?}");
            }
            // And by the records themselves.
            for record in manifest["messages"].as_array().unwrap() {
                let at = record["physicalOffset"].as_u64().unwrap();
                let topic = record["topic"].as_str().unwrap();
                let keys = record["keys"].as_str().unwrap_or("").split(' ').filter(|key| !key.is_empty());
                for key in keys.chain(record["uniqKey"].as_str()) {
                    assert!(offsets(&find(&store, topic, key)).contains(&at), "{name} {topic} {key} {at}");
                }
            }
        }
    }
}

/// Opened and closed without an append, and killed, an index of Java's stays what it is.
#[test]
fn javas_files_are_kept() {
    for (name, is_killed) in [("store-4.9.7-clean", false), ("store-4.9.7-killed", true)] {
        let Some((_temp, root, _)) = fixture(name) else { return };
        let (before, names) = (contents(&root), files(&root));
        for round in 0..3 {
            let store = open(&root);
            settle(&store, 1_796_003_600_000);
            if round == 1 {
                store.close(1).unwrap();
            }
        }
        assert_eq!(files(&root), names, "{name}");
        let after = contents(&root);
        assert_eq!(before[0], after[0], "{name}");
        if is_killed {
            // What Java had not dispatched has come to it.
            assert!(int(&after[1], 36) > int(&before[1], 36));
        } else {
            assert_eq!(before[1], after[1], "{name}");
        }
        assert!(index_time(&root) >= long(&after[1], 8), "Java would destroy it after a kill");
    }
}

#[test]
fn colliding_keys_and_topics_are_told_apart() {
    let temp = tempfile::tempdir().unwrap();
    let store = open(temp.path());
    assert_eq!(java_hash("AaTopic#Aa"), java_hash("BBTopic#BB"));
    put(&store, "AaTopic", "KEYS\x01Aa", "theirs", 1000);
    settle(&store, 1000);
    assert!(find(&store, "BBTopic", "BB").records.is_empty());
    put(&store, "BBTopic", "KEYS\x01BB", "ours", 1000);
    assert_eq!(bodies(&find(&store, "BBTopic", "BB")), ["ours"]);
    let all = ["Aa", "BB", "AaAa", "BBBB", "AaBB"];
    for key in all {
        put(&store, "T", &format!("KEYS\x01{key}"), key, 2000);
    }
    for key in all {
        assert_eq!(bodies(&find(&store, "T", key)), [key]);
    }
    // Strangers do not use up the count.
    put(&store, "T", "KEYS\x01AaAa", "old", 3000);
    for _ in 0..100 {
        put(&store, "T", "KEYS\x01AaBB", "stranger", 3000);
    }
    assert_eq!(bodies(&find_within(&store, "T", "AaAa", 2, 0, i64::MAX)), ["AaAa", "old"]);
}

#[test]
fn the_least_hash_is_slot_0() {
    let temp = tempfile::tempdir().unwrap();
    let store = open(temp.path());
    // Of a topic of one character and `#`, then a suffix whose hash makes the sum the least integer.
    let key = least_hash_key();
    assert_eq!(java_hash(&format!("T#{key}")), i32::MIN);
    let at = put(&store, "T", &format!("KEYS\x01{key}"), "least", 1000);
    settle(&store, 1000);
    assert_eq!(offsets(&find(&store, "T", &key)), [at]);
    store.close(1).unwrap();
    let file = &contents(temp.path())[0];
    assert_eq!((int(file, 40), int(file, 460)), (1, 0));
}

fn least_hash_key() -> String {
    // The hash of seven characters from a range of 64 takes every value: greedily from the highest power down.
    let base = i64::from(java_hash("T#").wrapping_mul(31i32.wrapping_pow(8)));
    let mut left = (i64::from(i32::MIN) - base - 48 * (0..8).map(|n| 31i64.pow(n)).sum::<i64>()).rem_euclid(1 << 32);
    let mut key = String::new();
    for power in (0..8).rev() {
        let digit = (left / 31i64.pow(power)).min(60);
        left -= digit * 31i64.pow(power);
        key.push((48 + digit as u8) as char);
    }
    assert_eq!(left, 0);
    key
}

#[test]
fn what_is_indexed() {
    let temp = tempfile::tempdir().unwrap();
    let store = open(temp.path());
    put(&store, "T", "TAGS\x01a", "none", 1000);
    let many = put(&store, "T", "KEYS\x01 k1  k2 k1 \x02UNIQ_KEY\x01u1\x02", "many", 1000);
    let last = put(&store, "T", "KEYS\x01gone\x02KEYS\x01k3", "last", 1000);
    settle(&store, 1000);
    // From here on a query finds what no agent has seen.
    let text = put(&store, "T", "KEYS\x01schlüssel \u{1F600} 键", "text", 1000);
    for (key, want) in [
        ("k1", vec![many]),
        ("k2", vec![many]),
        ("u1", vec![many]),
        ("gone", vec![]),
        ("k3", vec![last]),
        ("schlüssel", vec![text]),
        ("\u{1F600}", vec![text]),
        ("键", vec![text]),
        ("", vec![]),
        ("k1  k2", vec![]),
    ] {
        assert_eq!(offsets(&find(&store, "T", key)), want, "{key}");
    }
    let unique = |key| {
        let query = KeyQuery { topic: "T", key, is_unique: true, count_max: 64, begin_ms: 0, end_ms: i64::MAX };
        offsets(&store.find_by_key(&query))
    };
    assert_eq!((unique("u1"), unique("k1")), (vec![many], vec![]));
    // One item each for u1, k1, k2, k1 again, k3 and the three words.
    store.close(1).unwrap();
    assert_eq!(int(&contents(temp.path())[0], 36), 1 + 8);
}

#[test]
fn the_time_window() {
    let temp = tempfile::tempdir().unwrap();
    let store = open(temp.path());
    put(&store, "T", "KEYS\x01other", "x", 10_500);
    settle(&store, 10_500);
    for (at, body) in [(10_500, "a"), (11_200, "b"), (11_900, "c"), (20_000, "d")] {
        put(&store, "T", "KEYS\x01k", body, at);
    }
    // begin, end, found
    for (begin, end, want) in [
        (0, i64::MAX, &["a", "b", "c", "d"][..]),
        (i64::MIN, i64::MAX, &["a", "b", "c", "d"]),
        (10_500, 10_500, &["a", "b"]),
        (11_200, 11_499, &["b"]),
        (11_200, 12_000, &["b", "c"]),
        (11_900, 11_900, &["c"]),
        (11_901, 19_000, &[]),
        (20_000, 20_000, &["d"]),
        (20_001, i64::MAX, &[]),
        (0, 10_499, &[]),
        (30_000, 10_000, &[]),
    ] {
        assert_eq!(bodies(&find_within(&store, "T", "k", 64, begin, end)), want, "{begin}..{end}");
    }
    // The newest ones.
    assert_eq!(bodies(&find_within(&store, "T", "k", 3, 0, i64::MAX)), ["b", "c", "d"]);
    let found = find(&store, "T", "k");
    assert_eq!((found.last_timestamp, found.is_cut), (20_000, false));
}

#[test]
fn files_roll_and_stay_in_order() {
    let temp = tempfile::tempdir().unwrap();
    let store = open(temp.path());
    let mut sent = Vec::new();
    for step in 0..1000u64 {
        sent.push(put(
            &store,
            "T",
            &format!("KEYS\x01all k{step} x{}\x02UNIQ_KEY\x01u{step}", step % 7),
            "b",
            1000 + step,
        ));
        if step % 50 == 0 {
            settle(&store, 1000 + step);
        }
    }
    settle(&store, 5000);
    assert_eq!(offsets(&find(&store, "T", "all")), sent[936..]);
    for step in [0, 74, 75, 500, 999] {
        assert_eq!(offsets(&find(&store, "T", &format!("k{step}"))), [sent[step]]);
        assert_eq!(offsets(&find(&store, "T", &format!("u{step}"))), [sent[step]]);
    }
    assert_eq!(find_within(&store, "T", "all", 5000, 0, i64::MAX).records.len(), 1000);
    assert_eq!(offsets(&find_within(&store, "T", "all", 64, 0, 1999)).len(), 64);
    store.close(1).unwrap();
    let all = contents(temp.path());
    assert_eq!(all.len(), 4000_usize.div_ceil(299));
    for pair in all.windows(2) {
        assert_eq!((int(&pair[0], 36), long(&pair[0], 24) <= long(&pair[1], 16)), (300, true));
    }
    drop(store);
    let store = open(temp.path());
    settle(&store, 6000);
    assert_eq!(contents(temp.path()), all, "a clean start changes nothing");
    assert_eq!(find_within(&store, "T", "all", 5000, 0, i64::MAX).records.len(), 1000);
    put(&store, "T", "KEYS\x01all", "after", 7000);
    assert_eq!(find_within(&store, "T", "all", 5000, 0, i64::MAX).records.len(), 1001);
}

/// What is damaged among the full files is missed, and everything is found again.
#[test]
fn damaged_full_files_are_made_anew() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 4] = [
        ("removed", |path| std::fs::remove_file(path).unwrap()),
        ("header of zeros", |path| {
            let mut bytes = std::fs::read(path).unwrap();
            bytes[..40].fill(0);
            std::fs::write(path, bytes).unwrap();
        }),
        ("cut short", |path| std::fs::write(path, vec![1; 100]).unwrap()),
        ("fewer items", |path| {
            let mut bytes = std::fs::read(path).unwrap();
            bytes[36..40].copy_from_slice(&100i32.to_be_bytes());
            std::fs::write(path, bytes).unwrap();
        }),
    ];
    for (what, damage) in damages {
        for (number, is_clean) in [(0, true), (2, true), (0, false), (1, false)] {
            let temp = tempfile::tempdir().unwrap();
            let store = open(temp.path());
            for step in 0..500u64 {
                put(&store, "T", &format!("KEYS\x01k{step}\x02UNIQ_KEY\x01u{step}"), "b", 1000 + step);
                if step % 50 == 0 {
                    settle(&store, 1000 + step);
                }
            }
            settle(&store, 5000);
            if is_clean {
                store.close(1).unwrap();
            }
            drop(store);
            damage(&files(temp.path())[number]);
            for start in 0..2 {
                let (store, told) = open_told(temp.path());
                assert!(
                    start > 0 || told.contains("anew") || told.contains("but files follow"),
                    "{what}, {is_clean}: {told}"
                );
                settle(&store, 6000);
                for step in 0..500 {
                    let found = offsets(&find(&store, "T", &format!("k{step}")));
                    assert_eq!(found.len(), 1, "{what} {number}, {is_clean}, start {start}, k{step}: {told}");
                }
                store.close(1).unwrap();
            }
        }
    }
}

/// Whatever was filed when, a start after a kill makes the index that one without a kill has.
#[test]
fn a_kill_loses_and_doubles_nothing() {
    let send = |store: &Store, from: u64, to: u64| {
        for step in from..to {
            put(store, "T", &format!("KEYS\x01all k{step}\x02UNIQ_KEY\x01u{step}"), "b", 10_000 + step * 10);
        }
    };
    let reference = tempfile::tempdir().unwrap();
    let store = open(reference.path());
    send(&store, 0, 400);
    settle(&store, 20_000);
    store.close(1).unwrap();
    let want = contents(reference.path());
    for cut in [1u64, 30, 99, 100, 101, 250] {
        let temp = tempfile::tempdir().unwrap();
        let mut from = 0;
        for to in [cut, cut + 1, 320, 400] {
            let store = open(temp.path());
            send(&store, from, to);
            settle(&store, 10_000 + to * 10);
            if to != 320 {
                // A round: the index is filed.
                settle(&store, 200_000);
            }
            send(&store, to, to);
            from = to;
            let all = contents(temp.path());
            let last = all.last().unwrap();
            assert!(long(last, 8) <= index_time(temp.path()), "Java would destroy the last file");
            for word in last[40..440].chunks_exact(4) {
                assert!(int(word, 0) < int(last, 36).max(1), "a slot leads behind the items");
            }
        }
        let store = open(temp.path());
        settle(&store, 300_000);
        store.close(1).unwrap();
        assert!(contents(temp.path()) == want, "cut at {cut}");
    }
}

fn unclean(root: &Path, change: impl FnOnce(&mut Vec<Vec<u8>>)) -> (Arc<Store>, String) {
    let mut all = contents(root);
    change(&mut all);
    for (path, bytes) in files(root).iter().zip(&all) {
        std::fs::write(path, bytes).unwrap();
    }
    std::fs::write(root.join("abort"), "").unwrap();
    open_told(root)
}

/// Files whose end the checkpoint does not cover: slots that are lost, items that are lost, headers that are old.
#[test]
fn lost_pages_are_made_anew() {
    type Change = fn(&mut Vec<Vec<u8>>);
    let changes: [(&str, Change); 7] = [
        ("nothing", |_| ()),
        ("slots lost", |all| all[1][40..440].fill(0)),
        ("slots of the future", |all| all[1][40..440].fill(1)),
        ("items lost at the end", |all| all[1][440 + 20 * 150..].fill(0)),
        ("items lost in the middle", |all| all[1][440 + 20 * 20..440 + 20 * 30].fill(0)),
        ("all lost", |all| all[1].fill(0)),
        ("header old", |all| all[1][36..40].copy_from_slice(&50i32.to_be_bytes())),
    ];
    for (what, change) in changes {
        let Some((_temp, root, _)) = fixture("store-4.9.7-clean") else { return };
        let mut want = contents(&root);
        let (store, told) = unclean(&root, change);
        settle(&store, 1_796_003_600_000);
        store.close(1).unwrap();
        let mut got = contents(&root);
        if what == "all lost" {
            assert!(told.contains("made anew") || got[1][..40] == want[1][..40], "{told}");
        }
        // Items behind the end do not count.
        for all in [&mut want, &mut got] {
            let end = 440 + 20 * int(&all[1], 36) as usize;
            all[1].truncate(end);
        }
        assert!(got == want, "{what}: {told}");
    }
}

#[test]
fn items_of_records_that_are_gone_are_cut() {
    let Some((_temp, root, _)) = fixture("store-4.9.7-clean") else { return };
    // The log loses its last records, as after a power loss.
    let path = root.join("commitlog").join("00000000000000131072");
    let mut log = std::fs::read(&path).unwrap();
    let cut = 187_001 - 131_072;
    assert!(peek_size(&log[cut..]).is_some_and(|(size, _)| size > 0));
    log[cut..].fill(0);
    std::fs::write(&path, log).unwrap();
    let (store, told) = unclean(&root, |_| ());
    assert_eq!(store.log_max(), 187_001);
    assert!(told.contains("items are of records in the log"), "{told}");
    settle(&store, 1);
    let at = put(&store, "TopicTx", "KEYS\x01txkey-COMMIT_MESSAGE", "new", 1_796_003_700_000);
    assert_eq!(offsets(&find(&store, "TopicTx", "txkey-COMMIT_MESSAGE")), [at]);
    store.close(1).unwrap();
    let all = contents(&root);
    assert_eq!(chain(&all[1], "TopicTx", "txkey-COMMIT_MESSAGE"), [187_001]);
    for number in 1..int(&all[1], 36) {
        assert!(long(&all[1], 444 + 20 * number as usize) <= 187_001);
    }
}

#[test]
fn odd_files_are_passed_over() {
    let Some((_temp, root, _)) = fixture("store-4.9.7-clean") else { return };
    let before = contents(&root);
    std::fs::create_dir(root.join("index/20261130015136700")).unwrap();
    std::fs::write(root.join("index/notes.txt"), "x").unwrap();
    std::fs::write(root.join("index/99999999999999999"), vec![0; before[0].len()]).unwrap();
    std::fs::write(root.join("index/20261130015136800"), "short").unwrap();
    let (store, told) = open_told(&root);
    for name in ["20261130015136700", "notes.txt", "20261130015136800: 5 bytes", "99999999999999999: no index file"] {
        assert!(told.contains(name), "{told}");
    }
    put(&store, "TopicA", "KEYS\x01order-0", "again", 1_796_003_700_000);
    assert_eq!(find(&store, "TopicA", "order-0").records.len(), 2);
    store.close(1).unwrap();
    assert_eq!(std::fs::read(files(&root)[0].as_path()).unwrap(), before[0]);
    // With other sizes nothing of it can be read, and a new file begins behind the others.
    let other =
        StoreConfig { index: IndexConfig { is_enabled: true, slot_count: 10, item_count: 50 }, ..config(&root) };
    let (store, report) = Store::open(other, 1).unwrap();
    assert!(report.lines.join("\n").contains("another maxHashSlotNum"));
    settle(&store, 1_796_003_800_000);
    let at = put(&store, "TopicA", "KEYS\x01order-0", "third", 1_796_003_900_000);
    settle(&store, 1_796_003_900_000);
    assert!(offsets(&find(&store, "TopicA", "order-0")).contains(&at));
}

/// One append with single messages, client batches, odd keys and none, of several topics and kinds.
fn append_all_kinds(store: &Store, round: usize) {
    let mut batch = AppendBatch::default();
    let texts = [
        format!("UNIQ_KEY\x01u{round}\x02KEYS\x01a  b{round} a\x02"),
        "TAGS\x01t".to_string(),
        format!("KEYS\x01ключ{round} \u{1F600}"),
        "UNIQ_KEY\x01first\x02UNIQ_KEY\x01second".to_string(),
        String::new(),
    ];
    for (number, text) in texts.iter().enumerate() {
        let topic = ["T", "Тема", "T-long-long-long"][(round + number) % 3];
        let queue = store.queue_or_create(topic, 0);
        let properties = [text.as_bytes(), b"".as_slice()];
        let mut one = message(topic, 0, b"body", &properties);
        // Prepared, commit, rollback: all but the last are indexed.
        one.sys_flag = [0, 4, 8, 12][(round + number) % 4];
        batch.push(&one, 0, &queue, LIMITS).unwrap();
        let mut body = Vec::new();
        for text in &texts[number..] {
            let bytes = 22 + 1 + text.len() as u32;
            for word in [bytes, 0, 0, 0, 1] {
                body.extend_from_slice(&word.to_be_bytes());
            }
            body.push(b'x');
            body.extend_from_slice(&(text.len() as u16).to_be_bytes());
            body.extend_from_slice(text.as_bytes());
        }
        let shared = format!("KEYS\x01shared{number}");
        let properties = [[].as_slice(), shared.as_bytes()];
        let codes = vec![Marked::from(0); texts.len() - number];
        let properties = if round.is_multiple_of(2) { &properties[..] } else { &[] };
        let record = message(topic, 0, &body, properties);
        batch.push_client_batch(&record, &codes, &queue, LIMITS).unwrap();
    }
    assert!(store.append(&mut batch, 1000 + 700 * round as u64).error.is_none());
}

#[test]
fn what_appends_hand_over_is_what_the_log_says() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let config = || StoreConfig { index: IndexConfig { item_count: 3000, ..config(&root).index }, ..config(&root) };
    for part in 0..3 {
        // What is left by the one before is walked.
        let (store, report) = Store::open(config(), 1_000).unwrap();
        assert!(report.lines.iter().all(|line| !line.contains("index")), "{:?}", report.lines);
        for round in 0..20 {
            append_all_kinds(&store, 20 * part + round);
            if round % 7 < 3 {
                settle(&store, 20_000 + 1000 * round as u64);
            }
        }
        if part < 2 {
            settle(&store, 60_000);
            store.close(1).unwrap();
        }
    }
    let (store, _) = Store::open(config(), 1_000).unwrap();
    settle(&store, 90_000);
    store.close(1).unwrap();
    drop(store);
    let handed_over = contents(&root);
    assert!(int(&handed_over[0], 36) > 1000);
    std::fs::remove_dir_all(root.join("index")).unwrap();
    let (store, _) = Store::open(config(), 1_000).unwrap();
    settle(&store, 90_000);
    store.close(1).unwrap();
    assert!(contents(&root) == handed_over);
}

#[test]
fn switched_off_there_is_no_index() {
    let temp = tempfile::tempdir().unwrap();
    let off = IndexConfig { is_enabled: false, slot_count: 100, item_count: 300 };
    let (store, _) = Store::open(StoreConfig { index: off, ..config(temp.path()) }, 1).unwrap();
    put(&store, "T", "KEYS\x01k", "b", 1000);
    settle(&store, 100_000);
    assert!(find(&store, "T", "k").records.is_empty());
    store.close(1).unwrap();
    assert!(files(temp.path()).is_empty());
    // Switched on later, it is made from the log.
    let store = open(temp.path());
    settle(&store, 1);
    assert_eq!(find(&store, "T", "k").records.len(), 1);
}

#[test]
fn without_a_keyed_message_there_is_no_file() {
    let temp = tempfile::tempdir().unwrap();
    let store = open(temp.path());
    assert!(files(temp.path()).is_empty());
    put(&store, "T", "TAGS\x01a", "b", 1000);
    settle(&store, 100_000);
    assert!(files(temp.path()).is_empty());
    put(&store, "T", "UNIQ_KEY\x01u", "b", 1000);
    settle(&store, 100_000);
    assert_eq!(files(temp.path()).len(), 1);
}

/// As the clients ask for a unique key: from a second before the time in it.
#[test]
fn a_unique_key_is_found_from_a_second_before_it() {
    let temp = tempfile::tempdir().unwrap();
    let store = open(temp.path());
    for step in 0..20u64 {
        let at = 1_796_063_000_000 + step * 1_700;
        put(&store, "found", &format!("KEYS\x01first second\x02UNIQ_KEY\x01ID{step}\x02"), "b", at);
        settle(&store, at);
        let (key, begin_ms) = (format!("ID{step}"), at as i64 - 1000);
        let query = KeyQuery { topic: "found", key: &key, is_unique: true, count_max: 32, begin_ms, end_ms: i64::MAX };
        assert_eq!(store.find_by_key(&query).records.len(), 1, "{step}");
    }
}
