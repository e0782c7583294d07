//! What mqadmin and clients are told about progress, connections and counters. Queues are raw object keys.

use super::heartbeat::{ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData};
use super::queue::{MessageQueue, queue_keys};
use super::{json_body, lenient};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The answer to GET_CONSUME_STATS (208).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumeStats {
    pub consume_tps: f64,
    #[serde(with = "queue_keys")]
    pub offset_table: BTreeMap<MessageQueue, OffsetWrapper>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OffsetWrapper {
    pub broker_offset: i64,
    pub consumer_offset: i64,
    /// Store time in ms of the last consumed message, 0 when unknown.
    pub last_timestamp: i64,
    /// 5.x.
    pub pull_offset: i64,
}

/// The answer to GET_TOPIC_STATS_INFO (202).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicStatsTable {
    #[serde(with = "queue_keys")]
    pub offset_table: BTreeMap<MessageQueue, TopicOffset>,
    /// 5.x.
    pub topic_put_tps: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicOffset {
    pub last_update_timestamp: i64,
    pub max_offset: i64,
    pub min_offset: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Connection {
    /// `ip:port`.
    pub client_addr: String,
    pub client_id: String,
    /// A name of [`super::super::codes::language`].
    pub language: String,
    pub version: i32,
}

/// The answer to GET_CONSUMER_CONNECTION_LIST (203).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumerConnection {
    pub connection_set: Vec<Connection>,
    pub consume_from_where: ConsumeFromWhere,
    pub consume_type: ConsumeType,
    pub message_model: MessageModel,
    /// By topic.
    pub subscription_table: BTreeMap<String, SubscriptionData>,
}

/// The answer to GET_PRODUCER_CONNECTION_LIST (204).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ProducerConnection {
    pub connection_set: Vec<Connection>,
}

/// The answer to GET_CONSUMER_LIST_BY_GROUP (38).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumerIdList {
    #[serde(deserialize_with = "lenient::or_default")]
    pub consumer_id_list: Vec<String>,
}

/// The answer to QUERY_TOPIC_CONSUME_BY_WHO (300).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GroupList {
    #[serde(deserialize_with = "lenient::or_default")]
    pub group_list: BTreeSet<String>,
}

/// Texts by name: runtime info (28), KV namespaces (219), order configuration in a registration's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KVTable {
    #[serde(deserialize_with = "lenient::or_default")]
    pub table: BTreeMap<String, String>,
}

/// The answer to GET_ALL_PRODUCER_INFO (328): by producer group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProducerTable {
    pub data: BTreeMap<String, Vec<ProducerInfo>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ProducerInfo {
    pub client_id: String,
    pub language: String,
    pub last_update_timestamp: i64,
    /// `ip:port`.
    #[serde(rename = "remoteIP")]
    pub remote_ip: String,
    pub version: i32,
}

/// The answer to GET_BROKER_CONSUME_STATS (317): for each group, its topics.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumeStatsList {
    pub broker_addr: String,
    pub consume_stats_list: Vec<BTreeMap<String, Vec<ConsumeStats>>>,
    /// Messages that no group has consumed, summed over groups.
    pub total_diff: i64,
}

/// The answer to QUERY_CONSUME_TIME_SPAN (303).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumeTimeSpans {
    pub consume_time_span_set: Vec<QueueTimeSpan>,
}

/// Store times in ms; -1 where there is no message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct QueueTimeSpan {
    pub consume_time_stamp: i64,
    /// Age of the next message that the group has not consumed, 0 when it has all.
    pub delay_time: i64,
    pub max_time_stamp: i64,
    pub message_queue: MessageQueue,
    pub min_time_stamp: i64,
}

json_body!(java: ConsumeStats, TopicStatsTable, ConsumeStatsList, ConsumeTimeSpans);
json_body!(strict: ConsumerConnection, ProducerConnection, ConsumerIdList, GroupList, KVTable, ProducerTable);
