//! The stores that the Java brokers 4.9.7 and 5.3.3 left behind, opened: every queue, entry and record is as the manifests
//! say, after a clean stop and after a kill, and stays so when ringmq has written to them and stopped or died.

mod common;

use common::{config, entries, fixture, open, open_told, queues, send, snapshot, with_record};
use ringmq_storage::store::{Store, TimeBoundary};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Queue to its log offsets, as the records claim; transaction records have none, inner batches go elsewhere.
fn wanted(manifest: &Value) -> BTreeMap<(String, i64), BTreeMap<u64, u64>> {
    let mut wanted: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    for message in manifest["messages"].as_array().expect("messages") {
        let at = number(&message["physicalOffset"]);
        let sys_flag = number(&message["sysFlag"]);
        if !matches!(sys_flag & 12, 0 | 8) || sys_flag & 0x80 != 0 {
            continue;
        }
        let topic = message["topic"].as_str().expect("topic").to_owned();
        let queue_id = message["queueId"].as_i64().expect("queueId");
        wanted.entry((topic, queue_id)).or_default().insert(number(&message["queueOffset"]), at);
        for entry in message["consumeQueueEntries"].as_array().expect("entries") {
            let topic = entry["topic"].as_str().expect("topic").to_owned();
            let queue_id = entry["queueId"].as_i64().expect("queueId");
            wanted.entry((topic, queue_id)).or_default().insert(number(&entry["queueOffset"]), at);
        }
    }
    wanted
}

fn check_store(store: &Store, manifest: &Value) {
    assert_eq!(store.log_min(), number(&manifest["commitLog"]["minOffset"]));
    assert_eq!(store.log_max(), number(&manifest["commitLog"]["validEnd"]));
    let wanted = wanted(manifest);
    let with_entries: Vec<_> = queues(store).into_iter().filter(|queue| queue.max() > 0).collect();
    assert_eq!(with_entries.len(), wanted.len());
    for ((topic, queue_id), offsets) in &wanted {
        let queue = store.queue(topic, *queue_id as i32).unwrap_or_else(|| panic!("{topic} {queue_id}"));
        let got: BTreeMap<u64, u64> =
            (queue.min()..).zip(entries(&queue).iter().map(|entry| entry.log_offset)).collect();
        assert_eq!(got, *offsets, "{topic} {queue_id}");
    }
    for message in manifest["messages"].as_array().expect("messages") {
        for want in message["consumeQueueEntries"].as_array().expect("entries") {
            let queue = store.queue(want["topic"].as_str().unwrap(), number(&want["queueId"]) as i32).unwrap();
            let entry = entries(&queue)[number(&want["queueOffset"]) as usize];
            assert_eq!(entry.record_bytes as u64, number(&want["size"]));
            assert_eq!(entry.tags_code, want["tagsCode"].as_i64().unwrap(), "{want}");
            assert_eq!(store.store_time(&queue, number(&want["queueOffset"])), message["storeTimestamp"]);
            with_record(store, &entry, |record| assert_eq!(record.body.len() as u64, number(&message["bodyLength"])));
        }
    }
    let seen = &manifest["asSeenByJava"]["afterStart"]["queues"];
    for (name, want) in seen.as_object().into_iter().flatten() {
        let (topic, queue_id) = name.rsplit_once('/').expect("topic/queue");
        let (min, max) =
            store.queue(topic, queue_id.parse().unwrap()).map_or((0, 0), |queue| (queue.min(), queue.max()));
        assert_eq!((min, max), (number(&want["min"]), number(&want["max"])), "{name}");
    }
}

/// Stops or kills, and opens again.
fn reopen(root: &Path, store: std::sync::Arc<Store>, is_clean: bool) -> (std::sync::Arc<Store>, String) {
    if is_clean {
        store.close(3_000_000_000_000).expect("closed");
        assert!(!root.join("abort").exists());
    }
    drop(store);
    open_told(root)
}

fn check_fixture(name: &str, is_killed: bool) {
    for is_clean in [true, false] {
        let Some((_temp, root, manifest)) = fixture(name) else { return };
        let before = snapshot(&root);
        let (store, told) = open_told(&root);
        println!("{told}");
        assert_eq!(told.contains("after a crash"), is_killed);
        assert_eq!(told.contains("have been zeroed"), is_killed, "only a torn record is zeroed");
        check_store(&store, &manifest);
        // Nothing but what was missing or torn has changed.
        for (path, bytes) in snapshot(&root) {
            if !is_killed && path.to_str().is_some_and(|path| path.contains('/')) {
                assert!(before.get(&path) == Some(&bytes), "{} has changed", path.display());
            }
        }
        let (store, told) = reopen(&root, store, is_clean);
        assert!(!told.contains("added") && !told.contains("zeroed"), "the second start finds nothing to do: {told}");
        check_store(&store, &manifest);

        let queue = store.queue_or_create("TopicNew", 0);
        for at in 0..200 {
            assert_eq!(send(&store, "TopicNew", 0, &[b'x'; 1000], 2_000_000_000_000), at);
        }
        let end = store.log_max();
        assert_eq!(entries(&queue).len(), 200);
        let (store, _) = reopen(&root, store, is_clean);
        assert_eq!(store.log_max(), end);
        let queue = store.queue("TopicNew", 0).expect("there again");
        assert_eq!(entries(&queue).len(), 200);
        for entry in entries(&queue) {
            with_record(&store, &entry, |record| assert_eq!(record.body, [b'x'; 1000]));
        }
        for ((topic, queue_id), offsets) in wanted(&manifest) {
            let queue = store.queue(&topic, queue_id as i32).expect("there still");
            assert_eq!(queue.max(), offsets.len() as u64);
        }
    }
}

#[test]
fn store_4_9_7_clean() {
    check_fixture("store-4.9.7-clean", false);
}

#[test]
fn store_4_9_7_killed() {
    check_fixture("store-4.9.7-killed", true);
}

#[test]
fn store_5_3_3_clean() {
    check_fixture("store-5.3.3-clean", false);
}

#[test]
fn store_5_3_3_killed() {
    check_fixture("store-5.3.3-killed", true);
}

#[test]
fn store_5_3_3_features() {
    check_fixture("store-5.3.3-features", false);
}

/// The queues of every fixture, rebuilt from nothing but the log, are byte for byte those that Java wrote.
#[test]
fn queues_rebuilt_from_the_log_are_javas() {
    for name in ["store-4.9.7-clean", "store-5.3.3-clean"] {
        let Some((_temp, root, manifest)) = fixture(name) else { return };
        let before = snapshot(&root.join("consumequeue"));
        std::fs::rename(root.join("consumequeue"), root.join("away")).unwrap();
        let (store, told) = open_told(&root);
        assert!(told.contains("have been added"), "{told}");
        check_store(&store, &manifest);
        store.close(1).unwrap();
        let after = snapshot(&root.join("consumequeue"));
        assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
        assert!(before == after, "{name}: other bytes");
    }
}

#[test]
fn time_search_as_5_3_3() {
    for name in ["store-5.3.3-clean", "store-5.3.3-killed", "store-4.9.7-clean"] {
        let Some((_temp, root, manifest)) = fixture(name) else { return };
        let store = open(&root);
        let times = &manifest["asSeenByJava"]["offsetByTime"];
        for want in times.as_array().into_iter().flatten().filter(|_| name.contains("5.3.3")) {
            let (topic, queue_id) = want["queue"].as_str().unwrap().rsplit_once('/').unwrap();
            let queue = store.queue(topic, queue_id.parse().unwrap()).unwrap();
            let time = want["timestamp"].as_i64().unwrap();
            let got = [TimeBoundary::Lower, TimeBoundary::Upper].map(|edge| store.offset_by_time(&queue, time, edge));
            assert_eq!(got, [number(&want["offset"]), number(&want["offsetUpper"])], "{want}");
        }
        // By the definition, for every record's time and its neighbours.
        for queue in queues(&store) {
            let all: Vec<i64> = (queue.min()..queue.max()).map(|offset| store.store_time(&queue, offset)).collect();
            for time in all.iter().flat_map(|time| [time - 1, *time, time + 1]).chain([i64::MIN, -1, 0, i64::MAX]) {
                let lower = all.iter().position(|stored| *stored >= time).unwrap_or(all.len()) as u64;
                let upper = all.iter().rposition(|stored| *stored <= time).unwrap_or(0) as u64;
                assert_eq!(store.offset_by_time(&queue, time, TimeBoundary::Lower), queue.min() + lower);
                assert_eq!(store.offset_by_time(&queue, time, TimeBoundary::Upper), queue.min() + upper);
            }
        }
        assert_eq!(store.earliest_store_time(), manifest["messages"][0]["storeTimestamp"]);
    }
}

#[test]
fn extension_addresses_are_resolved_to_tags() {
    let Some((_temp, root, manifest)) = fixture("store-5.3.3-features") else { return };
    let store = open(&root);
    let limits = ringmq_storage::read::ReadLimits {
        memory_bytes_max: 1 << 20,
        memory_count_max: 100,
        disk_bytes_max: 1 << 20,
        disk_count_max: 100,
        in_memory_bytes: u64::MAX,
    };
    let mut count = 0;
    for message in manifest["messages"].as_array().unwrap() {
        for entry in message["consumeQueueEntries"].as_array().unwrap() {
            let queue = store.queue(entry["topic"].as_str().unwrap(), number(&entry["queueId"]) as i32).unwrap();
            let mut seen = Vec::new();
            let offset = entry["queueOffset"].as_i64().unwrap();
            let read = store.read(&queue, offset, 1, &limits, &mut |code| {
                seen.push(code);
                true
            });
            assert_eq!(read.count, 1);
            assert_eq!(seen[0], message["expectedTagsCode"].as_i64().unwrap(), "{entry}");
            count += usize::from(entry["tagsCode"].as_i64().unwrap() < i64::from(i32::MIN));
        }
    }
    assert!(count > 0);
}

#[test]
fn other_sizes_are_refused_by_name() {
    let Some((_temp, root, _)) = fixture("store-4.9.7-clean") else { return };
    let before = snapshot(&root);
    for (log, queue, want) in
        [(131_072, 1000, "mappedFileSizeCommitLog"), (1 << 30, 1000, "65536"), (65_536, 6_000_000, "have 1000 bytes")]
    {
        let mut config = config(&root);
        (config.commit_log_file_bytes, config.consume_queue_file_bytes) = (log, queue);
        let error = Store::open(config, 1).err().expect("refused").to_string();
        assert!(error.contains(want), "{error}");
    }
    assert!(snapshot(&root) == before, "nothing was changed");
}
