//! What a broker registers with a name server (REGISTER_BROKER 103), in both of its encodings.
//!
//! ```text
//! JSON         {"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{…},"topicConfigTable":{…}}}
//! compressed   one zlib stream of
//!              4 length | DataVersion JSON
//!              4 count  | count times: 4 length | "T1 16 16 6 SINGLE_TAG[ {attributes}]"   read, write, perm
//!              4 length | filterServerList JSON
//!              4 count  | count times: 4 length | TopicQueueMappingInfo JSON                version 413 and up
//! ```
//!
//! The compressed form loses topicSysFlag and order. Source: RegisterBrokerBody.java, TopicConfig.java.

use super::lenient;
use super::topic::{DataVersion, TopicConfig, TopicConfigSerializeWrapper, TopicFilterType};
use crate::protocol::codes::version;
use crate::protocol::fastjson::{self, JsonError};
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

/// A registration that inflates to more is refused.
pub const INFLATED_BYTES_MAX: usize = 64 << 20;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RegisterBrokerBody {
    #[serde(deserialize_with = "lenient::or_default")]
    pub filter_server_list: Vec<String>,
    #[serde(deserialize_with = "lenient::or_default")]
    pub topic_config_serialize_wrapper: TopicConfigSerializeWrapper,
}

#[derive(Debug, thiserror::Error)]
pub enum RegisterBodyError {
    #[error(transparent)]
    Json(#[from] JsonError),
    #[error("the register body is no zlib stream: {0}")]
    Inflate(io::Error),
    #[error("the register body inflates to more than {INFLATED_BYTES_MAX} bytes")]
    TooLarge,
    #[error("the register body ends within its {what}: {wanted} bytes wanted, {left} left")]
    Truncated { what: &'static str, wanted: usize, left: usize },
    #[error("'{0}' is no topic: name, read queues, write queues, perm and filter type are needed")]
    Topic(String),
}

/// The `bodyCrc32` of a registration: of the body as sent.
pub fn body_crc32(body: &[u8]) -> i32 {
    (crc32fast::hash(body) & 0x7fff_ffff) as i32
}

impl RegisterBrokerBody {
    /// `compressed` is what the header claims. A 5.3.3 broker claims false and compresses all the same, so the
    /// first byte has the last word. No body is an empty table, as Java has it.
    pub fn decode(body: &[u8], compressed: bool, version: i32) -> Result<Self, RegisterBodyError> {
        /// First byte of every zlib stream with a window of 32 KiB.
        const ZLIB: u8 = 0x78;
        match body.first() {
            None => Ok(Self::default()),
            Some(&ZLIB) => Self::decode_compressed(body, version),
            Some(_) if compressed => Self::decode_compressed(body, version),
            Some(_) => Ok(fastjson::from_slice(body)?),
        }
    }

    pub fn to_json(&self) -> Vec<u8> {
        fastjson::to_vec(self)
    }

    fn decode_compressed(body: &[u8], version: i32) -> Result<Self, RegisterBodyError> {
        let mut inflated = Vec::new();
        ZlibDecoder::new(body)
            .take(INFLATED_BYTES_MAX as u64 + 1)
            .read_to_end(&mut inflated)
            .map_err(RegisterBodyError::Inflate)?;
        if inflated.len() > INFLATED_BYTES_MAX {
            return Err(RegisterBodyError::TooLarge);
        }
        let mut reader = Reader { left: &inflated };
        let data_version: DataVersion = fastjson::from_slice(reader.block("data version")?)?;
        let mut wrapper = TopicConfigSerializeWrapper { data_version, ..Default::default() };
        for _ in 0..reader.count("topic count")? {
            let topic = topic_from_line(reader.block("topics")?)?;
            wrapper.topic_config_table.insert(topic.topic_name.clone(), topic);
        }
        let filter_server_list = fastjson::from_slice(reader.block("filter servers")?)?;
        if version >= version::V5_0_0 {
            for _ in 0..reader.count("queue mapping count")? {
                let mapping: serde_json::Value = fastjson::from_slice(reader.block("queue mappings")?)?;
                if let Some(topic) = mapping.get("topic").and_then(|topic| topic.as_str()) {
                    wrapper.topic_queue_mapping_info_map.insert(topic.to_owned(), mapping);
                }
            }
        }
        Ok(Self { filter_server_list, topic_config_serialize_wrapper: wrapper })
    }

    /// The compressed form, for a frame of this `version`.
    pub fn to_compressed(&self, version: i32) -> Vec<u8> {
        let wrapper = &self.topic_config_serialize_wrapper;
        let mut plain = Vec::new();
        push_block(&mut plain, &fastjson::to_vec(&wrapper.data_version));
        push_count(&mut plain, wrapper.topic_config_table.len());
        for topic in wrapper.topic_config_table.values() {
            push_block(&mut plain, line_from_topic(topic).as_bytes());
        }
        push_block(&mut plain, &fastjson::to_vec(&self.filter_server_list));
        if version >= version::V5_0_0 {
            push_count(&mut plain, wrapper.topic_queue_mapping_info_map.len());
            for mapping in wrapper.topic_queue_mapping_info_map.values() {
                push_block(&mut plain, &fastjson::to_vec(mapping));
            }
        }
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&plain).expect("a vector takes all that is written");
        encoder.finish().expect("a vector takes all that is written")
    }
}

struct Reader<'a> {
    left: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, what: &'static str, wanted: usize) -> Result<&'a [u8], RegisterBodyError> {
        let left = self.left.len();
        let (head, tail) =
            self.left.split_at_checked(wanted).ok_or(RegisterBodyError::Truncated { what, wanted, left })?;
        self.left = tail;
        Ok(head)
    }

    /// A negative count or length becomes a huge one, and so an error where it is used.
    fn count(&mut self, what: &'static str) -> Result<usize, RegisterBodyError> {
        let bytes = self.take(what, 4)?;
        Ok(u32::from_be_bytes(bytes.try_into().expect("four bytes were taken")) as usize)
    }

    fn block(&mut self, what: &'static str) -> Result<&'a [u8], RegisterBodyError> {
        let bytes = self.count(what)?;
        self.take(what, bytes)
    }
}

fn push_count(out: &mut Vec<u8>, count: usize) {
    let count = u32::try_from(count).expect("a broker has fewer than 2^32 topics and bytes of them");
    out.extend_from_slice(&count.to_be_bytes());
}

fn push_block(out: &mut Vec<u8>, bytes: &[u8]) {
    push_count(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn line_from_topic(topic: &TopicConfig) -> String {
    let TopicConfig { topic_name, read_queue_nums, write_queue_nums, perm, topic_filter_type, attributes, .. } = topic;
    let mut line = format!("{topic_name} {read_queue_nums} {write_queue_nums} {perm} {}", topic_filter_type.name());
    if let Some(attributes) = attributes {
        line.push(' ');
        line.push_str(&String::from_utf8_lossy(&fastjson::to_vec(attributes)));
    }
    line
}

fn topic_from_line(line: &[u8]) -> Result<TopicConfig, RegisterBodyError> {
    let line = String::from_utf8_lossy(line);
    let wrong = || RegisterBodyError::Topic(line.chars().take(200).collect());
    let mut words = line.splitn(6, ' ');
    let mut word = || words.next().ok_or_else(wrong);
    let number = |word: &str| word.parse().map_err(|_| wrong());
    let mut topic = TopicConfig {
        topic_name: word()?.to_owned(),
        read_queue_nums: number(word()?)?,
        write_queue_nums: number(word()?)?,
        perm: number(word()?)?,
        topic_filter_type: TopicFilterType::from_name(word()?).ok_or_else(wrong)?,
        ..TopicConfig::default()
    };
    if let Some(attributes) = words.next() {
        topic.attributes = Some(fastjson::from_slice(attributes.as_bytes())?);
    }
    Ok(topic)
}
