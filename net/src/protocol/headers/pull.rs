//! Pulls: 11 and, from 5.x clients, 361.

use super::header;

header! {
    /// PULL_MESSAGE (11), LITE_PULL_MESSAGE (361).
    PullHeader {
        consumer_group: &'a str = "consumerGroup", required;
        topic: &'a str = "topic", required;
        queue_id: i32 = "queueId", required;
        /// The first wanted.
        queue_offset: i64 = "queueOffset", required;
        max_msg_nums: i32 = "maxMsgNums", required;
        /// See [`sys_flag`].
        sys_flag: i32 = "sysFlag", required;
        /// The group's progress; counts only with [`sys_flag::COMMIT_OFFSET`].
        commit_offset: i64 = "commitOffset", or(0);
        suspend_timeout_ms: i64 = "suspendTimeoutMillis", or(0);
        /// Counts only with [`sys_flag::SUBSCRIPTION`].
        subscription: &'a str = "subscription", optional;
        sub_version: i64 = "subVersion", or(0);
        /// TAG or SQL92; absent or empty means TAG.
        expression_type: &'a str = "expressionType", optional;
        max_msg_bytes: i32 = "maxMsgBytes", optional;
    }
}

/// Bits of a pull's `sysFlag`; a message's sysFlag is another thing.
pub mod sys_flag {
    pub const COMMIT_OFFSET: i32 = 1;
    pub const SUSPEND: i32 = 1 << 1;
    pub const SUBSCRIPTION: i32 = 1 << 2;
    pub const CLASS_FILTER: i32 = 1 << 3;
    pub const LITE_PULL: i32 = 1 << 4;
}

impl PullHeader<'_> {
    pub fn has(&self, bit: i32) -> bool {
        self.sys_flag & bit != 0
    }

    /// No expression type, an empty one and `TAG` are the same.
    pub fn is_tag_expression(&self) -> bool {
        matches!(self.expression_type, None | Some("" | "TAG"))
    }
}
