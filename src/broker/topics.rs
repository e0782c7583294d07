//! Topics: what exists, how many queues, who may read and write.
//!
//! ```text
//! read     get: an Arc of one topic's configuration; shards keep copies and drop them when `generation` moves
//! change   table, generation, MetaDirty ──> topics.json ──> name servers ──> the answer
//! ```
//! Source: TopicConfigManager.java, TopicValidator.java, AdminBrokerProcessor.java (17, 215).

use super::persist::{JsonFile, MetaDirty, PersistError};
use super::{After, Answer, Broker, RETRY_PREFIX, Refusal, Request, check_topic_name, topic_missing};
use crate::config::BrokerConfig;
use ringmq_net::protocol::body::topic::{
    DataVersion, TopicConfig, TopicConfigList, TopicConfigSerializeWrapper, TopicFilterType, TopicList,
};
use ringmq_net::protocol::codes::response;
use ringmq_net::protocol::headers::admin::{CreateTopicHeader, GetTopicConfigHeader};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

pub const AUTO_CREATE_TEMPLATE: &str = "TBW102";
pub const PERM_READ: i32 = 4;
pub const PERM_WRITE: i32 = 2;
pub const PERM_INHERIT: i32 = 1;
const PERM_RW: i32 = PERM_READ | PERM_WRITE;
const UNIT: i32 = 1;
const UNIT_SUB: i32 = 2;
const TOPIC_COUNT_MAX: usize = 100_000;
/// Each queue is a folder and a file.
pub const QUEUE_COUNT_MAX: i32 = 32_767;

/// System topics whatever the configuration. Source: TopicValidator.SYSTEM_TOPIC_SET.
const SYSTEM: [&str; 9] = [
    AUTO_CREATE_TEMPLATE,
    "SCHEDULE_TOPIC_XXXX",
    "BenchmarkTest",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRACE_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
];
const SYSTEM_PREFIX: &str = "rmq_sys_";

struct State {
    table: BTreeMap<String, Arc<TopicConfig>>,
    version: DataVersion,
    /// Static topics of 5.x, kept as they came.
    mapping: BTreeMap<String, serde_json::Value>,
    /// Changed of late, with the version that makes it durable.
    fresh: BTreeMap<String, u64>,
    /// Deleted of late, with the version at which their queues are gone: until then none is made under that name.
    going: BTreeMap<String, u64>,
}

pub struct Topics {
    state: RwLock<State>,
    generation: AtomicU64,
    written: AtomicU64,
    /// Held while a topic is made or taken off the table.
    change: Mutex<()>,
    system: BTreeSet<String>,
    auto_create: AtomicBool,
    dirty: Arc<MetaDirty>,
    file: JsonFile,
}

fn topic(name: &str, queue_count: i32, perm: i32) -> TopicConfig {
    TopicConfig {
        topic_name: name.to_string(),
        read_queue_nums: queue_count,
        write_queue_nums: queue_count,
        perm,
        ..TopicConfig::default()
    }
}

fn template(config: &BrokerConfig) -> TopicConfig {
    topic(AUTO_CREATE_TEMPLATE, i32::from(config.topic_queue_count_default), PERM_RW | PERM_INHERIT)
}

fn built_in(config: &BrokerConfig) -> Vec<TopicConfig> {
    let own = |enabled: bool| PERM_INHERIT | if enabled { PERM_RW } else { 0 };
    let mut topics = vec![
        topic("SELF_TEST_TOPIC", 1, PERM_RW),
        topic("BenchmarkTest", 1024, PERM_RW),
        topic(&config.cluster_name, 16, own(config.cluster_topic_enable)),
        topic(&config.broker_name, 1, own(config.broker_topic_enable)),
        topic("OFFSET_MOVED_EVENT", 1, PERM_RW),
        topic("SCHEDULE_TOPIC_XXXX", 18, PERM_RW),
        topic(&format!("{}_REPLY_TOPIC", config.cluster_name), 1, PERM_RW),
    ];
    if config.topic_auto_create {
        topics.push(template(config));
    }
    if config.trace_topic_enable {
        topics.push(topic(&config.trace_topic_name, 1, PERM_RW));
    }
    topics
}

/// The names in topics.json and those that are always there, `None` when it is not there or not whole.
pub fn on_disk(config: &BrokerConfig) -> Option<BTreeSet<String>> {
    let file = JsonFile::new(&config.store_path_root.join("config"), "topics.json");
    let loaded = file.read_table("topicConfigTable", wrapper_of)?;
    let names = loaded.topic_config_table.into_keys().chain(SYSTEM.iter().map(|name| name.to_string()));
    Some(names.chain(built_in(config).into_iter().map(|topic| topic.topic_name)).collect())
}

/// The table in a file. An entry that does not stand under its own name is damage: a topic would be gone and another
/// be in its place.
fn wrapper_of(bytes: &[u8]) -> Result<TopicConfigSerializeWrapper, String> {
    let wrapper = TopicConfigSerializeWrapper::from_json(bytes).map_err(|error| error.to_string())?;
    match wrapper.topic_config_table.iter().find(|(key, topic)| **key != topic.topic_name) {
        Some((key, topic)) => Err(format!("under {key:?} is the topicName {:?}", topic.topic_name)),
        None => Ok(wrapper),
    }
}

impl Topics {
    pub fn open(
        config_dir: &Path,
        config: &BrokerConfig,
        dirty: Arc<MetaDirty>,
        now_ms: u64,
    ) -> Result<Topics, PersistError> {
        let file = JsonFile::new(config_dir, "topics.json");
        let loaded = file.load_table("topicConfigTable", wrapper_of)?;
        let built_in = built_in(config);
        let mut system: BTreeSet<String> = SYSTEM.iter().map(|name| name.to_string()).collect();
        system.extend(built_in.iter().map(|topic| topic.topic_name.clone()));
        let mut state = State {
            table: BTreeMap::new(),
            version: DataVersion { timestamp: now_ms as i64, ..DataVersion::default() },
            mapping: BTreeMap::new(),
            fresh: BTreeMap::new(),
            going: BTreeMap::new(),
        };
        for topic in built_in {
            state.table.insert(topic.topic_name.clone(), Arc::new(topic));
        }
        if let Some(loaded) = loaded {
            state.version = loaded.data_version;
            state.mapping = loaded.topic_queue_mapping_info_map;
            for (name, topic) in loaded.topic_config_table {
                state.table.insert(name, Arc::new(topic));
            }
        }
        Ok(Topics {
            state: RwLock::new(state),
            generation: AtomicU64::new(1),
            written: AtomicU64::new(1),
            change: Mutex::new(()),
            system,
            auto_create: AtomicBool::new(config.topic_auto_create),
            dirty,
            file,
        })
    }

    pub fn get(&self, name: &str) -> Option<Arc<TopicConfig>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).table.get(name).cloned()
    }

    /// The topic, and the version that makes it durable if it is not yet: whoever uses it before waits like its maker.
    pub fn get_with_version(&self, name: &str) -> Option<(Arc<TopicConfig>, Option<u64>)> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let topic = state.table.get(name)?;
        let version = state.fresh.get(name).copied().filter(|version| *version > self.dirty.durable());
        Some((Arc::clone(topic), version))
    }

    /// The version at which the queues of a topic that was deleted are gone, if they are not yet.
    pub fn going(&self, name: &str) -> Option<u64> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        state.going.get(name).copied().filter(|version| *version > self.dirty.durable())
    }

    /// Takes the topic off the table. `announce` tells who removes its queues, before that is waited for.
    pub(super) fn remove(&self, name: &str, now_ms: u64, announce: impl FnOnce()) {
        let _change = self.change();
        self.remove_now(name, now_ms, announce);
    }

    /// The same for one that is not on the table; nothing if it is.
    pub(super) fn remove_unknown(&self, name: &str, now_ms: u64, announce: impl FnOnce()) {
        let _change = self.change();
        if self.get(name).is_none() {
            self.remove_now(name, now_ms, announce);
        }
    }

    fn remove_now(&self, name: &str, now_ms: u64, announce: impl FnOnce()) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.table.remove(name);
        self.changed(&mut state, now_ms);
        announce();
        let version = self.dirty.touch();
        let durable = self.dirty.durable();
        state.going.retain(|_, version| *version > durable);
        state.going.insert(name.to_string(), version);
    }

    /// Something that a queue belongs to has changed, not the table.
    pub(super) fn queues_moved(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Moves with every change, after it.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub fn is_system(&self, name: &str) -> bool {
        self.system.contains(name) || name.starts_with(SYSTEM_PREFIX)
    }

    pub fn names(&self) -> BTreeSet<String> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).table.keys().cloned().collect()
    }

    /// As registered and kept.
    pub fn wrapper(&self) -> TopicConfigSerializeWrapper {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        TopicConfigSerializeWrapper {
            data_version: state.version,
            topic_config_table: state
                .table
                .iter()
                .map(|(name, topic)| (name.clone(), TopicConfig::clone(topic)))
                .collect(),
            topic_queue_mapping_info_map: state.mapping.clone(),
        }
    }

    pub fn data_version(&self) -> DataVersion {
        self.state.read().unwrap_or_else(PoisonError::into_inner).version
    }

    pub fn to_json(&self) -> Vec<u8> {
        self.wrapper().to_json()
    }

    pub fn system_list(&self) -> TopicList {
        TopicList { broker_addr: None, topic_list: self.system.clone() }
    }

    /// Writes the file if anything changed since the last time.
    pub fn flush(&self) -> Result<(), PersistError> {
        let generation = self.generation();
        if generation == self.written.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.file.store(&self.to_json())?;
        self.written.store(generation, Ordering::SeqCst);
        Ok(())
    }

    fn change(&self) -> MutexGuard<'_, ()> {
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the version that makes it durable.
    fn put(&self, topic: Arc<TopicConfig>, now_ms: u64) -> u64 {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let name = topic.topic_name.clone();
        state.table.insert(name.clone(), topic);
        self.changed(&mut state, now_ms);
        // In the lock: who finds the topic finds the version too.
        let version = self.dirty.touch();
        let durable = self.dirty.durable();
        state.fresh.retain(|_, version| *version > durable);
        state.fresh.insert(name, version);
        version
    }

    /// What name servers are told beside the table has changed: they shall ask again. Returns the version that they are
    /// told.
    pub fn move_version(&self, now_ms: u64) -> u64 {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        self.changed(&mut state, now_ms);
        drop(state);
        self.dirty.touch()
    }

    fn changed(&self, state: &mut State, now_ms: u64) {
        state.version.counter += 1;
        state.version.timestamp = now_ms as i64;
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// `autoCreateTopicEnable` as it is now. The template may be missing where it was off at the start.
    pub(super) fn set_auto_create(&self, config: &BrokerConfig, now_ms: u64) {
        let before = self.auto_create.swap(config.topic_auto_create, Ordering::Relaxed);
        if config.topic_auto_create && !before {
            let _change = self.change();
            if self.get(AUTO_CREATE_TEMPLATE).is_none() {
                self.put(Arc::new(template(config)), now_ms);
            }
        }
    }

    fn has_room(&self, count: usize) -> bool {
        self.state.read().unwrap_or_else(PoisonError::into_inner).table.len() + count <= TOPIC_COUNT_MAX
    }

    /// The topic of a send: made from its template where that exists and may be inherited. With it the version that
    /// makes it durable, if it is not yet. `None` where it may not be made.
    pub fn get_or_inherit(
        &self,
        name: &str,
        template: &str,
        queue_count: i32,
        unit_mode: bool,
        now_ms: u64,
    ) -> Option<(Arc<TopicConfig>, Option<u64>)> {
        if let Some(known) = self.get_with_version(name) {
            return Some(known);
        }
        let _change = self.change();
        if let Some(known) = self.get_with_version(name) {
            return Some(known);
        }
        if self.going(name).is_some() {
            return None;
        }
        let template = self.get(template).filter(|template| template.perm & PERM_INHERIT != 0).filter(|template| {
            self.auto_create.load(Ordering::Relaxed) || template.topic_name != AUTO_CREATE_TEMPLATE
        })?;
        if !self.has_room(1) {
            tracing::warn!(topic = name, TOPIC_COUNT_MAX, "topic not created: the table is full");
            return None;
        }
        let is_retry = name.starts_with(RETRY_PREFIX);
        let mut made = topic(name, queue_count.min(template.write_queue_nums).max(0), template.perm & !PERM_INHERIT);
        made.topic_filter_type = template.topic_filter_type;
        made.topic_sys_flag = unit_flag(unit_mode, is_retry);
        let made = Arc::new(made);
        let version = self.put(Arc::clone(&made), now_ms);
        tracing::info!(topic = name, queues = made.write_queue_nums, template = template.topic_name, "topic created");
        Some((made, Some(version)))
    }

    /// A retry or dead letter topic: needs no template.
    pub fn get_or_create(
        &self,
        name: &str,
        queue_count: i32,
        unit_mode: bool,
        now_ms: u64,
    ) -> Option<(Arc<TopicConfig>, Option<u64>)> {
        if let Some(known) = self.get_with_version(name) {
            return Some(known);
        }
        let _change = self.change();
        if let Some(known) = self.get_with_version(name) {
            return Some(known);
        }
        if !self.has_room(1) || check_topic_name(name).is_err() || self.going(name).is_some() {
            return None;
        }
        let mut made = topic(name, queue_count.clamp(0, QUEUE_COUNT_MAX), PERM_RW);
        made.topic_sys_flag = unit_flag(unit_mode, name.starts_with(RETRY_PREFIX));
        let made = Arc::new(made);
        let version = self.put(Arc::clone(&made), now_ms);
        Some((made, Some(version)))
    }

    /// The name servers' order configuration: those topics are ordered, the others are not. Returns the version if
    /// anything changed.
    pub fn set_ordered(&self, ordered: &BTreeMap<String, String>, now_ms: u64) -> Option<u64> {
        let _change = self.change();
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let wrong: Vec<Arc<TopicConfig>> = state
            .table
            .values()
            .filter(|topic| topic.order != ordered.contains_key(&topic.topic_name))
            .cloned()
            .collect();
        if wrong.is_empty() {
            return None;
        }
        for topic in wrong {
            let changed = TopicConfig { order: !topic.order, ..TopicConfig::clone(&topic) };
            state.table.insert(changed.topic_name.clone(), Arc::new(changed));
        }
        self.changed(&mut state, now_ms);
        drop(state);
        Some(self.dirty.touch())
    }
}

fn unit_flag(unit_mode: bool, is_retry: bool) -> i32 {
    match (unit_mode, is_retry) {
        (false, _) => 0,
        (true, false) => UNIT,
        (true, true) => UNIT_SUB,
    }
}

pub(super) fn check_not_system(broker: &Broker, topic: &str) -> Result<(), Refusal> {
    if broker.topics.is_system(topic) {
        return Err(Refusal::invalid(format!("The topic[{topic}] is conflict with system topic.")));
    }
    Ok(())
}

/// `+key=value` sets, `-key` deletes. Only values whose behaviour is the one this broker has are accepted.
fn changed_attributes(
    before: Option<&BTreeMap<String, String>>,
    changes: &str,
) -> Result<Option<BTreeMap<String, String>>, Refusal> {
    let mut attributes = before.cloned().unwrap_or_default();
    for change in changes.split(',').map(str::trim).filter(|change| !change.is_empty()) {
        if let Some(key) = change.strip_prefix('-') {
            attributes.remove(key);
            continue;
        }
        let pair = change.strip_prefix('+').and_then(|pair| pair.split_once('='));
        let Some((key, value)) = pair else {
            return Err(Refusal::invalid(format!("attribute change '{change}': wanted is +key=value or -key")));
        };
        let allowed: &[&str] = match key {
            "message.type" => &["NORMAL", "UNSPECIFIED"],
            "queue.type" => &["SimpleCQ"],
            "cleanup.policy" => &["DELETE"],
            _ => &[],
        };
        if !allowed.contains(&value) {
            return Err(Refusal::invalid(format!("attribute {key}={value} is not supported by this broker")));
        }
        attributes.insert(key.to_string(), value.to_string());
    }
    Ok((!attributes.is_empty()).then_some(attributes))
}

/// UPDATE_AND_CREATE_TOPIC (17). Answered when the name servers know.
pub fn create(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = CreateTopicHeader::parse(&request.command.ext)?;
    check_topic_name(header.topic)?;
    check_not_system(broker, header.topic)?;
    let filter_type = TopicFilterType::from_name(header.topic_filter_type).ok_or_else(|| {
        Refusal::invalid(format!("topicFilterType '{}' is neither SINGLE_TAG nor MULTI_TAG", header.topic_filter_type))
    })?;
    let wanted = TopicConfig {
        attributes: None,
        order: header.order,
        perm: header.perm,
        read_queue_nums: header.read_queue_nums,
        topic_filter_type: filter_type,
        topic_name: header.topic.to_string(),
        topic_sys_flag: header.topic_sys_flag,
        write_queue_nums: header.write_queue_nums,
    };
    change(broker, vec![(wanted, header.attributes.unwrap_or("").to_string())], request.now.wall_ms)
}

/// UPDATE_AND_CREATE_TOPIC_LIST (18): all of them or none. The attributes of each are changes, `+key` or `-key`.
pub fn create_all(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let list = TopicConfigList::from_json(request.command.body)
        .map_err(|error| Refusal::invalid(format!("the body is no list of topics: {error}")))?;
    if list.topic_config_list.is_empty() {
        return Err(Refusal::invalid("topicConfigList is missing or empty"));
    }
    let mut wanted = Vec::with_capacity(list.topic_config_list.len());
    let mut names = BTreeSet::new();
    for mut topic in list.topic_config_list {
        if !names.insert(topic.topic_name.clone()) {
            return Err(Refusal::invalid(format!(
                "topic[{}] stands twice in the list",
                super::shown(&topic.topic_name)
            )));
        }
        check_topic_name(&topic.topic_name)?;
        check_not_system(broker, &topic.topic_name)?;
        let changes = topic.attributes.take().unwrap_or_default();
        let change = |(key, value): (&String, &String)| match key.starts_with('-') {
            true => key.clone(),
            false => format!("{key}={value}"),
        };
        let changes: Vec<String> = changes.iter().map(change).collect();
        wanted.push((topic, changes.join(",")));
    }
    change(broker, wanted, request.now.wall_ms)
}

/// Topics as they are wanted, each with the changes of its attributes: all of them or none.
fn change(broker: &Broker, wanted: Vec<(TopicConfig, String)>, now_ms: u64) -> Result<Answer, Refusal> {
    let _change = broker.topics.change();
    let mut changed = Vec::new();
    let mut new_count = 0;
    for (mut topic, attributes) in wanted {
        let name = &topic.topic_name;
        for (field, count) in [("readQueueNums", topic.read_queue_nums), ("writeQueueNums", topic.write_queue_nums)] {
            if !(0..=QUEUE_COUNT_MAX).contains(&count) {
                return Err(Refusal::invalid(format!("{field} {count} is not between 0 and {QUEUE_COUNT_MAX}")));
            }
        }
        if !(0..=15).contains(&topic.perm) {
            return Err(Refusal::invalid(format!("perm {} is not between 0 and 15", topic.perm)));
        }
        let before = broker.topics.get(name);
        new_count += usize::from(before.is_none());
        let before_attributes = before.as_ref().and_then(|topic| topic.attributes.as_ref());
        topic.attributes = changed_attributes(before_attributes, &attributes)?;
        if before.is_some_and(|before| *before == topic) {
            continue;
        }
        if broker.topics.going(&topic.topic_name).is_some() {
            let remark =
                format!("topic[{}] is being deleted, its queues are not gone yet: try again", topic.topic_name);
            return Err(Refusal::new(response::SYSTEM_ERROR, remark));
        }
        changed.push(topic);
    }
    if new_count > 0 && !broker.topics.has_room(new_count) {
        let remark = format!("this broker cannot have more than {TOPIC_COUNT_MAX} topics, its limit");
        return Err(Refusal::new(response::SYSTEM_ERROR, remark));
    }
    let mut version = broker.dirty.changed();
    for topic in changed {
        version = version.max(broker.topics.put(Arc::new(topic), now_ms));
    }
    Ok(Answer::after(After::Registered(version)))
}

/// GET_TOPIC_CONFIG (351).
pub fn config(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = GetTopicConfigHeader::parse(&request.command.ext)?;
    let topic = broker.topics.get(header.topic).ok_or_else(|| topic_missing(header.topic))?;
    Ok(Answer::body(topic.to_json()))
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;

    #[test]
    fn a_topic_is_made_from_what_may_be_inherited() {
        let dir = tempfile::tempdir().unwrap();
        let broker = testing::broker(dir.path(), &[("brokerName", "b")]);
        // name, template, queues asked, queues got
        for (name, template, asked, want) in [
            ("T4", AUTO_CREATE_TEMPLATE, 4, Some(4)),
            ("T8", AUTO_CREATE_TEMPLATE, 99, Some(8)),
            ("T0", AUTO_CREATE_TEMPLATE, -1, Some(0)),
            ("TC", "DefaultCluster", 99, Some(16)),
            ("TX", "T4", 4, None),
            ("TY", "nothing", 4, None),
        ] {
            let made = broker.topics.get_or_inherit(name, template, asked, false, 1);
            assert_eq!(made.as_ref().map(|(topic, _)| topic.write_queue_nums), want, "{name}");
            assert_eq!(made.map(|(topic, _)| topic.perm), want.map(|_| 6), "{name}");
        }
    }

    #[test]
    fn no_auto_creation_where_it_is_off() {
        let dir = tempfile::tempdir().unwrap();
        let broker = testing::broker(dir.path(), &[("autoCreateTopicEnable", "false")]);
        assert!(broker.topics.get_or_inherit("T", AUTO_CREATE_TEMPLATE, 4, false, 1).is_none());
        assert!(broker.topics.get_or_create("%RETRY%g", 1, false, 1).is_some());
    }

    #[test]
    fn topics_are_there_again() {
        let dir = tempfile::tempdir().unwrap();
        {
            let broker = testing::broker(dir.path(), &[]);
            broker.topics.get_or_inherit("T", AUTO_CREATE_TEMPLATE, 4, false, 1);
            broker.topics.flush().unwrap();
        }
        let broker = testing::broker(dir.path(), &[]);
        assert_eq!(broker.topics.get("T").unwrap().write_queue_nums, 4);
        assert_eq!(broker.topics.data_version().counter, 1);
        let mut ordered = BTreeMap::new();
        ordered.insert("T".to_string(), "b:4".to_string());
        assert!(broker.topics.set_ordered(&ordered, 2).is_some());
        assert!(broker.topics.set_ordered(&ordered, 3).is_none());
        assert!(broker.topics.get("T").unwrap().order);
    }

    #[test]
    fn an_entry_under_another_name_is_damage_and_the_backup_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("store/config");
        {
            let broker = testing::broker(dir.path(), &[]);
            broker.topics.get_or_inherit("Abc", AUTO_CREATE_TEMPLATE, 4, false, 1);
            broker.topics.flush().unwrap();
        }
        let whole = std::fs::read_to_string(config.join("topics.json")).unwrap();
        for (from, to) in [("\"Abc\":{", "\"Abb\":{"), ("\"topicName\":\"Abc\"", "\"topicName\":\"Acc\"")] {
            assert!(whole.contains(from), "{whole}");
            std::fs::write(config.join("topics.json"), whole.replace(from, to)).unwrap();
            assert_eq!(on_disk(&testing::config(dir.path(), &[])), None);
            let topics = testing::broker(dir.path(), &[]).topics.names();
            assert!(topics.iter().any(|name| name == "Abc") && !topics.iter().any(|name| name == "Abb"), "{topics:?}");
            assert_eq!(std::fs::read_to_string(config.join("topics.json")).unwrap(), whole);
        }
        assert!(wrapper_of(whole.replace("\"Abc\":{", "\"Abb\":{").as_bytes()).unwrap_err().contains("under \"Abb\""));
    }

    #[test]
    fn attributes_that_change_behaviour_are_refused() {
        // changes, accepted
        for (changes, want) in [
            ("", true),
            ("+message.type=NORMAL,+queue.type=SimpleCQ", true),
            ("-message.type", true),
            ("+message.type=FIFO", false),
            ("+queue.type=BatchCQ", false),
            ("message.type=NORMAL", false),
            ("+x", false),
        ] {
            assert_eq!(changed_attributes(None, changes).is_ok(), want, "{changes}");
        }
    }
}
