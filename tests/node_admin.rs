//! What mqadmin and the admin classes of clients ask a broker beside topics and groups, by raw frames; and what of
//! pulls, filters, topics, groups and transactions changes while the node runs.

mod support;

use serde_json::Value;
use std::time::Duration;
use support::wire::{
    Ask, Told, Wire, create_topic, delete_topic, heartbeat, producer_heartbeat, pull, pull_and_wait, send,
    update_offset,
};
use support::{CLUSTER_NAME, Cluster, await_that};

/// Only ends a hang: items are sampled every 10 s.
const SAMPLED_MAX: Duration = Duration::from_secs(60);

fn start(name: &str) -> Option<(Cluster, Wire)> {
    let cluster = Cluster::start_with(name, &[("mappedFileSizeCommitLog", "67108864")])?;
    let wire = Wire::to(cluster.broker_address());
    Some((cluster, wire))
}

/// It differs where wire_format.md says so.
fn is_java() -> bool {
    std::env::var_os("RINGMQ_ORACLE").is_some()
}

/// 4.9.7 does not know what only 5.x has.
fn is_java_4() -> bool {
    std::env::var("RINGMQ_ORACLE").is_ok_and(|oracle| oracle == "java-4.9.7")
}

/// The code for a field that is missing.
fn missing() -> i32 {
    if is_java() { 1 } else { 29 }
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
        // What was sent back is none until it is due.
        ("BROKER_PUT_NUMS", CLUSTER_NAME, 5),
        ("BROKER_GET_NUMS", CLUSTER_NAME, 3),
    ] {
        assert_eq!(minute(name, key)["sum"], want, "{name} {key}");
    }
    assert!(minute("TOPIC_PUT_SIZE", "counted")["avgpt"].as_f64().unwrap() > 90.0);
    assert!(minute("GROUP_GET_SIZE", "counted@takers")["sum"].as_i64().unwrap() > 270);

    if !is_java_4() {
        // Its keys are objects, as Java's.
        let told = String::from_utf8(wire.ask(&Ask::new(202).field("topic", "counted")).ok().body).unwrap();
        let (_, tps) = told.split_once("\"topicPutTps\":").expect("in every answer of 5.x");
        assert!(!tps.starts_with("0.0}"), "{told}");
    }
    for (name, key) in [("TOPIC_PUT_NUMS", "none"), ("GROUP_GET_NUMS", "counted"), ("NONE", "counted")] {
        let told = wire.ask(&stats(name, key));
        assert_eq!((told.code, told.remark), (1, format!("The stats <{name}> <{key}> not exist")));
    }
    for ask in [Ask::new(315), Ask::new(315).field("statsName", "TOPIC_PUT_NUMS")] {
        assert_eq!(wire.ask(&ask).code, missing());
    }
    if is_java() {
        return;
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
    let ask = asked("far").field("filterGroups", "left,far");
    assert_eq!(text(&ask), "{\"correctionOffsets\":{0:5,1:7,2:1}}");
    assert_eq!(text(&Ask::new(308).field("topic", "none").field("compareGroup", "near")), "{\"correctionOffsets\":{}}");
    if !is_java() {
        assert_eq!(text(&asked("near")), "{\"correctionOffsets\":{0:0,1:0,2:0}}");
        assert_eq!(text(&asked("nobody").field("filterGroups", "left")), "{\"correctionOffsets\":{0:3,1:7,2:1}}");
        assert_eq!(wire.ask(&Ask::new(308).field("topic", "read")).code, 29);
    }
}

#[test]
fn what_a_group_consumes_and_subscribes_to() {
    if is_java_4() {
        return;
    }
    let Some((cluster, mut wire)) = start("admin-group") else { return };
    for topic in ["first", "second", "other"] {
        wire.ask(&create_topic(topic, 1)).ok();
    }
    wire.ask(&Ask::new(200).body("{\"groupName\":\"readers\"}")).ok();
    for topic in ["second", "first"] {
        wire.ask(&update_offset("readers", topic, 0, 0)).ok();
    }
    wire.ask(&heartbeat("client", "readers", &[("other", "TAG", "a || b", 7)])).ok();
    let topics = |group: &str| Ask::new(343).field("group", group);
    let told = json(wire.ask(&topics("readers")));
    assert_eq!(told["topicList"], serde_json::json!(["first", "second"]));
    assert_eq!(told["brokerAddr"], cluster.broker_address());
    assert_eq!(json(wire.ask(&topics("nobody")))["topicList"], serde_json::json!([]));
    assert_eq!(wire.ask(&Ask::new(343)).code, missing());

    let subscription = |group: &str, topic: &str| Ask::new(345).field("group", group).field("topic", topic);
    let told = json(wire.ask(&subscription("readers", "other")));
    let data = &told["subscriptionData"];
    assert_eq!((&told["group"], &told["topic"]), (&Value::from("readers"), &Value::from("other")));
    assert_eq!((&data["subString"], &data["subVersion"]), (&Value::from("a || b"), &Value::from(7)));
    for (group, topic) in [("readers", "first"), ("nobody", "other")] {
        let told = json(wire.ask(&subscription(group, topic)));
        assert_eq!(told, serde_json::json!({"group": group, "topic": topic}));
    }
    assert_eq!(wire.ask(&Ask::new(345).field("group", "readers")).code, missing());
}

/// The lists of 5.x: all of them or none, and on disk before the answer. Java looks at names only.
#[test]
fn topics_and_groups_come_in_lists() {
    if is_java() {
        return;
    }
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

fn set(wire: &mut Wire, lines: &str) {
    wire.ask(&Ask::new(25).body(lines)).ok();
}

/// Each key does what it says from the next request on.
#[test]
fn pulls_and_filters_change_while_the_node_runs() {
    let Some((cluster, mut wire)) = start("admin-live-pull") else { return };
    wire.ask(&create_topic("live", 1)).ok();
    for number in 0..10 {
        wire.ask(&send("live", 0, &[number; 100], "KEYS\u{1}same\u{2}")).ok();
    }
    let count = |wire: &mut Wire| wire.ask(&pull("g", "live", 0, 0)).ok().messages().len();
    assert_eq!(count(&mut wire), 10);
    set(&mut wire, "maxTransferCountOnMessageInMemory=3");
    assert_eq!(count(&mut wire), 3);
    // Of this size, the first two pass the limit of bytes.
    set(&mut wire, "maxTransferCountOnMessageInMemory=32\nmaxTransferBytesOnMessageInMemory=300");
    assert!((1..=2).contains(&count(&mut wire)));
    // With nothing taken to be in memory, the limits of the disk count.
    let on_disk = "maxTransferBytesOnMessageInMemory=262144\naccessMessageInMemoryMaxRatio=0";
    set(&mut wire, &format!("{on_disk}\nmaxTransferCountOnMessageInDisk=4"));
    assert_eq!(count(&mut wire), 4);

    // Held for longer than a test waits, unless polling is short.
    set(&mut wire, "longPollingEnable=false\nshortPollingTimeMills=1");
    assert_eq!(wire.ask(&pull_and_wait("g", "live", 0, 10, 60_000)).code, 19);
    set(&mut wire, "longPollingEnable=true");
    let held = wire.send(&pull_and_wait("g", "live", 0, 10, 60_000));
    assert!(wire.answer_within(held, Duration::from_millis(1500)).is_none());
    set(&mut wire, "traceOn=false");
    let sent = wire.ask(&send("live", 0, b"x", "")).ok();
    assert_eq!(sent.ext["TRACE_ON"], "false");
    wire.answer(held).ok();

    let body = serde_json::json!({"clientId": "c", "group": "g", "subscriptionData": {
        "topic": "live", "subString": "a > 1", "expressionType": "SQL92", "subVersion": 1}});
    let expression = Ask::new(46).body(body.to_string());
    assert_eq!(wire.ask(&expression).code, 1);
    let sql = pull("g", "live", 0, 0).field("subscription", "a > 1").field("expressionType", "SQL92");
    assert_eq!(wire.ask(&sql).code, 1);
    set(&mut wire, "enablePropertyFilter=true");
    wire.ask(&expression).ok();
    assert_eq!(wire.ask(&sql).code, 20);

    let by_key = Ask::new(12).field("topic", "live").field("key", "same").field("maxNum", 32);
    let by_key = by_key.field("beginTimestamp", 0).field("endTimestamp", i64::MAX);
    await_that("the index", SAMPLED_MAX, || wire.ask(&by_key).messages().len() == 10);
    set(&mut wire, "maxMsgsNumBatch=2");
    assert_eq!(wire.ask(&by_key).ok().messages().len(), 2);

    if cluster.is_ours() {
        // A start of these tests writes the file anew, so this is as far as it goes.
        let file = std::fs::read_to_string(cluster.directory().join("broker.properties")).expect("its file");
        for line in ["enablePropertyFilter=true", "longPollingEnable=true", "maxMsgsNumBatch=2"] {
            assert!(file.lines().any(|known| known == line), "no {line} in {file}");
        }
    }
}

#[test]
fn what_makes_topics_and_groups_changes_while_the_node_runs() {
    let config = [("mappedFileSizeCommitLog", "67108864"), ("autoCreateTopicEnable", "false")];
    let Some(cluster) = Cluster::start_with("admin-live-made", &config) else { return };
    let mut wire = Wire::to(cluster.broker_address());
    assert_eq!(wire.ask(&send("first", 0, b"x", "")).code, 17);
    // The template was not there either, and Java makes none.
    set(&mut wire, "autoCreateTopicEnable=true");
    if is_java() {
        return;
    }
    wire.ask(&send("first", 0, b"x", "")).ok();
    set(&mut wire, "autoCreateTopicEnable=false");
    assert_eq!(wire.ask(&send("second", 0, b"x", "")).code, 17);
    wire.ask(&send("first", 0, b"x", "")).ok();

    wire.ask(&update_offset("one", "first", 0, 1)).ok();
    set(&mut wire, "autoCreateSubscriptionGroup=false");
    assert_eq!(wire.ask(&update_offset("two", "first", 0, 1)).code, 26);
    wire.ask(&update_offset("one", "first", 0, 2)).ok();

    // All lines or none: the second is no number.
    let told = wire.ask(&Ask::new(25).body("autoCreateSubscriptionGroup=true\ntransactionCheckMax=many"));
    assert_eq!(told.code, 1);
    assert!(told.remark.starts_with("transactionCheckMax=many: allowed is a whole number"), "{told:?}");
    assert_eq!(wire.ask(&update_offset("two", "first", 0, 1)).code, 26);
}

#[test]
fn transactions_change_while_the_node_runs() {
    let Some((_cluster, mut wire)) = start("admin-live-tx") else { return };
    wire.ask(&create_topic("tx", 1)).ok();
    wire.ask(&producer_heartbeat("p", "makers")).ok();
    let half = send("tx", 0, b"half", "TRAN_MSG\u{1}true\u{2}PGROUP\u{1}makers\u{2}UNIQ_KEY\u{1}half\u{2}");
    let half = half.field("a", "makers").field("f", 4);
    set(&mut wire, "rejectTransactionMessage=true");
    assert_eq!(wire.ask(&half).code, 16);
    set(&mut wire, "rejectTransactionMessage=false");
    wire.ask(&half).ok();
    if is_java_4() {
        return;
    }
    // It would be asked about after a minute.
    set(&mut wire, "transactionTimeOut=0\ntransactionCheckInterval=100\ntransactionCheckMax=2");
    for _ in 0..2 {
        let asked = wire.next(support::wire::WAIT_MAX).expect("a question of the broker");
        assert_eq!(asked.code, 39, "{asked:?}");
    }
    await_that("it to be given up", SAMPLED_MAX, || {
        wire.ask(&support::wire::max_offset("TRANS_CHECK_MAX_TIME_TOPIC", 0))
            .ext
            .get("offset")
            .is_some_and(|max| max == "1")
    });
}

/// The permission of the broker is what name servers say from its answer on.
#[test]
fn a_permission_is_registered_before_it_is_answered() {
    let Some((cluster, mut wire)) = start("admin-permission") else { return };
    wire.ask(&create_topic("guarded", 1)).ok();
    let mut namesrv = Wire::to(cluster.namesrv_address());
    for permission in [4, 6, 2, 6] {
        set(&mut wire, &format!("brokerPermission={permission}"));
        let route = json(namesrv.ask(&Ask::new(105).field("topic", "guarded").field("acceptStandardJsonOnly", true)));
        assert_eq!(route["queueDatas"][0]["perm"], permission, "{route}");
    }
    // As it was: nobody has to be told.
    set(&mut wire, "brokerPermission=6");
}

/// Without a file, too, a name server keeps what it was told.
#[test]
fn what_a_name_server_was_told_survives_a_restart() {
    let Some((mut cluster, _)) = start("admin-namesrv") else { return };
    if !cluster.is_ours() {
        return;
    }
    let shown = |cluster: &Cluster| {
        let told = Wire::to(cluster.namesrv_address()).ask(&Ask::new(319)).ok();
        let text = String::from_utf8(told.body).expect("it is text");
        text.lines().find_map(|line| line.strip_prefix("orderMessageEnable=")).expect("in every answer").to_owned()
    };
    assert_eq!(shown(&cluster), "false");
    Wire::to(cluster.namesrv_address()).ask(&Ask::new(318).body("orderMessageEnable=true")).ok();
    cluster.stop_broker();
    cluster.start_again();
    assert_eq!(shown(&cluster), "true");
}
