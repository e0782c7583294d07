//! Queues locked for orderly consumption (LOCK_BATCH_MQ 41, UNLOCK_BATCH_MQ 42).

use super::queue::MessageQueue;
use super::{json_body, lenient};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LockBatchRequestBody {
    #[serde(deserialize_with = "lenient::text")]
    pub client_id: String,
    #[serde(deserialize_with = "lenient::text")]
    pub consumer_group: String,
    #[serde(deserialize_with = "lenient::or_default")]
    pub mq_set: Vec<MessageQueue>,
    #[serde(deserialize_with = "lenient::flag")]
    pub only_this_broker: bool,
}

/// The queues now held by the client that asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LockBatchResponseBody {
    #[serde(rename = "lockOKMQSet", deserialize_with = "lenient::or_default")]
    pub lock_ok_mq_set: Vec<MessageQueue>,
}

json_body!(strict: LockBatchRequestBody, LockBatchResponseBody);
