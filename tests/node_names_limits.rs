//! Names, sizes, properties and batches at their limits, by raw frames.
//!
//! Faults 7, 12, 43, 44, 45, 46 and 49 of the public reports.

mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use support::Cluster;
use support::wire::{Ask, Message, Wire, batch, create_topic, heartbeat, max_offset, pull, send, send_batch};

const SMALL: [(&str, &str); 1] = [("mappedFileSizeCommitLog", "67108864")];

fn start(name: &str, more: &[(&str, &str)]) -> Option<(Cluster, Wire)> {
    let config: Vec<_> = SMALL.iter().chain(more).copied().collect();
    let cluster = Cluster::start_with(name, &config)?;
    let wire = Wire::to(cluster.broker_address());
    Some((cluster, wire))
}

#[track_caller]
fn only(wire: &mut Wire, topic: &str, offset: i64) -> Message {
    let mut messages = wire.ask(&pull("reader", topic, 0, offset).field("maxMsgNums", 1)).ok().messages();
    assert_eq!(messages.len(), 1);
    messages.remove(0)
}

fn end(wire: &mut Wire, topic: &str) -> i64 {
    wire.ask(&max_offset(topic, 0)).number("offset")
}

/// Everything below, the contents of the log and the metadata aside.
fn paths(directory: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut todo = vec![directory.to_owned()];
    while let Some(directory) = todo.pop() {
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                todo.push(entry.path());
            }
            found.insert(entry.path());
        }
    }
    found
}

fn queue_folders(cluster: &Cluster) -> BTreeSet<String> {
    let entries = std::fs::read_dir(cluster.store().join("consumequeue")).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Fault 12.
#[test]
fn names_that_lead_elsewhere_create_nothing() {
    let Some((cluster, mut wire)) = start("names-paths", &[]) else { return };
    wire.ask(&create_topic("plain", 1)).ok();
    wire.ask(&send("plain", 0, b"x", "")).ok();
    let (long, longer) = ("t".repeat(128), "t".repeat(70_000));
    let names: &[&str] = &[
        "../../../tmp/ringmq-names",
        "..",
        ".",
        "a/b",
        "/tmp/ringmq-names",
        "a\\b",
        "",
        " ",
        "\t\n",
        "t\0",
        "\0",
        "主题",
        "topic\n",
        "a b",
        "a.b",
        "a@b",
        "a+b",
        "a:b",
        "%RETRY%../../x",
        "%RETRY%a/b",
        "%DLQ%../x",
        "$a",
        "{}",
        "\u{1f600}",
        &long,
        &longer,
    ];
    // What is there before the others come.
    let of_broker = |wire: &mut Wire| {
        let table = |code: i32, wire: &mut Wire, name: &str| {
            let told = wire.ask(&Ask::new(code)).ok();
            let value: serde_json::Value = serde_json::from_slice(&told.body).expect("JSON");
            value[name].as_object().expect("a table").keys().cloned().collect::<BTreeSet<String>>()
        };
        (table(21, wire, "topicConfigTable"), table(201, wire, "subscriptionGroupTable"))
    };
    let tmp_before = std::fs::read_dir("/tmp").map_or(0, |entries| {
        entries.flatten().filter(|entry| entry.file_name().to_string_lossy().contains("ringmq-names")).count()
    });
    wire.ask(&pull("g", "plain", 0, 0)).ok();
    support::await_that("the queue's folder", std::time::Duration::from_secs(30), || {
        !queue_folders(&cluster).is_empty()
    });
    let before = (of_broker(&mut wire), queue_folders(&cluster));
    for name in names {
        let shown: String = name.chars().take(30).flat_map(char::escape_debug).collect();
        let sends = [
            send(name, 0, b"x", ""),
            Ask { code: 10, ..v1(&send(name, 0, b"x", "")) },
            send_batch(name, 0, &batch(&[(0, b"x", b"")])),
            send(name, -1, b"x", ""),
            // Made from a template of another kind.
            send(name, 0, b"x", "").field("c", "plain"),
        ];
        for ask in sends {
            for ask in [ask.clone(), ask.binary()] {
                let told = wire.ask(&ask);
                // A missing name is a missing field in the binary encoding, which cannot write an empty one.
                assert!(matches!(told.code, 29 | 13), "send {shown}: {told:?}");
                assert!(told.remark.len() < 1_000, "send {shown}: {} bytes", told.remark.len());
            }
        }
        assert_ne!(wire.ask(&create_topic(name, 1)).code, 0, "create {shown}");
        assert_ne!(wire.ask(&Ask::new(215).field("topic", name)).code, 0, "delete {shown}");
        assert_ne!(wire.ask(&pull("g", name, 0, 0)).code, 0, "pull {shown}");
        assert_ne!(wire.ask(&pull(name, "plain", 0, 0)).code, 0, "pull as {shown}");
        let as_group = |ask: Ask| ask.field("consumerGroup", name).field("topic", "plain").field("queueId", 0);
        assert_ne!(wire.ask(&as_group(Ask::new(15)).field("commitOffset", 1)).code, 0, "commit as {shown}");
        let as_topic = Ask::new(15).field("consumerGroup", "g").field("topic", name).field("queueId", 0);
        assert_ne!(wire.ask(&as_topic.field("commitOffset", 1)).code, 0, "commit {shown}");
        for code in [29, 30, 31, 32] {
            let told = wire.ask(&Ask::new(code).field("topic", name).field("queueId", 0).field("timestamp", 0));
            let is_nothing = told.code != 0 || matches!(told.ext.values().next().map(String::as_str), Some("0" | "-1"));
            assert!(is_nothing, "{code} {shown}: {told:?}");
        }
        let group = serde_json::json!({"groupName": name});
        assert_ne!(wire.ask(&Ask::new(200).body(group.to_string())).code, 0, "group {shown}");
        assert_ne!(wire.ask(&Ask::new(207).field("groupName", name)).code, 0, "delete group {shown}");
        let told = wire.ask(&heartbeat("c", name, &[("plain", "TAG", "*", 1)]));
        assert_ne!(told.code, 0, "heartbeat as {shown}");
    }
    assert_eq!((of_broker(&mut wire), queue_folders(&cluster)), before);
    for path in paths(&cluster.store()) {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        assert!(name.is_ascii() && !name.contains("..") && name.len() < 100, "{}", path.display());
    }
    let tmp_after = std::fs::read_dir("/tmp").map_or(0, |entries| {
        entries.flatten().filter(|entry| entry.file_name().to_string_lossy().contains("ringmq-names")).count()
    });
    assert_eq!(tmp_after, tmp_before);
    let stray: Vec<_> = paths(cluster.directory())
        .into_iter()
        .filter(|path| !path.starts_with(cluster.store()))
        .filter(|path| path.is_dir())
        .collect();
    assert_eq!(stray, Vec::<PathBuf>::new());
    wire.ask(&send("plain", 0, b"x", "")).ok();
}

/// The long names of code 10.
fn v1(ask: &Ask) -> Ask {
    const NAMES: [&str; 13] = [
        "producerGroup",
        "topic",
        "defaultTopic",
        "defaultTopicQueueNums",
        "queueId",
        "sysFlag",
        "bornTimestamp",
        "flag",
        "properties",
        "reconsumeTimes",
        "unitMode",
        "maxReconsumeTimes",
        "batch",
    ];
    let mut named = Ask { fields: Vec::new(), ..ask.clone() };
    for (letter, value) in &ask.fields {
        named = named.bytes(NAMES[usize::from(letter.as_bytes()[0] - b'a')], value);
    }
    named
}

/// Fault 46, names: 127 bytes for a topic of any kind, so 120 for a group.
#[test]
fn names_have_their_longest() {
    let Some((cluster, mut wire)) = start("names-long", &[]) else { return };
    let name = |prefix: &str, bytes: usize| format!("{prefix}{}", "n".repeat(bytes - prefix.len()));
    // topic, stored
    for (topic, want) in [
        (name("", 127), true),
        (name("", 128), false),
        (name("", 255), false),
        (name("", 256), false),
        (name("%RETRY%", 127), true),
        (name("%RETRY%", 128), false),
        (name("%RETRY%", 255), false),
        ("CON".to_owned(), true),
        ("a|b-c_d%e".to_owned(), true),
        ("%RETRY%a|b-c".to_owned(), true),
    ] {
        let told = wire.ask(&send(&topic, 0, b"body", ""));
        if want {
            told.ok();
            assert_eq!(only(&mut wire, &topic, 0).topic, topic);
        } else {
            assert!(matches!(told.code, 13 | 29), "{topic}: {told:?}");
            assert!(matches!(wire.ask(&create_topic(&topic, 1)).code, 13 | 29), "{topic}");
        }
    }
    // group, taken
    for (group, want) in [(name("g", 120), true), (name("g", 121), false), (name("g", 255), false)] {
        let told = wire.ask(&heartbeat("c", &group, &[("CON", "TAG", "*", 1)]));
        assert_eq!(told.code == 0, want, "{group}: {told:?}");
        assert_eq!(wire.ask(&pull(&group, "CON", 0, 0)).code == 0, want, "{group}");
        let retry = wire.ask(&pull("reader", &format!("%RETRY%{group}"), 0, 0));
        assert_eq!(retry.code, if want { 19 } else { 17 }, "{group}");
    }
    assert!(queue_folders(&cluster).iter().all(|name| name.len() <= 127));
}

/// Fault 7.
#[test]
fn optional_fields_of_a_send_have_defaults() {
    let Some((_cluster, mut wire)) = start("limits-optional", &[]) else { return };
    wire.ask(&create_topic("optional", 1)).ok();
    let whole = send("optional", 0, b"body", "TAGS\u{1}T").field("g", 1_234_567_890_123_i64);
    let optional = ["i", "j", "k", "l", "m", "n"];
    let mut asks: Vec<Ask> = optional.iter().map(|name| whole.clone().without(name)).collect();
    asks.push(optional.iter().fold(whole.clone(), |ask, name| ask.without(name)));
    asks.push(whole.clone().field("n", "broker-a"));
    for ask in asks {
        for ask in [ask.clone(), ask.clone().binary(), v1(&ask.without("n"))] {
            let ask = if ask.fields.iter().any(|(name, _)| name == "topic") { Ask { code: 10, ..ask } } else { ask };
            let offset = end(&mut wire, "optional");
            assert_eq!(wire.ask(&ask).ok().number("queueOffset"), offset, "{ask:?}");
            let message = only(&mut wire, "optional", offset);
            assert_eq!((message.reconsume_times, message.sys_flag, message.flag), (0, 0, 0), "{ask:?}");
            assert_eq!((message.born_timestamp, message.body.as_slice()), (1_234_567_890_123, &b"body"[..]));
        }
    }
    // What is given is stored.
    let offset = end(&mut wire, "optional");
    wire.ask(&whole.field("j", 3).field("h", -5).field("g", -1)).ok();
    let message = only(&mut wire, "optional", offset);
    assert_eq!((message.reconsume_times, message.flag, message.born_timestamp), (3, -5, -1));
}

/// Fault 43, and timers, which are not built: refused, not taken and forgotten.
#[test]
fn delays_that_are_no_numbers_are_refused() {
    let Some((_cluster, mut wire)) = start("limits-delay", &[]) else { return };
    wire.ask(&create_topic("delay", 1)).ok();
    // DELAY, code, a part of the remark
    for (value, code, remark) in [
        ("4x", 13, "no number"),
        ("4Pinpoint-Flags", 13, "no number"),
        (" 3 ", 13, "no number"),
        ("1.0", 13, "no number"),
        ("0x1", 13, "no number"),
        ("99999999999999999999999", 13, "no number"),
        ("主", 13, "no number"),
        // A pair without a value is none, in Java too.
        ("", 0, ""),
        ("-1", 0, ""),
        ("0", 0, ""),
        ("-2147483648", 0, ""),
    ] {
        let before = end(&mut wire, "delay");
        let properties = format!("TAGS\u{1}T\u{2}DELAY\u{1}{value}\u{2}k\u{1}v");
        for told in [
            wire.ask(&send("delay", 0, b"x", &properties)),
            wire.ask(&send_batch("delay", 0, &batch(&[(0, b"x", properties.as_bytes())]))),
        ] {
            assert_eq!(told.code, code, "{value:?}: {told:?}");
            assert!(told.remark.contains(remark), "{value:?}: {told:?}");
        }
        let stored = if code == 0 { 2 } else { 0 };
        assert_eq!(end(&mut wire, "delay"), before + stored, "{value:?}");
        // Neighbours are not hurt.
        wire.ask(&send("delay", 0, b"x", "")).ok();
    }
    for properties in ["TIMER_DELIVER_MS\u{1}1", "TIMER_DELAY_SEC\u{1}x", "TIMER_DELAY_MS\u{1}5"] {
        let before = end(&mut wire, "delay");
        let told = wire.ask(&send("delay", 0, b"x", properties));
        assert_eq!(told.code, 13, "{properties}: {told:?}");
        assert!(told.remark.contains("not supported"), "{properties}: {told:?}");
        assert_eq!(end(&mut wire, "delay"), before);
    }
    wire.ask(&send("delay", 0, b"x", "TRAN_MSG\u{1}false")).ok();
}

/// Marks of transactions that no plain send may carry: they would be answered 0 and never be seen.
#[test]
fn transaction_marks_of_a_plain_send_are_refused() {
    let Some((_cluster, mut wire)) = start("limits-marks", &[]) else { return };
    wire.ask(&create_topic("marks", 1)).ok();
    // sysFlag, code
    for (flag, want) in [(4, 13), (5, 13), (12, 13), (13, 13), (8, 0), (1, 0), (0x100, 0), (0, 0)] {
        let before = end(&mut wire, "marks");
        assert_eq!(wire.ask(&send("marks", 0, b"x", "").field("f", flag)).code, want, "{flag}");
        let stored = i64::from(want == 0);
        assert_eq!(end(&mut wire, "marks"), before + stored, "{flag}");
        if want == 0 {
            assert_eq!(only(&mut wire, "marks", before).body, b"x", "{flag}");
        }
    }
    // Bits that say how the record is laid out are the broker's.
    for flag in [0x10, 0x20, 0x30, !0xc] {
        let before = end(&mut wire, "marks");
        let told = wire.ask(&send("marks", 0, b"x", "").field("f", flag));
        if told.code == 0 {
            assert_eq!(only(&mut wire, "marks", before).body, b"x", "{flag}");
        }
    }
}

/// Fault 44.
#[test]
fn property_bytes_come_back_unchanged() {
    let Some((_cluster, mut wire)) = start("limits-properties", &[]) else { return };
    wire.ask(&create_topic("properties", 1)).ok();
    let pairs: String = (0..2_000).map(|index| format!("k{index}\u{1}v\u{2}")).collect();
    let texts: Vec<String> = [
        "a\u{1}b\u{2}DELAY\u{1}0",
        "\u{2}\u{2}",
        "\u{2}",
        "x",
        "\u{1}v",
        "k\u{1}",
        "\u{1}",
        "k\u{1}v\u{1}w",
        "k\u{1}1\u{2}k\u{1}2",
        "emoji\u{1}\u{1f600}\u{2}主\u{1}题",
        "k\u{1}a=b\nc\r\"\\\u{2}",
        "k\u{1}v",
        "k\u{1}v\u{2}",
        "\u{0}\u{1}\u{0}",
        "TAGS\u{1}\u{2}TAGS\u{1}T",
        "CLUSTER\u{1}mine",
        "UNIQ_KEY\u{1}7F000001\u{2}KEYS\u{1}a b",
    ]
    .map(str::to_owned)
    .into_iter()
    .chain([pairs])
    .collect();
    for text in &texts {
        for ask in [send("properties", 0, b"x", text), send("properties", 0, b"x", text).binary()] {
            let offset = end(&mut wire, "properties");
            let told = wire.ask(&ask);
            assert_eq!(told.code, 0, "{text:?}: {told:?}");
            let message = only(&mut wire, "properties", offset);
            assert!(message.properties.starts_with(text.as_bytes()), "{text:?}: {message:?}");
            let added = String::from_utf8_lossy(&message.properties[text.len()..]).into_owned();
            assert!(added.trim_start_matches('\u{2}').starts_with("CLUSTER\u{1}"), "{text:?}: {added:?}");
            assert_eq!(message.property("CLUSTER").as_deref(), Some(support::CLUSTER_NAME), "{text:?}");
        }
    }
    let property = |wire: &mut Wire, text: &str, name: &str| {
        let offset = end(wire, "properties");
        wire.ask(&send("properties", 0, b"x", text)).ok();
        only(wire, "properties", offset).property(name)
    };
    assert_eq!(property(&mut wire, "k\u{1}1\u{2}k\u{1}2", "k").as_deref(), Some("2"));
    assert_eq!(property(&mut wire, "a\u{2}k\u{1}v", "k").as_deref(), Some("v"));
    // WAIT is for the broker and is not stored, as in Java.
    assert_eq!(property(&mut wire, "WAIT\u{1}false\u{2}k\u{1}v", "WAIT"), None);
    // No text: stored as some text or refused, never a dead connection.
    let wild: [&[u8]; 3] = [b"k\x01\xff\xfe", b"\xc3", b"k\x01\xed\xa0\x80"];
    for bytes in wild {
        let offset = end(&mut wire, "properties");
        let told = wire.ask(&send("properties", 0, b"x", "").bytes("i", bytes).binary());
        if told.code == 0 {
            assert!(only(&mut wire, "properties", offset).properties.starts_with(b"k") || bytes[0] != b'k');
        } else {
            assert!(matches!(told.code, 13 | 29), "{told:?}");
        }
    }
    // Length: refused above what a retry may still add to.
    for (bytes, want) in [(31_000, 0), (31_743, 0), (31_744, 13), (32_767, 13), (32_768, 13), (70_000, 13)] {
        let text = format!("k\u{1}{}", "v".repeat(bytes - 2));
        let offset = end(&mut wire, "properties");
        let told = wire.ask(&send("properties", 0, b"x", &text));
        assert_eq!(told.code, want, "{bytes}: {told:?}");
        assert_eq!(end(&mut wire, "properties"), offset + i64::from(want == 0), "{bytes}");
        if want == 0 {
            assert!(only(&mut wire, "properties", offset).properties.starts_with(text.as_bytes()));
        }
    }
    let pairs: String = (0..10_000).map(|index| format!("k{index}\u{1}v\u{2}")).collect();
    assert_eq!(wire.ask(&send("properties", 0, b"x", &pairs)).code, 13);
}

/// Fault 45.
#[test]
fn an_empty_body_is_refused_and_a_compressed_one_untouched() {
    let Some((_cluster, mut wire)) = start("limits-body", &[]) else { return };
    wire.ask(&create_topic("body", 1)).ok();
    for ask in [send("body", 0, b"", ""), send("body", 0, b"", "").field("f", 1), send_batch("body", 0, b"")] {
        let told = wire.ask(&ask);
        assert_eq!((told.code, end(&mut wire, "body")), (13, 0), "{told:?}");
    }
    for (index, flag) in [1, 0x101, 0x201, 0x301, 0x701].into_iter().enumerate() {
        wire.ask(&send("body", 0, b"no zlib", "").field("f", flag)).ok();
        let message = only(&mut wire, "body", index as i64);
        assert_eq!((message.body.as_slice(), message.sys_flag), (&b"no zlib"[..], flag));
    }
}

/// Fault 46, sizes.
#[test]
fn bodies_have_their_longest() {
    let limit = 100_000;
    let Some((_cluster, mut wire)) = start("limits-size", &[("maxMessageSize", "100000")]) else { return };
    wire.ask(&create_topic("size", 1)).ok();
    for properties in [String::new(), format!("k\u{1}{}", "v".repeat(30_000))] {
        for (bytes, want) in [(limit - 1, 0), (limit, 0), (limit + 1, 13), (2 * limit, 13)] {
            let offset = end(&mut wire, "size");
            let body = vec![b'x'; bytes];
            let told = wire.ask(&send("size", 0, &body, &properties));
            assert_eq!(told.code, want, "{bytes}: {told:?}");
            assert_eq!(end(&mut wire, "size"), offset + i64::from(want == 0));
            if want == 0 {
                assert_eq!(only(&mut wire, "size", offset).body, body);
            } else {
                assert!(told.remark.contains(&limit.to_string()), "{told:?}");
            }
        }
    }
    // A batch as a whole, and each of its messages.
    let of = |bytes: usize| vec![b'x'; bytes];
    for (parts, want) in [
        (vec![limit - 22], 0),
        (vec![limit - 21], 13),
        (vec![limit + 1], 13),
        (vec![50_000, 50_000 - 44], 0),
        (vec![50_000, 50_000], 13),
    ] {
        let offset = end(&mut wire, "size");
        let bodies: Vec<Vec<u8>> = parts.iter().map(|bytes| of(*bytes)).collect();
        let messages: Vec<(i32, &[u8], &[u8])> = bodies.iter().map(|body| (0, body.as_slice(), &b""[..])).collect();
        let told = wire.ask(&send_batch("size", 0, &batch(&messages)));
        assert_eq!(told.code, want, "{parts:?}: {told:?}");
        let stored = if want == 0 { parts.len() as i64 } else { 0 };
        assert_eq!(end(&mut wire, "size"), offset + stored, "{parts:?}");
    }
}

#[test]
fn batches_are_stored_whole_or_not_at_all() {
    let Some((_cluster, mut wire)) = start("limits-batch", &[]) else { return };
    wire.ask(&create_topic("batch", 1)).ok();
    let good = batch(&[(1, b"a", b"TAGS\x01A"), (2, b"bb", b""), (3, b"ccc", b"k\x01v\x02")]);
    for (round, ask) in [
        send_batch("batch", 0, &good),
        send_batch("batch", 0, &good).binary(),
        // Marked as a batch under the ordinary code.
        Ask { code: 310, ..send_batch("batch", 0, &good) },
        send_batch("batch", 0, &good).without("m"),
    ]
    .into_iter()
    .enumerate()
    {
        let from = 3 * round as i64;
        let told = wire.ask(&ask).ok();
        assert_eq!(told.number("queueOffset"), from);
        assert_eq!(told.ext["msgId"].split(',').count(), 3);
        let got: Vec<_> = wire
            .ask(&pull("g", "batch", 0, from))
            .ok()
            .messages()
            .into_iter()
            .map(|message| (message.flag, message.body.clone(), message.property("CLUSTER").is_some()))
            .collect();
        assert_eq!(got, [(1, b"a".to_vec(), true), (2, b"bb".to_vec(), true), (3, b"ccc".to_vec(), true)]);
    }
    let told = wire.ask(&pull("g", "batch", 0, 0).field("subscription", "A")).ok();
    assert_eq!(told.messages().len(), 4);
    let before = end(&mut wire, "batch");
    let set = |at: usize, value: i32| {
        let mut body = good.clone();
        body[at..at + 4].copy_from_slice(&value.to_be_bytes());
        body
    };
    let mut malformed: Vec<(String, Vec<u8>)> = vec![
        ("empty message".into(), batch(&[(0, b"a", b""), (0, b"", b"")])),
        ("noise".into(), b"no batch at all, but long enough to be one".to_vec()),
        ("zeros".into(), vec![0; 100]),
        ("trailing byte".into(), [&good[..], b"x"].concat()),
        ("delay inside".into(), batch(&[(0, b"a", b""), (0, b"b", b"DELAY\x013")])),
    ];
    for cut in [1, 4, 16, 19, 20, 21, 22, 23, 30, good.len() - 1] {
        malformed.push((format!("cut at {cut}"), good[..cut].to_vec()));
    }
    for (what, at) in [("total", 0), ("body length", 16)] {
        for value in [0, -1, 1, 2, 1_000, i32::MAX, i32::MIN, 0x7fff_fff0] {
            // The message's own numbers: 31 bytes with a body of 1.
            if (what, value) != ("body length", 1) {
                malformed.push((format!("{what} {value}"), set(at, value)));
            }
        }
    }
    for value in [-1_i16, i16::MIN, i16::MAX, 3] {
        let mut body = good.clone();
        body[21..23].copy_from_slice(&value.to_be_bytes());
        malformed.push((format!("properties length {value}"), body));
    }
    for (what, body) in malformed {
        let told = wire.ask(&send_batch("batch", 0, &body));
        assert_eq!((told.code, end(&mut wire, "batch")), (13, before), "{what}: {told:?}");
        assert!(!told.remark.is_empty(), "{what}");
    }
    let half = batch(&[(0, b"a", b""), (0, b"b", b"TRAN_MSG\x01true")]);
    assert_eq!(wire.ask(&send_batch("batch", 0, &half)).code, 13);
    assert_eq!(end(&mut wire, "batch"), before);
    // Fault 49: not for retry topics.
    let told = wire.ask(&send_batch("%RETRY%reader", 0, &good));
    assert_eq!(told.code, 13, "{told:?}");
    // A batch comes after a refused one as if nothing had been.
    wire.ask(&send_batch("batch", 0, &good)).ok();
    assert_eq!(end(&mut wire, "batch"), before + 3);
}

#[test]
fn queue_ids_are_checked_and_chosen() {
    let Some((cluster, mut wire)) = start("limits-queues", &[]) else { return };
    wire.ask(&create_topic("queues", 4)).ok();
    for (queue_id, want) in [(0, 0), (3, 0), (4, 29), (5, 29), (65_536, 29), (i32::MAX, 29)] {
        for ask in [send("queues", queue_id, b"x", ""), send_batch("queues", queue_id, &batch(&[(0, b"x", b"")]))] {
            let told = wire.ask(&ask);
            assert_eq!(told.code, want, "{queue_id}: {told:?}");
            if want == 0 {
                assert_eq!(told.number("queueId"), i64::from(queue_id));
            }
        }
    }
    // Below 0 the broker chooses, all of them in time.
    let mut chosen = BTreeSet::new();
    for queue_id in (0..40).map(|index| if index % 2 == 0 { -1 } else { i32::MIN }) {
        let told = wire.ask(&send("queues", queue_id, b"x", "")).ok();
        let queue_id = told.number("queueId");
        assert!((0..4).contains(&queue_id), "{told:?}");
        let messages = wire.ask(&pull("g", "queues", queue_id as i32, told.number("queueOffset"))).ok().messages();
        assert_eq!(i64::from(messages[0].queue_id), queue_id);
        chosen.insert(queue_id);
    }
    assert_eq!(chosen.len(), 4);
    // A topic of no queues takes nothing.
    wire.ask(&create_topic("none", 0)).ok();
    for queue_id in [-1, 0] {
        assert_eq!(wire.ask(&send("none", queue_id, b"x", "")).code, 29);
    }
    for count in [-1, 32_768, i32::MAX, i32::MIN] {
        assert_ne!(wire.ask(&create_topic("many", count)).code, 0, "{count}");
    }
    assert_eq!(wire.ask(&send("SCHEDULE_TOPIC_XXXX", 0, b"x", "")).code, 16);
    let folders: BTreeSet<String> = std::fs::read_dir(cluster.store().join("consumequeue/queues"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    assert!(folders.iter().all(|name| ["0", "1", "2", "3"].contains(&name.as_str())), "{folders:?}");
}

/// Fault 49.
#[test]
fn sends_to_a_retry_topic_ask_for_the_group() {
    let Some((_cluster, mut wire)) = start("names-retry", &[("autoCreateSubscriptionGroup", "false")]) else { return };
    wire.ask(&Ask::new(200).body(r#"{"groupName":"known","retryMaxTimes":16}"#)).ok();
    wire.ask(&Ask::new(200).body(r#"{"groupName":"reader"}"#)).ok();
    wire.ask(&send("%RETRY%known", 0, b"x", "").without("l")).ok();
    assert_eq!(only(&mut wire, "%RETRY%known", 0).body, b"x");
    let told = wire.ask(&send("%RETRY%unknown", 0, b"x", "").without("l"));
    assert_eq!(told.code, 26, "{told:?}");
    assert_eq!(wire.ask(&pull("known", "%RETRY%unknown", 0, 0)).code, 17);
    // times, maxReconsumeTimes, goes to the dead letters
    let cases: &[(i32, Option<i32>, bool)] =
        &[(15, None, false), (16, None, true), (3, Some(3), true), (3, Some(4), false), (15, Some(0), true)];
    for &(times, times_max, is_dead) in cases {
        let before = (end(&mut wire, "%RETRY%known"), end(&mut wire, "%DLQ%known"));
        let ask = send("%RETRY%known", 0, b"x", "").without("l").field("j", times);
        let ask = times_max.map_or(ask.clone(), |max| ask.field("l", max));
        wire.ask(&ask).ok();
        let after = (end(&mut wire, "%RETRY%known"), end(&mut wire, "%DLQ%known"));
        let want = if is_dead { (before.0, before.1 + 1) } else { (before.0 + 1, before.1) };
        assert_eq!(after, want, "{times} of {times_max:?}");
    }
    // Go writes 0 into every send.
    let before = end(&mut wire, "%RETRY%known");
    let ask = send("%RETRY%known", 0, b"x", "").field("l", 0).field("j", 1);
    wire.ask(&Ask { language: "GO", version: 317, ..ask }).ok();
    assert_eq!(end(&mut wire, "%RETRY%known"), before + 1);
}
