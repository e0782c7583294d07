//! What mqadmin and the admin classes of clients ask a broker beside topics and groups, by raw frames.

mod support;

use serde_json::Value;
use std::time::Duration;
use support::wire::{Ask, Told, Wire, create_topic, delete_topic, heartbeat, pull, send, update_offset};
use support::{CLUSTER_NAME, Cluster, await_that};

/// Only ends a hang: items are sampled every 10 s.
const SAMPLED_MAX: Duration = Duration::from_secs(60);

fn start(name: &str) -> Option<(Cluster, Wire)> {
    let cluster = Cluster::start_with(name, &[("mappedFileSizeCommitLog", "67108864")])?;
    let wire = Wire::to(cluster.broker_address());
    Some((cluster, wire))
}

#[track_caller]
fn json(told: Told) -> Value {
    let body = told.ok().body;
    serde_json::from_slice(&body).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&body)))
}

fn stats(name: &str, key: &str) -> Ask {
    Ask::new(315).field("statsName", name).field("statsKey", key)
}

#[test]
fn what_topics_got_and_groups_took_is_counted() {
    let Some((_cluster, mut wire)) = start("admin-stats") else { return };
    wire.ask(&create_topic("counted", 2)).ok();
    for queue_id in [0, 0, 0, 1] {
        wire.ask(&send("counted", queue_id, b"body", "")).ok();
    }
    wire.ask(&send("counted", 1, b"later", "DELAY\u{1}18\u{2}")).ok();
    wire.ask(&heartbeat("client", "takers", &[("counted", "TAG", "*", 1)])).ok();
    let told = wire.ask(&pull("takers", "counted", 0, 0)).ok();
    assert_eq!(told.messages().len(), 3);
    let offset = told.messages()[0].log_offset;
    let back = Ask::new(36).field("group", "takers").field("offset", offset).field("delayLevel", 3);
    wire.ask(&back.field("originTopic", "counted")).ok();

    let mut minute = |name: &str, key: &str| {
        let told = json(wire.ask(&stats(name, key)));
        let parts = told.as_object().expect("an object");
        assert_eq!(parts.keys().collect::<Vec<_>>(), ["statsDay", "statsHour", "statsMinute"]);
        told["statsMinute"].clone()
    };
    await_that("a sample", SAMPLED_MAX, || minute("TOPIC_PUT_NUMS", "counted")["sum"] == 4);
    let puts = minute("TOPIC_PUT_NUMS", "counted");
    assert!(puts["tps"].as_f64().unwrap() > 0.0, "{puts}");
    assert_eq!(puts["avgpt"], 1.0);
    for (name, key, want) in [
        ("GROUP_GET_NUMS", "counted@takers", 3),
        ("SNDBCK_PUT_NUMS", "counted@takers", 1),
        // The delayed one and the one that was sent back.
        ("TOPIC_PUT_NUMS", "SCHEDULE_TOPIC_XXXX", 2),
        ("BROKER_PUT_NUMS", CLUSTER_NAME, 6),
        ("BROKER_GET_NUMS", CLUSTER_NAME, 3),
    ] {
        assert_eq!(minute(name, key)["sum"], want, "{name} {key}");
    }
    assert!(minute("TOPIC_PUT_SIZE", "counted")["avgpt"].as_f64().unwrap() > 90.0);
    assert!(minute("GROUP_GET_SIZE", "counted@takers")["sum"].as_i64().unwrap() > 270);

    // Its keys are objects, as Java's.
    let told = String::from_utf8(wire.ask(&Ask::new(202).field("topic", "counted")).ok().body).unwrap();
    let (_, tps) = told.split_once("\"topicPutTps\":").expect("in every answer");
    assert!(!tps.starts_with("0.0}"), "{told}");
    for (name, key) in [("TOPIC_PUT_NUMS", "none"), ("GROUP_GET_NUMS", "counted"), ("NONE", "counted")] {
        let told = wire.ask(&stats(name, key));
        assert_eq!((told.code, told.remark), (1, format!("The stats <{name}> <{key}> not exist")));
    }
    for ask in [Ask::new(315), Ask::new(315).field("statsName", "TOPIC_PUT_NUMS")] {
        assert_eq!(wire.ask(&ask).code, 29);
    }
    wire.ask(&delete_topic("counted")).ok();
    assert_eq!(wire.ask(&stats("TOPIC_PUT_NUMS", "counted")).code, 1);
    assert_eq!(wire.ask(&stats("GROUP_GET_NUMS", "counted@takers")).code, 1);
}

/// How far all groups are, for one that is to be corrected; the groups that are left out keep their offsets, which in
/// Java they do not.
#[test]
fn a_group_is_corrected_by_the_others() {
    let Some((_cluster, mut wire)) = start("admin-correction") else { return };
    wire.ask(&create_topic("read", 3)).ok();
    for (group, offsets) in [("near", [5, 7, 1]), ("far", [3, 9, 1]), ("left", [0, 0, 0])] {
        wire.ask(&Ask::new(200).body(format!("{{\"groupName\":\"{group}\"}}"))).ok();
        for (queue_id, offset) in offsets.into_iter().enumerate() {
            wire.ask(&update_offset(group, "read", queue_id as i32, offset)).ok();
        }
    }
    let asked = |compared: &str| Ask::new(308).field("topic", "read").field("compareGroup", compared);
    let mut text = |ask: &Ask| String::from_utf8(wire.ask(ask).ok().body).unwrap();
    assert_eq!(text(&asked("near")), "{\"correctionOffsets\":{0:0,1:0,2:0}}");
    assert_eq!(text(&asked("near").field("filterGroups", "left")), "{\"correctionOffsets\":{0:3,1:7,2:1}}");
    // Behind all others in queue 0: nothing of theirs is its place.
    let ask = asked("far").field("filterGroups", "left,far");
    assert_eq!(text(&ask), format!("{{\"correctionOffsets\":{{0:{},1:7,2:1}}}}", i64::MAX));
    assert_eq!(text(&asked("nobody").field("filterGroups", "left")), "{\"correctionOffsets\":{0:3,1:7,2:1}}");
    assert_eq!(text(&Ask::new(308).field("topic", "none").field("compareGroup", "near")), "{\"correctionOffsets\":{}}");
    assert_eq!(text(&asked("near")), "{\"correctionOffsets\":{0:0,1:0,2:0}}");
    assert_eq!(wire.ask(&Ask::new(308).field("topic", "read")).code, 29);
}

#[test]
fn what_a_group_consumes_and_subscribes_to() {
    let Some((cluster, mut wire)) = start("admin-group") else { return };
    for topic in ["first", "second", "other"] {
        wire.ask(&create_topic(topic, 1)).ok();
    }
    for topic in ["second", "first"] {
        wire.ask(&update_offset("readers", topic, 0, 0)).ok();
    }
    wire.ask(&heartbeat("client", "readers", &[("other", "TAG", "a || b", 7)])).ok();
    let topics = |group: &str| Ask::new(343).field("group", group);
    let told = json(wire.ask(&topics("readers")));
    assert_eq!(told["topicList"], serde_json::json!(["first", "second"]));
    assert_eq!(told["brokerAddr"], cluster.broker_address());
    assert_eq!(json(wire.ask(&topics("nobody")))["topicList"], serde_json::json!([]));
    assert_eq!(wire.ask(&Ask::new(343)).code, 29);

    let subscription = |group: &str, topic: &str| Ask::new(345).field("group", group).field("topic", topic);
    let told = json(wire.ask(&subscription("readers", "other")));
    let data = &told["subscriptionData"];
    assert_eq!((&told["group"], &told["topic"]), (&Value::from("readers"), &Value::from("other")));
    assert_eq!((&data["subString"], &data["subVersion"]), (&Value::from("a || b"), &Value::from(7)));
    for (group, topic) in [("readers", "first"), ("nobody", "other")] {
        let told = json(wire.ask(&subscription(group, topic)));
        assert_eq!(told, serde_json::json!({"group": group, "topic": topic}));
    }
    assert_eq!(wire.ask(&Ask::new(345).field("group", "readers")).code, 29);
}

/// The lists of 5.x: all of them or none, and on disk before the answer.
#[test]
fn topics_and_groups_come_in_lists() {
    let Some((mut cluster, mut wire)) = start("admin-lists") else { return };
    let topics = |list: &str| Ask::new(18).body(format!("{{\"topicConfigList\":[{list}]}}"));
    let groups = |list: &str| Ask::new(225).body(format!("{{\"groupConfigList\":[{list}]}}"));
    let topic = |name: &str, more: &str| {
        format!("{{\"topicName\":\"{name}\",\"readQueueNums\":3,\"writeQueueNums\":2,\"perm\":4{more}}}")
    };
    let one = topic("list-one", "");
    let two = topic("list-two", ",\"attributes\":{\"+message.type\":\"NORMAL\"}");
    for wrong in [
        topic("bad/name", ""),
        topic("TBW102", ""),
        topic("list-one", ""),
        topic("list-three", ",\"attributes\":{\"+message.type\":\"FIFO\"}"),
        topic("list-three", ",\"readQueueNums\":-1"),
        topic("list-three", ",\"perm\":99"),
        "{}".to_string(),
    ] {
        assert_eq!(wire.ask(&topics(&format!("{one},{wrong}"))).code, 29, "{wrong}");
        assert_eq!(wire.ask(&Ask::new(351).field("topic", "list-one")).code, 17, "{wrong}");
    }
    for body in ["", "{}", "[]", "{\"topicConfigList\":[]}", "no JSON"] {
        assert_eq!(wire.ask(&Ask::new(18).body(body)).code, 29, "{body}");
        assert_eq!(wire.ask(&Ask::new(225).body(body)).code, 29, "{body}");
    }
    wire.ask(&topics(&format!("{one},{two}"))).ok();
    let good = "{\"groupName\":\"list-g\",\"retryMaxTimes\":3},{\"groupName\":\"list-h\"}";
    assert_eq!(wire.ask(&groups(&format!("{good},{{\"groupName\":\"bad/name\"}}"))).code, 29);
    assert_eq!(wire.ask(&Ask::new(352).field("group", "list-h")).code, 26);
    wire.ask(&groups(good)).ok();
    if cluster.is_ours() {
        cluster.kill_broker();
        cluster.start_again();
        wire = Wire::to(cluster.broker_address());
    }
    let told = json(wire.ask(&Ask::new(351).field("topic", "list-two")));
    assert_eq!((&told["writeQueueNums"], &told["perm"]), (&Value::from(2), &Value::from(4)));
    assert_eq!(told["attributes"], serde_json::json!({"message.type": "NORMAL"}));
    // Again, and an attribute less.
    let less = topic("list-two", ",\"attributes\":{\"-message.type\":\"\"}");
    wire.ask(&topics(&format!("{one},{less}"))).ok();
    assert!(json(wire.ask(&Ask::new(351).field("topic", "list-two"))).get("attributes").is_none());
    assert_eq!(json(wire.ask(&Ask::new(352).field("group", "list-g")))["retryMaxTimes"], 3);
}
