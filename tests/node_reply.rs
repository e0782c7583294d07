//! Replies between clients, and offsets that an operator moves, by raw frames.

mod support;

use std::time::Duration;
use support::Cluster;
use support::wire::{
    Ask, Told, Wire, create_topic, heartbeat, max_offset, producer_heartbeat, query_offset, send, update_offset,
};

const CONFIG: [(&str, &str); 2] = [("mappedFileSizeCommitLog", "67108864"), ("ringmq.shards", "2")];
const REPLIES: &str = "DefaultCluster_REPLY_TOPIC";

fn reply(client: Option<&str>) -> Ask {
    let to = client.map_or(String::new(), |client| format!("\u{2}REPLY_TO_CLIENT\u{1}{client}"));
    let properties = format!("CORRELATION_ID\u{1}7\u{2}MSG_TYPE\u{1}reply{to}");
    Ask { code: 325, ..send(REPLIES, 0, b"answer", &properties) }
}

#[test]
fn a_reply_reaches_its_client_and_is_stored() {
    let Some(cluster) = Cluster::start_with("reply-way", &CONFIG) else { return };
    let mut asker = Wire::to(cluster.broker_address());
    let mut answerer = Wire::to(cluster.broker_address());
    asker.ask(&producer_heartbeat("asker", "askers")).ok();
    for (index, code) in [(0, 0), (1, 1)] {
        let id = answerer.send(&reply(Some("asker")));
        let told = asker.next(Duration::from_secs(10)).expect("the reply");
        assert_eq!((told.code, told.flag, &told.body[..]), (326, 0, &b"answer"[..]));
        assert!(told.ext["properties"].contains("CORRELATION_ID\u{1}7"), "{told:?}");
        assert!(told.ext["properties"].contains("PUSH_REPLY_TIME\u{1}"), "{told:?}");
        assert_eq!((told.ext["topic"].as_str(), told.ext["producerGroup"].as_str()), (REPLIES, "producers"));
        for name in ["bornHost", "storeHost", "storeTimestamp", "bornTimestamp", "sysFlag", "flag", "queueId"] {
            assert!(told.ext.contains_key(name), "{name}: {told:?}");
        }
        // What the client says of it is what the answerer is told.
        asker.write(&Ask { code, flag: 1, ..Ask::new(0) }.frame(told.opaque));
        let told = answerer.answer(id);
        assert_eq!((told.code, told.number("queueOffset")), (code, index), "{told:?}");
        assert_eq!(told.ext["msgId"].len(), 32);
    }
    // Nobody of that name, nobody named: stored, and said.
    for (client, part) in [(Some("nobody"), "channel of <nobody> not found"), (None, "REPLY_TO_CLIENT")] {
        let told = answerer.ask(&reply(client));
        assert_eq!(told.code, 1, "{told:?}");
        assert!(told.remark.contains(part), "{told:?}");
    }
    let id = answerer.send(&reply(Some("asker")));
    asker.next(Duration::from_secs(10)).expect("the reply");
    drop(asker);
    let told = answerer.answer(id);
    assert_eq!(told.code, 1, "{told:?}");
    assert!(told.remark.contains("gone"), "{told:?}");
    assert_eq!(answerer.ask(&max_offset(REPLIES, 0)).number("offset"), 5);
    assert_eq!(answerer.ask(&reply(Some("asker"))).code, 1, "its connection is gone");
}

#[test]
fn a_reply_that_is_not_stored_reaches_its_client_all_the_same() {
    let config: Vec<_> = CONFIG.iter().copied().chain([("storeReplyMessageEnable", "false")]).collect();
    let Some(cluster) = Cluster::start_with("reply-unstored", &config) else { return };
    let mut asker = Wire::to(cluster.broker_address());
    let mut answerer = Wire::to(cluster.broker_address());
    asker.ask(&producer_heartbeat("asker", "askers")).ok();
    for code in [0, 1] {
        let id = answerer.send(&reply(Some("asker")));
        let told = asker.next(Duration::from_secs(10)).expect("the reply");
        assert_eq!((told.code, &told.body[..]), (326, &b"answer"[..]));
        asker.write(&Ask { code, flag: 1, ..Ask::new(0) }.frame(told.opaque));
        let told = answerer.answer(id);
        assert_eq!((told.code, told.ext["msgId"].as_str(), told.number("queueOffset")), (code, "0", 0), "{told:?}");
    }
    assert_eq!(answerer.ask(&reply(Some("nobody"))).code, 1);
    // It is checked like any other.
    assert_eq!(answerer.ask(&Ask { code: 325, ..send(REPLIES, 9, b"x", "") }).code, 29);
    assert_eq!(answerer.ask(&max_offset(REPLIES, 0)).number("offset"), 0);
}

fn reset(topic: &str, group: &str, timestamp: i64, force: bool) -> Ask {
    Ask::new(222).field("topic", topic).field("group", group).field("timestamp", timestamp).field("isForce", force)
}

#[test]
fn an_operator_moves_the_offsets_of_a_group() {
    let Some(cluster) = Cluster::start_with("reply-reset", &CONFIG) else { return };
    let mut wire = Wire::to(cluster.broker_address());
    wire.ask(&create_topic("reset", 2)).ok();
    for queue_id in [0, 0, 0, 0, 1] {
        wire.ask(&send("reset", queue_id, b"x", "")).ok();
    }
    assert_eq!(wire.ask(&reset("nothing", "g", 0, true)).code, 17);
    assert_eq!(wire.ask(&reset("reset", "nobody", 0, true)).code, 26);
    wire.ask(&Ask::new(200).body("{\"groupName\":\"g\"}")).ok();
    let offset = |wire: &mut Wire, queue_id: i32| wire.ask(&query_offset("g", "reset", queue_id)).number("offset");
    wire.ask(&update_offset("g", "reset", 0, 2)).ok();
    // timestamp, force, offsets of both queues: nobody is online, so they are written at once
    for (timestamp, force, want) in [(-1, false, (2, 1)), (-1, true, (4, 1)), (0, false, (0, 0)), (-1, true, (4, 1))] {
        let told = wire.ask(&reset("reset", "g", timestamp, force)).ok();
        assert_eq!((offset(&mut wire, 0), offset(&mut wire, 1)), want, "{timestamp} {force}");
        let text = String::from_utf8(told.body).expect("JSON");
        let part = format!("{{\"brokerName\":\"broker-a\",\"queueId\":0,\"topic\":\"reset\"}}:{}", want.0);
        assert!(text.contains(&part), "{text}");
    }
    wire.ask(&reset("reset", "g", -1, true).field("queueId", 0).field("offset", 3)).ok();
    assert_eq!((offset(&mut wire, 0), offset(&mut wire, 1)), (3, 1));
    assert_eq!(wire.ask(&reset("reset", "g", -1, true).field("queueId", 0).field("offset", 5)).code, 1);
    assert_eq!(wire.ask(&reset("reset", "g", -1, true).field("queueId", 2)).code, 29);

    // Another group goes on from there.
    wire.ask(
        &Ask::new(314).field("srcGroup", "g").field("destGroup", "copy").field("topic", "reset").field("offline", true),
    )
    .ok();
    assert_eq!(wire.ask(&query_offset("copy", "reset", 0)).number("offset"), 3);

    // Online: the clients are told, and do it.
    let mut clients = [Wire::to(cluster.broker_address()), Wire::to(cluster.broker_address())];
    for (index, client) in clients.iter_mut().enumerate() {
        client.ask(&heartbeat(&format!("c{index}"), "g", &[("reset", "TAG", "*", 1)])).ok();
    }
    wire.ask(&reset("reset", "g", 0, true)).ok();
    assert_eq!(offset(&mut wire, 0), 3);
    for client in &mut clients {
        let told = loop {
            let told = client.next(Duration::from_secs(10)).expect("the new offsets");
            if told.code != 40 {
                break told;
            }
        };
        assert_eq!((told.code, told.flag), (220, 2), "{told:?}");
        assert_eq!((told.ext["topic"].as_str(), told.ext["group"].as_str()), ("reset", "g"));
        assert_eq!((told.ext["timestamp"].as_str(), told.ext["isForce"].as_str()), ("0", "true"));
        let text = String::from_utf8(told.body).expect("JSON");
        assert!(text.contains("{\"brokerName\":\"broker-a\",\"queueId\":0,\"topic\":\"reset\"}:0"), "{text}");
    }
}

#[test]
fn members_of_a_group_say_how_far_they_are() {
    let Some(cluster) = Cluster::start_with("reply-status", &CONFIG) else { return };
    let mut wire = Wire::to(cluster.broker_address());
    let status = |client: &str| {
        let ask = Ask::new(223).field("topic", "status").field("group", "g");
        if client.is_empty() { ask } else { ask.field("clientAddr", client) }
    };
    let told = wire.ask(&status(""));
    assert_eq!((told.code, told.remark.as_str()), (1, "No Any Consumer online in the consumer group: [g]"));
    wire.ask(&create_topic("status", 1)).ok();
    let mut clients: Vec<Wire> = (0..3).map(|_| Wire::to(cluster.broker_address())).collect();
    for (index, client) in clients.iter_mut().enumerate() {
        client.ask(&heartbeat(&format!("c{index}"), "g", &[("status", "TAG", "*", 1)])).ok();
    }
    fn asked(client: &mut Wire) -> Told {
        loop {
            let told = client.next(Duration::from_secs(10)).expect("the question");
            if told.code != 40 {
                return told;
            }
        }
    }
    let answer = |code: i32, body: &str| Ask { code, flag: 1, ..Ask::new(0).body(body) };
    let table = |offset: i64| {
        format!("{{\"messageQueueTable\":{{{{\"brokerName\":\"b\",\"queueId\":0,\"topic\":\"status\"}}:{offset}}}}}")
    };
    let part = |index: i64, offset: i64| {
        format!("\"c{index}\":{{{{\"brokerName\":\"b\",\"queueId\":0,\"topic\":\"status\"}}:{offset}}}")
    };
    // All: two answer, the third does not know the request.
    let id = wire.send(&status(""));
    for (index, client) in clients.iter_mut().enumerate() {
        let told = asked(client);
        assert_eq!((told.code, told.ext["topic"].as_str(), told.ext["group"].as_str()), (221, "status", "g"));
        let code = if index == 2 { 3 } else { 0 };
        client.write(&answer(code, &table(index as i64 + 7)).frame(told.opaque));
    }
    let text = String::from_utf8(wire.answer(id).ok().body).expect("JSON");
    assert!(text.contains(&part(0, 7)) && text.contains(&part(1, 8)) && !text.contains("c2"), "{text}");
    // One by its name; one whose connection goes; one that nobody has.
    let id = wire.send(&status("c1"));
    let told = asked(&mut clients[1]);
    clients[1].write(&answer(0, &table(9)).frame(told.opaque));
    let text = String::from_utf8(wire.answer(id).ok().body).expect("JSON");
    assert!(text.contains(&part(1, 9)) && !text.contains("c0"), "{text}");
    let id = wire.send(&status("c2"));
    asked(&mut clients[2]);
    drop(clients.pop());
    let text = String::from_utf8(wire.answer(id).ok().body).expect("JSON");
    assert!(text.contains("\"consumerTable\":{}"), "{text}");
    assert!(String::from_utf8(wire.ask(&status("c9")).ok().body).expect("JSON").contains("\"consumerTable\":{}"));
}
