//! Sends: 10, 310, 320, 324, 325, and what goes back for a retry (36) or is recalled (370).

use super::{HeaderError, header, optional, or, required};
use crate::protocol::command::ExtFields;

/// One message or one batch to store. What Java's broker asks for is required: nobody needs a group or a template to send to a
/// topic that is there. Two spellings on the wire: names (10, 324), letters (310, 320, 325).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendHeader<'a> {
    pub producer_group: &'a str,
    pub topic: &'a str,
    /// The template an unknown topic is made from.
    pub default_topic: &'a str,
    pub default_topic_queue_nums: i32,
    /// Below 0: the broker picks one.
    pub queue_id: i32,
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub flag: i32,
    /// Name 0x01 value 0x02 …, as stored. Empty when absent.
    pub properties: &'a str,
    pub reconsume_times: i32,
    pub unit_mode: bool,
    /// Go sends 0 with every message; it counts only for retry topics.
    pub max_reconsume_times: Option<i32>,
    pub batch: bool,
}

/// What Java's clients ask a new topic to have.
const CLIENT_QUEUE_NUMS: i32 = 4;

/// The spellings, in the order of the letters a to m.
type Names = [&'static str; 13];

const V1: Names = [
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

/// A remark says both: the letter that was sent and what it means.
const V2: Names = [
    "a (producerGroup)",
    "b (topic)",
    "c (defaultTopic)",
    "d (defaultTopicQueueNums)",
    "e (queueId)",
    "f (sysFlag)",
    "g (bornTimestamp)",
    "h (flag)",
    "i (properties)",
    "j (reconsumeTimes)",
    "k (unitMode)",
    "l (maxReconsumeTimes)",
    "m (batch)",
];

impl<'a> SendHeader<'a> {
    /// Reads the names of codes 10 and 324.
    pub fn v1(ext: &ExtFields<'a>) -> Result<Self, HeaderError> {
        let mut texts = [None; 13];
        for &(key, value) in &ext.fields {
            if let Some(index) = V1.iter().position(|name| *name == key) {
                texts[index] = Some(value);
            }
        }
        Self::read(&V1, &texts)
    }

    /// Reads the letters of codes 310, 320 and 325.
    pub fn v2(ext: &ExtFields<'a>) -> Result<Self, HeaderError> {
        let mut texts = [None; 13];
        for &(key, value) in &ext.fields {
            if let [letter @ b'a'..=b'm'] = key.as_bytes() {
                texts[usize::from(letter - b'a')] = Some(value);
            }
        }
        Self::read(&V2, &texts)
    }

    fn read(names: &Names, texts: &[Option<&'a str>; 13]) -> Result<Self, HeaderError> {
        Ok(Self {
            producer_group: or(names[0], texts[0], "")?,
            topic: required(names[1], texts[1])?,
            default_topic: or(names[2], texts[2], "")?,
            default_topic_queue_nums: or(names[3], texts[3], CLIENT_QUEUE_NUMS)?,
            queue_id: required(names[4], texts[4])?,
            sys_flag: required(names[5], texts[5])?,
            born_timestamp: required(names[6], texts[6])?,
            flag: required(names[7], texts[7])?,
            properties: or(names[8], texts[8], "")?,
            reconsume_times: or(names[9], texts[9], 0)?,
            unit_mode: or(names[10], texts[10], false)?,
            max_reconsume_times: optional(names[11], texts[11])?,
            batch: or(names[12], texts[12], false)?,
        })
    }
}

header! {
    /// CONSUMER_SEND_MSG_BACK (36): deliver this message once more, later.
    SendBackHeader {
        /// Commit log offset of the message.
        offset: i64 = "offset", required;
        group: &'a str = "group", required;
        /// Below 0: to the dead letters. 0: by how often it was tried. Else a delay level.
        delay_level: i32 = "delayLevel", required;
        origin_msg_id: &'a str = "originMsgId", optional;
        origin_topic: &'a str = "originTopic", optional;
        unit_mode: bool = "unitMode", or(false);
        max_reconsume_times: i32 = "maxReconsumeTimes", optional;
    }
}

header! {
    /// RECALL_MESSAGE (370, 5.x).
    RecallHeader {
        producer_group: &'a str = "producerGroup", optional;
        topic: &'a str = "topic", required;
        recall_handle: &'a str = "recallHandle", required;
    }
}
