//! The end of a transaction, and its check taken up again.

use super::header;

header! {
    /// END_TRANSACTION (37).
    EndTransactionHeader {
        producer_group: &'a str = "producerGroup", required;
        /// Queue offset of the half message, as its send was answered.
        tran_state_table_offset: i64 = "tranStateTableOffset", required;
        commit_log_offset: i64 = "commitLogOffset", required;
        /// See [`commit_or_rollback`].
        commit_or_rollback: i32 = "commitOrRollback", required;
        from_transaction_check: bool = "fromTransactionCheck", or(false);
        msg_id: &'a str = "msgId", optional;
        transaction_id: &'a str = "transactionId", optional;
        topic: &'a str = "topic", optional;
    }
}

/// Values of `commitOrRollback`: the transaction bits of a message's sysFlag.
pub mod commit_or_rollback {
    pub const UNKNOWN: i32 = 0;
    pub const COMMIT: i32 = 8;
    pub const ROLLBACK: i32 = 12;
}

header! {
    /// RESUME_CHECK_HALF_MESSAGE (323).
    ResumeCheckHeader {
        topic: &'a str = "topic", optional;
        msg_id: &'a str = "msgId", required;
    }
}
