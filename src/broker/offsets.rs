//! How far each group has consumed, and the bounds of queues.
//!
//! ```text
//! topic → group → queue id → the next offset to consume       consumerOffset.json  {"topic@group":{0:7}}
//! ```
//! Written every `flushConsumerOffsetInterval` and at stop; a kill loses what was committed since, so a message may come
//! twice, never not at all. A commit stores what it is given, lower values too.
//! Source: ConsumerOffsetManager.java, ConsumerManageProcessor.java, AdminBrokerProcessor.java.

use super::persist::{JsonFile, PersistError};
use super::{Answer, Broker, Refusal, Request, check_topic_name, topic_missing};
use ringmq_net::protocol::body::offsets::ConsumerOffsetTable;
use ringmq_net::protocol::codes::response;
use ringmq_net::protocol::headers::offset::{
    Boundary, EarliestStoreTimeHeader, MaxOffsetHeader, MinOffsetHeader, QueryOffsetHeader, SearchOffsetHeader,
    UpdateOffsetHeader,
};
use ringmq_storage::store::{Store, TimeBoundary};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Queue ids are small; a stranger's are not, and each costs a place in the table.
const QUEUE_ID_MAX: i32 = 65_535;

type Table = HashMap<String, HashMap<String, BTreeMap<i32, i64>>>;

pub struct Offsets {
    table: Mutex<Table>,
    changed: AtomicBool,
    /// Something was removed: the file follows before the removal is answered.
    urgent: AtomicBool,
    file: JsonFile,
}

/// The table in a file. A key without its `@` is damage: the group would begin anew without a word.
fn table_of(bytes: &[u8]) -> Result<Table, String> {
    let loaded = ConsumerOffsetTable::from_json(bytes).map_err(|error| error.to_string())?;
    let mut table = Table::new();
    for (key, queues) in loaded.offset_table {
        // A name has no `@`.
        let (topic, group) =
            key.split_once('@').ok_or_else(|| format!("the key {key:?} is not of the form topic@group"))?;
        table.entry(topic.to_string()).or_default().insert(group.to_string(), queues);
    }
    Ok(table)
}

impl Offsets {
    pub fn open(config_dir: &Path) -> Result<Offsets, PersistError> {
        let file = JsonFile::new(config_dir, "consumerOffset.json");
        let table = file.load_table("offsetTable", table_of)?.unwrap_or_default();
        Ok(Offsets { table: Mutex::new(table), changed: AtomicBool::new(false), urgent: AtomicBool::new(false), file })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn commit(&self, group: &str, topic: &str, queue_id: i32, offset: i64) {
        let mut table = self.table();
        let groups = match table.get_mut(topic) {
            Some(groups) => groups,
            None => table.entry(topic.to_string()).or_default(),
        };
        let queues = match groups.get_mut(group) {
            Some(queues) => queues,
            None => groups.entry(group.to_string()).or_default(),
        };
        if queues.insert(queue_id, offset) != Some(offset) {
            self.changed.store(true, Ordering::Release);
        }
    }

    pub fn get(&self, group: &str, topic: &str, queue_id: i32) -> Option<i64> {
        self.table().get(topic)?.get(group)?.get(&queue_id).copied()
    }

    /// `dest` has the offsets of `src` from now on; those that it had on other queues stay.
    pub fn clone_group(&self, topic: &str, src: &str, dest: &str) {
        let mut table = self.table();
        let Some(groups) = table.get_mut(topic) else { return };
        if let Some(offsets) = groups.get(src).cloned() {
            groups.entry(dest.to_string()).or_default().extend(offsets);
            self.changed.store(true, Ordering::Release);
        }
    }

    /// At start: a group that stands behind the end of a queue, which a power loss or damage has shortened, would pass over
    /// the messages that come in place of those that are gone. It goes on at the end. Java leaves it where it is. Returns a
    /// line for the log.
    pub fn keep_within(&self, store: &Store, is_topic: impl Fn(&str) -> bool) -> Option<String> {
        let mut moved = Vec::new();
        for (topic, groups) in self.table().iter_mut().filter(|(topic, _)| is_topic(topic)) {
            for (group, queues) in groups {
                for (queue_id, offset) in queues {
                    let max = store.queue(topic, *queue_id).map_or(0, |queue| queue.max() as i64);
                    if *offset > max {
                        moved.push(format!("{group} in queue {queue_id} of {topic}, {offset} to {max}"));
                        *offset = max;
                    }
                }
            }
        }
        moved.sort();
        let first = moved.first()?;
        self.changed.store(true, Ordering::Release);
        Some(format!(
            "WARNING: {} offsets of groups stood behind the end of their queues, whose last messages are gone, and now stand at \
             the end: {first}",
            moved.len()
        ))
    }

    /// Every offset of every group: group, topic, queue id, offset.
    pub fn each(&self, act: &mut dyn FnMut(&str, &str, i32, i64)) {
        for (topic, groups) in &*self.table() {
            for (group, queues) in groups {
                queues.iter().for_each(|(queue_id, offset)| act(group, topic, *queue_id, *offset));
            }
        }
    }

    pub fn groups_of(&self, topic: &str) -> BTreeSet<String> {
        self.table().get(topic).map(|groups| groups.keys().cloned().collect()).unwrap_or_default()
    }

    /// Of a group in a topic, by queue.
    pub fn queues_of(&self, group: &str, topic: &str) -> Vec<(i32, i64)> {
        let table = self.table();
        let queues = table.get(topic).and_then(|groups| groups.get(group));
        queues.into_iter().flatten().map(|(queue_id, offset)| (*queue_id, *offset)).collect()
    }

    pub fn topics_of(&self, group: &str) -> BTreeSet<String> {
        self.table().iter().filter(|(_, groups)| groups.contains_key(group)).map(|(topic, _)| topic.clone()).collect()
    }

    pub fn remove_topic(&self, topic: &str) {
        if self.table().remove(topic).is_some() {
            self.removed();
        }
    }

    pub fn remove_group(&self, group: &str) {
        let mut table = self.table();
        let before: usize = table.values().map(HashMap::len).sum();
        table.retain(|_, groups| {
            groups.remove(group);
            !groups.is_empty()
        });
        if table.values().map(HashMap::len).sum::<usize>() != before {
            self.removed();
        }
    }

    fn removed(&self) {
        self.changed.store(true, Ordering::Release);
        self.urgent.store(true, Ordering::Release);
    }

    pub fn to_json(&self) -> Vec<u8> {
        let table = self.table();
        let offset_table = table
            .iter()
            .flat_map(|(topic, groups)| {
                groups.iter().map(move |(group, queues)| (format!("{topic}@{group}"), queues.clone()))
            })
            .collect();
        ConsumerOffsetTable { data_version: None, offset_table }.to_json()
    }

    /// Something that must reach the file before it is answered.
    pub fn is_urgent(&self) -> bool {
        self.urgent.load(Ordering::Acquire)
    }

    /// Writes the file if anything changed.
    pub fn flush(&self) -> Result<(), PersistError> {
        self.urgent.store(false, Ordering::Release);
        if !self.changed.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        self.file.store(&self.to_json()).inspect_err(|_| self.removed())
    }
}

pub fn query(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = QueryOffsetHeader::parse(&request.command.ext)?;
    let (group, topic, queue_id) = (header.consumer_group, header.topic, header.queue_id);
    // A negative one, which any client can commit, is none.
    if let Some(offset) = broker.offsets.get(group, topic, queue_id).filter(|offset| *offset >= 0) {
        return Ok(Answer::field("offset", offset));
    }
    // A group that is new to a young queue starts at its first message, whatever the client would do by itself.
    let is_young = match broker.store.queue(topic, queue_id) {
        None => true,
        Some(queue) => {
            queue.min() == 0
                && (queue.max() == 0 || broker.store.is_in_memory(&queue, 0, broker.live.read_limits().in_memory_bytes))
        }
    };
    if is_young && header.set_zero_if_not_found != Some(false) {
        return Ok(Answer::field("offset", 0));
    }
    Err(Refusal::new(
        response::QUERY_NOT_FOUND,
        "Not found, there is no offset of this group for this queue, maybe this group consumer boot first",
    ))
}

pub fn update(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = UpdateOffsetHeader::parse(&request.command.ext)?;
    check_topic_name(header.topic)?;
    if !(0..=QUEUE_ID_MAX).contains(&header.queue_id) {
        return Err(Refusal::invalid(format!("queueId {} is not between 0 and {QUEUE_ID_MAX}", header.queue_id)));
    }
    if broker.topics.get(header.topic).is_none() {
        return Err(topic_missing(header.topic));
    }
    super::groups::require(broker, header.consumer_group, request)?;
    broker.offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset);
    Ok(Answer::empty())
}

pub fn search(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = SearchOffsetHeader::parse(&request.command.ext)?;
    let boundary = match header.boundary {
        Boundary::Lower => TimeBoundary::Lower,
        Boundary::Upper => TimeBoundary::Upper,
    };
    let offset = broker
        .store
        .queue(header.topic, header.queue_id)
        .map_or(0, |queue| broker.store.offset_by_time(&queue, header.timestamp, boundary));
    Ok(Answer::field("offset", offset))
}

pub fn max(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = MaxOffsetHeader::parse(&request.command.ext)?;
    Ok(Answer::field("offset", broker.store.queue(header.topic, header.queue_id).map_or(0, |queue| queue.max())))
}

pub fn min(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = MinOffsetHeader::parse(&request.command.ext)?;
    Ok(Answer::field("offset", broker.store.queue(header.topic, header.queue_id).map_or(0, |queue| queue.min())))
}

pub fn earliest_store_time(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = EarliestStoreTimeHeader::parse(&request.command.ext)?;
    let timestamp = broker
        .store
        .queue(header.topic, header.queue_id)
        .filter(|queue| queue.max() > queue.min())
        .map_or(-1, |queue| broker.store.store_time(&queue, queue.min()));
    Ok(Answer::field("timestamp", timestamp))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_none_is_damage_and_the_backup_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("consumerOffset.json");
        std::fs::write(&path, "{\"offsetTable\":{\"T@g\":{0:7},\"U`g\":{0:9}}}").unwrap();
        let refused = Offsets::open(dir.path()).err().unwrap().to_string();
        assert!(refused.contains("the key \"U`g\" is not of the form topic@group"), "{refused}");
        std::fs::write(dir.path().join("consumerOffset.json.bak"), "{\"offsetTable\":{\"T@g\":{0:7},\"U@g\":{0:9}}}")
            .unwrap();
        let offsets = Offsets::open(dir.path()).unwrap();
        assert_eq!((offsets.get("g", "T", 0), offsets.get("g", "U", 0)), (Some(7), Some(9)));
    }

    #[test]
    fn offsets_are_kept_in_javas_shape_and_go_with_topic_or_group() {
        let dir = tempfile::tempdir().unwrap();
        let offsets = Offsets::open(dir.path()).unwrap();
        for (group, topic, queue_id, offset) in [("g", "T", 0, 7), ("g", "T", 1, 9), ("h", "T", 0, 1), ("g", "U", 0, 2)]
        {
            offsets.commit(group, topic, queue_id, offset);
        }
        offsets.commit("g", "T", 1, 3);
        offsets.flush().unwrap();
        let text = std::fs::read_to_string(dir.path().join("consumerOffset.json")).unwrap();
        assert!(text.contains("\"T@g\":{0:7,1:3}"), "{text}");

        let offsets = Offsets::open(dir.path()).unwrap();
        assert_eq!(offsets.get("g", "T", 1), Some(3));
        assert_eq!(offsets.topics_of("g").len(), 2);
        offsets.remove_topic("T");
        assert!(offsets.is_urgent());
        assert_eq!((offsets.get("g", "T", 0), offsets.get("h", "T", 0)), (None, None));
        offsets.remove_group("g");
        offsets.flush().unwrap();
        assert!(!offsets.is_urgent());
        assert_eq!(Offsets::open(dir.path()).unwrap().get("g", "U", 0), None);
    }
}
