//! The name server asked by raw frames, as clients, brokers and mqadmin send them.
//!
//! ```text
//! Ask ─ bytes of a frame, JSON or binary ─> command::decode ─> NameServer::handle ─> bytes ─> Got
//! ```
//!
//! Frames are put together by hand here, so that a fault of the encoder cannot hide one of the decoder.

mod codes;
mod life;
mod random;
mod registration;
mod restart;

use super::{Handled, NameServer};
use crate::config::NamesrvConfig;
use flate2::{Compression, write::ZlibEncoder};
use ringmq_net::protocol::command::{Scratch, decode};
use ringmq_net::reactor::ConnId;
use std::collections::BTreeMap;
use std::io::Write;

const WALL_MS: u64 = 1_700_000_000_000;
const OPAQUE: i32 = -7;

fn conn(slot: u32) -> ConnId {
    ConnId { slot, generation: 1 }
}

/// One request.
#[derive(Clone, Debug)]
struct Ask {
    code: i32,
    version: i32,
    opaque: i32,
    flag: i32,
    is_binary: bool,
    ext: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Ask {
    fn new(code: i32, ext: &[(&str, &str)]) -> Ask {
        let ext = ext.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        Ask { code, version: 407, opaque: OPAQUE, flag: 0, is_binary: false, ext, body: Vec::new() }
    }

    fn body(self, body: impl Into<Vec<u8>>) -> Ask {
        Ask { body: body.into(), ..self }
    }

    fn version(self, version: i32) -> Ask {
        Ask { version, ..self }
    }

    fn frame(&self) -> Vec<u8> {
        let header = if self.is_binary { self.binary_header() } else { self.json_header() };
        let mut frame = Vec::new();
        frame.extend_from_slice(&((4 + header.len() + self.body.len()) as u32).to_be_bytes());
        frame.extend_from_slice(&(header.len() as u32 | u32::from(self.is_binary) << 24).to_be_bytes());
        frame.extend_from_slice(&header);
        frame.extend_from_slice(&self.body);
        frame
    }

    fn json_header(&self) -> Vec<u8> {
        let Ask { code, version, opaque, flag, .. } = self;
        let pairs: Vec<String> =
            self.ext.iter().map(|(key, value)| format!("{}:{}", quoted(key), quoted(value))).collect();
        format!(
            "{{\"code\":{code},\"extFields\":{{{}}},\"flag\":{flag},\"language\":\"JAVA\",\"opaque\":{opaque},\
             \"serializeTypeCurrentRPC\":\"JSON\",\"version\":{version}}}",
            pairs.join(",")
        )
        .into_bytes()
    }

    fn binary_header(&self) -> Vec<u8> {
        let mut pairs = Vec::new();
        for (key, value) in &self.ext {
            pairs.extend_from_slice(&(key.len() as u16).to_be_bytes());
            pairs.extend_from_slice(key.as_bytes());
            pairs.extend_from_slice(&(value.len() as u32).to_be_bytes());
            pairs.extend_from_slice(value.as_bytes());
        }
        let mut header = Vec::new();
        header.extend_from_slice(&(self.code as i16).to_be_bytes());
        header.push(0);
        header.extend_from_slice(&(self.version as i16).to_be_bytes());
        header.extend_from_slice(&self.opaque.to_be_bytes());
        header.extend_from_slice(&self.flag.to_be_bytes());
        header.extend_from_slice(&0u32.to_be_bytes());
        header.extend_from_slice(&(pairs.len() as u32).to_be_bytes());
        header.extend_from_slice(&pairs);
        header
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// One answer.
#[derive(Debug)]
struct Got {
    code: i32,
    remark: String,
    ext: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Got {
    fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    fn ext(&self, key: &str) -> Option<&str> {
        self.ext.get(key).map(String::as_str)
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// A name server, its files and its clock.
struct Rig {
    server: NameServer,
    folder: tempfile::TempDir,
    mono_ms: u64,
}

impl Rig {
    fn new() -> Rig {
        Rig::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut NamesrvConfig)) -> Rig {
        let folder = tempfile::tempdir().unwrap();
        let mut config = NamesrvConfig::example();
        config.kv_config_path = folder.path().join("kvConfig.json");
        config.config_store_path = folder.path().join("namesrv.properties");
        change(&mut config);
        Rig { server: NameServer::open(config).unwrap(), folder, mono_ms: 1000 }
    }

    /// `None` when the name server says nothing. Whatever it says must be one whole answer to this request.
    fn try_ask(&mut self, conn: ConnId, ask: &Ask) -> Option<Got> {
        let frame = ask.frame();
        let mut scratch = Scratch::default();
        let command = decode(&frame, &mut scratch).unwrap();
        let before = b"answers that were there before";
        let mut out = before.to_vec();
        let peer = "10.0.0.9:40000".parse().unwrap();
        let handled = self.server.handle(conn, peer, &command, WALL_MS, self.mono_ms, &mut out);
        let answer = out.strip_prefix(before).expect("an outbox is only appended to");
        assert_eq!(handled == Handled::Answered, !answer.is_empty());
        if answer.is_empty() {
            return None;
        }
        assert_eq!(answer.len(), 4 + u32::from_be_bytes(answer[..4].try_into().unwrap()) as usize, "one frame");
        let mut scratch = Scratch::default();
        let got = decode(answer, &mut scratch).unwrap();
        assert_eq!((got.opaque, got.flag & 3), (ask.opaque, 1), "opaque and response bit: {got:?}");
        assert_eq!(answer[4], u8::from(ask.is_binary), "the answer's encoding is the request's");
        Some(Got {
            code: got.code,
            remark: got.remark.unwrap_or_default().to_string(),
            ext: got.ext.fields.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect(),
            body: got.body.to_vec(),
        })
    }

    fn ask(&mut self, ask: &Ask) -> Got {
        self.try_ask(conn(99), ask).expect("an answer")
    }

    /// Asks, and the answer must be a success.
    fn ok(&mut self, code: i32, ext: &[(&str, &str)]) -> Got {
        let got = self.ask(&Ask::new(code, ext));
        assert_eq!(got.code, 0, "request {code} {ext:?}: {got:?}");
        got
    }

    /// Registers, which must succeed.
    fn register(&mut self, slot: u32, broker: &Broker) -> Got {
        let got = self.try_ask(conn(slot), &broker.ask()).expect("an answer");
        assert_eq!(got.code, 0, "{broker:?}: {got:?}");
        got
    }

    fn route(&mut self, topic: &str) -> Option<serde_json::Value> {
        let got = self.ask(&Ask::new(105, &[("topic", topic)]));
        match got.code {
            0 => Some(got.json()),
            17 => None,
            _ => panic!("route of {topic}: {got:?}"),
        }
    }

    /// `broker name → (perm, write queues)` of a topic's route; empty when there is none.
    fn queues(&mut self, topic: &str) -> Vec<(String, i64, i64)> {
        let Some(route) = self.route(topic) else { return Vec::new() };
        let queues = route["queueDatas"].as_array().unwrap().iter();
        queues
            .map(|queues| {
                let number = |key: &str| queues[key].as_i64().unwrap();
                (queues["brokerName"].as_str().unwrap().to_string(), number("perm"), number("writeQueueNums"))
            })
            .collect()
    }

    /// `id → address` of the first broker name in a topic's route.
    fn addrs(&mut self, topic: &str) -> Vec<(String, String)> {
        let Some(route) = self.route(topic) else { return Vec::new() };
        let addrs = route["brokerDatas"][0]["brokerAddrs"].as_object().unwrap().iter();
        addrs.map(|(id, addr)| (id.clone(), addr.as_str().unwrap().to_string())).collect()
    }

    fn topics(&mut self) -> Vec<String> {
        topic_list(&self.ok(206, &[]))
    }
}

fn topic_list(got: &Got) -> Vec<String> {
    let mut topics: Vec<String> =
        got.json()["topicList"].as_array().unwrap().iter().map(|topic| topic.as_str().unwrap().to_string()).collect();
    topics.sort();
    topics
}

/// What a broker says when it registers.
#[derive(Clone, Debug)]
struct Broker {
    cluster: &'static str,
    name: &'static str,
    addr: &'static str,
    id: &'static str,
    /// Name, queues, perm, topicSysFlag.
    topics: Vec<(&'static str, i32, i32, i32)>,
    /// Timestamp, counter, and what only 5.x has: stateVersion.
    version: (i64, i64, Option<i64>),
    more: Vec<(&'static str, &'static str)>,
}

impl Broker {
    /// The master `b1` of cluster `c` with topic `T`.
    fn example() -> Broker {
        Broker {
            cluster: "c",
            name: "b1",
            addr: "10.0.0.1:10911",
            id: "0",
            topics: vec![("T", 8, 6, 0)],
            version: (1, 1, None),
            more: Vec::new(),
        }
    }

    /// The slave of [`Broker::example`]; its topics are its master's.
    fn slave() -> Broker {
        Broker { addr: "10.0.0.2:10911", id: "1", ..Broker::example() }
    }

    fn version_json(&self) -> String {
        let (timestamp, counter, state) = self.version;
        let state = state.map(|state| format!(",\"stateVersion\":{state}")).unwrap_or_default();
        format!("{{\"counter\":{counter}{state},\"timestamp\":{timestamp}}}")
    }

    fn body(&self) -> Vec<u8> {
        let topics: Vec<String> = self
            .topics
            .iter()
            .map(|(topic, queues, perm, flag)| {
                format!(
                    "\"{topic}\":{{\"order\":false,\"perm\":{perm},\"readQueueNums\":{queues},\
                     \"topicFilterType\":\"SINGLE_TAG\",\"topicName\":\"{topic}\",\"topicSysFlag\":{flag},\
                     \"writeQueueNums\":{queues}}}"
                )
            })
            .collect();
        format!(
            "{{\"filterServerList\":[],\"topicConfigSerializeWrapper\":{{\"dataVersion\":{},\
             \"topicConfigTable\":{{{}}}}}}}",
            self.version_json(),
            topics.join(",")
        )
        .into_bytes()
    }

    /// The binary form before it is deflated; `with_mappings` ends it as a frame of version 413 and up must end.
    fn plain_body(&self, with_mappings: bool) -> Vec<u8> {
        let mut plain = Vec::new();
        let push = |plain: &mut Vec<u8>, text: &str| {
            plain.extend_from_slice(&(text.len() as u32).to_be_bytes());
            plain.extend_from_slice(text.as_bytes());
        };
        push(&mut plain, &self.version_json());
        plain.extend_from_slice(&(self.topics.len() as u32).to_be_bytes());
        for (topic, queues, perm, _) in &self.topics {
            let attributes = if with_mappings { " {}" } else { "" };
            push(&mut plain, &format!("{topic} {queues} {queues} {perm} SINGLE_TAG{attributes}"));
        }
        push(&mut plain, "[]");
        if with_mappings {
            plain.extend_from_slice(&0u32.to_be_bytes());
        }
        plain
    }

    fn fields(&self) -> Vec<(&'static str, &'static str)> {
        let mut fields = vec![
            ("brokerName", self.name),
            ("clusterName", self.cluster),
            ("brokerAddr", self.addr),
            ("brokerId", self.id),
            ("haServerAddr", "10.0.0.1:10912"),
        ];
        fields.extend(&self.more);
        fields
    }

    fn ask(&self) -> Ask {
        Ask::new(103, &self.fields()).body(self.body())
    }
}

fn deflated(plain: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

/// CRC-32 as Java's `CRC32`, without its top bit, bit by bit from its definition.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc & 0x7fff_ffff
}
