//! The official Java clients 4.9.7 and 5.3.3, and mqadmin of both, against a whole node; and nodes of different makers
//! beside one another. See `support` for what the environment can change.

mod support;

use std::time::Duration;
use support::{BROKER_NAME, CLUSTER_NAME, Client, Cluster, Java, Maker, await_that, is_full, skip};

#[test]
fn java_4_roundtrip() {
    roundtrip(Java::V4);
}

#[test]
fn java_5_roundtrip() {
    roundtrip(Java::V5);
}

/// The main job: everything comes out once, whole, with its keys, tag and properties.
fn roundtrip(java: Java) {
    let Some(client) = Client::Java(java).ready() else { return };
    let Some(cluster) = Cluster::start("java-roundtrip") else { return };
    let (count, big, timeout) = if is_full() { ("10000", "20", "1200") } else { ("2000", "4", "240") };
    let args = ["--topic", "roundtrip", "--group", "roundtrip", "--count", count, "--big", big, "--timeout", timeout];
    println!("{}", client.run(&cluster, "roundtrip", &args));
}

#[test]
fn java_4_features() {
    features(Java::V4);
}

#[test]
fn java_5_features() {
    features(Java::V5);
}

fn features(java: Java) {
    let Some(client) = Client::Java(java).ready() else { return };
    let Some(cluster) = Cluster::start("java-features") else { return };
    println!("{}", client.run(&cluster, "features", &["--topic", "features"]));
}

#[test]
fn java_4_rebalance_by_notice() {
    rebalance_by_notice(Java::V4);
}

#[test]
fn java_5_rebalance_by_notice() {
    rebalance_by_notice(Java::V5);
}

/// A member joins and leaves. The periodic rebalance of the client is off, so the broker's notice must do it.
fn rebalance_by_notice(java: Java) {
    let Some(client) = Client::Java(java).ready() else { return };
    let Some(cluster) = Cluster::start("java-rebalance") else { return };
    println!("{}", client.run(&cluster, "rebalance", &["--topic", "rebalance", "--group", "rebalance"]));
}

#[test]
fn java_4_acknowledged_messages_survive_a_kill() {
    acknowledged_messages_survive_a_kill(Java::V4);
}

#[test]
fn java_5_acknowledged_messages_survive_a_kill() {
    acknowledged_messages_survive_a_kill(Java::V5);
}

/// The process is killed in the middle of the stream; what it had acknowledged is there afterwards.
fn acknowledged_messages_survive_a_kill(java: Java) {
    let Some(client) = Client::Java(java).ready() else { return };
    let Some(mut cluster) = Cluster::start("java-kill") else { return };
    if !cluster.is_ours() {
        return skip("the broker is not ours to kill");
    }
    let acks = cluster.directory().join("acks");
    let acks = acks.to_str().expect("a path of ours");
    let args = ["--topic", "kill", "--acks", acks, "--count", "20000", "--threads", "4"];
    let mut producer = client.start(&cluster, "produce", &args);
    await_that("400 acknowledgements", Duration::from_secs(120), || {
        assert!(producer.is_running(), "the producer ended before the kill");
        std::fs::read_to_string(acks).is_ok_and(|text| text.lines().count() >= 400)
    });
    cluster.kill_broker();
    let (result, _) = producer.end();
    assert_eq!(result["stopped_by_failure"], true, "{result}");
    cluster.start_again();
    println!("{}", client.run(&cluster, "consume", &["--topic", "kill", "--group", "reader", "--acks", acks]));

    // The log goes on behind what was recovered, and the group's offsets survive a stop.
    cluster.stop_broker();
    cluster.start_again();
    println!("{}", client.run(&cluster, "resume", &["--topic", "kill", "--group", "reader"]));
}

#[test]
fn java_4_stop_and_start_lose_nothing() {
    stop_and_start_lose_nothing(Java::V4);
}

#[test]
fn java_5_stop_and_start_lose_nothing() {
    stop_and_start_lose_nothing(Java::V5);
}

/// Not the messages, not the topic, not the offsets.
fn stop_and_start_lose_nothing(java: Java) {
    let Some(client) = Client::Java(java).ready() else { return };
    let Some(mut cluster) = Cluster::start("java-stop") else { return };
    if !cluster.is_ours() {
        return skip("the broker is not ours to stop");
    }
    let acks = cluster.directory().join("acks");
    let acks = acks.to_str().expect("a path of ours");
    let args = ["--topic", "stop", "--acks", acks, "--count", "400", "--big", "2"];
    println!("{}", client.run(&cluster, "produce", &args));
    println!("{}", client.run(&cluster, "consume", &["--topic", "stop", "--group", "before", "--acks", acks]));
    cluster.stop_broker();
    cluster.start_again();
    println!("{}", client.run(&cluster, "consume", &["--topic", "stop", "--group", "after", "--acks", acks]));
    println!("{}", client.run(&cluster, "resume", &["--topic", "stop", "--group", "before"]));
}

#[test]
fn java_4_mqadmin() {
    mqadmin(Java::V4);
}

#[test]
fn java_5_mqadmin() {
    mqadmin(Java::V5);
}

/// mqadmin ends with 0 whatever happens, so what it printed is read.
fn mqadmin(java: Java) {
    let Some(client) = Client::Java(java).ready() else { return };
    let Some(cluster) = Cluster::start("java-mqadmin") else { return };
    let broker = cluster.broker_address();
    let commands = format!(
        "updateTopic -c {CLUSTER_NAME} -t made -r 8 -w 8 ; updateTopic -b {broker} -t gone -r 2 -w 2 ; \
         updateSubGroup -c {CLUSTER_NAME} -g readers ; @messages made readers 80 ; \
         clusterList ; brokerStatus -b {broker} ; brokerStatus -c {CLUSTER_NAME} ; \
         topicList ; topicList -c ; topicRoute -t made ; topicStatus -t made ; \
         consumerProgress -g readers ; consumerProgress ; \
         statsAll ; statsAll -t made ; brokerConsumeStats -b {broker} ; producer -b {broker} ; cleanUnusedTopic -b {broker} ; \
         updateTopic -c {CLUSTER_NAME} -t made -r 12 -w 12 ; topicRoute -t made ; \
         deleteTopic -c {CLUSTER_NAME} -t gone ; topicList ; topicRoute -t gone"
    );
    let mut args = vec!["--"];
    args.extend(commands.split_whitespace());
    let (_, output) = client.start(&cluster, "mqadmin", &args).end();
    let printed = Printed::of(&output);

    let created = format!("create topic to {broker} success.");
    printed.has_text("updateTopic", 0, &created);
    printed.has_text("updateTopic", 1, &created);
    printed.has_text("updateSubGroup", 0, &format!("create subscription group to {broker} success."));
    printed.has_row("clusterList", 0, &[CLUSTER_NAME, BROKER_NAME, "0", broker]);
    for key in ["brokerVersionDesc", "runtime", "putTps", "msgPutTotalTodayNow", "bootTimestamp"] {
        printed.has_row("brokerStatus", 0, &[key, ":"]);
        printed.has_text("brokerStatus", 1, key);
    }
    for topic in ["made", "gone", "%RETRY%readers", "TBW102"] {
        printed.has_row("topicList", 0, &[topic]);
    }
    printed.has_row("topicList", 1, &[CLUSTER_NAME, "made", "readers"]);
    for part in ["\"readQueueNums\":8", "\"writeQueueNums\":8", "\"perm\":6", BROKER_NAME, broker] {
        printed.has_text("topicRoute", 0, part);
    }
    for queue in 0..8 {
        printed.has_row("topicStatus", 0, &[BROKER_NAME, &queue.to_string(), "0", "10"]);
        printed.has_row("consumerProgress", 0, &["made", BROKER_NAME, &queue.to_string(), "10", "10", "0"]);
    }
    printed.has_row("consumerProgress", 1, &["readers", "1", "_", "PUSH", "CLUSTERING", "_", "0"]);
    for queue in 0..8 {
        let row = ["made", "readers", BROKER_NAME, &queue.to_string(), "10", "10", "0"];
        printed.has_row("brokerConsumeStats", 0, &row);
    }
    // The rates of a minute come with its first sample.
    for nth in 0..2 {
        printed.has_row("statsAll", nth, &["made", "readers", "0"]);
    }
    printed.has_row("statsAll", 0, &["gone", "0", "0.00", "0", "NO_CONSUMER"]);
    printed.has_text("producer", 0, "producer group");
    printed.has_text("cleanUnusedTopic", 0, "success");
    printed.has_text("topicRoute", 1, "\"writeQueueNums\":12");
    printed.has_text("deleteTopic", 0, &format!("delete topic [gone] from cluster [{CLUSTER_NAME}] success."));
    printed.has_text("deleteTopic", 0, "delete topic [gone] from NameServer success.");
    assert!(!has_row(printed.nth("topicList", 2), &["gone"]), "{output}");
    // The last command must fail, which also shows that a failure before it would be seen.
    printed.has_text("topicRoute", 2, "CODE: 17");
    let (before, _) = output.split_once("#### topicRoute -t gone").expect("the last command");
    assert!(!before.contains("Exception"), "{before}");
}

/// What each command of mqadmin printed, in order.
struct Printed(Vec<(String, String)>);

impl Printed {
    fn of(output: &str) -> Printed {
        let mut sections: Vec<(String, String)> = Vec::new();
        for line in output.lines() {
            // Some commands of 4.9 leave their last line open.
            let (text, command) = match line.split_once("#### ") {
                Some((text, command)) => (text, Some(command)),
                None => (line, None),
            };
            if let Some((_, section)) = sections.last_mut() {
                section.push_str(text);
                section.push('\n');
            }
            if let Some(command) = command {
                sections.push((command.to_owned(), String::new()));
            }
        }
        Printed(sections)
    }

    /// From the `nth` run of a command.
    fn nth(&self, command: &str, nth: usize) -> &str {
        let mut runs = self.0.iter().filter(|(is, _)| is.split(' ').next() == Some(command));
        &runs.nth(nth).unwrap_or_else(|| panic!("{command} did not run {} times", nth + 1)).1
    }

    fn has_text(&self, command: &str, nth: usize, text: &str) {
        let printed = self.nth(command, nth);
        assert!(printed.contains(text), "{command}: no `{text}` in\n{printed}");
    }

    fn has_row(&self, command: &str, nth: usize, words: &[&str]) {
        let printed = self.nth(command, nth);
        assert!(has_row(printed, words), "{command}: no row {words:?} in\n{printed}");
    }
}

/// Some line begins with these words; `_` stands for any.
fn has_row(text: &str, words: &[&str]) -> bool {
    text.lines().any(|line| {
        let row: Vec<&str> = line.split_whitespace().collect();
        row.len() >= words.len() && words.iter().zip(&row).all(|(want, is)| *want == "_" || want == is)
    })
}

#[test]
fn java_4_namesrv_takes_our_broker() {
    nodes_of_two_makers(Java::V4, Maker::Java(Java::V4), Maker::Ringmq);
}

#[test]
fn java_5_namesrv_takes_our_broker() {
    nodes_of_two_makers(Java::V5, Maker::Java(Java::V5), Maker::Ringmq);
}

#[test]
fn java_4_broker_registers_with_us() {
    nodes_of_two_makers(Java::V4, Maker::Ringmq, Maker::Java(Java::V4));
}

#[test]
fn java_5_broker_registers_with_us() {
    nodes_of_two_makers(Java::V5, Maker::Ringmq, Maker::Java(Java::V5));
}

/// The broker registers, serves through the routes that the name server gives, and is gone from it after a stop.
fn nodes_of_two_makers(java: Java, namesrv: Maker, broker: Maker) {
    let Some(client) = Client::Java(java).ready() else { return };
    let Some(mut cluster) = Cluster::mixed("java-mixed", namesrv, broker) else { return };
    let args = ["--topic", "mixed", "--group", "mixed", "--count", "200", "--big", "1"];
    println!("{}", client.run(&cluster, "roundtrip", &args));
    let (_, output) = client.start(&cluster, "mqadmin", &["--", "clusterList"]).end();
    assert!(has_row(&output, &[CLUSTER_NAME, BROKER_NAME, "0", cluster.broker_address()]), "{output}");
    cluster.stop_broker();
    let (_, output) = client.start(&cluster, "mqadmin", &["--", "topicRoute", "-t", "mixed"]).end();
    assert!(output.contains("CODE: 17"), "{output}");
}
