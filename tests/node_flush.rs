//! The flush modes by raw frames: who is answered when, what consumers see, what a kill leaves, and how the modes are
//! tuned while the node runs.

mod support;

use std::time::{Duration, Instant};
use support::wire::{
    Ask, Told, WAIT_MAX, Wire, batch, create_topic, max_offset, pull, pull_and_wait, send, send_batch,
};
use support::{Cluster, await_that};

const SMALL: [(&str, &str); 1] = [("mappedFileSizeCommitLog", "1048576")];
const SYNC: (&str, &str) = ("flushDiskType", "SYNC_FLUSH");
/// WAIT=false, as a message property.
const NO_WAIT: &str = "WAIT\u{1}false\u{2}";

fn start(name: &str, more: &[(&str, &str)]) -> Option<(Cluster, Wire)> {
    let config: Vec<_> = SMALL.iter().chain(more).copied().collect();
    let cluster = Cluster::start_with(name, &config)?;
    let wire = Wire::to(cluster.broker_address());
    Some((cluster, wire))
}

#[track_caller]
fn is_whole(told: &Told, queue_offset: i64) {
    assert_eq!(told.number("queueOffset"), queue_offset, "{told:?}");
    assert_eq!(told.number("queueId"), 0);
    assert_eq!(told.ext["msgId"].len(), 32);
    assert_eq!(told.ext["MSG_REGION"], "DefaultRegion");
    assert_eq!(told.ext["TRACE_ON"], "true");
}

fn count_of(wire: &mut Wire, topic: &str) -> i64 {
    wire.ask(&max_offset(topic, 0)).ok().number("offset")
}

#[test]
fn synchronous_sends_are_answered_when_they_are_durable() {
    let Some((cluster, mut wire)) = start("flush-sync", &[SYNC]) else { return };
    wire.ask(&create_topic("sync", 1)).ok();
    for offset in 0..20 {
        let properties = if offset % 3 == 0 { NO_WAIT } else { "" };
        is_whole(&wire.ask(&send("sync", 0, b"body", properties)).ok(), offset);
    }
    // What was answered as durable can be seen; what came with WAIT=false may have to wait for a flush.
    assert!(count_of(&mut wire, "sync") >= 19);
    let body = batch(&[(0, b"one", b""), (0, b"two", b"")]);
    let told = wire.ask(&send_batch("sync", 0, &body)).ok();
    assert_eq!(told.number("queueOffset"), 20);
    assert_eq!(told.ext["msgId"].len(), 65);
    wire.send(&send("sync", 0, b"oneway", "").oneway());
    let told = wire.ask(&send("sync", 0, b"last", "")).ok();
    is_whole(&told, 23);
    let told = wire.ask(&pull("g", "sync", 0, 0)).ok();
    assert_eq!(told.messages().len(), 24);
    drop(cluster);
}

/// Log files are full faster than they can be made: sends wait for them and keep their order.
#[test]
fn sends_wait_for_the_next_log_file() {
    for mode in [("ringmq.commitLogMedium", "write"), ("ringmq.commitLogMedium", "mapped"), SYNC] {
        let config = [("mappedFileSizeCommitLog", "65536"), mode];
        let Some(mut cluster) = Cluster::start_with("flush-roll", &config) else { return };
        let mut wire = Wire::to(cluster.broker_address());
        wire.ask(&create_topic("roll", 1)).ok();
        let asks: Vec<_> = (0..2000).map(|number: u32| send("roll", 0, &[number as u8; 9000], "")).collect();
        let mut asked = 0;
        for asks in asks.chunks(250) {
            let opaques: Vec<i32> = asks.iter().map(|ask| wire.send(ask)).collect();
            for opaque in opaques {
                assert_eq!(wire.answer(opaque).ok().number("queueOffset"), asked);
                asked += 1;
            }
        }
        cluster.kill_broker();
        cluster.start_again();
        let mut wire = Wire::to(cluster.broker_address());
        assert_eq!(count_of(&mut wire, "roll"), 2000, "{mode:?}");
        let told = wire.ask(&pull("g", "roll", 0, 1990)).ok();
        let firsts: Vec<u8> = told.messages().iter().map(|message| message.body[0]).collect();
        assert_eq!(firsts, (1990..2000).map(|number: u32| number as u8).collect::<Vec<_>>());
    }
}

/// Where no file can be made, sends are told why, and go on by themselves when it can be again.
#[test]
fn without_a_next_log_file_sends_are_told_why() {
    let Some((cluster, mut wire)) = start("flush-no-file", &[("mappedFileSizeCommitLog", "65536")]) else { return };
    if !cluster.is_ours() {
        return;
    }
    wire.ask(&create_topic("no-file", 1)).ok();
    wire.ask(&send("no-file", 0, &[b'x'; 9000], "")).ok();
    let (log, away) = (cluster.store().join("commitlog"), cluster.store().join("away"));
    std::fs::rename(&log, &away).unwrap();
    let mut stored = 1;
    let refused = loop {
        let told = wire.ask(&send("no-file", 0, &[b'x'; 9000], ""));
        match told.code {
            0 => stored += 1,
            _ => break told,
        }
        assert!(stored < 30, "the files made ahead hold 21 of them");
    };
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.remark.contains("create mapped file failed: "), "{refused:?}");
    assert!(refused.remark.contains("No such file or directory"), "{refused:?}");
    std::fs::rename(&away, &log).unwrap();
    let is_back = || wire.ask(&send("no-file", 0, b"again", "")).code == 0;
    await_that("sends go on", WAIT_MAX, is_back);
    assert_eq!(count_of(&mut wire, "no-file"), stored + 1);
}

/// Many at once, over several log files, from several connections; then a kill.
#[test]
fn synchronous_sends_gather_and_survive_a_kill() {
    let Some((mut cluster, mut wire)) = start("flush-sync-many", &[SYNC, ("ringmq.shards", "3")]) else { return };
    wire.ask(&create_topic("many", 4)).ok();
    let address = cluster.broker_address().to_owned();
    std::thread::scope(|scope| {
        for queue_id in 0..4 {
            let address = &address;
            scope.spawn(move || {
                let mut wire = Wire::to(address);
                for _ in 0..10 {
                    let opaques: Vec<i32> =
                        (0..64).map(|_| wire.send(&send("many", queue_id, &[b'x'; 1000], ""))).collect();
                    let mut offsets: Vec<i64> =
                        opaques.into_iter().map(|opaque| wire.answer(opaque).ok().number("queueOffset")).collect();
                    let first = offsets[0];
                    offsets.sort_unstable();
                    assert_eq!(offsets, (first..first + 64).collect::<Vec<_>>());
                }
            });
        }
    });
    cluster.kill_broker();
    cluster.start_again();
    let mut wire = Wire::to(cluster.broker_address());
    for queue_id in 0..4 {
        assert_eq!(wire.ask(&max_offset("many", queue_id)).ok().number("offset"), 640);
    }
}

#[test]
fn a_flush_that_takes_too_long_is_answered_with_10_and_the_message_is_there() {
    let Some((_cluster, mut wire)) = start("flush-timeout", &[SYNC, ("syncFlushTimeout", "0")]) else { return };
    wire.ask(&create_topic("late", 1)).ok();
    for offset in 0..5 {
        let told = wire.ask(&send("late", 0, b"body", ""));
        assert_eq!((told.code, told.remark.as_str()), (10, ""), "{told:?}");
        is_whole(&told, offset);
    }
    is_whole(&wire.ask(&send("late", 0, b"body", NO_WAIT)).ok(), 5);
    await_that("the flush", WAIT_MAX, || count_of(&mut wire, "late") == 6);
    assert_eq!(wire.ask(&pull("g", "late", 0, 0)).ok().messages().len(), 6);
}

/// Where consumers see less than what is written, the agent that changes that wakes them.
#[test]
fn held_pulls_wake_when_the_message_becomes_visible() {
    let pool = ("transientStorePoolEnable", "true");
    for (name, config) in [("flush-held-sync", SYNC), ("flush-held-pool", pool)] {
        let Some((cluster, mut wire)) = start(name, &[config]) else { return };
        wire.ask(&create_topic("held", 1)).ok();
        let mut consumer = Wire::to(cluster.broker_address());
        for offset in 0..3 {
            let opaque = consumer.send(&pull_and_wait("g", "held", 0, offset, 20_000));
            // Held by now, or not: the wake-up must not depend on it.
            std::thread::sleep(Duration::from_millis(100 * offset as u64));
            let begin = Instant::now();
            is_whole(&wire.ask(&send("held", 0, b"body", "")).ok(), offset);
            let told = consumer.answer(opaque).ok();
            assert_eq!(told.messages()[0].queue_offset, offset);
            // The look at held pulls comes after 5 s.
            assert!(begin.elapsed() < Duration::from_secs(4), "{name}: {:?}", begin.elapsed());
        }
    }
}

#[test]
fn a_stop_answers_the_sends_that_wait_for_their_flush() {
    let Some((mut cluster, mut wire)) = start("flush-stop", &[SYNC]) else { return };
    wire.ask(&create_topic("stop", 1)).ok();
    let opaques: Vec<i32> = (0..200).map(|_| wire.send(&send("stop", 0, b"body", ""))).collect();
    // The first is there, so the others are on their way.
    let mut answered = i64::from(wire.answer(opaques[0]).ok().code == 0);
    cluster.stop_broker();
    for opaque in &opaques[1..] {
        let Some(told) = wire.answer_within(*opaque, Duration::from_secs(2)) else { break };
        answered += i64::from(told.ok().code == 0);
    }
    cluster.start_again();
    let mut wire = Wire::to(cluster.broker_address());
    assert!(count_of(&mut wire, "stop") >= answered);
}

#[test]
fn a_kill_loses_what_the_pool_has_not_committed_and_nothing_else() {
    let slow = [
        ("transientStorePoolEnable", "true"),
        ("commitIntervalCommitLog", "3600000"),
        ("commitCommitLogThoroughInterval", "3600000"),
    ];
    let Some((mut cluster, mut wire)) = start("flush-pool-kill", &slow) else { return };
    wire.ask(&create_topic("pool", 1)).ok();
    for offset in 0..10 {
        is_whole(&wire.ask(&send("pool", 0, b"body", "")).ok(), offset);
    }
    // The commit interval is an hour.
    assert_eq!(count_of(&mut wire, "pool"), 0);
    assert_eq!(wire.ask(&pull("g", "pool", 0, 0)).code, 19);
    // A stop commits.
    cluster.stop_broker();
    cluster.start_again();
    let mut wire = Wire::to(cluster.broker_address());
    assert_eq!(count_of(&mut wire, "pool"), 10);
    // The file that is there has no buffer, the next one has: a kill loses what is behind its start at most.
    let mut sent = 10;
    let mut log_offset = 0;
    while log_offset < 1 << 20 {
        let told = wire.ask(&send("pool", 0, &[b'x'; 8000], "")).ok();
        log_offset = i64::from_str_radix(&told.ext["msgId"][16..], 16).expect("a log offset");
        sent += 1;
    }
    cluster.kill_broker();
    cluster.start_again();
    let mut wire = Wire::to(cluster.broker_address());
    assert_eq!(count_of(&mut wire, "pool"), sent - 1);
    is_whole(&wire.ask(&send("pool", 0, b"goes on", "")).ok(), sent - 1);
}

#[test]
fn with_synchronous_flush_the_pool_is_not_used_and_the_start_says_so() {
    let Some((cluster, mut wire)) = start("flush-both", &[SYNC, ("transientStorePoolEnable", "true")]) else { return };
    wire.ask(&create_topic("both", 1)).ok();
    is_whole(&wire.ask(&send("both", 0, b"body", "")).ok(), 0);
    assert_eq!(count_of(&mut wire, "both"), 1);
    let told = cluster.broker_process().stdout();
    assert!(
        told.contains("WARNING transientStorePoolEnable=true has no effect with flushDiskType=SYNC_FLUSH"),
        "{told}"
    );
    assert!(told.contains("flush mode SYNC_FLUSH"), "{told}");
}

fn update(text: &str) -> Ask {
    Ask::new(25).body(text)
}

/// GET_BROKER_CONFIG's value of a key.
fn shown(wire: &mut Wire, key: &str) -> String {
    let told = wire.ask(&Ask::new(26)).ok();
    let text = String::from_utf8(told.body).expect("it is text");
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    line.unwrap_or_else(|| panic!("no {key} in {text}")).to_owned()
}

#[test]
fn the_configuration_is_shown_and_changed_while_the_node_runs() {
    let pool = [("transientStorePoolEnable", "true"), ("commitIntervalCommitLog", "3600000")];
    let Some((mut cluster, mut wire)) = start("flush-config", &pool) else { return };
    let version = wire.ask(&Ask::new(26)).ok().ext["version"].clone();
    let version: serde_json::Value = serde_json::from_str(&version).expect("a DataVersion");
    assert!(version["counter"].is_number() && version["timestamp"].is_number(), "{version}");
    for (key, want) in [("flushDiskType", "ASYNC_FLUSH"), ("flushIntervalCommitLog", "500"), ("brokerName", "broker-a")]
    {
        assert_eq!(shown(&mut wire, key), want, "{key}");
    }

    wire.ask(&create_topic("config", 1)).ok();
    wire.ask(&send("config", 0, b"body", "")).ok();
    assert_eq!(count_of(&mut wire, "config"), 0);
    let told = wire.ask(&Ask::new(28)).ok();
    let table: serde_json::Value = serde_json::from_slice(&told.body).expect("a KVTable");
    // One of the five is lent to the first file.
    assert_eq!(table["table"]["remainTransientStoreBufferNumbs"], "4");
    assert_ne!(table["table"]["remainHowManyDataToCommit"], "0 B");
    wire.ask(&update("commitIntervalCommitLog=10\ncommitCommitLogThoroughInterval=10\nflushIntervalCommitLog=77\n"))
        .ok();
    await_that("the commit, whose interval is 10 ms now", WAIT_MAX, || count_of(&mut wire, "config") == 1);
    assert_eq!(shown(&mut wire, "flushIntervalCommitLog"), "77");

    cluster.stop_broker();
    // The test's own file is written anew at each start.
    let file = std::fs::read_to_string(cluster.directory().join("broker.properties")).expect("it is there");
    let set = file.lines().skip_while(|line| !line.starts_with("# Set while the broker ran")).skip(1);
    assert_eq!(
        set.collect::<Vec<_>>(),
        ["commitIntervalCommitLog=10", "commitCommitLogThoroughInterval=10", "flushIntervalCommitLog=77"]
    );
}

/// Fault 10 of the public reports.
#[test]
fn what_must_not_change_does_not_and_takes_nothing_with_it() {
    let Some((cluster, mut wire)) = start("flush-black", &[]) else { return };
    let path = cluster.directory().join("broker.properties");
    let before = std::fs::read(&path).expect("it is there");
    let children = |cluster: &Cluster| {
        let id = cluster.broker_process().id();
        let tasks = std::fs::read_dir(format!("/proc/{id}/task")).expect("it lives");
        tasks
            .map(|task| std::fs::read_to_string(task.expect("a task").path().join("children")).unwrap_or_default())
            .collect::<String>()
    };
    for (text, code, remark) in [
        (
            "filterServerNums=1\nrocketmqHome=-c $@|sh . echo touch /tmp/pwn;\n",
            16,
            "Can not update config in black list.",
        ),
        ("brokerConfigPath=/tmp/x", 16, "Can not update config in black list."),
        ("rocketmqHome=/tmp/x", 16, "Can not update config in black list."),
        ("configBlackList=", 16, "Can not update config in black list."),
        ("flushIntervalCommitLog=1\nconfigBlackList=", 16, "Can not update config in black list."),
        ("flushIntervalCommitLog=1\nlistenPort=1", 1, "listenPort is read at start only"),
        ("flushIntervalCommitLog=1\nstorePathRootDir=/tmp/x", 1, "storePathRootDir is read at start only"),
        ("flushIntervalCommitLog=1\nbrokerName=b", 1, "brokerName is read at start only"),
        ("flushIntervalCommitLog=1\nflushDiskType=SYNC_FLUSH", 1, "flushDiskType is read at start only"),
        ("flushIntervalCommitLog=1\nfilterServerNums=1", 1, "filterServerNums=1 is not possible"),
        ("flushIntervalCommitLog=1\nfoo=1", 1, "there is no key foo"),
        ("flushIntervalCommitLog=no", 1, "flushIntervalCommitLog=no: allowed is"),
        ("a=\\u00", 1, "string2Properties error"),
        ("", 1, "the body is empty"),
    ] {
        let told = wire.ask(&update(text));
        assert_eq!(told.code, code, "{text}: {told:?}");
        assert!(told.remark.starts_with(remark), "{text}: {told:?}");
    }
    assert_eq!(shown(&mut wire, "flushIntervalCommitLog"), "500");
    assert_eq!(std::fs::read(&path).expect("it is there"), before);
    assert_eq!(children(&cluster).trim(), "");

    // A file that can not be written: the folder in its place can not be replaced.
    std::fs::remove_file(&path).expect("ours");
    std::fs::create_dir(&path).expect("ours");
    let told = wire.ask(&update("flushIntervalCommitLog=1"));
    assert_eq!(told.code, 1, "{told:?}");
    assert!(told.remark.contains("broker.properties") && told.remark.ends_with("nothing was changed"), "{told:?}");
    assert_eq!(shown(&mut wire, "flushIntervalCommitLog"), "500");
}

#[test]
fn a_changed_permission_is_in_force_and_registered() {
    let Some((cluster, mut wire)) = start("flush-permission", &[]) else { return };
    wire.ask(&create_topic("perm", 1)).ok();
    wire.ask(&send("perm", 0, b"body", "")).ok();
    let counter = |wire: &mut Wire| {
        let version = wire.ask(&Ask::new(26)).ok().ext["version"].clone();
        serde_json::from_str::<serde_json::Value>(&version).expect("a DataVersion")["counter"].as_i64()
    };
    let before = counter(&mut wire);
    wire.ask(&update("brokerPermission=2")).ok();
    assert!(counter(&mut wire) > before);
    assert_eq!(wire.ask(&pull("g", "perm", 0, 0)).code, 16);
    let mut namesrv = Wire::to(cluster.namesrv_address());
    await_that("the registration", WAIT_MAX, || {
        let told = namesrv.ask(&Ask::new(105).field("topic", "perm")).ok();
        let route: serde_json::Value = serde_json::from_slice(&told.body).expect("JSON");
        route["queueDatas"][0]["perm"] == 2
    });
    wire.ask(&update("brokerPermission=6")).ok();
    wire.ask(&pull("g", "perm", 0, 0)).ok();
}
