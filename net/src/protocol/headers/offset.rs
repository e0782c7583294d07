//! Group progress and the bounds of a queue.

use super::{FieldValue, HeaderError, header};

header! {
    /// QUERY_CONSUMER_OFFSET (14).
    QueryOffsetHeader {
        consumer_group: &'a str = "consumerGroup", required;
        topic: &'a str = "topic", required;
        queue_id: i32 = "queueId", required;
        set_zero_if_not_found: bool = "setZeroIfNotFound", optional;
    }
}

header! {
    /// UPDATE_CONSUMER_OFFSET (15).
    UpdateOffsetHeader {
        consumer_group: &'a str = "consumerGroup", required;
        topic: &'a str = "topic", required;
        queue_id: i32 = "queueId", required;
        commit_offset: i64 = "commitOffset", required;
    }
}

/// Which of several entries of one store time SEARCH_OFFSET_BY_TIMESTAMP means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boundary {
    /// The first entry at or after the time.
    Lower,
    /// The last entry at or before it.
    Upper,
}

impl FieldValue<'_> for Boundary {
    /// Any text but "upper", in any case, means lower.
    fn read(_field: &'static str, text: &str) -> Result<Self, HeaderError> {
        Ok(if text.eq_ignore_ascii_case("upper") { Self::Upper } else { Self::Lower })
    }
}

header! {
    /// SEARCH_OFFSET_BY_TIMESTAMP (29).
    SearchOffsetHeader {
        topic: &'a str = "topic", required;
        queue_id: i32 = "queueId", required;
        timestamp: i64 = "timestamp", required;
        boundary: Boundary = "boundaryType", or(Boundary::Lower);
    }
}

header! {
    /// GET_MAX_OFFSET (30).
    MaxOffsetHeader {
        topic: &'a str = "topic", required;
        queue_id: i32 = "queueId", required;
        committed: bool = "committed", or(true);
    }
}

header! {
    /// GET_MIN_OFFSET (31).
    MinOffsetHeader {
        topic: &'a str = "topic", required;
        queue_id: i32 = "queueId", required;
    }
}

header! {
    /// GET_EARLIEST_MSG_STORETIME (32).
    EarliestStoreTimeHeader {
        topic: &'a str = "topic", required;
        queue_id: i32 = "queueId", required;
    }
}
