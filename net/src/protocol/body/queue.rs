//! A queue of a topic on a broker, and maps that have it as key.

use super::{json_body, lenient};
use serde::{Deserialize, Serialize};

/// `{"brokerName":"b","queueId":0,"topic":"t"}`: members in this order, Go compares texts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MessageQueue {
    #[serde(deserialize_with = "lenient::text")]
    pub broker_name: String,
    #[serde(deserialize_with = "lenient::number")]
    pub queue_id: i32,
    #[serde(deserialize_with = "lenient::text")]
    pub topic: String,
}

/// The body of a message in OFFSET_MOVED_EVENT: a pull came from where the queue is not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OffsetMovedEvent {
    #[serde(deserialize_with = "lenient::text")]
    pub consumer_group: String,
    pub message_queue: MessageQueue,
    #[serde(deserialize_with = "lenient::number")]
    pub offset_new: i64,
    #[serde(deserialize_with = "lenient::number")]
    pub offset_request: i64,
}

json_body!(strict: OffsetMovedEvent);

/// `#[serde(with = "queue_keys")]` for `BTreeMap<MessageQueue, V>`: the key is the queue's compact JSON as a
/// text, which [`super::super::fastjson::to_vec_java`] writes without quotes.
pub mod queue_keys {
    use super::MessageQueue;
    use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
    use serde::ser::{Error as _, Serialize, SerializeMap, Serializer};
    use std::collections::BTreeMap;
    use std::fmt;
    use std::marker::PhantomData;

    pub fn serialize<V: Serialize, S: Serializer>(
        map: &BTreeMap<MessageQueue, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut entries = serializer.serialize_map(Some(map.len()))?;
        for (queue, value) in map {
            entries.serialize_entry(&serde_json::to_string(queue).map_err(S::Error::custom)?, value)?;
        }
        entries.end()
    }

    pub fn deserialize<'de, V: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<MessageQueue, V>, D::Error> {
        deserializer.deserialize_map(Entries(PhantomData))
    }

    struct Entries<V>(PhantomData<V>);

    impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<V> {
        type Value = BTreeMap<MessageQueue, V>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object with queues as keys")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
            let mut map = BTreeMap::new();
            while let Some((key, value)) = entries.next_entry::<String, V>()? {
                map.insert(serde_json::from_str(&key).map_err(A::Error::custom)?, value);
            }
            Ok(map)
        }
    }
}
