//! How far the members of a group are, by their own word: INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223).
//!
//! ```text
//! admin ─ 223 ──> 221 to each member, or the one that was named ──> their tables, each under its client id
//! ```
//! All are asked at once; one that is silent for 4 s or does not know 221 is left out, as in Java, which asks one after the
//! other for 5 s. Source: Broker2Client.getConsumeStatus (4.9.7).

use super::{After, Answer, Broker, Refusal, Request};
use ringmq_net::protocol::body::offsets::ConsumerStatusBody;
use ringmq_net::protocol::codes::{response, version};
use ringmq_net::protocol::headers::admin::ConsumerStatusHeader;
use std::sync::{Arc, Mutex, PoisonError};

/// The answers of clients on all shards, until the last has come.
#[derive(Debug)]
pub struct StatusGather {
    topic: String,
    group: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    left: usize,
    said: ConsumerStatusBody,
}

impl StatusGather {
    /// Header fields of 221.
    pub fn ext(&self) -> Vec<(String, String)> {
        vec![("topic".to_string(), self.topic.clone()), ("group".to_string(), self.group.clone())]
    }

    /// What a client said, `None` if it said nothing of use. Returns the body of the answer after the last one.
    pub fn take(&self, client_id: &str, body: Option<&[u8]>) -> Option<Vec<u8>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Ok(said)) = body.map(ConsumerStatusBody::from_json) {
            state.said.consumer_table.insert(client_id.to_string(), said.message_queue_table);
        }
        state.left -= 1;
        (state.left == 0).then(|| state.said.to_json())
    }
}

pub fn ask(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = ConsumerStatusHeader::parse(&request.command.ext)?;
    let named = header.client_addr.filter(|id| !id.trim().is_empty());
    let mut asked = Vec::new();
    let members = broker.clients.members(header.group);
    if members.is_empty() {
        return Err(Refusal::new(
            response::SYSTEM_ERROR,
            format!("No Any Consumer online in the consumer group: [{}]", super::shown(header.group)),
        ));
    }
    for (channel, id, client_version) in members {
        if client_version < version::V3_0_7_SNAPSHOT {
            return Err(Refusal::new(
                response::SYSTEM_ERROR,
                format!("the client does not support this feature. version={client_version}"),
            ));
        }
        if named.is_none_or(|named| *named == *id) {
            asked.push((channel, id));
        }
    }
    if request.command.is_oneway() {
        return Ok(Answer::empty());
    }
    if asked.is_empty() {
        return Ok(Answer::body(ConsumerStatusBody::default().to_json()));
    }
    let state = State { left: asked.len(), said: ConsumerStatusBody::default() };
    let gather =
        StatusGather { topic: header.topic.to_string(), group: header.group.to_string(), state: Mutex::new(state) };
    Ok(Answer::after(After::Gathered(Arc::new(gather), asked)))
}
