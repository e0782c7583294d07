//! `ringmq.retentionKeepUnconsumed`: what some group, or the delivery of delayed messages, still has to read.
//!
//! A group counts from its first commit for a topic on, with every queue of that topic: where it has no offset it has
//! consumed nothing. One that is never deleted (DELETE_SUBSCRIPTIONGROUP) keeps its messages for ever.

use super::Broker;
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
    use crate::broker::testing::broker;

    #[test]
    fn nobody_keeps_an_empty_store() {
        let dir = tempfile::tempdir().unwrap();
        let broker = broker(dir.path(), &[("ringmq.retentionKeepUnconsumed", "true")]);
        broker.offsets.commit("g", "t", 0, 7);
        assert_eq!(kept(&broker), None);
    }
}
