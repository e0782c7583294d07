//! Who is connected: consumers by group with what they subscribe to, producers by group.
//!
//! ```text
//! heartbeat ──> group ─┬─ members: channel → client       join or leave ──> 40 to all members of a clustering group
//!                      └─ subscriptions: topic → filter   the last heartbeat of any member decides
//! close, unregister, 120 s of silence ──> out of all groups
//! ```
//! A client is its channel; the same client id on two channels is listed once. Lost at the end of the process.
//! Source: ConsumerManager.java, ConsumerGroupInfo.java, ProducerManager.java, ClientManageProcessor.java.

use super::filter::TagFilter;
use super::{
    After, Answer, Broker, Channel, Push, PushWhat, Refusal, Request, check_group_name, retry_topic, unsupported,
};
use ringmq_net::protocol::body::heartbeat::{
    CheckClientBody, ConsumeFromWhere, ConsumeType, ConsumerData, EXPRESSION_SQL92, HeartbeatData, MessageModel,
    SubscriptionData,
};
use ringmq_net::protocol::body::stats::{
    Connection, ConsumerConnection, ConsumerIdList, ProducerConnection, ProducerInfo, ProducerTable,
};
use ringmq_net::protocol::codes::{language, response, version};
use ringmq_net::protocol::headers::admin::{
    ConsumeDirectlyHeader, ConsumerConnectionHeader, ConsumerRunningInfoHeader, ProducerConnectionHeader,
};
use ringmq_net::protocol::headers::client::{ConsumerListHeader, UnregisterClientHeader};
use ringmq_net::reactor::Now;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Silence after which a channel is taken to be dead.
const EXPIRY_NS: u64 = 120_000_000_000;
/// Of one heartbeat: a client has a handful.
const GROUPS_MAX: usize = 4096;
const TOPICS_MAX: usize = 65_536;
/// As Java's clients check it; it names nothing on disk.
const PRODUCER_GROUP_BYTES_MAX: usize = 255;
const CLIENT_ID_BYTES_MAX: usize = 1024;

/// What a group wants of a topic.
#[derive(Clone, Debug)]
pub struct Subscription {
    pub data: SubscriptionData,
    /// Counts for a subscription by tags; one by an expression is in `filters`.
    pub tags: TagFilter,
}

impl Subscription {
    pub fn new(data: SubscriptionData) -> Subscription {
        let tags = if data.is_all() || data.class_filter_mode || (data.is_tag() && data.sub_string.is_empty()) {
            TagFilter::All
        } else {
            // A set, so it is sorted.
            TagFilter::Codes(data.code_set.iter().copied().collect())
        };
        Subscription { data, tags }
    }
}

#[derive(Clone, Debug)]
struct Client {
    id: Arc<str>,
    peer: SocketAddr,
    language: Option<u8>,
    version: i32,
    seen_ns: u64,
}

impl Client {
    fn language_name(&self) -> &'static str {
        self.language.and_then(language::name).unwrap_or("OTHER")
    }
}

struct ConsumerGroup {
    name: Arc<str>,
    consume_type: ConsumeType,
    message_model: MessageModel,
    consume_from_where: ConsumeFromWhere,
    subscriptions: BTreeMap<String, Arc<Subscription>>,
    members: HashMap<Channel, Client>,
}

impl ConsumerGroup {
    /// Whether the set of topics changed: a newer version of one of them is no change.
    fn subscribe(&mut self, wanted: &[SubscriptionData]) -> bool {
        let mut changed = false;
        for data in wanted {
            match self.subscriptions.get(&data.topic) {
                Some(known) if known.data.sub_version >= data.sub_version => continue,
                Some(_) => {}
                None => changed = true,
            }
            self.subscriptions.insert(data.topic.clone(), Arc::new(Subscription::new(data.clone())));
        }
        let before = self.subscriptions.len();
        self.subscriptions.retain(|topic, _| wanted.iter().any(|data| data.topic == *topic));
        changed || self.subscriptions.len() != before
    }

    fn notify(&self, pushes: &mut Vec<Push>) {
        if self.message_model != MessageModel::Clustering {
            return;
        }
        pushes.extend(self.members.keys().map(|channel| Push {
            to: *channel,
            what: PushWhat::ConsumerIdsChanged { group: Arc::clone(&self.name) },
        }));
    }
}

#[derive(Default)]
struct State {
    consumers: HashMap<String, ConsumerGroup>,
    producers: HashMap<String, HashMap<Channel, Client>>,
    /// Where each client that produces is, by its id.
    producer_ids: HashMap<Arc<str>, Channel>,
    /// The groups of each channel, consumers' and producers'.
    channels: HashMap<Channel, (BTreeSet<String>, BTreeSet<String>)>,
}

impl State {
    /// Returns whether it was the last member.
    fn leave(&mut self, channel: Channel, group: &str, notify: bool, pushes: &mut Vec<Push>) -> bool {
        let Some(members) = self.consumers.get_mut(group) else { return false };
        if members.members.remove(&channel).is_none() {
            return false;
        }
        let is_last = members.members.is_empty();
        if is_last {
            self.consumers.remove(group);
        } else if notify {
            members.notify(pushes);
        }
        is_last
    }

    fn leave_producers(&mut self, channel: Channel, group: &str) {
        let is_in_another =
            self.channels.get(&channel).is_some_and(|groups| groups.1.iter().any(|other| other != group));
        if let Some(members) = self.producers.get_mut(group) {
            if let Some(client) = members.remove(&channel)
                && !is_in_another
                && self.producer_ids.get(&client.id) == Some(&channel)
            {
                self.producer_ids.remove(&client.id);
            }
            if members.is_empty() {
                self.producers.remove(group);
            }
        }
    }
}

/// Why a pull finds no subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSubscription {
    Group,
    Topic { model: MessageModel },
}

#[derive(Default)]
pub struct Clients {
    state: RwLock<State>,
}

impl Clients {
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the heartbeats of `group` said about `topic`.
    pub fn subscription(&self, group: &str, topic: &str) -> Result<(Arc<Subscription>, MessageModel), NoSubscription> {
        let state = self.read();
        let group = state.consumers.get(group).ok_or(NoSubscription::Group)?;
        let model = group.message_model;
        let subscription = group.subscriptions.get(topic).ok_or(NoSubscription::Topic { model })?;
        Ok((Arc::clone(subscription), model))
    }

    /// Topics that an online group subscribes to; `None` for a group that is not online.
    pub fn topics_of(&self, group: &str) -> Option<BTreeSet<String>> {
        Some(self.read().consumers.get(group)?.subscriptions.keys().cloned().collect())
    }

    /// Online groups that subscribe to `topic`.
    pub fn groups_of(&self, topic: &str) -> BTreeSet<String> {
        let state = self.read();
        let groups = state.consumers.iter().filter(|(_, group)| group.subscriptions.contains_key(topic));
        groups.map(|(name, _)| name.clone()).collect()
    }

    /// The connection of a client that produces.
    pub fn producer_of_client(&self, client_id: &str) -> Option<Channel> {
        self.read().producer_ids.get(client_id).copied()
    }

    /// The connections of an online group.
    pub fn consumers(&self, group: &str) -> Vec<Channel> {
        self.members(group).into_iter().map(|(channel, ..)| channel).collect()
    }

    /// Connection, client id and version of each member of a consumer group.
    pub fn members(&self, group: &str) -> Vec<(Channel, Arc<str>, i32)> {
        let state = self.read();
        let members = state.consumers.get(group).map(|group| &group.members);
        members
            .into_iter()
            .flatten()
            .map(|(channel, client)| (*channel, Arc::clone(&client.id), client.version))
            .collect()
    }

    pub fn producer_table(&self, now: Now) -> ProducerTable {
        let info = |client: &Client| ProducerInfo {
            client_id: client.id.to_string(),
            language: client.language_name().to_string(),
            last_update_timestamp: now.wall_ms.saturating_sub(now.mono_ns.saturating_sub(client.seen_ns) / 1_000_000)
                as i64,
            remote_ip: client.peer.to_string(),
            version: client.version,
        };
        let state = self.read();
        let groups = state.producers.iter();
        ProducerTable {
            data: groups.map(|(group, members)| (group.clone(), members.values().map(info).collect())).collect(),
        }
    }

    /// A producer of the group, another one for each `pick`.
    pub fn producer(&self, group: &str, pick: usize) -> Option<Channel> {
        let state = self.read();
        let members = state.producers.get(group)?;
        members.keys().nth(pick % members.len().max(1)).copied()
    }

    /// The connection is gone. Returns the groups that have no member any more.
    fn on_close(&self, channel: Channel, notify: impl Fn(&str) -> bool, pushes: &mut Vec<Push>) -> Vec<String> {
        let mut state = self.write();
        let Some((mut consumers, producers)) = state.channels.remove(&channel) else { return Vec::new() };
        consumers.retain(|group| state.leave(channel, group, notify(group), pushes));
        for group in producers {
            state.leave_producers(channel, &group);
        }
        consumers.into_iter().collect()
    }

    /// Channels without a heartbeat for 120 s, and the groups that have no member without them.
    fn expire(&self, now: Now) -> (Vec<Channel>, Vec<String>) {
        let mut state = self.write();
        let mut gone = Vec::new();
        let dead = |client: &Client| now.mono_ns.saturating_sub(client.seen_ns) > EXPIRY_NS;
        let members = state.consumers.values().flat_map(|group| &group.members);
        let silent: BTreeSet<Channel> = members
            .chain(state.producers.values().flatten())
            .filter(|(_, client)| dead(client))
            .map(|(channel, _)| *channel)
            .collect();
        for channel in &silent {
            let Some((consumers, producers)) = state.channels.remove(channel) else { continue };
            gone.extend(consumers.into_iter().filter(|group| state.leave(*channel, group, false, &mut Vec::new())));
            for group in producers {
                state.leave_producers(*channel, &group);
            }
        }
        (silent.into_iter().collect(), gone)
    }
}

fn connections<'a>(members: impl Iterator<Item = &'a Client>) -> Vec<Connection> {
    members
        .map(|client| Connection {
            client_addr: client.peer.to_string(),
            client_id: client.id.to_string(),
            language: client.language_name().to_string(),
            version: client.version,
        })
        .collect()
}

fn check_heartbeat(data: &HeartbeatData) -> Result<(), Refusal> {
    if data.client_id.is_empty() {
        return Err(Refusal::invalid("the heartbeat has no clientID"));
    }
    if data.client_id.len() > CLIENT_ID_BYTES_MAX {
        return Err(Refusal::invalid(format!(
            "clientID of {} bytes, limit {CLIENT_ID_BYTES_MAX}",
            data.client_id.len()
        )));
    }
    let group_count = data.consumer_data_set.len() + data.producer_data_set.len();
    if group_count > GROUPS_MAX {
        return Err(Refusal::invalid(format!("{group_count} groups in one heartbeat, limit {GROUPS_MAX}")));
    }
    let topic_count: usize = data.consumer_data_set.iter().map(|group| group.subscription_data_set.len()).sum();
    if topic_count > TOPICS_MAX {
        return Err(Refusal::invalid(format!("{topic_count} topics in one heartbeat, limit {TOPICS_MAX}")));
    }
    Ok(())
}

/// Groups with names that can not be are left out: one instance has many groups, and the others are well.
///
/// # Errors
/// There is no other.
fn leave_out_ill_named(data: &mut HeartbeatData, peer: SocketAddr) -> Result<(), Refusal> {
    let mut first = None;
    let mut is_good = |group: &str, result: Result<(), Refusal>| {
        let Err(refusal) = result else { return true };
        tracing::warn!(group = %group.chars().take(300).collect::<String>(), %peer, remark = refusal.remark, "a group of a heartbeat is left out");
        first.get_or_insert(refusal);
        false
    };
    data.consumer_data_set.retain(|group| is_good(&group.group_name, check_group_name(&group.group_name)));
    data.producer_data_set.retain(|group| {
        let bytes = group.group_name.len();
        let too_long =
            || Refusal::invalid(format!("producer group of {bytes} bytes, limit {PRODUCER_GROUP_BYTES_MAX}"));
        is_good(&group.group_name, if bytes > PRODUCER_GROUP_BYTES_MAX { Err(too_long()) } else { Ok(()) })
    });
    let is_empty = data.consumer_data_set.is_empty() && data.producer_data_set.is_empty();
    first.filter(|_| is_empty).map_or(Ok(()), Err)
}

/// HEART_BEAT (34). A group and its retry topic are on disk when the first one is answered; the name servers hear of them
/// at the same time, without being waited for: the client holds a lock until the answer comes.
pub fn heartbeat(broker: &Broker, request: &Request<'_, '_>, pushes: &mut Vec<Push>) -> Result<Answer, Refusal> {
    let mut data = HeartbeatData::from_json(request.command.body)
        .map_err(|error| Refusal::invalid(format!("the body is no heartbeat: {error}")))?;
    check_heartbeat(&data)?;
    leave_out_ill_named(&mut data, request.peer)?;
    for subscription in data.consumer_data_set.iter_mut().flat_map(|consumer| &mut consumer.subscription_data_set) {
        subscription.set_version_if_absent(request.now.wall_ms as i64);
    }
    let mut created = None;
    let mut notify = Vec::with_capacity(data.consumer_data_set.len());
    for consumer in &data.consumer_data_set {
        let group = broker.groups.get_or_create(&consumer.group_name, request.now.wall_ms);
        notify.push(group.as_ref().is_none_or(|(config, _)| config.notify_consumer_ids_changed_enable));
        if let Some((config, version)) = group {
            let topic = retry_topic(&consumer.group_name);
            let topic =
                broker.topics.get_or_create(&topic, config.retry_queue_nums, consumer.unit_mode, request.now.wall_ms);
            created = created.max(version).max(topic.and_then(|(_, version)| version));
        }
    }
    let client = Client {
        id: data.client_id.as_str().into(),
        peer: request.peer,
        language: request.command.language,
        version: request.command.version,
        seen_ns: request.now.mono_ns,
    };
    let mut guard = broker.clients.write();
    let state = &mut *guard;
    for (consumer, notify) in data.consumer_data_set.iter().zip(notify) {
        let changed = register(state, request.channel, consumer, &client, data.without_sub);
        if changed && notify && broker.live.config().consumer_ids_changed_notify {
            state.consumers[&consumer.group_name].notify(pushes);
        }
    }
    for producer in &data.producer_data_set {
        let members = state.producers.entry(producer.group_name.clone()).or_default();
        members.insert(request.channel, client.clone());
        state.producer_ids.insert(Arc::clone(&client.id), request.channel);
        let groups = state.channels.entry(request.channel).or_default();
        groups.1.insert(producer.group_name.clone());
    }
    // Expressions are compiled without the lock.
    drop(guard);
    for consumer in data.consumer_data_set.iter().filter(|_| !data.without_sub) {
        broker.filters.register(&consumer.group_name, &consumer.subscription_data_set, request.now.wall_ms);
    }
    Ok(Answer::after(created.map_or(After::Now, After::Durable)))
}

/// Whether members or topics of the group changed.
fn register(state: &mut State, channel: Channel, consumer: &ConsumerData, client: &Client, without_sub: bool) -> bool {
    let group = state.consumers.entry(consumer.group_name.clone()).or_insert_with(|| ConsumerGroup {
        name: consumer.group_name.as_str().into(),
        consume_type: consumer.consume_type,
        message_model: consumer.message_model,
        consume_from_where: consumer.consume_from_where,
        subscriptions: BTreeMap::new(),
        members: HashMap::new(),
    });
    let joined = group.members.insert(channel, client.clone()).is_none();
    let mut changed = joined;
    if !without_sub {
        group.consume_type = consumer.consume_type;
        group.message_model = consumer.message_model;
        group.consume_from_where = consumer.consume_from_where;
        changed |= group.subscribe(&consumer.subscription_data_set);
    }
    state.channels.entry(channel).or_default().0.insert(consumer.group_name.clone());
    changed
}

/// UNREGISTER_CLIENT (35): 0 for a client that never was there, too.
pub fn unregister(broker: &Broker, request: &Request<'_, '_>, pushes: &mut Vec<Push>) -> Result<Answer, Refusal> {
    let header = UnregisterClientHeader::parse(&request.command.ext)?;
    let mut state = broker.clients.write();
    if let Some(group) = header.producer_group {
        state.leave_producers(request.channel, group);
        if let Some(groups) = state.channels.get_mut(&request.channel) {
            groups.1.remove(group);
        }
    }
    if let Some(group) = header.consumer_group {
        let notify = broker.is_notified(group);
        if state.leave(request.channel, group, notify, pushes) {
            broker.filters.unregister(group, request.now.wall_ms);
        }
        if let Some(groups) = state.channels.get_mut(&request.channel) {
            groups.0.remove(group);
        }
    }
    Ok(Answer::empty())
}

impl Broker {
    /// The connection is gone.
    pub fn on_close(&self, channel: Channel, now: Now, pushes: &mut Vec<Push>) {
        for group in self.clients.on_close(channel, |group| self.is_notified(group), pushes) {
            self.filters.unregister(&group, now.wall_ms);
        }
    }

    /// Channels without a heartbeat for 120 s. They leave at once, without a notice, and are to be closed.
    pub fn expire(&self, now: Now) -> Vec<Channel> {
        let (silent, gone) = self.clients.expire(now);
        for group in gone {
            self.filters.unregister(&group, now.wall_ms);
        }
        silent
    }

    /// Whether the members of `group` are told when one comes or goes.
    pub fn is_notified(&self, group: &str) -> bool {
        self.live.config().consumer_ids_changed_notify
            && self.groups.get(group).is_none_or(|config| config.notify_consumer_ids_changed_enable)
    }
}

/// GET_CONSUMER_LIST_BY_GROUP (38): each client once, the same list for every member.
pub fn consumer_list(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = ConsumerListHeader::parse(&request.command.ext)?;
    let state = broker.clients.read();
    let members = state.consumers.get(header.consumer_group).map(|group| &group.members);
    let ids: BTreeSet<&str> = members.iter().flat_map(|members| members.values()).map(|client| &*client.id).collect();
    if ids.is_empty() {
        return Err(Refusal::new(
            response::SYSTEM_ERROR,
            format!("no consumer for this group, {}", header.consumer_group),
        ));
    }
    let list = ConsumerIdList { consumer_id_list: ids.into_iter().map(str::to_string).collect() };
    Ok(Answer::body(list.to_json()))
}

/// CHECK_CLIENT_CONFIG (46).
pub fn check_config(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    if request.command.body.is_empty() {
        return Ok(Answer::empty());
    }
    let body = CheckClientBody::from_json(request.command.body)
        .map_err(|error| Refusal::invalid(format!("the body is no client configuration: {error}")))?;
    let Some(data) = body.subscription_data.filter(|data| !data.is_tag()) else { return Ok(Answer::empty()) };
    if !broker.live.property_filter_enable() || data.expression_type != EXPRESSION_SQL92 {
        return Err(no_filter(&data.expression_type));
    }
    match broker.filters.compile(&data.sub_string) {
        Ok(_) => Ok(Answer::empty()),
        Err(fault) => Err(Refusal::new(response::SUBSCRIPTION_PARSE_FAILED, fault.to_string())),
    }
}

/// As a Java broker with `enablePropertyFilter=false` says it.
pub fn no_filter(expression_type: &str) -> Refusal {
    let kind: String = expression_type.chars().take(32).collect();
    Refusal::new(response::SYSTEM_ERROR, format!("The broker does not support consumer to filter message by {kind}"))
}

pub fn consumer_connections(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = ConsumerConnectionHeader::parse(&request.command.ext)?;
    let state = broker.clients.read();
    let Some(group) = state.consumers.get(header.consumer_group) else {
        return Err(Refusal::new(
            response::CONSUMER_NOT_ONLINE,
            format!("the consumer group[{}] not online", header.consumer_group),
        ));
    };
    let body = ConsumerConnection {
        connection_set: connections(group.members.values()),
        consume_from_where: group.consume_from_where,
        consume_type: group.consume_type,
        message_model: group.message_model,
        subscription_table: group
            .subscriptions
            .iter()
            .map(|(topic, subscription)| (topic.clone(), subscription.data.clone()))
            .collect(),
    };
    Ok(Answer::body(body.to_json()))
}

pub fn producer_connections(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = ProducerConnectionHeader::parse(&request.command.ext)?;
    let state = broker.clients.read();
    let Some(members) = state.producers.get(header.producer_group) else {
        return Err(Refusal::new(
            response::SYSTEM_ERROR,
            format!("the producer group[{}] not exist", header.producer_group),
        ));
    };
    Ok(Answer::body(ProducerConnection { connection_set: connections(members.values()) }.to_json()))
}

/// GET_CONSUMER_RUNNING_INFO (307): the client knows, so it is asked.
pub fn running_info(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = ConsumerRunningInfoHeader::parse(&request.command.ext)?;
    let channel = asked_member(broker, request, header.consumer_group, header.client_id)?;
    Ok(Answer::after(After::Forwarded(channel)))
}

/// CONSUME_MESSAGE_DIRECTLY (309): a client is given a message and says what its listener said.
pub fn consume_directly(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = ConsumeDirectlyHeader::parse(&request.command.ext)?;
    let channel = asked_member(broker, request, header.consumer_group, header.client_id.unwrap_or(""))?;
    let offset = super::query::log_offset_of(header.msg_id.unwrap_or(""))?;
    let record = broker
        .store
        .record_at(offset)
        .ok_or_else(|| Refusal::new(response::SYSTEM_ERROR, format!("can not find message by the offset, {offset}")))?;
    Ok(Answer {
        body: record.to_vec(),
        ext: vec![("brokerName", broker.config.broker_name.clone())],
        ..Answer::after(After::Forwarded(channel))
    })
}

/// The connection of a member that is asked on behalf of somebody.
fn asked_member(broker: &Broker, request: &Request<'_, '_>, group: &str, id: &str) -> Result<Channel, Refusal> {
    let state = broker.clients.read();
    let members = state.consumers.get(group).map(|group| &group.members);
    let Some((channel, client)) = members.into_iter().flatten().find(|(_, client)| &*client.id == id) else {
        return Err(Refusal::new(response::SYSTEM_ERROR, format!("The Consumer <{group}> <{id}> not online")));
    };
    if client.version < version::V3_1_8_SNAPSHOT {
        return Err(Refusal::new(
            response::SYSTEM_ERROR,
            format!("The Consumer <{id}> Version <{}> too low to finish, please upgrade it", client.version),
        ));
    }
    if request.command.is_oneway() {
        return Err(unsupported(request.command.code));
    }
    Ok(*channel)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(topic: &str, sub_version: i64) -> SubscriptionData {
        SubscriptionData { sub_version, ..SubscriptionData::build_tag(topic, "*").unwrap() }
    }

    fn channel(slot: u32) -> Channel {
        Channel { shard: 0, conn: ringmq_net::reactor::ConnId { slot, generation: 0 } }
    }

    fn client(id: &str, seen_ns: u64) -> Client {
        Client { id: id.into(), peer: "127.0.0.1:1".parse().unwrap(), language: Some(0), version: 407, seen_ns }
    }

    fn consumer(topics: &[(&str, i64)]) -> ConsumerData {
        ConsumerData {
            group_name: "g".into(),
            message_model: MessageModel::Clustering,
            subscription_data_set: topics.iter().map(|(topic, version)| data(topic, *version)).collect(),
            ..ConsumerData::default()
        }
    }

    #[test]
    fn a_change_is_a_member_or_a_topic_that_came_or_went() {
        let mut state = State::default();
        // channel, topics with versions, changed
        for (slot, topics, want) in [
            (1, &[("T1", 1)][..], true),
            (1, &[("T1", 1)], false),
            (1, &[("T1", 2)], false),
            (1, &[("T1", 1)], false),
            (2, &[("T1", 2)], true),
            (2, &[("T1", 2), ("T2", 2)], true),
            (1, &[("T2", 3)], true),
        ] {
            let changed = register(&mut state, channel(slot), &consumer(topics), &client("c", 0), false);
            assert_eq!(changed, want, "{slot} {topics:?}");
        }
        let group = &state.consumers["g"];
        assert!(!group.subscriptions.contains_key("T1"));
        assert_eq!(group.subscriptions["T2"].data.sub_version, 3);
        let mut pushes = Vec::new();
        assert!(!state.leave(channel(1), "g", true, &mut pushes));
        assert_eq!(pushes.len(), 1);
        assert!(state.leave(channel(2), "g", true, &mut pushes));
        assert!(state.consumers.is_empty());
    }

    #[test]
    fn an_older_subscription_leaves_the_newer_one() {
        let mut state = State::default();
        register(&mut state, channel(1), &consumer(&[("T", 5)]), &client("c", 0), false);
        register(&mut state, channel(1), &consumer(&[("T", 4)]), &client("c", 0), false);
        assert_eq!(state.consumers["g"].subscriptions["T"].data.sub_version, 5);
        // A heartbeat of liveness only has no topics and means none of them.
        register(&mut state, channel(1), &consumer(&[]), &client("c", 0), true);
        assert!(state.consumers["g"].subscriptions.contains_key("T"));
    }

    #[test]
    fn silence_ends_a_membership() {
        let clients = Clients::default();
        register(&mut clients.write(), channel(1), &consumer(&[("T", 1)]), &client("old", 0), false);
        register(&mut clients.write(), channel(2), &consumer(&[("T", 1)]), &client("new", EXPIRY_NS), false);
        let silent = clients.expire(Now { wall_ms: 0, mono_ns: EXPIRY_NS + 1 });
        assert_eq!(silent, (vec![channel(1)], vec![]));
        assert_eq!(clients.read().consumers["g"].members.len(), 1);
        assert_eq!(clients.on_close(channel(2), |_| true, &mut Vec::new()), ["g"]);
        assert_eq!(clients.subscription("g", "T").unwrap_err(), NoSubscription::Group);
    }

    #[test]
    fn the_filter_of_a_subscription() {
        let all = |expression: &str| Subscription::new(SubscriptionData::build_tag("T", expression).unwrap()).tags;
        assert_eq!(all("*"), TagFilter::All);
        assert_eq!(all(""), TagFilter::All);
        let TagFilter::Codes(codes) = all("TagA || TagB") else { panic!() };
        assert_eq!(codes.len(), 2);
        assert!(codes.is_sorted());
        let filter = all("TagA");
        let code = i64::from(ringmq_net::protocol::body::heartbeat::java_hash("TagA"));
        assert!(filter.accepts(code));
        assert!(filter.accepts(code & 0xffff_ffff));
        assert!(!filter.accepts(0));
    }
}
