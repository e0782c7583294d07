//! Raw frames, written and read here without the code under test.
//!
//! ```text
//! Ask ── frame ──> Wire ──> node          Told <── the answer with the same opaque
//! ```
//! A wait here only ends a hang: what a test asserts is never tighter than two seconds.

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

pub const WAIT_MAX: Duration = Duration::from_secs(30);

pub const FLAG_RESPONSE: i32 = 1;
pub const FLAG_ONEWAY: i32 = 2;

/// A request to be.
#[derive(Clone, Debug)]
pub struct Ask {
    pub code: i32,
    pub fields: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
    pub is_binary: bool,
    pub flag: i32,
    pub version: i32,
    pub language: &'static str,
}

impl Ask {
    pub fn new(code: i32) -> Ask {
        Ask { code, fields: Vec::new(), body: Vec::new(), is_binary: false, flag: 0, version: 407, language: "JAVA" }
    }

    /// In place of one of the same name.
    pub fn field(self, name: &str, value: impl ToString) -> Ask {
        self.bytes(name, value.to_string().as_bytes())
    }

    pub fn bytes(mut self, name: &str, value: &[u8]) -> Ask {
        self.fields.retain(|(known, _)| known != name);
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn without(mut self, name: &str) -> Ask {
        self.fields.retain(|(known, _)| known != name);
        self
    }

    pub fn body(mut self, body: impl AsRef<[u8]>) -> Ask {
        self.body = body.as_ref().to_vec();
        self
    }

    pub fn binary(mut self) -> Ask {
        self.is_binary = true;
        self
    }

    pub fn oneway(mut self) -> Ask {
        self.flag |= FLAG_ONEWAY;
        self
    }

    pub fn frame(&self, opaque: i32) -> Vec<u8> {
        let header = if self.is_binary { self.binary_header(opaque) } else { self.json_header(opaque) };
        framed(u8::from(self.is_binary), &header, &self.body)
    }

    fn json_header(&self, opaque: i32) -> Vec<u8> {
        let fields = self.fields.iter().map(|(name, value)| {
            let value = String::from_utf8(value.clone()).expect("bytes that are no UTF-8 go into binary headers");
            (name.clone(), serde_json::Value::from(value))
        });
        let fields: serde_json::Map<_, _> = fields.collect();
        let header = serde_json::json!({
            "code": self.code, "language": self.language, "version": self.version, "opaque": opaque,
            "flag": self.flag, "extFields": fields, "serializeTypeCurrentRPC": "JSON",
        });
        header.to_string().into_bytes()
    }

    fn binary_header(&self, opaque: i32) -> Vec<u8> {
        let mut header = Vec::new();
        header.extend((self.code as i16).to_be_bytes());
        header.push(if self.language == "GO" { 9 } else { 0 });
        header.extend((self.version as i16).to_be_bytes());
        header.extend(opaque.to_be_bytes());
        header.extend(self.flag.to_be_bytes());
        header.extend(0_i32.to_be_bytes());
        let mut map = Vec::new();
        for (name, value) in &self.fields {
            map.extend((name.len() as i16).to_be_bytes());
            map.extend(name.as_bytes());
            map.extend((value.len() as i32).to_be_bytes());
            map.extend(value);
        }
        header.extend((map.len() as i32).to_be_bytes());
        header.extend(map);
        header
    }
}

/// Lengths as they should be.
pub fn framed(kind: u8, header: &[u8], body: &[u8]) -> Vec<u8> {
    let mut frame = ((4 + header.len() + body.len()) as u32).to_be_bytes().to_vec();
    frame.extend((u32::from(kind) << 24 | header.len() as u32).to_be_bytes());
    frame.extend(header);
    frame.extend(body);
    frame
}

/// What came back.
#[derive(Clone, Debug)]
pub struct Told {
    pub code: i32,
    pub opaque: i32,
    pub flag: i32,
    pub version: i32,
    pub remark: String,
    pub ext: BTreeMap<String, String>,
    pub body: Vec<u8>,
    pub is_binary: bool,
}

impl Told {
    /// A number among the fields.
    #[track_caller]
    pub fn number(&self, name: &str) -> i64 {
        let text = self.ext.get(name).unwrap_or_else(|| panic!("no {name} in {self:?}"));
        text.parse().unwrap_or_else(|_| panic!("{name} is no number in {self:?}"))
    }

    /// (min, next, max) of a pull's answer.
    #[track_caller]
    pub fn bounds(&self) -> (i64, i64, i64) {
        (self.number("minOffset"), self.number("nextBeginOffset"), self.number("maxOffset"))
    }

    pub fn messages(&self) -> Vec<Message> {
        messages(&self.body)
    }

    #[track_caller]
    pub fn ok(self) -> Told {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }

    /// `frame` is whole.
    fn of(frame: &[u8]) -> Told {
        let mut rest = &frame[4..];
        let word = u32::from_be_bytes(take(&mut rest));
        let (header, body) = rest.split_at((word & 0x00ff_ffff) as usize);
        match word >> 24 {
            0 => Told::of_json(header, body),
            1 => Told::of_binary(header, body),
            kind => panic!("answer of serialize type {kind}"),
        }
    }

    fn of_json(header: &[u8], body: &[u8]) -> Told {
        let header: serde_json::Value = serde_json::from_slice(header).expect("headers of answers are strict JSON");
        let number = |name: &str| header[name].as_i64().map_or(0, |number| number as i32);
        let ext = header["extFields"].as_object().into_iter().flatten();
        let text = |value: &serde_json::Value| value.as_str().expect("values are JSON strings").to_owned();
        Told {
            code: number("code"),
            opaque: number("opaque"),
            flag: number("flag"),
            version: number("version"),
            remark: header["remark"].as_str().unwrap_or("").to_owned(),
            ext: ext.map(|(name, value)| (name.clone(), text(value))).collect(),
            body: body.to_vec(),
            is_binary: false,
        }
    }

    fn of_binary(header: &[u8], body: &[u8]) -> Told {
        let mut rest = header;
        let code = i32::from(i16::from_be_bytes(take(&mut rest)));
        let [_language] = take(&mut rest);
        let version = i32::from(i16::from_be_bytes(take(&mut rest)));
        let opaque = i32::from_be_bytes(take(&mut rest));
        let flag = i32::from_be_bytes(take(&mut rest));
        let text = |rest: &mut &[u8], bytes: usize| {
            let (text, after) = rest.split_at(bytes);
            *rest = after;
            String::from_utf8(text.to_vec()).expect("headers of answers are UTF-8")
        };
        let remark_bytes = u32::from_be_bytes(take(&mut rest)) as usize;
        let remark = text(&mut rest, remark_bytes);
        let map_bytes = u32::from_be_bytes(take(&mut rest)) as usize;
        assert_eq!(map_bytes, rest.len());
        let mut ext = BTreeMap::new();
        while !rest.is_empty() {
            let name_bytes = u16::from_be_bytes(take(&mut rest)) as usize;
            let name = text(&mut rest, name_bytes);
            let value_bytes = u32::from_be_bytes(take(&mut rest)) as usize;
            let value = text(&mut rest, value_bytes);
            ext.insert(name, value);
        }
        Told { code, opaque, flag, version, remark, ext, body: body.to_vec(), is_binary: true }
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let (head, after) = rest.split_first_chunk().expect("no more bytes");
    *rest = after;
    *head
}

/// A stored message (v1, IPv4 hosts).
#[derive(Clone, Debug)]
pub struct Message {
    pub queue_id: i32,
    pub flag: i32,
    pub queue_offset: i64,
    pub log_offset: i64,
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub store_timestamp: i64,
    pub reconsume_times: i32,
    pub body: Vec<u8>,
    pub topic: String,
    pub properties: Vec<u8>,
}

impl Message {
    /// As a client reads them: pairs without a separator are nothing, later ones win.
    pub fn property(&self, name: &str) -> Option<String> {
        let mut pairs = self.properties.split(|byte| *byte == 2).filter_map(|pair| {
            let at = pair.iter().position(|byte| *byte == 1)?;
            Some((&pair[..at], &pair[at + 1..]))
        });
        let found = pairs.rfind(|(known, _)| *known == name.as_bytes())?;
        Some(String::from_utf8_lossy(found.1).into_owned())
    }
}

pub fn messages(mut rest: &[u8]) -> Vec<Message> {
    let mut found = Vec::new();
    while !rest.is_empty() {
        let start_bytes = rest.len();
        let record_bytes = i32::from_be_bytes(take(&mut rest)) as usize;
        assert_eq!(u32::from_be_bytes(take(&mut rest)), 0xdaa3_20a7);
        let _crc: [u8; 4] = take(&mut rest);
        let queue_id = i32::from_be_bytes(take(&mut rest));
        let flag = i32::from_be_bytes(take(&mut rest));
        let queue_offset = i64::from_be_bytes(take(&mut rest));
        let log_offset = i64::from_be_bytes(take(&mut rest));
        let sys_flag = i32::from_be_bytes(take(&mut rest));
        let born_timestamp = i64::from_be_bytes(take(&mut rest));
        let _born_host: [u8; 8] = take(&mut rest);
        let store_timestamp = i64::from_be_bytes(take(&mut rest));
        let _store_host: [u8; 8] = take(&mut rest);
        let reconsume_times = i32::from_be_bytes(take(&mut rest));
        let _prepared: [u8; 8] = take(&mut rest);
        let body_bytes = i32::from_be_bytes(take(&mut rest)) as usize;
        let (body, after) = rest.split_at(body_bytes);
        rest = after;
        let [topic_bytes] = take(&mut rest);
        let (topic, after) = rest.split_at(usize::from(topic_bytes));
        rest = after;
        let properties_bytes = i16::from_be_bytes(take(&mut rest)) as usize;
        let (properties, after) = rest.split_at(properties_bytes);
        rest = after;
        assert_eq!(start_bytes - rest.len(), record_bytes);
        found.push(Message {
            queue_id,
            flag,
            queue_offset,
            log_offset,
            sys_flag,
            born_timestamp,
            store_timestamp,
            reconsume_times,
            body: body.to_vec(),
            topic: String::from_utf8(topic.to_vec()).expect("topics are ASCII"),
            properties: properties.to_vec(),
        });
    }
    found
}

/// A connection.
pub struct Wire {
    stream: TcpStream,
    received: Vec<u8>,
    opaque: i32,
    /// Frames that nobody has asked for yet.
    waiting: VecDeque<Told>,
}

impl Wire {
    #[track_caller]
    pub fn to(address: &str) -> Wire {
        let end = Instant::now() + WAIT_MAX;
        loop {
            match TcpStream::connect(address) {
                Ok(stream) => {
                    stream.set_nodelay(true).expect("our socket");
                    stream.set_write_timeout(Some(WAIT_MAX)).expect("our socket");
                    return Wire { stream, received: Vec::new(), opaque: 0, waiting: VecDeque::new() };
                }
                Err(error) if Instant::now() > end => panic!("{address}: {error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// `None` where the write did not go through: the node has closed.
    pub fn try_write(&mut self, bytes: &[u8]) -> Option<()> {
        self.stream.write_all(bytes).ok()
    }

    #[track_caller]
    pub fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the connection is open");
    }

    /// Returns the opaque it got.
    #[track_caller]
    pub fn send(&mut self, ask: &Ask) -> i32 {
        self.opaque += 1;
        self.write(&ask.frame(self.opaque));
        self.opaque
    }

    /// Sends and waits for the answer; what else comes meanwhile stays for `next`.
    #[track_caller]
    pub fn ask(&mut self, ask: &Ask) -> Told {
        let opaque = self.send(ask);
        self.answer(opaque)
    }

    #[track_caller]
    pub fn answer(&mut self, opaque: i32) -> Told {
        self.answer_within(opaque, WAIT_MAX).unwrap_or_else(|| panic!("no answer to {opaque} within {WAIT_MAX:?}"))
    }

    pub fn answer_within(&mut self, opaque: i32, wait_max: Duration) -> Option<Told> {
        let is_it = |told: &Told| told.flag & FLAG_RESPONSE != 0 && told.opaque == opaque;
        if let Some(index) = self.waiting.iter().position(is_it) {
            return self.waiting.remove(index);
        }
        let end = Instant::now() + wait_max;
        while let Some(told) = self.read(end) {
            if is_it(&told) {
                return Some(told);
            }
            self.waiting.push_back(told);
        }
        None
    }

    /// The next frame, whatever it is; `None` when none comes in time or the node has closed.
    pub fn next(&mut self, wait_max: Duration) -> Option<Told> {
        self.waiting.pop_front().or_else(|| self.read(Instant::now() + wait_max))
    }

    fn read(&mut self, end: Instant) -> Option<Told> {
        loop {
            if let Some(word) = self.received.first_chunk::<4>() {
                let frame_bytes = u32::from_be_bytes(*word) as usize + 4;
                if self.received.len() >= frame_bytes {
                    let told = Told::of(&self.received[..frame_bytes]);
                    self.received.drain(..frame_bytes);
                    return Some(told);
                }
            }
            if !self.fill(end)? {
                return None;
            }
        }
    }

    /// Whether bytes came; `None` at the end of time.
    fn fill(&mut self, end: Instant) -> Option<bool> {
        let mut buffer = vec![0; 256 << 10];
        loop {
            let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            self.stream.set_read_timeout(Some(left)).expect("our socket");
            match self.stream.read(&mut buffer) {
                Ok(0) => return Some(false),
                Ok(bytes) => {
                    self.received.extend_from_slice(&buffer[..bytes]);
                    return Some(true);
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if Instant::now() >= end {
                        return None;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Some(false),
            }
        }
    }

    /// Whether the node closes the connection in time, without a word.
    pub fn closes(&mut self, wait_max: Duration) -> bool {
        let end = Instant::now() + wait_max;
        self.fill(end) == Some(false)
    }
}

// Requests that every file needs.

pub fn create_topic(topic: &str, queue_count: i32) -> Ask {
    Ask::new(17)
        .field("topic", topic)
        .field("defaultTopic", "TBW102")
        .field("readQueueNums", queue_count)
        .field("writeQueueNums", queue_count)
        .field("perm", 6)
        .field("topicFilterType", "SINGLE_TAG")
        .field("topicSysFlag", 0)
        .field("order", false)
}

/// SEND_MESSAGE_V2 with all its fields.
pub fn send(topic: &str, queue_id: i32, body: &[u8], properties: &str) -> Ask {
    let born_ms = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_millis());
    Ask::new(310)
        .field("a", "producers")
        .field("b", topic)
        .field("c", "TBW102")
        .field("d", 4)
        .field("e", queue_id)
        .field("f", 0)
        .field("g", born_ms)
        .field("h", 0)
        .field("i", properties)
        .field("j", 0)
        .field("k", false)
        .field("l", 16)
        .field("m", false)
        .body(body)
}

/// The body of a batch: flag, body, properties of each.
pub fn batch(messages: &[(i32, &[u8], &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (flag, body, properties) in messages {
        out.extend(((22 + body.len() + properties.len()) as i32).to_be_bytes());
        out.extend([0; 8]);
        out.extend(flag.to_be_bytes());
        out.extend((body.len() as i32).to_be_bytes());
        out.extend(*body);
        out.extend((properties.len() as i16).to_be_bytes());
        out.extend(*properties);
    }
    out
}

pub fn send_batch(topic: &str, queue_id: i32, body: &[u8]) -> Ask {
    let mut ask = send(topic, queue_id, body, "").field("m", true);
    ask.code = 320;
    ask
}

pub const PULL_COMMIT: i32 = 1;
pub const PULL_SUSPEND: i32 = 2;
pub const PULL_SUBSCRIPTION: i32 = 4;

/// PULL_MESSAGE that brings its own subscription to everything and does not wait.
pub fn pull(group: &str, topic: &str, queue_id: i32, offset: i64) -> Ask {
    Ask::new(11)
        .field("consumerGroup", group)
        .field("topic", topic)
        .field("queueId", queue_id)
        .field("queueOffset", offset)
        .field("maxMsgNums", 32)
        .field("sysFlag", PULL_SUBSCRIPTION)
        .field("commitOffset", 0)
        .field("suspendTimeoutMillis", 0)
        .field("subscription", "*")
        .field("subVersion", 0)
        .field("expressionType", "TAG")
}

/// The same, held up to `wait_ms`.
pub fn pull_and_wait(group: &str, topic: &str, queue_id: i32, offset: i64, wait_ms: u64) -> Ask {
    pull(group, topic, queue_id, offset)
        .field("sysFlag", PULL_SUBSCRIPTION | PULL_SUSPEND)
        .field("suspendTimeoutMillis", wait_ms)
}

pub fn max_offset(topic: &str, queue_id: i32) -> Ask {
    Ask::new(30).field("topic", topic).field("queueId", queue_id)
}

pub fn min_offset(topic: &str, queue_id: i32) -> Ask {
    Ask { code: 31, ..max_offset(topic, queue_id) }
}

pub fn query_offset(group: &str, topic: &str, queue_id: i32) -> Ask {
    Ask::new(14).field("consumerGroup", group).field("topic", topic).field("queueId", queue_id)
}

pub fn update_offset(group: &str, topic: &str, queue_id: i32, offset: i64) -> Ask {
    Ask { code: 15, ..query_offset(group, topic, queue_id) }.field("commitOffset", offset)
}

pub fn delete_topic(topic: &str) -> Ask {
    Ask::new(215).field("topic", topic)
}

/// HEART_BEAT of one consumer: (topic, expression type, expression, version) of each subscription.
pub fn heartbeat(client: &str, group: &str, subscriptions: &[(&str, &str, &str, i64)]) -> Ask {
    let subscriptions: Vec<_> = subscriptions
        .iter()
        .map(|(topic, kind, text, version)| {
            let tags: Vec<&str> = if *text == "*" { Vec::new() } else { text.split("||").map(str::trim).collect() };
            let codes: Vec<i32> = tags.iter().map(|tag| java_hash(tag)).collect();
            serde_json::json!({
                "topic": topic, "subString": text, "expressionType": kind, "subVersion": version,
                "tagsSet": tags, "codeSet": codes, "classFilterMode": false,
            })
        })
        .collect();
    let body = serde_json::json!({
        "clientID": client, "producerDataSet": [],
        "consumerDataSet": [{
            "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": false, "subscriptionDataSet": subscriptions,
        }],
    });
    Ask::new(34).body(body.to_string())
}

/// Of a client that is in a producer group.
pub fn producer_heartbeat(client: &str, group: &str) -> Ask {
    let body = serde_json::json!({
        "clientID": client, "consumerDataSet": [], "producerDataSet": [{ "groupName": group }],
    });
    Ask::new(34).body(body.to_string())
}

/// String.hashCode.
pub fn java_hash(text: &str) -> i32 {
    text.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}
