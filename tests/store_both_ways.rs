//! One store directory, two makers: what ringmq wrote the Java broker reads, and back, after a clean stop and after a kill.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use support::{Client, Cluster, Java, Maker};

#[test]
fn java_4_and_ringmq_take_over_from_each_other_after_a_stop() {
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
