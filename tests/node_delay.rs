//! Delay levels by raw frames: never early, to the right queue, over stops and kills.
//!
//! Fault 43 of the public reports.

mod support;

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use support::Cluster;
use support::wire::{Ask, Message, Wire, create_topic, max_offset, pull, pull_and_wait, send};

const LEVELS: (&str, &str) = ("messageDelayLevel", "1s 2s 3s 1h");

fn start(name: &str, more: &[(&str, &str)]) -> Option<(Cluster, Wire)> {
    let config: Vec<_> = [("mappedFileSizeCommitLog", "67108864"), LEVELS].iter().chain(more).copied().collect();
    let cluster = Cluster::start_with(name, &config)?;
    let wire = Wire::to(cluster.broker_address());
    Some((cluster, wire))
}

fn delayed(topic: &str, queue_id: i32, body: &[u8], level: i64) -> Ask {
    send(topic, queue_id, body, &format!("TAGS\u{1}t{level}\u{2}DELAY\u{1}{level}\u{2}WAIT\u{1}true\u{2}k\u{1}v"))
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as i64
}

/// Everything from `offset` on, until there are `count`.
#[track_caller]
fn take(wire: &mut Wire, topic: &str, queue_id: i32, offset: i64, count: usize) -> Vec<Message> {
    let end = Instant::now() + Duration::from_secs(60);
    let mut found: Vec<Message> = Vec::new();
    while found.len() < count {
        let from = offset + found.len() as i64;
        let told = wire.ask(&pull_and_wait("reader", topic, queue_id, from, 5_000));
        if told.code == 0 {
            found.extend(told.messages());
        }
        assert!(Instant::now() < end, "{} of {count}: {told:?}", found.len());
    }
    found
}

#[test]
fn messages_come_at_their_time_to_their_queue() {
    let Some((cluster, mut wire)) = start("delay-times", &[]) else { return };
    wire.ask(&create_topic("times", 3)).ok();
    // Level, delay: above the last is the last.
    for (level, ms) in [(2, 2_000), (1, 1_000), (3, 3_000)] {
        let sent = now_ms();
        let told = wire.ask(&delayed("times", 1, format!("{level}").as_bytes(), level)).ok();
        assert_eq!(told.number("queueId"), 1);
        let schedule = wire.ask(&max_offset("SCHEDULE_TOPIC_XXXX", level as i32 - 1)).number("offset");
        assert_eq!((schedule, told.number("queueOffset")), (1, 0), "{level} after {} of {ms}", now_ms() - sent);
    }
    assert_eq!(wire.ask(&max_offset("times", 1)).number("offset"), 0, "early");
    let messages = take(&mut wire, "times", 1, 0, 3);
    let bodies: Vec<_> = messages.iter().map(|message| message.body[0]).collect();
    assert_eq!(bodies, b"123");
    for (message, ms) in messages.iter().zip([1_000, 2_000, 3_000]) {
        let wait = message.store_timestamp - message.born_timestamp;
        assert!(wait >= ms, "{wait} ms instead of {ms}");
        assert!(wait < ms + 2_000, "{wait} ms instead of {ms}");
        let property = |name: &str| message.property(name).unwrap_or_default();
        assert_eq!((property("REAL_TOPIC").as_str(), property("REAL_QID").as_str()), ("times", "1"));
        assert_eq!((property("k").as_str(), property("WAIT").as_str()), ("v", "true"));
        assert_eq!(property("DELAY"), (ms / 1_000).to_string());
    }
    // The tags of the queue are those of the message again.
    let told = wire.ask(&pull("reader", "times", 1, 0).field("subscription", "t2")).ok();
    assert_eq!(told.messages().len(), 1);

    let told = wire.ask(&Ask::new(28)).ok();
    let table: serde_json::Value = serde_json::from_slice(&told.body).expect("JSON");
    assert_eq!(table["table"]["scheduleMessageOffset_2"], "1,1");
    let told = wire.ask(&Ask::new(45)).ok();
    assert!(String::from_utf8_lossy(&told.body).contains("1:1"), "{told:?}");
    drop(cluster);
}

#[test]
fn levels_above_the_last_are_the_last_and_below_one_none() {
    let Some((_cluster, mut wire)) = start("delay-levels", &[]) else { return };
    wire.ask(&create_topic("levels", 1)).ok();
    for (level, at_once) in [(-1, true), (0, true), (4, false), (5, false), (18, false), (2_147_483_647, false)] {
        let before = wire.ask(&max_offset("levels", 0)).number("offset");
        let before_last = wire.ask(&max_offset("SCHEDULE_TOPIC_XXXX", 3)).number("offset");
        wire.ask(&delayed("levels", 0, b"x", level)).ok();
        assert_eq!(wire.ask(&max_offset("levels", 0)).number("offset"), before + i64::from(at_once), "{level}");
        let last = wire.ask(&max_offset("SCHEDULE_TOPIC_XXXX", 3)).number("offset");
        assert_eq!(last, before_last + i64::from(!at_once), "{level}");
    }
    // As it is stored there, too.
    let told = wire.ask(&pull("reader", "SCHEDULE_TOPIC_XXXX", 3, 3)).ok();
    assert_eq!(told.messages()[0].property("DELAY").as_deref(), Some("4"));
    // Java's broker answers 1 (NumberFormatException).
    assert_eq!(wire.ask(&delayed("levels", 0, b"x", 2_147_483_648)).code, 13);
}

#[test]
fn many_messages_of_one_level_keep_their_order() {
    let Some((_cluster, mut wire)) = start("delay-many", &[]) else { return };
    // In full: what is due within one minute.
    let count = if support::is_full() { 100_000 } else { 5_000 };
    wire.ask(&create_topic("many", 1)).ok();
    let begin = Instant::now();
    for from in (0..count).step_by(100) {
        let send = |wire: &mut Wire, index: usize| wire.send(&delayed("many", 0, index.to_string().as_bytes(), 1));
        let ids: Vec<i32> = (from..from + 100).map(|index| send(&mut wire, index)).collect();
        for id in ids {
            wire.answer(id).ok();
        }
        if support::is_full() {
            let due = begin + Duration::from_millis(60_000 * (from as u64 + 100) / count as u64);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }
    let scheduled = take(&mut wire, "SCHEDULE_TOPIC_XXXX", 0, 0, count);
    let messages = take(&mut wire, "many", 0, 0, count);
    for (index, message) in messages.iter().enumerate() {
        assert_eq!(message.body, index.to_string().as_bytes());
    }
    let due = scheduled.iter().map(|message| message.store_timestamp + 1_000);
    let mut late: Vec<i64> = messages.iter().zip(due).map(|(message, due)| message.store_timestamp - due).collect();
    late.sort_unstable();
    println!(
        "late by {} ms (half), {} ms (p99), {} ms (most)",
        late[count / 2],
        late[count * 99 / 100],
        late[count - 1]
    );
    assert!(late[0] >= 0, "early by {} ms", -late[0]);
}

#[test]
fn a_stop_or_a_kill_loses_no_delayed_message() {
    for kill in [false, true] {
        let Some((mut cluster, mut wire)) = start("delay-kill", &[("flushDelayOffsetInterval", "200")]) else { return };
        if !cluster.is_ours() {
            return support::skip("the broker is not ours to kill");
        }
        wire.ask(&create_topic("kill", 1)).ok();
        const COUNT: usize = 400;
        for index in 0..COUNT {
            // Half of them are due before the end, half of them after.
            let level = if index % 2 == 0 { 1 } else { 3 };
            wire.ask(&delayed("kill", 0, index.to_string().as_bytes(), level)).ok();
        }
        take(&mut wire, "kill", 0, 0, COUNT / 4);
        if kill {
            cluster.kill_broker();
        } else {
            cluster.stop_broker();
        }
        cluster.start_again();
        let mut wire = Wire::to(cluster.broker_address());
        let mut seen = BTreeSet::new();
        let mut offset = 0;
        while seen.len() < COUNT {
            let message = take(&mut wire, "kill", 0, offset, 1).remove(0);
            let index: usize = String::from_utf8_lossy(&message.body).parse().expect("a number");
            let ms = if index.is_multiple_of(2) { 1_000 } else { 3_000 };
            assert!(message.store_timestamp - message.born_timestamp >= ms, "early: {message:?}");
            seen.insert(index);
            offset += 1;
        }
        if !kill {
            assert_eq!(offset, COUNT as i64, "a stop brought something twice");
            std::thread::sleep(Duration::from_secs(1));
            assert_eq!(wire.ask(&max_offset("kill", 0)).number("offset"), COUNT as i64);
        }
    }
}
