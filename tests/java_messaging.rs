//! Order, retries, delays and transactions with the official Java clients 4.9.7 and 5.3.3, and over a change of brokers.

mod support;

use std::time::Duration;
use support::wire::{Ask, Wire, create_topic, producer_heartbeat, pull_and_wait, send};
use support::{Client, Cluster, Java, Maker};

#[test]
fn java_4_orderly_consumers_keep_the_order() {
    orderly(Java::V4);
}

#[test]
fn java_5_orderly_consumers_keep_the_order() {
    orderly(Java::V5);
}

fn orderly(java: Java) {
    let Some(client) = Client::Java(java).ready() else { return };
    let Some(cluster) = Cluster::start("java-orderly") else { return };
    println!("{}", client.run(&cluster, "orderly", &["--topic", "orderly", "--group", "orderly"]));
}

#[test]
fn java_4_members_join_and_leave_while_50_000_messages_flow() {
    joins(Java::V4);
}

#[test]
fn java_5_members_join_and_leave_while_50_000_messages_flow() {
    joins(Java::V5);
}

fn joins(java: Java) {
    let Some(client) = Client::Java(java).ready() else { return };
    let Some(cluster) = Cluster::start("java-joins") else { return };
    println!("{}", client.run(&cluster, "joins", &["--topic", "joins", "--group", "joins"]));
}

#[test]
fn java_4_retries_end_in_dead_letters() {
    retries(Java::V4);
}

#[test]
fn java_5_retries_end_in_dead_letters() {
    retries(Java::V5);
}

fn retries(java: Java) {
    let Some(client) = Client::Java(java).ready() else { return };
    let levels = [("messageDelayLevel", "1s 1s 1s 1s 1s 1s 1s 1s 1s 1s")];
    let Some(cluster) = Cluster::start_with("java-retries", &levels) else { return };
    println!("{}", client.run(&cluster, "retries", &["--topic", "retries", "--group", "retries"]));
}

#[test]
fn java_4_delayed_messages_come_at_their_time() {
    delays(Java::V4);
}

#[test]
fn java_5_delayed_messages_come_at_their_time() {
    delays(Java::V5);
}

fn delays(java: Java) {
    let Some(client) = Client::Java(java).ready() else { return };
    let Some(cluster) = Cluster::start_with("java-delays", &[("messageDelayLevel", "1s 2s 3s")]) else { return };
    println!("{}", client.run(&cluster, "delays", &["--topic", "delays", "--group", "delays"]));
}

#[test]
fn java_4_transactions_end_once() {
    transactions(Java::V4);
}

#[test]
fn java_5_transactions_end_once() {
    transactions(Java::V5);
}

fn transactions(java: Java) {
    let Some(client) = Client::Java(java).ready() else { return };
    let quick = [("transactionTimeOut", "1000"), ("transactionCheckInterval", "1000")];
    let Some(cluster) = Cluster::start_with("java-transactions", &quick) else { return };
    println!("{}", client.run(&cluster, "transactions", &["--topic", "transactions", "--group", "transactions"]));
}

#[test]
fn java_4_requests_are_answered_and_offsets_moved() {
    replies(Java::V4);
}

#[test]
fn java_5_requests_are_answered_and_offsets_moved() {
    replies(Java::V5);
}

fn replies(java: Java) {
    let Some(client) = Client::Java(java).ready() else { return };
    let Some(cluster) = Cluster::start("java-replies") else { return };
    println!("{}", client.run(&cluster, "replies", &["--topic", "replies", "--group", "replies"]));
}

#[test]
fn java_4_and_ringmq_go_on_with_what_waits_after_a_stop() {
    if support::only_in_full() {
        return;
    }
    what_waits(Java::V4, false);
}

#[test]
fn java_4_and_ringmq_go_on_with_what_waits_after_a_kill() {
    what_waits(Java::V4, true);
}

#[test]
fn java_5_and_ringmq_go_on_with_what_waits_after_a_stop() {
    if support::only_in_full() {
        return;
    }
    what_waits(Java::V5, false);
}

/// Delayed messages and open transactions of one maker's broker are the other's to finish, in both directions.
fn what_waits(java: Java, by_kill: bool) {
    let Some(_client) = Client::Java(java).ready() else { return };
    let config = [
        ("messageDelayLevel", "1s 12s"),
        ("transactionTimeOut", "500"),
        ("transactionCheckInterval", "1000"),
        ("mappedFileSizeCommitLog", "4194304"),
        // Java's op records wait in memory for so long otherwise, and a kill loses them.
        ("transactionOpBatchInterval", "100"),
    ];
    for (first, second) in [(Maker::Java(java), Maker::Ringmq), (Maker::Ringmq, Maker::Java(java))] {
        let Some(mut cluster) = Cluster::mixed_with("waits", Maker::Ringmq, first, &config) else { return };
        let mut wire = Wire::to(cluster.broker_address());
        wire.ask(&create_topic("waits", 1)).ok();
        let delay = |body: &str, level: i32| {
            send("waits", 0, body.as_bytes(), &format!("DELAY\u{1}{level}\u{2}UNIQ_KEY\u{1}{body}\u{2}TAGS\u{1}t"))
        };
        wire.ask(&delay("soon", 1)).ok();
        wire.ask(&delay("later", 2)).ok();
        let half = |wire: &mut Wire, body: &str| {
            let text = format!("TRAN_MSG\u{1}true\u{2}PGROUP\u{1}g\u{2}UNIQ_KEY\u{1}{body}");
            let told = wire.ask(&send("waits", 0, body.as_bytes(), &text).field("a", "g").field("f", 4)).ok();
            let log_offset = i64::from_str_radix(&told.ext["msgId"][16..], 16).expect("hex");
            end_of("g", told.number("queueOffset"), log_offset)
        };
        let (ended, _open) = (half(&mut wire, "ended"), half(&mut wire, "open"));
        wire.ask(&ended).ok();
        wire.ask(&pull_and_wait("reader", "waits", 0, 1, 10_000)).ok();
        // What Java keeps in memory only is on disk now.
        std::thread::sleep(Duration::from_secs(2));
        if by_kill {
            cluster.kill_broker();
        } else {
            cluster.stop_broker();
        }
        cluster.hand_over(second);
        cluster.start_again();
        let mut wire = Wire::to(cluster.broker_address());
        wire.ask(&producer_heartbeat("p", "g")).ok();
        // Only the open one is asked about.
        let question = wire.next(Duration::from_secs(60)).expect("a question");
        assert_eq!(question.code, 39, "{question:?}");
        let message = question.messages().remove(0);
        assert_eq!((message.body.as_slice(), message.topic.as_str()), (&b"open"[..], "waits"), "{second:?}");
        let number = |name: &str| question.ext[name].parse().expect("a number");
        wire.ask(&end_of("g", number("tranStateTableOffset"), number("commitLogOffset"))).ok();
        let mut bodies = Vec::new();
        while !(bodies.contains(&"later".to_owned()) && bodies.contains(&"open".to_owned())) {
            let told = wire.ask(&pull_and_wait("reader", "waits", 0, bodies.len() as i64, 15_000));
            assert!(matches!(told.code, 0 | 19), "{told:?}");
            if told.code == 0 {
                bodies.extend(
                    told.messages().into_iter().map(|message| String::from_utf8_lossy(&message.body).into_owned()),
                );
            }
        }
        if by_kill {
            // The cursor of a killed broker is old: what was delivered may come once more.
            bodies.sort_unstable();
            bodies.dedup();
        }
        bodies.sort_unstable();
        assert_eq!(bodies, ["ended", "later", "open", "soon"], "{second:?}");
    }
}

fn end_of(group: &str, queue_offset: i64, log_offset: i64) -> Ask {
    Ask::new(37)
        .field("producerGroup", group)
        .field("tranStateTableOffset", queue_offset)
        .field("commitLogOffset", log_offset)
        .field("commitOrRollback", 8)
        .field("fromTransactionCheck", true)
        .field("msgId", "id")
        .field("transactionId", "id")
}
