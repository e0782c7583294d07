//! Offset tables as brokers exchange and keep them: integer keys, unquoted.

use super::queue::{MessageQueue, queue_keys};
use super::topic::DataVersion;
use super::{json_body, lenient};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The answer to GET_ALL_CONSUMER_OFFSET (43) and config/consumerOffset.json.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumerOffsetTable {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_version: Option<DataVersion>,
    /// `topic@group` to queue id to offset.
    #[serde(deserialize_with = "lenient::or_default")]
    pub offset_table: BTreeMap<String, BTreeMap<i32, i64>>,
}

/// The answer to GET_ALL_DELAY_OFFSET (45) and config/delayOffset.json.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DelayOffsetTable {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_version: Option<DataVersion>,
    /// By delay level.
    #[serde(deserialize_with = "lenient::or_default")]
    pub offset_table: BTreeMap<i32, i64>,
}

/// New offsets of a group: the body of 220 and the answer to 222. Raw object keys without blanks are the one
/// form Java and Go both read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResetOffsetBody {
    #[serde(with = "queue_keys")]
    pub offset_table: BTreeMap<MessageQueue, i64>,
}

/// How far consumers are: of one client the answer to 221, of all that were asked the answer to 223.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumerStatusBody {
    /// By client id.
    #[serde(deserialize_with = "lenient::or_default")]
    pub consumer_table: BTreeMap<String, QueueOffsets>,
    #[serde(deserialize_with = "lenient::or_default")]
    pub message_queue_table: QueueOffsets,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct QueueOffsets(#[serde(with = "queue_keys")] pub BTreeMap<MessageQueue, i64>);

json_body!(java: ConsumerOffsetTable, DelayOffsetTable, ResetOffsetBody, ConsumerStatusBody);
