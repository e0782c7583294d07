//! What a stranger, a probe or a broken client can put on a port: the node refuses it, lives, and serves the others.
//!
//! Faults 1, 3, 5 and 6 of the public reports, and the rules of framing. Raw frames on loopback.

mod support;

use std::fmt::Write as _;
use std::time::{Duration, Instant};
use support::wire::{Ask, Wire, batch, create_topic, framed, heartbeat, pull, send, send_batch};
use support::{Cluster, is_full};

/// "Promptly", with room for a busy machine.
const CLOSE_MAX: Duration = Duration::from_secs(10);
const FRAME_BYTES_MAX: usize = 16 << 20;

const SMALL: [(&str, &str); 1] = [("mappedFileSizeCommitLog", "67108864")];

fn start(name: &str, more: &[(&str, &str)]) -> Option<Cluster> {
    let config: Vec<_> = SMALL.iter().chain(more).copied().collect();
    Cluster::start_with(name, &config)
}

/// The broker's port, its VIP port and the name server's.
fn ports(cluster: &Cluster) -> [(&'static str, String); 3] {
    let (host, port) = cluster.broker_address().rsplit_once(':').expect("host:port");
    let vip: u16 = port.parse::<u16>().expect("a port") - 2;
    [
        ("broker", cluster.broker_address().to_owned()),
        ("vip", format!("{host}:{vip}")),
        ("namesrv", cluster.namesrv_address().to_owned()),
    ]
}

/// A request that every port answers.
fn any_ask() -> Ask {
    Ask::new(9999)
}

#[track_caller]
fn is_served(wire: &mut Wire) {
    let told = wire.ask(&any_ask());
    assert_eq!((told.code, told.remark.as_str()), (3, " request type 9999 not supported"));
}

fn resident_bytes(cluster: &Cluster) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", cluster.broker_process().id())).expect("it lives");
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("Linux says so");
    line.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok()).expect("a number") * 1024
}

/// A binary header of which the last two lengths and what follows them are the test's.
fn binary_header(remark_bytes: i32, remark: &[u8], map_bytes: i32, map: &[u8]) -> Vec<u8> {
    let mut header = vec![0, 10, 0, 1, 0x97, 0, 0, 0, 7, 0, 0, 0, 0];
    header.extend(remark_bytes.to_be_bytes());
    header.extend(remark);
    header.extend(map_bytes.to_be_bytes());
    header.extend(map);
    header
}

/// Frames that cannot be read. The lengths of the frame itself are right unless the name says otherwise.
fn malformed_frames() -> Vec<(&'static str, Vec<u8>)> {
    let raw = |length: u32, word: u32, rest: &[u8]| [&length.to_be_bytes()[..], &word.to_be_bytes(), rest].concat();
    let pair = |key_bytes: i16, key: &[u8], value_bytes: i32, value: &[u8]| {
        [&key_bytes.to_be_bytes()[..], key, &value_bytes.to_be_bytes(), value].concat()
    };
    let binary = |header: Vec<u8>| framed(1, &header, b"body");
    vec![
        ("length 0", raw(0, 0, b"")),
        ("length 3", raw(3, 0, b"")),
        ("length -1", raw(u32::MAX, 0, b"")),
        ("length i32::MAX", raw(i32::MAX as u32, 0, b"")),
        ("length i32::MIN", raw(i32::MIN as u32, 0, b"")),
        ("length 16 MiB", raw(FRAME_BYTES_MAX as u32, 0, b"")),
        ("header longer than the frame", raw(64, 61, &[b'{'; 60])),
        ("header length 0xffffff", raw(64, 0x00ff_ffff, &[b'{'; 60])),
        ("binary header longer than the frame", raw(64, 1 << 24 | 61, &[0; 60])),
        ("serialize type 2", framed(2, b"{}", b"")),
        ("serialize type 255", framed(255, b"{}", b"")),
        ("no header", framed(0, b"", b"body")),
        ("no binary header", framed(1, b"", b"body")),
        ("header no JSON", framed(0, b"hello", b"")),
        ("header null", framed(0, b"null", b"")),
        ("header a number", framed(0, b"17", b"")),
        ("header a list", framed(0, b"[]", b"")),
        ("header cut", framed(0, br#"{"code":34,"extFields":{"a":"b"#, b"")),
        ("header with a wild escape", framed(0, br#"{"code":34,"extFields":{"a":"\uD8"}}"#, b"")),
        ("header nested deep", framed(0, "[".repeat(100_000).as_bytes(), b"")),
        ("header nested deep in a field", framed(0, format!("{{\"x\":{}", "[{\"a\":".repeat(50_000)).as_bytes(), b"")),
        ("code a text", framed(0, br#"{"code":"ten","flag":0,"opaque":1}"#, b"")),
        ("code too large", framed(0, br#"{"code":99999999999999999999,"flag":0,"opaque":1}"#, b"")),
        ("opaque too large", framed(0, br#"{"code":34,"flag":0,"opaque":99999999999}"#, b"")),
        ("binary header of 20 bytes", binary(vec![0; 20])),
        ("remark i32::MAX", binary(binary_header(i32::MAX, b"", 0, b""))),
        ("remark -1", binary(binary_header(-1, b"", 0, b""))),
        ("remark i32::MIN", binary(binary_header(i32::MIN, b"", 0, b""))),
        ("remark one too long", binary(binary_header(6, b"x", 0, b""))),
        ("map i32::MAX", binary(binary_header(0, b"", i32::MAX, b""))),
        ("map -1", binary(binary_header(0, b"", -1, b""))),
        ("map one too long", binary(binary_header(0, b"", 11, &pair(2, b"ab", 2, b"cd")))),
        ("map of one byte", binary(binary_header(0, b"", 1, b"x"))),
        ("key 0x7fff in a map of 10", binary(binary_header(0, b"", 10, &pair(0x7fff, b"ab", 2, b"cd")))),
        ("key -1", binary(binary_header(0, b"", 10, &pair(-1, b"ab", 2, b"cd")))),
        ("value i32::MAX", binary(binary_header(0, b"", 10, &pair(2, b"ab", i32::MAX, b"cd")))),
        ("value -1", binary(binary_header(0, b"", 10, &pair(2, b"ab", -1, b"cd")))),
        ("value one too long", binary(binary_header(0, b"", 10, &pair(2, b"ab", 3, b"cd")))),
    ]
}

/// Fault 1. What can be read as a request after all (Java's reader is lenient) may be answered; else it is closed.
#[test]
fn malformed_frames_end_their_connection_and_nothing_else() {
    let Some(cluster) = start("frames-malformed", &[]) else { return };
    for (port, address) in ports(&cluster) {
        let mut other = Wire::to(&address);
        for (what, frame) in malformed_frames() {
            let mut wire = Wire::to(&address);
            wire.try_write(&frame);
            assert!(wire.closes(CLOSE_MAX), "{port}: {what}");
            is_served(&mut other);
        }
    }
}

/// Fault 1, the attack: thousands of false lengths over 50 connections at a time.
#[test]
fn false_lengths_take_no_memory() {
    let Some(cluster) = start("frames-attack", &[]) else { return };
    let count = if is_full() { 10_000 } else { 2_000 };
    for (port, address) in ports(&cluster) {
        let mut other = Wire::to(&address);
        is_served(&mut other);
        let frames = malformed_frames();
        let attack = |count: usize, other: &mut Wire| {
            for round in 0..count / 50 {
                let mut wires: Vec<Wire> = (0..50).map(|_| Wire::to(&address)).collect();
                for (index, wire) in wires.iter_mut().enumerate() {
                    wire.try_write(&frames[(round * 50 + index) % frames.len()].1);
                }
                is_served(other);
                for wire in &mut wires {
                    assert!(wire.closes(CLOSE_MAX), "{port}");
                }
            }
        };
        attack(500, &mut other);
        let before = resident_bytes(&cluster);
        attack(count, &mut other);
        let after = resident_bytes(&cluster);
        assert!(after < before + (32 << 20), "{port}: {before} bytes before, {after} after");
        let log_bytes = cluster.broker_process().stderr().len();
        assert!(log_bytes < 1 << 20, "{port}: {log_bytes} bytes of log");
    }
}

/// Fault 3.
#[test]
fn other_protocols_are_named_and_closed_at_once() {
    let Some(cluster) = start("frames-foreign", &[]) else { return };
    let tls_hello = [&[0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3][..], &[7; 194]].concat();
    let foreign: &[(&str, Vec<u8>, &str)] = &[
        ("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), "HTTP/2"),
        ("GET", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(), "HTTP on"),
        ("POST", b"POST /a HTTP/1.1\r\n\r\n".to_vec(), "HTTP on"),
        ("TLS hello", tls_hello, "TLS"),
        ("four bytes only", b"GET ".to_vec(), "HTTP on"),
    ];
    for (port, address) in ports(&cluster) {
        let mut other = Wire::to(&address);
        for (what, bytes, name) in foreign {
            let before = cluster.broker_process().stderr().matches(name).count();
            let mut wire = Wire::to(&address);
            wire.try_write(bytes);
            assert!(wire.closes(CLOSE_MAX), "{port}: {what}");
            let log = cluster.broker_process().stderr();
            assert!(log.matches(name).count() > before, "{port}: {what} is not named\n{log}");
            is_served(&mut other);
            // The node limits its complaints to a few a second.
            std::thread::sleep(Duration::from_millis(120));
        }
    }
}

#[test]
fn half_frames_and_silent_connections_time_out() {
    let Some(cluster) = start("frames-idle", &[("serverChannelMaxIdleTimeSeconds", "2")]) else { return };
    let whole = any_ask().frame(1);
    let nearly_16_mib = ((FRAME_BYTES_MAX - 4) as u32).to_be_bytes();
    let halves: [(&str, &[u8]); 6] = [
        ("nothing", &[]),
        ("one byte", &whole[..1]),
        ("a length word", &whole[..4]),
        ("a head", &whole[..8]),
        ("all but one byte", &whole[..whole.len() - 1]),
        ("16 MiB - 4 as length", &nearly_16_mib),
    ];
    for (port, address) in ports(&cluster) {
        let wires = halves.map(|(what, bytes)| {
            let mut wire = Wire::to(&address);
            wire.write(bytes);
            (what, wire)
        });
        // The two seconds are the node's; this bound only ends a hang.
        for (what, mut wire) in wires {
            assert!(wire.closes(Duration::from_secs(30)), "{port}: {what}");
        }
        is_served(&mut Wire::to(&address));
    }
}

/// Fault 5.
#[test]
fn bodies_that_decode_to_nothing_are_errors() {
    let Some(cluster) = start("frames-bodies", &[]) else { return };
    let bodies: [&[u8]; 12] = [
        b"",
        b"null",
        b"{}",
        b"{\"clientID\":",
        b"[",
        b"[]",
        b"0",
        b"\"\"",
        b"{\"clientID\":null}",
        b"\xff\xfe",
        b" ",
        b"{\"clientID\":\"c\",\"consumerDataSet\":[null]}",
    ];
    let topics_before = Wire::to(cluster.broker_address()).ask(&Ask::new(21)).ok().body;
    let mut wires = ports(&cluster).map(|(port, address)| (port, Wire::to(&address)));
    for (port, wire) in &mut wires {
        let codes: &[i32] = if *port == "namesrv" { &[103] } else { &[34, 41, 42, 400, 401, 18] };
        for &code in codes {
            for body in bodies {
                for ask in [Ask::new(code), Ask::new(code).binary()] {
                    let ask = if code == 103 {
                        // An empty body is an empty table of topics here, as in Java; so the fields are missing.
                        ask
                    } else {
                        ask.field("topic", "t").field("a", "b")
                    };
                    let told = wire.ask(&ask.body(body));
                    let what = format!("{port}: {code} with {:?}: {told:?}", String::from_utf8_lossy(body));
                    assert_ne!(told.code, 0, "{what}");
                    assert_eq!(told.flag & 1, 1, "{what}");
                    assert!(!told.remark.is_empty(), "{what}");
                    let foreign = ["NullPointer", "panicked", "Exception"];
                    assert!(foreign.iter().all(|text| !told.remark.contains(text)), "{what}");
                }
            }
        }
        is_served(wire);
    }
    let (_, wire) = &mut wires[0];
    wire.ask(&create_topic("bodies", 1)).ok();
    for body in bodies {
        let told = wire.ask(&send_batch("bodies", 0, body));
        assert_eq!(told.code, 13, "batch {body:?}: {told:?}");
        assert!(!told.remark.is_empty());
    }
    let told = wire.ask(&pull("g", "bodies", 0, 0));
    assert_eq!((told.code, told.bounds()), (19, (0, 0, 0)));
    wire.ask(&Ask::new(215).field("topic", "bodies")).ok();
    // The topics are what they were; the version has moved.
    let names = |body: &[u8]| {
        let table: serde_json::Value = serde_json::from_slice(body).expect("JSON");
        table["topicConfigTable"].as_object().expect("a table").keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!(names(&wire.ask(&Ask::new(21)).ok().body), names(&topics_before));
    let log = cluster.broker_process().stderr();
    assert!(!log.contains("panicked"), "{log}");
}

/// A registration that is no registration changes no route.
#[test]
fn registrations_without_sense_are_errors() {
    let Some(cluster) = start("frames-register", &[]) else { return };
    let mut wire = Wire::to(cluster.namesrv_address());
    let fields = [
        ("brokerName", "b"),
        ("brokerAddr", "127.0.0.1:1"),
        ("clusterName", "c"),
        ("haServerAddr", "127.0.0.1:2"),
        ("brokerId", "0"),
    ];
    let empty = r#"{"topicConfigSerializeWrapper":{"topicConfigTable":{},"dataVersion":{"counter":1,"timestamp":1}}}"#;
    let whole = fields.iter().fold(Ask::new(103), |ask, (name, value)| ask.field(name, value));
    for (name, _) in fields {
        for ask in [whole.clone().without(name), whole.clone().field(name, "")] {
            let told = wire.ask(&ask.body(empty));
            if told.code == 0 {
                assert_eq!(name, "haServerAddr", "{told:?}");
            } else {
                assert!(told.remark.contains(name), "{name}: {told:?}");
            }
        }
    }
    for body in ["null", "[", "{\"topicConfigSerializeWrapper\":", "17", "\u{1}\u{2}"] {
        let told = wire.ask(&whole.clone().body(body));
        assert_eq!(told.code, 1, "{body}: {told:?}");
    }
    let told = wire.ask(&whole.clone().field("compressed", true).body(b"no zlib"));
    assert_eq!(told.code, 1, "{told:?}");
    let told = wire.ask(&whole.clone().field("bodyCrc32", 1).body("{}"));
    assert_eq!((told.code, told.remark.as_str()), (1, "crc32 not match"));
    is_served(&mut wire);
    // The real broker is still known.
    let told = wire.ask(&Ask::new(106)).ok();
    assert!(String::from_utf8_lossy(&told.body).contains(cluster.broker_address()), "{told:?}");
}

/// Fault 6: a missing or wrong field is named, or the code is refused as a whole while it is not built.
#[test]
fn key_queries_with_wrong_fields_never_find_nothing() {
    let Some(cluster) = start("frames-query", &[]) else { return };
    let mut wire = Wire::to(cluster.broker_address());
    wire.ask(&create_topic("query", 1)).ok();
    wire.ask(&send("query", 0, b"body", "KEYS\u{1}k")).ok();
    let whole = Ask::new(12)
        .field("topic", "query")
        .field("key", "k")
        .field("maxNum", 32)
        .field("beginTimestamp", 0)
        .field("endTimestamp", i64::MAX);
    let numbers = ["maxNum", "beginTimestamp", "endTimestamp"];
    let mut asks: Vec<(String, Ask)> = Vec::new();
    for name in ["topic", "key", "maxNum", "beginTimestamp", "endTimestamp"] {
        asks.push((name.to_owned(), whole.clone().without(name)));
        asks.push((name.to_owned(), whole.clone().without(name).field(&name.to_uppercase(), 1)));
    }
    for name in numbers {
        for value in ["", "x", "1.5", "99999999999999999999", " 1", "0x10"] {
            asks.push((name.to_owned(), whole.clone().field(name, value)));
        }
    }
    asks.push(("beginTimestamp".to_owned(), whole.clone().without("beginTimestamp").field("begin", 0)));
    for (name, ask) in asks {
        let told = wire.ask(&ask);
        let is_named = told.code != 0 && told.code != 22 && told.remark.contains(&name);
        let is_unbuilt = told.code == 3 && told.remark == " request type 12 not supported";
        assert!(is_named || is_unbuilt, "{:?}: {told:?}", ask.fields);
    }
    is_served(&mut wire);
}

/// The same for what is built: sends, pulls, offsets, topics.
#[test]
fn missing_and_unreadable_fields_are_named() {
    let Some(cluster) = start("frames-fields", &[]) else { return };
    let mut wire = Wire::to(cluster.broker_address());
    wire.ask(&create_topic("fields", 1)).ok();
    let offset = |code: i32| Ask::new(code).field("topic", "fields").field("queueId", 0).field("consumerGroup", "g");
    let cases: Vec<(Ask, &[&str], &[&str])> = vec![
        // request, required, numbers among them
        (send("fields", 0, b"x", ""), &["b", "e", "f", "g", "h"], &["d", "e", "f", "g", "h"]),
        (
            pull("g", "fields", 0, 0),
            &["consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag"],
            &["queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis", "subVersion"],
        ),
        (offset(14), &["consumerGroup", "topic", "queueId"], &["queueId"]),
        (
            offset(15).field("commitOffset", 0),
            &["consumerGroup", "topic", "queueId", "commitOffset"],
            &["queueId", "commitOffset"],
        ),
        (offset(29).field("timestamp", 0), &["topic", "queueId", "timestamp"], &["queueId", "timestamp"]),
        (offset(30), &["topic", "queueId"], &["queueId"]),
        (offset(31), &["topic", "queueId"], &["queueId"]),
        (offset(32), &["topic", "queueId"], &["queueId"]),
        (Ask::new(38).field("consumerGroup", "g"), &["consumerGroup"], &[]),
        (Ask::new(202).field("topic", "fields"), &["topic"], &[]),
        (Ask::new(208).field("consumerGroup", "g"), &["consumerGroup"], &[]),
        (Ask::new(215).field("topic", "nothing"), &["topic"], &[]),
        (create_topic("fields2", 1), &["topic", "readQueueNums", "writeQueueNums", "perm"], &["readQueueNums", "perm"]),
    ];
    for (ask, required, numbers) in cases {
        for name in required {
            for ask in [ask.clone().without(name), ask.clone().without(name).binary()] {
                let told = wire.ask(&ask);
                assert!(told.code != 0 && told.code != 22 && told.code != 19, "{} without {name}: {told:?}", ask.code);
                assert!(told.remark.contains(name), "{} without {name}: {told:?}", ask.code);
            }
        }
        for name in numbers {
            for value in ["", "x", "1.5", "99999999999999999999"] {
                let told = wire.ask(&ask.clone().field(name, value));
                assert!(told.code != 0 && told.remark.contains(name), "{} {name}={value}: {told:?}", ask.code);
            }
        }
        // What Java's broker does without.
        for name in ["a", "c", "d", "commitOffset", "suspendTimeoutMillis", "subVersion"] {
            if (ask.code == 310) == (name.len() == 1) && matches!(ask.code, 310 | 11) {
                wire.ask(&ask.clone().without(name)).ok();
            }
        }
        // Unknown fields are no matter.
        let told = wire.ask(&ask.clone().field("bname", "broker-a").field("ns", "").field("zzz", "\u{1}主"));
        assert!(matches!(told.code, 0 | 19 | 22) || ask.code == 38, "{}: {told:?}", ask.code);
    }
}

#[test]
fn unknown_codes_are_answered_with_3() {
    let Some(cluster) = start("frames-codes", &[]) else { return };
    for (port, address) in ports(&cluster) {
        let mut wire = Wire::to(&address);
        for code in [0, -1, 1, 5, 9_999, 32_767, 32_768, 65_535, 65_546, 200_050, 200_056, i32::MAX, i32::MIN] {
            let told = wire.ask(&Ask::new(code));
            let want = format!(" request type {code} not supported");
            assert_eq!((told.code, told.flag, told.remark), (3, 1, want), "{port}");
        }
        // 16 bits in the binary header; whoever sends more means something else.
        for code in [0, -1, 9_999, 32_767] {
            let told = wire.ask(&Ask::new(code).binary());
            let want = format!(" request type {code} not supported");
            assert_eq!((told.code, told.flag, told.remark, told.is_binary), (3, 1, want, true), "{port}");
        }
    }
}

#[test]
fn one_way_requests_are_never_answered() {
    let Some(cluster) = start("frames-oneway", &[]) else { return };
    for (port, address) in ports(&cluster) {
        let mut wire = Wire::to(&address);
        let new_topic = format!("oneway-{port}");
        let mut asks = vec![
            send(&new_topic, 0, b"first of a new topic", ""),
            send(&new_topic, 0, b"second", ""),
            send(&new_topic, 99, b"no such queue", ""),
            send("a/b", 0, b"no topic", ""),
            send_batch(&new_topic, 0, b"no batch"),
            Ask::new(310),
            pull("g", &new_topic, 0, 0),
            pull("g", "nothing", 0, 0),
            Ask::new(11),
            create_topic(&format!("oneway-made-{port}"), 1),
            create_topic("a/b", 1),
            heartbeat("c", "oneway", &[("t", "TAG", "*", 1)]),
            Ask::new(34).body("null"),
            Ask::new(15),
            Ask::new(14),
            Ask::new(307).field("consumerGroup", "g").field("clientId", "c"),
            Ask::new(103),
            Ask::new(105).field("topic", "nothing"),
            Ask::new(104),
        ];
        for code in [0, 12, 21, 29, 30, 31, 32, 35, 36, 37, 38, 41, 42, 100, 101, 106, 200, 202, 208, 318, 9_999] {
            asks.push(Ask::new(code));
        }
        for ask in asks {
            wire.send(&ask.clone().oneway());
            wire.send(&ask.binary().oneway());
        }
        is_served(&mut wire);
        // What was parked has been decided by now, or is in the two seconds to come.
        let late = wire.next(Duration::from_secs(2));
        assert!(late.as_ref().is_none_or(|told| told.flag & 1 == 0), "{port}: {late:?}");
    }
    let mut wire = Wire::to(cluster.broker_address());
    assert_eq!(wire.ask(&support::wire::max_offset("oneway-broker", 0)).number("offset"), 4);
}

/// Answers to nobody's question are dropped.
#[test]
fn responses_that_nobody_asked_for_are_ignored() {
    let Some(cluster) = start("frames-responses", &[]) else { return };
    for (_, address) in ports(&cluster) {
        let mut wire = Wire::to(&address);
        for flag in [1, 3] {
            for code in [0, 10, 34, 105] {
                wire.send(&Ask { flag, ..Ask::new(code) });
                wire.send(&Ask { flag, ..Ask::new(code).binary() });
            }
        }
        is_served(&mut wire);
    }
}

#[test]
fn an_answer_has_the_encoding_and_the_opaque_of_its_request() {
    let Some(cluster) = start("frames-encodings", &[]) else { return };
    let mut wire = Wire::to(cluster.broker_address());
    for binary in [false, true] {
        let as_asked = |ask: Ask| if binary { ask.binary() } else { ask };
        wire.ask(&as_asked(create_topic("encodings", 1))).ok();
        let asks = [
            send("encodings", 0, b"body", "TAGS\u{1}主题 \u{1f600}"),
            pull("g", "encodings", 0, i64::from(binary)),
            pull("g", "encodings", 0, 10),
            pull("g", "nothing", 0, 0),
            support::wire::max_offset("encodings", 0),
            heartbeat("c", "encodings", &[]),
            Ask::new(9_999),
        ];
        for ask in asks {
            let ask = as_asked(ask);
            for opaque in [0, -1, i32::MIN, i32::MAX, 0x0102_0304] {
                wire.write(&ask.frame(opaque));
                let told = wire.answer(opaque);
                assert_eq!((told.is_binary, told.flag, told.version), (binary, 1, 407), "{told:?}");
            }
        }
    }
    let told = wire.ask(&pull("g", "encodings", 0, 0)).ok();
    assert_eq!(told.messages().len(), 10);
    for message in told.messages() {
        assert_eq!(message.property("TAGS").as_deref(), Some("主题 \u{1f600}"));
    }
    // Held and woken: the encoding of the request too.
    for binary in [false, true] {
        let ask = support::wire::pull_and_wait("g", "encodings", 0, 10 + i64::from(binary), 20_000);
        let opaque = wire.send(&if binary { ask.binary() } else { ask });
        Wire::to(cluster.broker_address()).ask(&send("encodings", 0, b"x", "")).ok();
        assert_eq!(wire.answer(opaque).ok().is_binary, binary);
    }
}

/// What Java's reader takes.
#[test]
fn lenient_headers_are_read() {
    let Some(cluster) = start("frames-lenient", &[]) else { return };
    for (port, address) in ports(&cluster) {
        let mut wire = Wire::to(&address);
        for header in [
            r#"{"code":9999,"opaque":7}"#,
            r#"{"opaque":7,"code":"9999","flag":0}"#,
            r#"{code:9999,opaque:7}"#,
            r#"{'code':9999,'opaque':7,}"#,
            r#"{"code":9999,"opaque":7,"language":"KLINGON","version":0,"extFields":null}"#,
            r#"{"code":9999,"opaque":7,"language":12,"extFields":{"a":1,"b":true,"c":null},"more":{"x":[1,{"y":2}]}}"#,
            "\n\t {\"code\" : 9999 , \"opaque\" : 7 }\n",
        ] {
            wire.write(&framed(0, header.as_bytes(), b""));
            let told = wire.answer(7);
            assert_eq!(told.code, 3, "{port}: {header}");
        }
    }
}

#[test]
fn a_frame_may_come_in_any_pieces() {
    let Some(cluster) = start("frames-pieces", &[]) else { return };
    let mut wire = Wire::to(cluster.broker_address());
    wire.ask(&create_topic("pieces", 1)).ok();
    let frame = send("pieces", 0, b"in pieces", "TAGS\u{1}T").frame(5);
    let mut count = 0;
    // One cut at each place, then pieces of one length.
    for at in 1..frame.len() {
        wire.write(&frame[..at]);
        if at % 16 == 0 || at < 10 {
            std::thread::sleep(Duration::from_millis(2));
        }
        wire.write(&frame[at..]);
        assert_eq!(wire.answer(5).ok().number("queueOffset"), count);
        count += 1;
    }
    for piece_bytes in [1, 3, 7, 8, 9, 100] {
        for piece in frame.chunks(piece_bytes) {
            wire.write(piece);
            std::thread::sleep(Duration::from_micros(200));
        }
        assert_eq!(wire.answer(5).ok().number("queueOffset"), count);
        count += 1;
    }
    // Two and a half frames in one write, and the rest.
    let ahead = [&frame[..], &frame, &frame[..frame.len() / 2]].concat();
    wire.write(&ahead);
    for _ in 0..2 {
        wire.answer(5).ok();
    }
    wire.write(&frame[frame.len() / 2..]);
    assert_eq!(wire.answer(5).ok().number("queueOffset"), count + 2);
}

#[test]
fn a_hundred_requests_in_one_write_are_all_answered() {
    let Some(cluster) = start("frames-pipeline", &[]) else { return };
    let mut wire = Wire::to(cluster.broker_address());
    wire.ask(&create_topic("pipeline", 4)).ok();
    for round in 0..3 {
        let mut bytes = Vec::new();
        for opaque in 0..100 {
            let ask = match opaque % 5 {
                0 | 1 => send("pipeline", opaque % 4, &opaque.to_be_bytes(), ""),
                2 => pull("g", "pipeline", 0, 0),
                3 => any_ask(),
                _ => send("pipeline", 0, b"binary", "").binary(),
            };
            bytes.extend(ask.frame(1_000 + opaque));
        }
        wire.write(&bytes);
        for opaque in (0..100).rev() {
            let told = wire.answer(1_000 + opaque);
            let want: &[i32] = match opaque % 5 {
                2 => &[0, 19],
                3 => &[3],
                _ => &[0],
            };
            assert!(want.contains(&told.code), "round {round}, {opaque}: {told:?}");
        }
    }
    let count: i64 = (0..4).map(|id| wire.ask(&support::wire::max_offset("pipeline", id)).number("offset")).sum();
    assert_eq!(count, 3 * 60);
}

/// Sends of one connection keep their order, also where the first makes the topic.
#[test]
fn pipelined_sends_keep_their_order() {
    let Some(cluster) = start("frames-order", &[]) else { return };
    let mut wire = Wire::to(cluster.broker_address());
    for topic in ["order-1", "order-2", "order-3"] {
        let mut bytes = Vec::new();
        for number in 0..50_i32 {
            bytes.extend(send(topic, 0, &number.to_be_bytes(), "").frame(number));
        }
        wire.write(&bytes);
        for number in 0..50 {
            let told = wire.answer(number).ok();
            assert_eq!(told.number("queueOffset"), i64::from(number), "{topic}");
        }
    }
}

#[test]
fn the_largest_frame_is_16_mib() {
    let Some(cluster) = start("frames-16mib", &[]) else { return };
    for (port, address) in ports(&cluster) {
        let mut wire = Wire::to(&address);
        let empty = any_ask().frame(7).len();
        let mut ask = any_ask().body(vec![b'x'; FRAME_BYTES_MAX - empty]);
        let frame = ask.frame(7);
        assert_eq!(frame.len(), FRAME_BYTES_MAX);
        wire.write(&frame);
        assert_eq!(wire.answer(7).code, 3, "{port}");
        is_served(&mut wire);
        ask.body.push(b'x');
        let mut wire = Wire::to(&address);
        wire.try_write(&ask.frame(7)[..1 << 20]);
        assert!(wire.closes(CLOSE_MAX), "{port}");
    }
    // A whole frame of noise for the codes that decode it.
    let mut wire = Wire::to(cluster.broker_address());
    for code in [34, 200, 310] {
        let empty = Ask::new(code).frame(7).len();
        let body = vec![b'['; FRAME_BYTES_MAX - empty];
        let told = wire.ask(&Ask::new(code).body(body));
        assert!(!matches!(told.code, 0 | 3), "{code}: {told:?}");
    }
}

/// The same frame to its end: whoever goes on sending is told by a reset, not left with a window of 0.
#[test]
fn a_refused_sender_that_goes_on_is_reset() {
    let Some(cluster) = start("frames-reset", &[]) else { return };
    for (port, address) in ports(&cluster) {
        let mut wire = Wire::to(&address);
        let frame = any_ask().body(vec![b'x'; FRAME_BYTES_MAX]).frame(7);
        let begin = Instant::now();
        wire.try_write(&frame);
        assert!(wire.closes(CLOSE_MAX), "{port}");
        assert!(begin.elapsed() < CLOSE_MAX, "{port}: {:?}", begin.elapsed());
    }
}

/// Half-received large frames share one limit; nobody else is hurt by it.
#[test]
fn half_received_large_frames_are_bounded() {
    let Some(cluster) = start("frames-half", &[]) else { return };
    let address = cluster.broker_address();
    let mut other = Wire::to(address);
    is_served(&mut other);
    let before = resident_bytes(&cluster);
    let half = &any_ask().body(vec![b'x'; FRAME_BYTES_MAX - 1_000]).frame(1)[..1 << 20];
    let mut wires: Vec<Wire> = (0..400)
        .map(|_| {
            let mut wire = Wire::to(address);
            wire.try_write(half);
            wire
        })
        .collect();
    is_served(&mut other);
    let during = resident_bytes(&cluster);
    let limit = 256 << 20;
    assert!(during < before + limit + (64 << 20), "{before} before, {during} during");
    wires.truncate(0);
    support::await_that("memory given back", Duration::from_secs(20), || {
        is_served(&mut other);
        resident_bytes(&cluster) < before + (64 << 20)
    });
}

/// A batch as it should be, so that the malformed ones of `node_names_limits` mean something.
#[test]
fn a_batch_is_answered_with_the_ids_of_its_messages() {
    let Some(cluster) = start("frames-batch", &[]) else { return };
    let mut wire = Wire::to(cluster.broker_address());
    wire.ask(&create_topic("batch", 1)).ok();
    let body = batch(&[(0, b"a", b""), (7, b"bb", b"TAGS\x01T"), (0, b"ccc", b"x\x01y\x02")]);
    let told = wire.ask(&send_batch("batch", 0, &body)).ok();
    assert_eq!(told.number("queueOffset"), 0);
    let mut ids = String::new();
    for message in wire.ask(&pull("g", "batch", 0, 0)).ok().messages() {
        let port: u32 = cluster.broker_address().rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        let comma = if ids.is_empty() { "" } else { "," };
        write!(ids, "{comma}7F000001{port:08X}{:016X}", message.log_offset).expect("a String");
    }
    assert_eq!(told.ext["msgId"], ids);

    // Of a message's tag and that of its batch, which is stored behind it, the later counts.
    wire.ask(&send_batch("batch", 0, &body).field("i", "TAGS\u{1}S")).ok();
    for (tag, want) in [("T", vec![1]), ("S", vec![3, 4, 5]), ("none", vec![])] {
        let told = wire.ask(&pull("g", "batch", 0, 0).field("subscription", tag));
        let got: Vec<i64> =
            if told.code == 0 { told.messages() } else { Vec::new() }.iter().map(|m| m.queue_offset).collect();
        assert_eq!(got, want, "{tag}: {told:?}");
    }
}
