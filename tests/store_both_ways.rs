//! One store directory, two makers: what ringmq wrote the Java broker reads, and back, after a clean stop and after a kill.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use support::wire::{Ask, Wire, create_topic, max_offset, min_offset, pull, send};
use support::{Client, Cluster, Java, Maker, await_that};

#[test]
fn java_4_and_ringmq_take_over_from_each_other_after_a_stop() {
    if support::only_in_full() {
        return;
    }
    take_over(Java::V4, false);
}

#[test]
fn java_4_and_ringmq_take_over_from_each_other_after_a_kill() {
    take_over(Java::V4, true);
}

#[test]
fn java_5_and_ringmq_take_over_from_each_other_after_a_stop() {
    take_over(Java::V5, false);
}

#[test]
fn java_5_and_ringmq_take_over_from_each_other_after_a_kill() {
    if support::only_in_full() {
        return;
    }
    take_over(Java::V5, true);
}

/// ringmq, Java, ringmq, Java: each finds everything that was acknowledged before, from a new group's start and from an
/// old group's offset, and adds to it. Small files, so that each of them rolls.
fn take_over(java: Java, by_kill: bool) {
    let Some(client) = Client::Java(java).ready() else { return };
    let config =
        [("mappedFileSizeCommitLog", "4194304"), ("mappedFileSizeConsumeQueue", "2000"), ("maxMessageSize", "1048576")];
    let Some(mut cluster) = Cluster::mixed_with("both-ways", Maker::Ringmq, Maker::Ringmq, &config) else { return };
    let all = cluster.directory().join("acks");
    let mut first = 0;
    for round in 0..4 {
        let acks = cluster.directory().join(format!("acks-{round}"));
        let (first_text, acks_text) = (first.to_string(), text(&acks));
        let args = ["--topic", "both", "--acks", &acks_text, "--first", &first_text, "--count", "300", "--queues", "4"];
        println!("{}", client.run(&cluster, "produce", &args));
        first += 300;
        append(&all, &acks);
        check(client, &cluster, &all, &format!("own-{round}"));
        if by_kill {
            cluster.kill_broker();
        } else {
            cluster.stop_broker();
        }
        cluster.hand_over(if round % 2 == 0 { Maker::Java(java) } else { Maker::Ringmq });
        cluster.start_again();
        check(client, &cluster, &all, &format!("other-{round}"));
    }
}

#[test]
fn java_4_takes_a_store_whose_first_files_are_gone() {
    take_over_a_rest(Java::V4, false);
}

#[test]
fn java_5_takes_a_store_whose_first_files_are_gone_after_a_kill() {
    if support::only_in_full() {
        return;
    }
    take_over_a_rest(Java::V5, true);
}

/// ringmq deletes its first log and queue files; Java and then ringmq again say the same of what is left.
fn take_over_a_rest(java: Java, by_kill: bool) {
    let Some(_) = Client::Java(java).ready() else { return };
    let config =
        [("mappedFileSizeCommitLog", "131072"), ("mappedFileSizeConsumeQueue", "1000"), ("maxMessageSize", "65536")];
    let Some(mut cluster) = Cluster::mixed_with("rest", Maker::Ringmq, Maker::Ringmq, &config) else { return };
    if std::env::var_os("RINGMQ_ORACLE").is_some() {
        return;
    }
    let mut wire = Wire::to(cluster.broker_address());
    for topic in ["rest", "once"] {
        wire.ask(&create_topic(topic, 1)).ok();
    }
    wire.ask(&send("once", 0, b"all of its records go", "")).ok();
    for _ in 0..500 {
        wire.ask(&send("rest", 0, &[b'x'; 2000], "")).ok();
    }
    let log = cluster.store().join("commitlog");
    let files = || {
        let mut files: Vec<PathBuf> =
            fs::read_dir(&log).expect("a log").map(|entry| entry.expect("a file").path()).collect();
        files.sort();
        files
    };
    let before = files();
    assert!(before.len() > 6, "{before:?}");
    for path in &before[..4] {
        let file = fs::File::options().write(true).open(path).expect("a file of the store");
        file.set_modified(SystemTime::now() - Duration::from_secs(96 * 3600)).expect("our own file");
    }
    wire.ask(&Ask::new(329)).ok();
    let queue = cluster.store().join("consumequeue/rest/0/00000000000000000000");
    await_that("the first files to go", Duration::from_secs(60), || files() == before[4..] && !queue.exists());
    await_that("the queue to follow", Duration::from_secs(60), || {
        let min = wire.ask(&min_offset("rest", 0)).ok().number("offset");
        let told = wire.ask(&pull("g", "rest", 0, min));
        told.code == 0 && told.messages()[0].queue_offset == min
    });
    let bounds = |cluster: &Cluster| {
        let mut wire = Wire::to(cluster.broker_address());
        let mut number = |ask: Ask| wire.ask(&ask).ok().number("offset");
        let (min, max) = (number(min_offset("rest", 0)), number(max_offset("rest", 0)));
        assert_eq!(wire.ask(&pull("g", "rest", 0, 0)).code, 21);
        let mut next = min;
        while next < max {
            let messages = wire.ask(&pull("g", "rest", 0, next)).ok().messages();
            assert_eq!(messages[0].queue_offset, next);
            next += messages.len() as i64;
        }
        (min, max)
    };
    let (min, mut max) = bounds(&cluster);
    assert!(min > 100 && max == 500, "{min} {max}");
    for maker in [Maker::Java(java), Maker::Ringmq] {
        if by_kill {
            cluster.kill_broker();
        } else {
            cluster.stop_broker();
        }
        cluster.hand_over(maker);
        cluster.start_again();
        assert_eq!(bounds(&cluster), (min, max), "{maker:?}");
        let mut wire = Wire::to(cluster.broker_address());
        assert_eq!(wire.ask(&send("rest", 0, b"more", "")).ok().number("queueOffset"), max);
        max += 1;
        // The place of a queue outlives its records.
        assert_eq!(wire.ask(&max_offset("once", 0)).ok().number("offset"), 1, "{maker:?}");
    }
}

/// A group of its own reads everything from the start.
fn check(client: Client, cluster: &Cluster, acks: &Path, group: &str) {
    let acks = text(acks);
    println!(
        "{}",
        client.run(cluster, "consume", &["--topic", "both", "--group", group, "--acks", &acks, "--queues", "4"])
    );
}

fn append(all: &PathBuf, acks: &Path) {
    let mut lines = fs::read_to_string(all).unwrap_or_default();
    lines.push_str(&fs::read_to_string(acks).expect("the producer wrote it"));
    fs::write(all, lines).expect("a file of ours");
}

fn text(path: &Path) -> String {
    path.to_str().expect("a path of ours").to_owned()
}
