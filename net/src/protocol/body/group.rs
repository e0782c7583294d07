//! Subscription groups as brokers keep and exchange them.

use super::topic::DataVersion;
use super::{json_body, lenient};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SubscriptionGroupConfig {
    #[serde(deserialize_with = "lenient::number")]
    pub broker_id: i64,
    #[serde(deserialize_with = "lenient::flag_or_true")]
    pub consume_broadcast_enable: bool,
    #[serde(deserialize_with = "lenient::flag_or_true")]
    pub consume_enable: bool,
    #[serde(deserialize_with = "lenient::flag_or_true")]
    pub consume_from_min_enable: bool,
    #[serde(deserialize_with = "lenient::text")]
    pub group_name: String,
    #[serde(deserialize_with = "lenient::flag_or_true")]
    pub notify_consumer_ids_changed_enable: bool,
    #[serde(deserialize_with = "lenient::number_or::<_, _, 16>")]
    pub retry_max_times: i32,
    /// 0 and less: messages sent back are swallowed.
    #[serde(deserialize_with = "lenient::number_or::<_, _, 1>")]
    pub retry_queue_nums: i32,
    #[serde(deserialize_with = "lenient::number_or::<_, _, 1>")]
    pub which_broker_when_consume_slowly: i64,
    /// 5.x members (consumeMessageOrderly, groupRetryPolicy, attributes, …), kept as they came.
    #[serde(flatten)]
    pub others: BTreeMap<String, serde_json::Value>,
}

impl Default for SubscriptionGroupConfig {
    fn default() -> Self {
        Self {
            broker_id: 0,
            consume_broadcast_enable: true,
            consume_enable: true,
            consume_from_min_enable: true,
            group_name: String::new(),
            notify_consumer_ids_changed_enable: true,
            retry_max_times: 16,
            retry_queue_nums: 1,
            which_broker_when_consume_slowly: 1,
            others: BTreeMap::new(),
        }
    }
}

/// All groups of a broker: the answer to 201 and config/subscriptionGroup.json.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SubscriptionGroupWrapper {
    #[serde(deserialize_with = "lenient::or_default")]
    pub data_version: DataVersion,
    /// 5.x: group to topic to forbidden bits.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "lenient::or_default")]
    pub forbidden_table: BTreeMap<String, BTreeMap<String, i32>>,
    #[serde(deserialize_with = "lenient::or_default")]
    pub subscription_group_table: BTreeMap<String, SubscriptionGroupConfig>,
}

/// The body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SubscriptionGroupList {
    #[serde(deserialize_with = "lenient::or_default")]
    pub group_config_list: Vec<SubscriptionGroupConfig>,
}

json_body!(strict: SubscriptionGroupConfig, SubscriptionGroupWrapper, SubscriptionGroupList);
