//! Pulls by raw frames: the bounds in every answer, holding and waking, tags, commits, subscriptions by heartbeat.
//!
//! Faults 36 and 54 of the public reports, and the promise that no wake-up is lost.

mod support;

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};
use support::Cluster;
use support::wire::{
    Ask, PULL_COMMIT, PULL_SUBSCRIPTION, PULL_SUSPEND, Told, WAIT_MAX, Wire, create_topic, delete_topic, heartbeat,
    java_hash, max_offset, pull, pull_and_wait, query_offset, send, update_offset,
};

const SMALL: [(&str, &str); 1] = [("mappedFileSizeCommitLog", "67108864")];

/// min, next, max
type Bounds = (i64, i64, i64);

fn start(name: &str, more: &[(&str, &str)]) -> Option<(Cluster, Wire)> {
    let config: Vec<_> = SMALL.iter().chain(more).copied().collect();
    let cluster = Cluster::start_with(name, &config)?;
    let wire = Wire::to(cluster.broker_address());
    Some((cluster, wire))
}

fn fill(wire: &mut Wire, topic: &str, queue_id: i32, count: i64) {
    for _ in 0..count {
        wire.ask(&send(topic, queue_id, b"body", "")).ok();
    }
}

/// Fault 36 with min 0; above it: `node_retention`.
#[test]
fn every_answer_has_the_bounds_of_its_queue() {
    let Some((_cluster, mut wire)) = start("pull-bounds", &[]) else { return };
    wire.ask(&create_topic("bounds", 2)).ok();
    fill(&mut wire, "bounds", 0, 20);
    // queue, offset, code, (min, next, max), messages
    let cases: &[(i32, i64, i32, Bounds, usize)] = &[
        (0, 0, 0, (0, 20, 20), 20),
        (0, 3, 0, (0, 20, 20), 17),
        (0, 19, 0, (0, 20, 20), 1),
        (0, 20, 19, (0, 20, 20), 0),
        (0, 21, 21, (0, 20, 20), 0),
        (0, 1_000_000_000, 21, (0, 20, 20), 0),
        (0, i64::MAX, 21, (0, 20, 20), 0),
        (0, -1, 21, (0, 0, 20), 0),
        (0, i64::MIN, 21, (0, 0, 20), 0),
        (1, 0, 19, (0, 0, 0), 0),
        (1, 5, 21, (0, 0, 0), 0),
        (1, -1, 21, (0, 0, 0), 0),
        (1, i64::MAX, 21, (0, 0, 0), 0),
    ];
    for &(queue_id, offset, code, bounds, count) in cases {
        for ask in [pull("g", "bounds", queue_id, offset), pull("g", "bounds", queue_id, offset).binary()] {
            let told = wire.ask(&ask);
            let what = format!("queue {queue_id} at {offset}: {told:?}");
            assert_eq!((told.code, told.bounds()), (code, bounds), "{what}");
            assert_eq!(told.number("suggestWhichBrokerId"), 0, "{what}");
            assert_eq!(told.messages().len(), count, "{what}");
            assert!(!told.remark.is_empty(), "{what}");
        }
    }
    // Only 19 is worth a wait: everything else is answered at once.
    for &(queue_id, offset, code, bounds, _) in cases.iter().filter(|case| case.2 != 19) {
        let told = wire.ask(&pull_and_wait("g", "bounds", queue_id, offset, 20_000));
        assert_eq!((told.code, told.bounds()), (code, bounds), "queue {queue_id} at {offset}");
    }
    // Refusals have them too, those of the queue where there is one.
    wire.ask(&Ask::new(200).body(r#"{"groupName":"shut","consumeEnable":false}"#)).ok();
    wire.ask(&create_topic("sealed", 1).field("perm", 2)).ok();
    let base = || pull("g", "bounds", 0, 7);
    let refusals: Vec<(&str, Ask, i32, Bounds)> = vec![
        ("unknown topic", pull("g", "nothing", 0, 7), 17, (0, 7, 0)),
        ("queue too large", pull("g", "bounds", 2, 7), 29, (0, 7, 0)),
        ("queue below 0", pull("g", "bounds", -1, 7), 29, (0, 7, 0)),
        ("queue i32::MAX", pull("g", "bounds", i32::MAX, 7), 29, (0, 7, 0)),
        ("queue i32::MIN", pull("g", "bounds", i32::MIN, 7), 29, (0, 7, 0)),
        ("group may not", pull("shut", "bounds", 0, 7), 16, (0, 7, 20)),
        ("topic may not", pull("g", "sealed", 0, 7), 16, (0, 7, 0)),
        ("group name", pull("a/b", "bounds", 0, 7), 29, (0, 7, 20)),
        ("group not there", base().field("sysFlag", 0), 24, (0, 7, 20)),
        ("filter", base().field("expressionType", "SQL92").field("subscription", "a > 1"), 1, (0, 7, 20)),
        ("no filter", base().field("expressionType", "XYZ"), 1, (0, 7, 20)),
        ("missing field", base().without("queueOffset"), 29, (0, 0, 0)),
    ];
    for (what, ask, code, bounds) in refusals {
        let told = wire.ask(&ask);
        assert_eq!((told.code, told.bounds()), (code, bounds), "{what}: {told:?}");
        assert!(!told.remark.is_empty(), "{what}");
    }
}

#[test]
fn limits_bound_an_answer_and_one_message_always_comes() {
    let Some((_cluster, mut wire)) = start("pull-limits", &[]) else { return };
    wire.ask(&create_topic("limits", 1)).ok();
    for _ in 0..3 {
        wire.ask(&send("limits", 0, &[b'x'; 200_000], "")).ok();
    }
    fill(&mut wire, "limits", 0, 40);
    // from, wanted, got: 256 KiB, 32 messages, what was asked
    for (from, wanted, got) in
        [(0, 32, 1), (1, 32, 1), (2, 32, 32), (3, 100, 32), (3, 5, 5), (3, 1, 1), (3, 0, 1), (3, -9, 1)]
    {
        let told = wire.ask(&pull("g", "limits", 0, from).field("maxMsgNums", wanted)).ok();
        let messages = told.messages();
        assert_eq!(messages.len(), got, "from {from} wanted {wanted}");
        assert_eq!(told.bounds(), (0, from + got as i64, 43));
        for (message, offset) in messages.iter().zip(from..) {
            assert_eq!((message.queue_offset, message.topic.as_str()), (offset, "limits"));
        }
    }
}

#[test]
fn a_held_pull_is_answered_when_something_arrives() {
    let Some((cluster, mut wire)) = start("pull-held", &[]) else { return };
    wire.ask(&create_topic("held", 4)).ok();
    let mut producer = Wire::to(cluster.broker_address());
    let begin = Instant::now();
    for round in 0..50_i64 {
        let opaque = wire.send(&pull_and_wait("g", "held", 0, round, 25_000));
        let others: Vec<i32> =
            (1..4).map(|id| wire.send(&pull_and_wait("g", "held", id, round / 10, 25_000))).collect();
        assert!(wire.answer_within(opaque, Duration::from_millis(10)).is_none(), "nothing is there yet");
        producer.ask(&send("held", 0, &round.to_be_bytes(), "")).ok();
        let told = wire.answer(opaque).ok();
        assert_eq!(told.bounds(), (0, round + 1, round + 1));
        assert_eq!(told.messages()[0].body, round.to_be_bytes());
        if round % 10 == 9 {
            for id in 1..4 {
                producer.ask(&send("held", id, b"x", "")).ok();
            }
            for opaque in others {
                wire.answer(opaque).ok();
            }
        } else {
            for opaque in others {
                assert!(wire.answer_within(opaque, Duration::from_millis(1)).is_none());
            }
        }
    }
    // The next look at a held pull would be after 5 s each.
    assert!(begin.elapsed() < Duration::from_secs(50), "woken late: {:?}", begin.elapsed());
}

#[test]
fn a_held_pull_is_answered_19_at_its_deadline() {
    let Some((_cluster, mut wire)) = start("pull-deadline", &[]) else { return };
    wire.ask(&create_topic("deadline", 1)).ok();
    fill(&mut wire, "deadline", 0, 3);
    let begin = Instant::now();
    let cases = [(0, 0), (1, 1_500), (2, 700), (3, -5)];
    let asked: Vec<i32> = cases
        .iter()
        .map(|&(_, wait_ms)| wire.send(&pull_and_wait("g", "deadline", 0, 3, 0).field("suspendTimeoutMillis", wait_ms)))
        .collect();
    for ((_, wait_ms), opaque) in cases.into_iter().zip(asked) {
        let told = wire.answer(opaque);
        assert_eq!((told.code, told.bounds()), (19, (0, 3, 3)), "{wait_ms} ms");
        assert!(begin.elapsed() >= Duration::from_millis(wait_ms.max(0) as u64), "{wait_ms} ms: too early");
    }
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    // Suspended is who asks for it.
    assert_eq!(wire.ask(&pull("g", "deadline", 0, 3).field("suspendTimeoutMillis", 60_000)).code, 19);
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

#[test]
fn without_long_polling_the_wait_is_short() {
    let config = [("longPollingEnable", "false"), ("shortPollingTimeMills", "300")];
    let Some((_cluster, mut wire)) = start("pull-short", &config) else { return };
    wire.ask(&create_topic("short", 1)).ok();
    let begin = Instant::now();
    assert_eq!(wire.ask(&pull_and_wait("g", "short", 0, 0, 25_000)).code, 19);
    assert!(begin.elapsed() >= Duration::from_millis(300));
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

#[test]
fn tags_are_filtered_by_the_broker() {
    let Some((cluster, mut wire)) = start("pull-tags", &[]) else { return };
    wire.ask(&create_topic("tags", 1)).ok();
    // "Aa" and "BB" have one hash: the client compares the texts.
    assert_eq!(java_hash("Aa"), java_hash("BB"));
    for tag in ["A", "B", "", "Aa", "BB", "A", "主题"] {
        let properties = if tag.is_empty() { String::new() } else { format!("TAGS\u{1}{tag}\u{2}KEYS\u{1}k") };
        wire.ask(&send("tags", 0, format!("<{tag}>").as_bytes(), &properties)).ok();
    }
    let cases: &[(&str, &[&str])] = &[
        ("*", &["A", "B", "", "Aa", "BB", "A", "主题"]),
        ("", &["A", "B", "", "Aa", "BB", "A", "主题"]),
        ("A", &["A", "A"]),
        ("A || B", &["A", "B", "A"]),
        ("A||B", &["A", "B", "A"]),
        (" A ||  || B ", &["A", "B", "A"]),
        ("Aa", &["Aa", "BB"]),
        ("主题", &["主题"]),
        ("C", &[]),
    ];
    for (expression, want) in cases {
        let told = wire.ask(&pull("g", "tags", 0, 0).field("subscription", expression));
        let got: Vec<_> = told.messages().into_iter().map(|message| message.body).collect();
        let want: Vec<_> = want.iter().map(|tag| format!("<{tag}>").into_bytes()).collect();
        assert_eq!(got, want, "{expression:?}");
        // Looked at and not wanted: 20 with the place to go on, never a hold.
        assert_eq!((told.code, told.bounds()), (if want.is_empty() { 20 } else { 0 }, (0, 7, 7)), "{expression:?}");
    }
    let told = wire.ask(&pull_and_wait("g", "tags", 0, 0, 20_000).field("subscription", "C"));
    assert_eq!((told.code, told.bounds()), (20, (0, 7, 7)));
    // Held: not woken by another tag, woken by its own.
    let mut producer = Wire::to(cluster.broker_address());
    let opaque = wire.send(&pull_and_wait("g", "tags", 0, 7, 25_000).field("subscription", "W"));
    for _ in 0..5 {
        producer.ask(&send("tags", 0, b"other", "TAGS\u{1}V")).ok();
    }
    assert!(wire.answer_within(opaque, Duration::from_millis(300)).is_none());
    producer.ask(&send("tags", 0, b"wanted", "TAGS\u{1}W")).ok();
    let told = wire.answer(opaque).ok();
    assert_eq!((told.messages()[0].body.as_slice(), told.bounds()), (&b"wanted"[..], (0, 13, 13)));
    // Held, and only others arrive: it moves on by 20, at the latest at its deadline.
    let opaque = wire.send(&pull_and_wait("g", "tags", 0, 13, 1_000).field("subscription", "W"));
    producer.ask(&send("tags", 0, b"other", "TAGS\u{1}V")).ok();
    let told = wire.answer(opaque);
    assert_eq!((told.code, told.bounds()), (20, (0, 14, 14)));
}

/// A consumer asks for the next message of each queue while the producer sends it: whatever the order of the two, it
/// gets all of them, and before the 5 s look that would mend a lost wake-up.
#[test]
fn no_wake_up_is_lost() {
    // In full: 10 000 races on each number of shards.
    let (queue_count, rounds) = (32, if support::is_full() { 313_i64 } else { 70 });
    for (name, shards) in [("pull-race-1", "1"), ("pull-race-3", "3")] {
        let Some((cluster, mut wire)) = start(name, &[("ringmq.shards", shards)]) else { return };
        wire.ask(&create_topic("race", queue_count)).ok();
        let address = cluster.broker_address().to_owned();
        let wanted = AtomicI64::new(-1);
        let mut late = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut producer = Wire::to(&address);
                for round in 0..rounds {
                    let sends = |id: i32| send("race", id, &round.to_be_bytes(), "").frame(id);
                    let bytes: Vec<u8> = (0..queue_count).flat_map(sends).collect();
                    while wanted.load(Ordering::Acquire) < round {
                        std::thread::yield_now();
                    }
                    // From before the first pull to after the last one.
                    std::thread::sleep(Duration::from_micros((round as u64 * 37) % 1_500));
                    producer.write(&bytes);
                    (0..queue_count).for_each(|id| drop(producer.answer(id).ok()));
                }
            });
            let mut consumer = Wire::to(&address);
            for round in 0..rounds {
                let pulls = |id: i32| pull_and_wait("g", "race", id, round, 25_000).frame(id);
                let bytes: Vec<u8> = (0..queue_count).flat_map(pulls).collect();
                wanted.store(round, Ordering::Release);
                let begin = Instant::now();
                consumer.write(&bytes);
                for id in 0..queue_count {
                    assert_eq!(consumer.answer(id).ok().bounds(), (0, round + 1, round + 1));
                }
                late += i32::from(begin.elapsed() > Duration::from_secs(4));
            }
        });
        assert_eq!(late, 0, "{shards} shards: rounds that waited for the 5 s look");
    }
}

/// A turn's batch that is appended before the turn ends wakes pulls on every shard too.
#[test]
fn large_batches_of_one_turn_wake_other_shards() {
    let Some((cluster, mut wire)) = start("pull-shards", &[("ringmq.shards", "3")]) else { return };
    wire.ask(&create_topic("shards", 9)).ok();
    let mut late = 0;
    for round in 0..20 {
        let mut consumers: Vec<(Wire, i32)> = (0..8)
            .map(|queue_id| {
                let mut wire = Wire::to(cluster.broker_address());
                let opaque = wire.send(&pull_and_wait("g", "shards", queue_id, round, 25_000));
                (wire, opaque)
            })
            .collect();
        let mut producer = Wire::to(cluster.broker_address());
        std::thread::sleep(Duration::from_millis(20));
        // Three of them are more than waits for the turn's end; nobody waits for the last ones.
        let queue_ids = [0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8];
        let bytes: Vec<u8> =
            queue_ids.iter().flat_map(|id| send("shards", *id, &[b'x'; 180_000], "").frame(*id)).collect();
        producer.write(&bytes);
        let begin = Instant::now();
        for (consumer, opaque) in &mut consumers {
            assert_eq!(consumer.answer(*opaque).ok().bounds(), (0, round + 1, round + 1));
        }
        late += i32::from(begin.elapsed() > Duration::from_secs(4));
        for id in queue_ids {
            producer.answer(id).ok();
        }
    }
    assert_eq!(late, 0, "rounds that waited for the 5 s look");
}

/// One consumer for each of very many queues; each message reaches the one that waits for it. Prints how soon.
#[test]
fn each_of_many_held_pulls_is_answered_by_its_message() {
    let (topic_count, connection_count, send_count) = if support::is_full() { (10, 50, 5_000) } else { (1, 5, 200) };
    let queues_each = 1_000;
    let Some((cluster, mut wire)) = start("pull-held", &[]) else { return };
    for topic in 0..topic_count {
        wire.ask(&create_topic(&format!("held{topic}"), queues_each)).ok();
    }
    let count = topic_count * queues_each;
    let held = |number: i32, from: i64| {
        pull_and_wait("g", &format!("held{}", number / queues_each), number % queues_each, from, 600_000).frame(number)
    };
    let mut consumers: Vec<Wire> = (0..connection_count).map(|_| Wire::to(cluster.broker_address())).collect();
    for (index, consumer) in consumers.iter_mut().enumerate() {
        let mine = (0..count).filter(|number| number % connection_count == index as i32);
        consumer.write(&mine.flat_map(|number| held(number, 0)).collect::<Vec<u8>>());
    }
    // The last of each connection has been read when this is answered, and all before it.
    for consumer in &mut consumers {
        consumer.ask(&max_offset("held0", 0)).ok();
    }
    let mut froms = vec![0; count as usize];
    let mut times = Vec::new();
    for index in 0..send_count {
        let number = (index * 7_919) % count;
        let consumer = &mut consumers[(number % connection_count) as usize];
        let bytes = send(&format!("held{}", number / queues_each), number % queues_each, &[b'x'; 100], "").frame(index);
        let begin = Instant::now();
        wire.write(&bytes);
        let told = consumer.answer(number).ok();
        times.push(begin.elapsed());
        wire.answer(index).ok();
        let from = &mut froms[number as usize];
        assert_eq!(told.bounds(), (0, *from + 1, *from + 1));
        *from += 1;
        consumer.write(&held(number, *from));
    }
    times.sort_unstable();
    let part = |parts: usize| times[(times.len() - 1) * parts / 1000];
    println!(
        "{count} held: {:?} (half), {:?} (p99), {:?} (p99.9), {:?} (most)",
        part(500),
        part(990),
        part(999),
        part(1000)
    );
}

#[test]
fn many_pulls_on_one_connection_are_held_at_once() {
    let Some((cluster, mut wire)) = start("pull-many", &[]) else { return };
    wire.ask(&create_topic("many", 2)).ok();
    let mut bytes = Vec::new();
    for opaque in 1_000..2_000 {
        bytes.extend(pull_and_wait(&format!("g{}", opaque % 7), "many", opaque % 2, 0, 25_000).frame(opaque));
    }
    wire.write(&bytes);
    let mut gone = Wire::to(cluster.broker_address());
    gone.write(&bytes);
    drop(gone);
    let begin = Instant::now();
    let mut producer = Wire::to(cluster.broker_address());
    for queue_id in 0..2 {
        producer.ask(&send("many", queue_id, b"x", "")).ok();
    }
    for opaque in 1_000..2_000 {
        assert_eq!(wire.answer(opaque).ok().messages().len(), 1);
    }
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

#[test]
fn only_the_first_run_of_a_pull_commits() {
    let Some((cluster, mut wire)) = start("pull-commit", &[]) else { return };
    wire.ask(&create_topic("commit", 1)).ok();
    let mut other = Wire::to(cluster.broker_address());
    let committed = |wire: &mut Wire| wire.ask(&query_offset("g", "commit", 0)).ok().number("offset");
    wire.ask(&update_offset("g", "commit", 0, 5)).ok();
    // Without the bit the number is no matter.
    wire.ask(&pull("g", "commit", 0, 0).field("commitOffset", 99));
    assert_eq!(committed(&mut other), 5);
    let flags = PULL_COMMIT | PULL_SUSPEND | PULL_SUBSCRIPTION;
    let ask = pull_and_wait("g", "commit", 0, 0, 25_000).field("sysFlag", flags).field("commitOffset", 7);
    let opaque = wire.send(&ask);
    support::await_that("commit of a held pull", Duration::from_secs(20), || committed(&mut other) == 7);
    other.ask(&update_offset("g", "commit", 0, 9)).ok();
    other.ask(&send("commit", 0, b"x", "")).ok();
    wire.answer(opaque).ok();
    assert_eq!(committed(&mut other), 9);
    // The same at the deadline.
    let opaque = wire.send(&ask.clone().field("queueOffset", 1).field("suspendTimeoutMillis", 600));
    support::await_that("commit of a held pull", Duration::from_secs(20), || committed(&mut other) == 7);
    other.ask(&update_offset("g", "commit", 0, 9)).ok();
    assert_eq!(wire.answer(opaque).code, 19);
    assert_eq!(committed(&mut other), 9);
    // Refused pulls commit nothing; lower values are stored as they come.
    assert_eq!(other.ask(&ask.clone().field("queueId", 1)).code, 29);
    assert_eq!(other.ask(&ask.clone().field("expressionType", "SQL92")).code, 1);
    assert_eq!(committed(&mut other), 9);
    other.ask(&ask.field("commitOffset", 2)).ok();
    assert_eq!(committed(&mut other), 2);
}

#[test]
fn the_vip_port_serves_everything_but_pulls() {
    let Some((cluster, mut wire)) = start("pull-vip", &[]) else { return };
    wire.ask(&create_topic("vip", 1)).ok();
    let (host, port) = cluster.broker_address().rsplit_once(':').expect("host:port");
    let mut vip = Wire::to(&format!("{host}:{}", port.parse::<u16>().expect("a port") - 2));
    let mut held = Wire::to(cluster.broker_address());
    let opaque = held.send(&pull_and_wait("g", "vip", 0, 0, 25_000));
    vip.ask(&send("vip", 0, b"x", "")).ok();
    held.answer(opaque).ok();
    for code in [11, 361] {
        for mut ask in [pull("g", "vip", 0, 0), pull_and_wait("g", "vip", 0, 1, 25_000)] {
            ask.code = code;
            let told = vip.ask(&ask);
            assert_eq!((told.code, told.remark), (3, format!(" request type {code} not supported")));
        }
    }
    assert_eq!(vip.ask(&max_offset("vip", 0)).number("offset"), 1);
    vip.ask(&heartbeat("c", "vip", &[("vip", "TAG", "*", 1)])).ok();
    vip.ask(&update_offset("vip", "vip", 0, 1)).ok();
}

#[test]
fn lite_pulls_are_pulls() {
    let Some((cluster, mut wire)) = start("pull-lite", &[]) else { return };
    wire.ask(&create_topic("lite", 1)).ok();
    let lite = |ask: Ask| Ask { code: 361, ..ask };
    let opaque = wire.send(&lite(pull_and_wait("g", "lite", 0, 0, 25_000)));
    Wire::to(cluster.broker_address()).ask(&send("lite", 0, b"x", "TAGS\u{1}A")).ok();
    assert_eq!(wire.answer(opaque).ok().messages().len(), 1);
    assert_eq!(wire.ask(&lite(pull("g", "lite", 0, 0).field("subscription", "B"))).code, 20);
    assert_eq!(wire.ask(&lite(pull("g", "nothing", 0, 0))).code, 17);
}

/// Fault 54, and the order of versions.
#[test]
fn subscriptions_come_from_heartbeats() {
    let Some((cluster, mut wire)) = start("pull-heartbeat", &[]) else { return };
    for topic in ["T1", "T2"] {
        wire.ask(&create_topic(topic, 1)).ok();
        wire.ask(&send(topic, 0, b"a", "TAGS\u{1}A")).ok();
        wire.ask(&send(topic, 0, b"b", "TAGS\u{1}B")).ok();
    }
    let ask = |topic: &str, version: i64| {
        pull("hb", topic, 0, 0).field("sysFlag", 0).field("subVersion", version).without("subscription")
    };
    let tell = |told: Told| (told.code, told.messages().len());
    assert_eq!(wire.ask(&ask("T1", 1)).code, 24);
    wire.ask(&heartbeat("c1", "hb", &[("T1", "TAG", "A", 10)])).ok();
    // topic, version asked, answer
    let check = |wire: &mut Wire, cases: &[(&str, i64, (i32, usize))]| {
        for &(topic, version, want) in cases {
            assert_eq!(tell(wire.ask(&ask(topic, version))), want, "{topic} {version}");
        }
    };
    check(&mut wire, &[("T1", 10, (0, 1)), ("T1", 9, (0, 1)), ("T1", 11, (25, 0)), ("T2", 10, (24, 0))]);
    // Its retry topic is there.
    assert_eq!(wire.ask(&pull("hb", "%RETRY%hb", 0, 0)).code, 19);
    // Older: the newer one stands. Newer: replaced.
    wire.ask(&heartbeat("c1", "hb", &[("T1", "TAG", "B", 9)])).ok();
    let told = wire.ask(&ask("T1", 10)).ok();
    assert_eq!(told.messages()[0].body, b"a");
    wire.ask(&heartbeat("c1", "hb", &[("T1", "TAG", "B", 11)])).ok();
    assert_eq!(wire.ask(&ask("T1", 11)).ok().messages()[0].body, b"b");
    // Another topic in place of it.
    wire.ask(&heartbeat("c1", "hb", &[("T2", "TAG", "*", 12)])).ok();
    check(&mut wire, &[("T1", 11, (24, 0)), ("T2", 12, (0, 2)), ("T2", 13, (25, 0))]);
    // A second client with an older one changes nothing for T2.
    let mut second = Wire::to(cluster.broker_address());
    second.ask(&heartbeat("c2", "hb", &[("T2", "TAG", "A", 3)])).ok();
    check(&mut wire, &[("T2", 12, (0, 2))]);
    // One leaves, then the other.
    drop(second);
    support::await_that("c2 leaves", Duration::from_secs(20), || {
        let list = wire.ask(&Ask::new(38).field("consumerGroup", "hb")).ok();
        String::from_utf8_lossy(&list.body) == r#"{"consumerIdList":["c1"]}"#
    });
    check(&mut wire, &[("T2", 12, (0, 2))]);
    let unregister = |client: &str| Ask::new(35).field("clientID", client).field("consumerGroup", "hb");
    let mut stranger = Wire::to(cluster.broker_address());
    stranger.ask(&unregister("never")).ok();
    check(&mut wire, &[("T2", 12, (0, 2))]);
    wire.ask(&unregister("c1")).ok();
    check(&mut wire, &[("T2", 12, (24, 0))]);
    assert_eq!(wire.ask(&Ask::new(38).field("consumerGroup", "hb")).code, 1);
    wire.ask(&unregister("c1")).ok();
}

/// As Java's broker notes it, one message for each answer of 21.
#[test]
fn a_pull_from_where_the_queue_is_not_is_noted() {
    let Some((_cluster, mut wire)) = start("pull-moved", &[]) else { return };
    wire.ask(&create_topic("moved", 2)).ok();
    fill(&mut wire, "moved", 1, 3);
    let events = |wire: &mut Wire| wire.ask(&pull("m", "OFFSET_MOVED_EVENT", 0, 0)).messages();
    for offset in [0, 3] {
        wire.ask(&pull("g1", "moved", 1, offset));
    }
    assert!(events(&mut wire).is_empty());
    for (group, queue_id, offset, new, noted) in [("g1", 1, 4, 3, 1), ("g2", 1, -1, 0, 2), ("g3", 0, 7, 0, 3)] {
        assert_eq!(wire.ask(&pull(group, "moved", queue_id, offset)).code, 21);
        let all = events(&mut wire);
        assert_eq!(all.len(), noted);
        let queue = format!(r#"{{"brokerName":"broker-a","queueId":{queue_id},"topic":"moved"}}"#);
        let want = format!(
            r#"{{"consumerGroup":"{group}","messageQueue":{queue},"offsetNew":{new},"offsetRequest":{offset}}}"#
        );
        let last = all.last().unwrap();
        assert_eq!(String::from_utf8_lossy(&last.body), want);
        let properties = String::from_utf8_lossy(&last.properties).into_owned();
        assert!(properties.contains(&format!("TAGS\u{1}{group}")), "{properties:?}");
    }
    // One that was held when its queue went away.
    let mut waiting = wire.send(&pull_and_wait("g4", "moved", 1, 3, 20_000));
    wire.ask(&delete_topic("moved"));
    assert!(matches!(wire.answer(waiting).code, 17 | 19 | 21));
    let end = events(&mut wire).len() as i64;
    waiting = wire.send(&pull_and_wait("m", "OFFSET_MOVED_EVENT", 0, end, 20_000));
    wire.ask(&create_topic("moved", 1)).ok();
    assert_eq!(wire.ask(&pull("g5", "moved", 0, 5)).code, 21);
    assert_eq!(wire.answer(waiting).ok().messages().len(), 1);
}

#[test]
fn sql92_is_refused_with_1() {
    let Some((_cluster, mut wire)) = start("pull-sql", &[]) else { return };
    wire.ask(&create_topic("sql", 1)).ok();
    wire.ask(&send("sql", 0, b"x", "a\u{1}5")).ok();
    let want = "The broker does not support consumer to filter message by SQL92";
    let told = wire.ask(&pull("g", "sql", 0, 0).field("expressionType", "SQL92").field("subscription", "a > 1"));
    assert_eq!((told.code, told.remark.as_str()), (1, want));
    // By heartbeat too, and held neither.
    wire.ask(&heartbeat("c", "sql", &[("sql", "SQL92", "a > 1", 1)])).ok();
    let told = wire.ask(&pull_and_wait("sql", "sql", 0, 1, 25_000).field("sysFlag", PULL_SUSPEND));
    assert_eq!((told.code, told.remark.as_str()), (1, want));
    let check = serde_json::json!({
        "clientId": "c", "group": "sql", "namespace": "",
        "subscriptionData": {"topic": "sql", "subString": "a > 1", "expressionType": "SQL92", "subVersion": 1},
    });
    let told = wire.ask(&Ask::new(46).body(check.to_string()));
    assert_eq!((told.code, told.remark.as_str()), (1, want));
    for body in ["", r#"{"clientId":"c","group":"g","subscriptionData":{"topic":"sql","subString":"A"}}"#] {
        wire.ask(&Ask::new(46).body(body)).ok();
    }
}

/// Members of a group are told when one comes or goes (40), one-way, on their own connection.
#[test]
fn members_are_told_of_each_other() {
    let Some((cluster, mut first)) = start("pull-notice", &[]) else { return };
    first.ask(&create_topic("notice", 1)).ok();
    let beat = |client: &str| heartbeat(client, "notice", &[("notice", "TAG", "*", 1)]);
    first.ask(&beat("c1")).ok();
    let is_told = |wire: &mut Wire| {
        let end = Instant::now() + WAIT_MAX;
        while Instant::now() < end {
            if let Some(told) = wire.next(Duration::from_secs(1))
                && told.code == 40
            {
                assert_eq!((told.flag, told.ext["consumerGroup"].as_str()), (2, "notice"));
                return true;
            }
        }
        false
    };
    assert!(is_told(&mut first), "its own coming");
    let mut second = Wire::to(cluster.broker_address());
    second.ask(&beat("c2")).ok();
    assert!(is_told(&mut first), "c2 came");
    drop(second);
    assert!(is_told(&mut first), "c2 went");
    first.ask(&beat("c1")).ok();
    assert!(first.next(Duration::from_millis(300)).is_none(), "nothing changed");
}

/// A held pull of a topic that is deleted is not left hanging on a queue that nobody fills any more.
#[test]
fn deleting_a_topic_ends_its_held_pulls() {
    let Some((cluster, mut wire)) = start("pull-deleted", &[]) else { return };
    wire.ask(&create_topic("deleted", 1)).ok();
    fill(&mut wire, "deleted", 0, 3);
    let opaque = wire.send(&pull_and_wait("g", "deleted", 0, 3, 25_000));
    let mut admin = Wire::to(cluster.broker_address());
    assert!(wire.answer_within(opaque, Duration::from_millis(50)).is_none());
    let begin = Instant::now();
    admin.ask(&delete_topic("deleted")).ok();
    let told = wire.answer(opaque);
    assert_eq!(told.code, 17, "{told:?}");
    assert!(begin.elapsed() < Duration::from_secs(15), "only at its deadline: {:?}", begin.elapsed());
    // Made again: a pull at the old place is sent to the beginning.
    admin.ask(&create_topic("deleted", 1)).ok();
    let told = wire.ask(&pull_and_wait("g", "deleted", 0, 3, 25_000));
    assert_eq!((told.code, told.bounds()), (21, (0, 0, 0)));
    let opaque = wire.send(&pull_and_wait("g", "deleted", 0, 0, 25_000));
    admin.ask(&send("deleted", 0, b"new", "")).ok();
    assert_eq!(wire.answer(opaque).ok().messages()[0].body, b"new");
}
