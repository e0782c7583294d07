//! Offsets of a group moved by an operator: INVOKE_BROKER_TO_RESET_OFFSET (222), CLONE_GROUP_OFFSET (314).
//!
//! ```text
//! 222 ─┬─ the group is online:  220 to each of its clients, which stop, store the new offsets and go on
//!      └─ nobody is there:      the offsets are written here
//! ```
//! Without force an offset only moves back. Source: Broker2Client.resetOffset, AdminBrokerProcessor.cloneGroupOffset
//! (4.9.7), AdminBrokerProcessor.resetOffsetInner (5.3.3).

use super::{Answer, Broker, Push, PushWhat, Refusal, Request, check_group_name, check_topic_name, topic_missing};
use ringmq_net::protocol::body::offsets::ResetOffsetBody;
use ringmq_net::protocol::body::queue::MessageQueue;
use ringmq_net::protocol::codes::{language, response};
use ringmq_net::protocol::headers::admin::{CloneGroupOffsetHeader, ResetOffsetHeader};
use ringmq_storage::store::TimeBoundary;
use std::collections::BTreeMap;
use std::sync::Arc;

/// RESET_CONSUMER_CLIENT_OFFSET (220), the same to each client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    pub topic: String,
    pub group: String,
    pub timestamp: i64,
    pub is_force: bool,
    pub body: Vec<u8>,
}

/// INVOKE_BROKER_TO_RESET_OFFSET (222).
pub fn reset(broker: &Broker, request: &Request<'_, '_>, pushes: &mut Vec<Push>) -> Result<Answer, Refusal> {
    let header = ResetOffsetHeader::parse(&request.command.ext)?;
    check_topic_name(header.topic)?;
    check_group_name(header.group)?;
    let topic = broker.topics.get(header.topic).ok_or_else(|| topic_missing(header.topic))?;
    if broker.groups.get(header.group).is_none() {
        return Err(Refusal::new(
            response::SUBSCRIPTION_GROUP_NOT_EXIST,
            format!("subscription group [{}] does not exist", header.group),
        ));
    }
    let queue_ids = match header.queue_id {
        -1 => 0..topic.write_queue_nums,
        id if (0..topic.write_queue_nums).contains(&id) => id..id + 1,
        id => {
            return Err(Refusal::invalid(format!(
                "queueId {id}: topic {} has {} queues",
                header.topic, topic.write_queue_nums
            )));
        }
    };
    let mut offsets = BTreeMap::new();
    for queue_id in queue_ids {
        let queue =
            MessageQueue { broker_name: broker.config.broker_name.clone(), queue_id, topic: header.topic.to_string() };
        offsets.insert(queue, target(broker, &header, queue_id)?);
    }
    let body = ResetOffsetBody { offset_table: offsets };
    let channels = broker.clients.consumers(header.group);
    if channels.is_empty() {
        for (queue, offset) in &body.offset_table {
            broker.offsets.commit(header.group, header.topic, queue.queue_id, *offset);
        }
        tracing::info!(group = header.group, topic = header.topic, "offsets reset, nobody is online");
        return Ok(Answer::body(body.to_json()));
    }
    let is_cpp = request.command.language == Some(language::CPP);
    let reset = Arc::new(Reset {
        topic: header.topic.to_string(),
        group: header.group.to_string(),
        timestamp: header.timestamp,
        is_force: header.is_force,
        body: if is_cpp { cpp_body(&body) } else { body.to_json() },
    });
    pushes.extend(channels.into_iter().map(|to| Push { to, what: PushWhat::ResetOffset(Arc::clone(&reset)) }));
    Ok(Answer::body(body.to_json()))
}

fn target(broker: &Broker, header: &ResetOffsetHeader<'_>, queue_id: i32) -> Result<i64, Refusal> {
    let queue = broker.store.queue(header.topic, queue_id);
    let (min, max) = queue.as_ref().map_or((0, 0), |queue| (queue.min() as i64, queue.max() as i64));
    if header.offset >= 0 {
        if !(min..=max).contains(&header.offset) {
            return Err(Refusal::new(
                response::SYSTEM_ERROR,
                format!("offset {} is not between {min} and {max}, the bounds of queue {queue_id}", header.offset),
            ));
        }
        return Ok(header.offset);
    }
    let by_time = match &queue {
        Some(queue) if header.timestamp >= 0 => {
            broker.store.offset_by_time(queue, header.timestamp, TimeBoundary::Lower) as i64
        }
        _ => max,
    };
    let current = broker.offsets.get(header.group, header.topic, queue_id);
    Ok(match current {
        Some(current) if !header.is_force => by_time.min(current),
        _ => by_time,
    })
}

/// The form that C++ clients read; its order is theirs.
fn cpp_body(body: &ResetOffsetBody) -> Vec<u8> {
    let offsets = body.offset_table.iter().map(|(queue, offset)| {
        serde_json::json!({
            "brokerName": queue.broker_name, "offset": offset, "queueId": queue.queue_id, "topic": queue.topic,
        })
    });
    serde_json::json!({ "offsetTable": offsets.collect::<Vec<_>>() }).to_string().into_bytes()
}

/// CLONE_GROUP_OFFSET (314): another group goes on where this one is.
pub fn clone(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = CloneGroupOffsetHeader::parse(&request.command.ext)?;
    check_group_name(header.dest_group)?;
    let topics = match header.topic.filter(|topic| !topic.trim().is_empty()) {
        Some(topic) => [topic.to_string()].into(),
        None => broker.offsets.topics_of(header.src_group),
    };
    let subscribed = broker.clients.topics_of(header.src_group);
    for topic in topics {
        let is_known = broker.topics.get(&topic).is_some();
        let is_left = !header.offline && subscribed.as_ref().is_some_and(|topics| !topics.contains(&topic));
        if !is_known || is_left {
            tracing::warn!(topic, group = header.src_group, "offsets not cloned: no such topic or not subscribed to");
            continue;
        }
        broker.offsets.clone_group(&topic, header.src_group, header.dest_group);
    }
    Ok(Answer::empty())
}
