//! What mqadmin asks a broker.

use super::header;

header! {
    /// UPDATE_AND_CREATE_TOPIC (17).
    CreateTopicHeader {
        topic: &'a str = "topic", required;
        default_topic: &'a str = "defaultTopic", optional;
        read_queue_nums: i32 = "readQueueNums", required;
        write_queue_nums: i32 = "writeQueueNums", required;
        perm: i32 = "perm", required;
        /// `SINGLE_TAG` or `MULTI_TAG`.
        topic_filter_type: &'a str = "topicFilterType", required;
        topic_sys_flag: i32 = "topicSysFlag", or(0);
        order: bool = "order", or(false);
        /// Changes, `+key=value` or `-key`, comma-joined.
        attributes: &'a str = "attributes", optional;
    }
}

header! {
    /// DELETE_TOPIC_IN_BROKER (215).
    DeleteTopicHeader {
        topic: &'a str = "topic", required;
    }
}

header! {
    /// GET_TOPIC_CONFIG (351).
    GetTopicConfigHeader {
        topic: &'a str = "topic", required;
    }
}

header! {
    /// GET_TOPIC_STATS_INFO (202).
    TopicStatsHeader {
        topic: &'a str = "topic", required;
    }
}

header! {
    /// QUERY_TOPIC_CONSUME_BY_WHO (300).
    TopicConsumeByWhoHeader {
        topic: &'a str = "topic", required;
    }
}

header! {
    /// QUERY_TOPICS_BY_CONSUMER (343).
    TopicsByConsumerHeader {
        group: &'a str = "group", required;
    }
}

header! {
    /// QUERY_SUBSCRIPTION_BY_CONSUMER (345).
    SubscriptionByConsumerHeader {
        group: &'a str = "group", required;
        topic: &'a str = "topic", optional;
    }
}

header! {
    /// GET_CONSUMER_CONNECTION_LIST (203).
    ConsumerConnectionHeader {
        consumer_group: &'a str = "consumerGroup", required;
    }
}

header! {
    /// GET_PRODUCER_CONNECTION_LIST (204).
    ProducerConnectionHeader {
        producer_group: &'a str = "producerGroup", required;
    }
}

header! {
    /// DELETE_SUBSCRIPTIONGROUP (207). The flag has one name in 4.9.7 and another in 5.x.
    DeleteGroupHeader {
        group_name: &'a str = "groupName", required;
        remove_offset: bool = "removeOffset", or(false);
        clean_offset: bool = "cleanOffset", or(false);
    }
}

impl DeleteGroupHeader<'_> {
    /// The group's offsets go too; either spelling says so.
    pub fn with_offsets(&self) -> bool {
        self.remove_offset || self.clean_offset
    }
}

header! {
    /// GET_SUBSCRIPTIONGROUP_CONFIG (352).
    GetGroupConfigHeader {
        group: &'a str = "group", required;
    }
}

header! {
    /// UPDATE_AND_GET_GROUP_FORBIDDEN (353).
    GroupForbiddenHeader {
        group: &'a str = "group", required;
        topic: &'a str = "topic", required;
        readable: bool = "readable", optional;
    }
}

header! {
    /// GET_CONSUME_STATS (208).
    ConsumeStatsHeader {
        consumer_group: &'a str = "consumerGroup", required;
        /// Absent and empty mean all topics of the group.
        topic: &'a str = "topic", optional;
        /// 5.x, `;`-joined.
        topic_list: &'a str = "topicList", optional;
    }
}

header! {
    /// GET_CONSUMER_RUNNING_INFO (307), forwarded to the client.
    ConsumerRunningInfoHeader {
        consumer_group: &'a str = "consumerGroup", required;
        client_id: &'a str = "clientId", required;
        jstack_enable: bool = "jstackEnable", or(false);
    }
}

header! {
    /// CONSUME_MESSAGE_DIRECTLY (309), forwarded to the client together with the message.
    ConsumeDirectlyHeader {
        consumer_group: &'a str = "consumerGroup", required;
        client_id: &'a str = "clientId", optional;
        /// An offsetMsgId.
        msg_id: &'a str = "msgId", optional;
        topic: &'a str = "topic", optional;
    }
}

header! {
    /// INVOKE_BROKER_TO_RESET_OFFSET (222).
    ResetOffsetHeader {
        topic: &'a str = "topic", required;
        group: &'a str = "group", required;
        /// Milliseconds; -1 is the end of the queue.
        timestamp: i64 = "timestamp", required;
        is_force: bool = "isForce", required;
        /// -1 is all queues.
        queue_id: i32 = "queueId", or(-1);
        /// -1 is by time.
        offset: i64 = "offset", or(-1);
    }
}

header! {
    /// INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223).
    ConsumerStatusHeader {
        topic: &'a str = "topic", required;
        group: &'a str = "group", required;
        /// A client id, despite its name.
        client_addr: &'a str = "clientAddr", optional;
    }
}

header! {
    /// QUERY_CONSUME_TIME_SPAN (303).
    ConsumeTimeSpanHeader {
        topic: &'a str = "topic", required;
        group: &'a str = "group", required;
    }
}

header! {
    /// QUERY_CORRECTION_OFFSET (308).
    CorrectionOffsetHeader {
        topic: &'a str = "topic", required;
        compare_group: &'a str = "compareGroup", required;
        /// Comma-joined.
        filter_groups: &'a str = "filterGroups", optional;
    }
}

header! {
    /// CLONE_GROUP_OFFSET (314).
    CloneGroupOffsetHeader {
        src_group: &'a str = "srcGroup", required;
        dest_group: &'a str = "destGroup", required;
        topic: &'a str = "topic", optional;
        offline: bool = "offline", or(false);
    }
}

header! {
    /// VIEW_BROKER_STATS_DATA (315).
    BrokerStatsHeader {
        stats_name: &'a str = "statsName", required;
        stats_key: &'a str = "statsKey", required;
    }
}

header! {
    /// GET_BROKER_CONSUME_STATS (317).
    BrokerConsumeStatsHeader {
        /// Only topics of ordered messages.
        is_order: bool = "isOrder", required;
        /// 5.x.
        broker_name: &'a str = "bname", optional;
    }
}
