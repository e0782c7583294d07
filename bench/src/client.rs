//! Calls outside the measurement, one at a time on a blocking socket: create the topic, ask for offsets and
//! runtime figures.

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
        let stream = TcpStream::connect_timeout(&broker, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, opaque: OPAQUE_BASE, answer: Vec::new() })
    }

    /// The answer, whose code is 0.
    fn call(&mut self, code: i32, ext: &[(&str, &str)]) -> io::Result<Decoded<'_>> {
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
        if answer.code != code::SUCCESS {
            let remark = answer.remark.unwrap_or_default();
            return Err(io::Error::other(format!("request code {code} was answered {}: {remark}", answer.code)));
        }
        Ok(answer)
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

    pub fn max_offset(&mut self, topic: &str, queue: u32) -> io::Result<u64> {
        let queue = queue.to_string();
        let answer = self.call(code::GET_MAX_OFFSET, &[("queueId", &queue), ("topic", topic)])?;
        let offset = answer.ext_number("offset").map_err(io::Error::other)?;
        u64::try_from(offset).map_err(io::Error::other)
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
