//! Topics as brokers keep, register and exchange them.

use super::{java_enum, json_body, lenient};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicConfig {
    /// 5.x; kept when present.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attributes: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "lenient::flag")]
    pub order: bool,
    /// 4 read, 2 write, 1 inherit.
    #[serde(deserialize_with = "lenient::number")]
    pub perm: i32,
    #[serde(deserialize_with = "lenient::number")]
    pub read_queue_nums: i32,
    pub topic_filter_type: TopicFilterType,
    #[serde(deserialize_with = "lenient::text")]
    pub topic_name: String,
    #[serde(deserialize_with = "lenient::number")]
    pub topic_sys_flag: i32,
    #[serde(deserialize_with = "lenient::number")]
    pub write_queue_nums: i32,
}

impl Default for TopicConfig {
    fn default() -> Self {
        Self {
            attributes: None,
            order: false,
            perm: 6,
            read_queue_nums: 16,
            topic_filter_type: TopicFilterType::SingleTag,
            topic_name: String::new(),
            topic_sys_flag: 0,
            write_queue_nums: 16,
        }
    }
}

java_enum! {
    TopicFilterType {
        SingleTag = "SINGLE_TAG",
        MultiTag = "MULTI_TAG",
    }
}

/// Tells two states of a table apart; the owner moves it with every change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DataVersion {
    #[serde(deserialize_with = "lenient::number")]
    pub counter: i64,
    /// 5.x.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient::number_or_none")]
    pub state_version: Option<i64>,
    #[serde(deserialize_with = "lenient::number")]
    pub timestamp: i64,
}

/// All topics of a broker: the answer to 21, part of a registration, and config/topics.json.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicConfigSerializeWrapper {
    #[serde(deserialize_with = "lenient::or_default")]
    pub data_version: DataVersion,
    #[serde(deserialize_with = "lenient::or_default")]
    pub topic_config_table: BTreeMap<String, TopicConfig>,
    /// Static topics of 5.x brokers, passed through.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "lenient::or_default")]
    pub topic_queue_mapping_info_map: BTreeMap<String, serde_json::Value>,
}

/// The body of UPDATE_AND_CREATE_TOPIC_LIST (18).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicConfigList {
    #[serde(deserialize_with = "lenient::or_default")]
    pub topic_config_list: Vec<TopicConfig>,
}

/// The answer to 206, 224, 304, 305, 343 and the unit lists. A set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicList {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_addr: Option<String>,
    #[serde(deserialize_with = "lenient::or_default")]
    pub topic_list: BTreeSet<String>,
}

json_body!(strict: TopicConfig, DataVersion, TopicConfigSerializeWrapper, TopicConfigList, TopicList);
