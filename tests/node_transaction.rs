//! Transactions by raw frames.
//!
//! Fault 51 of the public reports.

mod support;

use std::time::Duration;
use support::Cluster;
use support::wire::{Ask, Message, Told, Wire, create_topic, max_offset, producer_heartbeat, pull, send};

const HALF: &str = "RMQ_SYS_TRANS_HALF_TOPIC";
const OP: &str = "RMQ_SYS_TRANS_OP_HALF_TOPIC";
const QUICK: [(&str, &str); 3] =
    [("mappedFileSizeCommitLog", "67108864"), ("transactionTimeOut", "500"), ("transactionCheckInterval", "500")];

fn start(name: &str, more: &[(&str, &str)]) -> Option<(Cluster, Wire)> {
    let config: Vec<_> = QUICK.iter().chain(more).copied().collect();
    let cluster = Cluster::start_with(name, &config)?;
    let mut wire = Wire::to(cluster.broker_address());
    wire.ask(&create_topic("tx", 2)).ok();
    Some((cluster, wire))
}

/// A half message that was sent: its queue offset and its log offset.
#[derive(Clone, Copy, Debug)]
struct Half {
    queue_offset: i64,
    log_offset: i64,
}

fn half(body: &str, group: &str, more: &str) -> Ask {
    let properties = format!("TRAN_MSG\u{1}true\u{2}PGROUP\u{1}{group}\u{2}UNIQ_KEY\u{1}{body}\u{2}TAGS\u{1}t{more}");
    send("tx", 1, body.as_bytes(), &properties).field("a", group).field("f", 4)
}

fn sent(told: Told) -> Half {
    let told = told.ok();
    assert_eq!(told.number("queueId"), 1);
    let log_offset = i64::from_str_radix(&told.ext["msgId"][16..], 16).expect("hex");
    Half { queue_offset: told.number("queueOffset"), log_offset }
}

fn end(half: Half, group: &str, what: i32) -> Ask {
    Ask::new(37)
        .field("producerGroup", group)
        .field("tranStateTableOffset", half.queue_offset)
        .field("commitLogOffset", half.log_offset)
        .field("commitOrRollback", what)
        .field("fromTransactionCheck", false)
        .field("msgId", "id")
        .field("transactionId", "id")
}

const COMMIT: i32 = 8;
const ROLLBACK: i32 = 12;

fn count(wire: &mut Wire, topic: &str, queue_id: i32) -> i64 {
    wire.ask(&max_offset(topic, queue_id)).number("offset")
}

#[track_caller]
fn at(wire: &mut Wire, topic: &str, queue_id: i32, offset: i64) -> Message {
    wire.ask(&pull("reader", topic, queue_id, offset).field("maxMsgNums", 1)).ok().messages().remove(0)
}

fn producer(wire: &mut Wire, group: &str) {
    wire.ask(&producer_heartbeat("p", group)).ok();
}

#[test]
fn a_transaction_ends_once() {
    let Some((_cluster, mut wire)) = start("tx-ends", &[]) else { return };
    let first = sent(wire.ask(&half("first", "g", "\u{2}WAIT\u{1}true")));
    let second = sent(wire.ask(&half("second", "g", "")));
    assert_eq!((count(&mut wire, "tx", 1), count(&mut wire, HALF, 0), count(&mut wire, OP, 0)), (0, 2, 0));
    let stored = at(&mut wire, HALF, 0, 0);
    assert_eq!((stored.sys_flag, stored.queue_id, &stored.body[..]), (0, 0, &b"first"[..]));
    assert_eq!(stored.property("REAL_TOPIC").as_deref(), Some("tx"));
    assert_eq!(stored.property("REAL_QID").as_deref(), Some("1"));
    assert_eq!(stored.property("WAIT").as_deref(), Some("true"));
    assert_eq!(stored.log_offset, first.log_offset);

    // Wrong fields: a reason, and nothing happens.
    let moved = |by: Half| end(by, "g", COMMIT);
    for (ask, part) in [
        (end(first, "other", COMMIT), "producer group wrong"),
        (moved(Half { queue_offset: 1, ..first }), "state table offset wrong"),
        (moved(Half { log_offset: first.log_offset + 1, ..first }), "Find prepared"),
        (moved(Half { log_offset: -1, ..first }), "Find prepared"),
        (moved(Half { log_offset: i64::MAX, ..first }), "Find prepared"),
        (end(first, "g", 4), "commitOrRollback"),
        (end(first, "g", COMMIT).without("commitLogOffset"), "commitLogOffset"),
        (end(first, "g", COMMIT).without("producerGroup"), "producerGroup"),
    ] {
        let told = wire.ask(&ask);
        assert!(matches!(told.code, 1 | 29), "{told:?}");
        assert!(told.remark.contains(part), "{part}: {told:?}");
    }
    assert_eq!((count(&mut wire, "tx", 1), count(&mut wire, OP, 0)), (0, 0));

    // The producer does not know: no answer, nothing done.
    let unknown = wire.send(&end(first, "g", 0));
    assert!(wire.answer_within(unknown, Duration::from_millis(500)).is_none());

    wire.ask(&end(first, "g", COMMIT)).ok();
    wire.ask(&end(second, "g", ROLLBACK)).ok();
    for again in [end(first, "g", COMMIT), end(first, "g", ROLLBACK), end(second, "g", COMMIT)] {
        let told = wire.ask(&again);
        assert_eq!(told.code, 1, "{told:?}");
        assert!(told.remark.contains("ended before"), "{told:?}");
    }
    assert_eq!((count(&mut wire, "tx", 1), count(&mut wire, OP, 0)), (1, 2));
    let committed = at(&mut wire, "tx", 1, 0);
    assert_eq!((committed.sys_flag, &committed.body[..]), (8, &b"first"[..]));
    assert_eq!(committed.property("TRAN_MSG").as_deref(), Some("true"));
    for (offset, body) in [(0, "0"), (1, "1")] {
        let op = at(&mut wire, OP, 0, offset);
        assert_eq!((&op.body[..], op.property("TAGS").as_deref()), (body.as_bytes(), Some("d")));
    }
    // The message that was committed is no half message.
    let told = wire.ask(&end(Half { queue_offset: 0, log_offset: committed.log_offset }, "g", COMMIT));
    assert_eq!(told.code, 1, "{told:?}");

    // The same, one-way and by many at once: once.
    let third = sent(wire.ask(&half("third", "g", "")));
    for _ in 0..50 {
        wire.send(&end(third, "g", COMMIT).oneway());
    }
    wire.ask(&end(third, "g", COMMIT));
    assert_eq!((count(&mut wire, "tx", 1), count(&mut wire, OP, 0)), (2, 3));
}

#[test]
fn a_producer_is_asked_until_it_knows() {
    let Some((cluster, mut wire)) = start("tx-checks", &[("transactionCheckMax", "3"), ("ringmq.shards", "2")]) else {
        return;
    };
    let open = sent(wire.ask(&half("open", "g", "")));
    let lost = sent(wire.ask(&half("lost", "g", "")));
    // Of another group, whose producers never come.
    sent(wire.ask(&half("alone", "nobody", "")));
    sent(wire.ask(&half("patient", "g", "\u{2}CHECK_IMMUNITY_TIME_IN_SECONDS\u{1}3600")));
    // Its producer is gone; another one of the group comes later and is asked, not this connection.
    std::thread::sleep(Duration::from_millis(1_600));
    assert_eq!(count(&mut wire, HALF, 0), 4);
    let mut other = Wire::to(cluster.broker_address());
    producer(&mut other, "g");
    let mut asked = Vec::new();
    let mut questions = [0, 0];
    while let Some(told) = other.next(Duration::from_secs(3)) {
        assert_eq!((told.code, told.flag), (39, 2), "{told:?}");
        let message = told.messages().remove(0);
        let which = usize::from(message.body == b"lost");
        let half = [open, lost][which];
        questions[which] += 1;
        assert_eq!(told.number("tranStateTableOffset"), half.queue_offset);
        assert_eq!(told.number("commitLogOffset"), half.log_offset);
        assert_eq!((message.queue_offset, message.log_offset), (half.queue_offset, half.log_offset));
        assert_eq!((message.topic.as_str(), message.queue_id), ("tx", 1));
        let name = ["open", "lost"][which];
        assert_eq!((told.ext["transactionId"].as_str(), told.ext["msgId"].as_str()), (name, name));
        assert_eq!(i64::from_str_radix(&told.ext["offsetMsgId"][16..], 16), Ok(half.log_offset));
        assert_eq!(message.property("TRANSACTION_CHECK_TIMES"), Some(questions[which].to_string()));
        assert_eq!(message.property("PGROUP").as_deref(), Some("g"));
        asked.push(name);
        if which == 0 && questions[0] == 2 {
            other.ask(&end(open, "g", COMMIT).field("fromTransactionCheck", true)).ok();
        }
    }
    assert_eq!(questions, [2, 3], "{asked:?}");
    assert_eq!(at(&mut wire, "tx", 1, 0).body, b"open");
    // Asked three times: given up, to where an operator finds it.
    let given_up = at(&mut wire, "TRANS_CHECK_MAX_TIME_TOPIC", 0, 0);
    assert_eq!((given_up.body.as_slice(), given_up.property("REAL_TOPIC").as_deref()), (&b"lost"[..], Some("tx")));
    let told = wire.ask(&end(lost, "g", COMMIT));
    assert_eq!(told.code, 1, "{told:?}");
    assert_eq!((count(&mut wire, "tx", 1), count(&mut wire, HALF, 0), count(&mut wire, OP, 0)), (1, 4, 2));

    // The operator finds it and wants it asked about again.
    let resume = |log_offset: i64| Ask::new(323).field("msgId", format!("{:016X}{log_offset:016X}", 0));
    for (log_offset, part) in [(open.log_offset, "ended before"), (given_up.log_offset + 1, "can not find")] {
        let told = wire.ask(&resume(log_offset));
        assert!(told.code == 1 && told.remark.contains(part), "{told:?}");
    }
    let ordinary = at(&mut wire, "tx", 1, 0);
    assert_eq!(wire.ask(&resume(ordinary.log_offset)).code, 1);
    assert_eq!(wire.ask(&Ask::new(323).field("msgId", "x")).code, 29);
    wire.ask(&resume(given_up.log_offset)).ok();
    let told = other.next(Duration::from_secs(10)).expect("it is asked about");
    let message = told.messages().remove(0);
    assert_eq!((told.code, message.body.as_slice(), message.topic.as_str()), (39, &b"lost"[..], "tx"));
    assert_eq!(message.property("TRANSACTION_CHECK_TIMES").as_deref(), Some("1"));
    let again = Half { queue_offset: told.number("tranStateTableOffset"), log_offset: told.number("commitLogOffset") };
    other.ask(&end(again, "g", COMMIT).field("fromTransactionCheck", true)).ok();
    assert_eq!(at(&mut wire, "tx", 1, 1).body, b"lost");
}

#[test]
fn what_is_open_is_open_after_a_stop_or_a_kill() {
    for kill in [false, true] {
        let Some((mut cluster, mut wire)) = start("tx-kill", &[]) else { return };
        if !cluster.is_ours() {
            return support::skip("the broker is not ours to kill");
        }
        let halves: Vec<Half> = (0..6).map(|index| sent(wire.ask(&half(&format!("{index}"), "g", "")))).collect();
        wire.ask(&end(halves[0], "g", COMMIT)).ok();
        wire.ask(&end(halves[1], "g", ROLLBACK)).ok();
        wire.ask(&end(halves[4], "g", COMMIT)).ok();
        std::thread::sleep(Duration::from_millis(1_500));
        if kill {
            cluster.kill_broker();
        } else {
            cluster.stop_broker();
        }
        cluster.start_again();
        let mut wire = Wire::to(cluster.broker_address());
        for ended in [0, 1, 4] {
            assert_eq!(wire.ask(&end(halves[ended], "g", COMMIT)).code, 1, "{ended}");
        }
        producer(&mut wire, "g");
        let mut asked = std::collections::BTreeSet::new();
        while asked.len() < 3 {
            let told = wire.next(Duration::from_secs(10)).expect("a question");
            asked.insert(String::from_utf8(told.messages()[0].body.clone()).expect("text"));
        }
        assert_eq!(asked, ["2", "3", "5"].map(str::to_owned).into());
        wire.ask(&end(halves[3], "g", COMMIT)).ok();
        assert_eq!((count(&mut wire, "tx", 1), count(&mut wire, OP, 0)), (3, 4));
    }
}

/// The commit comes on the heels of the half message's answer, and consumers see it.
#[test]
fn a_transaction_ends_at_once_in_every_flush_mode() {
    let modes: [&[(&str, &str)]; 3] = [
        &[("flushDiskType", "ASYNC_FLUSH")],
        &[("flushDiskType", "SYNC_FLUSH")],
        &[("transientStorePoolEnable", "true"), ("transientStorePoolSize", "2"), ("commitIntervalCommitLog", "2000")],
    ];
    for mode in modes {
        let more: Vec<_> = mode.iter().chain(&[("messageDelayLevel", "1s"), ("ringmq.shards", "2")]).copied().collect();
        let Some((cluster, mut wire)) = start("tx-modes", &more) else { return };
        let mut other = Wire::to(cluster.broker_address());
        for index in 0..20 {
            let half = sent(wire.ask(&half(&format!("{index}"), "g", "")));
            other.ask(&end(half, "g", COMMIT)).ok();
            assert_eq!(wire.ask(&end(half, "g", COMMIT)).code, 1, "{mode:?}");
        }
        // A delayed one wakes a pull that is held elsewhere.
        wire.ask(&send("tx", 0, b"delayed", "DELAY\u{1}1")).ok();
        let held = support::wire::pull_and_wait("reader", "tx", 0, 0, 10_000);
        assert_eq!(other.ask(&held).ok().messages()[0].body, b"delayed", "{mode:?}");
        for offset in 0..20 {
            let told = other.ask(&support::wire::pull_and_wait("reader", "tx", 1, offset, 10_000)).ok();
            assert_eq!(told.messages()[0].body, offset.to_string().as_bytes(), "{mode:?}");
        }
        assert_eq!(count(&mut wire, OP, 0), 20, "{mode:?}");
    }
}

#[test]
fn a_broker_that_takes_no_transactions_says_so() {
    let Some((_cluster, mut wire)) = start("tx-rejected", &[("rejectTransactionMessage", "true")]) else { return };
    let told = wire.ask(&half("no", "g", ""));
    assert_eq!(told.code, 16, "{told:?}");
    assert!(told.remark.contains("sending transaction message is forbidden"), "{told:?}");
    assert_eq!(count(&mut wire, HALF, 0), 0);
    wire.ask(&send("tx", 0, b"x", "TRAN_MSG\u{1}false")).ok();
}

/// The half message waits for its end, then for its level.
#[test]
fn a_delayed_message_in_a_transaction_is_delayed_from_its_commit_on() {
    let Some((_cluster, mut wire)) = start("tx-delay", &[("messageDelayLevel", "1s")]) else { return };
    let half = sent(wire.ask(&half("later", "g", "\u{2}DELAY\u{1}1")));
    assert_eq!((count(&mut wire, HALF, 0), count(&mut wire, "SCHEDULE_TOPIC_XXXX", 0)), (1, 0));
    wire.ask(&end(half, "g", COMMIT)).ok();
    assert_eq!((count(&mut wire, "tx", 1), count(&mut wire, "SCHEDULE_TOPIC_XXXX", 0)), (0, 1));
    let told = wire.ask(&support::wire::pull_and_wait("reader", "tx", 1, 0, 10_000)).ok();
    assert_eq!((told.messages()[0].body.as_slice(), told.messages()[0].sys_flag), (&b"later"[..], 8));
}
