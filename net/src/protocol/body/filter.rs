//! config/consumerFilter.json: the SQL92 filters that groups have registered.

use super::{json_body, lenient};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumerFilterTable {
    #[serde(deserialize_with = "lenient::or_default")]
    pub filter_data_by_topic: BTreeMap<String, TopicFilters>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicFilters {
    #[serde(deserialize_with = "lenient::or_default")]
    pub group_filter_data: BTreeMap<String, ConsumerFilterData>,
    #[serde(deserialize_with = "lenient::text")]
    pub topic: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumerFilterData {
    /// Java ignores the whole file when one is missing or of other sizes than its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bloom_filter_data: Option<BloomFilterData>,
    #[serde(deserialize_with = "lenient::number")]
    pub born_time: i64,
    /// The version of the subscription that brought it.
    #[serde(deserialize_with = "lenient::number")]
    pub client_version: i64,
    #[serde(deserialize_with = "lenient::text")]
    pub consumer_group: String,
    /// Below `born_time` while the group is online.
    #[serde(deserialize_with = "lenient::number")]
    pub dead_time: i64,
    #[serde(deserialize_with = "lenient::text")]
    pub expression: String,
    #[serde(deserialize_with = "lenient::text")]
    pub expression_type: String,
    #[serde(deserialize_with = "lenient::text")]
    pub topic: String,
}

/// The bits of one group and topic in the bit map of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BloomFilterData {
    pub bit_num: i32,
    #[serde(deserialize_with = "lenient::or_default")]
    pub bit_pos: Vec<i32>,
}

json_body!(java: ConsumerFilterTable, ConsumerFilterData);
