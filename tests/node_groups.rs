//! Who hears of whom, and when, by raw frames.

mod support;

use std::time::Duration;
use support::Cluster;
use support::wire::{Ask, Wire, create_topic, pull, query_offset, send, update_offset};

const NOTIFY_CONSUMER_IDS_CHANGED: i32 = 40;

fn heartbeat(client: &str, group: &str) -> Ask {
    Ask::new(34).body(format!(
        r#"{{"clientID":"{client}","consumerDataSet":[{{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"{group}","messageModel":"CLUSTERING","subscriptionDataSet":[{{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*","subVersion":1,"tagsSet":[],"topic":"T"}}],"unitMode":false}}],"producerDataSet":[]}}"#
    ))
}

/// A Java client that hears of its own arrival while its heartbeat is still out skips the next one, and its pulls are
/// refused with 25 for half a minute. A group that is new takes the longest to answer, so many new ones are tried.
#[test]
fn nobody_hears_of_an_arrival_before_its_heartbeat_is_answered() {
    let Some(cluster) = Cluster::start("groups-notice") else { return };
    for round in 0..40 {
        let group = format!("g{round}");
        let mut first = Wire::to(cluster.broker_address());
        let opaque = first.send(&heartbeat("first", &group));
        let told = first.next(Duration::from_secs(10)).expect("an answer");
        assert_eq!((told.code, told.opaque), (0, opaque), "round {round}: {told:?}");
        let notice = first.next(Duration::from_secs(10)).expect("the notice");
        assert_eq!(notice.code, NOTIFY_CONSUMER_IDS_CHANGED, "{notice:?}");

        let mut second = Wire::to(cluster.broker_address());
        let opaque = second.send(&heartbeat("second", &group));
        let told = second.next(Duration::from_secs(10)).expect("an answer");
        assert_eq!((told.code, told.opaque), (0, opaque), "round {round}: {told:?}");
        assert_eq!(first.next(Duration::from_secs(10)).expect("the notice").code, NOTIFY_CONSUMER_IDS_CHANGED);
        assert_eq!(second.next(Duration::from_secs(10)).expect("the notice").code, NOTIFY_CONSUMER_IDS_CHANGED);
        drop(second);
        assert_eq!(first.next(Duration::from_secs(10)).expect("the notice").code, NOTIFY_CONSUMER_IDS_CHANGED);
    }
}

/// One instance has many groups.
#[test]
fn an_ill_named_group_takes_no_other_with_it() {
    let Some(cluster) = Cluster::start("groups-names") else { return };
    let mut wire = Wire::to(cluster.broker_address());
    wire.ask(&create_topic("T", 1)).ok();
    wire.ask(&send("T", 0, b"x", "")).ok();
    let (g120, g121, g255, g256) = ("g".repeat(120), "g".repeat(121), "h".repeat(255), "i".repeat(256));
    let consumer = |group: &str| {
        format!(
            r#"{{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"{group}","messageModel":"CLUSTERING","subscriptionDataSet":[{{"subString":"*","subVersion":1,"topic":"T"}}],"unitMode":false}}"#
        )
    };
    let beat = |consumers: &[&str], producers: &[&str]| {
        let consumers: Vec<String> = consumers.iter().map(|group| consumer(group)).collect();
        let producers: Vec<String> = producers.iter().map(|group| format!(r#"{{"groupName":"{group}"}}"#)).collect();
        Ask::new(34).body(format!(
            r#"{{"clientID":"c","consumerDataSet":[{}],"producerDataSet":[{}]}}"#,
            consumers.join(","),
            producers.join(",")
        ))
    };
    wire.ask(&beat(&["good", &g121, &g120, "a/b", ""], &["p", &g255, &g256])).ok();
    let mut members = |group: &str| {
        let list = wire.ask(&Ask::new(38).field("consumerGroup", group));
        (list.code, String::from_utf8_lossy(&list.body).contains("\"c\""))
    };
    for group in ["good", &g120] {
        assert_eq!(members(group), (0, true), "{group}");
    }
    for group in [&*g121, "a/b", ""] {
        assert_ne!(members(group).0, 0, "{group}");
    }
    let by_heartbeat = |group: &str| pull(group, "T", 0, 0).field("sysFlag", 0).field("subVersion", 1);
    for group in ["good", &g120] {
        assert_eq!(wire.ask(&by_heartbeat(group)).ok().messages().len(), 1, "{group}");
    }
    for (group, want) in [("p", 0), (&*g255, 0), (&*g256, 1)] {
        assert_eq!(wire.ask(&Ask::new(204).field("producerGroup", group).field("topic", "T")).code, want, "{group}");
    }
    for group in [&*g121, "a/b"] {
        assert_eq!(wire.ask(&beat(&[group], &[])).code, 29, "{group}: nothing is left of it");
    }
}

/// Java puts its clock where a subscription has no version; a null leaves what a group has by default.
#[test]
fn absent_members_are_what_java_takes_for_them() {
    let Some(cluster) = Cluster::start("groups-absent") else { return };
    let mut wire = Wire::to(cluster.broker_address());
    wire.ask(&create_topic("T", 1)).ok();
    wire.ask(&send("T", 0, b"x", "")).ok();
    for (group, version, want) in [("g1", "", 0), ("g2", r#""subVersion":null,"#, 0), ("g3", r#""subVersion":0,"#, 25)]
    {
        let body = format!(
            r#"{{"clientID":"c","consumerDataSet":[{{"groupName":"{group}","messageModel":"CLUSTERING","subscriptionDataSet":[{{{version}"subString":"*","topic":"T"}}]}}]}}"#
        );
        wire.ask(&Ask::new(34).body(body)).ok();
        let told = wire.ask(&pull(group, "T", 0, 0).field("sysFlag", 0).field("subVersion", 1_500_000_000_000i64));
        assert_eq!(told.code, want, "{group}");
    }
    wire.ask(&Ask::new(200).body(
        r#"{"groupName":"nulls","consumeEnable":null,"consumeBroadcastEnable":null,"retryMaxTimes":null,"retryQueueNums":null,"brokerId":null}"#,
    ))
    .ok();
    let all = wire.ask(&Ask::new(201)).ok();
    let all: serde_json::Value = serde_json::from_slice(&all.body).unwrap();
    let group = &all["subscriptionGroupTable"]["nulls"];
    assert_eq!(
        (&group["consumeEnable"], &group["consumeBroadcastEnable"], &group["retryMaxTimes"], &group["retryQueueNums"]),
        (&true.into(), &true.into(), &16.into(), &1.into()),
        "{group}"
    );
    // A negative offset is none, whoever has committed it.
    wire.ask(&update_offset("nulls", "T", 0, -5)).ok();
    assert_eq!(wire.ask(&query_offset("nulls", "T", 0)).ok().number("offset"), 0);
}

/// Sends to new topics on one connection share a write of topics.json, and one to a known topic does not wait for them.
#[test]
fn new_topics_in_one_pipeline_do_not_wait_for_each_other() {
    let Some(cluster) = Cluster::start("groups-topics") else { return };
    let mut wire = Wire::to(cluster.broker_address());
    wire.ask(&create_topic("known", 1)).ok();
    let topics = (0..150).map(|index| format!("new{index}")).chain(["known".to_owned()]);
    let opaques: Vec<i32> = topics.map(|topic| wire.send(&send(&topic, 0, b"x", ""))).collect();
    for opaque in opaques {
        wire.answer(opaque).ok();
    }
    // Two to the same new topic keep their order.
    let opaques: Vec<i32> = (0..20).map(|_| wire.send(&send("ordered", 0, b"x", ""))).collect();
    for (index, opaque) in opaques.into_iter().enumerate() {
        assert_eq!(wire.answer(opaque).ok().number("queueOffset"), index as i64);
    }
}

/// A record with these would end a Java 5.3 broker's recovery, or give a queue offsets of the sender's choice.
#[test]
fn the_brokers_own_marks_are_refused() {
    let Some(cluster) = Cluster::start("groups-marks") else { return };
    let mut wire = Wire::to(cluster.broker_address());
    wire.ask(&create_topic("T", 1)).ok();
    for name in ["INNER_NUM", "INNER_BASE", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"] {
        let told = wire.ask(&send("T", 0, b"x", &format!("{name}\u{1}q\u{2}")));
        assert_eq!(told.code, 13, "{name}: {told:?}");
    }
    assert_eq!(wire.ask(&send("T", 0, b"x", "a\u{1}b\u{2}")).ok().number("queueOffset"), 0);
}

/// The kernel gives a killed process's ports back a moment after its end.
#[test]
fn a_killed_node_starts_again_at_once() {
    let Some(mut cluster) = Cluster::start("groups-rebind") else { return };
    if !cluster.is_ours() {
        return support::skip("the broker is not ours to kill");
    }
    for _ in 0..10 {
        let wires: Vec<Wire> = (0..20).map(|_| Wire::to(cluster.broker_address())).collect();
        cluster.kill_broker();
        cluster.start_again();
        drop(wires);
    }
}
