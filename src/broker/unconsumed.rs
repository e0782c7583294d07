//! `ringmq.retentionKeepUnconsumed`: what some group, or the delivery of delayed messages, still has to read.
//!
//! A group counts from its first commit for a topic on, with every queue of that topic: where it has no offset it has
//! consumed nothing. It counts while it is in the table of groups, where the first heartbeat, pull or commit puts it;
//! DELETE_SUBSCRIPTIONGROUP takes it off, and may leave its offsets. One that is never deleted keeps its messages for ever.

use super::{Broker, transaction};
use ringmq_storage::record::properties::SCHEDULE_TOPIC;
use ringmq_storage::retention::Kept;
use std::collections::{BTreeMap, HashMap};

/// The oldest message in the log that is not consumed.
pub fn kept(broker: &Broker) -> Option<Kept> {
    let store = &broker.store;
    let mut oldest: Option<Kept> = None;
    let mut see = |who: &str, topic: &str, queue_id: i32, offset: u64| {
        let Some(queue) = store.queue(topic, queue_id) else { return };
        let (offset, max) = (offset.max(queue.min()), queue.max());
        if offset >= max {
            return;
        }
        if let Some(from) = store.log_offset(&queue, offset)
            && oldest.as_ref().is_none_or(|oldest| from < oldest.from)
        {
            let who = format!("{who} is at {offset} of {max} in queue {queue_id} of topic {topic}");
            oldest = Some(Kept { from, who });
        }
    };
    let mut groups: HashMap<(String, String), BTreeMap<i32, i64>> = HashMap::new();
    broker.offsets.each(&mut |group, topic, queue_id, offset| {
        // The broker's own group is in no table, and what transactions still have to read is needed.
        if group != transaction::GROUP && broker.groups.get(group).is_none() {
            return;
        }
        groups.entry((group.to_string(), topic.to_string())).or_default().insert(queue_id, offset);
    });
    for ((group, topic), mut offsets) in groups {
        if let Some(config) = broker.topics.get(&topic) {
            let queue_count = config.read_queue_nums.max(config.write_queue_nums);
            (0..queue_count).for_each(|queue_id| _ = offsets.entry(queue_id).or_insert(0));
        }
        for (queue_id, offset) in offsets {
            see(&format!("group {group}"), &topic, queue_id, u64::try_from(offset).unwrap_or(0));
        }
    }
    for (level, cursor, _) in broker.schedule.progress(store) {
        see("the delivery of delayed messages", SCHEDULE_TOPIC, level as i32 - 1, cursor);
    }
    oldest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::again::Again;
    use crate::broker::testing::broker;
    use ringmq_storage::append::AppendBatch;

    fn one_message(broker: &Broker, topic: &str) {
        let host = ([127, 0, 0, 1], 10911).into();
        let message = Again {
            topic,
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 5,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_offset: 0,
            body: b"x",
            text: b"",
            delay_level: 0,
        };
        let mut batch = AppendBatch::default();
        message.push(broker, &mut batch).unwrap();
        assert_eq!(broker.store.append(&mut batch, 1_000).units_placed, 1);
    }

    #[test]
    fn nobody_keeps_an_empty_store() {
        let dir = tempfile::tempdir().unwrap();
        let broker = broker(dir.path(), &[("ringmq.retentionKeepUnconsumed", "true")]);
        broker.groups.get_or_create("g", 1).unwrap();
        broker.offsets.commit("g", "t", 0, 7);
        assert_eq!(kept(&broker), None);
    }

    #[test]
    fn a_group_counts_while_it_is_in_the_table_and_transactions_always() {
        let dir = tempfile::tempdir().unwrap();
        let broker = broker(dir.path(), &[("ringmq.retentionKeepUnconsumed", "true")]);
        one_message(&broker, "t");
        for (group, is_in_table, want) in [("g", false, false), ("g", true, true), (transaction::GROUP, false, true)] {
            if is_in_table {
                broker.groups.get_or_create(group, 1).unwrap();
            }
            broker.offsets.commit(group, "t", 0, 0);
            assert_eq!(kept(&broker).is_some(), want, "{group} {is_in_table}");
            broker.offsets.remove_group(group);
        }
    }
}
