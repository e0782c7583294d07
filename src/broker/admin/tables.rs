//! Progress by queue: GET_TOPIC_STATS_INFO (202), GET_CONSUME_STATS (208), QUERY_TOPIC_CONSUME_BY_WHO (300),
//! QUERY_CONSUME_TIME_SPAN (303), GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305), GET_BROKER_CONSUME_STATS (317),
//! GET_ALL_PRODUCER_INFO (328), QUERY_CORRECTION_OFFSET (308), VIEW_BROKER_STATS_DATA (315), QUERY_TOPICS_BY_CONSUMER
//! (343), QUERY_SUBSCRIPTION_BY_CONSUMER (345). Source: AdminBrokerProcessor.java.

use crate::broker::stats::Counted;
use crate::broker::{Answer, Broker, Refusal, Request, shown, topic_missing};
use ringmq_net::protocol::body::heartbeat::SubscriptionData;
use ringmq_net::protocol::body::queue::MessageQueue;
use ringmq_net::protocol::body::stats::{
    ConsumeStats, ConsumeStatsList, ConsumeTimeSpans, GroupList, OffsetWrapper, QueueTimeSpan, TopicOffset,
    TopicStatsTable,
};
use ringmq_net::protocol::body::topic::TopicList;
use ringmq_net::protocol::codes::response;
use ringmq_net::protocol::fastjson;
use ringmq_net::protocol::headers::admin::{
    BrokerConsumeStatsHeader, BrokerStatsHeader, ConsumeStatsHeader, ConsumeTimeSpanHeader, CorrectionOffsetHeader,
    SubscriptionByConsumerHeader, TopicConsumeByWhoHeader, TopicStatsHeader, TopicsByConsumerHeader,
};
use ringmq_net::protocol::headers::{HeaderError, HeaderProblem};
use ringmq_storage::consume_queue::ConsumeQueue;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

fn message_queue(broker: &Broker, topic: &str, queue_id: i32) -> MessageQueue {
    MessageQueue { broker_name: broker.config.broker_name.clone(), queue_id, topic: topic.to_string() }
}

pub fn topic_stats(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = TopicStatsHeader::parse(&request.command.ext)?;
    let topic = broker.topics.get(header.topic).ok_or_else(|| topic_missing(header.topic))?;
    let mut table = TopicStatsTable { topic_put_tps: broker.stats.put_tps(header.topic), ..TopicStatsTable::default() };
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
        let of_topic = stats_of_topic(broker, group, &topic, config.read_queue_nums);
        stats.offset_table.extend(of_topic.offset_table);
        stats.consume_tps += of_topic.consume_tps;
    }
    Ok(Answer::body(stats.to_json()))
}

fn stats_of_topic(broker: &Broker, group: &str, topic: &str, queue_count: i32) -> ConsumeStats {
    let mut stats = ConsumeStats { consume_tps: broker.stats.consume_tps(group, topic), ..ConsumeStats::default() };
    for queue_id in 0..queue_count {
        let consumed = broker.offsets.get(group, topic, queue_id).unwrap_or(0);
        let mut wrapper = OffsetWrapper { consumer_offset: consumed, pull_offset: consumed, ..Default::default() };
        if let Some(queue) = broker.store.queue(topic, queue_id) {
            wrapper.broker_offset = queue.max() as i64;
            wrapper.last_timestamp = store_time(broker, &queue, consumed - 1).unwrap_or(0);
        }
        stats.offset_table.insert(message_queue(broker, topic, queue_id), wrapper);
    }
    stats
}

/// Of the message at an offset that a client gave.
fn store_time(broker: &Broker, queue: &ConsumeQueue, offset: i64) -> Option<i64> {
    let is_there = offset >= queue.min() as i64 && offset < queue.max() as i64;
    is_there.then(|| broker.store.store_time(queue, offset as u64).max(0))
}

/// GET_BROKER_CONSUME_STATS (317): every group of this broker, each with the topics that it has offsets of.
pub fn broker_consume_stats(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = BrokerConsumeStatsHeader::parse(&request.command.ext)?;
    let mut list = ConsumeStatsList { broker_addr: broker.store_host.to_string(), ..ConsumeStatsList::default() };
    for group in broker.groups.names() {
        let subscribed = broker.clients.topics_of(&group).unwrap_or_default();
        let mut of_group = Vec::new();
        for topic in broker.offsets.topics_of(&group) {
            let Some(config) = broker.topics.get(&topic) else { continue };
            let is_left = !subscribed.is_empty() && !subscribed.contains(&topic);
            if is_left || (header.is_order && !config.order) {
                continue;
            }
            let stats = stats_of_topic(broker, &group, &topic, config.write_queue_nums);
            let behind = stats.offset_table.values().map(|offsets| offsets.broker_offset - offsets.consumer_offset);
            list.total_diff += behind.sum::<i64>();
            of_group.push(stats);
        }
        list.consume_stats_list.push([(group, of_group)].into());
    }
    Ok(Answer::body(list.to_json()))
}

/// QUERY_CONSUME_TIME_SPAN (303): from when to when each queue holds messages, and how far back the group is.
pub fn consume_time_span(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = ConsumeTimeSpanHeader::parse(&request.command.ext)?;
    let topic = broker.topics.get(header.topic).ok_or_else(|| topic_missing(header.topic))?;
    let mut spans = Vec::new();
    for queue_id in 0..topic.write_queue_nums {
        let mut span = QueueTimeSpan {
            message_queue: message_queue(broker, header.topic, queue_id),
            min_time_stamp: -1,
            max_time_stamp: -1,
            consume_time_stamp: -1,
            delay_time: 0,
        };
        if let Some(queue) = broker.store.queue(header.topic, queue_id) {
            let at = |offset: i64| store_time(broker, &queue, offset);
            let consumed = broker.offsets.get(header.group, header.topic, queue_id).unwrap_or(-1);
            span.min_time_stamp = at(queue.min() as i64).unwrap_or(-1);
            span.max_time_stamp = at(queue.max() as i64 - 1).unwrap_or(-1);
            span.consume_time_stamp = if consumed > 0 { at(consumed - 1).unwrap_or(-1) } else { span.min_time_stamp };
            if let Some(next) = at(consumed.max(queue.min() as i64)) {
                span.delay_time = request.now.wall_ms as i64 - next;
            }
        }
        spans.push(span);
    }
    Ok(Answer::body(ConsumeTimeSpans { consume_time_span_set: spans }.to_json()))
}

/// GET_ALL_PRODUCER_INFO (328).
pub fn producers(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    Ok(Answer::body(broker.clients.producer_table(request.now).to_json()))
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

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BrokerStatsData {
    stats_day: Counted,
    stats_hour: Counted,
    stats_minute: Counted,
}

/// VIEW_BROKER_STATS_DATA (315).
pub fn broker_stats(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let BrokerStatsHeader { stats_name, stats_key } = BrokerStatsHeader::parse(&request.command.ext)?;
    let spans = broker.stats.item(stats_name, stats_key, &broker.config.cluster_name).ok_or_else(|| {
        let remark = format!("The stats <{}> <{}> not exist", shown(stats_name), shown(stats_key));
        Refusal::new(response::SYSTEM_ERROR, remark)
    })?;
    let [stats_minute, stats_hour, stats_day] = spans;
    Ok(Answer::body(fastjson::to_vec(&BrokerStatsData { stats_day, stats_hour, stats_minute })))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CorrectionOffsets {
    correction_offsets: BTreeMap<i32, i64>,
}

/// QUERY_CORRECTION_OFFSET (308): how far all groups have read each queue of the topic, those that are listed aside. A
/// queue that the compared group is behind all of them in has the largest number. Java forgets the offsets of the listed
/// groups, the compared one's too.
pub fn correction_offsets(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = CorrectionOffsetHeader::parse(&request.command.ext)?;
    let aside: Vec<&str> = header.filter_groups.unwrap_or("").split(',').map(str::trim).collect();
    let min = |queue_id: i32| broker.store.queue(header.topic, queue_id).map_or(0, |queue| queue.min() as i64);
    let mut offsets: BTreeMap<i32, i64> = BTreeMap::new();
    for group in broker.offsets.groups_of(header.topic).iter().filter(|group| !aside.contains(&group.as_str())) {
        for (queue_id, offset) in broker.offsets.queues_of(group, header.topic) {
            // What lies before the queue's begin is nobody's place any more.
            if offset >= min(queue_id) {
                offsets.entry(queue_id).and_modify(|least| *least = offset.min(*least)).or_insert(offset);
            }
        }
    }
    let compared = match aside.contains(&header.compare_group) {
        true => Vec::new(),
        false => broker.offsets.queues_of(header.compare_group, header.topic),
    };
    for (queue_id, offset) in compared {
        if let Some(least) = offsets.get_mut(&queue_id)
            && *least > offset
        {
            *least = i64::MAX;
        }
    }
    Ok(Answer::body(fastjson::to_vec_java(&CorrectionOffsets { correction_offsets: offsets })))
}

/// QUERY_TOPICS_BY_CONSUMER (343): those that the group has offsets of.
pub fn topics_consumed(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = TopicsByConsumerHeader::parse(&request.command.ext)?;
    let topic_list = broker.offsets.topics_of(header.group);
    Ok(Answer::body(TopicList { broker_addr: Some(broker.config.broker_addr()), topic_list }.to_json()))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SubscriptionAnswer<'a> {
    group: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    subscription_data: Option<&'a SubscriptionData>,
    topic: &'a str,
}

/// QUERY_SUBSCRIPTION_BY_CONSUMER (345): what the group's heartbeats say about the topic; a success without it where
/// they say nothing, as in Java.
pub fn subscription(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = SubscriptionByConsumerHeader::parse(&request.command.ext)?;
    let topic = header.topic.ok_or(HeaderError { field: "topic", problem: HeaderProblem::Missing })?;
    let found = broker.clients.subscription(header.group, topic).ok();
    let subscription_data = found.as_ref().map(|(subscription, _)| &subscription.data);
    Ok(Answer::body(fastjson::to_vec(&SubscriptionAnswer { group: header.group, subscription_data, topic })))
}
