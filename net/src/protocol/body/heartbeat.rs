//! What a client tells of itself every 30 s (HEART_BEAT 34), and subscriptions wherever they travel.

use super::{java_enum, json_body, lenient};
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HeartbeatData {
    #[serde(rename = "clientID", deserialize_with = "lenient::text")]
    pub client_id: String,
    #[serde(deserialize_with = "lenient::or_default")]
    pub consumer_data_set: Vec<ConsumerData>,
    #[serde(deserialize_with = "lenient::number")]
    pub heartbeat_fingerprint: i32,
    #[serde(deserialize_with = "lenient::or_default")]
    pub producer_data_set: Vec<ProducerData>,
    /// Liveness only: the subscription sets are empty and mean nothing.
    #[serde(deserialize_with = "lenient::flag")]
    pub without_sub: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ProducerData {
    #[serde(deserialize_with = "lenient::text")]
    pub group_name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumerData {
    pub consume_from_where: ConsumeFromWhere,
    pub consume_type: ConsumeType,
    #[serde(deserialize_with = "lenient::text")]
    pub group_name: String,
    pub message_model: MessageModel,
    #[serde(deserialize_with = "lenient::or_default")]
    pub subscription_data_set: Vec<SubscriptionData>,
    #[serde(deserialize_with = "lenient::flag")]
    pub unit_mode: bool,
}

java_enum! {
    ConsumeType {
        Actively = "CONSUME_ACTIVELY",
        Passively = "CONSUME_PASSIVELY",
        Pop = "CONSUME_POP",
    }
}

java_enum! {
    MessageModel {
        Broadcasting = "BROADCASTING",
        Clustering = "CLUSTERING",
    }
}

java_enum! {
    /// Where a group without offsets begins.
    ConsumeFromWhere {
        LastOffset = "CONSUME_FROM_LAST_OFFSET",
        LastOffsetAndFromMinWhenBootFirst = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        MinOffset = "CONSUME_FROM_MIN_OFFSET",
        MaxOffset = "CONSUME_FROM_MAX_OFFSET",
        FirstOffset = "CONSUME_FROM_FIRST_OFFSET",
        Timestamp = "CONSUME_FROM_TIMESTAMP",
    }
}

/// Everything of a topic.
pub const SUBSCRIBE_ALL: &str = "*";
pub const EXPRESSION_TAG: &str = "TAG";
pub const EXPRESSION_SQL92: &str = "SQL92";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SubscriptionData {
    #[serde(deserialize_with = "lenient::flag")]
    pub class_filter_mode: bool,
    /// [`java_hash`] of each tag. Go sends them as strings.
    #[serde(deserialize_with = "codes")]
    pub code_set: BTreeSet<i32>,
    /// `TAG` or `SQL92`; absent and empty are read as `TAG`.
    #[serde(deserialize_with = "expression_type")]
    pub expression_type: String,
    #[serde(deserialize_with = "lenient::text")]
    pub sub_string: String,
    /// The clock of the client when it subscribed: ms from Java, ns from Go. The larger is the later.
    #[serde(default = "absent_version", deserialize_with = "version")]
    pub sub_version: i64,
    #[serde(deserialize_with = "lenient::or_default")]
    pub tags_set: BTreeSet<String>,
    #[serde(deserialize_with = "lenient::text")]
    pub topic: String,
}

impl Default for SubscriptionData {
    fn default() -> Self {
        Self {
            class_filter_mode: false,
            code_set: BTreeSet::new(),
            expression_type: EXPRESSION_TAG.to_owned(),
            sub_string: String::new(),
            sub_version: 0,
            tags_set: BTreeSet::new(),
            topic: String::new(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tag expression '{expression}' names no tag")]
pub struct TagExpressionError {
    pub expression: String,
}

/// Java puts its clock where there is none.
const VERSION_ABSENT: i64 = i64::MIN;

fn absent_version() -> i64 {
    VERSION_ABSENT
}

fn version<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    Ok(lenient::number_or_none(deserializer)?.unwrap_or(VERSION_ABSENT))
}

impl SubscriptionData {
    pub fn set_version_if_absent(&mut self, now_ms: i64) {
        if self.sub_version == VERSION_ABSENT {
            self.sub_version = now_ms;
        }
    }

    /// A tag subscription as Java's FilterAPI builds it: tags between `||`, trimmed; nothing and `*` mean all.
    /// The version is left 0, Java puts its clock there.
    ///
    /// # Errors
    /// An expression of bars alone.
    pub fn build_tag(topic: &str, expression: &str) -> Result<Self, TagExpressionError> {
        let mut subscription = Self { topic: topic.to_owned(), ..Self::default() };
        if expression.is_empty() || expression == SUBSCRIBE_ALL {
            subscription.sub_string = SUBSCRIBE_ALL.to_owned();
            return Ok(subscription);
        }
        // Java's split drops empty pieces at the end; only bars leave none at all.
        if expression.split("||").all(str::is_empty) {
            return Err(TagExpressionError { expression: expression.to_owned() });
        }
        for tag in expression.split("||").map(java_trim).filter(|tag| !tag.is_empty()) {
            subscription.tags_set.insert(tag.to_owned());
            subscription.code_set.insert(java_hash(tag));
        }
        subscription.sub_string = expression.to_owned();
        Ok(subscription)
    }

    pub fn is_tag(&self) -> bool {
        self.expression_type.is_empty() || self.expression_type == EXPRESSION_TAG
    }

    pub fn is_all(&self) -> bool {
        self.sub_string == SUBSCRIBE_ALL
    }
}

/// Java's `String.trim`: everything up to the blank goes.
fn java_trim(text: &str) -> &str {
    text.trim_matches(|c| c <= ' ')
}

/// Java's `String.hashCode`, over UTF-16 units: the code of a tag.
pub fn java_hash(text: &str) -> i32 {
    text.encode_utf16().fold(0i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

fn expression_type<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = lenient::text(deserializer)?;
    Ok(if text.is_empty() { EXPRESSION_TAG.to_owned() } else { text })
}

fn codes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<i32>, D::Error> {
    struct Code(i32);
    impl<'de> Deserialize<'de> for Code {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            lenient::number(deserializer).map(Code).map_err(D::Error::custom)
        }
    }
    let codes: Option<Vec<Code>> = Option::deserialize(deserializer)?;
    Ok(codes.unwrap_or_default().into_iter().map(|code| code.0).collect())
}

/// What a consumer asks before it starts with a non-tag subscription (CHECK_CLIENT_CONFIG 46).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CheckClientBody {
    #[serde(deserialize_with = "lenient::text")]
    pub client_id: String,
    #[serde(deserialize_with = "lenient::text")]
    pub group: String,
    #[serde(deserialize_with = "lenient::text")]
    pub namespace: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscription_data: Option<SubscriptionData>,
}

json_body!(strict: HeartbeatData, SubscriptionData, CheckClientBody);
