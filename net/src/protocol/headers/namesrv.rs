//! What brokers, clients and mqadmin ask a name server.

use super::header;

header! {
    /// PUT_KV_CONFIG (100).
    PutKvHeader {
        namespace: &'a str = "namespace", required;
        key: &'a str = "key", required;
        value: &'a str = "value", required;
    }
}

header! {
    /// GET_KV_CONFIG (101).
    GetKvHeader {
        namespace: &'a str = "namespace", required;
        key: &'a str = "key", required;
    }
}

header! {
    /// DELETE_KV_CONFIG (102).
    DeleteKvHeader {
        namespace: &'a str = "namespace", required;
        key: &'a str = "key", required;
    }
}

header! {
    /// GET_KVLIST_BY_NAMESPACE (219).
    KvListHeader {
        namespace: &'a str = "namespace", required;
    }
}

header! {
    /// REGISTER_BROKER (103).
    RegisterBrokerHeader {
        broker_name: &'a str = "brokerName", required;
        broker_addr: &'a str = "brokerAddr", required;
        cluster_name: &'a str = "clusterName", required;
        ha_server_addr: &'a str = "haServerAddr", required;
        /// 0 is the master.
        broker_id: i64 = "brokerId", required;
        /// 5.3.3 says false even when its body is compressed: the body's first byte decides.
        compressed: bool = "compressed", or(false);
        /// Of the body as sent; 0 is not checked.
        body_crc32: i32 = "bodyCrc32", or(0);
        heartbeat_timeout_ms: i64 = "heartbeatTimeoutMillis", optional;
        /// Absent: a broker that does not know about acting masters.
        enable_acting_master: bool = "enableActingMaster", optional;
        zone_name: &'a str = "__ZONE_NAME", optional;
    }
}

header! {
    /// UNREGISTER_BROKER (104).
    UnregisterBrokerHeader {
        broker_name: &'a str = "brokerName", required;
        broker_addr: &'a str = "brokerAddr", required;
        cluster_name: &'a str = "clusterName", required;
        broker_id: i64 = "brokerId", required;
    }
}

header! {
    /// GET_ROUTEINFO_BY_TOPIC (105).
    RouteInfoHeader {
        topic: &'a str = "topic", required;
        accept_standard_json_only: bool = "acceptStandardJsonOnly", or(false);
        zone_mode: bool = "__ZONE_MODE", or(false);
        zone_name: &'a str = "__ZONE_NAME", optional;
    }
}

header! {
    /// WIPE_WRITE_PERM_OF_BROKER (205) and ADD_WRITE_PERM_OF_BROKER (327).
    WritePermHeader {
        broker_name: &'a str = "brokerName", required;
    }
}

header! {
    /// DELETE_TOPIC_IN_NAMESRV (216).
    DeleteTopicInNamesrvHeader {
        topic: &'a str = "topic", required;
        cluster_name: &'a str = "clusterName", optional;
    }
}

header! {
    /// REGISTER_TOPIC_IN_NAMESRV (217).
    RegisterTopicHeader {
        topic: &'a str = "topic", required;
    }
}

header! {
    /// GET_TOPICS_BY_CLUSTER (224).
    TopicsByClusterHeader {
        cluster: &'a str = "cluster", required;
    }
}

header! {
    /// QUERY_DATA_VERSION (322).
    QueryDataVersionHeader {
        broker_name: &'a str = "brokerName", required;
        broker_addr: &'a str = "brokerAddr", required;
        cluster_name: &'a str = "clusterName", required;
        broker_id: i64 = "brokerId", required;
    }
}

header! {
    /// GET_BROKER_MEMBER_GROUP (901).
    BrokerMemberGroupHeader {
        cluster_name: &'a str = "clusterName", required;
        broker_name: &'a str = "brokerName", required;
    }
}

header! {
    /// BROKER_HEARTBEAT (904).
    BrokerHeartbeatHeader {
        cluster_name: &'a str = "clusterName", required;
        broker_addr: &'a str = "brokerAddr", required;
        broker_name: &'a str = "brokerName", required;
        broker_id: i64 = "brokerId", optional;
        epoch: i32 = "epoch", optional;
        max_offset: i64 = "maxOffset", optional;
        confirm_offset: i64 = "confirmOffset", optional;
        /// Spelled so on the wire.
        heartbeat_timeout_ms: i64 = "heartbeatTimeoutMills", optional;
        election_priority: i32 = "electionPriority", optional;
    }
}
