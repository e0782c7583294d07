//! Queue locks and send-back by raw frames.
//!
//! Faults 5, 46 and 49 of the public reports.

mod support;

use std::time::{Duration, Instant};
use support::Cluster;
use support::wire::{Ask, Message, Told, Wire, create_topic, heartbeat, max_offset, pull, send};

const SMALL: [(&str, &str); 1] = [("mappedFileSizeCommitLog", "67108864")];

fn start(name: &str, more: &[(&str, &str)]) -> Option<(Cluster, Wire)> {
    let config: Vec<_> = SMALL.iter().chain(more).copied().collect();
    let cluster = Cluster::start_with(name, &config)?;
    let wire = Wire::to(cluster.broker_address());
    Some((cluster, wire))
}

fn lock(code: i32, client: &str, queues: &[i32]) -> Ask {
    let queue = |id: &i32| serde_json::json!({ "brokerName": "broker-a", "queueId": id, "topic": "T" });
    let queues: Vec<_> = queues.iter().map(queue).collect();
    let body = serde_json::json!({ "clientId": client, "consumerGroup": "orderly", "mqSet": queues });
    Ask::new(code).body(body.to_string())
}

fn locked(told: &Told) -> Vec<i64> {
    let body: serde_json::Value = serde_json::from_slice(&told.body).expect("JSON");
    let queues = body["lockOKMQSet"].as_array().expect("the queues");
    let mut ids: Vec<i64> = queues
        .iter()
        .map(|queue| {
            assert_eq!((queue["brokerName"].as_str(), queue["topic"].as_str()), (Some("broker-a"), Some("T")));
            queue["queueId"].as_i64().expect("a number")
        })
        .collect();
    ids.sort_unstable();
    ids
}

#[test]
fn a_queue_is_locked_by_one_client_at_a_time() {
    let Some((_cluster, mut wire)) = start("retry-locks", &[]) else { return };
    // code, client, queues, locked
    for (code, client, queues, want) in [
        (41, "a", &[0, 1][..], &[0, 1][..]),
        (41, "b", &[0, 1, 2], &[2]),
        (41, "a", &[0, 1, 2], &[0, 1]),
        (42, "b", &[0, 2], &[]),
        (41, "a", &[2], &[2]),
        (42, "a", &[0, 1, 2], &[]),
        (41, "b", &[0, 1, 2], &[0, 1, 2]),
        (41, "b", &[], &[]),
    ] {
        let told = wire.ask(&lock(code, client, queues)).ok();
        if code == 41 {
            assert_eq!(locked(&told), want, "{client} {queues:?}");
        }
    }
}

/// Fault 5.
#[test]
fn lock_bodies_that_say_nothing_are_refused_by_name() {
    let Some((_cluster, mut wire)) = start("retry-bodies", &[]) else { return };
    for (body, part) in [
        ("", "no set of queues"),
        ("null", "no set of queues"),
        ("{\"clientId\":\"a\"", "no set of queues"),
        ("[]", "consumerGroup is missing"),
        ("{}", "consumerGroup is missing"),
        ("{\"consumerGroup\":\"orderly\"}", "clientId is missing"),
        ("{\"consumerGroup\":\"a/b\",\"clientId\":\"c\"}", "illegal"),
        ("{\"consumerGroup\":\"g\",\"clientId\":\"c\",\"mqSet\":[{}]}", "without a topic"),
    ] {
        for code in [41, 42] {
            let told = wire.ask(&Ask::new(code).body(body));
            assert!(matches!(told.code, 1 | 29), "{code} {body}: {told:?}");
            assert!(told.remark.contains(part), "{code} {body}: {told:?}");
        }
    }
    wire.ask(&lock(41, "a", &[0])).ok();
}

fn back(group: &str, message: &Message, level: i32) -> Ask {
    Ask::new(36)
        .field("group", group)
        .field("offset", message.log_offset)
        .field("delayLevel", level)
        .field("originMsgId", "origin")
        .field("originTopic", &message.topic)
        .field("unitMode", false)
        .field("maxReconsumeTimes", 16)
}

#[track_caller]
fn only(wire: &mut Wire, topic: &str, offset: i64) -> Message {
    let mut messages = wire.ask(&pull("reader", topic, 0, offset).field("maxMsgNums", 1)).ok().messages();
    assert_eq!(messages.len(), 1);
    messages.remove(0)
}

/// Waits for it.
#[track_caller]
fn coming(wire: &mut Wire, topic: &str, offset: i64) -> Message {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let told = wire.ask(&support::wire::pull_and_wait("reader", topic, 0, offset, 5_000));
        if told.code == 0 {
            return told.messages().remove(0);
        }
        assert!(Instant::now() < end, "{told:?}");
    }
}

#[test]
fn a_message_goes_through_its_retries_to_the_dead_letters() {
    let Some((_cluster, mut wire)) = start("retry-way", &[("messageDelayLevel", "1s 1s 1s 1s 1s 1s")]) else { return };
    wire.ask(&create_topic("way", 1)).ok();
    wire.ask(&heartbeat("c", "group", &[("way", "TAG", "*", 1)])).ok();
    wire.ask(&send("way", 0, b"body", "KEYS\u{1}k\u{2}TAGS\u{1}t\u{2}WAIT\u{1}true").field("h", 9)).ok();
    let first = only(&mut wire, "way", 0);
    let mut message = first.clone();
    for times in 1..=3 {
        let sent_back = Instant::now();
        wire.ask(&back("group", &message, 0).field("maxReconsumeTimes", 3)).ok();
        message = coming(&mut wire, "%RETRY%group", i64::from(times - 1));
        assert!(sent_back.elapsed() >= Duration::from_millis(990), "too early");
        assert_eq!((message.reconsume_times, message.flag, &message.body[..]), (times, 9, &b"body"[..]));
        assert_eq!(message.born_timestamp, first.born_timestamp);
        let property = |name: &str| message.property(name).unwrap_or_default();
        assert_eq!((property("KEYS").as_str(), property("TAGS").as_str()), ("k", "t"));
        assert_eq!((property("RETRY_TOPIC").as_str(), property("WAIT").as_str()), ("way", "false"));
        assert_eq!(property("REAL_TOPIC"), "%RETRY%group");
        // 3 and the times it was tried before.
        assert_eq!(property("DELAY"), (3 + times - 1).min(6).to_string());
        let origin = property("ORIGIN_MESSAGE_ID");
        assert_eq!(i64::from_str_radix(&origin[16..], 16).expect("hex"), first.log_offset, "{origin}");
    }
    // Tried often enough.
    wire.ask(&back("group", &message, 0).field("maxReconsumeTimes", 3)).ok();
    let dead = only(&mut wire, "%DLQ%group", 0);
    assert_eq!((dead.reconsume_times, &dead.body[..], dead.queue_id), (4, &b"body"[..], 0));
    assert_eq!(dead.property("RETRY_TOPIC").as_deref(), Some("way"));
    // At the consumer's wish.
    wire.ask(&back("group", &first, -1)).ok();
    assert_eq!(only(&mut wire, "%DLQ%group", 1).reconsume_times, 1);
    // The group's own limit holds for clients from before the field.
    let old = Ask { version: 100, ..back("group", &first, 1).field("maxReconsumeTimes", 0) };
    wire.ask(&old).ok();
    assert_eq!(wire.ask(&max_offset("%DLQ%group", 0)).number("offset"), 2);
    wire.ask(&back("group", &first, 1).field("maxReconsumeTimes", 0)).ok();
    assert_eq!(wire.ask(&max_offset("%DLQ%group", 0)).number("offset"), 3);
}

#[test]
fn send_backs_that_can_not_be_are_refused() {
    let config = [("autoCreateSubscriptionGroup", "false")];
    let Some((_cluster, mut wire)) = start("retry-refused", &config) else { return };
    wire.ask(&create_topic("refused", 1)).ok();
    wire.ask(&send("refused", 0, b"body", "")).ok();
    let group = |retries: i32| {
        let body = serde_json::json!({ "groupName": "known", "retryQueueNums": retries, "retryMaxTimes": 16 });
        Ask::new(200).body(body.to_string())
    };
    wire.ask(&group(1)).ok();
    let message = Message { log_offset: 0, ..only_of_tools(&mut wire) };
    for (ask, code, part) in [
        (back("unknown", &message, 0), 26, "subscription group not exist"),
        (back("a/b", &message, 0), 26, "subscription group not exist"),
        (back("known", &message, 0).field("offset", -1), 1, "look message by offset failed, -1"),
        (back("known", &message, 0).field("offset", 1), 1, "look message by offset failed, 1"),
        (back("known", &message, 0).field("offset", i64::MAX), 1, "look message by offset failed"),
        (back("known", &message, 0).without("offset"), 29, "offset"),
        (back("known", &message, 0).without("group"), 29, "group"),
        (back("known", &message, 0).field("delayLevel", "x"), 29, "delayLevel"),
    ] {
        let told = wire.ask(&ask);
        assert_eq!(told.code, code, "{told:?}");
        assert!(told.remark.contains(part), "{told:?}");
    }
    // A group without retry queues: taken and dropped.
    wire.ask(&group(0)).ok();
    wire.ask(&back("known", &message, -1)).ok();
    assert_eq!(wire.ask(&max_offset("%DLQ%known", 0)).number("offset"), 0);
}

fn only_of_tools(wire: &mut Wire) -> Message {
    wire.ask(&pull("TOOLS_CONSUMER", "refused", 0, 0)).ok().messages().remove(0)
}

/// Fault 46: what was accepted can always be retried and dead-lettered.
#[test]
fn a_message_at_all_its_limits_is_retried_and_dead_lettered() {
    let config = [("messageDelayLevel", "1s"), ("maxMessageSize", "100000"), ("mappedFileSizeCommitLog", "139264")];
    let Some((_cluster, mut wire)) = start("retry-limits", &config) else { return };
    let group = "g".repeat(120);
    let topic = "t".repeat(127);
    wire.ask(&create_topic(&topic, 1)).ok();
    let body = vec![b'x'; 100_000];
    let properties = format!("k\u{1}{}", "v".repeat(31_743 - 2));
    wire.ask(&send(&topic, 0, &body, &properties)).ok();
    assert_eq!(wire.ask(&send(&topic, 0, &body, &format!("{properties}v"))).code, 13);
    assert_eq!(wire.ask(&send(&topic, 0, &[body.clone(), vec![b'x']].concat(), "")).code, 13);
    let message = only(&mut wire, &topic, 0);
    wire.ask(&back(&group, &message, 0)).ok();
    let retried = coming(&mut wire, &format!("%RETRY%{group}"), 0);
    assert_eq!((retried.reconsume_times, retried.body.len()), (1, 100_000));
    wire.ask(&back(&group, &retried, 0)).ok();
    let again = coming(&mut wire, &format!("%RETRY%{group}"), 1);
    assert_eq!(again.properties.len(), retried.properties.len());
    wire.ask(&back(&group, &again, -1)).ok();
    let dead = only(&mut wire, &format!("%DLQ%{group}"), 0);
    assert_eq!((&dead.body, dead.property("RETRY_TOPIC").as_deref()), (&body, Some(&topic[..])));
    assert_eq!(dead.property("k").map(|value| value.len()), Some(31_741));
}
