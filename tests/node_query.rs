//! Queries for single messages by raw frames: what is found, what is not, and what no official client would ask.
//!
//! Faults 6 and 31 of the public reports.

mod support;

use support::Cluster;
use support::wire::{Ask, Told, Wire, create_topic, send};

fn start(name: &str) -> Option<(Cluster, Wire)> {
    let cluster = Cluster::start_with(name, &[("mappedFileSizeCommitLog", "67108864")])?;
    let mut wire = Wire::to(cluster.broker_address());
    for topic in ["T", "AaTopic", "BBTopic"] {
        wire.ask(&create_topic(topic, 2)).ok();
    }
    // The first keyed message of a store makes the first index file, which an agent does.
    wire.ask(&send("T", 0, b"first", "KEYS\u{1}first")).ok();
    support::await_that("the first index file", std::time::Duration::from_secs(30), || {
        wire.ask(&query("T", "first")).code == 0
    });
    Some((cluster, wire))
}

fn query(topic: &str, key: &str) -> Ask {
    Ask::new(12)
        .field("topic", topic)
        .field("key", key)
        .field("maxNum", 32)
        .field("beginTimestamp", 0)
        .field("endTimestamp", i64::MAX)
}

fn bodies(told: &Told) -> Vec<String> {
    told.messages().iter().map(|message| String::from_utf8_lossy(&message.body).into_owned()).collect()
}

#[test]
fn by_key_and_by_unique_key() {
    let Some((_cluster, mut wire)) = start("query-key") else { return };
    for number in 0..100 {
        let properties = format!("KEYS\u{1}shared k{number}\u{2}UNIQ_KEY\u{1}U{number}\u{2}");
        wire.ask(&send("T", number % 2, format!("m{number}").as_bytes(), &properties)).ok();
    }
    // Found at once.
    assert_eq!(bodies(&wire.ask(&query("T", "k99")).ok()), ["m99"]);
    assert_eq!(bodies(&wire.ask(&query("T", "U7")).ok()), ["m7"]);
    let all = wire.ask(&query("T", "shared").field("maxNum", 1000)).ok();
    // maxMsgsNumBatch: the newest, oldest first.
    let want: Vec<String> = (36..100).map(|number| format!("m{number}")).collect();
    assert_eq!(bodies(&all), want);
    assert!(all.number("indexLastUpdateTimestamp") > 0);
    assert_eq!(all.number("indexLastUpdatePhyoffset"), all.messages().last().unwrap().log_offset);
    let unique = |key: &str| query("T", key).field("_UNIQUE_KEY_QUERY", "true");
    // defaultQueryMaxNum, whatever was asked for; the other keys do not count.
    assert_eq!(bodies(&wire.ask(&unique("U42").field("maxNum", 0)).ok()), ["m42"]);
    for ask in [unique("k42"), query("T", "nobody"), query("other", "k42"), query("T", "")] {
        let told = wire.ask(&ask);
        assert_eq!((told.code, told.remark.as_str()), (22, "can not find message, maybe time range not correct"));
    }
    let born = all.messages()[0].store_timestamp;
    assert_eq!(wire.ask(&query("T", "shared").field("endTimestamp", born - 5_000)).code, 22);
    assert_eq!(wire.ask(&query("T", "shared").field("beginTimestamp", born + 3_600_000)).code, 22);
    // What newer clients add is ignored.
    let newer = query("T", "k5").field("keyType", "K").field("lastKey", "x").field("bname", "broker-a");
    assert_eq!(bodies(&wire.ask(&newer).ok()), ["m5"]);
}

#[test]
fn a_field_that_is_missing_or_no_number_is_named() {
    let Some((_cluster, mut wire)) = start("query-fields") else { return };
    for name in ["topic", "key", "maxNum", "beginTimestamp", "endTimestamp"] {
        let told = wire.ask(&query("T", "first").without(name));
        assert!(told.code == 29 && told.remark.contains(name), "{name}: {told:?}");
    }
    // What a tool of another language once sent.
    let told = wire.ask(&query("T", "first").without("beginTimestamp").field("begin", 0));
    assert!(told.remark.contains("beginTimestamp"));
    let told = wire.ask(&query("T", "first").without("maxNum").field("MAXNUM", 5));
    assert!(told.remark.contains("maxNum"));
    for (name, values) in [
        ("maxNum", &["", "x", "1.5", "2147483648", "-2147483649", "0", "-1"][..]),
        ("beginTimestamp", &["", "now", "9223372036854775808"]),
        ("endTimestamp", &["", "0x10", "-9223372036854775809"]),
    ] {
        for value in values {
            let told = wire.ask(&query("T", "first").without(name).field(name, value));
            let remark = &told.remark;
            assert!(told.code == 29 && remark.contains(name), "{name}={value:?}: {told:?}");
        }
    }
    assert_eq!(wire.ask(&query("T", "first").without("beginTimestamp").field("beginTimestamp", i64::MIN)).code, 0);
}

#[test]
fn colliding_strangers_are_never_returned() {
    let Some((_cluster, mut wire)) = start("query-collisions") else { return };
    wire.ask(&send("AaTopic", 0, b"theirs", "KEYS\u{1}Aa")).ok();
    assert_eq!(wire.ask(&query("BBTopic", "BB")).code, 22);
    wire.ask(&send("BBTopic", 0, b"ours", "KEYS\u{1}BB")).ok();
    assert_eq!(bodies(&wire.ask(&query("BBTopic", "BB")).ok()), ["ours"]);
    for key in ["Aa", "BB", "AaAa", "BBBB", "AaBB"] {
        wire.ask(&send("T", 0, key.as_bytes(), &format!("KEYS\u{1}{key}"))).ok();
    }
    for _ in 0..50 {
        wire.ask(&send("T", 1, b"stranger", "KEYS\u{1}BBAa")).ok();
    }
    for key in ["Aa", "BB", "AaAa", "BBBB", "AaBB"] {
        assert_eq!(bodies(&wire.ask(&query("T", key).field("maxNum", 1)).ok()), [key]);
    }
}

#[test]
fn the_entries_of_a_queue() {
    let Some((_cluster, mut wire)) = start("query-queue") else { return };
    for number in 0..5 {
        wire.ask(&send("AaTopic", 1, b"body", &format!("TAGS\u{1}t{number}"))).ok();
    }
    let dump = |index: i64, count: i64| {
        Ask::new(321).field("topic", "AaTopic").field("queueId", 1).field("index", index).field("count", count)
    };
    let body = |told: &Told| serde_json::from_slice::<serde_json::Value>(&told.body).expect("JSON");
    let told = body(&wire.ask(&dump(1, 3)).ok());
    assert_eq!((&told["minQueueIndex"], &told["maxQueueIndex"]), (&0.into(), &5.into()));
    let entries = told["queueData"].as_array().expect("entries");
    assert_eq!(entries.len(), 3);
    for (entry, number) in entries.iter().zip(1..) {
        assert_eq!(entry["tagsCode"], support::wire::java_hash(&format!("t{number}")));
        assert_eq!(entry["eval"], true);
        let record = wire.ask(&Ask::new(33).field("offset", &entry["physicOffset"])).ok();
        assert_eq!(entry["physicSize"], record.body.len());
    }
    let told = body(&wire.ask(&dump(0, 1).field("consumerGroup", "g")).ok());
    assert_eq!(told["filterData"], "g@AaTopic is not online!");
    assert_eq!(body(&wire.ask(&dump(0, -1)).ok())["queueData"].as_array().map(Vec::len), Some(0));
    for ask in [dump(5, 1), dump(-1, 1), dump(0, 1).field("queueId", 7), dump(0, 1).field("topic", "nowhere")] {
        let told = wire.ask(&ask);
        assert!(told.code == 1 && told.remark.contains("is not exist!"), "{told:?}");
    }
}

#[test]
fn by_offset() {
    let Some((_cluster, mut wire)) = start("query-offset") else { return };
    wire.ask(&send("T", 0, b"wanted", "KEYS\u{1}wanted")).ok();
    let found = wire.ask(&query("T", "wanted")).ok();
    let offset = found.messages()[0].log_offset;
    let view = |offset: &str| Ask::new(33).field("offset", offset);
    let told = wire.ask(&view(&offset.to_string())).ok();
    assert_eq!(bodies(&told), ["wanted"]);
    assert_eq!(told.body, found.body);
    assert_eq!(bodies(&wire.ask(&view(&offset.to_string()).field("topic", "T")).ok()), ["wanted"]);
    let nowhere = (offset + 1..offset + 40).chain([-1, offset + 100_000, 1 << 40, i64::MAX, i64::MIN]);
    for offset in nowhere {
        let told = wire.ask(&view(&offset.to_string()));
        let want = format!("can not find message by the offset, {offset}");
        assert_eq!((told.code, told.remark), (1, want));
    }
    for ask in [Ask::new(33), view(""), view("x"), view("9223372036854775808")] {
        let told = wire.ask(&ask);
        assert!(told.code == 29 && told.remark.contains("offset"), "{told:?}");
    }
}
