//! Messages found by key, unique key and id with mqadmin 4.9.7 and 5.3.3: on ringmq, and on stores that ringmq and a Java
//! broker hand to each other, after a stop and after a kill.

mod support;

use support::{CLUSTER_NAME, Client, Cluster, Java, Maker};

#[test]
fn java_4_queries() {
    queries(Java::V4);
}

#[test]
fn java_5_queries() {
    queries(Java::V5);
}

/// What a producer is told of a message that it sent.
#[derive(Debug)]
struct Sent {
    key: String,
    unique_id: String,
    offset_id: String,
}

/// mqadmin's commands, each a line of words, and what each printed.
fn mqadmin(client: Client, cluster: &Cluster, commands: &[String]) -> Vec<String> {
    let joined = commands.join(" ; ");
    let mut args = vec!["--"];
    args.extend(joined.split_whitespace());
    let (_, output) = client.start(cluster, "mqadmin", &args).end();
    let printed: Vec<String> = output.split("#### ").skip(1).map(str::to_owned).collect();
    assert!(printed.len() >= commands.len(), "{output}");
    printed
}

fn send(client: Client, cluster: &Cluster, topic: &str, keys: &[&str]) -> Vec<Sent> {
    let commands: Vec<String> = keys.iter().map(|key| format!("@send {topic} {key}")).collect();
    keys.iter().zip(mqadmin(client, cluster, &commands)).map(|(key, printed)| sent(key, &printed)).collect()
}

fn sent(key: &str, printed: &str) -> Sent {
    let line =
        printed.lines().find_map(|line| line.split_once("SENT ")).unwrap_or_else(|| panic!("not sent: {printed}"));
    let (unique_id, offset_id) = line.1.split_once(' ').expect("two ids");
    Sent { key: key.to_owned(), unique_id: unique_id.to_owned(), offset_id: offset_id.to_owned() }
}

/// Each message by its keys, by its unique key and by its id. The tool's own command for unique keys works once in a
/// process, so all but the last are asked for by the client behind it.
fn check(client: Client, java: Java, cluster: &Cluster, topic: &str, all: &[Sent]) {
    let mut commands = Vec::new();
    let mut wanted = Vec::new();
    let mut ask = |command: String, want: &str| {
        commands.push(command);
        wanted.push(want.to_owned());
    };
    ask(format!("@await {topic}"), "");
    for sent in all {
        let keys = sent.key.replace('+', " ");
        for key in keys.split(' ') {
            ask(format!("queryMsgByKey -t {topic} -k {key}"), &sent.unique_id);
        }
        ask(format!("@view {topic} {}", sent.unique_id), &format!("VIEWED {keys}"));
        ask(format!("@view {topic} {}", sent.offset_id), &format!("VIEWED {keys}"));
    }
    let last = all.last().expect("something was sent");
    let topic_option = if java == Java::V4 { String::new() } else { format!("-t {topic}") };
    ask(format!("queryMsgById {topic_option} -i {}", last.offset_id), &last.unique_id);
    let keys = format!("Keys: [{}]", last.key.replace('+', " "));
    ask(format!("queryMsgByUniqueKey -t {topic} -i {}", last.unique_id), &keys);
    for ((command, wanted), printed) in commands.iter().zip(wanted).zip(mqadmin(client, cluster, &commands)) {
        // The first line repeats the command, and mqadmin pads with blanks.
        let printed = printed.split_once('\n').map_or("", |(_, printed)| printed);
        let words = printed.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&wanted), "{command}: no `{wanted}` in\n{printed}");
        assert!(!printed.contains("Exception"), "{command}:\n{printed}");
    }
}

fn queries(java: Java) {
    let Some(client) = Client::Java(java).ready() else { return };
    let Some(cluster) = Cluster::start_with("java-query", &[("traceTopicEnable", "true")]) else { return };
    let make = [format!("updateTopic -c {CLUSTER_NAME} -t found -r 1 -w 1")];
    mqadmin(client, &cluster, &make);
    let all = send(client, &cluster, "found", &["one", "first+second+third", "one", "AaAa", "BBBB", "AaBB"]);
    check(client, java, &cluster, "found", &all);
    let [one, .., strange] = &all[..] else { unreachable!("six were sent") };
    let printed = mqadmin(
        client,
        &cluster,
        &[
            "queryMsgByKey -t found -k one".to_owned(),
            format!("queryMsgByKey -t found -k {}", strange.key),
            "queryMsgByKey -t found -k nobody".to_owned(),
            format!("queryMsgByUniqueKey -t found -i {}", one.unique_id.replace('0', "1")),
            "@traced found followed".to_owned(),
            format!("queryCq -t found -q 0 -i 0 -c 10 -b {}", cluster.broker_address()),
        ],
    );
    assert!(printed[0].contains(&all[0].unique_id) && printed[0].contains(&all[2].unique_id), "{}", printed[0]);
    assert!(!printed[1].contains(&all[3].unique_id) && !printed[1].contains(&all[4].unique_id), "{}", printed[1]);
    assert!(printed[2].contains("CODE: 208") || printed[2].contains("no message"), "{}", printed[2]);
    assert!(printed[3].contains("CODE: 208") || printed[3].contains("no message"), "{}", printed[3]);
    assert!(!printed[5].contains("Exception") && printed[5].contains("physicOffset"), "{}", printed[5]);
    let traced = sent("followed", &printed[4]);
    let printed = mqadmin(client, &cluster, &[format!("queryMsgTraceById -i {}", traced.unique_id)]);
    assert!(printed[0].contains("Pub") && printed[0].contains("success"), "{}", printed[0]);
}

#[test]
fn java_4_finds_what_ringmq_indexed_and_back_after_a_stop() {
    if support::only_in_full() {
        return;
    }
    take_over(Java::V4, false);
}

#[test]
fn java_4_finds_what_ringmq_indexed_and_back_after_a_kill() {
    take_over(Java::V4, true);
}

#[test]
fn java_5_finds_what_ringmq_indexed_and_back_after_a_stop() {
    if support::only_in_full() {
        return;
    }
    take_over(Java::V5, false);
}

#[test]
fn java_5_finds_what_ringmq_indexed_and_back_after_a_kill() {
    if support::only_in_full() {
        return;
    }
    take_over(Java::V5, true);
}

/// ringmq, Java, ringmq, Java: each finds everything by key that was sent before, and adds to it. Small files, so that
/// index files roll.
fn take_over(java: Java, by_kill: bool) {
    let Some(client) = Client::Java(java).ready() else { return };
    let config = [
        ("mappedFileSizeCommitLog", "4194304"),
        ("maxMessageSize", "1048576"),
        ("maxHashSlotNum", "100"),
        ("maxIndexNum", "300"),
    ];
    let Some(mut cluster) = Cluster::mixed_with("java-index", Maker::Ringmq, Maker::Ringmq, &config) else { return };
    let mut all = Vec::new();
    for round in 0..4 {
        let acks = cluster.directory().join(format!("acks-{round}"));
        let (first, acks) = ((200 * round).to_string(), acks.to_str().expect("a path of ours").to_owned());
        let args = ["--topic", "both", "--acks", &acks, "--first", &first, "--count", "200", "--queues", "4"];
        println!("{}", client.run(&cluster, "produce", &args));
        let keys = [format!("r{round}+shared{round}"), format!("s{round}")];
        all.extend(send(client, &cluster, "both", &[&keys[0], &keys[1]]));
        check(client, java, &cluster, "both", &all[2 * round..]);
        if by_kill {
            cluster.kill_broker();
        } else {
            cluster.stop_broker();
        }
        cluster.hand_over(if round % 2 == 0 { Maker::Java(java) } else { Maker::Ringmq });
        cluster.start_again();
        check(client, java, &cluster, "both", &all);
        let keys: Vec<String> =
            (0..=round).map(|round| format!("queryMsgByKey -t both -k key-{}", 200 * round + 7)).collect();
        for (command, printed) in keys.iter().zip(mqadmin(client, &cluster, &keys)) {
            let rows =
                printed.lines().skip(1).filter(|line| line.split_whitespace().count() == 3 && !line.contains('#'));
            assert_eq!(rows.count(), 1, "{command}:\n{printed}");
        }
    }
    let files = std::fs::read_dir(cluster.store().join("index")).expect("index files").count();
    assert!(files >= 4, "{files} index files for some 1600 keys");
}
