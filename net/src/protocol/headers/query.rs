//! Finding single messages.

use super::header;

header! {
    /// QUERY_MESSAGE (12): by key, in a span of store times.
    QueryMessageHeader {
        topic: &'a str = "topic", required;
        key: &'a str = "key", required;
        max_num: i32 = "maxNum", required;
        begin_timestamp: i64 = "beginTimestamp", required;
        end_timestamp: i64 = "endTimestamp", required;
        /// The key is a UNIQ_KEY; the server then uses its own `maxNum`.
        unique_key_query: bool = "_UNIQUE_KEY_QUERY", or(false);
    }
}

header! {
    /// VIEW_MESSAGE_BY_ID (33): by commit log offset.
    ViewMessageHeader {
        offset: i64 = "offset", required;
        topic: &'a str = "topic", optional;
    }
}

header! {
    /// QUERY_CONSUME_QUEUE (321): dumps queue entries.
    QueryConsumeQueueHeader {
        topic: &'a str = "topic", required;
        queue_id: i32 = "queueId", required;
        index: i64 = "index", required;
        count: i32 = "count", required;
        consumer_group: &'a str = "consumerGroup", optional;
    }
}
