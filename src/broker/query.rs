//! Finding single messages: by key, by unique key, by the offset in a message id; and what a queue's file says.
//!
//! ```text
//! 12   topic key maxNum begin end    index ──> records whose topic and keys are really those asked for, oldest first
//! 33   offset                        the record that begins there
//! 321  topic queue index count       entries of a queue, as they lie there
//! ```
//! The answer is made on the shard, so what it reads is bounded: a search that meets the bound before it finds anything
//! says so. Java answers with every record of the same hash and leaves the choice to the client, where strangers use up
//! `maxNum`; here only those are counted that carry the key.
//! Source: QueryMessageProcessor.java, AdminBrokerProcessor.queryConsumeQueue (4.9.7, 5.3.3).

use super::filter::Filter;
use super::{Answer, Broker, Refusal, Request, shown};
use ringmq_net::protocol::codes::response;
use ringmq_net::protocol::headers::query::{QueryConsumeQueueHeader, QueryMessageHeader, ViewMessageHeader};
use ringmq_storage::consume_queue::Entry;
use ringmq_storage::index::KeyQuery;
use serde_json::json;

/// QUERY_MESSAGE (12).
pub fn by_key(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = QueryMessageHeader::parse(&request.command.ext)?;
    let asked = match usize::try_from(header.max_num) {
        Ok(count) if count > 0 => count,
        _ if header.unique_key_query => 1,
        _ => return Err(Refusal::invalid(format!("request header field maxNum is not above 0: '{}'", header.max_num))),
    };
    let config = broker.live.config();
    let count = if header.unique_key_query { config.query_count_default as usize } else { asked };
    let found = broker.store.find_by_key(&KeyQuery {
        topic: header.topic,
        key: header.key,
        is_unique: header.unique_key_query,
        count_max: count.min(config.query_count_max as usize),
        begin_ms: header.begin_timestamp,
        end_ms: header.end_timestamp,
    });
    if found.records.is_empty() {
        return Err(if found.is_cut {
            let remark =
                "the search was given up among too many messages with other keys or times; narrow the time span";
            Refusal::new(response::SYSTEM_ERROR, remark)
        } else {
            Refusal::new(response::QUERY_NOT_FOUND, "can not find message, maybe time range not correct")
        });
    }
    Ok(Answer {
        ext: vec![
            ("indexLastUpdateTimestamp", found.last_timestamp.to_string()),
            ("indexLastUpdatePhyoffset", found.last_log_offset.to_string()),
        ],
        body: found.records.concat(),
        ..Answer::default()
    })
}

/// The log offset in a message id: 16 or 28 bytes in hex, the last 8 are it.
pub fn log_offset_of(id: &str) -> Result<u64, Refusal> {
    (matches!(id.len(), 32 | 56) && id.is_ascii())
        .then(|| u64::from_str_radix(&id[id.len() - 16..], 16).ok())
        .flatten()
        .ok_or_else(|| Refusal::invalid(format!("msgId '{}' is no id of a stored message", shown(id))))
}

/// VIEW_MESSAGE_BY_ID (33).
pub fn view(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = ViewMessageHeader::parse(&request.command.ext)?;
    let record = u64::try_from(header.offset).ok().and_then(|offset| broker.store.record_at(offset));
    match record {
        Some(record) => Ok(Answer::body(record.to_vec())),
        None => {
            let remark = format!("can not find message by the offset, {}", header.offset);
            Err(Refusal::new(response::SYSTEM_ERROR, remark))
        }
    }
}

/// Entries in one answer.
const QUEUE_ENTRIES_MAX: usize = 1024;

/// QUERY_CONSUME_QUEUE (321).
pub fn queue_entries(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = QueryConsumeQueueHeader::parse(&request.command.ext)?;
    let (topic, queue_id) = (header.topic, header.queue_id);
    let Some(queue) = broker.store.queue(topic, queue_id) else {
        return Err(Refusal::new(response::SYSTEM_ERROR, format!("{queue_id}@{} is not exist!", shown(topic))));
    };
    let (min, max) = (queue.min(), queue.max());
    let index = u64::try_from(header.index).ok().filter(|index| (min..max).contains(index));
    let Some(index) = index else {
        let remark = format!("Index {} of {queue_id}@{topic} is not exist!", header.index);
        return Err(Refusal::new(response::SYSTEM_ERROR, remark));
    };
    let mut entries = Vec::new();
    let count = usize::try_from(header.count).unwrap_or(0).min(QUEUE_ENTRIES_MAX);
    queue.read(index, count, &mut entries).map_err(|error| Refusal::new(response::SYSTEM_ERROR, error.to_string()))?;
    let mut body = json!({"maxQueueIndex": max, "minQueueIndex": min});
    let mut filter = None;
    if let Some(group) = header.consumer_group {
        match broker.clients.subscription(group, topic) {
            Ok((subscription, _)) => {
                body["subscriptionData"] = json!(subscription.data);
                let data = broker.filters.data(topic, group);
                body["filterData"] = json!(serde_json::to_string_pretty(&data).unwrap_or_default());
                filter = if subscription.data.is_tag() {
                    Some(Filter::Tags(subscription.tags.clone()))
                } else {
                    broker.filters.get(topic, group).map(|registered| Filter::Sql(registered.expression))
                };
            }
            Err(_) => body["filterData"] = json!(format!("{}@{topic} is not online!", shown(group))),
        }
    }
    let entry = |entry: &Entry| {
        let is_passed = filter.as_ref().is_none_or(|filter| filter.accepts(entry, &broker.store));
        json!({
            "eval": is_passed,
            "physicOffset": entry.log_offset,
            "physicSize": entry.record_bytes,
            "tagsCode": entry.tags_code,
        })
    };
    body["queueData"] = entries.iter().map(entry).collect();
    Ok(Answer::body(body.to_string().into_bytes()))
}
