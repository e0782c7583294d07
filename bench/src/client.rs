//! Calls outside the measurement, one at a time on a blocking socket: create the topic, ask for offsets,
//! runtime figures and the configuration.

use crate::frame::{self, Decoded, Header, OPAQUE_BASE, code};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(5);
/// No answer to these calls is near this size.
const ANSWER_BYTES_MAX: usize = 1 << 20;

pub struct Client {
    stream: TcpStream,
    opaque: u32,
    answer: Vec<u8>,
}

impl Client {
    pub fn connect(broker: SocketAddr) -> io::Result<Self> {
        let stream =
            TcpStream::connect_timeout(&broker, TIMEOUT).map_err(|e| crate::workload::told(&broker.to_string(), e))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, opaque: OPAQUE_BASE, answer: Vec::new() })
    }

    /// The answer, whatever its code.
    fn ask(&mut self, code: i32, ext: &[(&str, &str)]) -> io::Result<Decoded<'_>> {
        self.opaque += 1;
        self.stream.write_all(&frame::request(Header::Json, code, self.opaque, ext, &[]))?;
        self.answer.resize(4, 0);
        self.stream.read_exact(&mut self.answer)?;
        let rest = u32::from_be_bytes(self.answer[..4].try_into().expect("four bytes")) as usize;
        if rest > ANSWER_BYTES_MAX {
            return Err(io::Error::other(format!("answer of {rest} bytes to request code {code}")));
        }
        self.answer.resize(4 + rest, 0);
        self.stream.read_exact(&mut self.answer[4..])?;
        let answer = frame::decode(&self.answer).map_err(io::Error::other)?;
        if answer.opaque != self.opaque || !answer.is_response {
            return Err(io::Error::other(format!("request code {code} was not answered by its own answer")));
        }
        Ok(answer)
    }

    /// The answer, whose code is 0.
    fn call(&mut self, code: i32, ext: &[(&str, &str)]) -> io::Result<Decoded<'_>> {
        let answer = self.ask(code, ext)?;
        if answer.code != code::SUCCESS {
            return Err(refused(code, &answer));
        }
        Ok(answer)
    }

    /// Succeeds with the first answer, whatever its code.
    pub fn ping(&mut self) -> io::Result<()> {
        self.ask(code::GET_BROKER_RUNTIME_INFO, &[]).map(drop)
    }

    pub fn create_topic(&mut self, topic: &str, queues: u32) -> io::Result<()> {
        let queues = queues.to_string();
        let ext = [
            ("defaultTopic", "TBW102"),
            ("order", "false"),
            ("perm", "6"),
            ("readQueueNums", &queues),
            ("topic", topic),
            ("topicFilterType", "SINGLE_TAG"),
            ("topicSysFlag", "0"),
            ("writeQueueNums", &queues),
        ];
        self.call(code::UPDATE_AND_CREATE_TOPIC, &ext).map(drop)
    }

    /// Where the next message of a queue will be. `None` when the server knows no such request.
    pub fn max_offset(&mut self, topic: &str, queue: u32) -> io::Result<Option<u64>> {
        self.offset(code::GET_MAX_OFFSET, topic, queue)
    }

    /// Where the oldest message of a queue is. `None` when the server knows no such request.
    pub fn min_offset(&mut self, topic: &str, queue: u32) -> io::Result<Option<u64>> {
        self.offset(code::GET_MIN_OFFSET, topic, queue)
    }

    fn offset(&mut self, code: i32, topic: &str, queue: u32) -> io::Result<Option<u64>> {
        let queue = queue.to_string();
        let answer = self.ask(code, &[("queueId", &queue), ("topic", topic)])?;
        match answer.code {
            code::SUCCESS => {
                let offset = answer.ext_number("offset").map_err(io::Error::other)?;
                u64::try_from(offset).map(Some).map_err(io::Error::other)
            }
            code::REQUEST_CODE_NOT_SUPPORTED => Ok(None),
            _ => Err(refused(code, &answer)),
        }
    }

    /// The broker's configuration by Java's keys.
    pub fn config(&mut self) -> io::Result<BTreeMap<String, String>> {
        let answer = self.call(code::GET_BROKER_CONFIG, &[])?;
        Ok(properties(&String::from_utf8_lossy(answer.body)))
    }

    pub fn runtime_info(&mut self) -> io::Result<BTreeMap<String, String>> {
        #[derive(serde::Deserialize)]
        struct Table {
            table: BTreeMap<String, String>,
        }
        let answer = self.call(code::GET_BROKER_RUNTIME_INFO, &[])?;
        let table: Table = serde_json::from_slice(answer.body).map_err(io::Error::other)?;
        Ok(table.table)
    }
}

fn refused(code: i32, answer: &Decoded<'_>) -> io::Error {
    let remark = answer.remark.as_deref().unwrap_or_default();
    io::Error::other(format!("request code {code} was answered {}: {remark}", answer.code))
}

/// Lines `key=value`; of two equal keys the later wins, as in Java.
pub(crate) fn properties(text: &str) -> BTreeMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs.map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned())).collect()
}
