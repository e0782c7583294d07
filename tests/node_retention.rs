//! Retention by raw frames: old files go, what is below them is said to be gone, a full disk refuses sends only.

mod support;

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};
use support::wire::{
    Ask, Told, Wire, create_topic, heartbeat, max_offset, min_offset, pull, query_offset, send, update_offset,
};
use support::{Cluster, await_that};

const SMALL: [(&str, &str); 3] =
    [("mappedFileSizeCommitLog", "131072"), ("mappedFileSizeConsumeQueue", "1000"), ("cleanResourceInterval", "1000")];
const DELETE_EXPIRED_COMMITLOG: i32 = 329;
const CLEAN_EXPIRED_CONSUMEQUEUE: i32 = 306;
const DELETE_SUBSCRIPTIONGROUP: i32 = 207;
const WAIT: Duration = Duration::from_secs(60);

fn start(name: &str, more: &[(&str, &str)]) -> Option<(Cluster, Wire)> {
    let config: Vec<_> = SMALL.iter().chain(more).copied().collect();
    let cluster = Cluster::start_with(name, &config)?;
    let wire = Wire::to(cluster.broker_address());
    Some((cluster, wire))
}

fn log_files(cluster: &Cluster) -> usize {
    fs::read_dir(cluster.store().join("commitlog")).expect("a log").count()
}

fn fill(wire: &mut Wire, topic: &str, count: i64) {
    wire.ask(&create_topic(topic, 1)).ok();
    for offset in 0..count {
        assert_eq!(wire.ask(&send(topic, 0, &[b'x'; 2000], "")).ok().number("queueOffset"), offset);
    }
}

fn search(topic: &str, time_ms: i64) -> Ask {
    Ask { code: 29, ..max_offset(topic, 0) }.field("timestamp", time_ms)
}

fn update_config(wire: &mut Wire, line: &str) -> Told {
    wire.ask(&Ask::new(25).body(line)).ok()
}

/// As if their last write were four days ago.
fn age(path: &Path) {
    let file = File::options().write(true).open(path).expect("a file of the store");
    file.set_modified(SystemTime::now() - Duration::from_secs(96 * 3600)).expect("our own file");
}

#[test]
fn what_expired_is_gone_for_everybody_and_for_good() {
    let Some((mut cluster, mut wire)) = start("retention", &[]) else { return };
    if !cluster.is_ours() {
        return;
    }
    fill(&mut wire, "old", 500);
    let before = log_files(&cluster);
    assert!(before > 6, "{before}");
    let mut names: Vec<_> =
        fs::read_dir(cluster.store().join("commitlog")).unwrap().map(|e| e.unwrap().path()).collect();
    names.sort();
    names[..4].iter().for_each(|path| age(path));
    wire.ask(&Ask::new(DELETE_EXPIRED_COMMITLOG)).ok();
    wire.ask(&Ask::new(CLEAN_EXPIRED_CONSUMEQUEUE)).ok();
    await_that("four files to go", WAIT, || log_files(&cluster) == before - 4);
    let mut min = 0;
    await_that("the queue to follow", WAIT, || {
        min = wire.ask(&min_offset("old", 0)).ok().number("offset");
        min > 200
    });
    let queue_file = cluster.store().join("consumequeue/old/0/00000000000000000000");
    await_that("a queue file to go", WAIT, || !queue_file.exists());
    for round in 0..2 {
        assert_eq!(wire.ask(&min_offset("old", 0)).ok().number("offset"), min);
        assert_eq!(wire.ask(&max_offset("old", 0)).ok().number("offset"), 500 + round);
        for offset in [-1, 0, min - 1] {
            let told = wire.ask(&pull("g", "old", 0, offset));
            assert_eq!(told.code, 21, "{offset}: {told:?}");
            assert_eq!((told.number("nextBeginOffset"), told.number("minOffset")), (min, min), "{offset}");
        }
        let told = wire.ask(&pull("g", "old", 0, min)).ok();
        assert_eq!(told.messages()[0].queue_offset, min);
        assert_eq!(wire.ask(&search("old", 0)).ok().number("offset"), min);
        assert_eq!(wire.ask(&search("old", i64::MAX)).ok().number("offset"), 500 + round);
        let info: serde_json::Value = serde_json::from_slice(&wire.ask(&Ask::new(28)).ok().body).expect("JSON");
        let table = &info["table"];
        assert!(table["commitLogMinOffset"].as_str().unwrap().parse::<u64>().unwrap() >= 4 * 131_072);
        for key in ["commitLogDiskRatio", "consumeQueueDiskRatio"] {
            let ratio: f64 = table[key].as_str().unwrap().parse().unwrap();
            assert!((0.0..=1.0).contains(&ratio), "{key}: {ratio}");
        }
        cluster.kill_broker();
        cluster.start_again();
        wire = Wire::to(cluster.broker_address());
        assert_eq!(wire.ask(&send("old", 0, b"new", "")).ok().number("queueOffset"), 500 + round);
    }
}

#[test]
fn a_kill_in_the_middle_of_a_deletion_loses_nothing_else() {
    let more = [("fileReservedTime", "0"), ("deleteCommitLogFilesInterval", "50")];
    let Some((mut cluster, mut wire)) = start("retention-kill", &more) else { return };
    if !cluster.is_ours() {
        return;
    }
    fill(&mut wire, "t", 600);
    for round in 0..3 {
        let before = log_files(&cluster);
        wire.ask(&Ask::new(DELETE_EXPIRED_COMMITLOG)).ok();
        await_that("a file to go", WAIT, || log_files(&cluster) < before);
        cluster.kill_broker();
        cluster.start_again();
        wire = Wire::to(cluster.broker_address());
        let end = 600 + round;
        let mut next = wire.ask(&min_offset("t", 0)).ok().number("offset");
        assert!(next > 0 && next < end);
        assert_eq!(wire.ask(&max_offset("t", 0)).ok().number("offset"), end);
        while next < end {
            for message in wire.ask(&pull("g", "t", 0, next)).ok().messages() {
                assert_eq!(message.queue_offset, next);
                next += 1;
            }
        }
        assert_eq!(wire.ask(&send("t", 0, b"new", "")).ok().number("queueOffset"), end);
    }
}

/// Fault 27.
#[test]
fn a_full_disk_refuses_sends_only_and_takes_them_again_by_itself() {
    let more = [("cleanFileForciblyEnable", "false")];
    let Some((cluster, mut wire)) = start("retention-full", &more) else { return };
    if !cluster.is_ours() {
        return;
    }
    fill(&mut wire, "t", 100);
    let before = log_files(&cluster);
    // The disk is fuller than that on any machine that builds this.
    update_config(&mut wire, "diskSpaceWarningLevelRatio=10\n");
    let refused = {
        let mut refused = None;
        await_that("sends to be refused", WAIT, || {
            refused = Some(wire.ask(&send("t", 0, b"x", ""))).filter(|told| told.code != 0);
            refused.is_some()
        });
        refused.expect("it was awaited")
    };
    let remark = format!("{refused:?}");
    assert_eq!(refused.code, 14, "{remark}");
    for part in [
        "CL: 0.",
        "CQ: 0.",
        "INDEX: 0.",
        "0.10 (diskSpaceWarningLevelRatio)",
        "00000000000000000000",
        "fileReservedTime",
    ] {
        assert!(remark.contains(part), "{remark}");
    }
    let max = wire.ask(&max_offset("t", 0)).ok().number("offset");
    assert_eq!(wire.ask(&pull("g", "t", 0, max - 1)).ok().messages().len(), 1);
    wire.ask(&heartbeat("c", "g", &[("t", "TAG", "*", 1)])).ok();
    wire.ask(&update_offset("g", "t", 0, 50)).ok();
    assert_eq!(wire.ask(&query_offset("g", "t", 0)).ok().number("offset"), 50);
    update_config(&mut wire, "diskSpaceWarningLevelRatio=90\n");
    await_that("sends to be taken", Duration::from_secs(15), || wire.ask(&send("t", 0, b"x", "")).code == 0);
    assert_eq!(wire.ask(&max_offset("t", 0)).ok().number("offset"), max + 1);
    assert_eq!(log_files(&cluster), before);
}

#[test]
fn what_a_group_has_not_consumed_is_kept_if_asked_for() {
    let more = [("ringmq.retentionKeepUnconsumed", "true"), ("fileReservedTime", "0")];
    let Some((cluster, mut wire)) = start("retention-keep", &more) else { return };
    if !cluster.is_ours() {
        return;
    }
    fill(&mut wire, "t", 500);
    wire.ask(&update_offset("g", "t", 0, 250)).ok();
    wire.ask(&Ask::new(DELETE_EXPIRED_COMMITLOG)).ok();
    let mut min = 0;
    await_that("the queue to follow", WAIT, || {
        min = wire.ask(&min_offset("t", 0)).ok().number("offset");
        min > 150
    });
    std::thread::sleep(Duration::from_millis(2500));
    assert!(wire.ask(&min_offset("t", 0)).ok().number("offset") <= 250);
    assert_eq!(wire.ask(&pull("g", "t", 0, 250)).ok().messages()[0].queue_offset, 250);
    // Deleted with its offsets left, it counts no longer.
    wire.ask(&Ask::new(DELETE_SUBSCRIPTIONGROUP).field("groupName", "g")).ok();
    await_that("the rest to go", WAIT, || log_files(&cluster) == 1);
}
