//! Request and reply between clients: SEND_REPLY_MESSAGE (324), SEND_REPLY_MESSAGE_V2 (325).
//!
//! ```text
//! consumer ─ reply ──> stored in <cluster>_REPLY_TOPIC like any send (storeReplyMessageEnable)
//!                      └─> PUSH_REPLY_MESSAGE_TO_CLIENT (326) to the producer that REPLY_TO_CLIENT names
//!                          └─ its answer, or 10 s ──> the answer to the consumer
//! ```
//! Source: ReplyMessageProcessor.java (4.9.7), which pushes first and then stores, whatever became of the push.

use super::{Broker, Channel, Refusal};
use ringmq_net::protocol::codes::{request, response};
use ringmq_net::protocol::command::Command;
use ringmq_net::protocol::headers::send::SendHeader;
use ringmq_net::reactor::Now;
use ringmq_storage::record::properties;
use std::net::SocketAddr;

const REPLY_TO_CLIENT: &str = "REPLY_TO_CLIENT";
const PUSH_REPLY_TIME: &str = "PUSH_REPLY_TIME";

/// The push that a reply leads to.
#[derive(Debug)]
pub struct PushedReply {
    /// Where the client is, or why it cannot be told.
    pub to: Result<Channel, String>,
    pub client_id: String,
    pub queue_id: i32,
    pub ext: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// Where a reply was stored, for the answer.
#[derive(Clone, Debug)]
pub struct ReplyPlace {
    pub client_id: String,
    pub message_id: String,
    pub queue_id: i32,
    pub queue_offset: i64,
    pub is_oneway: bool,
}

impl ReplyPlace {
    /// Of a reply that only its client gets.
    pub fn unstored(pushed: &PushedReply, is_oneway: bool) -> ReplyPlace {
        ReplyPlace {
            client_id: pushed.client_id.clone(),
            message_id: "0".to_string(),
            queue_id: pushed.queue_id,
            queue_offset: 0,
            is_oneway,
        }
    }
}

pub fn is_reply(code: i32) -> bool {
    matches!(code, request::SEND_REPLY_MESSAGE | request::SEND_REPLY_MESSAGE_V2)
}

/// # Errors
/// A header that cannot be read.
pub fn push(broker: &Broker, command: &Command<'_>, peer: SocketAddr, now: Now) -> Result<PushedReply, Refusal> {
    let header = match command.code {
        request::SEND_REPLY_MESSAGE => SendHeader::v1(&command.ext)?,
        _ => SendHeader::v2(&command.ext)?,
    };
    let text = header.properties.as_bytes();
    let client_id = properties::get(text, REPLY_TO_CLIENT).map(|id| String::from_utf8_lossy(id).into_owned());
    let to = match &client_id {
        None => Err(format!("reply message properties[{REPLY_TO_CLIENT}] is null")),
        Some(id) => broker
            .clients
            .producer_of_client(id)
            .ok_or_else(|| format!("push reply message fail, channel of <{}> not found.", super::shown(id))),
    };
    let text = properties::with(text, &[(PUSH_REPLY_TIME, &now.wall_ms.to_string())]);
    let text = String::from_utf8(text).map_err(|_| Refusal::invalid("the properties are no UTF-8"))?;
    let field = |name: &str, value: String| (name.to_string(), value);
    let ext = vec![
        field("producerGroup", header.producer_group.to_string()),
        field("topic", header.topic.to_string()),
        field("defaultTopic", header.default_topic.to_string()),
        field("defaultTopicQueueNums", header.default_topic_queue_nums.to_string()),
        field("queueId", header.queue_id.to_string()),
        field("sysFlag", header.sys_flag.to_string()),
        field("bornTimestamp", header.born_timestamp.to_string()),
        field("flag", header.flag.to_string()),
        field("properties", text),
        field("reconsumeTimes", header.reconsume_times.to_string()),
        field("unitMode", header.unit_mode.to_string()),
        field("bornHost", peer.to_string()),
        field("storeHost", broker.store_host.to_string()),
        field("storeTimestamp", now.wall_ms.to_string()),
    ];
    Ok(PushedReply {
        to,
        client_id: client_id.unwrap_or_default(),
        queue_id: header.queue_id.max(0),
        ext,
        body: command.body.to_vec(),
    })
}

/// The code and remark of the answer: what the client said of the push, or why there was none.
pub fn outcome(place: &ReplyPlace, pushed: Result<i32, String>) -> (i32, Option<String>) {
    match pushed {
        Ok(response::SUCCESS) => (response::SUCCESS, None),
        Ok(code) => {
            let why = format!("push reply message to {}return fail, response code: {code}", place.client_id);
            (response::SYSTEM_ERROR, Some(why))
        }
        Err(why) => (response::SYSTEM_ERROR, Some(why)),
    }
}
