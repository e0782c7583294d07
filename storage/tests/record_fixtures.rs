//! Every record that the Java brokers 4.9.7 and 5.3.3 left in the fixture stores: read field by field as the manifests
//! say, and version 1 written again byte for byte.
//!
//! The stores lie in `shared/fixtures` beside the repository. Without them the test says SKIPPED, or fails if
//! RINGMQ_REQUIRE_CLIENTS=1.

use flate2::read::{GzDecoder, ZlibDecoder};
use ringmq_storage::record::decode::{self, Checked, Record, Version};
use ringmq_storage::record::layout::{self, sys_flag};
use ringmq_storage::record::{NewRecord, encode, java_hash, properties};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;

fn fixtures() -> Option<PathBuf> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures");
    if dir.is_dir() {
        return Some(dir);
    }
    let required = std::env::var("RINGMQ_REQUIRE_CLIENTS").is_ok_and(|value| value == "1");
    assert!(!required, "the fixture stores are missing: {}", dir.display());
    println!("SKIPPED: the stores written by the Java broker are not there: {}", dir.display());
    None
}

struct Fixture {
    manifest: Value,
    /// File start to its bytes.
    log: BTreeMap<u64, Vec<u8>>,
}

fn open(name: &str) -> Option<Fixture> {
    let dir = fixtures()?;
    let manifest = std::fs::read(dir.join(format!("{name}.manifest.json"))).expect("manifest");
    let archive = std::fs::File::open(dir.join(format!("{name}.tar.gz"))).expect("archive");
    let mut log = BTreeMap::new();
    for entry in tar::Archive::new(GzDecoder::new(archive)).entries().expect("archive") {
        let mut entry = entry.expect("archive entry");
        let path = entry.path().expect("entry path").into_owned();
        if let Ok(file) = path.strip_prefix("store/commitlog")
            && let Some(start) = file.to_str().and_then(|name| name.parse().ok())
        {
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).expect("entry bytes");
            log.insert(start, bytes);
        }
    }
    Some(Fixture { manifest: serde_json::from_slice(&manifest).expect("manifest"), log })
}

impl Fixture {
    /// From the position to the end of its file.
    fn bytes_at(&self, offset: u64) -> &[u8] {
        let (start, file) = self.log.range(..=offset).next_back().expect("a file of the log");
        &file[(offset - start) as usize..]
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text of a fixture")
}

/// Field by field; what the manifest says but this test does not know fails it.
fn compare(record: &Record<'_>, message: &Value) {
    let info = record.dispatch_info(&properties::DELAYS_MS);
    let property = |name| properties::get(record.properties, name).map(text);
    for (field, want) in message.as_object().expect("an object") {
        let got: Value = match field.as_str() {
            "physicalOffset" => record.log_offset.into(),
            "size" => record.bytes.len().into(),
            "magic" => hex(&record.bytes[4..8]).into(),
            "topic" => text(record.topic).into(),
            "queueId" => record.queue_id.into(),
            "queueOffset" => record.queue_offset.into(),
            "flag" => record.flag.into(),
            "sysFlag" => record.sys_flag.into(),
            "bodyCrc" => record.body_crc.into(),
            "bornTimestamp" => record.born_timestamp.into(),
            "bornHost" => record.born_host.to_string().into(),
            "storeTimestamp" => record.store_timestamp.into(),
            "storeHost" => record.store_host.to_string().into(),
            "reconsumeTimes" => record.reconsume_times.into(),
            "preparedTransactionOffset" => record.prepared_offset.into(),
            "bodyLength" => record.body.len().into(),
            "bodySha256" => sha256(record.body).into(),
            "bodyText" => text(record.body).into(),
            "uncompressedLength" => inflate(record).len().into(),
            "uncompressedSha256" => sha256(&inflate(record)).into(),
            "propertiesString" => text(record.properties).into(),
            "properties" => {
                let pairs = properties::pairs(record.properties);
                let pairs = pairs.map(|(name, value)| (text(name), Value::from(text(value))));
                pairs.collect::<serde_json::Map<_, _>>().into()
            }
            "tags" => property("TAGS").into(),
            "keys" => info.keys.map(text).into(),
            "uniqKey" => info.uniq_key.map(text).into(),
            "expectedTagsCode" => info.tags_code.into(),
            "indexHashes" => {
                let keys = property("KEYS").unwrap_or_default();
                let keys = keys.split(' ').filter(|key| !key.is_empty()).map(str::to_owned);
                let hashes = property("UNIQ_KEY").into_iter().chain(keys).map(|key| {
                    let hash = java_hash(&format!("{}#{key}", info.topic));
                    Value::from(hash.checked_abs().unwrap_or(0))
                });
                hashes.collect::<Vec<_>>().into()
            }
            "consumeQueueEntries" => {
                for entry in want.as_array().expect("entries") {
                    assert!(info.is_queued());
                    assert_eq!(entry["size"], info.record_bytes);
                    // Smaller ones are addresses in the extension file.
                    if entry["tagsCode"].as_i64().expect("a code") >= i64::from(i32::MIN) {
                        assert_eq!(entry["tagsCode"], info.tags_code);
                    }
                    if entry["topic"] == *info.topic {
                        assert_eq!(entry["queueId"], info.queue_id);
                        assert_eq!(entry["queueOffset"], info.queue_offset);
                    }
                }
                want.clone()
            }
            "batchConsumeQueueEntry" => {
                assert_eq!(want["msgBaseOffset"], info.queue_offset);
                assert_eq!(want["storeTime"], info.store_timestamp);
                want.clone()
            }
            unknown => panic!("the manifest's field {unknown} is not compared"),
        };
        assert_eq!(got, *want, "{field} at {}", record.log_offset);
    }
}

fn inflate(record: &Record<'_>) -> Vec<u8> {
    assert!(record.sys_flag & sys_flag::COMPRESSED != 0);
    let mut bytes = Vec::new();
    ZlibDecoder::new(record.body).read_to_end(&mut bytes).expect("a zlib body");
    bytes
}

/// The record made again from its fields.
fn encode_again(record: &Record<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    let store_timestamp_at = encode::encode(
        &NewRecord {
            topic: std::str::from_utf8(record.topic).expect("topic of a fixture"),
            queue_id: record.queue_id,
            flag: record.flag,
            sys_flag: record.sys_flag & !(sys_flag::BORN_HOST_V6 | sys_flag::STORE_HOST_V6),
            born_timestamp: record.born_timestamp,
            born_host: record.born_host,
            store_host: record.store_host,
            reconsume_times: record.reconsume_times,
            prepared_offset: record.prepared_offset,
            body: record.body,
            properties: &[record.properties],
        },
        &mut out,
    );
    let fields = [
        (layout::QUEUE_OFFSET_AT, record.queue_offset),
        (layout::LOG_OFFSET_AT, record.log_offset),
        (store_timestamp_at, record.store_timestamp as u64),
    ];
    for (at, value) in fields {
        out[at..at + 8].copy_from_slice(&value.to_be_bytes());
    }
    out
}

fn check_fixture(name: &str, property_crcs: usize, v2_records: usize) {
    let Some(fixture) = open(name) else { return };
    let log = &fixture.manifest["commitLog"];
    let messages = fixture.manifest["messages"].as_array().expect("messages");
    let mut offset = log["minOffset"].as_u64().expect("minOffset");
    let mut blanks = Vec::new();
    let (mut count, mut crcs, mut v2) = (0, 0, 0);
    let end = loop {
        let bytes = fixture.bytes_at(offset);
        match decode::check(bytes, Some(offset), true) {
            Ok(Checked::Record(record)) => {
                compare(&record, &messages[count]);
                let size = decode::peek_size(bytes).map(|(size, _)| size as usize);
                assert_eq!(size, Some(record.bytes.len()));
                assert_eq!(decode::peek_store_timestamp(bytes), Some(record.store_timestamp));
                assert_eq!(decode::peek_queue(bytes), Some((record.queue_id, record.queue_offset)));
                match record.version {
                    Version::V1 => {
                        assert_eq!(encode_again(&record), record.bytes, "record at {offset}")
                    }
                    Version::V2 => v2 += 1,
                }
                crcs += usize::from(record.verify_property_crc().expect("a right property CRC"));
                offset += record.bytes.len() as u64;
                count += 1;
            }
            Ok(Checked::Blank { bytes_left }) => {
                assert_eq!(bytes_left as usize, bytes.len());
                blanks.push(serde_json::json!({"offset": offset, "claimedBytes": bytes_left}));
                offset += u64::from(bytes_left);
            }
            end => break end,
        }
    };
    assert_eq!(count, messages.len());
    assert_eq!(log["blanks"], Value::from(blanks));
    assert_eq!(log["validEnd"], offset);
    assert_eq!((crcs, v2), (property_crcs, v2_records));
    // The torn record of the killed stores: 120 bytes of it, then zeros.
    match log.get("tornRecord") {
        Some(_) => assert!(end.is_err(), "the torn record passed as {end:?}"),
        None => assert_eq!(end, Ok(Checked::End)),
    }
}

#[test]
fn store_4_9_7_clean() {
    check_fixture("store-4.9.7-clean", 0, 0);
}

#[test]
fn store_4_9_7_killed() {
    check_fixture("store-4.9.7-killed", 0, 0);
}

#[test]
fn store_5_3_3_clean() {
    check_fixture("store-5.3.3-clean", 0, 0);
}

#[test]
fn store_5_3_3_killed() {
    check_fixture("store-5.3.3-killed", 0, 0);
}

#[test]
fn store_5_3_3_features() {
    check_fixture("store-5.3.3-features", 22, 3);
}
