//! Progress by queue: GET_TOPIC_STATS_INFO (202), GET_CONSUME_STATS (208), QUERY_TOPIC_CONSUME_BY_WHO (300),
//! GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305). Source: AdminBrokerProcessor.java.

use crate::broker::{Answer, Broker, Refusal, Request, topic_missing};
use ringmq_net::protocol::body::queue::MessageQueue;
use ringmq_net::protocol::body::stats::{ConsumeStats, GroupList, OffsetWrapper, TopicOffset, TopicStatsTable};
use ringmq_net::protocol::headers::admin::{ConsumeStatsHeader, TopicConsumeByWhoHeader, TopicStatsHeader};
use std::collections::BTreeSet;

fn message_queue(broker: &Broker, topic: &str, queue_id: i32) -> MessageQueue {
    MessageQueue { broker_name: broker.config.broker_name.clone(), queue_id, topic: topic.to_string() }
}

pub fn topic_stats(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = TopicStatsHeader::parse(&request.command.ext)?;
    let topic = broker.topics.get(header.topic).ok_or_else(|| topic_missing(header.topic))?;
    let mut table = TopicStatsTable::default();
    for queue_id in 0..topic.write_queue_nums.max(topic.read_queue_nums) {
        let mut offsets = TopicOffset::default();
        if let Some(queue) = broker.store.queue(header.topic, queue_id) {
            let (min, max) = (queue.min(), queue.max());
            offsets.min_offset = min as i64;
            offsets.max_offset = max as i64;
            if max > min {
                offsets.last_update_timestamp = broker.store.store_time(&queue, max - 1).max(0);
            }
        }
        table.offset_table.insert(message_queue(broker, header.topic, queue_id), offsets);
    }
    Ok(Answer::body(table.to_json()))
}

pub fn consume_stats(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = ConsumeStatsHeader::parse(&request.command.ext)?;
    let group = header.consumer_group;
    let listed = header.topic_list.unwrap_or("").split(';').filter(|topic| !topic.is_empty());
    let mut topics: BTreeSet<String> = listed.map(str::to_string).collect();
    let is_listed = !topics.is_empty();
    match header.topic.filter(|topic| !topic.is_empty()) {
        Some(topic) => {
            topics.insert(topic.to_string());
        }
        None if !is_listed => topics = broker.offsets.topics_of(group),
        None => {}
    }
    let subscribed = broker.clients.topics_of(group).unwrap_or_default();
    let mut stats = ConsumeStats::default();
    for topic in topics {
        let Some(config) = broker.topics.get(&topic) else { continue };
        if !is_listed && !subscribed.is_empty() && !subscribed.contains(&topic) {
            continue;
        }
        for queue_id in 0..config.read_queue_nums {
            let consumed = broker.offsets.get(group, &topic, queue_id).unwrap_or(0);
            let mut wrapper = OffsetWrapper { consumer_offset: consumed, pull_offset: consumed, ..Default::default() };
            if let Some(queue) = broker.store.queue(&topic, queue_id) {
                wrapper.broker_offset = queue.max() as i64;
                let last = consumed - 1;
                if last >= queue.min() as i64 && last < queue.max() as i64 {
                    wrapper.last_timestamp = broker.store.store_time(&queue, last as u64).max(0);
                }
            }
            stats.offset_table.insert(message_queue(broker, &topic, queue_id), wrapper);
        }
        stats.consume_tps += broker.stats.consume_tps(group, &topic);
    }
    Ok(Answer::body(stats.to_json()))
}

pub fn topic_consumed_by(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = TopicConsumeByWhoHeader::parse(&request.command.ext)?;
    let mut groups = broker.clients.groups_of(header.topic);
    groups.extend(broker.offsets.groups_of(header.topic));
    Ok(Answer::body(GroupList { group_list: groups }.to_json()))
}

pub fn system_topics(broker: &Broker) -> Result<Answer, Refusal> {
    Ok(Answer::body(broker.topics.system_list().to_json()))
}
