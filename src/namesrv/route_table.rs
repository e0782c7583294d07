//! Who is where: clusters, broker names, addresses, topics and their queues, as brokers registered them.
//!
//! ```text
//! clusters   cluster     → broker names
//! groups     broker name → cluster, {id → address}, flags, its topics
//! topics     topic       → broker name → queues;  the answer of 105, encoded once
//! ```
//!
//! Every queue entry belongs to a group that has an address: a route never names a broker without queues or queues
//! without a broker. One owner, no clock, no I/O; nothing here outlives the process (brokers register again).
//! The encoded answers are good for one `epoch`: every change that a route could show moves it, and clients, which ask
//! for the same few routes every 30 s, get the same bytes until then.
//! Source: RouteInfoManager.java (4.9.7, 5.3.3).

use ringmq_net::protocol::body::cluster::{BrokerMemberGroup, BrokerMemberGroupBody, ClusterInfo};
use ringmq_net::protocol::body::route::{BrokerData, QueueData, TopicRouteData};
use ringmq_net::protocol::body::topic::{TopicConfig, TopicConfigSerializeWrapper, TopicList};
use ringmq_net::protocol::fastjson;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

pub const MASTER_ID: i64 = 0;
pub const TOPIC_COUNT_MAX: usize = 1_000_000;

const PERM_WRITE: i32 = 2;
const PERM_READ_WRITE: i32 = 6;
const SYS_FLAG_UNIT: i32 = 1;
const SYS_FLAG_UNIT_SUB: i32 = 2;
/// These topics are for the members of one broker name: no slave stands in for the master there.
const SYNC_MEMBER_PREFIX: &str = "rmq_sys_SYNC_BROKER_MEMBER_";

#[derive(Debug)]
struct Group {
    name: Arc<str>,
    cluster: Arc<str>,
    addrs: BTreeMap<i64, Arc<str>>,
    acting_master_enable: bool,
    zone: Option<Box<str>>,
    topics: HashSet<Arc<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Queues {
    read: i32,
    write: i32,
    perm: i32,
    sys_flag: i32,
}

#[derive(Debug, Default)]
struct Topic {
    queues: BTreeMap<Arc<str>, Queues>,
    /// Static topics of 5.x brokers: broker name to TopicQueueMappingInfo, passed through.
    mappings: BTreeMap<Arc<str>, serde_json::Value>,
    encoded: Option<(u64, Box<[u8]>)>,
}

/// What a registration says about its broker, its topics aside.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    pub cluster: &'a str,
    pub broker_name: &'a str,
    pub broker_addr: &'a str,
    pub broker_id: i64,
    /// `None`: an old broker, which knows nothing of acting masters.
    pub acting_master_enable: Option<bool>,
    pub zone: Option<&'a str>,
}

/// What came of [`RouteTable::join`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The id was not known before.
    pub first: bool,
    /// Its topics count: it is the master, or the smallest id of a group that lets slaves stand in.
    pub gives_topics: bool,
    /// It stands in for the master: nobody may write through it.
    pub read_only: bool,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RouteError {
    #[error("the name server would hold {count} topics, the limit is {TOPIC_COUNT_MAX}")]
    TooManyTopics { count: usize },
    #[error("broker {0} is not registered")]
    UnknownBroker(String),
}

#[derive(Clone, Copy, Debug)]
pub enum WritePerm {
    Wipe,
    Add,
}

#[derive(Clone, Copy, Debug)]
pub enum UnitList {
    Unit,
    HasUnitSub,
    HasUnitSubUnUnit,
}

#[derive(Debug, Default)]
pub struct RouteTable {
    clusters: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    groups: HashMap<Arc<str>, Group>,
    topics: HashMap<Arc<str>, Topic>,
    epoch: u64,
}

impl RouteTable {
    /// Encoded routes are not good any more (their order configuration or the rules for them changed).
    pub fn invalidate(&mut self) {
        self.epoch += 1;
    }

    /// The address that now holds an id of a broker name.
    pub fn addr(&self, broker_name: &str, broker_id: i64) -> Option<&str> {
        self.groups.get(broker_name)?.addrs.get(&broker_id).map(|addr| &**addr)
    }

    /// A broker that changes its id (a slave that became the master) keeps no other one.
    pub fn drop_other_ids(&mut self, broker_name: &str, broker_addr: &str, broker_id: i64) {
        if let Some(group) = self.groups.get_mut(broker_name) {
            let count = group.addrs.len();
            group.addrs.retain(|id, addr| *id == broker_id || &**addr != broker_addr);
            self.epoch += u64::from(group.addrs.len() != count);
        }
    }

    /// Puts an address into its group.
    pub fn join(&mut self, member: &Member<'_>) -> Joined {
        let name: Arc<str> = member.broker_name.into();
        let cluster: Arc<str> = member.cluster.into();
        if self.clusters.entry(cluster.clone()).or_default().insert(name.clone()) {
            self.epoch += 1;
        }
        let group = self.groups.entry(name.clone()).or_insert_with(|| Group {
            name,
            cluster,
            addrs: BTreeMap::new(),
            acting_master_enable: false,
            zone: None,
            topics: HashSet::new(),
        });
        let acting_master_enable = member.acting_master_enable.unwrap_or(false);
        let before = group.addrs.insert(member.broker_id, member.broker_addr.into());
        let same = before.as_deref() == Some(member.broker_addr)
            && group.acting_master_enable == acting_master_enable
            && group.zone.as_deref() == member.zone;
        group.acting_master_enable = acting_master_enable;
        group.zone = member.zone.map(Box::from);
        self.epoch += u64::from(!same);
        let smallest = group.addrs.keys().next() == Some(&member.broker_id);
        let is_master = member.broker_id == MASTER_ID;
        let is_prime_slave = member.acting_master_enable.is_some() && !is_master && smallest;
        Joined {
            first: before.is_none(),
            gives_topics: is_master || is_prime_slave,
            read_only: is_prime_slave && acting_master_enable,
        }
    }

    /// # Errors
    /// The table of this registration would make the name server hold too many topics.
    pub fn room_for(&self, wrapper: &TopicConfigSerializeWrapper) -> Result<(), RouteError> {
        let table = &wrapper.topic_config_table;
        if self.topics.len() + table.len() > TOPIC_COUNT_MAX {
            let unknown = table.keys().filter(|topic| !self.topics.contains_key(topic.as_str())).count();
            let count = self.topics.len() + unknown;
            if count > TOPIC_COUNT_MAX {
                return Err(RouteError::TooManyTopics { count });
            }
        }
        Ok(())
    }

    /// Takes over the topics of a registration: all of them when `all` (first contact or another version), else those
    /// that this broker name does not have yet. `delete_others` removes what the registration does not name.
    pub fn take_topics(
        &mut self,
        broker_name: &str,
        wrapper: &TopicConfigSerializeWrapper,
        all: bool,
        read_only: bool,
        delete_others: bool,
    ) {
        let table = &wrapper.topic_config_table;
        if delete_others && wrapper.topic_queue_mapping_info_map.is_empty() {
            self.drop_topics(broker_name, |topic| !table.contains_key(topic));
        }
        for (topic, config) in table {
            let known = self.groups.get(broker_name).is_some_and(|group| group.topics.contains(topic.as_str()));
            if all || !known {
                let perm = if read_only { config.perm & !PERM_WRITE } else { config.perm };
                self.set_queues(broker_name, topic, Queues { perm, ..Queues::of(config) });
            }
        }
        if all {
            for (topic, mapping) in &wrapper.topic_queue_mapping_info_map {
                let owner = mapping.get("bname").and_then(|name| name.as_str()).unwrap_or(broker_name);
                if let Some(topic) = self.topics.get_mut(topic.as_str()) {
                    topic.mappings.insert(owner.into(), mapping.clone());
                    topic.encoded = None;
                }
            }
        }
    }

    fn set_queues(&mut self, broker_name: &str, topic: &str, queues: Queues) {
        let Some(group) = self.groups.get_mut(broker_name) else { return };
        let topic = match self.topics.get_key_value(topic) {
            Some((topic, _)) => topic.clone(),
            None => Arc::from(topic),
        };
        let entry = self.topics.entry(topic.clone()).or_default();
        if entry.queues.get(broker_name) != Some(&queues) {
            entry.queues.insert(group.name.clone(), queues);
            entry.encoded = None;
        }
        group.topics.insert(topic);
    }

    /// An address leaves. With its last address a broker name goes, and all its queues; a group whose master is gone
    /// and whose slaves stand in for it can be read only.
    pub fn leave(&mut self, broker_name: &str, broker_addr: &str) {
        let Some(group) = self.groups.get_mut(broker_name) else { return };
        let count = group.addrs.len();
        group.addrs.retain(|_, addr| &**addr != broker_addr);
        if group.addrs.len() == count {
            return;
        }
        self.epoch += 1;
        if group.addrs.is_empty() {
            self.drop_topics(broker_name, |_| true);
            self.groups.remove(broker_name);
            self.clusters.retain(|_, names| {
                names.remove(broker_name);
                !names.is_empty()
            });
        } else if group.acting_master_enable && !group.addrs.contains_key(&MASTER_ID) {
            self.change_perm(broker_name, |perm| perm & !PERM_WRITE);
        }
    }

    /// Takes the queues of a broker name out of those of its topics that `which` names.
    fn drop_topics(&mut self, broker_name: &str, which: impl Fn(&str) -> bool) {
        let Some(group) = self.groups.get_mut(broker_name) else { return };
        let topics = &mut self.topics;
        group.topics.retain(|name| {
            if !which(name) {
                return true;
            }
            if let Some(topic) = topics.get_mut(name) {
                topic.queues.remove(broker_name);
                topic.mappings.remove(broker_name);
                topic.encoded = None;
                if topic.queues.is_empty() {
                    topics.remove(name);
                }
            }
            false
        });
    }

    fn change_perm(&mut self, broker_name: &str, change: impl Fn(i32) -> i32) -> usize {
        let Some(group) = self.groups.get(broker_name) else { return 0 };
        for name in &group.topics {
            let Some(topic) = self.topics.get_mut(name) else { continue };
            if let Some(queues) = topic.queues.get_mut(broker_name) {
                queues.perm = change(queues.perm);
                topic.encoded = None;
            }
        }
        group.topics.len()
    }

    /// For every topic of a broker name; answers how many there are. Adding loses the inherit bit, as in Java.
    pub fn set_write_perm(&mut self, broker_name: &str, what: WritePerm) -> usize {
        self.change_perm(broker_name, |perm| match what {
            WritePerm::Wipe => perm & !PERM_WRITE,
            WritePerm::Add => PERM_READ_WRITE,
        })
    }

    /// On all brokers, or on those of one cluster. Answers the broker names that lost it.
    pub fn delete_topic(&mut self, topic: &str, cluster: Option<&str>) -> Vec<Arc<str>> {
        let Some(names) = self.topics.get(topic).map(|topic| topic.queues.keys().cloned().collect::<Vec<_>>()) else {
            return Vec::new();
        };
        let within = |name: &Arc<str>| {
            cluster.is_none_or(|cluster| self.clusters.get(cluster).is_some_and(|names| names.contains(name)))
        };
        let names: Vec<Arc<str>> = names.into_iter().filter(within).collect();
        for name in &names {
            self.drop_topics(name, |other| other == topic);
        }
        names
    }

    /// One topic, with its queues on brokers that are known (217).
    pub fn add_topic(&mut self, topic: &str, queue_datas: &[QueueData]) -> Result<(), RouteError> {
        if let Some(stranger) = queue_datas.iter().find(|data| !self.groups.contains_key(data.broker_name.as_str())) {
            return Err(RouteError::UnknownBroker(stranger.broker_name.clone()));
        }
        if !self.topics.contains_key(topic) && self.topics.len() >= TOPIC_COUNT_MAX {
            return Err(RouteError::TooManyTopics { count: self.topics.len() + 1 });
        }
        for data in queue_datas {
            let (read, write) = (data.read_queue_nums, data.write_queue_nums);
            let queues = Queues { read, write, perm: data.perm, sys_flag: data.topic_sys_flag };
            self.set_queues(&data.broker_name, topic, queues);
        }
        Ok(())
    }

    /// The body of 105, or `None` when no broker has the topic. `order_conf` is asked when the answer is encoded
    /// anew: who changes what it says must [`RouteTable::invalidate`].
    pub fn encoded_route(
        &mut self,
        topic: &str,
        acting_master_support: bool,
        order_conf: impl FnOnce() -> Option<String>,
    ) -> Option<&[u8]> {
        let epoch = self.epoch;
        let cached = self.topics.get(topic)?.encoded.as_ref().is_some_and(|(of, _)| *of == epoch);
        if !cached {
            let route = TopicRouteData { order_topic_conf: order_conf(), ..self.route(topic, acting_master_support)? };
            let bytes = self.encode(topic, &route).into_boxed_slice();
            self.topics.get_mut(topic)?.encoded = Some((epoch, bytes));
        }
        self.topics.get(topic)?.encoded.as_ref().map(|(_, bytes)| &**bytes)
    }

    /// The body of 105 for clients that stay within their zone: brokers elsewhere are left out while their master
    /// lives. Source: ZoneRouteRPCHook.java.
    pub fn encoded_route_of_zone(
        &self,
        topic: &str,
        acting_master_support: bool,
        order_conf: Option<String>,
        zone: &str,
    ) -> Option<Vec<u8>> {
        let mut route = TopicRouteData { order_topic_conf: order_conf, ..self.route(topic, acting_master_support)? };
        route.broker_datas.retain(|data| {
            let near = data.zone_name.as_deref().is_some_and(|name| name.eq_ignore_ascii_case(zone));
            near || !data.broker_addrs.contains_key(&MASTER_ID)
        });
        let kept: BTreeSet<&str> = route.broker_datas.iter().map(|data| data.broker_name.as_str()).collect();
        let queue_datas = std::mem::take(&mut route.queue_datas);
        route.queue_datas = queue_datas.into_iter().filter(|data| kept.contains(data.broker_name.as_str())).collect();
        Some(self.encode(topic, &route))
    }

    fn encode(&self, topic: &str, route: &TopicRouteData) -> Vec<u8> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct WithMappings<'a> {
            #[serde(flatten)]
            route: &'a TopicRouteData,
            topic_queue_mapping_by_broker: BTreeMap<&'a str, &'a serde_json::Value>,
        }
        match self.topics.get(topic).map(|topic| &topic.mappings).filter(|mappings| !mappings.is_empty()) {
            Some(mappings) => fastjson::to_vec(&WithMappings {
                route,
                topic_queue_mapping_by_broker: mappings.iter().map(|(name, mapping)| (&**name, mapping)).collect(),
            }),
            None => fastjson::to_vec(route),
        }
    }

    fn route(&self, topic: &str, acting_master_support: bool) -> Option<TopicRouteData> {
        let queues = &self.topics.get(topic)?.queues;
        let may_stand_in = acting_master_support && !topic.starts_with(SYNC_MEMBER_PREFIX);
        let mut route = TopicRouteData::default();
        for (name, queues) in queues {
            let group = self.groups.get(name)?;
            let mut data = group.data();
            let lacks_master = !data.broker_addrs.contains_key(&MASTER_ID);
            let stands_in = may_stand_in && lacks_master && group.acting_master_enable && queues.perm & PERM_WRITE == 0;
            if stands_in && let Some((_, addr)) = data.broker_addrs.pop_first() {
                data.broker_addrs.insert(MASTER_ID, addr);
            }
            route.broker_datas.push(data);
            route.queue_datas.push(queues.data(name));
        }
        Some(route)
    }

    /// The body of 106, whatever version asks.
    pub fn encoded_cluster_info(&self) -> Vec<u8> {
        ClusterInfo {
            broker_addr_table: self.groups.iter().map(|(name, group)| (name.to_string(), group.data())).collect(),
            cluster_addr_table: self
                .clusters
                .iter()
                .map(|(cluster, names)| (cluster.to_string(), texts(names)))
                .collect(),
        }
        .to_json()
    }

    /// The body of 901; of an unknown broker name, one without addresses.
    pub fn encoded_member_group(&self, cluster: &str, broker_name: &str) -> Vec<u8> {
        let broker_addrs = self.groups.get(broker_name).map(Group::addr_texts).unwrap_or_default();
        let (broker_name, cluster) = (broker_name.to_owned(), cluster.to_owned());
        BrokerMemberGroupBody { broker_member_group: BrokerMemberGroup { broker_addrs, broker_name, cluster } }
            .to_json()
    }

    pub fn all_topics(&self) -> TopicList {
        TopicList { broker_addr: None, topic_list: texts(self.topics.keys()) }
    }

    /// Empty for an unknown cluster.
    pub fn topics_of_cluster(&self, cluster: &str) -> TopicList {
        let names = self.clusters.get(cluster).into_iter().flatten();
        let groups = names.filter_map(|name| self.groups.get(name));
        TopicList { broker_addr: None, topic_list: texts(groups.flat_map(|group| &group.topics)) }
    }

    /// Cluster and broker names, which are topics too, and a broker that knows the others.
    pub fn system_topics(&self) -> TopicList {
        let names = self.clusters.iter().flat_map(|(cluster, names)| std::iter::once(cluster).chain(names));
        let broker = self.clusters.values().flatten().filter_map(|name| self.groups.get(name)).next();
        let addr = broker.and_then(|group| group.addrs.values().next());
        TopicList { broker_addr: addr.map(|addr| addr.to_string()), topic_list: texts(names) }
    }

    pub fn unit_topics(&self, which: UnitList) -> TopicList {
        let topics = self.topics.iter().filter(|(_, topic)| {
            let flags = topic.queues.values().next().map_or(0, |queues| queues.sys_flag);
            let (unit, sub) = (flags & SYS_FLAG_UNIT != 0, flags & SYS_FLAG_UNIT_SUB != 0);
            match which {
                UnitList::Unit => unit,
                UnitList::HasUnitSub => sub,
                UnitList::HasUnitSubUnUnit => sub && !unit,
            }
        });
        TopicList { broker_addr: None, topic_list: texts(topics.map(|(name, _)| name)) }
    }
}

impl Group {
    fn addr_texts(&self) -> BTreeMap<i64, String> {
        self.addrs.iter().map(|(id, addr)| (*id, addr.to_string())).collect()
    }

    fn data(&self) -> BrokerData {
        BrokerData {
            broker_addrs: self.addr_texts(),
            broker_name: self.name.to_string(),
            cluster: self.cluster.to_string(),
            enable_acting_master: self.acting_master_enable,
            zone_name: self.zone.as_deref().map(str::to_owned),
        }
    }
}

impl Queues {
    fn of(config: &TopicConfig) -> Queues {
        Queues {
            read: config.read_queue_nums,
            write: config.write_queue_nums,
            perm: config.perm,
            sys_flag: config.topic_sys_flag,
        }
    }

    fn data(&self, broker_name: &str) -> QueueData {
        QueueData {
            broker_name: broker_name.to_owned(),
            perm: self.perm,
            read_queue_nums: self.read,
            topic_sys_flag: self.sys_flag,
            write_queue_nums: self.write,
        }
    }
}

fn texts<'a>(names: impl IntoIterator<Item = &'a Arc<str>>) -> BTreeSet<String> {
    names.into_iter().map(|name| name.to_string()).collect()
}
