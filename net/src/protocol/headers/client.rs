//! Clients of this broker. A heartbeat (34) has a body and no fields.

use super::header;

header! {
    /// UNREGISTER_CLIENT (35).
    UnregisterClientHeader {
        client_id: &'a str = "clientID", or("");
        producer_group: &'a str = "producerGroup", optional;
        consumer_group: &'a str = "consumerGroup", optional;
    }
}

header! {
    /// GET_CONSUMER_LIST_BY_GROUP (38).
    ConsumerListHeader {
        consumer_group: &'a str = "consumerGroup", required;
    }
}
