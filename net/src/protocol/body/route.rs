//! Where a topic lives: the answer to GET_ROUTEINFO_BY_TOPIC (105).

use super::{json_body, lenient};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicRouteData {
    #[serde(deserialize_with = "lenient::or_default")]
    pub broker_datas: Vec<BrokerData>,
    /// Always written, even when empty.
    #[serde(deserialize_with = "lenient::or_default")]
    pub filter_server_table: BTreeMap<String, Vec<String>>,
    /// `broker:queues;…`. When present, clients build their queues from it alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order_topic_conf: Option<String>,
    #[serde(deserialize_with = "lenient::or_default")]
    pub queue_datas: Vec<QueueData>,
}

/// The addresses of one broker name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BrokerData {
    /// By broker id; 0 is the master.
    #[serde(deserialize_with = "lenient::or_default")]
    pub broker_addrs: BTreeMap<i64, String>,
    #[serde(deserialize_with = "lenient::text")]
    pub broker_name: String,
    #[serde(deserialize_with = "lenient::text")]
    pub cluster: String,
    #[serde(skip_serializing_if = "std::ops::Not::not", deserialize_with = "lenient::flag")]
    pub enable_acting_master: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone_name: Option<String>,
}

/// The queues of the topic on one broker name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct QueueData {
    #[serde(deserialize_with = "lenient::text")]
    pub broker_name: String,
    /// 4 read, 2 write, 1 inherit.
    #[serde(deserialize_with = "lenient::number")]
    pub perm: i32,
    #[serde(deserialize_with = "lenient::number")]
    pub read_queue_nums: i32,
    #[serde(deserialize_with = "lenient::number")]
    pub topic_sys_flag: i32,
    #[serde(deserialize_with = "lenient::number")]
    pub write_queue_nums: i32,
}

json_body!(strict: TopicRouteData);
