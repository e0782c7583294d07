//! SQL92 filters by raw frames: subscriptions by heartbeat and in the request, holding and waking, codes, what is kept.
//!
//! With `RINGMQ_ORACLE=java-4.9.7` the same frames go to Java's broker: what it does otherwise is named where it is.

mod support;

use std::time::Duration;
use support::Cluster;
use support::wire::{Ask, PULL_SUSPEND, Told, Wire, create_topic, heartbeat, max_offset, pull, pull_and_wait, send};

const ON: [(&str, &str); 2] = [("mappedFileSizeCommitLog", "67108864"), ("enablePropertyFilter", "true")];

fn start(name: &str, more: &[(&str, &str)]) -> Option<(Cluster, Wire)> {
    let config: Vec<_> = ON.iter().chain(more).copied().collect();
    let cluster = Cluster::start_with(name, &config)?;
    let wire = Wire::to(cluster.broker_address());
    Some((cluster, wire))
}

fn is_java() -> bool {
    std::env::var_os("RINGMQ_ORACLE").is_some()
}

/// `a=5 b=x`
fn properties(text: &str) -> String {
    text.split(' ').filter(|pair| !pair.is_empty()).map(|pair| pair.replacen('=', "\u{1}", 1) + "\u{2}").collect()
}

/// Each message's body is what its properties were made of.
fn fill(wire: &mut Wire, topic: &str, messages: &[&str]) {
    for message in messages {
        wire.ask(&send(topic, 0, message.as_bytes(), &properties(message))).ok();
    }
}

fn bodies(told: &Told) -> Vec<String> {
    told.messages().into_iter().map(|message| String::from_utf8(message.body).expect("our own text")).collect()
}

fn sql(ask: Ask, expression: &str) -> Ask {
    ask.field("expressionType", "SQL92").field("subscription", expression)
}

/// A pull whose subscription came by heartbeat.
fn subscribed(group: &str, topic: &str, offset: i64, version: i64) -> Ask {
    pull(group, topic, 0, offset).field("sysFlag", 0).field("subVersion", version).without("subscription")
}

const MESSAGES: [&str; 8] =
    ["a=1", "a=5 b=x", "a=10 b=x", "b=y", "a=x b=y", "a=1.5", "TAGS=A a=7", "c=true region=hz a=6"];

#[test]
fn an_expression_in_the_request_chooses_messages() {
    let Some((_cluster, mut wire)) = start("filter-request", &[]) else { return };
    wire.ask(&create_topic("request", 1)).ok();
    fill(&mut wire, "request", &MESSAGES);
    let cases: &[(&str, &[usize])] = &[
        ("a > 4", &[1, 2, 6, 7]),
        ("a BETWEEN 5 AND 7", &[1, 6, 7]),
        ("a = '5' OR b = 'y'", &[1, 3, 4]),
        ("a IS NULL", &[3]),
        ("a IS NOT NULL AND b IS NULL", &[0, 5, 6, 7]),
        ("b IN ('x', 'y') AND NOT (b = 'x')", &[3, 4]),
        ("a < 2.0", &[0, 5]),
        ("TAGS = 'A'", &[6]),
        ("c = TRUE", &[7]),
        ("TAGS IS NOT NULL OR region NOT IN ('sh')", &[6, 7]),
        ("TRUE", &[0, 1, 2, 3, 4, 5, 6, 7]),
        // A lone property is never true.
        ("c", &[]),
        ("nothing = 1", &[]),
    ];
    for (expression, want) in cases {
        for ask in [pull("g", "request", 0, 0), pull("g", "request", 0, 0).binary()] {
            let told = wire.ask(&sql(ask, expression));
            let want: Vec<&str> = want.iter().map(|&index| MESSAGES[index]).collect();
            assert_eq!(bodies(&told), want, "{expression}");
            let (code, remark) = if want.is_empty() { (20, "NO_MATCHED_MESSAGE") } else { (0, "FOUND") };
            assert_eq!((told.code, told.remark.as_str(), told.bounds()), (code, remark, (0, 8, 8)), "{expression}");
        }
    }
    // The count is of what matches; the next offset is behind the last one looked at.
    let told = wire.ask(&sql(pull("g", "request", 0, 0), "a > 4").field("maxMsgNums", 2)).ok();
    assert_eq!((bodies(&told).len(), told.bounds()), (2, (0, 3, 8)));
    let told = wire.ask(&sql(pull("g", "request", 0, 3), "a > 4").field("maxMsgNums", 2)).ok();
    assert_eq!((bodies(&told).len(), told.bounds()), (2, (0, 8, 8)));
    // Tags in the same group are as they were.
    let told = wire.ask(&pull("g", "request", 0, 0).field("subscription", "A")).ok();
    assert_eq!(bodies(&told), [MESSAGES[6]]);
}

#[test]
fn what_is_no_expression_is_refused() {
    let Some((_cluster, mut wire)) = start("filter-refused", &[]) else { return };
    wire.ask(&create_topic("refused", 1)).ok();
    fill(&mut wire, "refused", &["a=1"]);
    let told = wire.ask(&pull("g", "refused", 0, 0).field("expressionType", "SQL92").field("subscription", ""));
    assert_eq!((told.code, told.remark.as_str()), (23, "parse the consumer's subscription failed"));
    if !is_java() {
        // Java takes these for no filter and sends everything.
        let told = wire.ask(&sql(pull("g", "refused", 0, 0), "a >> 1"));
        let want = "parse the consumer's subscription failed: line 1, column 4: '>' stands where a property";
        assert!(told.code == 23 && told.remark.starts_with(want), "{told:?}");
        let told = wire.ask(&pull("g", "refused", 0, 0).field("expressionType", "XYZ").field("subscription", "a"));
        assert_eq!(told.code, 1, "{told:?}");
        assert_eq!(told.remark, "The broker does not support consumer to filter message by XYZ");
    }
    // CHECK_CLIENT_CONFIG is what official clients ask first.
    let check = |kind: &str, text: &str| {
        let data =
            serde_json::json!({ "topic": "refused", "subString": text, "expressionType": kind, "subVersion": 1 });
        let body = serde_json::json!({ "clientId": "c", "group": "g", "namespace": "", "subscriptionData": data });
        Ask::new(46).body(body.to_string())
    };
    let mut cases =
        vec![("SQL92", "a > 1", 0), ("TAG", "A", 0), ("", "A", 0), ("SQL92", "a >> 1", 23), ("SQL92", "", 23)];
    if !is_java() {
        cases.push(("XYZ", "a > 1", 1));
    }
    for (kind, text, code) in cases {
        let told = wire.ask(&check(kind, text));
        assert_eq!(told.code, code, "{kind} {text}: {told:?}");
        let column = if text.is_empty() { "line" } else { "line 1, column 4" };
        assert!(code != 23 || told.remark.contains(column), "{told:?}");
    }
    if !is_java() {
        wire.ask(&Ask::new(46)).ok();
    }
}

#[test]
fn expressions_come_by_heartbeat() {
    let Some((cluster, mut wire)) = start("filter-heartbeat", &[]) else { return };
    for topic in ["T1", "T2"] {
        wire.ask(&create_topic(topic, 1)).ok();
        fill(&mut wire, topic, &MESSAGES);
    }
    let count = |told: Told| (told.code, told.messages().len());
    assert_eq!(wire.ask(&subscribed("g", "T1", 0, 1)).code, 24);
    wire.ask(&heartbeat("c", "g", &[("T1", "SQL92", "a > 5", 10), ("T2", "TAG", "A", 10)])).ok();
    // topic, version asked, code and messages
    let check = |wire: &mut Wire, cases: &[(&str, i64, (i32, usize))]| {
        for &(topic, version, want) in cases {
            assert_eq!(count(wire.ask(&subscribed("g", topic, 0, version))), want, "{topic} {version}");
        }
    };
    check(&mut wire, &[("T1", 10, (0, 3)), ("T1", 9, (0, 3)), ("T1", 11, (25, 0)), ("T2", 10, (0, 1))]);
    // Older: nothing changes. Newer: it counts.
    wire.ask(&heartbeat("c", "g", &[("T1", "SQL92", "a > 6", 9), ("T2", "TAG", "A", 10)])).ok();
    check(&mut wire, &[("T1", 10, (0, 3))]);
    wire.ask(&heartbeat("c", "g", &[("T1", "SQL92", "a > 6", 11), ("T2", "SQL92", "b = 'x'", 11)])).ok();
    check(&mut wire, &[("T1", 11, (0, 2)), ("T2", 11, (0, 2))]);
    // One that is none: the one before is no longer wanted either.
    wire.ask(&heartbeat("c", "g", &[("T1", "SQL92", "a >", 12), ("T2", "SQL92", "b = 'x'", 12)])).ok();
    check(&mut wire, &[("T1", 12, (27, 0)), ("T2", 12, (0, 2))]);
    let told = wire.ask(&subscribed("g", "T1", 0, 12));
    let want = "The broker's consumer filter data is not exist!Your expression may be wrong!";
    assert!(told.remark.starts_with(want), "{told:?}");
    assert!(
        is_java()
            || told
                .remark
                .ends_with("where a property, a number, a string, TRUE, FALSE, NULL, NOT, a sign or '(' is expected)"),
        "{told:?}"
    );
    assert!(is_java() || told.bounds() == (0, 0, 8));
    // Back to tags, and to an expression again.
    wire.ask(&heartbeat("c", "g", &[("T1", "TAG", "A", 13)])).ok();
    check(&mut wire, &[("T1", 13, (0, 1)), ("T2", 13, (24, 0))]);
    wire.ask(&heartbeat("c", "g", &[("T1", "SQL92", "a < 5", 14)])).ok();
    check(&mut wire, &[("T1", 14, (0, 1))]);
    // Another group is another matter.
    let mut second = Wire::to(cluster.broker_address());
    second.ask(&heartbeat("d", "h", &[("T1", "SQL92", "b = 'y'", 3)])).ok();
    assert_eq!(count(second.ask(&subscribed("h", "T1", 0, 3))), (0, 2));
    check(&mut wire, &[("T1", 14, (0, 1))]);
}

/// Go counts versions in ns and Java in ms: who comes later may have the smaller one.
#[test]
fn a_group_that_is_gone_outranks_nobody() {
    let Some((cluster, mut wire)) = start("filter-gone", &[]) else { return };
    wire.ask(&create_topic("gone", 1)).ok();
    fill(&mut wire, "gone", &MESSAGES);
    let mut first = Wire::to(cluster.broker_address());
    first.ask(&heartbeat("c", "g", &[("gone", "SQL92", "a > 5", 1_700_000_000_000_000_000)])).ok();
    drop(first);
    support::await_that("nobody is left", Duration::from_secs(20), || {
        wire.ask(&Ask::new(38).field("consumerGroup", "g")).code == 1
    });
    wire.ask(&heartbeat("d", "g", &[("gone", "SQL92", "b = 'y'", 1_700_000_000_000)])).ok();
    let told = wire.ask(&subscribed("g", "gone", 0, 1_700_000_000_000)).ok();
    if is_java() {
        assert_eq!(bodies(&told).len(), 3, "the fault");
    } else {
        assert_eq!(bodies(&told), [MESSAGES[3], MESSAGES[4]]);
    }
}

#[test]
fn a_held_pull_wakes_for_what_its_expression_wants() {
    for (name, shards) in [("filter-held-1", "1"), ("filter-held-3", "3")] {
        let Some((cluster, mut wire)) = start(name, &[("ringmq.shards", shards)]) else { return };
        wire.ask(&create_topic("held", 1)).ok();
        let mut producer = Wire::to(cluster.broker_address());
        wire.ask(&heartbeat("c", "g", &[("held", "SQL92", "a > 5", 1)])).ok();
        let in_request = |offset| sql(pull_and_wait("other", "held", 0, offset, 25_000), "a > 5");
        let by_heartbeat = |offset| {
            subscribed("g", "held", offset, 1).field("sysFlag", PULL_SUSPEND).field("suspendTimeoutMillis", 25_000)
        };
        let (first, second) = (wire.send(&in_request(0)), wire.send(&by_heartbeat(0)));
        // Answered behind them.
        wire.ask(&max_offset("held", 0)).ok();
        assert!(wire.answer_within(second, Duration::from_millis(100)).is_none(), "both are held");
        fill(&mut producer, "held", &["a=5", "b=1", "a=x"]);
        for opaque in [first, second] {
            assert!(wire.answer_within(opaque, Duration::from_millis(300)).is_none(), "nothing for it came");
        }
        fill(&mut producer, "held", &["a=6"]);
        for opaque in [first, second] {
            let told = wire.answer(opaque).ok();
            assert_eq!((bodies(&told), told.bounds()), (vec!["a=6".to_owned()], (0, 4, 4)));
        }
        // Only others arrive: it moves on by 20, at its deadline at the latest.
        let opaque = wire.send(&in_request(4).field("suspendTimeoutMillis", 1_000));
        fill(&mut producer, "held", &["a=1"]);
        let told = wire.answer(opaque);
        assert_eq!((told.code, told.bounds()), (20, (0, 5, 5)));
        // What lies there already is answered at once, found or not.
        assert_eq!(wire.ask(&in_request(4)).code, 20);
        assert_eq!(wire.ask(&by_heartbeat(3)).ok().bounds(), (0, 5, 5));
        if is_java() {
            return;
        }
    }
}

/// With `filterSupportRetry` what was sent back is held against the expression for the topic it came from.
#[test]
fn retries_are_filtered_where_that_is_wanted() {
    for (name, wanted, want) in [
        ("filter-retry", "true", &["a=6", "none", "other"][..]),
        ("filter-no-retry", "false", &["a=6", "a=4", "none", "other"]),
    ] {
        let Some((_cluster, mut wire)) = start(name, &[("filterSupportRetry", wanted)]) else { return };
        wire.ask(&create_topic("retried", 1)).ok();
        let subscriptions = [("retried", "SQL92", "a > 5", 1), ("%RETRY%g", "TAG", "*", 1)];
        wire.ask(&heartbeat("c", "g", &subscriptions)).ok();
        for (body, text) in [
            ("a=6", "a=6 RETRY_TOPIC=retried"),
            ("a=4", "a=4 RETRY_TOPIC=retried"),
            ("none", "a=4 RETRY_TOPIC=unknown"),
            ("other", "RETRY_TOPIC=TBW102"),
        ] {
            wire.ask(&send("%RETRY%g", 0, body.as_bytes(), &properties(text))).ok();
        }
        let told = wire.ask(&subscribed("g", "%RETRY%g", 0, 1)).ok();
        assert_eq!(bodies(&told), want, "{wanted}");
    }
}

#[test]
fn filters_outlive_a_restart() {
    let Some((mut cluster, mut wire)) = start("filter-kept", &[]) else { return };
    wire.ask(&create_topic("kept", 1)).ok();
    fill(&mut wire, "kept", &MESSAGES);
    let subscriptions = [("kept", "SQL92", "a > 5", 7), ("%RETRY%g", "TAG", "*", 7)];
    wire.ask(&heartbeat("c", "g", &subscriptions)).ok();
    let path = cluster.store().join("config/consumerFilter.json");
    for round in 0..2 {
        cluster.stop_broker();
        let file: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&path).expect("written at stop")).expect("JSON");
        let topic = &file["filterDataByTopic"]["kept"];
        let kept = &topic["groupFilterData"]["g"];
        assert_eq!(topic["topic"], "kept");
        for (name, want) in
            [("consumerGroup", "g"), ("topic", "kept"), ("expression", "a > 5"), ("expressionType", "SQL92")]
        {
            assert_eq!(kept[name], want, "{name}, round {round}");
        }
        assert_eq!((&kept["clientVersion"], &kept["bloomFilterData"]["bitNum"]), (&7.into(), &112.into()));
        cluster.start_again();
        wire = Wire::to(cluster.broker_address());
        // Nobody is online yet.
        assert_eq!(wire.ask(&subscribed("g", "kept", 0, 7)).code, 24);
        wire.ask(&heartbeat("c", "g", &subscriptions)).ok();
        assert_eq!(bodies(&wire.ask(&subscribed("g", "kept", 0, 7)).ok()).len(), 3);
    }
}

#[test]
fn entries_are_shown_with_the_filter_of_a_group() {
    let Some((_cluster, mut wire)) = start("filter-entries", &[]) else { return };
    wire.ask(&create_topic("entries", 1)).ok();
    fill(&mut wire, "entries", &["a=6", "a=4"]);
    wire.ask(&heartbeat("c", "g", &[("entries", "SQL92", "a > 5", 7)])).ok();
    let ask = Ask::new(321).field("topic", "entries").field("queueId", 0).field("index", 0).field("count", 10);
    let told = wire.ask(&ask.field("consumerGroup", "g")).ok();
    let body: serde_json::Value = serde_json::from_slice(&told.body).expect("JSON");
    let filter: serde_json::Value = serde_json::from_str(body["filterData"].as_str().expect("a text")).expect("JSON");
    assert_eq!((&filter["expression"], &filter["clientVersion"]), (&"a > 5".into(), &7.into()));
    assert_eq!(body["subscriptionData"]["subString"], "a > 5");
    // Java gives a verdict only where entries have extensions.
    let verdicts: Vec<_> = body["queueData"].as_array().expect("entries").iter().map(|entry| &entry["eval"]).collect();
    assert!(is_java() || verdicts == [true, false], "{verdicts:?}");
}
