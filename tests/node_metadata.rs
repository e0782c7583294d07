//! What must survive: topics, groups and offsets over kill -9 and SIGTERM; topics deleted and made again; and what a
//! start refuses. By raw frames and child processes.
//!
//! Faults 14, 25, 29 and 38 of the public reports.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::wire::{
    Ask, Wire, create_topic, delete_topic, max_offset, min_offset, producer_heartbeat, pull, pull_and_wait,
    query_offset, send, update_offset,
};
use support::{Cluster, Process, await_that, free_ports, is_full, port_of};

const SMALL: [(&str, &str); 1] = [("mappedFileSizeCommitLog", "67108864")];
/// Only ends a hang.
const END_MAX: Duration = Duration::from_secs(60);

fn start(name: &str, more: &[(&str, &str)]) -> Option<Cluster> {
    let config: Vec<_> = SMALL.iter().chain(more).copied().collect();
    let cluster = Cluster::start_with(name, &config)?;
    cluster.is_ours().then_some(cluster)
}

fn connect(cluster: &Cluster) -> Wire {
    Wire::to(cluster.broker_address())
}

/// A random number that the seed alone brings back.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// What a node said yes to.
#[derive(Default)]
struct Acknowledged {
    topics: BTreeSet<String>,
    /// Made by the send of a message, with how many of its messages were acknowledged.
    sent: BTreeMap<String, i64>,
    /// With the retryMaxTimes acknowledged, and the largest asked for.
    groups: BTreeMap<String, (i64, i64)>,
    /// The largest offset that was ever sent as a commit.
    offset_max: i64,
}

/// The answer's code; `None` when the connection dies first.
fn tried(wire: &mut Wire, ask: &Ask, opaque: i32) -> Option<i32> {
    wire.try_write(&ask.frame(opaque))?;
    wire.answer_within(opaque, END_MAX).map(|told| told.code)
}

/// Changes metadata until the node dies.
fn change_until_dead(address: &str, round: u64, done: &mut Acknowledged) {
    let mut wire = Wire::to(address);
    for number in 0.. {
        let opaque = 10 * number;
        let topic = format!("k-{round}-{number}");
        match tried(&mut wire, &create_topic(&topic, 2), opaque) {
            Some(0) => done.topics.insert(topic),
            _ => return,
        };
        let group = format!("g-{}", number % 3);
        let times = i64::from(number) + 1_000 * round as i64;
        let body = serde_json::json!({"groupName": group, "retryMaxTimes": times});
        let known = done.groups.entry(group).or_insert((-1, -1));
        known.1 = times;
        match tried(&mut wire, &Ask::new(200).body(body.to_string()), opaque + 1) {
            Some(0) => known.0 = times,
            _ => return,
        }
        done.offset_max += 1;
        match tried(&mut wire, &update_offset("committer", "commits", 0, done.offset_max), opaque + 2) {
            Some(0) => {}
            _ => return,
        }
        // Two sends at once to a topic that the first of them makes.
        let topic = format!("s-{round}-{number}");
        let bytes: Vec<u8> = (3..5).flat_map(|at| send(&topic, 0, b"x", "").frame(opaque + at)).collect();
        if wire.try_write(&bytes).is_none() {
            return;
        }
        for at in [4, 3] {
            match wire.answer_within(opaque + at, END_MAX).map(|told| told.code) {
                Some(0) => *done.sent.entry(topic.clone()).or_default() += 1,
                _ => return,
            }
        }
    }
}

fn table(wire: &mut Wire, code: i32, name: &str) -> serde_json::Map<String, serde_json::Value> {
    let told = wire.ask(&Ask::new(code)).ok();
    let value: serde_json::Value = serde_json::from_slice(&told.body).expect("JSON");
    value[name].as_object().expect("a table").clone()
}

/// Fault 25.
#[test]
fn acknowledged_metadata_survives_kill_9() {
    let Some(mut cluster) = start("metadata-kill", &[("flushConsumerOffsetInterval", "30")]) else { return };
    connect(&cluster).ask(&create_topic("commits", 1)).ok();
    let rounds = if is_full() { 100 } else { 30 };
    let seed = 0x9e37_79b9_7f4a_7c15 ^ u64::from(std::process::id());
    println!("seed {seed}");
    let mut random = Random(seed);
    let mut done = Acknowledged::default();
    for round in 0..rounds {
        let address = cluster.broker_address().to_owned();
        let wait_ms = 5 + random.below(150);
        std::thread::scope(|scope| {
            let changes = scope.spawn(|| change_until_dead(&address, round, &mut done));
            std::thread::sleep(Duration::from_millis(wait_ms));
            cluster.kill_broker();
            changes.join().expect("no assertion in there");
        });
        let name = ["topics.json", "subscriptionGroup.json", "consumerOffset.json"][random.below(3) as usize];
        let file = cluster.store().join("config").join(name);
        // Only what has its .bak: a first write that was cut short has nothing to fall back to, and acknowledged nothing.
        if file.exists() && file.with_file_name(format!("{name}.bak")).exists() {
            let bytes = std::fs::read(&file).expect("our file");
            match random.below(5) {
                0 => std::fs::write(&file, b"").expect("our file"),
                1 => std::fs::write(&file, &bytes[..bytes.len() / 2]).expect("our file"),
                2 => std::fs::remove_file(&file).expect("our file"),
                _ => {}
            }
        }
        cluster.start_again();
        let mut wire = connect(&cluster);
        let topics = table(&mut wire, 21, "topicConfigTable");
        for topic in done.topics.iter().chain(done.sent.keys()) {
            assert!(topics.contains_key(topic), "round {round}, seed {seed}: topic {topic} is forgotten ({name})");
        }
        let groups = table(&mut wire, 201, "subscriptionGroupTable");
        for (group, (acknowledged, asked)) in &done.groups {
            let times = groups.get(group).and_then(|group| group["retryMaxTimes"].as_i64());
            let is_right = times.map_or(*acknowledged < 0, |times| (*acknowledged..=*asked).contains(&times));
            assert!(
                is_right,
                "round {round}, seed {seed}: {group} {times:?}, {acknowledged} was acknowledged ({name})"
            );
        }
        let told = wire.ask(&query_offset("committer", "commits", 0)).ok();
        assert!((0..=done.offset_max).contains(&told.number("offset")), "round {round}, seed {seed}: {told:?}");
        for (topic, count) in done.sent.iter().filter(|(topic, _)| topic.starts_with(&format!("s-{round}-"))) {
            let end = wire.ask(&max_offset(topic, 0)).number("offset");
            assert!(end >= *count, "round {round}, seed {seed}: {topic} has {end} of {count}");
        }
    }
    assert!(done.topics.len() as u64 > rounds, "the node died before anything was done");
}

/// Fault 38: what was committed and stored under the old topic is gone with it, also when the process dies in between.
#[test]
fn a_topic_made_again_begins_anew() {
    let Some(mut cluster) = start("metadata-again", &[("flushConsumerOffsetInterval", "30")]) else { return };
    // killed after: deletion, creation, sends
    for (round, (deleted, created, sent)) in
        [(false, false, false), (true, false, false), (false, true, false), (false, false, true), (true, true, true)]
            .into_iter()
            .enumerate()
    {
        let topic = &format!("again-{round}");
        let again = |cluster: &mut Cluster, is_killed: bool| {
            if is_killed {
                cluster.kill_broker();
                cluster.start_again();
            }
            connect(cluster)
        };
        let mut wire = connect(&cluster);
        wire.ask(&create_topic(topic, 1)).ok();
        for _ in 0..100 {
            wire.ask(&send(topic, 0, b"old", "")).ok();
        }
        wire.ask(&update_offset("old", topic, 0, 100)).ok();
        // So that it is in the file.
        std::thread::sleep(Duration::from_millis(100));
        wire.ask(&delete_topic(topic)).ok();
        let mut wire = again(&mut cluster, deleted);
        assert_eq!(wire.ask(&pull("old", topic, 0, 0)).code, 17, "round {round}");
        assert!(!table(&mut wire, 21, "topicConfigTable").contains_key(topic), "round {round}");
        let offsets = String::from_utf8_lossy(&wire.ask(&Ask::new(43)).ok().body).into_owned();
        assert!(!offsets.contains(&format!("{topic}@old")), "round {round}: {offsets}");
        wire.ask(&create_topic(topic, 1)).ok();
        let mut wire = again(&mut cluster, created);
        let told = wire.ask(&pull("old", topic, 0, 0));
        assert_eq!((told.code, told.bounds()), (19, (0, 0, 0)), "round {round}");
        assert_eq!(wire.ask(&query_offset("old", topic, 0).field("setZeroIfNotFound", false)).code, 22);
        for number in 0..3 {
            let told = wire.ask(&send(topic, 0, b"new", "")).ok();
            assert_eq!(told.number("queueOffset"), number, "round {round}");
        }
        let mut wire = again(&mut cluster, sent);
        let offset = |wire: &mut Wire, ask: Ask| wire.ask(&ask).ok().number("offset");
        assert_eq!(offset(&mut wire, min_offset(topic, 0)), 0, "round {round}");
        assert_eq!(offset(&mut wire, max_offset(topic, 0)), 3, "round {round}");
        assert_eq!(offset(&mut wire, query_offset("old", topic, 0)), 0, "round {round}");
        let told = wire.ask(&Ask::new(208).field("consumerGroup", "old").field("topic", topic)).ok();
        let text = String::from_utf8_lossy(&told.body).into_owned();
        let is_right = text.contains("\"brokerOffset\":3") && text.contains("\"consumerOffset\":0");
        assert!(is_right, "round {round}: {text}");
        let messages = wire.ask(&pull("old", topic, 0, 0)).ok().messages();
        let got: Vec<_> = messages.iter().map(|message| (message.queue_offset, message.body.as_slice())).collect();
        assert_eq!(got, [(0, &b"new"[..]), (1, b"new"), (2, b"new")], "round {round}");
    }
    // Deleted without being there, and twice.
    let mut wire = connect(&cluster);
    for _ in 0..2 {
        wire.ask(&delete_topic("never-there")).ok();
    }
    assert_eq!(wire.ask(&delete_topic("TBW102")).code, 29);
}

/// Fault 29.
#[test]
fn a_search_by_time_ends_at_the_queue() {
    let Some(mut cluster) = start("metadata-time", &[]) else { return };
    let mut wire = connect(&cluster);
    wire.ask(&create_topic("time", 2)).ok();
    for burst in 0..6 {
        for _ in 0..4 {
            wire.ask(&send("time", 0, b"x", "")).ok();
        }
        std::thread::sleep(Duration::from_millis(20 + burst));
    }
    for round in 0..3 {
        match round {
            1 => cluster.kill_broker(),
            2 => cluster.stop_broker(),
            _ => {}
        }
        cluster.start_again();
        let mut wire = connect(&cluster);
        let messages = wire.ask(&pull("g", "time", 0, 0)).ok().messages();
        let times: Vec<i64> = messages.iter().map(|message| message.store_timestamp).collect();
        assert_eq!(times.len(), 24);
        let mut search = |queue_id: i32, timestamp: i64, boundary: &str| {
            let ask = Ask::new(29).field("topic", "time").field("queueId", queue_id).field("timestamp", timestamp);
            let ask = if boundary.is_empty() { ask } else { ask.field("boundaryType", boundary) };
            wire.ask(&ask).ok().number("offset")
        };
        let (first, last) = (times[0], times[23]);
        for timestamp in [last + 1, last + 1_000, last + 86_400_000, i64::MAX] {
            assert_eq!(search(0, timestamp, ""), 24, "round {round}: {timestamp}");
            assert_eq!(search(0, timestamp, "LOWER"), 24, "round {round}: {timestamp}");
            assert_eq!(search(0, timestamp, "UPPER"), 23, "round {round}: {timestamp}");
        }
        for timestamp in [first, first - 1, 1, 0, -1, i64::MIN] {
            assert_eq!(search(0, timestamp, ""), 0, "round {round}: {timestamp}");
        }
        for timestamp in times.iter().flat_map(|time| [time - 1, *time, time + 1]) {
            let lower = times.iter().position(|time| *time >= timestamp).unwrap_or(24) as i64;
            let upper = times.iter().rposition(|time| *time <= timestamp).unwrap_or(0) as i64;
            assert_eq!(search(0, timestamp, "lower"), lower, "round {round}: {timestamp} of {times:?}");
            assert_eq!(search(0, timestamp, "upper"), upper, "round {round}: {timestamp} of {times:?}");
        }
        // An empty queue, and none.
        for timestamp in [0, -1, last, i64::MAX] {
            assert_eq!(search(1, timestamp, ""), 0);
            assert_eq!(search(7, timestamp, ""), 0);
        }
        let ask = Ask::new(32).field("topic", "time").field("queueId", 0);
        assert_eq!(wire.ask(&ask).ok().number("timestamp"), first);
        assert_eq!(wire.ask(&ask.field("queueId", 1)).ok().number("timestamp"), -1);
    }
}

/// Fault 14.
#[test]
fn a_kv_pair_without_a_key_is_refused_and_hurts_nobody() {
    let Some(mut cluster) = start("metadata-kv", &[]) else { return };
    let whole = |key: &str, value: &str| {
        Ask::new(100).field("namespace", "ORDER_TOPIC_CONFIG").field("key", key).field("value", value)
    };
    let mut wire = Wire::to(cluster.namesrv_address());
    for name in ["namespace", "key", "value"] {
        for ask in [whole("t", "broker-a:8").without(name), whole("t", "broker-a:8").without(name).binary()] {
            let told = wire.ask(&ask);
            assert_eq!(told.code, 1, "{name}: {told:?}");
            assert!(told.remark.contains(name) || told.remark == "namespace or key is null", "{name}: {told:?}");
        }
    }
    let list = Ask::new(219).field("namespace", "ORDER_TOPIC_CONFIG");
    assert_eq!(wire.ask(&list).code, 22);
    // Values that no broker can use: it starts all the same.
    for (key, value) in [("a", " "), ("b", "nonsense"), ("../c", ":::;;"), ("d", "broker-a:8"), ("主", "题")] {
        wire.ask(&whole(key, value)).ok();
    }
    for is_killed in [true, false] {
        if is_killed {
            cluster.kill_broker()
        } else {
            cluster.stop_broker()
        }
        cluster.start_again();
        let mut wire = Wire::to(cluster.namesrv_address());
        let told = wire.ask(&list).ok();
        let kept: serde_json::Value = serde_json::from_slice(&told.body).expect("JSON");
        assert_eq!(kept["table"].as_object().expect("a table").len(), 5, "{kept}");
        connect(&cluster).ask(&send("kv", 0, b"x", "")).ok();
    }
}

#[test]
fn sigterm_keeps_offsets_and_answers_held_pulls() {
    let Some(mut cluster) = start("metadata-term", &[]) else { return };
    let mut wire = connect(&cluster);
    wire.ask(&create_topic("term", 4)).ok();
    for number in 0..10 {
        wire.ask(&send("term", 0, b"x", "")).ok();
        wire.ask(&update_offset(&format!("g{number}"), "term", 0, number)).ok();
    }
    let mut others: Vec<(Wire, i32)> = (0..20)
        .map(|index| {
            let mut wire = connect(&cluster);
            let opaque = wire.send(&pull_and_wait("g", "term", 1 + index % 3, 0, 25_000));
            (wire, opaque)
        })
        .collect();
    let opaque = wire.send(&pull_and_wait("g", "term", 0, 10, 25_000));
    assert!(wire.answer_within(opaque, Duration::from_millis(50)).is_none());
    // Silent connections do not keep it.
    let idle: Vec<Wire> = (0..20).map(|_| connect(&cluster)).collect();
    let begin = Instant::now();
    cluster.stop_broker();
    assert!(begin.elapsed() < Duration::from_secs(15), "held pulls kept it: {:?}", begin.elapsed());
    let told = wire.answer(opaque);
    assert_eq!((told.code, told.bounds()), (19, (0, 10, 10)));
    for (wire, opaque) in &mut others {
        assert_eq!(wire.answer(*opaque).code, 19);
    }
    drop(idle);
    assert!(!cluster.store().join("abort").exists(), "a clean stop leaves no abort file");
    cluster.start_again();
    let mut wire = connect(&cluster);
    for number in 0..10 {
        let told = wire.ask(&query_offset(&format!("g{number}"), "term", 0)).ok();
        assert_eq!(told.number("offset"), number);
    }
    assert_eq!(wire.ask(&max_offset("term", 0)).number("offset"), 10);
}

/// Sends go on while it stops: what was answered is there afterwards.
#[test]
fn sigterm_under_load_loses_nothing() {
    let Some(mut cluster) = start("metadata-load", &[]) else { return };
    connect(&cluster).ask(&create_topic("load", 1)).ok();
    for _ in 0..3 {
        let before = connect(&cluster).ask(&max_offset("load", 0)).number("offset");
        let address = cluster.broker_address().to_owned();
        let stopped = AtomicBool::new(false);
        let count: i64 = std::thread::scope(|scope| {
            let senders: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let mut wire = Wire::to(&address);
                        let mut count = 0;
                        while !stopped.load(Ordering::Relaxed)
                            && tried(&mut wire, &send("load", 0, &[b'x'; 500], ""), count) == Some(0)
                        {
                            count += 1;
                        }
                        i64::from(count)
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(300));
            cluster.stop_broker();
            stopped.store(true, Ordering::Relaxed);
            senders.into_iter().map(|sender| sender.join().expect("no assertion in there")).sum()
        });
        cluster.start_again();
        let end = connect(&cluster).ask(&max_offset("load", 0)).number("offset");
        assert!(count > 0 && end >= before + count, "{end} messages, {before} before and {count} acknowledged");
    }
}

/// Runs ringmq to its end: exit code, stdout, stderr.
fn run(directory: &Path, label: &str, args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringmq"));
    command.args(args).env_remove("NAMESRV_ADDR");
    let mut process = Process::start(label, directory, command);
    let status = process.wait(END_MAX);
    (status.and_then(|status| status.code()), process.stdout(), process.stderr())
}

fn config_file(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, text).expect("our directory");
    path
}

fn text_of(path: &Path) -> &str {
    path.to_str().expect("our paths are UTF-8")
}

#[test]
fn one_process_for_a_store_and_for_a_port() {
    let Some(cluster) = start("metadata-lock", &[]) else { return };
    let directory = cluster.directory();
    let mut wire = connect(&cluster);
    wire.ask(&send("lock", 0, b"x", "")).ok();
    let store = cluster.store();
    let port = free_ports();
    let text = format!("bindAddress=127.0.0.1\nlistenPort={port}\nmappedFileSizeCommitLog=67108864\n");
    let file = config_file(directory, "second.properties", &text);
    let namesrv_port = (port + 2).to_string();
    let args =
        ["standalone", "-c", text_of(&file), "--store", text_of(&store), "--namesrv-port", namesrv_port.as_str()];
    let (code, out, err) = run(directory, "second-store", &args);
    assert!(code.is_some_and(|code| code != 0), "{code:?}\n{out}\n{err}");
    assert!(err.contains(text_of(&store.join("lock"))) && !err.contains("panicked"), "{err}");
    assert!(!out.contains("ready"), "{out}");
    // The first goes on, with its files.
    wire.ask(&send("lock", 0, b"x", "")).ok();
    assert!(store.join("abort").exists());
    // The same ports with another store.
    let other = directory.join("other-store");
    let busy = [port_of(cluster.broker_address()), port_of(cluster.broker_address()) + 2];
    for (index, (listen_port, busy_port)) in [(busy[0], busy[0]), (busy[1], busy[1])].into_iter().enumerate() {
        let text = format!("bindAddress=127.0.0.1\nlistenPort={listen_port}\nmappedFileSizeCommitLog=67108864\n");
        let file = config_file(directory, &format!("busy-{index}.properties"), &text);
        let args =
            ["standalone", "-c", text_of(&file), "--store", text_of(&other), "--namesrv-port", namesrv_port.as_str()];
        let (code, out, err) = run(directory, &format!("busy-{index}"), &args);
        assert!(code.is_some_and(|code| code != 0), "{code:?}\n{out}\n{err}");
        assert!(err.contains(&format!("127.0.0.1:{busy_port}")) && err.contains("listenPort"), "{err}");
        assert!(!err.contains("panicked") && !out.contains("ready"), "{out}\n{err}");
    }
    let text = format!("bindAddress=127.0.0.1\nlistenPort={port}\nmappedFileSizeCommitLog=67108864\n");
    let file = config_file(directory, "busy-namesrv.properties", &text);
    let busy_port = port_of(cluster.namesrv_address()).to_string();
    let args = ["standalone", "-c", text_of(&file), "--store", text_of(&other), "--namesrv-port", busy_port.as_str()];
    let (code, out, err) = run(directory, "busy-namesrv", &args);
    assert!(code.is_some_and(|code| code != 0) && err.contains(&busy_port), "{code:?}\n{out}\n{err}");
    // A port that is taken costs no store.
    assert!(!other.join("commitlog").exists());
    wire.ask(&send("lock", 0, b"x", "")).ok();
}

#[test]
fn what_is_not_built_is_refused_with_its_key() {
    let Some(cluster) = start("metadata-config", &[("fooBar", "1"), ("listenport", "2"), ("slaveTimeout", "5")]) else {
        return;
    };
    let directory = cluster.directory();
    let out = cluster.broker_process().stdout();
    let line = out.lines().find(|line| line.contains("unknown keys")).unwrap_or_else(|| panic!("no warning\n{out}"));
    assert!(line.contains("fooBar") && line.contains("listenport") && line.contains("listenPort"), "{line}");
    assert!(out.contains("slaveTimeout"), "{out}");
    // text of the file, what the message names
    let refused: &[(&str, &[&str])] = &[
        ("flushDiskType=NO_FLUSH", &["flushDiskType", "NO_FLUSH", "ASYNC_FLUSH"]),
        ("brokerRole=SLAVE", &["brokerRole", "SLAVE", "ASYNC_MASTER"]),
        ("brokerRole=SYNC_MASTER", &["brokerRole", "SYNC_MASTER"]),
        ("brokerId=1", &["brokerId"]),
        ("messageDelayLevel=1s 5x", &["messageDelayLevel", "5x"]),
        ("enableDLegerCommitLog=true", &["enableDLegerCommitLog"]),
        ("storeType=defaultRocksDB", &["storeType"]),
        ("aclEnable=true", &["aclEnable"]),
        ("filterServerNums=1", &["filterServerNums"]),
        ("enableConsumeQueueExt=true", &["enableConsumeQueueExt"]),
        ("listenPort=0", &["listenPort"]),
        ("listenPort=70000", &["listenPort", "70000"]),
        ("listenPort=x", &["listenPort", "x"]),
        ("maxMessageSize=-1", &["maxMessageSize"]),
        ("brokerName=a/b", &["brokerName"]),
        ("autoCreateTopicEnable=perhaps", &["autoCreateTopicEnable", "perhaps"]),
        ("namesrvAddr=nowhere", &["namesrvAddr", "nowhere"]),
        ("messageDelayLevel=\nbrokerRole=SLAVE", &["messageDelayLevel", "brokerRole"]),
    ];
    let store = directory.join("refused-store");
    for (index, (text, names)) in refused.iter().enumerate() {
        let file = config_file(directory, &format!("refused-{index}.properties"), text);
        for mode in [&["standalone", "--store", text_of(&store)][..], &["broker"]] {
            let args = [mode, &["-c", text_of(&file)]].concat();
            let (code, out, err) = run(directory, &format!("refused-{index}-{}", mode.len()), &args);
            assert!(code.is_some_and(|code| code != 0), "{text}: {code:?}\n{out}\n{err}");
            assert!(names.iter().all(|name| err.contains(name)), "{text}: {err}");
            assert!(!err.contains("panicked"), "{text}: {err}");
        }
    }
    let (code, _, err) = run(directory, "no-file", &["broker", "-c", text_of(&directory.join("absent.properties"))]);
    assert!(code.is_some_and(|code| code != 0) && err.contains("absent.properties"), "{err}");
    assert!(!store.exists(), "a refused start makes no store");
}

#[test]
fn the_effective_configuration_is_printed() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory below the target");
    let directory = directory.path();
    let store = directory.join("print-store");
    let file =
        config_file(directory, "print.properties", "brokerName=printed\nlistenPort=23456\nmaxMessageSize=1234\n");
    let (code, all, err) =
        run(directory, "print", &["standalone", "-c", text_of(&file), "--store", text_of(&store), "-p"]);
    assert_eq!(code, Some(0), "{err}");
    let pairs: BTreeMap<&str, &str> = all.lines().filter_map(|line| line.split_once('=')).collect();
    assert_eq!(pairs.get("brokerName"), Some(&"printed"), "{all}");
    assert_eq!(pairs.get("listenPort"), Some(&"23456"));
    assert_eq!(pairs.get("maxMessageSize"), Some(&"1234"));
    assert_eq!(pairs.get("storePathRootDir"), Some(&text_of(&store)));
    assert_eq!(pairs.get("flushDiskType"), Some(&"ASYNC_FLUSH"));
    let (code, important, err) = run(directory, "print-m", &["broker", "-c", text_of(&file), "-m"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(important.contains("brokerName=printed") && important.contains("listenPort=23456"), "{important}");
    assert!(!important.contains("maxMessageSize") && important.lines().count() < all.lines().count(), "{important}");
    let (code, out, err) = run(directory, "print-namesrv", &["namesrv", "-p"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("listenPort=9876"), "{out}");
    // What is printed can be read back.
    let again = config_file(directory, "again.properties", &all);
    let (code, twice, err) =
        run(directory, "print-again", &["standalone", "-c", text_of(&again), "--store", text_of(&store), "-p"]);
    assert_eq!((code, twice), (Some(0), all), "{err}");
    assert!(!store.exists(), "printing makes no store");
}

/// What comes while a topic is being deleted belongs to the topic that is made after it.
#[test]
fn sends_behind_a_deletion_go_into_the_new_topic() {
    let Some(mut cluster) = Cluster::start_with("meta-deletion", &[("ringmq.shards", "2")]) else { return };
    let mut wire = Wire::to(cluster.broker_address());
    let mut other = Wire::to(cluster.broker_address());
    for round in 0..10 {
        let old: Vec<i32> = (0..20).map(|_| wire.send(&send("going", 0, b"old", ""))).collect();
        old.into_iter().for_each(|opaque| drop(wire.answer(opaque).ok()));
        let deleted = wire.send(&delete_topic("going"));
        let sent: Vec<i32> = (0..20).map(|_| wire.send(&send("going", 0, b"new", ""))).collect();
        let beside = other.send(&send("going", 0, b"beside", ""));
        wire.answer(deleted).ok();
        let mut offsets: Vec<i64> =
            sent.into_iter().map(|opaque| wire.answer(opaque).ok().number("queueOffset")).collect();
        // It may have come before the deletion.
        let beside = other.answer(beside).ok().number("queueOffset");
        let is_new = wire.ask(&max_offset("going", 0)).ok().number("offset") == 21;
        offsets.extend(is_new.then_some(beside));
        offsets.sort_unstable();
        assert_eq!(offsets, (0..offsets.len() as i64).collect::<Vec<_>>(), "round {round}");
        if cluster.is_ours() && round % 3 == 0 {
            cluster.kill_broker();
            cluster.start_again();
            (wire, other) = (Wire::to(cluster.broker_address()), Wire::to(cluster.broker_address()));
        }
        let count = wire.ask(&max_offset("going", 0)).ok().number("offset");
        assert_eq!(count, offsets.len() as i64, "round {round}");
        let told = wire.ask(&pull("g", "going", 0, 0)).ok();
        assert!(told.messages().iter().all(|message| message.body != b"old"), "round {round}");
    }
}

/// Both copies are gone: the start says so, and that the messages are still there.
#[test]
fn a_start_without_its_topics_says_so() {
    let Some(mut cluster) = Cluster::start("meta-lost-topics") else { return };
    if !cluster.is_ours() {
        return;
    }
    let mut wire = Wire::to(cluster.broker_address());
    wire.ask(&create_topic("lost", 1)).ok();
    wire.ask(&send("lost", 0, b"body", "")).ok();
    cluster.stop_broker();
    for name in ["topics.json", "topics.json.bak"] {
        let _ = std::fs::remove_file(cluster.store().join("config").join(name));
    }
    cluster.start_again();
    let told = cluster.broker_process().stdout();
    assert!(told.contains("have queues with messages but no configuration: lost (1 queues). "), "{told}");
    let mut wire = Wire::to(cluster.broker_address());
    wire.ask(&create_topic("lost", 1)).ok();
    assert_eq!(wire.ask(&pull("g", "lost", 0, 0)).ok().messages().len(), 1);
}

/// Queues whose topic is in no table go when an operator says so, and only they.
#[test]
fn queues_without_a_topic_are_cleaned_away() {
    let Some(mut cluster) = start("meta-unused", &[]) else { return };
    let mut wire = connect(&cluster);
    for topic in ["kept", "unknown"] {
        wire.ask(&create_topic(topic, 1)).ok();
        wire.ask(&send(topic, 0, b"x", "")).ok();
    }
    cluster.stop_broker();
    for name in ["topics.json", "topics.json.bak"] {
        let path = cluster.store().join("config").join(name);
        let mut table: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        table["topicConfigTable"].as_object_mut().unwrap().remove("unknown").expect("it was there");
        std::fs::write(&path, table.to_string()).unwrap();
    }
    cluster.start_again();
    let mut wire = connect(&cluster);
    let dir = |topic: &str| cluster.store().join("consumequeue").join(topic);
    assert!(dir("kept").exists() && dir("unknown").exists());
    wire.ask(&Ask::new(316)).ok();
    await_that("its queues to go", END_MAX, || !dir("unknown").exists());
    assert_eq!(wire.ask(&max_offset("kept", 0)).number("offset"), 1);
    wire.ask(&create_topic("unknown", 1)).ok();
    assert_eq!(wire.ask(&send("unknown", 0, b"y", "")).ok().number("queueOffset"), 0);
}

#[test]
fn an_operator_sees_how_far_back_a_group_is() {
    let Some(cluster) = start("meta-span", &[]) else { return };
    let mut wire = connect(&cluster);
    wire.ask(&create_topic("span", 2)).ok();
    wire.ask(&Ask::new(200).body("{\"groupName\":\"g\"}")).ok();
    for _ in 0..3 {
        wire.ask(&send("span", 0, b"x", "")).ok();
    }
    let span = |wire: &mut Wire| -> serde_json::Value {
        let told = wire.ask(&Ask::new(303).field("topic", "span").field("group", "g")).ok();
        let text = String::from_utf8(told.body).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let number = |value: &serde_json::Value| value.as_i64().expect("a number");
    let told = span(&mut wire);
    let (first, second) = (&told["consumeTimeSpanSet"][0], &told["consumeTimeSpanSet"][1]);
    assert!(number(&first["minTimeStamp"]) > 0 && number(&first["maxTimeStamp"]) >= number(&first["minTimeStamp"]));
    assert_eq!(first["consumeTimeStamp"], first["minTimeStamp"]);
    assert_eq!(
        (number(&second["minTimeStamp"]), number(&second["maxTimeStamp"]), number(&second["delayTime"])),
        (-1, -1, 0)
    );
    assert_eq!(second["messageQueue"]["queueId"], 1);
    wire.ask(&update_offset("g", "span", 0, 3)).ok();
    let told = span(&mut wire);
    let first = &told["consumeTimeSpanSet"][0];
    assert_eq!((number(&first["delayTime"]), &first["consumeTimeStamp"]), (0, &first["maxTimeStamp"]));
    assert_eq!(wire.ask(&Ask::new(303).field("topic", "none").field("group", "g")).code, 17);
    // All groups at once; only of ordered topics.
    for (is_order, want) in [("false", 3), ("true", 0)] {
        let told = wire.ask(&Ask::new(317).field("isOrder", is_order)).ok();
        let text = String::from_utf8(told.body).unwrap();
        assert_eq!(text.matches("\"consumerOffset\":3").count(), want / 3, "{text}");
        assert!(text.contains("\"g\":[") && text.contains("\"totalDiff\":0"), "{text}");
    }
    assert_eq!(wire.ask(&Ask::new(317)).code, 29);
    wire.ask(&producer_heartbeat("asker", "askers")).ok();
    let text = String::from_utf8(wire.ask(&Ask::new(328)).ok().body).unwrap();
    assert!(text.contains("\"askers\":[{\"clientId\":\"asker\""), "{text}");
}

/// A refusal by a metadata file comes behind the opening of the store, which stays as cleanly stopped as it was.
#[test]
fn a_refused_start_leaves_a_clean_stop() {
    let Some(mut cluster) = start("meta-refused", &[]) else { return };
    if !cluster.is_ours() {
        return;
    }
    let mut wire = connect(&cluster);
    wire.ask(&create_topic("kept", 1)).ok();
    wire.ask(&send("kept", 0, b"x", "")).ok();
    cluster.stop_broker();
    let config = cluster.store().join("config");
    let names = ["topics.json", "topics.json.bak"];
    let before = names.map(|name| std::fs::read(config.join(name)).unwrap());
    names.iter().for_each(|name| std::fs::write(config.join(name), "").unwrap());
    let store = cluster.store();
    let port = free_ports();
    let text = format!("bindAddress=127.0.0.1\nlistenPort={port}\nmappedFileSizeCommitLog=67108864\n");
    let file = config_file(cluster.directory(), "refused.properties", &text);
    let namesrv_port = (port + 2).to_string();
    let args = ["standalone", "-c", text_of(&file), "--store", text_of(&store), "--namesrv-port", &namesrv_port];
    let (code, _, told) = run(cluster.directory(), "refused", &args);
    assert!(code != Some(0) && told.contains("topics.json"), "{code:?} {told}");
    assert!(store.join("ringmq-clean-stop").exists() && !store.join("abort").exists());
    for (name, bytes) in names.iter().zip(before) {
        std::fs::write(config.join(name), bytes).unwrap();
    }
    cluster.start_again();
    assert!(cluster.broker_process().stdout().contains("after a clean stop"));
}

/// What a power loss or damage took from a queue's end, a group may have consumed; it does not pass over what comes next.
#[test]
fn a_group_behind_the_end_of_a_queue_goes_on_at_the_end() {
    let Some(mut cluster) = start("meta-beyond", &[]) else { return };
    if !cluster.is_ours() {
        return;
    }
    let mut wire = connect(&cluster);
    wire.ask(&create_topic("cut", 1)).ok();
    wire.ask(&Ask::new(200).body("{\"groupName\":\"g\"}")).ok();
    for _ in 0..3 {
        wire.ask(&send("cut", 0, b"x", "")).ok();
    }
    wire.ask(&update_offset("g", "cut", 0, 3)).ok();
    cluster.stop_broker();
    for name in ["consumerOffset.json", "consumerOffset.json.bak"] {
        let path = cluster.store().join("config").join(name);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("{0:3}"), "{text}");
        std::fs::write(&path, text.replace("{0:3}", "{0:9}")).unwrap();
    }
    cluster.start_again();
    assert!(cluster.broker_process().stdout().contains("g in queue 0 of cut, 9 to 3"));
    // A kill that comes at once does not forget it.
    let path = cluster.store().join("config/consumerOffset.json");
    assert!(std::fs::read_to_string(&path).unwrap().contains("{0:3}"));
    let mut wire = connect(&cluster);
    assert_eq!(wire.ask(&query_offset("g", "cut", 0)).number("offset"), 3);
}
