//! The official Java client 4.9.7 against each flush mode: everything comes out once, whole.

mod support;

use support::{Client, Cluster, Java, Maker};

fn roundtrip(name: &str, config: &[(&str, &str)]) {
    let Some(client) = Client::Java(Java::V4).ready() else { return };
    // Small files, so that the log rolls, and buffers are lent and come back.
    let config: Vec<_> = [("mappedFileSizeCommitLog", "8388608")].iter().chain(config).copied().collect();
    let Some(mut cluster) = Cluster::start_with(name, &config) else { return };
    let args = ["--topic", "flush", "--group", "flush", "--count", "2000", "--big", "4", "--timeout", "240"];
    println!("{}", client.run(&cluster, "roundtrip", &args));
    if cluster.is_ours() {
        // What is there after a stop is what was there before.
        cluster.stop_broker();
        cluster.start_again();
        println!("{}", client.run(&cluster, "resume", &["--topic", "flush", "--group", "flush"]));
    }
}

#[test]
fn java_4_roundtrip_with_synchronous_flush() {
    roundtrip("java-flush-sync", &[("flushDiskType", "SYNC_FLUSH")]);
}

#[test]
fn java_4_roundtrip_with_the_transient_store_pool() {
    roundtrip("java-flush-pool", &[("transientStorePoolEnable", "true"), ("transientStorePoolSize", "2")]);
}

#[test]
fn java_4_roundtrip_with_a_pool_that_pushes_back() {
    let config = [
        ("transientStorePoolEnable", "true"),
        ("transientStorePoolSize", "2"),
        ("fastFailIfNoBufferInStorePool", "true"),
    ];
    roundtrip("java-flush-fast-fail", &config);
}

/// ringmq is killed in the mode, the Java broker 4.9.7 opens the store and works in the same mode, ringmq takes it back.
/// Returns without a word where there is no Java.
fn take_over(name: &str, mode: &[(&str, &str)], keeps_all: bool) {
    let Some(client) = Client::Java(Java::V4).ready() else { return };
    let small =
        [("mappedFileSizeCommitLog", "4194304"), ("mappedFileSizeConsumeQueue", "2000"), ("maxMessageSize", "1048576")];
    let config: Vec<_> = small.iter().chain(mode).copied().collect();
    let Some(mut cluster) = Cluster::mixed_with(name, Maker::Ringmq, Maker::Ringmq, &config) else { return };
    let acks_of =
        |cluster: &Cluster, topic: &str| cluster.directory().join(topic).to_str().expect("a path of ours").to_owned();
    let produce = |cluster: &Cluster, topic: &str| {
        let acks = acks_of(cluster, topic);
        let args = ["--topic", topic, "--acks", &acks, "--count", "300", "--queues", "4"];
        println!("{}", client.run(cluster, "produce", &args));
    };
    let consume = |cluster: &Cluster, topic: &str, group: &str| {
        let acks = acks_of(cluster, topic);
        let args = ["--topic", topic, "--group", group, "--acks", &acks, "--queues", "4"];
        println!("{}", client.run(cluster, "consume", &args));
    };
    produce(&cluster, "ours");
    cluster.kill_broker();
    cluster.hand_over(Maker::Java(Java::V4));
    cluster.start_again();
    if keeps_all {
        consume(&cluster, "ours", "java");
    }
    produce(&cluster, "javas");
    consume(&cluster, "javas", "java");
    cluster.stop_broker();
    cluster.hand_over(Maker::Ringmq);
    cluster.start_again();
    if keeps_all {
        consume(&cluster, "ours", "ringmq");
    }
    consume(&cluster, "javas", "ringmq");
}

#[test]
fn java_4_takes_over_a_killed_store_with_synchronous_flush() {
    take_over("take-over-sync", &[("flushDiskType", "SYNC_FLUSH")], true);
}

#[test]
fn java_4_takes_over_a_killed_store_with_a_pool() {
    if support::only_in_full() {
        return;
    }
    take_over("take-over-pool", &[("transientStorePoolEnable", "true"), ("transientStorePoolSize", "3")], false);
}

#[test]
fn java_4_mqadmin_shows_and_changes_the_keys() {
    mqadmin(Java::V4);
}

#[test]
fn java_5_mqadmin_shows_and_changes_the_keys() {
    mqadmin(Java::V5);
}

fn mqadmin(java: Java) {
    let Some(client) = Client::Java(java).ready() else { return };
    let Some(cluster) = Cluster::start("java-flush-admin") else { return };
    let broker = cluster.broker_address();
    let set = format!("updateBrokerConfig -b {broker} -k");
    let commands = format!(
        "getBrokerConfig -b {broker} ; {set} flushIntervalCommitLog -v 77 ; getBrokerConfig -b {broker} ; \
         {set} rocketmqHome -v /x"
    );
    let mut args = vec!["--"];
    args.extend(commands.split_whitespace());
    let (_, output) = client.start(&cluster, "mqadmin", &args).end();
    let values: Vec<&str> = output
        .lines()
        .filter(|line| line.trim_start().starts_with("flushIntervalCommitLog"))
        .filter_map(|line| line.split('=').next_back())
        .map(str::trim)
        .collect();
    assert_eq!(values, ["500", "77"], "{output}");
    assert!(output.contains(&format!("update broker config success, {broker}")), "{output}");
    assert!(output.contains("Can not update config in black list."), "{output}");
}
