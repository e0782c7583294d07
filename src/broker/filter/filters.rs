//! The SQL92 subscriptions of every group.
//!
//! ```text
//! heartbeat ─ register ──> group → topic → expression, version, born, dead       consumerFilter.json, every 10 s
//! last member gone, topic given up ──> dead ── filterDataCleanTimeSpan ──> forgotten
//! pull with an expression of its own ──> compiled once, kept among the last ones
//! ```
//! A live filter gives way to a newer version only. A dead one gives way to any: Java keeps it while its version is the
//! larger (Go counts ns, Java ms), and filters by an expression that nobody has any more.
//! Source: ConsumerFilterManager.java, ConsumerFilterData.java.

use super::bloom::bits;
use super::{Expression, Fault};
use crate::broker::persist::{JsonFile, PersistError};
use ringmq_net::protocol::body::filter::{ConsumerFilterData, ConsumerFilterTable};
use ringmq_net::protocol::body::heartbeat::{EXPRESSION_SQL92, SubscriptionData};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Texts whose outcome is kept, right or wrong. As many as Java keeps.
const COMPILED_COUNT_MAX: usize = 100;
/// Of all expressions and names in the table.
const TABLE_BYTES_MAX: usize = 64 << 20;
/// What is loaded has been dead for so long, as far as anybody knows.
const LOADED_DEAD_MS: i64 = 30_000;

type Compiled = Result<Arc<Expression>, Fault>;

/// What a group wants of a topic.
#[derive(Clone, Debug)]
pub struct Registered {
    pub expression: Arc<Expression>,
    /// Of the subscription.
    pub version: i64,
    text: Arc<str>,
    born_ms: i64,
    dead_ms: i64,
}

impl Registered {
    fn is_dead(&self) -> bool {
        self.dead_ms >= self.born_ms
    }

    fn end(&mut self, now_ms: i64) {
        self.dead_ms = now_ms.max(self.born_ms);
    }

    fn data(&self, group: &str, topic: &str) -> ConsumerFilterData {
        ConsumerFilterData {
            bloom_filter_data: Some(bits(group, topic)),
            born_time: self.born_ms,
            client_version: self.version,
            consumer_group: group.to_string(),
            dead_time: self.dead_ms,
            expression: self.text.to_string(),
            expression_type: EXPRESSION_SQL92.to_string(),
            topic: topic.to_string(),
        }
    }
}

#[derive(Default)]
struct Table {
    groups: BTreeMap<String, BTreeMap<String, Registered>>,
    bytes: usize,
}

fn bytes_of(group: &str, topic: &str, text: &str) -> usize {
    // The names stand twice in the file, and the bits take their room.
    2 * (group.len() + topic.len()) + text.len() + 256
}

impl Table {
    fn insert(&mut self, group: &str, topic: &str, registered: Registered) {
        self.remove(group, topic);
        let bytes = bytes_of(group, topic, &registered.text);
        if self.bytes + bytes > TABLE_BYTES_MAX {
            tracing::warn!(group, topic, TABLE_BYTES_MAX, "filter not registered: the table is full");
            return;
        }
        self.bytes += bytes;
        self.groups.entry(group.to_string()).or_default().insert(topic.to_string(), registered);
    }

    fn remove(&mut self, group: &str, topic: &str) {
        let Some(topics) = self.groups.get_mut(group) else { return };
        let Some(removed) = topics.remove(topic) else { return };
        self.bytes -= bytes_of(group, topic, &removed.text);
        if topics.is_empty() {
            self.groups.remove(group);
        }
    }
}

pub struct Filters {
    table: RwLock<Table>,
    compiled: Mutex<HashMap<Box<str>, Compiled>>,
    clean_ms: AtomicU32,
    changed: AtomicBool,
    file: JsonFile,
}

impl Filters {
    /// `clean_ms`: a filter that is dead for longer is forgotten.
    ///
    /// # Errors
    /// A file and its backup that cannot be used.
    pub fn open(config_dir: &Path, clean_ms: u32, now_ms: u64) -> Result<Filters, PersistError> {
        let file = JsonFile::new(config_dir, "consumerFilter.json");
        let loaded = file.load_table("filterDataByTopic", ConsumerFilterTable::from_json)?.unwrap_or_default();
        let mut table = Table::default();
        for (topic, filters) in loaded.filter_data_by_topic {
            for (group, data) in filters.group_filter_data {
                let expression = match Expression::compile(&data.expression) {
                    Ok(expression) if data.expression_type == EXPRESSION_SQL92 => Arc::new(expression),
                    Ok(_) => continue,
                    Err(fault) => {
                        tracing::warn!(topic, group, expression = data.expression, %fault, "filter not loaded");
                        continue;
                    }
                };
                let mut registered = Registered {
                    expression,
                    version: data.client_version,
                    text: data.expression.into(),
                    born_ms: data.born_time,
                    dead_ms: data.dead_time,
                };
                if !registered.is_dead() {
                    registered.end(now_ms as i64 - LOADED_DEAD_MS);
                }
                table.insert(&group, &topic, registered);
            }
        }
        Ok(Filters {
            table: RwLock::new(table),
            compiled: Mutex::default(),
            clean_ms: AtomicU32::new(clean_ms),
            changed: AtomicBool::new(false),
            file,
        })
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// # Errors
    /// What is wrong with the text.
    pub fn compile(&self, text: &str) -> Compiled {
        let known = || self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known().get(text) {
            return known.clone();
        }
        let outcome = Expression::compile(text).map(Arc::new);
        if text.len() <= super::EXPRESSION_BYTES_MAX {
            let mut known = known();
            if known.len() >= COMPILED_COUNT_MAX {
                known.clear();
            }
            known.insert(text.into(), outcome.clone());
        }
        outcome
    }

    /// A heartbeat names all topics of its group. Of a text that is no expression nothing is kept.
    pub fn register(&self, group: &str, subscriptions: &[SubscriptionData], now_ms: u64) {
        let now_ms = now_ms as i64;
        let is_sql = |data: &&SubscriptionData| data.expression_type == EXPRESSION_SQL92;
        let gives_way =
            |known: &Registered, data: &SubscriptionData| known.is_dead() || data.sub_version > known.version;
        let is_left =
            |topic: &str, known: &Registered| !known.is_dead() && !subscriptions.iter().any(|data| data.topic == topic);
        // Most heartbeats say what the one before them said: those take no lock from pulls.
        let (new, has_left) = {
            let table = self.read();
            let topics = table.groups.get(group);
            let is_new = |data: &&SubscriptionData| {
                topics.and_then(|topics| topics.get(&data.topic)).is_none_or(|known| gives_way(known, data))
            };
            let new: Vec<&SubscriptionData> = subscriptions.iter().filter(is_sql).filter(is_new).collect();
            (new, topics.is_some_and(|topics| topics.iter().any(|(topic, known)| is_left(topic, known))))
        };
        let new: Vec<_> = new.into_iter().map(|data| (data, self.compile(&data.sub_string))).collect();
        if new.is_empty() && !has_left {
            return;
        }
        let mut table = self.write();
        for (data, compiled) in new {
            let known = table.groups.get_mut(group).and_then(|topics| topics.get_mut(&data.topic));
            match (known, compiled) {
                (Some(known), _) if !gives_way(known, data) => continue,
                (Some(known), Ok(_)) if *known.text == *data.sub_string => {
                    known.version = data.sub_version;
                    known.dead_ms = 0;
                }
                (_, Ok(expression)) => {
                    let (text, version) = (data.sub_string.as_str().into(), data.sub_version);
                    let registered = Registered { expression, version, text, born_ms: now_ms, dead_ms: 0 };
                    table.insert(group, &data.topic, registered);
                }
                (known, Err(fault)) => {
                    if known.is_none() {
                        continue;
                    }
                    tracing::info!(group, topic = data.topic, %fault, "a heartbeat's filter is no expression");
                    table.remove(group, &data.topic);
                }
            }
            self.changed.store(true, Ordering::Release);
        }
        for (topic, known) in table.groups.get_mut(group).into_iter().flatten() {
            if is_left(topic, known) {
                known.end(now_ms);
                self.changed.store(true, Ordering::Release);
            }
        }
    }

    /// The group has no members any more.
    pub fn unregister(&self, group: &str, now_ms: u64) {
        if !self.read().groups.contains_key(group) {
            return;
        }
        for known in self.write().groups.get_mut(group).into_iter().flat_map(BTreeMap::values_mut) {
            if !known.is_dead() {
                known.end(now_ms as i64);
                self.changed.store(true, Ordering::Release);
            }
        }
    }

    pub fn get(&self, topic: &str, group: &str) -> Option<Registered> {
        self.read().groups.get(group)?.get(topic).cloned()
    }

    /// As the file has it, for QUERY_CONSUME_QUEUE.
    pub fn data(&self, topic: &str, group: &str) -> Option<ConsumerFilterData> {
        self.get(topic, group).map(|registered| registered.data(group, topic))
    }

    fn to_json(&self) -> Vec<u8> {
        let mut file = ConsumerFilterTable::default();
        for (group, topics) in &self.read().groups {
            for (topic, registered) in topics {
                let filters = file.filter_data_by_topic.entry(topic.clone()).or_default();
                filters.topic.clone_from(topic);
                filters.group_filter_data.insert(group.clone(), registered.data(group, topic));
            }
        }
        file.to_json()
    }

    /// `filterDataCleanTimeSpan` as it is now.
    pub fn set_clean_ms(&self, clean_ms: u32) {
        self.clean_ms.store(clean_ms, Ordering::Relaxed);
    }

    /// Forgets what is dead for too long, and writes the file if anything changed since the last time.
    ///
    /// # Errors
    /// What the disk answers; the next call tries again.
    pub fn flush(&self, now_ms: u64) -> Result<(), PersistError> {
        let clean_ms = i64::from(self.clean_ms.load(Ordering::Relaxed));
        let is_old = |known: &Registered| known.is_dead() && now_ms as i64 - known.dead_ms >= clean_ms;
        let is_any_old = self.read().groups.values().flat_map(BTreeMap::values).any(is_old);
        if is_any_old {
            let mut table = self.write();
            let all = table.groups.iter().flat_map(|(group, topics)| topics.iter().map(move |topic| (group, topic)));
            let old = all.filter(|(_, (_, known))| is_old(known));
            let old: Vec<_> = old.map(|(group, (topic, _))| (group.clone(), topic.clone())).collect();
            for (group, topic) in old {
                tracing::info!(group, topic, "a filter is forgotten: nobody has used it for filterDataCleanTimeSpan");
                table.remove(&group, &topic);
            }
            self.changed.store(true, Ordering::Release);
        }
        if !self.changed.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        self.file.store(&self.to_json()).inspect_err(|_| self.changed.store(true, Ordering::Release))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: u32 = 86_400_000;

    fn sql(topic: &str, text: &str, sub_version: i64) -> SubscriptionData {
        let expression_type = EXPRESSION_SQL92.to_string();
        let (topic, sub_string) = (topic.to_string(), text.to_string());
        SubscriptionData { topic, sub_string, expression_type, sub_version, ..SubscriptionData::default() }
    }

    fn seen(filters: &Filters, topic: &str) -> Option<(String, i64, bool)> {
        filters.get(topic, "g").map(|known| (known.text.to_string(), known.version, known.is_dead()))
    }

    #[test]
    fn versions_and_lives() {
        let dir = tempfile::tempdir().unwrap();
        let filters = Filters::open(dir.path(), DAY_MS, 1_000).unwrap();
        let want = |text: &str, version, is_dead| Some((text.to_string(), version, is_dead));
        // what happens, what is known of T afterwards
        type Step<'a> = (Option<&'a [SubscriptionData]>, Option<(String, i64, bool)>);
        let steps: &[Step<'_>] = &[
            (Some(&[sql("T", "a > 1", 5)]), want("a > 1", 5, false)),
            (Some(&[sql("T", "a > 2", 4)]), want("a > 1", 5, false)),
            (Some(&[sql("T", "a > 2", 5)]), want("a > 1", 5, false)),
            (Some(&[sql("T", "a > 2", 6)]), want("a > 2", 6, false)),
            (Some(&[sql("T", "a > 2", 7), sql("U", "b = 1", 7)]), want("a > 2", 7, false)),
            (Some(&[sql("U", "b = 1", 7)]), want("a > 2", 7, true)),
            (Some(&[sql("T", "a > 2", 7)]), want("a > 2", 7, false)),
            (None, want("a > 2", 7, true)),
            // A dead one outranks nobody.
            (Some(&[sql("T", "a > 3", 1)]), want("a > 3", 1, false)),
            (None, want("a > 3", 1, true)),
            (Some(&[sql("T", "a > 3", 1)]), want("a > 3", 1, false)),
            // What is no expression ends the one before it.
            (Some(&[sql("T", "a >", 9)]), None),
            (Some(&[sql("T", "", 9)]), None),
            (Some(&[SubscriptionData { expression_type: "XYZ".into(), ..sql("T", "a > 1", 10) }]), None),
            (Some(&[sql("T", "a > 4", 11)]), want("a > 4", 11, false)),
            (Some(&[SubscriptionData::build_tag("T", "A").unwrap()]), want("a > 4", 11, false)),
        ];
        for (index, (subscriptions, want)) in steps.iter().enumerate() {
            match subscriptions {
                Some(subscriptions) => filters.register("g", subscriptions, 2_000),
                None => filters.unregister("g", 3_000),
            }
            assert_eq!(seen(&filters, "T"), *want, "step {index}");
        }
        filters.unregister("stranger", 1);
        filters.register("stranger", &[SubscriptionData::build_tag("T", "A").unwrap()], 1);
        assert!(filters.get("T", "stranger").is_none());
    }

    #[test]
    fn the_file_has_java_s_shape_and_forgets_the_dead() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("consumerFilter.json");
        let filters = Filters::open(dir.path(), DAY_MS, 1_000).unwrap();
        filters.flush(1_000).unwrap();
        assert!(!path.exists(), "nothing to keep");
        filters.register("g", &[sql("t", "a > 1", 5)], 50_000);
        filters.register("h", &[sql("t", "a IN ('x''y')", 6)], 50_000);
        filters.unregister("h", 60_000);
        filters.flush(60_000).unwrap();
        let written: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let want = serde_json::json!({"filterDataByTopic": {"t": {"topic": "t", "groupFilterData": {
            "g": {
                "bloomFilterData": {"bitNum": 112, "bitPos": [22, 87, 58]}, "bornTime": 50_000, "clientVersion": 5,
                "consumerGroup": "g", "deadTime": 0, "expression": "a > 1", "expressionType": "SQL92", "topic": "t",
            },
            "h": {
                "bloomFilterData": {"bitNum": 112, "bitPos": bits("h", "t").bit_pos}, "bornTime": 50_000,
                "clientVersion": 6, "consumerGroup": "h", "deadTime": 60_000, "expression": "a IN ('x''y')",
                "expressionType": "SQL92", "topic": "t",
            },
        }}}});
        assert_eq!(written, want);
        // Loaded, nobody is online yet.
        let filters = Filters::open(dir.path(), DAY_MS, 100_000).unwrap();
        assert_eq!(filters.get("t", "g").unwrap().dead_ms, 70_000);
        assert_eq!(filters.get("t", "h").unwrap().dead_ms, 60_000);
        assert!(filters.get("t", "g").unwrap().expression.matches(b"a\x012"));
        filters.register("g", &[sql("t", "a > 1", 5)], 100_000);
        filters.flush(60_000 + u64::from(DAY_MS) - 1).unwrap();
        assert!(filters.get("t", "h").is_some());
        filters.flush(60_000 + u64::from(DAY_MS)).unwrap();
        assert!(filters.get("t", "h").is_none() && filters.get("t", "g").is_some());
        assert_eq!(filters.read().bytes, bytes_of("g", "t", "a > 1"));
        let left = Filters::open(dir.path(), DAY_MS, 100_000).unwrap();
        assert!(left.get("t", "h").is_none() && left.get("t", "g").is_some());
    }

    /// Written by ConsumerFilterManager.encode of 4.9.7; the third by hand.
    #[test]
    fn java_s_file_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let text = "{\n\t\"filterDataByTopic\":{\n\t\t\"topic\":{\n\t\t\t\"groupFilterData\":{\n\t\t\t\t\"group\":{\n\
            \t\t\t\t\t\"bloomFilterData\":{\n\t\t\t\t\t\t\"bitNum\":216,\n\t\t\t\t\t\t\"bitPos\":[15,5,157]\n\t\t\t\t\t},\n\
            \t\t\t\t\t\"bornTime\":1796070376543,\n\t\t\t\t\t\"clientVersion\":1234567890123,\n\
            \t\t\t\t\t\"consumerGroup\":\"group\",\n\t\t\t\t\t\"dead\":true,\n\t\t\t\t\t\"deadTime\":1796070377074,\n\
            \t\t\t\t\t\"expression\":\"a > 5 AND b = 'x'\",\n\t\t\t\t\t\"expressionType\":\"SQL92\",\n\
            \t\t\t\t\t\"topic\":\"topic\"\n\t\t\t\t},\n\
            \t\t\t\t\"wrong\":{\"expression\":\"a >\",\"expressionType\":\"SQL92\"}\n\
            \t\t\t},\n\t\t\t\"topic\":\"topic\"\n\t\t}\n\t}\n}";
        std::fs::write(dir.path().join("consumerFilter.json"), text).unwrap();
        let filters = Filters::open(dir.path(), DAY_MS, 1_796_070_400_000).unwrap();
        let known = filters.get("topic", "group").unwrap();
        assert_eq!((known.version, known.dead_ms), (1_234_567_890_123, 1_796_070_377_074));
        assert!(known.expression.matches(b"a\x016\x02b\x01x"));
        assert!(filters.get("topic", "wrong").is_none());
    }

    #[test]
    fn an_expression_is_compiled_once() {
        let dir = tempfile::tempdir().unwrap();
        let filters = Filters::open(dir.path(), DAY_MS, 0).unwrap();
        let first = filters.compile("a > 1").unwrap();
        assert!(Arc::ptr_eq(&first, &filters.compile("a > 1").unwrap()));
        assert_eq!(filters.compile("a >").unwrap_err(), filters.compile("a >").unwrap_err());
        for number in 0..300 {
            filters.compile(&format!("a > {number}")).unwrap();
            assert!(filters.compiled.lock().unwrap().len() <= COMPILED_COUNT_MAX);
        }
    }
}
